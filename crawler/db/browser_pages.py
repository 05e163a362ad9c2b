"""Which pages need a browser, as learned from others: by domain and the pattern of their paths."""

from typing import NamedTuple
from urllib.parse import urlsplit

from crawler.db.connection import Database
from crawler.db.store import Part
from crawler.models import Outcome

MAX_PATTERNS = 200
"""Patterns of one domain whose pages need a browser, and as many of others; pages of further ones
are tried by HTTP first, each time."""
_TRIED = " tried by HTTP"
"""Stands after the version of a pattern some of whose pages need no browser. Such a pattern is not
learned again: each of its pages is tried by HTTP first, and none is rendered in vain."""
_IS_TRIED = f"site_version LIKE '%{_TRIED}'"

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
        sql = f"""SELECT domain, pattern, site, learned_at FROM browser_pages
            WHERE NOT {_IS_TRIED} ORDER BY 1, 2"""
        return [BrowserPage(*row) for row in self._db.all(sql)]

    def correct(self, learned: Learned, domain: str, url: str) -> None:
        """Take out what was learned of pages like this one if it is not true any more."""
        page = (domain, pattern_of(url))
        if page in learned and _version(self._db, page) != learned[page]:
            del learned[page]


def learned(db: Database) -> Learned:
    """All that is known."""
    rows = db.all(f"SELECT domain, pattern, site_version FROM browser_pages WHERE NOT {_IS_TRIED}")
    return {(domain, pattern): version for domain, pattern, version in rows}


def _version(db: Database, page: tuple[str, str]) -> str:
    sql = "SELECT site_version FROM browser_pages WHERE (domain, pattern) = (?, ?)"
    return str(db.value(sql, page, ""))


def note(db: Database, outcome: Outcome, now: float) -> None:
    """Note what a page has taught. Part of a transaction."""
    if outcome.learned is None:
        return
    task, (site, version) = outcome.task, outcome.site
    page = (task.domain, pattern_of(task.url))
    tried = version + _TRIED
    new = version if outcome.learned else tried
    if _version(db, page) in (new, tried):
        return
    db.execute("DELETE FROM browser_pages WHERE (domain, pattern) = (?, ?)", page)
    db.execute(
        f"""INSERT INTO browser_pages (domain, pattern, site, site_version, task, learned_at)
            SELECT ?1, ?2, ?3, ?4, ?5, ?6
            WHERE ?8 > (SELECT count(*) FROM browser_pages
                        WHERE domain = ?1 AND ({_IS_TRIED}) <> ?7)""",
        (*page, site, new, task.id, now, outcome.learned, MAX_PATTERNS),
    )
