"""One module each: it reads its order as JSON from its first line, says `ready`, waits for a line, works, says `done`."""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple


class Order(NamedTuple):
    """What is to be collected, and where it is to be stored."""

    urls: list[str]
    folder: Path
    """An empty folder of its own."""
    options: dict[str, Any]
    """What varies between runs of the same contestant."""


def order() -> Order:
    """The order, as the benchmark gives it on standard input."""
    given = json.loads(sys.stdin.readline())
    return Order(Path(given["urls"]).read_text().split(), Path(given["folder"]), given["options"])


def ready() -> None:
    """Everything is started: wait for the word. What follows is measured."""
    print("ready", file=sys.__stdout__, flush=True)
    sys.stdin.readline()


def done(stored: int) -> None:
    """Everything is stored: so many pages. What follows is not measured."""
    print(f"done {stored}", file=sys.__stdout__, flush=True)
    sys.stdin.readline()
