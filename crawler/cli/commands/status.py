"""`status`: the books, and what runs."""

import shutil
from typing import Any

import click
import msgspec

from crawler import config
from crawler.cli.output import data_dir_option, json_option, print_json
from crawler.config import Settings
from crawler.db import owners
from crawler.db.connection import reading
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager
from crawler.models import QUEUES, Books


@click.command()
@json_option
@data_dir_option
def status(as_json: bool) -> None:
    """Show what is done, what is not, and what runs; also with the stack down.

    \b
    Example:
      python -m crawler status --json
    """
    facts = gather(config.load())
    if as_json:
        print_json(facts)
    else:
        _show(facts)


def gather(settings: Settings) -> dict[str, Any]:
    """All facts; those of the ledger are of one moment."""
    books, jobs, queues = Books(), {}, dict.fromkeys(QUEUES, 0)
    if LocalPersistenceManager.exists(settings.data_dir):
        lpm = LocalPersistenceManager(settings.data_dir)
        with lpm.errors():
            ledger = lpm.ledger
            with reading(ledger.db):
                books = ledger.books()
                jobs = {job.name: ledger.job_books(job) for job in ledger.jobs()}
                queues |= dict(
                    ledger.db.all("SELECT queue, count(*) FROM tasks WHERE status = 'pending' GROUP BY queue")
                )
        lpm.close()
    return {
        "books": msgspec.structs.asdict(books),
        "jobs": {name: msgspec.structs.asdict(counts) for name, counts in jobs.items()},
        "queues": queues,
        "pids": _pids(settings),
        "disk": _disk(settings),
        "redis": _redis(settings),
    }


def _pids(settings: Settings) -> dict[str, Any]:
    from crawler.process import read_stack

    stack = read_stack(settings.data_dir)
    workers = owners.workers(settings.data_dir / "run" / "owners")
    return {
        "supervisor": stack.supervisor.pid if stack.supervisor and stack.supervisor.find() else None,
        "redis": stack.redis.pid if stack.redis and stack.redis.find() else None,
        "flower": stack.flower.pid if stack.flower and stack.flower.find() else None,
        "workers": [{"pid": pid, "children": sorted(children)} for pid, children in sorted(workers.items())],
    }


def _disk(settings: Settings) -> dict[str, Any]:
    folder = settings.data_dir.absolute()
    while not folder.exists():
        folder = folder.parent
    usage = shutil.disk_usage(folder)
    return {"folder": str(settings.data_dir.absolute()), "free": usage.free, "total": usage.total}


def _redis(settings: Settings) -> dict[str, Any]:
    import redis

    from crawler.process import redis_address
    from crawler.redis_client import connect
    from crawler.urls import without_credentials

    address = redis_address(settings)
    facts: dict[str, Any] = {"address": without_credentials(address), "up": False}
    try:
        client = connect(address)
        memory: Any = client.info("memory")
        facts |= {
            "up": True,
            "used_memory": memory["used_memory"],
            "maxmemory_policy": memory.get("maxmemory_policy"),
            "messages": {name: client.llen(name) for name in QUEUES},
        }
        client.close()
    except redis.RedisError:
        pass
    return facts


def _show(facts: dict[str, Any]) -> None:
    states = ("accepted", "pending", "processing", "completed", "failed", "skipped", "expired")
    rows = {"all": facts["books"]} | {printable(name)[:40]: counts for name, counts in facts["jobs"].items()}
    width = max(20, *(len(name) for name in rows))
    print(f"{'':{width}}" + "".join(f"{state:>11}" for state in states))
    for name, counts in rows.items():
        print(f"{name:{width}}" + "".join(f"{counts[state]:>11,}" for state in states))
    pids = facts["pids"]
    workers = ", ".join(f"{w['pid']} with {len(w['children'])} children" for w in pids["workers"]) or "none"
    redis_is = "up" if facts["redis"]["up"] else "down"
    print(f"supervisor {pids['supervisor'] or 'none'} · redis {redis_is} · workers {workers}")
    print(f"{facts['disk']['free'] / 1e9:.1f} GB free in {facts['disk']['folder']}")
