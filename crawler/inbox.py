"""The inbox: a file that is put there is imported by the stack, once, whoever is killed on the way.

    inbox/FILE, inbox/urgent/FILE       dropped by hand; taken when it rests for two seconds and nobody writes it
    inbox/ITEM/                         an import: `.options` says how, and it counts from the moment its file is there
    inbox/done/ITEM/, failed/ITEM/      the file and what became of it, in FILE.receipt.json

A command on another kernel than the stack's must not open the database: it leaves an item and
awaits its receipt.
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
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from crawler.bulk import INPUT, Summary, import_file, rows, source_name
from crawler.bulk.textfile import opened
from crawler.config import Settings, failpoint
from crawler.db import kernel, owners
from crawler.errors import CrawlerError, InputError, ServiceError, UsageError
from crawler.files import strangers
from crawler.lpm import LocalPersistenceManager
from crawler.models import JobOptions
from crawler.results import whole_file

log = logging.getLogger(__name__)

TICK_S, BEAT_S = 0.5, 2.0
SETTLED_S = 2.0
"""A dropped file that has not changed for so long is whole."""
ABANDONED_S = 3600.0
"""A copy into the inbox that has not grown for so long was broken off."""
WAIT_LIMIT_S = 600.0
SAY_S = 5.0
_UNFINISHED = (".part", ".partial", ".tmp", ".crdownload", "~")
_OUTCOMES = ("done", "failed")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How the file of that name is to be imported; as `bulk import` has it."""

    name: str
    queue: Literal["urgent", "default"] = "default"
    batch_size: int = 100
    strict: bool = False
    fresh_for_s: float | None = None
    job_name: str | None = None
    deadline: float | None = None
    how: JobOptions = JobOptions()


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an import: one of the two."""

    summary: Summary | None = None
    error: str | None = None


class _Stopping(Exception):
    """The import is broken off, and goes on where it was in the next process."""


class Inbox:
    """Imports what lies in the inbox: one acts at a time and names its kernel, any number stand
    by."""

    def __init__(
        self,
        settings: Settings,
        give_way: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._give_way, self._clock = settings, give_way, clock
        self._data = settings.data_dir.absolute()
        self._folder = self._data / "inbox"
        self._stop = threading.Event()
        self._seen: dict[Path, tuple[tuple[int, int] | None, float]] = {}
        self._copies: dict[Path, tuple[int, float]] = {}
        self._changed: dict[Path, tuple[tuple[int, int] | None, float]] = {}
        """The items whose file has changed since it was imported; as those that were dropped, they
        are to rest."""
        self._trouble = ""
        self._strangers: set[Path] = set()
        self._make_folders()

    def _make_folders(self) -> None:
        for folder in (self._folder, self._folder / "urgent"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def stop(self) -> None:
        """Let the next one act."""
        self._stop.set()

    def run(self) -> None:
        """Act once it is this process's turn, until stopped."""
        office = owners.Office(
            self._data / "run" / "inbox.lock", owners.STILL * self._settings.stall_s
        )
        while not office.take():
            if self._stop.wait(TICK_S):
                office.close()
                return
        if self._act(office):  # else the lock falls with the process
            office.close()

    def _act(self, office: owners.Office) -> bool:
        """Take what comes, and name this kernel; False where an import is still being broken off at
        the end."""
        note = kernel.note(self._data / "run")
        taker = threading.Thread(target=self._take_all, name="inbox-taker", daemon=True)
        taker.start()  # beside the beats: a large file takes its time
        ours, mine = True, True
        while ours and mine:
            with contextlib.suppress(OSError):  # a full disk is told by those who need it
                kernel.write(note, kernel.name())
            if self._stop.wait(BEAT_S):
                break
            mine = office.keep()
            ours = not kernel.is_other(self._data)
        if not mine:
            log.warning("another process has taken over the inbox while this one stood still")
            self.stop()
        if not ours:  # both began at one moment, or this machine slept and was taken for dead
            log.critical(
                "workers of another kernel are in this data folder: these end, so that one database has one"
            )
            self.stop()
            self._give_way()
        taker.join(BEAT_S)
        ended = not taker.is_alive()
        if ended and ours and mine:
            with contextlib.suppress(OSError):
                kernel.write(note, "")
        os.close(note)
        return ended

    def _take_all(self) -> None:
        while not self._stop.wait(TICK_S):
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
        self._adopt()
        items = [path for path in self._folder.iterdir() if (path / ".options").is_file()]
        for item in sorted(items, key=lambda path: path.stat().st_mtime_ns):
            self._take(item)

    def _adopt(self) -> None:
        """Make items of what was dropped by hand and has come to rest."""
        self._make_folders()  # somebody may have tidied up
        self._tell_strangers()
        seen = {}
        for folder in (self._folder / "urgent", self._folder):
            for path in folder.iterdir():
                if (
                    path.name.startswith(".")
                    or path.name.endswith(_UNFINISHED)
                    or path.is_symlink()
                ):
                    continue
                if not path.is_file():
                    continue
                state = _state(path)
                before, since = self._seen.get(path, (None, 0.0))
                seen[path] = (state, since if state == before else self._clock())
                if self._clock() - seen[path][1] >= SETTLED_S and not _is_written(path):
                    options = Options(
                        name=safe_name(path),
                        queue="urgent" if folder.name == "urgent" else "default",
                    )
                    path.rename(_new_item(self._folder, options) / options.name)
        self._seen = seen

    def _tell_strangers(self) -> None:
        """Say once of each link, pipe or folder that it is not imported."""
        found = set(strangers(self._folder))
        for path in sorted(found - self._strangers):
            log.warning(
                "%s is no regular file and is not imported; put a copy of the file there", path
            )
        self._strangers = found

    def _take(self, item: Path) -> None:
        try:
            options = msgspec.json.decode((item / ".options").read_bytes(), type=Options)
        except msgspec.DecodeError:
            return  # its writer was killed before it was an import
        file = item / Path(options.name).name
        receipt = _read_receipt(item, options)
        if receipt is None:
            if not file.exists():
                self._remove_if_abandoned(item)
                return
            state = _state(file)
            changed, since = self._changed.get(item, (state, -SETTLED_S))
            if state != changed or self._clock() - since < SETTLED_S:
                self._changed[item] = (state, since if state == changed else self._clock())
                return
            receipt = self._import(file, options)
            if _state(file) not in (state, None):  # its writer had only paused
                log.warning(
                    "%s was changed after it was taken: it is imported again when it rests",
                    options.name,
                )
                self._changed[item] = (_state(file), self._clock())
                return
            self._changed.pop(item, None)
            with whole_file(_receipt_path(item, options)) as out:
                out.write(msgspec.json.format(msgspec.json.encode(receipt)) + b"\n")
        failpoint("receipted")
        if receipt.summary:
            self._forget(receipt.summary)
        outcome = self._folder / ("done" if receipt.summary else "failed")
        outcome.mkdir(mode=0o700, exist_ok=True)
        self._note_move(file, outcome / item.name / file.name)
        item.rename(outcome / item.name)

    def _remove_if_abandoned(self, item: Path) -> None:
        """Remove what a killed command has left of a copy: one that has not grown while this
        process looked on."""
        state = sum(path.stat().st_size for path in item.iterdir())
        before, since = self._copies.get(item, (-1, 0.0))
        self._copies[item] = (state, since if state == before else self._clock())
        if self._clock() - self._copies[item][1] > ABANDONED_S:
            del self._copies[item]
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
                watched=True,  # until the receipt is written: killed before that, the job goes on, even if it has ended
                replaces=True,
                progress=self._go_on,
            )
        except UsageError as error:
            log.warning("a file in the inbox cannot be used: %s", error)
            return Receipt(error=str(error).replace(str(file), options.name))
        except (CrawlerError, OSError, _Stopping):
            raise  # not the file's fault: it is tried again
        except (
            Exception
        ) as error:  # whatever it is, the files behind this one are not to wait for it
            log.exception("%s cannot be imported", file)
            return Receipt(error=f"{options.name}: the import met an unforeseen error ({error!r})")
        failpoint("taken")
        log.info("%s from the inbox: %d new, %d known", job.name, summary.accepted, summary.known)
        if summary.other_sheets:
            log.warning("%s: %s", job.name, rows.not_read(summary.other_sheets))
        rejects_file = Path(summary.rejects_file).name if summary.rejects_file else None
        return Receipt(summary=msgspec.structs.replace(summary, rejects_file=rejects_file))

    def _go_on(self, _line: str) -> None:
        if self._stop.is_set():
            raise _Stopping

    def _note_move(self, file: Path, to: Path) -> None:
        """Note where the file will be, before it is moved: killed in between, the next process
        moves it."""
        if LocalPersistenceManager.exists(self._data):
            lpm = LocalPersistenceManager(self._data)
            with lpm:
                lpm.imports.move(source_name(file), source_name(to))

    def _forget(self, summary: Summary) -> None:
        """The receipt is there: the same file again is a new job once this one has ended."""
        lpm = LocalPersistenceManager(self._data)
        with lpm, contextlib.suppress(UsageError):
            lpm.jobs.mark_reported(lpm.jobs.named(summary.job))


def deliver(
    settings: Settings, file: Path, options: Options, say: Callable[[str], None]
) -> Summary:
    """Leave a file for the stack of another kernel, and wait until it has imported it."""
    data = settings.data_dir.absolute()
    with opened(file) as source:
        item = _send(data / "inbox", source, options)
    say(f"the stack runs on another kernel and imports the file from {item}")
    try:
        folder, receipt = _wait(data, item, options, say)
    except KeyboardInterrupt:
        say(
            f"it is imported all the same; its receipt will be in {item.parent / 'done' / item.name}"
        )
        raise
    if receipt.summary is None:
        shutil.rmtree(folder)
        raise UsageError(
            (receipt.error or "the stack could not import it").replace(options.name, str(file), 1)
        )
    with rows.RejectsFile(file, data / INPUT) as rejects:
        if receipt.summary.rejects_file:
            with (folder / receipt.summary.rejects_file).open("rb") as lines:
                for line in lines:
                    rejects.add(msgspec.json.decode(line, type=rows.Reject))
    shutil.rmtree(folder)
    path = str(rejects.path) if receipt.summary.rejects_file else None
    return msgspec.structs.replace(receipt.summary, rejects_file=path)


def safe_name(file: Path) -> str:
    """The file's name as text that can be stored, with room for an ending behind it."""
    return file.name.encode("utf-8", "replace")[-200:].decode("utf-8", "ignore")


def _state(file: Path) -> tuple[int, int] | None:
    """Size and time of a file; None where it is gone."""
    try:
        stat = file.stat()
    except FileNotFoundError:
        return None
    return stat.st_size, stat.st_mtime_ns


def _is_written(file: Path) -> bool:
    """Whether some process has the file open for writing, as far as the file system tells: then it
    is not whole."""
    with (
        contextlib.suppress(InputError),
        opened(file) as source,
    ):  # one that cannot be read is told at its import
        try:
            fcntl.fcntl(
                source, fcntl.F_SETSIG, signal.SIGURG
            )  # a writer that comes now sends one, and SIGIO would kill
            fcntl.fcntl(
                source, fcntl.F_SETLEASE, fcntl.F_RDLCK
            )  # given only where there is no writer
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
    end, said = time.monotonic() + WAIT_LIMIT_S, time.monotonic()
    while True:
        for outcome in _OUTCOMES:
            folder = item.parent / outcome / item.name
            if receipt := _read_receipt(folder, options):
                return folder, receipt
        now = time.monotonic()
        if now > end or not kernel.is_other(data):
            what = f"has not imported it within {WAIT_LIMIT_S:.0f} s" if now > end else "has gone"
            raise ServiceError(
                f"the stack {what}; the file waits in {item} and is imported when the stack is up"
            )
        if now - said > SAY_S:
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
