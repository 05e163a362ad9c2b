"""The canonical form of values in records: their hash, and what differs between two records.

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
