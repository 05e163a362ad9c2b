"""Celery's worker: its consumer, and the start and stop of its prefork children.

Celery imports this module in workers only.
"""

import atexit
import contextlib
import gc
import importlib
import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psutil
import redis
from billiard.process import current_process
from celery import signals
from celery.exceptions import CPendingDeprecationWarning
from celery.worker import consumer
from redis.exceptions import OutOfMemoryError

from crawler import logs, sites, times
from crawler.celery_app import PageEvents, RedisBroker, app, broker_url, settings
from crawler.db import owners
from crawler.errors import CrawlerError, ServiceError
from crawler.fetch.browser import find_browser
from crawler.fetch.browser_process import lacking
from crawler.inbox import Inbox
from crawler.lpm import LocalPersistenceManager
from crawler.maintainer import Maintainer
from crawler.models import BROWSER, MESSAGE_QUEUES, QUEUES
from crawler.pool import LEAVE_SIGNAL, follow_stack
from crawler.process import raise_file_limit
from crawler.redis_client import check_redis, connect
from crawler.resilience.redis_rate_limiter import RedisRateLimiter
from crawler.scraping.jobs import ProgressMirror
from crawler.waits import WaitFinder
from crawler.worker import Worker, tune_garbage_collection

log = logging.getLogger(__name__)

MAX_STOP_S = 10.0
"""How long a worker may take to stop. Celery can wait for ever for a child that died or hangs."""
MAX_FINISH_S = 15.0
"""How long pages in flight may go on in a child that is to be replaced. Others take the rest."""


class MessageHeaders(msgspec.Struct):
    """The types that Celery takes for granted: others end the worker, again and again."""

    task: str
    id: str
    timelimit: tuple[float | None, float | None] | None = None
    eta: str | None = None
    expires: str | float | None = None
    retries: int | None = None
    root_id: str | None = None
    parent_id: str | None = None
    group: str | None = None
    argsrepr: str | None = None
    kwargsrepr: str | None = None


class Consumer(consumer.Consumer):
    """Celery's consumer, but it reconnects at least every 2 s, and survives a full Redis and
    malformed messages.

    In Celery, the pauses grow to 30 s, which no setting changes, and the others end the worker.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.connection_errors = (*vars(self)["connection_errors"], OutOfMemoryError)

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Any:
        """Celery's own, for messages with sound headers; others are dropped."""
        handle = super().create_task_handler(*args, **kwargs)

        def receive(message: Any) -> None:
            try:
                msgspec.convert(message.headers, MessageHeaders)
            except msgspec.ValidationError as error:
                log.error("a malformed message is dropped: %s", error)  # noqa: TRY400
                message.ack_log_error(log, self.connection_errors)
                return
            handle(message)

        return receive

    def bucket_for_task(self, type: Any) -> None:
        """None: a `rate_limit` applies per domain over all workers, not per message."""

    def register_with_event_loop(self, hub: Any) -> None:
        """Celery's own, and a timer that ends with the connection, like its own timers."""
        super().register_with_event_loop(hub)
        hub.call_repeatedly(1.0, follow_stack, self, settings.data_dir)

    def on_connection_error_before_connected(self, exc: Exception) -> Any:
        """Celery's own, after a pause where Redis is full."""
        _pause_if_full(exc)
        return super().on_connection_error_before_connected(exc)

    def on_connection_error_after_connected(self, exc: Exception) -> Any:
        """The same for a connection that was up."""
        _pause_if_full(exc)
        return super().on_connection_error_after_connected(exc)

    def ensure_connected(self, conn: Any) -> Any:
        """Celery's own, with shorter pauses."""
        conn.ensure_connection = partial(
            conn.ensure_connection, interval_start=0.5, interval_step=0.5, interval_max=2
        )
        return super().ensure_connected(conn)


def _pause_if_full(error: Exception) -> None:
    """Sleep if Redis is full: it refuses at once, so retries would follow without a pause."""
    if isinstance(error, OutOfMemoryError):
        time.sleep(1)


def consumed_queues() -> list[str]:
    """Return the queues of this worker, the more urgent first."""
    return [name for name in MESSAGE_QUEUES if name in app.amqp.queues.consume_from]


def annotated_rate() -> str | None:
    """Return the rate in Celery's annotations. Here it limits each domain over all workers.

    In Celery it would limit messages in each worker, and delay other domains.
    """
    rate = app.tasks["scrape_task"].rate_limit or app.tasks["crawl_url"].rate_limit
    if rate is None or "/" in str(rate):
        return rate
    return f"{rate}/s"


def fleet_permit(owners_folder: Path, holder: str) -> RedisRateLimiter:
    """Return the rate limiter that all workers on this Redis share."""

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


def announce_end(chord_id: str, summary: dict[str, Any]) -> None:
    """Give those who wait for the callback of a job its result, as Celery would for a chord."""
    app.backend.store_result(chord_id, summary, "SUCCESS")


class WorkerChild:
    """The parts of a prefork child: worker, page events, maintainer and inbox."""

    def __init__(
        self, hostname: str, give_way: Callable[[], None] = lambda: None, maintains: bool = True
    ) -> None:
        """`give_way` ends the worker if another kernel uses the data folder; `maintains`: it takes
        part in what keeps a stack going, besides its pages."""
        raise_file_limit()
        tune_garbage_collection()
        self.deliveries = 0
        self.events = PageEvents(app, hostname)
        self.inbox = Inbox(settings, give_way)
        mine = msgspec.structs.replace(settings, rate=settings.rate or annotated_rate())
        lpm = LocalPersistenceManager(settings.data_dir, settings.raw)
        queues = consumed_queues()
        self.worker = Worker(
            mine,
            watch=self.events,
            permit=partial(fleet_permit, lpm.owners),
            sites=_sites_at_start,
            queues=queues,
            browser=find_browser(settings) if BROWSER in queues else None,
        )
        self.maintainer = Maintainer(
            lpm,
            RedisBroker(broker_url),
            settings,
            self.worker.forget,
            waits=WaitFinder(settings, lpm),
            mirror=ProgressMirror(
                broker_url,
                self.worker.ledger_id,
                settings.chunk_size,
                times.zone(settings.timezone),
                announce_end,
            ),
        )
        if maintains:
            threading.Thread(target=self.maintainer.run, name="maintainer", daemon=True).start()
            threading.Thread(target=self.inbox.run, name="inbox", daemon=True).start()
        self.worker.watch_stop(_stop_pipe[0])

    def restart_if_needed(self) -> None:
        """If a scraper has changed or fewer processes are enough, finish the pages in flight and
        end after this message. Celery starts a new child if one is missing."""
        if not self.worker.must_restart:
            return
        pool_worker = getattr(current_process(), "_target", None)
        sentinel = getattr(pool_worker, "_shutdown", None)  # see `worker_pool_restarts`
        if sentinel is not None and not sentinel.is_set():
            if self.worker.is_leaving:
                log.info("fewer processes are enough: this process ends")
            else:
                log.info("a scraper has changed: this process ends, and a new one takes its place")
            self.worker.finish_pages(MAX_FINISH_S)
            sentinel.set()

    def leave(self) -> None:
        """Finish the pages in flight and end, after the message in hand if there is one."""
        self.worker.leave()
        # In a signal handler the main thread may hold the lock of the event that ends it.
        threading.Thread(target=self._leave, name="leave", daemon=True).start()

    def _leave(self) -> None:
        self.restart_if_needed()
        if not self.worker.busy:  # it waits for a message, without a limit
            os.kill(os.getpid(), signal.SIGTERM)

    def stop(self) -> None:
        """Stop all parts."""
        self.maintainer.stop()
        self.inbox.stop()
        self.worker.stop()
        self.events.stop()


class ConsumptionWatch:
    """Ends a worker that takes no messages, so that its supervisor starts it again.

    Each child watches for itself. If it stays idle while its queues have messages, its parent has
    forgotten it. Nothing else shows that: such a parent answers pings and keeps its connections.
    """

    def __init__(self, child: WorkerChild, url: str, limit_s: float) -> None:
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
            if self._child.worker.busy or seen != before or not self._has_messages():
                idle_since = None
            elif idle_since is None:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > self._limit_s and os.getppid() == self._parent:
                log.critical(
                    "this worker takes no messages although there are some; "
                    "it is ended, to be started again"
                )
                os.kill(self._parent, signal.SIGKILL)

    def _has_messages(self) -> bool:
        try:
            return any(self._redis.llen(name) for name in consumed_queues())
        except redis.RedisError:
            return False


_children: dict[int, WorkerChild] = {}
"""By pid, because a fork inherits its parent's entry."""
_stop_pipe = os.pipe()
"""Written to when the worker stops, and never read, so that every child sees it readable."""
_stops: list[float] = []
_sites_at_start: sites.Sites | None = None
"""For children that are forked while a file of a site is broken."""
_NOHUP = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def this_child() -> WorkerChild:
    """Return the parts of this process; make them if this is no worker's child.

    They end before the interpreter does: a thread that is in SQLite then would crash it.
    """
    if os.getpid() not in _children:
        child = WorkerChild("crawler@inline", maintains=False)
        atexit.register(child.stop)
        _children[os.getpid()] = child
    return _children[os.getpid()]


@signals.worker_init.connect
def _check_before_start(sender: Any, **_: Any) -> None:
    """End with one line of error before any fork, if the worker cannot work."""
    global _sites_at_start  # noqa: PLW0603 - what a fork inherits
    # Celery announces at every lost connection that a default will change; ours is set.
    warnings.filterwarnings("ignore", category=CPendingDeprecationWarning)
    try:
        if sender.pool_cls.__module__ != "celery.concurrency.prefork":
            raise ServiceError(
                "only the prefork pool can survive a page that hangs its parser; leave -P away"
            )
        if BROWSER in consumed_queues():
            if lack := lacking(settings.browser_path):
                raise ServiceError(lack)
            importlib.import_module("crawler.fetch.browser_page")  # once, not in each child
        LocalPersistenceManager(settings.data_dir).close_after_check()
        _sites_at_start = sites.load(settings.config_dir, settings.rate or annotated_rate())
        try:
            check_redis(connect(broker_url))
        except redis.RedisError:
            log.warning("Redis does not answer yet; Celery goes on trying")
    except CrawlerError as error:
        log.critical("%s", error)
        raise SystemExit(error.exit_code) from None
    # Celery searches for garbage before each fork: 0.2 s for each child, in what is there for good.
    gc.freeze()


@signals.celeryd_init.connect
def _choose_queues(options: dict[str, Any], **_: Any) -> None:
    """Without -Q, leave the queue of browsers to workers that name it."""
    if not options.get("queues"):
        app.amqp.queues.select(list(QUEUES))


@signals.celeryd_init.connect
def _check_schedules(options: dict[str, Any], **_: Any) -> None:
    """End with one line of error if the beat of `worker --beat` could not work."""
    if not options.get("beat"):
        return
    from crawler.schedules import SiteSchedules  # no other worker needs it

    try:
        SiteSchedules(settings)
    except CrawlerError as error:
        log.critical("%s", error)
        raise SystemExit(error.exit_code) from None


@signals.setup_logging.connect
def _set_up_logging(loglevel: int | None = None, **_: Any) -> None:
    root = logging.getLogger()
    root.handlers[:] = [logs.handler()]
    root.setLevel(loglevel or logging.WARNING)
    logging.getLogger("crawler").setLevel(settings.log_level.upper())


@signals.worker_ready.connect
def _end_with_terminal(**_: Any) -> None:
    """Stop the worker in order when its terminal closes, unless nohup started it.

    Celery alone would die or restart.
    """

    def stop(*_: object) -> None:
        logs.leave_lost_terminal()
        os.kill(os.getpid(), signal.SIGTERM)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a shell sends it to its jobs once more

    if _NOHUP:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGHUP, stop)


@signals.worker_process_init.connect
def _begin_child(sender: Any, **_: Any) -> None:
    # When a terminal closes, the parent hears of it and stops its children.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    child = WorkerChild(str(sender), lambda: os.kill(os.getppid(), signal.SIGTERM))
    _children[os.getpid()] = child
    signal.signal(LEAVE_SIGNAL, lambda *_: child.leave())
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


# Celery's SIGTERM handler sends this signal under a lock. With a lock that a thread cannot take
# twice, a second SIGTERM at that moment would deadlock the worker.
signals.worker_shutting_down.lock = threading.RLock()  # type: ignore[attr-defined]  # not in stubs


@signals.worker_shutting_down.connect
def _tell_children(**_: Any) -> None:
    """At the first stop, children release their tasks. A second stop ends everything at once."""
    _stops.append(time.monotonic())
    os.write(_stop_pipe[1], b".")
    if len(_stops) > 1:
        os._exit(143)  # the children die with their parent, and their leases end
    signal.signal(signal.SIGALRM, _end_at_once)
    signal.setitimer(signal.ITIMER_REAL, MAX_STOP_S)


def _end_at_once(*_: object) -> None:
    try:
        log.critical(
            "the worker did not stop within %g s, and is ended; no task is lost", MAX_STOP_S
        )
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()  # one that is stopped would not die with its parent
    finally:
        os._exit(143)
