"""One Celery task for each address: `delay()` in a loop, requests, BeautifulSoup on lxml,
acknowledged late.

`children` is `-c` of the prefork pool. Every task commits what it stores, and results are ignored.
`redis` is the address of one that is there already; else it starts its own. What it has pushed
once, it does not push again, and it gives up when nothing has come for `patience_s`.
"""

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import redis
import requests
from bs4 import BeautifulSoup
from celery import Celery

from benchmarks.contestants import done, order, ready
from benchmarks.contestants.store import Store, rows
from benchmarks.contestants.valkey import valkey
from benchmarks.site import FIELDS

app = Celery("naive", broker=os.environ.get("NAIVE_REDIS"))
app.conf.update(
    task_acks_late=True, task_ignore_result=True, broker_connection_retry_on_startup=True
)
_stores = dict[int, Store]()


@app.task(name="collect")
def collect(url: str) -> None:
    """One page."""
    response = requests.get(url, timeout=30)
    response.raise_for_status()
    soup = BeautifulSoup(response.content, "lxml")
    record = {
        name: node.get_text() if (node := soup.select_one(css)) else None
        for name, css in FIELDS.items()
    }
    store = _stores.get(os.getpid()) or _stores.setdefault(
        os.getpid(), Store(Path(os.environ["NAIVE_FOLDER"]), 1)
    )
    store.add(url, response.content, record)


def wait_for_end(folder: Path, count: int, patience_s: float) -> int:
    """Wait until so many are stored, or nothing more comes; how many are."""
    last, moved = -1, time.monotonic()
    while (
        now := int(rows(folder, "count(*)")[0])
    ) < count and time.monotonic() < moved + patience_s:
        if now > last:
            last, moved = now, time.monotonic()
        time.sleep(0.1)
    return now


def main() -> None:
    """Run."""
    given = order()
    with ExitStack() as exits:
        url = given.options.get("redis") or exits.enter_context(valkey(given.folder))
        os.environ |= {"NAIVE_REDIS": url, "NAIVE_FOLDER": str(given.folder)}
        app.conf.update(broker_url=url)
        argv = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "benchmarks.contestants.naive_celery",
            "worker",
        ]
        argv += ["-c", str(given.options["children"]), "--loglevel", "WARNING"]
        worker = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        try:
            while not app.control.ping(timeout=0.5):
                if worker.poll() is not None:
                    raise SystemExit("the worker has ended")
            Store(given.folder)
            ready()
            with redis.Redis.from_url(url) as client:
                if client.setnx("pushed", 1):
                    for each in given.urls:
                        collect.delay(each)
            done(wait_for_end(given.folder, len(given.urls), given.options.get("patience_s", 60)))
        finally:
            worker.terminate()
            worker.wait(60)


if __name__ == "__main__":
    main()
