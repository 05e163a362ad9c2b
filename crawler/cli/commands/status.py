"""`status`: the books, and what runs; with --watch again and again."""

import shutil
import time
from typing import TYPE_CHECKING, Any

import click
import msgspec

from crawler import config, times
from crawler.cli.output import data_dir_option, json_option, print_json, require_store, size_of
from crawler.config import Settings, program
from crawler.db import owners
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager
from crawler.models import QUEUES, Books, Job
from crawler.standstill import Waits, no_room, standing_still

if TYPE_CHECKING:
    from crawler.stack import Stack

MAX_JOBS = 20
"""Jobs that are looked at one by one for what they wait for."""
_STATES = ("accepted", "pending", "processing", "completed", "failed", "skipped", "expired")


@click.command()
@click.option(
    "--watch",
    is_flag=True,
    help="Show it live until Ctrl-C; plain lines where this is no terminal.",
)
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 3600),
    default=1.0,
    show_default=True,
    help="Seconds between two looks.",
)
@json_option
@data_dir_option
def status(watch: bool, interval: float, as_json: bool) -> None:
    """Show what is done, what is not, and what runs; also with the stack down.

    \b
    Example:
      python -m crawler status --json
      python -m crawler status --watch
    """
    settings = config.load()
    if not _is_starting(settings):
        require_store(settings.data_dir)
    if watch:
        from crawler.cli.watch import Watch

        Watch(settings, as_json).run(interval)
    elif as_json:
        print_json(gather(settings))
    else:
        _show(gather(settings), settings)


def _is_starting(settings: Settings) -> bool:
    """Whether a stack is up: one that has just started makes its store in a moment."""
    from crawler.stack import read_stack

    return read_stack(settings.data_dir).up


def gather(settings: Settings, sizes: bool = True) -> dict[str, Any]:
    """All facts; those of the ledger are of one moment."""
    facts: dict[str, Any] = {
        "books": Books(),
        "jobs": {},
        "queues": dict.fromkeys(QUEUES, 0),
        "job_facts": {},
        "domains": {},
        "rate": 0.0,
        "gateway": None,
        "waits": [],
        "unaccounted": [],
    }
    if LocalPersistenceManager.exists(settings.data_dir):
        with LocalPersistenceManager(settings.data_dir) as lpm, lpm.errors():
            counts = lpm.counts
            with lpm.store.reading():
                jobs = lpm.jobs.all()
                facts["books"] = counts.totals()
                facts["jobs"] = {job.name: counts.of_job(job) for job in jobs}
                facts["queues"] |= counts.pending_by_queue()
                facts["domains"] = counts.in_flight()
                facts["rate"] = round(counts.rate(lpm.now()), 2)
                growth = counts.growth(lpm.now())
                facts["gateway"] = _gateway(lpm)
            look = Waits(settings, lpm)
            facts["waits"] = _waits(look, jobs, facts)
            late = _late(settings, lpm, look, jobs, facts)
            missing = lpm.unaccounted(jobs)
            for job, what in zip(jobs, missing, strict=True):
                about = {"unaccounted": what, "late": late.get(job.name)}
                facts["job_facts"][job.name] = _about(job) | about
            facts["unaccounted"] = [] if any(missing) else lpm.pages.missing()
            if sizes:
                facts["store"] = {"bytes": lpm.sizes(), **growth}
    facts["books"] = msgspec.structs.asdict(facts["books"])
    facts["jobs"] = {name: msgspec.structs.asdict(books) for name, books in facts["jobs"].items()}
    running = {"pids": _pids(settings), "trouble": _troubles(settings)}
    return facts | running | {"disk": _disk(settings), "redis": _redis(settings)}


def _waits(look: Waits, jobs: list[Job], facts: dict[str, Any]) -> list[dict[str, Any]]:
    """What keeps anything from going on, and what stops a whole job while others go on; each with
    its line."""
    found = [
        msgspec.structs.asdict(wait) | {"line": look.line(wait), "jobs": []}
        for wait in look.of(None, facts["books"])
    ]
    if not found or found[0]["stops"]:
        return found
    still = [
        job
        for job in jobs
        if facts["jobs"][job.name].open and not facts["jobs"][job.name].processing
    ]
    for job in still[:MAX_JOBS]:
        kinds = {
            (wait.kind, wait.domain) for wait in look.of(job, facts["jobs"][job.name]) if wait.stops
        }
        for each in found:
            if (each["kind"], each["domain"]) in kinds and each["kind"] != "paused":
                each["jobs"].append(job.name)
    return found


def _late(
    settings: Settings,
    lpm: LocalPersistenceManager,
    look: Waits,
    jobs: list[Job],
    facts: dict[str, Any],
) -> dict[str, str]:
    """What is said of jobs that will miss their deadlines."""
    from crawler.forecast import of_job, sentence

    now, tz = time.time(), times.zone(settings.timezone)
    due = [job for job in jobs if job.deadline and facts["jobs"][job.name].open]
    found = {}
    for job in due[:MAX_JOBS]:
        limits = look.limits(job)
        seen = of_job(lpm.counts, job, limits, now, look.of(job, facts["jobs"][job.name]))
        if seen.misses:
            found[job.name] = sentence(seen, job, limits, now, tz)
    return found


def _gateway(lpm: LocalPersistenceManager) -> dict[str, Any] | None:
    """How far the exchange with a Gateway has come; None where none was ever known."""
    notes = {name: lpm.gateway.note(name) for name in ("url", "worker_id", "heard", "order")}
    heard, delivery = notes.pop("heard"), lpm.outbox.delivery(None)
    if notes["url"] is None and not delivery.concerns_gateway:
        return None
    about = {"heard_at": float(heard) if heard else None, "troubles": lpm.gateway.troubles()}
    return notes | about | msgspec.structs.asdict(delivery)


def _about(job: Job) -> dict[str, Any]:
    return {
        "state": job.state,
        "queue": job.queue,
        "deadline": job.deadline,
        "created_at": job.created_at,
    }


def _pids(settings: Settings) -> dict[str, Any]:
    from crawler.stack import read_stack

    stack = read_stack(settings.data_dir)
    workers = owners.workers(settings.data_dir / "run" / "owners")
    return {
        "unreadable": stack.unreadable,
        "still": _standing_still(settings, stack),
        "supervisor": stack.supervisor.pid
        if stack.supervisor and stack.supervisor.find()
        else None,
        "redis": stack.redis.pid if stack.redis and stack.redis.find() else None,
        "agent": stack.agent.pid if stack.agent and stack.agent.find() else None,
        "flower": stack.flower.pid if stack.flower and stack.flower.find() else None,
        "workers": [
            {"pid": pid, "children": sorted(children)} for pid, children in sorted(workers.items())
        ],
    }


def _troubles(settings: Settings) -> dict[str, str]:
    """What keeps living processes from working, by their pids."""
    notes = owners.living(settings.data_dir / "run" / "owners")
    return {str(note.about.get("pid", note.id)): note.trouble for note in notes if note.trouble}


def _standing_still(settings: Settings, stack: "Stack") -> list[dict[str, Any]]:
    """Processes that live and do nothing, with what they are: somebody has stopped them."""
    notes = owners.living(settings.data_dir / "run" / "owners")
    marks = {
        name: getattr(stack, name) for name in ("supervisor", "redis", "worker", "agent", "flower")
    }
    still = [
        {"what": name, "pid": mark.pid}
        for name, mark in marks.items()
        if mark and mark.is_stopped()
    ]
    kinds = {"worker": "a worker's child", "cli": "a command"}
    return still + [
        {"what": kinds.get(note.about.get("kind", ""), "a process"), "pid": note.pid}
        for note in standing_still(notes, settings.stall_s)
    ]


def _disk(settings: Settings) -> dict[str, Any]:
    folder = settings.data_dir.absolute()
    while not folder.exists():
        folder = folder.parent
    usage = shutil.disk_usage(folder)
    return {
        "folder": str(settings.data_dir.absolute()),
        "free": usage.free,
        "total": usage.total,
        "low": no_room(folder, settings),
    }


def _redis(settings: Settings) -> dict[str, Any]:
    import redis

    from crawler.redis_client import connect
    from crawler.stack import redis_address
    from crawler.urls import without_credentials

    address = redis_address(settings)
    facts: dict[str, Any] = {"address": without_credentials(address), "up": False}
    try:
        client = connect(address)
        memory: Any = client.info("memory")
        facts |= {
            "up": True,
            "used_memory": memory["used_memory"],
            "maxmemory_policy": memory.get("maxmemory_policy"),
            "messages": {name: client.llen(name) for name in QUEUES},
        }
        client.close()
    except redis.RedisError:
        pass
    return facts


def _show(facts: dict[str, Any], settings: Settings) -> None:
    rows = [
        ("all", facts["books"]),
        *((printable(name), counts) for name, counts in facts["jobs"].items()),
    ]
    widths = {
        state: max(len(state), *(len(f"{counts[state]:,}") for _, counts in rows)) + 1
        for state in _STATES
    }
    width = min(max(len(name) for name, _ in rows), max(12, 79 - sum(widths.values())))
    print(" " * width + "".join(f"{state:>{room}}" for state, room in widths.items()))
    for name, counts in rows:
        shown = name if len(name) <= width else f"{name[: width - 1]}…"
        print(
            f"{shown:{width}}"
            + "".join(f"{counts[state]:>{room},}" for state, room in widths.items())
        )
    now, tz = time.time(), times.zone(settings.timezone)
    for name, about in facts["job_facts"].items():
        if (
            about["state"] == "cancelled"
            and facts["jobs"][name]["pending"] + facts["jobs"][name]["processing"]
        ):
            print(f"{printable(name)} is {about['state']}")
        for what in about["unaccounted"]:
            print(f"UNACCOUNTED: {printable(name)}: {printable(what)}")
        if about["deadline"] and facts["jobs"][name]["pending"] + facts["jobs"][name]["processing"]:
            print(f"{printable(name)} has the deadline {times.until(about['deadline'], now, tz)}")
        if about["late"]:
            print(f"LATE: {printable(name)}: {about['late']}")
    for what in facts["unaccounted"]:
        print(f"UNACCOUNTED: {printable(what)}; {program()} doctor tells more")
    for line in (*describe(facts), *halting(facts)):
        print(line)


_DELIVERY = {
    "ready": "to be delivered",
    "rejected": "rejected",
    "replaced": "may have replaced other results",
}


def delivering(facts: dict[str, Any]) -> list[str]:
    """A line on what a Gateway is to get or has refused, where there is any of it."""
    about = facts["gateway"] or {}
    parts = [
        f"{count:,} {what}"
        for state, what in _DELIVERY.items()
        if (count := about.get(state, 0) + about.get(f"reports_{state}", 0))
    ]
    url = f" {printable(about['url'])}" if parts and about["url"] else ""
    return [f"Gateway{url}: {', '.join(parts)} ({program()} sync status)"] if parts else []


def describe(facts: dict[str, Any]) -> list[str]:
    """What runs and what it takes, in a few lines."""
    pids, redis, disk = facts["pids"], facts["redis"], facts["disk"]
    workers = (
        ", ".join(f"{w['pid']} with {len(w['children'])} children" for w in pids["workers"])
        or "none"
    )
    messages = redis.get("messages", {})
    redis_is = f"up ({sum(messages.values()):,} messages)" if redis["up"] else "down"
    agent = f" · agent {pids['agent']}" if pids["agent"] else ""
    lines = delivering(facts)
    lines += [
        f"process {pid} claims nothing: {printable(text)}" for pid, text in facts["trouble"].items()
    ]
    supervisor = "of another version" if pids["unreadable"] else pids["supervisor"] or "none"
    for each in pids["still"]:
        what, pid = each["what"], each["pid"]
        lines.append(
            f"STANDS STILL: {what}, process {pid}; kill -CONT {pid} wakes it, kill -9 {pid} ends it"
        )
    lines += [f"supervisor {supervisor} · redis {redis_is} · workers {workers}{agent}"]
    if "store" in facts:
        store = facts["store"]
        parts = ", ".join(
            f"{name} {size_of(size)}" for name, size in store["bytes"].items() if size
        )
        grows = (
            f"; grows by {size_of(store['bytes_per_page'])} a page"
            if store["bytes_per_page"]
            else ""
        )
        hourly = f", {size_of(store['bytes_per_hour'])} an hour" if store["bytes_per_hour"] else ""
        lines.append(f"store {size_of(sum(store['bytes'].values()))} ({parts}){grows}{hourly}")
    return [*lines, f"{size_of(disk['free'])} free in {disk['folder']}"]


def halting(facts: dict[str, Any]) -> list[str]:
    """What keeps everything from moving, a line each."""
    lines = []
    for wait in facts["waits"]:
        jobs = f" (nothing of {', '.join(wait['jobs'])} goes on meanwhile)" if wait["jobs"] else ""
        lines.append(
            f"{'STANDSTILL' if wait['stops'] else 'WAITS'}: {printable(wait['line'] + jobs)}"
        )
    told = any(wait["kind"] == "disk" for wait in facts["waits"])
    return lines + (
        [f"PAUSED: {facts['disk']['low']}"] if facts["disk"]["low"] and not told else []
    )
