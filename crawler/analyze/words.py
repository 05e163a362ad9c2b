"""Facts in words: how terminal and page alike say numbers, ranges and what is missing."""

from datetime import UTC, datetime

import msgspec

from crawler.analyze.facts import Distribution, Example, Field, FieldChange, Groups, Profile

UNKNOWN = "not known from files"
COMMON = 0.5
"""A field that so large a share of the records has is missed in the others."""


class Missing(msgspec.Struct, frozen=True):
    """Fields that most records have, and the first that lack them."""

    fields: list[str]
    records: int
    examples: list[Example]


def missing(found: Profile) -> list[Missing]:
    """What most records have and some lack, the most frequent lack first; fields that the same ones
    lack together."""
    together: dict[tuple[int, tuple[Example, ...]], list[str]] = {}
    for field in found.fields:
        lack = found.results - field.records + field.empty
        if 0 < lack <= (1 - COMMON) * found.results:
            together.setdefault((lack, tuple(field.lacking)), []).append(field.path)
    groups = [
        Missing(fields, lack, list(examples)) for (lack, examples), fields in together.items()
    ]
    return sorted(groups, key=lambda group: -group.records)


def percent(share: float | None) -> str:
    """A share as a person says it; only all is 100 %, and only nothing is 0 %."""
    if share is None:
        return "–"
    text = f"{share * 100:.1f} %"
    if text == "100.0 %" and share < 1:
        return "99.9 %"
    return "0.1 %" if text == "0.0 %" and share > 0 else text


def number(value: float) -> str:
    """A number without needless digits."""
    return f"{value:.10g}"


def ms(value: float) -> str:
    """Milliseconds."""
    if value >= 1000:
        return f"{value / 1000:.3g} s"
    return f"{value:.3g} ms" if value < 100 else f"{value:.0f} ms"


def size(value: float) -> str:
    """Bytes."""
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


def clock(at: float) -> str:
    """A moment of a day, UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def day(at: float) -> str:
    """A moment among many days, UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%d %b %H:%M")


def rate(found: Profile) -> str:
    """When the pages were fetched, and how fast."""
    if found.first is None or found.last is None:
        return UNKNOWN
    speed = (
        f", {found.seconds:,.1f} s, {found.pages_per_s:,.1f} pages/s" if found.pages_per_s else ""
    )
    return f"{found.first[:19]} to {found.last[:19]} UTC{speed}"


def books(found: Profile) -> str:
    """The states of the ledger's tasks, or that there is no ledger."""
    if found.tasks is None:
        return f"failed, skipped and expired tasks: {UNKNOWN}"
    states = ("completed", "failed", "skipped", "expired", "pending", "processing")
    parts = [
        f"{getattr(found.tasks, state):,} {state}"
        for state in states
        if getattr(found.tasks, state)
    ]
    return f"{found.tasks.accepted:,} tasks accepted: {', '.join(parts) or 'none'}"


def success(found: Profile) -> str:
    """What the success rate means."""
    return "of all accepted tasks" if found.tasks else "of the results, by their verdict"


def counts(found: dict[str, int] | dict[int, int]) -> str:
    """Counts by name."""
    return ", ".join(f"{name}: {count:,}" for name, count in found.items()) or "none"


def names(groups: Groups) -> str:
    """The groups in a line."""
    rest = (
        [f"{groups.other_names:,} others: {groups.other_results:,}"] if groups.other_names else []
    )
    return ", ".join([f"{group.name}: {group.results:,}" for group in groups.top] + rest) or "none"


def types(field: Field) -> str:
    """A field's types, the most frequent first, with the lengths of its text."""
    span = ""
    if field.lengths:
        low, high = number(field.lengths.min), number(field.lengths.max)
        span = f" {low}" if low == high else f" {low}–{high}"
    return ", ".join(kind + span * (kind == "text") for kind in field.types)


def distinct(field: Field) -> str:
    """How many distinct values a field has."""
    return f"{field.distinct:,}" + ("+" if field.distinct_capped else "")


def values(field: Field) -> str:
    """The range of a field's numbers or dates, or some of its values."""
    parts = []
    if field.numbers:
        low, middle, high = (
            number(n) for n in (field.numbers.min, field.numbers.median, field.numbers.max)
        )
        parts.append(low if low == high else f"{low} to {high}, median {middle}")
    if field.dates:
        first, last = field.dates
        parts.append(first if first == last else f"{first} to {last}")
    return "; ".join(parts) or " · ".join(field.examples)


def percentiles(found: Distribution) -> list[tuple[str, float]]:
    """The percentiles that are shown."""
    return [
        ("p50", found.p50),
        ("p90", found.p90),
        ("p95", found.p95),
        ("p99", found.p99),
        ("max", found.max),
    ]


def retyping(field: FieldChange) -> str:
    """From which types to which a field went, if it did."""
    before, after = ", ".join(field.types_a), ", ".join(field.types_b)
    return f"{before} → {after}" if before and after and before != after else ""
