"""The reference Gateway's books in SQLite: tasks, results, raw files, workers, and what was
answered to whom.

Every method that writes expects a transaction around it: `commit.Committer`'s in the server,
`writing` in a command.
"""

import contextlib
import difflib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from crawler.db import connection
from crawler.db.connection import Database, store_errors
from crawler.errors import GatewayRefused, UsageError
from crawler.gateway.reference import schema
from crawler.gateway.reference.bodies import (
    MAX_ERRORS,
    MAX_NUMBER,
    MAX_WORDS,
    Counts,
    Failure,
    Heartbeat,
    Stored,
    Worker,
)

KEYS_KEPT_S = 86_400.0
"""How long an Idempotency-Key is remembered; that of a handout also as long as a task of it is
held."""
MAX_ANSWER = 4 << 20
"""Bytes of tasks in an answer; one task is given in any case."""
SOON_S = 5
"""When to ask again where the last tasks were just handed out."""
_UNDOES = {"pause": ("resume",), "drain": ("resume",), "resume": ("pause", "drain")}
"""Which waiting commands a later one makes pointless."""

# The planner would rather take all that wait by their state, and sort them.
NEXT = "SELECT priority, id FROM tasks INDEXED BY tasks_in_order WHERE state = 'available' ORDER BY priority, id LIMIT ?"
NEXT_OF_PLATFORM = (
    "SELECT priority, id FROM tasks INDEXED BY tasks_of_platform WHERE state = 'available' AND platform = ? "
    "ORDER BY priority, id LIMIT ?"
)
RESULTS = """
    SELECT r.body, r.sha256, r.worker, r.applied, r.late, r.received_at, r.seq, f.name, f.received_at, f.seq
    FROM results r LEFT JOIN raw_files f ON f.name = ifnull(
        (SELECT name FROM raw_files INDEXED BY raw_files_of_task
         WHERE sha256 = r.raw_html_hash AND task_id = r.task_id ORDER BY seq LIMIT 1),
        (SELECT name FROM raw_files INDEXED BY raw_files_by_content
         WHERE sha256 = r.raw_html_hash ORDER BY seq LIMIT 1))
    ORDER BY r.seq
"""


Added = Literal["new", "known", "changed", "refused"]


class NewTask(msgspec.Struct, frozen=True):
    """A task to be handed out; `body` is what a worker gets of it."""

    task_id: str
    platform: str
    priority: int
    deadline: float | None
    body: str
    content: str


class NewResult(msgspec.Struct, frozen=True):
    """A result that can be stored, as canonical JSON."""

    task_id: str
    body: str
    sha256: str
    raw_html_hash: str | None
    scraped_at: float | None = None


class Given(msgspec.Struct, frozen=True):
    """The answer to a request for work."""

    tasks: list[msgspec.Raw]
    retry_after: float


class Known(msgspec.Struct, frozen=True):
    """A task as an operator sees it."""

    task_id: str
    state: str
    holder: str | None
    reason: str | None
    error_type: str | None
    attempts: int | None


class Answer(msgspec.Struct, frozen=True):
    """The answer to a request with results, and whether it was given before."""

    body: bytes
    again: bool


class Books:
    """What a Gateway knows; leases are judged by `ticks`, so that a clock that is set takes
    nobody's tasks away."""

    like: str | None = None
    """The real Gateway whose habits these books have; none."""

    def __init__(
        self,
        folder: Path,
        *,
        lease_s: float = 300.0,
        idle_s: float = 30.0,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder, self.path = folder, folder / "gateway.db"
        self._lease_s, self._idle_s = lease_s, idle_s
        self._clock, self._ticks = clock, ticks
        # Nobody could be heard before this: a lease begins anew with the server.
        self._opened, self._heard = ticks(), dict[str, float]()
        self._listened, self._spared = self._opened, set[str]()
        self._forgot, self._patient = float("-inf"), True
        with store_errors(self.path):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.db = self._connected()

    @staticmethod
    def exists(folder: Path) -> bool:
        """Whether a Gateway's books are in this folder."""
        return (folder / "gateway.db").is_file()

    def _connected(self) -> Database:
        db, wait = schema.opened(self.path), connection.busy_handler(connection.BUSY_LIMIT_S)
        db.set_busy_handler(lambda tries: self._patient and wait(tries))
        return db

    def hurry(self) -> None:
        """Wait for nobody's lock any more; may be called from any thread."""
        self._patient = False

    def reopen(self) -> None:
        """Begin again with the file: a connection whose commit has failed is not to be believed."""
        self.db.close()
        self.db = self._connected()

    def close(self) -> None:
        """Let go of the file."""
        self.db.close()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction of a command's own."""
        with store_errors(self.path), connection.writing(self.db):
            yield

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """One moment for everything that is read in it."""
        with store_errors(self.path), connection.reading(self.db):
            yield

    # Workers.

    def note(self, worker: str) -> None:
        """A worker has called, so its lease begins anew; needs no transaction, and may be called
        from any thread."""
        now = self._ticks()
        if now - self._listened > self._lease_s / 2:
            self._spare(now)
        self._heard[worker] = self._listened = now
        self._spared.discard(worker)

    def _spare(self, now: float) -> None:
        """Begin leases anew: where nobody at all was heard for long, the Gateway was deaf rather
        than they silent.

        Once for each until it is heard again: else a dead worker would keep its tasks where the
        living rarely call.
        """
        names = {
            "",
            *self._heard,
        } - self._spared  # '' stands for those not heard since the server began
        self._opened = now if "" in names else self._opened
        self._heard |= {name: now for name in names if name}
        self._spared |= names

    def hear(self, worker: str) -> None:
        """A worker has called, and everybody may know it."""
        now = self._clock()
        self.note(worker)
        self.db.execute(
            "INSERT INTO workers (name, heard_at) VALUES (?, ?) ON CONFLICT DO UPDATE SET heard_at = excluded.heard_at",
            (worker, now),
        )
        if self._ticks() - self._forgot > 600:
            self._forgot = self._ticks()
            self._forget(now - KEYS_KEPT_S)

    def _forget(self, before: float) -> None:
        self.db.execute("DELETE FROM answers WHERE at < ?", (before,))
        self.db.execute(
            "DELETE FROM handouts WHERE at < ? AND NOT EXISTS "
            "(SELECT 1 FROM handouts h JOIN tasks ON tasks.id = h.task "
            "WHERE h.worker = handouts.worker AND h.key = handouts.key AND state = 'held' AND holder = h.worker)",
            (before,),
        )
        self.db.execute(
            "UPDATE commands SET key = NULL WHERE key IS NOT NULL AND delivered_at < ?", (before,)
        )

    def beat(self, worker: str, heartbeat: str, key: str | None) -> list[str]:
        """Note how a worker is; gives the commands that it has not got, or those that this very
        beat has got before."""
        self.hear(worker)
        self.db.execute("UPDATE workers SET heartbeat = ? WHERE name = ?", (heartbeat, worker))
        if key:
            again = self.db.all(
                "SELECT command FROM commands WHERE worker = ? AND key = ? ORDER BY id",
                (worker, key),
            )
            if again:
                return [command for (command,) in again]
        new = self.db.all(
            "SELECT id, command FROM commands WHERE worker = ? AND delivered_at IS NULL ORDER BY id",
            (worker,),
        )
        for number, _ in new:
            self.db.execute(
                "UPDATE commands SET delivered_at = ?, key = ? WHERE id = ?",
                (self._clock(), key, number),
            )
        return [command for _, command in new]

    def tell(self, worker: str, command: str) -> None:
        """Leave a command for a worker's next heartbeat, instead of one that it undoes; the worker
        must be known."""
        if not self.db.one("SELECT 1 FROM workers WHERE name = ?", (worker,)):
            known = [
                name
                for (name,) in self.db.all(
                    "SELECT name FROM workers ORDER BY heard_at DESC LIMIT 1000"
                )
            ]
            near = difflib.get_close_matches(worker, known, n=1)
            hint = (
                f"; did you mean {near[0]}?"
                if near
                else f"; heard were: {', '.join(known[:10]) or 'none yet'}"
            )
            raise UsageError(f"no worker {worker!r} was ever heard of{hint}")
        for undone in (command, *_UNDOES[command]):
            self.db.execute(
                "DELETE FROM commands WHERE worker = ? AND command = ? AND delivered_at IS NULL",
                (worker, undone),
            )
        self.db.execute(
            "INSERT INTO commands (worker, command, told_at) VALUES (?, ?, ?)",
            (worker, command, self._clock()),
        )

    def workers(self) -> list[Worker]:
        """All workers, the one that was heard last first."""
        rows = self.db.all(
            "SELECT name, heard_at, heartbeat, "
            "(SELECT count(*) FROM tasks WHERE state = 'held' AND holder = name), "
            "(SELECT count(*) FROM results WHERE worker = name), "
            "(SELECT json_group_array(command ORDER BY commands.id) FROM commands "
            "WHERE worker = name AND delivered_at IS NULL) "
            "FROM workers ORDER BY heard_at DESC, name"
        )
        now = self._clock()
        return [
            Worker(
                worker=name,
                heard_at=_iso(heard),
                silent_s=round(max(0.0, now - heard), 1),
                held=held,
                results=results,
                heartbeat=msgspec.json.decode(beat, type=Heartbeat) if beat else None,
                waiting_commands=msgspec.json.decode(commands),
            )
            for name, heard, beat, held, results, commands in rows
        ]

    # Tasks.

    def add(self, tasks: Iterable[NewTask]) -> list[Added]:
        """Take tasks in; gives what became of each."""
        return [self._add(task) for task in tasks]

    def _add(self, task: NewTask) -> Added:
        """A task that is known changes with its row, unless somebody works on it or has ended it
        with a result."""
        there = self.db.one("SELECT content, state FROM tasks WHERE task_id = ?", (task.task_id,))
        if there and there[0] == task.content:
            return "known"
        if there and there[1] not in ("available", "failed"):
            return "refused"
        self.db.execute(
            "INSERT INTO tasks (task_id, platform, priority, deadline, body, content, state) "
            "VALUES (?, ?, ?, ?, ?, ?, "
            "iif(EXISTS (SELECT 1 FROM results WHERE task_id = ?1), 'completed', 'available')) "
            "ON CONFLICT DO UPDATE SET platform = excluded.platform, priority = excluded.priority, "
            "deadline = excluded.deadline, body = excluded.body, content = excluded.content",
            (task.task_id, task.platform, task.priority, task.deadline, task.body, task.content),
        )
        return "changed" if there else "new"

    def tasks(self, state: str | None = None) -> Iterator[Known]:
        """All tasks, or those in a state, in the order of their import."""
        rows = self.db.execute(
            "SELECT task_id, state, holder, reason, error_type, attempts FROM tasks "
            "WHERE ?1 IS NULL OR state = ?1 ORDER BY id",
            (state,),
        )
        return (Known(*row) for row in rows)

    def give(
        self,
        worker: str,
        capacity: int,
        platforms: Sequence[str],
        key: str | None,
        kind: str | None = None,
    ) -> Given:
        """Hand out tasks, the most urgent first; to a key that was answered before, what is open of
        the same ones."""
        self.hear(worker)
        again = self._given_before(worker, key) if key else None
        self._free_silent()
        chosen = self._next(capacity, platforms) if again is None else again
        now = self._clock()
        bodies = self._fitting(chosen)
        for number in bodies:
            self.db.execute(
                "UPDATE tasks SET state = 'held', holder = ?, held_at = ? WHERE id = ?",
                (worker, now, number),
            )
            if key and again is None:
                self.db.execute(
                    "INSERT OR REPLACE INTO handouts VALUES (?, ?, ?, ?)",
                    (worker, key, number, now),
                )
        more = bool(self._next(1, platforms))
        retry_after = 0 if more else SOON_S if bodies else self._idle_s
        return Given(list(bodies.values()), retry_after)

    def _fitting(self, chosen: Sequence[int]) -> dict[int, msgspec.Raw]:
        """The bodies of the first of these tasks, as many as fit into an answer."""
        bodies: dict[int, msgspec.Raw] = {}
        size = 0
        for number in chosen:
            [(text,)] = self.db.all("SELECT body FROM tasks WHERE id = ?", (number,))
            body = text.encode()
            size += len(body)
            if bodies and size > MAX_ANSWER:
                break
            bodies[number] = msgspec.Raw(body)
        return bodies

    def _given_before(self, worker: str, key: str) -> list[int] | None:
        """What this key was answered with and is still this worker's, or nobody's; None for a new
        key."""
        rows = self.db.all(
            "SELECT tasks.id, state = 'available', state = 'held' AND holder = ?1, at FROM handouts "
            "JOIN tasks ON tasks.id = task WHERE worker = ?1 AND key = ?2 ORDER BY priority, tasks.id",
            (worker, key),
        )
        young = self._clock() - KEYS_KEPT_S
        if not any(held or at >= young for _, _, held, at in rows):
            return None
        return [number for number, nobodys, held, _ in rows if nobodys or held]

    def _next(self, count: int, platforms: Sequence[str]) -> list[int]:
        """The first tasks in the order of priority and import; each platform is asked through its
        own index."""
        if not platforms:
            found = self.db.all(NEXT, (count,))
        else:
            names = dict.fromkeys(platforms)
            found = [row for name in names for row in self.db.all(NEXT_OF_PLATFORM, (name, count))]
        return [number for _, number in sorted(found)[:count]]

    def _free_silent(self) -> None:
        """Take from workers that were not heard of for long what they have not answered."""
        for (worker,) in self.db.all("SELECT name FROM workers"):
            if self._ticks() - self._heard.get(worker, self._opened) > self._lease_s:
                self.db.execute(
                    "UPDATE tasks SET state = 'available', holder = NULL WHERE state = 'held' AND holder = ?",
                    (worker,),
                )

    def complete(self, worker: str, task_id: str) -> None:
        """End a task of this worker's without a result; again, or where its result is there,
        nothing changes."""
        self.hear(worker)
        state, holder = self._task(task_id)
        if state == "completed" and (holder == worker or self._has_result(task_id)):
            return
        self._require_held(worker, task_id, state, holder)
        self.db.execute(
            "UPDATE tasks SET state = 'completed', ended_at = ? WHERE task_id = ?",
            (self._clock(), task_id),
        )

    def fail(self, worker: str, task_id: str, why: Failure) -> bool:
        """Note why a task of this worker's has failed; the same words again change nothing. True:
        it was noted."""
        self.hear(worker)
        state, holder = self._task(task_id)
        # What is too much is cut: a failure that is refused would never be known.
        kind = None if why.error_type is None else why.error_type[:MAX_WORDS]
        words = (why.reason[:MAX_WORDS], kind, int(min(max(why.attempts, 0), MAX_NUMBER)))
        if (state, holder) == ("failed", worker):
            noted = self.db.one(
                "SELECT reason, error_type, attempts FROM tasks WHERE task_id = ?", (task_id,)
            )
            if noted == words:
                return True
        self._require_held(worker, task_id, state, holder)
        self.db.execute(
            "UPDATE tasks SET state = 'failed', ended_at = ?, reason = ?, error_type = ?, attempts = ? "
            "WHERE task_id = ?",
            (self._clock(), *words, task_id),
        )
        return True

    def _task(self, task_id: str) -> tuple[str, str | None]:
        row = self.db.one("SELECT state, holder FROM tasks WHERE task_id = ?", (task_id,))
        if row is None:
            raise GatewayRefused(404, "there is no such task")
        return row[0], row[1]

    def _has_result(self, task_id: str) -> bool:
        return self.db.one("SELECT 1 FROM results WHERE task_id = ?", (task_id,)) is not None

    def _require_held(self, worker: str, task_id: str, state: str, holder: str | None) -> None:
        if (state, holder) != ("held", worker):
            about = {
                "held": "another worker has it",
                "available": "it was given back",
                "failed": "it has failed",
            }
            done = "it has its result" if self._has_result(task_id) else "it is completed"
            raise GatewayRefused(409, f"this task is not yours any more: {about.get(state, done)}")

    def retry(self, task_ids: Sequence[str]) -> int:
        """Make failed tasks available again, all or these; gives how many."""
        again = "UPDATE tasks SET state = 'available', holder = NULL, ended_at = NULL WHERE state = 'failed'"
        if not task_ids:
            self.db.execute(again)
            return self.db.changes()
        for task_id in task_ids:
            row = self.db.one("SELECT state FROM tasks WHERE task_id = ?", (task_id,))
            if row is None or row[0] != "failed":
                raise UsageError(
                    f"{task_id}: "
                    + (f"this task is {row[0]}, not failed" if row else "no such task")
                )
            self.db.execute(f"{again} AND task_id = ?", (task_id,))
        return len(set(task_ids))

    # Results.

    def answered(self, worker: str, key: str, sha256: str) -> bytes | None:
        """What a request with this key was answered; the same key with another body is an error."""
        row = self.db.one(
            "SELECT sha256, body FROM answers WHERE worker = ? AND key = ? AND at >= ?",
            (worker, key, self._clock() - KEYS_KEPT_S),
        )
        if row is None:
            return None
        if row[0] != sha256:
            raise GatewayRefused(
                409, "this Idempotency-Key was used for a request with another body"
            )
        return bytes(row[1])

    def deliver(
        self,
        worker: str,
        items: Sequence[NewResult | str],
        *,
        late: bool = False,
        key: str | None = None,
        sha256: str = "",
        left_out: frozenset[int] = frozenset(),
        kind: str | None = None,
    ) -> Answer:
        """Store results (a text stands for one that cannot be, with its reason); each only where it
        is something new.

        `left_out` are the places of those that a played fault keeps from being stored: such an
        answer is not the last word on them, and is not remembered.
        """
        self.hear(worker)
        before = self.answered(worker, key, sha256) if key else None
        if before is not None:
            return Answer(before, again=True)
        inserted = updated = 0
        failed, errors = (
            len(left_out),
            ["a result could not be stored; try again later"] * min(len(left_out), MAX_ERRORS),
        )
        for place, item in enumerate(items):
            if place in left_out:
                continue
            if isinstance(item, str):
                failed += 1
                errors += [item] if len(errors) < MAX_ERRORS else []
            elif self._store(worker, item, late):
                inserted += 1
            else:
                updated += 1
        body = msgspec.json.encode(Stored(inserted, updated, failed, errors))
        if key and not left_out:
            self.db.execute(
                "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?)",
                (worker, key, sha256, body, self._clock()),
            )
        return Answer(body, again=False)

    def _store(self, worker: str, item: NewResult, late: bool, key: str | None = None) -> bool:
        """Write a result down unless the same or a newer one is there; true where its task, or key,
        had none."""
        key = key or item.task_id
        there = self.db.one("SELECT sha256, scraped_at FROM results WHERE task_id = ?", (key,))
        now = self._clock()
        if there is None or not (there[0] == item.sha256 or _older(item.scraped_at, there[1])):
            row = self.db.one("SELECT deadline FROM tasks WHERE task_id = ?", (item.task_id,))
            late = late or bool(row and row[0] is not None and row[0] < now)
            self.db.execute(
                "INSERT INTO results "
                "(task_id, body, sha256, raw_html_hash, scraped_at, worker, applied, late, received_at, seq) "
                "VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?, ?) ON CONFLICT DO UPDATE SET body = excluded.body, "
                "sha256 = excluded.sha256, raw_html_hash = excluded.raw_html_hash, scraped_at = excluded.scraped_at, "
                "worker = excluded.worker, applied = applied + 1, late = excluded.late, "
                "received_at = excluded.received_at, seq = excluded.seq",
                (key, *msgspec.structs.astuple(item)[1:], worker, late, now, self._number()),
            )
        self.db.execute(
            "UPDATE tasks SET state = 'completed', holder = ?, ended_at = ? WHERE task_id = ? AND state <> 'completed'",
            (worker, now, item.task_id),
        )
        return there is None

    def _number(self) -> int:
        row = self.db.one("UPDATE sequence SET last = last + 1 RETURNING last")
        assert row is not None
        return int(row[0])

    def results(self) -> Iterator[dict[str, Any]]:
        """Every result in the order of its arrival, with what the Gateway knows of it and of its
        raw file."""
        rows = self.db.execute(RESULTS)
        for (
            body,
            sha256,
            worker,
            applied,
            late,
            received,
            seq,
            raw_name,
            raw_received,
            raw_seq,
        ) in rows:
            facts = {
                "worker": worker,
                "received_at": _iso(received),
                "seq": seq,
                "applied": applied,
                "late": bool(late),
                "sha256": sha256,
                "raw_name": raw_name,
                "raw_received_at": _iso(raw_received) if raw_received is not None else None,
                "raw_seq": raw_seq,
            }
            yield _beside(msgspec.json.decode(body), facts)

    # Raw files.

    def keep(
        self, worker: str, name: str, sha256: str, size: int, metadata: dict[str, Any]
    ) -> None:
        """Note a raw file whose content lies there; raises `ValueError` where its name is another
        content's."""
        self.hear(worker)
        there = self.db.one("SELECT sha256 FROM raw_files WHERE name = ?", (name,))
        if there and there[0] != sha256:
            raise ValueError("another content is there under this name, and stays")
        if there:
            return
        task_id = metadata.get("task_id")
        self.db.execute(
            "INSERT INTO raw_files VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                name,
                sha256,
                size,
                task_id if isinstance(task_id, str) else None,
                msgspec.json.encode(metadata).decode(),
                worker,
                self._clock(),
                self._number(),
            ),
        )

    # Everything.

    def touch(self) -> None:
        """Write something, to see whether it can be: a transaction that changes nothing needs no
        disk."""
        self._number()

    def counts(self) -> Counts:
        """How many there are of everything."""
        states = dict(self.db.all("SELECT state, count(*) FROM tasks GROUP BY state"))
        [(results, late)] = self.db.all("SELECT count(*), ifnull(sum(late), 0) FROM results")
        [(raw_files, workers)] = self.db.all(
            "SELECT (SELECT count(*) FROM raw_files), (SELECT count(*) FROM workers)"
        )
        return Counts(
            available=states.get("available", 0),
            held=states.get("held", 0),
            completed=states.get("completed", 0),
            failed=states.get("failed", 0),
            results=results,
            late=late,
            raw_files=raw_files,
            workers=workers,
        )


def _beside(body: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """A result's own fields and the Gateway's facts; a field of the same name as a fact gets a sign
    behind it."""
    for name in facts:
        if name in body:
            other = name
            while other in body or other in facts:
                other += "~"
            body[other] = body.pop(name)
    return body | facts


def _older(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and one < other


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
