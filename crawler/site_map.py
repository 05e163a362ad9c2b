"""Lists the URLs of a site without crawling it: those in its sitemaps, and the links of its start.

Only these pages are fetched, and nothing is stored. As a program, it lists them for the API: a page
that hangs the parser ends that process, never the server.
"""

import os
import shutil
import signal
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import replace

from crawler import config, crawls, logs, sites
from crawler.config import Settings
from crawler.crawls import Plan
from crawler.db.links import Start
from crawler.db.results import iso
from crawler.errors import CrawlerError
from crawler.logs import counted
from crawler.lpm import LocalPersistenceManager
from crawler.models import (
    GET,
    CrawlReport,
    JobOptions,
    Link,
    Outcome,
    Role,
    Task,
    TaskStatus,
)

if TYPE_CHECKING:
    from crawler.fetch.session import Session
    from crawler.worker import Worker

MAX_PAGE_S = 240.0
"""How long one page may take, with its waits for permits."""
_FETCHED = (Role.START, Role.SITEMAP)
"""All other links are listed and not fetched. A redirect keeps the role of its task."""

Tell = Callable[[str], None]


class Found:
    """The URLs of a site, in the order in which they are found."""

    def __init__(self, limit: int, tell: Tell = lambda url: None) -> None:
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


def look(
    settings: Settings, plan: Plan, session: "Session | None", found: Found, say: Tell
) -> tuple[bool, CrawlReport]:
    """Fetch the sitemaps and the start of a crawl that is forgotten afterwards; returns whether all
    of them could be read, and what was left out."""
    prefix = _folder_prefix(os.getpid())
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        here = replace(settings, data_dir=Path(folder), raw="none")
        outcomes: list[Outcome] = []
        with _worker(settings, here, outcomes, say) as worker:
            job = crawls.begin(here, plan, session=session).job
            with LocalPersistenceManager(here.data_dir) as lpm:
                is_whole = _Walk(worker, lpm, outcomes, found, say).run(plan.starts)
                report = lpm.receipt(job).crawl
    assert report is not None
    return is_whole and not report.bad, report


def remove_folders(pid: int) -> None:
    """Remove what a process that has ended could not: a page may have killed it."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_folder_prefix(pid)}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _folder_prefix(pid: int) -> str:
    return f"crawler-map-{pid}-"


@contextmanager
def _worker(
    settings: Settings, here: Settings, outcomes: list[Outcome], say: Tell
) -> "Iterator[Worker]":
    """Run a worker in this process. Its permits are those of the stack, if one is up."""
    from crawler.direct import shared_permit
    from crawler.worker import Worker, tune_garbage_collection

    def note(task: Task, outcome: Outcome | None) -> None:
        if outcome is None:
            return
        outcomes.append(outcome)
        if outcome.status is TaskStatus.PENDING and outcome.charge:
            say(f"{task.url}: {outcome.error_message}; it is tried again")

    logs.setup("warning")
    tune_garbage_collection()
    worker = Worker(here, "cli", note, shared_permit(settings))
    try:
        yield worker
    finally:
        worker.stop()


class _Walk:
    """Fetches the sitemaps and then the start, one after the other, with what they redirect to."""

    def __init__(
        self,
        worker: "Worker",
        lpm: LocalPersistenceManager,
        outcomes: list[Outcome],
        found: Found,
        say: Tell,
    ) -> None:
        self._worker, self._lpm, self._outcomes = worker, lpm, outcomes
        self._found, self._say = found, say

    def run(self, starts: Sequence[Start]) -> bool:
        """Fetch them; whether each has ended."""
        ordered = sorted(starts, key=lambda start: start.link.role is not Role.SITEMAP)
        waiting = deque(start.link for start in ordered)
        has_ended = True
        while waiting:
            if self._found.is_full:
                self._found.is_cut = True
                break
            link = waiting.popleft()
            for task in self._lpm.tasks.for_url(link.address.key):
                status = self._worker.scrape(task, MAX_PAGE_S)
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
            self._say(f"{url}: {counted(len(links), 'more link')}")
            self._found.add(link, "start", url)
        elif report["error_type"] == "no_sitemap":
            self._say(report["error_message"])
        else:
            is_told = report["error_type"] in ("sitemap", "no_robots_txt")
            reason = "" if is_told else f" ({report['error_type']})"
            self._say(f"{url}: {report['error_message'] or 'not done yet'}{reason}")
        source = "sitemap" if link.role is Role.SITEMAP else "link"
        for each in links:
            if each.role not in _FETCHED and each.method == GET:
                self._found.add(each, source, url)
        return [each for each in links if each.role in _FETCHED]


# As a program


class MapRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the server asks for. Nothing here may reach loopback."""

    url: str
    sitemap: Literal["include", "skip", "only"] = "include"
    subdomains: bool = False
    ignore_robots: bool = False
    limit: int = 0


class MapAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The URLs that were found, and why there may be more."""

    urls: list[str] = []
    is_whole: bool = False
    is_cut: bool = False
    notes: list[str] = []
    error: str = ""
    """Why there is no list."""


def answer(settings: Settings, asked: MapRequest) -> MapAnswer:
    """List the URLs of a site for a client of the API."""
    plan = crawls.plan(
        sites.load(settings.config_dir, settings.rate),
        [asked.url],
        JobOptions(ignore_robots=asked.ignore_robots, fetcher="http"),
        subdomains=asked.subdomains,
        depth=None,
        include=(),
        exclude=(),
        limit=0,  # `Found` has the limit, which is of URLs
        sitemap=asked.sitemap,
    )
    found, notes = Found(asked.limit), list[str]()
    is_whole, _ = look(settings, crawls.without_loopback(plan), None, found, notes.append)
    urls = [entry["url"] for entry in found.entries]
    return MapAnswer(urls=urls, is_whole=is_whole, is_cut=found.is_cut, notes=notes)


def main() -> None:
    """Read a `MapRequest` as one line of JSON, and write a `MapAnswer`."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    asked = msgspec.json.decode(sys.stdin.buffer.readline(), type=MapRequest)
    threading.Thread(target=_end_with_server, daemon=True).start()
    try:
        found = answer(config.load(), asked)
    except CrawlerError as error:
        found = MapAnswer(error=str(error))
    sys.stdout.buffer.write(msgspec.json.encode(found))


def _end_with_server() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
