"""Files that records name: linked from the results, each a task of the same crawl."""

from typing import Any

from crawler.db.connection import Database
from crawler.models import FILE, NamedFile, RawLocation
from crawler.urls import Address

_ITS_TASK = f"""SELECT max(o.id) FROM tasks o
    WHERE o.url_key = f.url_key AND +o.job_id = t.job_id AND o.method = '{FILE}'
    AND o.body = r.site"""
"""The task of a file, by a result r and its task t; + keeps SQLite from reading the whole job."""
LINKED = f"""CASE WHEN EXISTS (SELECT 1 FROM result_files f WHERE f.task = r.task) THEN (
    SELECT json_group_array(json_object(
        'field', f.field, 'url', f.url, 'task_id', x.task_id, 'status', x.status,
        'sha256', y.body_sha256, 'type', y.record ->> '$.type', 'bytes', y.bytes,
        'width', y.record ->> '$.width', 'height', y.record ->> '$.height') ORDER BY f.position)
    FROM result_files f LEFT JOIN tasks x ON x.id = ({_ITS_TASK})
        LEFT JOIN results y ON y.task = x.id
    WHERE f.task = r.task) END"""
"""A column: the files of a result as a JSON list; null for a result without any."""


def insert(db: Database, task: int, files: tuple[NamedFile, ...]) -> None:
    """Link files from the result of a task. Part of a transaction."""
    link(db, task, [(file.field, file.link.address) for file in files])


def link(db: Database, task: int, files: list[tuple[str, Address]]) -> None:
    """The same, by field and address; it may have had others, before it was lost."""
    db.execute("DELETE FROM result_files WHERE task = ?", (task,))
    db.executemany(
        """INSERT INTO result_files (task, position, field, url, url_key)
           VALUES (?, ?, ?, ?, ?)""",
        [
            (task, position, field, address.url, address.key)
            for position, (field, address) in enumerate(files)
        ],
    )


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
