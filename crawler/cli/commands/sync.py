"""`sync`: what a Gateway has got, what it is to get, and what it has refused."""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import click

from crawler import config, times
from crawler.cli.commands.ondemand import moved_option
from crawler.cli.output import data_dir_option, job_of, json_option, print_json, say, stored
from crawler.config import Settings, program
from crawler.errors import ServiceError
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager

SAY_S = 5.0
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
