"""The canonical form of values in records: their hash, their price, and what differs between two.

Two records are the same if only their spelling differs: whitespace, 1.0 for 1, the order of a list
of values, or fields without a value.
"""

import math
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import msgspec

MAX_DEPTH = 30
"""Levels of nesting that are normalised; what is deeper is compared as it is."""
MAX_SHOWN = 1_000
"""Characters of a value that `differences` keeps."""
MAX_PRICE = 1e15
MAX_CURRENCY, MAX_NUMBER = 20, 40
"""Characters that are read of a currency and of a number."""
_AMOUNTS = ("amount", "price", "value")
_CURRENCIES = ("currency", "priceCurrency")
_LARGEST_WHOLE = 2**53
_encode = msgspec.json.Encoder(order="sorted").encode


def _do_nothing() -> None:
    return


def canonical(value: Any, step: Callable[[], None] = _do_nothing, depth: int = 0) -> Any:
    """Return a value in the one form that all its spellings have; None where it says nothing.

    `step` is called for each mapping and each list in it.
    """
    if isinstance(value, str):
        return " ".join(value.split()) or None
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, (dict, list)) and depth >= MAX_DEPTH:
        return _encode(value).decode() if value else None
    if isinstance(value, dict):
        return fields(value, step, depth + 1) or None
    if isinstance(value, list):
        return _listed(value, step, depth + 1) or None
    return value


def fields(
    record: Mapping[str, Any], step: Callable[[], None] = _do_nothing, depth: int = 0
) -> dict[str, Any]:
    """Return the fields of a record that have a value, in canonical form."""
    step()
    given = {name: canonical(value, step, depth) for name, value in record.items()}
    return {name: value for name, value in given.items() if value is not None}


def _listed(values: list[Any], step: Callable[[], None], depth: int) -> list[Any]:
    step()
    items = (canonical(value, step, depth) for value in values)
    given = [item for item in items if item is not None]
    if any(isinstance(item, (dict, list)) for item in given):
        return given
    return sorted(given, key=lambda item: (type(item).__name__, item))


def _number(value: float) -> int | float | None:
    if not math.isfinite(value):
        return None
    if value.is_integer() and abs(value) <= _LARGEST_WHOLE:
        return int(value)
    return value


def digest(record: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the fields of a record in canonical form."""
    return sha256(_encode(record)).hexdigest()


def text(value: Any) -> str:
    """Return a value in canonical form as a text: as it is written, or as JSON."""
    return value if isinstance(value, str) else _encode(value).decode()


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the old and the new value of each field that differs, of records in canonical form;
    long values are cut."""
    names = dict.fromkeys((*old, *new))
    pairs = {name: (old.get(name), new.get(name)) for name in names}
    return {name: (_shown(a), _shown(b)) for name, (a, b) in pairs.items() if a != b}


def _shown(value: Any) -> Any:
    written = text(value)
    return value if len(written) <= MAX_SHOWN else f"{written[:MAX_SHOWN]}…"


# Prices, and what is sold


def price_of(value: Any) -> tuple[float | None, str | None]:
    """Return amount and currency of a value: of a field of the type price, or of a number."""
    currency = None
    if isinstance(value, dict):
        code = next((value[name] for name in _CURRENCIES if value.get(name)), None)
        if isinstance(code, str):
            currency = canonical(code[:MAX_CURRENCY])
        value = next((value[name] for name in _AMOUNTS if value.get(name) is not None), None)
    if isinstance(value, str):
        value = _number_in(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None, None
    if not 0 <= value <= MAX_PRICE:  # neither is NaN
        return None, None
    return float(value), currency


def _number_in(text: str) -> float | None:
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
    return text(canonical(value)).casefold()
