"""The FastAPI application: puts back end, tokens and routes together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from crawler import __version__
from crawler.api import firecrawl
from crawler.api.auth import LocalOnly
from crawler.api.backend import LedgerBackend
from crawler.config import Settings


def create_app(settings: Settings) -> FastAPI:
    """Return the application on the store of the settings."""
    backend = LedgerBackend(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        backend.start()
        try:
            yield
        finally:
            backend.stop()

    app = FastAPI(title="crawler", version=__version__, lifespan=lifespan)
    app.state.settings = settings
    app.state.backend = backend
    app.state.auth = LocalOnly()
    app.include_router(firecrawl.router())
    app.add_middleware(firecrawl.KeyAsSubprotocol)  # the last one: it comes before all others
    return app
