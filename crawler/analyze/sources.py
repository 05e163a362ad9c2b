"""Where results come from: a folder of them, a file, a store, or one job of it."""

import io
import json
import re
import sys
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec

from crawler.analyze.facts import ErrorClass
from crawler.errors import InputError, StoreError, StoreFull, UsageError
from crawler.lpm import LocalPersistenceManager
from crawler.models import Books, Job

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LIMIT = 64 << 20
"""A result that is larger than this is none of ours."""
ENDINGS = (".json", ".jsonl", ".jsonl.zst")

_NAMED = 5
_PIECE = 1 << 20
_GAP = re.compile(r"[\s,]*")


class Unfinished(msgspec.Struct, frozen=True, kw_only=True):
    """A task that ended without a result."""

    key: bytes
    parcel_id: str
    at: float
    url: str
    reason: str


class Source:
    """Results, one after the other, and what a ledger knows beside them; `path` is None where the
    store gives both."""

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

    @property
    def kind(self) -> str:
        """What it is, in a word."""
        if self.path is None:
            return "store"
        return "folder" if self.path.is_dir() else "file"

    def close(self) -> None:
        """Let go of the store."""
        if self.lpm:
            self.lpm.close()

    # What files and the store both have

    def results(self) -> Iterator[dict[str, Any]]:
        """Every result that can be read; what cannot is counted, and the first few are named."""
        if self.path is None:
            assert self.lpm
            yield from self.lpm.results.read(self.job)
        elif self.path.is_dir():
            due, read = self._due(), 0
            # By name, so that the same folder always gives the same examples.
            for file in sorted(self.path.iterdir()):
                if file.name.startswith("."):  # one that is being written
                    continue
                if self.lpm:
                    due_here = self._is_due(file)
                    if due_here is None:
                        self._set_aside(file, 1, "no task of this store has this name")
                    if not due_here:
                        continue
                for result in self._read(file):
                    read += 1
                    yield result
            lacking = min(due, self._due()) - read  # while it was read, some may have come or gone
            if lacking > 0:
                self.notes.append(
                    f"{lacking:,} results that the ledger has for this folder were not in it"
                )
        else:
            yield from self._read(self.path)

    def _is_due(self, file: Path) -> bool | None:
        """Whether the ledger has a result for a file of this name; None where it knows no such
        task."""
        # An archive that was killed leaves files of results that have left pending/: another source
        # has those.
        name = file.name.removesuffix(".json") if file.suffix == ".json" else ""
        return self.lpm.outbox.is_due(name, self.job) if self.lpm else None

    def _due(self) -> int:
        """How many results the ledger has for pending/."""
        return self.lpm.outbox.delivery(None).pending if self.lpm else 0

    def _read(self, file: Path) -> Iterator[dict[str, Any]]:
        number = 0
        try:
            for number, text in enumerate(_texts(file), 1):
                try:
                    result = msgspec.json.decode(text)
                    fault = _fault(result)
                except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                    fault = f"not JSON ({error})" if text.strip() else "empty"
                if fault:
                    self._set_aside(file, number, fault)
                else:
                    yield result
        except FileNotFoundError:
            return  # archived, or sent to the Gateway, since the folder was listed
        except (OSError, EOFError, ValueError, RecursionError, zstd.ZstdError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self._set_aside(file, number + 1, reason)

    def _set_aside(self, file: Path, number: int, reason: str) -> None:
        self.unreadable += 1
        if len(self.unreadable_examples) < _NAMED:
            where = file.name if number <= 1 else f"{file.name}, result {number}"
            self.unreadable_examples.append(f"{where}: {reason[:200]}")

    # What only a ledger knows

    def books(self) -> Books | None:
        """The counts of the ledger or of the job."""
        if self.lpm is None:
            return None
        return self.lpm.counts.of_job(self.job) if self.job else self.lpm.counts.totals()

    def errors(self) -> list[ErrorClass]:
        """Why tasks ended without a result, the most frequent reason first."""
        rows = self.lpm.counts.errors(self.job) if self.lpm else []
        return [ErrorClass(status=s, reason=r, count=c, url=u, message=m) for s, r, c, u, m in rows]

    def domains(self) -> Iterator[tuple[str, int, int]]:
        """Each domain with how many of its tasks are completed, and how many ended without a
        result."""
        return iter(self.lpm.counts.ends_by_domain(self.job) if self.lpm else [])

    def pages(self) -> Iterator[tuple[int, float]]:
        """The size and the fetch time in milliseconds of every result's page."""
        return self.lpm.results.sizes(self.job) if self.lpm else iter([])

    def unfinished(self) -> Iterator[Unfinished]:
        """Every task that ended without a result."""
        rows = self.lpm.counts.unfinished(self.job) if self.lpm else iter([])
        for key, parcel_id, at, url, reason in rows:
            yield Unfinished(key=key, parcel_id=parcel_id, at=at, url=url, reason=reason)


def find(name: str, job: str | None, data_dir: Path) -> Source:
    """What an operator means: a data folder, a folder or file of results, or a job of the store in
    `data_dir`."""
    path = Path(name)
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError as error:
        raise InputError(name, f"it cannot be opened: {error.strerror or error}") from None
    if is_folder:
        return _folder(name, path, job)
    if job:
        raise UsageError(f"--job picks a job of a data folder; {name} is none")
    if is_file and name.lower().endswith(ENDINGS):
        return Source(name, path)
    missing = (
        f"this is no file that ends in {', '.join(ENDINGS)}"
        if path.exists()
        else "there is no such file or folder"
    )
    if not LocalPersistenceManager.exists(data_dir):
        raise InputError(
            name,
            f"{missing}, and no store in {data_dir.absolute()} that could have a job of that name",
        )
    lpm = LocalPersistenceManager(data_dir)
    try:
        return _of_job(name, lpm, name)
    except UsageError as error:
        lpm.close()
        raise InputError(name, f"{missing}, and {error}") from None


def _of_job(name: str, lpm: LocalPersistenceManager, job_name: str) -> Source:
    job = lpm.find_job(job_name)
    source = Source(name, None, lpm, job)
    if later := lpm.jobs.later_namesakes(job):
        source.notes.append(
            f"this is the job {job.name}; the latest of a file of the same name is {later[-1].name}"
        )
    source.notes += _unaccounted(lpm, [job])
    return source


def _unaccounted(lpm: LocalPersistenceManager, jobs: Sequence[Job]) -> list[str]:
    """What is known to be missing of jobs, so that a report of what is there does not pass for one
    of all."""
    found = zip(jobs, lpm.unaccounted(jobs), strict=True)
    return [f"UNACCOUNTED: {job.name}: {what}" for job, missing in found for what in missing]


def _folder(name: str, path: Path, job: str | None) -> Source:
    whole = LocalPersistenceManager.exists(path)
    place = path.resolve()
    if not whole and not (place.name == "pending" and LocalPersistenceManager.exists(place.parent)):
        if job:
            raise UsageError(f"--job picks a job of a data folder; there is no lpm.db in {name}")
        return Source(name, path)
    lpm = LocalPersistenceManager(path if whole else place.parent)
    try:
        lpm.open(to_read=True)
        source = _of_job(name, lpm, job) if job else Source(name, None if whole else path, lpm)
        if source.path and (made := lpm.files.restore(read_all=True)):
            source.notes.append(
                f"{made:,} files were missing or torn, and were made again from the ledger"
            )
        if not job:
            lost = _unaccounted(lpm, lpm.jobs.all())
            source.notes += lost or [f"UNACCOUNTED: {what}" for what in lpm.pages.missing()]
        return source
    except (StoreError, UsageError) as error:
        lpm.close()
        if whole or job:
            raise
        if isinstance(
            error, StoreFull
        ):  # a report of what happens to be there would pass for one of all results
            hint = "analyze a copy of this folder to see only what is there"
            raise StoreFull(
                f"files that {name} may lack cannot be made again: {error}; {hint}"
            ) from error
        source = Source(name, path)
        source.notes.append(f"the store beside it cannot be used, so only files were read: {error}")
        return source


def _fault(result: object) -> str | None:
    if not isinstance(result, dict):
        return "not a result (no JSON object)"
    if not isinstance(result.get("data"), dict):
        return 'not a result (no "data" object)'
    return None if isinstance(result.get("url"), str) else 'not a result (no "url")'


def _texts(file: Path) -> Iterator[bytes | str]:
    """The JSON texts in a file: one object, the elements of an array, or lines."""
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
            if data.peek(100).removeprefix(BOM_UTF8).lstrip().startswith(b"["):
                with io.TextIOWrapper(data, "utf-8-sig") as text:
                    yield from _elements(text)
            else:
                yield data.read(LIMIT).removeprefix(BOM_UTF8)
    else:
        raise ValueError(f"none of {', '.join(ENDINGS)}")


def _lines(file: Any) -> Iterator[bytes]:
    """Lines that are not blank; one beyond the limit comes in pieces, which are no JSON."""
    while line := file.readline(LIMIT):
        if line.strip():
            yield line


def _elements(stream: TextIO) -> Iterator[str]:
    """The elements of an array as they are written, whatever the array's size."""
    decoder = json.JSONDecoder(
        parse_int=str, parse_float=str
    )  # it only finds where an element ends
    window = stream.read(_PIECE)
    at = window.index("[") + 1
    while True:
        at = _GAP.match(window, at).end()  # type: ignore[union-attr] # it matches everywhere
        if window.startswith("]", at):
            return
        try:
            end = decoder.raw_decode(window, at)[1]
        except json.JSONDecodeError as error:
            end, fault = len(window), error.msg
        else:
            fault = "the file ends before the array does"
        if end < len(window):
            yield window[at:end]
            at = end
            continue
        window = window[at:]  # perhaps it was only the window that ended here
        more = stream.read(max(_PIECE, len(window))) if len(window) < LIMIT else ""
        if not more:
            raise ValueError(f"the rest of the array cannot be read ({fault})")
        window, at = window + more, 0
