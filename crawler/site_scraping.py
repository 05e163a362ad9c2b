"""Crawls of sites by name, for programs: begin them, ask how far they are, wait for their end.

The ledger comes first: a crawl is in it before a message is sent. So nothing is lost with Redis,
and no question needs it.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

import msgspec
import redis

from crawler import sites
from crawler.arguments import Name, checked
from crawler.config import Settings
from crawler.crawls import call_site, check, plan_site, site_call
from crawler.errors import ServiceError, UsageError
from crawler.lpm import LocalPersistenceManager
from crawler.models import QUEUES, Job
from crawler.redis_client import connect
from crawler.scraping.jobs import Progress, chord_id, joint_status, progress_of
from crawler.scraping.redis_keys import result_key
from crawler.stack import redis_address
from crawler.waits import WaitFinder, endless_wait

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 15.0
"""How long to wait for an event before the ledger is asked again."""
GIVE_UP_S = 60.0
"""How long to wait while nothing can go on: no worker runs, or the jobs are paused."""

UNKNOWN_S = 2.0
"""How long to wait for a group that nobody knows: a worker may just have taken its message."""


class SiteScraping:
    """Begins crawls of sites in one store, and follows them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def start(self, site: str, start_urls: Sequence[str] = ()) -> dict[str, Any]:
        """Begin the crawl of a site; its task returns the job."""
        from celery import uuid

        site = checked(site, Name, "start_site_scraping: the site")
        start_urls = checked(start_urls, list[str], "start_site_scraping: the start URLs")
        task_id = uuid()
        call_site(self._settings, site_call(task_id, site), start_urls)
        self._send({task_id: (site, list(start_urls))})
        return {"task_id": task_id, "site": site}

    def start_all(self, sites_config: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """Begin the crawls of several sites, or of none if one of them cannot begin."""
        from celery import uuid

        what = "scrape_all_sites_parallel: the start URLs of each site"
        sites_config = checked(sites_config, dict[Name, list[str]], what)
        known = sites.load(self._settings.config_dir, self._settings.rate)
        for site, start_urls in sites_config.items():
            check(self._settings, plan_site(known, site, start_urls))
        group_id = uuid()
        calls = {uuid(): (site, list(given)) for site, given in sites_config.items()}
        for task_id, (site, given) in calls.items():
            call = site_call(task_id, site, group_id)
            call_site(self._settings, call, given, known=known)
        self._send(calls, group_id)
        return {"group_id": group_id}

    def progress(self, job_id: str) -> dict[str, Any]:
        """Return how far a job is, in chunks. The id of its task or group does as well."""
        job_id = checked(job_id, str, "get_site_progress: job_id")
        with self._store() as lpm:
            jobs = list(_jobs_of(lpm, job_id).values())
            counts = lpm.counts.progress_of(jobs)
        size = self._settings.chunk_size
        found = [progress_of(*each, size) for each in zip(jobs, counts, strict=True)]
        return {
            "total": sum(each.total_chunks for each in found),
            "completed": sum(each.completed for each in found),
            "status": joint_status(found),
        }

    def wait(
        self,
        id_: str,
        timeout_s: float | None = None,
        give_up_s: float = GIVE_UP_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> dict[str, Any]:
        """Wait until the crawls of a group, a task or a job have ended; return how far each is.

        An event ends the wait at once, a poll after 15 s does, and only the ledger decides. It also
        returns after `timeout_s`, and when nothing could go on for `give_up_s`.
        """
        id_ = checked(id_, str, "wait_for_all_sites_completion: group_id")
        began = can_go_on_at = clock()
        with self._store() as lpm, _Events(self._settings) as events:
            finder = WaitFinder(self._settings, lpm)
            while True:
                look = self._look(lpm, finder, id_)
                now = clock()
                if look.can_go_on:
                    can_go_on_at = now
                patience_s = give_up_s
                if not look.jobs and not self._is_queued(id_):
                    patience_s = min(give_up_s, UNKNOWN_S)
                left_s = POLL_INTERVAL_S
                if timeout_s is not None:
                    left_s = min(left_s, began + timeout_s - now)
                is_over = look.complete and not self._is_queued(id_)
                if is_over or left_s <= 0 or now - can_go_on_at >= patience_s:
                    return look.report()
                waited = [chord_id(lpm.store.id, job) for job in look.open_jobs]
                events.wait(waited, min(left_s, patience_s))

    def _look(self, lpm: LocalPersistenceManager, finder: WaitFinder, id_: str) -> "_Look":
        found = _Look({}, {}, {})
        for site, job in _jobs_of(lpm, id_).items():
            counts = lpm.counts.progress(job)
            found.jobs[site] = job.name
            found.progress[site] = progress_of(job, counts, self._settings.chunk_size)
            if wait := endless_wait(finder.find(job, counts)):
                found.waits[site] = finder.describe(wait)
            elif job.incomplete and not counts.open and not lpm.is_importing(job):
                found.waits[site] = (
                    "; ".join(*lpm.unaccounted([job])) or "its import was broken off"
                )
        return found

    def _is_queued(self, id_: str) -> bool:
        """Whether a message of a group waits for a worker: a program may have sent it by itself."""
        try:
            with connect(redis_address(self._settings)) as client:
                messages = [body for queue in QUEUES for body in client.lrange(queue, 0, -1)]
                messages += client.hvals("unacked")
        except (redis.RedisError, OSError):
            return False
        return any(id_.encode() in body for body in messages)

    def _store(self) -> LocalPersistenceManager:
        return LocalPersistenceManager(self._settings.data_dir)

    def _send(
        self, calls: Mapping[str, tuple[str, list[str]]], group_id: str | None = None
    ) -> None:
        """Send the tasks of calls that are in the ledger, for those who ask Celery for results."""
        from celery.result import denied_join_result
        from kombu.exceptions import KombuError

        from crawler.celery_app import follow_redis
        from crawler.tasks import app, scrape_site_task

        try:
            url = redis_address(self._settings)
            with connect(url) as client:
                client.ping()  # it fails within its timeout; Celery would keep trying
            follow_redis(url)
            # Nobody listens for results here: who asks Celery for them does so by their ids. A
            # group would listen, and wait for a frozen Redis without a limit.
            with denied_join_result(), app.producer_or_acquire() as producer:
                task: Any = scrape_site_task  # Celery's stubs do not know `group_id`
                for task_id, arguments in calls.items():
                    task.apply_async(
                        arguments,
                        task_id=task_id,
                        group_id=group_id,
                        producer=producer,
                        retry=False,
                    )
        except (redis.RedisError, KombuError, OSError, ServiceError) as error:
            log.warning(
                "Redis does not answer (%s): the crawls are in the ledger, and begin with the next "
                "worker",
                error,
            )


class _Look(msgspec.Struct):
    """How far the crawls of a group are, by site."""

    jobs: dict[str, str]
    progress: dict[str, Progress]
    waits: dict[str, str]
    """What keeps all pages of a site from going on, for an unknown time."""

    @property
    def open_jobs(self) -> list[str]:
        """The jobs that have not ended."""
        return [self.jobs[site] for site, each in self.progress.items() if not each.has_ended]

    @property
    def complete(self) -> bool:
        """Whether there are jobs, and all have ended."""
        return bool(self.jobs) and not self.open_jobs

    @property
    def can_go_on(self) -> bool:
        """Whether a job is open that nothing stops."""
        return len(self.open_jobs) > len(self.waits)

    def report(self) -> dict[str, Any]:
        """Return it as plain values."""
        found = {}
        for site, progress in self.progress.items():
            facts = {"job_id": self.jobs[site], **msgspec.to_builtins(progress)}
            if site in self.waits:
                facts["waits_for"] = self.waits[site]
            found[site] = facts
        return {"complete": self.complete, "sites": found}


class _Events:
    """Listens for the ends of jobs in Redis."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pubsub: Any = None
        self._channels: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def wait(self, ids: Sequence[str], limit_s: float) -> None:
        """Wait for the end of one of these jobs. Returns at once when it begins to listen: a job
        may have ended before."""
        try:
            if self._listen({result_key(id_) for id_ in ids}):
                return
            end = time.monotonic() + limit_s
            while (left_s := end - time.monotonic()) > 0:
                if self._pubsub.get_message(ignore_subscribe_messages=True, timeout=left_s):
                    return
        except (redis.RedisError, OSError):
            self._close()
            time.sleep(min(limit_s, 1.0))

    def _listen(self, channels: set[str]) -> bool:
        """Subscribe to the channels; whether some are new."""
        if self._pubsub is None:
            client: Any = connect(redis_address(self._settings))  # pubsub() has no types
            self._pubsub = client.pubsub()
        new = channels - self._channels
        if new or not self._channels:
            self._pubsub.subscribe("crawler", *new)  # without a channel there is nothing to read
        self._channels |= channels
        return bool(new)

    def _close(self) -> None:
        if self._pubsub:
            with suppress(redis.RedisError, OSError):
                self._pubsub.close()
        self._pubsub = None
        self._channels = set()


def _jobs_of(lpm: LocalPersistenceManager, id_: str) -> dict[str, Job]:
    """Return the jobs of a group, of a task, or of that name, by site."""
    found: dict[str, Job] = {}
    for site, job in lpm.site_jobs.called(id_):
        if job not in found.values():  # two calls may have met in one job
            found[job.name if site in found else site] = job
    if found:
        return found
    try:
        job = lpm.jobs.named(id_)
    except UsageError:
        return {}
    crawl = job.options.crawl
    return {(crawl and crawl.site) or job.name: job}
