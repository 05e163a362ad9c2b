"""What keeps tasks from going on, until when, and the command that changes it: what every command
and the log say."""

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
from crawler.db.jobs import mend
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
"""Pages on their way are waited for a little longer."""
LOOK_S, COUNT_S = 2.0, 60.0
"""How often what Redis knows is asked for, and how often all tasks are counted to check an
index."""
COST = 10.0
"""After a look, so many times as long as it took pass until the next."""
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
        idle = not books.processing
        if idle and not any(wait.stops for wait in found):
            found += self._of_indexes(still_s)
        found += self._of_tasks(job, books)
        if not idle and not any(wait.stops for wait in found):
            found += self._in_flight(job, books, still_s)
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
        if self._lpm.jobs.named(job.name).hold != "paused":
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
        if stack.up:
            return [
                Wait(
                    kind="worker",
                    what="no worker runs",
                    effect="the supervisor starts one by itself",
                )
            ]
        if held := self._all_held(None):
            return held
        nothing = f"nothing works on {counted(open_, 'open task')}: no worker runs"
        effect = f"goes on, or {program()} up does in the background"
        return [
            Wait(
                kind="worker",
                what=nothing,
                command=f"{program()} resume",
                effect=effect,
                tasks=open_,
            )
        ]

    def _of_clock(self) -> list[Wait]:
        moved = self._lpm.tasks.clock_step(time.time(), times.uptime(), times.boot_id())
        if not moved:
            return []
        what = f"the clock was set by {moved:+.0f} s: waits are about to be moved by as much"
        return [Wait(kind="clock", what=what, effect="a worker does it by itself", stops=False)]

    def _of_processes(self, workers: Sequence[owners.Note]) -> list[Wait]:
        """Workers that were stopped or do nothing; where some still work, they stop nothing."""
        stopped = standing_still(workers, self._settings.stall_s)
        if stopped:
            pids = sorted(note.pid for note in stopped)
            all_, many = " ".join(map(str, pids)), len(pids) > 1
            what = f"processes {all_} stand still" if many else f"process {all_} stands still"
            effect = (
                f"wakes {'them' if many else 'it'}, kill -9 {all_} ends {'them' if many else 'it'}"
            )
            whole = len(stopped) == len(workers)
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
        faults = self._lpm.jobs.index_faults()
        self._next_count = time.monotonic() + COUNT_S
        what = (
            f"{faults[0]}, so workers do not find them all; stop, then {mend()}" if faults else ""
        )
        self._damage = [Wait(kind="damage", what=what)] if what else []
        return self._damage

    def _of_tasks(self, job: Job | None, books: Books) -> list[Wait]:
        """What the tasks wait for that are not in flight: Redis, their domains, their next attempt,
        an operator."""
        idle = not books.processing
        self._ask_redis()
        if self._silent:
            return [replace(self._silent, tasks=books.pending, stops=idle)]
        slow = {domain: about for domain, about in self._known.items() if _holds(about)}
        due = self._lpm.counts.due_by_domain(job) if slow or idle else {}
        shut = {domain: about for domain, about in slow.items() if domain in due}
        stops = idle and len(shut) == len(due)
        waits = [
            self._at_domain(job, domain, about, due[domain], stops)
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
        self, job: Job | None, domain: str, about: "Domain", tasks: int, stops: bool
    ) -> Wait:
        """What keeps a domain shut, or so slow that it looks like that."""
        name = printable(domain)
        held = f"{counted(tasks, 'task')} wait{'s' if tasks == 1 else ''}"
        reset, sooner = f"{program()} domains reset {name}", "opens it sooner"
        because = f" because {printable(about.last_block)}" if about.last_block else ""
        until: float | None = None
        if about.not_before is not None:
            kind, what, until = "retry_after", "its server said Retry-After", about.not_before
        elif about.state == "OPEN":
            kind, what, until = "circuit", f"circuit open{because}", about.open_until
        elif about.state == "HALF_OPEN":
            kind, what, until = (
                "circuit",
                f"circuit half open{because}, one probe at a time",
                self._latest(domain),
            )
        elif about.crawl_delay_s > about.interval_s * about.slowed:
            kind, what = (
                "robots",
                f"its robots.txt asks for {about.crawl_delay_s:g} s between pages",
            )
            reset, sooner = _again(job, "--ignore-robots"), "goes on without asking robots.txt"
        else:
            slowed = f", slowed down {about.slowed:.2g} times" if about.slowed > 1.005 else ""
            kind, what = "rate", f"its limit is {limits_in_words(about)}{slowed}"
            reset, sooner = _again(job, "--rate 10/s"), "goes faster, where you may"
        return Wait(
            kind=kind,
            what=f"{name}: {what}, {held}",
            until=until or about.next_at,
            command=reset,
            effect=sooner,
            tasks=tasks,
            domain=domain,
            stops=stops,
        )

    def _latest(self, domain: str) -> float | None:
        """When the page that is in flight at a domain is given up, at the latest."""
        rows = self._lpm.counts.oldest_in_flight(1, domain=domain)
        return rows[0][1] + self._timeout_s(rows[0][0]) if rows else None

    def _timeout_s(self, url: str) -> float:
        from crawler.sites import config as sites

        self._sites = self._sites or sites.load(self._settings.config_dir, self._settings.rate)
        return self._sites.of(url).timeout_s

    def _of_retries(self, job: Job | None, stops: bool) -> list[Wait]:
        """That tasks wait for their next attempt."""
        count, first, reason = self._lpm.counts.waiting(job)
        if not count:
            return []
        because = f" ({printable(reason)})" if reason else ""
        what = f"waiting to try {counted(count, 'task')} again{because}, the first not"
        return [
            Wait(
                kind="retry",
                what=what,
                until=first,
                effect="it goes on by itself",
                tasks=count,
                stops=stops,
            )
        ]

    def _of_holds(self, job: Job | None, stops: bool) -> list[Wait]:
        """That tasks are of paused jobs; of the job in question it is known already."""
        if job is not None:
            return []
        if stops and (held := self._all_held(job)):
            return held
        paused = [each for each in self._lpm.jobs.all() if each.state == "paused"]
        return [
            Wait(kind="paused", what=f"{printable(each.name)} is paused", command=_resume(each), effect="goes on",
                 stops=False)
            for each in paused
        ]  # fmt: skip

    def _all_held(self, job: Job | None) -> list[Wait]:
        """That all tasks are of paused jobs."""
        count = self._lpm.counts.held(job)
        if not count or self._lpm.counts.waiting(job)[0] or self._lpm.counts.due_by_domain(job):
            return []
        what = f"all that is open is paused: {counted(count, 'task')} ({program()} job list)"
        paused = [each for each in self._lpm.jobs.all() if each.state == "paused"]
        command = _resume(paused[0]) if len(paused) == 1 else f"{program()} job resume NAME"
        return [Wait(kind="paused", what=what, command=command, effect="goes on", tasks=count)]

    def _in_flight(self, job: Job | None, books: Books, still_s: float | None) -> list[Wait]:
        """For which page one waits, or for whose."""
        rows = self._lpm.counts.oldest_in_flight(FEW + 1, job)
        if not rows:
            return []
        url, leased_at = rows[0]
        if (time.time() - leased_at if still_s is None else still_s) < SLOW_S:
            return []
        since = times.clock(leased_at, self._tz)
        until = leased_at + self._timeout_s(url)
        effect = "it is given up then, at the latest"
        if len(rows) <= FEW:
            others = f" (and {counted(len(rows) - 1, 'other page')})" if len(rows) > 1 else ""
            what = f"waiting for {shortened(printable(url))} since {since}{others}"
            return [
                Wait(
                    kind="page",
                    what=what,
                    until=until,
                    effect=effect,
                    tasks=len(rows),
                    stops=not books.pending,
                )
            ]
        domain, count = next(iter(self._lpm.counts.in_flight(job).items()))
        new = books.open == books.accepted and domain not in self._lpm.counts.paces()
        silent = (
            f"{printable(domain)} has not answered yet: "
            if new
            else f"waiting for {printable(domain)}: "
        )
        what = f"{silent}{counted(count, 'page')} in flight, the first since {since}"
        return [
            Wait(
                kind="page",
                what=what,
                until=until,
                effect=effect,
                tasks=count,
                domain=domain,
                stops=not books.pending,
            )
        ]


class Standstill:
    """Tells over time why a job, or with none all, does not move; empty while it does.

    With `still_s` nothing is said before it has stood still for so long, and nothing is looked at
    more often.
    """

    def __init__(self, waits: Waits, job: Job | None, still_s: float | None = None) -> None:
        self._waits, self._job = waits, job
        self._at_once = still_s is None
        self._still_s, self._look_s = still_s or STILL_S, still_s or LOOK_S
        self._done = -1
        self._since = self._next_look = 0.0
        self._found: list[Wait] = []

    def reasons(self, books: Books) -> list[Wait]:
        """What keeps the books from moving, the weightiest first."""
        now = time.monotonic()
        if books.accepted - books.open != self._done:
            self._done, self._since = books.accepted - books.open, now
            self._next_look = 0.0
        if now - self._since < self._still_s:
            self._found = self._waits.plain(self._job) if books.open and self._at_once else []
        elif now >= self._next_look:
            self._found = self._waits.of(self._job, books, now - self._since)
            took_s = time.monotonic() - now
            self._next_look = now + max(self._look_s, COST * took_s)
        return self._found

    def reason(self, books: Books) -> str:
        """The weightiest as a line."""
        found = self.reasons(books)
        return self._waits.line(found[0]) if found else ""


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

    if low := low_on_disk(folder, settings.min_free):
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


def _holds(about: "Domain") -> bool:
    """Whether a domain lets nothing go, or so seldom that it looks like that."""
    shut = about.state != "CLOSED" or about.not_before is not None
    return shut or max(about.interval_s * about.slowed, about.crawl_delay_s) > STILL_S


def _redis_is_away(error: str, stack: "Stack", settings: Settings) -> Wait:
    from crawler.process import SILENT

    command = ""
    if settings.redis_url:
        effect = "it is the one of REDIS_URL"
    elif stack.up:
        effect = f"the supervisor starts it again by itself, within {SILENT * settings.stall_s:g} s"
    else:
        command, effect = f"{program()} up", "starts one"
    return Wait(kind="redis", what=error, command=command, effect=f"{effect}; nothing is lost")


def _again(job: Job | None, options: str) -> str:
    """How a job is continued in another way."""
    return f"{program()} bulk import {shlex.quote((job and job.source_file) or 'FILE')} {options}"


def _resume(job: Job) -> str:
    return f"{program()} job resume {shlex.quote(printable(job.name))}"


def _is_stopped(pid: int) -> bool:
    import psutil

    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False
