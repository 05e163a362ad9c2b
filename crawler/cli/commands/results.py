"""`results`, `prune` and `analyze`: what was collected, and what to do with it."""

import shutil
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crawler import config
from crawler import results as store
from crawler.cli.options import (
    Duration,
    data_dir_option,
    job_option,
    json_option,
    output_option,
    role_option,
    since_option,
)
from crawler.cli.output import (
    UNACCOUNTED,
    cut_middle,
    existing_store,
    find_job_if_named,
    print_json,
    say,
    size_text,
    warn_incomplete,
)
from crawler.config import program
from crawler.db import guard
from crawler.db.gateway import Delivery
from crawler.errors import StoreError, UsageError, place
from crawler.logs import counted, printable
from crawler.lpm import LocalPersistenceManager

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from crawler.analyze import Profile
    from crawler.analyze.compare import Comparison
    from crawler.analyze.report import Section

LISTED_FIELDS = ("task_id", "status_code", "verdict", "parcel_id", "url", "scraped_at")
_MAX_LISTED, _MAX_PARCEL_CHARS, _MAX_VALUE_CHARS = 20, 20, 500
_MAX_ROWS, _MAX_LINES = 40, 100
"""Table rows and lines that `analyze` prints of a section."""
_PROGRESS_INTERVAL_S = 2.0


result_site_option = click.option("--site", metavar="NAME", help="Only results of this site.")


@click.group()
def results() -> None:
    """List, show, export, archive and bundle results.

    \b
    Example:
      python -m crawler results list
      python -m crawler results export --format jsonl --output results.jsonl
    """


@results.command("list")
@job_option
@role_option
@click.option(
    "--limit", type=click.IntRange(1), help="Show the newest N results (default on a terminal: 20)."
)
@json_option
@data_dir_option
def list_(job_name: str | None, roles: tuple[str, ...], limit: int | None, as_json: bool) -> None:
    """Count results and the files in pending/, and show the newest. Archived and delivered results
    count too. --role chooses which are shown, not which are counted.

    \b
    Example:
      python -m crawler results list --limit 5
    """
    wanted = limit or 0
    if not limit and sys.stdout.isatty() and not as_json:
        wanted = _MAX_LISTED
    lpm = LocalPersistenceManager(config.load().data_dir)
    items, sent, files = list[dict[str, Any]](), Delivery(), None
    if job_name or LocalPersistenceManager.exists(lpm.folder) or not lpm.pending.is_dir():
        try:
            with existing_store() as lpm:
                job = find_job_if_named(lpm, job_name)
                sent = lpm.outbox.delivery(job)
                if wanted:
                    items = lpm.results.newest(job, wanted, roles)
                files = store.check_pending_files(lpm, job)
        except StoreError as error:
            if job_name or wanted:
                raise
            say(f"only files are counted: {error}")  # files can be counted without the ledger
    total = sent.results
    if files is None:
        files = store.count_pending_files(lpm)
        total = files.results
    if as_json:
        facts: dict[str, Any] = {
            "results": total,
            "folder": str(lpm.pending),
            "files": files,
            "delivery": sent,
        }
        if limit:
            names = (*LISTED_FIELDS, "role", "depth", "parent", "invalid")
            facts["items"] = [
                {name: item[name] for name in names if name in item} for item in items
            ]
        print_json(facts)
        return
    print(_count_line(files.results, sent, lpm.pending))
    _print_file_problems(files)
    if items:
        _print_table(items)


def _count_line(files: int, sent: Delivery, folder: Path) -> str:
    states = (
        (sent.archived, "archived"),
        (sent.synced, "delivered"),
        (sent.ready, "to be delivered"),
        (sent.rejected, "rejected"),
    )
    parts = ", ".join(f"{number} {what}" for number, what in states if number)
    line = f"{sent.results} results, {files} of them in {folder}/"
    if parts:
        return f"{line} ({parts})"
    if files >= sent.results:
        return f"{files} results in {folder}/"
    return line


def _print_file_problems(files: store.PendingFiles) -> None:
    if files.torn or files.missing:
        problem = f"{files.torn:,} more files are torn"
        if files.missing is not None:
            problem += f" and {files.missing:,} are missing"
        print(f"  {problem}; {program()} doctor --repair makes them again")
    if files.foreign:
        print(f"  {files.foreign:,} files there do not belong to this store")


def _print_table(items: list[dict[str, Any]]) -> None:
    rows = [("task_id", "code", "verdict", "parcel_id", "url")]
    for item in items:
        parcel = cut_middle(printable(item["parcel_id"] or ""), _MAX_PARCEL_CHARS)
        code, url = str(item["status_code"]), printable(item["url"])
        verdict = f"{item['verdict']}, invalid" if item.get("invalid") else item["verdict"]
        rows.append((item["task_id"][:12], code, verdict, parcel, url))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    url_width = widths[-1]
    if sys.stdout.isatty():
        url_width = max(20, shutil.get_terminal_size().columns - sum(widths[:-1]) - 8)
    for *cells, url in rows:
        text = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=False))
        print(f"{text}  {cut_middle(url, url_width)}")


@results.command()
@click.argument("task", metavar="TASK|URL")
@json_option
@data_dir_option
def show(task: str, as_json: bool) -> int:
    """Show the result of a task, given by its task_id (at least 6 digits) or by a URL.

    Of a URL, the newest task counts.

    \b
    Example:
      python -m crawler results show 4f1c09d2
    """
    with existing_store() as lpm:
        report = lpm.results.report(lpm.tasks.find(task)[0])
    has_result = "data" in report
    if as_json:
        print_json(report)
    elif has_result:
        _print_result(report)
    else:
        print(f"{report['status']}: {printable(report['error_message'] or 'no result yet')}")
        print(f"  reason    {report['error_type'] or '-'}\n  attempts  {report['attempts']}")
        print(f"  task_id   {report['task_id']}\n  url       {printable(report['url'])}")
        _print_origin(report, 9)
    return int(not has_result)


def _print_result(report: dict[str, Any]) -> None:
    from crawler.results.formats import as_text, flatten

    print(f"{report['status_code']} {printable(report['final_url'])}")
    record_first = sorted(flatten(report).items(), key=lambda item: not item[0].startswith("data."))
    for name, value in record_first:
        if value not in (None, ""):
            text = printable(as_text(value))
            if len(text) > _MAX_VALUE_CHARS:
                text = f"{text[:_MAX_VALUE_CHARS]} … (all of it: --json)"
            print(f"  {printable(name):24} {text}")
    _print_origin(report, 24)


def _print_origin(report: dict[str, Any], width: int) -> None:
    if report["source_file"]:
        origin = printable(report["source_file"])
        if line := report["source_line"]:
            origin += f", {place(line, report['source_item'])}"
        print(f"  {'from':{width}} {origin}")


def _column_names(
    _context: click.Context, _option: click.Parameter, value: str | None
) -> tuple[str, ...]:
    import csv

    names = tuple(name.strip() for name in next(csv.reader([value or ""]), []))
    if value is not None and not (names and all(names) and len(set(names)) == len(names)):
        raise click.BadParameter("write the names of columns, each once, with commas between them")
    return names


@results.command()
@output_option
@click.option(
    "--format",
    "form",
    type=click.Choice(store.FORMATS),
    help="Format (default: by the file's ending).",
)
@job_option
@result_site_option
@role_option
@since_option
@click.option(
    "--all-rows",
    is_flag=True,
    help="Every row of the input in its order, with status and reason.",
)
@click.option(
    "--columns",
    callback=_column_names,
    metavar="A,B,C",
    help="Only these columns of a table, in this order. Fields of the record and of the input may "
    "go by their own names.",
)
@click.option(
    "--raw",
    "pages",
    type=click.Path(path_type=Path),
    help="Folder for the pages, decoded, one file each.",
)
@click.option(
    "--files",
    "files",
    type=click.Path(path_type=Path),
    help="Folder for the images and documents that records name, each once; the records say where.",
)
@json_option
@data_dir_option
def export(
    output: Path,
    form: str | None,
    job_name: str | None,
    site: str | None,
    roles: tuple[str, ...],
    since: float | None,
    all_rows: bool,
    columns: tuple[str, ...],
    pages: Path | None,
    files: Path | None,
    as_json: bool,
) -> int:
    """Write results to one file: JSON, JSONL, CSV, XLSX, WARC, Markdown or Parquet.

    The file appears only when it is complete. A table has columns for the fields of the records,
    the fields of the input, and facts about each page.

    Warns on stderr if tasks are open. Exits with 5 if tasks are unaccounted for (see `job verify`).

    \b
    Example:
      python -m crawler results export --format csv --output results.csv
      python -m crawler results export --output auction.xlsx --job parcels.csv --all-rows
      python -m crawler results export --output prices.csv --columns price,owner,url
      python -m crawler results export --output flats.jsonl --site imoti --role listing
      python -m crawler results export --output homes.jsonl --files photos
    """
    from crawler.orchestrator import terminated_by_signal

    form = form or store.format_of(output)
    if form is None:
        raise click.UsageError(
            f"the ending of {output} names no format; add --format {', '.join(store.FORMATS)}"
        )
    if all_rows and (since or roles or site):
        raise click.UsageError("--all-rows does not go with --since, --role or --site")
    if all_rows and form == "warc":
        raise click.UsageError("--all-rows does not go with the format warc")
    if columns and form not in store.TABLES:
        raise click.UsageError(f"--columns is for tables: {', '.join(store.TABLES)}")
    with existing_store() as lpm:
        job = find_job_if_named(lpm, job_name)
        if site is not None:
            site = _known_site(lpm, site)
    # Not in `existing_store`: it would report a closed stdout as an error of the store.
    with closing(lpm), terminated_by_signal():
        missing = warn_incomplete(lpm, job)
        done = store.export(
            lpm,
            output,
            form,
            job=job,
            since=since,
            roles=roles,
            site=site,
            all_rows=all_rows,
            columns=columns,
            pages=pages,
            files=files,
            say=say,
        )
    if pages:
        say(f"{done.pages:,} pages written to {pages}/")
    if files:
        say(f"{counted(done.files, 'new file')} written to {files}/")
    if as_json and str(output) != "-":
        facts: dict[str, Any] = {"results": done.results, "file": str(output), "format": form}
        asked = ((all_rows, "rows"), (pages, "pages"), (files, "files"))
        facts |= {name: getattr(done, name) for is_asked, name in asked if is_asked}
        if missing:
            facts["unaccounted"] = missing
        print_json(facts)
    elif str(output) != "-":
        what = "rows" if all_rows else "results"
        print(f"Exported {done.rows} {what} to {output}")
    if missing:
        return UNACCOUNTED
    return 0


def _cursor(
    _context: click.Context, _option: click.Parameter, value: str | None
) -> int | str | None:
    """Return the number, or `now`."""
    if value is None or value == "now":
        return value
    if not (value.isascii() and value.isdecimal()):
        raise click.BadParameter(f"{value!r} is no number of a result; write one, or now")
    return int(value)


@results.command()
@job_option
@result_site_option
@role_option
@click.option(
    "--from",
    "first",
    callback=_cursor,
    metavar="CURSOR",
    help="Continue behind this number (`seq`), or `now`: only what is stored from now on "
    "(default: from the beginning).",
)
@click.option("--no-wait", is_flag=True, help="End when nothing more is there.")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Append to this file, and continue behind its last line (default: stdout).",
)
@data_dir_option
def follow(
    job_name: str | None,
    site: str | None,
    roles: tuple[str, ...],
    first: int | str | None,
    no_wait: bool,
    output: Path | None,
) -> None:
    """Write results as they are stored, as JSON lines, in the order of their commits.

    Each line begins with `seq`, a number that grows and never comes again. Store it with what you
    make of the line, and continue with --from: you get each result once. A result whose record is
    replaced later comes again, with a new number.

    Waits for more until it is interrupted; with --job until the job has ended, which exits with 0.
    An --output file that has lines is continued by itself: without --from, and with the --job,
    --site and --role that it was begun with, which are noted in FILE.filter.

    \b
    Example:
      python -m crawler results follow --output results.jsonl
      python -m crawler results follow --job parcels.csv | jq .data
      python -m crawler results follow --from 1200 --no-wait
    """
    from crawler.orchestrator import terminated_by_signal
    from crawler.results import follow as following

    with existing_store() as lpm:
        job = find_job_if_named(lpm, job_name)
        if site is not None:
            site = _known_site(lpm, site)
        newest = lpm.results.last_seq()
    if isinstance(first, int) and first > newest:
        raise click.UsageError(
            f"--from {first} is after the newest result, which has the number {newest}; "
            "was it noted with another store?"
        )
    cursor = following.Cursor(newest if first == "now" else int(first or 0))
    # Not in `existing_store`: it would report a closed stdout as an error of the store.
    with ExitStack() as opened:
        opened.enter_context(closing(lpm))
        opened.enter_context(terminated_by_signal())
        sink: following.Sink
        if output is None or str(output) == "-":
            sink = following.Stdout()
        else:
            file = sink = following.OutputFile(output, lpm.folder, time.sleep)
            opened.callback(file.close)
            with lpm.errors():
                file.check_store(lpm)
            name = job.name if job else None
            file.check_filter(following.Filter(name, site, tuple(sorted(set(roles)))))
            if file.last:
                if first is not None:
                    raise UsageError(
                        f"{output} has results up to number {file.last.seq} and is continued "
                        "there; nothing was written: leave out --from, or choose another file"
                    )
                cursor = following.Cursor(file.last.seq)
        following.follow(lpm, sink, cursor, job=job, roles=roles, site=site, wait=not no_wait)
    again = "the same command continues" if output else f"continue with --from {cursor.seq}"
    say(f"{counted(cursor.results, 'result')} handed on; {again}")


def _known_site(lpm: LocalPersistenceManager, given: str) -> str:
    """Return the name as results have it; a site without a file and without results is refused."""
    from crawler import sites

    settings, name = config.load(), given.strip().lower()
    known = sites.load(settings.config_dir, settings.rate)
    if name not in (sites.DEFAULT, *known.names) and not lpm.results.has_site(name):
        known.find(given)
    return name


def _not_stdout(
    _context: click.Context, _option: click.Parameter, value: Path | None
) -> Path | None:
    if str(value) == "-":
        raise click.BadParameter("it must be a file, because it is read back")
    return value


@results.command()
@click.option("--compress", is_flag=True, help="Compress the file with zstd.")
@click.option(
    "--older-than",
    type=Duration(),
    help="Only results that were scraped longer ago than this, such as 7d.",
)
@job_option
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_not_stdout,
    help="File to write (default: a new one in archive/ of the data folder).",
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
    """Move the results in pending/ into one file.

    The file is read back and verified before anything leaves pending/. The records stay in the
    ledger: they can still be listed, exported, bundled and synced. Safe to interrupt: run the same
    command again to continue.

    \b
    Example:
      python -m crawler results archive --compress
      python -m crawler results archive --compress --older-than 30d
    """
    from crawler.results import archive as archiving

    compress = compress or (output is not None and output.suffix == ".zst")
    with existing_store() as lpm:
        job = find_job_if_named(lpm, job_name)
        before = None
        if older_than is not None:
            before = lpm.now() - older_than
        elif open_tasks := lpm.counts.progress(job).open:
            left = "their results may be missing, and stay in pending/"
            say(f"{open_tasks:,} tasks are still open: {left}")
        done = archiving.archive(
            lpm, output, compress=compress, job=job, before=before, progress=say
        )
    if as_json:
        print_json(done)
    elif done.file is None:
        print("Nothing to archive: no such results lie in pending/")
    else:
        file = output or config.load().data_dir / "archive" / Path(done.file).name
        size = f"{size_text(done.bytes)}, verified"
        print(f"Archived {done.results} results to {printable(str(file))} ({size})")


@results.command()
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    callback=_not_stdout,
    help="File to write, such as parcels.crawlbundle.tar.zst.",
)
@job_option
@since_option
@click.option("--no-raw", is_flag=True, help="Leave out the raw pages.")
@json_option
@data_dir_option
def bundle(
    output: Path, job_name: str | None, since: float | None, no_raw: bool, as_json: bool
) -> int:
    """Write results and their raw pages to one file for another machine.

    There, `results unbundle` takes them in. Both commands print the checksum of the file's
    manifest.

    Warns on stderr if tasks are open. Exits with 5 if tasks are unaccounted for (see `job verify`).

    \b
    Example:
      python -m crawler results bundle --output parcels.crawlbundle.tar.zst --job parcels.csv
    """
    from crawler.results.bundle import bundle as write

    with existing_store() as lpm:
        job = find_job_if_named(lpm, job_name)
        missing = warn_incomplete(lpm, job)
        done = write(lpm, output, job=job, since=since, raw=not no_raw)
    if done.unreadable:
        left_out = "cannot be read and were left out; their records are in the bundle"
        say(f"{done.unreadable:,} pages {left_out}")
    if as_json:
        print_json(done)
    elif done.file is None:
        print("Nothing to bundle: there are no such results")
    else:
        print(f"Checksum {done.checksum}")
        content = f"{done.results} results with {done.pages} pages"
        print(f"Bundled {content} to {done.file} ({size_text(done.bytes)})")
    if missing:
        return UNACCOUNTED
    return int(done.unreadable > 0)


@results.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
@data_dir_option
def unbundle(file: Path, as_json: bool) -> None:
    """Take in the results and pages of FILE that this store does not have. A damaged file changes
    nothing.

    The results get a job of their own. Like all standalone results they are held until `sync push`.
    The same file again changes nothing.

    \b
    Example:
      python -m crawler results unbundle parcels.crawlbundle.tar.zst
    """
    from crawler.results.bundle import unbundle as take_in

    settings = config.load()
    with LocalPersistenceManager(settings.data_dir) as lpm:
        done = take_in(lpm, file, settings.max_body)
    if as_json:
        print_json(done)
        return
    print(f"Checksum {done.checksum}")
    if done.job:
        print(f"Job {printable(done.job)}")
    if done.open:
        left = "tasks without a result here; they did not change"
        print(f"{done.open:,} of the known ones are {left}")
    if done.added_pages:
        print(f"{done.added_pages:,} pages of known results were missing here, and were taken in")
    print(f"{done.results} results: {done.new} new, {done.known} known")


@click.command()
@click.option("--raw", is_flag=True, help="Delete raw pages.")
@click.option("--jobs", is_flag=True, help="Delete finished jobs with all that belongs to them.")
@click.option(
    "--older-than",
    type=Duration(),
    help="Only segments that were last written, or jobs that ended, longer ago than this, such as "
    "30d.",
)
@click.option(
    "--also-unexported",
    is_flag=True,
    help="With --jobs: also jobs with results that were never exported, archived, bundled or "
    "delivered.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be deleted; delete nothing.")
@json_option
@data_dir_option
def prune(
    raw: bool,
    jobs: bool,
    older_than: float | None,
    also_unexported: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Delete old raw pages, or old jobs.

    --raw deletes whole segments; records and results stay. A segment holds the pages of at most a
    day. It is kept while a worker writes to it, and while the Gateway has not got the results of
    its pages.

    --jobs deletes finished jobs with their tasks, results, timelines and files in pending/, beside
    a running stack. Listings and price histories stay, and raw pages until `prune --raw`; but the
    pages of removed jobs can no longer be replayed or shown, and the next crawl fetches them in
    full. A job is kept, and named, while it has open tasks, losses, or results for the Gateway;
    while a job that stays has some of its tasks; if results, as they are now, were never exported,
    archived, bundled or delivered (`results follow` and `listings export` do not count); and if it
    is the newest job, or has the newest task or entry in a timeline.

    \b
    Example:
      python -m crawler prune --raw --older-than 30d
      python -m crawler prune --jobs --older-than 90d --dry-run
    """
    if raw and jobs:
        raise click.UsageError("--raw and --jobs: only one of them at a time")
    if not (raw or jobs) or older_than is None:
        raise click.UsageError(
            f"choose what to remove, and how old: {program()} prune --raw --older-than 30d, or "
            f"{program()} prune --jobs --older-than 90d"
        )
    if raw and also_unexported:
        raise click.UsageError("--also-unexported goes with --jobs")
    if jobs:
        _prune_jobs(older_than, also_unexported, dry_run, as_json)
    else:
        _prune_raw(older_than, dry_run, as_json)


def _prune_jobs(older_than: float, also_unexported: bool, dry_run: bool, as_json: bool) -> None:
    from crawler.results.retention import prune_jobs

    with existing_store() as lpm:
        done = prune_jobs(
            lpm,
            lpm.now() - older_than,
            also_unexported=also_unexported,
            dry_run=dry_run,
            progress=say,
        )
        can_shrink = lpm.retention.gives_room_back()
    if as_json:
        print_json(done)
        return
    verb, line = "Would remove" if dry_run else "Removed", "Nothing to remove"
    if done.jobs:
        removed = (
            f"{counted(len(done.jobs), 'job')}, {done.tasks:,} tasks, {done.results:,} results"
        )
        line = f"{verb} {removed}"
        if done.bytes:
            line += f"; lpm.db has become {size_text(done.bytes)} smaller"
    before = datetime.fromtimestamp(max(0.0, done.before), UTC)
    print(f"{line} (jobs that ended before {before:%Y-%m-%d %H:%M} UTC)")
    for name in done.jobs:
        print(f"  {verb.lower()} {printable(name)}")
    for job in done.kept:
        print(f"  kept {printable(job.job)}: {printable(job.reason)}")
    if done.jobs and not dry_run and not can_shrink:
        say(f"lpm.db keeps its size for what comes; {program()} doctor --compact shrinks it")


def _prune_raw(older_than: float, dry_run: bool, as_json: bool) -> None:
    from crawler.results import archive as archiving

    with existing_store() as lpm:
        done = archiving.prune(lpm, lpm.now() - older_than, dry_run)
    if as_json:
        print_json(done)
        return
    parts = ["Nothing to remove"]
    if done.segments:
        verb = "Would remove" if dry_run else "Removed"
        removed = f"{counted(done.segments, 'segment')}, {size_text(done.bytes)}"
        parts = [f"{verb} {removed}, pages of {done.results:,} results"]
    if done.in_use:
        parts.append(f"{counted(done.in_use, 'segment')} kept (in use)")
    if done.for_gateway:
        kept = counted(done.for_gateway, "segment")
        parts.append(f"{kept} kept (their results are not delivered yet)")
    print("; ".join(parts))


@click.command()
@click.argument("path")
@click.argument("path2", required=False)
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    help="Write an HTML report to this file; it needs no network.",
)
@click.option("--job", help="Only this job of a data folder.")
@json_option
@data_dir_option
def analyze(
    path: str, path2: str | None, html: Path | None, job: str | None, as_json: bool
) -> None:
    """Describe results: which fields they have and lack. With two paths, show what changed from
    the first to the second.

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
        with store.whole_file(html) as out:
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
        raise UsageError(f"{html} is the input; nothing was written: choose another name")
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
        progress = _read_progress()
        if len(runs) > 1:
            return compare(runs[0], runs[1], progress)
        return profile(runs[0], progress)


def _read_progress() -> Callable[[int], None]:
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
            console.print(_section_table(console, section))
        more = max(len(section.lines) - _MAX_LINES, len(section.rows) - _MAX_ROWS)
        if more > 0:
            console.print(f"… and {more:,} more; --html and --json have them all")


def _section_table(console: "Console", section: "Section") -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0, show_edge=False)
    for head in section.heads:
        if head.startswith(">"):
            table.add_column(head[1:], justify="right", no_wrap=True)
        elif head.startswith("…"):
            width = max(20, console.width - 60)  # the other columns take about 60 characters
            table.add_column(head[1:], no_wrap=True, overflow="ellipsis", max_width=width)
        else:
            table.add_column(head, overflow="fold")
    for row in section.rows[:_MAX_ROWS]:
        table.add_row(*map(_cell, row))
    return table


def _cell(value: str | float) -> str:
    from crawler.analyze import report

    if isinstance(value, float):
        return report.percent(value)
    return printable(value)
