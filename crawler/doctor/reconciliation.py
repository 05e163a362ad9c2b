"""Agreement between the rows of a ledger after damage, and a record of what was lost."""

import contextlib
import secrets
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from crawler import urls
from crawler.db import losses, segments, timeline
from crawler.db.connection import Database, writing
from crawler.db.results import PRUNED
from crawler.errors import CrawlerError, UrlError
from crawler.fetch.body import decoded as without_codings
from crawler.fetch.wire import stored_values
from crawler.files import read_regular
from crawler.models import NO_DEADLINE, Raw, encoded_input

STORED = "(SELECT max(id) FROM events WHERE task = r.task AND kind IN ('completed', 'unbundled'))"
"""The entry of the timeline that came with a result."""
_UNKNOWN = "state NOT IN ('ready', 'synced', 'rejected', 'held')"
UNKNOWN_STATES = f"""(SELECT count(*) FROM outbox WHERE {_UNKNOWN}) + (SELECT count(*) FROM reports WHERE {_UNKNOWN})"""
"""How much would never be sent, nor be counted."""
INDEXED = """
    CREATE TEMP TABLE IF NOT EXISTS indexed (
        id INTEGER PRIMARY KEY, task_id TEXT, url_key BLOB, parcel_id TEXT, job_id INTEGER);
    CREATE TEMP TABLE IF NOT EXISTS no_input (id INTEGER PRIMARY KEY)"""
"""What the indexes still know of tasks whose rows are lost: not their URLs, but whose they are; and
the tasks whose input is lost."""


def settle(
    db: Database, pending: Path, raw: Path, now: float, noted_files: bool = True
) -> dict[str, int]:
    """Bring tasks, results, outbox and jobs into agreement without losing a result; returns what
    was done, counted.

    `noted_files` says whether the ledger was made by a program that noted the files of each job.
    """
    done: dict[str, int] = {}
    with writing(db):
        db.execute(INDEXED)
        jobs = count_rows(db, "jobs")
        # One that was completed is so only with its result, which is looked for next.
        db.execute(
            f"UPDATE tasks SET status = e.kind FROM ({ENDED_OTHERWISE}) e WHERE e.task = tasks.id"
        )
        done["tasks that ended as their timelines say"] = db.changes()
        db.execute("CREATE INDEX by_place ON results(raw_segment, raw_offset)")
        done["results put back from pending/"] = sum(
            _put_back(db, raw, result) for result in _projected(pending)
        )
        db.execute("DROP INDEX by_place")
        _let_go_of_pruned(db, raw)
        _lengthen_segments(db, raw, now)
        done["tasks made again from their results"] = _remake_tasks(db)
        db.execute(
            """UPDATE tasks SET status = 'completed', owner = NULL, error_type = NULL, error_message = NULL,
                   completed_at = (SELECT scraped_at FROM results WHERE task = tasks.id)
               WHERE status <> 'completed' AND id IN (SELECT task FROM results)"""
        )
        done["tasks completed, as their results say"] = db.changes()
        db.execute(
            """INSERT INTO outbox (task, state, created_at)
               SELECT id, iif(source = 'gateway', 'ready', 'held'), ? FROM tasks JOIN results ON task = id
               WHERE id NOT IN (SELECT task FROM outbox)""",
            (now,),
        )
        done["results put into the outbox again"] = db.changes()
        db.execute("DELETE FROM outbox WHERE task NOT IN (SELECT task FROM results)")
        db.execute(
            f"""UPDATE outbox SET batch = NULL, state = iif(
                   task IN (SELECT id FROM tasks WHERE source = 'gateway'), 'ready', 'held') WHERE {_UNKNOWN}"""
        )  # a Gateway that has one already takes it once more
        done["results to be delivered again, or held, their state being unknown"] = db.changes()
        db.execute(f"DELETE FROM reports WHERE {_UNKNOWN}")
        db.execute(
            """INSERT INTO reports (task, state, created_at) SELECT id, 'ready', ? FROM tasks
               WHERE source = 'gateway' AND status IN ('failed', 'skipped', 'expired')
               AND id NOT IN (SELECT task FROM reports)""",
            (now,),
        )
        done["ends of a Gateway's tasks to be reported again"] = db.changes()
        done["tasks pending again, their results being lost"] = _reopen(db, now)
        db.execute(
            f"""UPDATE tasks SET status = 'pending', owner = NULL, message_id = NULL, not_before = 0
               WHERE (status = 'processing' AND owner IS NULL) OR {NEVER_ENDED}
                  OR status NOT IN ('pending', 'processing', 'completed', 'failed', 'skipped', 'expired')"""
        )
        done["tasks pending again, their state being unknown"] = db.changes()
        done["jobs open again"] = _settle_jobs(db, now)
        done["jobs made again"] = count_rows(db, "jobs") - jobs
        count_files(db)
        done |= prove(db, now, noted_files)
        find_keys(db)
        db.execute(
            """UPDATE tasks SET not_before = 0 WHERE status = 'pending' AND not_before = 9e15 AND job_id IS NOT NULL
               AND NOT EXISTS (SELECT 1 FROM jobs WHERE id = job_id AND hold IS NOT NULL)"""
        )
        done["tasks due again, nothing holding them"] = db.changes()
        db.execute(
            "DELETE FROM meta WHERE key = 'pending_secured'"
        )  # it counts events, of which some may be gone
    return {what: count for what, count in done.items() if count}


class Parser(msgspec.Struct, frozen=True):
    """What made a record."""

    name: str
    version: str


class Projected(msgspec.Struct, frozen=True, kw_only=True):
    """A result as pending/ has it."""

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
    parser: Parser = Parser("none", "1")
    site: Parser = Parser("default", "")
    raw: Raw | None = None


def _projected(pending: Path) -> Iterator[Projected]:
    """The results in pending/ that can be read."""
    for path in pending.glob("[!.]*.json"):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            result = msgspec.json.decode(read_regular(path), type=Projected)
            msgspec.json.decode(result.data, type=dict)
            if result.task_id == path.stem:
                yield result


def _put_back(db: Database, raw: Path, result: Projected) -> bool:
    """Give a task its result back from its projection, and a result its task."""
    row = db.one("SELECT id, status, job_id FROM tasks WHERE task_id = ?", (result.task_id,))
    if result.job and (row is None or row[2] is not None):
        make_job(db, row[2] if row else None, result.job, result.scraped_at.timestamp())
    if row and db.one("SELECT 1 FROM results WHERE task = ?", (row[0],)):
        return False
    place = (
        (result.raw.segment, result.raw.offset, result.raw.length)
        if result.raw
        else (None, None, None)
    )
    if row is None:
        # An unchanged page is at the place of the one it is the same as.
        at_place = """SELECT task, task IN (SELECT id FROM tasks) FROM results
                      WHERE raw_segment = ? AND raw_offset = ? AND 'unchanged' NOT IN (verdict, ?)
                      AND (final_url, body_sha256) = (?, ?)"""
        same = (*place[:2], result.verdict, result.final_url, result.raw_html_hash)
        row = db.one(at_place, same) or (_free_id(db), False)
        if row[1]:  # it is there, under another name: that of its task was damaged
            db.execute(
                "UPDATE OR IGNORE tasks SET task_id = ? WHERE id = ?", (result.task_id, row[0])
            )
            return False
        _make_task(db, row[0], result)
    kind, size = _about(raw, result.raw)
    db.execute(
        "INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)",
        (row[0], bytes(result.data).decode(), result.final_url, result.status_code, kind, result.verdict,
         size, result.raw_html_hash, 0.0, result.parse_duration_ms, result.parser.name, result.parser.version, *place,
         result.scraped_at.timestamp(), result.site.name, result.site.version),
    )  # fmt: skip
    return True


_EMPTIED = f"""
    SELECT json_extract(e.detail, '$.raw.segment') AS segment FROM results r
    JOIN events e ON e.id = {STORED} WHERE r.raw_segment IS NULL
    EXCEPT SELECT name FROM raw_segments
    EXCEPT SELECT json_extract(detail, '$.segment') FROM events WHERE kind = 'raw page damaged'"""
"""Segments that results had their pages in and, without any damage, have no more: `prune` alone
does that."""


def _let_go_of_pruned(db: Database, raw: Path) -> None:
    """Results from pending/ name the places of their pages as they were before `prune` has removed
    these."""
    for (name,) in db.all(f"SELECT segment FROM ({_EMPTIED}) WHERE segment IS NOT NULL"):
        if not (raw / name).exists():  # the note of it may be lost
            db.execute("INSERT OR IGNORE INTO meta VALUES (?, '')", (f"{PRUNED}{name}",))
    db.execute(
        """UPDATE results SET raw_segment = NULL, raw_offset = NULL, raw_length = NULL
           WHERE raw_segment IN (SELECT substr(key, length(?1) + 1) FROM meta WHERE key LIKE ?1 || '%')""",
        (PRUNED,),
    )


def _lengthen_segments(db: Database, raw: Path, now: float) -> None:
    """Let segments reach as far as the pages of results: an older copy of the ledger knows only
    their beginnings."""
    rows = db.all(
        "SELECT raw_segment, max(raw_offset + raw_length) FROM results WHERE raw_segment > '' GROUP BY 1"
    )
    for name, end in rows:
        if (raw / name).is_file() and (raw / name).stat().st_size >= end:
            db.execute(
                "INSERT INTO raw_segments VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET end = max(end, excluded.end)",
                (name, end, now),
            )


def _about(raw: Path, place: Raw | None) -> tuple[str, int]:
    """Content type and size of a stored page, which its projection does not tell."""
    try:
        head, body = decoded(raw, place) if place else ("", b"")
    except CrawlerError:
        return "", 0
    return next(iter(stored_values(head, "content-type")), ""), len(body)


def decoded(raw: Path, place: Raw) -> tuple[str, bytes]:
    """The headers and the body, without its content codings, of a stored page."""
    head, received = segments.read(raw, place)
    return head, without_codings(head, received, limit=1 << 30)


def _free_id(db: Database) -> int:
    tables = {"tasks": "id", "results": "task", "events": "task", "job_links": "task"}
    return 1 + max(
        int(db.all(f"SELECT coalesce(max({column}), 0) FROM {table}")[0][0])
        for table, column in tables.items()
    )


def _make_task(db: Database, id_: int, result: Projected) -> None:
    """A task from what its result tells of it."""
    try:
        address = urls.parse(result.url)
    except UrlError:  # damaged, too; nobody dials it any more
        address = urls.Address(result.url, result.url.encode("utf-8", "replace"), "")
    at = result.scraped_at.timestamp()
    source, theirs = _origin(db, result)
    given = encoded_input(result.input)
    db.execute(
        """INSERT INTO tasks (id, task_id, job_id, url, url_key, domain, parcel_id, status, queue, priority, deadline,
               attempts, source, external_id, input, imported_at, completed_at)
           VALUES (?, ?, (SELECT id FROM jobs WHERE name = ?), ?, ?, ?, ?, 'completed', ?, ?, ?, ?, ?, ?, ?, ?, ?)
        """,
        (id_, result.task_id, result.job, address.url, address.key, address.domain, result.parcel_id or "",
         result.queue, result.priority, NO_DEADLINE, result.attempts, source, theirs, given, at, at),
    )  # fmt: skip


def _origin(db: Database, result: Projected) -> tuple[str, str | None]:
    """Where a task came from: a Gateway's result tells its id there, which that Gateway waits to
    hear of."""
    theirs = result.input.get("task")
    id_ = theirs.get("task_id") if isinstance(theirs, dict) else None
    known = db.one("SELECT 1 FROM jobs WHERE name = ? AND source = 'gateway'", (result.job,))
    taken = db.one("SELECT 1 FROM tasks WHERE external_id = ? AND source = 'gateway'", (str(id_),))
    return ("gateway", str(id_)) if id_ is not None and known and not taken else ("salvage", None)


def _remake_tasks(db: Database) -> int:
    """A result whose task is gone, and that is not in pending/ either, still tells which page it is
    of.

    Who it is, the indexes know; else its job is that of both its neighbours, imported before and
    after it.
    """
    rows = db.all(
        "SELECT task, final_url, scraped_at FROM results WHERE task NOT IN (SELECT id FROM tasks)"
    )
    for id_, url, at in rows:
        task_id, moment = secrets.token_hex(16), datetime.fromtimestamp(at, UTC)
        _make_task(db, id_, Projected(task_id=task_id, url=url, final_url=url, scraped_at=moment))
        db.execute("INSERT OR IGNORE INTO no_input VALUES (?)", (id_,))
        db.execute(
            """UPDATE tasks SET job_id = (SELECT b.job_id FROM tasks b
                   WHERE b.id = (SELECT max(id) FROM tasks WHERE id < ?1 AND job_id IS NOT NULL)
                   AND b.job_id = (SELECT job_id FROM tasks WHERE id > ?1 AND job_id IS NOT NULL ORDER BY id LIMIT 1))
               WHERE id = ?1 AND job_id IS NULL""",
            (id_,),
        )
    db.execute(
        """UPDATE OR IGNORE tasks SET
               task_id = ifnull(i.task_id, tasks.task_id), job_id = ifnull(i.job_id, tasks.job_id),
               url_key = ifnull(i.url_key, tasks.url_key), parcel_id = ifnull(i.parcel_id, tasks.parcel_id)
           FROM indexed i WHERE i.id = tasks.id"""
    )
    return len(rows)


def _reopen(db: Database, now: float) -> int:
    """Completed tasks without a result are collected again, unless their page is already on its
    way."""
    lost = db.all(
        "SELECT id FROM tasks WHERE status = 'completed' AND id NOT IN (SELECT task FROM results)"
    )
    for (id_,) in lost:
        db.execute(
            # It was collected in time: what is collected again in its place does not expire.
            """UPDATE OR IGNORE tasks SET status = 'pending', owner = NULL, message_id = NULL, not_before = 0,
                   completed_at = NULL, deadline = iif(deadline <= ?, 9e15, deadline) WHERE id = ?""",
            (now, id_),
        )
        db.execute(
            """UPDATE tasks SET status = 'failed', error_type = 'result_lost',
                   error_message = 'the result was lost; another task for this page is open'
               WHERE id = ? AND status = 'completed'""",
            (id_,),
        )
        timeline.note(db, id_, "result lost", {}, now)
    return len(lost)


def _settle_jobs(db: Database, now: float) -> int:
    """Make jobs that are gone again, and open those with open tasks; returns how many were
    opened."""
    make_jobs(db, now)
    ended = db.all(ENDED_TOO_EARLY)
    for id_, key in ended:
        taken = db.one("SELECT 1 FROM jobs WHERE key = ? AND status <> 'done'", (key,))
        db.execute(
            "UPDATE jobs SET status = 'open', completed_at = NULL, key = ? WHERE id = ?",
            (f"{key}#{id_}" if taken else key, id_),
        )
    return len(ended)


def count_rows(db: Database, table: str) -> int:
    return int(db.all(f"SELECT count(*) FROM {table}")[0][0])


ENDED_TOO_EARLY = """
    SELECT id, key FROM jobs WHERE status = 'done' AND (
        EXISTS (SELECT 1 FROM tasks WHERE job_id = jobs.id AND status IN ('pending', 'processing'))
        OR EXISTS (SELECT 1 FROM job_links l JOIN tasks ON tasks.id = task WHERE l.job_id = jobs.id AND is_open))"""
"""Jobs that are done although a task of theirs is open."""
NEVER_ENDED = "(status IN ('failed', 'skipped', 'expired') AND completed_at IS NULL)"
"""Tasks in a final state that nothing has brought them into."""
ENDED_OTHERWISE = """
    SELECT e.task, e.kind FROM tasks t JOIN (
        SELECT task, kind, max(id) FROM events WHERE kind IN ('completed', 'failed', 'skipped', 'expired', 'poison',
            'unbundled', 'retry asked', 'handed out again', 'result lost') GROUP BY task) e ON e.task = t.id
    WHERE t.status IN ('failed', 'skipped', 'expired') AND e.kind IN ('completed', 'failed', 'skipped', 'expired')
        AND t.status <> e.kind"""
"""Tasks that have another final state than the one their timelines end with, and that one."""


SALVAGED = "salvaged "
"""The beginning of the key of a job whose row was lost: its file is not known until it is imported
again."""
_GAPS = "known_gaps"
_SHOWN = 8

_HIGHEST = """
    SELECT max(id) FROM (SELECT max(id) AS id FROM tasks UNION ALL SELECT max(task) FROM results
        UNION ALL SELECT max(task) FROM outbox UNION ALL SELECT max(task) FROM events
        UNION ALL SELECT max(task) FROM job_links UNION ALL SELECT max(task) FROM reports
        UNION ALL SELECT max(id) FROM temp.indexed)"""
"""The highest number of a task that anything tells of."""


class Gaps(msgspec.Struct, frozen=True):
    """Numbers without a row: none is ever removed, so each is a row that was lost."""

    tasks: int = 0
    events: int = 0


def prove(db: Database, now: float, noted_files: bool) -> dict[str, int]:
    """Note at each job what was lost of it; returns the losses, counted. Part of a transaction.

    `noted_files` says whether the files of each job were noted at all, so that a missing note is a
    loss.
    """
    gaps, known, between = _gaps(db), _known_gaps(db), _gaps_within_jobs(db)
    _forget_the_lost(db)
    left = msgspec.json.encode(_gaps(db)).decode()
    db.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (_GAPS, left))
    lost = sum(_lost_of(db, job, between.get(job.id, 0), now) for job in _jobs(db, noted_files))
    nowhere = gaps.tasks - known.tasks - lost
    if nowhere > 0:
        _note(
            db,
            _job_of_the_lost(db, now),
            f"{nowhere:,} tasks were lost, and with them which job they were of",
            now,
        )
    return {
        "tasks lost": lost + max(0, nowhere),
        "entries of timelines lost": max(0, gaps.events - known.events),
    }


def _forget_the_lost(db: Database) -> None:
    """Remove what still names a lost task: its number goes to a new one, which has nothing to do
    with it."""
    for table in ("job_links", "events", "validators", "reports"):
        db.execute(f"DELETE FROM {table} WHERE task NOT IN (SELECT id FROM tasks)")


def _gaps(db: Database) -> Gaps:
    [(highest,)] = db.all(_HIGHEST)
    [(tasks,)] = db.all("SELECT count(*) FROM tasks")
    [(events,)] = db.all("SELECT ifnull(max(id), 0) - count(*) FROM events")
    return Gaps((highest or 0) - tasks, events)


def _gaps_within_jobs(db: Database) -> dict[int, int]:
    """For each job how many of its tasks are missing, as the indexes say, or the numbers between
    two of its tasks."""
    between = db.all(
        """SELECT job_id, sum(id - before - 1) FROM (
               SELECT id, job_id, lag(id) OVER (ORDER BY id) AS before, lag(job_id) OVER (ORDER BY id) AS its_job
               FROM tasks)
           WHERE job_id = its_job GROUP BY 1"""
    )
    named = db.all(
        """SELECT job_id, count(*) FROM temp.indexed WHERE job_id IS NOT NULL AND id NOT IN (SELECT id FROM tasks)
           GROUP BY 1"""
    )
    found = dict(between)
    return found | {job: max(count, found.get(job, 0)) for job, count in named}


def _known_gaps(db: Database) -> Gaps:
    """What was lost before, and noted then."""
    row = db.one("SELECT value FROM meta WHERE key = ?", (_GAPS,))
    try:
        return msgspec.json.decode(row[0], type=Gaps) if row else Gaps()
    except msgspec.DecodeError:
        return Gaps()


class _Job(msgspec.Struct, frozen=True):
    """A job: what came in by its witnesses, and what is there."""

    id: int
    key: str
    importing: bool
    forgot_files: bool
    """Whether its files were not all in, and some of them are not known any more."""
    size: int
    linked: int
    rejected: int
    tasks: int
    links: int
    rejects: int
    no_input: int


def _jobs(db: Database, noted_files: bool) -> list[_Job]:
    rows = db.all(
        """SELECT id, key, source <> 'gateway' AND status = 'importing',
               ? AND source <> 'gateway' AND status = 'importing'
                   AND files > (SELECT count(*) FROM imports WHERE job_id = jobs.id),
               size, linked, rejected, (SELECT count(*) FROM tasks WHERE job_id = jobs.id),
               (SELECT count(*) FROM job_links WHERE job_id = jobs.id),
               (SELECT count(*) FROM rejected_rows WHERE job_id = jobs.id),
               (SELECT count(*) FROM temp.no_input JOIN tasks USING (id) WHERE job_id = jobs.id)
           FROM jobs WHERE NOT EXISTS (
               SELECT 1 FROM losses WHERE job_id = jobs.id AND kind = 'rows' AND settled_at IS NULL)""",
        (noted_files,),
    )
    return [_Job(*row) for row in rows]


def _lost_of(db: Database, job: _Job, between: int, now: float) -> int:
    """Note what a job has lost, and keep its witnesses; returns how many tasks that are."""
    if job.key.startswith(SALVAGED):
        what = f"its row was lost, and with it how many tasks it had and whether it was paused; {job.tasks:,} are left"
        _note(
            db, job.id, what + (f", and {between:,} between them were lost" if between else ""), now
        )
        db.execute(
            "UPDATE jobs SET size = ?, linked = ?, rejected = ? WHERE id = ?",
            (job.tasks + between, job.links, job.rejects, job.id),
        )
        return between
    tasks, links, rejects = job.size - job.tasks, job.linked - job.links, job.rejected - job.rejects
    if tasks > 0:
        _note(db, job.id, f"{tasks:,} of its {job.size:,} tasks were lost{_where(db, job.id)}", now)
    if job.no_input:
        _note(db, job.id, f"the input of {job.no_input:,} of its tasks was lost", now)
    if links > 0:
        _note(
            db,
            job.id,
            f"{links:,} of its {job.linked:,} rows that meant known tasks were lost",
            now,
        )
    if rejects > 0:
        _note(db, job.id, f"{rejects:,} of its {job.rejected:,} rejected rows were lost", now)
    if job.forgot_files:
        _note(db, job.id, "it was lost which of its files were read to their ends", now)
    elif job.importing and (tasks > 0 or links > 0 or rejects > 0 or job.no_input):
        # From now on a lost row is why it is one whose import is not complete.
        _note(db, job.id, "its import had been broken off before", now)
    # More than a witness knows is no loss: the witness is an older one.
    db.execute(
        "UPDATE jobs SET size = max(size, ?), linked = max(linked, ?), rejected = max(rejected, ?) WHERE id = ?",
        (job.tasks, job.links, job.rejects, job.id),
    )
    return max(0, tasks)


def _where(db: Database, job_id: int) -> str:
    """The lines of the input that no row is left of; blank ones and those within a cell are among
    them."""
    columns = "file_number, source_line, source_item"
    rows = db.execute(
        f"""SELECT {columns} FROM tasks WHERE job_id = ?1 AND source_line > 0
            UNION SELECT {columns} FROM job_links WHERE job_id = ?1 AND source_line > 0
            UNION SELECT {columns} FROM rejected_rows WHERE job_id = ?1 ORDER BY 1, 2, 3""",
        (job_id,),
    )
    found = list(_gaps_between(rows))
    if not found:
        return ""
    more = f" and {len(found) - _SHOWN:,} more places" if len(found) > _SHOWN else ""
    return f"; no row is left of the lines {', '.join(found[:_SHOWN])}{more}"


def _gaps_between(rows: Iterable[tuple[int, int, int]]) -> Iterator[str]:
    """The lines without a row in each file, and the items without one on a line that has
    several."""
    last_file, last, last_item = 0, 1, 0  # the first line may be a header
    for file, line, item in rows:
        if file != last_file:
            last_file, last, last_item = file, 1, 0
        if line > last + 1:
            yield _range(last + 1, line - 1) + _of_file(file)
        if line > last:
            last, last_item = line, 0
        if item > last_item + 1:
            yield f"{line} (items {_range(last_item + 1, item - 1)})" + _of_file(file)
        last_item = item


def _range(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first}–{last}"


def _of_file(number: int) -> str:
    return f" of file {number + 1}" if number else ""


def _note(db: Database, job_id: int, what: str, now: float) -> None:
    """Note a loss, and let the job be imported again: it is one whose import is not complete."""
    losses.note(db, job_id, what, now)
    db.execute("UPDATE imports SET ended_at = NULL WHERE job_id = ?", (job_id,))
    db.execute(
        """UPDATE jobs SET status = 'importing', completed_at = NULL,
               key = iif(EXISTS (SELECT 1 FROM jobs other
                                 WHERE other.key = jobs.key AND other.status <> 'done' AND other.id <> jobs.id),
                         key || '#' || id, key)
           WHERE id = ?""",
        (job_id,),
    )


def _job_of_the_lost(db: Database, now: float) -> int:
    """A job for tasks that were lost without a trace of theirs, so that somebody is asked about
    them."""
    return make_job(db, None, "lost-tasks", now)


def make_job(db: Database, id_: int | None, name: str, now: float) -> int:
    """A job that the ledger has lost, under its number or a new one; one that is there is left as
    it is."""
    row = db.one("SELECT id FROM jobs WHERE id = ?1 OR (?1 IS NULL AND name = ?2)", (id_, name))
    if row:
        return int(row[0])
    new_id = "(SELECT 1 + max(coalesce((SELECT max(id) FROM jobs), 0), coalesce((SELECT max(job_id) FROM tasks), 0)))"
    free = (
        name
        if db.one("SELECT 1 FROM jobs WHERE name = ?", (name,)) is None
        else f"{name}-salvaged-{id_}"
    )
    [(made,)] = db.all(
        f"""INSERT INTO jobs (id, name, key, status, queue, source, batch_size, created_at)
            VALUES (coalesce(?1, {new_id}), ?2, '{SALVAGED}' || ?2, 'open', 'default', 'salvage', 100, ?3)
            RETURNING id""",
        (id_, free, now),
    )
    return int(made)


def make_jobs(db: Database, now: float) -> None:
    """Make every job again that something is left of, but its own row; it is called by its file, or
    as it was told."""
    parts = ("tasks", "job_links", "rejected_rows", "imports")
    ids = " UNION ".join(f"SELECT job_id FROM {part} WHERE job_id IS NOT NULL" for part in parts)
    for (id_,) in db.all(f"SELECT job_id FROM ({ids}) WHERE job_id NOT IN (SELECT id FROM jobs)"):
        [(key, file)] = db.all(
            """SELECT max(key), ifnull(max(file), (SELECT max(source_file) FROM tasks WHERE job_id = ?1))
               FROM imports WHERE job_id = ?1""",
            (id_,),
        )
        named = key and key.startswith("name:")
        make_job(
            db,
            id_,
            key.removeprefix("name:") if named else Path(file).name if file else f"salvaged-{id_}",
            now,
        )
    db.execute(
        f"""UPDATE jobs SET (source_file, queue, created_at) = (
                SELECT ifnull((SELECT max(file) FROM imports WHERE job_id = jobs.id), max(source_file)), max(queue),
                    min(imported_at)
                FROM tasks WHERE job_id = jobs.id OR id IN (SELECT task FROM job_links WHERE job_id = jobs.id))
            WHERE key LIKE '{SALVAGED}%' AND source_file IS NULL
            AND EXISTS (SELECT 1 FROM tasks
                        WHERE job_id = jobs.id OR id IN (SELECT task FROM job_links WHERE job_id = jobs.id))"""
    )


def count_files(db: Database) -> None:
    """See that no new file of a job gets a number that rows of it have already, where the job's own
    count was lost."""
    rows = " UNION ALL ".join(
        f"SELECT max(file_number) AS number FROM {table} WHERE job_id = jobs.id"
        for table in ("tasks", "job_links", "rejected_rows")
    )
    db.execute(
        f"""UPDATE jobs SET files = max(files, ifnull((SELECT 1 + max(number) FROM ({rows})), 0))
            WHERE source <> 'gateway'"""
    )


def find_keys(db: Database) -> None:
    """Let jobs whose rows were lost be found by their files again, where that is known."""
    db.execute(
        f"""UPDATE OR IGNORE jobs SET key = (SELECT max(key) FROM imports WHERE job_id = jobs.id)
            WHERE key LIKE '{SALVAGED}%' AND EXISTS (SELECT 1 FROM imports WHERE job_id = jobs.id)"""
    )
