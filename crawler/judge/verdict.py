"""What a verdict is, and the one table of what each of them decides."""

import msgspec

from crawler.models import RetryClass


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a page really is, by what one can tell, and what follows from it."""

    name: str
    vendor: str = ""
    """Whose wall it is, where one can tell."""
    evidence: tuple[str, ...] = ()
    completed: bool
    """Whether the task is done with this page."""
    quarantine: bool
    """Whether the page is set apart from the good ones."""
    retry: RetryClass | None
    """None where nothing is to be tried again, and for a plain status: those have a table of their
    own."""
    block: str
    """What the circuit breaker is told: nothing, or the kind of block."""
    proxy_score: int
    """What it says of the proxy that it came through."""


class Decision(msgspec.Struct, frozen=True):
    """One row of the table."""

    completed: bool = False
    quarantine: bool = True
    retry: RetryClass | None = None
    blocks: bool = False
    proxy_score: int = 0


DECISIONS = {
    "ok": Decision(completed=True, quarantine=False, proxy_score=1),
    "thin": Decision(completed=True, quarantine=False, proxy_score=1),
    # There is no body to set apart.
    "empty": Decision(quarantine=False, retry=RetryClass.GIVE_UP),
    # Only a browser gets more out of it.
    "empty_shell": Decision(retry=RetryClass.GIVE_UP),
    "captcha": Decision(retry=RetryClass.LATER, blocks=True, proxy_score=-5),
    "blocked": Decision(retry=RetryClass.LATER, blocks=True, proxy_score=-5),
    "rate_limited": Decision(retry=RetryClass.SLOW_DOWN, blocks=True, proxy_score=-3),
    "login_wall": Decision(retry=RetryClass.GIVE_UP),
    "consent_wall": Decision(retry=RetryClass.GIVE_UP),
    "error_page": Decision(retry=RetryClass.SOON),
    "soft_404": Decision(retry=RetryClass.GIVE_UP),
    "parked": Decision(retry=RetryClass.GIVE_UP),
    # Nothing is wrong with us, but a domain that says so again and again is to be left alone for a
    # while.
    "maintenance": Decision(retry=RetryClass.LATER, blocks=True),
    # A refusal without a reason, and a server that cannot any more: in a row they mean the domain,
    # not the page.
    "http_403": Decision(blocks=True, proxy_score=-2),
    "http_503": Decision(blocks=True),
}
PLAIN_STATUS = Decision()
"""For every other `http_NNN`."""


def decided(
    name: str, vendor: str = "", evidence: tuple[str, ...] = (), status: int = 200
) -> Verdict:
    """The verdict of that name with all that it decides."""
    row = DECISIONS.get(name, PLAIN_STATUS)
    block = ("http_429" if name == "rate_limited" and status == 429 else name) if row.blocks else ""
    return Verdict(
        name=name,
        vendor=vendor,
        evidence=evidence,
        completed=row.completed,
        quarantine=row.quarantine,
        retry=row.retry,
        block=block,
        proxy_score=row.proxy_score,
    )
