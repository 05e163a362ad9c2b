"""Verdicts: what a page really is (pure functions).

A good page is told by its amount of text and an innocent title, which is cheap. All others are
examined closely. No single word makes a wall: a rule needs marks that only walls have, or several
weak signs on a page with hardly any text.
"""

from msgspec.structs import replace
from selectolax.lexbor import LexborHTMLParser

from crawler.fetch.budget import Budget
from crawler.judge import marks, rules
from crawler.judge.sight import RICH, glance, look
from crawler.judge.verdict import DECISIONS, Verdict, decided, speaks_against_domain
from crawler.models import Page

__all__ = ["DECISIONS", "Verdict", "decided", "judge", "speaks_against_domain"]

_GONE = frozenset({404, 410})
_GOOD = decided("ok", "much to read under an innocent title")


def judge(
    page: Page, html: bytes, tree: LexborHTMLParser | None, budget: Budget | None = None
) -> Verdict:
    """Say what a page really is.

    `html` is the page in UTF-8, empty for what is not HTML; `tree` is its tree, or None, and is not
    changed.
    """
    status = page.status
    headers = {name.lower(): value for name, value in page.headers}
    if status not in _GONE and not marks.HEADER_NAMES.isdisjoint(headers):
        found = rules.by_header(headers)
        if found:
            return _with_status(found, status)
    if not page.body or page.body.isspace():
        if 200 <= status < 300:
            return decided("empty", f"status {status} with nothing in it")
        return _plain(status)
    if status in _GONE or 300 <= status < 400:
        return _plain(status)
    found = _found(page, headers, html, tree, budget or Budget())
    if found is None:
        return _plain(status)
    return _with_status(found, status)


def _found(
    page: Page, headers: dict[str, str], html: bytes, tree: LexborHTMLParser | None, budget: Budget
) -> Verdict | None:
    if tree is None:
        return rules.of_text(page, headers)
    sight = glance(tree, budget)
    # A page that is rich only because of its links may still be a login form.
    innocent = sight.own >= RICH or b"password" not in html
    good = 200 <= page.status < 300 and sight.rich and innocent
    if good and not marks.is_odd(" | ".join(sight.lines)):
        return _GOOD
    case = rules.Case.of(page, headers, html, tree, look(tree, sight, budget), budget)
    return rules.of_page(case, budget)


def _plain(status: int) -> Verdict:
    """The verdict on a page of which nothing but its status counts."""
    if 200 <= status < 300:
        return decided("ok", "not HTML")
    if status == 429:
        return _with_status(decided("rate_limited"), status)
    return _with_status(decided(f"http_{status}"), status)


def _with_status(verdict: Verdict, status: int) -> Verdict:
    """Add the status to the evidence, unless it is a success."""
    if 200 <= status < 300:
        return verdict
    block = verdict.block
    if verdict.name == "rate_limited" and status == 429:
        block = "http_429"
    return replace(verdict, evidence=(f"status {status}", *verdict.evidence), block=block)
