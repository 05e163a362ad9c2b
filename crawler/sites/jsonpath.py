"""Paths into JSON, such as `offers.price` and `images[0].url`."""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

MAX_LENGTH, MAX_STEPS = 500, 30
ALL = "*"  # the step to every item of a list, or every value of an object
_STEP = re.compile(r"\[(\d{1,6}|\*)\]|([^.\[\]]+)")
_BETWEEN = re.compile(r"(?:\.|(?=\[)|\Z)")

Steps = tuple[str | int, ...]


@lru_cache(maxsize=10_000)
def compile(text: str) -> Steps:
    """Cut a path into its steps; raises `ValueError` with a reason for its author."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"the path has {len(text):,} characters, more than {MAX_LENGTH}")
    steps: list[str | int] = []
    at = 0
    while at < len(text) or not steps:
        step = _STEP.match(text, at)
        between = _BETWEEN.match(text, step.end()) if step else None
        if not step or not between or between.end() == len(text) != step.end():
            raise ValueError(f"{text[:60]!r} is no path; write offers.price or images[0].url")
        index, name = step.groups()
        if name or index == ALL:
            steps.append(name or ALL)
        else:
            steps.append(int(index))
        at = between.end()
    if len(steps) > MAX_STEPS:
        raise ValueError(f"the path has more than {MAX_STEPS} steps")
    return tuple(steps)


def find(value: Any, steps: Steps, spend: Callable[[int], None]) -> Iterator[Any]:
    """Return what a path leads to, in the data's order; `spend` counts each value looked at.

    A name goes into every object of a list, and a list at the end gives its items: pages have one
    offer where others have several.
    """
    waiting = [(value, 0)]
    while waiting:
        value, at = waiting.pop()
        spend(1)
        step = steps[at] if at < len(steps) else None
        if isinstance(value, list):
            if isinstance(step, int):
                waiting += [(item, at + 1) for item in value[step : step + 1]]
            else:
                after = at + (step == ALL)
                spend(len(value))
                waiting += [(item, after) for item in reversed(value)]
        elif step is None:
            yield value
        elif isinstance(value, dict):
            if step == ALL:
                spend(len(value))
                waiting += [(item, at + 1) for item in reversed(value.values())]
            elif str(step) in value:
                waiting.append((value[str(step)], at + 1))
