"""Which tasks are claimed next, and what becomes of those whose owner dies."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from crawler.db import owners
from crawler.db.dispatch import Place
from crawler.db.owners import Owner
from crawler.lpm import LocalPersistenceManager
from crawler.models import Line, Outcome, SentRequest, Task, TaskStatus
from tests.support.tasks import done, new


@pytest.fixture
def lpm(tmp_path: Path) -> Iterator[LocalPersistenceManager]:
    """A store in an empty folder."""
    lpm = LocalPersistenceManager(tmp_path / "data")
    yield lpm
    lpm.close()


def test_claims_follow_queue_priority_and_import_order(lpm: LocalPersistenceManager) -> None:
    """Urgent before default, 1 before 9, first come first served."""
    lpm.persist_tasks(
        [new("http://a.example/d5"), new("http://a.example/d1", priority=1)], queue="default"
    )
    lpm.persist_tasks(
        [new("http://a.example/u9", priority=9), new("http://a.example/u5")], queue="urgent"
    )

    tasks = lpm.get_next_pending("owner", 10)

    assert [task.url[-2:] for task in tasks] == ["u5", "u9", "d1", "d5"]


def refused(task: Task) -> Outcome:
    """An attempt that met a wall, to be made again at once."""
    sent = (SentRequest(task.domain, time.time(), 0.1),)
    return Outcome(
        task=task,
        status=TaskStatus.PENDING,
        worker="w",
        error_type="captcha",
        not_before=1.0,
        sent=sent,
    )


def test_what_has_failed_goes_behind_what_was_not_tried_yet(lpm: LocalPersistenceManager) -> None:
    """Within its queue, priority, deadline and domain; a worker is told how the last attempt
    ended."""
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(5)])
    lpm.persist_tasks([new("http://a.example/low", priority=9)])
    lpm.save_result(*(refused(task) for task in lpm.get_next_pending("owner", 2)))

    claimed = [(task.url[-1], task.error_type) for task in lpm.get_next_pending("owner", 9)]

    assert claimed == [
        ("2", None),
        ("3", None),
        ("4", None),
        ("0", "captcha"),
        ("1", "captcha"),
        ("w", None),
    ]


def test_what_has_failed_is_not_put_off_for_ever(lpm: LocalPersistenceManager) -> None:
    """It goes behind a thousand others, however many more come in."""
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(1010)])
    lpm.save_result(*(refused(task) for task in lpm.get_next_pending("owner", 1)))

    claimed = [task.url.rpartition("/")[2] for task in lpm.get_next_pending("owner", 1010)]

    assert 999 <= claimed.index("0") <= 1000


@pytest.mark.parametrize(("chance", "chosen"), [(0.0, "2"), (0.5, "5"), (0.999, "8")])
def test_a_probe_is_a_page_from_anywhere_that_was_not_refused(
    lpm: LocalPersistenceManager, chance: float, chosen: str
) -> None:
    """Bad pages stand together, so the page is not the next one; what has failed is taken only
    where all have."""
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(10)])
    lpm.save_result(*(refused(task) for task in lpm.get_next_pending("owner", 2)))
    lpm.tasks.wake(time.time())

    def probe() -> list[str]:
        [due] = lpm.dispatch.due(Line("default"))
        place = Place(due, 1, lambda job: True, (Line("urgent"), Line("default")))
        return [
            task.url[-1]
            for task in lpm.dispatch.claim("owner", [place], 1, time.time(), lambda: chance)[0]
        ]

    assert probe() == [chosen]
    lpm.get_next_pending("owner", 7)
    assert probe() == ["0"]


def test_a_probe_may_be_of_another_queue(lpm: LocalPersistenceManager) -> None:
    """An urgent page that was refused does not hold those of the other queue."""
    lpm.persist_tasks([new("http://a.example/urgent")], queue="urgent")
    lpm.save_result(*(refused(task) for task in lpm.get_next_pending("owner", 1)))
    lpm.persist_tasks([new("http://a.example/default")])
    lpm.tasks.wake(time.time())
    [due] = lpm.dispatch.due(Line("urgent"))

    [task], _ = lpm.dispatch.claim(
        "o", [Place(due, 1, lambda job: True, (Line("urgent"), Line("default")))], 1, time.time()
    )

    assert task.url.endswith("/default")


def test_a_killed_owners_tasks_come_back_at_once(lpm: LocalPersistenceManager) -> None:
    """A lease falls with its owner's lock; the page in the parser's hands gets the strike, and two
    are poison."""
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(3)])
    lpm.close()

    for _ in range(2):
        # Given an owner that is killed while it has two pages in flight and parses the first
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            own = Owner(lpm.owners, "worker", slots=10)
            tasks = lpm.get_next_pending(own.id, 2)
            for task in tasks:
                own.begin(task.id)
            own.mark(tasks[0].id)
            os.write(writer, b".")
            signal.pause()
        os.read(reader, 1)
        assert lpm.bury() == 0
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

        # When it is buried
        assert lpm.bury() == 2
        lpm.close()

    # Then the first page is set aside, and its neighbour is not blamed
    rows = lpm.store.db.all(
        "SELECT status, error_type, attempts, strikes, fence FROM tasks ORDER BY id"
    )
    assert rows == [
        ("failed", "poison", 2, 2, 2),
        ("pending", None, 2, 0, 2),
        ("pending", None, 0, 0, 0),
    ]
    assert owners.living(lpm.owners) == []
    kinds = lpm.store.db.all("SELECT kind FROM events WHERE task = 1 ORDER BY id")
    assert kinds == [("worker died",), ("poison",)]


def test_a_death_while_much_is_stored_is_blamed_on_no_page(tmp_path: Path) -> None:
    """The page that the loop works on then is a suspect like all others in flight: it gets no
    strike."""
    lpm = LocalPersistenceManager(tmp_path)
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(2)])
    lpm.close()

    # Given an owner that is killed while it parses the one page, and its writer stores the other
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        own = Owner(lpm.owners, "worker", slots=10)
        parsed, stored = lpm.get_next_pending(own.id, 2)
        own.begin(parsed.id)
        own.begin(stored.id)
        own.writes(True)
        own.mark(parsed.id)
        os.write(writer, b".")
        signal.pause()
    os.read(reader, 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

    # When it is buried
    assert lpm.bury() == 2

    # Then both are suspects
    assert lpm.store.db.all("SELECT status, strikes, deaths FROM tasks") == [("pending", 0, 1)] * 2


def test_a_clock_two_hours_ahead_steals_nothing(lpm: LocalPersistenceManager) -> None:
    """A lease is judged by its owner's lock: whose clock is off cannot take a living owner's
    task."""
    lpm.persist_tasks([new("http://a.example/1")])
    own = Owner(lpm.owners, "worker", slots=10)
    [task] = lpm.get_next_pending(own.id)
    ahead = LocalPersistenceManager(lpm.folder, clock=lambda: time.time() + 7200)

    assert ahead.bury() == 0
    assert ahead.get_next_pending("thief") == []
    assert lpm.save_result(done(task)) == [True]
    ahead.close()
    own.close()
