"""Results out of pending/ into one verified file, and old pages out of raw/."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
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

CHECKED: dict[int, int] = {CompressionParameter.checksum_flag: 1}
"""Has zstd notice a wrong bit wherever it is."""
BATCH = 500
"""Results a transaction: others want to write too."""
_SEGMENTS = 100
"""Segments that are held at a time: each is an open file."""
_TASK_ID = re.compile(r"[0-9a-f]{32}")


class Archived(msgspec.Struct, frozen=True):
    """What was archived, and where; no file where there was nothing."""

    results: int
    file: str | None
    bytes: int


class Pruned(msgspec.Struct, frozen=True):
    """What was removed (or would be) and what was not."""

    segments: int
    bytes: int
    results: int
    in_use: int
    for_gateway: int
    dry_run: bool


class _Line(msgspec.Struct, frozen=True):
    task_id: str


class _Begun(msgspec.Struct, frozen=True):
    """An archive whose results are not all marked yet; the ledger notes it before the file
    appears."""

    file: str
    """Its path, in hex: a name may be any bytes."""
    compress: bool
    results: int
    sha256: str

    @property
    def path(self) -> Path:
        return Path(os.fsdecode(bytes.fromhex(self.file)))


@contextmanager
def keeping(lpm: LocalPersistenceManager, shared: bool = False) -> Iterator[None]:
    """Keep archive, unbundle and prune apart; only bundles may be written side by side."""
    if shared and not lpm.can_write:  # a bundle only reads, and no lock can be made
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
    """Put the results that lie in pending/ into one file, read that back, and only then take them
    out of pending/.

    Killed anywhere it can be called again: what the ledger has not marked is still in pending/, and
    a file that appeared before all of its results were marked is recognised, so that none is
    written to a second one.
    """
    with keeping(lpm):
        _complete(lpm, progress)
        found = lpm.results.read(job, before=before, only_pending=True)
        first = next(found, None)
        archived = Archived(0, None, 0)
        if first is not None:
            target = output or _new_file(lpm, compress)
            begun = _write(lpm, target, compress, chain([first], found), inside=output is None)
            _verify(begun)
            progress(f"{begun.results:,} results are in {target} and leave pending/")
            failpoint("archived")
            _mark(lpm, begun)
            archived = Archived(begun.results, printable(str(target)), target.stat().st_size)
        _sweep(lpm)
    return archived


def _new_file(lpm: LocalPersistenceManager, compress: bool) -> Path:
    folder = lpm.folder / "archive"
    folder.mkdir(mode=0o700, exist_ok=True)
    for half in folder.glob(".results-*"):  # a killed one's: a living one would hold the lock
        half.unlink()
    now = datetime.fromtimestamp(lpm.now(), UTC)
    return folder / f"results-{now:%Y%m%dT%H%M%S.%fZ}.jsonl{'.zst' if compress else ''}"


def _complete(lpm: LocalPersistenceManager, progress: Callable[[str], None]) -> None:
    """Mark what is in the file of an archive that was killed; without that file, nothing of it
    counts."""
    note = lpm.files.unfinished_archive()
    if note is None:
        return
    begun = msgspec.json.decode(note, type=_Begun)
    if begun.path.is_file() and _holds(begun):
        _mark(lpm, begun)
        progress(
            f"{begun.results:,} results were already in {begun.path}, whose archive was broken off"
        )
    else:
        lpm.files.note_archive(None)


def _write(
    lpm: LocalPersistenceManager,
    target: Path,
    compress: bool,
    found: Iterator[dict[str, Any]],
    inside: bool,
) -> _Begun:
    if target.exists():
        raise UsageError(f"{target} is there already; an archive is never written over")
    count, digest = 0, sha256()
    try:
        with whole_file(target, lpm.folder) as file:
            with ZstdFile(file, "w", options=CHECKED) if compress else nullcontext(file) as out:
                for result in found:
                    line = msgspec.json.encode(result) + b"\n"
                    out.write(line)
                    digest.update(line)
                    count += 1
                    failpoint("archiving")
            place = os.fsencode(os.path.realpath(target)).hex()
            begun = _Begun(place, compress, count, digest.hexdigest())
            lpm.files.note_archive(msgspec.json.encode(begun).decode())
            failpoint("archive-noted")
    except UsageError as error:
        if (
            inside
        ):  # it is the data folder that cannot be written, not a file that the user has named
            raise StoreFull(str(error)) from error
        raise
    return begun


@contextmanager
def _reading(target: Path, compress: bool) -> Iterator[BinaryIO | ZstdFile]:
    with target.open("rb") as file:
        if hasattr(
            os, "posix_fadvise"
        ):  # what is compared is to come from the disk, not from memory
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with ZstdFile(file) if compress else nullcontext(file) as lines:
            yield lines


def _holds(begun: _Begun) -> bool:
    """Whether the file of an archive is what was written to it."""
    read, found = 0, sha256()
    try:
        with _reading(begun.path, begun.compress) as lines:
            for line in lines:
                found.update(line)
                read += 1
    except (OSError, ZstdError, EOFError):
        return False
    return (read, found.hexdigest()) == (begun.results, begun.sha256)


def _verify(begun: _Begun) -> None:
    if not _holds(begun):
        target = begun.path
        aside = target.rename(target.with_name(f"{target.name}.damaged"))
        raise StoreError(
            f"{aside} does not hold what was written to it: the disk fails; pending/ is as it was"
        )


def _mark(lpm: LocalPersistenceManager, begun: _Begun) -> None:
    """Note what the file holds as archived: exactly that, whatever has come in meanwhile."""
    with _reading(begun.path, begun.compress) as lines:
        while batch := [
            msgspec.json.decode(line, type=_Line).task_id for line in islice(lines, BATCH)
        ]:
            lpm.files.mark_archived(batch, lpm.now())
            failpoint("archive-marked")
    lpm.files.note_archive(None)


def _sweep(lpm: LocalPersistenceManager) -> None:
    """Remove from pending/ what has left it by the ledger, also what a kill left there; strangers'
    files stay."""
    with os.scandir(lpm.pending) as entries:
        names = (entry.name[:-5] for entry in entries if entry.name.endswith(".json"))
        task_ids = (name for name in names if _TASK_ID.fullmatch(name))
        while batch := list(islice(task_ids, BATCH)):
            for task_id in lpm.files.those_gone(batch):
                lpm.files.remove(task_id)


def prune(lpm: LocalPersistenceManager, before: float, dry_run: bool) -> Pruned:
    """Remove the segments last written before that time, unless a writer has them or a Gateway is
    to get their results.

    The results let go of their pages first and the file goes last: killed in between, it can be
    called again.
    """
    removed = size = pages = in_use = for_gateway = 0
    with keeping(lpm):
        old = raw_pages.older(lpm.raw, before)
        for begin in range(0, len(old), _SEGMENTS):
            group = old[begin : begin + _SEGMENTS]
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
