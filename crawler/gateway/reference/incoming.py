"""What workers send, from bytes to values: each part is judged alone, so that a bad result costs no
good one."""

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from crawler.errors import GatewayRefused
from crawler.gateway.reference import array
from crawler.gateway.reference.bodies import MAX_RESULTS, Page, Result
from crawler.gateway.reference.books import NewResult
from crawler.json_reader import loads

MAX_NAME = 200
T = TypeVar("T")


def read(body: bytes, kind: type[T]) -> T:
    """The value of a body; what it is not is refused with the place and the reason."""
    try:
        return msgspec.json.decode(body, type=kind)
    except RecursionError:
        raise GatewayRefused(422, "the body is nested too deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise GatewayRefused(422, f"the body: {error}") from None


def results(body: bytes) -> list[NewResult | str]:
    """The results of a body; a text stands for one that cannot be stored, and says why."""
    return [_result(place, bytes(raw)) for place, raw in enumerate(_elements(body))]


def _elements(body: bytes) -> Sequence[bytes | msgspec.Raw]:
    """What the array consists of; the short way is only for what cannot have too many of them."""
    if body.count(b",") < MAX_RESULTS:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return msgspec.json.decode(body, type=list[msgspec.Raw])
    return array.elements(body, MAX_RESULTS)


def _result(place: int, raw: bytes) -> NewResult | str:
    try:
        fields = loads(raw.decode())
        result = msgspec.convert(fields, Result)
        if not result.task_id.isprintable():
            return f"result {place}: there are control characters in its task_id"
        canonical = msgspec.json.encode(fields, order="sorted")
    except (
        ValueError,
        RecursionError,
    ) as error:  # both of msgspec's and of Unicode are among the former
        return f"result {place}: {error or 'nested too deep'}"
    return NewResult(
        task_id=result.task_id,
        body=canonical.decode(),
        sha256=hashlib.sha256(canonical).hexdigest(),
        raw_html_hash=result.raw_html_hash or None,
        scraped_at=_moment(result.scraped_at),
    )


def _moment(text: str | None) -> float | None:
    """A moment as a worker writes it, in UTC where it names no zone; None where it cannot be
    read."""
    try:
        at = datetime.fromisoformat(text or "")
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def metadata(parts: Sequence[object]) -> dict[str, Any]:
    """What is known of a raw file; raises `ValueError` where it is not one JSON object whose fields
    are text."""
    if len(parts) != 1 or not isinstance(parts[0], str):
        raise ValueError("the part 'metadata' is missing, or there are several")
    fields = loads(parts[0].encode().decode())  # half of a surrogate pair ends here
    if not isinstance(fields, dict):
        raise ValueError("the metadata is not a JSON object")  # noqa: TRY004 # one kind of error for all of it
    msgspec.convert(fields, Page)
    msgspec.json.encode(fields)
    return fields


def check_sha256(about: Mapping[str, Any], sha256: str) -> None:
    """Raise `ValueError` where the metadata has another checksum than the content."""
    told = about.get("sha256")
    if told is not None and told.lower() != sha256:
        raise ValueError(
            f"the sha256 of the metadata is not that of the content, which is {sha256}"
        )


def check_name(name: str) -> None:
    """Raise `ValueError` where a name could not be a file's in one flat folder."""
    if not name:
        raise ValueError("the file has no name")
    if len(name) > MAX_NAME:
        raise ValueError(f"the name has {len(name):,} characters, more than {MAX_NAME}")
    if "/" in name or "\\" in name or name in (".", ".."):
        raise ValueError("the name has a path in it")
    if not name.isprintable():
        raise ValueError("there are control characters in the name")
