"""Connections to servers: opened within the egress rule, directly or through a proxy, and kept for
a moment."""

import asyncio
import base64
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
from crawler.fetch.egress import Egress, Reach, lack_now
from crawler.fetch.proxy import Proxy

KEEP_S = 5.0
"""How long a connection waits for the next request."""
MAX_IDLE = 256
FIRST_CONNECTIONS = 2
"""So many connections to an unknown server are opened at a time: `python -m http.server` has room
for six that it has not accepted yet, and several processes of ours may come at once."""
SETTLE_S = 0.25
"""A connection that stands for so long without an answer counts as accepted: its page is slow, not
its server busy."""
LOST_S = 0.9
"""A handshake that takes so long was dropped and sent again: Linux does that after a second, then
two, then four."""
CAREFUL_S = 60.0
"""How long a server that dropped a handshake is spared as many connections again."""
MAX_LINES = 1000
HIGH_WATER = 256 * 1024
"""So many bytes wait at most to be read; what is no longer is waited for as a whole."""
HEADER_BYTES = 400
"""What a header takes in memory beside its letters: 256 KB of empty ones take 30 MB."""
_CIPHERS = "@SECLEVEL=2:ECDH+AESGCM:ECDH+CHACHA20:ECDH+AES:!aNULL:!eNULL:!aDSS:!SHA1:!AESCCM"
"""Python's own without DHE, like browsers: there the server chooses numbers that cost the client
half a second."""
_PIECE = 64 * 1024
"""What is sent of a request's body at a time, once the other side has taken what went before."""


class Route(msgspec.Struct, frozen=True):
    """What a connection is opened for; one that was opened for another route is never used, however
    alike."""

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
    """One connection: bytes in the order they came, never more of them than a few hundred kilobytes
    at a time."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._wanted = 1
        self._ended = False
        self._error: Exception | None = None
        self._asked = True
        self._paused = False
        self._transport: asyncio.Transport | None = None
        self._budget: Budget | None = None
        """Of the page that it serves; what waits in the buffer is counted there."""
        self._room: asyncio.Future[None] | None = None
        self._pouring: asyncio.Task[None] | None = None
        self.sent_all = True
        """Whether the whole request is on its way; no server can have it before that."""
        self.used = False
        """Whether it has served a request before."""
        self.place: Callable[[bool], None] | None = None
        """To be called once, when the server has answered on it or it ends: then another may be
        opened."""

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection, or TLS upon it, stands."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by name

    def data_received(self, data: bytes) -> None:
        """Bytes came; those that nobody asked for would be taken for the next answer."""
        if self.place:
            self.leave_place(answered=True)
        if not self._asked:
            self.close()
            return
        try:
            self._keep(data)
        except (MemoryError, OwnShortage) as error:
            self._break_off(error)
            return
        if len(self._buffer) > HIGH_WATER and not self._paused and self._transport:
            self._paused = True
            self._transport.pause_reading()
        if len(self._buffer) >= self._wanted:
            self._wake()

    def eof_received(self) -> bool:
        """The other side will send no more."""
        self._ended = True
        self._wake()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._ended = True
        self._error = self._error or exc
        if exc and not self.sent_all:
            try:
                self._keep(self._last_words())
            except (MemoryError, OwnShortage) as error:
                self._error = error
        self._wake()
        self.resume_writing()

    def pause_writing(self) -> None:
        """The other side does not take what was sent."""
        self._room = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """There is room again, or will never be."""
        if self._room and not self._room.done():
            self._room.set_result(None)
        self._room = None

    def _last_words(self) -> bytes:
        """What came before sending failed: a server that refuses a body may answer and hang up
        while it still comes, and asyncio gives a connection up at the first failure without reading
        on. Within TLS there is no such way."""
        assert self._transport
        if self._transport.get_extra_info("ssl_object"):
            return b""
        with suppress(OSError):
            return os.read(self._transport.get_extra_info("socket").fileno(), HIGH_WATER)
        return b""

    def _keep(self, data: bytes) -> None:
        if self._budget:
            self._budget.hold(len(data))
        self._buffer += data

    def _break_off(self, error: Exception) -> None:
        self._error = error.with_traceback(None)
        self.close()
        self._wake()

    def _give_way(self) -> None:
        self._break_off(GaveWay("its server was waited for, and others needed the memory"))

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    # What the client calls

    def send(self, data: bytes, body: bytes = b"", budget: Budget | None = None) -> None:
        """Send a request; from now on bytes are expected. A large body goes out while they are
        waited for."""
        assert self._transport
        self._asked = True
        if budget:
            budget.hold(len(self._buffer))
            self._budget, budget.leave = budget, self._give_way
        self._transport.write(data + body[:_PIECE])
        if len(body) > _PIECE:
            self.sent_all = False
            self._pouring = asyncio.get_running_loop().create_task(self._pour(memoryview(body)))

    async def _pour(self, body: memoryview) -> None:
        """Send what is left of a body no faster than it is taken; where the connection ends, the
        reader says so."""
        assert self._transport
        for start in range(_PIECE, len(body), _PIECE):
            await asyncio.sleep(0)  # an answer may have come meanwhile
            while self._room:
                await self._room
            if self._ended:
                return
            self._transport.write(body[start : start + _PIECE])
        self.sent_all = True

    async def all_sent(self) -> bool:
        """Wait until the whole request is on its way, or cannot be any more; whether it is."""
        if self._pouring and not self.sent_all:
            await self._pouring
        return self.sent_all

    @property
    def waiting(self) -> int:
        """How many bytes have come and were not taken yet."""
        return len(self._buffer)

    async def have(self, count: int) -> None:
        """Wait until so many bytes have come, at most `HIGH_WATER`; raises `Closed` where there
        will not be so many."""
        while len(self._buffer) < count:
            if self._ended:
                # A new error each time: one that is kept here would keep all that its raising has
                # passed through.
                if lack := shortage_of(self._error):
                    raise GaveWay(lack) if isinstance(self._error, GaveWay) else OwnShortage(lack)
                raise Closed(self._error)
            if self._paused:
                self._resume()
            self._waiter, self._wanted = asyncio.get_running_loop().create_future(), count
            try:
                await self._waiter
            finally:
                self._waiter, self._wanted = None, 1

    def take(self, count: int) -> bytes:
        """The next bytes, as many as have come of these."""
        data = bytes(self._buffer[:count]) if count < len(self._buffer) else bytes(self._buffer)
        del self._buffer[:count]
        if self._budget:
            self._budget.release(len(data))
        if self._paused:
            self._resume()
        return data

    async def more(self) -> bytes:
        """What has come since, at least a byte; raises `Closed` at the end."""
        await self.have(1)
        return self.take(len(self._buffer))

    def _resume(self) -> None:
        if self._transport and not self._ended:
            self._paused = False
            self._transport.resume_reading()

    async def head(self, budget: Budget, spent: int = 0) -> wire.Head:
        """The next head; `spent` bytes of other heads count against the limit."""
        start, searched, end, known = -1, 0, -1, 0
        while end < 0:
            if known + spent > wire.MAX_HEAD:
                raise too_much_head()
            try:
                await self.have(known + 1)
            except Closed as closed:
                if not known:
                    raise
                if start < 0:
                    raise wire.not_http(self._buffer) from None
                raise FetchError(
                    "truncated", "the connection ended within the answer's head"
                ) from closed.error
            known = len(self._buffer)
            start = wire.start_of_head(self._buffer)
            if start >= 0:
                end = wire.end_of_head(self._buffer, max(start, searched))
                searched = known - 2
            elif known >= wire.SLOP:
                raise wire.not_http(self._buffer)
        if end + spent > wire.MAX_HEAD:
            raise too_much_head()
        head = await budget.at_once(wire.parse_head, self.take(end)[start:])
        budget.hold(head.size + HEADER_BYTES * len(head.headers))
        return head

    async def upgrade(self, context: ssl.SSLContext, host: str) -> None:
        """Put TLS upon a connection through a proxy."""
        assert self._transport
        if self._buffer:
            raise FetchError("bad_response", "the proxy sent bytes before TLS began")
        if self._ended or self._transport.is_closing():
            raise ConnectionResetError("the connection ended before TLS began")
        loop = asyncio.get_running_loop()
        transport = await loop.start_tls(self._transport, self, context, server_hostname=host)
        if transport is None:
            raise ConnectionResetError("the connection ended before TLS began")
        self._transport = transport

    def rest(self) -> bool:
        """Stop expecting bytes; whether the connection can serve another request."""
        self._asked, self.used = False, True
        self._leave_page()
        return self.sent_all and not (
            self._buffer or self._ended or self._transport is None or self._transport.is_closing()
        )

    def _leave_page(self) -> None:
        if self._budget:
            self._budget.release(len(self._buffer))
            self._budget.leave = None
            self._budget = None

    def is_quiet(self) -> bool:
        """Whether an idle connection still stands and nothing has come meanwhile, not even unread
        by the loop."""
        if self._transport is None or self._transport.is_closing() or self._ended or self._buffer:
            return False
        plain = self._transport.get_extra_info("socket")
        poll = select.poll()
        poll.register(plain.fileno(), select.POLLIN)
        return not poll.poll(0)

    def leave_place(self, *, answered: bool) -> None:
        """Let another connection be opened."""
        if self.place:
            place, self.place = self.place, None
            place(answered)

    def close(self) -> None:
        """End it at once."""
        self._ended = True
        self.leave_place(answered=False)
        self._leave_page()
        if self._pouring:
            self._pouring.cancel()
        if self._transport:
            self._transport.abort()


def too_much_head() -> FetchError:
    """The error for headers without measure."""
    return FetchError(
        "headers_too_large", f"the answer's headers are larger than {wire.MAX_HEAD:,} bytes"
    )


class _Line:
    """Who waits for a connection of a route that has no limit of its own.

    Few are opened at a time, and more as they succeed: what a small server has no room for, its
    kernel drops, and the handshake comes again seconds later.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, settle_s: float) -> None:
        self._loop, self._settle_s = loop, settle_s
        self._limit, self._most = float(FIRST_CONNECTIONS), math.inf
        self._unanswered = 0
        self._shrunk_at = self._answered_at = -math.inf
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits and nothing is on its way."""
        return not (self._waiting or self._unanswered)

    def may_open(self) -> bool:
        """Have a place for a new connection, if there is one and nobody waits for it."""
        if self._waiting or self._unanswered + 1 > self._limit:
            return False
        self._unanswered += 1
        return True

    async def wait(self, give: "Callable[[Connection], None]") -> "Connection | None":
        """A connection that has become free, or None with a place for a new one, whichever comes
        first."""
        waiter: asyncio.Future[Connection | None] = self._loop.create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if not waiter.done() or waiter.cancelled():
                self._waiting = deque(other for other in self._waiting if other is not waiter)
            elif not waiter.exception():  # what it got at the same moment is for the next
                connection = waiter.result()
                give(connection) if connection else self.leave(False)
            raise

    def hand_over(self, connection: "Connection") -> bool:
        """Give a connection that has become free to who waits longest, if anybody does."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return True
        return False

    def opened(self, connection: "Connection", began: float) -> None:
        """A handshake is done; the connection keeps its place until the server answers, or a moment
        at most."""
        if self._loop.time() - began > LOST_S:
            self._shrink(began)
        self._loop.call_later(self._settle_s, lambda: connection.leave_place(answered=True))

    def leave(self, answered: bool) -> None:
        """A connection was answered, or has ended: another may be opened, and after as many answers
        one more."""
        self._unanswered -= 1
        now = self._loop.time()
        if answered:
            self._answered_at = now
            if self._limit < self._most or now > self._shrunk_at + CAREFUL_S:
                self._limit += 1 / int(self._limit)
        while self._waiting and self._unanswered + 1 <= self._limit:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._unanswered += 1
                waiter.set_result(None)

    def failed(self, error: Exception, began: float) -> None:
        """A connection could not be opened; where the server has not answered since, nobody waits
        for it any more."""
        self._shrink(began)
        if self._answered_at < began:
            while self._waiting:
                waiter = self._waiting.popleft()
                if not waiter.done():
                    waiter.set_exception(copy.copy(error))

    def _shrink(self, began: float) -> None:
        if began > self._shrunk_at:  # those that were lost together count as one
            self._limit = self._most = max(1.0, self._limit // 2)
            self._shrunk_at = self._loop.time()


class Pool:
    """Connections by their route."""

    def __init__(self, egress: Egress, settle_s: float = SETTLE_S) -> None:
        self._egress = egress
        self._settle_s = settle_s
        self._lines: dict[Route, _Line] = {}
        self._idle: OrderedDict[Connection, tuple[Route, asyncio.TimerHandle]] = OrderedDict()
        self._by_route: dict[Route, list[Connection]] = {}
        self._context: ssl.SSLContext | None = None

    def take(self, route: Route) -> Connection | None:
        """An idle connection of a route, the one used last."""
        while kept := self._by_route.get(route):
            connection = kept[-1]
            self._forget(connection)
            if connection.is_quiet():
                return connection
            connection.close()
        return None

    def give(self, route: Route, connection: Connection) -> None:
        """Keep a connection for a moment."""
        if not connection.rest():
            connection.close()
            return
        line = self._lines.get(route)
        if line and line.hand_over(connection):
            return
        timer = asyncio.get_running_loop().call_later(KEEP_S, self._expire, connection)
        self._idle[connection] = (route, timer)
        self._by_route.setdefault(route, []).append(connection)
        if len(self._idle) > MAX_IDLE:
            self._expire(next(iter(self._idle)))

    def _expire(self, connection: Connection) -> None:
        self._forget(connection)
        connection.close()

    def _forget(self, connection: Connection) -> None:
        route, timer = self._idle.pop(connection)
        timer.cancel()
        kept = self._by_route[route]
        kept.remove(connection)
        if not kept:
            del self._by_route[route]

    def line(self, route: Route) -> _Line:
        """Who waits for connections of a route, and how many may be opened at a time."""
        line = self._lines.get(route)
        if line is None:
            if len(self._lines) >= MAX_LINES:
                for other in [other for other, old in self._lines.items() if old.is_idle]:
                    del self._lines[other]
            line = self._lines[route] = _Line(asyncio.get_running_loop(), self._settle_s)
        return line

    async def open(self, route: Route) -> Connection:
        """A new connection, with TLS where the route says so."""
        connection = Connection()
        try:
            await self._open(route, connection)
        except BaseException:
            connection.close()
            raise
        return connection

    async def open_in_line(self, route: Route, line: _Line, limit: TimeLimit) -> Connection:
        """A new connection for who has a place in the line; all who wait there hear of a server
        that is not there."""
        loop = asyncio.get_running_loop()
        connection, began = Connection(), loop.time()
        connection.place = line.leave
        try:
            async with limit:
                await self._egress.addresses(
                    route.host, route.reach
                )  # so that only the handshake's time is looked at
                began = loop.time()
                await self._open(route, connection)
        except BaseException as error:
            if isinstance(error, OSError | FetchError):
                line.failed(error, began)
            connection.close()
            raise
        line.opened(connection, began)
        return connection

    async def _open(self, route: Route, connection: Connection) -> None:
        proxy = route.proxy
        if proxy is None:
            await self._dial(
                connection, route.host, route.port, route.reach, route.scheme == "https"
            )
            return
        try:
            await self._dial(connection, proxy.host, proxy.port, Reach.OPERATOR, tls=False)
        except OSError as error:
            if lack := shortage_of(error):
                raise OwnShortage(lack) from None
            raise FetchError(
                "connection", f"the proxy {proxy} cannot be reached ({error})"
            ) from None
        if route.scheme == "https":
            await self._tunnel(connection, route, proxy)

    async def _dial(
        self, connection: Connection, host: str, port: int, reach: Reach, tls: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        context = await self._tls() if tls else None
        dialled = await self._egress.dial(host, port, reach)
        factory: Callable[[], Connection] = lambda: connection  # noqa: E731 - what asyncio wants is a factory
        try:
            await loop.create_connection(
                factory,
                sock=dialled,
                ssl=context,
                server_hostname=server_name(host) if context else None,
            )
        except BaseException:
            with suppress(OSError):
                dialled.close()
            raise

    async def _tunnel(self, connection: Connection, route: Route, proxy: Proxy) -> None:
        target = f"{route.host}:{route.port}"
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}", *proxy_headers(proxy), "", ""]
        connection.send("\r\n".join(lines).encode("latin-1"))
        try:
            head = await connection.head(Budget())
        except Closed as closed:
            raise FetchError(
                "connection", f"the proxy {proxy} ended the connection"
            ) from closed.error
        if not 200 <= head.status < 300:
            passing = head.status >= 500 or head.status in (408, 429)
            raise FetchError(
                "connection" if passing else "proxy",
                f"the proxy {proxy} answered {head.status} {head.reason[:100]!r}",
            )
        if connection.waiting:
            raise FetchError("bad_response", f"the proxy {proxy} sent bytes before TLS began")
        await connection.upgrade(await self._tls(), server_name(route.host))

    async def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = await asyncio.to_thread(
                _verified
            )  # reads the certificates of the system
        return self._context

    def close(self) -> None:
        """End all idle connections."""
        for connection in list(self._idle):
            self._expire(connection)


def _verified() -> ssl.SSLContext:
    """TLS as it must be: certificates checked against the system's, or those of SSL_CERT_FILE and
    SSL_CERT_DIR."""
    context = ssl.create_default_context()
    if lack := lack_now():  # then certificates may be missing without a word, and would be for good
        raise OwnShortage(lack)
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols(["http/1.1"])
    return context


def server_name(host: str) -> str:
    """The name that a certificate must bear."""
    return host.strip("[]").rstrip(".")


def proxy_headers(proxy: Proxy) -> list[str]:
    """What a proxy wants to hear beside the request."""
    if not proxy.user_password:
        return []
    return [f"Proxy-Authorization: Basic {base64.b64encode(proxy.user_password.encode()).decode()}"]
