"""Runs one contestant and takes its time, CPU and memory, those of all its processes together."""

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

ROOT = Path(__file__).resolve().parents[1]
SAMPLE_S = 1.0
WORD_S = 900.0
"""How long a contestant may take to say the next word."""
QUICK_S, SETTLED_S = 0.00006, 420.0
"""How long a new file may take, and how long to wait for that at most."""


class Measured(NamedTuple):
    """What a run came to."""

    pages: int
    seconds: float
    cpu_s: float
    """Of all processes, between the word to go and the last stored page."""
    peak_mb: float
    """The largest sum over all processes of what is theirs (PSS), at any look."""

    @property
    def rate(self) -> float:
        """Pages a second."""
        return self.pages / self.seconds

    @property
    def cpu_per_1000(self) -> float:
        """Seconds of CPU a thousand pages."""
        return 1000 * self.cpu_s / self.pages


class Watch:
    """Looks at a process and all that it started."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._stop = threading.Event()
        self.peak = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _all(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return [self._root, *self._root.children(recursive=True)]
        return []

    def _run(self) -> None:
        while not self._stop.is_set():
            self.peak = max(self.peak, sum(map(own_bytes, self._all())))
            self._stop.wait(SAMPLE_S)

    def cpu_s(self) -> float:
        """What all of them have used so far, those that have ended included."""
        used = 0.0
        for process in self._all():
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                used += times.user + times.system + times.children_user + times.children_system
        return used

    def kill(self) -> None:
        """End them all: what a contestant that fails has started must not stay."""
        for process in reversed(self._all()):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def own_bytes(process: psutil.Process) -> int:
    with suppress(OSError, psutil.NoSuchProcess, psutil.AccessDenied):
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def settle(folder: Path) -> None:
    """Wait until files are made at their ordinary speed.

    For up to five minutes after thousands were removed ext4 takes ten times as long for each new
    one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + SETTLED_S
    while True:
        # Each new folder is somewhere else on the disk.
        each_s = max(_probe(Path(tempfile.mkdtemp(prefix="probe-", dir=folder))) for _ in range(5))
        if each_s < QUICK_S or time.monotonic() > end:
            print(f"a new file takes {each_s * 1e6:.0f} µs", file=sys.stderr)
            return
        print(
            f"a new file takes {each_s * 1e6:.0f} µs, as after many were removed: waiting",
            file=sys.stderr,
        )
        time.sleep(20)


def _probe(folder: Path) -> float:
    """How long a new file takes there, in seconds."""
    began = time.perf_counter()
    for number in range(200):
        with (folder / str(number)).open("xb", buffering=0) as file:
            file.write(b"x" * 1_000)
    return (time.perf_counter() - began) / 200


def run(
    module: str,
    python: Path,
    urls: Path,
    folder: Path,
    options: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
) -> Measured:
    """One run of a contestant in a new folder within that one.

    It is left there, because of what `settle` waits for.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.with_suffix(".log")
    folder = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [str(python), "-m", f"benchmarks.contestants.{module}"],
            cwd=ROOT, env=dict(env) if env else None, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=errors, text=True,
        )  # fmt: skip
    watch = Watch(process.pid)
    try:
        _say(
            process,
            json.dumps({"urls": str(urls), "folder": str(folder), "options": dict(options or {})}),
        )
        _hear(process, "ready", log)
        before, began = watch.cpu_s(), time.monotonic()
        _say(process, "")
        pages = int(_hear(process, "done", log)[0])
        seconds, used = time.monotonic() - began, watch.cpu_s() - before
        _say(process, "")
        process.wait(120)
    except BaseException:
        watch.kill()
        raise
    finally:
        watch.stop()
    return Measured(pages, seconds, used, watch.peak / 1e6)


def _say(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _hear(process: "subprocess.Popen[str]", word: str, log: Path) -> Sequence[str]:
    assert process.stdout
    timer = threading.Timer(WORD_S, process.kill)
    timer.start()
    try:
        for line in process.stdout:
            first, *rest = line.split()
            if first == word:
                return rest
    finally:
        timer.cancel()
    raise RuntimeError(f"{process.args!r} ended without saying {word!r}; see {log}")
