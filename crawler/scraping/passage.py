"""The requests of one page: each goes out with a permit of its own, and each is noted."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from crawler import urls
from crawler.models import Rule, Sent
from crawler.resilience.keeper import Booking, Keeper
from crawler.resilience.permit import LATE_S, Ask, Report

HOP_AHEAD_S = 10.0
"""A page that has begun may wait so long for the permit of its next request; others wait in the ledger."""

Book = Callable[[Ask], Awaitable[Booking]]
"""Books one request; raises `NotNow` where it cannot be had."""


class Passage:
    """Made with what was booked for the page's first request; closed once, with how the page ended."""

    def __init__(
        self,
        domain: str,
        booking: Booking | None,
        rule: Callable[[str], Rule],
        book: Book,
        keeper: Keeper,
        begin: Callable[[], None],
    ) -> None:
        self._domain, self._booking = domain, booking
        self._holds = booking is not None
        self._rule, self._book, self._keeper, self._begin = rule, book, keeper, begin
        self.sent: list[Sent] = []
        # How it went, as far as it is known by its end
        self.good: bool | None = None
        self.block = ""
        self.retry_after_s = 0.0
        self.crawl_delay_s = 0.0

    @asynccontextmanager
    async def request(self, url: str) -> AsyncIterator[None]:
        """Wait for the permit of one request, and note it. It is a `Gate` of the client."""
        domain = urls.parse(url).domain
        rule = self._rule(domain)
        if rule.limited:
            await self._wait(domain, rule)
        if not self.sent:
            self._begin()
        began, since = time.time(), time.monotonic()
        self.sent.append(Sent(domain, began, 0.0))
        place = len(self.sent) - 1
        try:
            yield
        finally:
            self.sent[place] = Sent(domain, round(began, 4), round(time.monotonic() - since, 4))
            if rule.limited and domain != self._domain:
                self._keeper.report(Report(domain=domain, rule=rule))

    async def _wait(self, domain: str, rule: Rule) -> None:
        booking, self._booking = self._booking, None
        if booking is None or booking.domain != domain:
            if booking is not None:
                self._booking = booking  # the page's own, which it still has
            booking = await self._book(self._ask(domain, rule))
        late_s = LATE_S
        while True:
            await asyncio.sleep(max(0.0, booking.at - time.monotonic()))
            if time.monotonic() - booking.at <= late_s:
                return
            # A late one could add up with those behind it. Where this process is always late, it is let go in the end.
            late_s *= 2
            booking = await self._book(self._ask(domain, rule))

    def _ask(self, domain: str, rule: Rule) -> Ask:
        # The page has its place at its own domain; at another it takes one for this request.
        return Ask(domain=domain, rule=rule, ahead_s=HOP_AHEAD_S, slots=domain != self._domain)

    @property
    def _given_back(self) -> bool:
        return self._booking is not None and self._keeper.is_latest(self._booking)

    def close(self) -> None:
        """Tell the last domain how it went, and give the page's own place back."""
        last = self.sent[-1].domain if self.sent else self._domain
        latency_s = self.sent[-1].seconds if self.sent else 0.0
        for domain in {self._domain, last}:
            rule = self._rule(domain)
            if not rule.limited:
                continue
            told = domain == last and bool(self.sent)
            self._keeper.report(
                Report(
                    domain=domain,
                    rule=rule,
                    slots=int(domain == self._domain and self._holds),
                    good=self.good if told else None,
                    block=self.block if told else "",
                    latency_s=latency_s if told else 0.0,
                    retry_after_s=self.retry_after_s if told else 0.0,
                    crawl_delay_s=self.crawl_delay_s if domain == self._domain else 0.0,
                    unused=int(domain == self._domain and self._given_back),
                )
            )
