"""What commands print: facts on stdout, progress on stderr."""

import os
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click
import msgspec

from crawler.logs import printable
from crawler.models import Books

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def _set_data_dir(_context: click.Context, _option: click.Parameter, value: str | None) -> None:
    if value:
        os.environ["CRAWLER_DATA_DIR"] = value


data_dir_option = click.option(
    "--data-dir",
    type=click.Path(file_okay=False),
    expose_value=False,
    is_eager=True,
    callback=_set_data_dir,
    help="The store (default: CRAWLER_DATA_DIR, else ./data).",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print facts as JSON.")


def print_json(facts: Any) -> None:
    """Facts for a program."""
    print(msgspec.json.format(msgspec.json.encode(facts), indent=2).decode())


def say(text: str) -> None:
    """A line for a person, on stderr."""
    print(printable(text), file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


class BooksProgress:
    """Live progress of a crawl: a bar on a terminal, else a line now and then."""

    def __init__(self, title: str, every_s: float = 5.0) -> None:
        self._title = title
        self._every_s = every_s
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._began = self._said = time.monotonic()
        self._first: int | None = None
        self._line = ""

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[line]}"))
            self._bar = Progress(*columns, console=Console(stderr=True), refresh_per_second=8)
            self._task = self._bar.add_task(self._title, total=None, line="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
        elif self._line:
            say(f"{self._title}: {self._line}")

    def show(self, books: Books) -> None:
        """Show where the books stand."""
        done = books.accepted - books.open
        now = time.monotonic()
        if self._first is None:
            self._first = done
        seconds = max(now - self._began, 0.001)
        rate = (done - self._first) / seconds
        left = f", about {duration(books.open / rate)} left" if rate > 0 and books.open else ""
        trouble = "".join(f", {getattr(books, s)} {s}" for s in ("failed", "skipped", "expired") if getattr(books, s))
        self._line = f"{done:,}/{books.accepted:,} done{trouble}, {rate:.0f}/s{left}"
        if self._bar and self._task is not None:
            self._bar.update(self._task, total=books.accepted or None, completed=done, line=self._line)
        elif now - self._said >= self._every_s:
            self._said = now
            say(f"{self._title}: {self._line}")
