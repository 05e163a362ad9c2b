"""What this process or machine lacks is no page's failure, wherever it shows."""

import asyncio
import contextlib
import errno
import gzip
import os
import re
import resource
import socket
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import brotli
import pytest

from crawler.errors import FetchError, GaveWay, OwnShortage, shortage_of
from crawler.fetch.budget import Budget, Memory
from crawler.fetch.connection import _tls_context
from crawler.fetch.egress import Proxies, shortage_of_descriptors, shortage_of_ports
from crawler.fetch.http import Client, Request
from crawler.fetch.robots import Robots
from crawler.models import Page
from crawler.scraping.examine import examine
from crawler.sites import load
from tests.support import tls
from tests.support.serving import serving
from tests.support.site import Site
from tests.support.stack import PATIENCE_S
from tests.support.tasks import page

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


@contextlib.contextmanager
def without_descriptors() -> Iterator[None]:
    """No file and no socket can be opened in this block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 1, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)


def wrapped(error: Exception) -> Exception:
    """An error as a library passes it on."""
    outer = ValueError("it went wrong")
    outer.__cause__ = error
    return outer


OURS = [
    *(
        OSError(code, os.strerror(code))
        for code in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
    ),
    *(OSError(code, os.strerror(code)) for code in (errno.ENOSPC, errno.EDQUOT)),
    MemoryError(),
    RuntimeError("can't start new thread"),
    OwnShortage("there is no port"),
]
OTHERS = [
    *(
        OSError(code, os.strerror(code))
        for code in (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.EPIPE)
    ),
    RuntimeError("no running event loop"),
    FetchError("timeout", "too slow"),
    ValueError("memory"),
    socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
]


@pytest.mark.parametrize("error", OURS, ids=repr)
def test_a_shortage_is_known_however_it_is_wrapped(error: Exception) -> None:
    """By itself and as the cause of another error."""
    assert shortage_of(error)
    assert shortage_of(wrapped(error)) == shortage_of(error)


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_other_errors_are_no_shortage(error: Exception) -> None:
    """A page's own failures stay its own."""
    assert shortage_of(error) == shortage_of(wrapped(error)) == ""


@pytest.mark.parametrize(
    "url", ["http://{}/page/1", "https://{}/page/1", "http://name.example/", "http://8.8.8.8/"]
)
def test_a_fetch_without_descriptors_is_no_failure(site: Site, url: str) -> None:
    """Connecting, resolving, TLS and proxies: it is said that nothing was sent, and no page is
    blamed."""
    place = site.url.removeprefix("http://")
    through = Proxies.from_environment(f"http://{place}" if "8.8" in url else None, None, None)

    async def work() -> None:
        async with Client(10_000, through=through) as client:
            with without_descriptors(), pytest.raises(OwnShortage, match="descriptor") as caught:
                await client.fetch(Request(url=url.format(place), loopback=True, timeout_s=20))
            assert caught.value.unsent
            assert (
                await client.fetch(Request(url=f"{site.url}/page/1", loopback=True))
            ).status == 200

    asyncio.run(work())


def test_tls_set_up_without_descriptors_is_set_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Certificates that could not be read are missing without a word: no process goes on with such
    a set."""
    certificates = tls.make(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates / "ca.pem"))

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

    async def work() -> bytes:
        async with (
            serving(talk, tls=tls.identity(certificates, "good")) as port,
            Client(10_000) as client,
        ):
            request = Request(url=f"https://127.0.0.1:{port}/", loopback=True)
            with without_descriptors(), pytest.raises(OwnShortage):
                await client.fetch(request)
            return (await client.fetch(request)).body

    assert asyncio.run(work()) == b"hi"


def test_robots_without_descriptors_are_no_failure(tmp_path: Path) -> None:
    """Neither what is asked nor what was learnt is lost: it is asked again."""

    async def fetch(url: str) -> Page:
        return page(url, b"")

    async def work() -> None:
        robots = Robots(tmp_path)
        with without_descriptors(), pytest.raises(OSError, match="Too many open files") as caught:
            await robots.check("http://a.example/", "crawler", fetch)
        assert shortage_of(caught.value)
        assert await robots.check("http://a.example/", "crawler", fetch) == 0.0

    asyncio.run(work())


def test_few_descriptors_are_noticed() -> None:
    """What a failure leaves free does not hide that there are hardly any."""
    assert shortage_of_descriptors() == ""
    with without_descriptors():
        assert "descriptor" in shortage_of_descriptors()


def test_ports_that_are_used_up_are_ours() -> None:
    """The kernel has one error for that and for an address that it knows no way to; a datagram has
    a way or not."""
    way, none = (
        (socket.AF_INET, 0, 0, "", ("127.0.0.1", 9)),
        (socket.AF_INET, 0, 0, "", ("255.255.255.255", 9)),
    )

    assert "port" in shortage_of_ports(
        OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"), [none, way]
    )
    assert (
        shortage_of_ports(OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"), [none])
        == ""
    )
    assert (
        shortage_of_ports(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), [way])
        == ""
    )


def test_a_page_that_there_is_no_memory_for_is_not_blamed(tmp_path: Path) -> None:
    """Reading gives way where the process has too much in flight, also where the page says it is in
    error."""
    memory = Memory()
    Budget(memory=memory).hold(memory.most)

    for status in (200, 404):
        with pytest.raises(OwnShortage):
            examine(
                page(status=status), load(tmp_path).of("http://a.example/"), Budget(memory=memory)
            )


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


WAITS = {
    "in the head": b"HTTP/1.1 200 OK\r\nA: " + b"x" * 200_000,
    "in the body": b"HTTP/1.1 200 OK\r\nContent-Length: 250000\r\n\r\n" + b"x" * 200_000,
    "in a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40000\r\n"
    + b"x" * 200_000,
    "without an end": b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 200_000,
}


@pytest.mark.parametrize("sent", WAITS.values(), ids=WAITS)
def test_what_waits_in_a_connection_is_counted_and_can_give_way(sent: bytes) -> None:
    """Wherever its server falls silent, a page's bytes are counted once, and are free when it gives
    way or ends."""
    memory = Memory()
    elder = Budget(memory=memory)
    elder.hold(memory.limit // 2)  # the first ones need not give way

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent)
        await asyncio.Event().wait()

    async def work() -> None:
        async with serving(talk) as port, Client(1_000_000) as client:
            budgets = [Budget(memory=memory) for _ in range(2)]
            url = f"http://127.0.0.1:{port}/"
            pages = [
                asyncio.create_task(
                    client.fetch(Request(url=url, loopback=True, timeout_s=600, budget=budget))
                )
                for budget in budgets
            ]
            await until(lambda: memory.used >= memory.limit // 2 + 2 * 200_000)
            assert memory.used < memory.limit // 2 + 2 * 201_000
            await until(memory.relieve)
            done, _ = await asyncio.wait(pages, return_when=asyncio.FIRST_COMPLETED)
            assert [type(page.exception()) for page in done] == [GaveWay]
            for page in pages:
                page.cancel()
            await asyncio.gather(*pages, return_exceptions=True)
            for budget in budgets:
                budget.release()

    asyncio.run(work())
    assert memory.used == memory.limit // 2


LONG = bytes(range(32, 127)) * 94_000
CODED: dict[str, bytes] = {
    "": LONG,
    "gzip": gzip.compress(LONG, 1),
    "deflate": zlib.compress(LONG, 1),
    "br": brotli.compress(LONG, quality=1, lgwin=24),
    "zstd": zstd.compress(LONG, options={zstd.CompressionParameter.window_log: 23}),
}
CODED["br, gzip"] = gzip.compress(CODED["br"])


def test_a_process_with_hardly_any_memory_charges_no_page(tmp_path: Path) -> None:
    """Whatever the codings and with TLS: decoders and OpenSSL say that a page is bad, but it is we
    who lack memory."""
    certificates = tls.make(tmp_path)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            asked = await reader.readuntil(b"\r\n\r\n")
            coding, body = [*CODED.items()][int(asked.split(b"/")[1].split()[0])]
            head = (
                f"HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\nContent-Length: {len(body)}\r\n"
                "\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()

    async def work() -> tuple[bytes, list[str]]:
        secure = tls.identity(certificates, "good")
        async with serving(talk) as port, serving(talk, tls=secure) as secure_port:
            urls = [f"http://127.0.0.1:{port}/{number}" for number in range(len(CODED))]
            urls += [f"http://localhost:{port}/1", f"https://127.0.0.1:{secure_port}/3"]
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.support.tight", *urls),
                stdout=subprocess.PIPE,
                env=os.environ | {"SSL_CERT_FILE": str(certificates / "ca.pem")},
            )
            return (await process.communicate())[0], urls

    printed, urls = asyncio.run(work())
    found = re.findall(r"(?m)^(\S+): [1-9]\d* pages, [1-9]\d* times short$", printed.decode())
    assert (found, len(printed.splitlines())) == (urls, len(urls)), printed.decode()


def test_no_server_chooses_what_a_handshake_costs() -> None:
    """DHE is not offered, as in browsers: with numbers of 10,000 bits it takes half a second that
    no page pays for."""
    assert not [
        cipher["name"]
        for cipher in _tls_context().get_ciphers()
        if cipher["name"].startswith("DHE")
    ]
