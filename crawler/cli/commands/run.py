"""`run` and `resume`: from a file to results in the foreground."""

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from crawler import config
from crawler.cli.commands.bulk import queue_option
from crawler.cli.commands.stack import workers_option
from crawler.cli.output import BooksProgress, data_dir_option, json_option, print_json, say
from crawler.config import Settings
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager
from crawler.models import Books, Job


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@queue_option
@workers_option
@click.option("--job", "job_name", help="The job's name (default: the file's).")
@json_option
@data_dir_option
def run(file: Path, queue: str, workers: int | None, job_name: str | None, as_json: bool) -> int:
    """Collect every URL of FILE: import, crawl, summary. Safe to interrupt: typed again, it goes on where it was.

    \b
    Example:
      python -m crawler run parcels.csv --workers 4
    """
    from crawler.bulk import import_file

    settings = config.load()
    summary, job = import_file(settings, file, queue, job_name=job_name, progress=say)
    say(f"job {job.name}: {summary.accepted:,} new, {summary.known:,} known, {summary.rejected:,} rejected")
    if summary.rejects_file:
        say(f"rejected rows are in {summary.rejects_file}")
    with running_stack(settings, workers):
        books = follow(settings, job)
    report(settings, books, job, as_json)
    return 0 if books.completed == books.accepted and not summary.rejected else 1


@click.command()
@workers_option
@json_option
@data_dir_option
def resume(workers: int | None, as_json: bool) -> int:
    """Go on with every open task, from whatever door, until none is open.

    \b
    Example:
      python -m crawler resume
    """
    settings = config.load()
    with running_stack(settings, workers):
        books = follow(settings, None)
    report(settings, books, None, as_json)
    return 0 if not books.failed + books.expired else 1


@contextlib.contextmanager
def running_stack(settings: Settings, workers: int | None) -> Iterator[None]:
    """The stack that is up already, or one of our own for as long as this lasts."""
    from crawler.orchestrator import Orchestrator, terminated_by_signal
    from crawler.process import read_stack

    if read_stack(settings.data_dir).up:
        say("a stack is up already: joining it")
        yield
        return
    say("starting Redis and workers …")
    with terminated_by_signal(), Orchestrator(settings, workers) as stack:
        try:
            stack.start_all()
            yield
        except (KeyboardInterrupt, SystemExit):
            say("stopping; type the same command again to go on (once more to stop at once)")
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: stack.kill_all())
            raise


def follow(settings: Settings, job: Job | None) -> Books:
    """Show progress until the job (or, with none, everything) is done."""
    lpm = LocalPersistenceManager(settings.data_dir)
    with BooksProgress(job.name if job else "all jobs") as progress, contextlib.closing(lpm):
        while True:
            with lpm.errors():
                began = time.monotonic()
                books = lpm.ledger.progress(job)
            progress.show(books)
            if not books.open:
                lpm.ledger.finalise(lpm.now())  # the maintainer would, but may be stopped before it has seen it
                return books
            time.sleep(max(0.3, 10 * (time.monotonic() - began)))  # counting a million tasks must not be the work


def report(settings: Settings, books: Books, job: Job | None, as_json: bool) -> None:
    """What was collected, what was not and why."""
    lpm = LocalPersistenceManager(settings.data_dir)
    reasons = lpm.ledger.reasons(job)
    examples = lpm.ledger.failures(job, limit=5)
    lpm.close()
    if as_json:
        facts: dict[str, Any] = {"job": job.name if job else None, "books": books, "reasons": reasons}
        print_json(facts)
        return
    print(f"{books.completed:,} of {books.accepted:,} pages collected; results in {lpm.pending}/")
    for reason, count in reasons.items():
        print(f"  {count:,} failed: {reason}")
    for url, reason, message in examples:
        print(f"    {printable(url)}: {printable(message or reason)}")
