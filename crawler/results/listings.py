"""Exports listings, or the things that they are merged to, to files in the formats of results."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from crawler.config import failpoint
from crawler.db.listing_views import ListingFilter, as_facts
from crawler.listings.merged import Thing, each_thing
from crawler.lpm import LocalPersistenceManager
from crawler.results import TABLES, folder_of, formats, opened
from crawler.sites import Sites

COLUMNS: dict[str, type] = {
    "id": int,
    "site": str,
    "key": str,
    "url": str,
    "state": str,
    "price": float,
    "currency": str,
    "first_seen": str,
    "last_seen": str,
    "fetched_at": str,
    "changed_at": str,
    "gone_at": str,
    "sold_at": str,
    "unchanged": int,
    "missed": int,
    "task_id": str,
    "job": str,
}
"""Columns of every table after the fields of the records, with their types."""


def flatten(listing: Mapping[str, Any]) -> formats.Row:
    """Return a listing as one row."""
    row = {name: listing[name] for name in COLUMNS}
    formats.spread(row, "data", listing["data"])
    return row


MERGED_COLUMNS: dict[str, type] = {
    "title": str,
    "locality": str,
    "address": str,
    "price": float,
    "currency": str,
    "kind": str,
    "area": float,
    "rooms": int,
    "floor": int,
    "floors": int,
    "state": str,
    "sources": int,
    "confidence": float,
    "listings": str,
    "prices": str,
    "url": str,
    "urls": str,
    "discrepancies": str,
}
"""Columns of a table of things that listings were merged to, with their types."""


def flatten_thing(thing: Mapping[str, Any]) -> formats.Row:
    """Return a thing as one row; what its sources have is joined in their order."""
    sources, differing = thing["sources"], thing["discrepancies"]
    prices = (f"{formats.as_text(each['price'])} {each['currency'] or ''}" for each in sources)
    return {
        **{name: thing[name] for name in ("title", "locality", "address", "price", "currency")},
        **thing["values"],
        "state": "gone" if all(each["gone"] for each in sources) else "active",
        "sources": len(sources),
        "confidence": thing["confidence"],
        "listings": _joined(f"{each['site']}:{each['key']}" for each in sources),
        "prices": _joined(price.strip() or "-" for price in prices),
        "url": sources[0]["url"],
        "urls": _joined(each["url"] for each in sources),
        "discrepancies": _joined(_discrepancy(each) for each in differing),
    }


def _joined(texts: Iterable[str]) -> str:
    return " | ".join(texts)


def _discrepancy(found: Mapping[str, Any]) -> str:
    """Such as `price: 104500, 115000`."""
    values = (formats.as_text(found[side]) for side in "ab")
    return f"{found['field']}: {', '.join(values)}"


def export(
    lpm: LocalPersistenceManager,
    target: Path,
    form: str,
    wanted: ListingFilter,
    say: Callable[[str], None],
) -> int:
    """Write listings to a file that appears whole or not at all; returns how many."""
    found = (as_facts(listing) for listing in lpm.listings.read(wanted))
    return _write(lpm, target, form, found, formats.Shape("Listings", flatten, COLUMNS, {}), say)


def export_merged(
    lpm: LocalPersistenceManager,
    sites: Sites,
    target: Path,
    form: str,
    wanted: ListingFilter,
    min_confidence: float,
    say: Callable[[str], None],
) -> int:
    """The same for the things that the listings are of, each once; returns how many."""
    shape = formats.Shape("Listings, merged", flatten_thing, MERGED_COLUMNS, {})
    found = map(_thing_facts, each_thing(lpm, sites, min_confidence, wanted))
    return _write(lpm, target, form, found, shape, say)


def _thing_facts(thing: Thing) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.to_builtins(thing)
    if len(thing.sources) == 1:
        facts["confidence"] = None
    return facts


def _write(
    lpm: LocalPersistenceManager,
    target: Path,
    form: str,
    found: Iterable[Mapping[str, Any]],
    shape: formats.Shape,
    say: Callable[[str], None],
) -> int:
    count = 0

    def rows() -> Iterator[Mapping[str, Any]]:
        nonlocal count
        for each in found:
            failpoint("exporting")
            count += 1
            yield each

    done = "read" if form in TABLES else "written"
    with opened(target, form in formats.BINARY, lpm.folder) as out:
        sink = formats.Sink(
            out=out,
            name=target.name,
            folder=folder_of(target),
            raw=lpm.raw,
            place=lambda listing: None,
            say=say,
            shape=shape,
        )
        formats.WRITERS[form](formats.with_progress(rows(), say, f"listings {done}"), sink)
    return count
