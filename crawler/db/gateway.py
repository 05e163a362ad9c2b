"""A Gateway's tasks, and notes about the Gateway."""

import secrets
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from crawler.db import timeline
from crawler.db.connection import Database, writing
from crawler.db.store import Part
from crawler.db.tasks import end_without_result
from crawler.models import NO_DEADLINE, Job, encoded_input
from crawler.urls import Address

GATEWAY = "gateway"
"""The source of its tasks, and the key of the job that they make up."""
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
        """The name of the next request for work of a type: the same until it was answered."""
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

    An open one goes on. The result of a completed one is sent again. Another is done again if the
    Gateway had heard of its end.
    """
    if status == "completed":
        db.execute(
            """UPDATE outbox SET state = 'ready', batch = NULL, raw_sent_at = NULL, tries = 0,
                   not_before = 0, code = NULL, problem = NULL
               WHERE task = ? AND state IN ('synced', 'rejected')""",
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
