"""The FastAPI application: puts back end, tokens and routes together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.routing import Route

from crawler import __version__
from crawler.api import errors, firecrawl, routes, streams
from crawler.api.auth import TokenAuth
from crawler.api.backend import LedgerBackend
from crawler.api.limits import MCP_PATH, Guard
from crawler.api.mcp_route import McpRoute
from crawler.api.service import Service
from crawler.api.tokens import Tokens
from crawler.config import Settings

ABOUT = "Crawls lists of URLs. Every accepted URL is in a ledger before the answer is sent."


def create_app(settings: Settings, is_local: bool = True) -> FastAPI:
    """Return the application on the store of the settings.

    `is_local`: only this machine reaches it, so that no token is needed as long as there is none.
    """
    backend = LedgerBackend(settings)
    service = Service(settings, backend)
    auth = TokenAuth(Tokens(settings), is_local)
    mcp = McpRoute(service)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.feed = streams.Feed(service)
        service.start()
        try:
            async with mcp.running():
                yield
        finally:
            service.stop()

    app = FastAPI(
        title="crawler",
        description=ABOUT,
        version=__version__,
        lifespan=lifespan,
        # Their pages would load scripts of other servers into this one's origin.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.router.routes.append(Route(MCP_PATH, mcp, methods=["POST"]))
    app.state.settings = settings
    app.state.backend = backend
    app.state.service = service
    app.state.auth = auth
    app.include_router(routes.router)
    app.include_router(routes.monitors)
    app.include_router(streams.websockets)
    app.include_router(firecrawl.router())
    errors.install(app)
    app.add_middleware(Guard, auth=auth)
    app.add_middleware(firecrawl.KeyAsSubprotocol)  # the last one: it comes before all others
    return app
