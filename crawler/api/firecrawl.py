"""Firecrawl's v2 dialect: its official clients work here after a change of their base URL."""

import asyncio
import contextlib
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Header, Path, Query, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from crawler import urls
from crawler.api import site_crawls
from crawler.api.auth import CurrentClient
from crawler.api.errors import Json
from crawler.api.firecrawl_jobs import (
    ROBOTS,
    Conflict,
    Documents,
    Forbidden,
    Jobs,
    Kind,
    NoJob,
    document,
    failed_document,
    http_status,
    invalid_urls,
    owners_below,
)
from crawler.api.firecrawl_options import (
    MAP_S,
    MAX_PAGES,
    SCRAPE_S,
    BatchBody,
    CrawlBody,
    FirecrawlProblem,
    MapBody,
    ScrapeBody,
    understand,
)
from crawler.api.service import service_of
from crawler.batches import PENDING, SUCCESS
from crawler.db.batches import Batch
from crawler.errors import CrawlerError, ServiceError, SessionCancelled, StoreError, UsageError
from crawler.site_map import MapAnswer, MapRequest

PREFIX = "/v2"
MAX_MAPS = 4
"""Maps that are made at a time. Further ones wait."""
MAX_MAPS_PER_CLIENT = 2
"""Those of one client: no client takes all of them."""
LOCKS = 64
"""Equal requests that come at the same time share one of so many locks."""
LOOK_S = 0.05
"""How often a request that waits looks whether the ledger has changed."""
STREAM_S = 0.3
"""How often a WebSocket reads the ledger at most."""
_UNSUPPORTED = (
    "agent", "browser", "crawl/params-preview", "deep-research", "extract", "llmstxt", "monitor",
    "parse", "search",
)  # fmt: skip
"""What the dialect has and this server has not."""
_KINDS: tuple[tuple[str, Kind], ...] = (("crawl", "crawl"), ("batch/scrape", "batch"))
"""The paths of jobs, and their kinds."""
_CODES = {
    "dns": "SCRAPE_DNS_RESOLUTION_ERROR",
    "tls": "SCRAPE_SSL_ERROR",
    "timeout": "SCRAPE_TIMEOUT",
}
"""What the dialect calls failures, where it has a word for them."""
_STATUSES = {
    400: "An option is unknown, wrong or not supported.",
    401: "The token is missing or not known.",
    403: "The page may not be fetched, or the token may not do this.",
    404: "There is no such job.",
    408: "The page is not there yet; ask again.",
    409: "The job is done, or the key came with another request.",
    413: "The body is too large.",
    422: "The page could not be collected.",
    429: "Too much at a time.",
    503: "The store or a service cannot be used now.",
}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "model": FirecrawlProblem} for status, text in _STATUSES.items()
}

JobId = Annotated[str, Path(max_length=100)]
Key = Annotated[str, Header(alias="x-idempotency-key", max_length=200)]


def problem(
    status: int,
    error: str,
    code: str = "",
    details: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Json:
    """The answer for an error, as the dialect has it."""
    answer: dict[str, Any] = {"success": False, "error": _sendable(error)}
    if code:
        answer["code"] = code
    if details:
        answer["details"] = details
    return Json(answer, status, headers)


class FirecrawlRoute(APIRoute):
    """A route whose errors have the shape of the dialect."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """Return the handler that FastAPI makes, with other errors."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                return problem(400, _faults(error))
            except HTTPException as error:
                code = getattr(error, "code", "")
                return problem(error.status_code, str(error.detail), code, headers=error.headers)
            except CrawlerError as error:
                return _refusal(error)

        return answer


def _refusal(error: CrawlerError) -> Response:
    if isinstance(error, NoJob):
        return problem(404, str(error))
    if isinstance(error, (Conflict, SessionCancelled)):
        return problem(409, str(error))
    if isinstance(error, Forbidden):
        return problem(403, str(error), "forbidden")
    if isinstance(error, StoreError):  # its text names files of this machine
        return problem(503, "the store cannot be used; its operator sees why by `doctor`")
    if isinstance(error, ServiceError):
        return problem(503, str(error))
    if isinstance(error, UsageError):
        return problem(400, str(error))
    raise error


def _faults(error: RequestValidationError) -> str:
    """Name the first faults by their place, without repeating what was sent."""
    found: list[str] = []
    for each in error.errors():
        if each["type"] == "json_invalid":
            return "the body is not JSON"
        place = ".".join(str(part)[:60] for part in each["loc"][1:]) or str(each["loc"][0])
        if each["type"] == "extra_forbidden":
            found.append(f"{place}: there is no such option")
        else:
            found.append(f"{place}: {each['msg'][:200]}")
    return "; ".join(list(dict.fromkeys(found))[:3])


def _sendable(text: str) -> str:
    """Return a text without halves of characters, which no JSON may have."""
    return text.encode("utf-8", "replace").decode()


class KeyAsSubprotocol:
    """Lets a WebSocket show its key as a subprotocol: in JavaScript it can send no header."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a connection on, with the header that all others have."""
        if scope["type"] == "websocket" and scope["path"].startswith(f"{PREFIX}/"):
            names = {name for name, _ in scope["headers"]}
            if scope["subprotocols"] and b"authorization" not in names:
                key = f"Bearer {scope['subprotocols'][0]}".encode("latin-1", "replace")
                scope = {**scope, "headers": [*scope["headers"], (b"authorization", key)]}
        await self._app(scope, receive, send)


def router() -> APIRouter:
    """Return the routes of the dialect."""
    routes = APIRouter(
        prefix=PREFIX, route_class=FirecrawlRoute, tags=["Firecrawl v2"], responses=_RESPONSES
    )
    dialect = _Dialect()
    routes.post("/scrape")(dialect.scrape)
    routes.post("/batch/scrape")(dialect.batch)
    routes.post("/crawl")(dialect.crawl)
    routes.post("/map")(dialect.map)
    routes.get("/crawl/active")(dialect.active)
    for path, kind in _KINDS:
        _add_job_routes(routes, dialect, path, kind)
    for path in _UNSUPPORTED:
        routes.post(f"/{path}", include_in_schema=False)(_unsupported)
    return routes


async def _unsupported(request: Request) -> Response:
    return problem(404, f"this server has no {request.url.path}")


def _add_job_routes(routes: APIRouter, dialect: "_Dialect", path: str, kind: Kind) -> None:
    """Add the routes of the jobs of one kind."""

    @routes.get(f"/{path}/{{id}}", name=f"status of {path}")
    def status(
        request: Request,
        client: CurrentClient,
        id: JobId,
        skip: Annotated[int | None, Query(ge=0, le=2**53)] = None,
        cursor: Annotated[int | None, Query(ge=-(2**53), le=2**53)] = None,
    ) -> Response:
        """How far a job is, with its documents in pages that `next` leads through."""
        jobs = dialect.jobs(request)
        batch = _found(jobs, client.name, kind, id)
        return Json(_status(jobs, batch, f"{_base(request)}/{path}/{id}", skip, cursor))

    @routes.delete(f"/{path}/{{id}}", name=f"cancel {path}")
    def cancel(request: Request, client: CurrentClient, id: JobId) -> Response:
        """Cancel a job: what has not begun is skipped."""
        jobs = dialect.jobs(request)
        if not jobs.cancel(_found(jobs, client.name, kind, id)):
            return problem(409, "the job is done already")
        return Json({"success": True, "status": "cancelled"})

    @routes.get(f"/{path}/{{id}}/errors", name=f"errors of {path}")
    def errors(request: Request, client: CurrentClient, id: JobId) -> Response:
        """The pages of a job that were not collected, and why."""
        jobs = dialect.jobs(request)
        return Json(jobs.errors(_found(jobs, client.name, kind, id)))

    @routes.websocket(f"/{path}/{{id}}")
    async def watch(websocket: WebSocket, client: CurrentClient, id: str) -> None:
        """Tell of each document as it is collected."""
        offered = websocket.scope["subprotocols"]
        with service_of(websocket).streams.taken(client.name):
            await websocket.accept(offered[0] if offered else None)
            with contextlib.suppress(WebSocketDisconnect):
                await _Stream(dialect.jobs(websocket), websocket).run(client.name, kind, id[:100])
            with contextlib.suppress(RuntimeError):  # it may be closed already
                await websocket.close()


class _Dialect:
    """The requests that begin something."""

    def __init__(self) -> None:
        self._locks = [threading.Lock() for _ in range(LOCKS)]
        self._maps = asyncio.Semaphore(MAX_MAPS)
        self._shares = defaultdict[str, asyncio.Semaphore](
            lambda: asyncio.Semaphore(MAX_MAPS_PER_CLIENT)
        )

    def jobs(self, connection: HTTPConnection) -> Jobs:
        """The jobs of the application that serves a request."""
        return Jobs(service_of(connection), self._locks)

    async def scrape(self, request: Request, client: CurrentClient, body: ScrapeBody) -> Response:
        """Fetch a page and return its document; with `maxAge`, a stored page may do."""
        has_browser = service_of(request).has_browser
        how = await run_in_threadpool(understand, body, kind="scrape", has_browser=has_browser)
        jobs = self.jobs(request)
        stored = await run_in_threadpool(jobs.stored_page, client.name, body, how)
        if stored:
            return Json({"success": True, "data": stored})
        batch = await run_in_threadpool(jobs.scrape, client, body, how)
        limit_s = body.timeout / 1000 if body.timeout else SCRAPE_S
        with service_of(request).waits.taken(client.name):
            result = await _wait_for(request, lambda: jobs.page(batch), limit_s)
        if result is None:
            return await _not_yet(jobs, batch, body.url)
        if result["status"] == SUCCESS:
            return Json({"success": True, "data": document(result, batch.shown, body.url)})
        if http_status(result["reason"] or ""):
            return Json({"success": True, "data": failed_document(result, body.url)})
        if result["status"] == PENDING:  # its client has heard the end of it
            await run_in_threadpool(jobs.cancel, batch)
        return _failure(result)

    def batch(
        self, request: Request, client: CurrentClient, body: BatchBody, key: Key = ""
    ) -> Response:
        """Fetch many pages as a job."""
        how = understand(body, kind="batch", has_browser=service_of(request).has_browser)
        batch, warning = self.jobs(request).batch(client, body, how, key)
        invalid = {"invalidURLs": invalid_urls(body.urls)} if body.ignore_invalid_urls else {}
        return _begun(request, "batch/scrape", batch, warning, invalid)

    def crawl(
        self, request: Request, client: CurrentClient, body: CrawlBody, key: Key = ""
    ) -> Response:
        """Crawl a site as a job: its links and sitemaps are followed."""
        if body.ignore_robots_txt and not client.is_operator:
            raise Forbidden("ignoreRobotsTxt: only the operator of this server may decide that")
        has_browser = service_of(request).has_browser
        how = understand(body.scrape_options, body, kind="crawl", has_browser=has_browser)
        batch, warning = self.jobs(request).crawl(client, body, how, key)
        return _begun(request, "crawl", batch, warning, {})

    async def map(self, request: Request, client: CurrentClient, body: MapBody) -> Response:
        """List the URLs of a site: those in its sitemaps, and the links of its start."""
        how = understand(None, body, kind="map")
        jobs = self.jobs(request)
        address = jobs.check(body.url)
        asked = MapRequest(
            url=address.url,
            sitemap=body.sitemap,
            subdomains=_wants_subdomains(body, address),
            limit=MAX_PAGES if body.search or body.ignore_query_parameters else body.limit,
        )
        limit_s = body.timeout / 1000 if body.timeout else MAP_S
        service = service_of(request)
        try:
            with service.waits.taken(client.name):
                async with asyncio.timeout(limit_s):
                    answer = await self._map(request, client.name, asked)
        except TimeoutError:
            return problem(408, "the map took too long; ask again with a longer timeout", "TIMEOUT")
        if answer.error:
            return problem(400, answer.error)
        if not answer.urls and not answer.is_whole:
            return problem(422, "; ".join(answer.notes) or "nothing could be read")
        return Json(_listed(body, answer, how.warning))

    async def _map(self, request: Request, client: str, asked: MapRequest) -> MapAnswer:
        """List URLs, as long as the client waits for them and the server does not end."""
        service = service_of(request)

        async def work() -> MapAnswer:
            async with self._shares[client], self._maps:
                return await site_crawls.list_urls(service.settings, asked)

        working = asyncio.create_task(work())
        try:
            while not working.done():
                if service.backend.is_stopping or await request.is_disconnected():
                    raise ServiceError("the server is stopping; ask again")
                await asyncio.wait({working}, timeout=LOOK_S)
            return working.result()
        finally:
            working.cancel()
            await asyncio.wait({working})

    def active(self, request: Request, client: CurrentClient) -> Response:
        """The crawls that go on."""
        crawls = [
            {"id": batch.session_id, "teamId": client.name or "local", "url": batch.shown["url"]}
            for batch in self.jobs(request).active(client.name)
        ]
        return Json({"success": True, "crawls": crawls})


# Answers


def _base(connection: HTTPConnection) -> str:
    return f"{str(connection.base_url).rstrip('/')}{PREFIX}"


def _begun(
    request: Request, path: str, batch: Batch, warning: str, more: Mapping[str, Any]
) -> Response:
    answer = {"success": True, "id": batch.session_id, **more}
    answer["url"] = f"{_base(request)}/{path}/{batch.session_id}"
    if warning:
        answer["warning"] = warning
    return Json(answer)


def _found(jobs: Jobs, client: str, kind: Kind, id_: str) -> Batch:
    batch = jobs.find(client, kind, id_)
    if batch is None:
        raise NoJob(f"there is no job {id_}")
    return batch


def _status(
    jobs: Jobs, batch: Batch, url: str, skip: int | None, cursor: int | None
) -> dict[str, Any]:
    """Return the state of a job and some documents.

    While it goes on, documents are only given to who asks for them by `skip`: clients ask for the
    state every other second, and would load all of them each time.
    """
    answer = jobs.status(batch)
    goes_on = answer["status"] == "scraping"
    if goes_on and skip is None:
        return answer | {"next": f"{url}?skip=0&cursor=0", "data": []}
    skip = skip or 0
    # Without a cursor, documents are counted from the beginning.
    found = jobs.documents(batch, cursor or 0, skip if cursor is None else 0)
    next_ = None
    if goes_on and not found.data:
        # A client that is given the same address again knows that it has to wait.
        next_ = f"{url}?skip={skip}&cursor={cursor or 0}"
    elif goes_on or not found.is_last:
        next_ = f"{url}?skip={skip + len(found.data)}&cursor={found.cursor}"
    return answer | {"next": next_, "data": found.data}


async def _wait_for(
    request: Request, condition: Callable[[], dict[str, Any] | None], limit_s: float
) -> dict[str, Any] | None:
    """Wait until a condition gives something, and ask it only if the ledger has changed."""
    backend = request.app.state.backend
    loop = asyncio.get_running_loop()
    end, seen = loop.time() + limit_s, -1
    while True:
        now_seen = backend.wait_for_change(seen, 0)
        if now_seen != seen and (found := await run_in_threadpool(condition)):
            return found
        seen = now_seen
        if loop.time() >= end or backend.is_stopping or await request.is_disconnected():
            return None
        await asyncio.sleep(LOOK_S)


async def _not_yet(jobs: Jobs, batch: Batch, url: str) -> Response:
    """Say that a page is not there yet. A client that asks again finds the same job."""
    wait_s = await run_in_threadpool(jobs.wait_s, batch)
    last = await run_in_threadpool(jobs.last_problem, batch)
    why = f" ({last})" if last else ""
    return problem(
        408,
        f"{urls.without_credentials(url)[:200]} is not there yet{why}; it is still tried: ask "
        f"again in {wait_s:.0f} s",
        "SCRAPE_TIMEOUT",
        {"state": "processing_continues", "retryAfterSeconds": round(wait_s)},
        {"Retry-After": f"{wait_s:.0f}"},
    )


def _failure(result: Mapping[str, Any]) -> Response:
    """Say why a page was not collected."""
    reason = result["reason"] or "unknown"
    status = 422
    if reason in (ROBOTS, "forbidden_address"):
        status = 403
    elif reason == "timeout":
        status = 408
    return problem(status, result["error"] or reason, _CODES.get(reason, reason))


def _wants_subdomains(body: MapBody, address: urls.Address) -> bool:
    """Whether hosts below belong to the site. By default, wherever they have the same owner."""
    foreign = owners_below(address)
    if foreign and body.include_subdomains and "include_subdomains" in body.model_fields_set:
        raise UsageError(f"includeSubdomains: {foreign}")
    return body.include_subdomains and not foreign


def _listed(body: MapBody, answer: MapAnswer, warning: str) -> dict[str, Any]:
    """Return the URLs that were asked for, the best first."""
    found, warnings = answer.urls, [warning]
    if body.ignore_query_parameters:
        found = [url for url in found if "?" not in url]
        if left := len(answer.urls) - len(found):
            told = "ignoreQueryParameters: false lists them, too"
            warnings.append(f"{left:,} URLs with a query were left out; {told}")
    if body.search and (words := body.search.lower().split()):
        hits = {url: sum(word in url.lower() for word in words) for url in found}
        found = sorted(filter(hits.__getitem__, found), key=lambda url: -hits[url])
    if answer.is_cut or len(found) > body.limit:
        warnings.append("there are more URLs than the limit")
    if not answer.is_whole:
        warnings.append("not everything could be read: " + "; ".join(answer.notes[-3:]))
    listed = {"success": True, "links": [{"url": url} for url in found[: body.limit]]}
    if text := "; ".join(filter(None, warnings)):
        listed["warning"] = text
    return listed


# WebSockets


class _Stream:
    """Tells one client of the documents of a job."""

    def __init__(self, jobs: Jobs, websocket: WebSocket) -> None:
        self._jobs, self._websocket = jobs, websocket
        self._backend = websocket.app.state.backend
        self._seen = -1
        """The state of the ledger before it was read last."""

    async def run(self, client: str, kind: Kind, id_: str) -> None:
        """Send everything until the job has ended or the client has left."""
        batch = await run_in_threadpool(self._jobs.find, client, kind, id_)
        if batch is None:
            await self._send("error", error=f"there is no job {id_}")
            return
        listening = asyncio.create_task(self._listen())
        try:
            await self._tell(batch, listening)
        finally:
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listening

    async def _tell(self, batch: Batch, listening: "asyncio.Task[None]") -> None:
        found = await self._read(batch, 0)
        # To a client, a job has ended with all that it will ever be told. There is more to come.
        about = await run_in_threadpool(self._jobs.status, batch)
        await self._send("catchup", data=about | {"status": "scraping", "data": found.data})
        await self._send_each(found.failed)
        while not found.is_complete and not listening.done():
            if found.is_last:
                await self._wait(listening)
            found = await self._read(batch, found.cursor)
            await self._send_each(found.data + found.failed)
        if not found.is_complete:
            return
        now = await run_in_threadpool(
            self._jobs.find, batch.client, batch.shown["v2"], batch.session_id
        )
        if now is None:
            await self._send("error", error=f"the job {batch.session_id} was removed")
            return
        about = await run_in_threadpool(self._jobs.status, now)
        kind = "done" if about["status"] == "completed" else "catchup"
        await self._send(kind, data=about | {"data": []})

    async def _read(self, batch: Batch, cursor: int) -> Documents:
        self._seen = self._backend.wait_for_change(-1, 0)
        return await run_in_threadpool(self._jobs.documents, batch, cursor)

    async def _wait(self, listening: "asyncio.Task[None]") -> None:
        """Wait until the ledger has changed, or the client has left."""
        await asyncio.wait({listening}, timeout=STREAM_S)
        while not listening.done() and self._backend.wait_for_change(self._seen, 0) == self._seen:
            await asyncio.wait({listening}, timeout=LOOK_S)

    async def _listen(self) -> None:
        """Return when the client has left; what it says has no meaning."""
        while (await self._websocket.receive())["type"] != "websocket.disconnect":
            pass

    async def _send_each(self, documents: list[dict[str, Any]]) -> None:
        for each in documents:
            await self._send("document", data=each)

    async def _send(self, type_: str, **content: Any) -> None:
        text = msgspec.json.encode({"type": type_, **content}).decode()
        try:
            await self._websocket.send_text(text)
        except RuntimeError:  # it was closed meanwhile
            raise WebSocketDisconnect(1006) from None
