"""Everything that workers run, and what a worker process has while it runs."""

import logging
import os
import queue
import resource
import signal
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import redis
from celery import signals
from celery.exceptions import CPendingDeprecationWarning, Reject
from kombu.exceptions import KombuError

from crawler import logs, urls
from crawler.celery_app import app, broker_url, settings
from crawler.config import failpoint
from crawler.db import owners
from crawler.db.tasks import Chunk
from crawler.errors import CrawlerError, ServiceError
from crawler.inbox import Inbox
from crawler.lpm import LocalPersistenceManager
from crawler.maintainer import BrokerDown, Maintainer, Queued
from crawler.models import QUEUES, Books, Job, NewTask, Outcome, Task, TaskStatus
from crawler.redis_client import check_redis, connect
from crawler.resilience.redis_rate_limiter import RedisRateLimiter
from crawler.sites import config as sites
from crawler.standstill import Waits
from crawler.worker import Worker

__all__ = ["app", "crawl_url", "scrape_chunk_task", "scrape_task"]

log = logging.getLogger(__name__)

MAX_JOB_WITH_EVENTS = 10_000
"""In larger jobs pages send no events: nobody looks through so many, and Flower keeps each in its
memory."""
MAX_EVENTS, GATHER_S = 10_000, 0.5
"""So many events wait at most to be sent, and so long others are gathered to one."""
SINGLE_LIMIT_S = 100.0
"""How long `scrape_task` waits for its page; below the soft limit of a task."""
PROGRESS_EXPIRES_S = 86_400


def _scrape_task(
    self: Any, url: str, session_id: str | None = None, options: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Fetch one URL now and return its result; the id of the message names it, so that a redelivery
    finds it done."""
    failpoint("delivered")
    given: dict[str, Any] = {"session_id": session_id} if session_id else {}
    return scrape_url(_child().worker, url, self.request.id, given | (options or {}))


scrape_task, crawl_url = (
    app.task(name=name, bind=True, ignore_result=False)(_scrape_task)
    for name in ("scrape_task", "crawl_url")
)


def scrape_url(worker: Worker, url: str, call_id: str, given: dict[str, Any]) -> dict[str, Any]:
    """Insert, claim and fetch one URL under the id of its call."""
    lpm = LocalPersistenceManager(settings.data_dir, settings.raw)
    try:
        task = NewTask(address=urls.parse(url), priority=1, external_id=call_id, input=given)
        id_ = lpm.tasks.add_call(task, loopback=False)
        status = worker.scrape(id_, SINGLE_LIMIT_S, call_id)
        failpoint("committed-call")
        return lpm.results.report(id_) | {"status": status}
    finally:
        lpm.close()


@app.task(name="scrape_chunk_task", bind=True)
def scrape_chunk_task(self: Any, ledger_id: str, task_ids: list[str]) -> int:
    """Work for one time slice; the chunk says that there is work, the ledger says which comes
    first."""
    failpoint("delivered")
    child = _child()
    if ledger_id != child.worker.ledger_id:
        log.error(
            "a message of ledger %s came to a worker of ledger %s, and goes back: "
            "two stacks share this Redis; give each a database number of its own in REDIS_URL",
            ledger_id,
            child.worker.ledger_id,
        )
        time.sleep(1)
        raise Reject("another ledger's", requeue=True)
    begun = child.worker.run_slice(self.request.id, _consumed_queues())
    child.maintainer.kick()
    failpoint("acknowledging")
    return begun


def _consumed_queues() -> list[str]:
    """The queues this worker was started for, the more urgent first."""
    return [name for name in QUEUES if name in app.amqp.queues.consume_from]


def annotated_rate() -> str | None:
    """The rate that Celery's annotations give to either name of the task: here it limits each
    domain, over all workers.

    As Celery has it, it would limit messages, each worker for itself, and hold up other domains'
    work.
    """
    rate = scrape_task.rate_limit or crawl_url.rate_limit
    return None if rate is None else rate if "/" in str(rate) else f"{rate}/s"


def fleet_permit(owners_folder: Path, holder: str) -> RedisRateLimiter:
    """The permit that all workers on this Redis share."""

    def living() -> list[str]:
        return sorted({holder, *(note.id for note in owners.living(owners_folder))})

    return RedisRateLimiter(
        broker_url,
        settings.redis_rate_limiter_db,
        holder,
        settings.circuit_breaker_fail_max,
        share=lambda: len(living()),
        place=lambda: living().index(holder),
    )


class RedisBroker:
    """The maintainer's view of Celery on Redis."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._redis = connect(url)

    def publish(self, ledger_id: str, chunks: Sequence[Chunk]) -> None:
        """Put chunks into their queues, some hundreds to a round trip."""
        try:
            self._redis.ping()  # fails within its deadline, where the producer would try again for long
            with app.connection_for_write() as connection:
                producer: Any = app.amqp.Producer(
                    connection, auto_declare=False
                )  # typed without kombu 5.7's batch
                self._publish(producer, ledger_id, chunks)
        except (redis.RedisError, KombuError, OSError) as error:
            raise self._down(error) from error

    def _publish(self, producer: Any, ledger_id: str, chunks: Sequence[Chunk]) -> None:
        with producer.batch(max_size=500):
            for chunk in chunks:
                scrape_chunk_task.apply_async(
                    (ledger_id, list(chunk.task_ids)),
                    task_id=chunk.message_id,
                    producer=producer,
                    queue=chunk.queue,
                    headers={"ledger": ledger_id},
                    retry=False,
                )

    def queued(self) -> list[Queued]:
        """All messages in the queues."""
        try:
            with self._redis.pipeline(transaction=False) as pipe:
                for name in QUEUES:
                    pipe.lrange(name, 0, -1)
                replies = pipe.execute()
        except redis.RedisError as error:
            raise self._down(error) from error
        return [
            _queued(name, body)
            for name, reply in zip(QUEUES, replies, strict=True)
            for body in reply
        ]

    def withdraw(self, messages: Sequence[Queued]) -> None:
        """Take these out of their queues, as far as they are still there."""
        try:
            with self._redis.pipeline(transaction=False) as pipe:
                for each in messages:
                    pipe.lrem(each.queue, 1, each.body)  # type: ignore[arg-type]  # bytes are sent as they are
                pipe.execute()
        except redis.RedisError as error:
            raise self._down(error) from error

    def mirror(self, job: Job, books: Books) -> None:
        """Show a job's progress under `scrape:<job>:…`."""
        status = (
            "COMPLETE"
            if job.completed_at
            else "PROCESSING"
            if books.accepted > books.pending
            else "DISPATCHED"
        )
        fields: dict[str, str | float] = {
            "status": status,
            "total": books.accepted,
            "completed": books.completed,
            "failed": books.failed,
            "result_count": books.completed,
            "started_at": job.created_at,
            "completed_at": job.completed_at or "",
        }
        try:
            with self._redis.pipeline(transaction=False) as pipe:
                for name, value in fields.items():
                    pipe.set(f"scrape:{job.name}:{name}", value, ex=PROGRESS_EXPIRES_S)
                pipe.execute()
        except redis.RedisError as error:
            raise self._down(error) from error

    def close(self) -> None:
        """Close the connection."""
        self._redis.close()

    def _down(self, error: Exception) -> BrokerDown:
        return BrokerDown(
            f"Redis at {urls.without_credentials(self._url)} does not answer as it should ({error})"
        )


def _queued(name: str, body: bytes) -> Queued:
    try:
        headers = msgspec.json.decode(body)["headers"]
        return Queued(str(headers["id"]), str(headers.get("ledger", "")), name, body)
    except (ValueError, KeyError, TypeError, AttributeError):
        return Queued("", "", name, body)


class PageEvents:
    """Sends Celery's own task events for single pages, so that Flower lists pages and not
    chunks."""

    def __init__(self, hostname: str) -> None:
        self._hostname = hostname
        self._queue: queue.SimpleQueue[tuple[str, dict[str, Any]] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name="events", daemon=True)
        self._thread.start()

    def __call__(self, task: Task, outcome: Outcome | None) -> None:
        """Note a page's begin or end; where the queue is full the event is dropped, never the page
        delayed."""
        small = task.job_size is not None and task.job_size <= MAX_JOB_WITH_EVENTS
        if not small or self._queue.qsize() >= MAX_EVENTS:
            return
        about: dict[str, Any] = {"uuid": task.task_id, "timestamp": time.time()}
        if outcome is None:
            args = {
                "name": "scrape_task",
                "args": repr((task.url,)),
                "kwargs": "{}",
                "retries": task.failures,
            }
            self._queue.put(("task-received", about | args))
            self._queue.put(("task-started", about))
        elif outcome.status is TaskStatus.COMPLETED and outcome.page:
            result = f"{outcome.page.status}, {len(outcome.page.body):,} bytes"
            self._queue.put(
                ("task-succeeded", about | {"result": result, "runtime": outcome.page.fetch_s})
            )
        else:
            kind = "task-retried" if outcome.status is TaskStatus.PENDING else "task-failed"
            error = f"{outcome.error_type}: {outcome.error_message}"
            self._queue.put((kind, about | {"exception": error, "traceback": ""}))

    def stop(self) -> None:
        """Send what is left."""
        self._stopping.set()
        self._queue.put(None)
        self._thread.join(2)

    def _send_all(self) -> None:
        while True:
            try:
                self._send_while_connected()
                return
            except (redis.RedisError, KombuError, OSError):
                time.sleep(1)  # events are for looking at: what was not sent is not sent again

    def _send_while_connected(self) -> None:
        with app.connection_for_write() as connection:
            dispatcher = app.events.Dispatcher(
                connection, hostname=self._hostname, buffer_group={"task"}
            )
            dispatcher.buffer_limit = 200
            ended = False
            while not ended:
                items = [self._queue.get()]
                self._stopping.wait(GATHER_S)  # one message costs as much as several pages
                while not self._queue.empty():
                    items.append(self._queue.get())
                ended = None in items
                for kind, fields in filter(None, items):
                    dispatcher.send(kind, **fields)
                dispatcher.flush(errors=False)


class ConsumptionWatch:
    """Ends a worker that lives but takes no messages, so that whatever started it starts it again.

    Each child watches for itself: idle for long beside a queue that is never empty, it was
    forgotten by its parent. Nothing else shows that: such a parent answers pings and keeps its
    connections.
    """

    def __init__(self, child: "_Child", url: str, limit_s: float) -> None:
        self._child, self._limit_s = child, limit_s
        self._redis = connect(url)
        self._parent = os.getppid()
        threading.Thread(target=self._run, name="consumption", daemon=True).start()

    def _run(self) -> None:
        idle_since: float | None = None
        seen = 0
        while not self._child.worker.stopping:
            time.sleep(self._limit_s / 10)
            before, seen = seen, self._child.deliveries
            if self._child.worker.busy or seen != before or not self._work_waits():
                idle_since = None
            elif idle_since is None:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > self._limit_s and os.getppid() == self._parent:
                log.critical(
                    "this worker takes no messages although there are some; it is ended, to be started again"
                )
                os.kill(self._parent, signal.SIGKILL)

    def _work_waits(self) -> bool:
        try:
            return any(self._redis.llen(name) for name in _consumed_queues())
        except redis.RedisError:
            return False


class _Child:
    """What a prefork child has beside Celery: a worker, a maintainer and an inbox standing by, and
    events."""

    def __init__(self, hostname: str, give_way: Callable[[], None] = lambda: None) -> None:
        _raise_file_limit()
        self.deliveries = 0
        self.events = PageEvents(hostname)
        self.inbox = Inbox(settings, give_way)
        mine = msgspec.structs.replace(settings, rate=settings.rate or annotated_rate())
        lpm = LocalPersistenceManager(settings.data_dir, settings.raw)
        self.worker = Worker(mine, watch=self.events, permit=partial(fleet_permit, lpm.owners))
        self.maintainer = Maintainer(
            lpm, RedisBroker(broker_url), settings, self.worker.forget, waits=Waits(settings, lpm)
        )
        threading.Thread(target=self.maintainer.run, name="maintainer", daemon=True).start()
        threading.Thread(target=self.inbox.run, name="inbox", daemon=True).start()
        self.worker.watch_stop(_stop_pipe[0])

    def stop(self) -> None:
        self.maintainer.stop()
        self.inbox.stop()
        self.worker.stop()
        self.events.stop()


def _raise_file_limit() -> None:
    """A thousand domains keep a thousand connections; the usual soft limit is 1,024 files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


_children: dict[int, _Child] = {}
"""This process's own, under its pid: a fork must not take its parent's for its own."""
_stop_pipe = os.pipe()
"""Written to once when the worker is told to stop, and never read: every child sees it readable."""
_stops: list[float] = []
_NOHUP = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def _child() -> _Child:
    if os.getpid() not in _children:
        _children[os.getpid()] = _Child("crawler@inline")
    return _children[os.getpid()]


@signals.worker_init.connect
def _check_before_start(sender: Any, **_: Any) -> None:
    """Refuse in one line what cannot work, before any process is forked."""
    # Celery announces at every lost connection that a default will change; ours is set.
    warnings.filterwarnings("ignore", category=CPendingDeprecationWarning)
    try:
        if sender.pool_cls.__module__ != "celery.concurrency.prefork":
            raise ServiceError(
                "only the prefork pool can survive a page that hangs its parser; leave -P away"
            )
        LocalPersistenceManager(settings.data_dir).close_after_check()
        sites.load(settings.config_dir, settings.rate)
        try:
            check_redis(connect(broker_url))
        except redis.RedisError:
            log.warning("Redis does not answer yet; Celery goes on trying")
    except CrawlerError as error:
        log.critical("%s", error)
        raise SystemExit(error.exit_code) from None


@signals.setup_logging.connect
def _set_up_logging(loglevel: int | None = None, **_: Any) -> None:
    handler = logs.handler()
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(loglevel or logging.WARNING)
    logging.getLogger("crawler").setLevel(settings.log_level.upper())


@signals.worker_ready.connect
def _end_with_terminal(**_: Any) -> None:
    """A closed terminal ends a worker in order, unless nohup started it; Celery's would die, or
    start anew."""

    def stop(*_: object) -> None:
        logs.leave_lost_terminal()
        os.kill(os.getpid(), signal.SIGTERM)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a shell sends it to its jobs once more

    signal.signal(signal.SIGHUP, signal.SIG_IGN if _NOHUP else stop)


@signals.worker_process_init.connect
def _begin_child(sender: Any, **_: Any) -> None:
    signal.signal(
        signal.SIGHUP, signal.SIG_IGN
    )  # a closed terminal tells the parent, too, and that stops its children
    child = _children[os.getpid()] = _Child(
        str(sender), lambda: os.kill(os.getppid(), signal.SIGTERM)
    )
    ConsumptionWatch(child, broker_url, 2 * settings.stall_s)


@signals.task_prerun.connect
def _count_delivery(**_: Any) -> None:
    child = _children.get(os.getpid())
    if child:
        child.deliveries += 1


@signals.worker_process_shutdown.connect
def _end_child(**_: Any) -> None:
    child = _children.pop(os.getpid(), None)
    if child:
        child.stop()


# Celery's handler of SIGTERM sends this signal under a lock. With one that its own thread cannot
# take twice, a second SIGTERM in that moment waits for itself, and the worker for kill -9.
signals.worker_shutting_down.lock = threading.RLock()  # type: ignore[attr-defined]  # unknown to its stubs


@signals.worker_shutting_down.connect
def _tell_children(**_: Any) -> None:
    """The first stop lets children release what they hold; a second one ends everything at once."""
    _stops.append(time.monotonic())
    os.write(_stop_pipe[1], b".")
    if len(_stops) > 1:
        os._exit(143)  # the children die with their parent, and their leases with them


def fill_window() -> int:
    """Publish the next chunks from a process that is no worker; returns how many tasks they
    hold."""
    with (
        closing(LocalPersistenceManager(settings.data_dir)) as lpm,
        closing(RedisBroker(broker_url)) as broker,
    ):
        try:
            return Maintainer(lpm, broker, settings).fill()
        except BrokerDown as error:
            raise ServiceError(str(error)) from error
