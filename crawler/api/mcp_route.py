"""`/mcp` of the API: who asks, and whether the extra `mcp` is there."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import Receive, Scope, Send

from crawler.api.auth import current_client
from crawler.api.backend import LedgerBackend
from crawler.api.mcp_tools import Caller
from crawler.config import Settings
from crawler.errors import UsageError

if TYPE_CHECKING:
    from crawler.api.mcp import HttpTransport

PATH = "/mcp"


class McpRoute:
    """Serves MCP to the clients of the API; without the extra, it says what to install."""

    def __init__(self, settings: Settings, backend: LedgerBackend) -> None:
        self._backend = backend
        self._transport: HttpTransport | None = None
        self._missing = ""
        try:
            from crawler.api import mcp
        except UsageError as error:
            self._missing = str(error)
        else:
            self._transport = mcp.HttpTransport(settings, backend, self._caller_of)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve within the lifespan of the application."""
        if self._transport is None:
            yield
            return
        async with self._transport.running():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse those who may not ask, and serve the others."""
        current_client(HTTPConnection(scope))
        if self._transport is None:
            raise HTTPException(501, self._missing)
        await self._transport(scope, receive, send)

    def _caller_of(self, request: HTTPConnection) -> Caller:
        name = current_client(request).name
        return Caller(name, partial(self._backend.submit, name))
