"""One page outside of the ledger: fetched as any other, with permits and robots.txt; not stored."""

import asyncio
import time
import uuid
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from crawler import urls
from crawler.config import Settings
from crawler.errors import FetchError, NotNow
from crawler.fetch.budget import Budget
from crawler.fetch.http import Client
from crawler.fetch.robots import Robots
from crawler.fetch.session import LiveSession, Session
from crawler.models import JobOptions, Page, PreviousPage, Task, TaskStatus
from crawler.resilience.memory import MemoryPermit
from crawler.resilience.permit import Permit, PermitClient, PermitRequest, Reservation
from crawler.scraping.attempt import Attempt, FetchOptions
from crawler.scraping.request_gate import RequestGate
from crawler.sites import Sites

MAX_WAIT_S = 120.0
"""How long a page waits for its domain's permit."""


class SinglePages:
    """Fetches pages one after the other, each when its domain permits it."""

    def __init__(
        self,
        settings: Settings,
        sites: Sites,
        robots: Path,
        permit: Permit | None = None,
        session: Session | None = None,
    ) -> None:
        """`robots` is the folder of known robots.txt; `permit` is shared with other processes.

        Without a `session`, a page is fetched without signing in, whatever its site's file says.
        """
        self._settings, self._sites, self._robots_folder = settings, sites, robots
        self._how = FetchOptions(JobOptions(fetcher="http"))
        if session:
            self._how = FetchOptions(self._how.options, LiveSession(session))
        fail_max = settings.circuit_breaker_fail_max
        self._permits = PermitClient(permit or MemoryPermit("single", fail_max, fresh=False))

    def fetch(self, url: str) -> Page:
        """Return the page of a URL, whatever it is; `FetchError` says why there is none."""
        return asyncio.run(self._fetch(url))

    async def _fetch(self, url: str) -> Page:
        address = urls.parse(url)
        end = time.monotonic() + MAX_WAIT_S
        async with Client.of(self._settings) as client:
            while True:
                try:
                    return await self._attempt(client, address)
                except NotNow as error:
                    if time.monotonic() + error.wait_s > end:
                        raise FetchError("not_now", str(error)) from None
                    await asyncio.sleep(error.wait_s)

    async def _attempt(self, client: Client, address: urls.Address) -> Page:
        task = Task(
            id=0, task_id=str(uuid.uuid4()), url=address.url, domain=address.domain, queue="",
            priority=1, fence=0, attempts=0, failures=0, loopback=True, job_id=None, job_size=None,
        )  # fmt: skip
        rule = self._sites.rule(address.domain)
        reservation = None
        if rule.limited:
            reservation = await self._reserve(PermitRequest(domain=address.domain, rule=rule))
        budget = Budget()
        gate = RequestGate(
            task.domain,
            task.url,
            reservation,
            rule,
            self._sites.rule,
            self._reserve,
            self._permits,
            lambda: None,
            lambda: budget.waited_s,
        )
        # A class of the site must not keep its page from being looked at.
        site = replace(self._sites.of(task.url), scraper=None)
        attempt = Attempt(
            task, site, self._how,
            fetch=client.fetch, gate=gate, robots=Robots(self._robots_folder), budget=budget,
            worker="single", stored_page=_no_stored_page,
        )  # fmt: skip
        outcome = await attempt.run()
        gate.close(outcome)
        self._permits.flush()
        if outcome.page:
            return outcome.page
        message = outcome.error_message or "there is no page"
        if outcome.status is TaskStatus.PENDING and not outcome.charge:
            raise NotNow(task.domain, message, max(0.0, outcome.not_before - time.time()))
        raise FetchError(outcome.error_type or "failed", message)

    async def _reserve(self, ask: PermitRequest) -> Reservation:
        [reserved] = await asyncio.to_thread(partial(self._permits.reserve, [ask]))
        if not reserved:
            raise self._permits.refusal(ask.domain)
        return reserved[0]


async def _no_stored_page(known: PreviousPage) -> Page | None:
    return None
