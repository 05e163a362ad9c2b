"""The routes of the API: batches and their sessions, results, and what the ledger knows."""

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Depends, Header, Path, Query, Request
from fastapi.security import HTTPBearer
from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
from starlette.responses import Response, StreamingResponse

from crawler import urls
from crawler.api import bodies
from crawler.api.auth import CurrentClient
from crawler.api.backend import SessionState
from crawler.api.errors import ApiError, Json
from crawler.api.intake import Accepted, NewCall
from crawler.api.service import Service, service_of
from crawler.api.tokens import Client
from crawler.batches import Statistics, statistics
from crawler.db.batches import Asked, Batch
from crawler.errors import StoreError, UrlError, UsageError
from crawler.fetch.browser_process import lacking
from crawler.models import BROWSER, Job, JobStatus

MAX_RESULTS = 1000
RESULTS_PER_READ = 50
"""Results that are in memory at a time while an answer is written."""
MAX_PAGE = 1 << 30
MAX_JOBS = 1000
_TASK_ID = re.compile(r"[0-9a-f]{32}")
_WORSE: dict[int | str, dict[str, Any]] = {
    status: {"model": bodies.Problem, "description": what}
    for status, what in {
        400: "The request cannot be used",
        401: "A token is needed",
        403: "This token, address, host or origin may not",
        404: "There is no such session, task or URL",
        422: "The body or a parameter is not as described",
        429: "Too much at a time; try again later",
        503: "Redis, the store or a browser is not there; nothing was accepted",
    }.items()
}
_OF_BODIES = _WORSE | {
    status: {"model": bodies.Problem, "description": what}
    for status, what in {
        408: "The body took too long",
        409: "The key came with another body, or the session was cancelled",
        413: "More than 10 MB, or more than 10,000 URLs",
    }.items()
}
_NO_JOB = Job(
    id=0, name="", status=JobStatus.DONE, queue="", source_file=None, created_at=0.0,
    completed_at=None,
)  # fmt: skip
"""What tasks of single calls are shown as part of."""
_CAPTURES = ("image/png", "application/pdf")
_AS_RECORD = {"formats": ("record",)}
_BEARER = HTTPBearer(auto_error=False, description="A token of `serve token add`")

router = APIRouter(responses=_WORSE, dependencies=[Depends(_BEARER)])
"""All routes but those of `monitors` need a token, once there is one."""
monitors = APIRouter()

SessionId = Annotated[str, Path(max_length=100, examples=["research-1"])]
TaskId = Annotated[str, Path(max_length=100, examples=["0123456789abcdef0123456789abcdef"])]
Cursor = Annotated[
    int, Query(ge=-(2**53), le=2**53, description="What comes next is behind this `seq`.")
]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern="^[!-~]+$",
        description="The same key again is the same crawl, also after a restart.",
    ),
]


def links(session_id: str) -> dict[str, str]:
    """Where a session is followed."""
    here = f"/api/crawl/{quote(session_id, safe='')}"
    return {
        "self": here,
        "stream": f"{here}/stream",
        "events": f"{here}/events",
        "results": f"{here}/results.ndjson",
    }


def shown(state: SessionState) -> dict[str, Any]:
    """A session as clients see it."""
    found: dict[str, Any] = msgspec.to_builtins(state)
    return found | {"links": links(state.session_id)}


def no_session(session_id: str) -> ApiError:
    """The error for a session that is not there, or not this client's."""
    return ApiError(404, "not_found", f"there is no session {session_id[:100]!r}")


# Batches


@router.post(
    "/api/crawl/batch",
    summary="Crawl a list of URLs",
    responses=_OF_BODIES
    | {
        200: {"model": bodies.BatchAnswer, "description": "All results, in the order asked"},
        202: {
            "model": bodies.BatchAnswer | bodies.Session,
            "description": "Accepted. With `wait`, what was there after `timeout`",
        },
    },
)
async def batch(
    request: Request, body: bodies.BatchRequest, client: CurrentClient, key: Key = None
) -> Response:
    """Store URLs in the ledger, and wait for their results, or answer 202 at once.

    The same `session_id` or `Idempotency-Key` twice is one crawl. Closing the connection does not
    end the crawl.
    """
    call = NewCall(
        urls=body.urls,
        options=body.options.as_batch_options(),
        session_id=body.session_id,
        distributed=body.distributed,
        key=key,
        webhook=body.webhook.as_new() if body.webhook else None,
        digest=_digest(body),
    )
    service = service_of(request)
    if not body.urls:
        return _nothing(body.session_id)
    began = time.monotonic()
    if not body.wait:
        accepted = await run_in_threadpool(service.intake.accept, client, call)
        state = await run_in_threadpool(_state, service, client, accepted.session_id)
        return Json(shown(state), 202)
    with service.waits.taken(client.name):
        if body.distributed:
            await run_in_threadpool(service.check_redis)
        accepted = await run_in_threadpool(service.intake.accept, client, call)
        is_done = await _done(request, service, accepted, began + body.timeout)
    answer = _BatchAnswer(service, client, accepted, is_done, began)
    return StreamingResponse(
        iterate_in_threadpool(answer.pieces()),
        200 if is_done else 202,
        media_type="application/json",
    )


def _digest(body: bodies.BatchRequest | bodies.ScrapeRequest) -> str:
    """Hash of what is asked for. How long to wait for it is no part of that."""
    asked = body.model_dump(exclude={"timeout": True, "wait": True, "webhook": {"secret"}})
    return sha256(msgspec.json.encode(asked, order="sorted")).hexdigest()


def _nothing(session_id: str | None) -> Json:
    """The answer for an empty list: nothing is stored."""
    numbers = statistics((), 0.0)
    return Json(
        {
            "session_id": session_id or "",
            "status": "done",
            "links": {},
            "results": [],
            "statistics": numbers,
        }
    )


async def _done(request: Request, service: Service, accepted: Accepted, end: float) -> bool:
    """Wait until all URLs of a call have ended; False if time or the client's patience is over."""
    pause_s = 0.02 + len(accepted.asked) / 50_000  # a look at 10,000 tasks takes some ms
    while True:
        seen = service.changes.version
        if not await run_in_threadpool(service.backend.is_open, accepted.asked):
            return True
        left_s = end - time.monotonic()
        if left_s <= 0 or service.changes.is_stopping or await request.is_disconnected():
            return False
        await service.changes.wait(seen, min(left_s, 1.0))
        await asyncio.sleep(min(pause_s, max(left_s, 0.0)))


class _BatchAnswer:
    """The answer with all results of a call, some of them in memory at a time."""

    def __init__(
        self, service: Service, client: Client, accepted: Accepted, is_done: bool, began: float
    ) -> None:
        self._service, self._client, self._accepted = service, client, accepted
        self._is_done, self._began = is_done, began

    def pieces(self) -> Iterator[bytes]:
        """The answer, piece by piece."""
        session_id, asked = self._accepted.session_id, self._accepted.asked
        status = "done" if self._is_done else "pending"
        head = {"session_id": session_id, "status": status, "links": links(session_id)}
        yield msgspec.json.encode(head)[:-1] + b',"results":['
        briefs: list[dict[str, Any]] = []
        for at in range(0, len(asked), RESULTS_PER_READ):
            found = self._read(asked[at : at + RESULTS_PER_READ])
            briefs += [_brief(result) for result in found]
            yield b"," * (at > 0) + b",".join(map(msgspec.json.encode, found))
        numbers: Statistics = statistics(briefs, time.monotonic() - self._began)
        yield b'],"statistics":' + msgspec.json.encode(numbers) + b"}"

    def _read(self, asked: Sequence[Asked]) -> list[dict[str, Any]]:
        return self._service.backend.results_of(self._client.name, self._accepted.session_id, asked)


def _brief(result: dict[str, Any]) -> dict[str, Any]:
    """What the statistics need of a result."""
    return {
        "status": result["status"],
        "reason": result.get("reason"),
        "worker_id": result["worker_id"],
        "metadata": {"bytes": result.get("metadata", {}).get("bytes")},
    }


def _state(service: Service, client: Client, session_id: str) -> SessionState:
    state = service.backend.progress(client.name, session_id)
    if state is None:
        raise no_session(session_id)
    return state


@router.post(
    "/api/scrape",
    summary="Fetch one URL now",
    responses=_OF_BODIES
    | {
        200: {"model": bodies.Result, "description": "Its result, `success` or `failed`"},
        202: {"model": bodies.Result, "description": "It is not done yet; its session goes on"},
    },
)
async def scrape(
    request: Request, body: bodies.ScrapeRequest, client: CurrentClient, key: Key = None
) -> Response:
    """Fetch a URL, whether it was collected before or not. Workers do it if a stack is up."""
    try:
        urls.normalize(body.url)
    except UrlError as error:
        raise ApiError(400, "bad_url", f"url: {error}") from None
    service = service_of(request)
    options = body.options.as_batch_options()
    needs = options.of_job.needs
    if needs == BROWSER and not await run_in_threadpool(service.has_browser):
        lack = lacking(service.settings.browser_path)
        raise ApiError(
            503, "no_browser", f"the page needs a browser, and no worker has one; {lack}"
        )
    distributed = await run_in_threadpool(service.has_workers, needs)
    if distributed:
        options = msgspec.structs.replace(options, queue="urgent", priority=1)
    call = NewCall(
        urls=[body.url], options=options, distributed=distributed, key=key, digest=_digest(body)
    )
    end = time.monotonic() + body.timeout
    with service.waits.taken(client.name):
        accepted = await run_in_threadpool(service.intake.accept, client, call)
        is_done = await _done(request, service, accepted, end)
    [result] = await run_in_threadpool(
        service.backend.results_of, client.name, accepted.session_id, accepted.asked
    )
    return Json(result, 200 if is_done else 202)


# Sessions


@router.get(
    "/api/crawl/distributed/status",
    summary="Whether workers are there",
    responses={200: {"model": bodies.DistributedStatus}},
)
def distributed_status(request: Request, client: CurrentClient) -> Response:
    """Say whether workers would fetch a batch with `distributed`."""
    return Json(service_of(request).distributed_status())


@router.get(
    "/api/crawl/{session_id}",
    summary="How far a session is, and its results",
    responses={200: {"model": bodies.SessionPage}},
)
def session(
    request: Request,
    session_id: SessionId,
    client: CurrentClient,
    cursor: Cursor = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_RESULTS)] = 100,
) -> Response:
    """Give the books of a session and the results behind `cursor`, in the order of their commits.

    Ask again with the answer's `cursor` for the next ones; `is_complete` says that none will come.
    """
    service = service_of(request)
    page = service.backend.results(client.name, session_id, cursor, limit)
    state = service.backend.progress(client.name, session_id)
    if page is None or state is None:
        raise no_session(session_id)
    return Json(shown(state) | msgspec.structs.asdict(page))


@router.delete(
    "/api/crawl/{session_id}",
    summary="Cancel a session",
    responses={200: {"model": bodies.Session}},
)
def cancel(request: Request, session_id: SessionId, client: CurrentClient) -> Response:
    """Skip what has not begun. What was collected stays."""
    service = service_of(request)
    current = _state(service, client, session_id)
    if current.status == "done":
        return Json(shown(current))  # there is nothing to cancel
    state = service.backend.cancel(client.name, session_id)
    if state is None:
        raise no_session(session_id)
    return Json(shown(state))


# Results


@router.get(
    "/api/results/{task_id}",
    summary="The result of one task",
    responses={200: {"model": bodies.Result}},
)
def result(request: Request, task_id: TaskId, client: CurrentClient) -> Response:
    """Give the result of a task, or how it stands."""
    service = service_of(request)
    task, owner = _task(service, client, task_id)
    return Json(service.backend.reader(owner).of_tasks([task])[0])


@router.get(
    "/api/results/{task_id}/page",
    summary="The stored page of one task",
    responses={
        200: {"content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}},
    },
    response_class=Response,
)
def page(request: Request, task_id: TaskId, client: CurrentClient) -> Response:
    """Give a page as its server sent it, decompressed. Browsers save it and do not run it."""
    from crawler.fetch.body import decode_stored

    service = service_of(request)
    task, _ = _task(service, client, task_id)
    lpm = service.backend.lpm
    stored = lpm.pages.read(task)
    if stored is None:
        why = lpm.pages.why_gone(task) or "was not stored"
        raise ApiError(404, "no_page", f"the page of {task_id} {why}")
    kind = lpm.batches.outcomes([task])[task].content_type or "application/octet-stream"
    return Response(
        decode_stored(*stored, limit=MAX_PAGE),
        media_type=kind if kind.isascii() and kind.isprintable() else "application/octet-stream",
        headers=_attached(task_id),
    )


@router.get(
    "/api/results/{task_id}/files/{name}",
    summary="The screenshot or the PDF of one task",
    responses={
        200: {"content": {kind: {} for kind in _CAPTURES}},
    },
    response_class=Response,
)
def file(
    request: Request,
    task_id: TaskId,
    name: Literal["screenshot", "pdf"],
    client: CurrentClient,
) -> Response:
    """Give what a browser has made of a page: `formats: ["screenshot"]` or `browser: {pdf: true}`
    ask for it."""
    service = service_of(request)
    task, owner = _task(service, client, task_id)
    try:
        kind, body = service.backend.reader(owner).capture(task, name)
    except StoreError as error:
        raise ApiError(404, "no_file", str(error)) from None
    if kind not in _CAPTURES:  # a bundle of somebody else says so
        kind = "application/octet-stream"
    return Response(body, media_type=kind, headers=_attached(f"{task_id}.{name}"))


def _attached(name: str) -> dict[str, str]:
    """Headers for what somebody else has made: it must not act as a page of this server."""
    return {
        "Content-Disposition": f'attachment; filename="{name}"',
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "X-Content-Type-Options": "nosniff",
    }


def _task(service: Service, client: Client, task_id: str) -> tuple[int, Batch]:
    """A task of this client, and the session that it is shown as part of."""
    lpm = service.backend.lpm
    if _TASK_ID.fullmatch(task_id) and lpm.tasks.is_known(task_id):
        [task] = lpm.tasks.find(task_id)
        if owner := _owner(service, client, task):
            return task, owner
    raise ApiError(404, "not_found", f"there is no task {task_id[:100]!r}")


def _owner(service: Service, client: Client, task: int) -> Batch | None:
    """The session of a task, if this client may see it."""
    lpm = service.backend.lpm
    owner = lpm.batches.of_task(task)
    if owner and (client.sees_all or owner.client == client.name):
        return owner
    if owner or not client.sees_all:
        return None
    name = lpm.timeline.task(task)["job"]
    return Batch(lpm.jobs.named(name) if name else _NO_JOB, "", name or "", _AS_RECORD)


# The ledger


@router.get("/api/jobs", summary="Jobs and their books", responses={200: {"model": bodies.Jobs}})
def jobs(
    request: Request,
    client: CurrentClient,
    limit: Annotated[int, Query(ge=1, le=MAX_JOBS)] = 100,
) -> Response:
    """List jobs, the newest first: all for the operator, those of its sessions for a token."""
    lpm = service_of(request).backend.lpm
    if client.sees_all:
        found = lpm.jobs.all()
    else:
        found = [batch.job for batch in lpm.batches.of_client(client.name)]
    found = found[::-1][:limit]
    return Json(
        {
            "jobs": [
                {
                    "name": job.name,
                    "status": str(job.status),
                    "hold": job.hold,
                    "queue": job.queue,
                    "created_at": job.created_at,
                    "completed_at": job.completed_at,
                    "books": {"accepted": books.accepted} | books.by_state,
                }
                for job, books in zip(found, lpm.counts.progress_of(found), strict=True)
            ]
        }
    )


@router.get(
    "/api/domains", summary="The state of domains", responses={200: {"model": bodies.Domains}}
)
def domains(request: Request, client: CurrentClient) -> Response:
    """Give limits, requests in flight, circuit and pauses of each domain, as workers share them.

    A token sees the domains of its own sessions.
    """
    service = service_of(request)
    found = service.domains()
    if not client.sees_all:
        own = service.backend.lpm.batches.domains_of_client(client.name)
        found = [each for each in found if each["domain"] in own]
    return Json({"domains": found})


@router.get(
    "/api/why",
    summary="What happened to a URL",
    responses={200: {"model": bodies.Histories}},
)
def why(
    request: Request,
    client: CurrentClient,
    url: Annotated[
        str,
        Query(
            min_length=1,
            max_length=urls.MAX_LENGTH,
            description="A URL, or the id of a task",
            examples=[bodies.EXAMPLE_URL],
        ),
    ],
) -> Response:
    """Give everything that happened to a URL, and what it waits for."""
    from crawler.history import timeline
    from crawler.waits import WaitFinder, without_command

    service = service_of(request)
    lpm = service.backend.lpm
    try:
        tasks = [task for task in lpm.tasks.find(url) if _owner(service, client, task)]
    except UsageError:
        tasks = []
    if not tasks:
        # The same words for a URL that only others have asked for.
        raise ApiError(404, "not_found", f"no task is known for {_shown_url(url)}")
    finder = WaitFinder(service.settings, lpm)
    found = [timeline(lpm, task, finder) for task in tasks[:MAX_RESULTS]]
    if not client.sees_all:
        found = [
            msgspec.structs.replace(each, waits=list(map(without_command, each.waits)))
            for each in found
        ]
    return Json({"tasks": msgspec.to_builtins(found)})


def _shown_url(text: str) -> str:
    return urls.without_credentials(text)[:200]


# Monitors


@monitors.get("/health", summary="Is it alive", responses={200: {"model": bodies.Health}})
async def health() -> Response:
    """Say that the server answers. No token is needed."""
    return Json({"status": "ok"})


@monitors.get(
    "/ready",
    summary="Can it work",
    responses={200: {"model": bodies.Health}, 503: {"model": bodies.Problem}},
)
def ready(request: Request) -> Response:
    """Say whether the store can be used and batches are looked after. No token is needed."""
    service = service_of(request)
    if not service.backend.is_watching:
        raise ApiError(503, "unavailable", "the server is starting or stopping")
    service.backend.lpm.store.data_version()
    return Json({"status": "ok"})
