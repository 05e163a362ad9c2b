"""`analyze`: what results hold and lack, and what changed between two runs."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from crawler import config
from crawler.analyze import compare, profile, report, sources, words
from crawler.analyze.facts import Comparison, FieldChange, Groups, Profile
from crawler.cli.output import data_dir_option, json_option, print_json, say
from crawler.db import outputs
from crawler.errors import UsageError
from crawler.logs import printable
from crawler.results import whole_file

if TYPE_CHECKING:
    from rich.console import Console

_ROWS = 40
_NAMED = 8
_TITLES = {"fetch_ms": "fetch", "parse_ms": "parse", "page_bytes": "page size"}


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
    if html and str(html) != "-":
        _check_report(html, *(Path(name) for name in (path, path2) if name is not None))
    found = _gather(path, path2, job)
    if html:
        with whole_file(html) as out:
            out.write(report.page(found).encode("utf-8", "replace"))
    if html and str(html) == "-":
        return
    if as_json:
        print_json(found)
    elif isinstance(found, Comparison):
        _show_comparison(_console(), found)
    else:
        _show_profile(_console(), found)
    if html:
        say(f"report written to {html}")


def _check_report(html: Path, *paths: Path) -> None:
    """Refuse to write the report over what is looked at, or over what a store needs."""
    if any(outputs.is_same(html, path) for path in paths):
        raise UsageError(
            f"{html} is what is to be looked at; nothing was written: choose another name"
        )
    for folder in (config.load().data_dir, *paths, *(path.parent for path in paths)):
        outputs.check(html, folder)


def _gather(path: str, path2: str | None, job: str | None) -> Profile | Comparison:
    settings = config.load()
    with ExitStack() as opened:
        runs = []
        for name in (path, path2):
            if name is not None:
                runs.append(sources.find(name, job, settings.data_dir))
                opened.callback(runs[-1].close)
        progress = _progress()
        return (
            compare.compare(runs[0], runs[1], progress)
            if path2
            else profile.profile(runs[0], progress)
        )


def _progress(every_s: float = 2.0) -> Callable[[int], None]:
    said = time.monotonic()

    def show(count: int) -> None:
        nonlocal said
        if count % 100 == 0 and time.monotonic() - said > every_s:
            said = time.monotonic()
            say(f"{count:,} results read")

    return show


def _console() -> "Console":
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # `| head` is no failure, as for every other command

    # What pages say is text and nothing else: no markup, no emoji codes, no guesses at colours.
    return Quiet(markup=False, emoji=False, highlight=False)


def _table(
    console: "Console",
    title: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    note: str = "",
) -> None:
    """A table; a head that begins with `>` is a column of numbers, one with `…` is cut, others are
    folded."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0, show_edge=False)
    for head in heads:
        if head[:1] == ">":
            table.add_column(head[1:], justify="right", no_wrap=True)
        elif head[:1] == "…":  # numbers and types take some 60 places
            table.add_column(
                head[1:], no_wrap=True, overflow="ellipsis", max_width=max(20, console.width - 60)
            )
        else:
            table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*(printable(cell) for cell in row))
    console.print()
    console.print(title, style="bold")
    if table.row_count:
        console.print(table)
    if note:
        console.print(printable(note))


def _show_profile(console: "Console", found: Profile) -> None:
    what = (
        f"job {found.job} of {found.source}"
        if found.job and found.job != found.source
        else found.source
    )
    console.print(printable(what), style="bold")
    console.print(
        f"{found.results:,} results; {words.percent(found.success_rate)} success ({words.success(found)})"
    )
    for line in _lines(found):
        console.print(printable(line))
    if found.unreadable:
        console.print(f"{found.unreadable:,} could not be read as results:", style="bold")
        for example in found.unreadable_examples:
            console.print(f"  {printable(example)}")
    if found.errors:
        rows = [(f"{e.count:,}", e.status, e.reason, e.url) for e in found.errors]
        _table(
            console, "Tasks without a result", (">count", "state", "reason", "for example"), rows
        )
    _show_fields(console, found)
    _show_spread(console, found)
    for title, groups in (("Domains", found.domains), ("Sites", found.sites)):
        _show_groups(console, title, groups)


def _lines(found: Profile) -> list[str]:
    return [
        *found.notes,
        words.books(found),
        f"fetched  {words.rate(found)}",
        f"verdicts {words.counts(found.verdicts)}",
        f"attempts {words.counts(found.attempts)}",
        f"parsers  {words.names(found.parsers)}",
    ]


def _show_fields(console: "Console", found: Profile) -> None:
    rows = [
        (
            f.path,
            words.percent(f.share),
            f"{f.empty:,}",
            words.types(f),
            words.distinct(f),
            words.values(f),
        )
        for f in found.fields[:_ROWS]
    ]
    more = len(found.fields) - len(rows)
    note = f"… and {more:,} more; --html and --json have them all" if more else ""
    if found.fields_capped:
        note += "\nthere are even more fields than these; they were not looked at"
    _table(
        console,
        "Fields",
        ("field", ">records", ">empty", "type", ">distinct", "…values"),
        rows,
        note.strip(),
    )
    lacks = words.missing(found)
    if lacks:
        console.print()
        console.print("Records that lack what most have", style="bold")
    for lack in lacks[:_ROWS]:
        more = len(lack.fields) - _NAMED
        names = ", ".join(lack.fields[:_NAMED]) + (
            f" and {more:,} other fields" if more > 0 else ""
        )
        console.print(printable(f"{lack.records:,} lack {names}"))
        for example in lack.examples:
            console.print(printable(f"    {example.task_id}  {example.url}"))


def _show_spread(console: "Console", found: Profile) -> None:
    rows = []
    for name, title in _TITLES.items():
        spread = getattr(found, name)
        show = words.size if name == "page_bytes" else words.ms
        cells = [show(value) for _, value in words.percentiles(spread)] if spread else ["–"] * 5
        rows.append((title, f"{spread.count:,}" if spread else words.UNKNOWN, *cells))
    _table(console, "Time and size", ("", ">pages", ">p50", ">p90", ">p95", ">p99", ">max"), rows)


def _show_groups(console: "Console", title: str, groups: Groups) -> None:
    rows = [
        (g.name, f"{g.results:,}", "–" if g.failed is None else f"{g.failed:,}") for g in groups.top
    ]
    if groups.other_names:
        failed = "–" if groups.other_failed is None else f"{groups.other_failed:,}"
        rows.append((f"{groups.other_names:,} others", f"{groups.other_results:,}", failed))
    _table(console, title, ("name", ">results", ">no result"), rows)


def _show_comparison(console: "Console", found: Comparison) -> None:
    _table(console, "Two runs", ("", "A", "B"), report.beside(found))
    console.print()
    both = f"{found.both:,} pages in both, {found.same:,} of them the same"
    console.print(f"{both}; {found.only_a:,} only in A, {found.only_b:,} only in B")
    for letter, examples in (("A", found.only_a_examples), ("B", found.only_b_examples)):
        for url in examples:
            console.print(printable(f"    only in {letter}: {url}"))
    if found.verdicts:
        rows = [(f"{v.count:,}", f"{v.a} → {v.b}", v.url) for v in found.verdicts]
        _table(console, "Verdicts that changed", (">pages", "from → to", "for example"), rows)
    _table(
        console,
        "Fields that changed",
        ("field", ">A", ">B", ">changed", ">appeared", ">vanished", "type"),
        [_change(field) for field in found.fields[:_ROWS]],
        f"{len(found.fields):,} fields changed, {found.fields_same:,} did not",
    )
    for field in found.fields[:_NAMED]:
        if field.examples:
            console.print()
            console.print(printable(field.path), style="bold")
        for example in field.examples:
            console.print(
                printable(f"    {example.old or '(nothing)'} → {example.new or '(nothing)'}")
            )
            console.print(printable(f"        {example.url}"))


def _change(field: FieldChange) -> tuple[str, ...]:
    counts = (f"{count:,}" for count in (field.changed, field.appeared, field.vanished))
    return (
        field.path,
        words.percent(field.share_a),
        words.percent(field.share_b),
        *counts,
        words.retyping(field),
    )
