"""The contract of permits, and a client that keeps what its process holds and has to report.

A permit is what a worker asks for before a request to a domain. `RedisRateLimiter` implements the
contract for all processes on all machines, `MemoryPermit` for one process. All constants here
down to KEEP_S are also given to `permit.lua`, under the same names.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from crawler import models
from crawler.errors import NotNow
from crawler.models import RateRule

HEADROOM = models.HEADROOM
AHEAD_S = 0.5
"""How far ahead a request may be reserved. A killed worker's reservations are lost to the rate."""
NOTICE_S = 1.0
"""A page that waits for its permit looks at its job's limit this long before it goes. Later
reservations that were made under a lower limit are dropped when the limit is raised."""
LATE_S = 0.014
"""A request that starts later than this needs a new reservation: late requests would go out
together with the ones behind them, and the headroom does not cover that."""
LEASE_S = 10.0
"""A request that its worker has not renewed for this long counts as ended."""
OPEN_S = 30.0
"""How long a circuit stays open at first. Each failed probe doubles it, up to MAX_OPEN_S."""
MAX_OPEN_S = 600.0
PROBE_WAIT_S = 1.0
"""How soon others ask again while one probe is in flight."""
MAX_RETRY_AFTER_S = 3600.0
MAX_CRAWL_DELAY_S = 60.0
BATCH_S = 0.1
"""One ask gets at most the requests of this much time, so that a killed worker loses few."""
SPREAD_S = 2.0
"""Refused workers get turns of their own, spread over at most this time."""
BUSY_S = 0.05
BUSY_STEPS = 5
"""While all places are taken, workers ask again after 1 to BUSY_STEPS times BUSY_S, in turn."""
MAX_SLOWDOWN = 8.0
SLOWDOWN_PER_BLOCK = 1.5
SLOWDOWN_PER_SLOW_ANSWER = 1.2
RECOVERY = 0.9
"""Adaptive slowdown: its bound, and the factors per block, per slow answer and per good answer."""
SLOW_S = 1.0
SLOW_TIMES = 3.0
"""An answer is slow if it takes longer than SLOW_S and than SLOW_TIMES the moving average."""
BASELINE_SHARE = 0.05
"""The weight of a new latency in the moving average."""
KEEP_S = 6 * 3600.0
"""An idle domain is forgotten after this time, which exceeds any open circuit or `Retry-After`."""


class PermitRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for requests to a domain."""

    domain: str
    rule: RateRule
    wish: int = 1
    ahead_s: float = AHEAD_S
    """A redirect of a page that has begun may be reserved further ahead than a page."""
    slots: bool = True
    """False where the request takes the place of one that has just ended."""
    job: str = ""
    """Whose limit it is. A job that raises its own does not wait for what it reserved before."""


class PermitAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Says in how many seconds each granted request may start, and when to ask for the others."""

    starts_s: tuple[float, ...] = ()
    wait_s: float = 0.0
    why: str = ""
    """What limits: `rate`, `at a time`, `open` (the circuit), `retry after` or `just begun`
    (nothing is known yet). `probe`: the granted request tests whether the domain answers again."""


class RequestReport(msgspec.Struct, frozen=True, kw_only=True):
    """Says how requests to a domain ended."""

    domain: str
    rule: RateRule
    slots: int = 1
    """How many requests are no longer in flight."""
    good: bool | None = None
    """Whether the domain answered (True) or failed (False); None says nothing about it."""
    block: str = ""
    """The kind of block, such as `captcha` or `http_429`. Blocks in a row open the circuit."""
    again: bool = False
    """Whether this page was refused before: another refusal says nothing new about the domain."""
    latency_s: float = 0.0
    retry_after_s: float = 0.0
    because: str = ""
    """Why nothing may go for so long, if that is not the server's `Retry-After`."""
    crawl_delay_s: float = 0.0
    """What robots.txt asks for. Below 0 it no longer asks for any; 0 says nothing."""
    unused: int = 0
    """How many of this holder's latest reservations were not used. They return to the rate if
    they are still to come and nobody has reserved behind them."""


class DomainStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The live state of a domain, as commands show it."""

    domain: str
    state: str
    """CLOSED, OPEN or HALF_OPEN."""
    failures: int
    opened_at: float | None
    open_until: float | None
    last_block: str
    in_flight: int
    slowed: float
    """The factor by which requests are slowed down; 1.0 means not at all."""
    crawl_delay_s: float
    not_before: float | None
    """The end of a `Retry-After`, or of another pause."""
    because: str
    """Why there is another pause."""
    next_at: float | None
    """When the rate allows the next request, if that is in the future."""
    interval_s: float
    at_a_time: int
    """The last rule that was asked with; 0 means no limit."""


class Permit(Protocol):
    """The interface between workers and limits; each method takes one round trip at most."""

    def ask(self, asks: Sequence[PermitRequest]) -> list[PermitAnswer]:
        """Reserve requests. Granted ones count as in flight until they are reported."""

    def report(self, reports: Sequence[RequestReport]) -> None:
        """Say how requests ended."""

    def renew(self, domains: Sequence[str]) -> None:
        """Say that this holder's requests to these domains are still in flight."""

    def forget(self, domain: str, holder: str) -> None:
        """Drop the requests in flight of a holder that has died."""

    def domains(self) -> list[DomainStatus]:
        """Return the state of every known domain."""

    def reset(self, domain: str) -> bool:
        """Forget all but the limits of a domain; False if nothing is known of it."""


MAX_CLOSED_S = 2.0
"""A closed domain is asked again at least this often: an operator may have reset it."""
_MIN_WAIT_S = 0.05


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """A request that may go to a domain at a time of this process's clock."""

    domain: str
    rule: RateRule
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
        self._closed: dict[str, tuple[float, PermitAnswer]] = {}
        """Domains that granted less than was asked for: until when, and their answer."""
        self._latest: dict[str, float] = {}
        self._held: Counter[str] = Counter()
        self._reports: list[RequestReport] = []
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
        _, answer = self._closed.get(domain, (0.0, PermitAnswer(why="rate")))
        return NotNow(domain, answer.why, max(answer.wait_s, _MIN_WAIT_S))

    def reserve(self, asks: Sequence[PermitRequest]) -> list[list[Reservation]]:
        """Ask for requests. A domain that grants fewer is closed for as long as it says."""
        self.flush()
        if not asks:
            return []
        answers = self._permit.ask([replace(ask, domain=self._key(ask.domain)) for ask in asks])
        now = self._clock()
        return [self._reserved(ask, answer, now) for ask, answer in zip(asks, answers, strict=True)]

    def _reserved(self, ask: PermitRequest, answer: PermitAnswer, now: float) -> list[Reservation]:
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

    def report(self, report: RequestReport) -> None:
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


def _merged(reports: Sequence[RequestReport]) -> list[RequestReport]:
    """Merge the ordinary answers of a domain that follow each other, with their mean latency."""
    merged: list[RequestReport] = []
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


def _can_merge(before: RequestReport, report: RequestReport) -> bool:
    return _is_ordinary(before) and _is_ordinary(report) and before.rule == report.rule


def _is_ordinary(report: RequestReport) -> bool:
    special = report.block or report.retry_after_s or report.unused
    return report.good is True and not special and report.latency_s < SLOW_S
