"""Hands results on in the order of their commits, each with its number, as JSON lines.

A consumer that keeps the last number (`seq`) continues behind it, whatever was killed: it gets each
result once.
"""

import os
import select
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from crawler.config import failpoint
from crawler.db import guard
from crawler.db.results import Following
from crawler.errors import InputError, StoreError, UsageError
from crawler.files import read_regular, replacing, sync_folder
from crawler.locks import try_lock
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job

POLL_INTERVAL_S = 0.2
"""How often to look whether the database has changed. A look reads one number."""
BEGIN = b'{"seq":'
"""The beginning of every line."""
CHECKED_BYTES = 1 << 25
"""How much of the end of a file is checked before it is continued. A power cut can damage only what
was not synced: the last batch."""
NOTE_ENDING = ".filter"
"""What the name of the note of a file's filter ends with."""
_CHUNK_BYTES = 1 << 16


class Line(msgspec.Struct, frozen=True):
    """What identifies a line."""

    seq: int
    task_id: str


class Filter(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Which results were asked for."""

    job: str | None = None
    site: str | None = None
    roles: tuple[str, ...] = ()

    def __str__(self) -> str:
        options = [("--job", self.job), ("--site", self.site)]
        options += [("--role", role) for role in self.roles]
        given = " ".join(f"{name} {value}" for name, value in options if value is not None)
        return f"with {given}" if given else "without --job, --site and --role"


class Sink(Protocol):
    """Where the lines go."""

    def write(self, line: bytes) -> None:
        """Write one line as a whole."""

    def sync(self) -> None:
        """Have the lines so far where they are safe."""

    def wait(self, seconds: float) -> None:
        """Wait that long; raises `BrokenPipeError` once nobody reads any more."""


class Cursor:
    """How far the results were handed on."""

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.results = 0
        self.last: Line | None = None


def follow(
    lpm: LocalPersistenceManager,
    sink: Sink,
    cursor: Cursor,
    *,
    job: Job | None = None,
    roles: Sequence[str] = (),
    site: str | None = None,
    wait: bool = True,
) -> None:
    """Write the results behind the cursor, and move it.

    Ends when the job has ended and all is written, or without `wait` when nothing more is there.
    No transaction is open while lines are written: a slow reader holds up nobody.
    """
    with lpm.errors():
        file, ledger = _identity(lpm), lpm.store.id
    while True:
        with lpm.errors():
            version = _version(lpm)
            found = _read(lpm, ledger, cursor, job, roles, site)
        for seq, result in found.results:
            sink.write(msgspec.json.encode({"seq": seq, **result}) + b"\n")
            cursor.seq, cursor.results = seq, cursor.results + 1
            cursor.last = Line(seq, result["task_id"])
            failpoint("followed")
        if found.results:
            sink.sync()
        cursor.seq = found.seq
        if found.is_complete or (found.is_last and not wait):
            return
        while found.is_last:
            sink.wait(POLL_INTERVAL_S)
            with lpm.errors():
                if _identity(lpm) != file:
                    raise _exchanged(lpm, cursor)
                if _version(lpm) != version:
                    break


def _read(
    lpm: LocalPersistenceManager,
    ledger: str,
    cursor: Cursor,
    job: Job | None,
    roles: Sequence[str],
    site: str | None,
) -> Following:
    found = lpm.results.behind(cursor.seq, job, roles, site)
    # After the results: those of a store that was restored meanwhile must not be handed on.
    is_same = _is_same(lpm, ledger, cursor)
    if not lpm.can_write:
        # Such a store may be open without locks. Closing it tells whether it was changed meanwhile.
        try:
            lpm.close()
        except StoreError:
            return Following((), cursor.seq, is_last=True, is_complete=False)
    if not is_same:
        raise _exchanged(lpm, cursor)
    return found


def _is_same(lpm: LocalPersistenceManager, ledger: str, cursor: Cursor) -> bool:
    """Whether the file still holds the ledger that was followed, and no older copy of it."""
    if lpm.store.id != ledger or lpm.results.last_seq() < cursor.seq:
        return False
    last = cursor.last
    return last is None or lpm.results.task_of(last.seq) in (None, last.task_id)


def _exchanged(lpm: LocalPersistenceManager, cursor: Cursor) -> StoreError:
    return StoreError(
        f"{lpm.path} was replaced or removed while it was followed; all up to number {cursor.seq} "
        "was handed on"
    )


def _version(lpm: LocalPersistenceManager) -> object:
    """A value that changes when the database does."""
    if lpm.can_write:
        return lpm.store.data_version()
    return [_times(path) for path in (lpm.path, lpm.path.with_name(f"{lpm.path.name}-wal"))]


def _times(path: Path) -> tuple[int, int] | None:
    try:
        about = path.stat()
    except FileNotFoundError:
        return None
    return about.st_size, about.st_mtime_ns


def _identity(lpm: LocalPersistenceManager) -> tuple[int, int] | None:
    try:
        about = lpm.path.stat()
    except FileNotFoundError:
        return None
    return about.st_dev, about.st_ino


class Stdout:
    """Lines for a pipe."""

    def __init__(self) -> None:
        self._out = sys.stdout.buffer
        self._poll = select.poll()
        self._poll.register(self._out.fileno(), 0)  # errors are always reported

    def write(self, line: bytes) -> None:
        """Write and flush one line."""
        try:
            self._out.write(line)
            self._out.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise UsageError(f"stdout cannot be written ({error.strerror})") from error

    def sync(self) -> None:
        """Nothing: a pipe is not safe at any time, which is what the cursor is for."""

    def wait(self, seconds: float) -> None:
        """Wait, and notice when the reader closes the pipe."""
        found = self._poll.poll(seconds * 1000)
        if found and found[0][1] & select.POLLERR:
            raise BrokenPipeError


class OutputFile:
    """A file to which lines are appended. Only one process at a time writes to it."""

    def __init__(self, path: Path, store: Path, sleep: Callable[[float], None]) -> None:
        """Open the file, or create it. What a killed process has left of a line is cut off.

        Raises `InputError` for a file that holds anything else, and leaves it as it is.
        """
        guard.check_output(path, store)
        self.path = Path(os.path.realpath(path))
        self._sleep = sleep
        self._file = self._open()
        try:
            self.last = self._resume()
        except BaseException:
            self.close()
            raise

    def _open(self) -> int:
        try:
            if self.path.exists() and not stat.S_ISREG(self.path.stat().st_mode):
                raise UsageError(f"{self.path} is not a file")
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            file = os.open(self.path, flags, 0o666)
            sync_folder(self.path.parent)
        except OSError as error:
            raise self._unwritable(error) from error
        return file

    def _resume(self) -> Line | None:
        """Lock the file, and find its last line."""
        if not try_lock(self._file):
            raise UsageError(f"another process writes to {self.path}; nothing was written")
        return _last_line(self._file, self.path)

    def check_store(self, lpm: LocalPersistenceManager) -> None:
        """Raise `InputError` if the last line is not a result of this store."""
        if self.last is None:
            return
        known = lpm.results.task_of(self.last.seq) or self.last.task_id
        if self.last.seq > lpm.results.last_seq() or known != self.last.task_id:
            reason = f"number {self.last.seq} is not a result of {lpm.folder}: choose another file"
            raise InputError(str(self.path), reason, _line_count(self._file, self._size()))

    def check_filter(self, wanted: Filter) -> None:
        """Raise `UsageError` if the file was begun with another filter: it would miss results.

        No line can say that, so a filter is noted in a file beside it before the first line.
        """
        note = self.path.with_name(f"{self.path.name}{NOTE_ENDING}")
        try:
            if self.last is None:
                self._note_filter(note, wanted)
                return
            begun = Filter()
            if note.exists():
                begun = msgspec.json.decode(read_regular(note), type=Filter)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InputError(str(note), "this is no note of `results follow`") from error
        except OSError as error:
            raise UsageError(f"{note} cannot be used ({error.strerror})") from error
        if begun != wanted:
            raise UsageError(
                f"{self.path} was begun {begun}; nothing was written: choose another file for "
                f"results {wanted}"
            )

    def _note_filter(self, note: Path, wanted: Filter) -> None:
        if wanted != Filter():
            with replacing(note) as file:
                file.write(msgspec.json.encode(wanted) + b"\n")
        elif note.exists():  # of an earlier file of this name
            note.unlink()
            sync_folder(note.parent)

    def write(self, line: bytes) -> None:
        """Append one line, with one call."""
        try:
            while line:  # a full disk takes a part of it, and then raises an error
                line = line[os.write(self._file, line) :]
        except OSError as error:
            raise self._unwritable(error) from error

    def sync(self) -> None:
        """Have the lines on the disk; raises `UsageError` if the file has lost its name."""
        try:
            os.fsync(self._file)
            has_name = os.path.samestat(os.fstat(self._file), self.path.stat())
        except FileNotFoundError:
            has_name = False
        except OSError as error:
            raise self._unwritable(error) from error
        if not has_name:
            raise UsageError(
                f"{self.path} was moved or removed while it was written; the next start begins a "
                "new one"
            )

    def wait(self, seconds: float) -> None:
        """Wait."""
        self._sleep(seconds)

    def close(self) -> None:
        """Close the file, and let others write to it."""
        os.close(self._file)

    def _size(self) -> int:
        return os.fstat(self._file).st_size

    def _unwritable(self, error: OSError) -> UsageError:
        return UsageError(f"{self.path} cannot be written ({error.strerror})")


def _last_line(file: int, path: Path) -> Line | None:
    """The last whole line; what follows it is cut off."""
    size = os.fstat(file).st_size
    end = _last_newline(file, size) + 1
    torn = os.pread(file, len(BEGIN), end).rstrip(b"\0")
    if not BEGIN.startswith(torn):
        raise _not_ours(file, path, end)
    first = os.pread(file, len(BEGIN), 0)
    if end and first != BEGIN:
        raise _not_ours(file, path, 0)
    last = _check_end(file, path, end)
    if end < size:
        os.ftruncate(file, end)
        os.fsync(file)
    return last


def _check_end(file: int, path: Path, end: int) -> Line | None:
    """Check the last lines before that byte; returns the last of them."""
    begin = max(0, end - CHECKED_BYTES)
    if begin:
        begin = _last_newline(file, begin) + 1
    last = None
    for text in os.pread(file, end - begin, begin).splitlines(keepends=True):
        try:
            line = msgspec.json.decode(text, type=Line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise _not_ours(file, path, begin) from None
        if not text.startswith(BEGIN):
            raise _not_ours(file, path, begin)
        if last and line.seq <= last.seq:
            reason = f"number {line.seq} comes after {last.seq}; nothing was written"
            raise InputError(str(path), reason, _line_count(file, begin) + 1)
        last, begin = line, begin + len(text)
    return last


def _last_newline(file: int, end: int) -> int:
    """The place of the last newline before that byte; -1 if there is none."""
    while end > 0:
        begin = max(0, end - _CHUNK_BYTES)
        place = os.pread(file, end - begin, begin).rfind(b"\n")
        if place >= 0:
            return begin + place
        end = begin
    return -1


def _not_ours(file: int, path: Path, begin: int) -> InputError:
    reason = "this is no line of `results follow`; nothing was written: choose another file"
    return InputError(str(path), reason, _line_count(file, begin) + 1)


def _line_count(file: int, end: int) -> int:
    """The number of lines before that byte."""
    count = place = 0
    while place < end:
        chunk = os.pread(file, min(_CHUNK_BYTES, end - place), place)
        if not chunk:
            break
        count, place = count + chunk.count(b"\n"), place + len(chunk)
    return count
