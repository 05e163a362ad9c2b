"""What changed between two runs.

Both are indexed in a temporary database, so that memory does not grow with them.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import closing
from typing import Any

import msgspec

from crawler import urls
from crawler.analyze import (
    MAX_EXAMPLES,
    MAX_FIELDS,
    MAX_VALUE,
    Profile,
    is_empty,
    leaves,
    moment,
    profile,
)
from crawler.analyze.sources import Source
from crawler.db.run_index import Run, RunIndex
from crawler.errors import UrlError
from crawler.logs import shortened

_MAX_VALUES = 80
"""Values of a list that are shown."""

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

    def keep(result: dict[str, Any]) -> None:
        at = moment(result.get("scraped_at"))
        parcel, verdict = result.get("parcel_id") or "", result.get("verdict") or "none"
        seconds = 0.0
        if at:
            seconds = at.timestamp()
        url, data = result["url"], msgspec.json.encode(result["data"])
        index.add(run, _key(url), str(parcel), seconds, url, str(verdict), data)

    found = profile(source, progress, keep)
    for task in source.ended_without_result():
        index.add(run, *task)
    return found


def _key(url: str) -> bytes:
    try:
        return urls.parse(url).key
    except UrlError:
        return url.encode("utf-8", "replace")


class _Differences:
    """What two runs do not have in common."""

    def __init__(self, index: RunIndex) -> None:
        self._index = index
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._examples: dict[str, list[Value]] = {}
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

    def _count_changes(self, url: str, old_data: bytes, new_data: bytes) -> bool:
        """Count the fields of a page that differ; False if there are none."""
        old, new = _values(old_data), _values(new_data)
        changed = [path for path in old.keys() | new.keys() if old.get(path) != new.get(path)]
        for path in changed:
            if path not in self._counts and len(self._counts) >= MAX_FIELDS:
                continue
            before, after = old.get(path, []), new.get(path, [])
            kind = "changed" if before else "appeared"
            self._counts[path][kind if after else "vanished"] += 1
            examples = self._examples.setdefault(path, [])
            if len(examples) < MAX_EXAMPLES:
                examples.append(_example(url, before, after))
        return bool(changed)

    def _fields(self, a: Profile, b: Profile) -> list[FieldChange]:
        shares_a, shares_b = _shares(a), _shares(b)
        return [
            FieldChange(
                path=path,
                share_a=shares_a.get(path, 0.0),
                share_b=shares_b.get(path, 0.0),
                changed=self._counts[path]["changed"],
                appeared=self._counts[path]["appeared"],
                vanished=self._counts[path]["vanished"],
                examples=self._examples.get(path, []),
            )
            for path in shares_a.keys() | shares_b.keys() | self._counts.keys()
        ]

    def _verdicts(self) -> list[VerdictChange]:
        rows = self._index.changed_verdicts()
        return [VerdictChange(a=a, b=b, count=count, url=url) for a, b, count, url in rows]


def _values(data: bytes) -> dict[str, list[Any]]:
    """A record's values by path, without empty ones."""
    values: dict[str, list[Any]] = {}
    for path, value in leaves(msgspec.json.decode(data)):
        if not is_empty(value):
            values.setdefault(path, []).append(value)
    return values


def _example(url: str, before: list[Any], after: list[Any]) -> Value:
    pair = before[:_MAX_VALUES], after[:_MAX_VALUES]
    old, new = (", ".join(map(str, values)) for values in pair)
    if old == new:  # "1" is not 1
        old, new = (msgspec.json.encode(values).decode()[1:-1] for values in pair)
    return Value(url=url, old=shortened(old, MAX_VALUE), new=shortened(new, MAX_VALUE))


def _shares(found: Profile) -> dict[str, float]:
    return {field.path: (field.records - field.empty) / found.results for field in found.fields}
