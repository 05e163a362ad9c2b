"""Streams of a session: a WebSocket, Server-Sent Events and NDJSON, each resumed by a cursor.

Every result has a number, `seq`. Who asks for what is behind the last one that came gets the rest,
each result once.
"""

import asyncio
import contextlib
import logging
import re
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Annotated, Any, NamedTuple

import anyio
import msgspec
from anyio import to_thread
from fastapi import APIRouter, Header, Query, Request, WebSocket
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from crawler.api.auth import CurrentClient, current_client
from crawler.api.backend import SessionState
from crawler.api.errors import ApiError, refuse
from crawler.api.routes import Cursor, SessionId, no_session, router
from crawler.api.service import Service, service_of
from crawler.api.tokens import Client

log = logging.getLogger(__name__)

RESULTS_PER_READ = 20
MAX_CACHED, MAX_READS = 32_000_000, 1000
"""Bytes and pages of results that streams share: many of one session read the ledger once."""
READ_THREADS = 4
"""Reads of streams at a time: other requests need threads, too."""
PAUSE_S = 0.2
"""The least time between two looks of a stream at the ledger."""
PING_S = 15.0
_CURSOR = re.compile(r"-?[0-9]{1,16}")
SERVICE_RESTART = 1012
"""The close code of a WebSocket whose server ends."""

websockets = APIRouter()


class Message(msgspec.Struct, frozen=True):
    """One message of a stream, encoded once for all who get it."""

    kind: str
    """`result`, `progress` or `done`."""
    seq: int | None
    data: bytes


class Batch(msgspec.Struct, frozen=True):
    """What a stream sends next."""

    messages: list[Message]
    cursor: int
    is_last: bool
    is_complete: bool
    size: int


class Feed:
    """Reads sessions for streams; those that are equally far share one read."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._limiter = anyio.CapacityLimiter(READ_THREADS)
        self._reads: OrderedDict[_Key, _Reading] = OrderedDict()
        self._cached = 0

    async def read(
        self, client: Client, session_id: str, began: float, cursor: int
    ) -> Batch | None:
        """What is behind a cursor; None if there is no such session.

        `began` tells a session from an earlier one of this name that was removed.
        """
        key, version = (client.name, session_id, began, cursor), self._service.changes.version
        known = self._reads.get(key)
        if known is None or not known.is_valid(version):
            self._drop(key)
            known = _Reading(version, asyncio.create_task(self._read(key)))
            self._reads[key] = known
            known.task.add_done_callback(lambda _: self._keep(key, known))
        return await asyncio.shield(known.task)

    async def _read(self, key: "_Key") -> Batch | None:
        client, session_id, _, cursor = key
        read = self._encoded
        return await to_thread.run_sync(read, client, session_id, cursor, limiter=self._limiter)

    def _encoded(self, client: str, session_id: str, cursor: int) -> Batch | None:
        backend = self._service.backend
        page = backend.results(client, session_id, cursor, RESULTS_PER_READ)
        if page is None:
            return None
        messages = [
            Message("result", result["seq"], msgspec.json.encode({"type": "result"} | result))
            for result in page.results
        ]
        state = backend.progress(client, session_id) if page.is_last else None
        if state:
            progress = {"type": "progress"} | msgspec.to_builtins(state) | {"cursor": page.cursor}
            messages.append(Message("progress", None, msgspec.json.encode(progress)))
            if page.is_complete:
                done = msgspec.json.encode(progress | {"type": "done"})
                messages.append(Message("done", None, done))
        size = sum(len(message.data) for message in messages)
        return Batch(messages, page.cursor, page.is_last, page.is_complete, size)

    def _keep(self, key: "_Key", reading: "_Reading") -> None:
        """Keep a read for other streams, as long as there is room."""
        if self._reads.get(key) is not reading:
            return
        if reading.batch is None:
            del self._reads[key]
            return
        self._cached += reading.batch.size
        for oldest in list(self._reads):
            if self._cached <= MAX_CACHED and len(self._reads) <= MAX_READS:
                return
            if self._reads[oldest].task.done():
                self._drop(oldest)

    def _drop(self, key: "_Key") -> None:
        reading = self._reads.pop(key, None)
        if reading and reading.batch:
            self._cached -= reading.batch.size


_Key = tuple[str, str, float, int]


class _Reading(NamedTuple):
    """A read that streams share."""

    version: int
    """Of the ledger, when it began."""
    task: "asyncio.Task[Batch | None]"

    @property
    def batch(self) -> Batch | None:
        """What was read; None if it failed, or is under way."""
        if not self.task.done() or self.task.cancelled() or self.task.exception():
            return None
        return self.task.result()

    def is_valid(self, version: int) -> bool:
        """Whether it is what would be read now: what more results follow stays as it is."""
        return self.version == version or (self.batch is not None and not self.batch.is_last)


class Stream:
    """One client that follows one session."""

    def __init__(
        self, service: Service, feed: Feed, client: Client, state: SessionState, cursor: int
    ) -> None:
        self._service, self._feed, self._client = service, feed, client
        self._session_id, self._began, self._cursor = state.session_id, state.created_at, cursor
        self._progress = b""

    async def messages(self, follow: bool = True) -> AsyncIterator[Message | None]:
        """What is behind the cursor, and what comes, up to the end; None when there is nothing."""
        changes = self._service.changes
        while not changes.is_stopping:
            seen = changes.version
            batch = await self._feed.read(self._client, self._session_id, self._began, self._cursor)
            if batch is None:
                return  # it was removed meanwhile
            for message in batch.messages:
                if message.kind == "progress":
                    if message.data == self._progress:
                        continue
                    self._progress = message.data
                yield message
            self._cursor = batch.cursor
            if batch.is_complete or (batch.is_last and not follow):
                return
            if batch.is_last:
                await changes.wait(seen, PING_S)
                if changes.version == seen:
                    yield None
                await asyncio.sleep(PAUSE_S)


class Slotted(StreamingResponse):
    """An answer that counts as a stream until it has ended, however it ends."""

    def __init__(self, service: Service, client: Client, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._service, self._client = service, client
        service.streams.take(client.name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._service.streams.give(self._client.name)


async def _stream(
    connection: Request | WebSocket, client: Client, session_id: str, cursor: int
) -> Stream:
    """A stream of a session that exists; raises `ApiError`."""
    service, feed = service_of(connection), feed_of(connection)
    state = await to_thread.run_sync(service.backend.progress, client.name, session_id)
    if state is None:
        raise no_session(session_id)
    return Stream(service, feed, client, state, cursor)


def feed_of(connection: Request | WebSocket) -> Feed:
    """The feed of an application."""
    feed: Feed = connection.app.state.feed
    return feed


_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "`event: result` with `id: seq`, `event: progress`, at last `event: done`",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
_LINES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "One result per line, each with its `seq`",
        "content": {"application/x-ndjson": {"schema": {"type": "string"}}},
    }
}


@router.get(
    "/api/crawl/{session_id}/events",
    summary="Follow a session by Server-Sent Events",
    responses=_EVENTS,
    response_class=Response,
)
async def events(
    request: Request,
    session_id: SessionId,
    client: CurrentClient,
    cursor: Cursor = 0,
    last_event_id: Annotated[
        str, Header(max_length=17, pattern="^(-?[0-9]{1,16})?$", description="Goes before `cursor`")
    ] = "",
) -> Response:
    """Send results and progress as they are stored. `Last-Event-ID` resumes behind a result."""
    stream = await _stream(request, client, session_id, int(last_event_id or cursor))

    async def lines() -> AsyncIterator[bytes]:
        yield b"retry: 2000\n\n"
        async for message in stream.messages():
            if message is None:
                yield b": ping\n\n"
            else:
                id_ = b"" if message.seq is None else f"id: {message.seq}\n".encode()
                yield id_ + f"event: {message.kind}\ndata: ".encode() + message.data + b"\n\n"

    return Slotted(
        service_of(request), client, lines(),
        media_type="text/event-stream", headers={"Cache-Control": "no-store"},
    )  # fmt: skip


@router.get(
    "/api/crawl/{session_id}/results.ndjson",
    summary="The results of a session, one per line",
    responses=_LINES,
    response_class=Response,
)
async def ndjson(
    request: Request,
    session_id: SessionId,
    client: CurrentClient,
    cursor: Cursor = 0,
    follow: Annotated[bool, Query(description="Wait for what comes, up to the end")] = False,
) -> Response:
    """Send results, one JSON object per line, each with its `seq`."""
    stream = await _stream(request, client, session_id, cursor)

    async def lines() -> AsyncIterator[bytes]:
        async for message in stream.messages(follow):
            if message and message.kind == "result":
                yield message.data + b"\n"

    return Slotted(service_of(request), client, lines(), media_type="application/x-ndjson")


@websockets.websocket("/api/crawl/{session_id}/stream")
async def stream_socket(websocket: WebSocket, session_id: str) -> None:
    """Send results and progress as they are stored; what the client sends is ignored."""
    client, service = current_client(websocket), service_of(websocket)
    try:
        stream = await _stream(websocket, client, session_id, _cursor(websocket))
        service.streams.take(client.name)
    except ApiError as error:
        await refuse(websocket.scope, websocket.receive, websocket.send, error)
        return
    try:
        await websocket.accept()
        await _send_all(websocket, stream)
    except (WebSocketDisconnect, OSError):
        log.debug("a WebSocket of session %s has gone", session_id)
    finally:
        service.streams.give(client.name)


def _cursor(websocket: WebSocket) -> int:
    text = websocket.query_params.get("cursor", "0")
    if not _CURSOR.fullmatch(text):
        raise ApiError(422, "invalid", "query.cursor: must be a whole number")
    return int(text)


async def _send_all(websocket: WebSocket, stream: Stream) -> None:
    """Send a stream until it ends, or until the client has gone."""
    sending = asyncio.create_task(_send(websocket, stream))
    listening = asyncio.create_task(_listen(websocket))
    try:
        await asyncio.wait({sending, listening}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sending, listening):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listening
    with contextlib.suppress(asyncio.CancelledError):
        await sending


async def _send(websocket: WebSocket, stream: Stream) -> None:
    code = SERVICE_RESTART
    async for message in stream.messages():
        if message is None:
            continue  # the server's protocol sends its own pings
        await websocket.send_text(message.data.decode())
        if message.kind == "done":
            code = 1000
    await websocket.close(code)


async def _listen(websocket: WebSocket) -> None:
    """Read and drop what a client sends, until it goes."""
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass
