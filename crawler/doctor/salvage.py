"""Saves the rows of a damaged ledger into a new file, and corrects values that contradict each
other.

Rows are read by SQL first. Where SQLite cannot get to them any more, they are read from the leaf
pages of the file. SQLite has no checksums, so rows that can be read may still hold wrong values.
"""

import contextlib
import mmap
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec

from crawler import urls
from crawler.db import retention, schema
from crawler.db.batches import DIRECT
from crawler.db.connection import Database, connect, writing
from crawler.db.jobs import can_read_options
from crawler.db.results import LAST_SEQ
from crawler.db.store import row_crc32
from crawler.doctor.reconciliation import (
    MAX_COUNT,
    TEMP_TABLES,
    count_rows,
    insert_row,
    pending_fields,
    reconcile,
    wrong_records,
)
from crawler.errors import StoreError, UrlError
from crawler.models import (
    FILE,
    FORM,
    GET,
    HTTP,
    LINKS,
    METHODS,
    NEEDS,
    QUEUES,
    SITEMAP,
    JobStatus,
    Role,
)
from crawler.urls import Address

Value = int | float | str | bytes | None
IsIndexed = Callable[[int, bytes], bool]
"""Tells whether an index of the damaged ledger has a task under a URL's key."""

SENSELESS = {
    "results": """NOT json_valid(record) OR json_type(record) <> 'object'
                  OR scraped_at NOT BETWEEN 0 AND 4e9 OR length(body_sha256) <> 64""",
    "events": """NOT json_valid(detail) OR json_type(detail) <> 'object'
                 OR at NOT BETWEEN 0 AND 4e9""",
    "tasks": "length(task_id) <> 32 OR task_id GLOB '*[^0-9a-f]*'",
    "crawl_counts": "typeof(count) <> 'integer' OR count < 0",
    "listings": """NOT json_valid(record) OR json_type(record) <> 'object'
                   OR length(record_hash) <> 64""",
    "listing_changes": """kind NOT IN ('new', 'changed', 'gone', 'back', 'sold', 'corrected')
                          OR NOT json_valid(ifnull(fields, '{}'))""",
    "price_history": "at NOT BETWEEN 0 AND 4e9",
    "viewings": "at NOT BETWEEN -1e12 AND 1e12",
    "listing_pairs": """a >= b OR confidence NOT BETWEEN 0 AND 1
                        OR NOT json_valid(reasons) OR json_type(reasons) <> 'object'
                        OR NOT json_valid(discrepancies) OR json_type(discrepancies) <> 'array'
                        OR decision NOT IN ('same', 'different')""",
    "record_versions": """version < 1 OR NOT json_valid(record)
                          OR json_type(record) <> 'object'""",
    "image_looks": "length(sha256) <> 64 OR length(dhash) <> 16",
    "losses": "kind NOT IN ('rows', 'pages')",
}
"""Conditions for rows that SQLite can read but this program cannot, and for rows of other tables
that look like theirs."""
_TYPES: dict[str, tuple[type, ...]] = {
    "INTEGER": (int,),
    "REAL": (int, float),
    "TEXT": (str,),
    "BLOB": (bytes,),
}
_TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
_INDEXES = {
    "tasks_by_task_id": ("task_id",),
    "tasks_by_url": ("url_key", "parcel_id"),
    "tasks_by_job": ("job_id",),
    "tasks_of_crawl": ("job_id", "url_key", "method", "body"),
}
_ENTRIES = {"tasks_of_crawl": "role NOT NULL AND source <> 'bundle'"}
"""Conditions of indexes that do not have all tasks; SQLite reads no row of the table for them."""
_OF_LISTINGS = (
    "listing_changes", "price_history", "listing_urls", "listing_conflicts", "viewings",
)  # fmt: skip
"""Tables whose rows mean nothing without their listing."""
_MAX_NUMBER = 1 << 53
"""A higher number of a row is damage."""
_MAX_SHOWN = 3
_MAX_URL_SHOWN = 200
_MAX_VALUE_SHOWN = 80


class Column(msgspec.Struct, frozen=True):
    """A stored column of one of the ledger's tables."""

    name: str
    type: str
    required: bool
    key: int
    """Its place in the primary key, from 1; 0 if it is not part of it."""
    has_default: bool


class Table(msgspec.Struct, frozen=True):
    """How the rows of one of the ledger's tables are stored."""

    columns: list[Column]
    has_rowid: bool
    is_numbered: bool
    """Whether its first column is the row's number, which is not among the stored values."""
    width: int
    """How many columns the table had when it was new: no row has fewer."""


def salvage(
    damaged: Path, target: Path, pending: Path, raw: Path, now: float
) -> tuple[dict[str, int], dict[str, int]]:
    """Put all that can be read into a new ledger. Returns the number of rows of each table, and
    what was corrected.

    The damaged file is only read. If this fails, there is no target.
    """
    copy = target.with_name(f".{target.name}")
    try:
        _copy(damaged, copy)
        with contextlib.closing(connect(target)) as fresh:
            version = _version(copy)
            saved, corrected = _read_all(copy, version, fresh, pending)
            noted_files = version >= schema.WITH_IMPORTS
            done = corrected | reconcile(fresh, pending, raw, now, noted_files)
            _require_sound(fresh, damaged)
    except BaseException:
        _remove(target)
        raise
    finally:
        _remove(copy)
    return saved, done


def _require_sound(fresh: Database, damaged: Path) -> None:
    if fresh.one("SELECT 1 FROM tasks") is None:
        raise StoreError(f"nothing could be read from {damaged}; it was left as it is")
    if fresh.all("PRAGMA integrity_check") != [("ok",)]:
        raise StoreError(f"what was read from {damaged} is not sound; it was left as it is")


def _remove(path: Path) -> None:
    for ending in ("", "-wal", "-shm", "-journal"):
        Path(f"{path}{ending}").unlink(missing_ok=True)


def _copy(damaged: Path, copy: Path) -> None:
    """Copy a ledger, and merge its log into the copy."""
    damaged = damaged.resolve()  # the log is next to the file that a link points to
    for ending in ("", "-wal"):
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(f"{damaged}{ending}", f"{copy}{ending}")
    with contextlib.suppress(apsw.Error), contextlib.closing(apsw.Connection(str(copy))) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _version(copy: Path) -> int:
    """Return the schema that a damaged ledger was written with: the oldest one that has all its
    columns, or the newest."""
    told, found = 0, set[tuple[str, str]]()
    with _skip_damage(), _opened(copy) as db:
        told = db.value("PRAGMA user_version")
        found = _all_columns(db)
    with contextlib.closing(Database(":memory:")) as reference:
        for version in range(1, len(schema.MIGRATIONS)):
            schema.build(reference, version - 1, version)
            if version >= told and found and found <= _all_columns(reference):
                return version
    return len(schema.MIGRATIONS)


def _read_all(
    copy: Path, version: int, fresh: Database, pending: Path
) -> tuple[dict[str, int], dict[str, int]]:
    with writing(fresh):
        # With the schema that the file was written with: another one has columns that do not
        # exist there, and takes rows of one table for those of another.
        schema.build(fresh, 0, version)
        tables = _tables(version)
        fresh.execute(TEMP_TABLES)
        broken = [name for name in tables if not _read_table(copy, fresh, name, tables[name])]
        _read_leaves(copy, fresh, {name: tables[name] for name in broken})
        if "tasks" in broken:
            _read_indexes(copy, fresh)
        if version < len(schema.MIGRATIONS):
            schema.build(fresh, version)
        if version >= schema.WITH_NUMBERS:
            retention.note_seq(fresh, _highest_seq(copy, fresh))
        for table, senseless in SENSELESS.items():
            if table != "tasks":
                fresh.execute(f"DELETE FROM {table} WHERE {senseless}")
        for table in _OF_LISTINGS:
            fresh.execute(f"DELETE FROM {table} WHERE listing NOT IN (SELECT id FROM listings)")
        fresh.execute(
            """DELETE FROM listing_pairs WHERE a NOT IN (SELECT id FROM listings)
               OR b NOT IN (SELECT id FROM listings)"""
        )
        fresh.execute(
            f"UPDATE tasks SET task_id = lower(hex(randomblob(16))) WHERE {SENSELESS['tasks']}"
        )
        saved = {name: count_rows(fresh, name) for name in fresh.column(_TABLES)}
        corrected = _correct_values(fresh, pending, _index_lookup(copy))
    return saved, {what: count for what, count in corrected.items() if count}


def _highest_seq(copy: Path, fresh: Database) -> int:
    """Return a number that no result of the damaged ledger was above, whichever rows are lost.

    Each number was given together with an event, and `last_seq` has those of events that were
    removed since. The index helps where the last events are lost, too.
    """
    indexed = 0
    with _skip_damage(), _opened(copy) as db:
        if _has_index(db, "results_by_seq", "results"):
            sql = "SELECT seq FROM results INDEXED BY results_by_seq ORDER BY seq DESC LIMIT 1"
            indexed = db.value(sql) or 0
    if not isinstance(indexed, int) or indexed > _MAX_NUMBER:
        indexed = 0
    given = fresh.value(
        """SELECT ifnull((SELECT CAST(value AS INTEGER) FROM meta WHERE key = ?), 0)
               + ifnull((SELECT max(id) FROM events WHERE id <= ?), 0)""",
        (LAST_SEQ, _MAX_NUMBER),
    )
    return max(indexed, int(given))


# Rows by SQL


@contextlib.contextmanager
def _skip_damage() -> Iterator[None]:
    """Stop reading where a file is damaged. An error in a statement is still raised."""
    try:
        yield
    except apsw.SQLError:
        raise
    except (apsw.Error, UnicodeDecodeError):
        pass


def _opened(copy: Path) -> contextlib.closing[Database]:
    """Open a damaged ledger for reading."""
    return contextlib.closing(Database(str(copy), flags=apsw.SQLITE_OPEN_READONLY, raw=True))


def _columns(db: Database, table: str) -> list[Column]:
    return [
        Column(name, kind, bool(required), key, default is not None)
        for _, name, kind, required, default, key in db.all(f"PRAGMA table_info({table})")
    ]


def _tables(version: int) -> dict[str, Table]:
    """Return the tables of a schema."""
    widths: dict[str, int] = {}
    with contextlib.closing(Database(":memory:")) as reference:
        for number in range(version):
            schema.build(reference, number, number + 1)
            for name in reference.column(_TABLES):
                widths.setdefault(name, len(_columns(reference, name)))
        return {name: _table(reference, name, widths[name]) for name in reference.column(_TABLES)}


def _table(db: Database, name: str, width: int) -> Table:
    columns = _columns(db, name)
    sql = "SELECT NOT wr FROM pragma_table_list WHERE schema = 'main' AND name = ?"
    has_rowid = bool(db.value(sql, (name,)))
    keys = [column for column in columns if column.key]
    is_numbered = has_rowid and keys == columns[:1] and columns[0].type == "INTEGER"
    return Table(columns, has_rowid, is_numbered, width)


def _all_columns(db: Database) -> set[tuple[str, str]]:
    return {(table, column.name) for table in db.column(_TABLES) for column in _columns(db, table)}


def _has_index(db: Database, name: str, table: str = "tasks") -> bool:
    """Return whether the definition of an index of a table can still be read."""
    sql = "SELECT tbl_name FROM sqlite_schema WHERE type = 'index' AND name = ?"
    return table in db.column(sql, (name,))


def _read_table(copy: Path, fresh: Database, name: str, table: Table) -> bool:
    """Read a table from its beginning, and if that breaks off from its end. Returns whether it was
    read completely."""
    columns = table.columns
    key = [column.name for column in sorted(columns, key=lambda c: c.key) if column.key]
    places = ["rowid"] if table.has_rowid else key  # another order would read all rows first
    for order in ("ASC", "DESC"):
        with _skip_damage(), _opened(copy) as db:
            there = {column.name for column in _columns(db, name)}
            if not there.issuperset(key):
                return False  # the definition of the table is damaged
            names = [column.name for column in columns if column.name in there]
            by = ", ".join(f"{place} {order}" for place in places)
            sql = f"SELECT {', '.join(names)} FROM {name} NOT INDEXED ORDER BY {by}"
            for row in db.execute(sql):
                _save(fresh, name, names, row)
            return order == "ASC"
    return False


def _read_indexes(copy: Path, fresh: Database) -> None:
    """Read the entries of each index of the tasks, from its beginning, and if that breaks off from
    its end."""
    for index, columns in _INDEXES.items():
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        updates = ", ".join(f"{name} = excluded.{name}" for name in columns)
        put = f"""INSERT INTO indexed (id, {names}) VALUES (?, {marks})
                  ON CONFLICT DO UPDATE SET {updates}"""
        for order in ("ASC", "DESC"):
            by = ", ".join(f"{name} {order}" for name in columns)
            sql = f"""SELECT id, {names} FROM tasks INDEXED BY {index}
                      WHERE {_ENTRIES.get(index, "1")} ORDER BY {by}"""
            with _skip_damage(), _opened(copy) as db:
                if _has_index(db, index):
                    for row in db.execute(sql):
                        fresh.execute(put, row)
                break
    fresh.execute(
        f"""DELETE FROM indexed
            WHERE id IN (SELECT id FROM tasks) OR id < 1 OR {SENSELESS["tasks"]}
               OR task_id IN (SELECT task_id FROM tasks)"""
    )


def _save(fresh: Database, table: str, names: list[str], row: Iterable[Any]) -> None:
    verb = "INSERT OR IGNORE"
    if table == "meta":
        # The new ledger has an id of its own; the old one replaces it, because messages carry it.
        verb = "INSERT OR REPLACE"
    insert_row(fresh, table, dict(zip(names, row, strict=True)), verb)


# Rows by the pages of the file: https://www.sqlite.org/fileformat2.html
#
# Each leaf of a table says how many rows it has and where, so it can be read without the tree above
# it. The values of a row tell which table it is of.

_LEAF_OF_TABLE = 0x0D
_FILE_HEADER_BYTES = 100
_DEFAULT_PAGE_BYTES = 4096
_VALUE_BYTES = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 7: 8, 8: 0, 9: 0}


def _read_leaves(copy: Path, fresh: Database, tables: dict[str, Table]) -> None:
    """Save the rows of these tables that only the pages of the file still hold."""
    if not tables or not copy.exists() or copy.stat().st_size < 512:
        return
    with copy.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for rowid, values in _rows_of_leaves(data):
            for name, table in tables.items():
                if not _fits(table, values):
                    continue
                names = [column.name for column in table.columns[: len(values)]]
                row = [rowid, *values[1:]] if table.is_numbered else values
                if _makes_sense(fresh, name, names, row):
                    _save(fresh, name, names, row)
                    break


def _fits(table: Table, values: list[Value]) -> bool:
    """Return whether a row can be of a table: its values have the right types, and only columns
    that were added later are missing."""
    columns, first = table.columns, 0
    if not table.has_rowid or not table.width <= len(values) <= len(columns):
        return False
    if table.is_numbered:
        if values[0] is not None:  # the rowid is stored elsewhere
            return False
        first = 1
    if any(column.required and not column.has_default for column in columns[len(values) :]):
        return False
    return all(map(_fits_column, columns[first : len(values)], values[first:]))


def _makes_sense(fresh: Database, table: str, names: list[str], row: list[Value]) -> bool:
    """Return whether a row can be of a table by its values, before it keeps out another one."""
    if table == "tasks" or table not in SENSELESS:  # a task gets another id instead
        return True
    given = ", ".join(f"? AS {name}" for name in names)
    sql = f"SELECT 1 FROM (SELECT {given}) WHERE {SENSELESS[table]}"
    return fresh.one(sql, tuple(row)) is None


def _fits_column(column: Column, value: Value) -> bool:
    if value is None:
        return not column.required
    return isinstance(value, _TYPES[column.type])


def _rows_of_leaves(data: mmap.mmap) -> Iterator[tuple[int, list[Value]]]:
    """Yield the rowid and the values of each row that can be read in a table's leaf in use."""
    size = int.from_bytes(data[16:18])
    if size == 1:
        size = 65536
    elif size < 512 or size & (size - 1):
        size = _DEFAULT_PAGE_BYTES  # the header is damaged
    usable = size
    if data[20] <= 32:
        usable -= data[20]
    free = _free_pages(data, size)
    for number in range(1, len(data) // size + 1):
        page = data[(number - 1) * size : number * size]
        head = 0
        if number == 1:
            head = _FILE_HEADER_BYTES
        if page[head] != _LEAF_OF_TABLE or number in free:
            continue
        for cell in range(int.from_bytes(page[head + 3 : head + 5])):
            at = int.from_bytes(page[head + 8 + 2 * cell : head + 10 + 2 * cell])
            try:
                yield _read_cell(data, size, usable, page, at)
            except (ValueError, IndexError, KeyError, struct.error):
                continue  # this row is lost; the next one may be intact


def _free_pages(data: mmap.mmap, size: int) -> set[int]:
    """Return the pages of the free list: they hold rows that were removed."""
    free: set[int] = set()
    trunk = int.from_bytes(data[32:36])
    while 0 < trunk <= len(data) // size and trunk not in free:
        page = data[(trunk - 1) * size : trunk * size]
        count = min(int.from_bytes(page[4:8]), size // 4 - 2)
        free |= {trunk, *struct.unpack(f">{count}I", page[8 : 8 + 4 * count])}
        trunk = int.from_bytes(page[:4])
    return free


def _read_cell(
    data: mmap.mmap, size: int, usable: int, page: bytes, at: int
) -> tuple[int, list[Value]]:
    """Read the row at an offset of a page, with its overflow pages."""
    length, at = _varint(page, at)
    rowid, at = _varint(page, at)
    if rowid >> 63:
        rowid -= 1 << 64
    if length > len(data):
        raise ValueError("longer than the file")
    local, most, least = length, usable - 35, (usable - 12) * 32 // 255 - 23
    if length > most:
        local = least + (length - least) % (usable - 4)
        if local > most:
            local = least
    payload = page[at : at + local]
    following = int.from_bytes(page[at + local : at + local + 4])
    while len(payload) < length:
        begin = (following - 1) * size
        if begin < 0 or begin + size > len(data):
            raise ValueError("the chain of overflow pages is broken")
        payload += data[begin + 4 : begin + min(usable, 4 + length - len(payload))]
        following = int.from_bytes(data[begin : begin + 4])
    return rowid, _read_record(payload)


def _read_record(payload: bytes) -> list[Value]:
    end, at = _varint(payload, 0)
    types = []
    while at < end:
        kind, at = _varint(payload, at)
        types.append(kind)
    values: list[Value] = []
    for kind in types:
        length = (kind - 12) // 2
        if kind < 12:
            length = _VALUE_BYTES[kind]
        values.append(_read_value(kind, payload[at : at + length]))
        at += length
    if at != len(payload):
        raise ValueError("the row does not end where it should")
    return values


def _read_value(kind: int, data: bytes) -> Value:
    if kind == 0:
        return None
    if kind in (8, 9):
        return kind - 8
    if kind == 7:
        return float(struct.unpack(">d", data)[0])
    if kind < 7:
        return int.from_bytes(data, signed=True)
    if kind % 2:
        return data.decode()
    return data


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(8):
        byte = data[at + place]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + place + 1
    return value << 8 | data[at + 8], at + 9


# Values that contradict each other

_NO_COUNT = f"typeof({{0}}) <> 'integer' OR {{0}} NOT BETWEEN 0 AND {MAX_COUNT}"
_NO_TIME = "{0} <> 9e15 AND {0} NOT BETWEEN 0 AND 1e12"
_METHOD = f"""CASE
    WHEN role = '{Role.SITEMAP}' THEN '{SITEMAP}'
    WHEN body = '' THEN '{GET}'
    WHEN role = '{Role.FILE}' THEN '{FILE}'
    WHEN body = CAST(parent AS TEXT) THEN '{LINKS}'
    ELSE '{FORM}' END"""
"""The method of a task by its other columns."""
_NO_QUEUE = f"queue NOT IN {QUEUES} AND queue NOT GLOB '{DIRECT}[1-9]*'"
_IMPOSSIBLE_VALUES = {
    "queue": (_NO_QUEUE, "'default'"),
    "needs": (f"needs NOT IN {NEEDS}", f"'{HTTP}'"),
    "priority": ("typeof(priority) <> 'integer' OR priority NOT BETWEEN 1 AND 9", "5"),
    "deadline": (
        _NO_TIME.format("deadline"),
        "ifnull((SELECT deadline FROM jobs WHERE id = job_id), 9e15)",
    ),
    "not_before": (_NO_TIME.format("not_before"), "0"),
    "imported_at": (
        "imported_at NOT BETWEEN 0 AND 1e12",
        "ifnull((SELECT created_at FROM jobs WHERE id = job_id), 0)",
    ),
    "completed_at": (
        "completed_at NOT BETWEEN 0 AND 1e12",
        "(SELECT scraped_at FROM results WHERE task = tasks.id)",
    ),
    "input": ("NOT json_valid(input) OR json_type(input) <> 'object'", "NULL"),
    "role": (f"role NOT IN {(*map(str, Role),)}", "'index'"),
    "method": (f"method NOT IN {METHODS}", _METHOD),
    "parent": ("typeof(parent) NOT IN ('integer', 'null')", "NULL"),
    "modified_at": ("modified_at NOT BETWEEN -1e12 AND 1e12", "NULL"),
    "list_crc32": ("typeof(list_crc32) NOT IN ('integer', 'null')", "NULL"),
} | {
    name: (_NO_COUNT.format(name), "0")
    for name in ("fence", "attempts", "failures", "strikes", "deaths", "depth", "hops")
}
"""For columns of a task: the condition for a value that no program writes, and its replacement.

An unknown queue or priority, or a time in ten thousand years, would keep a task from ever being
claimed.
"""
_IMPOSSIBLE_IN_JOBS = {
    "status": (f"status NOT IN {(*map(str, JobStatus),)}", "'open'"),
    "queue": (_NO_QUEUE, "'default'"),
    "hold": ("hold NOT IN ('paused', 'cancelled', 'resuming')", "'paused'"),
    "created_at": ("created_at NOT BETWEEN 0 AND 1e12", "0"),
    "completed_at": ("completed_at NOT BETWEEN 0 AND 1e12", "NULL"),
    "deadline": ("deadline NOT BETWEEN 0 AND 1e12", "NULL"),
    "options": ("NOT can_read_options(options)", "NULL"),
}
"""The same for columns of a job. No command could go on with them."""
_SALVAGED = "iif(source = 'batch', 'batch', 'salvage')"
"""The source of a task without its line. One of a session stays its own: other jobs may have the
same URL open."""
_WRONG_ROW = "row_crc32 <> row_crc32_of(file_number, source_line, source_item, input)"


class Contradiction(msgspec.Struct, frozen=True):
    """A column of a task, or of a job, with a value that cannot be right."""

    id: int
    task_id: str
    """For a job, its name."""
    column: str
    what: str
    kind: str = "task"

    def __str__(self) -> str:
        return f"{self.kind} {self.task_id}: {self.column} {self.what}"


def describe_contradictions(db: Database) -> list[str]:
    """Return the first few contradictions as text, and how many more there are."""
    what = "is not the one whose checksum its timeline has"
    records = (Contradiction(*each, "record", what) for each in wrong_records(db))
    found = [*_wrong_jobs(db), *_contradictions(db), *_wrong_rows(db), *records]
    return _first_few([str(each) for each in found], "columns of tasks")


def undecodable(db: Database) -> list[str]:
    """Return the first few rows with text that is not UTF-8: SQLite does not check that."""
    found = []
    for table in db.column(_TABLES):
        columns = _columns(db, table)
        key = next(column.name for column in columns if column.key == 1)
        texts = ", ".join(column.name for column in columns if column.type == "TEXT")
        if not texts:
            continue
        sql = f"SELECT {key}, CAST(concat({texts}) AS BLOB) FROM {table} NOT INDEXED"
        for number, text in db.execute(sql):
            try:
                text.decode()
            except UnicodeDecodeError:
                what = f"the row of {table} with {key} {number} holds a text that is not UTF-8"
                found.append(what)
    return _first_few(found, "such rows")


def _first_few(found: list[str], what: str) -> list[str]:
    if len(found) <= _MAX_SHOWN:
        return found
    return [*found[:_MAX_SHOWN], f"and {len(found) - _MAX_SHOWN:,} more {what}"]


def _wrong_jobs(db: Database) -> Iterator[Contradiction]:
    """Yield each column of a job that cannot have the value it was written with."""
    can_read: Any = can_read_options  # a damaged column may hold a value of any type
    db.create_scalar_function("can_read_options", can_read, 1, deterministic=True)
    there = {column.name for column in _columns(db, "jobs")}
    for column, (condition, _) in _IMPOSSIBLE_IN_JOBS.items():
        if column in there:
            for id_, name, value in db.all(
                f"SELECT id, name, {column} FROM jobs NOT INDEXED WHERE {condition}"
            ):
                yield Contradiction(id_, name, column, _never_written(value), "job")


def _never_written(value: object) -> str:
    return f"is {str(value)[:_MAX_VALUE_SHOWN]!r}, which is never written"


def _contradictions(db: Database) -> Iterator[Contradiction]:
    """Yield each column of a task that cannot have the value it was written with."""
    there = {column.name for column in _columns(db, "tasks")}  # an older schema has fewer
    impossible = {
        column: f"({condition})"
        for column, (condition, _) in _IMPOSSIBLE_VALUES.items()
        if column in there
    }
    if db.one(f"SELECT 1 FROM tasks NOT INDEXED WHERE {' OR '.join(impossible.values())}"):
        for column, condition in impossible.items():
            sql = f"SELECT id, task_id, {column} FROM tasks NOT INDEXED WHERE {condition}"
            for id_, task_id, value in db.all(sql):
                yield Contradiction(id_, task_id, column, _never_written(value))
    # A task that a repair made from its result has the final URL, and the key of the first one.
    for id_, task_id, url, key, domain in db.execute(
        """SELECT id, task_id, url, url_key, domain FROM tasks NOT INDEXED
           WHERE source <> 'salvage' AND (url <> '' OR url_key <> x'')"""
    ):
        address, shown = _parsed(url), f"is {url[:_MAX_URL_SHOWN]!r}"
        if address is None:
            if key != url.encode("utf-8", "replace"):
                yield Contradiction(id_, task_id, "url", f"{shown}, which is no URL")
        elif address.key != key:
            what = f"{shown}, but url_key is that of another page"
            yield Contradiction(id_, task_id, "url", what)
        elif not _is_within(address, domain):
            what = f"is {domain[:_MAX_URL_SHOWN]!r}, but url {shown}"
            yield Contradiction(id_, task_id, "domain", what)


def _parsed(url: str) -> Address | None:
    try:
        return urls.parse(url)
    except UrlError:
        return None


def _is_within(address: Address, domain: str) -> bool:
    """Return whether a URL is in a domain; the list of public suffixes may have changed since."""
    if address.domain == domain:
        return True
    host = address.url.partition("://")[2].partition("/")[0]
    if host[-1:].isdigit() and ":" in host:
        host = host.rpartition(":")[0]
    return bool(domain) and f".{host}".endswith(f".{domain}")


def _wrong_rows(db: Database) -> Iterator[Contradiction]:
    """Yield each row of input that is not the one that was imported; older ones have no
    checksum."""
    if "row_crc32" not in {column.name for column in _columns(db, "tasks")}:
        return
    checksum: Any = row_crc32  # damaged columns may hold values of any type
    db.create_scalar_function("row_crc32_of", checksum, 4, deterministic=True)
    for id_, task_id, line in db.execute(
        f"""SELECT id, task_id, source_line FROM tasks NOT INDEXED WHERE {_WRONG_ROW}
            UNION ALL
            SELECT task, ifnull((SELECT task_id FROM tasks WHERE id = task), ''), source_line
            FROM job_links WHERE {_WRONG_ROW}"""
    ):
        what = f"of line {line} is not the one whose checksum was noted"
        yield Contradiction(id_, task_id, "input", what)


def _correct_values(db: Database, pending: Path, is_indexed: IsIndexed) -> dict[str, int]:
    """Correct what contradicts itself. Returns what was done, with counts. Part of a transaction.

    A task whose URL cannot be found any more is removed, and so becomes a loss of its job.
    """
    jobs = list(_wrong_jobs(db))
    for each in jobs:
        _, replacement = _IMPOSSIBLE_IN_JOBS[each.column]
        db.execute(f"UPDATE jobs SET {each.column} = {replacement} WHERE id = ?", (each.id,))
    found = list(_contradictions(db))
    lost = 0
    for each in found:
        if each.column not in _IMPOSSIBLE_VALUES:
            lost += not _correct_url(db, pending, each, is_indexed)
            continue
        _, replacement = _IMPOSSIBLE_VALUES[each.column]
        sql = f"UPDATE OR IGNORE tasks SET {each.column} = {replacement} WHERE id = ?"
        db.execute(sql, (each.id,))
        if not db.changes() and db.one("SELECT 1 FROM tasks WHERE id = ?", (each.id,)):
            _remove_task(db, each.id)  # its crawl has found the page again since
            lost += 1
        if each.column == "input":
            _note_lost_input(db, each.id)
            db.execute("UPDATE tasks SET row_crc32 = NULL WHERE id = ?", (each.id,))
    rows = _give_up_rows(db)
    return {
        "columns of jobs corrected": len(jobs),
        "columns of tasks corrected": len(found) - lost,
        "tasks removed, because their URLs are lost": lost,
        "damaged rows of input, to be imported again": rows,
    }


def _note_lost_input(db: Database, task: int) -> None:
    db.execute("INSERT OR IGNORE INTO no_input (id) VALUES (?)", (task,))


def _give_up_rows(db: Database) -> int:
    """Turn damaged rows of input into losses of their jobs, so that an import brings them back.
    Returns how many.

    Nothing tells which column is wrong. So the task loses its line, and the import finds it by its
    page.
    """
    count = len(list(_wrong_rows(db)))
    if count:
        db.execute(
            f"""INSERT OR IGNORE INTO no_input (id)
                SELECT id FROM tasks NOT INDEXED WHERE {_WRONG_ROW}"""
        )
        db.execute(
            f"""UPDATE tasks SET source = {_SALVAGED}, source_line = NULL, row_crc32 = NULL
                WHERE {_WRONG_ROW}"""
        )
        db.execute(f"DELETE FROM job_links WHERE {_WRONG_ROW}")
    return count


def _correct_url(db: Database, pending: Path, wrong: Contradiction, is_indexed: IsIndexed) -> bool:
    """Find out the URL, key and domain of a task. Returns False if the task had to be removed."""
    [(url, key)] = db.all("SELECT url, url_key FROM tasks WHERE id = ?", (wrong.id,))
    own = _parsed(url)
    witnesses = list(_witnesses(db, pending, wrong))
    right = next((address for address in witnesses if address.key == key), None)
    if right is None and own:
        keys = {address.key for address in witnesses} | {key}
        if own.key in keys or is_indexed(wrong.id, own.key):
            right = own
    if right is None:
        right = _final_address(db, wrong.id, key)
    if right:
        db.execute(
            "UPDATE OR IGNORE tasks SET url = ?, url_key = ?, domain = ? WHERE id = ?",
            (right.url, right.key, right.domain, wrong.id),
        )
        if db.changes():  # otherwise another task for this page is open by now
            return True
    _remove_task(db, wrong.id)
    return False


def _remove_task(db: Database, task: int) -> None:
    """Remove the row of a task; what it still tells is kept for a task that is rebuilt."""
    db.execute(
        """INSERT OR REPLACE INTO indexed (id, task_id, url_key, parcel_id, job_id)
           SELECT id, task_id, url_key, parcel_id, job_id FROM tasks WHERE id = ?""",
        (task,),
    )
    db.execute("DELETE FROM tasks WHERE id = ?", (task,))


def _final_address(db: Database, task: int, key: bytes) -> Address | None:
    """Return the final URL of a task's page, which may differ from the task's; its input counts as
    lost."""
    row = db.one(
        "SELECT final_url, source FROM results JOIN tasks ON id = task WHERE task = ?", (task,)
    )
    if row is None:
        return None
    final_url, source = row
    found = _parsed(final_url)
    if found is None:
        return None
    _note_lost_input(db, task)
    if source == "gateway":
        return found
    db.execute(
        f"""UPDATE tasks SET source = {_SALVAGED}, source_line = NULL, row_crc32 = NULL
            WHERE id = ?""",
        (task,),
    )
    return found._replace(key=key)  # an import finds the task by this key


def _witnesses(db: Database, pending: Path, wrong: Contradiction) -> Iterator[Address]:
    """Yield the URLs that other places have for a task: its result, its rows of input, its file,
    and tasks for the same page."""
    texts = db.column(
        """SELECT final_url FROM results WHERE task = ?1
           UNION ALL
           SELECT url FROM tasks
           WHERE id <> ?1 AND url_key = (SELECT url_key FROM tasks WHERE id = ?1)""",
        (wrong.id,),
    )
    for given in db.column(
        """SELECT input FROM tasks WHERE id = ?1
           UNION ALL SELECT input FROM job_links WHERE task = ?1""",
        (wrong.id,),
    ):
        with contextlib.suppress(msgspec.DecodeError):
            texts.append(msgspec.json.decode(given or "{}"))
    with contextlib.suppress(msgspec.DecodeError):
        texts.append(msgspec.json.decode(pending_fields(pending, wrong.task_id).get("url", b"{}")))
    for text in _strings(texts):
        if address := _parsed(text):
            yield address


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _strings(list(value.values()))
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)


def _index_lookup(copy: Path) -> IsIndexed:
    """Return a lookup in the index of a damaged ledger, which holds each URL's key once more."""

    def is_indexed(task: int, key: bytes) -> bool:
        with _skip_damage(), _opened(copy) as db:
            if _has_index(db, "tasks_by_url"):
                sql = "SELECT id FROM tasks INDEXED BY tasks_by_url WHERE url_key = ?"
                return task in db.column(sql, (key,))
        return False

    return is_indexed
