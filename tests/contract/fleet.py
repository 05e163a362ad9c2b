"""Some holders of permits that share what they know, for the suites of this folder."""

from typing import Any

import redis

from crawler.models import RateRule
from crawler.redis_client import RedisAddress
from crawler.resilience.memory import DomainTable, MemoryPermit
from crawler.resilience.permit import (
    DomainStatus,
    Permit,
    PermitAnswer,
    PermitRequest,
    RequestReport,
)
from crawler.resilience.redis_rate_limiter import RedisRateLimiter

BEGIN = 1_800_000_000.0
FAST = RateRule(interval_s=0.05, at_a_time=0)


class Fleet:
    """Some holders of permits that share what they know, and the clock of all of them."""

    def __init__(self, redis_url: str | None, fail_max: int = 3) -> None:
        self.now = BEGIN
        self._url, self._fail_max = redis_url, fail_max
        self._table = DomainTable(BEGIN)
        self._members: dict[str, Permit] = {}
        self.client: redis.Redis | None = None
        if redis_url:
            self.client = redis.Redis.from_url(RedisAddress.parse(redis_url).for_redis(2))
            self.client.flushdb()
        self["nobody"].ask([PermitRequest(domain="first.example", rule=RateRule())])

    def __getitem__(self, holder: str) -> Permit:
        if holder not in self._members:
            self._members[holder] = self._permit(holder)
        return self._members[holder]

    def _permit(self, holder: str) -> Permit:
        if self._url:
            return RedisRateLimiter(self._url, 2, holder, self._fail_max, clock=lambda: self.now)
        return MemoryPermit(holder, self._fail_max, clock=lambda: self.now, table=self._table)

    def die(self, holder: str) -> None:
        """What the holder knew of itself is gone; a new one takes its name."""
        self._members.pop(holder, None)

    def settle(self) -> "Fleet":
        """Let so much time pass that nothing can be on its way."""
        self.now += 3600
        return self

    def ask(
        self, holder: str = "a", domain: str = "x.example", rule: RateRule = FAST, **more: Any
    ) -> PermitAnswer:
        return self[holder].ask([PermitRequest(domain=domain, rule=rule, **more)])[0]

    def report(
        self, holder: str = "a", domain: str = "x.example", rule: RateRule = FAST, **more: Any
    ) -> None:
        self[holder].report([RequestReport(domain=domain, rule=rule, **more)])

    def domain(self, name: str = "x.example") -> DomainStatus:
        return next(known for known in self["a"].domains() if known.domain == name)

    def open(self, holder: str = "a", block: str = "captcha") -> None:
        """Open the circuit by as many blocks as it takes."""
        for _ in range(self._fail_max):
            self.report(holder, slots=0, good=False, block=block)
