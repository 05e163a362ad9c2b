"""Reads the rows of listings as they are stored, for tests and scripts that compare them."""

from collections.abc import Sequence
from typing import Any

import msgspec

from crawler.lpm import LocalPersistenceManager

_COLUMNS = (
    "id", "site", "key", "url", "record", "record_hash", "page_hash", "price", "currency",
    "first_seen", "last_seen", "fetched_at", "changed_at", "gone_at", "sold_at", "unchanged",
    "missed", "task", "job_id",
)  # fmt: skip


class StoredListings:
    """The listings of a store."""

    def __init__(self, lpm: LocalPersistenceManager) -> None:
        self._store = lpm.store

    def of_site(self, site: str) -> list[dict[str, Any]]:
        """The listings of a site in the order in which they were first stored."""
        rows = self._store.db.all(
            f"SELECT {', '.join(_COLUMNS)} FROM listings WHERE site = ? ORDER BY id", (site,)
        )
        return [_shown(row) for row in rows]

    def changes(self, site: str) -> list[dict[str, Any]]:
        """What happened to the listings of a site, in its order."""
        names = ("key", "at", "kind", "fields", "task")
        rows = self._store.db.all(
            """SELECT l.key, c.at, c.kind, c.fields, c.task FROM listing_changes c
               JOIN listings l ON l.id = c.listing WHERE l.site = ? ORDER BY c.id""",
            (site,),
        )
        found = [dict(zip(names, row, strict=True)) for row in rows]
        return [each | {"fields": msgspec.json.decode(each["fields"] or "{}")} for each in found]

    def prices(self, site: str) -> list[dict[str, Any]]:
        """Each change of a price of a site's listings, in its order."""
        names = ("key", "at", "price", "currency", "previous_price", "previous_currency", "task")
        rows = self._store.db.all(
            """SELECT l.key, p.at, p.price, p.currency, p.previous_price, p.previous_currency,
                   p.task FROM price_history p JOIN listings l ON l.id = p.listing
               WHERE l.site = ? ORDER BY p.id""",
            (site,),
        )
        return [dict(zip(names, row, strict=True)) for row in rows]


def _shown(row: Sequence[Any]) -> dict[str, Any]:
    shown = dict(zip(_COLUMNS, row, strict=True))
    return shown | {"record": msgspec.json.decode(shown["record"])}
