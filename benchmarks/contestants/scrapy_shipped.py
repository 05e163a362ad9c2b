"""Scrapy as `scrapy startproject` makes it, all parts its own, with settings for speed; parsel; a
pipeline that stores.

`requests` are in flight. One process, because that is what `scrapy crawl` is; `processes` share the
addresses. With `jobdir` it keeps its queue in the folder, as Scrapy documents for crawls that are
to go on later. `filter` lets first requests, too, through its filter of duplicates, which Scrapy's
own spiders do not. With `follow` it follows every link.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import scrapy
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.http import Response

from benchmarks.contestants import Done, Order, Ready, divide
from benchmarks.contestants.store import EVERY, Store
from benchmarks.site import FIELDS

SETTINGS: dict[str, Any] = {
    "ROBOTSTXT_OBEY": True,
    "DOWNLOAD_DELAY": 0,
    "AUTOTHROTTLE_ENABLED": False,
    # A page gives one item; Scrapy starts this many asyncio tasks for every response.
    "CONCURRENT_ITEMS": 1,
    "LOG_LEVEL": "INFO",
    "TELNETCONSOLE_ENABLED": False,
    "FEED_EXPORT_ENCODING": "utf-8",
}


class Pages(scrapy.Spider):
    """Fetches what it is given, and follows links only with `follow`."""

    name = "pages"

    def __init__(self, given: Order, ready: Ready, done: Done) -> None:
        super().__init__()
        self.given, self.ready, self.done = given, ready, done

    async def start(self) -> AsyncIterator[scrapy.Request]:
        """All addresses."""
        self.ready()
        for url in self.given.urls:
            yield scrapy.Request(url, dont_filter=not self.given.options.get("filter"))

    def parse(self, response: Response) -> Iterator[Any]:
        """The eight fields, and the links."""
        record = {name: response.css(css + "::text").get() for name, css in FIELDS.items()}
        yield {"url": response.url, "body": response.body, "record": record}
        if self.given.options.get("follow"):
            yield from response.follow_all(css="a[href]", callback=self.parse)


class Pipeline:
    """Stores pages, and says so after the last."""

    def __init__(self, crawler: Any) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Any) -> "Pipeline":
        """As Scrapy makes it."""
        return cls(crawler)

    def open_spider(self) -> None:
        """Begin."""
        self._spider = self._crawler.spider
        self._store = Store(
            self._spider.given.folder, self._spider.given.options.get("every", EVERY)
        )
        self._said = False

    def process_item(self, item: dict[str, Any]) -> dict[str, Any]:
        """Store one."""
        self._store.add(**item)
        given = self._spider.given
        if self._store.stored == len(given.urls) and not given.options.get("follow"):
            self.close_spider()
        return item

    def close_spider(self) -> None:
        """Say it; with fewer than all where Scrapy has no more."""
        self._store.commit()
        if not self._said:
            self._said = True
            self._spider.done(self._store.stored)


def settings_of(given: Order) -> dict[str, Any]:
    """The settings of a run."""
    requests = given.options["requests"]
    settings = {
        **SETTINGS,
        "CONCURRENT_REQUESTS": requests,
        "CONCURRENT_REQUESTS_PER_DOMAIN": requests,
        "ITEM_PIPELINES": {Pipeline: 300},
    }
    if given.options.get("jobdir"):
        settings["JOBDIR"] = str(given.folder / "job")
    return settings


def crawl(given: Order, ready: Ready, done: Done) -> None:
    """Run."""
    process = AsyncCrawlerProcess(settings_of(given))
    process.crawl(Pages, given, ready, done)
    process.start()


if __name__ == "__main__":
    divide(crawl)
