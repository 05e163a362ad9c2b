"""The default parser: what a page says about itself."""

import json
import time
from collections.abc import Callable, Iterator
from html import escape

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crawler.sites import pairs, structured
from crawler.sites.parser import parse
from crawler.sites.structured import MAX_LINKS, NAME, VERSION
from crawler.sites.text import MAX_TEXT

URL = "https://county.example/parcels/12-34?tab=1"


def extract(html: str, url: str) -> structured.Record:
    """The record of a page given as text."""
    return structured.extract(parse(html), url)


def test_the_parser_has_a_name_and_a_version() -> None:
    """A record can say which parser made it."""
    assert (NAME, VERSION) == ("default", "2")


def test_nothing_is_reported_of_an_empty_page() -> None:
    """A key is there only if the page has something for it."""
    assert extract("", URL) == {}


def test_the_head_of_a_page() -> None:
    """Title, description, canonical URL and language come from where pages declare them."""
    html = """<html lang="en-US"><head><title> Parcel
      12-34 </title><meta name="Description" content="An  assessment">
      <link rel="Canonical" href="/parcels/12-34#top"></head>"""

    record = extract(html, URL)

    assert record == {
        "title": "Parcel 12-34",
        "description": "An assessment",
        "canonical": "https://county.example/parcels/12-34",
        "language": "en-US",
    }


def test_the_title_of_an_icon_is_not_the_page_title() -> None:
    """`<title>` inside an image is ignored."""
    assert "title" not in extract("<body><svg><title>Menu</title></svg>", URL)


def test_headings_keep_level_and_order() -> None:
    """Headings come in the page's order, empty ones do not."""
    record = extract("<h2>B <em>b</em></h2><h1>A</h1><h3> </h3><h6>C</h6>", URL)

    assert record["headings"] == [
        {"level": 2, "text": "B b"},
        {"level": 1, "text": "A"},
        {"level": 6, "text": "C"},
    ]


@pytest.mark.parametrize(
    "block",
    [
        '{"@type": "Place", "name": "a, ]"}',
        '[{"@type": "Place", "name": "a, ]"}]',
        '<!-- {"@type": "Place", "name": "a, ]"} -->',
        '//<![CDATA[\n{"@type": "Place", "name": "a, ]"}\n//]]>',
        '/*<![CDATA[*/ {"@type": "Place", "name": "a, ]"} /*]]>*/',
        '{"@type": "Place", "name": "a, ]",};',
    ],
)
def test_json_ld_is_read_with_its_usual_flaws(block: str) -> None:
    """Comments, CDATA marks and trailing commas around or in the JSON do not matter; strings stay
    as they are."""
    record = extract(f'<script type="application/LD+json; charset=utf-8">{block}</script>', URL)

    assert record["json_ld"] == [{"@type": "Place", "name": "a, ]"}]


def test_json_ld_keeps_graphs_and_skips_what_is_broken() -> None:
    """A broken block takes nothing from the others, and a graph is kept as one object."""
    html = """<script type="application/ld+json">{"broken": </script>
      <script type="application/ld+json">{"@graph": [{"@id": "#a"}]}</script>
      <script type="application/ld+json">"only a string"</script>"""

    assert extract(html, URL)["json_ld"] == [{"@graph": [{"@id": "#a"}]}]


def test_json_ld_holds_nothing_that_cannot_be_stored() -> None:
    """NUL, lone surrogates, raw line breaks and infinite numbers are taken out."""
    block = r'{"a\u0000": "x\u0000y\ud800z", "n": 1e999, "line": "1' + "\n" + '2"}'

    record = extract(f"<script type=application/ld+json>{block}</script>", URL)

    assert record["json_ld"] == [{"a": "xyz", "n": None, "line": "1\n2"}]


def test_opengraph_and_its_kin_keep_their_names() -> None:
    """Properties with a prefix are kept under their own name, repeated ones as a list."""
    html = """<meta property="og:title" content="T"><meta property="og:image" content="a">
      <meta property="og:image" content="b"><meta name="twitter:card" content="summary">
      <meta property="article:tag" content="x">
      <meta name="viewport" content="y"><meta property="og:empty" content="">"""

    assert extract(html, URL)["opengraph"] == {
        "og:title": "T",
        "og:image": ["a", "b"],
        "twitter:card": "summary",
        "article:tag": "x",
    }


def test_microdata_nests() -> None:
    """An item holds its properties, nested items, and values from the attribute that fits the
    element."""
    html = """<div itemscope itemtype="https://schema.org/Place" itemid="urn:1">
      <h1 itemprop="name">A <b>b</b></h1> <img itemprop="image" src="/i.png">
      <time itemprop="built" datetime="1950">x</time>
      <meta itemprop="tag" content="t1"> <meta itemprop="tag" content="t2">
      <p itemprop="address" itemscope itemtype="https://schema.org/PostalAddress">
        <i itemprop="city locality">X</i></p>
    </div>"""

    assert extract(html, URL)["microdata"] == [
        {
            "type": "https://schema.org/Place",
            "id": "urn:1",
            "properties": {
                "name": "A b",
                "image": "https://county.example/i.png",
                "built": "1950",
                "tag": ["t1", "t2"],
                "address": {
                    "type": "https://schema.org/PostalAddress",
                    "properties": {"city": "X", "locality": "X"},
                },
            },
        }
    ]


def test_microdata_follows_itemref() -> None:
    """Properties that lie elsewhere belong to the items that refer to them."""
    html = """<div itemscope itemref="far near"></div>
      <p id="far">x <b itemprop="a">1</b></p><p id="near" itemprop="b">2</p>"""

    assert extract(html, URL)["microdata"] == [{"type": "", "properties": {"a": "1", "b": "2"}}]


NAMES = " ".join(f"name{n}" for n in range(300))
REPEATED = {
    "items in items, each with ten names": "<div itemscope>"
    + '<div itemscope itemprop="a b c d e f g h i j">' * 6,
    "values with many names": "<div itemscope>"
    + f"<i itemprop='{NAMES}' content='{'y' * 2_000}'></i>" * 20,
    "one value in many items": f"<i id=x itemprop='{NAMES}' content='{'y' * 500}'></i>"
    + "<div itemscope itemref=x></div>" * 100,
    "links with a long beginning": f"<base href='http://a.example/{'x' * 8_000}/'>"
    + "".join(f"<a href=p{n}></a>" for n in range(1_000)),
}


@pytest.mark.parametrize("html", REPEATED.values(), ids=REPEATED)
def test_what_a_page_repeats_is_not_written_without_end(html: str) -> None:
    """A few bytes of a page may stand for many in its record: they are cut at a megabyte of each
    kind."""
    assert 100_000 < len(msgspec.json.encode(extract(html, URL))) < 1_200_000


def test_links_with_endless_hosts_cost_no_more_than_others() -> None:
    """The time to read an international name grows with the square of its length: none is read
    beyond 255."""

    def cost_s(signs: str) -> float:
        links = "".join(f"<a id=x{n} itemprop=u href='http://a{n}{signs}'></a>" for n in range(4))
        tree = parse(links + "<div itemscope itemref='x0 x1 x2 x3'></div>" * 100)
        began = time.thread_time()
        structured.extract(tree, URL)
        return time.thread_time() - began

    endless, plain = ("\u0301" * 4_000 + "\u0316" * 4_000), "/" * 8_000
    # The least of three: a collection of garbage in one of them takes longer than the work.
    assert min(cost_s(endless) for _ in range(3)) < 20 * max(cost_s(plain), 0.002)


def test_microdata_that_refers_to_itself_ends() -> None:
    """An item that is its own part, through `itemref`, is reported once."""
    html = """<div itemscope itemref="loop"></div>
      <p id="loop" itemprop="x" itemscope itemref="loop"><b itemprop=y>1</b></p>"""

    assert extract(html, URL)["microdata"] == [
        {"type": "", "properties": {"x": {"type": "", "properties": {"y": "1"}}}}
    ]


@pytest.mark.parametrize(
    "html",
    [
        "<table><tr><th>Owner<td>Jane Roe<tr><th>Acres:<td>1.5</table>",
        "<table><tr><td>Owner</td><td>Jane <b>Roe</b></td></tr><tr><td>Acres</td><td>1.5</td></tr>"
        "</table>",
        "<table><tr><th>Owner<td>Jane Roe<th>Acres<td>1.5</table>",
        "<table><tr><td>Owner:<td>Jane Roe<td>Acres:<td>1.5</table>",
        "<table><tr><td><b>Owner:</b> Jane Roe<td><b>Acres:</b> 1.5</table>",
        "<table><tr><th colspan=2>Summary<tr><td>Owner<td>Jane Roe<tr><td>Acres<td>1.5</table>",
        "<table><tr><td><table><tr><td>Owner<td>Jane Roe<tr><td>Acres<td>1.5</table></td></tr>"
        "</table>",
        "<dl><dt>Owner<dd>Jane Roe<dt>Acres:<dd>1.5</dl>",
        "<dl><div><dt>Owner</dt><dd>Jane Roe</dd></div><div><dt>Acres</dt><dd>1.5</dd></div></dl>",
        "<p><b>Owner:</b> Jane <i>Roe</i><br><strong>Acres</strong>: 1.5</p>",
        "<ul><li><strong>Owner: </strong>Jane Roe</li><li><strong>Acres:</strong> 1.5</li></ul>",
    ],
)
def test_fields_are_found_in_the_usual_shapes(html: str) -> None:
    """Two-column tables, header cells, definition lists and bold labels all give label and
    value."""
    assert extract(html, URL)["fields"] == {"Owner": "Jane Roe", "Acres": "1.5"}


def test_repeated_fields_become_a_list() -> None:
    """A label that comes again loses no value."""
    html = "<dl><dt>Owner<dd>Jane Roe<dd>John Roe<dt>Owner<dd>Ann Roe</dl>"

    assert extract(html, URL)["fields"] == {"Owner": ["Jane Roe", "John Roe", "Ann Roe"]}


def test_tables_with_a_header_become_rows() -> None:
    """Rows below a header row are reported by column name; empty or repeated names are numbered."""
    html = """<table><thead><tr><td>Year<td>Value<td>Value<td></tr></thead>
      <tbody><tr><td>2024<td>1<td>2<td>3</tr><tr><td>2025<td>4</tr></tbody></table>"""

    record = extract(html, URL)

    assert record["tables"] == [
        [
            {"Year": "2024", "Value": "1", "Value (3)": "2", "column 4": "3"},
            {"Year": "2025", "Value": "4"},
        ]
    ]
    assert "fields" not in record


def test_links_are_absolute_and_unique() -> None:
    """Links are resolved against `<base>` and the page, without fragments, other schemes and
    repetitions."""
    html = """<base href="/docs/"><a href="a">1</a><a href=" ../b?x=1#c ">2</a><a href="a#d">3</a>
      <area href="//other.example/e"><a href="#top">4</a><a href="mailto:x@y.z">5</a>
      <a href="javascript:f()">6</a><a href="http://[">7</a><a>8</a>"""

    assert extract(html, URL)["links"] == [
        "https://county.example/docs/a",
        "https://county.example/b?x=1",
        "https://other.example/e",
    ]


@given(
    st.lists(st.text(alphabet="aZ09_-/.?=&#:%~ \\\t@é", max_size=12), max_size=8),
    st.sampled_from(
        [
            URL,
            "http://u:p@a.example:8080",
            "https://a.example/b/./c/",
            "http://[::1]/x?y",
            "x:y",
            "",
            "/",
        ]
    ),
)
def test_a_link_is_what_its_reference_means(references: list[str], base: str) -> None:
    """Those that are simply put behind the page's folder or host are what a whole resolution
    gives."""
    html = "".join(f"<a href='{escape(reference)}'>x</a>" for reference in references)
    meant = [
        structured.absolute(base, reference.strip())
        for reference in references
        if reference.strip()[:1] != "#"
    ]

    assert extract(html, base).get("links", []) == list(dict.fromkeys(filter(None, meant)))


def test_links_are_capped() -> None:
    """A page of links reports the first thousand."""
    record = extract("".join(f"<a href=/{number}>x</a>" for number in range(2 * MAX_LINKS)), URL)

    assert record["links"] == [f"https://county.example/{number}" for number in range(MAX_LINKS)]


PROSE = "<p>" + "The parcel lies by the river. " * 10 + "</p>"


@pytest.mark.parametrize(
    "html",
    [
        "<nav>Menu</nav><main><p>One,</p><p>two (<a>three</a>, four).</p><script>no()</script>"
        "</main><p>Else</p>",
        "<header>Top</header><article><header>One,</header>two (<b>three</b>, four).</article>"
        "<aside>Else</aside>",
        "<body>One, <noscript>no</noscript>two\n\n(three,\tfour).<form>Search <input></form>"
        "<footer>Else</footer>",
        "<form id=aspnetForm><h1>One, two</h1>(three, four).<select><option>no</select></form>",
    ],
)
def test_the_text_is_the_main_part(html: str) -> None:
    """Navigation, forms, scripts and the like are left out, white space is folded."""
    assert extract(html, URL)["text"] == "One, two (three, four)."


def test_the_densest_block_is_the_main_part() -> None:
    """Where nothing is marked as the main part, most of the prose is."""
    html = f"<div><p>Short.</p></div><div>{PROSE * 3}</div><div>Link</div>"

    assert extract(html, URL)["text"] == extract(f"<main>{PROSE * 3}</main>", URL)["text"]


def test_prose_beside_larger_data_does_not_hide_it() -> None:
    """A paragraph in the small print is not the main part of a page of tables."""
    html = f"<table>{'<tr><td>Owner name<td>Jane Roe' * 60}</table><div>{PROSE}</div>"

    assert "Jane Roe" in str(extract(html, URL)["text"])


def test_the_text_is_capped() -> None:
    """No page gives more than 100,000 characters of text."""
    assert len(str(extract("<p>" + "word " * 100_000, URL)["text"])) == MAX_TEXT


PIECES = (
    *(
        "<div itemscope>",
        "<p itemprop=a>",
        "<table>",
        "<tr>",
        "<th>",
        "<td>",
        "<dl>",
        "<dt>",
        "<dd>",
        "<b>",
        "<svg>",
        "<title>",
    ),
    *(
        "<a href='",
        "<base href='",
        "<meta property=og:x content='",
        "<script type=application/ld+json>",
        "<template>",
        "<h1>",
    ),
    *(
        "<div id=x itemscope itemref=x itemprop=y>",
        "</div>",
        "</table>",
        "</script>",
        "</b>",
        "<main>",
        "<form>",
        "<!--",
        "-->",
    ),
    *(
        "'>",
        '">',
        "{",
        "}",
        "[",
        "]",
        '"a":',
        "1,",
        "\\u0000",
        "\\ud800",
        "\0",
        "\ud800",
        "&#0;",
        ": ",
        "<frameset>",
        "<select>",
    ),
)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for pair in value.items():
            yield from _strings(list(pair))
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=60).map("".join))
@settings(max_examples=300)
def test_any_text_gives_a_record_that_can_be_stored(html: str) -> None:
    """Whatever the markup, nothing raises and the record survives the way through JSON in UTF-8."""
    record = extract(html, URL)

    stored = msgspec.json.encode(record)
    assert msgspec.json.decode(stored) == json.loads(json.dumps(record, allow_nan=False)) == record
    assert all("\0" not in text for text in _strings(record))


@given(st.binary(max_size=200) | st.text(max_size=200), st.text(max_size=50))
def test_nothing_raises_on_junk(junk: bytes | str, url: str) -> None:
    """Junk is neither too deep nor an error, whatever it is and wherever it comes from."""
    extract(junk if isinstance(junk, str) else junk.decode("latin-1"), url)


def _numbered(tag: str, count: int) -> str:
    return "".join(tag.format(number) for number in range(count))


HOSTILE: dict[str, Callable[[int], str]] = {
    "headings in headings": lambda size: "<h1><div>" * 900 + "x " * size,
    "tables in tables": lambda size: "<table><tr><td>" * 600 + "x " * size,
    "lists in lists": lambda size: "<dl><dd>" * 900 + "x " * size,
    "labels in labels": lambda size: "<div><b>a:</b>" * 900 + "x " * size,
    "items in items": lambda size: "<div itemscope>" + "<div itemprop=a>" * 1_900 + "x " * size,
    "items that double": lambda size: (
        "<p itemscope itemref=a0></p>"
        + _numbered(
            "<p id=a{0}><i itemscope itemprop=l itemref=b{0}></i><i itemscope itemprop=r "
            "itemref=b{0}></i></p>",
            200,
        )
        + _numbered(
            "<p id=b{0}><i itemscope itemprop=l itemref=a{0}></i><i itemscope itemprop=r "
            "itemref=a{0}></i></p>",
            200,
        )
    ),
    "long header": lambda size: f"<table><tr><th>{'h' * size}<th>b" + "<tr><td>x<td>y" * 20_000,
    "broken JSON": lambda size: (
        '<script type=application/ld+json>{"' + '\\"' * (size // 8) + "</script>"
    ),
    "nested JSON": lambda size: (
        "<script type=application/ld+json>" + "[" * (size // 8) + "</script>"
    ),
    "commas": lambda size: (
        "<script type=application/ld+json>{" + ", " * (size // 16) + " " * (size // 8) + "</script>"
    ),
    "links": lambda size: _numbered("<a href='http://[{}'>", 50_000),
    "metas": lambda size: "<meta property=og:a content=b>" * 50_000,
    "options": lambda size: (
        "<select><button><selectedcontent></button>" + "<option selected>x" * 50_000
    ),
    "white space": lambda size: "<p>" + " " * size,
}


@pytest.mark.parametrize("shape", HOSTILE)
def test_no_page_takes_long_or_grows(shape: str) -> None:
    """Pages made to multiply work or output give a record of at most a few megabytes, soon."""
    html = HOSTILE[shape](2_000_000)

    record = extract(html, URL)

    assert len(msgspec.json.encode(record)) < 10_000_000


def test_tables_have_the_cells_that_they_may_have() -> None:
    """Cells are counted row by row, however wide the rows are."""
    table = "<table><tr>" + "<th>a" * 50 + ("<tr>" + "<td>b" * 50) * 380 + "</table>"
    found = extract(table * 3, "https://county.example/")["tables"]

    assert isinstance(found, list)
    cells = sum(len(row) for rows in found for row in rows)
    assert pairs.MAX_CELLS - 200 < cells <= pairs.MAX_CELLS


def test_tables_are_cut_at_what_they_take_to_write() -> None:
    """Names of columns are written again in every row: the rows that fit are kept."""
    names = "".join(f"<th>{chr(1) * 196}{n:03d}" for n in range(50))
    found = extract(
        f"<table><tr>{names}" + ("<tr>" + "<td>b" * 50) * 399 + "</table>",
        "https://county.example/",
    )

    assert (
        structured.MAX_TABLED * 0.9
        < len(msgspec.json.encode(found["tables"]))
        <= structured.MAX_TABLED
    )
