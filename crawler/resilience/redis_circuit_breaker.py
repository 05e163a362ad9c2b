"""The circuit breaker alone, for who asks nothing else; it is the same hash per domain that the
permit uses."""

from collections.abc import Callable

from crawler.models import Rule
from crawler.resilience.redis_rate_limiter import RedisRateLimiter

_NO_RATE = Rule()


class RedisCircuitBreaker:
    """CLOSED, OPEN after so many blocks in a row, then HALF_OPEN with exactly one probe, for all
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
        """Whether a request may be made; in HALF_OPEN only one asker hears yes, and is to record
        how it went."""
        return self._permit.can_request(domain, _NO_RATE)

    def record_success(self, domain: str) -> None:
        """A request went well."""
        self._permit.record_success(domain, _NO_RATE)

    def record_failure(self, domain: str, block_type: str) -> None:
        """A request met a block of this kind, such as `captcha`."""
        self._permit.record_failure(domain, block_type, _NO_RATE)

    def state(self, domain: str) -> str:
        """CLOSED, OPEN or HALF_OPEN."""
        return next(
            (known.state for known in self._permit.domains() if known.domain == domain), "CLOSED"
        )

    def close(self) -> None:
        """Close the connection."""
        self._permit.close()
