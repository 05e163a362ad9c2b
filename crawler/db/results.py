"""Results: stored once, read in the one shape they have everywhere."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from crawler.config import program
from crawler.db.connection import Database
from crawler.errors import StoreError
from crawler.models import UNCHANGED, Job, Outcome, Page, Raw

MAX_VALIDATOR = 512
"""A longer ETag is not worth keeping."""
PAGE = 500
"""Results are read so many at a time: a reader that holds one moment of the database lets its log
grow."""
MAX_READ = 16_000_000
"""Bytes of records that are read at a time where they may all be large; one more may be larger than
that alone."""

SAME_CONTENT = """(SELECT ifnull(same_as, task) FROM results
                  WHERE substr(body_sha256, 1, 12) = ? AND body_sha256 = ? LIMIT 1)"""
"""The first task with the same content; its values are the beginning of the hash, and the hash."""

_FIELDS = """r.record, r.scraped_at, r.parse_ms, r.body_sha256, t.url,
           r.final_url, r.status_code, r.verdict, (SELECT name FROM jobs WHERE jobs.id = t.job_id), t.queue, t.priority,
           t.attempts, r.parser, r.parser_version, r.raw_segment, r.raw_offset, r.raw_length,
           r.site, r.site_version, (SELECT s.task_id FROM tasks s WHERE s.id = r.same_as)"""
_RESULT = f"""
    SELECT r.task, t.task_id, t.parcel_id, t.input, {_FIELDS}
    FROM results r JOIN tasks t ON t.id = r.task JOIN outbox o ON o.task = r.task"""
_INPUT_ROWS = """
    CREATE TEMP TABLE input_rows AS
    SELECT file_number AS file, source_line AS line, source_item AS item, id AS task, 0 AS linked
    FROM tasks WHERE job_id = ?1
    UNION ALL SELECT file_number, source_line, source_item, task, 1 FROM job_links WHERE job_id = ?1
    UNION ALL SELECT file_number, source_line, source_item, NULL, 0 FROM rejected_rows WHERE job_id = ?1
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


def insert(
    db: Database, outcome: Outcome, page: Page, digest: str, place: Raw | None, now: float
) -> None:
    """Store a result and its place in the outbox; one that is unchanged has all but its time from
    the one before."""
    if outcome.verdict == UNCHANGED:
        db.execute(
            """INSERT INTO results SELECT ?1, record, final_url, ?2, content_type, ?3, bytes, body_sha256, ?4, parse_ms,
                   parser, parser_version, raw_segment, raw_offset, raw_length, ?5, site, site_version,
                   ifnull(same_as, task)
               FROM results WHERE task = ?6""",
            (
                outcome.task.id,
                page.status,
                UNCHANGED,
                page.fetch_s * 1000,
                page.fetched_at,
                outcome.task.known.task if outcome.task.known else None,
            ),
        )
        if not db.changes():
            raise LookupError(
                "the page is unchanged, but the result that it is the same as has gone"
            )
    else:
        headers = {name.lower(): value for name, value in reversed(page.headers)}
        _insert(db, outcome, page, headers.get("content-type", ""), digest, place)
        etag, last_modified = (
            _validator(headers.get("etag")),
            _validator(headers.get("last-modified")),
        )
        if etag or last_modified:
            db.execute(
                "INSERT OR REPLACE INTO validators SELECT url_key, ?, ?, id FROM tasks WHERE id = ?",
                (etag, last_modified, outcome.task.id),
            )
        else:
            db.execute(
                "DELETE FROM validators WHERE url_key = (SELECT url_key FROM tasks WHERE id = ?)",
                (outcome.task.id,),
            )
    # Standalone work is held: only an explicit command may ever send it to a Gateway.
    db.execute(
        """INSERT INTO outbox (task, state, created_at)
           SELECT id, iif(source = 'gateway', 'ready', 'held'), ? FROM tasks WHERE id = ?""",
        (now, outcome.task.id),
    )


def _insert(
    db: Database, outcome: Outcome, page: Page, content_type: str, digest: str, place: Raw | None
) -> None:
    at = (place.segment, place.offset, place.length) if place else (None, None, None)
    db.execute(
        f"INSERT INTO results VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {SAME_CONTENT})",
        (outcome.task.id, _text(outcome.record), page.final_url, page.status,
         content_type, outcome.verdict or "ok", len(page.body), digest,
         page.fetch_s * 1000, outcome.parse_ms, *outcome.parser, *at, page.fetched_at, *outcome.site,
         digest[:12], digest),
    )  # fmt: skip


def _validator(value: str | None) -> str | None:
    return value if value and len(value) <= MAX_VALIDATOR and value.isprintable() else None


def read(
    db: Database, condition: str, values: Sequence[Any], limit: int | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Results with their task's number, in the order of the tasks; `condition` is on r(esult),
    t(ask) and o(utbox)."""
    last = 0
    while limit is None or limit > 0:
        size = PAGE if limit is None else min(PAGE, limit)
        rows = db.all(
            f"{_RESULT} WHERE r.task > ? AND ({condition}) ORDER BY r.task LIMIT ?",
            (last, *values, size),
        )
        for row in rows:
            yield row[0], _as_dict(row)
        if len(rows) < size:
            return
        last = rows[-1][0]
        limit = None if limit is None else limit - size


def documents(db: Database, tasks: Sequence[int]) -> Iterator[tuple[int, str, bytes]]:
    """The results of tasks as JSON, in the order of the tasks, but not what has left pending/; each
    record as it lies.

    Those of some megabytes are read as a whole, so that none of them is read from where others
    write.
    """
    for batch in _batches(db, tasks):
        rows = db.all(
            f"""{_RESULT} WHERE r.task IN (SELECT value FROM json_each(?)) AND o.state <> 'synced'
                AND o.archived_at IS NULL ORDER BY r.task""",
            (msgspec.json.encode(batch).decode(),),
        )
        for row in rows:
            yield row[0], row[1], msgspec.json.encode(_shaped(row, msgspec.Raw(row[4].encode())))


def _batches(db: Database, tasks: Sequence[int]) -> Iterator[list[int]]:
    """The tasks in their order, in parts whose records fit in memory together."""
    batch: list[int] = []
    size = 0
    for task, length in db.all(
        """SELECT task, octet_length(record) FROM results
           WHERE task IN (SELECT value FROM json_each(?)) ORDER BY task""",
        (msgspec.json.encode(tasks).decode(),),
    ):
        if batch and size + length > MAX_READ:
            yield batch
            batch, size = [], 0
        batch.append(task)
        size += length
    if batch:
        yield batch


def newest(db: Database, job: Job | None, limit: int) -> list[dict[str, Any]]:
    """The results that were stored last, the newest first."""
    condition, values = matching(job, None)
    chosen = f"""SELECT o.task FROM outbox o JOIN tasks t ON t.id = o.task
                 WHERE {condition} ORDER BY o.created_at DESC, o.task DESC LIMIT ?"""
    order = "ORDER BY o.created_at DESC, o.task DESC"
    return [
        _as_dict(row)
        for row in db.all(f"{_RESULT} WHERE r.task IN ({chosen}) {order}", (*values, limit))
    ]


def read_rows(db: Database, job: Job) -> Iterator[dict[str, Any]]:
    """Every row of a job's input in its order: the result, or null fields, with status, reason,
    message and line.

    The order is noted once, in a table of this connection, and then read some at a time.
    """
    db.execute("DROP TABLE IF EXISTS temp.input_rows")
    db.execute(_INPUT_ROWS, (job.id,))
    last = 0
    while rows := db.all(_INPUT_ROW, (job.id, last, PAGE)):
        for row in rows:
            line, status, error, message, rejected, text = row[-6:]
            outcome = {"status": "rejected", "reason": rejected, "message": text} if rejected else {
                "status": status, "reason": error, "message": message}  # fmt: skip
            yield _as_dict(row[:-6]) | {"job": job.name} | outcome | {"line": line or None}
        last += PAGE
    db.execute("DROP TABLE temp.input_rows")


def matching(job: Job | None, since: float | None) -> tuple[str, tuple[Any, ...]]:
    """The condition for results of a job (those it shares included) that were scraped at that time
    or later."""
    parts: list[str] = ["1"]
    values: list[float] = []
    if job:
        parts.append(
            "(t.job_id = ? OR EXISTS (SELECT 1 FROM job_links l WHERE l.task = t.id AND l.job_id = ?))"
        )
        values += [job.id, job.id]
    if since is not None:
        parts.append("r.scraped_at >= ?")
        values.append(since)
    return " AND ".join(parts), tuple(values)


def iso(at: float) -> str:
    """A moment as ISO-8601 UTC text."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _as_dict(row: tuple[Any, ...]) -> dict[str, Any]:
    return _shaped(row, None if row[4] is None else _decoded(row[1], row[4]))


def _shaped(row: tuple[Any, ...], record: object) -> dict[str, Any]:
    (_, task_id, parcel_id, row_input, _, scraped_at, parse_ms, digest, url, final_url, status, verdict,
     job, queue, priority, attempts, parser, parser_version, segment, offset, length,
     site, site_version, same_as) = row  # fmt: skip
    given = _decoded(task_id, row_input) if row_input else {}
    return {
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


def _text(record: bytes) -> str:
    """A record as it is stored; one that cannot be is no damage of the ledger, which alone has such
    errors."""
    try:
        return record.decode()
    except UnicodeDecodeError as error:
        raise ValueError(str(error)) from None


def _decoded(task_id: str, text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise StoreError(
            f"task {task_id} is damaged in lpm.db ({error}); {program()} doctor"
        ) from error


def page_url(result: Mapping[str, Any]) -> str:
    """The URL that the stored page of a result came from; empty where it is an earlier result's."""
    return "" if result["verdict"] == UNCHANGED else str(result["final_url"])


def agrees(db: Database, task_id: str, file: Mapping[str, Any]) -> bool:
    """Whether a file of pending/ has the URLs, the digest and the record that the ledger has, if it
    has them whole."""
    row = db.one(
        "SELECT url, final_url, body_sha256, record FROM results JOIN tasks ON id = task WHERE task_id = ?",
        (task_id,),
    )
    try:
        return row is None or (
            (file.get("url"), file.get("final_url"), file.get("raw_html_hash")) == row[:3]
            and file.get("data") == msgspec.json.decode(row[3])
        )
    except msgspec.DecodeError:  # told by the books
        return True
