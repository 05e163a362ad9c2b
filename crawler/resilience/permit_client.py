"""A process's permits: what it holds, what it has to report, and which domains refuse for now."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from crawler.errors import NotNow
from crawler.models import Rule
from crawler.resilience.permit import SLOW_S, Answer, Ask, Permit, Report

MAX_CLOSED_S = 2.0
"""A closed domain is asked again at least this often: an operator may have reset it."""
_MIN_WAIT_S = 0.05


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """A request that may go to a domain at a time of this process's clock."""

    domain: str
    rule: Rule
    at: float
    probe: bool = False
    """Whether it tests that the domain answers again."""


class PermitClient:
    """All calls to the permit go through here, on one thread; reports may come from any.

    `key` gives the name under which a domain's limits are shared: its own, or one for each of our
    addresses.
    """

    def __init__(
        self,
        permit: Permit,
        key: Callable[[str], str] = lambda domain: domain,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._permit, self._key, self._clock = permit, key, clock
        self._closed: dict[str, tuple[float, Answer]] = {}
        """Domains that granted less than was asked for: until when, and their answer."""
        self._latest: dict[str, float] = {}
        self._held: Counter[str] = Counter()
        self._reports: list[Report] = []
        self._refusing: set[str] = set()
        self._lock = threading.Lock()

    def closed_s(self, domain: str) -> float:
        """Return for how long the domain need not be asked; 0 if it may be."""
        if domain not in self._closed:
            return 0.0
        return max(0.0, self._closed[domain][0] - self._clock())

    def opens_s(self) -> float | None:
        """Return in how many seconds the first closed domain may be asked again, if any is."""
        now = self._clock()
        self._closed = {name: each for name, each in self._closed.items() if each[0] > now}
        self._latest = {name: at for name, at in self._latest.items() if at > now}
        if not self._closed:
            return None
        return min(until for until, _ in self._closed.values()) - now

    def refusal(self, domain: str) -> NotNow:
        """Return the error that says why a domain grants no request now."""
        _, answer = self._closed.get(domain, (0.0, Answer(why="rate")))
        return NotNow(domain, answer.why, max(answer.wait_s, _MIN_WAIT_S))

    def reserve(self, asks: Sequence[Ask]) -> list[list[Reservation]]:
        """Ask for requests. A domain that grants fewer is closed for as long as it says."""
        self.flush()
        if not asks:
            return []
        answers = self._permit.ask([replace(ask, domain=self._key(ask.domain)) for ask in asks])
        now = self._clock()
        return [self._reserved(ask, answer, now) for ask, answer in zip(asks, answers, strict=True)]

    def _reserved(self, ask: Ask, answer: Answer, now: float) -> list[Reservation]:
        domain, probe = ask.domain, answer.why == "probe"
        reserved = [
            Reservation(domain=domain, rule=ask.rule, at=now + start_s, probe=probe)
            for start_s in answer.starts_s
        ]
        if reserved:
            self._latest[domain] = reserved[-1].at
        if ask.slots:
            with self._lock:
                self._held[domain] += len(reserved)
        if answer.wait_s and len(reserved) < ask.wish:
            if probe:
                answer = replace(answer, why="open")
            self._closed[domain] = (now + min(answer.wait_s, MAX_CLOSED_S), answer)
        return reserved

    def is_latest(self, reservation: Reservation) -> bool:
        """Whether this process has reserved nothing behind it: only then it can be given back."""
        return self._latest.get(reservation.domain) == reservation.at

    def report(self, report: Report) -> None:
        """Keep a report for the next call."""
        with self._lock:
            self._reports.append(report)
            if report.block and not report.again:
                self._refusing.add(report.domain)
            elif report.good and not report.block:
                self._refusing.discard(report.domain)
            self._held[report.domain] -= report.slots
            if self._held[report.domain] <= 0:
                del self._held[report.domain]

    def is_refusing(self, domain: str) -> bool:
        """Whether the last telling page of the domain was refused."""
        return domain in self._refusing

    def flush(self) -> None:
        """Send all reports. A domain whose places were all taken may be asked again at once."""
        with self._lock:
            reports, self._reports = self._reports, []
        if not reports:
            return
        told = _merged(reports)
        self._permit.report([replace(each, domain=self._key(each.domain)) for each in told])
        for domain in {report.domain for report in reports} & self._closed.keys():
            if self._closed[domain][1].why == "at a time":
                del self._closed[domain]

    def forget(self, domain: str, holder: str) -> None:
        """Drop the requests in flight of a holder that has died."""
        self._permit.forget(self._key(domain), holder)

    def renew(self) -> None:
        """Say that the requests of this process are still in flight."""
        with self._lock:
            held = [domain for domain, count in self._held.items() if count > 0]
        if held:
            self._permit.renew([self._key(domain) for domain in held])


def _merged(reports: Sequence[Report]) -> list[Report]:
    """Merge the ordinary answers of a domain that follow each other, with their mean latency."""
    merged: list[Report] = []
    last: dict[str, int] = {}
    for report in reports:
        place = last.get(report.domain)
        if place is None or not _can_merge(merged[place], report):
            last[report.domain] = len(merged)
            merged.append(report)
            continue
        before = merged[place]
        merged[place] = replace(
            before,
            slots=before.slots + report.slots,
            latency_s=(before.latency_s + report.latency_s) / 2,
            crawl_delay_s=report.crawl_delay_s or before.crawl_delay_s,
        )
    return merged


def _can_merge(before: Report, report: Report) -> bool:
    return _is_ordinary(before) and _is_ordinary(report) and before.rule == report.rule


def _is_ordinary(report: Report) -> bool:
    special = report.block or report.retry_after_s or report.unused
    return report.good is True and not special and report.latency_s < SLOW_S
