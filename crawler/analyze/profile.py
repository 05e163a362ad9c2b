"""What results hold and lack: counted as they pass by, in memory that does not grow with their
number."""

import heapq
import math
import re
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from random import Random
from typing import Any

from crawler import urls
from crawler.analyze.facts import Bin, Distribution, Example, Field, Group, Groups, Profile, Range
from crawler.analyze.sources import Source
from crawler.db.results import iso
from crawler.errors import InputError, UrlError
from crawler.models import Books

TOP = 20

_EXACT = 50_000
_EXACT_OF_A_FIELD = 2_000
_FIELDS = 2_000
_NAMES = 10_000
_DISTINCT = 1_000
_DEPTH = 30
_DEEP = {"…": "nested deeper than was looked at"}
_EXAMPLES = 3
_BINS = 30
_EPOCH = datetime.fromtimestamp(0, UTC)
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d.*)?")


class Numbers:
    """Numbers as they pass by: all of them up to a limit, beyond it a fair sample."""

    def __init__(self, room: int, random: Random) -> None:
        self.count, self.min, self.max = 0, math.inf, -math.inf
        self._room, self._random = room, random
        self._kept = array("d")

    def add(self, number: float) -> None:
        """Take one in; what no float holds is left out."""
        if abs(number) > 1e300:
            return
        self.count += 1
        self.min, self.max = min(self.min, number), max(self.max, number)
        if self.count <= self._room:
            self._kept.append(number)
        elif (place := int(self._random.random() * self.count)) < self._room:
            self._kept[place] = number

    def range(self) -> Range | None:
        """Both ends and the middle."""
        return (
            Range(min=self.min, median=_quantile(sorted(self._kept), 0.5), max=self.max)
            if self.count
            else None
        )

    def distribution(self) -> Distribution | None:
        """Percentiles and histogram."""
        if not self.count:
            return None
        numbers = sorted(self._kept)
        p50, p90, p95, p99 = (_quantile(numbers, share) for share in (0.5, 0.9, 0.95, 0.99))
        return Distribution(
            count=self.count, min=self.min, p50=p50, p90=p90, p95=p95, p99=p99, max=self.max,
            exact=self.count <= self._room, histogram=self.histogram(),
        )  # fmt: skip

    def histogram(self) -> list[Bin]:
        """All numbers in bins; those of a sample are scaled to the whole."""
        if not self.count:
            return []
        low, high = self.min, self.max
        if low == high:
            return [Bin(low, high, self.count)]
        steps = range(1, _BINS)
        if low > 0 and high / low > 20:
            edges = [low * (high / low) ** (step / _BINS) for step in steps]
        else:
            edges = [low + (high - low) * step / _BINS for step in steps]
        counts = Counter(bisect_right(edges, number) for number in self._kept)
        scale = self.count / len(self._kept)
        limits = [low, *edges, high]
        return [
            Bin(limits[place], limits[place + 1], round(counts[place] * scale))
            for place in range(_BINS)
        ]


def _quantile(numbers: list[float], share: float) -> float:
    place = (len(numbers) - 1) * share
    below, above = numbers[math.floor(place)], numbers[math.ceil(place)]
    return round(below + (above - below) * (place - math.floor(place)), 6)


class _Tally:
    """Counts by name, for as many names as there is room."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.others = 0

    def add(self, name: object) -> None:
        text = "none" if name is None or name == "" else str(name)[:200]
        if text in self.counts or len(self.counts) < _NAMES:
            self.counts[text] += 1
        else:
            self.others += 1

    def groups(self) -> Groups:
        return _groups(((name, count, None) for name, count in self.counts.items()), self.others)


def _groups(rows: Iterable[tuple[str, int, int | None]], others: int = 0) -> Groups:
    rows = list(rows)
    top = heapq.nsmallest(TOP, rows, key=lambda row: (-row[1] - (row[2] or 0), row[0]))
    failed = None if any(row[2] is None for row in rows) else sum(row[2] or 0 for row in rows)
    return Groups(
        top=[Group(name=name, results=results, failed=ended) for name, results, ended in top],
        other_names=len(rows) - len(top) + (others > 0),
        other_results=sum(row[1] for row in rows) - sum(row[1] for row in top) + others,
        other_failed=None if failed is None else failed - sum(row[2] or 0 for row in top),
    )


class _FieldCount:
    """One field, as the records pass by."""

    def __init__(self, random: Random, lacking: list[Example]) -> None:
        self.records = self.empty = 0
        self.lacking = lacking
        self._types: Counter[str] = Counter()
        self._values: dict[int, list[Any]] = {}
        self._capped = False
        self._numbers = Numbers(_EXACT_OF_A_FIELD, random)
        self._lengths = Numbers(_EXACT_OF_A_FIELD, random)
        self._dates: list[tuple[datetime, str]] = []

    def add(self, value: Any) -> bool:
        """Take a value in, and say whether there is something in it."""
        kind = type_of(value)
        self._types[kind] += 1
        if kind == "number":
            self._numbers.add(value)
        elif kind in ("text", "date"):
            self._lengths.add(len(value))
            if kind == "date":
                dates = [*self._dates, (moment(value) or _EPOCH, value)]
                self._dates = [min(dates), max(dates)]
        if is_empty(value):
            return False
        known = self._values.get(key := hash(str(value)))
        if known:
            known[0] += 1
        elif len(self._values) < _DISTINCT:
            self._values[key] = [1, shorten(value)]
        else:
            self._capped = True
        return True

    def field(self, path: str, of: int) -> Field:
        """What is known of the field in the end."""
        common = sorted(self._values.values(), key=lambda value: -value[0])[:_EXAMPLES]
        return Field(
            path=path, records=self.records, share=self.records / of, empty=self.empty,
            types=dict(self._types.most_common()), distinct=len(self._values), distinct_capped=self._capped,
            examples=[text for _, text in common], numbers=self._numbers.range(), lengths=self._lengths.range(),
            dates=(self._dates[0][1], self._dates[-1][1]) if self._dates else None,
            lacking=self.lacking if self.records - self.empty < of else [],
        )  # fmt: skip


def type_of(value: object) -> str:
    """The type of a JSON value, in a word."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "date" if _DATE.fullmatch(value) and moment(value) else "text"
        case list():
            return "list"
    return "object"


def is_empty(value: object) -> bool:
    """Whether there is nothing in it; 0 and false are something."""
    return not value.strip() if isinstance(value, str) else value is None or value in ([], {})


def shorten(value: object, limit: int = 80) -> str:
    """A value as text of at most so many characters."""
    text = str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def leaves(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The values of a record with their paths; objects in a list have the same paths."""
    if isinstance(value, dict) and value and depth < _DEPTH:
        for name, part in value.items():
            yield from leaves(part, f"{path}.{name[:100]}" if path else name[:100], depth + 1)
    elif isinstance(value, list) and depth < _DEPTH:
        for part in value:
            yield from leaves(part, f"{path}[]", depth + 1)
        if not value:
            yield f"{path}[]", value
    elif path:
        yield path, value if not value or not isinstance(value, dict | list) else _DEEP


def moment(text: object) -> datetime | None:
    """The moment that an ISO-8601 text names; one without a zone is in UTC."""
    try:
        at = datetime.fromisoformat(text) if isinstance(text, str) else None
        return at and (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


class _Profiler:
    """Everything that is counted while results pass by."""

    def __init__(self) -> None:
        self.results = 0
        self._random = Random(0)  # fixed: the same results give the same report
        self._fields: dict[str, _FieldCount] = {}
        self._fields_capped = False
        self._first: list[Example] = []
        self._wanted: set[str] = set()
        self._verdicts, self._domains, self._sites, self._parsers = (
            _Tally(),
            _Tally(),
            _Tally(),
            _Tally(),
        )
        self._attempts: Counter[int] = Counter()
        self._parse_ms, self._times = Numbers(_EXACT, self._random), Numbers(_EXACT, self._random)

    def add(self, result: dict[str, Any]) -> None:
        """Take a result in."""
        self._add_record(result)
        self.results += 1
        self._verdicts.add(result.get("verdict"))
        self._sites.add(result.get("platform"))
        parser = result.get("parser")
        self._parsers.add(
            f"{parser.get('name')} {parser.get('version')}" if isinstance(parser, dict) else None
        )
        try:
            self._domains.add(urls.parse(result["url"]).domain)
        except UrlError:
            self._domains.add(None)
        if isinstance(attempts := result.get("attempts"), int):
            self._attempts[min(attempts, 1000)] += 1
        if isinstance(parse_ms := result.get("parse_duration_ms"), int | float):
            self._parse_ms.add(parse_ms)
        if at := moment(result.get("scraped_at")):
            self._times.add(at.timestamp())

    def _add_record(self, result: dict[str, Any]) -> None:
        example = Example(shorten(result.get("task_id"), 200), result["url"])
        filled: dict[str, bool] = {}
        for path, value in leaves(result["data"]):
            field = self._fields.get(path)
            if field is None:
                if len(self._fields) >= _FIELDS:
                    self._fields_capped = True
                    continue
                field = self._fields[path] = _FieldCount(self._random, self._first.copy())
                self._wanted.add(path)
            filled[path] = field.add(value) or filled.get(path, False)
        for path, has in filled.items():
            self._fields[path].records += 1
            self._fields[path].empty += not has
        for path in [path for path in self._wanted if not filled.get(path)]:
            lacking = self._fields[path].lacking
            if len(lacking) < _EXAMPLES:
                lacking.append(example)
            else:
                self._wanted.remove(path)
        if len(self._first) < _EXAMPLES:
            self._first.append(example)

    def profile(self, source: Source, books: Books | None) -> Profile:
        """All facts, with those of the ledger where there is one."""
        sizes, fetch_ms = Numbers(_EXACT, self._random), Numbers(_EXACT, self._random)
        for size, time_ms in source.pages():
            sizes.add(size)
            fetch_ms.add(time_ms)
        if source.path and not self.results:
            good = of = 0  # files that are not there are no success, whatever the ledger has
        elif books:
            good, of = books.completed, books.accepted
        else:
            good, of = self._verdicts.counts["ok"], self.results
        times = self._times
        seconds = round(times.max - times.min, 3) if times.count else None
        fields = (field.field(path, self.results) for path, field in self._fields.items())
        return Profile(
            source=source.name,
            kind=source.kind,
            job=source.job.name if source.job else None,
            notes=source.notes,
            unreadable=source.unreadable,
            unreadable_examples=source.unreadable_examples,
            tasks=books,
            results=self.results,
            success_rate=good / of if of else None,
            verdicts=dict(self._verdicts.counts.most_common()),
            errors=source.errors() if books else None,
            attempts=dict(sorted(self._attempts.items())),
            fields=sorted(fields, key=lambda field: (field.empty - field.records, field.path)),
            fields_capped=self._fields_capped,
            page_bytes=sizes.distribution(),
            fetch_ms=fetch_ms.distribution(),
            parse_ms=self._parse_ms.distribution(),
            domains=_groups(source.domains()) if books else self._domains.groups(),
            sites=self._sites.groups(),
            parsers=self._parsers.groups(),
            first=iso(times.min) if times.count else None,
            last=iso(times.max) if times.count else None,
            seconds=seconds,
            pages_per_s=round(times.count / seconds, 3) if seconds else None,
            over_time=times.histogram(),
        )


def profile(
    source: Source,
    progress: Callable[[int], None] = lambda count: None,
    each: Callable[[dict[str, Any]], None] = lambda result: None,
) -> Profile:
    """Read a source once, and say what is in it; `each` sees every result that passes by."""
    counts = _Profiler()
    books = (
        source.books()
    )  # before the results: what ends while they are read may not be among them
    for result in source.results():
        counts.add(result)
        each(result)
        progress(counts.results)
    found = counts.profile(source, books)
    if not found.results and not (found.tasks and found.tasks.accepted):
        bad = "".join(
            f"; {found.unreadable:,} could not be read, first {e}"
            for e in found.unreadable_examples[:1]
        )
        raise InputError(source.name, f"there are no results in it{bad}")
    return found
