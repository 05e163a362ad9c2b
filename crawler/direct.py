"""A batch without a stack: a process of its own fetches the pages, and the program watches it.

A page that hangs or kills the parser ends that process, never the program. If the program ends,
however it ends, so does the process, and the workers of a stack may take what is left.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from crawler import config, logs
from crawler.config import Settings
from crawler.db import owners
from crawler.db.batches import DIRECT
from crawler.errors import CrawlerError, ServiceError
from crawler.locks import open_lock, try_lock
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job
from crawler.process import Child

if TYPE_CHECKING:
    from crawler.resilience.permit import Permit
    from crawler.worker import Worker

log = logging.getLogger(__name__)

STOP_S = 6.0
"""How long the process may take to let go of its pages."""
MAX_DEATHS = 20
"""Deaths in a row, without a page that ended in between, after which no process is started. A page
that kills it without a trace is found out after fewer."""
IDLE_S = 0.02
"""How often to look for work while all pages wait."""
BURY_INTERVAL_S = 1.0


def shared_permit(settings: Settings) -> "Callable[[str], Permit] | None":
    """Return what makes the permit that is shared with other processes; None without Redis."""
    from crawler.stack import read_stack, redis_address

    if not settings.redis_url and not read_stack(settings.data_dir).up:
        return None

    def connect(holder: str) -> "Permit":
        from crawler.resilience.redis_rate_limiter import RedisRateLimiter

        number, fail_max = settings.redis_rate_limiter_db, settings.circuit_breaker_fail_max
        return RedisRateLimiter(redis_address(settings), number, holder, fail_max)

    return connect


class DirectProcess:
    """The process of a batch, as the program sees it. One program at a time runs it: others wait
    for what it stores, and go on when that program ends."""

    def __init__(self, settings: Settings, lpm: LocalPersistenceManager, job: Job) -> None:
        self._lpm, self._job = lpm, job
        environment = os.environ | {"CRAWLER_DATA_DIR": str(settings.data_dir)}
        self._child = Child(
            f"the process of session {job.name}",
            [sys.executable, "-m", "crawler.direct", str(job.id)],
            settings.data_dir / "logs" / "direct.log",
            environment,
            tied=True,
        )
        self._lock = -1
        self._deaths = 0
        self._open = 0
        self._look_at = 0.0
        self._still_s = owners.STILL * settings.stall_s

    def look(self) -> None:
        """Start the process if it does not run; raises `ServiceError` if it cannot."""
        if self._child.alive:
            self._end_if_stopped()
            return
        if not self._has_lock():
            return
        left = self._lpm.batches.open_tasks(self._job)
        if left != self._open:
            self._deaths = 0
        elif self._deaths >= MAX_DEATHS:
            raise ServiceError(
                f"{self._child.name} ended {self._deaths} times and stored nothing: "
                f"{self._child.last_words()}"
            )
        self._open = left
        if left:
            self._deaths += 1
            self._child.start()

    def _end_if_stopped(self) -> None:
        """End a process whose loop stands still: SIGSTOP, which no watchdog notices."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + BURY_INTERVAL_S
        for note in owners.living(self._lpm.owners):
            if note.pid == self._child.pid and note.still_s(now) > self._still_s:
                log.warning("%s stands still, and is ended", self._child.name)
                self._child.stop(0.0)

    def _has_lock(self) -> bool:
        if self._lock < 0:
            path = self._lpm.direct_lock(self._job.id)
            lock = open_lock(path)
            # The program that had it may have removed the file in between.
            if not try_lock(lock) or not _is_file(lock, path):
                os.close(lock)
                return False
            self._lock = lock
            # Without the lock, the tasks may have been given to workers since they were stored.
            self._lpm.batches.move(self._job.id, f"{DIRECT}{self._job.id}")
        return True

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing to do: no page is open, and the process has ended."""
        return not self._child.alive and not self._lpm.batches.open_tasks(self._job)

    def ask_to_end(self) -> None:
        """Tell the process to end, without waiting."""
        self._child.ask_to_end()

    def stop(self) -> None:
        """End the process, and let go of what it held."""
        self._child.stop(STOP_S)
        if self._lock >= 0:
            self._lpm.direct_lock(self._job.id).unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1
            self._lpm.bury()
            self._lpm.jobs.complete_holds(self._lpm.now())
            self._lpm.jobs.finalise(self._lpm.now())


def _is_file(descriptor: int, path: Path) -> bool:
    """Whether a descriptor is still that of the file of this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


# In the process


def work(settings: Settings, job_id: int) -> None:
    """Fetch the pages of a batch until none is open."""
    from crawler.fetch.browser import find_browser
    from crawler.worker import Worker, tune_garbage_collection

    tune_garbage_collection()
    with LocalPersistenceManager(settings.data_dir, settings.raw) as lpm:
        lpm.bury()
        queue = f"{DIRECT}{job_id}"
        worker = Worker(
            settings,
            "direct",
            permit=shared_permit(settings),
            queues=(queue,),
            browser=find_browser(settings),
        )
        worker.watch_stop(sys.stdin.fileno())  # it ends with the program
        try:
            _work(lpm, worker, lpm.jobs.get(job_id), queue)
        finally:
            worker.stop()
        lpm.jobs.finalise(lpm.now())


def _work(lpm: LocalPersistenceManager, worker: "Worker", job: Job, queue: str) -> None:
    bury_at = time.monotonic() + BURY_INTERVAL_S
    while not worker.stopping and not worker.must_restart:
        if not worker.run_slice("", (queue,)):
            if not lpm.batches.open_tasks(job):
                return
            time.sleep(IDLE_S)
        if time.monotonic() > bury_at:
            lpm.bury(worker.forget)
            lpm.jobs.complete_holds(lpm.now())
            bury_at = time.monotonic() + BURY_INTERVAL_S


def main() -> None:
    """Run as the process of a batch, whose job's number is the argument."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        settings = config.load()
        logs.setup(settings.log_level)
        work(settings, int(sys.argv[1]))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # all is stored: it may end at any moment
    except CrawlerError as error:
        log.critical("%s", error)
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    main()
