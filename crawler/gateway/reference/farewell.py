"""The end of the server: exchanges that are under way get a moment, and then a 503 instead of silence."""

import asyncio
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_BODY = b'{"error":{"code":"UNAVAILABLE","message":"the Gateway is ending; try again later"},"request_id":""}'
_HEADERS = [
    (b"content-type", b"application/json"),
    (b"content-length", str(len(_BODY)).encode()),
    (b"retry-after", b"5"),
    (b"connection", b"close"),
]


class Farewell:
    """A layer that knows which exchanges are under way, and can end them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._running: set[asyncio.Task[Any]] = set()
        self._over = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let an exchange through; one that is ended, or comes after the end, is answered with 503."""
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            if not self._over:
                await self._app(scope, receive, watched)
                return
        except asyncio.CancelledError:
            if not self._over or begun:
                raise
            task.uncancel()
        finally:
            self._running.discard(task)
        await send({"type": "http.response.start", "status": 503, "headers": _HEADERS})
        await send({"type": "http.response.body", "body": _BODY})

    def end(self) -> None:
        """End what is under way."""
        self._over = True
        for task in self._running:
            task.cancel()
