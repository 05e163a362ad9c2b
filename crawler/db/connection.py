"""One way to open lpm.db, and one way to write to it."""

import functools
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, overload

import apsw

from crawler.config import program
from crawler.errors import StoreError, StoreFull

BUSY_LIMIT_S = 60.0
P = ParamSpec("P")
T = TypeVar("T")


class Database(apsw.Connection):
    """A connection that hands out rows as plain tuples."""

    def all(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Every row of a statement."""
        try:
            return self.execute(sql, tuple(values)).fetchall()
        except (
            UnicodeDecodeError
        ) as error:  # SQLite itself does not look at what a text consists of
            raise apsw.CorruptError(str(error)) from error

    def one(self, sql: str, values: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """The first row of a statement, if it has one."""
        return self.execute(sql, tuple(values)).fetchone()


class _Unlocked(Database):
    """A database in a folder that cannot be written, opened without the locks that SQLite would
    need files for."""

    def __init__(self, path: Path, name: str, vfs: str | None) -> None:
        super().__init__(name, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI, vfs=vfs)
        self._path, self._state = path, _state(path)

    def close(self, force: bool = False) -> None:
        """Let go of it; raises `StoreError` where a process that may write has changed what was
        read."""
        super().close(force)
        if _state(self._path) != self._state:
            raise StoreError(f"{self._path} was changed while it was read; type the command again")


def _state(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_size, about.st_mtime_ns


def open_to_read(path: Path) -> Database:
    """A connection that cannot write, also where the folder cannot be written: nothing there is
    changed."""
    real = path.resolve()  # the log of a linked file is where that is
    log, index = (real.with_name(f"{real.name}{ending}") for ending in ("-wal", "-shm"))
    if can_write(path) or (log.exists() and index.exists()):
        database = Database(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    elif log.exists():  # left by a kill, and its index by nobody: that is made in memory
        database = _Unlocked(real, str(real), "unix-none")
        database.execute("PRAGMA locking_mode=EXCLUSIVE")
    else:
        database = _Unlocked(real, f"{real.as_uri()}?immutable=1", None)
    database.set_busy_handler(busy_handler(BUSY_LIMIT_S))
    return database


def can_write(path: Path) -> bool:
    """Whether this process may write to the folder of a database, if that is there."""
    folder = path.resolve().parent
    return not folder.exists() or os.access(folder, os.W_OK)


def connect(path: Path, durable: bool = True) -> Database:
    """Open a database in WAL mode; `durable=False` is for writes that a power cut may undo (claims,
    publishing)."""
    with store_errors(path):
        connection = Database(str(path))
        connection.set_busy_handler(busy_handler(BUSY_LIMIT_S))
        _use_log(connection)
        connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        connection.execute("PRAGMA journal_size_limit=67108864")
        connection.execute(
            "PRAGMA wal_autocheckpoint=4000"
        )  # pages that change often are written back once
        connection.execute("PRAGMA cache_size=-16000")
        connection.execute("PRAGMA foreign_keys=OFF")
    return connection


def busy_handler(
    limit_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    jitter: Callable[[], float] = random.random,
) -> Callable[[int], bool]:
    """A busy handler whose delays grow from under a millisecond to 25 ms, never the same for two
    waiting writers."""
    began = 0.0

    def wait(tries: int) -> bool:
        nonlocal began
        now = clock()
        if tries == 0:
            began = now
        if now - began > limit_s:
            return False
        sleep(_delay_s(tries, jitter))
        return True

    return wait


def _delay_s(tries: int, jitter: Callable[[], float]) -> float:
    return min(0.025, 0.0005 * 1.5 ** min(tries, 20)) * (0.5 + jitter())


@overload
def retry_on_busy(function: Callable[P, T], /) -> Callable[P, T]: ...


@overload
def retry_on_busy(
    *,
    limit_s: float = BUSY_LIMIT_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    jitter: Callable[[], float] = random.random,
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...


def retry_on_busy(
    function: Callable[P, T] | None = None,
    /,
    *,
    limit_s: float = BUSY_LIMIT_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    jitter: Callable[[], float] = random.random,
) -> Callable[P, T] | Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator, with and without arguments: call a function again while its database is locked.

    It is for what a busy handler is not asked about, and for connections without one, of `sqlite3`
    too.
    """

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def retrying(*args: P.args, **kwargs: P.kwargs) -> T:
            end, tries = clock() + limit_s, 0
            while True:
                try:
                    return function(*args, **kwargs)
                except Exception as error:
                    if not _is_busy(error) or clock() >= end:
                        raise
                sleep(_delay_s(tries, jitter))
                tries += 1

        return retrying

    return decorated(function) if function else decorated


def _is_busy(error: Exception) -> bool:
    """Also of `sqlite3`, which is known by its code: a second SQLite is not loaded for that."""
    code = getattr(error, "sqlite_errorcode", 0)
    return isinstance(error, apsw.BusyError) or code & 0xFF == apsw.SQLITE_BUSY


@retry_on_busy
def _use_log(connection: Database) -> None:
    """Two processes that open a new database at once: SQLite refuses one of them without asking its
    busy handler."""
    connection.execute("PRAGMA journal_mode=WAL").fetchall()


@contextmanager
def writing(connection: Database) -> Iterator[None]:
    """A write transaction, begun as one: a read that turns into a write later fails whatever the
    busy handler says."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def reading(connection: Database) -> Iterator[None]:
    """A read transaction: everything in it sees the same moment."""
    connection.execute("BEGIN DEFERRED")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


@contextmanager
def store_errors(path: Path) -> Iterator[None]:
    """Turn what SQLite and the disk say into the package's own errors."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader of a command's output has gone: no matter of the disk's
    except (apsw.NotADBError, apsw.CorruptError, UnicodeDecodeError) as error:
        damage = f"{path} is damaged or not a database ({error}); it was left as it is"
        way_out = f"; {program()} doctor tells what can be saved" if path.name == "lpm.db" else ""
        raise StoreError(f"{damage}{way_out}") from error
    except (
        apsw.FullError,
        apsw.IOError,
        apsw.ReadOnlyError,
        apsw.CantOpenError,
        apsw.PermissionsError,
    ) as error:
        raise StoreFull(
            f"{path.parent} cannot be written ({error}); make room or check its permissions"
        ) from error
    except apsw.BusyError as error:
        raise StoreError(
            f"{path} was locked by another process for {BUSY_LIMIT_S:.0f} s; try again"
        ) from error
    except OSError as error:
        raise StoreFull(f"{path.parent} cannot be written ({error.strerror or error})") from error
