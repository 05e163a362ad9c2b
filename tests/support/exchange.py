"""A Gateway's tasks in a store, taken and ended as collector and workers do it."""

import time
from typing import Any

from crawler import urls
from crawler.db import exchange
from crawler.db.exchange import Assignment
from crawler.gateway.agent import open_job
from crawler.lpm import LocalPersistenceManager
from crawler.models import Task, TaskStatus
from tests.support.tasks import done


def given(external_id: str, url: str = "http://a.example/1", **fields: Any) -> Assignment:
    """A Gateway's task that can be worked on."""
    return Assignment(external_id=external_id, address=urls.parse(url), **fields)


def assign(
    lpm: LocalPersistenceManager, *tasks: Assignment, unnamed: Any = ()
) -> exchange.Assigned:
    """Put these into the ledger as a collector does."""
    return exchange.assign(lpm.durable, open_job(lpm), tasks, unnamed, time.time())


def claim(lpm: LocalPersistenceManager, count: int = 100) -> list[Task]:
    """Lease what is due."""
    return lpm.get_next_pending("owner", count)


def fail(lpm: LocalPersistenceManager, task: Task) -> None:
    """End a task without a result."""
    outcome = done(
        task, status=TaskStatus.FAILED, page=None, error_type="http_404", error_message="not there"
    )
    assert lpm.save_result(outcome) == [True]


def with_pages(lpm: LocalPersistenceManager) -> None:
    """As if the Gateway had all the pages."""
    for parcel in exchange.pages(lpm.ledger.db, 100, time.time()):
        exchange.raw_sent(lpm.ledger.db, parcel.task, time.time())
