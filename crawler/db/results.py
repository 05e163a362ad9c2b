"""Results: stored once, and read in the one shape that they have everywhere."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from crawler.config import program
from crawler.db import result_files, timeline
from crawler.db.connection import Database, reading, writing
from crawler.db.store import IN_PENDING, IN_SESSION, LISTED, NOTED_FILE, Part, as_json
from crawler.errors import StoreError
from crawler.models import FILE, GET, UNCHANGED, Job, JobStatus, Outcome, Page, RawLocation

MAX_VALIDATOR_LENGTH = 512
"""A longer ETag is not worth keeping."""
MAX_RESULTS_PER_READ = 500
"""A reader that holds one moment of the database for long lets its log grow."""
MAX_RECORD_BYTES_PER_READ = 16_000_000
"""One record may be larger than that, and is then read alone."""
PRUNED = "pruned "
"""Prefix of the key in `meta` under which the name of a pruned segment is noted."""

COLUMNS = """task, record, final_url, status_code, content_type, verdict, bytes, body_sha256,
    fetch_ms, parse_ms, parser, parser_version, raw_segment, raw_offset, raw_length, scraped_at,
    site, site_version, same_as, invalid, seq"""
LAST_SEQ = "last_seq"
"""Key in `meta` of the highest number of results that were removed: no number comes again."""
NEXT_SEQ = f"""1 + max(ifnull((SELECT max(seq) FROM results), 0),
    ifnull((SELECT CAST(value AS INTEGER) FROM meta WHERE key = '{LAST_SEQ}'), 0))"""
"""The number of the next result in the order of commits; only one connection writes at a time."""
IS_STORED = """(r.raw_segment IS NULL
    OR EXISTS (SELECT 1 FROM raw_segments s WHERE s.name = r.raw_segment))"""
"""Whether the segment of a result's page is known, or the result has none."""
_SAME_CONTENT = """SELECT ifnull((SELECT id FROM tasks WHERE id = same_as), task) FROM results
    WHERE substr(body_sha256, 1, 12) = ?1 AND body_sha256 = ?2 LIMIT 1"""
"""The first task with the same content; `substr` is the index's."""
_FIELDS = f"""r.record, r.scraped_at, r.parse_ms, r.body_sha256, t.url, r.final_url, r.status_code,
    r.verdict, (SELECT name FROM jobs WHERE jobs.id = t.job_id),
    iif(t.queue LIKE 'direct:%', 'default', t.queue), t.priority, t.attempts,
    r.parser, r.parser_version, r.raw_segment, r.raw_offset, r.raw_length, r.site, r.site_version,
    (SELECT s.task_id FROM tasks s WHERE s.id = r.same_as), r.invalid, t.role, t.depth,
    (SELECT p.task_id FROM tasks p WHERE p.id = t.parent), t.method, t.body,
    {result_files.LINKED}"""
_PLACE = re.compile(r"\[\d+\]")
_RESULT = f"""
    SELECT r.task, t.task_id, t.parcel_id, t.input, {_FIELDS}
    FROM results r JOIN tasks t ON t.id = r.task JOIN outbox o ON o.task = r.task"""
_RESULT_IN_ORDER = _RESULT.replace(_FIELDS, f"{_FIELDS}, r.seq")
_INPUT_ROWS = """
    CREATE TEMP TABLE input_rows AS
    SELECT file_number AS file, source_line AS line, source_item AS item, id AS task, 0 AS linked
    FROM tasks WHERE job_id = ?1
    UNION ALL SELECT file_number, source_line, source_item, task, 1 FROM job_links WHERE job_id = ?1
    UNION ALL SELECT file_number, source_line, source_item, NULL, 0
    FROM rejected_rows WHERE job_id = ?1
    ORDER BY file, line, item, task"""
_INPUT_ROW = f"""
    SELECT r.task, t.task_id, t.parcel_id, iif(i.linked, l.input, t.input), {_FIELDS},
           i.line, t.status, t.error_type, t.error_message, x.reason, x.text
    FROM input_rows i LEFT JOIN tasks t ON t.id = i.task LEFT JOIN results r ON r.task = i.task
        LEFT JOIN job_links l ON i.linked AND l.job_id = ?1 AND l.task = i.task
            AND l.file_number = i.file AND l.source_line = i.line AND l.source_item = i.item
        LEFT JOIN rejected_rows x ON i.task IS NULL AND x.job_id = ?1
            AND x.file_number = i.file AND x.source_line = i.line AND x.source_item = i.item
    WHERE i.rowid > ?2 AND i.rowid <= ?2 + ?3 ORDER BY i.rowid"""


class Following(NamedTuple):
    """Results behind a number, in the order of their commits."""

    results: tuple[tuple[int, dict[str, Any]], ...]
    """Each with its number."""
    seq: int
    """Up to here all was read: the next ones are behind it."""
    is_last: bool
    """Whether there was nothing more at that moment."""
    is_complete: bool
    """Whether nothing more will come: the job has ended, or is no longer there."""


class Results(Part):
    """Reads results, and the pages that they name."""

    def read(
        self,
        job: Job | None = None,
        since: float | None = None,
        limit: int | None = None,
        *,
        before: float | None = None,
        only_pending: bool = False,
        roles: Sequence[str] = (),
        site: str | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Results in the order of their tasks, read some at a time.

        `since` and `before` are times of scraping; `only_pending` leaves out what has left
        pending/; `roles` are those of a crawl's tasks, and `site` is the one whose file made them.
        """
        for _, result in self.read_numbered(job, since, limit, before, only_pending, roles, site):
            yield result

    def read_numbered(
        self,
        job: Job | None = None,
        since: float | None = None,
        limit: int | None = None,
        before: float | None = None,
        only_pending: bool = False,
        roles: Sequence[str] = (),
        site: str | None = None,
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """The same, each with the number of its task."""
        condition, values = matching(job, since, roles, site)
        if before is not None:
            condition, values = f"{condition} AND r.scraped_at < ?", (*values, before)
        if only_pending:
            condition = f"{condition} AND {IN_PENDING}"
        return self._read(condition, values, limit)

    def of_tasks(self, tasks: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        """The results of these tasks, each with the number of its task."""
        return self._read(f"r.task {LISTED}", (as_json(tasks),), None)

    def of_task(self, task: int) -> dict[str, Any] | None:
        """One task's result."""
        return next((result for _, result in self._read("r.task = ?", (task,), 1)), None)

    def unsynced(self, limit: int) -> list[dict[str, Any]]:
        """Results that a Gateway is to get."""
        return [result for _, result in self._read("o.state = 'ready'", (), limit)]

    def report(self, task: int) -> dict[str, Any]:
        """A task's result, or why there is none."""
        names = ("task_id", "url", "status", "attempts", "error_type", "error_message",
                 "source_line", "source_item")  # fmt: skip
        [row] = self._db.all(
            f"""SELECT {", ".join(names)}, ifnull({NOTED_FILE.format("t")}, source_file)
                FROM tasks t WHERE id = ?""",
            (task,),
        )
        report = dict(zip((*names, "source_file"), row, strict=True))
        return report | (self.of_task(task) or {})

    def _read(
        self, condition: str, values: Sequence[Any], limit: int | None
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        last = 0
        while limit is None or limit > 0:
            size = min(MAX_RESULTS_PER_READ, limit or MAX_RESULTS_PER_READ)
            rows = self._db.all(
                f"{_RESULT} WHERE r.task > ? AND ({condition}) ORDER BY r.task LIMIT ?",
                (last, *values, size),
            )
            for row in rows:
                yield row[0], _as_dict(row)
            if len(rows) < size:
                return
            last = rows[-1][0]
            limit = limit and limit - size

    # In the order of commits

    def last_seq(self) -> int:
        """The number of the newest result; also of one that was removed since."""
        return int(self._db.value(f"SELECT {NEXT_SEQ}")) - 1

    def task_of(self, seq: int) -> str | None:
        """The id of the task whose result has this number."""
        task_id: str | None = self._db.value(
            "SELECT task_id FROM results JOIN tasks ON id = task WHERE seq = ?", (seq,)
        )
        return task_id

    def has_site(self, site: str) -> bool:
        """Whether a result was made by this site's file."""
        return self._db.one("SELECT 1 FROM results WHERE site = ? LIMIT 1", (site,)) is not None

    def behind(
        self, seq: int, job: Job | None = None, roles: Sequence[str] = (), site: str | None = None
    ) -> Following:
        """The next results behind a number, in the order of their commits.

        They are of one moment, and at most as many as are read at a time.
        """
        condition, values = matching(job, None, roles, site)
        db = self._db
        with reading(db):
            scanned = db.column(
                "SELECT seq FROM results WHERE seq > ? ORDER BY seq LIMIT ?",
                (seq, MAX_RESULTS_PER_READ),
            )
            last = scanned[-1] if scanned else seq
            sizes = db.all(
                f"""SELECT r.seq, octet_length(r.record)
                    FROM results r JOIN tasks t ON t.id = r.task
                    WHERE r.seq > ? AND r.seq <= ? AND {condition} ORDER BY r.seq""",
                (seq, last, *values),
            )
            end = _end_that_fits(sizes) or last
            rows = db.all(
                f"""{_RESULT_IN_ORDER} WHERE r.seq > ? AND r.seq <= ? AND {condition}
                    ORDER BY r.seq""",
                (seq, end, *values),
            )
            is_last = end == last and len(scanned) < MAX_RESULTS_PER_READ
            status = job and db.value("SELECT status FROM jobs WHERE id = ?", (job.id,))
        results = tuple((row[-1], _as_dict(row[:-1])) for row in rows)
        ended = job is not None and status in (None, JobStatus.DONE)
        return Following(results, end, is_last, is_last and ended)

    def older(
        self, seq: int, size: int, jobs: Sequence[int] | None = None
    ) -> Iterator[tuple[Any, ...]]:
        """Results with one of the `size` numbers before this one, the newest first.

        Each with its number, id, URL, job, time and record as text; `jobs` leaves out all others.
        """
        theirs = "1"
        values: tuple[Any, ...] = (seq - size, seq)
        if jobs is not None:
            theirs = f"""(t.job_id {LISTED} OR EXISTS (
                SELECT 1 FROM job_links l WHERE l.task = t.id AND l.job_id {LISTED}))"""
            values = (*values, as_json(jobs), as_json(jobs))
        return self._db.each(
            f"""SELECT r.seq, t.task_id, t.url, (SELECT name FROM jobs WHERE jobs.id = t.job_id),
                    r.scraped_at, r.record
                FROM results r JOIN tasks t ON t.id = r.task
                WHERE r.seq >= ? AND r.seq < ? AND {theirs} ORDER BY r.seq DESC""",
            values,
        )

    def newest(
        self, job: Job | None, limit: int, roles: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """The results that were stored last, the newest first."""
        condition, values = matching(job, None, roles)
        order = "ORDER BY o.created_at DESC, o.task DESC"
        chosen = f"""SELECT o.task FROM outbox o JOIN tasks t ON t.id = o.task
                     WHERE {condition} {order} LIMIT ?"""
        rows = self._db.all(f"{_RESULT} WHERE r.task IN ({chosen}) {order}", (*values, limit))
        return [_as_dict(row) for row in rows]

    def input_rows(self, job: Job) -> Iterator[dict[str, Any]]:
        """Every row of a job's input in its order, with its result, or its status and reason.

        The order is noted once, in a table of this connection, and then read some at a time.
        """
        db = self._db
        db.execute("DROP TABLE IF EXISTS temp.input_rows")
        db.execute(_INPUT_ROWS, (job.id,))
        last = 0
        while rows := db.all(_INPUT_ROW, (job.id, last, MAX_RESULTS_PER_READ)):
            for row in rows:
                line, status, error, message, rejected, text = row[-6:]
                if rejected:
                    status, error, message = "rejected", rejected, text
                outcome = {"status": status, "reason": error, "message": message}
                yield _as_dict(row[:-6]) | {"job": job.name} | outcome | {"line": line or None}
            last += MAX_RESULTS_PER_READ
        db.execute("DROP TABLE temp.input_rows")

    # Facts about results

    def carried(self, task: int) -> tuple[Any, ...]:
        """What a bundle carries beside a result: content type, bytes, fetch time, when it was
        imported and completed, and a Gateway's id."""
        [row] = self._db.all(
            """SELECT r.content_type, r.bytes, r.fetch_ms, t.imported_at, t.completed_at,
                      iif(t.source IN ('gateway', 'bundle'), t.external_id, NULL)
               FROM results r JOIN tasks t ON t.id = r.task WHERE r.task = ?""",
            (task,),
        )
        return row

    def known(self, task_ids: Sequence[str]) -> dict[str, bool]:
        """Which of these tasks the ledger has, and whether with a result."""
        return dict(
            self._durable.all(
                f"""SELECT task_id, EXISTS (SELECT 1 FROM results WHERE results.task = tasks.id)
                    FROM tasks WHERE task_id {LISTED}""",
                (as_json(task_ids),),
            )
        )

    def digests(self, task_ids: Sequence[str]) -> list[tuple[int, str, str, str | None, int]]:
        """Number, id, content hash, known segment and end there of these tasks' results."""
        return self._durable.all(
            f"""SELECT t.id, t.task_id, r.body_sha256, s.name, r.raw_offset + r.raw_length
                FROM tasks t JOIN results r ON r.task = t.id
                LEFT JOIN raw_segments s ON s.name = r.raw_segment WHERE t.task_id {LISTED}""",
            (as_json(task_ids),),
        )

    def sizes(self, job: Job | None) -> Iterator[tuple[int, float]]:
        """The size and the fetch time in milliseconds of every result's page."""
        condition, values = matching(job, None)
        last = 0
        while rows := self._db.all(
            f"""SELECT r.task, r.bytes, r.fetch_ms FROM results r JOIN tasks t ON t.id = r.task
                WHERE {condition} AND r.task > ? ORDER BY r.task LIMIT 1000""",
            (*values, last),
        ):
            for _, size, fetch_ms in rows:
                yield size, fetch_ms
            last = rows[-1][0]

    # Segments

    def segment_end(self, name: str) -> int:
        """Up to which byte a segment is committed; 0 where it is not known."""
        end = self._db.value("SELECT end FROM raw_segments WHERE name = ?", (name,), 0)
        return int(end)

    def segment_ends(self) -> list[tuple[str, int]]:
        """Every segment, and up to which byte it is committed."""
        return self._db.all("SELECT name, end FROM raw_segments")

    def was_pruned(self, segment: str) -> bool:
        """Whether `prune` has removed a segment."""
        key = f"{PRUNED}{segment}"
        return self._db.one("SELECT 1 FROM meta WHERE key = ?", (key,)) is not None

    def place_of(self, task: int) -> RawLocation | None:
        """Where the last page of a task was stored; `prune` may have removed it."""
        for (detail,) in self._db.all(
            "SELECT detail FROM events WHERE task = ? ORDER BY id DESC", (task,)
        ):
            raw = msgspec.json.decode(detail).get("raw")
            if raw:
                return msgspec.convert(raw, RawLocation)
        return None

    def page_of(self, task: int) -> RawLocation | None:
        """Where the page is that a result was made of."""
        row = self._db.one(
            f"""SELECT raw_segment, raw_offset, raw_length FROM results r
                WHERE task = ? AND raw_segment IS NOT NULL AND {IS_STORED}""",
            (task,),
        )
        return RawLocation(segment=row[0], offset=row[1], length=row[2]) if row else None

    def file_place(self, task_id: str) -> RawLocation | None:
        """Where the file is that a task has brought."""
        number = self._db.value("SELECT id FROM tasks WHERE task_id = ?", (task_id,))
        return None if number is None else self.page_of(number)

    def captures(self, task: int) -> list[result_files.LinkedFile]:
        """The screenshot and the PDF that a browser has made of the page of a result."""
        return result_files.captures(self._db, task)

    def page_url_at(self, task: int, place: RawLocation) -> str:
        """The URL that the page at this place came from; empty where the result does not say: the
        page of an unchanged one is an earlier one's, and the same file may have other URLs."""
        url = self._db.value(
            """SELECT final_url FROM results JOIN tasks ON id = task
               WHERE task = ? AND raw_segment = ? AND raw_offset = ? AND verdict <> ?
               AND method <> ?""",
            (task, place.segment, place.offset, UNCHANGED, FILE),
            default="",
        )
        return str(url)

    def segments_used(self, job: Job | None, wanted: str) -> list[tuple[str, int, int]]:
        """For each segment: the end of the last wanted page there, and the number of pages."""
        condition, values = matching(job, None)
        return self._db.all(
            f"""SELECT raw_segment, max(raw_offset + raw_length), count(*) FROM results r
                JOIN tasks t ON t.id = r.task
                WHERE {condition} AND raw_segment IS NOT NULL AND {wanted} GROUP BY 1""",
            values,
        )

    def page_places(self, job: Job, wanted: str) -> Iterator[tuple[Any, ...]]:
        """Segment and offset of every wanted page of a job, in order."""
        condition, values = matching(job, None)
        return self._db.each(
            f"""SELECT raw_segment, raw_offset FROM results r JOIN tasks t ON t.id = r.task
                WHERE {condition} AND raw_segment IN (SELECT name FROM raw_segments)
                AND {wanted} ORDER BY 1, 2""",
            values,
        )

    def forget_segments(self, names: Sequence[str], dry_run: bool) -> int:
        """Let results go without their pages in these segments; returns how many results.

        Some at a time, because finding all of them takes a look at every result.
        """
        db, listed, last, count = self._durable, as_json(names), 0, 0
        theirs = f"raw_segment {LISTED}"
        no_page = "UPDATE results SET raw_segment = NULL, raw_offset = NULL, raw_length = NULL"
        horizon = self._db.value("SELECT coalesce(max(id), 0) FROM events")
        while names and (
            tasks := db.column(
                f"SELECT task FROM results WHERE task > ? AND {theirs} ORDER BY task LIMIT ?",
                (last, listed, MAX_RESULTS_PER_READ),
            )
        ):
            if not dry_run:
                with writing(db):
                    db.execute(
                        f"{no_page} WHERE task BETWEEN ? AND ? AND {theirs}",
                        (tasks[0], tasks[-1], listed),
                    )
            last, count = tasks[-1], count + len(tasks)
        if not dry_run:
            with writing(db):
                # Unchanged pages that came in meanwhile have the places of the earlier ones.
                since = "task IN (SELECT task FROM events WHERE id > ?)"
                db.execute(f"{no_page} WHERE {theirs} AND {since}", (listed, horizon))
                db.execute(f"DELETE FROM raw_segments WHERE name {LISTED}", (listed,))
                db.execute(
                    """INSERT OR IGNORE INTO meta (key, value)
                       SELECT ? || value, '' FROM json_each(?)""",
                    (PRUNED, listed),
                )
        return count


# Functions that are part of a transaction


def insert(
    db: Database, outcome: Outcome, page: Page, digest: str, place: RawLocation | None, now: float
) -> None:
    """Store a result, and its place in the outbox."""
    if outcome.verdict == UNCHANGED:
        _insert_unchanged(db, outcome, page)
    else:
        headers = {name.lower(): value for name, value in reversed(page.headers)}
        _insert_new(db, outcome, page, headers.get("content-type", ""), digest, place)
        if outcome.rendering:
            headers = {}  # they speak of the response, not of what a browser made of it
        _note_validators(db, outcome.task.id, headers)
    # Standalone work is held: only an explicit command may ever send it to a Gateway.
    db.execute(
        """INSERT INTO outbox (task, state, created_at)
           SELECT id, iif(source = 'gateway', 'ready', 'held'), ? FROM tasks WHERE id = ?""",
        (now, outcome.task.id),
    )


def _insert_unchanged(db: Database, outcome: Outcome, page: Page) -> None:
    """Store a result that has all but its time from the one before."""
    known = outcome.task.known
    db.execute(
        f"""INSERT INTO results ({COLUMNS})
            SELECT ?1, record, final_url, ?2, content_type, ?3, bytes, body_sha256, ?4, parse_ms,
                parser, parser_version, raw_segment, raw_offset, raw_length, ?5, site,
                site_version, ifnull(same_as, task), invalid, {NEXT_SEQ}
            FROM results WHERE task = ?6""",
        (outcome.task.id, page.status, UNCHANGED, page.fetch_s * 1000, page.fetched_at,
         known and known.task),
    )  # fmt: skip
    if not db.changes():
        raise LookupError("the page is unchanged, but the result that it is the same as has gone")


def _insert_new(
    db: Database,
    outcome: Outcome,
    page: Page,
    content_type: str,
    digest: str,
    place: RawLocation | None,
) -> None:
    at = (place.segment, place.offset, place.length) if place else (None, None, None)
    db.execute(
        f"""INSERT INTO results ({COLUMNS})
            VALUES (?3, ?4, ?5, ?6, ?7, ?8, ?9, ?2, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18,
                ?19, ({_SAME_CONTENT}), ?20, {NEXT_SEQ})""",
        (digest[:12], digest, outcome.task.id, _text(outcome.record), page.final_url, page.status,
         content_type, outcome.verdict or "ok", len(page.body), page.fetch_s * 1000,
         outcome.parse_ms, *outcome.parser, *at, page.fetched_at, *outcome.site,
         encoded_reasons(outcome.invalid)),
    )  # fmt: skip


def kind_of_reason(reason: str) -> str:
    """A reason without the places of list items, so that it can be counted."""
    return _PLACE.sub("[]", reason)


def encoded_reasons(invalid: Sequence[str]) -> str | None:
    """Why a record is invalid, as the ledger has it; None for a valid one."""
    return msgspec.json.encode(invalid).decode() if invalid else None


def _note_validators(db: Database, task: int, headers: Mapping[str, str]) -> None:
    """Note by which values one can ask whether the page of a URL has changed.

    Not for a session of a program: its pages may be for its eyes only.
    """
    etag = _validator(headers.get("etag"))
    last_modified = _validator(headers.get("last-modified"))
    if etag or last_modified:
        db.execute(
            f"""INSERT OR REPLACE INTO validators (url_key, etag, last_modified, task)
                SELECT url_key, ?, ?, id FROM tasks WHERE id = ? AND method IN ('GET', 'FILE')
                AND NOT {IN_SESSION.format("tasks")}""",
            (etag, last_modified, task),
        )
    else:
        db.execute(
            f"""DELETE FROM validators WHERE url_key = (
                    SELECT url_key FROM tasks WHERE id = ? AND method IN ('GET', 'FILE')
                    AND NOT {IN_SESSION.format("tasks")})""",
            (task,),
        )


def _validator(value: str | None) -> str | None:
    if value and len(value) <= MAX_VALIDATOR_LENGTH and value.isprintable():
        return value
    return None


def _text(record: bytes) -> str:
    try:
        return record.decode()
    except UnicodeDecodeError as error:
        # A UnicodeDecodeError would pass for damage of the ledger.
        raise ValueError(str(error)) from None


def insert_carried(
    db: Database,
    task: Mapping[str, Any],
    result: Mapping[str, Any],
    detail: dict[str, Any],
    now: float,
) -> int:
    """Store a completed task of another ledger, by column, with its result; returns its number.

    Its `parent` is a task's id. It is held until a command sends it to a Gateway.
    """
    parent = db.value("SELECT id FROM tasks WHERE task_id = ?", (task["parent"],))
    task = {**task, "parent": parent}
    taken = "SELECT 1 FROM tasks WHERE external_id = ? AND source = 'bundle'"
    if db.one(taken, (task["external_id"],)):
        task = {**task, "external_id": None}
    number = _insert_row(db, "tasks", task)
    digest = result["body_sha256"]
    same_as = db.value(_SAME_CONTENT, (digest[:12], digest))
    seq = db.value(f"SELECT {NEXT_SEQ}")
    _insert_row(db, "results", {**result, "task": number, "same_as": same_as, "seq": seq})
    _insert_row(db, "outbox", {"task": number, "state": "held", "created_at": now})
    timeline.note(db, number, "unbundled", detail, now)
    return number


def _insert_row(db: Database, table: str, columns: Mapping[str, Any]) -> int:
    marks = ", ".join("?" * len(columns))
    db.execute(
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", tuple(columns.values())
    )
    return db.last_insert_rowid()


def number_again(db: Database) -> None:
    """Give a new number to results that have none, or that of another."""
    tasks = db.column(
        """SELECT task FROM results r WHERE typeof(seq) <> 'integer'
           OR EXISTS (SELECT 1 FROM results o WHERE o.seq = r.seq AND o.task < r.task)
           ORDER BY scraped_at, task"""
    )
    for task in tasks:
        db.execute(f"UPDATE results SET seq = {NEXT_SEQ} WHERE task = ?", (task,))


def set_place(db: Database, task: int, place: RawLocation) -> None:
    """Note where the page of a result is now."""
    db.execute(
        "UPDATE results SET raw_segment = ?, raw_offset = ?, raw_length = ? WHERE task = ?",
        (place.segment, place.offset, place.length, task),
    )


def commit_segment(db: Database, name: str, end: int, now: float) -> None:
    """Note up to which byte a segment is committed."""
    db.execute(
        """INSERT INTO raw_segments (name, end, created_at) VALUES (?, ?, ?)
           ON CONFLICT DO UPDATE SET end = excluded.end""",
        (name, end, now),
    )


def stored_place(db: Database, task: int) -> tuple[str | None, int] | None:
    """Segment and end of a result's page; None where the result or its segment has gone."""
    row = db.one(
        f"""SELECT raw_segment, raw_offset + raw_length FROM results r
            WHERE task = ? AND {IS_STORED}""",
        (task,),
    )
    return (row[0], row[1] or 0) if row else None


# Functions for reading


def documents(db: Database, tasks: Sequence[int]) -> Iterator[tuple[int, str, bytes]]:
    """The results of tasks that lie in pending/, as JSON; in the order of the tasks."""
    for batch in _batches(db, tasks):
        rows = db.all(
            f"{_RESULT} WHERE r.task {LISTED} AND {IN_PENDING} ORDER BY r.task", (as_json(batch),)
        )
        for row in rows:
            yield row[0], row[1], msgspec.json.encode(_shaped(row, msgspec.Raw(row[4].encode())))


def _batches(db: Database, tasks: Sequence[int]) -> Iterator[list[int]]:
    """The tasks in their order, in parts whose records fit in memory together."""
    batch: list[int] = []
    size = 0
    for task, length in db.all(
        f"SELECT task, octet_length(record) FROM results WHERE task {LISTED} ORDER BY task",
        (as_json(tasks),),
    ):
        if batch and size + length > MAX_RECORD_BYTES_PER_READ:
            yield batch
            batch, size = [], 0
        batch.append(task)
        size += length
    if batch:
        yield batch


def _end_that_fits(sizes: Sequence[tuple[int, int]]) -> int | None:
    """The last of these numbers up to which the records fit in memory together; None: all do."""
    total = 0
    for place, (_, size) in enumerate(sizes):
        total += size
        if place and total > MAX_RECORD_BYTES_PER_READ:
            return sizes[place - 1][0]
    return None


def matching(
    job: Job | None, since: float | None, roles: Sequence[str] = (), site: str | None = None
) -> tuple[str, tuple[Any, ...]]:
    """The condition for results of a job, shared ones too, that were scraped since then, for tasks
    of these roles, and by the file of this site."""
    condition = "1"
    values: list[Any] = []
    if job:
        condition = """(t.job_id = ? OR EXISTS (
            SELECT 1 FROM job_links l WHERE l.task = t.id AND l.job_id = ?))"""
        values += [job.id, job.id]
    if since is not None:
        condition += " AND r.scraped_at >= ?"
        values.append(since)
    if roles:
        condition += f" AND t.role {LISTED}"
        values.append(as_json(list(roles)))
    if site is not None:
        condition += " AND r.site = ?"
        values.append(site)
    return condition, tuple(values)


def iso(at: float) -> str:
    """A moment as ISO-8601 UTC text."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _as_dict(row: tuple[Any, ...]) -> dict[str, Any]:
    return _shaped(row, None if row[4] is None else _decoded(row[1], row[4]))


def _shaped(row: tuple[Any, ...], record: object) -> dict[str, Any]:
    (_, task_id, parcel_id, row_input, _, scraped_at, parse_ms, digest, url, final_url, status,
     verdict, job, queue, priority, attempts, parser, parser_version, segment, offset, length,
     site, site_version, same_as, invalid, role, depth, parent, method,
     body, files) = row  # fmt: skip
    given = _decoded(task_id, row_input) if row_input else {}
    result = {
        "task_id": task_id,
        "parcel_id": parcel_id or None,
        "platform": given.get("platform"),
        "state": given.get("state"),
        "county": given.get("county"),
        "data": record,
        "scraped_at": None if scraped_at is None else iso(scraped_at),
        "parse_duration_ms": None if parse_ms is None else round(parse_ms, 3),
        "raw_html_hash": digest,
        "url": url,
        "final_url": final_url,
        "status_code": status,
        "verdict": verdict,
        "job": job,
        "queue": queue,
        "priority": priority,
        "attempts": attempts,
        "input": given,
        "parser": {"name": parser, "version": parser_version} if parser else None,
        "raw": {"segment": segment, "offset": offset, "length": length} if segment else None,
        "site": {"name": site, "version": site_version} if site else None,
        "same_as": same_as,
    }
    if role:
        result |= {"role": role, "depth": depth, "parent": parent}
        if method != GET:
            result |= {"method": method, "body": body}
    if invalid:
        result["invalid"] = _decoded(task_id, invalid, list[str])
    if files:
        result["files"] = _decoded(task_id, files, list[dict[str, Any]])
    return result


def _decoded(task_id: str, text: str, kind: Any = dict[str, Any]) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        damage = f"task {task_id} is damaged in lpm.db ({error})"
        raise StoreError(f"{damage}; {program()} doctor") from error


def page_url(result: Mapping[str, Any]) -> str:
    """The URL that the stored page of a result came from; empty where it may be another result's:
    an unchanged page, or a file that is stored once for all its URLs."""
    if result["verdict"] == UNCHANGED or result.get("method") == FILE:
        return ""
    return str(result["final_url"])


def agrees(db: Database, task_id: str, file: Mapping[str, Any]) -> bool:
    """Whether a file of pending/ has the URLs, digest and record that the ledger has."""
    row = db.one(
        """SELECT url, final_url, body_sha256, record FROM results JOIN tasks ON id = task
           WHERE task_id = ?""",
        (task_id,),
    )
    names = ("url", "final_url", "raw_html_hash")
    if row is None:
        return True
    if tuple(file.get(name) for name in names) != row[:3]:
        return False
    try:
        return bool(file.get("data") == msgspec.json.decode(row[3]))
    except msgspec.DecodeError:  # the receipt tells of that
        return True
