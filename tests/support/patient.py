"""A store for the doctor: crawled, damaged in ways of its own, and looked at."""

import os
import random
import stat
from pathlib import Path

import apsw

from crawler.doctor import Finding, examine
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job
from tests.support.tasks import done, new, open_job, page

STATES = ("ok", "note", "wrong", "mended")


def look(data: Path, repair: bool = False, **env: str) -> list[Finding]:
    """What the doctor finds in a folder; a Redis that is not there keeps it from asking anybody
    else's."""
    env = {"CRAWLER_DATA_DIR": str(data)} | env
    return list(examine(repair, lambda text: None, env))


def of(findings: list[Finding], check: str, *states: str) -> list[str]:
    """The details of one check's findings in these states."""
    return [
        finding.detail
        for finding in findings
        if finding.check == check and finding.state in (states or STATES)
    ]


def wrong(findings: list[Finding]) -> list[Finding]:
    """What is wrong."""
    return [finding for finding in findings if finding.state == "wrong"]


def crawl(data: Path, size: int = 400, completed: int = 300) -> Job:
    """A store in the middle of a job, closed in order."""
    lpm = LocalPersistenceManager(data)
    job = open_job(lpm)
    rows = [{"url": f"http://a.example/{n}", "county": "Bay"} for n in range(size)]
    tasks = [
        new(row["url"], parcel_id=str(n), line=n, input=dict(row)) for n, row in enumerate(rows)
    ]
    lpm.persist_tasks(tasks, job=job)
    lpm.imports.close(job, lpm.now())
    claimed = lpm.get_next_pending("owner", completed)
    lpm.save_result(
        *(
            done(task, page=page(task.url, random.Random(task.id).randbytes(400)))
            for task in claimed
        )
    )
    lpm.close()
    return job


def put_in_place(path: Path, kind: str) -> None:
    """Put something that is no file in the place of one, or give the file another name."""
    if kind == "renamed":
        path.rename(path.with_suffix(".jsn"))
        return
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    else:
        path.symlink_to(path if kind == "link to itself" else path.with_name("nowhere"))


def wipe(path: Path, number: int) -> bytes:
    """Overwrite one page of a database with noise; returns what the file is then."""
    data = bytearray(path.read_bytes())
    data[(number - 1) * 4096 : number * 4096] = random.Random(number).randbytes(4096)
    path.write_bytes(data)
    return bytes(data)


def pages_of(path: Path, table: str, kind: str) -> list[int]:
    """The numbers of a table's pages of a kind."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    rows = db.execute(
        "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = ? ORDER BY 1", (table, kind)
    ).fetchall()
    db.close()
    return [int(str(row[0])) for row in rows]


def ledger(data: Path, sql: str) -> list[tuple[object, ...]]:
    """What the ledger says."""
    lpm = LocalPersistenceManager(data)
    try:
        return lpm.store.db.all(sql)
    finally:
        lpm.close()


def change(data: Path, sql: str) -> None:
    """Make the ledger say something else."""
    lpm = LocalPersistenceManager(data)
    lpm.store.durable.execute(sql)
    lpm.close()


def spoil(data: Path, table: str, before: bytes, after: bytes) -> None:
    """Write other bytes over some in a row of a table, and over nothing else: no index knows of
    it."""
    path = data / "lpm.db"
    content = path.read_bytes()
    assert len(before) == len(after)
    rows = f"SELECT * FROM {table} NOT INDEXED"
    sound = ledger(data, rows)
    for number in pages_of(path, table, "leaf"):
        at = content.find(before, (number - 1) * 4096, number * 4096)
        while at >= 0:
            path.write_bytes(content[:at] + after + content[at + len(after) :])
            if (
                ledger(data, rows) != sound
            ):  # pages also keep bytes of rows that stand elsewhere by now
                return
            at = content.find(before, at + 1, number * 4096)
    raise AssertionError(f"{before!r} is in no row of {table}")


def empty_index(data: Path, name: str) -> None:
    """Take every entry out of an index: each of its pages is sound, and belongs to it."""
    path = str(data / "lpm.db")
    db = apsw.Connection(path)
    [(sql,)] = db.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (name,)).fetchall()
    db.close()
    for definition in (f"{sql} {'AND' if 'WHERE' in str(sql) else 'WHERE'} 0", sql):
        db = apsw.Connection(path)
        db.execute("PRAGMA writable_schema = 1")
        db.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (definition, name))
        db.close()
        if definition is not sql:
            db = apsw.Connection(path)
            db.execute(f"REINDEX {name}")
            db.close()


def swap_index(data: Path, name: str, table: str) -> None:
    """Overwrite the first page of an index with one of a table: it is sound, but not of this
    index."""
    path = data / "lpm.db"
    db = apsw.Connection(str(path))
    [(root,)] = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)).fetchall()
    db.close()
    content, target, source = (
        bytearray(path.read_bytes()),
        int(str(root)),
        pages_of(path, table, "leaf")[0],
    )
    content[(target - 1) * 4096 : target * 4096] = content[(source - 1) * 4096 : source * 4096]
    path.write_bytes(content)
