"""What a ledger has lost, as far as it can be proven: by sizes, by gaps between numbers and lines,
by what is left."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from crawler.db import jobs
from crawler.db.connection import Database

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
    jobs.note_loss(db, job_id, what, now)
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
