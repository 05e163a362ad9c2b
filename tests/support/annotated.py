"""The application with a rate limit by annotation, as an operator may have it: `celery -A
tests.support.annotated`."""

from crawler import app

app.conf.task_annotations = {"scrape_task": {"rate_limit": "5/s"}}
