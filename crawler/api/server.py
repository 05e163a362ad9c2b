"""The server of the API: uvicorn, with limits on connections and an orderly end."""

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import resource
import socket
from collections.abc import Callable, Iterator
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Response
from websockets.server import ServerProtocol

from crawler import logs
from crawler.api.app import create_app
from crawler.api.errors import INTERNAL, ApiError, Json, refusal
from crawler.api.service import Service
from crawler.api.tokens import Tokens
from crawler.config import Settings, program
from crawler.errors import ServiceError, UsageError
from crawler.lpm import LocalPersistenceManager
from crawler.process import raise_file_limit

log = logging.getLogger(__name__)

FAREWELL_S = 3
"""How long requests may take to end once the server is told to."""
HEAD_S = 30.0
"""How long the head of a request may take."""
CLOSE_S = 5.0
"""How long a closed connection may take to hand over what is left."""
MAX_CONNECTIONS = 1500
"""Connections at a time; at most half of the files that this process may open."""
BACKLOG = 64
"""Connections that the kernel keeps until they are accepted; so many are accepted at once, also
those that are too many."""
MAX_MESSAGE = 65_536
"""Bytes of a message that a WebSocket's client sends; it has nothing to say."""
PING_S = 20.0
SEND_BUFFER = 131_072
"""Bytes that the kernel keeps for a client that reads slowly."""


def serve(
    settings: Settings, host: str, port: int, ready: Callable[[str], None], local: bool = False
) -> None:
    """Serve the API until a signal ends it; `ready` is told its URL. `local`: only this machine
    reaches the port, whatever the address."""
    raise_file_limit()
    with _bound(host, port) as listener:
        is_local = local or ipaddress.ip_address(listener.getsockname()[0]).is_loopback
        if not is_local and not Tokens(settings).any():
            raise UsageError(
                f"--host {host}: other machines would reach the API, and there is no token; "
                f"set CRAWLER_API_TOKEN, or add one: {program()} serve token add NAME"
            )
        LocalPersistenceManager(settings.data_dir).close_after_check()
        app = create_app(settings, is_local)
        if not is_local:
            log.warning("other machines reach the API: put a proxy with TLS in front of it")
        Server(_config(app), app.state.service, lambda: ready(_url(listener))).run([listener])


class Server(uvicorn.Server):
    """uvicorn's server, which says when it is ready and wakes all who wait when it ends."""

    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._ready = service, ready
        self._sweeping: asyncio.Task[None] | None = None

    async def startup(self, sockets: Any = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        self._sweeping = asyncio.create_task(self._sweep())
        self._ready()

    async def shutdown(self, sockets: Any = None) -> None:
        """End: requests that wait answer with what is there, and streams can be resumed."""
        self._service.changes.stop()
        self._service.backend.ask_to_stop()
        await super().shutdown(sockets)
        if self._sweeping:
            self._sweeping.cancel()

    async def _sweep(self) -> None:
        """End connections that bring nothing and take nothing."""
        closing: dict[Any, float] = {}
        while True:
            await asyncio.sleep(1.0)
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.look(now)
                transport = connection.transport
                # A closed one stays as long as its client takes nothing of what is left.
                if transport.is_closing() and now - closing.setdefault(transport, now) > CLOSE_S:
                    transport.abort()
            living = {connection.transport for connection in self.server_state.connections}
            closing = {each: since for each, since in closing.items() if each in living}


class Connection(H11Protocol):
    """A connection of HTTP, whose errors are JSON, too."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, unless there are enough."""
        super().connection_made(transport)
        self._head_since: float | None = self.loop.time()
        # Without files left, neither the ledger nor a process could be opened.
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if len(self.connections) > min(MAX_CONNECTIONS, files // 2):
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take what came, and note when the head of a request began."""
        if self._head_since is None and not self._is_busy():
            self._head_since = self.loop.time()
        super().data_received(data)
        if self._is_busy():
            self._head_since = None

    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def look(self, now: float) -> None:
        """End a connection whose request has begun and does not come."""
        if not self._is_busy() and self._head_since and now - self._head_since > HEAD_S:
            self.transport.abort()

    def on_response_complete(self) -> None:
        """Wait for the next request, which begins with its first byte."""
        self._head_since = None
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP."""
        answer = _no_request(msg)
        headers = [*answer.raw_headers, (b"connection", b"close")]
        response = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        for event in (response, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class _Handshake(ServerProtocol):
    """Refuses a WebSocket as JSON, too."""

    def reject(self, status: int, text: str) -> Response:
        """Return the answer for a request that opens no WebSocket."""
        response = super().reject(status, text)
        answer = _no_request(text.partition("\n")[0] or "it was refused")
        if status == 500:
            answer = refusal(ApiError(status, "internal", INTERNAL))
        response.body = bytes(answer.body)
        for name, value in answer.headers.items():
            del response.headers[name]
            response.headers[name] = value
        return response


class Socket(WebSocketsSansIOProtocol):
    """A WebSocket, whose client is left if it answers no ping."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn.__class__ = _Handshake  # uvicorn makes it by itself

    def data_received(self, data: bytes) -> None:
        """Take what came; uvicorn lets a client wait for ever whose request opens no WebSocket."""
        super().data_received(data)
        if self.conn.handshake_exc is None or self.transport.is_closing():
            return
        answer = _no_request("it opens no WebSocket")
        lines = [b"%s: %s\r\n" % header for header in answer.raw_headers]
        head = [b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n", *lines, b"\r\n"]
        self.transport.write(b"".join(head) + bytes(answer.body))
        self.handshake_complete = self.close_sent = True
        self.transport.close()

    def handle_text(self, event: Frame) -> None:
        """Drop what a client says: it has no meaning, may be no text, and would pile up."""

    handle_bytes = handle_cont = handle_text

    def keepalive_timeout(self) -> None:
        """End it at once: a client that takes nothing would hold it for ever."""
        super().keepalive_timeout()
        self.transport.abort()


def _no_request(why: str) -> Json:
    return Json({"error": f"this is no request: {why}", "code": "bad_http"})


def _config(app: FastAPI) -> uvicorn.Config:
    complaints = logging.getLogger("uvicorn.error")
    complaints.handlers[:], complaints.propagate = [logs.handler()], False
    complaints.setLevel(logging.ERROR)
    return uvicorn.Config(
        app,
        loop="asyncio",
        http=Connection,
        ws=Socket,
        ws_max_size=MAX_MESSAGE,
        ws_ping_interval=PING_S,
        ws_ping_timeout=PING_S,
        backlog=BACKLOG,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=FAREWELL_S,
    )


@contextlib.contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            advice = "stop what listens there, or take another port: --port 0 takes any free one"
            reason = os.strerror(errno.EADDRINUSE)
        else:
            advice = "name an address of this machine and a port that is allowed"
        raise ServiceError(
            f"--host {host} --port {port}: it cannot be listened there ({reason}); {advice}"
        ) from None
    with listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Connections inherit it: megabytes would be sent to clients that never read.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        yield listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
