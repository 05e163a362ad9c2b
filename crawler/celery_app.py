"""The Celery application: its settings, the messages in its queues, and events for Flower.

Every setting that differs from Celery's own default prevents a loss or a stall that was seen
without it.
"""

import ipaddress
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec
import redis
from celery import Celery, signals
from kombu import Exchange, Queue
from kombu.exceptions import KombuError

from crawler import config, urls
from crawler.errors import ServiceError
from crawler.models import MESSAGE_QUEUES, Outcome, Task, TaskStatus
from crawler.redis_client import RedisAddress, connect
from crawler.stack import redis_address

if TYPE_CHECKING:
    from crawler.db.dispatch import Chunk

CALLS = (
    "scrape_task",
    "crawl_url",
    "scrape_site_task",
    "scrape_chunk_task",
    "aggregate_results_task",
)
"""The tasks that other programs send. Our own messages are all `slice_task`."""
MAX_MESSAGES_PER_ROUND_TRIP = 500
MAX_JOB_WITH_EVENTS = 10_000
"""Pages of larger jobs send no events: Flower keeps each event in memory."""
MAX_QUEUED_EVENTS = 10_000
GATHER_S = 0.5
"""How long to gather events for one message. A message costs as much as several pages."""
REFUSAL = (
    "This Flower has no password, so it answers to an address or localhost only, not to a name. "
    "Set FLOWER_BASIC_AUTH=user:password to reach it by name.\n"
)
settings = config.load()


def backend_address(broker: str) -> str:
    """Return the database for results: the one after the broker's, so that each can be emptied."""
    address = RedisAddress.parse(broker)
    return address.for_celery(address.db + 1)


broker_url = RedisAddress.parse(redis_address(settings)).for_celery()


class App(Celery):
    """Refuses to send unknown tasks: `celery call` would print an id, and the worker drop them."""

    def send_task(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Send a known task."""
        if name not in self.tasks:
            known = ", ".join(sorted(each for each in self.tasks if not each.startswith("celery.")))
            raise click.UsageError(f"there is no task {name!r}; there are {known}")
        return super().send_task(name, *args, **kwargs)


# Flower as shipped listens on every interface without a password.
os.environ.setdefault("FLOWER_ADDRESS", "127.0.0.1")
app = App("crawler", broker=broker_url, backend=backend_address(broker_url))
app.conf.update(
    # Each queue has its own exchange and routing key. With Celery's defaults, a message would go
    # to both queues.
    task_queues=[Queue(name, Exchange(name), routing_key=name) for name in MESSAGE_QUEUES],
    # Someone waits for what these return.
    task_routes={name: {"queue": "urgent"} for name in CALLS},
    task_default_queue="default",
    task_default_exchange="default",
    task_default_routing_key="default",
    task_create_missing_queues=False,
    task_serializer="json",
    result_serializer="json",
    accept_content=["json"],
    enable_utc=True,
    timezone="UTC",
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    result_expires=3600,
    task_soft_time_limit=120,
    task_time_limit=180,
    worker_prefetch_multiplier=1,
    worker_concurrency=None,
    worker_pool="prefork",
    worker_pool_start_method="fork",
    worker_pool_restarts=True,  # a child can end after its message: see `restart_if_needed`
    worker_cancel_long_running_tasks_on_connection_loss=False,
    worker_send_task_events=True,
    task_send_sent_event=True,
    worker_hijack_root_logger=False,
    worker_proc_alive_timeout=30,
    include=["crawler.child"],
    worker_consumer="crawler.child:Consumer",
    beat_scheduler="crawler.beat:Scheduler",
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_transport_options={
        "visibility_timeout": 300,
        "unacked_restore_interval": 5,
        "unacked_restore_throttle": 1,
        "queue_order_strategy": "priority",
        "socket_timeout": 30,
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
        "health_check_interval": 10,
    },
    result_backend_transport_options={"socket_timeout": 30, "socket_connect_timeout": 5},
    redis_socket_timeout=30,
    redis_socket_connect_timeout=5,
)


def follow_redis(url: str) -> None:
    """Use the Redis of a stack that was started after this module was loaded."""
    address = RedisAddress.parse(url).for_celery()
    if app.conf.broker_url != address:
        app.conf.update(broker_url=address, result_backend=backend_address(address))


class Queued(NamedTuple):
    """A message in a queue; `ledger_id` is empty unless it is a chunk."""

    id: str
    ledger_id: str
    queue: str
    body: bytes


class RedisBroker:
    """Publishes, lists and withdraws messages; raises `ServiceError`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._redis = connect(url)

    def publish(self, ledger_id: str, chunks: Sequence["Chunk"]) -> None:
        """Put chunks into their queues."""
        task = app.tasks["slice_task"]
        with self._errors():
            self._redis.ping()  # it fails within its timeout; the producer would keep trying
            with app.connection_for_write() as connection:
                # Celery's stubs do not know kombu 5.7's batch.
                producer: Any = app.amqp.Producer(connection, auto_declare=False)
                with producer.batch(max_size=MAX_MESSAGES_PER_ROUND_TRIP):
                    for chunk in chunks:
                        task.apply_async(
                            (ledger_id, list(chunk.task_ids)),
                            task_id=chunk.message_id,
                            producer=producer,
                            queue=chunk.queue,
                            headers={"ledger": ledger_id},
                            retry=False,
                        )

    def queued(self) -> list[Queued]:
        """All messages in the queues."""
        with self._pipeline() as pipe:
            for name in MESSAGE_QUEUES:
                pipe.lrange(name, 0, -1)
            bodies_by_queue = zip(MESSAGE_QUEUES, pipe.execute(), strict=True)
        return [_queued(name, body) for name, bodies in bodies_by_queue for body in bodies]

    def withdraw(self, messages: Sequence[Queued]) -> None:
        """Remove messages from their queues, if they are still there."""
        with self._pipeline() as pipe:
            for each in messages:
                # redis-py sends bytes unchanged, but its types ask for text.
                pipe.lrem(each.queue, 1, each.body)  # type: ignore[arg-type]
            pipe.execute()

    def close(self) -> None:
        """Close the connection."""
        self._redis.close()

    @contextmanager
    def _pipeline(self) -> "Iterator[redis.client.Pipeline]":
        with self._errors(), self._redis.pipeline(transaction=False) as pipe:
            yield pipe

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (redis.RedisError, KombuError, OSError) as error:
            where = urls.without_credentials(self._url)
            raise ServiceError(
                f"Redis at {where} does not answer as it should ({error})"
            ) from error


def _queued(name: str, body: bytes) -> Queued:
    try:
        headers = msgspec.json.decode(body)["headers"]
        return Queued(str(headers["id"]), str(headers.get("ledger", "")), name, body)
    except (ValueError, KeyError, TypeError, AttributeError):
        return Queued("", "", name, body)


class PageEvents:
    """Sends Celery's task events for single pages, so that Flower lists pages, not chunks."""

    def __init__(self, app: Celery, hostname: str) -> None:
        self._app, self._hostname = app, hostname
        self._queue: queue.SimpleQueue[tuple[str, dict[str, Any]] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name="events", daemon=True)
        self._thread.start()

    def __call__(self, task: Task, outcome: Outcome | None) -> None:
        """Queue the events of a page's begin or end. A full queue drops them."""
        small = task.job_size is not None and task.job_size <= MAX_JOB_WITH_EVENTS
        if not small or self._queue.qsize() >= MAX_QUEUED_EVENTS:
            return
        about: dict[str, Any] = {"uuid": task.task_id, "timestamp": time.time()}
        if outcome is None:
            received = about | {
                "name": "scrape_task",
                "args": repr((task.url,)),
                "kwargs": "{}",
                "retries": task.failures,
            }
            self._queue.put(("task-received", received))
            self._queue.put(("task-started", about))
        elif outcome.status is TaskStatus.COMPLETED and outcome.page:
            about["result"] = f"{outcome.page.status}, {len(outcome.page.body):,} bytes"
            about["runtime"] = outcome.page.fetch_s
            self._queue.put(("task-succeeded", about))
        else:
            kind = "task-failed"
            if outcome.status is TaskStatus.PENDING:
                kind = "task-retried"
            about["exception"] = f"{outcome.error_type}: {outcome.error_message}"
            about["traceback"] = ""
            self._queue.put((kind, about))

    def stop(self) -> None:
        """Send the queued events and stop."""
        self._stopping.set()
        self._queue.put(None)
        self._thread.join(2)

    def _send_all(self) -> None:
        while True:
            try:
                self._send_while_connected()
                return
            except (redis.RedisError, KombuError, OSError):
                time.sleep(1)  # the events that were being sent are dropped

    def _send_while_connected(self) -> None:
        with self._app.connection_for_write() as connection:
            dispatcher = self._app.events.Dispatcher(
                connection, hostname=self._hostname, buffer_group={"task"}
            )
            dispatcher.buffer_limit = 200
            ended = False
            while not ended:
                items = [self._queue.get()]
                self._stopping.wait(GATHER_S)
                while not self._queue.empty():
                    items.append(self._queue.get())
                ended = None in items
                for kind, fields in filter(None, items):
                    dispatcher.send(kind, **fields)
                dispatcher.flush(errors=False)


@signals.import_modules.connect
def protect_flower(**_: Any) -> None:
    """Protect Flower, if this process runs it, from DNS rebinding.

    A page of any site can make its own name resolve to 127.0.0.1, and then read what Flower shows
    as if it came from its own origin. The browser still sends that name as `Host`. So Flower
    without a password answers only to addresses and `localhost`.
    """
    module = sys.modules.get("flower.app")
    if module is None:
        return
    from tornado.web import RequestHandler

    class Refusal(RequestHandler):
        """The answer to any other name."""

        def prepare(self) -> None:
            self.set_status(403)
            self.set_header("Content-Type", "text/plain; charset=utf-8")
            self.finish(REFUSAL)

    flower: Any = module.Flower
    find_handler = flower.find_handler

    def guarded(self: Any, request: Any, **details: Any) -> Any:
        options = self.options
        open_to_names = options.basic_auth or options.auth or options.unix_socket
        if open_to_names or _is_safe_host(request.host_name):
            return find_handler(self, request, **details)
        return self.get_handler_delegate(request, Refusal)

    flower.find_handler = guarded


def _is_safe_host(host: str) -> bool:
    """Whether a host is an address or `localhost`: no other site's DNS can point it here."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
