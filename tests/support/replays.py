"""Stores with pages for replays, and sites that parse them."""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from crawler import sites
from crawler.lpm import LocalPersistenceManager
from crawler.models import Task
from crawler.scraping.examine import examine
from tests.support.stack import PATIENCE_S, Folder
from tests.support.tasks import done, new, open_job, page

HOST = "http://county.example"
SITE = """\
hosts: [county.example]
structured: false
fields:
  owner: .owner
  value: {css: .value, type: number}
"""
CLASS = """
import os, re, time

class County:
    hosts = ["county.example"]

    def extract_listing(self, page):
        if page.url.endswith("/2"):
            ACTION
        return {"owner": page.css_first(".owner").text(), "url": page.url}
"""


def url(number: int) -> str:
    """The page of that number."""
    return f"{HOST}/parcel/{number}"


def body(number: int) -> bytes:
    """The page itself, long enough to be no thin one."""
    words = "The parcel is in the county, and the assessor has its papers. " * 20
    return (
        f"<title>Parcel {number}</title><h1>Parcel {number}</h1><p>{words}</p><table>"
        f"<tr><th>Owner</th><td class=owner>Owner {number}</td></tr>"
        f"<tr><th>Value</th><td class=value>{number}00</td></tr></table>"
    ).encode()


def configure(folder: Path, text: str = SITE) -> None:
    """Write the file of the site."""
    (folder / "config" / "sites").mkdir(parents=True, exist_ok=True)
    (folder / "config" / "sites" / "county.yaml").write_text(text)


def configure_class(folder: Path, action: str = "pass") -> None:
    """Write the class of the site; `action` is done with page 2."""
    (folder / "config" / "scrapers").mkdir(parents=True, exist_ok=True)
    (folder / "config" / "scrapers" / "county.py").write_text(CLASS.replace("ACTION", action))


def collect(
    lpm: LocalPersistenceManager, config: Path, numbers: Iterable[int], parcels: str = "-"
) -> None:
    """Collect pages as a worker does, each for so many parcels."""
    known = sites.load(config)
    job = open_job(lpm)
    rows = [new(url(n), parcel_id=f"{n}{parcel}") for n in numbers for parcel in parcels]
    lpm.persist_tasks(rows, job=job)
    while tasks := lpm.get_next_pending("owner", 100):
        for task in tasks:
            save(lpm, known, task)
    lpm.imports.close(job, time.time())
    lpm.jobs.finalise(time.time())


def save(lpm: LocalPersistenceManager, known: sites.Sites, task: Task) -> None:
    """Parse the page of a task, and store that."""
    made = page(task.url, body(int(task.url.rpartition("/")[2])))
    site = known.of(task.url)
    parsed = examine(made, site)
    assert parsed.verdict.name == "ok"
    lpm.save_result(
        done(
            task,
            parsed.encoded,
            page=made,
            parser=parsed.parser,
            site=(site.name, site.version),
            listings=parsed.listings,
        )
    )


def replayed(folder: Folder, *args: str, code: int = 0, **env: str) -> dict[str, Any]:
    """What `replay --json` prints."""
    command = ("replay", "--json", "--workers", "2", *args)
    ended = folder.crawler(*command, limit_s=2 * PATIENCE_S, **env)
    assert ended.returncode == code, ended.stdout + ended.stderr
    facts: dict[str, Any] = json.loads(ended.stdout)
    return facts


def records(folder: Folder) -> dict[str, dict[str, Any]]:
    """The records of the ledger by task id."""
    with folder.lpm() as lpm:
        return {each["task_id"]: each["data"] for each in lpm.results.read()}


def pending(folder: Folder) -> dict[str, dict[str, Any]]:
    """The records of the files in pending/ by task id."""
    files = (folder.data / "pending").glob("*.json")
    return {path.stem: json.loads(path.read_text())["data"] for path in files}
