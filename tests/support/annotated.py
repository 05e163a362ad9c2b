"""The application with rate limits by annotation, as an operator may have them: `celery -A
tests.support.annotated`. The one of the tasks that the environment names."""

import os

from crawler import app

RATES = {"scrape_task": "5/s", "crawl_url": "10/m"}
NAME = os.environ.get("ANNOTATED_TASK", "scrape_task")

app.conf.task_annotations = {NAME: {"rate_limit": RATES[NAME]}}
