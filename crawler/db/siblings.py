"""Siblings: open tasks of one job with the same page under several parcel ids, for which one fetch
is enough.

While one of them is fetched the others wait; its commit gives each of them a result of its own, or
its failure. A Gateway's tasks are no siblings: each is answered on its own. Nor are those of a
crawl, which has each page once: the same URL there is another submission of a form.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from crawler.db import result_files, timeline
from crawler.db.connection import Database
from crawler.db.results import COLUMNS, NEXT_SEQ
from crawler.db.store import HELD, LISTED, as_json
from crawler.models import Outcome

WAIT_S = 60.0
"""How long siblings wait for a page whose worker died, or whose turn does not come."""
MAX_WAITING = 1000
"""Siblings that one transaction puts off, ends or makes due again."""
MAX_COMPLETED_PER_COMMIT = 1000
MAX_COPIED_BYTES_PER_COMMIT = 16_000_000
"""Results beyond these limits are not copied; their pages are fetched."""
_NO_OTHER_WAIT = "(x.not_before = 0 OR x.failures = 0)"
"""A task that has failed itself waits for its own retry."""
_OF_THE_ATTEMPT = ("attempt", "sent", "limit", "claimed_at", "decision")
"""Details that the timeline of a sibling does not repeat."""
_SIDES = (">", "<")
_PAGE = "json_array(t.job_id, hex(t.url_key), t.loopback)"
_AMONG = "FROM json_each(?) JOIN tasks t ON t.id = value"
_IN_FLIGHT = "t.status = 'processing' AND t.job_id IS NOT NULL AND t.source <> 'gateway'"


class Room(NamedTuple):
    """How many results, and bytes of records, one commit may still copy."""

    results: int = MAX_COMPLETED_PER_COMMIT
    size: int = MAX_COPIED_BYTES_PER_COMMIT


# Each side by itself is a range of the index, and begins beside the task, so that closed siblings
# are not all passed over.
_SHARED = " OR ".join(
    f"""EXISTS (SELECT 1 FROM tasks x
                WHERE x.url_key = t.url_key AND x.parcel_id {side} t.parcel_id)"""
    for side in _SIDES
)
_PENDING = " UNION ALL ".join(
    f"""SELECT x.id FROM tasks t
        CROSS JOIN tasks x ON x.url_key = t.url_key AND x.parcel_id {side} t.parcel_id
        WHERE t.id = ?1 AND t.role IS NULL AND x.is_open = 1 AND x.status = 'pending'
        AND x.job_id = t.job_id AND x.source <> 'gateway' AND x.loopback = t.loopback
        AND {{condition}}"""
    for side in _SIDES
)


def shared(db: Database, ids: Sequence[int]) -> list[int]:
    """Those of some tasks whose URL some job also wants under another parcel id."""
    return db.column(
        f"""SELECT t.id {_AMONG}
            WHERE t.job_id IS NOT NULL AND t.role IS NULL AND t.source <> 'gateway'
            AND ({_SHARED})""",
        (as_json(ids),),
    )


def hold(db: Database, ids: Sequence[int], now: float) -> list[int]:
    """Choose one of each page's siblings among tasks that are about to be leased, unless one is in
    flight already, and have the others wait; returns the chosen ones."""
    candidates = shared(db, ids)
    if not candidates:
        return list(ids)
    stored_page = dict(db.all(f"SELECT t.id, {_PAGE} {_AMONG}", (as_json(candidates),)))
    in_flight = set(db.column(f"SELECT {_PAGE} FROM tasks t WHERE {_IN_FLIGHT}"))
    until = now + WAIT_S
    due = f"x.not_before < {until!r} AND {_NO_OTHER_WAIT}"
    chosen: list[int] = []
    others: list[int] = []
    for id_ in ids:
        page = stored_page.get(id_)
        if page in in_flight:
            others.append(id_)
            continue
        chosen.append(id_)
        if page is not None:
            in_flight.add(page)
            others += _pending(db, id_, due)
    _wait(db, others, until)
    return chosen


def put_off(db: Database, id_: int, until: float) -> None:
    """Have siblings of a page that is to be tried again wait: they would meet the same trouble."""
    _wait(db, _pending(db, id_, f"x.not_before < {HELD!r} AND {_NO_OTHER_WAIT}"), until + WAIT_S)


def release(db: Database, id_: int) -> None:
    """Make those due that waited for a page which brought them no result."""
    _wait(db, _pending(db, id_, f"x.not_before BETWEEN 1 AND {HELD / 2!r} AND x.failures = 0"), 0.0)


def complete(
    db: Database, outcome: Outcome, detail: dict[str, Any], now: float, room: Room
) -> tuple[list[int], Room]:
    """Give the siblings of a task its result, each under its own row of input.

    Returns these, and what room is left.
    """
    leader = outcome.task.id
    length = db.value("SELECT octet_length(record) FROM results WHERE task = ?", (leader,))
    ids = _pending(db, leader, "1", min(room.results, room.size // max(1, length)))
    if not ids:
        return [], room
    chosen = as_json(ids)
    db.execute(
        f"""UPDATE tasks SET status = 'completed', not_before = 0, deaths = 0, error_type = NULL,
                error_message = NULL, completed_at = ?,
                message_id = ifnull(message_id, (SELECT message_id FROM tasks WHERE id = ?))
            WHERE id {LISTED}""",
        (now, leader, chosen),
    )
    db.execute(
        f"""INSERT INTO results ({COLUMNS})
            SELECT value, record, final_url, status_code, content_type, verdict, bytes, body_sha256,
                fetch_ms, parse_ms, parser, parser_version, raw_segment, raw_offset, raw_length,
                scraped_at, site, site_version, ifnull(same_as, task), invalid, {NEXT_SEQ} + key
            FROM json_each(?) CROSS JOIN results WHERE task = ?""",
        (chosen, leader),
    )
    if outcome.rendering and outcome.rendering.captures:
        result_files.share_captures(db, chosen, leader)
    db.execute(
        "INSERT INTO outbox (task, state, created_at) SELECT value, 'held', ? FROM json_each(?)",
        (now, chosen),
    )
    told = {name: value for name, value in detail.items() if name not in _OF_THE_ATTEMPT}
    told["same_fetch_as"] = outcome.task.task_id
    timeline.note_all(db, chosen, "completed", told, now)
    return ids, Room(room.results - len(ids), room.size - len(ids) * length)


def waiting(db: Database, id_: int) -> list[int]:
    """Siblings that wait for a page, and for nothing of their own."""
    return _pending(db, id_, f"x.not_before < {HELD!r} AND x.failures = 0")


def _pending(db: Database, id_: int, condition: str, limit: int = MAX_WAITING) -> list[int]:
    return db.column(f"{_PENDING.format(condition=condition)} LIMIT ?2", (id_, limit))


def _wait(db: Database, ids: Sequence[int], until: float) -> None:
    if ids:
        db.execute(
            f"UPDATE tasks SET not_before = ? WHERE id {LISTED} AND status = 'pending'",
            (until, as_json(ids)),
        )
