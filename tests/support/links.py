"""A crawl in a store, whose pages end with the links that a test gives them."""

from pathlib import Path
from typing import Any

import msgspec

from crawler import urls
from crawler.db.links import Start
from crawler.lpm import LocalPersistenceManager
from crawler.models import CrawlOptions, Job, JobOptions, Link, Role, Task
from tests.support.tasks import done

NOW = 1_000.0


def link(path: str, **about: Any) -> Link:
    """A link to a page."""
    given: dict[str, Any] = {"role": Role.INDEX, "depth": 1} | about
    return Link(address=urls.parse(f"http://a.example{path}"), **given)


class Crawl:
    """A crawl with one start."""

    def __init__(self, folder: Path, name: str = "crawl", **options: Any) -> None:
        self.lpm = LocalPersistenceManager(folder)
        self.options = CrawlOptions(starts=("http://a.example/",), hosts=("a.example",), **options)
        self._name = name
        self.job = self._open()
        start = Start(link("/", role=Role.START, depth=0), {"parcel_id": "P1", "note": "x"})
        assert self.lpm.crawls.add_starts(self.job, [start], NOW) == 1
        self.lpm.imports.close(self.job, NOW)

    def _open(self) -> Job:
        return self.lpm.imports.open_job(
            key=self._name,
            name=self._name,
            queue="default",
            source="crawl",
            source_file=None,
            batch_size=100,
            now=NOW,
            options=JobOptions(crawl=self.options),
        )

    def with_options(self, **options: Any) -> Job:
        """Continue the crawl with other options; pages in flight do not know of it."""
        before = self.options
        self.options = msgspec.structs.replace(before, **options)
        job = self._open()
        self.options = before
        self.lpm.imports.close(job, NOW)
        return job

    def claim(self, count: int = 1) -> list[Task]:
        """Claim the next tasks."""
        return self.lpm.get_next_pending("owner", count)

    def end(self, task: Task, *links: Link, **about: Any) -> list[bool]:
        """End a task whose page has these links."""
        return self.lpm.save_result(done(task, crawl=self.options, links=links, **about))

    def rows(self, columns: str) -> list[tuple[Any, ...]]:
        """Columns of its tasks, in order."""
        return self.lpm.store.db.all(
            f"SELECT {columns} FROM tasks WHERE job_id = ? ORDER BY id", (self.job.id,)
        )
