"""Makes the rows of a ledger agree again after damage, and notes at each job what it has lost.

A loss is proven by the sizes of jobs, by gaps in the numbers of tasks and the lines of files, and
by the entries of indexes.
"""

import contextlib
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec

from crawler import urls
from crawler.db import batches, jobs, links, raw_pages, result_files, retention, timeline
from crawler.db.connection import Database, writing
from crawler.db.pending import is_whole
from crawler.db.results import PRUNED, encoded_reasons, number_again
from crawler.doctor import listed
from crawler.errors import CrawlerError, UrlError
from crawler.fetch.body import decode_stored
from crawler.fetch.wire import stored_values
from crawler.files import read_regular, set_aside
from crawler.models import (
    FILE,
    GET,
    NO_DEADLINE,
    QUEUES,
    UNCHANGED,
    Method,
    RawLocation,
    Role,
    TaskStatus,
    encoded_input,
)

TEMP_TABLES = """
    CREATE TEMP TABLE IF NOT EXISTS indexed (
        id INTEGER PRIMARY KEY, task_id TEXT, url_key BLOB, parcel_id TEXT, job_id INTEGER,
        method TEXT, body TEXT);
    CREATE TEMP TABLE IF NOT EXISTS no_input (id INTEGER PRIMARY KEY);
    CREATE TEMP TABLE IF NOT EXISTS parents (task INTEGER PRIMARY KEY, parent TEXT)"""
"""`indexed`: what the indexes say about tasks whose rows are lost. `no_input`: tasks whose input
is lost. `parents`: the task ids of the parents of tasks that were rebuilt."""
STORED_EVENT = """
    (SELECT max(id) FROM events
     WHERE task = r.task AND kind IN ('completed', 'unbundled', 'replayed'))"""
"""The entry of the timeline that was written together with the record of result r."""
_UNKNOWN_STATE = "state NOT IN ('ready', 'synced', 'rejected', 'held')"
UNKNOWN_STATES = f"""
    (SELECT count(*) FROM outbox WHERE {_UNKNOWN_STATE})
    + (SELECT count(*) FROM reports WHERE {_UNKNOWN_STATE})"""
"""How many results and reports would never be sent, nor be counted."""
CLOSED_TOO_EARLY = """
    SELECT id, key FROM jobs WHERE status = 'done' AND (
        EXISTS (SELECT 1 FROM tasks WHERE job_id = jobs.id AND status IN ('pending', 'processing'))
        OR EXISTS (SELECT 1 FROM job_links l JOIN tasks ON tasks.id = task
                   WHERE l.job_id = jobs.id AND is_open))"""
"""Jobs that are done although one of their tasks is open."""
NEVER_ENDED = "(status IN ('failed', 'skipped', 'expired') AND completed_at IS NULL)"
"""Tasks in a final state without a time of their end."""
ENDED_OTHERWISE = """
    SELECT e.task, e.kind FROM tasks t JOIN (
        SELECT task, kind, max(id) FROM events
        WHERE kind IN ('completed', 'failed', 'skipped', 'expired', 'poison', 'unbundled',
                       'retry asked', 'handed out again', 'result lost')
        GROUP BY task) e ON e.task = t.id
    WHERE t.status IN ('failed', 'skipped', 'expired')
      AND e.kind IN ('completed', 'failed', 'skipped', 'expired')
      AND t.status <> e.kind"""
"""Tasks with another final state than the last one of their timelines, and that one."""
_PRUNED_SEGMENTS = f"""
    SELECT json_extract(e.detail, '$.raw.segment') AS segment FROM results r
    JOIN events e ON e.id = {STORED_EVENT} WHERE r.raw_segment IS NULL
    EXCEPT SELECT name FROM raw_segments
    EXCEPT SELECT json_extract(detail, '$.segment') FROM events WHERE kind = 'raw page damaged'"""
"""Segments that results no longer name although their pages were not damaged: only `prune` does
that."""
_HIGHEST_TASK = """
    SELECT max(id) FROM (SELECT max(id) AS id FROM tasks UNION ALL SELECT max(task) FROM results
        UNION ALL SELECT max(task) FROM outbox UNION ALL SELECT max(task) FROM events
        UNION ALL SELECT max(task) FROM job_links UNION ALL SELECT max(task) FROM reports
        UNION ALL SELECT max(id) FROM temp.indexed)"""
"""The highest number of a task that any table mentions."""

_KEY_OF_UNKNOWN_FILE = "salvaged "
"""Prefix of the key of a job whose row was lost: its file is unknown until it is imported again."""
_TASK_ID = re.compile("[0-9a-f]{32}")
MAX_COUNT = 1_000_000_000
"""No task is tried more often."""
_MAX_SHOWN = 8
_MAX_PAGE_BYTES = 1 << 30


def reconcile(
    db: Database, pending: Path, raw: Path, now: float, noted_files: bool = True
) -> dict[str, int]:
    """Make tasks, results, outbox and jobs agree without losing a result. Returns what was done,
    with counts.

    `noted_files` says whether the ledger's version noted the files of each job.
    """
    done: dict[str, int] = {}
    with writing(db):
        db.execute(TEMP_TABLES)
        for task_id in retention.remove_all(db):  # else their files would bring them back
            (pending / f"{task_id}.json").unlink(missing_ok=True)
        jobs = count_rows(db, "jobs")
        # A task that was completed needs its result, too. Those are put back next.
        db.execute(
            f"UPDATE tasks SET status = e.kind FROM ({ENDED_OTHERWISE}) e WHERE e.task = tasks.id"
        )
        done["tasks that ended as their timelines say"] = db.changes()
        done |= _reconcile_results(db, pending, raw, now)
        number_again(db)
        done |= _reconcile_outbox(db, now)
        done["tasks pending again, because their results are lost"] = _reopen_tasks(db, now)
        db.execute(
            f"""UPDATE tasks
                SET status = 'pending', owner = NULL, message_id = NULL, not_before = 0
                WHERE (status = 'processing' AND owner IS NULL) OR {NEVER_ENDED}
                   OR status NOT IN {(*map(str, TaskStatus),)}"""
        )
        done["tasks pending again, because their state is unknown"] = db.changes()
        _rebuild_jobs(db, now)
        done["crawls paused, because it was lost which links they follow"] = _pause_crawls(db)
        done["jobs open again"] = _reopen_jobs(db)
        done["jobs rebuilt"] = count_rows(db, "jobs") - jobs
        _raise_file_counts(db)
        done |= _note_losses(db, now, noted_files)
        _restore_keys(db)
        _restore_sessions(db)
        db.execute(
            """UPDATE tasks SET not_before = 0
               WHERE status = 'pending' AND not_before = 9e15 AND job_id IS NOT NULL
                 AND NOT EXISTS (SELECT 1 FROM jobs WHERE id = job_id AND hold IS NOT NULL)"""
        )
        done["tasks due again, because nothing holds them"] = db.changes()
        # It counts events, and some may be lost.
        db.execute("DELETE FROM meta WHERE key = 'pending_secured'")
    return {what: count for what, count in done.items() if count}


def count_rows(db: Database, table: str) -> int:
    """Return the number of rows of a table."""
    return int(db.value(f"SELECT count(*) FROM {table}"))


def insert_row(db: Database, table: str, columns: Mapping[str, Any], verb: str = "INSERT") -> None:
    """Insert a row by the names of its columns."""
    names, marks = ", ".join(columns), ", ".join("?" * len(columns))
    db.execute(f"{verb} INTO {table} ({names}) VALUES ({marks})", tuple(columns.values()))


# Results and their tasks


class Maker(msgspec.Struct, frozen=True):
    """The parser or the site's configuration that made a record."""

    name: str
    version: str


class PendingResult(msgspec.Struct, frozen=True, kw_only=True):
    """A result as its file in pending/ has it."""

    task_id: str
    url: str
    final_url: str
    scraped_at: datetime
    data: msgspec.Raw = msgspec.Raw(b"{}")
    status_code: int = 200
    verdict: str = "ok"
    raw_html_hash: str = ""
    parse_duration_ms: float = 0.0
    parcel_id: str | None = None
    job: str | None = None
    queue: str = "default"
    priority: int = 5
    attempts: int = 1
    input: dict[str, Any] = {}
    parser: Maker = Maker("none", "1")
    site: Maker = Maker("default", "")
    raw: RawLocation | None = None
    role: Role | None = None
    depth: int = 0
    parent: str | None = None
    method: Method = GET
    body: str = ""
    invalid: list[str] = []
    files: list[result_files.LinkedFile] = []

    @property
    def makes_sense(self) -> bool:
        """Whether the ledger can have it: a damaged file must not become a damaged row."""
        return (
            _TASK_ID.fullmatch(self.task_id) is not None
            and len(self.raw_html_hash) == 64
            and 0 <= self.scraped_at.timestamp() <= 4e9
        )


def _reconcile_results(db: Database, pending: Path, raw: Path, now: float) -> dict[str, int]:
    """Put results back, rebuild their lost tasks, and complete the tasks of all results."""
    done: dict[str, int] = {}
    db.execute("CREATE INDEX by_place ON results(raw_segment, raw_offset)")
    done["results put back from pending/"] = sum(
        _put_back(db, pending, raw, result, now) for result in _pending_results(pending, now)
    )
    db.execute("DROP INDEX by_place")
    db.execute(
        """UPDATE tasks SET parent = p.id
           FROM parents JOIN tasks p ON p.task_id = parents.parent WHERE tasks.id = parents.task"""
    )
    _forget_pruned(db, raw)
    _lengthen_segments(db, raw, now)
    done["tasks rebuilt from their results"] = _rebuild_tasks(db)
    # Now that each result has its task: a record whose task is not known yet would pass unread.
    corrected = [_correct_record(db, pending, *each, now) for each in list(wrong_records(db))]
    done["records corrected"] = sum(corrected)
    done["records removed, because they are damaged"] = len(corrected) - sum(corrected)
    db.execute(
        """UPDATE tasks
           SET status = 'completed', owner = NULL, error_type = NULL, error_message = NULL,
               completed_at = (SELECT scraped_at FROM results WHERE task = tasks.id)
           WHERE status <> 'completed' AND id IN (SELECT task FROM results)"""
    )
    done["tasks completed, as their results say"] = db.changes()
    return done


def _pending_results(pending: Path, now: float) -> Iterator[PendingResult]:
    """Return the results in pending/ that can be read; set aside those with senseless values."""
    for path in pending.glob("[!.]*.json"):
        if not is_whole(path):
            continue
        with contextlib.suppress(OSError, msgspec.DecodeError, ValueError, OverflowError):
            result = msgspec.json.decode(read_regular(path), type=PendingResult)
            if result.makes_sense:
                yield result
                continue
        _set_aside(pending, path.stem, now)


def _put_back(db: Database, pending: Path, raw: Path, result: PendingResult, now: float) -> bool:
    """Store a result from its file again, and its task if that is lost. Returns whether the result
    was missing."""
    scraped_at = result.scraped_at.timestamp()
    row = db.one("SELECT id, job_id FROM tasks WHERE task_id = ?", (result.task_id,))
    if row is None:
        if result.job:
            _make_job(db, None, result.job, scraped_at)
        task, is_known = _task_at_same_place(db, result) or (_free_task_number(db), False)
        if is_known:  # under another task id: that of its row was damaged
            db.execute(
                "UPDATE OR IGNORE tasks SET task_id = ? WHERE id = ?", (result.task_id, task)
            )
            return False
        twin = _twin(db, result)
        if twin is None:
            _make_task(db, task, result)
        else:  # its crawl has found the page again since the row was lost
            task = twin
            db.execute("UPDATE tasks SET task_id = ? WHERE id = ?", (result.task_id, task))
    else:
        task, job_id = row
        if result.job and job_id is not None:
            _make_job(db, job_id, result.job, scraped_at)
    if db.one("SELECT 1 FROM results WHERE task = ?", (task,)):
        return False
    moved = _task_at_same_place(db, result)
    if moved and not moved[1]:  # the number of its row was damaged
        db.execute("UPDATE results SET task = ? WHERE task = ?", (task, moved[0]))
        return False
    if not _has_noted_record(db, task, result):
        _set_aside(pending, result.task_id, now)
        return False
    content_type, size = _content_type_and_size(raw, result.raw)
    columns = {
        "task": task,
        "record": bytes(result.data).decode(),
        "final_url": result.final_url,
        "status_code": result.status_code,
        "content_type": content_type,
        "verdict": result.verdict,
        "bytes": size,
        "body_sha256": result.raw_html_hash,
        "fetch_ms": 0.0,
        "parse_ms": result.parse_duration_ms,
        "parser": result.parser.name,
        "parser_version": result.parser.version,
        "raw_segment": result.raw and result.raw.segment,
        "raw_offset": result.raw and result.raw.offset,
        "raw_length": result.raw and result.raw.length,
        "scraped_at": scraped_at,
        "site": result.site.name,
        "site_version": result.site.version,
        "invalid": encoded_reasons(result.invalid),
    }
    insert_row(db, "results", columns)
    if result.files:
        named, captures = result_files.split(result.task_id, result.files)
        result_files.link(db, task, [(file.field, _address_of(file.url)) for file in named])
        result_files.link_captures(db, task, captures)
    return True


def _has_noted_record(db: Database, task: int, result: PendingResult) -> bool:
    """Return whether the record of a file is the one that the timeline has a checksum of, or a
    later one; a copy of the ledger may be older than the file."""
    row = db.one(
        """SELECT id, at, json_extract(detail, '$.record_crc32') FROM events
           WHERE id = (SELECT max(id) FROM events
                       WHERE task = ? AND kind IN ('completed', 'unbundled', 'replayed'))""",
        (task,),
    )
    if row is None or result.verdict == UNCHANGED:
        return True
    event, at, checksum = row
    if checksum is None or crc32(result.data) == checksum:
        return True
    if result.scraped_at.timestamp() <= at:
        return False
    _forget_checksum(db, event)
    return True


def _forget_checksum(db: Database, event: int) -> None:
    db.execute(
        "UPDATE events SET detail = json_remove(detail, '$.record_crc32') WHERE id = ?", (event,)
    )


def wrong_records(db: Database) -> Iterator[tuple[int, str]]:
    """Yield each task whose record has another checksum than its timeline says; older ones have
    none."""
    for task, task_id, record, checksum in db.execute(
        f"""SELECT r.task, task_id, CAST(record AS BLOB), json_extract(detail, '$.record_crc32')
            FROM results r JOIN tasks t ON t.id = r.task JOIN events e ON e.id = {STORED_EVENT}
            WHERE verdict <> 'unchanged' AND json_valid(detail)"""
    ):
        if checksum is not None and crc32(record) != checksum:
            yield task, task_id


def _correct_record(db: Database, pending: Path, task: int, task_id: str, now: float) -> bool:
    """Take a record from its file if that has the checksum. Returns False if the record had to be
    removed; it is made again from its stored page, or its page is fetched again.

    If the file has the same record as the ledger, the checksum is damaged. If all three differ,
    nothing tells which one is right.
    """
    [(record, event, checksum, seq)] = db.all(
        f"""SELECT CAST(record AS BLOB), e.id, json_extract(detail, '$.record_crc32'), seq
            FROM results r JOIN events e ON e.id = {STORED_EVENT}
            WHERE r.task = ?""",
        (task,),
    )
    data = bytes(pending_fields(pending, task_id).get("data", b""))
    if data and crc32(data) == checksum:
        db.execute("UPDATE results SET record = ? WHERE task = ?", (data.decode(), task))
        return True
    if data and data == record:
        _forget_checksum(db, event)
        return True
    db.execute("DELETE FROM results WHERE task = ?", (task,))
    if isinstance(seq, int):
        retention.note_seq(db, seq)
    _set_aside(pending, task_id, now)  # else it would pass for a result that the ledger has lost
    return False


def pending_fields(pending: Path, task_id: str) -> dict[str, msgspec.Raw]:
    """Return the fields of a task's file in pending/, none if it cannot be read."""
    try:
        text = read_regular(pending / f"{task_id}.json")
        return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (OSError, msgspec.DecodeError):
        return {}


def _set_aside(pending: Path, task_id: str, now: float) -> None:
    """Rename a damaged file of pending/, if there is one."""
    path = pending / f"{task_id}.json"
    if path.exists():
        set_aside(path, f"damaged-{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%SZ}")


def _task_at_same_place(db: Database, result: PendingResult) -> tuple[int, bool] | None:
    """Return the task of the result with the same stored page, and whether the task has a row.

    An unchanged page has the place of an earlier one, and a file that of the same bytes, so these
    identify nothing.
    """
    if result.raw is None or result.method == FILE:
        return None
    row = db.one(
        """SELECT task, task IN (SELECT id FROM tasks) FROM results
           WHERE raw_segment = ? AND raw_offset = ? AND 'unchanged' NOT IN (verdict, ?)
             AND (final_url, body_sha256) = (?, ?)""",
        (result.raw.segment, result.raw.offset, result.verdict, result.final_url,
         result.raw_html_hash),
    )  # fmt: skip
    return row and (int(row[0]), bool(row[1]))


def _twin(db: Database, result: PendingResult) -> int | None:
    """Return the task without a result for the same request of the same crawl."""
    task = _of_crawl(db, result)
    if task is None or db.one("SELECT 1 FROM results WHERE task = ?", (task,)):
        return None
    return task


def _of_crawl(db: Database, result: PendingResult) -> int | None:
    """Return the task that a crawl has for a request."""
    if result.role is None:
        return None
    job_id = db.value("SELECT id FROM jobs WHERE name = ?", (result.job,))
    request = (job_id, _address_of(result.url).key, result.method, result.body)
    task = db.value(links.FIND.format("id"), request)
    return None if task is None else int(task)


def _address_of(url: str) -> urls.Address:
    try:
        return urls.parse(url)
    except UrlError:  # damaged, too; it is never fetched again
        return urls.Address(url, url.encode("utf-8", "replace"), "")


def _forget_pruned(db: Database, raw: Path) -> None:
    """Remove the places of pages that `prune` removed: files in pending/ may still name them."""
    for name in db.column(f"SELECT segment FROM ({_PRUNED_SEGMENTS}) WHERE segment IS NOT NULL"):
        if not (raw / name).exists():  # the note of it may be lost
            insert_row(db, "meta", {"key": f"{PRUNED}{name}", "value": ""}, "INSERT OR IGNORE")
    db.execute(
        """UPDATE results SET raw_segment = NULL, raw_offset = NULL, raw_length = NULL
           WHERE raw_segment IN (
               SELECT substr(key, length(?1) + 1) FROM meta WHERE key LIKE ?1 || '%')""",
        (PRUNED,),
    )


def _lengthen_segments(db: Database, raw: Path, now: float) -> None:
    """Extend segments up to the last page of a result: an older copy of the ledger knows less of
    them."""
    rows = db.all(
        """SELECT raw_segment, max(raw_offset + raw_length) FROM results
           WHERE raw_segment > '' GROUP BY 1"""
    )
    for name, end in rows:
        if (raw / name).is_file() and (raw / name).stat().st_size >= end:
            db.execute(
                """INSERT INTO raw_segments (name, end, created_at) VALUES (?, ?, ?)
                   ON CONFLICT DO UPDATE SET end = max(end, excluded.end)""",
                (name, end, now),
            )


def _content_type_and_size(raw: Path, place: RawLocation | None) -> tuple[str, int]:
    """Return what the stored page tells of a result and its file does not."""
    if place is None:
        return "", 0
    try:
        head, body = decoded_page(raw, place)
    except CrawlerError:
        return "", 0
    return next(iter(stored_values(head, "content-type")), ""), len(body)


def decoded_page(raw: Path, place: RawLocation) -> tuple[str, bytes]:
    """Return the header block of a stored page, and its body without content codings."""
    head, received = raw_pages.read(raw, place)
    return head, decode_stored(head, received, limit=_MAX_PAGE_BYTES)


def _free_task_number(db: Database) -> int:
    tables = {"tasks": "id", "results": "task", "events": "task", "job_links": "task"}
    return 1 + max(
        int(db.value(f"SELECT coalesce(max({column}), 0) FROM {table}"))
        for table, column in tables.items()
    )


def _make_task(db: Database, task: int, result: PendingResult) -> None:
    """Make a task from what its result tells of it."""
    address = _address_of(result.url)
    at = result.scraped_at.timestamp()
    source, external_id = _origin(db, result)
    columns = {
        "id": task,
        "task_id": result.task_id,
        "job_id": db.value("SELECT id FROM jobs WHERE name = ?", (result.job,)),
        "url": address.url,
        "url_key": address.key,
        "domain": address.domain,
        "parcel_id": result.parcel_id or "",
        "status": "completed",
        "queue": result.queue if result.queue in QUEUES else "default",
        "priority": min(max(result.priority, 1), 9),
        "deadline": NO_DEADLINE,
        "attempts": min(max(result.attempts, 0), MAX_COUNT),
        "source": source,
        "external_id": external_id,
        "input": encoded_input(result.input),
        "imported_at": at,
        "completed_at": at,
    }
    if result.role and _of_crawl(db, result) is None:  # else it would be there twice
        columns |= {
            "role": result.role,
            "depth": min(max(result.depth, 0), MAX_COUNT),
            "method": result.method,
            "body": result.body,
        }
    insert_row(db, "tasks", columns)
    if result.parent:
        insert_row(db, "temp.parents", {"task": task, "parent": result.parent}, "INSERT OR IGNORE")


def _origin(db: Database, result: PendingResult) -> tuple[str, str | None]:
    """Return the source of a task and its id there: a Gateway waits for the results of its
    tasks."""
    gateway_task = result.input.get("task")
    if not isinstance(gateway_task, dict) or gateway_task.get("task_id") is None:
        return "salvage", None
    id_ = str(gateway_task["task_id"])
    known = db.one("SELECT 1 FROM jobs WHERE name = ? AND source = 'gateway'", (result.job,))
    taken = db.one("SELECT 1 FROM tasks WHERE external_id = ? AND source = 'gateway'", (id_,))
    if not known or taken:
        return "salvage", None
    return "gateway", id_


def _rebuild_tasks(db: Database) -> int:
    """Rebuild the lost tasks of results that are not in pending/. Returns how many.

    The URL is that of the result. The indexes know the rest; if not, the task gets the job of its
    neighbours, imported before and after it, if both have the same.
    """
    rows = db.all(
        "SELECT task, final_url, scraped_at FROM results WHERE task NOT IN (SELECT id FROM tasks)"
    )
    rebuilt = []
    for task, url, at in rows:
        own = _completed_in_crawl(db, url)
        if own is not None:  # the number of the result's row was damaged
            db.execute("UPDATE results SET task = ? WHERE task = ?", (own, task))
            continue
        task_id, scraped_at = secrets.token_hex(16), datetime.fromtimestamp(at, UTC)
        result = PendingResult(task_id=task_id, url=url, final_url=url, scraped_at=scraped_at)
        _make_task(db, task, result)
        rebuilt.append((task,))
        db.execute("INSERT OR IGNORE INTO no_input (id) VALUES (?)", (task,))
        db.execute(
            """UPDATE tasks SET job_id = (
                   SELECT b.job_id FROM tasks b
                   WHERE b.id = (SELECT max(id) FROM tasks WHERE id < ?1 AND job_id IS NOT NULL)
                     AND b.job_id = (SELECT job_id FROM tasks
                                     WHERE id > ?1 AND job_id IS NOT NULL ORDER BY id LIMIT 1))
               WHERE id = ?1 AND job_id IS NULL""",
            (task,),
        )
    db.execute(
        """UPDATE OR IGNORE tasks SET
               task_id = ifnull(i.task_id, tasks.task_id),
               job_id = ifnull(i.job_id, tasks.job_id),
               url_key = ifnull(i.url_key, tasks.url_key),
               parcel_id = ifnull(i.parcel_id, tasks.parcel_id),
               method = ifnull(i.method, tasks.method),
               body = ifnull(i.body, tasks.body),
               role = ifnull(tasks.role, CASE WHEN i.method = 'FILE' THEN 'file'
                   WHEN i.method NOT NULL THEN 'index' END)
           FROM indexed i WHERE i.id = tasks.id"""
    )
    # A task without a role would be fetched again by its crawl. Which one it had is not known.
    db.executemany(
        """UPDATE OR IGNORE tasks SET role = 'index' WHERE id = ? AND role IS NULL
           AND job_id IN (SELECT id FROM jobs WHERE options ->> '$.crawl' IS NOT NULL)""",
        rebuilt,
    )
    return len(rebuilt)


def _completed_in_crawl(db: Database, url: str) -> int | None:
    """Return the only completed task of a crawl for a page that lacks its result."""
    tasks = db.column(
        """SELECT id FROM tasks WHERE url_key = ? AND method = 'GET' AND role NOT NULL
           AND source <> 'bundle' AND status = 'completed'
           AND id NOT IN (SELECT task FROM results)""",
        (_address_of(url).key,),
    )
    return int(tasks[0]) if len(tasks) == 1 else None


def _reconcile_outbox(db: Database, now: float) -> dict[str, int]:
    """Make each result and each end of a Gateway's task known to the delivery."""
    done: dict[str, int] = {}
    db.execute(
        """INSERT INTO outbox (task, state, created_at)
           SELECT id, iif(source = 'gateway', 'ready', 'held'), ?
           FROM tasks JOIN results ON task = id
           WHERE id NOT IN (SELECT task FROM outbox)""",
        (now,),
    )
    done["results put into the outbox again"] = db.changes()
    db.execute("DELETE FROM outbox WHERE task NOT IN (SELECT task FROM results)")
    # A Gateway that has a result already accepts it once more.
    db.execute(
        f"""UPDATE outbox SET batch = NULL, state = iif(
                task IN (SELECT id FROM tasks WHERE source = 'gateway'), 'ready', 'held')
            WHERE {_UNKNOWN_STATE}"""
    )
    done["results to be delivered again, or held, because their state is unknown"] = db.changes()
    db.execute(f"DELETE FROM reports WHERE {_UNKNOWN_STATE}")
    db.execute(
        """INSERT INTO reports (task, state, created_at) SELECT id, 'ready', ? FROM tasks
           WHERE source = 'gateway' AND status IN ('failed', 'skipped', 'expired')
             AND id NOT IN (SELECT task FROM reports)""",
        (now,),
    )
    done["ends of a Gateway's tasks to be reported again"] = db.changes()
    return done


def _reopen_tasks(db: Database, now: float) -> int:
    """Open completed tasks without a result again, unless another task for the page is open."""
    lost = db.column(
        "SELECT id FROM tasks WHERE status = 'completed' AND id NOT IN (SELECT task FROM results)"
    )
    for task in lost:
        # It was completed in time, so the next attempt must not expire.
        db.execute(
            """UPDATE OR IGNORE tasks
               SET status = 'pending', owner = NULL, message_id = NULL, not_before = 0,
                   completed_at = NULL, deadline = iif(deadline <= ?, 9e15, deadline)
               WHERE id = ?""",
            (now, task),
        )
        db.execute(
            """UPDATE tasks SET status = 'failed', error_type = 'result_lost',
                   error_message = 'the result was lost; another task for this page is open'
               WHERE id = ? AND status = 'completed'""",
            (task,),
        )
        timeline.note(db, task, "result lost", {}, now)
    return len(lost)


# Jobs


def _make_job(db: Database, job_id: int | None, name: str, now: float) -> int:
    """Rebuild a lost job, under its number or a new one. Returns its number; an existing job is not
    changed."""
    sql = "SELECT id FROM jobs WHERE id = ?1 OR (?1 IS NULL AND name = ?2)"
    if (known := db.value(sql, (job_id, name))) is not None:
        return int(known)
    if db.one("SELECT 1 FROM jobs WHERE name = ?", (name,)):
        name = f"{name}-salvaged-{job_id}"
    [(made,)] = db.all(
        f"""INSERT INTO jobs (id, name, key, status, queue, source, batch_size, created_at)
            VALUES (
                coalesce(?1, 1 + max(
                    coalesce((SELECT max(id) FROM jobs), 0),
                    coalesce((SELECT max(job_id) FROM tasks), 0))),
                ?2, '{_KEY_OF_UNKNOWN_FILE}' || ?2, 'open', 'default', 'salvage', 100, ?3)
            RETURNING id""",
        (job_id, name, now),
    )
    return int(made)


def _rebuild_jobs(db: Database, now: float) -> None:
    """Rebuild each job that only other tables mention. It gets its old name, or that of its
    file."""
    tables = ("tasks", "job_links", "rejected_rows", "imports")
    ids = " UNION ".join(f"SELECT job_id FROM {table} WHERE job_id IS NOT NULL" for table in tables)
    for id_ in db.column(f"SELECT job_id FROM ({ids}) WHERE job_id NOT IN (SELECT id FROM jobs)"):
        [(key, file)] = db.all(
            """SELECT max(key), ifnull(
                   max(file), (SELECT max(source_file) FROM tasks WHERE job_id = ?1))
               FROM imports WHERE job_id = ?1""",
            (id_,),
        )
        name = f"salvaged-{id_}"
        if key and key.startswith("name:"):
            name = key.removeprefix("name:")
        elif key and (session := batches.session_of(key)):
            name = session[1]
        elif file:
            name = Path(file).name
        _make_job(db, id_, name, now)
    tasks_of_job = """
        SELECT {columns} FROM tasks
        WHERE job_id = jobs.id OR id IN (SELECT task FROM job_links WHERE job_id = jobs.id)"""
    file = "ifnull((SELECT max(file) FROM imports WHERE job_id = jobs.id), max(source_file))"
    values = tasks_of_job.format(columns=f"{file}, max(queue), min(imported_at)")
    db.execute(
        f"""UPDATE jobs SET (source_file, queue, created_at) = ({values})
            WHERE key LIKE '{_KEY_OF_UNKNOWN_FILE}%' AND source_file IS NULL
              AND EXISTS ({tasks_of_job.format(columns="1")})"""
    )


def _pause_crawls(db: Database) -> int:
    """Pause the crawls without options: their pages would end with no link followed. Returns how
    many; the crawl's command, typed again, gives them back."""
    crawls = db.column(
        """SELECT id FROM jobs WHERE status <> 'done' AND hold IS NOT 'cancelled'
               AND options ->> '$.crawl' IS NULL
               AND EXISTS (SELECT 1 FROM tasks WHERE job_id = jobs.id AND role NOT NULL
                           AND source <> 'bundle')"""
    )
    for id_ in crawls:
        db.execute("UPDATE jobs SET source = 'crawl', hold = 'paused' WHERE id = ?", (id_,))
        db.execute(
            "UPDATE tasks SET not_before = 9e15 WHERE job_id = ? AND status = 'pending'", (id_,)
        )
    return len(crawls)


def _reopen_jobs(db: Database) -> int:
    """Open the jobs that are done but have open tasks. Returns how many."""
    closed = db.all(CLOSED_TOO_EARLY)
    for id_, key in closed:
        free_key = key
        if db.one("SELECT 1 FROM jobs WHERE key = ? AND status <> 'done'", (key,)):
            free_key = f"{key}#{id_}"
        db.execute(
            "UPDATE jobs SET status = 'open', completed_at = NULL, key = ? WHERE id = ?",
            (free_key, id_),
        )
    return len(closed)


def _raise_file_counts(db: Database) -> None:
    """Correct the jobs' counts of files: a new file must not get a number that rows already
    have."""
    numbers = " UNION ALL ".join(
        f"""SELECT max(file_number) AS number FROM {table}
            WHERE job_id = jobs.id AND source_line NOT NULL"""
        for table in ("tasks", "job_links", "rejected_rows")
    )
    db.execute(
        f"""UPDATE jobs
            SET files = max(files, ifnull((SELECT 1 + max(number) FROM ({numbers})), 0))
            WHERE source <> 'gateway'"""
    )


def _restore_keys(db: Database) -> None:
    """Restore the keys of lost jobs if `imports` has them, so that an import of the same files
    finds the job."""
    db.execute(
        f"""UPDATE OR IGNORE jobs
            SET key = (SELECT max(key) FROM imports WHERE job_id = jobs.id)
            WHERE key LIKE '{_KEY_OF_UNKNOWN_FILE}%'
              AND EXISTS (SELECT 1 FROM imports WHERE job_id = jobs.id)"""
    )


def _restore_sessions(db: Database) -> None:
    """Restore the sessions of programs that the keys of their jobs name, so that a call that comes
    again finds its job."""
    keys = db.all("SELECT id, key FROM jobs UNION SELECT job_id, key FROM imports")
    for id_, key in keys:
        if named := batches.session_of(key):
            db.execute(
                """INSERT OR IGNORE INTO batches (job_id, client, session_id, options, horizon)
                   VALUES (?, ?, ?, '{"formats":["record"]}', 0)""",
                (id_, *named),
            )
    of_session = "IN (SELECT job_id FROM batches)"
    db.execute(f"UPDATE jobs SET source = '{batches.SOURCE}' WHERE id {of_session}")
    db.execute(
        f"""UPDATE OR IGNORE tasks SET source = '{batches.SOURCE}'
            WHERE source = 'salvage' AND job_id {of_session}"""
    )


# Losses


class Gaps(msgspec.Struct, frozen=True):
    """Numbers without a row. Each is a lost one, except those of removed jobs, which are noted."""

    tasks: int = 0
    events: int = 0


class _JobRows(msgspec.Struct, frozen=True):
    """A job's rows: how many were imported, and how many are left."""

    id: int
    key: str
    importing: bool
    files_forgotten: bool
    """Whether its import is not complete, and some of its files are not known any more."""
    size: int
    linked: int
    rejected: int
    tasks: int
    links: int
    rejects: int
    no_input: int


def _note_losses(db: Database, now: float, noted_files: bool) -> dict[str, int]:
    """Note at each job what it has lost. Returns the counts. Part of a transaction."""
    gaps, known, within_jobs = _gaps(db), _known_gaps(db), _gaps_within_jobs(db)
    unknown = max(0, gaps.tasks - known.tasks)  # the tasks of removed jobs leave gaps in others
    _remove_references(db)
    left = msgspec.json.encode(_gaps(db)).decode()
    insert_row(db, "meta", {"key": retention.KNOWN_GAPS, "value": left}, "INSERT OR REPLACE")
    lost = sum(
        _note_losses_of_job(db, job, min(unknown, within_jobs.get(job.id, 0)), now)
        for job in _jobs(db, noted_files)
    )
    without_job = max(0, unknown - lost)
    if without_job:
        what = f"{without_job:,} tasks were lost, and with them which job they were of"
        _note(db, _make_job(db, None, "lost-tasks", now), what, now)
    return {
        "tasks lost": lost + without_job,
        "entries of timelines lost": max(0, gaps.events - known.events),
    }


def _remove_references(db: Database) -> None:
    """Remove rows that refer to a lost task: SQLite gives its number to a new one."""
    for table in ("job_links", "events", "validators", "reports", "record_versions"):
        db.execute(
            f"""DELETE FROM {table} WHERE task NOT IN (SELECT id FROM tasks)
                AND task NOT IN (SELECT -id FROM jobs)"""
        )
    db.execute("UPDATE tasks SET parent = NULL WHERE parent NOT IN (SELECT id FROM tasks)")


def _gaps(db: Database) -> Gaps:
    highest = db.value(_HIGHEST_TASK) or 0
    events = db.value("SELECT ifnull(max(id), 0) - count(*) FROM events")
    return Gaps(highest - count_rows(db, "tasks"), events)


def _gaps_within_jobs(db: Database) -> dict[int, int]:
    """Return how many tasks of each job are missing: by the indexes, or by gaps between two of its
    tasks."""
    between = db.all(
        """SELECT job_id, sum(id - before - 1) FROM (
               SELECT id, job_id, lag(id) OVER (ORDER BY id) AS before,
                   lag(job_id) OVER (ORDER BY id) AS its_job
               FROM tasks)
           WHERE job_id = its_job GROUP BY 1"""
    )
    indexed = db.all(
        """SELECT job_id, count(*) FROM temp.indexed
           WHERE job_id IS NOT NULL AND id NOT IN (SELECT id FROM tasks)
           GROUP BY 1"""
    )
    found = dict(between)
    return found | {job: max(count, found.get(job, 0)) for job, count in indexed}


def _known_gaps(db: Database) -> Gaps:
    """Return the gaps that an earlier repair noted."""
    noted = db.value("SELECT value FROM meta WHERE key = ?", (retention.KNOWN_GAPS,), "{}")
    try:
        return msgspec.json.decode(noted, type=Gaps)
    except msgspec.DecodeError:
        return Gaps()


def _jobs(db: Database, noted_files: bool) -> list[_JobRows]:
    """Return the jobs without a loss of rows that is still open."""
    importing = "source <> 'gateway' AND status = 'importing'"
    rows = db.all(
        f"""SELECT id, key, {importing},
                ? AND {importing}
                    AND files > (SELECT count(*) FROM imports WHERE job_id = jobs.id),
                size, linked, rejected,
                (SELECT count(*) FROM tasks WHERE job_id = jobs.id),
                (SELECT count(*) FROM job_links WHERE job_id = jobs.id),
                (SELECT count(*) FROM rejected_rows WHERE job_id = jobs.id),
                (SELECT count(*) FROM temp.no_input JOIN tasks USING (id) WHERE job_id = jobs.id)
            FROM jobs WHERE NOT EXISTS (
                SELECT 1 FROM losses
                WHERE job_id = jobs.id AND kind = 'rows' AND settled_at IS NULL)""",
        (noted_files,),
    )
    return [_JobRows(*row) for row in rows]


def _note_losses_of_job(db: Database, job: _JobRows, gaps: int, now: float) -> int:
    """Note what a job has lost. Returns how many tasks."""
    if job.key.startswith(_KEY_OF_UNKNOWN_FILE):
        what = "its row was lost, and with it how many tasks it had and whether it was paused"
        what += f"; {job.tasks:,} are left"
        if gaps:
            what += f", and {gaps:,} between them were lost"
        _note(db, job.id, what, now)
        db.execute(
            "UPDATE jobs SET size = ?, linked = ?, rejected = ? WHERE id = ?",
            (job.tasks + gaps, job.links, job.rejects, job.id),
        )
        return gaps
    lost = _losses_of_rows(db, job)
    for what in lost:
        _note(db, job.id, what, now)
    if job.files_forgotten:
        _note(db, job.id, "it was lost which of its files were read to their ends", now)
    elif job.importing and lost:
        # The losses are from now on the reason why it counts as not completely imported.
        _note(db, job.id, "its import had been broken off before", now)
    # More rows than the job's size are no loss: the size is older.
    db.execute(
        """UPDATE jobs
           SET size = max(size, ?), linked = max(linked, ?), rejected = max(rejected, ?)
           WHERE id = ?""",
        (job.tasks, job.links, job.rejects, job.id),
    )
    return max(0, job.size - job.tasks)


def _losses_of_rows(db: Database, job: _JobRows) -> list[str]:
    lost = []
    if (tasks := job.size - job.tasks) > 0:
        lines = _lines_without_row(db, job.id)
        lost.append(f"{tasks:,} of its {job.size:,} tasks were lost{lines}")
    if job.no_input:
        lost.append(f"the input of {job.no_input:,} of its tasks was lost")
    if (links := job.linked - job.links) > 0:
        lost.append(f"{links:,} of its {job.linked:,} rows that meant known tasks were lost")
    if (rejects := job.rejected - job.rejects) > 0:
        lost.append(f"{rejects:,} of its {job.rejected:,} rejected rows were lost")
    return lost


def _lines_without_row(db: Database, job_id: int) -> str:
    """Name the lines of the input that no row is left of, with blank lines and those within a
    cell."""
    columns = "file_number, source_line, source_item"
    rows = db.execute(
        f"""SELECT {columns} FROM tasks WHERE job_id = ?1 AND source_line > 0
            UNION SELECT {columns} FROM job_links WHERE job_id = ?1 AND source_line > 0
            UNION SELECT {columns} FROM rejected_rows WHERE job_id = ?1 ORDER BY 1, 2, 3""",
        (job_id,),
    )
    found = list(_missing_lines(rows))
    if not found:
        return ""
    return f"; no row is left of the lines {listed(found[:_MAX_SHOWN], len(found))}"


def _missing_lines(rows: Iterable[tuple[int, int, int]]) -> Iterator[str]:
    """Yield the lines without a row in each file, and the items without one on a line that has
    several."""
    last_file, last, last_item = 0, 1, 0  # the first line may be a header
    of_file = ""
    for file, line, item in rows:
        if file != last_file:
            last_file, last, last_item = file, 1, 0
            of_file = f" of file {file + 1}"
        if line > last + 1:
            yield _range(last + 1, line - 1) + of_file
        if line > last:
            last, last_item = line, 0
        if item > last_item + 1:
            yield f"{line} (items {_range(last_item + 1, item - 1)}){of_file}"
        last_item = item


def _range(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first}–{last}"


def _note(db: Database, job_id: int, what: str, now: float) -> None:
    """Note a loss, and mark the job as not completely imported, so that it can be imported again.

    Only one open job can have a key.
    """
    jobs.note_loss(db, job_id, what, now)
    db.execute("UPDATE imports SET ended_at = NULL WHERE job_id = ?", (job_id,))
    db.execute(
        """UPDATE jobs SET status = 'importing', completed_at = NULL,
               key = iif(
                   EXISTS (SELECT 1 FROM jobs other
                           WHERE other.key = jobs.key AND other.status <> 'done'
                             AND other.id <> jobs.id),
                   key || '#' || id, key)
           WHERE id = ?""",
        (job_id,),
    )
