"""`results`: what was collected."""

import csv
import shutil
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from crawler import config
from crawler import results as store
from crawler.cli.output import (
    UNACCOUNTED,
    data_dir_option,
    job_of,
    json_option,
    print_json,
    say,
    stored,
    tell_missing,
)
from crawler.cli.types import only_job_option, since_option
from crawler.config import program
from crawler.db.outbox import Delivery
from crawler.errors import StoreError, place
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager

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
                files = store.check_pending_files(lpm, job)
        except StoreError as error:
            if job_name or wanted:
                raise
            say(f"only files are counted: {error}")  # they are there without the ledger too
    without_ledger = files is None
    files = files or store.count_pending_files(lpm)
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


from crawler.cli.commands import keep  # noqa: E402 # what it attaches to stands above

for command in (keep.archive, keep.bundle, keep.unbundle):
    results.add_command(command)
