"""A broker in memory, for a maintainer without Redis."""

from collections.abc import Sequence

from crawler.celery_app import Queued
from crawler.db.dispatch import Chunk


class MemoryBroker:
    """Keeps messages in a list."""

    def __init__(self) -> None:
        self._queued: list[Queued] = []

    def publish(self, ledger_id: str, chunks: Sequence[Chunk]) -> None:
        """Put chunks into their queues."""
        self._queued += [Queued(chunk.message_id, ledger_id, chunk.queue, b"") for chunk in chunks]

    def queued(self) -> list[Queued]:
        """All messages in the queues."""
        return list(self._queued)

    def withdraw(self, messages: Sequence[Queued]) -> None:
        """Take these out of their queues."""
        self._queued = [each for each in self._queued if each not in messages]
