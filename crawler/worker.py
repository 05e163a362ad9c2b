"""What a worker process owns: its loop, client, writer and leases."""

import asyncio
import contextlib
import faulthandler
import gc
import logging
import os
import socket
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache, partial
from itertools import chain
from typing import Any, TypeVar

import msgspec
import uvloop

from crawler import times
from crawler.config import Settings, failpoint
from crawler.db.owners import Owner
from crawler.db.sql import HELD
from crawler.db.tasks import Due, Place, Suspect
from crawler.errors import GaveWay, NotNow, StoreError, shortage_of
from crawler.fetch.budget import Budget, Memory, Turns
from crawler.fetch.http import Client
from crawler.fetch.robots import Robots
from crawler.fetch.session import Sessions
from crawler.lpm import LocalPersistenceManager, low_on_disk
from crawler.models import Outcome, Rule, Task, TaskStatus
from crawler.resilience.memory import MemoryPermit
from crawler.resilience.permit import LEASE_S, Ask, Permit, Report
from crawler.resilience.permit_client import PermitClient, Reservation
from crawler.scraping.pipeline import Attempt, FetchOptions
from crawler.scraping.request_gate import RequestGate
from crawler.sites import config as sites
from crawler.writer import SHORT_S, Writer, given_back, internal_failure

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_UNSAVED = 256
"""With so many outcomes waiting for the disk nothing more is claimed."""
CPU_SHARE = 0.5
"""The part of CRAWLER_STALL_S that the work on one page may take: our own loops end before the
process is ended."""
FEW_PAGES = 48
"""So many pages are in flight at first; more while servers are what is waited for, up to
CRAWLER_PAGES."""
HANDFUL = 24
"""So many pages are claimed at a time, where there are so many."""
BEAT_S, LATE_S = 0.05, 0.03
"""How often the loop's delay is looked at, and the delay by which it has enough to do."""
REPORT_S = 0.02
"""How long the ends of requests are gathered before others hear of them."""
POLL_S, CLOSED_POLL_S = 0.03, 0.25
"""How often to look again for more urgent work, and how often at least while all domains with work
are closed."""
OPTIONS_S = 5.0
SLOW_S, SLOW_TIMES = 2.0, 4
"""A page that takes longer than this makes room for another, up to so many times the pages of a
process: servers that hang must not keep it from those that answer."""
ROOM_S = 1.0
"""How often to look how full the disk is."""
SUSPECT_WAIT_S = 30.0
"""A suspect that nobody had a free moment for in so long is waited for: nothing else is claimed
until it can go."""
SHORTAGE_S = 1.0
"""How long nothing is claimed after this process lacked memory, descriptors or the like."""
CALM_S = 5.0
"""How long nothing is lacking before the log says so: what comes and goes is said once."""
GIVE_WAY_MOST_S, MAX_GAVE_WAY = 300.0, 10_000
"""How long a page waits at most that gave way; each time doubles it. Of so many pages the times are
remembered."""
STOP_GRACE_S = 3.0
"""How long pages in flight may go on when a stop is asked for."""

GARBAGE = (50_000, 20, 100)
"""When to look for garbage: a page's elements are thousands of objects, and none is garbage. By
Python's own thresholds the search took a tenth of all time."""

Watcher = Callable[[Task, Outcome | None], None]
"""Told of every page: once when it begins, and with its outcome when that is committed."""


Claimed = tuple[Task, Reservation | None]


class Worker:
    """The loop outlives the messages: a page in flight stays with it when its time slice is
    over."""

    def __init__(
        self,
        settings: Settings,
        kind: str = "worker",
        watch: Watcher = lambda task, outcome: None,
        permit: Callable[[str], Permit] | None = None,
        given: FetchOptions | None = None,
    ) -> None:
        gc.freeze()  # what is there now stays: no collection need look at it again
        gc.set_threshold(*GARBAGE)
        self._settings = settings
        self._watch = watch
        self._sites = sites.load(settings.config_dir, settings.rate)
        self._lpm = LocalPersistenceManager(settings.data_dir, settings.raw)
        self.ledger_id = self._lpm.store.id
        self._owner = Owner(
            self._lpm.owners,
            kind,
            slots=2 * SLOW_TIMES * settings.pages + MAX_UNSAVED,
            min_free=settings.min_free,
        )
        self._name = f"{kind}:{os.getpid()}"
        alone = MemoryPermit(self._owner.id, settings.circuit_breaker_fail_max, fresh=False)
        self._permits = PermitClient(permit(self._owner.id) if permit else alone, self._shared_name)
        self._robots = Robots(self._lpm.run / "robots")
        self._sessions = Sessions(self._lpm.folder / "sessions")
        self._given = given or FetchOptions()
        self._alone = given is not None
        self._resumes = self._rearm_at = 0.0
        self._jobs: dict[int | None, tuple[FetchOptions, float]] = {}
        self._claims = ThreadPoolExecutor(1, "claims")
        self._memory, self._turns = Memory(settings.max_body), Turns()
        self._budgets: dict[tuple[int, int], Budget] = {}
        """Of pages that are not stored yet, by task and fence."""
        self._gave_way: OrderedDict[int, int] = OrderedDict()  # how often, by task
        self._pages: set[asyncio.Task[None]] = set()
        self._calls: set[asyncio.Task[Any]] = set()
        self._fetching: dict[int, float] = {}
        self._slots: dict[int, int] = {}
        self._unsaved = 0
        self._ended: dict[int, asyncio.Event] = {}
        self._held: set[tuple[int, int]] = set()
        """Task and fence of every lease that this process knows of."""
        self._few = min(FEW_PAGES, settings.pages)
        self._most = self._few
        self._was_full = self._was_short = self._reporting = self._tries_suspect = False
        self._last_domain = self._claim_trouble = ""
        self._shortage = self._told = ""
        self._short_until = self._short_at = self._suspect_not_before = 0.0
        self._pause_s = POLL_S
        self._suspect: Suspect | None = None
        self._complained = -60.0
        self._room_seen = -ROOM_S
        self._no_room: str | None = None
        self.stopping = False
        self._trace = sys.stderr if kind == "cli" else self._owner.trace
        self._loop = uvloop.new_event_loop()
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._live(),), name="loop"
        )
        self._thread.daemon = True
        self._writer = Writer(
            lambda: LocalPersistenceManager(settings.data_dir, settings.raw),
            self._hear_stored,
            self._complain,
            mark=self._owner.writes,
        )
        self._thread.start()
        self._ready.result()

    # What callers in other threads use

    @property
    def busy(self) -> bool:
        """Whether a message is being worked on."""
        return bool(self._calls)

    def run_slice(self, message_id: str, queues: Sequence[str]) -> int:
        """Work for one time slice on what is due in these queues, the most urgent first; returns
        how much was begun.

        What the message still has then is the maintainer's, who publishes it again at once.
        """
        self._owner.holds(message_id)
        try:
            return self._call(self._slice(queues, message_id))
        finally:
            self._owner.holds("")

    def scrape(self, task: int, give_up_s: float, message_id: str = "") -> TaskStatus:
        """Take one task through all its attempts now; returns where it stands when that is done or
        time is up."""
        self._owner.holds(message_id)
        try:
            return self._call(self._insist(task, time.monotonic() + give_up_s))
        finally:
            self._owner.holds("")

    def forget(self, domain: str, owner: str) -> None:
        """A process has died: what it had in flight at a domain has ended."""
        with contextlib.suppress(RuntimeError):  # stopping: then the lease does it
            self._claims.submit(self._permits.forget, domain, owner)

    def watch_stop(self, descriptor: int) -> None:
        """Stop when the descriptor becomes readable."""

        def stop() -> None:
            self._loop.remove_reader(descriptor)
            self._finish.set()

        self._loop.call_soon_threadsafe(self._loop.add_reader, descriptor, stop)

    def stop(self) -> None:
        """Stop claiming, give pages in flight a moment, release the rest, and let go of all
        leases."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._finish.set)
            self._thread.join(STOP_GRACE_S + 5)

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        async def noted() -> T:
            call = asyncio.current_task()
            assert call is not None
            self._calls.add(call)
            try:
                return await coroutine
            finally:
                self._calls.discard(call)

        future = asyncio.run_coroutine_threadsafe(noted(), self._loop)
        # Not without a limit: a signal between Python's last look for one and such a wait would
        # never be heard.
        while not wait([future], 1).done:
            pass
        return future.result()

    # The loop's thread

    async def _live(self) -> None:
        self._finish = asyncio.Event()
        self._page_ended = asyncio.Event()
        async with Client.of(self._settings) as self._client:
            faulthandler.enable(
                self._trace
            )  # a crash inside C code leaves a trace, which a kill does not
            living = (self._keep_watchdog(), self._renew_permits(), self._adapt())
            beats = [asyncio.create_task(each) for each in living]
            self._ready.set_result(None)
            await self._finish.wait()
            self.stopping = True
            self._page_ended.set()
            if going := {*self._calls, *self._pages}:
                await asyncio.wait(going, timeout=STOP_GRACE_S)
            for task in (*self._calls, *self._pages):
                task.cancel()
            await asyncio.gather(*self._calls, *self._pages, return_exceptions=True)
            await asyncio.to_thread(self._writer.stop, 5)
            await asyncio.sleep(0)  # so that the last group is heard of
            await self._loop.run_in_executor(self._claims, self._permits.flush)
            for beat in beats:
                beat.cancel()
        self._claims.shutdown()
        faulthandler.cancel_dump_traceback_later()
        faulthandler.disable()
        self._lpm.close()
        self._owner.close()

    async def _keep_watchdog(self) -> None:
        while True:
            self._rearm_watchdog()
            await asyncio.sleep(self._settings.stall_s / 4)

    def _rearm_watchdog(self) -> None:
        """Have the process ended when this loop stands still, even where a parser holds it inside C
        code."""
        self._rearm_at = time.monotonic() + self._settings.stall_s / 4
        faulthandler.dump_traceback_later(self._settings.stall_s, exit=True, file=self._trace)

    async def _renew_permits(self) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 3)
            await self._loop.run_in_executor(self._claims, self._renew)

    def _renew(self) -> None:
        """Keep the permits, and give back what this process holds without knowing: else it would
        stay so for ever."""
        self._permits.renew()
        with contextlib.suppress(StoreError):  # then the next time
            if given := self._lpm.tasks.give_back(self._owner.id, self._held, time.time()):
                log.warning("%d tasks were leased and forgotten, and are pending again", given)

    async def _adapt(self) -> None:
        """Have as many pages in flight as keep the loop busy: with slow servers many, with quick
        ones few."""
        while True:
            due = time.monotonic() + BEAT_S
            await asyncio.sleep(BEAT_S)
            late_s = time.monotonic() - due
            self._owner.beat()
            if late_s > 2 * LATE_S:
                self._most = max(self._few, self._most * 7 // 8)
            elif late_s < LATE_S and self._was_full:
                self._most = min(self._settings.pages, self._most * 5 // 4)
            self._was_full = False
            self._memory.trim()
            self._tell()

    async def _slice(self, queues: Sequence[str], message_id: str) -> int:
        end, begun = time.monotonic() + self._settings.slice_s, 0
        while not self.stopping and time.monotonic() < end:
            self._page_ended.clear()
            claimed, more = await self._claim(queues)
            for task, reservation in claimed:
                self._begin(task, reservation)
            begun += len(claimed)
            if self._suspect and self._idle:
                begun += await self._try_alone(self._suspect)
            if not more:
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._page_ended.wait(), self._pause_s)
        with contextlib.suppress(
            StoreError
        ):  # else the maintainer misses the message, and does the same
            await self._loop.run_in_executor(self._claims, self._unpublish, message_id)
        return begun

    def _unpublish(self, message_id: str) -> None:
        self._lpm.tasks.unpublish([message_id])

    async def _claim(self, queues: Sequence[str]) -> tuple[list[Claimed], bool]:
        """Lease only what can begin now: nothing waits in a worker, so urgent work overtakes all
        but what began."""
        room = self._room()
        self._tries_suspect = self._tries_suspect and not self._idle
        full = room <= 0 or self._unsaved >= MAX_UNSAVED
        if (
            full
            or self._tries_suspect
            or self._writer.trouble
            or time.monotonic() < self._short_until
        ):
            return [], True
        try:
            if self._memory.is_full and not await self._relieve(queues):
                return [], True
            claimed = await self._loop.run_in_executor(self._claims, self._claim_now, queues, room)
        except StoreError as error:
            self._claim_trouble = str(error)
            self._complain(self._claim_trouble)
            await asyncio.sleep(1)
            return [], True
        except Exception as error:
            if not (lack := shortage_of(error)):
                raise
            self._note_shortage(lack)
            return [], True
        if self._claim_trouble:
            self._claim_trouble = ""
            log.warning("the store can be used again; work goes on")
        return claimed

    async def _relieve(self, queues: Sequence[str]) -> bool:
        """Where others wait, have a page give way whose server stalls; whether there is room for
        them then."""
        is_due = await self._loop.run_in_executor(self._claims, self._has_due, queues)
        return is_due and self._memory.relieve() and not self._memory.is_full

    def _has_due(self, queues: Sequence[str]) -> bool:
        return self._lpm.tasks.has_due(queues)

    @property
    def _is_short(self) -> bool:
        return self._memory.is_full or time.monotonic() < self._short_until

    def _note_shortage(self, lack: str) -> None:
        self._shortage, self._short_until = lack, time.monotonic() + SHORTAGE_S

    def _trouble(self) -> str:
        """What keeps this process from working now."""
        if self._memory.is_full:
            return f"the pages in flight take {self._memory.used:,} bytes of memory, as many as they may"
        short = self._shortage if time.monotonic() < self._short_until else ""
        return self._writer.trouble or self._claim_trouble or self._no_room or short

    def _tell(self) -> None:
        """Let others know what keeps this process from working; the log has it once when it begins
        and when it ends."""
        trouble = self._trouble()
        if trouble != self._told:
            self._owner.trouble(trouble)
        now = time.monotonic()
        if self._is_short:
            if not self._was_short:
                log.warning("nothing more is claimed for now: %s", trouble)
            self._was_short, self._short_at = True, now
        elif self._was_short and now - self._short_at > CALM_S:
            log.warning("what was lacking is there again; work goes on")
            self._was_short = False
        self._told = trouble

    def _room(self) -> int:
        """How many more pages may be in flight; the slow ones, which began first, make room for
        others."""
        recent, slow = time.monotonic() - SLOW_S, 0
        for began in self._fetching.values():
            if began > recent:
                break
            slow += 1
        room = min(
            self._most - len(self._fetching) + slow,
            SLOW_TIMES * self._settings.pages - len(self._pages),
        )
        self._was_full |= room <= 0
        return room

    def _make_room(self) -> None:
        """A page has ended: claims are made for a handful at a time, because each costs as much as
        a page."""
        if self._room() >= min(HANDFUL, self._most // 2):
            self._page_ended.set()

    def _complain(self, error: str) -> None:
        """One line a minute, whoever meets the trouble."""
        if time.monotonic() - self._complained > 60:
            self._complained = time.monotonic()
            log.warning("nothing more is claimed, and results wait in memory: %s", error)

    def _has_room(self) -> bool:
        """Whether enough of the disk is free; said once when it ends and once when it is back."""
        if time.monotonic() - self._room_seen >= ROOM_S:
            self._room_seen = time.monotonic()
            before, self._no_room = (
                self._no_room,
                low_on_disk(self._lpm.folder, self._settings.min_free),
            )
            if self._no_room and not before:
                log.warning("%s", self._no_room)
            elif before and not self._no_room:
                log.warning("there is room on the disk again; work goes on")
        return self._no_room is None

    def _claim_now(self, queues: Sequence[str], room: int) -> tuple[list[Claimed], bool]:
        now = time.time()
        if not self._has_room():
            return [], True
        self._lpm.tasks.follow_clock(now, times.uptime(), times.boot_id())
        self._lpm.tasks.wake(now)
        self._suspect = self._due_suspect(queues)
        if self._suspect and (self._idle or now - self._suspect.leased_at > SUSPECT_WAIT_S):
            return [], True
        if not self._lpm.tasks.has_due(queues):
            return [], self._suspect is not None
        wanted, more = self._wanted(queues, room)
        reserved = self._reserve_all(wanted, room)
        claimed: list[Claimed] = []
        try:
            places = [
                self._place(due, rule, reserved[due.domain] if rule.limited else None, room, queues)
                for due, rule in wanted
                if not rule.limited or reserved[due.domain]
            ]
            tasks, left = self._lpm.tasks.claim(self._owner.id, places, room, now)
            limited = {(due.domain, due.job_id): rule.limited for due, rule in wanted}
            for task in tasks:
                job = (task.domain, task.job_id)
                if job not in limited:
                    limited[job] = self._rule(*job).limited
                mine = reserved.get(task.domain) if limited[job] else None
                claimed.append((task, mine.pop(0) if mine else None))
        finally:
            for unused in reserved.values():
                if unused:
                    count = len(unused)
                    about = unused[0]
                    self._permits.report(
                        Report(domain=about.domain, rule=about.rule, slots=count, unused=count)
                    )
        self._held.update((task.id, task.fence) for task in tasks)
        failpoint("claimed")
        if tasks:
            self._last_domain = tasks[-1].domain
        # With all that is due at closed domains there is no need to look before the first of them
        # opens.
        opens_s = self._permits.opens_s()
        self._pause_s = (
            POLL_S if wanted or opens_s is None else min(max(opens_s, 0.005), CLOSED_POLL_S)
        )
        return claimed, more or left or len(places) < len(wanted)

    def _place(
        self,
        due: Due,
        rule: Rule,
        reserved: Sequence[Reservation] | None,
        room: int,
        queues: Sequence[str],
    ) -> Place:
        fits = partial(self._fits, due.domain, rule)
        if reserved is None:
            return Place(due, room, fits)
        # Bad pages stand together: one from elsewhere tells whether it is them or the domain,
        # before its circuit opens.
        probes = reserved[0].probe or self._permits.is_refusing(due.domain)
        return Place(due, len(reserved), fits, queues if probes else ())

    @property
    def _idle(self) -> bool:
        """Whether no page is in flight, nor waits for the disk."""
        return not self._pages and not self._unsaved

    def _due_suspect(self, queues: Sequence[str]) -> Suspect | None:
        if time.monotonic() < self._suspect_not_before:
            return None
        return self._lpm.tasks.suspect(queues)

    async def _try_alone(self, suspect: Suspect) -> bool:
        """Begin with a suspect, if its domain lets it go; nothing else is claimed until it has
        ended."""
        self._suspect = None
        try:
            claimed, wait_s = await self._take(suspect.id, suspect.domain, suspect.job_id)
        except StoreError as error:
            self._complain(str(error))
            claimed, wait_s = None, 1.0
        if claimed is None:
            self._suspect_not_before = time.monotonic() + wait_s
            return False
        self._tries_suspect = True
        self._begin(*claimed)
        return True

    def _wanted(self, queues: Sequence[str], room: int) -> tuple[list[tuple[Due, Rule]], bool]:
        """Where tasks are due that may go as far as this process knows, in their order; says too if
        others are due."""
        self._permits.flush()
        wanted: list[tuple[Due, Rule]] = []
        asked: set[str] = set()
        more = False
        for due in chain.from_iterable(
            self._lpm.tasks.due(name, self._last_domain) for name in queues
        ):
            if len(wanted) >= room:
                return wanted, True
            rule = self._rule(due.domain, due.job_id)
            if rule.limited and (due.domain in asked or self._permits.closed_s(due.domain)):
                more = True  # what opens meanwhile belongs to what is more urgent there
                continue
            if rule.limited:
                asked.add(due.domain)
            wanted.append((due, rule))
        return wanted, more

    def _reserve_all(
        self, wanted: Sequence[tuple[Due, Rule]], room: int
    ) -> dict[str, list[Reservation]]:
        asks = [
            Ask(
                domain=due.domain,
                rule=rule,
                wish=self._lpm.tasks.due_count(due, room),
                job=self._limit_of(due.job_id),
            )
            for due, rule in wanted
            if rule.limited
        ]
        return {ask.domain: got for ask, got in zip(asks, self._permits.reserve(asks), strict=True)}

    def _shared_name(self, domain: str) -> str:
        """What a domain's limits are shared under: a server that counts addresses counts each of
        ours by itself."""
        return domain if self._sites.limit_per(domain) == "domain" else f"{domain}@{_own_address()}"

    def _rule(self, domain: str, job_id: int | None) -> Rule:
        return self._sites.rule(domain, self._fetch_options(job_id).options.rate)

    def _limit_of(self, job_id: int | None) -> str:
        """Return the name of a job's own limit for all who share the permit; empty without a
        job."""
        if job_id is None:
            return ""
        return f"{self.ledger_id}/{job_id}"

    async def _rule_now(self, job_id: int | None, domain: str) -> Rule:
        """Return the limits as they are now: a job's may have been raised since its page began."""
        return await self._loop.run_in_executor(self._claims, self._rule_anew, domain, job_id)

    def _rule_anew(self, domain: str, job_id: int | None) -> Rule:
        how, _ = self._jobs[job_id]
        self._jobs[job_id] = (how, 0.0)
        with contextlib.suppress(StoreError):
            return self._rule(domain, job_id)
        return self._sites.rule(domain, how.options.rate)  # then the next time

    def _fits(self, domain: str, rule: Rule, job_id: int | None) -> bool:
        return self._rule(domain, job_id) == rule

    def _fetch_options(self, job_id: int | None) -> FetchOptions:
        """How a job's pages are asked for; looked up anew from time to time, because a job can be
        continued otherwise.

        Only the thread of claims looks it up; by then the others find it here.
        """
        known = self._jobs.get(job_id)
        if known and known[1] > time.monotonic():
            return known[0]
        how = self._given
        if job_id is not None:
            job = self._lpm.jobs.get(job_id)
            how = FetchOptions(job.options, self._sessions.of(job.name))
        self._jobs[job_id] = (how, time.monotonic() + OPTIONS_S)
        return how

    def _begin(self, task: Task, reservation: Reservation | None) -> None:
        page = self._loop.create_task(self._page(task, reservation))
        self._pages.add(page)
        page.add_done_callback(self._pages.discard)

    async def _reserve(self, job_id: int | None, ask: Ask) -> Reservation:
        ask = msgspec.structs.replace(ask, job=self._limit_of(job_id))
        [reserved] = await self._loop.run_in_executor(self._claims, self._permits.reserve, [ask])
        if not reserved:
            raise self._permits.refusal(ask.domain)
        return reserved[0]

    async def _page(self, task: Task, reservation: Reservation | None) -> None:
        outcome = Outcome(task=task, status=TaskStatus.PENDING, worker=self._name, charge=False)
        try:
            outcome = await self._attempt(outcome, reservation)
        except (
            Exception
        ) as error:  # whatever it is, no task may stay leased to a process that has forgotten it
            outcome = self._broken_off(outcome, error)
        if (
            outcome.status is TaskStatus.PENDING and self._alone
        ):  # what is sent along is known here only
            self._resumes = (
                time.monotonic() + outcome.not_before - time.time()
            )  # which may step meanwhile
            outcome = msgspec.structs.replace(outcome, not_before=HELD)
        self._unsaved += 1
        self._writer.put(outcome)

    def _broken_off(self, begun: Outcome, error: Exception) -> Outcome:
        """The end of an attempt in an error that is not its page's: a defect must cost one page,
        never the worker."""
        if isinstance(error, GaveWay):
            return given_back(begun, str(error), self._note_way(begun.task.id))
        if lack := shortage_of(error):
            self._note_shortage(lack)
            return given_back(begun, lack)
        log.exception(
            "an unforeseen error; the task has failed", extra={"task_id": begun.task.task_id}
        )
        return internal_failure(begun.task, self._name, error)

    def _note_way(self, task: int) -> float:
        """A page has given way to others: how long it waits now, longer each time."""
        times = self._gave_way[task] = self._gave_way.pop(task, 0) + 1
        while len(self._gave_way) > MAX_GAVE_WAY:
            self._gave_way.popitem(last=False)
        return min(SHORT_S * (1 << min(times - 1, 10)), GIVE_WAY_MOST_S)

    async def _attempt(self, begun: Outcome, reservation: Reservation | None) -> Outcome:
        task = begun.task

        def begin() -> None:
            self._slots[task.id] = self._owner.begin(task.id)
            self._watch(task, None)

        how = self._jobs[task.job_id][0]
        site = self._sites.of(task.url, task.platform)
        rule_of = partial(self._sites.rule, rate=how.options.rate)
        rule = rule_of(task.domain)
        budget = self._budgets[task.id, task.fence] = Budget(
            self._settings.stall_s * CPU_SHARE,
            self._memory,
            partial(self._mark, task.id),
            turns=self._turns,
        )
        budget.times = self._gave_way.get(task.id, 0)
        gate = RequestGate(
            task.domain,
            task.url,
            reservation,
            rule,
            rule_of,
            partial(self._reserve, task.job_id),
            self._permits,
            begin,
            lambda: budget.waited_s,
            rule_now=partial(self._rule_now, task.job_id),
            waits=partial(self._note_wait, task.id),
        )
        attempt = Attempt(
            task,
            site,
            how,
            fetch=self._client.fetch,
            gate=gate,
            robots=self._robots,
            budget=budget,
            worker=self._name,
        )
        self._fetching[task.id] = time.monotonic()
        outcome = begun
        try:
            outcome = await attempt.run()
        except asyncio.CancelledError:
            outcome = msgspec.structs.replace(begun, sent=tuple(gate.sent))
        except Exception as error:
            budget.release()  # nothing of the page is kept
            outcome = self._broken_off(
                msgspec.structs.replace(begun, sent=tuple(gate.sent), rule=rule), error
            )
        finally:
            self._fetching.pop(task.id, None)
            gate.close(outcome)
            self._make_room()
            if rule.limited:
                self._report_soon()
        return outcome

    def _note_wait(self, task: int, until: float | None) -> None:
        """Let others see until when a page waits for its permit; None: its request goes out."""
        if (slot := self._slots.get(task)) is not None:
            self._owner.note_request(slot, until)

    def _mark(self, task: int, working: bool) -> None:
        """The crash marker: if this process dies or stands still over a page's bytes, that page
        gets the strike."""
        self._owner.mark(task if working else 0)
        if (
            working and time.monotonic() > self._rearm_at
        ):  # many short works one after another are no standstill
            self._rearm_watchdog()

    def _report_soon(self) -> None:
        """Let others know what has ended at a domain: they may be waiting for it."""
        if not self._reporting and not self.stopping:
            self._reporting = True
            self._loop.call_later(REPORT_S, self._report)

    def _report(self) -> None:
        self._reporting = False
        if not self.stopping:
            self._claims.submit(self._permits.flush)

    def _hear_stored(self, outcomes: Sequence[Outcome]) -> None:
        """Called by the writer's thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody is left to hear of it
            self._loop.call_soon_threadsafe(self._stored, outcomes)

    def _stored(self, outcomes: Sequence[Outcome]) -> None:
        """These are committed: what was noted about their pages can go."""
        self._unsaved -= len(outcomes)
        for outcome in outcomes:
            self._held.discard((outcome.task.id, outcome.task.fence))
            if budget := self._budgets.pop((outcome.task.id, outcome.task.fence), None):
                budget.release()
            if not outcome.shortage:
                self._gave_way.pop(outcome.task.id, None)
            slot = self._slots.pop(outcome.task.id, None)
            if slot is not None:
                self._owner.end(slot)
                self._watch(outcome.task, outcome)
            if waiting := self._ended.get(outcome.task.id):
                waiting.set()
        self._make_room()

    async def _insist(self, task: int, end: float) -> TaskStatus:
        while True:
            status, not_before, domain, job_id = await self._loop.run_in_executor(
                self._claims, self._stand, task
            )
            # A held one is wanted all the same.
            due_s = (
                not_before - time.time() if not_before < HELD else self._resumes - time.monotonic()
            )
            if (
                status not in (TaskStatus.PENDING, TaskStatus.PROCESSING)
                or time.monotonic() > end
                or self.stopping
            ):
                return status
            if status is TaskStatus.PENDING and due_s <= 0:
                due_s = await self._try_one(task, domain, job_id)
                if not due_s:
                    continue
            await asyncio.sleep(min(max(due_s, POLL_S), 0.5))

    async def _try_one(self, task: int, domain: str, job_id: int | None) -> float:
        """Take one task through one attempt; where its domain does not let it, in how many seconds
        to ask again."""
        claimed, wait_s = await self._take(task, domain, job_id)
        if claimed is None:
            return wait_s
        ended = self._ended[task] = asyncio.Event()
        self._begin(*claimed)
        try:
            await ended.wait()
        finally:
            del self._ended[task]
        return 0.0

    async def _take(
        self, task: int, domain: str, job_id: int | None
    ) -> tuple[Claimed | None, float]:
        """Book a request for one task and lease it; else in how many seconds to ask again."""
        if self._is_short and not (self._memory.is_full and self._memory.relieve()):
            return None, POLL_S
        how = await self._loop.run_in_executor(self._claims, self._fetch_options, job_id)
        rule = self._sites.rule(domain, how.options.rate)
        reservation = None
        if rule.limited:
            try:
                reservation = await self._reserve(job_id, Ask(domain=domain, rule=rule))
            except NotNow as error:
                return None, error.wait_s
        claimed = None
        try:
            claimed = await self._loop.run_in_executor(self._claims, self._claim_one, task)
        finally:
            if claimed is None and reservation:
                self._permits.report(
                    Report(
                        domain=domain, rule=rule, unused=int(self._permits.is_latest(reservation))
                    )
                )
        return ((claimed, reservation), 0.0) if claimed else (None, POLL_S)

    def _stand(self, task: int) -> tuple[TaskStatus, float, str, int | None]:
        return self._lpm.tasks.state_of(task)

    def _claim_one(self, task: int) -> Task | None:
        claimed = self._lpm.tasks.claim_one(self._owner.id, task, time.time())
        if claimed:
            self._held.add((claimed.id, claimed.fence))
        return claimed


@cache
def _own_address() -> str:
    """The address that this machine goes out with, or at least its name."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only asks for the route
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()
