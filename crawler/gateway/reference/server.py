"""The reference Gateway's application: the contract's exchanges over the books."""

import asyncio
import contextlib
import hashlib
import hmac
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Header, Path, Query, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.security import APIKeyHeader
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from crawler import __version__
from crawler.errors import GatewayRefused, StoreError
from crawler.gateway.reference import incoming, openapi, upload
from crawler.gateway.reference.bodies import (
    MAX_BODY,
    Failing,
    Failure,
    Health,
    Heartbeat,
    Kept,
    Orders,
    Problem,
    Refusal,
    Reported,
    Stored,
    Success,
    Work,
    Worker,
)
from crawler.gateway.reference.books import Books
from crawler.gateway.reference.commit import Committer
from crawler.gateway.reference.contents import Contents, checksum
from crawler.gateway.reference.faults import LEFT_OUT, Dice, left_out
from crawler.gateway.reference.habits import KINDS
from crawler.logs import printable

log = logging.getLogger("crawler.gateway")
T = TypeVar("T")

SURROUNDINGS = 1 << 20
"""How much may stand around a raw file in its body."""
LARGE, LARGE_AT_A_TIME, TURN_S = 1 << 20, 2, 20.0
"""From what size on results are read and judged only so many bodies at a time, and how long others
wait for that."""
MEND_S = 2.0
"""How long a question for the Gateway's health waits for a trial to write."""
_VISIBLE = r"^[!-~]{1,200}$"

WorkerId = Annotated[
    str,
    Header(
        alias="X-Worker-ID",
        pattern=_VISIBLE,
        description="The worker's stable name.",
        examples=["desk-1"],
    ),
]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=_VISIBLE,
        description="The same key again gets the same answer again, for a day.",
    ),
]
TaskId = Annotated[str, Path(min_length=1, max_length=200, examples=["t-1"])]
Late = Annotated[
    Literal["true", "false"],
    Header(
        alias="X-Results-Late",
        description="Whether the results' deadline had passed when they were ready.",
    ),
]
Capacity = Annotated[int, Query(ge=1, le=100, description="How many tasks at most.")]
Platform = Annotated[str, Query(min_length=1, max_length=200)]
Platforms = Annotated[
    list[Platform],
    Query(max_length=100, description="Only tasks of these platforms; of any where there is none."),
]
Token = Annotated[str | None, Security(APIKeyHeader(name="X-Worker-Token", auto_error=False))]


class Service:
    """The exchanges; what is written goes through the committer, so that no answer is ahead of the
    disk."""

    def __init__(self, books: Books, token: str, dice: Dice | None = None) -> None:
        self._books, self._token = books, token.encode()
        self._committer = Committer(books)
        self._contents = Contents(books.folder)
        self._threads = ThreadPoolExecutor(8, "contents")
        self._large = asyncio.Semaphore(LARGE_AT_A_TIME)
        self.dice = dice
        self.like = books.like

    def hurry(self) -> None:
        """Wait for no lock of another process any more."""
        self._books.hurry()

    def close(self) -> None:
        """Finish what was begun."""
        self.hurry()
        self._threads.shutdown(cancel_futures=True)
        self._committer.close()

    async def _done(self, do: Callable[[Books], T]) -> T:
        return await asyncio.wrap_future(self._committer.submit(do))

    async def _aside(self, do: Callable[[], T]) -> T:
        """Do what takes its time, or waits for a disk, beside the loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, do)

    async def authorise(self, request: Request, token: Token = None) -> None:
        """Let nobody in without the token; the time that this takes tells nothing about it. Who
        calls is alive."""
        if not hmac.compare_digest((token or "").encode("latin-1", "replace"), self._token):
            raise GatewayRefused(
                401, "the token is missing" if token is None else "the token is wrong"
            )
        if worker := request.headers.get("X-Worker-ID"):
            self._books.note(worker)

    async def work(
        self,
        request: Request,
        worker: WorkerId,
        capacity: Capacity,
        platforms: Platforms = [],  # noqa: B006 # FastAPI copies it
        key: Key = None,
    ) -> Response:
        """Hand out tasks, the most urgent first; they are the worker's until it is not heard of any
        more."""
        if self.like == "python" and not platforms:
            raise GatewayRefused(422, "query.platforms: Field required")
        given = await self._done(
            lambda books: books.give(worker, capacity, platforms, key, _kind(request))
        )
        if self.like == "go" and not given.tasks:
            return _json({"tasks": None, "retry_after": given.retry_after})
        return _json(given)

    async def results(
        self, request: Request, worker: WorkerId, late: Late = "false", key: Key = None
    ) -> Response:
        """Store results; each completes its task. The same result again changes nothing."""
        async with self._read(request) as body:
            items, sha256 = await self._aside(
                lambda: (incoming.results(body), hashlib.sha256(body).hexdigest())
            )
            seed = request.scope.get(LEFT_OUT)
            missing = frozenset[int]() if seed is None else left_out(seed, len(items))
            how: dict[str, Any] = {
                "late": late == "true",
                "key": key,
                "sha256": sha256,
                "left_out": missing,
            }
            how["kind"] = _kind(request)
            answer = await self._done(lambda books: books.deliver(worker, items, **how))
        return _json(
            msgspec.Raw(answer.body), {"Idempotent-Replay": "true"} if answer.again else {}
        )

    @contextlib.asynccontextmanager
    async def _read(self, request: Request) -> AsyncIterator[bytes]:
        """A request's whole body, unless it is too large; a large one comes in, and stays, when it
        is its turn."""
        async with contextlib.AsyncExitStack() as stack:
            limited = _limited(request, MAX_BODY, lambda: stack.enter_async_context(self._turn()))
            yield await Request(request.scope, limited).body()

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait for one's turn with a large body: the memory that they take is not for more of
        them."""
        try:
            async with asyncio.timeout(TURN_S):
                await self._large.acquire()
        except TimeoutError:
            raise GatewayRefused(
                503, "the Gateway is busy with other large bodies; try again later"
            ) from None
        try:
            yield
        finally:
            self._large.release()

    async def raw_file(self, request: Request, worker: WorkerId) -> Response:
        """Keep a raw file; another content under a name that is taken is an error."""
        limited = Request(request.scope, _limited(request, MAX_BODY + SURROUNDINGS))
        async with upload.read(limited, self._contents) as form:
            file, about = form.get("file"), form.getlist("metadata")
            if not isinstance(file, UploadFile):
                raise GatewayRefused(422, "the part 'file' with a file name is missing")
            if (file.size or 0) > MAX_BODY:
                raise GatewayRefused(413, "the file has more than 32 MiB")
            try:
                return _json(await self._kept(worker, file, incoming.metadata(about)))
            except ValueError as error:
                return _json(Kept("error", message=str(error)))

    async def _kept(self, worker: str, file: UploadFile, metadata: dict[str, Any]) -> Kept:
        name, content = file.filename or "", file.file
        incoming.check_name(name)
        sha256 = await self._aside(lambda: checksum(content))
        incoming.check_sha256(metadata, sha256)
        size = file.size or 0
        await self._aside(lambda: self._contents.store(content, sha256, size))
        await self._done(lambda books: books.keep(worker, name, sha256, size, metadata))
        return Kept("ok", f"raw/{sha256[:2]}/{sha256}")

    async def complete(self, worker: WorkerId, task_id: TaskId) -> Response:
        """End a task of this worker's; a result does that by itself."""
        await self._done(lambda books: books.complete(worker, task_id))
        return _json(Success())

    async def fail(self, request: Request, worker: WorkerId, task_id: TaskId) -> Response:
        """Note that a task of this worker's has ended without a result."""
        async with self._read(request) as body:
            why = incoming.read(body, Failure)
            noted = await self._done(lambda books: books.fail(worker, task_id, why))
        return _json(Reported(task_id, success=noted) if self.like else Reported(task_id))

    async def heartbeat(self, request: Request, worker: WorkerId, key: Key = None) -> Response:
        """Note how a worker is, and give it what its operator wants; each command once."""
        async with self._read(request) as body:
            beat = msgspec.json.encode(incoming.read(body, Heartbeat)).decode()
            commands = await self._done(lambda books: books.beat(worker, beat, key))
        return _json({"acknowledged": True, "commands": commands})

    async def health(self, request: Request, token: Token = None) -> Response:
        """Say that the Gateway is there; with the token, also what it has. Where it could not
        write, it tries again."""
        if token is not None:
            await self.authorise(request, token)
        if self._committer.failing and not await self._mended():
            return _json(Failing("failing", "the store cannot be written"), status=503)
        if token is None:
            return _json(Health("ok"))
        counts = await self._done(Books.counts)
        return _json(
            Health("ok", counts=counts, faults=dict(self.dice.counts) if self.dice else None)
        )

    async def _mended(self) -> bool:
        try:
            async with asyncio.timeout(MEND_S):
                await self._done(Books.touch)
        except (StoreError, TimeoutError):
            return False
        return True

    async def workers(self) -> Response:
        """List the workers, with what they hold and how they are."""
        return _json(await self._done(Books.workers))

    async def set_faults(self, request: Request) -> Response:
        """Play faults with another probability from now on."""
        assert self.dice is not None
        async with self._read(request) as body:
            wanted = incoming.read(body, dict[str, Annotated[float, msgspec.Meta(ge=0, le=1)]])
        if set(wanted) != {"probability"}:
            raise GatewayRefused(
                422, "the body: it must be an object with a probability and nothing else"
            )
        self.dice.probability = wanted["probability"]
        return _json(wanted)


def application(service: Service) -> FastAPI:
    """The application of a service, described in /openapi.json."""
    app = FastAPI(
        title="crawler gateway",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.like = service.like
    app.include_router(_doors(service))
    described = openapi.components()

    def describe() -> dict[str, Any]:
        if not app.openapi_schema:
            app.openapi_schema = get_openapi(
                title=app.title, version=app.version, routes=app.routes
            )
            app.openapi_schema["components"]["schemas"] = described
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]
    for kind, answer in _ANSWERS.items():
        app.add_exception_handler(kind, answer)
    return app


def _doors(service: Service) -> APIRouter:
    doors, guard = APIRouter(), [Depends(service.authorise)]
    say, get, post = (
        openapi.responses,
        partial(doors.get, dependencies=guard),
        partial(doors.post, dependencies=guard),
    )
    replay = {
        "Idempotent-Replay": "`true` where this answer was given before, and nothing was applied."
    }
    for base in (
        [f"/internal/{kind}" for kind in KINDS] if service.like == "python" else ["/internal"]
    ):
        get(f"{base}/work", responses=say(Work, 401, 422, 503))(service.work)
        post(
            f"{base}/results",
            responses=say(Stored, 401, 409, 413, 422, 503, headers=replay),
            openapi_extra=openapi.results_body(),
        )(service.results)
        task = f"{base}/tasks/{{task_id:path}}"  # an id may have slashes in it
        post(f"{task}/complete", responses=say(Success, 401, 404, 409, 422, 503))(service.complete)
        post(
            f"{task}/fail",
            responses=say(Reported, 401, 404, 409, 413, 422, 503),
            openapi_extra=openapi.body(Failure),
        )(service.fail)
    post(
        "/internal/raw-files",
        responses=say(Kept, 400, 401, 413, 422, 503),
        openapi_extra=openapi.file_body(),
    )(service.raw_file)
    post(
        "/internal/heartbeat",
        responses=say(Orders, 401, 413, 422, 503),
        openapi_extra=openapi.body(Heartbeat),
    )(service.heartbeat)
    without = {"security": list[Any]([{}])}  # beside the token, nothing will do, too
    doors.get("/health", responses=openapi.health(), openapi_extra=without)(service.health)
    get("/workers", responses=say(Worker, 401, 503))(service.workers)
    if service.dice:
        post("/faults", include_in_schema=False)(service.set_faults)
    return doors


def _kind(request: Request) -> str | None:
    """The type of tasks that a path of its own is for, if it is."""
    name = request.url.path.split("/")[2]
    return name if name in KINDS else None


def _json(value: Any, headers: dict[str, str] | None = None, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def _limited(
    request: Request, limit: int, turn: Callable[[], Awaitable[None]] | None = None
) -> Callable[[], Awaitable[Any]]:
    """What a request consists of, up to a limit that is watched while it arrives."""
    size = 0

    async def receive() -> Any:
        nonlocal size, turn
        message = await request.receive()
        size += len(message.get("body", b""))
        if size > limit:
            raise GatewayRefused(413, "the body has more than 32 MiB")
        if turn and size > LARGE:
            waiting, turn = turn, None
            await waiting()
        return message

    return receive


# What is not a success.


def _refused(
    request: Request, status: int, message: str, headers: dict[str, str] | None = None
) -> Response:
    request_id = secrets.token_hex(8)
    about = {"status": status, "method": request.method, "path": printable(request.url.path)[:300]}
    about |= {
        "worker": printable(request.headers.get("X-Worker-ID", ""))[:200],
        "request_id": request_id,
    }
    log.warning("a call was refused: %s", message[:500], extra=about)
    if like := request.app.state.like:
        return _plainly(like, status, message, headers)
    refusal = Refusal(Problem(openapi.CODES.get(status, f"HTTP_{status}"), message), request_id)
    return Response(msgspec.json.encode(refusal), status, headers, "application/json")


def _plainly(like: str, status: int, message: str, headers: dict[str, str] | None) -> Response:
    """A refusal in the words of a real Gateway, without an id."""
    if like == "python":
        return Response(
            msgspec.json.encode({"detail": message}), status, headers, "application/json"
        )
    if status == 401:
        body = {"error": {"code": "UNAUTHORIZED", "message": message}}
        return Response(msgspec.json.encode(body), status, headers, "application/json")
    return Response(f"{message}\n", status, headers, "text/plain")


async def _on_refusal(request: Request, error: Any) -> Response:
    return _refused(
        request, error.status, error.message, {"Retry-After": "5"} if error.status == 503 else None
    )


async def _on_full_disk(request: Request, error: Any) -> Response:
    log.error("%s", error)
    return _refused(
        request, 503, "the Gateway cannot write to its store; try again later", {"Retry-After": "5"}
    )


async def _on_invalid(request: Request, error: Any) -> Response:
    problems = (
        f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()
    )
    return _refused(request, 422, printable("; ".join(problems))[:1000])


async def _on_http(request: Request, error: Any) -> Response:
    return _refused(request, error.status_code, str(error.detail), error.headers)


async def _on_defect(request: Request, error: Any) -> Response:
    return _refused(request, 500, "the Gateway made a mistake, which is in its log")


async def _on_farewell(request: Request, error: Any) -> Response:
    return Response(status_code=400)  # nobody is there to read it


_ANSWERS: dict[type[Exception], Callable[[Request, Any], Awaitable[Response]]] = {
    GatewayRefused: _on_refusal,
    StoreError: _on_full_disk,
    RequestValidationError: _on_invalid,
    HTTPException: _on_http,
    ClientDisconnect: _on_farewell,
    Exception: _on_defect,
}
