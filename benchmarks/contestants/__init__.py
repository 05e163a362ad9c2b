"""One module each: it reads its order as JSON, says `ready`, waits for a line, works, says
`done`."""

import json
import multiprocessing
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple


class Order(NamedTuple):
    """What is to be collected, and where it is to be stored."""

    urls: list[str]
    folder: Path
    """An empty folder of its own."""
    options: dict[str, Any]
    """What varies between runs of the same contestant."""


Ready = Callable[[], None]
Done = Callable[[int], None]
Crawl = Callable[[Order, Ready, Done], None]


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


def divide(crawl: Crawl) -> None:
    """Have the order done here or, with `processes`, by so many: each gets its part of the
    addresses and a folder."""
    given = order()
    count = given.options.get("processes", 1)
    if count == 1:
        crawl(given, ready, done)
        return
    lines, context = list[Connection](), multiprocessing.get_context("fork")
    for number in range(count):
        ours, theirs = context.Pipe()
        part = given._replace(urls=given.urls[number::count], folder=given.folder / str(number))
        part.folder.mkdir()
        context.Process(target=_part, args=(crawl, part, theirs)).start()
        theirs.close()  # so that a process that has died is heard as the end of its line
        lines.append(ours)
    _hear(lines)
    ready()
    _say(lines)
    done(sum(_hear(lines)))
    _say(lines)


def _part(crawl: Crawl, part: Order, line: Connection) -> None:
    def tell(what: int) -> None:
        line.send(what)
        line.recv()

    crawl(part, lambda: tell(0), tell)


def _say(lines: list[Connection]) -> None:
    for line in lines:
        line.send(0)


def _hear(lines: list[Connection]) -> list[int]:
    try:
        return [line.recv() for line in lines]
    except EOFError:
        raise SystemExit("one of the processes has ended before its time") from None
