"""What tasks need: who claims them, in which messages they are, and that claims stay as fast."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from crawler.db.connection import Database
from crawler.db.dispatch import BROWSER_WINDOW, Place, lines_of
from crawler.db.store import DUE, TURN
from crawler.lpm import LocalPersistenceManager
from crawler.models import BROWSER, HTTP, MESSAGE_QUEUES, QUEUES, Line, Outcome, TaskStatus
from tests.support.tasks import new


@pytest.fixture
def lpm(tmp_path: Path) -> Iterator[LocalPersistenceManager]:
    """A store in an empty folder."""
    lpm = LocalPersistenceManager(tmp_path / "data")
    yield lpm
    lpm.close()


def claimed(lpm: LocalPersistenceManager, *queues: str) -> list[str]:
    """The pages that a worker on these queues of messages claims, in their order."""
    places = [
        Place(due, 10, lambda job: True)
        for line in lines_of(queues)
        for due in lpm.dispatch.due(line)
    ]
    tasks, _ = lpm.dispatch.claim("o", places, 10, time.time())
    return [task.url.rpartition("/")[2] for task in tasks]


def fill(lpm: LocalPersistenceManager) -> None:
    """Two pages of each queue, one for a browser and one for any worker."""
    for queue in ("default", "urgent"):
        tasks = [new(f"http://a.example/{queue}-{needs}", needs=needs) for needs in (HTTP, BROWSER)]
        lpm.persist_tasks(tasks, queue=queue)


def test_workers_claim_what_they_can_fetch(lpm: LocalPersistenceManager) -> None:
    """Workers without a browser take no page that needs one, and those with one nothing else;
    urgent pages come first."""
    fill(lpm)

    assert claimed(lpm, *QUEUES) == ["urgent-http", "default-http"]
    assert claimed(lpm, BROWSER) == ["urgent-browser", "default-browser"]
    assert claimed(lpm, *MESSAGE_QUEUES) == []


def test_pages_for_browsers_have_messages_and_a_window_of_their_own(
    lpm: LocalPersistenceManager,
) -> None:
    """They go into the queue of browsers, and keep no other page out of Redis."""
    fill(lpm)
    many = [new(f"http://b.example/{n}", needs=BROWSER) for n in range(2 * BROWSER_WINDOW)]
    lpm.persist_tasks(many)

    chunks = lpm.dispatch.fill(2000, 2, time.time())

    by_queue = {name: [chunk for chunk in chunks if chunk.queue == name] for name in MESSAGE_QUEUES}
    counts = {name: sum(len(chunk.task_ids) for chunk in by_queue[name]) for name in by_queue}
    assert counts == {"urgent": 1, "default": 1, "browser": BROWSER_WINDOW}
    first = by_queue["browser"][0].task_ids[0]
    assert lpm.store.db.value("SELECT queue FROM tasks WHERE task_id = ?", (first,)) == "urgent"


def test_a_task_is_routed_without_an_attempt(lpm: LocalPersistenceManager) -> None:
    """A page that needs a browser is left to workers with one: nothing is charged, one line of its
    timeline says so, and those workers find it."""
    lpm.persist_tasks([new("http://a.example/")])
    [task] = lpm.get_next_pending("o")

    routed = Outcome(task=task, status=TaskStatus.PENDING, worker="w", needs=BROWSER, charge=False)
    assert lpm.save_result(routed) == [True]

    row = lpm.store.db.one("SELECT status, needs, attempts, failures FROM tasks")
    assert row == ("pending", BROWSER, 0, 0)
    assert [kind for _, kind, _ in lpm.timeline.events(task.id)] == ["needs a browser"]
    assert lpm.get_next_pending("o") == []
    assert len(lpm.get_next_pending("o", queues=(BROWSER,))) == 1


def plan(db: Database, sql: str, *values: object) -> str:
    """How SQLite runs a statement."""
    return " ".join(row[-1] for row in db.all(f"EXPLAIN QUERY PLAN {sql}", values))


def test_claims_seek_in_the_index_of_due_tasks(lpm: LocalPersistenceManager) -> None:
    """Whatever the tasks of others need, no claim reads them."""
    db, line = lpm.store.db, Line("default")
    at = f"FROM tasks WHERE {DUE} AND queue = ? AND needs = ?"
    group = f"SELECT priority {at} AND priority > ? ORDER BY priority, deadline LIMIT 1"
    turn = f"""SELECT id {at} AND priority = ? AND deadline = ? AND domain = ?
        ORDER BY {TURN} LIMIT ?"""

    for steps, found in (
        ("queue=? AND needs=?", plan(db, f"SELECT 1 {at} LIMIT 1", *line)),
        ("queue=? AND needs=? AND priority>?", plan(db, group, *line, 0)),
        ("needs=? AND priority=? AND deadline=? AND domain=?", plan(db, turn, *line, 5, 1, "a", 9)),
    ):
        assert "USING COVERING INDEX tasks_due" in found or "USING INDEX tasks_due" in found
        assert steps in found
        assert "TEMP B-TREE" not in found
