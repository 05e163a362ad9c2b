"""How many worker processes a stack is to have, by what its tasks and its processes show.

A process keeps many pages in flight. So another one helps only if those that run are full, tasks
are due whose domains let a request go now, and the machine has a core and memory left.
"""

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import psutil

from crawler import forecast, sites
from crawler.config import Settings
from crawler.db import owners
from crawler.db.dispatch import Due
from crawler.forecast import CrawlLimits
from crawler.lpm import LocalPersistenceManager
from crawler.models import QUEUES, JobStatus, Line, RateRule
from crawler.resilience.permit import AHEAD_S
from crawler.sites.live import LiveSites
from crawler.waits import open_rate_limiter

if TYPE_CHECKING:
    from crawler.resilience.permit import DomainStatus

FULL = 0.7
"""From this load on a process counts as full: between two claims some of its places are free."""
COMFORTABLE = 0.6
"""The load at which fewer processes are left. Below FULL, or the number would go up and down."""
UP_AFTER_S = 2.0
"""How long all processes must be full before there are more."""
DOWN_AFTER_S = 15.0
"""How long fewer processes must have been enough before there are fewer."""
MIN_AGE_S = 1.0
"""Tasks that wait for less need no further process: those that run take them at once."""
SPARE_S = 60.0
"""A job that has less than this to spare until its deadline keeps all processes."""
MIN_PROCESS_BYTES, SPARE_MEMORY = 150 << 20, 0.1
"""What a process takes at least, and which part of the memory stays free."""
MAX_DEPTH, MAX_PLACES = 10_000, 256
"""Maximum due tasks and domains to count: more would change no decision."""
FORECAST_INTERVAL_S, MAX_JOBS = 10.0, 20
"""How often deadlines are judged, and those of how many jobs."""
MIN_REST_FACTOR = 10.0
"""Counting rests for this many times its duration, so that it costs a tenth of a core at most."""


class Bounds(NamedTuple):
    """The fewest and the most worker processes, and the places of each for pages."""

    min: int
    max: int
    pages: int


class Signals(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to do and to do it with, at one moment."""

    at: float
    processes: int
    """Worker processes that run."""
    load: float
    """How many processes are in use: the sum over all of their places or cores, if more."""
    cpu: float = 0.0
    """How many cores they use."""
    ready: int = 0
    """Due tasks whose domains let a request go now. Counted only while the processes are full."""
    oldest_s: float = 0.0
    """The age of the oldest of these."""
    spare_s: float = math.inf
    """What is left until a deadline once all is done. Only jobs that processes limit count."""
    cores: int = 1
    idle_cores: float = 1.0
    room: int = 1_000
    """How many more processes the memory has room for."""

    @property
    def is_full(self) -> bool:
        """Whether all places or cores of the processes are in use."""
        return self.load >= FULL * self.processes

    @property
    def more_cores(self) -> int:
        """How many more processes like these the cores have room for."""
        each = max(self.cpu / max(self.processes, 1), 0.01)
        left = self.cores - self.cpu
        if each >= FULL:  # they wait for cores, which other programs may need
            left = min(left, self.idle_cores + 0.2)
        return max(0, int(left / each))


class Decision(NamedTuple):
    """How many worker processes there are to be, and why."""

    processes: int
    why: str


def desired(now: float, signals: Sequence[Signals], current: int, bounds: Bounds) -> Decision:
    """Decide by the signals since the last change, the oldest first."""
    if not bounds.min <= current <= bounds.max:
        inside = min(max(current, bounds.min), bounds.max)
        return Decision(inside, "the bounds are others")
    return _more(now, signals, current, bounds) or _fewer(now, signals, current, bounds)


def _more(now: float, signals: Sequence[Signals], current: int, bounds: Bounds) -> Decision | None:
    """At most twice as many, or as many as there is work for if a deadline is in danger."""
    seen = _of_last(UP_AFTER_S, now, signals)
    if not seen or not all(s.is_full and s.ready and s.processes >= current for s in seen):
        return None
    last = seen[-1]
    if last.oldest_s < MIN_AGE_S and last.spare_s > 0:
        return None
    ready = min(s.ready for s in seen)
    more = math.ceil(ready / bounds.pages)
    if last.spare_s > 0:
        more = min(more, current)
    more = min(more, bounds.max - current, last.room, *(s.more_cores for s in seen))
    if more <= 0:
        return None
    why = f"all are full, and {ready:,} due tasks could go, the oldest for {last.oldest_s:.0f} s"
    if last.spare_s <= 0:
        why += "; a deadline is in danger"
    return Decision(current + more, why)


def _fewer(now: float, signals: Sequence[Signals], current: int, bounds: Bounds) -> Decision:
    """As many as were enough all the time, at least half of them."""
    seen = _of_last(DOWN_AFTER_S, now, signals)
    if not seen or seen[-1].spare_s < SPARE_S:
        return Decision(current, "")
    needed = max(math.ceil(s.load / COMFORTABLE) for s in seen)
    fewer = max(needed, bounds.min, current // 2)
    if fewer >= current:
        return Decision(current, "")
    most = max(s.load for s in seen)
    return Decision(fewer, f"at most {most:.1f} were in use for {DOWN_AFTER_S:.0f} s")


def _of_last(span_s: float, now: float, signals: Sequence[Signals]) -> list[Signals]:
    """The signals of a span; none if they do not reach that far back."""
    if not signals or signals[0].at > now - span_s:
        return []
    return [each for each in signals if each.at >= now - span_s]


class Scaler:
    """Follows the signals of a stack. Call it from one thread, about twice a second."""

    def __init__(
        self,
        settings: Settings,
        bounds: tuple[int, int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bounds = Bounds(*bounds, settings.pages)
        self.processes = self.bounds.min
        self._reader = SignalReader(settings, clock)
        self._clock = clock
        self._seen: deque[Signals] = deque()

    def look(self) -> Decision | None:
        """Take a sample; return the decision if it changes the number of processes."""
        signals = self._reader.read(self.processes)
        if signals is None:
            self._seen.clear()  # the workers are being started: their load says nothing yet
            return None
        self._seen.append(signals)
        now = self._clock()
        while self._seen[0].at < now - 2 * DOWN_AFTER_S:
            self._seen.popleft()
        found = desired(now, self._seen, self.processes, self.bounds)
        if found.processes == self.processes:
            return None
        self.processes = found.processes
        self._seen.clear()
        return found

    def close(self) -> None:
        """Close the store."""
        self._reader.close()


class SignalReader:
    """Reads the signals from the owners' files, the ledger, Redis and the machine."""

    def __init__(self, settings: Settings, clock: Callable[[], float]) -> None:
        self._settings, self._clock = settings, clock
        self._lpm = LocalPersistenceManager(settings.data_dir)
        self._sites = LiveSites(settings.config_dir, settings.rate, sites.built_in(settings.rate))
        self._depth, self._count_at = (0, 0.0), -math.inf
        self._spare_s, self._forecast_at = math.inf, -math.inf
        self._cores = _cores()
        psutil.cpu_percent()  # the first call has nothing to compare with

    def close(self) -> None:
        """Close the store."""
        self._lpm.close()

    def read(self, processes: int) -> Signals | None:
        """Return what is to be seen now; None if no worker process runs."""
        living = owners.living(self._lpm.owners)
        workers = [note for note in living if note.about.get("kind") == "worker"]
        if not workers:
            return None
        used = Signals(
            at=self._clock(),
            processes=len(workers),
            load=sum(max(note.places, note.cpu) for note in workers),
            cpu=sum(note.cpu for note in workers),
            cores=self._cores,
            idle_cores=self._cores * (1 - psutil.cpu_percent() / 100),
            spare_s=self._spare(processes),
        )
        if not used.is_full:
            return used
        ready, oldest_s = self._ready()
        room = _room([note.pid for note in workers])
        return msgspec.structs.replace(used, ready=ready, oldest_s=oldest_s, room=room)

    def _ready(self) -> tuple[int, float]:
        """Count the due tasks that may go now; return their number and the age of the oldest."""
        began = self._clock()
        if began >= self._count_at:
            self._depth = self._count()
            self._count_at = began + MIN_REST_FACTOR * (self._clock() - began)
        return self._depth

    def _count(self) -> tuple[int, float]:
        self._sites.look()
        now, total, oldest_s = time.time(), 0, 0.0
        with open_rate_limiter(self._settings) as shared:
            known = {each.domain.partition("@")[0]: each for each in shared.domains(now)}
        for due in self._places():
            rule = self._rule(due)
            most = may_go(rule, known.get(due.domain), now)
            count, imported_at = self._lpm.dispatch.depth(due, min(most, MAX_DEPTH - total))
            if count:
                total += count
                oldest_s = max(oldest_s, now - imported_at)
            if total >= MAX_DEPTH:
                break
        return total, oldest_s

    def _places(self) -> Iterator[Due]:
        dispatch = self._lpm.dispatch
        return islice(chain.from_iterable(dispatch.due(Line(name)) for name in QUEUES), MAX_PLACES)

    def _rule(self, due: Due) -> RateRule:
        rate = None
        if due.job_id is not None:
            rate = self._lpm.jobs.get(due.job_id).options.rate
        return self._sites.rule(due.domain, rate)

    def _spare(self, processes: int) -> float:
        """What the most urgent job has to spare, of those that more processes make faster."""
        now = self._clock()
        if now >= self._forecast_at:
            self._spare_s = self._least_spare(processes)
            took_s = self._clock() - now
            self._forecast_at = now + max(FORECAST_INTERVAL_S, MIN_REST_FACTOR * took_s)
        return self._spare_s

    def _least_spare(self, processes: int) -> float:
        now, spare_s = time.time(), math.inf
        jobs = [
            job
            for job in self._lpm.jobs.all()
            if job.deadline and job.status is JobStatus.OPEN and job.state != "paused"
        ]
        for job in jobs[:MAX_JOBS]:
            rule = partial(self._sites.rule, rate=job.options.rate)
            limits = CrawlLimits(rule, self._settings.pages, processes)
            seen = forecast.of_job(self._lpm.counts, job, limits, now)
            if seen.tasks and not seen.bottleneck and job.deadline:
                spare_s = min(spare_s, job.deadline - now - seen.seconds)
        return spare_s


def may_go(rule: RateRule, known: "DomainStatus | None", now: float) -> int:
    """Return how many tasks of a domain could go within a second, if a process had a place.

    Processes reserve up to AHEAD_S ahead. They do not come that far if they lack places.
    """
    if not rule.limited:
        return MAX_DEPTH
    most = MAX_DEPTH
    if rule.interval_s:
        most = math.ceil(1 / rule.interval_s)
    if rule.at_a_time:
        most = min(most, rule.at_a_time)
    if known is None:
        return most
    if known.state != "CLOSED" or known.not_before is not None:
        return 0
    if known.next_at is not None and known.next_at - now > AHEAD_S / 2:
        return 0
    if rule.at_a_time:
        most = min(most, rule.at_a_time - known.in_flight)
    return max(0, most)


def _cores() -> int:
    """The cores that this program may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _room(pids: Sequence[int]) -> int:
    """How many more processes like these the memory has room for."""
    sizes = [MIN_PROCESS_BYTES]
    for pid in pids:
        try:
            sizes.append(psutil.Process(pid).memory_info().rss)
        except psutil.NoSuchProcess:
            continue
    memory = psutil.virtual_memory()
    return max(0, int((memory.available - SPARE_MEMORY * memory.total) / max(sizes)))
