"""Verdicts: what a page really is (pure functions).

A good page is told by its text and an innocent title, which is cheap; all others are looked at
closely. No single word makes a wall: a rule asks for marks that nothing else has, or for several
weak signs and hardly anything else to read.
"""

from selectolax.lexbor import LexborHTMLParser

from crawler.fetch.budget import Budget
from crawler.judge import phrases, rules, vendors
from crawler.judge.sight import RICH, glance, look
from crawler.judge.verdict import DECISIONS, Decision, Verdict, decided
from crawler.models import Page

__all__ = ["DECISIONS", "Decision", "Verdict", "decided", "judge"]

_GONE = frozenset({404, 410})
_GOOD = decided("ok", evidence=("much to read under an innocent title",))


def judge(
    page: Page, html: bytes, tree: LexborHTMLParser | None, budget: Budget | None = None
) -> Verdict:
    """Say what a page really is.

    `html` is the page in UTF-8, empty for what is not HTML; `tree` is its tree, or None, and is not
    changed.
    """
    budget = budget or Budget()
    status = page.status
    good = 200 <= status < 300
    headers = {name.lower(): value for name, value in page.headers}
    by_header = None if vendors.HEADER_NAMES.isdisjoint(headers) else rules.by_header(headers)
    if by_header and status not in _GONE:
        return _verdict(by_header, status)
    if not page.body or page.body.isspace():
        return _without_body(status)
    if status in _GONE or 300 <= status < 400:
        return _plain(status)
    if tree is None:
        return (
            _verdict(rules.of_text(page, headers), status)
            if _is_short_text(page, headers)
            else _plain(status)
        )
    sight = glance(tree, budget)
    # What is rich only because of its links may still be a form to log in.
    innocent = sight.own >= RICH or b"password" not in html
    if good and sight.rich and innocent and not phrases.is_odd(" | ".join(sight.lines)):
        return _GOOD
    case = rules.Case.of(page, headers, html, tree, look(tree, sight, budget), budget)
    return _verdict(rules.of_page(case, budget), status)


def _is_short_text(page: Page, headers: dict[str, str]) -> bool:
    kind = headers.get("content-type", "")
    return len(page.body) <= rules.SHORT_BODY and ("text/" in kind or "json" in kind or not kind)


def _without_body(status: int) -> Verdict:
    if status == 429:
        return decided("rate_limited", evidence=("status 429",), status=status)
    if 200 <= status < 300:
        return decided("empty", evidence=(f"status {status} with nothing in it",))
    return _plain(status)


def _plain(status: int) -> Verdict:
    if 200 <= status < 300:
        return decided("ok", evidence=("not HTML",))
    if status == 429:
        return decided("rate_limited", evidence=("status 429",), status=status)
    return decided(f"http_{status}", evidence=(f"status {status}",))


def _verdict(found: rules.Found | None, status: int) -> Verdict:
    if found is None:
        return _plain(status)
    evidence = found.evidence if 200 <= status < 300 else (f"status {status}", *found.evidence)
    return decided(found.name, found.vendor, evidence, status)
