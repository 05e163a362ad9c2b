"""What the routes share: settings, back end, intake and limits."""

from typing import Any

import msgspec
from starlette.requests import HTTPConnection

from crawler.api import limits
from crawler.api.backend import LedgerBackend
from crawler.api.changes import Changes
from crawler.api.intake import Intake
from crawler.api.webhooks import Deliverer
from crawler.config import Settings
from crawler.db import owners
from crawler.errors import ServiceError
from crawler.fetch.browser_process import lacking
from crawler.models import BROWSER, HTTP
from crawler.stack import read_stack, redis_address


class Service:
    """One server on one data folder."""

    def __init__(self, settings: Settings, backend: LedgerBackend) -> None:
        self.settings, self.backend = settings, backend
        self.intake = Intake(settings, backend)
        self.changes = Changes()
        self.webhooks = Deliverer(settings)
        self.waits = limits.Slots("waits", limits.MAX_WAITS, limits.MAX_WAITS_PER_CLIENT)
        self.streams = limits.Slots("streams", limits.MAX_STREAMS, limits.MAX_STREAMS_PER_CLIENT)

    def start(self) -> None:
        """Begin, on the running event loop."""
        self.changes.follow(self.backend)
        self.backend.start()
        self.webhooks.start()

    def stop(self) -> None:
        """End; the ledger keeps what is not done."""
        self.webhooks.stop()
        self.backend.stop()
        self.intake.close()

    def has_redis(self) -> bool:
        """Whether the Redis of the workers answers."""
        import redis

        from crawler.redis_client import connect

        if not self._has_address():
            return False
        try:
            with connect(redis_address(self.settings)) as client:
                client.ping()
        except (redis.RedisError, ServiceError, OSError):
            return False
        return True

    def _has_address(self) -> bool:
        return bool(self.settings.redis_url or read_stack(self.settings.data_dir).redis_url)

    def check_redis(self) -> None:
        """Raise `ServiceError` if no worker can be told of a batch."""
        if not self.has_redis():
            raise ServiceError(
                "Redis does not answer, so that no worker would fetch this; nothing was accepted. "
                'Start a stack, or send "distributed": false'
            )

    def workers(self) -> int:
        """How many worker processes live."""
        found = owners.workers(self.settings.data_dir / "run" / "owners")
        return sum(map(len, found.values()))

    def has_workers(self, needs: str = HTTP) -> bool:
        """Whether workers would fetch a page at once."""
        if needs != BROWSER:
            return self.workers() > 0 and self.has_redis()
        living = owners.living(self.settings.data_dir / "run" / "owners")
        serve = any(BROWSER in note.about.get("queues", ()) for note in living)
        return serve and self.has_redis()

    def has_browser(self) -> bool:
        """Whether pages could be rendered: by workers, or by a process of this machine."""
        return not lacking(self.settings.browser_path) or self.has_workers(BROWSER)

    def distributed_status(self) -> dict[str, Any]:
        """Whether workers would fetch a distributed batch."""
        has_redis, workers = self.has_redis(), self.workers()
        pending = self.backend.lpm.counts.pending_by_queue()
        return {
            "available": has_redis and workers > 0,
            "redis": has_redis,
            "workers": workers,
            "pending": {queue: pending.get(queue, 0) for queue in ("urgent", "default")},
        }

    def domains(self) -> list[dict[str, Any]]:
        """The state of domains that workers share; without Redis nothing is shared."""
        from crawler.waits import open_rate_limiter

        if not self._has_address():
            return []
        with open_rate_limiter(self.settings) as shared:
            found: list[dict[str, Any]] = msgspec.to_builtins(shared.domains())
        return found


def service_of(connection: HTTPConnection) -> Service:
    """The service of a request's application."""
    service: Service = connection.app.state.service
    return service
