"""Results: counted, listed, exported."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from crawler.errors import UsageError
from crawler.lpm import LocalPersistenceManager


def count_pending(lpm: LocalPersistenceManager) -> int:
    """How many results lie in pending/."""
    return sum(1 for _ in lpm.pending.glob("[!.]*.json"))


def export(results: Iterable[dict[str, Any]], target: Path, form: str) -> int:
    """Write results to a file, one after the other, whole or not at all; returns how many."""
    with whole_file(target) as out:
        return FORMATS[form](results, out)


def _write_jsonl(results: Iterable[dict[str, Any]], out: BinaryIO) -> int:
    count = 0
    for result in results:
        out.write(msgspec.json.encode(result) + b"\n")
        count += 1
    return count


def _write_json(results: Iterable[dict[str, Any]], out: BinaryIO) -> int:
    count = 0
    out.write(b"[")
    for result in results:
        out.write(b",\n" if count else b"\n")
        out.write(msgspec.json.encode(result))
        count += 1
    out.write(b"\n]\n")
    return count


FORMATS: dict[str, Callable[[Iterable[dict[str, Any]], BinaryIO], int]] = {"json": _write_json, "jsonl": _write_jsonl}


@contextmanager
def whole_file(target: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name when all of it is on the disk, or not at all; `-` is stdout."""
    if str(target) == "-":
        yield sys.stdout.buffer
        return
    target = target.resolve()  # a link is followed, not replaced
    if target.exists() and not target.is_file():
        raise UsageError(f"{target} is not a file")
    hidden = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with hidden.open("wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        hidden.replace(target)
    except OSError as error:
        raise UsageError(f"{target} cannot be written ({error.strerror or error})") from error
    finally:
        hidden.unlink(missing_ok=True)
