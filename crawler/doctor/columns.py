"""Columns of one task that contradict each other, and which of them is right: a database has no
checksums."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import apsw
import msgspec

from crawler import urls
from crawler.db.connection import Database
from crawler.db.imports import row_crc32
from crawler.errors import UrlError
from crawler.files import read_regular
from crawler.urls import Address

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
STORED = "(SELECT max(id) FROM events WHERE task = r.task AND kind IN ('completed', 'unbundled'))"
"""The entry of the timeline that came with a result."""
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
