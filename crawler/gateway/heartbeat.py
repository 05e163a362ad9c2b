"""The heartbeat: tells the Gateway every half minute how this worker stands, and does what it
answers."""

import asyncio
import logging
import secrets
from collections.abc import Sequence
from typing import Any

import msgspec
import psutil

from crawler.config import Settings
from crawler.errors import CrawlerError
from crawler.gateway.client import GatewayClient
from crawler.gateway.trouble import Trouble
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job

log = logging.getLogger(__name__)

EVERY_S = 30.0
PATIENCE_S = 120.0
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
            due = loop.time() + EVERY_S
            try:
                await self.beat()
            except CrawlerError as error:
                wait_s = min(self._trouble.met(error), PATIENCE_S)
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
