"""Which pages need a browser, as learned from others: by domain and the pattern of their paths."""

from typing import Any, NamedTuple
from urllib.parse import urlsplit

from crawler.db.connection import Database
from crawler.db.store import Part
from crawler.models import Outcome

MAX_PATTERNS = 200
"""Patterns of one domain; pages of others are tried by HTTP first, each time."""

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
        sql = "SELECT domain, pattern, site, learned_at FROM browser_pages ORDER BY 1, 2"
        return [BrowserPage(*row) for row in self._db.all(sql)]


def learned(db: Database) -> Learned:
    """All that is known."""
    rows = db.all("SELECT domain, pattern, site_version FROM browser_pages")
    return {(domain, pattern): version for domain, pattern, version in rows}


def note(db: Database, outcome: Outcome, now: float) -> None:
    """Note what a page has taught. Part of a transaction."""
    if outcome.learned is None:
        return
    task = outcome.task
    page: tuple[Any, ...] = (task.domain, pattern_of(task.url))
    if not outcome.learned:
        db.execute("DELETE FROM browser_pages WHERE (domain, pattern) = (?, ?)", page)
        return
    db.execute(
        """INSERT INTO browser_pages (domain, pattern, site, site_version, task, learned_at)
           SELECT ?1, ?2, ?3, ?4, ?5, ?6
           WHERE (SELECT count(*) FROM browser_pages WHERE domain = ?1) < ?7
           ON CONFLICT DO UPDATE SET site = excluded.site, site_version = excluded.site_version,
               task = excluded.task, learned_at = excluded.learned_at""",
        (*page, *outcome.site, task.id, now, MAX_PATTERNS),
    )
