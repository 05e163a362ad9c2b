"""The crash drill beside the peers: everything is killed in the middle of a crawl, and the same
command given again. Once with a list of URLs, and once with one URL whose links are followed.

Example: python -m benchmarks.crash --part links --only crawler,scrapy
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks import measure, report, site
from benchmarks.contestants.store import rows
from benchmarks.contestants.valkey import valkey
from benchmarks.speed import PEERS, WORK
from tests.support.graph import Graph

PAGES, KILL_AT = 300, (120,)
"""Pages given as a list, and after how many of them everything is killed."""
NODES, KILL_NODES_AT = 2_000, (300, 600, 900, 1_200, 1_500)
"""Pages of the link graph, and after how many different ones everything is killed."""
LATENCY_S = 0.05, 0.15
LIMIT_S = 180.0
"""A run that takes longer counts as one that does not end."""
FOLDER = WORK / "crash"


class Contestant(NamedTuple):
    """Who is killed. `every` 1: the peers commit each page at once, so that what they lose is not
    the store's doing."""

    title: str
    module: str
    options: Mapping[str, Any] = {}
    redis: bool = False
    """It gets one that is not killed."""


LISTED = {
    "crawler": Contestant("**crawler** `run`; its Redis is killed, too", ""),
    "scrapy": Contestant(
        "Scrapy, JOBDIR, addresses through its filter of duplicates", "scrapy_shipped",
        {"requests": 16, "every": 1, "jobdir": True, "filter": True},
    ),
    "scrapy-again": Contestant(
        "Scrapy, JOBDIR, addresses as `start_urls`", "scrapy_shipped",
        {"requests": 16, "every": 1, "jobdir": True}
    ),
    "scrapy-redis": Contestant(
        "scrapy-redis, SCHEDULER_PERSIST; Redis lives on", "scrapy_redis",
        {"requests": 16, "every": 1}, redis=True
    ),
    "crawlee": Contestant(
        "Crawlee, disk, not purged at start", "crawlee_crawl",
        {"storage": "disk", "requests": 16, "every": 1, "keep": True},
    ),
    "naive": Contestant(
        "one Celery task per URL, `acks_late`; Redis lives on; 20 s waited, the rest comes back "
        "after an hour",
        "naive_celery", {"children": 8, "patience_s": 20}, redis=True,
    ),
}  # fmt: skip
LINKED = {
    "crawler": Contestant("**crawler** `crawl`; its Redis is killed, too", ""),
    "scrapy": Contestant(
        "Scrapy, JOBDIR", "scrapy_shipped",
        {"requests": 16, "every": 1, "jobdir": True, "follow": True},
    ),
    "scrapy-redis": Contestant(
        "scrapy-redis, SCHEDULER_PERSIST; Redis lives on", "scrapy_redis",
        {"requests": 16, "every": 1, "follow": True}, redis=True
    ),
    "crawlee": Contestant(
        "Crawlee, disk, not purged at start", "crawlee_crawl",
        {"storage": "disk", "requests": 16, "every": 1, "keep": True, "follow": True},
    ),
}  # fmt: skip


class Score(NamedTuple):
    """What came of a drill."""

    missing: int
    twice: int
    kills: int
    """Fewer than planned where the program had ended by itself, with pages missing."""
    code: str
    """The last run's exit code."""
    seconds: float
    """The time of the last run."""


class Part(NamedTuple):
    """What is crawled, by whom, and when it is killed."""

    contestants: Mapping[str, Contestant]
    bodies: Callable[[], dict[str, bytes]]
    kill_at: Sequence[int]
    starts: int | None
    """URLs that the command gets: the first ones, or all."""
    section: str
    """Of the report."""
    told: Callable[[Sequence[tuple[str, Score]]], str]


def _listed_pages() -> dict[str, bytes]:
    return {f"/pages/{n:05d}.html": site.page(n, PAGES).encode() for n in range(PAGES)}


def _linked_pages() -> dict[str, bytes]:
    graph = Graph(NODES)
    return {graph.path(n): graph.body(n) for n in range(NODES)}


def listed(found: Sequence[tuple[str, Score]]) -> str:
    """The report of the part `list`."""
    lines = [(title, it.missing, it.twice, it.code, f"{it.seconds:.0f}") for title, it in found]
    return "\n\n".join(
        (
            "## Killed in the middle",
            report.machine(PEERS),
            f"{PAGES} pages with a latency of {LATENCY_S[0] * 1000:.0f} to "
            f"{LATENCY_S[1] * 1000:.0f} ms, 16 in flight (the Celery task: 8 children); SIGKILL "
            f"for all processes at page {KILL_AT[0]}, then the same command again. Missing: pages "
            "without a committed row in the end. Fetched twice: what the server was asked for "
            "beyond once a page. The peers commit every page at once.",
            report.table(
                ("", f"missing of {PAGES}", "fetched twice", "exit code", "second run, s"), lines
            ),
        )
    )


def linked(found: Sequence[tuple[str, Score]]) -> str:
    """The report of the part `links`."""
    lines = [
        (title, it.missing, it.twice, it.kills, it.code, f"{it.seconds:.0f}") for title, it in found
    ]
    return "\n\n".join(
        (
            "## Killed while links are followed",
            report.machine(PEERS),
            f"As above, with links: {NODES:,} pages of which each links to ten others, from one "
            f"start URL, with {len(KILL_NODES_AT)} kills, at pages "
            f"{', '.join(f'{count:,}' for count in KILL_NODES_AT)}. Fewer kills: the program had "
            "ended by itself before, as if it were done.",
            report.table(
                ("", f"missing of {NODES:,}", "fetched twice", "kills", "exit code", "last run, s"),
                lines,
            ),
        )
    )


PARTS = {
    "list": Part(LISTED, _listed_pages, KILL_AT, None, "crash", listed),
    "links": Part(LINKED, _linked_pages, KILL_NODES_AT, 1, "crash_links", linked),
}


class Server:
    """Pages with some latency, and how often each was asked for."""

    def __init__(self, bodies: dict[str, bytes]) -> None:
        self._bodies = bodies
        self.asked = Counter[str]()
        self.answered = set[str]()
        self.urls = list[str]()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
                body, kind = self._bodies.get(path), "text/html"
                if body is None:
                    body, kind = b"User-agent: *\nDisallow: /private/\n", "text/plain"
                else:
                    self.asked[path] += 1
                    await asyncio.sleep(random.uniform(*LATENCY_S))
                    self.answered.add(path)
                head = (
                    f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
                    "\r\n"
                )
                writer.write(head.encode() + body)
                await writer.drain()
        writer.close()

    async def run(self, up: threading.Event, stop: asyncio.Event) -> None:
        """Serve until told to stop."""
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self.urls = [base + path for path in self._bodies]
            up.set()
            await stop.wait()


@contextmanager
def serving(bodies: dict[str, bytes]) -> Iterator[Server]:
    """A server in a thread of its own."""
    server, up = Server(bodies), threading.Event()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(server.run(up, stop)))
    thread.start()
    up.wait()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


def command(urls: Path) -> list[str]:
    """The product's own command: a list is run, a single URL is crawled."""
    given = urls.read_text().split()
    return ["run", str(urls)] if len(given) > 1 else ["crawl", *given, "--job", "crash"]


@contextmanager
def running(who: Contestant, urls: Path, redis: str | None) -> Iterator["subprocess.Popen[str]"]:
    """The command; whatever is left of it in the end is killed."""
    if who.module:
        argv = [str(PEERS), "-m", f"benchmarks.contestants.{who.module}"]
    else:
        argv = [sys.executable, "-m", "crawler", *command(urls)]
        argv += ["--rate", "none", "--workers", "2", "--data-dir", str(FOLDER / "data")]
    with (WORK / "crash.log").open("ab") as log:
        process = subprocess.Popen(
            argv, cwd=measure.ROOT, env={**os.environ, "CRAWLER_PAGES": "8"}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE if who.module else log, stderr=log,
        )  # fmt: skip
    try:
        if who.module:
            options = dict(who.options) | ({"redis": redis} if redis else {})
            _say(
                process, json.dumps({"urls": str(urls), "folder": str(FOLDER), "options": options})
            )
            _say(process, "")
            _say(process, "")
        yield process
    finally:
        kill(process.pid)
        process.wait()


def _say(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin
    process.stdin.write(line + "\n")
    process.stdin.flush()


def kill(pid: int) -> None:
    """SIGKILL for a process and all that it has started, all at once."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def stored(who: Contestant) -> set[str]:
    """The pages that are there in the end."""
    if who.module:
        return set(rows(FOLDER))
    return {
        json.loads(file.read_text())["url"] for file in (FOLDER / "data" / "pending").glob("*.json")
    }


def drill(part: Part, who: Contestant, redis: str | None) -> Score:
    """Kill, and give the same command again, until all kills are made; then let it end."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    with serving(part.bodies()) as server:
        urls = FOLDER / "urls.txt"
        urls.write_text("\n".join(server.urls[: part.starts]) + "\n")
        kills = 0
        for count in part.kill_at:
            with running(who, urls, redis) as process:
                if not _reaches(server, count, process):
                    break
            kills += 1
        if not kills:
            log = WORK / "crash.log"
            raise SystemExit(f"crash: {who.title} ended before it was killed; see {log}")
        began = time.monotonic()
        with running(who, urls, redis) as process:
            try:
                code = str(process.wait(LIMIT_S))
            except subprocess.TimeoutExpired:
                code = "does not end"
        seconds = time.monotonic() - began
        missing = len(set(server.urls) - stored(who))
        twice = sum(server.asked.values()) - len(server.asked)
        return Score(missing, twice, kills, code, seconds)


def _reaches(server: Server, count: int, process: "subprocess.Popen[str]") -> bool:
    """Wait until so many different pages were answered; False if the program ends before."""
    end = time.monotonic() + LIMIT_S
    while len(server.answered) < count:
        if process.poll() is not None or time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def scores(part: Part, only: Sequence[str]) -> list[tuple[str, Score]]:
    """The title and the score of each contestant."""
    found = []
    for name, who in part.contestants.items():
        if only and name not in only:
            continue
        if who.redis:
            (WORK / "valkey").mkdir(exist_ok=True)
            with valkey(WORK / "valkey") as url:
                score = drill(part, who, url)
            shutil.rmtree(WORK / "valkey")
        else:
            score = drill(part, who, None)
        found.append((who.title, score))
        print(json.dumps([name, *score]), file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Kill each, count, report."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--part", choices=list(PARTS), help="then nothing is written")
    options.add_argument(
        "--only", default="", help="names, as crawler,crawlee; then nothing is written"
    )
    given = options.parse_args()
    only = [name for name in given.only.split(",") if name]
    if unknown := set(only) - set(LISTED):
        options.error(f"there is no {', '.join(sorted(unknown))}")
    if not PEERS.exists():
        raise SystemExit("crash: the peers are not installed; run: sh benchmarks/run crash")
    (WORK / "crash.log").unlink(missing_ok=True)
    for name, part in PARTS.items():
        if given.part in (None, name):
            text = part.told(scores(part, only))
            print(text)
            if not only and not given.part:
                report.section(part.section, text)


if __name__ == "__main__":
    main()
