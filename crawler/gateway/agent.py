"""The agent: collector, sync and heartbeat in one process, each with a thread and an event loop.

One agent at a time works for a store.
"""

import asyncio
import contextlib
import logging
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec
import psutil

from crawler import sites
from crawler.config import Settings
from crawler.db.gateway import GATEWAY
from crawler.errors import CrawlerError, StackIsUp, UsageError
from crawler.gateway.client import Backoff, GatewayClient
from crawler.gateway.collector import Collector, requested_platforms
from crawler.gateway.sync import Sync
from crawler.locks import is_locked, open_lock, try_lock
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job

log = logging.getLogger(__name__)

RESTART_S = 5.0
"""Pause before a failed service is started again."""
STOP_LIMIT_S = 3.0
DELIVERY_LIMIT_S = 7.0
"""How long a stop waits for the delivery of what workers still finish."""
HURRIED_LIMIT_S = 1.0
"""The same after a second signal."""
HEARTBEAT_S = 30.0
MAX_SILENCE_S = 120.0
"""The longest pause between heartbeats. After 300 s a Gateway takes a worker for dead."""
_STATES = ("pending", "processing", "completed", "failed")
_STALE_NOTES = ("heard", "trouble_sync", "trouble_collector", "trouble_heartbeat")
"""Notes about a Gateway that say nothing about another one."""


class Service(Protocol):
    """Something that runs until it is cancelled."""

    async def run(self) -> None:
        """Run."""

    def close(self) -> None:
        """Close its connections."""


class Services:
    """Runs services on a thread and an event loop each, so that none delays another."""

    def __init__(self, restart_s: float = RESTART_S) -> None:
        """`restart_s` is the pause before a failed service is started again."""
        self._restart_s = restart_s
        self._threads: dict[str, threading.Thread] = {}
        self._running: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = {}
        self._stopped: set[str] = set()

    def start(
        self,
        name: str,
        client: Callable[[], GatewayClient],
        make: Callable[[GatewayClient], Service],
    ) -> None:
        """Run a service, and start it again with a new client whenever it fails."""

        def run() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                asyncio.run(self._keep_running(name, client, make))

        self._threads[name] = threading.Thread(target=run, name=name, daemon=True)
        self._threads[name].start()

    async def _keep_running(
        self,
        name: str,
        client: Callable[[], GatewayClient],
        make: Callable[[GatewayClient], Service],
    ) -> None:
        task = asyncio.current_task()
        assert task
        self._running[name] = (asyncio.get_running_loop(), task)
        while name not in self._stopped:
            try:
                async with client() as connected:
                    service = make(connected)
                    with contextlib.closing(service):
                        await service.run()
            except Exception:  # a defect in one service must not end the others
                log.exception("%s has failed and starts again in %g s", name, self._restart_s)
                await asyncio.sleep(self._restart_s)

    def stop(self, *names: str) -> None:
        """Stop these services, or all. A request in progress can be sent again later."""
        self._stopped |= set(names or self._threads)
        for name in self._stopped & set(self._running):
            loop, task = self._running.pop(name)
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                loop.call_soon_threadsafe(task.cancel)
        for name in names or self._threads:
            self._threads[name].join(STOP_LIMIT_S)


class Heartbeat:
    """Tells the Gateway the state of this worker every half minute, and obeys its commands.

    It goes on while the queue is full, paused or draining.
    """

    def __init__(
        self, settings: Settings, job: Job, client: GatewayClient, platforms: Sequence[str] = ()
    ) -> None:
        self._job, self._client, self._platforms = job, client, platforms
        self._lpm = LocalPersistenceManager(settings.data_dir)
        self._backoff = Backoff("the heartbeat", note=self._note_trouble)
        self._note_trouble(None)
        psutil.cpu_percent()  # it measures since its last call, so the first value means nothing

    def _note_trouble(self, text: str | None) -> None:
        self._lpm.gateway.set_note("trouble_heartbeat", text)

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + HEARTBEAT_S
            try:
                await self.beat()
            except CrawlerError as error:
                wait_s = min(self._backoff.failed(error), MAX_SILENCE_S)
            else:
                self._backoff.succeeded()
                wait_s = due - loop.time()
            await asyncio.sleep(wait_s)

    async def beat(self) -> None:
        """Send a heartbeat and obey the answer.

        Its key stays the same until the commands are obeyed, so that none is lost.
        """
        body, key = msgspec.json.encode(self.facts()), self._key()
        commands = await self._client.heartbeat(body, key)
        for command in commands:
            self.obey(command)
        self._lpm.gateway.set_note("beat", None)
        self._lpm.gateway.set_note("heard", f"{self._lpm.now():.3f}")

    def _key(self) -> str:
        key = self._lpm.gateway.note("beat")
        if key is None:
            key = secrets.token_hex(16)
            self._lpm.gateway.set_note("beat", key)
        return key

    def facts(self) -> dict[str, Any]:
        """Return the contract's counts of the Gateway's tasks."""
        states, ended = self._lpm.gateway.states(), self._lpm.gateway.ended(self._lpm.now() - 60)
        queue = {name: states.get(name, 0) for name in _STATES}
        return {
            "active_tasks": queue["processing"],
            "completed_last_minute": ended.pop("completed", 0),
            "failed_last_minute": sum(ended.values()),
            "platforms": list(self._platforms),
            "cpu_percent": psutil.cpu_percent(),
            "memory_percent": psutil.virtual_memory().percent,
            "queue": queue | {"unsynced": self._lpm.outbox.unsent()},
        }

    def obey(self, command: str) -> None:
        """Obey a command: `pause` holds its tasks, `drain` ends the agent when all is delivered.

        A job that an operator has paused or cancelled stays as it is.
        """
        if command not in ("pause", "resume", "drain"):
            log.warning("the Gateway says %r, which means nothing here", printable(command)[:100])
            return
        before = self._lpm.gateway.note("order")
        order = None
        if command != "resume":
            order = command
        self._lpm.gateway.set_note("order", order)
        hold = self._lpm.jobs.get(self._job.id).hold
        if command == "pause" and hold is None:
            self._lpm.jobs.hold(self._job, "paused", self._lpm.now())
        elif command != "pause" and before == "pause" and hold == "paused":
            self._lpm.jobs.release(self._job)
        log.warning("the Gateway says: %s", command)

    def close(self) -> None:
        """Close the store."""
        self._lpm.close()


@contextlib.contextmanager
def only_one(lpm: LocalPersistenceManager) -> Iterator[None]:
    """Hold the lock by which only one process works with the Gateway for this store."""
    lpm.run.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = open_lock(lpm.run / "agent.lock")
    try:
        if not try_lock(lock):
            raise StackIsUp(
                f"another process already works with the Gateway for the store in {lpm.folder}"
            )
        yield
    finally:
        os.close(lock)


def is_busy(lpm: LocalPersistenceManager) -> bool:
    """Whether a process works with the Gateway for this store now."""
    return is_locked(lpm.run / "agent.lock")


def bind(lpm: LocalPersistenceManager, settings: Settings, moved: bool = False) -> str:
    """Bind the store to the Gateway of GATEWAY_URL; return this worker's id there.

    Tasks of one Gateway are never reported to another. `moved` says that it is the same Gateway
    at a new address.
    """
    url = (settings.gateway_url or "").rstrip("/")
    known = lpm.gateway.note("url")
    if known not in (None, url) and not moved and (count := lpm.gateway.count_of_gateway()):
        raise UsageError(
            f"this store has {count:,} tasks or results of the Gateway at {known}, "
            f"but GATEWAY_URL is {url}; if that is the same Gateway at a new address, "
            "add --moved; else use another --data-dir"
        )
    if known != url:
        for note in _STALE_NOTES:
            lpm.gateway.set_note(note, None)
        lpm.gateway.set_note("url", url)
        if not moved:
            lpm.outbox.forget_keys()
    worker_id = lpm.gateway.note("worker_id")
    if worker_id is None:
        host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:100] or "worker"
        worker_id = f"{host}-{lpm.store.id[:8]}"
        lpm.gateway.set_note("worker_id", worker_id)
    return worker_id


def open_job(lpm: LocalPersistenceManager) -> Job:
    """Return the job of the Gateway's tasks; it stays open while an agent runs."""
    return lpm.imports.open_job(
        key=GATEWAY,
        name=GATEWAY,
        queue="default",
        source=GATEWAY,
        source_file=None,
        batch_size=100,
        now=lpm.now(),
        watched=True,  # its end is never reported: every start opens the same job
    )


def run(
    settings: Settings,
    platforms: Sequence[str],
    capacity: int,
    stopping: threading.Event,
    ending: threading.Event | None = None,
) -> bool:
    """Work for the Gateway until `stopping` is set; True if the Gateway said `drain` and has all.

    After `stopping`, no more tasks are asked for, and results of running tasks are still delivered
    for a while. `ending` shortens that.
    """
    lpm = LocalPersistenceManager(settings.data_dir)
    GatewayClient(settings, "check")  # fail before anything is written
    with lpm, only_one(lpm):
        worker_id, described = bind(lpm, settings), sites.load(settings.config_dir, settings.rate)
        platforms = requested_platforms(settings, platforms, described)
        job, asking = open_job(lpm), threading.Event()
        if lpm.gateway.note("order") == "pause":
            lpm.jobs.hold(job, "paused", lpm.now())  # the Gateway has not resumed it since

        def client() -> GatewayClient:
            return GatewayClient(settings, worker_id)

        services = Services()
        log.info("this is worker %s of the Gateway at %s", worker_id, settings.gateway_url)
        services.start(
            "heartbeat", client, lambda c: Heartbeat(settings, job, c, platforms or described.names)
        )
        services.start("sync", client, lambda c: Sync(settings, c))
        services.start(
            "collector",
            client,
            lambda c: Collector(
                settings, job, described, c, platforms=platforms, capacity=capacity, asking=asking
            ),
        )
        try:
            while not stopping.wait(0.5):
                if not asking.is_set() and _is_drained(lpm):
                    return True
            services.stop("collector", "heartbeat")
            _deliver_rest(lpm, ending or threading.Event())
        finally:
            services.stop()
            lpm.imports.close(job, lpm.now())  # from now on it ends with its last task
        return False


def _deliver_rest(lpm: LocalPersistenceManager, ending: threading.Event) -> None:
    """Wait while there is something to deliver and the Gateway accepts it."""
    end = time.monotonic() + DELIVERY_LIMIT_S
    while time.monotonic() < end:
        is_working = not ending.is_set() and lpm.gateway.states().get("processing")
        if not is_working and not lpm.outbox.unsent():
            return
        if lpm.gateway.note("trouble_sync"):
            return
        if ending.is_set():
            end = min(end, time.monotonic() + HURRIED_LIMIT_S)
            ending.clear()  # the limit must not move with every look
        time.sleep(0.1)


def _is_drained(lpm: LocalPersistenceManager) -> bool:
    """Whether the Gateway said `drain`, and all its tasks are done and delivered."""
    if lpm.gateway.note("order") != "drain" or lpm.gateway.open_count() or lpm.outbox.unsent():
        return False
    lpm.gateway.set_note("order", None)
    return True
