"""The Celery tasks. Sending one loads no worker: a child of the worker imports what it needs."""

import logging
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from celery import uuid
from celery.exceptions import Reject

from crawler import urls
from crawler.celery_app import RedisBroker, app, broker_url, settings
from crawler.config import failpoint
from crawler.models import NewTask

if TYPE_CHECKING:
    from crawler.worker import Worker

__all__ = ["app", "crawl_url", "scrape_chunk_task", "scrape_task"]

log = logging.getLogger(__name__)

SCRAPE_LIMIT_S = 100.0
"""How long `scrape_task` waits for its page; below a task's soft time limit."""


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


@app.task(name="scrape_chunk_task", bind=True)
def scrape_chunk_task(self: Any, ledger_id: str, task_ids: list[str]) -> int:
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
