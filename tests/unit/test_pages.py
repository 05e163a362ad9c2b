"""Pages in flight: how many there may be, what each may cost, and what is left of each at its
end."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from crawler.db import owners
from crawler.db.store import HELD
from crawler.errors import FetchError
from crawler.fetch.budget import Memory
from crawler.fetch.http import Request, RequestHook
from crawler.fetch.rendering import Rendered
from crawler.fetch.robots import Robots
from crawler.lpm import LocalPersistenceManager
from crawler.models import JobOptions, Outcome, Page, TaskStatus
from crawler.render_options import RenderOptions
from crawler.resilience.memory import MemoryPermit
from crawler.scraping.attempt import BROWSER_CRASHED, Render
from crawler.sites.live import LiveSites
from crawler.worker.claims import Claims
from crawler.worker.health import FreeSpace, Health, Watchdog
from crawler.worker.pages import MIN_PAGES, Attempts, Budgets, Capacity, Pages
from tests.support.clock import Clock
from tests.support.tasks import new, open_job, page


def test_capacity_follows_the_lag_of_the_loop() -> None:
    """More pages while the loop waits for servers, fewer when it is late, never below the first
    number."""
    capacity = Capacity(max_pages=100)
    assert capacity.free_places(0) == MIN_PAGES
    capacity.adapt(0.0)
    assert capacity.free_places(0) == MIN_PAGES  # places were free: no more are needed

    for n in range(MIN_PAGES):
        capacity.begin((n, 1))
    assert capacity.free_places(MIN_PAGES) == 0
    capacity.adapt(0.0)
    assert capacity.free_places(MIN_PAGES) == MIN_PAGES // 4
    assert not capacity.is_worth_a_claim(MIN_PAGES)

    for _ in range(9):
        capacity.adapt(0.5)
    assert capacity.free_places(MIN_PAGES) == 0
    for n in range(MIN_PAGES):
        capacity.end((n, 1))
    assert capacity.is_worth_a_claim(0)


def test_slow_pages_make_room_for_others_up_to_a_limit() -> None:
    """Servers that hang must not keep a process from those that answer."""
    clock = Clock(100.0)
    capacity = Capacity(max_pages=10, clock=clock)
    for n in range(10):
        capacity.begin((n, 1))
    assert capacity.free_places(10) == 0

    clock.now += 3
    assert capacity.free_places(10) == 10
    assert capacity.free_places(35) == 5
    assert capacity.free_places(40) == 0


class Process:
    """The parts of a worker process around its pages; `answer` stands for all servers."""

    def __init__(
        self,
        folder: Path,
        rate: str = "none",
        limit_s: float = 600.0,
        render: Render | None = None,
    ) -> None:
        self.lpm = LocalPersistenceManager(folder)
        self.owner = owners.Owner(self.lpm.owners, "worker", slots=1)
        known, memory, disk = LiveSites(folder / "none", rate), Memory(), FreeSpace(folder, 0)
        store = LocalPersistenceManager(folder)
        permit = MemoryPermit(self.owner.id, 5, fresh=False)
        self.claims = Claims(store, self.owner.id, permit, known, disk)
        self.health = Health(self.owner, memory, disk)
        self.budgets = Budgets(memory, self.owner, Watchdog(600, self.owner.trace))
        self.attempts = Attempts(
            "test",
            self._fetch,
            self.claims,
            known,
            Robots(self.lpm.run / "robots"),
            self.budgets,
            self.health,
            limit_s,
            render,
        )
        self.answer: Callable[[str], Page] = page
        self.watched: list[Outcome | None] = []

    async def _fetch(self, request: Request, gate: RequestHook) -> Page:
        async with gate(request.url):
            if request.url.endswith("/robots.txt"):
                return page(request.url, b"", 404)
            return self.answer(request.url)

    def close(self) -> None:
        """End its thread, and close its store."""
        self.claims.close()
        self.owner.close()
        self.lpm.close()

    async def crawl(self, hold_retries: bool = False) -> tuple[Outcome, Pages]:
        """Claim one task and take it to its commit."""
        outcomes: list[Outcome] = []

        def store(outcome: Outcome) -> None:
            outcomes.append(outcome)
            live = self.lpm.save_result(outcome)
            asyncio.get_running_loop().call_soon(pages.committed, [outcome], live)

        pages = Pages(
            self.attempts,
            self.claims,
            self.budgets,
            Capacity(10),
            self.owner,
            store,
            lambda task, outcome: self.watched.append(outcome),
            hold_retries,
        )
        [claimed], _ = await self.claims.run(self.claims.claim, ["default"], 1, True)
        await pages.finish(claimed)
        return outcomes[0], pages


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    """A process with one task to do."""
    process = Process(tmp_path)
    process.lpm.persist_tasks([new("http://a.example/")])
    yield process
    process.close()


def test_a_page_is_noted_from_its_request_to_its_commit(process: Process) -> None:
    """Then its slot, its lease and its memory are free for another."""
    outcome, pages = asyncio.run(process.crawl())

    assert outcome.status is TaskStatus.COMPLETED
    assert process.watched == [None, outcome]
    assert pages.is_idle
    assert pages.uncommitted == 0
    [note] = owners.living(process.lpm.owners)
    assert note.in_flight == frozenset()
    assert process.owner.begin(7) == 0
    process.claims.renew()
    assert process.lpm.store.db.all("SELECT status FROM tasks") == [("completed",)]


def test_an_unforeseen_error_costs_one_page(process: Process) -> None:
    """The task fails with the error's text, and the process goes on."""

    def broken(url: str) -> Page:
        raise ZeroDivisionError("a defect")

    process.answer = broken
    outcome, _ = asyncio.run(process.crawl())

    assert (outcome.status, outcome.error_type) == (TaskStatus.FAILED, "internal")
    assert "a defect" in (outcome.error_message or "")
    assert not process.health.must_not_claim


def test_a_shortage_of_the_process_is_not_charged_to_the_page(process: Process) -> None:
    """The task waits some seconds without having used an attempt, and nothing is claimed."""

    def hungry(url: str) -> Page:
        raise MemoryError

    process.answer = hungry
    outcome, _ = asyncio.run(process.crawl())

    assert outcome.shortage
    assert process.health.must_not_claim
    [row] = process.lpm.store.db.all("SELECT status, attempts, failures FROM tasks")
    assert row == ("pending", 0, 0)


def test_a_retry_that_only_this_process_can_make_is_held(process: Process) -> None:
    """Other processes do not know its session; this one knows when it is due."""

    def refuses(url: str) -> Page:
        raise FetchError("timeout", "too slow")

    process.answer = refuses
    began = time.monotonic()
    outcome, pages = asyncio.run(process.crawl(hold_retries=True))

    assert (outcome.status, outcome.not_before) == (TaskStatus.PENDING, HELD)
    assert pages.retry_at > began  # its random pause may be short


def test_a_page_that_gives_way_waits_longer_each_time(process: Process) -> None:
    """The wait doubles up to five minutes; an attempt that ends otherwise starts it anew."""
    waits = [process.budgets.give_way(1) for _ in range(8)]
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300]
    assert process.budgets.new(1).times == 8

    process.budgets.forget(1)
    assert process.budgets.new(1).times == 0
    assert process.budgets.give_way(1) == 5


def test_others_see_until_when_a_page_waits_for_its_next_permit(tmp_path: Path) -> None:
    """Its robots.txt was asked for; the page itself may go out a second later."""
    process = Process(tmp_path, rate="1/s")
    process.lpm.persist_tasks([new("http://a.example/")])
    waiting: list[float] = []

    async def watched() -> Outcome:
        crawl = asyncio.create_task(process.crawl())
        while not crawl.done():
            [note] = owners.living(process.lpm.owners)
            waiting.extend(-moment for moment in note.requests.values() if moment < 0)
            await asyncio.sleep(0.01)
        outcome, _ = await crawl
        return outcome

    began = time.monotonic()
    outcome = asyncio.run(watched())
    process.close()

    assert outcome.status is TaskStatus.COMPLETED
    assert len(outcome.sent) == 2
    assert began < waiting[0] <= time.monotonic()


def test_a_dead_browser_costs_its_pages_a_fetch_and_a_page_alone_in_it_a_failure(
    tmp_path: Path,
) -> None:
    """None of the pages that were in it together is blamed; each goes in alone the next time."""

    async def die(request: Request, hook: RequestHook, options: RenderOptions) -> Rendered:
        async with hook(request.url):
            raise FetchError(BROWSER_CRASHED, "the browser has died")

    # Given a page for a browser that dies of it
    process = Process(tmp_path, render=die)
    job = open_job(process.lpm)
    options = "UPDATE jobs SET options = ?"
    encoded = msgspec.json.encode(JobOptions(fetcher="browser")).decode()
    process.lpm.store.durable.execute(options, (encoded,))
    process.lpm.persist_tasks([new("http://a.example/")], job=job)

    # When it is tried twice
    counts = []
    for _ in range(2):
        process.lpm.store.durable.execute("UPDATE tasks SET not_before = 0")
        asyncio.run(process.crawl())
        columns = "status, attempts, failures, strikes, error_type"
        counts.append(process.lpm.store.db.one(f"SELECT {columns} FROM tasks"))
    process.close()

    # Then only the second time, when it was alone, is its failure
    assert counts == [
        ("pending", 1, 0, 0, "browser_crashed"),
        ("pending", 2, 1, 0, "page_crashed"),
    ]
