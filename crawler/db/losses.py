"""What was lost, or never came in: a job stays unaccounted for until that is imported again or
accepted."""

from collections.abc import Mapping
from zlib import crc32

import msgspec

from crawler.db.connection import Database
from crawler.models import Job

IMPORTED_AGAIN, ACCEPTED = "imported again", "accepted"
ROWS, PAGES = "rows", "pages"
"""What was lost: rows of the input, which an import brings back, or stored pages, which nothing
does."""

_GIVEN_UP = "given up "
WANTED = f"""raw_offset + raw_length > ifnull((SELECT CAST(value AS INTEGER) FROM meta
    WHERE key = '{_GIVEN_UP}' || {{job}} || ' ' || raw_segment), 0)"""
"""Whether a job does not do without the page of a result: `meta` has for a job and a segment up to
which byte it does.

The result keeps the place of its page: other jobs may want it, and a disk that is mounted again
brings it back.
"""
WANTED_BY_ANY = f"""ifnull((SELECT max({WANTED.format(job="j.id")}) FROM (
    SELECT t.job_id AS id UNION SELECT job_id FROM job_links WHERE task = t.id) j
    WHERE j.id IS NOT NULL), 1)"""
"""Whether one of the jobs that task t counts for does not, or it counts for none."""


class Loss(msgspec.Struct, frozen=True):
    """One loss of a job; it counts against the job until it is settled."""

    what: str
    kind: str
    at: float
    settled_at: float | None
    how: str | None


def row_crc32(file_number: int, line: int | None, item: int, row_input: str | None) -> int:
    """The checksum of a row of input, by which one is known that a damaged ledger has changed."""
    return crc32(f"{file_number} {line} {item} {row_input}".encode())


def note(
    db: Database, job_id: int, what: str, now: float, kind: str = ROWS, how: str | None = None
) -> None:
    """Note a loss of a job, and how it was settled at once. Part of a transaction."""
    db.execute(
        """INSERT INTO losses (job_id, at, kind, what, settled_at, how)
           VALUES (?1, ?2, ?3, ?4, iif(?5 IS NULL, NULL, ?2), ?5)""",
        (job_id, now, kind, what, how),
    )


def give_up(db: Database, job_id: int, ends: Mapping[str, int]) -> None:
    """Let a job do without its pages in these segments, up to these bytes. Part of a
    transaction."""
    db.executemany(
        "INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)",
        [(f"{_GIVEN_UP}{job_id} {name}", str(end)) for name, end in ends.items()],
    )


def wanted(db: Database, job: Job) -> str:
    """The condition for results whose pages a job does not do without; of most jobs it is all."""
    some = db.one("SELECT 1 FROM meta WHERE key GLOB ?", (f"{_GIVEN_UP}{job.id} *",))
    return WANTED.format(job=job.id) if some else "1"


def given_up(db: Database, job: Job | None, segment: str) -> int:
    """Up to which byte a job, or any, does without its pages in a segment."""
    key = f"{_GIVEN_UP}{job.id if job else '*'} {segment}"
    most = "SELECT ifnull(max(CAST(value AS INTEGER)), 0) FROM meta WHERE key GLOB ?"
    return int(db.value(most, (key,)))


def of(db: Database, job: Job) -> list[Loss]:
    """The losses of a job, the oldest first."""
    rows = db.all(
        "SELECT what, kind, at, settled_at, how FROM losses WHERE job_id = ? ORDER BY id", (job.id,)
    )
    return [Loss(*row) for row in rows]


def settle(db: Database, job_id: int, how: str, now: float) -> None:
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
    if (ROWS,) in settled:
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
