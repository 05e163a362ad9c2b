"""The requirements' main program: `python -m tests.support.all_sites WORKERS`.

Crawls all sites at once with the orchestrator, and prints as JSON what the wait returned, how often
progress was read meanwhile, and what was wrong with it.
"""

import json
import sys
import threading
from typing import Any

import redis

from crawler.config import load
from crawler.orchestrator import Orchestrator
from crawler.redis_client import connect
from crawler.scraping.redis_keys import progress_key
from crawler.sites import load_start_urls
from crawler.stack import redis_address


class Reader:
    """Reads the progress of jobs again and again, from the orchestrator and from Redis."""

    def __init__(self, orch: Orchestrator) -> None:
        self._orch = orch
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self.wrong: list[str] = []
        self.looks = 0
        self.jobs: list[str] = []

    def __enter__(self) -> "Reader":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _read(self) -> None:
        ended: set[str] = set()
        while not self._over.wait(0.1):
            for job in self.jobs:
                found = self._orch.get_site_progress(job)
                self._check(job, found["completed"], found["total"])
                if job in ended and found["status"] != "COMPLETE":
                    self.wrong.append(f"{job} was COMPLETE, and is {found['status']}")
                if found["status"] == "COMPLETE":
                    ended.add(job)
                self._check(job, *self._in_redis(job))

    def _in_redis(self, job: str) -> tuple[int, int]:
        keys = [progress_key(job, name) for name in ("completed", "total_chunks")]
        try:
            client: Any = connect(redis_address(load()))
            completed, total = client.mget(keys)
        except (redis.RedisError, OSError):
            return 0, 0
        return int(completed or 0), int(total or 0)

    def _check(self, job: str, completed: int, total: int) -> None:
        self.looks += 1
        if not 0 <= completed <= total:
            self.wrong.append(f"{job}: {completed} of {total}")


def main(workers: int) -> None:
    """Start everything, crawl, wait."""
    with Orchestrator(workers=workers) as orch:
        orch.start_all()
        sites = load_start_urls()
        with Reader(orch) as reader:
            result = orch.scrape_all_sites_parallel(sites)
            first = orch.wait_for_all_sites_completion(result["group_id"], timeout_s=0)
            reader.jobs = [each["job_id"] for each in first["sites"].values()]
            done = orch.wait_for_all_sites_completion(result["group_id"])
    print(json.dumps(done | {"looks": reader.looks, "wrong": reader.wrong}))
    sys.exit(not done["complete"] or bool(reader.wrong))


if __name__ == "__main__":
    main(int(sys.argv[1]))
