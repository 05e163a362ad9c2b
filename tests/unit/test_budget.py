"""What a page may cost: CPU time that is looked at inside the loops, turns for the others, bytes of
the process."""

import asyncio
import contextlib
import gc
import socket
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from crawler.errors import FetchError, GaveWay, OwnShortage
from crawler.fetch.budget import (
    MAX_IN_FLIGHT,
    MIN_GROWTH,
    STALLED_S,
    STEPS_PER_LOOK,
    TURN_S,
    Budget,
    Memory,
    TimeLimit,
    Turns,
)
from tests.support.clock import Clock

TICK_S = 0.01


class Ticking:
    """A clock of CPU time that goes on by a hundredth of a second at every look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += TICK_S
        return self.now


def toil(budget: Budget, looks: int) -> str:
    """Work of so many looks at the clock."""
    for _ in range(looks * STEPS_PER_LOOK):
        budget.check()
    return "done"


def test_work_beyond_the_budget_ends_itself() -> None:
    """A loop that goes on for too long is a failure of its page, with a reason that is not tried
    again."""

    budget = Budget(5.0, clock=Ticking())
    with pytest.raises(FetchError) as caught:
        asyncio.run(budget.work(toil, budget, 10_000))
    assert caught.value.reason == "too_costly"


def test_the_budget_is_one_for_all_work_on_a_page() -> None:
    """What decoding took is not there for parsing; what others take meanwhile does not count."""
    clock = Ticking()
    budget = Budget(5.0, clock=clock)

    async def work() -> None:
        assert await budget.work(toil, budget, 300) == "done"
        clock.now += 1000
        assert await budget.work(toil, budget, 150) == "done"
        await budget.work(toil, budget, 150)

    with pytest.raises(FetchError):
        asyncio.run(work())


def test_others_go_first_now_and_then_and_the_mark_names_who_works() -> None:
    """Each twentieth of a second the loop serves the others; the mark is that of the page that is
    worked on."""
    marked: list[str] = [""]
    seen: list[tuple[str, str]] = []

    def page(name: str) -> Budget:
        return Budget(
            60.0, mark=lambda working: marked.append(name if working else ""), clock=Ticking()
        )

    def steps(name: str, budget: Budget) -> None:
        for _ in range(10):
            toil(budget, 30)
            seen.append((name, marked[-1]))

    async def neighbour(others: list["asyncio.Task[None]"]) -> None:
        while not all(task.done() for task in others):
            seen.append(("loop", marked[-1]))
            await asyncio.sleep(0)

    async def work() -> None:
        budgets = {name: page(name) for name in "ab"}
        tasks = [
            asyncio.create_task(budgets[name].work(steps, name, budgets[name])) for name in "ab"
        ]
        await neighbour(tasks)
        await asyncio.gather(*tasks)

    asyncio.run(work())

    assert {(name, mark) for name, mark in seen} == {("a", "a"), ("b", "b"), ("loop", "")}
    assert sum(name == "loop" for name, _ in seen) >= 10
    assert marked[-1] == ""


def test_a_short_page_does_not_give_way() -> None:
    """Work of less than a twentieth of a second is done at once."""

    async def work() -> int:
        turns = 0

        async def other() -> None:
            nonlocal turns
            turns += 1

        task = asyncio.create_task(other())
        budget = Budget(60.0, clock=Ticking())
        await budget.work(toil, budget, 4)
        before = turns
        await task
        return before

    assert asyncio.run(work()) == 0


async def longest_turn(clock: Ticking, pages: int, work: Callable[[Budget], Any]) -> float:
    """The longest turn of the loop, in CPU time, while so many pages are worked on."""
    turns, longest = Turns(), 0.0
    budgets = [Budget(60.0, clock=clock, turns=turns) for _ in range(pages)]
    tasks = [asyncio.ensure_future(work(budget)) for budget in budgets]
    while not all(task.done() for task in tasks):
        before = clock.now
        await asyncio.sleep(0)
        longest = max(longest, clock.now - before)
    await asyncio.gather(*tasks)
    return longest


@pytest.mark.parametrize(
    "work",
    [lambda budget: budget.work(toil, budget, 40), lambda budget: budget.at_once(toil, budget, 4)],
    ids=["long", "short"],
)
@pytest.mark.parametrize("pages", [4, 64])
def test_a_turn_of_the_loop_takes_as_long_whatever_number_of_pages_is_ready(
    pages: int, work: Callable[[Budget], Any]
) -> None:
    """The sockets are served after a slice or three, also where dozens of pages have work to do."""
    assert asyncio.run(longest_turn(Ticking(), pages, work)) <= 4 * TURN_S


def test_pages_that_need_little_go_before_those_that_need_much() -> None:
    """Pages that come while dozens of costly ones are worked on have ended long before these; none
    waits for ever."""
    clock, turns = Ticking(), Turns()
    ended: list[str] = []

    async def page(name: str, looks: int) -> None:
        budget = Budget(60.0, clock=clock, turns=turns)
        await budget.work(toil, budget, looks)
        ended.append(name)

    async def work() -> None:
        costly = [asyncio.ensure_future(page("costly", 200)) for _ in range(30)]
        await asyncio.sleep(0)
        await asyncio.gather(*[page("small", 2) for _ in range(30)], *costly)

    asyncio.run(work())
    assert ended == ["small"] * 30 + ["costly"] * 30


def test_a_page_that_is_broken_off_while_it_waits_keeps_no_turn() -> None:
    """The others go on, and the bytes that it had in hand are free."""
    clock, turns, memory = Ticking(), Turns(), Memory()
    budgets = [Budget(60.0, memory, clock=clock, turns=turns) for _ in range(20)]

    async def work() -> list[object]:
        turns.spend(TURN_S, 0.0)
        tasks = [asyncio.create_task(budget.at_once(len, b"12345")) for budget in budgets]
        await asyncio.sleep(0)
        assert memory.used == 100
        for task in tasks[:10]:
            task.cancel()
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    found = asyncio.run(work())
    assert [type(each) for each in found] == [asyncio.CancelledError] * 10 + [int] * 10
    assert memory.used == 0


def test_the_wait_for_a_turn_is_not_charged_to_the_page() -> None:
    """A time limit is about the server: while others are worked on, it stands still."""
    turns = Turns()
    mine, others = Budget(60.0, clock=Ticking(), turns=turns), Budget(60.0, turns=turns)

    def busy(end: float) -> None:
        while time.monotonic() < end:
            others.look()

    async def work() -> int:
        await mine.at_once(toil, mine, 100)  # after so much of it the others come first
        occupied = asyncio.create_task(others.work(busy, time.monotonic() + 1))
        await asyncio.sleep(0)
        async with TimeLimit(0.2, mine):
            found = await mine.at_once(len, b"12345")
        await occupied
        return found

    assert uvloop.run(work()) == 5
    assert mine.waited_s > 0.2


def test_the_work_of_others_is_not_charged_to_a_page_that_waits_for_its_server() -> None:
    """A server's answer comes in time, also where costly pages keep the loop from each step of
    reading it."""
    turns = Turns()
    mine, others = (Budget(60.0, turns=turns) for _ in range(2))
    steps = 12

    def burn() -> None:
        end = time.thread_time() + 0.25
        while time.thread_time() < end:
            pass

    async def work() -> int:
        loop, done = asyncio.get_running_loop(), 0
        # All steps of the others together take longer, however quick the machine is.
        async with TimeLimit(0.25 * steps - 0.1, mine):
            for _ in range(steps):
                step = loop.create_task(others.at_once(burn))
                await asyncio.sleep(0.01)
                await step
                done += 1
        return done

    assert uvloop.run(work()) == steps


def test_time_in_which_the_loop_stood_still_is_not_charged_to_the_page() -> None:
    """What came while nobody looked at the sockets came in time; a server that stays silent is
    given up."""
    here, there = socket.socketpair()
    here.setblocking(False)

    def stand_still() -> None:
        there.send(b"x")
        time.sleep(0.5)

    async def work() -> bytes:
        loop = asyncio.get_running_loop()
        loop.call_soon(stand_still)
        async with TimeLimit(0.2, Budget()):
            found = await loop.sock_recv(here, 1)
        with pytest.raises(TimeoutError):
            async with TimeLimit(0.05, Budget()):
                await loop.sock_recv(here, 1)
        return found

    with here, there:
        assert uvloop.run(work()) == b"x"


def test_work_that_is_broken_off_leaves_nothing_behind() -> None:
    """A page whose time is up while others go first ends where it stands, with its cleaning up
    done."""
    ended: list[str] = []
    marks: list[bool] = []
    budget = Budget(60.0, mark=marks.append, clock=Ticking())

    def endless() -> None:
        try:
            toil(budget, 1_000_000)
        finally:
            ended.append("cleaned up")

    async def work() -> None:
        task = asyncio.create_task(budget.work(endless))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(work())
    assert ended == ["cleaned up"]
    assert marks[-1] is False


def test_short_work_is_marked_and_counted_too() -> None:
    """What is done at once cannot give way, but ends itself all the same, and counts."""
    marks: list[bool] = []
    budget = Budget(5.0, mark=marks.append, clock=Ticking())

    assert asyncio.run(budget.at_once(toil, budget, 300)) == "done"
    with pytest.raises(FetchError):
        asyncio.run(budget.at_once(toil, budget, 300))
    assert marks == [True, False] * 2


def test_short_work_counts_also_where_it_looks_at_no_clock() -> None:
    """A thousand short pieces of work are not free: the next look finds that the budget is
    spent."""
    clock = Ticking()
    budget = Budget(5.0, clock=clock)

    def step() -> None:
        clock.now += 0.5

    for _ in range(10):
        asyncio.run(budget.at_once(step))
    with pytest.raises(FetchError):
        asyncio.run(budget.at_once(budget.look))


def test_greenlets_keep_nothing_of_the_last_page() -> None:
    """What a page's work returned, raised or was given is gone when its caller forgets it."""

    class Large:
        """Something that can be looked for."""

    async def work(fails: bool) -> "weakref.ref[Large]":
        large = Large()

        def read(given: Large) -> Large:
            if fails:
                raise ValueError(given)
            return given

        with contextlib.suppress(ValueError):
            await Budget().work(read, large)
        return weakref.ref(large)

    for fails in (False, True):
        left = asyncio.run(work(fails))
        gc.collect()
        assert left() is None


def test_errors_come_out_as_they_are() -> None:
    """What the work raises, its caller gets; the page is marked no longer."""
    marks: list[bool] = []

    with pytest.raises(ZeroDivisionError):
        asyncio.run(Budget(mark=marks.append).work(lambda: 1 // 0))
    assert marks == [True, False]


def test_pages_in_flight_share_the_memory_of_their_process() -> None:
    """Above the limit nothing is claimed; above a higher line the page that wants more gives way,
    the oldest never."""
    memory = Memory()
    old, young = Budget(memory=memory), Budget(memory=memory)

    old.hold(MAX_IN_FLIGHT // 2)
    young.hold(MAX_IN_FLIGHT // 2)
    assert memory.used == memory.limit
    young.hold(MAX_IN_FLIGHT // 4)
    with pytest.raises(OwnShortage):
        young.hold(MAX_IN_FLIGHT)
    old.hold(MAX_IN_FLIGHT)
    assert memory.used == MAX_IN_FLIGHT * 9 // 4

    old.release(MAX_IN_FLIGHT)
    young.release()
    assert not memory.is_full
    old.release()
    assert memory.used == 0


def test_larger_pages_make_the_memory_larger() -> None:
    """Where pages may be larger than usual, some of them still fit."""
    assert Memory(1_000_000_000).limit == 4_000_000_000
    assert Memory(10_000_000).limit == MAX_IN_FLIGHT


def holding(memory: Memory, count: int, times: int = 0) -> tuple[Budget, list[str]]:
    """A page that reads from its server and holds so many bytes; its list hears when it gives
    way."""
    budget, left = Budget(memory=memory), []
    budget.times, budget.leave = times, lambda: left.append("left")
    budget.hold(count)
    return budget, left


def test_the_page_that_has_not_grown_for_longest_gives_way() -> None:
    """Not the first ones, which share half of the memory, and none that has just grown; what it
    held is free."""
    clock = Clock(0.0)
    memory = Memory(clock=clock)
    first, second, third, fourth = [holding(memory, MAX_IN_FLIGHT // 4) for _ in range(4)]
    assert (memory.is_full, memory.relieve()) == (True, False)

    clock.now += STALLED_S
    third[0].hold(MIN_GROWTH)
    assert [memory.relieve(), memory.relieve()] == [True, False]
    assert [bool(left) for _, left in (first, second, third, fourth)] == [False, False, False, True]
    assert memory.used < memory.limit
    with pytest.raises(GaveWay):
        fourth[0].hold(1)
    fourth[0].release()
    assert memory.used == MAX_IN_FLIGHT * 3 // 4 + MIN_GROWTH

    clock.now += STALLED_S
    third[0].hold(MIN_GROWTH // 2)  # a drip is no growth
    assert [memory.relieve(), memory.relieve()] == [True, False]
    assert third[1] == ["left"]


def test_pages_that_gave_way_before_are_the_last_to_do_so_again() -> None:
    """So none gives way for ever: each is among the first at last."""
    clock = Clock(0.0)
    memory = Memory(clock=clock)
    pages = [holding(memory, MAX_IN_FLIGHT // 4, times) for times in (0, 1, 2, 1)]

    clock.now += STALLED_S
    while memory.relieve():
        pass
    assert [len(left) for _, left in pages] == [1, 0, 0, 1]


def test_a_small_page_does_not_give_way_to_large_ones() -> None:
    """Above all limits the largest goes, unless it is the first; pages that hold hardly anything
    stay."""
    memory = Memory()
    first, large, small = [
        holding(memory, count) for count in (memory.limit, memory.most - memory.limit, 0)
    ]

    small[0].hold(20_000)
    assert [len(left) for _, left in (first, large, small)] == [0, 1, 0]
    assert memory.used == memory.limit + 20_000


def test_a_page_that_no_longer_reads_from_its_server_does_not_give_way() -> None:
    """What waits for the store is our own affair."""
    clock = Clock(0.0)
    memory = Memory(clock=clock)
    pages = [holding(memory, MAX_IN_FLIGHT // 2) for _ in range(3)]
    for budget, _ in pages:
        budget.leave = None

    clock.now += 1000
    assert not memory.relieve()
