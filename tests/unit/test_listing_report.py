"""The HTML report of changes, and the texts that tell of them."""

import re
from collections import Counter
from datetime import UTC
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from crawler.analyze import listing_report
from crawler.analyze.listing_report import collect, html_page, plot
from crawler.db.listing_views import Change, ChangeFilter, PriceChange
from crawler.lpm import LocalPersistenceManager
from tests.support.listing_rows import DAY, HOSTILE, T0, Writer

VOID = {"meta", "br"}


class Elements(HTMLParser):
    """What a browser would see of a page; fails if elements are not closed in their order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name == "href"]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def page(lpm: LocalPersistenceManager, **wanted: Any) -> str:
    """The report of a store."""
    return html_page(collect(lpm, ChangeFilter(**wanted), "Changes", UTC))


def fill(folder: Path, word: str) -> LocalPersistenceManager:
    """A store in which everything that a site can choose has a word in it."""
    lpm = LocalPersistenceManager(folder, clock=lambda: T0 + 9 * DAY)
    writer = Writer(lpm)
    for key in ("1", "2"):
        id_ = writer.add(
            "imoti", f"{key}{word}", title=f"A {word}", url=f"http://a.example/?{word}"
        )
        writer.reprice(id_, 100_000, 90_000, day=2)
        fields = {f"name {word}": (f"old {word}", [f"new {word}"])}
        for kind in ("gone", "back", "sold", "corrected", "changed"):
            writer.change(id_, kind, day=3, fields=fields)
        writer.set(id_, currency=word)
    return lpm


def test_scraped_text_is_only_text_on_the_page(tmp_path: Path) -> None:
    """Hostile titles, keys, values and URLs add no element and no attribute to the report. It loads
    nothing, and links only to the listings."""
    with fill(tmp_path / "a", HOSTILE) as one, fill(tmp_path / "b", "harmless") as other:
        hostile, harmless = page(one), page(other)

    found, expected = Elements(hostile), Elements(harmless)
    assert (found.tags, found.attributes) == (expected.tags, expected.attributes)
    assert not found.attributes & {"src", "onerror", "onclick", "srcset", "style"}
    assert not {"script", "link", "img", "iframe", "image", "use"} & set(found.tags)
    assert all(link.startswith("http://a.example/?") for link in found.links)
    assert "&lt;img src=x onerror=alert(1)&gt;&quot;&#x27;&amp;\\x1b[31m\\u202e" in hostile
    assert "\x1b" not in hostile
    assert "content=\"default-src 'none'; style-src 'unsafe-inline'\"" in hostile
    assert "url(" not in hostile


def test_the_page_shows_what_changed(tmp_path: Path) -> None:
    """Counts by site and kind, a table for each kind, a plot for each price that changed, and how
    much prices of each site changed."""
    with LocalPersistenceManager(tmp_path, clock=lambda: T0 + 9 * DAY) as lpm:
        writer = Writer(lpm)
        one = writer.add("imoti", "1", title="Двустаен", price=200)
        writer.add("homes", "2")
        writer.reprice(one, 200, 150, day=1)
        writer.reprice(one, 150, 160, day=2)
        writer.change(one, "gone", day=3)
        writer.change(one, "corrected", day=4, fields={"area": (60, 62)})
        back = writer.add("homes", "3", day=-1)
        writer.change(back, "gone", day=-0.5)
        writer.change(back, "back", day=-0.4)
        corrected = page(lpm, kinds=("corrected",))
        shown, recent, only_new = (
            page(lpm),
            page(lpm, since=T0 + 2.5 * DAY),
            page(lpm, kinds=("new",)),
        )

    assert "1 correction by a later parser, not shown here." in shown
    assert "area: 60" not in shown
    assert "area: 60 → 62" in corrected
    assert shown.count("back now") == 1
    for text in ("8 changes", "new <b>3</b>", "gone <b>2</b>", "New: 3", "Changed: 2", "Gone: 2",
                 ">imoti:1</td>",
                 "Двустаен", "price 200 → 150 EUR (−25.0 %)", "2026-11-08 21:20"):  # fmt: skip
        assert text in shown
    assert 'href="http://imoti.example/1"' in shown
    assert Elements(shown).tags["figure"] == 1
    assert shown.count('class="ranges"') == 1
    assert ">200</text>" in shown
    assert ">160 EUR</text>" in shown
    assert "Changed" not in recent
    assert "figure" not in Elements(only_new).tags


@pytest.mark.parametrize("count", [0, 1])
def test_a_page_with_little_on_it(tmp_path: Path, count: int) -> None:
    """A store without changes, and with one, has a whole page."""
    with LocalPersistenceManager(tmp_path) as lpm:
        lpm.open()
        for n in range(count):
            Writer(lpm).add("imoti", str(n))
        shown = page(lpm)

    assert Elements(shown).tags["main"] == 1
    assert ("1 change" if count else "Nothing changed in this time.") in shown


def test_long_tables_are_cut(tmp_path: Path) -> None:
    """Of many changes, the newest are shown, and how many there are; so it is with plots."""
    with LocalPersistenceManager(tmp_path, clock=lambda: T0 + 9 * DAY) as lpm:
        writer = Writer(lpm)
        for n in range(5):
            id_ = writer.add("imoti", str(n), day=n, title=f"flat {'long ' * 100}{n}")
            writer.reprice(id_, 100, 90, day=5)
        shown = html_page(collect(lpm, ChangeFilter(), "Changes", UTC, max_rows=3, max_plots=2))

    assert "The newest 3 of 5." in shown
    assert "The 2 listings whose price changed last." in shown
    assert re.findall(r"imoti:(\d)</small>", shown) == ["4", "3"]
    assert "long " * 50 not in shown


def test_a_plot_has_one_currency(tmp_path: Path) -> None:
    """Prices before a change of the currency are not in the plot: they cannot be compared."""
    with LocalPersistenceManager(tmp_path) as lpm:
        [listing] = lpm.listings.numbered([Writer(lpm).add("imoti", "1")])
    prices = [
        PriceChange(T0 + 1, 210.0, "BGN", 200.0, "BGN"),
        PriceChange(T0 + 2, 105.0, "EUR", 210.0, "BGN"),
        PriceChange(T0 + 3, 100.0, "EUR", 105.0, "EUR"),
    ]

    assert plot(listing, prices, T0).points == [(T0 + 2, 105.0), (T0 + 3, 100.0)]
    assert plot(listing, prices[2:], T0).points == [(T0, 105.0), (T0 + 3, 100.0)]
    assert prices[1].percent is None


def change(fields: dict[str, tuple[Any, Any]], price: PriceChange | None = None) -> Change:
    """A change with these fields."""
    return Change(
        1, T0, "changed", 1, "imoti", "1", "http://a/", "", 1, "", "active", fields, None, price
    )


def test_changes_in_words() -> None:
    """A price comes first and once; long texts are shown where they begin to differ, and many
    fields are counted."""
    price = PriceChange(T0, 115_000.0, "EUR", 120_000.0, "EUR")
    number = change({"area": (60, 62.5), "cena": (120_000, 115_000)}, price)
    object_ = change({"cena": ({"amount": 120_000}, {"amount": 115_000, "unit": "EUR"})}, price)
    same = "the same beginning of a text, " * 10
    long_text = change({"text": (f"{same}old", f"{same}new")})
    many = change({f"f{n}": (None, n) for n in range(7)})

    assert listing_report.field_texts(number) == [
        "price 120,000 → 115,000 EUR (−4.2 %)",
        "area: 60 → 62.5",
    ]
    assert len(listing_report.field_texts(object_)) == 1
    assert listing_report.field_texts(long_text) == ["text: …f a text, old → …f a text, new"]
    assert listing_report.change_text(many) == (
        "f0: – → 0; f1: – → 1; f2: – → 2; f3: – → 3; and 3 more fields"
    )
    assert listing_report.percent_text(0.0265) == "+0.03 %"
    assert listing_report.percent_text(-1234.56) == "−1,234.6 %"
    assert listing_report.price_text(1234.5, None) == "1,234.5"
    assert listing_report.price_text(None) == "–"
