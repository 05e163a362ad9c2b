"""What a Gateway's answers say, read without trust; nothing here waits."""

import json
import math
import re
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from crawler.resilience import retry

MAX_WAIT_S = 600.0
"""No Gateway keeps us waiting longer."""
MAX_ERRORS, MAX_ERROR = 100, 500
MAX_COMMANDS, MAX_COMMAND = 100, 100
MAX_MESSAGE = 300

_SIGNS = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],]', re.DOTALL)
"""What separates the elements of an array; whole texts, so that nothing in them does."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class Work(msgspec.Struct, frozen=True):
    """What the Gateway handed out; the tasks are decoded, and nothing about them is checked."""

    tasks: list[Any]
    wait_s: float
    """How long it asked to be left alone."""


class Stored(msgspec.Struct, frozen=True):
    """What the Gateway says became of results; whether that fits what was sent is for the sender to
    see."""

    stored: int
    failed: int
    errors: tuple[str, ...]
    updated: int = 0
    """Of the stored ones, those that the Gateway wrote over a row that it had."""


class NotTheContract(Exception):
    """An answer says something else than it should."""


class _Results(msgspec.Struct):
    inserted: _Count | None
    updated: _Count | None
    failed: _Count | None
    errors: list[Any] | None = None


def read(body: bytes) -> dict[str, Any]:
    """The JSON object of an answer; raises `NotTheContract`."""
    try:
        value = _decoded(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise NotTheContract(f"is not JSON ({str(error)[:100]})" if body else "is empty") from None
    if not isinstance(value, dict):
        raise NotTheContract("is not a JSON object")
    return value


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        # One odd value in one task must not cost its neighbours: all of them are ours, and nobody
        # else's.
        return _forgiving(body)


def _forgiving(body: bytes) -> Any:
    """An answer whose tasks are read one by one; of one that cannot be read, its id is kept."""
    text = body.decode("utf-8-sig", "replace")
    begin = re.search(r'"tasks"\s*:\s*\[', text)
    if begin is None:
        return _loads(text)
    pieces, end = _elements(text, begin.end())
    answer = _loads(text[: begin.end()] + text[end:])
    if not isinstance(answer, dict) or answer.get("tasks") != []:
        return _loads(text)  # they are somebody else's tasks, deeper within
    return answer | {"tasks": [_task(piece) for piece in pieces]}


def _loads(text: str) -> Any:
    """JSON as leniently as it can be read: what is no number is nothing, half a character is a
    question mark."""
    value = json.loads(
        text, strict=False, parse_constant=lambda _: None, parse_float=_float, parse_int=_int
    )
    return msgspec.json.decode(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _float(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _int(text: str) -> int | None:
    return int(text) if len(text) < 300 else None


def _task(piece: str) -> Any:
    try:
        return _loads(piece)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        name = re.search(r'"task_id"\s*:\s*("(?:[^"\\]|\\.){0,2000}"|\d{1,100})', piece)
        return (
            {"task_id": _loads(name[1]), "target": "cannot be read"} if name else "cannot be read"
        )


def _elements(text: str, begin: int) -> tuple[list[str], int]:
    """The elements of the array that begins there, as text, and where it ends; `ValueError` where
    it does not."""
    depth, start, found = 0, begin, []
    for sign in _SIGNS.finditer(text, begin):
        match sign[0][0]:
            case "{" | "[":
                depth += 1
            case "}" | "]" if depth:
                depth -= 1
            case "]" | ",":
                if depth == 0:
                    found.append(text[start : sign.start()])
                    start = sign.end()
                    if sign[0] == "]":
                        return [piece for piece in found if piece.strip()], sign.start()
    raise ValueError("the list of tasks has no end")


def work(answer: dict[str, Any], asked_s: float) -> Work:
    """The tasks of an answer, of which null is none; raises `NotTheContract`."""
    tasks = answer.get("tasks", "")
    if tasks is not None and not isinstance(tasks, list):
        raise NotTheContract("has no list of tasks")
    return Work(tasks or [], asked_s)


def stored(answer: dict[str, Any], secret: str) -> Stored:
    """The counts of an answer, and its words on what failed; raises `NotTheContract`."""
    try:
        counts = msgspec.convert(answer, _Results)
    except msgspec.ValidationError as error:
        raise NotTheContract(f"does not count what was stored ({error})") from None
    inserted, updated, failed = counts.inserted or 0, counts.updated or 0, counts.failed or 0
    if None in (counts.inserted, counts.updated, counts.failed) and not inserted + updated + failed:
        raise NotTheContract("does not count what was stored")
    errors = tuple(shown(text, MAX_ERROR, secret) for text in (counts.errors or ())[:MAX_ERRORS])
    return Stored(inserted + updated, failed, errors, updated)


def commands(answer: dict[str, Any], secret: str) -> list[str]:
    """The commands of an answer, as far as they are texts."""
    given = answer.get("commands")
    texts = [text for text in given if isinstance(text, str)] if isinstance(given, list) else []
    return [shown(text, MAX_COMMAND, secret) for text in texts[:MAX_COMMANDS]]


def message(body: bytes, secret: str) -> str:
    """The Gateway's own words on what went wrong, if it has any; FastAPI's and others' way to say
    it count as well."""
    try:
        answer = read(body)
    except NotTheContract:
        return _plain(body, secret)
    error = answer.get("error")
    found = error.get("message") if isinstance(error, dict) else error
    found = next(
        (text for text in (found, answer.get("message"), answer.get("detail")) if text), ""
    )
    return shown(found, MAX_MESSAGE, secret)


def _plain(body: bytes, secret: str) -> str:
    """The words of an answer that is plain text, such as Go's `invalid JSON`; markup and broken
    JSON have none."""
    text = body[: 100 * MAX_MESSAGE].decode("utf-8", "replace").strip()
    return shown(text, MAX_MESSAGE, secret) if text[:1].isalnum() else ""


def shown(value: object, most: int, secret: str) -> str:
    """A foreign text as one printable line of so many characters; never the secret, nor its
    beginning."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    line = " ".join(
        "".join(sign if sign.isprintable() else " " for sign in text[: 100 * most]).split()
    )
    return "(not shown: it repeats the token)" if secret[:8] in line else line[:most]


def longest(headers: Iterable[str], value: object, now: float) -> float:
    """The longest wait that `Retry-After` headers and a body's `retry_after` ask for, within
    reason; 0 for none."""
    asked = [_seconds(text) or retry.retry_after(text, now) or 0.0 for text in headers]
    return min(MAX_WAIT_S, max([0.0, _seconds(value), *asked]))


def _seconds(value: object) -> float:
    if isinstance(value, str):
        try:
            value = float(value) if value.isascii() and "_" not in value else 0.0
        except ValueError:
            return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return 0.0
    return float(min(value, MAX_WAIT_S))
