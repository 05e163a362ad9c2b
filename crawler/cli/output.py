"""What commands print: facts on stdout, progress on stderr."""

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
from crawler.models import Books, Job, Receipt
from crawler.times import duration

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


_MOST_FIELDS = 10
UNACCOUNTED = 5
"""The exit code where the books do not add up, or do not yet."""


def require_store(data_dir: Path) -> None:
    """Refuse a folder without a store: zeros would look like those of an empty one, and to open it
    would make one."""
    if not LocalPersistenceManager.exists(data_dir):
        raise UsageError(
            f"there is no store in {data_dir.absolute()}; --data-dir names another folder"
        )


@contextlib.contextmanager
def stored() -> Iterator[LocalPersistenceManager]:
    """The store of this command's data folder, which must be there."""
    data_dir = config.load().data_dir
    require_store(data_dir)
    lpm = LocalPersistenceManager(data_dir)
    with contextlib.closing(lpm), lpm.errors():
        yield lpm


def job_of(lpm: LocalPersistenceManager, name: str) -> Job:
    """The job that a person means; says on stderr which one that is where others came from files of
    its name."""
    job = lpm.find_job(name)
    if job.name != name:
        say(f"{name} was read into {imported(job)}")
    if later := lpm.jobs.later_namesakes(job):
        say(f"this is {imported(job)}; later files of the same name made {newest(later)}")
    return job


def imported(job: Job) -> str:
    """A job by its name and its day, which tells it from others of the same file's name."""
    return f"{job.name} (imported {times.show(job.created_at, time.time(), times.zone(config.load().timezone))})"


def newest(jobs: list[Job]) -> str:
    """The newest of some jobs, and how many more there are."""
    more = f" and {counted(len(jobs) - 1, 'more job')}" if len(jobs) > 1 else ""
    return f"{imported(jobs[-1])}{more}"


def print_json(facts: Any) -> None:
    """Facts for a program."""
    print(msgspec.json.format(msgspec.json.encode(facts), indent=2).decode())


def say(text: str) -> None:
    """A line for a person, on stderr; where nobody reads it any more, the work goes on."""
    try:
        print(printable(text), file=sys.stderr, flush=True)
    except OSError:
        leave_lost_terminal()


def size_of(count: float) -> str:
    """Bytes as a person says them."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.{0 if unit == 'B' else 1}f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def name_of(task: dict[str, Any]) -> str:
    """What to call a task by: a Gateway's id, where it has one, and its URL."""
    return printable(" ".join(name for name in (task["their_id"], task["url"]) if name))


def delivery_of(found: Delivery) -> str:
    """What became of results that are no longer in pending/, or are to leave it; empty where there
    are none."""
    parts = [f"{found.archived:,} were archived"] if found.archived else []
    if found.synced:
        parts.append(f"{found.synced:,} were delivered")
    if found.ready:
        parts.append(
            f"{found.ready:,} wait for the Gateway ({program()} ondemand, or {program()} sync push)"
        )
    if found.rejected:
        parts.append(f"{found.rejected:,} were rejected by it ({program()} sync rejected)")
    return ", ".join(parts)


def print_reasons(
    reasons: dict[str, dict[str, int]], examples: list[dict[str, Any]], job: Job | None
) -> None:
    """Why tasks ended without a result, with some of them."""
    for status, counts in reasons.items():
        for reason, count in counts.items():
            print(f"  {count:,} {status}: {reason}")
    for task in examples:
        print(f"    {name_of(task)}: {printable(task['message'] or task['reason'] or '')}")
    more = sum(sum(counts.values()) for counts in reasons.values()) - len(examples)
    if more > 0 and examples:
        which = "".join(f" --status {status}" for status in reasons)
        which += f" --job {shlex.quote(job.name)}" if job else ""
        print(f"    … and {more:,} more: {program()} tasks list{printable(which)}")


def print_receipt(receipt: Receipt) -> None:
    """The sum that must come out, and the checksum of what it counts."""
    books = receipt.books
    states = ("completed", "failed", "skipped", "expired", "pending", "processing")
    parts = [f"{getattr(books, state):,} {state}" for state in states if getattr(books, state)]
    new = receipt.rows - receipt.known - receipt.rejected
    print(
        f"Receipt: {receipt.rows:,} rows = {new:,} new + {receipt.known:,} known + {receipt.rejected:,} rejected"
    )
    print(f"  {books.accepted:,} tasks = {' + '.join(parts) or '0'}")
    print_missing_fields(receipt)
    print(f"  sha256 {receipt.checksum}")
    for missing in receipt.accepted:
        print(f"  accepted: {printable(missing)}")
    for problem in receipt.problems:
        print(f"  UNACCOUNTED: {printable(problem)}")


def print_missing_fields(receipt: Receipt) -> None:
    """The required fields that pages lack: pages that were collected may still say nothing of what
    was wanted."""
    for field in receipt.missing_fields[:_MOST_FIELDS]:
        print(f"  {printable(field.name)} is missing on {field.pages:,} of {field.of:,} pages")
    if (more := len(receipt.missing_fields) - _MOST_FIELDS) > 0:
        print(f"  … and {counted(more, 'more field')}")


def tell_missing(lpm: LocalPersistenceManager, job: Job | None) -> list[str]:
    """Say on stderr what a job, or any of all, lacks for what is handed over; returns what nobody
    accounts for.

    To be asked before results are read: what ends meanwhile may be missing there, and is not open
    afterwards.
    """
    with lpm.errors():
        jobs = [job] if job else lpm.jobs.all()
        problems = [
            f"{each.name}: {problem}" for each in jobs for problem in lpm.receipt(each).problems
        ]
        open_ = lpm.counts.progress(job).open
    for problem in problems:
        say(f"UNACCOUNTED: {problem}")
    if open_:
        say(f"{open_:,} tasks are still open: their results may not be in it")
    if not lpm.can_write:
        say("the store cannot be written: `why` will not show what was handed over")
    return problems


def check_reason(lpm: LocalPersistenceManager, reason: str) -> None:
    """Refuse a reason that no task has: a slip of the finger would look like a job without such
    failures."""
    reasons = lpm.counts.all_reasons()
    if reason not in reasons:
        there = ", ".join(f"{name} ({count:,})" for name, count in reasons.items()) or "none"
        raise UsageError(f"no task has the reason {reason!r}; the reasons there are: {there}")


RATE_S = 10.0
"""How far back the rate goes that is shown."""


class BooksProgress:
    """Live progress of a crawl: a bar on a terminal, else a line now and then; a warning where a
    deadline slips."""

    def __init__(
        self, job: Job | None, every_s: float = 5.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._job = job
        self._title = printable(job.name if job else "all jobs")
        self._every_s, self._clock = every_s, clock
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._recent, self._trend = Trend(RATE_S), Trend()
        self._said = clock()
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

    def show(self, books: Books, trouble: str = "", forbidden: int = 0) -> None:
        """Show where the books stand; `trouble` is what keeps them from moving, `forbidden` what
        robots.txt refused."""
        done, now = books.accepted - books.open, self._clock()
        self._recent.add(now, done)
        if trouble and self._recent.still_s(now) >= STILL_S:
            self._trend = Trend()  # what comes meanwhile says nothing about the time afterwards
        self._trend.add(now, done)
        bad = "".join(
            f", {getattr(books, s):,} {s}"
            for s in ("failed", "skipped", "expired")
            if getattr(books, s)
        )
        bad += f" ({forbidden:,} by robots.txt)" if forbidden and not books.expired else ""
        self._line = f"{done:,}/{books.accepted:,} done{bad}, {self._pace(books, trouble, now)}"
        if self._bar and self._task is not None:
            self._bar.update(
                self._task, total=books.accepted or None, completed=done, line=self._line
            )
        elif now - self._said >= self._every_s:
            self._said = now
            say(f"{self._title}: {self._line}")
        self._trouble = self._warned(self._trouble, trouble)
        if self._job:
            tz = times.zone(config.load().timezone)
            late = slip(self._job, books.open, self._trend.measured, time.time(), tz) or ""
            self._late = self._warned(self._late, late)

    def _pace(self, books: Books, trouble: str, now: float) -> str:
        """The rate and the time left; where something keeps the books from moving, that instead."""
        rate = self._recent.rate
        if trouble:
            reason = shortened(trouble.partition(";")[0])
            return reason if self._recent.still_s(now) >= STILL_S else f"{rate:.0f}/s, {reason}"
        left = f", about {duration(books.open / rate)} left" if rate > 0 and books.open else ""
        return f"{rate:.0f}/s{left}"

    def _warned(self, before: str, warning: str) -> str:
        """Say a warning when it begins, when it becomes another one, and when it ends; its figures
        may change."""
        if without_figures(warning) != without_figures(before):
            over = f"no longer so: {shortened(before.partition(';')[0])}"
            self._print(f"{self._title}: " + (f"warning: {warning}" if warning else over))
        return warning

    def _print(self, text: str) -> None:
        if self._bar:
            with contextlib.suppress(OSError):  # the terminal is gone
                self._bar.console.print(text, highlight=False, markup=False)
        else:
            say(text)
