"""`gateway`: run a Gateway, for a fleet of machines or for tests."""

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crawler import config, logs, times
from crawler.cli.options import Number, json_option, output_option
from crawler.cli.output import print_json, say
from crawler.config import program
from crawler.errors import UsageError
from crawler.logs import printable
from crawler.times import duration

if TYPE_CHECKING:
    from crawler.gateway.reference.bodies import Worker
    from crawler.gateway.reference.books import Books, Known

DAY_S = 86_400
_STATES = ("available", "held", "completed", "failed")


store_option: Callable[[Any], Any] = click.option(
    "--store",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("gateway"),
    show_default=True,
    help="The Gateway's own folder, with its database and the raw files.",
)


@contextlib.contextmanager
def _gateway_store(store: Path, create: bool = False) -> Iterator["Books"]:
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
    """Run a Gateway. It gives tasks to workers on any number of machines, and collects their
    results.

    All commands but `serve` work on the store directly, also while the server runs.

    \b
    Example:
      python -m crawler gateway import parcels.csv
      GATEWAY_TOKEN_FILE=token.txt python -m crawler gateway serve
    """


@gateway.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8900,
    show_default=True,
    help="Port; 0 takes any free one.",
)
@click.option(
    "--lease",
    "lease_s",
    type=Number(0.1, 1e9),
    default=300.0,
    show_default=True,
    metavar="S",
    help="A worker that is silent for this many seconds loses its tasks.",
)
@click.option(
    "--idle",
    "idle_s",
    type=Number(0, 1e6),
    default=30.0,
    show_default=True,
    metavar="S",
    help="Seconds after which a worker that got no tasks asks again.",
)
@click.option(
    "--faults",
    type=Number(0, 1),
    metavar="P",
    help="Share of all requests that fail, for tests.",
)
@click.option("--seed", type=int, default=7, show_default=True, help="Random seed of the faults.")
@click.option(
    "--like",
    type=click.Choice(["go", "python"]),
    help="Behave like a Gateway in this language, for tests.",
)
@store_option
def serve(store: Path, **options: Any) -> None:
    """Serve the store over HTTP until Ctrl-C. The token comes from GATEWAY_TOKEN or from the file
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

        run(store, secret, **options)


@gateway.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@json_option
@store_option
def import_(file: Path, as_json: bool, store: Path) -> int:
    """Import the rows of a CSV, JSON, JSONL, TXT or XLSX file as tasks. The same file again changes
    nothing.

    A row has a url, or a platform and the fields that its site configuration needs: parcel_id,
    state, county. It may have a task_id, a type, a priority from 1 to 4 and a deadline. Workers get
    all other columns, too.

    A row with a known task_id and other content changes its task, unless that task is held or
    completed. Bad rows are skipped and written to FILE.rejects.jsonl.

    \b
    Example:
      python -m crawler gateway import parcels.csv
    """
    import msgspec

    from crawler.bulk import rows
    from crawler.gateway.reference.intake import import_file

    tz = times.zone(config.load().timezone)
    with _gateway_store(store, create=True) as books:
        done = import_file(books, file, tz=tz, clock=time.time, progress=say)
    if as_json:
        print_json(msgspec.structs.asdict(done))
    else:
        counts = [f"{done.accepted:,} new", f"{done.known:,} known"]
        if done.changed:
            counts.append(f"{done.changed:,} changed")
        print(f"{done.rows:,} rows: {', '.join(counts)}, {done.rejected:,} rejected")
        if done.other_sheets:
            say(rows.unread_sheets_note(done.other_sheets))
        if done.rejects_file:
            print(f"Rejected rows are in {printable(done.rejects_file)}")
        print(f"Imported {done.accepted} tasks into {printable(str(store))}")
    return int(done.rejected > 0)


@gateway.command()
@json_option
@store_option
def status(as_json: bool, store: Path) -> None:
    """Count tasks by state, results, raw files and workers.

    \b
    Example:
      python -m crawler gateway status
    """
    with _gateway_store(store) as books, books.reading():
        counts = books.counts()
    if as_json:
        return print_json(counts)
    total = sum(getattr(counts, state) for state in _STATES)
    by_state = ", ".join(f"{getattr(counts, state):,} {state}" for state in _STATES)
    print(f"{total:,} tasks: {by_state}")
    print(f"{counts.results:,} results ({counts.late:,} late), {counts.raw_files:,} raw files")
    print(f"{counts.workers:,} workers")
    return None


@gateway.command()
@click.option("--state", type=click.Choice(_STATES), help="Only this state.")
@json_option
@store_option
def tasks(state: str | None, as_json: bool, store: Path) -> None:
    """List tasks in the order of their import.

    Each has its state, its worker and, if it failed, the reason. With --json, one object per line.

    \b
    Example:
      python -m crawler gateway tasks --state failed
    """
    import msgspec

    with _gateway_store(store) as books, books.reading(), _stdout_errors():
        for task in books.tasks(state):
            if as_json:
                print(msgspec.json.encode(task).decode())
            else:
                print(_task_line(task))
        sys.stdout.flush()


def _task_line(task: "Known") -> str:
    line = f"{task.task_id}  {task.state}"
    if task.holder:
        line += f" by {task.holder}"
    if task.state == "failed":
        details = f"{task.attempts:,} attempts"
        if task.error_type:
            details = f"{task.error_type}, {details}"
        line += f": {task.reason} ({details})"
    return printable(line)


@gateway.command()
@click.option(
    "--all",
    "everyone",
    is_flag=True,
    help="Also workers that were silent for more than a day and hold no task.",
)
@json_option
@store_option
def workers(everyone: bool, as_json: bool, store: Path) -> None:
    """List the workers: last heartbeat, held tasks, queue, and commands that it has not got yet.

    \b
    Example:
      python -m crawler gateway workers
    """
    with _gateway_store(store) as books, books.reading():
        known = books.workers()
    found = [worker for worker in known if everyone or worker.held or worker.silent_s <= DAY_S]
    if as_json:
        return print_json(found)
    if not known:
        print("No worker has connected yet.")
    if silent := len(known) - len(found):
        what = "were silent for more than a day and hold nothing (--all lists them)"
        say(f"{silent:,} workers {what}")
    for worker in found:
        print(_worker_line(worker))
    return None


def _worker_line(worker: "Worker") -> str:
    parts = [
        f"{worker.worker}  heard {duration(worker.silent_s)} ago",
        f"holds {worker.held:,}",
        f"delivered {worker.results:,}",
    ]
    if worker.heartbeat and (queue := worker.heartbeat.queue):
        counts = f"{queue.pending:,} pending {queue.processing:,} processing"
        parts.append(f"queue {counts} {queue.unsynced:,} unsynced")
    if worker.waiting_commands:
        parts.append(f"will be told to {' and '.join(worker.waiting_commands)}")
    return ", ".join(parts)


@gateway.command()
@click.argument("worker")
@click.argument("command", type=click.Choice(("pause", "resume", "drain")))
@store_option
def tell(worker: str, command: str, store: Path) -> None:
    """Leave a command for a worker, which gets it with its next heartbeat. A later command replaces
    one that it undoes.

    \b
    Example:
      python -m crawler gateway tell desk-1 pause
    """
    with _gateway_store(store) as books, books.writing():
        books.tell(worker, command)
    print(f"{printable(worker)} will be told to {command} at its next heartbeat")


@gateway.command()
@click.argument("task_ids", metavar="[TASK_ID]...", nargs=-1)
@json_option
@store_option
def retry(task_ids: tuple[str, ...], as_json: bool, store: Path) -> None:
    """Make failed tasks available again: these tasks, or all of them.

    \b
    Example:
      python -m crawler gateway retry
    """
    with _gateway_store(store) as books, books.writing():
        count = books.retry(task_ids)
    if as_json:
        return print_json({"available": count})
    print(f"{count:,} failed tasks are available again")
    return None


@contextlib.contextmanager
def _stdout_errors() -> Iterator[None]:
    """Report a failing stdout as such, not as an error of the store."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python fails again when it ends
        raise UsageError(f"-: stdout cannot be written ({error.strerror or error})") from None


@gateway.group()
def results() -> None:
    """Export the results.

    \b
    Example:
      python -m crawler gateway results export --output results.jsonl
    """


@results.command()
@output_option
@click.option(
    "--format",
    "form",
    type=click.Choice(("jsonl", "json")),
    help="Format (default: by the file's ending).",
)
@json_option
@store_option
def export(output: Path, form: str | None, as_json: bool, store: Path) -> None:
    """Write all results to one file, in the order in which they came. The file appears only when it
    is complete.

    Each result has the worker's fields and the Gateway's: worker, received_at, seq, applied (how
    often it was written), late, sha256 (of its canonical JSON), and raw_name, raw_received_at and
    raw_seq of its raw file.

    \b
    Example:
      python -m crawler gateway results export --output results.jsonl
    """
    from crawler import results as writing
    from crawler.orchestrator import terminated_by_signal
    from crawler.results.formats import WRITERS, Sink, with_progress

    to_stdout = str(output) == "-"
    if form is None and to_stdout:
        form = "jsonl"
    form = form or writing.format_of(output)
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
        _gateway_store(store) as books,
        terminated_by_signal(),
        books.reading(),
        writing.whole_file(output, store, config.load().data_dir) as out,
    ):
        sink = Sink(out, output.name, None, store / "raw", lambda result: None, say)
        with _stdout_errors() if to_stdout else contextlib.nullcontext():
            WRITERS[form](with_progress(counted(), say, "results written"), sink)
            out.flush()
    if to_stdout:
        return
    if as_json:
        print_json({"results": count, "file": str(output), "format": form})
    else:
        print(f"Exported {count} results to {output}")
