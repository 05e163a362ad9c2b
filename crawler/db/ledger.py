"""The ledger's statements: who comes next, who holds what, what is where."""

import random
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import PurePath
from typing import Any, NamedTuple

import msgspec

from crawler.db import losses, siblings
from crawler.db.acts import COUNTS_FOR, HELD, Acts
from crawler.db.books import DUE, JOB, SUSPECT_DEATHS, TURN, as_job
from crawler.db.connection import Database, writing
from crawler.models import (
    NO_DEADLINE,
    QUEUES,
    Imported,
    Job,
    JobOptions,
    Known,
    NewTask,
    Task,
    encoded_input,
)

_TASK = """id, task_id, url, domain, queue, priority, fence, attempts, failures, loopback, job_id,
           (SELECT size FROM jobs WHERE jobs.id = tasks.job_id), platform, error_type"""
_UNHELD = "not_before = iif(not_before = 9e15, 0, not_before)"
_IS_STORED = (
    "(r.raw_segment IS NULL OR EXISTS (SELECT 1 FROM raw_segments s WHERE s.name = r.raw_segment))"
)
_SUSPECTED = f"status = 'pending' AND not_before = 0 AND deaths >= {SUSPECT_DEATHS}"
_DOMAINS = 64
_SAMPLE = 100
MAX_PROBE_GROUPS = 64
"""Priorities and deadlines in which a page to probe a domain with is looked for."""
_LAST = "\U0010ffff"
"""Behind every domain."""
_AT = f"FROM tasks WHERE {DUE} AND queue = ?1 AND priority = ?2 AND deadline = ?3"
_DUE_DOMAINS = f"""
    WITH RECURSIVE found(domain) AS (
        SELECT min(domain) {_AT} AND domain > ?4
        UNION ALL
        SELECT (SELECT min(domain) {_AT} AND domain > found.domain) FROM found WHERE domain IS NOT NULL
        LIMIT {_DOMAINS}
    )
    SELECT domain, (SELECT job_id {_AT} AND domain = found.domain ORDER BY {TURN} LIMIT 1)
    FROM found WHERE domain <= ?5"""


class Due(NamedTuple):
    """A place in the order of due tasks: one domain within one queue, priority and deadline."""

    queue: str
    group: tuple[int, float]
    domain: str
    job_id: int | None
    """The job of its first task."""


class Place(NamedTuple):
    """So many of the tasks that are due at a place may be claimed, as long as their jobs fit."""

    due: Due
    most: int
    fits: Callable[[int | None], bool]
    probe_in: Sequence[str] = ()
    """Where the first one is to show whether the domain answers at all: the queues to look for such
    a page in."""


class Suspect(NamedTuple):
    """A task that was in flight at several deaths of workers that nobody could be blamed for."""

    id: int
    domain: str
    job_id: int | None
    leased_at: float


class RejectedRow(NamedTuple):
    """A row of input that no task could be made of: where it stands, why, and how it begins."""

    line: int
    reason: str
    text: str
    item: int = 1


_RowKey = tuple[int | None, int, int | None, int]
"""What a row of input is known by: its job, the number of its file there, its line, and the
how-many-eth on that."""


class Chunk(msgspec.Struct, frozen=True):
    """The slice of work that one message carries."""

    message_id: str
    queue: str
    task_ids: tuple[str, ...]


class Ledger(Acts):
    """Statements on one connection; every method is one transaction or less.

    `has_page` says whether the page of a result is as it should be, by its segment and its end
    there.
    """

    def __init__(
        self,
        connection: Database,
        has_page: Callable[[str | None, int], bool] = lambda segment, end: True,
    ) -> None:
        super().__init__(connection)
        self._has_page = has_page
        self._replacing: tuple[int, int] | None = None
        """The job and the number of a file of which another state is being read; its rows are in
        `seen_rows`."""

    # Doors

    def open_job(
        self,
        *,
        key: str,
        name: str,
        queue: str,
        source: str,
        source_file: str | None,
        batch_size: int,
        now: float,
        watched: bool = False,
        deadline: float | None = None,
        options: JobOptions | None = None,
        checksum: str = "",
        rows: Iterable[NewTask] = (),
        replaces: bool = False,
    ) -> Job:
        """The open job known by this key, or a new one under this name or the next free one like
        it.

        `watched` is for whoever waits for the end: where that was killed, the ended job is its own,
        not a new one. `checksum` and the first `rows` are those of the file that is read into it.
        `replaces` says that what was read from this very path before was not the whole file: it
        goes into the same job.
        """
        told = msgspec.json.encode(options).decode() if options else None
        with writing(self.db):
            if replaces:
                self._replace_import(key, checksum, source_file)
            found = self.db.all(
                f"""UPDATE jobs SET status = 'importing', completed_at = NULL, watched = max(watched, ?2),
                        deadline = ifnull(?3, deadline), options = ifnull(?4, options)
                    WHERE id = (SELECT max(id) FROM jobs WHERE key = ?1 AND (status <> 'done' OR (?2 AND watched)))
                    RETURNING {JOB}""",
                (key, watched, deadline, told),
            ) or self.db.all(
                f"""INSERT INTO jobs (name, key, status, queue, source, source_file, batch_size, created_at, watched,
                        deadline, options)
                    VALUES (?, ?, 'importing', ?, ?, ?, ?, ?, ?, ?, ?) RETURNING {JOB}""",
                (
                    self._free_name(name),
                    key,
                    queue,
                    source,
                    source_file,
                    batch_size,
                    now,
                    watched,
                    deadline,
                    told,
                ),
            )
            job = as_job(found[0])
            if checksum:
                self._note_import(job.id, key, checksum, source_file, rows)
            self._replacing = self._begin_replacing(job, key, checksum) if replaces else None
            if deadline:  # of a job that is continued, perhaps: then for what it has already
                self.db.execute(
                    f"""UPDATE tasks AS t SET deadline = (
                            SELECT min(ifnull(j.deadline, 9e15)) FROM jobs j WHERE {COUNTS_FOR})
                        WHERE job_id = ? AND status = 'pending'""",
                    (job.id,),
                )
        return job

    def _replace_import(self, key: str, checksum: str, file: str | None) -> None:
        """Let the job that an earlier state of this file was read into be that of this one."""
        row = self.db.one(
            "SELECT id, job_id, key FROM imports WHERE file = ? AND checksum <> ?", (file, checksum)
        )
        if row:
            id_, job_id, old_key = row
            self.db.execute(
                "UPDATE OR IGNORE imports SET checksum = ? WHERE id = ?", (checksum, id_)
            )
            self.db.execute(
                "UPDATE OR IGNORE jobs SET key = ? WHERE id = ? AND key = ?", (key, job_id, old_key)
            )

    def _begin_replacing(self, job: Job, key: str, checksum: str) -> tuple[int, int] | None:
        """Have the rows of a file noted as they come, where others may be there of an earlier state
        of it."""
        number = self.number_of(job, checksum)
        if not self.rows_of(job) or (key.startswith("name:") and not number):
            return None  # in a named job of an older program, number 0 may be that of several files
        self.db.execute("DROP TABLE IF EXISTS temp.seen_rows")
        self.db.execute(
            "CREATE TEMP TABLE seen_rows (line INTEGER, item INTEGER, task INTEGER, PRIMARY KEY (line, item, task))"
        )
        return job.id, number

    def _see(self, task: int | None, row: _RowKey) -> None:
        job_id, number, line, item = row
        if self._replacing == (job_id, number):
            self.db.execute(
                "INSERT OR IGNORE INTO seen_rows VALUES (?, ?, ?)", (line or 0, item, task)
            )

    def _end_replacing(self, now: float) -> None:
        """Let what an earlier state of a file had, and this one has not, count for the job no more.

        No task is ever removed: one that no row means any more is on its own, and is not fetched
        for nobody.
        """
        assert self._replacing
        here = "job_id = ?1 AND file_number = ?2"
        seen = "SELECT 1 FROM seen_rows WHERE line = source_line AND item = source_item AND"
        self.db.execute(
            f"DELETE FROM rejected_rows WHERE {here} AND NOT EXISTS ({seen} task IS NULL)",
            self._replacing,
        )
        self.db.execute(
            f"DELETE FROM job_links WHERE {here} AND NOT EXISTS ({seen} seen_rows.task = job_links.task)",
            self._replacing,
        )
        for (id_,) in self.db.all(
            f"SELECT id FROM tasks WHERE {here} AND source_line IS NOT NULL AND NOT EXISTS ({seen} task = id)",
            self._replacing,
        ):
            self._end_row(id_, now)
        losses.count_rows(self.db, self._replacing[0])
        self.db.execute("DROP TABLE temp.seen_rows")
        self._replacing = None

    def _end_row(self, id_: int, now: float) -> None:
        """Give a task whose row has gone to another row of its file, or to none."""
        assert self._replacing
        job_id, number = self._replacing
        link = self.db.one(
            """SELECT source_line, source_item, input, row_crc32 FROM job_links
               WHERE job_id = ? AND task = ? AND file_number = ? ORDER BY 1, 2 LIMIT 1""",
            (job_id, id_, number),
        )
        if link:
            self.db.execute(
                "UPDATE tasks SET source_line = ?, source_item = ?, input = ?, row_crc32 = ? WHERE id = ?",
                (*link, id_),
            )
            self.db.execute(
                """DELETE FROM job_links WHERE job_id = ? AND task = ? AND file_number = ?
                   AND source_line = ? AND source_item = ?""",
                (job_id, id_, number, *link[:2]),
            )
            return
        self.event(
            id_, "replaced", {"message": "the file was replaced, and has no such row any more"}, now
        )
        self.db.execute(
            "UPDATE tasks SET job_id = NULL, file_number = 0, row_crc32 = NULL WHERE id = ?", (id_,)
        )
        if not self.db.one(
            """SELECT 1 FROM tasks WHERE id = ?1 AND external_id IS NOT NULL
               UNION ALL SELECT 1 FROM job_links WHERE task = ?1""",
            (id_,),
        ):
            self.end_without_result(
                [id_], "skipped", "replaced", "its file was replaced, and has it no more", now
            )

    def _note_import(
        self, job_id: int, key: str, checksum: str, file: str | None, rows: Iterable[NewTask]
    ) -> None:
        """Note that a file is being read into a job, under the number that it has there."""
        row = self.db.one(
            "SELECT number FROM imports WHERE job_id = ? AND checksum = ?", (job_id, checksum)
        )
        number = row[0] if row else self._number_for(job_id, key, file, rows)
        self.db.execute(
            """INSERT INTO imports (job_id, key, checksum, file, number) VALUES (?, ?, ?, ?, ?)
               ON CONFLICT DO UPDATE SET ended_at = NULL, key = excluded.key, file = excluded.file""",
            (job_id, key, checksum, file, number),
        )
        self.db.execute("UPDATE jobs SET files = max(files, ?) WHERE id = ?", (number + 1, job_id))

    def _number_for(self, job_id: int, key: str, file: str | None, rows: Iterable[NewTask]) -> int:
        """A new number for a file of a job, or that of its rows, where a repair or an older program
        forgot the file."""
        [(files, known)] = self.db.all(
            "SELECT files, (SELECT count(*) FROM imports WHERE job_id = jobs.id) FROM jobs WHERE id = ?",
            (job_id,),
        )
        found = self._number_before(job_id, file, rows, files) if known < files else None
        if found is not None:
            return found
        return int(files) if key.startswith("name:") else 0  # only a named job has several

    def _number_before(
        self, job_id: int, file: str | None, rows: Iterable[NewTask], files: int
    ) -> int | None:
        """The number that a file had: that of tasks from its path, or of most of its first rows if
        it was moved."""
        by_path = self.db.one(
            """SELECT file_number FROM tasks WHERE job_id = ?1 AND source_file = ?2 AND NOT EXISTS (
                   SELECT 1 FROM imports WHERE job_id = ?1 AND number = file_number AND file = ?2) LIMIT 1""",
            (job_id, file),
        )
        if by_path:
            return int(by_path[0])
        first, taken = (
            list(rows),
            self.db.all("SELECT number FROM imports WHERE job_id = ?", (job_id,)),
        )
        found: dict[tuple[bool, int], int] = {}
        for number in range(files):
            count = (number,) not in taken and sum(
                self._has_row(task, job_id, number) for task in first
            )
            if count:  # rows of another path are less likely this file's
                of_other = "SELECT 1 FROM tasks WHERE job_id = ? AND file_number = ? AND source_file <> ? LIMIT 1"
                found[self.db.one(of_other, (job_id, number, file)) is not None, -count] = number
        return found[min(found)] if found else None

    def number_of(self, job: Job, checksum: str) -> int:
        """The number of a file within its job."""
        [(number,)] = self.db.all(
            "SELECT number FROM imports WHERE job_id = ? AND checksum = ?", (job.id, checksum)
        )
        return int(number)

    def move_import(self, file: str, to: str) -> None:
        """A file that was imported lies elsewhere now: whoever is to read it again is told so."""
        with writing(self.db):
            jobs = "SELECT job_id FROM imports WHERE file = ?1"
            self.db.execute(
                f"UPDATE jobs SET source_file = ?2 WHERE source_file = ?1 AND id IN ({jobs})",
                (file, to),
            )
            self.db.execute("UPDATE imports SET file = ?2 WHERE file = ?1", (file, to))

    def report_job(self, job: Job) -> None:
        """Whoever waited for the job has told its end: the next import of the same file is a new
        one."""
        with writing(self.db):
            self.db.execute("UPDATE jobs SET watched = 0 WHERE id = ?", (job.id,))

    def _free_name(self, name: str) -> str:
        taken = {
            row[0]
            for row in self.db.execute("SELECT name FROM jobs WHERE name LIKE ? || '%'", (name,))
        }
        number, free = 1, name
        while free in taken:
            number += 1
            free = f"{name}-{number}"
        return free

    def namesakes(self, job: Job) -> list[Job]:
        """The other jobs that were made of files with the name of one of its own, the oldest
        first."""
        names: dict[str, set[int]] = {}
        for id_, file in self.db.execute(
            """SELECT id, source_file FROM jobs WHERE source = 'file' AND source_file IS NOT NULL
               UNION SELECT job_id, file FROM imports WHERE job_id IN (SELECT id FROM jobs WHERE source = 'file')"""
        ):
            names.setdefault(PurePath(file).name, set()).add(id_)
        ids = {id_ for same in names.values() if job.id in same for id_ in same}
        return [each for each in self.jobs() if each.id in ids and each.id != job.id]

    def later_namesakes(self, job: Job) -> list[Job]:
        """Those of them that came after it."""
        return [each for each in self.namesakes(job) if each.id > job.id]

    def newest_job_of(self, checksum: str) -> Job | None:
        """The job that a file with this content was read into last."""
        row = self.db.one(
            f"""SELECT {JOB} FROM jobs WHERE source = 'file' AND id IN (
                    SELECT job_id FROM imports WHERE checksum = ?) ORDER BY id DESC""",
            (checksum,),
        )
        return as_job(row) if row else None

    def close_import(self, job: Job, now: float, checksum: str = "", rows: int = 0) -> None:
        """A file of the job was read to its end: when none is left, the job may end, and what it
        had lost is back."""
        with writing(self.db):
            self.db.execute(
                "UPDATE imports SET ended_at = ?, rows = ? WHERE job_id = ? AND checksum = ?",
                (now, rows, job.id, checksum),
            )
            if checksum:
                if self._replacing and not self._has_losses(job.id):
                    self._end_replacing(now)
                self._count_once(job, checksum)
            self.db.execute(
                """UPDATE jobs SET status = 'open' WHERE id = ?1 AND status = 'importing'
                   AND NOT EXISTS (SELECT 1 FROM imports WHERE job_id = ?1 AND ended_at IS NULL)""",
                (job.id,),
            )
            if self._is_whole_again(job):
                losses.settle(self.db, job.id, losses.IMPORTED_AGAIN, now)

    def _count_once(self, job: Job, checksum: str) -> None:
        """Forget that rows were rejected which another reading let in: the sites' URL templates may
        have changed."""
        [(rows,)] = self.db.all("SELECT sum(rows) FROM imports WHERE job_id = ?", (job.id,))
        if self.rows_of(job) <= rows:
            return
        self.db.execute(
            """DELETE FROM rejected_rows WHERE job_id = ?1 AND file_number = ?2
               AND (source_line, source_item) IN (
                   SELECT source_line, source_item FROM tasks WHERE job_id = ?1 AND file_number = ?2
                   UNION ALL
                   SELECT source_line, source_item FROM job_links WHERE job_id = ?1 AND file_number = ?2)
               AND 1 >= (SELECT count(DISTINCT source_file) FROM tasks WHERE job_id = ?1 AND file_number = ?2)""",
            (job.id, self.number_of(job, checksum)),
        )
        self.db.execute(
            "UPDATE jobs SET rejected = rejected - ? WHERE id = ?", (self.db.changes(), job.id)
        )

    def _is_whole_again(self, job: Job) -> bool:
        """Whether every file of a job with losses was read again since, and these have at least as
        many rows."""
        if job.of_gateway or not self._has_losses(job.id):
            return False
        [(again, rows)] = self.db.all(
            """SELECT min(ended_at IS NOT NULL) AND count(*) >= (SELECT files FROM jobs WHERE id = ?1), sum(rows)
               FROM imports WHERE job_id = ?1""",
            (job.id,),
        )
        return bool(again) and self.rows_of(job) <= rows

    def _has_losses(self, job_id: int) -> bool:
        lost = "SELECT 1 FROM losses WHERE job_id = ? AND kind = 'rows' AND settled_at IS NULL"
        return self.db.one(lost, (job_id,)) is not None

    def adopt(self, key: str, tasks: Iterable[NewTask]) -> None:
        """Let a job of which nothing tells the file any more be found by this key, if these are its
        first rows."""
        orphans = self.db.all(
            "SELECT id FROM jobs WHERE key LIKE 'salvaged %' AND status <> 'done' ORDER BY id"
        )
        if not orphans or self.db.one(
            "SELECT 1 FROM jobs WHERE key = ? AND status <> 'done'", (key,)
        ):
            return
        rows = list(tasks)
        for (job_id,) in orphans:
            found = sum(self._has_row(task, job_id) for task in rows)
            if found and 2 * found >= len(rows):
                with writing(self.db):
                    self.db.execute("UPDATE jobs SET key = ? WHERE id = ?", (key, job_id))
                return

    def _has_row(self, task: NewTask, job_id: int, number: int | None = None) -> bool:
        """Whether a job has this row, in any of its files or in that of the number."""
        row = self.db.one(
            """SELECT 1 FROM tasks t WHERE url_key = ?1 AND parcel_id = ?2 AND (
                   (job_id = ?3 AND (source_line IS NULL OR (
                        (source_line, source_item) = (?4, ?5) AND file_number = ifnull(?6, file_number))))
                   OR EXISTS (SELECT 1 FROM job_links WHERE job_id = ?3 AND task = t.id
                              AND (source_line, source_item) = (?4, ?5) AND file_number = ifnull(?6, file_number)))""",
            (task.address.key, task.parcel_id, job_id, task.line, task.item, number),
        )
        return row is not None

    def add(
        self,
        tasks: Iterable[NewTask],
        *,
        job: Job | None,
        queue: str,
        source: str,
        source_file: str | None,
        file_number: int,
        loopback: bool,
        fresh_after: float,
        now: float,
    ) -> Imported:
        """Insert what is not there yet; what is counts for this job too, at the more urgent of both
        places."""
        accepted = known = linked = 0
        job_id, deadline = (job.id, job.deadline or NO_DEADLINE) if job else (None, NO_DEADLINE)
        with writing(self.db):
            mending = job_id is not None and self._has_losses(job_id)
            # What was open when the job's rows first came in was known then, and is now.
            since = min(fresh_after, job.created_at) if job else fresh_after
            for task in tasks:
                address = task.address
                row = (job_id, file_number, task.line, task.item)
                row_input = encoded_input(task.input)
                if mending:
                    self._recognise(task, row, source_file, row_input)
                found = self._known(task, row, since if mending else fresh_after)
                if found:
                    known += 1
                    linked += self._share(
                        found, task, row, queue, deadline, source_file, row_input, now
                    )
                    self._see(found[0], row)
                    continue
                accepted += 1
                self.db.execute(
                    """INSERT INTO tasks (task_id, external_id, job_id, url, url_key, domain, parcel_id, queue,
                           priority, deadline, source, source_file, source_line, input, loopback, imported_at,
                           file_number, source_item, row_crc32)
                       VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
                    (secrets.token_hex(16), task.external_id, job_id, address.url, address.key, address.domain,
                     task.parcel_id, queue, task.priority, deadline, source, source_file, task.line, row_input,
                     loopback, now, file_number, task.item,
                     losses.row_crc32(file_number, task.line, task.item, row_input)),
                )  # fmt: skip
                self._see(self.db.last_insert_rowid(), row)
            if (accepted or linked) and not mending:
                self.db.execute(
                    "UPDATE jobs SET size = size + ?, linked = linked + ? WHERE id = ?",
                    (accepted, linked, job_id),
                )
        return Imported(accepted, known)

    def reject(self, job: Job, rejects: Iterable[RejectedRow], file_number: int) -> None:
        """Note the rows of a job's input that no task could be made of."""
        with writing(self.db):
            rejects = list(rejects)
            before = self.db.total_changes()
            self.db.executemany(
                """INSERT OR IGNORE INTO rejected_rows (job_id, file_number, source_line, reason, text, source_item)
                   VALUES (?, ?, ?, ?, ?, ?)""",
                [(job.id, file_number, *row) for row in rejects],
            )
            new = self.db.total_changes() - before
            if new and not self._has_losses(job.id):
                self.db.execute(
                    "UPDATE jobs SET rejected = rejected + ? WHERE id = ?", (new, job.id)
                )
            for reject in rejects if self._replacing else ():
                self._see(None, (job.id, file_number, reject.line, reject.item))

    def _recognise(
        self, task: NewTask, row: _RowKey, source_file: str | None, row_input: str | None
    ) -> None:
        """Give a task whose input was lost, or which a repair has made of its result, what this row
        says of it."""
        its_row = "(job_id, file_number, source_line, source_item) = (?1, ?2, ?3, ?4)"
        names = (*row, task.address.key, task.parcel_id)
        # A task that a repair has made may have gone to a row of another parcel: this row does not
        # mean it.
        self.db.execute(
            f"""DELETE FROM job_links WHERE {its_row}
                AND task IN (SELECT id FROM tasks WHERE url_key = ?5 AND parcel_id <> ?6)""",
            names,
        )
        known = f"""SELECT 1 FROM tasks t WHERE url_key = ?5 AND parcel_id = ?6
                    AND ({its_row} OR EXISTS (SELECT 1 FROM job_links WHERE task = t.id AND {its_row}))"""
        self.db.execute(
            f"""UPDATE OR IGNORE tasks SET (job_id, file_number, source_line, source_item) = (?1, ?2, ?3, ?4),
                    parcel_id = ?6, source_file = ?7, input = ?8, url = ?9, row_crc32 = ?10
                WHERE id = (
                    SELECT id FROM tasks WHERE url_key = ?5 AND ifnull(job_id, ?1) = ?1
                    AND iif(source = 'salvage' AND source_line IS NULL,
                            parcel_id IN ('', ?6) AND NOT EXISTS ({known}),
                            input IS NULL AND parcel_id = ?6 AND {its_row})
                    ORDER BY parcel_id <> ?6 LIMIT 1)""",
            (
                *names,
                source_file,
                row_input,
                task.address.url,
                losses.row_crc32(*row[1:], row_input),
            ),
        )

    def _known(self, task: NewTask, row: _RowKey, fresh_after: float) -> tuple[Any, ...] | None:
        """The task that this row means, as it did before, or because that is open, in the same job,
        or of late."""
        job_id = row[0]
        candidates = self.db.all(
            """SELECT id, job_id, file_number, source_line, source_item, source, queue, priority, deadline, status,
                   completed_at FROM tasks WHERE url_key = ? AND parcel_id = ? AND source <> 'gateway'""",
            (task.address.key, task.parcel_id),
        )
        for found in candidates if job_id is not None else ():
            if found[1:5] == row or self._is_linked(found[0], row):
                return found
        for found in candidates:
            id_, its_job, *_, status, completed_at = found
            if (
                status in ("pending", "processing")
                or (job_id is not None and its_job == job_id)
                or (status == "completed" and completed_at >= fresh_after)
                or self.db.one(
                    "SELECT 1 FROM job_links WHERE job_id = ? AND task = ?", (job_id, id_)
                )
            ):
                return found
        return None

    def _is_linked(self, id_: int, row: _RowKey) -> bool:
        """Whether this very row means that task already."""
        job_id, number, line, item = row
        link = self.db.one(
            """SELECT 1 FROM job_links
               WHERE job_id = ? AND task = ? AND file_number = ? AND source_line = ? AND source_item = ?""",
            (job_id, id_, number, line or 0, item),
        )
        return link is not None

    def _share(
        self,
        found: tuple[Any, ...],
        task: NewTask,
        row: _RowKey,
        queue: str,
        deadline: float,
        source_file: str | None,
        row_input: str | None,
        now: float,
    ) -> bool:
        """Let a known task count for this row too; whether it did not yet."""
        id_, its_job, _, its_line, _, source, its_queue, its_priority, its_deadline, status, _ = (
            found
        )
        its_place = (QUEUES.index(its_queue), its_priority, its_deadline)
        place = (
            min(QUEUES.index(queue), its_place[0]),
            min(task.priority, its_priority),
            its_deadline
            if its_job is None
            else min(deadline, its_deadline),  # a call of its own has none
        )
        if status == "pending":  # held for a paused job, it goes on for this one
            self.db.execute(f"UPDATE tasks SET {_UNHELD} WHERE id = ?", (id_,))
        if status == "pending" and place != its_place:
            self.db.execute(
                "UPDATE tasks SET queue = ?, priority = ?, deadline = ?, message_id = NULL WHERE id = ?",
                (QUEUES[place[0]], *place[1:], id_),
            )
            self.event(id_, "raised", {"queue": QUEUES[place[0]], "priority": place[1]}, now)
        job_id, number, line, item = row
        if job_id is None or found[1:5] == row:
            return False
        if (its_job, its_line, source) == (job_id, None, "salvage") and not self._is_linked(
            id_, row
        ):
            # Made again of its result, which tells no line: this row is the first to mean it.
            self.db.execute(
                """UPDATE tasks SET file_number = ?, source_line = ?, source_item = ?, source_file = ?, input = ?,
                       row_crc32 = ? WHERE id = ?""",
                (
                    number,
                    line,
                    item,
                    source_file,
                    row_input,
                    losses.row_crc32(number, line, item, row_input),
                    id_,
                ),
            )
            return False
        self.db.execute(
            """INSERT OR IGNORE INTO job_links (job_id, task, file_number, source_line, source_item, input,
                   row_crc32) VALUES (?, ?, ?, ?, ?, ?, ?)""",
            (
                job_id,
                id_,
                number,
                line or 0,
                item,
                row_input,
                losses.row_crc32(number, line or 0, item, row_input),
            ),
        )
        return bool(self.db.changes())

    def add_call(self, task: NewTask, *, loopback: bool, now: float, held: bool = False) -> int:
        """The task that this call has made before, the open one for its URL, or a new one.

        `held` keeps a new one from everybody but who asks for it by its number.
        """
        address = task.address
        with writing(self.db):
            rows = (
                self.db.all(
                    "SELECT id FROM tasks WHERE external_id = ? AND source <> 'gateway' ORDER BY id LIMIT 1",
                    (task.external_id,),
                )
                or self.db.all(
                    f"""UPDATE tasks SET external_id = coalesce(external_id, ?), priority = 1, {_UNHELD}
                       WHERE url_key = ? AND parcel_id = ? AND is_open AND source <> 'gateway' RETURNING id""",
                    (task.external_id, address.key, task.parcel_id),
                )
                or self.db.all(
                    """INSERT INTO tasks (task_id, external_id, url, url_key, domain, parcel_id, queue, priority,
                           deadline, source, input, loopback, imported_at, not_before)
                       VALUES (?, ?, ?, ?, ?, ?, 'urgent', ?, ?, 'call', ?, ?, ?, ?) RETURNING id""",
                    (secrets.token_hex(16), task.external_id, address.url, address.key, address.domain, task.parcel_id,
                     task.priority, NO_DEADLINE, encoded_input(task.input),
                     loopback, now, HELD if held else 0.0),
                )
            )  # fmt: skip
        return int(rows[0][0])

    # Claims

    def wake(self, now: float) -> float | None:
        """End what missed its deadline and make due what has waited long enough; returns when the
        next one will be."""
        self.expire(now)
        first = "SELECT min(not_before) FROM tasks WHERE status = 'pending' AND not_before > 0"
        [(at,)] = self.db.all(first)
        while at is not None and at <= now:
            with writing(self.db):  # some at a time: others want to write too
                self.db.execute(
                    """UPDATE tasks SET not_before = 0 WHERE id IN (
                           SELECT id FROM tasks WHERE status = 'pending' AND not_before > 0 AND not_before <= ?
                           ORDER BY not_before LIMIT 1000)""",
                    (now,),
                )
            [(at,)] = self.db.all(first)
        return at  # type: ignore[no-any-return]  # the column holds numbers

    def claim(
        self,
        owner: str,
        places: Iterable[Place],
        limit: int,
        now: float,
        chance: Callable[[], float] = random.random,
    ) -> tuple[list[Task], bool]:
        """Lease up to `limit` tasks from these places, in their order; says too if more are due
        there.

        `chance` chooses the page that a closed domain is probed with.
        """
        ids: list[int] = []
        more = False
        with writing(self.db):
            for due, most, fits, probe_in in places:
                if len(ids) >= limit:
                    more = True
                    break
                count = min(most, limit - len(ids))
                probe = self._probe_rows(due.domain, probe_in, chance())
                rows = probe + [row for row in self._due_rows(due, count + 1) if row not in probe]
                fitting = _fitting(rows, fits)
                more |= len(rows) > count or len(fitting) < len(rows)
                ids += self.free_to_go(fitting, now)[:count]
            return self._lease(owner, siblings.hold(self.db, ids, now), now), more

    def _lease(self, owner: str, ids: Sequence[int], now: float) -> list[Task]:
        if not ids:
            return []
        rows = self.db.all(
            f"""UPDATE tasks SET status = 'processing', owner = ?, leased_at = ?, fence = fence + 1
                WHERE id IN (SELECT value FROM json_each(?)) AND status = 'pending' RETURNING {_TASK}""",
            (owner, now, msgspec.json.encode(ids).decode()),
        )
        order = {id_: place for place, id_ in enumerate(ids)}
        known = self._known_pages([row[0] for row in rows])
        return sorted(
            (_task(row, known.get(row[0])) for row in rows), key=lambda task: order[task.id]
        )

    def _known_pages(self, ids: Sequence[int]) -> dict[int, Known]:
        """What the last pages of these tasks' URLs said about themselves, where they are still
        there.

        The answer 304 brings no page: of one that was lost or pruned it would leave a result
        without any.
        """
        rows = self.db.all(
            f"""SELECT t.id, r.raw_segment, r.raw_offset + r.raw_length,
                   v.etag, v.last_modified, r.site_version, r.parser_version, r.task, r.final_url
               FROM json_each(?) JOIN tasks t ON t.id = value JOIN validators v ON v.url_key = t.url_key
               JOIN results r ON r.task = v.task WHERE t.job_id IS NOT NULL AND {_IS_STORED}""",
            (msgspec.json.encode(ids).decode(),),
        )
        return {
            id_: Known(*about)
            for id_, segment, end, *about in rows
            if self._has_page(segment, end or 0)
        }

    def has_page_of(self, task: int) -> bool:
        """Whether a result is still there, and its page as it should be."""
        place = self.db.one(
            f"SELECT raw_segment, raw_offset + raw_length FROM results r WHERE task = ? AND {_IS_STORED}",
            (task,),
        )
        return place is not None and self._has_page(place[0], place[1] or 0)

    def claim_one(self, owner: str, id_: int, now: float) -> Task | None:
        """Lease one task if it is pending, due or not."""
        with writing(self.db):
            self.db.execute(
                "UPDATE tasks SET not_before = 0 WHERE id = ? AND status = 'pending'", (id_,)
            )
            leased = self._lease(owner, [id_], now)
        return leased[0] if leased else None

    def waits_for_siblings(self, job: Job | None = None) -> bool:
        """Whether tasks that were put off untried wait for a page that another row is fetched
        for."""
        return bool(siblings.shared(self.db, self.untried(_SAMPLE, job)))

    def has_due(self, queues: Sequence[str]) -> bool:
        """Whether any task of these queues is due; asked before `claim`, which needs the write
        lock."""
        return any(
            self.db.one(f"SELECT 1 FROM tasks WHERE {DUE} AND queue = ? LIMIT 1", (queue,))
            for queue in queues
        )

    def suspect(self, queues: Sequence[str]) -> Suspect | None:
        """The first due task of these queues that must be tried alone."""
        for queue in queues:
            row = self.db.one(
                f"""SELECT id, domain, job_id, leased_at FROM tasks WHERE {_SUSPECTED} AND queue = ?
                    ORDER BY priority, deadline, id LIMIT 1""",
                (queue,),
            )
            if row:
                return Suspect(*row)
        return None

    def due(self, queue: str, after: str = "") -> Iterator[Due]:
        """Where tasks are due, by priority and deadline; within these the domains in turn,
        beginning behind `after`."""
        group = self._next_group(queue, "priority > ?", 0)
        while group:
            yield from self._domains(queue, group, after, _LAST)
            if after:
                yield from self._domains(queue, group, "", after)
            group = self._group_behind(queue, group)

    def due_count(self, due: Due, limit: int) -> int:
        """How many tasks are due at a place, as far as one wants to know."""
        return len(self._due_rows(due, limit))

    def _next_group(self, queue: str, behind: str, *values: float) -> tuple[int, float] | None:
        row = self.db.one(
            f"""SELECT priority, deadline FROM tasks WHERE {DUE} AND queue = ? AND {behind}
                ORDER BY priority, deadline LIMIT 1""",
            (queue, *values),
        )
        return (row[0], row[1]) if row else None

    def _group_behind(self, queue: str, group: tuple[int, float]) -> tuple[int, float] | None:
        # Two seeks: a comparison of both columns at once would scan the whole priority.
        return self._next_group(queue, "priority = ? AND deadline > ?", *group) or self._next_group(
            queue, "priority > ?", group[0]
        )

    def _domains(
        self, queue: str, group: tuple[int, float], after: str, last: str
    ) -> Iterator[Due]:
        """The domains with due tasks behind one and up to another; some at a time, each found by a
        seek."""
        rows: list[tuple[Any, ...]] = [(after, None)]
        while rows:
            rows = self.db.all(_DUE_DOMAINS, (queue, *group, rows[-1][0], last))
            for domain, job_id in rows:
                yield Due(queue, group, domain, job_id)
            if len(rows) < _DOMAINS:
                return

    def _due_rows(self, due: Due, limit: int) -> list[tuple[int, int | None]]:
        return self.db.all(
            f"""SELECT id, job_id FROM tasks WHERE {DUE} AND queue = ? AND priority = ? AND deadline = ? AND domain = ?
                ORDER BY {TURN} LIMIT ?""",
            (due.queue, *due.group, due.domain, limit),
        )

    def _probe_rows(
        self, domain: str, queues: Sequence[str], chance: float
    ) -> list[tuple[int, int | None]]:
        """A due task of a domain that has not failed yet, from anywhere in the most urgent group
        that has one.

        Bad pages stand together in most lists: the next one after a bad one would hold the domain
        for another pause.
        """
        for queue in queues:
            group = self._next_group(queue, "priority > ?", 0)
            for _ in range(MAX_PROBE_GROUPS):
                if group is None:
                    break
                if row := self._any_untried(queue, group, domain, chance):
                    return [row]
                group = self._group_behind(queue, group)
        return []

    def _any_untried(
        self, queue: str, group: tuple[int, float], domain: str, chance: float
    ) -> tuple[int, int | None] | None:
        untried = f"""SELECT id, job_id FROM tasks WHERE {DUE} AND queue = ?1 AND priority = ?2 AND deadline = ?3
            AND domain = ?4 AND failures = 0 AND {TURN} >= ?5 ORDER BY {TURN}"""
        values = (queue, *group, domain)
        first = self.db.one(f"{untried} LIMIT 1", (*values, 0))
        last = self.db.one(f"{untried} DESC LIMIT 1", (*values, 0))
        if first is None or last is None:
            return None
        at = first[0] + int(chance * (last[0] - first[0]))
        return self.db.one(f"{untried} LIMIT 1", (*values, at))

    # The window

    def fill(self, window: int, slots: int, now: float) -> list[Chunk]:
        """Choose the next tasks for the queues and note under which message each goes."""
        published = dict(
            self.db.all(
                "SELECT queue, count(*) FROM tasks WHERE status = 'pending' AND message_id IS NOT NULL GROUP BY queue"
            )
        )
        chunks: list[Chunk] = []
        with writing(self.db):
            ahead = 0
            for queue in QUEUES:
                ahead += published.get(queue, 0)
                rows = self._unpublished(queue, window - ahead)
                ahead += len(rows)
                chunks += _chunks(queue, rows, slots)
                chunks += self._suspects_alone(queue, slots)
            for chunk in chunks:
                self.db.execute(
                    """UPDATE tasks SET message_id = ?, published_at = ?
                       WHERE task_id IN (SELECT value FROM json_each(?))""",
                    (chunk.message_id, now, msgspec.json.encode(chunk.task_ids).decode()),
                )
        return chunks

    def _suspects_alone(self, queue: str, slots: int) -> list[Chunk]:
        rows = self.db.all(
            f"SELECT task_id FROM tasks WHERE {_SUSPECTED} AND queue = ? AND message_id IS NULL LIMIT ?",
            (queue, slots),
        )
        return [Chunk(_message_id(), queue, (task_id,)) for (task_id,) in rows]

    def _unpublished(self, queue: str, room: int) -> list[tuple[str, int]]:
        """Up to `room` due tasks that are in no message: by priority and deadline, then fairly
        between domains."""
        picked: list[tuple[str, int]] = []
        groups: dict[tuple[int, float], list[str]] = {}
        if room > 0:
            for due in self.due(queue):
                groups.setdefault(due.group, []).append(due.domain)
                if sum(map(len, groups.values())) >= room:
                    break
        for group, domains in groups.items():
            left = room - len(picked)
            share = -(-left // len(domains))
            lines = {
                domain: self._unpublished_rows(queue, group, domain, share) for domain in domains
            }
            if (
                sum(map(len, lines.values())) < left
            ):  # what small domains leave goes to the large ones
                large = [domain for domain, rows in lines.items() if len(rows) == share]
                lines |= {
                    domain: self._unpublished_rows(queue, group, domain, left) for domain in large
                }
            in_turn = zip_longest(*lines.values())
            picked += [row for rows in in_turn for row in rows if row is not None][:left]
            if len(picked) >= room:
                break
        return picked

    def _unpublished_rows(
        self, queue: str, group: tuple[int, float], domain: str, limit: int
    ) -> list[Any]:
        return self.db.all(
            f"""SELECT task_id, (SELECT batch_size FROM jobs WHERE jobs.id = tasks.job_id) FROM tasks
                WHERE {DUE} AND queue = ? AND priority = ? AND deadline = ? AND domain = ? AND message_id IS NULL
                ORDER BY {TURN} LIMIT ?""",
            (queue, *group, domain, limit),
        )

    def published(self) -> set[str]:
        """The messages that pending tasks are in."""
        rows = self.db.execute(
            "SELECT DISTINCT message_id FROM tasks WHERE status = 'pending' AND message_id IS NOT NULL"
        )
        return {row[0] for row in rows}

    def unpublish(self, message_ids: Collection[str]) -> None:
        """These messages are gone or done: what is still pending of them goes into new ones."""
        if message_ids:
            with writing(self.db):
                self.db.execute(
                    """UPDATE tasks SET message_id = NULL
                       WHERE status = 'pending' AND message_id IN (SELECT value FROM json_each(?))""",
                    (msgspec.json.encode(list(message_ids)).decode(),),
                )


def _fitting(
    rows: Sequence[tuple[int, int | None]], fits: Callable[[int | None], bool]
) -> list[int]:
    """The rows up to the first whose job does not fit."""
    ids: list[int] = []
    known: dict[int | None, bool] = {}
    for id_, job in rows:
        if job not in known:
            known[job] = fits(job)
        if not known[job]:
            break
        ids.append(id_)
    return ids


def _chunks(queue: str, rows: Sequence[tuple[str, int]], slots: int) -> Iterator[Chunk]:
    """Cut rows into messages: at most a job's batch size each, and several for every worker
    slot."""
    fair = max(1, -(-len(rows) // (slots * 3)))
    begin = 0
    while begin < len(rows):
        size = min(fair, rows[begin][1] or fair, 100)
        ids = tuple(task_id for task_id, _ in rows[begin : begin + size])
        yield Chunk(_message_id(), queue, ids)
        begin += size


def _message_id() -> str:
    text = secrets.token_hex(16)
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _task(row: tuple[Any, ...], known: Known | None) -> Task:
    fields = dict(zip(Task.__struct_fields__, row, strict=False))
    return Task(**{**fields, "loopback": bool(fields["loopback"]), "known": known})
