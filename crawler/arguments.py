"""Arguments that programs give to tasks and to the orchestrator."""

import os
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from crawler.errors import UsageError

T = TypeVar("T")
Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*\Z")]

Seconds = Annotated[float, Meta(ge=0)]


def checked(value: Any, kind: type[T], what: str) -> T:
    """Return an argument as what it must be; raises `UsageError`."""
    try:
        found = msgspec.convert(value, kind)
        msgspec.json.encode(found)  # it goes into the ledger: no half characters
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise UsageError(f"{what}: {error}") from None
    return found


def checked_folder(value: Any, what: str) -> Path | None:
    """Return the path of a folder, or None for none; raises `UsageError`."""
    if value is not None and not isinstance(value, (str, os.PathLike)):
        raise UsageError(f"{what}: Expected a path, got `{type(value).__name__}`")
    return Path(value) if value else None
