"""Formats of results through the doors: the coordinator, `scrape`, and the back end of the API."""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import crawler
from crawler import config
from crawler.api.backend import LedgerBackend
from crawler.batches import BatchOptions
from crawler.lpm import LocalPersistenceManager
from crawler.results.archive import prune
from tests.support.pages import Answer, Pages
from tests.support.stack import wait_for

FORMATS = ["text", "markdown", "html", "links"]
KEYS = {"content", "markdown", "html", "links"}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder, in an environment where loopback may be fetched from."""
    monkeypatch.setenv("CRAWLER_ALLOW_NETS", "127.0.0.0/8")
    monkeypatch.setenv("CRAWLER_RATE", "none")
    monkeypatch.setenv("CRAWLER_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def converters() -> list[psutil.Process]:
    """The living processes that convert pages."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            is_dead = child.status() == psutil.STATUS_ZOMBIE
            if not is_dead and "crawler.page_converter" in child.cmdline():
                found.append(child)
    return found


def check(result: dict[str, Any], n: int) -> None:
    """Check that a result has all formats of a parcel's page."""
    assert result["status"] == "success"
    assert result["content"].startswith(f"Parcel {n}\nParcel\t{n}\nOwner\tNora Whitfield\n")
    assert result["html"].startswith(f"<html><head><title>Parcel {n}</title>")
    assert result["markdown"].startswith(f"| Parcel | {n} |")
    assert result["links"] == []
    assert "format_errors" not in result


@pytest.mark.usefixtures("data")
def test_a_coordinator_gives_the_formats_of_its_options(pages: Pages) -> None:
    """Each success has its formats, in the order of the call, also if its URL comes twice; failures
    have none. Awaiting, streaming and the call without a loop give the same."""
    first, second = pages.parcels(2)
    urls = [second, f"{pages.url}/gone", first, "no url", second]
    options = {"formats": FORMATS}
    coordinator = crawler.CrawlCoordinator("formats")

    results = coordinator.crawl_many_sync(urls, options)

    for at, n in ((0, 1), (2, 0), (4, 1)):
        check(results[at], n)
        assert "data" not in results[at]
    for at in (1, 3):
        assert results[at]["status"] == "failed"
        assert not KEYS & results[at].keys()

    async def again() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        awaited = await coordinator.crawl_many(urls, options)
        return awaited, [result async for result in coordinator.stream(urls, options)]

    awaited, streamed = asyncio.run(again())
    assert awaited == results
    by_url = {result["url"]: result for result in results}
    assert len(streamed) == len(urls)
    assert all(by_url[result["url"]] == result for result in streamed)
    assert len(pages.paths()) == 3


@pytest.mark.usefixtures("data")
def test_processes_end_with_their_coordinator(pages: Pages) -> None:
    """A coordinator keeps its converters for the next call, and takes them with it."""
    urls = pages.parcels(1)
    coordinator = crawler.CrawlCoordinator()
    coordinator.crawl_many_sync(urls, {"formats": ["text"]})
    [kept] = converters()
    coordinator.crawl_many_sync(urls, {"formats": ["text"]})
    assert converters() == [kept]

    del coordinator

    wait_for(lambda: not converters(), 60, "the end of the converter")


@pytest.mark.usefixtures("data")
def test_records_start_no_process(pages: Pages) -> None:
    """With the record alone, no page is read and no converter started."""
    coordinator = crawler.CrawlCoordinator()

    [result] = coordinator.crawl_many_sync(pages.parcels(1))

    assert result["data"]["title"] == "Parcel 0"
    assert not KEYS & result.keys()
    assert not converters()


@pytest.mark.usefixtures("data")
def test_scrape_gives_markdown(pages: Pages) -> None:
    """`scrape` gives one page as Markdown: its main content, or the whole page; with the record, if
    that is asked for, too."""
    body = f"<nav><a href=/menu>Menu</a></nav><article><h1>Mill</h1><p>{'It turns. ' * 40}"
    pages.answers["/mill"] = Answer(f"<html><body>{body}")

    main = crawler.scrape(f"{pages.url}/mill", {"formats": ["markdown", "record"]})
    whole = crawler.scrape(
        f"{pages.url}/mill", {"formats": ["markdown"], "only_main_content": False}
    )

    assert main["markdown"].startswith("# Mill")
    assert main["data"]["text"].startswith("Mill It turns.")
    assert whole["markdown"].startswith(f"[Menu]({pages.url}/menu)")


def test_a_page_that_is_gone_has_a_reason(data: Path, pages: Pages) -> None:
    """After `prune`, results keep their records, and say why there is no other format."""
    coordinator = crawler.CrawlCoordinator("pruned")
    options = {"formats": ["record", "html", "links"]}
    [before] = coordinator.crawl_many_sync(pages.parcels(1), options)
    with contextlib.closing(LocalPersistenceManager(data)) as lpm:
        assert prune(lpm, time.time() + 60, dry_run=False).results == 1

    [after] = coordinator.crawl_many_sync(pages.parcels(1), options)

    assert before["html"]
    assert after["status"] == "success"
    assert after["data"] == before["data"]
    assert after["format_errors"] == dict.fromkeys(
        ("html", "links"), "the page was removed by prune"
    )


@pytest.mark.usefixtures("data")
def test_a_page_that_was_not_stored_has_a_reason(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without stored pages, the reason names the setting."""
    monkeypatch.setenv("CRAWLER_RAW", "none")

    [url] = pages.parcels(1)
    result = crawler.scrape(url, {"formats": ["text"]})

    assert result["status"] == "success"
    assert result["format_errors"] == {
        "text": "the page was not stored (CRAWLER_RAW=all stores pages)"
    }


@pytest.mark.usefixtures("data")
def test_the_back_end_converts_the_pages_of_its_results(pages: Pages) -> None:
    """Results by cursor have their formats; stopping ends the converters."""
    backend = LedgerBackend(config.load())
    backend.start()
    options = BatchOptions(formats=("text", "markdown", "html", "links"))
    backend.submit("", "api", pages.parcels(5), options, distributed=False)

    def is_done() -> bool:
        state = backend.progress("", "api")
        return state is not None and state.done == 5

    wait_for(is_done, 60, "the end of the session")
    found = backend.results("", "api")
    backend.stop()

    assert found is not None
    assert len(found.results) == 5
    for result in found.results:
        check(result, int(result["url"].rpartition("/")[2]))
    wait_for(lambda: not converters(), 60, "the end of the converters")
