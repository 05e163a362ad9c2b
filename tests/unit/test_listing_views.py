"""Lists of listings, one listing with its history, and what changed: filters, order and pages."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from crawler.db.listing_views import ChangeFilter, ListingFilter, ListingViews, as_facts
from crawler.errors import StoreError, UsageError
from crawler.lpm import LocalPersistenceManager
from tests.support import tasks
from tests.support.listing_rows import DAY, T0, Writer


@pytest.fixture
def lpm(tmp_path: Path) -> Iterator[LocalPersistenceManager]:
    """A new store."""
    with LocalPersistenceManager(tmp_path) as lpm:
        lpm.open()
        yield lpm


@pytest.fixture
def writer(lpm: LocalPersistenceManager) -> Writer:
    """Writes listings into the store."""
    return Writer(lpm)


@pytest.fixture
def views(lpm: LocalPersistenceManager) -> ListingViews:
    """Reads them."""
    return lpm.listings


def keys(views: ListingViews, limit: int | None = None, **wanted: object) -> list[str]:
    """The keys of the wanted listings, as they come."""
    return [each.key for each in views.read(ListingFilter(**wanted), limit)]  # type: ignore[arg-type]


def kinds(views: ListingViews, limit: int | None = None, **wanted: object) -> list[str]:
    """The wanted changes, as they come."""
    found = views.changes(ChangeFilter(**wanted), limit)  # type: ignore[arg-type]
    return [f"{each.kind} {each.key}" for each in found]


def test_each_filter_chooses_listings(views: ListingViews, writer: Writer) -> None:
    """Site, state, first seen, changed and price limit a list, alone and together; both ends of a
    range of prices count."""
    writer.add("a", "1", price=100)
    sold = writer.add("a", "2", day=1, price=200)
    gone = writer.add("b", "3", day=2, price=300)
    both = writer.add("b", "4", day=3, price=None)
    writer.change(sold, "sold", day=4)
    writer.change(gone, "gone", day=5)
    writer.change(both, "sold", day=5)
    writer.change(both, "gone", day=6)
    writer.reprice(gone, 300, 310, day=2.5)

    assert keys(views) == ["4", "3", "2", "1"]
    assert keys(views, site="a") == ["2", "1"]
    assert keys(views, state="active") == ["1"]
    assert keys(views, state="gone") == ["3"]
    assert keys(views, state="sold") == ["4", "2"]
    assert keys(views, site="b", state="sold") == ["4"]
    assert keys(views, since=T0 + 2 * DAY) == ["4", "3"]
    assert keys(views, changed_since=T0) == ["3"]
    assert keys(views, min_price=200, max_price=310) == ["3", "2"]
    assert keys(views, min_price=200, site="a") == ["2"]
    assert keys(views, site="nowhere") == []
    for wanted in ({}, {"site": "a"}, {"state": "sold"}, {"min_price": 200}, {"since": T0 + DAY}):
        assert views.count(ListingFilter(**wanted)) == len(keys(views, **wanted))


def test_counts_by_site_and_state(views: ListingViews, writer: Writer) -> None:
    """Every site has all states; listings that a crawl missed are counted until they are gone."""
    writer.add("a", "1")
    missed = writer.add("b", "2")
    gone = writer.add("b", "3")
    writer.set(missed, missed=1)
    writer.change(gone, "gone", day=1)

    assert views.sites() == ["a", "b"]
    assert views.counts() == {
        "a": {"active": 1, "gone": 0, "sold": 0},
        "b": {"active": 1, "gone": 1, "sold": 0},
    }
    assert views.missed() == {"b": 1}


def test_long_lists_come_in_pages(lpm: LocalPersistenceManager, writer: Writer) -> None:
    """No listing and no change is left out or comes twice where pages meet, also if all have the
    same time."""
    views = ListingViews(lpm.store, rows_per_read=3)
    added = [writer.add("ab"[n % 2], str(n)) for n in range(20)]
    for id_ in added[::4]:
        writer.change(id_, "gone", day=0)
    for n, id_ in enumerate(added[:7]):
        writer.reprice(id_, 100, 100 + n, day=0)

    newest_first = [str(n) for n in reversed(range(20))]
    assert keys(views) == newest_first
    assert keys(views, site="a") == newest_first[1::2]
    assert keys(views, state="gone") == ["16", "12", "8", "4", "0"]
    assert keys(views, 7) == newest_first[:7]
    assert kinds(views, kinds=("new",)) == [f"new {n}" for n in newest_first]
    assert kinds(views, 4, site="a", kinds=("new",)) == ["new 18", "new 16", "new 14", "new 12"]
    assert len(kinds(views)) == 20 + 5 + 7
    prices = [price.price for _, _, price in views.price_changes(ChangeFilter())]
    assert prices == [100 + n for n in range(7)]


def test_each_filter_chooses_changes(views: ListingViews, writer: Writer) -> None:
    """Kinds, site and time limit changes and their counts; the newest comes first."""
    one = writer.add("a", "1")
    writer.add("b", "2", day=1)
    writer.change(one, "gone", day=2)
    writer.change(one, "back", day=3)

    assert kinds(views) == ["back 1", "gone 1", "new 2", "new 1"]
    assert kinds(views, site="a", kinds=("gone", "new")) == ["gone 1", "new 1"]
    assert kinds(views, since=T0 + 2 * DAY) == ["back 1", "gone 1"]
    assert views.change_counts(ChangeFilter(since=T0 + DAY)) == {
        "a": {"new": 0, "changed": 0, "gone": 1, "back": 1, "sold": 0, "corrected": 0},
        "b": {"new": 1, "changed": 0, "gone": 0, "back": 0, "sold": 0, "corrected": 0},
    }
    assert list(views.change_counts(ChangeFilter(site="b"))) == ["b"]


def test_a_price_belongs_to_the_change_that_it_came_with(
    views: ListingViews, writer: Writer
) -> None:
    """A change shows old and new price and per cent; what else happened on that page does not."""
    one = writer.add("a", "1", price=200)
    writer.change(one, "sold", day=1, task=5)
    writer.reprice(one, 200, 150, day=1, task=5)

    changed, sold, _ = views.changes(ChangeFilter())

    assert sold.price is None
    assert changed.fields == {"price": (200, 150)}
    assert as_facts(changed) == {
        "id": 3, "at": "2026-11-07T21:20:00.000Z", "kind": "changed", "listing": 1, "site": "a",
        "key": "1", "url": "http://a.example/1", "title": "Flat 1", "last_price": 150.0,
        "currency": "EUR", "state": "sold", "task_id": None,
            "fields": {"price": {"old": 200, "new": 150}},
        "price": {
            "at": "2026-11-07T21:20:00.000Z", "price": 150.0, "currency": "EUR",
            "previous_price": 200.0, "previous_currency": "EUR", "percent": -25.0,
        },
    }  # fmt: skip


def test_one_listing_with_all_that_is_known(
    lpm: LocalPersistenceManager, views: ListingViews, writer: Writer
) -> None:
    """A listing has its task and job, its changes, prices and visits, other URLs, and listings that
    may be the same, on whichever side of the pair it is."""
    tasks.collect(lpm, "job", 2)
    job = lpm.jobs.named("job")
    one = writer.add("b", "1", url="http://b.example/new", task=1, job_id=job.id)
    other = writer.add("a", "x")
    third = writer.add("c", "y")
    writer.reprice(one, 100_000, 90_000, day=1)
    writer.other_url(one, "http://job.example/1")
    writer.pair(one, other, 0.7)
    writer.pair(one, third, 0.9, "same")
    views.visit(one, T0 + 2 * DAY, "later")
    views.visit(one, T0 + DAY, "quiet")

    found = views.show(one)

    assert (found.listing.name, found.listing.state, found.listing.job) == ("b:1", "active", "job")
    assert found.listing.task_id == lpm.results.report(1)["task_id"]
    assert [each.kind for each in found.changes] == ["new", "changed"]
    assert [(each.previous_price, each.price) for each in found.prices] == [(100_000, 90_000)]
    assert [each.note for each in found.viewings] == ["quiet", "later"]
    assert found.urls == ["http://job.example/1"]
    assert [(each.site, each.confidence, each.decision) for each in found.pairs] == [
        ("c", 0.9, "same"),
        ("a", 0.7, None),
    ]
    [seen_from_b] = views.show(other).pairs
    assert (seen_from_b.site, seen_from_b.discrepancies[0].here) == ("b", 90_000)
    assert found.pairs[0].discrepancies[0].here == 100_000
    assert found.page_url == "http://job.example/0"


def test_a_listing_is_found_by_number_url_and_key(views: ListingViews, writer: Writer) -> None:
    """A URL finds it in every spelling, also one that led there earlier; a key may have colons,
    and be a URL."""
    one = writer.add("a", "x:1", url="http://a.example/new")
    other = writer.add("a", "2", url="http://a.example/old")
    third = writer.add("a", "http://a.example/3", url="http://a.example/3?from=list")
    writer.other_url(one, "http://a.example/old")
    writer.other_url(one, "http://a.example/older")

    assert views.find(str(one)) == one
    assert views.find("a:x:1") == one
    assert views.find("a:http://a.example/3") == third
    assert views.find("HTTP://A.example:80/new#top") == one
    assert views.find("http://a.example/older") == one
    assert views.find("http://a.example/old") == other  # its own page comes first


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("99", "there is no listing 99"),
        ("9" * 30, "is no listing: write its number, URL or SITE:KEY"),
        ("nonsense", "'nonsense' is no listing: write its number, URL or SITE:KEY"),
        ("ftp://a.example/", "ftp://a.example/ is no URL"),
        ("imot:1", "there are no listings of the site 'imot'; did you mean imoti?"),
        ("zzz:1", "there are no listings of the site 'zzz'; there are listings of: imoti"),
        ("imoti:7", "imoti has no listing with the key '7'"),
        ("http://x.example/", "no page of this URL was fetched"),
        ("http://imoti.example/list", "has 2 listings; name one of them: imoti:1, imoti:2"),
        ("http://open.example/", "its task has no result (pending)"),
        ("http://job.example/0", "its result is of no site; a site's file with the key"),
    ],
)
def test_what_is_no_listing_gets_a_reason(
    lpm: LocalPersistenceManager, views: ListingViews, writer: Writer, text: str, message: str
) -> None:
    """A text that finds nothing, or too much, says why and what to do."""
    for key in ("1", "2"):
        writer.add("imoti", key, url="http://imoti.example/list")
    tasks.collect(lpm, "job", 1)
    lpm.persist_tasks([tasks.new("http://open.example/")])

    with pytest.raises(UsageError) as raised:
        views.find(text)

    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("site", "reason"),
    [
        ("other", "other has no listings; the key `listings:` in its file makes some"),
        ("imoti", "its record has no value for the key of imoti's listings"),
    ],
)
def test_a_result_that_is_no_listing_names_its_site(
    lpm: LocalPersistenceManager, views: ListingViews, writer: Writer, site: str, reason: str
) -> None:
    """The page of a site says whether its file lacks `listings:`, or its record the key."""
    writer.add("imoti", "1")
    lpm.persist_tasks([tasks.new("http://page.example/")])
    [task] = lpm.get_next_pending("owner")
    lpm.save_result(tasks.done(task, site=(site, "1")))

    with pytest.raises(UsageError, match="is no listing: ") as raised:
        views.find("http://page.example/")

    assert reason in str(raised.value)


def test_changes_of_a_job(
    lpm: LocalPersistenceManager, views: ListingViews, writer: Writer
) -> None:
    """A job has the changes that its pages showed, and those that its end made; no others."""
    tasks.collect(lpm, "before", 1)
    tasks.collect(lpm, "job", 2)
    job = lpm.jobs.named("job")
    day = (lpm.now() - T0) / DAY
    one = writer.add("a", "1", day=day, task=2)
    writer.add("a", "2", day=day, task=1)
    writer.change(one, "changed", day=day, task=3)
    writer.change(one, "gone", day=day, job_id=job.id)
    writer.change(one, "gone", day=day, job_id=job.id + 1)
    writer.change(one, "gone", day=day)

    assert views.changes_of_job(job) == {
        "new": 1, "changed": 1, "gone": 1, "back": 0, "sold": 0, "corrected": 0,
    }  # fmt: skip


def test_a_damaged_record_is_told(views: ListingViews, writer: Writer) -> None:
    """A wrong byte in the ledger is an error that names the listing, not a traceback."""
    one = writer.add("a", "1")
    writer.set(one, record='{"title": ')

    for read in (lambda: list(views.read(ListingFilter())), lambda: views.show(one)):
        with pytest.raises(StoreError, match="listing 1 is damaged"):
            read()
    with pytest.raises(StoreError, match="listing 1 is damaged"):
        list(views.changes(ChangeFilter()))
