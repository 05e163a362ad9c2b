"""Rows read from a damaged ledger, with their values corrected, into a new file."""

import contextlib
import mmap
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import apsw
import msgspec

from crawler import urls
from crawler.db import schema
from crawler.db.connection import Database, connect, writing
from crawler.db.losses import row_crc32
from crawler.doctor.reconciliation import (
    INDEXED,
    STORED,
    count_rows,
    settle,
)
from crawler.errors import StoreError, UrlError
from crawler.files import read_regular
from crawler.urls import Address

Value = int | float | str | bytes | None
_TYPES: dict[str, tuple[type, ...]] = {
    "INTEGER": (int,),
    "REAL": (int, float),
    "TEXT": (str,),
    "BLOB": (bytes,),
}


class Column(msgspec.Struct, frozen=True):
    """A stored column of one of the ledger's tables."""

    name: str
    type: str
    required: bool
    key: int
    given: bool
    """Whether it has a value of its own where none is given."""


def salvage(
    damaged: Path, target: Path, pending: Path, raw: Path, now: float
) -> tuple[dict[str, int], dict[str, int]]:
    """Put all that can be read into a new ledger; returns the rows of each table, and what was done
    besides.

    The damaged file is only read, and there is no target where that fails.
    """
    copy = target.with_name(f".{target.name}")
    try:
        _copy(damaged, copy)
        with contextlib.closing(connect(target)) as fresh:
            version = _version(copy)
            saved, mended = _read_all(copy, version, fresh, pending)
            done = mended | settle(
                fresh, pending, raw, now, noted_files=version >= schema.WITH_IMPORTS
            )
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


def _read_all(
    copy: Path, version: int, fresh: Database, pending: Path
) -> tuple[dict[str, int], dict[str, int]]:
    with writing(fresh):
        # Read with the schema that it was written with: another one asks for columns that are not
        # there, and finds its own tables in the rows of others.
        schema.build(fresh, 0, version)
        tables = {name: _columns(fresh, name) for (name,) in fresh.all(_TABLES)}
        fresh.execute(INDEXED)
        broken = [name for name in tables if not _read(copy, fresh, name, tables[name])]
        _read_leaves(copy, fresh, {name: tables[name] for name in broken})
        if "tasks" in broken:
            _read_indexes(copy, fresh)
        if version < len(schema.MIGRATIONS):
            schema.build(fresh, version)
        for table in ("results", "events"):
            fresh.execute(f"DELETE FROM {table} WHERE {SENSELESS[table]}")
        # An event looks like a loss that was not settled yet.
        fresh.execute("DELETE FROM losses WHERE kind NOT IN ('rows', 'pages')")
        fresh.execute(
            f"UPDATE tasks SET task_id = lower(hex(randomblob(16))) WHERE {SENSELESS['tasks']}"
        )
        saved = {name: count_rows(fresh, name) for (name,) in fresh.all(_TABLES)}
        mended = mend(fresh, pending, index_of(copy))
    return saved, {what: count for what, count in mended.items() if count}


SENSELESS = {
    "results": """NOT json_valid(record) OR json_type(record) <> 'object' OR scraped_at NOT BETWEEN 0 AND 4e9
                  OR length(body_sha256) <> 64""",
    "events": "NOT json_valid(detail) OR json_type(detail) <> 'object' OR at NOT BETWEEN 0 AND 4e9",
    "tasks": "length(task_id) <> 32 OR task_id GLOB '*[^0-9a-f]*'",
}
"""Rows that SQLite reads, but nobody else can: a database has no checksums."""
_TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"


def _columns(db: Database, table: str) -> list[Column]:
    return [
        Column(row[1], row[2], bool(row[3]), row[5], row[4] is not None)
        for row in db.all(f"PRAGMA table_info({table})")
    ]


def _version(copy: Path) -> int:
    """The schema that a damaged ledger was written with: the oldest one that has all its columns,
    or the newest."""
    told, there = 0, set[tuple[str, str]]()
    with damage_passed_over(), opened(copy) as db:
        [(told,)] = db.all("PRAGMA user_version")
        there = _all_columns(db)
    with contextlib.closing(Database(":memory:")) as reference:
        for version in range(1, len(schema.MIGRATIONS)):
            schema.build(reference, version - 1, version)
            if version >= told and there and there <= _all_columns(reference):
                return version
    return len(schema.MIGRATIONS)


def _all_columns(db: Database) -> set[tuple[str, str]]:
    return {(table, column.name) for (table,) in db.all(_TABLES) for column in _columns(db, table)}


def _copy(damaged: Path, copy: Path) -> None:
    """A copy with everything that was still in the log, so that it is one file."""
    damaged = damaged.resolve()  # the log of a linked file is where that is
    for ending in ("", "-wal"):
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(f"{damaged}{ending}", f"{copy}{ending}")
    with contextlib.suppress(apsw.Error), contextlib.closing(apsw.Connection(str(copy))) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _read(copy: Path, fresh: Database, table: str, columns: list[Column]) -> bool:
    """Read a table from its beginning, and where that breaks off from its end; says whether that
    was all of it."""
    key = [column.name for column in sorted(columns, key=lambda c: c.key) if column.key]
    for order in ("ASC", "DESC"):
        with damage_passed_over(), opened(copy) as db:
            there = {column.name for column in _columns(db, table)}
            if not there.issuperset(key):
                return False  # the definition of the table is damaged
            names = [column.name for column in columns if column.name in there]
            by = ", ".join(f"{name} {order}" for name in key)
            for row in db.execute(
                f"SELECT {', '.join(names)} FROM {table} NOT INDEXED ORDER BY {by}"
            ):
                _insert(fresh, table, names, row)
            return order == "ASC"
    return False


def _read_leaves(copy: Path, fresh: Database, tables: dict[str, list[Column]]) -> None:
    """Whatever else the pages of the file hold for these tables; what is there already is not
    touched."""
    if not tables or not copy.exists() or copy.stat().st_size < 512:
        return
    with copy.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for rowid, values in rows(data):
            for table, columns in tables.items():
                if _fits(columns, values):
                    names = [column.name for column in columns[: len(values)]]
                    _insert(fresh, table, names, [rowid, *values[1:]])
                    break


_INDEXES = {
    "tasks_by_task_id": ("task_id",),
    "tasks_by_url": ("url_key", "parcel_id"),
    "tasks_by_job": ("job_id",),
}


def _read_indexes(copy: Path, fresh: Database) -> None:
    """Read what each index of the tasks holds by itself, from its beginning, and where that breaks
    off from its end."""
    for index, columns in _INDEXES.items():
        names = ", ".join(columns)
        put = f"""INSERT INTO indexed (id, {names}) VALUES (?, {", ".join("?" * len(columns))})
                  ON CONFLICT DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in columns)}"""
        for order in ("ASC", "DESC"):
            by = ", ".join(f"{name} {order}" for name in columns)
            with damage_passed_over(), opened(copy) as db:
                if has_index(db, index):
                    for row in db.execute(
                        f"SELECT id, {names} FROM tasks INDEXED BY {index} ORDER BY {by}"
                    ):
                        fresh.execute(put, row)
                break
    fresh.execute(
        """DELETE FROM indexed WHERE id IN (SELECT id FROM tasks) OR id < 1
               OR length(task_id) <> 32 OR task_id GLOB '*[^0-9a-f]*' OR task_id IN (SELECT task_id FROM tasks)"""
    )


def _fits(columns: list[Column], values: list[Value]) -> bool:
    """Whether these can be the values of a row: of the right types, without the columns that were
    added later."""
    return (
        bool(values)
        and values[0] is None  # the place of the rowid
        and len(values) <= len(columns)
        and not any(column.required and not column.given for column in columns[len(values) :])
        and all(
            not column.required if value is None else isinstance(value, _TYPES[column.type])
            for column, value in zip(columns[1:], values[1:], strict=False)
        )
    )


def _insert(fresh: Database, table: str, names: list[str], row: Iterable[Any]) -> None:
    marks = ", ".join("?" * len(names))
    # The new ledger has an id of its own, which must give way to the old one: messages carry that.
    verb = "REPLACE" if table == "meta" else "IGNORE"
    fresh.execute(
        f"INSERT OR {verb} INTO {table} ({', '.join(names)}) VALUES ({marks})", tuple(row)
    )


_LEAF = 0x0D
_SIZES = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 7: 8, 8: 0, 9: 0}


def rows(data: mmap.mmap) -> Iterator[tuple[int, list[Value]]]:
    """Each row of each table's leaf that is in use and can be read, with its rowid."""
    size = int.from_bytes(data[16:18])
    size = 65536 if size == 1 else size
    if size < 512 or size & (size - 1):
        size = 4096  # the header is damaged; this is what ours are made with
    usable = size - data[20] if data[20] <= 32 else size
    unused = _unused(data, size)
    for number in range(1, len(data) // size + 1):
        page = data[(number - 1) * size : number * size]
        head = 100 if number == 1 else 0
        if page[head] != _LEAF or number in unused:
            continue
        for cell in range(int.from_bytes(page[head + 3 : head + 5])):
            at = int.from_bytes(page[head + 8 + 2 * cell : head + 10 + 2 * cell])
            try:
                yield _cell(data, size, usable, page, at)
            except (ValueError, IndexError, KeyError, struct.error):
                continue  # this row is lost; its neighbours need not be


def _unused(data: mmap.mmap, size: int) -> set[int]:
    """The pages of the free list: they still hold rows as they were once."""
    free: set[int] = set()
    trunk = int.from_bytes(data[32:36])
    while 0 < trunk <= len(data) // size and trunk not in free:
        page = data[(trunk - 1) * size : trunk * size]
        count = min(int.from_bytes(page[4:8]), size // 4 - 2)
        free |= {trunk, *struct.unpack(f">{count}I", page[8 : 8 + 4 * count])}
        trunk = int.from_bytes(page[:4])
    return free


def _cell(data: mmap.mmap, size: int, usable: int, page: bytes, at: int) -> tuple[int, list[Value]]:
    length, at = _varint(page, at)
    rowid, at = _varint(page, at)
    if length > len(data):
        raise ValueError("longer than the file")
    local, most, least = length, usable - 35, (usable - 12) * 32 // 255 - 23
    if length > most:
        local = least + (length - least) % (usable - 4)
        local = local if local <= most else least
    payload = page[at : at + local]
    following = int.from_bytes(page[at + local : at + local + 4])
    while len(payload) < length:
        begin = (following - 1) * size
        if begin < 0 or begin + size > len(data):
            raise ValueError("the chain of pages is broken")
        payload += data[begin + 4 : begin + min(usable, 4 + length - len(payload))]
        following = int.from_bytes(data[begin : begin + 4])
    return rowid - (1 << 64) if rowid >> 63 else rowid, _record(payload)


def _record(payload: bytes) -> list[Value]:
    end, at = _varint(payload, 0)
    types = []
    while at < end:
        kind, at = _varint(payload, at)
        types.append(kind)
    values: list[Value] = []
    for kind in types:
        length = (kind - 12) // 2 if kind >= 12 else _SIZES[kind]
        values.append(_value(kind, payload[at : at + length]))
        at += length
    if at != len(payload):
        raise ValueError("the row does not end where it should")
    return values


def _value(kind: int, data: bytes) -> Value:
    if kind == 0:
        return None
    if kind in (8, 9):
        return kind - 8
    if kind == 7:
        return float(struct.unpack(">d", data)[0])
    if kind < 7:
        return int.from_bytes(data, signed=True)
    return data.decode() if kind % 2 else data


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(9):
        byte = data[at + place]
        if place == 8:
            return value << 8 | byte, at + 9
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + place + 1
    raise AssertionError("a varint has nine bytes at most")


_COUNT = "typeof({0}) <> 'integer' OR {0} NOT BETWEEN 0 AND 1000000000"
_MOMENT = "{0} <> 9e15 AND {0} NOT BETWEEN 0 AND 1e12"
_VALUES = {
    "queue": ("queue NOT IN ('urgent', 'default')", "'default'"),
    "priority": ("typeof(priority) <> 'integer' OR priority NOT BETWEEN 1 AND 9", "5"),
    "deadline": (
        _MOMENT.format("deadline"),
        "ifnull((SELECT deadline FROM jobs WHERE id = job_id), 9e15)",
    ),
    "not_before": (_MOMENT.format("not_before"), "0"),
    "imported_at": (
        "imported_at NOT BETWEEN 0 AND 1e12",
        "ifnull((SELECT created_at FROM jobs WHERE id = job_id), 0)",
    ),
    "completed_at": (
        "completed_at NOT BETWEEN 0 AND 1e12",
        "(SELECT scraped_at FROM results WHERE task = tasks.id)",
    ),
    "input": ("NOT json_valid(input) OR json_type(input) <> 'object'", "NULL"),
} | {
    name: (_COUNT.format(name), "0")
    for name in ("fence", "attempts", "failures", "strikes", "deaths")
}
"""Columns of a task that have values which no program writes: what tells these, and what to put in
their place.

A queue or a priority that nobody knows, or a time in ten thousand years, keeps a task from ever
being claimed.
"""
_WRONG_ROW = "row_crc32 <> row_crc32_of(file_number, source_line, source_item, input)"
_SHOWN = 3


class Contradiction(msgspec.Struct, frozen=True):
    """A column of a task, and what contradicts it."""

    id: int
    task_id: str
    column: str
    what: str

    def __str__(self) -> str:
        return f"task {self.task_id}: {self.column} {self.what}"


def describe(db: Database) -> list[str]:
    """What contradicts itself, the first few by name."""
    found = [*contradictions(db), *wrong_rows(db), *wrong_records(db)]
    more = [f"and {len(found) - _SHOWN:,} more columns of tasks"] if len(found) > _SHOWN else []
    return [str(each) for each in found[:_SHOWN]] + more


def undecodable(db: Database) -> list[str]:
    """Rows with a text that is no text: SQLite hands it out as it is, and every reader stumbles
    over it."""
    found = []
    for (table,) in db.all(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    ):
        columns = db.all(f"PRAGMA table_info({table})")
        key = next(row[1] for row in columns if row[5] == 1)
        texts = ", ".join(row[1] for row in columns if row[2] == "TEXT")
        rows = (
            db.execute(f"SELECT {key}, CAST(concat({texts}) AS BLOB) FROM {table} NOT INDEXED")
            if texts
            else ()
        )
        for number, text in rows:
            try:
                text.decode()
            except UnicodeDecodeError:
                found.append(
                    f"the row of {table} with {key} {number} holds a text that is not UTF-8"
                )
    more = [f"and {len(found) - _SHOWN:,} more such rows"] if len(found) > _SHOWN else []
    return found[:_SHOWN] + more


def contradictions(db: Database) -> Iterator[Contradiction]:
    """Every column of a task that cannot be what was once written there."""
    there = {row[1] for row in db.all("PRAGMA table_info(tasks)")}  # an older program's has fewer
    senseless = {
        column: f"({condition})" for column, (condition, _) in _VALUES.items() if column in there
    }
    if db.one(f"SELECT 1 FROM tasks NOT INDEXED WHERE {' OR '.join(senseless.values())}"):
        for column, condition in senseless.items():
            for id_, task_id, value in db.all(
                f"SELECT id, task_id, {column} FROM tasks NOT INDEXED WHERE {condition}"
            ):
                yield Contradiction(
                    id_, task_id, column, f"is {str(value)[:80]!r}, which is never written"
                )
    # A task that a repair has made of its result has the URL where that was found, and the key of
    # the one asked for.
    for id_, task_id, url, key, domain in db.execute(
        """SELECT id, task_id, url, url_key, domain FROM tasks NOT INDEXED
           WHERE source <> 'salvage' AND (url <> '' OR url_key <> x'')"""
    ):
        address = _parsed(url)
        if address is None and key != url.encode("utf-8", "replace"):
            yield Contradiction(id_, task_id, "url", f"is {url[:200]!r}, which is no URL")
        elif address and address.key != key:
            yield Contradiction(
                id_, task_id, "url", f"is {url[:200]!r}, but url_key is that of another page"
            )
        elif address and not _within(address, domain):
            yield Contradiction(
                id_, task_id, "domain", f"is {domain[:200]!r}, but url is {url[:200]!r}"
            )


def wrong_rows(db: Database) -> Iterator[Contradiction]:
    """Every row of input that is not the one that was imported; those of earlier schemas have no
    checksum."""
    if "row_crc32" not in {row[1] for row in db.all("PRAGMA table_info(tasks)")}:
        return
    # Damaged columns may hold values of any type.
    db.create_scalar_function("row_crc32_of", row_crc32, 4, deterministic=True)  # type: ignore[arg-type]
    for id_, task_id, line in db.execute(
        f"""SELECT id, task_id, source_line FROM tasks NOT INDEXED WHERE {_WRONG_ROW} UNION ALL
            SELECT task, ifnull((SELECT task_id FROM tasks WHERE id = task), ''), source_line FROM job_links
            WHERE {_WRONG_ROW}"""
    ):
        yield Contradiction(
            id_, task_id, "input", f"of line {line} is not the one whose checksum was noted"
        )


def _give_up_rows(db: Database) -> int:
    """Let damaged rows of input be losses of their jobs, so that an import brings them back;
    returns how many.

    Nothing tells which of its columns is wrong: a task has no line any more, and the import finds
    it by its page.
    """
    count = len(list(wrong_rows(db)))
    if count:
        db.execute(
            f"INSERT OR IGNORE INTO no_input SELECT id FROM tasks NOT INDEXED WHERE {_WRONG_ROW}"
        )
        db.execute(
            f"UPDATE tasks SET source = 'salvage', source_line = NULL, row_crc32 = NULL WHERE {_WRONG_ROW}"
        )
        db.execute(f"DELETE FROM job_links WHERE {_WRONG_ROW}")
    return count


def wrong_records(db: Database) -> Iterator[Contradiction]:
    """Every record that is not the one whose checksum its timeline has; older ones have none."""
    for id_, task_id, record, checksum in db.execute(
        f"""SELECT r.task, task_id, CAST(record AS BLOB), json_extract(detail, '$.record_crc32')
           FROM results r JOIN tasks t ON t.id = r.task
           JOIN events e ON e.id = {STORED}
           WHERE verdict <> 'unchanged' AND json_valid(detail)"""
    ):
        if checksum is not None and crc32(record) != checksum:
            yield Contradiction(
                id_, task_id, "record", "is not the one whose checksum its timeline has"
            )


def _mend_record(db: Database, pending: Path, wrong: Contradiction) -> bool:
    """Take the record from its file where that has the checksum; one that is nowhere is collected
    again.

    Where the file has the same record as the ledger it is the checksum that is damaged.
    """
    [(record, event, checksum)] = db.all(
        f"""SELECT CAST(record AS BLOB), e.id, json_extract(detail, '$.record_crc32') FROM results r JOIN events e
           ON e.id = {STORED}
           WHERE r.task = ?""",
        (wrong.id,),
    )
    data = b""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        file = msgspec.json.decode(
            read_regular(pending / f"{wrong.task_id}.json"), type=dict[str, msgspec.Raw]
        )
        data = bytes(file.get("data", b""))
    if data and crc32(data) == checksum:
        db.execute("UPDATE results SET record = ? WHERE task = ?", (data.decode(), wrong.id))
    elif data and data == record:
        db.execute(
            "UPDATE events SET detail = json_remove(detail, '$.record_crc32') WHERE id = ?",
            (event,),
        )
    else:
        db.execute("DELETE FROM results WHERE task = ?", (wrong.id,))
        return False
    return True


def _parsed(url: str) -> Address | None:
    try:
        return urls.parse(url)
    except UrlError:
        return None


def _within(address: Address, domain: str) -> bool:
    """Whether a URL is of that domain; the list of public suffixes may have been another one when
    it was noted."""
    host = address.url.partition("://")[2].partition("/")[0]
    host = host.rpartition(":")[0] if host[-1:].isdigit() and ":" in host else host
    return address.domain == domain or (bool(domain) and f".{host}".endswith(f".{domain}"))


def mend(db: Database, pending: Path, is_indexed: Callable[[int, bytes], bool]) -> dict[str, int]:
    """Put right what contradicts itself; returns what was done, counted. Part of a transaction.

    `is_indexed` tells whether the index of the damaged ledger has a task under that key. A task
    whose URL nothing tells any more is removed, and so becomes a loss of its job.
    """
    found = list(contradictions(db))
    lost = 0
    for each in found:
        if each.column in _VALUES:
            db.execute(
                f"UPDATE tasks SET {each.column} = {_VALUES[each.column][1]} WHERE id = ?",
                (each.id,),
            )
            if each.column == "input":
                db.execute("INSERT OR IGNORE INTO no_input VALUES (?)", (each.id,))
                db.execute("UPDATE tasks SET row_crc32 = NULL WHERE id = ?", (each.id,))
        else:
            lost += not _mend_url(db, pending, each, is_indexed)
    rows = _give_up_rows(db)
    records = [_mend_record(db, pending, each) for each in list(wrong_records(db))]
    return {
        "columns of tasks put right": len(found) - lost,
        "tasks removed, their URLs being lost": lost,
        "damaged rows of input, to be imported again": rows,
        "records put right": sum(records),
        "records removed, being damaged": len(records) - sum(records),
    }


def _mend_url(
    db: Database, pending: Path, wrong: Contradiction, is_indexed: Callable[[int, bytes], bool]
) -> bool:
    """Give a task its URL, key and domain, as far as anything tells them; False where it had to be
    removed."""
    [(url, key)] = db.all("SELECT url, url_key FROM tasks WHERE id = ?", (wrong.id,))
    own = _parsed(url)
    told = list(_told(db, pending, wrong))
    right = next((address for address in told if address.key == key), None)
    if (
        right is None
        and own
        and (own.key in {each.key for each in told} | {key} or is_indexed(wrong.id, own.key))
    ):
        right = own
    if right is None:
        right = _found_at(db, wrong.id, key)
    if right:
        db.execute(
            "UPDATE OR IGNORE tasks SET url = ?, url_key = ?, domain = ? WHERE id = ?",
            (right.url, right.key, right.domain, wrong.id),
        )
        if db.changes():  # else another task for this page is open by now
            return True
    db.execute(
        """INSERT OR REPLACE INTO indexed (id, task_id, url_key, parcel_id, job_id)
           SELECT id, task_id, url_key, parcel_id, job_id FROM tasks WHERE id = ?""",
        (wrong.id,),
    )
    db.execute("DELETE FROM tasks WHERE id = ?", (wrong.id,))
    return False


def _found_at(db: Database, id_: int, key: bytes) -> Address | None:
    """Where the page of a task was found, which may be another URL than the one asked for; its
    input counts as lost."""
    row = db.one(
        "SELECT final_url, source FROM results JOIN tasks ON id = task WHERE task = ?", (id_,)
    )
    found = _parsed(row[0]) if row else None
    if found is None or row is None:
        return None
    db.execute("INSERT OR IGNORE INTO no_input VALUES (?)", (id_,))
    if row[1] == "gateway":
        return found
    db.execute(
        "UPDATE tasks SET source = 'salvage', source_line = NULL, row_crc32 = NULL WHERE id = ?",
        (id_,),
    )
    return found._replace(key=key)  # by that its row of input is found again


def _told(db: Database, pending: Path, wrong: Contradiction) -> Iterator[Address]:
    """The URLs that others tell of a task: its result, its file, its rows of input, tasks for the
    same page."""
    texts: list[Any] = [
        row[0]
        for row in db.all(
            """SELECT final_url FROM results WHERE task = ?1 UNION ALL SELECT url FROM tasks
               WHERE id <> ?1 AND url_key = (SELECT url_key FROM tasks WHERE id = ?1)""",
            (wrong.id,),
        )
    ]
    for (given,) in db.all(
        "SELECT input FROM tasks WHERE id = ?1 UNION ALL SELECT input FROM job_links WHERE task = ?1",
        (wrong.id,),
    ):
        with contextlib.suppress(msgspec.DecodeError):
            texts.append(msgspec.json.decode(given or "{}"))
    with contextlib.suppress(OSError, msgspec.DecodeError):
        texts.append(
            msgspec.json.decode(read_regular(pending / f"{wrong.task_id}.json"), type=dict).get(
                "url"
            )
        )
    for text in _strings(texts):
        if address := _parsed(text):
            yield address


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)


def index_of(copy: Path) -> Callable[[int, bytes], bool]:
    """Asks the index of a damaged ledger, which is a second place for every key."""

    def is_indexed(id_: int, key: bytes) -> bool:
        with damage_passed_over(), opened(copy) as db:
            if has_index(db, "tasks_by_url"):
                return (id_,) in db.all(
                    "SELECT id FROM tasks INDEXED BY tasks_by_url WHERE url_key = ?", (key,)
                )
        return False

    return is_indexed


@contextlib.contextmanager
def damage_passed_over() -> Iterator[None]:
    """Leave unread what a damaged file does not give; a wrong statement is no damage, and rows
    behind it are sound."""
    try:
        yield
    except apsw.SQLError:
        raise
    except (apsw.Error, UnicodeDecodeError):
        pass


def opened(copy: Path) -> contextlib.closing[Database]:
    """A damaged ledger, to be read."""
    return contextlib.closing(Database(str(copy), flags=apsw.SQLITE_OPEN_READONLY, raw=True))


def has_index(db: Database, name: str) -> bool:
    """Whether the definition of an index of the tasks can still be read."""
    return ("tasks",) in db.all(
        "SELECT tbl_name FROM sqlite_schema WHERE type = 'index' AND name = ?", (name,)
    )
