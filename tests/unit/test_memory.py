"""One page adds little memory beside its body, whatever is in it."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial

import pytest

from crawler.sites.fieldfile import Field

MOST_MB = 68
"""What is promised for all that is made of one page: text, tree, verdict, fields, record. Holes in
the heap of a reader make a difference of one megabyte."""

READER = """
import os
import sys
import crawler.scraping.attempt, crawler.scraping.stored  # a worker has loaded them, too
from crawler.errors import FetchError
from crawler.scraping.examine import examine
from crawler.sites import Site
from crawler.sites.fieldfile import Field
from tests.support.tasks import page
from tests.unit.test_memory import FIELDS, MANY_FIELDS, PAGES, REPEATED

def made(fields):
    named = {str(number): Field(**field) for number, field in enumerate(fields)}
    return Site(name="county", version="1", fields=named)

every, many = made(FIELDS), made(MANY_FIELDS)

def status(name):
    for line in open("/proc/self/status"):
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024 / 1e6

def read(body, site):
    try:
        return examine(page("https://county.example/", body), site).verdict.name
    except FetchError as error:
        return error.reason

def measure(body, site):
    body = (body if isinstance(body, bytes) else body.encode())[:10_000_000]
    open("/proc/self/clear_refs", "w").write("5")
    before = status("VmRSS")
    outcome = read(body, site)
    return outcome, round(status("VmHWM") - before)

for site in (every, many):
    read(b"<p>small \\xff</p>" * 100, site)
for name in map(str.strip, sys.stdin):
    if os.fork() == 0:
        body = (PAGES | REPEATED)[name]()
        print(*measure(body, many if name in REPEATED else every), sep=";", flush=True)
        os._exit(0)
    os.wait()
"""
FIELDS = [
    {"css": "h1"},
    {"css": "td", "all": True},
    {"css": ", ".join(["*", "div > p"] * 16), "all": True},
    {"css": "div p", "all": True},
    {"css": "a", "attr": ["href"], "type": "url", "all": True},
    {"css": "body", "regex": r"(\d+) b"},
    *({"css": css, "type": "html"} for css in ("html", "div", "p", "a", "template")),
    *(
        {"css": "div", "type": kind, "all": True}
        for kind in ("text", "html", "number", "integer", "date", "boolean", "url")
    ),
    *(
        {"css": "[title]", "attr": ["title"], "type": kind}
        for kind in ("text", "html", "url", "number")
    ),
    {"each": "div, tr", "fields": {"a": Field(css="p, td", all=True), "b": Field(label="x")}},
    {"each": "div", "fields": {"a": Field(each="p", fields={"x": Field(regex=r"\d+")})}},
    {"json": "a.b", "regex": "=", "all": True},
    *({key: "a.b", "all": True} for key in ("json_ld", "microdata", "meta", "label")),
    {"css": "p", "join": ", "},
    {"css": "p", "keywords": ("nothing",)},
]
"""Every type of field, for one element and for all."""
MANY_FIELDS = [{"css": "body", "type": "html"}] * 1_000


def _wide(before: str, between: str = "<br>") -> str:
    """A text of many parts in one element, of which each character takes four bytes."""
    return before + ("😀" + "it's a word " * 33_000 + between) * 24


def _value(before: str) -> str:
    """A value that nothing but its quote ends."""
    return f"<{before}=' 😀" + 'x"> ' * 1_700_000 + " '>y"


def _in_table(piece: str) -> str:
    return "<table>" + piece * 30_000


def _numbered(piece: str, count: int) -> str:
    return "".join(piece.format(number) for number in range(count))


def _named_columns(sign: str, rows: int) -> str:
    """A table whose names of columns take most to write."""
    return (
        "<table><tr>"
        + _numbered(f"<th>{sign * 196}{{:03d}}", 50)
        + ("<tr>" + "<td>" * 50) * rows
        + "</table>"
    )


ROW = "<tr>\n" + " <td>123.45</td>\n" * 5 + "</tr>\n"
JSON = '<script type="application/ld+json">'
PAGES: dict[str, Callable[[], str | bytes]] = {
    "metas": lambda: "<meta name=a content=b>" * 400_000,
    "paragraphs": lambda: "<p>some words\n" * 700_000,
    "closed paragraphs": lambda: "<p>some words</p>\n" * 100_000,
    "long paragraphs": lambda: ("<p>" + "some words " * 20 + "</p>\n") * 40_000,
    "a table": lambda: "<table>" + ROW * 20_000 + "</table>",
    "an open table": lambda: "<table>" + "<tr><td>1<td>2<td>3<td>4<td>5" * 20_000,
    "rows": lambda: "<table>" + "<tr>" * 290_000,
    "empty paragraphs": lambda: "<title>t</title>" + "<p>" * 355_000,
    "breaks": lambda: "<br>" * 355_000,
    "paragraphs of one wide character": lambda: "<p>😀" * 170_000,
    "paragraphs in UTF-16": lambda: b"\xff\xfe" + ("<p>\u4e00" * 160_000).encode("utf-16le"),
    "breaks in GB18030": lambda: b"<meta charset=gb18030>" + b"\x81\x30\x81\x30 <br>" * 300_000,
    "headings": lambda: "<h1>" * 290_000,
    "images": lambda: "<img>" * 290_000,
    "end tags": lambda: "</x>" * 490_000,
    "links": lambda: _numbered("<a href=/x{}>y</a>", 120_000),
    "long links": lambda: _numbered("<a href='/x{}😀" + "z" * 900 + "'>y</a>", 9_500),
    "attributes": lambda: _numbered("<p a=1 b=2 c=3 d=4 e=5 f=6 g=7 h=8 id={}>", 200_000),
    "tags that do not end": lambda: "< " * 60 + '="' + "x'" * 5_000_000,
    "names that do not end": lambda: "< " * 60 + ("x" * 500_000 + "'") * 20,
    "hidden parts": lambda: "<p hidden>x" * 120_000,
    "one text": lambda: "word " * 2_000_000,
    "one wide text": lambda: "word 😀" + "word " * 1_300_000,
    "one wider text": lambda: "word 😀" + "word " * 2_000_000,
    "high bytes": lambda: "я".encode("koi8-r") * 10_000_000,
    "wrong bytes": lambda: b"\xff" * 10_000_000,
    "wrong bytes of UTF-8": lambda: b"<meta charset=utf-8>" + b"\xe2\x82 " * 3_300_000,
    "errors": lambda: "&#" * 5_000_000,
    "errors in a tag": lambda: "<a " + "=" * 9_000_000,
    "comments": lambda: "<!-->" * 400_000,
    "formatting": lambda: "<div>" + _numbered("<b id={}>", 380) + "</div>" + "<p>x" * 50_000,
    "large formatting": lambda: (
        "<div>" + _numbered(f"<b title='{'x' * 9_000}{{}}'>", 500) + "</div>" + "<p>x" * 300
    ),
    "JSON": lambda: JSON + "[" + '{"a":{}},' * 50_000 + "{}]</script>",
    "JSON and a table": lambda: (
        JSON + "[" + '{"a":{}},' * 9_000 + "{}]</script><table>" + ROW * 15_000
    ),
    "names of properties": lambda: "<div itemscope><p itemprop='" + "a " * 4_900_000 + "'>x",
    "items elsewhere": lambda: (
        "<div itemscope itemref='" + "a " * 4_000_000 + "'></div><p id=a itemprop=b>x"
    ),
    "wide text": lambda: "word 😀" + "it's " * 2_000_000,
    "wide text with brackets": lambda: "<p>" + ("word " * 100_000 + "😀< ") * 20,
    **{
        f"wide text in {name}": partial(_wide, f"<{name}>")
        for name in (
            "p",
            "a href=x",
            "b",
            "h1",
            "title",
            "button",
            "noscript",
            "dl><dt",
            "div itemscope><i itemprop=a",
        )
    },
    "wide text in a cell": partial(_wide, "<table><td>"),
    "wide text in a script": partial(_wide, "<script>", "if (a<b) c;"),
    "wide text between comments": partial(_wide, "<p>", "<!-- -->"),
    "wide comments": partial(_wide, "<div>", "<!--😀" + "it's " * 10_000 + "-->"),
    "a wide comment": lambda: "<div><!--😀" + "it's > " * 1_400_000,
    "a wide template": partial(_wide, "<template><p>"),
    **{
        f"a wide {name}": partial(_value, name)
        for name in (
            "p title",
            "a href",
            "html lang",
            "base href",
            "input type",
            "input type=submit value",
            "p class",
        )
    },
    **{
        f"a wide {name}": partial(_value, f"p itemscope itemref=a><p {name}")
        for name in ("id", "itemprop", "itemprop=b content", "itemscope itemref")
    },
    "a wide meta": partial(_value, "meta name=description content"),
    "a wide tag": lambda: "<x😀" + "x'" * 4_900_000,
    "a link around all": lambda: "<a href=x>" + ("it's a word " * 33_000 + "<br>") * 24,
    "spaces that do not break": lambda: "<div>" + ("\xa0" * 200_000 + "<br>") * 20,
    "signs to be escaped": lambda: "<div>" + ("&amp;'" * 80_000 + "<br>") * 20,
    "cells in no table": lambda: "word <th class='b c6' href='/x'>" * 30_000,
    "cells in no table of a small page": lambda: "word <th a=b>" * 4_900,
    "attributes of end tags": lambda: "<p>" + "word </x a=b c=d>" * 30_000,
    "rows around words": lambda: "<table>" + "word <tr a=b>" * 30_000,
    "forms in a form": lambda: "<form>" + "word <form a=b>" * 30_000,
    "cells behind a table": lambda: (
        "<table>" + "<tr><td>x</td></tr>" * 30_000 + "</table>" + "word <td a=b>" * 30_000
    ),
    **{
        f"words behind {name} in a table": partial(_in_table, f"word <{name} a=b></{name}>")
        for name in ("script", "template", "input type=hidden", "form", "style")
    },
    "a table with attributes": lambda: "<table>" + ROW.replace("<td", "<td class=a") * 9_000,
    "names of columns": lambda: _named_columns("\x01", 380) + _named_columns("\x01", 998),
    "wide names of columns": lambda: _named_columns("😀", 999),
    "cells of signs to be escaped": lambda: (
        "<table><tr><th>a<th>b" + f"<tr><td>{chr(1) * 1_990}<td>b" * 900
    ),
    "values of signs to be escaped": lambda: (
        "<div><p" + _numbered(" a{}='漢" + '"' * 100_000 + "'", 95) + ">x"
    ),
    "pairs of signs to be escaped": lambda: (
        "<dl>" + _numbered(f"<dt>{{}}<dd>{chr(1) * 1_990}", 1_900)
    ),
    "zero bytes": lambda: "<p>a\0" * 100_000 + "\0" * 9_000_000,
    "templates": lambda: "<template><p>word" * 100_000,
}


REPEATED: dict[str, Callable[[], str]] = {
    "a small page in many fields": lambda: "<div><p>some words in it</p>" * 2_000,
    "long values in many fields": lambda: f"<p title='{'w ' * 50_000}'>x" * 90,
    "wide text in many fields": lambda: "<p>" + "it's 😀 " * 100_000,
}
"""Pages that a site with very many fields repeats in each of them."""


Measure = Callable[[str], tuple[str, int]]


@pytest.fixture(scope="module")
def measured() -> Iterator[Measure]:
    """What came of a page, and by how many megabytes the process that read it has grown: each has
    its own fork of one reader."""
    with subprocess.Popen(
        [sys.executable, "-c", READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        given, answers = reader.stdin, reader.stdout
        assert given
        assert answers

        @cache
        def measure(name: str) -> tuple[str, int]:
            print(name, file=given, flush=True)
            outcome, grown = answers.readline().split(";")
            return outcome, int(grown)

        yield measure
    assert reader.returncode == 0


@pytest.mark.parametrize("name", [*PAGES, *REPEATED])
def test_one_page_adds_little_memory(measured: Measure, name: str) -> None:
    """Whatever is read or refused: the peak grows by no more than the promise while a page is
    read."""
    outcome, grown = measured(name)

    assert grown <= MOST_MB, f"{outcome}: {grown} MB"


@pytest.mark.parametrize(
    "name",
    [
        "a table",
        "an open table",
        "a table with attributes",
        "closed paragraphs",
        "long paragraphs",
        "one text",
    ],
)
def test_large_pages_are_read(measured: Measure, name: str) -> None:
    """What real archives send is within the limit."""
    assert measured(name)[0] == "ok"
