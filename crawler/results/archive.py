"""Moves results from pending/ into one verified file, and removes old pages from raw/."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from crawler.config import failpoint
from crawler.db import raw_pages
from crawler.errors import StoreError, StoreFull, UsageError
from crawler.files import sync_folder
from crawler.locks import open_lock, try_lock
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job
from crawler.results import whole_file

if sys.version_info >= (3, 14):
    from compression.zstd import CompressionParameter, ZstdError, ZstdFile
else:
    from backports.zstd import CompressionParameter, ZstdError, ZstdFile

ZSTD_OPTIONS: dict[int, int] = {CompressionParameter.checksum_flag: 1}
"""With a checksum, zstd detects every wrong bit."""
BATCH_SIZE = 500
"""Maximum results per transaction: other processes write, too."""
_MAX_LOCKED_SEGMENTS = 100
"""Maximum segments that `prune` locks at a time: each is an open file."""
_TASK_ID = re.compile(r"[0-9a-f]{32}")


class Archived(msgspec.Struct, frozen=True):
    """What was archived, and where; `file` is None if there was nothing to archive."""

    results: int
    file: str | None
    bytes: int


class Pruned(msgspec.Struct, frozen=True):
    """What was removed (or would be), and what was kept."""

    segments: int
    bytes: int
    results: int
    in_use: int
    for_gateway: int
    dry_run: bool


class _Line(msgspec.Struct, frozen=True):
    task_id: str


class _UnfinishedArchive(msgspec.Struct, frozen=True):
    """An archive whose results are not all marked yet. The ledger notes it before the file
    appears."""

    file: str
    """Its path in hex, because a name may be any bytes."""
    compress: bool
    results: int
    sha256: str

    @property
    def path(self) -> Path:
        return Path(os.fsdecode(bytes.fromhex(self.file)))


@contextmanager
def maintenance_lock(lpm: LocalPersistenceManager, shared: bool = False) -> Iterator[None]:
    """Let only one archive, unbundle or prune run at a time; bundles share the lock."""
    if shared and not lpm.can_write:  # a bundle only reads, and no lock file can be made
        with lpm.errors():
            yield
        return
    with lpm.errors():
        lpm.open()
        lock = open_lock(lpm.run / "keeping.lock")
    try:
        if not try_lock(lock, shared):
            raise UsageError(
                f"another archive, bundle, unbundle or prune is at work in {lpm.folder}; "
                "try again when it is done"
            )
        with lpm.errors():
            yield
    finally:
        os.close(lock)


def archive(
    lpm: LocalPersistenceManager,
    output: Path | None,
    *,
    compress: bool,
    job: Job | None = None,
    before: float | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Archived:
    """Move the results in pending/ into one file. They leave pending/ only after the file was read
    back.

    If killed anywhere, it can be called again: results that are not marked are still in pending/.
    The ledger knows a file whose results are not all marked, so no result is written to a second
    one.
    """
    with maintenance_lock(lpm):
        _finish_killed(lpm, progress)
        found = lpm.results.read(job, before=before, only_pending=True)
        first = next(found, None)
        archived = Archived(0, None, 0)
        if first is not None:
            target = output or _new_file(lpm, compress)
            unfinished = _write(lpm, target, compress, chain([first], found), inside=output is None)
            _verify(unfinished)
            progress(f"{unfinished.results:,} results are in {target} and leave pending/")
            failpoint("archived")
            _mark(lpm, unfinished)
            archived = Archived(unfinished.results, printable(str(target)), target.stat().st_size)
        _sweep(lpm)
    return archived


def _new_file(lpm: LocalPersistenceManager, compress: bool) -> Path:
    folder = lpm.folder / "archive"
    folder.mkdir(mode=0o700, exist_ok=True)
    for half in folder.glob(".results-*"):  # of a killed archive: a living one holds the lock
        half.unlink()
    now = datetime.fromtimestamp(lpm.now(), UTC)
    name = f"results-{now:%Y%m%dT%H%M%S.%fZ}.jsonl"
    if compress:
        name += ".zst"
    return folder / name


def _finish_killed(lpm: LocalPersistenceManager, progress: Callable[[str], None]) -> None:
    """Mark the results in the file of a killed archive. Without that file, none is marked."""
    note = lpm.files.unfinished_archive()
    if note is None:
        return
    unfinished = msgspec.json.decode(note, type=_UnfinishedArchive)
    if unfinished.path.is_file() and _holds(unfinished):
        _mark(lpm, unfinished)
        where = f"{unfinished.path}, whose archive was broken off"
        progress(f"{unfinished.results:,} results were already in {where}")
    else:
        lpm.files.note_archive(None)


def _write(
    lpm: LocalPersistenceManager,
    target: Path,
    compress: bool,
    found: Iterator[dict[str, Any]],
    inside: bool,
) -> _UnfinishedArchive:
    if target.exists():
        raise UsageError(f"{target} exists already; an archive is never overwritten")
    count, digest = 0, sha256()
    try:
        with whole_file(target, lpm.folder) as file:
            with _compressing(file, compress) as out:
                for result in found:
                    line = msgspec.json.encode(result) + b"\n"
                    out.write(line)
                    digest.update(line)
                    count += 1
                    failpoint("archiving")
            place = os.fsencode(os.path.realpath(target)).hex()
            unfinished = _UnfinishedArchive(place, compress, count, digest.hexdigest())
            lpm.files.note_archive(msgspec.json.encode(unfinished).decode())
            failpoint("archive-noted")
    except UsageError as error:
        if inside:  # the data folder cannot be written: the user has not named a file
            raise StoreFull(str(error)) from error
        raise
    return unfinished


def _compressing(
    file: BinaryIO, compress: bool
) -> AbstractContextManager[BinaryIO] | AbstractContextManager[ZstdFile]:
    if compress:
        return ZstdFile(file, "w", options=ZSTD_OPTIONS)
    return nullcontext(file)


@contextmanager
def _reading(target: Path, compress: bool) -> Iterator[BinaryIO | ZstdFile]:
    with target.open("rb") as file:
        if hasattr(os, "posix_fadvise"):  # compare what is on disk, not what is in memory
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if not compress:
            yield file
            return
        with ZstdFile(file) as lines:
            yield lines


def _holds(unfinished: _UnfinishedArchive) -> bool:
    """Return whether the file of an archive holds what was written to it."""
    read, found = 0, sha256()
    try:
        with _reading(unfinished.path, unfinished.compress) as lines:
            for line in lines:
                found.update(line)
                read += 1
    except (OSError, ZstdError, EOFError):
        return False
    return (read, found.hexdigest()) == (unfinished.results, unfinished.sha256)


def _verify(unfinished: _UnfinishedArchive) -> None:
    if not _holds(unfinished):
        target = unfinished.path
        aside = target.rename(target.with_name(f"{target.name}.damaged"))
        raise StoreError(
            f"{aside} does not hold what was written to it: the disk fails; pending/ is unchanged"
        )


def _mark(lpm: LocalPersistenceManager, unfinished: _UnfinishedArchive) -> None:
    """Mark exactly the results in the file as archived, none that came in meanwhile."""
    with _reading(unfinished.path, unfinished.compress) as lines:
        task_ids = (msgspec.json.decode(line, type=_Line).task_id for line in lines)
        while batch := list(islice(task_ids, BATCH_SIZE)):
            lpm.files.mark_archived(batch, lpm.now())
            failpoint("archive-marked")
    lpm.files.note_archive(None)


def _sweep(lpm: LocalPersistenceManager) -> None:
    """Remove the files in pending/ whose results have left it, by the ledger. Others' files
    stay."""
    with os.scandir(lpm.pending) as entries:
        names = (entry.name[:-5] for entry in entries if entry.name.endswith(".json"))
        task_ids = (name for name in names if _TASK_ID.fullmatch(name))
        while batch := list(islice(task_ids, BATCH_SIZE)):
            for task_id in lpm.files.those_gone(batch):
                lpm.files.remove(task_id)


def prune(lpm: LocalPersistenceManager, before: float, dry_run: bool) -> Pruned:
    """Remove the segments last written before a time, except those that a writer uses or that hold
    pages for a Gateway.

    The ledger forgets the pages before the file is removed. If killed in between, it can be called
    again.
    """
    removed = size = pages = in_use = for_gateway = 0
    with maintenance_lock(lpm):
        old = raw_pages.older(lpm.raw, before)
        for begin in range(0, len(old), _MAX_LOCKED_SEGMENTS):
            group = old[begin : begin + _MAX_LOCKED_SEGMENTS]
            with raw_pages.locked(group) as free:
                wanted = lpm.outbox.wanted_segments()
                gone = [path for path in free if path.name not in wanted]
                in_use += len(group) - len(free)
                for_gateway += len(free) - len(gone)
                removed += len(gone)
                size += sum(path.stat().st_size for path in gone)
                pages += lpm.results.forget_segments([path.name for path in gone], dry_run)
                if not dry_run:
                    failpoint("pruned")
                    for path in gone:
                        path.unlink()
                    sync_folder(lpm.raw)
    return Pruned(removed, size, pages, in_use, for_gateway, dry_run)
