"""Who holds leases: a locked file per process, which the kernel unlocks when the process dies,
however it dies.

The file is `run/owners/<owner>`, laid out as

    0–255    JSON: pid, parent pid, kind
    256–319  the id of the message in hand
    320–327  the task whose page is being worked on (the crash marker)
    328–335  the beat: CLOCK_MONOTONIC when the owner's loop last ran
    336–343  whether the writer's thread is storing much: then nobody knows over what the owner died
    344–359  the load: the part of its places for pages and of a core's time that is in use
    360–591  what keeps the owner from working, as text
    592–     one page a slot: its task, and CLOCK_MONOTONIC when its last request went out; below 0
             the negative of when its next one may go

and mapped into memory, so that noting a task costs no system call and survives kill -9.
"""

import contextlib
import mmap
import os
import re
import secrets
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from crawler.locks import open_lock, try_lock, wait_lock
from crawler.models import BROWSER

STILL = 2.0
"""A living process whose loop has not run for so many times CRAWLER_STALL_S loses its leases and
its part: its own watchdog would have ended it by then, were it not stopped as a whole."""
_MAX_EVIDENCE = 4000
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in ', re.MULTILINE)
_RUNS_SCRAPERS = "/crawler/sites/scrapers.py"
_NOT_SCRAPERS = re.compile(r"/crawler/sites/\w+\.py$|importlib")
_SLOT = struct.Struct("<qd")
_MESSAGE, _PARSING, _BEAT, _WRITING, _LOAD, _TROUBLE, _SLOTS = 256, 320, 328, 336, 344, 360, 592


class Owner:
    """This process's hold on its leases; its end, by whatever cause, frees them."""

    def __init__(self, folder: Path, kind: str, slots: int, **facts: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.id = secrets.token_hex(8)
        self.path = folder / self.id
        # Locked under a name nobody looks at: an owner must never be seen unlocked while it lives.
        hidden = folder / f".{self.id}"
        self._file = hidden.open("w+b")
        wait_lock(self._file.fileno())
        about = {"pid": os.getpid(), "parent": os.getppid(), "kind": kind, **facts}
        self._file.write(
            msgspec.json.encode(about).ljust(_MESSAGE, b" ")
            + bytes(_SLOTS - _MESSAGE + _SLOT.size * slots)
        )
        self._file.flush()
        self._map = mmap.mmap(self._file.fileno(), 0)
        self._free = list(range(slots))
        self.beat()
        hidden.rename(self.path)
        self.trace = self.path.with_suffix(".trace").open("w+b")

    def holds(self, message_id: str) -> None:
        """Note the message in hand (none: an empty string)."""
        self._put(_MESSAGE, _PARSING, message_id)

    def beat(self) -> None:
        """Note that the owner's loop runs."""
        struct.pack_into("<d", self._map, _BEAT, time.monotonic())

    def load(self, places: float, cpu: float) -> None:
        """Note which part of its places for pages and of a core's time is in use."""
        struct.pack_into("<dd", self._map, _LOAD, places, cpu)

    def trouble(self, text: str) -> None:
        """Note what keeps the owner from working (nothing: an empty string)."""
        self._put(_TROUBLE, _SLOTS, text)

    def _put(self, begin: int, end: int, text: str) -> None:
        self._map[begin:end] = text.encode("utf-8", "replace")[: end - begin].ljust(
            end - begin, b"\0"
        )

    def begin(self, task: int) -> int:
        """Note that a task's fetch begins; returns the slot to give back to `end`."""
        slot = self._free.pop()
        _SLOT.pack_into(self._map, _SLOTS + _SLOT.size * slot, task, time.monotonic())
        return slot

    def note_request(self, slot: int, waits_until: float | None) -> None:
        """Note that the page's next request goes out now, or until when it waits for its permit."""
        moment = time.monotonic() if waits_until is None else -waits_until
        struct.pack_into("<d", self._map, _SLOTS + _SLOT.size * slot + 8, moment)

    def end(self, slot: int) -> None:
        """Note that the task's outcome is committed."""
        _SLOT.pack_into(self._map, _SLOTS + _SLOT.size * slot, 0, 0.0)
        self._free.append(slot)

    def mark(self, task: int) -> None:
        """Leave the crash marker while a page's bytes are being worked on (none: 0)."""
        struct.pack_into("<q", self._map, _PARSING, task)

    def writes(self, much: bool) -> None:
        """Note whether the writer's thread is storing much; it may go on for a moment after
        `close`."""
        if not self._map.closed:
            struct.pack_into("<q", self._map, _WRITING, much)

    def close(self) -> None:
        """Give up all leases."""
        self.path.unlink(missing_ok=True)
        self.trace.close()
        Path(self.trace.name).unlink(missing_ok=True)
        self._map.close()
        self._file.close()


class LeaderLock:
    """What one process at a time does for all: a locked file, into which the holder writes its pid
    and its beat.

    The lock of a process that is stopped does not fall. Who sees no new beat for `limit_s` puts a
    file of its own into the place; when the old holder goes on, it finds that its file is no longer
    there.
    """

    def __init__(
        self, path: Path, limit_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path, self._limit_s, self._clock = path, limit_s, clock
        self._file = -1
        self._seen, self._since, self._looked = b"", 0.0, 0.0

    def take(self) -> bool:
        """Become the holder if there is none, or one that stands still; a full disk is no holder,
        and tried again."""
        with contextlib.suppress(OSError):
            if not self._in_place():
                self.close()
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = open_lock(self._path)
            if try_lock(self._file) or self._stands_still():
                return self.keep()
        return False

    def keep(self) -> bool:
        """Note a beat; False where another holds it now."""
        if not self._in_place():
            return False
        with contextlib.suppress(OSError):  # a full disk is told by those who need it
            os.pwrite(self._file, f"{os.getpid()} {self._clock():.3f}\n".encode(), 0)
        return True

    def close(self) -> None:
        """Give it up."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _in_place(self) -> bool:
        if self._file < 0:
            return False
        try:
            return os.path.samestat(os.fstat(self._file), self._path.stat())
        except OSError:
            return False

    def _stands_still(self) -> bool:
        """Whether the holder has not beaten for too long while this process looked on; then its
        file is replaced."""
        now, seen = self._clock(), os.pread(self._file, 64, 0)
        slept, self._looked = now - self._looked > self._limit_s, now
        if seen != self._seen or slept:
            self._seen, self._since = seen, now
        if now - self._since <= self._limit_s:
            return False
        mine = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        self.close()
        self._file = open_lock(mine)
        taken = try_lock(self._file)
        mine.rename(self._path)
        return taken


class OwnerState(msgspec.Struct, frozen=True):
    """What an owner's file says."""

    id: str
    about: dict[str, Any]
    message_id: str
    parsing: int
    """The page over which it died, or 0 where that may have been something else."""
    in_flight: frozenset[int]
    evidence: str
    """Where its threads stood, where the watchdog or a fatal signal ended it; nothing where it was
    killed."""
    in_scraper: str = ""
    """File and line of the user's scraper where that thread stood, if it was in one."""
    beat: float = 0.0
    trouble: str = ""
    places: float = 0.0
    """The part of its places for pages that is in use, of late."""
    cpu: float = 0.0
    """The part of a core's time that it uses, of late."""
    requests: dict[int, float] = {}
    """By page in flight: when its last request went out, by CLOCK_MONOTONIC; below 0 it waits for
    the permit of its next one until the negative of that."""

    def still_s(self, now: float) -> float:
        """For how long its loop has not run, by CLOCK_MONOTONIC."""
        return now - self.beat

    @property
    def pid(self) -> int:
        """Its process, or 0 where the file does not tell."""
        return int(self.about.get("pid", 0))


def living(folder: Path) -> list[OwnerState]:
    """The owners that are alive."""
    notes = []
    for path in _files(folder):
        try:
            with path.open("rb") as file:
                if not try_lock(file.fileno()):
                    notes.append(_read(path, file.read()))
        except FileNotFoundError:
            continue
    return notes


def workers(folder: Path) -> dict[int, list[int]]:
    """The worker processes that live, with their children."""
    return _with_children(note for note in living(folder) if note.about.get("kind") == "worker")


def fetchers(folder: Path) -> dict[int, list[int]]:
    """Those of them that take more than tasks which need a browser."""
    return _with_children(
        note
        for note in living(folder)
        if note.about.get("kind") == "worker" and note.about.get("queues") != [BROWSER]
    )


def browsers(folder: Path) -> dict[int, list[int]]:
    """The worker processes that only take tasks which need a browser, with their children."""
    return _with_children(note for note in living(folder) if note.about.get("queues") == [BROWSER])


def _with_children(notes: Iterable[OwnerState]) -> dict[int, list[int]]:
    pids: dict[int, list[int]] = {}
    for note in notes:
        pids.setdefault(note.about["parent"], []).append(note.about["pid"])
    return pids


@contextmanager
def dead(folder: Path) -> Iterator[list[OwnerState]]:
    """The owners that are dead, locked while they are dealt with; their files go afterwards."""
    files, notes = [], []
    for path in _files(folder):
        try:
            file = path.open("rb")
        except FileNotFoundError:
            continue
        if try_lock(file.fileno()):
            files.append(file)
            notes.append(_read(path, file.read()))
        else:
            file.close()
    try:
        yield notes
        for note in notes:
            (folder / note.id).unlink(missing_ok=True)
            (folder / f"{note.id}.trace").unlink(missing_ok=True)
    finally:
        for file in files:
            file.close()


def exists(folder: Path, owner: str) -> bool:
    """Whether there is an owner of that name, alive or not yet dealt with."""
    return (folder / owner).exists()


def _files(folder: Path) -> list[Path]:
    try:
        return [
            path for path in folder.iterdir() if not path.name.startswith(".") and not path.suffix
        ]
    except FileNotFoundError:
        return []


def _read(path: Path, data: bytes) -> OwnerState:
    data = data.ljust(_SLOTS, b"\0")  # a file that was cut short says nothing, instead of failing
    try:
        about = msgspec.json.decode(data[:_MESSAGE].rstrip(b"\0") or b"{}", type=dict[str, Any])
    except msgspec.DecodeError:
        about = {}
    slots = data[_SLOTS:]
    whole = len(slots) - len(slots) % _SLOT.size
    requests = {task: moment for task, moment in _SLOT.iter_unpack(slots[:whole]) if task}
    parsing, beat, writing, places, cpu = struct.unpack("<qdqdd", data[_PARSING:_TROUBLE])
    try:
        stack = _parsing_thread(path.with_suffix(".trace").read_text(errors="replace"))
    except FileNotFoundError:
        stack = ""
    return OwnerState(
        path.name,
        about,
        _text(data[_MESSAGE:_PARSING]),
        0 if writing else parsing,
        frozenset(requests),
        stack[:_MAX_EVIDENCE],
        _scraper_line(stack),
        beat,
        _text(data[_TROUBLE:_SLOTS]),
        places,
        cpu,
        requests,
    )


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode(errors="ignore")  # a long text may be cut within a character


def _parsing_thread(trace: str) -> str:
    """Of the stacks of all threads the one that was parsing."""
    stacks = trace.split("\n\n")
    parsing = [stack for stack in stacks if "budget.py" in stack]
    cut_off = [stack for stack in stacks if stack.rstrip().endswith("\n  ...")]  # too deep to show
    return [*parsing, *cut_off, trace][0]


def _scraper_line(stack: str) -> str:
    """File and line of a scraper in a stack, whose last call comes first."""
    frames = [(match[1], match[2]) for match in _FRAME.finditer(stack)]
    for (file, _), (caller, _) in pairwise(frames):
        if caller.endswith(_RUNS_SCRAPERS) and not _NOT_SCRAPERS.search(file):
            line = next(line for name, line in frames if name == file)
            return f"{file}, line {line}"
    return ""
