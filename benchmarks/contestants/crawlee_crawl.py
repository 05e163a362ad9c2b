"""Crawlee's HttpCrawler, the cheapest of its crawlers, with selectolax in its handler and the
fastest of its clients.

`storage` is where its request queue is kept: `memory` or `disk`. `requests` are in flight, always:
its own scaling would begin lower and go back at 95 % CPU. One process, because its queues are;
`processes` share the addresses. With `keep` it does not empty its storage when it starts. With
`follow` it follows every link.
"""

import asyncio

import uvloop
from crawlee import ConcurrencySettings, service_locator
from crawlee.configuration import Configuration
from crawlee.crawlers import HttpCrawler, HttpCrawlingContext
from crawlee.http_clients import ImpitHttpClient
from crawlee.storage_clients import FileSystemStorageClient, MemoryStorageClient

from benchmarks.contestants import Done, Order, Ready, divide
from benchmarks.contestants.fields import fields, links
from benchmarks.contestants.store import EVERY, Store

STORAGES = {"disk": FileSystemStorageClient, "memory": MemoryStorageClient}


async def collect(given: Order, ready: Ready, done: Done) -> None:
    """Fetch, parse, store."""
    store, flying = (
        Store(given.folder, given.options.get("every", EVERY)),
        given.options["requests"],
    )
    service_locator.set_configuration(
        Configuration(
            storage_dir=str(given.folder / "storage"),
            purge_on_start=not given.options.get("keep"),
            log_level="WARNING",
        )
    )
    crawler = HttpCrawler(
        storage_client=STORAGES[given.options["storage"]](),
        http_client=ImpitHttpClient(browser=None, persist_cookies_per_session=False),
        concurrency_settings=ConcurrencySettings(
            min_concurrency=flying, desired_concurrency=flying, max_concurrency=flying
        ),
        use_session_pool=False,
        retry_on_blocked=False,
        respect_robots_txt_file=True,
    )

    @crawler.router.default_handler
    async def page(context: HttpCrawlingContext) -> None:
        body = await context.http_response.read()
        store.add(context.request.url, body, fields(body))
        if given.options.get("follow"):
            await context.add_requests(links(context.request.url, body))

    ready()
    await crawler.run(given.urls)
    store.commit()
    done(store.stored)


def crawl(given: Order, ready: Ready, done: Done) -> None:
    """Run."""
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.run(collect(given, ready, done))


if __name__ == "__main__":
    divide(crawl)
