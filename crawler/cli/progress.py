"""Live progress of jobs: bars or a table on a terminal, otherwise lines every few seconds."""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from crawler import config, times
from crawler.cli.output import cut_middle, say
from crawler.forecast import STILL_S, Trend, slip
from crawler.logs import counted, leave_lost_terminal, printable, shortened, without_figures
from crawler.models import Job, TaskCounts
from crawler.times import duration

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

RATE_WINDOW_S = 10.0
"""The shown rate is the average over this time."""
MAX_SHOWN = 15
"""Jobs with a bar or a line of their own; the others are only counted."""
OTHER_LINES = 4
"""Lines of the terminal that are left to other text."""
TABLE_WIDTH = 120
"""Columns of a table that is not on a terminal."""
_NAME_WIDTH = 20
"""Columns of the name of a job in a table."""
_MAX_TITLES = 3
"""Jobs that are named in a warning which they share."""


def job_table(name: str) -> "Table":
    """Return an empty table whose rows begin with the name of a job."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, expand=False)
    table.add_column(name, max_width=_NAME_WIDTH, no_wrap=True, overflow="ellipsis")
    return table


def name_cell(name: str) -> "Text":
    """Return the first cell of a row. Names of jobs differ at their ends: a day, a number."""
    from rich.text import Text

    return Text(cut_middle(name, _NAME_WIDTH))


def bar(done: int, total: int, width: int) -> "ProgressBar":
    """Return a bar; without a total, an empty one."""
    from rich.progress_bar import ProgressBar

    return ProgressBar(total=max(1, total), completed=done, width=width)


class JobProgress:
    """The progress of one job, or of several together: counts, rate, and what it waits for."""

    def __init__(
        self, title: str, job: Job | None, clock: Callable[[], float], is_crawl: bool = False
    ) -> None:
        self.title, self.job = printable(title), job
        self.is_crawl = is_crawl or bool(job and job.options.crawl)
        self.books, self.listings = TaskCounts(), 0
        self.is_done = False
        self.has_more = False
        """Whether more is to begin, so that nobody knows how long it takes."""
        self.line = ""
        self.warnings: list[str] = []
        """What has begun, changed or ended since they were printed."""
        self._clock = clock
        self._recent, self._trend = Trend(RATE_WINDOW_S), Trend()
        self._trouble = self._late = ""

    @property
    def done(self) -> int:
        """Tasks that have ended."""
        return self.books.accepted - self.books.open

    @property
    def rate(self) -> float:
        """Tasks that ended a second, of late."""
        return self._recent.rate

    @property
    def is_under_way(self) -> bool:
        """Whether some of it is done or in flight, but not all."""
        return not self.is_done and bool(self.done or self.books.processing)

    def update(
        self,
        books: TaskCounts,
        trouble: str | None = "",
        forbidden: int = 0,
        is_done: bool = False,
    ) -> None:
        """Note the counts of now.

        `trouble` is what stops the job, None if nobody has asked; `forbidden` counts the tasks
        that robots.txt forbids.
        """
        self.books, self.is_done = books, is_done
        if trouble is None:
            trouble = self._trouble
        now = self._clock()
        self._recent.add(now, self.done)
        if trouble and self._recent.still_s(now) >= STILL_S:
            self._trend = Trend()  # pages that come meanwhile say nothing about the rate afterwards
        self._trend.add(now, self.done)
        self._warn(self._trouble, trouble)
        self._trouble = trouble
        self.line = f"{self._counts(forbidden)}, {self._pace(now)}"
        if self.job and self.job.deadline:
            tz = times.zone(config.load().timezone)
            late = slip(self.job, books.open, self._trend.measured, time.time(), tz) or ""
            self._warn(self._late, late)
            self._late = late

    def _counts(self, forbidden: int) -> str:
        books = self.books
        if self.is_crawl:
            return f"{books.accepted:,} found, {books.completed:,} fetched, {books.failed:,} failed"
        return f"{self.done:,}/{books.accepted:,} done{_without_result(books, forbidden)}"

    def _pace(self, now: float) -> str:
        """Return the rate and the time left, what stops the job, or that a crawl is done."""
        if self.is_done and self.is_crawl:
            return "done"
        digits = int(0 < self.rate < 1)
        pace, state = f"{self.rate:.{digits}f}/s", self._state()
        if self._trouble and self._recent.still_s(now) >= STILL_S:
            return state
        return f"{pace}, {state}" if state else pace

    def _state(self) -> str:
        """Return what stops the job, or the time left."""
        if self._trouble:
            return shortened(self._trouble.partition(";")[0])
        if self.rate > 0 and self.books.open and not self.has_more:
            return f"about {duration(self.books.open / self.rate)} left"
        return ""

    @property
    def state(self) -> str:
        """The same, for a table: also whether it is done or has not begun."""
        if self.is_done:
            return "done"
        return self._state() or ("" if self.is_under_way else "waiting")

    def _warn(self, before: str, warning: str) -> None:
        """Note a warning when it begins, changes or ends. Changed figures alone do not count."""
        if without_figures(warning) == without_figures(before):
            return
        if warning:
            self.warnings.append(f"warning: {warning}")
        else:
            self.warnings.append(f"resolved: {shortened(before.partition(';')[0])}")


class CrawlProgress:
    """Shows the progress of jobs: bars on a terminal, otherwise lines every few seconds.

    With `table`, both are a table. It also warns when nothing moves, and when a deadline will be
    missed. `terminal` is stderr if that is one.
    """

    def __init__(
        self,
        every_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        table: bool = False,
        terminal: "Console | None" = None,
    ) -> None:
        self._every_s, self._clock, self._is_table = every_s, clock, table
        self._terminal = terminal
        self._jobs: list[JobProgress] = []
        self._shown: list[JobProgress] = []
        self._total = JobProgress("", None, clock, is_crawl=True)
        self._waiting = 0
        self._live: Live | None = None
        self._printed: dict[int, str] = {}
        """The last printed line of each job, by its place."""
        self._printed_at = clock()

    def __enter__(self) -> Self:
        if self._terminal or sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            terminal = self._terminal or Console(stderr=True)
            self._live = Live(console=terminal, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            try:
                self._live.stop()
            except OSError:
                leave_lost_terminal()
        elif any(job.line for job in self._jobs):
            self._print_lines()

    def add(self, title: str, job: Job | None) -> JobProgress:
        """Show one more job; returns what is to be told its counts."""
        added = JobProgress(title, job, self._clock)
        self._jobs.append(added)
        return added

    def choose(self) -> list[JobProgress]:
        """Return the jobs to show: of many, some that are under way, each as long as it is."""
        room = self._room
        if len(self._jobs) + self._waiting <= room:
            self._shown = list(self._jobs)
            return self._shown
        before = set(map(id, self._shown))
        under_way = [job for job in self._jobs if job.is_under_way]
        under_way.sort(key=lambda job: id(job) not in before)
        chosen = set(map(id, under_way[:room]))
        self._shown = [job for job in self._jobs if id(job) in chosen]
        return self._shown

    @property
    def _room(self) -> int:
        if self._live is None:
            return MAX_SHOWN
        return max(1, min(MAX_SHOWN, self._live.console.height - OTHER_LINES))

    @property
    def _is_several(self) -> bool:
        return len(self._jobs) + self._waiting > 1

    def show(self, waiting: int = 0) -> None:
        """Show the jobs as they were told to be; `waiting` is how many have not begun."""
        self._waiting = waiting
        shown = self.choose()
        if self._is_several:
            self._total.title = f"all {len(self._jobs) + waiting:,} sites"
            self._total.has_more = waiting > 0
            self._total.update(_sum(job.books for job in self._jobs))
        self._print_warnings()
        if self._live:
            try:
                self._live.update(self._picture(shown), refresh=True)
            except OSError:
                leave_lost_terminal()
        elif self._clock() - self._printed_at >= self._every_s:
            self._printed_at = self._clock()
            self._print_lines()

    def _picture(self, shown: Sequence[JobProgress]) -> "RenderableType":
        from rich.console import Group
        from rich.text import Text

        if self._is_table:
            return self._table(shown)
        if note := self._others(shown):
            return Group(self._bars(shown), Text(note, style="dim"))
        return self._bars(shown)

    def _bars(self, shown: Sequence[JobProgress]) -> "Table":
        from rich.text import Text

        table = job_table("")
        table.show_header = False
        width = 10 if self._is_several else 20
        table.add_column(width=width)
        table.add_column(overflow="fold")
        for job in shown:
            filled = bar(job.done, job.books.accepted, width)
            line = _cut(job.line) if self._is_several else Text(job.line)
            table.add_row(name_cell(job.title), filled, line)
        return table

    def _table(self, shown: Sequence[JobProgress]) -> "Table":
        from rich.text import Text

        table = job_table("site")
        for name in ("found", "fetched", "listings", "failed", "rate"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("state")
        self._total.listings = sum(job.listings for job in self._jobs)
        for job in (*shown, self._total):
            books = job.books
            figures = (books.accepted, books.completed, job.listings, books.failed)
            state = self._states(self._jobs) if job is self._total else job.state
            rate = "" if job.is_done else f"{job.rate:.1f}/s"
            texts = (*(f"{each:,}" for each in figures), rate)
            table.add_row(name_cell(job.title), *map(Text, texts), _cut(state))
        return table

    def _states(self, jobs: Sequence[JobProgress]) -> str:
        """Count the jobs that are done, under way and waiting."""
        counts = {
            "done": sum(job.is_done for job in jobs),
            "under way": sum(job.is_under_way for job in jobs),
        }
        counts["waiting"] = self._waiting + len(jobs) - sum(counts.values())
        return ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)

    def _others(self, shown: Sequence[JobProgress]) -> str:
        """Say how many jobs are not shown."""
        are_shown = set(map(id, shown))
        others = [job for job in self._jobs if id(job) not in are_shown]
        more = len(others) + self._waiting
        if not more:
            return ""
        return f"… and {counted(more, 'more site')}: {self._states(others)}"

    def _print_lines(self) -> None:
        """Print the jobs that have changed, those that are done first, and all together."""
        if self._is_table:
            self._print_table()
            return
        changed = [
            (place, job)
            for place, job in enumerate(self._jobs)
            if not self._is_several or job.line != self._printed.get(place)
        ]
        changed.sort(key=lambda each: not each[1].is_done)
        for place, job in changed[:MAX_SHOWN]:
            self._printed[place] = job.line
            say(f"{job.title}: {job.line}")
        if self._is_several:
            say(f"{self._total.title}: {self._states(self._jobs)}: {self._total.line}")

    def _print_table(self) -> None:
        try:
            self._console().print(self._picture(self._shown))
        except OSError:
            leave_lost_terminal()

    def _console(self) -> "Console":
        from rich.console import Console

        return Console(stderr=True, width=TABLE_WIDTH, color_system=None)

    def _print_warnings(self) -> None:
        """Print what begins or ends; what several jobs have in common is printed once."""
        found: dict[str, list[str]] = {}
        for job in self._jobs:
            for warning in job.warnings:
                found.setdefault(warning, []).append(job.title)
            job.warnings.clear()
        for warning, titles in found.items():
            names = ", ".join(titles[:_MAX_TITLES])
            if len(titles) > _MAX_TITLES:
                names += f" and {len(titles) - _MAX_TITLES:,} more"
            self._print(f"{names}: {warning}")

    def _print(self, text: str) -> None:
        if self._live:
            try:
                self._live.console.print(text, highlight=False, markup=False)
            except OSError:
                leave_lost_terminal()
        else:
            say(text)


def _cut(text: str) -> "Text":
    """Return a text that is cut where the terminal ends.

    A column that does not wrap would be widened at the cost of all others.
    """
    from rich.text import Text

    return Text(text, no_wrap=True, overflow="ellipsis")


def _sum(counts: Iterable[TaskCounts]) -> TaskCounts:
    """Add up counts."""
    names = ("accepted", "pending", "processing", "completed", "failed", "skipped", "expired")
    found = list(counts)
    return TaskCounts(**{name: sum(getattr(each, name) for each in found) for name in names})


def _without_result(books: TaskCounts, forbidden: int) -> str:
    """Count the tasks that ended without a result."""
    states = ("failed", "skipped", "expired")
    text = "".join(f", {getattr(books, s):,} {s}" for s in states if getattr(books, s))
    if forbidden and not books.expired:
        text += f" ({forbidden:,} by robots.txt)"
    return text
