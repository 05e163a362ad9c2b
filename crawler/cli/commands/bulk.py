"""`bulk import`, `run` and `resume`: import files, and crawl what they list."""

import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from crawler import config, sites, times
from crawler.bulk import INPUT, Summary, import_file, rows, spooled
from crawler.cli.options import (
    Deadline,
    Rate,
    Span,
    data_dir_option,
    json_option,
    robots_option,
    session_options,
    workers_option,
)
from crawler.cli.output import (
    UNACCOUNTED,
    BooksProgress,
    delivery_of,
    newest,
    print_json,
    print_missing_fields,
    print_reasons,
    print_receipt,
    require_store,
    say,
)
from crawler.config import Settings, program
from crawler.db import guard
from crawler.db.jobs import mend
from crawler.errors import InputError, ServiceError, StoreError, UsageError, place
from crawler.forecast import Forecast, of_job, sentence
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager
from crawler.models import QUEUES, Books, Job, JobOptions
from crawler.waits import StallMonitor, WaitFinder, endless_wait

if TYPE_CHECKING:
    from crawler.fetch.session import Session

_MAX_SHOWN = 5
"""Good and bad rows, each, that a dry run shows."""


def _job_name(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    if value is not None and not (value.strip() and value.isprintable() and len(value) <= 100):
        raise click.BadParameter("a name has 1 to 100 characters, all of them printable")
    return value


job_option = click.option(
    "--job", "job_name", callback=_job_name, help="The job's name (default: the file's)."
)
fresh_option = click.option(
    "--fresh-for", type=Span(), help="Leave out what was collected within this time, such as 12h."
)
deadline_option = click.option(
    "--deadline",
    type=Deadline(),
    help="Have it done by then: 17:00, 45m or 2026-11-15T17:00; the rest expires.",
)
rate_option = click.option(
    "--rate",
    type=Rate(),
    help="Requests to each domain, as 50/s or 30/m, or none: for servers of your own.",
)
url_column_option = click.option("--url-column", help="The column with the URLs (default: url).")
queue_option = click.option(
    "--queue", type=click.Choice(QUEUES), default="default", show_default=True
)


@click.group()
def bulk() -> None:
    """Import tasks from files.

    \b
    Example:
      python -m crawler bulk import parcels.csv --queue urgent
    """


@bulk.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@queue_option
@click.option(
    "--batch-size",
    type=click.IntRange(1, 100),
    default=100,
    show_default=True,
    help="Tasks per message, at most.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be imported, and import nothing.")
@click.option("--strict", is_flag=True, help="Check all rows first; import nothing if one is bad.")
@fresh_option
@deadline_option
@job_option
@rate_option
@url_column_option
@robots_option
@session_options
@json_option
@data_dir_option
def import_(
    file: Path,
    queue: str,
    batch_size: int,
    dry_run: bool,
    strict: bool,
    fresh_for: float | None,
    deadline: float | None,
    job_name: str | None,
    rate: str | None,
    url_column: str | None,
    ignore_robots: bool,
    session: "Session | None",
    as_json: bool,
) -> int:
    """Import FILE (CSV, JSON, JSONL, TXT, also .gz, or XLSX) into the ledger; needs no Redis.

    A bad row is left out and noted in FILE.rejects.jsonl. The same file again continues its job
    while that is open. With - as FILE it is read from stdin, kept in the store's input/, and known
    again by its content.

    \b
    Example:
      python -m crawler bulk import auction_parcels.csv --queue=urgent --deadline 17:00
      zcat parcels.csv.gz | python -m crawler bulk import - --url-column link
    """
    settings = config.load()
    how = JobOptions(rate=rate, ignore_robots=ignore_robots, url_column=url_column)
    if dry_run:
        with tempfile.TemporaryDirectory() as scratch, input_file(file, Path(scratch)) as given:
            return _dry_run(settings, given, queue, url_column, as_json)
    options: dict[str, Any] = {
        "queue": queue,
        "batch_size": batch_size,
        "strict": strict,
        "fresh_for_s": fresh_for,
        "job_name": job_name,
        "deadline": deadline,
        "how": how,
    }
    job, seen = None, None
    with input_file(file, settings.data_dir / INPUT) as given:
        if guard.is_on_other_kernel(settings.data_dir):
            from crawler import inbox

            if session:
                raise UsageError(
                    "headers, cookies and a proxy cannot be handed over to a stack on another "
                    "kernel: import where that stack runs"
                )
            delivery = inbox.Options(name=inbox.safe_name(given), **options)
            summary = inbox.deliver(settings, given, delivery, say)
        else:
            summary, job = import_file(settings, given, **options, session=session, progress=say)
    if job:
        say_namesakes(settings, job)
        _fill_window(settings)
        deadline, seen = job.deadline, say_forecast(settings, job)
    if as_json:
        print_json(msgspec.structs.asdict(summary) | {"deadline": deadline, "forecast": seen})
    else:
        _show_summary(summary)
    return int(summary.rejected > 0)


def _show_summary(summary: Summary) -> None:
    say(f"job {printable(summary.job)}")
    if summary.other_sheets:
        say(rows.not_read(summary.other_sheets))
    counts = f"{summary.accepted:,} new, {summary.known:,} known, {summary.rejected:,} rejected"
    print(f"{summary.rows:,} rows: {counts}")
    if summary.rejects_file:
        print(f"Rejected rows are in {summary.rejects_file}")
    print(f"Imported {summary.accepted} tasks to queue '{summary.queue}'")


def say_namesakes(settings: Settings, job: Job) -> None:
    """Name earlier jobs from files of this name: commands take a job by its own name."""
    with LocalPersistenceManager(settings.data_dir) as lpm:
        before = [each for each in lpm.jobs.namesakes(job) if each.id < job.id]
    if before:
        say(f"this is the job {job.name}; earlier files of the same name made {newest(before)}")


def say_forecast(settings: Settings, job: Job, starts: bool = False) -> Forecast | None:
    """Say when the job will be done and what will miss its deadline, or what holds it up.

    `starts` means that workers are about to start.
    """
    now, tz = time.time(), times.zone(settings.timezone)
    lpm = LocalPersistenceManager(settings.data_dir)
    with lpm:
        look = WaitFinder(settings, lpm)
        limits = look.limits(job)
        limits = msgspec.structs.replace(limits, running=limits.running or starts)
        waits = [wait for wait in look.of(job, lpm.counts.progress(job)) if wait.kind != "worker"]
        seen = of_job(lpm.counts, job, limits, now, waits)
    if job.deadline:
        say(f"deadline {times.until(job.deadline, now, tz)}")
    if not seen.tasks:
        return None
    if endless := endless_wait(waits):
        say(f"no forecast: {look.line(endless)}")
        return None
    say(f"forecast: {sentence(seen, job, limits, now, tz)}")
    return seen


@contextlib.contextmanager
def input_file(file: Path, folder: Path) -> Iterator[Path]:
    """Yield the file to read; for `-`, stdin is kept in that folder if a job is made of it."""
    if str(file) != "-":
        yield file
        return
    kept = spooled(sys.stdin.buffer, folder)
    try:
        yield kept
    except InputError:
        with contextlib.suppress(UsageError):  # a job needs it
            guard.check_not_input(kept, folder.parent)
            kept.unlink(missing_ok=True)
        raise


def _dry_run(
    settings: Settings, file: Path, queue: str, url_column: str | None, as_json: bool
) -> int:
    """Show what an import would do."""
    good = bad = 0
    pages = set[tuple[bytes, str | None]]()
    for item in rows.read(file, sites.load(settings.config_dir, settings.rate), url_column):
        if isinstance(item, rows.Row):
            good += 1
            task = item.task
            pages.add((task.address.key, task.parcel_id))
            if good <= _MAX_SHOWN and not as_json:
                where, url = place(task.line or 0, task.item), printable(task.address.url)
                print(f"  {where}: {url} (priority {task.priority})")
        else:
            bad += 1
            if bad <= _MAX_SHOWN:
                say(f"{place(item.line, item.item)}: rejected: {item.reason}")
    if sheets := rows.other_sheets(file):
        say(rows.not_read(sheets))
    if bad > _MAX_SHOWN:
        say(f"… and {bad - _MAX_SHOWN:,} more rejected rows")
    new, known = len(pages), good - len(pages)
    if as_json:
        facts = {"rows": good + bad, "good": good, "new": new, "known": known, "rejected": bad}
        print_json(facts | {"queue": queue, "dry_run": True})
        return int(bad > 0)
    if good > _MAX_SHOWN:
        print(f"  … and {good - _MAX_SHOWN:,} more")
    print(f"Would import {new} tasks to queue '{queue}' ({known} known, {bad} rejected)")
    return int(bad > 0)


def _fill_window(settings: Settings) -> None:
    """Publish the first tasks if Redis answers; otherwise the next worker does."""
    import redis

    from crawler.redis_client import connect
    from crawler.stack import redis_address

    try:
        connect(redis_address(settings)).ping()
        from crawler.tasks import fill_window

        fill_window()
    except (redis.RedisError, ServiceError):
        waiting = f"the tasks wait in the ledger for the next worker ({program()} up)"
        say(f"Redis is not running: {waiting}")


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
