"""The doctor finds nothing wrong in the store of a crawl, and its repair changes nothing there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crawler import crawls
from crawler.config import Settings
from crawler.db.site_jobs import SiteCall
from crawler.examples.county import PASSWORD, USER
from crawler.examples.server import Running
from crawler.fetch.session import Session
from crawler.lpm import LocalPersistenceManager
from crawler.models import MAX_CRAWL_PAGES, METHODS, JobOptions
from crawler.schedules import SiteSchedules
from crawler.sites import load
from crawler.worker import Worker
from tests.support.changing import HOST as CHANGING
from tests.support.clock import Clock
from tests.support.patient import look
from tests.support.sites import configure, plain_site

DAY = 1_794_960_000.0  # 2026-11-18T00:00Z
SITES = ("county", "imoti", "library", "changing")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The files of four sites, which are served: with forms and a login, with sitemaps, plain,
    and with redirects, also in a circle."""
    folder = tmp_path_factory.mktemp("sound") / "config"
    with (
        Running("crawler.examples", "--port", 0, "--size", 40) as examples,
        Running("tests.support.changing") as changing,
    ):
        configure(folder, examples.port, "county", "imoti")
        with (folder / "sites" / "imoti.yaml").open("a") as file:
            file.write("files: {fields: [photos], max_count: 2}\n")
        plain_site(folder, "library", f"{examples.url('library.localhost')}/")
        plain_site(folder, "changing", f"{changing.url(CHANGING)}/")
        yield folder


class Store:
    """A store, and the crawls in it."""

    def __init__(self, folder: Path, config: Path) -> None:
        self.settings = Settings(
            data_dir=folder / "data", config_dir=config, min_free=0, timezone="UTC"
        )
        with self.lpm() as lpm:
            lpm.open()

    def lpm(self) -> LocalPersistenceManager:
        return LocalPersistenceManager(self.settings.data_dir)

    def begin(self, site: str, limit: int = MAX_CRAWL_PAGES) -> None:
        """Begin the crawl of a site, or continue it."""
        given = {"depth": None, "include": (), "exclude": (), "sitemap": "include"}
        known = load(self.settings.config_dir)
        plan = crawls.plan(known, [site], JobOptions(), subdomains=False, limit=limit, **given)
        session = Session(secrets={"user": USER, "password": PASSWORD})
        crawls.begin(self.settings, plan, session=session)

    def work(self, pages: int = 1_000_000) -> None:
        """Take this many tasks through all their attempts, one after the other."""
        worker = Worker(self.settings)
        try:
            with self.lpm() as lpm:
                sql = "SELECT id FROM tasks WHERE status = 'pending' ORDER BY id LIMIT 1"
                while pages and (id_ := lpm.store.db.value(sql)) is not None:
                    worker.scrape(id_, 60)
                    pages -= 1
        finally:
            worker.stop()

    def rows(self) -> dict[str, list[Any]]:
        """All rows of all tables."""
        with self.lpm() as lpm:
            tables = lpm.store.db.column("SELECT name FROM sqlite_schema WHERE type = 'table'")
            return {name: lpm.store.db.all(f"SELECT * FROM {name}") for name in tables}

    def column(self, sql: str) -> set[Any]:
        with self.lpm() as lpm:
            return set(lpm.store.db.column(sql))

    def assert_sound(self) -> None:
        """See that the doctor finds nothing wrong, and that a repair changes no row."""
        before = self.rows()
        for repair in (False, True):
            found = look(self.settings.data_dir, repair=repair)
            told = [each for each in found if each.state in ("wrong", "mended")]
            assert told == [], (repair, told)
        after = self.rows()
        assert {name for name in before if before[name] != after[name]} == set()


@pytest.mark.parametrize("site", SITES)
def test_a_crawl_is_sound_from_its_beginning_to_its_end(
    tmp_path: Path, config: Path, site: str
) -> None:
    """Begun, in the middle, at its limit, with a raised limit, for which stored pages are read
    again, and done."""
    store = Store(tmp_path, config)

    store.begin(site, limit=5)
    store.assert_sound()
    store.work(pages=3)
    store.assert_sound()
    store.work()
    store.assert_sound()
    assert "reached" in store.column("SELECT kind FROM crawl_counts")
    store.begin(site)
    assert "LINKS" in store.column("SELECT method FROM tasks WHERE status = 'pending'")
    store.assert_sound()
    store.work(pages=3)
    store.assert_sound()
    store.work()
    with store.lpm() as lpm:
        assert lpm.jobs.finalise(lpm.now())
    store.assert_sound()

    ends = store.column("SELECT error_type FROM tasks WHERE error_type NOT NULL")
    assert "read_again" in ends
    if site == "changing":
        assert ends >= {"redirected", "too_many_redirects", "sitemap"}
    methods = store.column("SELECT method FROM tasks")
    assert methods <= set(METHODS)
    assert "FORM" in methods or site != "county"
    assert ("FILE" in methods) == (site == "imoti")
    assert "SITEMAP" in methods


def test_crawls_that_calls_and_schedules_begin_are_sound(tmp_path: Path, config: Path) -> None:
    """Also where a page was taken back at the hard time limit, once and as poison, and where jobs
    are paused and cancelled."""
    (config / "schedules.yaml").write_text("nightly: {sites: [library, changing], every: 1h}\n")
    store = Store(tmp_path, config)
    schedules = SiteSchedules(store.settings, Clock(0))
    schedules.run_due(DAY)
    schedules.run_due(DAY + 3600)
    plan = crawls.plan_site(load(config), "imoti")
    crawls.begin_site(store.settings, plan, SiteCall("a-call", "imoti", "a-group"), "called")
    store.assert_sound()

    with store.lpm() as lpm:
        for _ in range(2):
            [task] = lpm.get_next_pending("owner", 1)
            assert lpm.dispatch.take_back_page(task.id, task.fence, lpm.now())
    store.assert_sound()
    store.work(pages=4)
    with store.lpm() as lpm:
        jobs = lpm.jobs.all()
        lpm.jobs.hold(jobs[0], "paused", lpm.now())
        lpm.jobs.hold(jobs[1], "cancelled", lpm.now())
    store.assert_sound()

    assert store.column("SELECT count(*) FROM site_calls") == {3}
    assert store.column("SELECT count(*) FROM schedules") == {1}
    assert store.column("SELECT kind FROM events") >= {"taken back", "poison"}
