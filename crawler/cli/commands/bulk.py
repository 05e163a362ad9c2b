"""`bulk import`, `run` and `resume`: import files, and crawl the URLs in them."""

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from crawler import config, sites, times
from crawler.bulk import INPUT, Summary, import_file, rows, spool_stdin
from crawler.cli.options import (
    Deadline,
    Duration,
    Rate,
    data_dir_option,
    fetcher_option,
    json_option,
    robots_option,
    session_options,
    workers_option,
)
from crawler.cli.output import (
    newest_label,
    print_json,
    require_store,
    say,
)
from crawler.cli.running import report, run_job
from crawler.config import Settings, program
from crawler.db import guard
from crawler.errors import InputError, ServiceError, UsageError, place
from crawler.forecast import Forecast, of_job, sentence
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager
from crawler.models import QUEUES, Fetcher, Job, JobOptions
from crawler.waits import WaitFinder, endless_wait

if TYPE_CHECKING:
    from crawler.fetch.session import Session

T = TypeVar("T")

_MAX_SHOWN = 5
"""Good rows, and bad rows, that a dry run shows."""


def check_job_name(
    _context: click.Context, _option: click.Parameter, value: str | None
) -> str | None:
    """Refuse what cannot be the name of a job."""
    if value is not None and not (value.strip() and value.isprintable() and len(value) <= 100):
        raise click.BadParameter("a name has 1 to 100 characters, all of them printable")
    return value


queue_option = click.option(
    "--queue",
    type=click.Choice(QUEUES),
    default="default",
    show_default=True,
    help="Urgent tasks overtake all others.",
)
_IMPORT_OPTIONS = (
    click.option(
        "--fresh-for",
        type=Duration(),
        help="Skip URLs that were collected within this time, such as 12h.",
    ),
    click.option(
        "--deadline",
        type=Deadline(),
        help="Tasks not done by then expire: 17:00 (the next one), 45m or 2026-11-15T17:00.",
    ),
    click.option(
        "--job",
        "job_name",
        callback=check_job_name,
        help="Name of the job (default: the file's name).",
    ),
    click.option(
        "--rate",
        type=Rate(),
        help="Requests to each domain: 50/s, 30/m, or none for servers of your own.",
    ),
    click.option("--url-column", help="Column with the URLs (default: url)."),
    fetcher_option,
    robots_option,
    session_options,
    json_option,
    data_dir_option,
)


def import_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add the options that `bulk import` and `run` share.

    The command gets `options`, which are arguments of `import_file`, `session` and `as_json`.
    """

    @wraps(command)
    def with_options(
        fresh_for: float | None,
        deadline: float | None,
        job_name: str | None,
        rate: str | None,
        url_column: str | None,
        fetcher: Fetcher | None,
        ignore_robots: bool,
        **others: Any,
    ) -> T:
        options = {
            "fresh_for_s": fresh_for,
            "deadline": deadline,
            "job_name": job_name,
            "how": JobOptions(
                rate=rate, ignore_robots=ignore_robots, url_column=url_column, fetcher=fetcher
            ),
        }
        return command(options=options, **others)

    for option in reversed(_IMPORT_OPTIONS):
        with_options = option(with_options)
    return with_options


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
    help="Maximum tasks per message.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be imported; import nothing.")
@click.option("--strict", is_flag=True, help="Check all rows first; import nothing if one is bad.")
@import_options
def import_(
    file: Path,
    queue: str,
    batch_size: int,
    dry_run: bool,
    strict: bool,
    options: dict[str, Any],
    session: "Session | None",
    as_json: bool,
) -> int:
    """Import the rows of FILE as tasks. Needs no Redis.

    FILE is CSV, JSON, JSONL or TXT, also as .gz, or XLSX. Bad rows are skipped and written to
    FILE.rejects.jsonl. Importing the same file again continues its job while that job is open.

    With - as FILE, rows are read from stdin and kept in the folder input/ of the data folder. The
    same content again continues the same job.

    \b
    Example:
      python -m crawler bulk import auction_parcels.csv --queue=urgent --deadline 17:00
      zcat parcels.csv.gz | python -m crawler bulk import - --url-column link
    """
    settings = config.load()
    if dry_run:
        with tempfile.TemporaryDirectory() as scratch, input_file(file, Path(scratch)) as given:
            return _dry_run(settings, given, queue, options["how"].url_column, as_json)
    options |= {"queue": queue, "batch_size": batch_size, "strict": strict}
    deadline, forecast = options["deadline"], None
    with input_file(file, settings.data_dir / INPUT) as given:
        if guard.is_on_other_kernel(settings.data_dir):
            summary, job = _hand_over(settings, given, options, session), None
        else:
            summary, job = import_file(settings, given, **options, session=session, progress=say)
    if job:
        say_earlier_jobs(settings, job)
        _publish_first_tasks(settings)
        deadline, forecast = job.deadline, say_forecast(settings, job)
    if as_json:
        print_json(msgspec.structs.asdict(summary) | {"deadline": deadline, "forecast": forecast})
    else:
        _print_summary(summary)
    return int(summary.rejected > 0)


def _hand_over(
    settings: Settings, file: Path, options: dict[str, Any], session: "Session | None"
) -> Summary:
    """Have the stack import the file: it runs on another kernel, which owns the database."""
    from crawler import inbox

    if session:
        raise UsageError(
            "headers, cookies and a proxy cannot be handed over to a stack on another kernel: "
            "import where that stack runs"
        )
    delivery = inbox.Options(name=inbox.safe_name(file), **options)
    return inbox.deliver(settings, file, delivery, say)


def _print_summary(summary: Summary) -> None:
    say(f"job {printable(summary.job)}")
    if summary.other_sheets:
        say(rows.unread_sheets_note(summary.other_sheets))
    counts = f"{summary.accepted:,} new, {summary.known:,} known, {summary.rejected:,} rejected"
    print(f"{summary.rows:,} rows: {counts}")
    if summary.rejects_file:
        print(f"Rejected rows are in {summary.rejects_file}")
    print(f"Imported {summary.accepted} tasks to queue '{summary.queue}'")


def say_earlier_jobs(settings: Settings, job: Job) -> None:
    """Name earlier jobs from files of the same name: commands need this job's own name."""
    with LocalPersistenceManager(settings.data_dir) as lpm:
        before = [each for each in lpm.jobs.namesakes(job) if each.id < job.id]
    if before:
        earlier = newest_label(before)
        say(f"this is the job {job.name}; earlier files of the same name made {earlier}")


def say_forecast(settings: Settings, job: Job, starting: bool = False) -> Forecast | None:
    """Say when the job will be done and how many tasks will miss its deadline, or what stops it.

    `starting` means that workers are about to start.
    """
    now, tz = time.time(), times.zone(settings.timezone)
    with LocalPersistenceManager(settings.data_dir) as lpm:
        finder = WaitFinder(settings, lpm)
        limits = finder.limits(job)
        limits = msgspec.structs.replace(limits, running=limits.running or starting)
        waits = [
            wait for wait in finder.find(job, lpm.counts.progress(job)) if wait.kind != "worker"
        ]
        forecast = of_job(lpm.counts, job, limits, now, waits)
    if job.deadline:
        say(f"deadline {times.until(job.deadline, now, tz)}")
    if not forecast.tasks:
        return None
    if endless := endless_wait(waits):
        say(f"no forecast: {finder.describe(endless)}")
        return None
    say(f"forecast: {sentence(forecast, job, limits, now, tz)}")
    return forecast


@contextlib.contextmanager
def input_file(file: Path, folder: Path) -> Iterator[Path]:
    """Yield the file to read. For `-`, that is a copy of stdin in `folder`.

    The copy is removed if it cannot be imported and no job needs it.
    """
    if str(file) != "-":
        yield file
        return
    kept = spool_stdin(sys.stdin.buffer, folder)
    try:
        yield kept
    except InputError:
        with contextlib.suppress(UsageError):  # a job needs the copy
            guard.check_not_input(kept, folder.parent)
            kept.unlink(missing_ok=True)
        raise


def _dry_run(
    settings: Settings, file: Path, queue: str, url_column: str | None, as_json: bool
) -> int:
    """Print what an import would do."""
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
        say(rows.unread_sheets_note(sheets))
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


def _publish_first_tasks(settings: Settings) -> None:
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


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@queue_option
@workers_option
@import_options
def run(
    file: Path,
    queue: str,
    workers: int | None,
    options: dict[str, Any],
    session: "Session | None",
    as_json: bool,
) -> int:
    """Crawl every URL of FILE and print a summary.

    Safe to interrupt: run the same command again to continue. With - as FILE, rows are read from
    stdin, as with `bulk import`.

    \b
    Example:
      python -m crawler run parcels.csv --workers 4
    """
    settings = config.load()
    with input_file(file, settings.data_dir / INPUT) as given:
        summary, job = import_file(
            settings, given, queue, **options, session=session, watched=True, progress=say
        )
    counts = f"{summary.accepted:,} new, {summary.known:,} known, {summary.rejected:,} rejected"
    say(f"job {job.name}: {counts}")
    say_earlier_jobs(settings, job)
    if summary.other_sheets:
        say(rows.unread_sheets_note(summary.other_sheets))
    if summary.rejects_file:
        say(f"rejected rows are in {summary.rejects_file}")
    say_forecast(settings, job, starting=True)
    run_job(settings, workers, job)
    return report(settings, job, as_json)


@click.command()
@workers_option
@json_option
@data_dir_option
def resume(workers: int | None, as_json: bool) -> int:
    """Continue with all open tasks until none is open.

    \b
    Example:
      python -m crawler resume
    """
    settings = config.load()
    require_store(settings.data_dir)
    run_job(settings, workers, None)
    return report(settings, None, as_json)
