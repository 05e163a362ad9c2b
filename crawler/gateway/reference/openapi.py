"""How the reference Gateway's exchanges are described in /openapi.json: by the values that check
them."""

from collections.abc import Mapping
from typing import Any

import msgspec

from crawler.gateway.reference import bodies

_DESCRIBED = (
    bodies.Work,
    bodies.Result,
    bodies.Stored,
    bodies.Page,
    bodies.Kept,
    bodies.Failure,
    bodies.Success,
    bodies.Reported,
    bodies.Heartbeat,
    bodies.Orders,
    bodies.Worker,
    bodies.Health,
    bodies.Failing,
    bodies.Refusal,
)
_REASONS = {
    400: "The request is not what it says it is.",
    401: "The token is wrong or missing.",
    404: "There is no such task.",
    409: "The task is not this worker's any more, or the key was another body's.",
    413: "The body is over 32 MiB, or has more than 10,000 results.",
    422: "Something in the request is not valid; repeating it will not help.",
    503: "The Gateway cannot write to its disk, is busy with other large bodies, or is ending; try again later.",
}
CODES = {
    400: "BAD_REQUEST",
    401: "UNAUTHORIZED",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    409: "CONFLICT",
    413: "TOO_LARGE",
    422: "INVALID",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
"""The short word of each kind of refusal."""

_TASK = {
    "task_id": "t-1",
    "type": "parcel",
    "platform": "beacon",
    "target": {
        "parcel_id": "123",
        "state": "FL",
        "county": "Bay",
        "url": "https://county.example/parcel/123",
    },
    "priority": 1,
    "created_at": "2026-01-30T12:00:00Z",
}
_RESULT = {
    "task_id": "t-1",
    "parcel_id": "123",
    "platform": "beacon",
    "state": "FL",
    "county": "Bay",
    "data": {"owner": "A. Example"},
    "scraped_at": "2026-01-30T12:01:02Z",
    "parse_duration_ms": 12,
    "raw_html_hash": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
}
_BEAT = {
    "active_tasks": 3,
    "completed_last_minute": 40,
    "failed_last_minute": 1,
    "platforms": ["beacon"],
    "cpu_percent": 12.5,
    "memory_percent": 30.1,
    "queue": {"pending": 100, "processing": 3, "completed": 900, "failed": 4, "unsynced": 12},
}
_COUNTS = {
    "available": 90,
    "held": 10,
    "completed": 900,
    "failed": 4,
    "results": 900,
    "late": 0,
    "raw_files": 900,
    "workers": 2,
}
_EXAMPLES: dict[type, Any] = {
    bodies.Work: {"tasks": [_TASK], "retry_after": 5},
    bodies.Stored: {"inserted": 1, "updated": 0, "failed": 0, "errors": []},
    bodies.Kept: {
        "status": "ok",
        "path": "raw/9f/9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    },
    bodies.Failure: {"reason": "the page is gone", "error_type": "http_404", "attempts": 3},
    bodies.Success: {"success": True},
    bodies.Reported: {"task_id": "t-1", "status": "reported"},
    bodies.Heartbeat: _BEAT,
    bodies.Orders: {"acknowledged": True, "commands": []},
    bodies.Health: {"status": "ok", "counts": _COUNTS, "faults": {}},
    bodies.Failing: {"status": "failing", "message": "the store cannot be written"},
}
_WORKERS = {
    "worker": "desk-1",
    "heard_at": "2026-01-30T12:01:02.000Z",
    "silent_s": 1.5,
    "held": 10,
    "results": 900,
    "heartbeat": _BEAT,
    "waiting_commands": [],
}


def components() -> dict[str, Any]:
    """The schemas of all bodies, by name."""
    return msgspec.json.schema_components(_DESCRIBED, ref_template="#/components/schemas/{name}")[1]


def _ref(kind: type) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def responses(
    kind: type, *codes: int, headers: Mapping[str, str] | None = None
) -> dict[int | str, dict[str, Any]]:
    """What an exchange can be answered with: this body, or a refusal with one of these codes."""
    schema: dict[str, Any] = _ref(kind)
    if kind is bodies.Worker:
        schema, example = {"type": "array", "items": schema}, [_WORKERS]
    else:
        example = _EXAMPLES[kind]
    good = {
        "description": _sentence(kind),
        "content": {"application/json": {"schema": schema, "example": example}},
    }
    if headers:
        good["headers"] = {
            name: {"description": text, "schema": {"type": "string"}}
            for name, text in headers.items()
        }
    return {200: good, **{code: _refusal(code) for code in codes}}


def health() -> dict[int | str, dict[str, Any]]:
    """What a question for the Gateway's health can be answered with."""
    content = {"schema": _ref(bodies.Failing), "example": _EXAMPLES[bodies.Failing]}
    failing = {"description": _sentence(bodies.Failing), "content": {"application/json": content}}
    return responses(bodies.Health, 401) | {503: failing}


def _refusal(code: int) -> dict[str, Any]:
    example = {
        "error": {"code": CODES[code], "message": _REASONS[code]},
        "request_id": "4f1c09d2a7b84e6f",
    }
    return {
        "description": _REASONS[code],
        "content": {"application/json": {"schema": _ref(bodies.Refusal), "example": example}},
    }


def _sentence(kind: type) -> str:
    return str(kind.__doc__)


def body(kind: type) -> dict[str, Any]:
    """The description of an exchange's own body."""
    return _body("application/json", _ref(kind), _EXAMPLES[kind])


def results_body() -> dict[str, Any]:
    """The body with results; an element that is none is counted as failed, and keeps no other from
    being stored."""
    items = {"description": "As the schema `Result` has it; anything else is counted as failed."}
    schema = {"type": "array", "items": items}
    return _body("application/json", schema, [_RESULT])


def file_body() -> dict[str, Any]:
    """The body with a raw file."""
    schema = {
        "type": "object",
        "required": ["file"],
        "properties": {
            "file": {
                "type": "string",
                "format": "binary",
                "description": "With a file name that is unique.",
            },
            "metadata": {
                "description": "JSON as the schema `Page` has it; with anything else the answer's status is `error`.",
            },
        },
    }
    about = {
        "task_id": "t-1",
        "url": "https://county.example/parcel/123",
        "content_type": "text/html",
    }
    return _body("multipart/form-data", schema, {"file": "<!doctype html>…", "metadata": about})


def _body(media_type: str, schema: Mapping[str, Any], example: Any) -> dict[str, Any]:
    return {
        "requestBody": {
            "required": True,
            "content": {media_type: {"schema": schema, "example": example}},
        }
    }
