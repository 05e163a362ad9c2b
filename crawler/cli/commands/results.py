"""`results`, `analyze` and `prune`: what was collected."""

import shutil
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crawler import config
from crawler import results as store
from crawler.cli.options import Span, data_dir_option, json_option, only_job_option, since_option
from crawler.cli.output import UNACCOUNTED, job_of, print_json, say, size_of, stored, tell_missing
from crawler.config import program
from crawler.db import guard
from crawler.db.gateway import Delivery
from crawler.errors import StoreError, UsageError, place
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager
from crawler.results import whole_file

LISTED = ("task_id", "status_code", "verdict", "parcel_id", "url", "scraped_at")


@click.group()
def results() -> None:
    """List, show and export results.

    \b
    Example:
      python -m crawler results list
      python -m crawler results export --format jsonl --output results.jsonl
    """


@results.command("list")
@only_job_option
@click.option("--limit", type=click.IntRange(1), help="Show the newest N (on a terminal: 20).")
@json_option
@data_dir_option
def list_(job_name: str | None, limit: int | None, as_json: bool) -> None:
    """Say how many results there are, archived and delivered ones included, and where; show the
    newest.

    \b
    Example:
      python -m crawler results list --limit 5
    """
    wanted = limit or (20 if sys.stdout.isatty() and not as_json else 0)
    lpm = LocalPersistenceManager(config.load().data_dir)
    items, sent, files = list[dict[str, Any]](), Delivery(), None
    if job_name or LocalPersistenceManager.exists(lpm.folder) or not lpm.pending.is_dir():
        try:
            with stored() as lpm:
                job = job_of(lpm, job_name) if job_name else None
                sent, items = (
                    lpm.outbox.delivery(job),
                    lpm.results.newest(job, wanted) if wanted else items,
                )
                files = store.look_at_files(lpm, job)
        except StoreError as error:
            if job_name or wanted:
                raise
            say(f"only files are counted: {error}")  # they are there without the ledger too
    without_ledger = files is None
    files = files or store.count_files(lpm)
    if as_json:
        total = files.results if without_ledger else sent.results
        facts: dict[str, Any] = {
            "results": total,
            "folder": str(lpm.pending),
            "files": files,
            "delivery": sent,
        }
        print_json(
            facts
            | ({"items": [{name: i[name] for name in LISTED} for i in items]} if limit else {})
        )
        return
    print(_how_many(files.results, sent, lpm.pending))
    if files.torn or files.missing:
        missing = "" if files.missing is None else f" and {files.missing:,} are missing"
        print(
            f"  {files.torn:,} more files are torn{missing}; {program()} doctor --repair makes them again"
        )
    if files.foreign:
        print(f"  {files.foreign:,} files there are none of this store's")
    if items:
        _show_table(items)


def _how_many(count: int, sent: Delivery, folder: Path) -> str:
    archived = (sent.archived, "archived")
    states = (
        archived,
        (sent.synced, "delivered"),
        (sent.ready, "to be delivered"),
        (sent.rejected, "rejected"),
    )
    parts = [f"{number} {what}" for number, what in states if number]
    if not parts and count >= sent.results:
        return f"{count} results in {folder}/"
    return f"{sent.results} results, {count} of them in {folder}/" + (
        f" ({', '.join(parts)})" if parts else ""
    )


def _show_table(items: list[dict[str, Any]]) -> None:
    rows = [("task_id", "code", "verdict", "parcel_id", "url")]
    rows += [
        (
            i["task_id"][:12],
            str(i["status_code"]),
            i["verdict"],
            _short(i["parcel_id"] or "", 20),
            printable(i["url"]),
        )
        for i in items
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    room = (
        max(20, shutil.get_terminal_size().columns - sum(widths[:-1]) - 8)
        if sys.stdout.isatty()
        else 10_000
    )
    for *cells, url in rows:
        text = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=False))
        print(f"{text}  {_short(url, room)}")


def _short(text: str, room: int) -> str:
    """The text, or its beginning and its end, which tells pages of one site apart."""
    text = printable(text)
    half = (room - 1) // 2
    return text if len(text) <= room else f"{text[: room - 1 - half]}…{text[len(text) - half :]}"


@results.command()
@click.argument("task", metavar="TASK|URL")
@json_option
@data_dir_option
def show(task: str, as_json: bool) -> int:
    """Show the result of a task, by its task_id (6 digits or more) or by the newest task of a URL.

    \b
    Example:
      python -m crawler results show 4f1c09d2
    """
    from crawler.results.formats import as_text, flatten

    with stored() as lpm:
        report = lpm.results.report(lpm.tasks.find(task)[0])
    done = "data" in report
    if as_json:
        print_json(report)
        return 0 if done else 1
    if not done:
        print(f"{report['status']}: {printable(report['error_message'] or 'no result yet')}")
        print(f"  reason    {report['error_type'] or '-'}\n  attempts  {report['attempts']}")
        print(f"  task_id   {report['task_id']}\n  url       {printable(report['url'])}")
        _show_origin(report, 9)
        return 1
    print(f"{report['status_code']} {printable(report['final_url'])}")
    record_first = sorted(flatten(report).items(), key=lambda item: not item[0].startswith("data."))
    for name, value in record_first:
        if value not in (None, ""):
            text = printable(as_text(value))
            print(
                f"  {printable(name):24} {text if len(text) <= 500 else text[:500] + ' … (all of it: --json)'}"
            )
    _show_origin(report, 24)
    return 0


def _show_origin(report: dict[str, Any], width: int) -> None:
    if report["source_file"]:
        where = f", {place(line, report['source_item'])}" if (line := report["source_line"]) else ""
        print(f"  {'from':{width}} {printable(report['source_file'])}{where}")


def _names(_context: click.Context, _option: click.Parameter, value: str | None) -> tuple[str, ...]:
    import csv

    names = tuple(name.strip() for name in next(csv.reader([value or ""]), []))
    if value is not None and not (names and all(names) and len(set(names)) == len(names)):
        raise click.BadParameter("write the names of columns, each once, with commas between them")
    return names


@results.command()
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    required=True,
    help="The file, or - for stdout.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(store.FORMATS),
    help="The format (default: by the ending).",
)
@only_job_option
@since_option
@click.option(
    "--all-rows", is_flag=True, help="Every row of the input, in its order, with status and reason."
)
@click.option(
    "--columns",
    callback=_names,
    metavar="A,B,C",
    help="Only these columns of a table, in this order; a field of a record or of the input may go by its own name.",
)
@click.option(
    "--raw",
    "pages",
    type=click.Path(path_type=Path),
    help="A folder for the pages, decoded, a file each.",
)
@json_option
@data_dir_option
def export(
    output: Path,
    form: str | None,
    job_name: str | None,
    since: float | None,
    all_rows: bool,
    columns: tuple[str, ...],
    pages: Path | None,
    as_json: bool,
) -> int:
    """Write results to one file, whole or not at all: JSON, JSONL, CSV, XLSX, WARC, Markdown or
    Parquet.

    The columns of a table are the fields of the records, those of the input, and what is known of
    each page.

    Says on stderr what is still open, and ends with 5 where anything is known to be missing (`job
    verify`).

    \b
    Example:
      python -m crawler results export --format csv --output results.csv
      python -m crawler results export --output auction.xlsx --job parcels.csv --all-rows
      python -m crawler results export --output prices.csv --columns price,owner,url
    """
    from crawler.orchestrator import terminated_by_signal

    form = form or store.format_of(output)
    if form is None:
        raise click.UsageError(
            f"the ending of {output} names no format; add --format {', '.join(store.FORMATS)}"
        )
    if all_rows and (since or form == "warc"):
        raise click.UsageError(
            f"--all-rows does not go with {'--since' if since else 'the format warc'}"
        )
    if columns and form not in store.TABLES:
        raise click.UsageError(f"--columns is for tables: {', '.join(store.TABLES)}")
    with stored() as lpm:
        job = job_of(lpm, job_name) if job_name else None
    with (
        closing(lpm),
        terminated_by_signal(),
    ):  # not in `stored`: a reader of stdout that has gone is no failing store
        missing = tell_missing(lpm, job)
        done = store.export(
            lpm,
            output,
            form,
            job=job,
            since=since,
            all_rows=all_rows,
            columns=columns,
            pages=pages,
            say=say,
        )
    if pages:
        say(f"{done.pages:,} pages written to {pages}/")
    if as_json and str(output) != "-":
        facts: dict[str, Any] = {"results": done.results, "file": str(output), "format": form}
        facts |= ({"rows": done.rows} if all_rows else {}) | (
            {"pages": done.pages} if pages else {}
        )
        print_json(facts | ({"unaccounted": missing} if missing else {}))
    elif str(output) != "-":
        print(f"Exported {done.rows} {'rows' if all_rows else 'results'} to {output}")
    return UNACCOUNTED if missing else 0


def _not_stdout(
    _context: click.Context, _option: click.Parameter, value: Path | None
) -> Path | None:
    if str(value) == "-":
        raise click.BadParameter("it must be a file: what was written is read again")
    return value


@results.command()
@click.option("--compress", is_flag=True, help="Compress the file with zstd.")
@click.option(
    "--older-than", type=Span(), help="Only results scraped longer ago than this, such as 7d."
)
@only_job_option
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_not_stdout,
    help="The file (default: a new one in the store's archive/).",
)
@json_option
@data_dir_option
def archive(
    compress: bool,
    older_than: float | None,
    job_name: str | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Move the results that lie in pending/ into one file; they leave pending/ once that was read
    back and is right.

    Their records stay in the ledger: they can still be listed, exported, bundled and synced. Safe
    to interrupt: typed again, it goes on.

    \b
    Example:
      python -m crawler results archive --compress
      python -m crawler results archive --compress --older-than 30d
    """
    from crawler.results import archive as keeper

    with stored() as lpm:
        job = job_of(lpm, job_name) if job_name else None
        if older_than is None and (open_ := lpm.counts.progress(job).open):
            say(
                f"{open_:,} tasks are still open: their results may not be in it, and stay in pending/"
            )
        done = keeper.archive(
            lpm,
            output,
            compress=compress or (output is not None and output.suffix == ".zst"),
            job=job,
            before=None if older_than is None else lpm.now() - older_than,
            progress=say,
        )
    if as_json:
        print_json(done)
    elif done.file is None:
        print("Nothing to archive: no such results lie in pending/")
    else:
        shown = output or config.load().data_dir / "archive" / Path(done.file).name
        print(
            f"Archived {done.results} results to {printable(str(shown))} ({size_of(done.bytes)}, verified)"
        )


@results.command()
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    callback=_not_stdout,
    help="The file, such as parcels.crawlbundle.tar.zst.",
)
@only_job_option
@since_option
@click.option("--no-raw", is_flag=True, help="Without the raw pages.")
@json_option
@data_dir_option
def bundle(
    output: Path, job_name: str | None, since: float | None, no_raw: bool, as_json: bool
) -> int:
    """Write results and their raw pages to one file that another machine can take in and deliver
    (`results unbundle`).

    The checksum is that of the file's manifest; both machines print it. Says on stderr what is
    still open, and ends with 5 where anything is known to be missing (`job verify`).

    \b
    Example:
      python -m crawler results bundle --output parcels.crawlbundle.tar.zst --job parcels.csv
    """
    from crawler.results.bundle import bundle as write

    with stored() as lpm:
        job = job_of(lpm, job_name) if job_name else None
        missing = tell_missing(lpm, job)
        done = write(lpm, output, job=job, since=since, raw=not no_raw)
    if done.unreadable:
        say(
            f"{done.unreadable:,} pages cannot be read and were left out; their records are in the bundle"
        )
    if as_json:
        print_json(done)
    elif done.file is None:
        print("Nothing to bundle: there are no such results")
    else:
        print(f"Checksum {done.checksum}")
        print(
            f"Bundled {done.results} results with {done.pages} pages to {done.file} ({size_of(done.bytes)})"
        )
    if missing:
        return UNACCOUNTED
    return 1 if done.unreadable else 0


@results.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
@data_dir_option
def unbundle(file: Path, as_json: bool) -> None:
    """Take in the results and pages of FILE that are not here yet; nothing of a damaged file is
    stored.

    They are held like all standalone results, and belong to a job of their own. Typed again, it
    changes nothing.

    \b
    Example:
      python -m crawler results unbundle parcels.crawlbundle.tar.zst
    """
    from crawler.results.bundle import unbundle as store

    settings = config.load()
    lpm = LocalPersistenceManager(settings.data_dir)
    done = store(lpm, file, settings.max_body)
    lpm.close()
    if as_json:
        print_json(done)
        return
    print(f"Checksum {done.checksum}")
    if done.job:
        print(f"Job {printable(done.job)}")
    if done.open:
        print(
            f"{done.open:,} of the known ones are tasks without a result here; they were left as they are"
        )
    if done.added_pages:
        print(f"{done.added_pages:,} pages of known results were missing here, and were taken in")
    print(f"{done.results} results: {done.new} new, {done.known} known")


@click.command()
@click.option("--raw", is_flag=True, help="Remove raw pages (there is nothing else to prune).")
@click.option(
    "--older-than",
    type=Span(),
    help="… of segments last written longer ago than this, such as 30d.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@json_option
@data_dir_option
def prune(raw: bool, older_than: float | None, dry_run: bool, as_json: bool) -> None:
    """Remove raw pages, a whole segment at a time; records and results stay.

    A segment holds the pages of at most a day. One that a worker is writing to is kept, and so is
    one with pages of results that a Gateway is still to get.

    \b
    Example:
      python -m crawler prune --raw --older-than 30d
    """
    from crawler.results import archive as keeper

    if not raw or older_than is None:
        raise click.UsageError(
            f"say what to remove and from what age on: {program()} prune --raw --older-than 30d"
        )
    with stored() as lpm:
        done = keeper.prune(lpm, lpm.now() - older_than, dry_run)
    if as_json:
        print_json(done)
        return
    kept = [
        f"{_segments(count)} kept ({why})"
        for count, why in (
            (done.in_use, "in use"),
            (done.for_gateway, "a Gateway is still to get their results"),
        )
        if count
    ]
    verb = "Would remove" if dry_run else "Removed"
    removed = f"{verb} {_segments(done.segments)}, {size_of(done.bytes)}, pages of {done.results:,} results"
    if not done.segments:
        removed = "Nothing to remove"
    print("; ".join([removed, *kept]))


def _segments(count: int) -> str:
    return "1 segment" if count == 1 else f"{count:,} segments"


if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from crawler.analyze import Profile
    from crawler.analyze.compare import Comparison
    from crawler.analyze.report import Section

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
    from crawler.analyze import report

    names = [name for name in (path, path2) if name is not None]
    if html and str(html) != "-":
        _check_report(html, [Path(name) for name in names])
    found = _analyzed(names, job)
    if html:
        with whole_file(html) as out:
            out.write(report.html_page(found).encode("utf-8", "replace"))
    if html and str(html) == "-":
        return
    if as_json:
        print_json(found)
    else:
        _print_analysis(_console(), found)
    if html:
        say(f"report written to {html}")


def _check_report(html: Path, paths: list[Path]) -> None:
    """Refuse to write the report over its own input, or over a file that a store needs."""
    if any(guard.is_same_file(html, path) for path in paths):
        what = f"{html} is what is to be looked at"
        raise UsageError(f"{what}; nothing was written: choose another name")
    for folder in (config.load().data_dir, *paths, *(path.parent for path in paths)):
        guard.check_output(html, folder)


def _analyzed(names: list[str], job: str | None) -> "Profile | Comparison":
    from crawler.analyze import profile, sources
    from crawler.analyze.compare import compare

    data_dir = config.load().data_dir
    with ExitStack() as opened:
        runs = []
        for name in names:
            runs.append(sources.find(name, job, data_dir))
            opened.callback(runs[-1].close)
        progress = _progress()
        if len(runs) > 1:
            return compare(runs[0], runs[1], progress)
        return profile(runs[0], progress)


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


def _print_analysis(console: "Console", found: "Profile | Comparison") -> None:
    from crawler.analyze import report

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


def _table(console: "Console", section: "Section") -> "Table":
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
    from crawler.analyze import report

    return report.percent(value) if isinstance(value, float) else printable(value)
