"""What was lost, or never came in: a job stays unaccounted for until that is imported again or accepted."""

import msgspec

from crawler.db.connection import Database
from crawler.models import Job

IMPORTED_AGAIN, ACCEPTED = "imported again", "accepted"
ROWS, PAGES = "rows", "pages"
"""What was lost: rows of the input, which an import brings back, or stored pages, which nothing does."""


class Loss(msgspec.Struct, frozen=True):
    """One loss of a job; it counts against the job until it is settled."""

    what: str
    kind: str
    at: float
    settled_at: float | None
    how: str | None


def note(db: Database, job_id: int, what: str, now: float, kind: str = ROWS) -> None:
    """Note a loss of a job. Part of a transaction."""
    db.execute("INSERT INTO losses (job_id, at, kind, what) VALUES (?, ?, ?, ?)", (job_id, now, kind, what))


def of(db: Database, job: Job) -> list[Loss]:
    """The losses of a job, the oldest first."""
    rows = db.all("SELECT what, kind, at, settled_at, how FROM losses WHERE job_id = ? ORDER BY id", (job.id,))
    return [Loss(*row) for row in rows]


def settle(db: Database, job_id: int, how: str, now: float) -> None:
    """From now on the rows that the job has are those that it is to have. Part of a transaction."""
    db.execute(
        """UPDATE losses SET settled_at = ?1, how = ?2
           WHERE job_id = ?3 AND settled_at IS NULL AND (kind = 'rows' OR ?2 = 'accepted')""",
        (now, how, job_id),
    )
    count_rows(db, job_id)


def count_rows(db: Database, job_id: int) -> None:
    """Take the rows that a job has for those that it is to have. Part of a transaction."""
    db.execute(
        """UPDATE jobs SET size = (SELECT count(*) FROM tasks WHERE job_id = jobs.id),
               linked = (SELECT count(*) FROM job_links WHERE job_id = jobs.id),
               rejected = (SELECT count(*) FROM rejected_rows WHERE job_id = jobs.id) WHERE id = ?""",
        (job_id,),
    )
