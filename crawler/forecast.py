"""When work will be done: from what waits at each domain, what limits apply there and how fast
pages came so far."""

import math
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import tzinfo
from pathlib import Path

import msgspec

from crawler import times
from crawler.config import Settings, program
from crawler.db import owners
from crawler.db.counts import Counts
from crawler.models import HEADROOM, Job, Rule, Wait

PAGE_COST_S = 0.003
"""What a page takes of a process beside its parsing: client, ledger, disk."""
PAUSE_S, PAUSE_INTERVALS = 5.0, 5.0
"""Nothing for so long, and for so many times as long as a page usually takes to come, is a
standstill and no rate."""
STILL_S = 3.0
"""After how long without a page people are told why."""
MEASURED_S = 15.0
"""How long a rate is measured before a deadline is judged by it."""


class Pace(msgspec.Struct, frozen=True):
    """How long a page of a domain takes."""

    fetch_s: float = 0.5
    parse_s: float = 0.005


class Load(msgspec.Struct, frozen=True):
    """What waits at a domain: tasks of the job asked about, and those of others that go first."""

    domain: str
    tasks: int
    ahead: int = 0
    closed_s: float = 0.0
    """For how long nothing goes there."""


class Limits(msgspec.Struct, frozen=True):
    """What may happen: at each domain, at a time in a process, and how many processes there are."""

    rule: Callable[[str], Rule]
    pages: int
    processes: int
    running: bool = True


class Forecast(msgspec.Struct, frozen=True):
    """How long the tasks take, and how many of them will not be done in time."""

    tasks: int
    seconds: float
    misses: int
    bottleneck: str
    """The domain that takes longest; empty where the number of processes is what limits."""
    bottleneck_tasks: int
    measured: bool
    """Whether pages of these domains came before; else the pace is assumed."""


def forecast(
    loads: Sequence[Load], paces: Mapping[str, Pace], limits: Limits, until_s: float = math.inf
) -> Forecast:
    """Each domain at its limit, all of them together at what the processes can do."""
    usual = _mean(list(paces.values()))
    rates = {
        load.domain: _rate(limits, load.domain, paces.get(load.domain, usual)) for load in loads
    }
    pace = _mean([paces.get(load.domain, usual) for load in loads])
    most = min(
        limits.processes * limits.pages / pace.fetch_s,
        limits.processes / (pace.parse_s + PAGE_COST_S),
    )
    tasks = sum(load.tasks for load in loads)
    ahead = sum(load.ahead for load in loads)
    times = {
        load.domain: load.closed_s + (load.ahead + load.tasks) / rates[load.domain]
        for load in loads
    }
    slowest = max(loads, key=lambda load: times[load.domain], default=Load("", 0))
    together = min((load.closed_s for load in loads), default=0.0) + (ahead + tasks) / most
    seconds = max([together, *times.values()]) if tasks else 0.0
    misses = 0
    if seconds > until_s:
        in_time = sum(
            min(
                load.tasks,
                max(0.0, rates[load.domain] * max(0.0, until_s - load.closed_s) - load.ahead),
            )
            for load in loads
        )
        misses = math.ceil(tasks - min(in_time, max(0.0, most * until_s - ahead)))
    alone = bool(loads) and times[slowest.domain] >= together
    return Forecast(
        tasks=tasks,
        seconds=seconds,
        misses=misses,
        bottleneck=slowest.domain if alone else "",
        bottleneck_tasks=slowest.tasks if alone else 0,
        measured=any(load.domain in paces for load in loads),
    )


def _rate(limits: Limits, domain: str, pace: Pace) -> float:
    """How many pages a second a domain gives at most."""
    rule = limits.rule(domain)
    by_time = HEADROOM / rule.interval_s if rule.interval_s else math.inf
    return min(by_time, (rule.at_a_time or limits.processes * limits.pages) / pace.fetch_s)


def limits_of(settings: Settings, owners_folder: Path, rule: Callable[[str], Rule]) -> Limits:
    """The limits of the workers that run here, or of those that a start would bring."""
    running = sum(len(children) for children in owners.workers(owners_folder).values())
    return Limits(rule, settings.pages, running or os.cpu_count() or 1, running > 0)


def of_job(
    counts: Counts, job: Job, limits: Limits, now: float, waits: Sequence[Wait] = ()
) -> Forecast:
    """The forecast for what is open of a job, with what it waits for; that of a wait without an end
    is not told."""
    closed = {
        wait.domain: wait.until - now
        for wait in waits
        if wait.until is not None and wait.until > now
    }
    loads = [Load(*row, closed.get(row[0], 0.0)) for row in counts.loads(job)]
    paces = {domain: Pace(*row) for domain, row in counts.paces(job).items()}
    return forecast(
        loads, paces, limits, math.inf if job.deadline is None else max(0.0, job.deadline - now)
    )


def sentence(seen: Forecast, job: Job, limits: Limits, now: float, tz: tzinfo | None) -> str:
    """What the forecast means: when it is done and what is to spare, or what will miss and what
    helps."""
    basis = "" if seen.measured else " (no page of these domains came yet: 0.5 s each is assumed)"
    basis += "" if limits.running else f"; no worker runs now: {program()} up starts some"
    done = times.show(now + seen.seconds, now, tz)
    rule = limits.rule(seen.bottleneck)
    if job.deadline is None:
        limited = bool(seen.bottleneck) and rule.limited
        where = (
            f" ({seen.bottleneck_tasks:,} of them at {seen.bottleneck}: {rule})" if limited else ""
        )
        return f"about {times.duration(seen.seconds)} for {seen.tasks:,} tasks{where}, done by {done}{basis}"
    if not seen.misses:
        return (
            f"done by {done}, {times.duration(job.deadline - now - seen.seconds)} to spare{basis}"
        )
    share = f"{seen.misses:,} of {seen.tasks:,} will miss the deadline {times.show(job.deadline, now, tz)}"
    if seen.bottleneck:
        cause = (
            f"{seen.bottleneck} takes {rule if rule.limited else 'too long'}; drop "
            f"{min(seen.misses, seen.bottleneck_tasks):,} "
            f"of its {seen.bottleneck_tasks:,} tasks, or move the deadline to {done}"
        )
    else:
        cause = f"raise --workers (now {limits.processes}), drop {seen.misses:,} tasks, or move the deadline to {done}"
    return f"{share}: {cause}{basis}"


class Trend:
    """How fast work gets done of late; after a standstill the measure begins anew."""

    def __init__(self, over_s: float = 30.0) -> None:
        self._over_s = over_s
        self._points: deque[tuple[float, int]] = deque()
        self._moved = -math.inf

    def add(self, now: float, done: int) -> None:
        """So much was done at that time."""
        if self._points and done != self._points[-1][1]:
            self._moved = now
        elif self.still_s(now) > max(PAUSE_S, PAUSE_INTERVALS / self.rate if self.rate else 0.0):
            self._points.clear()
        self._points.append((now, done))
        while len(self._points) > 2 and self._points[1][0] < now - self._over_s:
            self._points.popleft()

    def still_s(self, now: float) -> float:
        """For how long nothing has come."""
        return now - self._moved

    @property
    def rate(self) -> float:
        """Tasks a second; 0 while nothing is known, or nothing comes."""
        if not self._points:
            return 0.0
        (first, before), (last, done) = self._points[0], self._points[-1]
        return max(0.0, done - before) / (last - first) if last - first > 0.2 else 0.0

    @property
    def measured(self) -> float:
        """The rate where it was measured for long enough to judge a deadline by it, else 0."""
        long_enough = self._points and self._points[-1][0] - self._points[0][0] >= MEASURED_S
        return self.rate if long_enough else 0.0


def slip(job: Job, open_: int, rate: float, now: float, tz: tzinfo | None) -> str | None:
    """What to say of a job that will not be done by its deadline at this rate; None where it will,
    or none is set."""
    if job.deadline is None or not open_ or not rate or now + open_ / rate <= job.deadline:
        return None
    misses = min(open_, math.ceil(open_ - rate * max(0.0, job.deadline - now)))
    return (
        f"at {rate:.1f}/s {misses:,} of {open_:,} open tasks will miss the deadline "
        f"{times.show(job.deadline, now, tz)}; all would be done by {times.show(now + open_ / rate, now, tz)}"
    )


def _mean(paces: Sequence[Pace]) -> Pace:
    if not paces:
        return Pace()
    count = len(paces)
    return Pace(
        max(0.001, sum(pace.fetch_s for pace in paces) / count),
        sum(pace.parse_s for pace in paces) / count,
    )
