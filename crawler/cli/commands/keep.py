"""`results archive`, `bundle`, `unbundle` and `prune`: what is kept, carried and removed."""

from pathlib import Path

import click

from crawler import config
from crawler.cli.output import (
    UNACCOUNTED,
    data_dir_option,
    job_of,
    json_option,
    print_json,
    say,
    size_of,
    stored,
    tell_missing,
)
from crawler.cli.types import Span, only_job_option, since_option
from crawler.config import program
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager


def _not_stdout(
    _context: click.Context, _option: click.Parameter, value: Path | None
) -> Path | None:
    if str(value) == "-":
        raise click.BadParameter("it must be a file: what was written is read again")
    return value


@click.command()
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


@click.command()
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


@click.command()
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
