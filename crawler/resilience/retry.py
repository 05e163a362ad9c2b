"""One table from what went wrong to what is done about it, and how long to wait."""

import random
from collections.abc import Callable
from email.utils import parsedate_to_datetime

from crawler.models import RetryClass
from crawler.resilience.permit import MAX_RETRY_AFTER_S

_S, _L, _D, _G = RetryClass.SOON, RetryClass.LATER, RetryClass.SLOW_DOWN, RetryClass.GIVE_UP
CLASSES = {
    "connection": _S,
    "timeout": _S,
    "truncated": _S,
    "bad_response": _S,
    "bad_encoding": _S,
    "tls_broken_off": _S,
    "http_408": _S,
    "http_425": _S,
    "http_500": _S,
    "dns": _L,
    "robots_unreachable": _L,
    "http_429": _D,
    "http_503": _D,
    "poison": RetryClass.POISON,
}
"""What is not here: other 5xx are tried again soon, verdicts bring their own class, and all else is
given up."""

BLOCKS = frozenset({"http_429", "http_503"})
"""Reasons that speak against the whole domain; so many in a row open its circuit. Walls are another
kind."""
MAX_DATE = 100
"""Characters of a `Retry-After` that are looked at: a date has some 30."""
_TIMES = {_S: 1.0, _L: 15.0, _D: 5.0}
"""How much longer than soon the first wait of a class is."""


def class_of(reason: str) -> RetryClass:
    """The class of a reason code."""
    if reason in CLASSES:
        return CLASSES[reason]
    return _S if reason.startswith("http_5") else _G


def delay(
    kind: RetryClass,
    failures: int,
    retry_after_s: float | None,
    base_s: float,
    cap_s: float,
    jitter: Callable[[], float] = random.random,
) -> float:
    """How long to wait after so many failures: anything up to a bound that doubles (full jitter).

    A server's own wish is kept, and spread a little, so that what waited for it does not come back
    in one wave.
    """
    if retry_after_s:
        return min(retry_after_s, MAX_RETRY_AFTER_S) + jitter() * min(5.0, retry_after_s)
    bound: float = min(cap_s, base_s * _TIMES.get(kind, 0.0) * 2**failures)
    return jitter() * bound


def retry_after(header: str, now: float) -> float | None:
    """The seconds that a `Retry-After` header means, as a number or a date, within reason; None
    where it means none."""
    text = header.strip()[:MAX_DATE]
    if text.isdecimal():
        return min(float(text[:12]), MAX_RETRY_AFTER_S) or None
    try:
        wait_s: float = parsedate_to_datetime(text).timestamp() - now
    except (ValueError, TypeError, OverflowError):
        return None
    return min(wait_s, MAX_RETRY_AFTER_S) if wait_s > 0 else None
