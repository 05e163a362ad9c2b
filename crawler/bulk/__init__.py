"""Imports the rows of a file into a job of the ledger."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import msgspec

from crawler import sites as sites_config
from crawler.bulk import rows
from crawler.config import Settings, argument, failpoint, program
from crawler.db import guard
from crawler.db.imports import RejectedRow
from crawler.errors import InputError, StoreFull
from crawler.fetch import session as sessions
from crawler.fetch.session import Session
from crawler.files import commit
from crawler.locks import is_locked, try_lock
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager
from crawler.models import BROWSER, HTTP, Job, JobOptions, NewTask
from crawler.sites import Sites

INPUT = "input"
"""The store's folder for input from a pipe, and for rejects that cannot be beside their file."""
COMMIT_ROWS = 5000
"""Rows per commit: a kill costs at most these, and the same command brings them again."""

_PIECE = 1 << 20


class Summary(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a file's rows; `rows` is the sum of the next three."""

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
    """Read a file into its job; the same file again continues the job while it is open.

    With `replaces`, so does a changed file at the path of the one that was read before.
    """
    how = how or JobOptions()
    sites = sites_config.load(settings.config_dir, settings.rate)
    if strict:
        _check_all(file, sites, how.url_column)
    checksum = rows.checksum(file)
    key = ":".join(filter(None, (checksum, queue, how.url_column)))
    if job_name:
        key = f"name:{job_name}"
    batches = rows.batches(rows.read(file, sites, how.url_column), commit_rows, _size)
    first = next(batches)  # an unusable file is refused before anything is written
    other_sheets = rows.other_sheets(file)
    guard.check_not_input(rows.RejectsFile(file).path, settings.data_dir)
    source_file = source_name(file)
    counts: Counter[str] = Counter()
    with LocalPersistenceManager(settings.data_dir) as lpm:
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
        # An exhausted iterator drops its rows, which may be large.
        all_batches = chain(iter([first]), batches)
        del first
        secrets = Secrets(lpm.folder / "sessions", job.name, session)
        with lpm.importing(job), rows.RejectsFile(file, lpm.folder / INPUT) as rejects:
            while batch := _without_conflicts(next(all_batches, []), secrets):
                bad = [item for item in batch if isinstance(item, rows.Reject)]
                for item in bad:
                    rejects.add(item)
                if bad:
                    found = (RejectedRow(row.line, row.reason, row.text, row.item) for row in bad)
                    lpm.imports.reject(job, found, number)
                done = lpm.persist_tasks(
                    _with_needs(_tasks(batch), sites, how),
                    job=job,
                    queue=queue,
                    source_file=source_file,
                    file_number=number,
                    loopback=True,
                    fresh_for_s=fresh_for_s,
                )
                failpoint("imported")
                counts.update(accepted=done.accepted, known=done.known, rejected=len(bad))
                if counts.total() > commit_rows:
                    progress(f"{counts.total():,} rows read")
            if rows.checksum(file) != checksum:
                # Imported again, it makes another job: this one would wait for its rows for ever.
                accept = f"{program()} job accept {argument(job.name)}"
                hint = f"import it again, and keep what came in of it with: {accept}"
                raise InputError(str(file), f"it was changed while it was read; {hint}")
            lpm.imports.close(job, lpm.now(), checksum, counts.total())
    summary = Summary(
        rows=counts.total(),
        accepted=counts["accepted"],
        known=counts["known"],
        rejected=counts["rejected"],
        rejects_file=str(rejects.path) if counts["rejected"] else None,
        job=job.name,
        queue=queue,
        other_sheets=other_sheets,
    )
    return summary, job


def spool_stdin(source: BinaryIO, folder: Path) -> Path:
    """Keep input from a pipe in a file named after its content: the same text is the same job."""
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
            try_lock(file.fileno())
            while piece:
                file.write(piece)
                digest.update(piece)
                piece = source.read(_PIECE)
            file.flush()
            target = folder / f"stdin-{digest.hexdigest()[:16]}{rows.guess_ending(part)}"
            commit(file, part, target)
    except OSError as error:
        problem = f"what comes through the pipe cannot be kept in {folder}"
        raise StoreFull(f"{problem} ({error.strerror})") from error
    finally:
        part.unlink(missing_ok=True)
    return target


def source_name(file: Path) -> str:
    """A file's path as the ledger notes it: a name may be any bytes."""
    return str(file.absolute()).encode("utf-8", "replace").decode()


class Secrets:
    """A job's session with the user names and passwords of its URLs, in a file of its own."""

    def __init__(self, folder: Path, job: str, given: Session | None = None) -> None:
        self._folder, self._job = folder, job
        self._session = sessions.load(folder, job) or Session()
        if given:
            known = given.credentials | self._session.credentials
            self._session = msgspec.structs.replace(given, credentials=known)
            sessions.save(folder, job, self._session)
        self._found = dict(self._session.credentials)

    def take(self, secret: tuple[str, str] | None) -> bool:
        """Take a URL's user name and password; False if its origin has others already."""
        return secret is None or self._found.setdefault(secret[0], secret[1]) == secret[1]

    @property
    def unsaved(self) -> bool:
        """Whether anything new was taken."""
        return self._found != self._session.credentials

    def save(self) -> None:
        """Save what was taken, before any task needs it."""
        if self.unsaved:
            self._session = msgspec.structs.replace(self._session, credentials=dict(self._found))
            sessions.save(self._folder, self._job, self._session)


def _size(item: rows.Row | rows.Reject) -> int:
    return item.size if isinstance(item, rows.Row) else len(item.text)


def _without_conflicts(
    items: list[rows.Row | rows.Reject], secrets: Secrets
) -> list[rows.Row | rows.Reject]:
    """Save the credentials of the rows' URLs; reject rows with others for a known origin."""
    checked: list[rows.Row | rows.Reject] = []
    for item in items:
        if isinstance(item, rows.Row) and item.credentials and not secrets.take(item.credentials):
            problem = f"another row names another user or password for {item.credentials[0]}"
            reason, task = f"{problem}; import it under another --job", item.task
            checked.append(rows.Reject(task.line or 0, reason, task.address.url, task.item))
        else:
            checked.append(item)
    secrets.save()
    return checked


def _tasks(items: list[rows.Row | rows.Reject]) -> Iterator[NewTask]:
    return (item.task for item in items if isinstance(item, rows.Row))


def _with_needs(tasks: Iterable[NewTask], sites: Sites, how: JobOptions) -> Iterator[NewTask]:
    """Note which pages surely need a browser, so that no other worker claims them first."""
    asked = how.fetcher != HTTP and BROWSER in sites.fetchers
    for task in tasks:
        needs = how.needs
        if asked and sites.of(task.address.url).fetcher_of(task.address.url, how) == BROWSER:
            needs = BROWSER
        yield msgspec.structs.replace(task, needs=needs) if needs == BROWSER else task


def _check_all(file: Path, sites: Sites, url_column: str | None) -> None:
    for item in rows.read(file, sites, url_column):
        if isinstance(item, rows.Reject):
            reason = f"{item.reason}; nothing was imported (--strict)"
            raise InputError(str(file), reason, item.line, item.item)
