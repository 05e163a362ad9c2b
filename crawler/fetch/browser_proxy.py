"""The proxy that every byte of the browser goes through: it resolves a name once, checks the
address, and dials exactly that address.

It listens on loopback, inside the process that uses the browser. Each page signs in by a name that
only its own browser context knows, so the proxy can tell pages apart, and no other program of this
machine can use it.
"""

import asyncio
import base64
import secrets
from collections.abc import Callable
from contextlib import suppress

from crawler import urls
from crawler.errors import CrawlerError, FetchError, OwnShortage, UrlError, shortage_of
from crawler.fetch import wire
from crawler.fetch.egress import Egress, Proxies, Proxy, Reach

MAX_REFUSED = 100
MAX_SHOWN = 200
MAX_CONNECTIONS = 100
"""Connections of one page at a time; browsers open fewer."""
PIECE = 64 * 1024
_PORTS = {"http": 80, "https": 443}
_SIGN_IN = (
    b"HTTP/1.1 407 Proxy Authentication Required\r\n"
    b'Proxy-Authenticate: Basic realm="crawler"\r\nContent-Length: 0\r\n\r\n'
)
_REFUSAL = b"HTTP/1.1 502 Refused\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_OWN_PAGES = (b"same-origin", b"none")
_HOP_HEADERS = (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization")

Place = tuple[str, int]


class Visitor:
    """One page as the proxy sees it: where it may go, and what it has sent and received."""

    def __init__(
        self,
        *,
        proxy: Proxy | None,
        loopback: Place | None,
        connect_timeout_s: float,
        max_bytes: int,
        max_connections: int,
        give_up: Callable[[Exception], None],
    ) -> None:
        """`loopback` is the one place of this machine that the page may reach."""
        self.name = secrets.token_hex(16)
        self.proxy, self.loopback = proxy, loopback
        self.connect_timeout_s = connect_timeout_s
        self.problems: dict[Place, CrawlerError] = {}
        """Why a place could not be reached when it was tried last."""
        self.refused: dict[str, None] = {}
        self.received = 0
        self._max_bytes, self._left = max_bytes, max_bytes
        self._max_connections, self._connected = max_connections, 0
        self._give_up = give_up
        self.connections: set[asyncio.Task[None]] = set()

    def reach(self, place: Place) -> Reach:
        return Reach.LOOPBACK if place == self.loopback else Reach.GLOBAL

    def count(self, received: int = 0, sent: int = 0) -> None:
        """Count bytes; ends the page at its limit."""
        self.received += received
        self._left -= received + sent
        if self._left < 0:
            error = FetchError(
                "too_much_traffic", f"the page moves more than {self._max_bytes:,} bytes"
            )
            self._give_up(error)
            raise error

    def count_connection(self) -> None:
        """Count a connection; ends the page at its limit."""
        self._connected += 1
        if self._connected > self._max_connections:
            most = self._max_connections
            error = FetchError("too_many_requests", f"the page makes more than {most} connections")
            self._give_up(error)
            raise error

    def refuse(self, url: str) -> None:
        """Note an address that the page asked for and did not get."""
        if len(self.refused) < MAX_REFUSED:
            self.refused[urls.without_credentials(url)[:MAX_SHOWN]] = None


class PinningProxy:
    """Serves the pages that are admitted, on the event loop it is started on."""

    def __init__(self, egress: Egress, through: Proxies) -> None:
        self._egress, self._through = egress, through
        self._visitors: dict[str, Visitor] = {}
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._attend, "127.0.0.1", 0, limit=wire.MAX_HEAD)

    @property
    def url(self) -> str:
        """Where the browser finds it."""
        assert self._server
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        for visitor in list(self._visitors.values()):
            self.dismiss(visitor)
        if self._server:
            self._server.close()
            await asyncio.sleep(0)  # the transports end with their tasks

    def admit(self, visitor: Visitor) -> None:
        self._visitors[visitor.name] = visitor

    def dismiss(self, visitor: Visitor) -> None:
        """End all connections of a page; its name is worth nothing any more."""
        self._visitors.pop(visitor.name, None)
        for connection in visitor.connections:
            connection.cancel()

    async def check(self, visitor: Visitor, scheme: str, place: Place) -> None:
        """Judge a place before a page goes there; raises `FetchError`."""
        reach = visitor.reach(place)
        host, _ = place
        if not self._through.choose(scheme, *place, visitor.proxy):
            await self._egress.addresses(host, reach)
            return
        # As in `Client._check_behind_proxy`: the other proxy will choose among all addresses, may
        # know names that are unknown here, and may remove a final dot.
        for name in dict.fromkeys((host, host.rstrip("."))):
            try:
                await self._egress.addresses(name, reach, every=True)
            except FetchError as error:
                if error.reason != "dns":
                    raise

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of the browser."""
        task, visitor = asyncio.current_task(), None
        assert task
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                visitor = self._visitor(head)
                if visitor:
                    break
                writer.write(_SIGN_IN)
            if len(visitor.connections) < MAX_CONNECTIONS:
                visitor.connections.add(task)
                visitor.count_connection()
                await self._serve(visitor, head, reader, writer)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError, CrawlerError):
            pass  # the browser sees the connection end, and `Visitor` has noted why
        except asyncio.CancelledError:
            pass  # the page has ended
        finally:
            if visitor:
                visitor.connections.discard(task)
            writer.close()

    def _visitor(self, head: bytes) -> Visitor | None:
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"proxy-authorization":
                with suppress(ValueError):
                    told = base64.b64decode(value.split()[-1]).decode("latin-1")
                    return self._visitors.get(told.partition(":")[0])
        return None

    async def _serve(
        self,
        visitor: Visitor,
        head: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        method, target, *_ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        is_tunnel = method == "CONNECT"
        url = f"https://{target}/" if is_tunnel else target
        try:
            scheme, _, host, port, tail = urls.split(urls.normalize(url))
        except UrlError:
            visitor.refuse(target)
            return
        place = host, int(port or _PORTS[scheme])
        try:
            if not is_tunnel and scheme != "http":
                raise FetchError("bad_url", "an address that is no http address")
            if not is_tunnel and visitor.reach(place) is Reach.LOOPBACK:
                _check_asker(head, host)
            through = self._through.choose(scheme, *place, visitor.proxy)
            async with asyncio.timeout(visitor.connect_timeout_s):
                upstream = await self._connect(visitor, scheme, place, through, is_tunnel)
        except (OSError, TimeoutError, CrawlerError) as error:
            visitor.problems[place] = _explained(error, visitor)
            visitor.refuse(target)
            writer.write(_REFUSAL)
            return
        visitor.problems.pop(place, None)
        far_reader, far_writer = upstream
        try:
            if is_tunnel:
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                authorization = through.authorization if through else ""
                path = target if through else f"/{tail}"
                sent = _request_head(method, path, head, authorization)
                visitor.count(sent=len(sent))
                far_writer.write(sent)
            sending = asyncio.ensure_future(_send(reader, far_writer, visitor))
            try:
                if not is_tunnel:
                    try:
                        writer.write(await _response_head(far_reader, visitor))
                    except FetchError as error:
                        visitor.problems[place] = error
                        writer.write(_REFUSAL)  # without an answer, the browser would ask again
                        return
                await _receive(far_reader, writer, visitor)
            finally:
                sending.cancel()
        finally:
            far_writer.close()

    async def _connect(
        self, visitor: Visitor, scheme: str, place: Place, through: Proxy | None, is_tunnel: bool
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if through is None:
            dialled = await self._egress.dial(*place, visitor.reach(place))
            return await asyncio.open_connection(sock=dialled, limit=wire.MAX_HEAD)
        await self.check(visitor, scheme, place)
        try:
            dialled = await self._egress.dial(through.host, through.port, Reach.OPERATOR)
        except OSError as error:
            message = f"the proxy {through} cannot be reached ({error})"
            raise FetchError("connection", message) from None
        reader, writer = await asyncio.open_connection(sock=dialled, limit=wire.MAX_HEAD)
        if not is_tunnel:
            return reader, writer
        host, port = place
        request = f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n"
        try:
            writer.write(f"{request}{through.authorization}\r\n".encode("latin-1"))
            answer = wire.parse_head(await reader.readuntil(b"\r\n\r\n"))
        except BaseException:
            writer.close()
            raise
        if not 200 <= answer.status < 300:
            writer.close()
            # Else it is temporary, as in `Pool`.
            is_final = answer.status < 500 and answer.status not in (408, 429)
            message = f"the proxy {through} answered {answer.status} {answer.reason[:100]!r}"
            raise FetchError("proxy" if is_final else "connection", message)
        return reader, writer


def _check_asker(head: bytes, host: str) -> None:
    """Refuse what a page of another origin, or its redirect, asks of this machine.

    Browsers say who asks wherever the host is this machine by its spelling.
    """
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"sec-fetch-site" and value.strip() in _OWN_PAGES:
            return
    raise FetchError("forbidden_address", f"another origin asks for {host}, which is this machine")


def _explained(error: Exception, visitor: Visitor) -> CrawlerError:
    if isinstance(error, CrawlerError):
        return error
    if lack := shortage_of(error):
        return OwnShortage(lack)
    if isinstance(error, TimeoutError):
        seconds = f"{visitor.connect_timeout_s:g} s"
        return FetchError("timeout", f"there was no connection within {seconds}")
    told = error.strerror if isinstance(error, OSError) else ""
    return FetchError("connection", f"the connection failed ({told or error})")


def _request_head(method: str, path: str, head: bytes, authorization: str) -> bytes:
    """Return the head of a request as its server gets it: one request per connection."""
    lines = [f"{method} {path} HTTP/1.1".encode("latin-1"), *_kept_lines(head)]
    lines.append(b"Connection: close\r\n" + authorization.encode("latin-1"))
    return b"\r\n".join(lines) + b"\r\n"


def _kept_lines(head: bytes) -> list[bytes]:
    lines = [line.rstrip(b"\r") for line in head.split(b"\n")[1:]]
    return [line for line in lines if line and _name(line) not in _HOP_HEADERS]


def _name(line: bytes) -> bytes:
    return line.partition(b":")[0].strip().lower()


async def _response_head(reader: asyncio.StreamReader, visitor: Visitor) -> bytes:
    """Read the head of an answer and return it so that the browser does not keep the connection.

    What is no HTTP goes on as it is: the browser will say so.
    """
    head = b""
    while True:
        line = await reader.readline()
        visitor.count(received=len(line))
        head += line
        if not line or b"HTTP" not in head[: wire.MAX_BEFORE_STATUS + 4].upper():
            return head
        if len(head) > wire.MAX_HEAD:
            raise wire.too_large_head()
        if line in (b"\r\n", b"\n"):
            status, *_ = head.split(b"\n", 1)
            if not _is_interim(status):
                break
            head = b""
    if status.split()[1:2] == [b"407"]:  # the browser would sign in to us, and ask again and again
        raise FetchError("bad_response", "the answer is that of a proxy which asks for a sign-in")
    lines = [status.rstrip(b"\r"), *_kept_lines(head), b"Connection: close", b"", b""]
    return b"\r\n".join(lines)


def _is_interim(status: bytes) -> bool:
    code = status.split()[1:2]
    return bool(code) and code[0].startswith(b"1") and len(code[0]) == 3


async def _send(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, visitor: Visitor
) -> None:
    with suppress(OSError, CrawlerError):
        while data := await reader.read(PIECE):
            visitor.count(sent=len(data))
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def _receive(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, visitor: Visitor
) -> None:
    while data := await reader.read(PIECE):
        visitor.count(received=len(data))
        writer.write(data)
        await writer.drain()
    await writer.drain()
