"""Permits without Redis, for one process: the same answers as `permit.lua` gives."""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from crawler.models import RateRule
from crawler.resilience import permit
from crawler.resilience.permit import (
    AHEAD_S,
    KEEP_S,
    LEASE_S,
    OPEN_S,
    DomainStatus,
    PermitAnswer,
    PermitRequest,
    RequestReport,
)

_TIMES = ("tat", "cursor", "job_tat", "opened_at", "open_until", "probe_until", "not_before")
_LEARNED = (
    *("state", "failures", "last_block", "opened_at", "open_until", "open_for", "probe"),
    *("probe_until", "slowed", "baseline", "crawl_delay", "not_before", "because"),
)


class DomainState(msgspec.Struct, kw_only=True):
    """All that is shared about a domain. Names and meanings are those of the hash in Redis."""

    seen: float = 0.0
    tat: float | None = None
    cursor: float | None = None
    busy: int = 0
    last: str = ""
    last_n: int = 0
    step: float = 0.0
    job: str = ""
    job_interval: float = 0.0
    job_tat: float | None = None
    interval: float = 0.0
    at_a_time: int = 0
    leases: dict[str, tuple[int, float]] = {}
    """By holder: requests in flight, and when the lease on them ends."""
    state: str = "CLOSED"
    failures: int = 0
    last_block: str = ""
    opened_at: float | None = None
    open_until: float | None = None
    open_for: float = OPEN_S
    probe: str = ""
    probe_until: float | None = None
    slowed: float = 1.0
    baseline: float = 0.0
    crawl_delay: float = 0.0
    not_before: float | None = None
    because: str = ""

    def shown(self, domain: str, now: float) -> DomainStatus:
        """Return what commands show of the domain."""
        state = self.state
        if state == "OPEN" and (self.open_until or 0.0) <= now:
            state = "HALF_OPEN"  # the next to ask gets the probe
        not_before, because = _future(self.not_before, now), ""
        if not_before is not None:
            because = self.because
        return DomainStatus(
            domain=domain,
            state=state,
            failures=self.failures,
            opened_at=self.opened_at,
            open_until=self.open_until,
            last_block=self.last_block,
            in_flight=sum(count for count, expiry in self.leases.values() if expiry > now),
            slowed=self.slowed,
            crawl_delay_s=self.crawl_delay,
            not_before=not_before,
            because=because,
            next_at=_future(self.tat, now),
            interval_s=self.interval,
            at_a_time=self.at_a_time,
        )

    def catch_up(self, now: float) -> None:
        """Forget leases that have run out. If the clock was set back, move all times with it."""
        back = self.seen - now
        if back > 0:
            for name in _TIMES:
                if (at := getattr(self, name)) is not None:
                    setattr(self, name, at - back)
            for who, (count, expiry) in self.leases.items():
                self.leases[who] = (count, expiry - back)
        self.leases = {who: lease for who, lease in self.leases.items() if lease[1] > now}
        self.seen = now

    def hold(self, holder: str, count: int, now: float) -> None:
        """Note how many requests of a holder are in flight."""
        if count > 0:
            self.leases[holder] = (count, now + LEASE_S)
        else:
            self.leases.pop(holder, None)

    def reset(self) -> None:
        """Forget what was learned, but neither requests in flight nor reservations."""
        fresh = DomainState()
        for name in _LEARNED:
            setattr(self, name, getattr(fresh, name))

    # Before requests

    def grant(
        self, ask: PermitRequest, holder: str, held: int, epoch: float | None, now: float
    ) -> PermitAnswer:
        """Grant what may be granted now; the holder has `held` requests in flight already."""
        probing = False
        if self.state == "OPEN":
            open_until = self.open_until or 0.0
            if now < open_until:
                return PermitAnswer(why="open", wait_s=open_until - now)
            probing = True
        elif self.state == "HALF_OPEN":
            alive = self.probe and (self.probe_until or 0.0) > now
            # A request that takes the place of the probe belongs to it: a redirect.
            if alive and (ask.slots or self.probe != holder):
                return PermitAnswer(why="open", wait_s=permit.PROBE_WAIT_S)
            probing = True
        if self.not_before is not None and now < self.not_before:
            return PermitAnswer(why="retry after", wait_s=self.not_before - now)

        most, why = ask.wish, ""
        if probing and most > 1:
            most, why = 1, "open"
        if ask.rule.at_a_time > 0 and ask.slots:
            others = sum(count for who, (count, _) in self.leases.items() if who != holder)
            free_places = ask.rule.at_a_time - held - others
            if free_places < most:
                most, why = max(free_places, 0), "at a time"

        step = self._spacing(ask.rule.interval_s)
        self._raise_limit(ask, step, now)
        starts, tat, why = self._starts(ask, step, most, why, epoch, now)
        if starts and step > 0:
            if self.last != holder or self.step != step:
                self.last_n = 0
            self.last_n += len(starts)
            self.last, self.step, self.tat = holder, step, tat
            self._note_limit(ask, now + starts[0])
        if probing and starts:
            self.state, self.probe, self.probe_until = "HALF_OPEN", holder, now + LEASE_S
            wait_s = permit.PROBE_WAIT_S * (ask.wish > 1)
            return PermitAnswer(starts_s=starts, why="probe", wait_s=wait_s)
        if len(starts) == ask.wish:
            return PermitAnswer(starts_s=starts)
        wait_s = self._wait_s(ask, step, len(starts), why, tat, now)
        return PermitAnswer(starts_s=starts, why=why, wait_s=wait_s)

    def _raise_limit(self, ask: PermitRequest, step: float, now: float) -> None:
        """If a job has raised its own limit, drop its latest reservations under the lower one."""
        if not ask.job or self.job != ask.job or ask.rule.interval_s >= self.job_interval:
            return
        begun = max(self.job_tat or 0.0, now + permit.NOTICE_S + step)
        self.tat = min(self.tat or 0.0, begun)
        self.job_interval, self.last_n = ask.rule.interval_s, 0

    def _note_limit(self, ask: PermitRequest, first: float) -> None:
        """Note under whose limit, and which, the latest reservations are made."""
        if (self.job, self.job_interval) != (ask.job, ask.rule.interval_s):
            self.job, self.job_interval, self.job_tat = ask.job, ask.rule.interval_s, first

    def _spacing(self, interval_s: float) -> float:
        seconds = max(interval_s, self.crawl_delay) / permit.HEADROOM
        if interval_s > 0:
            seconds *= self.slowed
        return seconds

    def _starts(
        self, ask: PermitRequest, step: float, most: int, why: str, epoch: float | None, now: float
    ) -> tuple[tuple[float, ...], float, str]:
        """Return the starts that the rate allows, when the next may be, and what limits."""
        if step <= 0:
            return (0.0,) * most, now, why
        tat, limit = self.tat, "rate"
        if tat is None and epoch is None:
            tat = now
        elif tat is None:
            # Reservations from before the state was lost end by then.
            tat = (epoch or 0.0) + AHEAD_S + step
            if tat > now:
                limit = "just begun"
        batch = max(1, math.floor(permit.BATCH_S / step))
        if most > batch:
            most, why = batch, "rate"
        starts: list[float] = []
        for _ in range(most):
            start = max(now, tat)
            if start - now > ask.ahead_s:
                why = limit
                break
            starts.append(start - now)
            tat = start + step
        return tuple(starts), tat, why

    def _wait_s(
        self, ask: PermitRequest, step: float, granted: int, why: str, tat: float, now: float
    ) -> float:
        """Return when a holder that did not get all should ask again."""
        if why == "open":
            return permit.PROBE_WAIT_S
        if why == "at a time":
            busy, self.busy = self.busy, (self.busy + 1) % permit.BUSY_STEPS
            return permit.BUSY_S * (busy + 1)
        # Each refused holder gets its own turn, so that they do not all come for one free request.
        free = max(now, tat - ask.ahead_s)
        wanted = min(ask.wish - granted, max(1, math.floor(permit.BATCH_S / step)))
        last, told = free + permit.SPREAD_S, self.cursor or 0.0
        if told > last:
            told = 0.0  # told before the rate was raised
        turn = max(told, free) + min((wanted - 1) * step, ask.ahead_s / 2)
        if turn > last:
            return last - now
        self.cursor = min(turn + step, last)
        return turn - now

    # After requests

    def learn(self, report: RequestReport, holder: str, fail_max: int, now: float) -> None:
        """Take in how requests ended."""
        latency_s, retry_after_s, crawl_delay_s = bounded(report)
        if 0 < report.unused <= self.last_n and self.last == holder and self.tat is not None:
            tat = self.tat - report.unused * self.step
            if tat >= now:
                self.tat = tat
                self.last_n -= report.unused
        if self._judge(report, holder, fail_max, now) and report.rule.interval_s > 0:
            self._adapt(report, latency_s)
        if retry_after_s > 0 and now + retry_after_s > (self.not_before or 0.0):
            self.not_before, self.because = now + retry_after_s, report.because
        if crawl_delay_s:
            self.crawl_delay = max(0.0, crawl_delay_s)

    def _judge(self, report: RequestReport, holder: str, fail_max: int, now: float) -> bool:
        """Move the circuit. Says whether the report counts: one that comes after the circuit has
        opened says nothing new."""
        if self.state == "CLOSED":
            if report.block and report.again:
                return False
            if report.block:
                self.failures += 1
                self.last_block = report.block
                if self.failures >= fail_max:
                    self._open(OPEN_S, now)
            elif report.good:
                self.failures = 0
            return True
        if self.state != "HALF_OPEN" or self.probe != holder:
            return False
        if report.block or report.good is False:
            self.failures += 1
            self.last_block = report.block or self.last_block
            open_for = self.open_for
            if not report.again:
                open_for = min(open_for * 2, permit.MAX_OPEN_S)
            self._open(open_for, now)
        elif report.good:
            self.state, self.failures, self.last_block, self.probe = "CLOSED", 0, "", ""
            self.opened_at = self.open_until = None
            self.open_for = OPEN_S
        elif report.slots > 0 or report.unused > 0:
            self.probe = ""
        return True

    def _open(self, seconds: float, now: float) -> None:
        self.state, self.probe = "OPEN", ""
        self.opened_at, self.open_until, self.open_for = now, now + seconds, seconds

    def _adapt(self, report: RequestReport, latency_s: float) -> None:
        if report.block or report.good is False:
            self.slowed = min(permit.MAX_SLOWDOWN, self.slowed * permit.SLOWDOWN_PER_BLOCK)
            return
        if not report.good:
            return
        slow_s = max(permit.SLOW_S, permit.SLOW_TIMES * self.baseline)
        if self.baseline > 0 and latency_s > slow_s:
            slowed = self.slowed * permit.SLOWDOWN_PER_SLOW_ANSWER
            self.slowed = min(permit.MAX_SLOWDOWN, slowed)
        else:
            self.slowed = max(1.0, self.slowed * permit.RECOVERY)
        if latency_s > 0:
            before = self.baseline or latency_s
            self.baseline = before + permit.BASELINE_SHARE * (latency_s - before)


def sane(ask: PermitRequest) -> PermitRequest:
    """Return an ask without negative or endless numbers."""
    rule = RateRule(
        interval_s=_within(ask.rule.interval_s, 1e9), at_a_time=max(0, ask.rule.at_a_time)
    )
    return msgspec.structs.replace(
        ask, rule=rule, wish=max(0, ask.wish), ahead_s=_within(ask.ahead_s, 1e9)
    )


def bounded(report: RequestReport) -> tuple[float, float, float]:
    """Return latency, `Retry-After` and `Crawl-delay` of a report, within their bounds."""
    crawl_delay_s = -1.0
    if not report.crawl_delay_s < 0:
        crawl_delay_s = _within(report.crawl_delay_s, permit.MAX_CRAWL_DELAY_S)
    retry_after_s = _within(report.retry_after_s, permit.MAX_RETRY_AFTER_S)
    return _within(report.latency_s, 1e9), retry_after_s, crawl_delay_s


def _within(number: float, most: float) -> float:
    return min(max(0.0, number), most)  # in this order: a NaN becomes 0


def _future(at: float | None, now: float) -> float | None:
    if at is None or at <= now:
        return None
    return at


class DomainTable:
    """The states of all domains, shared by all holders of a process."""

    def __init__(self, epoch: float | None) -> None:
        self.states: dict[str, DomainState] = {}
        self.epoch = epoch
        """When this table began; None if no request from before can still be in flight."""
        self.lock = threading.Lock()
        self._swept = -math.inf

    def state(self, domain: str, now: float) -> DomainState:
        """Return the state of a domain, as of now."""
        self._sweep(now)
        state = self.states.get(domain)
        if state is None:
            state = self.states[domain] = DomainState(seen=now)
        state.catch_up(now)
        return state

    def _sweep(self, now: float) -> None:
        if self._swept <= now < self._swept + KEEP_S / 10:
            return
        self._swept = now
        for domain, state in list(self.states.items()):
            if max(state.seen, state.tat or 0.0) + KEEP_S < now:
                del self.states[domain]


class MemoryPermit:
    """Implements `Permit` in memory."""

    def __init__(
        self,
        holder: str,
        fail_max: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        fresh: bool = True,
        table: DomainTable | None = None,
        held: Counter[str] | None = None,
    ) -> None:
        """`fresh=False`: nobody has reserved anything before. `table` is shared with the permits
        of other holders, `held` with the caller."""
        self._holder, self._fail_max, self._clock = holder, fail_max, clock
        self._table = table or DomainTable(clock() if fresh else None)
        self._held: Counter[str] = Counter() if held is None else held
        self._lock = self._table.lock

    def ask(self, asks: Sequence[PermitRequest]) -> list[PermitAnswer]:
        """Reserve requests. Granted ones count as in flight until they are reported."""
        with self._lock:
            return [self._ask(each) for each in asks]

    def report(self, reports: Sequence[RequestReport]) -> None:
        """Say how requests ended."""
        with self._lock:
            for each in reports:
                end(self._held, each)
                self._learn(each)

    def learn(self, reports: Sequence[RequestReport]) -> None:
        """The same, where the caller has already updated `held`."""
        with self._lock:
            for each in reports:
                self._learn(each)

    def renew(self, domains: Sequence[str]) -> None:
        """Say that this holder's requests to these domains are still in flight."""
        with self._lock:
            now = self._clock()
            for domain in domains:
                if self._held[domain]:
                    state = self._table.state(domain, now)
                    state.hold(self._holder, self._held[domain], now)
                    if state.probe == self._holder:
                        state.probe_until = now + LEASE_S

    def forget(self, domain: str, holder: str) -> None:
        """Drop the requests in flight of a holder that has died."""
        with self._lock:
            now = self._clock()
            if domain in self._table.states:
                state = self._table.state(domain, now)
                state.hold(holder, 0, now)
                if state.probe == holder:
                    state.probe = ""

    def domains(self) -> list[DomainStatus]:
        """Return the state of every known domain."""
        with self._lock:
            now = self._clock()
            return [
                state.shown(domain, now) for domain, state in sorted(self._table.states.items())
            ]

    def reset(self, domain: str) -> bool:
        """Forget what was learned of a domain, but neither requests in flight nor reservations."""
        with self._lock:
            now = self._clock()
            if domain not in self._table.states:
                return False
            state = self._table.state(domain, now)
            state.reset()
            if not state.leases and (state.tat or 0.0) <= now:
                del self._table.states[domain]
            return True

    def _ask(self, ask: PermitRequest) -> PermitAnswer:
        now = self._clock()
        epoch = self._table.epoch
        if epoch is not None and epoch > now:
            self._table.epoch = epoch = now
        state = self._table.state(ask.domain, now)
        answer = state.grant(sane(ask), self._holder, self._held[ask.domain], epoch, now)
        if ask.slots and answer.starts_s:
            self._held[ask.domain] += len(answer.starts_s)
        state.hold(self._holder, self._held[ask.domain], now)
        state.interval, state.at_a_time = ask.rule.interval_s, ask.rule.at_a_time
        return answer

    def _learn(self, report: RequestReport) -> None:
        now = self._clock()
        state = self._table.state(report.domain, now)
        state.hold(self._holder, self._held[report.domain], now)
        state.learn(report, self._holder, self._fail_max, now)


def end(held: Counter[str], report: RequestReport) -> None:
    """Note that requests are no longer in flight."""
    held[report.domain] = max(0, held[report.domain] - max(0, report.slots))
    if not held[report.domain]:
        del held[report.domain]
