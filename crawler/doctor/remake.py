"""Lost results made again from their stored pages, which outlive a damaged ledger."""

import zlib
from collections.abc import Iterator
from datetime import datetime
from hashlib import sha256
from typing import Any

import msgspec

from crawler.db import raw_pages, timeline
from crawler.db.connection import Database, writing
from crawler.doctor import Context, Seen
from crawler.errors import CrawlerError
from crawler.models import Raw

_LOST = """
    SELECT t.id, t.url, c.at, c.detail FROM tasks t
    JOIN events c ON c.id = (SELECT max(id) FROM events WHERE task = t.id AND kind = 'completed')
    WHERE t.status IN ('pending', 'expired') AND t.id NOT IN (SELECT task FROM results)
    AND t.id IN (SELECT task FROM events WHERE kind = 'result lost' AND id > c.id)"""
_FIELDS = (b"WARC-Target-URI: ", b"WARC-Date: ")


class _Completed(msgspec.Struct, frozen=True):
    """What the timeline of a task still tells of its result."""

    status: int = 200
    verdict: str = "ok"
    fetch_ms: float = 0.0
    parse_ms: float = 0.0
    raw: Raw | None = None
    record_crc32: int | None = None


def results(context: Context) -> Iterator[Seen]:
    """Results that a repair could not save, and whose pages it can read."""
    if not context.repair or context.reread is None or not context.db.all(f"{_LOST} LIMIT 1"):
        return
    lost = context.db.all(_LOST)
    context.close()
    with context.lpm() as lpm:
        same, now = 0, lpm.now()
        made = []
        with writing(lpm.store.durable):
            for id_, url, at, told in lost:
                about = msgspec.json.decode(told, type=_Completed)
                values = _result(context, url, at, about)
                if values is None:
                    continue
                checksum = zlib.crc32(values[0].encode())
                _store(lpm.store.durable, id_, values, at, now)
                detail = {
                    "again": "from the stored page",
                    "raw": about.raw,
                    "record_crc32": checksum,
                }
                timeline.note(lpm.store.durable, id_, "completed", detail, now)
                same += checksum == about.record_crc32
                made.append(id_)
        lpm.jobs.finalise(now)
        for id_ in made:
            lpm.files.write_one(id_)
    if made:
        other = f", {len(made) - same} of them read otherwise than then" if len(made) > same else ""
        yield Seen(
            "mended",
            f"{len(made)} of {len(lost)} lost results were made again from their stored pages{other}",
        )


def _result(context: Context, url: str, at: float, about: _Completed) -> tuple[Any, ...] | None:
    """The columns of a result behind its task; None where its page cannot be read, or says nothing
    any more."""
    if about.raw is None or context.reread is None:
        return None
    try:
        record = zlib.decompress(raw_pages.member(context.folder / "raw", about.raw), wbits=31)
        fields, head, received = raw_pages.response(record)
        final_url, date = (_field(fields, name) for name in _FIELDS)
        read = context.reread(url, final_url, head, received)
    except (CrawlerError, ValueError, zlib.error):
        return None
    if read is None:
        return None
    digest, place = (
        sha256(read.body).hexdigest(),
        (about.raw.segment, about.raw.offset, about.raw.length),
    )
    return (
        read.record.decode(), final_url, about.status, read.content_type, about.verdict, len(read.body), digest,
        about.fetch_ms, about.parse_ms, *read.parser, *place, _moment(date, at), *read.site,
    )  # fmt: skip


def _field(fields: list[bytes], name: bytes) -> str:
    return next((line.removeprefix(name).decode() for line in fields if line.startswith(name)), "")


def _moment(date: str, otherwise: float) -> float:
    try:
        return datetime.fromisoformat(date).timestamp()
    except ValueError:
        return otherwise


def _store(db: Database, id_: int, values: tuple[Any, ...], at: float, now: float) -> None:
    marks = ", ".join("?" * (1 + len(values)))
    db.execute(f"INSERT INTO results VALUES ({marks}, NULL)", (id_, *values))
    db.execute(
        """UPDATE tasks SET status = 'completed', owner = NULL, error_type = NULL, error_message = NULL,
               completed_at = ? WHERE id = ?""",
        (at, id_),
    )
    db.execute(
        """INSERT OR IGNORE INTO outbox (task, state, created_at)
           SELECT id, iif(source = 'gateway', 'ready', 'held'), ? FROM tasks WHERE id = ?""",
        (now, id_),
    )
