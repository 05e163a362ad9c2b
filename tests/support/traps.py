"""Sites that a crawl must not get lost in, and pages with every kind of link.

`python -m tests.support.traps` serves them and a graph on one port: `trap.localhost`,
`links.localhost`, `farm.localhost`, `graph.localhost`.
"""

import argparse
import gzip
import zlib
from collections.abc import Callable
from datetime import date, timedelta
from functools import cache
from hashlib import sha256
from html import escape

from crawler.examples.server import Request, Response, Site, not_found, redirect, serve
from tests.support.graph import Graph

MILLION_BYTES = 10_000_000
"""The size of the page with as many links as it can hold."""
BOMB_BYTES = 300_000_000
FARM_URLS, FARM_DEPTH, MANY_LINKS = 50_000, 4, 50_000
_ENDS = "2026-11-01"


class Trap:
    """Endless areas, each under a path of its own: `/` links to all of them."""

    host = "trap.localhost"

    def answer(self, request: Request) -> Response:
        """Answer one request."""
        _, area, *rest = request.path.split("/")
        areas: dict[str, Callable[[Request], Response]] = {
            "calendar": self._calendar,
            "session": self._session,
            "path-session": self._path_session,
            "million": lambda _: Response(_million()),
            "many": self._many,
            "repeat": self._repeat,
            "deeper": self._deeper,
            "redirect": self._redirect,
            "filter": self._filter,
            "growing": self._growing,
        }
        if area in areas and rest:
            return areas[area](request)
        if request.path == "/":
            return _page("Traps", [f"/{name}/" for name in areas])
        if request.path == "/robots.txt":
            return Response(b"", kind="text/plain")
        return not_found()

    def _calendar(self, request: Request) -> Response:
        """Every day links to the days and months around it, for ever."""
        try:
            day = date.fromisoformat(request.query.get("date", _ENDS))
        except ValueError:
            return not_found()
        steps = (timedelta(days=days) for days in (-365, -31, -1, 1, 31, 365))
        links = [f"/calendar/?date={(day + step).isoformat()}" for step in steps]
        return _page(f"Events of {day}", [*links, f"/calendar/{day.year + 1}/{day.month}/"])

    def _session(self, request: Request) -> Response:
        """Each answer puts a new session id into every link, to the same twenty pages."""
        mark = sha256(repr(request.query).encode()).hexdigest()[:26]
        number = _integer(request.query.get("page", "0"))
        targets = (f"/session/?page={(number + k) % 20}&PHPSESSID={mark}" for k in range(1, 11))
        return _page(f"Page {number}", list(targets))

    def _path_session(self, request: Request) -> Response:
        """The same in the path: `/path-session/3;jsessionid=…`."""
        mark = sha256(request.path.encode()).hexdigest()[:26].upper()
        number = _integer(request.path.split("/")[2].partition(";")[0])
        targets = (f"/path-session/{(number + k) % 20};jsessionid={mark}" for k in range(1, 11))
        return _page(f"Page {number}", list(targets))

    def _many(self, request: Request) -> Response:
        """A page with more links than a crawl takes from one page, and the pages behind them."""
        if request.path == "/many/":
            return _page("Many", [f"/many/{n}" for n in range(MANY_LINKS)])
        return _page("One of many", ["/many/"])

    def _repeat(self, request: Request) -> Response:
        """Relative links that make the path longer: /repeat/a/b/a/b/…"""
        following = "b/" if request.path.endswith("/a/") else "a/"
        return _page("Repeated", [following])

    def _deeper(self, request: Request) -> Response:
        """Every page links to two new ones one level deeper, with new names."""
        path = request.path.rstrip("/")
        return _page("Deeper", [f"{path}/{_name(path + side)}/" for side in "lr"])

    def _redirect(self, request: Request) -> Response:
        """A chain of redirects that never ends, each to a new URL."""
        number = _integer(request.path.split("/")[2])
        return redirect(f"/redirect/{number + 1}")

    def _filter(self, request: Request) -> Response:
        """Facets: every page adds one more parameter to its own URL."""
        base = "&".join(f"{key}={value}" for key, value in request.query.items())
        links = (f"/filter/?{base}&f{_name(base + str(k))}=1" for k in range(5))
        return _page("Filter", [link.replace("?&", "?") for link in links])

    def _growing(self, request: Request) -> Response:
        """One parameter that gets longer with each page."""
        text = request.query.get("back", "")
        return _page("Growing", [f"/growing/?back={text}{_name(text)}"])


class Links:
    """One page for each way to write a link."""

    host = "links.localhost"
    FOUND = frozenset(
        {"/", "/plain", "/base", "/deep/from-base", "/form", "/form?kind=a&n=1", "/fragment",
         "/meta-nofollow", "/header-nofollow", "/link-nofollow", "/canonical", "/canonical-target",
         "/spaces%20in", "/upper", "/area"}
    )  # fmt: skip
    """Every page that a crawl of `/` fetches. Fetching `/frame`, a frame, is right or not."""
    HIDDEN = frozenset({"/hidden/meta", "/hidden/header", "/hidden/link"})
    """What only nofollow links lead to."""

    def answer(self, request: Request) -> Response:
        """Answer one request."""
        path = request.path
        if path == "/robots.txt":
            return Response(b"", kind="text/plain")
        headers = (("X-Robots-Tag", "nofollow"),) if path == "/header-nofollow" else ()
        body = self._body(path)
        return Response(_html(path, body[0], body[1]), headers=headers) if body else not_found()

    def _body(self, path: str) -> tuple[str, str] | None:
        """Head and content of a page."""
        hidden = path.removeprefix("/").partition("-")[0]
        match path:
            case "/":
                return "", _INDEX
            case "/base":
                return "<base href='/deep/'>", "<a href='from-base'>relative to the base</a>"
            case "/meta-nofollow":
                return "<meta name='robots' content='noarchive, NoFollow'>", _hidden("meta")
            case "/header-nofollow":
                return "", _hidden("header")
            case "/link-nofollow":
                return "", "<a rel='external nofollow' href='/hidden/link'>hidden</a>"
            case "/canonical":
                return "<link rel='canonical' href='/canonical-target'>", "<p>A copy.</p>"
            case "/form":
                return "", (
                    "<form action='/form' method='get'><input type='hidden' name='kind' value='a'>"
                    "<input type='submit' value='Go'></form>"
                    "<form action='/form' method='post'><input name='q'><button>Go</button></form>"
                    "<a href='?kind=a&amp;n=1'>the same by a link</a>"
                )
        if path in self.FOUND | self.HIDDEN | {"/frame"}:
            return "", f"<p>This is the page {escape(hidden)}, and nothing more.</p>"
        return None


_INDEX = """
<a href="/plain">plain</a> <a href="/plain#part">with a fragment</a> <a href="#top">top</a>
<a href="/fragment#a">a</a> <a href="/fragment#b">b</a> <a href="">itself</a> <a>no target</a>
<a href="javascript:void(0)">script</a> <a href="mailto:a@b.test">mail</a>
<a href="data:text/html,x">data</a> <a href="tel:+1">phone</a> <a href="ftp://a.test/">ftp</a>
<a href="http://[broken">broken</a> <a href="//other.localhost/">another host</a>
<a href="  /spaces%20in
 ">spaces</a> <A HREF='/upper'>upper case</A>
<map><area href="/area" alt="area"></map> <iframe src="/frame"></iframe>
<a href="/base">base</a> <a href="/form">form</a> <a href="/meta-nofollow">meta</a>
<a href="/header-nofollow">header</a> <a href="/link-nofollow">link</a>
<a href="/canonical">canonical</a> <a href="/canonical-target">its target</a>
<!-- <a href="/hidden/comment">in a comment</a> -->
<script>document.write("<a href='/hidden/script'>in a script</a>")</script>
<a href="/plain"><a href="/plain">twice</a>
"""


class SitemapFarm:
    """Sitemaps that a reader must bound: nested, endless, huge and packed.

    Every sitemap is linked from robots.txt; `good()` are the pages that all of them name.
    """

    host = "farm.localhost"
    MAPS = ("big.xml", "nested-0.xml", "self.xml", "endless-0.xml", "bomb.xml.gz", "twice.xml.gz",
            "text.txt", "entities.xml", "broken.xml", "foreign.xml", "gone.xml", "page.html",
            "bom.xml")  # fmt: skip

    def __init__(self, urls: int = FARM_URLS) -> None:
        self.urls = urls

    def good(self, base: str) -> set[str]:
        """The pages named by sitemaps that can be read."""
        names = [f"big-{n}" for n in range(self.urls)]
        names += [f"nested-{n}" for n in range(FARM_DEPTH)]
        names += ["self", "twice", "text", "bom", "broken"]
        return {f"{base}/page/{name}" for name in names}

    def answer(self, request: Request) -> Response:
        """Answer one request."""
        base, path = request.base, request.path
        if path == "/robots.txt":
            lines = "".join(f"sitemap:  {base}/{name}\n" for name in self.MAPS)
            return Response(f"User-agent: *\n{lines}".encode(), kind="text/plain")
        if path == "/" or path.startswith("/page/"):
            text = f"A page that a sitemap names: {path}. It has some words to read. " * 5
            return Response(_html("Named page", "", f"<p>{text}</p>"))
        kind, _, number = path.removeprefix("/").partition(".")[0].partition("-")
        n = _integer(number)
        match kind:
            case "big":
                return _xml(_urlset([f"{base}/page/big-{k}" for k in range(self.urls)]))
            case "nested":
                if n + 1 < FARM_DEPTH:
                    leaf, deeper = f"{base}/leaf-{n}.xml", f"{base}/nested-{n + 1}.xml"
                    return _xml(_index([leaf, deeper]))
                return _xml(_index([f"{base}/leaf-{n}.xml"]))
            case "leaf":
                return _xml(_urlset([f"{base}/page/nested-{n}"]))
            case "self" if number == "leaf":
                return _xml(_urlset([f"{base}/page/self"]))
            case "self":
                return _xml(_index([f"{base}/self.xml", f"{base}/self-leaf.xml"]))
            case "endless":
                return _xml(_index([f"{base}/endless-{n + k}.xml" for k in (1, 2)]))
        return self._odd(kind, base)

    def _odd(self, kind: str, base: str) -> Response:
        match kind:
            case "bomb":
                return Response(_bomb(), kind="application/gzip")
            case "twice":
                packed = gzip.compress(gzip.compress(_urlset([f"{base}/page/twice"]).encode()))
                return Response(packed, kind="application/gzip")
            case "text":
                return Response(f"{base}/page/text\r\n\r\nnot a URL\n".encode(), kind="text/plain")
            case "entities":
                entities = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>'
                return _xml(entities + _urlset([f"{base}/page/&b;"]).partition("?>")[2])
            case "broken":  # a bare & and no end
                text = _urlset([f"{base}/page/broken", f"{base}/page/broken?a=1&b=2"])
                return _xml(text.replace("&amp;", "&")[:-40])
            case "foreign":
                return _xml(_urlset(["http://other.localhost/page", "file:///etc/passwd"]))
            case "page":
                return Response(_html("No sitemap", "", "<p>Sorry.</p>"))
            case "bom":
                return Response(b"\xef\xbb\xbf\n" + _urlset([f"{base}/page/bom"]).encode())
        return not_found()


def _urlset(urls: list[str]) -> str:
    entries = "".join(f"<url><loc>{escape(url)}</loc></url>\n" for url in urls)
    return f"<?xml version='1.0'?><urlset xmlns='{_SPACE}'>{entries}</urlset>"


def _index(urls: list[str]) -> str:
    entries = "".join(f"<sitemap><loc>{escape(url)}</loc></sitemap>\n" for url in urls)
    return f"<?xml version='1.0'?><sitemapindex xmlns='{_SPACE}'>{entries}</sitemapindex>"


_SPACE = "http://www.sitemaps.org/schemas/sitemap/0.9"


def _xml(text: str) -> Response:
    return Response(text.encode(), kind="application/xml")


def _html(title: str, head: str, content: str) -> bytes:
    return (
        f"<!doctype html><html lang='en'><head><title>{escape(title)}</title>{head}</head>"
        f"<body><h1>{escape(title)}</h1>{content}</body></html>\n"
    ).encode()


def _page(title: str, links: list[str]) -> Response:
    anchors = " ".join(f"<a href='{escape(link)}'>{n}</a>" for n, link in enumerate(links))
    return Response(_html(title, "", f"<p>{anchors}</p>"))


def _hidden(name: str) -> str:
    return f"<a href='/hidden/{name}'>hidden</a>"


@cache
def _million() -> bytes:
    """As many links as ten megabytes hold, in as few bytes as possible."""
    parts, size, n = [b"<!doctype html><title>Many</title>"], 0, 0
    while size < MILLION_BYTES - 100:
        link = b"<a href=%x>" % n
        parts.append(link)
        size, n = size + len(link), n + 1
    return b"".join(parts)


@cache
def _bomb() -> bytes:
    """A sitemap that unpacks to hundreds of megabytes."""
    packer = zlib.compressobj(9, wbits=31)
    piece = b" " * 1_000_000
    parts = [packer.compress(b"<?xml version='1.0'?><urlset>")]
    parts += [packer.compress(piece) for _ in range(BOMB_BYTES // len(piece))]
    return b"".join([*parts, packer.flush()])


def _name(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:8]


def _integer(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0


def main() -> None:
    """Serve all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--size", type=int, default=1000, help="pages of the graph")
    parser.add_argument("--farm", type=int, default=FARM_URLS, help="URLs of the largest sitemap")
    parser.add_argument("--latency-ms", type=int, default=0)
    given = parser.parse_args()
    sites: list[Site] = [Trap(), Links(), SitemapFarm(given.farm), Graph(given.size)]
    serve(sites, given.port, given.latency_ms / 1000)


if __name__ == "__main__":
    main()
