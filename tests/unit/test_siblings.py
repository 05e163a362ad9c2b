"""One URL under several parcel ids: one fetch, and a result for every row."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crawler import urls
from crawler.db import siblings
from crawler.db.gateway import Assignment
from crawler.db.owners import OwnerState
from crawler.gateway.agent import open_job as open_gateway_job
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job, Outcome, Task, TaskStatus
from crawler.results.bundle import bundle, unbundle
from tests.support.clock import Clock
from tests.support.tasks import done, new, open_job, page

DEAD = OwnerState("dead", {}, "", 0, frozenset(), "")
URL = "http://county.example/map?sheet=7"


@pytest.fixture
def clock() -> Clock:
    """A clock that stands."""
    return Clock(time.time())


@pytest.fixture
def lpm(tmp_path: Path, clock: Clock) -> Iterator[LocalPersistenceManager]:
    """A store in an empty folder."""
    lpm = LocalPersistenceManager(tmp_path / "data", clock=clock)
    yield lpm
    lpm.close()


def rows(lpm: LocalPersistenceManager, parcels: str, job: Job | None = None, url: str = URL) -> Job:
    """A job with a row for each letter, all for one URL."""
    job = job or open_job(lpm)
    tasks = [
        new(url, parcel_id=name, line=at, input={"owner": name * 3})
        for at, name in enumerate(parcels, 2)
    ]
    lpm.persist_tasks(tasks, job=job)
    return job


def stands(lpm: LocalPersistenceManager) -> str:
    """The states of all tasks, in order, by their first letters."""
    return "".join(row[0][0] for row in lpm.store.db.all("SELECT status FROM tasks ORDER BY id"))


def failed(task: Task, **fields: Any) -> Outcome:
    """A bad end of an attempt."""
    about: dict[str, Any] = {
        "status": TaskStatus.FAILED,
        "error_type": "http_404",
        "page": page(task.url, status=404),
        "record": b"",
    }
    return done(task, **(about | fields))


def test_one_fetch_gives_every_row_its_result(lpm: LocalPersistenceManager) -> None:
    """Each row keeps its task, its columns, its file and its place in the receipt; the page is
    stored once."""
    # Given three rows for one URL, one for another, and one of another job
    job = rows(lpm, "abc")
    lpm.persist_tasks([new("http://county.example/other", parcel_id="d", line=5)], job=job)
    rows(lpm, "z", open_job(lpm, "another"))

    # When what is due is claimed, and its pages come
    tasks = lpm.get_next_pending("owner", 10)
    assert [(task.url, task.job_id) for task in tasks] == [
        (URL, job.id), ("http://county.example/other", job.id), (URL, job.id + 1)
    ]  # fmt: skip
    assert lpm.get_next_pending("owner", 10) == []
    assert lpm.save_result(*(done(task) for task in tasks[:2])) == [True, True]

    # Then every row of the job has a result
    assert stands(lpm) == "ccccp"
    found = {result["parcel_id"]: result for result in lpm.results.read(job)}
    assert {name: result["input"] for name, result in found.items() if name != "d"} == {
        name: {"owner": name * 3} for name in "abc"
    }
    assert len({result["task_id"] for result in found.values()}) == 4
    assert len({json.dumps(found[name]["raw"]) for name in "abc"}) == 1
    assert [found[name]["same_as"] for name in "abc"] == [None, *[found["a"]["task_id"]] * 2]
    assert {path.stem for path in lpm.pending.glob("*.json")} == {
        result["task_id"] for result in found.values()
    }
    assert [
        json.loads((lpm.pending / f"{found[name]['task_id']}.json").read_text()) for name in found
    ] == [*found.values()]
    lpm.imports.close(job, lpm.now())
    lpm.jobs.finalise(lpm.now())
    receipt = lpm.verify(job)
    assert (receipt.rows, receipt.books.completed, receipt.problems) == (4, 4, [])


def test_a_sibling_that_another_worker_holds_is_left_alone(lpm: LocalPersistenceManager) -> None:
    """Its lease decides: what it brings is its own result, and nothing is stored twice."""
    rows(lpm, "ab")
    [first, second] = [row[0] for row in lpm.store.db.all("SELECT id FROM tasks ORDER BY id")]
    mine = lpm.dispatch.claim_one("me", first, lpm.now())
    other = lpm.dispatch.claim_one("other", second, lpm.now())
    assert mine
    assert other

    assert lpm.save_result(done(mine)) == [True]
    assert stands(lpm) == "cp"
    assert lpm.save_result(done(other, record={"title": "its own"})) == [True]
    assert [result["data"]["title"] for result in lpm.results.read()] == ["x", "its own"]


def test_a_claim_that_was_given_up_completes_nobody(lpm: LocalPersistenceManager) -> None:
    """A late twin's page is dropped for its siblings, too."""
    rows(lpm, "abc")
    [late] = lpm.get_next_pending("dead", 10)
    lpm.dispatch.free(DEAD, lpm.now())
    [now] = lpm.get_next_pending("alive", 10)

    assert lpm.save_result(done(late)) == [False]
    assert stands(lpm) == "ppp"
    assert lpm.save_result(done(now)) == [True]
    assert stands(lpm) == "ccc"


def test_a_page_that_fails_for_good_fails_for_all_rows_that_waited_for_it(
    lpm: LocalPersistenceManager, clock: Clock
) -> None:
    """Siblings wait until its last attempt; then each has the reason, and which task was
    fetched."""
    # Given three rows, and a page that is to be tried again
    rows(lpm, "abc")
    [task] = lpm.get_next_pending("owner", 10)
    lpm.save_result(
        failed(task, status=TaskStatus.PENDING, error_type="timeout", not_before=clock.now + 5)
    )
    assert lpm.get_next_pending("owner", 10) == []
    clock.now += 5

    # When it fails for good
    [again] = lpm.get_next_pending("owner", 10)
    assert again.id == task.id
    lpm.save_result(failed(again, error_message="the server answered 404"))

    # Then all have failed, and are fetched once where they are tried again
    assert stands(lpm) == "fff"
    told = lpm.store.db.all("SELECT error_type, error_message FROM tasks WHERE id > 1")
    once = f"(fetched once for all rows of this URL, by task {task.task_id})"
    assert told == [("http_404", f"the server answered 404 {once}")] * 2
    lpm.tasks.retry(("failed",), None, None, clock.now)
    [retried] = lpm.get_next_pending("owner", 10)
    lpm.save_result(done(retried))
    assert stands(lpm) == "ccc"


@pytest.mark.parametrize("parcels", ["abcdefgh", "ab"])
def test_one_page_is_in_flight_once_whoever_claims(
    lpm: LocalPersistenceManager, clock: Clock, parcels: str
) -> None:
    """Neither a second worker nor a wait that is over while the page is slow asks for it again."""
    rows(lpm, parcels)
    [leader] = lpm.get_next_pending("one", 1)
    lpm.store.db.execute("UPDATE tasks SET not_before = 0 WHERE status = 'pending'")

    assert lpm.get_next_pending("two", 10) == []
    clock.now += 2 * siblings.WAIT_S
    assert lpm.get_next_pending("two", 10) == []
    lpm.save_result(done(leader))
    assert stands(lpm) == "c" * len(parcels)


def test_a_wait_of_its_own_is_not_cut_short(lpm: LocalPersistenceManager, clock: Clock) -> None:
    """A row that waits for its own retry, or whose job is paused, is not made due by another's
    failure."""
    rows(lpm, "abc")
    first = lpm.get_next_pending("owner", 1)
    lpm.store.db.execute(
        "UPDATE tasks SET not_before = ?, failures = 1 WHERE parcel_id = 'b'", (clock.now + 600,)
    )
    lpm.store.db.execute("UPDATE tasks SET not_before = 9e15 WHERE parcel_id = 'c'")

    lpm.save_result(failed(first[0]))

    assert lpm.store.db.all("SELECT not_before FROM tasks ORDER BY id")[1:] == [
        (clock.now + 600,),
        (9e15,),
    ]


def test_siblings_of_a_page_whose_worker_died_are_not_forgotten(
    lpm: LocalPersistenceManager, clock: Clock
) -> None:
    """The page is fetched again at once, and completes them; where it is poison, they fall due by
    themselves."""
    rows(lpm, "abc")
    [task] = lpm.get_next_pending("dead", 10)
    lpm.dispatch.free(DEAD, clock.now)
    [again] = lpm.get_next_pending("dead", 10)
    assert again.id == task.id
    lpm.store.db.execute(
        "UPDATE tasks SET status = 'failed', owner = NULL WHERE id = ?", (task.id,)
    )

    assert lpm.get_next_pending("owner", 10) == []
    clock.now += siblings.WAIT_S
    [next_] = lpm.get_next_pending("owner", 10)
    lpm.save_result(done(next_))
    assert stands(lpm) == "fcc"


def test_tasks_of_a_gateway_are_no_siblings(lpm: LocalPersistenceManager) -> None:
    """Each is fetched and answered on its own, and neither waits for a row of a file nor serves
    one."""
    job = open_gateway_job(lpm)
    tasks = [Assignment(external_id=f"t-{n}", address=urls.parse(URL), parcel_id=n) for n in "abc"]
    lpm.gateway.assign(job, tasks, (), lpm.now())
    rows(lpm, "xy")

    claimed = lpm.get_next_pending("owner", 10)
    assert len(claimed) == 4
    lpm.save_result(*(done(task) for task in claimed[:3]))

    assert stands(lpm) == "cccpp"
    assert len(lpm.get_unsynced_results()) == 3


def test_what_may_reach_loopback_is_no_sibling_of_what_may_not(
    lpm: LocalPersistenceManager,
) -> None:
    """A row that was not given on the command line gets nothing that it could not have fetched."""
    job = rows(lpm, "a")
    lpm.persist_tasks([new(URL, parcel_id="b")], job=job, loopback=True)

    assert len(lpm.get_next_pending("owner", 10)) == 2


def test_thousands_of_rows_for_one_url(lpm: LocalPersistenceManager) -> None:
    """No transaction grows with them: so many wait for one page, and one commit copies so much and
    no more."""
    count, fetched = 3000, 0
    job = open_job(lpm)
    lpm.persist_tasks([new(URL, parcel_id=f"{n:05}") for n in range(count)], job=job)
    while tasks := lpm.get_next_pending("owner", 5):
        [(held,)] = lpm.store.db.all(
            "SELECT count(*) FROM tasks WHERE status = 'pending' AND not_before > 0"
        )
        assert held <= siblings.MAX_WAITING * len(tasks)
        before = stands(lpm).count("c")
        lpm.save_result(*(done(task) for task in tasks))
        assert stands(lpm).count("c") - before <= siblings.MAX_COMPLETED_PER_COMMIT + len(tasks)
        fetched += len(tasks)

    assert stands(lpm) == "c" * count
    assert fetched <= 4
    assert len(list(lpm.pending.glob("*.json"))) == count


def test_large_records_are_copied_within_bounds(lpm: LocalPersistenceManager) -> None:
    """One commit writes so many bytes for siblings at most, of however many pages; the others are
    fetched."""
    job = rows(lpm, "abcde")
    rows(lpm, "abcde", job, "http://county.example/other")
    large = {"text": "x" * (siblings.MAX_COPIED_BYTES_PER_COMMIT // 3)}
    fetched = []
    while tasks := lpm.get_next_pending("owner", 10):
        before = stands(lpm).count("c")
        lpm.save_result(*(done(task, record=large) for task in tasks))
        fetched.append(len(tasks))
        assert stands(lpm).count("c") - before <= len(tasks) + 2

    assert stands(lpm) == "c" * 10
    assert fetched == [2, 2, 1]


def test_siblings_travel_in_a_bundle(lpm: LocalPersistenceManager, tmp_path: Path) -> None:
    """Another store gets every row with its page."""
    job = rows(lpm, "abc")
    lpm.save_result(*(done(task) for task in lpm.get_next_pending("owner", 10)))
    other = LocalPersistenceManager(tmp_path / "other")
    target = tmp_path / "siblings.tar"
    bundle(lpm, target, job=job, since=None, raw=True)
    unbundle(other, target, 10_000_000)

    assert [result["parcel_id"] for result in other.results.read()] == ["a", "b", "c"]
    assert all(other.pages.read(row[0]) for row in other.store.db.all("SELECT id FROM tasks"))
    other.close()
