"""A data folder, the commands on it, and what runs there: real Valkey, real workers."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TextIO

import msgspec
import psutil
import redis

from crawler.config import Settings, load
from crawler.db import owners
from crawler.lpm import LocalPersistenceManager
from crawler.models import TaskCounts
from crawler.redis_client import connect
from crawler.stack import read_stack
from tests.support.warm import Warm

PATIENCE_S = 120.0
"""No wait ends before this: a limit is to end a test that hangs, not to measure how fast the
machine is."""
DAEMONS = ("up", "worker")
"""Commands whose processes stay, so that others find them by their command line."""


@cache
def warm() -> Warm:
    """The interpreter of this process's commands."""
    return Warm()


@cache
def warm_for_servers() -> Warm:
    """The interpreter of this process's servers."""
    return Warm(serves=True)


def wait_for(condition: Callable[[], Any], limit_s: float, what: str, pause_s: float = 0.02) -> Any:
    """Wait until the condition gives something true, and give that; a limit that is reached is a
    failure."""
    limit_s = max(limit_s, PATIENCE_S)
    end = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {limit_s:g} s for: {what}")
        time.sleep(pause_s)


class Folder:
    """One data folder and the commands typed in its place; `stop` leaves no process behind."""

    def __init__(self, path: Path, **env: str) -> None:
        self.path = path
        self.data = path / "data"
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("CRAWLER_", "REDIS_"))}
        self.env = (
            clean | {"CRAWLER_RATE": "none", "CRAWLER_PAGES": "4"} | env
        )  # the site is the tests' own
        self._started: list[subprocess.Popen[str]] = []

    @property
    def settings(self) -> Settings:
        """The settings that the commands here see."""
        settings = load({k: v for k, v in self.env.items() if k.startswith(("CRAWLER_", "REDIS_"))})
        return msgspec.structs.replace(settings, data_dir=self.data)

    def lpm(self) -> LocalPersistenceManager:
        """A door to the store."""
        return LocalPersistenceManager(self.data)

    def attempts(self) -> int:
        """How many fetches of all tasks have begun, by the ledger: those that a death or a stop
        has cut off, too."""
        with contextlib.closing(self.lpm()) as lpm:
            return int(lpm.store.db.value("SELECT sum(attempts) FROM tasks"))

    def make_store(self) -> None:
        """A store without a task."""
        with contextlib.closing(self.lpm()) as lpm:
            lpm.open()

    def crawler(
        self, *args: str, limit_s: float = 2 * PATIENCE_S, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Type a command and wait for its end."""
        env = self.env | env
        if args[0] not in DAEMONS and warm().suits(env):
            return warm().run(args, self.path, env, limit_s)
        return subprocess.run(
            [sys.executable, "-m", "crawler", *args],
            cwd=self.path,
            env=env,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )

    def start(self, *argv: str, **env: str) -> subprocess.Popen[str]:
        """Start a program here, in a session of its own, its output in a file beside the data."""
        with self._next_log() as out:
            process = subprocess.Popen(
                [sys.executable, "-m", *argv],
                cwd=self.path,
                env=self.env | env,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def _next_log(self) -> TextIO:
        return (self.path / f"{len(self._started)}.log").open("w")

    def log(self, process: subprocess.Popen[str]) -> str:
        """What a started program has printed so far."""
        return (self.path / f"{self._started.index(process)}.log").read_text()

    def worker(
        self, concurrency: int = 2, queues: str = "urgent,default", **env: str
    ) -> subprocess.Popen[str]:
        """A worker as typed by hand, with its children ready."""
        argv = ("-A", "crawler", "worker", "-Q", queues, "-c", str(concurrency))
        if warm().suits(self.env | env):
            with self._next_log() as out:
                process: subprocess.Popen[str] = warm().start(
                    "celery", argv, self.path, self.env | env, out.fileno()
                )
            self._started.append(process)
        else:
            process = self.start("celery", *argv, **env)
        wait_for(
            lambda: len(self.children(process.pid)) >= concurrency, 60, "the worker's children"
        )
        return process

    def children(self, parent: int | None = None) -> list[int]:
        """The living worker children, all or those of one parent."""
        notes = [note.about for note in owners.living(self.data / "run" / "owners")]
        return [
            a["pid"] for a in notes if a.get("kind") == "worker" and parent in (None, a["parent"])
        ]

    def redis(self) -> redis.Redis:
        """A client of the broker that is recorded here."""
        return connect(self.settings.redis_url or read_stack(self.data).redis_url or "")

    def status(self) -> dict[str, Any]:
        """What `status --json` prints."""
        done = self.crawler("status", "--json")
        assert done.returncode == 0, done.stderr
        facts: dict[str, Any] = json.loads(done.stdout)
        return facts

    def books(self) -> TaskCounts:
        """The ledger's books."""
        lpm = self.lpm()
        try:
            return lpm.counts.totals()
        finally:
            lpm.close()

    def wait_until_completed(self, count: int, limit_s: float) -> None:
        """Wait until so many tasks are completed."""
        wait_for(lambda: self.books().completed >= count, limit_s, f"{count} completed tasks")

    def wait_until_done(self, count: int, limit_s: float) -> TaskCounts:
        """Wait until so many tasks are in a final state and none is open."""

        def done() -> TaskCounts | None:
            books = self.books()
            return books if books.accepted >= count and not books.open else None

        # What is done stays so. Each look opens the store, which costs CPU that the workers need.
        what = f"{count} tasks in a final state"
        books: TaskCounts = wait_for(done, limit_s, what, pause_s=0.1)
        return books

    def results(self) -> list[dict[str, Any]]:
        """What an export gives."""
        target = self.path / "export.jsonl"
        done = self.crawler("results", "export", "--output", str(target))
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in target.read_text().splitlines()]

    def write(self, name: str, urls: Sequence[str]) -> Path:
        """A TXT file with these URLs."""
        path = self.path / name
        path.write_text("".join(f"{url}\n" for url in urls))
        return path

    def stop(self) -> None:
        """End everything that was started here."""
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._started:
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(PATIENCE_S)
        if (self.data / "run" / "stack.json").exists():
            self.crawler("down")


def opened_by(folder: Folder, url: str) -> Path:
    """The file that `raw --open` hands to a browser."""
    program, seen = folder.path / "browser", folder.path / "seen"
    program.write_text(f'#!/bin/sh\nprintf %s "$1" > {seen}\n')
    program.chmod(0o755)
    done = folder.crawler("raw", url, "--open", BROWSER=f"{program} %s", TMPDIR=str(folder.path))
    assert done.returncode == 0, done.stderr
    return Path(seen.read_text().removeprefix("file://"))


def left_behind(folder: Folder) -> list[str]:
    """Processes that have to do with this folder."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "environ"]):
        text = " ".join(process.info["cmdline"] or []) + (process.info["environ"] or {}).get(
            "CRAWLER_DATA_DIR", ""
        )
        if str(folder.path) in text and process.pid != os.getpid():
            found.append(f"{process.pid} {text[:200]}")
    return found


def assert_balanced(facts: dict[str, Any]) -> None:
    """Every count of `status --json` is accounted for, of all jobs and of each."""
    for counts in (facts["books"], *facts["jobs"].values()):
        states = ("pending", "processing", "completed", "failed", "skipped", "expired")
        assert counts["accepted"] == sum(counts[state] for state in states), counts
        assert counts["results"] == counts["completed"] == counts["unsynced"] + counts["synced"], (
            counts
        )
