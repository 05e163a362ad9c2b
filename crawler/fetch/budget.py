"""What the work on one page may cost: CPU time of its thread, and bytes of its process."""

import asyncio
import math
import mmap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from heapq import heappop, heappush
from itertools import count
from types import TracebackType
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

from crawler.errors import FetchError, GaveWay

T = TypeVar("T")

TURN_S = 0.05
"""CPU time after which the work on a page lets others go first, and all pages together let the
sockets be served."""
HANDICAP = 10
"""A page that has used a second of CPU time goes behind all that come within so many seconds."""
MAX_WOKEN = 32
"""Pages that are woken for one turn of the loop: those that find it used up only go back to their
place."""
SHORT_S = 0.01
"""CPU time of work that delays nobody who waits for a server by more than the network does."""
MAX_GRACE = 10
"""A time limit is extended by so many times itself at most: no place is kept for ever for a silent
server."""
LATE_S, MIN_LEFT_S = 0.1, 0.01
"""A time limit that is looked at so late says nothing about the server; and how soon it is looked
at again at most."""
SMALL = 64_000
"""Bytes of a page of which each part is read in some milliseconds."""
MAX_IDLE = 4
STEPS_PER_LOOK, BYTES_PER_STEP = 32, 2_000
"""Steps between two looks at the clock: a look takes longer than a short step; and bytes that are
read in a step."""
MAX_IN_FLIGHT = 256_000_000
"""Bytes of pages in flight above which a process claims nothing: 25 of the largest at once,
thousands of usual ones."""


GROWTH, STALLED_S = 64_000, 2.0
"""A page that holds at least so many bytes and has not grown by as many in so long gives way to
those that wait."""

LARGE, TRIM_S = 8_000_000, 1.0
"""Bytes of one page that are worth giving back to the system, and how long others may add to them
before that."""

SMALL_SHARE = 10
"""A page that wants so many times less than another holds does not give way to it."""


class _Share:
    """What a page holds, and when it was seen to grow last."""

    __slots__ = ("grown_at", "held", "seen")

    def __init__(self, now: float) -> None:
        self.held = self.seen = 0
        self.grown_at = now


def check_free(count: int) -> None:
    """Raise `MemoryError` where this process could not have so many bytes more; to ask takes
    none."""
    try:
        mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError as error:
        raise MemoryError from error


@cache
def _malloc_trim() -> Callable[[int], int]:
    """The C library's function that gives free memory back to the system; musl and macOS have
    none."""
    import ctypes  # only who reads large pages pays for it

    found: Callable[[int], int] = getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: 0)
    return found


class Memory:
    """The bytes of all pages that a process has in flight, from the first byte received to the
    commit of the result."""

    def __init__(self, max_body: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = max(MAX_IN_FLIGHT, 4 * max_body)
        """Above it nothing is claimed, unless a page that stalls gives way."""
        self.most = self.limit + self.limit // 2
        """Above it a page gives way at once: those that were claimed below the limit may all grow
        together."""
        self.used = 0
        self._clock = clock
        self._shares: dict[Budget, _Share] = {}
        self._trim_at = math.inf

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be claimed."""
        return self.used >= self.limit

    def take(self, holder: "Budget", count: int) -> None:
        """Count so many bytes more for a page; raises `GaveWay` where it has to give way, or has
        done so already."""
        if holder.gave_way or (
            self.used + count > self.most and not self._make_room(holder, count)
        ):
            raise GaveWay(
                f"the pages in flight take {self.used:,} bytes of memory, and one of them had to give way"
            )
        share = self._shares.get(holder)
        if share is None:
            share = self._shares[holder] = _Share(self._clock())
        share.held += count
        self.used += count
        if share.held - share.seen >= GROWTH:
            share.seen, share.grown_at = share.held, self._clock()

    def give(self, holder: "Budget", count: int | None = None) -> None:
        """Count so many bytes of a page no longer, or all that it has."""
        share = self._shares.get(holder)
        if share is None:
            return
        if count is None:
            del self._shares[holder]
        freed = share.held if count is None else count
        share.held -= freed
        self.used -= freed
        if freed >= LARGE:
            self._trim_at = min(self._trim_at, self._clock() + TRIM_S)

    def trim(self) -> None:
        """To be called now and then: give the memory of large pages that have gone back to the
        system.

        The allocator would keep it for ever, if anything small that lives on lies behind it: with
        some large tables at once that were hundreds of megabytes for each process.
        """
        if self._clock() >= self._trim_at:
            self._trim_at = math.inf
            _malloc_trim()(0)

    def relieve(self) -> bool:
        """Have the page give way that has not grown for longest, if that is long enough; whether
        there is one."""
        before = self._clock() - STALLED_S
        stalled = [holder for holder in self._movable() if self._shares[holder].grown_at <= before]
        if not stalled:
            return False
        self._send_away(min(stalled, key=lambda holder: self._shares[holder].grown_at))
        return True

    def _make_room(self, holder: "Budget", count: int) -> bool:
        """Whether a page may grow above all limits: a small one instead of the largest that reads
        from its server, and the first of all, so that there is always one that goes on. What a page
        leaves is free only when it has ended, so that large ones would outrun that."""
        largest = max(self._movable(), key=lambda other: self._shares[other].held, default=holder)
        wanted = count + (self._shares[holder].held if holder in self._shares else 0)
        if largest is not holder and SMALL_SHARE * wanted <= self._shares[largest].held:
            self._send_away(largest)
            return True
        return holder is next(iter(self._in_order()), holder)

    def _in_order(self) -> "list[Budget]":
        """Pages that gave way most often come first, then those that came first: none gives way for
        ever."""
        return sorted(self._shares, key=lambda holder: -holder.times)

    def _movable(self) -> "list[Budget]":
        """The pages that can give way at once and are worth it, without the first ones, which share
        half of the limit: they go on to their own end, and the other half is for those that
        wait."""
        movable: list[Budget] = []
        held = 0
        for place, holder in enumerate(self._in_order()):
            share = self._shares[holder]
            held += share.held
            if place and held > self.limit // 2 and share.held >= GROWTH and holder.leave:
                movable.append(holder)
        return movable

    def _send_away(self, holder: "Budget") -> None:
        self.give(holder)
        holder.gave_way = True
        if holder.leave:
            holder.leave()


class Turns:
    """Who works next, of all pages of an event loop.

    Together they get `TURN_S` of CPU time and one slice more for each turn of the loop: if each had
    a slice of its own in every turn, some dozens of costly pages would keep the sockets waiting
    until connections time out.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._spent_s = 0.0
        """CPU time since the loop was last seen to come round."""
        self._waiting: list[tuple[float, int, asyncio.Future[bool]]] = []
        self._numbers = count()
        self._is_next_due = False
        self.blocked_s = 0.0
        """How long work has kept the loop from its sockets so far, by the clock; short work does
        not matter."""

    @property
    def is_over(self) -> bool:
        """Whether work has to wait until the loop has served its sockets."""
        return self._spent_s >= TURN_S

    def spend(self, cpu_s: float, since: float) -> None:
        """Count CPU time of the present turn, for work that began at a moment of the clock."""
        self._spent_s += cpu_s
        if cpu_s > SHORT_S:
            self.blocked_s += self._clock() - since

    def now(self) -> float:
        """A moment of the clock."""
        return self._clock()

    async def wait(self, used_s: float) -> None:
        """Wait for a turn: who has waited longest is first, and who has used little CPU time is
        soon."""
        place, number = self._clock() + HANDICAP * used_s, next(self._numbers)
        loop = asyncio.get_running_loop()
        while True:
            woken = loop.create_future()
            heappush(self._waiting, (place, number, woken))
            if not self._is_next_due:
                self._is_next_due = True
                loop.call_soon(self._next, loop)
            # Only the first may go in any case, so that it does not wait for ever behind those that
            # just came.
            if await woken or not self.is_over:
                return

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop has come round: wake those that are first."""
        self._spent_s = 0.0
        is_first = True
        for _ in range(min(MAX_WOKEN, len(self._waiting))):
            woken = heappop(self._waiting)[2]
            if not woken.done():  # else it was broken off
                woken.set_result(is_first)
                is_first = False
        self._is_next_due = bool(self._waiting)
        if self._is_next_due:
            loop.call_soon(self._next, loop)


class _Greenlets(threading.local):
    """Greenlets that wait for work: to make one takes ten times as long as to use it again."""

    def __init__(self) -> None:
        self.idle: list[greenlet] = []

    def take(self) -> greenlet:
        if self.idle:
            return self.idle.pop()
        made = greenlet(_serve)
        made.switch()
        return made

    def give(self, used: greenlet) -> None:
        if len(self.idle) < MAX_IDLE:
            self.idle.append(used)


_greenlets = _Greenlets()


def _serve() -> None:
    """What a greenlet does: call what it is given, and hand over the result or the error, in a list
    to be emptied."""
    ended: list[Any] = []
    while True:
        function, args = getcurrent().parent.switch(ended)
        try:
            ended = [function(*args), None]
        except BaseException as error:
            ended = [None, error]
        del function, args  # what waits for work keeps nothing of the last page


class Budget:
    """What is left of one page's share; `mark` is told when the work on the page's bytes begins and
    pauses."""

    def __init__(
        self,
        cpu_s: float = math.inf,
        memory: Memory | None = None,
        mark: Callable[[bool], None] = lambda working: None,
        clock: Callable[[], float] = time.thread_time,
        turns: Turns | None = None,
    ) -> None:
        self._cpu_s, self._used_s = cpu_s, 0.0
        self._memory, self._mark, self._clock = memory, mark, clock
        self._turns = turns or Turns()
        self._waited_s = 0.0
        self._wait_began: tuple[float, float] | None = None
        self._began = 0.0
        self._since: float | None = None
        """The CPU time at which the present work began, if any is done."""
        self._steps = 0
        self._worker: greenlet | None = None
        self.held = 0
        """The bytes that are counted for the page."""
        self.times = 0
        """How often the page gave way before."""
        self.gave_way = False
        """Whether it has given way to others now: it gets no more memory."""
        self.leave: Callable[[], None] | None = None
        """Ends the wait for the page's server, while there is one."""

    async def work(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function on the page's bytes, with the page marked; at its checks it lets others go
        first now and then.

        It runs in a greenlet, because code that is not asynchronous cannot wait for the loop
        otherwise.
        """
        if self._turns.is_over:
            await self._wait(sum([len(arg) for arg in args if isinstance(arg, bytes)]))
        worker = _greenlets.take()
        ended = self._continue(worker, function, args)
        while not ended:
            try:
                await self._wait()
            except BaseException:
                worker.throw()  # broken off while others went first: the work ends where it stands
                _greenlets.give(worker)
                raise
            ended = self._continue(worker)
        _greenlets.give(worker)
        found, error = ended
        ended.clear()
        if error is not None:
            try:
                raise error
            finally:
                del error  # it holds this frame, which would hold it
        result: T = found
        return result

    async def at_once(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function that takes some milliseconds at most, with the page marked: it cannot let
        others go first."""
        if self._turns.is_over:
            await self._wait(sum([len(arg) for arg in args if isinstance(arg, bytes)]))
        self._mark(True)
        self._since, self._began = self._clock(), self._turns.now()
        try:
            return function(*args)
        finally:
            self._count()
            self._mark(False)

    def _continue(self, worker: greenlet, *args: Any) -> list[Any]:
        self._mark(True)
        self._worker, self._since, self._began = worker, self._clock(), self._turns.now()
        try:
            ended: list[Any] = worker.switch(*args)
            return ended
        finally:
            self._count()
            self._worker = None
            self._mark(False)

    async def _wait(self, in_hand: int = 0) -> None:
        """Wait for a turn, with so many bytes that are counted nowhere else meanwhile."""
        self.hold(in_hand)
        try:
            with self.waiting():
                await self._turns.wait(self._used_s)
        finally:
            self.release(in_hand)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While others of this process go first: that is not the page's time."""
        turns = self._turns
        self._wait_began = turns.now(), turns.blocked_s
        try:
            yield
        finally:
            self._waited_s, self._wait_began = self.waited_s - turns.blocked_s, None

    @property
    def is_waiting(self) -> bool:
        """Whether the page waits for others of this process."""
        return self._wait_began is not None

    @property
    def waited_s(self) -> float:
        """How long this process, and no server, kept the page waiting, to be compared with an
        earlier value: for its turns, and while the loop did not look at its sockets."""
        waited_s = self._waited_s + self._turns.blocked_s
        if self._wait_began:
            began, blocked_s = self._wait_began
            waited_s += self._turns.now() - began - (self._turns.blocked_s - blocked_s)
        return waited_s

    def _count(self) -> None:
        if self._since is not None:
            spent_s = self._clock() - self._since
            self._used_s += spent_s
            self._turns.spend(spent_s, self._began)
            self._since = None

    def check(self, size: int = 0) -> None:
        """To be called at every step of a loop over a page's bytes; raises `FetchError` where the
        page costs too much.

        No step may take more than some milliseconds: only some of them look at the clock. `size` is
        that of the bytes that a single step goes through, where they may be many.
        """
        self._steps += 1 + size // BYTES_PER_STEP
        if self._steps >= STEPS_PER_LOOK:
            self._steps = 0
            self.look()

    def look(self) -> None:
        """The same for a step that may take longer: every one looks at the clock."""
        now = self._clock()
        if self._since is None:
            self._since = now
        spent_s = now - self._since
        if self._used_s + spent_s > self._cpu_s:
            raise FetchError(
                "too_costly", f"the page is given up after {self._cpu_s:g} s of CPU time"
            )
        if spent_s >= TURN_S and self._worker and self._worker.parent:
            self._worker.parent.switch([])

    def hold(self, count: int) -> None:
        """Count so many bytes that are kept for the page; raises `GaveWay` where the process has
        too many."""
        if self._memory:
            self._memory.take(self, count)
        self.held += count

    def release(self, count: int | None = None) -> None:
        """Count so many bytes, or all of the page's, as free."""
        if self._memory:
            self._memory.give(self, count)
        self.held -= self.held if count is None else count


class TimeLimit:
    """`asyncio.timeout`, without the time in which this process itself kept the page waiting."""

    def __init__(self, seconds: float, budget: Budget) -> None:
        self._left_s, self._grace_s = seconds, MAX_GRACE * seconds
        self._budget = budget
        self._timeout = asyncio.timeout(None)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._loop = asyncio.get_running_loop()
        self._begin()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        await self._timeout.__aexit__(kind, error, trace)

    def _begin(self) -> None:
        self._since, self._waited_s = time.monotonic(), self._budget.waited_s
        self._timer = self._loop.call_later(self._left_s, self._look)

    def _look(self) -> None:
        """The time should be up: is it, and has the loop looked at the sockets meanwhile?"""
        passed_s = time.monotonic() - self._since
        late_s = passed_s - self._left_s
        left_s = self._left_s - passed_s + self._budget.waited_s - self._waited_s
        if late_s > LATE_S:
            left_s = max(left_s, late_s)
        if not self._budget.is_waiting:
            left_s = min(left_s, self._grace_s)
            self._grace_s -= left_s
        if left_s <= 0:
            self._timeout.reschedule(self._loop.time())
        else:
            self._left_s = max(left_s, MIN_LEFT_S)
            self._begin()
