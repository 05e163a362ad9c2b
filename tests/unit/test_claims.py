"""Claims: which tasks a worker process takes, and what it knows of its leases."""

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from crawler.lpm import LocalPersistenceManager
from crawler.models import Job, JobOptions
from crawler.resilience.memory import MemoryPermit
from crawler.resilience.permit import PermitAnswer, PermitRequest
from crawler.sites.live import LiveSites
from crawler.worker.claims import Claims
from crawler.worker.health import FreeSpace
from tests.support.tasks import done, new

QUEUES = ["urgent", "default"]
Make = Callable[..., Claims]


@pytest.fixture
def lpm(tmp_path: Path) -> Iterator[LocalPersistenceManager]:
    """A store for the test's own view."""
    lpm = LocalPersistenceManager(tmp_path / "data")
    yield lpm
    lpm.close()


@pytest.fixture
def make(lpm: LocalPersistenceManager, tmp_path: Path) -> Iterator[Make]:
    """Makes claims of a process, with a rate for all domains and a free space to keep."""
    made: list[Claims] = []

    def claims(rate: str = "none", min_free: int = 0) -> Claims:
        permit = MemoryPermit("owner", 5, fresh=False)
        known = LiveSites(tmp_path / "config", rate)
        own = LocalPersistenceManager(lpm.folder)
        made.append(Claims(own, "owner", permit, known, FreeSpace(lpm.folder, min_free)))
        return made[-1]

    yield claims
    for each in made:
        each.close()


def statuses(lpm: LocalPersistenceManager) -> list[str]:
    """The status of each task."""
    return [str(status) for (status,) in lpm.store.db.all("SELECT status FROM tasks ORDER BY id")]


def test_urgent_tasks_come_first_and_no_more_than_there_is_room_for(
    lpm: LocalPersistenceManager, make: Make
) -> None:
    """What is not claimed stays pending, for this process or another."""
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(3)])
    lpm.persist_tasks([new("http://b.example/urgent")], queue="urgent")
    claims = make()

    first, more = claims.claim(QUEUES, room=2, idle=True)
    assert [each.task.url for each in first] == ["http://b.example/urgent", "http://a.example/0"]
    assert more
    assert sorted(statuses(lpm)) == ["pending", "pending", "processing", "processing"]

    rest, more = claims.claim(QUEUES, room=10, idle=False)
    assert [each.task.url for each in rest] == ["http://a.example/1", "http://a.example/2"]
    assert claims.claim(QUEUES, room=10, idle=False) == ([], False)


def test_a_limited_domain_gives_a_permit_with_each_task(
    lpm: LocalPersistenceManager, make: Make
) -> None:
    """Only as many of its tasks are claimed as may go now; other domains are not held up."""
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(5)])
    lpm.persist_tasks([new("http://b.example/")])
    claims = make(rate="1/m")

    claimed, more = claims.claim(QUEUES, room=10, idle=True)

    assert sorted(each.task.domain for each in claimed) == ["a.example", "b.example"]
    assert [each.reservation and each.reservation.domain for each in claimed] == [
        each.task.domain for each in claimed
    ]
    assert more

    # And while all domains with due tasks are closed, the next look comes later
    assert claims.claim(QUEUES, room=10, idle=False) == ([], True)
    assert claims.poll_s > 0.03


def test_nothing_is_claimed_with_too_little_free_space(
    lpm: LocalPersistenceManager, make: Make
) -> None:
    """The task stays pending, and there is more to do."""
    lpm.persist_tasks([new("http://a.example/")])
    claims = make(min_free=shutil.disk_usage(lpm.folder).total * 2)

    assert claims.claim(QUEUES, room=10, idle=True) == ([], True)
    assert statuses(lpm) == ["pending"]


def test_a_lease_that_the_process_has_forgotten_is_given_back(
    lpm: LocalPersistenceManager, make: Make
) -> None:
    """An error between ledger and process must not keep a task for ever; known leases stay."""
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(3)])
    claims = make()
    known, _ = claims.claim(QUEUES, room=2, idle=True)
    [forgotten] = lpm.get_next_pending("owner", 1)

    claims.renew()
    assert statuses(lpm) == ["processing", "processing", "pending"]

    # And one that has ended is no longer known
    lpm.save_result(done(known[0].task))
    claims.release((known[0].task.id, known[0].task.fence))
    claims.renew()
    assert statuses(lpm) == ["completed", "processing", "pending"]
    assert forgotten.url == "http://a.example/2"


def test_one_task_is_claimed_or_told_when_to_ask_again(
    lpm: LocalPersistenceManager, make: Make
) -> None:
    """Its domain's limits hold for it, too; a task that another has is not claimed."""
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(2)])
    lpm.persist_tasks([new("http://b.example/")])
    claims = make(rate="1/m")

    claimed, wait_s = asyncio.run(claims.claim_task(1, "a.example", None))
    assert claimed is not None
    assert claimed.reservation is not None
    assert wait_s == 0

    closed, wait_s = asyncio.run(claims.claim_task(2, "a.example", None))
    assert closed is None
    assert wait_s > 1

    assert [task.domain for task in lpm.get_next_pending("another", 3)][-1] == "b.example"
    taken, wait_s = asyncio.run(claims.claim_task(3, "b.example", None))
    assert taken is None
    assert wait_s < 1


class Noted(MemoryPermit):
    """A permit that notes what it is asked."""

    asks: list[PermitRequest]

    def ask(self, asks: Sequence[PermitRequest]) -> list[PermitAnswer]:
        """Note the questions, and answer them."""
        self.asks = [*asks]
        return super().ask(asks)


def limited_job(lpm: LocalPersistenceManager, rate: str) -> Job:
    """A job with a limit of its own; called again it changes the limit."""
    return lpm.imports.open_job(
        key="job",
        name="job",
        queue="default",
        source="file",
        source_file=None,
        batch_size=100,
        now=time.time(),
        options=JobOptions(rate=rate),
    )


def test_a_jobs_limit_has_a_name_and_a_raised_one_counts_at_once(
    lpm: LocalPersistenceManager, tmp_path: Path
) -> None:
    """The permit learns whose limit it is; a page that waits need not wait for the cache."""
    job = limited_job(lpm, "1/m")
    lpm.persist_tasks([new("http://a.example/")], job=job)
    permit = Noted("owner", 5, fresh=False)
    known = LiveSites(tmp_path / "config")
    own = LocalPersistenceManager(lpm.folder)
    claims = Claims(own, "owner", permit, known, FreeSpace(lpm.folder, 0))
    limit = f"{lpm.store.id}/{job.id}"

    [claimed], _ = claims.claim(QUEUES, room=10, idle=True)
    assert [ask.job for ask in permit.asks] == [limit]
    rule = asyncio.run(claims.rule_now(job.id, "a.example"))
    assert claimed.reservation is not None
    assert rule == claimed.reservation.rule

    limited_job(lpm, "10/s")
    raised = asyncio.run(claims.rule_now(job.id, "a.example"))
    assert raised.interval_s < rule.interval_s
    asyncio.run(claims.reserve(job.id, PermitRequest(domain="b.example", rule=raised)))
    assert [ask.job for ask in permit.asks] == [limit]
    asyncio.run(claims.reserve(None, PermitRequest(domain="c.example", rule=raised)))
    assert [ask.job for ask in permit.asks] == [""]
    claims.close()
