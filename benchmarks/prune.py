"""What a crawl notices of `prune --jobs`: its pages a second alone and beside it, in one store.

The store has a million old tasks with results and timelines. Three Celery children collect pages
before, during and after a part of the removal. `python -m benchmarks.prune` fills the figures into
RESULTS.md.
"""

import argparse
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import report, site
from benchmarks.profile import WORK, apart

TASKS, JOB, PAGES, CHILDREN, ROUNDS = 1_000_000, 100_000, 6_000, 3, 3
GOAL = 0.85
_OLD_JOB = """
    INSERT INTO jobs (id, name, key, status, queue, source, batch_size, size, created_at,
        completed_at) VALUES (?1, 'old-' || ?1, 'old-' || ?1, 'done', 'default', 'file', 100, ?2,
        1, 2);
    WITH RECURSIVE n(i) AS (SELECT ?3 UNION ALL SELECT i + 1 FROM n WHERE i < ?3 + ?2 - 1)
    INSERT INTO tasks (id, task_id, job_id, url, url_key, domain, status, queue, priority, deadline,
        attempts, source, source_file, source_line, imported_at, completed_at)
    SELECT i, lower(hex(randomblob(16))), ?1, 'https://old.example/parcels/' || i, randomblob(16),
        'old.example', 'completed', 'default', 5, 9e15, 1, 'file', 'old.csv', i, 1, 2 FROM n;
    INSERT INTO results (task, record, final_url, status_code, content_type, verdict, bytes,
        body_sha256, fetch_ms, parse_ms, parser, parser_version, scraped_at, seq)
    SELECT id, json_object('title', 'Parcel ' || id, 'text', hex(randomblob(200))), url, 200,
        'text/html', 'ok', 40000, lower(hex(randomblob(32))), 10, 1, 'fields', '1', 2, id
    FROM tasks WHERE job_id = ?1;
    INSERT INTO outbox (task, state, created_at, archived_at)
    SELECT id, 'held', 2, 3 FROM tasks WHERE job_id = ?1;
    INSERT INTO events (task, at, kind, detail)
    SELECT id, 1, 'imported', '{}' FROM tasks WHERE job_id = ?1;
    INSERT INTO events (task, at, kind, detail)
    SELECT id, 2, 'completed', '{"worker":"old","status":200,"bytes":40000,"fetch_ms":10.0}'
    FROM tasks WHERE job_id = ?1"""
"""A job ?1 with ?2 tasks from number ?3 on, which were archived."""


class Figures(NamedTuple):
    """One round."""

    before: float
    """Pages a second."""
    beside: float
    after: float
    removed: int
    """Tasks that were removed meanwhile."""

    @property
    def ratio(self) -> float:
        """Of the pages a second beside the removal, to those without it."""
        return self.beside / statistics.mean((self.before, self.after))


def run(folder: Path, tasks: int, pages: int) -> Figures:
    """Collect pages three times, the second time beside a removal."""
    from benchmarks.contestants import Order
    from benchmarks.contestants.corridor import settings_of, wait_for_end, workers
    from crawler.bulk import import_file
    from crawler.lpm import LocalPersistenceManager

    settings = settings_of(Order([], folder, {}))
    fill(settings.data_dir, tasks)
    urls = site.urls(site.FAST, site.PAGES)
    count = 0

    def collect() -> float:
        nonlocal count
        count += 1
        file = folder / f"pages-{count}.txt"
        file.write_text("".join(f"{url}?run={count}\n" for url in urls[:pages]))
        began = time.perf_counter()
        job = import_file(settings, file, "default")[1]
        fill_window()
        done = wait_for_end(settings, job)
        return done / (time.perf_counter() - began)

    def old_tasks() -> int:
        with LocalPersistenceManager(settings.data_dir) as lpm:
            return int(lpm.store.db.value("SELECT count(*) FROM tasks WHERE id <= ?", (tasks,)))

    with workers(settings, CHILDREN):
        from crawler.tasks import fill_window  # it finds the stack that is up now

        collect()
        before = collect()
        command = [sys.executable, "-m", "crawler", "prune", "--jobs", "--older-than", "1d"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as pruning:
            while old_tasks() == tasks:  # its start and its look at the jobs come once
                time.sleep(0.1)
            beside = collect()
            if pruning.poll() is not None:
                raise SystemExit("prune: the removal ended too early; take more --tasks")
            pruning.send_signal(signal.SIGKILL)
        left = old_tasks()
        after = collect()
    return Figures(before, beside, after, tasks - left)


def fill(data: Path, tasks: int) -> None:
    """Make a store with so many old tasks, in jobs of a hundred thousand."""
    from crawler.lpm import LocalPersistenceManager

    with LocalPersistenceManager(data) as lpm:
        db = lpm.store.db
        for number, first in enumerate(range(1, tasks + 1, JOB), 1):
            size = min(JOB, tasks + 1 - first)
            for statement in _OLD_JOB.split(";\n"):
                db.execute(statement, (number, size, first)[: max(_marks(statement))])
        lpm.store.cut_log()


def _marks(statement: str) -> list[int]:
    return [number for number in (1, 2, 3) if f"?{number}" in statement]


def measured(rounds: int, tasks: int, pages: int) -> list[Figures]:
    """The rounds, each with a store of its own."""
    found = []
    site.write(WORK / "site")
    with site.served(WORK / "site", WORK / "nginx"):
        for _ in range(rounds):
            found.append(apart(run, tasks, pages))
            print(found[-1], f"{found[-1].ratio:.2f}", file=sys.stderr)
    return found


def told(found: Sequence[Figures], tasks: int, pages: int) -> str:
    """The report."""
    ratio = statistics.median(each.ratio for each in found)
    rows = [
        (name, *(f"{getattr(each, field):,.0f}" for each in found))
        for name, field in (
            ("pages/s before", "before"),
            ("pages/s beside the removal", "beside"),
            ("pages/s after", "after"),
            ("tasks removed meanwhile", "removed"),
        )
    ]
    return "\n\n".join(
        (
            "## Removing old jobs beside a crawl",
            report.machine(),
            f"A store with {tasks:,} old tasks; {CHILDREN} children collect {pages:,} pages before "
            "the removal, while it goes on, and after it was killed.",
            report.table(("round", *map(str, range(1, len(found) + 1))), rows),
            f"Beside the removal the crawl has {ratio:.2f} of its pages/s, the median of "
            f"{len(found)} rounds (goal: at least {GOAL}).",
        )
    )


def main() -> None:
    """Measure and report."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tasks", type=int, default=TASKS)
    options.add_argument("--pages", type=int, default=PAGES)
    options.add_argument("--rounds", type=int, default=0, help="then nothing is written")
    given = options.parse_args()
    text = told(
        measured(given.rounds or ROUNDS, given.tasks, given.pages), given.tasks, given.pages
    )
    print(text)
    if not given.rounds:
        report.section("prune", text)


if __name__ == "__main__":
    main()
