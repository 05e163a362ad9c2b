"""Opens the store of a data folder: its lock, its schema and its two connections.

Also what the parts of the ledger share: their base class, and conditions of their statements.
"""

import contextlib
import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

import msgspec

from crawler.db import guard, schema
from crawler.db.connection import (
    Database,
    can_write,
    connect,
    open_to_read,
    reading,
    store_errors,
)
from crawler.errors import StoreError
from crawler.models import NO_DEADLINE, Job

HELD = NO_DEADLINE
"""`not_before` of a task whose job is paused: it never falls due by itself."""
SUSPECT_DEATHS = 3
"""Deaths of workers, with nobody to blame, after which a page in flight is tried alone."""
DUE = f"status = 'pending' AND not_before = 0 AND deaths < {SUSPECT_DEATHS}"
"""Tasks that any worker may take; the condition of the index tasks_due."""
TURN = "id + failures * 1000"
"""The order of due tasks of a domain; the index tasks_due has it."""
WITHOUT_RESULT = "('failed', 'skipped', 'expired')"
THEIRS = ("gateway", "bundle")
"""Sources whose tasks carry a Gateway's id; for others `external_id` is the name of a call."""
THEIR_ID = "iif(t.source IN ('gateway', 'bundle'), ifnull(t.external_id, t.task_id), t.task_id)"
"""What a Gateway knows a task by."""
NOTED_FILE = """(SELECT file FROM imports i
    WHERE i.job_id = {0}.job_id AND i.number = {0}.file_number
    AND (i.number > 0 OR i.key NOT LIKE 'name:%') ORDER BY i.id DESC LIMIT 1)"""
"""Where the file of a row is now. In a named job of an older program, several files may have the
number 0."""
COUNTS_FOR = """(j.id = t.job_id
    OR j.id IN (SELECT job_id FROM job_links WHERE task = t.id))"""
"""Whether job j counts task t."""
IS_SHARED = "source NOT IN ('gateway', 'batch') AND role IS NULL"
"""Whether other jobs may count on a task. Those of a Gateway, a batch and a crawl are their own."""
IN_SESSION = "EXISTS (SELECT 1 FROM batches WHERE batches.job_id = {0}.job_id)"
"""Whether a task belongs to a session of a program or a client of the API. What it got may be for
its eyes only: it leaves no page to other jobs, and takes none of theirs."""
IN_PENDING = "o.state <> 'synced' AND o.archived_at IS NULL"
"""Whether the result of an outbox row o lies in pending/."""
REMOVING = "removing job "
"""Prefix of the key in `meta` of a job that `prune` removes, see `db/retention.py`."""
REMOVED_NAME = "removed job "
"""Prefix of the key in `meta` of the name of a removed job: exports, archives and logs still have
it, so that no other job gets it."""
IS_REMOVED = f"EXISTS (SELECT 1 FROM meta WHERE key = '{REMOVING}' || {{job}})"
"""Whether `prune` removes a job: nobody may count on its tasks any more."""
LISTED = "IN (SELECT value FROM json_each(?))"
"""One of the values of a JSON list, see `as_json`."""


def as_json(value: object) -> str:
    """A value, such as a list of ids, as JSON text for a statement."""
    return msgspec.json.encode(value).decode()


def row_crc32(file_number: int, line: int | None, item: int, row_input: str | None) -> int:
    """The checksum of a row of input, by which one is known that a damaged ledger has changed."""
    return crc32(f"{file_number} {line} {item} {row_input}".encode())


def of_job(db: Database, job: Job | None) -> tuple[str, tuple[Any, ...]]:
    """The condition for a job's tasks, or for all, and its values; these come first as ?1."""
    if job is None:
        return "1", ()
    if not _shares(db, job):
        return "job_id = ?1", (job.id,)
    return "(job_id = ?1 OR id IN (SELECT task FROM job_links WHERE job_id = ?1))", (job.id,)


def members(db: Database, job: Job) -> str:
    """A query for the ids of a job's tasks; the job's id is the value ?1."""
    own = "SELECT id FROM tasks WHERE job_id = ?1"
    if not _shares(db, job):
        return own
    return f"{own} UNION SELECT task FROM job_links WHERE job_id = ?1"


def _shares(db: Database, job: Job) -> bool:
    """Whether a job has rows that mean tasks of other jobs."""
    return db.one("SELECT 1 FROM job_links WHERE job_id = ? LIMIT 1", (job.id,)) is not None


class Connections(Protocol):
    """What the parts of the ledger are made on."""

    @property
    def db(self) -> Database:
        """For claims, publishing and reading: a power cut may undo its last commits."""

    @property
    def durable(self) -> Database:
        """For writes that must survive a power cut."""

    @property
    def can_write(self) -> bool:
        """Whether this process may write to the store."""

    def now(self) -> float:
        """The time by the store's clock."""


class Part:
    """Base of the parts of the ledger, such as its tasks and its jobs."""

    def __init__(self, store: Connections) -> None:
        self._store = store

    @property
    def _db(self) -> Database:
        return self._store.db

    @property
    def _durable(self) -> Database:
        return self._store.durable


class Opened:
    """A database that somebody else has opened, as both connections of a store."""

    can_write = False

    def __init__(self, db: Database) -> None:
        self.db = self.durable = db

    def now(self) -> float:
        """The time of day."""
        return time.time()


class Layout:
    """Where everything is in a data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.path = self.folder / "lpm.db"
        self.pending = self.folder / "pending"
        self.raw = self.folder / "raw"
        self.run = self.folder / "run"
        self.owners = self.run / "owners"


class Store(Layout):
    """The files of one data folder, opened as they are needed.

    An object is for one thread; any number of processes may have one. After an error of the
    database or the disk, everything is opened anew: nothing is trusted that may have failed.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        super().__init__(folder)
        self.now = clock
        self._db: Database | None = None
        self._durable: Database | None = None
        self._on_close: list[weakref.WeakMethod[Callable[[], None]]] = []
        self._lock: weakref.finalize[[int], Store] | None = None

    @property
    def can_write(self) -> bool:
        """Whether this process may write to the store; where not, it is only read."""
        return can_write(self.path)

    @property
    def db(self) -> Database:
        """For claims, publishing and reading: a power cut may undo its last commits."""
        if self._db is None or self._db.failed:
            self._close_failed()
            self._db = self._open(durable=False)
        return self._db

    @property
    def durable(self) -> Database:
        """For writes that must survive a power cut."""
        if self._durable is None or self._durable.failed:
            self._close_failed()
            self._durable = self._open(durable=True)
        return self._durable

    @property
    def id(self) -> str:
        """The random name of this ledger."""
        return str(self.db.value("SELECT value FROM meta WHERE key = 'ledger_id'"))

    def cut_log(self) -> bool:
        """Write the write-ahead log back and cut it; False where a reader is in the way."""
        return not self.db.value("PRAGMA wal_checkpoint(TRUNCATE)")

    def data_version(self) -> int:
        """A number that changes when another connection has written to the database."""
        return int(self.db.value("PRAGMA data_version"))

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A read transaction: everything that is read in it is of the same moment."""
        with reading(self.db):
            yield

    def hold(self, lock: int) -> None:
        """Keep that descriptor of the store's lock until the store is closed, or forgotten."""
        self._lock = weakref.finalize(self, os.close, lock)

    def on_close(self, close: Callable[[], None]) -> None:
        """Have this method called when the store is closed, also after an error."""
        self._on_close.append(weakref.WeakMethod(close))

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn a failing disk into a `StoreError`, and close the store where one is raised."""
        try:
            with store_errors(self.path):
                yield
        except StoreError:
            self.close()
            raise

    def close(self) -> None:
        """Close the database, and what else was opened with it."""
        opened = [db for db in (self._db, self._durable) if db]
        self._db = self._durable = None
        for database in opened:
            database.close(True)
        for method in self._on_close:
            if close := method():
                close()
        if self._lock:
            self._lock()

    def _close_failed(self) -> None:
        if any(db and db.failed for db in (self._db, self._durable)):
            self.close()

    def _open(self, durable: bool) -> Database:
        guard.check_kernel(self.folder)
        only_read = not durable and not self.can_write
        lock = self._prepare(only_read)
        database = open_to_read(self.path) if only_read else connect(self.path, durable)
        try:
            self._migrate(database, lock)
        except StoreError:
            database.close(True)
            self.close()
            raise
        return database

    def _prepare(self, only_read: bool) -> int | None:
        """Make the folders, and take the store's lock; returns that if it was taken now."""
        with store_errors(self.path):
            if not only_read:
                for folder in (self.folder, self.pending, self.raw, self.owners):
                    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = None
            if not (self._lock and self._lock.alive):
                lock = guard.share(self.folder)
            if lock is not None:
                self.hold(lock)
            guard.check_ledger(self.folder)
        return lock

    def _migrate(self, database: Database, lock: int | None) -> None:
        with store_errors(self.path):
            if database.one("SELECT 1 FROM sqlite_schema") is None:
                guard.check_unused(self.folder)  # its log may be lost, with all that was in it
            alone: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
            if schema.is_older(database, self.path, self.can_write) and lock is not None:
                alone = guard.alone(lock, self.folder)
            with alone:
                schema.migrate(database, self.path)
