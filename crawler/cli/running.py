"""Runs a stack until jobs are done, shows their progress, and reports what came of them."""

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from crawler import times
from crawler.cli.output import (
    UNACCOUNTED,
    conflicts_text,
    counts_text,
    delivery_summary,
    print_invalid,
    print_json,
    print_left_out,
    print_line,
    print_reasons,
    print_receipt,
    print_rendered,
    say,
)
from crawler.cli.progress import CrawlProgress, JobProgress
from crawler.config import Settings, program
from crawler.db.jobs import mend
from crawler.errors import StoreError
from crawler.logs import counted, printable
from crawler.lpm import LocalPersistenceManager
from crawler.models import CrawlReport, Job, Receipt, TaskCounts
from crawler.waits import StallMonitor, WaitFinder

STACK_CHANGE_LIMIT_S = 30.0
"""How long to wait for another process that is starting or stopping a stack."""
STACK_GONE_S = 5.0
"""How long a joined stack may be down before it counts as ended: containers restart."""
POLL_INTERVAL_S = 0.3


class _StackGone(Exception):
    """The joined stack ended before the jobs."""


class Followed(NamedTuple):
    """A job that a command waits for, or all jobs (None), and the title of its progress."""

    title: str
    job: Job | None


class Series:
    """What a command waits for: jobs that have begun, and others that begin one by one."""

    def __init__(
        self,
        begun: Iterable[Followed],
        upcoming: Iterator[Followed] | None = None,
        waiting: int = 0,
        table: bool = False,
    ) -> None:
        self.begun = list(begun)
        self.waiting = waiting
        """Jobs that have not begun."""
        self.table = table
        """Whether progress is a table."""
        self._upcoming = upcoming or iter(())

    @property
    def only(self) -> Followed | None:
        """The job, or all jobs, if nothing else is waited for."""
        if len(self.begun) + self.waiting == 1 and self.begun:
            return self.begun[0]
        return None

    def begin_next(self) -> bool:
        """Begin the next job; returns False if there is none."""
        following = next(self._upcoming, None)
        if following is None:
            return False
        self.begun.append(following)
        self.waiting -= 1
        return True


def run_job(settings: Settings, workers: int | None, job: Job | None) -> TaskCounts:
    """Run a stack until the job, or every job, is done; show progress."""
    title = job.name if job else "all jobs"
    [books] = run_series(settings, workers, Series([Followed(title, job)]))
    return books


def run_series(settings: Settings, workers: int | None, series: Series) -> list[TaskCounts]:
    """Run a stack until all jobs of a series are done; show progress."""
    from crawler.orchestrator import end_orphans

    if left := end_orphans(settings.data_dir):
        say(f"ended {left} processes of a stack whose supervisor is dead")
    fetched = False
    while True:
        if not _has_more(settings, series):
            if not fetched:
                _say_finished(settings, series)
            return follow(settings, series)
        if not fetched:
            _say_others(settings, series)
        fetched, joined = True, False
        try:
            browsers = _browsers_for(settings, series)
            with (
                running_stack(settings, workers, browsers) as joined,
                contextlib.suppress(_StackGone),
            ):
                return follow(settings, series, joined)
        except (KeyboardInterrupt, SystemExit):
            _say_left(settings, series, joined)
            raise
        what = "this job was" if series.only else "these jobs were"
        say(f"the stack ended before {what} done")


def _browsers_for(settings: Settings, series: Series) -> int:
    """Return how many processes that render pages a stack is started with: one where a job or a
    site asks for it."""
    from crawler import sites
    from crawler.fetch.browser_process import lacking

    fetchers = {each.job.options.fetcher for each in series.begun if each.job}
    fetchers |= sites.load(settings.config_dir, settings.rate).fetchers
    if fetchers <= {None, "http"} or lacking(settings.browser_path):
        return 0
    return 1


def _count(lpm: LocalPersistenceManager, followed: Sequence[Followed]) -> list[TaskCounts]:
    """Count the tasks of each job."""
    jobs = [each.job for each in followed if each.job]
    if len(jobs) == len(followed) > 1:
        return lpm.counts.progress_of(jobs)
    return [lpm.counts.progress(each.job) for each in followed]


def _say_others(settings: Settings, series: Series) -> None:
    """Say that the workers also fetch the open tasks of other jobs."""
    if series.only and not series.only.job:
        return
    with LocalPersistenceManager(settings.data_dir) as lpm:
        own = sum(books.open for books in _count(lpm, series.begun))
        others = lpm.counts.progress(None).open - own
    if others > 0:
        say(f"other jobs have {counted(others, 'open task')}, which are fetched, too")


def _say_finished(settings: Settings, series: Series) -> None:
    """Say that there was nothing to do, and since when."""
    only = series.only
    if not only or not only.job:
        say("no task is open: nothing was fetched")
        return
    with LocalPersistenceManager(settings.data_dir) as lpm:
        ended_at = lpm.jobs.ended_at(only.job)
    if ended_at:
        when = times.show(ended_at, time.time(), times.zone(settings.timezone))
        say(f"job {only.job.name} was already done ({when}): nothing was fetched")
    else:
        say(f"job {only.job.name} has no tasks: nothing was fetched")


def _say_left(settings: Settings, series: Series, joined: bool) -> None:
    """Say how much is done when a crawl is interrupted; a stack that it has joined goes on."""
    lpm = LocalPersistenceManager(settings.data_dir)
    with contextlib.suppress(StoreError), lpm:
        found = _count(lpm, series.begun)
        accepted, open_ = sum(each.accepted for each in found), sum(each.open for each in found)
        verb = "is" if open_ == 1 else "are"
        left = f"{open_:,} {verb} left"
        if joined and open_:
            left += f"; the stack that is up goes on ({program()} down stops it)"
        say(f"{accepted - open_:,} of {accepted:,} are done, {left}")
        if not series.only:
            ended = sum(not each.open for each in found)
            all_ = counted(len(found) + series.waiting, "site")
            say(f"{ended:,} of {all_} are done; the same command continues")


def _has_more(settings: Settings, series: Series) -> bool:
    """Return whether tasks are open, or another process is importing some.

    Jobs that are to begin do so here until one has something open.
    """
    with LocalPersistenceManager(settings.data_dir) as lpm:
        if _is_open(lpm, series.begun):
            return True
    while series.begin_next():
        with LocalPersistenceManager(settings.data_dir) as lpm:
            if _is_open(lpm, series.begun[-1:]):
                return True
    return False


def _is_open(lpm: LocalPersistenceManager, followed: Sequence[Followed]) -> bool:
    if any(books.open for books in _count(lpm, followed)):
        return True
    return any(lpm.is_importing(each.job) for each in followed)


@contextlib.contextmanager
def running_stack(settings: Settings, workers: int | None, browsers: int = 0) -> Iterator[bool]:
    """Join the stack that is up (yields True), or run an own one (yields False)."""
    from crawler.cli.commands.stack import started
    from crawler.errors import StackIsUp
    from crawler.orchestrator import Orchestrator, terminated_by_signal
    from crawler.stack import read_stack

    with contextlib.ExitStack() as exits:
        exits.enter_context(terminated_by_signal())
        stack: Orchestrator | None = None
        end = time.monotonic() + STACK_CHANGE_LIMIT_S
        while stack is None:
            if read_stack(settings.data_dir).up:
                say("a stack is up already: joining it")
                yield True
                return
            try:
                own = Orchestrator(settings, workers, beat=False, join=False, browsers=browsers)
                stack = exits.enter_context(own)
            except StackIsUp:  # another process is starting or stopping one
                if time.monotonic() > end or read_stack(settings.data_dir).unreadable:
                    raise
                time.sleep(0.1)
        say("starting Redis and workers …")
        with started(stack):
            yield False


def follow(settings: Settings, series: Series, joined: bool = False) -> list[TaskCounts]:
    """Show progress until all jobs of a series are done; returns the counts of each."""
    from crawler.stack import read_stack

    lpm = LocalPersistenceManager(settings.data_dir)
    with CrawlProgress(table=series.table) as progress, lpm:
        observer = _Observer(settings, lpm, series, progress)
        seen = time.monotonic()
        while True:
            began = time.monotonic()
            if observer.look() and not series.begin_next():
                return observer.books
            if not joined or read_stack(settings.data_dir).up:
                seen = time.monotonic()
            elif time.monotonic() - seen > STACK_GONE_S:
                raise _StackGone
            # Counting a million tasks takes long; spend at most a tenth of the time on it.
            time.sleep(max(POLL_INTERVAL_S, 10 * (time.monotonic() - began)))


class _Observer:
    """Counts the tasks of a series again and again, and shows them.

    A job that is done is not counted again, except when all are.
    """

    def __init__(
        self,
        settings: Settings,
        lpm: LocalPersistenceManager,
        series: Series,
        progress: CrawlProgress,
    ) -> None:
        self._lpm, self._series, self._progress = lpm, series, progress
        self._finder = WaitFinder(settings, lpm)
        self._jobs: list[JobProgress] = []
        self._monitors: dict[int, StallMonitor] = {}

    @property
    def books(self) -> list[TaskCounts]:
        """The last counts of each job."""
        return [each.books for each in self._jobs]

    def look(self) -> bool:
        """Show the counts of now; returns whether all jobs that have begun are done."""
        for each in self._series.begun[len(self._jobs) :]:
            self._jobs.append(self._progress.add(*each))
        open_ = [each for each in self._jobs if not each.is_done]
        self._update(open_)
        if self._is_done and not self._series.waiting and len(open_) < len(self._jobs):
            self._update(self._jobs)  # somebody may have retried tasks of those that were done
        self._progress.show(self._series.waiting)
        return self._is_done

    @property
    def _is_done(self) -> bool:
        return all(each.is_done for each in self._jobs)

    def _update(self, jobs: Sequence[JobProgress]) -> None:
        shown = set(map(id, self._progress.choose()))
        found = _count(self._lpm, [Followed(each.title, each.job) for each in jobs])
        if self._series.table:
            self._count_listings(jobs)
        for each, books in zip(jobs, found, strict=True):
            is_done = not books.open and not self._lpm.is_importing(each.job)
            forbidden = 0
            if books.skipped and not each.is_crawl:
                forbidden = self._lpm.counts.forbidden_by_robots(each.job)
            trouble = self._trouble(each, books) if id(each) in shown or is_done else None
            each.update(books, trouble, forbidden, is_done)
        if any(each.is_done for each in jobs):
            # The maintainer does this too, but may be stopped before it gets to it.
            self._lpm.jobs.finalise(self._lpm.now())

    def _trouble(self, job: JobProgress, books: TaskCounts) -> str:
        """Return what a job waits for; to search for it takes some time."""
        monitor = self._monitors.get(id(job))
        if monitor is None:
            monitor = self._monitors[id(job)] = StallMonitor(self._finder, job.job)
        return monitor.reason(books)

    def _count_listings(self, jobs: Sequence[JobProgress]) -> None:
        crawls = [each.job for each in jobs if each.job]
        listings = self._lpm.counts.listings_of(crawls)
        for each in jobs:
            if each.job:
                each.listings = listings.get(each.job.id, 0)


def report(settings: Settings, job: Job | None, as_json: bool) -> int:
    """Print the summary of a job, or of all jobs; returns the exit code.

    Result files are safe on disk before they are reported. Text and exit code come from the same
    counts: rows may have been added after the crawl.
    """
    with LocalPersistenceManager(settings.data_dir) as lpm:
        lpm.files.secure()
        if job:
            return _report_job(lpm, job, as_json)
        return _report_all(lpm, as_json)


def _report_job(lpm: LocalPersistenceManager, job: Job, as_json: bool) -> int:
    receipt = lpm.receipt(lpm.jobs.named(job.name))
    books, crawled = receipt.books, receipt.crawl
    examples, places = lpm.counts.examples(job), results_place(lpm, job)
    changes, conflicts = lpm.listings.changes_of_job(job), lpm.listings.conflicts(job)
    if not books.open:
        lpm.jobs.mark_reported(job)
    if as_json:
        facts = {"listing_changes": changes, "listing_conflicts": conflicts}
        print_json(msgspec.structs.asdict(receipt) | facts)
    else:
        same = f", {receipt.unchanged:,} unchanged" if receipt.unchanged else ""
        print(f"{_collected(books, crawled)} collected{same}; {places}")
        print_rendered(lpm.counts.in_browsers(job))
        if any(changes.values()):
            print(f"  listings: {counts_text(changes)}")
        for each in conflicts:
            print_line(f"  {conflicts_text(each)}")
        print_reasons(receipt.reasons, examples, job)
        if crawled:
            print_left_out(crawled)
        print_receipt(receipt)
        _print_open(books)
    return exit_code(receipt)


def _collected(books: TaskCounts, crawled: CrawlReport | None) -> str:
    """Say how many pages a job has brought, and how many files that records name."""
    if crawled is None:
        return f"{books.completed:,} of {books.accepted:,} pages"
    collected = books.completed - crawled.files_collected
    line = f"{collected:,} of {crawled.pages:,} pages"
    if crawled.files:
        line += f" and {crawled.files_collected:,} of {counted(crawled.files, 'file')}"
    return line


def exit_code(receipt: Receipt) -> int:
    """Return the exit code of a command that reports this job."""
    books, crawled = receipt.books, receipt.crawl
    if receipt.problems or books.open:
        return UNACCOUNTED
    if receipt.invalid:
        return 1
    if crawled:
        return int(crawled.bad > 0 or receipt.rejected > 0 or not books.completed)
    return int(books.completed != books.accepted or receipt.rejected > 0)


def _report_all(lpm: LocalPersistenceManager, as_json: bool) -> int:
    books, reasons = lpm.counts.progress(None), lpm.counts.reasons(None)
    examples, places = lpm.counts.examples(None), results_place(lpm, None)
    receipts = [lpm.receipt(job) for job in lpm.jobs.all()]
    problems = _all_problems(lpm, receipts)
    if as_json:
        print_json({"job": None, "books": books, "reasons": reasons, "problems": problems})
    else:
        print(f"{books.completed:,} of {books.accepted:,} pages collected; {places}")
        print_reasons(reasons, examples, None)
        for receipt in receipts:
            print_invalid(receipt)
        for problem in problems:
            print(f"UNACCOUNTED: {printable(problem)}")
        _print_open(books)
    if problems or books.open:
        return UNACCOUNTED
    invalid = any(receipt.invalid for receipt in receipts)
    return int(books.completed != books.accepted or invalid)


def _all_problems(lpm: LocalPersistenceManager, receipts: list[Receipt]) -> list[str]:
    """Return what does not add up, in any job or in the store."""
    problems = [f"{receipt.job}: {what}" for receipt in receipts for what in receipt.problems]
    problems += [f"{fault}; {mend()}" for fault in lpm.jobs.index_faults()]
    problems += [f"{what}; {program()} doctor tells more" for what in lpm.pages.missing()]
    return problems


def results_place(lpm: LocalPersistenceManager, job: Job | None) -> str:
    """Say where the results are."""
    delivery = lpm.outbox.delivery(job)
    moved = delivery_summary(delivery)
    if moved:
        return f"{delivery.pending:,} results in {lpm.pending}/; {moved}"
    return f"results in {lpm.pending}/"


def _print_open(books: TaskCounts) -> None:
    if books.open:
        more = f"continue with: {program()} resume"
        print(f"{books.open:,} tasks were added meanwhile and are still open; {more}")
