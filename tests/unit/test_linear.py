"""Whatever a server sends, the time to read it grows with its size, not with a power of it."""

import gzip
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import brotli
import pytest
from selectolax.lexbor import LexborHTMLParser

from crawler import urls
from crawler.errors import CrawlerError
from crawler.fetch import charset, robots, session, wire
from crawler.fetch.body import Body
from crawler.fetch.budget import Budget
from crawler.judge import sight
from crawler.judge.rules import judge
from crawler.logs import printable
from crawler.resilience import retry_after
from crawler.results import formats
from crawler.sites import pairs, parser, selectors, structured, text, values
from crawler.sites.fieldfile import Field
from tests.support.tasks import page

URL = "https://county.example/records/1?a=b"
TIMES, MOST = 16, 64
"""How much larger the larger input is, and how much more time it may take: four times the fair
share."""
NOISE_S = 0.001
"""What the clock cannot tell from nothing."""

Shape = Callable[[int], str]


def times(piece: str, before: str = "", after: str = "") -> Shape:
    """As many of these as there is room for."""
    return lambda size: (
        before + piece * ((size - len(before) - len(after)) // len(piece) + 1) + after
    )


def numbered(piece: str, before: str = "", after: str = "") -> Shape:
    """The same, each with another number."""
    return lambda size: before + "".join(map(piece.format, range(size // (len(piece) + 1)))) + after


def halves(first: str, second: str, after: str = "") -> Shape:
    """As many of the first as of the second."""
    return lambda size: times(first)(size // 2) + times(second)(size // 2) + after


LD = '<script type="application/ld+json">'
NESTED = (
    "div p table form b font svg math template select option button noscript iframe script style "
    "textarea title a li dd h1 span nobr object frameset body head plaintext xmp rt optgroup main "
    "article tr td caption pre x-y"
)
SHAPES: dict[str, Shape] = {
    **{
        piece: times(piece)
        for piece in ("<", "</", "<!", "<!--", "<?", "<a", "<a ", "<a/", "<a b=", "<a b='", "<é>")
    },
    **{
        piece: times(piece)
        for piece in ("&", "&#", "&#x1F600;", "&amp", "]]>", "<![CDATA[x]]>", "=", '"', "'", "\\")
    },
    **{
        repr(piece): times(piece)
        for piece in (" ", "\n", "\r\n", "\t", "\0", "x", "é", "漢", "😀", "\ufeff", "\ufffd")
    },
    **{
        piece: times(piece)
        for piece in (":", "; ", "a=b;", ", ", "a,", "/", "../", "%", "%41", "@", "?", "*a", "$")
    },
    **{
        piece: times(piece)
        for piece in ("1", "1 234", "1,", "-", ".", "(", "- | -", "word ", "[", "{", "a-", "1.")
    },
    **{piece: times(piece) for piece in (" 234", "m2 ", "5 mar ", "mar 5 ", "1/1/", "1年", "٣")},
    "accents": times("e\u0301\u0316"),
    **{f"nested {tag}": times(f"<{tag}>") for tag in NESTED.split()},
    "a quote without end": times("x <a ", '<a b="'),
    "quotes in quotes": times("<a b='x\" "),
    "one huge name": times("x", "<a "),
    "one huge tag": times("x", "<"),
    "one huge value": times("x", "<p title='", "'>"),
    "many values": numbered(" a{}='b'", "<div", ">"),
    "many attributes": lambda size: (
        ("<p" + "".join(f" a{n}" for n in range(90)) + ">") * (size // 350 + 1)
    ),
    "names of attributes": numbered("<p a{}>"),
    "names on end tags": numbered("</p a{}=1>"),
    "names of tags": numbered("<x{0}></x{0}>"),
    "ids": numbered("<p id={0} class=c{0}>x"),
    "classes": numbered(" c{}", "<p class='", "'>x"),
    "forms": times("<form><div></form>"),
    "forms around spans": halves("<form><div></form>", "<span></span>"),
    "forms around all": halves("<form><div></form>", "<span></span>", "<p>x"),
    "siblings": times("<div>x</div>"),
    "paragraphs": times("<p>some words here</p>\n"),
    "open paragraphs": times("<p>word"),
    "lines with a label": times("<li>a: b</li>"),
    "labels in spans": times("<p><span>a</span>: b"),
    "labels before values": times("<li>a <b>b</b></li>"),
    "lines in a paragraph": times("a: b<br>", "<p>"),
    "lines in a text": times("a: b\n", "<pre>"),
    "dots behind a label": times(" .", "<pre>a: b\nc"),
    "values above labels": times("<div><p class=value>1<p class=label>a</div>"),
    "labels in lists in lists": times("<ul><li>a: <i>b</i><span>c"),
    "void elements": times("<br><img><input><hr>"),
    "formatting across blocks": times("<b><p></b>"),
    "formatting across itself": times("<b><i></b></i>"),
    "formatting left open": times("<p><b><i></p>"),
    "formatting left open, numbered": numbered("<p><font color={}>x</p>"),
    "formatting behind a mark": times("<b><object></object>x"),
    "links around all": times("<a><b><i><p></a>"),
    "a comment without end": times("x-", "<!--"),
    "a comment of dashes": times("-", "<!--"),
    "comments": times("<!-- x -->"),
    "a section without end": times("]", "<svg><![CDATA["),
    "tables in tables": times("<table><tr><td>"),
    "formatting in tables": times("<table><b>"),
    "text in a table": times("x<tr>", "<table>"),
    "rows": times("<tr><td>a<td>b", "<table>"),
    "one row": times("<td>a", "<table><tr>"),
    "tables": times("<table><tr><td>a<td>b</table>"),
    "a headed table": times("<tr><td>1<td>2", "<table><tr><th>a<th>b"),
    "columns": numbered("<th>c{}", "<table><tr>", "<tr><td>1"),
    "definitions": times("<dt>a<dd>b", "<dl>"),
    "definitions in definitions": times("<dl><dd>"),
    "metas": times('<meta name=a content="b">'),
    "metas with names": numbered('<meta property="og:x{}" content="b">'),
    "links": numbered('<a href="/x{}">y</a>'),
    "blocks of JSON": times(LD + '{"@type":"A","b":[1,2]}</script>'),
    "deep JSON": times('{"a":', LD),
    "flat JSON": times("{},", LD + "[", "{}]</script>"),
    "JSON with commas": times(",  ", LD + "{", "x}</script>"),
    "JSON with quotes": times('\\"', LD + '{"', "</script>"),
    "JSON of types": times('"@type"', LD + "[", "</script>"),
    "headings": times("<h1>a</h1>"),
    "headings in headings": times("<h1><div>"),
    "long words": times("x" * 1000 + " "),
    "zero bytes in tags": times("<\0p>"),
    "lines": times("\na"),
    "folded lines": times("\n a", "A: b"),
    "lines without a colon": times("abc\r\n"),
    "headers": numbered("A{}: b\r\n"),
    "the same header": times("Set-Cookie: a=b; Path=/\r\n"),
    "chunks": times("1\r\nx\r\n"),
    "extensions": times("1;a=b;c=d\r\nx\r\n"),
    "rules": numbered("Disallow: /a{}\n", "User-agent: *\n"),
    "rules with stars": times("Disallow: /*a*a*a*a*b\n", "User-agent: *\n"),
    "one rule of stars": times("*a", "User-agent: *\nDisallow: /"),
    "agents": numbered("User-agent: a{}\nDisallow: /\n"),
    "agents, then rules": halves("User-agent: *x\n", "Disallow: /a\n"),
    "many agents, then rules": lambda size: (
        numbered("User-agent: a{}\n")(size // 2) + "Disallow: /a\n" * (size // 26)
    ),
    "delays": times("Crawl-delay: 1\n", "User-agent: *\n"),
    "a long delay": times("1", "User-agent: *\nCrawl-delay: "),
    "properties": times("<i itemprop=a>b</i>", "<div itemscope>"),
    "items in items": times("<div itemscope itemprop=a>"),
    "items": times("<div itemscope><i itemprop=a>b</i></div>"),
    "items elsewhere": numbered("<div itemscope itemref='a{0}'></div><p id=a{0} itemprop=b>x</p>"),
    "one item of all": times("a ", "<div itemscope itemref='", "'></div><p id=a itemprop=b>x"),
    "one property of all names": numbered(" a{}", "<div itemscope><p itemprop='", "'>x"),
    "properties of no item": times("<div><i itemprop=a>"),
    "labels": times("<b>a:</b> x<br>"),
    "labels in labels": times("<div><b>a:</b>", "", "x"),
    "labels around a text": lambda size: "<div><b>a:</b>" * 300 + "x " * (size // 2),
    "labels and comments": times("<b>a</b><!-- x -->"),
    "labels in wrappers": times("<p><span><b>a</b></span>"),
    "bold values": times("a: <b>b</b><br>"),
    "rows of four": times("<tr><td>a<td>1<td>b<td>2", "<table>"),
    "heads between rows": times("<tr><th>a<th>b<tr><td>1<td>2", "<table>"),
    "bold heads": times("<tr><td><b>a</b><td><b>b</b><td><b>c</b><tr><td>1<td>2<td>3", "<table>"),
    "tables below rows": times("<table><tr><td>a<td>b<tr><td>"),
    "boxes": times("<div><span>a</span><span>1</span></div>"),
    "boxes in turn": times("<div class=k>a</div><div class=v>1</div>", "<div>"),
    "boxes in boxes": times("<div><span>a</span>"),
    "boxes around boxes": times("<div><div class=a>"),
    "inputs that show": times("<label>a</label><input readonly value=b>"),
    "hidden parts": times("<div hidden>x</div>"),
    "hidden in hidden": times("<div hidden>"),
    "buttons": times("<button>x</button>"),
    "options": times("<option>x", "<select>"),
    "scripts": times("<script>x</script>"),
    "code": times("if (a<b) x;", "<script>", "</script>"),
    "scripts in comments": times("<script><!--<script></script>"),
    "no end of a script": times("</scrip", "<script>"),
    "end tags": times("</p>"),
    "end tags of nothing": times("<div></x>"),
    "ends of the body": times("</body><p>"),
    "templates": times("<template><p>x</template>"),
    "templates in templates": times("<template><div>"),
    "images in images": times("<svg><foreignObject>"),
    "ways out of images": times("<svg><g><p>"),
    "lists": times("<li>x", "<ul>"),
    "lists in lists": times("<ul><li>"),
    "deep, then flat": lambda size: "<div>" * min(390, size // 20) + "<div></div>" * (size // 11),
    "flat, then deep": lambda size: "<p>x</p>" * (size // 16) + "<div>" * (size // 10),
}
FIELDS = [
    Field(css="div, td, li"),
    Field(css="div", type="html"),
    Field(css="div div td", all=True),
    Field(css="p:has(b)"),
    Field(css="div:not(:has(p))", all=True),
    Field(css=":is(div, p) > b", all=True),
    Field(css="tr:nth-child(2n+1) td:nth-of-type(2)", all=True),
    Field(css="b ~ i", all=True),
    Field(css="dt + dd"),
    Field(css="body", regex=r"(\d+)\s+(a|b)*c"),
    Field(css="a", attr=("href",), type="url", all=True),
    Field(css="p", type="number", all=True),
    Field(css="td", type="date", all=True),
    Field(css="div:has(> p + b) a:last-child", all=True),
    Field(css="a:contains(x)"),
    Field(css="[id^=a]", all=True),
    Field(each="div, tr", fields={"a": Field(css="p, td", all=True), "b": Field(label="x")}),
    Field(each="div", fields={"a": Field(each="p, div", fields={"x": Field(regex=r"\d+")})}),
    Field(label="Owner", all=True),
    Field(meta="a", all=True),
    Field(json_ld="a.b", all=True),
    Field(json="a.b", regex="=", all=True),
    Field(microdata="a.b", all=True),
    Field(regex=r"(\d+) b"),
    Field(css="p", keywords=("nothing",)),
    Field(css="td, p", join=", "),
    Field(css="p", type="price", all=True),
    Field(css="td", type="area", all=True),
    Field(css="li", type="floor", all=True),
]
ASKED = {f"field{number}": field for number, field in enumerate(FIELDS)}


def judged(tree: LexborHTMLParser) -> None:
    """With a status that asks for every rule, and one that is well."""
    for status in (403, 200):
        judge(page(URL, tree.raw_html, status=status), tree.raw_html, tree)


def flattened(tree: LexborHTMLParser) -> None:
    data = structured.extract(tree, URL)
    formats.flatten({"parser": None, "raw": None, "input": {}, "data": data})


PARTS: dict[str, Callable[[LexborHTMLParser], object]] = {
    "judge": judged,
    "glance": lambda tree: sight.glance(tree, Budget()),
    "look": lambda tree: sight.look(tree, sight.Sight(), Budget()),
    "selectors": lambda tree: selectors.extract(tree, ASKED, URL),
    "structured_metas": lambda tree: list(structured.metas(tree)),
    "structured_json_ld": lambda tree: structured.json_ld(tree, Budget()),
    "structured_links": lambda tree: structured._links(tree, URL, Budget()),
    "structured_headings": lambda tree: structured._headings(tree, Budget()),
    "pairs_grids": lambda tree: pairs.grids(tree, Budget()),
    "pairs": lambda tree: pairs.read(tree, Budget()),
    "structured_microdata": lambda tree: structured.microdata(tree, URL, Budget()),
    "structured_remove_controls": lambda tree: structured._remove_controls(tree, Budget()),
    "structured_remove_beside": lambda tree: structured._remove_beside(
        tree.css("aside, form"), Budget()
    ),
    "structured_main_text": lambda tree: structured._main_text(
        tree, tree.css("aside, form"), Budget()
    ),
    "structured": lambda tree: structured.extract(tree, URL),
    "flat": flattened,
}
"""What sees a page's tree; those that change it come last, and get one of their own."""
CHANGING = (
    "structured_remove_controls",
    "structured_remove_beside",
    "structured_main_text",
    "structured",
    "flat",
)


def in_pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def end_of_head(data: bytes) -> None:
    """As a connection looks for it while the bytes come in."""
    for known in range(0, len(data), 500):
        wire.end_of_head(data[: known + 500], max(0, known - 2))


def headed(data: bytes) -> None:
    wire.framing(wire.parse_head(b"HTTP/1.1 200 OK\r\n" + data))


def valued(data: bytes) -> None:
    """The headers that say how a body ends, each with such a value."""
    value = b" ".join(data.split())
    for name in (b"Content-Length", b"Transfer-Encoding", b"Connection"):
        headed(name + b": " + value + b"\r\n")


def chunked(size: int) -> Callable[[bytes], None]:
    def feed(data: bytes) -> None:
        chunks = wire.Chunks()
        for piece in in_pieces(b"%x\r\n%s\r\n" % (len(data), data), size):
            chunks.feed(piece)

    return feed


def unchunked(data: bytes) -> None:
    wire.Chunks().feed(data)


def coded(coding: str, pack: Callable[[bytes], bytes], size: int) -> Callable[[bytes], None]:
    def feed(data: bytes) -> None:
        body = Body(coding, 10_000_000)
        for piece in in_pieces(pack(data), size):
            body.feed(piece)
        body.finish()

    return feed


def in_charset(name: str) -> Callable[[bytes], object]:
    return lambda data: charset.utf8(data, f"text/html; charset={name}")


def set_cookies(text: str) -> None:
    jars = session.Jars(clock=lambda: 0.0)
    jars.take("https", "county.example", "/", [text, *text.split("\n")])
    jars.header("https", "county.example", "/")


def obeyed(text: str) -> None:
    rules = robots.Rules(
        robots.RobotsAnswer(origin="https://a.example", at=0.0, status=200, text=text)
    )
    rules.allow(URL, "crawler")
    rules.allow("https://county.example/" + "a" * 4_000, "crawler")
    rules.crawl_delay_s("crawler")


OF_TEXT: dict[str, Callable[[str], object]] = {
    "cookies": set_cookies,
    "robots": obeyed,
    "retry_after": lambda text: retry_after(text, 0.0),
    "content type": lambda text: charset.decode(b"x", f"text/html; charset={text}"),
    "printable": printable,
    "absolute": lambda text: structured.absolute(URL, text),
    "without_credentials": lambda text: urls.without_credentials(f"https://{text}"),
    "url": lambda text: urls.parse(f"https://a.example/{text}"[: urls.MAX_LENGTH]),
    "host": lambda text: urls.parse(f"https://{text}"[: urls.MAX_LENGTH]),
    "number": values.number,
    "day": values.day,
    "boolean": values.boolean,
    "joined": text.joined,
}
CHARSETS = ("utf-8", "utf-16le", "gb18030", "big5", "iso-2022-jp", "shift_jis", "windows-1252")
OF_BYTES: dict[str, Callable[[bytes], object]] = {
    "parse": parser.parse,
    "end of head": end_of_head,
    "head": headed,
    "framing": valued,
    "chunk": chunked(1 << 16),
    "chunk in pieces": chunked(7),
    "chunks": unchunked,
    "identity": coded("", bytes, 100),
    "gzip": coded("gzip", gzip.compress, 100),
    "deflate": coded("deflate", zlib.compress, 100),
    "br": coded("br", lambda data: brotli.compress(data, quality=1), 100),
    "JSON": lambda data: structured.extract_plain(data, True, Budget()),
    "text": lambda data: structured.extract_plain(data, False, Budget()),
    "detection": lambda data: charset.utf8(data, "text/html"),
    "detection of others": lambda data: charset.utf8(b"\xff" + data, ""),
    "declared as utf-8": lambda data: charset.utf8(b"<meta charset=utf-8>\xff" + data, ""),
    "declared as windows-1251": lambda data: charset.utf8(
        b"<meta charset=windows-1251>\xd0\xaf" + data, ""
    ),
    **{f"as {name}": in_charset(name) for name in CHARSETS},
}
SMALL = 8_000
SIZES = {"parse": 625_000}
"""The smaller size, and that of the parser, whose larger one is the limit on a page."""


def seconds(run: Callable[[], object], repeat: int) -> float:
    """The CPU time of this thread, at best."""
    best = float("inf")
    for _ in range(repeat):
        began = time.thread_time()
        with suppress(CrawlerError):  # refused, which is fine if it was soon
            run()
        best = min(best, time.thread_time() - began)
    return max(best, NOISE_S)


def is_linear(made: Callable[[int], Callable[[], object]], size: int) -> bool:
    """Whether the larger input takes its share; what is in doubt is measured again."""
    large = made(TIMES * size)
    took = seconds(large, 1)
    if took <= MOST * NOISE_S:  # whatever the smaller takes
        return True
    small = made(size)
    if took <= MOST * seconds(small, 1):
        return True
    return any(seconds(large, repeat) <= MOST * seconds(small, repeat) for repeat in (3, 5))


def not_linear(made: Callable[[str], Callable[[], object]], size: int) -> list[str]:
    def run_of(shape: Shape, size: int) -> Callable[[], object]:
        return made(shape(size))

    return [name for name, shape in SHAPES.items() if not is_linear(partial(run_of, shape), size)]


@pytest.mark.parametrize("name", OF_TEXT)
def test_text_is_read_in_linear_time(name: str) -> None:
    """Every function that sees a page's text, or the value of a header."""
    function = OF_TEXT[name]

    assert not_linear(lambda text: partial(function, text), SIZES.get(name, SMALL)) == []


@pytest.mark.parametrize("name", OF_BYTES)
def test_bytes_are_read_in_linear_time(name: str) -> None:
    """Every function that sees what came over the wire."""
    function = OF_BYTES[name]

    assert not_linear(lambda text: partial(function, text.encode()), SIZES.get(name, SMALL)) == []


@pytest.mark.parametrize("shape", SHAPES)
def test_trees_are_read_in_linear_time(shape: str) -> None:
    """Every function that sees a page's tree, where there is one."""
    small, large = SHAPES[shape](SMALL), SHAPES[shape](TIMES * SMALL)

    def least(function: Callable[[LexborHTMLParser], object], text: str, repeat: int) -> float:
        """The best time, of a tree of its own each."""
        return min(seconds(partial(function, parser.parse(text)), 1) for _ in range(repeat))

    try:
        parser.parse(small)
        tree = parser.parse(large)
    except CrawlerError:
        return  # refused, so that nobody sees a tree
    for name, function in PARTS.items():
        if name in CHANGING:
            tree = parser.parse(large)
        took = seconds(partial(function, tree), 1)
        if took <= MOST * NOISE_S:  # whatever the smaller takes
            continue
        if took > MOST * least(function, small, 1):
            assert least(function, large, 5) <= MOST * least(function, small, 5), name
