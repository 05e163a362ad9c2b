"""Files of results: those that records name, each a task of the same crawl, and what browsers have
made of pages."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from crawler.db.connection import Database
from crawler.models import FILE, Capture, NamedFile, Page, RawLocation
from crawler.urls import Address

_ITS_TASK = f"""SELECT max(o.id) FROM tasks o
    WHERE o.url_key = f.url_key AND +o.job_id = t.job_id AND o.method = '{FILE}'
    AND o.body = r.site"""
"""The task of a file, by a result r and its task t; + keeps SQLite from reading the whole job."""
_CAPTURE = """iif(
    EXISTS (SELECT 1 FROM raw_segments s WHERE s.name = f.capture ->> '$.raw.segment'),
    f.capture, json_remove(f.capture, '$.raw'))"""
"""A capture f, without its place if that was pruned."""
LINKED = f"""CASE WHEN EXISTS (SELECT 1 FROM result_files f WHERE f.task = r.task) THEN (
    SELECT json_group_array(json(iif(f.capture IS NULL, json_object(
        'field', f.field, 'url', f.url, 'task_id', x.task_id, 'status', x.status,
        'sha256', y.body_sha256, 'type', y.record ->> '$.type', 'bytes', y.bytes,
        'width', y.record ->> '$.width', 'height', y.record ->> '$.height'), json_patch(json_object(
        'field', f.field, 'url', f.url, 'task_id', t.task_id, 'status', t.status), {_CAPTURE})
    )) ORDER BY f.position)
    FROM result_files f LEFT JOIN tasks x ON f.capture IS NULL AND x.id = ({_ITS_TASK})
        LEFT JOIN results y ON y.task = x.id
    WHERE f.task = r.task) END"""
"""A column: the files of a result as a JSON list; null for a result without any."""


class LinkedFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file of a result: one that its record names, whose bytes are in a result of its own; or a
    capture, with its place in raw/."""

    field: str
    url: str
    task_id: str | None = None
    """Of a capture: that of its page."""
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")] | None = None
    type: str | None = None
    bytes: Annotated[int, Meta(ge=0, le=1 << 62)] | None = None
    width: Annotated[int, Meta(ge=0, le=1 << 31)] | None = None
    height: Annotated[int, Meta(ge=0, le=1 << 31)] | None = None
    raw: RawLocation | None = None

    @classmethod
    def captured(cls, page: Page, capture: Capture, digest: str, raw: RawLocation) -> "LinkedFile":
        """Return the entry of a capture at this place."""
        return cls(
            field=capture.name,
            url=page.final_url,
            sha256=digest,
            type=capture.type,
            bytes=len(capture.body),
            width=capture.width,
            height=capture.height,
            raw=raw,
        )

    def moved(self, raw: RawLocation | None) -> "LinkedFile":
        """Return it at another place."""
        return msgspec.structs.replace(self, raw=raw)


def split(task_id: str, files: Sequence[LinkedFile]) -> tuple[list[LinkedFile], list[LinkedFile]]:
    """Return the files that the record of a task names, and those that a browser has made."""
    named = [file for file in files if file.task_id != task_id]
    return named, [file for file in files if file.task_id == task_id]


def insert(db: Database, task: int, files: tuple[NamedFile, ...]) -> None:
    """Link files from the result of a task. Part of a transaction."""
    link(db, task, [(file.field, file.link.address) for file in files])


def link(db: Database, task: int, files: list[tuple[str, Address]]) -> None:
    """The same, by field and address; it may have had others, before it was lost."""
    db.execute("DELETE FROM result_files WHERE task = ? AND capture IS NULL", (task,))
    db.executemany(
        """INSERT INTO result_files (task, position, field, url, url_key)
           VALUES (?, ?, ?, ?, ?)""",
        [
            (task, position, field, address.url, address.key)
            for position, (field, address) in enumerate(files)
        ],
    )


def link_captures(db: Database, task: int, captures: Sequence[LinkedFile]) -> None:
    """Link what a browser has made of a page from its result. Part of a transaction."""
    db.execute("DELETE FROM result_files WHERE task = ? AND capture IS NOT NULL", (task,))
    db.executemany(
        """INSERT INTO result_files (task, position, field, url, url_key, capture)
           VALUES (?, ?, ?, ?, x'', json_remove(?, '$.field', '$.url', '$.task_id'))""",
        [
            (task, position, file.field, file.url, msgspec.json.encode(file).decode())
            for position, file in enumerate(captures, -len(captures))
        ],
    )


def share_captures(db: Database, tasks: str, leader: int) -> None:
    """Link the captures of one result from those of other tasks, a JSON list, too."""
    db.execute(
        """INSERT OR REPLACE INTO result_files (task, position, field, url, url_key, capture)
           SELECT value, position, field, url, url_key, capture
           FROM json_each(?) CROSS JOIN result_files WHERE task = ? AND capture IS NOT NULL""",
        (tasks, leader),
    )


def captures(db: Database, task: int) -> list[LinkedFile]:
    """Return what a browser has made of the page of a result."""
    sql = f"""SELECT json_patch(json_object('field', field, 'url', url), {_CAPTURE})
        FROM result_files f WHERE task = ? AND capture IS NOT NULL ORDER BY position"""
    return [msgspec.json.decode(text, type=LinkedFile) for text in db.column(sql, (task,))]


def stored_place(db: Database, digest: str) -> RawLocation | None:
    """Where the newest result with this content has its page; None if there is none."""
    row: tuple[Any, ...] | None = db.one(
        """SELECT raw_segment, raw_offset, raw_length FROM results r
           WHERE substr(body_sha256, 1, 12) = ? AND body_sha256 = ? AND raw_segment NOT NULL
           AND EXISTS (SELECT 1 FROM raw_segments s WHERE s.name = r.raw_segment)
           ORDER BY task DESC LIMIT 1""",
        (digest[:12], digest),
    )
    return RawLocation(segment=row[0], offset=row[1], length=row[2]) if row else None
