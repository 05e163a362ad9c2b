"""What a record says about a thing, in a form that two sites can be compared by."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import Any

import msgspec

from crawler.listings.words import latin, name_words, text_words
from crawler.sites import measures
from crawler.sites.listingfile import Match

BGN_PER_EUR = 1.95583
"""The rate that the law fixes. No other two currencies are compared: their rates move."""
MIN_TEXT_WORDS = 20
"""A shorter text, such as a title, says little: agencies use the same ones again and again."""
MAX_IMAGES, MAX_LOOKS = 50, 10
_MAX_VALUES = 100
_MAX_ADDRESS_CHARS, _MAX_MEASURE_CHARS, _MAX_TITLE_CHARS = 500, 200, 1000
_MAX_AREA, _MAX_PRICE, _MAX_ROOMS, _MAX_FLOOR = 1e9, 1e12, 99, 200
_MIN_STEM = 4
_SHINGLE = 3
"""Words of a shingle of the text."""
_BITS = 64

_KINDS = {
    "apartment": "апартамент квартира апартаменты мезонет студио гарсониера apartment flat condo "
    "maisonette studio",
    "house": "къща вила дом котедж коттедж будинок house villa cottage bungalow",
    "plot": "парцел земя участок ділянка упи поземлен plot land lot",
    "office": "офис офіс office",
    "garage": "гараж паркомясто garage parking",
    "shop": "магазин заведение shop store retail",
}
_ROOMS_IN_WORDS = {
    "едностаен": 1, "двустаен": 2, "тристаен": 3, "четиристаен": 4, "многостаен": 5,
    "гарсониера": 1, "однокомнатная": 1, "двухкомнатная": 2, "трехкомнатная": 3,
    "четырехкомнатная": 4, "studio": 1, "студио": 1,
}  # fmt: skip
_NUMBER_WORDS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5}
_COUNT = rf"(\d{{1,2}}|{'|'.join(_NUMBER_WORDS)})"
_BEDROOMS = re.compile(rf"\b{_COUNT}[ -]?(?:bed|bedroom|br)s?\b")
_ROOMS = re.compile(rf"\b{_COUNT}[ -]?(?:room|stae?n|stai|komnat|kimnat)[a-z]*")
_NUMBER = re.compile(r"\s*(\d{1,2})\s*")


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared of a listing; what is not known is empty or None."""

    locality: str = ""
    names: tuple[str, ...] = ()
    """Words of the address, without those of the locality."""
    numbers: frozenset[str] = frozenset()
    """Numbers of the address: of a house, or of a part of a quarter."""
    kind: str = ""
    """Of a property: a key of `_KINDS`."""
    area: float | None = None
    rooms: int | None = None
    floor: int | None = None
    floors: int | None = None
    price: float | None = None
    """In `currency`; prices in lev are in euro."""
    currency: str = ""
    simhash: int | None = None
    images: frozenset[str] = frozenset()
    """Hashes of the content of stored images."""
    looks: tuple[int, ...] = ()
    """Hashes of what they look like."""


def fingerprint(
    record: Mapping[str, Any],
    match: Match,
    price: float | None = None,
    currency: str | None = None,
    images: Iterable[str] = (),
    looks: Iterable[int] = (),
) -> Fingerprint:
    """Return the fingerprint of a record. Values that make no sense are left out."""
    locality = name_words(joined(record, match.locality, _MAX_ADDRESS_CHARS))
    address = name_words(joined(record, match.address, _MAX_ADDRESS_CHARS))
    title = latin(next(_texts(record, match.text), "")[:_MAX_TITLE_CHARS])
    floor, floors = _first(_floor(record.get(name)) for name in match.floor) or (None, None)
    amount, unit = _comparable_price(price, currency)
    return Fingerprint(
        locality=" ".join(locality),
        names=tuple(word for word in address if not word.isdigit() and word not in locality),
        numbers=frozenset(word for word in address if word.isdigit()),
        kind=_kind(title),
        area=_first(_area(record.get(name)) for name in match.area),
        rooms=_first(_rooms(record.get(name)) for name in match.rooms) or rooms_in(title),
        floor=floor,
        floors=floors,
        price=amount,
        currency=unit,
        simhash=simhash(" ".join(_texts(record, match.text))),
        images=frozenset(islice(images, MAX_IMAGES)),
        looks=tuple(islice(looks, MAX_LOOKS)),
    )


# Texts.


def _texts(record: Mapping[str, Any], fields: Iterable[str]) -> Iterator[str]:
    """Yield the texts of fields, also those of lists, one level deep."""
    for name in fields:
        value = record.get(name)
        for item in value[:_MAX_VALUES] if isinstance(value, list) else (value,):
            if isinstance(item, str):
                yield item
            elif isinstance(item, int | float) and not isinstance(item, bool):
                yield f"{item:g}"


def joined(record: Mapping[str, Any], fields: Iterable[str], limit: int) -> str:
    """Return the texts of fields as one."""
    return " ".join(_texts(record, fields))[:limit]


def simhash(text: str) -> int | None:
    """Return 64 bits of which similar texts share most; None for a short text."""
    words = text_words(text)
    if len(words) < MIN_TEXT_WORDS:
        return None
    shingles = {" ".join(words[at : at + _SHINGLE]) for at in range(len(words) - _SHINGLE + 1)}
    # Counts of all bits at once: each has 32 bits of a long number to itself.
    counts, half = sum(map(_spread_hash, shingles)), len(shingles) / 2
    return sum(1 << bit for bit in range(_BITS) if (counts >> (32 * bit)) & 0xFFFFFFFF > half)


@lru_cache(maxsize=20_000)
def _spread_hash(shingle: str) -> int:
    """Return a hash with each bit at 32 times its place; many texts share boilerplate."""
    digest, spread = blake2b(shingle.encode(), digest_size=_BITS // 8).digest(), _spread_bytes()
    return sum(spread[byte] << (256 * at) for at, byte in enumerate(digest))


@lru_cache(maxsize=1)
def _spread_bytes() -> list[int]:
    return [sum(1 << (32 * bit) for bit in range(8) if byte >> bit & 1) for byte in range(256)]


@lru_cache(maxsize=1)
def _kind_words() -> dict[str, str]:
    return {word: kind for kind, words in _KINDS.items() for word in latin(words).split()}


@lru_cache(maxsize=10_000)
def _kind_of(word: str) -> str:
    """Return the kind of property that a word names, also one with an ending or an article."""
    for known, kind in _kind_words().items():
        if word == known or (len(known) > _MIN_STEM and word.startswith(known)):
            return kind
    return "apartment" if "staen" in word else ""


def _kind(title: str) -> str:
    """Return the kind of property that a title names first."""
    return next(filter(None, map(_kind_of, text_words(title))), "")


@lru_cache(maxsize=1)
def _rooms_in_words() -> dict[str, int]:
    return {latin(word): rooms for word, rooms in _ROOMS_IN_WORDS.items()}


def rooms_in(text: str) -> int | None:
    """Return the rooms that a text in Latin letters names: dvustaen, 2-staen, two-room, 1-bedroom.

    Bedrooms count without the living room, so there is one room more.
    """
    for word, rooms in _rooms_in_words().items():
        if word in text:
            return rooms
    if found := _BEDROOMS.search(text):
        return _count(found[1]) + 1
    if found := _ROOMS.search(text):
        return _count(found[1])
    return None


def _count(text: str) -> int:
    return _NUMBER_WORDS.get(text) or int(text)


# Numbers.


def _first(values: Iterable[Any]) -> Any:
    return next((value for value in values if value is not None), None)


def _number(value: object, least: float, most: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and least <= value <= most else None


def _area(value: object) -> float | None:
    if isinstance(value, str):
        value = measures.area(value[:_MAX_MEASURE_CHARS])
    area = _number(value, 0.01, _MAX_AREA)
    return area and round(area, 1)


def _rooms(value: object) -> int | None:
    if isinstance(value, str):
        if found := _NUMBER.fullmatch(value):
            value = int(found[1])
        else:
            return rooms_in(latin(value[:_MAX_MEASURE_CHARS]))
    rooms = _number(value, 1, _MAX_ROOMS)
    return None if rooms is None else round(rooms)


def _floor(value: object) -> tuple[int | None, int | None] | None:
    if isinstance(value, str):
        value = measures.floor(value[:_MAX_MEASURE_CHARS])
    if not isinstance(value, Mapping):
        value = {"floor": value}
    floor = _number(value.get("floor"), -10, _MAX_FLOOR)
    floors = _number(value.get("floors"), 0, _MAX_FLOOR)
    if floor is None and floors is None:
        return None
    return (
        None if floor is None else round(floor),
        None if floors is None else round(floors),
    )


def _comparable_price(price: object, currency: str | None) -> tuple[float | None, str]:
    amount = _number(price, 0.01, _MAX_PRICE)
    if amount is None:
        return None, ""
    if currency == "BGN":
        return round(amount / BGN_PER_EUR, 2), "EUR"
    return amount, currency or ""
