"""Pages that need a browser take the way of all others: permits, verdict, record, store, audit."""

import os
import signal
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from crawler.config import Settings
from crawler.db.store import HELD
from crawler.fetch.browser import FOLDER, Browser
from crawler.history import audit, step_text, timeline
from crawler.lpm import LocalPersistenceManager
from crawler.models import (
    BROWSER,
    MESSAGE_QUEUES,
    QUEUES,
    Fetcher,
    Job,
    JobOptions,
    Outcome,
    TaskStatus,
)
from crawler.waits import WaitFinder
from crawler.worker import Worker
from tests.support.pages import Answer, parcel
from tests.support.script_site import APP, ScriptSite
from tests.support.site import Site
from tests.support.stack import Folder, wait_for
from tests.support.tasks import new


class Pages:
    """A store, and processes with and without a browser that work on it one after the other."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url, self.data = url, folder / "data"
        self.settings = Settings(
            data_dir=self.data, config_dir=folder / "config", min_free=0, rate="none", slice_s=20
        )
        self.lpm = LocalPersistenceManager(self.data)

    def job(self, *paths: str, fetcher: Fetcher) -> Job:
        """A job with these pages, all of them due for processes without a browser."""
        job = self.lpm.imports.open_job(
            key=fetcher, name=fetcher, queue="default", source="file", source_file=None,
            batch_size=100, now=time.time(), options=JobOptions(fetcher=fetcher),
        )  # fmt: skip
        self.add(job, *paths)
        return job

    def add(self, job: Job, *paths: str) -> None:
        """Add pages to a job."""
        self.lpm.persist_tasks([new(self.at(path)) for path in paths], job=job, loopback=True)

    def at(self, path: str) -> str:
        """The URL of a path; another host is named with it."""
        return path if path.startswith("http") else self.url + path

    def work(self, browser: bool, *switches: str) -> None:
        """Work on what is due, with a browser on what needs one, too."""
        queues: Sequence[str] = QUEUES
        its: Browser | None = None
        if browser:
            queues, its = MESSAGE_QUEUES, Browser.of(self.settings)
        if switches:
            its = Browser(self.data / "run" / FOLDER, self.settings.max_body, switches=switches)
        worker = Worker(self.settings, queues=queues, browser=its)
        try:
            worker.run_slice("", queues)
            worker.finish_pages(60)
        finally:
            worker.stop()

    def row(self, columns: str, path: str) -> tuple[Any, ...]:
        """Columns of a page's task."""
        [row] = self.lpm.store.db.all(
            f"SELECT {columns} FROM tasks WHERE url = ?", (self.at(path),)
        )
        return tuple(row)

    def kinds(self, path: str) -> list[str]:
        """What happened to a page."""
        [id_] = self.row("id", path)
        return [kind for _, kind, _ in self.lpm.timeline.events(id_)]


@pytest.fixture
def pages(tmp_path: Path, site: Site) -> Iterator[Pages]:
    """A store without tasks."""
    pages = Pages(tmp_path, site.url)
    yield pages
    pages.lpm.close()


@pytest.fixture
def scripts() -> Iterator[ScriptSite]:
    """A site of pages with scripts."""
    with ScriptSite() as scripts:
        yield scripts


@pytest.fixture
def scripted(tmp_path: Path, scripts: ScriptSite) -> Iterator[Pages]:
    """A store without tasks, for that site."""
    pages = Pages(tmp_path, scripts.url)
    yield pages
    pages.lpm.close()


@pytest.mark.parametrize("not_before", [0.0, HELD])
def test_the_history_of_a_page_that_was_left_to_a_browser_has_no_time_that_nobody_knows(
    pages: Pages, not_before: float
) -> None:
    """`scrape` holds a page for its own process, until a time that no calendar has."""
    pages.job("/shell/1", fetcher="auto")
    [task] = pages.lpm.get_next_pending("o")
    routed = Outcome(
        task=task, status=TaskStatus.PENDING, worker="w", needs=BROWSER, charge=False,
        not_before=not_before,
    )  # fmt: skip
    pages.lpm.save_result(routed)

    [told] = [step for step in timeline(pages.lpm, task.id).steps if step.what == "needs a browser"]

    assert "not before" not in step_text(told, None, None)


def test_without_a_browser_the_wait_says_what_is_missing(pages: Pages, tmp_path: Path) -> None:
    """A program that is not there is named, instead of a command that would fail for its sake; a
    session with a process of its own does not wait for ever."""
    none = tmp_path / "none"
    settings = msgspec.structs.replace(pages.settings, browser_path=none)
    job = pages.job("/shell/1", fetcher="browser")
    pages.work(browser=False)

    [wait] = WaitFinder(settings, pages.lpm).find_for_session(job)

    assert (wait.stops, wait.until, wait.command) == (True, None, "")
    assert wait.effect.startswith(f"CRAWLER_BROWSER_PATH={none}: there is no such program")


def test_a_page_goes_to_a_browser_and_is_stored_with_what_it_came_from(
    pages: Pages, site: Site
) -> None:
    """A process without a browser leaves it alone, at no cost; rendered, it has its record, its DOM
    and before it the response as stored pages, and its other requests in the audit."""
    # Given a page that a script makes
    job = pages.job("/shell/1", fetcher="browser")

    # When a process without a browser takes it, and then one with a browser
    pages.work(browser=False)
    left = pages.row("status, needs, attempts, failures", "/shell/1")
    asked = site.hits().get("/shell/1", 0)
    waits = WaitFinder(pages.settings, pages.lpm)._browser_waits(
        job, pages.lpm.counts.progress(job), []
    )
    pages.work(browser=True)

    # Then it was left with no request, and what it waits for was said
    assert left == ("pending", BROWSER, 0, 0)
    assert asked == 0
    assert waits[0].what == "1 page waits for a browser, and no worker has one"
    assert "up --browsers 1" in waits[0].command
    # Then its record is that of the DOM
    assert pages.kinds("/shell/1") == ["needs a browser", "completed"]
    [result] = pages.lpm.results.read(job)
    assert result["data"]["title"] == "Parcel 1"
    # Then both are stored, the response directly before the page
    raw = result["raw"]
    text = (pages.data / "raw" / raw["segment"]).read_bytes()
    page = zlib.decompress(text[raw["offset"] : raw["offset"] + raw["length"]], wbits=31)
    before = zlib.decompressobj(wbits=31)
    rest = text[: raw["offset"]]
    while rest:
        before = zlib.decompressobj(wbits=31)
        response, rest = before.decompress(rest), before.unused_data
    assert b"<h1>Parcel 1</h1>" in page
    assert b'<div id="app"></div>' in response
    [id_] = [line for line in response.split(b"\r\n") if line.startswith(b"WARC-Record-ID: ")]
    assert id_.replace(b"Record-ID", b"Concurrent-To") in page
    head, _ = pages.lpm.pages.of_result(pages.row("id", "/shell/1")[0]) or ("", b"")
    assert "crawler-rendered: yes" in head
    # Then the timeline and the audit tell of the other requests
    steps = timeline(pages.lpm, pages.row("id", "/shell/1")[0]).steps
    assert any("rendered with 1 request more" in step_text(step, None, None) for step in steps)
    assert [each.subrequests for each in audit(pages.lpm)] == [1]


def test_what_needs_no_browser_is_fetched_without_one(pages: Pages, site: Site) -> None:
    """A page that was left to a browser before its site's file was changed takes the way of HTTP
    in a process with a browser."""
    job = pages.job(fetcher="http")
    url = pages.at("/page/1")
    pages.lpm.persist_tasks([new(url, needs=BROWSER)], job=job, loopback=True)

    pages.work(browser=True)

    [result] = pages.lpm.results.read(job)
    assert result["verdict"] == "ok"
    assert site.hits()["/page/1"] == 1


def test_auto_learns_which_pages_need_a_browser(pages: Pages) -> None:
    """The first page costs an attempt and no failure; those like it go to the browser at once, the
    others never. What a browser shows no better is fetched by HTTP again."""
    # Given a crawl that decides page by page
    job = pages.job("/shell/1", "/page/1", fetcher="auto")
    pages.work(browser=False)
    assert pages.row("status, needs, attempts, failures", "/shell/1") == ("pending", BROWSER, 1, 0)
    assert pages.row("status, needs", "/page/1") == ("completed", "http")
    assert [each.pattern for each in pages.lpm.browser_pages.listed()] == ["/shell/*"]

    # When another page like it comes
    pages.add(job, "/shell/2")
    pages.work(browser=False)
    untried = pages.row("status, needs, attempts", "/shell/2")
    pages.work(browser=True)

    # Then it has gone to the browser at once, and both are there
    assert untried == ("pending", BROWSER, 0)
    titles = {result["data"]["title"] for result in pages.lpm.results.read(job)}
    assert {"Parcel 1", "Parcel 2"} <= titles
    assert pages.lpm.counts.in_browsers(job) == 2

    # When a page of a pattern shows the same in both
    db = pages.lpm.store.durable
    db.execute("DELETE FROM browser_pages WHERE pattern = '/page/*'")
    db.execute("UPDATE browser_pages SET pattern = '/page/*'")
    pages.add(job, "/page/2")
    pages.work(browser=True)

    # Then that is forgotten
    assert pages.row("status", "/page/2") == ("completed",)
    assert pages.lpm.browser_pages.listed() == []


def test_auto_does_not_render_what_stands_beside_pages_that_need_a_browser(
    scripted: Pages, scripts: ScriptSite
) -> None:
    """A path with both kinds of pages is found out by the first that needs no browser, and each of
    its pages is tried by HTTP from then on; those that are left to a browser already, too."""
    # Given a path that seems to need a browser, and thirty pages of it that do not
    shells, plain = ["/parcel/1000", "/parcel/1001"], [f"/parcel/{n}" for n in range(40)]
    scripts.answers |= {path: Answer(APP.replace("list", "app")) for path in shells}
    scripts.answers |= {path: Answer(parcel(n)) for n, path in enumerate(plain)}
    job = scripted.job(shells[0], fetcher="auto")
    scripted.work(browser=False)
    scripted.add(job, *plain[:30])
    scripted.work(browser=False)
    left = {scripted.row("status, needs, attempts", path) for path in plain[:30]}
    assert left == {("pending", BROWSER, 0)}

    # When a browser takes them
    scripted.work(browser=True)

    # Then it has rendered as many as were in its tabs when it was found out
    assert {scripted.row("status, failures", path) for path in plain[:30]} == {("completed", 0)}
    rendered = [asked.path for asked in scripts.asked if "sec-fetch-dest" in asked.headers]
    assert shells[0] in rendered
    assert len([path for path in rendered if path in plain]) <= 2 * scripted.settings.tabs
    assert scripted.lpm.browser_pages.listed() == []

    # When more of both kinds come
    scripts.asked.clear()
    scripted.add(job, shells[1], *plain[30:])
    scripted.work(browser=False)

    # Then each is tried by HTTP, and the path is not learned again
    assert {scripted.row("status, needs", path) for path in plain[30:]} == {("completed", "http")}
    assert scripted.row("status, needs, attempts", shells[1]) == ("pending", BROWSER, 1)
    assert scripted.lpm.browser_pages.listed() == []


def test_pages_that_hang_or_eat_memory_cost_their_neighbours_nothing(
    scripted: Pages, tmp_path: Path
) -> None:
    """In one browser, beside good pages: each fails for its own reason."""
    # Given two bad pages, and good ones, in the tabs of one browser
    sites = tmp_path / "config" / "sites"
    sites.mkdir(parents=True)
    (sites / "bad.yaml").write_text(
        "hosts: [localhost]\nrate: none\ntimeout_s: 10\nretry: {attempts: 1}\n"
    )
    elsewhere = scripted.url.replace("127.0.0.1", "localhost")
    bad = [f"{elsewhere}/spins", f"{elsewhere}/crashes"]
    good = [f"/app?{n}" for n in range(6)]
    scripted.job(*bad, *good, fetcher="browser")

    # When they are rendered
    scripted.work(True, "--js-flags=--max-old-space-size=100")

    # Then the bad ones have failed, and nobody else has
    columns = "status, error_type, failures, strikes"
    assert scripted.row(columns, bad[0]) == ("failed", "timeout", 1, 0)
    assert scripted.row(columns, bad[1]) == ("failed", "page_crashed", 1, 0)
    assert {scripted.row(columns, path) for path in good} == {("completed", None, 0, 0)}
    assert not list((scripted.data / "run" / FOLDER).iterdir())


def test_a_browser_that_does_not_start_costs_no_page_anything(
    scripted: Pages, tmp_path: Path
) -> None:
    """Its pages wait for one that does."""
    program = tmp_path / "chromium"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    works = scripted.settings
    scripted.settings = msgspec.structs.replace(works, browser_path=program)
    scripted.job("/app?1", "/app?2", fetcher="browser")
    columns = "status, error_type, attempts, failures, strikes"

    for _ in range(2):
        scripted.work(browser=True)
        assert scripted.row(columns, "/app?1") == ("pending", None, 0, 0, 0)
        scripted.lpm.store.durable.execute("UPDATE tasks SET not_before = 0")
    scripted.settings = works
    scripted.work(browser=True)

    assert scripted.row(columns, "/app?2") == ("completed", None, 1, 0, 0)


def test_a_stack_renders_pages_through_kills(tmp_path: Path, site: Site) -> None:
    """`up --browsers` starts a worker for them, which is shown and stopped with the others; what a
    killed child was rendering is rendered again, once."""
    folder = Folder(tmp_path)
    try:
        # Given a stack with a browser worker, and a list of pages for it
        assert folder.crawler("up", "--workers", "1", "--browsers", "1").returncode == 0
        pids = folder.status()["pids"]
        [worker] = pids["browsers"]
        assert worker["pid"] not in [each["pid"] for each in pids["workers"]]
        file = folder.write("shells.txt", [f"{site.url}/shell/{n}" for n in range(12)])
        imported = folder.crawler("bulk", "import", str(file), "--fetcher", "browser")
        assert imported.returncode == 0, imported.stderr

        # When its child is killed while it renders, and later the whole worker
        wait_for(lambda: _in_flight(folder), 60, "pages in a browser")
        os.kill(worker["children"][0], signal.SIGKILL)
        folder.wait_until_completed(4, 120)
        os.kill(worker["pid"], signal.SIGKILL)
        books = folder.wait_until_done(12, 300)

        # Then nothing is lost, and nothing came twice
        assert (books.completed, books.failed) == (12, 0)
        results = folder.results()
        assert sorted(each["data"]["title"] for each in results) == sorted(
            f"Parcel {n}" for n in range(12)
        )
        folder.crawler("resume")  # the killed worker may not have written the files of a commit
        assert folder.crawler("job", "verify", "shells.txt").returncode == 0
        [started_again] = folder.status()["pids"]["browsers"]
        assert folder.crawler("down").returncode == 0
        assert not psutil.pid_exists(started_again["pid"])
    finally:
        folder.crawler("down")
        folder.stop()


def _in_flight(folder: Folder) -> bool:
    with LocalPersistenceManager(folder.data) as lpm:
        sql = "SELECT count(*) FROM tasks WHERE status = 'processing' AND needs = 'browser'"
        return bool(lpm.store.db.value(sql))
