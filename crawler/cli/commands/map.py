"""`map`: list the URLs of a site without crawling it."""

import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from crawler import config, sites
from crawler.cli.commands.scrape import SCRAPE_LIMIT_S
from crawler.cli.options import data_dir_option, json_option, robots_option, session_options
from crawler.cli.output import print_json, print_left_out, say
from crawler.config import Settings
from crawler.db.results import iso
from crawler.logs import counted
from crawler.lpm import LocalPersistenceManager
from crawler.models import GET, MAX_CRAWL_PAGES, JobOptions, Link, Outcome, Role, Task, TaskStatus

if TYPE_CHECKING:
    from crawler.crawls import Plan
    from crawler.fetch.session import Session
    from crawler.worker import Worker

_FETCHED = (Role.START, Role.SITEMAP)
"""All other links are listed and not fetched. A redirect keeps the role of its task."""


@click.command()
@click.argument("start", metavar="URL|SITE")
@click.option(
    "--include",
    multiple=True,
    metavar="RE",
    help="List only URLs that match this regular expression (RE2); repeatable.",
)
@click.option("--exclude", multiple=True, metavar="RE", help="Leave out what matches; repeatable.")
@click.option("--subdomains", is_flag=True, help="List URLs on hosts below the start's, too.")
@click.option(
    "--sitemap",
    type=click.Choice(["include", "skip", "only"]),
    help="Read sitemaps beside the start page, not at all, or instead of it (default: include).",
)
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=MAX_CRAWL_PAGES,
    show_default=True,
    help="Maximum URLs; 0 is no limit.",
)
@robots_option
@session_options
@json_option
@data_dir_option
def map(
    start: str,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    subdomains: bool,
    sitemap: str | None,
    limit: int,
    ignore_robots: bool,
    session: "Session | None",
    as_json: bool,
) -> int:
    """List the URLs of a site: those in its sitemaps, then the links of its start page.

    Only sitemaps and the start page are fetched, in this process, and nothing is stored. What is
    listed is what `crawl` would follow from there. With --json, each URL has lastmod, source
    (sitemap, start or link), and found_on.

    Exits with 1 if the start page or a sitemap cannot be read, or if nothing is found.

    \b
    Example:
      python -m crawler map https://example.com/
      python -m crawler map https://example.com/ --sitemap only --include '/listing/' --json
    """
    from crawler import crawls

    settings = config.load()
    plan = crawls.plan(
        sites.load(settings.config_dir, settings.rate),
        [start],
        JobOptions(ignore_robots=ignore_robots),
        subdomains=subdomains,
        depth=None,
        include=include,
        exclude=exclude,
        limit=0,  # `Found` has the limit, which is of URLs
        sitemap=sitemap,
    )
    found = Found(limit, _ignore if as_json else _print_url)
    is_whole = _look(settings, plan, session, found)
    if as_json:
        print_json(found.entries)
    _say_sum(found)
    return int(not is_whole or not found.entries)


class Found:
    """The URLs of a site, in the order in which they are found."""

    def __init__(self, limit: int, tell: Callable[[str], None]) -> None:
        self._limit, self._tell = limit, tell
        self._keys: set[bytes] = set()
        self.entries: list[dict[str, Any]] = []
        self.is_cut = False

    @property
    def is_full(self) -> bool:
        """Whether the limit is reached."""
        return bool(self._limit) and len(self.entries) >= self._limit

    def add(self, link: Link, source: str, found_on: str) -> None:
        """Add the URL of a link, unless it is there already."""
        if link.address.key in self._keys:
            return
        if self.is_full:
            self.is_cut = True
            return
        self._keys.add(link.address.key)
        lastmod = None if link.modified_at is None else iso(link.modified_at)
        url = link.address.url
        entry = {"url": url, "lastmod": lastmod, "source": source, "found_on": found_on}
        self.entries.append(entry)
        self._tell(url)


def _look(settings: Settings, plan: "Plan", session: "Session | None", found: Found) -> bool:
    """Fetch the sitemaps and the start of a crawl that is forgotten afterwards; whether all of
    them could be read."""
    from crawler import crawls

    with tempfile.TemporaryDirectory(prefix="crawler-map-", ignore_cleanup_errors=True) as folder:
        here = replace(settings, data_dir=Path(folder), raw="none")
        outcomes: list[Outcome] = []
        with _worker(settings, here, outcomes) as worker:
            job = crawls.begin(here, plan, session=session).job
            with LocalPersistenceManager(here.data_dir) as lpm:
                is_whole = _Walk(worker, lpm, outcomes, found).run(plan)
                report = lpm.receipt(job).crawl
    assert report is not None
    print_left_out(report, say)
    return is_whole and not report.bad


@contextmanager
def _worker(settings: Settings, here: Settings, outcomes: list[Outcome]) -> "Iterator[Worker]":
    """Run a worker in this process. Its permits are those of the stack, if one is up."""
    from crawler import logs
    from crawler.direct import shared_permit
    from crawler.orchestrator import terminated_by_signal
    from crawler.worker import Worker, tune_garbage_collection

    def note(task: Task, outcome: Outcome | None) -> None:
        if outcome is None:
            return
        outcomes.append(outcome)
        if outcome.status is TaskStatus.PENDING and outcome.charge:
            say(f"{task.url}: {outcome.error_message}; it is tried again")

    logs.setup("warning")
    tune_garbage_collection()
    with terminated_by_signal():
        worker = Worker(here, "cli", note, shared_permit(settings))
        try:
            yield worker
        finally:
            worker.stop()


class _Walk:
    """Fetches the sitemaps and then the start, one after the other, with what they redirect to."""

    def __init__(
        self, worker: "Worker", lpm: LocalPersistenceManager, outcomes: list[Outcome], found: Found
    ) -> None:
        self._worker, self._lpm, self._outcomes, self._found = worker, lpm, outcomes, found

    def run(self, plan: "Plan") -> bool:
        """Fetch them; whether each has ended."""
        starts = sorted(plan.starts, key=lambda start: start.link.role is not Role.SITEMAP)
        waiting = deque(start.link for start in starts)
        has_ended = True
        while waiting:
            if self._found.is_full:
                self._found.is_cut = True
                break
            link = waiting.popleft()
            for task in self._lpm.tasks.for_url(link.address.key):
                status = self._worker.scrape(task, SCRAPE_LIMIT_S)
                has_ended &= status not in (TaskStatus.PENDING, TaskStatus.PROCESSING)
                next_ = self._list(link, task)
                waiting.extendleft(reversed(next_))
            sys.stdout.flush()
        return has_ended

    def _list(self, link: Link, task: int) -> list[Link]:
        """List what a fetched page leads to; returns what is to be fetched next."""
        report, url = self._lpm.results.report(task), link.address.url
        links = [each for outcome in self._outcomes for each in outcome.links]
        self._outcomes.clear()
        if report["status"] == TaskStatus.COMPLETED:
            say(f"{url}: {counted(len(links), 'more link')}")
            self._found.add(link, "start", url)
        elif report["error_type"] == "no_sitemap":
            say(report["error_message"])
        else:
            is_told = report["error_type"] in ("sitemap", "no_robots_txt")
            reason = "" if is_told else f" ({report['error_type']})"
            say(f"{url}: {report['error_message'] or 'not done yet'}{reason}")
        source = "sitemap" if link.role is Role.SITEMAP else "link"
        for each in links:
            if each.role not in _FETCHED and each.method == GET:
                self._found.add(each, source, url)
        return [each for each in links if each.role in _FETCHED]


def _say_sum(found: Found) -> None:
    listed = [entry["source"] == "sitemap" for entry in found.entries]
    if not listed:
        say("no URL was found")
        return
    more = "; there are more, which --limit leaves out" if found.is_cut else ""
    say(f"{counted(len(listed), 'URL')}, {sum(listed):,} of them in sitemaps{more}")


def _print_url(url: str) -> None:
    print(url)


def _ignore(url: str) -> None:
    return
