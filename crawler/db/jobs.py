"""Jobs: what was imported, whether it goes on, and the receipt of what became of it."""

import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import msgspec

from crawler.config import program
from crawler.db import listings
from crawler.db.connection import Database, reading, writing
from crawler.db.counts import Counts
from crawler.db.links import report as crawl_report
from crawler.db.results import kind_of_reason
from crawler.db.store import LISTED, Connections, Part, as_json, members, of_job
from crawler.db.tasks import MAX_TASKS_PER_COMMIT, put_aside_held
from crawler.errors import StoreError, UsageError
from crawler.files import remove_session_cookies, session_cookies, session_path
from crawler.models import (
    QUEUES,
    UNCHANGED,
    Job,
    JobOptions,
    JobStatus,
    MissingField,
    Receipt,
    TaskStatus,
)

IMPORTED_AGAIN, ACCEPTED = "imported again", "accepted"
LOST_ROWS, LOST_PAGES = "rows", "pages"
"""What was lost: rows of the input, which an import brings back, or stored pages, which nothing
does."""

_GIVEN_UP = "given up "
WANTED_PAGE = f"""raw_offset + raw_length > ifnull((SELECT CAST(value AS INTEGER) FROM meta
    WHERE key = '{_GIVEN_UP}' || {{job}} || ' ' || raw_segment), 0)"""
"""Whether a job does not do without the page of a result: `meta` has for a job and a segment up to
which byte it does.

The result keeps the place of its page: other jobs may want it, and a disk that is mounted again
brings it back.
"""
PAGE_WANTED_BY_ANY = f"""ifnull((SELECT max({WANTED_PAGE.format(job="j.id")}) FROM (
    SELECT t.job_id AS id UNION SELECT job_id FROM job_links WHERE task = t.id) j
    WHERE j.id IS NOT NULL), 1)"""
"""Whether one of the jobs that task t counts for does not, or it counts for none."""

COLUMNS = """id, name, status, queue, source_file, created_at, completed_at, deadline, hold, source,
    options"""

_CHECKS = {
    "tasks more or fewer than were accepted": """
        SELECT abs(size - (SELECT count(*) FROM tasks WHERE job_id = ?1))
        FROM jobs WHERE id = ?1""",
    "known rows more or fewer than came in": """
        SELECT abs(linked - (SELECT count(*) FROM job_links WHERE job_id = ?1))
        FROM jobs WHERE id = ?1""",
    "rejected rows more or fewer than came in": """
        SELECT abs(rejected - (SELECT count(*) FROM rejected_rows WHERE job_id = ?1))
        FROM jobs WHERE id = ?1""",
    "known rows whose tasks are gone": """
        SELECT count(*) FROM job_links l WHERE job_id = ?1
        AND NOT EXISTS (SELECT 1 FROM tasks WHERE id = l.task)""",
    "completed tasks without a result": """
        SELECT count(*) FROM tasks t WHERE id IN ({members})
        AND status = 'completed' AND NOT EXISTS (SELECT 1 FROM results WHERE task = t.id)""",
    "results whose records cannot be read": """
        SELECT count(*) FROM results WHERE task IN ({members}) AND NOT json_valid(record)""",
    "results that no Gateway would ever get": """
        SELECT count(*) FROM results r WHERE task IN ({members})
        AND NOT EXISTS (SELECT 1 FROM outbox WHERE task = r.task)""",
    "results of tasks that are not completed": """
        SELECT count(*) FROM results JOIN tasks t ON t.id = task
        WHERE t.id IN ({members}) AND status <> 'completed'""",
    "results whose raw page is not in its segment": """
        SELECT count(*) FROM results r LEFT JOIN raw_segments s ON s.name = raw_segment
        WHERE task IN ({members}) AND raw_segment IS NOT NULL
        AND raw_offset + raw_length > ifnull(s.end, 0) AND """
    + WANTED_PAGE.format(job="?1"),
}
"""What must not be, each with the statement that counts it."""

BROKEN_OFF_CRAWL = """status = 'importing' AND source = 'crawl' AND NOT EXISTS (
    SELECT 1 FROM imports WHERE job_id = jobs.id AND ended_at IS NULL)"""
"""Whether a crawl without rows was not opened to its end. Its starts come in one commit, so that it
has all of them or none."""
_IS_OVER = """status = 'open'
    AND NOT EXISTS (SELECT 1 FROM tasks
                    WHERE job_id = jobs.id AND status IN ('pending', 'processing'))
    AND NOT EXISTS (SELECT 1 FROM job_links JOIN tasks ON tasks.id = task
                    WHERE job_links.job_id = jobs.id AND is_open)"""
"""Whether an open job has no open task."""
_FINALISE = f"""UPDATE jobs SET status = 'done', completed_at = ? WHERE {_IS_OVER}
    RETURNING {COLUMNS}"""


class Loss(msgspec.Struct, frozen=True):
    """One loss of a job; it counts against the job until it is settled."""

    what: str
    kind: str
    at: float
    settled_at: float | None
    how: str | None


class Import(NamedTuple):
    """A file of a job, the job's key, and when it was read to its end."""

    file: str
    key: str
    ended_at: float | None


class Jobs(Part):
    """Finds jobs, puts them on hold, ends them, and writes their receipts."""

    def __init__(self, store: Connections, sessions: Path | None = None) -> None:
        """`sessions` is the folder of the jobs' sessions."""
        super().__init__(store)
        self._sessions = sessions
        self._has_removed_cookies = False

    def all(self, status: JobStatus | None = None) -> list[Job]:
        """The jobs, oldest first."""
        return [
            as_job(row)
            for row in self._db.all(
                f"SELECT {COLUMNS} FROM jobs WHERE ?1 IS NULL OR status = ?1 ORDER BY id", (status,)
            )
        ]

    def current(self, since: float) -> list[Job]:
        """The jobs that are open, or have ended since then."""
        return [
            as_job(row)
            for row in self._db.all(
                f"""SELECT {COLUMNS} FROM jobs WHERE status = 'open'
                    OR (status = 'done' AND completed_at > ?) ORDER BY id""",
                (since,),
            )
        ]

    def get(self, id_: int) -> Job:
        """The job of that number."""
        [row] = self._db.all(f"SELECT {COLUMNS} FROM jobs WHERE id = ?", (id_,))
        return as_job(row)

    def named(self, name: str) -> Job:
        """The job of that name; for an unknown one an error that names the nearest."""
        row = self._db.one(f"SELECT {COLUMNS} FROM jobs WHERE name = ?", (name,))
        if row:
            return as_job(row)
        names = [job.name for job in self.all()]
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.3)
        hint = "" if names else "; there are none yet"
        if near:
            hint = f"; did you mean {near[0]}?"
        raise UsageError(f"there is no job {name}{hint}")

    def namesakes(self, job: Job) -> list[Job]:
        """The other jobs of files with the name of one of its own, the oldest first."""
        names: dict[str, set[int]] = {}
        for id_, file in self._db.all(
            """SELECT id, source_file FROM jobs WHERE source = 'file' AND source_file IS NOT NULL
               UNION SELECT job_id, file FROM imports
               WHERE job_id IN (SELECT id FROM jobs WHERE source = 'file')"""
        ):
            names.setdefault(PurePath(file).name, set()).add(id_)
        ids = {id_ for same in names.values() if job.id in same for id_ in same}
        return [each for each in self.all() if each.id in ids and each.id != job.id]

    def later_namesakes(self, job: Job) -> list[Job]:
        """Those of them that came after it."""
        return [each for each in self.namesakes(job) if each.id > job.id]

    def newest_of(self, checksum: str) -> Job | None:
        """The job that a file with this content was read into last."""
        row = self._db.one(
            f"""SELECT {COLUMNS} FROM jobs WHERE source = 'file' AND id IN (
                    SELECT job_id FROM imports WHERE checksum = ?) ORDER BY id DESC""",
            (checksum,),
        )
        return as_job(row) if row else None

    def row_count(self, job: Job) -> int:
        """How many rows of a job's input are in the ledger."""
        return row_count(self._db, job.id)

    def losses(self, job: Job) -> list[Loss]:
        """What was lost of a job and neither imported again nor accepted."""
        return [loss for loss in losses_of(self._db, job) if not loss.settled_at]

    def key(self, job: Job) -> str:
        """What a job is known by to the command that began it."""
        return str(self._db.value("SELECT key FROM jobs WHERE id = ?", (job.id,)))

    def imports(self, job: Job) -> list[Import]:
        """The files that were or are to be read into a job."""
        rows = self._db.all(
            "SELECT file, key, ended_at FROM imports WHERE job_id = ? ORDER BY id", (job.id,)
        )
        return [Import(*row) for row in rows]

    def unreported(self, key: str) -> Job | None:
        """The last job with this key, if it has ended but the command that waits for it was killed
        before it could report that."""
        row = self._db.one(
            f"""SELECT {COLUMNS} FROM jobs WHERE id = (SELECT max(id) FROM jobs WHERE key = ?)
                AND status = 'done' AND watched""",
            (key,),
        )
        return as_job(row) if row else None

    def ended_at(self, job: Job) -> float | None:
        """When the last task of a job came to its end."""
        ids = members(self._db, job)
        at: float | None = self._db.value(
            f"SELECT max(completed_at) FROM tasks WHERE id IN ({ids})", (job.id,)
        )
        return at

    # Going on, or not

    def hold(self, job: Job, how: str, now: float) -> int:
        """Pause or cancel a job; returns how many tasks that puts aside.

        What is in flight goes on, and so does a task that another job wants too.
        """
        db = self._durable
        with writing(db):
            # A cancelled job gives its key free: no import continues it.
            db.execute(
                """UPDATE jobs SET hold = ?1,
                       key = iif(?1 = 'cancelled', 'cancelled:' || id, key) WHERE id = ?2""",
                (how, job.id),
            )
        aside = last = 0
        condition = "not_before < 9e15" if how == "paused" else "1"
        while ids := self._pending_ids(job, condition, last):
            with writing(db):
                aside += len(ids) - len(put_aside_held(db, ids, now))
            last = ids[-1]
        return aside

    def release(self, job: Job) -> int:
        """Let a paused job go on; returns how many tasks are due again."""
        db = self._durable
        released = last = 0
        with writing(db):
            db.execute("UPDATE jobs SET hold = 'resuming' WHERE id = ?", (job.id,))
        while ids := self._pending_ids(job, "not_before = 9e15", last):
            with writing(db):
                db.execute(f"UPDATE tasks SET not_before = 0 WHERE id {LISTED}", (as_json(ids),))
            released, last = released + len(ids), ids[-1]
        with writing(db):
            db.execute("UPDATE jobs SET hold = NULL WHERE id = ? AND hold = 'resuming'", (job.id,))
        return released

    def complete_holds(self, now: float) -> None:
        """Complete the holds and releases of commands that were killed."""
        for row in self._db.all(
            f"SELECT {COLUMNS} FROM jobs WHERE hold IS NOT NULL AND status <> 'done'"
        ):
            job = as_job(row)
            if job.hold == "resuming":
                self.release(job)
            elif job.hold == "cancelled":
                self.hold(job, "cancelled", now)

    def _pending_ids(self, job: Job, condition: str, after: int) -> list[int]:
        members_of, values = of_job(self._durable, job)
        return self._durable.column(
            f"""SELECT id FROM tasks WHERE {members_of} AND status = 'pending' AND {condition}
                AND id > ? ORDER BY id LIMIT {MAX_TASKS_PER_COMMIT}""",
            (*values, after),
        )

    def finalise(self, now: float) -> list[Job]:
        """End the jobs that have no open task, and return those that this call has ended.

        Nobody continues their lists any more, so the cookies of these are removed. The first call
        also removes what a killed process has left.
        """
        rows: list[tuple[Any, ...]] = []
        # Without such a job there is nothing to lock for; the first condition has an index.
        over = self._db.all(f"SELECT {COLUMNS} FROM jobs WHERE status <> 'done' AND {_IS_OVER}")
        if over:
            db = self._durable
            for row in over:
                listings.end_crawl_in_parts(db, as_job(row), now)
            with writing(db):
                rows = db.all(_FINALISE, (now,))
                for row in rows:
                    listings.end_crawl(db, as_job(row), now)
        if rows or not self._has_removed_cookies:
            self._remove_cookies()
        return [as_job(row) for row in rows]

    def _remove_cookies(self) -> None:
        if self._sessions is None:
            return
        # First the files: a job that has one by now is among the open jobs that are read then.
        if found := session_cookies(self._sessions):
            open_ = self._durable.column("SELECT name FROM jobs WHERE status <> 'done'")
            besides = [session_path(self._sessions, name) for name in open_]
            remove_session_cookies(found, besides)
        self._has_removed_cookies = True

    def raise_queue(self, job: Job, queue: str) -> None:
        """Move a job to the urgent queue if that is given."""
        with writing(self._durable):
            raise_queue(self._durable, job.id, queue)

    def open_broken_off_crawls(self, is_importing: Callable[[Job], bool]) -> list[Job]:
        """Let crawls go on whose command was killed after it had stored their starts."""
        condition = f"{BROKEN_OFF_CRAWL} AND size > 0 AND status <> 'done'"
        found = self._db.all(f"SELECT {COLUMNS} FROM jobs WHERE {condition}")
        opened = []
        for job in map(as_job, found):
            if not is_importing(job):
                with writing(self._durable):
                    self._durable.execute(
                        f"UPDATE jobs SET status = 'open' WHERE id = ? AND {condition}", (job.id,)
                    )
                opened.append(job)
        return opened

    def mark_reported(self, *jobs: Job) -> None:
        """Note that the end of these jobs was reported: the same file, or the same crawl, is a new
        job from now on."""
        with writing(self._durable):
            self._durable.execute(
                f"UPDATE jobs SET watched = 0 WHERE id {LISTED}", (as_json([j.id for j in jobs]),)
            )

    def accept(
        self, job: Job, missing: Sequence[tuple[str, str]], ends: Mapping[str, int], now: float
    ) -> None:
        """Accept that this (by kind) is missing of a job; its receipt says so.

        The job does without its pages in segments up to the bytes in `ends`. Other jobs that share
        its results do not.
        """
        db = self._durable
        with writing(db):
            settle_losses(db, job.id, ACCEPTED, now)
            give_up_pages(db, job.id, ends)
            _accept(db, job, missing, now)

    def accept_import(self, job: Job, what: str, now: float) -> None:
        """Accept that the rows that a job has are all of its input."""
        with writing(self._durable):
            _accept(self._durable, job, [(LOST_ROWS, what)], now)

    # The receipt

    def receipt(self, job: Job, check_indexes: bool = True) -> Receipt:
        """The counts of a job, checked against all else that the ledger knows of it.

        Indexes are those of all jobs: to check them takes a look at every task.
        """
        db, numbers = self._db, Counts(self._store)
        with reading(db):
            counts = numbers.of_job(job)
            ids = members(db, job)
            problems = _failed_checks(db, job, ids)
            own, links, rejected = _rows_by_table(db, job.id)
            read = _read_rows(db, job, ids)
            counted = {state: count for state in TaskStatus if (count := getattr(counts, state))}
            if read.states != counted:  # these come from an index, those from the rows
                what = "an index of lpm.db has other states of tasks than their rows"
                problems.append(f"{what}; {mend()}")
            if check_indexes:
                problems += [f"{fault}; {mend()}" for fault in index_faults(db, ["tasks"])]
            lost = losses_of(db, job)
            return Receipt(
                job=job.name,
                status=job.state,
                rows=own + links + rejected,
                known=links,
                rejected=rejected,
                books=counts,
                reasons=numbers.reasons(job),
                problems=problems,
                accepted=[loss.what for loss in lost if loss.how == ACCEPTED],
                missing_fields=_missing_fields(db, job, ids, read.missing) if read.missing else [],
                invalid=read.invalid,
                invalid_reasons=dict(read.reasons.most_common()),
                unchanged=read.unchanged,
                checksum=read.checksum,
                crawl=crawl_report(db, job),
            )

    def index_faults(self) -> list[str]:
        """The indexes of the tasks that hide some of them, or show some that are not there."""
        with reading(self._db):
            return index_faults(self._db, ["tasks"])


def raise_queue(db: Database, job_id: int, queue: str) -> None:
    """Move a job and its pending tasks to the urgent queue if that is given. Part of a
    transaction."""
    if queue != QUEUES[0]:
        return
    db.execute("UPDATE jobs SET queue = ? WHERE id = ?", (queue, job_id))
    db.execute(
        """UPDATE tasks SET queue = ?1, message_id = NULL
           WHERE job_id = ?2 AND status = 'pending' AND queue <> ?1""",
        (queue, job_id),
    )


def _accept(db: Database, job: Job, missing: Sequence[tuple[str, str]], now: float) -> None:
    for kind, what in missing:
        note_loss(db, job.id, what, now, kind, ACCEPTED)
    db.execute("UPDATE jobs SET status = 'open' WHERE id = ? AND status = 'importing'", (job.id,))
    db.execute(
        "UPDATE imports SET ended_at = ? WHERE job_id = ? AND ended_at IS NULL", (now, job.id)
    )


def _failed_checks(db: Database, job: Job, ids: str) -> list[str]:
    problems = []
    for problem, sql in _CHECKS.items():
        count = db.value(sql.format(members=ids), (job.id,))
        if count:
            problems.append(f"{count:,} {problem}; {program()} doctor tells more")
    return problems


def _rows_by_table(db: Database, job_id: int) -> tuple[int, int, int]:
    """How many rows of a job's input are tasks, links to known tasks, and rejected."""
    [(own, links, rejected)] = db.all(
        """SELECT (SELECT count(*) FROM tasks WHERE job_id = ?1),
                  (SELECT count(*) FROM job_links WHERE job_id = ?1),
                  (SELECT count(*) FROM rejected_rows WHERE job_id = ?1)""",
        (job_id,),
    )
    return own, links, rejected


def row_count(db: Database, job_id: int) -> int:
    """How many rows of a job's input are in the ledger."""
    return sum(_rows_by_table(db, job_id))


_MAX_REASONS = 1_000
"""Reasons of invalid records that a receipt tells apart."""


class _Record(msgspec.Struct):
    """Of a record, the list of the required fields that its page lacks."""

    missing: list[str] = []


class _Rows(NamedTuple):
    """What a job's tasks and results add up to."""

    checksum: str
    states: Counter[str]
    missing: Counter[str]
    """Required fields that pages lack."""
    invalid: int
    reasons: Counter[str]
    """Why records are invalid."""
    unchanged: int


def _read_rows(db: Database, job: Job, ids: str) -> _Rows:
    """Read all tasks and results of a job."""
    digest, states, missing = sha256(), Counter[str](), Counter[str]()
    invalid, unchanged, reasons = 0, 0, Counter[str]()
    for *row, record, refused, verdict in db.each(
        f"""SELECT url, parcel_id, status, body_sha256, CAST(record AS BLOB), invalid, verdict
            FROM tasks t LEFT JOIN results ON task = t.id WHERE t.id IN ({ids}) ORDER BY t.id""",
        (job.id,),
    ):
        fields = "\t".join(str(value or "") for value in row).encode()
        digest.update(fields + b"\t" + (record or b"") + b"\n")
        states[row[2]] += 1
        unchanged += verdict == UNCHANGED
        if record and b'"missing":' in record:
            # What cannot be read is among the problems.
            with suppress(msgspec.MsgspecError, ValueError):
                missing.update(msgspec.json.decode(record, type=_Record).missing)
        if refused:
            invalid += 1
            with suppress(msgspec.MsgspecError, ValueError):
                told = set(map(kind_of_reason, msgspec.json.decode(refused, type=list[str])))
                if len(reasons) < _MAX_REASONS:
                    reasons.update(told)
                else:
                    reasons.update(told & reasons.keys())
    return _Rows(digest.hexdigest(), states, missing, invalid, reasons, unchanged)


def _missing_fields(db: Database, job: Job, ids: str, missing: Counter[str]) -> list[MissingField]:
    """These fields, with how many pages of the job were read for each."""
    read = Counter[str]()
    for (record,) in db.each(
        f"SELECT CAST(record AS BLOB) FROM results WHERE task IN ({ids})", (job.id,)
    ):
        with suppress(msgspec.MsgspecError, ValueError):
            fields = msgspec.json.decode(record, type=dict[str, msgspec.Raw])
            read.update(name for name in missing if name.partition(".")[0] in fields)
    return [MissingField(name, pages, read[name]) for name, pages in missing.most_common()]


def index_faults(db: Database, tables: Iterable[str]) -> list[str]:
    """The indexes of these tables with more or fewer entries than there are rows for.

    A row that an index lacks is never claimed or counted. SQLite's own check passes an index whose
    pages are those of something else, if it should be empty.
    """
    faults = []
    for table in tables:
        found = db.all(
            """SELECT name, sql FROM sqlite_schema
               WHERE type = 'index' AND tbl_name = ? AND sql NOT NULL""",
            (table,),
        )
        indexes = {name: sql.partition(" WHERE ")[2] or "1" for name, sql in found}
        if not indexes:
            continue
        sums = ", ".join(f"ifnull(sum({condition}), 0)" for condition in indexes.values())
        [rows] = db.all(f"SELECT {sums} FROM {table} NOT INDEXED")
        for (name, condition), wanted in zip(indexes.items(), rows, strict=True):
            has = db.value(f"SELECT count(*) FROM {table} INDEXED BY {name} WHERE {condition}")
            if has != wanted:
                faults.append(
                    f"the index {name} of lpm.db has {has:,} entries for {wanted:,} {table}"
                )
    return faults


def mend() -> str:
    """What to type where the ledger does not agree with itself."""
    return f"mend it: {program()} doctor --repair"


def can_read_options(text: str | None) -> bool:
    """Whether the options of a job can be read."""
    try:
        msgspec.json.decode(text or "{}", type=JobOptions)
    except (msgspec.DecodeError, TypeError):
        return False
    return True


def as_job(row: tuple[Any, ...]) -> Job:
    """A job from its COLUMNS."""
    try:
        options = msgspec.json.decode(row[-1] or "{}", type=JobOptions)
        status = JobStatus(row[2])
    except (msgspec.DecodeError, ValueError) as error:
        raise StoreError(f"job {row[1]} is damaged in lpm.db ({error}); {mend()}") from error
    fields = dict(zip(Job.__struct_fields__, row, strict=True))
    return Job(**{**fields, "status": status, "options": options})


# Losses. A job stays unaccounted for until what it lost is imported again or accepted.


def note_loss(
    db: Database, job_id: int, what: str, now: float, kind: str = LOST_ROWS, how: str | None = None
) -> None:
    """Note a loss of a job, and how it was settled at once. Part of a transaction."""
    db.execute(
        """INSERT INTO losses (job_id, at, kind, what, settled_at, how)
           VALUES (?1, ?2, ?3, ?4, iif(?5 IS NULL, NULL, ?2), ?5)""",
        (job_id, now, kind, what, how),
    )


def give_up_pages(db: Database, job_id: int, ends: Mapping[str, int]) -> None:
    """Let a job do without its pages in these segments, up to these bytes. Part of a
    transaction."""
    db.executemany(
        "INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)",
        [(f"{_GIVEN_UP}{job_id} {name}", str(end)) for name, end in ends.items()],
    )


def wanted_pages(db: Database, job: Job) -> str:
    """The condition for results whose pages a job does not do without; of most jobs it is all."""
    some = db.one("SELECT 1 FROM meta WHERE key GLOB ?", (f"{_GIVEN_UP}{job.id} *",))
    return WANTED_PAGE.format(job=job.id) if some else "1"


def given_up_end(db: Database, job: Job | None, segment: str) -> int:
    """Up to which byte a job, or any, does without its pages in a segment."""
    key = f"{_GIVEN_UP}{job.id if job else '*'} {segment}"
    most = "SELECT ifnull(max(CAST(value AS INTEGER)), 0) FROM meta WHERE key GLOB ?"
    return int(db.value(most, (key,)))


def losses_of(db: Database, job: Job) -> list[Loss]:
    """The losses of a job, the oldest first."""
    rows = db.all(
        "SELECT what, kind, at, settled_at, how FROM losses WHERE job_id = ? ORDER BY id", (job.id,)
    )
    return [Loss(*row) for row in rows]


def settle_losses(db: Database, job_id: int, how: str, now: float) -> None:
    """Settle the losses of a job; from then on the rows that it has are those that it is to have,
    if it had lost any.

    Part of a transaction.
    """
    settled = db.all(
        """UPDATE losses SET settled_at = ?1, how = ?2
           WHERE job_id = ?3 AND settled_at IS NULL AND (kind = 'rows' OR ?2 = 'accepted')
           RETURNING kind""",
        (now, how, job_id),
    )
    if (LOST_ROWS,) in settled:
        # Only then: rows that are gone and that nobody was told of stay unaccounted for.
        count_rows(db, job_id)


def count_rows(db: Database, job_id: int) -> None:
    """Take the rows that a job has for those that it is to have. Part of a transaction."""
    db.execute(
        """UPDATE jobs SET size = (SELECT count(*) FROM tasks WHERE job_id = jobs.id),
               linked = (SELECT count(*) FROM job_links WHERE job_id = jobs.id),
               rejected = (SELECT count(*) FROM rejected_rows WHERE job_id = jobs.id)
           WHERE id = ?""",
        (job_id,),
    )
