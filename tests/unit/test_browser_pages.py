"""What `fetcher: auto` remembers of paths: which need a browser, and which do only in part."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from crawler.db import browser_pages
from crawler.lpm import LocalPersistenceManager
from crawler.models import Outcome, Task, TaskStatus

TASK = Task(
    id=1, task_id="a", url="", domain="a.example", queue="default", priority=5, fence=1, attempts=0,
    failures=0, loopback=False, job_id=None, job_size=None,
)  # fmt: skip


class Memory:
    """The memory of a store, and pages that teach it something."""

    def __init__(self, lpm: LocalPersistenceManager) -> None:
        self._lpm = lpm

    def teach(self, path: str, needs_browser: bool, version: str = "1") -> None:
        """A page shows whether pages like it need a browser."""
        task = msgspec.structs.replace(TASK, url=f"http://a.example{path}")
        outcome = Outcome(
            task=task,
            status=TaskStatus.COMPLETED,
            worker="",
            site=("site", version),
            learned=needs_browser,
        )
        browser_pages.note(self._lpm.store.durable, outcome, 1.0)

    def needs_browser(self, path: str, version: str = "1") -> bool:
        """Whether a page goes to a browser at once."""
        learned = self._lpm.browser_pages.learned()
        url = f"http://a.example{path}"
        return browser_pages.needs_browser(learned, "a.example", url, version)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    """One that knows nothing."""
    with LocalPersistenceManager(tmp_path) as lpm:
        lpm.open()
        yield Memory(lpm)


def test_a_path_is_learned_by_one_page(memory: Memory) -> None:
    """Its other pages go to a browser at once, those of other paths do not."""
    memory.teach("/home/1", True)
    assert memory.needs_browser("/home/2")
    assert not memory.needs_browser("/home/2/plan")


@pytest.mark.parametrize("first", [True, False])
def test_a_path_with_a_page_that_needs_no_browser_is_not_learned(
    memory: Memory, first: bool
) -> None:
    """Whichever of both kinds comes first, and however often."""
    memory.teach("/home/1", first)
    memory.teach("/home/2", not first)
    memory.teach("/home/3", True)
    assert not memory.needs_browser("/home/4")


def test_another_version_of_the_site_is_learned_anew(memory: Memory) -> None:
    """The pages may have changed with it."""
    memory.teach("/home/1", False)
    memory.teach("/home/1", True, "2")
    assert memory.needs_browser("/home/2", "2")
    assert not memory.needs_browser("/home/2", "1")


def test_paths_of_one_page_each_leave_room_for_others(memory: Memory) -> None:
    """A site without numbers in its paths fills the memory of one kind only, and what was learned
    wrongly is forgotten all the same."""
    memory.teach("/early/1", True)
    for number in range(browser_pages.MAX_PATTERNS + 10):
        memory.teach(f"/{'x' * number}", False)
    memory.teach("/home/1", True)
    memory.teach("/early/2", False)
    assert memory.needs_browser("/home/2")
    assert not memory.needs_browser("/early/3")


def test_a_path_of_both_kinds_is_found_out_where_the_memory_is_full(memory: Memory) -> None:
    """For good: else it would be learned again by each page that needs a browser."""
    for number in range(browser_pages.MAX_PATTERNS + 10):
        memory.teach(f"/{'x' * number}", False)
    for needs_browser in (True, False, True):
        memory.teach("/home/1", needs_browser)
    assert not memory.needs_browser("/home/2")


def test_what_a_process_knows_is_corrected(tmp_path: Path) -> None:
    """Before it sends the next page to a browser."""
    with LocalPersistenceManager(tmp_path) as lpm:
        lpm.open()
        memory = Memory(lpm)
        memory.teach("/home/1", True)
        memory.teach("/villa/1", True)
        learned = lpm.browser_pages.learned()
        memory.teach("/home/2", False)
        for path in ("/home/3", "/villa/3", "/other/3"):
            lpm.browser_pages.correct(learned, "a.example", f"http://a.example{path}")
    assert list(learned) == [("a.example", "/villa/*")]
