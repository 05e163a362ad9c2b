"""What one asks before a request and says after it, about a domain that the whole fleet shares.

`RedisRateLimiter` answers for all processes on all machines, `MemoryPermit` for one process; both
keep this contract.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from crawler import models
from crawler.models import Rule

HEADROOM = models.HEADROOM
AHEAD_S = 0.5
"""How far ahead a request may be booked: what a killed worker has booked is lost to the rate."""
NOTICE_S = 1.0
"""A page that waits for its permit looks at its job's limit within so long before it goes: what
begins later and was booked under a lower limit is dropped when the limit is raised."""
LATE_S = 0.014
"""A request that cannot go within this time of its start must not go at all, but be asked for
again: late ones would come together with those behind them, which is what the headroom does not
cover."""
LEASE_S = 10.0
"""A request that its worker has not renewed for so long has ended, whatever became of it."""
OPEN_S, OPEN_MOST_S = 30.0, 600.0
"""How long a circuit stays open at first and at most; each probe that fails doubles it."""
PROBE_WAIT_S = 1.0
"""While one probe is under way, others ask so often how it went."""
RETRY_AFTER_MOST_S = 3600.0
CRAWL_DELAY_MOST_S = 60.0
BATCH_S = 0.1
"""One ask gets at most what the rate gives in this time, so that a killed worker takes little with
it."""
SPREAD_S = 2.0
"""Refused askers are told turns of their own, within so much time after the next booking gets
possible."""
BUSY_S, BUSY_STEPS = 0.05, 5
"""Where all places are taken, askers come back after one to so many of these steps, one after the
other."""
SLOWED_MOST, SLOWED_BY_BLOCK, SLOWED_BY_LATENCY, RECOVERY = 8.0, 1.5, 1.2, 0.9
"""The factors of adaptive slowing: its bound, per failure, per slow answer, and per good answer
back towards 1."""
SLOW_S, SLOW_TIMES, BASELINE_SHARE = 1.0, 3.0, 0.05
"""An answer is slow above both: so many seconds, and so many times the moving baseline."""
KEEP_S = 6 * 3600.0
"""What nobody has touched for so long is forgotten; longer than any circuit or `Retry-After`
lasts."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """May so many requests go to the domain?"""

    domain: str
    rule: Rule
    wish: int = 1
    ahead_s: float = AHEAD_S
    """A page's own redirect may be booked further ahead than a page."""
    slots: bool = True
    """False where the request takes the place of one that has just ended, so that none is added at
    a time."""
    job: str = ""
    """Whose limit it is: a job that raises its own does not wait for what it booked before."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """In how many seconds each granted request may go; where fewer were granted than wished, when
    to ask again."""

    starts_s: tuple[float, ...] = ()
    wait_s: float = 0.0
    why: str = ""
    """What limits: `rate`, `at a time`, `open` (the circuit), `retry after`, `just begun` (nothing
    is known yet); or `probe`: the request that was granted is to show whether the domain answers
    again."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a request, or of one that was granted and not made."""

    domain: str
    rule: Rule
    slots: int = 1
    """So many are no longer in flight."""
    good: bool | None = None
    """Whether it speaks for the domain (any real answer) or against it; None says nothing."""
    block: str = ""
    """The kind of block that it met, such as `captcha` or `http_429`; blocks in a row open the
    circuit."""
    again: bool = False
    """Whether this page was refused before: refused once more, it says nothing new about the
    domain."""
    latency_s: float = 0.0
    retry_after_s: float = 0.0
    because: str = ""
    """Why nothing may go for so long, where that is not the server's `Retry-After`."""
    crawl_delay_s: float = 0.0
    """What robots.txt asks for; below 0 it asks for nothing any more, 0 says nothing."""
    unused: int = 0
    """So many of this holder's last granted requests, the latest ones, were not made: their place
    in the rate is given back if nobody has booked behind them and all of them are still to come."""


class Domain(msgspec.Struct, frozen=True, kw_only=True):
    """The live state of a domain."""

    domain: str
    state: str
    """CLOSED, OPEN or HALF_OPEN."""
    failures: int
    opened_at: float | None
    open_until: float | None
    last_block: str
    in_flight: int
    slowed: float
    """By what factor requests are slowed down for now; 1.0 means not at all."""
    crawl_delay_s: float
    not_before: float | None
    """The end of a `Retry-After`, or of another pause."""
    because: str
    """Why there is another pause."""
    next_at: float | None
    """When the rate allows the next request, where that is still to come."""
    interval_s: float
    at_a_time: int
    """The rule that was asked with last; 0 means no limit."""


class Permit(Protocol):
    """The seam between workers and the limits; every method is one round trip at most."""

    def ask(self, asks: Sequence[Ask]) -> list[Answer]:
        """Book requests, some domains at a time; what is granted counts as in flight until it is
        reported."""

    def report(self, reports: Sequence[Report]) -> None:
        """Say what became of requests."""

    def renew(self, domains: Sequence[str]) -> None:
        """This holder's requests at these domains are still in flight."""

    def forget(self, domain: str, holder: str) -> None:
        """A holder has died: what it had in flight at a domain has ended."""

    def domains(self) -> list[Domain]:
        """What is known of every domain."""

    def reset(self, domain: str) -> bool:
        """Forget all that is known of a domain; False where nothing is."""
