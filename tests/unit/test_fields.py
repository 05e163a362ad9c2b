"""Every way to find a field in a page, every type, and which records are invalid."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import indent
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crawler.errors import FetchError, InputError
from crawler.fetch.budget import Budget
from crawler.scraping.examine import ParsedPage, examine
from crawler.sites import Site, jsonpath, load, measures, selectors, sitefile, validation, values
from crawler.sites.fieldfile import Field
from crawler.sites.parser import parse
from crawler.sites.selectors import extract
from tests.support.tasks import page

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "SITES.md").read_text()
URL = "https://imoti.example/obiava/4711?from=list"

Describe = Callable[[str], Site]


@pytest.fixture
def described(tmp_path: Path) -> Describe:
    """The site that a file describes."""

    def make(text: str) -> Site:
        (tmp_path / "sites").mkdir(exist_ok=True)
        (tmp_path / "sites" / "county.yaml").write_text(text)
        site = load(tmp_path).named("county")
        assert site
        return site

    return make


@pytest.fixture
def read(described: Describe) -> Callable[..., ParsedPage]:
    """Read a page with the fields that some YAML describes."""

    def make(fields: str, html: str, kind: str = "text/html", rest: str = "") -> ParsedPage:
        site = described(f"hosts: imoti.example\n{rest}\nfields:\n{indent(fields, '  ')}\n")
        answer = msgspec.structs.replace(
            page(URL, html.encode()), headers=(("Content-Type", kind),)
        )
        return examine(answer, site)

    return make


Read = Callable[..., ParsedPage]


def example(containing: str) -> str:
    """A whole file of docs/SITES.md."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", DOCS, re.M | re.S)
    [found] = [block for block in blocks if containing in block]
    return str(found)


# The examples of the docs.

LISTING = """
<html><head><meta property="product:price:amount" content="85000.00">
<script type="application/ld+json">{"@graph": [{"@type": "Product", "name": "Flat",
  "offers": [{"@type": "Offer", "price": "120000.50", "priceCurrency": "BGN"}]}]}</script></head>
<body><h1>Продава 2-СТАЕН</h1><div class="price">%s</div>
<table><tr><td>Площ:</td><td>65,5 кв.м</td></tr><tr><td>Етаж</td><td>5-ти от 8</td></tr></table>
<ul class="features"><li>Асансьор</li><li>Паркинг</li><li>Асансьор</li></ul>
<div class="gallery"><img src="/a.jpg"><img data-src="/b.jpg"><img src="/a.jpg"></div>
<table class="sales"><tr><th>Дата</th><th>Цена</th></tr>
<tr><td class="date">05.03.2024</td><td class="price">90 000 лв.</td></tr>
<tr><td class="date">01.02.2019</td><td class="price">70 000 лв.</td></tr></table></body></html>
"""


def test_the_example_of_fields_in_the_docs(described: Describe) -> None:
    """Every kind of key, as docs/SITES.md shows it, gives what it says."""
    site = described(example("price_per_m2"))

    found = examine(page(URL, (LISTING % "166 245 лв.").encode()), site)

    assert found.invalid == ()
    assert found.record == {
        "title": "Продава 2-СТАЕН",
        "price": {"amount": 166245, "currency": "BGN"},
        "area": 65.5,
        "price_per_m2": 2538.091603,
        "price_eur": {"amount": 84999.41, "currency": "EUR"},
        "floor": {"floor": 5, "floors": 8},
        "number": "4711",
        "kind": "sale",
        "elevator": True,
        "features": "Асансьор, Паркинг",
        "photos": ["https://imoti.example/a.jpg", "https://imoti.example/b.jpg"],
        "sales": [
            {"date": "2024-03-05", "price": {"amount": 90000, "currency": "BGN"}},
            {"date": "2019-02-01", "price": {"amount": 70000, "currency": "BGN"}},
        ],
    }


def test_the_next_alternative_counts_where_one_has_no_value(described: Describe) -> None:
    """Without a price in the text, that of the JSON-LD; without that, the meta tag's."""
    site = described(example("price_per_m2"))
    no_text = LISTING % "по договаряне"

    of_data = examine(page(URL, no_text.encode()), site).record
    of_meta = examine(page(URL, no_text.replace("ld+json", "none").encode()), site).record

    assert of_data["price"] == {"amount": 120000.5, "currency": "BGN"}
    assert of_meta["price"] == {"amount": 85000.0, "currency": "EUR"}
    assert of_meta["price_eur"] == of_meta["price"]


def test_the_example_of_scripts_in_the_docs(described: Describe) -> None:
    """Data of a script, behind an expression in one, and of an attribute."""
    html = """<script id="__NEXT_DATA__">{"props": {"pageProps": {"product": {"name": "Lamp"}}}}
    </script><script>var a = {}; window.__STATE__ = {"product": {"stock": 12}}; go()</script>
    <div data-product='{"color": "red"}'>A lamp</div>"""

    found = examine(page(URL, html.encode()), described(example("__NEXT_DATA__"))).record

    assert found == {"name": "Lamp", "stock": 12, "color": "red"}


def test_the_example_of_records_in_the_docs(described: Describe) -> None:
    """Cards with the element itself and a link in it, and an object of JSON-LD as a record."""
    html = """<script type="application/ld+json">{"@type": "RealEstateAgent", "name": "Roe & Co",
    "address": {"addressLocality": "Sofia"}}</script>
    <div class=card data-id=7><h2>One</h2><a href="/1">x</a></div>
    <div class=card data-id=8><h2>Two</h2><a href="/2">x</a></div><h2>Not in a card</h2>
    <div class=card></div>"""

    found = examine(page(URL, html.encode()), described(example("RealEstateAgent"))).record

    assert found == {
        "offers": [
            {"name": "One", "link": "https://imoti.example/1", "number": "7"},
            {"name": "Two", "link": "https://imoti.example/2", "number": "8"},
        ],
        "agent": {"name": "Roe & Co", "city": "Sofia"},
    }


def test_the_example_of_invalid_records_in_the_docs(described: Describe) -> None:
    """A record is valid or has its reasons; the reasons are those that the docs quote."""
    site = described(example("validate:"))
    row = "<tr><td>{}</td><td>{}</td></tr>"
    good = f"<h1>12-3</h1><table>{row.format('Owner', 'Jane')}</table>"
    bad = f"<h1>12-3</h1><table>{row.format('Assessed value', '$0')}</table>"

    assert examine(page(URL, good.encode()), site).invalid == ()
    found = examine(page(URL, bad.encode()), site)
    assert found.verdict.completed
    assert found.record == {"parcel": "12-3", "owner": None, "value": 0}
    assert set(found.invalid) == {
        "the record must contain ['owner'] properties",
        "value must be bigger than or equal to 1",
    }
    assert examine(page(URL, b"<h1></h1><p>x"), site).invalid[0] == "parcel is missing"
    assert "parcel must match ^\\d+-\\d+$" in examine(page(URL, b"<h1>x"), site).invalid


# Sources.

SOURCES = """
<html><head><title>T</title><meta name="Description" content="words">
<meta property="og:title" content="OG"></head><body>
<div itemscope itemtype="https://schema.org/Product"><b itemprop="name">Micro</b>
<p itemprop="offers" itemscope itemtype="https://schema.org/Offer">
<span itemprop="price" content="9.5">x</span></p></div>
<table><tr><th>Owner:</th><td>Jane <a href="/jane">Roe</a></td><th>Zone</th><td>R1</td></tr>
<tr><td>Année</td><td>:</td><td>1999</td></tr></table>
<dl><dt>Taxes</dt><dd>$12</dd></dl><p>Call 555-1234 now</p></body></html>
"""


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("{meta: description}", "words"),
        ("{meta: 'OG:title'}", "OG"),
        ("{meta: nothing}", None),
        ("{microdata: name}", "Micro"),
        ("{microdata: Product.name}", "Micro"),
        ("{microdata: Person.name}", None),
        ("{microdata: offers.price, type: number}", 9.5),
        ("{label: owner}", "Jane Roe"),
        ("{label: 'Owner:', type: url}", "https://imoti.example/jane"),
        ("{label: Zone}", "R1"),
        ("{label: annee, type: integer}", 1999),
        ("{label: Taxes, type: number}", 12),
        ("{label: R1}", None),
        ("{url: 'obiava/(\\d+)', type: integer}", 4711),
        ("{url: nothing}", None),
        ("{regex: 'Call ([\\d-]+)'}", "555-1234"),
        ("{keywords: [call]}", True),
        ("{keywords: [all]}", False),
        ("{css: nothing, keywords: [call]}", None),
        ("[{css: h7}, {meta: nothing}, title]", "T"),
        ("[{css: h7, all: true}, {css: title}]", "T"),
        ("{first_of: [h7, {label: Taxes}], type: number}", 12),
        ("{first_of: [h7, {css: td}], all: true}", ["Jane Roe", "R1", "Année", ":", "1999"]),
        ("{first_of: [h7, h8], all: true}", []),
        ("{xpath: '//td/a/@href', type: url}", "https://imoti.example/jane"),
        ("{xpath: '//td[1]'}", "Jane Roe"),
        ("{xpath: 'count(//tr)', type: integer}", 2),
        ("{xpath: '//nothing'}", None),
        ("{xpath: '//tr[td[.=\"1999\"]]/td[1]'}", "Année"),
        ("{xpath: '//td', all: true, regex: '\\d+'}", ["1", "1999"]),
    ],
)
def test_where_a_value_is(read: Read, field: str, value: Any) -> None:
    """Each key finds what it names, and null where the page has none."""
    assert read(f"x: {field}", SOURCES).record["x"] == value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("{json: name}", "Lamp"),
        ("{json: 'offers.price', type: number}", 1.234),
        ("{json: 'offers[1].price', type: number}", 7),
        ("{json: 'offers[9].price', type: number}", None),
        ("{json: offers.price, all: true}", ["1.234", "7"]),
        ("{json: 'tags', join: ', '}", "a, b"),
        ("{json: 'tags[*]', all: true}", ["a", "b"]),
        ("{json: new, type: boolean}", True),
        ("{json: new}", "true"),
        ("{json: nothing}", None),
        ("{json: seller}", None),
        ("{json: offers, fields: {p: {json: price}}}", {"p": "1.234"}),
        ("{json: offers, all: true, fields: {p: {json: price}}}", [{"p": "1.234"}, {"p": "7"}]),
        ("{url: '\\d+'}", "4711"),
        ('{regex: \'"name": "(\\w+)\'}', "Lamp"),
        ("name", None),
        ("{label: name}", None),
        ("{meta: name}", None),
        ("{each: p, fields: {a: b}}", []),
    ],
)
def test_fields_of_an_answer_in_json(read: Read, field: str, value: Any) -> None:
    """Paths lead into the answer; numbers are read as data, whatever the locale."""
    answer = """{"name": "Lamp", "offers": [{"price": "1.234"}, {"price": 7}], "tags": ["a", "b",
    "a"], "new": true, "seller": {"name": "x"}}"""

    assert read(f"x: {field}", answer, "application/json", "locale: bg").record["x"] == value


def test_fields_of_other_answers(read: Read) -> None:
    """Plain text has a text, and any answer has a URL."""
    fields = "n: {url: '\\d+'}\nx: {regex: 'a (\\w)'}\nj: {json: a}\nh: h1"

    text = read(fields, "a b c", "text/plain").record
    image = read(fields, "a b c", "image/png").record

    assert text == {"n": "4711", "x": "b", "j": None, "h": None}
    assert image == {"n": "4711", "x": None, "j": None, "h": None}


def test_xpath_without_its_package_is_refused_with_advice(tmp_path: Path) -> None:
    """The message says what to install, or to write css."""
    (tmp_path / "parsel.py").write_text("raise ImportError('not installed')")
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "a.yaml").write_text("hosts: a.example\nfields: {x: {xpath: //a}}\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        f"import pathlib, crawler.sites\ncrawler.sites.load(pathlib.Path({str(tmp_path)!r}))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "line 2: xpath: XPath needs the package parsel" in done.stderr
    assert "pip install '.[parsel]' in the project's folder); or write css" in done.stderr


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
        max_leaves=20,
    ),
    st.lists(st.sampled_from(["a", "b", "c", 0, 1, "*"]), min_size=1, max_size=4),
)
@settings(max_examples=300, deadline=None)
def test_a_path_finds_what_a_plain_walk_finds(data: Any, steps: list[Any]) -> None:
    """In the order of the data, and nothing else."""

    def walk(value: Any, left: list[Any]) -> list[Any]:
        if isinstance(value, list):
            if left and isinstance(left[0], int):
                return walk(value[left[0]], left[1:]) if left[0] < len(value) else []
            rest = left[1:] if left and left[0] == "*" else left
            return [found for item in value for found in walk(item, rest)]
        if not left:
            return [value]
        if not isinstance(value, dict):
            return []
        if left[0] == "*":
            return [found for item in value.values() for found in walk(item, left[1:])]
        return walk(value[str(left[0])], left[1:]) if str(left[0]) in value else []

    text = "".join(f"[{step}]" if step in (0, 1, "*") else f".{step}" for step in steps)
    compiled = jsonpath.compile(text.removeprefix("."))

    assert list(jsonpath.find(data, compiled, lambda looks: None)) == walk(data, steps)


# Records in a record.


def test_records_in_records(read: Read) -> None:
    """Cards in cards have their own values; required fields are missed by their path."""
    html = """<div class=a><h2>A</h2><ul><li>1<i>x</i></li><li>2</li><li>2</li></ul></div>
    <div class=a><div class=a><h2>C</h2></div><ul><li>3</li></ul></div>
    <div class=a><h2>A</h2><ul><li>1<i>x</i></li><li>2</li></ul></div>"""
    fields = """
cards:
  each: .a
  fields:
    name: {css: h2, required: true}
    rows: {each: li, fields: {n: {type: integer}, x: i}}
"""

    found = read(fields, html)

    first = {"name": "A", "rows": [{"n": 1, "x": "x"}, {"n": 2, "x": None}]}
    assert found.record == {
        "cards": [
            first,
            {"name": None, "rows": [{"n": 3, "x": None}]},
            {"name": "C", "rows": []},
        ],
        "missing": ["cards.name"],
    }
    assert found.invalid == ("cards.name is missing",)


def test_labels_and_texts_of_a_card_are_its_own(read: Read) -> None:
    """What is beside a label, a regular expression and keywords see only the element."""
    card = "<div><table><tr><td>Rooms</td><td>{0}</td></tr></table><p>No. {0} {1}</p></div>"
    html = card.format(2, "garage") + card.format(3, "")
    fields = """
x:
  each: div
  fields:
    rooms: {label: Rooms, type: integer}
    number: {regex: 'No. (\\d)'}
    garage: {keywords: [garage]}
    page: {url: '\\d+'}
    twice: {divide: [rooms, rooms]}
"""

    found = read(fields, html).record["x"]

    assert found == [
        {"rooms": 2, "number": "2", "garage": True, "page": "4711", "twice": 1},
        {"rooms": 3, "number": "3", "garage": False, "page": "4711", "twice": 1},
    ]


def test_a_record_with_a_zero_is_a_record(read: Read) -> None:
    """Zero is a value; an element without one gives no record."""
    fields = "x: {each: p, fields: {n: {type: integer}}}"

    assert read(fields, "<p>0</p><p></p><p>none</p>").record["x"] == [{"n": 0}]


# Types.


@pytest.mark.parametrize(
    ("text", "locale", "amount", "currency"),
    [
        ("85 000 EUR", "bg", 85000, "EUR"),
        ("85 000 лв.", "bg", 85000, "BGN"),
        ("BGN 1 500", "en", 1500, "BGN"),
        ("166 245 лв (85 000 €)", "bg", 166245, "BGN"),
        ("2-стаен, цена 85 000 EUR", "bg", 85000, "EUR"),
        ("$1.2M", "en", 1200000, "USD"),
        ("€ 1.234,-", "de", 1234, "EUR"),
        ("1.200,- €", "de", 1200, "EUR"),
        ("Price: USD 450,000", "en", 450000, "USD"),
        ("450,000 dollars", "en", 450000, "USD"),
        ("£350,000 pcm", "en", 350000, "GBP"),
        ("250000 euro", "en", 250000, "EUR"),
        ("250000 eur", "en", 250000, "EUR"),
        ("1,2 млн. лв.", "bg", 1200000, "BGN"),
        ("try 5", "en", 5, None),
        ("5 TRY", "en", 5, "TRY"),
        ("99 kr", "en", 99, None),
        ("120000", "bg", 120000, None),
        ("по договаряне", "bg", None, None),
        ("1.2.3 €", "en", None, None),
    ],
)
def test_prices(text: str, locale: str, amount: float | None, currency: str | None) -> None:
    """Amount and currency by symbols, codes and words; the number beside a currency counts."""
    found = measures.price(text, values.LOCALES[locale])

    assert found == (None if amount is None else {"amount": amount, "currency": currency})


@pytest.mark.parametrize(
    ("text", "locale", "metres"),
    [
        ("85 кв.м", "bg", 85),
        ("85 кв. м.", "bg", 85),
        ("2-стаен, 65,5 кв.м", "bg", 65.5),
        ("1,200 sq ft", "en", 111.48),
        ("1 200 sq. ft.", "en", 111.48),
        ("0.25 acres", "en", 1011.71),
        ("1/2 acre", "en", 2023.43),
        ("5 дка", "bg", 5000),
        ("2,5 ha", "de", 25000),
        ("120 qm", "de", 120),
        ("85 m 2", "de", 85),
        ("Площ (кв.м): 85", "bg", 85),
        ("3 rooms, 12 acres", "en", 48562.28),
        ("85", "bg", 85),
        ("none", "en", None),
    ],
)
def test_areas(text: str, locale: str, metres: float | None) -> None:
    """Square metres of any unit; the number with a unit counts."""
    assert measures.area(text, values.LOCALES[locale]) == metres


@pytest.mark.parametrize(
    ("text", "floor"),
    [
        ("2/6", (2, 6)),
        ("5-ти от 5", (5, 5)),
        ("партер", (0, None)),
        ("Партер от 6", (0, 6)),
        ("ground floor", (0, None)),
        ("сутерен", (-1, None)),
        ("basement", (-1, None)),
        ("lower ground floor", (-1, None)),
        ("3-ти етаж", (3, None)),
        ("ет. 4 от 8", (4, 8)),
        ("5-ти етаж от общо 8", (5, 8)),
        ("3rd floor of 7", (3, 7)),
        ("3 out of 12", (3, 12)),
        ("EG", (0, None)),
        ("2. OG", (2, None)),
        ("4. Etage von 6", (4, 6)),
        ("5", (5, None)),
        ("2/6/2024", None),
        ("6/2", None),
        ("ул. Вазов 12", None),
        ("", None),
    ],
)
def test_floors(text: str, floor: tuple[int, int | None] | None) -> None:
    """Numbers, words and how many floors there are; what is something else is null."""
    expected = None if floor is None else {"floor": floor[0], "floors": floor[1]}

    assert measures.floor(text) == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("{css: p, type: area, unit: acres}", 8093.71),
        ("{css: p, type: price, unit: BGN}", {"amount": 2, "currency": "BGN"}),
        ("{css: b, enum: {Наем: rent, Продажба: sale}}", "sale"),
        ("{css: b, enum: {ажба: sale}}", None),
        ("{css: 'b, p', join: ' / '}", "2 / За продажба"),
        ("{css: 'i', join: ' / '}", None),
    ],
)
def test_units_known_texts_and_joined_ones(read: Read, field: str, value: Any) -> None:
    """A unit for texts without one, values of known texts, and one text of many."""
    assert read(f"x: {field}", "<p>2</p><b>За продажба</b><p>2</p>").record["x"] == value


@pytest.mark.parametrize(
    ("price", "area", "each", "euro"),
    [
        ("100 лв.", "50", 2, {"amount": 51.13, "currency": "EUR"}),
        ("100 €", "0", None, {"amount": 100, "currency": "EUR"}),
        ("100 $", "", None, None),
        ("100", "3", 33.333333, None),
        ("", "3", None, None),
    ],
)
def test_derived_values(read: Read, price: str, area: str, each: Any, euro: Any) -> None:
    """A quotient, and a price in another currency; null where something is missing."""
    fields = """
p: {css: p, type: price}
a: {css: b, type: area}
each: {divide: [p, a]}
euro: {convert: {field: p, currency: BGN, to: EUR, rate: 0.51129}}
"""

    found = read(fields, f"<p>{price}</p><b>{area}</b>").record

    assert (found["each"], found["euro"]) == (each, euro)


@given(st.text(max_size=200), st.sampled_from(["", "bg", "en", "de"]))
@settings(max_examples=500, deadline=None)
def test_any_text_has_a_value_or_none(text: str, locale: str) -> None:
    """No text makes a reader raise, and JSON can hold what it returns."""
    how = values.LOCALES.get(locale, values.ANY_LOCALE)

    found = [measures.price(text, how), measures.area(text, how), measures.floor(text)]

    assert json.loads(msgspec.json.encode(found)) == found


# Mistakes in a file.


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("{css: p, meta: x}", "has meta and css; write a list of alternatives"),
        ("{json: a..b}", "json: 'a..b' is no path"),
        ("{type: number}", "has no css, the selector that finds it, and none of"),
        ("{attr: href}", "has no css"),
        ("{css: p, attr: []}", "attr must have 1 to 500 entries"),
        ("{each: p}", "each needs fields"),
        ("{css: p, fields: {a: b}}", "css gives no records"),
        ("{each: p, fields: {a: {xpath: //a}}}", "xpath cannot be used inside of each"),
        ("{each: p, fields: {a: {ccs: b}}}", "no key 'ccs' in the field a; did you mean css?"),
        ("{xpath: '//a['}", "is not XPath"),
        ("{xpath: \"//a[re:test(., 'x')]\"}", "functions such as re:test() are not allowed"),
        ("{xpath: '//*[count(//*[count(//*) > 1]) > 1]'}", "a search inside of two brackets"),
        ("{xpath: '//a[b[count(preceding::a) > 1]]'}", "a search inside of two brackets"),
        ("{meta: a, attr: b}", "attr belongs to css, not to meta"),
        ("{css: p, type: number, enum: {a: b}}", "has type and enum; only one of them"),
        ("{css: p, type: price, unit: euros}", "the unit 'euros' is no currency's code"),
        ("{css: p, type: area, unit: EUR}", "'EUR' is no unit of area"),
        ("{css: p, unit: EUR}", "only a price and an area have a unit"),
        ("{divide: [a, b]}", "there is no field 'a' before it"),
        ("{divide: a}", "divide must be a list of two fields"),
        ("{convert: {field: p}}", "convert has no to"),
        ("{convert: {field: p, to: euro, rate: 2}}", "convert: 'euro' is no currency's code"),
        ("{convert: {field: p, to: EUR, rate: -1}}", "rate must be a number above 0"),
        ("{first_of: [p], css: a}", "first_of has its keys in its alternatives, but not css"),
        ("[]", "must be a list of alternatives"),
        ("[[p]]", "the field x must be a mapping"),
        ("[{first_of: [p]}]", "first_of cannot be inside another one"),
        ("{json: a, fields: {a: b}, keywords: [c]}", "records have no enum, keywords or join"),
        ("{divide: [a, b], all: true}", "beside divide only required has a meaning"),
        ("[p, {divide: [a, b]}]", "there is no field 'a' before it"),
        ("{css: p, type: pirce}", "did you mean price?"),
        ("{url: (}", "not a regular expression"),
    ],
)
def test_what_cannot_be_meant_is_refused(described: Describe, field: str, reason: str) -> None:
    """With the line, and what to write instead."""
    with pytest.raises(InputError) as refused:
        described(f"hosts: a.example\nfields:\n  x: {field}\n")

    assert reason in str(refused.value)
    assert "line 3" in str(refused.value)


# Validation.


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("a", "a schema must be a mapping"),
        ("{properties: {a: 5}}", "properties.a: a schema must be a mapping"),
        ("{minimum: a}", "minimum must be a number"),
        ("{multipleOf: 0}", "multipleOf must be a number above 0"),
        ("{type: text}", "type must be one of array, boolean"),
        ("{pattern: '(?=a)'}", "RE2"),
        ("{patternProperties: {a: {}}}", "'patternProperties' is not known"),
        ("{format: date}", "'format' is not known"),
        ("{$ref: 'http://a.example/schema.json'}", "there is no 'http://a.example/schema.json'"),
        ("{$ref: 'file:///etc/passwd'}", "there is no 'file:///etc/passwd'"),
        ("{$ref: '#'}", "there is no '#'"),
        (
            "{definitions: {a: {properties: {b: {$ref: '#/definitions/a'}}}}}",
            "leads back to itself",
        ),
        ("{allOf: [{$ref: '#/definitions/a', type: 'null'}], definitions: {a: {}}}", "beside $ref"),
    ],
)
def test_a_schema_is_checked_when_its_file_is_read(
    described: Describe, schema: str, reason: str
) -> None:
    """Nothing that would fetch, hang or never apply is accepted."""
    with pytest.raises(InputError) as refused:
        described(f"hosts: a.example\nvalidate: {schema}\n")

    assert reason in str(refused.value)
    assert "line 2" in str(refused.value)


def test_a_schema_that_repeats_itself_is_refused() -> None:
    """Definitions, each twice in the one before, would take twice as long with every one."""
    doubled = {f"d{n}": {"allOf": [{"$ref": f"#/definitions/d{n + 1}"}] * 2} for n in range(15)} | {
        "d15": {"type": "object"}
    }

    with pytest.raises(ValueError, match="more than 10,000 rules"):
        validation.checked({"definitions": doubled})


def test_patterns_of_a_schema_cannot_hang() -> None:
    """They are RE2, in which the classics of backtracking end at once."""
    schema = validation.checked({"properties": {"a": {"pattern": "^(a+)+$"}}})

    assert validation.reasons({"a": "a" * 100_000 + "!"}, schema) == ("a must match ^(a+)+$",)


@given(
    st.dictionaries(
        st.sampled_from("abc"),
        st.none() | st.integers(-2, 2) | st.text(max_size=2) | st.lists(st.integers(0, 2)),
    )
)
@settings(max_examples=300, deadline=None)
def test_a_record_is_valid_or_has_reasons(record: dict[str, Any]) -> None:
    """As plain code decides it."""
    schema = validation.checked(
        {
            "properties": {
                "a": {"type": "integer", "minimum": 0},
                "b": {"type": "string", "pattern": "^.$"},
                "c": {"items": {"enum": [0, 1]}, "uniqueItems": True},
            },
            "required": ["a"],
        }
    )
    a, b, c = (record.get(name) for name in "abc")
    wrong = {
        "a": a is not None and (not isinstance(a, int) or a < 0),
        "b": b is not None and (not isinstance(b, str) or re.search(r"^.\Z", b) is None),
        "c": isinstance(c, list) and (2 in c or len(set(c)) < len(c)),
        "the": a is None,
    }

    found = validation.reasons(record, schema)

    assert {reason.split()[0].partition("[")[0] for reason in found} == {
        name for name, is_wrong in wrong.items() if is_wrong
    }


def test_required_names_must_be_fields(described: Describe) -> None:
    """A name that is no field is a mistake; one of the list counts like `required: true`."""
    with pytest.raises(
        InputError, match=r"line 3: required: there is no field 'ownr'; did you mean owner"
    ):
        described("hosts: a.example\nfields: {owner: p}\nrequired: [ownr]\n")

    site = described("hosts: a.example\nfields: {owner: h1, b: h2}\nrequired: owner\n")
    found = examine(page(body=b"<h2>x</h2>"), site)
    assert (found.record["missing"], found.invalid) == (["owner"], ("owner is missing",))


def test_pages_of_a_kind_have_their_own_fields(described: Describe) -> None:
    """Fields, required and validate of the first entry of `pages` that fits, else of the file."""
    site = described(
        """
hosts: imoti.example
locale: bg
fields: {title: h1}
pages:
  - regex: /obiava/
    fields: {price: {css: p, type: number}, title: h2}
    required: [title]
    validate: {properties: {price: {minimum: 2000}}}
"""
    )
    body = b"<h1>Title</h1><p>1.234</p>"

    of_kind = examine(page(URL, body), site)
    of_other = examine(page("https://imoti.example/", body), site)

    assert of_kind.record == {"price": 1234, "title": None, "missing": ["title"]}
    assert of_kind.invalid == (
        "title is missing",
        "price must be bigger than or equal to 2000",
    )
    assert (of_other.record, of_other.invalid) == ({"title": "Title"}, ())


# Hostile pages.

HOSTILE = {
    "cards in cards": "<div class=card>x" * 3_000,
    "many cards": "<div class=card><h2>x</h2><td>a<td>b</div>" * 20_000,
    "many cells": "<table>" + "<tr><td>Owner<td>x" * 40_000,
    "terms in terms": "<dl>" + "<dt><div>" * 1_800 + "x",
    "metas": "<meta name=a content=b>" * 50_000,
    "state": "<script>S = " + "[" * 100_000 + "</script>",
    "states": "<script>S = {}</script>" * 40_000,
    "long state": "<script>S = " + '{"a":1},' * 60_000 + "</script>",
    "json-ld": '<script type="application/ld+json">' + '[{"a":' * 40 + "1" + "}]" * 40,
    "text": "1 € 2 m2 3/4 " * 50_000,
    "microdata": "<div itemscope itemprop=a>" * 3_000,
}
ASKED = {
    "cards": Field(
        each=".card",
        fields={
            "a": Field(css="h2"),
            "b": Field(label="a"),
            "c": Field(regex=r"x(\w*)"),
            "d": Field(
                each=".card", fields={"e": Field(css="div"), "f": Field(css="td", all=True)}
            ),
        },
    ),
    "label": Field(label="Owner", all=True),
    "meta": Field(meta="a", all=True),
    "state": Field(json="a", regex="S = ", all=True),
    "data": Field(json_ld="a.a.a", all=True),
    "items": Field(microdata="a.a.a", all=True),
    "words": Field(keywords=("nothing",)),
    "part": Field(regex="(x+x+)+y"),
    "price": Field(css="body", type="price"),
    "area": Field(css="body", type="area"),
    "floor": Field(css="body", type="floor"),
    "chain": Field(first_of=(Field(css="h9 h9"), Field(css="h8 ~ h8"), Field(css="h7"))),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_page_stretches_a_field(name: str) -> None:
    """Whatever a page holds, its fields take a bounded number of looks, and JSON can hold them."""
    found = extract(parse(HOSTILE[name]), ASKED, URL, Budget())

    assert set(found) == set(ASKED)
    assert json.loads(msgspec.json.encode(found)) == found


def test_records_take_a_bounded_memory() -> None:
    """Cards with very many fields are refused, not collected without end."""
    many = {str(n): Field(css="b", all=True) for n in range(400)}
    html = "".join(f"<div><b>{n}{'x' * 100}</b></div>" for n in range(1_000))

    with pytest.raises(FetchError, match="bytes of memory"):
        extract(parse(html), {"x": Field(each="div", fields=many)}, URL)


def test_records_are_limited() -> None:
    """As many records as a list has values."""
    html = "".join(f"<p>{n}</p>" for n in range(1_500))

    found = extract(parse(html), {"x": Field(each="p", fields={"n": Field(type="integer")})}, URL)

    assert len(found["x"]) == selectors.MAX_VALUES


KEYS: dict[str, list[str]] = {
    "css": ["p", "td, b", "script"],
    "attr": ["href", "[src, data-src]"],
    "json": ["a", "a[0].b", "[*]"],
    "json_ld": ["Product.name", "offers"],
    "meta": ["a"],
    "microdata": ["name"],
    "label": ["Owner"],
    "url": ["obiava/(\\d+)"],
    "xpath": ["//td", "count(//p)"],
    "regex": ["(\\d+)", "x"],
    "each": ["tr", "div"],
    "fields": ["{a: td, b: {type: number}, c: {json: b}}"],
    "divide": ["[n, n]"],
    "convert": ["{field: n, to: EUR, rate: 2}"],
    "all": ["true"],
    "type": ["number", "price", "area", "floor", "url", "html", "date", "boolean", "text"],
    "unit": ["EUR", "acres"],
    "enum": ["{Owner: a, x: b}"],
    "keywords": ["[Owner, x]"],
    "join": ["'; '"],
    "required": ["true"],
}
PAGE = SOURCES.replace(
    "<body>",
    """<body><script type="application/ld+json">{"@type": "Product", "name": ["A", 2, null],
    "offers": {"price": "1.5", "priceCurrency": "EUR"}}</script><script>x {"a": [{"b": 5}, 6, true,
    {"a": {}}]}</script><div><img data-src="/b"></div>""",
)


@given(
    st.dictionaries(st.sampled_from(sorted(KEYS)), st.integers(0, 9), min_size=1, max_size=5).map(
        lambda keys: {key: KEYS[key][at % len(KEYS[key])] for key, at in keys.items()}
    ),
    st.sampled_from(["{}", "[{}]", "[h7, {}]", "{{first_of: [{}, p], all: true}}"]),
    st.sampled_from([("text/html", PAGE), ("application/json", '{"a": [{"b": 5}, [1], null]}')]),
)
@settings(max_examples=600, deadline=None)
def test_what_a_file_may_say_can_be_read(
    keys: dict[str, str], form: str, answer: tuple[str, str]
) -> None:
    """Every field that is accepted has a value that JSON can hold, or none, on any page."""
    field = form.format("{" + ", ".join(f"{key}: {value}" for key, value in keys.items()) + "}")
    try:
        [checked] = _read_fields(f"n: {{css: p, type: integer}}\nx: {field}")
    except InputError:
        return
    kind, body = answer
    tree = parse(body) if kind == "text/html" else None

    found = extract(
        tree, checked, URL, Budget(), body=body.encode(), is_json=kind == "application/json"
    )

    assert json.loads(msgspec.json.encode(found)) == found
    assert found["x"] is not None or not checked["x"].is_list


def _read_fields(text: str) -> list[dict[str, Field]]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.yaml"
        path.write_text(f"fields:\n{indent(text, '  ')}\n")
        return [sitefile.read(path, sitefile.Settings, {})[0]["fields"]]


def test_a_derived_value_may_be_an_alternative(read: Read) -> None:
    """What the page says goes before what can be worked out."""
    fields = """
a: {css: p, type: number}
b: {css: b, type: number}
each: [{css: i, type: number}, {divide: [a, b]}]
"""

    assert read(fields, "<p>6</p><b>3</b>").record["each"] == 2
    assert read(fields, "<p>6</p><b>3</b><i>5</i>").record["each"] == 5
