"""CrawlCoordinator: crawls lists of URLs, by a process of its own or by the workers of a stack."""

import asyncio
import contextlib
import inspect
import logging
import math
import secrets
import time
import weakref
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from crawler import config
from crawler.arguments import Name, Seconds, checked, checked_folder
from crawler.batches import (
    PENDING,
    BatchOptions,
    BatchReader,
    Statistics,
    shown,
    statistics,
    submit,
)
from crawler.config import Settings
from crawler.db.batches import DIRECT, Asked, Batch
from crawler.direct import DirectProcess
from crawler.errors import ServiceError, UsageError
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job, JobStatus, Wait
from crawler.page_formats import PageFormats

log = logging.getLogger(__name__)

POLL_S = 0.02
"""How often to look whether the ledger has changed. A look reads one number."""
STEP_S = 0.5
"""How long one step waits for a page at most."""
GIVE_UP_S = 60.0
"""How long to wait while nothing can go on: no worker runs, or the session is paused."""
SESSION_LENGTH = 100
LOOK_INTERVAL_S = 2.0
"""How often to search for what keeps all pages from going on."""
RESULTS_PER_READ = 100
"""Results that are read, and their pages converted, at a time. A cancelled call ends after them."""

Progress = Callable[[int, int], Any]
Result = dict[str, Any]


class CrawlCoordinator:
    """Crawls lists of URLs and returns a result for each.

    Everything goes through the ledger in the data folder: the same session with the same URLs is
    not fetched twice, also after this program was killed.
    """

    def __init__(
        self,
        session_id: str | None = None,
        *,
        distributed: bool = False,
        data_dir: str | Path | None = None,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        """Without a `session_id` a new one is made. With `distributed`, the workers of a stack
        fetch the pages; otherwise a process of its own does, and no Redis is needed. `data_dir` is
        the data folder, by default that of the settings. After `give_up_s` in which nothing could
        go on, a call returns what it has."""
        if session_id is None:
            session_id = f"session-{secrets.token_hex(8)}"
        self.session_id = checked(session_id, Name, "session_id")
        if session_id.strip() != session_id or len(session_id) > SESSION_LENGTH:
            raise UsageError(
                f"session_id: at most {SESSION_LENGTH} characters, and no space at either end"
            )
        self.distributed = checked(distributed, bool, "distributed")
        self._give_up_s = checked(give_up_s, Seconds, "give_up_s")
        self.statistics: Statistics | None = None
        """Of the last crawl that has ended."""
        settings = config.load()
        folder = checked_folder(data_dir, "data_dir") or settings.data_dir
        self._settings = msgspec.structs.replace(settings, data_dir=folder.absolute())
        self._converter = PageFormats()
        weakref.finalize(self, self._converter.close)

    async def crawl_many(
        self,
        urls: Sequence[str],
        options: dict[str, Any] | None = None,
        on_progress: Progress | None = None,
        *,
        timeout_s: float | None = None,
    ) -> list[Result]:
        """Crawl URLs; return a result for each, in their order, with a reason for failures.

        `on_progress(done, total)` is called as pages end. After `timeout_s`, what is not done is
        returned as `pending`. The ledger keeps it, also if this call is cancelled: the same call
        goes on with it, and `cancel` ends it.
        """
        if on_progress is not None and not callable(on_progress):
            raise UsageError(
                f"on_progress: Expected a function, got `{type(on_progress).__name__}`"
            )
        began, done = time.monotonic(), 0
        async with self._begun(urls, options, timeout_s) as crawl:
            while not crawl.is_over:
                ended = await crawl.call(crawl.step)
                done += len(ended)
                if ended and on_progress:
                    told = on_progress(done, len(crawl.asked))
                    if inspect.isawaitable(told):
                        await told
            results: list[Result] = []
            for rows in _parts(crawl.asked):
                results += await crawl.call(crawl.results, rows)
        self.statistics = statistics(results, time.monotonic() - began)
        return results

    def crawl_many_sync(
        self,
        urls: Sequence[str],
        options: dict[str, Any] | None = None,
        on_progress: Progress | None = None,
        *,
        timeout_s: float | None = None,
    ) -> list[Result]:
        """The same for programs without an event loop."""
        if _is_in_loop():
            raise UsageError("an event loop runs here: use `await crawl_many(…)`")
        return asyncio.run(self.crawl_many(urls, options, on_progress, timeout_s=timeout_s))

    async def stream(
        self,
        urls: Sequence[str],
        options: dict[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> AsyncIterator[Result]:
        """Crawl URLs, and give each result as soon as it is stored; those that are not done after
        `timeout_s` come last, as `pending`. Who leaves the loop early can go on with the same call,
        or `cancel`."""
        began, given = time.monotonic(), []
        async with self._begun(urls, options, timeout_s) as crawl:
            while not crawl.is_over:
                for rows in _parts(await crawl.call(crawl.step_to_stream)):
                    for result in await crawl.call(crawl.results, rows):
                        given.append(_brief(result))
                        yield result
        self.statistics = statistics(given, time.monotonic() - began)

    async def cancel(self) -> None:
        """Cancel the session: what has not begun is skipped. One that is done stays so."""
        await asyncio.to_thread(self._cancel)

    def _cancel(self) -> None:
        with LocalPersistenceManager(self._settings.data_dir) as lpm:
            batch = lpm.batches.find("", self.session_id)
            if batch and batch.job.status != JobStatus.DONE:
                lpm.jobs.hold(batch.job, "cancelled", lpm.now())
                lpm.jobs.finalise(lpm.now())

    @contextlib.asynccontextmanager
    async def _begun(
        self, urls: Sequence[str], options: dict[str, Any] | None, timeout_s: float | None
    ) -> "AsyncIterator[_Crawl]":
        """A crawl that has begun. However it is left, the ledger keeps what is open."""
        given = checked(_as_list(urls), list[str], "urls")
        how = checked({} if options is None else options, BatchOptions, "options")
        limit_s = math.inf if timeout_s is None else checked(timeout_s, Seconds, "timeout_s")
        crawl = _Crawl(
            self._settings, self._converter, not self.distributed, limit_s, self._give_up_s
        )
        try:
            await crawl.call(crawl.begin, self.session_id, given, how)
            yield crawl
        finally:
            # Shielded, so that a cancelled call leaves no process behind.
            await asyncio.shield(crawl.end())


class _Crawl:
    """One call, on a thread of its own: the ledger's connections are for one thread at a time."""

    def __init__(
        self,
        settings: Settings,
        converter: PageFormats,
        direct: bool,
        limit_s: float,
        give_up_s: float,
    ) -> None:
        self._settings, self._converter, self._direct = settings, converter, direct
        self._give_up_s = give_up_s
        self._end = time.monotonic() + limit_s
        self._executor = ThreadPoolExecutor(1, "crawl")
        self._lpm = LocalPersistenceManager(settings.data_dir)
        self._reader: BatchReader | None = None
        self._process: DirectProcess | None = None
        self._stall: _Stall | None = None
        self._job: Job | None = None
        self._open: dict[int, list[Asked]] = defaultdict(list)
        self._ended: list[Asked] = []
        """What had ended before this call: URLs that are none, and pages of an earlier call."""
        self._cursor = 0
        self._version: object = None
        self.asked: list[Asked] = []
        self.is_over = False

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a method on the thread of this crawl."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *args)

    async def end(self) -> None:
        """End the process, and close the store."""
        try:
            await self.call(self._close)
        finally:
            self._executor.shutdown(wait=False)

    @property
    def left(self) -> list[Asked]:
        """The URLs that have not ended."""
        return [row for rows in self._open.values() for row in rows]

    def begin(self, session_id: str, urls: list[str], options: BatchOptions) -> None:
        """Store the URLs, and see that somebody fetches them."""
        if not urls:
            self.is_over = True
            return
        submitted = submit(self._settings, session_id, urls, options, direct=self._direct)
        lpm, job = self._lpm, submitted.job
        self.asked = lpm.batches.asked(job, submitted.number)
        batch = Batch(job, "", session_id, shown(options))
        self._reader = BatchReader(lpm, batch, self._converter)
        self._job = job
        # Before their states are read: what ends in between is read once more.
        self._cursor = lpm.batches.newest_end()
        ended = lpm.batches.ended([row.task for row in self.asked if row.task is not None])
        for row in self.asked:
            if row.task is None or row.task in ended:
                self._ended.append(row)
            else:
                self._open[row.task].append(row)
        self._stall = _Stall(self._settings, lpm, job, self._give_up_s)
        if not self._open:
            return
        if self._direct:
            self._process = DirectProcess(self._settings, lpm, job)
        else:
            publish(self._settings, lpm)

    def step(self) -> list[Asked]:
        """Wait a moment for pages to end, and return those that have."""
        ended, self._ended = self._ended, []
        until = time.monotonic() + STEP_S
        while not ended and self._open and time.monotonic() < until:
            if self._is_hopeless(time.monotonic()):
                self.is_over = True
                return []
            version = self._lpm.store.data_version()
            if version != self._version:
                self._version = version
                ended = self._read_ends()
            else:
                time.sleep(POLL_S)
        if not self._open:
            self._lpm.jobs.finalise(self._lpm.now())
            self.is_over = True
        return ended

    def step_to_stream(self) -> list[Asked]:
        """The same; in the end also those that have not ended."""
        ended = self.step()
        return ended + self.left if self.is_over else ended

    def _is_hopeless(self, now: float) -> bool:
        """Whether there is no time left, or nothing goes on."""
        assert self._stall
        if now >= self._end:
            return True
        if self._process:
            try:
                self._process.look()
            except ServiceError as error:
                self._stall.reason = str(error)
                return True
        return self._stall.gives_up(now)

    def _read_ends(self) -> list[Asked]:
        assert self._job
        assert self._stall
        found: list[Asked] = []
        while True:
            ends = self._lpm.batches.ends(self._job, self._cursor)
            self._cursor = ends.cursor
            for _, row in ends.rows:
                if row.task is not None:
                    found += self._open.pop(row.task, [])
            if ends.is_complete:  # whatever its timeline has lost
                found += self.left
                self._open.clear()
            if ends.is_last:
                if found:
                    self._stall.reset(time.monotonic())
                return found

    def results(self, asked: Sequence[Asked]) -> list[Result]:
        """Return the results of some URLs; of those that are open, why they are."""
        if self._reader is None:
            return []
        found = self._reader.results(asked)
        if self._stall and self._stall.reason:
            for result in found:
                if result["status"] == PENDING:
                    result["error"] = f"it is not done yet: {self._stall.reason}"
        return found

    def _close(self) -> None:
        if self._process:
            self._process.stop()
        self._lpm.close()


class _Stall:
    """Notices when nothing can go on."""

    def __init__(
        self, settings: Settings, lpm: LocalPersistenceManager, job: Job, give_up_s: float
    ) -> None:
        from crawler.waits import WaitFinder

        self._lpm, self._job = lpm, job
        self._finder = WaitFinder(settings, lpm)
        self._give_up_s = give_up_s
        self._since: float | None = None
        self._look_at = 0.0
        self.reason = ""

    def reset(self, now: float) -> None:
        """Note that a page has ended."""
        self._since, self.reason = None, ""
        self._look_at = now + LOOK_INTERVAL_S

    def gives_up(self, now: float) -> bool:
        """Whether nothing could go on for too long."""
        if now >= self._look_at:
            self._look_at = now + LOOK_INTERVAL_S
            wait = self._endless_wait()
            if wait is None:
                self.reset(now)
            else:
                self._since = now if self._since is None else self._since
                self.reason = self._finder.describe(wait)
        return self._since is not None and now - self._since >= self._give_up_s

    def _endless_wait(self) -> Wait | None:
        from crawler.waits import endless_wait

        job = self._lpm.jobs.get(self._job.id)
        if job.queue.startswith(DIRECT):  # without asking Redis, which such a session does not need
            return endless_wait(self._finder.find_for_session(job))
        return endless_wait(self._finder.find(job, self._lpm.counts.progress(job)))


def publish(settings: Settings, lpm: LocalPersistenceManager) -> bool:
    """Publish the first tasks, so that workers begin at once; False if Redis does not answer."""
    import redis

    from crawler.redis_client import connect
    from crawler.stack import redis_address

    try:
        url = redis_address(settings)
        with connect(url) as client:
            client.ping()
        import crawler.tasks  # noqa: F401 - Celery knows them then
        from crawler.celery_app import RedisBroker, follow_redis
        from crawler.maintainer import Maintainer

        follow_redis(url)
        with contextlib.closing(RedisBroker(url)) as broker:
            Maintainer(lpm, broker, settings).fill()
    except (redis.RedisError, ServiceError, OSError) as error:
        log.warning("Redis does not answer (%s): the tasks wait in the ledger", error)
        return False
    return True


def _parts(rows: Sequence[Asked]) -> Iterator[Sequence[Asked]]:
    for begin in range(0, len(rows), RESULTS_PER_READ):
        yield rows[begin : begin + RESULTS_PER_READ]


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _as_list(urls: Sequence[str]) -> Any:
    """A list; one text is not taken for a list of its characters."""
    return urls if isinstance(urls, str) or not isinstance(urls, Iterable) else list(urls)


def _brief(result: Result) -> Result:
    """What the statistics need of a result."""
    kept = ("status", "reason", "worker_id", "metadata")
    return {name: result[name] for name in kept if name in result}
