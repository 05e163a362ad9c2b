"""Opens the store of a data folder: its lock, its schema and its two connections."""

import contextlib
import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from crawler.db import guard, kernel, schema
from crawler.db.connection import Database, can_write, connect, open_to_read, reading, store_errors
from crawler.errors import StoreError


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
        kernel.check(self.folder)
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
            guard.check(self.folder)
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
