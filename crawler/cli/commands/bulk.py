"""`bulk import`: a file's rows into the ledger."""

from pathlib import Path

import click

from crawler import config
from crawler.bulk import import_file, rows
from crawler.cli.output import data_dir_option, json_option, print_json, say
from crawler.config import Settings
from crawler.db import kernel
from crawler.errors import ServiceError
from crawler.logs import printable
from crawler.models import QUEUES


class Span(click.ParamType[float]):
    """A span of time such as 90s, 45m, 12h or 7d."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds."""
        text = str(value).strip()
        units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
        try:
            return float(text[:-1]) * units[text[-1]]
        except (KeyError, ValueError, IndexError):
            self.fail(f"{text!r} is not a span of time; write 90s, 45m, 12h or 7d", param, ctx)


def _job_name(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    if value is not None and not (value.strip() and value.isprintable() and len(value) <= 100):
        raise click.BadParameter("a name has 1 to 100 characters, all of them printable")
    return value


job_option = click.option("--job", "job_name", callback=_job_name, help="The job's name (default: the file's).")
fresh_option = click.option(
    "--fresh-for", type=Span(), help="Leave out what was collected within this time, such as 12h."
)
queue_option = click.option("--queue", type=click.Choice(QUEUES), default="default", show_default=True)


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
    "--batch-size", type=click.IntRange(1, 100), default=100, show_default=True, help="Tasks per message, at most."
)
@click.option("--dry-run", is_flag=True, help="Show what would be imported, and import nothing.")
@click.option("--strict", is_flag=True, help="Check all rows first; import nothing if one is bad.")
@fresh_option
@job_option
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
    if kernel.is_other(settings.data_dir):
        from crawler import inbox

        options = inbox.Options(
            name=inbox.safe_name(file),
            queue="urgent" if queue == "urgent" else "default",
            batch_size=batch_size,
            strict=strict,
            fresh_for_s=fresh_for,
            job_name=job_name,
        )
        summary = inbox.deliver(settings, file, options, say)
    else:
        summary, _ = import_file(
            settings,
            file,
            queue,
            batch_size=batch_size,
            strict=strict,
            fresh_for_s=fresh_for,
            job_name=job_name,
            progress=say,
        )
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


def _show(file: Path, queue: str, as_json: bool) -> int:
    good = bad = 0
    for item in rows.read(file):
        if isinstance(item, rows.Row):
            good += 1
            if good <= 5 and not as_json:
                task = item.task
                print(f"  line {task.line}: {printable(task.address.url)} (priority {task.priority})")
        else:
            bad += 1
            say(f"line {item.line}: rejected: {item.reason}")
    if as_json:
        print_json({"rows": good + bad, "good": good, "rejected": bad, "queue": queue, "dry_run": True})
    else:
        if good > 5:
            print(f"  … and {good - 5:,} more")
        print(f"Would import {good} tasks to queue '{queue}' ({bad} rejected)")
    return 1 if bad else 0


def _fill_window(settings: Settings) -> None:
    """Publish the first tasks where a Redis answers; else the next worker does."""
    import redis

    from crawler.process import redis_address
    from crawler.redis_client import connect

    try:
        connect(redis_address(settings)).ping()
        from crawler.tasks import fill_window

        fill_window()
    except (redis.RedisError, ServiceError):
        say("Redis is not running: the tasks wait in the ledger for the next worker (python -m crawler up)")
