"""`status`, `domains` and `audit`: progress, the state of each domain, and its request rate."""

import difflib
import shutil
import sys
import time
from datetime import tzinfo
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from crawler import config, times
from crawler.cli.options import Number, data_dir_option, job_option, json_option, since_option
from crawler.cli.output import (
    cut_middle,
    existing_store,
    find_job_if_named,
    print_json,
    require_store,
    size_text,
)
from crawler.cli.progress import bar, job_table, name_cell
from crawler.config import Settings, program
from crawler.db import owners
from crawler.errors import ServiceError, UsageError
from crawler.forecast import Trend, slip
from crawler.logs import counted, printable
from crawler.lpm import LocalPersistenceManager
from crawler.models import MESSAGE_QUEUES, Job, JobStatus, TaskCounts
from crawler.waits import (
    SHOWN_SLOWDOWN,
    WaitFinder,
    describe_limits,
    disk_problem,
    open_rate_limiter,
    stalled_processes,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from crawler.history import Audit
    from crawler.process import ProcessMark
    from crawler.resilience.permit import DomainStatus
    from crawler.stack import Stack

MAX_JOBS = 20
"""Maximum jobs to examine one by one for waits and missed deadlines."""
MAX_ENDED_JOBS = 10
"""Jobs in the table that have ended; all others are open."""
MAX_WATCHED_JOBS, MAX_WATCHED_DOMAINS, MAX_WATCHED_WAITS = 12, 6, 5
"""Limits of `status --watch`: a terminal has 24 lines."""
WATCHED_BAR_WIDTH = 14
SIZES_INTERVAL_S = 30.0
"""How often `status --watch` measures the store: with a million files that takes seconds."""
_STATES = ("accepted", "pending", "processing", "completed", "failed", "skipped", "expired")
_WITHOUT_RESULT = ("failed", "skipped", "expired")
_FULL_SOON_S = 90 * 86400.0
"""A disk that lasts longer is not worth a word."""
MAX_PATTERNS_SHOWN = 5
"""Patterns of pages of a domain that a browser renders."""
_SERVICES = ("supervisor", "redis", "worker", "browsers", "agent", "beat", "api", "flower")


@click.command()
@click.option(
    "--watch",
    is_flag=True,
    help="Refresh until Ctrl-C; without a terminal, print lines.",
)
@click.option(
    "--interval",
    type=Number(0.2, 3600),
    default=1.0,
    show_default=True,
    help="Seconds between refreshes.",
)
@json_option
@data_dir_option
def status(watch: bool, interval: float, as_json: bool) -> None:
    """Show progress, running processes and disk space. It works with the stack up or down.

    \b
    Example:
      python -m crawler status --json
      python -m crawler status --watch
    """
    settings = config.load()
    if not _is_stack_up(settings):
        require_store(settings.data_dir)
    if watch:
        Watch(settings, as_json).run(interval)
    elif as_json:
        print_json(gather(settings))
    else:
        _print_status(gather(settings), settings)


def _is_stack_up(settings: Settings) -> bool:
    """Return whether a stack is up: one that has just started will create its store."""
    from crawler.stack import read_stack

    return read_stack(settings.data_dir).up


def gather(settings: Settings, sizes: bool = True) -> dict[str, Any]:
    """Return all facts that `status` shows; the counts are of one moment."""
    facts: dict[str, Any] = {
        "books": TaskCounts(),
        "jobs": {},
        "queues": dict.fromkeys(MESSAGE_QUEUES, 0),
        "job_facts": {},
        "domains": {},
        "rate": 0.0,
        "gateway": None,
        "waits": [],
        "unaccounted": [],
        "config_faults": _config_faults(settings),
        "schedules": [],
    }
    if LocalPersistenceManager.exists(settings.data_dir):
        with LocalPersistenceManager(settings.data_dir) as lpm, lpm.errors():
            _add_store_facts(facts, settings, lpm, sizes)
    facts["books"] = msgspec.structs.asdict(facts["books"])
    facts["jobs"] = {name: msgspec.structs.asdict(books) for name, books in facts["jobs"].items()}
    facts |= {"pids": _pids(settings), "trouble": _troubles(settings)}
    facts["autoscale"] = _autoscale(settings)
    facts |= {"disk": _disk(settings), "redis": _redis(settings)}
    return facts


def _add_store_facts(
    facts: dict[str, Any], settings: Settings, lpm: LocalPersistenceManager, sizes: bool
) -> None:
    from crawler.cli.schedules import brief_schedules

    counts = lpm.counts
    with lpm.store.reading():
        jobs = lpm.jobs.all()
        facts["books"] = counts.totals()
        facts["jobs"] = {job.name: counts.of_job(job) for job in jobs}
        facts["queues"] |= counts.pending_by_queue()
        facts["domains"] = counts.in_flight()
        facts["rate"] = round(counts.rate(lpm.now()), 2)
        facts["gateway"] = _gateway(lpm)
        is_broken = any(map(_is_of_schedules, facts["config_faults"]))
        facts["schedules"] = brief_schedules(settings, lpm.site_jobs.schedules(), is_broken)
    finder = WaitFinder(settings, lpm)
    facts["waits"] = _waits(finder, jobs, facts)
    late = _late_jobs(settings, lpm, finder, jobs, facts)
    missing = lpm.unaccounted(jobs)
    for job, unaccounted in zip(jobs, missing, strict=True):
        facts["job_facts"][job.name] = {
            "state": job.state,
            "queue": job.queue,
            "deadline": job.deadline,
            "created_at": job.created_at,
            "unaccounted": unaccounted,
            "late": late.get(job.name),
            "crawl": lpm.crawls.progress(job, facts["jobs"][job.name]),
        }
    if not any(missing):
        facts["unaccounted"] = lpm.pages.missing()
    if sizes:
        facts["store"] = _store(lpm)


def _waits(finder: WaitFinder, jobs: list[Job], facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what stops or delays the crawl, each with its line and the jobs that it stops."""
    found = [
        msgspec.structs.asdict(wait) | {"line": finder.describe(wait), "jobs": []}
        for wait in finder.find(None, facts["books"])
    ]
    if not found or found[0]["stops"]:
        return found
    books = facts["jobs"]
    idle = [job for job in jobs if books[job.name].open and not books[job.name].processing]
    for job in idle[:MAX_JOBS]:
        stops = {
            (wait.kind, wait.domain) for wait in finder.find(job, books[job.name]) if wait.stops
        }
        for each in found:
            if (each["kind"], each["domain"]) in stops and each["kind"] != "paused":
                each["jobs"].append(job.name)
    return found


def _late_jobs(
    settings: Settings,
    lpm: LocalPersistenceManager,
    finder: WaitFinder,
    jobs: list[Job],
    facts: dict[str, Any],
) -> dict[str, str]:
    """Return a forecast for each job that will miss its deadline."""
    from crawler.forecast import of_job, sentence

    now, tz = time.time(), times.zone(settings.timezone)
    due = [job for job in jobs if job.deadline and facts["jobs"][job.name].open]
    found = {}
    for job in due[:MAX_JOBS]:
        limits = finder.limits(job)
        forecast = of_job(lpm.counts, job, limits, now, finder.find(job, facts["jobs"][job.name]))
        if forecast.misses:
            found[job.name] = sentence(forecast, job, limits, now, tz)
    return found


def _gateway(lpm: LocalPersistenceManager) -> dict[str, Any] | None:
    """Return the state of delivery to the Gateway; None if this store never had one."""
    notes = {name: lpm.gateway.note(name) for name in ("url", "worker_id", "heard", "order")}
    heard, delivery = notes.pop("heard"), lpm.outbox.delivery(None)
    if notes["url"] is None and not delivery.concerns_gateway:
        return None
    about = {"heard_at": float(heard) if heard else None, "troubles": lpm.gateway.troubles()}
    return notes | about | msgspec.structs.asdict(delivery)


def _pids(settings: Settings) -> dict[str, Any]:
    from crawler.stack import is_beat_running, read_stack

    stack = read_stack(settings.data_dir)
    return {
        "in_containers": stack.container,
        "unreadable": stack.unreadable,
        "still": _stopped_processes(settings, stack),
        "supervisor": _living_pid(stack.supervisor),
        "redis": _living_pid(stack.redis),
        "agent": _living_pid(stack.agent),
        "beat": _living_pid(stack.beat),
        "has_beat": is_beat_running(settings.data_dir),  # also one without a stack
        "api": _living_pid(stack.api),
        "flower": _living_pid(stack.flower),
        "workers": _with_children(owners.fetchers(_owners(settings))),
        "browsers": _with_children(owners.browsers(_owners(settings))),
        "direct": sorted(
            note.pid for note in owners.living(_owners(settings)) if note.about["kind"] == "direct"
        ),
    }


def _with_children(workers: dict[int, list[int]]) -> list[dict[str, Any]]:
    return [{"pid": pid, "children": sorted(workers[pid])} for pid in sorted(workers)]


def _shown_workers(workers: list[dict[str, Any]], in_containers: bool) -> str:
    if in_containers and workers:  # their pids mean nothing here, and may be the same in several
        return f"{sum(len(each['children']) for each in workers)} in containers"
    return ", ".join(f"{each['pid']} with {len(each['children'])} children" for each in workers)


def _autoscale(settings: Settings) -> dict[str, Any] | None:
    """Return how many worker processes there are to be, and why; None if that does not change."""
    from crawler.stack import read_stack

    stack = read_stack(settings.data_dir)
    if not stack.up or stack.autoscale is None:
        return None
    return msgspec.structs.asdict(stack.autoscale)


def _living_pid(mark: "ProcessMark | None") -> int | None:
    if mark and mark.find():
        return mark.pid
    return None


def _owners(settings: Settings) -> Path:
    return settings.data_dir / "run" / "owners"


def _troubles(settings: Settings) -> dict[str, str]:
    """Return what stops each living process from working, by pid."""
    notes = owners.living(_owners(settings))
    return {str(note.about.get("pid", note.id)): note.trouble for note in notes if note.trouble}


def _config_faults(settings: Settings) -> list[str]:
    from crawler.sites.live import file_state, state_of
    from crawler.sites.schedulefile import SCHEDULES

    folder = settings.config_dir
    state = state_of(folder), file_state(folder / SCHEDULES)
    return _faults_of(folder, settings.rate, state)


def _is_of_schedules(fault: str) -> bool:
    """Return whether this is a fault of schedules.yaml, with or without a line."""
    from crawler.sites.schedulefile import SCHEDULES

    return fault.partition(SCHEDULES)[2].startswith((", ", ": "))


@lru_cache(maxsize=1)
def _faults_of(folder: Path, rate: str | None, _state: object) -> list[str]:
    """Read the files only when they change: a screen asks every second."""
    from crawler import sites

    return [str(fault) for fault in sites.faults(folder, rate)]


def _stopped_processes(settings: Settings, stack: "Stack") -> list[dict[str, Any]]:
    """Return the processes that live but do not run, because somebody stopped them."""
    notes = owners.living(_owners(settings))
    marks = {name: getattr(stack, name) for name in _SERVICES}
    stopped = [
        {"what": name, "pid": mark.pid}
        for name, mark in marks.items()
        if mark and mark.is_stopped()
    ]
    kinds = {"worker": "a worker's child", "cli": "a command", "direct": "a program's process"}
    return stopped + [
        {"what": kinds.get(note.about.get("kind", ""), "a process"), "pid": note.pid}
        for note in stalled_processes(notes, settings.stall_s)
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
        "low": disk_problem(folder, settings),
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
            "messages": {name: client.llen(name) for name in MESSAGE_QUEUES},
        }
        client.close()
    except redis.RedisError:
        pass
    return facts


def _open_count(counts: dict[str, int]) -> int:
    return counts["pending"] + counts["processing"]


def _print_status(facts: dict[str, Any], settings: Settings) -> None:
    shown = _shown_jobs(facts)
    _print_counts(facts, shown)
    now, tz = time.time(), times.zone(settings.timezone)
    for job_name, about in facts["job_facts"].items():
        name, open_ = printable(job_name), _open_count(facts["jobs"][job_name])
        if about["crawl"] and job_name in shown:
            print(f"{name} is a crawl: {about['crawl']}")
        if open_ and about["state"] == "cancelled":
            print(f"{name} is cancelled")
        for what in about["unaccounted"]:
            print(f"UNACCOUNTED: {name}: {printable(what)}")
        if open_ and about["deadline"]:
            print(f"{name} has the deadline {times.until(about['deadline'], now, tz)}")
        if about["late"]:
            print(f"LATE: {name}: {about['late']}")
    for what in facts["unaccounted"]:
        print(f"UNACCOUNTED: {printable(what)}; {program()} doctor tells more")
    for line in (*system_lines(facts, tz), *wait_lines(facts)):
        print(line)


def _shown_jobs(facts: dict[str, Any]) -> list[str]:
    """Return the names of the open jobs, and of those that ended last."""
    states = {name: about["state"] for name, about in facts["job_facts"].items()}
    ended = [name for name, state in states.items() if state == JobStatus.DONE]
    left_out = set(ended[:-MAX_ENDED_JOBS])
    return [name for name in states if name not in left_out]


def _print_counts(facts: dict[str, Any], shown: list[str]) -> None:
    """Print a table of the counts of jobs, as wide as the terminal if the numbers fit."""
    rows = [("all", facts["books"]), *((printable(name), facts["jobs"][name]) for name in shown)]
    widths = {
        state: max(len(state), *(len(f"{counts[state]:,}") for _, counts in rows)) + 1
        for state in _STATES
    }
    room = shutil.get_terminal_size().columns - 1 - sum(widths.values())
    name_width = min(max(len(name) for name, _ in rows), max(12, room))
    print(" " * name_width + "".join(f"{state:>{width}}" for state, width in widths.items()))
    for name, counts in rows:
        cells = "".join(f"{counts[state]:>{width},}" for state, width in widths.items())
        print(f"{cut_middle(name, name_width):{name_width}}{cells}")
    if more := len(facts["jobs"]) - len(shown):
        print(f"and {counted(more, 'job')} that ended earlier: {program()} job list")


_DELIVERY = {
    "ready": "to be delivered",
    "rejected": "rejected",
    "replaced": "may have replaced other results",
}


def delivery_lines(facts: dict[str, Any]) -> list[str]:
    """Return a line on undelivered and rejected results, if there are any."""
    about = facts["gateway"] or {}
    parts = [
        f"{count:,} {what}"
        for state, what in _DELIVERY.items()
        if (count := about.get(state, 0) + about.get(f"reports_{state}", 0))
    ]
    if not parts:
        return []
    name = "Gateway"
    if about["url"]:
        name += f" {printable(about['url'])}"
    return [f"{name}: {', '.join(parts)} ({program()} sync status)"]


def system_lines(facts: dict[str, Any], tz: tzinfo | None) -> list[str]:
    """Return lines on delivery, processes, the store and the disk."""
    from crawler.cli.schedules import problem_lines

    lines = delivery_lines(facts)
    for pid, text in facts["trouble"].items():
        lines.append(f"process {pid} claims nothing: {printable(text)}")
    for fault in facts["config_faults"]:
        lines.append(f"{printable(fault)}; {_effect(fault, facts['pids'])}")
    for schedule in facts["schedules"]:
        told = problem_lines(schedule["problems"])
        lines += [f"SCHEDULE {printable(schedule['name'])}: {line}" for line in told]
    for stopped in facts["pids"]["still"]:
        pid = stopped["pid"]
        remedy = f"kill -CONT {pid} wakes it, kill -9 {pid} ends it"
        lines.append(f"STANDS STILL: {stopped['what']}, process {pid}; {remedy}")
    lines.append(_process_line(facts, tz))
    if scale := facts["autoscale"]:
        since = times.show(scale["changed_at"], time.time(), tz)
        lines.append(
            f"autoscale: {scale['processes']} of {scale['min']} to {scale['max']} worker processes "
            f"since {since}: {scale['why']}"
        )
    if "store" in facts:
        lines.append(_store_line(facts["store"]))
    disk = facts["disk"]
    return [*lines, f"{size_text(disk['free'])} free in {disk['folder']}"]


def _effect(fault: str, pids: dict[str, Any]) -> str:
    """Say what a fault of a file means for the processes that read it."""
    who, run = "worker", bool(pids["workers"])
    if _is_of_schedules(fault):
        who, run = "beat", pids["has_beat"]
    if run:
        return f"{who}s go on with the files as they were before"
    return f"no {who} starts until this is corrected"


def _process_line(facts: dict[str, Any], tz: tzinfo | None) -> str:
    pids, redis = facts["pids"], facts["redis"]
    supervisor = pids["supervisor"] or "none"
    if pids["unreadable"]:
        supervisor = "of another version"
    redis_state = "down"
    if redis["up"]:
        redis_state = f"up ({sum(redis['messages'].values()):,} messages)"
    workers = _shown_workers(pids["workers"], pids["in_containers"])
    browsers = _shown_workers(pids["browsers"], pids["in_containers"])
    parts = [
        f"supervisor {supervisor}",
        f"redis {redis_state}",
        f"workers {workers or 'none'}",
    ]
    if browsers:
        parts.append(f"browsers {browsers}")
    if pids["direct"]:
        parts.append(f"processes of programs {', '.join(map(str, pids['direct']))}")
    if pids["agent"]:
        parts.append(f"agent {pids['agent']}")
    if pids["beat"]:
        parts.append(f"beat {pids['beat']}")
    if pids["api"]:
        parts.append(f"api {pids['api']}")
    next_runs = [(each["next_run"], each["name"]) for each in facts["schedules"]]
    if planned := [each for each in next_runs if each[0]]:
        at, name = min(planned)
        parts.append(f"next run {times.until(at, time.time(), tz)} ({printable(name)})")
    elif pids["has_beat"] and any(map(_is_of_schedules, facts["config_faults"])):
        parts.append("next run unknown (schedules.yaml is broken)")
    return " · ".join(parts)


def _store(lpm: LocalPersistenceManager) -> dict[str, Any]:
    """Return what the store takes, what was added of late, and when the disk is full at that
    pace."""
    now, sizes = lpm.now(), lpm.sizes()
    with lpm.store.reading():
        growth = lpm.counts.growth(now, sizes)
    last_hour, last_day = (
        recent | {"archive": lpm.archived_since(now - span)}
        for recent, span in ((growth.last_hour, 3600), (growth.last_day, 86400))
    )
    per_hour, per_day = sum(last_hour.values()), sum(last_day.values())
    pace = max(per_hour / 3600, per_day / 86400)  # bytes a second
    return {
        "bytes": sizes,
        "bytes_per_page": growth.bytes_per_page,
        "bytes_per_hour": per_hour,
        "bytes_per_day": per_day,
        "last_hour": last_hour,
        "last_day": last_day,
        "full_in_s": round(shutil.disk_usage(lpm.folder).free / pace) if pace else None,
    }


def _store_line(store: dict[str, Any]) -> str:
    sizes = store["bytes"]
    parts = ", ".join(f"{name} {size_text(size)}" for name, size in sizes.items() if size)
    line = f"store {size_text(sum(sizes.values()))} ({parts})"
    if store["bytes_per_page"]:
        line += f"; {size_text(store['bytes_per_page'])} a page"
    for span in ("hour", "day"):
        if grown := store[f"bytes_per_{span}"]:
            largest = max(store[f"last_{span}"].items(), key=lambda part: part[1])
            line += f"; {size_text(grown)} in the last {span}"
            if largest[1] > grown / 2:
                line += f" (most of it {largest[0]})"
    full_in_s = store["full_in_s"]
    if full_in_s is not None and full_in_s < _FULL_SOON_S:
        line += f"; at this pace the disk is full in {times.duration(full_in_s)}"
    return line


def wait_lines(facts: dict[str, Any]) -> list[str]:
    """Return a line for each thing that stops or delays the crawl."""
    lines = []
    for wait in facts["waits"]:
        kind = "STANDSTILL" if wait["stops"] else "WAITS"
        line = wait["line"]
        if wait["jobs"]:
            line += f" (stops {', '.join(wait['jobs'])})"
        lines.append(f"{kind}: {printable(line)}")
    low = facts["disk"]["low"]
    if low and not any(wait["kind"] == "disk" for wait in facts["waits"]):
        lines.append(f"PAUSED: {low}")
    return lines


class Watch:
    """The live view of `status --watch`."""

    def __init__(self, settings: Settings, as_json: bool) -> None:
        self._settings, self._as_json = settings, as_json
        self._tz: tzinfo | None = times.zone(settings.timezone)
        self._trends: dict[str, Trend] = {}
        self._store: Any = None
        self._measured_at = -SIZES_INTERVAL_S

    def run(self, interval_s: float) -> None:
        """Refresh until Ctrl-C."""
        try:
            if sys.stdout.isatty() and not self._as_json:
                self._draw(interval_s)
            else:
                self._print(interval_s)
        except KeyboardInterrupt:
            pass  # the usual way to leave

    def look(self) -> dict[str, Any]:
        """Gather the facts of now, with the rate of each job."""
        sizes = time.monotonic() - self._measured_at >= SIZES_INTERVAL_S
        facts = gather(self._settings, sizes)
        if sizes:
            self._measured_at, self._store = time.monotonic(), facts.get("store")
        elif self._store:
            facts["store"] = self._store
        now = time.time()
        for name, counts in facts["jobs"].items():
            trend = self._trends.setdefault(name, Trend())
            open_ = _open_count(counts)
            trend.add(time.monotonic(), counts["accepted"] - open_)
            about = facts["job_facts"][name]
            job = Job(
                id=0,
                name=name,
                status=JobStatus.OPEN,
                queue="",
                source_file=None,
                created_at=0,
                completed_at=None,
                deadline=about["deadline"],
            )
            about["rate"], about["eta_s"] = round(trend.rate, 2), None
            if trend.rate and open_:
                about["eta_s"] = round(open_ / trend.rate, 1)
            about["warning"] = slip(job, open_, trend.measured, now, self._tz) or about["late"]
        return facts

    def _print(self, interval_s: float) -> None:
        while True:
            began = time.monotonic()
            facts = self.look()
            if self._as_json:
                print(msgspec.json.encode(facts).decode(), flush=True)
            else:
                print("\n".join(self._lines(facts)), flush=True)
            self._pause(began, interval_s)

    def _lines(self, facts: dict[str, Any]) -> list[str]:
        books = facts["books"]
        done = f"{books['accepted'] - _open_count(books):,}/{books['accepted']:,} done"
        clock = times.clock(time.time(), self._tz)
        lines = [f"{clock} all: {done}, {books['failed']:,} failed, {facts['rate']:.1f}/s"]
        for name, counts in self._open_jobs(facts):
            about = facts["job_facts"][name]
            lines.append(f"  {printable(name)}: {self._progress(counts, about)}")
            if about["warning"]:
                lines.append(f"  warning: {printable(name)}: {about['warning']}")
        return lines + [f"  {line}" for line in (*delivery_lines(facts), *wait_lines(facts))]

    def _open_jobs(self, facts: dict[str, Any]) -> list[tuple[str, dict[str, int]]]:
        """Return the jobs that are not done, or else the last job."""
        jobs = list(facts["jobs"].items())
        ended = ("done", "cancelled")
        open_jobs = [
            (name, counts)
            for name, counts in jobs
            if _open_count(counts) or facts["job_facts"][name]["state"] not in ended
        ]
        return open_jobs or jobs[-1:]

    def _progress(self, counts: dict[str, int], about: dict[str, Any]) -> str:
        open_ = _open_count(counts)
        if about["crawl"]:
            parts = [str(about["crawl"])]
        else:
            parts = [f"{counts['accepted'] - open_:,}/{counts['accepted']:,}"]
            parts += [f"{counts[state]:,} {state}" for state in _WITHOUT_RESULT if counts[state]]
        if about["state"] in ("paused", "cancelled", "done"):
            parts.append(about["state"])
        elif about["eta_s"] is not None:
            parts.append(f"{about['rate']:.1f}/s, {times.duration(about['eta_s'])} left")
        if about["deadline"] and open_:
            parts.append(f"deadline {times.until(about['deadline'], time.time(), self._tz)}")
        return ", ".join(parts)

    def _draw(self, interval_s: float) -> None:
        from rich.live import Live

        with Live(self._picture(self.look()), screen=False, auto_refresh=False) as live:
            while True:
                began = time.monotonic()
                live.update(self._picture(self.look()), refresh=True)
                self._pause(began, interval_s)

    def _pause(self, began: float, interval_s: float) -> None:
        """Sleep; counting a million tasks takes long, and must not take most of the time."""
        time.sleep(max(interval_s, 5 * (time.monotonic() - began)))

    def _picture(self, facts: dict[str, Any]) -> "RenderableType":
        from rich.console import Group
        from rich.text import Text

        table = job_table("job")
        table.add_column("", width=WATCHED_BAR_WIDTH)
        table.add_column("")
        below = []
        jobs = self._open_jobs(facts)
        for name, counts in jobs[:MAX_WATCHED_JOBS]:
            about = facts["job_facts"][name]
            done = counts["accepted"] - _open_count(counts)
            filled = bar(done, counts["accepted"], WATCHED_BAR_WIDTH)
            table.add_row(name_cell(printable(name)), filled, Text(self._progress(counts, about)))
            if about["warning"]:
                warning = f"warning: {printable(name)}: {about['warning']}"
                below.append(Text(warning, style="bold red"))
        if (more := len(jobs) - MAX_WATCHED_JOBS) > 0:
            below.insert(0, Text(f"… and {more} more open jobs", style="dim"))
        waits = wait_lines(facts)
        if (more := len(waits) - MAX_WATCHED_WAITS) > 0:
            waits[MAX_WATCHED_WAITS:] = [f"… and {more} more: {program()} status"]
        for line in waits:
            below.append(Text(line, style="bold" * line.startswith("STANDSTILL")))
        lines = (*self._activity(facts), *system_lines(facts, self._tz))
        dim = [Text(line, style="dim") for line in lines]
        return Group(table, *below, Text(""), *dim)

    def _activity(self, facts: dict[str, Any]) -> tuple[str, str]:
        """Return lines on the queues and the pages in flight."""
        clock = times.clock(time.time(), self._tz)
        queues = ", ".join(f"{name} {count:,}" for name, count in facts["queues"].items())
        domains = list(facts["domains"].items())[:MAX_WATCHED_DOMAINS]
        in_flight = ", ".join(f"{printable(domain)} {count}" for domain, count in domains)
        return (
            f"{clock}  {facts['rate']:.1f} pages/s  waiting: {queues}",
            f"in flight: {in_flight or 'nothing'}",
        )


@click.group(invoke_without_command=True)
@json_option
@data_dir_option
@click.pass_context
def domains(context: click.Context, as_json: bool) -> None:
    """Show the live state of each domain, or reset it.

    The state has the domain's limits, the requests in flight, the circuit, and pauses that its
    server asked for.

    \b
    Example:
      python -m crawler domains
      python -m crawler domains reset county.example
    """
    if context.invoked_subcommand is None:
        _print_domains(as_json)


@domains.command("list")
@json_option
@data_dir_option
def list_(as_json: bool) -> None:
    """List all domains, those in trouble first. An idle domain is forgotten after some hours.

    \b
    Example:
      python -m crawler domains list --json
    """
    _print_domains(as_json)


@domains.command()
@click.argument("domain")
@json_option
@data_dir_option
def reset(domain: str, as_json: bool) -> None:
    """Close the circuit of DOMAIN, and forget its Retry-After, Crawl-delay and slowdown.

    Its limits still hold.

    \b
    Example:
      python -m crawler domains reset county.example
    """
    with open_rate_limiter(config.load()) as shared:
        if not shared.reset(domain):
            names = [known.domain for known in shared.domains()]
            raise UsageError(f"there is no state of a domain {domain}{_hint(domain, names)}")
    if as_json:
        print_json({"reset": domain})
    else:
        print(f"Reset {printable(domain)}: it may be asked again, within its limits")


def _hint(domain: str, names: list[str]) -> str:
    """Suggest a domain of a similar name."""
    if not names:
        return "; there are none yet"
    near = difflib.get_close_matches(domain, names, n=1, cutoff=0.3)
    if near:
        return f"; did you mean {near[0]}?"
    return ""


def _print_domains(as_json: bool) -> None:
    settings = config.load()
    learned: dict[str, list[str]] = {}
    if LocalPersistenceManager.exists(settings.data_dir):
        with LocalPersistenceManager(settings.data_dir) as lpm:
            for page in lpm.browser_pages.listed():
                learned.setdefault(page.domain, []).append(page.pattern)
    try:
        with open_rate_limiter(settings) as shared:
            found = shared.domains(time.time())
    except ServiceError:
        if not as_json:
            _print_learned(learned)  # the ledger has it, with or without Redis
        raise
    if as_json:
        patterns = [{"browser_pages": learned.get(each.domain, [])} for each in found]
        facts = zip(map(msgspec.structs.asdict, found), patterns, strict=True)
        print_json([about | more for about, more in facts])
        return
    if not found:
        print(
            "No domain has a state: workers record it while they crawl, and idle ones are forgotten"
        )
    else:
        _print_states(found)
    _print_learned(learned)


def _print_learned(learned: dict[str, list[str]]) -> None:
    for domain, paths in learned.items():
        shown = ", ".join(map(printable, paths[:MAX_PATTERNS_SHOWN]))
        more = f" and {len(paths) - MAX_PATTERNS_SHOWN} more" * (len(paths) > MAX_PATTERNS_SHOWN)
        print(f"{printable(domain)}: a browser renders {shown}{more}")


def _print_states(found: list["DomainStatus"]) -> None:
    settings = config.load()
    now, tz = time.time(), times.zone(settings.timezone)
    found.sort(key=lambda each: (each.state == "CLOSED", each.not_before is None, each.domain))
    rows = [("domain", "limits", "in flight", "state")]
    for each in found:
        state = "; ".join(domain_state(each, now, tz))
        rows.append((printable(each.domain), describe_limits(each), str(each.in_flight), state))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for name, limits, in_flight, state in rows:
        print(f"{name:{widths[0]}}  {limits:{widths[1]}}  {in_flight:>{widths[2]}}  {state}")
    if any(each.state != "CLOSED" for each in found):
        command = f"{program()} domains reset DOMAIN"
        print(f"A circuit closes by itself when a probe succeeds; sooner with: {command}")


def domain_state(known: "DomainStatus", now: float, tz: tzinfo | None) -> list[str]:
    """Describe a domain's circuit, pause and slowdown; `well` if it has none of them."""
    because = ""
    if known.last_block:
        because = f", because {printable(known.last_block)}"
    parts = []
    if known.state == "OPEN" and known.open_until is not None:
        parts.append(f"circuit open until {times.until(known.open_until, now, tz)}{because}")
    elif known.state == "HALF_OPEN":
        parts.append(f"circuit half open: one probe at a time{because}")
    elif known.failures:
        blocks = counted(known.failures, "block")
        parts.append(f"{blocks} in a row, the last {printable(known.last_block)}")
    if known.not_before is not None:
        why = printable(known.because) or "its server said Retry-After"
        parts.append(f"{why}: until {times.until(known.not_before, now, tz)}")
    if known.slowed > SHOWN_SLOWDOWN:
        parts.append(f"slowed down to 1/{known.slowed:.2g} of its rate")
    return parts or ["well"]


@click.command()
@click.argument("domain", required=False)
@job_option
@since_option
@json_option
@data_dir_option
def audit(domain: str | None, job_name: str | None, since: float | None, as_json: bool) -> int:
    """Show the real request rate of each domain and any breach of its limit; with DOMAIN, minute
    by minute.

    Workers record every request that they make: pages, redirects and robots.txt. Exits with 1 if a
    limit was broken.

    \b
    Example:
      python -m crawler audit county.example --since 2h
    """
    from crawler.history import audit as audits

    tz = times.zone(config.load().timezone)
    with existing_store() as lpm:
        found = audits(lpm, domain, find_job_if_named(lpm, job_name), since)
        now = lpm.now()
    broken = any(each.breaches for each in found)
    if as_json:
        print_json(found)
        return int(broken)
    for each in found:
        _print_audit(each, bool(domain), now, tz)
    if not found and domain:
        print(f"No request to {printable(domain)} is recorded")
    elif not found:
        print("No request is recorded yet")
    elif not broken:
        print("No limit was broken.")
    return int(broken)


_WINDOWS = {1.0: "second", 60.0: "minute", 3600.0: "hour"}


def _print_audit(each: "Audit", by_minute: bool, now: float, tz: tzinfo | None) -> None:
    unit = _WINDOWS[each.window_s]
    print(
        f"{printable(each.domain)}: {each.requests:,} requests, {each.rate:.2f}/s on average; "
        f"at most {each.most_in_window:,} within a {unit} and {each.most_at_a_time:,} at a time "
        f"(limit: {'; '.join(each.limits)})"
    )
    if each.unrecorded:
        print(f"  and up to {each.unrecorded:,} unrecorded requests of killed workers")
    if each.received:
        more = f"{each.subrequests:,} requests of rendered pages, {each.received:,} bytes in all"
        print(f"  and {more}")
    if by_minute:
        for minute in each.minutes:
            most = f"{minute.most_in_window:,} within a {unit}, {minute.most_at_a_time:,} at a time"
            at = times.show(minute.at, now, tz)
            print(f"  {at:>20}  {minute.requests:>6,} requests, at most {most}")
    for breach in each.breaches:
        at = times.show(breach.at, now, tz)
        print(f"  BREACH {at}: {breach.what} ({breach.times:,} times)")
