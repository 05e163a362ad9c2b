"""Parses one stored page with today's configuration, and compares its record with the earlier."""

import time
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from crawler.analyze.compare import RecordChanges, compare_records
from crawler.db import raw_pages
from crawler.errors import FetchError, InputError, StoreError
from crawler.fetch.budget import Budget
from crawler.models import Page, RawLocation, Role, SeenListing
from crawler.scraping.examine import ParsedPage, examine
from crawler.scraping.follow import NoLinks
from crawler.scraping.stored import rebuild_page
from crawler.sites import Site, Sites

NO_RECORD = b"{}"


class ParseRequest(msgspec.Struct, frozen=True, array_like=True):
    """A stored page to be parsed, with all that its record depends on."""

    place: RawLocation
    url: str
    final_url: str
    is_own: bool
    """Whether the page came from `final_url`, which is then checked."""
    platform: str | None
    role: Role | None
    fetched_at: float
    old: bytes | None
    """The record to compare with, if there is one."""
    wants_record: bool
    """Whether the record is wanted even where it is the old one."""
    wants_listings: bool
    """Whether the listings are to be corrected."""


class ParseAnswer(msgspec.Struct, frozen=True, array_like=True):
    """What became of a page."""

    end: Literal["parsed", "unreadable", "failed", "killed", "misconfigured"] = "parsed"
    reason: str = ""
    message: str = ""
    """Why it could not be read or parsed."""
    verdict: str = ""
    completed: bool = False
    """Whether a page with this verdict has a record."""
    record: bytes | None = None
    """None if it is the old one, byte for byte."""
    invalid: list[str] = []
    parser: tuple[str, str] = ("", "")
    site: tuple[str, str] = ("", "")
    changes: RecordChanges = RecordChanges()
    listings: tuple[SeenListing, ...] = ()
    """Those of the record, if they are wanted, even where it is the old one: other results of the
    page may have another."""


class StoredPageParser:
    """Parses stored pages one after the other."""

    def __init__(self, raw: Path, sites: Sites, cpu_s: float) -> None:
        self._raw, self._sites, self._cpu_s = raw, sites, cpu_s

    def parse(self, asked: ParseRequest) -> ParseAnswer:
        """Read, judge and parse a page; whatever goes wrong is part of the answer."""
        try:
            head, body = raw_pages.read(
                self._raw, asked.place, asked.final_url if asked.is_own else ""
            )
        except StoreError as error:
            return ParseAnswer(end="unreadable", message=str(error))
        site = self._sites.of(asked.url, asked.platform)
        try:
            page = rebuild_page(head, body, asked.url, asked.final_url)
            page = replace(page, fetched_at=asked.fetched_at)
            parsed = parse_page(page, site, asked.role, self._cpu_s)
        except InputError as error:
            return ParseAnswer(end="misconfigured", message=str(error))
        except FetchError as error:
            return _failed(asked, error.reason, error.message)
        except (MemoryError, OSError) as error:
            return _failed(asked, "shortage", f"this machine lacked something ({error!r})")
        return _parsed(asked, site, parsed)


def parse_page(
    page: Page, site: Site, role: Role | None, cpu_s: float = float("inf")
) -> ParsedPage:
    """Judge and parse a page as a worker does, without looking for links."""
    finder = NoLinks(role) if role else None
    return examine(page, site, Budget(cpu_s, clock=time.thread_time), finder)


def _parsed(asked: ParseRequest, site: Site, parsed: ParsedPage) -> ParseAnswer:
    verdict = parsed.verdict
    new = parsed.encoded if verdict.completed else NO_RECORD
    record = None
    if asked.wants_record or new != asked.old:
        record = new
    return ParseAnswer(
        verdict=verdict.name,
        completed=verdict.completed,
        record=record,
        invalid=list(parsed.invalid),
        parser=parsed.parser,
        site=(site.name, site.version),
        changes=_compared(asked, new),
        listings=parsed.listings if asked.wants_listings else (),
    )


def _failed(asked: ParseRequest, reason: str, message: str) -> ParseAnswer:
    """A page without a record has lost all that the old one had."""
    return ParseAnswer(
        end="failed", reason=reason, message=message, changes=_compared(asked, NO_RECORD)
    )


def _compared(asked: ParseRequest, new: bytes) -> RecordChanges:
    if asked.old is None:
        return RecordChanges()
    return compare_records(asked.old, new)


def killed(asked: ParseRequest, message: str) -> ParseAnswer:
    """The answer for a page that ended the process that parsed it."""
    lost = _compared(asked, NO_RECORD)
    return ParseAnswer(end="killed", reason="poison", message=message, changes=lost)
