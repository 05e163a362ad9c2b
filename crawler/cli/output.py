"""What commands print: facts on stdout, progress and remarks on stderr."""

import contextlib
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from crawler import config, times
from crawler.config import program
from crawler.db.gateway import Delivery
from crawler.errors import UsageError
from crawler.forecast import STILL_S, Trend, slip
from crawler.logs import counted, leave_lost_terminal, printable, shortened, without_figures
from crawler.lpm import LocalPersistenceManager
from crawler.models import CrawlReport, Job, Receipt, TaskCounts
from crawler.times import duration

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

UNACCOUNTED = 5
"""Exit code if tasks are open, or if a job's counts do not add up."""
_MAX_MISSING_FIELDS = 10
_MAX_EXAMPLES = 5
_EXPECTED = {
    "sitemap": ("sitemap", "read"),
    "no_sitemap": ("sitemap", "missing"),
    "redirected": ("redirect", "followed"),
}
"""Why tasks of a crawl leave no result, although all is well."""
GUARDS = {
    "calendar": "left out, far away in a calendar",
    "depth": "left out, further from a start than --depth",
    "file_type": "left out, to files that are no pages",
    "limit": "left out, because the crawl has its --limit of pages",
    "links_per_page": "left out, above the maximum of a page",
    "nofollow": "left out, because their page asks for it",
    "pagination": "left out, because a list repeats itself or has its maximum of pages",
    "repeated_path": "left out, whose path goes in circles",
    "session_parameter": "followed without the session in their URL",
    "site_limit": "left out, because the site has its limit of pages",
    "sitemaps": "left out, because the crawl has its maximum of sitemaps",
    "sitemap_levels": "left out, in sitemaps nested too deep",
    "sitemap_size": "cut short: a sitemap with too many URLs",
    "url_length": "left out, with a very long URL",
}
"""What each guard of a crawl does with links."""
RATE_WINDOW_S = 10.0
"""The shown rate is the average over this time."""


def print_json(facts: Any) -> None:
    """Print facts as indented JSON."""
    print(msgspec.json.format(msgspec.json.encode(facts), indent=2).decode())


def say(text: str) -> None:
    """Print a line on stderr. Work goes on if the terminal is gone."""
    try:
        print(printable(text), file=sys.stderr, flush=True)
    except OSError:
        leave_lost_terminal()


def size_text(count: float) -> str:
    """Return a number of bytes as text, such as `1.5 MB`."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB"):
        count /= 1000
        if count < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} GB"


def require_store(data_dir: Path) -> None:
    """Raise `UsageError` for a folder without a store.

    Opening it would create an empty one, whose zeros look like an answer.
    """
    if not LocalPersistenceManager.exists(data_dir):
        raise UsageError(
            f"there is no store in {data_dir.absolute()}; --data-dir names another folder"
        )


@contextlib.contextmanager
def existing_store() -> Iterator[LocalPersistenceManager]:
    """Open the store of the data folder; raises `UsageError` if there is none."""
    data_dir = config.load().data_dir
    require_store(data_dir)
    lpm = LocalPersistenceManager(data_dir)
    with contextlib.closing(lpm), lpm.errors():
        yield lpm


def find_job(lpm: LocalPersistenceManager, name: str) -> Job:
    """Find a job by its name or its file's name; say which one if several jobs fit."""
    job = lpm.find_job(name)
    if job.name != name:
        say(f"{name} was imported as {job_label(job)}")
    if later := lpm.jobs.later_namesakes(job):
        say(f"this is {job_label(job)}; later files of the same name made {newest_label(later)}")
    return job


def find_job_if_named(lpm: LocalPersistenceManager, name: str | None) -> Job | None:
    """Find the job of an optional `--job`."""
    if name:
        return find_job(lpm, name)
    return None


def job_label(job: Job) -> str:
    """Return a job's name and its time of import, which differs between jobs of one file name."""
    tz = times.zone(config.load().timezone)
    return f"{job.name} (imported {times.show(job.created_at, time.time(), tz)})"


def newest_label(jobs: list[Job]) -> str:
    """Return the label of the newest job, and the number of the others."""
    label = job_label(jobs[-1])
    if len(jobs) > 1:
        label += f" and {counted(len(jobs) - 1, 'more job')}"
    return label


def task_label(task: dict[str, Any]) -> str:
    """Return a task's URL, after its id at the Gateway if it has one."""
    return printable(" ".join(name for name in (task["their_id"], task["url"]) if name))


def delivery_summary(found: Delivery) -> str:
    """Say how many results were archived, delivered or rejected, or wait for the Gateway."""
    parts = (
        (found.archived, "were archived"),
        (found.synced, "were delivered"),
        (
            found.ready,
            f"wait for the Gateway ({program()} ondemand, or {program()} sync push)",
        ),
        (found.rejected, f"were rejected by it ({program()} sync rejected)"),
    )
    return ", ".join(f"{count:,} {what}" for count, what in parts if count)


def print_reasons(
    reasons: dict[str, dict[str, int]], examples: list[dict[str, Any]], job: Job | None
) -> None:
    """Print why tasks ended without a result, with examples of those that should have one."""
    more, expected = 0, []
    for status, counts in reasons.items():
        for reason, count in counts.items():
            if status == "skipped" and reason in _EXPECTED:
                what, end = _EXPECTED[reason]
                expected.append(f"{counted(count, what)} {end}")
            else:
                print(f"  {count:,} {status}: {reason}")
                more += count
    if expected:
        print(f"  {', '.join(expected)}")
    examples = [task for task in examples if task["reason"] not in _EXPECTED][:_MAX_EXAMPLES]
    for task in examples:
        print(f"    {task_label(task)}: {printable(task['message'] or task['reason'] or '')}")
    more -= len(examples)
    if more > 0 and examples:
        command = f"{program()} tasks list"
        command += "".join(f" --status {status}" for status in reasons)
        if job:
            command += f" --job {shlex.quote(job.name)}"
        print(f"    … and {more:,} more: {printable(command)}")


def print_receipt(receipt: Receipt) -> None:
    """Print the sums that must come out, and the checksum of the tasks."""
    books = receipt.books
    states = ("completed", "failed", "skipped", "expired", "pending", "processing")
    counts = [f"{getattr(books, state):,} {state}" for state in states if getattr(books, state)]
    new = receipt.rows - receipt.known - receipt.rejected
    rows = f"{new:,} new + {receipt.known:,} known + {receipt.rejected:,} rejected"
    print(f"Receipt: {receipt.rows:,} rows = {rows}")
    print(f"  {books.accepted:,} tasks = {' + '.join(counts) or '0'}")
    print_invalid(receipt)
    print(f"  sha256 {receipt.checksum}")
    for missing in receipt.accepted:
        print(f"  accepted: {printable(missing)}")
    for problem in receipt.problems:
        print(f"  UNACCOUNTED: {printable(problem)}")


def print_left_out(crawled: CrawlReport, tell: Callable[[str], None] = print) -> None:
    """Print which guards of a crawl acted, on how many links."""
    for each in crawled.left_out:
        why = GUARDS.get(each.guard, each.guard.replace("_", " "))
        example = shortened(printable(each.example))
        tell(f"  guard {each.guard}: {counted(each.links, 'link')} {why}: {example}")


def print_invalid(receipt: Receipt) -> None:
    """Print how many records are invalid, and why."""
    if receipt.invalid:
        print(f"  {receipt.invalid:,} of {receipt.books.completed:,} records are invalid")
    print_missing_fields(receipt)
    lacking = {f"{field.name} is missing" for field in receipt.missing_fields}
    others = [each for each in receipt.invalid_reasons.items() if each[0] not in lacking]
    for reason, records in others[:_MAX_MISSING_FIELDS]:
        print(f"  {records:,} invalid: {printable(reason)}")
    more = len(others) - _MAX_MISSING_FIELDS
    if more > 0:
        print(f"  … and {counted(more, 'more reason')}")


def print_missing_fields(receipt: Receipt) -> None:
    """Print the required fields that collected pages lack."""
    for field in receipt.missing_fields[:_MAX_MISSING_FIELDS]:
        print(f"  {printable(field.name)} is missing on {field.pages:,} of {field.of:,} pages")
    more = len(receipt.missing_fields) - _MAX_MISSING_FIELDS
    if more > 0:
        print(f"  … and {counted(more, 'more field')}")


def warn_incomplete(lpm: LocalPersistenceManager, job: Job | None) -> list[str]:
    """Warn on stderr if a job, or any job, is not complete; returns the unaccounted tasks.

    Call it before results are read. A task that ends in between may be missing in the output, and
    is no longer open afterwards.
    """
    with lpm.errors():
        jobs = [job] if job else lpm.jobs.all()
        problems = [
            f"{each.name}: {problem}" for each in jobs for problem in lpm.receipt(each).problems
        ]
        open_tasks = lpm.counts.progress(job).open
    for problem in problems:
        say(f"UNACCOUNTED: {problem}")
    if open_tasks:
        say(f"{open_tasks:,} tasks are still open: their results may be missing")
    if not lpm.can_write:
        say("the store cannot be written: `why` will not show this output")
    return problems


def check_reason(lpm: LocalPersistenceManager, reason: str) -> None:
    """Raise `UsageError` for a reason that no task has, which is probably a typing error."""
    reasons = lpm.counts.all_reasons()
    if reason not in reasons:
        there = ", ".join(f"{name} ({count:,})" for name, count in reasons.items()) or "none"
        raise UsageError(f"no task has the reason {reason!r}; known reasons: {there}")


class CrawlProgress:
    """Live progress of a crawl: a bar on a terminal, otherwise a line every few seconds.

    It also warns when nothing moves, and when the deadline will be missed.
    """

    def __init__(
        self, job: Job | None, every_s: float = 5.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._job = job
        self._title = printable(job.name if job else "all jobs")
        self._every_s, self._clock = every_s, clock
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._recent, self._trend = Trend(RATE_WINDOW_S), Trend()
        self._printed_at = clock()
        self._line = self._trouble = self._late = ""

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn
            from rich.table import Column

            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[line]}", table_column=Column(overflow="fold")),
            )
            self._bar = Progress(*columns, console=Console(stderr=True), refresh_per_second=8)
            self._task = self._bar.add_task(self._title, total=None, line="")
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar:
            with contextlib.suppress(OSError):  # the terminal is gone
                self._bar.stop()
        elif self._line:
            say(f"{self._title}: {self._line}")

    def show(self, books: TaskCounts, trouble: str = "", forbidden: int = 0) -> None:
        """Show the counts of now.

        `trouble` is what stops the crawl; `forbidden` counts the tasks that robots.txt forbids.
        """
        done, now = books.accepted - books.open, self._clock()
        self._recent.add(now, done)
        if trouble and self._recent.still_s(now) >= STILL_S:
            self._trend = Trend()  # pages that come meanwhile say nothing about the rate afterwards
        self._trend.add(now, done)
        if self._job and self._job.options.crawl:
            counts = (
                f"{books.accepted:,} found, {books.completed:,} fetched, {books.failed:,} failed"
            )
        else:
            counts = f"{done:,}/{books.accepted:,} done{_without_result(books, forbidden)}"
        self._line = f"{counts}, {self._pace(books, trouble, now)}"
        if self._bar and self._task is not None:
            total = books.accepted or None
            self._bar.update(self._task, total=total, completed=done, line=self._line)
        elif now - self._printed_at >= self._every_s:
            self._printed_at = now
            say(f"{self._title}: {self._line}")
        self._warn(self._trouble, trouble)
        self._trouble = trouble
        if self._job:
            tz = times.zone(config.load().timezone)
            late = slip(self._job, books.open, self._trend.measured, time.time(), tz) or ""
            self._warn(self._late, late)
            self._late = late

    def _pace(self, books: TaskCounts, trouble: str, now: float) -> str:
        """Return the rate and the time left, or what stops the crawl."""
        rate = self._recent.rate
        pace = f"{rate:.0f}/s"
        if trouble:
            reason = shortened(trouble.partition(";")[0])
            if self._recent.still_s(now) >= STILL_S:
                return reason
            return f"{pace}, {reason}"
        if rate > 0 and books.open:
            pace += f", about {duration(books.open / rate)} left"
        return pace

    def _warn(self, before: str, warning: str) -> None:
        """Print a warning when it begins, changes or ends. Changed figures alone do not count."""
        if without_figures(warning) == without_figures(before):
            return
        if warning:
            self._print(f"{self._title}: warning: {warning}")
        else:
            self._print(f"{self._title}: resolved: {shortened(before.partition(';')[0])}")

    def _print(self, text: str) -> None:
        if self._bar:
            with contextlib.suppress(OSError):  # the terminal is gone
                self._bar.console.print(text, highlight=False, markup=False)
        else:
            say(text)


def _without_result(books: TaskCounts, forbidden: int) -> str:
    """Count the tasks that ended without a result."""
    states = ("failed", "skipped", "expired")
    text = "".join(f", {getattr(books, s):,} {s}" for s in states if getattr(books, s))
    if forbidden and not books.expired:
        text += f" ({forbidden:,} by robots.txt)"
    return text
