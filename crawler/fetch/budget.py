"""Limits on the work for one page: CPU time of its thread and memory of its process."""

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
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

from crawler.errors import FetchError, GaveWay

T = TypeVar("T")

TURN_S = 0.05  # CPU time after which a page yields to others, and all pages to the event loop
DELAY_PER_CPU_S = 10  # seconds that a page is put back in the queue per second of CPU time used
MAX_WOKEN = 32  # pages woken per iteration of the loop; most of them find the turn used up
NEGLIGIBLE_S = 0.01  # CPU time up to which work does not count as blocking the loop
MAX_EXTENSION = 10  # a time limit is extended by this multiple of itself at most
LATE_S = 0.1  # a timer that fires later than this says nothing about the server
MIN_LEFT_S = 0.01  # shortest time to the next look at a time limit
SMALL = 64_000  # bytes up to which each step on a page takes a few milliseconds
MAX_IDLE_GREENLETS = 4
STEPS_PER_LOOK = 32  # a look at the clock costs more than a short step
BYTES_PER_STEP = 2_000
MAX_IN_FLIGHT = 256_000_000  # bytes of pages in flight above which a process claims no tasks
MIN_GROWTH = 64_000  # a page that grows by fewer bytes within STALLED_S is stalled
STALLED_S = 2.0
LARGE = 8_000_000  # freed bytes that are worth a malloc_trim
TRIM_S = 1.0  # delay of a malloc_trim, so that one serves several pages
SMALL_SHARE = 10  # a page that wants this many times less than another holds stays


def check_free(size: int) -> None:
    """Raise `MemoryError` if this process cannot allocate `size` more bytes; allocates nothing."""
    try:
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError as error:
        raise MemoryError from error


@cache
def _malloc_trim() -> Callable[[int], int]:
    """Return the C library's `malloc_trim`; musl and macOS have none."""
    import ctypes  # only for large pages

    found: Callable[[int], int] = getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: 0)
    return found


class Memory:
    """Bytes of all pages in flight in this process, from the first byte received to the commit."""

    def __init__(self, max_body: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = max(MAX_IN_FLIGHT, 4 * max_body)  # above it, tasks are claimed no longer
        self.most = self.limit + self.limit // 2  # above it, pages that still grow give way
        self.used = 0
        self._clock = clock
        self._growth: dict[Budget, tuple[int, float]] = {}  # size and time of the last growth
        self._trim_at = math.inf

    @property
    def is_full(self) -> bool:
        """Whether no more tasks should be claimed."""
        return self.used >= self.limit

    def take(self, holder: "Budget", size: int) -> None:
        """Count more bytes for a page; raises `GaveWay` if the page has to give way."""
        exceeds = self.used + size > self.most
        if holder.gave_way or (exceeds and not self._make_room(holder, size)):
            raise GaveWay(
                f"the pages in flight take {self.used:,} bytes of memory, "
                "and one of them had to give way"
            )
        self.used += size
        if holder not in self._growth:
            self._growth[holder] = (0, self._clock())
        if holder.held + size >= MIN_GROWTH + self._growth[holder][0]:
            self._growth[holder] = (holder.held + size, self._clock())

    def give(self, holder: "Budget", size: int) -> None:
        """Count bytes of a page as free."""
        if holder not in self._growth:
            return  # it has given way, and all its bytes with it
        self.used -= size
        if size >= LARGE:
            self._trim_at = min(self._trim_at, self._clock() + TRIM_S)

    def forget(self, holder: "Budget") -> None:
        """Count all bytes of a page as free."""
        self.give(holder, holder.held)
        self._growth.pop(holder, None)

    def trim(self) -> None:
        """Return the memory of large pages that are gone to the system; to be called regularly.

        The allocator keeps it while any small live object lies behind it, which cost hundreds of
        megabytes per process after a few large tables.
        """
        if self._clock() >= self._trim_at:
            self._trim_at = math.inf
            _malloc_trim()(0)

    def relieve(self) -> bool:
        """Send away the page that has been stalled for longest; False if none is stalled."""
        latest = self._clock() - STALLED_S
        stalled = [holder for holder in self._movable() if self._growth[holder][1] <= latest]
        if not stalled:
            return False
        self._send_away(min(stalled, key=lambda holder: self._growth[holder][1]))
        return True

    def _make_room(self, holder: "Budget", size: int) -> bool:
        """Whether a page may grow above `most`: the first in order, so that one always goes on, or
        a small one at the cost of the largest.

        Not any page: what the largest held is really free only when that page has ended.
        """
        largest = max(self._movable(), key=lambda other: other.held, default=holder)
        if largest is not holder and SMALL_SHARE * (holder.held + size) <= largest.held:
            self._send_away(largest)
            return True
        return holder is next(iter(self._in_order()), holder)

    def _in_order(self) -> "list[Budget]":
        """Pages that gave way most often first, then the oldest: no page gives way for ever."""
        return sorted(self._growth, key=lambda holder: -holder.times)

    def _movable(self) -> "list[Budget]":
        """Pages that can give way now and are worth it, except the first in order: they share half
        of the limit, and go on to their own end."""
        movable: list[Budget] = []
        held = 0
        for place, holder in enumerate(self._in_order()):
            held += holder.held
            if place and held > self.limit // 2 and holder.held >= MIN_GROWTH and holder.leave:
                movable.append(holder)
        return movable

    def _send_away(self, holder: "Budget") -> None:
        self.forget(holder)
        holder.gave_way = True
        if holder.leave:
            holder.leave()


class Turns:
    """Schedules the work of all pages on an event loop.

    All pages together get `TURN_S` of CPU time per iteration of the loop, plus one slice. With a
    slice each, a few dozen costly pages would block the sockets until connections time out.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = clock
        self.blocked_s = 0.0  # wall time for which work has kept the loop from its sockets
        self._spent_s = 0.0  # CPU time used in this iteration of the loop
        self._waiting: list[tuple[float, int, asyncio.Future[bool]]] = []
        self._numbers = count()
        self._is_scheduled = False

    @property
    def is_over(self) -> bool:
        """Whether work has to wait until the loop has served its sockets."""
        return self._spent_s >= TURN_S

    def spend(self, cpu_s: float, started: float) -> None:
        """Count CPU time of work that started at a moment of the clock."""
        self._spent_s += cpu_s
        if cpu_s > NEGLIGIBLE_S:
            self.blocked_s += self.now() - started

    async def wait(self, used_s: float) -> None:
        """Wait for a turn, in the order of arrival and of CPU time used so far."""
        place, number = self.now() + DELAY_PER_CPU_S * used_s, next(self._numbers)
        loop = asyncio.get_running_loop()
        while True:
            woken = loop.create_future()
            heappush(self._waiting, (place, number, woken))
            if not self._is_scheduled:
                self._is_scheduled = True
                loop.call_soon(self._wake, loop)
            # The first always goes, or newcomers that use up the turn could hold it up for ever.
            if await woken or not self.is_over:
                return

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start a new turn: the loop has served its sockets."""
        self._spent_s = 0.0
        is_first = True
        for _ in range(min(MAX_WOKEN, len(self._waiting))):
            woken = heappop(self._waiting)[2]
            if not woken.done():  # else it was cancelled
                woken.set_result(is_first)
                is_first = False
        self._is_scheduled = bool(self._waiting)
        if self._is_scheduled:
            loop.call_soon(self._wake, loop)


class _Greenlets(threading.local):
    """Idle greenlets of a thread: creating one takes ten times as long as reusing it."""

    def __init__(self) -> None:
        self._idle: list[greenlet] = []

    def take(self) -> greenlet:
        if self._idle:
            return self._idle.pop()
        made = greenlet(_serve)
        made.switch()
        return made

    def give(self, used: greenlet) -> None:
        if len(self._idle) < MAX_IDLE_GREENLETS:
            self._idle.append(used)


_greenlets = _Greenlets()


def _serve() -> None:
    """Call functions inside a greenlet; hand over each result or error in a list to be emptied."""
    ended: list[Any] = []
    while True:
        function, args = getcurrent().parent.switch(ended)
        try:
            ended = [function(*args), None]
        except BaseException as error:
            ended = [None, error]
        del function, args  # an idle greenlet must not keep the last page alive


class Budget:
    """CPU time and memory of one page; `mark` is told when work on its bytes starts and stops."""

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
        self._wait_began: tuple[float, float] | None = None  # the time, and blocked_s then
        self._started: tuple[float, float] | None = None  # CPU time and time of the current work
        self._steps = 0
        self._worker: greenlet | None = None
        self.held = 0  # bytes counted for the page
        self.times = 0  # how often the page gave way before
        self.gave_way = False  # then it gets no more memory
        self.leave: Callable[[], None] | None = None  # ends the wait for the page's server

    async def work(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function on the page's bytes, with the page marked; its checks yield to others.

        It runs in a greenlet, because synchronous code cannot wait for the loop otherwise.
        """
        if self._turns.is_over:
            await self._wait(_size(args))
        worker = _greenlets.take()
        ended = self._continue(worker, function, args)
        while not ended:
            try:
                await self._wait()
            except BaseException:
                worker.throw()  # cancelled while it waited: the work ends where it stands
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
                del error  # breaks the cycle of error, traceback and this frame
        result: T = found
        return result

    async def at_once(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function of a few milliseconds, with the page marked; it cannot yield to others."""
        if self._turns.is_over:
            await self._wait(_size(args))
        self._start()
        try:
            return function(*args)
        finally:
            self._stop()

    def _continue(self, worker: greenlet, *args: Any) -> list[Any]:
        self._worker = worker
        self._start()
        try:
            ended: list[Any] = worker.switch(*args)
            return ended
        finally:
            self._worker = None
            self._stop()

    def _start(self) -> None:
        self._mark(True)
        self._started = self._clock(), self._turns.now()

    def _stop(self) -> None:
        if self._started:
            cpu_began, began = self._started
            spent_s = self._clock() - cpu_began
            self._used_s += spent_s
            self._turns.spend(spent_s, began)
            self._started = None
        self._mark(False)

    async def _wait(self, in_hand: int = 0) -> None:
        """Wait for a turn, with bytes in hand that are counted nowhere else meanwhile."""
        self.hold(in_hand)
        try:
            with self.waiting():
                await self._turns.wait(self._used_s)
        finally:
            self.release(in_hand)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time spent inside is not the page's: other pages of this process go first."""
        turns = self._turns
        self._wait_began = turns.now(), turns.blocked_s
        try:
            yield
        finally:
            self._waited_s, self._wait_began = self.waited_s - turns.blocked_s, None

    @contextmanager
    def without_turns(self) -> Iterator[None]:
        """Inside, `look` yields to no other page: user code keeps state between its lines."""
        worker, self._worker = self._worker, None
        try:
            yield
        finally:
            self._worker = worker

    @property
    def is_waiting(self) -> bool:
        return self._wait_began is not None

    @property
    def waited_s(self) -> float:
        """Time for which this process, and no server, kept the page waiting.

        It counts waits for a turn and time in which the loop was blocked. Only the difference of
        two values has a meaning.
        """
        waited_s = self._waited_s + self._turns.blocked_s
        if self._wait_began:
            began, blocked_s = self._wait_began
            waited_s += self._turns.now() - began - (self._turns.blocked_s - blocked_s)
        return waited_s

    def check(self, size: int = 0) -> None:
        """Call at every step of a loop over a page's bytes; raises `FetchError` if over budget.

        A step must not take more than some milliseconds, as only some of them look at the clock.
        `size` is the number of bytes that the step goes through, if they may be many.
        """
        self._steps += 1 + size // BYTES_PER_STEP
        if self._steps >= STEPS_PER_LOOK:
            self._steps = 0
            self.look()

    def look(self) -> None:
        """Like `check`, for steps that may take longer: always looks at the clock."""
        now = self._clock()
        if self._started is None:
            self._started = now, self._turns.now()
        spent_s = now - self._started[0]
        if self._used_s + spent_s > self._cpu_s:
            raise FetchError(
                "too_costly", f"the page is given up after {self._cpu_s:g} s of CPU time"
            )
        if spent_s >= TURN_S and self._worker and self._worker.parent:
            self._worker.parent.switch([])

    def hold(self, size: int) -> None:
        """Count bytes kept for the page; raises `GaveWay` if the process has too many."""
        if self._memory:
            self._memory.take(self, size)
        self.held += size

    def release(self, size: int | None = None) -> None:
        """Count bytes of the page as free, or all of them."""
        if size is None:
            if self._memory:
                self._memory.forget(self)
            self.held = 0
            return
        if self._memory:
            self._memory.give(self, size)
        self.held -= size


def _size(args: tuple[Any, ...]) -> int:
    return sum([len(arg) for arg in args if isinstance(arg, bytes)])


class TimeLimit:
    """`asyncio.timeout`, without the time for which this process kept the page waiting."""

    def __init__(self, seconds: float, budget: Budget) -> None:
        self._left_s, self._extension_s = seconds, MAX_EXTENSION * seconds
        self._budget = budget
        self._timeout = asyncio.timeout(None)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._loop = asyncio.get_running_loop()
        self._start()

    async def __aexit__(self, *error: Any) -> None:
        self._timer.cancel()
        await self._timeout.__aexit__(*error)

    def _start(self) -> None:
        self._since, self._waited_s = time.monotonic(), self._budget.waited_s
        self._timer = self._loop.call_later(self._left_s, self._look)

    def _look(self) -> None:
        """End the time, or extend it by what was not the server's fault."""
        passed_s = time.monotonic() - self._since
        late_s = passed_s - self._left_s
        left_s = self._left_s - passed_s + self._budget.waited_s - self._waited_s
        if late_s > LATE_S:
            left_s = max(left_s, late_s)
        if not self._budget.is_waiting:
            left_s = min(left_s, self._extension_s)
            self._extension_s -= left_s
        if left_s <= 0:
            self._timeout.reschedule(self._loop.time())
        else:
            self._left_s = max(left_s, MIN_LEFT_S)
            self._start()
