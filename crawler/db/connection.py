"""Opens lpm.db, and turns SQLite's errors into the package's own."""

import functools
import os
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar, overload

import apsw

from crawler.config import program
from crawler.errors import StoreError, StoreFull

BUSY_LIMIT_S = 60.0
"""How long a statement waits for another process's write."""
OPENING_S, OPENING_PAUSE_S = 5.0, 0.01
"""How long, and how often, to try to read a database that others open and close at this moment."""
P = ParamSpec("P")
T = TypeVar("T")

_READ_WRITE = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
_DAMAGED = (apsw.NotADBError, apsw.CorruptError, UnicodeDecodeError)
_OTHER_SCHEMA = re.compile(r"no such (table|column|index)\b|(table|index) \S+ already exists")
"""What SQLite says of a database whose tables are not those of its version."""
_UNWRITABLE = (
    apsw.FullError,
    apsw.IOError,
    apsw.ReadOnlyError,
    apsw.CantOpenError,
    apsw.PermissionsError,
)


class Database(apsw.Connection):
    """A connection that raises `StoreError` where the file or the disk fails.

    `raw` leaves SQLite's own errors as they are, for those who look into damaged files.
    """

    def __init__(
        self,
        name: str,
        flags: int = _READ_WRITE,
        vfs: str | None = None,
        *,
        path: Path | None = None,
        raw: bool = False,
    ) -> None:
        super().__init__(name, flags=flags, vfs=vfs)
        self.path = path or Path(name)
        self.failed = False
        """Whether a statement has failed: the connection must not be trusted any more."""
        self._raw = raw

    def execute(self, statements: str, bindings: Any = None, **options: Any) -> apsw.Cursor:
        """Run statements; rows that are read from the cursor itself have SQLite's own errors."""
        try:
            return super().execute(statements, bindings, **options)
        except (apsw.Error, UnicodeDecodeError) as error:
            self._fail(error)

    def executemany(
        self, statements: str, sequenceofbindings: Iterable[Any], **options: Any
    ) -> apsw.Cursor:
        """Run a statement for each of these values."""
        try:
            return super().executemany(statements, sequenceofbindings, **options)
        except (apsw.Error, UnicodeDecodeError) as error:
            self._fail(error)

    def all(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Every row of a statement."""
        try:
            return super().execute(sql, values).fetchall()
        except (apsw.Error, UnicodeDecodeError) as error:
            self._fail(error)

    def one(self, sql: str, values: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """The first row of a statement, if it has one."""
        try:
            return super().execute(sql, values).fetchone()
        except (apsw.Error, UnicodeDecodeError) as error:
            self._fail(error)

    def value(self, sql: str, values: Sequence[Any] = (), default: Any = None) -> Any:
        """The first value of a statement's first row; the default where there is no row."""
        row = self.one(sql, values)
        return default if row is None else row[0]

    def column(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """The first column of every row."""
        return [row[0] for row in self.all(sql, values)]

    def each(self, sql: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """The rows of a statement one by one, where all of them may not fit in memory."""
        try:
            yield from super().execute(sql, values)
        except (apsw.Error, UnicodeDecodeError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> NoReturn:
        if self._raw and isinstance(error, UnicodeDecodeError):
            # SQLite itself does not look at what a text consists of.
            raise apsw.CorruptError(str(error)) from error
        failure = _as_store_error(self.path, error)
        if self._raw or failure is None:
            raise error
        self.failed = True
        raise failure from error


class _Unlocked(Database):
    """A database in a read-only folder, opened without the locks for which SQLite needs files."""

    def __init__(self, path: Path, name: str, vfs: str | None, raw: bool) -> None:
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        super().__init__(name, flags, vfs, path=path, raw=raw)
        self._state = _state(path)

    def close(self, force: bool = False) -> None:
        """Close it; raises `StoreError` where another process has changed what was read."""
        super().close(force)
        if _state(self.path) != self._state:
            raise StoreError(f"{self.path} was changed while it was read; type the command again")


def _state(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_size, about.st_mtime_ns


def open_to_read(path: Path, raw: bool = False) -> Database:
    """A connection that cannot write and changes nothing, also in a read-only folder."""
    end = time.monotonic() + OPENING_S
    with store_errors(path, raw):
        while True:
            database = _open_to_read(path, raw)
            database.set_busy_handler(busy_handler(BUSY_LIMIT_S))
            try:
                apsw.Connection.execute(database, "SELECT 1 FROM sqlite_schema LIMIT 1")
                return database
            except (apsw.ReadOnlyError, apsw.CantOpenError):
                # A writer has just made or removed the log, which says how to open the database.
                if time.monotonic() > end:
                    return database
            except apsw.Error:
                return database  # whoever uses it hears of it
            apsw.Connection.close(database)
            time.sleep(OPENING_PAUSE_S)


def _open_to_read(path: Path, raw: bool) -> Database:
    real = path.resolve()  # the log of a linked file is where that is
    log, index = (real.with_name(f"{real.name}{ending}") for ending in ("-wal", "-shm"))
    if can_write(path) or (log.exists() and index.exists()):
        return Database(str(path), apsw.SQLITE_OPEN_READONLY, path=path, raw=raw)
    if not log.exists():
        return _Unlocked(real, f"{real.as_uri()}?immutable=1", None, raw)
    # A kill left the log without its index, which SQLite then makes in memory.
    database = _Unlocked(real, str(real), "unix-none", raw)
    database.execute("PRAGMA locking_mode=EXCLUSIVE")
    return database


def can_write(path: Path) -> bool:
    """Whether this process may write to the folder of a database, if that is there."""
    folder = path.resolve().parent
    return not folder.exists() or os.access(folder, os.W_OK)


def connect(path: Path, durable: bool = True) -> Database:
    """Open a database in WAL mode; `durable=False` is for writes that a power cut may undo."""
    synchronous = "FULL" if durable else "NORMAL"
    with store_errors(path):
        connection = Database(str(path), path=path)
        connection.set_busy_handler(busy_handler(BUSY_LIMIT_S))
        _use_log(connection)
        # The checkpoint is rare, so that pages that change often are written back once.
        connection.execute(
            f"""PRAGMA synchronous={synchronous};
                PRAGMA journal_size_limit=67108864;
                PRAGMA wal_autocheckpoint=4000;
                PRAGMA cache_size=-16000;
                PRAGMA foreign_keys=OFF"""
        )
    return connection


def busy_handler(
    limit_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    jitter: Callable[[], float] = random.random,
) -> Callable[[int], bool]:
    """A busy handler whose random delays grow from under a millisecond to 25 ms."""
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
    """Decorator, with or without arguments: call a function again while its database is locked.

    For what SQLite does not ask a busy handler about, and for connections without one.
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
    # An error of the module `sqlite3` is known by its code, without loading that module.
    code = getattr(error, "sqlite_errorcode", 0)
    return isinstance(error, apsw.BusyError) or code & 0xFF == apsw.SQLITE_BUSY


@retry_on_busy
def _use_log(connection: Database) -> None:
    # Of two processes that open a new database at once, SQLite refuses one without asking its
    # busy handler.
    [(pages,)] = apsw.Connection.execute(connection, "PRAGMA page_count")
    if not pages:
        # Only an empty database learns to give room back; others would wait for whoever writes.
        apsw.Connection.execute(connection, "PRAGMA auto_vacuum=INCREMENTAL")
    apsw.Connection.execute(connection, "PRAGMA journal_mode=WAL").fetchall()


@contextmanager
def writing(connection: Database) -> Iterator[None]:
    """A write transaction from its beginning: a read that becomes a write later may fail."""
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
def store_errors(path: Path, raw: bool = False) -> Iterator[None]:
    """Turn what SQLite and the disk say while a store is used into the package's own errors."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader of a command's output has gone: the disk is fine
    except (apsw.Error, UnicodeDecodeError, OSError) as error:
        failure = _as_store_error(path, error)
        if raw or failure is None:
            raise
        raise failure from error


def _as_store_error(path: Path, error: Exception) -> StoreError | None:
    """The package's error for one of SQLite or the disk; None for a programming error."""
    lacks_tables = isinstance(error, apsw.SQLError) and _OTHER_SCHEMA.search(str(error))
    if lacks_tables or isinstance(error, _DAMAGED):
        damage = f"{path} is damaged or not a database ({error}); it was left as it is"
        if path.name == "lpm.db":
            damage += f"; {program()} doctor tells what can be saved"
        return StoreError(damage)
    if isinstance(error, _UNWRITABLE):
        reason = f"({error}); make room or check its permissions"
        return StoreFull(f"{path.parent} cannot be written {reason}")
    if isinstance(error, apsw.BusyError):
        return StoreError(
            f"{path} was locked by another process for {BUSY_LIMIT_S:.0f} s; try again"
        )
    if isinstance(error, OSError):
        return StoreFull(f"{path.parent} cannot be written ({error.strerror or error})")
    return None
