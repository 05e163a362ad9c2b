"""This program from end to end: import, Redis, Celery's children, fetch, verdict, record, durable
store, acknowledged.

The permit, robots.txt and the egress rule are on; the limits are wider than what is possible,
unless `polite` asks for those that hold by default. `workers` are Celery's children, `browsers`
those that render pages, and `site` is added to the site's file. With `distributed` false the same
goes on in this process alone, without Redis and Celery.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.contestants import Order, done, order, ready
from benchmarks.site import FIELDS
from crawler import config
from crawler.bulk import import_file
from crawler.lpm import LocalPersistenceManager
from crawler.models import QUEUES, Job
from crawler.orchestrator import Orchestrator
from crawler.worker import Worker, tune_garbage_collection

JOB = 10_000
SITE = {"hosts": ["127.0.0.1"], "rate": "1000000/s", "concurrency": 1000, "fields": FIELDS}


def written(given: Order) -> list[Path]:
    """Files of as many URLs as a job may have whose pages Flower shows: so every page sends its
    events."""
    files = []
    for start in range(0, len(given.urls), JOB):
        files.append(given.folder / f"urls-{start}.txt")
        files[-1].write_text("\n".join(given.urls[start : start + JOB]) + "\n")
    return files


def settings_of(given: Order) -> config.Settings:
    """A store of its own, with a site for the eight fields; children find it through the
    environment."""
    folder = given.folder / "config"
    (folder / "sites").mkdir(parents=True)
    polite = {
        "hosts": sorted({str(urlsplit(url).hostname) for url in given.urls}),
        "fields": FIELDS,
    }
    about = polite if given.options.get("polite") else SITE
    about = about | given.options.get("site", {})
    (folder / "sites" / "bench.yaml").write_text(json.dumps(about))  # JSON is YAML
    os.environ |= {
        "CRAWLER_DATA_DIR": str(given.folder / "data"),
        "CRAWLER_CONFIG_DIR": str(folder),
    }
    os.environ |= {name: str(value) for name, value in given.options.get("env", {}).items()}
    return config.load()


@contextmanager
def workers(settings: config.Settings, count: int, browsers: int = 0) -> Iterator[None]:
    """Redis and Celery's children; what they log goes to where errors go."""
    with Orchestrator(settings, count, browsers=browsers) as stack:
        stack.start_all()
        try:
            yield
        finally:
            for name in ("worker", "browsers", "redis"):
                log = settings.data_dir / "logs" / f"{name}.log"
                sys.stderr.write(log.read_text()[-4000:] if log.exists() else "")


def wait_for_end(settings: config.Settings, job: Job) -> int:
    """Wait until no task of the job is open; how many pages are stored."""
    with closing(LocalPersistenceManager(settings.data_dir)) as lpm:
        while lpm.counts.progress(job).open:
            time.sleep(0.1)
        books = lpm.counts.of_job(job)
    if books.completed != books.accepted:
        raise SystemExit(f"not everything was collected: {books}")
    return books.completed


def main() -> None:
    """Run."""
    given = order()
    files = written(given)
    settings = settings_of(given)
    if given.options.get("distributed", True):
        with workers(settings, given.options["workers"], given.options.get("browsers", 0)):
            from crawler.tasks import fill_window  # it finds the stack that is up now

            ready()
            jobs = []
            for file in files:
                jobs.append(import_file(settings, file, "default")[1])
                fill_window()  # as `bulk import` does
            done(sum([wait_for_end(settings, job) for job in jobs]))
        return
    tune_garbage_collection()
    worker = Worker(settings, kind="cli")
    ready()
    jobs = [import_file(settings, file, "default")[1] for file in files]
    with closing(LocalPersistenceManager(settings.data_dir)) as lpm:
        while any(lpm.counts.progress(job).open for job in jobs):
            if not worker.run_slice("", QUEUES):
                time.sleep(0.01)
    done(sum([wait_for_end(settings, job) for job in jobs]))
    worker.stop()


if __name__ == "__main__":
    main()
