"""Deaths that nobody can be blamed for: suspects are tried one at a time, and never all blamed."""

import contextlib
import os
import signal
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from crawler.db.dispatch import ALONE_DEATHS
from crawler.db.owners import OwnerState
from crawler.db.store import SUSPECT_DEATHS
from crawler.lpm import LocalPersistenceManager
from crawler.models import Line, TaskStatus
from tests.support.site import Site
from tests.support.stack import Folder, wait_for
from tests.support.tasks import done, new


def note(in_flight: set[int], parsing: int = 0, evidence: str = "") -> OwnerState:
    """What a dead owner has left."""
    return OwnerState("owner", {"pid": 1}, "", parsing, frozenset(in_flight), evidence)


def claim(lpm: LocalPersistenceManager, *ids: int) -> None:
    """Lease tasks for the owner, due or suspected."""
    for id_ in ids:
        assert lpm.dispatch.claim_one("owner", id_, lpm.now()) is not None


def states(lpm: LocalPersistenceManager) -> dict[int, tuple[str, int, int]]:
    """Status, strikes and deaths of every task."""
    return {
        row[0]: row[1:] for row in lpm.store.db.all("SELECT id, status, strikes, deaths FROM tasks")
    }


@pytest.fixture
def lpm(tmp_path: Path) -> LocalPersistenceManager:
    """A store with three tasks."""
    lpm = LocalPersistenceManager(tmp_path / "data")
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(3)])
    return lpm


def test_unexplained_deaths_blame_nobody(lpm: LocalPersistenceManager) -> None:
    """However often a worker dies with pages in flight and no mark, none of them fails; they are
    only suspected."""
    for _ in range(30):
        claim(lpm, 1, 2)
        lpm.dispatch.free(note({1, 2}), lpm.now())

    assert states(lpm) == {
        1: ("pending", 0, SUSPECT_DEATHS),
        2: ("pending", 0, SUSPECT_DEATHS),
        3: ("pending", 0, 0),
    }
    # An ordinary claim does not get them, and each is offered by itself.
    assert [task.id for task in lpm.get_next_pending("owner", 10)] == [3]
    suspect = lpm.dispatch.suspect([Line("default")])
    assert suspect is not None
    assert suspect.id == 1


def test_a_marked_page_clears_its_neighbours(lpm: LocalPersistenceManager) -> None:
    """Where the mark names a page, that one gets the strike, and nobody else is even suspected."""
    for _ in range(2):
        claim(lpm, 1, 2)
        lpm.dispatch.free(note({1, 2}, parsing=1), lpm.now())

    assert states(lpm) == {1: ("failed", 2, 0), 2: ("pending", 0, 0), 3: ("pending", 0, 0)}


@pytest.mark.parametrize(("evidence", "deaths"), [("Fatal Python error", 2), ("", ALONE_DEATHS)])
def test_a_suspect_that_is_alone_at_further_deaths_is_set_aside(
    lpm: LocalPersistenceManager, evidence: str, deaths: int
) -> None:
    """Alone in flight, it is to blame: at the second death with a trace, later where it may have
    been a kill."""
    for _ in range(SUSPECT_DEATHS):
        claim(lpm, 1, 2)
        lpm.dispatch.free(note({1, 2}), lpm.now())
    for number in range(deaths):
        assert states(lpm)[1][0] == "pending", number
        claim(lpm, 1)
        lpm.dispatch.free(note({1}, evidence=evidence), lpm.now())

    assert states(lpm)[1][0] == "failed"
    assert states(lpm)[2] == ("pending", 0, SUSPECT_DEATHS)
    [(reason, message)] = lpm.store.db.all(
        "SELECT error_type, error_message FROM tasks WHERE id = 1"
    )
    assert reason == "poison"
    assert f"{deaths} workers died" in message


def test_a_suspect_that_ends_is_cleared(lpm: LocalPersistenceManager) -> None:
    """An attempt that comes to an end, good or not, was not what killed the workers."""
    for _ in range(SUSPECT_DEATHS):
        claim(lpm, 1)
        lpm.dispatch.free(note({1, 2}), lpm.now())
    task = lpm.dispatch.claim_one("owner", 1, lpm.now())
    assert task is not None

    lpm.save_result(
        done(task, status=TaskStatus.PENDING, error_type="timeout", error_message="slow", page=None)
    )

    assert states(lpm)[1] == ("pending", 0, 0)


def test_suspects_are_tried_one_at_a_time_and_all_collected(
    folder: Folder, site: Site, redis_url: str
) -> None:
    """A child killed again and again with pages in flight: in the end all pages are there, and none
    is blamed."""
    # Given one child with four slow pages in flight, which is killed until they are suspects
    folder.env |= {"REDIS_URL": redis_url, "CRAWLER_PAGES": "4"}
    folder.redis().flushall()
    slow = [site.page(n, 3) for n in range(4)]
    folder.crawler("bulk", "import", str(folder.write("pages.txt", slow)))
    folder.worker(concurrency=1)
    lpm = folder.lpm()
    for _ in range(SUSPECT_DEATHS):
        wait_for(lambda: sum(site.hits().values()) >= 4, 120, "four pages in flight")
        site.reset()
        [child] = wait_for(folder.children, 60, "a child")
        os.kill(child, signal.SIGKILL)
        wait_for(partial(has_other, folder, child), 120, "another child")

    # When nobody kills it any more
    folder.wait_until_done(4, 180)

    # Then each was alone when it was fetched, and all are there
    times = sorted(
        lpm.store.db.all(
            "SELECT json_extract(detail, '$.claimed_at'), at FROM events "
            "WHERE kind = 'completed' ORDER BY 1"
        )
    )
    lpm.close()
    assert len(times) == 4
    assert all(end <= begin for (_, end), (begin, _) in pairwise(times)), times
    assert sorted(result["url"] for result in folder.results()) == sorted(slow)


def has_other(folder: Folder, gone: int) -> bool:
    """Whether a child lives, and that one does not."""
    children = folder.children()
    return bool(children) and gone not in children


@pytest.mark.parametrize(
    ("number", "deaths"), [(signal.SIGKILL, SUSPECT_DEATHS + ALONE_DEATHS), (signal.SIGSEGV, 5)]
)
def test_the_one_that_kills_is_found_and_its_neighbours_are_not_blamed(
    folder: Folder, site: Site, redis_url: str, number: signal.Signals, deaths: int
) -> None:
    """A page at which the worker dies without a mark is set aside after it was alone; the others
    are collected.

    A crash leaves a trace, so that fewer of them are enough.
    """
    # Given pages, and a test that kills each child which has asked for one of them: nothing marks
    # that page
    folder.env |= {"REDIS_URL": redis_url, "CRAWLER_PAGES": "4"}
    folder.redis().flushall()
    pages = [site.page(n, 0.5) for n in range(8)]
    deadly = f"{site.url}/slow/50"
    folder.crawler("bulk", "import", str(folder.write("pages.txt", [deadly, *pages])))
    folder.worker(concurrency=1)

    # When every child that fetches it dies
    def all_done() -> bool:
        if any(path.startswith("/slow/") for path in site.hits()):
            site.reset()
            for child in folder.children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, number)
        books = folder.books()
        return books.accepted == 9 and not books.open

    wait_for(all_done, 240, "all tasks in a final state")

    # Then only that one has failed
    lpm = folder.lpm()
    failed = lpm.store.db.all(
        "SELECT url, error_type, attempts FROM tasks WHERE status <> 'completed'"
    )
    lpm.close()
    assert failed == [(deadly, "poison", deaths)]
    assert sorted(result["url"] for result in folder.results()) == sorted(pages)
