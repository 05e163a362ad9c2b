"""Judges and parses a page: its verdict, and its record."""

from collections.abc import Collection
from itertools import islice
from resource import RLIM_INFINITY, RLIMIT_AS, RLIMIT_DATA, getrlimit
from typing import Any

import msgspec
from msgspec.structs import replace

from crawler.errors import FetchError, InputError, shortage_of
from crawler.fetch import charset
from crawler.fetch.budget import SMALL, Budget, check_free
from crawler.fetch.wire import media_type
from crawler.judge import Verdict
from crawler.judge.rules import judge
from crawler.judge.sight import glance
from crawler.models import Page, Role, SeenListing
from crawler.scraping.file_links import FoundFiles, find_files
from crawler.scraping.follow import Finder, Followed, LinkFinder
from crawler.sites import Site, listing, scrapers, selectors, structured, validation
from crawler.sites.crawlfile import PageKind
from crawler.sites.fieldfile import MISSING
from crawler.sites.page_view import PageView
from crawler.sites.parser import parse

charset.load()

PARSE_MEMORY_FACTOR, MAX_PARSE_MEMORY = 100, 64_000_000
"""Memory for parsing a page: this many times its size, up to the maximum in bytes."""
MIN_FREE_MEMORY = 10_000_000
"""Bytes of free memory that even the smallest page needs."""
MAX_RECORD_BYTES = 8_000_000
"""Maximum size of a record as JSON."""
_encode = msgspec.json.Encoder().encode


class ParsedPage(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a page, and its record."""

    verdict: Verdict
    record: dict[str, Any] = {}
    encoded: bytes = b"{}"
    """The record as JSON."""
    parser: tuple[str, str] = ("none", structured.VERSION)
    followed: Followed = Followed()
    found: FoundFiles = FoundFiles()
    invalid: tuple[str, ...] = ()
    """Why the record is invalid."""
    listings: tuple[SeenListing, ...] = ()
    """What the site's key identifies in the record."""


def examine(
    page: Page, site: Site, budget: Budget | None = None, finder: Finder | None = None
) -> ParsedPage:
    """Judge and parse a page. It needs nothing but the page, so it works for stored ones, too.

    The record's memory counts against the page's budget until the page is stored, like the body's.
    """
    budget = budget or Budget()
    needed = min(PARSE_MEMORY_FACTOR * len(page.body), MAX_PARSE_MEMORY)
    before = budget.held
    budget.hold(needed)
    try:
        if any(getrlimit(limit)[0] != RLIM_INFINITY for limit in (RLIMIT_AS, RLIMIT_DATA)):
            # Libraries crash or report a broken page if memory runs out while they work.
            check_free(needed + MIN_FREE_MEMORY)
        read = _examined(page, site, budget, finder)
        if site.files and isinstance(finder, LinkFinder) and read.verdict.completed:
            read = _with_files(read, find_files(read.record, page, site.files, finder))
    finally:
        budget.release(budget.held - before)
    budget.hold(len(read.encoded))
    if read.listings:
        budget.hold(sum(len(each.record) for each in read.listings if each.is_item))
    return read


def shows_more(page: Page, response: Page, site: Site, budget: Budget) -> bool:
    """Whether a rendered page shows more than the response that it came from."""
    before, after = (_seen(each, site, budget) for each in (response, page))
    return any(more > less for less, more in zip(before, after, strict=True))


def _seen(page: Page, site: Site, budget: Budget) -> tuple[int, ...]:
    """How much there is to see on a page: characters of text, those of links, cells and links."""
    declared = page.header("content-type")
    html = charset.utf8(page.body, declared, budget, site.encoding_of(page))
    sight = glance(parse(html, budget), budget)
    return sight.own, sight.linked, sight.cells, sight.links


def _examined(page: Page, site: Site, budget: Budget, finder: Finder | None) -> ParsedPage:
    declared = page.header("content-type")
    if not page.body:
        return _unread(page)
    try:
        if not is_html(declared, page.body):
            return _parsed_text(page, declared, site, budget, finder)
        html = charset.utf8(page.body, declared, budget, site.encoding_of(page))
        if not html:
            return _unread(page)
        return _parsed_html(page, html, site, budget, finder)
    except FetchError:
        if 200 <= page.status < 300:
            raise
        return _unread(page)
    except InputError:
        raise  # the scraper cannot be loaded
    except Exception as error:
        if shortage_of(error):
            raise
        what = f"the parser failed ({type(error).__name__}: {error})"
        raise FetchError("parse_error", what) from error


def _parsed_html(
    page: Page, html: bytes, site: Site, budget: Budget, finder: Finder | None
) -> ParsedPage:
    copied = len(html) * (html is not page.body)
    tree = parse(html, budget, copied)
    look = _do_nothing
    if len(html) > SMALL:
        look = budget.look
    look()
    url = page.final_url
    rules = site.kind_of(url) or site
    verdict = judge(page, html, tree, budget)
    if not verdict.completed:
        return ParsedPage(verdict=verdict, parser=parser_of(site, rules))
    look()
    followed = Followed()
    if finder:
        followed = finder.in_html(tree, html, page)
        look()
    if scrapers.makes_record(site, finder and finder.role):
        view = PageView(site, page, budget, html, tree)
        read = _scraped(view, ParsedPage(verdict=verdict, followed=followed), rules)
        return _with_listings(read, page, site, rules, budget, finder)
    fields = record = selectors.extract(tree, rules.fields, url, budget, required=rules.required)
    if rules.structured:
        record = structured.extract(tree, url, budget) | fields
    look()
    read = ParsedPage(verdict=verdict, followed=followed)
    read = _with_record(read, record, fields, site, rules, budget)
    return _with_listings(read, page, site, rules, budget, finder)


def _with_record(
    read: ParsedPage,
    record: dict[str, Any],
    fields: Collection[str],
    site: Site,
    rules: Site | PageKind,
    budget: Budget,
) -> ParsedPage:
    encoded = _encoded(record, fields, budget)
    invalid: tuple[str, ...] = ()
    if rules.validate or MISSING in fields:
        budget.check(len(encoded))
        invalid = validation.reasons(record, rules.validate)
        budget.check(len(encoded))
    made = {"record": record, "encoded": encoded, "invalid": invalid}
    return replace(read, parser=parser_of(site, rules), **made)


def _with_listings(
    read: ParsedPage,
    page: Page,
    site: Site,
    rules: Site | PageKind,
    budget: Budget,
    finder: Finder | None,
) -> ParsedPage:
    """Find the listings in the record of a page, if the site's file says what identifies one."""
    if site.listings is None:
        return read
    found = listing.find(
        read.record,
        read.encoded,
        page.final_url,
        site.listings,
        budget,
        by_address=_is_of_listing(site, rules, finder and finder.role),
    )
    return replace(read, listings=found)


def listings_of_record(
    site: Site, record: bytes, url: str, role: Role | None
) -> tuple[SeenListing, ...]:
    """Find the listings in a stored record of a page, as in a new one."""
    if site.listings is None:
        return ()
    by_address = _is_of_listing(site, site.kind_of(url) or site, role)
    decoded = msgspec.json.decode(record, type=dict[str, Any])
    return listing.find(decoded, record, url, site.listings, Budget(), by_address=by_address)


def _is_of_listing(site: Site, rules: Site | PageKind, role: Role | None) -> bool:
    """Return whether a page is one of a listing, as far as the site's file or the crawl tells."""
    if isinstance(rules, PageKind):
        return rules.role == "listing"
    if role is None or not (site.follow or site.pages):
        return not site.pages
    return role is Role.LISTING


def _with_files(read: ParsedPage, found: FoundFiles) -> ParsedPage:
    """Add the files that a record names; a link to one of them is no other task."""
    keys = {file.link.address.key for file in found.files}
    links = tuple(link for link in read.followed.links if link.address.key not in keys)
    return replace(read, found=found, followed=read.followed._replace(links=links))


def _do_nothing() -> None:
    return


def _parsed_text(
    page: Page, declared: str, site: Site, budget: Budget, finder: Finder | None
) -> ParsedPage:
    """Parse a page that is not HTML. Only JSON and plain text have a record; fields that need HTML
    are empty."""
    unread = _unread(page)
    if not unread.verdict.completed:
        return unread
    kind = media_type(declared)
    is_json = kind.endswith(("/json", "+json"))
    is_text = is_json or kind == "text/plain"
    rules = site.kind_of(page.final_url) or site
    body = b""
    if is_text and (rules.fields or rules.structured or (finder and is_json)):
        body = charset.utf8(page.body, declared, budget, site.encoding_of(page))
    if finder and is_json:
        unread = replace(unread, followed=finder.in_json(body, page))
    if scrapers.makes_record(site, finder and finder.role):
        read = _scraped(PageView(site, page, budget), unread, rules)
        return _with_listings(read, page, site, rules, budget, finder)
    if not rules.fields and not (rules.structured and is_text):
        return unread
    fields = selectors.extract(
        None,
        rules.fields,
        page.final_url,
        budget,
        required=rules.required,
        body=body,
        is_json=is_json,
    )
    record: dict[str, Any] = {}
    if rules.structured and is_text:
        record = structured.extract_plain(body, is_json, budget)
    read = _with_record(unread, record | fields, fields, site, rules, budget)
    return _with_listings(read, page, site, rules, budget, finder)


def _scraped(view: PageView, unread: ParsedPage, rules: Site | PageKind) -> ParsedPage:
    """Have the class of a site make the record."""
    record = scrapers.listing(view)
    records = record["records"] if list(record) == ["records"] else [record]
    for name in rules.required:
        if any(each.get(name) in (None, "", []) for each in records):
            record.setdefault(MISSING, []).append(name)
    return _with_record(unread, record, record, view.site, rules, view.budget)


def _encoded(record: dict[str, Any], fields: Collection[str], budget: Budget) -> bytes:
    """Encode a record. If it is too large, halve its largest parts, but never a site's fields."""
    pieces: list[bytes] = []
    sizes: dict[str, int] = {}
    total = 1
    for name, value in record.items():  # one at a time, because all may be far too large
        piece = b"%b:%b" % (_encode(name), _encode(value))
        sizes[name] = len(piece) + 1
        total += sizes[name]
        if total <= MAX_RECORD_BYTES:
            pieces.append(piece)
    if total <= MAX_RECORD_BYTES:
        return b"{%b}" % b",".join(pieces)
    pieces.clear()
    while total > MAX_RECORD_BYTES:
        budget.look()
        largest = max(sizes.keys() - fields, key=lambda name: sizes[name], default=None)
        if largest is None:
            raise FetchError(
                "too_large", f"the page's fields have more than {MAX_RECORD_BYTES:,} bytes"
            )
        total -= sizes.pop(largest)
        record[largest] = half = _first_half(record[largest])
        if not half:
            del record[largest]
            continue
        sizes[largest] = len(_encode(largest)) + len(_encode(half)) + 2
        total += sizes[largest]
    return _encode(record)


def _first_half(value: Any) -> Any:
    if isinstance(value, dict):
        return dict(islice(value.items(), len(value) // 2))
    return value[: len(value) // 2]


def _unread(page: Page) -> ParsedPage:
    return ParsedPage(verdict=judge(page, b"", None))


def parser_of(site: Site, rules: Site | PageKind) -> tuple[str, str]:
    """Return the name and version of what makes the record of a page."""
    if site.scraper:
        return site.name, f"{site.version}+{site.scraper.version}"
    if rules.fields or not rules.structured:
        return site.name, site.version
    return structured.NAME, structured.VERSION


def is_html(declared: str, body: bytes) -> bool:
    """Return whether a page declares HTML, or declares nothing and looks like HTML."""
    kind = media_type(declared)
    if kind:
        return kind in ("text/html", "application/xhtml+xml")
    return body[:512].lstrip()[:1] == b"<"
