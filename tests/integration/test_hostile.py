"""The unhurt client: every misbehaviour of the hostile site has its reason, and costs neither
memory nor neighbours."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import pytest

from crawler.errors import FetchError, NotNow
from crawler.fetch.egress import Egress, Proxies
from crawler.fetch.http import Client, Request
from tests.support.serving import serving
from tests.support.site import DRIPS, FAKE, FLOODS, HOSTILE, ODD, ROOT, SLOPPY, STALLS, Site, parcel

MAX_BODY = 10_000_000
AT_A_TIME = 16
LONG_S, SHORT_S = 20.0, 3.0
"""What must come to an end by itself has long; what never ends is given up after a short time."""
WHOLE = {
    *(f"/bad-header/{kind}" for kind in SLOPPY),
    *(
        path
        for path in ODD
        if HOSTILE[path] == "ok" and path.startswith(("/odd/l", "/odd/v", "/odd/m", "/odd/chunk"))
    ),
    *(
        "/odd/slop",
        "/odd/no-version",
        "/odd/no-headers",
        "/odd/status-text",
        "/odd/status-negative",
        "/odd/continue",
    ),
    *(
        "/odd/early-hints",
        "/odd/garbage-after",
        "/odd/fake-after",
        "/odd/fake-after-chunks",
        "/odd/fake-after-redirect",
    ),
    *(
        "/odd/coding-none",
        "/odd/coding-charset",
        "/odd/coding-unknown",
        "/odd/gzip-padding",
        "/odd/gzip-members",
    ),
    *(
        "/odd/redirect-relative",
        "/odd/redirect-blanks",
        "/odd/refresh-header",
        "/odd/alt-svc",
        "/odd/1000-headers",
    ),
    *(
        "/gzip",
        "/deflate",
        "/deflate-raw",
        "/br",
        "/zstd",
        "/gzip-gzip",
        "/no-length",
        "/half-close",
        "/late-fake",
    ),
    *(
        "/redirect/10",
        "/redirect-user",
        "/huge-headers/100000",
        "/many-cookies/3000",
        "/flood/zero-chunks",
    ),
    *("/flood/behind-page", "/odd/transfer-identity", "/odd/glued-reason", "/odd/html-as-image"),
} - {"/odd/meta-refresh"}
"""What delivers page 1 to the last byte."""


@pytest.fixture(scope="module")
def running() -> Iterator[Site]:
    """One hostile site for this module, with everything built."""
    with Site() as site:
        site.warm()
        yield site


@pytest.fixture
def site(running: Site) -> Site:
    """The hostile site with its books empty."""
    running.reset()
    return running


@asynccontextmanager
async def client() -> AsyncIterator[Client]:
    """The client that workers use."""
    async with Client(MAX_BODY) as made:
        yield made


async def outcome(made: Client, url: str, timeout_s: float) -> tuple[str, bytes]:
    """What one fetch comes to, and the page's body."""
    try:
        page = await made.fetch(Request(url=url, loopback=True, timeout_s=timeout_s))
    except FetchError as error:
        return error.reason if error.message.isprintable() and len(
            error.message
        ) < 500 else "unprintable", b""
    return "ok", page.body


async def all_outcomes(made: Client, site: str) -> dict[str, tuple[str, bytes]]:
    """Fetch the whole table: what never ends all at once, the rest some at a time."""
    places = asyncio.Semaphore(AT_A_TIME)

    async def one(path: str) -> tuple[str, tuple[str, bytes]]:
        if HOSTILE[path] == "timeout":
            return path, await outcome(made, site + path, SHORT_S)
        async with places:
            return path, await outcome(made, site + path, LONG_S)

    return dict(await asyncio.gather(*map(one, HOSTILE)))


def test_there_are_enough_misbehaviours() -> None:
    """The table names each misbehaviour once, and they are many."""
    assert len(HOSTILE) >= 200
    assert len([path for path, reason in HOSTILE.items() if reason != "ok"]) >= 90
    assert {*FLOODS, *STALLS, *DRIPS} <= {path.rpartition("/")[2] for path in HOSTILE}


def test_every_misbehaviour_has_its_reason_and_neighbours_do_not_notice(site: Site) -> None:
    """Each comes to what the table says, sloppy ones to the whole page, while normal pages of the
    same client go on."""

    async def work() -> tuple[dict[str, tuple[str, bytes]], int]:
        async with client() as made:
            hostile = asyncio.create_task(all_outcomes(made, site.url))
            good = 0
            while not hostile.done():
                n = good % 50
                reason, body = await outcome(made, site.page(n), LONG_S)
                assert (reason, body) == ("ok", parcel(n))
                good += 1
            return hostile.result(), good

    outcomes, good = asyncio.run(work())

    wrong = {
        path: (got, HOSTILE[path]) for path, (got, _) in outcomes.items() if got != HOSTILE[path]
    }
    assert wrong == {}
    assert {path for path in WHOLE if outcomes[path][1] != parcel(1)} == set()
    assert good > 20


CHILD = """
import asyncio, json, resource, sys
from tests.integration import test_hostile as t

async def work(url, hostile):
    async with t.client() as made:
        if hostile:
            found = await t.all_outcomes(made, url)
            print(json.dumps({path: reason for path, (reason, _) in found.items()}))
        else:
            for n in range(300):
                await t.outcome(made, f"{url}/page/{n}", t.LONG_S)
            print("{}")

asyncio.run(work(sys.argv[1], sys.argv[2] == "hostile"))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def peak(site: Site, kind: str) -> tuple[dict[str, str], int]:
    """The outcomes of a process that fetches hostile or normal pages, and the most memory that it
    had."""
    command = [sys.executable, "-c", CHILD, site.url, kind]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    outcomes, size = done.stdout.splitlines()
    return json.loads(outcomes), int(size)


def test_memory_stays_bounded(site: Site) -> None:
    """Bombs, floods and endless heads, some at a time, need no more than those pages at a time
    could be large."""
    _, normal = peak(site, "normal")
    outcomes, hostile = peak(site, "hostile")

    assert outcomes == HOSTILE
    # A page is held as received and as decoded, and once more while it is handed over.
    assert hostile - normal < AT_A_TIME * 3 * MAX_BODY
    assert hostile - normal < 200_000_000


@pytest.mark.parametrize(
    "path", [path for path in HOSTILE if "/fake" in path or "behind" in path or "garbage" in path]
)
def test_bytes_that_nobody_asked_for_are_nobody_s_answer(site: Site, path: str) -> None:
    """What follows a whole answer is not taken for the next one."""

    async def work() -> None:
        async with client() as made:
            for n in range(5):
                assert (await outcome(made, site.url + path, LONG_S))[0] == "ok"
                assert await outcome(made, site.page(n), LONG_S) == ("ok", parcel(n))

    asyncio.run(work())


def test_an_answer_that_nobody_asked_for_ends_an_idle_connection() -> None:
    """A second answer, sent while the connection waits for the next request, closes it and is read
    by nobody."""

    async def work() -> None:
        go, gone, opened = asyncio.Event(), asyncio.Event(), 0

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal opened
            opened += 1
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood")
            await go.wait()
            writer.write(FAKE)
            with suppress(OSError):
                assert await reader.read() == b""
            gone.set()

        async with serving(talk) as port, client() as made:
            assert await outcome(made, f"http://127.0.0.1:{port}/", LONG_S) == ("ok", b"good")
            go.set()
            await gone.wait()
            assert await outcome(made, f"http://127.0.0.1:{port}/", LONG_S) == ("ok", b"good")
            assert opened == 2

    asyncio.run(work())


def test_good_connections_are_kept(site: Site) -> None:
    """Pages, errors and redirects of a sound server come over one connection."""
    opened = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        while True:
            request = await reader.readuntil(b"\r\n\r\n")
            path = request.split()[1].decode()
            if path == "/away":
                writer.write(b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 4\r\n\r\naway")
            elif path == "/chunks":
                writer.write(
                    b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n"
                    b"\r\n"
                )
            else:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

    async def work() -> None:
        async with serving(talk) as port, client() as made:
            for path in ("/", "/away", "/chunks", "/", "/away"):
                assert (await outcome(made, f"http://127.0.0.1:{port}{path}", LONG_S))[0] == "ok"

    asyncio.run(work())
    assert opened == 1


def test_a_connection_that_the_server_closed_is_not_a_failure() -> None:
    """A server that closes after each answer without saying so costs a second request, each through
    the gate."""
    served = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        await reader.readuntil(b"\r\n\r\n")
        served += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
        await writer.drain()
        await reader.readuntil(b"\r\n\r\n")  # the next request is read and not answered

    async def work() -> list[str]:
        entered: list[str] = []

        @asynccontextmanager
        async def gate(url: str) -> AsyncIterator[None]:
            entered.append(url)
            yield

        async with serving(talk) as port, client() as made:
            for n in range(3):
                page = await made.fetch(
                    Request(url=f"http://127.0.0.1:{port}/{n}", loopback=True), gate
                )
                assert page.body == b"hi"
        return [url.rpartition("/")[2] for url in entered]

    assert asyncio.run(work()) == ["0", "1", "1", "2", "2"]
    assert served == 3


def test_the_gate_is_passed_at_every_request(site: Site) -> None:
    """Each redirect passes the gate with its own URL, and what the gate raises comes out as it
    is."""

    async def work() -> None:
        entered: list[str] = []

        @asynccontextmanager
        async def gate(url: str) -> AsyncIterator[None]:
            if len(entered) == 3:
                raise NotNow("127.0.0.1", "rate", 2.5)
            entered.append(url)
            yield

        async with client() as made:
            with pytest.raises(NotNow) as caught:
                await made.fetch(Request(url=f"{site.url}/redirect/5", loopback=True), gate)
            assert caught.value.wait_s == 2.5
            assert entered == [f"{site.url}/redirect/{n}" for n in (5, 4, 3)]

            def failing(_: str) -> AbstractAsyncContextManager[None]:
                raise ConnectionError("the store of permits is away")

            with pytest.raises(ConnectionError):
                await made.fetch(Request(url=site.page(1), loopback=True), failing)

    asyncio.run(work())


def test_time_at_the_gate_is_not_the_page_s(site: Site) -> None:
    """A gate that takes longer than the page may does not make it fail."""

    async def work() -> None:
        @asynccontextmanager
        async def slow(_: str) -> AsyncIterator[None]:
            await asyncio.sleep(2.1)
            yield

        async with client() as made:
            request = Request(url=f"{site.url}/redirect/1", loopback=True, timeout_s=2)
            assert (await made.fetch(request, slow)).body == parcel(1)

    asyncio.run(work())


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take everything, say nothing."""
    await reader.read()


async def never(_: str) -> Sequence[str]:
    """A name server that does not answer."""
    await asyncio.Event().wait()
    return []


@pytest.mark.parametrize("limit", ["connect", "total"])
@pytest.mark.parametrize("where", ["dns", "tls", "proxy", "proxy tls"])
def test_no_step_before_the_request_outlasts_its_time(where: str, limit: str) -> None:
    """A name server, TLS, and a proxy that never answer end with the connection's time, or the
    page's."""

    async def consent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await reader.read()

    async def work() -> None:
        async with serving(consent if where == "proxy tls" else silence) as port:
            through = f"http://127.0.0.1:{port}" if "proxy" in where else None
            proxies = Proxies.from_environment(through, through, None)
            url = {"dns": "http://a.example/", "tls": f"https://127.0.0.1:{port}/"}.get(
                where, "https://8.8.8.8/"
            )
            lookup = never if where == "dns" else None
            connect_s, total_s = (0.3, 60.0) if limit == "connect" else (60.0, 0.3)
            request = Request(
                url=url, loopback=True, connect_timeout_s=connect_s, timeout_s=total_s
            )
            async with Client(1000, egress=Egress((), lookup), through=proxies) as made:
                with pytest.raises(FetchError) as caught:
                    await made.fetch(request)
                assert caught.value.reason == "timeout"
                assert ("no connection within" in caught.value.message) == (limit == "connect")

    asyncio.run(work())


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "proxy"),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", "proxy"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "connection"),
        (b"HTTP/1.1 999 \x1b[31m\r\n\r\n", "connection"),
        (b"HTTP/1.1 200 OK\r\n\r\nplain text", "bad_response"),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff", "bad_response"),
        (b"", "connection"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "tls_broken_off"),
        (b"HTTP/1.1 200 OK\r\nX-Endless: " + b"h" * 300_000, "headers_too_large"),
    ],
)
def test_a_hostile_proxy_is_a_reason_too(answer: bytes, reason: str) -> None:
    """Whatever a proxy answers to CONNECT, there is a reason, and no password in its message."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    async def work() -> None:
        async with serving(talk) as port:
            through = Proxies.from_environment(None, f"http://user:geheim@127.0.0.1:{port}", None)
            async with Client(1000, through=through) as made:
                with pytest.raises(FetchError) as caught:
                    await made.fetch(Request(url="https://8.8.8.8/", timeout_s=LONG_S))
                assert caught.value.reason == reason
                assert "geheim" not in caught.value.message
                assert "\x1b" not in caught.value.message

    asyncio.run(work())


def test_plain_text_on_the_tls_port(site: Site) -> None:
    """A server that does not speak TLS where it should is given up."""

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\nspeak plainly\r\n" * 10)
        await writer.drain()

    async def work() -> None:
        async with serving(greet) as port, client() as made:
            assert (await outcome(made, f"https://127.0.0.1:{port}/", LONG_S))[0] == "tls"

    asyncio.run(work())


def test_nobody_listens() -> None:
    """A port where nobody listens is a failed connection."""

    async def work() -> None:
        async with serving(silence) as port:
            pass
        async with client() as made:
            assert (await outcome(made, f"http://127.0.0.1:{port}/", LONG_S))[0] == "connection"

    asyncio.run(work())


@pytest.mark.parametrize(
    "path", ["/odd/robots-bomb", "/flood/body", "/flood/chunks", "/odd/one-line", "/gzip-bomb"]
)
def test_a_body_can_be_cut(site: Site, path: str) -> None:
    """Where the beginning will do, such as of robots.txt, exactly so much of it is there."""

    async def work() -> None:
        async with client() as made:
            request = Request(
                url=site.url + path, loopback=True, timeout_s=LONG_S, max_body=500_000, cut=True
            )
            page = await made.fetch(request)
            assert len(page.body) == 500_000
            assert len(page.raw) <= 500_000
            small = Request(url=site.page(1), loopback=True, max_body=500_000, cut=True)
            assert (await made.fetch(small)).body == parcel(1)
            tight = Request(url=site.page(1), loopback=True, max_body=1000)
            with pytest.raises(FetchError) as caught:
                await made.fetch(tight)
            assert caught.value.reason == "too_large"

    asyncio.run(work())


def test_what_was_received_is_kept_as_it_was(site: Site) -> None:
    """Headers keep their order, case and repetition, and sloppy ones their content."""

    async def work() -> None:
        async with client() as made:
            page = await made.fetch(Request(url=f"{site.url}/bad-header/mixed", loopback=True))
            assert page.headers[:3] == (
                ("Content-Type", "text/html"),
                ("X-Owner", "Jörg"),
                ("X-Note", "one two"),
            )
            assert (page.status, page.reason, page.raw) == (200, "", parcel(1))
            page = await made.fetch(Request(url=f"{site.url}/redirect-user", loopback=True))
            assert (page.url, page.final_url) == (f"{site.url}/redirect-user", f"{site.url}/page/1")

    asyncio.run(work())
