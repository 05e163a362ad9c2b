"""The inbox: the stack imports each file in it once, even if it is killed meanwhile.

    inbox/FILE, inbox/urgent/FILE    put there by hand; imported once unchanged for two seconds
    inbox/ITEM/                      an import: `.options` says how; complete when its file is there
    inbox/done/ITEM/, failed/ITEM/   the file, and its outcome in FILE.receipt.json

A command on another kernel than the stack must not open the database. It puts an item here instead,
and waits for the receipt.
"""

import contextlib
import errno
import fcntl
import logging
import os
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from crawler.bulk import INPUT, Summary, import_file, rows, source_name
from crawler.bulk.textfile import opened
from crawler.config import Settings, failpoint
from crawler.db import guard, owners
from crawler.errors import CrawlerError, InputError, ServiceError, UsageError
from crawler.files import strangers
from crawler.lpm import LocalPersistenceManager
from crawler.models import JobOptions
from crawler.results import whole_file

log = logging.getLogger(__name__)

SCAN_INTERVAL_S, KERNEL_INTERVAL_S = 0.5, 2.0
SETTLED_S = 2.0
"""A file that has not changed for this long counts as complete."""
ABANDONED_S = 3600.0
"""A copy that has not grown for this long counts as interrupted."""
WAIT_LIMIT_S = 600.0
SAY_INTERVAL_S = 5.0
_UNFINISHED = (".part", ".partial", ".tmp", ".crdownload", "~")
_OUTCOMES = ("done", "failed")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `bulk import` for the file of that name."""

    name: str
    queue: Literal["urgent", "default"] = "default"
    batch_size: int = 100
    strict: bool = False
    fresh_for_s: float | None = None
    job_name: str | None = None
    deadline: float | None = None
    how: JobOptions = JobOptions()


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an import: a summary or an error."""

    summary: Summary | None = None
    error: str | None = None


class _Stopping(Exception):
    """The import is interrupted; the next process continues it."""


class _ChangeTimes:
    """For how long this process has seen paths unchanged."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[Path, tuple[object, float]] = {}

    def unchanged_s(self, path: Path, state: object) -> float:
        """Return the seconds since this state of the path was first seen."""
        before, since = self._seen.get(path, (None, 0.0))
        if state != before:
            since = self._clock()
            self._seen[path] = (state, since)
        return self._clock() - since

    def keep(self, paths: Iterable[Path]) -> None:
        """Forget all other paths."""
        self._seen = {path: self._seen[path] for path in paths if path in self._seen}


class Inbox:
    """Imports the files of the inbox.

    Every worker process has one. One acts at a time and records its kernel; the others stand by.
    """

    def __init__(
        self,
        settings: Settings,
        give_way: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`give_way` is called if another kernel uses the data folder."""
        self._settings, self._give_way = settings, give_way
        self._data = settings.data_dir.absolute()
        self._folder = self._data / "inbox"
        self._stop = threading.Event()
        self._dropped = _ChangeTimes(clock)
        self._copies = _ChangeTimes(clock)
        self._imported = _ChangeTimes(clock)
        self._changed: set[Path] = set()
        """Items whose file changed during the import."""
        self._trouble = ""
        self._strangers: set[Path] = set()
        self._make_folders()

    def _make_folders(self) -> None:
        for folder in (self._folder, self._folder / "urgent"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def stop(self) -> None:
        """Stop, so that another process acts."""
        self._stop.set()

    def run(self) -> None:
        """Act while this process has the lock, until stopped."""
        limit_s = owners.STILL * self._settings.stall_s
        office = owners.LeaderLock(self._data / "run" / "inbox.lock", limit_s)
        while not office.take():
            if self._stop.wait(SCAN_INTERVAL_S):
                office.close()
                return
        if self._act(office):  # otherwise the lock ends with the process
            office.close()

    def _act(self, office: owners.LeaderLock) -> bool:
        """Import files and record this kernel; return False if an import still runs at the end."""
        note = guard.open_kernel_note(self._data / "run")
        # On its own thread: a large file takes longer than the interval of the kernel record.
        importer = threading.Thread(target=self._import_loop, name="inbox-import", daemon=True)
        importer.start()
        our_kernel, our_office = True, True
        while our_kernel and our_office:
            with contextlib.suppress(OSError):  # others report a full disk
                guard.write_kernel_note(note, guard.kernel_name())
            if self._stop.wait(KERNEL_INTERVAL_S):
                break
            our_office = office.keep()
            our_kernel = not guard.is_on_other_kernel(self._data)
        if not our_office:
            log.warning("another process has taken over the inbox while this one stood still")
            self.stop()
        if not our_kernel:  # both started at once, or this machine slept
            log.critical(
                "workers of another kernel are in this data folder: "
                "these end, so that one database has one"
            )
            self.stop()
            self._give_way()
        importer.join(KERNEL_INTERVAL_S)
        ended = not importer.is_alive()
        if ended and our_kernel and our_office:
            with contextlib.suppress(OSError):
                guard.write_kernel_note(note, "")
        os.close(note)
        return ended

    def _import_loop(self) -> None:
        while not self._stop.wait(SCAN_INTERVAL_S):
            try:
                self.take()
                self._trouble = ""
            except _Stopping:
                return
            except (CrawlerError, OSError) as error:
                if not self._trouble:
                    log.warning("the inbox waits: %s", error)
                self._trouble = str(error)

    def take(self) -> None:
        """Import everything that is complete, the oldest first."""
        self._make_folders()  # someone may have removed them
        self._report_strangers()
        self._adopt()
        items = [path for path in self._folder.iterdir() if (path / ".options").is_file()]
        for item in sorted(items, key=lambda path: path.stat().st_mtime_ns):
            self._take(item)

    def _adopt(self) -> None:
        """Turn complete files that were put here by hand into items."""
        dropped = list(self._dropped_files())
        self._dropped.keep(dropped)
        for path in dropped:
            rested_s = self._dropped.unchanged_s(path, _state(path))
            if rested_s >= SETTLED_S and not _is_written(path):
                options = Options(name=safe_name(path))
                if path.parent != self._folder:
                    options = msgspec.structs.replace(options, queue="urgent")
                path.rename(_new_item(self._folder, options) / options.name)

    def _dropped_files(self) -> Iterator[Path]:
        for folder in (self._folder / "urgent", self._folder):
            for path in folder.iterdir():
                unfinished = path.name.startswith(".") or path.name.endswith(_UNFINISHED)
                if not unfinished and not path.is_symlink() and path.is_file():
                    yield path

    def _report_strangers(self) -> None:
        """Log each link, pipe or folder once."""
        found = set(strangers(self._folder))
        for path in sorted(found - self._strangers):
            log.warning(
                "%s is not a regular file, so it is not imported; put a copy of the file there",
                path,
            )
        self._strangers = found

    def _take(self, item: Path) -> None:
        try:
            options = msgspec.json.decode((item / ".options").read_bytes(), type=Options)
        except msgspec.DecodeError:
            return  # its writer was killed before the item was complete
        file = item / Path(options.name).name
        receipt = _read_receipt(item, options)
        if receipt is None:
            if not file.exists():
                self._remove_if_abandoned(item)
                return
            receipt = self._import_settled(item, file, options)
            if receipt is None:
                return
            with whole_file(_receipt_path(item, options)) as out:
                out.write(msgspec.json.format(msgspec.json.encode(receipt)) + b"\n")
        failpoint("receipted")
        outcome = self._folder / "failed"
        if receipt.summary:
            self._mark_reported(receipt.summary)
            outcome = self._folder / "done"
        outcome.mkdir(mode=0o700, exist_ok=True)
        self._note_move(file, outcome / item.name / file.name)
        item.rename(outcome / item.name)

    def _import_settled(self, item: Path, file: Path, options: Options) -> Receipt | None:
        """Import a file; None if it changed meanwhile and must be imported again."""
        state = _state(file)
        if item in self._changed and self._imported.unchanged_s(item, state) < SETTLED_S:
            return None
        receipt = self._import(file, options)
        now = _state(file)
        if now in (state, None):
            self._changed.discard(item)
            self._imported.keep(self._changed)
            return receipt
        # Its writer had only paused.
        log.warning(
            "%s changed during its import: it is imported again once it no longer changes",
            options.name,
        )
        self._changed.add(item)
        self._imported.unchanged_s(item, now)
        return None

    def _remove_if_abandoned(self, item: Path) -> None:
        """Remove a copy that has not grown for ABANDONED_S."""
        size = sum(path.stat().st_size for path in item.iterdir())
        if self._copies.unchanged_s(item, size) > ABANDONED_S:
            shutil.rmtree(item)

    def _import(self, file: Path, options: Options) -> Receipt:
        try:
            summary, job = import_file(
                self._settings,
                file,
                options.queue,
                batch_size=options.batch_size,
                strict=options.strict,
                fresh_for_s=options.fresh_for_s,
                job_name=options.job_name,
                deadline=options.deadline,
                how=options.how,
                # Until the receipt is written, the same file continues this job, even after a kill.
                watched=True,
                replaces=True,
                progress=self._check_stop,
            )
        except UsageError as error:
            log.warning("a file in the inbox cannot be used: %s", error)
            return Receipt(error=str(error).replace(str(file), options.name))
        except (CrawlerError, OSError, _Stopping):
            raise  # not the fault of the file: it is tried again
        except Exception as error:  # the next files must not wait for this one
            log.exception("%s cannot be imported", file)
            return Receipt(error=f"{options.name}: the import met an unforeseen error ({error!r})")
        failpoint("taken")
        log.info("%s from the inbox: %d new, %d known", job.name, summary.accepted, summary.known)
        if summary.other_sheets:
            log.warning("%s: %s", job.name, rows.unread_sheets_note(summary.other_sheets))
        if summary.rejects_file:
            name = Path(summary.rejects_file).name
            summary = msgspec.structs.replace(summary, rejects_file=name)
        return Receipt(summary=summary)

    def _check_stop(self, _line: str) -> None:
        if self._stop.is_set():
            raise _Stopping

    def _note_move(self, file: Path, to: Path) -> None:
        """Record the new path of the file before the move.

        If this process is killed in between, the next one moves it.
        """
        if LocalPersistenceManager.exists(self._data):
            lpm = LocalPersistenceManager(self._data)
            with lpm:
                lpm.imports.move(source_name(file), source_name(to))

    def _mark_reported(self, summary: Summary) -> None:
        """Record that the receipt exists. From now on the same file is a new job."""
        lpm = LocalPersistenceManager(self._data)
        with lpm, contextlib.suppress(UsageError):
            lpm.jobs.mark_reported(lpm.jobs.named(summary.job))


def deliver(
    settings: Settings, file: Path, options: Options, say: Callable[[str], None]
) -> Summary:
    """Give a file to the stack of another kernel, and wait until it is imported."""
    data = settings.data_dir.absolute()
    with opened(file) as source:
        item = _send(data / "inbox", source, options)
    say(f"the stack runs on another kernel and imports the file from {item}")
    try:
        folder, receipt = _wait(data, item, options, say)
    except KeyboardInterrupt:
        place = item.parent / "done" / item.name
        say(f"it is imported all the same; its receipt will be in {place}")
        raise
    if receipt.summary is None:
        shutil.rmtree(folder)
        reason = receipt.error or "the stack could not import it"
        raise UsageError(reason.replace(options.name, str(file), 1))
    rejects_file = receipt.summary.rejects_file
    with rows.RejectsFile(file, data / INPUT) as rejects:
        if rejects_file:
            with (folder / rejects_file).open("rb") as lines:
                for line in lines:
                    rejects.add(msgspec.json.decode(line, type=rows.Reject))
            rejects_file = str(rejects.path)
    shutil.rmtree(folder)
    return msgspec.structs.replace(receipt.summary, rejects_file=rejects_file)


def safe_name(file: Path) -> str:
    """Return a file's name as valid text, short enough to append a suffix."""
    return file.name.encode("utf-8", "replace")[-200:].decode("utf-8", "ignore")


def _state(file: Path) -> tuple[int, int] | None:
    """Return size and time of a file; None if it is gone."""
    try:
        stat = file.stat()
    except FileNotFoundError:
        return None
    return stat.st_size, stat.st_mtime_ns


def _is_written(file: Path) -> bool:
    """Whether a process has the file open for writing, if the file system can tell."""
    # A file that cannot be read is reported by its import.
    with contextlib.suppress(InputError), opened(file) as source:
        try:
            # A writer that opens the file now sends a signal; the usual SIGIO would kill.
            fcntl.fcntl(source, fcntl.F_SETSIG, signal.SIGURG)
            # A lease is granted only if there is no writer.
            fcntl.fcntl(source, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(source, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError as error:
            return error.errno == errno.EAGAIN
    return False


def _new_item(inbox: Path, options: Options) -> Path:
    item = inbox / secrets.token_hex(8)
    item.mkdir(mode=0o700, parents=True)
    with whole_file(item / ".options") as out:
        out.write(msgspec.json.encode(options))
    return item


def _send(inbox: Path, source: BinaryIO, options: Options) -> Path:
    item = _new_item(inbox, options)
    try:
        with whole_file(item / options.name) as out:
            shutil.copyfileobj(source, out)
    except BaseException:
        shutil.rmtree(item)
        raise
    return item


def _wait(
    data: Path, item: Path, options: Options, say: Callable[[str], None]
) -> tuple[Path, Receipt]:
    said = time.monotonic()
    end = said + WAIT_LIMIT_S
    while True:
        for outcome in _OUTCOMES:
            folder = item.parent / outcome / item.name
            if receipt := _read_receipt(folder, options):
                return folder, receipt
        now = time.monotonic()
        if now > end or not guard.is_on_other_kernel(data):
            what = "has gone"
            if now > end:
                what = f"has not imported it within {WAIT_LIMIT_S:.0f} s"
            raise ServiceError(
                f"the stack {what}; the file waits in {item} and is imported when the stack is up"
            )
        if now - said > SAY_INTERVAL_S:
            said = now
            say("waiting for the stack to import it …")
        time.sleep(0.2)


def _receipt_path(item: Path, options: Options) -> Path:
    return item / f"{Path(options.name).name}.receipt.json"


def _read_receipt(item: Path, options: Options) -> Receipt | None:
    try:
        return msgspec.json.decode(_receipt_path(item, options).read_bytes(), type=Receipt)
    except (OSError, msgspec.DecodeError):
        return None
