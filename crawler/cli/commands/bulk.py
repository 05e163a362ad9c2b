"""`bulk import`: a file's rows into the ledger."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import click
import msgspec

from crawler import bulk as rows
from crawler import config
from crawler.cli.output import data_dir_option, json_option, print_json, say
from crawler.config import Settings
from crawler.errors import CrawlerError, InputError, ServiceError
from crawler.lpm import LocalPersistenceManager
from crawler.models import Imported, Job, NewTask

COMMIT_ROWS = 5000


class Summary(msgspec.Struct, frozen=True):
    """What became of a file's rows; the first is the sum of the other three."""

    rows: int
    accepted: int
    known: int
    rejected: int
    rejects_file: str | None
    job: str | None
    queue: str


class Span(click.ParamType[float]):
    """A span of time such as 90s, 45m, 12h or 7d."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip()
        units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
        try:
            return float(text[:-1]) * units[text[-1]]
        except (KeyError, ValueError, IndexError):
            self.fail(f"{text!r} is not a span of time; write 90s, 45m, 12h or 7d", param, ctx)


@click.group()
def bulk() -> None:
    """Import tasks from files.

    \b
    Example:
      python -m crawler bulk import parcels.csv --queue urgent
    """


@bulk.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--queue", type=click.Choice(["urgent", "default"]), default="default", show_default=True)
@click.option(
    "--batch-size", type=click.IntRange(1, 100), default=100, show_default=True, help="Tasks per message, at most."
)
@click.option("--dry-run", is_flag=True, help="Show what would be imported, and import nothing.")
@click.option("--strict", is_flag=True, help="Check all rows first; import nothing if one is bad.")
@click.option("--fresh-for", type=Span(), help="Leave out what was collected within this time, such as 12h.")
@click.option("--job", "job_name", help="The job's name (default: the file's).")
@json_option
@data_dir_option
def import_(
    file: Path,
    queue: str,
    batch_size: int,
    dry_run: bool,
    strict: bool,
    fresh_for: float | None,
    job_name: str | None,
    as_json: bool,
) -> int:
    """Import FILE (CSV, JSON, JSONL or TXT, also .gz) into the ledger; needs no Redis.

    A bad row is left out and noted in FILE.rejects.jsonl. The same file again continues its job while that is open.

    \b
    Example:
      python -m crawler bulk import auction_parcels.csv --queue=urgent
    """
    settings = config.load()
    if dry_run:
        return _show(file, queue, as_json)
    summary, _ = import_file(settings, file, queue, batch_size, strict, fresh_for, job_name)
    _fill_window(settings)
    if as_json:
        print_json(summary)
    else:
        print(
            f"{summary.rows:,} rows: {summary.accepted:,} new, {summary.known:,} known, {summary.rejected:,} rejected"
        )
        if summary.rejects_file:
            print(f"Rejected rows are in {summary.rejects_file}")
        print(f"Imported {summary.accepted} tasks to queue '{queue}'")
    return 1 if summary.rejected else 0


def import_file(
    settings: Settings,
    file: Path,
    queue: str,
    batch_size: int = 100,
    strict: bool = False,
    fresh_for: float | None = None,
    job_name: str | None = None,
) -> tuple[Summary, Job]:
    """Read a file into its job, some thousand rows a commit."""
    if strict:
        _check_all(file)
    key = f"name:{job_name}" if job_name else f"{rows.checksum(file)}:{queue}"
    items = rows.read(file)
    first = next(items, None)  # an unusable file is known before anything is written
    lpm = LocalPersistenceManager(settings.data_dir)
    total = Imported(0, 0)
    try:
        with lpm.errors():
            job = lpm.durable.open_job(
                key=key,
                name=job_name or file.name,
                queue=queue,
                source="file",
                source_file=str(file.absolute()),
                batch_size=batch_size,
                now=lpm.now(),
            )
        with rows.RejectsFile(file) as rejects:
            count = 0

            def good(items: Iterator[rows.Row | rows.Reject]) -> Iterator[NewTask]:
                nonlocal count
                for item in items:
                    count += 1
                    if isinstance(item, rows.Row):
                        yield item.task
                    else:
                        rejects.add(item)

            tasks = good(_chain(first, items))
            while batch := list(islice(tasks, COMMIT_ROWS)):
                done = lpm.persist_tasks(
                    batch, job=job, queue=queue, source_file=str(file.absolute()), loopback=True, fresh_for_s=fresh_for
                )
                config.failpoint("imported")
                total = Imported(total.accepted + done.accepted, total.known + done.known)
                if count >= 4 * COMMIT_ROWS:
                    say(f"{count:,} rows read")
        with lpm.errors():
            lpm.durable.close_import(job)
    finally:
        lpm.close()
    rejected = count - total.accepted - total.known
    path = str(rejects.path) if rejected else None
    return Summary(count, total.accepted, total.known, rejected, path, job.name, queue), job


def _chain(
    first: rows.Row | rows.Reject | None, rest: Iterator[rows.Row | rows.Reject]
) -> Iterator[rows.Row | rows.Reject]:
    if first is not None:
        yield first
    yield from rest


def _check_all(file: Path) -> None:
    for item in rows.read(file):
        if isinstance(item, rows.Reject):
            raise InputError(str(file), f"{item.reason}; nothing was imported (--strict)", item.line)


def _show(file: Path, queue: str, as_json: bool) -> int:
    good = bad = 0
    examples: list[str] = []
    for item in rows.read(file):
        if isinstance(item, rows.Row):
            good += 1
            if len(examples) < 5:
                examples.append(f"  line {item.task.line}: {item.task.address.url} (priority {item.task.priority})")
        else:
            bad += 1
            say(f"line {item.line}: rejected: {item.reason}")
    if as_json:
        print_json({"rows": good + bad, "good": good, "rejected": bad, "queue": queue, "dry_run": True})
    else:
        print("\n".join(examples) + (f"\n  … and {good - len(examples):,} more" if good > len(examples) else ""))
        print(f"Would import {good} tasks to queue '{queue}' ({bad} rejected)")
    return 1 if bad else 0


def _fill_window(settings: Settings) -> None:
    """Publish the first tasks where a Redis answers; else the next worker does."""
    import redis

    from crawler.process import redis_address
    from crawler.redis_client import connect

    try:
        connect(redis_address(settings)).ping()
    except redis.RedisError:
        say("Redis is not running: the tasks wait in the ledger for the next worker (python -m crawler up)")
        return
    from crawler.tasks import fill_window

    try:
        fill_window()
    except (ServiceError, CrawlerError) as error:
        say(f"the tasks wait in the ledger for the next worker ({error})")
