"""`analyze`: what results hold and lack, and what changed between two runs."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from crawler import config
from crawler.analyze import compare, html_page, profile, report, sources
from crawler.analyze.compare import Comparison
from crawler.analyze.profile import Profile
from crawler.cli.output import data_dir_option, json_option, print_json, say
from crawler.db import guard
from crawler.errors import UsageError
from crawler.logs import printable
from crawler.results import whole_file

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_MAX_ROWS = 40
_MAX_LINES = 100
_PROGRESS_INTERVAL_S = 2.0


@click.command()
@click.argument("path")
@click.argument("path2", required=False)
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    help="Write a report to look at, in one file that needs no network.",
)
@click.option("--job", help="Only this job of a data folder.")
@json_option
@data_dir_option
def analyze(
    path: str, path2: str | None, html: Path | None, job: str | None, as_json: bool
) -> None:
    """Say what results hold and lack; with two paths, what changed from the first to the second.

    PATH is a folder of results, an export or archive (.json, .jsonl, .jsonl.zst), a data folder, or
    the name of a job.

    \b
    Example:
      python -m crawler analyze ./data/pending/
      python -m crawler analyze before.jsonl after.jsonl --html changes.html
    """
    names = [name for name in (path, path2) if name is not None]
    if html and str(html) != "-":
        _check_report(html, [Path(name) for name in names])
    found = _gather(names, job)
    if html:
        with whole_file(html) as out:
            out.write(html_page.page(found).encode("utf-8", "replace"))
    if html and str(html) == "-":
        return
    if as_json:
        print_json(found)
    else:
        _show(_console(), found)
    if html:
        say(f"report written to {html}")


def _check_report(html: Path, paths: list[Path]) -> None:
    """Refuse to write the report over its own input, or over a file that a store needs."""
    if any(guard.is_same_file(html, path) for path in paths):
        what = f"{html} is what is to be looked at"
        raise UsageError(f"{what}; nothing was written: choose another name")
    for folder in (config.load().data_dir, *paths, *(path.parent for path in paths)):
        guard.check_output(html, folder)


def _gather(names: list[str], job: str | None) -> Profile | Comparison:
    data_dir = config.load().data_dir
    with ExitStack() as opened:
        runs = []
        for name in names:
            runs.append(sources.find(name, job, data_dir))
            opened.callback(runs[-1].close)
        progress = _progress()
        if len(runs) > 1:
            return compare.compare(runs[0], runs[1], progress)
        return profile.profile(runs[0], progress)


def _progress() -> Callable[[int], None]:
    said = time.monotonic()

    def show(count: int) -> None:
        nonlocal said
        if count % 100 == 0 and time.monotonic() - said > _PROGRESS_INTERVAL_S:
            said = time.monotonic()
            say(f"{count:,} results read")

    return show


def _console() -> "Console":
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # `| head` is no failure, as for every other command

    # Text of pages stays text: no markup, no emoji codes, no guesses at colours.
    return Quiet(markup=False, emoji=False, highlight=False)


def _show(console: "Console", found: Profile | Comparison) -> None:
    for number, section in enumerate(report.sections(found)):
        if number:
            console.print()
        console.print(printable(section.title), style="bold")
        for line in section.lines[:_MAX_LINES]:
            console.print(printable(line))
        if section.rows:
            console.print(_table(console, section))
        more = max(len(section.lines) - _MAX_LINES, len(section.rows) - _MAX_ROWS)
        if more > 0:
            console.print(f"… and {more:,} more; --html and --json have them all")


def _table(console: "Console", section: report.Section) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0, show_edge=False)
    for head in section.heads:
        if head.startswith(">"):
            table.add_column(head[1:], justify="right", no_wrap=True)
        elif head.startswith("…"):  # the other columns take some 60 characters
            width = max(20, console.width - 60)
            table.add_column(head[1:], no_wrap=True, overflow="ellipsis", max_width=width)
        else:
            table.add_column(head, overflow="fold")
    for row in section.rows[:_MAX_ROWS]:
        table.add_row(*map(_cell, row))
    return table


def _cell(value: str | float) -> str:
    return report.percent(value) if isinstance(value, float) else printable(value)
