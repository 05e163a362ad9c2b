"""Reads input files in processes of their own, and tells what they gave and what they cost."""

import atexit
import gc
import json
import os
import resource
import subprocess
import sys
import time
import traceback
from functools import cache
from pathlib import Path

import msgspec

TOO_MUCH = 3 << 30
"""Memory at which the process is denied more, so that a failing test hurts nobody else."""


class Cost(msgspec.Struct, frozen=True):
    """What became of a file: rows, rejected ones with the reason of the first, the error at the
    end."""

    good: int
    rejected: int
    reason: str
    error: str
    cpu_s: float
    grown: int


class _Reader:
    """The client of an interpreter that forks for each request: most of the CPU time of a new one
    would go into imports."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.reading"],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._process.communicate)

    def ask(self, times: int, into: str, paths: list[str]) -> list[Cost]:
        """What a fork says; its traceback, or the signal that ended it, is a failure."""
        given, answers = self._process.stdin, self._process.stdout
        assert given
        assert answers
        print(json.dumps([times, into, paths]), file=given, flush=True)
        found, error = json.loads(answers.readline())
        assert not error, error
        return msgspec.convert(found, list[Cost])


_reader = cache(_Reader)


def cost(*paths: Path, times: int = 1, into: Path | None = None) -> list[Cost]:
    """Read the files, each so many times for the best of the CPU times, or import them into a data
    folder; `grown` is by how much memory peaks."""
    return _reader().ask(times, str(into or ""), list(map(str, paths)))


def _peak() -> int:
    """The most memory since `_forget`; not `ru_maxrss`, which begins with what the parent process
    had."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def _forget() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _read(path: Path) -> tuple[int, int, str, str]:
    from crawler.bulk.rows import Reject, read
    from crawler.errors import InputError

    good = rejected = 0
    reason = ""
    try:
        for row in read(path):
            if isinstance(row, Reject):
                rejected += 1
                reason = reason or row.reason
            else:
                good += 1
    except InputError as error:
        return good, rejected, reason, str(error)
    return good, rejected, reason, ""


def _import(path: Path, data: Path) -> tuple[int, int, str, str]:
    from crawler.bulk import import_file
    from crawler.config import Settings

    summary, _ = import_file(Settings(data_dir=data), path)
    return summary.accepted, summary.rejected, "", ""


def _measure(times: int, into: str, paths: list[str]) -> list[dict[str, object]]:
    resource.setrlimit(resource.RLIMIT_AS, (TOO_MUCH, TOO_MUCH))
    found = []
    for path in map(Path, paths):
        before, best = _forget(), float("inf")
        for _ in range(times):
            began = time.thread_time()
            outcome = _import(path, Path(into)) if into else _read(path)
            best = min(best, time.thread_time() - began)
        found.append((*outcome, best, _peak() - before))
    names = Cost.__struct_fields__
    return [dict(zip(names, values, strict=True)) for values in found]


def _answer(times: int, into: str, paths: list[str]) -> None:
    """Print what was found and why there is nothing, as one line of JSON."""
    try:
        told: tuple[object, str] = _measure(times, into, paths), ""
    except BaseException:
        told = None, traceback.format_exc()[-3000:]
    print(json.dumps(told), flush=True)


def _main() -> None:
    # Here, so that what is loaded once is not counted.
    from crawler import (
        bulk,  # noqa: F401
        urls,
    )
    from crawler.bulk import rows, sheet  # noqa: F401

    urls.parse("http://a.example/")
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _answer(*json.loads(line))
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code:
            print(json.dumps((None, f"the reader ended with {code}")), flush=True)


if __name__ == "__main__":
    _main()
