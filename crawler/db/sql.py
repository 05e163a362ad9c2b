"""Conditions and values that the statements of several parts share."""

from typing import Any

import msgspec

from crawler.db.connection import Database
from crawler.models import NO_DEADLINE, Job

HELD = NO_DEADLINE
"""`not_before` of a task whose job is paused: it never falls due by itself."""
SUSPECT_DEATHS = 3
"""Deaths of workers, with nobody to blame, after which a page in flight is tried alone."""
DUE = f"status = 'pending' AND not_before = 0 AND deaths < {SUSPECT_DEATHS}"
"""Tasks that any worker may take; the condition of the index tasks_due."""
TURN = "id + failures * 1000"
"""The order of due tasks of a domain; the index tasks_due has it."""
ENDED = "('failed', 'skipped', 'expired')"
THEIRS = ("gateway", "bundle")
"""Sources whose tasks carry a Gateway's id; for others `external_id` is the name of a call."""
THEIR_ID = "iif(t.source IN ('gateway', 'bundle'), ifnull(t.external_id, t.task_id), t.task_id)"
"""What a Gateway knows a task by."""
NOTED_FILE = """(SELECT file FROM imports i
    WHERE i.job_id = {0}.job_id AND i.number = {0}.file_number
    AND (i.number > 0 OR i.key NOT LIKE 'name:%') ORDER BY i.id DESC LIMIT 1)"""
"""Where the file of a row is now. In a named job of an older program, several files may have the
number 0."""
COUNTS_FOR = """(j.id = t.job_id
    OR j.id IN (SELECT job_id FROM job_links WHERE task = t.id))"""
"""Whether job j counts task t."""
IN_PENDING = "o.state <> 'synced' AND o.archived_at IS NULL"
"""Whether the result of an outbox row o lies in pending/."""
LISTED = "IN (SELECT value FROM json_each(?))"
"""One of the values of a JSON list, see `as_json`."""


def as_json(value: object) -> str:
    """A value, such as a list of ids, as JSON text for a statement."""
    return msgspec.json.encode(value).decode()


def of_job(db: Database, job: Job | None) -> tuple[str, tuple[Any, ...]]:
    """The condition for a job's tasks, or for all, and its values; these come first as ?1."""
    if job is None:
        return "1", ()
    if not _shares(db, job):
        return "job_id = ?1", (job.id,)
    return "(job_id = ?1 OR id IN (SELECT task FROM job_links WHERE job_id = ?1))", (job.id,)


def members(db: Database, job: Job) -> str:
    """A query for the ids of a job's tasks; the job's id is the value ?1."""
    own = "SELECT id FROM tasks WHERE job_id = ?1"
    if not _shares(db, job):
        return own
    return f"{own} UNION SELECT task FROM job_links WHERE job_id = ?1"


def _shares(db: Database, job: Job) -> bool:
    """Whether a job has rows that mean tasks of other jobs."""
    return db.one("SELECT 1 FROM job_links WHERE job_id = ? LIMIT 1", (job.id,)) is not None
