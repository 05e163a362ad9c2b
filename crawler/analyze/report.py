"""A profile or comparison as sections of text and tables, for the terminal and for HTML."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from crawler.analyze.compare import Comparison
from crawler.analyze.profile import Distribution, Example, Field, Groups, Profile

UNKNOWN = "not known from files"
COMMON = 0.5
"""A field that at least this share of the records has is reported as missing in the others."""

_STATES = ("completed", "failed", "skipped", "expired", "pending", "processing")
_PERCENTILES = ("p50", "p90", "p95", "p99", "max")


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A title, then lines, a bar (HTML only) and a table."""

    title: str
    lines: Sequence[str] = ()
    bar: Sequence[tuple[str, int]] = ()
    """The parts of a whole: name and count."""
    heads: Sequence[str] = ()
    """A head that begins with `>` is a column of numbers, one with `…` of long texts."""
    rows: Sequence[Sequence[str | float]] = ()
    """A float is a share, 0 to 1."""


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
    errors = [(f"{e.count:,}", e.status, e.reason, e.url) for e in found.errors or []]
    fields = [
        (field.path, field.share, f"{field.empty:,}", ", ".join(field.types), values(field))
        for field in found.fields
    ]
    more_fields = ["there are even more fields than these; they were not looked at"]
    return [
        _summary(found),
        Section(
            title=f"{found.unreadable:,} could not be read as results",
            lines=found.unreadable_examples,
        ),
        Section(
            title="Tasks without a result",
            heads=(">count", "state", "reason", "for example"),
            rows=errors,
        ),
        Section(
            title="Fields",
            lines=more_fields if found.fields_capped else (),
            heads=("field", ">records", ">empty", "type", "…values"),
            rows=fields,
        ),
        Section(title="Records that lack what most have", lines=_lacking(found)),
        Section(
            title="Time and size", heads=("", ">pages", *(f">{p}" for p in _PERCENTILES)),
            rows=[
                _distribution("fetch", found.fetch_ms, ms),
                _distribution("parse", found.parse_ms, ms),
                _distribution("page size", found.page_bytes, size),
            ],
        ),
        Section(title="Domains", heads=("name", ">results", ">no result"), rows=_groups(found)),
    ]  # fmt: skip


def _summary(found: Profile) -> Section:
    of_what = "of all accepted tasks" if found.tasks else "of the results, by their verdict"
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
        f"parsers  {names(found.parsers)}",
    ]
    bar = list(found.verdicts.items())
    if found.tasks:
        bar = [(state, getattr(found.tasks, state)) for state in _STATES]
    return Section(title=title(found), lines=lines, bar=bar)


def _lacking(found: Profile) -> list[str]:
    lines = []
    for lack in missing(found):
        lines.append(f"{lack.records:,} lack {', '.join(lack.fields)}")
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
    lines = [f"{both}; {found.only_a:,} only in A, {found.only_b:,} only in B"]
    lines += [f"    only in A: {url}" for url in found.only_a_examples]
    lines += [f"    only in B: {url}" for url in found.only_b_examples]
    bar = [
        ("the same in both", found.same),
        ("in both, changed", found.both - found.same),
        ("only in A", found.only_a),
        ("only in B", found.only_b),
    ]
    verdicts = [(f"{v.count:,}", f"{v.a} → {v.b}", v.url) for v in found.verdicts]
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
        Section(title="Two runs", heads=("", "A", "B"), rows=_side_by_side(found)),
        Section(title="Pages", lines=lines, bar=bar),
        Section(
            title="Verdicts that changed",
            heads=(">pages", "from → to", "for example"),
            rows=verdicts,
        ),
        Section(
            title="Fields that changed",
            lines=[f"{len(fields):,} fields changed, {found.fields_same:,} did not"],
            heads=("field", ">A", ">B", ">changed", ">appeared", ">vanished"),
            rows=fields,
        ),
        Section(title="Values that changed", lines=examples),
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
        "parsers": lambda run: names(run.parsers),
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


def names(groups: Groups) -> str:
    """Groups in one line."""
    counts: dict[str, int] = {group.name: group.results for group in groups.top}
    if groups.other_names:
        counts[f"{groups.other_names:,} others"] = groups.other_results
    return _counts(counts)


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
