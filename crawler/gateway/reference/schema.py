"""The tables of the reference Gateway's database, and how they are opened."""

from contextlib import closing
from pathlib import Path

import apsw

from crawler.db import connection
from crawler.db.connection import Database, store_errors
from crawler.errors import StoreError

APPLICATION_ID = 0x47415445

_SCHEMA = """
    -- One number for everything that arrives: what has the smaller one was there first, whatever a clock says.
    CREATE TABLE sequence (last INTEGER NOT NULL);
    INSERT INTO sequence VALUES (0);

    CREATE TABLE tasks (
        id          INTEGER PRIMARY KEY,
        task_id     TEXT NOT NULL UNIQUE,
        platform    TEXT NOT NULL,            -- '' where a row named none
        priority    INTEGER NOT NULL,
        deadline    REAL,
        body        TEXT NOT NULL,            -- JSON, as it is handed out
        content     TEXT NOT NULL,            -- SHA-256 of what the row said; a moment that it left open is not in it
        state       TEXT NOT NULL,            -- available, held, completed, failed
        holder      TEXT,                     -- the worker that has it, or that ended it
        held_at     REAL,
        ended_at    REAL,
        reason      TEXT,
        error_type  TEXT,
        attempts    INTEGER
    );
    CREATE INDEX tasks_by_state ON tasks(state);
    CREATE INDEX tasks_in_order ON tasks(priority, id) WHERE state = 'available';
    CREATE INDEX tasks_of_platform ON tasks(platform, priority, id) WHERE state = 'available';
    CREATE INDEX tasks_held ON tasks(holder) WHERE state = 'held';

    -- Which tasks were the answer to a request for work, so that a lost answer can be given again.
    CREATE TABLE handouts (
        worker  TEXT NOT NULL,
        key     TEXT NOT NULL,
        task    INTEGER NOT NULL,
        at      REAL NOT NULL,
        PRIMARY KEY (worker, key, task)
    ) WITHOUT ROWID;
    CREATE INDEX handouts_by_age ON handouts(at);

    CREATE TABLE results (
        id            INTEGER PRIMARY KEY,
        task_id       TEXT NOT NULL UNIQUE,   -- or its natural key, where a real Gateway's habits are played
        body          TEXT NOT NULL,          -- canonical JSON: keys sorted, no spaces
        sha256        TEXT NOT NULL,          -- of the body
        raw_html_hash TEXT,
        scraped_at    REAL,                   -- NULL where it cannot be read
        worker        TEXT NOT NULL,
        applied       INTEGER NOT NULL,       -- how often it was really written
        late          INTEGER NOT NULL,
        received_at   REAL NOT NULL,
        seq           INTEGER NOT NULL
    );
    CREATE INDEX results_in_order ON results(seq);
    CREATE INDEX results_by_worker ON results(worker);

    -- What was answered to a request with an Idempotency-Key.
    CREATE TABLE answers (
        worker  TEXT NOT NULL,
        key     TEXT NOT NULL,
        sha256  TEXT NOT NULL,                -- of the request's body
        body    BLOB NOT NULL,
        at      REAL NOT NULL,
        PRIMARY KEY (worker, key)
    ) WITHOUT ROWID;
    CREATE INDEX answers_by_age ON answers(at);

    -- Contents lie in raw/<two digits>/<sha256>, once each; these are their names.
    CREATE TABLE raw_files (
        name        TEXT PRIMARY KEY,
        sha256      TEXT NOT NULL,
        size        INTEGER NOT NULL,
        task_id     TEXT,
        metadata    TEXT NOT NULL,
        worker      TEXT NOT NULL,
        received_at REAL NOT NULL,
        seq         INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX raw_files_of_task ON raw_files(sha256, task_id, seq);
    CREATE INDEX raw_files_by_content ON raw_files(sha256, seq);

    CREATE TABLE workers (
        name      TEXT PRIMARY KEY,
        heard_at  REAL NOT NULL,
        heartbeat TEXT
    ) WITHOUT ROWID;

    CREATE TABLE commands (
        id           INTEGER PRIMARY KEY,
        worker       TEXT NOT NULL,
        command      TEXT NOT NULL,
        told_at      REAL NOT NULL,
        delivered_at REAL,
        key          TEXT                     -- of the heartbeat that it was the answer to
    );
    CREATE INDEX commands_waiting ON commands(worker, id) WHERE delivered_at IS NULL;
    CREATE INDEX commands_by_key ON commands(worker, key) WHERE key IS NOT NULL;
"""
_MIGRATIONS = (_SCHEMA,)


def opened(path: Path) -> Database:
    """The database, with its tables; a foreign or newer one is not even switched to another
    journal."""
    with store_errors(path):
        if path.exists() and path.stat().st_size:
            _look(path)
        db = connection.connect(path)
        _migrate(db, path)
    return db


def _look(path: Path) -> None:
    """Raise `StoreError` where the file is not ours, without a mark on it."""
    try:
        with closing(Database(str(path), flags=apsw.SQLITE_OPEN_READONLY, raw=True)) as db:
            db.set_busy_handler(connection.busy_handler(connection.BUSY_LIMIT_S))
            _version(db, path)
    except (apsw.ReadOnlyError, apsw.CantOpenError):
        return  # a journal that only a writer can roll back: `_migrate` looks again


def _migrate(db: Database, path: Path) -> None:
    """Make the tables, or bring them to this program's version."""
    if _version(db, path) == len(_MIGRATIONS):
        return
    with connection.writing(db):
        for number in range(
            _version(db, path), len(_MIGRATIONS)
        ):  # again: another process may have been faster
            db.execute(_MIGRATIONS[number])
        db.execute(f"PRAGMA application_id={APPLICATION_ID}")
        db.execute(f"PRAGMA user_version={len(_MIGRATIONS)}")


def _version(db: Database, path: Path) -> int:
    version = int(db.pragma("user_version"))
    if (version or db.all("SELECT 1 FROM sqlite_schema")) and db.pragma(
        "application_id"
    ) != APPLICATION_ID:
        raise StoreError(f"{path} is a database of another program; it was left as it is")
    if version > len(_MIGRATIONS):
        raise StoreError(
            f"{path} was written by a newer version (schema {version}, this program knows {len(_MIGRATIONS)}); "
            "it was left as it is; use the newer program"
        )
    return version
