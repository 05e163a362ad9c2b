"""A worker process: an event loop that fetches pages, a thread that claims tasks, and a thread that
stores outcomes."""

import asyncio
import contextlib
import gc
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, TypeVar

import uvloop

from crawler.config import Settings
from crawler.db.owners import Owner
from crawler.db.store import HELD
from crawler.errors import StoreError, shortage_of
from crawler.fetch.browser import Browser
from crawler.fetch.budget import Memory
from crawler.fetch.http import Client
from crawler.fetch.robots import Robots
from crawler.lpm import LocalPersistenceManager
from crawler.models import BROWSER, QUEUES, Outcome, TaskStatus
from crawler.resilience.memory import MemoryPermit
from crawler.resilience.permit import LEASE_S, Permit
from crawler.scraping.attempt import FetchOptions
from crawler.sites import Sites
from crawler.sites.live import LOOK_INTERVAL_S, LiveSites
from crawler.worker.claims import POLL_S, Claimed, Claims
from crawler.worker.health import FreeSpace, Health, Load, Watchdog
from crawler.worker.pages import MAX_SLOW_FACTOR, Attempts, Budgets, Capacity, Pages, Watcher
from crawler.worker.writer import Writer

__all__ = ["Watcher", "Worker", "tune_garbage_collection"]

T = TypeVar("T")

MAX_UNCOMMITTED = 256
"""Outcomes that wait for the disk; above this nothing is claimed."""
LAG_INTERVAL_S = 0.05
"""How often the lag of the event loop is measured."""
STOP_GRACE_S = 3.0
"""How long pages in flight may go on after a stop."""
GARBAGE_THRESHOLDS = (50_000, 20, 100)
"""A page's elements are thousands of objects, and none is garbage. With Python's own thresholds the
search for garbage took a tenth of the time."""


def tune_garbage_collection() -> None:
    """Search for garbage less often, and never in what is loaded now. For the whole process: call
    it where a worker's process is made."""
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)


class Worker:
    """Claims, fetches and stores tasks. Its loop outlives a message: pages in flight stay with it
    when the message's time slice is over."""

    def __init__(
        self,
        settings: Settings,
        kind: str = "worker",
        watch: Watcher = lambda task, outcome: None,
        permit: Callable[[str], Permit] | None = None,
        given: FetchOptions | None = None,
        sites: Sites | None = None,
        queues: Sequence[str] = QUEUES,
        browser: Browser | None = None,
    ) -> None:
        """`permit` makes the permit that is shared with other processes, from this one's owner id.
        `given` is how tasks without a job are fetched. `sites` are used as long as a file of a
        site cannot be read. `queues` are told to others: no task of another queue is claimed.
        `browser` renders pages; without one, those that need it are left to other processes."""
        self._settings, self._browser = settings, browser
        lpm = LocalPersistenceManager(settings.data_dir, settings.raw)
        self.ledger_id = lpm.store.id
        slots = 2 * MAX_SLOW_FACTOR * settings.pages + MAX_UNCOMMITTED
        self._owner = Owner(
            lpm.owners,
            kind,
            slots,
            min_free=settings.min_free,
            queues=list(queues),
            renders=browser is not None,
        )
        trace = sys.stderr if kind == "cli" else self._owner.trace
        self._watchdog = Watchdog(settings.stall_s, trace)
        self._memory = Memory(settings.max_body)
        disk = FreeSpace(lpm.folder, settings.min_free)
        self._health = Health(self._owner, self._memory, disk)
        self._capacity = Capacity(settings.pages)
        self._load = Load(self._owner)
        self.is_leaving = False
        """Whether this process is to end because fewer are enough."""
        self._finish = asyncio.Event()
        self._calls: set[asyncio.Task[Any]] = set()
        self._tries_suspect = False
        self._writer = Writer(
            lambda: LocalPersistenceManager(settings.data_dir, settings.raw),
            self._tell_committed,
            self._health.complain,
            mark_large=self._owner.writes,
        )
        self._sites = known = LiveSites(settings.config_dir, settings.rate, sites)
        if permit:
            shared = permit(self._owner.id)
        else:
            fail_max = settings.circuit_breaker_fail_max
            shared = MemoryPermit(self._owner.id, fail_max, fresh=False)
        renders = browser is not None
        self._claims = Claims(lpm, self._owner.id, shared, known, disk, given, renders)
        self._is_alone = given is not None
        client = Client.of(settings)
        budgets = Budgets(self._memory, self._owner, self._watchdog)
        robots = Robots(lpm.run / "robots")
        # Containers on one store have the same pids.
        name = f"{kind}:{os.getpid()}@{platform.node()}"
        attempts = Attempts(
            name,
            client.fetch,
            self._claims,
            known,
            robots,
            budgets,
            self._health,
            settings.soft_time_limit,
            browser.render if browser else None,
        )
        self._pages = Pages(
            attempts,
            self._claims,
            budgets,
            self._capacity,
            self._owner,
            self._writer.put,
            watch,
            hold_retries=self._is_alone,
            max_tabs=settings.tabs,
        )
        self._loop = uvloop.new_event_loop()
        ready: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete,
            args=(self._live(client, ready),),
            name="loop",
            daemon=True,
        )
        self._thread.start()
        ready.result()

    # For other threads

    @property
    def busy(self) -> bool:
        """Whether a message is being worked on."""
        return bool(self._calls)

    @property
    def stopping(self) -> bool:
        """Whether a stop was asked for."""
        return self._finish.is_set()

    @property
    def must_restart(self) -> bool:
        """Whether this process is to end, because only a new one can run the scrapers as they are
        now, or because there are fewer processes now; then nothing more is claimed."""
        return self._sites.must_restart or self.is_leaving

    def leave(self) -> None:
        """Claim nothing more: this process is to end."""
        self.is_leaving = True

    def finish_pages(self, limit_s: float) -> None:
        """Wait until the pages in flight have ended."""
        end = time.monotonic() + limit_s
        while not self._pages.is_idle and time.monotonic() < end:
            time.sleep(0.02)

    def run_slice(self, message_id: str, queues: Sequence[str]) -> int:
        """Work for one time slice on what is due in these queues, the most urgent first; returns
        how many pages were begun.

        The maintainer publishes again what is left of the message then.
        """
        return self._call(message_id, partial(self._slice, queues, message_id))

    def scrape(self, task: int, give_up_s: float, message_id: str = "") -> TaskStatus:
        """Take one task through all its attempts now; returns its status when that is done or time
        is up."""
        return self._call(message_id, partial(self._scrape, task, time.monotonic() + give_up_s))

    def forget(self, domain: str, owner: str) -> None:
        """Note that a dead process has no request in flight at a domain."""
        self._claims.forget(domain, owner)

    def watch_stop(self, descriptor: int) -> None:
        """Stop when the descriptor becomes readable."""

        def stop() -> None:
            self._loop.remove_reader(descriptor)
            self._finish.set()

        self._loop.call_soon_threadsafe(self._loop.add_reader, descriptor, stop)

    def stop(self) -> None:
        """Stop claiming, give pages in flight a moment, and let go of all leases."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._finish.set)
            self._thread.join(STOP_GRACE_S + 5)

    def _call(self, message_id: str, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine function in the loop, with its message noted as in hand."""

        async def noted() -> T:
            call = asyncio.current_task()
            assert call is not None
            self._calls.add(call)
            try:
                return await function()
            finally:
                self._calls.discard(call)

        self._owner.holds(message_id)
        try:
            future = asyncio.run_coroutine_threadsafe(noted(), self._loop)
            # A wait without a limit would miss a signal that arrives just before it begins.
            while not wait([future], 1).done:
                pass
            return future.result()
        finally:
            self._owner.holds("")

    def _tell_committed(self, outcomes: Sequence[Outcome], live: Sequence[bool]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits for this
            self._loop.call_soon_threadsafe(self._pages.committed, outcomes, live)

    # In the loop

    async def _live(self, client: Client, ready: Future[None]) -> None:
        async with client, self._browser or contextlib.nullcontext():
            services = (
                self._watchdog.run(),
                self._renew_permits(),
                self._measure_lag(),
                self._watch_sites(),
            )
            running = [asyncio.create_task(each) for each in services]
            ready.set_result(None)
            await self._finish.wait()
            await self._end_pages()
            await asyncio.to_thread(self._writer.stop, 5)
            await asyncio.sleep(0)  # so that the commit of the last group is heard of
            await self._claims.run(self._claims.permits.flush)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        self._claims.close()
        self._watchdog.stop()  # not before: a hang in one of the steps above ends the process
        self._owner.close()

    async def _end_pages(self) -> None:
        """Let messages and pages end by themselves for a moment, then cancel them."""
        self._pages.room_made.set()
        if going := {*self._calls, *self._pages.fetching}:
            await asyncio.wait(going, timeout=STOP_GRACE_S)
        left = {*self._calls, *self._pages.fetching}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _renew_permits(self) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 3)
            await self._claims.run(self._claims.renew)

    async def _watch_sites(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            try:
                await self._claims.run(self._claims.look_at_sites)
            except Exception as error:
                if not (lack := shortage_of(error)):
                    raise
                self._health.note_shortage(lack)  # the next look may succeed

    async def _measure_lag(self) -> None:
        while True:
            due = time.monotonic() + LAG_INTERVAL_S
            await asyncio.sleep(LAG_INTERVAL_S)
            self._capacity.adapt(time.monotonic() - due)
            self._owner.beat()
            self._load.note(self._pages.places_in_use)
            self._memory.trim()
            self._health.publish(self._writer.trouble)

    async def _slice(self, queues: Sequence[str], message_id: str) -> int:
        end, begun = time.monotonic() + self._settings.slice_s, 0
        while not self.stopping and not self.must_restart and time.monotonic() < end:
            self._pages.room_made.clear()
            claimed, more = await self._claim(queues)
            for each in claimed:
                self._pages.begin(each)
            begun += len(claimed)
            if self._claims.suspect and self._pages.is_idle:
                begun += await self._try_suspect()
            if not more and not self._pages.may_have_links:
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._pages.room_made.wait(), self._claims.poll_s)
        with contextlib.suppress(StoreError):  # the maintainer misses the message, and does it
            await self._claims.run(self._claims.unpublish, message_id)
        return begun

    async def _claim(self, queues: Sequence[str]) -> tuple[list[Claimed], bool]:
        """Claim tasks that can begin now; says too whether others are due."""
        room = self._pages.free_places
        if room <= 0 or not self._may_claim():
            return [], True
        try:
            if self._memory.is_full and not await self._free_memory(queues):
                return [], True
            idle = self._pages.is_idle
            tabs = self._pages.free_tabs
            claimed = await self._claims.run(self._claims.claim, queues, room, idle, tabs)
        except StoreError as error:
            self._health.note_store(str(error))
            await asyncio.sleep(1)
            return [], True
        except Exception as error:
            if not (lack := shortage_of(error)):
                raise
            self._health.note_shortage(lack)
            return [], True
        self._health.note_store("")
        return claimed

    def _may_claim(self) -> bool:
        if self._pages.is_idle:
            self._tries_suspect = False
        return not (
            self._pages.uncommitted >= MAX_UNCOMMITTED
            or self._tries_suspect
            or self._writer.trouble
            or self._health.had_shortage
        )

    async def _free_memory(self, queues: Sequence[str]) -> bool:
        """If tasks are due, have a page give way whose server stalls; whether that made room."""
        is_due = await self._claims.run(self._claims.has_due, queues)
        return is_due and self._memory.relieve() and not self._memory.is_full

    async def _try_suspect(self) -> bool:
        """Begin with a suspect if its domain allows it; nothing else is claimed until it has
        ended."""
        suspect, self._claims.suspect = self._claims.suspect, None
        assert suspect is not None
        try:
            claimed, wait_s = await self._claim_task(suspect.id, suspect.domain, suspect.job_id)
        except StoreError as error:
            self._health.complain(str(error))
            claimed, wait_s = None, 1.0
        if claimed is None:
            self._claims.postpone_suspect(wait_s)
            return False
        self._tries_suspect = True
        self._pages.begin(claimed)
        return True

    async def _scrape(self, task: int, end: float) -> TaskStatus:
        while True:
            state = await self._claims.run(self._claims.state_of, task)
            status, not_before, domain, job_id, needs = state
            is_open = status in (TaskStatus.PENDING, TaskStatus.PROCESSING)
            for_others = needs == BROWSER and self._browser is None
            is_over = time.monotonic() > end or self.stopping or (for_others and self._is_alone)
            if not is_open or is_over:
                return status
            wait_s = not_before - time.time()
            if for_others:
                wait_s = POLL_S
            elif not_before >= HELD:  # held for this process, which tries it again all the same
                wait_s = self._pages.retry_at - time.monotonic()
            if status is TaskStatus.PENDING and wait_s <= 0 and not for_others:
                claimed, wait_s = await self._claim_task(task, domain, job_id)
                if claimed:
                    await self._pages.finish(claimed)
                    continue
            await asyncio.sleep(min(max(wait_s, POLL_S), 0.5))

    async def _claim_task(
        self, task: int, domain: str, job_id: int | None
    ) -> tuple[Claimed | None, float]:
        """Claim one task; otherwise return in how many seconds to ask again."""
        if self._health.must_not_claim and not (self._memory.is_full and self._memory.relieve()):
            return None, POLL_S
        return await self._claims.claim_task(task, domain, job_id)
