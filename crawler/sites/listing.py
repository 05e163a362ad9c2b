"""Finds the listings in the record of a page: their key, their hash, their price."""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from crawler import canonical, urls
from crawler.errors import UrlError
from crawler.fetch.budget import Budget
from crawler.models import SeenListing
from crawler.sites.listingfile import URL, Listings

MAX_KEY = 300
"""Characters of a key; of a longer one, its hash is the key."""
_ITEMS_PER_LOOK = 100
_encode = msgspec.json.Encoder().encode


def find(
    record: Mapping[str, Any],
    encoded: bytes,
    url: str,
    rules: Listings,
    budget: Budget,
    *,
    by_address: bool = True,
) -> tuple[SeenListing, ...]:
    """Return the listings of a page: its record, or the records in the field `each`.

    `encoded` is the record as JSON, and `url` the address of the page. Where the address is the
    key, `by_address` says whether the page is one of a listing.
    """
    if not record:
        return ()
    budget.check(len(encoded))
    if not rules.each:
        key = _key(record, rules, url if by_address else "")
        return (_seen(record, encoded, key, rules, budget),) if key else ()
    found: dict[str, SeenListing] = {}
    for number, item in enumerate(_items(record.get(rules.each))):
        if number % _ITEMS_PER_LOOK == _ITEMS_PER_LOOK - 1:
            budget.look()
        key = _key(item, rules, "")
        if key and key not in found:
            seen = _seen(item, _encode(item), key, rules, budget)
            found[key] = msgspec.structs.replace(seen, is_item=True, address=_address(item))
    return tuple(found.values())


def _items(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, dict))


def _seen(
    record: Mapping[str, Any], encoded: bytes, key: str, rules: Listings, budget: Budget
) -> SeenListing:
    counted = canonical.fields(rules.counted.of(record), budget.check)
    price, currency = canonical.price_of(record.get(rules.price))
    return SeenListing(
        key=key,
        record=encoded,
        record_hash=canonical.digest(counted),
        counted=rules.counted,
        price=price,
        currency=currency,
        sold=canonical.is_sold(record, rules.sold),
        price_field=rules.price,
        sold_values=rules.sold,
    )


def _key(record: Mapping[str, Any], rules: Listings, url: str) -> str:
    """Return what identifies a listing; empty where a part of it has no value."""
    parts = [canonical.canonical(record.get(name)) for name in rules.key]
    if url:
        parts = [
            _page_address(url) if name == URL and part is None else part
            for name, part in zip(rules.key, parts, strict=True)
        ]
    if any(part is None for part in parts):
        return ""
    key = canonical.text(parts if len(parts) > 1 else parts[0])
    return key if len(key) <= MAX_KEY else sha256(key.encode()).hexdigest()


def _page_address(url: str) -> str:
    try:
        return urls.parse(url).url
    except UrlError:
        return url


def _address(item: Mapping[str, Any]) -> urls.Address | None:
    """Return the address of an item of a list, if it names one."""
    given = item.get(URL)
    if not isinstance(given, str):
        return None
    try:
        return urls.parse(given)
    except UrlError:
        return None
