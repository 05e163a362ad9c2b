"""What changed between two runs: both are put into a temporary database, so that memory does not
grow with them."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import msgspec

from crawler import urls
from crawler.analyze.facts import Comparison, Field, FieldChange, Profile, Value, VerdictChange
from crawler.analyze.profile import is_empty, leaves, moment, profile, shorten
from crawler.analyze.sources import Source
from crawler.db.connection import Database
from crawler.errors import UrlError

_EXAMPLES = 3
_FIELDS = 2_000
_ABSENT = ("null", "list", "object")


def compare(
    a: Source, b: Source, progress: Callable[[int], None] = lambda count: None
) -> Comparison:
    """Read both runs, match their pages by URL and parcel, and say what is different."""
    # An empty name is a database of its own that SQLite spills to a temporary file, and removes, as
    # needed.
    with closing(Database("", path=Path(gettempdir()) / "comparison")) as db:
        db.execute("PRAGMA journal_mode=OFF; PRAGMA cache_size=-64000; BEGIN")
        profiles = [_index(db, name, source, progress) for name, source in (("a", a), ("b", b))]
        return _Differences(db).comparison(*profiles)


def _index(db: Database, table: str, source: Source, progress: Callable[[int], None]) -> Profile:
    """Profile a run, and keep the newest end of every page in a table: its data, or none where
    there is no result."""
    db.execute(
        f"""CREATE TABLE {table} (id INTEGER PRIMARY KEY, key BLOB, parcel TEXT, at REAL, url TEXT, verdict TEXT,
                                  data BLOB, UNIQUE (key, parcel))"""
    )
    insert = f"""INSERT INTO {table} (key, parcel, at, url, verdict, data) VALUES (?, ?, ?, ?, ?, ?)
                 ON CONFLICT DO UPDATE SET at = excluded.at, url = excluded.url, verdict = excluded.verdict,
                     data = excluded.data WHERE excluded.at >= at"""

    def keep(result: dict[str, Any]) -> None:
        at = moment(result.get("scraped_at"))
        db.execute(
            insert,
            (_key(result["url"]), str(result.get("parcel_id") or ""), at.timestamp() if at else 0.0, result["url"],
             str(result.get("verdict") or "none"), msgspec.json.encode(result["data"])),
        )  # fmt: skip

    found = profile(source, progress, keep)
    for task in source.unfinished():
        db.execute(insert, (task.key, task.parcel_id, task.at, task.url, task.reason, None))
    return found


def _key(url: str) -> bytes:
    try:
        return urls.parse(url).key
    except UrlError:
        return url.encode("utf-8", "replace")


class _Differences:
    """What two tables of pages do not have in common."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._changed: Counter[str] = Counter()
        self._appeared: Counter[str] = Counter()
        self._vanished: Counter[str] = Counter()
        self._examples: dict[str, list[Value]] = {}
        self._both = self._same = 0

    def comparison(self, a: Profile, b: Profile) -> Comparison:
        """All of it."""
        for url, old, new in self._db.execute(
            "SELECT b.url, a.data, b.data FROM a JOIN b USING (key, parcel) WHERE a.data NOTNULL AND b.data NOTNULL"
        ):
            self._pair(url, old, new)
        fields = sorted(self._fields(a, b), key=_by_change)
        changed = [field for field in fields if _has_changed(field)]
        only_a, only_a_examples = self._only("a", "b")
        only_b, only_b_examples = self._only("b", "a")
        return Comparison(
            a=a, b=b, both=self._both, same=self._same, only_a=only_a, only_a_examples=only_a_examples, only_b=only_b,
            only_b_examples=only_b_examples, verdicts=self._verdicts(), fields=changed,
            fields_same=len(fields) - len(changed),
        )  # fmt: skip

    def _pair(self, url: str, old_data: bytes, new_data: bytes) -> None:
        self._both += 1
        if old_data == new_data:
            self._same += 1
            return
        old, new = _values(old_data), _values(new_data)
        different = False
        for path in old.keys() | new.keys():
            before, after = old.get(path, []), new.get(path, [])
            if before == after:
                continue
            different = True
            if path not in self._examples and len(self._examples) >= _FIELDS:
                continue
            counts = (
                self._appeared if not before else self._vanished if not after else self._changed
            )
            counts[path] += 1
            examples = self._examples.setdefault(path, [])
            if len(examples) < _EXAMPLES:
                examples.append(_example(url, before, after))
        self._same += not different

    def _fields(self, a: Profile, b: Profile) -> Iterator[FieldChange]:
        fields_a, fields_b = ({field.path: field for field in found.fields} for found in (a, b))
        for path in fields_a.keys() | fields_b.keys() | self._examples.keys():
            before, after = fields_a.get(path), fields_b.get(path)
            yield FieldChange(
                path=path, share_a=_share(before), share_b=_share(after), changed=self._changed[path],
                appeared=self._appeared[path], vanished=self._vanished[path], types_a=_types(before),
                types_b=_types(after), examples=self._examples.get(path, []),
            )  # fmt: skip

    def _only(self, this: str, other: str) -> tuple[int, list[str]]:
        rest = f"""FROM {this} WHERE data NOTNULL AND NOT EXISTS
                   (SELECT 1 FROM {other} o WHERE o.key = {this}.key AND o.parcel = {this}.parcel AND o.data NOTNULL)"""
        [(count,)] = self._db.all(f"SELECT count(*) {rest}")
        return count, [
            row[0] for row in self._db.execute(f"SELECT url {rest} ORDER BY url LIMIT {_EXAMPLES}")
        ]

    def _verdicts(self) -> list[VerdictChange]:
        rows = self._db.execute(
            """SELECT a.verdict, b.verdict, count(*), min(b.url) FROM a JOIN b USING (key, parcel)
               WHERE a.verdict <> b.verdict GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT 100"""
        )
        return [VerdictChange(a=a, b=b, count=count, url=url) for a, b, count, url in rows]


def _values(data: bytes) -> dict[str, list[Any]]:
    """A record's values by path; what is empty is not there."""
    values: dict[str, list[Any]] = {}
    for path, value in leaves(msgspec.json.decode(data)):
        if not is_empty(value):
            values.setdefault(path, []).append(value)
    return values


def _example(url: str, before: list[Any], after: list[Any]) -> Value:
    old, new = (", ".join(str(value) for value in values[:80]) for values in (before, after))
    if old == new:  # "1" is not 1
        old, new = (msgspec.json.encode(values[:80]).decode()[1:-1] for values in (before, after))
    return Value(url=url, old=shorten(old), new=shorten(new))


def _share(field: Field | None) -> float:
    return field.share * (field.records - field.empty) / field.records if field else 0.0


def _types(field: Field | None) -> list[str]:
    return sorted(kind for kind in field.types if kind not in _ABSENT) if field else []


def _by_change(field: FieldChange) -> tuple[int, float, bool, str]:
    """What changed most first."""
    return -_count(field), -_shift(field), not retyped(field), field.path


def _has_changed(field: FieldChange) -> bool:
    return bool(_count(field) or _shift(field) or retyped(field))


def _count(field: FieldChange) -> int:
    return field.changed + field.appeared + field.vanished


def _shift(field: FieldChange) -> float:
    return round(abs(field.share_a - field.share_b), 3)


def retyped(field: FieldChange) -> bool:
    """Whether the values that are there have other types in B than in A."""
    return bool(field.types_a and field.types_b and field.types_a != field.types_b)
