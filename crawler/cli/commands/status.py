"""`status`, `domains` and `audit`: what is going on, and what was requested."""

import difflib
import shutil
import sys
import time
from datetime import tzinfo
from typing import TYPE_CHECKING, Any

import click
import msgspec

from crawler import config, times
from crawler.cli.options import data_dir_option, json_option, only_job_option, since_option
from crawler.cli.output import job_of, print_json, require_store, size_of, stored
from crawler.config import Settings, program
from crawler.db import owners
from crawler.errors import UsageError
from crawler.forecast import Trend, slip
from crawler.logs import counted, printable
from crawler.lpm import LocalPersistenceManager
from crawler.models import QUEUES, Books, Job, JobStatus
from crawler.waits import (
    WaitFinder,
    describe_limits,
    disk_problem,
    open_rate_limiter,
    stalled_processes,
)

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
        from crawler.cli.commands.status import Watch

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
        lpm = LocalPersistenceManager(settings.data_dir)
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
        look = WaitFinder(settings, lpm)
        facts["waits"] = _waits(look, jobs, facts)
        late = _late(settings, lpm, look, jobs, facts)
        missing = lpm.unaccounted(jobs)
        for job, what in zip(jobs, missing, strict=True):
            about = {"unaccounted": what, "late": late.get(job.name)}
            facts["job_facts"][job.name] = _about(job) | about
        facts["unaccounted"] = [] if any(missing) else lpm.pages.missing()
        if sizes:
            facts["store"] = {"bytes": lpm.sizes(), **growth}
        lpm.close()
    facts["books"] = msgspec.structs.asdict(facts["books"])
    facts["jobs"] = {name: msgspec.structs.asdict(books) for name, books in facts["jobs"].items()}
    running = {"pids": _pids(settings), "trouble": _troubles(settings)}
    return facts | running | {"disk": _disk(settings), "redis": _redis(settings)}


def _waits(look: WaitFinder, jobs: list[Job], facts: dict[str, Any]) -> list[dict[str, Any]]:
    """What keeps anything from going on, and what stops a whole job while others go on; each with
    its line."""
    found = [
        msgspec.structs.asdict(wait) | {"line": look.describe(wait), "jobs": []}
        for wait in look.find(None, facts["books"])
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
            (wait.kind, wait.domain)
            for wait in look.find(job, facts["jobs"][job.name])
            if wait.stops
        }
        for each in found:
            if (each["kind"], each["domain"]) in kinds and each["kind"] != "paused":
                each["jobs"].append(job.name)
    return found


def _late(
    settings: Settings,
    lpm: LocalPersistenceManager,
    look: WaitFinder,
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
        seen = of_job(lpm.counts, job, limits, now, look.find(job, facts["jobs"][job.name]))
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


if TYPE_CHECKING:
    from rich.console import RenderableType

MAX_HALTS = 5
"""Waits that are shown on a terminal, which has 24 lines."""
SIZES_S = 30.0
"""How often the files of the store are counted: among a million that takes seconds."""


class Watch:
    """Looks at the store again and again, and draws what it sees."""

    def __init__(self, settings: Settings, as_json: bool) -> None:
        self._settings, self._as_json = settings, as_json
        self._tz: tzinfo | None = times.zone(settings.timezone)
        self._trends: dict[str, Trend] = {}
        self._store: Any = None
        self._sized = -SIZES_S

    def run(self, interval_s: float) -> None:
        """Go on until Ctrl-C."""
        try:
            if sys.stdout.isatty() and not self._as_json:
                self._draw(interval_s)
            else:
                self._print(interval_s)
        except KeyboardInterrupt:
            pass  # that is how one leaves

    def look(self) -> dict[str, Any]:
        """The facts of now, with how fast each job goes."""
        sizes = time.monotonic() - self._sized >= SIZES_S
        facts = gather(self._settings, sizes)
        if sizes:
            self._sized, self._store = time.monotonic(), facts.get("store")
        elif self._store:
            facts["store"] = self._store
        now = time.time()
        for name, books in facts["jobs"].items():
            trend = self._trends.setdefault(name, Trend())
            open_ = books["pending"] + books["processing"]
            trend.add(time.monotonic(), books["accepted"] - open_)
            about = facts["job_facts"][name]
            job = Job(id=0, name=name, status=JobStatus.OPEN, queue="", source_file=None, created_at=0,
                      completed_at=None, deadline=about["deadline"])  # fmt: skip
            about |= {
                "rate": round(trend.rate, 2),
                "eta_s": round(open_ / trend.rate, 1) if trend.rate and open_ else None,
                "warning": slip(job, open_, trend.measured, now, self._tz) or about["late"],
            }
        return facts

    def _print(self, interval_s: float) -> None:
        while True:
            began = time.monotonic()
            facts = self.look()
            print(
                msgspec.json.encode(facts).decode()
                if self._as_json
                else "\n".join(self._lines(facts)),
                flush=True,
            )
            self._pause(began, interval_s)

    def _lines(self, facts: dict[str, Any]) -> list[str]:
        books = facts["books"]
        done = books["accepted"] - books["pending"] - books["processing"]
        clock = times.clock(time.time(), self._tz)
        lines = [
            f"{clock} all: {done:,}/{books['accepted']:,} done, {books['failed']:,} failed, {facts['rate']:.1f}/s"
        ]
        for name, counts in self._open_jobs(facts):
            lines.append(f"  {printable(name)}: {self._progress(counts, facts['job_facts'][name])}")
            if facts["job_facts"][name]["warning"]:
                lines.append(f"  warning: {printable(name)}: {facts['job_facts'][name]['warning']}")
        return lines + [f"  {line}" for line in (*delivering(facts), *halting(facts))]

    def _open_jobs(self, facts: dict[str, Any]) -> list[tuple[str, dict[str, int]]]:
        """The jobs that are not done, else the last one."""
        jobs = list(facts["jobs"].items())
        open_ = [
            (name, counts)
            for name, counts in jobs
            if counts["pending"] + counts["processing"]
            or facts["job_facts"][name]["state"] not in ("done", "cancelled")
        ]
        return open_ or jobs[-1:]

    def _progress(self, counts: dict[str, int], about: dict[str, Any]) -> str:
        open_ = counts["pending"] + counts["processing"]
        parts = [f"{counts['accepted'] - open_:,}/{counts['accepted']:,}"]
        parts += [
            f"{counts[state]:,} {state}"
            for state in ("failed", "skipped", "expired")
            if counts[state]
        ]
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
        """Counting a million tasks must not become the work."""
        time.sleep(max(interval_s, 5 * (time.monotonic() - began)))

    def _picture(self, facts: dict[str, Any]) -> "RenderableType":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, expand=False)
        for title, width in (("job", 20), ("", 14)):
            table.add_column(title, width=width, no_wrap=True, overflow="ellipsis")
        table.add_column("")
        warnings = []
        jobs = self._open_jobs(facts)
        for name, counts in jobs[:12]:
            about = facts["job_facts"][name]
            done = counts["accepted"] - counts["pending"] - counts["processing"]
            bar = ProgressBar(total=max(1, counts["accepted"]), completed=done, width=14)
            table.add_row(Text(printable(name)), bar, Text(self._progress(counts, about)))
            if about["warning"]:
                warnings.append(
                    Text(f"warning: {printable(name)}: {about['warning']}", style="bold red")
                )
        more = (
            [Text(f"… and {len(jobs) - 12} more open jobs", style="dim")] if len(jobs) > 12 else []
        )
        flight = ", ".join(
            f"{printable(domain)} {count}" for domain, count in list(facts["domains"].items())[:6]
        )
        queues = ", ".join(f"{name} {count:,}" for name, count in facts["queues"].items())
        lines = [
            f"{times.clock(time.time(), self._tz)}  {facts['rate']:.1f} pages/s  waiting: {queues}",
            f"in flight: {flight or 'nothing'}",
            *describe(facts),
        ]
        halts = halting(facts)
        if len(halts) > MAX_HALTS:
            halts[MAX_HALTS:] = [f"… and {len(halts) - MAX_HALTS} more: {program()} status"]
        told = [Text(line, style="bold" * line.startswith("STANDSTILL")) for line in halts]
        return Group(
            table, *more, *warnings, *told, Text(""), *(Text(line, style="dim") for line in lines)
        )


if TYPE_CHECKING:
    from crawler.resilience.permit import Domain


@click.group(invoke_without_command=True)
@json_option
@data_dir_option
@click.pass_context
def domains(context: click.Context, as_json: bool) -> None:
    """What is known of each domain: limits, requests in flight, circuit, and what its server asked
    for.

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
    """List all domains, those in trouble first; an idle one is forgotten after some hours.

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
    """Close the circuit of DOMAIN and forget its Retry-After, Crawl-delay and slowing; its limits
    go on to hold.

    \b
    Example:
      python -m crawler domains reset county.example
    """
    with open_rate_limiter(config.load()) as shared:
        if not shared.reset(domain):
            names = [known.domain for known in shared.domains()]
            near = difflib.get_close_matches(domain, names, n=1, cutoff=0.3)
            hint = f"; did you mean {near[0]}?" if near else "" if names else "; there are none yet"
            raise UsageError(f"nothing is known of a domain {domain}{hint}")
    if as_json:
        print_json({"reset": domain})
    else:
        print(f"Reset {printable(domain)}: it may be asked again, within its limits")


def _print_domains(as_json: bool) -> None:
    with open_rate_limiter(config.load()) as shared:
        found = shared.domains(time.time())
    if as_json:
        print_json(found)
        return
    if not found:
        print(
            "Nothing is known of any domain yet, or all was forgotten; workers note here what they meet"
        )
        return
    now, tz = time.time(), times.zone(config.load().timezone)
    found.sort(key=lambda each: (each.state == "CLOSED", each.not_before is None, each.domain))
    rows = [
        (
            printable(e.domain),
            describe_limits(e),
            str(e.in_flight),
            "; ".join(state_in_words(e, now, tz)),
        )
        for e in found
    ]
    heads = ("domain", "limits", "in flight", "state")
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(3)]
    for name, limit, in_flight, state in [heads, *rows]:
        print(f"{name:{widths[0]}}  {limit:{widths[1]}}  {in_flight:>{widths[2]}}  {state}")
    if any(each.state != "CLOSED" for each in found):
        print(
            f"A circuit closes by itself when a probe succeeds; sooner with: {program()} domains reset DOMAIN"
        )


def state_in_words(known: "Domain", now: float, tz: tzinfo | None) -> list[str]:
    """What the matter is, if anything is."""
    because = f" because {printable(known.last_block)}" if known.last_block else ""
    parts = []
    if known.state == "OPEN" and known.open_until is not None:
        parts.append(
            f"circuit open until {times.until(known.open_until, now, tz)},{because}".rstrip(",")
        )
    elif known.state == "HALF_OPEN":
        parts.append(f"circuit half open: one probe at a time,{because}".rstrip(","))
    elif known.failures:
        blocks = counted(known.failures, "block")
        parts.append(f"{blocks} in a row, the last {printable(known.last_block)}")
    if known.not_before is not None:
        why = printable(known.because) or "its server said Retry-After"
        parts.append(f"{why}: until {times.until(known.not_before, now, tz)}")
    if known.slowed > 1.005:
        parts.append(f"slowed down to 1/{known.slowed:.2g} of its rate")
    return parts or ["well"]


@click.command()
@click.argument("domain", required=False)
@only_job_option
@since_option
@json_option
@data_dir_option
def audit(domain: str | None, job_name: str | None, since: float | None, as_json: bool) -> int:
    """Show the true request rate of each domain, or of DOMAIN minute by minute, and any breach of
    its limit.

    It rests on what workers noted of every request they made: pages, redirects, robots.txt. Exits
    with 1 where a limit was broken.

    \b
    Example:
      python -m crawler audit county.example --since 2h
    """
    from crawler.history import audit as audits

    tz = times.zone(config.load().timezone)
    with stored() as lpm:
        found = audits(lpm, domain, job_of(lpm, job_name) if job_name else None, since)
        now = lpm.now()
    broken = any(each.breaches for each in found)
    if as_json:
        print_json(found)
        return int(broken)
    if not found:
        print(
            f"No request to {printable(domain)} was noted" if domain else "No request was noted yet"
        )
        return 0
    for each in found:
        unit = {1.0: "second", 60.0: "minute", 3600.0: "hour"}[each.window_s]
        print(
            f"{printable(each.domain)}: {each.requests:,} requests, {each.rate:.2f}/s on average; at most "
            f"{each.most_in_window:,} within a {unit} and {each.most_at_a_time:,} at a time "
            f"(limit: {'; '.join(each.limits)})"
        )
        if each.unrecorded:
            print(f"  and up to {each.unrecorded:,} of killed workers, which nobody noted")
        if domain:
            for minute in each.minutes:
                print(
                    f"  {times.show(minute.at, now, tz):>20}  {minute.requests:>6,} requests, at most "
                    f"{minute.most_in_window:,} within a {unit}, {minute.most_at_a_time:,} at a time"
                )
        for breach in each.breaches:
            print(
                f"  BREACH {times.show(breach.at, now, tz)}: {breach.what} ({breach.times:,} times)"
            )
    if not broken:
        print("No limit was broken.")
    return int(broken)
