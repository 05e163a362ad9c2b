"""The books: jobs, counts, reasons."""

import difflib
from collections.abc import Iterable
from typing import Any

from crawler.db.connection import Database, writing
from crawler.errors import UsageError
from crawler.models import Books, Job, JobStatus, TaskStatus

JOB = "id, name, status, queue, source_file, created_at, completed_at, deadline, hold"


class Bookkeeping:
    """The part of the ledger that counts."""

    def __init__(self, connection: Database) -> None:
        self.db = connection
        [(self.id,)] = connection.all("SELECT value FROM meta WHERE key = 'ledger_id'")

    def stand(self, id_: int) -> tuple[TaskStatus, float, str]:
        """A task's status, the time it waits for, and its domain."""
        [(status, not_before, domain)] = self.db.all(
            "SELECT status, not_before, domain FROM tasks WHERE id = ?", (id_,)
        )
        return TaskStatus(status), not_before, domain

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
        return [as_job(row) for row in self.db.execute(f"SELECT {JOB} FROM jobs {where} ORDER BY id")]

    def job(self, name: str) -> Job:
        """The job of that name; for an unknown one an error that names the nearest."""
        row = self.db.one(f"SELECT {JOB} FROM jobs WHERE name = ?", (name,))
        if row is None:
            names = [job.name for job in self.jobs()]
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.3)
            hint = f"; did you mean {near[0]}?" if near else "; there are none yet" if not names else ""
            raise UsageError(f"there is no job {name}{hint}")
        return as_job(row)

    def horizon(self) -> int:
        """The number of the last event: everything that any task has had is at or below it."""
        [(last,)] = self.db.all("SELECT coalesce(max(id), 0) FROM events")
        return int(last)

    def note_export(
        self, file: str, form: str, job: Job | None, since: float | None, results: int, horizon: int, now: float
    ) -> None:
        """Note that results were handed over, for the timelines of their tasks."""
        with writing(self.db):
            self.db.execute(
                "INSERT INTO exports (at, file, format, job_id, since, results, horizon) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (now, file, form, job.id if job else None, since, results, horizon),
            )

    def books(self) -> Books:
        """The counts of the whole ledger."""
        states = self.db.all("SELECT status, count(*) FROM tasks GROUP BY status")
        outbox = self.db.all("SELECT state, count(*) FROM outbox GROUP BY state")
        return _books(states, outbox)

    def reasons(self, job: Job | None) -> dict[str, int]:
        """Why tasks ended without a result, the most frequent reason first."""
        rows = self.db.all(
            """SELECT error_type, count(*) FROM tasks WHERE status IN ('failed', 'skipped', 'expired')
               AND (?1 IS NULL OR job_id = ?1) GROUP BY 1 ORDER BY 2 DESC""",
            (job.id if job else None,),
        )
        return {reason or "unknown": count for reason, count in rows}

    def failures(self, job: Job | None, limit: int) -> list[tuple[Any, ...]]:
        """Some tasks that ended without a result: URL, reason, message."""
        return self.db.all(
            """SELECT url, error_type, error_message FROM tasks WHERE status IN ('failed', 'skipped', 'expired')
               AND (?1 IS NULL OR job_id = ?1) ORDER BY id LIMIT ?2""",
            (job.id if job else None, limit),
        )

    def progress(self, job: Job | None) -> Books:
        """The states of a job or of all tasks, without looking at results: cheap enough to ask again and again."""
        if job is None:
            return _books(self.db.all("SELECT status, count(*) FROM tasks GROUP BY status"), ())
        return _books(self._states(job), ())

    def job_books(self, job: Job) -> Books:
        """The counts of one job; a task that it shares with another counts for both."""
        outbox = self.db.all(
            f"SELECT state, count(*) FROM outbox WHERE task IN ({self._members(job)}) GROUP BY state", (job.id,)
        )
        return _books(self._states(job), outbox)

    def _states(self, job: Job) -> list[tuple[Any, ...]]:
        where = f"id IN ({self._members(job)})" if self._shares(job) else "job_id = ?1"
        return self.db.all(f"SELECT status, count(*) FROM tasks WHERE {where} GROUP BY status", (job.id,))

    def _members(self, job: Job) -> str:
        own = "SELECT id FROM tasks WHERE job_id = ?1"
        return f"{own} UNION SELECT task FROM job_links WHERE job_id = ?1" if self._shares(job) else own

    def _shares(self, job: Job) -> bool:
        return self.db.one("SELECT 1 FROM job_links WHERE job_id = ? LIMIT 1", (job.id,)) is not None


def as_job(row: tuple[Any, ...]) -> Job:
    return Job(**{**dict(zip(Job.__struct_fields__, row, strict=True)), "status": JobStatus(row[2])})


def _books(states: Iterable[tuple[str, int]], outbox: Iterable[tuple[str, int]]) -> Books:
    counts, sent = dict(states), dict(outbox)
    results, synced = sum(sent.values()), sent.get("synced", 0)
    return Books(
        **{**counts, "accepted": sum(counts.values()), "results": results, "synced": synced,
           "unsynced": results - synced}
    )  # fmt: skip
