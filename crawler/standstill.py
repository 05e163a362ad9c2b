"""What keeps tasks from going on, until when, and the command that changes it: what every command
and the log say."""

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
from crawler.db.books import mend
from crawler.errors import ServiceError
from crawler.forecast import STILL_S, Limits, limits_of
from crawler.logs import counted, printable, shortened, without_figures
from crawler.lpm import LocalPersistenceManager, low_on_disk
from crawler.models import Books, Job, JobStatus, Wait

if TYPE_CHECKING:
    from crawler.process import Stack
    from crawler.resilience.permit import Domain
    from crawler.resilience.redis_rate_limiter import RedisRateLimiter
    from crawler.sites.config import Sites

SLOW_S = 10.0
"""Pages on their way are waited for a little longer."""
LOOK_S, COUNT_S = 2.0, 60.0
"""How often what Redis knows is asked for, and how often all tasks are counted to check an
index."""
COST = 10.0
"""After a look, so many times as long as it took pass until the next."""
MAX_JOBS = 20
"""Jobs that are looked at one by one."""
_BY_ITSELF = "it goes on by itself"
_UNTRIED = ("", 0)
FEW = 3
"""Of so many pages on their way the oldest is named."""


class Waits:
    """Looks at the ledger, the processes, the disk and Redis; nothing is asked of them that need
    not be."""

    def __init__(self, settings: Settings, lpm: LocalPersistenceManager) -> None:
        self._settings, self._lpm = settings, lpm
        self._tz = times.zone(settings.timezone)
        self._asked = self._next_count = 0.0
        self._known: dict[str, Domain] = {}
        self._silent: Wait | None = None
        self._damage: list[Wait] = []
        self._sites: Sites | None = None

    def of(self, job: Job | None, books: Books, still_s: float | None = None) -> list[Wait]:
        """What keeps a job, or any task, from going on, the weightiest first; empty where all goes
        on.

        `still_s` says for how long nothing has ended; without it, the age of the pages in flight
        tells.
        """
        if not books.open:
            return []
        found = self.plain(job)
        workers = [
            note for note in owners.living(self._lpm.owners) if note.about.get("kind") == "worker"
        ]
        if not workers:
            return found + self._nobody(books)
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
        """What can be seen at once, without asking Redis or counting tasks."""
        found = [] if job is None else self._paused(job)
        if full := no_room(self._lpm.folder, self._settings):
            command = f"{program()} prune --raw --older-than 30d"
            found.append(
                Wait(kind="disk", what=full, command=command, effect="deletes old raw pages")
            )
        # Workers note that the disk is full, too.
        return found + [
            each
            for each in self._troubles()
            if without_figures(each.what) not in without_figures(full or "")
        ]

    def line(self, wait: Wait) -> str:
        """A wait as one line: what, until when, and what changes it."""
        return in_words(wait, time.time(), self._tz)

    def _paused(self, job: Job) -> list[Wait]:
        if self._lpm.ledger.job(job.name).hold != "paused":
            return []
        return [Wait(kind="paused", what="it is paused", command=_resume(job), effect="goes on")]

    def _troubles(self) -> list[Wait]:
        """What processes have noted about themselves, and a supervisor about its restarts."""
        from crawler.process import read_stack

        living = owners.living(self._lpm.owners)
        whole = all(note.trouble for note in living)
        found = {note.trouble: whole for note in living if note.trouble}
        stack = read_stack(self._lpm.folder)
        if stack.up and stack.trouble:
            found[stack.trouble] = True
        return [
            Wait(kind="trouble", what=what, stops=stops) for what, stops in sorted(found.items())
        ]

    def _nobody(self, books: Books) -> list[Wait]:
        """That no worker is there for what is open, and what helps; a command may work on its own
        page."""
        from crawler.process import read_stack

        open_ = books.pending if owners.living(self._lpm.owners) else books.open
        stack = read_stack(self._lpm.folder)
        if not open_ or stack.container:
            return []
        away: list[Wait] = []
        if stack.up or self._settings.redis_url:
            self._ask_redis()
            away = [self._silent] if self._silent else []
        if stack.up:
            by_itself = "the supervisor starts one by itself"
            nobody = Wait(kind="worker", what="no worker runs", effect=by_itself)
            return [*away, _stopped_supervisor(stack) or nobody]
        if held := self._all_held(None):
            return held
        nothing = f"nothing works on {counted(open_, 'open task')}: no worker runs"
        effect = f"goes on, or {program()} up does in the background"
        if away:
            effect = "goes on, once Redis answers"
        start = Wait(
            kind="worker",
            what=nothing,
            command=f"{program()} resume",
            effect=effect,
            tasks=open_,
        )
        return [*away, start, *self._of_holds(None, False)]

    def _of_clock(self) -> list[Wait]:
        moved = self._lpm.ledger.clock_step(time.time(), times.uptime(), times.boot_id())
        if not moved:
            return []
        what = f"the clock was set by {moved:+.0f} s: waits are about to be moved by as much"
        return [Wait(kind="clock", what=what, effect="a worker does it by itself", stops=False)]

    def _of_processes(self, workers: Sequence[owners.Note]) -> list[Wait]:
        """Workers that were stopped or do nothing; where some still work, they stop nothing."""
        stopped = {note.pid for note in standing_still(workers, self._settings.stall_s)}
        parents = owners.workers(self._lpm.owners)  # they hand out the work of their children
        asleep = {pid for pid in parents if _is_stopped(pid)}
        if stopped or asleep:
            pids = sorted(stopped | asleep)
            all_, many = " ".join(map(str, pids)), len(pids) > 1
            what = f"processes {all_} stand still" if many else f"process {all_} stands still"
            effect = (
                f"wakes {'them' if many else 'it'}, kill -9 {all_} ends {'them' if many else 'it'}"
            )
            whole = len(stopped) == len(workers) or len(asleep) == len(parents)
            return [
                Wait(
                    kind="stopped",
                    what=what,
                    command=f"kill -CONT {all_}",
                    effect=effect,
                    stops=whole,
                )
            ]
        now = time.monotonic()
        if (silent_s := min(note.still_s(now) for note in workers)) > SLOW_S:
            what = f"no worker process has moved for {silent_s:.0f} s"
            effect = f"one that stands still for {self._settings.stall_s:g} s is ended by itself"
            return [Wait(kind="stopped", what=what, effect=effect)]
        return []

    def _of_indexes(self, still_s: float | None) -> list[Wait]:
        """That open tasks exist which no worker finds; every task is looked at for this, so not at
        every look."""
        if (still_s is not None and still_s < SLOW_S) or time.monotonic() < self._next_count:
            return self._damage
        faults = self._lpm.ledger.index_faults()
        self._next_count = time.monotonic() + COUNT_S
        what = (
            f"{faults[0]}, so workers do not find them all; stop, then {mend()}" if faults else ""
        )
        self._damage = [Wait(kind="damage", what=what)] if what else []
        return self._damage

    def _of_tasks(
        self, job: Job | None, books: Books, pages: Sequence["_Page"], idle: bool
    ) -> list[Wait]:
        """What the tasks wait for whose requests are not on their way: Redis, their domains, their
        next attempt, an operator."""
        if self._silent:
            return [replace(self._silent, tasks=books.pending, stops=idle)]
        now = time.time()
        slow = {domain: about for domain, about in self._known.items() if _holds(about, now)}
        due = self._lpm.ledger.due_domains(job) if slow or idle else {}
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
        """What all workers share of each domain; or that Redis, which would know, does not
        answer."""
        from crawler.process import read_stack

        if time.monotonic() - self._asked < LOOK_S and self._asked:
            return
        self._known, self._silent = {}, None
        stack = read_stack(self._lpm.folder)
        if stack.container:
            return  # its Redis answers only to the containers
        try:
            with contextlib.closing(_shared(self._settings)) as asked:
                self._known = {
                    each.domain.partition("@")[0]: each for each in asked.domains(time.time())
                }
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
        """What keeps a domain shut, or so slow that it looks like that; `turn` is when the first
        page may go that waits for its permit there."""
        name = printable(domain)
        held = f"{counted(tasks, 'task')} wait{'s' if tasks == 1 else ''}"
        reset, sooner = f"{program()} domains reset {name}", "opens it sooner"
        because = f" because {printable(about.last_block)}" if about.last_block else ""
        until: float | None = None
        if about.not_before is not None and about.because:
            kind, what, until = "robots", printable(about.because), about.not_before
            sooner = "asks for it again at once"
        elif about.not_before is not None:
            kind, what, until = "retry_after", "its server said Retry-After", about.not_before
        elif about.state == "OPEN":
            kind, what, until = "circuit", f"circuit open{because}", about.open_until
        elif about.state == "HALF_OPEN":
            kind, what, until = (
                "circuit",
                f"circuit half open{because}, one probe at a time",
                self._latest(domain),
            )
        elif turn is None and _is_booked(about, time.time()):
            kind, what = "rate", f"its limit is {limits_in_words(about)}, what is booked goes first"
            reset, sooner = "", "it goes on by itself"
        elif about.crawl_delay_s > about.interval_s * about.slowed:
            kind, what = (
                "robots",
                f"its robots.txt asks for {about.crawl_delay_s:g} s between pages",
            )
            sooner = "goes on without asking robots.txt"
            reset, sooner = self._again(job, domain, "--ignore-robots", sooner)
        else:
            slowed = f", slowed down {about.slowed:.2g} times" if about.slowed > 1.005 else ""
            kind, what = "rate", f"its limit is {limits_in_words(about)}{slowed}"
            sooner = "goes faster, where you may"
            reset, sooner = self._again(job, domain, "--rate 10/s", sooner)
        return Wait(
            kind=kind,
            what=f"{name}: {what}, {held}",
            until=until or turn or about.next_at,
            command=reset,
            effect=sooner,
            tasks=tasks,
            domain=domain,
            stops=stops,
        )

    def _again(self, job: Job | None, domain: str, option: str, effect: str) -> tuple[str, str]:
        """The command that continues a job, or the first that has tasks at a domain, with another
        option, and what that does; where no file is known to continue, a look at the limits."""
        open_ = [each for each in self._lpm.ledger.jobs() if each.status is JobStatus.OPEN]
        for each in [job] if job else open_[:MAX_JOBS]:
            if each.source_file and (job or domain in self._lpm.ledger.due_domains(each)):
                return f"{program()} bulk import {shlex.quote(each.source_file)} {option}", effect
        return f"{program()} domains", "shows the limits"

    def _latest(self, domain: str) -> float | None:
        """When the page that is in flight at a domain is given up, at the latest."""
        there = [page for page in self._pages(None) if page.domain == domain and not page.waits]
        return there[0].since + self._timeout_s(there[0].url) if there else None

    def limits(self, job: Job) -> Limits:
        """The limits on a job's domains and of the workers, for a forecast."""
        rule = partial(self._load_sites().rule, rate=job.options.rate)
        return limits_of(self._settings, self._lpm.owners, rule)

    def _timeout_s(self, url: str) -> float:
        return self._load_sites().of(url).timeout_s

    def _load_sites(self) -> "Sites":
        from crawler.sites import config as sites

        self._sites = self._sites or sites.load(self._settings.config_dir, self._settings.rate)
        return self._sites

    def _of_retries(self, job: Job | None, stops: bool) -> list[Wait]:
        """That tasks wait for their next attempt."""
        groups = self._lpm.ledger.waits(job)
        if self._lpm.ledger.waits_for_siblings(job):
            groups = [group for group in groups if group[2:] != _UNTRIED]
        if not groups:
            return []
        count, reason = sum(group[0] for group in groups), groups[0][2]
        because = f" ({printable(reason)})" if reason else ""
        what = f"{_wait_for(count)} the next attempt{because}"
        first = min(group[1] for group in groups)
        wait = Wait(kind="retry", what=what, until=first, effect=_BY_ITSELF, tasks=count)
        return [replace(wait, stops=stops)]

    def _of_siblings(self, job: Job | None) -> list[Wait]:
        """That tasks wait for the page of another row with the same URL."""
        if not self._lpm.ledger.waits_for_siblings(job):
            return []
        count = sum(group[0] for group in self._lpm.ledger.waits(job) if group[2:] == _UNTRIED)
        what = f"{_wait_for(count)} a page that is fetched for another row of the same URL"
        return [Wait(kind="page", what=what, effect=_BY_ITSELF, tasks=count, stops=False)]

    def _of_holds(self, job: Job | None, stops: bool) -> list[Wait]:
        """That tasks are of paused jobs; of the job in question it is known already."""
        if job is not None:
            return []
        if stops and (held := self._all_held(job)):
            return held
        paused = [each for each in self._lpm.ledger.jobs() if each.state == "paused"]
        return [
            Wait(kind="paused", what=f"{printable(each.name)} is paused", command=_resume(each), effect="goes on",
                 stops=False)
            for each in paused
        ]  # fmt: skip

    def _all_held(self, job: Job | None) -> list[Wait]:
        """That all tasks are of paused jobs."""
        count = self._lpm.ledger.held(job)
        if not count or self._lpm.ledger.waits(job) or self._lpm.ledger.due_domains(job):
            return []
        what = f"all that is open is paused: {counted(count, 'task')} ({program()} job list)"
        paused = [each for each in self._lpm.ledger.jobs() if each.state == "paused"]
        command = _resume(paused[0]) if len(paused) == 1 else f"{program()} job resume NAME"
        return [Wait(kind="paused", what=what, command=command, effect="goes on", tasks=count)]

    def _pages(self, job: Job | None) -> list["_Page"]:
        """The pages that are being worked on, those first whose request went out first; what Redis
        knows has been asked for."""
        now, clock = time.time(), time.monotonic()
        requests: dict[int, float] = {}
        for note in owners.living(self._lpm.owners):
            requests |= note.requests
        pages = []
        for task, url, domain, leased_at in self._lpm.ledger.pages_in_flight(job):
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
        """What a page waits for that is being worked on: its permit, or its server."""
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
        """For which page one waits, or for whose."""
        first = pages[0]
        if (time.time() - first.since if still_s is None else still_s) < SLOW_S:
            return []
        stops = not books.pending
        if len(pages) <= FEW:
            return [self._for_page(first, len(pages), stops)]
        domain = printable(first.domain)
        count = sum(page.domain == first.domain for page in pages)
        new = books.open == books.accepted and first.domain not in self._lpm.ledger.paces()
        silent = f"no page of {domain} has come yet: " if new else f"waiting for {domain}: "
        since = times.clock(first.since, self._tz)
        what = f"{silent}{counted(count, 'page')} in flight, the first since {since}"
        wait = self._for_page(first, count, stops)
        return [replace(wait, what=what, domain=first.domain)]

    def _for_page(self, page: "_Page", count: int, stops: bool) -> Wait:
        """A page whose request went out, and how many others did."""
        others = f" (and {counted(count - 1, 'other page')})" if count > 1 else ""
        since = times.clock(page.since, self._tz)
        return Wait(
            kind="page",
            what=f"waiting for {shortened(printable(page.url))} since {since}{others}",
            until=page.since + self._timeout_s(page.url),
            effect="it is given up then, at the latest",
            tasks=count,
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
    """When that may go, where it is known."""


class Standstill:
    """Tells over time what a job, or with none all, waits for.

    With `still_s` only why it does not move, and not before it has stood still for so long.
    """

    def __init__(self, waits: Waits, job: Job | None, still_s: float | None = None) -> None:
        self._waits, self._job = waits, job
        self._at_once = still_s is None
        self._still_s, self._look_s = still_s or STILL_S, still_s or LOOK_S
        self._done = -1
        self._began = time.monotonic()
        self._since = self._next_look = 0.0
        self._found: list[Wait] = []

    def reasons(self, books: Books) -> list[Wait]:
        """What tasks wait for, the weightiest first."""
        now = time.monotonic()
        if books.accepted - books.open != self._done:
            self._done, self._since = books.accepted - books.open, now
        still_s = now - self._since
        is_still = still_s >= self._still_s
        if not self._at_once and not is_still:
            self._found, self._next_look = [], 0.0
        elif now - self._began < self._still_s:
            self._found = self._waits.plain(self._job) if books.open else []
        elif now >= self._next_look:
            found = self._waits.of(self._job, books, still_s)
            passing = ("retry", "page")  # while others go on, these are nothing to speak of
            self._found = [wait for wait in found if is_still or wait.kind not in passing]
            took_s = time.monotonic() - now
            self._next_look = now + max(self._look_s, COST * took_s)
        return self._found

    def reason(self, books: Books) -> str:
        """The weightiest as a line, with how many more there are."""
        found = self.reasons(books)
        if not found:
            return ""
        line = self._waits.line(found[0])
        if len(found) == 1:
            return line
        what, semicolon, remedy = line.partition(";")
        return f"{what} (and {len(found) - 1} more: {program()} status){semicolon}{remedy}"


def in_words(wait: Wait, now: float, tz: tzinfo | None) -> str:
    """A wait as one line: what, until when, and what changes it."""
    until = (
        f" until {times.until(wait.until, now, tz)}"
        if wait.until is not None and wait.until > now
        else ""
    )
    remedy = " ".join(filter(None, (wait.command, wait.effect)))
    return f"{wait.what}{until}" + (f"; {remedy}" if remedy else "")


def endless_wait(waits: Sequence[Wait]) -> Wait | None:
    """What stops all for a time that nobody can tell: then there is no forecast."""
    return next(
        (
            wait
            for wait in waits
            if wait.stops and wait.until is None and wait.kind not in ("rate", "robots")
        ),
        None,
    )


def no_room(folder: Path, settings: Settings) -> str | None:
    """What to say, and what helps, where the disk has too little room for anything to be
    fetched."""
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


def standing_still(notes: Sequence[owners.Note], stall_s: float) -> list[owners.Note]:
    """Those of the living who do nothing: stopped, or silent for longer than their own watchdog
    would allow."""
    now = time.monotonic()
    return [
        note
        for note in notes
        if note.still_s(now) > stall_s or (note.still_s(now) > STILL_S and _is_stopped(note.pid))
    ]


@contextlib.contextmanager
def permit(settings: Settings) -> Iterator["RedisRateLimiter"]:
    """The permit that the fleet shares, to be looked at; where Redis does not answer, the error
    says what helps."""
    from crawler.process import read_stack

    try:
        with contextlib.closing(_shared(settings)) as shared:
            yield shared
    except ServiceError as error:
        away = _redis_is_away(str(error), read_stack(settings.data_dir), settings)
        raise ServiceError(
            f"{error}; {' '.join(filter(None, (away.command, away.effect)))}"
        ) from None


def _shared(settings: Settings) -> "RedisRateLimiter":
    from crawler.process import redis_address
    from crawler.resilience.redis_rate_limiter import RedisRateLimiter

    return RedisRateLimiter(
        redis_address(settings),
        settings.redis_rate_limiter_db,
        "command",
        settings.circuit_breaker_fail_max,
    )


def limits_in_words(known: "Domain") -> str:
    """The limits of a domain in words."""
    parts = [_pace(known.interval_s)] if known.interval_s else []
    parts += [f"{known.at_a_time} at a time"] if known.at_a_time else []
    parts += [f"Crawl-delay {known.crawl_delay_s:g} s"] if known.crawl_delay_s else []
    return ", ".join(parts) or "none"


def _pace(interval_s: float) -> str:
    for unit, seconds in (("s", 1), ("m", 60), ("h", 3600)):
        if interval_s <= seconds:
            return f"{seconds / interval_s:.4g}/{unit}"
    return f"one in {times.duration(interval_s)}"


def _holds(about: "Domain", now: float) -> bool:
    """Whether a domain lets nothing go, or so seldom that it looks like that."""
    shut = about.state != "CLOSED" or about.not_before is not None
    return shut or _spacing_s(about) > STILL_S or _is_booked(about, now)


def _is_booked(about: "Domain", now: float) -> bool:
    """Whether requests are booked there further ahead than its present limits would do."""
    ahead_s = about.next_at - now if about.next_at is not None else 0.0
    return ahead_s > 3 * _spacing_s(about) + STILL_S


def _spacing_s(about: "Domain") -> float:
    return max(about.interval_s * about.slowed, about.crawl_delay_s)


def _redis_is_away(error: str, stack: "Stack", settings: Settings) -> Wait:
    from crawler.process import SILENT

    command = ""
    if stack.up and stack.redis and (asleep := _stopped_supervisor(stack)):
        command, effect = asleep.command, "wakes the supervisor, which starts it again"
    elif stack.up and stack.redis:
        limit_s = SILENT * settings.stall_s
        effect = f"the supervisor starts it again by itself, after {limit_s:g} s of silence"
    elif settings.redis_url or stack.up:
        effect = "it is the one of REDIS_URL, which this program does not start"
    else:
        command, effect = f"{program()} up", "starts one"
    return Wait(kind="redis", what=error, command=command, effect=f"{effect}; nothing is lost")


def _stopped_supervisor(stack: "Stack") -> Wait | None:
    """That a supervisor was stopped, so that it starts nothing again."""
    mark = stack.supervisor
    if mark is None or not mark.is_stopped():
        return None
    what = f"the supervisor, process {mark.pid}, is stopped and starts nothing again"
    return Wait(kind="stopped", what=what, command=f"kill -CONT {mark.pid}", effect="wakes it")


def _wait_for(count: int) -> str:
    return f"{counted(count, 'task')} {'waits' if count == 1 else 'wait'} for"


def _resume(job: Job) -> str:
    return f"{program()} job resume {shlex.quote(printable(job.name))}"


def _is_stopped(pid: int) -> bool:
    import psutil

    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False
