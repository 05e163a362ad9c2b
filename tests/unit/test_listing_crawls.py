"""Crawls of a site with listings: by hand, by a schedule, and after a repair."""

from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from crawler import crawls
from crawler.config import Settings
from crawler.db.connection import writing
from crawler.examples.imoti import HOST
from crawler.examples.server import Running
from crawler.models import JobOptions
from crawler.schedules import SiteSchedules
from crawler.sites import load
from tests.support.clock import Clock
from tests.support.patient import look
from tests.support.sites import configure
from tests.support.stored_listings import StoredListings
from tests.support.tasks import new, open_job
from tests.unit.test_sound_crawls import DAY, Store

SIZE = 30
LINKED = SIZE * 9 // 10
"""Listings that are not in a sitemap only."""
DAY_S = 86_400.0


class Portal(Store):
    """A store with crawls of the real-estate portal, without its sitemaps: these would decide
    which pages are fetched."""

    def __init__(self, folder: Path, site: Running) -> None:
        config = configure(folder / "config", site.port, "imoti")
        file = config / "sites" / "imoti.yaml"
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(line for line in lines if not line.startswith("sitemaps:")))
        (config / "schedules.yaml").write_text("nightly: {sites: [imoti], every: 1h}\n")
        super().__init__(folder, config)
        self.site = site
        self.schedules = SiteSchedules(self.settings, Clock(0))
        self.hours = 0
        self.schedules.run_due(DAY)

    def change(self, how: str, n: int) -> None:
        connection = HTTPConnection("127.0.0.1", self.site.port, timeout=60)
        connection.request("GET", f"/_{how}?id={100_000 + n}", headers={"Host": HOST})
        assert connection.getresponse().status == 204
        connection.close()

    def fetched(self) -> int:
        """How often pages of listings were asked for."""
        requests = self.site.requests(HOST).items()
        return sum(count for name, count in requests if f"{HOST}/obiava/" in name)

    def run_schedule(self) -> int:
        """Run the next period to its end; returns how many listings were fetched."""
        self.hours += 1
        before = self.fetched()
        self.schedules.run_due(DAY + self.hours * 3600)
        self.finish()
        return self.fetched() - before

    def crawl(self) -> int:
        """Crawl the site by hand; returns how many listings were fetched."""
        before = self.fetched()
        self.begin("imoti")
        self.finish()
        return self.fetched() - before

    def begin(self, site: str, limit: int = 0) -> None:
        given = {"depth": None, "include": (), "exclude": (), "sitemap": None}
        known = load(self.settings.config_dir)
        plan = crawls.plan(known, [site], JobOptions(), subdomains=False, **given)
        crawls.begin(self.settings, plan)

    def finish(self) -> None:
        self.work()
        with self.lpm() as lpm:
            ended = lpm.jobs.finalise(lpm.now())
            lpm.jobs.mark_reported(*ended)

    def kinds(self) -> list[tuple[str, str]]:
        with self.lpm() as lpm:
            return [(each["key"], each["kind"]) for each in StoredListings(lpm).changes("imoti")]


@pytest.fixture
def portal(tmp_path: Path) -> Iterator[Portal]:
    with Running("crawler.examples", "--port", 0, "--size", SIZE) as site:
        yield Portal(tmp_path, site)


def test_a_schedule_fetches_a_listing_less_often_the_longer_it_stays_the_same(
    portal: Portal,
) -> None:
    """After the span of its site, doubled for each fetch that changed nothing; a crawl by hand
    fetches all. The doctor has nothing to say about such a store."""
    assert portal.run_schedule() == LINKED
    portal.change("edit", 0)

    assert portal.run_schedule() == 0
    assert {kind for _, kind in portal.kinds()} == {"new"}
    assert portal.column("SELECT min(last_seen) > max(fetched_at) FROM listings") == {1}
    kept = "SELECT evidence FROM (SELECT detail ->> '$.evidence[0]' AS evidence FROM events)"
    assert any("is fetched again from" in (why or "") for why in portal.column(kept))
    assert portal.crawl() == LINKED
    assert portal.kinds()[LINKED:] == [("100000", "changed")]
    assert portal.column("SELECT price - previous_price FROM price_history") == {1.0}
    portal.assert_sound()

    with portal.lpm() as lpm, writing(lpm.store.durable):
        lpm.store.durable.execute("UPDATE listings SET fetched_at = fetched_at - ?", (1.5 * DAY_S,))
    assert portal.run_schedule() == 1  # that which has changed: for the others it is two days
    assert portal.column("SELECT unchanged FROM listings") == {1}
    portal.assert_sound()


def test_a_listing_of_a_plain_job_may_be_unchanged(portal: Portal) -> None:
    """The answer 304 brings no page: what it is about is read from the stored one."""
    url = f"{portal.site.url(HOST)}/obiava/100001-apartament"
    for name in ("one", "two"):
        with portal.lpm() as lpm:
            job = open_job(lpm, name)
            lpm.persist_tasks([new(url)], job=job, loopback=True)
            lpm.imports.close(job, lpm.now())
        portal.work()

    assert portal.column("SELECT verdict FROM results") == {"ok", "unchanged"}
    assert portal.kinds() == [("100001", "new")]
    assert portal.column("SELECT unchanged FROM listings") == {1}
    assert portal.column("SELECT task FROM listings") == {2}


def test_listings_come_and_go(portal: Portal) -> None:
    """By their pages, and by the lists of a whole crawl, as the site itself says; and the loss of
    results does not keep a crawl from finding what there is."""
    for n in (1, 2, 3):
        portal.change("gone", n)
    assert portal.crawl() == LINKED - 3
    for n in (3, 4, 5):
        portal.change("gone" if n > 3 else "back", n)
    portal.crawl()

    kinds = portal.kinds()[LINKED - 3 :]
    assert sorted(kinds) == [("100003", "new"), ("100004", "gone"), ("100005", "gone")]
    with portal.lpm() as lpm, writing(lpm.store.durable):
        lpm.store.durable.execute("DELETE FROM results WHERE task % 2")
    look(portal.settings.data_dir, repair=True)
    portal.change("back", 4)
    portal.work()  # what the repair wants again
    portal.crawl()

    assert portal.kinds()[LINKED:][-1:] == [("100004", "back")]
    with portal.lpm() as lpm:
        gone = [each["key"] for each in StoredListings(lpm).of_site("imoti") if each["gone_at"]]
    assert gone == ["100005"]


@pytest.mark.parametrize(
    ("given", "scope", "expected"),
    [
        (["imoti"], {}, True),
        (["IMOTI"], {}, True),
        (["imoti"], {"limit": 5}, True),  # what a limit leaves out is counted
        (["imoti"], {"depth": 0}, False),
        (["imoti"], {"include": ("/obiava/",)}, False),
        (["imoti"], {"exclude": ("x",)}, False),
        (["imoti"], {"sitemap": "only"}, False),
        (["imoti", "county"], {}, False),
        (["http://imoti.localhost:8090/"], {}, False),
        (["county"], {}, False),  # some of its pages are found by rows only
    ],
)
def test_a_site_by_its_name_is_crawled_whole(
    tmp_path: Path, given: list[str], scope: dict[str, Any], expected: bool
) -> None:
    """Unless an option narrows the crawl: then nothing is gone because it was not found."""
    known = load(configure(tmp_path, 8090, "imoti", "county"))
    full = {"depth": None, "include": (), "exclude": (), "sitemap": None} | scope

    plan = crawls.plan(known, given, JobOptions(), subdomains=False, **full)

    assert plan.options.crawl is not None
    assert (plan.options.crawl.whole, plan.options.crawl.recrawl) == (expected, False)


def test_some_starts_of_a_site_are_not_the_whole(tmp_path: Path) -> None:
    """Nor is a crawl that was narrower when it began."""
    settings = Settings(data_dir=tmp_path / "data", config_dir=tmp_path, min_free=0)
    known = load(configure(tmp_path, 8090, "imoti"))
    starts = ["http://imoti.localhost:8090/novi"]
    wholes = [crawls.plan_site(known, "imoti", each).options.crawl for each in (starts, [])]
    assert [each and each.whole for each in wholes] == [False, True]

    full = {"depth": None, "include": (), "exclude": (), "sitemap": None}
    for include in (("/novi",), ()):
        scope = full | {"include": include}
        plan = crawls.plan(known, ["imoti"], JobOptions(), subdomains=False, **scope)
        job = crawls.begin(settings, plan).job

    assert job.options.crawl is not None
    assert (job.options.crawl.include, job.options.crawl.whole) == ((), False)
