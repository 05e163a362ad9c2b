"""Claims: which tasks a worker process takes next.

A task is claimed only when its domain lets a request go now. So nothing waits inside a worker, and
urgent work overtakes everything that has not begun.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import NamedTuple, TypeVar

import msgspec

from crawler import times
from crawler.config import failpoint
from crawler.db.browser_pages import Learned, needs_browser
from crawler.db.dispatch import Due, Place, Suspect, lines_of
from crawler.db.tasks import TaskState
from crawler.errors import FetchError, NotNow, StoreError
from crawler.fetch.session import Sessions
from crawler.lpm import LocalPersistenceManager
from crawler.models import (
    BROWSER,
    CrawlOptions,
    Line,
    Outcome,
    Page,
    PreviousPage,
    RateRule,
    Task,
)
from crawler.resilience.permit import (
    Permit,
    PermitClient,
    PermitRequest,
    RequestReport,
    Reservation,
)
from crawler.scraping.attempt import FetchOptions
from crawler.scraping.follow import LinkFilter
from crawler.scraping.stored import rebuild_page
from crawler.sites import Site
from crawler.sites.live import LiveSites
from crawler.worker.health import FreeSpace

log = logging.getLogger(__name__)

T = TypeVar("T")

POLL_S = 0.03
"""How often to look again for more urgent work."""
MAX_CLOSED_POLL_S = 0.25
"""How often at least to look again while all domains with due tasks are closed."""
JOB_CACHE_S = 5.0
"""How long a job's options are used before they are read again."""
SUSPECT_WAIT_S = 30.0
"""A suspect waits this long for an idle process; then nothing else is claimed until it can run."""
REPORT_DELAY_S = 0.02
"""How long ends of requests are collected before other processes are told."""

Lease = tuple[int, int]
"""A task's row id and its fence."""


class Claimed(NamedTuple):
    """A leased task, and the permit for its first request where its domain is limited."""

    task: Task
    reservation: Reservation | None


class Wanted(NamedTuple):
    """A domain with due tasks that this process may ask for a permit."""

    due: Due
    rule: RateRule


class JobCache:
    """Options and session of each job, read again every few seconds because a job can be resumed
    with others."""

    def __init__(
        self, lpm: LocalPersistenceManager, sites: LiveSites, given: FetchOptions | None
    ) -> None:
        self._lpm, self._sites = lpm, sites
        self._sessions = Sessions(lpm.folder / "sessions")
        self._without_job = given or FetchOptions()
        self._jobs: dict[int | None, tuple[FetchOptions, float]] = {}

    def known(self, job_id: int | None) -> FetchOptions:
        """As last read, for threads that must not use the ledger; a claim has read it before."""
        return self._jobs[job_id][0]

    def read(self, job_id: int | None) -> FetchOptions:
        """From the cache or the ledger; for the thread of the claims only."""
        known = self._jobs.get(job_id)
        if known and known[1] > time.monotonic():
            return known[0]
        how = self._without_job
        if job_id is not None:
            job = self._lpm.jobs.get(job_id)
            links = self._link_filter(known and known[0].links, job.options.crawl)
            how = FetchOptions(job.options, self._sessions.of(job.name), links)
        self._jobs[job_id] = (how, time.monotonic() + JOB_CACHE_S)
        return how

    def _link_filter(
        self, known: LinkFilter | None, crawl: CrawlOptions | None
    ) -> LinkFilter | None:
        """The filter of a crawl, which remembers links for as long as its options stay."""
        if crawl is None or (known and known.options == crawl):
            return known
        return LinkFilter(crawl, self._sites)

    def remember(self, outcome: Outcome) -> None:
        """Note that the links of a page are in the ledger."""
        if links := self.known(outcome.task.job_id).links:
            links.remember(outcome.links)

    def read_again(self, job_id: int | None) -> FetchOptions:
        """From the ledger, or as last read while the store cannot be used; for the thread of the
        claims only."""
        known = self.known(job_id)
        self._jobs[job_id] = (known, 0.0)
        with contextlib.suppress(StoreError):
            return self.read(job_id)
        return known


class Claims:
    """Claims tasks on a thread of its own. Coroutines are for the loop, all else runs on the
    thread."""

    def __init__(
        self,
        lpm: LocalPersistenceManager,
        owner_id: str,
        permit: Permit,
        sites: LiveSites,
        disk: FreeSpace,
        given: FetchOptions | None = None,
        renders: bool = False,
    ) -> None:
        """`renders` says whether this process has a browser."""
        self._renders = renders
        self._lpm, self._owner_id, self._sites, self._disk = lpm, owner_id, sites, disk
        self.permits = PermitClient(permit, self._shared_name)
        self.jobs = JobCache(lpm, sites, given)
        self._leases: set[Lease] = set()
        """Every lease that this process knows of."""
        self._last_domain = ""
        self.poll_s = POLL_S
        """How long to wait before the next claim."""
        self.suspect: Suspect | None = None
        """A task to try alone, as soon as this process is idle."""
        self._no_suspect_before = 0.0
        self._learned: Learned = {}
        self._read_learned_at = -JOB_CACHE_S
        self._flush_scheduled = False
        self._thread = ThreadPoolExecutor(1, "claims")

    # For the loop

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Call a function on the thread of the claims."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    async def reserve(self, job_id: int | None, ask: PermitRequest) -> Reservation:
        """Reserve one request for a job's page; raises `NotNow` where the domain does not allow
        it."""
        ask = msgspec.structs.replace(ask, job=self._limit_of(job_id))
        [reserved] = await self.run(self.permits.reserve, [ask])
        if not reserved:
            raise self.permits.refusal(ask.domain)
        return reserved[0]

    async def rule_now(self, job_id: int | None, domain: str) -> RateRule:
        """The limits as they are now: a job's may have been raised since its page began."""
        how = await self.run(self.jobs.read_again, job_id)
        return self._sites.rule(domain, how.options.rate)

    async def claim_task(
        self, task: int, domain: str, job_id: int | None
    ) -> tuple[Claimed | None, float]:
        """Claim this one task; otherwise return in how many seconds to ask again."""
        how = await self.run(self.jobs.read, job_id)
        rule = self._sites.rule(domain, how.options.rate)
        reservation = None
        if rule.limited:
            try:
                reservation = await self.reserve(job_id, PermitRequest(domain=domain, rule=rule))
            except NotNow as error:
                return None, error.wait_s
        claimed = None
        try:
            claimed = await self.run(self._lease, task)
        finally:
            if claimed is None and reservation:
                unused = int(self.permits.is_latest(reservation))
                self.permits.report(RequestReport(domain=domain, rule=rule, unused=unused))
        if claimed is None:
            return None, POLL_S
        return Claimed(claimed, reservation), 0.0

    def flush_soon(self) -> None:
        """Tell other processes shortly that requests have ended: they may wait for that."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_later(REPORT_DELAY_S, self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        with contextlib.suppress(RuntimeError):  # stopped meanwhile: the stop has flushed
            self._thread.submit(self.permits.flush)

    def was_learned(self, task: Task, site: Site) -> bool:
        """Whether pages like that of a task needed a browser."""
        return needs_browser(self._learned, task.domain, task.url, site.version)

    def release(self, lease: Lease) -> None:
        """Note that a lease has ended."""
        self._leases.discard(lease)

    def postpone_suspect(self, wait_s: float) -> None:
        """Let ordinary tasks go first for a while."""
        self._no_suspect_before = time.monotonic() + wait_s

    def forget(self, domain: str, owner: str) -> None:
        """Note that a dead process has no request in flight at a domain. Any thread may call
        this."""
        with contextlib.suppress(RuntimeError):  # stopped: then the permit's lease runs out
            self._thread.submit(self.permits.forget, domain, owner)

    def close(self) -> None:
        """End the thread and close the store."""
        self._thread.shutdown()
        self._lpm.close()

    # On the thread

    def claim(
        self, queues: Sequence[str], room: int, idle: bool, tabs: int = 0
    ) -> tuple[list[Claimed], bool]:
        """Lease up to `room` tasks that can begin now, of these up to `tabs` that need a browser;
        says too whether others are due."""
        now = time.time()
        if not self._disk.is_enough():
            return [], True
        self._lpm.tasks.follow_clock(now, times.uptime(), times.boot_id())
        self._lpm.tasks.wake(now)
        self._read_learned()
        lines, left_out = self._lines(queues, tabs)
        self.suspect = self._due_suspect(lines)
        if self.suspect and (idle or now - self.suspect.leased_at > SUSPECT_WAIT_S):
            return [], True
        if not self._lpm.dispatch.has_due(lines):
            return [], left_out or self.suspect is not None
        wanted, more = self._wanted(lines, room, tabs)
        most = partial(_most_of, wanted, room, tabs)
        reserved = self._reserve_all(wanted, most)
        try:
            places = self._places(wanted, reserved, most, lines)
            tasks, left = self._lpm.dispatch.claim(self._owner_id, places, room, now)
            claimed = self._with_reservations(tasks, wanted, reserved)
        finally:
            self._return_unused(reserved)
        self._leases.update((task.id, task.fence) for task in tasks)
        failpoint("claimed")
        for task in tasks:
            self._correct_learned(task)
        if tasks:
            self._last_domain = tasks[-1].domain
        self.poll_s = POLL_S
        opens_s = self.permits.opens_s()
        if not wanted and opens_s is not None:  # all due tasks are at closed domains
            self.poll_s = min(max(opens_s, 0.005), MAX_CLOSED_POLL_S)
        return claimed, more or left or left_out or len(places) < len(wanted)

    def look_at_sites(self) -> None:
        """Read the files of sites again if they have changed."""
        self._sites.look()

    def has_due(self, queues: Sequence[str]) -> bool:
        """Whether any task of these queues is due."""
        return self._lpm.dispatch.has_due(lines_of(queues, self._renders))

    def unpublish(self, message_id: str) -> None:
        """Let the maintainer publish again what is left of a message."""
        self._lpm.dispatch.unpublish([message_id])

    def state_of(self, task: int) -> TaskState:
        """Where a task stands."""
        return self._lpm.tasks.state_of(task)

    def stored_page(self, known: PreviousPage) -> Page | None:
        """The last page of a URL; None if it cannot be read any more."""
        with contextlib.suppress(StoreError, FetchError):
            if stored := self._lpm.pages.of_result(known.task):
                page = rebuild_page(*stored, known.final_url, known.final_url)
                return msgspec.structs.replace(page, fetched_at=known.scraped_at)
        return None

    def renew(self) -> None:
        """Keep the permits, and return leases that this process does not know of: nobody else
        would."""
        self.permits.renew()
        with contextlib.suppress(StoreError):  # next time, then
            given = self._lpm.dispatch.give_back(self._owner_id, self._leases, time.time())
            if given:
                log.warning("%d tasks were leased and forgotten, and are pending again", given)

    def _lease(self, task: int) -> Task | None:
        claimed = self._lpm.dispatch.claim_one(self._owner_id, task, time.time())
        if claimed:
            self._leases.add((claimed.id, claimed.fence))
        return claimed

    def _read_learned(self) -> None:
        if time.monotonic() - self._read_learned_at >= JOB_CACHE_S:
            self._learned = self._lpm.browser_pages.learned()
            self._read_learned_at = time.monotonic()

    def _correct_learned(self, task: Task) -> None:
        """Forget at once what others have found to be wrong: a page rendered in vain is dear."""
        if self._learned:
            self._lpm.browser_pages.correct(self._learned, task.domain, task.url)

    def _lines(self, queues: Sequence[str], tabs: int) -> tuple[list[Line], bool]:
        """Where to take tasks from now; says too whether others were left out for lack of tabs."""
        lines = lines_of(queues, self._renders)
        if tabs > 0:
            return lines, False
        without = [line for line in lines if line.needs != BROWSER]
        return without, len(without) < len(lines)

    def _due_suspect(self, lines: Sequence[Line]) -> Suspect | None:
        if time.monotonic() < self._no_suspect_before:
            return None
        return self._lpm.dispatch.suspect(lines)

    def _wanted(self, lines: Sequence[Line], room: int, tabs: int) -> tuple[list[Wanted], bool]:
        """Domains with due tasks that may be asked now, the most urgent first; says too whether
        others have some."""
        self.permits.flush()
        wanted: list[Wanted] = []
        asked: set[str] = set()
        more = False
        for line in lines:
            places = room
            if line.needs == BROWSER:
                places = min(room, len(wanted) + tabs)
            for due in self._lpm.dispatch.due(line, self._last_domain):
                if len(wanted) >= places:
                    more = True
                    break
                rule = self._rule(due.domain, due.job_id)
                if rule.limited:
                    if due.domain in asked or self.permits.closed_s(due.domain):
                        more = True  # permits of a domain go to its most urgent tasks
                        continue
                    asked.add(due.domain)
                wanted.append(Wanted(due, rule))
                tabs -= line.needs == BROWSER
        return wanted, more

    def _reserve_all(
        self, wanted: Sequence[Wanted], most: Callable[[Due], int]
    ) -> dict[str, list[Reservation]]:
        asks = [
            PermitRequest(
                domain=due.domain,
                rule=rule,
                wish=self._lpm.dispatch.due_count(due, most(due)),
                job=self._limit_of(due.job_id),
            )
            for due, rule in wanted
            if rule.limited
        ]
        reserved = self.permits.reserve(asks)
        return {ask.domain: got for ask, got in zip(asks, reserved, strict=True)}

    def _places(
        self,
        wanted: Sequence[Wanted],
        reserved: dict[str, list[Reservation]],
        most: Callable[[Due], int],
        lines: Sequence[Line],
    ) -> list[Place]:
        """How many tasks may be claimed at each domain: as many as it gave permits."""
        places = []
        for due, rule in wanted:
            fits = partial(self._fits, due.domain, rule)
            if not rule.limited:
                places.append(Place(due, most(due), fits))
            elif mine := reserved[due.domain]:
                # Bad pages often stand together. A page from elsewhere in the domain tells whether
                # it is the pages or the domain, before the domain's circuit opens.
                probes = mine[0].probe or self.permits.is_refusing(due.domain)
                places.append(Place(due, len(mine), fits, lines if probes else ()))
        return places

    def _with_reservations(
        self,
        tasks: Sequence[Task],
        wanted: Sequence[Wanted],
        reserved: dict[str, list[Reservation]],
    ) -> list[Claimed]:
        limited = {(due.domain, due.job_id): rule.limited for due, rule in wanted}
        claimed = []
        for task in tasks:
            key = (task.domain, task.job_id)
            if key not in limited:
                limited[key] = self._rule(*key).limited
            reservation = None
            if limited[key] and reserved.get(task.domain):
                reservation = reserved[task.domain].pop(0)
            claimed.append(Claimed(task, reservation))
        return claimed

    def _return_unused(self, reserved: dict[str, list[Reservation]]) -> None:
        for domain, unused in reserved.items():
            if unused:
                count = len(unused)
                report = RequestReport(
                    domain=domain, rule=unused[0].rule, slots=count, unused=count
                )
                self.permits.report(report)

    def _rule(self, domain: str, job_id: int | None) -> RateRule:
        return self._sites.rule(domain, self.jobs.read(job_id).options.rate)

    def _limit_of(self, job_id: int | None) -> str:
        """The name of a job's own limit for all who share the permit; empty without a job."""
        if job_id is None:
            return ""
        return f"{self._lpm.store.id}/{job_id}"

    def _fits(self, domain: str, rule: RateRule, job_id: int | None) -> bool:
        return self._rule(domain, job_id) == rule

    def _shared_name(self, domain: str) -> str:
        """The name under which processes share a domain's limits. A server that counts addresses
        has separate limits for each of ours."""
        if self._sites.limit_per(domain) == "domain":
            return domain
        return f"{domain}@{_own_address()}"


def _most_of(wanted: Sequence[Wanted], room: int, tabs: int, due: Due) -> int:
    """How many tasks may be claimed at one of the wanted places; all that need a browser share the
    tabs."""
    if due.line.needs != BROWSER:
        return room
    return max(1, tabs // sum(each.due.line.needs == BROWSER for each in wanted))


@cache
def _own_address() -> str:
    """This machine's address for outgoing connections, or else its name."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only asks for the route
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()
