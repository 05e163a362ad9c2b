"""Imports: rows of input files become tasks of jobs."""

import secrets
from collections.abc import Iterable
from typing import Any, NamedTuple

from crawler.db import timeline
from crawler.db.connection import Database, writing
from crawler.db.jobs import COLUMNS as JOB_COLUMNS
from crawler.db.jobs import IMPORTED_AGAIN, as_job, count_rows, row_count, settle_losses
from crawler.db.store import (
    COUNTS_FOR,
    IS_REMOVED,
    IS_SHARED,
    REMOVED_NAME,
    Connections,
    Part,
    as_json,
    row_crc32,
)
from crawler.db.tasks import UNHELD, end_without_result, storable
from crawler.models import (
    NO_DEADLINE,
    QUEUES,
    Imported,
    Job,
    JobOptions,
    NewTask,
    encoded_input,
)


class RejectedRow(NamedTuple):
    """A row of input that no task could be made of: where it stands, why, and how it begins."""

    line: int
    reason: str
    text: str
    item: int = 1


class _RowKey(NamedTuple):
    """What identifies a row of input."""

    job_id: int | None
    file_number: int
    """The number of its file within the job."""
    line: int | None
    item: int
    """Its place among the rows of that line, from 1."""

    def crc32(self, row_input: str | None) -> int:
        return row_crc32(*self[1:], row_input)


class _KnownTask(NamedTuple):
    """A task that a row of input may mean."""

    id: int
    job_id: int | None
    file_number: int
    line: int | None
    item: int
    source: str
    queue: str
    priority: int
    deadline: float
    status: str
    completed_at: float | None

    @property
    def row(self) -> tuple[Any, ...]:
        return self[1:5]


class Imports(Part):
    """Reads files into jobs. Reading a file again adds only what is missing."""

    def __init__(self, store: Connections) -> None:
        super().__init__(store)
        self._replacing: tuple[int, int] | None = None
        """Job and number of a file of which a newer state is read; `seen_rows` has its rows."""

    # Jobs and their files

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
        """The open job known by this key, or a new one under this name or the next free one.

        `watched` is for a caller that waits for the end: if it is killed, the ended job is found
        again. `checksum` and the first `rows` are those of the file that is read. `replaces` says
        that what was read from this path before was not the whole file: it goes into the same job.
        """
        db = self._durable
        told = as_json(options) if options else None
        if checksum:  # the rows of a file go to random places of large indexes
            db.execute("PRAGMA cache_size=-64000")
        with writing(db):
            if replaces:
                _replace_import(db, key, checksum, source_file)
            # A crawl that was narrower at first has left out links that nobody brings back.
            found = db.all(
                f"""UPDATE jobs SET status = 'importing', completed_at = NULL,
                        watched = max(watched, ?2), deadline = ifnull(?3, deadline),
                        options = ifnull(iif(options LIKE '%"whole":true%', ?4,
                            json_remove(?4, '$.crawl.whole')), options)
                    WHERE id = (SELECT max(id) FROM jobs
                                WHERE key = ?1 AND (status <> 'done' OR (?2 AND watched
                                    AND id = (SELECT max(id) FROM jobs WHERE key = ?1))))
                    RETURNING {JOB_COLUMNS}""",
                (key, watched, deadline, told),
            ) or db.all(
                f"""INSERT INTO jobs (name, key, status, queue, source, source_file, batch_size,
                        created_at, watched, deadline, options)
                    VALUES (?, ?, 'importing', ?, ?, ?, ?, ?, ?, ?, ?) RETURNING {JOB_COLUMNS}""",
                (free_name(db, name), key, queue, source, source_file, batch_size, now, watched,
                 deadline, told),
            )  # fmt: skip
            job = as_job(found[0])
            if checksum:
                _note_import(db, job.id, key, checksum, source_file, rows)
            self._replacing = _begin_replacing(db, job, key, checksum) if replaces else None
            if deadline:  # an earlier import may have given the job tasks already
                db.execute(
                    f"""UPDATE tasks AS t SET deadline = (
                            SELECT min(ifnull(j.deadline, 9e15)) FROM jobs j WHERE {COUNTS_FOR})
                        WHERE job_id = ? AND status = 'pending'""",
                    (job.id,),
                )
        return job

    def is_open(self, key: str) -> bool:
        """Whether a job with this key has not ended."""
        return _is_open(self._durable, key)

    def number_of(self, job: Job, checksum: str) -> int:
        """The number of a file within its job."""
        return _number_of(self._durable, job.id, checksum)

    def move(self, file: str, to: str) -> None:
        """Note that a file that was imported lies elsewhere now."""
        with writing(self._durable):
            jobs = "SELECT job_id FROM imports WHERE file = ?1"
            self._durable.execute(
                f"UPDATE jobs SET source_file = ?2 WHERE source_file = ?1 AND id IN ({jobs})",
                (file, to),
            )
            self._durable.execute("UPDATE imports SET file = ?2 WHERE file = ?1", (file, to))

    def adopt(self, key: str, tasks: Iterable[NewTask]) -> None:
        """Give this key to a salvaged job without a file, if these are its first rows."""
        db = self._durable
        orphans = db.column(
            "SELECT id FROM jobs WHERE key LIKE 'salvaged %' AND status <> 'done' ORDER BY id"
        )
        if not orphans or _is_open(db, key):
            return
        rows = list(tasks)
        for job_id in orphans:
            found = sum(_has_row(db, task, job_id) for task in rows)
            if found and 2 * found >= len(rows):
                with writing(db):
                    db.execute("UPDATE jobs SET key = ? WHERE id = ?", (key, job_id))
                return

    def close(self, job: Job, now: float, checksum: str = "", rows: int = 0) -> None:
        """Note that a file of the job was read to its end.

        When no file is left, the job may end, and the rows that it had lost are back.
        """
        db = self._durable
        with writing(db):
            db.execute(
                "UPDATE imports SET ended_at = ?, rows = ? WHERE job_id = ? AND checksum = ?",
                (now, rows, job.id, checksum),
            )
            if checksum:
                if self._replacing and not _has_losses(db, job.id):
                    _end_replacing(db, *self._replacing, now)
                    self._replacing = None
                _count_once(db, job.id, checksum)
            open_if_read(db, job, now)

    # Rows

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
        """Insert the tasks that are not there yet.

        Those that are count for this job too, with the more urgent queue and priority.
        """
        accepted = known = linked = 0
        job_id = job.id if job else None
        deadline = (job and job.deadline) or NO_DEADLINE
        db = self._durable
        with writing(db):
            mending = job_id is not None and _has_losses(db, job_id)
            if mending and job:
                # What was open when the job's rows first came in was known then, and is now.
                fresh_after = min(fresh_after, job.created_at)
            for task in tasks:
                row = _RowKey(job_id, file_number, task.line, task.item)
                row_input = encoded_input(task.input)
                if mending:
                    _recognise(db, task, row, source_file, row_input)
                found = _known_task(db, task, row, fresh_after)
                if found:
                    known += 1
                    _raise_priority(db, found, task, queue, deadline, now)
                    linked += _link(db, found, row, source_file, row_input)
                    self._see(found.id, row)
                    continue
                accepted += 1
                db.execute(
                    """INSERT INTO tasks (task_id, external_id, job_id, url, url_key, domain,
                           parcel_id, queue, priority, deadline, source, source_file, source_line,
                           input, loopback, imported_at, file_number, source_item, row_crc32, needs)
                       VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
                    (secrets.token_hex(16), task.external_id, job_id, *task.address,
                     task.parcel_id, queue, task.priority, deadline, source, source_file,
                     task.line, row_input, loopback, now, file_number, task.item,
                     row.crc32(row_input), task.needs),
                )  # fmt: skip
                self._see(db.last_insert_rowid(), row)
            if (accepted or linked) and not mending:
                db.execute(
                    "UPDATE jobs SET size = size + ?, linked = linked + ? WHERE id = ?",
                    (accepted, linked, job_id),
                )
        return Imported(accepted, known)

    def reject(self, job: Job, rejects: Iterable[RejectedRow], file_number: int = 0) -> None:
        """Note the rows of a job's input that no task could be made of."""
        db, rows = self._durable, list(rejects)
        with writing(db):
            before = db.total_changes()
            db.executemany(
                """INSERT OR IGNORE INTO rejected_rows
                       (job_id, file_number, source_line, reason, text, source_item)
                   VALUES (?, ?, ?, ?, ?, ?)""",
                [
                    (job.id, file_number, row.line, row.reason, storable(row.text), row.item)
                    for row in rows
                ],
            )
            new = db.total_changes() - before
            if new and not _has_losses(db, job.id):
                db.execute("UPDATE jobs SET rejected = rejected + ? WHERE id = ?", (new, job.id))
            for row in rows:
                self._see(None, _RowKey(job.id, file_number, row.line, row.item))

    def _see(self, task: int | None, row: _RowKey) -> None:
        if self._replacing == row[:2]:
            self._durable.execute(
                "INSERT OR IGNORE INTO seen_rows (line, item, task) VALUES (?, ?, ?)",
                (row.line or 0, row.item, task),
            )


def open_if_read(db: Database, job: Job, now: float) -> None:
    """Let a job go on if all its files were read to their ends. Part of a transaction."""
    db.execute(
        """UPDATE jobs SET status = 'open' WHERE id = ?1 AND status = 'importing'
           AND NOT EXISTS (SELECT 1 FROM imports WHERE job_id = ?1 AND ended_at IS NULL)""",
        (job.id,),
    )
    if not job.of_gateway and _is_whole_again(db, job.id):
        settle_losses(db, job.id, IMPORTED_AGAIN, now)


def add_to_size(db: Database, job: Job, count: int) -> None:
    """Note that tasks were added to a job. Part of a transaction."""
    db.execute("UPDATE jobs SET size = size + ? WHERE id = ?", (count, job.id))


# A file that replaces an earlier state of itself


def _replace_import(db: Database, key: str, checksum: str, file: str | None) -> None:
    """Let the job that an earlier state of this file was read into be that of this one."""
    row = db.one(
        "SELECT id, job_id, key FROM imports WHERE file = ? AND checksum <> ?", (file, checksum)
    )
    if row:
        id_, job_id, old_key = row
        db.execute("UPDATE OR IGNORE imports SET checksum = ? WHERE id = ?", (checksum, id_))
        db.execute(
            "UPDATE OR IGNORE jobs SET key = ? WHERE id = ? AND key = ?", (key, job_id, old_key)
        )


def _begin_replacing(db: Database, job: Job, key: str, checksum: str) -> tuple[int, int] | None:
    """Have the rows of a file noted as they come, where an earlier state of it may have others."""
    number = _number_of(db, job.id, checksum)
    if not row_count(db, job.id) or (key.startswith("name:") and not number):
        return None  # in a named job of an older program, number 0 may be that of several files
    db.execute("DROP TABLE IF EXISTS temp.seen_rows")
    db.execute(
        """CREATE TEMP TABLE seen_rows (line INTEGER, item INTEGER, task INTEGER,
               PRIMARY KEY (line, item, task))"""
    )
    return job.id, number


def _end_replacing(db: Database, job_id: int, number: int, now: float) -> None:
    """Take out of the job what an earlier state of a file had and this one has not.

    No task is ever removed: one that no row means any more is skipped.
    """
    here, file = "job_id = ?1 AND file_number = ?2", (job_id, number)
    seen = "SELECT 1 FROM seen_rows WHERE line = source_line AND item = source_item AND"
    db.execute(f"DELETE FROM rejected_rows WHERE {here} AND NOT EXISTS ({seen} task IS NULL)", file)
    db.execute(
        f"""DELETE FROM job_links WHERE {here}
            AND NOT EXISTS ({seen} seen_rows.task = job_links.task)""",
        file,
    )
    for id_ in db.column(
        f"""SELECT id FROM tasks WHERE {here} AND source_line IS NOT NULL
            AND NOT EXISTS ({seen} task = id)""",
        file,
    ):
        _end_row(db, id_, job_id, number, now)
    count_rows(db, job_id)
    db.execute("DROP TABLE temp.seen_rows")


def _end_row(db: Database, id_: int, job_id: int, number: int, now: float) -> None:
    """Give a task whose row has gone to another row of its file, or to none."""
    link = db.one(
        """SELECT source_line, source_item, input, row_crc32 FROM job_links
           WHERE job_id = ? AND task = ? AND file_number = ? ORDER BY 1, 2 LIMIT 1""",
        (job_id, id_, number),
    )
    if link:
        db.execute(
            """UPDATE tasks SET source_line = ?, source_item = ?, input = ?, row_crc32 = ?
               WHERE id = ?""",
            (*link, id_),
        )
        db.execute(
            """DELETE FROM job_links WHERE job_id = ? AND task = ? AND file_number = ?
               AND source_line = ? AND source_item = ?""",
            (job_id, id_, number, *link[:2]),
        )
        return
    message = "the file was replaced, and has no such row any more"
    timeline.note(db, id_, "replaced", {"message": message}, now)
    db.execute(
        "UPDATE tasks SET job_id = NULL, file_number = 0, row_crc32 = NULL WHERE id = ?", (id_,)
    )
    wanted = """SELECT 1 FROM tasks WHERE id = ?1 AND external_id IS NOT NULL
                UNION ALL SELECT 1 FROM job_links WHERE task = ?1"""
    if not db.one(wanted, (id_,)):
        message = "its file was replaced, and has it no more"
        end_without_result(db, [id_], "skipped", "replaced", message, now)


# Files of a job


def _note_import(
    db: Database, job_id: int, key: str, checksum: str, file: str | None, rows: Iterable[NewTask]
) -> None:
    """Note that a file is being read into a job, under the number that it has there."""
    known = "SELECT number FROM imports WHERE job_id = ? AND checksum = ?"
    number = db.value(known, (job_id, checksum))
    if number is None:
        number = _number_for(db, job_id, key, file, rows)
    db.execute(
        """INSERT INTO imports (job_id, key, checksum, file, number) VALUES (?, ?, ?, ?, ?)
           ON CONFLICT DO UPDATE
           SET ended_at = NULL, key = excluded.key, file = excluded.file""",
        (job_id, key, checksum, file, number),
    )
    db.execute("UPDATE jobs SET files = max(files, ?) WHERE id = ?", (number + 1, job_id))


def _number_for(
    db: Database, job_id: int, key: str, file: str | None, rows: Iterable[NewTask]
) -> int:
    """A new number for a file of a job, or the one it had before a repair forgot the file."""
    [(files, known)] = db.all(
        """SELECT files, (SELECT count(*) FROM imports WHERE job_id = jobs.id)
           FROM jobs WHERE id = ?""",
        (job_id,),
    )
    if known < files:
        found = _number_before(db, job_id, file, rows, files)
        if found is not None:
            return found
    return int(files) if key.startswith("name:") else 0  # only a named job has several


def _number_before(
    db: Database, job_id: int, file: str | None, rows: Iterable[NewTask], files: int
) -> int | None:
    """The number that a file had: that of tasks from its path, else of most of its first rows."""
    by_path = db.one(
        """SELECT file_number FROM tasks WHERE job_id = ?1 AND source_file = ?2 AND NOT EXISTS (
               SELECT 1 FROM imports WHERE job_id = ?1 AND number = file_number AND file = ?2)
           LIMIT 1""",
        (job_id, file),
    )
    if by_path:
        return int(by_path[0])
    first = list(rows)
    taken = db.column("SELECT number FROM imports WHERE job_id = ?", (job_id,))
    of_other_path = """SELECT 1 FROM tasks
        WHERE job_id = ? AND file_number = ? AND source_file <> ? LIMIT 1"""
    found: dict[tuple[bool, int], int] = {}
    for number in range(files):
        if number in taken:
            continue
        count = sum(_has_row(db, task, job_id, number) for task in first)
        if count:  # rows of another path are less likely this file's
            of_other = db.one(of_other_path, (job_id, number, file)) is not None
            found[of_other, -count] = number
    return found[min(found)] if found else None


def _number_of(db: Database, job_id: int, checksum: str) -> int:
    return int(
        db.value("SELECT number FROM imports WHERE job_id = ? AND checksum = ?", (job_id, checksum))
    )


def free_name(db: Database, name: str) -> str:
    """This name, or with the next number that no job has or had. Part of a transaction."""
    taken = """SELECT 1 FROM jobs WHERE name = ?1
               UNION ALL SELECT 1 FROM meta WHERE key = ?2 || ?1"""
    number, free = 1, name
    while db.one(taken, (free, REMOVED_NAME)):
        number += 1
        free = f"{name}-{number}"
    return free


def _is_open(db: Database, key: str) -> bool:
    return db.one("SELECT 1 FROM jobs WHERE key = ? AND status <> 'done'", (key,)) is not None


def _count_once(db: Database, job_id: int, checksum: str) -> None:
    """Forget that rows were rejected which another reading let in: site settings may change."""
    rows = db.value("SELECT sum(rows) FROM imports WHERE job_id = ?", (job_id,))
    if row_count(db, job_id) <= rows:
        return
    here = "job_id = ?1 AND file_number = ?2"
    db.execute(
        f"""DELETE FROM rejected_rows WHERE {here} AND (source_line, source_item) IN (
                SELECT source_line, source_item FROM tasks WHERE {here}
                UNION ALL SELECT source_line, source_item FROM job_links WHERE {here})
            AND 1 >= (SELECT count(DISTINCT source_file) FROM tasks WHERE {here})""",
        (job_id, _number_of(db, job_id, checksum)),
    )
    db.execute("UPDATE jobs SET rejected = rejected - ? WHERE id = ?", (db.changes(), job_id))


def _is_whole_again(db: Database, job_id: int) -> bool:
    """Whether every file of a job with losses was read again, and no row is unaccounted for."""
    if not _has_losses(db, job_id):
        return False
    [(again, rows)] = db.all(
        """SELECT min(ended_at IS NOT NULL)
                  AND count(*) >= (SELECT files FROM jobs WHERE id = ?1), sum(rows)
           FROM imports WHERE job_id = ?1""",
        (job_id,),
    )
    return bool(again) and row_count(db, job_id) <= rows


def _has_losses(db: Database, job_id: int) -> bool:
    lost = "SELECT 1 FROM losses WHERE job_id = ? AND kind = 'rows' AND settled_at IS NULL"
    return db.one(lost, (job_id,)) is not None


# Rows that mean a task which is there already


def _has_row(db: Database, task: NewTask, job_id: int, number: int | None = None) -> bool:
    """Whether a job has this row, in any of its files or in that of the number."""
    here = "(source_line, source_item) = (?4, ?5) AND file_number = ifnull(?6, file_number)"
    row = db.one(
        f"""SELECT 1 FROM tasks t WHERE url_key = ?1 AND parcel_id = ?2 AND (
                (job_id = ?3 AND (source_line IS NULL OR ({here})))
                OR EXISTS (SELECT 1 FROM job_links
                           WHERE job_id = ?3 AND task = t.id AND {here}))""",
        (task.address.key, task.parcel_id, job_id, task.line, task.item, number),
    )
    return row is not None


def _recognise(
    db: Database, task: NewTask, row: _RowKey, source_file: str | None, row_input: str | None
) -> None:
    """Give a task whose input a repair has lost what this row says of it."""
    its_row = "(job_id, file_number, source_line, source_item) = (?1, ?2, ?3, ?4)"
    names = (*row, task.address.key, task.parcel_id)
    # A task that a repair has made may have gone to a row of another parcel: this row does not
    # mean it.
    db.execute(
        f"""DELETE FROM job_links WHERE {its_row}
            AND task IN (SELECT id FROM tasks WHERE url_key = ?5 AND parcel_id <> ?6)""",
        names,
    )
    known = f"""SELECT 1 FROM tasks t WHERE url_key = ?5 AND parcel_id = ?6 AND ({its_row}
                OR EXISTS (SELECT 1 FROM job_links WHERE task = t.id AND {its_row}))"""
    db.execute(
        f"""UPDATE OR IGNORE tasks SET
                (job_id, file_number, source_line, source_item) = (?1, ?2, ?3, ?4),
                parcel_id = ?6, source_file = ?7, input = ?8, url = ?9, row_crc32 = ?10
            WHERE id = (
                SELECT id FROM tasks WHERE url_key = ?5 AND ifnull(job_id, ?1) = ?1
                AND iif(source = 'salvage' AND source_line IS NULL,
                        parcel_id IN ('', ?6) AND NOT EXISTS ({known}),
                        input IS NULL AND parcel_id = ?6 AND {its_row})
                ORDER BY parcel_id <> ?6 LIMIT 1)""",
        (*names, source_file, row_input, task.address.url, row.crc32(row_input)),
    )


def _known_task(db: Database, task: NewTask, row: _RowKey, fresh_after: float) -> _KnownTask | None:
    """The task that this row means: as before, or because it is open, of the job, or fresh."""
    found = db.all(
        f"""SELECT id, job_id, file_number, source_line, source_item, source, queue, priority,
                deadline, status, completed_at
            FROM tasks WHERE url_key = ? AND parcel_id = ? AND {IS_SHARED}
            AND NOT {IS_REMOVED.format(job="job_id")}""",
        (task.address.key, task.parcel_id),
    )
    candidates = [_KnownTask(*each) for each in found]
    if row.job_id is not None:
        for each in candidates:
            if each.row == row or _is_linked(db, each.id, row):
                return each
    for each in candidates:
        if (
            each.status in ("pending", "processing")
            or (row.job_id is not None and each.job_id == row.job_id)
            or (each.status == "completed" and (each.completed_at or 0) >= fresh_after)
            or db.one(
                "SELECT 1 FROM job_links WHERE job_id = ? AND task = ?", (row.job_id, each.id)
            )
        ):
            return each
    return None


def _is_linked(db: Database, id_: int, row: _RowKey) -> bool:
    """Whether this very row means that task already."""
    link = db.one(
        """SELECT 1 FROM job_links WHERE job_id = ? AND task = ? AND file_number = ?
           AND source_line = ? AND source_item = ?""",
        (row.job_id, id_, row.file_number, row.line or 0, row.item),
    )
    return link is not None


def _raise_priority(
    db: Database, found: _KnownTask, task: NewTask, queue: str, deadline: float, now: float
) -> None:
    """Give a pending task the more urgent queue, priority and deadline of its own and a row's."""
    if found.status != "pending":
        return
    # Held for a paused job, it goes on for this one.
    db.execute(f"UPDATE tasks SET {UNHELD} WHERE id = ?", (found.id,))
    place = (
        min(queue, found.queue, key=QUEUES.index),
        min(task.priority, found.priority),
        min(deadline, found.deadline),
    )
    if found.job_id is None:
        place = (*place[:2], found.deadline)  # a call of its own has no deadline
    if place != (found.queue, found.priority, found.deadline):
        db.execute(
            """UPDATE tasks SET queue = ?, priority = ?, deadline = ?, message_id = NULL
               WHERE id = ?""",
            (*place, found.id),
        )
        detail = {"queue": place[0], "priority": place[1]}
        timeline.note(db, found.id, "raised", detail, now)


def _link(
    db: Database, found: _KnownTask, row: _RowKey, source_file: str | None, row_input: str | None
) -> bool:
    """Let a known task count for this row too; whether it did not yet."""
    if row.job_id is None or found.row == row:
        return False
    remade = (found.job_id, found.line, found.source) == (row.job_id, None, "salvage")
    if remade and not _is_linked(db, found.id, row):
        # Made again of its result, which tells no line: this row is the first to mean it.
        db.execute(
            """UPDATE tasks SET file_number = ?, source_line = ?, source_item = ?, source_file = ?,
                   input = ?, row_crc32 = ? WHERE id = ?""",
            (*row[1:], source_file, row_input, row.crc32(row_input), found.id),
        )
        return False
    row = row._replace(line=row.line or 0)
    db.execute(
        """INSERT OR IGNORE INTO job_links (job_id, file_number, source_line, source_item, task,
               input, row_crc32) VALUES (?, ?, ?, ?, ?, ?, ?)""",
        (*row, found.id, row_input, row.crc32(row_input)),
    )
    return bool(db.changes())
