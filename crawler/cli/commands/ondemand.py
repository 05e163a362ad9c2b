"""`ondemand`: workers, and what takes tasks from a Gateway and delivers their results, in one supervised stack."""

import contextlib
import signal
import threading
import time
from typing import TYPE_CHECKING

import click

from crawler import config, logs
from crawler.cli.commands.stack import workers_option
from crawler.cli.output import data_dir_option, json_option, print_json, say
from crawler.config import Settings
from crawler.lpm import LocalPersistenceManager, low_on_disk

if TYPE_CHECKING:
    from crawler.orchestrator import Orchestrator

SAY_S = 5.0

platform_option = click.option(
    "--platform", "platforms", multiple=True, metavar="P", help="Ask for tasks of this platform only; may be repeated."
)
capacity_option = click.option(
    "--capacity",
    type=click.IntRange(1, 100_000),
    default=200,
    show_default=True,
    help="How many of the Gateway's tasks are held here at a time.",
)
moved_option = click.option(
    "--moved", is_flag=True, help="GATEWAY_URL is a new address of the Gateway that this store's tasks came from."
)


@click.command()
@platform_option
@capacity_option
@workers_option
@moved_option
@json_option
@data_dir_option
def ondemand(platforms: tuple[str, ...], capacity: int, workers: int | None, moved: bool, as_json: bool) -> int:
    """Work for the Gateway of GATEWAY_URL: take its tasks, collect their pages, deliver every result once.

    It goes on until Ctrl-C, or until the Gateway says `drain` and has got everything. What is not done or not
    delivered then stays in the store, and the same command goes on with it. Any number of machines may do so.

    \b
    Example:
      export GATEWAY_URL=https://gateway.example GATEWAY_TOKEN_FILE=/run/secrets/gateway
      python -m crawler ondemand --platform beacon --capacity 500
    """
    from crawler.gateway.agent import bind
    from crawler.gateway.client import GatewayClient
    from crawler.orchestrator import Orchestrator, terminated_by_signal
    from crawler.sites import config as sites

    settings = config.load()
    sites.load(settings.config_dir, settings.rate)
    GatewayClient(settings, "check")  # what is missing or wrong is said here, and not in a log
    lpm = LocalPersistenceManager(settings.data_dir)
    with contextlib.closing(lpm):
        worker_id = bind(lpm, settings, moved)
    agent = [*(part for platform in platforms for part in ("--platform", platform)), "--capacity", str(capacity)]
    with terminated_by_signal(), Orchestrator(settings, workers, agent=agent) as stack:
        say(f"starting Redis and workers; this is worker {worker_id} of {settings.gateway_url}")
        try:
            stack.start_all()
            _follow(settings, stack)
            return _summary(settings, as_json)
        except (KeyboardInterrupt, SystemExit):
            say("stopping; type the same command again to go on (once more to stop at once)")
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: stack.kill_all())
            _summary(settings, as_json)
            raise


def _follow(settings: Settings, stack: "Orchestrator") -> None:
    said, due = "", 0.0
    lpm = LocalPersistenceManager(settings.data_dir)
    with contextlib.closing(lpm):
        while not stack.drained:
            if time.monotonic() >= due:
                began = time.monotonic()
                with lpm.errors():
                    line = _line(lpm, settings)
                due = began + max(SAY_S, 50 * (time.monotonic() - began))  # counting a million must not be the work
                if line != said:
                    say(line)
                said = line
            time.sleep(0.2)
    say("the Gateway wants no more, and has got everything")


def _line(lpm: LocalPersistenceManager, settings: Settings) -> str:
    from crawler.db import exchange

    db = lpm.ledger.db
    states, stand = exchange.states(db), exchange.stand(db)
    ended = "".join(f", {states[name]:,} {name}" for name in ("failed", "skipped", "expired") if states.get(name))
    line = (
        f"{sum(states.values()):,} tasks taken, {exchange.open_count(db):,} open, {states.get('completed', 0):,} "
        f"completed{ended} · {stand.unsent:,} to be delivered, {stand.synced + stand.reports_synced:,} delivered"
    )
    if refused := stand.rejected + stand.reports_rejected:
        line += f", {refused:,} rejected (python -m crawler sync rejected)"
    held = exchange.get_note(db, "order") or next(
        (job.hold for job in lpm.ledger.jobs() if job.name == exchange.GATEWAY and job.hold), None
    )
    trouble = exchange.get_note(db, "trouble") or low_on_disk(lpm.folder, settings.min_free)
    return line + (f" · {held}" if held else "") + (f" · {trouble}" if trouble else "")


def _summary(settings: Settings, as_json: bool) -> int:
    from crawler.db import exchange

    lpm = LocalPersistenceManager(settings.data_dir)
    with contextlib.closing(lpm), lpm.errors():
        states, stand = exchange.states(lpm.ledger.db), exchange.stand(lpm.ledger.db)
        line = _line(lpm, settings)
    if as_json:
        print_json({"tasks": states, "exchange": stand})
    else:
        print(line)
    return 1 if stand.rejected or stand.reports_rejected else 0


@click.command(hidden=True)
@platform_option
@capacity_option
def agent(platforms: tuple[str, ...], capacity: int) -> int:
    """What `ondemand` runs beside its workers."""
    from crawler.gateway.agent import run

    settings = config.load()
    logs.setup(settings.log_level)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return 0 if run(settings, platforms, capacity, stopping) else 128 + signal.SIGTERM
