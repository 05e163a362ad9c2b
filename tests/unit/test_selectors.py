"""Fields are read out of any page exactly as CSS says, within limits that no page can stretch."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selectolax.lexbor import LexborHTMLParser, LexborNode

from crawler.fetch.budget import Budget
from crawler.sites import css, selectors, values
from crawler.sites.fieldfile import Field
from crawler.sites.parser import parse
from crawler.sites.selectors import MAX_LOOKS, extract, pattern
from crawler.sites.text import MAX_STRING, MAX_TEXT

URL = "https://county.example/parcels/7"
PLENTY = 10**9

PAGE = """
<html><head><base href="/files/"><title>Parcel 12-3</title><style>td { color: red }</style></head>
<body>
<h1>Parcel   12-3
 <small>(active)</small></h1>
<table class="facts">
  <tr><th>Owner:</th><td>Jane <b>Roe</b><script>track("td")</script></td></tr>
  <tr><th>Value</th><td class="money">$1,234,500.75</td></tr>
  <tr><th>Acres</th><td>2,5</td></tr>
  <tr><th>Sold</th><td>March 5, 2024</td></tr>
  <tr><th>Homestead</th><td>Yes</td></tr>
  <tr><th>Rooms</th><td>7</td></tr>
</table>
<div class="gallery"><img src="a.jpg" alt="Front"><img src="/b.jpg"><img alt="none">
<img src="javascript:x()"></div>
<p class="legal">Lot 5, <i>Block 2</i></p><p class="legal">Lot 6</p><p class="legal"> </p>
<a class="map" href="../map?x=1#top">Map</a>
</body></html>
"""


def record(html: str, url: str = URL, **fields: Field | str) -> dict[str, Any]:
    made = {
        name: Field(css=field) if isinstance(field, str) else field
        for name, field in fields.items()
    }
    return extract(parse(html), made, url)


def value(html: str, field: Field | str) -> Any:
    return record(html, x=field)["x"]


# Values.


def test_a_field_is_what_its_selector_finds() -> None:
    """Words are joined; attributes, lists, types, expressions and absolute URLs are as asked
    for."""
    found = record(
        PAGE,
        parcel=Field(css="h1", regex=r"Parcel ([\d-]+)"),
        heading="h1",
        owner='th:contains("Owner") + td',
        assessed=Field(css="table.facts .money", type="number"),
        acres=Field(css="tr:nth-child(3) td", type="number"),
        sold=Field(css='tr:has(th:contains("Sold")) td', type="date"),
        homestead=Field(css='th:contains("Homestead") ~ td', type="boolean"),
        rooms=Field(css="tr:last-child > td", type="integer"),
        photos=Field(css=".gallery img", type="url", all=True),
        captions=Field(css="img", attr=("alt",), all=True),
        map=Field(css="a.map", type="url"),
        legal=Field(css="p.legal", all=True),
        markup=Field(css="p.legal", type="html"),
        script="td script",
        nothing="h7",
        no_list=Field(css="h7", all=True),
    )

    assert found == {
        "parcel": "12-3",
        "heading": "Parcel 12-3 (active)",
        "owner": "Jane Roe",
        "assessed": 1234500.75,
        "acres": 2.5,
        "sold": "2024-03-05",
        "homestead": True,
        "rooms": 7,
        "photos": ["https://county.example/files/a.jpg", "https://county.example/b.jpg"],
        "captions": ["Front", "none"],
        "map": "https://county.example/map?x=1",
        "legal": ["Lot 5, Block 2", "Lot 6"],
        "markup": "Lot 5, <i>Block 2</i>",
        "script": 'track("td")',
        "nothing": None,
        "no_list": [],
    }


def test_required_fields_without_a_value_are_listed() -> None:
    """The record says what it lacks, and only that."""
    there, gone = Field(css="p", required=True), Field(css="b", required=True)

    assert record("<p>x</p>", a=there, b=gone, c=Field(css="b", all=True, required=True), d="i")[
        "missing"
    ] == [
        "b",
        "c",
    ]
    assert "missing" not in record("<p>x</p>", a=there, d="i")


def test_the_first_value_that_fits_counts() -> None:
    """An element whose text does not match, or is no such value, is passed over."""
    page = "<p>none</p><p>see 12-3</p><p>APN 45-6</p>"

    assert value(page, Field(css="p", regex=r"APN (\S+)")) == "45-6"
    assert value(page, Field(css="p", type="integer")) == 12
    assert value(page, Field(css="p", regex=r"\d+")) == "12"
    assert value("<b></b><b> x </b>", "b") == "x"


@pytest.mark.parametrize(
    ("html", "number"),
    [
        ("<div>85&nbsp;000 EUR</div>", 85000),
        ("<div><b>85&#8239;000</b> EUR</div>", 85000),
        ("<div><i>-</i><i>$</i><b>1,234</b></div>", -1234),
        ("<div><span>3</span><span>250</span></div>", 3),
        ("<div><span>3</span>\n <span> 250</span></div>", 3),
        ("<div>1 250<br>300</div>", 1250),
        ("<div>85&thinsp;m<sup>2</sup></div>", 85),
        ("<div>m<sup>2</sup>: 85</div>", 85),
    ],
)
def test_a_number_is_within_one_text(html: str, number: int) -> None:
    """Spaces join the digits of one text; those of two elements, such as cells, are two numbers."""
    assert value(html, Field(css="div", type="number")) == number
    assert value(html, Field(css="div", type="integer", all=True)) == [number]


@pytest.mark.parametrize("locale", ["", "en", "ja", "zh-HK", "de", "bg"])
@pytest.mark.parametrize("space", ["&nbsp;", "&thinsp;", "&#8239;", "&#8199;"])
def test_spaces_that_join_groups_do_so_on_pages_too(locale: str, space: str) -> None:
    """White space is folded, but a no-break space between digits is no space between numbers."""
    html = f"<div>1{space}085{space}000 m²</div><input value='85{space}000 sq ft'>"

    assert value(html, Field(css="div", type="number", locale=locale)) == 1085000
    assert value(html, Field(css="input", attr=("value",), type="integer", locale=locale)) == 85000


@given(
    st.lists(
        st.sampled_from(
            ["<p>", "</p>", "<b>", "</b>", " 0 ", "7", "no", "<script>x</script>", "<!-- -->"]
        )
    ),
    st.sampled_from(["p", "b", "p > b", "p + p", "p, b", "script"]),
    st.sampled_from(["text", "integer", "boolean", "html"]),
    st.sampled_from(["", r"\d"]),
)
@settings(max_examples=300, deadline=None)
def test_the_first_value_is_the_first_of_all(
    parts: list[str], selector: str, kind: Any, regex: str
) -> None:
    """What is found by a quick look for the first element is what a whole search finds first."""
    field = Field(css=selector, type=kind, regex=regex)

    found = record("".join(parts), one=field, all=msgspec.structs.replace(field, all=True))

    assert found["one"] == (found["all"][0] if found["all"] else None)


def test_fields_beyond_the_quick_ones_are_read_too() -> None:
    """However many fields there are, each is read; what is there to be counted differs, not what is
    found."""
    fields = {
        f"f{n}": Field(css="p + p", type="integer", required=True)
        for n in range(2 * selectors.MAX_QUICK)
    }

    found = extract(parse("<p>1</p><p>0</p>"), fields, URL)

    assert set(found) == set(fields)
    assert set(found.values()) == {0}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("$1,234.50", 1234.5),
        ("1.234,50 €", 1234.5),
        ("1 234,50 €", 1234.5),
        ("1 234,50\u00a0€", 1234.5),
        ("CHF 1'234.50", 1234.5),
        ("(1,234)", -1234),
        ("-$12", -12),
        ("$-12.00", -12.0),
        ("−5", -5),
        ("12 %", 12),
        ("1,234", 1234),
        ("1.234", 1.234),
        ("1,23", 1.23),
        ("1.234.567", 1234567),
        ("12,34,567", 1234567),
        ("$1.2M", 1200000),
        ("$450K", 450000),
        ("Lot 5B", 5),
        ("unit-2", 2),
        ("0.25 acres", 0.25),
        ("3 250 m", 3250),
        ("about 7.", 7),
        ("1.2.3", None),
        ("1,2,3", None),
        ("1,234.5.6", None),
        ("9" * 31, None),
        ("٣", 3),
        ("n/a", None),
        ("", None),
    ],
)
def test_numbers_as_people_write_them(text: str, number: float | None) -> None:
    """Commas and points by their places, signs of currencies, accountants' brackets; what is
    ambiguous is no number."""
    found = values.number(text)

    assert (found, type(found)) == (number, type(number))
    assert values.integer(text) == (
        int(number) if number is not None and number == int(number) else None
    )


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("2024-03-05T10:00:00Z", "2024-03-05"),
        ("2024/3/5", "2024-03-05"),
        ("20240305", "2024-03-05"),
        ("03/05/2024", "2024-03-05"),
        ("25/03/2024", "2024-03-25"),
        ("3-5-2024", "2024-03-05"),
        ("5.3.2024", "2024-03-05"),
        ("March 5, 2024", "2024-03-05"),
        ("Mar. 5th 2024", "2024-03-05"),
        ("5 March 2024", "2024-03-05"),
        ("05-MAR-2024", "2024-03-05"),
        ("the 3rd of May, 2021", "2021-05-03"),
        ("Sept 3, 2020", "2020-09-03"),
        ("recorded 1/2/2020, sold 2019-01-01", "2020-01-02"),
        ("31.02.2024", None),
        ("13/13/2024", None),
        ("Room 3, 2020", None),
        ("5/5/24", None),
        ("2024", None),
        ("", None),
    ],
)
def test_dates_as_people_write_them(text: str, date: str | None) -> None:
    """The first real date of a text, as ISO has it; a year needs four digits."""
    assert values.day(text) == date


@pytest.mark.parametrize(
    ("text", "answer"),
    [("Yes", True), ("no.", False), ("TRUE", True), ("0", False), ("x", True), ("maybe", None)],
)
def test_answers(text: str, answer: bool | None) -> None:
    """Yes and no in their usual forms; anything else is neither."""
    assert values.boolean(text) is answer


# Selectors, compared with what they mean.

Test = Callable[[LexborNode], bool]


def elements(tree: LexborHTMLParser) -> list[LexborNode]:
    return tree.css("*")


def parent(node: LexborNode) -> LexborNode | None:
    above = node.parent
    return above if above is not None and above.is_element_node else None


def ancestors(node: LexborNode) -> Iterator[LexborNode]:
    above = parent(node)
    while above is not None:
        yield above
        above = parent(above)


def siblings(node: LexborNode) -> list[LexborNode]:
    above = node.parent
    return (
        [child for child in above.iter() if child.is_element_node] if above is not None else [node]
    )


def earlier(node: LexborNode) -> list[LexborNode]:
    ids = [each.mem_id for each in siblings(node)]
    return siblings(node)[: ids.index(node.mem_id)]


def index(node: LexborNode, keep: Test = lambda node: True, from_end: bool = False) -> int:
    kept = [each.mem_id for each in siblings(node) if keep(each)]
    if node.mem_id not in kept:
        return 0
    return (len(kept) - kept.index(node.mem_id)) if from_end else kept.index(node.mem_id) + 1


def below(node: LexborNode, tree: LexborHTMLParser) -> list[LexborNode]:
    return [
        each
        for each in elements(tree)
        if any(above.mem_id == node.mem_id for above in ancestors(each))
    ]


def tag(name: str) -> Test:
    return lambda node: node.tag == name


def mark(name: str) -> Test:
    return lambda node: name in (node.attributes.get("class") or "").split()


def alike(node: LexborNode) -> Test:
    return tag(node.tag or "")


def has(node: LexborNode, tree: LexborHTMLParser, test: Test) -> bool:
    return any(test(each) for each in below(node, tree))


MEANINGS: dict[str, Callable[[LexborNode, LexborHTMLParser], bool]] = {
    "u": lambda n, t: n.tag == "u",
    "div u": lambda n, t: n.tag == "u" and any(a.tag == "div" for a in ancestors(n)),
    "div > u": lambda n, t: n.tag == "u" and (p := parent(n)) is not None and p.tag == "div",
    "div + u": lambda n, t: n.tag == "u" and bool(e := earlier(n)) and e[-1].tag == "div",
    "div ~ u": lambda n, t: n.tag == "u" and any(e.tag == "div" for e in earlier(n)),
    "div .x u": lambda n, t: (
        n.tag == "u"
        and any(mark("x")(a) and any(b.tag == "div" for b in ancestors(a)) for a in ancestors(n))
    ),
    "div .x > u": lambda n, t: (
        n.tag == "u" and (p := parent(n)) is not None and mark("x")(p)
        and any(b.tag == "div" for b in ancestors(p))
    ),
    ".x ~ u .y": lambda n, t: (
        mark("y")(n)
        and any(a.tag == "u" and any(mark("x")(e) for e in earlier(a)) for a in ancestors(n))
    ),
    "u, .x": lambda n, t: n.tag == "u" or mark("x")(n),
    "div u, .x.y, u + u": lambda n, t: (
        (n.tag == "u" and any(a.tag == "div" for a in ancestors(n)))
        or (mark("x")(n) and mark("y")(n))
        or (n.tag == "u" and bool(e := earlier(n)) and e[-1].tag == "u")
    ),
    "u:nth-child(2)": lambda n, t: n.tag == "u" and index(n) == 2,
    "u:nth-child(2n+1)": lambda n, t: n.tag == "u" and index(n) % 2 == 1,
    "u:nth-child(even)": lambda n, t: n.tag == "u" and index(n) % 2 == 0,
    "u:nth-last-child(-n + 2)": lambda n, t: n.tag == "u" and index(n, from_end=True) <= 2,
    "div:nth-of-type(2)": lambda n, t: n.tag == "div" and index(n, alike(n)) == 2,
    "*:nth-last-of-type(1)": lambda n, t: index(n, alike(n), from_end=True) == 1,
    "u:first-of-type": lambda n, t: n.tag == "u" and index(n, alike(n)) == 1,
    "u:last-of-type": lambda n, t: n.tag == "u" and index(n, alike(n), from_end=True) == 1,
    "u:only-of-type": lambda n, t: n.tag == "u" and sum(map(alike(n), siblings(n))) == 1,
    "u:first-child": lambda n, t: n.tag == "u" and index(n) == 1,
    "u:last-child": lambda n, t: n.tag == "u" and index(n, from_end=True) == 1,
    "u:nth-child(2 of .x)": lambda n, t: n.tag == "u" and mark("x")(n) and index(n, mark("x")) == 2,
    "div:has(u)": lambda n, t: n.tag == "div" and has(n, t, tag("u")),
    "div:has(> u)": lambda n, t: (
        n.tag == "div" and has(n, t, lambda e: e.tag == "u" and _is_child(e, n))
    ),
    "div:has(+ u)": lambda n, t: n.tag == "div" and any(
        e.tag == "u" and bool(b := earlier(e)) and b[-1].mem_id == n.mem_id for e in siblings(n)
    ),
    "div:has(~ u)": lambda n, t: n.tag == "div" and any(
        e.tag == "u" and any(b.mem_id == n.mem_id for b in earlier(e)) for e in siblings(n)
    ),
    "div:has(.x u)": lambda n, t: n.tag == "div" and any(
        e.tag == "u"
        and any(mark("x")(a) and any(b.mem_id == n.mem_id for b in ancestors(a))
                for a in ancestors(e))
        for e in below(n, t)
    ),
    "div:has(u:has(.x))": lambda n, t: (
        n.tag == "div" and has(n, t, lambda e: e.tag == "u" and has(e, t, mark("x")))
    ),
    "div:not(:has(u)) .y": lambda n, t: mark("y")(n) and any(
        a.tag == "div" and not has(a, t, tag("u")) for a in ancestors(n)
    ),
    "u:not(.x)": lambda n, t: n.tag == "u" and not mark("x")(n),
    "u:not(div u)": lambda n, t: n.tag == "u" and not any(a.tag == "div" for a in ancestors(n)),
    "u:not(:nth-child(2))": lambda n, t: n.tag == "u" and index(n) != 2,
    ":is(div, s) u": lambda n, t: n.tag == "u" and any(a.tag in ("div", "s") for a in ancestors(n)),
    ":is(div u, s > u).x": lambda n, t: mark("x")(n) and n.tag == "u" and (
        any(a.tag == "div" for a in ancestors(n)) or ((p := parent(n)) is not None and p.tag == "s")
    ),
    "div :not(.x) u": lambda n, t: n.tag == "u" and any(
        not mark("x")(a) and any(b.tag == "div" for b in ancestors(a)) for a in ancestors(n)
    ),
    "[class~=x] > u[class='x y']": lambda n, t: (
        n.tag == "u" and n.attributes.get("class") == "x y"
        and (p := parent(n)) is not None and mark("x")(p)
    ),
}  # fmt: skip


def _is_child(node: LexborNode, of: LexborNode) -> bool:
    above = parent(node)
    return above is not None and above.mem_id == of.mem_id


def some_page(seed: int) -> str:
    """A page of elements in elements, with text and comments between them."""
    chance = random.Random(seed)
    parts: list[str] = []

    def element(depth: int) -> None:
        name, mark_ = chance.choice(["div", "u", "s"]), chance.choice(["", "x", "y", "x y"])
        parts.append(f"<{name} class='{mark_}'>" if mark_ else f"<{name}>")
        for _ in range(chance.randint(0, 3) if depth < 5 else 0):
            parts.append(chance.choice(["", "", "text", "<!-- comment -->"]))
            element(depth + 1)
        parts.append(f"</{name}>")

    for _ in range(3):
        element(0)
    return "".join(parts)


@pytest.mark.parametrize("selector", MEANINGS)
def test_a_selector_finds_what_css_says(selector: str) -> None:
    """On pages of all shapes exactly the elements that are meant, once each, in the order of the
    page."""
    some = 0
    for seed in range(25):
        tree = parse(some_page(seed))
        means = MEANINGS[selector]
        meant = [node.mem_id for node in elements(tree) if means(node, tree)]

        found = [
            node.mem_id
            for node in css.Search(tree, css.SearchBudget(PLENTY, Budget())).find(
                css.compile(selector)
            )
        ]

        assert found == meant, seed
        some += bool(meant)
    assert some


@pytest.mark.parametrize(
    "text",
    [
        "",
        "p >",
        "p..a",
        "p[",
        "p:nth-child(",
        "p:nth-child(x)",
        "p::before",
        "p{}",
        "a || b",
        "p:hover",
        "p:not()",
        "p, ",
        ":scope > p",
        "p\ud800",
        "p\x00",
        "p" * 1001,
        "p:visited",
        "p:lang(en)",
    ],
)
def test_what_is_no_selector_is_refused(text: str) -> None:
    """Also what no stored page could ever answer."""
    with pytest.raises(ValueError, match=r"selector|pseudo-class|columns"):
        css.compile(text)


@given(st.text(alphabet="div.x#:>+~ ,[]()=\"'*n2hasot\\/|-", max_size=40))
@settings(max_examples=500, deadline=None)
def test_any_text_is_a_selector_or_refused(text: str) -> None:
    """Whatever is accepted can be searched for."""
    tree = parse(some_page(1))
    try:
        selector = css.compile(text)
    except ValueError:
        return
    assert isinstance(css.Search(tree, css.SearchBudget(PLENTY, Budget())).find(selector), list)


def test_strings_and_comments_in_selectors_are_whole() -> None:
    """Signs in quotes, escapes and comments are not taken for parts of the selector."""
    page = """<div title="a, b > c:has(d)"><p class="x:y">1</p></div><p class="x:y">2</p>"""

    assert value(page, r"""[title="a, b > c:has(d)"] /* p > b, */ .x\:y""") == "1"
    assert value(page, Field(css=r".x\:y", all=True)) == ["1", "2"]
    assert value("<b>a, (b)</b>", 'b:CONTAINS("a, (b)")') == "a, (b)"


# Hostile pages.

DEEP = "<div>" * 3_900 + "<p>x</p>" + "</div>" * 3_900
WIDE = "<ul>" + "<li>x</li>" * 100_000 + "</ul>"
BUSHY = "<div>" * 390 + "<div>x</div>" * 105_000  # about as many as are parsed


@pytest.mark.parametrize(
    "selector",
    [
        "section div div div div p",
        "div div div div div div div div p",
        "section ~ li ~ li ~ li",
        "li:nth-child(2n + 1)",
        "li:nth-last-of-type(3n)",
        "li:not(:nth-child(3)) ~ li:last-of-type",
        "div:has(div:has(div:has(div:has(section))))",
        "div:has(section div div p)",
        "div:not(section div div div)",
        "*:first-of-type *:only-of-type",
        ":is(section div div, div div section) p",
        "* * * * * * * *",
    ],
)
@pytest.mark.parametrize("page", [DEEP, WIDE, BUSHY], ids=["deep", "wide", "bushy"])
def test_no_page_stretches_a_selector(page: str, selector: str) -> None:
    """What would take Lexbor hours takes a number of looks that the page's size bounds; else the
    search gives up."""
    tree = LexborHTMLParser(page)
    budget = css.SearchBudget(MAX_LOOKS, Budget())
    try:
        css.Search(tree, budget).find(css.compile(selector))
    except css.TooMuch:
        assert page is BUSHY
    assert budget.left <= MAX_LOOKS


def test_many_fields_share_one_budget() -> None:
    """On a page that is too large for all fields the first ones are read, the rest is null; nothing
    raises."""
    tree = LexborHTMLParser(BUSHY)
    fields = {f"f{n}": Field(css=f"div div:nth-child({n + 1})", required=True) for n in range(50)}

    found = extract(tree, fields, URL)

    assert found["f0"].startswith("x x")
    assert found["f49"] is None
    assert "f49" in found["missing"]


def test_quick_looks_have_an_end() -> None:
    """Hundreds of fields that are not on a huge page take no longer than the budget allows; nothing
    raises."""
    fields = {f"f{n}": Field(css=f"b.c{n}") for n in range(500)} | {
        "last": Field(css="div", type="html")
    }

    found = extract(LexborHTMLParser(BUSHY), fields, URL)

    assert set(found.values()) == {None}


@pytest.mark.parametrize("kind", ["text", "html", "number"])
def test_elements_in_elements_are_not_read_over_and_over(kind: Any) -> None:
    """All of 1,900 nested elements, each with all the words of those inside it, stays within the
    budget."""
    page = "".join(f"<div>{'word ' * 100}" for _ in range(1_900))

    found = record(page, x=Field(css="div", all=True, type=kind))["x"]

    assert len(found) <= selectors.MAX_VALUES
    assert all(len(str(text)) <= MAX_STRING for text in found)


def test_values_are_bounded() -> None:
    """One value has 100,000 characters at most, each of many 2,000, and there are 1,000."""
    assert len(value(f"<p>{'x' * 300_000}</p>", "p")) == MAX_TEXT
    others = "".join(f"<b>{number}</b>" for number in range(2_000))
    many = value(f"<p>{'x' * 3_000}</p>{others}", Field(css="p, b", all=True))
    assert (len(many), len(many[0])) == (selectors.MAX_VALUES, MAX_STRING)


@pytest.mark.parametrize(
    "expression",
    [
        "(a+)+$",
        "(a|aa)*b",
        "(.*)*x",
        "(.*.*.*.*.*)=",
        "(a?){500}a{500}",
        "(a*)*b",
        "(x+x+)+y",
        r"^(\w+\s?)*$",
        "(a|a?)+b",
        "((a*)*)*b",
        r"(\d+)*[.]",
        "(.*a){20}",
        "a{1000}b",
        "((.+)+)+=",
    ],
)
def test_no_expression_hangs(expression: str) -> None:
    """The classics that hold up a backtracking engine for ages end at once on texts made for
    them."""
    for text in ("a" * 200_000, "x" * 200_000, "a " * 100_000 + "!", "0" * 200_000):
        assert value(f"<p>{text}</p>", Field(css="p", regex=expression)) != 0


@pytest.mark.parametrize(
    "expression", ["a{1001}", "((a{100}){100}){100}", "(?:a{1000}){2}", r"(\pL{9}){99}", "a" * 1001]
)
def test_expressions_that_would_be_huge_are_refused(expression: str) -> None:
    """What a short text would unfold to is bounded as well."""
    with pytest.raises(ValueError, match="regular expression"):
        pattern(expression)


@given(
    st.text(alphabet="<>/abdivptlrse =\"'x!-&;#0\0\n", max_size=400),
    st.sampled_from(
        [
            "p",
            "div p",
            "td:nth-child(2)",
            "div:has(p) ~ p",
            "*",
            "html",
            "b, i",
            ":not(p) > *",
            ":root",
        ]
    ),
    st.sampled_from(["text", "number", "integer", "date", "url", "boolean", "html"]),
    st.booleans(),
    st.sampled_from(["", r"(\d+)", "x(y)?", "."]),
    st.sampled_from(["", "class", "href"]),
    st.sampled_from([URL, "http://[::1]/", "not a url", ""]),
)
@settings(max_examples=400, deadline=None)
def test_no_page_makes_it_raise(
    html: str, selector: str, kind: Any, all_: bool, regex: str, attr: str, url: str
) -> None:
    """Whatever a server sends, a field has a value that JSON can hold, or none."""
    field = Field(
        css=selector, type=kind, all=all_, regex=regex, attr=tuple(attr.split()), required=True
    )

    found = record(html, url, x=field)

    assert msgspec.json.decode(msgspec.json.encode(found)) == found
    assert ("missing" in found) == (found["x"] in (None, []))


def test_a_list_of_selectors_has_at_most_32_parts() -> None:
    """Every element is compared with each part, so that their number is limited; commas in strings
    are none."""
    css.compile(", ".join(["p"] * 32))
    css.compile(f"p[title='{',' * 40}']")
    for text in (", ".join(["p"] * 33), f":is({', '.join(['p'] * 33)})"):
        with pytest.raises(ValueError, match="lists more than 32 parts"):
            css.compile(text)


def test_an_element_that_all_parts_of_a_list_select_is_found_once() -> None:
    """In the page's order, whatever the parts are."""
    tree = parse("<div><p>a</p><b>b</b></div><p>c</p>")
    field = Field(css="*:not(div, body, html, head), div > p, b, p", all=True)

    assert selectors.extract(tree, {"x": field}, "https://county.example/") == {
        "x": ["a", "b", "c"]
    }
