"""What happens to listings: each change once, in the commit that shows it, whatever is killed."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from crawler.db import listings
from crawler.db.connection import writing
from crawler.db.owners import OwnerState
from crawler.models import LeftOut, Link, Role, TaskStatus
from crawler.sites.listingfile import Listings
from crawler.urls import parse
from tests.support.listings import BASE, BEGAN, LIST, RULES, SITE, Market, record, seen, url
from tests.support.tasks import page

ROOT = Path(__file__).parents[2]


@pytest.fixture
def market(tmp_path: Path) -> Market:
    return Market(tmp_path)


# Seen


def test_a_listing_is_new_once(market: Market) -> None:
    """Its first price is no change, and its page and time are those of the result."""
    job = market.crawl(record(1))

    it = market.listing(1)
    assert (it["url"], it["record"], it["price"], it["currency"]) == (
        url(1), record(1), 100.0, "EUR",
    )  # fmt: skip
    assert it["first_seen"] == it["last_seen"] == it["fetched_at"]
    assert (it["changed_at"], it["gone_at"], it["sold_at"]) == (None, None, None)
    assert (it["unchanged"], it["job_id"]) == (0, job.id)
    result = market.lpm.results.of_task(it["task"])
    assert result is not None
    assert (result["data"], result["raw_html_hash"]) == (record(1), it["page_hash"])
    assert (market.kinds(1), market.prices(1)) == (["new"], [])


def test_a_change_is_noted_with_its_fields(market: Market) -> None:
    """Once for each page that shows one, with the price before it; a page without a price keeps the
    last one."""
    market.crawl(record(1))
    market.crawl(record(1, 90, city="Varna"))
    market.crawl(record(1, None, city="Varna"))
    market.crawl(record(1, 80, city="Varna"))

    assert market.kinds(1) == ["new", "changed", "changed", "changed"]
    assert market.prices(1) == [(100.0, 90.0), (90.0, 80.0)]
    fields = [each["fields"] for each in market.stored.changes(SITE)]
    eur = [{"amount": amount, "currency": "EUR"} for amount in (100, 90)]
    assert fields[1] == {"price": eur, "city": ["Sofia", "Varna"]}
    assert fields[2] == {"price": [eur[1], None]}
    it = market.listing(1)
    assert it["changed_at"] == it["last_seen"]
    assert (it["price"], it["unchanged"]) == (80.0, 0)


def test_another_currency_is_another_price(market: Market) -> None:
    """But one that becomes known is not."""
    for currency in (None, "EUR", "BGN"):
        market.crawl(record(1) | {"price": {"amount": 100, "currency": currency}})

    [(before, now)] = [
        (each["previous_currency"], each["currency"]) for each in market.stored.prices(SITE)
    ]
    assert (before, now) == ("EUR", "BGN")


def test_fetches_that_change_nothing_are_counted(market: Market) -> None:
    """A field that is ignored changes nothing; a change begins the count anew."""
    for views in (1, 2, 3):
        market.crawl(record(1, views=views))
    assert (market.listing(1)["unchanged"], market.kinds(1)) == (2, ["new"])
    assert market.listing(1)["record"]["views"] == 3

    market.crawl(record(1, 90))
    assert market.listing(1)["unchanged"] == 0


def test_other_fields_that_count_are_no_change(market: Market) -> None:
    """After an edit of the site's file, the hash differs, and the listing does not."""
    market.crawl(record(1, views=1))
    market.begin([1])
    task = market.claim()[url(1)]
    found = seen(record(1, views=1), rules=Listings(key=("id",), changes=("price",)))

    market.store(market.show(task, record(1, views=1), listings=found))

    assert (market.kinds(1), market.listing(1)["unchanged"]) == (["new"], 1)
    assert market.listing(1)["record_hash"] == found[0].record_hash


def test_a_page_without_a_new_answer_counts_as_seen(market: Market) -> None:
    """The answer 304 is a fetch that changed nothing; a page that was not asked for is none."""
    market.crawl(record(1))
    fetched_at = market.listing(1)["fetched_at"]
    for fetched in (False, True):
        market.begin([1], recrawl=True)
        task = market.claim()[url(1)]
        market.store(market.keep(task, record(1), fetched))
        it = market.listing(1)
        assert (it["unchanged"], it["fetched_at"] > fetched_at) == (int(fetched), fetched)
        assert it["last_seen"] > fetched_at
        assert it["task"] == task.id
    assert market.kinds(1) == ["new"]
    result = market.lpm.results.of_task(market.listing(1)["task"])
    assert result is not None
    assert result["raw_html_hash"] == market.listing(1)["page_hash"]


def test_a_slow_twin_changes_nothing(market: Market) -> None:
    """Of two pages, the one that was fetched later counts, whichever is stored first."""
    market.begin([1], name="one")
    slow = market.claim()[url(1)]
    market.begin([1], name="two")
    fast = market.claim()[url(1)]

    market.store(market.show(fast, record(1, 90), BEGAN + 500))
    market.store(market.show(slow, record(1, 100), BEGAN + 400))

    assert (market.listing(1)["price"], market.kinds(1), market.prices(1)) == (90.0, ["new"], [])


def test_a_sold_listing_is_noted_once(market: Market) -> None:
    """And again if it was on offer in between."""
    market.crawl(record(1, status="new"))
    for status in ("sold", "SOLD", "new", "sold"):
        market.crawl(record(1, status=status))

    assert market.kinds(1) == ["new", "changed", "sold", "changed", "changed", "changed", "sold"]
    assert market.listing(1)["sold_at"] == market.listing(1)["last_seen"]


def test_the_items_of_a_list_are_listings(market: Market) -> None:
    """They have no page of their own: a list that shows others lets them be gone."""
    rules = Listings(key=("id",), each="cards")

    def crawl(*numbers: int) -> None:
        market.begin()
        [task] = market.claim().values()
        cards = {"cards": [record(n) for n in numbers]}
        market.store(market.show(task, cards, listings=seen(cards, rules=rules)))
        market.end()

    crawl(1, 2)
    crawl(2, 3)

    assert market.gone() == {"1"}
    assert [market.kinds(n) for n in (1, 2, 3)] == [["new", "gone"], ["new"], ["new"]]
    assert market.listing(2)["url"] == LIST


# Gone


@pytest.mark.parametrize("reason", ["http_404", "http_410"])
def test_a_listing_whose_page_is_gone_is_gone(market: Market, reason: str) -> None:
    """Once, in the commit of that page, and back when it is seen again."""
    market.crawl(record(1), record(2))
    for _ in range(2):
        market.begin([1, 2])
        tasks = market.claim()
        market.store(market.fail(tasks[url(1)], reason), market.show(tasks[url(2)], record(2)))
        assert market.gone() == {"1"}

    market.crawl(record(1, 90), record(2))

    assert market.kinds(1) == ["new", "gone", "back", "changed"]
    assert (market.prices(1), market.gone()) == ([(100.0, 90.0)], set())
    assert market.kinds(2) == ["new"]


@pytest.mark.parametrize("reason", ["http_500", "timeout", "soft_404", "http_403"])
def test_a_page_that_failed_says_nothing(market: Market, reason: str) -> None:
    """Only 404 and 410 mean that it is gone."""
    market.crawl(record(1))
    market.begin([1])
    market.store(market.fail(market.claim()[url(1)], reason))
    assert market.gone() == set()


def test_a_missing_page_that_is_older_than_the_listing_says_nothing(market: Market) -> None:
    """Nor does a page of before it was gone bring it back."""
    market.crawl(record(1))
    tasks = []
    for _ in range(4):
        market.begin([1])
        tasks.append(market.claim()[url(1)])
    now = market.clock.now

    market.store(market.show(tasks[0], record(1, 90), now - 10))
    market.store(market.fail(tasks[1], at=now - 20))
    assert market.gone() == set()
    market.store(market.fail(tasks[2], at=now - 5))
    market.store(market.show(tasks[3], record(1, 80), now - 7))

    assert (market.gone(), market.kinds(1)) == ({"1"}, ["new", "changed", "gone"])


def test_what_a_whole_crawl_does_not_find_is_gone(market: Market) -> None:
    """Once, at its end; a listing that it found, but could not fetch, is not."""
    market.crawl(*map(record, range(5)))
    for _ in range(2):
        market.begin([0, 1, 2])
        tasks = market.claim()
        outcomes = [market.show(tasks[LIST]), market.fail(tasks[url(0)], "timeout")]
        outcomes += [market.show(tasks[url(n)], record(n)) for n in (1, 2)]
        market.store(*outcomes)
        market.end()
        assert market.gone() == {"3", "4"}

    market.crawl(*map(record, range(4)))

    assert market.gone() == {"4"}
    assert [market.kinds(n) for n in (0, 3, 4)] == [
        ["new"], ["new", "gone", "back"], ["new", "gone"],
    ]  # fmt: skip


def test_a_listing_that_was_gone_is_fetched(market: Market) -> None:
    """Whatever a sitemap or the interval of its site says: its page may be another one."""
    market.crawl(record(1), record(2))
    market.crawl(record(2))
    assert market.gone() == {"1"}
    market.begin([1, 2], recrawl=True)
    db = market.lpm.store.durable
    with writing(db):  # as by a sitemap
        db.execute("UPDATE tasks SET modified_at = 1 WHERE status = 'pending'")
    tasks = market.claim()

    assert tasks[url(1)].known is None
    assert tasks[url(2)].known is not None


def test_a_link_brings_a_listing_back(market: Market) -> None:
    """Also if its page was claimed before it was gone, and is kept."""
    market.crawl(record(1), record(2))
    market.begin([1], name="claimed before", recrawl=True)
    task = market.claim()[url(1)]
    market.clock.now += 60
    market.crawl(record(2))
    assert market.gone() == {"1"}

    market.store(market.keep(task, record(1)))

    assert (market.gone(), market.kinds(1)) == (set(), ["new", "gone", "back"])


@pytest.mark.parametrize(
    "lack", ["failed", "robots", "limit", "narrow", "open", "cancelled", "lost"]
)
def test_what_a_crawl_may_have_overlooked_is_not_gone(market: Market, lack: str) -> None:
    """If a list was not read, a limit left out links, or it was to find only a part."""
    market.crawl(record(1), record(2))
    job = market.begin([2], whole=lack != "narrow")
    tasks = market.claim()
    listed, item = market.show(tasks[LIST]), market.show(tasks[url(2)], record(2))
    if lack == "failed":
        listed = market.fail(tasks[LIST], "http_500")
    elif lack == "robots":
        listed = market.show(tasks[LIST], status=TaskStatus.SKIPPED, error_type="login_wall")
    elif lack == "limit":
        crawl = job.options.crawl
        listed = msgspec.structs.replace(
            listed, crawl=crawl, left_out=(LeftOut("limit", 3, url(9)),)
        )
    elif lack == "lost":
        db = market.lpm.store.durable
        with writing(db):
            db.execute(
                "INSERT INTO losses (job_id, at, kind, what) VALUES (?, 1, 'rows', 'a row')",
                (job.id,),
            )
    market.store(*([item] if lack == "open" else [listed, item]))
    if lack == "cancelled":
        market.lpm.jobs.hold(job, "cancelled", market.clock.now)
    market.end()

    assert market.gone() == set()


def test_too_many_at_once_are_gone_only_after_a_second_crawl(
    market: Market, caplog: pytest.LogCaptureFixture
) -> None:
    """More than half, and at least ten: a list that is broken must not end them all. A crawl that
    finds some again begins anew for these."""
    market.crawl(*map(record, range(20)))
    job = market.crawl(*map(record, range(5)))
    assert market.gone() == set()
    assert "has not found 15 listings of a, but they are many" in caplog.text
    with writing(market.lpm.store.durable):  # as by `tasks retry`
        market.lpm.store.durable.execute("UPDATE jobs SET status = 'open' WHERE id = ?", (job.id,))
    market.end()
    assert market.gone() == set()
    assert {market.listing(n)["missed"] for n in range(5, 20)} == {1}

    market.begin([*range(5), 5])
    tasks = market.claim()
    market.store(market.show(tasks[url(5)], record(5)))
    market.lpm.jobs.hold(market.lpm.jobs.all()[-1], "cancelled", market.clock.now)
    market.end()
    market.crawl(*map(record, range(5)))

    assert market.gone() == {str(n) for n in range(6, 20)}
    assert market.listing(5)["missed"] == 1
    assert market.kinds(6) == ["new", "gone"]


SECOND = f"{LIST}/2"
SKIPPED: dict[str, Any] = {"status": TaskStatus.SKIPPED, "listings": ()}


def crawl_two_lists(market: Market, on_second: list[int], **second: Any) -> None:
    """Crawl a list with listing 1 that leads to a second list, whose page has that outcome."""
    job = market.begin([])
    crawl = job.options.crawl

    def links(*found: tuple[str, Role]) -> tuple[Link, ...]:
        return tuple(Link(address=parse(text), role=role, depth=1) for text, role in found)

    first = links((SECOND, Role.INDEX), (url(1), Role.LISTING))
    market.store(market.show(market.claim()[LIST], links=first, crawl=crawl))
    tasks = market.claim()
    found = links(*((url(n), Role.LISTING) for n in on_second))
    outcome = market.show(tasks[SECOND], **({"links": found, "crawl": crawl} | second))
    market.store(outcome, market.show(tasks[url(1)], record(1)))
    market.store(*(market.show(task, record(task.url[-1])) for task in market.claim().values()))
    market.end()


def another_type(market: Market) -> dict[str, Any]:
    made = page(SECOND, b"{}")
    headers = (("Content-Type", "application/json"),)
    return {"page": msgspec.structs.replace(made, headers=headers, fetched_at=market.clock.now)}


@pytest.mark.parametrize(
    "second",
    [
        {**SKIPPED, "error_type": "robots"},
        {**SKIPPED, "error_type": "out_of_scope"},
        {**SKIPPED, "error_type": "redirected",
         "links": (Link(address=parse(LIST), role=Role.INDEX, hops=1),)},
        {"left_out": (LeftOut("nofollow", 2, url(2)),)},
        {"left_out": (LeftOut("url_length", 1, url(2)),)},
        {"site": (SITE, "2")},
        another_type,
    ],
    ids=["robots", "out of scope", "redirect", "nofollow", "long URL", "other rules", "other type"],
)  # fmt: skip
def test_a_list_that_is_not_read_as_before_lets_nothing_go_at_once(
    market: Market, second: Any
) -> None:
    """What only it led to stays; if the next whole crawl does not find that either, it is gone. A
    list that is read as before is believed."""
    crawl_two_lists(market, [2, 3])
    its = second(market) if callable(second) else second

    crawl_two_lists(market, [], **its)
    assert market.gone() == set()
    assert {market.listing(n)["missed"] for n in (2, 3)} == {1}
    crawl_two_lists(market, [2, 3])
    assert {market.listing(n)["missed"] for n in (1, 2, 3)} == {0}
    crawl_two_lists(market, [3])
    assert market.gone() == {"2"}
    crawl_two_lists(market, [], **its)
    crawl_two_lists(market, [], **its)

    assert market.gone() == {"2", "3"}
    assert market.kinds(2) == ["new", "gone"]
    assert market.kinds(3) == ["new", "gone"]


def test_a_clock_that_is_set_does_not_end_or_freeze_listings(market: Market) -> None:
    """What a crawl has seen is not missing from it, whatever the clock says; what was noted far
    ahead of the time does not hide what comes after it."""
    # Given a crawl whose clock is set back before the page of a listing without a URL is stored
    rules = Listings(key=("id",), each="cards")
    market.begin()
    market.clock.now -= 3600
    shown = {"cards": [record(7)]}
    market.store(market.show(market.claim()[LIST], listings=seen(shown, LIST, rules)))
    market.end()
    assert market.gone() == set()

    # When a page is stored while the clock is far ahead, and then others by the right time
    market.begin([1])
    ahead = market.clock.now + 400 * 86_400
    tasks = market.claim()
    market.store(market.show(tasks[url(1)], record(1), ahead), market.show(tasks[LIST]))
    market.end()
    market.crawl(record(1, 77))
    market.begin([1])
    tasks = market.claim()
    market.store(market.fail(tasks[url(1)]), market.show(tasks[LIST]))

    # Then they count
    assert market.prices(1) == [(100.0, 77.0)]
    assert "1" in market.gone()


def test_a_listing_that_has_moved_is_not_ended_by_its_old_page(market: Market) -> None:
    """Although the new page was fetched before the old one answered that it is gone."""
    market.crawl(record(1))
    moved = f"{BASE_OF_2}/moved"
    market.begin([1], lists=(LIST, moved))
    tasks = market.claim()
    fetched = market.clock.now
    market.store(market.fail(tasks[url(1)], at=fetched + 10))
    market.store(market.show(tasks[moved], record(1), fetched), market.show(tasks[LIST]))
    market.end()

    assert market.gone() == set()
    assert market.listing(1)["url"] == moved


def test_a_url_that_led_to_a_listing_keeps_it(market: Market) -> None:
    """A redirect to it, before or after the page was fetched, and the URL that it had before."""
    market.crawl(record(1), record(2))
    old = f"{url(1)}?old"
    job = market.begin([2], lists=(LIST, old))
    tasks = market.claim()
    link = Link(address=parse(url(1)), role=Role.LISTING, hops=1)
    redirect = market.show(
        tasks[old], status=TaskStatus.SKIPPED, error_type="redirected", links=(link,),
        crawl=job.options.crawl, listings=(),
    )  # fmt: skip
    market.store(market.show(tasks[LIST]), market.show(tasks[url(2)], record(2)), redirect)
    target = market.claim()[url(1)]
    assert target.hops == 1
    market.store(market.fail(target, "timeout"))
    market.end()
    assert market.gone() == set()

    market.begin([], lists=(LIST, old, f"{BASE_OF_2}/moved"))
    tasks = market.claim()
    market.store(
        market.show(tasks[LIST]),
        market.show(tasks[old]),
        market.show(tasks[f"{BASE_OF_2}/moved"], record(2)),
    )
    market.end()

    assert market.gone() == set()
    assert market.listing(2)["url"] == f"{BASE_OF_2}/moved"
    keys = market.lpm.store.db.column("SELECT url_key FROM listing_urls ORDER BY listing")
    assert keys == [parse(old).key, parse(url(2)).key]


BASE_OF_2 = "http://a.example/item/2"


EXPIRED = f"{BASE}/expired"


def crawl_with_redirects(market: Market, *given: Any, **options: Any) -> None:
    fetch_with_redirects(market, *given, **options)
    market.end()


def fetch_with_redirects(
    market: Market,
    redirects: dict[str, str],
    ends: dict[str, Any],
    records: Iterable[int] = (),
    **options: Any,
) -> None:
    """Crawl a list whose URLs redirect, or end so: with a record, or with a reason to fail."""
    job = market.begin(records, lists=(LIST, *redirects), **options)
    shown = ends | {url(n): record(n) for n in records} | {LIST: {}}
    while tasks := market.claim():
        for each, task in tasks.items():
            if each in redirects:
                link = Link(address=parse(redirects[each]), role=Role.LISTING, hops=task.hops + 1)
                outcome = market.show(
                    task, **SKIPPED, error_type="redirected", links=(link,),
                    crawl=job.options.crawl,
                )  # fmt: skip
            elif isinstance(shown[each], str):
                outcome = market.fail(task, shown[each])
            else:
                outcome = market.show(task, shown[each])
            market.store(outcome)


@pytest.mark.parametrize("reason", ["http_404", "http_410"])
@pytest.mark.parametrize("whole", [True, False])
def test_a_listing_that_redirects_to_a_page_that_is_gone_is_gone(
    market: Market, reason: str, whole: bool
) -> None:
    """Also through several redirects, if others redirect there, too, and if the crawl is not
    whole. A listing with a good page of its own that once led there is not."""
    # Given three listings, of which the third was at the address that is gone now
    market.crawl(record(1), record(2))
    crawl_with_redirects(market, {}, {EXPIRED: record(3)}, [1, 2])
    market.crawl(*map(record, (1, 2, 3)))
    assert market.listing(3)["url"] == url(3)

    # When two of them redirect there, one of them through the other
    redirects = {url(1): EXPIRED, f"{url(2)}?old": EXPIRED, url(2): url(1)}
    for _ in range(2):
        crawl_with_redirects(market, redirects, {EXPIRED: reason}, [3], whole=whole)

    # Then these are gone, once
    assert market.gone() == {"1", "2"}
    assert [market.kinds(n) for n in (1, 2, 3)] == [["new", "gone"], ["new", "gone"], ["new"]]
    market.crawl(*map(record, (1, 2, 3)))
    assert market.kinds(1) == ["new", "gone", "back"]


def test_a_listing_that_redirects_to_another_page_is_missing(market: Market) -> None:
    """As a flat that was sold, whose page leads to the list. The list still has its link, so only
    the second whole crawl is believed."""
    market.crawl(*map(record, (1, 2, 3)))
    redirects = {url(1): LIST, url(2): url(3)}

    crawl_with_redirects(market, redirects, {}, [3])
    assert market.gone() == set()
    assert [market.listing(n)["missed"] for n in (1, 2, 3)] == [1, 1, 0]
    crawl_with_redirects(market, redirects, {}, [3])

    assert market.gone() == {"1", "2"}
    assert market.kinds(3) == ["new"]


@pytest.mark.parametrize("end", [record(1), "timeout", "http_403"])
def test_a_listing_whose_redirect_shows_it_or_cannot_be_read_stays(
    market: Market, end: Any
) -> None:
    """It has moved, or nothing is known of its page."""
    market.crawl(record(1), record(2))
    for _ in range(3):
        crawl_with_redirects(
            market, {url(1): f"{url(1)}/a", f"{url(1)}/a": f"{url(1)}/b"}, {f"{url(1)}/b": end}, [2]
        )

    assert (market.gone(), market.kinds(1), market.listing(1)["missed"]) == (set(), ["new"], 0)


def test_a_later_parser_corrects_what_its_page_showed(market: Market) -> None:
    """That is no change, and its price has no history; what a later page has shown stays."""
    market.crawl(record(1), record(2))
    first = {n: market.listing(n)["task"] for n in (1, 2)}
    market.crawl(record(2, 90))

    db = market.lpm.store.durable
    with writing(db):
        for n, task in first.items():
            listings.correct(db, task, seen(record(n, 70, city="Ruse")), market.clock.now)
        listings.correct(db, first[1], seen(record(1, 70, city="Ruse")), market.clock.now)

    assert (market.listing(1)["price"], market.listing(1)["record"]["city"]) == (70.0, "Ruse")
    assert (market.kinds(1), market.prices(1)) == (["new", "gone", "corrected"], [])
    assert (market.listing(2)["price"], market.kinds(2)) == (90.0, ["new", "changed"])


# Rules that have changed

BY_RENT = msgspec.structs.replace(RULES, price="rent", sold={"status": ("let",)})


def offer(price: float, rent: float, status: str = "free") -> dict[str, Any]:
    return record(1, price, rent=rent, status=status)


def see_by_rent(market: Market, given: dict[str, Any]) -> None:
    market.begin([1])
    tasks = market.claim()
    shown = seen(given, url(1), BY_RENT)
    market.store(market.show(tasks[LIST]), market.show(tasks[url(1)], given, listings=shown))
    market.end()


def test_a_replay_under_other_rules_corrects_a_listing(market: Market) -> None:
    """Its record stays the same; its price has no history, and a second replay does nothing."""
    given = offer(100, 7, "let")
    market.crawl(given)
    task, db = market.listing(1)["task"], market.lpm.store.durable
    found = seen(given, url(1), BY_RENT)
    assert listings.stale_tasks(db, [task], seen(given, url(1))) == set()

    assert listings.stale_tasks(db, [task], found) == {task}
    with writing(db):
        assert listings.correct(db, task, found, market.clock.now) == 1
    assert listings.stale_tasks(db, [task], found) == set()
    see_by_rent(market, given)

    after = market.listing(1)
    assert (after["price"], after["sold_at"] is not None) == (7.0, True)
    assert (market.kinds(1), market.prices(1)) == (["new", "corrected"], [])
    assert market.stored.changes(SITE)[-1]["fields"] == {"price": [100, 7], "sold": [False, True]}


def test_a_page_without_a_currency_keeps_the_stored_one(market: Market) -> None:
    """In a crawl, and in a replay: that has nothing to correct."""
    market.crawl(record(1))
    given = record(1) | {"price": {"amount": 100}}
    market.crawl(given)
    task, db = market.listing(1)["task"], market.lpm.store.durable
    found = seen(given, url(1))

    stale = listings.stale_tasks(db, [task], found)
    with writing(db):
        corrected = listings.correct(db, task, found, market.clock.now)

    assert (stale, corrected) == (set(), 0)
    assert (market.listing(1)["price"], market.listing(1)["currency"]) == (100.0, "EUR")


@pytest.mark.parametrize(
    ("later", "kinds", "prices"),
    [
        (offer(100, 7, "let"), [], []),
        (offer(100, 8, "let"), ["changed"], [(7.0, 8.0)]),
        (offer(100, 100, "let"), ["changed"], [(7.0, 100.0)]),
        (offer(90, 7, "let"), ["changed"], []),
    ],
)
def test_a_crawl_compares_both_records_by_the_same_rules(
    market: Market, later: dict[str, Any], kinds: list[str], prices: list[Any]
) -> None:
    """So that a change of the rules is a correction, and a change of the page a change."""
    market.crawl(offer(100, 7, "let"))

    for _ in range(2):
        see_by_rent(market, later)

    assert market.kinds(1) == ["new", "corrected", *kinds]
    assert (market.prices(1), market.listing(1)["price"]) == (prices, float(later["rent"]))


def test_a_price_that_only_the_new_rules_know_is_a_first_one(market: Market) -> None:
    """The record before has no value for the field, and was read by another version of the file."""
    market.crawl(record(1, 100))
    given = offer(100, 7)
    market.begin([1])
    tasks = market.claim()
    shown: dict[str, Any] = {"listings": seen(given, url(1), BY_RENT), "site": (SITE, "2")}
    market.store(market.show(tasks[LIST]), market.show(tasks[url(1)], given, **shown))

    assert (market.prices(1), market.listing(1)["price"]) == ([], 7.0)


def crawl_with(
    market: Market, version: str, given: dict[str, Any], rules: Listings = RULES
) -> None:
    """Crawl listing 1 by a version of the site's file."""
    market.begin([1])
    tasks = market.claim()
    shown: dict[str, Any] = {"listings": seen(given, url(1), rules), "site": (SITE, version)}
    market.store(market.show(tasks[LIST]), market.show(tasks[url(1)], given, **shown))
    market.end()


COUNT_CITY = msgspec.structs.replace(RULES, changes=("city",))


@pytest.mark.parametrize("rules", [RULES, COUNT_CITY], ids=["price counts", "price does not"])
@pytest.mark.parametrize("after", [None, {"price": "on request"}])
def test_an_edit_of_the_file_forgets_no_last_price(
    market: Market, rules: Listings, after: dict[str, Any] | None
) -> None:
    """Whatever it changes beside the rule for the price: the last price stays, and the next one is
    compared with it."""
    crawl_with(market, "1", record(1, 100), rules)
    crawl_with(market, "1", record(1, None), rules)
    crawl_with(market, "2", record(1, None, city="Varna") | (after or {}), rules)
    assert (market.listing(1)["price"], market.listing(1)["currency"]) == (100.0, "EUR")

    crawl_with(market, "3", record(1, None, city="Ruse") | {"price": "ask us"}, rules)
    crawl_with(market, "4", record(1, 90, city="Ruse"), rules)

    assert (market.prices(1), market.listing(1)["price"]) == ([(100.0, 90.0)], 90.0)
    assert "corrected" not in market.kinds(1)


def test_a_price_of_other_rules_stays_until_there_is_another(market: Market) -> None:
    """The first price by the new rules has no history, however many pages come before it."""
    crawl_with(market, "1", record(1, 100))
    crawl_with(market, "2", record(1, 100, city="Varna"), BY_RENT)
    crawl_with(market, "2", record(1, None, city="Ruse"), BY_RENT)
    assert market.listing(1)["price"] == 100.0

    crawl_with(market, "2", record(1, None, city="Ruse", rent=7), BY_RENT)

    assert (market.prices(1), market.listing(1)["price"]) == ([], 7.0)


def test_a_corrected_listing_is_compared_again(market: Market) -> None:
    """Its pairs rest on the price: by a crawl as by a replay."""
    market.crawl(offer(100, 7, "let"))
    db = market.lpm.store.durable
    with writing(db):
        db.execute("UPDATE listings SET matched = 1")

    see_by_rent(market, offer(100, 7, "let"))

    assert market.kinds(1) == ["new", "corrected"]
    assert market.lpm.listing_pairs.to_match() == 1


# Scheduled crawls


def test_a_scheduled_crawl_knows_when_a_listing_was_fetched(market: Market) -> None:
    """Only such a crawl, and only for pages of listings whose stored page is there."""
    market.crawl(record(1), record(2))
    market.crawl(record(1), record(2))
    with market.lpm.store.errors(), writing(market.lpm.store.durable) as _:
        market.lpm.store.durable.execute(
            "UPDATE results SET raw_segment = 'lost.warc.gz' WHERE task = ?",
            (market.listing(2)["task"],),
        )
    market.begin([1, 2, 3], name="by hand")
    assert {task.known for task in market.claim().values()} == {None}

    market.begin([1, 2, 3], recrawl=True)
    tasks = market.claim()

    known = tasks[url(1)].known
    assert known is not None
    assert known.listing is not None
    assert (known.listing.fetched_at, known.listing.unchanged) == (
        market.listing(1)["fetched_at"], 1,
    )  # fmt: skip
    assert known.task == market.listing(1)["task"]
    assert {tasks[each].known for each in (url(2), url(3), LIST)} == {None}


# Kills and races


def run(folder: Path, owner: str, step: int, **env: str) -> "subprocess.Popen[bytes]":
    """A process that stores all due pages."""
    argv = [sys.executable, "-m", "tests.support.listings", str(folder), owner, str(step)]
    return subprocess.Popen(argv, cwd=ROOT, env=os.environ | env)


def facts(market: Market) -> list[Any]:
    """What is stored of every listing, without times and tasks."""
    names = ("key", "record", "price", "unchanged", "gone_at")
    found: list[Any] = [tuple(each[name] for name in names) for each in market.stored.of_site(SITE)]
    found += [(each["key"], each["kind"], each["fields"]) for each in market.stored.changes(SITE)]
    found += [
        (each["key"], each["previous_price"], each["price"]) for each in market.stored.prices(SITE)
    ]
    return sorted(found, key=repr)


@pytest.mark.parametrize("step", ["committing", "committed", "raw-synced"])
def test_a_kill_neither_loses_nor_doubles_a_change(tmp_path: Path, step: str) -> None:
    """Before a commit, and right after it: the same pages again give exactly the same facts."""
    market, plain = Market(tmp_path / "killed"), Market(tmp_path / "plain")
    for each, kills in ((market, True), (plain, False)):
        for number in (1, 2):
            each.begin(range(6), lists=())
            if kills:
                process = run(tmp_path / "killed", "doomed", number, CRAWLER_FAILPOINT=f"{step}:3")
                assert process.wait() == -9
                note = OwnerState("doomed", {}, "", 0, frozenset(), "")
                assert len(each.lpm.dispatch.free(note, each.clock.now)) <= 1
            assert run(each.lpm.folder, "owner", number).wait() == 0
            each.end()

    assert facts(market) == facts(plain)
    assert market.kinds(3) == ["new", "changed"]
    assert market.prices(3) == [(104.0, 105.0)]


def test_two_processes_store_one_listing_once(tmp_path: Path) -> None:
    """Two jobs with the same pages, stored at the same time by two processes."""
    market = Market(tmp_path)
    for name in ("one", "two"):
        market.begin(range(20), lists=(), name=name)

    both = [run(tmp_path, owner, 1) for owner in ("left", "right")]
    assert [process.wait() for process in both] == [0, 0]

    stored = market.stored.of_site(SITE)
    assert sorted(int(each["key"]) for each in stored) == list(range(20))
    assert {each["unchanged"] for each in stored} == {1}
    assert {each["kind"] for each in market.stored.changes(SITE)} == {"new"}
    assert len(market.stored.changes(SITE)) == 20


def end_and_be_killed(market: Market) -> None:
    """End the jobs that are done in a process that is killed after the first part."""
    code = (
        "import sys, pathlib; from crawler.lpm import LocalPersistenceManager as L; "
        f"L(pathlib.Path(sys.argv[1])).jobs.finalise({market.clock.now})"
    )
    argv = [sys.executable, "-c", code, str(market.lpm.folder)]
    env = os.environ | {"CRAWLER_FAILPOINT": "listings-gone:1"}
    assert subprocess.run(argv, env=env, check=False).returncode == -9


@pytest.mark.parametrize("parts", [1.0, 2.5])
def test_a_kill_among_many_that_redirect_to_a_gone_page_is_repaired(
    market: Market, parts: float
) -> None:
    """Each is gone once, also if they fill the last part."""
    market.crawl(record(0))
    many = int(listings.MAX_GONE_PER_COMMIT * parts)
    db = market.lpm.store.durable
    with writing(db):
        db.executemany(
            """INSERT INTO listings (site, key, url, url_key, record, record_hash, page_hash,
                   first_seen, last_seen, fetched_at, task)
               SELECT site, ?1, url, url_key, record, record_hash, page_hash, first_seen,
                   last_seen, fetched_at, task FROM listings WHERE key = '0'""",
            [(f"k{n}",) for n in range(1, many)],
        )
    fetch_with_redirects(market, {url(0): EXPIRED}, {EXPIRED: "http_410"})
    end_and_be_killed(market)
    assert len(market.gone()) == listings.MAX_GONE_PER_COMMIT

    market.end()

    assert len(market.gone()) == many
    kinds = [each["kind"] for each in market.stored.changes(SITE)]
    assert kinds == ["new", *["gone"] * many]


def test_a_kill_among_many_that_are_gone_is_repaired(tmp_path: Path) -> None:
    """Each is gone once, also if the end of the crawl was broken off between two commits."""
    market = Market(tmp_path)
    market.crawl(record(0))
    many = listings.MAX_GONE_PER_COMMIT * 2
    db = market.lpm.store.durable
    missing, later = many // 2 + 100, 1e6
    with writing(db):
        db.executemany(
            """INSERT INTO listings (site, key, url, url_key, record, record_hash, page_hash,
                   first_seen, last_seen, fetched_at, task)
               SELECT site, ?1, url, CAST(?1 AS BLOB), record, record_hash, page_hash, first_seen,
                   last_seen + ?2, fetched_at, task FROM listings WHERE key = '0'""",
            [(f"k{n}", later * (n >= missing)) for n in range(many + 400)],
        )
    market.begin([0])
    tasks = market.claim()
    market.store(market.show(tasks[LIST]), market.show(tasks[url(0)], record(0)))
    end_and_be_killed(market)
    assert len(market.gone()) == listings.MAX_GONE_PER_COMMIT

    market.end()

    assert len(market.gone()) == missing
    kinds = [each["kind"] for each in market.stored.changes(SITE)]
    assert (kinds.count("gone"), kinds.count("new")) == (missing, 1)
