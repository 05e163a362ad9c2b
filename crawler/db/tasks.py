"""Tasks: how they are found, what the clock and commands do to them, and how they end."""

import logging
import re
import secrets
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from crawler import urls
from crawler.db import timeline
from crawler.db.connection import Database, writing
from crawler.db.store import (
    COUNTS_FOR,
    HELD,
    IS_REMOVED,
    IS_SHARED,
    LISTED,
    THEIRS,
    Connections,
    Part,
    as_json,
    of_job,
)
from crawler.errors import UrlError, UsageError
from crawler.models import (
    BROWSER,
    LINKS,
    NO_DEADLINE,
    Job,
    NewTask,
    Outcome,
    RawLocation,
    Rendering,
    TaskStatus,
    encoded_input,
)

log = logging.getLogger(__name__)

MAX_TASKS_PER_COMMIT = 5000
"""Tasks that one transaction changes, so that others can write in between."""
MAX_WOKEN_PER_COMMIT = 1000
CLOCK_STEP_S = 1.0
"""A clock that moves by more than this against the uptime was set."""

UNHELD = "not_before = iif(not_before = 9e15, 0, not_before)"
_IDS = f"id {LISTED}"
_SHOWN = {
    "task_id": "task_id",
    "their_id": f"iif(source IN {THEIRS}, external_id, NULL)",
    "url": "url",
    "parcel_id": "parcel_id",
    "status": "status",
    "reason": "error_type",
    "message": "error_message",
    "attempts": "attempts",
    "queue": "queue",
    "priority": "priority",
    "domain": "domain",
    "source_file": "source_file",
    "source_line": "source_line",
    "source_item": "source_item",
    "completed_at": "completed_at",
    "role": "role",
    "depth": "iif(role IS NULL, NULL, depth)",
}
SHOWN_COLUMNS = ", ".join(_SHOWN.values())


class TaskState(NamedTuple):
    """Where a task stands."""

    status: TaskStatus
    not_before: float
    domain: str
    job_id: int | None
    needs: str


class Tasks(Part):
    """Finds tasks, and changes them by the clock and by commands."""

    def __init__(self, store: Connections) -> None:
        super().__init__(store)
        self._clock_offset: float | None = None
        """Wall clock minus uptime when `follow_clock` last looked."""

    # Lookups

    def state_of(self, id_: int) -> TaskState:
        """Where a task stands."""
        [(status, *about)] = self._db.all(
            "SELECT status, not_before, domain, job_id, needs FROM tasks WHERE id = ?", (id_,)
        )
        return TaskState(TaskStatus(status), *about)

    def any_open(self, ids: Collection[int]) -> bool:
        """Whether one of these tasks has not ended yet."""
        open_ = f"SELECT 1 FROM tasks WHERE is_open AND {_IDS} LIMIT 1"
        return self._db.one(open_, (as_json(list(ids)),)) is not None

    def is_known(self, task_id: str) -> bool:
        """Whether there is a task with this id."""
        return self._db.one("SELECT 1 FROM tasks WHERE task_id = ?", (task_id,)) is not None

    def for_url(self, url_key: bytes) -> list[int]:
        """The tasks that fetch a URL, the newest first."""
        return self._db.column(
            "SELECT id FROM tasks WHERE url_key = ? AND method <> ? ORDER BY id DESC",
            (url_key, LINKS),
        )

    def find(self, text: str) -> list[int]:
        """The tasks with an id (or its beginning), a Gateway's id or a URL; the newest first."""
        if theirs := self._db.column(
            f"""SELECT id FROM tasks WHERE external_id = ? AND source IN {THEIRS}
                ORDER BY id DESC""",
            (text,),
        ):
            return theirs
        shown = urls.without_credentials(text)
        named = f"no task, by our id or a Gateway's, is called {shown[:200]!r}"
        if re.fullmatch(r"[0-9a-f]{6,32}", text):
            found = self._db.column(
                "SELECT id FROM tasks WHERE task_id GLOB ? || '*' LIMIT 2", (text,)
            )
            if len(found) > 1:
                raise UsageError(f"more than one task begins with {text}; give more of its id")
            if not found:
                raise UsageError(named)
            return found
        try:
            found = self.for_url(urls.parse(text).key)
        except UrlError:
            if "://" in text or not text.strip():
                raise
            hint = ""
            if "." in text or "/" in text:
                hint = "; does it lack http:// at the beginning?"
            raise UsageError(f"{named}, and it is no URL{hint}") from None
        if not found:
            raise UsageError(f"no task is known for {shown}")
        return found

    def select(
        self,
        job: Job | None = None,
        statuses: Collection[str] = (),
        reason: str | None = None,
        domain: str | None = None,
        limit: int | None = None,
        roles: Collection[str] = (),
    ) -> Iterator[dict[str, Any]]:
        """Tasks in the order of import, read some at a time."""
        condition, values = of_job(self._db, job)
        if roles:
            condition, values = f"{condition} AND role {LISTED}", (*values, as_json(list(roles)))
        last = 0
        while limit is None or limit > 0:
            size = min(1000, limit or 1000)
            rows = self._db.all(
                f"""SELECT id, {SHOWN_COLUMNS} FROM tasks NOT INDEXED
                    WHERE {condition} AND id > ?
                    AND (? IS NULL OR error_type = ?) AND (? IS NULL OR domain = ?)
                    AND (? OR status {LISTED}) ORDER BY id LIMIT ?""",
                (*values, last, reason, reason, domain, domain, not statuses,
                 as_json(list(statuses)), size),
            )  # fmt: skip
            for row in rows:
                yield as_shown(row[1:])
            if len(rows) < size:
                return
            last = rows[-1][0]
            limit = limit and limit - size

    def add_call(self, task: NewTask, *, loopback: bool, held: bool = False) -> int:
        """The task that this call has made before, the open one for its URL, or a new one.

        `held` keeps a new one from everybody but who asks for it by its number.
        """
        address, db = task.address, self._durable
        with writing(db):
            rows = (
                db.all(
                    """SELECT id FROM tasks WHERE external_id = ? AND source <> 'gateway'
                       ORDER BY id LIMIT 1""",
                    (task.external_id,),
                )
                or db.all(
                    f"""UPDATE tasks
                        SET external_id = coalesce(external_id, ?), priority = 1, {UNHELD}
                        WHERE url_key = ? AND parcel_id = ? AND is_open AND {IS_SHARED}
                        RETURNING id""",
                    (task.external_id, address.key, task.parcel_id),
                )
                or db.all(
                    """INSERT INTO tasks (task_id, external_id, url, url_key, domain, parcel_id,
                           queue, priority, deadline, source, input, loopback, imported_at,
                           not_before)
                       VALUES (?, ?, ?, ?, ?, ?, 'urgent', ?, ?, 'call', ?, ?, ?, ?)
                       RETURNING id""",
                    (secrets.token_hex(16), task.external_id, *address, task.parcel_id,
                     task.priority, NO_DEADLINE, encoded_input(task.input), loopback,
                     self._store.now(), HELD if held else 0.0),
                )
            )  # fmt: skip
        return int(rows[0][0])

    def release_calls(self) -> None:
        """Make due what single calls held for themselves, once no such call runs any more."""
        held = "job_id IS NULL AND status = 'pending' AND not_before = 9e15"
        if self._db.one(f"SELECT 1 FROM tasks WHERE {held} LIMIT 1"):
            with writing(self._db):
                self._db.execute(f"UPDATE tasks SET not_before = 0 WHERE {held}")

    # Time

    def wake(self, now: float) -> float | None:
        """End what missed its deadline, and make due what has waited long enough.

        Returns when the next task falls due.
        """
        self.expire(now)
        first = "SELECT min(not_before) FROM tasks WHERE status = 'pending' AND not_before > 0"
        db = self._db
        at: float | None = db.value(first)
        while at is not None and at <= now:
            with writing(db):
                db.execute(
                    """UPDATE tasks SET not_before = 0 WHERE id IN (
                           SELECT id FROM tasks
                           WHERE status = 'pending' AND not_before > 0 AND not_before <= ?
                           ORDER BY not_before LIMIT ?)""",
                    (now, MAX_WOKEN_PER_COMMIT),
                )
            at = db.value(first)
        return at

    def expire(self, now: float) -> None:
        """End what missed its deadline, unless another job with a later one wants it too."""
        dated = "status = 'pending' AND deadline < 9e15"
        first = f"SELECT min(deadline) FROM tasks WHERE {dated}"
        db = self._db
        at = db.value(first)
        while at is not None and at <= now:
            with writing(db):
                ids = as_json(
                    db.column(
                        f"SELECT id FROM tasks WHERE {dated} AND deadline <= ? LIMIT ?",
                        (now, MAX_TASKS_PER_COMMIT),
                    )
                )
                db.execute(
                    f"""UPDATE tasks AS t SET deadline = ifnull(
                            (SELECT min(ifnull(j.deadline, 9e15)) FROM jobs j
                             WHERE {COUNTS_FOR} AND ifnull(j.deadline, 9e15) > ?1
                             AND (t.source <> 'gateway' OR j.id <> t.job_id)
                             AND ifnull(j.hold, '') <> 'cancelled'), deadline)
                        WHERE t.id IN (SELECT value FROM json_each(?2))""",
                    (now, ids),
                )
                late = db.column(f"SELECT id FROM tasks WHERE {_IDS} AND deadline <= ?", (ids, now))
                message = "its deadline passed before it was collected"
                end_without_result(db, late, "expired", "deadline", message, now)
            at = db.value(first)

    def follow_clock(self, now: float, uptime: float, boot: str) -> float:
        """Move all waits by as much as the clock was set since the last look; returns that.

        `uptime` is a clock that never steps, and `boot` says since which boot of the kernel it
        counts. Deadlines stay: people mean the time of day by them.
        """
        offset = now - uptime
        if self._clock_offset is not None and abs(offset - self._clock_offset) <= CLOCK_STEP_S:
            return 0.0
        db, moved = self._db, self._moved(now, offset, boot)
        if moved is None:
            self._clock_offset = offset
            return 0.0
        with writing(db):
            moved = self._moved(now, offset, boot) or 0.0  # another process may have been faster
            db.execute(
                "INSERT OR REPLACE INTO meta (key, value) VALUES ('clock', ?)",
                (f"{offset!r} {boot}",),
            )
            if moved:
                waits = {
                    "tasks": "status = 'pending' AND not_before > 0 AND not_before < 9e15",
                    "outbox": "state = 'ready' AND not_before > 0",
                    "reports": "state = 'ready' AND not_before > 0",
                }
                for table, condition in waits.items():
                    later = "not_before = max(1, not_before + ?)"
                    db.execute(f"UPDATE {table} SET {later} WHERE {condition}", (moved,))
        self._clock_offset = offset
        if moved:
            log.warning(
                "the clock was set by %+.0f s: retries and other waits last as long as before",
                moved,
            )
        return moved

    def clock_step(self, now: float, uptime: float, boot: str) -> float:
        """By how much the clock was set since `follow_clock` last looked."""
        return self._moved(now, now - uptime, boot) or 0.0

    def _moved(self, now: float, offset: float, boot: str) -> float | None:
        """By how much the clock was set; None where nothing is to be noted.

        What a reboot has done to the clock shows only where events lie in the future by now.
        """
        noted = self._db.value("SELECT value FROM meta WHERE key = 'clock'", (), "")
        before, _, its_boot = noted.partition(" ")
        if noted and its_boot == boot:
            moved = offset - float(before)
            return moved if abs(moved) > CLOCK_STEP_S else None
        last: float = self._db.value("SELECT at FROM events ORDER BY id DESC LIMIT 1", (), now)
        return now - last if last > now + CLOCK_STEP_S else 0.0

    # Retries

    def retry(
        self, statuses: Collection[str], reason: str | None, job: Job | None, now: float
    ) -> tuple[int, int]:
        """Make ended tasks pending again and reopen their jobs.

        Returns how many, and how many are left out because their URL is open in another task.
        """
        self.expire(now)  # what is late by now stays so, whatever its job is given
        again = left = last = 0
        db = self._durable
        while ids := self._ended_ids(statuses, reason, job, last):
            with writing(db):
                # IGNORE: a URL that is open in another task must not be open twice.
                back = db.column(
                    f"""UPDATE OR IGNORE tasks SET status = 'pending', not_before = 0, failures = 0,
                            strikes = 0, deaths = 0, error_type = NULL, error_message = NULL,
                            completed_at = NULL, message_id = NULL,
                            deadline = iif(deadline <= ?, 9e15, deadline)
                        WHERE {_IDS} AND status IN ('failed', 'skipped', 'expired') RETURNING id""",
                    (now, as_json(ids)),
                )
                timeline.note_all(db, as_json(back), "retry asked", {}, now)
                _reopen_jobs(db, as_json(back), now)
            again, left, last = again + len(back), left + len(ids) - len(back), ids[-1]
        return again, left

    def _ended_ids(
        self, statuses: Collection[str], reason: str | None, job: Job | None, after: int
    ) -> list[int]:
        """Tasks that can be tried again: not a Gateway's without a URL."""
        return self._durable.column(
            f"""SELECT id FROM tasks t WHERE id > ?1 AND url <> ''
               AND NOT {IS_REMOVED.format(job="job_id")}
               AND status IN (SELECT value FROM json_each(?2))
               AND (?3 IS NULL OR error_type = ?3)
               AND (?4 IS NULL OR job_id = ?4
                    OR EXISTS (SELECT 1 FROM job_links WHERE task = t.id AND job_id = ?4))
               ORDER BY id LIMIT ?5""",
            (after, as_json(list(statuses)), reason, job and job.id, MAX_TASKS_PER_COMMIT),
        )


def as_shown(row: Sequence[Any]) -> dict[str, Any]:
    """A task as lists show it, from its SHOWN_COLUMNS; `their_id` is a Gateway's name for it."""
    return dict(zip(_SHOWN, row, strict=True))


def storable(text: str | None) -> str | None:
    """A text without the halves of characters that a server's garbage can leave in a message."""
    return text and text.encode("utf-8", "replace").decode()


def finish_attempt(
    db: Database, outcome: Outcome, place: RawLocation | None, now: float
) -> dict[str, Any] | None:
    """Store how an attempt ended; returns the detail of its event in the timeline.

    None if the claim is not live any more: then another claim decides. Part of a transaction.
    """
    task, final = outcome.task, outcome.status is not TaskStatus.PENDING
    failed = outcome.error_type is not None and outcome.charge
    attempted = failed or (bool(outcome.sent) and not outcome.shortage)
    needs = BROWSER if outcome.rendering else outcome.needs or task.needs
    live = db.all(
        """UPDATE tasks SET status = ?, attempts = attempts + ?, failures = failures + ?,
               not_before = ?, deaths = iif(?, 0, deaths), owner = NULL,
               message_id = iif(?, message_id, NULL), error_type = ?, error_message = ?,
               completed_at = ?, needs = ?
           WHERE id = ? AND fence = ? AND status = 'processing' RETURNING leased_at""",
        (outcome.status, attempted, failed, outcome.not_before, final or failed, final,
         outcome.error_type, storable(outcome.error_message), now if final else None,
         needs, task.id, task.fence),
    )  # fmt: skip
    if not live:
        return None
    detail: dict[str, Any] = {"worker": outcome.worker, "claimed_at": live[0][0]}
    if attempted:
        detail["attempt"] = task.attempts + 1
    return detail | _detail_of(outcome, final, place)


def kind_of(outcome: Outcome) -> str:
    """What the timeline calls the end of an attempt."""
    if outcome.status is not TaskStatus.PENDING:
        return outcome.status
    if outcome.needs == BROWSER:
        return "needs a browser"
    if outcome.error_type is not None and outcome.charge:
        return "retry"
    return "broken off" if outcome.sent else "postponed"


def _detail_of(outcome: Outcome, final: bool, place: RawLocation | None) -> dict[str, Any]:
    page = outcome.page
    detail: dict[str, Any] = {}
    if outcome.sent:
        detail["sent"] = outcome.sent
    if outcome.rule.limited:
        detail["limit"] = outcome.rule
    if page:
        detail["status"] = page.status
        detail["bytes"] = len(page.body)
        detail["fetch_ms"] = round(page.fetch_s * 1000, 1)
    if outcome.rendering:
        detail |= _about_rendering(outcome.rendering)
    if outcome.verdict:
        detail["verdict"] = outcome.verdict
        detail["parse_ms"] = round(outcome.parse_ms, 1)
    if outcome.evidence:
        detail["evidence"] = [storable(text) for text in outcome.evidence]
    if outcome.retry:
        detail["decision"] = str(outcome.retry)
        if final and outcome.retry.tries_again:
            detail["decision"] += ", but no attempt is left"
    if outcome.error_type:
        detail["error"] = outcome.error_type
    if outcome.error_message:
        detail["message"] = storable(outcome.error_message)
    if not final:
        detail["not_before"] = outcome.not_before
    if place:
        detail["raw"] = place
    return detail


def _about_rendering(rendering: Rendering) -> dict[str, Any]:
    about = {"rendered": {"requests": rendering.requests, "received": rendering.received}}
    return about | ({"refused": rendering.refused} if rendering.refused else {})


def put_aside_held(db: Database, ids: list[int], now: float) -> list[int]:
    """Put pending tasks aside whose jobs are all on hold; returns the others.

    Part of a transaction.
    """
    on_hold = "SELECT 1 FROM jobs WHERE hold IS NOT NULL AND status <> 'done' LIMIT 1"
    if not db.one(on_hold):
        return ids
    rows = db.all(
        f"""SELECT t.id, max(CASE WHEN j.hold = 'paused' THEN 1 WHEN j.hold = 'cancelled' THEN 0
                             WHEN j.deadline <= ? THEN 0 ELSE 2 END)
            FROM tasks t JOIN jobs j ON {COUNTS_FOR} WHERE t.{_IDS} GROUP BY t.id""",
        (now, as_json(ids)),
    )
    stands = dict(rows)
    paused = [id_ for id_ in ids if stands.get(id_) == 1]
    cancelled = [id_ for id_ in ids if stands.get(id_) == 0]
    db.execute(
        f"UPDATE tasks SET not_before = 9e15, message_id = NULL WHERE {_IDS}", (as_json(paused),)
    )
    end_without_result(db, cancelled, "skipped", "cancelled", "its job was cancelled", now)
    return [id_ for id_ in ids if stands.get(id_, 2) == 2]


def end_without_result(
    db: Database, ids: Sequence[int], status: str, reason: str, message: str, now: float
) -> None:
    """End pending tasks, with an event in their timelines. Part of a transaction."""
    chosen = as_json(ids)
    db.execute(
        f"""UPDATE tasks SET status = ?, error_type = ?, error_message = ?, completed_at = ?,
                message_id = NULL WHERE {_IDS} AND status = 'pending'""",
        (status, reason, message, now, chosen),
    )
    timeline.note_all(db, chosen, status, {"error": reason, "message": message}, now)


def _reopen_jobs(db: Database, ids: str, now: float) -> None:
    jobs = db.all(
        """SELECT id, key, status FROM jobs WHERE id IN (
               SELECT job_id FROM tasks WHERE id IN (SELECT value FROM json_each(?1))
               UNION SELECT job_id FROM job_links
               WHERE task IN (SELECT value FROM json_each(?1)))""",
        (ids,),
    )
    taken = "SELECT 1 FROM jobs WHERE key = ? AND status <> 'done'"
    for id_, old_key, status in jobs:
        key = old_key
        if status == "done" and db.one(taken, (old_key,)):
            key = f"retry:{id_}"
        db.execute(
            """UPDATE jobs SET status = iif(status = 'done', 'open', status), completed_at = NULL,
                   key = ?, hold = iif(hold = 'paused' AND status <> 'done', hold, NULL),
                   deadline = iif(deadline <= ?, NULL, deadline) WHERE id = ?""",
            (key, now, id_),
        )
