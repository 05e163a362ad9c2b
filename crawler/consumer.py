"""Celery's consumer, which comes back quickly when Redis does."""

import time
from functools import partial
from typing import Any

from celery.worker import consumer
from redis.exceptions import OutOfMemoryError


class Consumer(consumer.Consumer):
    """Tries to reconnect at least every 2 s, and takes a full Redis for one that is away for a
    while.

    As shipped the pauses grow to 30 s, no setting changes that, and a full Redis ends the worker.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.connection_errors = (*vars(self)["connection_errors"], OutOfMemoryError)

    def bucket_for_task(self, type: Any) -> None:
        """None: a `rate_limit` is kept for each domain by the permit, not for messages by each
        worker."""

    def on_connection_error_before_connected(self, exc: Exception) -> Any:
        """Celery's own, after a pause where Redis is full: it answers at once, and so would the
        next try."""
        _pause(exc)
        return super().on_connection_error_before_connected(exc)

    def on_connection_error_after_connected(self, exc: Exception) -> Any:
        """The same for a connection that was up."""
        _pause(exc)
        return super().on_connection_error_after_connected(exc)

    def ensure_connected(self, conn: Any) -> Any:
        """Celery's own, with shorter pauses."""
        conn.ensure_connection = partial(
            conn.ensure_connection, interval_start=0.5, interval_step=0.5, interval_max=2
        )
        return super().ensure_connected(conn)


def _pause(error: Exception) -> None:
    if isinstance(error, OutOfMemoryError):
        time.sleep(1)
