"""What changed between two runs.

Both are indexed in a temporary database, so that memory does not grow with them.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Set
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any, Literal

import msgspec

from crawler import urls
from crawler.analyze import (
    MAX_EXAMPLES,
    MAX_FIELDS,
    MAX_VALUE,
    Profile,
    field_values,
    is_empty,
    moment,
    profile,
)
from crawler.analyze.sources import Source
from crawler.db.run_index import Run, RunIndex
from crawler.errors import UrlError
from crawler.logs import shortened

_MAX_VALUES = 80
"""Values of a list that are shown."""
_MAX_TEXT = 2 * MAX_VALUE

# The structs' names are the keys of `analyze A B --json`.


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """A field's value in one page of both runs, cut to 80 characters."""

    url: str
    old: str
    new: str


class FieldChange(msgspec.Struct, frozen=True, kw_only=True):
    """How a field changed; the counts are of pages in both runs."""

    path: str
    share_a: float
    share_b: float
    """The share of a run's records that have a value, 0 to 1."""
    changed: int
    appeared: int
    vanished: int
    examples: list[Value]

    @property
    def pages(self) -> int:
        return self.changed + self.appeared + self.vanished

    @property
    def shift(self) -> float:
        return round(abs(self.share_a - self.share_b), 3)


class VerdictChange(msgspec.Struct, frozen=True, kw_only=True):
    """Pages with another verdict in B; for a task without a result, the reason counts as one."""

    a: str
    b: str
    count: int
    url: str


class Change(msgspec.Struct, frozen=True, array_like=True):
    """A field of one page that differs, with its values as text, cut to 80 characters."""

    path: str
    kind: Literal["changed", "appeared", "vanished"]
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}: {self.old or '(nothing)'} → {self.new or '(nothing)'}"


class RecordChanges(msgspec.Struct, frozen=True, array_like=True):
    """What differs between two records of a page."""

    had: list[str] = []
    """The fields with a value in the old record."""
    changes: list[Change] = []


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What changed from run A to run B."""

    a: Profile
    b: Profile
    both: int
    """Pages (by URL and parcel) with results in both runs; of several results, the newest."""
    same: int
    """… with the same records."""
    only_a: int
    only_a_examples: list[str]
    only_b: int
    only_b_examples: list[str]
    verdicts: list[VerdictChange]
    """The most frequent first."""
    fields: list[FieldChange]
    """Those that changed, the most changed first."""
    fields_same: int


def compare(
    a: Source, b: Source, progress: Callable[[int], None] = lambda count: None
) -> Comparison:
    """Read both runs, and match their pages by URL and parcel."""
    with closing(RunIndex()) as index:
        profile_a = _add(index, "a", a, progress)
        profile_b = _add(index, "b", b, progress)
        return _Differences(index).comparison(profile_a, profile_b)


def _add(index: RunIndex, run: Run, source: Source, progress: Callable[[int], None]) -> Profile:
    """Profile a run, and add its pages to the index."""
    found = profile(source, progress, partial(_index, index, run))
    for task in source.ended_without_result():
        index.add(run, *task)
    return found


def index_results(index: RunIndex, run: Run, source: Source) -> int:
    """Add the results of a source to the index; returns how many there are."""
    count = 0
    for result in source.results():
        _index(index, run, result)
        count += 1
    return count


def _index(index: RunIndex, run: Run, result: dict[str, Any]) -> None:
    at = moment(result.get("scraped_at"))
    parcel, verdict = result.get("parcel_id") or "", result.get("verdict") or "none"
    seconds = 0.0
    if at:
        seconds = at.timestamp()
    url, data = result["url"], msgspec.json.encode(result["data"])
    index.add(run, key_of(url), str(parcel), seconds, url, str(verdict), data)


def key_of(url: str) -> bytes:
    """What a page is known by in the index."""
    try:
        return urls.parse(url).key
    except UrlError:
        return url.encode("utf-8", "replace")


class _Differences:
    """What two runs do not have in common."""

    def __init__(self, index: RunIndex) -> None:
        self._index = index
        self._counts = FieldCounts()
        self._both = self._same = 0

    def comparison(self, a: Profile, b: Profile) -> Comparison:
        for url, old, new in self._index.in_both():
            self._both += 1
            self._same += old == new or not self._count_changes(url, old, new)
        fields = self._fields(a, b)
        changed = [field for field in fields if field.pages or field.shift]
        only_a, only_a_examples = self._index.only_in("a", MAX_EXAMPLES)
        only_b, only_b_examples = self._index.only_in("b", MAX_EXAMPLES)
        return Comparison(
            a=a,
            b=b,
            both=self._both,
            same=self._same,
            only_a=only_a,
            only_a_examples=only_a_examples,
            only_b=only_b,
            only_b_examples=only_b_examples,
            verdicts=self._verdicts(),
            fields=sorted(changed, key=lambda field: (-field.pages, -field.shift, field.path)),
            fields_same=len(fields) - len(changed),
        )

    def _count_changes(self, url: str, old: bytes, new: bytes) -> bool:
        """Count the fields of a page that differ; False if there are none."""
        found = compare_records(old, new)
        self._counts.add(url, found)
        return bool(found.changes)

    def _fields(self, a: Profile, b: Profile) -> list[FieldChange]:
        shares_a, shares_b = _shares(a), _shares(b)
        counts = self._counts
        return [
            FieldChange(
                path=path,
                share_a=shares_a.get(path, 0.0),
                share_b=shares_b.get(path, 0.0),
                changed=counts.of(path, "changed"),
                appeared=counts.of(path, "appeared"),
                vanished=counts.of(path, "vanished"),
                examples=counts.examples(path),
            )
            for path in shares_a.keys() | shares_b.keys() | counts.paths
        ]

    def _verdicts(self) -> list[VerdictChange]:
        rows = self._index.changed_verdicts()
        return [VerdictChange(a=a, b=b, count=count, url=url) for a, b, count, url in rows]


# Records


class FieldCounts:
    """Counts, field by field, the pages whose records differ."""

    def __init__(self) -> None:
        self._had: Counter[str] = Counter()
        self._changes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._examples: dict[str, list[Value]] = {}

    @property
    def paths(self) -> Set[str]:
        """The fields of the pages that were counted."""
        return self._had.keys() | self._changes.keys()

    def add(self, url: str, found: RecordChanges) -> None:
        """Count the fields of one page."""
        self._had.update(found.had)
        for change in found.changes:
            path = change.path
            if path not in self._changes and len(self._changes) >= MAX_FIELDS:
                continue
            self._changes[path][change.kind] += 1
            examples = self._examples.setdefault(path, [])
            if len(examples) < MAX_EXAMPLES:
                examples.append(Value(url=url, old=change.old, new=change.new))
        if len(self._had) > MAX_FIELDS:
            self._had = Counter(dict(islice(self._had.items(), MAX_FIELDS)))

    def of(self, path: str, kind: str) -> int:
        """How many pages have this kind of change in a field."""
        return self._changes[path][kind] if path in self._changes else 0

    def had(self, path: str) -> int:
        """How many pages had a value in a field before."""
        return self._had[path]

    def kept(self, path: str) -> int:
        """How many of these still have the same value."""
        return self._had[path] - self.of(path, "changed") - self.of(path, "vanished")

    def examples(self, path: str) -> list[Value]:
        """The first pages that differ in a field."""
        return self._examples.get(path, [])


def compare_records(old: bytes, new: bytes) -> RecordChanges:
    """Compare two records of a page, as JSON; empty values count as none."""
    before = _values(old)
    if old == new:
        return RecordChanges(list(before))
    after = _values(new)
    return RecordChanges(
        list(before),
        [
            _change(path, before.get(path, []), after.get(path, []))
            for path in before | after
            if before.get(path) != after.get(path)
        ],
    )


def _values(data: bytes) -> dict[str, list[Any]]:
    """A record's values by path, without empty ones."""
    values: dict[str, list[Any]] = {}
    for path, value in field_values(msgspec.json.decode(data)):
        if not is_empty(value):
            values.setdefault(path, []).append(value)
    return values


def _change(path: str, before: list[Any], after: list[Any]) -> Change:
    kind: Literal["changed", "appeared", "vanished"] = "changed" if before else "appeared"
    if not after:
        kind = "vanished"
    old, new = _text(before), _text(after)
    if old == new:  # "1" is not 1
        pair = before[:_MAX_VALUES], after[:_MAX_VALUES]
        old, new = (msgspec.json.encode(values).decode()[1:-1] for values in pair)
        old, new = shortened(old, MAX_VALUE), shortened(new, MAX_VALUE)
    return Change(path, kind, old, new)


def _text(values: list[Any]) -> str:
    """Values as text, cut before they are joined: a field may hold megabytes."""
    return shortened(", ".join(str(value)[:_MAX_TEXT] for value in values[:_MAX_VALUES]), MAX_VALUE)


def _shares(found: Profile) -> dict[str, float]:
    return {field.path: (field.records - field.empty) / found.results for field in found.fields}
