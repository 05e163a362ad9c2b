"""What a worker process owns: its loop, client, writer and leases."""

import asyncio
import contextlib
import faulthandler
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from crawler.config import Settings, failpoint
from crawler.db.acts import HELD
from crawler.db.owners import Owner
from crawler.errors import StoreError
from crawler.fetch.http import Client
from crawler.lpm import LocalPersistenceManager, low_on_disk
from crawler.models import Outcome, Task, TaskStatus
from crawler.resilience.slots import Slots
from crawler.scraping import pipeline

log = logging.getLogger(__name__)

T = TypeVar("T")

GROUP_SIZE, GROUP_S = 100, 0.03
"""A group of outcomes is committed when it has so many, or is so old."""
MAX_UNSAVED = 256
"""With so many outcomes waiting for the disk nothing more is claimed."""
POLL_S = 0.03
"""How often to look again for slots that other processes free, and for more urgent work."""
ROOM_S = 1.0
"""How often to look how full the disk is."""
STOP_GRACE_S = 3.0
"""How long pages in flight may go on when a stop is asked for."""

Watcher = Callable[[Task, Outcome | None], None]
"""Told of every page: once when it begins, and with its outcome when that is committed."""


class Worker:
    """The loop outlives the messages: a page in flight stays with it when its time slice is over."""

    def __init__(self, settings: Settings, kind: str = "worker", watch: Watcher = lambda task, outcome: None) -> None:
        self._settings = settings
        self._watch = watch
        self._lpm = LocalPersistenceManager(settings.data_dir, settings.raw)
        self.ledger_id = self._lpm.ledger.id
        self._owner = Owner(self._lpm.owners, kind, slots=2 * settings.pages + MAX_UNSAVED)
        self._name = f"{kind}:{os.getpid()}"
        self._slots = Slots(self._lpm.run / "slots")
        self._claims = ThreadPoolExecutor(1, "claims")
        self._outcomes: queue.SimpleQueue[tuple[Outcome, Future[bool]] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="writer", daemon=True)
        self._pages: set[asyncio.Task[None]] = set()
        self._calls: set[asyncio.Task[Any]] = set()
        self._fetching = 0
        self._unsaved = 0
        self._last_domain = ""
        self._store_trouble = self._claim_trouble = False
        self._complained = -60.0
        self._room_seen = -ROOM_S
        self._no_room: str | None = None
        self.stopping = False
        self._trace = sys.stderr if kind == "cli" else self._owner.trace
        self._loop = asyncio.new_event_loop()
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._live(),), name="loop")
        self._thread.daemon = True
        self._writer.start()
        self._thread.start()
        self._ready.result()

    # What callers in other threads use

    @property
    def busy(self) -> bool:
        """Whether a message is being worked on."""
        return bool(self._calls)

    def run_slice(self, message_id: str, queues: Sequence[str]) -> int:
        """Work for one time slice on what is due in these queues, the most urgent first; returns how much was begun.

        What the message still has then is the maintainer's, who publishes it again at once.
        """
        self._owner.holds(message_id)
        try:
            return self._call(self._slice(queues, message_id))
        finally:
            self._owner.holds("")

    def scrape(self, task: int, give_up_s: float, message_id: str = "") -> TaskStatus:
        """Take one task through all its attempts now; returns where it stands when that is done or time is up."""
        self._owner.holds(message_id)
        try:
            return self._call(self._insist(task, time.monotonic() + give_up_s))
        finally:
            self._owner.holds("")

    def watch_stop(self, descriptor: int) -> None:
        """Stop when the descriptor becomes readable."""

        def stop() -> None:
            self._loop.remove_reader(descriptor)
            self._finish.set()

        self._loop.call_soon_threadsafe(self._loop.add_reader, descriptor, stop)

    def stop(self) -> None:
        """Stop claiming, give pages in flight a moment, release the rest, and let go of all leases."""
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

        return asyncio.run_coroutine_threadsafe(noted(), self._loop).result()

    # The loop's thread

    async def _live(self) -> None:
        self._finish = asyncio.Event()
        self._page_ended = asyncio.Event()
        async with Client(self._settings.max_body) as self._client:
            watchdog = asyncio.create_task(self._rearm_watchdog())
            self._ready.set_result(None)
            await self._finish.wait()
            self.stopping = True
            self._page_ended.set()
            if going := {*self._calls, *self._pages}:
                await asyncio.wait(going, timeout=STOP_GRACE_S)
            for task in (*self._calls, *self._pages):
                task.cancel()
            await asyncio.gather(*self._calls, *self._pages, return_exceptions=True)
            self._outcomes.put(None)
            await asyncio.to_thread(self._writer.join, 5)
            watchdog.cancel()
        self._claims.shutdown()
        faulthandler.cancel_dump_traceback_later()
        self._slots.close()
        self._lpm.close()
        self._owner.close()

    async def _rearm_watchdog(self) -> None:
        """Have the process ended when this loop stands still, even where a parser holds it inside C code."""
        while True:
            faulthandler.dump_traceback_later(self._settings.stall_s, exit=True, file=self._trace)
            await asyncio.sleep(self._settings.stall_s / 4)

    async def _slice(self, queues: Sequence[str], message_id: str) -> int:
        end, begun = time.monotonic() + self._settings.slice_s, 0
        while not self.stopping and time.monotonic() < end:
            self._page_ended.clear()
            tasks, more = await self._claim(queues)
            for task in tasks:
                self._begin(task)
            begun += len(tasks)
            if not more:
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._page_ended.wait(), POLL_S)
        with contextlib.suppress(StoreError):  # else the maintainer misses the message, and does the same
            await self._loop.run_in_executor(self._claims, self._unpublish, message_id)
        return begun

    def _unpublish(self, message_id: str) -> None:
        with self._lpm.errors():
            self._lpm.ledger.unpublish([message_id])

    async def _claim(self, queues: Sequence[str]) -> tuple[list[Task], bool]:
        """Lease only what can begin now: nothing waits in a worker, so urgent work overtakes all but what began."""
        room = self._settings.pages - self._fetching
        if room <= 0 or self._unsaved >= MAX_UNSAVED or self._store_trouble:
            return [], True
        try:
            claimed = await self._loop.run_in_executor(self._claims, self._claim_now, queues, room)
        except StoreError as error:
            self._complain(error)
            self._claim_trouble = True
            await asyncio.sleep(1)
            return [], True
        if self._claim_trouble:
            self._claim_trouble = False
            log.warning("the store can be used again; work goes on")
        return claimed

    def _complain(self, error: StoreError) -> None:
        """One line a minute, whoever meets the trouble."""
        if time.monotonic() - self._complained > 60:
            self._complained = time.monotonic()
            log.warning("nothing more is claimed, and results wait in memory: %s", error)

    def _has_room(self) -> bool:
        """Whether enough of the disk is free; said once when it ends and once when it is back."""
        if time.monotonic() - self._room_seen >= ROOM_S:
            self._room_seen = time.monotonic()
            before, self._no_room = self._no_room, low_on_disk(self._lpm.folder, self._settings.min_free)
            if self._no_room and not before:
                log.warning("%s", self._no_room)
            elif before and not self._no_room:
                log.warning("there is room on the disk again; work goes on")
        return self._no_room is None

    def _claim_now(self, queues: Sequence[str], room: int) -> tuple[list[Task], bool]:
        now = time.time()
        if not self._has_room():
            return [], True
        with self._lpm.errors():
            self._lpm.ledger.wake(now)
            if not self._lpm.ledger.has_due(queues):
                return [], False
            tasks, more = self._lpm.ledger.claim(self._owner.id, queues, room, self._slots, self._last_domain, now)
        failpoint("claimed")
        if tasks:
            self._last_domain = tasks[-1].domain
        return tasks, more

    def _begin(self, task: Task) -> asyncio.Task[None]:
        page = self._loop.create_task(self._page(task))
        self._pages.add(page)
        page.add_done_callback(self._pages.discard)
        return page

    async def _page(self, task: Task) -> None:
        slot = self._owner.begin(task.id)
        self._fetching += 1
        self._watch(task, None)
        try:
            outcome = await pipeline.scrape(task, self._client.fetch, worker=self._name, parsing=self._owner.parsing)
        except asyncio.CancelledError:
            outcome = Outcome(task=task, status=TaskStatus.PENDING, worker=self._name, charge=False)
        except Exception as error:  # a defect here must cost one page, never the worker
            log.exception("an unforeseen error; the task has failed", extra={"task_id": task.task_id})
            outcome = _internal_failure(task, self._name, error)
        finally:
            self._fetching -= 1
            self._slots.give(task.domain)
            self._page_ended.set()
        await self._save(outcome)
        self._owner.end(slot)
        self._watch(task, outcome)

    async def _save(self, outcome: Outcome) -> bool:
        saved: Future[bool] = Future()
        self._unsaved += 1
        try:
            self._outcomes.put((outcome, saved))
            return await asyncio.shield(asyncio.wrap_future(saved))
        finally:
            self._unsaved -= 1
            self._page_ended.set()

    async def _insist(self, task: int, end: float) -> TaskStatus:
        while True:
            status, not_before, domain = await self._loop.run_in_executor(self._claims, self._stand, task)
            due_s = max(0.0, not_before - time.time()) if not_before < HELD else 0.0  # this one is wanted all the same
            if status not in (TaskStatus.PENDING, TaskStatus.PROCESSING) or time.monotonic() > end or self.stopping:
                return status
            if status is TaskStatus.PENDING and due_s <= 0 and self._slots.take(domain, 1):
                claimed = None
                try:
                    claimed = await self._loop.run_in_executor(self._claims, self._claim_one, task)
                finally:
                    if claimed is None:
                        self._slots.give(domain)
                if claimed:
                    await self._begin(claimed)
                    continue
            await asyncio.sleep(min(max(due_s, POLL_S), 0.5))

    def _stand(self, task: int) -> tuple[TaskStatus, float, str]:
        with self._lpm.errors():
            return self._lpm.ledger.stand(task)

    def _claim_one(self, task: int) -> Task | None:
        with self._lpm.errors():
            return self._lpm.ledger.claim_one(self._owner.id, task, time.time())

    # The writer's thread

    def _write(self) -> None:
        try:
            self._write_groups()
        except BaseException:
            log.exception("the writer has failed; this process ends, so that its leases fall")
            os._exit(70)

    def _write_groups(self) -> None:
        lpm = LocalPersistenceManager(self._settings.data_dir, self._settings.raw)
        open_ = True
        while open_:
            first = self._outcomes.get()
            if first is None:
                break
            group, deadline = [first], time.monotonic() + GROUP_S
            while len(group) < GROUP_SIZE:
                try:
                    item = self._outcomes.get(timeout=max(0.0, deadline - time.monotonic()))
                except queue.Empty:
                    break
                if item is None:
                    open_ = False
                    break
                group.append(item)
            self._commit(lpm, group)
        lpm.close()

    def _commit(self, lpm: LocalPersistenceManager, group: list[tuple[Outcome, Future[bool]]]) -> None:
        outcomes, troubled = [outcome for outcome, _ in group], False
        while True:
            try:
                stored = lpm.save_result(*outcomes)
                break
            except StoreError as error:
                self._complain(error)
                self._store_trouble = troubled = True
                if self.stopping:
                    stored = [False] * len(group)  # their leases fall with this process, and they are fetched again
                    break
                time.sleep(1)
            except Exception as error:  # one result that cannot be stored must not hold up the others
                if len(group) > 1:
                    for item in group:
                        self._commit(lpm, [item])
                    return
                if outcomes[0].error_type == "internal":
                    raise
                log.exception("a result cannot be stored", extra={"task_id": outcomes[0].task.task_id})
                outcomes = [_internal_failure(outcomes[0].task, self._name, error)]
        if troubled and not self.stopping:
            log.warning("the store can be used again")
            self._store_trouble = False
        for (_, saved), good in zip(group, stored, strict=True):
            saved.set_result(good)


def _internal_failure(task: Task, worker: str, error: Exception) -> Outcome:
    return Outcome(
        task=task, status=TaskStatus.FAILED, worker=worker, error_type="internal", error_message=repr(error)[:500]
    )
