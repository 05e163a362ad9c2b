"""Listings in a store, as crawls of the example portals leave them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from crawler import sites, urls
from crawler.db.connection import writing
from crawler.examples.domove import Domove
from crawler.examples.imoti import Imoti
from crawler.examples.server import Listing
from crawler.listings.duplicates import Candidate
from crawler.listings.fingerprint import fingerprint
from crawler.lpm import LocalPersistenceManager

EXAMPLES = Path(__file__).parents[2] / "examples"
KEYS = {"imoti": "id", "domove": "ref"}


def example_sites() -> sites.Sites:
    """The sites of examples/."""
    return sites.load(EXAMPLES)


def portals(size: int, shared: int, seed: int = 1) -> dict[str, Imoti | Domove]:
    """Both portals of one seed, by the names of their sites."""
    return {"imoti": Imoti(size, seed), "domove": Domove(size, seed, shared)}


def add_listings(lpm: LocalPersistenceManager, site: str, listings: Iterable[Listing]) -> None:
    """Store listings of a portal as new ones, not compared with others yet."""
    rows = [(site, it.record[KEYS[site]], it.url, it.record) for it in listings]
    add_records(lpm, rows)


def add_records(
    lpm: LocalPersistenceManager, rows: Iterable[tuple[str, str, str, Mapping[str, Any]]]
) -> None:
    """Store records, each with the site, the key and the URL of its listing; one that is known
    becomes another one, as after a change."""
    db = lpm.store.durable
    with writing(db):
        for site, key, url, record in rows:
            amount, currency = price_of(record)
            db.execute(
                """INSERT INTO listings (site, key, url, url_key, record, record_hash, page_hash,
                       price, currency, first_seen, last_seen, fetched_at, task)
                   VALUES (?1, ?2, ?3, ?4, ?5, '', '', ?6, ?7, 1, 1, 1, 0)
                   ON CONFLICT (site, key) DO UPDATE SET record = ?5, price = ?6, currency = ?7,
                       matched = 0""",
                (site, key, url, urls.parse(url).key, msgspec.json.encode(record).decode(),
                 amount, currency),
            )  # fmt: skip


def price_of(record: Mapping[str, Any]) -> tuple[float | None, str | None]:
    """The amount and the currency of a record."""
    price = record.get("price") or {}
    return price.get("amount"), price.get("currency")


def candidates(made: Mapping[str, Imoti | Domove]) -> tuple[list[Candidate], set[tuple[int, int]]]:
    """All listings of both portals, numbered as `add_listings` would, and the true pairs."""
    known, found, ids = example_sites(), list[Candidate](), dict[tuple[str, str], int]()
    for name, portal in made.items():
        rules = known.find(name).listings
        assert rules
        for number, it in enumerate(portal.listings(f"http://{portal.host}"), len(found) + 1):
            ids[name, it.record[KEYS[name]]] = number
            printed = fingerprint(it.record, rules.match, *price_of(it.record))
            found.append(Candidate(number, name, printed))
    domove = made["domove"]
    assert isinstance(domove, Domove)
    return found, {(ids["imoti", a], ids["domove", b]) for a, b in domove.truth()}
