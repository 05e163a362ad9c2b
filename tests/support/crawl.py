"""A crawl in one process that says what is committed: `python -m tests.support.crawl DATA_DIR
SITE_URL FIRST`.

Prints `imported <task_id>` after the commit of an import and `completed <task_id>` after that of a
result, until it is killed.
"""

import os
import sys
from itertools import count
from pathlib import Path

from crawler.config import Settings
from crawler.lpm import LocalPersistenceManager
from crawler.models import Outcome, Task, TaskStatus
from crawler.worker import Worker
from tests.support.tasks import new


def acknowledge(kind: str, task_id: str) -> None:
    """One line in one write: two threads speak here."""
    os.write(1, f"{kind} {task_id}\n".encode())


def say(task: Task, outcome: Outcome | None) -> None:
    """Acknowledge a result."""
    if outcome is not None and outcome.status is TaskStatus.COMPLETED:
        acknowledge("completed", task.task_id)


def main(data_dir: Path, site: str, first: int) -> None:
    """Import and crawl batches of 100 pages for as long as there is power."""
    lpm = LocalPersistenceManager(data_dir)
    lpm.bury()
    worker = Worker(Settings(data_dir=data_dir, slice_s=5, min_free=0, rate="none"), watch=say)
    for begin in count(first, 100):
        tasks = [new(f"{site}/page/{n}", parcel_id=str(n)) for n in range(begin, begin + 100)]
        lpm.persist_tasks(tasks, loopback=True)
        ids = lpm.store.db.all(
            "SELECT task_id FROM tasks WHERE CAST(parcel_id AS INTEGER) >= ?", (begin,)
        )
        for (task_id,) in ids:
            acknowledge("imported", task_id)
        worker.run_slice("slice", ["urgent", "default"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
