"""What keeps tasks from going on, until when, and the command that changes it."""

import contextlib
import shlex
import time
from collections.abc import Iterator, Sequence
from datetime import tzinfo
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from crawler import times
from crawler.config import Settings, program
from crawler.db import owners
from crawler.db.jobs import mend
from crawler.errors import ServiceError
from crawler.forecast import STILL_S, Limits, limits_of
from crawler.logs import counted, printable, shortened, without_figures
from crawler.lpm import LocalPersistenceManager, low_on_disk
from crawler.models import Books, Job, JobStatus, Wait

if TYPE_CHECKING:
    from crawler.resilience.permit import Domain
    from crawler.resilience.redis_rate_limiter import RedisRateLimiter
    from crawler.sites import Sites
    from crawler.stack import Stack

SLOW_S = 10.0
"""After this time without an ended page, pages in flight count as waits, too."""
LOOK_S, COUNT_S = 2.0, 60.0
"""How often Redis is asked, and how often all tasks are counted to check an index."""
MIN_PAUSE_TIMES = 10.0
"""After a look, this many times its duration passes until the next."""
MAX_JOBS = 20
"""How many jobs are looked at one by one."""
MAX_NAMED = 3
"""If at most this many pages are in flight, the oldest is named."""
SHOWN_SLOWDOWN = 1.005
"""A smaller slowdown is not worth mentioning."""
_BY_ITSELF = "it goes on by itself"
_UNTRIED = ("", 0)


class WaitFinder:
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
        self._ask_redis()
        pages = self._pages(job)
        asked = [page for page in pages if not page.waits]
        if not asked and not any(wait.stops for wait in found):
            found += self._of_indexes(still_s)
        found += self._of_tasks(job, books, pages, idle=not asked)
        if asked and not any(wait.stops for wait in found):
            found += self._in_flight(asked, books, still_s)
        found += self._of_siblings(job)
        return sorted(found, key=lambda wait: not wait.stops)

    def plain(self, job: Job | None) -> list[Wait]:
        """Return what can be seen at once, without asking Redis or counting tasks."""
        found = []
        if job is not None and self._lpm.jobs.named(job.name).hold == "paused":
            found.append(_paused("it is paused", _resume(job)))
        full = disk_problem(self._lpm.folder, self._settings) or ""
        if full:
            command, effect = f"{program()} prune --raw --older-than 30d", "deletes old raw pages"
            found.append(Wait(kind="disk", what=full, command=command, effect=effect))
        # Workers note that the disk is full, too.
        told = without_figures(full)
        return found + [each for each in self._troubles() if without_figures(each.what) not in told]

    def line(self, wait: Wait) -> str:
        """Return a wait as one line: what, until when, and what changes it."""
        return describe_wait(wait, time.time(), self._tz)

    def _stack(self) -> "Stack":
        from crawler.stack import read_stack

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
        away: list[Wait] = []
        if stack.up or self._settings.redis_url:
            self._ask_redis()
            if self._silent:
                away = [self._silent]
        if stack.up:
            effect = "the supervisor starts one by itself"
            nobody = Wait(kind="worker", what="no worker runs", effect=effect)
            return [*away, _stopped_supervisor(stack) or nobody]
        if held := self._all_held(None):
            return held
        what = f"nothing works on {counted(open_, 'open task')}: no worker runs"
        command = f"{program()} resume"
        effect = f"goes on, or {program()} up does in the background"
        if away:
            effect = "goes on, once Redis answers"
        start = Wait(kind="worker", what=what, command=command, effect=effect, tasks=open_)
        return [*away, start, *self._of_holds(None, False)]

    def _of_clock(self) -> list[Wait]:
        moved = self._lpm.tasks.clock_step(time.time(), times.uptime(), times.boot_id())
        if not moved:
            return []
        what = f"the clock was set by {moved:+.0f} s: waits are about to be moved by as much"
        return [Wait(kind="clock", what=what, effect="a worker does it by itself", stops=False)]

    def _of_processes(self, workers: Sequence[owners.Note]) -> list[Wait]:
        """Workers that were stopped or do nothing; while others work, they stop nothing."""
        stopped = {note.pid for note in stalled_processes(workers, self._settings.stall_s)}
        parents = owners.workers(self._lpm.owners)  # they hand out the work of their children
        asleep = {pid for pid in parents if _is_stopped(pid)}
        if stopped or asleep:
            pids = " ".join(map(str, sorted(stopped | asleep)))
            what, them = f"process {pids} stands still", "it"
            if len(stopped | asleep) > 1:
                what, them = f"processes {pids} stand still", "them"
            command, effect = f"kill -CONT {pids}", f"wakes {them}, kill -9 {pids} ends {them}"
            stops = len(stopped) == len(workers) or len(asleep) == len(parents)
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
        faults = self._lpm.jobs.index_faults()
        self._next_count = time.monotonic() + COUNT_S
        self._damage = []
        if faults:
            what = f"{faults[0]}, so workers do not find them all; stop, then {mend()}"
            self._damage = [Wait(kind="damage", what=what)]
        return self._damage

    def _of_tasks(
        self, job: Job | None, books: Books, pages: Sequence["_Page"], idle: bool
    ) -> list[Wait]:
        """What tasks without a request in flight wait for: Redis, their domains, their next
        attempt, an operator."""
        if self._silent:
            return [replace(self._silent, tasks=books.pending, stops=idle)]
        now = time.time()
        slow = {domain: about for domain, about in self._known.items() if _holds(about, now)}
        due: dict[str, int] = {}
        if slow or idle:
            due = self._lpm.counts.due_by_domain(job)
        turns: dict[str, float] = {}
        for page in pages:
            if page.waits:
                due[page.domain] = due.get(page.domain, 0) + 1
            if page.turn is not None:
                turns[page.domain] = min(page.turn, turns.get(page.domain, page.turn))
        shut = {domain: about for domain, about in slow.items() if domain in due}
        stops = idle and len(shut) == len(due)
        waits = [
            self._at_domain(job, domain, about, due[domain], stops, turns.get(domain))
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
        self,
        job: Job | None,
        domain: str,
        about: "Domain",
        tasks: int,
        stops: bool,
        turn: float | None = None,
    ) -> Wait:
        """What keeps a domain shut, or so slow that it looks shut; `turn` is when the first page
        may go that waits for its permit there."""
        name = printable(domain)
        held = f"{counted(tasks, 'task')} {_waits(tasks)}"
        because = ""
        if about.last_block:
            because = f" because {printable(about.last_block)}"
        command, effect = f"{program()} domains reset {name}", "opens it sooner"
        until: float | None = None
        if about.not_before is not None and about.because:
            kind, what, until = "robots", printable(about.because), about.not_before
            effect = "asks for it again at once"
        elif about.not_before is not None:
            kind, what, until = "retry_after", "its server said Retry-After", about.not_before
        elif about.state == "OPEN":
            kind, what, until = "circuit", f"circuit open{because}", about.open_until
        elif about.state == "HALF_OPEN":
            kind, what = "circuit", f"circuit half open{because}, one probe at a time"
            until = self._latest_end(domain)
        elif turn is None and _is_booked(about, time.time()):
            kind, what = "rate", f"its limit is {describe_limits(about)}, what is booked goes first"
            command, effect = "", _BY_ITSELF
        elif about.crawl_delay_s > about.interval_s * about.slowed:
            kind = "robots"
            what = f"its robots.txt asks for {about.crawl_delay_s:g} s between pages"
            effect = "goes on without asking robots.txt"
            command, effect = self._again(job, domain, "--ignore-robots", effect)
        else:
            kind, what = "rate", f"its limit is {describe_limits(about)}"
            if about.slowed > SHOWN_SLOWDOWN:
                what += f", slowed down {about.slowed:.2g} times"
            effect = "goes faster, where you may"
            command, effect = self._again(job, domain, "--rate 10/s", effect)
        return Wait(
            kind=kind,
            what=f"{name}: {what}, {held}",
            until=until or turn or about.next_at,
            command=command,
            effect=effect,
            tasks=tasks,
            domain=domain,
            stops=stops,
        )

    def _again(self, job: Job | None, domain: str, option: str, effect: str) -> tuple[str, str]:
        """Return the command that continues a job, or the first with tasks at a domain, with an
        option, and its effect. Without a file to continue, it shows the limits."""
        jobs = [job] if job else self._open_jobs()[:MAX_JOBS]
        for each in jobs:
            if each.source_file and (job or domain in self._lpm.counts.due_by_domain(each)):
                return f"{program()} bulk import {shlex.quote(each.source_file)} {option}", effect
        return f"{program()} domains", "shows the limits"

    def _open_jobs(self) -> list[Job]:
        return [each for each in self._lpm.jobs.all() if each.status is JobStatus.OPEN]

    def _latest_end(self, domain: str) -> float | None:
        """When the page in flight at a domain is given up, at the latest."""
        for page in self._pages(None):
            if page.domain == domain and not page.waits:
                return page.since + self._timeout_s(page.url)
        return None

    def limits(self, job: Job) -> Limits:
        """Return the limits on a job's domains and of the workers, for a forecast."""
        rule = partial(self._load_sites().rule, rate=job.options.rate)
        return limits_of(self._settings, self._lpm.owners, rule)

    def _timeout_s(self, url: str) -> float:
        return self._load_sites().of(url).timeout_s

    def _load_sites(self) -> "Sites":
        from crawler import sites

        self._sites = self._sites or sites.load(self._settings.config_dir, self._settings.rate)
        return self._sites

    def _of_retries(self, job: Job | None, stops: bool) -> list[Wait]:
        """Tasks that wait for their next attempt."""
        groups = self._lpm.counts.waiting(job)
        if self._lpm.counts.waits_for_siblings(job):
            groups = [group for group in groups if group[2:] != _UNTRIED]
        if not groups:
            return []
        tasks, reason = sum(group[0] for group in groups), groups[0][2]
        what = f"{counted(tasks, 'task')} {_waits(tasks)} for the next attempt"
        if reason:
            what += f" ({printable(reason)})"
        first = min(group[1] for group in groups)
        wait = Wait(kind="retry", what=what, until=first, effect=_BY_ITSELF, tasks=tasks)
        return [replace(wait, stops=stops)]

    def _of_siblings(self, job: Job | None) -> list[Wait]:
        """Tasks that wait for the page of another row with the same URL."""
        if not self._lpm.counts.waits_for_siblings(job):
            return []
        tasks = sum(group[0] for group in self._lpm.counts.waiting(job) if group[2:] == _UNTRIED)
        page = "a page that is fetched for another row of the same URL"
        what = f"{counted(tasks, 'task')} {_waits(tasks)} for {page}"
        return [Wait(kind="page", what=what, effect=_BY_ITSELF, tasks=tasks, stops=False)]

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
        return [each for each in self._lpm.jobs.all() if each.state == "paused"]

    def _all_held(self, job: Job | None) -> list[Wait]:
        """That all open tasks are of paused jobs."""
        tasks = self._lpm.counts.held(job)
        if not tasks or self._lpm.counts.waiting(job) or self._lpm.counts.due_by_domain(job):
            return []
        command = f"{program()} job resume NAME"
        paused = self._paused_jobs()
        if len(paused) == 1:
            command = _resume(paused[0])
        what = f"all that is open is paused: {counted(tasks, 'task')} ({program()} job list)"
        return [replace(_paused(what, command), tasks=tasks)]

    def _pages(self, job: Job | None) -> list["_Page"]:
        """Return the pages that are being worked on, by the time of their request; `_ask_redis`
        comes first."""
        now, clock = time.time(), time.monotonic()
        requests: dict[int, float] = {}
        for note in owners.living(self._lpm.owners):
            requests |= note.requests
        pages = []
        for task, url, domain, leased_at in self._lpm.counts.pages_in_flight(job):
            request = requests.get(task)
            if request is None:  # nothing has gone out; a closed domain is why, else it is about to
                waits = (about := self._known.get(domain)) is not None and _holds(about, now)
                pages.append(_Page(task, url, domain, leased_at, waits))
            elif request < 0:
                turn = now - request - clock
                pages.append(_Page(task, url, domain, leased_at, True, turn))
            else:
                pages.append(_Page(task, url, domain, now + request - clock, False))
        return sorted(pages, key=lambda page: page.since)

    def of_page(self, job: Job | None, task: int) -> list[Wait]:
        """Return what a page that is being worked on waits for: its permit, or its server."""
        self._ask_redis()
        for page in self._pages(job):
            if page.task == task and not page.waits:
                return [self._for_page(page, 1, False)]
            if page.task == task and (about := self._known.get(page.domain)):
                return [self._at_domain(job, page.domain, about, 1, False, page.turn)]
        return []

    def _in_flight(
        self, pages: Sequence["_Page"], books: Books, still_s: float | None
    ) -> list[Wait]:
        """The page, or the domain, whose answer is waited for."""
        first = pages[0]
        if still_s is None:
            still_s = time.time() - first.since
        if still_s < SLOW_S:
            return []
        stops = not books.pending
        if len(pages) <= MAX_NAMED:
            return [self._for_page(first, len(pages), stops)]
        domain = printable(first.domain)
        tasks = sum(page.domain == first.domain for page in pages)
        what = f"waiting for {domain}"
        if books.open == books.accepted and first.domain not in self._lpm.counts.paces():
            what = f"no page of {domain} has come yet"
        since = times.clock(first.since, self._tz)
        what += f": {counted(tasks, 'page')} in flight, the first since {since}"
        wait = self._for_page(first, tasks, stops)
        return [replace(wait, what=what, domain=first.domain)]

    def _for_page(self, page: "_Page", tasks: int, stops: bool) -> Wait:
        """A page in flight, of so many."""
        since = times.clock(page.since, self._tz)
        what = f"waiting for {shortened(printable(page.url))} since {since}"
        if tasks > 1:
            what += f" (and {counted(tasks - 1, 'other page')})"
        return Wait(
            kind="page",
            what=what,
            until=page.since + self._timeout_s(page.url),
            effect="it is given up then, at the latest",
            tasks=tasks,
            stops=stops,
        )


class _Page(NamedTuple):
    """A page that is being worked on."""

    task: int
    url: str
    domain: str
    since: float
    """When its last request went out, or when it was claimed."""
    waits: bool
    """Whether its next request waits for its permit."""
    turn: float | None = None
    """When that may go, if known."""


class StallMonitor:
    """Tells over time what a job, or with none all work, waits for.

    With `still_s` it says and checks nothing until nothing has moved for that long.
    """

    def __init__(self, waits: WaitFinder, job: Job | None, still_s: float | None = None) -> None:
        self._waits, self._job = waits, job
        self._at_once = still_s is None
        self._still_s, self._look_s = still_s or STILL_S, still_s or LOOK_S
        self._done = -1
        self._began = time.monotonic()
        self._since = self._next_look = 0.0
        self._found: list[Wait] = []

    def reasons(self, books: Books) -> list[Wait]:
        """Return what tasks wait for, the weightiest first."""
        now = time.monotonic()
        done = books.accepted - books.open
        if done != self._done:
            self._done, self._since = done, now
        still_s = now - self._since
        is_still = still_s >= self._still_s
        if not books.open or not (self._at_once or is_still):
            self._found, self._next_look = [], 0.0
        elif now - self._began < self._still_s:
            self._found = self._waits.plain(self._job)
        elif now >= self._next_look:
            self._found = self._waits.of(self._job, books, still_s)
            took_s = time.monotonic() - now
            self._next_look = now + max(self._look_s, MIN_PAUSE_TIMES * took_s)
        if is_still:
            return self._found
        # While tasks end, single retries and pages in flight are nothing to speak of.
        return [wait for wait in self._found if wait.kind not in ("retry", "page")]

    def reason(self, books: Books) -> str:
        """Return the weightiest as a line, with the number of others."""
        found = self.reasons(books)
        if not found:
            return ""
        line = self._waits.line(found[0])
        if len(found) == 1:
            return line
        what, semicolon, remedy = line.partition(";")
        return f"{what} (and {len(found) - 1} more: {program()} status){semicolon}{remedy}"


def describe_wait(wait: Wait, now: float, tz: tzinfo | None) -> str:
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


def disk_problem(folder: Path, settings: Settings) -> str | None:
    """Return what to say, and what helps, if the disk is too full to fetch anything."""
    from crawler.process import disk_full

    # The workers' own limit counts: a command may have been given another one.
    limits = [
        note.about["min_free"]
        for note in owners.living(folder / "run" / "owners")
        if "min_free" in note.about
    ]
    if low := low_on_disk(folder, min(limits, default=settings.min_free)):
        return f"{low}; free some room, or lower CRAWLER_MIN_FREE"
    return disk_full(folder) or None


def stalled_processes(notes: Sequence[owners.Note], stall_s: float) -> list[owners.Note]:
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
    from crawler.stack import read_stack

    try:
        with contextlib.closing(_shared(settings)) as shared:
            yield shared
    except ServiceError as error:
        away = _redis_is_away(str(error), read_stack(settings.data_dir), settings)
        raise ServiceError(f"{error}; {_remedy(away)}") from None


def _shared(settings: Settings) -> "RedisRateLimiter":
    from crawler.resilience.redis_rate_limiter import RedisRateLimiter
    from crawler.stack import redis_address

    db, fail_max = settings.redis_rate_limiter_db, settings.circuit_breaker_fail_max
    return RedisRateLimiter(redis_address(settings), db, "command", fail_max)


def describe_limits(known: "Domain") -> str:
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


def _holds(about: "Domain", now: float) -> bool:
    """Whether a domain lets nothing pass, or so seldom that it looks like that."""
    shut = about.state != "CLOSED" or about.not_before is not None
    return shut or _spacing_s(about) > STILL_S or _is_booked(about, now)


def _is_booked(about: "Domain", now: float) -> bool:
    """Whether requests are reserved there further ahead than its present limits would do."""
    ahead_s = (about.next_at or now) - now
    return ahead_s > 3 * _spacing_s(about) + STILL_S


def _spacing_s(about: "Domain") -> float:
    return max(about.interval_s * about.slowed, about.crawl_delay_s)


def _redis_is_away(error: str, stack: "Stack", settings: Settings) -> Wait:
    from crawler.stack import SILENT

    command, effect = f"{program()} up", "starts one"
    if stack.up and stack.redis and (asleep := _stopped_supervisor(stack)):
        command, effect = asleep.command, "wakes the supervisor, which starts it again"
    elif stack.up and stack.redis:
        limit_s = SILENT * settings.stall_s
        by_itself = f"the supervisor starts it again by itself, after {limit_s:g} s of silence"
        command, effect = "", by_itself
    elif settings.redis_url or stack.up:
        command, effect = "", "it is the one of REDIS_URL, which this program does not start"
    return Wait(kind="redis", what=error, command=command, effect=f"{effect}; nothing is lost")


def _stopped_supervisor(stack: "Stack") -> Wait | None:
    """That a supervisor was stopped, so that it starts nothing again."""
    mark = stack.supervisor
    if mark is None or not mark.is_stopped():
        return None
    what = f"the supervisor, process {mark.pid}, is stopped and starts nothing again"
    return Wait(kind="stopped", what=what, command=f"kill -CONT {mark.pid}", effect="wakes it")


def _paused(what: str, command: str) -> Wait:
    return Wait(kind="paused", what=what, command=command, effect="goes on")


def _waits(tasks: int) -> str:
    return "waits" if tasks == 1 else "wait"


def _resume(job: Job) -> str:
    return f"{program()} job resume {shlex.quote(printable(job.name))}"


def _is_stopped(pid: int) -> bool:
    import psutil

    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False
