"""Batches: the URLs of a session, as tasks of their own, and their ends in the order of commits."""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from crawler.db.connection import Database, reading, writing
from crawler.db.imports import RejectedRow, free_name, open_if_read
from crawler.db.jobs import COLUMNS as JOB_COLUMNS
from crawler.db.jobs import as_job
from crawler.db.links import PAGES_LEFT, Start, add_starts
from crawler.db.store import LISTED, Part, as_json, row_crc32
from crawler.db.tasks import storable
from crawler.db.timeline import note
from crawler.errors import SessionCancelled
from crawler.models import NO_DEADLINE, Job, JobOptions, JobStatus, NewTask, encoded_input

SOURCE = "batch"
DIRECT = "direct:"
"""Prefix of the queue of a batch that a process of its own works on. No worker takes tasks from
there."""
MAX_EVENTS_PER_READ = 5000
_ENDED = "('completed', 'failed', 'skipped', 'expired')"
_ENDS = "('completed', 'failed', 'skipped', 'expired', 'poison')"
"""What the timeline calls the end of a task."""
NO_URL = "no url"
"""What the timeline calls a row that no task could be made of. It gives the row its place among the
ends of tasks; its number of a task is the negative one of the job."""
_NUMBERED = """SELECT detail ->> '$.call', detail ->> '$.line' FROM events WHERE task = -?1"""
"""The rows of a session that have such a place."""
_NO_PAGE = """(role = 'sitemap' OR method = 'LINKS'
    OR (status = 'skipped' AND error_type = 'redirected')) IS TRUE"""
"""Whether a task of a crawl stands for no page of its own."""
_FAILED = f"""status IN ('failed', 'expired') OR (status = 'skipped' AND NOT {_NO_PAGE}
    AND error_type <> 'cancelled' AND (role IS NULL OR role = 'start'
        OR error_type NOT IN ('out_of_scope', 'login_page', 'login_wall')))"""
"""Whether a task should have brought a page and did not. Links of a crawl may lead to where it may
not go."""
_ROWS = """
    SELECT source_line AS line, id AS task, NULL AS reason, NULL AS url
    FROM tasks WHERE job_id = ?1 AND file_number = ?2 AND source_line NOT NULL
    UNION ALL SELECT source_line, task, NULL, NULL FROM job_links
    WHERE job_id = ?1 AND file_number = ?2
    UNION ALL SELECT source_line, NULL, reason, text FROM rejected_rows
    WHERE job_id = ?1 AND file_number = ?2 ORDER BY line"""


def key_of(client: str, session_id: str) -> str:
    """The key of the job of a session."""
    return f"{SOURCE}:{len(client)}:{client}:{session_id}"


def session_of(key: str) -> tuple[str, str] | None:
    """The client and the session that a job's key names; None for another key."""
    source, _, rest = key.partition(":")
    length, _, names = rest.partition(":")
    if source != SOURCE or not length.isdecimal():
        return None
    return names[: int(length)], names[int(length) + 1 :]


class NewBatch(NamedTuple):
    """The URLs of one call, and the session that they belong to."""

    client: str
    """The name of a token of the API; empty for programs on this machine."""
    session_id: str
    checksum: str
    """Of its URLs: a call that comes again is known by it."""
    direct: bool
    """Whether a process of its own fetches them, and no worker."""
    queue: str
    options: JobOptions
    shown: dict[str, Any]
    """How its pages are shown; kept for who asks later."""
    deadline: float | None = None


class Batch(NamedTuple):
    """A session: its job, and what was asked for."""

    job: Job
    client: str
    session_id: str
    shown: dict[str, Any]


class Asked(NamedTuple):
    """One URL of a call, in the order of the call: its task, or why there is none."""

    line: int
    task: int | None
    reason: str | None
    url: str | None


class TaskOutcome(NamedTuple):
    """How a task ended, or where it stands."""

    task_id: str
    url: str
    status: str
    attempts: int
    error_type: str | None
    error_message: str | None
    completed_at: float | None
    bytes: int | None
    content_type: str | None
    fetch_ms: float | None
    worker: str | None
    """The process that ended it."""


class Failure(NamedTuple):
    """A page of a session that was not collected, and why."""

    task_id: str
    url: str
    reason: str | None
    message: str | None
    completed_at: float | None


class Ends(NamedTuple):
    """Tasks of a batch that have ended, and rows that are no URL, in the order of their commits."""

    rows: tuple[tuple[int, Asked], ...]
    """Each with the number of its end. The line is only known of rows that are no URL."""
    cursor: int
    """Up to here all was read."""
    is_last: bool
    is_complete: bool
    """Whether nothing more will come."""


class Batches(Part):
    """Begins batches, each call once, whatever is killed in between."""

    def begin(
        self,
        batch: NewBatch,
        tasks: Iterable[NewTask],
        rejected: Iterable[RejectedRow],
        now: float,
        prepare: Callable[[Job, bool], None] = lambda job, is_new: None,
        note: Callable[[Job], None] = lambda job: None,
        finish: Callable[[Job], None] = lambda job: None,
    ) -> tuple[Job, int]:
        """Store the URLs of a call in the job of their session; returns it, and the call's number.

        All in one commit, before which `prepare` is called. A call that comes again finds what it
        has stored, and URLs that the session has are not fetched again. The last call decides who
        fetches what is open. `note` is called first in the same commit, and `finish` last, when
        nothing refuses the call any more; both also for a call that comes again.
        """
        with writing(self._durable):
            job, number = self._begin(batch, tasks, rejected, now, prepare, note)
            finish(job)
        return job, number

    def _begin(
        self,
        batch: NewBatch,
        tasks: Iterable[NewTask],
        rejected: Iterable[RejectedRow],
        now: float,
        prepare: Callable[[Job, bool], None],
        note: Callable[[Job], None],
    ) -> tuple[Job, int]:
        db = self._durable
        id_ = self._id_of(batch)
        is_new = id_ is None
        if id_ is None:
            id_ = self._new_job(batch, now)
        note(_job(db, id_))
        queue = f"{DIRECT}{id_}" if batch.direct else batch.queue
        _move(db, id_, queue)
        db.execute("UPDATE batches SET direct = ? WHERE job_id = ?", (batch.direct, id_))
        known = db.one(
            "SELECT number, ended_at NOT NULL FROM imports WHERE job_id = ? AND checksum = ?",
            (id_, batch.checksum),
        )
        job = _job(db, id_)
        if known and known[1]:
            return job, int(known[0])
        if job.hold == "cancelled":
            raise SessionCancelled(
                f"the session {batch.session_id} was cancelled: begin another one"
            )
        prepare(job, is_new)
        if known:
            number = int(known[0])
            self._mend(job, number, tasks, rejected, now)
        else:
            number = int(db.value("SELECT files FROM jobs WHERE id = ?", (id_,)))
            self._add(job, number, batch.checksum, tasks, rejected, now)
        return _job(db, id_), number

    def begin_crawl(
        self,
        batch: NewBatch,
        starts: Iterable[Start],
        batch_size: int,
        now: float,
        prepare: Callable[[Job, bool], None] = lambda job, is_new: None,
    ) -> Job:
        """Store the starts of a crawl as a session. A call that comes again finds its job."""
        db = self._durable
        with writing(db):
            id_ = self._id_of(batch)
            if id_ is not None:
                return _job(db, id_)
            id_ = self._new_job(batch, now)
            queue = f"{DIRECT}{id_}" if batch.direct else batch.queue
            db.execute(
                "UPDATE jobs SET source = 'crawl', queue = ?, batch_size = ? WHERE id = ?",
                (queue, batch_size, id_),
            )
            db.execute("UPDATE batches SET direct = ? WHERE job_id = ?", (batch.direct, id_))
            job = _job(db, id_)
            prepare(job, True)
            add_starts(db, job, starts, now)
        return job

    def keep_notes(self, job: Job, notes: Mapping[str, Any]) -> None:
        """Keep more with a session, within the commit of its call. What it has stays."""
        self._durable.execute(
            "UPDATE batches SET options = json_patch(?, options) WHERE job_id = ?",
            (as_json(notes), job.id),
        )

    def keep_until(self, batch: Batch, until: float) -> None:
        """Note until when a client that was told to come again may come."""
        with writing(self._durable):
            self._durable.execute(
                "UPDATE batches SET options = json_set(options, '$.until', ?) WHERE job_id = ?",
                (until, batch.job.id),
            )

    def _add(
        self,
        job: Job,
        number: int,
        checksum: str,
        tasks: Iterable[NewTask],
        rejected: Iterable[RejectedRow],
        now: float,
    ) -> None:
        db, new, linked = self._durable, 0, 0
        for task in tasks:
            is_known = self._link(job, task, number)
            linked += is_known
            new += not is_known
            if not is_known:
                self._insert(job, task, number, now)
        refused = self._reject(job, number, rejected, now)
        db.execute(
            """INSERT INTO imports (job_id, key, checksum, file, rows, ended_at, number)
               SELECT id, key, ?2, '', ?3, ?4, ?5 FROM jobs WHERE id = ?1""",
            (job.id, checksum, new + linked + refused, now, number),
        )
        db.execute(
            """UPDATE jobs SET size = size + ?2, linked = linked + ?3, rejected = rejected + ?4,
                   files = files + 1, status = iif(?5 AND status = 'done', 'open', status),
                   completed_at = iif(?5, NULL, completed_at) WHERE id = ?1""",
            (job.id, new, linked, refused, bool(new or refused)),
        )

    def _reject(self, job: Job, number: int, rejected: Iterable[RejectedRow], now: float) -> int:
        """Store rows of a call that are no URL, each with a place among the ends of tasks."""
        db, rows = self._durable, list(rejected)
        db.executemany(
            """INSERT INTO rejected_rows (job_id, file_number, source_line, reason, text)
               VALUES (?, ?, ?, ?, ?)""",
            [(job.id, number, row.line, row.reason, storable(row.text)) for row in rows],
        )
        known = set(db.all(_NUMBERED, (job.id,))) if rows else set()
        for row in rows:
            if (number, row.line) not in known:
                note(db, -job.id, NO_URL, {"call": number, "line": row.line}, now)
        return len(rows)

    def _mend(
        self,
        job: Job,
        number: int,
        tasks: Iterable[NewTask],
        rejected: Iterable[RejectedRow],
        now: float,
    ) -> None:
        """Bring back what a repair of the ledger has lost of a call."""
        db = self._durable
        left = {row[0] for row in db.all(_ROWS, (job.id, number))}
        for task in tasks:
            if task.line in left or self._recognise(job, task, number):
                continue
            if not self._link(job, task, number):
                self._insert(job, task, number, now)
        self._reject(job, number, (row for row in rejected if row.line not in left), now)
        rows = len(db.all(_ROWS, (job.id, number)))
        db.execute(
            "UPDATE imports SET ended_at = ?, rows = ? WHERE job_id = ? AND number = ?",
            (now, rows, job.id, number),
        )
        open_if_read(db, job, now)

    def _recognise(self, job: Job, task: NewTask, number: int) -> bool:
        """Give a task of the session whose line was lost the line of this URL."""
        row_input = encoded_input(task.input)
        self._durable.execute(
            """UPDATE tasks SET source = ?, file_number = ?, source_line = ?, input = ?,
                   row_crc32 = ?
               WHERE id = (SELECT id FROM tasks WHERE url_key = ? AND job_id = ?
                           AND source_line IS NULL LIMIT 1)""",
            (SOURCE, number, task.line, row_input,
             row_crc32(number, task.line, task.item, row_input), task.address.key, job.id),
        )  # fmt: skip
        return bool(self._durable.changes())

    def _id_of(self, batch: NewBatch) -> int | None:
        id_: int | None = self._durable.value(
            "SELECT job_id FROM batches WHERE client = ? AND session_id = ?",
            (batch.client, batch.session_id),
        )
        return id_

    def _new_job(self, batch: NewBatch, now: float) -> int:
        db = self._durable
        id_ = db.value(
            """INSERT INTO jobs (name, key, status, queue, source, batch_size, created_at, deadline,
                   options)
               VALUES (?, ?, 'open', ?, ?, 100, ?, ?, ?) RETURNING id""",
            (free_name(db, _name(batch)), key_of(batch.client, batch.session_id),
             batch.queue, SOURCE, now, batch.deadline, as_json(batch.options)),
        )  # fmt: skip
        db.execute(
            """INSERT INTO batches (job_id, client, session_id, options, horizon)
               SELECT ?, ?, ?, ?, ifnull(max(id), 0) FROM events""",
            (id_, batch.client, batch.session_id, as_json(batch.shown)),
        )
        return int(id_)

    def _link(self, job: Job, task: NewTask, number: int) -> bool:
        """Let a URL that the session has count once more; False if it has not."""
        db = self._durable
        known = db.value(
            "SELECT id FROM tasks WHERE url_key = ? AND job_id = ?", (task.address.key, job.id)
        )
        if known is None:
            return False
        row_input = encoded_input(task.input)
        db.execute(
            """INSERT INTO job_links (job_id, task, file_number, source_line, input, row_crc32)
               VALUES (?, ?, ?, ?, ?, ?)""",
            (job.id, known, number, task.line, row_input,
             row_crc32(number, task.line, task.item, row_input)),
        )  # fmt: skip
        return True

    def _insert(self, job: Job, task: NewTask, number: int, now: float) -> None:
        row_input = encoded_input(task.input)
        self._durable.execute(
            """INSERT INTO tasks (task_id, job_id, url, url_key, domain, queue, priority, deadline,
                   source, source_line, input, imported_at, file_number, row_crc32, needs)
               VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
            (secrets.token_hex(16), job.id, *task.address, job.queue, task.priority,
             job.deadline or NO_DEADLINE, SOURCE, task.line, row_input, now, number,
             row_crc32(number, task.line, task.item, row_input), job.options.needs),
        )  # fmt: skip

    # Reading

    def find(self, client: str, session_id: str) -> Batch | None:
        """The session of a client."""
        found = self._sessions("b.client = ? AND b.session_id = ?", client, session_id)
        return found[0] if found else None

    def of_client(self, client: str) -> list[Batch]:
        """The sessions of a client, the oldest first."""
        return self._sessions("b.client = ?", client)

    def of_job(self, job_id: int) -> Batch | None:
        """The session of a job."""
        found = self._sessions("b.job_id = ?", job_id)
        return found[0] if found else None

    def of_task(self, task: int) -> Batch | None:
        """The session that a task belongs to; None if it came by another door."""
        job_id = "(SELECT job_id FROM tasks WHERE id = ?)"
        found = self._sessions(f"b.job_id = {job_id}", task)
        return found[0] if found else None

    def has_call(self, client: str, session_id: str, checksum: str) -> bool:
        """Whether a session has these URLs from an earlier call."""
        return bool(
            self._db.value(
                """SELECT EXISTS (SELECT 1 FROM batches b JOIN imports i ON i.job_id = b.job_id
                   WHERE b.client = ? AND b.session_id = ? AND i.checksum = ?)""",
                (client, session_id, checksum),
            )
        )

    def open_of_client(self, client: str) -> tuple[int, int]:
        """How many sessions of a client are not done, and how many open tasks these have or, as
        crawls, may still get."""
        [(sessions, tasks)] = self._db.all(
            f"""SELECT count(*), ifnull(sum((SELECT count(*) FROM tasks t WHERE t.job_id = j.id
                   AND t.status IN ('pending', 'processing'))
                   + iif(j.hold IS 'cancelled', 0, ifnull({PAGES_LEFT}, 0))), 0)
                FROM batches b JOIN jobs j ON j.id = b.job_id
                WHERE b.client = ? AND j.status <> 'done'""",
            (client,),
        )
        return int(sessions), int(tasks)

    def domains_of_client(self, client: str) -> set[str]:
        """The domains that sessions of a client have asked for."""
        return set(
            self._db.column(
                """SELECT DISTINCT t.domain FROM batches b JOIN tasks t ON t.job_id = b.job_id
                   WHERE b.client = ?""",
                (client,),
            )
        )

    def keep_key(self, client: str, key: str, job: Job, body: str) -> bool:
        """Note the key of a call within its commit; False if it came with another body before."""
        db = self._durable
        db.execute(
            """INSERT INTO batch_keys (client, key, job_id, body) VALUES (?, ?, ?, ?)
               ON CONFLICT DO NOTHING""",
            (client, key, job.id, body),
        )
        kept = db.value("SELECT body FROM batch_keys WHERE client = ? AND key = ?", (client, key))
        return bool(kept == body)

    def open_sessions(self, client: str) -> list[Batch]:
        """The sessions of a client that have not ended, the oldest first."""
        return self._sessions("b.client = ? AND j.status <> 'done'", client)

    def newest(self, client: str, prefix: str) -> Batch | None:
        """The session of a client whose id begins so and is the last in alphabetical order."""
        last = self._db.value(
            "SELECT max(session_id) FROM batches WHERE client = ? AND session_id BETWEEN ? AND ?",
            (client, prefix, f"{prefix}\U0010ffff"),
        )
        return None if last is None else self.find(client, last)

    def newest_page(self, client: str, url_key: bytes, since: float) -> tuple[str, int] | None:
        """The session and the task of the newest page of a URL that a client has collected since
        then, without headers or passwords of its own."""
        found = self._db.all(
            """SELECT b.session_id, t.id FROM tasks t JOIN batches b ON b.job_id = t.job_id
               JOIN results r ON r.task = t.id
               WHERE t.url_key = ? AND b.client = ? AND t.status = 'completed'
                   AND t.method = 'GET' AND t.completed_at >= ? AND b.options ->> '$.is_plain'
               ORDER BY t.completed_at DESC LIMIT 1""",
            (url_key, client, since),
        )
        return (str(found[0][0]), int(found[0][1])) if found else None

    def page_counts(self, job: Job) -> tuple[int, int]:
        """How many pages a session has, and how many of them are collected; a sitemap, or a page
        that redirects to another one of its crawl, is none."""
        [(total, completed)] = self._db.all(
            f"""SELECT count(*) FILTER (WHERE NOT {_NO_PAGE}),
                       count(*) FILTER (WHERE status = 'completed')
                FROM tasks WHERE job_id = ?""",
            (job.id,),
        )
        return int(total), int(completed)

    def failures(self, job: Job) -> list[Failure]:
        """The pages of a session that were not collected."""
        rows = self._db.all(
            f"""SELECT task_id, url, error_type, error_message, completed_at FROM tasks
                WHERE job_id = ? AND ({_FAILED}) ORDER BY completed_at, id""",
            (job.id,),
        )
        return [Failure(*row) for row in rows]

    def _sessions(self, condition: str, *values: str | int) -> list[Batch]:
        columns = ", ".join(f"j.{name.strip()}" for name in JOB_COLUMNS.split(","))
        rows = self._db.all(
            f"""SELECT b.client, b.session_id, b.options, {columns}
                FROM batches b JOIN jobs j ON j.id = b.job_id WHERE {condition} ORDER BY j.id""",
            values,
        )
        return [
            Batch(as_job(tuple(job)), client, session_id, msgspec.json.decode(options))
            for client, session_id, options, *job in rows
        ]

    def asked(self, job: Job, number: int) -> list[Asked]:
        """The URLs of one call, in their order."""
        return [Asked(*row) for row in self._db.all(_ROWS, (job.id, number))]

    def rejected(self, job: Job) -> list[Asked]:
        """The rows of a session that are no URL, in the order of its calls."""
        return self._rejected(job, "1")

    def unplaced(self, job: Job, behind: int) -> list[tuple[int, Asked]]:
        """Those without a place among the ends of tasks, each with a negative number: earlier
        versions gave them none, or it was lost.

        Only those behind a number; 0 stands for the beginning.
        """
        rows = self._rejected(job, f"(file_number, source_line) NOT IN ({_NUMBERED})")
        numbered = [(n - len(rows), row) for n, row in enumerate(rows)]
        return [(n, row) for n, row in numbered if n > behind or behind == 0]

    def _rejected(self, job: Job, condition: str) -> list[Asked]:
        rows = self._db.all(
            f"""SELECT source_line, reason, text FROM rejected_rows
                WHERE job_id = ?1 AND {condition} ORDER BY file_number, source_line""",
            (job.id,),
        )
        return [Asked(line, None, reason, text) for line, reason, text in rows]

    def rejected_count(self, job: Job) -> int:
        """How many rows of a session are no URL."""
        return int(self._db.value("SELECT rejected FROM jobs WHERE id = ?", (job.id,)))

    def open_tasks(self, job: Job) -> int:
        """How many tasks of a session have not ended."""
        return int(
            self._db.value(
                """SELECT count(*) FROM tasks WHERE job_id = ? AND status IN ('pending',
                   'processing')""",
                (job.id,),
            )
        )

    def newest_end(self) -> int:
        """The number of the last thing that happened to any task: later ends are behind it."""
        return int(self._db.value("SELECT max(id) FROM events") or 0)

    def ended(self, tasks: Sequence[int]) -> set[int]:
        """Those of some tasks that have ended."""
        sql = f"SELECT id FROM tasks WHERE id {LISTED} AND status IN {_ENDED}"
        return set(self._db.column(sql, (as_json(tasks),)))

    def next_attempts(self, job: Job) -> list[float]:
        """When the tasks of a session are due that wait for another attempt."""
        return self._db.column(
            """SELECT not_before FROM tasks WHERE job_id = ? AND status = 'pending'
               AND not_before > 0 AND not_before < 9e15""",
            (job.id,),
        )

    def outcomes(self, tasks: Sequence[int]) -> dict[int, TaskOutcome]:
        """How these tasks ended, or where they stand."""
        rows = self._db.all(
            f"""SELECT t.id, t.task_id, t.url, t.status, t.attempts, t.error_type, t.error_message,
                    t.completed_at, r.bytes, r.content_type, r.fetch_ms, (
                        SELECT e.detail ->> '$.worker' FROM events e WHERE e.task = t.id
                        AND e.kind IN {_ENDS} ORDER BY e.id DESC LIMIT 1)
                FROM tasks t LEFT JOIN results r ON r.task = t.id WHERE t.id {LISTED}""",
            (as_json(tasks),),
        )
        return {row[0]: TaskOutcome(*row[1:]) for row in rows}

    def ends(self, job: Job, cursor: int, limit: int = MAX_EVENTS_PER_READ) -> Ends:
        """The next tasks of a session that have ended, and its rows that are no URL, behind the
        number of an end."""
        db = self._db
        with reading(db):
            horizon = db.value("SELECT horizon FROM batches WHERE job_id = ?", (job.id,))
            begin = max(cursor, horizon or 0)
            last = db.value(
                """SELECT max(id) FROM (
                       SELECT id FROM events WHERE id > ? ORDER BY id LIMIT ?)""",
                (begin, MAX_EVENTS_PER_READ),
            )
            rows: Sequence[tuple[Any, ...]] = ()
            end = begin
            if last is not None:
                end = int(last)
                rows = db.all(
                    f"""SELECT e.id AS seq, 0, e.task, NULL, NULL
                        FROM events e JOIN tasks t ON t.id = e.task
                        WHERE e.id > ?1 AND e.id <= ?2 AND t.job_id = ?3 AND e.kind IN {_ENDS}
                        AND t.status IN {_ENDED} AND NOT EXISTS (
                            SELECT 1 FROM events x WHERE x.task = e.task AND x.id > e.id
                            AND x.kind IN {_ENDS})
                        UNION ALL
                        SELECT e.id, r.source_line, NULL, r.reason, r.text
                        FROM events e JOIN rejected_rows r ON r.job_id = ?3
                            AND r.file_number = e.detail ->> '$.call'
                            AND r.source_line = e.detail ->> '$.line'
                        WHERE e.task = -?3 AND e.id > ?1 AND e.id <= ?2
                        ORDER BY seq LIMIT ?4""",
                    (begin, end, job.id, limit),
                )
                if len(rows) == limit:
                    end = rows[-1][0]
            newest = self.newest_end()
            status = db.value("SELECT status FROM jobs WHERE id = ?", (job.id,))
        is_last = end >= newest
        ended = status in (None, JobStatus.DONE)
        found = tuple((seq, Asked(*row)) for seq, *row in rows)
        return Ends(found, end, is_last, is_last and ended)

    # Queues of processes of their own

    def direct_jobs(self) -> list[int]:
        """The numbers of the jobs whose tasks wait for a process of their own."""
        return self._db.column(
            f"SELECT id FROM jobs WHERE status <> 'done' AND queue LIKE '{DIRECT}%'"
        )

    def unfinished_direct(self) -> dict[int, str]:
        """The same, and those that workers may have been given since, each with its client."""
        return dict(
            self._db.all(
                """SELECT b.job_id, b.client FROM batches b JOIN jobs j ON j.id = b.job_id
                   WHERE b.direct AND j.status <> 'done' ORDER BY b.job_id"""
            )
        )

    def with_due_tasks(self, jobs: Sequence[int], now: float) -> list[int]:
        """Those of some jobs that have a page in flight, or one that may be fetched now; or that
        have nothing open, and are about to end."""
        return self._db.column(
            """SELECT value FROM json_each(?1) WHERE EXISTS (
                   SELECT 1 FROM tasks WHERE job_id = value AND status = 'processing')
               OR EXISTS (SELECT 1 FROM tasks WHERE job_id = value AND status = 'pending'
                   AND not_before <= ?2)
               OR NOT EXISTS (SELECT 1 FROM tasks WHERE job_id = value AND status = 'pending')""",
            (as_json(jobs), now),
        )

    def move(self, job_id: int, queue: str) -> None:
        """Let others fetch what is pending of a session."""
        with writing(self._durable):
            _move(self._durable, job_id, queue)


def _name(batch: NewBatch) -> str:
    """The name of a session's job. Clients do not learn from it which names others have."""
    return f"{batch.client}:{batch.session_id}" if batch.client else batch.session_id


def _move(db: Database, job_id: int, queue: str) -> None:
    db.execute("UPDATE jobs SET queue = ?2 WHERE id = ?1", (job_id, queue))
    db.execute(
        """UPDATE tasks SET queue = ?2, message_id = NULL
           WHERE job_id = ?1 AND status IN ('pending', 'processing') AND queue <> ?2""",
        (job_id, queue),
    )


def _job(db: Database, id_: int) -> Job:
    [row] = db.all(f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?", (id_,))
    return as_job(row)
