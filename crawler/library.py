"""What programs import besides the coordinator: `scrape` for one URL, and `Store` to read."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import msgspec

from crawler import config
from crawler.arguments import checked, checked_folder
from crawler.coordinator import CrawlCoordinator
from crawler.errors import UsageError
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job


def scrape(
    url: str,
    options: dict[str, Any] | None = None,
    *,
    data_dir: str | Path | None = None,
    timeout_s: float | None = None,
) -> dict[str, Any]:
    """Fetch one URL now, whether it was collected before or not, and return its result."""
    checked(url, str, "url")
    coordinator = CrawlCoordinator(data_dir=data_dir)
    return coordinator.crawl_many_sync([url], options, timeout_s=timeout_s)[0]


class Store:
    """Reads a data folder: jobs, results, pages and timelines. It changes nothing, and may be used
    beside a running stack."""

    def __init__(self, path: str | Path | None = None) -> None:
        """`path` is the data folder, by default that of the settings."""
        folder = checked_folder(path, "path") or config.load().data_dir
        if not LocalPersistenceManager.exists(folder):
            raise UsageError(f"there is no store in {folder}")
        self._lpm = LocalPersistenceManager(folder)
        self._lpm.open(to_read=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store."""
        self._lpm.close()

    def jobs(self) -> list[dict[str, Any]]:
        """Return the jobs, the oldest first, each with the counts of its tasks."""
        jobs = self._lpm.jobs.all()
        counts = self._lpm.counts.progress_of(jobs)
        return [
            {
                "name": job.name,
                "status": str(job.status),
                "hold": job.hold,
                "queue": job.queue,
                "created_at": job.created_at,
                "completed_at": job.completed_at,
                "books": {"accepted": books.accepted} | books.by_state,
            }
            for job, books in zip(jobs, counts, strict=True)
        ]

    def results(self, job: str | None = None) -> Iterator[dict[str, Any]]:
        """Give the results of a job, or of all, in the order of their tasks."""
        yield from self._lpm.results.read(self._job(job))

    def result(self, task_or_url: str) -> dict[str, Any]:
        """Return the newest result of a task or URL; without one, how its task stands."""
        return self._lpm.results.report(self._task(task_or_url))

    def page(self, task_or_url: str) -> bytes:
        """Return the stored page of a task or URL, decompressed, as its server sent it."""
        from crawler.fetch.body import decode_stored

        task = self._task(task_or_url)
        stored = self._lpm.pages.read(task)
        if stored is None:
            gone = self._lpm.pages.why_gone(task) or "was not stored"
            raise UsageError(f"{task_or_url}: the page {gone}")
        return decode_stored(*stored, limit=1 << 30)

    def timeline(self, task_or_url: str) -> list[dict[str, Any]]:
        """Return what happened to a task or URL, the oldest first."""
        from crawler.history import timeline

        found: list[dict[str, Any]] = msgspec.to_builtins(
            timeline(self._lpm, self._task(task_or_url)).steps
        )
        return found

    def _job(self, name: str | None) -> Job | None:
        return None if name is None else self._lpm.jobs.named(checked(name, str, "job"))

    def _task(self, task_or_url: str) -> int:
        return self._lpm.tasks.find(checked(task_or_url, str, "task_or_url"))[0]
