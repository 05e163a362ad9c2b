"""The agent: runs collector, sync and heartbeat in one process, each on its own thread and event loop."""

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
from crawler.gateway.client import GatewayClient, Trouble
from crawler.gateway.collector import Collector, asked
from crawler.gateway.sync import Sync
from crawler.locks import is_locked, open_lock, try_lock
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job

log = logging.getLogger(__name__)

HEARTBEAT_S = 30.0
MAX_SILENCE_S = 120.0
"""No Gateway may ask for a longer silence: at 300 s it takes a worker for dead."""


class Heartbeat:
    """Sent also while the queue is full, paused or draining."""

    def __init__(
        self, settings: Settings, job: Job, client: GatewayClient, platforms: Sequence[str] = ()
    ) -> None:
        self._job, self._client, self._platforms = job, client, platforms
        self._lpm = LocalPersistenceManager(settings.data_dir)
        self._trouble = Trouble(
            "the heartbeat", note=lambda text: self._note(trouble_heartbeat=text)
        )
        self._note(trouble_heartbeat=None)
        psutil.cpu_percent()  # the first answer is of no use: it is the time since this call that counts

    async def run(self) -> None:
        """Beat for as long as this lasts."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + HEARTBEAT_S
            try:
                await self.beat()
            except CrawlerError as error:
                wait_s = min(self._trouble.met(error), MAX_SILENCE_S)
            else:
                self._trouble.over()
                wait_s = due - loop.time()
            await asyncio.sleep(wait_s)

    async def beat(self) -> None:
        """Tell how things stand, and obey; under the same key until its commands were obeyed, so
        that none is lost."""
        body, key = msgspec.json.encode(self.facts()), self._key()
        commands = await self._client.heartbeat(body, key)
        for command in commands:
            self.obey(command)
        self._note(beat=None, heard=f"{self._lpm.now():.3f}")

    def _key(self) -> str:
        key = self._lpm.gateway.note("beat")
        if key is None:
            key = secrets.token_hex(16)
            self._note(beat=key)
        return key

    def _note(self, **notes: str | None) -> None:
        for name, value in notes.items():
            self._lpm.gateway.set_note(name, value)

    def facts(self) -> dict[str, Any]:
        """The counts of the contract, of the Gateway's tasks."""
        states, ended = self._lpm.gateway.states(), self._lpm.gateway.ended(self._lpm.now() - 60)
        queue = {
            name: states.get(name, 0) for name in ("pending", "processing", "completed", "failed")
        }
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
        """Do what the Gateway says: `pause` puts its tasks aside, `drain` takes no more and ends
        when all is done.

        What an operator has paused or cancelled is the operator's.
        """
        if command not in ("pause", "resume", "drain"):
            log.warning("the Gateway says %r, which means nothing here", printable(command)[:100])
            return
        before = self._lpm.gateway.note("order")
        self._lpm.gateway.set_note("order", None if command == "resume" else command)
        hold = self._lpm.jobs.get(self._job.id).hold
        if command == "pause" and hold is None:
            self._lpm.jobs.hold(self._job, "paused", self._lpm.now())
        elif command != "pause" and before == "pause" and hold == "paused":
            self._lpm.jobs.release(self._job)
        log.warning("the Gateway says: %s", command)

    def close(self) -> None:
        """Let go of the store."""
        self._lpm.close()


AGAIN_S = 5.0
STOP_S = 3.0
LINGER_S = 7.0
"""How long a stop waits at most for what workers finish meanwhile to be delivered."""


class Service(Protocol):
    """Something that runs until it is cancelled."""

    async def run(self) -> None:
        """Run."""

    def close(self) -> None:
        """Let go of what it holds."""


class Services:
    """Threads with a loop each: what one of them waits for holds up no other."""

    def __init__(self, again_s: float = AGAIN_S) -> None:
        """`again_s` is how long one that has failed rests before it begins anew."""
        self._again_s = again_s
        self._threads: dict[str, threading.Thread] = {}
        self._running: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = {}
        self._stopped: set[str] = set()

    def start(
        self,
        name: str,
        client: Callable[[], GatewayClient],
        make: Callable[[GatewayClient], Service],
    ) -> None:
        """Run a service, again and again whatever happens to it, each time with a client of its
        own."""

        def live() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                asyncio.run(self._live(name, client, make))

        self._threads[name] = threading.Thread(target=live, name=name, daemon=True)
        self._threads[name].start()

    async def _live(
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
                async with client() as mine:
                    service = make(mine)
                    with contextlib.closing(service):
                        await service.run()
            except Exception:  # a defect must not end what else the agent does
                log.exception("%s has failed, and begins anew in %g s", name, self._again_s)
                await asyncio.sleep(self._again_s)

    def stop(self, *names: str) -> None:
        """End these, or all; whatever is on its way can be sent again."""
        self._stopped |= set(names or self._threads)
        for name in self._stopped & set(self._running):
            loop, task = self._running.pop(name)
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                loop.call_soon_threadsafe(task.cancel)
        for name in names or self._threads:
            self._threads[name].join(STOP_S)


@contextlib.contextmanager
def only_one(lpm: LocalPersistenceManager) -> Iterator[None]:
    """Nobody else speaks to the Gateway for this store meanwhile."""
    lpm.run.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = open_lock(lpm.run / "agent.lock")
    try:
        if not try_lock(lock):
            raise StackIsUp(
                f"something speaks to the Gateway already for the store in {lpm.folder}"
            )
        yield
    finally:
        os.close(lock)


def is_busy(lpm: LocalPersistenceManager) -> bool:
    """Whether something speaks to the Gateway for this store now."""
    return is_locked(lpm.run / "agent.lock")


def bind(lpm: LocalPersistenceManager, settings: Settings, moved: bool = False) -> str:
    """The name of this worker for its Gateway, and only for that one: what one gave is never told
    to another."""
    url = (settings.gateway_url or "").rstrip("/")
    known = lpm.gateway.note("url")
    if known not in (None, url) and not moved and (count := lpm.gateway.count_of_gateway()):
        raise UsageError(
            f"this store has {count:,} tasks or results of the Gateway at {known}, but GATEWAY_URL is {url}; "
            "if that is the same Gateway at a new address, add --moved; else use another --data-dir"
        )
    if known != url:
        for note in ("heard", "trouble_sync", "trouble_collector", "trouble_heartbeat"):
            lpm.gateway.set_note(note, None)
        lpm.gateway.set_note("url", url)
        if not moved:
            lpm.outbox.forget_keys()
    name = lpm.gateway.note("worker_id")
    if name is None:
        host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:100] or "worker"
        name = f"{host}-{lpm.store.id[:8]}"
        lpm.gateway.set_note("worker_id", name)
    return name


def open_job(lpm: LocalPersistenceManager) -> Job:
    """The job that the Gateway's tasks make up; it is open for as long as an agent runs."""
    return lpm.imports.open_job(
        key=GATEWAY,
        name=GATEWAY,
        queue="default",
        source=GATEWAY,
        source_file=None,
        batch_size=100,
        now=lpm.now(),
        watched=True,  # nobody reports its end: it is the same job at every start
    )


def run(
    settings: Settings,
    platforms: Sequence[str],
    capacity: int,
    stopping: threading.Event,
    ending: threading.Event | None = None,
) -> bool:
    """Work for the Gateway until told to stop, or until all is done after it said `drain`: then
    true.

    Told to stop, nothing more is asked for, and what workers still finish is delivered, until
    `ending` is set too.
    """
    lpm = LocalPersistenceManager(settings.data_dir)
    GatewayClient(settings, "check")  # before anything is written
    with lpm, only_one(lpm):
        worker_id, described = bind(lpm, settings), sites.load(settings.config_dir, settings.rate)
        platforms = asked(settings, platforms, described)
        job, asking = open_job(lpm), threading.Event()
        if lpm.gateway.note("order") == "pause":
            lpm.jobs.hold(job, "paused", lpm.now())  # the Gateway has not said otherwise since

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
                if not asking.is_set() and _drained(lpm):
                    return True
            services.stop("collector", "heartbeat")
            _linger(lpm, ending or threading.Event())
        finally:
            services.stop()
            lpm.imports.close(job, lpm.now())  # from now on it ends with its last task
        return False


def _linger(lpm: LocalPersistenceManager, ending: threading.Event) -> None:
    """Wait while there is something to deliver, and a Gateway that takes it."""
    end = time.monotonic() + LINGER_S
    while time.monotonic() < end:
        busy = lpm.outbox.unsent() or (
            not ending.is_set() and lpm.gateway.states().get("processing")
        )
        if not busy or lpm.gateway.note("trouble_sync"):
            return
        if ending.is_set():
            end = min(end, time.monotonic() + 1.0)
            ending.clear()  # once is enough: the time is running
        time.sleep(0.1)


def _drained(lpm: LocalPersistenceManager) -> bool:
    """Whether the Gateway wanted no more of this worker, and all that it had is done and
    delivered."""
    if lpm.gateway.note("order") != "drain" or lpm.gateway.open_count() or lpm.outbox.unsent():
        return False
    lpm.gateway.set_note("order", None)
    return True
