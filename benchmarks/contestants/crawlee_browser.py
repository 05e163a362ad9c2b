"""Crawlee's PlaywrightCrawler, with a browser context of its own for each page as the crawler has.

`tabs` pages are rendered at a time, always. It makes up no fingerprints, which take time, and
replaces its browser after 100 pages.
"""

import asyncio

import uvloop
from crawlee import ConcurrencySettings, service_locator
from crawlee.configuration import Configuration
from crawlee.crawlers import (
    PlaywrightCrawler,
    PlaywrightCrawlingContext,
    PlaywrightPreNavCrawlingContext,
)
from crawlee.storage_clients import MemoryStorageClient

from benchmarks.contestants import done, order, ready
from benchmarks.contestants.chromium import BLOCKED, UNTIL, adopt_orphans, keep, launch_options
from benchmarks.contestants.store import Store


async def crawl() -> None:
    """Render, parse, store."""
    given = order()
    store, tabs = Store(given.folder), given.options["tabs"]
    service_locator.set_configuration(
        Configuration(storage_dir=str(given.folder / "storage"), log_level="WARNING")
    )
    crawler = PlaywrightCrawler(
        storage_client=MemoryStorageClient(),
        concurrency_settings=ConcurrencySettings(
            min_concurrency=tabs, desired_concurrency=tabs, max_concurrency=tabs
        ),
        browser_type="chromium",
        headless=True,
        use_incognito_pages=True,
        fingerprint_generator=None,
        browser_launch_options=launch_options(given),
        goto_options={"wait_until": UNTIL},
        use_session_pool=False,
        retry_on_blocked=False,
        respect_robots_txt_file=True,
    )

    @crawler.pre_navigation_hook
    async def block(context: PlaywrightPreNavCrawlingContext) -> None:
        await context.block_requests(url_patterns=BLOCKED)

    @crawler.router.default_handler
    async def page(context: PlaywrightCrawlingContext) -> None:
        keep(store, context.request.url, await context.page.content())
        if store.stored == len(given.urls):
            store.commit()
            done(store.stored)

    ready()
    await crawler.run(given.urls)
    if store.stored < len(given.urls):
        store.commit()
        done(store.stored)


if __name__ == "__main__":
    adopt_orphans()
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.run(crawl())
