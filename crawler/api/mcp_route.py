"""`/mcp` of the API: who asks, what that client may do, and whether the extra `mcp` is there."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import Receive, Scope, Send

from crawler.api.auth import Client, current_client
from crawler.api.backend import SessionState
from crawler.api.errors import ApiError
from crawler.api.intake import NewCall
from crawler.api.mcp_tools import Caller
from crawler.api.service import Service
from crawler.batches import BatchOptions
from crawler.errors import UsageError

if TYPE_CHECKING:
    from crawler.api.mcp import HttpTransport


class McpRoute:
    """Serves MCP to the clients of the API; without the extra, it says what to install."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._transport: HttpTransport | None = None
        self._missing = ""
        try:
            from crawler.api import mcp
        except UsageError as error:
            self._missing = str(error)
        else:
            self._transport = mcp.HttpTransport(service.settings, service.backend, self._caller_of)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve within the lifespan of the application."""
        if self._transport is None:
            yield
            return
        async with self._transport.running():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, of which a client may have some at a time."""
        if self._transport is None:
            raise HTTPException(501, self._missing)
        with self._service.waits.taken(current_client(HTTPConnection(scope)).name):
            await self._transport(scope, receive, send)

    def _caller_of(self, request: HTTPConnection) -> Caller:
        client = current_client(request)
        return Caller(client.name, partial(self._submit, client))

    def _submit(
        self,
        client: Client,
        session_id: str,
        urls: Sequence[str],
        options: BatchOptions,
        distributed: bool,
    ) -> SessionState:
        """Accept URLs within the scopes and limits of a client."""
        if not client.may("crawl"):
            raise UsageError("this token has no scope 'crawl': it can only read")
        call = NewCall(urls=urls, options=options, session_id=session_id, distributed=distributed)
        try:
            self._service.intake.accept(client, call)
        except ApiError as error:
            raise UsageError(str(error.detail)) from None
        state = self._service.backend.progress(client.name, session_id)
        assert state is not None
        return state
