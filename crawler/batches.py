"""Batches for programs and the API: URLs of a session into the ledger, and results out of it."""

import hashlib
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from crawler import config, urls
from crawler.config import Settings
from crawler.db import raw_pages
from crawler.db.batches import Asked, Batch, NewBatch, TaskOutcome
from crawler.db.imports import RejectedRow
from crawler.db.result_files import LinkedFile
from crawler.db.results import iso
from crawler.errors import StoreError, UrlError, UsageError
from crawler.fetch import session as sessions
from crawler.fetch.session import Session, check
from crawler.files import session_path
from crawler.lpm import LocalPersistenceManager
from crawler.models import Fetcher, Job, JobOptions, NewTask, TaskStatus
from crawler.page_formats import ERRORS, PageFormats, PageToConvert, check_formats
from crawler.render_options import RenderOptions

MAX_URLS = 100_000
"""URLs of one call, which go into the ledger in one commit."""
SUCCESS, FAILED, PENDING = "success", "failed", "pending"
INVALID_URL = "invalid_url"

SCREENSHOT = "screenshot"
MAX_PICTURE_BYTES = 4_000_000
"""Size up to which a screenshot is part of a result."""
MAX_PICTURES_BYTES = 100_000_000
"""Size of all screenshots in one answer: it is made in memory."""

Format = Literal["record", "text", "markdown", "html", "links", "screenshot"]
_SHORT = Annotated[str, Meta(max_length=20)]


class BatchOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the pages of a session are fetched, and what results have of them."""

    formats: tuple[Format, ...] = ("record",)
    only_main_content: bool = True
    """Whether Markdown leaves out menus, footers and the like."""
    headers: dict[str, str] = {}
    """Sent with every request; stored in a file that only its owner can read."""
    rate: _SHORT | None = None
    """Requests to each domain, such as `50/s` or `none`."""
    ignore_robots: bool = False
    fetcher: Fetcher | None = None
    """What fetches the pages, if it is not what the files of the sites say."""
    browser: RenderOptions | None = None
    """What a browser does with the pages; goes before what the files of the sites say."""
    queue: Literal["urgent", "default"] = "default"
    priority: Annotated[int, Meta(ge=1, le=9)] = 5

    @property
    def of_job(self) -> JobOptions:
        """Those that the job of the session has."""
        browser = self.browser
        if SCREENSHOT in self.formats:
            browser = RenderOptions(screenshot=True).over(browser or RenderOptions())
        return JobOptions(
            rate=self.rate,
            ignore_robots=self.ignore_robots,
            fetcher=self.fetcher,
            browser=browser,
        )


Note = Callable[[LocalPersistenceManager, Job], None]
"""Stores more in the commit of a call."""


def nothing_more(lpm: LocalPersistenceManager, job: Job) -> None:
    """Store no more."""


class Submitted(NamedTuple):
    """A call that is in the ledger: its job, and its number within the session."""

    job: Job
    number: int


class Statistics(msgspec.Struct, frozen=True):
    """What became of the URLs of a call."""

    total: int
    success: int
    failed: int
    reasons: dict[str, int]
    """How many failed for each reason."""
    workers_used: int
    bytes: int
    seconds: float


def submit(
    settings: Settings,
    session_id: str,
    given: Sequence[str],
    options: BatchOptions,
    *,
    direct: bool,
    client: str = "",
    note: Note = nothing_more,
    finish: Note = nothing_more,
) -> Submitted:
    """Store URLs as tasks of a session, in one commit. The same call again changes nothing.

    `note` and `finish` may store more in the same commit, also for a call that comes again. `note`
    may still refuse the call; after `finish`, nothing does.
    """
    if len(given) > MAX_URLS:
        raise UsageError(f"{len(given):,} URLs are more than {MAX_URLS:,}: import them from a file")
    if options.rate is not None and (problem := config.bad_rate(options.rate)):
        raise UsageError(f"options: rate: {problem}")
    if browser := options.of_job.browser:
        from crawler.sites.browserfile import check_browser  # most programs need no sites

        check_browser(browser, options.fetcher)
    check_formats(_made_of_pages(options.formats))
    headers = tuple(options.headers.items())
    session = Session(headers=headers)
    check(session)
    new = NewBatch(
        client=client,
        session_id=session_id,
        checksum=checksum(given),
        direct=direct,
        queue=options.queue,
        options=options.of_job,
        shown=shown(options),
    )
    tasks, rejected, found = _rows(given, options.priority)
    with LocalPersistenceManager(settings.data_dir) as lpm:

        def prepare(job: Job, is_new: bool) -> None:
            keep_secrets(lpm.folder / "sessions", job, is_new, session, found)

        begun = lpm.batches.begin(
            new, tasks, rejected, lpm.now(), prepare,
            lambda job: note(lpm, job), lambda job: finish(lpm, job),
        )  # fmt: skip
        return Submitted(*begun)


def keep_secrets(
    folder: Path, job: Job, is_new: bool, given: Session, found: Iterable[tuple[str, str]]
) -> None:
    """Save what a session sends along, before its tasks are stored. Its first call decides on the
    headers.

    A new job begins with nothing: a call that was refused, or killed here, may have left a file
    under its name.
    """
    known = Session()
    if is_new:
        session_path(folder, job.name).unlink(missing_ok=True)
    else:
        known = sessions.load(folder, job.name) or known
        given = known
    credentials = dict(known.credentials)
    for origin, secret in found:
        if credentials.setdefault(origin, secret) != secret:
            raise UsageError(
                f"two URLs name different users or passwords for {origin}: "
                "give them different sessions"
            )
    wanted = msgspec.structs.replace(given, credentials=credentials)
    if wanted != known:
        sessions.save(folder, job.name, wanted)


def checksum(given: Sequence[str]) -> str:
    """Return what a call is known by: its URLs, in their order."""
    return hashlib.sha256(msgspec.json.encode(list(given))).hexdigest()


def shown(options: BatchOptions) -> dict[str, Any]:
    """Return what a session keeps of its options for who reads its results."""
    return {"formats": options.formats, "only_main_content": options.only_main_content}


def _made_of_pages(formats: Sequence[str]) -> tuple[str, ...]:
    """The formats for which the page is read; the record is in the ledger, and a browser has made
    the screenshot."""
    return tuple(name for name in formats if name not in ("record", SCREENSHOT))


def _rows(
    given: Sequence[str], priority: int
) -> tuple[list[NewTask], list[RejectedRow], list[tuple[str, str]]]:
    """Return the tasks of URLs, those that are none, and the credentials in them."""
    tasks, rejected, secrets = [], [], []
    for line, text in enumerate(given, 1):
        try:
            tasks.append(NewTask(address=urls.parse(text), priority=priority, line=line))
            if secret := urls.credentials(text):
                secrets.append(secret)
        except UrlError as error:
            rejected.append(RejectedRow(line, str(error), urls.without_credentials(text)[:1000]))
    return tasks, rejected, secrets


class BatchReader:
    """Reads the results of one session, in the shape that programs and the API get."""

    def __init__(self, lpm: LocalPersistenceManager, batch: Batch, converter: PageFormats) -> None:
        self._lpm, self._batch, self._converter = lpm, batch, converter

    def of_tasks(self, tasks: Sequence[int]) -> list[dict[str, Any]]:
        """Return the results of tasks, in their order."""
        return self.results([Asked(0, task, None, None) for task in tasks])

    def results(self, asked: Sequence[Asked]) -> list[dict[str, Any]]:
        """Return a result for each URL of a call, in its order."""
        ids = sorted({row.task for row in asked if row.task is not None})
        outcomes = self._lpm.batches.outcomes(ids)
        stored = dict(self._lpm.results.of_tasks(ids))
        results = [self._result(row, outcomes, stored) for row in asked]
        if formats := _made_of_pages(self._batch.shown["formats"]):
            self._add_formats(formats, asked, results)
        if SCREENSHOT in self._batch.shown["formats"]:
            room = MAX_PICTURES_BYTES
            for row, result in zip(asked, results, strict=True):
                if row.task is not None and "metadata" in result:
                    room -= self._add_screenshot(row.task, result, room)
        return results

    def capture(self, task: int, name: str) -> tuple[str, bytes]:
        """Return the type and the bytes of what a browser has made of a page; `StoreError` says why
        there is none."""
        return self._captured(self._find_capture(task, name))

    def _find_capture(self, task: int, name: str) -> LinkedFile:
        for file in self._lpm.results.captures(task):
            if file.field == name:
                return file
        why = "no browser was to make one, what came is no page, or the page shows a secret"
        raise StoreError(f"there is no {name}: {why}")

    def _captured(self, file: LinkedFile) -> tuple[str, bytes]:
        if file.raw is None:
            raise StoreError(f"the {file.field} was removed by prune")
        return file.type or "", raw_pages.read_capture(self._lpm.raw, file.raw)

    def _add_screenshot(self, task: int, result: dict[str, Any], room: int) -> int:
        """Add the screenshot if there is room for it; return its size."""
        result[SCREENSHOT], problem = None, ""
        try:
            file = self._find_capture(task, SCREENSHOT)
            size = file.bytes or 0
            if size <= min(MAX_PICTURE_BYTES, room):
                kind, picture = self._captured(file)
                result[SCREENSHOT] = f"data:{kind};base64,{b64encode(picture).decode()}"
                return size
            where = f"/api/results/{result['task_id']}/files/{SCREENSHOT}"
            whole = "a result" if size > MAX_PICTURE_BYTES else "one answer"
            problem = f"{size:,} bytes are too many for {whole}; it is at {where}"
        except StoreError as error:
            problem = str(error)
        result.setdefault(ERRORS, {})[SCREENSHOT] = problem
        return 0

    def _add_formats(
        self, formats: tuple[str, ...], asked: Sequence[Asked], results: list[dict[str, Any]]
    ) -> None:
        """Add formats to all successful results, in one call of the converter. The same URL twice
        is converted once."""
        urls = {
            row.task: result["metadata"]["final_url"]
            for row, result in zip(asked, results, strict=True)
            if row.task is not None and result["status"] == SUCCESS and "metadata" in result
        }
        problems: dict[int, str] = {}

        def read(task: int) -> PageToConvert:
            try:
                head, raw = self._read_page(task)
            except StoreError as error:
                problems[task] = str(error)
                return PageToConvert("", b"", "", ())
            main = self._batch.shown["only_main_content"]
            return PageToConvert(head, raw, urls[task], formats, main)

        converted = dict(zip(urls, self._converter.convert(map(read, urls)), strict=True))
        for task, problem in problems.items():
            converted[task] = {ERRORS: dict.fromkeys(formats, problem)}
        for row, result in zip(asked, results, strict=True):
            if row.task in converted:
                result.update(converted[row.task])

    def _read_page(self, task: int) -> tuple[str, bytes]:
        """Return head and body of the page of a result; `StoreError` says why there is none."""
        if page := self._lpm.pages.of_result(task):
            return page
        gone = self._lpm.pages.why_gone(task)
        raise StoreError(f"the page {gone or 'was not stored (CRAWLER_RAW=all stores pages)'}")

    def _result(
        self, row: Asked, outcomes: dict[int, TaskOutcome], stored: dict[int, dict[str, Any]]
    ) -> dict[str, Any]:
        session = {"session_id": self._batch.session_id}
        if row.task is None:
            reason = {"reason": INVALID_URL, "error": row.reason, "task_id": None}
            return {"status": FAILED, "url": row.url, **session, "worker_id": None,
                    "crawled_at": None, **reason}  # fmt: skip
        outcome = outcomes.get(row.task) or _REMOVED
        about = {
            "status": _status(outcome),
            "url": outcome.url,
            **session,
            "worker_id": outcome.worker,
            "crawled_at": outcome.completed_at and iso(outcome.completed_at),
            "task_id": outcome.task_id,
            "state": outcome.status,
            "attempts": outcome.attempts,
        }
        result = stored.get(row.task)
        if result is None:
            error = outcome.error_message or "it is not done yet"
            return about | {"reason": outcome.error_type, "error": error}
        record = result["data"]
        metadata = {
            "final_url": result["final_url"],
            "status_code": result["status_code"],
            "content_type": outcome.content_type,
            "bytes": outcome.bytes,
            "fetch_ms": outcome.fetch_ms,
            "verdict": result["verdict"],
            "site": result["site"],
            "parser": result["parser"],
            "raw_html_hash": result["raw_html_hash"],
        }
        shown: dict[str, Any] = {"title": _title(record), "metadata": metadata}
        if "record" in self._batch.shown["formats"]:
            shown["data"] = record
        if invalid := result.get("invalid"):
            shown["invalid"] = invalid
        return about | shown


_REMOVED = TaskOutcome(
    task_id="", url="", status=TaskStatus.FAILED, attempts=0, error_type="removed",
    error_message="its job was removed from the store", completed_at=None, bytes=None,
    content_type=None, fetch_ms=None, worker=None,
)  # fmt: skip
"""Of a task that `prune` has removed since it ended."""


def _status(outcome: TaskOutcome) -> str:
    if outcome.status == TaskStatus.COMPLETED:
        return SUCCESS
    is_open = outcome.status in (TaskStatus.PENDING, TaskStatus.PROCESSING)
    return PENDING if is_open else FAILED


def _title(record: dict[str, Any]) -> str | None:
    title = record.get("title")
    return title if isinstance(title, str) else None


def statistics(results: Sequence[dict[str, Any]], seconds: float) -> Statistics:
    """Sum up the results of a call."""
    states = Counter(result["status"] for result in results)
    reasons = Counter(
        result["reason"] or "unknown" for result in results if result["status"] == FAILED
    )
    return Statistics(
        total=len(results),
        success=states[SUCCESS],
        failed=states[FAILED],
        reasons=dict(reasons),
        workers_used=len({result["worker_id"] for result in results} - {None}),
        bytes=sum(result.get("metadata", {}).get("bytes") or 0 for result in results),
        seconds=round(seconds, 3),
    )
