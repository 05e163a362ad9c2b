"""The FastAPI application: puts back end, tokens and routes together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.routing import Route

from crawler import __version__
from crawler.api.auth import LocalOnly
from crawler.api.backend import LedgerBackend
from crawler.api.mcp_route import PATH, McpRoute
from crawler.config import Settings


def create_app(settings: Settings) -> FastAPI:
    """Return the application on the store of the settings."""
    backend = LedgerBackend(settings)
    mcp = McpRoute(settings, backend)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        backend.start()
        try:
            async with mcp.running():
                yield
        finally:
            backend.stop()

    app = FastAPI(title="crawler", version=__version__, lifespan=lifespan)
    app.router.routes.append(Route(PATH, mcp, methods=["POST"]))
    app.state.settings = settings
    app.state.backend = backend
    app.state.auth = LocalOnly()
    return app
