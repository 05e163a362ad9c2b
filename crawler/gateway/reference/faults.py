"""Faults by a switch, for tests and drills: with some probability an exchange fails as real
networks let it fail."""

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from random import Random
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

KINDS = (
    "lost_answer",  # the work is done, its answer never arrives
    "reset",  # the connection ends before the work
    "error_before",  # 500, 502 or 503, and nothing was done
    "error_after",  # … although the work was done
    "throttled",  # 429 with Retry-After
    "slow",
    "garbage",  # the work is done, and the answer is none
    "partial",  # some results are not stored
)
LEFT_OUT = "crawler.left_out"
"""The name in an exchange's scope under which a played fault tells the results' door to leave some
of them out."""

_HTML = b"<!doctype html><title>Sign in</title><p>Please sign in to the network."
_WRONG = (
    b"",
    b"null",
    b"[]",
    b"42",
    b'"ok"',
    b'{"tasks": 7, "retry_after": "soon", "inserted": "some", "status": 1, "success": "no", "commands": 3}',
)


class Fault(msgspec.Struct, frozen=True):
    """What is to happen to an exchange: decided when it begins, so that one seed gives one run."""

    kind: str
    status: int
    delay_s: float
    garbage: int
    seed: int


class Dice:
    """Which exchanges fail, and how; and how many have."""

    def __init__(self, probability: float, seed: int) -> None:
        self.probability, self._random = probability, Random(seed)
        self.counts: Counter[str] = Counter()

    def roll(self, scope: Scope) -> Fault | None:
        """What is to happen to this exchange, if anything."""
        if scope["type"] != "http" or not scope["path"].startswith("/internal/"):
            return None
        if self._random.random() >= self.probability:
            return None
        results = scope["method"] == "POST" and scope["path"].endswith("/results")
        fault = Fault(
            kind=self._random.choice(KINDS if results else KINDS[:-1]),
            status=self._random.choice((500, 502, 503)),
            delay_s=self._random.uniform(0.2, 2.0),
            garbage=self._random.randrange(len(_WRONG) + 2),
            seed=self._random.getrandbits(32),
        )
        self.counts[fault.kind] += 1
        return fault


class Faults:
    """The outermost layer of the application: it alone sees the connection."""

    def __init__(self, app: ASGIApp, dice: Dice) -> None:
        self._app, self._dice = app, dice

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let an exchange through, or play a fault on it."""
        fault = self._dice.roll(scope)
        if fault is None:
            return await self._app(scope, receive, send)
        match fault.kind:
            case "reset":
                await _abort(send)
            case "lost_answer":
                await self._answer(scope, receive)
                await _abort(send)
            case "error_before":
                await _say(send, fault.status, b'{"error": "out of order"}')
            case "error_after":
                await self._answer(scope, receive)
                await _say(send, fault.status, b"<h1>Bad Gateway</h1>", b"text/html")
            case "throttled":
                await _say(
                    send, 429, b'{"error": "too many requests"}', headers=[(b"retry-after", b"1")]
                )
            case "garbage":
                await _garble(send, fault.garbage, await self._answer(scope, receive))
            case "slow":
                await asyncio.sleep(fault.delay_s)
                await self._app(scope, receive, send)
            case _:
                await self._app({**scope, LEFT_OUT: fault.seed}, receive, send)
        return None

    async def _answer(self, scope: Scope, receive: Receive) -> bytes:
        """Have the work done, and keep the answer back."""
        parts: list[bytes] = []

        async def keep(message: Message) -> None:
            parts.append(message.get("body", b""))

        await self._app(scope, receive, keep)
        return b"".join(parts)


def left_out(seed: int, count: int) -> frozenset[int]:
    """The places of some of so many results, at least one of them."""
    random = Random(seed)
    return frozenset(place for place in range(count) if random.random() < 0.5) or frozenset(
        range(min(count, 1))
    )


async def _garble(send: Send, choice: int, answer: bytes) -> None:
    if choice == 0:
        await _say(send, 200, _HTML, b"text/html")
    elif choice == 1:
        await _say(send, 200, answer[: len(answer) // 2])
    else:
        await _say(send, 200, _WRONG[choice - 2])


async def _say(
    send: Send,
    status: int,
    body: bytes,
    content_type: bytes = b"application/json",
    headers: list[tuple[bytes, bytes]] | None = None,
) -> None:
    head = [
        (b"content-type", content_type),
        (b"content-length", str(len(body)).encode()),
        *(headers or []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


async def _abort(send: Send) -> None:
    """End the connection with a reset, as a peer that has crashed does."""
    cycle: Any = getattr(
        send, "__self__", None
    )  # uvicorn's own: nothing stands between it and this layer
    assert cycle is not None
    raw = cycle.transport.get_extra_info("socket")
    with contextlib.suppress(OSError):  # the peer may have gone before
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    cycle.transport.abort()
    while not cycle.disconnected:  # noqa: ASYNC110 # else the server would answer with an error of its own
        await asyncio.sleep(0)
