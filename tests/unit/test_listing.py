"""The listings of a page: their keys, their prices, and what its site's file says of them."""

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from crawler.canonical import is_sold, price_of
from crawler.errors import FetchError, InputError
from crawler.fetch.budget import Budget
from crawler.models import Page, SeenListing
from crawler.scraping.examine import examine
from crawler.sites import Site, faults, load
from crawler.sites.listing import MAX_KEY, find
from crawler.sites.listingfile import Listings
from tests.support.tasks import page

DAY_S = 86_400.0
FILE = """\
hosts: [a.example]
pages:
  - regex: /item/
    fields: {id: .id, price: {css: .price, type: price}, city: .city, views: .views}
"""
RECORD = {"id": "7", "city": " Sofia ", "price": {"amount": 100, "currency": "EUR"}, "views": 3}
URL = "http://a.example/item/7"


def found(record: dict[str, Any], **rules: Any) -> tuple[SeenListing, ...]:
    given = Listings(**({"key": ("id",)} | rules))
    return find(record, msgspec.json.encode(record), URL, given, Budget())


def site(folder: Path, text: str) -> Site:
    (folder / "sites").mkdir(exist_ok=True)
    (folder / "sites" / "a.yaml").write_text(text)
    return load(folder).find("a")


@pytest.mark.parametrize(
    ("record", "key", "expected"),
    [
        ({"id": "7"}, "id", "7"),
        ({"id": 7.0}, "id", "7"),
        ({"id": " a  b "}, "id", "a b"),
        ({"id": True}, "id", "true"),
        ({"id": {"b": 1, "a": 2}}, "id", '{"a":2,"b":1}'),
        ({"a": "x", "b": 2}, "a b", '["x",2]'),
        ({"title": "x"}, "url", URL),
        ({"url": "http://b.example/"}, "url", "http://b.example/"),
        ({"id": "7"}, "url id", f'["{URL}","7"]'),
        ({}, "id", None),
        ({}, "url", None),
        ({"id": None}, "id", None),
        ({"id": " "}, "id", None),
        ({"id": math.nan}, "id", None),
        ({"a": "x"}, "a b", None),
    ],
)
def test_a_key_identifies_a_listing(record: dict[str, Any], key: str, expected: str | None) -> None:
    """By one field, by several, or by the address of the page; without a value there is none."""
    listings = found(record, key=tuple(key.split()))
    assert [each.key for each in listings] == ([expected] if expected else [])


def test_a_long_key_is_its_hash() -> None:
    """Two that differ at their end stay two."""
    keys = {found({"id": "x" * 10_000 + end})[0].key for end in "ab"}
    assert len(keys) == 2
    assert all(len(key) <= MAX_KEY for key in keys)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"amount": 100, "currency": "EUR"}, (100.0, "EUR")),
        ({"amount": 0, "currency": None}, (0.0, None)),
        ({"price": "12.5", "priceCurrency": "USD"}, (12.5, "USD")),
        (12, (12.0, None)),
        ("12.50", (12.5, None)),
        ({"amount": 1, "currency": ["EUR"]}, (1.0, None)),
        *[
            (hostile, (None, None))
            for hostile in (
                None, True, "", "on request", "nan", "inf", math.nan, math.inf, -1, 1e300, [], {},
                [1], {"amount": None}, {"amount": {"amount": 1}}, "1" * 10_000,
                "1_000",
            )
        ],
    ],
)  # fmt: skip
def test_a_price_is_an_amount_and_a_currency(value: Any, expected: tuple[Any, Any]) -> None:
    """Whatever a page puts there instead is no price."""
    assert price_of(value) == expected


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"status": "Sold"}, True),
        ({"status": " ПРОДАДЕН "}, True),
        ({"status": ["new", "sold"]}, True),
        ({"is_sold": True}, True),
        ({"status": "unsold"}, False),
        ({"status": None}, False),
        ({"status": {"sold": "sold"}}, False),
        ({}, False),
    ],
)
def test_a_value_means_sold(record: dict[str, Any], expected: bool) -> None:
    """In any case of letters, also as one of several values."""
    sold = {"status": ("sold", "продаден"), "is_sold": ("true",)}
    assert is_sold(record, sold) is expected


def test_only_some_fields_count() -> None:
    """Those of `changes`, or all but those of `ignore`; the record has all of them."""
    other = RECORD | {"views": 4, "city": "Sofia"}

    for rules in ({"ignore": ("views",)}, {"changes": ("price", "city")}):
        one, two = found(RECORD, **rules)[0], found(other, **rules)[0]
        assert one.record_hash == two.record_hash
        assert one.record != two.record
    assert found(RECORD)[0].record_hash != found(other)[0].record_hash


def test_the_records_of_a_field_are_listings() -> None:
    """Each once, those without a key left out; the page is not their own."""
    cards = [
        {"id": "1", "url": "http://a.example/item/1"},
        {"id": "2", "url": "javascript:void(0)"},
        {"id": "1"},
        {"title": "an advertisement"},
        "no record",
    ]
    listings = found({"cards": cards}, each="cards")

    assert [each.key for each in listings] == ["1", "2"]
    assert all(each.is_item for each in listings)
    assert [each.address and each.address.url for each in listings] == [
        "http://a.example/item/1", None,
    ]  # fmt: skip
    assert msgspec.json.decode(listings[0].record) == cards[0]
    assert found({"cards": "none"}, each="cards") == ()


def test_a_hostile_record_costs_its_page_and_no_more() -> None:
    """Work on it ends with the budget of the page."""
    spent = iter(range(1_000_000))
    budget = Budget(cpu_s=1.0, clock=lambda: float(next(spent)))
    record = {"id": "1", "deep": [{"a": [n]} for n in range(100_000)]}

    with pytest.raises(FetchError, match="CPU time"):
        find(record, b"x" * 1_000_000, URL, Listings(key=("id",)), budget)


@pytest.mark.parametrize(("unchanged", "expected"), [(0, 1), (1, 2), (3, 8), (5, 30), (10_000, 30)])
def test_the_interval_doubles_up_to_its_maximum(unchanged: int, expected: int) -> None:
    """However many fetches have changed nothing."""
    assert Listings(key=("id",), recrawl=DAY_S).interval(unchanged) == expected * DAY_S
    assert Listings(key=("id",)).interval(unchanged) == 0.0


# The site's file


def test_a_file_says_what_listings_are(tmp_path: Path) -> None:
    """Every key of it; the key's fields are required on pages of listings."""
    text = """listings:
  key: id
  ignore: views
  price: price
  sold: {city: [gone, Sold]}
  recrawl: 12h
  recrawl_max: 2d
  match: {address: [city, id], text: city}
"""
    read = site(tmp_path, FILE + text)

    assert read.listings is not None
    assert read.listings.key == ("id",)
    assert read.listings.counted.ignore == ("views",)
    assert read.listings.sold == {"city": ("gone", "Sold")}
    assert (read.listings.recrawl, read.listings.recrawl_max) == (DAY_S / 2, 2 * DAY_S)
    assert (read.listings.match.address, read.listings.match.rooms) == (("city", "id"), ("rooms",))
    assert read.pages[0].required == ("id",)
    assert read.version != site(tmp_path, FILE).version


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("listings: id", "listings must be a mapping"),
        ("listings: {}", "listings has no key"),
        ("listings: {key: idd}", "key: there is no field 'idd'; did you mean id?"),
        ("listings: {key: [id, prize]}", "key: there is no field 'prize'; did you mean price?"),
        ("listings: {key: id, chanegs: id}", "no key 'chanegs' in listings; did you mean changes?"),
        ("listings: {key: id, changes: [cty]}", "changes: there is no field 'cty'"),
        ("listings: {key: id, changes: city, ignore: id}", "only one can be here"),
        ("listings: {key: id, sold: [x]}", "sold must be a mapping"),
        ("listings: {key: id, sold: {stat: x}}", "sold: there is no field 'stat'"),
        ("listings: {key: id, recrawl: often}", "recrawl must be a span from 1m to 3650d"),
        ("listings: {key: id, recrawl: 1s}", "recrawl must be a span from 1m to 3650d"),
        ("listings: {key: id, recrawl_max: 1d}", "recrawl_max goes with recrawl"),
        ("listings: {key: id, recrawl: 40d}", "recrawl is more than recrawl_max"),
        ("listings: {key: id, each: city}", "each: there is no field 'city' with fields"),
        ("listings: {key: id, match: {adress: city}}", "no key 'adress' in match; did you mean"),
        ("listings: {key: id, match: {text: txt}}", "match: text: there is no field 'txt'"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str, reason: str) -> None:
    """And with the nearest name."""
    with pytest.raises(InputError) as caught:
        site(tmp_path, FILE + text + "\n")
    assert reason in caught.value.reason
    assert caught.value.line == 5


def test_the_file_for_all_sites_has_no_listings(tmp_path: Path) -> None:
    """A key identifies something on one site."""
    (tmp_path / "scraping_defaults.yaml").write_text("listings: {key: id}\n")
    assert [fault.reason for fault in faults(tmp_path)] == [
        "listings belongs into the file of a site (sites/<site>.yaml), not here"
    ]


def test_a_page_that_says_something_about_itself_may_have_any_field(tmp_path: Path) -> None:
    """What its record has is not known before."""
    text = FILE.replace("/item/\n", "/item/\n    structured: true\n")
    assert site(tmp_path, f"{text}listings: {{key: anything}}\n").listings


# In a page


def detail(url: str = URL) -> Page:
    html = b"<p class=id>7</p><p class=price>100 EUR</p><p class=city>Sofia</p>"
    return page(url, b"<!doctype html><html><body>" + html * 3 + b"</body></html>")


def test_a_parsed_page_has_its_listings(tmp_path: Path) -> None:
    """Made from the same record that is stored; a site without the key has none."""
    with_key = examine(detail(), site(tmp_path, f"{FILE}listings: {{key: id}}\n"))
    without = examine(detail(), site(tmp_path, FILE))

    [seen] = with_key.listings
    assert (seen.key, seen.price, seen.currency) == ("7", 100.0, "EUR")
    assert seen.record == with_key.encoded == without.encoded
    assert without.listings == ()


def test_only_pages_of_listings_are_known_by_their_address(tmp_path: Path) -> None:
    """Every page has an address, also those that only list others."""
    read = site(tmp_path, f"{FILE}listings: {{key: url}}\n")

    assert [each.key for each in examine(detail(), read).listings] == [URL]
    assert examine(detail("http://a.example/list"), read).listings == ()
