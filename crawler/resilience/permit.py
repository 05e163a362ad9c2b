"""The contract of permits: what a worker asks before a request to a domain, and reports after it.

`RedisRateLimiter` implements it for all processes on all machines, `MemoryPermit` for one process.
All constants here are also given to `permit.lua`, under the same names.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from crawler import models
from crawler.models import Rule

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


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for requests to a domain."""

    domain: str
    rule: Rule
    wish: int = 1
    ahead_s: float = AHEAD_S
    """A redirect of a page that has begun may be reserved further ahead than a page."""
    slots: bool = True
    """False where the request takes the place of one that has just ended."""
    job: str = ""
    """Whose limit it is. A job that raises its own does not wait for what it reserved before."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Says in how many seconds each granted request may start, and when to ask for the others."""

    starts_s: tuple[float, ...] = ()
    wait_s: float = 0.0
    why: str = ""
    """What limits: `rate`, `at a time`, `open` (the circuit), `retry after` or `just begun`
    (nothing is known yet). `probe`: the granted request tests whether the domain answers again."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Says how requests to a domain ended."""

    domain: str
    rule: Rule
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


class Domain(msgspec.Struct, frozen=True, kw_only=True):
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

    def ask(self, asks: Sequence[Ask]) -> list[Answer]:
        """Reserve requests. Granted ones count as in flight until they are reported."""

    def report(self, reports: Sequence[Report]) -> None:
        """Say how requests ended."""

    def renew(self, domains: Sequence[str]) -> None:
        """Say that this holder's requests to these domains are still in flight."""

    def forget(self, domain: str, holder: str) -> None:
        """Drop the requests in flight of a holder that has died."""

    def domains(self) -> list[Domain]:
        """Return the state of every known domain."""

    def reset(self, domain: str) -> bool:
        """Forget all but the limits of a domain; False if nothing is known of it."""
