"""Permits without Redis, for one process: the same answers as `permit.lua` gives."""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from crawler.resilience.domain_state import DomainState, sane
from crawler.resilience.permit import KEEP_S, LEASE_S, Answer, Ask, Domain, Report


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

    def ask(self, asks: Sequence[Ask]) -> list[Answer]:
        """Reserve requests. Granted ones count as in flight until they are reported."""
        with self._lock:
            return [self._ask(each) for each in asks]

    def report(self, reports: Sequence[Report]) -> None:
        """Say how requests ended."""
        with self._lock:
            for each in reports:
                end(self._held, each)
                self._learn(each)

    def learn(self, reports: Sequence[Report]) -> None:
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

    def domains(self) -> list[Domain]:
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

    def _ask(self, ask: Ask) -> Answer:
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

    def _learn(self, report: Report) -> None:
        now = self._clock()
        state = self._table.state(report.domain, now)
        state.hold(self._holder, self._held[report.domain], now)
        state.learn(report, self._holder, self._fail_max, now)


def end(held: Counter[str], report: Report) -> None:
    """Note that requests are no longer in flight."""
    held[report.domain] = max(0, held[report.domain] - max(0, report.slots))
    if not held[report.domain]:
        del held[report.domain]
