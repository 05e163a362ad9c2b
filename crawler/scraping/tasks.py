"""The Celery tasks of site jobs, where the requirements look for them; see `crawler.tasks`."""

from crawler.tasks import aggregate_results_task, scrape_chunk_task, scrape_site_task

__all__ = ["aggregate_results_task", "scrape_chunk_task", "scrape_site_task"]
