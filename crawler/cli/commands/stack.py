"""`up`, `down`, `worker`: the stack in the background, and a worker in the foreground."""

import os
import sys
import time

import click

from crawler import config
from crawler.cli.output import data_dir_option, say
from crawler.config import program
from crawler.errors import StackIsUp

workers_option = click.option(
    "--workers", type=click.IntRange(1, 256), help="Worker processes (default: one for each core)."
)


@click.command()
@workers_option
@click.option("--flower", is_flag=True, help="Flower too, on 127.0.0.1.")
@data_dir_option
def up(workers: int | None, flower: bool) -> None:
    """Start Redis and workers in the background; what dies is started again.

    \b
    Example:
      python -m crawler up --workers 4 --flower
    """
    from crawler.orchestrator import check_flower, other_version, spawn_supervisor
    from crawler.stack import read_stack

    settings = config.load()
    stack = read_stack(settings.data_dir)
    if stack.unreadable:
        raise StackIsUp(other_version(settings.data_dir))
    if stack.container:
        print(f"The stack is up already, in containers (Flower: {stack.flower_url})")
        return
    if stack.up and stack.ready and stack.supervisor:
        if workers or (flower and not stack.flower_url):
            raise click.UsageError(
                f"the stack is up already, with other options; stop it first: {program()} down"
            )
        print(f"The stack is up already (supervisor {stack.supervisor.pid})")
        return
    if flower:
        check_flower()
    say("starting Redis and workers …")
    stack = spawn_supervisor(settings, workers, flower)
    print(f"The stack is up (supervisor {stack.supervisor.pid if stack.supervisor else '?'})")
    if stack.flower_url:
        print(f"Flower: {stack.flower_url}")


@click.command()
@data_dir_option
def down() -> None:
    """Stop the stack, whether `up` or `ondemand` has started it; what was not done stays in the
    ledger.

    \b
    Example:
      python -m crawler down
    """
    from crawler.orchestrator import other_version, stop_stale
    from crawler.process import end_process
    from crawler.stack import read_stack

    settings = config.load()
    stack = read_stack(settings.data_dir)
    if stack.container:
        raise click.UsageError(
            "the stack runs in containers; stop it with: docker compose -f docker-compose.standalone.yml down"
        )
    if stack.unreadable:
        raise StackIsUp(other_version(settings.data_dir))
    supervisor = stack.supervisor.find() if stack.supervisor else None
    end_process(supervisor, 15)
    left = stop_stale(
        settings.data_dir, stack
    )  # of this one only: a `run` may be starting its own by now
    print("The stack is down" if supervisor or left else "No stack was up")


@click.command()
@workers_option
@data_dir_option
def worker(workers: int | None) -> None:
    """Run a worker in this terminal: celery -A crawler worker -Q urgent,default.

    \b
    Example:
      python -m crawler worker --workers 4
    """
    config.load()
    count = str(workers or os.cpu_count() or 1)
    argv = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "crawler",
        "worker",
        "-Q",
        "urgent,default",
        "-c",
        count,
    ]
    os.execv(sys.executable, argv)


@click.command(hidden=True)
@workers_option
@click.option("--flower", is_flag=True)
def supervise(workers: int | None, flower: bool) -> None:
    """What `up` leaves in the background."""
    from crawler.orchestrator import Orchestrator, terminated_by_signal

    with terminated_by_signal(), Orchestrator(config.load(), workers, flower) as stack:
        stack.start_all()
        while True:
            time.sleep(3600)
