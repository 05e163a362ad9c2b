"""Serves sites on one loopback port by their host names, counts requests, and can be slow."""

import asyncio
import json
import os
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection
from typing import Any, NamedTuple, Protocol, Self, cast
from urllib.parse import parse_qsl

HTML = "text/html; charset=utf-8"
MAX_REQUEST = 1_000_000
"""A client that sends more in one request loses its connection."""
COUNTS = "/_requests"
"""A path of every host: the requests so far as JSON."""
UNCOUNTED_FIELDS = ("__VIEWSTATE", "__EVENTVALIDATION", "csrf", "password")
"""Form fields that differ between sessions: two requests that differ only in them are the same."""


class Listing(NamedTuple):
    """A detail page, the way to it, and the record that it holds."""

    url: str
    way: str
    record: dict[str, Any]


class Request(NamedTuple):
    """What a site is asked for."""

    method: str
    host: str
    path: str
    query: dict[str, str]
    form: dict[str, str]
    cookies: dict[str, str]
    headers: dict[str, str]

    @property
    def base(self) -> str:
        """The address of the site, with its port."""
        return f"http://{self.headers.get('host', self.host)}"


class Response(NamedTuple):
    """What a site answers."""

    body: bytes
    status: int = 200
    kind: str = HTML
    headers: tuple[tuple[str, str], ...] = ()

    def encoded(self, with_body: bool) -> bytes:
        """The bytes to send."""
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        if self.status != 304:
            lines += [f"Content-Type: {self.kind}", f"Content-Length: {len(self.body)}"]
        head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
        return head + self.body if with_body else head


class Site(Protocol):
    """A site: the name of its host, and its answers."""

    @property
    def host(self) -> str:
        """The host name, such as `county.localhost`."""

    def answer(self, request: Request) -> Response:
        """Answer one request."""


def redirect(target: str, status: int = 302, *cookies: str) -> Response:
    """Send the client elsewhere."""
    headers = [("Location", target), *(("Set-Cookie", cookie) for cookie in cookies)]
    return Response(b"", status, HTML, tuple(headers))


def integer(text: str) -> int:
    """Return the number that a visitor has sent; 0 if it is none."""
    if text.isascii() and text.isdigit() and len(text) < 9:
        return int(text)
    return 0


def not_found() -> Response:
    """Say that there is no such page."""
    return Response(b"<!doctype html><title>Not found</title><h1>Not found</h1>", 404)


class _Connection(asyncio.Protocol):
    """One connection: requests one after the other, with or without a body."""

    def __init__(self, sites: dict[str, Site], requests: Counter[str], latency_s: float) -> None:
        self._sites, self._requests, self._latency_s = sites, requests, latency_s
        self._received = b""
        self._is_busy = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has another base

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > MAX_REQUEST:
            self._transport.close()
        elif not self._is_busy:
            self._next()

    def _next(self) -> None:
        while not self._transport.is_closing():
            head, found, rest = self._received.partition(b"\r\n\r\n")
            if not found:
                return
            try:
                method, target, headers = _parsed_head(head)
                length = int(headers.get("content-length", "0"))
            except ValueError:
                self._transport.close()
                return
            if len(rest) < length:
                return
            self._received = rest[length:]
            body = rest[:length].decode("latin-1")
            response = self._answer(method, target, headers, body)
            closes = headers.get("connection", "").lower() == "close"
            if self._latency_s:
                self._is_busy = True
                loop = asyncio.get_running_loop()
                loop.call_later(self._latency_s, self._send_and_go_on, response, closes)
                return
            self._send(response, closes)

    def _send_and_go_on(self, response: bytes, closes: bool) -> None:
        self._is_busy = False
        self._send(response, closes)
        self._next()

    def _send(self, response: bytes, closes: bool) -> None:
        if not self._transport.is_closing():
            self._transport.write(response)
            if closes:
                self._transport.close()

    def _answer(self, method: str, target: str, headers: dict[str, str], body: str) -> bytes:
        path, _, query = target.partition("?")
        if path == COUNTS:
            return Response(json.dumps(self._requests).encode(), kind="application/json").encoded(
                True
            )
        host = headers.get("host", "").partition(":")[0].lower()
        form = _fields(body) if method == "POST" else {}
        self._requests[counted_name(method, host, target, form)] += 1
        site = self._sites.get(host)
        if site is None:
            return not_found().encoded(True)
        pairs = (pair.partition("=") for pair in headers.get("cookie", "").split(";"))
        cookies = {name.strip(): value for name, _, value in pairs}
        request = Request(method, host, path, _fields(query), form, cookies, headers)
        return site.answer(request).encoded(method != "HEAD")


def counted_name(method: str, host: str, target: str, form: dict[str, str]) -> str:
    """The name that a request is counted under: `GET host/path?query`, `POST host/path a=b`."""
    name = f"{method} {host}{target}"
    if method == "POST":
        shown = {key: value for key, value in form.items() if key not in UNCOUNTED_FIELDS}
        name += " " + "&".join(f"{key}={value}" for key, value in sorted(shown.items()))
    return name


def _parsed_head(head: bytes) -> tuple[str, str, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = dict[str, str]()
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    if "://" in target:  # the form that a client sends to a proxy
        target = "/" + target.split("/", 3)[3]
    return method, target, headers


def _fields(text: str) -> dict[str, str]:
    if not text:
        return {}
    return dict(parse_qsl(text, keep_blank_values=True, encoding="utf-8", errors="replace"))


async def _serve(sites: Sequence[Site], port: int, latency_s: float) -> None:
    requests: Counter[str] = Counter()
    by_host = {site.host: site for site in sites}
    loop = asyncio.get_running_loop()
    make = partial(_Connection, by_host, requests, latency_s)
    server = await loop.create_server(make, "127.0.0.1", port, backlog=1024)
    port = server.sockets[0].getsockname()[1]
    print(port, flush=True)
    if stat.S_ISFIFO(os.fstat(0).st_mode):  # it ends with the parent, even a killed one
        await asyncio.to_thread(sys.stdin.buffer.read)
    else:
        for site in sites:
            print(f"http://{site.host}:{port}/", file=sys.stderr)
        await asyncio.Event().wait()
    server.close()


def serve(sites: Sequence[Site], port: int = 0, latency_s: float = 0.0) -> None:
    """Serve for ever, or until standard input ends if that is a pipe; prints the port."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(sites, port, latency_s))


class Running:
    """A module that calls `serve`, as a process of its own: it ends with the `with` block."""

    port: int

    def __init__(self, module: str, *arguments: object) -> None:
        self._argv = [sys.executable, "-m", module, *map(str, arguments)]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.communicate()
            raise OSError(f"{' '.join(self._argv)} has ended before it served")
        self.port = int(line)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def url(self, host: str) -> str:
        """The address of a site, without a final slash."""
        return f"http://{host}:{self.port}"

    def requests(self, host: str = "") -> dict[str, int]:
        """The requests so far by `counted_name`, of all hosts or of one."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", COUNTS)
            counts: dict[str, int] = json.load(connection.getresponse())
        finally:
            connection.close()
        return {
            name: count for name, count in counts.items() if name.split(" ")[1].startswith(host)
        }
