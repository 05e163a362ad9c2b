"""The reference Gateway as a process of its own: started, killed, started again, asked for what it
has."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import closing, suppress
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from crawler.gateway.reference.books import Books
from crawler.gateway.reference.intake import task
from tests.support.stack import PATIENCE_S, wait_for, warm_for_servers

TOKEN = "open-sesame-7"


class Gateway:
    """A server on a free port over the store in a folder; it keeps its port over restarts."""

    token = TOKEN

    def __init__(
        self,
        folder: Path,
        faults: float = 0.0,
        seed: int = 7,
        lease_s: float = 300.0,
        env: Mapping[str, str] | None = None,
        like: str = "",
        **options: object,
    ) -> None:
        self.store = folder / "gateway"
        self.log = folder / "gateway.log"
        self._folder, self._env = folder, dict(env or {})
        self._port = _free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._argv = [
            "--store",
            str(self.store),
            "--port",
            str(self._port),
            "--lease",
            str(lease_s),
        ]
        self.like = like
        self._argv += ["--like", like] if like else []
        self._argv += ["--faults", str(faults), "--seed", str(seed)] if faults else []
        for name, value in options.items():
            self._argv += [f"--{name.replace('_', '-')}", str(value)]
        self._process: subprocess.Popen[str] | None = None
        self.start()

    @property
    def env(self) -> dict[str, str]:
        """What a worker of this Gateway has in its environment."""
        return {"GATEWAY_URL": self.url, "GATEWAY_TOKEN": self.token}

    @property
    def pid(self) -> int:
        """The running server's process."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        self._folder.mkdir(parents=True, exist_ok=True)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("CRAWLER_", "GATEWAY_"))}
        env = clean | {"GATEWAY_TOKEN": self.token} | self._env
        argv = ["gateway", "serve", *self._argv]
        with self.log.open("ab") as out:
            if warm_for_servers().suits(env):
                self._process = warm_for_servers().start(
                    "crawler", argv, Path.cwd(), env, out.fileno()
                )
            else:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "crawler", *argv],
                    env=env,
                    stdout=out,
                    stderr=out,
                    text=True,
                    start_new_session=True,
                )
        wait_for(self._answers, 30, f"the gateway's first word; its log: {self.log}")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()
        try:
            return bool(self.health()["status"] == "ok")
        except (OSError, HTTPException):
            return False

    def stop(self, number: int = signal.SIGTERM, limit_s: float = PATIENCE_S) -> int:
        """End the server in order; gives its exit code."""
        if self._process is None:
            return 0
        process, self._process = self._process, None
        if process.poll() is None:
            process.send_signal(number)
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def kill(self) -> None:
        """End the server as a power cut of its process does."""
        self.stop(signal.SIGKILL)

    def health(self, **headers: str) -> dict[str, Any]:
        """What /health says; with the token, everything."""
        request = urllib.request.Request(f"{self.url}/health", headers=headers)
        with closing(urllib.request.urlopen(request, timeout=PATIENCE_S)) as answer:
            facts: dict[str, Any] = json.load(answer)
        return facts

    def counts(self) -> dict[str, int]:
        """How many there are of everything."""
        counts: dict[str, int] = self.health(**{"X-Worker-Token": self.token})["counts"]
        return counts

    def faults(self) -> dict[str, int]:
        """How often each kind of fault was played."""
        counts: dict[str, int] = self.health(**{"X-Worker-Token": self.token})["faults"]
        return counts

    def set_faults(self, probability: float) -> None:
        """Play faults with another probability from now on."""
        body = json.dumps({"probability": probability}).encode()
        request = urllib.request.Request(
            f"{self.url}/faults", data=body, headers={"X-Worker-Token": self.token}
        )
        urllib.request.urlopen(request, timeout=PATIENCE_S).close()

    def import_tasks(self, tasks: list[dict[str, Any]]) -> None:
        """Take tasks in, given as the rows of a file would be."""
        import time

        with closing(Books(self.store)) as books, books.writing():
            added = books.add(task(_texts(fields), None, time.time()) for fields in tasks)
        assert set(added) <= {"new"}, "some of these tasks were there already"

    def results(self) -> list[dict[str, Any]]:
        """Every result, as an export gives it."""
        with closing(Books(self.store)) as books, books.reading():
            return list(books.results())

    def tasks(self) -> list[dict[str, Any]]:
        """Every task's state, who has it or ended it, and the reason of its failure."""
        with closing(Books(self.store)) as books, books.reading():
            return [msgspec.structs.asdict(known) for known in books.tasks()]

    def tell(self, worker: str, command: str) -> None:
        """Leave a command for a worker."""
        with closing(Books(self.store)) as books, books.writing():
            books.tell(worker, command)


def _texts(fields: dict[str, Any]) -> dict[str, Any]:
    """Numbers as text, as the reader of a file gives them."""
    return {
        name: str(value) if type(value) in (int, float) else value for name, value in fields.items()
    }


def _free_port() -> int:
    """Return a port below those that the kernel gives to clients and to servers without a port:
    else one of them may have it before the server begins."""
    while True:
        port = random.randrange(12_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
