"""Finds the listings in the record of a page: their key, their hash, their price."""

import math
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
MAX_PRICE = 1e15
MAX_CURRENCY, MAX_NUMBER = 20, 40
"""Characters that are read of a currency and of a number."""
_AMOUNTS = ("amount", "price", "value")
_CURRENCIES = ("currency", "priceCurrency")
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
    price, currency = price_of(record.get(rules.price))
    return SeenListing(
        key=key,
        record=encoded,
        record_hash=canonical.digest(counted),
        counted=rules.counted,
        price=price,
        currency=currency,
        sold=is_sold(record, rules.sold),
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


def price_of(value: Any) -> tuple[float | None, str | None]:
    """Return amount and currency of a value: of a field of the type price, or of a number."""
    currency = None
    if isinstance(value, dict):
        code = next((value[name] for name in _CURRENCIES if value.get(name)), None)
        if isinstance(code, str):
            currency = canonical.canonical(code[:MAX_CURRENCY])
        value = next((value[name] for name in _AMOUNTS if value.get(name) is not None), None)
    if isinstance(value, str):
        value = _number(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None, None
    if not 0 <= value <= MAX_PRICE:  # neither is NaN
        return None, None
    return float(value), currency


def _number(text: str) -> float | None:
    if "_" in text:  # Python reads 1_000 as a number, but nobody writes a price so
        return None
    try:
        number = float(text[:MAX_NUMBER])
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def is_sold(record: Mapping[str, Any], sold: Mapping[str, tuple[str, ...]]) -> bool:
    """Return whether a field of a record has a value that means sold, in whatever case."""
    return any(
        bool(_texts(record.get(name)) & {_folded(each) for each in meaning})
        for name, meaning in sold.items()
    )


def _texts(value: Any) -> set[str]:
    values = value if isinstance(value, list) else [value]
    scalars = (each for each in values if not isinstance(each, (dict, list)))
    return {_folded(each) for each in scalars if each is not None}


def _folded(value: Any) -> str:
    return canonical.text(canonical.canonical(value)).casefold()
