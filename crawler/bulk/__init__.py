"""A file's rows into a job of the ledger."""

import os
import shlex
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import msgspec

from crawler.bulk import rows
from crawler.config import Settings, failpoint, program
from crawler.db import outputs, owners
from crawler.db.imports import RejectedRow
from crawler.errors import InputError, StoreFull
from crawler.fetch import session as sessions
from crawler.fetch.session import Session
from crawler.files import sync_folder
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager, is_locked
from crawler.models import Job, JobOptions, NewTask
from crawler.sites import config as sites_config
from crawler.sites.config import Sites

INPUT = "input"
"""The folder of the store with what came through a pipe, and with rejected rows that have no place
elsewhere."""
COMMIT_ROWS = 5000
"""Rows a commit: a kill in the middle costs at most these, and the same command brings them
again."""


_PIECE = 1 << 20


class Summary(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a file's rows; the first is the sum of the next three."""

    rows: int
    accepted: int
    known: int
    rejected: int
    rejects_file: str | None
    job: str
    queue: str
    other_sheets: tuple[str, ...] = ()
    """The sheets of a workbook that were not read."""


def import_file(
    settings: Settings,
    file: Path,
    queue: str = "default",
    *,
    batch_size: int = 100,
    strict: bool = False,
    fresh_for_s: float | None = None,
    job_name: str | None = None,
    deadline: float | None = None,
    how: JobOptions | None = None,
    session: Session | None = None,
    watched: bool = False,
    replaces: bool = False,
    commit_rows: int = COMMIT_ROWS,
    progress: Callable[[str], None] = lambda line: None,
) -> tuple[Summary, Job]:
    """Read a file into its job; the same file again, while that job is open, continues it.

    So does another state of the file where it `replaces` the one that was read from its path
    before.
    """
    sites = sites_config.load(settings.config_dir, settings.rate)
    column = how.url_column if how else None
    if strict:
        _check_all(file, sites, column)
    checksum = rows.checksum(file)
    content = f"{checksum}:{queue}" + (f":{column}" if column else "")
    key = f"name:{job_name}" if job_name else content
    batches = rows.batches(rows.read(file, sites, column), commit_rows, _size)
    first = next(batches)  # an unusable file is known before anything is written
    other_sheets = rows.other_sheets(file)
    outputs.check_input(rows.RejectsFile(file).path, settings.data_dir)
    lpm = LocalPersistenceManager(settings.data_dir)
    source_file = source_name(file)
    accepted = known = rejected = 0
    try:
        lpm.imports.adopt(key, _tasks(first))
        job = lpm.imports.open_job(
            key=key,
            name=job_name or printable(file.name)[:100],
            queue=queue,
            source="file",
            source_file=source_file,
            batch_size=batch_size,
            now=lpm.now(),
            watched=watched,
            deadline=deadline,
            options=how if how != JobOptions() else None,
            checksum=checksum,
            rows=_tasks(first),
            replaces=replaces,
        )
        number = lpm.imports.number_of(job, checksum)
        batches = chain(
            iter([first]), batches
        )  # an iterator lets go of its rows, which may be large
        del first
        secrets = Secrets(lpm.folder / "sessions", job.name, session)
        with lpm.importing(job), rows.RejectsFile(file, lpm.folder / INPUT) as rejects:
            while batch := _kept(next(batches, []), secrets):
                bad = [item for item in batch if isinstance(item, rows.Reject)]
                for item in bad:
                    rejects.add(item)
                rejected += len(bad)
                if bad:
                    rejected_rows = (
                        RejectedRow(item.line, item.reason, item.text, item.item) for item in bad
                    )
                    lpm.imports.reject(job, rejected_rows, number)
                done = lpm.persist_tasks(
                    _tasks(batch),
                    job=job,
                    queue=queue,
                    source_file=source_file,
                    file_number=number,
                    loopback=True,
                    fresh_for_s=fresh_for_s,
                )
                failpoint("imported")
                accepted, known = accepted + done.accepted, known + done.known
                if accepted + known + rejected > commit_rows:
                    progress(f"{accepted + known + rejected:,} rows read")
            if rows.checksum(file) != checksum:
                # Read again, it is another file and another job: this one would wait for ever for
                # what it was.
                accept = f"{program()} job accept {shlex.quote(job.name)}"
                reason = f"it was changed while it was read; import it again, and keep what came in of it with: {accept}"
                raise InputError(str(file), reason)
            lpm.imports.close(job, lpm.now(), checksum, accepted + known + rejected)
    finally:
        lpm.close()
    total = accepted + known + rejected
    path = str(rejects.path) if rejected else None
    return Summary(total, accepted, known, rejected, path, job.name, queue, other_sheets), job


def spooled(source: BinaryIO, folder: Path) -> Path:
    """Keep what comes through a pipe in a file named after its content: the same text again is the
    same job."""
    piece = source.read(_PIECE)
    if not piece:
        raise InputError("-", "there is nothing in it")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in folder.glob(".stdin.*"):  # by an import that was killed
        if not is_locked(left):
            left.unlink(missing_ok=True)
    part, digest = folder / f".stdin.{os.getpid()}", sha256()
    try:
        with part.open("wb") as file:
            part.chmod(0o600)
            owners.try_lock(file.fileno())
            while piece:
                file.write(piece)
                digest.update(piece)
                piece = source.read(_PIECE)
            file.flush()
            os.fsync(file.fileno())
        target = folder / f"stdin-{digest.hexdigest()[:16]}{rows.ending_of(part)}"
        part.replace(target)
        sync_folder(folder)
    except OSError as error:
        raise StoreFull(
            f"what comes through the pipe cannot be kept in {folder} ({error.strerror})"
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return target


def source_name(file: Path) -> str:
    """A file's place as the ledger notes it: a name may be any bytes."""
    return str(file.absolute()).encode("utf-8", "replace").decode()


class Secrets:
    """What the job sends along, kept in a file of its own before any task needs it."""

    def __init__(self, folder: Path, job: str, given: Session | None = None) -> None:
        self._folder, self._job = folder, job
        self._session = sessions.load(folder, job) or Session()
        if given:
            known = given.credentials | self._session.credentials
            self._session = msgspec.structs.replace(given, credentials=known)
            sessions.save(folder, job, self._session)
        self._found = dict(self._session.credentials)

    def take(self, secret: tuple[str, str] | None) -> bool:
        """Take a URL's user name and password; False where its origin has others already."""
        return secret is None or self._found.setdefault(secret[0], secret[1]) == secret[1]

    @property
    def unsaved(self) -> bool:
        """Whether anything new was taken."""
        return self._found != self._session.credentials

    def save(self) -> None:
        """Keep what was taken."""
        if self.unsaved:
            self._session = msgspec.structs.replace(self._session, credentials=dict(self._found))
            sessions.save(self._folder, self._job, self._session)


def _size(item: rows.Row | rows.Reject) -> int:
    return item.size if isinstance(item, rows.Row) else len(item.text)


def _kept(items: list[rows.Row | rows.Reject], secrets: Secrets) -> list[rows.Row | rows.Reject]:
    """The rows, once the user names and passwords of their URLs are kept; an origin has one of
    them."""
    checked: list[rows.Row | rows.Reject] = []
    for item in items:
        if isinstance(item, rows.Row) and item.credentials and not secrets.take(item.credentials):
            origin = item.credentials[0]
            reason = f"another row names another user or password for {origin}; import it under another --job"
            checked.append(
                rows.Reject(item.task.line or 0, reason, item.task.address.url, item.task.item)
            )
        else:
            checked.append(item)
    secrets.save()
    return checked


def _tasks(items: list[rows.Row | rows.Reject]) -> Iterator[NewTask]:
    return (item.task for item in items if isinstance(item, rows.Row))


def _check_all(file: Path, sites: Sites, url_column: str | None) -> None:
    for item in rows.read(file, sites, url_column):
        if isinstance(item, rows.Reject):
            raise InputError(
                str(file), f"{item.reason}; nothing was imported (--strict)", item.line, item.item
            )
