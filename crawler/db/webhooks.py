"""Webhooks of sessions: who is to be told, and how far that is.

Addresses and secrets are in a file of `sessions/` that only its owner can read.
"""

from typing import NamedTuple

import msgspec

from crawler.db.connection import writing
from crawler.db.store import Part, as_json
from crawler.models import Job

_DUE = """given_up IS NULL AND not_before <= ?1 AND job_id IN (
    SELECT id FROM jobs j WHERE j.status <> 'done' OR told_at IS NOT j.completed_at)"""


class Webhook(NamedTuple):
    """How far the receiver of a session's results is."""

    job_id: int
    events: tuple[str, ...]
    cursor: int
    failures: int
    """In a row."""


class Webhooks(Part):
    """Notes what was delivered, so that a killed server goes on behind it."""

    def add(self, job: Job, events: tuple[str, ...]) -> bool:
        """Note a webhook within the commit of its session; False if the session has one."""
        db = self._durable
        db.execute(
            "INSERT INTO webhooks (job_id, events) VALUES (?, ?) ON CONFLICT DO NOTHING",
            (job.id, as_json(events)),
        )
        return bool(db.changes())

    def claim(self, now: float, lease_s: float, limit: int) -> list[Webhook]:
        """Take webhooks that may have something to deliver; others get them after the lease."""
        if not self._db.one(f"SELECT 1 FROM webhooks WHERE {_DUE} LIMIT 1", (now,)):
            return []
        with writing(self._db):
            rows = self._db.all(
                f"""UPDATE webhooks SET not_before = ?2 WHERE job_id IN (
                        SELECT job_id FROM webhooks WHERE {_DUE} ORDER BY not_before LIMIT ?3)
                    RETURNING job_id, events, cursor, failures""",
                (now, now + lease_s, limit),
            )
        return [
            Webhook(job_id, msgspec.json.decode(events, type=tuple[str, ...]), cursor, failures)
            for job_id, events, cursor, failures in rows
        ]

    def delivered(self, job_id: int, cursor: int, not_before: float) -> None:
        """Note that the receiver has all up to a cursor; others still get it after the lease."""
        with writing(self._durable):
            self._durable.execute(
                """UPDATE webhooks SET cursor = ?, not_before = ?, failures = 0, problem = NULL
                   WHERE job_id = ?""",
                (cursor, not_before, job_id),
            )

    def told_end(self, job_id: int, completed_at: float | None) -> None:
        """Note that the receiver knows of the end of a session; it may go on with more URLs."""
        with writing(self._durable):
            self._durable.execute(
                "UPDATE webhooks SET told_at = ?, failures = 0 WHERE job_id = ?",
                (completed_at, job_id),
            )

    def release(self, job_id: int, not_before: float) -> None:
        """Give a webhook back, with nothing to deliver until a time."""
        with writing(self._db):
            self._db.execute(
                "UPDATE webhooks SET not_before = ? WHERE job_id = ?", (not_before, job_id)
            )

    def failed(self, job_id: int, problem: str, not_before: float, given_up: float | None) -> None:
        """Note a delivery that failed, and when it is tried again; or that it never is."""
        with writing(self._durable):
            self._durable.execute(
                """UPDATE webhooks SET failures = failures + 1, problem = ?, not_before = ?,
                       given_up = ? WHERE job_id = ?""",
                (problem, not_before, given_up, job_id),
            )
