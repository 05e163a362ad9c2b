"""The requests of one page: each goes out with a permit of its own, and each is noted."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import TracebackType

from crawler import urls
from crawler.errors import FetchError, NotNow, OwnShortage
from crawler.models import Rule, Sent
from crawler.resilience.permit import LATE_S, Ask, Report
from crawler.resilience.permit_client import PermitClient, Reservation

HOP_AHEAD_S = 120.0
"""A page that has begun may wait so long for the permit of its next request; others wait in the
ledger."""
_BUSY = frozenset({"rate", "at a time", "just begun"})
_NEVER_SENT = frozenset({"forbidden_address", "bad_request", "bad_url", "dns"})
"""Reasons for which nothing has reached the domain."""

Book = Callable[[Ask], Awaitable[Reservation]]
"""Books one request; raises `NotNow` where it cannot be had."""
Check = Callable[[str], Awaitable[None]]
"""Raises where a URL must not be asked for."""


class Passage:
    """Made with what was booked for the page's first request; closed once, with how the page
    ended."""

    def __init__(
        self,
        domain: str,
        url: str,
        booking: Reservation | None,
        rule: Rule,
        rule_of: Callable[[str], Rule],
        book: Book,
        keeper: PermitClient,
        begin: Callable[[], None],
        waited_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._domain, self._url, self._booking = domain, url, booking
        self._holds = booking is not None
        self._rules, self._rule_of = {domain: rule}, rule_of
        self._book, self._permits = book, keeper
        self.begin: Callable[[], None] | None = begin
        """To be called once, with the page's first request."""
        self.waited_s = waited_s
        """How long this process kept the page waiting: no domain is slowed down for that."""
        self.sent: list[Sent] = []
        # How it went, as far as it is known by its end
        self.good: bool | None = None
        self.block = ""
        self.again = False
        """Whether the page was refused before."""
        self.retry_after_s = 0.0
        self._delays: dict[str, float] = {}

    def request(self, url: str, check: Check | None = None) -> "_Request":
        """Wait for the permit of one request, and note it; `check` comes first. It is a `Gate` of
        the client."""
        return _Request(self, url, check)

    def rule(self, domain: str) -> Rule:
        """The limits on a domain."""
        if domain not in self._rules:
            self._rules[domain] = self._rule_of(domain)
        return self._rules[domain]

    def domain_of(self, url: str) -> str:
        """What limits apply to; of the page itself it is known."""
        return self._domain if url == self._url else urls.parse(url).domain

    def give_back(self, domain: str) -> None:
        """A request has ended; elsewhere its place is free again, the page's own is kept until the
        page's end."""
        if domain != self._domain and (rule := self.rule(domain)).limited:
            self._permits.report(Report(domain=domain, rule=rule))

    def obey(self, url: str, crawl_delay_s: float) -> None:
        """Note what the robots.txt of a URL's host says about delays; none takes an earlier one
        back."""
        domain = self.domain_of(url)
        self._delays[domain] = max(self._delays.get(domain, -1.0), crawl_delay_s or -1.0)

    async def wait(self, domain: str, rule: Rule) -> None:
        """Have a booking, and be there in time; elsewhere it comes with a place, which the request
        gives back."""
        booking: Reservation | None = None
        if self._booking is not None and self._booking.domain == domain:
            booking, self._booking = self._booking, None
        elsewhere, holds, late_s = domain != self._domain, False, LATE_S
        if rule.at_a_time and rule.at_a_time * rule.interval_s <= LATE_S:
            late_s = HOP_AHEAD_S  # all that can be late together are no more than what the rate gives in that time
        try:
            while True:
                if booking is None:
                    booking = await self._have(domain, rule, slots=elsewhere and not holds)
                    holds = elsewhere
                ahead_s = booking.at - time.monotonic()
                if ahead_s > 0:
                    await asyncio.sleep(ahead_s)
                if time.monotonic() - booking.at <= late_s:
                    return
                # A late one could add up with those behind it. Where this process is always late,
                # it may go in the end.
                booking, late_s = None, 2 * late_s
        except BaseException:
            if holds:
                self._permits.report(Report(domain=domain, rule=rule))
            raise

    async def _have(self, domain: str, rule: Rule, slots: bool) -> Reservation:
        """Book; where the domain is only busy, try again for a while: else the page would begin
        from the beginning."""
        ask = Ask(
            domain=domain, rule=rule, ahead_s=max(HOP_AHEAD_S, 3 * rule.interval_s), slots=slots
        )
        end = time.monotonic() + HOP_AHEAD_S
        while True:
            try:
                return await self._book(ask)
            except NotNow as refusal:
                if refusal.why not in _BUSY or time.monotonic() + refusal.wait_s > end:
                    raise
                await asyncio.sleep(refusal.wait_s)

    def close(self) -> None:
        """Tell each domain how it went: that of the last request how the page ended, others that
        they answered."""
        last = self.sent[-1] if self.sent else None
        for domain in {self._domain, *self._delays, *[sent.domain for sent in self.sent]}:
            rule = self.rule(domain)
            if not rule.limited:
                continue
            own, told = domain == self._domain, last is not None and domain == last.domain
            answered = told or any(sent.domain == domain for sent in self.sent)
            unused = own and self._booking is not None and self._permits.is_latest(self._booking)
            self._permits.report(
                Report(
                    domain=domain,
                    rule=rule,
                    slots=int(own and self._holds),
                    good=self.good if told else True if answered else None,
                    block=self.block if told else "",
                    again=self.again and told,
                    latency_s=last.seconds if last and told else 0.0,
                    retry_after_s=self.retry_after_s if told else 0.0,
                    crawl_delay_s=self._delays.get(domain, 0.0),
                    unused=int(unused),
                )
            )


class _Request:
    """One request on its way; no generator, because every page comes this way."""

    def __init__(self, passage: Passage, url: str, check: Check | None) -> None:
        self._passage, self._url, self._check = passage, url, check
        self._number, self._since, self._waited_s = 0, 0.0, 0.0

    async def __aenter__(self) -> None:
        passage = self._passage
        if self._check:
            await self._check(self._url)
        domain = passage.domain_of(self._url)
        rule = passage.rule(domain)
        if rule.limited:
            await passage.wait(domain, rule)
        if begin := passage.begin:
            passage.begin = None
            begin()
        self._number, self._since, self._waited_s = (
            len(passage.sent),
            time.monotonic(),
            passage.waited_s(),
        )
        passage.sent.append(Sent(domain, time.time(), 0.0))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Note how long it took, or that it never went out."""
        passage, sent = self._passage, self._passage.sent[self._number]
        never_sent = isinstance(error, FetchError) and error.reason in _NEVER_SENT
        if never_sent or (isinstance(error, OwnShortage) and error.unsent):
            del passage.sent[self._number]
        else:
            waited_s = passage.waited_s() - self._waited_s
            seconds = round(time.monotonic() - self._since - waited_s, 4)
            passage.sent[self._number] = Sent(sent.domain, round(sent.began, 4), seconds)
        passage.give_back(sent.domain)
