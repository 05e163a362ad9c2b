"""Which pages need a browser, as learned from others: by domain and the pattern of their paths."""

from typing import NamedTuple
from urllib.parse import urlsplit

from crawler.db.connection import Database
from crawler.db.store import Part
from crawler.models import Outcome

MAX_PATTERNS = 200
"""Patterns of one domain whose pages need a browser, and as many of others; pages of further ones
are tried by HTTP first, each time."""
Learned = dict[tuple[str, str], str]
"""The version of the site's file under which each domain and pattern was learned: another one
forgets it."""


class BrowserPage(NamedTuple):
    """A pattern of pages that need a browser, and since when that is known."""

    domain: str
    pattern: str
    site: str
    learned_at: float


def pattern_of(url: str) -> str:
    """The path of a URL, with a star for each part that has a digit, such as an id."""
    parts = urlsplit(url).path.split("/")
    return "/".join("*" if any(map(str.isdigit, part)) else part for part in parts)


def needs_browser(learned: Learned, domain: str, url: str, site_version: str) -> bool:
    """Whether pages like this one needed a browser."""
    return bool(learned) and learned.get((domain, pattern_of(url))) == site_version


class BrowserPages(Part):
    """Reads what was learned."""

    def learned(self) -> Learned:
        """All that is known."""
        return learned(self._db)

    def listed(self) -> list[BrowserPage]:
        """All that is known, by domain and pattern."""
        sql = """SELECT domain, pattern, site, learned_at FROM browser_pages
            WHERE is_needed ORDER BY 1, 2"""
        return [BrowserPage(*row) for row in self._db.all(sql)]

    def correct(self, learned: Learned, domain: str, url: str) -> None:
        """Take out what was learned of pages like this one if it is not true any more."""
        page = (domain, pattern_of(url))
        if page in learned and _known(self._db, page) != (learned[page], True):
            del learned[page]


def learned(db: Database) -> Learned:
    """All that is known."""
    rows = db.all("SELECT domain, pattern, site_version FROM browser_pages WHERE is_needed")
    return {(domain, pattern): version for domain, pattern, version in rows}


def _known(db: Database, page: tuple[str, str]) -> tuple[str, bool] | None:
    """The version under which something was learned, and whether a browser is needed."""
    sql = "SELECT site_version, is_needed FROM browser_pages WHERE (domain, pattern) = (?, ?)"
    row = db.one(sql, page)
    return (row[0], bool(row[1])) if row else None


def note(db: Database, outcome: Outcome, now: float) -> None:
    """Note what a page has taught. Part of a transaction.

    A pattern some of whose pages need no browser is not learned again: each of its pages is tried
    by HTTP first, and none is rendered in vain.
    """
    if outcome.learned is None:
        return
    task, (site, version) = outcome.task, outcome.site
    page = (task.domain, pattern_of(task.url))
    known = _known(db, page)
    if known in ((version, outcome.learned), (version, False)):
        return
    if known and not outcome.learned:
        _make_room(db, task.domain)  # else the pattern would be learned again, and again in vain
    db.execute("DELETE FROM browser_pages WHERE (domain, pattern) = (?, ?)", page)
    db.execute(
        """INSERT INTO browser_pages
               (domain, pattern, site, site_version, is_needed, task, learned_at)
           SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7
           WHERE ?8 > (SELECT count(*) FROM browser_pages WHERE domain = ?1 AND is_needed = ?5)""",
        (*page, site, version, outcome.learned, task.id, now, MAX_PATTERNS),
    )


def _make_room(db: Database, domain: str) -> None:
    """Forget the oldest patterns of a domain that need no browser, if there are too many."""
    db.execute(
        """DELETE FROM browser_pages WHERE domain = ?1 AND pattern IN (
               SELECT pattern FROM browser_pages WHERE domain = ?1 AND NOT is_needed
               ORDER BY learned_at DESC LIMIT -1 OFFSET ?2)""",
        (domain, MAX_PATTERNS - 1),
    )
