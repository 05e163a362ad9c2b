"""A page that was stored, to be read again, and what that changes."""

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
"""What was stored was within the limits of its day: those of today do not matter."""
NOT_MODIFIED = 304


class Found(msgspec.Struct, frozen=True):
    """A stored page, and what became of it then."""

    page: Page
    task_id: str
    result: dict[str, Any] | None
    """None where the task failed: its page was kept, and no record was made."""


class Difference(msgspec.Struct, frozen=True):
    """What another reading of a page changes, by the names of fields; those inside others as
    `outer.inner`."""

    added: dict[str, Any] = {}
    removed: dict[str, Any] = {}
    changed: dict[str, tuple[Any, Any]] = {}
    """Old and new."""

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.added or self.removed or self.changed)


def find(lpm: LocalPersistenceManager, url: str, key: bytes) -> Found:
    """The newest page of a URL that gave a result, else the newest that did not; raises
    `UsageError` with the reason.

    An answer "not modified" has no page: then it is the one before.
    """
    tasks = lpm.tasks.for_url(key)
    if not tasks:
        raise UsageError(f"{url} was never fetched: no task is known for it")
    failed: Found | None = None
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
        found = Found(page, report["task_id"], result)
        if result is not None:
            return found
        failed = failed or found
    if failed:
        return failed
    if gone:
        raise UsageError(
            f"the page of {url} {gone}; {program()} scrape {shlex.quote(url)} fetches it again"
        )
    if collected:
        raise UsageError(f"there is a result for {url}, but its page was not kept (CRAWLER_RAW)")
    raise UsageError(f"no page is stored for {url}: {_why_not(lpm, tasks[0])}")


def _why_not(lpm: LocalPersistenceManager, task: int) -> str:
    report = lpm.results.report(task)
    return f"its task is {report['status']}" + (
        f" ({report['error_type']})" if report["error_type"] else ""
    )


def page_of(head: str, raw: bytes, url: str, final_url: str | None = None) -> Page:
    """The page that a stored header block and body were; raises `FetchError` where the body cannot
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
    """What is new, gone and other; as JSON has it, in which both are kept."""
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
