"""The keys in Redis that tell other programs how far jobs are. They mirror the ledger.

scrape:{job_id}:total_chunks    pages that the job has so far, in chunks of SCRAPING_CHUNK_SIZE
scrape:{job_id}:completed       chunks whose pages have all come to an end
scrape:{job_id}:status          DISPATCHED, PROCESSING, COMPLETE or FAILED: see `jobs.Progress`
scrape:{job_id}:started_at      seconds since 1970
scrape:{job_id}:completed_at    seconds since 1970; empty while the job is open
scrape:{job_id}:result_count    results in the store
checkpoint:{site}:{day}         a hash: of each open crawl of the site that was begun on that day,
                                the pages done and found, such as 120/300
celery-task-meta-{chord_id}     Celery's result of the callback that ends a job
"""

PROGRESS = (
    "total_chunks",
    "completed",
    "status",
    "started_at",
    "completed_at",
    "result_count",
)
"""What is told of each job."""


def progress_key(job_id: str, name: str) -> str:
    """Return the key of one of `PROGRESS`."""
    return f"scrape:{job_id}:{name}"


def checkpoint_key(site: str, day: str) -> str:
    """Return the key of a site's open crawls that were begun on a day."""
    return f"checkpoint:{site}:{day}"


def result_key(task_id: str) -> str:
    """Return the key of a Celery task's result, which is also the channel that announces it."""
    return f"celery-task-meta-{task_id}"
