"""A hostile site on loopback, as a process of its own, and the `Site` by which tests hold it.

The server speaks HTTP by hand, because no library would let it break the protocol; `GET /_paths`
lists what it can do.
"""

import asyncio
import gzip
import json
import signal
import socket
import struct
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, unquote, urlsplit

import brotli

from crawler.demo_site import PDF, PNG

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ROOT = Path(__file__).resolve().parents[2]
STOP_S = 5.0
DRIP_S = 0.1
BOMB_PIECE, BOMB_PIECES = b" " * 2**20, 300
HTML = "text/html; charset=utf-8"
PHRASES = {int(status): status.phrase for status in HTTPStatus}

OWNERS = (
    "Nora Whitfield",
    "Otto Lindgren",
    "Priya Raman",
    "Quentin Marsh",
    "Rosa Delgado",
    "Stefan Ivanov",
)
STREETS = ("Harbor Road", "Juniper Way", "Kiln Street", "Lockhouse Lane", "Meadow Drive")
REMARK = (
    "The boundaries of this parcel were surveyed when the county drew its first plats and have "
    "been confirmed at each transfer since. The assessment rests on the sales of comparable "
    "parcels in the same township, on the state of the buildings at the last inspection, and on "
    "the use that the owner has declared. Objections can be filed with the assessor until the last "
    "working day of April; they must name the parcel, the year and the value that is held to be "
    "right. A copy of the deed is kept by the recorder, together with the easements for water, "
    "power and access. "
) * 3
BULGARIAN = (
    "Поземлен имот в землището на Самоков, собственик Елена Димитрова, площ дванадесет декара"
)
GERMAN = "Grundstück an der Königstraße, Eigentümer Jörg Müller, Größe zwölf Ar"


class Site:
    """The hostile site while a test runs: started on a free port, stopped at the end."""

    url: str

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.support.site"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            self._process.communicate()
            raise RuntimeError(
                f"the test site ended with {self._process.returncode} before it served; see its "
                "stderr"
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._process.communicate()

    def page(self, n: int, latency_s: float = 0) -> str:
        """The URL of normal page n."""
        return f"{self.url}/page/{n}" + (f"?latency={latency_s}" if latency_s else "")

    def hits(self) -> dict[str, int]:
        """How often each path, with its query, has been asked for; robots.txt left out."""
        hits: dict[str, int] = self.ask("/_stats")["hits"]
        return {path: count for path, count in hits.items() if path != "/robots.txt"}

    def peak(self) -> int:
        """The most page requests that were being served at one time."""
        peak: int = self.ask("/_stats")["peak"]
        return peak

    def reset(self) -> None:
        """Forget all requests so far; /flaky fails and /hold hangs again."""
        self.ask("/_reset")

    def release(self) -> None:
        """Let all /hold requests finish, also those still to come before the next reset."""
        self.ask("/_release")

    def warm(self) -> None:
        """Have everything built that takes a while to build, so that no test waits for it."""
        self.ask("/_warm")

    def ask(self, path: str) -> Any:
        """The JSON behind one of the paths that steer the site."""
        with closing(HTTPConnection(urlsplit(self.url).netloc, timeout=60)) as connection:
            connection.request("GET", path)
            return json.load(connection.getresponse())


@dataclass
class Books:
    """What the server remembers between requests."""

    hits: Counter[str] = field(default_factory=Counter)
    tries: Counter[str] = field(default_factory=Counter)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    active: int = 0
    peak: int = 0

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Count a page request as being served."""
        self.active += 1
        self.peak = max(self.peak, self.active)
        try:
            yield
        finally:
            self.active -= 1

    def reset(self) -> None:
        """Begin anew; requests being served stay counted as such."""
        self.hits.clear()
        self.tries.clear()
        self.released.clear()
        self.peak = self.active

    def first(self, times: int, what: str) -> bool:
        """Whether this is among the first so many requests for something."""
        self.tries[what] += 1
        return self.tries[what] <= times


class Call(NamedTuple):
    """One request: `argument` is the path behind its first part."""

    target: str
    argument: str
    query: str
    request: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    books: Books

    def option(self, name: str, default: str) -> str:
        """A parameter of the query."""
        return parse_qs(self.query).get(name, [default])[0] if self.query else default

    async def wait(self, event: Awaitable[object]) -> None:
        """Wait for something, unless the client hangs up first: an abandoned request must not count
        in `peak`."""
        waiting = asyncio.ensure_future(event)
        hung_up = asyncio.ensure_future(
            self.reader.read(1)
        )  # nothing else can come: crawlers do not pipeline
        try:
            await asyncio.wait({waiting, hung_up}, return_when=asyncio.FIRST_COMPLETED)
            if hung_up.done():
                raise ConnectionResetError(hung_up.exception())
        finally:
            waiting.cancel()
            hung_up.cancel()
            await asyncio.wait(
                {waiting, hung_up}
            )  # or the reader would still be taken when the next request is read

    async def sleep(self, seconds: float) -> None:
        """Wait for some time."""
        if seconds > 0:
            await self.wait(asyncio.sleep(seconds))

    def send(self, data: bytes) -> None:
        """Put bytes on the wire as they are."""
        self.writer.write(data)


Handler = Callable[[Call], Awaitable[bytes | None]]

PATHS: dict[str, str] = {}
"""What each path does, by the pattern of its URL."""

HANDLERS: dict[str, Handler] = {}
"""Who answers, by the first part of the path: a whole response, or None to close the connection."""


def serves(pattern: str, description: str) -> Callable[[Handler], Handler]:
    """Give a handler its path."""

    def register(handler: Handler) -> Handler:
        PATHS[pattern] = description
        HANDLERS[_name(pattern)] = handler
        return handler

    return register


def _name(path: str) -> str:
    return path.partition("?")[0].split("/")[1]


def head(*headers: str, status: int = 200) -> bytes:
    """A status line and headers, as they are given."""
    return "\r\n".join(
        (f"HTTP/1.1 {status} {PHRASES.get(status, 'Unheard Of')}", *headers, "\r\n")
    ).encode("latin-1")


def response(body: bytes, *headers: str, status: int = 200, kind: str = HTML) -> bytes:
    """A whole and correct response."""
    return (
        head(f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers, status=status)
        + body
    )


def document(title: str, content: str, meta: str = "") -> str:
    """A small HTML document."""
    return (
        f"<!doctype html>\n<html><head>{meta}<title>{title}</title></head>\n<body>{content}</body>"
        "</html>\n"
    )


@lru_cache(maxsize=10_000)
def parcel(n: int) -> bytes:
    """The HTML of normal page n, some 4 KB and always the same."""
    owner, street = OWNERS[n % len(OWNERS)], STREETS[n % len(STREETS)]
    value, acres = 40_000 + n * 7919 % 900_000, (25 + n * 31 % 2000) / 100
    address = f"{100 + n * 13 % 9000} {street}, Millbrook"
    facts = {"Owner": owner, "Address": address, "Value": f"${value:,}", "Acres": f"{acres:.2f}"}
    rows = "\n".join(f"<tr><th>{name}</th><td>{fact}</td></tr>" for name, fact in facts.items())
    data = {
        "@context": "https://schema.org",
        "@type": "Place",
        "name": f"Parcel {n}",
        "address": address,
    }
    links = "\n".join(
        f'<li><a href="/page/{n + step}">Parcel {n + step}</a></li>' for step in range(1, 11)
    )
    history = "\n".join(
        f"<tr><td>{year}</td><td>${value * year // 2030:,}</td></tr>" for year in range(2000, 2025)
    )
    content = f"""
<h1>Parcel {n}</h1>
<script type="application/ld+json">{json.dumps(data)}</script>
<table id="facts">\n{rows}\n</table>
<p>{REMARK}</p>
<h2>Assessments</h2>
<table id="assessments">\n<tr><th>Year</th><th>Value</th></tr>\n{history}\n</table>
<h2>Neighbours</h2>
<ul>\n{links}\n</ul>
"""
    return document(f"Parcel {n} - Millbrook County", content, '<meta charset="utf-8">').encode()


@serves("/page/<n>?latency=<s>", "Normal page n, after a wait if one is asked for")
async def page(call: Call) -> bytes:
    n = int(call.argument)
    with call.books.serving():
        await call.sleep(float(call.option("latency", "0")))
    return response(parcel(n))


@serves("/shell/<n>", "A page that is empty until its script has fetched what it shows")
async def shell(call: Call) -> bytes:
    n = int(call.argument)
    script = f"""<script>fetch('/shown/{n}').then(answer => answer.text()).then(shown => {{
        document.getElementById('app').innerHTML = shown;
        document.title = 'Parcel {n}';
    }});</script>"""
    wants = "<noscript>You need to enable JavaScript to run this app.</noscript>"
    body = f'{wants}<div id="app"></div>{script}'
    return response(document("Loading", body).encode(), 'ETag: "shell"')


@serves("/shown/<n>", "What the script of /shell/<n> shows")
async def shown(call: Call) -> bytes:
    return response(shown_by_script(int(call.argument)).encode())


def shown_by_script(n: int) -> str:
    """What the script of a shell shows."""
    return f"<h1>Parcel {n}</h1><p>{REMARK} {REMARK}</p><p id=owner>{OWNERS[n % 3]}</p>"


@serves("/slow/<s>", "A page after so many seconds")
async def slow(call: Call) -> bytes:
    with call.books.serving():
        await call.sleep(float(call.argument))
    return response(parcel(1))


@serves("/hold/<name>", "A page as soon as the test releases it")
async def hold(call: Call) -> bytes:
    with call.books.serving():
        await call.wait(call.books.released.wait())
    return response(parcel(1))


@serves("/flaky/<k>/<name>", "503 for the first k requests of that name, then a page")
async def flaky(call: Call) -> bytes:
    times = int(call.argument.partition("/")[0])
    with call.books.serving():
        if call.books.first(times, call.target):
            return response(b"busy\n", status=503)
        return response(parcel(1))


@serves(
    "/retry-after/<value>?times=<k>&status=<code>",
    "429, or that status, with Retry-After; after k times a page",
)
async def retry_after(call: Call) -> bytes:
    times = call.option("times", "")
    if times and not call.books.first(int(times), call.target):
        return response(parcel(1))
    return response(
        b"later\n",
        f"Retry-After: {unquote(call.argument)}",
        status=int(call.option("status", "429")),
    )


@serves("/captcha/<name>", "A page that asks for a captcha, whatever comes")
async def captcha(call: Call) -> bytes:
    body = document(
        "Just a moment...", "<h1>Are you a human?</h1><script>window._cf_chl_opt = {}</script>"
    )
    return response(body.encode(), "cf-mitigated: challenge", status=403)


@serves("/status/<code>", "That status with a small body; 204 and 304 have none")
async def status(call: Call) -> bytes:
    code = int(call.argument)
    if code in (204, 304):
        return head(status=code)
    return response(document(f"Status {code}", f"<h1>Status {code}</h1>").encode(), status=code)


@serves("/redirect/<n>", "n redirects, one after the other, that end at /page/1")
async def redirect(call: Call) -> bytes:
    left = int(call.argument) - 1
    return moved(f"/redirect/{left}" if left > 0 else "/page/1")


@serves("/redirect-loop", "A redirect to itself")
async def redirect_loop(call: Call) -> bytes:
    return moved(call.target)


@serves("/redirect-to?u=<url>&status=<code>", "A redirect to that URL, 302 or that status")
async def redirect_to(call: Call) -> bytes:
    return moved(call.option("u", "/page/1"), int(call.option("status", "302")))


def moved(location: str, status: int = 302) -> bytes:
    """A redirect."""
    return response(b"elsewhere\n", f"Location: {location}", status=status)


@serves("/drip", "Headers at once, then one byte of the body every 0.1 s for ever")
async def drip(call: Call) -> None:
    call.send(head(f"Content-Type: {HTML}", "Connection: close"))
    while True:
        call.send(b"a")
        await call.sleep(DRIP_S)


@serves("/drip-headers", "A status line at once, then one byte of a header every 0.1 s for ever")
async def drip_headers(call: Call) -> None:
    call.send(b"HTTP/1.1 200 OK\r\nX-Endless: ")
    while True:
        call.send(b"a")
        await call.sleep(DRIP_S)


@serves("/truncated", "Half of the announced body, then the end of the connection")
async def truncated(call: Call) -> None:
    whole = response(parcel(1))
    call.send(whole[: -len(parcel(1)) // 2])


@serves("/reset", "Half of the announced body, then a TCP reset")
async def reset(call: Call) -> None:
    await truncated(call)
    # A linger time of zero makes the kernel send RST, where a normal close sends FIN.
    call.writer.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )
    call.writer.transport.abort()


@serves("/close", "The end of the connection instead of an answer")
async def close(_: Call) -> None:
    return None


@serves("/no-length", "A page without Content-Length that ends with the connection")
async def no_length(call: Call) -> None:
    call.send(head(f"Content-Type: {HTML}", "Connection: close") + parcel(1))


@serves("/http09", "Bytes that are no HTTP, then the end of the connection")
async def http09(call: Call) -> None:
    call.send(
        b"\x00\x01 hello, this is no status line\r\n\r\n<html><body>old times</body></html>\n"
    )


@serves(
    "/chunked-broken",
    "A good chunk, then one whose size is no number, then the end of the connection",
)
async def chunked_broken(call: Call) -> None:
    call.send(CHUNKED_HEAD + chunk(parcel(1)) + b"size?\r\nlost\r\n")


CHUNKED_HEAD = head(f"Content-Type: {HTML}", "Transfer-Encoding: chunked")


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


@serves("/charset/<name>", "Bulgarian and German in that charset, declared in the header")
async def charset(call: Call) -> bytes:
    return response(foreign(call.argument), kind=f"text/html; charset={call.argument}")


@serves(
    "/charset-meta/<name>", "Bulgarian and German in that charset, declared in a meta element only"
)
async def charset_meta(call: Call) -> bytes:
    return response(foreign(call.argument, f'<meta charset="{call.argument}">'), kind="text/html")


@serves("/charset-none/<name>", "Bulgarian and German in that charset, declared nowhere")
async def charset_none(call: Call) -> bytes:
    return response(foreign(call.argument), kind="text/html")


def foreign(charset: str, meta: str = "") -> bytes:
    """A page in two languages; what the charset cannot express becomes a character reference."""
    content = f"<h1>Имот</h1>\n<p>{BULGARIAN}</p>\n<p>{GERMAN}</p>"
    return document("Имот", content, meta).encode(charset, errors="xmlcharrefreplace")


SUSPECT_DEPTH = 20_000
"""Of a /nested page that is parsed in steps. A deeper one costs so much CPU time that a page's
budget may end before a failpoint in the parser does."""


@serves("/nested/<n>", "A page of n nested divs with a word in the innermost")
async def nested(call: Call) -> bytes:
    n = int(call.argument)
    return response(document("Nested", f"{'<div>' * n}core{'</div>' * n}").encode())


@serves("/large/<n>", "Normal page n with four megabytes of blanks before its end")
async def large(call: Call) -> bytes:
    return response(parcel(int(call.argument)) + b" " * 4_000_000)


@serves("/huge-headers/<n>", "A page with one header of n bytes, 100,000 if n is left out")
async def huge_headers(call: Call) -> bytes:
    return response(parcel(1), "X-Huge: " + "h" * int(call.argument or 100_000))


@serves("/many-cookies/<n>", "A page that sets n cookies, 200 if n is left out")
async def many_cookies(call: Call) -> bytes:
    cookies = (f"Set-Cookie: crumb{i}={'c' * 40}; Path=/" for i in range(int(call.argument or 200)))
    return response(parcel(1), *cookies)


@serves(
    "/bad-header/<kind>",
    "A page with headers sloppy in that way, or in several, as browsers accept them",
)
async def bad_header(call: Call) -> bytes:
    lines = SLOPPY[call.argument or "mixed"]
    end = b"\n" if call.argument in ("", "bare-lf") else b"\r\n"
    return end.join((*lines, b"Content-Length: %d" % len(parcel(1)), b"", parcel(1)))


SLOPPY = {
    "mixed": (
        b"HTTP/1.1 200",
        b"Content-Type: text/html",
        b"X-Owner: J\xf6rg",
        b"X-Note: one",
        b"  two",
    ),
    "bare-lf": (b"HTTP/1.1 200 OK", b"Content-Type: text/html"),
    "no-reason": (b"HTTP/1.1 200", b"Content-Type: text/html"),
    "folded": (b"HTTP/1.1 200 OK", b"X-Note: one", b"  two"),
    "raw-bytes": (b"HTTP/1.1 200 OK", b"X-Owner: J\xf6rg"),
    "control": (b"HTTP/1.1 200 OK", b"X-Note: one\x01two"),
    "no-colon": (b"HTTP/1.1 200 OK", b"this line is no header"),
    "no-name": (b"HTTP/1.1 200 OK", b": a value of nothing"),
    "space-before-colon": (b"HTTP/1.1 200 OK", b"Content-Type : text/html"),
    "length-twice": (b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(parcel(1))),
}


def coded(coding: str, body: bytes) -> bytes:
    """A response whose body has that content coding."""
    return response(body, f"Content-Encoding: {coding}")


def raw_deflate(data: bytes) -> bytes:
    """Deflate without the zlib frame, as some servers send it."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def bomb(pack: Callable[[bytes], bytes], finish: Callable[[], bytes]) -> bytes:
    """Hundreds of megabytes of blanks, packed piece by piece so that the server itself stays
    small."""
    return b"".join([pack(BOMB_PIECE) for _ in range(BOMB_PIECES)]) + finish()


def zlib_bomb(wbits: int) -> bytes:
    """A bomb for gzip or deflate."""
    packer = zlib.compressobj(wbits=wbits)
    return bomb(packer.compress, packer.flush)


def unfinished(size: int) -> bytes:
    """The beginning of a gzip body: so much can be unpacked already, and its end is missing."""
    packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    return packer.compress(b" " * size) + packer.flush(zlib.Z_SYNC_FLUSH)


def br_bomb() -> bytes:
    """A bomb for brotli; a quality above 9 would take ten seconds."""
    packer = brotli.Compressor(quality=5, lgwin=24)
    return bomb(packer.process, packer.finish)


def zstd_bomb() -> bytes:
    """A bomb for zstd."""
    packer = zstd.ZstdCompressor()
    return bomb(packer.compress, packer.flush)


def zipped() -> bytes:
    """Page 1 in gzip."""
    return gzip.compress(parcel(1), mtime=0)


FIXED: dict[str, tuple[str, Callable[[], bytes]]] = {
    "/normal": ("A normal page", lambda: response(parcel(1))),
    "/text": (
        "Plain text",
        lambda: response(b"Nothing but text.\n", kind="text/plain; charset=utf-8"),
    ),
    "/json": (
        "JSON",
        lambda: response(b'{"parcel": 1, "owner": "Nora Whitfield"}\n', kind="application/json"),
    ),
    "/image": ("A tiny PNG", lambda: response(PNG, kind="image/png")),
    "/pdf": ("A PDF of one page", lambda: response(PDF, kind="application/pdf")),
    "/empty": ("200 with an empty body", lambda: response(b"")),
    "/latin-reason": (
        "503 with a reason phrase in Latin-1",
        lambda: b"HTTP/1.1 503 Vor\xfcbergehend\r\nContent-Length: 4\r\n\r\nwait",
    ),
    "/bom": (
        "UTF-8 with a byte order mark, under a header that says windows-1252",
        lambda: response(foreign("utf-8-sig"), kind="text/html; charset=windows-1252"),
    ),
    "/chunked": (
        "A page in two chunks",
        lambda: CHUNKED_HEAD + chunk(parcel(1)[:1000]) + chunk(parcel(1)[1000:]) + chunk(b""),
    ),
    "/lying-length-short": (
        "A page whose Content-Length is half of what follows, on a connection that stays open",
        lambda: head(f"Content-Type: {HTML}", f"Content-Length: {len(parcel(1)) // 2}") + parcel(1),
    ),
    "/gzip": ("A page in gzip", lambda: coded("gzip", zipped())),
    "/deflate": (
        "A page in deflate, with the zlib frame",
        lambda: coded("deflate", zlib.compress(parcel(1))),
    ),
    "/deflate-raw": (
        "A page in deflate, without a frame",
        lambda: coded("deflate", raw_deflate(parcel(1))),
    ),
    "/br": ("A page in brotli", lambda: coded("br", brotli.compress(parcel(1)))),
    "/zstd": ("A page in zstd", lambda: coded("zstd", zstd.compress(parcel(1)))),
    "/gzip-gzip": (
        "A page in gzip in gzip",
        lambda: coded("gzip, gzip", gzip.compress(zipped(), mtime=0)),
    ),
    "/bad-gzip": ("A page that claims to be gzip and is not", lambda: coded("gzip", parcel(1))),
    "/gzip-truncated": (
        "The first half of a page in gzip",
        lambda: coded("gzip", zipped()[: len(zipped()) // 2]),
    ),
    "/gzip-bomb": (
        "300 KB of gzip that become 300 MB",
        lambda: coded("gzip", zlib_bomb(16 + zlib.MAX_WBITS)),
    ),
    "/deflate-bomb": (
        "300 KB of deflate that become 300 MB",
        lambda: coded("deflate", zlib_bomb(zlib.MAX_WBITS)),
    ),
    "/br-bomb": ("Less than 1 KB of brotli that becomes 300 MB", lambda: coded("br", br_bomb())),
    "/zstd-bomb": ("10 KB of zstd that become 300 MB", lambda: coded("zstd", zstd_bomb())),
}
"""Answers that are always the same: what each is, and how it is made."""

PATHS.update({path: description for path, (description, _) in FIXED.items()})


@cache
def fixed(path: str) -> bytes:
    """An answer of the table, made when it is first asked for."""
    return FIXED[path][1]()


# Misbehaviour by the dozen. What a browser would still show is `ok`; Chromium was asked about each.

PAGE_LENGTH = f"Content-Length: {len(parcel(1))}"
TYPE = f"Content-Type: {HTML}"
FAKE = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nPOISON"


class Odd(NamedTuple):
    """A fixed misbehaviour: what it is, what a fetch of it comes to, its bytes, whether the
    connection ends then."""

    description: str
    outcome: str
    make: Callable[[], bytes]
    end: bool = False


def lines(*heads: bytes, body: bytes | None = None, end: bytes = b"\r\n") -> bytes:
    """A head of just these lines, and page 1 unless there is another body."""
    return end.join((*heads, b"", parcel(1) if body is None else body))


def titled(title: str) -> bytes:
    """Page 1 under another title."""
    return parcel(1).replace(b"<title>Parcel 1", b"<title>" + title.encode())


def chunks(*wire: bytes) -> bytes:
    """A chunked response whose chunks are written by hand, page 1 first."""
    return CHUNKED_HEAD + chunk(parcel(1)) + b"".join(wire)


def redirected(*headers: bytes) -> bytes:
    """A redirect with headers written by hand."""
    return lines(b"HTTP/1.1 302 Found", *headers, b"Content-Length: 0", body=b"")


def layered(layers: int, data: bytes) -> bytes:
    """Data in so many layers of gzip."""
    for _ in range(layers):
        data = gzip.compress(data, 6, mtime=0)
    return coded(", ".join(["gzip"] * layers), data)


OK = b"HTTP/1.1 200 OK"
LENGTH = PAGE_LENGTH.encode()
ODD: dict[str, Odd] = {
    # Heads
    "/odd/lower-case": Odd(
        "A status line in lower case", "ok", lambda: lines(b"http/1.1 200 ok", LENGTH)
    ),
    "/odd/slop": Odd(
        "Four stray bytes before the status line", "ok", lambda: b"\r\n\r\n" + lines(OK, LENGTH)
    ),
    "/odd/no-version": Odd(
        "A status line without a version", "ok", lambda: lines(b"HTTP 200 OK", LENGTH)
    ),
    "/odd/version-10": Odd(
        "HTTP/1.0 with a length, and the connection stays",
        "ok",
        lambda: lines(b"HTTP/1.0 200 OK", LENGTH),
    ),
    "/odd/version-2": Odd(
        "A status line that says HTTP/2.0", "ok", lambda: lines(b"HTTP/2.0 200 OK", LENGTH)
    ),
    "/odd/version-99": Odd(
        "A status line that says HTTP/99.99", "ok", lambda: lines(b"HTTP/99.99 200 OK", LENGTH)
    ),
    "/odd/many-blanks": Odd(
        "Many blanks in the status line", "ok", lambda: lines(b"HTTP/1.1    200    OK", LENGTH)
    ),
    "/odd/glued-reason": Odd(
        "A reason glued to its status", "ok", lambda: lines(b"HTTP/1.1 200OK", LENGTH)
    ),
    "/odd/lone-cr": Odd(
        "Header lines that end with CR alone",
        "ok",
        lambda: lines(OK, b"X-One: 1\rX-Two: 2", LENGTH),
    ),
    "/odd/fold-first": Odd(
        "A folded line with nothing to fold to", "ok", lambda: lines(OK, b"  stray", LENGTH)
    ),
    "/odd/tab-fold": Odd(
        "A header folded with a tab", "ok", lambda: lines(OK, b"X-Note: one", b"\ttwo", LENGTH)
    ),
    "/odd/bad-name": Odd(
        "Header names with signs that no name may have",
        "ok",
        lambda: lines(OK, b"X (note): 1", b'"X": 2', LENGTH),
    ),
    "/odd/utf8-header": Odd(
        "A header in UTF-8", "ok", lambda: lines(OK, "X-Owner: Елена".encode(), LENGTH)
    ),
    "/odd/escapes": Odd(
        "Terminal escapes in reason, headers and title",
        "ok",
        lambda: lines(
            b"HTTP/1.1 200 \x1b[31mOK\x07",
            b"X-\x1b: 1",
            b"X-Note: \x1b]0;owned\x07",
            b"Content-Length: %d" % len(titled("\x1b[2J")),
            body=titled("\x1b[2J"),
        ),
    ),
    "/odd/1000-headers": Odd(
        "A thousand small headers",
        "ok",
        lambda: lines(OK, *(b"X-%d: %d" % (i, i) for i in range(1000)), LENGTH),
    ),
    "/odd/large-headers": Odd(
        "200 KB of headers, which is legal",
        "ok",
        lambda: lines(OK, *(b"X-%d: %s" % (i, b"h" * 2000) for i in range(100)), LENGTH),
    ),
    "/odd/no-headers": Odd(
        "A status line, no header at all, and a page", "ok", lambda: lines(OK), end=True
    ),
    "/odd/zero-byte": Odd(
        "A zero byte in a header", "bad_response", lambda: lines(OK, b"X-Note: a\0b", LENGTH)
    ),
    "/odd/half-head": Odd(
        "The connection ends within the head",
        "truncated",
        lambda: b"HTTP/1.1 200 OK\r\nContent-Ty",
        end=True,
    ),
    "/odd/reason-20000": Odd(
        "404 with a reason phrase of 20,000 characters, some of them for a terminal",
        "ok",
        lambda: lines(b"HTTP/1.1 404 \x1b[31m" + b"gone " * 3999, LENGTH),
    ),
    "/odd/status-0": Odd("Status 0", "bad_response", lambda: lines(b"HTTP/1.1 0 Zero", LENGTH)),
    "/odd/status-20": Odd("Status 20", "bad_response", lambda: lines(b"HTTP/1.1 20 Short", LENGTH)),
    "/odd/status-999": Odd("Status 999", "ok", lambda: lines(b"HTTP/1.1 999 Denied", LENGTH)),
    "/odd/status-1000": Odd(
        "Status 1000", "bad_response", lambda: lines(b"HTTP/1.1 1000 Long", LENGTH)
    ),
    "/odd/status-negative": Odd("Status -200", "ok", lambda: lines(b"HTTP/1.1 -200 Minus", LENGTH)),
    "/odd/status-text": Odd(
        "A status in letters", "ok", lambda: lines(b"HTTP/1.1 OK fine", LENGTH)
    ),
    "/odd/blank-lines": Odd(
        "Nothing but blank lines", "bad_response", lambda: b"\r\n" * 100, end=True
    ),
    "/odd/http2": Odd(
        "HTTP/2's preface", "bad_response", lambda: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    ),
    "/odd/http2-frame": Odd(
        "An HTTP/2 frame",
        "bad_response",
        lambda: b"\0\0\x12\x04\0\0\0\0\0\0\x03\0\0\0\x64\0\x04\0\0\xff\xff",
    ),
    "/odd/tls-alert": Odd(
        "TLS on the plain port: an alert, then the end",
        "bad_response",
        lambda: b"\x15\x03\x01\0\x02\x02\x46",
        end=True,
    ),
    "/odd/tls-hello": Odd(
        "TLS on the plain port: a handshake",
        "bad_response",
        lambda: b"\x16\x03\x03\0\x3d\x02\0\0\x39\x03\x03" + b"r" * 50,
    ),
    "/odd/ssh": Odd("An SSH server's greeting", "bad_response", lambda: b"SSH-2.0-OpenSSH_9.6\r\n"),
    "/odd/smtp": Odd(
        "A mail server's greeting", "bad_response", lambda: b"220 mail.example ESMTP\r\n"
    ),
    # Lengths
    "/odd/length-twice": Odd(
        "The same length in one header twice",
        "ok",
        lambda: lines(OK, LENGTH + b", %d" % len(parcel(1))),
    ),
    "/odd/lengths-differ": Odd(
        "Two different lengths", "bad_response", lambda: lines(OK, LENGTH, b"Content-Length: 7")
    ),
    "/odd/length-negative": Odd(
        "A length below zero, and the page until the end",
        "ok",
        lambda: lines(OK, b"Content-Length: -5"),
        end=True,
    ),
    "/odd/length-plus": Odd(
        "A length with a plus sign, and the page until the end",
        "ok",
        lambda: lines(OK, b"Content-Length: +5"),
        end=True,
    ),
    "/odd/length-text": Odd(
        "A length in letters, and the page until the end",
        "ok",
        lambda: lines(OK, b"Content-Length: many"),
        end=True,
    ),
    "/odd/length-empty": Odd(
        "An empty length, and the page until the end",
        "ok",
        lambda: lines(OK, b"Content-Length:"),
        end=True,
    ),
    "/odd/length-2-64": Odd(
        "A length of 2 to the 64th, and the page until the end",
        "ok",
        lambda: lines(OK, b"Content-Length: %d" % 2**64),
        end=True,
    ),
    "/odd/length-huge": Odd(
        "A length of a petabyte", "too_large", lambda: lines(OK, b"Content-Length: %d" % 10**15)
    ),
    "/odd/length-and-chunks": Odd(
        "A wrong length beside a chunked body",
        "ok",
        lambda: lines(
            OK,
            b"Content-Length: 7",
            b"Transfer-Encoding: chunked",
            body=chunk(parcel(1)) + chunk(b""),
        ),
    ),
    "/odd/204-with-body": Odd(
        "204 with a body all the same", "ok", lambda: lines(b"HTTP/1.1 204 No Content", LENGTH)
    ),
    "/odd/304-with-body": Odd(
        "304 with a body all the same", "ok", lambda: lines(b"HTTP/1.1 304 Not Modified", LENGTH)
    ),
    "/odd/garbage-after": Odd(
        "Garbage behind the body", "ok", lambda: lines(OK, LENGTH) + b"\xff\xfe garbage \r\n" * 100
    ),
    "/odd/fake-after": Odd(
        "A second answer, to no request, behind the first", "ok", lambda: lines(OK, LENGTH) + FAKE
    ),
    "/odd/fake-after-204": Odd(
        "A second answer, to no request, behind a 204",
        "ok",
        lambda: b"HTTP/1.1 204 No Content\r\n\r\n" + FAKE,
    ),
    "/odd/fake-after-chunks": Odd(
        "A second answer, to no request, behind the last chunk",
        "ok",
        lambda: chunks(chunk(b""), FAKE),
    ),
    "/odd/fake-after-redirect": Odd(
        "A second answer, to no request, behind a redirect", "ok", lambda: moved("/page/1") + FAKE
    ),
    # Answers before the answer
    "/odd/continue": Odd(
        "100, then the page", "ok", lambda: b"HTTP/1.1 100 Continue\r\n\r\n" + lines(OK, LENGTH)
    ),
    "/odd/early-hints": Odd(
        "103 three times, then the page",
        "ok",
        lambda: (
            lines(b"HTTP/1.1 103 Early Hints", b"Link: </a.css>", body=b"") * 3 + lines(OK, LENGTH)
        ),
    ),
    "/odd/only-continue": Odd(
        "100, then the end", "truncated", lambda: b"HTTP/1.1 100 Continue\r\n\r\n", end=True
    ),
    "/odd/upgrade": Odd(
        "101 to a protocol that nobody asked for",
        "bad_response",
        lambda: lines(
            b"HTTP/1.1 101 Switching Protocols",
            b"Upgrade: websocket",
            b"Connection: Upgrade",
            body=b"\x81\x05hello",
        ),
    ),
    # Chunks
    "/odd/chunk-extension": Odd(
        "Chunks with extensions and blanks",
        "ok",
        lambda: (
            CHUNKED_HEAD
            + b'%x ; name="value"\r\n%s\r\n0;last\r\n\r\n' % (len(parcel(1)), parcel(1))
        ),
    ),
    "/odd/chunk-bare-lf": Odd(
        "Chunks whose lines end with LF alone",
        "ok",
        lambda: CHUNKED_HEAD + b"%x\n%s\n0\n\n" % (len(parcel(1)), parcel(1)),
    ),
    "/odd/chunk-zeros": Odd(
        "A chunk size with leading zeros",
        "ok",
        lambda: CHUNKED_HEAD + b"%020x\r\n%s\r\n0\r\n\r\n" % (len(parcel(1)), parcel(1)),
    ),
    "/odd/chunk-trailers": Odd(
        "Trailers behind the last chunk",
        "ok",
        lambda: chunks(b"0\r\nX-Sum: 1\r\nX-More: 2\r\n\r\n"),
    ),
    "/odd/chunk-2-64": Odd(
        "A chunk of 2 to the 64th bytes",
        "bad_response",
        lambda: chunks(b"10000000000000000\r\nlost"),
    ),
    "/odd/chunk-2-63": Odd(
        "A chunk of 2 to the 63rd bytes",
        "bad_response",
        lambda: chunks(b"8000000000000000\r\nlost"),
    ),
    "/odd/chunk-negative": Odd(
        "A chunk of less than nothing", "bad_response", lambda: chunks(b"-5\r\nlost")
    ),
    "/odd/chunk-0x": Odd(
        "A chunk size with 0x before it", "bad_response", lambda: chunks(b"0x5\r\nlost!\r\n")
    ),
    "/odd/chunk-no-size": Odd(
        "An empty line for a chunk size", "bad_response", lambda: chunks(b"\r\nlost\r\n")
    ),
    "/odd/chunk-too-long": Odd(
        "A chunk longer than its size", "bad_response", lambda: chunks(b"5\r\nlonger than five\r\n")
    ),
    "/odd/chunk-cut": Odd(
        "The connection ends within a chunk", "truncated", lambda: chunks(b"ff\r\nlost"), end=True
    ),
    "/odd/chunk-no-last": Odd(
        "The connection ends where the last chunk should be", "truncated", chunks, end=True
    ),
    "/odd/chunks-in-10": Odd(
        "Chunks under HTTP/1.0",
        "ok",
        lambda: CHUNKED_HEAD.replace(b"1.1", b"1.0", 1) + chunk(parcel(1)) + chunk(b""),
        end=True,
    ),
    "/odd/transfer-gzip": Odd(
        "gzip as a transfer coding",
        "unknown_encoding",
        lambda: lines(OK, b"Transfer-Encoding: gzip, chunked", body=chunk(zipped()) + chunk(b"")),
    ),
    "/odd/transfer-identity": Odd(
        "identity as a transfer coding",
        "ok",
        lambda: lines(OK, b"Transfer-Encoding: identity", LENGTH),
    ),
    # Codings
    "/odd/coding-unknown-binary": Odd(
        "Bytes in a coding that nobody knows",
        "unknown_encoding",
        lambda: coded("compress", zipped()),
    ),
    "/odd/coding-unknown": Odd(
        "A page that claims a coding that nobody knows", "ok", lambda: coded("compress", parcel(1))
    ),
    "/odd/coding-none": Odd("`none` for a coding", "ok", lambda: coded("none", parcel(1))),
    "/odd/coding-charset": Odd("A charset for a coding", "ok", lambda: coded("UTF-8", parcel(1))),
    "/odd/coding-lie-br": Odd(
        "gzip that claims to be brotli", "bad_encoding", lambda: coded("br", zipped())
    ),
    "/odd/coding-lie-zstd": Odd(
        "gzip that claims to be zstd", "bad_encoding", lambda: coded("zstd", zipped())
    ),
    "/odd/coding-lie-gzip": Odd(
        "brotli that claims to be gzip",
        "bad_encoding",
        lambda: coded("gzip", brotli.compress(parcel(1))),
    ),
    "/odd/coding-empty": Odd("Nothing, in gzip", "ok", lambda: coded("gzip", b"")),
    "/odd/gzip-padding": Odd(
        "gzip with padding behind it", "ok", lambda: coded("gzip", zipped() + b"\0" * 100)
    ),
    "/odd/gzip-members": Odd(
        "gzip in two members",
        "ok",
        lambda: coded(
            "gzip",
            gzip.compress(parcel(1)[:1000], mtime=0) + gzip.compress(parcel(1)[1000:], mtime=0),
        ),
    ),
    "/odd/gzip-pieces": Odd(
        "A million empty members of gzip, in brotli",
        "too_large",
        lambda: coded(
            "gzip, br", brotli.compress(gzip.compress(b"", mtime=0) * 1_000_000, quality=1)
        ),
    ),
    "/odd/zstd-pieces": Odd(
        "A million empty frames of zstd, in gzip",
        "too_large",
        lambda: coded("zstd, gzip", gzip.compress(zstd.compress(b"") * 1_000_000, mtime=0)),
    ),
    "/odd/zstd-skipped": Odd(
        "A million frames of zstd that are to be skipped, in gzip",
        "too_large",
        lambda: coded(
            "zstd, gzip", gzip.compress((b"\x50\x2a\x4d\x18" + bytes(4)) * 1_000_000, mtime=0)
        ),
    ),
    "/odd/layers-4": Odd("Four layers of gzip", "ok", lambda: layered(4, parcel(1))),
    "/odd/layers-5": Odd("Five layers of gzip", "unknown_encoding", lambda: layered(5, parcel(1))),
    "/odd/layers-1000": Odd(
        "A thousand layers, by name only",
        "unknown_encoding",
        lambda: coded(", ".join(["gzip"] * 1000), zipped()),
    ),
    "/odd/layered-bomb": Odd(
        "300 MB in three layers of gzip",
        "too_large",
        lambda: coded(
            "gzip, gzip, gzip",
            gzip.compress(gzip.compress(zlib_bomb(16 + zlib.MAX_WBITS), mtime=0), mtime=0),
        ),
    ),
    "/odd/gzip-name": Odd(
        "gzip whose file name does not end, in gzip",
        "too_large",
        lambda: coded(
            "gzip, gzip",
            gzip.compress(b"\x1f\x8b\x08\x08" + bytes(6) + b"x" * 60_000_000, 1, mtime=0),
        ),
    ),
    # Redirects
    "/odd/redirect-nowhere": Odd("A redirect without Location", "ok", redirected),
    "/odd/redirect-empty": Odd("A redirect to nothing", "ok", lambda: redirected(b"Location:")),
    "/odd/redirect-relative": Odd(
        "A redirect to ../page/1", "ok", lambda: redirected(b"Location: ../x/../page/1?a=1#b")
    ),
    "/odd/redirect-blanks": Odd(
        "A redirect with blanks, tabs and a backslash",
        "ok",
        lambda: redirected(b"Location:  \\page\\1\t "),
    ),
    "/odd/redirect-utf8": Odd(
        "A redirect to a path in UTF-8",
        "ok",
        lambda: redirected("Location: /status/200?п=я".encode()),
    ),
    "/odd/redirect-latin1": Odd(
        "A redirect to a path in Latin-1", "ok", lambda: redirected(b"Location: /status/200?p=\xf6")
    ),
    "/odd/redirect-control": Odd(
        "A redirect to a path with control characters",
        "ok",
        lambda: redirected(b"Location: /status/200?\x01\x02\x1b[31m"),
    ),
    "/odd/redirect-two": Odd(
        "Redirects to two places at once",
        "bad_redirect",
        lambda: redirected(b"Location: /page/1", b"Location: /page/2"),
    ),
    "/odd/redirect-javascript": Odd(
        "A redirect to javascript:",
        "bad_redirect",
        lambda: redirected(b"Location: javascript:alert(1)"),
    ),
    "/odd/redirect-data": Odd(
        "A redirect to data:",
        "bad_redirect",
        lambda: redirected(b"Location: data:text/html,<h1>Parcel</h1>"),
    ),
    "/odd/redirect-file": Odd(
        "A redirect to file:", "bad_redirect", lambda: redirected(b"Location: file:///etc/passwd")
    ),
    "/odd/redirect-ftp": Odd(
        "A redirect to ftp:", "bad_redirect", lambda: redirected(b"Location: ftp://127.0.0.1/")
    ),
    "/odd/redirect-no-url": Odd(
        "A redirect to what is no URL",
        "bad_redirect",
        lambda: redirected(b"Location: http://[::1/"),
    ),
    "/odd/redirect-port-0": Odd(
        "A redirect to port 0", "bad_redirect", lambda: redirected(b"Location: http://127.0.0.1:0/")
    ),
    "/odd/redirect-long": Odd(
        "A redirect to 100 KB of path",
        "bad_redirect",
        lambda: redirected(b"Location: /" + b"x" * 100_000),
    ),
    "/odd/redirect-private": Odd(
        "A redirect to a private network",
        "forbidden_address",
        lambda: redirected(b"Location: http://10.0.0.1/"),
    ),
    "/odd/redirect-metadata": Odd(
        "A redirect to a cloud's metadata",
        "forbidden_address",
        lambda: redirected(b"Location: http://169.254.169.254/latest/meta-data/"),
    ),
    "/odd/redirect-loopback": Odd(
        "A redirect to another port of this machine",
        "forbidden_address",
        lambda: redirected(b"Location: http://127.0.0.1:1/"),
    ),
    "/odd/redirect-localhost": Odd(
        "A redirect to this machine by another name",
        "forbidden_address",
        lambda: redirected(b"Location: http://localhost:1/"),
    ),
    "/odd/refresh-header": Odd(
        "A page with a Refresh header",
        "ok",
        lambda: lines(OK, b"Refresh: 0; url=http://127.0.0.1:1/", LENGTH),
    ),
    "/odd/alt-svc": Odd(
        "A page that names another server for the next request",
        "ok",
        lambda: lines(OK, b'Alt-Svc: h2="127.0.0.1:1"; ma=86400, h3=":1"', LENGTH),
    ),
    "/odd/meta-refresh": Odd(
        "A page with a meta refresh",
        "ok",
        lambda: response(
            parcel(1).replace(
                b"<head>", b'<head><meta http-equiv="refresh" content="0; url=http://127.0.0.1:1/">'
            )
        ),
    ),
    # Content
    "/odd/one-line": Odd(
        "9 MB of HTML in one line", "ok", lambda: response(b"<p>" + b"word " * 1_800_000)
    ),
    "/odd/one-line-over": Odd(
        "12 MB of HTML in one line", "too_large", lambda: response(b"<p>" + b"word " * 2_400_000)
    ),
    "/odd/attributes": Odd(
        "An element with 100,000 attributes",
        "ok",
        lambda: response(b"<p " + b" ".join(b"a%d=1" % i for i in range(100_000)) + b">core</p>"),
    ),
    "/odd/robots-bomb": Odd(
        "A robots.txt of 30 MB",
        "too_large",
        lambda: coded(
            "gzip", gzip.compress(b"User-agent: *\nDisallow: /a\n" * 1_100_000, 1, mtime=0)
        ),
    ),
    "/odd/charset-lie": Odd(
        "UTF-16 that claims to be UTF-8",
        "ok",
        lambda: response(parcel(1).decode().encode("utf-16")),
    ),
    "/odd/charset-unknown": Odd(
        "A charset that nobody knows",
        "ok",
        lambda: response(parcel(1), kind="text/html; charset=klingon"),
    ),
    "/odd/charset-python": Odd(
        "A charset that only Python knows",
        "ok",
        lambda: response(parcel(1), kind="text/html; charset=unicode_escape"),
    ),
    "/odd/image-as-html": Odd("An image that claims to be HTML", "ok", lambda: response(PNG)),
    "/odd/html-as-image": Odd(
        "HTML that claims to be an image", "ok", lambda: response(parcel(1), kind="image/png")
    ),
    "/odd/type-rubbish": Odd(
        "A content type that is none", "ok", lambda: response(parcel(1), kind=";;;/\x7f charset")
    ),
    "/odd/cookies": Odd(
        "Cookies of every bad kind",
        "ok",
        lambda: response(
            parcel(1),
            "Set-Cookie: =",
            "Set-Cookie: a",
            "Set-Cookie: b=" + "x" * 9000,
            "Set-Cookie: c=1; Domain=com",
            "Set-Cookie: d=\x01; Path=\x02",
            "Set-Cookie: ;;;;",
            "Set-Cookie: e=1; Max-Age=99999999999999999999; Expires=never",
        ),
    ),
}
"""Misbehaviours that are always the same."""

PATHS.update({path: odd.description for path, odd in ODD.items()})


@serves("/odd/<name>", "A misbehaviour of the table, by its name")
async def odd(call: Call) -> bytes | None:
    made = await asyncio.to_thread(odd_bytes, call.target.partition("?")[0])
    if ODD[call.target.partition("?")[0]].end:
        call.send(made)
        return None
    return made


@cache
def odd_bytes(path: str) -> bytes:
    """The bytes of a misbehaviour, made when it is first asked for."""
    return ODD[path].make()


FLOOD = 2**30
"""A flood ends after a gigabyte: whoever swallows that has lost."""


@serves("/flood/<name>", "Bytes of that kind as fast as they go, up to a gigabyte")
async def flood(call: Call) -> None:
    begin, _, piece = FLOODS[call.argument]
    call.send(begin)
    block = piece * (65_536 // len(piece) + 1)
    for _ in range(FLOOD // len(block)):
        call.send(block)
        await call.writer.drain()
        await asyncio.sleep(0)


FLOODS: dict[str, tuple[bytes, str, bytes]] = {
    "body": (head(TYPE), "too_large", b"word "),
    "chunks": (CHUNKED_HEAD, "too_large", chunk(b"word " * 1000)),
    "tiny-chunks": (CHUNKED_HEAD, "bad_response", b"1\r\nx\r\n"),
    "extension": (CHUNKED_HEAD + b"5;", "bad_response", b"e"),
    "extensions": (CHUNKED_HEAD, "bad_response", b"1;" + b"e" * 1000 + b"\r\nx\r\n"),
    "trailer": (CHUNKED_HEAD + chunk(parcel(1)) + b"0\r\nX-Endless: ", "bad_response", b"t"),
    "trailers": (CHUNKED_HEAD + chunk(parcel(1)) + b"0\r\n", "bad_response", b"X-Endless: t\r\n"),
    "zero-chunks": (CHUNKED_HEAD + chunk(parcel(1)), "ok", chunk(b"")),
    "status-line": (b"HTTP/1.1 200 ", "headers_too_large", b"o"),
    "header": (OK + b"\r\nX-Endless: ", "headers_too_large", b"h"),
    "headers": (OK + b"\r\n", "headers_too_large", b"X-Endless: h\r\n"),
    "folded": (OK + b"\r\nX-Endless: h\r\n", "headers_too_large", b"  more\r\n"),
    "cookies": (OK + b"\r\n", "headers_too_large", b"Set-Cookie: a=b\r\n"),
    "interim": (b"", "bad_response", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "hints": (
        b"",
        "bad_response",
        b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n",
    ),
    "large-hints": (
        b"",
        "headers_too_large",
        b"HTTP/1.1 103 Early Hints\r\nLink: " + b"l" * 30_000 + b"\r\n\r\n",
    ),
    "colonless-hints": (
        b"",
        "headers_too_large",
        b"HTTP/1.1 103 Early Hints\r\n" + b"no colon\r\n" * 3_000 + b"\r\n",
    ),
    "rubbish": (b"", "bad_response", b"\xff\xfe"),
    "blank-lines": (b"", "bad_response", b"\r\n"),
    "behind-page": (response(parcel(1)), "ok", b"POISON"),
    "gzip": (head("Content-Encoding: gzip") + gzip.compress(b""), "too_large", gzip.compress(b"")),
}
"""How each flood begins, what a fetch of it comes to, and what it repeats."""


@serves("/stall/<name>", "The beginning of an answer, then silence on an open connection")
async def stall(call: Call) -> None:
    call.send(STALLS[call.argument])
    await call.wait(asyncio.Event().wait())


STALLS: dict[str, bytes] = {
    "at-once": b"",
    "in-status-line": b"HTTP/1.1 2",
    "in-head": OK + b"\r\nContent-Type: text/html\r\n",
    "before-body": head(TYPE, PAGE_LENGTH),
    "in-body": response(parcel(1))[:-100],
    "without-length": head(TYPE) + parcel(1),
    "before-chunk": CHUNKED_HEAD,
    "in-chunk": CHUNKED_HEAD + chunk(parcel(1))[:-100],
    "before-last-chunk": CHUNKED_HEAD + chunk(parcel(1)),
    "in-trailer": CHUNKED_HEAD + chunk(parcel(1)) + b"0\r\nX-Sum",
    "after-continue": b"HTTP/1.1 100 Continue\r\n\r\n",
    "in-gzip": coded("gzip", zipped())[:-100],
    "unpacked": head(TYPE, "Content-Encoding: gzip") + unfinished(9_900_000),
}


@serves("/drip-of/<name>", "An answer that comes byte by byte, one every 0.1 s, for ever")
async def drip_of(call: Call) -> None:
    begin, piece = DRIPS[call.argument]
    call.send(begin)
    while True:
        call.send(piece)
        await call.sleep(DRIP_S)


DRIPS: dict[str, tuple[bytes, bytes]] = {
    "status-line": (b"HTTP/1.1 200 ", b"o"),
    "headers": (OK + b"\r\n", b"X: 1\r\n"),
    "hints": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    "chunks": (CHUNKED_HEAD, b"1\r\nx\r\n"),
    "extension": (CHUNKED_HEAD + b"5;", b"e"),
    "trailers": (CHUNKED_HEAD + b"0\r\n", b"X: 1\r\n"),
    "bomb": (head("Content-Encoding: gzip") + unfinished(9 << 20)[:8000], b""),
}


@serves("/hang-up/<how>", "The end of the connection in that way, without a word: reset, half")
async def hang_up(call: Call) -> None:
    plain = call.writer.get_extra_info("socket")
    if call.argument == "half":
        plain.shutdown(socket.SHUT_WR)
        await call.reader.read()
        return
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    call.writer.transport.abort()


@serves("/half-close", "A page without a length, then the end of this side only")
async def half_close(call: Call) -> None:
    call.send(head(TYPE) + parcel(1))
    call.writer.write_eof()
    await call.reader.read()


@serves("/late-fake", "A page, and a while later a second answer that nobody asked for")
async def late_fake(call: Call) -> None:
    call.send(response(parcel(1)))
    await call.sleep(DRIP_S)
    call.send(FAKE)
    await call.reader.read(1)


@serves("/redirect-grow?n=<n>", "Redirects to itself whose query changes each time")
async def redirect_grow(call: Call) -> bytes:
    return moved(f"/redirect-grow?n={int(call.option('n', '0')) + 1}")


@serves("/redirect-user", "A redirect to page 1 whose URL holds a user name and a password")
async def redirect_user(call: Call) -> bytes:
    host = call.writer.get_extra_info("sockname")
    return moved(f"http://user:geheim@{host[0]}:{host[1]}/page/1")


@serves("/echo", "The request as it came, as text")
async def echo(call: Call) -> bytes:
    return response(call.request, kind="text/plain; charset=latin-1")


@serves(
    "/set-cookie?c=<header>&c=…&to=<url>",
    "Set-Cookie headers as given, and a redirect if there is a place",
)
async def set_cookie(call: Call) -> bytes:
    headers = [f"Set-Cookie: {value}" for value in parse_qs(call.query).get("c", [])]
    if to := call.option("to", ""):
        return response(b"elsewhere\n", f"Location: {to}", *headers, status=302)
    return response(parcel(1), *headers)


HOSTILE: dict[str, str] = {
    **{path: odd.outcome for path, odd in ODD.items()},
    **{f"/flood/{name}": outcome for name, (_, outcome, _) in FLOODS.items()},
    **{f"/stall/{name}": "timeout" for name in STALLS},
    **{f"/drip-of/{name}": "timeout" for name in DRIPS if name != "bomb"},
    "/drip-of/bomb": "timeout",
    **{f"/bad-header/{kind}": "ok" for kind in SLOPPY},
    **{f"/status/{code}": "ok" for code in (201, 206, 400, 404, 451, 500, 503, 599)},
    "/drip": "timeout",
    "/drip-headers": "timeout",
    "/slow/60": "timeout",
    "/truncated": "truncated",
    "/reset": "truncated",
    "/close": "connection",
    "/hang-up/reset": "connection",
    "/hang-up/half": "connection",
    "/half-close": "ok",
    "/late-fake": "ok",
    "/no-length": "ok",
    "/empty": "ok",
    "/http09": "bad_response",
    "/latin-reason": "ok",
    "/chunked-broken": "bad_response",
    "/lying-length-short": "ok",
    "/huge-headers/100000": "ok",
    "/huge-headers/300000": "headers_too_large",
    "/many-cookies/3000": "ok",
    "/many-cookies/6000": "headers_too_large",
    "/redirect/10": "ok",
    "/redirect/11": "too_many_redirects",
    "/redirect-loop": "too_many_redirects",
    "/redirect-grow": "too_many_redirects",
    "/redirect-user": "ok",
    "/nested/100000": "ok",
    "/bom": "ok",
    "/gzip": "ok",
    "/deflate": "ok",
    "/deflate-raw": "ok",
    "/br": "ok",
    "/zstd": "ok",
    "/gzip-gzip": "ok",
    "/bad-gzip": "bad_encoding",
    "/gzip-truncated": "truncated",
    "/gzip-bomb": "too_large",
    "/deflate-bomb": "too_large",
    "/br-bomb": "too_large",
    "/zstd-bomb": "too_large",
}
"""Every misbehaviour with what one fetch of it comes to: `ok`, or the reason code of the error."""


@serves("/_warm", "Builds all answers that take a while to build")
async def warm(_: Call) -> bytes:
    for path in FIXED:
        await asyncio.to_thread(fixed, path)
    for path in ODD:
        await asyncio.to_thread(odd_bytes, path)
    return as_json(None)


@serves("/_paths", "What each path does, as JSON")
async def list_paths(_: Call) -> bytes:
    return as_json(PATHS)


@serves(
    "/_stats",
    "The requests so far, as JSON: by path, pages being served, and the most of these at one time",
)
async def stats(call: Call) -> bytes:
    return as_json({"hits": call.books.hits, "active": call.books.active, "peak": call.books.peak})


@serves("/_reset", "Forgets the requests so far")
async def forget(call: Call) -> bytes:
    call.books.reset()
    return as_json(None)


@serves("/_release", "Lets all /hold requests finish")
async def release(call: Call) -> bytes:
    call.books.released.set()
    return as_json(None)


def as_json(value: object) -> bytes:
    """A response for `Site`."""
    return response(json.dumps(value).encode(), kind="application/json")


async def answer(call: Call) -> bytes | None:
    """The response to one request; None closes the connection."""
    if not call.target.startswith("/_"):
        call.books.hits[call.target] += 1
    path = call.target.partition("?")[0]
    if path in FIXED:
        return await asyncio.to_thread(
            fixed, path
        )  # a bomb takes a second to build; others are served meanwhile
    handler = HANDLERS.get(_name(path))
    if handler is None:
        return response(b"no such path\n", status=404)
    try:
        return await handler(call)
    except (LookupError, ValueError) as error:  # a charset, number or kind that does not exist
        return response(f"{error}\n".encode(), status=400)


async def talk(books: Books, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection until either side has had enough."""
    with closing(writer), suppress(OSError, asyncio.IncompleteReadError):
        while True:
            request = await reader.readuntil(b"\r\n\r\n")
            target = request.split(b" ", 2)[1].decode("latin-1")
            path, _, query = target.partition("?")
            argument = path[1:].partition("/")[2]
            whole = await answer(Call(target, argument, query, request, reader, writer, books))
            if whole is None:
                break
            writer.write(whole)
            await writer.drain()
            if b"connection: close" in request.lower():
                break


async def main() -> None:
    """Serve until the parent ends or terminates this process."""
    server = await asyncio.start_server(partial(talk, Books()), "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.to_thread(
        sys.stdin.buffer.read
    )  # its end is the parent's end: no orphan outlives a killed parent
    server.close()


if __name__ == "__main__":
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is for pytest, which then stops this process itself
    asyncio.run(main())
