"""Reads input files in a process of its own, and tells what they gave and what they cost."""

import json
import resource
import subprocess
import sys
import time
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


def cost(*paths: Path, times: int = 1, into: Path | None = None) -> list[Cost]:
    """Read the files, each so many times for the best of the CPU times, or import them into a data
    folder; `grown` is by how much memory peaks."""
    argv = [
        sys.executable,
        "-m",
        "tests.support.reading",
        str(times),
        str(into or ""),
        *map(str, paths),
    ]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return msgspec.json.decode(done.stdout, type=list[Cost])


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


def _main(times: int, into: str, paths: list[Path]) -> None:
    from crawler import urls
    from crawler.bulk import sheet  # noqa: F401  # here, so that what is loaded once is not counted

    urls.parse("http://a.example/")

    resource.setrlimit(resource.RLIMIT_AS, (TOO_MUCH, TOO_MUCH))
    found = []
    for path in paths:
        before, best = _forget(), float("inf")
        for _ in range(times):
            began = time.thread_time()
            outcome = _import(path, Path(into)) if into else _read(path)
            best = min(best, time.thread_time() - began)
        found.append((*outcome, best, _peak() - before))
    names = Cost.__struct_fields__
    json.dump([dict(zip(names, values, strict=True)) for values in found], sys.stdout)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2], [Path(name) for name in sys.argv[3:]])
