"""What a worker process lacks: noted for other processes, logged once, and over when it is over."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from crawler.db import owners
from crawler.fetch.budget import Budget, Memory
from crawler.worker.health import FreeSpace, Health
from tests.support.clock import Clock


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[owners.Owner]:
    """This process as an owner."""
    owner = owners.Owner(tmp_path / "owners", "worker", slots=4)
    yield owner
    owner.close()


def trouble(owner: owners.Owner) -> str:
    """What other processes see."""
    [note] = owners.living(owner.path.parent)
    return note.trouble


def test_free_space_is_looked_at_once_a_second(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk is said once, and keeps its answer until the next look."""
    clock = Clock(100.0)
    scarce = FreeSpace(tmp_path, 2 * shutil.disk_usage(tmp_path).total, clock)
    assert not scarce.is_enough()
    clock.now += 5
    assert not scarce.is_enough()
    assert caplog.text.count("MB are free") == 1
    assert "nothing more is fetched" in (scarce.problem or "")

    assert FreeSpace(tmp_path, 0, clock).is_enough()


def test_a_shortage_lasts_a_second_and_is_logged_when_it_begins_and_ends(
    owner: owners.Owner, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What comes and goes within some seconds is one shortage."""
    clock = Clock(100.0)
    health = Health(owner, Memory(), FreeSpace(tmp_path, 0, clock), clock)

    health.note_shortage("there are too many open files")
    assert [health.must_not_claim] == [True]
    health.publish("")
    assert trouble(owner) == "there are too many open files"

    clock.now += 2
    assert [health.must_not_claim] == [False]
    health.publish("")
    assert trouble(owner) == ""
    health.note_shortage("there are too many open files")
    health.publish("")
    clock.now += 6
    health.publish("")
    assert caplog.text.count("nothing more is claimed for now: there are too many") == 1
    assert caplog.text.count("what was lacking is there again") == 1


def test_full_memory_is_told_before_all_else(owner: owners.Owner, tmp_path: Path) -> None:
    """Nothing is claimed while the pages in flight take all that they may."""
    memory, clock = Memory(), Clock(100.0)
    health = Health(owner, memory, FreeSpace(tmp_path, 0, clock), clock)
    budget = Budget(memory=memory)
    budget.hold(memory.limit)

    health.publish("the disk is full")
    assert [health.must_not_claim] == [True]
    assert "bytes of memory, as many as they may" in trouble(owner)

    budget.release()
    health.publish("the disk is full")
    assert [health.must_not_claim] == [False]
    assert trouble(owner) == "the disk is full"


def test_trouble_with_the_store_is_logged_once_a_minute(
    owner: owners.Owner, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever meets it, and once more when it is over."""
    clock = Clock(100.0)
    health = Health(owner, Memory(), FreeSpace(tmp_path, 0, clock), clock)

    for _ in range(4):
        health.note_store("lpm.db cannot be written")
        health.complain("lpm.db cannot be written")
        clock.now += 25
    health.publish("")
    assert trouble(owner) == "lpm.db cannot be written"
    assert caplog.text.count("results wait in memory") == 2

    health.note_store("")
    health.note_store("")
    health.publish("")
    assert trouble(owner) == ""
    assert caplog.text.count("the store can be used again; work goes on") == 1
