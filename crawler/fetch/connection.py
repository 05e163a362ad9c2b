"""Connections to servers: opened within the egress rule, maybe through a proxy, and pooled."""

import asyncio
import copy
import math
import os
import select
import ssl
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from typing import cast

import msgspec

from crawler.errors import FetchError, GaveWay, OwnShortage, shortage_of
from crawler.fetch import wire
from crawler.fetch.budget import Budget, TimeLimit
from crawler.fetch.egress import Egress, Proxy, Reach, shortage_now

KEEP_S = 5.0  # how long an idle connection is kept
MAX_IDLE = 256
FIRST_CONNECTIONS = 2
"""Connections opened at a time to an unknown server: `python -m http.server` has a backlog of six,
and several of our processes may come at once."""
SETTLE_S = 0.25  # a connection without an answer for this long counts as accepted
LOST_S = 0.9  # a handshake that takes longer was dropped: Linux sends it again after a second
CAREFUL_S = 60.0  # how long a server that dropped a handshake is not tried with as many again
MAX_QUEUES = 1000
HIGH_WATER = 256 * 1024  # bytes buffered per connection before reading pauses
HEADER_BYTES = 400  # memory of a header besides its letters: 256 KB of empty ones take 30 MB
SEND_BYTES = 64 * 1024  # bytes of a request's body written at a time
_CIPHERS = "@SECLEVEL=2:ECDH+AESGCM:ECDH+CHACHA20:ECDH+AES:!aNULL:!eNULL:!aDSS:!SHA1:!AESCCM"
"""Python's default without DHE, as in browsers: its parameters, chosen by the server, can cost the
client half a second."""


class Route(msgspec.Struct, frozen=True):
    """What a connection is for; it is never reused for another route."""

    scheme: str
    host: str
    port: int
    reach: Reach
    proxy: Proxy | None = None


class Closed(Exception):
    """The other side ended the connection, cleanly or not."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__(error)
        self.error = error


class Connection(asyncio.Protocol):
    """One connection, with a bounded buffer of received bytes."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._wanted = 1  # buffered bytes that wake the reader
        self._ended = self._paused = False
        self._error: Exception | None = None
        self._expects_answer = True
        self._budget: Budget | None = None  # of the current page; the buffer counts there
        self._writable: asyncio.Future[None] | None = None  # set while the other side is slow
        self._sender: asyncio.Task[None] | None = None
        self.sent_all = True  # whether the whole request was written
        self.used = False  # whether it has served a request before
        self.leave_queue: Callable[[bool], None] | None = None

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        if self.leave_queue:
            self.settle(answered=True)
        if not self._expects_answer:
            self.close()  # else it would be taken for the next answer
            return
        try:
            self._append(data)
        except (MemoryError, OwnShortage) as error:
            self._abort(error)
            return
        if len(self._buffer) > HIGH_WATER and not self._paused and self._transport:
            self._paused = True
            self._transport.pause_reading()
        if len(self._buffer) >= self._wanted:
            self._wake()

    def eof_received(self) -> bool:
        self._ended = True
        self._wake()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._error = self._error or exc
        if exc and not self.sent_all:
            try:
                self._append(self._unread())
            except (MemoryError, OwnShortage) as error:
                self._error = error
        self._wake()
        self.resume_writing()

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._writable and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def _unread(self) -> bytes:
        """Read what the server sent before writing to it failed.

        A server that refuses a body may answer and hang up, and asyncio drops a connection at the
        first failed write without reading on. With TLS there is no such way.
        """
        assert self._transport
        if not self._transport.get_extra_info("ssl_object"):
            with suppress(OSError):
                return os.read(self._transport.get_extra_info("socket").fileno(), HIGH_WATER)
        return b""

    def _append(self, data: bytes) -> None:
        if self._budget:
            self._budget.hold(len(data))
        self._buffer += data

    def _abort(self, error: Exception) -> None:
        self._error = error.with_traceback(None)
        self.close()
        self._wake()

    def _give_way(self) -> None:
        self._abort(GaveWay("its server was waited for, and others needed the memory"))

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    # Called by the client

    def send(self, head: bytes, body: bytes = b"", budget: Budget | None = None) -> None:
        """Send a request; a large body is sent while the answer is waited for."""
        assert self._transport
        self._expects_answer = True
        if budget:
            budget.hold(len(self._buffer))
            self._budget, budget.leave = budget, self._give_way
        self._transport.write(head + body[:SEND_BYTES])
        if len(body) > SEND_BYTES:
            self.sent_all = False
            sending = self._send_rest(memoryview(body))
            self._sender = asyncio.get_running_loop().create_task(sending)

    async def _send_rest(self, body: memoryview) -> None:
        """Send the rest of a body as fast as it is taken; the reader reports a lost connection."""
        assert self._transport
        for start in range(SEND_BYTES, len(body), SEND_BYTES):
            await asyncio.sleep(0)  # an answer may have come meanwhile
            while self._writable:
                await self._writable
            if self._ended:
                return
            self._transport.write(body[start : start + SEND_BYTES])
        self.sent_all = True

    async def all_sent(self) -> bool:
        """Wait until the whole request is written, or cannot be; return whether it is."""
        if self._sender and not self.sent_all:
            await self._sender
        return self.sent_all

    @property
    def buffered(self) -> int:
        """Number of bytes received and not taken."""
        return len(self._buffer)

    async def wait_for(self, size: int) -> None:
        """Wait until `size` bytes (at most `HIGH_WATER`) are buffered; raises `Closed`."""
        while len(self._buffer) < size:
            if self._ended:
                raise self._failure()
            if self._paused:
                self._resume()
            self._waiter, self._wanted = asyncio.get_running_loop().create_future(), size
            try:
                await self._waiter
            finally:
                self._waiter, self._wanted = None, 1

    def _failure(self) -> Exception:
        # A new error each time: a kept one would keep alive all frames that it has passed.
        lack = shortage_of(self._error)
        if not lack:
            return Closed(self._error)
        kind = GaveWay if isinstance(self._error, GaveWay) else OwnShortage
        return kind(lack)

    def take(self, size: int) -> bytes:
        """Return and remove up to `size` buffered bytes."""
        taken = self._buffer if size >= len(self._buffer) else self._buffer[:size]
        data = bytes(taken)
        del self._buffer[:size]
        if self._budget:
            self._budget.release(len(data))
        if self._paused:
            self._resume()
        return data

    async def more(self) -> bytes:
        """Return the next bytes, at least one; raises `Closed` at the end."""
        await self.wait_for(1)
        return self.take(len(self._buffer))

    def _resume(self) -> None:
        if self._transport and not self._ended:
            self._paused = False
            self._transport.resume_reading()

    async def head(self, budget: Budget, spent: int = 0) -> wire.Head:
        """Read the next head; `spent` bytes of earlier heads count against the limit."""
        start, end, known = -1, -1, 0
        while end < 0:
            if known + spent > wire.MAX_HEAD:
                raise wire.too_large_head()
            try:
                await self.wait_for(known + 1)
            except Closed as closed:
                if not known:
                    raise
                if start < 0:
                    raise wire.not_http(self._buffer) from None
                message = "the connection ended within the answer's head"
                raise FetchError("truncated", message) from closed.error
            searched = known - 2  # the end of a head has up to three bytes
            known = len(self._buffer)
            start = wire.start_of_head(self._buffer)
            if start >= 0:
                end = wire.end_of_head(self._buffer, max(start, searched))
            elif known >= wire.MAX_BEFORE_STATUS:
                raise wire.not_http(self._buffer)
        if end + spent > wire.MAX_HEAD:
            raise wire.too_large_head()
        head = await budget.at_once(wire.parse_head, self.take(end)[start:])
        budget.hold(head.size + HEADER_BYTES * len(head.headers))
        return head

    async def upgrade(self, context: ssl.SSLContext, host: str) -> None:
        """Start TLS on a connection through a proxy."""
        transport = None
        if self._transport and not self._is_closed():
            loop = asyncio.get_running_loop()
            transport = await loop.start_tls(self._transport, self, context, server_hostname=host)
        if transport is None:
            raise ConnectionResetError("the connection ended before TLS began")
        self._transport = transport

    def _is_closed(self) -> bool:
        return self._ended or self._transport is None or self._transport.is_closing()

    def rest(self) -> bool:
        """End the current request; return whether the connection can serve another one."""
        self._expects_answer, self.used = False, True
        self._leave_page()
        return self.sent_all and not self._buffer and not self._is_closed()

    def _leave_page(self) -> None:
        if self._budget:
            self._budget.release(len(self._buffer))
            self._budget.leave = None
            self._budget = None

    def is_quiet(self) -> bool:
        """Whether an idle connection is open and has received nothing, even in the kernel."""
        if self._buffer or self._is_closed():
            return False
        assert self._transport
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not poll.poll(0)

    def settle(self, *, answered: bool) -> None:
        """Let the queue open another connection: this one was answered, or has ended."""
        if self.leave_queue:
            leave_queue, self.leave_queue = self.leave_queue, None
            leave_queue(answered)

    def close(self) -> None:
        self._ended = True
        self.settle(answered=False)
        self._leave_page()
        if self._sender:
            self._sender.cancel()
        if self._transport:
            self._transport.abort()


class ConnectionQueue:
    """Limits how many connections of a route are opened at a time, where no rate limit does.

    The limit starts small and grows with every success. A small server's kernel drops handshakes
    beyond its backlog, and they come again only seconds later.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, settle_s: float) -> None:
        self._loop, self._settle_s = loop, settle_s
        self._limit, self._ceiling = float(FIRST_CONNECTIONS), math.inf
        self._unanswered = 0
        self._shrunk_at = self._answered_at = -math.inf
        self._waiters: deque[asyncio.Future[Connection | None]] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits and no connection is being opened."""
        return not (self._waiters or self._unanswered)

    def may_open(self) -> bool:
        """Reserve a new connection, if the limit allows it and nobody waits."""
        if self._waiters or self._unanswered + 1 > self._limit:
            return False
        self._unanswered += 1
        return True

    async def wait(self, give_back: Callable[[Connection], None]) -> Connection | None:
        """Wait for a free connection; None means that a new one may be opened."""
        waiter: asyncio.Future[Connection | None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if not waiter.done() or waiter.cancelled():
                self._waiters = deque(other for other in self._waiters if other is not waiter)
            elif not waiter.exception():  # it was served at the same moment
                if connection := waiter.result():
                    give_back(connection)
                else:
                    self.leave(answered=False)
            raise

    def _next_waiter(self) -> asyncio.Future[Connection | None] | None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                return waiter
        return None

    def hand_over(self, connection: Connection) -> bool:
        """Give a free connection to the first waiter, if there is one."""
        if waiter := self._next_waiter():
            waiter.set_result(connection)
            return True
        return False

    def opened(self, connection: Connection, began: float) -> None:
        """A connection stands; it counts until it is answered or `settle_s` have passed."""
        if self._loop.time() - began > LOST_S:
            self._shrink(began)
        self._loop.call_later(self._settle_s, lambda: connection.settle(answered=True))

    def leave(self, answered: bool) -> None:
        """A connection was answered, or has ended: others may be opened."""
        self._unanswered -= 1
        now = self._loop.time()
        if answered:
            self._answered_at = now
            if self._limit < self._ceiling or now > self._shrunk_at + CAREFUL_S:
                self._limit += 1 / int(self._limit)
        while self._unanswered + 1 <= self._limit and (waiter := self._next_waiter()):
            self._unanswered += 1
            waiter.set_result(None)

    def failed(self, error: Exception, began: float) -> None:
        """A connection could not be opened; without an answer since, all waiters fail with it."""
        self._shrink(began)
        while self._answered_at < began and (waiter := self._next_waiter()):
            waiter.set_exception(copy.copy(error))

    def _shrink(self, began: float) -> None:
        if began > self._shrunk_at:  # handshakes lost together count once
            self._limit = self._ceiling = max(1.0, self._limit // 2)
            self._shrunk_at = self._loop.time()


class Pool:
    """Idle connections by route, and the opening of new ones."""

    def __init__(self, egress: Egress, settle_s: float = SETTLE_S) -> None:
        self._egress = egress
        self._settle_s = settle_s
        self._queues: dict[Route, ConnectionQueue] = {}
        self._idle: OrderedDict[Connection, tuple[Route, asyncio.TimerHandle]] = OrderedDict()
        self._by_route: dict[Route, list[Connection]] = {}
        self._context: ssl.SSLContext | None = None

    def take(self, route: Route) -> Connection | None:
        """Return the idle connection of a route that was used last."""
        while kept := self._by_route.get(route):
            connection = kept[-1]
            self._remove(connection)
            if connection.is_quiet():
                return connection
            connection.close()
        return None

    def give(self, route: Route, connection: Connection) -> None:
        """Keep a connection for the next request of its route."""
        if not connection.rest():
            connection.close()
            return
        queue = self._queues.get(route)
        if queue and queue.hand_over(connection):
            return
        timer = asyncio.get_running_loop().call_later(KEEP_S, self._expire, connection)
        self._idle[connection] = (route, timer)
        self._by_route.setdefault(route, []).append(connection)
        if len(self._idle) > MAX_IDLE:
            self._expire(next(iter(self._idle)))

    def _expire(self, connection: Connection) -> None:
        self._remove(connection)
        connection.close()

    def _remove(self, connection: Connection) -> None:
        route, timer = self._idle.pop(connection)
        timer.cancel()
        kept = self._by_route[route]
        kept.remove(connection)
        if not kept:
            del self._by_route[route]

    def queue(self, route: Route) -> ConnectionQueue:
        if route not in self._queues:
            if len(self._queues) >= MAX_QUEUES:
                busy = {other: queue for other, queue in self._queues.items() if not queue.is_idle}
                self._queues = busy
            self._queues[route] = ConnectionQueue(asyncio.get_running_loop(), self._settle_s)
        return self._queues[route]

    async def open(self, route: Route) -> Connection:
        """Open a connection, with TLS if the route says so."""
        connection = Connection()
        try:
            await self._open(route, connection)
        except BaseException:
            connection.close()
            raise
        return connection

    async def open_queued(
        self, route: Route, queue: ConnectionQueue, limit: TimeLimit
    ) -> Connection:
        """Open a connection that the queue has reserved; its waiters hear of a failure."""
        loop = asyncio.get_running_loop()
        connection, began = Connection(), loop.time()
        connection.leave_queue = queue.leave
        try:
            async with limit:
                await self._egress.addresses(route.host, route.reach)
                began = loop.time()  # only the handshake is timed, not the lookup
                await self._open(route, connection)
        except BaseException as error:
            if isinstance(error, OSError | FetchError):
                queue.failed(error, began)
            connection.close()
            raise
        queue.opened(connection, began)
        return connection

    async def _open(self, route: Route, connection: Connection) -> None:
        proxy, tls = route.proxy, route.scheme == "https"
        if proxy is None:
            await self._dial(connection, route.host, route.port, route.reach, tls)
            return
        try:
            await self._dial(connection, proxy.host, proxy.port, Reach.OPERATOR, tls=False)
        except OSError as error:
            if lack := shortage_of(error):
                raise OwnShortage(lack) from None
            message = f"the proxy {proxy} cannot be reached ({error})"
            raise FetchError("connection", message) from None
        if tls:
            await self._tunnel(connection, route, proxy)

    async def _dial(
        self, connection: Connection, host: str, port: int, reach: Reach, tls: bool
    ) -> None:
        context, name = None, None
        if tls:
            context, name = await self._tls(), server_name(host)
        dialled = await self._egress.dial(host, port, reach)
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: connection, sock=dialled, ssl=context, server_hostname=name
            )
        except BaseException:
            with suppress(OSError):
                dialled.close()
            raise

    async def _tunnel(self, connection: Connection, route: Route, proxy: Proxy) -> None:
        target = f"{route.host}:{route.port}"
        lines = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{proxy.authorization}\r\n"
        connection.send(lines.encode("latin-1"))
        try:
            head = await connection.head(Budget())
        except Closed as closed:
            message = f"the proxy {proxy} ended the connection"
            raise FetchError("connection", message) from closed.error
        if not 200 <= head.status < 300:
            reason = "proxy"
            if head.status >= 500 or head.status in (408, 429):
                reason = "connection"  # it is temporary
            message = f"the proxy {proxy} answered {head.status} {head.reason[:100]!r}"
            raise FetchError(reason, message)
        context = await self._tls()
        if connection.buffered:
            raise wire.bad_response(f"the proxy {proxy} sent bytes before TLS began")
        await connection.upgrade(context, server_name(route.host))

    async def _tls(self) -> ssl.SSLContext:
        if self._context is None:  # it reads the system's certificates, which takes a while
            self._context = await asyncio.to_thread(_tls_context)
        return self._context

    def close(self) -> None:
        for connection in list(self._idle):
            self._expire(connection)


def _tls_context() -> ssl.SSLContext:
    """TLS with certificates checked against the system's, SSL_CERT_FILE or SSL_CERT_DIR."""
    context = ssl.create_default_context()
    if lack := shortage_now():  # then certificates may be missing without an error, for good
        raise OwnShortage(lack)
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols(["http/1.1"])
    return context


def server_name(host: str) -> str:
    """Return the name that a certificate must bear."""
    return host.strip("[]").rstrip(".")
