"""Pages in flight: from the claim of a task to the commit of its outcome."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from crawler.db.owners import Owner
from crawler.db.store import HELD
from crawler.errors import FetchError, GaveWay, shortage_of
from crawler.fetch.budget import Budget, Memory, Turns
from crawler.fetch.http import Request, RequestHook
from crawler.fetch.rendering import Rendered
from crawler.fetch.robots import Robots
from crawler.models import BROWSER, Outcome, RateRule, Task, TaskStatus
from crawler.render_options import RenderOptions
from crawler.scraping.attempt import BROWSER_CRASHED, Attempt, Fetch, Render
from crawler.scraping.request_gate import RequestGate
from crawler.sites.live import LiveSites
from crawler.worker.claims import Claimed, Claims, Lease
from crawler.worker.health import Health, Watchdog
from crawler.worker.writer import SHORTAGE_WAIT_S, given_back, internal_failure

log = logging.getLogger(__name__)

CPU_SHARE = 0.5
"""The part of CRAWLER_STALL_S that the work on one page may take, so that our own loops end before
the watchdog ends the process."""
MIN_PAGES = 48
"""Pages in flight at first. More while the loop waits for servers, up to CRAWLER_PAGES."""
MIN_FREE_PLACES = 24
"""A claim is made for at least this many pages, because it costs as much as a page."""
SATURATED_LAG_S = 0.03
"""Above this event-loop lag no more pages are added."""
SLOW_PAGE_S, MAX_SLOW_FACTOR = 2.0, 4
"""A page that takes longer no longer counts as in flight, up to this multiple of CRAWLER_PAGES:
servers that hang must not block the others."""
MAX_GAVE_WAY_WAIT_S = 300.0
"""A page that gave way waits twice as long each time, up to this."""
MAX_GAVE_WAY_TASKS = 10_000
"""Tasks for which the number of times they gave way is remembered."""

_CRASHES = (BROWSER_CRASHED, "page_crashed")

Watcher = Callable[[Task, Outcome | None], None]
"""Called for every page: once when it begins, and once with its outcome after the commit."""


class Tabs:
    """Lets pages into the browser. One that was in it at a crash goes in alone the next time: if
    the browser dies again, it is that page's fault."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._in_use = 0
        self._is_taken = False
        self._left = asyncio.Condition()

    def render_of(self, task: Task) -> Render:
        """What renders the page of a task."""
        return self._render_alone if task.error_type in _CRASHES else self._render_beside

    async def _render_beside(
        self, request: Request, hook: RequestHook, options: RenderOptions
    ) -> Rendered:
        async with self._left:
            await self._left.wait_for(lambda: not self._is_taken)
            self._in_use += 1
        try:
            return await self._render(request, hook, options)
        finally:
            async with self._left:
                self._in_use -= 1
                self._left.notify_all()

    async def _render_alone(
        self, request: Request, hook: RequestHook, options: RenderOptions
    ) -> Rendered:
        async with self._left:
            await self._left.wait_for(lambda: not self._is_taken)
            self._is_taken = True
            try:
                await self._left.wait_for(lambda: not self._in_use)
            except BaseException:
                self._is_taken = False
                raise
        try:
            return await self._render(request, hook, options)
        except FetchError as error:
            if error.reason == BROWSER_CRASHED:
                message = f"{error.message}, with this page alone in it"
                raise FetchError("page_crashed", message) from error
            raise
        finally:
            async with self._left:
                self._is_taken = False
                self._left.notify_all()


class Capacity:
    """How many pages may be in flight: few with quick servers, many with slow ones."""

    def __init__(self, max_pages: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_pages, self._clock = max_pages, clock
        self._min_pages = self._target = min(MIN_PAGES, max_pages)
        self._was_full = False
        self._began: dict[Lease, float] = {}
        """When each fetch began, the oldest first."""

    def begin(self, lease: Lease) -> None:
        """Note that a fetch begins."""
        self._began[lease] = self._clock()

    def end(self, lease: Lease) -> None:
        """Note that a fetch has ended."""
        self._began.pop(lease, None)

    def in_use(self, in_flight: int) -> float:
        """The part of the places that is taken: 1.0 means that only another process helps."""
        return min(1.0, (self._target - self._places(in_flight)) / self._max_pages)

    def free_places(self, in_flight: int) -> int:
        """How many more pages may be claimed; slow ones do not count."""
        places = self._places(in_flight)
        self._was_full |= places <= 0
        return places

    def _places(self, in_flight: int) -> int:
        slow_before, slow = self._clock() - SLOW_PAGE_S, 0
        for began in self._began.values():
            if began > slow_before:
                break
            slow += 1
        wanted = self._target - len(self._began) + slow
        return min(wanted, MAX_SLOW_FACTOR * self._max_pages - in_flight)

    def is_worth_a_claim(self, in_flight: int) -> bool:
        """Whether enough places are free to claim again."""
        return self.free_places(in_flight) >= min(MIN_FREE_PLACES, self._target // 2)

    def adapt(self, lag_s: float) -> None:
        """Allow more or fewer pages, by the lag of the event loop."""
        if lag_s > 2 * SATURATED_LAG_S:
            self._target = max(self._min_pages, self._target * 7 // 8)
        elif lag_s < SATURATED_LAG_S and self._was_full:
            self._target = min(self._max_pages, self._target * 5 // 4)
        self._was_full = False


class Budgets:
    """CPU time and memory of the pages in flight."""

    def __init__(self, memory: Memory, owner: Owner, watchdog: Watchdog) -> None:
        self._memory, self._owner, self._watchdog = memory, owner, watchdog
        self._turns = Turns()
        self._cpu_s = watchdog.stall_s * CPU_SHARE
        self._gave_way: OrderedDict[int, int] = OrderedDict()
        """How often each task gave way to others."""

    def new(self, task: int) -> Budget:
        """The budget of one attempt."""
        budget = Budget(self._cpu_s, self._memory, partial(self._mark, task), turns=self._turns)
        budget.times = self._gave_way.get(task, 0)
        return budget

    def _mark(self, task: int, working: bool) -> None:
        """Set the crash marker: if the process dies over a page's bytes, that page gets the
        strike."""
        if not working:
            self._owner.mark(0)
            return
        self._owner.mark(task)
        if time.monotonic() > self._watchdog.rearm_at:
            self._watchdog.rearm()  # many short steps in a row are no standstill

    def give_way(self, task: int) -> float:
        """Note that a page gave way to others; returns how long it waits."""
        count = self._gave_way[task] = self._gave_way.pop(task, 0) + 1
        while len(self._gave_way) > MAX_GAVE_WAY_TASKS:
            self._gave_way.popitem(last=False)
        doublings = min(count - 1, 10)
        return min(SHORTAGE_WAIT_S * (1 << doublings), MAX_GAVE_WAY_WAIT_S)

    def forget(self, task: int) -> None:
        """Note that an attempt ended without giving way."""
        self._gave_way.pop(task, None)


class Attempts:
    """Makes one attempt at a task."""

    def __init__(
        self,
        name: str,
        fetch: Fetch,
        claims: Claims,
        sites: LiveSites,
        robots: Robots,
        budgets: Budgets,
        health: Health,
        limit_s: float,
        render: Render | None = None,
    ) -> None:
        """An attempt that takes longer than `limit_s` is ended."""
        self._name, self._fetch, self._claims = name, fetch, claims
        self._tabs = Tabs(render) if render else None
        self._limit_s = limit_s
        self._sites, self._robots = sites, robots
        self._budgets, self._health = budgets, health

    async def run(
        self,
        claimed: Claimed,
        budget: Budget,
        begin: Callable[[], None],
        waits: Callable[[float | None], None],
    ) -> Outcome:
        """Fetch and read the page of a task.

        `begin` is called before its first request, `waits` with the time until which a request
        waits for its permit, and with None when it goes out.
        """
        task = claimed.task
        begun = Outcome(task=task, status=TaskStatus.PENDING, worker=self._name, charge=False)
        try:
            how = self._claims.jobs.known(task.job_id)
            known = self._sites.now  # one page has one version of its site
            rule_of = partial(known.rule, rate=how.options.rate)
            rule = rule_of(task.domain)
            gate = RequestGate(
                task.domain,
                task.url,
                claimed.reservation,
                rule,
                rule_of,
                partial(self._claims.reserve, task.job_id),
                self._claims.permits,
                begin,
                lambda: budget.waited_s,
                rule_now=partial(self._claims.rule_now, task.job_id),
                waits=waits,
            )
            site = known.of(task.url, task.platform)
            attempt = Attempt(
                task,
                site,
                how,
                fetch=self._fetch,
                gate=gate,
                robots=self._robots,
                budget=budget,
                worker=self._name,
                render=self._tabs.render_of(task) if self._tabs else None,
                stored_page=partial(self._claims.run, self._claims.stored_page),
                was_learned=self._claims.was_learned(task, site),
            )
            return await self._run(attempt, gate, begun, rule, budget)
        except Exception as error:  # no task may stay leased to a process that has forgotten it
            return self._broken_off(begun, error)

    async def _run(
        self,
        attempt: Attempt,
        gate: RequestGate,
        begun: Outcome,
        rule: RateRule,
        budget: Budget,
    ) -> Outcome:
        outcome = begun
        try:
            outcome = await attempt.run(self._limit_s)
        except asyncio.CancelledError:
            outcome = msgspec.structs.replace(begun, sent=tuple(gate.sent))
        except Exception as error:
            budget.release()  # nothing of the page is kept
            begun = msgspec.structs.replace(begun, sent=tuple(gate.sent), rule=rule)
            outcome = self._broken_off(begun, error)
        finally:
            gate.close(outcome)
            if rule.limited:
                self._claims.flush_soon()
        return outcome

    def _broken_off(self, begun: Outcome, error: Exception) -> Outcome:
        """The outcome for an error that is not the page's: a defect may cost one page, never the
        worker."""
        if isinstance(error, GaveWay):
            return given_back(begun, str(error), self._budgets.give_way(begun.task.id))
        if lack := shortage_of(error):
            self._health.note_shortage(lack)
            return given_back(begun, lack)
        about = {"task_id": begun.task.task_id}
        log.exception("an unforeseen error; the task has failed", extra=about)
        return internal_failure(begun.task, self._name, error)


class _Page:
    """What is noted of a page until its outcome is committed."""

    __slots__ = ("budget", "of_crawl", "slot", "stored")

    def __init__(self, budget: Budget, of_crawl: bool) -> None:
        self.budget, self.of_crawl = budget, of_crawl
        self.slot: int | None = None
        """Its slot in the owner's file, once its first request has gone out."""
        self.stored: asyncio.Event | None = None
        """Set after the commit, where somebody waits for it."""


class Pages:
    """The pages of this process that are being fetched or wait for their commit."""

    def __init__(
        self,
        attempts: Attempts,
        claims: Claims,
        budgets: Budgets,
        capacity: Capacity,
        owner: Owner,
        store: Callable[[Outcome], None],
        watch: Watcher,
        hold_retries: bool,
        max_tabs: int = 0,
    ) -> None:
        """`hold_retries`: only this process can try a page again, because only it knows the
        session. `max_tabs`: pages that need a browser at a time."""
        self._max_tabs, self._in_tabs = max_tabs, 0
        self._attempts, self._claims, self._budgets = attempts, claims, budgets
        self._capacity, self._owner, self._store = capacity, owner, store
        self._watch, self._hold_retries = watch, hold_retries
        self._pages: dict[Lease, _Page] = {}
        self._of_crawls = 0
        self.fetching: set[asyncio.Task[None]] = set()
        self.room_made = asyncio.Event()
        """Set when a claim is worth while again."""
        self.retry_at = 0.0
        """When a held page is due again, by the monotonic clock."""

    @property
    def is_idle(self) -> bool:
        """Whether no page is being fetched or waits for its commit."""
        return not self._pages

    @property
    def may_have_links(self) -> bool:
        """Whether a page is in flight whose commit may make more tasks due."""
        return self._of_crawls > 0

    @property
    def uncommitted(self) -> int:
        """How many pages wait for their commit."""
        return len(self._pages) - len(self.fetching)

    @property
    def places_in_use(self) -> float:
        """The part of the places for pages that is taken."""
        return self._capacity.in_use(len(self.fetching))

    @property
    def free_places(self) -> int:
        """How many more pages may be claimed."""
        return self._capacity.free_places(len(self.fetching))

    @property
    def free_tabs(self) -> int:
        """How many more pages that need a browser may be claimed."""
        return self._max_tabs - self._in_tabs

    def begin(self, claimed: Claimed) -> None:
        """Start to fetch the page of a claimed task."""
        task = claimed.task
        page = _Page(self._budgets.new(task.id), task.role is not None)
        self._pages[task.id, task.fence] = page
        self._of_crawls += page.of_crawl
        self._in_tabs += task.needs == BROWSER
        fetching = asyncio.get_running_loop().create_task(self._fetch(claimed, page))
        self.fetching.add(fetching)
        fetching.add_done_callback(self.fetching.discard)

    async def finish(self, claimed: Claimed) -> None:
        """Fetch the page of a claimed task, and wait until its outcome is committed."""
        self.begin(claimed)
        stored = asyncio.Event()
        self._pages[claimed.task.id, claimed.task.fence].stored = stored
        await stored.wait()

    async def _fetch(self, claimed: Claimed, page: _Page) -> None:
        task = claimed.task
        lease = (task.id, task.fence)

        def begin() -> None:
            page.slot = self._owner.begin(task.id)
            self._watch(task, None)

        def waits(until: float | None) -> None:
            """Let other processes see until when the page waits for its permit."""
            if page.slot is not None:
                self._owner.note_request(page.slot, until)

        self._capacity.begin(lease)
        try:
            outcome = await self._attempts.run(claimed, page.budget, begin, waits)
        finally:
            self._capacity.end(lease)
            self._in_tabs -= task.needs == BROWSER
            self._make_room()
        if outcome.status is TaskStatus.PENDING and self._hold_retries:
            self.retry_at = time.monotonic() + outcome.not_before - time.time()
            outcome = msgspec.structs.replace(outcome, not_before=HELD)
        self._store(outcome)

    def committed(self, outcomes: Sequence[Outcome], live: Sequence[bool]) -> None:
        """Forget what was noted of these pages; the links of live ones are in the ledger now."""
        for outcome, is_live in zip(outcomes, live, strict=True):
            task = outcome.task
            if is_live and outcome.links:
                self._claims.jobs.remember(outcome)
            lease = (task.id, task.fence)
            self._claims.release(lease)
            if not outcome.shortage:
                self._budgets.forget(task.id)
            page = self._pages.pop(lease)
            self._of_crawls -= page.of_crawl
            page.budget.release()
            if page.slot is not None:
                self._owner.end(page.slot)
                self._watch(task, outcome)
            if page.stored:
                page.stored.set()
        self._make_room()

    def _make_room(self) -> None:
        if self._capacity.is_worth_a_claim(len(self.fetching)):
            self.room_made.set()
