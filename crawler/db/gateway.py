"""The exchange with a Gateway: tasks that it hands out, and results and reports for it."""

import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from crawler.db import timeline
from crawler.db.connection import Database, writing
from crawler.db.store import LISTED, THEIR_ID, Part, as_json, members
from crawler.db.tasks import end_without_result
from crawler.models import NO_DEADLINE, Job, RawLocation, encoded_input
from crawler.urls import Address

GATEWAY = "gateway"
"""The source of a Gateway's tasks, and the key of their job."""
MAX_TASKS_PER_COMMIT = 2000
"""Tasks that one transaction inserts, so that others can write in between."""
_QUEUE_AND_PRIORITY = {
    1: ("urgent", 1),
    2: ("default", 2),
    3: ("default", 5),
    4: ("default", 8),
}
"""Ours, by the Gateway's priority."""
_NO_ADDRESS = Address("", b"", "")
_DURABLE_NOTES = ("url", "worker_id", "order")
"""Notes that a power cut must not undo; the others are written again soon."""


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
    """How many of the tasks that were handed out were new, refused here, or known."""

    accepted: int
    refused: int
    known: int


class GatewayTasks(Part):
    """Takes in a Gateway's tasks, and keeps notes about the Gateway."""

    # Notes

    def note(self, name: str) -> str | None:
        """What was noted under this name about the Gateway."""
        key = f"gateway_{name}"
        value: str | None = self._db.value("SELECT value FROM meta WHERE key = ?", (key,))
        return value

    def set_note(self, name: str, value: str | None) -> None:
        """Note something about the Gateway, or (with None) that it holds no more."""
        db = self._durable if name in _DURABLE_NOTES else self._db
        with writing(db):
            _set_note(db, name, value)

    def troubles(self) -> list[str]:
        """What each service has noted as wrong with the Gateway, each once."""
        rows = self._db.column(
            "SELECT value FROM meta WHERE key GLOB 'gateway_trouble_*' ORDER BY key"
        )
        return list(dict.fromkeys(rows))

    def poll_key(self, kind: str | None = None) -> str:
        """The idempotency key of the next request for work of a type, until that is answered."""
        name = _poll_note(kind)
        key = self.note(name)
        if key is None:
            key = secrets.token_hex(16)
            with writing(self._durable):
                _set_note(self._durable, name, key)
        return key

    # Tasks

    def assign(
        self,
        job: Job,
        tasks: Sequence[Assignment],
        unnamed: Iterable[tuple[str, str]],
        now: float,
        kind: str | None = None,
    ) -> Assigned:
        """Store all tasks of one answer, and forget the request that it answers.

        `unnamed` are tasks without a usable id, by reason and beginning: nobody can be told of
        them, but they are kept.
        """
        total = Assigned(0, 0, 0)
        for begin in range(0, max(1, len(tasks)), MAX_TASKS_PER_COMMIT):
            part = tasks[begin : begin + MAX_TASKS_PER_COMMIT]
            with writing(self._durable):
                done = _assign(self._durable, job, part, now)
                if begin == 0:
                    _reject_unnamed(self._durable, job, unnamed)
                if begin + MAX_TASKS_PER_COMMIT >= len(tasks):
                    _set_note(self._durable, _poll_note(kind), None)
            total = Assigned(*(sum(pair) for pair in zip(total, done, strict=True)))
        return total

    def open_count(self) -> int:
        """How many of the Gateway's tasks are here and not done."""
        return int(
            self._db.value(
                """SELECT count(*) FROM tasks
                   WHERE source = 'gateway' AND status IN ('pending', 'processing')"""
            )
        )

    def states(self) -> dict[str, int]:
        """How many of the Gateway's tasks are in each state."""
        return dict(
            self._db.all(
                "SELECT status, count(*) FROM tasks WHERE source = 'gateway' GROUP BY status"
            )
        )

    def ended(self, since: float) -> dict[str, int]:
        """How many of the Gateway's tasks have ended since, by state; of the last 20,000 events."""
        return dict(
            self._db.all(
                """SELECT kind, count(*)
                   FROM (SELECT task, at, kind FROM events ORDER BY id DESC LIMIT 20000) e
                   JOIN tasks t ON t.id = e.task
                   WHERE at > ? AND source = 'gateway'
                   AND kind IN ('completed', 'failed', 'skipped', 'expired', 'poison')
                   GROUP BY kind""",
                (since,),
            )
        )

    def count_of_gateway(self) -> int:
        """How much here came from a Gateway, or is to be sent to one: no other may hear of it."""
        return int(
            self._db.value(
                """SELECT (SELECT count(*) FROM tasks WHERE source = 'gateway')
                        + (SELECT count(*) FROM outbox JOIN tasks ON id = task
                           WHERE source <> 'gateway' AND state IN ('ready', 'rejected'))"""
            )
        )


def _set_note(db: Database, name: str, value: str | None) -> None:
    key = f"gateway_{name}"
    if value is None:
        db.execute("DELETE FROM meta WHERE key = ?", (key,))
    else:
        db.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, value))


def _poll_note(kind: str | None) -> str:
    return f"poll_{kind}" if kind else "poll"


def _assign(db: Database, job: Job, tasks: Sequence[Assignment], now: float) -> Assigned:
    accepted = refused = known = 0
    for task in tasks:
        row = db.one(
            "SELECT id, status FROM tasks WHERE external_id = ? AND source = 'gateway'",
            (task.external_id,),
        )
        if row and _is_another(db, row[0], task):
            db.execute(
                "UPDATE tasks SET external_id = external_id || '#' || id WHERE id = ?", (row[0],)
            )
            row = None
        if row is None:
            id_ = _insert(db, job, task, now)
            accepted += task.refusal is None
            refused += task.refusal is not None
        else:
            known += 1
            id_, status = row
            if not _hand_out_again(db, id_, status, task):
                continue
            timeline.note(db, id_, "handed out again", {}, now)
        if task.refusal is not None:
            end_without_result(db, [id_], "failed", "bad_task", task.refusal, now)
    db.execute("UPDATE jobs SET size = size + ? WHERE id = ?", (accepted + refused, job.id))
    return Assigned(accepted, refused, known)


def _reject_unnamed(db: Database, job: Job, unnamed: Iterable[tuple[str, str]]) -> None:
    for reason, text in unnamed:
        db.execute("UPDATE jobs SET rejected = rejected + 1 WHERE id = ?", (job.id,))
        db.execute(
            """INSERT INTO rejected_rows (job_id, source_line, reason, text)
               SELECT ?1, ifnull(max(source_line), 0) + 1, ?2, ?3
               FROM rejected_rows WHERE job_id = ?1""",
            (job.id, reason, text),
        )


def _insert(db: Database, job: Job, task: Assignment, now: float) -> int:
    queue, priority = _QUEUE_AND_PRIORITY[task.priority]
    db.execute(
        """INSERT INTO tasks (task_id, external_id, job_id, url, url_key, domain, parcel_id, queue,
               priority, deadline, not_before, source, platform, input, imported_at)
           VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'gateway', ?, ?, ?)""",
        (secrets.token_hex(16), task.external_id, job.id, *task.address, task.parcel_id, queue,
         priority, task.deadline, task.not_before, task.platform, encoded_input(task.input), now),
    )  # fmt: skip
    return db.last_insert_rowid()


def _is_another(db: Database, id_: int, task: Assignment) -> bool:
    """Whether an id has come back with another page, its first one being delivered."""
    if task.refusal is not None:
        return False
    row = db.one(
        """SELECT 1 FROM tasks t JOIN outbox o ON o.task = t.id
           WHERE t.id = ? AND o.state = 'synced' AND (t.url_key, t.parcel_id) <> (?, ?)""",
        (id_, task.address.key, task.parcel_id),
    )
    return row is not None


def _hand_out_again(db: Database, id_: int, status: str, task: Assignment) -> bool:
    """Treat a known task that is handed out again; True where it is pending now.

    An open one goes on. The result of a completed one is sent again, also one that is held because
    its record was replaced. Another is done again if the Gateway had heard of its end.
    """
    if status == "completed":
        db.execute(
            """UPDATE outbox SET state = 'ready', batch = NULL, raw_sent_at = NULL, tries = 0,
                   not_before = 0, code = NULL, problem = NULL
               WHERE task = ? AND state IN ('synced', 'rejected', 'held')""",
            (id_,),
        )
        return False
    if not db.one("SELECT 1 FROM reports WHERE task = ? AND state <> 'ready'", (id_,)):
        return False
    queue, priority = _QUEUE_AND_PRIORITY[task.priority]
    db.execute(
        """UPDATE tasks SET status = 'pending', url = ?, url_key = ?, domain = ?, parcel_id = ?,
               queue = ?, priority = ?, deadline = ?, platform = ?, input = ?, not_before = ?,
               failures = 0, strikes = 0, error_type = NULL, error_message = NULL,
               completed_at = NULL, message_id = NULL
           WHERE id = ?""",
        (*task.address, task.parcel_id, queue, priority, task.deadline, task.platform,
         encoded_input(task.input), task.not_before, id_),
    )  # fmt: skip
    return True


# What is sent to a Gateway

FINAL_REFUSALS = (409, 410)
"""Refusals after which nothing is sent again, unless a command names it."""
MAX_WAIT_S = 120.0
"""Nothing is put off for longer: a time beyond that is of a clock that was wrong."""
MAX_SITE_LENGTH = 64
"""Characters of a host that stands for a platform."""

_RESULT = f"""
    SELECT o.task, t.task_id, {THEIR_ID}, iif(o.batch IS NULL, t.deadline <= ?1, o.late), o.batch,
           o.tries, r.body_sha256, r.content_type, r.final_url, r.scraped_at, t.url_key,
           t.input ->> '$.task.type', iif(t.source = 'gateway', t.imported_at, NULL),
           r.raw_segment, r.raw_offset, r.raw_length, t.parcel_id, t.input ->> '$.platform',
           t.input ->> '$.state', t.input ->> '$.county', iif(r.site = 'default', t.domain, r.site)
    FROM outbox o JOIN tasks t ON t.id = o.task JOIN results r ON r.task = o.task"""
_DUE = f"o.state = 'ready' AND (o.not_before <= ?1 OR o.not_before > ?1 + {MAX_WAIT_S})"
_NOT_LATER = "NOT IN (SELECT value FROM json_each(?2))"
_KNOWN_STATES = ("held", "ready", "synced", "rejected")


class NaturalKey(msgspec.Struct, frozen=True):
    """What a Gateway stores a result under: another result with these values replaces it."""

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


class OutgoingResult(msgspec.Struct, frozen=True):
    """A result on its way to a Gateway."""

    task: int
    own_id: str
    task_id: str
    """What the Gateway knows its task by."""
    late: bool
    batch: str | None
    tries: int
    sha256: str
    content_type: str
    url: str
    scraped_at: float
    url_key: bytes
    type: str | None
    """As the Gateway's task has it."""
    asked_at: float | None
    """When the Gateway handed the task out; None where it did not."""
    raw: RawLocation | None
    """Where its page is, if it has one."""
    key: NaturalKey


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


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """Where the results of a job or of the whole ledger are, and what a Gateway has of them."""

    results: int = 0
    pending: int = 0
    """Of the results, those that lie in pending/."""
    archived: int = 0
    """Those that `results archive` has moved, and that no Gateway has."""
    held: int = 0
    """Those of standalone work, which only a command sends."""
    ready: int = 0
    synced: int = 0
    rejected: int = 0
    late: int = 0
    """Of those sent, the ones whose deadline had passed by then."""
    without_page: int = 0
    """Of those sent, the ones whose page could not be sent."""
    replaced: int = 0
    """Of the synced ones, those that may have replaced another result at the Gateway."""
    reports_ready: int = 0
    reports_synced: int = 0
    reports_rejected: int = 0
    oldest: float | None = None
    """Since when the oldest of what is to be sent waits."""

    @property
    def unsent(self) -> int:
        """All that a Gateway is to get."""
        return self.ready + self.reports_ready

    @property
    def refused(self) -> int:
        """All that a Gateway did not take."""
        return self.rejected + self.reports_rejected

    @property
    def concerns_gateway(self) -> bool:
        """Whether a Gateway has got, or is to get, or has refused anything."""
        return bool(self.unsent or self.refused or self.synced or self.reports_synced)


class Outbox(Part):
    """Chooses what is sent to a Gateway, and notes what it answered."""

    # To be sent

    def unsent(self) -> int:
        """How many results and reports are to be sent; cheap enough to ask again and again."""
        return int(
            self._db.value(
                """SELECT (SELECT count(*) FROM outbox WHERE state = 'ready')
                        + (SELECT count(*) FROM reports WHERE state = 'ready')"""
            )
        )

    def pages(self, limit: int, now: float, later: Collection[int] = ()) -> list[OutgoingResult]:
        """The results whose pages are to be sent next, oldest first, without those in `later`."""
        rows = self._db.all(
            f"""{_RESULT} WHERE {_DUE} AND o.raw_sent_at IS NULL AND o.task {_NOT_LATER}
                ORDER BY o.created_at, o.task LIMIT ?3""",
            (now, as_json(list(later)), limit),
        )
        return [_outgoing(row) for row in rows]

    def results(self, limit: int, now: float, later: Collection[str] = ()) -> list[OutgoingResult]:
        """The results to be sent next, once their pages were sent.

        Those of a request that was begun come first, except the requests in `later`.
        """
        known = f"{_DUE} AND o.raw_sent_at IS NOT NULL"
        begun = self._db.value(
            f"""SELECT batch FROM outbox o
                WHERE {known} AND batch IS NOT NULL AND batch {_NOT_LATER}
                ORDER BY created_at, task LIMIT 1""",
            (now, as_json(list(later))),
        )
        rows = self._db.all(
            f"{_RESULT} WHERE {known} AND o.batch IS ?2 ORDER BY o.created_at, o.task LIMIT ?3",
            (now, begun, limit),
        )
        return [_outgoing(row) for row in rows]

    def reports(self, limit: int, now: float, later: Collection[int] = ()) -> list[Report]:
        """The reports to be sent next, without those of the tasks in `later`."""
        rows = self._db.all(
            f"""SELECT o.task, t.external_id, o.tries, o.created_at,
                    ifnull(iif(t.status = 'completed', 'its result was rejected: ' ||
                        (SELECT problem FROM outbox WHERE task = t.id), t.error_message), t.status),
                    iif(t.status = 'completed', 'result_rejected', ifnull(t.error_type, t.status)),
                    t.attempts, t.input ->> '$.task.type'
                FROM reports o JOIN tasks t ON t.id = o.task WHERE {_DUE} AND o.task {_NOT_LATER}
                ORDER BY o.created_at, o.task LIMIT ?3""",
            (now, as_json(list(later)), limit),
        )
        return [Report(**dict(zip(Report.__struct_fields__, row, strict=True))) for row in rows]

    def begin_batches(
        self, batches: Sequence[Sequence[OutgoingResult]], keys: Mapping[int, str] | None = None
    ) -> list[str]:
        """Fix which results go in one request, so that it can be repeated byte for byte.

        Returns the names of the requests. `keys` are the natural keys of the results, by task, if
        they are sent for the first time.
        """
        db = self._db
        names = [secrets.token_hex(8) for _ in batches]
        with writing(db):
            for name, batch in zip(names, batches, strict=True):
                for result in batch:
                    db.execute(
                        "UPDATE outbox SET batch = ?, late = ? WHERE task = ?",
                        (name, result.late, result.task),
                    )
                    if keys:
                        db.execute(
                            "INSERT OR REPLACE INTO delivery_keys (key, task) VALUES (?, ?)",
                            (keys[result.task], result.task),
                        )
        return names

    def key_holders(self, keys: Collection[str]) -> dict[str, KeyHolder]:
        """Who was sent under these natural keys before."""
        rows = self._db.all(
            f"""SELECT k.key, {THEIR_ID}, t.url_key, o.state, o.synced_at
                FROM json_each(?) j JOIN delivery_keys k ON k.key = j.value
                JOIN tasks t ON t.id = k.task LEFT JOIN outbox o ON o.task = k.task""",
            (as_json(list(keys)),),
        )
        return {row[0]: KeyHolder(*row[1:]) for row in rows}

    def forget_keys(self) -> None:
        """Forget the natural keys: another Gateway has got nothing from here yet."""
        with writing(self._durable):
            self._durable.execute("DELETE FROM delivery_keys")

    # Answers

    def raw_sent(self, task: int, now: float, problem: str | None = None) -> None:
        """Note that a result's page was confirmed; with a problem, that there is none to send."""
        with writing(self._db):
            self._db.execute(
                "UPDATE outbox SET raw_sent_at = ?, problem = ? WHERE task = ? AND state = 'ready'",
                (0 if problem else now, problem, task),
            )

    def mark_synced(self, task_ids: Sequence[str], now: float) -> None:
        """Note that the Gateway has confirmed these results."""
        with writing(self._durable):
            self._durable.execute(
                f"""UPDATE outbox SET state = 'synced', synced_at = ?
                    WHERE task IN (SELECT id FROM tasks WHERE task_id {LISTED})""",
                (now, as_json(list(task_ids))),
            )

    def note_replaced(self, results: Collection[OutgoingResult], problem: str) -> None:
        """Note that some of these may have replaced rows at the Gateway that are not ours."""
        with writing(self._durable):
            for result in results:
                self._durable.execute(
                    "UPDATE outbox SET replaced = 1, problem = ? WHERE task = ?",
                    (problem, result.task),
                )

    def reported(self, report: Report, now: float) -> None:
        """Note that the Gateway has heard of this end of a task, and of no later one."""
        with writing(self._durable):
            self._durable.execute(
                """UPDATE reports SET state = 'synced', synced_at = ?, problem = NULL
                   WHERE task = ? AND state = 'ready' AND created_at = ?""",
                (now, report.task, report.since),
            )

    def refused(
        self, item: OutgoingResult | Report, code: int, problem: str, not_before: float | None
    ) -> None:
        """Note a refusal: it is sent again at that time, or (with None) kept as rejected."""
        state = "rejected" if not_before is None else "ready"
        values = (state, not_before or 0, code, problem, item.task)
        change = "state = ?, tries = tries + 1, not_before = ?, code = ?, problem = ?"
        with writing(self._durable):
            if isinstance(item, OutgoingResult):
                self._durable.execute(
                    f"UPDATE outbox SET {change}, batch = NULL WHERE task = ? AND state = 'ready'",
                    values,
                )
            else:
                self._durable.execute(
                    f"""UPDATE reports SET {change}
                        WHERE task = ? AND state = 'ready' AND created_at = ?""",
                    (*values, item.since),
                )

    # Commands

    def release(self, job: Job | None = None, task_ids: Collection[str] | None = None) -> int:
        """Let held results go to the Gateway: all, those of a job, or these; returns how many."""
        which, values = "1", tuple[Any, ...]()
        if job:
            which, values = f"task IN ({members(self._durable, job)})", (job.id,)
        elif task_ids is not None:
            which = f"task IN (SELECT id FROM tasks WHERE task_id {LISTED})"
            values = (as_json(list(task_ids)),)
        with writing(self._durable):
            self._durable.execute(
                f"UPDATE outbox SET state = 'ready' WHERE state = 'held' AND {which}", values
            )
            return self._durable.changes()

    def retry(self, task_ids: Collection[str]) -> int:
        """Send what was rejected again: these (by either id), or all but final refusals."""
        condition = f"?1 = '[]' AND code NOT IN {FINAL_REFUSALS}"
        if task_ids:
            condition = """task IN (
                SELECT id FROM tasks WHERE task_id IN (SELECT value FROM json_each(?1))
                OR (external_id IN (SELECT value FROM json_each(?1))
                    AND source IN ('gateway', 'bundle')))"""
        count = 0
        with writing(self._durable):
            for table in ("outbox", "reports"):
                self._durable.execute(
                    f"""UPDATE {table} SET state = 'ready', tries = 0, not_before = 0
                        WHERE state = 'rejected' AND {condition}""",
                    (as_json(list(task_ids)),),
                )
                count += self._durable.changes()
        return count

    # What became of it

    def delivery(self, job: Job | None) -> Delivery:
        """Where the results of a job or of all tasks are, and what a Gateway has of them."""
        db = self._db
        where, which = "1", tuple[int, ...]()
        if job:
            where, which = f"task IN ({members(db, job)})", (job.id,)
        kept = db.all(
            f"""SELECT state, archived_at IS NULL, count(*) FROM outbox WHERE {where}
                GROUP BY 1, 2""",
            which,
        )
        told = db.all(
            f"SELECT 'reports_' || state, count(*) FROM reports WHERE {where} GROUP BY 1", which
        )
        ready = f"state = 'ready' AND {where}"
        oldest = db.value(
            f"""SELECT min(at) FROM (SELECT min(created_at) AS at FROM outbox WHERE {ready}
                UNION ALL SELECT min(created_at) FROM reports WHERE {ready})""",
            which,
        )
        [(late, without_page, replaced)] = db.all(
            f"""SELECT ifnull(sum(late), 0), ifnull(sum(raw_sent_at = 0), 0),
                    ifnull(sum(replaced AND state = 'synced'), 0) FROM outbox
                WHERE state <> 'held' AND (late OR raw_sent_at = 0 OR replaced) AND {where}""",
            which,
        )
        # A state that is not known is damage, which the doctor finds.
        states = {state: count for state, count in told if state in Delivery.__struct_fields__}
        for known in _KNOWN_STATES:
            states[known] = sum(count for state, _, count in kept if state == known)
        return Delivery(
            results=sum(count for _, _, count in kept),
            pending=sum(count for state, here, count in kept if here and state != "synced"),
            archived=sum(count for state, here, count in kept if not here and state != "synced"),
            oldest=oldest,
            late=late,
            without_page=without_page,
            replaced=replaced,
            **states,
        )

    def rejected(self) -> list[dict[str, Any]]:
        """What the Gateway has refused for good, and why."""
        names = ("kind", "task_id", "own_id", "url", "code", "problem", "tries", "at")
        columns = "task, code, problem, tries, created_at"
        rows = self._db.all(
            f"""SELECT kind, {THEIR_ID}, t.task_id, t.url, code, problem, tries, created_at
                FROM (SELECT 'result' AS kind, {columns} FROM outbox WHERE state = 'rejected'
                      UNION ALL SELECT 'report', {columns} FROM reports WHERE state = 'rejected')
                JOIN tasks t ON t.id = task ORDER BY created_at, task"""
        )
        return [dict(zip(names, row, strict=True)) for row in rows]

    def replaced(self) -> list[dict[str, Any]]:
        """What may have replaced another result at the Gateway."""
        names = ("kind", "task_id", "own_id", "url", "problem", "at")
        rows = self._db.all(
            f"""SELECT 'replaced', {THEIR_ID}, t.task_id, t.url, problem, synced_at
                FROM outbox JOIN tasks t ON t.id = task WHERE replaced AND state = 'synced'
                ORDER BY synced_at, task"""
        )
        return [dict(zip(names, row, strict=True)) for row in rows]

    def wanted_segments(self) -> set[str]:
        """The segments with pages of results that a Gateway is still to get."""
        return set(
            self._db.column(
                """SELECT DISTINCT r.raw_segment FROM outbox o JOIN results r ON r.task = o.task
                   WHERE o.state IN ('ready', 'rejected') AND r.raw_segment IS NOT NULL"""
            )
        )


def _outgoing(row: tuple[Any, ...]) -> OutgoingResult:
    task, own_id, task_id, late, *about = row[:13]
    segment, offset, length, *fields, site = row[13:]
    raw = RawLocation(segment=segment, offset=offset, length=length) if segment else None
    given = [None if value in (None, "") else str(value) for value in fields]
    key = _natural_key(given, url_key=about[6], site=site)
    values = (task, own_id, task_id, bool(late), *about, raw, key)
    return OutgoingResult(*values)


def _natural_key(fields: Sequence[str | None], url_key: bytes, site: str) -> NaturalKey:
    """A result's own key. Without a parcel it is known by its page and site, else all of these
    would be one row."""
    parcel_id, platform, state, county = fields
    if parcel_id is None:
        parcel_id, platform = url_key.hex(), platform or site[-MAX_SITE_LENGTH:]
    return NaturalKey(parcel_id, platform, state, county)
