"""Sends a batch to the API while everything is killed, and counts every URL: see scripts/api."""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from socket import SHUT_RDWR
from threading import Event
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psutil
from websockets.exceptions import WebSocketException

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.api_server import ApiServer, messages
from tests.support.site import Site
from tests.support.stack import wait_for

WORKERS = 4
PAGES = 4
"""Pages that one process fetches at a time."""
SESSION = "full-size"
AGAIN_S = 0.05
"""How long a client waits before it connects again."""
MAX_STALL_S = 180.0
"""A crawl in which the site is asked for nothing so long counts as hanging, and so does a stream in
which nothing comes."""
LOST = (OSError, HTTPException, WebSocketException)
"""How a client hears that a stream has ended before its time."""

Message = dict[str, Any]
Opened = Callable[[ApiServer, int], AbstractContextManager[Iterator[Message]]]


class Mode(NamedTuple):
    """A way to crawl, and what is killed after which share of the pages."""

    name: str
    distributed: bool
    kills: tuple[tuple[float, str], ...]


MODES = (
    Mode("distributed", True, ((0.2, "worker"), (0.4, "worker"), (0.6, "server"))),
    Mode("direct", False, ((0.2, "fetcher"), (0.5, "server"))),
)


class Followed(NamedTuple):
    """What a client has got of a stream."""

    results: list[tuple[int, str, str]]
    """Number, URL and status, in the order in which they came."""
    cuts: int
    """How often this client has cut its connection."""
    losses: int
    """How often the server has ended it."""


def main() -> int:
    """Crawl in both ways, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1_000, help="URLs of the call")
    parser.add_argument("--cuts", type=int, default=8, help="cuts of each stream")
    parser.add_argument("--latency-ms", type=int, default=200)
    parser.add_argument("--only", default="", help="distributed or direct")
    given = parser.parse_args()
    wrong = list[str]()
    with tempfile.TemporaryDirectory() as folder, Site() as site:
        for mode in MODES:
            if given.only in ("", mode.name):
                path = Path(folder) / mode.name
                path.mkdir()
                site.reset()
                wrong += crawl(path, site, mode, given)
    for each in wrong:
        print(f"  wrong: {each}")
    return int(bool(wrong))


def crawl(path: Path, site: Site, mode: Mode, given: argparse.Namespace) -> list[str]:
    """Send the batch, kill as planned, follow it to its end; returns what is wrong."""
    urls = [site.page(n, given.latency_ms / 1000) for n in range(given.size)]
    body = {"urls": urls, "session_id": SESSION, "distributed": mode.distributed, "wait": False}
    (path / "body.json").write_text(json.dumps(body))
    cut_after = max(1, given.size // (given.cuts + 1))
    with ApiServer(path, CRAWLER_PAGES=str(PAGES)) as server:
        if mode.distributed:
            start_stack(server)
        began = time.monotonic()
        accepted = curl(server, path / "body.json")
        with ThreadPoolExecutor(len(STREAMS)) as pool:
            is_over = Event()
            following = {
                name: pool.submit(follow, server, opened, cut_after, is_over)
                for name, opened in STREAMS.items()
            }
            try:
                kills = [(share * given.size, what) for share, what in mode.kills]
                killed = [strike(server, site, count, what) for count, what in kills]
                followed = {name: future.result() for name, future in following.items()}
            finally:
                is_over.set()
        seconds = time.monotonic() - began
        wrong = list(examined(server, urls, followed))
        asked = site.hits()
        if curl(server, path / "body.json") != accepted or site.hits() != asked:
            wrong.append("the same call again was not the same crawl")
    report(mode, followed, killed, Counter(asked), seconds, len(wrong))
    return [f"{mode.name}: {each}" for each in wrong]


def start_stack(server: ApiServer) -> None:
    """Start Redis and the workers beside the server."""
    done = server.folder.crawler("up", "--workers", str(WORKERS))
    if done.returncode:
        raise SystemExit(f"api: {done.stderr}")
    wait_for(lambda: len(server.folder.children()) == WORKERS, 60, "the workers")


def curl(server: ApiServer, body: Path) -> tuple[int, str, int]:
    """Send the batch as a user does; returns status, session and number of URLs."""
    done = subprocess.run(
        ["curl", "-sS", "-w", "\n%{http_code}", "-H", "Content-Type: application/json",
         "--data-binary", f"@{body}", f"{server.url}/api/crawl/batch"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    text, _, status = done.stdout.rpartition("\n")
    answer = json.loads(text)
    if status != "202":
        raise SystemExit(f"api: the batch was answered with {status}: {text[:500]}")
    return int(status), answer["session_id"], answer["total"]


# Kills


def strike(server: ApiServer, site: Site, count: float, what: str) -> str:
    """Kill something as soon as so many pages were asked for."""
    wait_until_asked(site, count)
    if what == "server":
        kill_server(server)
    elif what == "worker":
        os.kill(server.folder.children()[0], signal.SIGKILL)
    else:
        [fetcher] = wait_for(lambda: fetchers(server), 60, "the process that fetches")
        fetcher.kill()
    return f"{what} at {count:.0f}"


def wait_until_asked(site: Site, count: float) -> None:
    """Wait until the site was asked for so many different pages."""
    last, moved = -1, time.monotonic()
    while (now := len(site.hits())) < count:
        if now != last:
            last, moved = now, time.monotonic()
        elif time.monotonic() > moved + MAX_STALL_S:
            raise SystemExit(f"api: no request came for {MAX_STALL_S:.0f} s at {now}")
        time.sleep(0.1)


def fetchers(server: ApiServer) -> list[psutil.Process]:
    """The processes of batches without a stack."""
    found = list[psutil.Process]()
    for child in psutil.Process(server.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # also one that has ended just now
            if "crawler.direct" in child.cmdline():
                found.append(child)
    return found


def kill_server(server: ApiServer) -> None:
    """Kill the server, see that all it has started ends by itself, and start it again."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    server.end(signal.SIGKILL)
    _, left = psutil.wait_procs(children, timeout=60)
    if left:
        raise SystemExit(f"api: these processes have outlived the server: {left}")
    server.start()


# Streams


def follow(server: ApiServer, opened: Opened, cut_after: int, is_over: Event) -> Followed:
    """Follow the session to its end; cut the stream again and again, and resume it behind the last
    result that came."""
    results, cuts, losses, cursor = list[tuple[int, str, str]](), 0, 0, 0
    moved = time.monotonic()
    while time.monotonic() < moved + MAX_STALL_S and not is_over.is_set():
        left, is_open = cut_after, False
        with suppress(*LOST), opened(server, cursor) as stream:
            is_open = True
            for message in stream:
                if message["type"] == "done":
                    return Followed(results, cuts, losses)
                if message["type"] == "result":
                    cursor, moved = message["seq"], time.monotonic()
                    results.append((cursor, message["url"], message["status"]))
                    left -= 1
                if not left:
                    break
        cuts += not left
        losses += is_open and left > 0
        time.sleep(AGAIN_S)
    raise SystemExit(f"api: nothing came for {MAX_STALL_S:.0f} s behind {cursor}")


@contextmanager
def websocket(server: ApiServer, cursor: int) -> Iterator[Iterator[Message]]:
    """The messages of a WebSocket, cut without a word at the end."""
    with server.socket(SESSION, cursor, open_timeout=60) as socket:
        try:
            yield messages(socket)
        finally:
            with suppress(OSError):  # the server may have gone
                socket.socket.shutdown(SHUT_RDWR)


@contextmanager
def events(server: ApiServer, cursor: int) -> Iterator[Iterator[Message]]:
    """The messages of Server-Sent Events."""
    with answer(server, "events", {"Last-Event-ID": str(cursor)}) as response:
        yield _events(response)


def _events(response: HTTPResponse) -> Iterator[Message]:
    number, data = "", ""
    for line in lines(response):
        name, _, value = line.partition(": ")
        if name == "id":
            number = value
        elif name == "data":
            data = value
        elif not line and data:
            message = json.loads(data)
            if message["type"] == "result" and str(message["seq"]) != number:
                raise SystemExit(f"api: the event {number} has seq {message['seq']}")
            yield message
            data = ""


@contextmanager
def ndjson(server: ApiServer, cursor: int) -> Iterator[Iterator[Message]]:
    """The lines of NDJSON; `done` when the session says that no more will come."""
    with answer(server, f"results.ndjson?follow=true&cursor={cursor}", {}) as response:
        yield _ndjson(server, response, cursor)


def _ndjson(server: ApiServer, response: HTTPResponse, cursor: int) -> Iterator[Message]:
    for line in lines(response):
        message = json.loads(line)
        cursor = message["seq"]
        yield message
    page = server.ask("GET", f"/api/crawl/{SESSION}?cursor={cursor}").body
    if page["is_complete"] and not page["results"]:
        yield {"type": "done"}


@contextmanager
def answer(server: ApiServer, path: str, headers: dict[str, str]) -> Iterator[HTTPResponse]:
    """The answer to a request that is answered as results come."""
    with closing(HTTPConnection(urlsplit(server.url).netloc, timeout=60)) as connection:
        connection.request("GET", f"/api/crawl/{SESSION}/{path}", headers=headers)
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"api: {path} was answered with {response.status}")
        yield response


def lines(response: HTTPResponse) -> Iterator[str]:
    """The whole lines of an answer; raises `OSError` if one is cut."""
    while line := response.readline():
        if not line.endswith(b"\n"):
            raise ConnectionResetError("the last line is cut")
        yield line.decode().rstrip("\n")


STREAMS: dict[str, Opened] = {"WebSocket": websocket, "SSE": events, "NDJSON": ndjson}


# What came of it


def examined(
    server: ApiServer, urls: Sequence[str], followed: dict[str, Followed]
) -> Iterator[str]:
    """What is wrong in the streams, in the session as the API shows it, and in the ledger."""
    pages, state = by_cursor(server)
    for name, found in (*((name, each.results) for name, each in followed.items()), ("GET", pages)):
        yield from once(name, urls, [url for _, url, _ in found])
        numbers = [seq for seq, _, _ in found]
        if numbers != sorted(set(numbers)):
            yield f"{name}: the numbers do not rise"
        if found != pages:
            yield f"{name}: not the same results as by GET"
        if failed := [each for each in found if each[2] != "success"]:
            yield f"{name}: {len(failed)} failed, such as {failed[0]}"
    if (state["status"], state["total"], state["done"]) != ("done", len(urls), len(urls)):
        yield f"GET: {state}"
    yield from once("ledger", urls, [row["url"] for row in server.folder.results()])
    books = server.folder.books()
    if not books.accepted == books.completed == books.results == len(urls):
        yield f"ledger: {books}"
    doctor = server.folder.crawler("doctor")
    if doctor.returncode:
        yield f"doctor: {doctor.stdout}{doctor.stderr}"


def by_cursor(server: ApiServer) -> tuple[list[tuple[int, str, str]], Message]:
    """All results of the session by GET, and its state."""
    found, cursor = list[tuple[int, str, str]](), 0
    while True:
        page = server.ask("GET", f"/api/crawl/{SESSION}?cursor={cursor}&limit=97").body
        found += [(each["seq"], each["url"], each["status"]) for each in page.pop("results")]
        cursor = page["cursor"]
        if page["is_complete"]:
            return found, page


def once(name: str, urls: Sequence[str], found: Sequence[str]) -> Iterator[str]:
    """What is missing, came more than once, or should not be there."""
    counts = Counter(found)
    missing = [url for url in urls if url not in counts]
    twice = [url for url, count in counts.items() if count > 1]
    unknown = counts.keys() - set(urls)
    for what, which in (("missing", missing), ("twice", twice), ("unknown", sorted(unknown))):
        if which:
            yield f"{name}: {len(which)} {what}, such as {which[0]}"


def report(
    mode: Mode,
    followed: dict[str, Followed],
    killed: Sequence[str],
    asked: Counter[str],
    seconds: float,
    wrong: int,
) -> None:
    """Print the figures of one crawl."""
    streams = "; ".join(
        f"{name} {len(each.results):,} results, {each.cuts} cuts, {each.losses} lost"
        for name, each in followed.items()
    )
    repeated = asked.total() - len(asked)
    print(
        f"{mode.name}: {len(asked):,} URLs, {wrong} wrong; {streams}; {len(killed)} kills "
        f"({', '.join(killed)}); {asked.total():,} requests, {repeated} repeated; {seconds:.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
