"""What a Gateway gave and what it is to get: tasks under its own ids, results, and reports of those
that have none."""

import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from crawler.db.connection import Database, writing
from crawler.db.ledger import Ledger
from crawler.models import NO_DEADLINE, Job, Raw, encoded_input
from crawler.urls import Address

GATEWAY = "gateway"
"""The source of its tasks, and the key of the job that they make up."""
FINAL = (409, 410)
"""Refusals that are not asked for again, unless a result is named: the Gateway wants it no more."""
SLICE = 2000
"""Tasks a transaction: others want to write too."""
AHEAD_S = 120.0
"""Nothing is put off for longer: a time beyond that is of a clock that was wrong."""
MAX_SITE = 64
"""Characters of a host that stands for a platform."""
_PLACES = {1: ("urgent", 1), 2: ("default", 2), 3: ("default", 5), 4: ("default", 8)}
_NO_ADDRESS = Address("", b"", "")


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """A Gateway's task; `refusal` says why it cannot be worked on."""

    external_id: str
    address: Address = _NO_ADDRESS
    priority: int = 3
    """As the Gateway counts: 1 is the most urgent, 4 the least."""
    platform: str | None = None
    parcel_id: str = ""
    deadline: float = NO_DEADLINE
    not_before: float = 0.0
    input: dict[str, Any] = {}
    refusal: str | None = None


class Assigned(NamedTuple):
    """What became of tasks that were handed out: new, or known (then perhaps to be done, or
    answered, again)."""

    accepted: int
    refused: int
    known: int


class NaturalKey(msgspec.Struct, frozen=True):
    """What a Gateway stores a result under: a second result with the same four values replaces the
    first."""

    parcel_id: str
    platform: str | None
    state: str | None
    county: str | None


class KeyHolder(NamedTuple):
    """The task whose result was sent last under a natural key."""

    task_id: str
    url_key: bytes
    state: str | None
    """Of its delivery."""
    synced_at: float | None


class Parcel(msgspec.Struct, frozen=True, kw_only=True):
    """A result on its way: `task_id` is what the Gateway knows its task by, `key` what it stores it
    under."""

    task: int
    own_id: str
    task_id: str
    late: bool
    batch: str | None
    tries: int
    raw: Raw | None
    """Where its page is, if it has one."""
    sha256: str
    content_type: str
    url: str
    scraped_at: float
    key: NaturalKey
    url_key: bytes
    type: str | None
    """As the Gateway's task has it."""
    asked_at: float | None
    """When the Gateway handed the task out; None where it did not."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a task without a result."""

    task: int
    task_id: str
    tries: int
    since: float
    reason: str
    error_type: str
    attempts: int
    type: str | None = None


def of_gateway(db: Database) -> int:
    """How much here is a Gateway's own, or was or is to be sent to one: no other may ever hear of
    it."""
    [(count,)] = db.all(
        """SELECT (SELECT count(*) FROM tasks WHERE source = 'gateway')
                + (SELECT count(*) FROM outbox JOIN tasks ON id = task
                   WHERE source <> 'gateway' AND state IN ('ready', 'rejected'))"""
    )
    return int(count)


def get_note(db: Database, name: str) -> str | None:
    """What was noted under this name about the Gateway."""
    row = db.one("SELECT value FROM meta WHERE key = ?", (f"gateway_{name}",))
    return str(row[0]) if row else None


def set_note(db: Database, name: str, value: str | None) -> None:
    """Note something about the Gateway, or that it holds no more."""
    with writing(db):
        _set_note(db, name, value)


def _set_note(db: Database, name: str, value: str | None) -> None:
    if value is None:
        db.execute("DELETE FROM meta WHERE key = ?", (f"gateway_{name}",))
    else:
        db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (f"gateway_{name}", value))


def troubles(db: Database) -> list[str]:
    """What each service has noted as wrong with the Gateway, each once."""
    rows = db.all("SELECT value FROM meta WHERE key GLOB 'gateway_trouble_*' ORDER BY key")
    return list(dict.fromkeys(row[0] for row in rows))


# Tasks


def poll_key(db: Database, kind: str | None = None) -> str:
    """The name of the next question for work of a type: the same until an answer to it was
    stored."""
    key = get_note(db, _poll(kind))
    if key is None:
        key = secrets.token_hex(16)
        set_note(db, _poll(kind), key)
    return key


def _poll(kind: str | None) -> str:
    return f"poll_{kind}" if kind else "poll"


def assign(
    ledger: Ledger,
    job: Job,
    tasks: Sequence[Assignment],
    unnamed: Iterable[tuple[str, str]],
    now: float,
    kind: str | None = None,
) -> Assigned:
    """Put a Gateway's tasks into the ledger, all that one answer held, and be done with its
    question.

    `unnamed` are those without a usable id, by reason and beginning: nobody can be told of them,
    but they are kept.
    """
    first, rest = tasks[:SLICE], tasks[SLICE:]
    done = _assign(ledger, job, first, unnamed, now, None if rest else _poll(kind))
    if not rest:
        return done
    more = assign(ledger, job, rest, (), now, kind)
    return Assigned(*(sum(pair) for pair in zip(done, more, strict=True)))


def _assign(
    ledger: Ledger,
    job: Job,
    tasks: Sequence[Assignment],
    unnamed: Iterable[tuple[str, str]],
    now: float,
    poll: str | None,
) -> Assigned:
    accepted = refused = known = 0
    with writing(ledger.db):
        for task in tasks:
            row = ledger.db.one(
                "SELECT id, status FROM tasks WHERE external_id = ? AND source = 'gateway'",
                (task.external_id,),
            )
            if row and _is_another(ledger.db, row[0], task):
                ledger.db.execute(
                    "UPDATE tasks SET external_id = external_id || '#' || id WHERE id = ?",
                    (row[0],),
                )
                row = None
            if row is None:
                id_ = _insert(ledger.db, job, task, now)
                accepted, refused = (
                    accepted + (task.refusal is None),
                    refused + (task.refusal is not None),
                )
            else:
                known += 1
                id_, status = row
                if not _again(ledger.db, id_, status, task):
                    continue
                ledger.event(id_, "handed out again", {}, now)
            if task.refusal is not None:
                ledger.end_without_result([id_], "failed", "bad_task", task.refusal, now)
        ledger.db.execute(
            "UPDATE jobs SET size = size + ? WHERE id = ?", (accepted + refused, job.id)
        )
        for reason, text in unnamed:
            ledger.db.execute("UPDATE jobs SET rejected = rejected + 1 WHERE id = ?", (job.id,))
            ledger.db.execute(
                """INSERT INTO rejected_rows (job_id, source_line, reason, text)
                   SELECT ?1, ifnull(max(source_line), 0) + 1, ?2, ?3 FROM rejected_rows WHERE job_id = ?1""",
                (job.id, reason, text),
            )
        if poll:
            _set_note(ledger.db, poll, None)
    return Assigned(accepted, refused, known)


def _insert(db: Database, job: Job, task: Assignment, now: float) -> int:
    queue, priority = _PLACES[task.priority]
    [(id_,)] = db.all(
        """INSERT INTO tasks (task_id, external_id, job_id, url, url_key, domain, parcel_id, queue, priority, deadline,
               not_before, source, platform, input, imported_at)
           VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'gateway', ?, ?, ?) RETURNING id""",
        (secrets.token_hex(16), task.external_id, job.id, *task.address, task.parcel_id, queue, priority,
         task.deadline, task.not_before, task.platform, encoded_input(task.input), now),
    )  # fmt: skip
    return int(id_)


def _is_another(db: Database, id_: int, task: Assignment) -> bool:
    """Whether an id has come back with another page to fetch, its first one being delivered: then
    it is a new task."""
    if task.refusal is not None:
        return False
    return bool(
        db.one(
            """SELECT 1 FROM tasks t JOIN outbox o ON o.task = t.id
               WHERE t.id = ? AND o.state = 'synced' AND (t.url_key, t.parcel_id) <> (?, ?)""",
            (id_, task.address.key, task.parcel_id),
        )
    )


def _again(db: Database, id_: int, status: str, task: Assignment) -> bool:
    """A task that is handed out again: open, it goes on; with a result, that is sent again; else it
    is done again, but only where the Gateway had heard of its end. True where it is pending now."""
    if status == "completed":
        db.execute(
            """UPDATE outbox SET state = 'ready', batch = NULL, raw_sent_at = NULL, tries = 0, not_before = 0,
                   code = NULL, problem = NULL
               WHERE task = ? AND state IN ('synced', 'rejected')""",
            (id_,),
        )
        return False
    if not db.one("SELECT 1 FROM reports WHERE task = ? AND state <> 'ready'", (id_,)):
        return False
    queue, priority = _PLACES[task.priority]
    db.execute(
        """UPDATE tasks SET status = 'pending', url = ?, url_key = ?, domain = ?, parcel_id = ?, queue = ?,
               priority = ?, deadline = ?, platform = ?, input = ?, not_before = ?, failures = 0, strikes = 0,
               error_type = NULL, error_message = NULL, completed_at = NULL, message_id = NULL
           WHERE id = ?""",
        (*task.address, task.parcel_id, queue, priority, task.deadline, task.platform,
         encoded_input(task.input), task.not_before, id_),
    )  # fmt: skip
    return True


def open_count(db: Database) -> int:
    """How many of the Gateway's tasks are here and not done."""
    [(count,)] = db.all(
        "SELECT count(*) FROM tasks WHERE source = 'gateway' AND status IN ('pending', 'processing')"
    )
    return int(count)


def states(db: Database) -> dict[str, int]:
    """How many of the Gateway's tasks are in each state."""
    return dict(
        db.all("SELECT status, count(*) FROM tasks WHERE source = 'gateway' GROUP BY status")
    )


def ended(db: Database, since: float) -> dict[str, int]:
    """How many of the Gateway's tasks have ended since, by their state; of the last 20,000
    events."""
    return dict(
        db.all(
            """SELECT kind, count(*) FROM (SELECT task, at, kind FROM events ORDER BY id DESC LIMIT 20000) e
               JOIN tasks t ON t.id = e.task
               WHERE at > ? AND kind IN ('completed', 'failed', 'skipped', 'expired', 'poison') AND source = 'gateway'
               GROUP BY kind""",
            (since,),
        )
    )


# Results and reports

_PARCEL = """
    SELECT o.task, t.task_id, iif(t.source IN ('gateway', 'bundle'), ifnull(t.external_id, t.task_id), t.task_id),
           iif(o.batch IS NULL, t.deadline <= ?1, o.late), o.batch, o.tries, r.raw_segment, r.raw_offset, r.raw_length,
           r.body_sha256, r.content_type, r.final_url, r.scraped_at, t.url_key,
           t.input ->> '$.task.type', iif(t.source = 'gateway', t.imported_at, NULL),
           t.parcel_id, t.input ->> '$.platform', t.input ->> '$.state', t.input ->> '$.county',
           iif(r.site = 'default', t.domain, r.site)
    FROM outbox o JOIN tasks t ON t.id = o.task JOIN results r ON r.task = o.task"""
_DUE = f"o.state = 'ready' AND (o.not_before <= ?1 OR o.not_before > ?1 + {AHEAD_S})"
_NOT_LATER = "NOT IN (SELECT value FROM json_each(?2))"


def pages(db: Database, limit: int, now: float, later: Collection[int] = ()) -> list[Parcel]:
    """The results whose pages are to be sent next, in the order in which they were made, but for
    some."""
    rows = db.all(
        f"""{_PARCEL} WHERE {_DUE} AND o.raw_sent_at IS NULL AND o.task {_NOT_LATER}
            ORDER BY o.created_at, o.task LIMIT ?3""",
        (now, msgspec.json.encode(list(later)).decode(), limit),
    )
    return [_parcel(row) for row in rows]


def parcels(db: Database, limit: int, now: float, later: Collection[str] = ()) -> list[Parcel]:
    """The results to be sent next, their pages being there: a request that was begun (but for
    some), else new ones."""
    known = f"{_DUE} AND o.raw_sent_at IS NOT NULL"
    begun = db.one(
        f"""SELECT batch FROM outbox o WHERE {known} AND batch IS NOT NULL AND batch {_NOT_LATER}
            ORDER BY created_at, task LIMIT 1""",
        (now, msgspec.json.encode(list(later)).decode()),
    )
    which, value = ("o.batch = ?2", begun[0]) if begun else ("o.batch IS NULL AND ?2 IS NULL", None)
    rows = db.all(
        f"{_PARCEL} WHERE {known} AND {which} ORDER BY o.created_at, o.task LIMIT ?3",
        (now, value, limit),
    )
    return [_parcel(row) for row in rows]


def _parcel(row: tuple[Any, ...]) -> Parcel:
    task, own_id, task_id, late, batch, tries, *place, sha256, content_type, url, scraped_at = row[
        :13
    ]
    url_key, type_, asked_at, *fields, site = row[13:]
    return Parcel(
        task=task,
        own_id=own_id,
        task_id=task_id,
        late=bool(late),
        batch=batch,
        tries=tries,
        raw=Raw(segment=place[0], offset=place[1], length=place[2]) if place[0] else None,
        sha256=sha256,
        content_type=content_type,
        url=url,
        scraped_at=scraped_at,
        key=_natural_key(
            [None if value in (None, "") else str(value) for value in fields], url_key, site
        ),
        url_key=url_key,
        type=type_,
        asked_at=asked_at,
    )


def _natural_key(fields: Sequence[str | None], url_key: bytes, site: str) -> NaturalKey:
    """A result's own key; one without a parcel is known by its page and site, or all of these would
    be one row."""
    parcel_id, platform, state, county = fields
    if parcel_id is None:
        parcel_id, platform = url_key.hex(), platform or site[-MAX_SITE:]
    return NaturalKey(parcel_id, platform, state, county)


def key_holders(db: Database, keys: Collection[str]) -> dict[str, KeyHolder]:
    """Who was sent under these natural keys before."""
    rows = db.all(
        """SELECT k.key, iif(t.source IN ('gateway', 'bundle'), ifnull(t.external_id, t.task_id), t.task_id),
               t.url_key, o.state, o.synced_at
           FROM json_each(?) j JOIN delivery_keys k ON k.key = j.value JOIN tasks t ON t.id = k.task
           LEFT JOIN outbox o ON o.task = k.task""",
        (msgspec.json.encode(list(keys)).decode(),),
    )
    return {row[0]: KeyHolder(*row[1:]) for row in rows}


def forget_keys(db: Database) -> None:
    """Another Gateway has got nothing from here yet."""
    with writing(db):
        db.execute("DELETE FROM delivery_keys")


def note_replaced(db: Database, parcels: Collection[Parcel], problem: str) -> None:
    """The Gateway has written these over rows that nothing from here has made, or some of them."""
    with writing(db):
        for parcel in parcels:
            db.execute(
                "UPDATE outbox SET replaced = 1, problem = ? WHERE task = ?", (problem, parcel.task)
            )


def raw_sent(db: Database, task: int, now: float, problem: str | None = None) -> None:
    """The Gateway has confirmed a result's page; with a problem: there is none that could be
    sent."""
    with writing(db):
        db.execute(
            "UPDATE outbox SET raw_sent_at = ?, problem = ? WHERE task = ? AND state = 'ready'",
            (0 if problem else now, problem, task),
        )


def begin_batches(
    db: Database, batches: Sequence[Sequence[Parcel]], keys: Mapping[int, str] | None = None
) -> list[str]:
    """Fix which results go in one request, so that it can be repeated byte for byte; returns their
    names.

    `keys` are the natural keys of those that are sent for the first time.
    """
    names = [secrets.token_hex(8) for _ in batches]
    with writing(db):
        for name, batch in zip(names, batches, strict=True):
            for parcel in batch:
                db.execute(
                    "UPDATE outbox SET batch = ?, late = ? WHERE task = ?",
                    (name, parcel.late, parcel.task),
                )
                if keys:
                    db.execute(
                        "INSERT OR REPLACE INTO delivery_keys VALUES (?, ?)",
                        (keys[parcel.task], parcel.task),
                    )
    return names


def reports(db: Database, limit: int, now: float, later: Collection[int] = ()) -> list[Report]:
    """The ends without a result that the Gateway is to hear of next, but for some."""
    rows = db.all(
        f"""SELECT o.task, t.external_id, o.tries, o.created_at,
               ifnull(iif(t.status = 'completed', 'its result was rejected: ' ||
                   (SELECT problem FROM outbox WHERE task = t.id), t.error_message), t.status),
               iif(t.status = 'completed', 'result_rejected', ifnull(t.error_type, t.status)), t.attempts,
               t.input ->> '$.task.type'
           FROM reports o JOIN tasks t ON t.id = o.task WHERE {_DUE} AND o.task {_NOT_LATER}
           ORDER BY o.created_at, o.task LIMIT ?3""",
        (now, msgspec.json.encode(list(later)).decode(), limit),
    )
    return [Report(**dict(zip(Report.__struct_fields__, row, strict=True))) for row in rows]


def reported(db: Database, report: Report, now: float) -> None:
    """The Gateway has heard of a task's end: of this one, and of none that came behind it."""
    with writing(db):
        db.execute(
            """UPDATE reports SET state = 'synced', synced_at = ?, problem = NULL
               WHERE task = ? AND state = 'ready' AND created_at = ?""",
            (now, report.task, report.since),
        )


def refused(
    db: Database, item: Parcel | Report, code: int, problem: str, not_before: float | None
) -> None:
    """The Gateway did not take this: it is sent again later, or (with no time for that) kept as
    rejected."""
    table = "outbox" if isinstance(item, Parcel) else "reports"
    batch = ", batch = NULL" if isinstance(item, Parcel) else ""
    which, values = ("", ()) if isinstance(item, Parcel) else (" AND created_at = ?", (item.since,))
    with writing(db):
        db.execute(
            f"""UPDATE {table} SET state = ?, tries = tries + 1, not_before = ?, code = ?, problem = ?{batch}
                WHERE task = ? AND state = 'ready'{which}""",
            (
                "rejected" if not_before is None else "ready",
                not_before or 0,
                code,
                problem,
                item.task,
                *values,
            ),
        )


def release(db: Database, job: Job | None = None, task_ids: Collection[str] | None = None) -> int:
    """Let held results go to the Gateway: all, those of a job, or these; returns how many."""
    conditions = ["state = 'held'"]
    values: list[Any] = []
    if job:
        conditions.append(
            "task IN (SELECT id FROM tasks WHERE job_id = ?1 UNION SELECT task FROM job_links WHERE job_id = ?1)"
        )
        values.append(job.id)
    elif task_ids is not None:
        conditions.append(
            "task IN (SELECT id FROM tasks WHERE task_id IN (SELECT value FROM json_each(?1)))"
        )
        values.append(msgspec.json.encode(list(task_ids)).decode())
    with writing(db):
        db.execute(
            f"UPDATE outbox SET state = 'ready' WHERE {' AND '.join(conditions)}", tuple(values)
        )
        return int(db.changes())


def retry(db: Database, task_ids: Collection[str]) -> int:
    """Send what was rejected again: these (by either id), or with none all but what the Gateway
    wants no more."""
    wanted = """task IN (SELECT id FROM tasks WHERE task_id IN (SELECT value FROM json_each(?1))
                OR (external_id IN (SELECT value FROM json_each(?1)) AND source IN ('gateway', 'bundle')))"""
    condition = wanted if task_ids else f"?1 = '[]' AND code NOT IN {FINAL}"
    count = 0
    with writing(db):
        for table in ("outbox", "reports"):
            db.execute(
                f"""UPDATE {table} SET state = 'ready', tries = 0, not_before = 0
                    WHERE state = 'rejected' AND {condition}""",
                (msgspec.json.encode(list(task_ids)).decode(),),
            )
            count += db.changes()
    return count


def rejected(db: Database) -> list[dict[str, Any]]:
    """What the Gateway has refused for good, and why."""
    names = ("kind", "task_id", "own_id", "url", "code", "problem", "tries", "at")
    rows = db.all(
        """SELECT kind, iif(source IN ('gateway', 'bundle'), ifnull(external_id, task_id), task_id), task_id, url, code,
               problem, tries, created_at
           FROM (SELECT 'result' AS kind, task, code, problem, tries, created_at FROM outbox WHERE state = 'rejected'
                 UNION ALL SELECT 'report', task, code, problem, tries, created_at FROM reports
                 WHERE state = 'rejected') JOIN tasks ON id = task
           ORDER BY created_at, task"""
    )
    return [dict(zip(names, row, strict=True)) for row in rows]


def replaced(db: Database) -> list[dict[str, Any]]:
    """What may have replaced another result at the Gateway."""
    rows = db.all(
        """SELECT iif(source IN ('gateway', 'bundle'), ifnull(external_id, task_id), task_id), task_id, url, problem,
               synced_at
           FROM outbox JOIN tasks ON id = task WHERE replaced AND state = 'synced' ORDER BY synced_at, task"""
    )
    names = ("kind", "task_id", "own_id", "url", "problem", "at")
    return [dict(zip(names, ("replaced", *row), strict=True)) for row in rows]


def unsent(db: Database) -> int:
    """How much is to be sent; cheap enough to ask again and again."""
    [(count,)] = db.all(
        """SELECT (SELECT count(*) FROM outbox WHERE state = 'ready')
                + (SELECT count(*) FROM reports WHERE state = 'ready')"""
    )
    return int(count)
