"""What open tasks wait for, until when, and which command helps."""

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
from crawler.config import Settings, argument, program
from crawler.db import owners
from crawler.db.jobs import mend
from crawler.errors import ServiceError
from crawler.forecast import STILL_S, CrawlLimits, limits_of
from crawler.logs import counted, printable, shortened, without_figures
from crawler.lpm import LocalPersistenceManager, low_on_disk
from crawler.models import BROWSER, QUEUES, Job, JobStatus, TaskCounts, Wait

if TYPE_CHECKING:
    from crawler.resilience.permit import DomainStatus
    from crawler.resilience.redis_rate_limiter import RedisRateLimiter
    from crawler.sites.live import LiveSites
    from crawler.stack import Stack

MIN_STALL_S = 10.0
"""If no page has ended for this long, pages in flight count as waits, too."""
READ_INTERVAL_S, INDEX_CHECK_INTERVAL_S = 2.0, 60.0
"""How often to read the domains from Redis, and to count all tasks to check an index."""
MIN_REST_FACTOR = 10.0
"""A search is followed by a rest of this many times its duration."""
MAX_JOBS = 20
"""How many jobs are searched one by one."""
MAX_PAGES_NAMED = 3
"""With more pages in flight than this, their domain is named instead of the oldest page."""
SHOWN_SLOWDOWN = 1.005
"""A smaller slowdown is not shown."""
_BY_ITSELF = "it goes on by itself"
_NEVER_TRIED = ("", 0)


class WaitFinder:
    """Searches the ledger, the processes, the disk and Redis for what tasks wait for."""

    def __init__(self, settings: Settings, lpm: LocalPersistenceManager) -> None:
        self._settings, self._lpm = settings, lpm
        self._tz = times.zone(settings.timezone)
        self._asked_at = self._next_count = 0.0
        self._domains: dict[str, DomainStatus] = {}
        self._redis_wait: Wait | None = None
        self._index_damage: list[Wait] = []
        self._sites: LiveSites | None = None

    def find(self, job: Job | None, books: TaskCounts, still_s: float | None = None) -> list[Wait]:
        """Return what the tasks of a job, or of all jobs, wait for; what stops all comes first.

        `still_s` is the time since the last task ended. Without it, the age of the pages in flight
        counts.
        """
        if not books.open:
            return []
        found = self.find_quickly(job)
        workers = self._workers(job)
        if not workers:
            return found + self._no_worker_waits(books)
        if unserved := self._unserved_queues(job, books, workers):
            return found + unserved
        found += self._browser_waits(job, books, workers)
        found += self._clock_waits() + self._process_waits(workers)
        self._read_domains(workers)
        pages = self._pages_in_flight(job)
        asked = [page for page in pages if not page.waits]
        if not asked and not any(wait.stops for wait in found):
            found += self._index_waits(still_s)
        found += self._task_waits(job, books, pages, idle=not asked)
        if asked and not any(wait.stops for wait in found):
            found += self._in_flight_waits(asked, books, still_s)
        found += self._sibling_waits(job)
        return sorted(found, key=lambda wait: not wait.stops)

    def find_for_session(self, job: Job) -> list[Wait]:
        """Return what a session waits for that has a process of its own, without asking Redis."""
        books = self._lpm.counts.progress(job)
        return self.find_quickly(job) + self._browser_waits(job, books, self._workers(job))

    def _workers(self, job: Job | None) -> list[owners.OwnerState]:
        """Return the processes that take tasks of a job, or of all jobs: workers, and those that
        programs run for their own sessions. These count only if nothing waits for a worker."""
        living = owners.living(self._lpm.owners)
        workers = [note for note in living if note.about.get("kind") == "worker"]
        direct = [note for note in living if note.about.get("kind") == "direct"]
        if not direct:
            return workers
        served = {name for note in direct for name in note.about.get("queues", ())}
        waiting = self._lpm.counts.pending_by_queue(job).keys()
        if not workers and not waiting <= served:
            return []
        return workers + direct

    def _unserved_queues(
        self, job: Job | None, books: TaskCounts, workers: Sequence[owners.OwnerState]
    ) -> list[Wait]:
        """Return that no worker takes tasks from the queues in which all tasks wait."""
        served = _served(workers)
        if served.issuperset(QUEUES) or books.processing:
            return []
        waiting = self._lpm.counts.pending_by_queue(job).keys()
        if waiting & served:
            return []
        what = f"no worker takes tasks from the queue {', '.join(sorted(waiting))}"
        command = "celery -A crawler worker -Q urgent,default"
        return [Wait(kind="worker", what=what, command=command, effect="does")]

    def _browser_waits(
        self, job: Job | None, books: TaskCounts, workers: Sequence[owners.OwnerState]
    ) -> list[Wait]:
        """Return that pages wait for a browser, where no process has one."""
        from crawler.fetch.browser_process import lacking  # no short command needs psutil

        if BROWSER in _served(workers):
            return []
        tasks = self._lpm.counts.due_for_browsers(job)
        if not tasks:
            return []
        what = f"{counted(tasks, 'page')} {_verb(tasks)} for a browser, and no worker has one"
        command, effect = f"{program()} up --browsers 1", "starts one"
        if self._stack().up:
            command, effect = f"{program()} worker --browser", "starts one, beside the stack"
        if lack := lacking(self._settings.browser_path):
            command, effect = "", f"{lack}; begin again then"
        stops = tasks == books.open
        return [
            Wait(
                kind="browser", what=what, command=command, effect=effect, tasks=tasks, stops=stops
            )
        ]

    def find_quickly(self, job: Job | None) -> list[Wait]:
        """Return the waits that are found without asking Redis or counting tasks."""
        found = []
        if job is not None and self._lpm.jobs.named(job.name).hold == "paused":
            found.append(_paused_wait("it is paused", _resume_command(job)))
        full = disk_problem(self._lpm.folder, self._settings) or ""
        if full:
            command, effect = f"{program()} prune --raw --older-than 30d", "deletes old raw pages"
            found.append(Wait(kind="disk", what=full, command=command, effect=effect))
        # Workers report a full disk, too.
        told = without_figures(full)
        return found + [
            each for each in self._trouble_waits() if without_figures(each.what) not in told
        ]

    def describe(self, wait: Wait) -> str:
        """Return a wait as one line: what, until when, and what helps."""
        return describe_wait(wait, time.time(), self._tz)

    def _stack(self) -> "Stack":
        from crawler.stack import read_stack

        return read_stack(self._lpm.folder)

    def _trouble_waits(self) -> list[Wait]:
        """Return the troubles that processes have noted, and failed restarts of a supervisor."""
        living = owners.living(self._lpm.owners)
        whole = all(note.trouble for note in living)
        found = {note.trouble: whole for note in living if note.trouble}
        stack = self._stack()
        if stack.up and stack.trouble:
            found[stack.trouble] = True
        return [
            Wait(kind="trouble", what=what, stops=stops) for what, stops in sorted(found.items())
        ]

    def _no_worker_waits(self, books: TaskCounts) -> list[Wait]:
        """Return that no worker runs. A command may still work on a page of its own."""
        open_ = books.open
        if owners.living(self._lpm.owners):
            open_ = books.pending
        stack = self._stack()
        if not open_ or stack.container:
            return []
        away: list[Wait] = []
        if stack.up or self._settings.redis_url:
            self._read_domains()
            if self._redis_wait:
                away = [self._redis_wait]
        if stack.up:
            effect = "the supervisor starts one by itself"
            if stack.worker is None:
                effect = "the program that has begun this stack starts one with start_celery()"
            nobody = Wait(kind="worker", what="no worker runs", effect=effect)
            return [*away, _stopped_supervisor(stack) or nobody]
        if held := self._all_paused(None):
            return held
        what = f"nothing works on {counted(open_, 'open task')}: no worker runs"
        command = f"{program()} resume"
        effect = f"goes on, or {program()} up does in the background"
        if away:
            effect = "goes on, once Redis answers"
        start = Wait(kind="worker", what=what, command=command, effect=effect, tasks=open_)
        return [*away, start, *self._paused_waits(None, False)]

    def _clock_waits(self) -> list[Wait]:
        moved = self._lpm.tasks.clock_step(time.time(), times.uptime(), times.boot_id())
        if not moved:
            return []
        what = f"the clock was set by {moved:+.0f} s: waits are about to be moved by as much"
        return [Wait(kind="clock", what=what, effect="a worker does it by itself", stops=False)]

    def _process_waits(self, workers: Sequence[owners.OwnerState]) -> list[Wait]:
        """Return workers that stand still; they stop everything only if no other works."""
        stopped = {note.pid for note in stalled_processes(workers, self._settings.stall_s)}
        parents = owners.workers(self._lpm.owners)  # a stopped parent gives its children no work
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
        if silent_s <= MIN_STALL_S:
            return []
        what = f"no worker process has moved for {silent_s:.0f} s"
        effect = f"one that stands still for {self._settings.stall_s:g} s is ended by itself"
        return [Wait(kind="stopped", what=what, effect=effect)]

    def _index_waits(self, still_s: float | None) -> list[Wait]:
        """Return open tasks that no worker can find. This reads every task, so it runs rarely."""
        if (still_s is not None and still_s < MIN_STALL_S) or time.monotonic() < self._next_count:
            return self._index_damage
        faults = self._lpm.jobs.index_faults()
        self._next_count = time.monotonic() + INDEX_CHECK_INTERVAL_S
        self._index_damage = []
        if faults:
            what = f"{faults[0]}, so workers do not find them all; stop, then {mend()}"
            self._index_damage = [Wait(kind="damage", what=what)]
        return self._index_damage

    def _task_waits(
        self, job: Job | None, books: TaskCounts, pages: Sequence["_Page"], idle: bool
    ) -> list[Wait]:
        """Return what tasks without a request in flight wait for: Redis, their domains, their next
        attempt or a paused job."""
        if self._redis_wait:
            return [replace(self._redis_wait, tasks=books.pending, stops=idle)]
        now = time.time()
        slow = {domain: about for domain, about in self._domains.items() if _looks_shut(about, now)}
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
            self._domain_wait(job, domain, about, due[domain], stops, turns.get(domain))
            for domain, about in shut.items()
        ]
        waits.sort(key=lambda wait: -wait.tasks)
        return waits + self._retry_waits(job, stops) + self._paused_waits(job, stops and not due)

    def _read_domains(self, workers: Sequence[owners.OwnerState] = ()) -> None:
        """Read the state of each domain from Redis, or note that Redis does not answer.

        The processes of programs need none, unless a stack is up or REDIS_URL names one.
        """
        is_alone = workers and all(note.about.get("kind") == "direct" for note in workers)
        if is_alone and not self._settings.redis_url and not self._stack().up:
            return
        if time.monotonic() - self._asked_at < READ_INTERVAL_S and self._asked_at:
            return
        self._domains, self._redis_wait = {}, None
        stack = self._stack()
        if stack.container:
            return  # its Redis answers only to the containers
        try:
            with contextlib.closing(_rate_limiter(self._settings)) as shared:
                found = shared.domains(time.time())
            self._domains = {each.domain.partition("@")[0]: each for each in found}
        except ServiceError as error:
            self._redis_wait = _redis_is_away(str(error), stack, self._settings)
        self._asked_at = time.monotonic()

    def _domain_wait(
        self,
        job: Job | None,
        domain: str,
        about: "DomainStatus",
        tasks: int,
        stops: bool,
        turn: float | None = None,
    ) -> Wait:
        """Return why a domain is shut, or so slow that it looks shut.

        `turn` is when the first page that waits for its permit there may go.
        """
        name = printable(domain)
        held = f"{counted(tasks, 'task')} {_verb(tasks)}"
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
        elif turn is None and _is_reserved_ahead(about, time.time()):
            kind = "rate"
            what = f"its limit is {describe_limits(about)}, earlier reservations go first"
            command, effect = "", _BY_ITSELF
        elif about.crawl_delay_s > about.interval_s * about.slowed:
            kind = "robots"
            what = f"its robots.txt asks for {about.crawl_delay_s:g} s between pages"
            effect = "goes on without asking robots.txt"
            command, effect = self._continue_command(job, domain, "--ignore-robots", effect)
        else:
            kind, what = "rate", f"its limit is {describe_limits(about)}"
            if about.slowed > SHOWN_SLOWDOWN:
                what += f", slowed down {about.slowed:.2g} times"
            effect = "goes faster, where you may"
            command, effect = self._continue_command(job, domain, "--rate 10/s", effect)
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

    def _continue_command(
        self, job: Job | None, domain: str, option: str, effect: str
    ) -> tuple[str, str]:
        """Return the command that continues a job with an option, and its effect.

        Without a job, it is the first one with tasks at the domain. Without a file to import
        again, it is the command that shows the limits.
        """
        jobs = [job] if job else self._open_jobs()[:MAX_JOBS]
        for each in jobs:
            if each.source_file and (job or domain in self._lpm.counts.due_by_domain(each)):
                return f"{program()} bulk import {shlex.quote(each.source_file)} {option}", effect
        return f"{program()} domains", "shows the limits"

    def _open_jobs(self) -> list[Job]:
        return [each for each in self._lpm.jobs.all() if each.status is JobStatus.OPEN]

    def _latest_end(self, domain: str) -> float | None:
        """Return when the page in flight at a domain times out."""
        for page in self._pages_in_flight(None):
            if page.domain == domain and not page.waits:
                return page.since + self._timeout_s(page.url)
        return None

    def limits(self, job: Job) -> CrawlLimits:
        """Return the limits on a job's domains and of the workers, for a forecast."""
        rule = partial(self._load_sites().rule, rate=job.options.rate)
        return limits_of(self._settings, self._lpm.owners, rule)

    def _timeout_s(self, url: str) -> float:
        return self._load_sites().of(url).timeout_s

    def _load_sites(self) -> "LiveSites":
        """Return the sites as they are now; a broken file must not hide what tasks wait for."""
        from crawler.sites import built_in
        from crawler.sites.live import LiveSites

        if self._sites is None:
            folder, rate = self._settings.config_dir, self._settings.rate
            self._sites = LiveSites(folder, rate, built_in(rate))
        self._sites.look()
        return self._sites

    def _retry_waits(self, job: Job | None, stops: bool) -> list[Wait]:
        """Return tasks that wait for their next attempt."""
        groups = self._lpm.counts.waiting(job)
        if self._lpm.counts.waits_for_siblings(job):
            groups = [group for group in groups if group[2:] != _NEVER_TRIED]
        if not groups:
            return []
        tasks = sum(group[0] for group in groups)
        reason = groups[0][2] or self._lpm.counts.postponed_because(job)
        what = f"{counted(tasks, 'task')} {_verb(tasks)} for the next attempt"
        if reason:
            what += f" ({printable(reason)})"
        first = min(group[1] for group in groups)
        wait = Wait(kind="retry", what=what, until=first, effect=_BY_ITSELF, tasks=tasks)
        return [replace(wait, stops=stops)]

    def _sibling_waits(self, job: Job | None) -> list[Wait]:
        """Return tasks that wait for the page of another row with the same URL."""
        if not self._lpm.counts.waits_for_siblings(job):
            return []
        tasks = sum(
            group[0] for group in self._lpm.counts.waiting(job) if group[2:] == _NEVER_TRIED
        )
        page = "a page that is fetched for another row of the same URL"
        what = f"{counted(tasks, 'task')} {_verb(tasks)} for {page}"
        return [Wait(kind="page", what=what, effect=_BY_ITSELF, tasks=tasks, stops=False)]

    def _paused_waits(self, job: Job | None, stops: bool) -> list[Wait]:
        """Return the paused jobs, if the question is about all jobs."""
        if job is not None:
            return []
        if stops and (held := self._all_paused(job)):
            return held
        return [
            replace(
                _paused_wait(f"{printable(each.name)} is paused", _resume_command(each)),
                stops=False,
            )
            for each in self._paused_jobs()
        ]

    def _paused_jobs(self) -> list[Job]:
        return [each for each in self._lpm.jobs.all() if each.state == "paused"]

    def _all_paused(self, job: Job | None) -> list[Wait]:
        """Return one wait if all open tasks belong to paused jobs."""
        tasks = self._lpm.counts.held(job)
        if not tasks or self._lpm.counts.waiting(job) or self._lpm.counts.due_by_domain(job):
            return []
        command = f"{program()} job resume NAME"
        paused = self._paused_jobs()
        if len(paused) == 1:
            command = _resume_command(paused[0])
        what = f"all that is open is paused: {counted(tasks, 'task')} ({program()} job list)"
        return [replace(_paused_wait(what, command), tasks=tasks)]

    def _pages_in_flight(self, job: Job | None) -> list["_Page"]:
        """Return the pages that are being worked on, the oldest request first.

        Call `_read_domains` before.
        """
        now, clock = time.time(), time.monotonic()
        requests: dict[int, float] = {}
        for note in owners.living(self._lpm.owners):
            requests |= note.requests
        pages = []
        for task, url, domain, leased_at in self._lpm.counts.pages_in_flight(job):
            request = requests.get(task)
            if request is None:  # not sent yet: its domain is shut, or it goes right now
                waits = (about := self._domains.get(domain)) is not None and _looks_shut(about, now)
                pages.append(_Page(task, url, domain, leased_at, waits))
            elif request < 0:
                turn = now - request - clock
                pages.append(_Page(task, url, domain, leased_at, True, turn))
            else:
                pages.append(_Page(task, url, domain, now + request - clock, False))
        return sorted(pages, key=lambda page: page.since)

    def find_for_page(self, job: Job | None, task: int) -> list[Wait]:
        """Return what a page in work waits for: its permit or its server."""
        self._read_domains()
        for page in self._pages_in_flight(job):
            if page.task == task and not page.waits:
                return [self._page_wait(page, 1, False)]
            if page.task == task and (about := self._domains.get(page.domain)):
                return [self._domain_wait(job, page.domain, about, 1, False, page.turn)]
        return []

    def _in_flight_waits(
        self, pages: Sequence["_Page"], books: TaskCounts, still_s: float | None
    ) -> list[Wait]:
        """Return the oldest page in flight, or its domain if there are many."""
        first = pages[0]
        if still_s is None:
            still_s = time.time() - first.since
        if still_s < MIN_STALL_S:
            return []
        stops = not books.pending
        if len(pages) <= MAX_PAGES_NAMED:
            return [self._page_wait(first, len(pages), stops)]
        domain = printable(first.domain)
        tasks = sum(page.domain == first.domain for page in pages)
        what = f"waiting for {domain}"
        if books.open == books.accepted and first.domain not in self._lpm.counts.paces():
            what = f"no page of {domain} has come yet"
        since = times.clock(first.since, self._tz)
        what += f": {counted(tasks, 'page')} in flight, the first since {since}"
        wait = self._page_wait(first, tasks, stops)
        return [replace(wait, what=what, domain=first.domain)]

    def _page_wait(self, page: "_Page", tasks: int, stops: bool) -> Wait:
        """Return the wait for a page in flight; `tasks` counts all of them."""
        since = times.clock(page.since, self._tz)
        what = f"waiting for {shortened(printable(page.url))} since {since}"
        if tasks > 1:
            what += f" (and {counted(tasks - 1, 'other page')})"
        until = page.since + self._timeout_s(page.url)
        effect = "it is given up then, at the latest"
        if until <= time.time():
            effect = "its time is up, and it is given up soon"
        return Wait(
            kind="page",
            what=what,
            until=until,
            effect=effect,
            tasks=tasks,
            stops=stops,
        )


def _served(workers: Sequence[owners.OwnerState]) -> set[str]:
    """Return the queues of messages that processes take tasks from; that of browsers also if one
    renders the pages of its own session."""
    served = {name for note in workers for name in note.about.get("queues", QUEUES)}
    if any(note.about.get("renders") for note in workers):
        served.add(BROWSER)
    return served


class _Page(NamedTuple):
    """A page that a worker has claimed."""

    task: int
    url: str
    domain: str
    since: float
    """When its last request went out, or when it was claimed."""
    waits: bool
    """Whether its next request waits for its permit."""
    turn: float | None = None
    """When that request may go, if known."""


class StallMonitor:
    """Follows the progress of a job, or of all jobs, and says what it waits for.

    With `still_s`, it stays silent until no task has ended for that long.
    """

    def __init__(self, finder: WaitFinder, job: Job | None, still_s: float | None = None) -> None:
        self._finder, self._job = finder, job
        self._at_once = still_s is None
        self._still_s, self._look_s = still_s or STILL_S, still_s or READ_INTERVAL_S
        self._done = -1
        self._began = time.monotonic()
        self._since = self._next_look = 0.0
        self._found: list[Wait] = []

    def reasons(self, books: TaskCounts) -> list[Wait]:
        """Return what tasks wait for, the most important first."""
        now = time.monotonic()
        done = books.accepted - books.open
        if done != self._done:
            self._done, self._since = done, now
        still_s = now - self._since
        is_still = still_s >= self._still_s
        if not books.open or not (self._at_once or is_still):
            self._found, self._next_look = [], 0.0
        elif now - self._began < self._still_s:
            self._found = self._finder.find_quickly(self._job)
        elif now >= self._next_look:
            self._found = self._finder.find(self._job, books, still_s)
            took_s = time.monotonic() - now
            self._next_look = now + max(self._look_s, MIN_REST_FACTOR * took_s)
        if is_still:
            return self._found
        # While tasks end, single retries and pages in flight are normal.
        return [wait for wait in self._found if wait.kind not in ("retry", "page")]

    def reason(self, books: TaskCounts) -> str:
        """Return the most important wait as a line, with the number of others."""
        found = self.reasons(books)
        if not found:
            return ""
        line = self._finder.describe(found[0])
        if len(found) == 1:
            return line
        what, semicolon, remedy = line.partition(";")
        return f"{what} (and {len(found) - 1} more: {program()} status){semicolon}{remedy}"


def describe_wait(wait: Wait, now: float, tz: tzinfo | None) -> str:
    """Return a wait as one line: what, until when, and what helps."""
    line = wait.what
    if wait.until is not None and wait.until > now:
        line += f" until {times.until(wait.until, now, tz)}"
    if wait.command or wait.effect:
        line += f"; {_remedy(wait)}"
    return line


def _remedy(wait: Wait) -> str:
    return " ".join(filter(None, (wait.command, wait.effect)))


def without_command(wait: Wait) -> Wait:
    """A wait as it is told to others than the operator: commands name folders of this machine."""
    return replace(wait, command="", effect="")


def endless_wait(waits: Sequence[Wait]) -> Wait | None:
    """Return a wait that stops everything for an unknown time: there is no forecast then."""
    for wait in waits:
        if wait.stops and wait.until is None and wait.kind not in ("rate", "robots"):
            return wait
    return None


def disk_problem(folder: Path, settings: Settings) -> str | None:
    """Return a message if the disk is too full to fetch anything."""
    from crawler.process import disk_full

    # The limit of the workers counts; a command may have another one.
    limits = [
        note.about["min_free"]
        for note in owners.living(folder / "run" / "owners")
        if "min_free" in note.about
    ]
    if low := low_on_disk(folder, min(limits, default=settings.min_free)):
        return f"{low}; free some room, or lower CRAWLER_MIN_FREE"
    return disk_full(folder) or None


def stalled_processes(
    notes: Sequence[owners.OwnerState], stall_s: float
) -> list[owners.OwnerState]:
    """Return processes that are stopped, or silent for longer than `stall_s`."""
    now = time.monotonic()
    return [
        note
        for note in notes
        if note.still_s(now) > stall_s or (note.still_s(now) > STILL_S and _is_stopped(note.pid))
    ]


@contextlib.contextmanager
def open_rate_limiter(settings: Settings) -> Iterator["RedisRateLimiter"]:
    """Open the shared rate limiter. If Redis does not answer, the error says what helps."""
    from crawler.stack import read_stack

    try:
        with contextlib.closing(_rate_limiter(settings)) as shared:
            yield shared
    except ServiceError as error:
        away = _redis_is_away(str(error), read_stack(settings.data_dir), settings)
        raise ServiceError(f"{error}; {_remedy(away)}") from None


def _rate_limiter(settings: Settings) -> "RedisRateLimiter":
    from crawler.resilience.redis_rate_limiter import RedisRateLimiter
    from crawler.stack import redis_address

    db, fail_max = settings.redis_rate_limiter_db, settings.circuit_breaker_fail_max
    return RedisRateLimiter(redis_address(settings), db, "command", fail_max)


def describe_limits(known: "DomainStatus") -> str:
    """Return the limits of a domain as text."""
    parts = []
    if known.interval_s:
        parts.append(_describe_interval(known.interval_s))
    if known.at_a_time:
        parts.append(f"{known.at_a_time} at a time")
    if known.crawl_delay_s:
        parts.append(f"Crawl-delay {known.crawl_delay_s:g} s")
    return ", ".join(parts) or "none"


def _describe_interval(interval_s: float) -> str:
    for unit, seconds in (("s", 1), ("m", 60), ("h", 3600)):
        if interval_s <= seconds:
            return f"{seconds / interval_s:.4g}/{unit}"
    return f"one in {times.duration(interval_s)}"


def _looks_shut(about: "DomainStatus", now: float) -> bool:
    """Whether a domain allows no request, or so few that it looks shut."""
    shut = about.state != "CLOSED" or about.not_before is not None
    return shut or _spacing_s(about) > STILL_S or _is_reserved_ahead(about, now)


def _is_reserved_ahead(about: "DomainStatus", now: float) -> bool:
    """Whether requests are reserved further ahead than the present limits explain."""
    ahead_s = (about.next_at or now) - now
    return ahead_s > 3 * _spacing_s(about) + STILL_S


def _spacing_s(about: "DomainStatus") -> float:
    return max(about.interval_s * about.slowed, about.crawl_delay_s)


def _redis_is_away(error: str, stack: "Stack", settings: Settings) -> Wait:
    from crawler.stack import SILENT_FACTOR

    command, effect = f"{program()} up", "starts one"
    if stack.up and stack.redis and (asleep := _stopped_supervisor(stack)):
        command, effect = asleep.command, "wakes the supervisor, which starts it again"
    elif stack.up and stack.redis:
        limit_s = SILENT_FACTOR * settings.stall_s
        by_itself = f"the supervisor starts it again by itself, after {limit_s:g} s of silence"
        command, effect = "", by_itself
    elif settings.redis_url or stack.redis_url:
        command, effect = "", "it is the one of REDIS_URL, which this program does not start"
    elif stack.up:
        command = ""
        effect = "the program that has begun this stack starts one with start_redis()"
    return Wait(kind="redis", what=error, command=command, effect=f"{effect}; nothing is lost")


def _stopped_supervisor(stack: "Stack") -> Wait | None:
    """Return a wait if the supervisor is stopped, so that it restarts nothing."""
    mark = stack.supervisor
    if mark is None or not mark.is_stopped():
        return None
    what = f"the supervisor, process {mark.pid}, is stopped and starts nothing again"
    return Wait(kind="stopped", what=what, command=f"kill -CONT {mark.pid}", effect="wakes it")


def _paused_wait(what: str, command: str) -> Wait:
    return Wait(kind="paused", what=what, command=command, effect="goes on")


def _verb(tasks: int) -> str:
    if tasks == 1:
        return "waits"
    return "wait"


def _resume_command(job: Job) -> str:
    return f"{program()} job resume {argument(printable(job.name))}"


def _is_stopped(pid: int) -> bool:
    import psutil

    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False
