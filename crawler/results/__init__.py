"""Results: counted, listed, exported."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from crawler.config import failpoint
from crawler.db import guard, raw_pages
from crawler.db.results import page_url
from crawler.errors import UsageError
from crawler.files import replace_file, replacing
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job, Raw

FORMATS = ("json", "jsonl", "csv", "xlsx", "warc", "md", "parquet")
TABLES = ("csv", "xlsx", "parquet")
"""Formats with columns: they read everything once before they write."""
_ENDINGS = {".warc.gz": "warc"} | {f".{form}": form for form in FORMATS if form != "warc"}
_PAGE_ENDINGS = {
    "text/html": "html",
    "application/xhtml+xml": "html",
    "application/json": "json",
    "application/ld+json": "json",
    "text/plain": "txt",
    "text/csv": "csv",
    "text/xml": "xml",
    "application/xml": "xml",
    "application/pdf": "pdf",
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/svg+xml": "svg",
}


class Exported(msgspec.Struct, frozen=True):
    """What an export wrote: rows of input or results, results among them, and pages beside them."""

    rows: int
    results: int
    pages: int


class Files(msgspec.Struct, frozen=True):
    """What lies in pending/: results, what should be one and is not, and what is none of ours."""

    results: int
    torn: int
    missing: int | None = None
    """None, as the next, where there is no ledger to compare with."""
    foreign: int | None = None


def look_at_files(lpm: LocalPersistenceManager, job: Job | None) -> Files:
    """Look at every file in pending/ (or those of a job) and compare them with what the ledger has
    for it."""
    due = {task_id for _, task_id in lpm.files.due(job)}
    results = torn = foreign = 0
    for path in lpm.pending.glob("[!.]*"):
        name = path.stem if path.suffix == ".json" else ""
        if name in due or lpm.files.those_due([name], job):
            due.discard(name)
            whole = _looks_whole(path)
            results, torn = results + whole, torn + (not whole and os.path.lexists(path))
        elif job is None and not lpm.tasks.is_known(name):
            foreign += 1
    return Files(results, torn, len(lpm.files.missing(due)), foreign)


def count_files(lpm: LocalPersistenceManager) -> Files:
    """Look at every file in pending/ where there is no ledger to compare it with."""
    whole = [_looks_whole(path) for path in lpm.pending.glob("[!.]*.json")]
    return Files(results=sum(whole), torn=len(whole) - sum(whole))


def _looks_whole(path: Path) -> bool:
    """Whether a file begins with its name and ends as a result does: that tells torn ones without
    reading them all."""
    try:
        if not path.is_file():  # opening a pipe would wait for its other end
            return False
        with path.open("rb", buffering=0) as file:
            head = file.read(64)
            file.seek(-2, os.SEEK_END)
            return (
                head.startswith(b'{"task_id":"%s"' % os.fsencode(path.stem))
                and file.read() == b"}\n"
            )
    except OSError:
        return False


def _place(lpm: LocalPersistenceManager, job: Job | None, result: Mapping[str, Any]) -> Raw | None:
    """Where the page of a result lies, unless none was kept, it was pruned, or the job does without
    it."""
    place = msgspec.convert(result["raw"], Raw | None)
    kept = place and lpm.results.segment_end(place.segment)
    return place if kept and place and not lpm.pages.is_given_up(place, job) else None


def format_of(target: Path) -> str | None:
    """The format that a file's ending names."""
    name = target.name.lower()
    return next((form for ending, form in _ENDINGS.items() if name.endswith(ending)), None)


def export(
    lpm: LocalPersistenceManager,
    target: Path,
    form: str,
    *,
    job: Job | None = None,
    since: float | None = None,
    all_rows: bool = False,
    columns: Sequence[str] = (),
    pages: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Exported:
    """Write results (or, with `all_rows`, every row of the jobs' input) to a file that appears
    whole or not at all.

    With `pages` each result's decoded page goes to a file of its own in that folder, too.
    """
    from crawler.results import formats

    horizon = lpm.timeline.last_event()
    jobs = [job] if job or not all_rows else lpm.jobs.all()
    counts, rows, written = [0] * len(jobs), 0, 0
    saver = _Pages(lpm, job, pages) if pages else None

    def chosen() -> Iterator[Mapping[str, Any]]:
        nonlocal rows, written
        for place, each in enumerate(jobs):
            found = (
                lpm.results.input_rows(each) if all_rows and each else lpm.results.read(each, since)
            )
            for row in found:
                failpoint("exporting")
                rows += 1
                if row["data"] is not None:
                    counts[place] += 1
                    written += saver.save(row) if saver else 0
                yield row

    done = "read" if form in TABLES else "written"
    with _opened(target, form in formats.BINARY, lpm.folder) as out:
        folder = None if str(target) == "-" else Path(os.path.realpath(target)).parent
        sink = formats.Sink(
            out, target.name, folder, lpm.raw, partial(_place, lpm, job), say, columns
        )
        formats.WRITERS[form](
            formats.told(chosen(), say, f"{'rows' if all_rows else 'results'} {done}"), sink
        )
    if saver:
        os.sync()  # once, not for each of a hundred thousand files
        if written < sum(counts):
            say(f"{sum(counts) - written:,} results have no stored page")
    file = "-" if str(target) == "-" else str(target.absolute())
    for each, count in zip(jobs, counts, strict=True):
        lpm.timeline.note_export(file, form, each, since, count, horizon)
    return Exported(rows, sum(counts), written)


class _Pages:
    """A folder of decoded pages, each whole, named after its task."""

    def __init__(self, lpm: LocalPersistenceManager, job: Job | None, folder: Path) -> None:
        self._lpm, self._job, self._folder = lpm, job, folder
        guard.check_output(folder / "page", lpm.folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{folder} cannot be used for pages ({error.strerror})") from error

    def save(self, result: Mapping[str, Any]) -> bool:
        """Write a result's page; False where none is stored."""
        from crawler.fetch.body import decoded

        place = _place(self._lpm, self._job, result)
        if place is None:
            return False
        head, body = raw_pages.read(self._lpm.raw, place, page_url(result))
        target = self._folder / f"{result['task_id']}.{_page_ending(head)}"
        try:
            replace_file(target, decoded(head, body, limit=1 << 30), mode=0o666)
        except OSError as error:
            raise UsageError(f"{target} cannot be written ({error.strerror})") from error
        return True


def _page_ending(head: str) -> str:
    from crawler.fetch.wire import media_type, stored_values

    return _PAGE_ENDINGS.get(media_type(next(iter(stored_values(head, "content-type")), "")), "bin")


@contextmanager
def _opened(target: Path, binary: bool, store: Path) -> Iterator[BinaryIO]:
    if str(target) != "-" or not binary:
        with whole_file(target, store) as out:
            yield out
        return
    if sys.stdout.isatty():
        raise UsageError(
            "this format is not for a terminal; name a file, or send it on through a pipe"
        )
    with (
        tempfile.TemporaryFile() as out
    ):  # these formats go back in their file, which a pipe cannot
        yield out
        out.seek(0)
        shutil.copyfileobj(out, sys.stdout.buffer)


@contextmanager
def whole_file(target: Path, *stores: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name when all of it is on the disk, or not at all; `-` is
    stdout.

    It replaces no file that one of these stores needs.
    """
    if str(target) == "-":
        yield sys.stdout.buffer
        return
    for store in stores:
        guard.check_output(target, store)
    target = Path(os.path.realpath(target))  # a link is followed, not replaced
    try:
        if target.exists() and not target.is_file():
            raise UsageError(f"{target} is not a file")
        with replacing(target) as out:
            yield out
    except OSError as error:
        raise UsageError(f"{target} cannot be written ({error.strerror or error})") from error
