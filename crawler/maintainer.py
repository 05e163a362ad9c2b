"""The maintainer: keeps the queues in step with the ledger.

Every worker process has one. One acts at a time; the others stand by.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from crawler import times
from crawler.config import Settings
from crawler.db import owners
from crawler.db.dispatch import Chunk
from crawler.errors import CrawlerError
from crawler.forecast import Trend, slip
from crawler.logs import without_figures
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job, TaskCounts
from crawler.waits import StallMonitor, WaitFinder

if TYPE_CHECKING:
    from crawler.celery_app import Queued

log = logging.getLogger(__name__)

TICK_S = 1.0
PROGRESS_INTERVAL_S = 3.0
ENDED_SHOWN_S = 30.0
"""How long the end of a job is written again."""
STALL_S = 10.0
"""After this long without a page the log says why a job does not move."""
MAX_MONITORED_JOBS = 20
"""Jobs whose stalls are logged."""
MAX_WAL_BYTES = 64 << 20
"""A larger write-ahead log is checkpointed and truncated; only readers can delay that."""
MISSING_S = 5.0
"""A message that is in no queue and with no worker for this long is published again."""


class Broker(Protocol):
    """What the maintainer needs of a broker; raises `ServiceError`."""

    def publish(self, ledger_id: str, chunks: Sequence[Chunk]) -> None:
        """Put chunks into their queues."""

    def queued(self) -> list["Queued"]:
        """All messages in the queues."""

    def withdraw(self, messages: Sequence["Queued"]) -> None:
        """Remove messages from their queues, if they are still there."""


class Maintainer:
    """Frees the tasks of dead processes, fills the queues, republishes lost messages, ends jobs."""

    def __init__(
        self,
        lpm: LocalPersistenceManager,
        broker: Broker,
        settings: Settings,
        forget: Callable[[str, str], None] = lambda domain, owner: None,
        clock: Callable[[], float] = time.time,
        uptime: Callable[[], float] = times.uptime,
        waits: WaitFinder | None = None,
        mirror: Callable[[Sequence[tuple[Job, TaskCounts]]], None] = lambda jobs: None,
    ) -> None:
        """`forget` is called for each domain where a dead process had requests. With `waits`, the
        log says why a job does not move. `mirror` tells other programs how far jobs are."""
        self._lpm, self._broker, self._window = lpm, broker, settings.window
        self._clock, self._uptime, self._forget = clock, uptime, forget
        self._mirror = mirror
        self._alarms = JobAlarms(settings, uptime, waits)
        self._still_s = owners.STILL * settings.stall_s
        self._leases = LeaseLimit(settings.hard_time_limit)
        self._ticked_at = self._mirror_at = 0.0
        self._kick = threading.Event()
        self._stopping = False
        self._missing: dict[str, float] = {}
        """Since when each message is missing."""
        self._trouble = ""

    def kick(self) -> None:
        """Act now instead of at the next tick."""
        self._kick.set()

    def stop(self) -> None:
        """Let another process act."""
        self._stopping = True
        self._kick.set()

    def run(self) -> None:
        """Act while this process has the lock, until stopped."""
        office = owners.LeaderLock(self._lpm.run / "maintainer.lock", self._still_s)
        try:
            while not self._stopping:
                if office.take():
                    self._act(office)
                self._wait(TICK_S)
        finally:
            office.close()
            self._lpm.close()

    def _act(self, office: owners.LeaderLock) -> None:
        # On its own thread: with a million results it takes a while, and nothing depends on it.
        threading.Thread(target=self._secure_pending, name="projection", daemon=True).start()
        while not self._stopping and office.keep():
            next_due = self._guarded_tick()
            wait_s = TICK_S
            if next_due is not None:
                wait_s = min(TICK_S, max(0.05, next_due - self._clock()))
            self._wait(wait_s)

    def _secure_pending(self) -> None:
        lpm = LocalPersistenceManager(self._lpm.folder)
        try:
            if made := lpm.files.secure():
                log.info(
                    "%d files in pending/ were missing or unreadable and were made again", made
                )
        except CrawlerError as error:
            log.warning("pending/ could not be checked: %s", error)
        finally:
            lpm.close()

    def _wait(self, seconds: float) -> None:
        self._kick.wait(seconds)
        self._kick.clear()

    def _guarded_tick(self) -> float | None:
        """Run one tick and catch all errors; log when trouble begins and ends."""
        try:
            with self._lpm.errors():
                next_due = self.tick()
        except CrawlerError as error:
            if not self._trouble:
                log.warning(
                    "%s; the ledger keeps everything, and this is tried again every second", error
                )
            self._trouble = str(error)
            return None
        except Exception as error:  # without a maintainer everything would come to a stop
            if not self._trouble:
                log.exception(
                    "the maintainer met an unforeseen error, and tries again every second"
                )
            self._trouble = repr(error)
            return None
        if self._trouble:
            log.info("recovered from: %s", self._trouble)
            self._trouble = ""
        return next_due

    def tick(self) -> float | None:
        """Compare broker and ledger once; return when the next waiting task is due."""
        tasks = self._lpm.tasks
        tasks.follow_clock(self._clock(), self._uptime(), times.boot_id())
        if freed := self._lpm.bury(self._forget):
            log.warning("%d tasks of dead workers are pending again", freed)
        next_due = tasks.wake(self._clock())
        self._lpm.jobs.complete_holds(self._clock())
        self._finalise()
        self._end_overdue()
        running = self._running(owners.living(self._lpm.owners))
        kinds = [note.about.get("kind") for note in running]
        if "cli" not in kinds:
            tasks.release_calls()
        self._find_missing({note.message_id for note in running})
        self.fill(kinds.count("worker"))
        return next_due

    def _end_overdue(self) -> None:
        """Take back the pages that a process holds for longer than the hard time limit."""
        dispatch = self._lpm.dispatch
        for lease in self._leases.overdue(dispatch.leases):
            if dispatch.take_back_page(*lease, self._clock()):
                log.warning(
                    "task %d is taken back: its process held it beyond SCRAPING_HARD_TIME_LIMIT",
                    lease[0],
                )

    def _running(self, living: Sequence[owners.OwnerState]) -> list[owners.OwnerState]:
        """Return the living processes whose loop runs; take back the leases of the others.

        After this process was stopped itself, it takes nothing back: the others may have been
        stopped with it, and go on now.
        """
        now = time.monotonic()
        slept, self._ticked_at = now - self._ticked_at > self._still_s, now
        if slept:
            return list(living)
        stopped = [note for note in living if note.still_s(now) > self._still_s]
        if stopped:
            holders = self._lpm.dispatch.owners()
            for note in stopped:
                if note.id in holders:
                    self._take_back(note, note.still_s(now))
        return [note for note in living if note not in stopped]

    def _take_back(self, note: owners.OwnerState, still_s: float) -> None:
        domains = self._lpm.dispatch.take_back(note, self._clock())
        for domain in set(domains):
            self._forget(domain, note.id)
        log.warning(
            "process %d stands still for %.0f s: its %d tasks are pending again; "
            "kill -CONT %d wakes it, kill -9 %d ends it",
            *(note.pid, still_s, len(domains), note.pid, note.pid),
        )

    def fill(self, slots: int = 0) -> int:
        """Publish the next chunks; returns how many tasks they hold."""
        chunks = self._lpm.dispatch.fill(self._window, slots or os.cpu_count() or 1, self._clock())
        if chunks:
            try:
                self._broker.publish(self._lpm.store.id, chunks)
            except Exception:
                self._lpm.dispatch.unpublish([chunk.message_id for chunk in chunks])
                raise
        return sum(len(chunk.task_ids) for chunk in chunks)

    def _find_missing(self, with_workers: set[str]) -> None:
        """Publish again what is in no queue and with no worker; withdraw messages that are done.

        After the tasks of its message, a worker goes on with whatever is due. So most messages are
        done before a worker takes them, and would fill Redis.
        """
        dispatch = self._lpm.dispatch
        gone: set[str] = set()
        if dispatch.published():
            queued = self._broker.queued()
            published = dispatch.published()  # after the queues: what came meanwhile is not done
            ours = [each for each in queued if each.ledger_id == self._lpm.store.id]
            if done := [each for each in ours if each.id not in published]:
                self._broker.withdraw(done)
            gone = published - with_workers - {each.id for each in queued}
        now = time.monotonic()
        self._missing = {message: self._missing.get(message, now) for message in gone}
        lost = [message for message, since in self._missing.items() if now - since >= MISSING_S]
        if lost:
            log.warning(
                "%d messages were lost on the way; their tasks are published again", len(lost)
            )
            dispatch.unpublish(lost)

    def _finalise(self) -> None:
        jobs, now = self._lpm.jobs, self._clock()
        for job in jobs.open_broken_off_crawls(self._lpm.is_importing):
            log.warning("job %s goes on: its command was killed when it began", job.name)
        ended = jobs.finalise(now)
        for job in ended:
            log.info("job %s has ended", job.name, extra={"job": job.name})
        began = self._uptime()
        if not ended and began < self._mirror_at:
            return
        # Jobs that just ended, too: another process may have ended them, or Redis was away.
        current = jobs.current(now - ENDED_SHOWN_S)
        shown = list(zip(current, self._lpm.counts.progress_of(current), strict=True))
        for job, books in shown:
            self._alarms.check(job, books, now)
        # At most a tenth of the time, with however many jobs.
        self._mirror_at = began + max(PROGRESS_INTERVAL_S, 10 * (self._uptime() - began))
        self._mirror(shown)
        self._lpm.bound_wal(MAX_WAL_BYTES)


class LeaseLimit:
    """Finds pages that a process holds for longer than the hard time limit.

    By the clock of this process, from when it first saw them: a clock that is set ends no lease.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s, self._clock = limit_s, clock
        self._looked_at = clock()
        self._seen: dict[tuple[int, int], float] = {}
        """Since when each lease is known, by its task and fence."""

    def overdue(self, leases: Callable[[], set[tuple[int, int]]]) -> list[tuple[int, int]]:
        """Return the leases that must end; asks for all leases only now and then."""
        now = self._clock()
        if now - self._looked_at < self._limit_s / 20:
            return []
        self._looked_at = now
        self._seen = {lease: self._seen.get(lease, now) for lease in leases()}
        return [lease for lease, since in self._seen.items() if now - since >= self._limit_s]


class _Watched:
    """What is known about one job, and what the log said last."""

    def __init__(self) -> None:
        self.trend = Trend()
        self.is_late = False
        self.monitor: StallMonitor | None = None
        self.last_reason = ""


class JobAlarms:
    """Log lines about jobs that will miss their deadline or do not move."""

    def __init__(
        self, settings: Settings, uptime: Callable[[], float], waits: WaitFinder | None
    ) -> None:
        self._zone = times.zone(settings.timezone)
        self._uptime, self._waits = uptime, waits
        self._jobs: dict[int, _Watched] = {}

    def check(self, job: Job, books: TaskCounts, now: float) -> None:
        """Log what has changed about a job."""
        watched = self._jobs.setdefault(job.id, _Watched())
        if job.deadline is not None:
            self._check_deadline(job, books, watched, now)
        if self._waits is not None:
            self._check_stall(job, books, watched, self._waits)
        if not books.open:
            del self._jobs[job.id]

    def _check_deadline(self, job: Job, books: TaskCounts, watched: _Watched, now: float) -> None:
        trend = watched.trend
        trend.add(self._uptime(), books.accepted - books.open)
        slipping = slip(job, books.open, trend.measured, now, self._zone)
        if slipping and not watched.is_late:
            watched.is_late = True
            log.warning("job %s: %s", job.name, slipping, extra={"job": job.name})
        elif watched.is_late and not slipping and books.open and trend.measured:
            watched.is_late = False
            log.warning("job %s will be done in time again", job.name, extra={"job": job.name})

    def _check_stall(
        self, job: Job, books: TaskCounts, watched: _Watched, waits: WaitFinder
    ) -> None:
        if not books.open:
            return
        if watched.monitor is None:
            if sum(each.monitor is not None for each in self._jobs.values()) >= MAX_MONITORED_JOBS:
                return
            watched.monitor = StallMonitor(waits, job, STALL_S)
        reason = watched.monitor.reason(books)
        if without_figures(reason) == without_figures(watched.last_reason):
            return
        watched.last_reason = reason
        if reason:
            log.warning("job %s does not move: %s", job.name, reason, extra={"job": job.name})
        else:
            log.warning("job %s goes on", job.name, extra={"job": job.name})
