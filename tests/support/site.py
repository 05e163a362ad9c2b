"""A hostile site on loopback, as a process of its own, and the `Site` by which tests hold it.

The server speaks HTTP by hand, because no library would let it break the protocol; `GET /_paths` lists what it can do.
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

OWNERS = ("Nora Whitfield", "Otto Lindgren", "Priya Raman", "Quentin Marsh", "Rosa Delgado", "Stefan Ivanov")
STREETS = ("Harbor Road", "Juniper Way", "Kiln Street", "Lockhouse Lane", "Meadow Drive")
REMARK = (
    "The boundaries of this parcel were surveyed when the county drew its first plats and have been confirmed at each "
    "transfer since. The assessment rests on the sales of comparable parcels in the same township, on the state of the "
    "buildings at the last inspection, and on the use that the owner has declared. Objections can be filed with the "
    "assessor until the last working day of April; they must name the parcel, the year and the value that is held "
    "to be right. A copy of the deed is kept by the recorder, together with the easements for water, power and access. "
) * 3
BULGARIAN = "Поземлен имот в землището на Самоков, собственик Елена Димитрова, площ дванадесет декара"
GERMAN = "Grundstück an der Königstraße, Eigentümer Jörg Müller, Größe zwölf Ar"


class Site:
    """The hostile site while a test runs: started on a free port, stopped at the end."""

    url: str

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.support.site"]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            self._process.communicate()
            raise RuntimeError(f"the test site ended with {self._process.returncode} before it served; see its stderr")
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
        """How often each path, with its query, has been asked for."""
        hits: dict[str, int] = self.ask("/_stats")["hits"]
        return hits

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

    def ask(self, path: str) -> Any:
        """The JSON behind one of the paths that steer the site."""
        with closing(HTTPConnection(urlsplit(self.url).netloc, timeout=STOP_S)) as connection:
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
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    books: Books

    def option(self, name: str, default: str) -> str:
        """A parameter of the query."""
        return parse_qs(self.query).get(name, [default])[0] if self.query else default

    async def wait(self, event: Awaitable[object]) -> None:
        """Wait for something, unless the client hangs up first: an abandoned request must not count in `peak`."""
        waiting = asyncio.ensure_future(event)
        hung_up = asyncio.ensure_future(self.reader.read(1))  # nothing else can come: crawlers do not pipeline
        try:
            await asyncio.wait({waiting, hung_up}, return_when=asyncio.FIRST_COMPLETED)
            if hung_up.done():
                raise ConnectionResetError(hung_up.exception())
        finally:
            waiting.cancel()
            hung_up.cancel()
            await asyncio.wait({waiting, hung_up})  # or the reader would still be taken when the next request is read

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
    return "\r\n".join((f"HTTP/1.1 {status} {PHRASES.get(status, 'Unheard Of')}", *headers, "\r\n")).encode("latin-1")


def response(body: bytes, *headers: str, status: int = 200, kind: str = HTML) -> bytes:
    """A whole and correct response."""
    return head(f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers, status=status) + body


def document(title: str, content: str, meta: str = "") -> str:
    """A small HTML document."""
    return f"<!doctype html>\n<html><head>{meta}<title>{title}</title></head>\n<body>{content}</body></html>\n"


@lru_cache(maxsize=10_000)
def parcel(n: int) -> bytes:
    """The HTML of normal page n, some 4 KB and always the same."""
    owner, street = OWNERS[n % len(OWNERS)], STREETS[n % len(STREETS)]
    value, acres = 40_000 + n * 7919 % 900_000, (25 + n * 31 % 2000) / 100
    address = f"{100 + n * 13 % 9000} {street}, Millbrook"
    facts = {"Owner": owner, "Address": address, "Value": f"${value:,}", "Acres": f"{acres:.2f}"}
    rows = "\n".join(f"<tr><th>{name}</th><td>{fact}</td></tr>" for name, fact in facts.items())
    data = {"@context": "https://schema.org", "@type": "Place", "name": f"Parcel {n}", "address": address}
    links = "\n".join(f'<li><a href="/page/{n + step}">Parcel {n + step}</a></li>' for step in range(1, 11))
    history = "\n".join(f"<tr><td>{year}</td><td>${value * year // 2030:,}</td></tr>" for year in range(2000, 2025))
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


@serves("/retry-after/<value>?times=<k>&status=<code>", "429, or that status, with Retry-After; after k times a page")
async def retry_after(call: Call) -> bytes:
    times = call.option("times", "")
    if times and not call.books.first(int(times), call.target):
        return response(parcel(1))
    return response(b"later\n", f"Retry-After: {unquote(call.argument)}", status=int(call.option("status", "429")))


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
    call.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    call.writer.transport.abort()


@serves("/close", "The end of the connection instead of an answer")
async def close(_: Call) -> None:
    return None


@serves("/no-length", "A page without Content-Length that ends with the connection")
async def no_length(call: Call) -> None:
    call.send(head(f"Content-Type: {HTML}", "Connection: close") + parcel(1))


@serves("/http09", "Bytes that are no HTTP, then the end of the connection")
async def http09(call: Call) -> None:
    call.send(b"\x00\x01 hello, this is no status line\r\n\r\n<html><body>old times</body></html>\n")


@serves("/chunked-broken", "A good chunk, then one whose size is no number, then the end of the connection")
async def chunked_broken(call: Call) -> None:
    call.send(CHUNKED_HEAD + chunk(parcel(1)) + b"size?\r\nlost\r\n")


CHUNKED_HEAD = head(f"Content-Type: {HTML}", "Transfer-Encoding: chunked")


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


@serves("/charset/<name>", "Bulgarian and German in that charset, declared in the header")
async def charset(call: Call) -> bytes:
    return response(foreign(call.argument), kind=f"text/html; charset={call.argument}")


@serves("/charset-meta/<name>", "Bulgarian and German in that charset, declared in a meta element only")
async def charset_meta(call: Call) -> bytes:
    return response(foreign(call.argument, f'<meta charset="{call.argument}">'), kind="text/html")


@serves("/charset-none/<name>", "Bulgarian and German in that charset, declared nowhere")
async def charset_none(call: Call) -> bytes:
    return response(foreign(call.argument), kind="text/html")


def foreign(charset: str, meta: str = "") -> bytes:
    """A page in two languages; what the charset cannot express becomes a character reference."""
    content = f"<h1>Имот</h1>\n<p>{BULGARIAN}</p>\n<p>{GERMAN}</p>"
    return document("Имот", content, meta).encode(charset, errors="xmlcharrefreplace")


@serves("/nested/<n>", "A page of n nested divs with a word in the innermost")
async def nested(call: Call) -> bytes:
    n = int(call.argument)
    return response(document("Nested", f"{'<div>' * n}core{'</div>' * n}").encode())


@serves("/huge-headers/<n>", "A page with one header of n bytes, 100,000 if n is left out")
async def huge_headers(call: Call) -> bytes:
    return response(parcel(1), "X-Huge: " + "h" * int(call.argument or 100_000))


@serves("/many-cookies/<n>", "A page that sets n cookies, 200 if n is left out")
async def many_cookies(call: Call) -> bytes:
    cookies = (f"Set-Cookie: crumb{i}={'c' * 40}; Path=/" for i in range(int(call.argument or 200)))
    return response(parcel(1), *cookies)


@serves("/bad-header/<kind>", "A page with headers sloppy in that way, or in several, as browsers accept them")
async def bad_header(call: Call) -> bytes:
    lines = SLOPPY[call.argument or "mixed"]
    end = b"\n" if call.argument in ("", "bare-lf") else b"\r\n"
    return end.join((*lines, b"Content-Length: %d" % len(parcel(1)), b"", parcel(1)))


SLOPPY = {
    "mixed": (b"HTTP/1.1 200", b"Content-Type: text/html", b"X-Owner: J\xf6rg", b"X-Note: one", b"  two"),
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
    """Hundreds of megabytes of blanks, packed piece by piece so that the server itself stays small."""
    return b"".join([pack(BOMB_PIECE) for _ in range(BOMB_PIECES)]) + finish()


def zlib_bomb(wbits: int) -> bytes:
    """A bomb for gzip or deflate."""
    packer = zlib.compressobj(wbits=wbits)
    return bomb(packer.compress, packer.flush)


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
    "/text": ("Plain text", lambda: response(b"Nothing but text.\n", kind="text/plain; charset=utf-8")),
    "/json": ("JSON", lambda: response(b'{"parcel": 1, "owner": "Nora Whitfield"}\n', kind="application/json")),
    "/image": ("A tiny PNG", lambda: response(PNG, kind="image/png")),
    "/pdf": ("A PDF of one page", lambda: response(PDF, kind="application/pdf")),
    "/empty": ("200 with an empty body", lambda: response(b"")),
    "/latin-reason": (
        "503 with a reason phrase in Latin-1",
        lambda: b"HTTP/1.1 503 Vor\xfcbergehend\r\nContent-Length: 4\r\n\r\nwait",
    ),
    "/heavy": (
        "A sound page of 150 MB, sent in gzip, that keeps a parser busy for seconds",
        lambda: coded("gzip", gzip.compress(b"<!doctype html><p>" + b"word &amp; word " * 10_000_000, 1, mtime=0)),
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
    "/deflate": ("A page in deflate, with the zlib frame", lambda: coded("deflate", zlib.compress(parcel(1)))),
    "/deflate-raw": ("A page in deflate, without a frame", lambda: coded("deflate", raw_deflate(parcel(1)))),
    "/br": ("A page in brotli", lambda: coded("br", brotli.compress(parcel(1)))),
    "/zstd": ("A page in zstd", lambda: coded("zstd", zstd.compress(parcel(1)))),
    "/gzip-gzip": ("A page in gzip in gzip", lambda: coded("gzip, gzip", gzip.compress(zipped(), mtime=0))),
    "/bad-gzip": ("A page that claims to be gzip and is not", lambda: coded("gzip", parcel(1))),
    "/gzip-truncated": ("The first half of a page in gzip", lambda: coded("gzip", zipped()[: len(zipped()) // 2])),
    "/gzip-bomb": ("300 KB of gzip that become 300 MB", lambda: coded("gzip", zlib_bomb(16 + zlib.MAX_WBITS))),
    "/deflate-bomb": ("300 KB of deflate that become 300 MB", lambda: coded("deflate", zlib_bomb(zlib.MAX_WBITS))),
    "/br-bomb": ("Less than 1 KB of brotli that becomes 300 MB", lambda: coded("br", br_bomb())),
    "/zstd-bomb": ("10 KB of zstd that become 300 MB", lambda: coded("zstd", zstd_bomb())),
}
"""Answers that are always the same: what each is, and how it is made."""

PATHS.update({path: description for path, (description, _) in FIXED.items()})


@cache
def fixed(path: str) -> bytes:
    """An answer of the table, made when it is first asked for."""
    return FIXED[path][1]()


@serves("/_paths", "What each path does, as JSON")
async def list_paths(_: Call) -> bytes:
    return as_json(PATHS)


@serves("/_stats", "The requests so far, as JSON: by path, pages being served, and the most of these at one time")
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
        return await asyncio.to_thread(fixed, path)  # a bomb takes a second to build; others are served meanwhile
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
            whole = await answer(Call(target, argument, query, reader, writer, books))
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
    await asyncio.to_thread(sys.stdin.buffer.read)  # its end is the parent's end: no orphan outlives a killed parent
    server.close()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which then stops this process itself
    asyncio.run(main())
