"""What is made of a page: its verdict, and the record that its site asks for."""

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from crawler.errors import FetchError
from crawler.fetch.budget import SMALL, Budget, Memory
from crawler.models import Page
from crawler.scraping.examine import MAX_RECORD_BYTES, examine
from crawler.sites import Site, load
from crawler.sites.text import MAX_TEXT
from tests.support.tasks import page

BODY = (
    b"<title>Parcel 7</title><h1>Parcel 12-3</h1><table><tr><th>Owner</th><td>Jane Roe</td></tr>"
    b"</table>"
)
FIELDS = """
  owner: th + td
  title: h1
  deed: {css: .deed, required: true}
"""
Describe = Callable[[str], Site]


@pytest.fixture
def described(tmp_path: Path) -> Describe:
    """The site that a file describes."""

    def make(text: str) -> Site:
        (tmp_path / "sites").mkdir(exist_ok=True)
        (tmp_path / "sites" / "county.yaml").write_text(f"hosts: a.example\n{text}\n")
        return load(tmp_path).of("http://a.example/")

    return make


def read(
    site: Site, body: bytes = BODY, status: int = 200
) -> tuple[str, dict[str, Any], tuple[str, str]]:
    found = examine(page(body=body, status=status), site)
    return found.verdict.name, found.record, found.parser


def test_a_site_with_fields_gets_these_and_nothing_else(described: Describe) -> None:
    """The record is the fields, with what is missing; its parser is the site, in its version."""
    site = described(f"fields:{FIELDS}")

    _, record, parser = read(site)

    assert record == {
        "owner": "Jane Roe",
        "title": "Parcel 12-3",
        "deed": None,
        "missing": ["deed"],
    }
    assert parser == ("county", site.version)


def test_a_site_can_have_both(described: Describe) -> None:
    """`structured: true` adds what any page says; a field goes before a value of the same name."""
    site = described(f"structured: true\nfields:{FIELDS}")

    _, record, parser = read(site)

    assert (record["title"], record["owner"], record["fields"]) == (
        "Parcel 12-3",
        "Jane Roe",
        {"Owner": "Jane Roe"},
    )
    assert record["headings"] == [{"level": 1, "text": "Parcel 12-3"}]
    assert parser == ("county", site.version)


def test_values_are_read_in_the_encoding_and_locale_of_the_file(described: Describe) -> None:
    """A file puts right what its pages say wrongly or in two ways; a field may differ from the
    rest."""
    site = described(
        "encoding: windows-1251\nlocale: bg\nfields:\n"
        "  price: {css: .price, type: number}\n  area: {css: .area, type: integer}\n  city: .city\n"
        "  sold: {css: .sold, type: date}\n  lift: {css: .lift, type: boolean}\n"
        "  ratio: {css: .ratio, type: number, locale: en}\n"
    )
    body = (
        "<meta charset=utf-8><p class=price>684\u00a0540,50 лв.</p><p class=area>1.234 м2</p><p "
        "class=city>Пловдив</p><p class=sold>Продаден на 03/04/2024 г.</p><p class=lift>Да</p><p "
        "class=ratio>1.234</p>"
    ).encode("cp1251")

    _, record, _ = read(site, body)

    assert record == {
        "price": 684540.5,
        "area": 1234,
        "city": "Пловдив",
        "sold": "2024-04-03",
        "lift": True,
        "ratio": 1.234,
    }


def test_a_site_without_fields_gets_what_any_page_says(described: Describe) -> None:
    """That is the work of the default parser, unless the site's file wants nothing at all."""
    plain, nothing = described("rate: 1/s"), described("structured: false")

    _, record, parser = read(plain)

    assert (record["title"], record["fields"], parser) == (
        "Parcel 7",
        {"Owner": "Jane Roe"},
        ("default", "2"),
    )
    assert read(nothing) == ("thin", {}, ("county", nothing.version))


def test_what_is_no_page_has_no_record(described: Describe) -> None:
    """A wall is judged and not read; what no parser should see is an error, unless it was one
    already."""
    site = described(f"fields:{FIELDS}")
    deep = b"<div>" * 6_000

    assert read(site, status=404)[:2] == ("http_404", {})
    assert read(site, deep, 500) == ("http_500", {}, ("none", "2"))
    assert read(site, b" ")[:2] == ("empty", {})
    with pytest.raises(FetchError, match="nested"):
        read(site, deep)


def test_a_page_is_read_as_often_as_one_likes(described: Describe) -> None:
    """Nothing is kept between two readings, so that a stored page gives the same again."""
    site = described(f"fields:{FIELDS}")
    same: Page = page(body=BODY)

    assert examine(same, site) == examine(same, site)


def test_a_page_that_costs_too_much_is_given_up(described: Describe) -> None:
    """Reading looks at the clock between its steps and inside them; what is an error anyway keeps
    its own reason."""
    site = described("rate: 1/s")
    large = BODY + b"<p>word</p>" * 20_000

    def slow() -> Budget:
        return Budget(0.5, clock=lambda: float(next(seconds)))

    seconds = count()
    with pytest.raises(FetchError) as caught:
        examine(page(body=large), site, slow())
    assert caught.value.reason == "too_costly"
    assert examine(page(body=large, status=500), site, slow()).verdict.name == "http_500"
    assert examine(page(body=large), site, Budget()).verdict.name == "ok"


@pytest.mark.parametrize(
    "fields",
    [
        "a: {css: 'p:nth-of-type(2n) + p', all: true}",
        "b: {css: 'p:has(b)', all: true}",
        "c: {css: p, all: true}",
    ],
)
def test_fields_are_looked_for_within_the_budget(described: Describe, fields: str) -> None:
    """Every selector that is worked out here looks at the clock while it does."""
    site = described(f"structured: false\nfields:\n  {fields}")
    body = BODY + b"<p><b>w</b></p>" * 4_000
    assert len(body) < SMALL
    seconds = count()
    with pytest.raises(FetchError, match="CPU time"):
        examine(page(body=body), site, Budget(0.5, clock=lambda: float(next(seconds))))


def test_the_record_is_written_where_the_page_is_worked_on(described: Describe) -> None:
    """It comes as JSON, and its bytes count as the page's until the result is stored."""
    memory = Memory()
    budget = Budget(memory=memory)

    found = examine(page(body=BODY), described("structured: true"), budget)

    assert json.loads(found.encoded) == found.record
    assert memory.used == len(found.encoded) > 100
    budget.release()
    assert memory.used == 0


def test_a_record_that_is_too_large_is_cut(described: Describe) -> None:
    """The largest parts get shorter until it fits; all else is whole."""
    table = (
        "<table><tr><th>a</th><th>b</th></tr>"
        + f"<tr><td>1</td><td>{'x' * 1_900}</td></tr>" * 900
        + "</table>"
    )
    html = "<title>Parcel 7</title><h1>Parcel 12-3</h1>" + table * 6

    found = examine(page(body=html.encode()), described("structured: true\nfields: {title: h1}"))

    assert MAX_RECORD_BYTES // 3 < len(found.encoded) <= MAX_RECORD_BYTES
    assert json.loads(found.encoded) == found.record
    assert found.record["title"] == "Parcel 12-3"
    assert found.record["headings"] == [{"level": 1, "text": "Parcel 12-3"}]


def test_fields_that_are_too_large_are_never_cut(described: Describe) -> None:
    """A page with more bytes of fields than a record may have is too large."""
    asked = "".join(f"\n  rows{n}: {{css: p, all: true}}" for n in range(5))
    html = "".join(f"<p>{number:01990}</p>" for number in range(1_000))

    with pytest.raises(FetchError, match="fields have more than") as refused:
        examine(page(body=html.encode()), described(f"fields:{asked}"))

    assert refused.value.reason == "too_large"


def answered(kind: str, body: bytes, site: Site) -> tuple[dict[str, Any], tuple[str, str]]:
    """The record of an answer of some type, and its parser."""
    headers = (("Content-Type", kind),)
    found = examine(replace(page(body=body), headers=headers), site)
    assert json.loads(found.encoded) == found.record
    return found.record, found.parser


def test_json_and_text_have_a_record(described: Describe) -> None:
    """The data of JSON is kept as it is, text with its lines; what is broken or too much gives its
    beginning."""
    site = described("rate: 1/s")
    owner = b'{"owner": "Jane Roe", "values": [1, null]}'
    many = b"[" + b"{}," * 30_000 + b"{}]"
    deep = b"[" * 60 + b"]" * 60

    for kind in ("application/json", "application/geo+json; charset=utf-8", "text/json"):
        assert answered(kind, owner, site) == ({"json": json.loads(owner)}, ("default", "2"))
    assert answered("application/json", b'[{"a": "\\u0000b\\ud800"}]', site)[0] == {
        "json": [{"a": "b"}]
    }
    assert answered("text/plain", "Owner: Ann\n\tAcres: 1\0é ".encode(), site)[0] == {
        "text": "Owner: Ann\n\tAcres: 1é"
    }
    assert answered("text/plain; charset=latin-1", b"caf\xe9", site)[0] == {"text": "café"}
    assert answered("application/json", b'{"owner": ', site)[0] == {"text": '{"owner":'}
    assert answered("application/json", many, site)[0] == {"text": many.decode()[:MAX_TEXT]}
    assert answered("application/json", deep, site)[0] == {"text": deep.decode()}
    assert len(answered("text/plain", "é".encode() * 3_000_000, site)[0]["text"]) == MAX_TEXT


def test_other_answers_have_no_record(described: Describe) -> None:
    """Other types are stored and not read; neither are walls."""
    plain, fields = described("rate: 1/s"), described(f"fields:{FIELDS}")
    wall = replace(
        page(body=b'{"a": 1}', status=404), headers=(("Content-Type", "application/json"),)
    )

    assert answered("application/pdf", b"%PDF-1.7", plain) == ({}, ("none", "2"))
    assert examine(wall, plain).record == examine(wall, fields).record == {}


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "application/pdf"])
def test_what_is_not_html_lacks_every_field(described: Describe, kind: str) -> None:
    """Whatever the type, each field is there without a value, and the required ones are missing."""
    site = described(
        "fields:\n  price: {css: .price, required: true}\n"
        "  lots: {css: .lot, all: true, required: true}\n  city: .city\n"
    )

    record, parser = answered(kind, b'{"price": 1}', site)

    assert record == {"price": None, "lots": [], "city": None, "missing": ["price", "lots"]}
    assert parser == ("county", site.version)


def test_json_and_text_stand_beside_the_fields_they_lack(described: Describe) -> None:
    """With `structured: true` the data is kept too; a field goes before it."""
    site = described("structured: true\nfields:\n  price: {css: .price, required: true}\n")
    named = described("structured: true\nfields:\n  text: {css: .words, required: true}\n")

    assert answered("application/json", b'{"price": 1}', site)[0] == {
        "json": {"price": 1},
        "price": None,
        "missing": ["price"],
    }
    assert answered("text/plain", b"price 1", named)[0] == {"text": None, "missing": ["text"]}
