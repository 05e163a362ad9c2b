"""Celery's consumer, which comes back quickly when Redis does."""

from functools import partial
from typing import Any

from celery.worker import consumer


class Consumer(consumer.Consumer):
    """Tries to reconnect at least every 2 s: as shipped the pauses grow to 30 s, and no setting changes that."""

    def ensure_connected(self, conn: Any) -> Any:
        """Celery's own, with shorter pauses."""
        conn.ensure_connection = partial(conn.ensure_connection, interval_start=0.5, interval_step=0.5, interval_max=2)
        return super().ensure_connected(conn)
