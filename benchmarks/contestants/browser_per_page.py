"""A new browser for each page, by Playwright: launched, used for one page, closed.

`tabs` browsers run at a time. One driver serves them all; with `own_driver` each page starts its
own, as a function does that begins with `sync_playwright()`.
"""

import asyncio
from contextlib import nullcontext
from typing import Any

import uvloop
from playwright.async_api import Playwright, async_playwright

from benchmarks.contestants import done, order, ready
from benchmarks.contestants.chromium import BLOCKED, UNTIL, adopt_orphans, keep, launch_options
from benchmarks.contestants.store import Store


async def render(playwright: Playwright, how: dict[str, Any], url: str) -> str:
    """The DOM of a page."""
    browser = await playwright.chromium.launch(**how)
    tab = await browser.new_page()
    cdp = await tab.context.new_cdp_session(tab)
    await cdp.send("Network.enable")
    await cdp.send("Network.setBlockedURLs", {"urls": BLOCKED})
    await tab.goto(url, wait_until=UNTIL)
    dom = await tab.content()
    await browser.close()
    return dom


async def crawl() -> None:
    """Render, parse, store."""
    given = order()
    store, left, how = Store(given.folder), iter(given.urls), launch_options(given)
    own_driver = given.options.get("own_driver")

    async def work(shared: Playwright) -> None:
        for url in left:
            async with async_playwright() if own_driver else nullcontext(shared) as playwright:
                dom = await render(playwright, how, url)
            keep(store, url, dom)

    async with async_playwright() as shared:
        ready()
        await asyncio.gather(*(work(shared) for _ in range(given.options["tabs"])))
        store.commit()
        done(store.stored)


if __name__ == "__main__":
    adopt_orphans()
    uvloop.run(crawl())
