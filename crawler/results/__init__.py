"""Exports results to files, and checks their files in pending/."""

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
from crawler.models import Job, RawLocation

FORMATS = ("json", "jsonl", "csv", "xlsx", "warc", "md", "parquet")
TABLES = ("csv", "xlsx", "parquet")
"""Formats with columns: all results are read once before the first is written."""
_MAX_PAGE_BYTES = 1 << 30
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
    """What an export wrote."""

    rows: int
    """Results, or with `all_rows` rows of input."""
    results: int
    pages: int
    files: int = 0
    """Images and documents; those that were in the folder already are not counted."""


class PendingFiles(msgspec.Struct, frozen=True):
    """How many files in pending/ are whole, torn, missing, or not ours."""

    results: int
    torn: int
    missing: int | None = None
    """None if there is no ledger to compare with; so is `foreign`."""
    foreign: int | None = None


def check_pending_files(lpm: LocalPersistenceManager, job: Job | None) -> PendingFiles:
    """Compare the files in pending/ (or those of a job) with the ledger."""
    due = {task_id for _, task_id in lpm.files.due(job)}
    results = torn = foreign = 0
    for path in lpm.pending.glob("[!.]*"):
        name = ""
        if path.suffix == ".json":
            name = path.stem
        if name in due or lpm.files.those_due([name], job):
            due.discard(name)
            whole = _looks_whole(path)
            results, torn = results + whole, torn + (not whole and os.path.lexists(path))
        elif job is None and not lpm.tasks.is_known(name):
            foreign += 1
    return PendingFiles(results, torn, len(lpm.files.missing(due)), foreign)


def count_pending_files(lpm: LocalPersistenceManager) -> PendingFiles:
    """Count the files in pending/ if there is no ledger to compare them with."""
    whole = [_looks_whole(path) for path in lpm.pending.glob("[!.]*.json")]
    return PendingFiles(results=sum(whole), torn=len(whole) - sum(whole))


def _looks_whole(path: Path) -> bool:
    """Return whether a file begins with its task id and ends like a result. That finds torn files
    without reading them."""
    try:
        if not path.is_file():  # opening a pipe would wait for its other end
            return False
        with path.open("rb", buffering=0) as file:
            begins_well = file.read(64).startswith(b'{"task_id":"%s"' % os.fsencode(path.stem))
            file.seek(-2, os.SEEK_END)
            return begins_well and file.read() == b"}\n"
    except OSError:
        return False


def _place(
    lpm: LocalPersistenceManager, job: Job | None, result: Mapping[str, Any]
) -> RawLocation | None:
    """Return where the page of a result is. None if it was not kept, was pruned, or the job gave it
    up."""
    place = msgspec.convert(result["raw"], RawLocation | None)
    if place is None or not lpm.results.segment_end(place.segment):
        return None
    if lpm.pages.is_given_up(place, job):
        return None
    return place


def format_of(target: Path) -> str | None:
    """Return the format for a file name's ending."""
    name = target.name.lower()
    return next((form for ending, form in _ENDINGS.items() if name.endswith(ending)), None)


def export(
    lpm: LocalPersistenceManager,
    target: Path,
    form: str,
    *,
    job: Job | None = None,
    since: float | None = None,
    roles: Sequence[str] = (),
    site: str | None = None,
    all_rows: bool = False,
    columns: Sequence[str] = (),
    pages: Path | None = None,
    files: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Exported:
    """Write results to a file that appears whole or not at all.

    With `all_rows`, every row of the jobs' input is written. With `pages`, the decoded page of each
    result is also written to a file in that folder. With `files`, so are the images and documents
    that records name, each once, and the records say where.
    """
    from crawler.results import formats
    from crawler.results.files import FileWriter

    last_event = lpm.timeline.last_event()
    jobs = [job]
    if all_rows and job is None:
        jobs = list(lpm.jobs.all())
    page_writer = None
    if pages:
        page_writer = _PageWriter(lpm, job, pages)
    file_writer = files and FileWriter(lpm, files)
    results_of_job = [0] * len(jobs)
    rows_read = 0

    def rows() -> Iterator[Mapping[str, Any]]:
        nonlocal rows_read
        for number, each in enumerate(jobs):
            if all_rows and each:
                found = lpm.results.input_rows(each)
            else:
                found = lpm.results.read(each, since, roles=roles, site=site)
            for row in found:
                failpoint("exporting")
                rows_read += 1
                if row["data"] is not None:
                    results_of_job[number] += 1
                    if page_writer:
                        page_writer.write(row)
                yield file_writer.with_paths(row) if file_writer else row

    what = "results"
    if all_rows:
        what = "rows"
    done = "written"
    if form in TABLES:
        done = "read"
    with opened(target, form in formats.BINARY, lpm.folder) as out:
        sink = formats.Sink(
            out=out,
            name=target.name,
            folder=folder_of(target),
            raw=lpm.raw,
            place=partial(_place, lpm, job),
            say=say,
            columns=columns,
        )
        formats.WRITERS[form](formats.with_progress(rows(), say, f"{what} {done}"), sink)
    total, written = sum(results_of_job), 0
    if page_writer:
        written = page_writer.written
        os.sync()  # once, not for each of a hundred thousand files
        if written < total:
            say(f"{total - written:,} results have no stored page")
    files_written = file_writer.finish(say) if file_writer else 0
    file = "-"
    if str(target) != "-":
        file = str(target.absolute())
    for each, count in zip(jobs, results_of_job, strict=True):
        lpm.timeline.note_export(file, form, each, since, count, last_event, roles, site)
    return Exported(rows_read, total, written, files_written)


def folder_of(target: Path) -> Path | None:
    """Return the folder of a file to write; None for stdout."""
    if str(target) == "-":
        return None
    return Path(os.path.realpath(target)).parent


class _PageWriter:
    """Writes decoded pages to a folder, one file per task, each whole or not at all."""

    def __init__(self, lpm: LocalPersistenceManager, job: Job | None, folder: Path) -> None:
        self._lpm, self._job, self._folder = lpm, job, folder
        self.written = 0
        guard.check_output(folder / "page", lpm.folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{folder} cannot be used for pages ({error.strerror})") from error

    def write(self, result: Mapping[str, Any]) -> None:
        """Write a result's page if it is stored."""
        from crawler.fetch.body import decode_stored

        place = _place(self._lpm, self._job, result)
        if place is None:
            return
        head, body = raw_pages.read(self._lpm.raw, place, page_url(result))
        target = self._folder / f"{result['task_id']}.{_page_ending(head)}"
        try:
            replace_file(target, decode_stored(head, body, limit=_MAX_PAGE_BYTES), mode=0o666)
        except OSError as error:
            raise UsageError(f"{target} cannot be written ({error.strerror})") from error
        self.written += 1


def _page_ending(head: str) -> str:
    from crawler.fetch.wire import media_type, stored_values

    content_type = next(iter(stored_values(head, "content-type")), "")
    return _PAGE_ENDINGS.get(media_type(content_type), "bin")


@contextmanager
def opened(target: Path, binary: bool, store: Path) -> Iterator[BinaryIO]:
    """Open the target of an export, which appears whole or not at all."""
    if str(target) != "-" or not binary:
        with whole_file(target, store) as out:
            yield out
        return
    if sys.stdout.isatty():
        raise UsageError(
            "this format is not for a terminal; name a file, or send it on through a pipe"
        )
    # Writers of these formats seek in their file, which a pipe does not allow.
    with tempfile.TemporaryFile() as out:
        yield out
        out.seek(0)
        shutil.copyfileobj(out, sys.stdout.buffer)


@contextmanager
def whole_file(target: Path, *stores: Path) -> Iterator[BinaryIO]:
    """Open a file that appears under its name once it is completely on disk, or not at all. `-` is
    stdout.

    A file that one of these stores needs is never replaced.
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
