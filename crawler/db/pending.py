"""The files in pending/: one result each, made from the ledger and made again where one is lost."""

import contextlib
import errno
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from crawler.db import owners, results
from crawler.db.connection import Database, writing
from crawler.db.store import IN_PENDING, LISTED, Part, Store, as_json
from crawler.files import read_regular, set_aside, sync_file_system
from crawler.models import Job

log = logging.getLogger(__name__)

MAX_UNWRITTEN = 1000
"""Results whose files could not be written and are tried again with the next ones."""
LOOK_AGAIN_S = 2.0
"""In this time a living writer writes at least one of the files that are due."""
COARSE_S = 2.0
"""The times of files may be behind the clock by this much."""
LEFTOVER_AGE_S = 60.0
"""An unfinished file of a living writer is only milliseconds old."""
UNFINISHED = re.compile(r"\.[0-9a-f]{32}\.\d+\.\d+")
"""The name of a file in pending/ while it is written."""
_WHOLE, _TORN, _OTHER = "whole", "missing or torn", "other"


class _Look(NamedTuple):
    """Which files to look into: those of these tasks (None: of all), and those changed since."""

    suspects: set[str] | None
    before: float
    replayed: set[str]
    """Tasks whose files may have the earlier record, if a replay was killed."""


class PendingFiles(Part):
    """Writes, checks and restores the files in pending/, and notes what archives take of them."""

    _store: Store

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._folder = store.pending
        self._unwritten: list[int] = []

    def write(self, tasks: list[int]) -> None:
        """Write the results of these tasks, and of those whose files could not be written before.

        Where that fails the results stay due: the commit has decided, not the file.
        """
        self._unwritten += tasks
        for task, task_id, document in results.documents(self._db, self._unwritten):
            try:
                self._write(task_id, document)
            except OSError as error:
                self._unwritten = [other for other in self._unwritten if other >= task]
                if len(self._unwritten) >= MAX_UNWRITTEN:
                    log.warning(
                        "pending/ lacks files (%s); they are made again at the next start", error
                    )
                    self._unwritten.clear()
                return
        self._unwritten.clear()

    def write_one(self, task: int) -> None:
        """Write the file of one task, unless its result has left pending/."""
        for _, task_id, document in results.documents(self._db, [task]):
            self._write(task_id, document)

    def _write(self, task_id: str, document: bytes) -> None:
        hidden = f"{self._folder}/.{task_id}.{os.getpid()}.{threading.get_native_id()}"
        descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            if os.write(descriptor, document + b"\n") <= len(document):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)
        os.replace(hidden, f"{self._folder}/{task_id}.json")  # noqa: PTH105 - for every page

    def remove(self, task_id: str) -> None:
        """Remove the file of a result that has left pending/; a folder there is set aside."""
        path = self._folder / f"{task_id}.json"
        if path.is_dir() and not path.is_symlink():
            set_aside(path, "damaged")
        else:
            path.unlink(missing_ok=True)

    def remove_all(self, task_ids: Iterable[str]) -> None:
        """The same for many results, most of which may have no file."""
        for task_id in task_ids:
            try:
                os.unlink(f"{self._folder}/{task_id}.json")  # noqa: PTH108 - for every page
            except FileNotFoundError:
                continue
            except OSError:
                self.remove(task_id)

    def restore(self, read_all: bool = False) -> int:
        """Make again what is missing or torn in pending/; returns how many.

        A power cut tears files that were not on the disk yet. So those are read that came since
        the last `secure`, or all of them; what else was changed since is compared with the ledger.
        """
        with self._store.errors():
            look = self._look(read_all)
            there = set()
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    stem = entry.name.removesuffix(".json")
                    if entry.name.startswith("."):
                        _remove_leftover(Path(entry.path))
                    elif stem == entry.name:
                        continue
                    elif (state := self._state_of(stem, look)) == _WHOLE:
                        there.add(stem)
                    elif state == _OTHER:
                        set_aside(Path(entry.path), "damaged")  # it may be the ledger that is wrong
            missing = [pair for pair in self.due() if pair[1] not in there]
            for task, task_id in missing:
                _set_aside_unless_file(self._folder / f"{task_id}.json")
                self.write_one(task)
        return len(missing)

    def secure(self) -> int:
        """See that every result's file is whole and on the disk; returns how many were restored."""
        with self._store.errors():
            horizon = self._db.value("SELECT coalesce(max(id), 0) FROM events")
            at = time.time() - COARSE_S
            restored = self.restore()
            sync_file_system(self._folder)
            with writing(self._durable):
                self._durable.execute(
                    "INSERT OR REPLACE INTO meta (key, value) VALUES ('pending_secured', ?)",
                    (f"{horizon} {at!r}",),
                )
        return restored

    def faults(self, job: Job) -> tuple[int, int]:
        """How many files of a job's results are missing or torn, and differ from the ledger."""
        look, found = self._look(), dict[str, list[str]]()
        for _, task_id in self.due(job):
            found.setdefault(self._state_of(task_id, look), []).append(task_id)
        torn = self.missing(found.get(_TORN, ()), is_whole)
        return len(torn), len(found.get(_OTHER, ()))

    def missing(
        self, due: Iterable[str], is_there: Callable[[Path], bool] = Path.exists
    ) -> list[str]:
        """The results among these, by their task_id, whose files are missing."""

        def at_work() -> bool:
            return bool(owners.living(self._store.owners))

        return missing_files(self._db, self._folder, due, at_work, is_there=is_there)

    def later_results(self) -> Iterator[str]:
        """The tasks whose results are in pending/ but not in the ledger, see `later_results`."""
        return later_results(self._db, self._folder)

    def _look(self, read_all: bool = False) -> _Look:
        secured = self._db.value("SELECT value FROM meta WHERE key = 'pending_secured'", (), "")
        horizon, _, at = secured.partition(" ")
        before = float(at or 0)
        if before > time.time():
            before = 0.0  # a clock that was set back since says nothing about what came later
        since = int(horizon or 0)
        suspects = None
        if not read_all:
            suspects = self._with_event(since, ("completed", "unbundled", "page unbundled"))
        return _Look(suspects, before, self._with_event(since, ("replayed",)))

    def _with_event(self, horizon: int, kinds: Collection[str]) -> set[str]:
        """The tasks with such an event since; their files may not be on the disk yet."""
        return set(
            self._db.column(
                f"""SELECT task_id FROM tasks WHERE id IN (
                       SELECT task FROM events WHERE kind {LISTED} AND id > ?)""",
                (as_json(list(kinds)), horizon),
            )
        )

    def _state_of(self, task_id: str, look: _Look) -> str:
        """What a result's file is; one that was not changed since `secure` is not opened."""
        name = f"{self._folder}/{task_id}.json"
        try:
            about = os.stat(name)  # noqa: PTH116 - for every page
        except OSError:  # nothing, or a link to nowhere
            return _TORN
        if not stat.S_ISREG(about.st_mode):  # a folder, a pipe: no result, whatever its name
            return _TORN
        suspected = look.suspects is None or task_id in look.suspects
        was_replayed = task_id in look.replayed
        unchanged = about.st_size and max(about.st_ctime, about.st_mtime) < look.before
        if unchanged and not suspected and not was_replayed:
            return _WHOLE
        file = _read_result(Path(name))
        if file is None:
            return _TORN
        if was_replayed:
            return _WHOLE if results.agrees(self._db, task_id, file) else _TORN
        if suspected or results.agrees(self._db, task_id, file):
            return _WHOLE
        return _OTHER

    # What the ledger says

    def due(self, job: Job | None = None) -> list[tuple[int, str]]:
        """Number and id of each task whose result is to lie in pending/."""
        condition, values = results.matching(job, None)
        return self._db.all(
            f"""SELECT t.id, t.task_id FROM outbox o JOIN tasks t ON t.id = o.task
                JOIN results r ON r.task = o.task WHERE {IN_PENDING} AND {condition}""",
            values,
        )

    def due_count(self) -> int:
        """How many results are to lie in pending/."""
        return int(self._db.value(f"SELECT count(*) FROM outbox o WHERE {IN_PENDING}"))

    def those_due(self, task_ids: Collection[str], job: Job | None = None) -> list[str]:
        """Of these tasks the ids of those whose results are to lie in pending/, in their order."""
        return _those_due(self._db, task_ids, job)

    def those_gone(self, task_ids: Collection[str]) -> list[str]:
        """Of these tasks the ids of those whose results have left pending/."""
        return self._db.column(
            f"""SELECT t.task_id FROM tasks t JOIN outbox o ON o.task = t.id
                WHERE t.task_id {LISTED} AND NOT ({IN_PENDING})""",
            (as_json(list(task_ids)),),
        )

    def is_due(self, task_id: str, job: Job | None) -> bool | None:
        """Whether a task's result is to lie in pending/; None where there is no such task."""
        condition, values = results.matching(job, None)
        due: bool | None = self._db.value(
            f"""SELECT coalesce({IN_PENDING}, TRUE) FROM tasks t LEFT JOIN outbox o ON o.task = t.id
                WHERE {condition} AND t.task_id = ?""",
            (*values, task_id),
        )
        return due

    # Archives

    def mark_archived(self, task_ids: Collection[str], now: float) -> None:
        """Note that these results have left pending/ for an archive."""
        with writing(self._durable):
            self._durable.execute(
                f"""UPDATE outbox SET archived_at = ? WHERE archived_at IS NULL
                    AND task IN (SELECT id FROM tasks WHERE task_id {LISTED})""",
                (now, as_json(list(task_ids))),
            )

    def unfinished_archive(self) -> str | None:
        """The note of an archive whose results are not all marked yet."""
        note: str | None = self._db.value("SELECT value FROM meta WHERE key = 'archiving'")
        return note

    def note_archive(self, note: str | None) -> None:
        """Note an archive before its file appears; None once its results are marked."""
        with writing(self._durable):
            self._durable.execute("DELETE FROM meta WHERE key = 'archiving'")
            if note:
                self._durable.execute(
                    "INSERT INTO meta (key, value) VALUES ('archiving', ?)", (note,)
                )


def later_results(db: Database, pending: Path) -> Iterator[str]:
    """The tasks whose results are whole in pending/, but not completed in the ledger.

    The ledger is then an older copy, or has lost its log.
    """
    known = "SELECT 1 FROM tasks WHERE task_id = ? AND status = 'completed'"
    for path in pending.glob("[!.]*.json"):
        if db.one(known, (path.stem,)) is None and is_whole(path):
            yield path.stem


def missing_files(
    db: Database,
    pending: Path,
    due: Iterable[str],
    at_work: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
    is_there: Callable[[Path], bool] = Path.exists,
) -> list[str]:
    """The results among these, by their task_id, whose files in pending/ are missing.

    A living worker writes a file just after its commit, so they are looked for until no more of
    them come.
    """
    left = _lacking(db, pending, due, is_there)
    while left and at_work():
        sleep(LOOK_AGAIN_S)
        before, left = left, _lacking(db, pending, left, is_there)
        if left == before:
            break
    return left


def _lacking(
    db: Database, pending: Path, names: Iterable[str], is_there: Callable[[Path], bool]
) -> list[str]:
    gone = [name for name in names if not is_there(pending / f"{name}.json")]
    # Asked after the look: a file that was delivered or archived meanwhile has left the ledger's
    # list first.
    return _those_due(db, gone)


def _those_due(db: Database, task_ids: Collection[str], job: Job | None = None) -> list[str]:
    condition, values = results.matching(job, None)
    return db.column(
        f"""SELECT t.task_id FROM outbox o JOIN tasks t ON t.id = o.task
            JOIN results r ON r.task = o.task
            WHERE {condition} AND t.task_id {LISTED} AND {IN_PENDING} ORDER BY t.id""",
        (*values, as_json(list(task_ids))),
    )


def is_whole(path: Path) -> bool:
    """Whether a file in pending/ is a result that can be read, and that of its name."""
    return _read_result(path) is not None


def _read_result(path: Path) -> dict[str, Any] | None:
    """The result in a file; None where it cannot be read, or is not that of the file's name."""
    try:
        result = msgspec.json.decode(read_regular(path))
    except (OSError, msgspec.DecodeError):
        return None
    if not isinstance(result, dict) or result.get("task_id") != path.stem:
        return None
    return result if isinstance(result.get("data"), dict) else None


def _remove_leftover(path: Path) -> None:
    """Remove what a killed writer of ours left."""
    with contextlib.suppress(OSError):  # where only reading is allowed, it stays
        ours = UNFINISHED.fullmatch(path.name) and path.is_file()
        if ours and time.time() - path.stat().st_mtime > LEFTOVER_AGE_S:
            path.unlink()


def _set_aside_unless_file(path: Path) -> None:
    """Make room for a result where a folder, a pipe, a device or a link has its name."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(path.lstat().st_mode):
            set_aside(path, "damaged")
