"""The API and the library: what slow clients cost a crawl, what workers gain, and what the ways in
cost beside `bulk import`.

`python -m benchmarks.api` fills the figures into RESULTS.md.
"""

import argparse
import json
import re
import selectors
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from benchmarks import report, site
from benchmarks.profile import WORK, apart

ROUNDS, CHILDREN = 3, 3
STREAMED, DIRECT, QUEUED, SLOW = 5_000, 3_000, 1_000, 100
"""Pages of each part."""
CLIENTS = 100
"""Half of them take nothing, the others a little now and then."""
SIP, SIP_INTERVAL_S = 4_096, 0.2
GOALS = {"streams": 0.9, "workers": 0.5, "direct": 0.8, "queued": 1.2}
LOOPBACK = {"CRAWLER_ALLOW_NETS": "127.0.0.0/8"}


# Slow clients


class Crowd:
    """WebSocket clients of one session that take nothing, or too little."""

    def __init__(self, url: str, session_id: str) -> None:
        self._address = urlsplit(url)
        self._path = f"/api/crawl/{session_id}/stream"
        self._selector = selectors.DefaultSelector()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._sip)
        self._all: list[socket.socket] = []
        self.taken = 0
        """Bytes that the slow ones have taken."""

    def __enter__(self) -> Self:
        for number in range(CLIENTS):
            self._all.append(self._connected())
            if number % 2:
                self._selector.register(self._all[-1], selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()
        for client in self._all:
            client.close()

    def _connected(self) -> socket.socket:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SIP)
        client.connect((self._address.hostname, self._address.port))
        client.sendall(
            f"GET {self._path} HTTP/1.1\r\nHost: {self._address.netloc}\r\n"
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        status = client.recv(12, socket.MSG_WAITALL)
        if not status.endswith(b"101"):
            raise SystemExit(f"api: a WebSocket was answered with {status!r}")
        return client

    def _sip(self) -> None:
        while not self._is_over.wait(SIP_INTERVAL_S):
            for key, _ in self._selector.select(0):
                client = key.fileobj
                assert isinstance(client, socket.socket)
                data = b""
                with suppress(OSError):  # the server may have left it
                    data = client.recv(SIP)
                self.taken += len(data)
                if not data:
                    self._selector.unregister(client)


class Streams(NamedTuple):
    """One round: pages a second."""

    before: float
    beside: float
    after: float

    @property
    def ratio(self) -> float:
        """Of the pages a second with the clients, to those without them."""
        return self.beside / statistics.mean((self.before, self.after))


def streams(folder: Path) -> Streams:
    """Collect pages by the API three times, the second time with clients on the stream."""
    with stack(folder, CHILDREN) as settings, served(settings) as url:
        collect(settings, url, "warm-up", STREAMED // 5)
        before = collect(settings, url, "before", STREAMED)
        beside = collect(settings, url, "beside", STREAMED, is_crowded=True)
        after = collect(settings, url, "after", STREAMED)
    return Streams(before, beside, after)


def collect(settings: Any, url: str, name: str, count: int, is_crowded: bool = False) -> float:
    """Have pages collected by workers; returns pages a second."""
    from benchmarks.contestants.corridor import wait_for_end
    from crawler.lpm import LocalPersistenceManager

    urls = pages(site.FAST, name, count)
    began = time.perf_counter()
    send(url, {"urls": urls, "session_id": name, "distributed": True, "wait": False})
    with closing(LocalPersistenceManager(settings.data_dir)) as lpm:
        batch = lpm.batches.find("", name)
    assert batch
    if is_crowded:
        with Crowd(url, name) as crowd:
            done = wait_for_end(settings, batch.job)
            seconds = time.perf_counter() - began
        if not crowd.taken:
            raise SystemExit("api: the slow clients got nothing")
    else:
        done = wait_for_end(settings, batch.job)
        seconds = time.perf_counter() - began
    return done / seconds


def send(url: str, body: dict[str, Any]) -> None:
    """Send a batch."""
    with closing(HTTPConnection(urlsplit(url).netloc, timeout=60)) as connection:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/api/crawl/batch", json.dumps(body), headers)
        answer = connection.getresponse()
        if answer.status != 202:
            raise SystemExit(f"api: a batch was answered with {answer.status}: {answer.read()!r}")


@contextmanager
def served(settings: Any) -> Iterator[str]:
    """The API in a process of its own; its URL."""
    command = [sys.executable, "-m", "crawler", "serve", "--port", "0"]
    log = settings.data_dir / "serve.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        while not (found := re.search(r"listens on (http://\S+)", log.read_text())):
            if process.poll() is not None:
                raise SystemExit(f"api: the server has ended; see {log}")
            time.sleep(0.05)
        yield found[1]
    finally:
        process.terminate()
        process.wait(60)


# Workers, and the library


def workers(folder: Path, count: int) -> float:
    """Seconds for some pages of a slow server with so many workers, two pages at a time each."""
    with stack(folder, count, CRAWLER_PAGES="2"):
        return crawled(site.SLOW, "workers", SLOW, distributed=True)


def direct(folder: Path) -> float:
    """Pages a second of the library without a stack."""
    settings_in(folder)
    return DIRECT / crawled(site.FAST, "direct", DIRECT, distributed=False)


def one_process(folder: Path) -> float:
    """Pages a second of the corridor in one process, without a program around it."""
    from crawler.bulk import import_file
    from crawler.lpm import LocalPersistenceManager
    from crawler.models import QUEUES
    from crawler.worker import Worker, tune_garbage_collection

    settings = settings_in(folder)
    tune_garbage_collection()
    worker = Worker(settings, kind="cli")
    began = time.perf_counter()
    job = import_file(settings, listed(folder, site.FAST, "direct", DIRECT), "default")[1]
    with closing(LocalPersistenceManager(settings.data_dir)) as lpm:
        while lpm.counts.progress(job).open:
            if not worker.run_slice("", QUEUES):
                time.sleep(0.01)
    seconds = time.perf_counter() - began
    worker.stop()
    return DIRECT / seconds


class Queued(NamedTuple):
    """One round: seconds."""

    imported: float
    library: float

    @property
    def ratio(self) -> float:
        """Of the library's time to that of the import."""
        return self.library / self.imported


def queued(folder: Path) -> Queued:
    """Collect pages through one stack by `bulk import` and by the library, in turn."""
    from benchmarks.contestants.corridor import wait_for_end
    from crawler.bulk import import_file

    with stack(folder, CHILDREN) as settings:
        from crawler.tasks import fill_window  # it finds the stack that is up now

        def imported(name: str) -> float:
            file = listed(folder, site.FAST, name, QUEUED)
            began = time.perf_counter()
            job = import_file(settings, file, "default")[1]
            fill_window()
            wait_for_end(settings, job)
            return time.perf_counter() - began

        def library(name: str) -> float:
            return crawled(site.FAST, name, QUEUED, distributed=True)

        imported("warm-up"), library("warm-up-2")
        first, second, third, fourth = imported("a"), library("b"), library("c"), imported("d")
    return Queued(statistics.mean((first, fourth)), statistics.mean((second, third)))


def crawled(port: int, name: str, count: int, distributed: bool) -> float:
    """Seconds that the library takes for so many pages."""
    import crawler

    urls = pages(port, name, count)
    coordinator = crawler.CrawlCoordinator(name, distributed=distributed)
    began = time.perf_counter()
    results = coordinator.crawl_many_sync(urls)
    seconds = time.perf_counter() - began
    if [each["url"] for each in results if each["status"] == "success"] != urls:
        raise SystemExit(f"api: not everything was collected: {coordinator.statistics}")
    return seconds


@contextmanager
def stack(folder: Path, children: int, **env: str) -> Iterator[Any]:
    """The whole stack in a store of its own; its settings."""
    from benchmarks.contestants import corridor

    settings = settings_in(folder, **env)
    with corridor.workers(settings, children):
        yield settings


def settings_in(folder: Path, **env: str) -> Any:
    """The settings of a store of its own."""
    from benchmarks.contestants import Order
    from benchmarks.contestants.corridor import settings_of

    return settings_of(Order([], folder, {"env": LOOPBACK | env}))


def pages(port: int, name: str, count: int) -> list[str]:
    """Addresses that no other run of a store has."""
    return [f"{url}?run={name}" for url in site.urls(port, count)]


def listed(folder: Path, port: int, name: str, count: int) -> Path:
    """A file of them."""
    file = folder / f"{name}.txt"
    file.write_text("".join(f"{url}\n" for url in pages(port, name, count)))
    return file


# The report


def measured(rounds: int, only: Sequence[str]) -> dict[str, list[Any]]:
    """What the parts came to, one after the other in each round."""
    found: dict[str, list[Any]] = {name: [] for name in PARTS if not only or name in only}
    site.write(WORK / "site")
    with site.served(WORK / "site", WORK / "nginx"):
        for _ in range(rounds):
            for name, figures in found.items():
                figures.append(PARTS[name]())
                print(name, figures[-1], file=sys.stderr, flush=True)
    return found


PARTS: dict[str, Callable[[], Any]] = {
    "streams": lambda: apart(streams),
    "workers": lambda: (apart(workers, 1), apart(workers, 4)),
    "direct": lambda: (apart(one_process), apart(direct)),
    "queued": lambda: apart(queued),
}


def told(found: dict[str, list[Any]]) -> str:
    """The report."""
    rows = list(_rows(found))
    rounds = len(next(iter(found.values())))
    return "\n\n".join(
        (
            "## The API and the library",
            report.machine(),
            f"Medians of {rounds} rounds; each ratio is one of figures of the same round.",
            report.table(("what", "without", "with", "ratio", "goal"), rows),
        )
    )


def _rows(found: dict[str, list[Any]]) -> Iterator[tuple[str, str, str, str, str]]:
    median = statistics.median
    if all_ := found.get("streams"):
        without = median(statistics.mean((each.before, each.after)) for each in all_)
        yield (
            f"pages/s, {STREAMED:,} pages by `POST /api/crawl/batch`, {CHILDREN} workers; with "
            f"{CLIENTS} WebSocket clients that read slowly or nothing",
            f"{without:,.0f}", f"{median(each.beside for each in all_):,.0f}",
            f"{median(each.ratio for each in all_):.2f}", f"at least {GOALS['streams']}",
        )  # fmt: skip
    if all_ := found.get("workers"):
        yield (
            f"seconds, {SLOW} URLs on a server that takes 100 to 300 ms, two pages at a time for "
            "each worker; 1 worker, and 4",
            f"{median(one for one, _ in all_):.1f}", f"{median(four for _, four in all_):.1f}",
            f"{median(four / one for one, four in all_):.2f}", f"less than {GOALS['workers']}",
        )  # fmt: skip
    if all_ := found.get("direct"):
        yield (
            f"pages/s, {DIRECT:,} pages; corridor, one process, and the library with "
            "`distributed=False`",
            f"{median(plain for plain, _ in all_):,.0f}", f"{median(own for _, own in all_):,.0f}",
            f"{median(own / plain for plain, own in all_):.2f}", f"at least {GOALS['direct']}",
        )  # fmt: skip
    if all_ := found.get("queued"):
        yield (
            f"seconds, {QUEUED:,} pages through a stack; `bulk import`, and `crawl_many`",
            f"{median(each.imported for each in all_):.1f}",
            f"{median(each.library for each in all_):.1f}",
            f"{median(each.ratio for each in all_):.2f}", f"at most {GOALS['queued']}",
        )  # fmt: skip


def main() -> None:
    """Measure and report."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=0, help="then nothing is written")
    options.add_argument("--only", default="", help="such as streams,workers; nothing is written")
    given = options.parse_args()
    only = [name for name in given.only.split(",") if name]
    if unknown := set(only) - set(PARTS):
        options.error(f"there is no {', '.join(sorted(unknown))}")
    text = told(measured(given.rounds or ROUNDS, only))
    print(text)
    if not given.rounds and not only:
        report.section("api", text)


if __name__ == "__main__":
    main()
