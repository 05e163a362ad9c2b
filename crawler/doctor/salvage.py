"""A damaged ledger made readable again: what can be read goes into a new file, which then takes its
place."""

import contextlib
import mmap
import secrets
import shutil
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import msgspec

from crawler import urls
from crawler.db import raw_pages, schema, timeline
from crawler.db.connection import Database, connect, writing
from crawler.db.results import PRUNED
from crawler.doctor import leaves
from crawler.doctor.columns import STORED, damage_passed_over, has_index, index_of, mend, opened
from crawler.doctor.lost_rows import count_files, find_keys, make_job, make_jobs, prove
from crawler.errors import CrawlerError, StoreError, UrlError
from crawler.fetch.body import decoded as without_codings
from crawler.fetch.wire import stored_values
from crawler.files import read_regular
from crawler.models import NO_DEADLINE, Raw, encoded_input

_TYPES: dict[str, tuple[type, ...]] = {
    "INTEGER": (int,),
    "REAL": (int, float),
    "TEXT": (str,),
    "BLOB": (bytes,),
}


class Column(msgspec.Struct, frozen=True):
    """A stored column of one of the ledger's tables."""

    name: str
    type: str
    required: bool
    key: int
    given: bool
    """Whether it has a value of its own where none is given."""


def salvage(
    damaged: Path, target: Path, pending: Path, raw: Path, now: float
) -> tuple[dict[str, int], dict[str, int]]:
    """Put all that can be read into a new ledger; returns the rows of each table, and what was done
    besides.

    The damaged file is only read, and there is no target where that fails.
    """
    copy = target.with_name(f".{target.name}")
    try:
        _copy(damaged, copy)
        with contextlib.closing(connect(target)) as fresh:
            version = _version(copy)
            saved, mended = _read_all(copy, version, fresh, pending)
            done = mended | settle(
                fresh, pending, raw, now, noted_files=version >= schema.WITH_IMPORTS
            )
            _require_sound(fresh, damaged)
    except BaseException:
        _remove(target)
        raise
    finally:
        _remove(copy)
    return saved, done


def _require_sound(fresh: Database, damaged: Path) -> None:
    if fresh.one("SELECT 1 FROM tasks") is None:
        raise StoreError(f"nothing could be read from {damaged}; it was left as it is")
    if fresh.all("PRAGMA integrity_check") != [("ok",)]:
        raise StoreError(f"what was read from {damaged} is not sound; it was left as it is")


def _remove(path: Path) -> None:
    for ending in ("", "-wal", "-shm", "-journal"):
        Path(f"{path}{ending}").unlink(missing_ok=True)


def _read_all(
    copy: Path, version: int, fresh: Database, pending: Path
) -> tuple[dict[str, int], dict[str, int]]:
    with writing(fresh):
        # Read with the schema that it was written with: another one asks for columns that are not
        # there, and finds its own tables in the rows of others.
        schema.build(fresh, 0, version)
        tables = {name: _columns(fresh, name) for (name,) in fresh.all(_TABLES)}
        fresh.execute(INDEXED)
        broken = [name for name in tables if not _read(copy, fresh, name, tables[name])]
        _read_leaves(copy, fresh, {name: tables[name] for name in broken})
        if "tasks" in broken:
            _read_indexes(copy, fresh)
        if version < len(schema.MIGRATIONS):
            schema.build(fresh, version)
        for table in ("results", "events"):
            fresh.execute(f"DELETE FROM {table} WHERE {SENSELESS[table]}")
        # An event looks like a loss that was not settled yet.
        fresh.execute("DELETE FROM losses WHERE kind NOT IN ('rows', 'pages')")
        fresh.execute(
            f"UPDATE tasks SET task_id = lower(hex(randomblob(16))) WHERE {SENSELESS['tasks']}"
        )
        saved = {name: _count(fresh, name) for (name,) in fresh.all(_TABLES)}
        mended = mend(fresh, pending, index_of(copy))
    return saved, {what: count for what, count in mended.items() if count}


SENSELESS = {
    "results": """NOT json_valid(record) OR json_type(record) <> 'object' OR scraped_at NOT BETWEEN 0 AND 4e9
                  OR length(body_sha256) <> 64""",
    "events": "NOT json_valid(detail) OR json_type(detail) <> 'object' OR at NOT BETWEEN 0 AND 4e9",
    "tasks": "length(task_id) <> 32 OR task_id GLOB '*[^0-9a-f]*'",
}
"""Rows that SQLite reads, but nobody else can: a database has no checksums."""
_UNKNOWN = "state NOT IN ('ready', 'synced', 'rejected', 'held')"
UNKNOWN_STATES = f"""(SELECT count(*) FROM outbox WHERE {_UNKNOWN}) + (SELECT count(*) FROM reports WHERE {_UNKNOWN})"""
"""How much would never be sent, nor be counted."""
_TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"


def _columns(db: Database, table: str) -> list[Column]:
    return [
        Column(row[1], row[2], bool(row[3]), row[5], row[4] is not None)
        for row in db.all(f"PRAGMA table_info({table})")
    ]


def _version(copy: Path) -> int:
    """The schema that a damaged ledger was written with: the oldest one that has all its columns,
    or the newest."""
    told, there = 0, set[tuple[str, str]]()
    with damage_passed_over(), opened(copy) as db:
        [(told,)] = db.all("PRAGMA user_version")
        there = _all_columns(db)
    with contextlib.closing(Database(":memory:")) as reference:
        for version in range(1, len(schema.MIGRATIONS)):
            schema.build(reference, version - 1, version)
            if version >= told and there and there <= _all_columns(reference):
                return version
    return len(schema.MIGRATIONS)


def _all_columns(db: Database) -> set[tuple[str, str]]:
    return {(table, column.name) for (table,) in db.all(_TABLES) for column in _columns(db, table)}


def _copy(damaged: Path, copy: Path) -> None:
    """A copy with everything that was still in the log, so that it is one file."""
    damaged = damaged.resolve()  # the log of a linked file is where that is
    for ending in ("", "-wal"):
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(f"{damaged}{ending}", f"{copy}{ending}")
    with contextlib.suppress(apsw.Error), contextlib.closing(apsw.Connection(str(copy))) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _read(copy: Path, fresh: Database, table: str, columns: list[Column]) -> bool:
    """Read a table from its beginning, and where that breaks off from its end; says whether that
    was all of it."""
    key = [column.name for column in sorted(columns, key=lambda c: c.key) if column.key]
    for order in ("ASC", "DESC"):
        with damage_passed_over(), opened(copy) as db:
            there = {column.name for column in _columns(db, table)}
            if not there.issuperset(key):
                return False  # the definition of the table is damaged
            names = [column.name for column in columns if column.name in there]
            by = ", ".join(f"{name} {order}" for name in key)
            for row in db.execute(
                f"SELECT {', '.join(names)} FROM {table} NOT INDEXED ORDER BY {by}"
            ):
                _insert(fresh, table, names, row)
            return order == "ASC"
    return False


def _read_leaves(copy: Path, fresh: Database, tables: dict[str, list[Column]]) -> None:
    """Whatever else the pages of the file hold for these tables; what is there already is not
    touched."""
    if not tables or not copy.exists() or copy.stat().st_size < 512:
        return
    with copy.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for rowid, values in leaves.rows(data):
            for table, columns in tables.items():
                if _fits(columns, values):
                    names = [column.name for column in columns[: len(values)]]
                    _insert(fresh, table, names, [rowid, *values[1:]])
                    break


INDEXED = """
    CREATE TEMP TABLE IF NOT EXISTS indexed (
        id INTEGER PRIMARY KEY, task_id TEXT, url_key BLOB, parcel_id TEXT, job_id INTEGER);
    CREATE TEMP TABLE IF NOT EXISTS no_input (id INTEGER PRIMARY KEY)"""
"""What the indexes still know of tasks whose rows are lost: not their URLs, but whose they are; and
the tasks whose input is lost."""
_INDEXES = {
    "tasks_by_task_id": ("task_id",),
    "tasks_by_url": ("url_key", "parcel_id"),
    "tasks_by_job": ("job_id",),
}


def _read_indexes(copy: Path, fresh: Database) -> None:
    """Read what each index of the tasks holds by itself, from its beginning, and where that breaks
    off from its end."""
    for index, columns in _INDEXES.items():
        names = ", ".join(columns)
        put = f"""INSERT INTO indexed (id, {names}) VALUES (?, {", ".join("?" * len(columns))})
                  ON CONFLICT DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in columns)}"""
        for order in ("ASC", "DESC"):
            by = ", ".join(f"{name} {order}" for name in columns)
            with damage_passed_over(), opened(copy) as db:
                if has_index(db, index):
                    for row in db.execute(
                        f"SELECT id, {names} FROM tasks INDEXED BY {index} ORDER BY {by}"
                    ):
                        fresh.execute(put, row)
                break
    fresh.execute(
        """DELETE FROM indexed WHERE id IN (SELECT id FROM tasks) OR id < 1
               OR length(task_id) <> 32 OR task_id GLOB '*[^0-9a-f]*' OR task_id IN (SELECT task_id FROM tasks)"""
    )


def _fits(columns: list[Column], values: list[leaves.Value]) -> bool:
    """Whether these can be the values of a row: of the right types, without the columns that were
    added later."""
    return (
        bool(values)
        and values[0] is None  # the place of the rowid
        and len(values) <= len(columns)
        and not any(column.required and not column.given for column in columns[len(values) :])
        and all(
            not column.required if value is None else isinstance(value, _TYPES[column.type])
            for column, value in zip(columns[1:], values[1:], strict=False)
        )
    )


def _insert(fresh: Database, table: str, names: list[str], row: Iterable[Any]) -> None:
    marks = ", ".join("?" * len(names))
    # The new ledger has an id of its own, which must give way to the old one: messages carry that.
    verb = "REPLACE" if table == "meta" else "IGNORE"
    fresh.execute(
        f"INSERT OR {verb} INTO {table} ({', '.join(names)}) VALUES ({marks})", tuple(row)
    )


# What the rows say about each other, made true again


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
        jobs = _count(db, "jobs")
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
        done["jobs made again"] = _count(db, "jobs") - jobs
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
    head, received = raw_pages.read(raw, place)
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


def _count(db: Database, table: str) -> int:
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
