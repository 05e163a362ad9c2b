"""The gate that each request of a page passes: it waits for a permit, and notes the request."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

from crawler import urls
from crawler.errors import FetchError, NotNow, OwnShortage
from crawler.judge import speaks_against_domain
from crawler.models import Outcome, RateRule, SentRequest
from crawler.resilience.permit import (
    LATE_S,
    NOTICE_S,
    PermitClient,
    PermitRequest,
    RequestReport,
    Reservation,
)

MAX_HOP_WAIT_S = 120.0
"""Maximum wait for the next permit of a page that has begun. Other pages wait in the ledger."""
RULE_CHECK_S = 2.0
"""How often a page that waits for its permit checks whether its job's limit was raised."""
_BUSY = frozenset({"rate", "at a time", "just begun"})
_NEVER_SENT = frozenset({"forbidden_address", "bad_request", "bad_url", "dns"})
"""Failures before anything reached the domain."""

Reserve = Callable[[PermitRequest], Awaitable[Reservation]]
"""Reserves one request; raises `NotNow` if the domain refuses."""
Check = Callable[[str], Awaitable[None]]
"""Raises if a URL must not be fetched."""


class RequestGate:
    """Lets the requests of one page pass. The first one has a reservation already.

    It is closed once, with the outcome of the page.
    """

    def __init__(
        self,
        domain: str,
        url: str,
        reservation: Reservation | None,
        rule: RateRule,
        rule_of: Callable[[str], RateRule],
        reserve: Reserve,
        permits: PermitClient,
        begin: Callable[[], None],
        waited_s: Callable[[], float] = lambda: 0.0,
        rule_now: Callable[[str], Awaitable[RateRule]] | None = None,
        waits: Callable[[float | None], None] = lambda until: None,
    ) -> None:
        self._domain, self._url, self._reservation = domain, url, reservation
        self._holds_place = reservation is not None
        self._rules, self._rule_of = {domain: rule}, rule_of
        self._reserve, self._permits = reserve, permits
        self.begin: Callable[[], None] | None = begin
        """Called once, with the page's first request."""
        self.waited_s = waited_s
        """How long this process kept the page waiting: no domain is slowed down for that."""
        self._rule_now = rule_now
        self.waits = waits
        """Called with the time (`time.monotonic`) until which the next request waits for its
        permit, and with None when it is sent."""
        self.sent: list[SentRequest] = []
        self._delays: dict[str, float] = {}
        self._pauses: dict[str, tuple[float, str]] = {}

    def request(self, url: str, check: Check | None = None) -> "_Request":
        """Run `check`, wait for a permit, and note the request. It is a `RequestHook`."""
        return _Request(self, url, check)

    def rule(self, domain: str) -> RateRule:
        """Return the limits on a domain."""
        if domain not in self._rules:
            self._rules[domain] = self._rule_of(domain)
        return self._rules[domain]

    def domain_of(self, url: str) -> str:
        """Return the domain whose limits apply to a URL."""
        if url == self._url:
            return self._domain
        return urls.parse(url).domain

    def end_request(self, domain: str) -> None:
        """Free the place of a request that has ended; the page's own is kept till `close`."""
        if domain != self._domain and (rule := self.rule(domain)).limited:
            self._permits.report(RequestReport(domain=domain, rule=rule))

    def obey(self, url: str, crawl_delay_s: float) -> None:
        """Note the Crawl-delay of a URL's host, or that it has none."""
        domain = self.domain_of(url)
        self._delays[domain] = max(self._delays.get(domain, -1.0), crawl_delay_s or -1.0)

    def pause(self, url: str, seconds: float, because: str) -> None:
        """Note that a URL's domain gets no requests for some seconds, and why."""
        self._pauses[self.domain_of(url)] = (seconds, because)

    async def wait(self, domain: str, rule: RateRule) -> None:
        """Reserve a request and wait for its start. At another domain it takes a place, which
        `end_request` frees."""
        reservation = None
        if self._reservation is not None and self._reservation.domain == domain:
            reservation, self._reservation = self._reservation, None
        elsewhere, holds_place, late_s = domain != self._domain, False, LATE_S
        if rule.at_a_time and rule.at_a_time * rule.interval_s <= LATE_S:
            # Even if all are late at once, they are no more than the rate allows in that time.
            late_s = MAX_HOP_WAIT_S
        try:
            while True:
                if reservation is None:
                    slots = elsewhere and not holds_place
                    reservation = await self._reserve_patiently(domain, rule, slots)
                    holds_place = elsewhere
                raised = await self._sleep_until(reservation)
                if raised is not None:
                    if not raised.limited:
                        return
                    rule = self._rules[domain] = raised
                    reservation = None
                    continue
                if time.monotonic() - reservation.at <= late_s:
                    return
                # A late request could go out together with the next ones, so it gets a new
                # reservation. The tolerance doubles, in case this process is always late.
                reservation, late_s = None, 2 * late_s
        except BaseException:
            if holds_place:
                self._permits.report(RequestReport(domain=domain, rule=rule))
            raise

    async def _sleep_until(self, reservation: Reservation) -> RateRule | None:
        """Wait for a reservation's start. If the job's limit was raised meanwhile, return the new
        rule; the caller drops the reservation."""
        while self._rule_now and (ahead_s := reservation.at - time.monotonic()) > NOTICE_S:
            self.waits(reservation.at)
            await asyncio.sleep(min(ahead_s - NOTICE_S / 2, RULE_CHECK_S))
            rule = await self._rule_now(reservation.domain)
            if rule.interval_s < reservation.rule.interval_s:
                return rule
        if (ahead_s := reservation.at - time.monotonic()) > 0:
            await asyncio.sleep(ahead_s)
        return None

    async def _reserve_patiently(self, domain: str, rule: RateRule, slots: bool) -> Reservation:
        """Reserve a request. If the domain is only busy, keep trying: otherwise the page would have
        to start over."""
        ahead_s = max(MAX_HOP_WAIT_S, 3 * rule.interval_s)
        ask = PermitRequest(domain=domain, rule=rule, ahead_s=ahead_s, slots=slots)
        end = time.monotonic() + MAX_HOP_WAIT_S
        while True:
            try:
                return await self._reserve(ask)
            except NotNow as refusal:
                if refusal.why not in _BUSY or time.monotonic() + refusal.wait_s > end:
                    raise
                await asyncio.sleep(refusal.wait_s)

    def close(self, outcome: Outcome) -> None:
        """Report the outcome to the domain of the last request, and success to the others."""
        asked = {sent.domain: sent for sent in self.sent}
        for domain in {self._domain, *self._delays, *self._pauses, *asked}:
            rule = self.rule(domain)
            if not rule.limited:
                continue
            told: dict[str, Any] = {}
            if domain in asked and asked[domain] is self.sent[-1]:
                told = _told(outcome, asked[domain])
            elif domain in asked:
                told = {"good": True}
            if domain in self._pauses:
                told["retry_after_s"], told["because"] = self._pauses[domain]
            own, reserved = domain == self._domain, self._reservation
            unused = own and reserved is not None and self._permits.is_latest(reserved)
            report = RequestReport(
                domain=domain,
                rule=rule,
                slots=int(own and self._holds_place),
                crawl_delay_s=self._delays.get(domain, 0.0),
                unused=int(unused),
                **told,
            )
            self._permits.report(report)


def _told(outcome: Outcome, last: SentRequest) -> dict[str, Any]:
    """Return what a page's outcome says about the domain of its last request."""
    return {
        "good": outcome.page and outcome.page.status < 500,
        "block": outcome.block,
        "again": speaks_against_domain(outcome.task.error_type),
        "latency_s": last.seconds,
        "retry_after_s": outcome.retry_after_s,
    }


class _Request:
    """One request in flight; not a generator, for speed."""

    def __init__(self, gate: RequestGate, url: str, check: Check | None) -> None:
        self._gate, self._url, self._check = gate, url, check
        self._number, self._since, self._waited_s = 0, 0.0, 0.0

    async def __aenter__(self) -> None:
        gate = self._gate
        if self._check:
            await self._check(self._url)
        domain = gate.domain_of(self._url)
        rule = gate.rule(domain)
        if rule.limited:
            await gate.wait(domain, rule)
        if begin := gate.begin:
            gate.begin = None
            begin()
        else:
            gate.waits(None)
        self._number, self._waited_s = len(gate.sent), gate.waited_s()
        self._since = time.monotonic()
        gate.sent.append(SentRequest(domain, time.time(), 0.0))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Note how long it took, or that it was never sent."""
        gate, sent = self._gate, self._gate.sent[self._number]
        never_sent = isinstance(error, FetchError) and error.reason in _NEVER_SENT
        if never_sent or (isinstance(error, OwnShortage) and error.unsent):
            del gate.sent[self._number]
        else:
            waited_s = gate.waited_s() - self._waited_s
            seconds = round(time.monotonic() - self._since - waited_s, 4)
            gate.sent[self._number] = SentRequest(sent.domain, round(sent.began, 4), seconds)
        gate.end_request(sent.domain)
