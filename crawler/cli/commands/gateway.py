"""`gateway`: run a Gateway, for a fleet of machines or for tests."""

import contextlib
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crawler import config, logs, times
from crawler.cli.output import json_option, print_json, say
from crawler.config import program
from crawler.errors import UsageError
from crawler.logs import printable
from crawler.times import duration

if TYPE_CHECKING:
    from crawler.gateway.reference.books import Books, Known

DAY_S = 86_400


def _number(_context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    """Let `nan` through no range."""
    if value is not None and math.isnan(value):
        raise click.BadParameter("it must be a number", param=option)
    return value


store_option: Callable[[Any], Any] = click.option(
    "--store",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("gateway"),
    show_default=True,
    help="The Gateway's own folder: its books and the raw files.",
)


@contextlib.contextmanager
def _books(store: Path, create: bool = False) -> Iterator["Books"]:
    from crawler.gateway.reference.books import Books

    if not create and not Books.exists(store):
        raise UsageError(
            f"there is no Gateway's store in {store.absolute()}; "
            f"{program()} gateway import FILE --store {shlex.quote(str(store))} makes one"
        )
    with contextlib.closing(Books(store)) as books:
        yield books


@click.group()
def gateway() -> None:
    """Run a Gateway: it hands out tasks to workers on any number of machines, and collects their
    results.

    All commands but `serve` work on the store itself, also while the server runs.

    \b
    Example:
      python -m crawler gateway import parcels.csv
      GATEWAY_TOKEN_FILE=token.txt python -m crawler gateway serve
    """


@gateway.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8900,
    show_default=True,
    help="The port; 0 is any.",
)
@click.option(
    "--lease",
    type=click.FloatRange(0.1, 1e9),
    callback=_number,
    default=300.0,
    show_default=True,
    metavar="S",
    help="After so many seconds without a word of it a worker loses its tasks.",
)
@click.option(
    "--idle",
    type=click.FloatRange(0, 1e6),
    callback=_number,
    default=30.0,
    show_default=True,
    metavar="S",
    help="When a worker that got no tasks is to ask again.",
)
@click.option(
    "--faults",
    type=click.FloatRange(0, 1),
    callback=_number,
    metavar="P",
    help="Let this part of all exchanges fail.",
)
@click.option(
    "--seed", type=int, default=7, show_default=True, help="What the faults are drawn by."
)
@click.option(
    "--like",
    type=click.Choice(["go", "python"]),
    help="Play the habits of a real Gateway in this language, for tests.",
)
@store_option
def serve(
    host: str,
    port: int,
    lease: float,
    idle: float,
    faults: float | None,
    seed: int,
    like: str | None,
    store: Path,
) -> None:
    """Serve the store over HTTP until Ctrl-C; the token is GATEWAY_TOKEN's, or that of the file
    GATEWAY_TOKEN_FILE.

    \b
    Example:
      GATEWAY_TOKEN_FILE=token.txt python -m crawler gateway serve --port 8900
      GATEWAY_TOKEN_FILE=token.txt python -m crawler gateway serve --faults 0.3 --seed 7
    """
    from crawler.gateway import token
    from crawler.orchestrator import terminated_by_signal

    settings = config.load()
    secret = token(settings)
    logs.setup(settings.log_level)
    with terminated_by_signal():
        from crawler.gateway.reference.serve import serve as run

        run(
            store,
            secret,
            host=host,
            port=port,
            lease_s=lease,
            idle_s=idle,
            faults=faults,
            seed=seed,
            like=like,
        )


@gateway.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@json_option
@store_option
def import_(file: Path, as_json: bool, store: Path) -> int:
    """Take the rows of a CSV, JSON, JSONL, TXT or XLSX file in as tasks; the same file again
    changes nothing.

    A row has a url, or a platform and whatever its site configuration needs: parcel_id, state,
    county. It may have a task_id, a type, a priority from 1 to 4 and a deadline; all other columns
    are passed on to the workers. A row with a known task_id and another content changes its task,
    unless that is held or completed. A bad row is left out and noted in FILE.rejects.jsonl.

    \b
    Example:
      python -m crawler gateway import parcels.csv
    """
    import msgspec

    from crawler.bulk import rows
    from crawler.gateway.reference.intake import import_file

    tz = times.zone(config.load().timezone)
    with _books(store, create=True) as books:
        done = import_file(books, file, tz=tz, clock=time.time, progress=say)
    if as_json:
        print_json(msgspec.structs.asdict(done))
    else:
        changed = f"{done.changed:,} changed, " if done.changed else ""
        print(
            f"{done.rows:,} rows: {done.accepted:,} new, {done.known:,} known, {changed}{done.rejected:,} rejected"
        )
        if done.other_sheets:
            say(rows.not_read(done.other_sheets))
        if done.rejects_file:
            print(f"Rejected rows are in {printable(done.rejects_file)}")
        print(f"Imported {done.accepted} tasks into {printable(str(store))}")
    return 1 if done.rejected else 0


@gateway.command()
@json_option
@store_option
def status(as_json: bool, store: Path) -> None:
    """Count tasks by state, results, raw files and workers.

    \b
    Example:
      python -m crawler gateway status
    """
    with _books(store) as books, books.reading():
        counts = books.counts()
    if as_json:
        return print_json(counts)
    total = counts.available + counts.held + counts.completed + counts.failed
    states = ("available", "held", "completed", "failed")
    print(
        f"{total:,} tasks: " + ", ".join(f"{getattr(counts, state):,} {state}" for state in states)
    )
    print(f"{counts.results:,} results ({counts.late:,} late), {counts.raw_files:,} raw files")
    print(f"{counts.workers:,} workers")
    return None


@gateway.command()
@click.option(
    "--state",
    type=click.Choice(("available", "held", "completed", "failed")),
    help="In this state.",
)
@json_option
@store_option
def tasks(state: str | None, as_json: bool, store: Path) -> None:
    """List tasks in the order of their import, with who has or ended each and why it failed;
    --json: one a line.

    \b
    Example:
      python -m crawler gateway tasks --state failed
    """
    import msgspec

    with _books(store) as books, books.reading(), _stdout_errors():
        for task in books.tasks(state):
            print(msgspec.json.encode(task).decode() if as_json else _task_line(task))
        sys.stdout.flush()


def _task_line(task: "Known") -> str:
    line = f"{task.task_id}  {task.state}" + (f" by {task.holder}" if task.holder else "")
    if task.state == "failed":
        kind = f"{task.error_type}, " if task.error_type else ""
        line += f": {task.reason} ({kind}{task.attempts:,} attempts)"
    return printable(line)


@gateway.command()
@click.option(
    "--all",
    "everyone",
    is_flag=True,
    help="Also those that were silent for more than a day and hold nothing.",
)
@json_option
@store_option
def workers(everyone: bool, as_json: bool, store: Path) -> None:
    """List the workers: when each was heard last, what it holds, how its queue is, what it is to be
    told.

    \b
    Example:
      python -m crawler gateway workers
    """
    with _books(store) as books, books.reading():
        known = books.workers()
    found = [worker for worker in known if everyone or worker.held or worker.silent_s <= DAY_S]
    if as_json:
        return print_json(found)
    if not known:
        print("No worker was heard of yet.")
    if len(found) < len(known):
        say(
            f"{len(known) - len(found):,} workers were silent for more than a day and hold nothing (--all lists them)"
        )
    for worker in found:
        queue = worker.heartbeat.queue if worker.heartbeat else None
        line = f"{worker.worker}  heard {duration(worker.silent_s)} ago"
        line += f", holds {worker.held:,}, delivered {worker.results:,}"
        if queue:
            line += f", queue {queue.pending:,} pending {queue.processing:,} processing {queue.unsynced:,} unsynced"
        if worker.waiting_commands:
            line += f", is to {' and '.join(worker.waiting_commands)}"
        print(line)
    return None


@gateway.command()
@click.argument("worker")
@click.argument("command", type=click.Choice(("pause", "resume", "drain")))
@store_option
def tell(worker: str, command: str, store: Path) -> None:
    """Leave a command for a worker; it gets it with its next heartbeat. A later one replaces what
    it undoes.

    \b
    Example:
      python -m crawler gateway tell desk-1 pause
    """
    with _books(store) as books, books.writing():
        books.tell(worker, command)
    print(f"{printable(worker)} will be told to {command} at its next heartbeat")


@gateway.command()
@click.argument("task_ids", metavar="[TASK_ID]...", nargs=-1)
@json_option
@store_option
def retry(task_ids: tuple[str, ...], as_json: bool, store: Path) -> None:
    """Make failed tasks available again: these, or all of them.

    \b
    Example:
      python -m crawler gateway retry
    """
    with _books(store) as books, books.writing():
        count = books.retry(task_ids)
    if as_json:
        return print_json({"available": count})
    print(f"{count:,} failed tasks are available again")
    return None


@contextlib.contextmanager
def _stdout_errors() -> Iterator[None]:
    """Blame stdout for what is its fault: the store is not to be examined for it."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python fails once more, when it ends
        raise UsageError(f"-: stdout cannot be written ({error.strerror or error})") from None


@gateway.group()
def results() -> None:
    """Give out the results.

    \b
    Example:
      python -m crawler gateway results export --output results.jsonl
    """


@results.command()
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    required=True,
    help="The file, or - for stdout.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(("jsonl", "json")),
    help="The format (default: by the ending).",
)
@json_option
@store_option
def export(output: Path, form: str | None, as_json: bool, store: Path) -> None:
    """Write all results to one file, whole or not at all, in the order in which they came.

    Each has the worker's fields, and the Gateway's: worker, received_at, seq, applied (how often it
    was written), late, sha256 (of its canonical JSON), and raw_name, raw_received_at and raw_seq of
    the raw file that it names.

    \b
    Example:
      python -m crawler gateway results export --output results.jsonl
    """
    from crawler import results as writing
    from crawler.orchestrator import terminated_by_signal
    from crawler.results.formats import WRITERS, Sink, with_progress

    form = form or ("jsonl" if str(output) == "-" else writing.format_of(output))
    if form not in ("jsonl", "json"):
        raise click.UsageError(
            f"the ending of {output} is neither .jsonl nor .json; add --format jsonl or json"
        )
    count = 0

    def counted() -> Iterator[dict[str, Any]]:
        nonlocal count
        for result in books.results():
            count += 1
            yield result

    with (
        _books(store) as books,
        terminated_by_signal(),
        books.reading(),
        writing.whole_file(output, store, config.load().data_dir) as out,
    ):
        sink = Sink(out, output.name, None, store / "raw", lambda result: None, say)
        with _stdout_errors() if str(output) == "-" else contextlib.nullcontext():
            WRITERS[form](with_progress(counted(), say, "results written"), sink)
            out.flush()
    if str(output) == "-":
        return
    if as_json:
        print_json({"results": count, "file": str(output), "format": form})
    else:
        print(f"Exported {count} results to {output}")
