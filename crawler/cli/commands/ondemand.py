"""`ondemand` and `sync`: work for a Gateway, and deliver results to it."""

import contextlib
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crawler import config, logs, times
from crawler.cli.options import data_dir_option, job_option, json_option, workers_option
from crawler.cli.output import existing_store, find_job_if_named, print_json, say
from crawler.config import Settings, program
from crawler.errors import ServiceError
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager

if TYPE_CHECKING:
    from crawler.db.gateway import Delivery
    from crawler.gateway.sync import Sync
    from crawler.orchestrator import Orchestrator

SAY_INTERVAL_S = 5.0
GATEWAY_LIMIT_S = 20.0
"""How long `sync push` waits for a Gateway that does not answer."""
MAX_RETRY_PAUSE_S = 3.0
"""Maximum pause between two attempts of `sync push`."""
_ENDED = ("completed", "failed", "skipped", "expired")
_RESULTS = ("held", "ready", "synced", "rejected", "late", "without_page", "replaced")
_REPORTS = ("ready", "synced", "rejected")

platform_option = click.option(
    "--platform",
    "platforms",
    multiple=True,
    metavar="P",
    help="Take only tasks of this platform; repeatable.",
)
capacity_option = click.option(
    "--capacity",
    type=click.IntRange(1, 100_000),
    default=200,
    show_default=True,
    help="Maximum tasks of the Gateway to hold at a time.",
)
moved_option = click.option(
    "--moved",
    is_flag=True,
    help="GATEWAY_URL is a new address of the Gateway that this store worked for before.",
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
    """Work for the Gateway at GATEWAY_URL: take its tasks, collect their pages, and deliver every
    result once.

    Runs until Ctrl-C, or until the Gateway says `drain` and has got everything. Open tasks and
    undelivered results stay in the store; run the same command again to continue. Any number of
    machines can work for one Gateway.

    \b
    Example:
      export GATEWAY_URL=https://gateway.example GATEWAY_TOKEN_FILE=/run/secrets/gateway
      python -m crawler ondemand --platform beacon --capacity 500
    """
    from crawler import sites
    from crawler.cli.commands.stack import started
    from crawler.gateway.agent import bind
    from crawler.gateway.client import GatewayClient
    from crawler.gateway.collector import requested_platforms
    from crawler.orchestrator import Orchestrator, terminated_by_signal

    settings = config.load()
    described = sites.load(settings.config_dir, settings.rate)
    GatewayClient(settings, "check")  # fails here, not in the agent's log
    platforms = tuple(requested_platforms(settings, platforms, described))
    with LocalPersistenceManager(settings.data_dir) as lpm:
        worker_id = bind(lpm, settings, moved)
    agent_arguments = []
    for platform in platforms:
        agent_arguments += ["--platform", platform]
        if described.named(platform) is None:
            effect = "its tasks need a url, and are parsed with the default rules"
            say(f"warning: no site {platform!r} is configured; {effect}")
    agent_arguments += ["--capacity", str(capacity)]
    try:
        with (
            terminated_by_signal(),
            Orchestrator(settings, workers, agent=agent_arguments, beat=False, join=False) as stack,
        ):
            say(f"starting Redis and workers; this is worker {worker_id} of {settings.gateway_url}")
            with started(stack):
                _follow(settings, stack)
    finally:
        _print_summary(settings, as_json)
    return 0


def _follow(settings: Settings, stack: "Orchestrator") -> None:
    """Print the counts whenever they have changed, until the Gateway has said `drain`."""
    said, due = [""], 0.0
    with LocalPersistenceManager(settings.data_dir) as lpm:
        while not stack.drained:
            if time.monotonic() >= due:
                began = time.monotonic()
                lines = [_counts_line(lpm), *_obstacles(lpm, settings)]
                for line in lines:
                    if line not in said:
                        say(line)
                said = lines
                # Counting a million tasks takes long, and must not take most of the time.
                due = began + max(SAY_INTERVAL_S, 50 * (time.monotonic() - began))
            time.sleep(0.2)
    say("the Gateway has said drain, and has got everything")


def _counts_line(lpm: LocalPersistenceManager) -> str:
    """Return the counts of tasks and deliveries in one line."""
    states, delivery = lpm.gateway.states(), lpm.outbox.delivery(None)
    tasks = {"taken": sum(states.values()), "open": lpm.gateway.open_count()}
    tasks |= {name: states[name] for name in _ENDED if states.get(name)}
    delivered = delivery.synced - delivery.replaced + delivery.reports_synced
    sent = {"to deliver": delivery.unsent, "delivered": delivered}
    if delivery.replaced:
        sent["replaced"] = delivery.replaced
    if delivery.refused:
        sent["rejected"] = delivery.refused
    return f"{_counts_text(tasks)} · {_counts_text(sent)}"


def _counts_text(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in counts.items())


def _obstacles(lpm: LocalPersistenceManager, settings: Settings) -> list[str]:
    """Return what keeps the counts from moving."""
    from crawler.waits import disk_problem

    found: list[str | None] = []
    order = lpm.gateway.note("order")
    job = next((job for job in reversed(lpm.jobs.all()) if job.of_gateway), None)
    if order in ("pause", "drain"):
        found.append(f"the Gateway has said: {order}")
    elif job and job.hold:
        found.append(f"the job {job.name} is {job.hold}: no tasks are requested")
    found += [*lpm.gateway.troubles(), disk_problem(lpm.folder, settings)]
    return [text for text in found if text]


def _print_summary(settings: Settings, as_json: bool) -> None:
    """Print what was done, after all processes have ended."""
    with LocalPersistenceManager(settings.data_dir) as lpm:
        states, delivery = lpm.gateway.states(), lpm.outbox.delivery(None)
        line = _counts_line(lpm)
    if as_json:
        print_json({"tasks": states, "exchange": delivery})
        return
    print(line)
    if delivery.unsent:
        later = f"the next start sends them, or {program()} sync push"
        print(f"{delivery.unsent:,} are not delivered yet; {later}")
    if delivery.refused:
        print(f"what was rejected, and why: {program()} sync rejected")


@click.command(hidden=True)
@platform_option
@capacity_option
def agent(platforms: tuple[str, ...], capacity: int) -> int:
    """The process of `ondemand` that speaks to the Gateway."""
    from crawler.gateway.agent import run

    settings = config.load()
    logs.setup(settings.log_level)
    stopping, ending = threading.Event(), threading.Event()

    def stop(*_: object) -> None:
        """The first signal stops in order, the second at once."""
        if stopping.is_set():
            ending.set()
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop)
    if run(settings, platforms, capacity, stopping, ending):
        return 0
    return 128 + signal.SIGTERM


@click.group()
def sync() -> None:
    """Show and control delivery to the Gateway.

    \b
    Example:
      python -m crawler sync status
      python -m crawler sync push --job parcels.csv
    """


@sync.command()
@json_option
@data_dir_option
def status(as_json: bool) -> None:
    """Count the results and reports that are held, waiting, delivered and rejected.

    \b
    Example:
      python -m crawler sync status --json
    """
    settings = config.load()
    with existing_store() as lpm:
        facts = _delivery_facts(lpm, settings)
    if as_json:
        print_json(facts)
        return
    now, results, reports = time.time(), facts["results"], facts["reports"]
    print(f"results  {_counts_text(results)}")
    print(f"reports  {_counts_text(reports)}")
    if facts["oldest"] is not None:
        age = times.duration(now - facts["oldest"])
        print(f"the oldest undelivered one waits for {age}")
    if facts["gateway"]:
        heard = "no answer yet"
        if facts["heard_at"]:
            heard = f"last answer {times.duration(now - facts['heard_at'])} ago"
        print(f"worker {facts['worker_id']} of the Gateway {printable(facts['gateway'])}, {heard}")
    if facts["order"]:
        print(f"the Gateway has said: {facts['order']}")
    for trouble in facts["troubles"]:
        print(printable(trouble))
    if results["held"]:
        print(f"held results come from standalone work; send them with: {program()} sync push")
    if results["rejected"] or reports["rejected"]:
        print(f"what was rejected, and why: {program()} sync rejected")
    if results["replaced"]:
        print(f"what may have replaced other results at the Gateway: {program()} sync rejected")


def _delivery_facts(lpm: LocalPersistenceManager, settings: Settings) -> dict[str, Any]:
    from crawler.gateway.agent import is_busy

    delivery, heard = lpm.outbox.delivery(None), lpm.gateway.note("heard")
    return {
        "enabled": settings.gateway_enabled,
        "gateway": lpm.gateway.note("url"),
        "worker_id": lpm.gateway.note("worker_id"),
        "heard_at": float(heard) if heard else None,
        "troubles": lpm.gateway.troubles() if is_busy(lpm) else [],
        "order": lpm.gateway.note("order"),
        "results": {name: getattr(delivery, name) for name in _RESULTS},
        "reports": {name: getattr(delivery, f"reports_{name}") for name in _REPORTS},
        "oldest": delivery.oldest,
    }


@sync.command()
@job_option
@click.option(
    "--bundle",
    type=click.Path(path_type=Path),
    help="Only the results in this file, which are taken into the store first.",
)
@moved_option
@json_option
@data_dir_option
def push(job_name: str | None, bundle: Path | None, moved: bool, as_json: bool) -> int:
    """Send undelivered results to the Gateway at GATEWAY_URL, standalone results too.

    Results of standalone work are held, and only this command releases them: all of them, those of
    a job, or those in another machine's bundle. Safe to interrupt: a result counts as delivered
    only when the Gateway has confirmed it. Run the same command again to continue.

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
        if bundle:
            lpm = exits.enter_context(LocalPersistenceManager(settings.data_dir))
        else:
            lpm = exits.enter_context(existing_store())
        worker_id = bind(lpm, settings, moved)
        released = _release(lpm, settings, job_name, bundle)
        say(f"released {released:,} held results; {lpm.outbox.unsent():,} to deliver")
        before = lpm.outbox.delivery(None)
        _deliver(lpm, settings, worker_id)
        done = {"released": released} | _delivered_since(before, lpm.outbox.delivery(None))
    if as_json:
        print_json(done)
    else:
        delivered = f"{done['results']:,} results and {done['reports']:,} reports"
        print(f"Delivered {delivered} to {settings.gateway_url}")
        command = f"{program()} sync rejected"
        if done["rejected"]:
            print(f"{done['rejected']:,} were rejected, and are kept; why: {command}")
        if done["replaced"]:
            replaced = f"{done['replaced']:,} may have replaced other results there"
            print(f"{replaced}; which: {command}")
    return int(done["rejected"] > 0 or done["replaced"] > 0)


def _delivered_since(before: "Delivery", after: "Delivery") -> dict[str, int]:
    replaced = after.replaced - before.replaced
    return {
        "results": after.synced - before.synced - replaced,
        "replaced": replaced,
        "reports": after.reports_synced - before.reports_synced,
        "rejected": after.refused - before.refused,
        "unsent": after.unsent,
    }


def _release(
    lpm: LocalPersistenceManager, settings: Settings, job_name: str | None, bundle: Path | None
) -> int:
    """Release held results for delivery; returns how many."""
    if not bundle:
        return lpm.outbox.release(find_job_if_named(lpm, job_name))
    from crawler.results.bundle import unbundle

    released = 0

    def release(task_ids: list[str]) -> None:
        nonlocal released
        released += lpm.outbox.release(task_ids=task_ids)

    done = unbundle(lpm, bundle, settings.max_body, stored=release)
    say(f"{bundle}: {done.results:,} results, {done.new:,} new here")
    return released


def _deliver(lpm: LocalPersistenceManager, settings: Settings, worker_id: str) -> None:
    """Deliver everything, or wait until an agent that is up has done so."""
    import asyncio

    from crawler.errors import StackIsUp
    from crawler.gateway.agent import only_one

    progressed_at = time.monotonic()
    while left := lpm.outbox.unsent():
        try:
            with only_one(lpm):
                asyncio.run(_send_all(settings, worker_id))
                return
        except StackIsUp:
            _wait_for_agent(lpm)
        now_left, trouble = lpm.outbox.unsent(), lpm.gateway.note("trouble_sync")
        if now_left < left or not trouble:
            progressed_at = time.monotonic()
        elif time.monotonic() - progressed_at > GATEWAY_LIMIT_S:
            who = "by `ondemand`, which is up here"
            raise ServiceError(f"{trouble}; {now_left:,} are still to be delivered, {who}")


async def _send_all(settings: Settings, worker_id: str) -> None:
    """Send until nothing is left; raises `ServiceError` if the Gateway does not answer."""
    import asyncio

    from crawler.gateway.client import GatewayClient
    from crawler.gateway.sync import Sync

    async with GatewayClient(settings, worker_id) as client:
        sender = Sync(settings, client, MAX_RETRY_PAUSE_S)
        running = asyncio.create_task(sender.run())
        good, answered_at, said_at = 0, time.monotonic(), time.monotonic()
        try:
            while left := sender.unsent():
                await asyncio.wait([running], timeout=0.1)
                if running.done():
                    running.result()
                if sender.good > good:
                    good, answered_at = sender.good, time.monotonic()
                elif sender.trouble and time.monotonic() - answered_at > GATEWAY_LIMIT_S:
                    later = "run the same command again later"
                    raise ServiceError(
                        f"{sender.trouble}; {left:,} are still to be delivered: {later}"
                    )
                if time.monotonic() - said_at > SAY_INTERVAL_S:
                    said_at = time.monotonic()
                    _say_left(left, sender)
        finally:
            running.cancel()
            await asyncio.wait([running])
            sender.close()


def _say_left(left: int, sender: "Sync") -> None:
    if sender.trouble:
        say(f"{left:,} to be delivered: {sender.trouble}")
    else:
        say(f"{left:,} to be delivered")


def _wait_for_agent(lpm: LocalPersistenceManager) -> None:
    """Wait a few seconds while an agent delivers."""
    left = lpm.outbox.unsent()
    say(f"`ondemand` is up in this folder and delivers them: {left:,} left")
    end = time.monotonic() + SAY_INTERVAL_S
    while lpm.outbox.unsent() and time.monotonic() < end:
        time.sleep(0.2)


@sync.command()
@click.argument("task_ids", nargs=-1, metavar="[TASK_ID]…")
@json_option
@data_dir_option
def retry(task_ids: tuple[str, ...], as_json: bool) -> int:
    """Deliver rejected results again: those of the given tasks, or all.

    Without TASK_ID, results that the Gateway does not want (409, 410) stay rejected. A running
    `ondemand` sends the others at once. If none runs, use `sync push`.

    \b
    Example:
      python -m crawler sync retry
      python -m crawler sync retry t-17
    """
    with existing_store() as lpm:
        known = {
            name for item in lpm.outbox.rejected() for name in (item["task_id"], item["own_id"])
        }
        unknown = [task_id for task_id in task_ids if task_id not in known]
        count = lpm.outbox.retry(task_ids)
        left = len(lpm.outbox.rejected())
    for task_id in unknown:
        say(f"{task_id}: no result of this task was rejected")
    if as_json:
        print_json({"again": count, "rejected": left})
    else:
        print(f"{count:,} will be delivered again; {left:,} stay rejected")
    return int(bool(unknown))


@sync.command()
@json_option
@data_dir_option
def rejected(as_json: bool) -> int:
    """List results that the Gateway rejected, or that may have replaced others there, and why.

    They are kept in the store.

    \b
    Example:
      python -m crawler sync rejected --json
    """
    with existing_store() as lpm:
        found = lpm.outbox.rejected() + lpm.outbox.replaced()
    if as_json:
        print_json(found)
        return 0
    for item in found:
        reason = item["problem"]
        if item.get("code"):
            reason = f"{item['code']}: {reason}"
        print(f"{item['kind']} {printable(item['task_id'])}  {printable(item['url'])}")
        print(f"  {printable(reason)}")
    if not found:
        print("Nothing was rejected")
    return 0
