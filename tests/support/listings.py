"""A store with the listings of one site, and a process that stores their pages.

`python -m tests.support.listings FOLDER OWNER STEP [KEYS]`: store every due page, one commit each.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from crawler import urls
from crawler.db.links import Start
from crawler.fetch.budget import Budget
from crawler.lpm import LocalPersistenceManager
from crawler.models import (
    UNCHANGED,
    CrawlOptions,
    Job,
    JobOptions,
    Link,
    Outcome,
    RetryClass,
    Role,
    SeenListing,
    Task,
    TaskStatus,
)
from crawler.sites.listing import find
from crawler.sites.listingfile import Listings
from tests.support.clock import Clock
from tests.support.stored_listings import StoredListings
from tests.support.tasks import done, page

SITE = "a"
RULES = Listings(key=("id",), ignore=("views",), sold={"status": ("sold",)}, recrawl=86_400.0)
BASE = "http://a.example"
LIST = f"{BASE}/list"
BEGAN = 1_794_960_000.0


def url(n: object) -> str:
    """The page of listing n."""
    return f"{BASE}/item/{n}"


def record(n: object, price: float | None = 100, **fields: Any) -> dict[str, Any]:
    """What the page of listing n says."""
    given = {"amount": price, "currency": "EUR"} if price is not None else None
    return {"id": str(n), "price": given, "city": "Sofia"} | fields


def seen(
    given: dict[str, Any], address: str = "", rules: Listings = RULES
) -> tuple[SeenListing, ...]:
    """The listings of a page with this record."""
    return find(given, msgspec.json.encode(given), address, rules, Budget())


class Market:
    """A store, and crawls of the site in it."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock(BEGAN)
        self.lpm = LocalPersistenceManager(folder, clock=self.clock)
        self.stored = StoredListings(self.lpm)

    def begin(
        self,
        items: Iterable[object] = (),
        lists: Iterable[str] = (LIST,),
        name: str = "",
        **options: Any,
    ) -> Job:
        """Begin a crawl with these listings and lists, a minute after what was before."""
        self.clock.now += 60
        given: dict[str, Any] = {
            "starts": (SITE,),
            "hosts": ("a.example",),
            "site": SITE,
            "whole": True,
        }
        crawl = CrawlOptions(**(given | options))
        name = name or f"crawl-{self.clock.now:.0f}"
        job = self.lpm.imports.open_job(
            key=name, name=name, queue="default", source="crawl", source_file=None, batch_size=100,
            now=self.clock.now, options=JobOptions(crawl=crawl),
        )  # fmt: skip
        pages = [(each, Role.INDEX) for each in lists]
        pages += [(url(n), Role.LISTING) for n in items]
        links = [Link(address=urls.parse(each), role=role) for each, role in pages]
        self.lpm.crawls.add_starts(job, map(Start, links), self.clock.now)
        self.lpm.imports.close(job, self.clock.now)
        self.clock.now += 60
        return job

    def claim(self, owner: str = "owner") -> dict[str, Task]:
        """Lease all due tasks, by URL."""
        return {task.url: task for task in self.lpm.get_next_pending(owner, 10_000)}

    def show(
        self,
        task: Task,
        given: dict[str, Any] | None = None,
        at: float | None = None,
        **fields: Any,
    ) -> Outcome:
        """The outcome of a page that shows this record, fetched now or at a time."""
        answer = msgspec.structs.replace(
            page(task.url, repr(given).encode()), fetched_at=at or self.clock.now
        )
        values = {"page": answer, "site": (SITE, "1"), "listings": seen(given or {}, task.url)}
        return done(task, given or {}, **(values | fields))

    def fail(self, task: Task, reason: str = "http_404", at: float | None = None) -> Outcome:
        """The outcome of a page that is not there."""
        status = int(reason.removeprefix("http_")) if reason.startswith("http_") else 200
        return self.show(
            task, None, at, status=TaskStatus.FAILED, error_type=reason, verdict=reason,
            retry=RetryClass.GIVE_UP, listings=(), error_message=f"answered {status}",
        )  # fmt: skip

    def keep(self, task: Task, known: dict[str, Any], fetched: bool = False) -> Outcome:
        """The outcome of a page that is as it was: by the answer 304, or without asking."""
        assert task.known is not None
        at = self.clock.now if fetched else task.known.scraped_at
        sent = {} if fetched else {"sent": ()}
        return self.show(task, known, at, verdict=UNCHANGED, **sent)

    def store(self, *outcomes: Outcome) -> None:
        """Commit outcomes, a minute later."""
        self.clock.now += 60
        assert all(self.lpm.save_result(*outcomes))

    def crawl(self, *records: dict[str, Any], **options: Any) -> Job:
        """Crawl the site while it has these listings, with a good list, to the end."""
        job = self.begin([each["id"] for each in records], **options)
        tasks = self.claim()
        shown = {url(each["id"]): each for each in records}
        self.store(*(self.show(task, shown.get(each)) for each, task in tasks.items()))
        self.end()
        return job

    def end(self) -> None:
        """End the jobs that are done."""
        self.clock.now += 60
        self.lpm.jobs.finalise(self.clock.now)

    def listing(self, n: object) -> dict[str, Any]:
        """What is stored of listing n."""
        [found] = [each for each in self.stored.of_site(SITE) if each["key"] == str(n)]
        return found

    def kinds(self, n: object) -> list[str]:
        """What happened to listing n."""
        return [each["kind"] for each in self.stored.changes(SITE) if each["key"] == str(n)]

    def prices(self, n: object) -> list[tuple[float, float]]:
        """Each price of listing n, with the one before it."""
        found = [each for each in self.stored.prices(SITE) if each["key"] == str(n)]
        return [(each["previous_price"], each["price"]) for each in found]

    def gone(self) -> set[str]:
        """The listings that are gone."""
        return {each["key"] for each in self.stored.of_site(SITE) if each["gone_at"]}


def main() -> None:
    """Store all due pages, each in a commit of its own; listing n costs 100 + n + a step.

    With a number of keys, that many pages share them."""
    folder, owner, step, *keys = sys.argv[1:]
    market = Market(Path(folder))
    while tasks := market.lpm.get_next_pending(owner, 1):
        [task] = tasks
        n = int(task.url.rpartition("/")[2])
        key = n % int(keys[0]) if keys else n
        outcome = market.show(task, record(key, 100 + n + int(step)), BEGAN + int(step))
        market.lpm.save_result(outcome)


if __name__ == "__main__":
    main()
