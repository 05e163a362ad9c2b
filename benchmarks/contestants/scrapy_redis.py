"""scrapy-redis: Scrapy as shipped, with its queue in Valkey and kept there (SCHEDULER_PERSIST).

The addresses are pushed to Valkey first: that is part of what is measured. `redis` is the address
of one that is there already; else it starts its own. What it has pushed once, it does not push
again.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import redis
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.http import Response
from scrapy_redis.spiders import RedisSpider

from benchmarks.contestants import Done, Order, Ready, divide
from benchmarks.contestants.scrapy_shipped import Pages, settings_of
from benchmarks.contestants.valkey import valkey

BATCH = 1000
"""It takes more from Valkey only when it has nothing in flight: with its default (as many as may be
in flight) that is a pause after every batch."""


class RedisPages(RedisSpider):
    """Fetches what Valkey has for it."""

    name = "pages"
    redis_batch_size = BATCH
    max_idle_time = 2

    def __init__(self, given: Order, done: Done) -> None:
        super().__init__()
        self.given, self.done = given, done

    def parse(self, response: Response) -> Iterator[Any]:
        """The eight fields, and the links."""
        return Pages.parse(self, response)


def push(given: Order, url: str) -> None:
    """The addresses, where they have not been pushed before."""
    with redis.Redis.from_url(url) as client:
        if client.setnx("pushed", 1):
            with client.pipeline() as pipe:
                for each in given.urls:
                    pipe.rpush("pages:start_urls", json.dumps({"url": each}))
                pipe.execute()


def crawl(given: Order, ready: Ready, done: Done) -> None:
    """Run."""
    with ExitStack() as exits:
        url = given.options.get("redis") or exits.enter_context(valkey(given.folder))
        settings = {
            **settings_of(given),
            "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
            "SCHEDULER_PERSIST": True,
            "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
            "REDIS_URL": url,
        }
        process = AsyncCrawlerProcess(settings)
        ready()
        push(given, url)
        process.crawl(RedisPages, given, done)
        process.start()


if __name__ == "__main__":
    divide(crawl)
