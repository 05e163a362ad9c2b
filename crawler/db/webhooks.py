"""Webhooks of sessions: who is to be told, and how far that is.

Addresses and secrets are in a file of `sessions/` that only its owner can read.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from crawler.db.connection import writing
from crawler.db.store import Part, as_json
from crawler.models import Job

_DUE = """
    SELECT job_id FROM (
        SELECT w.job_id, w.not_before, ifnull(b.client, '') AS client, row_number() OVER (
            PARTITION BY b.client ORDER BY w.not_before) AS place
        FROM webhooks w JOIN jobs j ON j.id = w.job_id LEFT JOIN batches b USING (job_id)
        WHERE w.given_up IS NULL AND w.not_before <= ?1
        AND (j.status <> 'done' OR w.told_at IS NOT j.completed_at))
    WHERE place <= ?4 - ifnull((SELECT value FROM json_each(?3) WHERE key = client), 0)
    ORDER BY not_before LIMIT ?2"""


class Webhook(NamedTuple):
    """How far the receiver of a session's results is."""

    job_id: int
    events: tuple[str, ...]
    cursor: int
    failures: int
    """In a row."""
    client: str


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

    def claim(
        self, now: float, lease_s: float, limit: int, share: int, taken: Mapping[str, int]
    ) -> list[Webhook]:
        """Take webhooks that may have something to deliver; others get them after the lease.

        A client gets no more than its share, of which some are `taken` already.
        """
        due = (now, limit, as_json(dict(taken)), share)
        if not self._db.one(_DUE, due):
            return []
        with writing(self._db):
            rows = self._db.all(
                f"""UPDATE webhooks SET not_before = ?5 WHERE job_id IN ({_DUE})
                    RETURNING job_id, events, cursor, failures,
                        ifnull((SELECT client FROM batches b WHERE b.job_id = webhooks.job_id), '')
                """,
                (*due, now + lease_s),
            )
        return [
            Webhook(
                job, msgspec.json.decode(events, type=tuple[str, ...]), cursor, failures, client
            )
            for job, events, cursor, failures, client in rows
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
