"""The Python library: `crawl_many` without a stack, in a process of its own that it starts."""

import os

from benchmarks.contestants import done, order, ready
from benchmarks.contestants.corridor import settings_of


def main() -> None:
    """Run."""
    given = order()
    settings_of(given)
    os.environ["CRAWLER_ALLOW_NETS"] = "127.0.0.0/8"
    from crawler import CrawlCoordinator

    coordinator = CrawlCoordinator("benchmark")
    ready()
    results = coordinator.crawl_many_sync(given.urls)
    done(sum(each["status"] == "success" for each in results))


if __name__ == "__main__":
    main()
