"""What keeps tasks from going on, until when, and the command that changes it."""

import contextlib
import shlex
import time
from collections.abc import Iterator, Sequence
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from crawler import times
from crawler.config import Settings, program
from crawler.db import owners
from crawler.db.books import mend
from crawler.errors import ServiceError
from crawler.forecast import STILL_S
from crawler.logs import counted, printable, shortened, without_figures
from crawler.lpm import LocalPersistenceManager, low_on_disk
from crawler.models import Books, Job, Wait

if TYPE_CHECKING:
    from crawler.process import Stack
    from crawler.resilience.permit import Domain
    from crawler.resilience.redis_rate_limiter import RedisRateLimiter
    from crawler.sites.config import Sites

SLOW_S = 10.0
"""After this time without an ended page, pages in flight count as waits, too."""
LOOK_S, COUNT_S = 2.0, 60.0
"""How often Redis is asked, and how often all tasks are counted to check an index."""
MIN_PAUSE_TIMES = 10.0
"""After a look, this many times its duration passes until the next."""
MAX_NAMED = 3
"""If at most this many pages are in flight, the oldest is named."""
SHOWN_SLOWDOWN = 1.005
"""A smaller slowdown is not worth mentioning."""


class Waits:
    """Finds what keeps tasks waiting in the ledger, the processes, the disk and Redis."""

    def __init__(self, settings: Settings, lpm: LocalPersistenceManager) -> None:
        self._settings, self._lpm = settings, lpm
        self._tz = times.zone(settings.timezone)
        self._asked = self._next_count = 0.0
        self._known: dict[str, Domain] = {}
        self._silent: Wait | None = None
        self._damage: list[Wait] = []
        self._sites: Sites | None = None

    def of(self, job: Job | None, books: Books, still_s: float | None = None) -> list[Wait]:
        """Return what keeps a job, or any task, from going on; what stops all comes first.

        `still_s` is the time since a task ended. Without it, the age of the pages in flight counts.
        """
        if not books.open:
            return []
        found = self.plain(job)
        living = owners.living(self._lpm.owners)
        workers = [note for note in living if note.about.get("kind") == "worker"]
        if not workers:
            return found + self._no_worker(books)
        found += self._of_clock() + self._of_processes(workers)
        idle = not books.processing
        if idle and not any(wait.stops for wait in found):
            found += self._of_indexes(still_s)
        found += self._of_tasks(job, books)
        if not idle and not any(wait.stops for wait in found):
            found += self._in_flight(job, books, still_s)
        return sorted(found, key=lambda wait: not wait.stops)

    def plain(self, job: Job | None) -> list[Wait]:
        """Return what can be seen at once, without asking Redis or counting tasks."""
        found = []
        if job is not None and self._lpm.ledger.job(job.name).hold == "paused":
            found.append(_paused("it is paused", _resume(job)))
        full = no_room(self._lpm.folder, self._settings) or ""
        if full:
            command, effect = f"{program()} prune --raw --older-than 30d", "deletes old raw pages"
            found.append(Wait(kind="disk", what=full, command=command, effect=effect))
        # Workers note that the disk is full, too.
        told = without_figures(full)
        return found + [each for each in self._troubles() if without_figures(each.what) not in told]

    def line(self, wait: Wait) -> str:
        """Return a wait as one line: what, until when, and what changes it."""
        return in_words(wait, time.time(), self._tz)

    def _stack(self) -> "Stack":
        from crawler.process import read_stack

        return read_stack(self._lpm.folder)

    def _troubles(self) -> list[Wait]:
        """What processes have noted about themselves, and a supervisor about its restarts."""
        living = owners.living(self._lpm.owners)
        whole = all(note.trouble for note in living)
        found = {note.trouble: whole for note in living if note.trouble}
        stack = self._stack()
        if stack.up and stack.trouble:
            found[stack.trouble] = True
        return [
            Wait(kind="trouble", what=what, stops=stops) for what, stops in sorted(found.items())
        ]

    def _no_worker(self, books: Books) -> list[Wait]:
        """That no worker runs, and what helps. A command may work on a page of its own."""
        open_ = books.open
        if owners.living(self._lpm.owners):
            open_ = books.pending
        stack = self._stack()
        if not open_ or stack.container:
            return []
        if stack.up:
            effect = "the supervisor starts one by itself"
            return [Wait(kind="worker", what="no worker runs", effect=effect)]
        if held := self._all_held(None):
            return held
        what = f"nothing works on {counted(open_, 'open task')}: no worker runs"
        command = f"{program()} resume"
        effect = f"goes on, or {program()} up does in the background"
        return [Wait(kind="worker", what=what, command=command, effect=effect, tasks=open_)]

    def _of_clock(self) -> list[Wait]:
        moved = self._lpm.ledger.clock_step(time.time(), times.uptime(), times.boot_id())
        if not moved:
            return []
        what = f"the clock was set by {moved:+.0f} s: waits are about to be moved by as much"
        return [Wait(kind="clock", what=what, effect="a worker does it by itself", stops=False)]

    def _of_processes(self, workers: Sequence[owners.Note]) -> list[Wait]:
        """Workers that were stopped or do nothing; while others work, they stop nothing."""
        stopped = standing_still(workers, self._settings.stall_s)
        if stopped:
            pids = " ".join(map(str, sorted(note.pid for note in stopped)))
            what, them = f"process {pids} stands still", "it"
            if len(stopped) > 1:
                what, them = f"processes {pids} stand still", "them"
            command, effect = f"kill -CONT {pids}", f"wakes {them}, kill -9 {pids} ends {them}"
            stops = len(stopped) == len(workers)
            return [Wait(kind="stopped", what=what, command=command, effect=effect, stops=stops)]
        now = time.monotonic()
        silent_s = min(note.still_s(now) for note in workers)
        if silent_s <= SLOW_S:
            return []
        what = f"no worker process has moved for {silent_s:.0f} s"
        effect = f"one that stands still for {self._settings.stall_s:g} s is ended by itself"
        return [Wait(kind="stopped", what=what, effect=effect)]

    def _of_indexes(self, still_s: float | None) -> list[Wait]:
        """Open tasks that no worker finds. This reads every task, so it is not done each time."""
        if (still_s is not None and still_s < SLOW_S) or time.monotonic() < self._next_count:
            return self._damage
        faults = self._lpm.ledger.index_faults()
        self._next_count = time.monotonic() + COUNT_S
        self._damage = []
        if faults:
            what = f"{faults[0]}, so workers do not find them all; stop, then {mend()}"
            self._damage = [Wait(kind="damage", what=what)]
        return self._damage

    def _of_tasks(self, job: Job | None, books: Books) -> list[Wait]:
        """What pending tasks wait for: Redis, their domains, their next attempt, an operator."""
        idle = not books.processing
        self._ask_redis()
        if self._silent:
            return [replace(self._silent, tasks=books.pending, stops=idle)]
        slow = {domain: about for domain, about in self._known.items() if _holds(about)}
        due: dict[str, int] = {}
        if slow or idle:
            due = self._lpm.ledger.due_domains(job)
        shut = {domain: about for domain, about in slow.items() if domain in due}
        stops = idle and len(shut) == len(due)
        waits = [
            self._at_domain(job, domain, about, due[domain], stops)
            for domain, about in shut.items()
        ]
        waits.sort(key=lambda wait: -wait.tasks)
        return waits + self._of_retries(job, stops) + self._of_holds(job, stops and not due)

    def _ask_redis(self) -> None:
        """Read what all workers share of each domain, or note that Redis does not answer."""
        if time.monotonic() - self._asked < LOOK_S and self._asked:
            return
        self._known, self._silent = {}, None
        stack = self._stack()
        if stack.container:
            return  # its Redis answers only to the containers
        try:
            with contextlib.closing(_shared(self._settings)) as shared:
                found = shared.domains(time.time())
            self._known = {each.domain.partition("@")[0]: each for each in found}
        except ServiceError as error:
            self._silent = _redis_is_away(str(error), stack, self._settings)
        self._asked = time.monotonic()

    def _at_domain(
        self, job: Job | None, domain: str, about: "Domain", tasks: int, stops: bool
    ) -> Wait:
        """What keeps a domain shut, or so slow that it looks shut."""
        name = printable(domain)
        because = ""
        if about.last_block:
            because = f" because {printable(about.last_block)}"
        command, effect = f"{program()} domains reset {name}", "opens it sooner"
        until: float | None = None
        if about.not_before is not None:
            kind, what, until = "retry_after", "its server said Retry-After", about.not_before
        elif about.state == "OPEN":
            kind, what, until = "circuit", f"circuit open{because}", about.open_until
        elif about.state == "HALF_OPEN":
            kind, what = "circuit", f"circuit half open{because}, one probe at a time"
            until = self._latest_end(domain)
        elif about.crawl_delay_s > about.interval_s * about.slowed:
            kind = "robots"
            what = f"its robots.txt asks for {about.crawl_delay_s:g} s between pages"
            command, effect = _again(job, "--ignore-robots"), "goes on without asking robots.txt"
        else:
            kind, what = "rate", f"its limit is {limits_in_words(about)}"
            if about.slowed > SHOWN_SLOWDOWN:
                what += f", slowed down {about.slowed:.2g} times"
            command, effect = _again(job, "--rate 10/s"), "goes faster, where you may"
        verb = "wait"
        if tasks == 1:
            verb = "waits"
        return Wait(
            kind=kind,
            what=f"{name}: {what}, {counted(tasks, 'task')} {verb}",
            until=until or about.next_at,
            command=command,
            effect=effect,
            tasks=tasks,
            domain=domain,
            stops=stops,
        )

    def _latest_end(self, domain: str) -> float | None:
        """When the page in flight at a domain is given up, at the latest."""
        for url, leased_at in self._lpm.ledger.oldest_in_flight(1, domain=domain):
            return leased_at + self._timeout_s(url)
        return None

    def _timeout_s(self, url: str) -> float:
        from crawler.sites import config as sites

        self._sites = self._sites or sites.load(self._settings.config_dir, self._settings.rate)
        return self._sites.of(url).timeout_s

    def _of_retries(self, job: Job | None, stops: bool) -> list[Wait]:
        """Tasks that wait for their next attempt."""
        tasks, first, reason = self._lpm.ledger.waits(job)
        if not tasks:
            return []
        because = ""
        if reason:
            because = f" ({printable(reason)})"
        what = f"waiting to try {counted(tasks, 'task')} again{because}, the first not"
        wait = Wait(kind="retry", what=what, until=first, tasks=tasks, stops=stops)
        return [replace(wait, effect="it goes on by itself")]

    def _of_holds(self, job: Job | None, stops: bool) -> list[Wait]:
        """Tasks of paused jobs; that of the job in question is known already."""
        if job is not None:
            return []
        if stops and (held := self._all_held(job)):
            return held
        return [
            replace(_paused(f"{printable(each.name)} is paused", _resume(each)), stops=False)
            for each in self._paused_jobs()
        ]

    def _paused_jobs(self) -> list[Job]:
        return [each for each in self._lpm.ledger.jobs() if each.state == "paused"]

    def _all_held(self, job: Job | None) -> list[Wait]:
        """That all open tasks are of paused jobs."""
        tasks = self._lpm.ledger.held(job)
        if not tasks or self._lpm.ledger.waits(job)[0] or self._lpm.ledger.due_domains(job):
            return []
        command = f"{program()} job resume NAME"
        paused = self._paused_jobs()
        if len(paused) == 1:
            command = _resume(paused[0])
        what = f"all that is open is paused: {counted(tasks, 'task')} ({program()} job list)"
        return [replace(_paused(what, command), tasks=tasks)]

    def _in_flight(self, job: Job | None, books: Books, still_s: float | None) -> list[Wait]:
        """The page, or the domain, whose answer is waited for."""
        rows = self._lpm.ledger.oldest_in_flight(MAX_NAMED + 1, job)
        if not rows:
            return []
        url, leased_at = rows[0]
        if still_s is None:
            still_s = time.time() - leased_at
        if still_s < SLOW_S:
            return []
        domain, tasks = "", len(rows)
        since = times.clock(leased_at, self._tz)
        if tasks > MAX_NAMED:
            domain, tasks = next(iter(self._lpm.ledger.in_flight(job).items()))
            what = f"waiting for {printable(domain)}"
            if books.open == books.accepted and domain not in self._lpm.ledger.paces():
                what = f"{printable(domain)} has not answered yet"
            what += f": {counted(tasks, 'page')} in flight, the first since {since}"
        else:
            what = f"waiting for {shortened(printable(url))} since {since}"
            if tasks > 1:
                what += f" (and {counted(tasks - 1, 'other page')})"
        wait = Wait(
            kind="page",
            what=what,
            until=leased_at + self._timeout_s(url),
            effect="it is given up then, at the latest",
            tasks=tasks,
            domain=domain,
            stops=not books.pending,
        )
        return [wait]


class Standstill:
    """Tells over time why a job, or with none all work, does not move; empty while it does.

    With `still_s` it says and checks nothing until nothing has moved for that long.
    """

    def __init__(self, waits: Waits, job: Job | None, still_s: float | None = None) -> None:
        self._waits, self._job = waits, job
        self._at_once = still_s is None
        self._still_s, self._look_s = still_s or STILL_S, still_s or LOOK_S
        self._done = -1
        self._since = self._next_look = 0.0
        self._found: list[Wait] = []

    def reasons(self, books: Books) -> list[Wait]:
        """Return what keeps the counts from moving, the weightiest first."""
        now = time.monotonic()
        done = books.accepted - books.open
        if done != self._done:
            self._done, self._since, self._next_look = done, now, 0.0
        if now - self._since < self._still_s:
            self._found = []
            if books.open and self._at_once:
                self._found = self._waits.plain(self._job)
        elif now >= self._next_look:
            self._found = self._waits.of(self._job, books, now - self._since)
            took_s = time.monotonic() - now
            self._next_look = now + max(self._look_s, MIN_PAUSE_TIMES * took_s)
        return self._found

    def reason(self, books: Books) -> str:
        """Return the weightiest as a line."""
        for wait in self.reasons(books):
            return self._waits.line(wait)
        return ""


def in_words(wait: Wait, now: float, tz: tzinfo | None) -> str:
    """Return a wait as one line: what, until when, and what changes it."""
    line = wait.what
    if wait.until is not None and wait.until > now:
        line += f" until {times.until(wait.until, now, tz)}"
    if wait.command or wait.effect:
        line += f"; {_remedy(wait)}"
    return line


def _remedy(wait: Wait) -> str:
    return " ".join(filter(None, (wait.command, wait.effect)))


def endless_wait(waits: Sequence[Wait]) -> Wait | None:
    """Return what stops everything for an unknown time: then there is no forecast."""
    for wait in waits:
        if wait.stops and wait.until is None and wait.kind not in ("rate", "robots"):
            return wait
    return None


def no_room(folder: Path, settings: Settings) -> str | None:
    """Return what to say, and what helps, if the disk is too full to fetch anything."""
    from crawler.process import disk_full

    if low := low_on_disk(folder, settings.min_free):
        return f"{low}; free some room, or lower CRAWLER_MIN_FREE"
    return disk_full(folder) or None


def standing_still(notes: Sequence[owners.Note], stall_s: float) -> list[owners.Note]:
    """Return the processes that are stopped, or silent for longer than their watchdog allows."""
    now = time.monotonic()
    return [
        note
        for note in notes
        if note.still_s(now) > stall_s or (note.still_s(now) > STILL_S and _is_stopped(note.pid))
    ]


@contextlib.contextmanager
def permit(settings: Settings) -> Iterator["RedisRateLimiter"]:
    """Open the fleet's permits. If Redis does not answer, the error says what helps."""
    from crawler.process import read_stack

    try:
        with contextlib.closing(_shared(settings)) as shared:
            yield shared
    except ServiceError as error:
        away = _redis_is_away(str(error), read_stack(settings.data_dir), settings)
        raise ServiceError(f"{error}; {_remedy(away)}") from None


def _shared(settings: Settings) -> "RedisRateLimiter":
    from crawler.process import redis_address
    from crawler.resilience.redis_rate_limiter import RedisRateLimiter

    db, fail_max = settings.redis_rate_limiter_db, settings.circuit_breaker_fail_max
    return RedisRateLimiter(redis_address(settings), db, "command", fail_max)


def limits_in_words(known: "Domain") -> str:
    """Return the limits of a domain in words."""
    parts = []
    if known.interval_s:
        parts.append(_pace(known.interval_s))
    if known.at_a_time:
        parts.append(f"{known.at_a_time} at a time")
    if known.crawl_delay_s:
        parts.append(f"Crawl-delay {known.crawl_delay_s:g} s")
    return ", ".join(parts) or "none"


def _pace(interval_s: float) -> str:
    for unit, seconds in (("s", 1), ("m", 60), ("h", 3600)):
        if interval_s <= seconds:
            return f"{seconds / interval_s:.4g}/{unit}"
    return f"one in {times.duration(interval_s)}"


def _holds(about: "Domain") -> bool:
    """Whether a domain lets nothing pass, or so seldom that it looks like that."""
    shut = about.state != "CLOSED" or about.not_before is not None
    return shut or max(about.interval_s * about.slowed, about.crawl_delay_s) > STILL_S


def _redis_is_away(error: str, stack: "Stack", settings: Settings) -> Wait:
    from crawler.process import SILENT

    command, effect = f"{program()} up", "starts one"
    if settings.redis_url:
        command, effect = "", "it is the one of REDIS_URL"
    elif stack.up:
        within_s = SILENT * settings.stall_s
        command, effect = "", f"the supervisor starts it again by itself, within {within_s:g} s"
    return Wait(kind="redis", what=error, command=command, effect=f"{effect}; nothing is lost")


def _paused(what: str, command: str) -> Wait:
    return Wait(kind="paused", what=what, command=command, effect="goes on")


def _again(job: Job | None, options: str) -> str:
    """Return the command that continues a job in another way."""
    return f"{program()} bulk import {shlex.quote((job and job.source_file) or 'FILE')} {options}"


def _resume(job: Job) -> str:
    return f"{program()} job resume {shlex.quote(printable(job.name))}"


def _is_stopped(pid: int) -> bool:
    import psutil

    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False
