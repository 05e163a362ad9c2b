"""What a Gateway gave and what it is to get, in the ledger."""

import time
from pathlib import Path
from typing import Any

import pytest

from crawler.config import Settings
from crawler.db.gateway import MAX_TASKS_PER_COMMIT, Assignment
from crawler.errors import UsageError
from crawler.gateway.agent import bind, open_job
from crawler.lpm import LocalPersistenceManager
from crawler.models import NO_DEADLINE
from tests.support.exchange import assign, claim, fail, given, with_pages
from tests.support.tasks import collect, done, new


@pytest.fixture
def lpm(tmp_path: Path) -> LocalPersistenceManager:
    """A store."""
    return LocalPersistenceManager(tmp_path)


def rows(lpm: LocalPersistenceManager, sql: str) -> list[tuple[Any, ...]]:
    """What a statement gives."""
    return lpm.store.db.all(sql)


def test_each_of_a_gateways_tasks_gets_its_own_answer(lpm: LocalPersistenceManager) -> None:
    """Two of them with one URL, and a file's row with the same, are three tasks: each id is
    answered by itself."""
    lpm.persist_tasks([new("http://a.example/1")])
    assert assign(lpm, given("t-1"), given("t-2")) == (2, 0, 0)

    lpm.save_result(*(done(task) for task in claim(lpm)))
    with_pages(lpm)

    assert rows(lpm, "SELECT state, count(*) FROM outbox GROUP BY 1 ORDER BY 1") == [
        ("held", 1),
        ("ready", 2),
    ]
    assert [p.task_id for p in lpm.outbox.results(10, time.time())] == ["t-1", "t-2"]


def test_a_row_of_a_file_does_not_join_a_gateways_task(lpm: LocalPersistenceManager) -> None:
    """It would inherit the other's deadline, its pause and what it may not reach."""
    assign(lpm, given("t-1", deadline=time.time() - 1))

    assert lpm.persist_tasks([new("http://a.example/1")], loopback=True).accepted == 1

    lpm.tasks.wake(time.time())
    assert dict(rows(lpm, "SELECT source, status FROM tasks")) == {
        "gateway": "expired",
        "file": "pending",
    }


def test_a_task_handed_out_twice_is_one_task(lpm: LocalPersistenceManager) -> None:
    """Open, it goes on; within one answer too."""
    assert assign(lpm, given("t-1"), given("t-1")) == (1, 0, 1)
    assert assign(lpm, given("t-1")) == (0, 0, 1)

    assert rows(lpm, "SELECT count(*), (SELECT size FROM jobs) FROM tasks") == [(1, 1)]


def test_a_task_with_a_result_is_answered_again(lpm: LocalPersistenceManager) -> None:
    """Handed out again after it was delivered, it is not fetched again: the Gateway gets the same
    result once more."""
    assign(lpm, given("t-1"))
    lpm.save_result(*(done(task) for task in claim(lpm)))
    with_pages(lpm)
    [parcel] = lpm.outbox.results(10, time.time())
    lpm.mark_synced([parcel.own_id])
    assert not lpm.outbox.unsent()

    assign(lpm, given("t-1"))

    assert claim(lpm) == []
    with_pages(lpm)
    [again] = lpm.outbox.results(10, time.time())
    assert (again.task_id, again.sha256) == ("t-1", parcel.sha256)


def test_an_id_that_comes_back_with_another_page_is_another_task(
    lpm: LocalPersistenceManager,
) -> None:
    """Once the first one was delivered: a Gateway that was made anew counts from one again."""
    assign(lpm, given("t-1"))
    lpm.save_result(*(done(task) for task in claim(lpm)))
    assign(lpm, given("t-1", "http://b.example/2"))
    assert claim(lpm) == []  # the first answer is on its way
    lpm.mark_synced([row[0] for row in rows(lpm, "SELECT task_id FROM tasks")])

    assign(lpm, given("t-1", "http://b.example/2"))

    [again] = claim(lpm)
    assert again.url == "http://b.example/2"
    assert not lpm.outbox.unsent()


def test_a_failed_task_is_done_again_where_the_gateway_had_heard_of_it(
    lpm: LocalPersistenceManager,
) -> None:
    """Before its report was delivered the report answers; after it, another handing out is a wish
    to try again."""
    assign(lpm, given("t-1"))
    [task] = claim(lpm)
    fail(lpm, task)
    assign(lpm, given("t-1"))
    assert claim(lpm) == []
    [report] = lpm.outbox.reports(10, time.time())
    lpm.outbox.reported(report, time.time())

    assign(lpm, given("t-1", "http://b.example/corrected"))

    [again] = claim(lpm)
    assert again.url == "http://b.example/corrected"
    assert rows(lpm, "SELECT count(*) FROM reports") == [(0,)]


def test_every_end_without_a_result_is_to_be_reported(lpm: LocalPersistenceManager) -> None:
    """A failure, a cancelled job, a deadline and poison each leave a report; other doors' tasks
    leave none."""
    now = time.time()
    assign(lpm, given("failed", "http://a.example/a"))
    [task] = claim(lpm)
    fail(lpm, task)
    assign(lpm, given("late", "http://a.example/b", deadline=now - 1))
    lpm.tasks.wake(now)
    assign(lpm, given("cancelled", "http://a.example/c"))
    lpm.persist_tasks([new("http://a.example/d")])
    lpm.jobs.hold(open_job(lpm), "cancelled", now)

    found = {
        report.task_id: (report.error_type, report.attempts)
        for report in lpm.outbox.reports(9, now)
    }

    assert found == {
        "failed": ("http_404", 1),
        "late": ("deadline", 0),
        "cancelled": ("cancelled", 0),
    }


def test_a_report_that_is_outdated_is_not_sent(lpm: LocalPersistenceManager) -> None:
    """An operator's retry before the report went makes it void."""
    assign(lpm, given("t-1"))
    [task] = claim(lpm)
    fail(lpm, task)

    assert lpm.tasks.retry(["failed"], None, None, time.time()) == (1, 0)

    assert lpm.outbox.reports(9, time.time()) == []


def test_a_task_that_cannot_be_worked_on_is_kept_and_reported(lpm: LocalPersistenceManager) -> None:
    """A refused one is a failed task with its reason; one without an id is kept as a rejected
    row."""
    bad = Assignment(
        external_id="t-9", input={"task": {"target": 1}}, refusal="the target is not an object"
    )

    assert assign(lpm, bad, given("t-1"), unnamed=[("it is no object", "17")]) == (1, 1, 0)

    [report] = lpm.outbox.reports(9, time.time())
    assert (report.task_id, report.error_type, report.reason) == (
        "t-9",
        "bad_task",
        "the target is not an object",
    )
    receipt = lpm.jobs.receipt(open_job(lpm))
    assert (receipt.rows, receipt.rejected, receipt.books.failed, receipt.problems) == (3, 1, 1, [])


def test_the_gateways_priorities_have_places_in_the_queues(lpm: LocalPersistenceManager) -> None:
    """1 goes first, in `urgent`; the others follow in their order, whatever the order of their
    handing out."""
    assign(lpm, *(given(f"t-{n}", f"http://a{n}.example/", priority=n) for n in (4, 2, 3, 1)))

    assert [task.url for task in claim(lpm)] == [f"http://a{n}.example/" for n in (1, 2, 3, 4)]


def test_a_question_keeps_its_key_until_its_answer_is_stored(lpm: LocalPersistenceManager) -> None:
    """So that the same question can be asked again, by another process too, and another one
    afterwards."""
    key = lpm.gateway.poll_key()
    assert LocalPersistenceManager(lpm.folder).gateway.poll_key() == key

    assign(lpm, given("t-1"))

    assert lpm.gateway.poll_key() != key


def test_a_result_made_or_sent_too_late_is_marked(lpm: LocalPersistenceManager) -> None:
    """It is delivered all the same; once it was offered, what was said about it stays."""
    now = time.time()
    assign(lpm, given("t-1", deadline=now + 100), given("t-2", "http://a.example/2"))
    lpm.save_result(*(done(task) for task in claim(lpm)))
    with_pages(lpm)

    assert [p.late for p in lpm.outbox.results(9, now)] == [False, False]
    assert [p.late for p in lpm.outbox.results(9, now + 200)] == [True, False]
    lpm.outbox.begin_batches([lpm.outbox.results(9, now)])
    assert [p.late for p in lpm.outbox.results(9, now + 200)] == [False, False]


def test_a_request_that_was_begun_is_repeated_before_new_ones(lpm: LocalPersistenceManager) -> None:
    """The results of a request are fixed when it is first sent, and taken apart only by an
    answer."""
    assign(lpm, *(given(f"t-{n}", f"http://a.example/{n}") for n in range(5)))
    lpm.save_result(*(done(task) for task in claim(lpm)))
    with_pages(lpm)
    first = lpm.outbox.results(3, time.time())
    lpm.outbox.begin_batches([first])

    again = lpm.outbox.results(100, time.time())
    assert [p.task_id for p in again] == [p.task_id for p in first] == ["t-0", "t-1", "t-2"]
    lpm.outbox.begin_batches([again[:1], again[1:]])

    assert [p.task_id for p in lpm.outbox.results(100, time.time())] == ["t-0"]


def test_what_was_rejected_is_kept_and_can_be_sent_again(lpm: LocalPersistenceManager) -> None:
    """All but what the Gateway wants no more, and that too where it is named."""
    assign(lpm, *(given(f"t-{n}", f"http://a.example/{n}") for n in range(3)))
    lpm.save_result(*(done(task) for task in claim(lpm)))
    with_pages(lpm)
    for parcel, code in zip(lpm.outbox.results(9, time.time()), (422, 410, 200), strict=True):
        lpm.outbox.refused(parcel, code, "no", None if code != 200 else time.time() + 100)

    stand = lpm.outbox.delivery(None)
    assert (stand.ready, stand.rejected, stand.synced) == (1, 2, 0)
    assert [(r["task_id"], r["code"]) for r in lpm.outbox.rejected()] == [
        ("t-0", 422),
        ("t-1", 410),
    ]
    assert lpm.outbox.results(9, time.time()) == []
    assert lpm.outbox.retry([]) == 1
    assert lpm.outbox.retry(["t-1", "t-7"]) == 1
    assert [p.task_id for p in lpm.outbox.results(9, time.time())] == ["t-0", "t-1"]


def test_standalone_results_are_held_until_they_are_let_go(lpm: LocalPersistenceManager) -> None:
    """By job or all; under our own ids."""
    collect(lpm, "first", 2)
    collect(lpm, "second", 3)
    assert lpm.outbox.unsent() == 0

    assert lpm.outbox.release(lpm.jobs.named("first")) == 2
    assert lpm.outbox.release() == 3
    with_pages(lpm)

    sent = lpm.outbox.results(9, time.time())
    assert [p.task_id for p in sent] == [p.own_id for p in sent]
    assert len(sent) == 5


def test_a_store_speaks_to_the_gateway_that_its_tasks_came_from(
    lpm: LocalPersistenceManager,
) -> None:
    """To another one only where nothing is open, or where the operator says that it has moved."""
    here, there = (
        Settings(gateway_url="https://one.example/"),
        Settings(gateway_url="https://two.example"),
    )
    name = bind(lpm, here)
    assert bind(lpm, there) == name
    assign(lpm, given("t-1"))

    with pytest.raises(
        UsageError, match=r"1 tasks or results of the Gateway at https://two\.example"
    ):
        bind(lpm, here)

    assert bind(lpm, here, moved=True) == name
    assert bind(lpm, here) == name


def test_a_call_for_a_gateways_url_is_a_task_of_its_own(lpm: LocalPersistenceManager) -> None:
    """`scrape_task` for a URL that is open for the Gateway neither takes nor changes that task."""
    assign(lpm, given("t-1", priority=4))

    call = lpm.tasks.add_call(new("http://a.example/1", external_id="t-1"), loopback=False)

    found = rows(lpm, "SELECT id, source, priority FROM tasks ORDER BY id")
    assert found == [(1, "gateway", 8), (call, "call", 5)]
    assert lpm.tasks.add_call(new("http://a.example/1", external_id="t-1"), loopback=False) == call


def test_a_task_without_a_url_is_not_tried_again(lpm: LocalPersistenceManager) -> None:
    """A retry of all that failed leaves it alone: there is nothing to fetch, and the Gateway was
    told."""
    assign(lpm, Assignment(external_id="t-9", refusal="there is no target"), given("t-1"))
    fail(lpm, claim(lpm)[0])

    assert lpm.tasks.retry(["failed"], None, None, time.time()) == (1, 0)

    assert [report.task_id for report in lpm.outbox.reports(9, time.time())] == ["t-9"]


def test_an_answer_to_an_old_report_says_nothing_of_a_new_one(lpm: LocalPersistenceManager) -> None:
    """Tried again and failed again while the first report was on its way: the second is still to be
    sent."""
    assign(lpm, given("t-1"))
    fail(lpm, claim(lpm)[0])
    [old] = lpm.outbox.reports(9, time.time())
    lpm.tasks.retry(["failed"], None, None, time.time())
    fail(lpm, claim(lpm)[0])

    lpm.outbox.reported(old, time.time())
    lpm.outbox.refused(old, 409, "no", None)

    assert len(lpm.outbox.reports(9, time.time())) == 1


def test_a_clock_that_was_wrong_puts_nothing_off_for_long(lpm: LocalPersistenceManager) -> None:
    """What was to be sent again in a second, a year ahead, is sent now."""
    assign(lpm, given("t-1"))
    lpm.save_result(*(done(task) for task in claim(lpm)))
    with_pages(lpm)
    [parcel] = lpm.outbox.results(9, time.time())
    lpm.outbox.refused(parcel, 200, "busy", time.time() + 365 * 86400)

    assert lpm.outbox.results(9, time.time()) != []


def test_many_tasks_in_one_answer_are_stored_in_slices(lpm: LocalPersistenceManager) -> None:
    """The question is done with the last of them."""
    key = lpm.gateway.poll_key()
    tasks = [given(f"t-{n}", f"http://a.example/{n}") for n in range(2 * MAX_TASKS_PER_COMMIT + 5)]

    assert assign(lpm, *tasks).accepted == len(tasks)

    assert lpm.gateway.poll_key() != key
    assert rows(lpm, "SELECT count(*), (SELECT size FROM jobs) FROM tasks") == [
        (len(tasks), len(tasks))
    ]


def test_no_deadline_is_no_deadline(lpm: LocalPersistenceManager) -> None:
    """A task without one never expires and is never late."""
    assign(lpm, given("t-1"))
    lpm.tasks.wake(time.time() + 1e9)
    assert rows(lpm, "SELECT status, deadline FROM tasks") == [("pending", NO_DEADLINE)]
