"""Fetched files: what an answer is where an image or a document was expected."""

import msgspec
from msgspec.structs import replace

from crawler.fetch.budget import Budget
from crawler.fetch.wire import media_type
from crawler.judge import Verdict, decided
from crawler.judge.rules import judge
from crawler.models import Page
from crawler.scraping.examine import ParsedPage, examine, is_html
from crawler.sites import Site, images
from crawler.sites.crawlfile import Files

PARSER = ("file", "file-1")
"""Name and version of what makes the record of a file."""
REFUSALS = frozenset({"not_a_file", "broken_image", "too_many_pixels"})
"""Verdicts on files; their evidence says it all."""
_HTML = (b"<!doctype html", b"<html")
_BEGINNING = 1_000


class FileRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of a file."""

    type: str
    bytes: int
    width: int | None = None
    height: int | None = None


def examine_file(page: Page, rules: Files, site: Site, budget: Budget) -> ParsedPage:
    """Judge a file; its bytes go before what its server calls it."""
    kind = images.type_of(page.body)
    if not kind and _looks_like_html(page):
        return ParsedPage(verdict=_judged_as_page(page, site, budget), parser=PARSER)
    verdict = judge(page, b"", None)
    if not verdict.completed:
        return ParsedPage(verdict=verdict, parser=PARSER)
    return _examined(page, kind, rules, verdict)


def _examined(page: Page, kind: str, rules: Files, verdict: Verdict) -> ParsedPage:
    declared = media_type(page.header("content-type"))
    if not kind and declared in images.MEASURED:
        return _refused("broken_image", f"its server calls it {declared}, but it is none")
    try:
        size = images.size_of(page.body, kind)
    except ValueError as error:
        return _refused("broken_image", f"the {kind} cannot be read: {error}")
    if size and size[0] * size[1] > rules.max_pixels:
        pixels = f"{size[0]:,} × {size[1]:,} pixels"
        limit = f"more than max_pixels ({rules.max_pixels:,})"
        return _refused("too_many_pixels", f"the image has {pixels}, {limit}")
    width, height = size or (None, None)
    record = FileRecord(
        type=_type(kind, declared), bytes=len(page.body), width=width, height=height
    )
    invalid: tuple[str, ...] = ()
    if images.is_cut_off(page.body, kind):
        invalid = ("the end of the image is missing",)
    return ParsedPage(
        verdict=verdict,
        record=msgspec.to_builtins(record),
        encoded=msgspec.json.encode(record),
        parser=PARSER,
        invalid=invalid,
    )


def _type(found: str, declared: str) -> str:
    """Return the type by the bytes; documents in a container are told by their server only."""
    if found.startswith("image/") or found == "application/pdf" or not declared:
        return found or "application/octet-stream"
    return declared


def _refused(name: str, reason: str) -> ParsedPage:
    return ParsedPage(verdict=decided(name, reason), parser=PARSER)


def _looks_like_html(page: Page) -> bool:
    beginning = page.body[:_BEGINNING].lower()
    return is_html(page.header("content-type"), page.body) or any(
        mark in beginning for mark in _HTML
    )


def _judged_as_page(page: Page, site: Site, budget: Budget) -> Verdict:
    """Judge an HTML page that came instead of a file: a wall or an error page, or just no file."""
    plain = replace(site, scraper=None, fields={}, required=(), pages=(), structured=False)
    verdict = examine(page, plain, budget).verdict
    if not verdict.completed:
        return verdict
    return decided("not_a_file", "an HTML page came where a file was expected")
