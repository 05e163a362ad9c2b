"""A profile or comparison as sections of text and tables, and as one HTML file.

The HTML has no script and loads nothing, and scraped text stays text.
"""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import islice
from typing import Any

import msgspec

from crawler.analyze import Distribution, Example, Field, Profile
from crawler.analyze.compare import Comparison
from crawler.logs import printable

UNKNOWN = "not known from files"
COMMON = 0.5
"""A field that at least this share of the records has is reported as missing in the others."""

_MAX_NAMES = 8
_STATES = ("completed", "failed", "skipped", "expired", "pending", "processing")
_PERCENTILES = ("p50", "p90", "p95", "p99", "max")


class Section(msgspec.Struct, frozen=True):
    """A title, lines, a table, and in HTML a bar."""

    title: str
    lines: Sequence[str] = ()
    heads: Sequence[str] = ()
    """A head that begins with `>` is a column of numbers, one with `…` of long texts."""
    rows: Sequence[Sequence[str | float]] = ()
    """A float is a share, 0 to 1."""
    bar: Sequence[tuple[str, int]] = ()
    """The parts of a whole: name and count."""


class Missing(msgspec.Struct, frozen=True):
    """Fields that most records have, and the first records without them."""

    fields: list[str]
    records: int
    examples: list[Example]


def title(found: Profile | Comparison) -> str:
    """What is looked at."""
    if isinstance(found, Comparison):
        return f"{found.a.source} → {found.b.source}"
    if found.job and found.job != found.source:
        return f"job {found.job} of {found.source}"
    return found.source


def sections(found: Profile | Comparison) -> list[Section]:
    """Everything to show, without empty sections."""
    made = _comparison(found) if isinstance(found, Comparison) else _profile(found)
    return [each for each in made if each.lines or each.bar or each.rows]


def _profile(found: Profile) -> list[Section]:
    too_many = "there are even more fields than these; they were not looked at"
    error_heads = (">count", "state", "reason", "for example")
    errors = [(f"{e.count:,}", e.status, e.reason, e.url) for e in found.errors or []]
    field_heads = ("field", ">records", ">empty", "type", "…values")
    fields = [
        (field.path, field.share, f"{field.empty:,}", ", ".join(field.types), values(field))
        for field in found.fields
    ]
    time_heads = ("", ">pages", *(f">{name}" for name in _PERCENTILES))
    times = [
        _distribution("fetch", found.fetch_ms, ms),
        _distribution("parse", found.parse_ms, ms),
        _distribution("page size", found.page_bytes, size),
    ]
    unreadable = f"{found.unreadable:,} could not be read as results"
    return [
        _summary(found),
        Section(unreadable, found.unreadable_examples),
        Section("Tasks without a result", (), error_heads, errors),
        Section("Fields", [too_many] * found.fields_capped, field_heads, fields),
        Section("Records that lack what most have", _lacking(found)),
        Section("Time and size", (), time_heads, times),
        Section("Domains", (), ("name", ">results", ">no result"), _groups(found)),
    ]


def _summary(found: Profile) -> Section:
    bar, of_what = list(found.verdicts.items()), "of the results, by their verdict"
    if found.tasks:
        bar = [(state, getattr(found.tasks, state)) for state in _STATES]
        of_what = "of all accepted tasks"
    fetched = UNKNOWN
    if found.first and found.last:
        fetched = f"{found.first[:19]} to {found.last[:19]} UTC"
    if found.pages_per_s:
        fetched += f", {found.seconds:,.1f} s, {found.pages_per_s:,.1f} pages/s"
    lines = [
        f"{found.results:,} results; {percent(found.success_rate)} success ({of_what})",
        *found.notes,
        tasks(found),
        f"fetched  {fetched}",
        f"verdicts {_counts(found.verdicts)}",
        f"parsers  {_counts(found.parsers)}",
    ]
    if found.invalid:
        reasons = dict(islice(found.invalid_reasons.items(), _MAX_REASONS))
        lines.append(f"invalid  {found.invalid:,} records ({_counts(reasons)})")
    return Section(title(found), lines, bar=bar)


def _lacking(found: Profile) -> list[str]:
    lines = []
    for lack in missing(found):
        names = ", ".join(lack.fields[:_MAX_NAMES])
        if len(lack.fields) > _MAX_NAMES:
            names += f" and {len(lack.fields) - _MAX_NAMES:,} other fields"
        lines.append(f"{lack.records:,} lack {names}")
        lines += [f"    {example.task_id}  {example.url}" for example in lack.examples]
    return lines


def _distribution(
    name: str, found: Distribution | None, show: Callable[[float], str]
) -> tuple[str, ...]:
    if found is None:
        return (name, UNKNOWN, *["–"] * len(_PERCENTILES))
    return (name, f"{found.count:,}", *(show(value) for _, value in percentiles(found)))


def _groups(found: Profile) -> Sequence[tuple[str, ...]]:
    groups = found.domains
    rows = [(group.name, f"{group.results:,}", _count(group.failed)) for group in groups.top]
    if groups.other_names:
        others = f"{groups.other_names:,} others"
        rows.append((others, f"{groups.other_results:,}", _count(groups.other_failed)))
    return rows


def _comparison(found: Comparison) -> list[Section]:
    both = f"{found.both:,} pages in both, {found.same:,} of them the same"
    pages = [f"{both}; {found.only_a:,} only in A, {found.only_b:,} only in B"]
    pages += [f"    only in A: {url}" for url in found.only_a_examples]
    pages += [f"    only in B: {url}" for url in found.only_b_examples]
    bar = [
        ("the same in both", found.same),
        ("in both, changed", found.both - found.same),
        ("only in A", found.only_a),
        ("only in B", found.only_b),
    ]
    verdict_heads = (">pages", "from → to", "for example")
    verdicts = [(f"{v.count:,}", f"{v.a} → {v.b}", v.url) for v in found.verdicts]
    counts = [f"{len(found.fields):,} fields changed, {found.fields_same:,} did not"]
    field_heads = ("field", ">A", ">B", ">changed", ">appeared", ">vanished")
    fields = [
        (f.path, f.share_a, f.share_b, f"{f.changed:,}", f"{f.appeared:,}", f"{f.vanished:,}")
        for f in found.fields
    ]
    examples = []
    for field in found.fields:
        for value in field.examples:
            change = f"{value.old or '(nothing)'} → {value.new or '(nothing)'}"
            examples += [f"{field.path}: {change}", f"    {value.url}"]
    return [
        Section("Two runs", (), ("", "A", "B"), _side_by_side(found)),
        Section("Pages", pages, bar=bar),
        Section("Verdicts that changed", (), verdict_heads, verdicts),
        Section("Fields that changed", counts, field_heads, fields),
        Section("Values that changed", examples),
    ]


def _side_by_side(found: Comparison) -> list[tuple[str, ...]]:
    def median(spread: Distribution | None, show: Callable[[float], str]) -> str:
        return show(spread.p50) if spread else UNKNOWN

    facts: dict[str, Callable[[Profile], str]] = {
        "source": lambda run: run.source,
        "job": lambda run: run.job or "–",
        "tasks": tasks,
        "results": lambda run: f"{run.results:,}",
        "unreadable": lambda run: f"{run.unreadable:,}",
        "success": lambda run: percent(run.success_rate),
        "verdicts": lambda run: _counts(run.verdicts),
        "invalid": lambda run: f"{run.invalid:,}",
        "parsers": lambda run: _counts(run.parsers),
        "fetch, median": lambda run: median(run.fetch_ms, ms),
        "parse, median": lambda run: median(run.parse_ms, ms),
        "page size, median": lambda run: median(run.page_bytes, size),
    }
    return [(name, show(found.a), show(found.b)) for name, show in facts.items()]


def missing(found: Profile) -> list[Missing]:
    """Fields that most records have and some lack, grouped by the records, most frequent first."""
    together: dict[tuple[int, tuple[Example, ...]], list[str]] = {}
    for field in found.fields:
        lack = found.results - field.records + field.empty
        if 0 < lack <= (1 - COMMON) * found.results:
            together.setdefault((lack, tuple(field.lacking)), []).append(field.path)
    groups = [Missing(fields, lack, list(first)) for (lack, first), fields in together.items()]
    return sorted(groups, key=lambda group: -group.records)


def tasks(found: Profile) -> str:
    """The states of the ledger's tasks."""
    if found.tasks is None:
        return f"failed, skipped and expired tasks: {UNKNOWN}"
    counts = {state: getattr(found.tasks, state) for state in _STATES}
    parts = [f"{count:,} {state}" for state, count in counts.items() if count]
    return f"{found.tasks.accepted:,} tasks accepted: {', '.join(parts) or 'none'}"


def values(field: Field) -> str:
    """The range of a field's numbers, or some of its values."""
    if field.numbers is None:
        return " · ".join(field.examples)
    low, high = f"{field.numbers.min:.10g}", f"{field.numbers.max:.10g}"
    return low if low == high else f"{low} to {high}, median {field.numbers.median:.10g}"


def percentiles(found: Distribution) -> list[tuple[str, Any]]:
    """The percentiles that are shown, with their names."""
    return [(name, getattr(found, name)) for name in _PERCENTILES]


def percent(share: float | None) -> str:
    """A share as text; only all is 100 %, and only nothing is 0 %."""
    if share is None:
        return "–"
    if 0 < share < 1:
        share = min(max(share, 0.001), 0.999)
    return f"{share * 100:.1f} %"


def ms(value: float) -> str:
    """Milliseconds as text."""
    if value >= 1000:
        return f"{value / 1000:.3g} s"
    return f"{value:.3g} ms" if value < 100 else f"{value:.0f} ms"


def size(value: float) -> str:
    """Bytes as text."""
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


def _counts(found: dict[str, int]) -> str:
    return ", ".join(f"{name}: {count:,}" for name, count in found.items()) or "none"


def _count(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"


_MAX_REASONS = 5
_CLASSES = {">": "number", "…": "wide"}
_COLOURS = ("good", "bad", "warn", "odd", "calm", "fill")
_STYLE = """
:root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--ink:#1b1f24;--soft:#5d6670;
--line:#dfe3e8;--track:#e6eaef}
@media (prefers-color-scheme:dark){:root{--bg:#14171b;--card:#1d2126;--ink:#e6e9ed;
--soft:#9aa5b1;--line:#30363d;--track:#2b3138}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1040px;margin:0 auto;padding:24px 16px 48px;overflow-wrap:anywhere}
h1{font-size:24px}h2{font-size:17px;margin:0 0 12px}p{margin:4px 0;white-space:pre-wrap}
section,details{background:var(--card);border:1px solid var(--line);border-radius:10px;
padding:16px;margin:16px 0;overflow-x:auto}
svg{display:block;width:100%;height:8px;background:var(--track);border-radius:4px}
.stack{height:22px}.good{fill:#2f8f5b;background:#2f8f5b}.bad{fill:#cc4b40;background:#cc4b40}
.warn{fill:#c28a1c;background:#c28a1c}.odd{fill:#8567b5;background:#8567b5}
.calm{fill:#9aa4af;background:#9aa4af}.fill{fill:#3b76c4;background:#3b76c4}
ul{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;padding:0;margin:8px 0}
i{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:6px}
table{border-collapse:collapse;width:100%;font-size:14px}
th{text-align:left;color:var(--soft)}
th,td{padding:6px 14px 6px 0;border-bottom:1px solid var(--line);vertical-align:top}
.number{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}.wide{width:38%}
"""


def html_page(found: Profile | Comparison) -> str:
    """The whole page."""
    body = _sections(found)
    if isinstance(found, Comparison):
        for letter, run in (("A", found.a), ("B", found.b)):
            summary = f"<summary>{letter}: {inert(run.source)}</summary>"
            body += f"<details>{summary}{_sections(run)}</details>"
    return page(title(found), "results", body)


def page(heading: str, subject: str, body: str, style: str = "") -> str:
    """A page around HTML that was made here; it may add to the style."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    heading = inert(heading)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{heading} – {subject}</title><style>{_STYLE}{style}</style></head>
<body><main><h1>{heading}</h1>{body}</main></body></html>
"""


def inert(value: object) -> str:
    """Text from anywhere, inert on a page."""
    return escape(printable(str(value)))


def _sections(found: Profile | Comparison) -> str:
    return "\n".join(section_html(each) for each in sections(found))


def section_html(section: Section, more: str = "") -> str:
    """A section, and at its end HTML that was made here."""
    parts = [f"<h2>{inert(section.title)}</h2>"]
    parts += [f"<p>{inert(line)}</p>" for line in section.lines]
    if section.bar:
        parts.append(_bar(section.bar))
    if section.rows:
        parts.append(table(section.heads, ([_cell(v) for v in row] for row in section.rows)))
    return f"<section>{''.join(parts)}{more}</section>"


def _bar(parts: Sequence[tuple[str, int]]) -> str:
    """One bar of several parts, with a legend."""
    total = sum(count for _, count in parts) or 1
    at, bars, legend = 0.0, "", ""
    for number, (name, count) in enumerate(parts):
        if not count:
            continue
        colour = _COLOURS[min(number, len(_COLOURS) - 1)]
        bars += _rect(at, count / total, colour)
        at += count / total
        legend += f'<li><i class="{colour}"></i>{inert(name)} <b>{count:,}</b></li>'
    return f"{_svg(bars, 'stack')}<ul>{legend}</ul>"


def _rect(at: float, share: float, colour: str) -> str:
    return f'<rect x="{at * 100:.2f}" width="{share * 100:.2f}" height="8" class="{colour}"/>'


def _svg(body: str, kind: str) -> str:
    box = 'viewBox="0 0 100 8" preserveAspectRatio="none"'
    return f'<svg class="{kind}" aria-hidden="true" {box}>{body}</svg>'


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose cells are HTML that was made here; the heads are those of a `Section`."""
    classes = [_CLASSES.get(head[:1], "") for head in heads]
    lines = [_row("th", classes, [inert(head.lstrip(">…")) for head in heads])]
    lines += [_row("td", classes, row) for row in rows]
    return f"<table>{''.join(lines)}</table>"


def _row(tag: str, classes: Sequence[str], cells: Sequence[str]) -> str:
    html = ""
    for name, cell in zip(classes, cells, strict=True):
        html += f'<{tag} class="{name}">{cell}</{tag}>'
    return f"<tr>{html}</tr>"


def _cell(value: str | float) -> str:
    if isinstance(value, float):
        return percent(value) + _svg(_rect(0, value, "fill"), "share")
    return inert(value)
