"""Celery's queues on Redis: the messages of the maintainer, and events for Flower."""

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import redis
from celery import Celery
from kombu.exceptions import KombuError

from crawler import urls
from crawler.celery_app import app
from crawler.db.tasks import Chunk
from crawler.maintainer import BrokerDown, Queued
from crawler.models import QUEUES, Books, Job, Outcome, Task, TaskStatus
from crawler.redis_client import connect

MAX_MESSAGES_PER_ROUND_TRIP = 500
PROGRESS_EXPIRES_S = 86_400
MAX_JOB_WITH_EVENTS = 10_000
"""Pages of larger jobs send no events: Flower keeps each event in memory."""
MAX_QUEUED_EVENTS = 10_000
GATHER_S = 0.5
"""How long to gather events for one message. A message costs as much as several pages."""


class RedisBroker:
    """Publishes, lists and withdraws messages; raises `BrokerDown`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._redis = connect(url)

    def publish(self, ledger_id: str, chunks: Sequence[Chunk]) -> None:
        """Put chunks into their queues."""
        task = app.tasks["scrape_chunk_task"]
        with self._errors():
            self._redis.ping()  # fails within its deadline, where the producer would keep trying
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
            for name in QUEUES:
                pipe.lrange(name, 0, -1)
            bodies_by_queue = zip(QUEUES, pipe.execute(), strict=True)
        return [_queued(name, body) for name, bodies in bodies_by_queue for body in bodies]

    def withdraw(self, messages: Sequence[Queued]) -> None:
        """Take these out of their queues, if they are still there."""
        with self._pipeline() as pipe:
            for each in messages:
                # Its stubs want text; bytes are sent as they are.
                pipe.lrem(each.queue, 1, each.body)  # type: ignore[arg-type]
            pipe.execute()

    def mirror(self, job: Job, books: Books) -> None:
        """Show a job's progress under `scrape:<job>:…`."""
        if job.completed_at:
            status = "COMPLETE"
        elif books.accepted > books.pending:
            status = "PROCESSING"
        else:
            status = "DISPATCHED"
        fields: dict[str, str | float] = {
            "status": status,
            "total": books.accepted,
            "completed": books.completed,
            "failed": books.failed,
            "result_count": books.completed,
            "started_at": job.created_at,
            "completed_at": job.completed_at or "",
        }
        with self._pipeline() as pipe:
            for name, value in fields.items():
                pipe.set(f"scrape:{job.name}:{name}", value, ex=PROGRESS_EXPIRES_S)
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
            raise BrokerDown(f"Redis at {where} does not answer as it should ({error})") from error


def _queued(name: str, body: bytes) -> Queued:
    try:
        headers = msgspec.json.decode(body)["headers"]
        return Queued(str(headers["id"]), str(headers.get("ledger", "")), name, body)
    except (ValueError, KeyError, TypeError, AttributeError):
        return Queued("", "", name, body)


class PageEvents:
    """Sends Celery's own task events for single pages, so that Flower lists pages and not
    chunks."""

    def __init__(self, app: Celery, hostname: str) -> None:
        self._app, self._hostname = app, hostname
        self._queue: queue.SimpleQueue[tuple[str, dict[str, Any]] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name="events", daemon=True)
        self._thread.start()

    def __call__(self, task: Task, outcome: Outcome | None) -> None:
        """Note a page's begin or end. A full queue drops the event, and never delays the page."""
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
            kind = "task-retried" if outcome.status is TaskStatus.PENDING else "task-failed"
            about["exception"] = f"{outcome.error_type}: {outcome.error_message}"
            about["traceback"] = ""
            self._queue.put((kind, about))

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
