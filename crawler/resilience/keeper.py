"""A process's own book about its permits: what it holds, what it has to report, whom it need not ask yet."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from crawler.errors import NotNow
from crawler.models import Rule
from crawler.resilience.permit import Ask, Permit, Report

LOOK_S = 2.0
"""A closed domain is asked again at least so often: somebody may have reset it."""


class Booking(msgspec.Struct, frozen=True, kw_only=True):
    """A request that may go to a domain at a time of this process's clock."""

    domain: str
    rule: Rule
    at: float


class Keeper:
    """All calls to the permit go through here, on one thread; reports may be left by any.

    `key` gives the name under which a domain's limits are shared: its own, or one for each address of ours.
    """

    def __init__(
        self,
        permit: Permit,
        key: Callable[[str], str] = lambda domain: domain,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._permit, self._key, self._clock = permit, key, clock
        self._closed: dict[str, float] = {}
        self._why: dict[str, str] = {}
        self._waits: dict[str, float] = {}
        self._latest: dict[str, float] = {}
        self._held: Counter[str] = Counter()
        self._reports: list[Report] = []
        self._guard = threading.Lock()

    def closed_s(self, domain: str) -> float:
        """For how long the domain need not be asked; 0 where it may be."""
        left = self._closed.get(domain, 0.0) - self._clock()
        if left <= 0:
            self._closed.pop(domain, None)
        return max(0.0, left)

    def opens_s(self) -> float | None:
        """In how many seconds the first closed domain may be asked again; None where none is closed."""
        now = self._clock()
        self._closed = {domain: until for domain, until in self._closed.items() if until > now}
        return min(self._closed.values()) - now if self._closed else None

    def refusal(self, domain: str) -> NotNow:
        """What stands in the way of one more request there."""
        return NotNow(domain, self._why.get(domain, "rate"), max(self._waits.get(domain, 0.0), 0.05))

    def book(self, asks: Sequence[Ask]) -> list[list[Booking]]:
        """Ask for requests; where fewer than wished are granted, the domain counts as closed for as long as it says."""
        self.flush()
        if not asks:
            return []
        answers = self._permit.ask([replace(ask, domain=self._key(ask.domain)) for ask in asks])
        after = self._clock()
        booked = []
        for ask, answer in zip(asks, answers, strict=True):
            booked.append([Booking(domain=ask.domain, rule=ask.rule, at=after + s) for s in answer.starts_s])
            if answer.starts_s:
                self._latest[ask.domain] = booked[-1][-1].at
            if ask.slots:
                with self._guard:
                    self._held[ask.domain] += len(answer.starts_s)
            if answer.wait_s and len(answer.starts_s) < ask.wish:
                self._closed[ask.domain] = after + min(answer.wait_s, LOOK_S)
                self._waits[ask.domain] = answer.wait_s
                self._why[ask.domain] = answer.why
        return booked

    def is_latest(self, booking: Booking) -> bool:
        """Whether nothing was booked by this process behind it: only such a one can be given back."""
        return self._latest.get(booking.domain) == booking.at

    def report(self, report: Report) -> None:
        """Leave word of a request's end; it goes with the next call."""
        with self._guard:
            self._reports.append(report)
            self._held[report.domain] -= report.slots
            if self._held[report.domain] <= 0:
                del self._held[report.domain]

    def flush(self) -> None:
        """Pass on what was reported; a domain whose request has ended may be asked again at once."""
        with self._guard:
            reports, self._reports = self._reports, []
        if reports:
            self._permit.report([replace(report, domain=self._key(report.domain)) for report in reports])
            for report in reports:
                if self._why.get(report.domain) == "at a time":
                    self._closed.pop(report.domain, None)

    def forget(self, domain: str, holder: str) -> None:
        """A holder has died."""
        self._permit.forget(self._key(domain), holder)

    def renew(self) -> None:
        """What is held is still in flight."""
        with self._guard:
            held = [domain for domain, count in self._held.items() if count > 0]
        if held:
            self._permit.renew([self._key(domain) for domain in held])
