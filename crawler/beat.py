"""The scheduler of `celery -A crawler beat` and `celery -A crawler worker --beat`."""

import logging
import os
import time
from typing import Any

import redis
from celery import beat, signals
from kombu.exceptions import KombuError

from crawler import locks
from crawler.celery_app import settings
from crawler.errors import CrawlerError
from crawler.lpm import LocalPersistenceManager
from crawler.schedules import SiteSchedules
from crawler.sites.live import LOOK_INTERVAL_S
from crawler.stack import beat_lock_path

log = logging.getLogger(__name__)


class Scheduler(beat.Scheduler):
    """Runs the schedules of sites, and those of Celery's setting `beat_schedule`.

    It keeps no file: the ledger knows what has run. Only Celery's own schedules need Redis.
    """

    max_interval = 1

    def setup_schedule(self) -> None:
        """Read the schedules; end with one line of error if they or the store cannot be used."""
        super().setup_schedule()
        self._trouble = ""
        self._parent: int | None = None
        self._lock = -1
        try:
            LocalPersistenceManager(settings.data_dir).close_after_check()
            self._sites = SiteSchedules(settings)
        except CrawlerError as error:
            log.critical("%s", error)
            raise SystemExit(error.exit_code) from None

    def end_with_parent(self) -> None:
        """End when the present parent has died: a killed worker must not leave its beat."""
        self._parent = os.getppid()

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Run what is due; returns the seconds until the next look at files and ledger."""
        if self._parent not in (None, os.getppid()):
            raise SystemExit
        wait_s = min(self._run_due(), LOOK_INTERVAL_S)
        if self.schedule and self._is_connected():
            wait_s = min(wait_s, super().tick(*args, **kwargs))
        return wait_s

    def _run_due(self) -> float:
        """Run the schedules of sites and catch all errors; log when trouble begins and ends."""
        try:
            self._show_alive()
            self._sites.look()
            wait_s = self._sites.run_due(time.time())
        except CrawlerError as error:
            if not self._trouble:
                log.warning("%s; schedules wait, and this is tried again every second", error)
            self._trouble = str(error)
            return LOOK_INTERVAL_S
        except Exception as error:  # a beat that ends runs no schedule
            if not self._trouble:
                log.exception("beat met an unforeseen error, and tries again every second")
            self._trouble = repr(error)
            return LOOK_INTERVAL_S
        if self._trouble:
            log.info("recovered from: %s", self._trouble)
            self._trouble = ""
        return wait_s

    def _show_alive(self) -> None:
        """Hold the lock that shows a living beat; with several of them, one holds it."""
        if self._lock < 0:
            lock = locks.open_lock(beat_lock_path(settings.data_dir))
            if not locks.try_lock(lock):
                os.close(lock)
                return
            self._lock = lock

    def _is_connected(self) -> bool:
        """Whether Celery's own schedules can send their tasks."""
        try:
            return bool(self.producer)
        except (redis.RedisError, KombuError, OSError) as error:
            log.warning("Redis does not answer (%s): tasks of beat_schedule wait for it", error)
            return False

    def _ensure_connected(self) -> Any:
        """Try once: Celery would try until Redis answers, and the sites' schedules would wait."""
        return self.connection.ensure_connection(max_retries=1, interval_start=0)


@signals.beat_embedded_init.connect
def _end_with_worker(sender: Any, **_: Any) -> None:
    sender.scheduler.end_with_parent()
