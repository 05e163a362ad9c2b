"""`run` and `resume`: from a file to results in the foreground."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from crawler import config, times
from crawler.cli.commands.bulk import (
    deadline_option,
    fresh_option,
    input_file,
    job_option,
    queue_option,
    rate_option,
    say_forecast,
    say_namesakes,
    url_column_option,
)
from crawler.cli.commands.stack import workers_option
from crawler.cli.output import (
    UNACCOUNTED,
    BooksProgress,
    data_dir_option,
    delivery_of,
    json_option,
    print_json,
    print_missing_fields,
    print_reasons,
    print_receipt,
    require_store,
    say,
)
from crawler.cli.session import robots_option, session_options
from crawler.config import Settings, program
from crawler.db.jobs import mend
from crawler.errors import StoreError
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager
from crawler.models import Books, Job, JobOptions
from crawler.waits import StallMonitor, WaitFinder

if TYPE_CHECKING:
    from crawler.fetch.session import Session

STACK_CHANGES_S = 30.0
"""How long to wait for another process that is just starting or stopping a stack."""
STACK_GONE_S = 5.0
"""How long a stack that was joined may be away: a container that has died is started again."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@queue_option
@workers_option
@fresh_option
@deadline_option
@job_option
@rate_option
@url_column_option
@robots_option
@session_options
@json_option
@data_dir_option
def run(
    file: Path,
    queue: str,
    workers: int | None,
    fresh_for: float | None,
    deadline: float | None,
    job_name: str | None,
    rate: str | None,
    url_column: str | None,
    ignore_robots: bool,
    session: "Session | None",
    as_json: bool,
) -> int:
    """Collect every URL of FILE: import, crawl, summary. Safe to interrupt: typed again, it goes on
    where it was.

    With - as FILE it is read from stdin, as `bulk import` does.

    \b
    Example:
      python -m crawler run parcels.csv --workers 4
    """
    from crawler.bulk import INPUT, import_file, rows

    settings = config.load()
    with input_file(file, settings.data_dir / INPUT) as given:
        summary, job = import_file(
            settings,
            given,
            queue,
            fresh_for_s=fresh_for,
            job_name=job_name,
            deadline=deadline,
            how=JobOptions(rate=rate, ignore_robots=ignore_robots, url_column=url_column),
            session=session,
            watched=True,
            progress=say,
        )
    say(
        f"job {job.name}: {summary.accepted:,} new, {summary.known:,} known, {summary.rejected:,} rejected"
    )
    say_namesakes(settings, job)
    if summary.other_sheets:
        say(rows.not_read(summary.other_sheets))
    if summary.rejects_file:
        say(f"rejected rows are in {summary.rejects_file}")
    say_forecast(settings, job, starts=True)
    crawl(settings, workers, job)
    return report(settings, job, as_json)


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
    require_store(settings.data_dir)
    crawl(settings, workers, None)
    return report(settings, None, as_json)


class _StackGone(Exception):
    """The stack that was joined has ended before the job."""


def crawl(settings: Settings, workers: int | None, job: Job | None) -> Books:
    """Have the job (or, with none, everything) done by a stack, and show its progress."""
    from crawler.orchestrator import end_orphans

    if left := end_orphans(settings.data_dir):
        say(f"ended {left} processes of a stack whose supervisor is dead")
    fetched = False
    while True:
        if not _has_more(settings, job):
            if not fetched:
                _say_finished(settings, job)
            return follow(settings, job)
        fetched = True
        try:
            with running_stack(settings, workers) as joined, contextlib.suppress(_StackGone):
                return follow(settings, job, joined)
        except (KeyboardInterrupt, SystemExit):
            _say_left(settings, job)
            raise
        say("that stack has ended before this job")


def _say_finished(settings: Settings, job: Job | None) -> None:
    """Tell that there was nothing to do, and since when."""
    if job is None:
        say("no task is open: nothing was fetched")
        return
    lpm = LocalPersistenceManager(settings.data_dir)
    with lpm:
        at = lpm.jobs.ended_at(job)
    when = (
        f" since {times.show(at, time.time(), times.zone(settings.timezone))}"
        if at
        else ", it has no task"
    )
    say(f"job {job.name} is finished{when}: nothing was fetched")


def _say_left(settings: Settings, job: Job | None) -> None:
    """Tell how far the work has come when it is broken off."""
    lpm = LocalPersistenceManager(settings.data_dir)
    with contextlib.suppress(StoreError), lpm:
        books = lpm.counts.progress(job)
        say(
            f"{books.accepted - books.open:,} of {books.accepted:,} are done, {books.open:,} are left"
        )


def _has_more(settings: Settings, job: Job | None) -> bool:
    """Whether tasks are open, or another process is about to bring some."""
    lpm = LocalPersistenceManager(settings.data_dir)
    with lpm:
        return bool(lpm.counts.progress(job).open) or lpm.is_importing(job)


@contextlib.contextmanager
def running_stack(settings: Settings, workers: int | None) -> Iterator[bool]:
    """The stack that is up already (then true), or one of our own for as long as this lasts."""
    from crawler.errors import StackIsUp
    from crawler.orchestrator import Orchestrator, terminated_by_signal
    from crawler.stack import read_stack

    with contextlib.ExitStack() as exits:
        exits.enter_context(terminated_by_signal())
        stack: Orchestrator | None = None
        end = time.monotonic() + STACK_CHANGES_S
        while stack is None:
            if read_stack(settings.data_dir).up:
                say("a stack is up already: joining it")
                yield True
                return
            try:
                stack = exits.enter_context(Orchestrator(settings, workers))
            except StackIsUp:  # another process is just starting or stopping one
                if time.monotonic() > end or read_stack(settings.data_dir).unreadable:
                    raise
                time.sleep(0.1)
        say("starting Redis and workers …")
        try:
            stack.start_all()
            yield False
        except (KeyboardInterrupt, SystemExit):
            say("stopping; type the same command again to go on (once more to stop at once)")
            raise


def follow(settings: Settings, job: Job | None, joined: bool = False) -> Books:
    """Show progress until the job (or, with none, everything) is done."""
    from crawler.stack import read_stack

    lpm = LocalPersistenceManager(settings.data_dir)
    standstill = StallMonitor(WaitFinder(settings, lpm), job)
    with BooksProgress(job) as progress, lpm:
        seen = time.monotonic()
        while True:
            began = time.monotonic()
            books = lpm.counts.progress(job)
            progress.show(
                books,
                standstill.reason(books),
                lpm.counts.forbidden_by_robots(job) if books.skipped else 0,
            )
            if not books.open and not lpm.is_importing(job):
                lpm.jobs.finalise(
                    lpm.now()
                )  # the maintainer would, but may be stopped before it has seen it
                return books
            if not joined or read_stack(settings.data_dir).up:
                seen = time.monotonic()
            elif time.monotonic() - seen > STACK_GONE_S:
                raise _StackGone
            time.sleep(
                max(0.3, 10 * (time.monotonic() - began))
            )  # counting a million tasks must not be the work


def report(settings: Settings, job: Job | None, as_json: bool) -> int:
    """What was collected, what was not and why; the job's end counts as told. Returns the exit
    code.

    Every file that is named here as a result is on the disk before that. Text and exit code are of
    one reading: rows may have come in since the crawl has ended.
    """
    lpm = LocalPersistenceManager(settings.data_dir)
    with lpm:
        lpm.files.secure()
        receipt = lpm.receipt(lpm.jobs.named(job.name)) if job else None
        books = receipt.books if receipt else lpm.counts.progress(None)
        reasons = receipt.reasons if receipt else lpm.counts.reasons(None)
        examples = lpm.counts.examples(job)
        delivery = lpm.outbox.delivery(job)
        receipts = [lpm.receipt(each) for each in lpm.jobs.all()] if not job else []
        unaccounted = [f"{each.job}: {what}" for each in receipts for what in each.problems]
        if not job:
            unaccounted += [f"{fault}; {mend()}" for fault in lpm.jobs.index_faults()]
            unaccounted += [
                f"{what}; {program()} doctor tells more" for what in lpm.pages.missing()
            ]
        if job and not books.open:
            lpm.jobs.mark_reported(job)
    if as_json:
        print_json(
            receipt or {"job": None, "books": books, "reasons": reasons, "problems": unaccounted}
        )
    else:
        left = f"{delivery.pending:,} " if delivery_of(delivery) else ""
        places = "; ".join(
            filter(None, (f"{left}results in {lpm.pending}/", delivery_of(delivery)))
        )
        print(f"{books.completed:,} of {books.accepted:,} pages collected; {places}")
        print_reasons(reasons, examples, job)
        if receipt:
            print_receipt(receipt)
        for each in receipts:
            print_missing_fields(each)
        for problem in unaccounted:
            print(f"UNACCOUNTED: {printable(problem)}")
        if books.open:
            print(
                f"{books.open:,} tasks came in since, and are still open; {program()} resume goes on with them"
            )
    if unaccounted or books.open or (receipt and receipt.problems):
        return UNACCOUNTED
    return 0 if books.completed == books.accepted and not (receipt and receipt.rejected) else 1
