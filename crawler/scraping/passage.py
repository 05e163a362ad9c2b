"""The requests of one page: each goes out with a permit of its own, and each is noted."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import TracebackType

from crawler import urls
from crawler.errors import FetchError, NotNow, OwnShortage
from crawler.models import Rule, Sent
from crawler.resilience.keeper import Booking, Keeper
from crawler.resilience.permit import LATE_S, NOTICE_S, Ask, Report

HOP_AHEAD_S = 120.0
"""A page that has begun may wait so long for the permit of its next request; others wait in the
ledger."""
LOOK_S = 2.0
"""How often a page that waits for its permit looks whether its job's limit was raised."""
_BUSY = frozenset({"rate", "at a time", "just begun"})
_NEVER_SENT = frozenset({"forbidden_address", "bad_request", "bad_url", "dns"})
"""Reasons for which nothing has reached the domain."""

Book = Callable[[Ask], Awaitable[Booking]]
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
        booking: Booking | None,
        rule: Rule,
        rule_of: Callable[[str], Rule],
        book: Book,
        keeper: Keeper,
        begin: Callable[[], None],
        waited_s: Callable[[], float] = lambda: 0.0,
        rule_now: Callable[[str], Awaitable[Rule]] | None = None,
        waits: Callable[[float | None], None] = lambda until: None,
    ) -> None:
        self._domain, self._url, self._booking = domain, url, booking
        self._holds = booking is not None
        self._rules, self._rule_of = {domain: rule}, rule_of
        self._book, self._keeper = book, keeper
        self.begin: Callable[[], None] | None = begin
        """To be called once, with the page's first request."""
        self.waited_s = waited_s
        """How long this process kept the page waiting: no domain is slowed down for that."""
        self._rule_now = rule_now
        self.waits = waits
        """Told until when the next request waits for its permit, and None when it goes out; times
        are those of `time.monotonic`."""
        self.sent: list[Sent] = []
        # How it went, as far as it is known by its end
        self.good: bool | None = None
        self.block = ""
        self.again = False
        """Whether the page was refused before."""
        self.retry_after_s = 0.0
        self._delays: dict[str, float] = {}
        self._pauses: dict[str, tuple[float, str]] = {}

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
            self._keeper.report(Report(domain=domain, rule=rule))

    def obey(self, url: str, crawl_delay_s: float) -> None:
        """Note what the robots.txt of a URL's host says about delays; none takes an earlier one
        back."""
        domain = self.domain_of(url)
        self._delays[domain] = max(self._delays.get(domain, -1.0), crawl_delay_s or -1.0)

    def pause(self, url: str, seconds: float, because: str) -> None:
        """Note that nothing may go to a URL's domain for so long, and why."""
        self._pauses[self.domain_of(url)] = (seconds, because)

    async def wait(self, domain: str, rule: Rule) -> None:
        """Have a booking, and be there in time; elsewhere it comes with a place, which the request
        gives back."""
        booking: Booking | None = None
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
                raised = await self._sleep_until(booking)
                if raised is not None:
                    if not raised.limited:
                        return
                    rule = self._rules[domain] = raised
                    booking = None
                    continue
                if time.monotonic() - booking.at <= late_s:
                    return
                # A late one could add up with those behind it. Where this process is always late,
                # it may go in the end.
                booking, late_s = None, 2 * late_s
        except BaseException:
            if holds:
                self._keeper.report(Report(domain=domain, rule=rule))
            raise

    async def _sleep_until(self, booking: Booking) -> Rule | None:
        """Wait for a booking's time; returns the new limit where the job's was raised meanwhile,
        which drops the booking."""
        while self._rule_now and (ahead_s := booking.at - time.monotonic()) > NOTICE_S:
            self.waits(booking.at)
            await asyncio.sleep(min(ahead_s - NOTICE_S / 2, LOOK_S))
            rule = await self._rule_now(booking.domain)
            if rule.interval_s < booking.rule.interval_s:
                return rule
        if (ahead_s := booking.at - time.monotonic()) > 0:
            await asyncio.sleep(ahead_s)
        return None

    async def _have(self, domain: str, rule: Rule, slots: bool) -> Booking:
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
        for domain in {
            self._domain,
            *self._delays,
            *self._pauses,
            *[sent.domain for sent in self.sent],
        }:
            rule = self.rule(domain)
            if not rule.limited:
                continue
            own, told = domain == self._domain, last is not None and domain == last.domain
            answered = told or any(sent.domain == domain for sent in self.sent)
            pause_s, because = self._pauses.get(domain, (self.retry_after_s if told else 0.0, ""))
            unused = own and self._booking is not None and self._keeper.is_latest(self._booking)
            self._keeper.report(
                Report(
                    domain=domain,
                    rule=rule,
                    slots=int(own and self._holds),
                    good=self.good if told else True if answered else None,
                    block=self.block if told else "",
                    again=self.again and told,
                    latency_s=last.seconds if last and told else 0.0,
                    retry_after_s=pause_s,
                    because=because,
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
        else:
            passage.waits(None)
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
