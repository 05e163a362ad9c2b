"""What the ledger says should be in flight, made so again: one acts at a time, any number stand
by."""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from crawler import times
from crawler.config import Settings
from crawler.db import owners
from crawler.db.tasks import Chunk
from crawler.errors import CrawlerError
from crawler.forecast import Trend, slip
from crawler.logs import without_figures
from crawler.lpm import LocalPersistenceManager
from crawler.models import Books, Job, JobStatus
from crawler.standstill import Standstill, Waits

log = logging.getLogger(__name__)

TICK_S = 1.0
MIRROR_S = 3.0
STANDS_STILL_S = 10.0
"""After so long without a page the log says why a job does not move."""
MAX_STANDSTILLS = 20
"""Open jobs that the log says this of."""
WAL_LIMIT = 64 << 20
"""A write-ahead log that is larger is written back and cut, which readers alone may keep from
happening."""
MISSING_S = 5.0
"""A message that is in no queue and in no worker's hand for so long is published again."""


class BrokerDown(Exception):
    """The broker cannot be spoken to now; nothing is lost by that."""


class Queued(NamedTuple):
    """A message in a queue; of chunks one knows from which ledger they are."""

    id: str
    ledger_id: str
    queue: str
    body: bytes


class Broker(Protocol):
    """What the maintainer needs of a broker; raises `BrokerDown`."""

    def publish(self, ledger_id: str, chunks: Sequence[Chunk]) -> None:
        """Put chunks into their queues."""

    def queued(self) -> list[Queued]:
        """All messages in the queues."""

    def withdraw(self, messages: Sequence[Queued]) -> None:
        """Take these out of their queues, as far as they are still there."""

    def mirror(self, job: Job, books: Books) -> None:
        """Show a job's progress to whoever reads Redis."""


class Maintainer:
    """Frees what the dead held, fills the window, publishes again what was lost, ends jobs."""

    def __init__(
        self,
        lpm: LocalPersistenceManager,
        broker: Broker,
        settings: Settings,
        forget: Callable[[str, str], None] = lambda domain, owner: None,
        clock: Callable[[], float] = time.time,
        uptime: Callable[[], float] = times.uptime,
        waits: Waits | None = None,
    ) -> None:
        """`waits` tells the log why a job does not move."""
        self._lpm, self._broker, self._window, self._clock = lpm, broker, settings.window, clock
        self._uptime = uptime
        self._forget = forget
        self._zone = times.zone(settings.timezone)
        self._still_s = owners.STILL * settings.stall_s
        self._ticked = 0.0
        self._kick = threading.Event()
        self._stop = False
        self._missing: dict[str, float] = {}
        self._trouble = ""
        self._mirrored = 0.0
        self._trends: dict[int, Trend] = {}
        self._late: set[int] = set()
        self._waits = waits
        self._standstills: dict[int, Standstill] = {}
        self._told: dict[int, str] = {}

    def kick(self) -> None:
        """There is something to do now."""
        self._kick.set()

    def stop(self) -> None:
        """Let the next one act."""
        self._stop = True
        self._kick.set()

    def run(self) -> None:
        """Act whenever the lock can be had, until stopped."""
        office = owners.Office(self._lpm.run / "maintainer.lock", self._still_s)
        try:
            while not self._stop:
                if office.take():
                    self._act(office)
                self._wait(TICK_S)
        finally:
            office.close()
            self._lpm.close()

    def _act(self, office: owners.Office) -> None:
        # Beside the ticks: among a million results this takes a while, and nobody waits for it.
        threading.Thread(target=self._project, name="projection", daemon=True).start()
        while not self._stop and office.keep():
            next_due = self._guarded(self.tick)
            self._wait(
                TICK_S if next_due is None else min(TICK_S, max(0.05, next_due - self._clock()))
            )

    def _project(self) -> None:
        lpm = LocalPersistenceManager(self._lpm.folder)
        try:
            made = lpm.files.secure()
        except CrawlerError as error:
            log.warning("pending/ could not be looked through: %s", error)
        else:
            if made:
                log.info(
                    "%d files in pending/ were missing or unreadable and were made again", made
                )
        finally:
            lpm.close()

    def _wait(self, seconds: float) -> None:
        self._kick.wait(seconds)
        self._kick.clear()

    def _guarded(self, act: "Callable[[], float | int | None]") -> float | None:
        """One line when trouble begins and one when it ends; the loop goes on."""
        try:
            with self._lpm.errors():
                done = act()
        except (BrokerDown, CrawlerError) as error:
            if not self._trouble:
                log.warning(
                    "%s; the ledger keeps everything, and this is tried again every second", error
                )
            self._trouble = str(error)
            return None
        except Exception as error:  # whatever it is, a maintainer that has died helps nobody
            if not self._trouble:
                log.exception(
                    "the maintainer met an unforeseen error, and tries again every second"
                )
            self._trouble = repr(error)
            return None
        if self._trouble:
            log.info("recovered from: %s", self._trouble)
            self._trouble = ""
        return done

    def tick(self) -> float | None:
        """Bring broker and ledger together once; returns when the next waiting task is due."""
        self._lpm.tasks.follow_clock(self._clock(), self._uptime(), times.boot_id())
        freed = self._lpm.bury(self._forget)
        if freed:
            log.warning("%d tasks of dead workers are pending again", freed)
        next_due = self._lpm.tasks.wake(self._clock())
        self._lpm.jobs.complete_holds(self._clock())
        self._finalise()
        living = self._moving(owners.living(self._lpm.owners))
        if not any(note.about.get("kind") == "cli" for note in living):
            self._lpm.tasks.release_calls()
        self._find_missing({note.message_id for note in living})
        self.fill(sum(note.about.get("kind") == "worker" for note in living))
        return next_due

    def _moving(self, living: Sequence[owners.Note]) -> list[owners.Note]:
        """Those of the living whose loop runs; from the others their leases are taken back.

        Not where this process stood still itself: then the others were perhaps stopped with it, and
        go on like it.
        """
        now = time.monotonic()
        slept, self._ticked = now - self._ticked > self._still_s, now
        still = [] if slept else [note for note in living if note.still_s(now) > self._still_s]
        holders = self._lpm.tasks.owners() if still else set()
        for note in still:
            if note.id in holders:
                domains = self._lpm.tasks.take_back(note, self._clock())
                for domain in set(domains):
                    self._forget(domain, note.id)
                log.warning(
                    "process %d stands still for %.0f s: its %d tasks are pending again; "
                    "kill -CONT %d wakes it, kill -9 %d ends it",
                    *(note.pid, note.still_s(now), len(domains), note.pid, note.pid),
                )
        return [note for note in living if note not in still]

    def fill(self, slots: int = 0) -> int:
        """Publish the next chunks; returns how many tasks they hold."""
        chunks = self._lpm.tasks.fill(self._window, slots or os.cpu_count() or 1, self._clock())
        if chunks:
            try:
                self._broker.publish(self._lpm.store.id, chunks)
            except Exception:
                self._lpm.tasks.unpublish([chunk.message_id for chunk in chunks])
                raise
        return sum(len(chunk.task_ids) for chunk in chunks)

    def _find_missing(self, in_hand: set[str]) -> None:
        """Publish again what is in no queue and in no hand; take out what is done.

        Workers go on with whatever is due when their message's own tasks are done, so most messages
        are done before anybody takes them: they would fill Redis.
        """
        gone: set[str] = set()
        if self._lpm.tasks.published():
            queued = self._broker.queued()
            published = (
                self._lpm.tasks.published()
            )  # looked up last: what was published meanwhile is not done
            ours = self._lpm.store.id
            if done := [
                each for each in queued if each.ledger_id == ours and each.id not in published
            ]:
                self._broker.withdraw(done)
            gone = published - in_hand - {each.id for each in queued}
        now = time.monotonic()
        self._missing = {message: self._missing.get(message, now) for message in gone}
        lost = [message for message, since in self._missing.items() if now - since >= MISSING_S]
        if lost:
            log.warning(
                "%d messages were lost on the way; their tasks are published again", len(lost)
            )
            self._lpm.tasks.unpublish(lost)

    def _finalise(self) -> None:
        jobs, now = self._lpm.jobs, self._clock()
        ended = jobs.finalise(now) if jobs.all(JobStatus.OPEN) else []
        for job in ended:
            log.info("job %s has ended", job.name, extra={"job": job.name})
        if ended or self._uptime() - self._mirrored > MIRROR_S:
            self._mirrored = self._uptime()
            for job in jobs.all():
                # Just ended ones too: another process may have ended them, or Redis was away.
                if job.status is JobStatus.OPEN or (job.completed_at or 0) > now - 10 * MIRROR_S:
                    books = self._lpm.counts.progress(job)
                    self._watch_deadline(job, books, now)
                    self._watch_standstill(job, books)
                    self._broker.mirror(job, books)
            self._lpm.bound_wal(WAL_LIMIT)

    def _watch_standstill(self, job: Job, books: Books) -> None:
        """Say why a job does not move when that begins or changes, and when it goes on."""
        if self._waits is None:
            return
        if not books.open:
            self._standstills.pop(job.id, None)
            self._told.pop(job.id, None)
            return
        if job.id not in self._standstills:
            if len(self._standstills) >= MAX_STANDSTILLS:
                return
            self._standstills[job.id] = Standstill(self._waits, job, STANDS_STILL_S)
        standstill = self._standstills[job.id]
        reason, told = standstill.reason(books), self._told.get(job.id, "")
        if without_figures(reason) == without_figures(told):
            return
        self._told[job.id] = reason
        if reason:
            log.warning("job %s does not move: %s", job.name, reason, extra={"job": job.name})
        else:
            log.warning("job %s goes on", job.name, extra={"job": job.name})

    def _watch_deadline(self, job: Job, books: Books, now: float) -> None:
        """Raise the alarm when a deadline begins to slip, and say when it no longer does."""
        if job.deadline is None:
            return
        trend = self._trends.setdefault(job.id, Trend())
        trend.add(self._uptime(), books.accepted - books.open)
        slipping = slip(job, books.open, trend.measured, now, self._zone)
        if slipping and job.id not in self._late:
            self._late.add(job.id)
            log.warning("job %s: %s", job.name, slipping, extra={"job": job.name})
        elif not slipping and job.id in self._late and books.open and trend.measured:
            self._late.discard(job.id)
            log.warning("job %s will be done in time again", job.name, extra={"job": job.name})
