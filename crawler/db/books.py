"""The books: jobs, counts, reasons."""

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from crawler import urls
from crawler.config import program
from crawler.db import losses
from crawler.db.connection import Database, reading, writing
from crawler.errors import StoreError, UrlError, UsageError
from crawler.models import (
    NO_DEADLINE,
    Books,
    Job,
    JobOptions,
    JobStatus,
    MissingField,
    Receipt,
    TaskStatus,
)

JOB = "id, name, status, queue, source_file, created_at, completed_at, deadline, hold, source, options"
THEIRS = ("gateway", "bundle")
"""The doors through which tasks come with a Gateway's id; at others `external_id` is the name of a
call."""
NOTED_FILE = """(SELECT file FROM imports i WHERE i.job_id = {0}.job_id AND i.number = {0}.file_number
    AND (i.number > 0 OR i.key NOT LIKE 'name:%') ORDER BY i.id DESC LIMIT 1)"""
"""Where the file of a row lies by now; in a named job of an older program, number 0 may be that of
several files."""
_THEIR_ID = f"iif(source IN {THEIRS}, external_id, NULL)"
_LISTED = f"""task_id, {_THEIR_ID}, url, parcel_id, status, error_type, error_message, attempts, queue, priority,
    domain, source_file, source_line, source_item, completed_at"""
_LISTED_NAMES = (
    "task_id", "their_id", "url", "parcel_id", "status", "reason", "message", "attempts", "queue", "priority", "domain",
    "source_file", "source_line", "source_item", "completed_at",
)  # fmt: skip
SUSPECT_DEATHS = 3
"""A page that was in flight at so many deaths that nobody can be blamed for is tried alone from
then on."""
DUE = f"status = 'pending' AND not_before = 0 AND deaths < {SUSPECT_DEATHS}"
"""Tasks that any worker may take; the condition of the index tasks_due."""
_PUT_OFF = "status = 'pending' AND not_before > 0 AND not_before < 9e15"
TURN = "id + failures * 1000"
"""The order of due tasks of a domain; the index tasks_due has it."""
_ENDED = "('failed', 'skipped', 'expired')"


_CHECKS = {
    "tasks more or fewer than were accepted": """SELECT abs(size - (SELECT count(*) FROM tasks WHERE job_id = ?1))
        FROM jobs WHERE id = ?1""",
    "known rows more or fewer than came in": """SELECT abs(linked - (SELECT count(*) FROM job_links WHERE job_id = ?1))
        FROM jobs WHERE id = ?1""",
    "rejected rows more or fewer than came in": """SELECT abs(rejected - (SELECT count(*) FROM rejected_rows
        WHERE job_id = ?1)) FROM jobs WHERE id = ?1""",
    "known rows whose tasks are gone": """SELECT count(*) FROM job_links l WHERE job_id = ?1
        AND NOT EXISTS (SELECT 1 FROM tasks WHERE id = l.task)""",
    "completed tasks without a result": """SELECT count(*) FROM tasks t WHERE id IN ({members})
        AND status = 'completed' AND NOT EXISTS (SELECT 1 FROM results WHERE task = t.id)""",
    "results whose records cannot be read": """SELECT count(*) FROM results WHERE task IN ({members})
        AND NOT json_valid(record)""",
    "results that no Gateway would ever get": """SELECT count(*) FROM results r WHERE task IN ({members})
        AND NOT EXISTS (SELECT 1 FROM outbox WHERE task = r.task)""",
    "results of tasks that are not completed": """SELECT count(*) FROM results JOIN tasks t ON t.id = task
        WHERE t.id IN ({members}) AND status <> 'completed'""",
    "results whose raw page is not in its segment": """SELECT count(*) FROM results r LEFT JOIN raw_segments s
        ON s.name = raw_segment WHERE task IN ({members}) AND raw_segment IS NOT NULL
        AND raw_offset + raw_length > ifnull(s.end, 0) AND """
    + losses.WANTED.format(job="?1"),
}
"""What must not be, each with the statement that counts it."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """Where the results of a job or of the whole ledger are, and what a Gateway has of them."""

    results: int = 0
    pending: int = 0
    """Of the results, those that lie in pending/."""
    archived: int = 0
    """Those that `results archive` has moved, and that no Gateway has."""
    held: int = 0
    """Those of standalone work, which only a command sends."""
    ready: int = 0
    synced: int = 0
    rejected: int = 0
    late: int = 0
    """Of those sent, the ones whose deadline had passed by then."""
    without_page: int = 0
    """Of those sent, the ones whose page could not be sent."""
    replaced: int = 0
    """Of the synced ones, those that may have replaced another result at the Gateway."""
    reports_ready: int = 0
    reports_synced: int = 0
    reports_rejected: int = 0
    oldest: float | None = None
    """Since when the oldest of what is to be sent waits."""

    @property
    def unsent(self) -> int:
        """All that a Gateway is to get."""
        return self.ready + self.reports_ready

    @property
    def refused(self) -> int:
        """All that a Gateway did not take."""
        return self.rejected + self.reports_rejected

    @property
    def concerns_gateway(self) -> bool:
        """Whether a Gateway has got, or is to get, or has refused anything."""
        return bool(self.unsent or self.refused or self.synced or self.reports_synced)


class Import(NamedTuple):
    """A file of a job, the job's key, and when it was read to its end."""

    file: str
    key: str
    ended_at: float | None


class Bookkeeping:
    """The part of the ledger that counts."""

    def __init__(self, connection: Database) -> None:
        self.db = connection
        [(self.id,)] = connection.all("SELECT value FROM meta WHERE key = 'ledger_id'")

    def stand(self, id_: int) -> tuple[TaskStatus, float, str, int | None]:
        """A task's status, the time it waits for, its domain and its job."""
        [(status, *about)] = self.db.all(
            "SELECT status, not_before, domain, job_id FROM tasks WHERE id = ?", (id_,)
        )
        return TaskStatus(status), *about

    def event(self, task: int, kind: str, detail: dict[str, Any], now: float) -> None:
        """Note one thing that happened to a task."""
        self.db.execute(
            "INSERT INTO events (task, at, kind, detail) VALUES (?, ?, ?, ?)",
            (task, now, kind, msgspec.json.encode(detail).decode()),
        )

    def finalise(self, now: float) -> list[Job]:
        """End the jobs that have no open task; whoever's UPDATE hits is the one who ended it."""
        with writing(self.db):
            rows = self.db.all(
                f"""UPDATE jobs SET status = 'done', completed_at = ? WHERE status = 'open'
                    AND NOT EXISTS (SELECT 1 FROM tasks WHERE job_id = jobs.id AND status IN ('pending', 'processing'))
                    AND NOT EXISTS (SELECT 1 FROM job_links JOIN tasks ON tasks.id = task
                                    WHERE job_links.job_id = jobs.id AND is_open)
                    RETURNING {JOB}""",
                (now,),
            )
        return [as_job(row) for row in rows]

    def jobs(self, status: JobStatus | None = None) -> list[Job]:
        """The jobs, oldest first."""
        where = "" if status is None else f"WHERE status = '{status}'"
        return [
            as_job(row) for row in self.db.execute(f"SELECT {JOB} FROM jobs {where} ORDER BY id")
        ]

    def job(self, name: str) -> Job:
        """The job of that name; for an unknown one an error that names the nearest."""
        row = self.db.one(f"SELECT {JOB} FROM jobs WHERE name = ?", (name,))
        if row is None:
            names = [job.name for job in self.jobs()]
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.3)
            hint = (
                f"; did you mean {near[0]}?"
                if near
                else "; there are none yet"
                if not names
                else ""
            )
            raise UsageError(f"there is no job {name}{hint}")
        return as_job(row)

    def waiting(self) -> dict[str, int]:
        """How many tasks are pending, by queue."""
        return dict(
            self.db.all("SELECT queue, count(*) FROM tasks WHERE status = 'pending' GROUP BY 1")
        )

    def waits(self, job: Job | None = None) -> list[tuple[int, float, str, bool]]:
        """How many pending tasks wait for a time, the first of these times, by what they have met
        and whether they were tried; the most first."""
        return self.db.all(
            f"""SELECT count(*), min(not_before), ifnull(error_type, ''), attempts > 0 FROM tasks
                WHERE {self._of(job)} AND {_PUT_OFF} GROUP BY 3, 4 ORDER BY 1 DESC""",
            (job.id,) if job else (),
        )

    def untried(self, limit: int, job: Job | None = None) -> list[int]:
        """Some of the tasks that wait for a time and have met nothing."""
        rows = self.db.all(
            f"""SELECT id FROM tasks WHERE {self._of(job)} AND {_PUT_OFF} AND attempts = 0
                AND error_type IS NULL LIMIT {limit}""",
            (job.id,) if job else (),
        )
        return [row[0] for row in rows]

    def held(self, job: Job | None = None) -> int:
        """How many pending tasks wait for an operator."""
        [(count,)] = self.db.all(
            f"SELECT count(*) FROM tasks WHERE {self._of(job)} AND status = 'pending' AND not_before >= 9e15",
            (job.id,) if job else (),
        )
        return int(count)

    def due_domains(self, job: Job | None = None) -> dict[str, int]:
        """How many tasks are due, by domain."""
        return dict(
            self.db.all(
                f"""SELECT domain, count(*) FROM tasks
                    WHERE {self._of(job)} AND {DUE} GROUP BY 1""",
                (job.id,) if job else (),
            )
        )

    def index_faults(self) -> list[str]:
        """The indexes of the tasks that hide some of them, or show some that are not there."""
        with reading(self.db):
            return index_faults(self.db, ["tasks"])

    def in_flight(self, job: Job | None = None) -> dict[str, int]:
        """How many tasks are being worked on, by domain, the most first."""
        return dict(
            self.db.all(
                f"""SELECT domain, count(*) FROM tasks WHERE {self._of(job)} AND status = 'processing'
                    GROUP BY 1 ORDER BY 2 DESC, 1""",
                (job.id,) if job else (),
            )
        )

    def pages_in_flight(self, job: Job | None = None) -> list[tuple[int, str, str, float]]:
        """Task, URL and domain of all that is being worked on, and since when, the oldest first."""
        return self.db.all(
            f"""SELECT id, url, domain, leased_at FROM tasks
                WHERE {self._of(job)} AND status = 'processing' ORDER BY leased_at""",
            (job.id,) if job else (),
        )

    def rate(self, now: float, over_s: float = 30.0) -> float:
        """Tasks that ended a second, of late."""
        [(count,)] = self.db.all(
            """SELECT count(*) FROM (SELECT at, kind FROM events ORDER BY id DESC LIMIT 20000)
               WHERE at > ? AND at <= ? AND kind IN ('completed', 'failed', 'skipped')""",
            (now - over_s, now),
        )
        return float(count) / over_s

    def growth(self, now: float) -> dict[str, float]:
        """Bytes that a page adds to the store, of those that came last, and that an hour adds at
        their pace."""
        rows = self.db.all(
            """SELECT ifnull(raw_length, 0) + 2 * length(record) + 1000, scraped_at FROM results
               ORDER BY task DESC LIMIT 500"""
        )  # the record is in lpm.db and in pending/; a thousand bytes are for the rest of the task's rows
        if not rows:
            return {"bytes_per_page": 0.0, "bytes_per_hour": 0.0}
        total, first = sum(size for size, _ in rows), min(at for _, at in rows)
        return {
            "bytes_per_page": round(total / len(rows)),
            "bytes_per_hour": round(3600 * total / (now - first))
            if 0 < now - first < 3600
            else 0.0,
        }

    def loads(self, job: Job) -> list[tuple[str, int, int]]:
        """For each domain with open tasks of a job: how many, and how many of other jobs go first
        there."""
        members = self._members(job)
        own = self.db.all(
            f"SELECT domain, count(*) FROM tasks WHERE id IN ({members}) AND is_open GROUP BY 1",
            (job.id,),
        )
        last = self.db.one(
            f"""SELECT priority, deadline, {TURN} FROM tasks WHERE job_id = ? AND is_open
                ORDER BY 1 DESC, 2 DESC, 3 DESC LIMIT 1""",
            (job.id,),
        ) or (9, job.deadline or NO_DEADLINE, 0)
        ahead = self.db.all(
            f"""SELECT domain, count(*) FROM tasks WHERE status = 'pending' AND not_before = 0
                AND id NOT IN ({members}) AND (queue = 'urgent' OR ?2 = 'default')
                AND (queue <> ?2 OR (priority, deadline, {TURN}) < (?3, ?4, ?5)) GROUP BY 1""",
            (job.id, job.queue, *last),
        )
        first = dict(ahead)
        return [(domain, count, first.get(domain, 0)) for domain, count in own]

    def paces(self, job: Job | None = None) -> dict[str, tuple[float, float]]:
        """Seconds to fetch and to parse a page, by domain, of those that came last; those of a job
        count first.

        Else the pages of a large job beside it would leave none of its own among the last, and it
        would be told by the pace of other domains.
        """
        last = "SELECT task FROM results ORDER BY task DESC LIMIT 2000"
        paces = self._paces(last, ())
        if job:
            own = "SELECT id FROM tasks WHERE job_id = ? AND status = 'completed' ORDER BY id DESC LIMIT 2000"
            paces |= self._paces(own, (job.id,))
        return paces

    def _paces(self, tasks: str, values: tuple[int, ...]) -> dict[str, tuple[float, float]]:
        rows = self.db.execute(
            f"""SELECT domain, avg(fetch_ms) / 1000, avg(parse_ms) / 1000 FROM results
                JOIN tasks ON tasks.id = task WHERE task IN ({tasks}) GROUP BY 1""",
            values,
        )
        return {domain: (max(fetch_s, 0.001), parse_s) for domain, fetch_s, parse_s in rows}

    def rows_of(self, job: Job) -> int:
        """How many rows of a job's input are in the ledger."""
        [(count,)] = self.db.all(
            """SELECT (SELECT count(*) FROM tasks WHERE job_id = ?1)
                    + (SELECT count(*) FROM job_links WHERE job_id = ?1)
                    + (SELECT count(*) FROM rejected_rows WHERE job_id = ?1)""",
            (job.id,),
        )
        return int(count)

    def losses(self, job: Job) -> list[losses.Loss]:
        """What was lost of a job and neither imported again nor accepted."""
        return [loss for loss in losses.of(self.db, job) if not loss.settled_at]

    def imports(self, job: Job) -> list[Import]:
        """The files that were or are to be read into a job."""
        rows = self.db.all(
            "SELECT file, key, ended_at FROM imports WHERE job_id = ? ORDER BY id", (job.id,)
        )
        return [Import(*row) for row in rows]

    def job_by_id(self, id_: int) -> Job:
        """The job of that number."""
        [row] = self.db.all(f"SELECT {JOB} FROM jobs WHERE id = ?", (id_,))
        return as_job(row)

    def find(self, text: str) -> list[int]:
        """The tasks that a person means by an id, the beginning of one, a Gateway's id or a URL;
        the newest first."""
        named = (
            f"no task, by our id or a Gateway's, is called {urls.without_credentials(text)[:200]!r}"
        )
        found = [
            row[0]
            for row in self.db.all(
                f"SELECT id FROM tasks WHERE external_id = ? AND source IN {THEIRS} ORDER BY id DESC",
                (text,),
            )
        ]
        if found:
            return found
        if re.fullmatch(r"[0-9a-f]{6,32}", text):
            rows = self.db.all("SELECT id FROM tasks WHERE task_id GLOB ? || '*' LIMIT 2", (text,))
            if len(rows) > 1:
                raise UsageError(f"more than one task begins with {text}; give more of its id")
            if not rows:
                raise UsageError(named)
            return [rows[0][0]]
        try:
            found = self.tasks_of(urls.parse(text).key)
        except UrlError:
            if "://" in text or not text.strip():
                raise
            hint = "; does it lack http:// at the beginning?" if "." in text or "/" in text else ""
            raise UsageError(f"{named}, and it is no URL{hint}") from None
        if not found:
            raise UsageError(f"no task is known for {urls.without_credentials(text)}")
        return found

    def tasks_of(self, url_key: bytes) -> list[int]:
        """The tasks for a URL, the newest first."""
        return [
            row[0]
            for row in self.db.all(
                "SELECT id FROM tasks WHERE url_key = ? ORDER BY id DESC", (url_key,)
            )
        ]

    def horizon(self) -> int:
        """The number of the last event: everything that any task has had is at or below it."""
        [(last,)] = self.db.all("SELECT coalesce(max(id), 0) FROM events")
        return int(last)

    def note_export(
        self,
        file: str,
        form: str,
        job: Job | None,
        since: float | None,
        results: int,
        horizon: int,
        now: float,
    ) -> None:
        """Note that results were handed over, for the timelines of their tasks."""
        with writing(self.db):
            self.db.execute(
                "INSERT INTO exports (at, file, format, job_id, since, results, horizon) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    now,
                    file.encode("utf-8", "replace").decode(),
                    form,
                    job.id if job else None,
                    since,
                    results,
                    horizon,
                ),
            )

    def books(self) -> Books:
        """The counts of the whole ledger."""
        states = self.db.all("SELECT status, count(*) FROM tasks GROUP BY status")
        outbox = self.db.all("SELECT state, count(*) FROM outbox GROUP BY state")
        return _books(states, outbox)

    def reasons(self, job: Job | None) -> dict[str, dict[str, int]]:
        """Why tasks ended without a result: by state, the most frequent reason first."""
        rows = self.db.execute(
            f"""SELECT status, ifnull(error_type, 'unknown'), count(*) FROM tasks
                WHERE status IN {_ENDED} AND {self._of(job)}
                GROUP BY 1, 2 ORDER BY 1, 3 DESC, 2""",
            (job.id,) if job else (),
        )
        reasons: dict[str, dict[str, int]] = {}
        for status, reason, count in rows:
            reasons.setdefault(status, {})[reason] = count
        return reasons

    def all_reasons(self) -> dict[str, int]:
        """The reasons that any task has, also one that will be tried again, the most frequent
        first."""
        return dict(
            self.db.all(
                "SELECT error_type, count(*) FROM tasks WHERE error_type NOT NULL GROUP BY 1 ORDER BY 2 DESC, 1"
            )
        )

    def forbidden(self, job: Job | None) -> int:
        """How many tasks robots.txt has kept from being fetched."""
        [(count,)] = self.db.all(
            f"SELECT count(*) FROM tasks WHERE {self._of(job)} AND status = 'skipped' AND error_type = 'robots'",
            (job.id,) if job else (),
        )
        return int(count)

    def receipt(self, job: Job) -> Receipt:
        """The books of a job, checked against everything else that the ledger knows of it; of one
        moment."""
        with reading(self.db):
            books, problems = self.job_books(job), []
            for problem, sql in _CHECKS.items():
                [(count,)] = self.db.all(sql.format(members=self._members(job)), (job.id,))
                if count:
                    problems.append(f"{count:,} {problem}; {program()} doctor tells more")
            [(rejected,)] = self.db.all(
                "SELECT count(*) FROM rejected_rows WHERE job_id = ?", (job.id,)
            )
            [(links,)] = self.db.all("SELECT count(*) FROM job_links WHERE job_id = ?", (job.id,))
            [(own,)] = self.db.all("SELECT count(*) FROM tasks WHERE job_id = ?", (job.id,))
            digest, found, missing = sha256(), Counter[str](), Counter[str]()
            for *row, record in self.db.execute(
                f"""SELECT url, parcel_id, status, body_sha256, CAST(record AS BLOB) FROM tasks t
                    LEFT JOIN results ON task = t.id WHERE t.id IN ({self._members(job)}) ORDER BY t.id""",
                (job.id,),
            ):
                digest.update(
                    "\t".join(str(value or "") for value in row).encode()
                    + b"\t"
                    + (record or b"")
                    + b"\n"
                )
                found[row[2]] += 1
                if record and b'"missing":' in record:
                    with suppress(
                        msgspec.MsgspecError, ValueError
                    ):  # what cannot be read is among the problems
                        missing.update(msgspec.json.decode(record, type=_Record).missing)
            counted = {state: count for state in TaskStatus if (count := getattr(books, state))}
            if found != counted:  # these come from an index, those from the rows
                problems.append(
                    f"an index of lpm.db has other states of tasks than their rows; {mend()}"
                )
            problems += [f"{fault}; {mend()}" for fault in index_faults(self.db, ["tasks"])]
            return Receipt(
                job=job.name,
                status=job.state,
                rows=own + links + rejected,
                known=links,
                rejected=rejected,
                books=books,
                reasons=self.reasons(job),
                problems=problems,
                accepted=[
                    loss.what for loss in losses.of(self.db, job) if loss.how == losses.ACCEPTED
                ],
                missing_fields=self._missing_fields(job, missing) if missing else [],
                checksum=digest.hexdigest(),
            )

    def _missing_fields(self, job: Job, missing: Counter[str]) -> list[MissingField]:
        """These fields with how many pages have been read for them: other pages of the job may be
        of other sites."""
        read = Counter[str]()
        for (record,) in self.db.execute(
            f"SELECT CAST(record AS BLOB) FROM results WHERE task IN ({self._members(job)})",
            (job.id,),
        ):
            with suppress(msgspec.MsgspecError, ValueError):
                read.update(
                    missing.keys() & msgspec.json.decode(record, type=dict[str, msgspec.Raw]).keys()
                )
        return [MissingField(name, pages, read[name]) for name, pages in missing.most_common()]

    def tasks(
        self,
        job: Job | None = None,
        statuses: Collection[str] = (),
        reason: str | None = None,
        domain: str | None = None,
        limit: int | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Tasks as they stand, in the order of import, read some at a time; `their_id` is a
        Gateway's name for one."""
        last = 0
        while limit is None or limit > 0:
            size = min(1000, limit or 1000)
            rows = self.db.all(
                f"""SELECT id, {_LISTED} FROM tasks NOT INDEXED
                    WHERE {self._of(job)} AND id > ? AND (? IS NULL OR error_type = ?) AND (? IS NULL OR domain = ?)
                    AND (? OR status IN (SELECT value FROM json_each(?))) ORDER BY id LIMIT ?""",
                (*((job.id,) if job else ()), last, reason, reason, domain, domain, not statuses,
                 msgspec.json.encode(list(statuses)).decode(), size),
            )  # fmt: skip
            for row in rows:
                yield dict(zip(_LISTED_NAMES, row[1:], strict=True))
            if len(rows) < size:
                return
            last, limit = rows[-1][0], None if limit is None else limit - size

    def examples(self, job: Job | None, most: int = 5) -> list[dict[str, Any]]:
        """One task for each reason to end without a result, the most frequent reasons first."""
        rows = self.db.all(
            f"""SELECT {_LISTED} FROM (
                    SELECT min(id) AS first, count(*) AS count FROM tasks WHERE {self._of(job)} AND status IN {_ENDED}
                    GROUP BY status, error_type) JOIN tasks ON tasks.id = first
                ORDER BY count DESC, first LIMIT ?""",
            (*((job.id,) if job else ()), most),
        )
        return [dict(zip(_LISTED_NAMES, row, strict=True)) for row in rows]

    def ended_at(self, job: Job) -> float | None:
        """When the last task of a job came to its end."""
        [(at,)] = self.db.all(
            f"SELECT max(completed_at) FROM tasks WHERE id IN ({self._members(job)})", (job.id,)
        )
        return float(at) if at is not None else None

    def _of(self, job: Job | None) -> str:
        """The condition for a job's tasks, or for all; the job's number is the first value."""
        if job is None:
            return "1"
        shared = (
            " OR id IN (SELECT task FROM job_links WHERE job_id = ?1)" if self._shares(job) else ""
        )
        return f"(job_id = ?1{shared})"

    def progress(self, job: Job | None) -> Books:
        """The states of a job or of all tasks, without looking at results: cheap enough to ask
        again and again."""
        if job is None:
            return _books(self.db.all("SELECT status, count(*) FROM tasks GROUP BY status"), ())
        return _books(self._states(job), ())

    def job_books(self, job: Job) -> Books:
        """The counts of one job; a task that it shares with another counts for both."""
        outbox = self.db.all(
            f"SELECT state, count(*) FROM outbox WHERE task IN ({self._members(job)}) GROUP BY state",
            (job.id,),
        )
        return _books(self._states(job), outbox)

    def delivery(self, job: Job | None) -> Delivery:
        """Where the results of a job or of all tasks are, and what a Gateway has of them."""
        where = f"task IN ({self._members(job)})" if job else "1"
        which = (job.id,) if job else ()
        kept = self.db.all(
            f"SELECT state, archived_at IS NULL, count(*) FROM outbox WHERE {where} GROUP BY 1, 2",
            which,
        )
        told = self.db.all(
            f"SELECT 'reports_' || state, count(*) FROM reports WHERE {where} GROUP BY 1", which
        )
        of = f"state = 'ready' AND {where}"
        [(oldest,)] = self.db.all(
            f"""SELECT min(at) FROM (SELECT min(created_at) AS at FROM outbox WHERE {of}
                UNION ALL SELECT min(created_at) FROM reports WHERE {of})""",
            which,
        )
        [(late, without_page, replaced)] = self.db.all(
            f"""SELECT ifnull(sum(late), 0), ifnull(sum(raw_sent_at = 0), 0),
                    ifnull(sum(replaced AND state = 'synced'), 0) FROM outbox
                WHERE state <> 'held' AND (late OR raw_sent_at = 0 OR replaced) AND {where}""",
            which,
        )
        states = {state: count for state, count in told if state in Delivery.__struct_fields__}
        for known in (
            "held",
            "ready",
            "synced",
            "rejected",
        ):  # another one is damage, which the doctor finds
            states[known] = sum(count for state, _, count in kept if state == known)
        return Delivery(
            results=sum(count for _, _, count in kept),
            pending=sum(count for state, here, count in kept if here and state != "synced"),
            archived=sum(count for state, here, count in kept if not here and state != "synced"),
            oldest=oldest,
            late=late,
            without_page=without_page,
            replaced=replaced,
            **states,
        )

    def _states(self, job: Job) -> list[tuple[Any, ...]]:
        return self.db.all(
            f"SELECT status, count(*) FROM tasks WHERE {self._of(job)} GROUP BY status", (job.id,)
        )

    def _members(self, job: Job) -> str:
        own = "SELECT id FROM tasks WHERE job_id = ?1"
        return (
            f"{own} UNION SELECT task FROM job_links WHERE job_id = ?1"
            if self._shares(job)
            else own
        )

    def _shares(self, job: Job) -> bool:
        return (
            self.db.one("SELECT 1 FROM job_links WHERE job_id = ? LIMIT 1", (job.id,)) is not None
        )


class _Record(msgspec.Struct):
    """Of a record, the list of the required fields that its page lacks."""

    missing: list[str] = []


def index_faults(db: Database, tables: Iterable[str]) -> list[str]:
    """The indexes of these tables that have other numbers of entries than there are rows for; as of
    one moment.

    What an index lacks is never claimed or counted, and SQLite alone does not tell: its own check
    passes an index whose pages are those of something else, as long as it should be empty.
    """
    faults = []
    for table in tables:
        found = db.all(
            "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND tbl_name = ? AND sql NOT NULL",
            (table,),
        )
        indexes = {name: sql.partition(" WHERE ")[2] or "1" for name, sql in found}
        sums = ", ".join(f"ifnull(sum({condition}), 0)" for condition in indexes.values())
        [rows] = db.all(f"SELECT {sums} FROM {table} NOT INDEXED") if indexes else [()]
        for (name, condition), wanted in zip(indexes.items(), rows, strict=True):
            [(has,)] = db.all(f"SELECT count(*) FROM {table} INDEXED BY {name} WHERE {condition}")
            if has != wanted:
                faults.append(
                    f"the index {name} of lpm.db has {has:,} entries for {wanted:,} {table}"
                )
    return faults


def mend() -> str:
    """What to type where the ledger does not agree with itself."""
    return f"mend it: {program()} doctor --repair"


def as_job(row: tuple[Any, ...]) -> Job:
    options = msgspec.json.decode(row[-1], type=JobOptions) if row[-1] else JobOptions()
    fields = dict(zip(Job.__struct_fields__, row, strict=True))
    return Job(**{**fields, "status": JobStatus(row[2]), "options": options})


def _books(states: Iterable[tuple[str, int]], outbox: Iterable[tuple[str, int]]) -> Books:
    counts, sent = dict(states), dict(outbox)
    if unknown := sum(counts[state] for state in counts.keys() - set(TaskStatus)):
        raise StoreError(
            f"{unknown:,} tasks are in a state that this program does not know; {mend()}"
        )
    results, synced = sum(sent.values()), sent.get("synced", 0)
    return Books(
        **{**counts, "accepted": sum(counts.values()), "results": results, "synced": synced,
           "unsynced": results - synced}
    )  # fmt: skip
