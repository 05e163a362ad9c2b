"""Whatever is in a page, the work on it lets the event loop serve the others again and again."""

import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from selectolax.lexbor import LexborHTMLParser

from crawler.errors import FetchError
from crawler.fetch.budget import Budget
from crawler.scraping.examine import examine
from crawler.sites import Site
from crawler.sites.fieldfile import Field
from crawler.sites.parser import parse
from tests.support.tasks import page
from tests.unit import test_memory
from tests.unit.test_linear import FIELDS, SHAPES

SIZES = (60_000, 700_000)
"""A small page, and a large one: twice its size is refused at once for many shapes."""
GAP_S = 0.25
"""CPU time after which any work must have looked at the clock: the most by which it outlasts its
turn."""
WORDS_S, TABLE_S = 0.0065, 0.0028
"""What `slowness` measures, on the machine for which the quarter of a second was chosen."""
TABLE = "<table>" + "<tr><td class=a>Owner</td><td>Jane Roe</td></tr>" * 3_000 + "</table>"
SITE = Site(
    name="county", version="1", fields={str(number): field for number, field in enumerate(FIELDS)}
)
QUICK = {str(number): Field(css=f"div > a{number}") for number in range(32)}


def slowness() -> float:
    """How many times slower the machine is now, by CPU time: for what reckons, and for what reads
    much memory, which others' work slows down more."""
    began = time.thread_time()
    for _ in range(20):
        re.findall(r"\w+", "some words " * 1_500)
    words = time.thread_time()
    for cell in LexborHTMLParser(TABLE).css("td"):
        cell.text()
    table = time.thread_time()
    return max(1.0, (words - began) / WORDS_S, (table - words) / TABLE_S)


class Gaps:
    """A clock of CPU time that notes the longest time between two looks at it, and where the second
    was."""

    def __init__(self) -> None:
        self.longest, self.where = 0.0, ""
        self._last = time.thread_time()

    def __call__(self) -> float:
        gap = time.thread_time() - self._last
        if gap > self.longest:
            frame = sys._getframe(1)
            while frame.f_back and frame.f_code.co_filename.endswith("budget.py"):
                frame = frame.f_back
            name = frame.f_code.co_filename.rpartition("/")[2]
            self.longest, self.where = gap, f"{name}:{frame.f_lineno} {frame.f_code.co_name}"
        self._last = time.thread_time()
        return self._last


def longest_gap(body: bytes, site: Site) -> tuple[float, str]:
    gaps = Gaps()
    budget = Budget(clock=gaps)
    with suppress(FetchError):  # refused, which is fine if it was soon
        examine(page("https://county.example/", body), site, budget)
    gaps()
    return gaps.longest, gaps.where


def gives_way(body: bytes, site: Site = SITE) -> str:
    """Where it does not, else nothing; a machine that is slower now has more time, what is in doubt
    is tried again."""
    if longest_gap(body, site)[0] <= GAP_S:  # enough for the fastest machine
        return ""
    where = ""
    for _ in range(5):
        before = slowness()
        gap, where = longest_gap(body, site)
        limit = GAP_S * max(before, slowness())
        if gap <= limit:
            return ""
    return f"{gap:.2f} s of {limit:.2f} s before {where}"


def made(shape: Callable[[int], str], size: int) -> bytes:
    return shape(size).encode()[:size]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_page_gives_way(shape: str, size: int) -> None:
    """Parsing, verdict, fields and the general reading of every shape look at the clock at least
    every 0.25 s."""
    assert gives_way(made(SHAPES[shape], size)) == ""


@pytest.mark.parametrize("name", test_memory.PAGES)
def test_the_largest_pages_give_way(name: str) -> None:
    """The same for pages that take much memory."""
    made = test_memory.PAGES[name]()

    assert gives_way((made if isinstance(made, bytes) else made.encode())[:10_000_000]) == ""


@pytest.mark.parametrize(
    "end", [("x" * 500_000 + "'") * 20, '="' + "x'" * 5_000_000], ids=["names", "quotes"]
)
def test_tags_that_do_not_end_are_read_in_small_steps(end: str) -> None:
    """Tags that each go on to the page's end take long in total, but no step takes a great part of
    it."""
    page, gaps = ("< " * 60 + end).encode(), Gaps()
    began = time.thread_time()
    with suppress(FetchError):
        parse(page, Budget(clock=gaps))
    gaps()

    assert gaps.longest < (time.thread_time() - began) / 2, gaps.where


def test_many_fields_give_way() -> None:
    """Fields whose first element is looked for quickly are many quick searches."""
    body = b"<div><i>x</i></div>" * 60_000

    assert gives_way(body, Site(name="county", version="1", fields=QUICK)) == ""
