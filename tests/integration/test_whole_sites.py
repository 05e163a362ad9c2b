"""Whole sites through `crawl`: every page that can be reached, each once, and no end in traps."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crawler.examples.county import PASSWORD, USER, County
from crawler.examples.server import Running
from tests.support.graph import Graph
from tests.support.pages import Answer, Pages, parcel
from tests.support.stack import Folder
from tests.support.traps import Links

SIZE = 120
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def sites() -> Iterator[Running]:
    """The graph, the traps and the page with every kind of link."""
    with Running("tests.support.traps", "--size", SIZE) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    folder = Folder(tmp_path, CRAWLER_PAGES="16")
    yield folder
    folder.stop()


def _crawl(folder: Folder, *args: str) -> dict[str, Any]:
    """The receipt of a crawl."""
    done = folder.crawler("crawl", *args, "--workers", "1", "--job", "whole", "--json")
    assert done.returncode in (0, 1), done.stderr
    receipt: dict[str, Any] = json.loads(done.stdout)
    return receipt


def _collected(folder: Folder) -> Counter[str]:
    """How many results each URL has."""
    files = (folder.data / "pending").glob("*.json")
    return Counter(json.loads(file.read_text())["url"] for file in files)


def test_every_page_of_a_graph_is_collected_and_fetched_once(
    folder: Folder, sites: Running
) -> None:
    """From one start, all pages come, although each is linked from ten others."""
    graph = Graph(SIZE)
    base = sites.url(graph.host)

    _crawl(folder, base + graph.path(0))

    assert _collected(folder) == Counter(graph.urls(base))
    asked = {name: n for name, n in sites.requests(graph.host).items() if "/node/" in name}
    assert set(asked.values()) == {1}


def test_only_links_that_may_be_followed_are(folder: Folder, sites: Running) -> None:
    """Base, fragments, case and spaces are understood; nofollow, scripts, comments, mail and forms
    lead nowhere."""
    _crawl(folder, sites.url(Links.host) + "/")

    asked = {name.partition(Links.host)[2] for name in sites.requests(Links.host)}
    assert asked - {"/robots.txt", "/sitemap.xml", "/frame"} == Links.FOUND


def _guards(receipt: dict[str, Any]) -> set[str]:
    """The guards that have left out links."""
    return {each["guard"] for each in receipt["crawl"]["left_out"]}


def test_a_site_without_end_ends_at_its_limits(folder: Folder, sites: Running) -> None:
    """The crawl stops at its limit of pages, and says which guards have left out what."""
    base, limit = sites.url("trap.localhost"), 600

    receipt = _crawl(folder, f"{base}/", "--limit", str(limit), "--exclude", "/(many|million)/")

    no_pages = ("/robots.txt", "/sitemap.xml")
    asked = [name for name in sites.requests("trap.localhost") if not name.endswith(no_pages)]
    redirects = receipt["reasons"]["skipped"]["redirected"]
    assert receipt["crawl"]["pages"] <= limit
    assert len(asked) <= limit + redirects <= 2 * limit
    assert _guards(receipt) >= {"limit", "session_parameter", "calendar"}
    assert len([name for name in asked if "/session/" in name]) <= 21
    assert len([name for name in asked if "/path-session/" in name]) <= 21
    assert not [name for name in asked if "PHPSESSID" in name or "jsessionid" in name]


def test_traps_that_guards_know_need_no_limit(folder: Folder, sites: Running) -> None:
    """A page of countless links, one that is too much for the parser, a path that goes in circles
    and a chain of redirects: the crawl ends by itself and names the guards."""
    base = sites.url("trap.localhost")
    starts = [f"{base}/{area}/" for area in ("many", "million", "repeat", "redirect")]

    receipt = _crawl(folder, *starts, "--limit", "0", "--exclude", r"/many/\d")

    assert _guards(receipt) == {"links_per_page", "repeated_path"}
    assert _collected(folder)[starts[0]] == 1
    assert len([name for name in sites.requests("trap.localhost") if "/redirect/" in name]) < 50


def test_every_row_is_searched_for_by_itself(folder: Folder) -> None:
    """Forms that share a URL and differ in their values are different pages: each row of the input
    leads to its own parcel. The other ways into the portal give the rest."""
    size = 40
    portal = County(size)
    with Running("crawler.examples", "--port", 0, "--size", size, "--session-pages", 5) as running:
        config = folder.path / "config" / "sites"
        config.mkdir(parents=True)
        text = (EXAMPLES / "sites" / "county.yaml").read_text()
        (config / "county.yaml").write_text(text.replace(":8090/", f":{running.port}/"))
        (folder.path / "secrets.txt").write_text(f"user={USER}\npassword={PASSWORD}\n")
        folder.write("rows.csv", ["parcel_id", *(row["parcel_id"] for row in portal.rows())])

        _crawl(folder, "county", "--rows", "rows.csv", "--secrets", "secrets.txt")

        expected = Counter(it.url for it in portal.listings(running.url(portal.host)))
        searched = running.requests(portal.host)["GET county.localhost/search"]
    found = _collected(folder)
    assert Counter({url: n for url, n in found.items() if "/parcel/" in url}) == expected
    assert searched == len(portal.rows())


def test_sitemaps_alone(folder: Folder) -> None:
    """With --sitemap only, the pages in sitemaps are fetched, and no start, form or link."""
    with Pages() as pages:
        listed = pages.parcels(3)
        pages.answers["/page/2"].body = parcel(2) + '<a href="/page/9">more</a>'
        urls = "".join(f"<url><loc>{url}</loc></url>" for url in listed)
        xml = {"Content-Type": "application/xml"}
        pages.answers["/sitemap.xml"] = Answer(f"<urlset>{urls}</urlset>", headers=xml)
        file = folder.path / "config" / "sites" / "here.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(
            f"start: [{pages.url}/, {{url: {pages.url}/form, form: {{values: {{q: x}}}}}}]\n"
        )

        for start in (pages.url, "here"):
            pages.asked.clear()
            receipt = _crawl(folder, start, "--sitemap", "only", "--rate", "none")

            assert receipt["crawl"]["pages"] == 3, start
            assert set(pages.paths()) == {"/sitemap.xml", "/page/0", "/page/1", "/page/2"}, start
