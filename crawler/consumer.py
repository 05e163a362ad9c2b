"""Celery's consumer, which comes back quickly when Redis does."""

from functools import partial
from typing import Any

from celery.worker import consumer
from redis.exceptions import OutOfMemoryError


class Consumer(consumer.Consumer):
    """Tries to reconnect at least every 2 s, and takes a full Redis for one that is away for a while.

    As shipped the pauses grow to 30 s, no setting changes that, and a full Redis ends the worker.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.connection_errors = (*vars(self)["connection_errors"], OutOfMemoryError)

    def ensure_connected(self, conn: Any) -> Any:
        """Celery's own, with shorter pauses."""
        conn.ensure_connection = partial(conn.ensure_connection, interval_start=0.5, interval_step=0.5, interval_max=2)
        return super().ensure_connected(conn)
