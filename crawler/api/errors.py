"""Errors of the API: one JSON shape for all, `{"error": message, "code": short_code}`."""

import logging

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from crawler.errors import CrawlerError, ServiceError, SessionCancelled, StoreError, UsageError

log = logging.getLogger(__name__)

CODES = {
    400: "bad_request",
    401: "no_token",
    403: "forbidden",
    404: "not_found",
    405: "wrong_method",
    408: "too_slow",
    409: "conflict",
    413: "too_large",
    422: "invalid",
    429: "too_many",
    503: "unavailable",
}
_MAX_FAULTS = 3
"""Faults of one body that are named."""
INTERNAL = "an unforeseen error; the log of the server has it"


class ApiError(HTTPException):
    """A request that is refused; `code` is a short word for programs."""

    def __init__(
        self, status: int, code: str, message: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(status, message, headers)
        self.code = code


class Json(Response):
    """An answer as JSON, encoded by msgspec."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """Encode a value; bytes are JSON already."""
        return content if isinstance(content, bytes) else msgspec.json.encode(content)


def refusal(error: HTTPException) -> Json:
    """The answer for an error."""
    code = getattr(error, "code", CODES.get(error.status_code, "error"))
    headers = dict(error.headers or {})
    return Json({"error": str(error.detail), "code": code}, error.status_code, headers)


def as_http(error: CrawlerError) -> ApiError:
    """What an error of the package means for a client."""
    if isinstance(error, SessionCancelled):
        return ApiError(409, "cancelled", str(error))
    if isinstance(error, UsageError):
        return ApiError(400, "bad_request", str(error))
    if isinstance(error, StoreError):
        # Its text names files of this machine.
        log.error("the store cannot be used: %s", error)
        return ApiError(503, "store", "the store cannot be used; the log of the server says why")
    if isinstance(error, ServiceError):
        return ApiError(503, "unavailable", str(error))
    log.error("a request ended with: %s", error)
    return ApiError(500, "internal", INTERNAL)


async def refuse(scope: Scope, receive: Receive, send: Send, error: HTTPException) -> None:
    """Answer a request, or a WebSocket that is not open yet, with an error."""
    answer = refusal(error)
    if scope["path"].startswith("/v2/"):  # as Firecrawl's clients know it
        told = {"success": False, **msgspec.json.decode(bytes(answer.body))}
        answer = Json(told, answer.status_code, dict(error.headers or {}))
    if scope["type"] == "http":
        await answer(scope, receive, send)
    elif "websocket.http.response" in scope.get("extensions", {}):
        head = {"status": answer.status_code, "headers": answer.raw_headers}
        await send({"type": "websocket.http.response.start", **head})
        await send({"type": "websocket.http.response.body", "body": answer.body})
    else:
        await send({"type": "websocket.close", "code": 1008, "reason": str(error.detail)[:100]})


def install(app: FastAPI) -> None:
    """Give every error of the application the one shape."""

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        answer = refusal(error)
        if error.status_code == 405:
            answer.headers["Allow"] = ", ".join(_methods(request))
        return answer

    async def on_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return refusal(ApiError(422, "invalid", _faults(error)))

    async def on_crawler(request: Request, error: Exception) -> Response:
        assert isinstance(error, CrawlerError)
        return refusal(as_http(error))

    async def on_unknown(scope: Scope, receive: Receive, send: Send) -> None:
        told = "there is nothing at this path; /openapi.json describes what there is"
        raise ApiError(404, "not_found", told)

    app.router.default = on_unknown  # also of WebSockets
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(CrawlerError, on_crawler)


def _methods(request: Request) -> list[str]:
    """The methods of all routes of a path; the router names those of the first one."""
    found: set[str] = set()
    for route in request.app.routes:
        if route.matches(request.scope)[0] != Match.NONE:
            found |= getattr(route, "methods", None) or set()
    return sorted(found)


def _faults(error: RequestValidationError) -> str:
    """Name the first faults by their place, without repeating what was sent."""
    found = []
    for each in error.errors()[:_MAX_FAULTS]:
        if each["type"] == "json_invalid":
            return "the body is not JSON"
        if each["type"] == "model_attributes_type" and isinstance(each["input"], bytes):
            return "send the body with the header 'Content-Type: application/json'"
        place = ".".join(str(part)[:50] for part in each["loc"])
        found.append(f"{place}: {each['msg'][:200]}")
    return "; ".join(found).encode("utf-8", "replace").decode()
