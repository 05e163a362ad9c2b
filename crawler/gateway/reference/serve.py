"""The reference Gateway as a process: one for each store, until it is told to end."""

import contextlib
import fcntl
import ipaddress
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from crawler import logs
from crawler.db.connection import store_errors
from crawler.errors import UsageError
from crawler.gateway.reference.connections import SILENT_S, Connection, Server, bounded, room
from crawler.gateway.reference.farewell import Farewell
from crawler.gateway.reference.faults import Dice, Faults
from crawler.gateway.reference.habits import BOOKS
from crawler.gateway.reference.server import Service, application

log = logging.getLogger("crawler.gateway")

FAREWELL_S = 2.0
"""How long exchanges may take to end once the server is told to; then their callers get a 503."""


def serve(
    folder: Path,
    token: str,
    *,
    host: str,
    port: int,
    lease_s: float,
    idle_s: float,
    faults: float | None,
    seed: int,
    like: str | None = None,
    silent_s: float = SILENT_S,
) -> None:
    """Serve the store in this folder until a signal ends it."""
    with (
        _bound(host, port) as listener,
        contextlib.ExitStack() as last,
        contextlib.ExitStack() as stack,
    ):
        books = BOOKS[like](folder, lease_s=lease_s, idle_s=idle_s)
        stack.callback(books.close)
        stack.enter_context(_alone(folder))
        dice = None if faults is None else Dice(faults, seed)
        service = Service(books, token, dice)
        stack.callback(service.close)
        farewell = Farewell(application(service))

        def end() -> None:
            service.hurry()
            farewell.end()

        app: ASGIApp = Faults(farewell, dice) if dice else farewell
        server = Server(_config(app, bounded(room(), silent_s)), end, FAREWELL_S)
        url = _url(listener)
        log.info(
            "the gateway listens on %s",
            url,
            extra={"store": str(folder.absolute()), "lease_s": lease_s},
        )
        if not ipaddress.ip_address(listener.getsockname()[0]).is_loopback:
            log.warning(
                "other machines can reach it: put a proxy with TLS before it, or the token is sent open"
            )
        last.callback(log.info, "the gateway on %s has stopped", url)
        server.run(sockets=[listener])


def _config(app: ASGIApp, connection: type[Connection]) -> uvicorn.Config:
    complaints = logging.getLogger("uvicorn.error")
    complaints.handlers[:], complaints.propagate = [logs.handler()], False
    complaints.setLevel(logging.WARNING)
    return uvicorn.Config(
        app,
        loop="asyncio",  # uvloop does not say that no connection can be taken, and tries again at once
        http=connection,  # h11's: the faults' resets are cut to its measure
        h11_max_incomplete_event_size=1
        << 20,  # a hundred platforms, each sign of their names as twelve
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,  # longer than workers wait between two calls
        timeout_graceful_shutdown=4,  # only for what does not even take its 503
    )


@contextlib.contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"--host {host} --port {port}: it cannot be listened there ({reason})"
        ) from None
    with listener:
        # Connections inherit it: asyncio does not know that this is TCP, and the second half of an
        # answer would wait.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield listener


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """See to it that no other server has this store: each would take the other's workers for
    silent."""
    with store_errors(folder / "serve.lock"), (folder / "serve.lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another gateway serves {folder} already") from None
        yield


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
