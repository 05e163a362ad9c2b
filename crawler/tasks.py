"""The Celery tasks. Sending one loads no worker: a child of the worker imports what it needs."""

import logging
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from celery import uuid
from celery.exceptions import Reject
from msgspec import Meta

from crawler import urls
from crawler.arguments import Name, checked
from crawler.celery_app import RedisBroker, app, broker_url, settings
from crawler.config import failpoint
from crawler.errors import StoreError, UsageError
from crawler.models import NewTask

if TYPE_CHECKING:
    from crawler.worker import Worker

__all__ = [
    "aggregate_results_task",
    "app",
    "crawl_url",
    "scrape_chunk_task",
    "scrape_site_task",
    "scrape_task",
    "slice_task",
]

log = logging.getLogger(__name__)

SCRAPE_LIMIT_S = 100.0
"""How long `scrape_task` waits for its page; below a task's soft time limit."""
MATCH_LIMIT_S = 20.0
"""How long `aggregate_results_task` compares listings of different sites."""


def _scrape_task(
    self: Any, url: str, session_id: str | None = None, options: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Fetch one URL now and return its result.

    The task has the id of the message, so that a redelivery finds it done.
    """
    from crawler.child import this_child

    failpoint("delivered")
    given = dict(options or {})
    if session_id:
        given = {"session_id": session_id} | given
    call_id = self.request.id or uuid()  # a plain call of the function has no message
    return scrape_url(this_child().worker, url, call_id, given)


scrape_task, crawl_url = (
    app.task(name=name, bind=True, ignore_result=False)(_scrape_task)
    for name in ("scrape_task", "crawl_url")
)


def scrape_url(worker: "Worker", url: str, call_id: str, given: dict[str, Any]) -> dict[str, Any]:
    """Insert, claim and fetch one URL under the id of its call."""
    from crawler.lpm import LocalPersistenceManager

    with closing(LocalPersistenceManager(settings.data_dir, settings.raw)) as lpm:
        task = NewTask(address=urls.parse(url), priority=1, external_id=call_id, input=given)
        id_ = lpm.tasks.add_call(task, loopback=False)
        status = worker.scrape(id_, SCRAPE_LIMIT_S, call_id)
        failpoint("committed-call")
        return lpm.results.report(id_) | {"status": status}


# Sites by name. None of these tasks waits for a page: the ledger has what they begin.

RESERVED = ("schedule:", "chunk:")
"""Beginnings of ids of calls that this program makes itself."""


class SiteConfig(msgspec.Struct, forbid_unknown_fields=True):
    """How a site is crawled, beside its files."""

    limit: Annotated[int, Meta(ge=0, le=1_000_000_000)] | None = None
    queue: Literal["urgent", "default"] = "default"


@app.task(name="scrape_site_task", bind=True, ignore_result=False)
def scrape_site_task(
    self: Any,
    site_name: str,
    start_urls: list[str] | None = None,
    config: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Begin the crawl of a site, or continue the open one; return its job.

    Without `start_urls` it begins at all starts of the site's files. `chord_id` is the Celery id
    under which the end of the job is announced. A message that comes twice begins nothing twice.
    """
    from crawler.crawls import call_site, site_call

    failpoint("delivered")
    site = checked(site_name, Name, "scrape_site_task: site_name")
    starts = checked(start_urls or [], list[str], "scrape_site_task: start_urls")
    how = checked(config or {}, SiteConfig, "scrape_site_task: config")
    call = site_call(self.request.id or uuid(), site, self.request.group)
    if any(str(id_).startswith(RESERVED) for id_ in (call.id, call.group_id)):
        raise UsageError("scrape_site_task: ids that begin with schedule: or chunk: are reserved")
    with _waiting_for_store():
        return call_site(settings, call, starts, how.limit, how.queue)


@app.task(name="scrape_chunk_task", ignore_result=False)
def scrape_chunk_task(urls: list[str], job_id: str, site_name: str) -> list[dict[str, Any]]:
    """Add listings of a site to a job, which is begun if there is none of that name.

    Returns for each URL its task in the ledger, or why it was refused. Their records come with the
    results of the job.
    """
    from crawler.crawls import add_chunk

    failpoint("delivered")
    given = checked(urls, list[str], "scrape_chunk_task: urls")
    job = checked(job_id, Name, "scrape_chunk_task: job_id")
    site = checked(site_name, Name, "scrape_chunk_task: site_name")
    with _waiting_for_store():
        return add_chunk(settings, given, job, site)


@app.task(name="aggregate_results_task", ignore_result=False)
def aggregate_results_task(all_results: Any, job_id: str, site_name: str) -> dict[str, Any]:
    """End a job whose pages have all ended, and return how many results it has so far.

    The worker that stores the last page ends the job without this task. `all_results` and
    `site_name` are there for chords: results are in the ledger already. New and changed listings
    are compared with those of other sites.
    """
    from crawler import sites
    from crawler.listings.matching import match_for
    from crawler.lpm import LocalPersistenceManager
    from crawler.scraping.jobs import summary

    job_id = checked(job_id, Name, "aggregate_results_task: job_id")
    with (
        _waiting_for_store(),
        closing(LocalPersistenceManager(settings.data_dir)) as lpm,
        lpm.errors(),
    ):
        job = lpm.jobs.named(job_id)
        lpm.jobs.finalise(lpm.now())
        try:
            match_for(lpm, lambda: sites.load(settings.config_dir), MATCH_LIMIT_S)
        except UsageError as error:  # a site's file that is being edited
            log.warning("listings of different sites were not compared: %s", error)
        return summary(job, lpm.counts.progress(job))


@contextmanager
def _waiting_for_store() -> Iterator[None]:
    """Put the message back while the store cannot be written, such as on a full disk."""
    try:
        yield
    except StoreError as error:
        log.warning("%s; the message goes back to its queue", error)
        time.sleep(1)
        raise Reject(str(error), requeue=True) from error


@app.task(name="slice_task", bind=True)
def slice_task(self: Any, ledger_id: str, task_ids: list[str]) -> int:
    """Work for one time slice.

    The message only says that there is work. The ledger decides which task comes first.
    """
    from crawler.child import consumed_queues, this_child

    failpoint("delivered")
    child = this_child()
    if ledger_id != child.worker.ledger_id:
        log.error(
            "a message of ledger %s came to a worker of ledger %s, and goes back: "
            "two stacks share this Redis; give each a database number of its own in REDIS_URL",
            ledger_id,
            child.worker.ledger_id,
        )
        time.sleep(1)
        raise Reject("another ledger's", requeue=True)
    begun = child.worker.run_slice(self.request.id, consumed_queues())
    child.maintainer.kick()
    child.restart_if_needed()
    failpoint("acknowledging")
    return begun


def fill_window() -> int:
    """Publish the next chunks from a process that is no worker; return their number of tasks."""
    from crawler.lpm import LocalPersistenceManager
    from crawler.maintainer import Maintainer

    with (
        closing(LocalPersistenceManager(settings.data_dir)) as lpm,
        closing(RedisBroker(broker_url)) as broker,
    ):
        return Maintainer(lpm, broker, settings).fill()
