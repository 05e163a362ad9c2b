"""Two spellings of one record have one canonical form, whatever a page makes of its record."""

import math
from typing import Any

import pytest

from crawler import canonical


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": "x  y\n"}, {"a": " x y"}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": ["b", "c"]}, {"a": ["c", "b"]}),
        ({"a": [2, 1.0, "x"]}, {"a": ["x", 1, 2]}),
        ({"a": {"b": 1, "c": None}}, {"a": {"b": 1.0}}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": None, "b": "", "c": [], "d": {}, "e": " "}, {}),
        ({"a": [None, "", "x"]}, {"a": ["x"]}),
        ({"a": math.nan, "b": math.inf}, {}),
        ({"a": -0.0}, {"a": 0}),
        ({"a": {"b": [{"c": "x "}]}}, {"a": {"b": [{"c": "x"}]}}),
    ],
)
def test_a_spelling_is_no_difference(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Whitespace, 1.0 for 1, the order of values and of keys, and fields without a value."""
    assert canonical.digest(canonical.fields(one)) == canonical.digest(canonical.fields(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": "1"}, {"a": 1}),
        ({"a": True}, {"a": 1}),
        ({"a": 0}, {}),
        ({"a": False}, {}),
        ({"a": "x"}, {"b": "x"}),
        ({"a": "X"}, {"a": "x"}),
        ({"a": [1, 1]}, {"a": [1]}),
        ({"a": [{"b": 1}, {"b": 2}]}, {"a": [{"b": 2}, {"b": 1}]}),
        ({"a": 2**60}, {"a": 2**60 + 1}),
        ({"a": 0.1}, {"a": 0.2}),
    ],
)
def test_another_value_is_one(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Types, numbers, names, and the order of records count."""
    assert canonical.digest(canonical.fields(one)) != canonical.digest(canonical.fields(other))


def test_deep_nesting_costs_nothing_but_its_spelling() -> None:
    """A record nested beyond any reason has a hash, too, and other content has another one."""

    def nested(value: Any, levels: int) -> Any:
        for _ in range(levels):
            value = [value]
        return value

    digests = {
        canonical.digest(canonical.fields({"a": nested(each, 400)})) for each in ("x", "y", "x")
    }
    assert len(digests) == 2


def test_differences_name_old_and_new_values() -> None:
    """Of fields that differ only; a value that is not there is None, and a long one is cut."""
    old = {"price": 1, "city": "Sofia", "text": "x" * 5_000, "same": [1]}
    new = {"price": 2, "floor": 3, "text": "y" * 5_000, "same": [1]}

    found = canonical.differences(old, new)

    assert found["price"] == (1, 2)
    assert found["city"] == ("Sofia", None)
    assert found["floor"] == (None, 3)
    assert {len(text) for text in found["text"]} == {canonical.MAX_SHOWN + 1}
    assert found.keys() == {"price", "city", "floor", "text"}


def test_every_container_is_a_step() -> None:
    """So that the budget of a page can end work on a hostile record."""
    steps = []
    canonical.fields({"a": [[1], {"b": []}], "c": "x"}, lambda: steps.append(1))
    assert len(steps) == 5
