"""Removes finished jobs with all that belongs to them, some rows at a time.

A job is first noted in `meta` as one that goes: from then on no import shares its tasks, and no
retry opens them. When it is sure that nothing needs it, one commit removes its row, and with it the
job disappears from every list. What is left of it are rows without a job, which the note in `meta`
explains; they go in small commits. Killed anywhere, the next call continues.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from crawler.db.connection import Database, writing
from crawler.db.jobs import COLUMNS, as_job
from crawler.db.results import LAST_SEQ
from crawler.db.store import (
    IN_PENDING,
    LISTED,
    REMOVED_NAME,
    REMOVING,
    Connections,
    Part,
    as_json,
)
from crawler.files import session_path, webhook_name
from crawler.models import Job, TaskStatus

KNOWN_GAPS = "known_gaps"
"""Key in `meta` of how many numbers of tasks and events have no row although nothing was lost."""
MAX_ROWS = 2000
"""Maximum rows of input that are removed in one commit."""
MAX_TASKS_PER_LOOK = 5000
FREE_PAGES_PER_STEP = 250
"""Pages that one step gives back to the disk: about a millisecond of work each ten."""

ENDED = (TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.SKIPPED, TaskStatus.EXPIRED)
ABOVE_ALL = 1 << 62
"""A number above those of all tasks."""
_REASONS = {
    # SQLite would give the highest number of a job, a task or an event out again.
    "it is the newest job": "SELECT ?1 = (SELECT max(id) FROM jobs)",
    "it has the newest task": """
        SELECT ?1 = (SELECT job_id FROM tasks ORDER BY id DESC LIMIT 1)""",
    "it has the newest entry in a timeline": """
        SELECT ?1 = (SELECT job_id FROM tasks
                     WHERE id = (SELECT task FROM events ORDER BY id DESC LIMIT 1))
            OR -?1 = (SELECT task FROM events ORDER BY id DESC LIMIT 1)""",
    "it has open tasks": """
        SELECT EXISTS (SELECT 1 FROM tasks
                       WHERE job_id = ?1 AND status IN ('pending', 'processing'))
            OR EXISTS (SELECT 1 FROM job_links l JOIN tasks ON id = task
                       WHERE l.job_id = ?1 AND is_open)""",
    "it has losses that are neither imported again nor accepted": """
        SELECT EXISTS (SELECT 1 FROM losses WHERE job_id = ?1 AND settled_at IS NULL)""",
    "a Gateway has not got all of it yet": """
        SELECT EXISTS (SELECT 1 FROM outbox o JOIN tasks t ON t.id = o.task
                       WHERE o.state = 'ready' AND t.job_id = ?1)
            OR EXISTS (SELECT 1 FROM reports o JOIN tasks t ON t.id = o.task
                       WHERE o.state = 'ready' AND t.job_id = ?1)""",
}
"""Why a finished job stays, each with the statement that tells."""
_NOT_FOR_GATEWAY = """NOT EXISTS (SELECT 1 FROM outbox WHERE task = t.id AND state = 'ready')
    AND NOT EXISTS (SELECT 1 FROM reports WHERE task = t.id AND state = 'ready')"""
UNEXPORTED = "it has results that were never exported, archived, bundled or delivered"
_UNEXPORTED = """
    SELECT EXISTS (SELECT 1 FROM tasks t JOIN outbox o ON o.task = t.id
        JOIN results r ON r.task = t.id
        WHERE t.id IN (SELECT value FROM json_each(?1))
        AND o.state <> 'synced' AND o.archived_at IS NULL
        AND NOT EXISTS (
            SELECT 1 FROM exports x WHERE (x.job_id IS NULL OR x.job_id = t.job_id)
            AND x.horizon >= (SELECT max(id) FROM events
                              WHERE task = t.id
                              AND kind IN ('completed', 'unbundled', 'replayed'))
            AND (x.since IS NULL OR x.since <= r.scraped_at)
            AND (x.roles IS NULL OR t.role IN (SELECT value FROM json_each(x.roles)))
            AND (x.site IS NULL OR x.site = r.site)))"""
_SHARES = """
    SELECT DISTINCT t.job_id, l.job_id, j.name FROM job_links l JOIN tasks t ON t.id = l.task
    JOIN jobs j ON j.id = l.job_id
    WHERE l.job_id <> t.job_id AND t.job_id IN (SELECT value FROM json_each(?))"""
"""Of these jobs: whose tasks another job has, too, and its number and name."""
_OF_JOB = {
    "imports": "job_id = ?1",
    "crawl_counts": "job_id = ?1",
    "listing_conflicts": "job_id = ?1",
    "site_calls": "job_id = ?1",
    "batches": "job_id = ?1",
    "batch_keys": "job_id = ?1",
    "webhooks": "job_id = ?1",
    "losses": "job_id = ?1",
    "exports": "job_id = ?1",
    "jobs": "id = ?1",
    "meta": "key GLOB 'given up ' || ?1 || ' *'",
}
"""What goes together with a job's row."""
_ROWS = {
    "job_links": "job_id, task, file_number, source_line, source_item",
    "rejected_rows": "job_id, file_number, source_line, source_item",
}
_OF_TASKS = (
    "results", "outbox", "events", "reports", "record_versions", "result_files", "job_links",
)  # fmt: skip
"""What goes together with tasks."""


class Kept(msgspec.Struct, frozen=True):
    """An old job that stays, and why."""

    job: str
    reason: str


class Sizes(NamedTuple):
    """How many tasks and results a job has."""

    tasks: int
    results: int


class GoingTask(NamedTuple):
    """A task of a job that has gone."""

    id: int
    task_id: str


class Retention(Part):
    """Removes finished jobs."""

    def __init__(self, store: Connections, sessions: Path) -> None:
        """`sessions` is the folder of the jobs' sessions."""
        super().__init__(store)
        self._sessions = sessions
        self.held_s = 0.0
        """For how long steps of removals have kept others from writing."""

    def old_jobs(self, before: float) -> list[Job]:
        """The jobs that ended before a time, the oldest first."""
        rows = self._db.all(
            f"""SELECT {COLUMNS} FROM jobs WHERE status = 'done' AND completed_at < ?
                ORDER BY id""",
            (before,),
        )
        return [as_job(row) for row in rows]

    def reason_to_keep(
        self, job: Job, also_unexported: bool, rest: Callable[[float], None]
    ) -> str | None:
        """Why a finished job stays, other jobs aside; `rest` is told how long each look took."""
        if reason := _reason(self._db, job.id):
            return reason
        return UNEXPORTED if not also_unexported and self._is_unexported(job, rest) else None

    def _is_unexported(self, job: Job, rest: Callable[[float], None]) -> bool:
        last, began = 0, time.perf_counter()
        while tasks := self._db.column(
            """SELECT id FROM tasks WHERE job_id = ? AND status = 'completed' AND id > ?
               ORDER BY id LIMIT ?""",
            (job.id, last, MAX_TASKS_PER_LOOK),
        ):
            if self._db.value(_UNEXPORTED, (as_json(tasks),)):
                return True
            last = tasks[-1]
            rest(time.perf_counter() - began)
            began = time.perf_counter()
        return False

    def sizes(self, job: Job) -> Sizes:
        """How much of a job would go."""
        by_status = dict(
            self._db.all(
                "SELECT status, count(*) FROM tasks WHERE job_id = ? GROUP BY 1", (job.id,)
            )
        )
        return Sizes(sum(by_status.values()), by_status.get(TaskStatus.COMPLETED, 0))

    def intend(self, jobs: Sequence[Job]) -> None:
        """Note that these jobs are to go: from now on nobody else gets a share in their tasks."""
        with writing(self._durable):
            self._durable.executemany(
                "INSERT OR IGNORE INTO meta (key, value) VALUES (?, '')",
                [(f"{REMOVING}{job.id}",) for job in jobs],
            )

    def forget_intentions(self) -> None:
        """Let jobs stay that are noted but still have their row: a call was killed."""
        with writing(self._durable):
            self._durable.execute(
                f"""DELETE FROM meta WHERE key IN (SELECT '{REMOVING}' || id FROM jobs)"""
            )

    def shared(self, jobs: Collection[Job]) -> dict[int, str]:
        """Those of these jobs, by number, whose tasks a job has that stays, with its name."""
        shares = self._db.all(_SHARES, (as_json([job.id for job in jobs]),))
        going, kept = {job.id for job in jobs}, dict[int, str]()
        while found := {a: name for a, b, name in shares if a in going and b not in going}:
            kept |= found
            going -= found.keys()
        return kept

    def begin(self, jobs: Sequence[Job]) -> list[Job]:
        """Remove these jobs from all lists; returns those that something needs since."""
        db, needed = self._durable, []
        with writing(db):
            for job in jobs:
                if _reason(db, job.id):
                    needed.append(job)
                    db.execute("DELETE FROM meta WHERE key = ?", (f"{REMOVING}{job.id}",))
                    continue
                # While nobody can begin another job of this name.
                for name in (job.name, webhook_name(job.name)):
                    session_path(self._sessions, name).unlink(missing_ok=True)
                for table, condition in _OF_JOB.items():
                    db.execute(f"DELETE FROM {table} WHERE {condition}", (job.id,))
                db.execute(
                    "UPDATE meta SET value = ? WHERE key = ?", (job.name, f"{REMOVING}{job.id}")
                )
                db.execute(
                    "INSERT OR IGNORE INTO meta (key, value) VALUES (?, '')",
                    (f"{REMOVED_NAME}{job.name}",),
                )
        return needed

    def begun(self) -> list[tuple[int, str]]:
        """Number and name of each job that has gone but has left rows."""
        return begun(self._db)

    def next_tasks(self, job_id: int, status: str, below: int, limit: int) -> list[GoingTask]:
        """The next tasks of a job that has gone; the highest numbers first.

        It is noted that their results leave pending/, so that their files can be removed before
        their rows: the other way round, a kill would leave files that no ledger knows.
        """
        tasks = _next_tasks(self._db, job_id, status, below, limit)
        due = self._db.column(
            f"SELECT task FROM outbox o WHERE task {LISTED} AND {IN_PENDING}", (_listed(tasks),)
        )
        if due:
            with self._holding_up():
                self._db.execute(
                    f"UPDATE outbox SET archived_at = ? WHERE task {LISTED}",
                    (self._store.now(), as_json(due)),
                )
        return tasks

    def remove_rows(self, job_id: int) -> bool:
        """Remove some rows of input of a job that has gone; False once there are none."""
        with self._holding_up():
            return remove_rows(self._db, job_id)

    def remove_tasks(self, tasks: Sequence[GoingTask]) -> Sizes:
        """Remove tasks of a job that has gone, with all that belongs to them."""
        with self._holding_up():
            return remove_tasks(self._db, tasks)

    @contextmanager
    def _holding_up(self) -> Iterator[None]:
        """A write transaction, whose time counts in `held_s`."""
        with writing(self._db):
            began = time.perf_counter()
            yield
        self.held_s += time.perf_counter() - began

    def finish(self, job_id: int) -> bool:
        """Forget a job of which nothing is left; False if something is."""
        with writing(self._durable):
            return finish(self._durable, job_id)

    # Room

    def gives_room_back(self) -> bool:
        """Whether free pages of the database can be given back to the disk."""
        return int(self._db.value("PRAGMA auto_vacuum")) == 2

    def free_pages(self) -> int:
        """How many pages of the database hold nothing."""
        return int(self._db.value("PRAGMA freelist_count"))

    def file_bytes(self) -> int:
        """How large the database is."""
        pages, size = (self._db.value(f"PRAGMA {name}") for name in ("page_count", "page_size"))
        return int(pages * size)

    def give_back(self) -> None:
        """Give some free pages back to the disk."""
        self._db.all(f"PRAGMA incremental_vacuum({FREE_PAGES_PER_STEP})")

    def write_log_back(self) -> None:
        """Write the log back as far as readers allow, which shortens the database file."""
        self._db.all("PRAGMA wal_checkpoint(PASSIVE)")


# Functions that are part of a transaction


def begun(db: Database) -> list[tuple[int, str]]:
    """Number and name of each job that has gone but has left rows."""
    return [
        (int(key.removeprefix(REMOVING)), name)
        for key, name in db.all(
            """SELECT key, value FROM meta WHERE key GLOB ? || '*'
               AND CAST(substr(key, ?) AS INTEGER) NOT IN (SELECT id FROM jobs)""",
            (REMOVING, len(REMOVING) + 1),
        )
    ]


def remove_rows(db: Database, job_id: int) -> bool:
    """Remove some rows of input of a job; False if there are none."""
    for table, key in _ROWS.items():
        db.execute(
            f"""DELETE FROM {table} WHERE job_id = ?1 AND ({key}) IN (
                    SELECT {key} FROM {table} WHERE job_id = ?1 LIMIT {MAX_ROWS})""",
            (job_id,),
        )
        if db.changes():
            return True
    db.execute(  # the places of rows that are no URL
        f"DELETE FROM events WHERE id IN (SELECT id FROM events WHERE task = -?1 LIMIT {MAX_ROWS})",
        (job_id,),
    )
    if removed := db.changes():
        _note_gaps(db, 0, removed)
        return True
    # Results of a bundle may have been found on pages of this job.
    for bundled in db.column("SELECT id FROM jobs WHERE source = 'bundle'"):
        db.execute(
            """UPDATE tasks SET parent = NULL WHERE job_id = ?1 AND parent NOT NULL
               AND (SELECT p.job_id FROM tasks p WHERE p.id = tasks.parent) = ?2""",
            (bundled, job_id),
        )
    return False


def _next_tasks(db: Database, job_id: int, status: str, below: int, limit: int) -> list[GoingTask]:
    """From the highest number on: a page has a lower number than those that were found on it."""
    rows = db.all(
        f"""SELECT id, task_id FROM tasks t WHERE job_id = ?1 AND status = ?2 AND id < ?3
            AND {_NOT_FOR_GATEWAY} ORDER BY id DESC LIMIT ?4""",
        (job_id, status, below, limit),
    )
    return [GoingTask(*row) for row in rows]


def _listed(tasks: Sequence[GoingTask]) -> str:
    return as_json([task.id for task in tasks])


def remove_tasks(db: Database, tasks: Sequence[GoingTask]) -> Sizes:
    """Remove tasks with all that belongs to them, except those that something needs since."""
    ids = db.column(
        f"SELECT id FROM tasks t WHERE id {LISTED} AND is_open IS NULL AND {_NOT_FOR_GATEWAY}",
        (_listed(tasks),),
    )
    listed = as_json(ids)
    last_seq = db.value(f"SELECT max(seq) FROM results WHERE task {LISTED}", (listed,))
    db.execute(
        f"""DELETE FROM validators WHERE task {LISTED}
            AND url_key IN (SELECT url_key FROM tasks WHERE id {LISTED})""",
        (listed, listed),
    )
    removed: dict[str, int] = {}
    for table in _OF_TASKS:
        db.execute(f"DELETE FROM {table} WHERE task {LISTED}", (listed,))
        removed[table] = db.changes()
    db.execute(f"DELETE FROM tasks WHERE id {LISTED}", (listed,))
    if ids:
        _note_gaps(db, len(ids), removed["events"])
    if last_seq is not None:
        note_seq(db, last_seq)
    return Sizes(len(ids), removed["results"])


def finish(db: Database, job_id: int) -> bool:
    """Forget a job of which nothing is left; False if something is."""
    db.execute(
        """DELETE FROM meta WHERE key = ?1 || ?2
           AND NOT EXISTS (SELECT 1 FROM tasks WHERE job_id = ?2)""",
        (REMOVING, job_id),
    )
    return db.changes() > 0


def remove_all(db: Database) -> Iterator[str]:
    """Remove all that jobs which have gone have left; gives the ids of the removed tasks."""
    for job_id, _ in begun(db):
        while remove_rows(db, job_id):
            pass
        for status in ENDED:
            below = ABOVE_ALL
            while tasks := _next_tasks(db, job_id, status, below, MAX_ROWS):
                remove_tasks(db, tasks)
                yield from (task.task_id for task in tasks)
                below = tasks[-1].id
        finish(db, job_id)


def _reason(db: Database, job_id: int) -> str | None:
    for reason, sql in _REASONS.items():
        if db.value(sql, (job_id,)):
            return reason
    return None


def _note_gaps(db: Database, tasks: int, events: int) -> None:
    """Note that these numbers were not lost: gaps in numbers prove losses to the doctor."""
    noted: dict[str, Any] = msgspec.json.decode(
        db.value("SELECT value FROM meta WHERE key = ?", (KNOWN_GAPS,), "{}")
    )
    known = {
        "tasks": noted.get("tasks", 0) + tasks,
        "events": noted.get("events", 0) + events,
    }
    db.execute(
        "INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (KNOWN_GAPS, as_json(known))
    )


def note_seq(db: Database, removed: int) -> None:
    """See that no number of a result comes again."""
    db.execute(
        """INSERT INTO meta (key, value) SELECT ?1, ?2
           WHERE ?2 > ifnull((SELECT max(seq) FROM results), 0)
           ON CONFLICT DO UPDATE SET
               value = max(CAST(value AS INTEGER), CAST(excluded.value AS INTEGER))""",
        (LAST_SEQ, removed),
    )
