"""The circuit breaker alone, without a rate; it shares its hash per domain with the permits."""

from collections.abc import Callable

from crawler.models import RateRule
from crawler.resilience.redis_rate_limiter import RedisRateLimiter

_NO_RATE = RateRule()


class RedisCircuitBreaker:
    """CLOSED, OPEN after too many blocks in a row, then HALF_OPEN with one probe, for all
    processes alike."""

    def __init__(
        self,
        url: str | None = None,
        db: int | None = None,
        holder: str | None = None,
        fail_max: int | None = None,
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """What is not given comes from the settings."""
        self._permit = RedisRateLimiter(url, db, holder, fail_max, clock=clock)

    def can_request(self, domain: str) -> bool:
        """Whether a request may be made. In HALF_OPEN only one caller gets True; it must record
        how the request went."""
        return self._permit.can_request(domain, _NO_RATE)

    def record_success(self, domain: str) -> None:
        """Say that a request went well."""
        self._permit.record_success(domain, _NO_RATE)

    def record_failure(self, domain: str, block_type: str) -> None:
        """Say that a request met a block of this kind, such as `captcha`."""
        self._permit.record_failure(domain, block_type, _NO_RATE)

    def state(self, domain: str) -> str:
        """Return CLOSED, OPEN or HALF_OPEN."""
        states = {known.domain: known.state for known in self._permit.domains()}
        return states.get(domain, "CLOSED")

    def close(self) -> None:
        """Close the connection."""
        self._permit.close()
