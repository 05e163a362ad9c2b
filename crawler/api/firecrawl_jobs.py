"""The jobs of Firecrawl's v2 dialect: sessions of the ledger, and their pages as documents.

Nothing of a job is kept in memory. Its id has the hash of what was asked for and when, so that a
request which comes again finds its job, also after the server was killed.
"""

import json
import re
import threading
import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal, NamedTuple

from crawler import urls
from crawler.api import site_crawls
from crawler.api.firecrawl_options import (
    BatchBody,
    CrawlBody,
    Request,
    ScrapeBody,
    Understood,
)
from crawler.api.service import Service
from crawler.api.tokens import Client
from crawler.batches import FAILED, SUCCESS, shown
from crawler.db import owners
from crawler.db.batches import Batch
from crawler.db.results import iso
from crawler.errors import CrawlerError, UrlError, UsageError
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job, TaskStatus
from crawler.scraping.scope import ending

REPEAT_S = 30
"""How long after the end of a job an equal request without a key is the same job."""
MIN_RETRY_S, MAX_RETRY_S = 5.0, 600.0
"""How long a client waits before it asks again for a page."""
PAGE_DOCUMENTS, PAGE_BYTES = 100, 10_000_000
"""How much one page of documents has, about."""
CHUNK = 25
"""Results that are read at a time."""
ROBOTS, NO_ADDRESS = "robots", "dns"
OPEN = (TaskStatus.PENDING, TaskStatus.PROCESSING)
Kind = Literal["scrape", "batch", "crawl"]

_BASE64_IMAGE = re.compile(r"\(data:image/[^()\s]*\)")
_OPEN_GRAPH = {
    "og:title": "ogTitle",
    "og:description": "ogDescription",
    "og:url": "ogUrl",
    "og:image": "ogImage",
    "og:audio": "ogAudio",
    "og:video": "ogVideo",
    "og:locale": "ogLocale",
    "og:site_name": "ogSiteName",
}
_HTTP_REASON = re.compile(r"http_([1-5]\d\d)")


class NoJob(CrawlerError):
    """A job that is not there, or belongs to another client."""


class Conflict(CrawlerError):
    """A request contradicts what is there."""


class Forbidden(CrawlerError):
    """Something that a client may not have, such as an address of a private network."""


class Documents(NamedTuple):
    """Some documents of a job, in the order in which they were collected."""

    data: list[dict[str, Any]]
    failed: list[dict[str, Any]]
    """Pages that were not collected, as documents with an error."""
    cursor: int
    """What comes next is behind it."""
    is_last: bool
    is_complete: bool
    """Whether nothing more will come."""


class Begun(NamedTuple):
    """A job that is in the ledger."""

    batch: Batch
    warning: str


class Jobs:
    """Begins and reads the jobs of clients. Its methods may be called from any thread."""

    def __init__(self, service: Service, locks: Sequence[threading.Lock]) -> None:
        """`locks` let one of equal requests at a time look for its job and begin it."""
        self._service, self._locks = service, locks
        self._settings, self._backend = service.settings, service.backend

    @property
    def _lpm(self) -> LocalPersistenceManager:
        return self._backend.lpm

    # Beginning

    def scrape(self, client: Client, body: ScrapeBody, how: Understood) -> Batch:
        """Begin to fetch a page, or find the request that came before."""
        self.check(body.url)
        with self._lock_of(_digest("scrape", body)):
            id_, found = self._find_call(client.name, "scrape", body, "")
            return found or self._submit(client, id_, "scrape", [body.url], body, how)

    def batch(self, client: Client, body: BatchBody, how: Understood, key: str) -> Begun:
        """Begin to fetch pages, or find the request that came before."""
        invalid = invalid_urls(body.urls)
        if invalid and (len(invalid) == len(body.urls) or not body.ignore_invalid_urls):
            raise UsageError(f"urls: {_why_invalid(invalid[0])}")
        objections = [
            self._service.intake.objection(url) for url in set(body.urls).difference(invalid)
        ]
        if all(objections):
            raise Forbidden(objections[0])
        if body.append_to_id is not None:
            before = self.find(client.name, "batch", body.append_to_id)
            if before is None:
                raise NoJob(f"there is no job {body.append_to_id}")
            if before.job.hold == "cancelled":
                raise Conflict(f"the job {body.append_to_id} was cancelled: begin another one")
            id_ = body.append_to_id
            return Begun(self._submit(client, id_, "batch", body.urls, body, how), how.warning)
        with self._lock_of(key or _digest("batch", body)):
            id_, found = self._find_call(client.name, "batch", body, key)
            found = found or self._submit(client, id_, "batch", body.urls, body, how)
        return Begun(found, how.warning)

    def crawl(self, client: Client, body: CrawlBody, how: Understood, key: str) -> Begun:
        """Begin to crawl a site, or find the request that came before."""
        address = self.check(body.url)
        if body.allow_subdomains and (problem := owners_below(address)):
            raise UsageError(f"allowSubdomains: {problem}")
        with self._lock_of(key or _digest("crawl", body)):
            id_, found = self._find_call(client.name, "crawl", body, key)
            if found is None:
                self._begin_crawl(client, id_, address, body, how)
                found = self._existing(client.name, id_)
        return Begun(found, how.warning)

    def _begin_crawl(
        self, client: Client, id_: str, address: urls.Address, body: CrawlBody, how: Understood
    ) -> None:
        scope = {
            "subdomains": body.allow_subdomains,
            "depth": body.max_discovery_depth,
            "include": tuple(body.include_paths or ()),
            "exclude": tuple(body.exclude_paths or ()),
            "on_path": not body.regex_on_full_url,
            "below": "" if body.crawl_entire_domain else _folder(address.url),
            "limit": body.limit,
            "sitemap": body.sitemap,
        }
        distributed = self._service.has_workers(how.options.of_job.needs)
        notes = self._notes("crawl", body, how, [body.url]) | shown(how.options)
        notes["url"] = urls.without_credentials(body.url)
        with self._service.intake.room(client, id_, body.limit):
            site_crawls.begin(
                self._settings,
                client.name,
                id_,
                body.url,
                how.options.of_job,
                scope,
                delay_s=body.delay or 0.0,
                headers=how.options.headers,
                notes=notes,
                direct=not distributed,
            )
        if distributed:
            from crawler.coordinator import publish

            publish(self._settings, self._lpm)

    def _submit(
        self,
        client: Client,
        id_: str,
        kind: Kind,
        given: Sequence[str],
        body: Request,
        how: Understood,
    ) -> Batch:
        notes = self._notes(kind, body, how, given)

        def keep(lpm: LocalPersistenceManager, job: Job) -> None:
            lpm.batches.keep_notes(job, notes)

        distributed = self._service.has_workers(how.options.of_job.needs)
        with self._service.intake.room(client, id_, len(given)):
            self._backend.accept(client.name, id_, given, how.options, distributed, keep)
        return self._existing(client.name, id_)

    def _notes(
        self, kind: Kind, body: Request, how: Understood, given: Sequence[str]
    ) -> dict[str, Any]:
        is_changed = how.options.headers or how.options.of_job.browser
        is_plain = not is_changed and not any(map(urls.credentials, given))
        return {"v2": kind, "request": _digest(kind, body), "is_plain": is_plain, **how.notes}

    def _lock_of(self, text: str) -> threading.Lock:
        return self._locks[hash(text) % len(self._locks)]

    def _find_call(
        self, client: str, kind: Kind, body: Request, key: str
    ) -> tuple[str, Batch | None]:
        """Return the id for a request, and its job if it came before."""
        digest = _digest(kind, body)
        if key:
            id_ = _job_id(sha256(f"{kind} {key}".encode()).hexdigest(), 0)
            found = self._lpm.batches.find(client, id_)
            if found and found.shown.get("request") != digest:
                raise Conflict("this x-idempotency-key came with another request before")
            return id_, found
        now = time.time()
        id_ = _job_id(digest, int(now / REPEAT_S))
        newest = self._lpm.batches.newest(client, id_[:-12])
        if newest and newest.shown.get("request") == digest and _is_recent(newest, now):
            return newest.session_id, newest
        return id_, None

    def _existing(self, client: str, id_: str) -> Batch:
        batch = self._lpm.batches.find(client, id_)
        assert batch is not None
        return batch

    def check(self, url: str) -> urls.Address:
        """Return the address of a URL; raises what a client is told."""
        try:
            address = urls.parse(url)
        except UrlError as error:
            raise UsageError(f"url: {error}") from None
        if problem := self._service.intake.objection(url):
            raise Forbidden(problem)
        return address

    # Reading

    def find(self, client: str, kind: Kind, id_: str) -> Batch | None:
        """The job of a client."""
        batch = self._lpm.batches.find(client, id_)
        return batch if batch and batch.shown.get("v2") == kind else None

    def status(self, batch: Batch) -> dict[str, Any]:
        """How far a job is, in the words of the dialect."""
        total, completed = self._lpm.batches.page_counts(batch.job)
        answer: dict[str, Any] = {
            "success": True,
            "status": _status(batch.job),
            "total": total,
            "completed": completed,
            "creditsUsed": completed,
            "expiresAt": None,
        }
        if batch.shown["warning"]:
            answer["warning"] = batch.shown["warning"]
        return answer

    def documents(self, batch: Batch, cursor: int, skip: int = 0) -> Documents:
        """The documents behind a cursor, without the first ones of them."""
        data: list[dict[str, Any]] = []
        failed: list[dict[str, Any]] = []
        size = 0
        while True:
            page = self._backend.results(batch.client, batch.session_id, cursor, CHUNK)
            if page is None:  # it was removed meanwhile
                return Documents(data, failed, cursor, True, True)
            cursor = page.cursor
            for result in page.results:
                if result["status"] == FAILED and result["task_id"] and _is_told(result):
                    failed.append(failed_document(result))
                elif result["status"] == SUCCESS and skip:
                    skip -= 1
                elif result["status"] == SUCCESS:
                    data.append(document(result, batch.shown))
                    size += sum(len(v) for v in data[-1].values() if isinstance(v, str))
            if page.is_last or len(data) >= PAGE_DOCUMENTS or size >= PAGE_BYTES:
                return Documents(data, failed, cursor, page.is_last, page.is_complete)

    def page(self, batch: Batch) -> dict[str, Any] | None:
        """The result of a scrape; None while it is not there.

        A host without an address is told at once, though it would be tried again later.
        """
        tasks = [row.task for row in self._lpm.batches.asked(batch.job, 0) if row.task is not None]
        outcomes = self._lpm.batches.outcomes(tasks)
        for task, outcome in outcomes.items():
            if outcome.status not in OPEN or outcome.error_type == NO_ADDRESS:
                return self._backend.results_of_tasks(batch, [task])[0]
        return None

    def stored_page(self, client: str, body: ScrapeBody, how: Understood) -> dict[str, Any] | None:
        """A page that this client has collected within its `maxAge`; None if it is to be
        fetched."""
        is_changed = how.options.headers or how.options.of_job.browser
        if not body.max_age or is_changed or urls.credentials(body.url):
            return None
        address = self.check(body.url)
        since = time.time() - body.max_age / 1000
        found = self._lpm.batches.newest_page(client, address.key, since)
        batch = self._lpm.batches.find(client, found[0]) if found else None
        if found is None or batch is None:
            return None
        notes = how.notes | shown(how.options)
        [result] = self._backend.results_of_tasks(batch._replace(shown=notes), [found[1]])
        if result["status"] != SUCCESS:
            return None
        made = document(result, notes, body.url)
        made["metadata"] |= {"cacheState": "hit", "cachedAt": result["crawled_at"]}
        return made

    def errors(self, batch: Batch) -> dict[str, Any]:
        """The pages of a job that were not collected."""
        failures = self._lpm.batches.failures(batch.job)
        invalid = self._lpm.batches.rejected(batch.job)
        told = [
            {
                "id": each.task_id,
                "timestamp": each.completed_at and iso(each.completed_at),
                "url": each.url,
                "code": each.reason,
                "error": each.message or each.reason or "unknown",
            }
            for each in failures
            if each.reason != ROBOTS
        ]
        told += [
            {
                "id": f"invalid-{number}",
                "timestamp": iso(batch.job.created_at),
                "url": row.url,
                "code": "invalid_url",
                "error": row.reason,
            }
            for number, row in enumerate(invalid, 1)
        ]
        blocked = [each.url for each in failures if each.reason == ROBOTS]
        return {"success": True, "errors": told, "robotsBlocked": blocked}

    def cancel(self, batch: Batch) -> bool:
        """Cancel a job; False if it is done."""
        if batch.job.hold != "cancelled" and batch.job.status == "done":
            return False
        self._backend.cancel(batch.client, batch.session_id)
        return True

    def active(self, client: str) -> list[Batch]:
        """The crawls of a client that go on."""
        return [
            batch
            for batch in self._lpm.batches.open_sessions(client)
            if batch.shown.get("v2") == "crawl" and batch.job.hold != "cancelled"
        ]

    def wait_s(self, batch: Batch) -> float:
        """How long a page will wait at least, as far as that is known; a client that comes again
        within that time finds this job."""
        from crawler.waits import WaitFinder

        lpm, now = self._lpm, time.time()
        waits = WaitFinder(self._settings, lpm).find(batch.job, lpm.counts.progress(batch.job))
        known = [wait.until - now for wait in waits if wait.until]
        known += [at - now for at in lpm.batches.next_attempts(batch.job)]
        tasks = {row.task for row in lpm.batches.asked(batch.job, 0)}
        for note in owners.living(lpm.owners):
            # A request that waits for its permit has the negative time at which it gets it.
            turns = [-at for task, at in note.requests.items() if task in tasks and at < 0]
            known += [at - time.monotonic() for at in turns]
        wait_s = min(MAX_RETRY_S, max([MIN_RETRY_S, *known]))
        lpm.batches.keep_until(batch, now + wait_s + REPEAT_S)
        return wait_s

    def last_problem(self, batch: Batch) -> str:
        """Why the last attempt of a scrape has failed, if there was one."""
        tasks = [row.task for row in self._lpm.batches.asked(batch.job, 0) if row.task is not None]
        found = self._lpm.batches.outcomes(tasks).values()
        return next((each.error_message or "" for each in found), "")


# Ids


def _digest(kind: str, body: Request) -> str:
    given = body.model_dump(by_alias=True, exclude_unset=True)
    return sha256(f"{kind} {json.dumps(given, sort_keys=True)}".encode()).hexdigest()


def _job_id(digest: str, number: int) -> str:
    """Return a UUID (version 8) of what is asked for and the number of a period."""
    d = digest
    return f"{d[:8]}-{d[8:12]}-8{d[12:15]}-8{d[15:18]}-{number & 0xFFFF_FFFF_FFFF:012x}"


def _is_recent(batch: Batch, now: float) -> bool:
    """Whether an equal request means this job."""
    job = batch.job
    if job.hold == "cancelled":
        return False
    if job.status != "done" or job.completed_at is None:
        return True
    until: float = batch.shown.get("until", 0.0)
    return abs(now - job.completed_at) < REPEAT_S or now < until


# URLs


def invalid_urls(given: Sequence[str]) -> list[str]:
    """Return those that are no URLs."""
    return [url for url in given if _why_invalid(url)]


def _why_invalid(url: str) -> str:
    try:
        urls.parse(url)
    except UrlError as error:
        return str(error)
    return ""


def owners_below(address: urls.Address) -> str:
    """Say why the hosts below that of a URL are no part of its site, if they are not."""
    host = urls.split(address.url)[2].removeprefix("www.")
    if urls.is_public_suffix(host):
        return f"the hosts below {host} belong to different owners"
    return ""


def _folder(url: str) -> str:
    """Return the path that a crawl stays below: that of its start, or the folder of its file."""
    path = "/" + urls.split(url)[4].partition("?")[0]
    return path.rpartition("/")[0] + "/" if ending(path) else path


# Documents


def _status(job: Job) -> str:
    if job.hold == "cancelled":
        return "cancelled"
    return "completed" if job.status == "done" else "scraping"


def _is_told(result: Mapping[str, Any]) -> bool:
    """Whether a page that was not collected is a failure, and not a way to another page."""
    ways = ("redirected", "sitemap", "no_sitemap", "no_robots_txt", "read_again", "out_of_scope")
    return result["reason"] not in (*ways, "login_page", "login_wall", "cancelled")


def document(
    result: Mapping[str, Any], notes: Mapping[str, Any], url: str | None = None
) -> dict[str, Any]:
    """Return a collected page as a document; `url` is as the client has written it."""
    made: dict[str, Any] = {}
    for name in notes["v2_formats"]:
        value = result.get("html" if name == "rawHtml" else name.removesuffix("@fullPage"))
        if value is not None:
            made[name.removesuffix("@fullPage")] = value
    if "markdown" in made and not notes["keeps_images"]:
        made["markdown"] = _BASE64_IMAGE.sub("(<Base64-Image-Removed>)", made["markdown"])
    problems = [f"{name}: {why}" for name, why in result.get("format_errors", {}).items()]
    if warning := "; ".join(filter(None, (notes["warning"], *problems))):
        made["warning"] = warning
    about, record = result["metadata"], result.get("data") or {}
    made["metadata"] = {
        **_of_record(record),
        "title": result["title"],
        "sourceURL": url or result["url"],
        "url": about["final_url"],
        "statusCode": about["status_code"],
        "contentType": about["content_type"],
        "scrapeId": result["task_id"],
        "scrapedAt": result["crawled_at"],
        "cacheState": "miss",
        "creditsUsed": 1,
    }
    return made


def _of_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a page says of itself, as far as its record has it."""
    found = {
        name: record[name]
        for name in ("description", "language", "canonical")
        if isinstance(record.get(name), str)
    }
    graph = record.get("opengraph")
    if isinstance(graph, dict):
        known = {_OPEN_GRAPH[name]: value for name, value in graph.items() if name in _OPEN_GRAPH}
        found |= {name: value for name, value in known.items() if isinstance(value, str)}
    return found


def failed_document(result: Mapping[str, Any], url: str | None = None) -> dict[str, Any]:
    """Return a page that was not collected as a document without content."""
    reason = result["reason"] or "unknown"
    about = {
        "sourceURL": url or result["url"],
        "url": result["url"],
        "error": result["error"],
        "errorCode": reason,
        "scrapeId": result["task_id"],
    }
    if status := http_status(reason):
        about["statusCode"] = status
    return {"metadata": about}


def http_status(reason: str) -> int | None:
    """Return the status of a server that answered with an error page."""
    match = _HTTP_REASON.fullmatch(reason)
    return int(match[1]) if match else None
