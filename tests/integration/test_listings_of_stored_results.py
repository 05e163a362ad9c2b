"""`replay --apply` makes listings of results that were stored before their site had the key
`listings`, and of those that come from a bundle."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from crawler import sites
from crawler.lpm import LocalPersistenceManager
from crawler.results import bundle
from crawler.scraping.examine import examine
from tests.support.replays import replayed
from tests.support.stack import Folder
from tests.support.stored_listings import StoredListings
from tests.support.tasks import done, new, open_job, page

BEGAN = 1_794_000_000.0
DAY = 86_400.0
SITE = """
hosts: [flats.example]
fields:
  id: h1
  price: {css: b, type: price}
"""
KEY = "listings: {key: id}\n"
PRICES = {1: [100, 90, 90], 2: [200], 3: [300, 310]}
"""What each flat costs on the first days."""


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A store with results of three days, the last day first; their site had no listings yet."""
    folder = Folder(tmp_path)
    configure(folder, SITE)
    with folder.lpm() as lpm:
        for day in (2, 1, 0):
            store(lpm, folder, day)
    return folder


def configure(folder: Folder, text: str) -> None:
    (folder.path / "config" / "sites").mkdir(parents=True, exist_ok=True)
    (folder.path / "config" / "sites" / "flats.yaml").write_text(text)


def store(lpm: LocalPersistenceManager, folder: Folder, day: int) -> None:
    """Collect the pages of a day as a worker does."""
    site = sites.load(folder.path / "config").find("flats")
    job = open_job(lpm, f"day {day}")
    shown = {n: prices[day] for n, prices in PRICES.items() if day < len(prices)}
    lpm.persist_tasks([new(f"http://flats.example/{n}") for n in shown], job=job)
    for task in lpm.get_next_pending("owner", 9):
        n = int(task.url.rpartition("/")[2])
        made = page(task.url, f"<h1>{n}</h1><b>{shown[n]} EUR</b>".encode())
        made = replace(made, fetched_at=BEGAN + day * DAY + n)
        parsed = examine(made, site)
        about = {"site": (site.name, site.version), "listings": parsed.listings}
        lpm.save_result(done(task, parsed.encoded, page=made, parser=parsed.parser, **about))


def history(folder: Folder) -> tuple[list[Any], list[Any]]:
    """What happened to each listing, and its prices, with their days."""
    with folder.lpm() as lpm:
        stored = StoredListings(lpm)
        changes = [(int(it["key"]), it["kind"], day_of(it["at"])) for it in stored.changes("flats")]
        prices = [
            (int(it["key"]), it["previous_price"], it["price"], day_of(it["at"]))
            for it in stored.prices("flats")
        ]
    return sorted(changes), sorted(prices)


def day_of(at: float) -> int:
    return int((at - BEGAN) // DAY)


WHOLE = (
    [(1, "changed", 1), (1, "new", 0), (2, "new", 0), (3, "changed", 1), (3, "new", 0)],
    [(1, 100.0, 90.0, 1), (3, 300.0, 310.0, 1)],
)


def test_listings_are_made_in_the_order_of_time(folder: Folder) -> None:
    """With all their history, once."""
    configure(folder, SITE + KEY)
    assert replayed(folder, "--site", "flats")["listings_made"] == 0

    first = replayed(folder, "--site", "flats", "--apply")
    again = replayed(folder, "--site", "flats", "--apply")

    assert (first["listings_made"], again["listings_made"]) == (3, 0)
    assert history(folder) == WHOLE
    listed = json.loads(folder.crawler("listings", "list", "--json").stdout)["listings"]
    assert {each["key"]: each["unchanged"] for each in listed} == {"1": 1, "2": 0, "3": 0}


def test_what_is_older_than_a_listing_stays_unknown(folder: Folder) -> None:
    """A crawl that was first to see a listing begins its history; other listings are made."""
    configure(folder, SITE + KEY)
    with folder.lpm() as lpm:
        site = sites.load(folder.path / "config").find("flats")
        lpm.persist_tasks([new("http://flats.example/1")], job=open_job(lpm, "now"))
        [task] = lpm.get_next_pending("owner", 9)
        made = replace(page(task.url, b"<h1>1</h1><b>80 EUR</b>"), fetched_at=BEGAN + 9 * DAY)
        parsed = examine(made, site)
        lpm.save_result(
            done(task, parsed.encoded, page=made, site=("flats", "1"), listings=parsed.listings)
        )

    assert replayed(folder, "--apply")["listings_made"] == 2

    changes, prices = history(folder)
    assert changes == [(1, "new", 9), *WHOLE[0][2:]]
    assert prices == WHOLE[1][1:]


@pytest.mark.parametrize("narrow", [("--job", "day 2"), ("--since", "1d"), ("--limit", "1")])
def test_a_part_of_the_results_makes_none(folder: Folder, narrow: tuple[str, str]) -> None:
    """Else the rest could not become part of their history later."""
    configure(folder, SITE + KEY)
    folder.crawler("replay", "--apply", *narrow)
    assert history(folder) == ([], [])


@pytest.mark.parametrize("failpoint", ["seeing-stored:1", "seen-stored:1"])
def test_a_kill_is_completed_by_the_next(folder: Folder, failpoint: str) -> None:
    """Before the commit and after it."""
    configure(folder, SITE + KEY)
    killed = folder.crawler("replay", "--apply", CRAWLER_FAILPOINT=failpoint)
    assert killed.returncode in (-9, 137)
    replayed(folder, "--apply")
    assert history(folder) == WHOLE


@pytest.mark.parametrize("raw", [True, False], ids=["with pages", "records only"])
def test_results_of_a_bundle_make_listings(folder: Folder, tmp_path: Path, raw: bool) -> None:
    """Also without their pages, of their records."""
    with folder.lpm() as lpm:
        bundle.bundle(lpm, tmp_path / "b", job=None, since=None, raw=raw)
    other = Folder(tmp_path / "other")
    configure(other, SITE + KEY)
    with other.lpm() as lpm:
        bundle.unbundle(lpm, tmp_path / "b", max_body=1_000_000)

    assert replayed(other, "--apply")["listings_made"] == 3

    assert history(other) == WHOLE
