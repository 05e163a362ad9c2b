"""The two sites that the other tests and the demonstration stand on do what they say."""

import gzip
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import NamedTuple
from urllib.parse import quote, urlsplit

import brotli
import pytest

from crawler import demo_site
from tests.support.site import BULGARIAN, GERMAN, ODD, PATHS, ROOT, SLOPPY, Site

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LIMIT_S = 20


class Answer(NamedTuple):
    """A response as a well-behaved client sees it."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


@pytest.fixture(scope="module")
def running() -> Iterator[Site]:
    """One hostile site for all tests of this module."""
    with Site() as site:
        yield site


@pytest.fixture
def site(running: Site) -> Site:
    """The hostile site as if just started."""
    running.reset()
    return running


def demonstration() -> subprocess.Popen[str]:
    """A demonstration site as a process of its own."""
    command = [sys.executable, "-m", "crawler.demo_site"]
    return subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.fixture
def demo() -> Iterator[str]:
    """The base URL of a fresh demonstration site, which must end by itself when its stdin does."""
    with demonstration() as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield process.stdout.readline().strip()
        process.stdin.close()
        assert process.wait(LIMIT_S) == 0


def get(base: str, path: str) -> Answer:
    """Fetch a path, strictly."""
    with closing(http.client.HTTPConnection(urlsplit(base).netloc, timeout=LIMIT_S)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())


def dial(base: str, path: str) -> socket.socket:
    """Ask for a path on a connection of its own and leave the answer unread."""
    address = urlsplit(base)
    assert address.hostname is not None
    connection = socket.create_connection((address.hostname, address.port or 80), timeout=LIMIT_S)
    connection.sendall(
        f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n\r\n".encode()
    )
    return connection


def read(connection: socket.socket, limit: int = 10**9) -> bytes:
    """What comes until the end of the connection, or until so many bytes are there."""
    data = b""
    while len(data) < limit and (piece := connection.recv(65536)):
        data += piece
    return data


def wire(base: str, path: str, limit: int = 10**9) -> bytes:
    """What a path puts on the wire."""
    with dial(base, path) as connection:
        return read(connection, limit)


def wait_for(condition: Callable[[], bool]) -> None:
    """Ask again until it is so; a promise that is not kept ends by pytest's time limit."""
    while not condition():
        pass


def page(site: Site) -> bytes:
    """The body of page 1, which most paths deliver in their own way."""
    return get(site.url, "/page/1").body


def test_page(site: Site) -> None:
    """A normal page is a parcel of some 4 KB and the same each time."""
    answer = get(site.url, "/page/42")
    text = answer.body.decode()

    assert answer.status == 200
    assert "<h1>Parcel 42</h1>" in text
    assert all(f"<th>{name}</th>" in text for name in ("Owner", "Address", "Value", "Acres"))
    assert 'type="application/ld+json"' in text
    assert 'href="/page/43"' in text
    assert 3500 < len(answer.body) < 4500
    assert get(site.url, "/page/42").body == answer.body


def test_every_path_is_described(site: Site) -> None:
    """`/_paths` lists all paths, and an unknown one is 404."""
    assert site.ask("/_paths") == PATHS
    assert get(site.url, "/nowhere").status == 404
    assert get(site.url, "/page/none").status == 400


def test_hits(site: Site) -> None:
    """Requests are counted by path and query, those that steer the site are not, and a reset
    forgets them."""
    get(site.url, "/page/1")
    get(site.url, "/page/1")
    get(site.url, site.page(2, latency_s=0.01).removeprefix(site.url))

    assert site.hits() == {"/page/1": 2, "/page/2?latency=0.01": 1}
    site.reset()
    assert site.hits() == {}


def test_hold_and_peak(site: Site) -> None:
    """Held requests hang, together, until they are released."""
    with dial(site.url, "/hold/a") as one, dial(site.url, "/hold/b") as other:
        wait_for(lambda: site.peak() == 2)
        site.release()

        assert read(one).startswith(b"HTTP/1.1 200")
        assert read(other).startswith(b"HTTP/1.1 200")


def test_abandoned_requests_are_not_served(site: Site) -> None:
    """A client that hangs up frees its place at once."""
    with dial(site.url, "/hold/a"):
        wait_for(lambda: site.ask("/_stats")["active"] == 1)

    wait_for(lambda: site.ask("/_stats")["active"] == 0)


def test_keep_alive(site: Site) -> None:
    """One connection serves many requests."""
    with closing(
        http.client.HTTPConnection(urlsplit(site.url).netloc, timeout=LIMIT_S)
    ) as connection:
        connection.connect()
        first = connection.sock
        for n in range(3):
            connection.request("GET", f"/page/{n}?latency=0.001")
            assert f"Parcel {n}".encode() in connection.getresponse().read()

        assert connection.sock is first


def test_site_ends() -> None:
    """Leaving the context ends the process, even with a request in flight."""
    with Site() as site:
        hanging = dial(site.url, "/hold/a")
        wait_for(lambda: site.peak() == 1)

    with hanging, pytest.raises(ConnectionRefusedError):
        dial(site.url, "/page/1")


@pytest.mark.parametrize("code", [200, 404, 429, 500, 599])
def test_status(site: Site, code: int) -> None:
    """Any status can be had, with a small body."""
    answer = get(site.url, f"/status/{code}")

    assert answer.status == code
    assert f"Status {code}".encode() in answer.body


def test_status_without_body(site: Site) -> None:
    """204 has no body and no length."""
    assert wire(site.url, "/status/204") == b"HTTP/1.1 204 No Content\r\n\r\n"


def test_flaky(site: Site) -> None:
    """Each name fails as often as it says and then works."""
    assert [get(site.url, "/flaky/2/a").status for _ in range(4)] == [503, 503, 200, 200]
    assert get(site.url, "/flaky/2/b").status == 503


def test_retry_after(site: Site) -> None:
    """Retry-After is what the path says, for ever or for some times."""
    assert get(site.url, "/retry-after/7").headers["Retry-After"] == "7"
    assert get(site.url, "/retry-after/Fri%2C%2001%20Jan").headers["Retry-After"] == "Fri, 01 Jan"
    assert [get(site.url, "/retry-after/7?times=1&status=503").status for _ in range(2)] == [
        503,
        200,
    ]


def test_slow(site: Site) -> None:
    """A slow page comes in the end."""
    assert get(site.url, "/slow/0.05").body == page(site)


def test_redirects(site: Site) -> None:
    """Redirects lead to the page, round in a circle, or where the query says."""
    assert get(site.url, "/redirect/2").headers["Location"] == "/redirect/1"
    assert get(site.url, "/redirect/1").headers["Location"] == "/page/1"
    assert get(site.url, "/redirect-loop").headers["Location"] == "/redirect-loop"
    answer = get(
        site.url, f"/redirect-to?u={quote('http://10.0.0.1/?a=1&b=2', safe='')}&status=307"
    )
    assert (answer.status, answer.headers["Location"]) == (307, "http://10.0.0.1/?a=1&b=2")


def test_drips(site: Site) -> None:
    """Body or headers come byte by byte and without an end."""
    assert wire(site.url, "/drip", limit=80).endswith(b"\r\n\r\naa")
    assert wire(site.url, "/drip-headers", limit=30).endswith(b"X-Endless: aa")


def test_truncated(site: Site) -> None:
    """Half of the announced body comes, then the connection ends."""
    with pytest.raises(http.client.IncompleteRead) as error:
        get(site.url, "/truncated")

    assert page(site).startswith(error.value.partial)
    assert error.value.partial


def test_reset(site: Site) -> None:
    """The connection is reset in the middle of the body."""
    with pytest.raises(ConnectionResetError):
        wire(site.url, "/reset")


def test_no_answer(site: Site) -> None:
    """The connection ends without a byte, or with bytes that are no HTTP."""
    assert wire(site.url, "/close") == b""
    with pytest.raises(http.client.BadStatusLine):
        get(site.url, "/http09")


def test_lengths(site: Site) -> None:
    """The body has no length, none at all, or more than was announced."""
    assert wire(site.url, "/no-length").partition(b"\r\n\r\n")[2] == page(site)
    assert get(site.url, "/empty").body == b""
    assert wire(site.url, "/lying-length-short").partition(b"\r\n\r\n")[2] == page(site)
    assert len(get(site.url, "/lying-length-short").body) == len(page(site)) // 2


def test_chunks(site: Site) -> None:
    """Chunks are right, or broken after the first."""
    assert get(site.url, "/chunked").body == page(site)
    with pytest.raises(http.client.IncompleteRead):
        get(site.url, "/chunked-broken")


@pytest.mark.parametrize(
    ("path", "coding", "decode"),
    [
        ("/gzip", "gzip", gzip.decompress),
        ("/deflate", "deflate", zlib.decompress),
        ("/deflate-raw", "deflate", lambda body: zlib.decompress(body, wbits=-15)),
        ("/br", "br", brotli.decompress),
        ("/zstd", "zstd", zstd.decompress),
        ("/gzip-gzip", "gzip, gzip", lambda body: gzip.decompress(gzip.decompress(body))),
        ("/bad-gzip", "gzip", bytes),
    ],
)
def test_codings(site: Site, path: str, coding: str, decode: Callable[[bytes], bytes]) -> None:
    """Each content coding is declared, and decodes to the page."""
    answer = get(site.url, path)

    assert answer.headers["Content-Encoding"] == coding
    assert decode(answer.body) == page(site)


def test_truncated_gzip(site: Site) -> None:
    """The response is whole, what is in it is not."""
    with pytest.raises(EOFError):
        gzip.decompress(get(site.url, "/gzip-truncated").body)


@pytest.mark.parametrize(
    ("path", "most", "decode"),
    [
        ("/gzip-bomb", 400_000, gzip.decompress),
        ("/deflate-bomb", 400_000, zlib.decompress),
        ("/br-bomb", 1_024, brotli.decompress),
        ("/zstd-bomb", 20_000, zstd.decompress),
    ],
)
def test_bombs(site: Site, path: str, most: int, decode: Callable[[bytes], bytes]) -> None:
    """A bomb is small on the wire and hundreds of megabytes behind it."""
    body = get(site.url, path).body

    assert len(body) < most
    assert len(decode(body)) > 200_000_000


@pytest.mark.parametrize("charset", ["utf-8", "windows-1251", "koi8-r", "iso-8859-1", "utf-16"])
def test_charsets(site: Site, charset: str) -> None:
    """Text is in the charset that the header names; what does not fit is a character reference."""
    answer = get(site.url, f"/charset/{charset}")

    assert answer.headers["Content-Type"] == f"text/html; charset={charset}"
    assert BULGARIAN.encode(charset, errors="xmlcharrefreplace")[2:] in answer.body
    assert GERMAN.encode(charset, errors="xmlcharrefreplace")[2:] in answer.body


def test_charset_elsewhere(site: Site) -> None:
    """The charset can be named in a meta element, nowhere, or by a byte order mark against the
    header."""
    in_meta, nowhere = get(site.url, "/charset-meta/koi8-r"), get(site.url, "/charset-none/koi8-r")
    marked = get(site.url, "/bom")

    assert in_meta.headers["Content-Type"] == nowhere.headers["Content-Type"] == "text/html"
    assert b'<meta charset="koi8-r">' in in_meta.body
    assert b"koi8-r" not in nowhere.body
    assert BULGARIAN.encode("koi8-r") in nowhere.body
    assert marked.headers["Content-Type"] == "text/html; charset=windows-1252"
    assert marked.body.startswith(b"\xef\xbb\xbf")
    assert get(site.url, "/charset/klingon").status == 400


@pytest.mark.parametrize(
    ("path", "kind", "start"),
    [
        ("/normal", "text/html; charset=utf-8", b"<!doctype html>"),
        ("/text", "text/plain; charset=utf-8", b"Nothing but text"),
        ("/json", "application/json", b'{"parcel": 1'),
        ("/image", "image/png", b"\x89PNG\r\n\x1a\n"),
        ("/pdf", "application/pdf", b"%PDF-1.4"),
    ],
)
def test_kinds(site: Site, path: str, kind: str, start: bytes) -> None:
    """Each kind of content is declared as what it is."""
    answer = get(site.url, path)

    assert answer.headers["Content-Type"] == kind
    assert answer.body.startswith(start)


def test_pages_that_hurt_parsers(site: Site) -> None:
    """Deep pages are as deep as asked for."""
    nested = get(site.url, "/nested/1000").body

    assert nested.count(b"<div>") == nested.count(b"</div>") == 1000


def test_headers_that_hurt_clients(site: Site) -> None:
    """One header is huge, or cookies are many."""
    assert len(wire(site.url, "/huge-headers").partition(b"\r\n\r\n")[0]) > 100_000
    assert len(get(site.url, "/huge-headers/9000").headers["X-Huge"]) == 9000
    assert wire(site.url, "/many-cookies").count(b"\r\nSet-Cookie: ") == 200
    assert len(get(site.url, "/many-cookies/30").headers.get_all("Set-Cookie", [])) == 30


@pytest.mark.parametrize("kind", ["", *SLOPPY])
def test_bad_headers(site: Site, kind: str) -> None:
    """Sloppy headers stand before a good page."""
    answer = wire(site.url, f"/bad-header/{kind}")

    assert all(line in answer for line in SLOPPY[kind or "mixed"])
    assert answer.endswith(page(site))


@pytest.mark.parametrize("path", [path for path in ODD if "bomb" not in path])
def test_odd_answers(site: Site, path: str) -> None:
    """Each misbehaviour of the table puts its bytes on the wire, and ends the connection where it
    says so."""
    assert wire(site.url, path) == ODD[path].make()


def test_floods_and_stalls(site: Site) -> None:
    """A flood goes on for megabytes, a stall says its beginning and then nothing, a drip goes
    on."""
    assert len(wire(site.url, "/flood/header", limit=5_000_000)) >= 5_000_000
    assert wire(site.url, "/stall/in-head", limit=40).endswith(b"Content-Type: text/html\r\n")
    assert wire(site.url, "/drip-of/hints", limit=60).count(b"HTTP/1.1 103") == 3


def test_hang_ups(site: Site) -> None:
    """The connection is reset, or ends on one side."""
    with pytest.raises(ConnectionResetError):
        wire(site.url, "/hang-up/reset")
    assert wire(site.url, "/hang-up/half") == b""
    assert wire(site.url, "/half-close").endswith(page(site))


def test_requests_are_shown(site: Site) -> None:
    """The request comes back as it was, cookies are set as told, and redirects grow."""
    assert get(site.url, "/echo?a=1").body.startswith(b"GET /echo?a=1 HTTP/1.1\r\nHost: ")
    answer = get(site.url, "/set-cookie?c=a%3D1&c=b%3D2&to=/echo")
    assert answer.headers.get_all("Set-Cookie") == ["a=1", "b=2"]
    assert (answer.status, answer.headers["Location"]) == (302, "/echo")
    assert get(site.url, "/redirect-grow?n=4").headers["Location"] == "/redirect-grow?n=5"
    assert "user:geheim@" in get(site.url, "/redirect-user").headers["Location"]


def statuses(base: str, numbers: Iterable[int]) -> list[int]:
    """The statuses of some of the demonstration's parcels."""
    return [get(base, f"/parcel/{demo_site.parcel(n).parcel_id}").status for n in numbers]


def test_demo_rows(demo: str) -> None:
    """The import file names 300 different parcels with what an import needs."""
    rows = demo_site.urls(demo)

    assert len({row["url"] for row in rows}) == len({row["parcel_id"] for row in rows}) == 300
    assert all(1 <= int(row["priority"]) <= 9 and row["county"] for row in rows)


def test_demo_index(demo: str) -> None:
    """The index links to every parcel."""
    links = re.findall(r'href="([^"]+)"', get(demo, "/").body.decode())

    assert [demo + link for link in links] == [row["url"] for row in demo_site.urls(demo)]


def test_demo_parcel(demo: str) -> None:
    """A parcel's page shows what the register knows, also as JSON-LD."""
    parcel = demo_site.parcel(1)
    text = get(demo, f"/parcel/{parcel.parcel_id}").body.decode()
    data = json.loads(text.partition('ld+json">')[2].partition("</script>")[0])

    facts = (
        parcel.owner,
        parcel.address,
        parcel.county,
        f"${parcel.value:,}",
        str(parcel.acres),
        parcel.description,
    )
    assert all(fact in text for fact in facts)
    assert all(f"<th>{year}</th><td>${price:,}</td>" in text for year, price, _ in parcel.sales)
    assert data["identifier"] == parcel.parcel_id


def test_demo_failures(demo: str) -> None:
    """Broken parcels stay broken, gone ones gone, and dropped ones drop."""
    assert statuses(demo, demo_site.BROKEN) == [500] * 3
    assert statuses(demo, demo_site.BROKEN) == [500] * 3
    assert statuses(demo, demo_site.GONE) == [404] * 2
    with pytest.raises(http.client.RemoteDisconnected):
        statuses(demo, demo_site.DROPPED)


def test_demo_odd_content(demo: str) -> None:
    """One parcel is a plan, one a photo, one Cyrillic."""
    plan, photo, cyrillic = (
        get(demo, f"/parcel/{demo_site.parcel(n).parcel_id}")
        for n in (demo_site.PLAN, demo_site.PHOTO, demo_site.CYRILLIC)
    )

    assert (plan.headers["Content-Type"], plan.body[:5]) == ("application/pdf", b"%PDF-")
    assert (photo.headers["Content-Type"], photo.body[:4]) == ("image/png", b"\x89PNG")
    assert cyrillic.headers["Content-Type"] == "text/html; charset=windows-1251"
    assert demo_site.parcel(demo_site.CYRILLIC).owner in cyrillic.body.decode("cp1251")


def attempt(url: str) -> int:
    """The status of one fetch; 0 for a connection that ends without an answer."""
    base, slash, path = url.partition("/parcel")
    try:
        return get(base, slash + path).status
    except http.client.RemoteDisconnected:
        return 0


def test_demo_outcome(demo: str) -> None:
    """Three attempts at each parcel give exactly what the demonstration promises, and some need the
    second."""
    urls = [row["url"] for row in demo_site.urls(demo)]

    with ThreadPoolExecutor(16) as pool:
        first = dict(zip(urls, pool.map(attempt, urls), strict=True))
        second = dict(zip(urls, pool.map(attempt, urls), strict=True))
        third = dict(zip(urls, pool.map(attempt, urls), strict=True))

    completed = sum(200 in (first[url], second[url], third[url]) for url in urls)
    assert {"completed": completed, "failed": len(urls) - completed} == demo_site.EXPECTED
    assert Counter(first.values()) == {200: 279, 503: 15, 500: 3, 404: 2, 0: 1}
    assert Counter(second.values()) == Counter(third.values()) == {200: 294, 500: 3, 404: 2, 0: 1}


def test_demo_terminates() -> None:
    """SIGTERM ends the demonstration's site, too."""
    with demonstration() as process:
        process.terminate()

        assert process.wait(LIMIT_S) == -signal.SIGTERM
