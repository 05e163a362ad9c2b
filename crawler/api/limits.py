"""Limits on what clients may do: sizes, times, and how much at once; and the guard of the door."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Asgi

from crawler.api.auth import OPEN_PATHS, Auth
from crawler.api.errors import INTERNAL, ApiError, as_http, refuse
from crawler.api.tokens import Scope
from crawler.errors import CrawlerError

log = logging.getLogger(__name__)

MAX_BODY = 10_000_000
"""Bytes of a request's body."""
MAX_DRAINED = 10 * MAX_BODY
"""Bytes of a body that is too large which are read and dropped, so that its sender hears why."""
MAX_URLS = 10_000
MAX_WAITS, MAX_WAITS_PER_CLIENT = 400, 100
"""Requests that may wait for a crawl at a time."""
MAX_STREAMS, MAX_STREAMS_PER_CLIENT = 1000, 250
SILENT_S = 30.0
"""How long a body may stand still, and how long a client may take nothing of an answer."""
BODY_S = 120.0
"""How long a whole body may take."""
MCP_PATH = "/mcp"
"""All its requests are POST. Its tools that only read are for every client; the others ask for the
scope by themselves."""
_WITHOUT_BODY = ("GET", "HEAD", "DELETE", "OPTIONS")
"""Methods whose bodies nobody reads."""


class Slots:
    """Counts what goes on at a time, for each client and in all."""

    def __init__(self, what: str, most: int, most_per_client: int) -> None:
        self._what, self._most, self._most_per_client = what, most, most_per_client
        self._taken: Counter[str] = Counter()

    def take(self, client: str) -> None:
        """Count one more; raises `ApiError` if that is too many."""
        if self._taken[client] >= self._most_per_client or self._taken.total() >= self._most:
            message = f"too many {self._what} at a time; end one, or try again later"
            raise ApiError(429, f"too_many_{self._what}", message, {"Retry-After": "5"})
        self._taken[client] += 1

    def give(self, client: str) -> None:
        """Count one less."""
        self._taken[client] -= 1
        if not self._taken[client]:
            del self._taken[client]

    @contextlib.contextmanager
    def taken(self, client: str) -> Iterator[None]:
        """One more within the block."""
        self.take(client)
        try:
            yield
        finally:
            self.give(client)


class Guard:
    """What every request passes: who asks, what that client may do, and how large the body is."""

    def __init__(self, app: ASGIApp, auth: Auth) -> None:
        self._app, self._auth = app, auth

    async def __call__(self, scope: Asgi, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send)
        try:
            self._admit(scope)
            if scope["type"] == "http" and scope["method"] not in _WITHOUT_BODY:
                receive = _Body(receive).receive
            await self._app(scope, receive, answer.send)
        except _ClientGone:
            log.debug("a client took nothing of an answer for %g s, and was left", SILENT_S)
        except HTTPException as error:
            if not answer.has_begun:
                await refuse(scope, receive, send, error)
        except CrawlerError as error:
            if not answer.has_begun:
                await refuse(scope, receive, send, as_http(error))
        except Exception:
            log.exception("a request met an unforeseen error")
            if not answer.has_begun:
                await refuse(scope, receive, send, ApiError(500, "internal", INTERNAL))

    def _admit(self, scope: Asgi) -> None:
        client = self._auth.client_of(HTTPConnection(scope))
        if scope["path"] not in OPEN_PATHS:
            is_harmless = (
                scope["type"] == "websocket"
                or scope["method"] in ("GET", "HEAD")
                or scope["path"] == MCP_PATH
            )
            wanted: Scope = "read" if is_harmless else "crawl"
            if not client.may(wanted):
                raise ApiError(403, "scope", f"this token has no scope {wanted!r}")
        scope["crawler.client"] = client


class _ClientGone(Exception):
    """The client takes nothing any more."""


class _Answer:
    """What is sent; a client that takes nothing of it for too long is left."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False

    async def send(self, message: Message) -> None:
        self.has_begun = True
        try:
            async with asyncio.timeout(SILENT_S):
                await self._send(message)
        except TimeoutError:
            raise _ClientGone from None


class _Body:
    """What comes; counted while it streams, and not waited for too long."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._size = 0
        self._is_complete = False
        self._end = asyncio.get_running_loop().time() + BODY_S

    async def receive(self) -> Message:
        if self._is_complete:
            return await self._receive()  # that is how an app hears that its client is gone
        message = await self._next()
        if message["type"] == "http.request" and self._size > MAX_BODY:
            await self._drain(message)
            raise ApiError(413, "too_large", f"the body has more than {MAX_BODY:,} bytes")
        return message

    async def _next(self) -> Message:
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(max(0.0, min(SILENT_S, self._end - now))):
                message = await self._receive()
        except TimeoutError:
            raise ApiError(408, "too_slow", "the body took too long") from None
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            self._is_complete = not message.get("more_body", False)
        return message

    async def _drain(self, message: Any) -> None:
        while not self._is_complete and self._size < MAX_DRAINED:
            message = await self._next()
            if message["type"] != "http.request":
                return
