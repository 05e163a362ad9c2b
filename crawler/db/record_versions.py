"""Stored pages that are parsed again, and the records that replace earlier ones.

The earlier record of a result moves to `record_versions`; the newest is always in `results`.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import gettempdir
from typing import Any
from zlib import crc32

import msgspec

from crawler.db import listings, timeline
from crawler.db.connection import Database
from crawler.db.results import (
    MAX_RECORD_BYTES_PER_READ,
    MAX_RESULTS_PER_READ,
    NEXT_SEQ,
    encoded_reasons,
    matching,
)
from crawler.db.store import Part
from crawler.models import FILE, Job, RawLocation, Role, SeenListing

REPLAYED = "replayed"
"""The kind of event that says that a record was replaced."""
MAX_TASKS_PER_COMMIT = 500
MAX_BYTES_PER_COMMIT = 16_000_000
_LIST = f"""
    CREATE TEMP TABLE stored_results AS
    SELECT r.task AS task, octet_length(r.record) AS size, ({{}}) AS chosen
    FROM results r JOIN tasks t ON t.id = r.task WHERE t.method <> '{FILE}'
    ORDER BY {{}}"""
"""Files are not parsed: no parser makes another record of them."""
_READ = """
    SELECT l.rowid, l.chosen, r.task, t.task_id, t.url, t.url_key, t.parcel_id, t.platform, t.role,
           t.method, t.body, r.final_url, r.verdict, r.scraped_at, CAST(r.record AS BLOB),
           r.invalid, ifnull(r.raw_segment, ''), r.raw_offset, r.raw_length
    FROM temp.stored_results l JOIN results r ON r.task = l.task JOIN tasks t ON t.id = l.task
    WHERE l.rowid > ? AND l.rowid <= ? ORDER BY l.rowid"""


class StoredResult(msgspec.Struct, frozen=True, kw_only=True):
    """A result with all that its page is parsed with."""

    position: int
    """In the order in which results are read; the last one is their number."""
    chosen: bool
    """Whether it is one of those that were asked for, or only has the same page as one."""
    task: int
    task_id: str
    url: str
    url_key: bytes
    parcel_id: str
    platform: str | None
    role: Role | None
    method: str
    body: str
    final_url: str
    verdict: str
    scraped_at: float
    record: bytes
    invalid: str | None
    page: RawLocation | None


class Replacement(msgspec.Struct, frozen=True, kw_only=True):
    """The record that today's parser makes of a page, for all results that were made of it."""

    tasks: list[int]
    page: RawLocation
    record: bytes
    invalid: list[str]
    parser: tuple[str, str]
    site: tuple[str, str]
    changed: str
    """The fields that differ, for the timeline."""
    listings: tuple[SeenListing, ...] = ()
    """Those of the new record."""


class Replaced(msgspec.Struct, frozen=True):
    """What became of replacements, by the number of results."""

    replaced: int = 0
    same: int = 0
    """They had the new record already."""
    held: int = 0
    """Of the replaced ones, those that were delivered or archived before."""
    sending: int = 0
    """Left as they are, because a request with them is on its way to the Gateway."""
    busy: int = 0
    """Left as they are, because they are fetched again or have another page by now."""

    def __add__(self, other: "Replaced") -> "Replaced":
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return Replaced(*map(sum, pairs))


class RecordVersions(Part):
    """Reads results in the order of their pages, and the earlier records of a result."""

    def count_results(self) -> int:
        """How many results there are."""
        return int(self._db.value("SELECT count(*) FROM results"))

    def stored_results(
        self,
        job: Job | None,
        since: float | None,
        roles: Sequence[str] = (),
        *,
        by_time: bool = False,
    ) -> Iterator[StoredResult]:
        """All results, those with the newest segments first, in the order of their pages there; or
        in the order of their time.

        The order is noted once, in a table of this connection, and then read some at a time.
        """
        db = self._db
        condition, values = matching(job, since, roles)
        db.execute("DROP TABLE IF EXISTS temp.stored_results")
        order = "r.scraped_at, r.task" if by_time else "r.raw_segment DESC, r.raw_offset, r.task"
        db.execute(_LIST.format(condition, order), values)
        last = 0
        while end := self._part_end(last):
            for row in db.all(_READ, (last, end)):
                yield _stored_result(row)
            last = end
        db.execute("DROP TABLE temp.stored_results")

    def _part_end(self, last: int) -> int | None:
        """The last of the next results whose records fit in memory together."""
        size, end = 0, None
        for position, length in self._db.all(
            "SELECT rowid, size FROM temp.stored_results WHERE rowid > ? ORDER BY rowid LIMIT ?",
            (last, MAX_RESULTS_PER_READ),
        ):
            size += length
            if end and size > MAX_RECORD_BYTES_PER_READ:
                break
            end = position
        return end

    def with_stale_listings(self, tasks: Sequence[int], seen: Sequence[SeenListing]) -> set[int]:
        """Those of the tasks of one page whose listings differ from what it shows."""
        return listings.stale_tasks(self._db, tasks, seen)

    def versions(self, task: int) -> list[dict[str, Any]]:
        """The earlier records of a task's result, the oldest first."""
        names = ("version", "replaced_at", "parser", "site", "invalid", "data")
        rows = self._db.all(
            """SELECT version, replaced_at, parser || ' ' || parser_version,
                      site || ' ' || site_version, ifnull(invalid, '[]'), record
               FROM record_versions WHERE task = ? ORDER BY version""",
            (task,),
        )
        found = [dict(zip(names, row, strict=True)) for row in rows]
        return [
            each | {name: msgspec.json.decode(each[name]) for name in ("invalid", "data")}
            for each in found
        ]


def _stored_result(row: tuple[Any, ...]) -> StoredResult:
    position, chosen, task, task_id, url, key, parcel, platform, role, method, body, *rest = row
    final_url, verdict, scraped_at, record, invalid, segment, offset, length = rest
    return StoredResult(
        position=position,
        chosen=bool(chosen),
        task=task,
        task_id=task_id,
        url=url,
        url_key=key,
        parcel_id=parcel,
        platform=platform,
        role=Role(role) if role else None,
        method=method,
        body=body,
        final_url=final_url,
        verdict=verdict,
        scraped_at=scraped_at,
        record=record,
        invalid=invalid,
        page=RawLocation(segment=segment, offset=offset, length=length) if segment else None,
    )


class NewRecords:
    """Keeps replacements in a temporary database until all pages were parsed."""

    def __init__(self) -> None:
        # An empty name is a private database that SQLite spills to a temporary file.
        self._db = Database("", path=Path(gettempdir()) / "new-records")
        self._db.execute("PRAGMA journal_mode=OFF; BEGIN")
        self._db.execute("CREATE TABLE new (id INTEGER PRIMARY KEY, tasks INTEGER, packed BLOB)")

    def close(self) -> None:
        """Drop the database."""
        self._db.close()

    def add(self, new: Replacement) -> None:
        """Keep a replacement; one of very many results in parts."""
        for begin in range(0, len(new.tasks), MAX_TASKS_PER_COMMIT):
            tasks = new.tasks[begin : begin + MAX_TASKS_PER_COMMIT]
            part = msgspec.structs.replace(new, tasks=tasks)
            self._db.execute(
                "INSERT INTO new (tasks, packed) VALUES (?, ?)",
                (len(tasks), msgspec.msgpack.encode(part)),
            )

    def batches(self) -> Iterator[list[Replacement]]:
        """The replacements, in parts of one commit each."""
        batch: list[Replacement] = []
        tasks = size = 0
        for count, packed in self._db.execute("SELECT tasks, packed FROM new ORDER BY id"):
            tasks, size = tasks + count, size + len(packed)
            if batch and (tasks > MAX_TASKS_PER_COMMIT or size > MAX_BYTES_PER_COMMIT):
                yield batch
                batch, tasks, size = [], count, len(packed)
            batch.append(msgspec.msgpack.decode(packed, type=Replacement))
        if batch:
            yield batch


# Functions that are part of a transaction


def replace_all(
    db: Database, replacements: Iterable[Replacement], now: float
) -> tuple[list[int], Replaced]:
    """Make new records current; returns the tasks whose records were replaced, and the counts."""
    replaced: list[int] = []
    counts = Replaced()
    for new in replacements:
        for task in new.tasks:
            done = replace(db, task, new, now)
            counts += done
            if done.replaced:
                replaced.append(task)
    return replaced, counts


def replace(db: Database, task: int, new: Replacement, now: float) -> Replaced:
    """Make a new record current, and keep the one before as a version of the result.

    A task that is fetched again is not touched: its new result is made by today's parser anyway.
    """
    row = db.one(
        """SELECT CAST(r.record AS BLOB), r.invalid, o.state = 'ready' AND o.batch NOT NULL,
                  o.state = 'synced' OR o.archived_at NOT NULL
           FROM results r JOIN tasks t ON t.id = r.task JOIN outbox o ON o.task = r.task
           WHERE r.task = ? AND t.status = 'completed'
             AND (r.raw_segment, r.raw_offset) = (?, ?)""",
        (task, new.page.segment, new.page.offset),
    )
    if row is None:
        return Replaced(busy=1)
    record, invalid, sending, was_delivered = row
    reasons = encoded_reasons(new.invalid)
    if is_same_record(record, new.record) and invalid == reasons:
        listings.correct(db, task, new.listings, now)
        return Replaced(same=1)
    if sending:  # the request is repeated byte for byte until it is answered
        return Replaced(sending=1)
    version = _keep_version(db, task, now)
    db.execute(
        f"""UPDATE results SET record = ?, invalid = ?, parser = ?, parser_version = ?, site = ?,
                site_version = ?, seq = {NEXT_SEQ} WHERE task = ?""",
        (new.record.decode(), reasons, *new.parser, *new.site, task),
    )
    if was_delivered:
        # What left has the earlier record: the new one goes nowhere before somebody says so.
        db.execute(
            """UPDATE outbox SET state = iif(state = 'synced', 'held', state), archived_at = NULL,
                   batch = NULL, tries = 0, not_before = 0, code = NULL, problem = NULL
               WHERE task = ?""",
            (task,),
        )
    detail = {
        "record": version + 1,
        "parser": " ".join(new.parser),
        "site": " ".join(new.site),
        "changed": new.changed,
        "record_crc32": crc32(new.record),
        "raw": new.page,
    }
    timeline.note(db, task, REPLAYED, detail, now)
    listings.correct(db, task, new.listings, now)
    return Replaced(replaced=1, held=int(was_delivered))


def _keep_version(db: Database, task: int, now: float) -> int:
    """Copy the present record of a result to its versions; returns its number."""
    db.execute(
        """INSERT INTO record_versions (task, version, record, invalid, parser, parser_version,
               site, site_version, replaced_at)
           SELECT task, 1 + ifnull((SELECT max(version) FROM record_versions WHERE task = ?1), 0),
               record, invalid, parser, parser_version, site, site_version, ?2
           FROM results WHERE task = ?1""",
        (task, now),
    )
    return int(db.value("SELECT max(version) FROM record_versions WHERE task = ?", (task,)))


def is_same_record(one: bytes, other: bytes) -> bool:
    """Whether two records have the same values, in whatever order of their fields."""
    return one == other or _canonical(one) == _canonical(other)


def _canonical(record: bytes) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(record), order="sorted")
