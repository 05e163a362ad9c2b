"""Stored pages: finds them, rebuilds them, and compares their records."""

import shlex
from typing import Any

import msgspec

from crawler.config import program
from crawler.errors import UsageError
from crawler.fetch.body import decode_stored
from crawler.fetch.wire import stored_head
from crawler.lpm import LocalPersistenceManager
from crawler.models import Page

_MAX_STORED_BODY = 1 << 30
"""Maximum body of a stored page. The setting does not apply: it may have been higher before."""
_NOT_MODIFIED = 304


class StoredPage(msgspec.Struct, frozen=True):
    """A stored page, with its task and result."""

    page: Page
    task_id: str
    result: dict[str, Any] | None
    """None if the task failed: its page was kept, but no record was made."""


class Difference(msgspec.Struct, frozen=True):
    """The difference between two records, by field; inner fields are named `outer.inner`."""

    added: dict[str, Any] = {}
    removed: dict[str, Any] = {}
    changed: dict[str, tuple[Any, Any]] = {}
    """Old and new."""

    def __bool__(self) -> bool:
        """Return whether the records differ."""
        return bool(self.added or self.removed or self.changed)


def find_stored_page(lpm: LocalPersistenceManager, url: str, key: bytes) -> StoredPage:
    """Return the newest stored page of a URL that has a result, or else the newest one.

    Answers with "304 Not Modified" have no page. Raises `UsageError` with the reason if there is
    none.
    """
    tasks = lpm.tasks.for_url(key)
    if not tasks:
        raise UsageError(f"{url} was never fetched: no task is known for it")
    failed: StoredPage | None = None
    gone: str | None = None
    has_result = False
    for task in tasks:
        report, result = lpm.results.report(task), None
        if "data" in report:
            result, has_result = report, True
        stored = lpm.pages.read(task)
        if stored is None:
            gone = gone or lpm.pages.why_gone(task)
            continue
        page = rebuild_page(*stored, report["url"], report.get("final_url"))
        if page.status == _NOT_MODIFIED:
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
    if has_result:
        raise UsageError(f"there is a result for {url}, but its page was not kept (CRAWLER_RAW)")
    raise UsageError(f"no page is stored for {url}: {_why_not(lpm, tasks[0])}")


def _why_not(lpm: LocalPersistenceManager, task: int) -> str:
    report = lpm.results.report(task)
    status, reason = report["status"], report["error_type"]
    if reason:
        status += f" ({reason})"
    return f"its task is {status}"


def rebuild_page(head: str, raw: bytes, url: str, final_url: str | None = None) -> Page:
    """Rebuild a page from its stored header block and body; raises `FetchError` if the body cannot
    be decoded."""
    first, headers = stored_head(head)
    _, _, rest = first.partition(" ")
    code, _, reason = rest.partition(" ")
    status = 0
    if code.isascii() and code.isdecimal():
        status = int(code)
    return Page(
        url=url,
        final_url=final_url or url,
        status=status,
        reason=reason,
        headers=headers,
        body=decode_stored(head, raw, _MAX_STORED_BODY),
        raw=raw,
        fetched_at=0.0,
        fetch_s=0.0,
    )


def difference(old: dict[str, Any], new: dict[str, Any]) -> Difference:
    """Compare two records as JSON, the form in which they are stored."""
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
