"""The end of the server: exchanges that are under way get a moment, and then a 503 instead of
silence."""

import asyncio
import logging
import secrets
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crawler.gateway.reference.bodies import Problem, Refusal
from crawler.logs import printable

log = logging.getLogger("crawler.gateway")


class Farewell:
    """A layer that knows which exchanges are under way, and can end them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._running: set[asyncio.Task[Any]] = set()
        self._over = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let an exchange through; one that is ended, or comes after the end, is answered with
        503."""
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
        await _refuse(scope, receive, send)

    def end(self) -> None:
        """End what is under way."""
        self._over = True
        for task in self._running:
            task.cancel()


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    refusal = Refusal(
        Problem("UNAVAILABLE", "the Gateway is ending; try again later"), secrets.token_hex(8)
    )
    about = {
        "status": 503,
        "path": printable(scope["path"])[:300],
        "request_id": refusal.request_id,
    }
    log.warning("a call was refused: %s", refusal.error.message, extra=about)
    headers = {"Retry-After": "5", "Connection": "close"}
    await Response(msgspec.json.encode(refusal), 503, headers, "application/json")(
        scope, receive, send
    )
