"""What the peers that render pages have in common: the browser, what it does not load, and what is
kept of a page."""

import ctypes
import os
from typing import Any, Final

from benchmarks.contestants import Order
from benchmarks.contestants.fields import fields
from benchmarks.contestants.store import Store

UNTIL: Final = "networkidle"
"""Loaded, and half a second without a request: what the crawler waits for, too."""
BLOCKED = [f".{ending}" for ending in ("gif", "jpg", "mp4", "png", "svg", "webp", "woff", "woff2")]
"""Images, media and fonts. Crawlee blocks by patterns of URLs."""
_SET_CHILD_SUBREAPER = 36  # of prctl(2)


def launch_options(given: Order) -> dict[str, Any]:
    """How Chromium is started: Playwright's own switches, and a sandbox where the crawler's has
    one."""
    return {
        "executable_path": given.options["program"],
        "args": ["--disable-gpu", "--disable-dev-shm-usage"],
        "chromium_sandbox": os.geteuid() != 0,
    }


def adopt_orphans() -> None:
    """Become the parent of what a browser leaves when it ends: else its CPU would not be counted.

    The crawler's guard does the same for the crawler.
    """
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)


def keep(store: Store, url: str, dom: str) -> None:
    """Store a page and its record."""
    body = dom.encode()
    store.add(url, body, fields(body))
