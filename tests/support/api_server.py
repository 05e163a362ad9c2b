"""The API as a process of its own: started, killed, started again, and asked."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from websockets.sync.client import ClientConnection, connect

from tests.support.stack import PATIENCE_S, Folder, wait_for, warm_for_servers

LOOPBACK = {"CRAWLER_ALLOW_NETS": "127.0.0.0/8"}
"""What a server needs to fetch from the sites of tests."""


class Answer(NamedTuple):
    """What the server said."""

    status: int
    body: Any
    headers: Mapping[str, str]


class ApiServer:
    """`serve` in a folder, on a port that it keeps over restarts."""

    def __init__(self, path: Path, *argv: str, token: str = "", **env: str) -> None:
        self.folder = Folder(path, **(LOOPBACK | env))
        self._argv, self.token = argv, token
        self._port = "0"
        self._starts = 0
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._process and self._process.poll() is None:
            self.end()
        self.folder.stop()

    @property
    def _log(self) -> Path:
        return self.folder.path / f"api-{self._starts}.log"

    @property
    def process(self) -> subprocess.Popen[str]:
        """The running server."""
        assert self._process is not None
        return self._process

    def start(self) -> None:
        """Start it, and wait until it says where it listens."""
        self._starts += 1
        argv, env = ["serve", "--port", self._port, *self._argv], self.folder.env
        with self._log.open("w") as out:
            if warm_for_servers().suits(env):
                self._process = warm_for_servers().start(
                    "crawler", argv, self.folder.path, env, out.fileno()
                )
            else:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "crawler", *argv], cwd=self.folder.path, env=env,
                    stdout=out, stderr=out, text=True, start_new_session=True,
                )  # fmt: skip
        self.url = wait_for(self._ready, 30, "the API's first word")
        self._port = str(urlsplit(self.url).port)

    def _ready(self) -> str:
        said = self.log()
        assert self.process.poll() is None, said
        found = re.search(r"the API listens on (http://\S+)", said)
        return found[1] if found else ""

    def log(self) -> str:
        """What it has printed since its last start."""
        return self._log.read_text()

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code; SIGKILL also ends what it had started."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def headers(self) -> dict[str, str]:
        """The headers of a client with this object's token."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send a request; a body that is no bytes is sent as JSON."""
        sent = self.headers() | dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            sent = {"Content-Type": "application/json"} | sent
        with closing(HTTPConnection(urlsplit(self.url).netloc, timeout=PATIENCE_S)) as connection:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            text = answer.read()
            is_json = answer.headers.get_content_type() == "application/json"
            return Answer(
                answer.status, json.loads(text) if is_json else text, dict(answer.headers)
            )

    def batch(self, urls: list[str], **more: Any) -> Answer:
        """Send a batch."""
        return self.ask("POST", "/api/crawl/batch", {"urls": urls} | more)

    def socket(self, session_id: str, cursor: int = 0, **options: Any) -> ClientConnection:
        """A WebSocket that follows a session."""
        address = f"{self.url.replace('http', 'ws', 1)}/api/crawl/{session_id}/stream"
        options = {"additional_headers": self.headers(), "max_size": None} | options
        return connect(f"{address}?cursor={cursor}", **options)


def messages(socket: ClientConnection) -> Iterator[dict[str, Any]]:
    """What comes on a WebSocket, up to its end."""
    for text in socket:
        yield json.loads(text)
