"""A Gateway that does what a test tells it, and remembers every exchange."""

import json
import threading
from collections.abc import Callable
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self
from urllib.parse import unquote, urlsplit

TOKEN = "s3cret-token"


class Call(NamedTuple):
    """A request as it came."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Its body, decoded."""
        return json.loads(self.body)


Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]]
"""A status, what is sent as JSON (or, if bytes, as it is), and perhaps headers."""
Rule = Callable[[Call], Answer | None]
"""Answers a request, or leaves it to the next rule."""


class ScriptedGateway:
    """Stores what it gets; `rules` may answer first."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self.waits: Callable[[Call], object] = lambda call: None
        """Called before a request is answered, beside others."""
        self.calls: list[Call] = []
        self.work: list[dict[str, Any]] = []
        self.results: dict[str, dict[str, Any]] = {}
        self.raw: dict[str, bytes] = {}
        self.failed: dict[str, dict[str, Any]] = {}
        self.commands: list[str] = []
        self.order: list[str] = []
        """What was stored, in the order in which it was: `raw <task_id>`, `result <task_id>`."""
        self._guard = threading.Lock()
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                headers = {name.lower(): value for name, value in self.headers.items()}
                call = Call(self.path, headers, self.rfile.read(length))
                status, content, *more = gateway.answer(call)
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                for name, value in (more[0] if more else {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = handle_one

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                """A worker that was stopped has hung up."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def env(self) -> dict[str, str]:
        """What a worker's environment says of this Gateway."""
        return {"GATEWAY_URL": self.url, "GATEWAY_TOKEN": TOKEN}

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def asked(self, path: str) -> list[Call]:
        """The requests for a path."""
        return [call for call in self.calls if urlsplit(call.path).path == path]

    def answer(self, call: Call) -> Answer:
        """Answer by the first rule that wants to, else as the contract has it."""
        self.waits(call)
        with self._guard:
            self.calls.append(call)
            for rule in self.rules:
                if (found := rule(call)) is not None:
                    return found
            return self.store(call)

    def store(self, call: Call) -> Answer:
        """What a good Gateway does."""
        match urlsplit(call.path).path.split("/")[2:]:
            case ["work"]:
                tasks, self.work = self.work, []
                return 200, {"tasks": tasks, "retry_after": 1}
            case ["results"]:
                new = sum(item["task_id"] not in self.results for item in call.json)
                self.results |= {item["task_id"]: item for item in call.json}
                self.order += [f"result {item['task_id']}" for item in call.json]
                return 200, {
                    "inserted": new,
                    "updated": len(call.json) - new,
                    "failed": 0,
                    "errors": [],
                }
            case ["raw-files"]:
                name, content, metadata = _form(call)
                self.raw[name] = content
                self.order.append(f"raw {metadata['task_id']}")
                return 200, {"status": "ok", "path": name}
            case ["tasks", task_id, "fail"]:
                self.failed[unquote(task_id)] = call.json
                return 200, {"status": "reported"}
            case ["heartbeat"]:
                commands, self.commands = self.commands, []
                return 200, {"acknowledged": True, "commands": commands or None}
        return 404, {"error": {"code": "NOT_FOUND", "message": "no such path"}}


def _form(call: Call) -> tuple[str, bytes, dict[str, Any]]:
    head = f"Content-Type: {call.headers['content-type']}\r\n\r\n".encode()
    parts = {
        part.get_param("name", header="content-disposition"): part
        for part in BytesParser(policy=HTTP).parsebytes(head + call.body).iter_parts()
    }
    file = parts["file"]
    content, about = (parts[name].get_payload(decode=True) for name in ("file", "metadata"))
    assert isinstance(content, bytes)
    assert isinstance(about, bytes)
    return str(file.get_filename()), content, json.loads(about)
