"""Where results come from: a folder, a file, a store, or one job of a store."""

import io
import sys
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from crawler import json_reader
from crawler.errors import InputError, StoreError, StoreFull, UsageError
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job, TaskCounts

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_RESULT = 64 << 20
"""Bytes of a result; no larger one is ours."""
ENDINGS = (".json", ".jsonl", ".jsonl.zst")

_MAX_NAMED = 5
_PIECE = 1 << 20


class ErrorClass(msgspec.Struct, frozen=True):
    """One reason why tasks ended without a result, with the first of these tasks."""

    status: str
    reason: str
    count: int
    url: str
    message: str


class Source:
    """Results, and what a ledger knows about them; `path` is None where the store has both."""

    def __init__(
        self,
        name: str,
        path: Path | None,
        lpm: LocalPersistenceManager | None = None,
        job: Job | None = None,
    ) -> None:
        self.name, self.path, self.lpm, self.job = name, path, lpm, job
        self.unreadable = 0
        self.unreadable_examples: list[str] = []
        self.notes: list[str] = []

    def close(self) -> None:
        """Close the store."""
        if self.lpm:
            self.lpm.close()

    def results(self) -> Iterator[dict[str, Any]]:
        """Yield every result that can be read; count the others, and name the first few."""
        if self.path is None:
            assert self.lpm
            yield from self.lpm.results.read(self.job)
        elif self.path.is_dir():
            yield from self._read_folder(self.path)
        else:
            yield from self._read_file(self.path)

    def _read_folder(self, folder: Path) -> Iterator[dict[str, Any]]:
        expected, read = self._count_pending(), 0
        # By name, so that the same folder always gives the same examples.
        for file in sorted(folder.iterdir()):
            if file.name.startswith(".") or not self._is_wanted(file):
                continue
            for result in self._read_file(file):
                read += 1
                yield result
        # Results may have come or gone while the folder was read.
        lacking = min(expected, self._count_pending()) - read
        if lacking > 0:
            what = f"{lacking:,} results that the ledger has for this folder were not in it"
            self.notes.append(what)

    def _is_wanted(self, file: Path) -> bool:
        """Whether the ledger, if there is one, has a result for a file of this name."""
        if self.lpm is None:
            return True
        # A killed archive leaves files of results that have left pending/: another source has them.
        due = self.lpm.files.is_due(file.name.removesuffix(".json"), self.job)
        if due is None:
            self._count_unreadable(file, 1, "no task of this store has this name")
        return bool(due)

    def _count_pending(self) -> int:
        return self.lpm.outbox.delivery(None).pending if self.lpm else 0

    def _read_file(self, file: Path) -> Iterator[dict[str, Any]]:
        number = 0
        try:
            for number, text in enumerate(_texts(file), 1):
                try:
                    yield _result(text)
                except (ValueError, RecursionError) as error:
                    self._count_unreadable(file, number, str(error))
        except FileNotFoundError:
            return  # archived or sent to the Gateway since the folder was listed
        except (OSError, EOFError, ValueError, InputError, zstd.ZstdError) as error:
            reason = getattr(error, "strerror", None) or getattr(error, "reason", None)
            self._count_unreadable(file, number + 1, str(reason or error))

    def _count_unreadable(self, file: Path, number: int, reason: str) -> None:
        self.unreadable += 1
        if len(self.unreadable_examples) < _MAX_NAMED:
            where = file.name
            if number > 1:
                where += f", result {number}"
            self.unreadable_examples.append(f"{where}: {reason[:200]}")

    # What only a ledger knows.

    def books(self) -> TaskCounts | None:
        """Count the tasks of the ledger or of the job by state."""
        if self.lpm is None:
            return None
        if self.job:
            return self.lpm.counts.of_job(self.job)
        return self.lpm.counts.totals()

    def errors(self) -> list[ErrorClass]:
        """Why tasks ended without a result, the most frequent reason first."""
        if self.lpm is None:
            return []
        return [ErrorClass(*row) for row in self.lpm.counts.errors(self.job)]

    def domains(self) -> list[tuple[str, int, int]]:
        """Each domain, its completed tasks, and those that ended without a result."""
        if self.lpm is None:
            return []
        return self.lpm.counts.ends_by_domain(self.job)

    def pages(self) -> Iterator[tuple[int, float]]:
        """Yield the size and the fetch time in milliseconds of every result's page."""
        if self.lpm is None:
            return iter(())
        return self.lpm.results.sizes(self.job)

    def ended_without_result(self) -> Iterator[tuple[Any, ...]]:
        """Yield key, parcel, time, URL and reason of every task that ended without a result."""
        if self.lpm is None:
            return iter(())
        return self.lpm.counts.ended_without_result(self.job)


def find(name: str, job: str | None, data_dir: Path) -> Source:
    """Open a data folder, a folder or file of results, or a job of the store in `data_dir`."""
    path = Path(name)
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError as error:
        raise InputError(name, f"it cannot be opened: {error.strerror or error}") from None
    if is_folder:
        return _open_folder(name, path, job)
    if job:
        raise UsageError(f"--job picks a job of a data folder; {name} is none")
    if is_file and name.lower().endswith(ENDINGS):
        return Source(name, path)
    problem = "there is no such file or folder"
    if path.exists():
        problem = f"this is no file that ends in {', '.join(ENDINGS)}"
    if not LocalPersistenceManager.exists(data_dir):
        no_store = f"no store in {data_dir.absolute()} that could have a job of that name"
        raise InputError(name, f"{problem}, and {no_store}")
    lpm = LocalPersistenceManager(data_dir)
    try:
        return _open_job(name, lpm, name)
    except UsageError as error:
        lpm.close()
        raise InputError(name, f"{problem}, and {error}") from None


def _open_job(name: str, lpm: LocalPersistenceManager, job_name: str) -> Source:
    job = lpm.find_job(job_name)
    source = Source(name, None, lpm, job)
    if later := lpm.jobs.later_namesakes(job):
        latest = f"the latest of a file of the same name is {later[-1].name}"
        source.notes.append(f"this is the job {job.name}; {latest}")
    source.notes += _unaccounted(lpm, [job])
    return source


def _unaccounted(lpm: LocalPersistenceManager, jobs: Sequence[Job]) -> list[str]:
    """What jobs are known to lack; without it, an incomplete report would pass for a whole one."""
    found = zip(jobs, lpm.unaccounted(jobs), strict=True)
    return [f"UNACCOUNTED: {job.name}: {what}" for job, missing in found for what in missing]


def _open_folder(name: str, path: Path, job: str | None) -> Source:
    parent = path.resolve().parent
    if LocalPersistenceManager.exists(path):
        return _open_store(name, LocalPersistenceManager(path), None, job)
    if path.resolve().name == "pending" and LocalPersistenceManager.exists(parent):
        return _open_store(name, LocalPersistenceManager(parent), path, job)
    if job:
        raise UsageError(f"--job picks a job of a data folder; there is no lpm.db in {name}")
    return Source(name, path)


def _open_store(
    name: str, lpm: LocalPersistenceManager, pending: Path | None, job: str | None
) -> Source:
    """Open a store, or its folder `pending`; the files there are readable without the store."""
    try:
        if job:
            return _open_job(name, lpm, job)
        source = Source(name, pending, lpm)
        lpm.open(to_read=True)
        if pending and (made := lpm.files.restore(read_all=True)):
            made_again = f"{made:,} files were missing or torn, and were made again"
            source.notes.append(f"{made_again} from the ledger")
        lost = _unaccounted(lpm, lpm.jobs.all())
        source.notes += lost or [f"UNACCOUNTED: {what}" for what in lpm.pages.missing()]
        return source
    except (StoreError, UsageError) as error:
        lpm.close()
        if pending is None or job:
            raise
        if isinstance(error, StoreFull):  # a report on the rest would pass for one of all results
            problem = f"files that {name} may lack cannot be made again: {error}"
            hint = "analyze a copy of this folder to see only what is there"
            raise StoreFull(f"{problem}; {hint}") from error
        source = Source(name, pending)
        source.notes.append(f"the store beside it cannot be used, so only files were read: {error}")
        return source


def _result(text: bytes | str | json_reader.Element) -> dict[str, Any]:
    """Decode a result; raise `ValueError` with the reason where it is none."""
    if isinstance(text, json_reader.Element):
        if text.fault or text.size > MAX_RESULT:
            raise ValueError(text.fault or f"larger than {MAX_RESULT:,} bytes")
        text = text.text
    try:
        result = msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError) as error:
        fault = f"not JSON ({error})" if text.strip() else "empty"
        raise ValueError(fault) from None
    if not isinstance(result, dict):
        lacks = "JSON object"
    elif not isinstance(result.get("data"), dict):
        lacks = '"data" object'
    elif not isinstance(result.get("url"), str):
        lacks = '"url"'
    else:
        return result
    raise ValueError(f"not a result (no {lacks})")


def _texts(file: Path) -> Iterator[bytes | str | json_reader.Element]:
    """Yield the JSON texts of a file: one object, the elements of an array, or lines."""
    name = file.name.lower()
    if not file.is_file() and file.exists():  # opening a pipe would wait for its other end
        raise ValueError("not a file")
    if name.endswith(".jsonl.zst"):
        with zstd.open(file, "rb") as packed:
            yield from _lines(packed)
    elif name.endswith(".jsonl"):
        with file.open("rb") as lines:
            yield from _lines(lines)
    elif name.endswith(".json"):
        with file.open("rb") as data:
            if not data.peek(100).removeprefix(BOM_UTF8).lstrip().startswith(b"["):
                yield data.read(MAX_RESULT).removeprefix(BOM_UTF8)
                return
            with io.TextIOWrapper(data, "utf-8-sig") as text:
                pieces = iter(lambda: text.read(_PIECE), "")
                yield from json_reader.elements(file, pieces, MAX_RESULT)
    else:
        raise ValueError(f"none of {', '.join(ENDINGS)}")


def _lines(file: io.BufferedIOBase) -> Iterator[bytes]:
    """Yield lines that are not blank; one beyond the limit comes in pieces, which are no JSON."""
    while line := file.readline(MAX_RESULT):
        if line.strip():
            yield line
