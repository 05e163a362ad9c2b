"""Connections without a limit on requests: few are opened at a time, more as the server answers,
none in vain."""

import asyncio
import socket
import struct
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from crawler.errors import FetchError
from crawler.fetch.connection import FIRST_CONNECTIONS
from crawler.fetch.http import Client, Request
from tests.support.serving import serving
from tests.support.stack import wait_for

SO_MEMINFO = 55
PAGES = 120
BACKLOG = 5
"""As `python -m http.server` has it."""
NEVER = 1e6


class SmallServer:
    """Accepts and answers one connection after another, and closes each, like a small HTTP/1.0
    server."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self.port = self._listener.getsockname()[1]
        self.accepting = threading.Event()
        self.served = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            self.accepting.wait()
            try:
                talk, _ = self._listener.accept()
            except OSError:
                return
            with talk, talk.makefile("rb") as lines:
                while lines.readline() not in (b"\r\n", b""):
                    pass
                self.served += 1
                talk.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi")

    @property
    def unaccepted(self) -> int:
        """The connections that wait to be accepted."""
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
        place = f":{self.port:04X}"
        [found] = [row[4] for row in rows if row[1].endswith(place) and row[3] == "0A"]
        return int(found.partition(":")[2], 16)

    @property
    def dropped(self) -> int:
        """The handshakes that the kernel has dropped because there was no room."""
        counts = self._listener.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36)
        return int(struct.unpack("9I", counts)[8])

    def close(self) -> None:
        """End it."""
        self.accepting.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@contextmanager
def small_server() -> Iterator[SmallServer]:
    server = SmallServer()
    try:
        yield server
    finally:
        server.close()


@asynccontextmanager
async def client(settle_s: float = NEVER) -> AsyncIterator[Client]:
    """A client that takes only an answer for a sign that a connection was accepted, unless told
    otherwise."""
    async with Client(10_000, settle_s=settle_s) as made:
        yield made


def asked(port: int, n: int = 0) -> Request:
    return Request(url=f"http://127.0.0.1:{port}/{n}", loopback=True, unlimited=True, timeout_s=600)


def test_a_small_server_is_not_overrun() -> None:
    """While nothing is accepted, a few connections wait and no handshake is dropped; then every
    page comes."""

    async def work(server: SmallServer) -> None:
        async with client() as made:
            pages = [asyncio.create_task(made.fetch(asked(server.port, n))) for n in range(PAGES)]
            full = lambda: server.unaccepted >= FIRST_CONNECTIONS  # noqa: E731 - it is called in a thread
            await asyncio.to_thread(wait_for, full, 60, "connections that wait to be accepted")
            for _ in range(100):
                await asyncio.sleep(0)
            assert (server.unaccepted, server.dropped) == (FIRST_CONNECTIONS, 0)

            server.accepting.set()
            assert {page.body for page in await asyncio.gather(*pages)} == {b"hi"}
        # The limit is found out by one time too many; all at once, each page lost its handshake
        # several times.
        assert server.served == PAGES
        assert server.dropped < PAGES / 4

    with small_server() as server:
        asyncio.run(work(server))


def test_a_server_that_answers_gets_all_that_there_is() -> None:
    """After some answers as many requests as there are pages reach the server at the same time, on
    kept connections."""
    waiting, everybody = 0, asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal waiting
        while line := await reader.readline():
            await reader.readuntil(b"\r\n\r\n")
            if line.startswith(b"GET /1 "):
                waiting += 1
                if waiting == PAGES:
                    everybody.set()
                await everybody.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

    async def work() -> None:
        async with serving(talk) as port, client(settle_s=0.01) as made:
            for n in (0, 1):
                await asyncio.gather(*[made.fetch(asked(port, n)) for _ in range(PAGES)])
        assert waiting == PAGES

    asyncio.run(work())


def test_a_connection_that_becomes_free_goes_to_who_waits() -> None:
    """Whoever waits takes the next free connection: where none settles, few connections serve all
    pages."""
    ports: Counter[int] = Counter()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            await reader.readuntil(b"\r\n\r\n")
            ports[writer.get_extra_info("peername")[1]] += 1
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

    async def work() -> None:
        async with serving(talk) as port, client() as made:
            await asyncio.gather(*[made.fetch(asked(port, n)) for n in range(PAGES)])

    asyncio.run(work())
    assert ports.total() == PAGES
    assert len(ports) < PAGES / 2


def test_a_server_that_is_not_there_is_so_for_all_who_wait() -> None:
    """Pages that wait in line fail with the first, instead of one after another; and so they do for
    a name."""

    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as unused:
            port = unused.getsockname()[1]
        async with client() as made:
            for host, reason in (
                (f"127.0.0.1:{port}", "connection"),
                ("10.0.0.1", "forbidden_address"),
            ):
                requests = [
                    Request(url=f"http://{host}/{n}", loopback=True, unlimited=True)
                    for n in range(PAGES)
                ]
                pages = await asyncio.gather(*map(made.fetch, requests), return_exceptions=True)
                assert {page.reason for page in pages if isinstance(page, FetchError)} == {reason}
                assert sum(isinstance(page, FetchError) for page in pages) == PAGES

    asyncio.run(work())


def test_the_time_in_line_is_not_the_page_s() -> None:
    """A page whose connection comes after its whole time was over, because others of ours went
    first, is fetched."""
    go, busy, heard = asyncio.Event(), asyncio.Event(), 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        await reader.readuntil(b"\r\n\r\n")
        heard += 1
        if heard == FIRST_CONNECTIONS:
            busy.set()
        await go.wait()
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi")

    async def work() -> None:
        async with serving(talk) as port, client() as made:
            first = [asyncio.create_task(made.fetch(asked(port))) for _ in range(FIRST_CONNECTIONS)]
            await busy.wait()
            hasty = Request(
                url=f"http://127.0.0.1:{port}/", loopback=True, unlimited=True, timeout_s=3
            )
            last = asyncio.create_task(made.fetch(hasty))
            await asyncio.sleep(3.1)
            go.set()
            assert (await last).body == b"hi"
            await asyncio.gather(*first)

    asyncio.run(work())


def test_who_gives_up_waiting_leaves_the_place_to_the_next() -> None:
    """Pages that are cancelled in the line, at any moment, hold up no other."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

    async def work() -> None:
        async with serving(talk) as port, client() as made:
            pages = [asyncio.create_task(made.fetch(asked(port, n))) for n in range(PAGES)]
            for n, page in enumerate(pages):
                await asyncio.sleep(0)
                if n % 2:
                    page.cancel()
            outcomes = await asyncio.gather(*pages, return_exceptions=True)
            gone = sum(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
            assert gone >= 1
            assert not [outcome for outcome in outcomes if isinstance(outcome, FetchError)]
            assert (await made.fetch(asked(port))).body == b"hi"

    asyncio.run(work())


@pytest.mark.parametrize("unlimited", [True, False])
def test_slow_pages_hold_up_no_others(unlimited: bool) -> None:
    """Pages that do not answer leave their places after a moment; with a limit on requests there is
    no line at all."""
    slow, heard = 4 * FIRST_CONNECTIONS, 0
    go = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        await reader.readuntil(b"\r\n\r\n")
        heard += 1
        if heard == slow:
            go.set()
        await go.wait()
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi")

    async def work() -> None:
        async with serving(talk) as port, client(settle_s=0.01 if unlimited else NEVER) as made:
            url = f"http://127.0.0.1:{port}/"
            request = Request(url=url, loopback=True, unlimited=unlimited, timeout_s=600)
            await asyncio.gather(*[made.fetch(request) for _ in range(slow)])

    asyncio.run(work())
