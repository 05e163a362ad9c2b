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
from crawler.cli.options import data_dir_option, json_option
from crawler.cli.output import (
    UNACCOUNTED,
    check_reason,
    imported,
    job_of,
    name_of,
    print_json,
    print_reasons,
    print_receipt,
    say,
    stored,
)
from crawler.config import program
from crawler.db import owners
from crawler.db.gateway import Delivery
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job, JobStatus, TaskStatus

if TYPE_CHECKING:
    from crawler.history import Step, Timeline

_FINAL = ("failed", "skipped", "expired")


@click.group()
def job() -> None:
    """Jobs: list, show, verify, accept, pause, resume, cancel.

    \b
    Example:
      python -m crawler job list
      python -m crawler job verify parcels.csv
    """


@job.command("list")
@json_option
@data_dir_option
def list_(as_json: bool) -> None:
    """List all jobs with their books, the oldest first.

    \b
    Example:
      python -m crawler job list
    """
    with stored() as lpm:
        jobs = lpm.jobs.all()
        books = [lpm.counts.of_job(each) for each in jobs]
        found = list(zip(jobs, books, lpm.unaccounted(jobs), strict=True))
    if as_json:
        print_json(
            [
                _facts(each) | {"books": counts, "unaccounted": missing}
                for each, counts, missing in found
            ]
        )
        return
    for each, counts, missing in found:
        done, trouble = (
            counts.accepted - counts.open,
            counts.failed + counts.skipped + counts.expired,
        )
        shown = (
            f"{printable(each.name)[:34]:34} {each.state:9} {done:,} of {counts.accepted:,} done"
        )
        print(shown + (f", {trouble:,} without a result" if trouble else ""))
        for what in missing:
            print(f"  UNACCOUNTED: {printable(what)}")
    if not found:
        print(f"There are no jobs yet; {program()} bulk import FILE makes one")


@job.command()
@click.argument("name")
@json_option
@data_dir_option
def show(name: str, as_json: bool) -> None:
    """Show a job: where it stands, when it will be done, what failed and why.

    \b
    Example:
      python -m crawler job show parcels.csv
    """
    from crawler.forecast import of_job, sentence
    from crawler.waits import WaitFinder, endless_wait

    settings = config.load()
    tz = times.zone(settings.timezone)
    with stored() as lpm:
        each = job_of(lpm, name)
        receipt = lpm.receipt(each)
        examples = lpm.counts.examples(each)
        look, now = WaitFinder(settings, lpm), lpm.now()
        limits, later = look.limits(each), lpm.jobs.later_namesakes(each)
        waits = look.of(each, receipt.books)
        endless = endless_wait([wait for wait in waits if wait.kind != "worker"])
        seen = (
            of_job(lpm.counts, each, limits, now, waits)
            if receipt.books.open and not endless
            else None
        )
    if as_json:
        facts = {"receipt": receipt, "failures": examples, "forecast": seen, "waits": waits}
        print_json(_facts(each) | facts | _named(later))
        return
    origin = "a Gateway" if each.of_gateway else printable(each.source_file or "no file")
    print(f"{printable(each.name)}: {receipt.status}, queue {each.queue}, from {origin}")
    began = times.show(each.created_at, now, tz)
    print(
        f"began {began}"
        + (f", ended {times.show(each.completed_at, now, tz)}" if each.completed_at else "")
    )
    if each.deadline:
        print(f"deadline {times.until(each.deadline, now, tz)}")
    if seen:
        print(f"forecast: {sentence(seen, each, limits, now, tz)}")
    for wait in waits:
        print(f"{'no forecast' if wait is endless else 'waits'}: {printable(look.line(wait))}")
    print_reasons(receipt.reasons, examples, each)
    print_receipt(receipt)


@job.command()
@click.argument("name")
@json_option
@data_dir_option
def verify(name: str, as_json: bool) -> int:
    """Print a job's receipt; exits with 5 while a task is open or anything does not add up, 4 if it
    cannot be read.

    \b
    Example:
      python -m crawler job verify parcels.csv && echo all accounted for
    """
    with stored() as lpm:
        each = job_of(lpm, name)
        receipt = lpm.verify(each)
        failures = list(lpm.tasks.select(each, _FINAL))
        examples = lpm.counts.examples(each, most=20)
        delivery, later = lpm.outbox.delivery(each), lpm.jobs.later_namesakes(each)
    open_ = receipt.books.open
    if as_json:
        facts = {
            "created_at": each.created_at,
            "failures": failures,
            "delivery": delivery,
            **_named(later),
        }
        print_json(msgspec.structs.asdict(receipt) | facts)
    else:
        print(printable(imported(each)))
        print_reasons(receipt.reasons, examples, each)
        print_receipt(receipt)
        if open_:
            print(f"{open_:,} tasks are still open")
        elif not receipt.problems:
            print("Every task is in a final state")
        if delivery.concerns_gateway:
            _print_delivery(delivery)
    return UNACCOUNTED if open_ or receipt.problems else 0


def _print_delivery(found: Delivery) -> None:
    print(f"A Gateway has got {found.synced:,} results and {found.reports_synced:,} reports")
    if found.unsent:
        left = f"{found.ready:,} results and {found.reports_ready:,} reports"
        print(f"  not delivered yet: {left}; {program()} sync status tells more")
    if found.refused:
        left = f"{found.rejected:,} results and {found.reports_rejected:,} reports"
        print(f"  rejected: {left}; {program()} sync rejected tells why")


@job.command()
@click.argument("name")
@json_option
@data_dir_option
def accept(name: str, as_json: bool) -> None:
    """Accept what a job has, although its import was broken off or a repair lost something; its
    receipt says so.

    \b
    Example:
      python -m crawler job accept parcels.csv
    """
    with stored() as lpm:
        each = job_of(lpm, name)
        missing = lpm.accept(each)
    if not missing:
        raise click.UsageError(f"nothing of {name} is known to be missing")
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
    """Fetch nothing more of a job until `job resume`; what is in flight ends.

    \b
    Example:
      python -m crawler job pause parcels.csv
    """
    with _open_job(name) as (lpm, each):
        count = lpm.jobs.hold(each, "paused", lpm.now())
    again = f"{program()} job resume {shlex.quote(each.name)}"
    print(f"Paused {printable(each.name)}: {count:,} tasks wait for: {printable(again)}")


@job.command()
@click.argument("name")
@data_dir_option
def resume(name: str) -> None:
    """Go on with a paused job.

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
    """End a job: what has not begun is skipped with the reason `cancelled`; what is in flight ends.

    \b
    Example:
      python -m crawler job cancel parcels.csv
    """
    with _open_job(name, again=True) as (lpm, each):
        count = lpm.jobs.hold(each, "cancelled", lpm.now())
        accepted = lpm.accept_import(each)  # who ends a job wants no more of its file
        lpm.jobs.finalise(lpm.now())
        [missing] = lpm.unaccounted([lpm.jobs.get(each.id)])
    again = (
        f"again with: {program()} retry --skipped --reason cancelled --job {shlex.quote(each.name)}"
    )
    print(f"Cancelled {printable(each.name)}: {count:,} tasks are skipped ({printable(again)})")
    _print_accepted(each, accepted)
    for what in missing:
        print(f"UNACCOUNTED: {printable(what)}")


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
    help="In this state.",
)
@click.option("--reason", help="With this reason, such as timeout or http_500.")
@click.option("--job", "job_name", help="Of this job.")
@click.option("--domain", help="At this domain.")
@click.option(
    "--limit", type=click.IntRange(1), help="At most so many (default: 100; with --json all)."
)
@json_option
@data_dir_option
def list_tasks(
    statuses: tuple[str, ...],
    reason: str | None,
    job_name: str | None,
    domain: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """List tasks in the order of their import; with --json one object a line.

    \b
    Example:
      python -m crawler tasks list --job parcels.csv --status failed --reason timeout
    """
    with stored() as lpm:
        each = job_of(lpm, job_name) if job_name else None
        most = limit or (None if as_json else 101)
        number = -1
        for number, task in enumerate(lpm.tasks.select(each, statuses, reason, domain, most)):
            if as_json:
                print(msgspec.json.encode(task).decode())
            elif number == 100 and not limit:
                say("… and more; --limit N or --json lists them")
            else:
                _print_task(task)
        if number < 0 and reason:
            check_reason(lpm, reason)


def _print_task(task: dict[str, Any]) -> None:
    print(f"{task['task_id'][:12]} {task['status']:10} {task['reason'] or '-':16} {name_of(task)}")


@click.command()
@click.option("--failed", is_flag=True, help="What has failed.")
@click.option("--expired", is_flag=True, help="What missed its deadline, now without one.")
@click.option("--skipped", is_flag=True, help="What was skipped or cancelled.")
@click.option("--reason", help="Only with this reason, such as timeout or http_500.")
@click.option("--job", "job_name", help="Only of this job.")
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
    """Try again what ended without a result; running workers take it up at once, else `resume`
    does.

    \b
    Example:
      python -m crawler retry --failed --reason timeout --job parcels.csv
    """
    chosen = [s for s, wanted in zip(_FINAL, (failed, skipped, expired), strict=True) if wanted]
    if not chosen:
        raise click.UsageError("say what to try again: --failed, --expired or --skipped")
    with stored() as lpm:
        each = job_of(lpm, job_name) if job_name else None
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
        say(f"no worker runs: {program()} resume goes on with them")


@contextlib.contextmanager
def _open_job(name: str, again: bool = False) -> Iterator[tuple[LocalPersistenceManager, Job]]:
    with stored() as lpm:
        each = job_of(lpm, name)
        if each.status is JobStatus.DONE:
            raise click.UsageError(f"{name} has ended already")
        if each.hold == "cancelled" and not again:
            raise click.UsageError(f"{name} is cancelled; what is in flight still ends")
        yield lpm, each


def _named(later: list[Job]) -> dict[str, list[str]]:
    return {"later_jobs": [each.name for each in later]}


def _facts(each: Job) -> dict[str, Any]:
    return msgspec.structs.asdict(each) | {"state": each.state}


@click.command()
@click.argument("url")
@json_option
@data_dir_option
def why(url: str, as_json: bool) -> None:
    """Tell all that happened to a URL (or a task, by its id): from the line of the file to the
    result's delivery.

    \b
    Example:
      python -m crawler why http://county.example/parcel/123
    """
    from crawler.history import timeline
    from crawler.waits import WaitFinder

    with stored() as lpm:
        look = WaitFinder(config.load(), lpm)
        found = [timeline(lpm, task, look) for task in lpm.tasks.find(url)]
    if as_json:
        print_json(found)
        return
    for number, each in enumerate(found):
        if number:
            print()
        _print_timeline(each, config.load().timezone)


def _print_timeline(found: "Timeline", zone: str | None) -> None:
    from crawler.waits import describe_wait

    tz = times.zone(zone)
    why = f": {found.reason} – {found.message}" if found.reason else ""
    print(printable(found.url or found.their_id or "no URL"))
    print(printable(f"task {found.task_id}, {found.status}{why}"))
    day: date | None = None
    for step in found.steps:
        at = None if step.at is None else datetime.fromtimestamp(step.at, tz).astimezone(tz)
        if at and at.date() != day:
            day = at.date()
            print(f"{at:%A %d %B %Y, %Z}")
        clock = f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}" if at else ""
        _print_wrapped(printable(f"  {clock:13}{step.what:13}{_words(step, tz, day)}".rstrip()))
    for wait in found.waits:
        _print_wrapped(
            printable(f"  {'':13}{'waits for':13}{describe_wait(wait, time.time(), tz)}")
        )


def _print_wrapped(line: str) -> None:
    """The line, on a terminal with what does not fit below its beginning."""
    if sys.stdout.isatty():
        line = textwrap.fill(
            line, shutil.get_terminal_size().columns - 1, subsequent_indent=" " * 28
        )
    print(line)


def _words(step: "Step", tz: tzinfo | None, day: date | None) -> str:
    """The details of a step, the ones that are times as times, with their day where it is not the
    heading's."""
    parts = []
    for name, value in step.detail.items():
        if name in ("not_before", "until", "deadline") and value:
            at = datetime.fromtimestamp(value, tz).astimezone(tz)
            shown = f"{at:%H:%M:%S}" if at.date() == day else f"{at:%a %d %b %Y %H:%M:%S}"
            parts.append(f"{name.replace('_', ' ')} {shown}")
        elif name == "evidence" and isinstance(value, list):
            parts.append("because " + "; ".join(value))
        elif name == "evidence":
            parts.append("\n" + "\n".join(f"      {line}" for line in str(value).splitlines()))
        elif isinstance(value, dict):
            parts.append(f"{name} " + ":".join(str(item) for item in value.values()))
        else:
            parts.append(f"{name.removesuffix('_s').removesuffix('_ms')} {value}{_unit(name)}")
    return ", ".join(parts)


def _unit(name: str) -> str:
    return " ms" if name.endswith("_ms") else " s" if name.endswith("_s") else ""
