"""A store for the doctor: crawled, damaged in ways of its own, and looked at."""

import random
from pathlib import Path

import apsw

from crawler.doctor import Finding, examine
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job
from tests.support.tasks import done, new, open_job, page

STATES = ("ok", "note", "wrong", "mended")


def look(data: Path, repair: bool = False, **env: str) -> list[Finding]:
    """What the doctor finds in a folder; a Redis that is not there keeps it from asking anybody else's."""
    env = {"CRAWLER_DATA_DIR": str(data)} | env
    return list(examine(repair, lambda text: None, env))


def of(findings: list[Finding], check: str, *states: str) -> list[str]:
    """The details of one check's findings in these states."""
    return [finding.detail for finding in findings if finding.check == check and finding.state in (states or STATES)]


def wrong(findings: list[Finding]) -> list[Finding]:
    """What is wrong."""
    return [finding for finding in findings if finding.state == "wrong"]


def crawl(data: Path, size: int = 400, completed: int = 300) -> Job:
    """A store in the middle of a job, closed in order."""
    lpm = LocalPersistenceManager(data)
    job = open_job(lpm)
    rows = [{"url": f"http://a.example/{n}", "county": "Bay"} for n in range(size)]
    tasks = [new(row["url"], parcel_id=str(n), line=n, input=dict(row)) for n, row in enumerate(rows)]
    lpm.persist_tasks(tasks, job=job)
    lpm.durable.close_import(job, lpm.now())
    claimed = lpm.get_next_pending("owner", completed)
    lpm.save_result(*(done(task, page=page(task.url, random.Random(task.id).randbytes(400))) for task in claimed))
    lpm.close()
    return job


def wipe(path: Path, number: int) -> bytes:
    """Overwrite one page of a database with noise; returns what the file is then."""
    data = bytearray(path.read_bytes())
    data[(number - 1) * 4096 : number * 4096] = random.Random(number).randbytes(4096)
    path.write_bytes(data)
    return bytes(data)


def pages_of(path: Path, table: str, kind: str) -> list[int]:
    """The numbers of a table's pages of a kind."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    rows = db.execute("SELECT pageno FROM dbstat WHERE name = ? AND pagetype = ? ORDER BY 1", (table, kind)).fetchall()
    db.close()
    return [int(str(row[0])) for row in rows]


def ledger(data: Path, sql: str) -> list[tuple[object, ...]]:
    """What the ledger says."""
    lpm = LocalPersistenceManager(data)
    try:
        return lpm.ledger.db.all(sql)
    finally:
        lpm.close()


def change(data: Path, sql: str) -> None:
    """Make the ledger say something else."""
    lpm = LocalPersistenceManager(data)
    lpm.durable.db.execute(sql)
    lpm.close()
