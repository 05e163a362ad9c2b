"""A Gateway's tasks in a store, taken and ended as collector and workers do it."""

import time
from typing import Any

from crawler import urls
from crawler.db.gateway import Assigned, Assignment
from crawler.gateway.agent import open_job
from crawler.lpm import LocalPersistenceManager
from crawler.models import Task, TaskStatus
from tests.support.tasks import done


def given(external_id: str, url: str = "http://a.example/1", **fields: Any) -> Assignment:
    """A Gateway's task that can be worked on."""
    return Assignment(external_id=external_id, address=urls.parse(url), **fields)


def assign(lpm: LocalPersistenceManager, *tasks: Assignment, unnamed: Any = ()) -> Assigned:
    """Put these into the ledger as a collector does."""
    return lpm.gateway.assign(open_job(lpm), tasks, unnamed, time.time())


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
    for parcel in lpm.outbox.pages(100, time.time()):
        lpm.outbox.raw_sent(parcel.task, time.time())
