"""Tasks, pages and outcomes for tests of the store."""

import time
from pathlib import Path
from typing import Any

import msgspec

from crawler import urls
from crawler.db.gateway import Assignment
from crawler.gateway.agent import open_job as open_gateway_job
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job, NewTask, Outcome, Page, SentRequest, Task, TaskStatus


def new(url: str, **fields: Any) -> NewTask:
    """A task as a door hands it in."""
    return NewTask(address=urls.parse(url), **fields)


def open_job(lpm: LocalPersistenceManager, name: str = "job", queue: str = "default") -> Job:
    """A job known by its name."""
    return lpm.imports.open_job(
        key=name,
        name=name,
        queue=queue,
        source="file",
        source_file=None,
        batch_size=100,
        now=time.time(),
    )


def page(url: str = "http://a.example/", body: bytes = b"<p>hello</p>", status: int = 200) -> Page:
    """A page as it comes back."""
    headers = (("Content-Type", "text/html"), ("Transfer-Encoding", "chunked"), ("X-Name", "é"))
    return Page(
        url=url,
        final_url=url,
        status=status,
        reason="OK",
        headers=headers,
        body=body,
        raw=body,
        fetched_at=time.time(),
        fetch_s=0.01,
    )


def done(task: Task, record: dict[str, Any] | bytes | None = None, **fields: Any) -> Outcome:
    """A good end of an attempt."""
    if record is None:
        record = {"title": "x"}
    values: dict[str, Any] = {
        "status": TaskStatus.COMPLETED,
        "page": page(task.url),
        "record": record if isinstance(record, bytes) else msgspec.json.encode(record),
        "verdict": "ok",
        "sent": (SentRequest(task.domain, time.time(), 0.01),),
    }
    return Outcome(task=task, worker="test", **(values | fields))


def collect(lpm: LocalPersistenceManager, name: str, count: int, source: str = "file") -> None:
    """A job with so many results."""
    job = open_job(lpm, name)
    lpm.persist_tasks(
        [new(f"http://{name}.example/{n}", parcel_id=str(n)) for n in range(count)],
        job=job,
        source=source,
    )
    tasks = lpm.get_next_pending("owner", count)
    pages = [page(task.url, f"<p>{task.url}</p>".encode()) for task in tasks]
    lpm.save_result(*(done(task, page=page) for task, page in zip(tasks, pages, strict=True)))
    lpm.imports.close(job, time.time())
    lpm.jobs.finalise(time.time())


def give(lpm: LocalPersistenceManager, count: int, **fields: Any) -> Job:
    """Tasks t-0, t-1, … of a Gateway whose results are ready for it; its job is as a running agent
    has it."""
    job = open_gateway_job(lpm)
    tasks = [
        Assignment(external_id=f"t-{n}", address=urls.parse(f"http://g.example/{n}"), **fields)
        for n in range(count)
    ]
    lpm.gateway.assign(job, tasks, (), time.time())
    lpm.save_result(*(done(task) for task in lpm.get_next_pending("owner", count)))
    return job


def commits(database: Path) -> int:
    """How many transactions the write-ahead log of a SQLite database holds: each ends with a marked
    frame."""
    log = database.with_name(f"{database.name}-wal").read_bytes()
    page_size, salts = int.from_bytes(log[8:12], "big"), log[16:24]
    heads = [log[begin : begin + 24] for begin in range(32, len(log), 24 + page_size)]
    return sum(head[8:16] == salts and head[4:8] != bytes(4) for head in heads)
