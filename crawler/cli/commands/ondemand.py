"""`ondemand` and `sync`: work for a Gateway and deliver to it."""

import contextlib
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crawler import config, logs, times
from crawler.cli.options import data_dir_option, json_option, workers_option
from crawler.cli.output import job_of, print_json, say, stored
from crawler.config import Settings, program
from crawler.errors import ServiceError
from crawler.logs import printable
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
    from crawler.gateway.collector import requested_platforms
    from crawler.orchestrator import Orchestrator, terminated_by_signal

    settings = config.load()
    described = sites.load(settings.config_dir, settings.rate)
    GatewayClient(settings, "check")  # what is missing or wrong is said here, and not in a log
    platforms = tuple(requested_platforms(settings, platforms, described))
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
    from crawler.waits import disk_problem

    order = {"pause": "the Gateway has said: pause", "drain": "the Gateway has said: drain"}
    found = [order.get(lpm.gateway.note("order") or "")]
    job = next((job for job in reversed(lpm.jobs.all()) if job.of_gateway), None)
    if job and job.hold and not found[0]:
        found.append(f"the job {job.name} is {job.hold}: no work is asked for")
    found += [*lpm.gateway.troubles(), disk_problem(lpm.folder, settings)]
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


_COUNTS = ("held", "ready", "synced", "rejected", "late", "without_page", "replaced")
PATIENCE_S, AGAIN_S = 20.0, 3.0
"""How long a command waits for a Gateway that does not answer, and how long at most between two
attempts."""


@click.group()
def sync() -> None:
    """What a Gateway has got, is to get and has refused; and how to send it.

    \b
    Example:
      python -m crawler sync status
      python -m crawler sync push --job parcels.csv
    """


@sync.command()
@json_option
@data_dir_option
def status(as_json: bool) -> None:
    """Show what is held, to be delivered, delivered and rejected.

    \b
    Example:
      python -m crawler sync status --json
    """
    settings = config.load()
    with stored() as lpm:
        facts = _facts(lpm, settings)
    if as_json:
        print_json(facts)
        return
    results, reports = facts["results"], facts["reports"]
    print("results  " + ", ".join(f"{count:,} {state}" for state, count in results.items()))
    print("reports  " + ", ".join(f"{count:,} {state}" for state, count in reports.items()))
    if facts["oldest"] is not None:
        print(
            f"the oldest of what is to be delivered waits for {times.duration(time.time() - facts['oldest'])}"
        )
    if facts["gateway"]:
        heard = facts["heard_at"]
        ago = f"heard of {times.duration(time.time() - heard)} ago" if heard else "never heard of"
        print(f"worker {facts['worker_id']} of the Gateway {printable(facts['gateway'])}, {ago}")
    if facts["order"]:
        print(f"the Gateway has said: {facts['order']}")
    for trouble in facts["troubles"]:
        print(printable(trouble))
    if results["held"]:
        print(f"held are results of standalone work; they go only by: {program()} sync push")
    if results["rejected"] or reports["rejected"]:
        print(f"what was rejected, and why: {program()} sync rejected")
    if results["replaced"]:
        print(f"what may have replaced other results at the Gateway: {program()} sync rejected")


def _facts(lpm: LocalPersistenceManager, settings: Settings) -> dict[str, Any]:
    from crawler.gateway.agent import is_busy

    stand, heard = lpm.outbox.delivery(None), lpm.gateway.note("heard")
    return {
        "enabled": settings.gateway_enabled,
        "gateway": lpm.gateway.note("url"),
        "worker_id": lpm.gateway.note("worker_id"),
        "heard_at": float(heard) if heard else None,
        "troubles": lpm.gateway.troubles() if is_busy(lpm) else [],
        "order": lpm.gateway.note("order"),
        "results": {name: getattr(stand, name) for name in _COUNTS},
        "reports": {
            name: getattr(stand, f"reports_{name}") for name in ("ready", "synced", "rejected")
        },
        "oldest": stand.oldest,
    }


@sync.command()
@click.option("--job", "job_name", help="Of this job only.")
@click.option(
    "--bundle",
    type=click.Path(path_type=Path),
    help="The results in this file, which are taken in first.",
)
@moved_option
@json_option
@data_dir_option
def push(job_name: str | None, bundle: Path | None, moved: bool, as_json: bool) -> int:
    """Send to the Gateway of GATEWAY_URL what it has not got yet, standalone results too.

    Results of standalone work are held, and this is the only command that lets them go: all of
    them, those of a job, or those that another machine has put into a bundle. Broken off, it can be
    typed again: nothing counts as delivered before the Gateway has said so.

    \b
    Example:
      python -m crawler sync push --job parcels.csv
      python -m crawler sync push --bundle parcels.crawlbundle.tar.zst
    """
    from crawler.gateway.agent import bind
    from crawler.gateway.client import GatewayClient
    from crawler.orchestrator import terminated_by_signal

    settings = config.load()
    GatewayClient(settings, "check")
    if job_name and bundle:
        raise click.UsageError("--job and --bundle do not go together")
    with terminated_by_signal(), contextlib.ExitStack() as exits:
        store = LocalPersistenceManager(settings.data_dir) if bundle else stored()
        lpm = exits.enter_context(store)
        worker_id = bind(lpm, settings, moved)
        released = _release(lpm, settings, job_name, bundle)
        say(f"{released:,} held results are let go; {lpm.outbox.unsent():,} are to be delivered")
        before = lpm.outbox.delivery(None)
        _deliver(lpm, settings, worker_id)
        after = lpm.outbox.delivery(None)
    done = {
        "released": released,
        "results": after.synced - after.replaced - before.synced + before.replaced,
        "replaced": after.replaced - before.replaced,
        "reports": after.reports_synced - before.reports_synced,
        "rejected": after.rejected
        + after.reports_rejected
        - before.rejected
        - before.reports_rejected,
        "unsent": after.unsent,
    }
    if as_json:
        print_json(done)
    else:
        print(
            f"Delivered {done['results']:,} results and {done['reports']:,} reports to {settings.gateway_url}"
        )
        if done["rejected"]:
            print(
                f"{done['rejected']:,} were rejected, and are kept; why: {program()} sync rejected"
            )
        if done["replaced"]:
            print(
                f"{done['replaced']:,} may have replaced other results there; which: {program()} sync rejected"
            )
    return 1 if done["rejected"] or done["replaced"] else 0


def _release(
    lpm: LocalPersistenceManager, settings: Settings, job_name: str | None, bundle: Path | None
) -> int:
    """Let held results go."""
    if not bundle:
        return lpm.outbox.release(job_of(lpm, job_name) if job_name else None)
    from crawler.results.bundle import unbundle

    released = 0

    def let_go(task_ids: list[str]) -> None:
        nonlocal released
        released += lpm.outbox.release(task_ids=task_ids)

    done = unbundle(lpm, bundle, settings.max_body, stored=let_go)
    say(f"{bundle}: {done.results:,} results, {done.new:,} new here")
    return released


def _deliver(lpm: LocalPersistenceManager, settings: Settings, worker_id: str) -> None:
    """Have all delivered that is to be: by this process, unless an agent does it already."""
    import asyncio

    from crawler.errors import StackIsUp
    from crawler.gateway.agent import only_one

    moved = time.monotonic()
    while left := lpm.outbox.unsent():
        try:
            with only_one(lpm):
                asyncio.run(_send_all(settings, worker_id))
                return
        except StackIsUp:
            _watch(lpm)
        now_left, trouble = (
            lpm.outbox.unsent(),
            lpm.gateway.note("trouble_sync"),
        )
        if now_left < left or not trouble:
            moved = time.monotonic()
        elif time.monotonic() - moved > PATIENCE_S:
            raise ServiceError(
                f"{trouble}; {now_left:,} are still to be delivered, by `ondemand`, which is up here"
            )


async def _send_all(settings: Settings, worker_id: str) -> None:
    import asyncio

    from crawler.gateway.client import GatewayClient
    from crawler.gateway.sync import Sync

    async with GatewayClient(settings, worker_id) as client:
        sender = Sync(settings, client, AGAIN_S)
        running = asyncio.create_task(sender.run())
        good, answered, said = 0, time.monotonic(), time.monotonic()
        try:
            while left := sender.unsent():
                await asyncio.wait([running], timeout=0.1)
                if running.done():
                    running.result()
                if sender.good > good:
                    good, answered = sender.good, time.monotonic()
                elif sender.trouble and time.monotonic() - answered > PATIENCE_S:
                    raise ServiceError(
                        f"{sender.trouble}; {left:,} are still to be delivered: type the same command again later"
                    )
                if time.monotonic() - said > SAY_S:
                    said = time.monotonic()
                    say(
                        f"{left:,} to be delivered"
                        + (f": {sender.trouble}" if sender.trouble else "")
                    )
        finally:
            running.cancel()
            await asyncio.wait([running])
            sender.close()


def _watch(lpm: LocalPersistenceManager) -> None:
    """Wait a little while an agent delivers."""
    left = lpm.outbox.unsent()
    say(f"`ondemand` is up in this folder and delivers: {left:,} left")
    end = time.monotonic() + SAY_S
    while lpm.outbox.unsent() and time.monotonic() < end:
        time.sleep(0.2)


@sync.command()
@click.argument("task_ids", nargs=-1, metavar="[TASK_ID]…")
@json_option
@data_dir_option
def retry(task_ids: tuple[str, ...], as_json: bool) -> int:
    """Deliver again what was rejected: these tasks, or all but what the Gateway wants no more (409,
    410).

    A running `ondemand` sends them at once; without one, `sync push` does.

    \b
    Example:
      python -m crawler sync retry
      python -m crawler sync retry t-17
    """
    with stored() as lpm:
        known = {
            name for item in lpm.outbox.rejected() for name in (item["task_id"], item["own_id"])
        }
        unknown = [task_id for task_id in task_ids if task_id not in known]
        count = lpm.outbox.retry(task_ids)
        left = len(lpm.outbox.rejected())
    for task_id in unknown:
        say(f"{task_id}: nothing of that name was rejected")
    if as_json:
        print_json({"again": count, "rejected": left})
    else:
        print(f"{count:,} are to be delivered again; {left:,} stay rejected")
    return 1 if unknown else 0


@sync.command()
@json_option
@data_dir_option
def rejected(as_json: bool) -> int:
    """List what was rejected, or may have replaced other results, and why; all of it is kept.

    \b
    Example:
      python -m crawler sync rejected --json
    """
    with stored() as lpm:
        found = lpm.outbox.rejected() + lpm.outbox.replaced()
    if as_json:
        print_json(found)
        return 0
    for item in found:
        why = f"{item['code']}: {item['problem']}" if item.get("code") else item["problem"]
        print(
            f"{item['kind']} {printable(item['task_id'])}  {printable(item['url'])}\n  {printable(why)}"
        )
    if not found:
        print("Nothing was rejected")
    return 0
