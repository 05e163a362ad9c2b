"""What results hold and lack, counted in memory that does not grow with their number."""

import heapq
import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from random import Random
from typing import Any

import msgspec

from crawler import urls
from crawler.analyze.sources import ErrorClass, Source
from crawler.db.results import iso, kind_of_reason
from crawler.errors import InputError, UrlError
from crawler.logs import shortened
from crawler.models import FILE, TaskCounts
from crawler.sites.fieldfile import MISSING

MAX_FIELDS = 2_000
MAX_VALUE = 80
"""Characters shown of a value."""
MAX_EXAMPLES = 3

_MAX_NUMBERS = 50_000
_MAX_NUMBERS_OF_FIELD = 2_000
_MAX_GROUPS = 20
_MAX_NAMES = 10_000
_MAX_DEPTH = 30
_TYPES = {
    type(None): "null",
    bool: "boolean",
    int: "number",
    float: "number",
    str: "text",
    list: "list",
}
_TOO_DEEP = {"…": "nested deeper than was looked at"}


# The structs' names are the keys of `analyze --json`.


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """How numbers are spread; beyond 50,000 of them, percentiles are those of a sample."""

    count: int
    min: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float
    exact: bool


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest, the middle and the largest number."""

    min: float
    median: float
    max: float


class Example(msgspec.Struct, frozen=True):
    """One result."""

    task_id: str
    url: str


class Field(msgspec.Struct, kw_only=True):
    """One field of the records; objects in a list share their fields: `items[].price`."""

    path: str
    records: int = 0
    """Records that have the field, empty or not."""
    share: float = 0.0
    """… of all records, 0 to 1."""
    empty: int = 0
    """Records in which it is null, blank text, an empty list or an empty object."""
    types: dict[str, int] = {}
    """How many values are null, boolean, number, text, list (empty) or object (empty, too deep)."""
    examples: list[str] = []
    """The first different values, cut to 80 characters."""
    numbers: Range | None = None
    lacking: list[Example]
    """The first records without a value."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Results that have a name in common."""

    name: str
    results: int
    failed: int | None
    """Tasks that ended without a result; null without a ledger."""


class Groups(msgspec.Struct, frozen=True, kw_only=True):
    """The 20 largest groups, and the sum of the others."""

    top: list[Group]
    other_names: int
    """At most some 10,000 names are told apart without a ledger."""
    other_results: int
    other_failed: int | None


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What results hold and lack; null: not known without a ledger."""

    source: str
    job: str | None
    notes: list[str]
    unreadable: int
    """Files, lines or elements that are no results."""
    unreadable_examples: list[str]
    tasks: TaskCounts | None = None
    results: int
    success_rate: float | None
    """Completed tasks with a valid record of all accepted ones, 0 to 1; without a ledger, valid
    results with the verdict ok of all results."""
    verdicts: dict[str, int]
    invalid: int
    """Records that are invalid; none of them is a success."""
    invalid_reasons: dict[str, int]
    """How many records have each reason, the most frequent first."""
    errors: list[ErrorClass] | None = None
    fields: list[Field]
    """The most common first."""
    fields_capped: bool
    """Whether there are more than the 2,000 fields that are counted."""
    page_bytes: Distribution | None
    fetch_ms: Distribution | None
    parse_ms: Distribution | None
    domains: Groups
    parsers: dict[str, int]
    first: str | None = None
    last: str | None = None
    seconds: float | None = None
    pages_per_s: float | None = None


class Numbers:
    """All numbers up to a limit; beyond it, a fair sample."""

    def __init__(self, room: int, random: Random) -> None:
        self.count, self.min, self.max = 0, math.inf, -math.inf
        self._room, self._random = room, random
        self._kept = array("d")

    def add(self, number: float) -> None:
        """Count a number, unless no float can hold it."""
        if abs(number) > 1e300:
            return
        self.count += 1
        self.min, self.max = min(self.min, number), max(self.max, number)
        if self.count <= self._room:
            self._kept.append(number)
        elif (place := int(self._random.random() * self.count)) < self._room:
            self._kept[place] = number

    def range(self) -> Range | None:
        if not self.count:
            return None
        return Range(min=self.min, median=_quantile(sorted(self._kept), 0.5), max=self.max)

    def distribution(self) -> Distribution | None:
        if not self.count:
            return None
        numbers = sorted(self._kept)
        p50, p90, p95, p99 = (_quantile(numbers, share) for share in (0.5, 0.9, 0.95, 0.99))
        return Distribution(
            count=self.count,
            min=self.min,
            p50=p50,
            p90=p90,
            p95=p95,
            p99=p99,
            max=self.max,
            exact=self.count <= self._room,
        )


def _quantile(numbers: list[float], share: float) -> float:
    place = (len(numbers) - 1) * share
    below, above = numbers[math.floor(place)], numbers[math.ceil(place)]
    return round(below + (above - below) * (place - math.floor(place)), 6)


class _Tally:
    """Counts by name, for a limited number of names."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._others = 0

    def add(self, name: object) -> None:
        text = str(name or "none")[:200]
        if text in self.counts or len(self.counts) < _MAX_NAMES:
            self.counts[text] += 1
        else:
            self._others += 1

    def by_name(self) -> dict[str, int]:
        return dict(self.counts.most_common())

    def groups(self) -> Groups:
        return _groups(((name, count, None) for name, count in self.counts.items()), self._others)


def _groups(rows: Iterable[tuple[Any, ...]], others: int = 0) -> Groups:
    rows = list(rows)
    top = heapq.nsmallest(_MAX_GROUPS, rows, key=lambda row: (-row[1] - (row[2] or 0), row[0]))
    other_failed = None
    if all(row[2] is not None for row in rows):
        other_failed = sum(row[2] for row in rows) - sum(row[2] for row in top)
    return Groups(
        top=[Group(name=name, results=results, failed=failed) for name, results, failed in top],
        other_names=len(rows) - len(top) + (others > 0),
        other_results=sum(row[1] for row in rows) - sum(row[1] for row in top) + others,
        other_failed=other_failed,
    )


class _FieldCount:
    """One field while the records are read."""

    def __init__(self, path: str, lacking: list[Example], random: Random) -> None:
        self.field = Field(path=path, lacking=lacking)
        self._numbers = Numbers(_MAX_NUMBERS_OF_FIELD, random)

    def add(self, value: Any) -> bool:
        """Count a value; False where it is empty."""
        kind = _TYPES.get(type(value), "object")
        self.field.types[kind] = self.field.types.get(kind, 0) + 1
        if kind == "number":
            self._numbers.add(value)
        if is_empty(value):
            return False
        examples = self.field.examples
        if len(examples) < MAX_EXAMPLES:
            example = shortened(str(value), MAX_VALUE)
            if example not in examples:
                examples.append(example)
        return True

    def finished(self, results: int) -> Field:
        field = self.field
        field.share = field.records / results
        field.types = dict(Counter(field.types).most_common())
        field.numbers = self._numbers.range()
        if field.records - field.empty == results:
            field.lacking = []
        return field


def is_empty(value: object) -> bool:
    """Whether there is nothing in it; 0 and false are values."""
    if isinstance(value, str):
        return not value.strip()
    return value is None or value in ([], {})


def field_values(record: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values of a record's fields with their paths. The list `missing` is no field: it
    names those without a value."""
    fields = _without_missing(record)
    if isinstance(fields, dict) and list(fields) == ["records"]:  # several, made by a class
        records = fields["records"]
        if isinstance(records, list):
            fields = {"records": [_without_missing(each) for each in records]}
    yield from leaves(fields)


def _without_missing(record: Any) -> Any:
    if isinstance(record, dict) and isinstance(record.get(MISSING), list):
        return {name: value for name, value in record.items() if name != MISSING}
    return record


def leaves(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the values of a record with their paths; objects in a list have the same paths."""
    if value and depth >= _MAX_DEPTH and isinstance(value, dict | list):
        value = _TOO_DEEP
    elif value and isinstance(value, dict):
        prefix = f"{path}." if path else ""
        for name, part in value.items():
            yield from leaves(part, prefix + name[:100], depth + 1)
        return
    elif isinstance(value, list):
        path += "[]"
        for part in value:
            yield from leaves(part, path, depth + 1)
        if value:
            return
    if path:
        yield path, value


def moment(text: object) -> datetime | None:
    """The moment that an ISO-8601 text names; without a zone it is in UTC."""
    if not isinstance(text, str):
        return None
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is None:
            at = at.replace(tzinfo=UTC)
        return at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


class _Profiler:
    """Everything that is counted while results are read."""

    def __init__(self) -> None:
        self.results = self._files = 0
        self._random = Random(0)  # fixed: the same results give the same report
        self._fields: dict[str, _FieldCount] = {}
        self._fields_capped = False
        self._first: list[Example] = []
        self._lacking_examples: set[str] = set()
        self._verdicts, self._domains, self._parsers = _Tally(), _Tally(), _Tally()
        self._invalid, self._invalid_ok, self._reasons = 0, 0, _Tally()
        self._parse_ms, self._times = self._numbers(), self._numbers()

    def _numbers(self) -> Numbers:
        return Numbers(_MAX_NUMBERS, self._random)

    def add(self, result: dict[str, Any]) -> None:
        if result.get("method") == FILE:
            self._files += 1  # an image has other fields than the record that names it
        else:
            self._add_record(result)
        self.results += 1
        self._verdicts.add(result.get("verdict"))
        if isinstance(invalid := result.get("invalid"), list) and invalid:
            self._invalid += 1
            self._invalid_ok += result.get("verdict") == "ok"
            for reason in invalid:
                self._reasons.add(kind_of_reason(str(reason)))
        parser, domain = result.get("parser"), None
        if isinstance(parser, dict):
            parser = f"{parser.get('name')} {parser.get('version')}"
        self._parsers.add(parser)
        with suppress(UrlError):
            domain = urls.parse(result["url"]).domain
        self._domains.add(domain)
        if isinstance(parse_ms := result.get("parse_duration_ms"), int | float):
            self._parse_ms.add(parse_ms)
        if at := moment(result.get("scraped_at")):
            self._times.add(at.timestamp())

    def _add_record(self, result: dict[str, Any]) -> None:
        example = Example(shortened(str(result.get("task_id")), 200), result["url"])
        filled: dict[str, bool] = {}
        for path, value in field_values(result["data"]):
            count = self._fields.get(path)
            if count is None:
                if len(self._fields) >= MAX_FIELDS:
                    self._fields_capped = True
                    continue
                count = self._fields[path] = _FieldCount(path, self._first.copy(), self._random)
                self._lacking_examples.add(path)
            filled[path] = count.add(value) or filled.get(path, False)
        for path, has_value in filled.items():
            field = self._fields[path].field
            field.records += 1
            field.empty += not has_value
        for path in [path for path in self._lacking_examples if not filled.get(path)]:
            lacking = self._fields[path].field.lacking
            if len(lacking) < MAX_EXAMPLES:
                lacking.append(example)
            else:
                self._lacking_examples.remove(path)
        if len(self._first) < MAX_EXAMPLES:
            self._first.append(example)

    def profile(self, source: Source, books: TaskCounts | None) -> Profile:
        sizes, fetch_ms = self._numbers(), self._numbers()
        for size, time_ms in source.pages():
            sizes.add(size)
            fetch_ms.add(time_ms)
        ledger: dict[str, Any] = {"domains": self._domains.groups()}
        if books:
            domains = _groups(source.domains())
            ledger = {"domains": domains, "tasks": books, "errors": source.errors()}
        good, of = self._verdicts.counts["ok"] - self._invalid_ok, self.results
        if books and (self.results or source.path is None):  # missing files are no success
            good, of = max(0, books.completed - self._invalid), books.accepted
        records = self.results - self._files
        fields = (count.finished(records) for count in self._fields.values())
        return Profile(
            source=source.name,
            job=getattr(source.job, "name", None),
            notes=source.notes,
            unreadable=source.unreadable,
            unreadable_examples=source.unreadable_examples,
            results=self.results,
            success_rate=good / of if of else None,
            verdicts=self._verdicts.by_name(),
            invalid=self._invalid,
            invalid_reasons=self._reasons.by_name(),
            fields=sorted(fields, key=lambda field: (field.empty - field.records, field.path)),
            fields_capped=self._fields_capped,
            page_bytes=sizes.distribution(),
            fetch_ms=fetch_ms.distribution(),
            parse_ms=self._parse_ms.distribution(),
            parsers=self._parsers.by_name(),
            **ledger,
            **self._fetched(),
        )

    def _fetched(self) -> dict[str, Any]:
        """When the pages were fetched, and how fast."""
        times = self._times
        if not times.count:
            return {}
        seconds = round(times.max - times.min, 3)
        rate = round(times.count / seconds, 3) if seconds else None
        first, last = iso(times.min), iso(times.max)
        return {"first": first, "last": last, "seconds": seconds, "pages_per_s": rate}


def profile(
    source: Source,
    progress: Callable[[int], None] = lambda count: None,
    each: Callable[[dict[str, Any]], None] = lambda result: None,
) -> Profile:
    """Read a source once and count what is in it; `each` is called with every result."""
    profiler = _Profiler()
    books = source.books()  # before the results: a task may complete while they are read
    for result in source.results():
        profiler.add(result)
        each(result)
        progress(profiler.results)
    found = profiler.profile(source, books)
    if not found.results and not (books and books.accepted):
        reason = "there are no results in it"
        if found.unreadable:
            first = found.unreadable_examples[0]
            reason += f"; {found.unreadable:,} could not be read, first {first}"
        raise InputError(source.name, reason)
    return found
