"""The permit at full size, judged by the server's own log: see scripts/polite."""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.stack import Folder, wait_for

PAGE = (
    b"<html><title>Parcel</title><body><h1>Parcel 1</h1><p>"
    + b"A parcel of the county, with its owner. " * 20
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(PAGE)


class Server:
    """Answers every page at once and notes when it was asked for."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.active = self.most = 0
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
                self.asked.append(time.monotonic())
                self.active += 1
                self.most = max(self.most, self.active)
                await asyncio.sleep(0.02)
                self.active -= 1
                found = not head.startswith(b"GET /robots.txt")
                writer.write(
                    HEAD + PAGE if found else b"HTTP/1.1 404 Gone\r\nContent-Length: 0\r\n\r\n"
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            writer.close()


def most_within(asked: list[float], window_s: float) -> int:
    """The most requests in any window of that length."""
    most = first = 0
    for place, at in enumerate(asked):
        while asked[first] <= at - window_s:
            first += 1
        most = max(most, place - first + 1)
    return most


def main() -> int:
    """Run it, and print what the server saw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=20, help="requests a second (default 20)")
    parser.add_argument("--seconds", type=int, default=60, help="how long (default 60)")
    parser.add_argument("--processes", type=int, default=10, help="worker processes (default 10)")
    parser.add_argument("--calm", action="store_true", help="kill and empty nothing")
    given = parser.parse_args()
    server = Server()
    with tempfile.TemporaryDirectory() as path:
        folder = Folder(Path(path))
        try:
            return crawl(folder, server, given)
        finally:
            folder.stop()


def crawl(folder: Folder, server: Server, given: argparse.Namespace) -> int:
    """Import, crawl, strike, count."""
    pages = given.rate * (given.seconds + 30)
    file = folder.write(
        "pages.txt", [f"http://127.0.0.1:{server.port}/page/{n}" for n in range(pages)]
    )
    done = folder.crawler("bulk", "import", str(file), "--rate", f"{given.rate}/s")
    print(done.stderr.strip(), file=sys.stderr)
    folder.crawler("up", "--workers", str(given.processes // 2))
    folder.env["REDIS_URL"] = json.loads((folder.data / "run" / "stack.json").read_text())[
        "redis_url"
    ]
    folder.worker(concurrency=given.processes - given.processes // 2)
    wait_for(lambda: len(server.asked) > 2 * given.rate, 60, "the first pages")
    began = time.monotonic()
    strikes = (
        []
        if given.calm
        else [(0.2, "child"), (0.35, "flushall"), (0.5, "child"), (0.65, "worker"), (0.8, "child")]
    )
    for share, kind in strikes:
        time.sleep(max(0.0, began + share * given.seconds - time.monotonic()))
        strike(folder, kind)
        print(f"{time.monotonic() - began:5.1f} s: {kind}", file=sys.stderr)
    time.sleep(max(0.0, began + given.seconds - time.monotonic()))
    ended = time.monotonic()
    asked = [at for at in server.asked if began <= at < ended]
    used = len(asked) / (given.rate * (ended - began))
    most = {window: most_within(server.asked, window) for window in (1.0, 5.0, 10.0)}
    print(
        f"{given.processes} processes, {given.rate}/s, {ended - began:.0f} s, strikes: "
        f"{[kind for _, kind in strikes]}"
    )
    print(f"{len(asked):,} requests in that time: {used:.1%} of the limit")
    for window, count in most.items():
        print(
            f"at most {count} within any {window:g} s ({given.rate * window:g} are allowed); "
            f"{server.most} at a time"
        )
    audit = folder.crawler("audit")
    print(audit.stdout.strip())
    folder.crawler("down")
    broken = any(count > given.rate * window for window, count in most.items())
    return int(broken or used < 0.95 or audit.returncode != 0)


def strike(folder: Folder, kind: str) -> None:
    """Kill a child, a whole worker, or what Redis knows."""
    if kind == "flushall":
        folder.redis().flushall()
    elif kind == "child":
        os.kill(folder.children()[0], signal.SIGKILL)
    else:
        worker = folder.status()["pids"]["workers"][0]
        for pid in (worker["pid"], *worker["children"]):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
