"""What changed in listings, as short texts and as one HTML file with plots of prices.

The HTML has no script and loads nothing, and scraped text stays text.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, tzinfo
from itertools import takewhile
from typing import Any

import msgspec
from msgspec.structs import replace

from crawler.analyze.report import Section, inert, page, section_html, table
from crawler.db.listing_views import CHANGES, KINDS, Change, ChangeFilter, Listing, PriceChange
from crawler.logs import counted, shortened
from crawler.lpm import LocalPersistenceManager

MAX_ROWS = 1000
"""Changes of each kind that the report lists."""
MAX_PLOTS = 120
STEPS = (-20.0, -10.0, -5.0, 0.0, 5.0, 10.0, 20.0)
"""Limits of the ranges, in per cent, that changes of prices are counted in."""
_RANGES = ("below −20 %", "−20 to −10", "−10 to −5", "−5 to 0", "0 to 5", "5 to 10", "10 to 20",
           "above 20 %")  # fmt: skip
_MAX_FIELDS = 4
_MAX_VALUE_CHARS, _MAX_TITLE_CHARS = 60, 120
_SMALL_PERCENT = 0.1
"""Smaller changes are shown with one digit that is not 0."""
_CONTEXT_CHARS = 10
"""Text that is shown before the place where two long texts begin to differ."""
_TITLES = {
    "new": "New",
    "changed": "Changed",
    "gone": "Gone",
    "back": "Back",
    "sold": "Sold",
    "corrected": "Corrected by a later parser",
}
_COLOURED = ("new", "gone", "changed", "back", "sold", "corrected")
"""The kinds in the order of the colours of a bar: green, red, yellow …"""
_NOTHING = "–"


class PricePlot(msgspec.Struct, frozen=True):
    """The prices of one listing over time."""

    name: str
    title: str
    url: str
    currency: str | None
    points: list[tuple[float, float]]
    """Since when it had which price."""
    until: float


class ChangeReport(msgspec.Struct, frozen=True):
    """What the HTML file shows."""

    title: str
    counts: Mapping[str, Mapping[str, int]]
    """By site and kind."""
    changes: Mapping[str, Sequence[Change]]
    """The newest of each kind."""
    plots: Sequence[PricePlot]
    has_more_prices: bool
    """Whether prices of other listings changed, too."""
    price_ranges: Mapping[str, Sequence[int]]
    """How many prices of each site changed by how much, see `STEPS`."""
    zone: tzinfo | None


def collect(
    lpm: LocalPersistenceManager,
    wanted: ChangeFilter,
    title: str,
    zone: tzinfo | None,
    max_rows: int = MAX_ROWS,
    max_plots: int = MAX_PLOTS,
) -> ChangeReport:
    """Read what the report shows, all of one moment."""
    views = lpm.listings
    kinds = [kind for kind in KINDS if kind in (wanted.kinds or CHANGES)]
    with lpm.store.reading():
        prices = _Prices(max_plots)
        if "changed" in kinds:
            prices.add_all(views.price_changes(wanted))
        return ChangeReport(
            title=title,
            counts=views.change_counts(wanted),
            changes={
                kind: list(views.changes(replace(wanted, kinds=(kind,)), max_rows))
                for kind in kinds
            },
            plots=_plots(lpm, list(prices.newest)),
            has_more_prices=prices.has_more,
            price_ranges=dict(sorted(prices.ranges.items())),
            zone=zone,
        )


class _Prices:
    """Counts changes of prices, and remembers the listings of the last ones."""

    def __init__(self, max_listings: int) -> None:
        self._max_listings, self.has_more = max_listings, False
        self.ranges: dict[str, list[int]] = {}
        self.newest: dict[int, None] = {}
        """Numbers of listings, the one whose price changed last at the end."""

    def add_all(self, changes: Iterable[tuple[int, str, PriceChange]]) -> None:
        """Count changes in the order of their time."""
        for listing, site, price in changes:
            self.newest.pop(listing, None)
            self.newest[listing] = None
            if len(self.newest) > self._max_listings:
                del self.newest[next(iter(self.newest))]
                self.has_more = True
            if price.percent is not None:
                counts = self.ranges.setdefault(site, [0] * (len(STEPS) + 1))
                counts[bisect_left(STEPS, price.percent)] += 1


def _plots(lpm: LocalPersistenceManager, ids: Sequence[int]) -> list[PricePlot]:
    """The prices of listings, the last of these first."""
    views, now = lpm.listings, lpm.now()
    prices = views.prices_of(ids)
    found = {each.id: each for each in views.numbered(ids)}
    return [plot(found[id_], prices[id_], now) for id_ in reversed(ids)]


def plot(listing: Listing, prices: Sequence[PriceChange], now: float) -> PricePlot:
    """The prices of a listing, as far back as they have the currency of today."""
    currency, points = prices[-1].currency, list[tuple[float, float]]()
    for each in reversed(prices):
        points.append((each.at, each.price))
        if each.previous_currency != currency:
            break
    else:
        points.append((min(listing.first_seen, prices[0].at), prices[0].previous_price))
    points.reverse()
    title, until = listing.title or listing.name, max(now, points[-1][0])
    return PricePlot(listing.name, title, listing.url, currency, points, until)


# Texts


def price_text(price: float | None, currency: str | None = None) -> str:
    """A price, such as `115,000 EUR`; a dash if there is none."""
    if price is None:
        return _NOTHING
    return f"{price:,.15g} {currency or ''}".rstrip()


def percent_text(percent: float | None) -> str:
    """A change in per cent with its sign, such as `−4.2 %`; empty if there is none."""
    if percent is None or not math.isfinite(percent):
        return ""
    digits = ",.1f" if abs(percent) >= _SMALL_PERCENT else ".1g"
    return f"{percent:+{digits}} %".replace("-", "−")


def price_change_text(change: PriceChange) -> str:
    """A change of a price, such as `120,000 → 115,000 EUR (−4.2 %)`."""
    before = ""
    if change.previous_currency != change.currency:
        before = change.previous_currency or ""
    old, new = price_text(change.previous_price, before), price_text(change.price, change.currency)
    percent = percent_text(change.percent)
    return f"{old} → {new} ({percent})" if percent else f"{old} → {new}"


def confidence_text(confidence: float) -> str:
    """How sure it is that two listings are the same thing; only a person is wholly sure."""
    return f"{confidence if confidence == 1.0 else min(confidence, 0.99):.2f}"


def value_text(value: Any, most: int = _MAX_VALUE_CHARS) -> str:
    """A value of a record on one line."""
    if value is None or value == "":
        return _NOTHING
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return shortened(" ".join(text.split()), most)


def field_texts(change: Change) -> list[str]:
    """What changed, the price first, such as `area: 60 → 62`."""
    texts = []
    if change.price:
        texts.append(f"price {price_change_text(change.price)}")
    for name, (old, new) in change.fields.items():
        if change.price and _is_price(new, change.price.price):
            continue
        texts.append(f"{shortened(name)}: {' → '.join(_differing(old, new))}")
    return texts


def _differing(old: Any, new: Any) -> tuple[str, str]:
    """Two values; of long texts, the part where they begin to differ."""
    if isinstance(old, str) and isinstance(new, str) and len(old) > _MAX_VALUE_CHARS:
        pairs = takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False))
        same = sum(1 for _ in pairs) - _CONTEXT_CHARS
        if same > _CONTEXT_CHARS:
            old, new = f"…{old[same:]}", f"…{new[same:]}"
    return value_text(old), value_text(new)


def corrections_text(count: int) -> str:
    """How many records a later parser has read in another way."""
    return f"{counted(count, 'correction')} by a later parser"


def change_text(change: Change) -> str:
    """The first fields that changed, and how many more did."""
    texts = field_texts(change)
    text = "; ".join(texts[:_MAX_FIELDS])
    if len(texts) > _MAX_FIELDS:
        text += f"; and {counted(len(texts) - _MAX_FIELDS, 'more field')}"
    return text


def _is_price(value: Any, price: float) -> bool:
    """Whether a field's value is this price, which is shown already."""
    if isinstance(value, dict):
        return price in value.values()
    return not isinstance(value, bool) and value == price


# HTML

_STYLE = """
a{color:inherit}small{color:var(--soft)}h3{font-size:14px;margin:8px 0 4px}
td:first-child{white-space:nowrap}td:nth-child(2){overflow-wrap:break-word}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(230px,1fr));gap:12px}
figure{margin:0;border:1px solid var(--line);border-radius:8px;padding:10px;min-width:0}
figcaption{font-size:13px;line-height:1.35;max-height:5.4em;overflow:hidden}
svg.plot,svg.ranges{height:auto;background:none;overflow:visible}
svg.ranges{max-width:560px;margin-bottom:14px}
.plot path{fill:none;stroke:#3b76c4;stroke-width:2;stroke-linejoin:round}
.plot circle{fill:#3b76c4}
text{fill:var(--ink);font:11px system-ui,sans-serif}.ranges .axis{fill:var(--soft);font-size:9.5px}
"""
_PLOT_WIDTH, _PLOT_TOP, _PLOT_BOTTOM = 240.0, 26.0, 66.0
_RANGES_STEP, _RANGES_HEIGHT = 70.0, 60.0


def html_page(report: ChangeReport) -> str:
    """The whole page."""
    total = dict.fromkeys(KINDS, 0)
    for counts in report.counts.values():
        for kind, count in counts.items():
            total[kind] += count
    parts = [_summary(report, total)]
    if report.plots:
        figures = "".join(map(_figure, report.plots))
        parts.append(section_html(Section("Prices that changed", _plots_note(report)),
                                  f'<div class="plots">{figures}</div>'))  # fmt: skip
    if report.price_ranges:
        drawn = "".join(
            f"<h3>{inert(site)}</h3>{_ranges_svg(counts)}"
            for site, counts in report.price_ranges.items()
        )
        parts.append(section_html(Section("How much prices changed"), drawn))
    parts += [_changes(kind, report, total[kind]) for kind in report.changes if total[kind]]
    return page(report.title, "listings", "\n".join(parts), _STYLE)


def _summary(report: ChangeReport, total: Mapping[str, int]) -> str:
    lines = []
    if "corrected" not in report.changes and total["corrected"]:
        lines = [f"{corrections_text(total['corrected'])}, not shown here."]
    kinds = [kind for kind in report.changes if total[kind]]
    if not kinds:
        return section_html(Section("No changes", ["Nothing changed in this time.", *lines]))
    rows = [
        (site, *(f"{counts[kind]:,}" for kind in kinds))
        for site, counts in sorted(report.counts.items())
        if any(counts[kind] for kind in kinds)
    ]
    if len(rows) > 1:
        rows.append(("all sites", *(f"{total[kind]:,}" for kind in kinds)))
    heads = ("site", *(f">{kind}" for kind in kinds))
    title = counted(sum(total[kind] for kind in kinds), "change")
    bar = [(kind, total[kind] if kind in kinds else 0) for kind in _COLOURED]
    return section_html(Section(title, lines, heads, rows, bar))


def _plots_note(report: ChangeReport) -> list[str]:
    if not report.has_more_prices:
        return []
    return [f"The {len(report.plots)} listings whose price changed last."]


def _changes(kind: str, report: ChangeReport, total: int) -> str:
    rows = report.changes[kind]
    lines = []
    if total > len(rows):
        lines = [f"The newest {len(rows):,} of {total:,}."]
    cells = [
        [
            f"{datetime.fromtimestamp(each.at, report.zone):%Y-%m-%d %H:%M}",
            inert(shortened(each.name, _MAX_VALUE_CHARS)),
            _link(each.url, each.title or each.key),
            inert(price_text(each.last_price, each.currency)),
            "<br>".join(inert(text) for text in _what(each)),
        ]
        for each in rows
    ]
    heads = ["time", "listing", "title", ">price now", "…what changed"]
    if not any(cell[-1] for cell in cells):
        heads, cells = heads[:-1], [cell[:-1] for cell in cells]
    return section_html(Section(f"{_TITLES[kind]}: {total:,}", lines), table(heads, cells))


def _what(change: Change) -> list[str]:
    """What changed, and whether a listing that was gone is back."""
    is_back = change.kind == "gone" and change.state == "active"
    return [*field_texts(change), *["back now"] * is_back]


def _link(url: str, title: str) -> str:
    text = inert(shortened(" ".join(title.split()), _MAX_TITLE_CHARS))
    if not url.startswith(("http://", "https://")):
        return text
    return f'<a href="{inert(url)}" rel="noopener noreferrer">{text}</a>'


def _figure(found: PricePlot) -> str:
    first, last = found.points[0][1], found.points[-1][1]
    percent = ""
    if first:
        percent = f"<b>{percent_text((last / first - 1) * 100)}</b> "
    name = f"{percent}<small>{inert(shortened(found.name, _MAX_VALUE_CHARS))}</small>"
    caption = f"{name}<br>{_link(found.url, found.title)}"
    return f"<figure>{_plot_svg(found)}<figcaption>{caption}</figcaption></figure>"


def _plot_svg(found: PricePlot) -> str:
    """Prices as steps: each holds until the next one."""
    begin = found.points[0][0]
    low, high = min(price for _, price in found.points), max(price for _, price in found.points)
    width = (found.until - begin) or 1.0

    def place(at: float, price: float) -> tuple[float, float]:
        share = (price - low) / ((high - low) or 1.0)
        x = 4 + (at - begin) / width * (_PLOT_WIDTH - 8)
        return x, _PLOT_BOTTOM - share * (_PLOT_BOTTOM - _PLOT_TOP)

    x, y = place(*found.points[0])
    path = f"M{x:.1f} {y:.1f}"
    for at, price in found.points[1:]:
        x, y = place(at, price)
        path += f"H{x:.1f}V{y:.1f}"
    end = place(found.until, found.points[-1][1])[0]
    first = inert(price_text(found.points[0][1]))
    last = inert(price_text(found.points[-1][1], found.currency))
    return (
        f'<svg class="plot" role="img" viewBox="0 0 {_PLOT_WIDTH:.0f} 74">'
        f"<title>{first} → {last}</title>"
        f'<path d="{path}H{end:.1f}"/><circle cx="{end:.1f}" cy="{y:.1f}" r="3"/>'
        f'<text x="4" y="12">{first}</text>'
        f'<text x="{_PLOT_WIDTH - 4:.0f}" y="12" text-anchor="end">{last}</text></svg>'
    )


def _ranges_svg(counts: Sequence[int]) -> str:
    """Bars, one for each range of changes; those of lower prices are blue."""
    most, bars = max(counts) or 1, ""
    for number, count in enumerate(counts):
        x, height = number * _RANGES_STEP, count / most * _RANGES_HEIGHT
        top = 14 + _RANGES_HEIGHT - height
        colour = "fill" if number <= STEPS.index(0.0) else "warn"
        middle = x + _RANGES_STEP / 2
        bars += f'<rect class="{colour}" x="{x + 6:.0f}" y="{top:.1f}" height="{height:.1f}"'
        bars += f' width="{_RANGES_STEP - 12:.0f}" rx="2"/>'
        if count:
            bars += (
                f'<text x="{middle:.0f}" y="{top - 3:.1f}" text-anchor="middle">{count:,}</text>'
            )
        bars += f'<text class="axis" x="{middle:.0f}" y="88" text-anchor="middle">'
        bars += f"{_RANGES[number]}</text>"
    width = len(counts) * _RANGES_STEP
    return f'<svg class="ranges" role="img" viewBox="0 0 {width:.0f} 92">{bars}</svg>'
