"""Rows of a file into tasks to be handed out."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any

import msgspec

from crawler import times
from crawler.bulk import rows
from crawler.errors import UsageError
from crawler.gateway.reference.books import Books, NewTask
from crawler.urls import credentials, parse, without_secrets

COMMIT_ROWS = 5000
DEFAULT_PRIORITY = 3
MAX_TEXT = 200
"""Characters of an id, a platform or a type."""
MAX_TASK = 64_000
"""Characters of a task: no worker takes a larger one."""

_TARGET = ("parcel_id", "state", "county", "url")
_KNOWN = frozenset(
    {"task_id", "type", "platform", "priority", "deadline", "target", "created_at", *_TARGET}
)
_PRIORITIES = {"": DEFAULT_PRIORITY} | {str(number): number for number in range(1, 5)}


class Summary(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a file's rows; the first is the sum of the next four."""

    rows: int
    accepted: int
    known: int
    changed: int
    rejected: int
    rejects_file: str | None
    other_sheets: tuple[str, ...] = ()
    """The sheets of a workbook that were not read."""


def import_file(
    books: Books,
    file: Path,
    *,
    tz: tzinfo | None,
    clock: Callable[[], float],
    progress: Callable[[str], None] = lambda line: None,
) -> Summary:
    """Take every good row of a file in as a task; the same file again gives the same tasks."""
    counts: Counter[str] = Counter()
    batches = rows.batches(_tasks(file, tz, clock), COMMIT_ROWS, _size)
    with rows.RejectsFile(file) as rejects:
        for batch in batches:
            with books.writing():
                added = iter(
                    books.add(item[1] for item in batch if not isinstance(item, rows.Reject))
                )
            for item in batch:
                what = "refused" if isinstance(item, rows.Reject) else next(added)
                if what == "refused":
                    rejects.add(item if isinstance(item, rows.Reject) else _conflict(*item))
                counts[what] += 1
            if counts.total() > COMMIT_ROWS:
                progress(f"{counts.total():,} rows read")
    return Summary(
        rows=counts.total(),
        accepted=counts["new"],
        known=counts["known"],
        changed=counts["changed"],
        rejected=counts["refused"],
        rejects_file=str(rejects.path) if counts["refused"] else None,
        other_sheets=rows.other_sheets(file),
    )


def _size(item: tuple[rows.Fields, NewTask] | rows.Reject) -> int:
    return len(item.text) if isinstance(item, rows.Reject) else len(item[0].text)


def _tasks(
    file: Path, tz: tzinfo | None, clock: Callable[[], float]
) -> Iterator[tuple[rows.Fields, NewTask] | rows.Reject]:
    seen: dict[int, int] = {}
    for row in rows.read_fields(file, _KNOWN):
        if isinstance(row, rows.Reject):
            yield row
            continue
        try:
            made = task(row.fields, tz, clock())
        except UsageError as error:
            yield rows.rejected(row, str(error))
            continue
        content = hash(made.content)
        if seen.setdefault(hash(made.task_id), content) != content:
            yield rows.rejected(
                row, f"the task {made.task_id!r} stands in an earlier row with another content"
            )
        else:
            yield row, made


def _conflict(row: rows.Fields, made: NewTask) -> rows.Reject:
    return rows.rejected(
        row, f"the task {made.task_id!r} is known with another content, and held or completed"
    )


def task(fields: dict[str, Any], tz: tzinfo | None, now: float) -> NewTask:
    """The task that a row describes; raises `UsageError` with the reason why there is none."""
    target = without_secrets(_target(fields))
    platform = _text(fields, "platform")
    others = {
        name: value
        for name, value in fields.items()
        if name not in _KNOWN and value not in ("", None)
    }
    others = without_secrets(others)
    if "url" not in target and not (platform and (target or others)):
        raise UsageError("there is no url, nor a platform and a field that could give it")
    priority, deadline = _priority(fields), _moment(fields, "deadline", tz, now)
    task_id = _text(fields, "task_id") or f"row-{_checksum(fields)[:24]}"
    body = others | {
        "task_id": task_id,
        "type": _text(fields, "type") or "parcel",
        "platform": platform or None,
        "target": target,
        "priority": priority,
        "created_at": _iso(_moment(fields, "created_at", tz, now) or now),
    }
    body |= {"deadline": _iso(deadline)} if deadline is not None else {}
    text = msgspec.json.encode(body).decode()
    if len(text) > MAX_TASK:
        raise UsageError(f"the task would have {len(text):,} characters, more than {MAX_TASK:,}")
    # As the row has them: 17:00 is another moment tomorrow, and no moment at all is that of the
    # import.
    moments = {name: _text(fields, name) for name in ("created_at", "deadline")}
    return NewTask(task_id, platform, priority, deadline, text, _checksum(body | moments))


def _target(fields: dict[str, Any]) -> dict[str, Any]:
    """What a task is about: an object of its own, as the Gateway's tasks have it, or columns."""
    given = fields.get("target") or {}
    if not isinstance(given, dict):
        raise UsageError("the target is not an object")
    target = {name: value for name, value in given.items() if value not in ("", None)}
    target |= {name: text for name in _TARGET if (text := _text(fields, name, MAX_TEXT * 50))}
    if "url" in target:
        url = target["url"]
        if not isinstance(url, str):
            raise UsageError("the url is not text")
        if credentials(url):
            raise UsageError(
                "the url holds a user name or a password, which no worker must be told"
            )
        target["url"] = parse(url).url
    return target


def _text(fields: dict[str, Any], name: str, limit: int = MAX_TEXT) -> str:
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UsageError(f"the {name} is not text")
    value = value.strip()
    if len(value) > limit:
        raise UsageError(f"the {name} has {len(value):,} characters, more than {limit:,}")
    if not value.isprintable():
        raise UsageError(f"there are control characters in the {name}")
    return value


def _priority(fields: dict[str, Any]) -> int:
    text = _text(fields, "priority")
    if text not in _PRIORITIES:
        raise UsageError(f"the priority {text[:50]!r} is not a whole number from 1 to 4")
    return _PRIORITIES[text]


def _moment(fields: dict[str, Any], name: str, tz: tzinfo | None, now: float) -> float | None:
    text = _text(fields, name)
    if not text:
        return None
    at = times.moment(text, now, tz)
    if at is None or not 0 <= at < 1e11:
        raise UsageError(f"the {name} {text[:50]!r} is no time such as 2026-11-15T17:00:00Z")
    return at


def _checksum(fields: dict[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
