"""Scrapy as fast as its own settings make it: no Twisted, uvloop, its aiohttp client, selectolax,
few middlewares.

`requests` are in flight; `processes` share the addresses.
"""

from collections.abc import Iterator
from typing import Any

from scrapy.crawler import AsyncCrawlerProcess
from scrapy.http import Response

from benchmarks.contestants import Done, Order, Ready, divide
from benchmarks.contestants.fields import fields
from benchmarks.contestants.scrapy_shipped import Pages, settings_of

_CLIENT = "scrapy.core.downloader.handlers._aiohttp.AiohttpDownloadHandler"
_OFF = ("offsite.Offsite", "httpauth.HttpAuth", "downloadtimeout.DownloadTimeout",
        "useragent.UserAgent", "redirect.MetaRefresh", "httpcompression.HttpCompression",
        "redirect.Redirect", "cookies.Cookies", "httpproxy.HttpProxy",
        "httpcache.HttpCache")  # fmt: skip
_SPIDER_OFF = ("start.StartSpider", "referer.Referer", "urllength.UrlLength", "depth.Depth",
               "metacopy.MetaCopyDetection")  # fmt: skip
SETTINGS: dict[str, Any] = {
    "TWISTED_REACTOR_ENABLED": False,
    "ASYNCIO_EVENT_LOOP": "uvloop.Loop",
    "DOWNLOAD_HANDLERS": {"http": _CLIENT, "https": _CLIENT, "ftp": None, "s3": None},
    "DOWNLOADER_MIDDLEWARES": {
        f"scrapy.downloadermiddlewares.{name}Middleware": None for name in _OFF
    }
    | {"scrapy.downloadermiddlewares.stats.DownloaderStats": None},
    "SPIDER_MIDDLEWARES": {
        f"scrapy.spidermiddlewares.{name}Middleware": None for name in _SPIDER_OFF
    },
    "DUPEFILTER_CLASS": "scrapy.dupefilters.BaseDupeFilter",
    "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue",
    "STATS_CLASS": "scrapy.statscollectors.DummyStatsCollector",
    "LOG_LEVEL": "WARNING",
    "MEMUSAGE_ENABLED": False,
    "REMOTE_CONTROL_ENABLED": False,
    "WARN_ON_GENERATOR_RETURN_VALUE": False,
}


class FasterPages(Pages):
    """The same with selectolax."""

    def parse(self, response: Response) -> Iterator[dict[str, Any]]:
        """The eight fields."""
        yield {"url": response.url, "body": response.body, "record": fields(response.body)}


def crawl(given: Order, ready: Ready, done: Done) -> None:
    """Run."""
    process = AsyncCrawlerProcess(settings_of(given) | SETTINGS)
    process.crawl(FasterPages, given, ready, done)
    process.start()


if __name__ == "__main__":
    divide(crawl)
