"""The permit without Redis, for one process: the same answers as `permit.lua` gives."""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from crawler.resilience.book import Known, book, catch_up, describe, hold, learn, sane
from crawler.resilience.permit import KEEP_S, LEASE_S, Answer, Ask, Domain, Report


class Book:
    """What is known of all domains, shared by all holders of a process."""

    def __init__(self, epoch: float | None) -> None:
        self.domains: dict[str, Known] = {}
        self.epoch = epoch
        """None where nothing can be on its way that is not in here."""
        self.guard = threading.Lock()
        self._swept = -math.inf

    def known(self, domain: str, now: float) -> Known:
        """What is known of a domain, as of now."""
        self._sweep(now)
        known = self.domains.setdefault(domain, Known(seen=now))
        catch_up(known, now)
        return known

    def _sweep(self, now: float) -> None:
        if not self._swept <= now < self._swept + KEEP_S / 10:
            self._swept = now
            for domain, known in list(self.domains.items()):
                if max(known.seen, known.tat or 0.0) + KEEP_S < now:
                    del self.domains[domain]


class MemoryPermit:
    """Implements `Permit` in memory; all that it needs to know of time is its clock."""

    def __init__(
        self,
        holder: str,
        fail_max: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        fresh: bool = True,
        book: Book | None = None,
        held: Counter[str] | None = None,
    ) -> None:
        """`fresh=False`: nothing has been booked by anybody before; `book` is shared with another
        holder's permit."""
        self._holder, self._fail_max, self._clock = holder, fail_max, clock
        self._book = book or Book(clock() if fresh else None)
        self._held: Counter[str] = Counter() if held is None else held
        self._guard = self._book.guard

    @property
    def book(self) -> Book:
        """What is known, for another holder of this process."""
        return self._book

    def ask(self, asks: Sequence[Ask]) -> list[Answer]:
        """Book requests; what is granted counts as in flight until it is reported."""
        with self._guard:
            return [self._ask(each) for each in asks]

    def report(self, reports: Sequence[Report]) -> None:
        """Say what became of requests."""
        with self._guard:
            for each in reports:
                end(self._held, each)
                self._report(each)

    def learn(self, reports: Sequence[Report]) -> None:
        """The same, where what is no longer in flight has been noted already."""
        with self._guard:
            for each in reports:
                self._report(each)

    def renew(self, domains: Sequence[str]) -> None:
        """This holder's requests at these domains are still in flight."""
        with self._guard:
            now = self._clock()
            for domain in domains:
                if self._held[domain]:
                    known = self._book.known(domain, now)
                    hold(known, self._holder, self._held[domain], now)
                    if known.probe == self._holder:
                        known.probe_until = now + LEASE_S

    def forget(self, domain: str, holder: str) -> None:
        """A holder has died: what it had in flight at a domain has ended."""
        with self._guard:
            now = self._clock()
            if domain in self._book.domains:
                known = self._book.known(domain, now)
                hold(known, holder, 0, now)
                if known.probe == holder:
                    known.probe = ""

    def domains(self) -> list[Domain]:
        """What is known of every domain."""
        with self._guard:
            now = self._clock()
            return [
                describe(domain, known, now) for domain, known in sorted(self._book.domains.items())
            ]

    def reset(self, domain: str) -> bool:
        """Forget what is known of a domain, but neither what is in flight nor what is booked."""
        with self._guard:
            now = self._clock()
            if domain not in self._book.domains:
                return False
            known = self._book.known(domain, now)
            if not known.leases and (known.tat or 0.0) <= now:
                del self._book.domains[domain]
                return True
            kept = (
                *("tat", "cursor", "busy", "last", "last_n", "step", "rule", "leases"),
                *("job", "job_interval", "job_tat"),
            )
            self._book.domains[domain] = Known(
                seen=now, **{name: getattr(known, name) for name in kept}
            )
            return True

    def _ask(self, ask: Ask) -> Answer:
        now = self._clock()
        epoch = self._book.epoch
        if epoch is not None and epoch > now:
            self._book.epoch = epoch = now
        known = self._book.known(ask.domain, now)
        answer = book(known, sane(ask), self._holder, self._held[ask.domain], epoch, now)
        if ask.slots and answer.starts_s:
            self._held[ask.domain] += len(answer.starts_s)
        hold(known, self._holder, self._held[ask.domain], now)
        known.rule = ask.rule
        return answer

    def _report(self, report: Report) -> None:
        now = self._clock()
        known = self._book.known(report.domain, now)
        hold(known, self._holder, self._held[report.domain], now)
        learn(known, report, self._holder, self._fail_max, now)


def end(held: Counter[str], report: Report) -> None:
    """Note that some requests are no longer in flight."""
    held[report.domain] = max(0, held[report.domain] - max(0, report.slots))
    if not held[report.domain]:
        del held[report.domain]
