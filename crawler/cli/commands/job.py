"""`job`, `tasks`, `retry` and `why`: jobs and tasks in detail."""

import contextlib
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator
from datetime import date, datetime, tzinfo
from typing import TYPE_CHECKING, Any

import click
import msgspec

from crawler import config, times
from crawler.cli.options import data_dir_option, job_option, json_option, role_option
from crawler.cli.output import (
    UNACCOUNTED,
    check_reason,
    existing_store,
    find_job,
    find_job_if_named,
    job_label,
    print_json,
    print_left_out,
    print_reasons,
    print_receipt,
    print_rendered,
    say,
    task_label,
)
from crawler.config import argument, program
from crawler.db import owners
from crawler.db.gateway import Delivery
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job, JobStatus, TaskStatus

if TYPE_CHECKING:
    from crawler.history import TaskHistory

_WITHOUT_RESULT = ("failed", "skipped", "expired")
_MAX_LISTED = 100


@click.group()
def job() -> None:
    """List, show, verify, accept, pause, resume and cancel jobs.

    \b
    Example:
      python -m crawler job list
      python -m crawler job verify parcels.csv
    """


@job.command("list")
@json_option
@data_dir_option
def list_(as_json: bool) -> None:
    """List all jobs with their progress, the oldest first.

    \b
    Example:
      python -m crawler job list
    """
    with existing_store() as lpm:
        jobs = lpm.jobs.all()
        books = [lpm.counts.of_job(each) for each in jobs]
        crawls = map(lpm.crawls.progress, jobs, books)
        found = list(zip(jobs, books, lpm.unaccounted(jobs), crawls, strict=True))
    if as_json:
        print_json(
            [
                _job_facts(each) | {"books": counts, "unaccounted": missing, "crawl": crawl}
                for each, counts, missing, crawl in found
            ]
        )
        return
    for each, counts, missing, crawl in found:
        done = f"{counts.accepted - counts.open:,} of {counts.accepted:,} done"
        without_result = counts.failed + counts.skipped + counts.expired
        if without_result:
            done += f", {without_result:,} without a result"
        if crawl:
            done = str(crawl)
        print(f"{printable(each.name)[:34]:34} {each.state:9} {done}")
        for what in missing:
            print(f"  UNACCOUNTED: {printable(what)}")
    if not found:
        print(f"There are no jobs yet; {program()} bulk import FILE makes one")


@job.command()
@click.argument("name")
@json_option
@data_dir_option
def show(name: str, as_json: bool) -> None:
    """Show a job: its progress, when it will be done, what failed and why.

    \b
    Example:
      python -m crawler job show parcels.csv
    """
    from crawler.forecast import of_job, sentence
    from crawler.waits import WaitFinder, endless_wait

    settings = config.load()
    tz = times.zone(settings.timezone)
    with existing_store() as lpm:
        each = find_job(lpm, name)
        receipt = lpm.receipt(each)
        crawl = lpm.crawls.progress(each, receipt.books)
        examples, rendered = lpm.counts.examples(each), lpm.counts.in_browsers(each)
        finder, now = WaitFinder(settings, lpm), lpm.now()
        limits, later = finder.limits(each), lpm.jobs.later_namesakes(each)
        waits = finder.find(each, receipt.books)
        endless = endless_wait([wait for wait in waits if wait.kind != "worker"])
        forecast = None
        if receipt.books.open and not endless:
            forecast = of_job(lpm.counts, each, limits, now, waits)
    if as_json:
        facts = {"receipt": receipt, "failures": examples, "forecast": forecast, "waits": waits}
        print_json(_job_facts(each) | facts | {"crawl": crawl} | _later_jobs(later))
        return
    origin = printable(each.source_file or "no file")
    if each.of_gateway:
        origin = "a Gateway"
    elif each.options.crawl:
        origin = printable(" ".join(each.options.crawl.starts))
    print(f"{printable(each.name)}: {receipt.status}, queue {each.queue}, from {origin}")
    period = f"began {times.show(each.created_at, now, tz)}"
    if each.completed_at:
        period += f", ended {times.show(each.completed_at, now, tz)}"
    print(period)
    if each.deadline:
        print(f"deadline {times.until(each.deadline, now, tz)}")
    if forecast:
        print(f"forecast: {sentence(forecast, each, limits, now, tz)}")
    for wait in waits:
        title = "no forecast" if wait is endless else "waits"
        print(f"{title}: {printable(finder.describe(wait))}")
    if crawl:
        print(f"crawl: {crawl}")
    print_rendered(rendered)
    print_reasons(receipt.reasons, examples, each)
    if receipt.crawl:
        print_left_out(receipt.crawl)
    print_receipt(receipt)


@job.command()
@click.argument("name")
@json_option
@data_dir_option
def verify(name: str, as_json: bool) -> int:
    """Print a job's receipt: every row and task, and whether all are accounted for.

    Exits with 5 if a task is open or the counts do not add up, and with 4 if the store cannot be
    read.

    \b
    Example:
      python -m crawler job verify parcels.csv && echo all accounted for
    """
    with existing_store() as lpm:
        each = find_job(lpm, name)
        receipt = lpm.verify(each)
        failures = list(lpm.tasks.select(each, _WITHOUT_RESULT))
        examples = lpm.counts.examples(each, most=20)
        delivery, later = lpm.outbox.delivery(each), lpm.jobs.later_namesakes(each)
    open_tasks = receipt.books.open
    if as_json:
        facts = {"created_at": each.created_at, "failures": failures, "delivery": delivery}
        print_json(msgspec.structs.asdict(receipt) | facts | _later_jobs(later))
    else:
        print(printable(job_label(each)))
        print_reasons(receipt.reasons, examples, each)
        print_receipt(receipt)
        if open_tasks:
            print(f"{open_tasks:,} tasks are still open")
        elif not receipt.problems:
            print("Every task is in a final state")
        if delivery.concerns_gateway:
            _print_delivery(delivery)
    if open_tasks or receipt.problems:
        return UNACCOUNTED
    return 0


def _print_delivery(found: Delivery) -> None:
    print(f"The Gateway has {found.synced:,} results and {found.reports_synced:,} reports")
    if found.unsent:
        left = f"{found.ready:,} results and {found.reports_ready:,} reports"
        print(f"  not delivered yet: {left}; details: {program()} sync status")
    if found.refused:
        left = f"{found.rejected:,} results and {found.reports_rejected:,} reports"
        print(f"  rejected: {left}; reasons: {program()} sync rejected")


@job.command()
@click.argument("name")
@json_option
@data_dir_option
def accept(name: str, as_json: bool) -> None:
    """Accept that a job is incomplete: its import was interrupted, or a repair lost something.

    Its receipt then lists what is missing as accepted.

    \b
    Example:
      python -m crawler job accept parcels.csv
    """
    with existing_store() as lpm:
        each = find_job(lpm, name)
        missing = lpm.accept(each)
    if not missing:
        raise click.UsageError(f"nothing is known to be missing from {name}")
    if as_json:
        print_json({"job": each.name, "accepted": missing})
        return
    _print_accepted(each, missing)


def _print_accepted(each: Job, missing: list[str]) -> None:
    for what in missing:
        print(f"Accepted for {printable(each.name)}: {printable(what)}")


@job.command()
@click.argument("name")
@data_dir_option
def pause(name: str) -> None:
    """Stop fetching a job until `job resume`. Pages in flight are finished.

    \b
    Example:
      python -m crawler job pause parcels.csv
    """
    with _open_job(name) as (lpm, each):
        count = lpm.jobs.hold(each, "paused", lpm.now())
    again = f"{program()} job resume {argument(each.name)}"
    print(f"Paused {printable(each.name)}: {count:,} tasks wait; continue with: {printable(again)}")


@job.command()
@click.argument("name")
@data_dir_option
def resume(name: str) -> None:
    """Continue a paused job.

    \b
    Example:
      python -m crawler job resume parcels.csv
    """
    with _open_job(name) as (lpm, each):
        if each.hold not in ("paused", "resuming"):
            raise click.UsageError(f"{name} is not paused")
        count = lpm.jobs.release(each)
    print(f"Resumed {printable(each.name)}: {count:,} tasks are due again")


@job.command()
@click.argument("name")
@data_dir_option
def cancel(name: str) -> None:
    """End a job: waiting tasks are skipped with the reason `cancelled`. Pages in flight are
    finished.

    \b
    Example:
      python -m crawler job cancel parcels.csv
    """
    with _open_job(name, cancelled_too=True) as (lpm, each):
        count = lpm.jobs.hold(each, "cancelled", lpm.now())
        accepted = lpm.accept_import(each)  # the rest of an interrupted import is not wanted either
        lpm.jobs.finalise(lpm.now())
        [missing] = lpm.unaccounted([lpm.jobs.get(each.id)])
    again = f"{program()} retry --skipped --reason cancelled --job {shlex.quote(each.name)}"
    skipped = f"{count:,} tasks are skipped (to retry them: {printable(again)})"
    print(f"Cancelled {printable(each.name)}: {skipped}")
    _print_accepted(each, accepted)
    for what in missing:
        print(f"UNACCOUNTED: {printable(what)}")


@contextlib.contextmanager
def _open_job(
    name: str, cancelled_too: bool = False
) -> Iterator[tuple[LocalPersistenceManager, Job]]:
    """Yield the store and a job that has not ended."""
    with existing_store() as lpm:
        each = find_job(lpm, name)
        if each.status is JobStatus.DONE:
            raise click.UsageError(f"{name} has ended already")
        if each.hold == "cancelled" and not cancelled_too:
            raise click.UsageError(f"{name} is cancelled; its pages in flight are finished")
        yield lpm, each


def _later_jobs(later: list[Job]) -> dict[str, list[str]]:
    return {"later_jobs": [each.name for each in later]}


def _job_facts(each: Job) -> dict[str, Any]:
    return msgspec.structs.asdict(each) | {"state": each.state}


@click.group()
def tasks() -> None:
    """List tasks by state and reason.

    \b
    Example:
      python -m crawler tasks list --status failed --reason timeout
    """


@tasks.command("list")
@click.option(
    "--status",
    "statuses",
    type=click.Choice([str(status) for status in TaskStatus]),
    multiple=True,
    help="Only this state; repeatable.",
)
@click.option("--reason", help="Only this reason, such as timeout or http_500.")
@job_option
@role_option
@click.option("--domain", help="Only this domain.")
@click.option(
    "--limit", type=click.IntRange(1), help="Maximum tasks to list (default: 100; --json: all)."
)
@json_option
@data_dir_option
def list_tasks(
    statuses: tuple[str, ...],
    reason: str | None,
    job_name: str | None,
    roles: tuple[str, ...],
    domain: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """List tasks in the order of their import; with --json, one object per line.

    \b
    Example:
      python -m crawler tasks list --job parcels.csv --status failed --reason timeout
    """
    most = limit
    if most is None and not as_json:
        most = _MAX_LISTED + 1  # one more, to see whether there are more
    count = 0
    with existing_store() as lpm:
        each = find_job_if_named(lpm, job_name)
        for task in lpm.tasks.select(each, statuses, reason, domain, most, roles):
            count += 1
            if as_json:
                print(msgspec.json.encode(task).decode())
            elif count > _MAX_LISTED and not limit:
                say("… and more; --limit N or --json lists them")
            else:
                state = f"{task['status']:10} {task['reason'] or '-':16}"
                print(f"{task['task_id'][:12]} {state} {task_label(task)}")
        if not count and reason:
            check_reason(lpm, reason)


@click.command()
@click.option("--failed", is_flag=True, help="Tasks that failed.")
@click.option("--expired", is_flag=True, help="Tasks that missed their deadline; it is removed.")
@click.option("--skipped", is_flag=True, help="Tasks that were skipped or cancelled.")
@click.option("--reason", help="Only this reason, such as timeout or http_500.")
@job_option
@json_option
@data_dir_option
def retry(
    failed: bool,
    expired: bool,
    skipped: bool,
    reason: str | None,
    job_name: str | None,
    as_json: bool,
) -> None:
    """Retry tasks that ended without a result.

    Running workers fetch them at once. If none runs, start `resume`.

    \b
    Example:
      python -m crawler retry --failed --reason timeout --job parcels.csv
    """
    wanted = {"failed": failed, "skipped": skipped, "expired": expired}
    chosen = [state for state in _WITHOUT_RESULT if wanted[state]]
    if not chosen:
        raise click.UsageError("choose what to retry: --failed, --expired or --skipped")
    with existing_store() as lpm:
        each = find_job_if_named(lpm, job_name)
        again, left = lpm.tasks.retry(chosen, reason, each, lpm.now())
        if reason and not again + left:
            check_reason(lpm, reason)
        workers = owners.workers(lpm.owners)
    if as_json:
        print_json({"retried": again, "open_elsewhere": left})
        return
    print(f"{again:,} tasks are pending again")
    if left:
        print(f"{left:,} were left: their URL is open in another task")
    if again and not workers:
        say(f"no worker runs; continue with: {program()} resume")


@click.command()
@click.argument("url")
@json_option
@data_dir_option
def why(url: str, as_json: bool) -> None:
    """Show everything that happened to a URL, from the line of the file to the delivered result.

    Instead of a URL you can give a task's id.

    \b
    Example:
      python -m crawler why http://county.example/parcel/123
    """
    from crawler.history import timeline
    from crawler.waits import WaitFinder

    settings = config.load()
    with existing_store() as lpm:
        finder = WaitFinder(settings, lpm)
        found = [timeline(lpm, task, finder) for task in lpm.tasks.find(url)]
    if as_json:
        print_json(found)
        return
    for number, each in enumerate(found):
        if number:
            print()
        _print_timeline(each, times.zone(settings.timezone))


def _print_timeline(found: "TaskHistory", tz: tzinfo | None) -> None:
    from crawler.history import step_text
    from crawler.waits import describe_wait

    print(printable(found.url or found.their_id or "no URL"))
    state = f"task {found.task_id}, {found.status}"
    if found.reason:
        state += f": {found.reason} – {found.message}"
    print(printable(state))
    day: date | None = None
    for step in found.steps:
        clock = ""
        if step.at is not None:
            at = datetime.fromtimestamp(step.at, tz).astimezone(tz)
            if at.date() != day:
                day = at.date()
                print(f"{at:%A %d %B %Y, %Z}")
            clock = f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}"
        _print_wrapped(f"  {clock:13}{step.what:12} {step_text(step, tz, day)}".rstrip())
    for wait in found.waits:
        _print_wrapped(f"  {'':13}{'waits for':13}{describe_wait(wait, time.time(), tz)}")


def _print_wrapped(line: str) -> None:
    """Print a step; on a terminal, indent what does not fit into a line."""
    line = printable(line)
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns - 1
        line = textwrap.fill(line, width, subsequent_indent=" " * 28)
    print(line)
