"""Pages of one crawl that have one key and different records: the listing does not change to and
fro, and the user is told."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from crawler.db.connection import writing
from crawler.db.listing_views import Conflicts
from crawler.db.owners import OwnerState
from crawler.models import Job, Task
from crawler.sites.listingfile import Listings
from tests.support.listings import LIST, SITE, Market, record, seen, url

ROOT = Path(__file__).parents[2]
MINE, OTHER = url("mine"), url("other")
"""Two pages with the key 1."""
FLAT, GARAGE = record(1, 100), record(1, 20, city="Varna")
"""What they show."""


@pytest.fixture
def market(tmp_path: Path) -> Market:
    return Market(tmp_path)


def crawl(market: Market, *shown: tuple[str, dict[str, Any] | None]) -> Job:
    """A whole crawl with these pages, which are stored one after the other; None is a 404."""
    job = market.begin([], lists=(LIST, *(page for page, _ in shown)))
    tasks = market.claim()
    for page, given in shown:
        task = tasks[page]
        market.store(market.show(task, given) if given else market.fail(task))
    market.store(market.show(tasks[LIST]))
    market.end()
    return job


def told(market: Market, job: Job | None = None) -> list[tuple[int, str, tuple[str, str]]]:
    found = market.lpm.listings.conflicts(job)
    assert {each.site for each in found} <= {SITE}
    return [(each.keys, each.key, each.urls) for each in found]


def test_the_first_page_of_a_crawl_counts(market: Market) -> None:
    """The other one changes nothing, is told, and its result is stored as it is."""
    job = crawl(market, (MINE, FLAT), (OTHER, GARAGE), (url("third"), record(1, 30)))

    assert (market.kinds(1), market.prices(1)) == (["new"], [])
    assert (market.listing(1)["url"], market.listing(1)["record"]) == (MINE, FLAT)
    [(keys, key, (first, second))] = told(market)
    assert told(market) == told(market, job)
    assert (keys, key, first) == (1, "1", MINE)
    assert second in (OTHER, url("third"))
    stored = {each["url"]: each["data"] for each in market.lpm.results.read()}
    assert (stored[MINE], stored[OTHER]) == (FLAT, GARAGE)


def test_the_page_that_counted_last_time_counts_again(market: Market) -> None:
    """Whichever comes first; what changes on it is a change."""
    crawl(market, (MINE, FLAT), (OTHER, GARAGE))
    crawl(market, (OTHER, GARAGE), (MINE, FLAT))
    assert (market.kinds(1), market.listing(1)["unchanged"]) == (["new"], 1)

    cheaper = record(1, 90)
    crawl(market, (OTHER, record(1, 15)), (MINE, cheaper))

    assert (market.kinds(1), market.prices(1)) == (["new", "changed"], [(100.0, 90.0)])
    assert told(market) == [(1, "1", (MINE, OTHER))]


def test_a_slow_page_is_told_too(market: Market) -> None:
    """Of two workers, the one whose page was fetched first may be the second to store it."""
    market.begin([], lists=(MINE, OTHER))
    tasks = market.claim()
    now = market.clock.now
    market.store(market.show(tasks[MINE], FLAT, now))
    market.store(market.show(tasks[OTHER], GARAGE, now - 10))
    market.end()
    assert market.kinds(1) == ["new"]
    assert told(market) == [(1, "1", (MINE, OTHER))]


@pytest.mark.parametrize("fetched", [True, False], ids=["304", "not asked for"])
def test_pages_that_are_as_they_were_change_nothing(market: Market, fetched: bool) -> None:
    """The other page has its own record from before; the listing keeps its own page."""
    crawl(market, (MINE, FLAT), (OTHER, GARAGE))
    before = market.listing(1)
    for order in ((OTHER, MINE), (MINE, OTHER)):
        job = market.begin([], lists=(LIST, MINE, OTHER), recrawl=True)
        tasks = market.claim()
        for page in order:
            known = FLAT if page == MINE else GARAGE
            market.store(_kept(market, tasks[page], known, fetched))
        market.store(market.show(tasks[LIST]))
        market.end()

        assert market.kinds(1) == ["new"]
        assert (market.listing(1)["url"], market.listing(1)["record"]) == (MINE, FLAT)
        assert market.listing(1)["task"] == tasks[MINE].id
        assert market.listing(1)["last_seen"] > before["last_seen"]
        assert told(market, job) == [(1, "1", (MINE, OTHER))]


def _kept(market: Market, task: Task, known: dict[str, Any], fetched: bool) -> Any:
    """The outcome of a page that is as it was."""
    if task.known is None:  # a page without a validator is fetched
        return market.show(task, known)
    return market.keep(task, known, fetched)


def test_a_page_that_is_fetched_again_counts(market: Market) -> None:
    """The same URL shows what is new on it, also within one crawl."""
    market.begin([], lists=(MINE, OTHER))
    tasks = market.claim()
    market.store(market.show(tasks[MINE], FLAT), market.show(tasks[OTHER], GARAGE))
    db = market.lpm.store.durable
    with writing(db):  # as after a repair that has lost the result
        db.execute("DELETE FROM results WHERE task = ?", (tasks[MINE].id,))
        db.execute("DELETE FROM outbox WHERE task = ?", (tasks[MINE].id,))
        db.execute("UPDATE tasks SET status = 'pending' WHERE id = ?", (tasks[MINE].id,))

    market.store(market.show(market.claim()[MINE], record(1, 90)))

    assert market.prices(1) == [(100.0, 90.0)]


def test_another_url_with_the_same_record_is_normal(market: Market) -> None:
    """Also if both change between two crawls, or only what is ignored differs."""
    crawl(market, (MINE, FLAT), (OTHER, FLAT | {"views": 9}))
    crawl(market, (OTHER, record(1, 90)), (MINE, record(1, 90, views=3)))
    assert (market.kinds(1), told(market)) == (["new", "changed"], [])


def test_pages_that_agree_again_are_told_no_more(market: Market) -> None:
    """Although the one that does not count came first."""
    crawl(market, (MINE, FLAT), (OTHER, GARAGE))
    job = crawl(market, (OTHER, record(1, 90)), (MINE, record(1, 90)))
    assert (market.prices(1), told(market), told(market, job)) == ([(100.0, 90.0)], [], [])


@pytest.mark.parametrize("old", [None, "not linked"], ids=["404", "not linked"])
def test_a_listing_that_moves_between_crawls_is_normal(market: Market, old: str | None) -> None:
    """Its price on the new page is news, and its old page lets it not be gone."""
    crawl(market, (MINE, FLAT))
    pages = [(OTHER, record(1, 90)), (MINE, None)]
    crawl(market, *(pages[:1] if old else pages))
    assert (market.kinds(1), market.prices(1)) == (["new", "changed"], [(100.0, 90.0)])
    assert (market.listing(1)["url"], told(market)) == (OTHER, [])


@pytest.mark.parametrize("old", [None, "not linked"], ids=["404", "not linked"])
def test_the_other_page_counts_when_the_first_is_gone(market: Market, old: str | None) -> None:
    """One crawl later, because the first may only be late; meanwhile the listing is not gone."""
    crawl(market, (MINE, FLAT), (OTHER, GARAGE))
    pages = [(OTHER, GARAGE), (MINE, None)]
    for expected in (["new"], ["new", "changed"]):
        crawl(market, *(pages[:1] if old else pages))
        assert (market.kinds(1), market.gone()) == (expected, set())
    assert (market.listing(1)["url"], told(market)) == (OTHER, [])


def test_items_of_two_lists_may_differ(market: Market) -> None:
    """The list that showed an item first counts, although both name the item's own URL."""
    rules = Listings(key=("id",), each="cards")

    def show(task: Task, *cards: dict[str, Any]) -> None:
        shown = {"cards": [card | {"url": MINE} for card in cards]}
        market.store(market.show(task, shown, listings=seen(shown, task.url, rules)))

    second = f"{LIST}/2"
    for number in range(3):
        market.begin([], lists=(LIST, second))
        tasks = market.claim()
        both = [(LIST, (FLAT,)), (second, (GARAGE, record(2)))]
        for page, cards in both if number % 2 else both[::-1]:
            show(tasks[page], *cards)
        market.end()

    assert (market.kinds(1), market.kinds(2)) == (["new"], ["new"])
    assert told(market) == [(1, "1", (second, LIST))]
    market.begin([], lists=(LIST,))
    show(market.claim()[LIST], record(2, 70))  # it moves to another page of the list
    assert market.prices(2) == [(100.0, 70.0)]


def test_a_corrected_key_ends_the_listings_of_the_old_one(market: Market) -> None:
    """Their pages are those of other listings now."""
    pages = [f"{LIST}/flat/{n}" for n in range(12)]
    crawl(market, *((page, record(n)) for n, page in enumerate(pages)))
    rules = Listings(key=("id", "city"))
    market.begin([], lists=(LIST, *pages))
    tasks = market.claim()
    for n, page in enumerate(pages):
        found = seen(record(n), page, rules)
        market.store(market.show(tasks[page], record(n), listings=found))
    market.store(market.show(tasks[LIST]))
    market.end()
    assert market.gone() == {str(n) for n in range(12)}


def test_two_processes_and_a_kill_leave_one_page(tmp_path: Path) -> None:
    """Pages with one key that are stored at the same time; page n has the key n modulo 10."""
    market = Market(tmp_path)
    market.begin(range(40), lists=())
    argv = [sys.executable, "-m", "tests.support.listings", str(tmp_path)]
    env = os.environ | {"CRAWLER_FAILPOINT": "committing:15"}
    killed = subprocess.run([*argv, "doomed", "0", "10"], cwd=ROOT, check=False, env=env)
    assert killed.returncode == -9
    note = OwnerState("doomed", {}, "", 0, frozenset(), "")
    assert len(market.lpm.dispatch.free(note, market.clock.now)) == 1

    both = [subprocess.Popen([*argv, who, "0", "10"], cwd=ROOT) for who in ("left", "right")]
    assert [process.wait() for process in both] == [0, 0]
    market.end()

    assert [each["kind"] for each in market.stored.changes(SITE)] == ["new"] * 10
    assert (len(market.stored.of_site(SITE)), market.stored.prices(SITE)) == (10, [])
    [found] = market.lpm.listings.conflicts()
    assert found.keys == 10
    assert market.lpm.store.db.value("SELECT count(*) FROM listing_conflicts") == 30


def test_one_line_tells_of_them() -> None:
    """With the site, the number of keys, both pages, and what to do."""
    from crawler.cli.output import conflicts_text

    text = conflicts_text(Conflicts("imoti", 1_204, "77\x1b", ("http://a/1", "http://a/2")))
    assert text == (
        "imoti: 1,204 keys of listings are on several pages that differ; the first of them counts, "
        "and `key` in the site's file should tell them apart: 77\\x1b is on http://a/1 and "
        "http://a/2"
    )
    assert msgspec.json.decode(msgspec.json.encode(Conflicts("a", 1, "k", ("x", "y"))))["keys"] == 1
