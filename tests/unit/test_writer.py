"""The thread that stores outcomes: it waits for the store, never forgets its trouble, and charges
no page for ours."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from crawler.lpm import LocalPersistenceManager
from crawler.models import Outcome, SentRequest, Task
from crawler.worker.writer import LARGE_GROUP_BYTES, MAX_GROUP_BYTES, Writer
from tests.support.stack import wait_for
from tests.support.tasks import done, new, page


class Storing:
    """A writer on a store of its own, and what it told."""

    def __init__(self, folder: Path, sleep: Callable[[float], None] = time.sleep) -> None:
        self.lpm = LocalPersistenceManager(folder)
        self.stored: list[Outcome] = []
        self.groups: list[int] = []
        self.marks: list[tuple[bool, int]] = []
        """Each mark, with the number of outcomes that were stored by then."""
        self.complaints: list[str] = []
        self.writer = Writer(
            lambda: Narrow(folder), self._hear, self.complaints.append, sleep, self._marked
        )

    def _hear(self, outcomes: Sequence[Outcome], live: Sequence[bool]) -> None:
        self.groups.append(len(outcomes))
        self.stored += outcomes

    def _marked(self, much: bool) -> None:
        self.marks.append((much, len(self.stored)))

    def tasks(self, count: int) -> list[Task]:
        """So many claimed tasks."""
        self.lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(count)])
        return self.lpm.get_next_pending("owner", count)

    def states(self) -> list[tuple[object, ...]]:
        """What the ledger says of them."""
        return self.lpm.store.db.all(
            "SELECT status, error_type, attempts, failures FROM tasks ORDER BY id"
        )

    def put(self, *outcomes: Outcome) -> None:
        """Have them stored, and wait for it."""
        for outcome in outcomes:
            self.writer.put(outcome)
        wait_for(lambda: len(self.stored) >= len(outcomes), 20, "the outcomes to be stored")


class Narrow(LocalPersistenceManager):
    """A store in a process without the memory for some pages."""

    def save_result(self, *outcomes: Outcome) -> list[bool]:
        """Store them, unless one of them is a page that there is no memory for."""
        if any(outcome.page and outcome.page.body == b"large" for outcome in outcomes):
            raise MemoryError
        return super().save_result(*outcomes)


def test_a_store_error_and_another_in_one_group_leave_no_trouble_behind(tmp_path: Path) -> None:
    """A group meets a store that cannot be written, then holds a result that cannot be stored: work
    goes on."""
    raw = tmp_path / "raw"
    slept: list[str] = []

    def mend(_: float) -> None:
        slept.append(storing.writer.trouble)
        raw.unlink()
        raw.mkdir()

    # Given a store whose folder for pages is none, and a group with a result that is no text
    storing = Storing(tmp_path, mend)
    good, bad = storing.tasks(2)
    raw.rmdir()
    raw.write_text("no folder")

    # When it is stored, and the folder is back at the second attempt
    storing.put(done(good), done(bad, record=b"\xff"))

    # Then nothing is in the way of more, and the two have ended
    assert len(slept) == len(storing.complaints) == 1
    assert "cannot be written" in slept[0]
    wait_for(lambda: storing.writer.trouble == "", 5, "the trouble to be over")
    assert storing.states() == [("completed", None, 1, 0), ("failed", "internal", 1, 1)]
    storing.writer.stop(5)


def test_a_result_that_there_is_no_memory_for_is_fetched_again(tmp_path: Path) -> None:
    """Its task goes back without an attempt, its requests are noted, and the others of its group
    are stored."""
    storing = Storing(tmp_path)
    small, large = storing.tasks(2)
    too_large = page(large.url, b"large")
    sent = (SentRequest("a.example", 1000.0, 0.1),)

    storing.put(done(small), done(large, page=too_large, sent=sent))

    assert storing.states() == [("completed", None, 1, 0), ("pending", None, 0, 0)]
    assert [outcome.shortage for outcome in storing.stored] == [False, True]
    [(noted,)] = storing.lpm.store.db.all(
        "SELECT detail ->> 'sent' FROM events WHERE kind = 'broken off'"
    )
    assert noted == '[["a.example",1000.0,0.1]]'
    [(message, wait_s)] = storing.lpm.store.db.all(
        "SELECT error_message, not_before - ? FROM tasks WHERE id = ?", (time.time(), large.id)
    )
    assert message == "broken off, because there is no memory left"
    assert 0 < float(str(wait_s)) < 10
    storing.writer.stop(5)


def test_large_results_are_stored_a_few_at_a_time(tmp_path: Path) -> None:
    """A group ends with so many bytes, because all of it is in memory once more while it is
    stored."""
    storing = Storing(tmp_path)
    record = b'{"title":"' + b"x" * 6_000_000 + b'"}'

    storing.put(*(done(task, record=record) for task in storing.tasks(8)))

    assert max(storing.groups) <= MAX_GROUP_BYTES // len(record) + 1
    assert {state for state, *_ in storing.states()} == {"completed"}
    storing.writer.stop(5)


def test_storing_much_is_marked(tmp_path: Path) -> None:
    """While some megabytes are stored the owner says so, also where that fails; for ordinary pages
    it does not."""
    storing = Storing(tmp_path)
    small, large, failing = storing.tasks(3)

    storing.put(done(small))
    marks_of_small = list(storing.marks)
    storing.put(done(large, record=b'{"title":"' + b"x" * LARGE_GROUP_BYTES + b'"}'))
    wait_for(lambda: len(storing.stored) == 2, 20, "the second to be stored")
    storing.put(done(failing, record=b"\xff" * (LARGE_GROUP_BYTES + 1)))
    wait_for(lambda: len(storing.stored) == 3, 20, "the third to be stored")

    assert marks_of_small == []
    assert storing.marks == [(True, 1), (False, 1), (True, 2), (False, 2)]
    storing.writer.stop(5)


def test_what_is_stored_does_not_stay_in_memory_until_the_next_comes(tmp_path: Path) -> None:
    """Nobody counts it any more then."""
    storing = Storing(tmp_path)
    bodies = [b"<p>%d</p>" % n * 1_000 for n in range(3)]
    before = [sys.getrefcount(body) for body in bodies]

    storing.put(
        *(
            done(task, page=page(task.url, body))
            for task, body in zip(storing.tasks(3), bodies, strict=True)
        )
    )
    storing.stored.clear()

    wait_for(
        lambda: [sys.getrefcount(body) for body in bodies] == before, 20, "the pages to be let go"
    )
    storing.writer.stop(5)
