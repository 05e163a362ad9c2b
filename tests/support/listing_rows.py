"""Listings as the commits of pages write them, for tests of what reads them."""

from typing import Any

import msgspec

from crawler import urls
from crawler.db.connection import writing
from crawler.lpm import LocalPersistenceManager

T0 = 1_794_000_000.0
"""2026-11-06T21:20:00Z, when the first listings were seen."""
DAY = 86400.0
HOSTILE = "<img src=x onerror=alert(1)>\"'&\x1b[31m\u202e"


class Writer:
    """Writes rows of listings; times are days after `T0`."""

    def __init__(self, lpm: LocalPersistenceManager) -> None:
        self._lpm = lpm

    def add(
        self,
        site: str,
        key: str,
        *,
        day: float = 0,
        price: float | None = 100_000,
        currency: str | None = "EUR",
        url: str = "",
        task: int = 0,
        job_id: int | None = None,
        **record: Any,
    ) -> int:
        """A new listing; returns its number."""
        address = urls.parse(url or f"http://{site}.example/{key}")
        data = {"id": key, "price": price, "title": f"Flat {key}"} | record
        at = T0 + day * DAY
        row = {
            "site": site, "key": key, "url": address.url, "url_key": address.key,
            "record": msgspec.json.encode(data).decode(), "record_hash": "0" * 64,
            "page_hash": "1" * 64,
            "price": price, "currency": currency, "first_seen": at, "last_seen": at,
            "fetched_at": at, "task": task, "job_id": job_id,
        }  # fmt: skip
        id_ = self._insert("listings", row)
        self.change(id_, "new", day=day, task=task)
        return id_

    def change(
        self,
        listing: int,
        kind: str,
        *,
        day: float,
        fields: dict[str, tuple[Any, Any]] | None = None,
        task: int | None = None,
        job_id: int | None = None,
    ) -> None:
        """Something that happened to a listing, and its state after that."""
        at = T0 + day * DAY
        encoded = msgspec.json.encode(fields).decode() if fields else None
        row = {"listing": listing, "at": at, "kind": kind, "fields": encoded, "task": task,
               "job_id": job_id}  # fmt: skip
        self._insert("listing_changes", row)
        marks = {"gone": ("gone_at", at), "sold": ("sold_at", at), "back": ("gone_at", None),
                 "changed": ("changed_at", at)}  # fmt: skip
        if kind in marks:
            column, value = marks[kind]
            self.set(listing, **{column: value})

    def reprice(self, listing: int, old: float, new: float, *, day: float, task: int = 0) -> None:
        """A change of the price alone."""
        self.change(listing, "changed", day=day, fields={"price": (old, new)}, task=task)
        row = {"listing": listing, "at": T0 + day * DAY, "price": new, "currency": "EUR",
               "previous_price": old, "previous_currency": "EUR", "task": task}  # fmt: skip
        self._insert("price_history", row)
        self.set(listing, price=new)

    def pair(self, a: int, b: int, confidence: float, decision: str | None = None) -> None:
        """Two listings that may be the same thing."""
        reasons = {"area": 3.5, "address": 8.0, "floor": -2.0}
        discrepancies = [{"field": "price", "a": 100_000, "b": 90_000}]
        row = {"a": a, "b": b, "confidence": confidence,
               "reasons": msgspec.json.encode(reasons).decode(),
               "discrepancies": msgspec.json.encode(discrepancies).decode(), "matched_at": T0,
               "decision": decision}  # fmt: skip
        self._insert("listing_pairs", row)

    def other_url(self, listing: int, url: str) -> None:
        """Another URL that led to a listing."""
        self._insert("listing_urls", {"url_key": urls.parse(url).key, "listing": listing})

    def conflict(self, listing: int, url: str, job_id: int) -> None:
        """A page with the key of a listing and another record, in a crawl."""
        row = {"listing": listing, "url_key": urls.parse(url).key, "body": "", "url": url,
               "record_hash": "2" * 64, "job_id": job_id}  # fmt: skip
        self._insert("listing_conflicts", row)

    def set(self, listing: int, **columns: Any) -> None:
        """Change columns of a listing."""
        names = ", ".join(f"{name} = ?" for name in columns)
        db = self._lpm.store.durable
        db.execute(f"UPDATE listings SET {names} WHERE id = ?", (*columns.values(), listing))

    def _insert(self, table: str, row: dict[str, Any]) -> int:
        db = self._lpm.store.durable
        marks = ", ".join("?" * len(row))
        with writing(db):
            db.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", (*row.values(),))
            return db.last_insert_rowid()
