"""Celery's queues on Redis, as the maintainer sees them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import redis
from kombu.exceptions import KombuError

from crawler import urls
from crawler.celery_app import app
from crawler.db.tasks import Chunk
from crawler.maintainer import BrokerDown, Queued
from crawler.models import QUEUES, Books, Job
from crawler.redis_client import connect

MAX_MESSAGES_PER_ROUND_TRIP = 500
PROGRESS_EXPIRES_S = 86_400


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
