"""The way of one page: fetch, judge, parse. What comes out is stored by whoever called."""

import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from crawler.errors import FetchError
from crawler.fetch import charset
from crawler.fetch.http import Request
from crawler.models import Outcome, Page, RetryClass, Task, TaskStatus
from crawler.resilience import retry
from crawler.sites import structured
from crawler.sites.depth import check_depth

ATTEMPTS = 3

Fetch = Callable[[Request], Awaitable[Page]]
Parsing = Callable[[int], AbstractContextManager[None]]


async def scrape(
    task: Task,
    fetch: Fetch,
    *,
    worker: str,
    parsing: Parsing = lambda task: nullcontext(),
    clock: Callable[[], float] = time.time,
    jitter: Callable[[], float] = random.random,
) -> Outcome:
    """One attempt at one task. `parsing` marks the time in which the page is in a parser's hands."""
    page: Page | None = None
    try:
        page = await fetch(Request(url=task.url, loopback=task.loopback))
        judge(page)
        began = time.perf_counter()
        with parsing(task.id):
            record, parser = parse(page)
        return Outcome(
            task=task,
            status=TaskStatus.COMPLETED,
            worker=worker,
            page=page,
            record=record,
            parser=parser,
            parse_ms=(time.perf_counter() - began) * 1000,
            verdict="ok",
        )
    except FetchError as error:
        kind = retry.class_of(error.reason)
        again = kind not in (RetryClass.GIVE_UP, RetryClass.POISON) and task.failures + 1 < ATTEMPTS
        wait_s = retry.delay(kind, task.failures, error.retry_after_s, jitter) if again else 0.0
        return Outcome(
            task=task,
            status=TaskStatus.PENDING if again else TaskStatus.FAILED,
            worker=worker,
            page=page,
            error_type=error.reason,
            error_message=error.message,
            not_before=clock() + wait_s if again else 0.0,
        )


def judge(page: Page) -> None:
    """Raise where an answer is not the page that was asked for."""
    if not 200 <= page.status < 300:
        raise FetchError(f"http_{page.status}", f"the server answered {page.status} {page.reason}".rstrip())
    if not page.body:
        raise FetchError("empty", f"the server answered {page.status} with nothing in it")


def parse(page: Page) -> tuple[dict[str, Any], tuple[str, str]]:
    """The record of a page and the name and version of what made it; what is not HTML is kept raw only."""
    if not is_html(page):
        return {}, ("none", "1")
    text, _ = charset.decode(page.body, page.header("content-type"))
    check_depth(text)
    try:
        return structured.extract(structured.parse(text), page.final_url), (structured.NAME, structured.VERSION)
    except Exception as error:
        raise FetchError("parse_error", f"the parser failed ({type(error).__name__}: {error})") from error


def is_html(page: Page) -> bool:
    """Whether the page says that it is HTML, or says nothing and looks like it."""
    kind = page.header("content-type").partition(";")[0].strip().lower()
    if kind:
        return kind in ("text/html", "application/xhtml+xml")
    return page.body[:512].lstrip()[:1] == b"<"
