"""A process's own book about its permits: what it holds, what it has to report, whom it need not
ask yet."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from crawler.errors import NotNow
from crawler.models import Rule
from crawler.resilience.permit import SLOW_S, Ask, Permit, Report

LOOK_S = 2.0
"""A closed domain is asked again at least so often: somebody may have reset it."""


class Booking(msgspec.Struct, frozen=True, kw_only=True):
    """A request that may go to a domain at a time of this process's clock."""

    domain: str
    rule: Rule
    at: float
    probe: bool = False
    """Whether it is to show that the domain answers again."""


class _Refused(NamedTuple):
    """A domain that gave less than was asked for: when it is looked at again, and what it said."""

    until: float
    wait_s: float
    why: str


class Keeper:
    """All calls to the permit go through here, on one thread; reports may be left by any.

    `key` gives the name under which a domain's limits are shared: its own, or one for each address
    of ours.
    """

    def __init__(
        self,
        permit: Permit,
        key: Callable[[str], str] = lambda domain: domain,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._permit, self._key, self._clock = permit, key, clock
        self._closed: dict[str, _Refused] = {}
        self._latest: dict[str, float] = {}
        self._held: Counter[str] = Counter()
        self._reports: list[Report] = []
        self._refusing: set[str] = set()
        self._guard = threading.Lock()

    def closed_s(self, domain: str) -> float:
        """For how long the domain need not be asked; 0 where it may be."""
        refused = self._closed.get(domain)
        return max(0.0, refused.until - self._clock()) if refused else 0.0

    def opens_s(self) -> float | None:
        """In how many seconds the first closed domain may be asked again; None where none is
        closed."""
        now = self._clock()
        self._closed = {
            domain: refused for domain, refused in self._closed.items() if refused.until > now
        }
        self._latest = {domain: at for domain, at in self._latest.items() if at > now}
        return (
            min(refused.until for refused in self._closed.values()) - now if self._closed else None
        )

    def refusal(self, domain: str) -> NotNow:
        """What stands in the way of one more request there."""
        refused = self._closed.get(domain, _Refused(0.0, 0.0, "rate"))
        return NotNow(domain, refused.why, max(refused.wait_s, 0.05))

    def book(self, asks: Sequence[Ask]) -> list[list[Booking]]:
        """Ask for requests; where fewer than wished are granted, the domain counts as closed for as
        long as it says."""
        self.flush()
        if not asks:
            return []
        answers = self._permit.ask([replace(ask, domain=self._key(ask.domain)) for ask in asks])
        after = self._clock()
        booked = []
        for ask, answer in zip(asks, answers, strict=True):
            probe = answer.why == "probe"
            booked.append(
                [
                    Booking(domain=ask.domain, rule=ask.rule, at=after + s, probe=probe)
                    for s in answer.starts_s
                ]
            )
            if answer.starts_s:
                self._latest[ask.domain] = booked[-1][-1].at
            if ask.slots:
                with self._guard:
                    self._held[ask.domain] += len(answer.starts_s)
            if answer.wait_s and len(answer.starts_s) < ask.wish:
                until = after + min(answer.wait_s, LOOK_S)
                self._closed[ask.domain] = _Refused(
                    until, answer.wait_s, "open" if probe else answer.why
                )
        return booked

    def is_latest(self, booking: Booking) -> bool:
        """Whether nothing was booked by this process behind it: only such a one can be given
        back."""
        return self._latest.get(booking.domain) == booking.at

    def report(self, report: Report) -> None:
        """Leave word of a request's end; it goes with the next call."""
        with self._guard:
            self._reports.append(report)
            if report.block and not report.again:
                self._refusing.add(report.domain)
            elif report.good and not report.block:
                self._refusing.discard(report.domain)
            self._held[report.domain] -= report.slots
            if self._held[report.domain] <= 0:
                del self._held[report.domain]

    def is_refusing(self, domain: str) -> bool:
        """Whether the last page of the domain that told anything was refused."""
        return domain in self._refusing

    def flush(self) -> None:
        """Pass on what was reported; a domain whose request has ended may be asked again at
        once."""
        with self._guard:
            reports, self._reports = self._reports, []
        if reports:
            self._permit.report(
                [replace(report, domain=self._key(report.domain)) for report in _gathered(reports)]
            )
            for report in reports:
                refused = self._closed.get(report.domain)
                if refused and refused.why == "at a time":
                    del self._closed[report.domain]

    def forget(self, domain: str, holder: str) -> None:
        """A holder has died."""
        self._permit.forget(self._key(domain), holder)

    def renew(self) -> None:
        """What is held is still in flight."""
        with self._guard:
            held = [domain for domain, count in self._held.items() if count > 0]
        if held:
            self._permit.renew([self._key(domain) for domain in held])


def _gathered(reports: Sequence[Report]) -> list[Report]:
    """The same in fewer words: a domain's ordinary answers in a row as one of their mean
    latency."""
    gathered: list[Report] = []
    last: dict[str, int] = {}
    for report in reports:
        place = last.get(report.domain)
        before = gathered[place] if place is not None else None
        if (
            before
            and place is not None
            and _ordinary(before)
            and _ordinary(report)
            and before.rule == report.rule
        ):
            gathered[place] = replace(
                before,
                slots=before.slots + report.slots,
                latency_s=(before.latency_s + report.latency_s) / 2,
                crawl_delay_s=report.crawl_delay_s or before.crawl_delay_s,
            )
        else:
            last[report.domain] = len(gathered)
            gathered.append(report)
    return gathered


def _ordinary(report: Report) -> bool:
    return (
        report.good is True
        and not (report.block or report.retry_after_s or report.unused)
        and (report.latency_s < SLOW_S)
    )
