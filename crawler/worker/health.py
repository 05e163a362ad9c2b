"""What keeps a worker process from claiming: the disk, the store, memory, descriptors."""

import asyncio
import faulthandler
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from crawler.db.owners import Owner
from crawler.fetch.budget import Memory
from crawler.lpm import low_on_disk

log = logging.getLogger(__name__)

DISK_CHECK_INTERVAL_S = 1.0
SHORTAGE_PAUSE_S = 1.0
"""How long nothing is claimed after this process lacked memory, descriptors or the like."""
RECOVERED_AFTER_S = 5.0
"""How long nothing may be lacking before the log says so."""
COMPLAINT_INTERVAL_S = 60.0
LOAD_OVER_S = 1.0
"""Over which time the load is averaged."""


class FreeSpace:
    """Whether the disk has enough free space; the log says when that changes."""

    def __init__(
        self, folder: Path, min_free: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._min_free, self._clock = folder, min_free, clock
        self._checked_at = -DISK_CHECK_INTERVAL_S
        self.problem: str | None = None

    def is_enough(self) -> bool:
        """Look at the disk, at most once a second."""
        now = self._clock()
        if now - self._checked_at >= DISK_CHECK_INTERVAL_S:
            self._checked_at = now
            before, self.problem = self.problem, low_on_disk(self._folder, self._min_free)
            if self.problem and not before:
                log.warning("%s", self.problem)
            elif before and not self.problem:
                log.warning("there is room on the disk again; work goes on")
        return self.problem is None


class Health:
    """What this process lacks, for its claims, the log and the other processes."""

    def __init__(
        self,
        owner: Owner,
        memory: Memory,
        disk: FreeSpace,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._owner, self._memory, self._disk, self._clock = owner, memory, disk, clock
        self._shortage = ""
        self._short_until = self._last_short = 0.0
        self._was_short = False
        self._published = ""
        self._store_problem = ""
        self._complained_at = -COMPLAINT_INTERVAL_S

    @property
    def had_shortage(self) -> bool:
        """Whether a shortage was noted within the last second."""
        return self._clock() < self._short_until

    @property
    def must_not_claim(self) -> bool:
        """Whether nothing may be claimed for lack of memory or other resources."""
        return self._memory.is_full or self.had_shortage

    def note_shortage(self, lack: str) -> None:
        """Note what is lacking; nothing is claimed for a second after it."""
        self._shortage, self._short_until = lack, self._clock() + SHORTAGE_PAUSE_S

    def note_store(self, problem: str) -> None:
        """Note why nothing can be claimed from the store; an empty text where it can."""
        if problem:
            self.complain(problem)
        elif self._store_problem:
            log.warning("the store can be used again; work goes on")
        self._store_problem = problem

    def complain(self, error: str) -> None:
        """Log a problem of the store, at most once a minute. Any thread may call this."""
        if self._clock() - self._complained_at > COMPLAINT_INTERVAL_S:
            self._complained_at = self._clock()
            log.warning("nothing more is claimed, and results wait in memory: %s", error)

    def publish(self, writer_problem: str) -> None:
        """Write the problem to the owner's file; log when a shortage begins and ends."""
        problem = self._problem(writer_problem)
        if problem != self._published:
            self._owner.trouble(problem)
        self._published = problem
        now = self._clock()
        if self.must_not_claim:
            if not self._was_short:
                log.warning("nothing more is claimed for now: %s", problem)
            self._was_short, self._last_short = True, now
        elif self._was_short and now - self._last_short > RECOVERED_AFTER_S:
            log.warning("what was lacking is there again; work goes on")
            self._was_short = False

    def _problem(self, writer_problem: str) -> str:
        if self._memory.is_full:
            used = f"{self._memory.used:,} bytes of memory"
            return f"the pages in flight take {used}, as many as they may"
        problem = writer_problem or self._store_problem or self._disk.problem or ""
        if not problem and self.had_shortage:
            problem = self._shortage
        return problem


class Load:
    """How much of this process was in use of late: its places for pages, and a core's time."""

    def __init__(
        self,
        owner: Owner,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        self._owner, self._clock, self._cpu = owner, clock, cpu
        self._at, self._cpu_at = clock(), cpu()
        self._places = self._share = 0.0

    def note(self, places: float) -> None:
        """Take a sample, and write both averages to the owner's file."""
        now, cpu = self._clock(), self._cpu()
        passed_s = now - self._at
        if passed_s <= 0:
            return
        share = min(1.0, (cpu - self._cpu_at) / passed_s)
        weight = min(1.0, passed_s / LOAD_OVER_S)
        self._places += (places - self._places) * weight
        self._share += (share - self._share) * weight
        self._at, self._cpu_at = now, cpu
        self._owner.load(self._places, self._share)


class Watchdog:
    """Ends the process when its loop stands still, even inside C code; leaves a trace of a
    crash."""

    def __init__(self, stall_s: float, trace: IO[Any]) -> None:
        self.stall_s, self._trace = stall_s, trace
        self.rearm_at = 0.0
        """When it is to be rearmed, by the monotonic clock."""

    async def run(self) -> None:
        """Rearm it in time, until cancelled. It stays armed until `stop`."""
        faulthandler.enable(self._trace)
        while True:
            self.rearm()
            await asyncio.sleep(self.stall_s / 4)

    def stop(self) -> None:
        """Disarm it."""
        faulthandler.cancel_dump_traceback_later()
        faulthandler.disable()

    def rearm(self) -> None:
        """Show that the loop runs."""
        self.rearm_at = time.monotonic() + self.stall_s / 4
        faulthandler.dump_traceback_later(self.stall_s, exit=True, file=self._trace)
