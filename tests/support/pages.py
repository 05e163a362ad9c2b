"""A site whose pages a test writes, in this process: it answers as told and keeps what it was
asked."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

HTML = {"Content-Type": "text/html; charset=utf-8"}


def parcel(n: int, owner: str = "Nora Whitfield") -> str:
    """A page with something to say."""
    rows = (
        f"<tr><th>Parcel</th><td>{n}</td></tr><tr><th>Owner</th><td class=owner>{owner}</td></tr>"
    )
    words = (
        "The parcel lies behind the mill, and its bounds were surveyed when the county drew its "
        "plats. " * 5
    )
    return (
        f"<html><head><title>Parcel {n}</title></head><body><h1>Parcel {n}</h1>"
        f"<table>{rows}</table><p>{words}</p>"
    )


@dataclass
class Answer:
    """What a path answers."""

    body: str | bytes = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Asked:
    """One request as it came."""

    at: float
    path: str
    headers: dict[str, str]
    port: int = 0
    """The client's: it tells whose connection this is."""


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """A worker that was stopped or killed has hung up."""


class Pages:
    """Paths and their answers; what is not there is a 404. An answer with an ETag is given once for
    each ETag."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[Asked] = []
        self.rule: Callable[[str], Answer | None] = lambda path: None
        """Called for each request once it is noted; it may wait, and may answer in place of
        `answers`."""
        self._host = host

    def __enter__(self) -> Self:
        self._server = _Server((self._host, 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://{self._host}:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def parcels(self, count: int) -> list[str]:
        """Have so many good pages; returns their URLs."""
        self.answers |= {f"/page/{n}": Answer(parcel(n)) for n in range(count)}
        return [f"{self.url}/page/{n}" for n in range(count)]

    def hold(self, first: int, until: threading.Event, delay_s: float = 0.0) -> None:
        """Answer parcels from this one on only after an event: work stays under way for as long as
        a test likes."""

        def rule(path: str) -> None:
            if path.startswith("/page/") and int(path.removeprefix("/page/")) >= first:
                until.wait(600)
            time.sleep(delay_s)

        self.rule = rule

    def paths(self) -> list[str]:
        """What was asked for, in order, robots.txt left out."""
        return [asked.path for asked in self.asked if asked.path != "/robots.txt"]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                asked = {name.lower(): value for name, value in self.headers.items()}
                site.asked.append(Asked(time.monotonic(), self.path, asked, self.client_address[1]))
                answer = site.rule(self.path) or site.answers.get(
                    self.path, Answer("<h1>Not here</h1>", 404)
                )
                etag = answer.headers.get("ETag")
                if etag and asked.get("if-none-match") == etag:
                    answer = Answer("", 304, {"ETag": etag})
                body = answer.body.encode() if isinstance(answer.body, str) else answer.body
                self.send_response(answer.status)
                for name, value in (
                    HTML | answer.headers | {"Content-Length": str(len(body))}
                ).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler
