"""`ondemand`: workers, and what takes tasks from a Gateway and delivers their results, in one
supervised stack."""

import signal
import threading
import time
from typing import TYPE_CHECKING

import click

from crawler import config, logs
from crawler.cli.commands.stack import workers_option
from crawler.cli.output import data_dir_option, json_option, print_json, say
from crawler.config import Settings, program
from crawler.lpm import LocalPersistenceManager

if TYPE_CHECKING:
    from crawler.orchestrator import Orchestrator

SAY_S = 5.0

platform_option = click.option(
    "--platform",
    "platforms",
    multiple=True,
    metavar="P",
    help="Ask for tasks of this platform only; may be repeated.",
)
capacity_option = click.option(
    "--capacity",
    type=click.IntRange(1, 100_000),
    default=200,
    show_default=True,
    help="How many of the Gateway's tasks are held here at a time.",
)
moved_option = click.option(
    "--moved",
    is_flag=True,
    help="GATEWAY_URL is a new address of the Gateway that this store's tasks came from.",
)


@click.command()
@platform_option
@capacity_option
@workers_option
@moved_option
@json_option
@data_dir_option
def ondemand(
    platforms: tuple[str, ...], capacity: int, workers: int | None, moved: bool, as_json: bool
) -> int:
    """Work for the Gateway of GATEWAY_URL: take its tasks, collect their pages, deliver every
    result once.

    It goes on until Ctrl-C, or until the Gateway says `drain` and has got everything. What is not
    done or not delivered then stays in the store, and the same command goes on with it. Any number
    of machines may do so.

    \b
    Example:
      export GATEWAY_URL=https://gateway.example GATEWAY_TOKEN_FILE=/run/secrets/gateway
      python -m crawler ondemand --platform beacon --capacity 500
    """
    from crawler import sites
    from crawler.gateway.agent import bind
    from crawler.gateway.client import GatewayClient
    from crawler.gateway.collector import asked
    from crawler.orchestrator import Orchestrator, terminated_by_signal

    settings = config.load()
    described = sites.load(settings.config_dir, settings.rate)
    GatewayClient(settings, "check")  # what is missing or wrong is said here, and not in a log
    platforms = tuple(asked(settings, platforms, described))
    lpm = LocalPersistenceManager(settings.data_dir)
    with lpm:
        worker_id = bind(lpm, settings, moved)
    for platform in platforms:
        if described.named(platform) is None:
            say(
                f"warning: no site {platform!r} is configured; its tasks need a url, and are read like any page"
            )
    agent = [
        *(part for platform in platforms for part in ("--platform", platform)),
        "--capacity",
        str(capacity),
    ]
    try:
        with terminated_by_signal(), Orchestrator(settings, workers, agent=agent) as stack:
            say(f"starting Redis and workers; this is worker {worker_id} of {settings.gateway_url}")
            try:
                stack.start_all()
                _follow(settings, stack)
            except (KeyboardInterrupt, SystemExit):
                say("stopping; type the same command again to go on (once more to stop at once)")
                raise
    finally:
        _summarise(settings, as_json)
    return 0


def _follow(settings: Settings, stack: "Orchestrator") -> None:
    """Say where things stand whenever that has changed, until the Gateway wants no more."""
    said, due = [""], 0.0
    lpm = LocalPersistenceManager(settings.data_dir)
    with lpm:
        while not stack.drained:
            if time.monotonic() >= due:
                began = time.monotonic()
                lines = [_line(lpm), *_remarks(lpm, settings)]
                for line in lines:
                    if line not in said:
                        say(line)
                said = lines
                due = began + max(
                    SAY_S, 50 * (time.monotonic() - began)
                )  # counting a million must not be the work
            time.sleep(0.2)
    say("the Gateway wants no more, and has got everything")


def _line(lpm: LocalPersistenceManager) -> str:
    """In a line of a terminal, as long as there are not millions."""

    states, stand = lpm.gateway.states(), lpm.outbox.delivery(None)
    counts = {"taken": sum(states.values()), "open": lpm.gateway.open_count()}
    counts |= {
        name: states[name]
        for name in ("completed", "failed", "skipped", "expired")
        if states.get(name)
    }
    sent = {
        "to deliver": stand.unsent,
        "delivered": stand.synced - stand.replaced + stand.reports_synced,
    }
    sent |= {"replaced": stand.replaced} if stand.replaced else {}
    sent |= {"rejected": refused} if (refused := stand.rejected + stand.reports_rejected) else {}
    return " · ".join(
        ", ".join(f"{count:,} {what}" for what, count in part.items()) for part in (counts, sent)
    )


def _remarks(lpm: LocalPersistenceManager, settings: Settings) -> list[str]:
    """What keeps the counts from moving."""
    from crawler.standstill import no_room

    order = {"pause": "the Gateway has said: pause", "drain": "the Gateway has said: drain"}
    found = [order.get(lpm.gateway.note("order") or "")]
    job = next((job for job in reversed(lpm.jobs.all()) if job.of_gateway), None)
    if job and job.hold and not found[0]:
        found.append(f"the job {job.name} is {job.hold}: no work is asked for")
    found += [*lpm.gateway.troubles(), no_room(lpm.folder, settings)]
    return [text for text in found if text]


def _summarise(settings: Settings, as_json: bool) -> None:
    """What was done, once nothing changes it any more."""

    lpm = LocalPersistenceManager(settings.data_dir)
    with lpm:
        states, stand, line = lpm.gateway.states(), lpm.outbox.delivery(None), _line(lpm)
    if as_json:
        print_json({"tasks": states, "exchange": stand})
        return
    print(line)
    if stand.unsent:
        print(f"{stand.unsent:,} wait for the next start, or for: {program()} sync push")
    if stand.rejected or stand.reports_rejected:
        print(f"what was rejected, and why: {program()} sync rejected")


@click.command(hidden=True)
@platform_option
@capacity_option
def agent(platforms: tuple[str, ...], capacity: int) -> int:
    """What `ondemand` runs beside its workers."""
    from crawler.gateway.agent import run

    settings = config.load()
    logs.setup(settings.log_level)
    stopping, ending = threading.Event(), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: (ending if stopping.is_set() else stopping).set())
    return 0 if run(settings, platforms, capacity, stopping, ending) else 128 + signal.SIGTERM
