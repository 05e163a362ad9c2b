"""Stored pages, to be parsed again, and the difference that makes."""

import shlex
from typing import Any

import msgspec

from crawler.config import program
from crawler.errors import UsageError
from crawler.fetch.body import decoded
from crawler.fetch.wire import stored_head
from crawler.lpm import LocalPersistenceManager
from crawler.models import Page

MAX_BODY = 1 << 30
"""Today's limits do not matter: a stored page was within those of its day."""
NOT_MODIFIED = 304


class StoredPage(msgspec.Struct, frozen=True):
    """A stored page, and what became of it."""

    page: Page
    task_id: str
    result: dict[str, Any] | None
    """None if the task failed: its page was kept, but no record was made."""


class Difference(msgspec.Struct, frozen=True):
    """What parsing a page again changes, by field; inner fields are named `outer.inner`."""

    added: dict[str, Any] = {}
    removed: dict[str, Any] = {}
    changed: dict[str, tuple[Any, Any]] = {}
    """Old and new."""

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.added or self.removed or self.changed)


def find(lpm: LocalPersistenceManager, url: str, key: bytes) -> StoredPage:
    """Return the newest page of a URL with a result, else the newest without.

    An answer "not modified" has no page. Raises `UsageError` with the reason if there is none.
    """
    tasks = lpm.tasks.for_url(key)
    if not tasks:
        raise UsageError(f"{url} was never fetched: no task is known for it")
    failed: StoredPage | None = None
    gone: str | None = None
    collected = False
    for task in tasks:
        report = lpm.results.report(task)
        result = report if "data" in report else None
        collected = collected or result is not None
        stored = lpm.pages.read(task)
        if stored is None:
            gone = gone or lpm.pages.why_gone(task)
            continue
        page = page_of(*stored, report["url"], report.get("final_url"))
        if page.status == NOT_MODIFIED:
            continue
        found = StoredPage(page, report["task_id"], result)
        if result is not None:
            return found
        failed = failed or found
    if failed:
        return failed
    if gone:
        again = f"{program()} scrape {shlex.quote(url)}"
        raise UsageError(f"the page of {url} {gone}; {again} fetches it again")
    if collected:
        raise UsageError(f"there is a result for {url}, but its page was not kept (CRAWLER_RAW)")
    raise UsageError(f"no page is stored for {url}: {_why_not(lpm, tasks[0])}")


def _why_not(lpm: LocalPersistenceManager, task: int) -> str:
    report = lpm.results.report(task)
    status, reason = report["status"], report["error_type"]
    if reason:
        status += f" ({reason})"
    return f"its task is {status}"


def page_of(head: str, raw: bytes, url: str, final_url: str | None = None) -> Page:
    """Rebuild a page from its stored header block and body; raises `FetchError` if the body cannot
    be decoded."""
    first, headers = stored_head(head)
    _, _, rest = first.partition(" ")
    status, _, reason = rest.partition(" ")
    return Page(
        url=url,
        final_url=final_url or url,
        status=int(status) if status.isascii() and status.isdecimal() else 0,
        reason=reason,
        headers=headers,
        body=decoded(head, raw, MAX_BODY),
        raw=raw,
        fetched_at=0.0,
        fetch_s=0.0,
    )


def difference(old: dict[str, Any], new: dict[str, Any]) -> Difference:
    """Compare two records as JSON, in which both are kept."""
    found = Difference({}, {}, {})
    _compare(old, msgspec.json.decode(msgspec.json.encode(new)), "", found)
    return found


def _compare(old: dict[str, Any], new: dict[str, Any], prefix: str, found: Difference) -> None:
    for name in {**old, **new}:
        path = f"{prefix}{name}"
        if name not in old:
            found.added[path] = new[name]
        elif name not in new:
            found.removed[path] = old[name]
        elif isinstance(old[name], dict) and isinstance(new[name], dict):
            _compare(old[name], new[name], f"{path}.", found)
        elif old[name] != new[name] or type(old[name]) is not type(new[name]):
            found.changed[path] = (old[name], new[name])
