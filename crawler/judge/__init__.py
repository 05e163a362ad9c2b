"""Verdicts on pages: what a verdict is, and the one table of what each verdict or failure decides.

`judge.rules.judge` finds the verdict of a page.
"""

import msgspec

from crawler.models import RetryClass


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a page really is, or how a fetch failed, and what follows from that."""

    name: str = ""
    vendor: str = ""
    """Whose wall it is, if known."""
    evidence: tuple[str, ...] = ()
    completed: bool = False
    """Whether the task is done with this page."""
    quarantine: bool = True
    """Whether the page is kept apart from the good ones."""
    retry: RetryClass | None = RetryClass.GIVE_UP
    """None where the task is done."""
    block: str = ""
    """The kind of block that the domain's circuit breaker counts, if any."""
    proxy_score: int = 0
    """What it says of the proxy that it came through."""


_GOOD = Verdict(completed=True, quarantine=False, retry=None, proxy_score=1)
_SOON, _LATER = Verdict(retry=RetryClass.SOON), Verdict(retry=RetryClass.LATER)
_GIVE_UP = Verdict()

DECISIONS = {
    "ok": _GOOD,
    "thin": _GOOD,
    # There is no body to quarantine.
    "empty": Verdict(quarantine=False),
    # Only a browser gets more out of it.
    "empty_shell": _GIVE_UP,
    "captcha": Verdict(retry=RetryClass.LATER, block="captcha", proxy_score=-5),
    "blocked": Verdict(retry=RetryClass.LATER, block="blocked", proxy_score=-5),
    "rate_limited": Verdict(retry=RetryClass.SLOW_DOWN, block="rate_limited", proxy_score=-3),
    "login_wall": _GIVE_UP,
    "consent_wall": _GIVE_UP,
    "error_page": _SOON,
    "soft_404": _GIVE_UP,
    "parked": _GIVE_UP,
    # No fault of ours, but a domain that says so again and again is left alone for a while.
    "maintenance": Verdict(retry=RetryClass.LATER, block="maintenance"),
    # A refusal without a reason, and an overloaded server: in a row they mean the domain.
    "http_403": Verdict(block="http_403", proxy_score=-2),
    "http_503": Verdict(retry=RetryClass.SLOW_DOWN, block="http_503"),
}
"""What each verdict on a page decides."""

FAILURES = {
    "connection": _SOON,
    "timeout": _SOON,
    "truncated": _SOON,
    "bad_response": _SOON,
    "bad_encoding": _SOON,
    "tls_broken_off": _SOON,
    # What HTTP brought is an empty shell, and a browser is to fetch it.
    "needs_browser": _SOON,
    "browser_crashed": _SOON,
    "page_crashed": _SOON,
    # What a step waits for may only be late.
    "step_failed": _SOON,
    "http_408": _SOON,
    "http_425": _SOON,
    "dns": _LATER,
    "robots_unreachable": _LATER,
    "refused_on_the_way": _LATER,
    "http_429": Verdict(retry=RetryClass.SLOW_DOWN, block="http_429"),
    "poison": Verdict(retry=RetryClass.POISON),
}
"""The same for other statuses and for fetches without a page. Other 5xx statuses are tried again
soon, and every other failure is given up."""


def decided(name: str, *evidence: str, vendor: str = "") -> Verdict:
    """Return the verdict of that name, with all that it decides."""
    row = DECISIONS.get(name) or FAILURES.get(name) or _GIVE_UP
    if row is _GIVE_UP and name.startswith("http_5"):
        row = _SOON
    shown = tuple(filter(None, evidence))
    return msgspec.structs.replace(row, name=name, vendor=vendor, evidence=shown)


def speaks_against_domain(reason: str | None) -> bool:
    """Whether a page that ended for this reason speaks against its whole domain."""
    if not reason:
        return False
    return bool(decided(reason).block) or reason.startswith("http_5")
