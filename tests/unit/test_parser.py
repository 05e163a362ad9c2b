"""Pages that no parser should see are told by counting, and all others are parsed once."""

import ctypes
import time

import pytest

from crawler.errors import FetchError
from crawler.judge.rules import judge
from crawler.sites import parser, selectors, structured
from crawler.sites.fieldfile import Field
from crawler.sites.parser import MAX_RUN, parse
from tests.support.tasks import page


def _numbered(tag: str, count: int) -> str:
    return "".join(map(tag.format, range(count)))


@pytest.mark.parametrize(
    "html",
    [
        pytest.param("<div>" * 100_000, id="divs"),
        pytest.param("<div>" * 6_000 + "</div>" * 6_000, id="closed divs"),
        pytest.param("<div></x>" * 100_000, id="end tags that mean nothing"),
        pytest.param("<span><div></span>" * 50_000, id="end tags in the wrong place"),
        pytest.param("<a href=x><div>" * 50_000, id="links around blocks"),
        pytest.param("<ul><li>" * 50_000, id="lists"),
        pytest.param("<table><tr><td>" * 50_000, id="tables"),
        pytest.param("<table>" + "<div>" * 100_000, id="blocks put before a table"),
        pytest.param("<svg>" * 100_000, id="svg"),
        pytest.param("<svg><style>" + "<div>" * 100_000, id="blocks in the style of an image"),
        pytest.param("<template>" + "<div>" * 100_000, id="template"),
        pytest.param("<!-- x --><script></script>" + "<div>" * 100_000, id="after a script"),
        pytest.param("<div>" * 1_900 + "</p>" * 300_000, id="paragraphs from end tags"),
        pytest.param(_numbered("<font color={}>", 100_000), id="formatting"),
        pytest.param(
            _numbered("<p><font color={}>x</p>", 50_000), id="formatting left open in blocks"
        ),
        pytest.param(
            "<div>" + _numbered("<b id={}>", 1_500) + "</div>" + "<p>x</p>" * 50_000,
            id="formatting repeated",
        ),
        pytest.param("<div" + _numbered(" a{}=1", 100_000) + ">", id="attributes"),
        pytest.param("<div" + _numbered("/a{}", 100_000), id="attributes without end"),
        pytest.param(
            "<DIV" + _numbered(" a{}='>'", 100_000) + ">", id="attributes that hold brackets"
        ),
        pytest.param(_numbered("<html a{}=1>", 100_000), id="attributes of the root"),
        pytest.param("<" * 1_000_000, id="brackets"),
        pytest.param("<p>" * 1_000_000, id="a million tags"),
        pytest.param("<template>" * 100_000, id="templates"),
        pytest.param("<template><div>" * 60_000, id="templates around blocks"),
        pytest.param("<meta name=a content=b>" * 400_000, id="metas"),
        pytest.param("<p>word" * 450_000, id="paragraphs"),
    ],
)
def test_pages_beyond_reason_are_not_parsed(html: str) -> None:
    """A page that would keep the parser busy for minutes is refused, for good."""
    with pytest.raises(FetchError) as refused:
        parse(html)
    assert refused.value.reason == "too_deep"


@pytest.mark.parametrize(
    "html",
    [
        pytest.param("<p>word" * 20_000, id="paragraphs"),
        pytest.param("<ul>" + "<li>word" * 20_000, id="list items"),
        pytest.param("<table>" + "<tr><td>a<td>b" * 10_000, id="cells"),
        pytest.param(
            "<table>" + "<tr><td><font size=2>a</td><td><b>b</td></tr>" * 5_000,
            id="cells with open formatting",
        ),
        pytest.param("<select>" + "<option>word" * 20_000, id="options"),
        pytest.param("<dl>" + "<dt>a<dd>b" * 10_000, id="definitions"),
        pytest.param("<ruby>" + "a<rt>b" * 5_000, id="ruby"),
        pytest.param("<p>a<br>b<img src=x><input>" * 10_000, id="void elements"),
        pytest.param("<svg><title>x</title><path d='M0 0'/><g/></svg>" * 5_000, id="icons"),
        pytest.param("<div>" * 3_500 + "</div>" * 3_500, id="thousands deep"),
        pytest.param("<script>" + "'<div>'+" * 50_000 + "</script>word", id="markup in a script"),
        pytest.param("<style>" + "<div>" * 50_000 + "</style>word", id="markup in a style"),
        pytest.param(
            "<textarea>" + "<div>" * 50_000 + "</textarea>word", id="markup in a text area"
        ),
        pytest.param("<!--" + "<div>" * 50_000 + "-->word", id="markup in a comment"),
        pytest.param("<p title='" + "<div>" * 50_000 + "'>word", id="markup in an attribute"),
        pytest.param(
            "<script>if (a<b) {" + " f();" * 5_000 + "}</script>word",
            id="code that looks like attributes",
        ),
        pytest.param("<p" + _numbered(" data-{}=1", 100) + ">word", id="a hundred attributes"),
        pytest.param("<body class=a>word" * 50, id="pages in one file"),
        pytest.param("<p><b>a</b> <i>b</i> <em>c</em></p>" * 10_000, id="formatting"),
    ],
)
def test_large_or_careless_pages_are_parsed(html: str) -> None:
    """What HTML closes by itself, and what is no markup at all, does not count as depth."""
    structured.extract(parse(html), "https://county.example/")


def refused(html: str) -> bool:
    ctypes.CDLL(None).malloc_trim(0)  # what was freed could be used again without counting
    try:
        parse(html)
    except FetchError as error:
        return error.reason == "too_deep"
    return False


def test_nesting_is_refused_from_its_limit_on() -> None:
    """Whether a page has just more start tags than the limit, many more, or too many to be parsed
    at once."""
    for filling in (0, 3_000, 20_000):
        others = "<p>x</p>" * filling

        assert not refused(others + "<div>" * 3_700)
        assert not refused("<div>" * 3_700 + others)
        assert refused(others + "<div>" * 4_400)
        assert refused("<div>" * 4_400 + "</div>" * 4_400 + others)
        assert refused(others + "<template>" + "<div>" * 4_400)


@pytest.mark.parametrize(
    "html",
    [
        pytest.param("<table><td>" * 7_000, id="tables"),
        pytest.param("</p>" * 7_000 + "<div>" * 7_000, id="behind elements of end tags"),
        pytest.param("<template>" * 14_000, id="templates"),
        pytest.param("<div a='" + "<div>" * 12_000 + "'>", id="none at all"),
        pytest.param("<ul><li>" * 7_000, id="lists"),
    ],
)
def test_few_tags_cost_little_however_they_are_nested(html: str) -> None:
    """What is parsed before its depth is known, and what gets through, is soon read too."""
    began = time.process_time()
    fields = {
        "a": Field(css="div, td, li"),
        "b": Field(css="div", type="html"),
        "c": Field(css="div div td", all=True),
    }
    try:
        tree = parse(html)
        judge(page("https://county.example/", html.encode()), html.encode(), tree)
        selectors.extract(tree, fields, "https://county.example/")
        structured.extract(tree, "https://county.example/")
    except FetchError:
        pass

    assert time.process_time() - began < 5


def test_a_small_page_has_no_room_for_too_many_attributes() -> None:
    """Up to a size nothing is counted, because the parser cannot take long; beyond it, too many are
    refused."""
    names = [f"/{one}{two}{three}" for one in SIGNS for two in SIGNS for three in ("", *SIGNS)]
    most = "<p" + "".join(names)[: parser.SMALL - 3] + ">"
    roots = _numbered("<body a{}>", parser.SMALL)[: parser.SMALL]

    for html in (most, roots):
        began = time.process_time()
        assert not refused(html)
        assert time.process_time() - began < 5
        assert refused(f"{html} ")


def test_formatting_is_counted_where_it_could_be_repeated_too_often() -> None:
    """Half formatting, half blocks make the most of it: what is parsed stays within the limit on
    memory."""

    def made(number: int) -> str:
        return "<div>" + _numbered("<b id={}>", number) + "</div>" + "<p>x" * number

    assert not refused(made(200))
    assert refused(made(2_000))


@pytest.mark.parametrize(
    "html",
    [
        pytest.param("<b id={0}><object></b></object>", id="an end tag that closes nothing"),
        pytest.param("<b id={0}><!--</b>-->", id="an end tag in a comment"),
        pytest.param("<b title='>' id={0}>", id="a bracket in an attribute"),
        pytest.param('<b a=b"c d=">" id={0}>', id="a quote in a value"),
        pytest.param("<b a<c{0}>", id="a bracket in a name"),
    ],
)
def test_no_formatting_is_hidden(html: str) -> None:
    """What only looks closed, or alike, is counted."""
    assert refused("<div>" + _numbered(html, 1_500) + "</div>" + "<p>x" * 20_000)


def test_few_large_tags_are_not_repeated_either() -> None:
    """Formatting with many attributes takes much memory in few blocks, even on a small page."""
    large = "".join("<b" + _numbered(f" a{number}x{{}}", 60) + ">" for number in range(90))

    assert len(large) < parser.SMALL
    assert refused(f"<div>{large}</div>" + "<p>x" * 500)


@pytest.mark.parametrize(
    "html", ["<p a{0}>", "</p a{0}=1>", "<svg a{0}=1 /><svg b{0}/>", "<x{0}></x{0}>", "<x{0}>"]
)
def test_pages_with_too_many_names_are_not_parsed(html: str) -> None:
    """The parser finds a name by looking at a part of all others; wherever a tag stands, its names
    count."""
    assert refused(_numbered(html, 120_000))
    assert refused("<svg><p><style><!-- </style>" + _numbered(html, 120_000))
    assert refused("<svg><![CDATA[> <a b=' ]]></svg>" + _numbered(html, 120_000) + "'>")


@pytest.mark.parametrize(
    "html",
    [
        pytest.param(
            "<table>" + f"<tr>{'<td>123.45</td>' * 5}</tr>\n" * 20_000 + "</table>", id="a table"
        ),
        pytest.param(
            "<table>" + f"<tr>\n{' <td>123.45</td>' * 5}\n</tr>\n" * 20_000,
            id="a table with spaces",
        ),
        pytest.param("<table>" + f"<tr>{'<td>123.45' * 5}" * 20_000, id="a table without end tags"),
        pytest.param("<p>word" * 110_000, id="paragraphs"),
        pytest.param("<div>" * 390 + "<div></div>" * 150_000, id="nested and flat"),
        pytest.param(
            "<p class='a b'>some <b>bold</b> words<br><a href='/x/y'>link</a></p>" * 25_000,
            id="an archive",
        ),
        pytest.param("word " * 1_900_000, id="words"),
    ],
)
def test_the_largest_real_pages_are_parsed(html: str) -> None:
    """Tables of 20,000 rows are real."""
    assert not refused(html)


def test_what_is_left_out_of_the_page_hides_nothing() -> None:
    """Zero bytes, which the parser never sees, do not make other tags of those that it sees."""
    hidden = "<div>" + _numbered("<f\0ont color={}>", 3_000) + "</div>" + "<p>x</p>" * 3_000

    assert refused(hidden)
    assert structured.extract(parse("<p\0>a\0b"), "")["text"] == "ab"


SIGNS = "abcdefghijklmnopqrstuvwxyz0123456789"


WORDS = "word" * 2_500
JOINED = {
    "brackets that are text": f"<p>{WORDS}" + f"< {WORDS}" * 60,
    "end tags of nothing": f"<p>{WORDS}" + f"</x>{WORDS}" * 60,
    "tags that have no place": f"<p>{WORDS}" + f"<td>{WORDS}" * 60,
    "text in a table": "<table>" + f"<tr>{WORDS}" * 60,
    "a control": "<textarea>" + f"<p>{WORDS}" * 60,
}


@pytest.mark.parametrize("html", JOINED.values(), ids=JOINED)
def test_no_text_is_longer_than_what_is_read_of_it(html: str) -> None:
    """Whatever the parser joins into one text, the rest of it is cut: all elements around it may be
    asked for it."""
    tree = parse(html)

    assert tree.root
    texts = [
        node.text_content or ""
        for node in tree.root.traverse(include_text=True)
        if node.is_text_node
    ]
    assert max(map(len, texts)) == MAX_RUN


@pytest.mark.parametrize(
    "html", ["<p>{}", "<p title='{}'>x", "<title>{}", "<textarea>{}", "<svg>{}"]
)
@pytest.mark.parametrize("reference", ["&nGt;", "&nLt;"])
def test_references_that_grow_are_read(html: str, reference: str) -> None:
    """The parser wrote behind its buffer where their texts are longer than themselves, and the
    process ended."""
    tree = parse(html.format(reference * 5_000))

    assert (tree.html or "").count("\u20d2") == 5_000


def test_beginnings_of_comments_are_sought_once() -> None:
    """Each of them was followed to the same end: 640 KB took more than 20 s."""
    page = "😀" + "<!" * 180_000 + "x" * 159_000 + ">" + "word '" * 20_000
    began = time.thread_time()
    refused(page)
    assert time.thread_time() - began < 5
