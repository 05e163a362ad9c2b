"""How long to wait before a failed page is tried again."""

import random
from collections.abc import Callable
from email.utils import parsedate_to_datetime

from crawler.models import RetryClass
from crawler.resilience.permit import MAX_RETRY_AFTER_S

MAX_DATE = 100
"""Characters of a `Retry-After` that are read: a date has some 30."""
_FACTORS = {RetryClass.SOON: 1.0, RetryClass.LATER: 15.0, RetryClass.SLOW_DOWN: 5.0}
"""The first wait of each class, as a multiple of the base."""


def retry_delay(
    kind: RetryClass,
    failures: int,
    retry_after_s: float | None,
    base_s: float,
    cap_s: float,
    jitter: Callable[[], float] = random.random,
) -> float:
    """Return the wait after some failures: anything up to a bound that doubles (full jitter).

    A server's own wish is kept and spread a little, so that pages do not come back in one wave.
    """
    if retry_after_s:
        return min(retry_after_s, MAX_RETRY_AFTER_S) + jitter() * min(5.0, retry_after_s)
    bound: float = min(cap_s, base_s * _FACTORS.get(kind, 0.0) * 2**failures)
    return jitter() * bound


def retry_after(header: str, now: float) -> float | None:
    """Return the seconds that a `Retry-After` header asks for, as a number or a date, bounded."""
    text = header.strip()[:MAX_DATE]
    if text.isdecimal():
        return min(float(text[:12]), MAX_RETRY_AFTER_S) or None
    try:
        wait_s: float = parsedate_to_datetime(text).timestamp() - now
    except (ValueError, TypeError, OverflowError):
        return None
    if not wait_s > 0:
        return None
    return min(wait_s, MAX_RETRY_AFTER_S)
