"""The crash drill beside the peers: everything is killed in the middle of a crawl, and the same
command given again.

Example: python -m benchmarks.crash --only crawler,scrapy
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks import measure, report, site
from benchmarks.contestants.store import rows
from benchmarks.contestants.valkey import valkey
from benchmarks.speed import PEERS, WORK

PAGES, KILL_AT = 300, 120
LATENCY_S = 0.05, 0.15
LIMIT_S = 180.0
"""What takes longer is taken as not to end."""
FOLDER = WORK / "crash"


class Contestant(NamedTuple):
    """Who is killed. `every` 1: the peers commit each page at once, so that what they lose is not
    the store's doing."""

    title: str
    module: str
    options: Mapping[str, Any] = {}
    redis: bool = False
    """It gets one that is not killed."""


CONTESTANTS = {
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


class Server:
    """Pages with some latency, and how often each was asked for."""

    def __init__(self) -> None:
        self._bodies = {f"/pages/{n:05d}.html": site.page(n, PAGES).encode() for n in range(PAGES)}
        self.asked = Counter[str]()
        self.answered = 0
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
                    self.answered += 1
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
def serving() -> Iterator[Server]:
    """A server in a thread of its own."""
    server, up, loop, stop = Server(), threading.Event(), asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(server.run(up, stop)))
    thread.start()
    up.wait()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


@contextmanager
def running(who: Contestant, urls: Path, redis: str | None) -> Iterator["subprocess.Popen[str]"]:
    """The command; whatever is left of it in the end is killed."""
    if who.module:
        argv = [str(PEERS), "-m", f"benchmarks.contestants.{who.module}"]
    else:
        argv = [
            sys.executable,
            "-m",
            "crawler",
            "run",
            str(urls),
            "--rate",
            "none",
            "--workers",
            "2",
        ]
        argv += ["--data-dir", str(FOLDER / "data")]
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


def drill(who: Contestant, redis: str | None) -> tuple[int, int, str, float]:
    """Missing, fetched twice, the second run's exit code, and its seconds."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    with serving() as server:
        urls = FOLDER / "urls.txt"
        urls.write_text("\n".join(server.urls) + "\n")
        with running(who, urls, redis) as process:
            end = time.monotonic() + LIMIT_S
            while server.answered < KILL_AT:
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit(
                        f"crash: {who.title} ended before it was killed; see {WORK / 'crash.log'}"
                    )
                time.sleep(0.005)
        began = time.monotonic()
        with running(who, urls, redis) as process:
            try:
                code = str(process.wait(LIMIT_S))
            except subprocess.TimeoutExpired:
                code = "does not end"
        took = time.monotonic() - began
        missing = len(set(server.urls) - stored(who))
        return missing, sum(server.asked.values()) - len(server.asked), code, took


def main() -> None:
    """Kill each, count, report."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--only", default="", help="names, as crawler,crawlee; then nothing is written"
    )
    only = [name for name in options.parse_args().only.split(",") if name]
    if unknown := set(only) - set(CONTESTANTS):
        options.error(f"there is no {', '.join(sorted(unknown))}")
    if not PEERS.exists():
        raise SystemExit("crash: the peers are not installed; run: sh benchmarks/run crash")
    (WORK / "crash.log").unlink(missing_ok=True)
    lines = []
    for name, who in CONTESTANTS.items():
        if not only or name in only:
            if who.redis:
                (WORK / "valkey").mkdir(exist_ok=True)
                with valkey(WORK / "valkey") as url:
                    score = drill(who, url)
                shutil.rmtree(WORK / "valkey")
            else:
                score = drill(who, None)
            lines.append((who.title, *score[:3], f"{score[3]:.0f}"))
            print(json.dumps([name, *score]), file=sys.stderr, flush=True)
    text = "\n\n".join(
        (
            "## Killed in the middle",
            report.machine(PEERS),
            f"{PAGES} pages with a latency of {LATENCY_S[0] * 1000:.0f} to "
            f"{LATENCY_S[1] * 1000:.0f} ms, 16 in flight (the Celery task: 8 children); SIGKILL "
            f"for all processes at page {KILL_AT}, then the same command again. Missing: pages "
            "without a committed row in the end. Fetched twice: what the server was asked for "
            "beyond once a page. The peers commit every page at once.",
            report.table(
                ("", f"missing of {PAGES}", "fetched twice", "exit code", "second run, s"), lines
            ),
        )
    )
    print(text)
    if not only:
        report.section("crash", text)


if __name__ == "__main__":
    main()
