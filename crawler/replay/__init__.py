"""The time machine: runs today's parser over stored pages, with no network.

Pages are read in the order in which they are stored, and parsed in processes of their own.
"""

import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from crawler.analyze.compare import index_results, key_of
from crawler.analyze.sources import Source
from crawler.config import Settings, program
from crawler.db.record_versions import (
    MAX_TASKS_PER_COMMIT,
    NewRecords,
    Replaced,
    Replacement,
    StoredResult,
    is_same_record,
)
from crawler.db.results import encoded_reasons
from crawler.db.run_index import RunIndex
from crawler.errors import InputError, UsageError
from crawler.logs import shortened
from crawler.lpm import LocalPersistenceManager
from crawler.models import UNCHANGED, Job, RawLocation, SeenListing
from crawler.replay import golden
from crawler.replay.parser import ParseAnswer, ParseRequest, StoredPageParser
from crawler.replay.pool import ParserPool
from crawler.replay.report import Report, Tally
from crawler.scraping.examine import listings_of_record
from crawler.scraping.stored import rebuild_page
from crawler.sites import Site, Sites

STORED = "stored"
T = TypeVar("T")
CPU_SHARE = 0.5
"""A page may use this share of CRAWLER_STALL_S as CPU time, as in a worker."""
MAX_CHANGED = 300
"""Characters of the changes that the timeline of a task notes."""


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which pages are parsed, and what is done with their records."""

    site: str | None = None
    job: Job | None = None
    since: float | None = None
    roles: tuple[str, ...] = ()
    limit: int | None = None
    workers: int
    fail_under: float | None = None
    apply: bool = False
    freeze: Path | None = None


class _Page(NamedTuple):
    """A stored page with the results that were made of it."""

    place: RawLocation
    results: list[StoredResult]
    """Of the same site and role. The first one is compared."""
    old: bytes | None
    verdict: str | None


Progress = Callable[[int, int, int], None]
"""Is told the pages so far, and how far that is: the part that is done, and the whole."""


class Replay:
    """One replay of a store."""

    def __init__(
        self,
        settings: Settings,
        lpm: LocalPersistenceManager,
        sites: Sites,
        options: ReplayOptions,
        against: "Baseline",
    ) -> None:
        self._settings, self._lpm, self._sites = settings, lpm, sites
        self._options, self._against = options, against
        self._tally = Tally(against.name)
        self._position = 0
        self._frozen: dict[str, float] = {}
        """The time of the page that each golden file was made of."""
        self._written = 0

    def run(self, progress: Progress = lambda pages, read, total: None) -> Report:
        """Parse the pages, tell what differs, and then apply it if that was asked for."""
        if self._options.apply:
            self._lpm.files.restore()  # a replay that was killed may have left earlier records
        with closing(NewRecords()) as new:
            began = time.monotonic()
            self._parse_all(new, progress)
            report = self._tally.report(time.monotonic() - began, self._options.fail_under)
            if self._options.freeze:
                report = msgspec.structs.replace(report, frozen=self._written)
            if self._options.apply and not report.is_below:
                applied = self._apply(new)
                made = self._make_listings()
                report = msgspec.structs.replace(report, applied=applied, listings_made=made)
        return report

    def _parse_all(self, new: NewRecords, progress: Progress) -> None:
        stall_s = self._settings.stall_s
        parser = StoredPageParser(self._lpm.raw, self._sites, stall_s * CPU_SHARE)
        limit, results = self._options.limit, self._lpm.versions.count_results()
        pool: ParserPool[_Page] = ParserPool(parser, self._options.workers, stall_s)
        with pool:
            for page, answer in pool.parse(self._requests()):
                if answer.end == "misconfigured":
                    raise UsageError(answer.message)
                compared = page.old is not None
                self._tally.add(page.results[0], answer, page.verdict, compared)
                if answer.end == "parsed" and answer.completed:
                    self._note_new(new, page, answer)
                if answer.end == "parsed" and self._options.freeze:
                    self._freeze(self._options.freeze, page, answer)
                if limit and limit < results:
                    progress(self._tally.pages, self._tally.pages, limit)
                else:
                    progress(self._tally.pages, self._position, results)

    # Pages

    def _requests(self) -> Iterator[tuple[_Page, ParseRequest]]:
        return islice(map(self._request, self._pages()), self._options.limit)

    def _pages(self) -> Iterator[_Page]:
        """The pages that were asked for, each with all results that were made of it."""
        asked = self._options
        stored = self._lpm.versions.stored_results(asked.job, asked.since, asked.roles)
        for place, group in groupby(stored, key=lambda result: result.page):
            if place is None:
                self._count_gone(group)
                continue
            parts: dict[tuple[str, str | None], list[StoredResult]] = {}
            for result in group:
                self._position = result.position
                site = self._sites.of(result.url, result.platform)
                if self._options.site in (None, site.name):
                    parts.setdefault(_parsed_alike(site, result), []).append(result)
            for results in parts.values():
                if any(result.chosen for result in results):
                    results.sort(key=lambda result: result.verdict == UNCHANGED)
                    old = self._against.find(results[0])
                    yield _Page(place, results, *(old or (None, None)))

    def _request(self, page: _Page) -> tuple[_Page, ParseRequest]:
        first = page.results[0]
        return page, ParseRequest(
            place=page.place,
            url=first.url,
            final_url=first.final_url,
            is_own=first.verdict != UNCHANGED,
            platform=first.platform,
            role=first.role,
            fetched_at=first.scraped_at,
            old=page.old,
            wants_record=self._options.freeze is not None,
            wants_listings=self._options.apply,
        )

    def _count_gone(self, results: Iterable[StoredResult]) -> None:
        for result in results:
            self._position = result.position
            site = self._sites.of(result.url, result.platform)
            if result.chosen and self._options.site in (None, site.name):
                why = ""
                if self._tally.wants_gone_examples:
                    why = self._lpm.pages.why_gone(result.task) or "was not kept (CRAWLER_RAW)"
                self._tally.add_gone(result, f"the page {why}")

    # New records

    def _note_new(self, new: NewRecords, page: _Page, answer: ParseAnswer) -> None:
        """Keep a record for later if it is to be applied and a result or a listing has another."""
        if not self._options.apply:
            return
        stale = self._lpm.versions.with_stale_listings(
            [result.task for result in page.results], answer.listings
        )
        if not stale and answer.record is None and _is_valid_as_before(page, answer):
            return
        record = answer.record or page.results[0].record
        reasons = encoded_reasons(answer.invalid)
        tasks = [
            result.task
            for result in page.results
            if result.task in stale
            or result.invalid != reasons
            or not is_same_record(result.record, record)
        ]
        if tasks:
            changed = "; ".join(map(str, answer.changes.changes))
            new.add(
                Replacement(
                    tasks=tasks,
                    page=page.place,
                    record=record,
                    invalid=answer.invalid,
                    parser=answer.parser,
                    site=answer.site,
                    changed=shortened(changed, MAX_CHANGED),
                    listings=answer.listings,
                )
            )

    def _apply(self, new: NewRecords) -> Replaced:
        done = Replaced()
        for batch in new.batches():
            done += self._lpm.replace_records(batch)
        return done

    def _make_listings(self) -> int:
        """Make the listings that results have and the store has not; returns how many.

        All results are read, the oldest first: what is older than a listing cannot become part of
        its history any more.
        """
        asked = self._options
        if asked.job or asked.since is not None or asked.limit:
            return 0
        return sum(map(self._lpm.see_stored, _batches(self._found_listings())))

    def _found_listings(self) -> Iterator[tuple[int, str, tuple[SeenListing, ...]]]:
        asked, versions = self._options, self._lpm.versions
        for result in versions.stored_results(None, None, asked.roles, by_time=True):
            site = self._sites.of(result.url, result.platform)
            if not result.chosen or asked.site not in (None, site.name):
                continue
            found = listings_of_record(site, result.record, result.final_url, result.role)
            if found:
                yield result.task, site.name, found

    # Golden sets

    def _freeze(self, folder: Path, page: _Page, answer: ParseAnswer) -> None:
        """Write a page and its record into a golden set; of several pages of a URL, the newest."""
        first = page.results[0]
        name = golden.name_of(
            answer.site[0], first.url, first.url_key, first.role, first.method, first.body
        )
        if self._frozen.get(name, 0.0) > first.scraped_at:
            return
        self._frozen[name] = first.scraped_at
        stored = self._lpm.pages.of_result(first.task)
        if stored is None:  # pruned since it was parsed
            return
        rebuilt = rebuild_page(*stored, first.url, first.final_url)
        expected = golden.GoldenPage(
            url=first.url,
            final_url=first.final_url,
            status=rebuilt.status,
            reason=rebuilt.reason,
            site=answer.site[0],
            platform=first.platform,
            role=first.role,
            body="",
            verdict=answer.verdict,
            invalid=answer.invalid,
            record=msgspec.json.decode(answer.record or b"{}"),
        )
        self._written += golden.write(folder, name, rebuilt, expected)


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    """The items, in parts of one commit each."""
    waiting = iter(items)
    while batch := list(islice(waiting, MAX_TASKS_PER_COMMIT)):
        yield batch


def _parsed_alike(site: Site, result: StoredResult) -> tuple[str, str | None]:
    """What decides beside the page which record is made of it."""
    return site.name, result.role if site.scraper else None


def _is_valid_as_before(page: _Page, answer: ParseAnswer) -> bool:
    """Whether nothing is left to be replaced where the first result has the new record."""
    reasons = encoded_reasons(answer.invalid)
    first = page.results[0].record
    return all(each.invalid == reasons and each.record == first for each in page.results)


# What the new records are compared with


class Baseline:
    """The earlier records: those of the store."""

    name = STORED

    def find(self, result: StoredResult) -> tuple[bytes, str | None] | None:
        """Return the earlier record of a page and its verdict, if there is one."""
        return result.record, result.verdict

    def close(self) -> None:
        """Free what it holds."""


class RecordsOfFile(Baseline):
    """The records of an export, an archive or a golden set."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._index = RunIndex()

    @classmethod
    def read(cls, name: str) -> "RecordsOfFile":
        """Read all of them; raises `InputError` if there are none."""
        found = cls(name)
        path = Path(name)
        try:
            if path.is_dir():
                found._add_golden(path)
            else:
                found._add_results(path)
        except BaseException:
            found.close()
            raise
        return found

    def close(self) -> None:
        self._index.close()

    def find(self, result: StoredResult) -> tuple[bytes, str | None] | None:
        verdict, data = self._index.find("a", result.url_key, result.parcel_id) or ("", None)
        if data is None:
            return None
        return data, None if verdict == "none" else verdict

    def _add_golden(self, folder: Path) -> None:
        paths = golden.files(folder)
        if not paths:
            raise InputError(str(folder), "there are no pages of a golden set in it")
        for path in paths:
            page = golden.read(path)
            record = msgspec.json.encode(page.record)
            self._index.add("a", key_of(page.url), "", 0.0, page.url, page.verdict, record)

    def _add_results(self, path: Path) -> None:
        source = Source(str(path), path)
        count = index_results(self._index, "a", source)
        if not count:
            reason = "there are no results in it"
            if source.unreadable_examples:
                reason += f": {source.unreadable_examples[0]}"
            raise InputError(str(path), reason)


def open_page_command(url: str) -> str:
    """The command that opens the stored page of a URL."""
    return f"{program()} raw {shlex.quote(url)} --open"
