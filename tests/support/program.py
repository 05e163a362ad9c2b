"""A program that crawls the URLs of a file, as users of the library write it.

`python -m tests.support.program SESSION FILE [distributed] [give_up_s]`: prints how many pages are
done, and in the end the results as JSON.
"""

import json
import sys
from pathlib import Path

from crawler import CrawlCoordinator


def main() -> None:
    """Crawl, and print the results."""
    session, file, *how = sys.argv[1:]
    coordinator = CrawlCoordinator(session, distributed="distributed" in how)
    results = coordinator.crawl_many_sync(
        Path(file).read_text().splitlines(), on_progress=lambda done, total: print(done, flush=True)
    )
    loaded = sorted({"celery", "redis", "fastapi"} & set(sys.modules))
    print(json.dumps({"results": results, "loaded": loaded}))


if __name__ == "__main__":
    main()
