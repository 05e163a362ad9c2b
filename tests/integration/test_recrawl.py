"""A crawl of a site that was crawled before, and of one that redirects."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crawler.examples.server import Running
from tests.support.changing import ENDLESS, HOST
from tests.support.pages import HTML, Answer, Pages, parcel
from tests.support.stack import Folder, wait_for


@pytest.fixture
def site() -> Iterator[Running]:
    """The site, with no request counted yet."""
    with Running("tests.support.changing") as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    folder = Folder(tmp_path)
    yield folder
    folder.stop()


def crawl(folder: Folder, site: Running, raw: str = "all") -> dict[str, Any]:
    """The receipt of a crawl, and the end of each of its tasks by path."""
    base = site.url(HOST)
    done = folder.crawler("crawl", f"{base}/", "--workers", "1", "--json", CRAWLER_RAW=raw)
    assert done.returncode == 1, done.stderr  # three of its pages can never be fetched
    receipt: dict[str, Any] = json.loads(done.stdout)
    with folder.lpm() as lpm:
        tasks = list(lpm.tasks.select(lpm.jobs.named(receipt["job"])))
    # A sitemap that a page links to is two tasks with one URL.
    receipt["ends"] = {
        ("sitemap " * (task["role"] == "sitemap")) + task["url"].removeprefix(base): (
            task["reason"] or task["status"]
        )
        for task in tasks
    }
    assert len(receipt["ends"]) == len(tasks)
    return receipt


def asked(site: Running) -> dict[str, int]:
    """How often each path was asked for."""
    return {name.partition(HOST)[2]: count for name, count in site.requests(HOST).items()}


def test_every_redirect_ends_where_it_should(folder: Folder, site: Running) -> None:
    """A target is a task of its own, fetched once however many lead there; out of scope it is left
    out, and an endless chain is cut."""
    receipt = crawl(folder, site)

    ends = receipt["ends"]
    assert (ends["/old"], ends["/older"], ends["/new"]) == ("redirected", "redirected", "completed")
    assert (ends["/out"], ends["/cookie"], ends["/members"]) == (
        "out_of_scope", "completed", "completed",
    )  # fmt: skip
    assert (ends["/circle"], ends["/circle/2"]) == ("redirected", "too_many_redirects")
    assert (ends["/private"], ends["/missing"]) == ("robots", "http_404")
    assert (ends[f"{ENDLESS}9"], ends[f"{ENDLESS}10"]) == ("redirected", "too_many_redirects")
    assert f"{ENDLESS}11" not in ends
    assert ends["sitemap /robots.txt"] == ends["sitemap /sitemap.xml"] == "sitemap"
    assert ends["/dated"] == "completed"  # by a sitemap that the start page links to, too
    assert asked(site)["/new"] == 1
    assert receipt["crawl"]["bad"] == 3
    pages = {result["final_url"] for result in folder.results()}
    assert f"{site.url(HOST)}/cookie?PHPSESSID=1" in pages
    why = folder.crawler("why", f"{site.url(HOST)}/new").stdout
    assert f"came by      role index, url {site.url(HOST)}/old" in why


@pytest.mark.parametrize("raw", ["all", "none"])
def test_a_page_that_has_not_changed_keeps_its_links(
    folder: Folder, site: Running, raw: str
) -> None:
    """By the word of the server or of a sitemap it is not read again, and what only it links to is
    found all the same; without stored bytes it is read again."""
    first = crawl(folder, site, raw)
    before = asked(site)

    second = crawl(folder, site, raw)
    more = {path: count - before.get(path, 0) for path, count in asked(site).items()}

    assert second["ends"] == first["ends"]
    assert {"/behind-etag", "/behind-dated"} <= second["ends"].keys()
    verdicts = {
        result["url"].removeprefix(site.url(HOST)): result["verdict"]
        for result in folder.results()
        if result["job"] == second["job"]
    }
    unchanged = "unchanged" if raw == "all" else "ok"
    assert (verdicts["/etag"], verdicts["/dated"]) == (unchanged, unchanged)
    assert (verdicts["/future"], verdicts["/behind-etag"]) == ("ok", "ok")
    assert (more["/etag"], more["/dated"]) == (1, int(raw == "none"))
    assert (first["unchanged"], second["unchanged"]) == (0, 2 * (raw == "all"))

    third = crawl(folder, site, raw)
    assert third["ends"] == first["ends"]
    assert asked(site)["/dated"] == before["/dated"] + 2 * (raw == "none")
    dated = [result for result in folder.results() if result["url"].endswith("/dated")]
    if raw == "all":
        assert len({result["scraped_at"] for result in dated}) == 1  # when it was really fetched
        told = folder.crawler("crawl", f"{site.url(HOST)}/", "--workers", "1").stdout
        assert "pages collected, 2 unchanged; results in" in told


def test_a_limit_is_kept_and_named(folder: Folder, site: Running) -> None:
    """Beside sitemaps and redirects; the summary names what is left out."""
    limited = ("crawl", f"{site.url(HOST)}/", "--limit", "3", "--workers", "1")
    receipt = json.loads(folder.crawler(*limited, "--json").stdout)

    assert receipt["crawl"]["pages"] == 3
    assert [each["guard"] for each in receipt["crawl"]["left_out"]] == ["limit"]
    assert "guard limit:" in folder.crawler(*limited).stdout


def test_a_shorter_way_that_is_found_late_brings_links_back(folder: Folder, pages: Pages) -> None:
    """With --depth, the links of a page that was fetched first by a longer way are followed as far
    as the shortest way allows, and no page is fetched twice."""
    links = {
        "/": ["/a", "/b"],
        "/a": ["/x"],
        "/b": ["/c"],
        "/c": ["/x"],
        "/x": ["/y"],
        "/y": ["/z"],
    }
    for path, targets in links.items():
        text = "".join(f"<li><a href={target}>{target}</a>" for target in targets)
        pages.answers[path] = Answer(parcel(1, path) + text, headers=HTML)
    pages.answers["/z"] = Answer(parcel(1, "/z"), headers=HTML)

    def rule(path: str) -> None:
        if path == "/a":
            url = f"{pages.url}/x"
            wait_for(lambda: any(each["url"] == url for each in folder.results()), 60, "the page")

    pages.rule = rule
    command = ("crawl", f"{pages.url}/", "--sitemap", "skip", "--workers", "1", "--depth", "3")
    done = folder.crawler(*command)

    assert done.returncode == 0, done.stderr
    depths = {result["url"].removeprefix(pages.url): result["depth"] for result in folder.results()}
    assert depths == {"/": 0, "/a": 1, "/b": 1, "/c": 2, "/x": 2, "/y": 3}
    assert "1 page read again for links" in done.stdout
    assert set(Counter(pages.paths()).values()) == {1}


@pytest.mark.parametrize(
    ("limited", "raw"), [("limit", "all"), ("limit", "none"), ("depth", "all"), ("site", "all")]
)
def test_a_limit_that_is_raised_brings_back_what_it_left_out(
    folder: Folder, pages: Pages, limited: str, raw: str
) -> None:
    """While the crawl is open, with the next command: every page comes once, and none is fetched
    again but those that are not stored."""
    paths = {f"/list/{n}": [f"/item/{n}{k}" for k in range(5)] for n in range(5)}
    paths["/"] = list(paths)
    for path, targets in paths.items():
        text = "".join(f"<li><a href={target}>{target}</a>" for target in targets)
        pages.answers[path] = Answer(parcel(1) + text, headers=HTML)
    for n in range(25):
        pages.answers[f"/item/{n // 5}{n % 5}"] = Answer(parcel(n), headers=HTML)
    file = folder.path / "config" / "sites" / "here.yaml"
    file.parent.mkdir(parents=True)
    site = "hosts: [127.0.0.1]\n"
    file.write_text(f"{site}limit: 8\n" if limited == "site" else site)
    low = {"limit": ("--limit", "8"), "depth": ("--depth", "1"), "site": ()}[limited]
    command = ("crawl", f"{pages.url}/", "--sitemap", "skip", "--workers", "1")
    is_over = threading.Event()

    def hold(path: str) -> None:
        if path == "/list/4":
            is_over.wait(600)

    pages.rule = hold
    first = folder.start("crawler", *command, *low, CRAWLER_RAW=raw)
    wait_for(lambda: folder.data.exists() and len(folder.results()) > 4, 60, "five pages")
    first.terminate()
    first.wait(60)
    is_over.set()
    assert folder.books().open

    file.write_text(site)
    done = folder.crawler(*command, CRAWLER_RAW=raw)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "will be read again, from the store, for links left out before" in done.stderr
    assert "31 of 31 pages collected" in done.stdout
    assert "guard" not in done.stdout
    asked = Counter(each.path for each in pages.asked if each.path != "/robots.txt")
    found = Counter(result["url"].removeprefix(pages.url) for result in folder.results())
    assert (len(found), set(found.values())) == (31, {1})
    if raw == "all":
        assert {path for path, times in asked.items() if times > 1} <= {"/list/4"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("nowhere",), "is no site, and no URL"),
        (("ftp://a.example/",), "only http and https are fetched"),
        (("http://a.example/", "--include", "("), "not a regular expression"),
        (("http://a.example/", "--rows", "rows.csv"), "no form of these sites takes a value"),
        (("https://www.gov.uk/", "--subdomains"), "belong to different owners"),
        ((), "Missing argument"),
    ],
)
def test_bad_input(tmp_path: Path, args: tuple[str, ...], message: str) -> None:
    """It is refused in one line, with exit code 2, and no job is made."""
    folder = Folder(tmp_path)
    done = folder.crawler("crawl", *args)

    assert (done.returncode, folder.data.exists()) == (2, False)
    assert message in done.stderr.splitlines()[-1]
