"""How far jobs are, in the requirements' words, and the mirror of it in Redis.

The ledger alone decides: a job ends when its last page does, by one guarded UPDATE. Nothing waits
for what is written here, and an emptied Redis gets it again.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, Literal
from uuid import NAMESPACE_URL, uuid5

import msgspec
import redis

from crawler import times, urls
from crawler.errors import ServiceError
from crawler.models import Job, JobStatus, TaskCounts
from crawler.redis_client import connect
from crawler.scraping.redis_keys import PROGRESS, checkpoint_key, progress_key

if TYPE_CHECKING:
    from collections.abc import Iterator

OPEN_EXPIRES_S, ENDED_EXPIRES_S = 86_400, 3_600
"""How long keys stay without being written again. Those of ended jobs are read by who waited for
the end, and would add up."""
REWRITE_S = 60.0
"""Progress that stays the same is written again after this time: Redis may have been emptied."""

Status = Literal["DISPATCHED", "PROCESSING", "COMPLETE", "FAILED", "UNKNOWN"]


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a job is, as `scrape:{job_id}:…` tells it.

    DISPATCHED: no page has begun. PROCESSING: some have. COMPLETE: the job has ended with results.
    FAILED: it has ended without any, or was cancelled. UNKNOWN: there is no such job.
    """

    total_chunks: int = 0
    """Grows while a crawl finds pages."""
    completed: int = 0
    """Equal to `total_chunks` if and only if no page is open."""
    status: Status = "UNKNOWN"
    started_at: float = 0.0
    completed_at: float | None = None
    result_count: int = 0

    @property
    def has_ended(self) -> bool:
        """Whether nothing is left to do."""
        return self.status in ("COMPLETE", "FAILED")


def progress_of(job: Job, counts: TaskCounts, chunk_size: int) -> Progress:
    """Return how far a job is by its counts."""
    total = -(-counts.accepted // chunk_size)
    completed = (counts.accepted - counts.open) // chunk_size
    if not counts.open:
        completed = total
    return Progress(
        total_chunks=total,
        completed=completed,
        status=_status(job, counts),
        started_at=job.created_at,
        completed_at=job.completed_at,
        result_count=counts.completed,
    )


def _status(job: Job, counts: TaskCounts) -> Status:
    if job.status is JobStatus.DONE:
        is_failed = counts.accepted > 0 and counts.completed == 0
        return "FAILED" if is_failed or job.cancelled else "COMPLETE"
    if counts.accepted > counts.pending:
        return "PROCESSING"
    return "DISPATCHED"


def joint_status(jobs: Sequence[Progress]) -> Status:
    """Return the status of several jobs together: that of the one, or of the furthest behind."""
    found = {each.status for each in jobs}
    if not found:
        return "UNKNOWN"
    if len(found) == 1:
        return found.pop()
    if all(each.has_ended for each in jobs):
        return "COMPLETE"
    return "PROCESSING"


def chord_id(ledger_id: str, job_id: str) -> str:
    """Return the id under which Celery's result backend announces the end of a job."""
    return str(uuid5(NAMESPACE_URL, f"crawler:{ledger_id}:{job_id}"))


def summary(job: Job, counts: TaskCounts) -> dict[str, Any]:
    """Return what `aggregate_results_task` says of a job."""
    return {"job_id": job.name, "saved": counts.completed}


class ProgressMirror:
    """Writes the progress of jobs to Redis; raises `ServiceError`."""

    def __init__(
        self,
        url: str,
        ledger_id: str,
        chunk_size: int,
        zone: tzinfo | None,
        announce: Callable[[str, dict[str, Any]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`announce` stores a Celery result under an id, and tells who waits for it."""
        self._url, self._redis = url, connect(url)
        self._ledger_id, self._chunk_size, self._zone = ledger_id, chunk_size, zone
        self._announce, self._clock = announce, clock
        self._written: dict[int, tuple[Progress, float]] = {}
        """What was written of each job, and when."""

    def __call__(self, jobs: Sequence[tuple[Job, TaskCounts]]) -> None:
        """Write what has changed of these jobs; others are forgotten."""
        now = self._clock()
        found = [(job, counts, progress_of(job, counts, self._chunk_size)) for job, counts in jobs]
        changed = [each for each in found if self._must_write(each[0], each[2], now)]
        with self._errors():
            with self._redis.pipeline(transaction=False) as pipe:
                for job, counts, progress in changed:
                    self._write(pipe, job, counts, progress)
                pipe.execute()
            for job, counts, progress in changed:
                if progress.has_ended:
                    self._announce(chord_id(self._ledger_id, job.name), summary(job, counts))
        known = {job.id for job, _ in jobs}
        self._written = {id_: what for id_, what in self._written.items() if id_ in known}
        self._written |= {job.id: (progress, now) for job, _, progress in changed}

    def _must_write(self, job: Job, progress: Progress, now: float) -> bool:
        before, at = self._written.get(job.id, (None, 0.0))
        return progress != before or now - at > REWRITE_S

    def _write(
        self, pipe: "redis.client.Pipeline", job: Job, counts: TaskCounts, progress: Progress
    ) -> None:
        expires_s = ENDED_EXPIRES_S if progress.has_ended else OPEN_EXPIRES_S
        for name in PROGRESS:
            value = getattr(progress, name)
            pipe.set(progress_key(job.name, name), "" if value is None else value, ex=expires_s)
        if not job.options.crawl or not job.options.crawl.site:
            return
        day = times.day(job.created_at, self._zone)
        key = checkpoint_key(job.options.crawl.site, day)
        if progress.has_ended:
            pipe.hdel(key, job.name)
        else:
            done = counts.accepted - counts.open
            pipe.hset(key, job.name, f"{done}/{counts.accepted}")
            pipe.expire(key, OPEN_EXPIRES_S)

    @contextmanager
    def _errors(self) -> "Iterator[None]":
        try:
            yield
        except (redis.RedisError, OSError) as error:
            where = urls.without_credentials(self._url)
            raise ServiceError(
                f"Redis at {where} does not answer as it should ({error})"
            ) from error
