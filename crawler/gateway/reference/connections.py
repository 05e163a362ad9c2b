"""The server's connections: how many there may be, and how long they may say nothing."""

import asyncio
import logging
import resource
import time
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger("crawler.gateway")

SILENT_S = 30.0
"""How long a request's head may take, and how long its body may stand still."""
MAX_CONNECTIONS = 4000
LOOK_S = 1.0
_OWN_FILES = 64
"""Open files that are no connections."""


def room() -> int:
    """How many connections there may be; the process is allowed as many open files as that needs,
    if it may."""
    wanted = MAX_CONNECTIONS + _OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return (
        MAX_CONNECTIONS
        if soft == resource.RLIM_INFINITY
        else max(1, min(MAX_CONNECTIONS, soft - _OWN_FILES))
    )


class Complaints:
    """Log lines about connections, each kind once a minute."""

    def __init__(self, ticks: Callable[[], float] = time.monotonic) -> None:
        self._ticks, self._said = ticks, dict[str, float]()

    def say(self, line: str) -> None:
        """Say this unless it was said within the last minute."""
        now = self._ticks()
        if now - self._said.get(line, float("-inf")) >= 60:
            self._said[line] = now
            log.warning("%s", line)


class Connection(H11Protocol):
    """A connection that ends where nothing comes of it."""

    most, silent_s = MAX_CONNECTIONS, SILENT_S
    complaints = Complaints()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, unless there are enough."""
        super().connection_made(transport)
        self._heard = self.loop.time()
        self._head_since: float | None = self._heard
        if len(self.connections) > self.most:
            self.complaints.say(f"more than {self.most:,} connections: new ones are ended at once")
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take what came, and note when."""
        self._heard = self.loop.time()
        if self._head_since is None:
            self._head_since = self._heard
        super().data_received(data)
        if self._busy():
            self._head_since = None

    def on_response_complete(self) -> None:
        """Wait for the next request, which begins with its first byte."""
        self._head_since = None
        super().on_response_complete()

    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def look(self, now: float) -> None:
        """End the connection where a request has begun and does not come."""
        if self.flow.read_paused:  # it is us who do not listen
            self._heard = now
        if self._busy():
            late = self.cycle.more_body and now - self._heard > self.silent_s
        else:
            late = self._head_since is not None and now - self._head_since > self.silent_s
        if late:
            self.complaints.say(
                f"a connection said nothing for {self.silent_s:g} s inside a request, and was ended"
            )
            self.transport.abort()


def bounded(most: int, silent_s: float) -> type[Connection]:
    """Connections of which there may be so many, and which may be silent so long."""
    return type("BoundedConnection", (Connection,), {"most": most, "silent_s": silent_s})


class Server(uvicorn.Server):
    """uvicorn's server with an eye on its connections; `farewell` is called so many seconds after
    it is told to end."""

    def __init__(
        self, config: uvicorn.Config, farewell: Callable[[], None], after_s: float
    ) -> None:
        super().__init__(config)
        self._farewell, self._after_s = farewell, after_s

    async def startup(self, sockets: Any = None) -> None:
        """Begin to listen."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(_on_trouble)
        await super().startup(sockets)
        self._looking = self._loop.create_task(self._look())

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for connection in list(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.look(self._loop.time())

    async def shutdown(self, sockets: Any = None) -> None:
        """End, with a moment for what is under way."""
        self._looking.cancel()
        self._loop.call_later(self._after_s, self._farewell)
        await super().shutdown(sockets)


def _on_trouble(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Say in a line what asyncio would say in a traceback, many times a second, where no connection
    can be taken."""
    if "accept" in str(context.get("message")):
        Connection.complaints.say(
            f"no connection can be taken ({context.get('exception')}); it is tried again"
        )
    else:
        loop.default_exception_handler(context)
