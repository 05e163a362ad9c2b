"""Siblings: open tasks of one job with the same page under several parcel ids, for which one fetch
is enough.

While one of them is fetched the others wait; its commit gives each of them a result of its own, or
its failure. A Gateway's tasks are no siblings: each is answered on its own.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from crawler.db.acts import HELD
from crawler.db.connection import Database
from crawler.models import Outcome

WAIT_S = 60.0
"""How long siblings wait for a page of which nothing is heard: its worker died, or its turn does
not come."""
MAX_HELD = 1000
"""Siblings that one transaction puts off, ends or makes due again."""
MAX_COMPLETED, MAX_BYTES = 1000, 16_000_000
"""What one commit copies at most, in results and in bytes of records; the others are fetched."""
_NO_OTHER_WAIT = "(x.not_before = 0 OR x.failures = 0)"
"""A task that has failed itself waits for its own retry."""
_SIDES = (">", "<")
_PAGE = "json_array(t.job_id, hex(t.url_key), t.loopback)"
_AMONG = "FROM json_each(?) JOIN tasks t ON t.id = value"
_IN_FLIGHT = "t.status = 'processing' AND t.job_id IS NOT NULL AND t.source <> 'gateway'"


class Room(NamedTuple):
    """How many results, and bytes of records, one commit may still copy."""

    results: int = MAX_COMPLETED
    size: int = MAX_BYTES


# Each side by itself is a range of the index, and begins beside the task: closed siblings are not
# all passed over.
_SHARED = " OR ".join(
    f"EXISTS (SELECT 1 FROM tasks x WHERE x.url_key = t.url_key AND x.parcel_id {side} t.parcel_id)"
    for side in _SIDES
)
_PENDING = " UNION ALL ".join(
    f"""SELECT x.id FROM tasks t CROSS JOIN tasks x ON x.url_key = t.url_key AND x.parcel_id {side} t.parcel_id
        WHERE t.id = ?1 AND x.is_open = 1 AND x.status = 'pending' AND x.job_id = t.job_id
        AND x.source <> 'gateway' AND x.loopback = t.loopback AND {{condition}}"""
    for side in _SIDES
)


def shared(db: Database, ids: Sequence[int]) -> list[int]:
    """Those of some tasks whose pages were ever wanted under another parcel id; for most jobs that
    is none."""
    rows = db.all(
        f"""SELECT t.id FROM json_each(?) JOIN tasks t ON t.id = value
            WHERE t.job_id IS NOT NULL AND t.source <> 'gateway' AND ({_SHARED})""",
        (_json(ids),),
    )
    return [row[0] for row in rows]


def hold(db: Database, ids: Sequence[int], now: float) -> list[int]:
    """Choose one of each page's siblings among tasks that are about to be leased, unless one is in
    flight already, and have the others wait; returns the chosen ones."""
    candidates = shared(db, ids)
    if not candidates:
        return list(ids)
    page_of = dict(db.all(f"SELECT t.id, {_PAGE} {_AMONG}", (_json(candidates),)))
    in_flight = {page for (page,) in db.all(f"SELECT {_PAGE} FROM tasks t WHERE {_IN_FLIGHT}")}
    until = now + WAIT_S
    due = f"x.not_before < {until!r} AND {_NO_OTHER_WAIT}"
    chosen: list[int] = []
    others: list[int] = []
    for id_ in ids:
        page = page_of.get(id_)
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
    """Have siblings of a page that is to be tried again wait for that: they would meet the same
    trouble."""
    _wait(db, _pending(db, id_, f"x.not_before < {HELD!r} AND {_NO_OTHER_WAIT}"), until + WAIT_S)


def release(db: Database, id_: int) -> None:
    """Make those due that waited for a page which brought them no result."""
    _wait(db, _pending(db, id_, f"x.not_before BETWEEN 1 AND {HELD / 2!r} AND x.failures = 0"), 0.0)


def complete(
    db: Database, outcome: Outcome, detail: dict[str, Any], now: float, room: Room
) -> tuple[list[int], Room]:
    """Give siblings of a task that has just got its result the same one, each under its own row of
    input.

    Returns these, and what room is left.
    """
    leader = outcome.task.id
    [(length,)] = db.all("SELECT octet_length(record) FROM results WHERE task = ?", (leader,))
    ids = _pending(db, leader, "1", min(room.results, room.size // max(1, length)))
    if not ids:
        return [], room
    chosen = _json(ids)
    db.execute(
        """UPDATE tasks SET status = 'completed', not_before = 0, deaths = 0, error_type = NULL, error_message = NULL,
               completed_at = ?, message_id = ifnull(message_id, (SELECT message_id FROM tasks WHERE id = ?))
           WHERE id IN (SELECT value FROM json_each(?))""",
        (now, leader, chosen),
    )
    db.execute(
        """INSERT INTO results
           SELECT value, record, final_url, status_code, content_type, verdict, bytes, body_sha256, fetch_ms, parse_ms,
               parser, parser_version, raw_segment, raw_offset, raw_length, scraped_at, site, site_version,
               ifnull(same_as, task)
           FROM json_each(?) CROSS JOIN results WHERE task = ?""",
        (chosen, leader),
    )
    db.execute(
        "INSERT INTO outbox (task, state, created_at) SELECT value, 'held', ? FROM json_each(?)",
        (now, chosen),
    )
    own = ("attempt", "sent", "limit", "claimed_at", "decision")
    told = {name: value for name, value in detail.items() if name not in own} | {
        "same_fetch_as": outcome.task.task_id
    }
    db.execute(
        "INSERT INTO events (task, at, kind, detail) SELECT value, ?, 'completed', ? FROM json_each(?)",
        (now, _json(told), chosen),
    )
    return ids, Room(room.results - len(ids), room.size - len(ids) * length)


def waiting(db: Database, id_: int) -> list[int]:
    """Those that wait for a page, and for nothing of their own."""
    return _pending(db, id_, f"x.not_before < {HELD!r} AND x.failures = 0")


def _pending(db: Database, id_: int, condition: str, limit: int = MAX_HELD) -> list[int]:
    return [
        row[0] for row in db.all(f"{_PENDING.format(condition=condition)} LIMIT ?2", (id_, limit))
    ]


def _wait(db: Database, ids: Sequence[int], until: float) -> None:
    if ids:
        db.execute(
            "UPDATE tasks SET not_before = ? WHERE id IN (SELECT value FROM json_each(?)) AND status = 'pending'",
            (until, _json(ids)),
        )


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
