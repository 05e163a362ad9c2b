"""A load that doubles and halves, and the processes that follow it: see scripts/autoscale."""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from crawler.stack import read_stack
from tests.support.stack import Folder, wait_for

PAGE = (
    b"<html><title>Parcel</title><body><h1>Parcel 1</h1><p>"
    + b"A parcel of the county, with its owner. " * 20
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(PAGE)
PLACES, LATENCY_S = 8, 0.5
"""Pages in flight per process, and the time of a page: a process gets 16 pages a second."""
STEPS = (10, 20, 40, 20, 10)
"""What the domain allows, in pages a second; each step is a job of its own."""


class Server:
    """Answers every page after LATENCY_S."""

    def __init__(self) -> None:
        self.asked: Counter[bytes] = Counter()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()
        self._ready.wait(10)

    def _run(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split()[1]
                if path == b"/robots.txt":
                    writer.write(b"HTTP/1.1 404 Gone\r\nContent-Length: 0\r\n\r\n")
                    continue
                self.asked[path] += 1
                await asyncio.sleep(LATENCY_S)
                writer.write(HEAD + PAGE)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            writer.close()


class Watch:
    """Notes every number of processes, from a thread of its own."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self.seen: list[tuple[float, int, int]] = []
        """When, how many were wanted, and how many there were."""
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            scale = read_stack(self._folder.data).autoscale
            if scale:
                now = time.monotonic()
                self.seen.append((now, scale.processes, len(self._folder.children())))
            time.sleep(0.25)


def main() -> int:
    """Run it, and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=40, help="of each step (default 40)")
    parser.add_argument("--max", type=int, default=8, help="most processes (default 8)")
    parser.add_argument("--calm", action="store_true", help="kill nothing")
    given = parser.parse_args()
    server = Server()
    with tempfile.TemporaryDirectory() as path:
        folder = Folder(Path(path), CRAWLER_PAGES=str(PLACES))
        try:
            return crawl(folder, server, given)
        finally:
            folder.stop()


def crawl(folder: Folder, server: Server, given: argparse.Namespace) -> int:
    """Take the steps, strike, and count."""
    done = folder.crawler("up", "--autoscale", f"1,{given.max}")
    assert done.returncode == 0, done.stderr
    watch, pages, ends = Watch(folder), 0, []
    for step, rate in enumerate(STEPS):
        began = time.monotonic()
        urls = [f"http://127.0.0.1:{server.port}/{step}/{n}" for n in range(rate * given.seconds)]
        folder.crawler("bulk", "import", str(folder.write(f"{step}.txt", urls)), f"--rate={rate}/s")
        pages += len(urls)
        if step == len(STEPS) // 2 and not given.calm:
            strike(folder, began, given.seconds)
        folder.wait_until_done(pages, 10 * given.seconds)
        took_s = time.monotonic() - began
        counts = [wanted for at, wanted, _ in watch.seen if at >= began]
        ends.append(counts[-1])
        print(
            f"{rate:3}/s: {len(urls) / took_s:5.1f} pages a second; processes {counts[0]} at "
            f"first, {min(counts)} to {max(counts)}, {counts[-1]} at the end",
            flush=True,
        )
    began = time.monotonic()
    wait_for(lambda: len(folder.children()) == 1, 120, "one process")
    print(f"idle: one process after {time.monotonic() - began:.0f} s")
    results = folder.results()
    charged = sum(each["attempts"] > 1 for each in results)
    twice = sum(count > 1 for count in server.asked.values())
    urls_seen = {each["url"] for each in results}
    changes = (folder.data / "logs" / "supervisor.log").read_text().count(" worker processes inst")
    print(
        f"{pages:,} pages: {len(results):,} results of {len(urls_seen):,} URLs; {twice} were asked "
        f"for twice, {charged} with more than one attempt; {changes} changes"
    )
    lost = len(results) != pages or len(urls_seen) != pages
    follows = ends[0] < ends[2] > ends[4]
    return int(lost or not follows or (given.calm and charged > 0))


def strike(folder: Folder, began: float, seconds: int) -> None:
    """Kill a child, the worker and Redis, one after the other."""
    for share, what in ((0.3, "child"), (0.5, "redis"), (0.7, "worker")):
        time.sleep(max(0.0, began + share * seconds - time.monotonic()))
        stack = read_stack(folder.data)
        pid = folder.children()[0]
        if what == "redis" and stack.redis:
            pid = stack.redis.pid
        elif what == "worker" and stack.worker:
            pid = stack.worker.pid
        os.kill(pid, signal.SIGKILL)
        print(f"{time.monotonic() - began:5.1f} s: kill -9 of a {what}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
