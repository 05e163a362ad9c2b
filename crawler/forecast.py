"""When work will be done, by the open tasks, limits and pace of each domain."""

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
from crawler.models import HEADROOM, Job, RateRule, Wait

PAGE_COST_S = 0.003
"""CPU time of a page without its parsing: client, ledger, disk."""
PAUSE_S, PAUSE_INTERVALS = 5.0, 5.0
"""Work stands still after PAUSE_S without a page and PAUSE_INTERVALS usual intervals."""
STILL_S = 3.0
"""After this long without a page, commands say why."""
MAX_NAMED = 3
"""How many of the domains that are too slow are named."""
TINY = 1e-9
"""Rounding: a product that falls short of a page by this little gives that page."""
MEASURED_S = 15.0
"""How long a rate is measured before a deadline is judged by it."""


class Pace(msgspec.Struct, frozen=True):
    """How long a page of a domain takes."""

    fetch_s: float = 0.5
    parse_s: float = 0.005


class Load(msgspec.Struct, frozen=True):
    """The tasks of a job at a domain, and those of other jobs that go first."""

    domain: str
    tasks: int
    ahead: int = 0
    closed_s: float = 0.0
    """How long the domain stays closed."""


class CrawlLimits(msgspec.Struct, frozen=True):
    """The limits at each domain, the pages at a time of a process, and the processes."""

    rule: Callable[[str], RateRule]
    pages: int
    processes: int
    running: bool = True


class LateDomain(msgspec.Struct, frozen=True):
    """A domain whose limits make tasks miss the deadline."""

    domain: str
    misses: int
    tasks: int


class Forecast(msgspec.Struct, frozen=True):
    """How long the tasks take, and how many of them will not be done in time."""

    tasks: int
    seconds: float
    misses: int
    bottleneck: str
    """The domain that takes longest; empty if the number of processes limits."""
    bottleneck_tasks: int
    measured: bool
    """Whether the pace comes from earlier pages of these domains; else it is assumed."""
    late: tuple[LateDomain, ...] = ()
    """The domains that make tasks miss, the most misses first. Other misses are due to too few
    processes."""


def forecast(
    loads: Sequence[Load], paces: Mapping[str, Pace], limits: CrawlLimits, until_s: float = math.inf
) -> Forecast:
    """Return a forecast: each domain works at its limit, all together as fast as the processes."""
    usual = _mean(list(paces.values()))
    known = {load.domain: paces.get(load.domain, usual) for load in loads}
    rates = {domain: _rate(limits, domain, pace) for domain, pace in known.items()}
    pace = _mean([known[load.domain] for load in loads])
    by_fetching = limits.processes * limits.pages / pace.fetch_s
    most = min(by_fetching, limits.processes / (pace.parse_s + PAGE_COST_S))
    tasks = sum(load.tasks for load in loads)
    ahead = sum(load.ahead for load in loads)
    together = min((load.closed_s for load in loads), default=0.0) + (ahead + tasks) / most

    def takes_s(load: Load) -> float:
        return load.closed_s + (load.ahead + load.tasks) / rates[load.domain]

    slowest, longest_s = Load("", 0), 0.0
    if loads:
        slowest = max(loads, key=takes_s)
        longest_s = takes_s(slowest)
    seconds = max(together, longest_s) * (tasks > 0)
    late = [
        LateDomain(load.domain, load.tasks - fits, load.tasks)
        for load in loads
        if (fits := _fits(load, limits, known[load.domain], until_s)) < load.tasks
    ]
    late.sort(key=lambda each: (-each.misses, each.domain))
    misses = 0
    if seconds > until_s:
        by_processes = tasks - max(0, math.floor(most * until_s - ahead + TINY))
        misses = max(sum(each.misses for each in late), by_processes)
    if longest_s < together:
        slowest = Load("", 0)
    return Forecast(
        tasks=tasks,
        seconds=seconds,
        misses=misses,
        bottleneck=slowest.domain,
        bottleneck_tasks=slowest.tasks,
        measured=any(load.domain in paces for load in loads),
        late=tuple(late),
    )


def _fits(load: Load, limits: CrawlLimits, pace: Pace, until_s: float) -> int:
    """Return how many tasks at a domain its own limits let end in time."""
    if until_s == math.inf:
        return load.tasks
    if until_s <= load.closed_s:
        return 0
    rate = _allowed(limits.rule(load.domain), pace)
    if rate == math.inf:
        return load.tasks
    return min(load.tasks, max(0, math.floor(rate * (until_s - load.closed_s) - load.ahead + TINY)))


def _rate(limits: CrawlLimits, domain: str, pace: Pace) -> float:
    """Return how many pages a second a domain allows at most."""
    rule = limits.rule(domain)
    rate = _allowed(rule, pace)
    if not rule.at_a_time:
        rate = min(rate, limits.processes * limits.pages / pace.fetch_s)
    return rate


def _allowed(rule: RateRule, pace: Pace) -> float:
    """Return how many pages a second the limits of a domain allow."""
    rate = math.inf
    if rule.interval_s:
        rate = HEADROOM / rule.interval_s
    if rule.at_a_time:
        rate = min(rate, rule.at_a_time / pace.fetch_s)
    return rate


def limits_of(
    settings: Settings, owners_folder: Path, rule: Callable[[str], RateRule]
) -> CrawlLimits:
    """Return the limits of the running workers, or of those that a start would bring."""
    running = sum(len(children) for children in owners.workers(owners_folder).values())
    return CrawlLimits(rule, settings.pages, running or os.cpu_count() or 1, running > 0)


def of_job(
    counts: Counts, job: Job, limits: CrawlLimits, now: float, waits: Sequence[Wait] = ()
) -> Forecast:
    """Return the forecast for a job's open tasks, with their waits that have an end."""
    ends = {wait.domain: wait.until for wait in waits if wait.until and wait.until > now}
    closed = {domain: until - now for domain, until in ends.items()}
    loads = [Load(*row, closed.get(row[0], 0.0)) for row in counts.loads(job)]
    paces = {domain: Pace(*row) for domain, row in counts.paces(job).items()}
    until_s = math.inf
    if job.deadline is not None:
        until_s = max(0.0, job.deadline - now)
    return forecast(loads, paces, limits, until_s)


def sentence(seen: Forecast, job: Job, limits: CrawlLimits, now: float, tz: tzinfo | None) -> str:
    """Say when a job is done and what is to spare, or what misses the deadline and what helps."""
    basis = ""
    if not seen.measured:
        basis += " (assuming 0.5 s a page: none of these domains has answered yet)"
    if not limits.running:
        basis += f"; no worker runs now: {program()} up starts some"
    done = times.show(now + seen.seconds, now, tz)
    place, count = seen.bottleneck, seen.bottleneck_tasks
    rule = limits.rule(place)
    if job.deadline is None:
        tasks = f"{seen.tasks:,} tasks"
        if place and rule.limited:
            tasks += f" ({count:,} of them at {place}: {rule})"
        return f"about {times.duration(seen.seconds)} for {tasks}, done by {done}{basis}"
    if not seen.misses:
        spare_s = job.deadline - now - seen.seconds
        return f"done by {done}, {times.duration(spare_s)} to spare{basis}"
    deadline = times.show(job.deadline, now, tz)
    share = f"{seen.misses:,} of {seen.tasks:,} will miss the deadline {deadline}"
    ways = [*_by_domain(seen, limits), *_by_processes(seen, limits)]
    return f"{share}: {'; '.join(ways)}, or move the deadline to {done}{basis}"


def _by_domain(seen: Forecast, limits: CrawlLimits) -> list[str]:
    """Name the domains that are too slow, of many the worst, and how many tasks to drop."""
    if not seen.late:
        return []
    if len(seen.late) == 1:
        [one] = seen.late
        return [f"{one.domain} takes {_takes(one, limits)}; {_drop(one)}"]
    named = seen.late
    if len(named) > MAX_NAMED:
        named = named[: MAX_NAMED - 1]
    parts = [f"{each.domain} ({_takes(each, limits)}; {_drop(each)})" for each in named]
    if others := seen.late[len(named) :]:
        misses, tasks = sum(each.misses for each in others), sum(each.tasks for each in others)
        parts.append(f"{len(others):,} other domains (drop {misses:,} of their {tasks:,} tasks)")
    return [f"too slow are {', '.join(parts[:-1])} and {parts[-1]}"]


def _drop(late: LateDomain) -> str:
    return f"drop {late.misses:,} of its {late.tasks:,} tasks"


def _takes(late: LateDomain, limits: CrawlLimits) -> str:
    rule = limits.rule(late.domain)
    if not rule.limited:
        return "too long"
    return str(rule)


def _by_processes(seen: Forecast, limits: CrawlLimits) -> list[str]:
    """Say what helps if the processes are too few for what the domains allow in time."""
    left = seen.misses - sum(each.misses for each in seen.late)
    if not left:
        return []
    more = " more" * bool(seen.late)
    return [f"raise --workers (now {limits.processes}), drop {left:,}{more} tasks"]


class Trend:
    """The rate at which tasks end; after a standstill the measurement starts again."""

    def __init__(self, over_s: float = 30.0) -> None:
        self._over_s = over_s
        self._points: deque[tuple[float, int]] = deque()
        self._moved = -math.inf

    def add(self, now: float, done: int) -> None:
        """Note how many tasks were done at a time."""
        if self._points and done != self._points[-1][1]:
            self._moved = now
        elif self.still_s(now) > self._longest_pause_s():
            self._points.clear()
        self._points.append((now, done))
        while len(self._points) > 2 and self._points[1][0] < now - self._over_s:
            self._points.popleft()

    def _longest_pause_s(self) -> float:
        rate = self.rate
        if not rate:
            return PAUSE_S
        return max(PAUSE_S, PAUSE_INTERVALS / rate)

    def still_s(self, now: float) -> float:
        """Return the time since the last progress."""
        return now - self._moved

    @property
    def rate(self) -> float:
        """Tasks a second; 0 while nothing is known or nothing moves."""
        if self._span_s <= 0.2:
            return 0.0
        return max(0.0, self._points[-1][1] - self._points[0][1]) / self._span_s

    @property
    def measured(self) -> float:
        """The rate, if it was measured for long enough to judge a deadline by it, else 0."""
        return self.rate * (self._span_s >= MEASURED_S)

    @property
    def _span_s(self) -> float:
        if not self._points:
            return 0.0
        return self._points[-1][0] - self._points[0][0]


def slip(job: Job, open_: int, rate: float, now: float, tz: tzinfo | None) -> str | None:
    """Say what will miss the deadline of a job at this rate; None if nothing will."""
    if job.deadline is None or not open_ or not rate or now + open_ / rate <= job.deadline:
        return None
    misses = min(open_, math.ceil(open_ - rate * max(0.0, job.deadline - now)))
    deadline, end = times.show(job.deadline, now, tz), times.show(now + open_ / rate, now, tz)
    return (
        f"at {rate:.1f}/s {misses:,} of {open_:,} open tasks will miss the deadline {deadline}; "
        f"all would be done by {end}"
    )


def _mean(paces: Sequence[Pace]) -> Pace:
    if not paces:
        return Pace()
    fetch_s = sum(pace.fetch_s for pace in paces) / len(paces)
    return Pace(max(0.001, fetch_s), sum(pace.parse_s for pace in paces) / len(paces))
