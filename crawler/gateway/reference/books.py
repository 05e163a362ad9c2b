"""The reference Gateway's books in SQLite: tasks, results, raw files, workers, and what was answered to whom.

Every method that writes expects a transaction around it: `commit.Committer`'s in the server, `writing` in a command.
"""

import contextlib
import difflib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from crawler.db import connection
from crawler.db.connection import Database, store_errors
from crawler.errors import GatewayRefused, StoreError, UsageError
from crawler.gateway.reference.bodies import MAX_ERRORS, Counts, Failure, Heartbeat, Stored, Worker

APPLICATION_ID = 0x47415445
KEYS_KEPT_S = 86_400.0
"""How long an Idempotency-Key is remembered."""
SOON_S = 5
"""When to ask again where the last tasks were just handed out."""
COMMANDS = ("pause", "resume", "drain")

_SCHEMA = """
    -- One number for everything that arrives: what has the smaller one was there first, whatever a clock says.
    CREATE TABLE sequence (last INTEGER NOT NULL);
    INSERT INTO sequence VALUES (0);

    CREATE TABLE tasks (
        id          INTEGER PRIMARY KEY,
        task_id     TEXT NOT NULL UNIQUE,
        platform    TEXT NOT NULL,            -- '' where a row named none
        priority    INTEGER NOT NULL,
        deadline    REAL,
        body        TEXT NOT NULL,            -- JSON, as it is handed out
        state       TEXT NOT NULL,            -- available, held, completed, failed
        holder      TEXT,                     -- the worker that has it, or that ended it
        held_at     REAL,
        ended_at    REAL,
        reason      TEXT,
        error_type  TEXT,
        attempts    INTEGER
    );
    CREATE INDEX tasks_by_state ON tasks(state);
    CREATE INDEX tasks_in_order ON tasks(priority, id) WHERE state = 'available';
    CREATE INDEX tasks_of_platform ON tasks(platform, priority, id) WHERE state = 'available';
    CREATE INDEX tasks_held ON tasks(holder) WHERE state = 'held';

    -- Which tasks were the answer to a request for work, so that a lost answer can be given again.
    CREATE TABLE handouts (
        worker  TEXT NOT NULL,
        key     TEXT NOT NULL,
        task    INTEGER NOT NULL,
        at      REAL NOT NULL,
        PRIMARY KEY (worker, key, task)
    ) WITHOUT ROWID;
    CREATE INDEX handouts_by_age ON handouts(at);

    CREATE TABLE results (
        id            INTEGER PRIMARY KEY,
        task_id       TEXT NOT NULL UNIQUE,
        body          TEXT NOT NULL,          -- canonical JSON: keys sorted, no spaces
        sha256        TEXT NOT NULL,          -- of the body
        raw_html_hash TEXT,
        worker        TEXT NOT NULL,
        applied       INTEGER NOT NULL,       -- how often it was really written
        late          INTEGER NOT NULL,
        received_at   REAL NOT NULL,
        seq           INTEGER NOT NULL
    );
    CREATE INDEX results_in_order ON results(seq);
    CREATE INDEX results_by_worker ON results(worker);

    -- What was answered to a request with an Idempotency-Key.
    CREATE TABLE answers (
        worker  TEXT NOT NULL,
        key     TEXT NOT NULL,
        sha256  TEXT NOT NULL,                -- of the request's body
        body    BLOB NOT NULL,
        at      REAL NOT NULL,
        PRIMARY KEY (worker, key)
    ) WITHOUT ROWID;
    CREATE INDEX answers_by_age ON answers(at);

    -- Contents lie in raw/<two digits>/<sha256>, once each; these are their names.
    CREATE TABLE raw_files (
        name        TEXT PRIMARY KEY,
        sha256      TEXT NOT NULL,
        size        INTEGER NOT NULL,
        task_id     TEXT,
        metadata    TEXT NOT NULL,
        worker      TEXT NOT NULL,
        received_at REAL NOT NULL,
        seq         INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX raw_files_by_content ON raw_files(sha256);

    CREATE TABLE workers (
        name      TEXT PRIMARY KEY,
        heard_at  REAL NOT NULL,
        heartbeat TEXT
    ) WITHOUT ROWID;

    CREATE TABLE commands (
        id           INTEGER PRIMARY KEY,
        worker       TEXT NOT NULL,
        command      TEXT NOT NULL,
        told_at      REAL NOT NULL,
        delivered_at REAL,
        key          TEXT                     -- of the heartbeat that it was the answer to
    );
    CREATE INDEX commands_waiting ON commands(worker, id) WHERE delivered_at IS NULL;
    CREATE INDEX commands_by_key ON commands(worker, key) WHERE key IS NOT NULL;
"""
_MIGRATIONS = (_SCHEMA,)


class NewTask(msgspec.Struct, frozen=True):
    """A task to be handed out; `body` is what a worker gets of it."""

    task_id: str
    platform: str
    priority: int
    deadline: float | None
    body: str


class NewResult(msgspec.Struct, frozen=True):
    """A result that can be stored, as canonical JSON."""

    task_id: str
    body: str
    sha256: str
    raw_html_hash: str | None


class Given(msgspec.Struct, frozen=True):
    """The answer to a request for work."""

    tasks: list[msgspec.Raw]
    retry_after: float


class Answer(msgspec.Struct, frozen=True):
    """The answer to a request with results, and whether it was given before."""

    body: bytes
    again: bool


class Books:
    """What a Gateway knows; leases are judged by `ticks`, so that a clock that is set takes nobody's tasks away."""

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
        self._forgot = float("-inf")
        with store_errors(self.path):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.db = self._connected()

    @staticmethod
    def exists(folder: Path) -> bool:
        """Whether a Gateway's books are in this folder."""
        return (folder / "gateway.db").is_file()

    def _connected(self) -> Database:
        db = connection.connect(self.path)
        with store_errors(self.path):
            _migrate(db, self.path)
        return db

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
        """A worker has called, so its lease begins anew; needs no transaction, and may be called from any thread."""
        self._heard[worker] = self._ticks()

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
        for table in ("handouts", "answers"):
            self.db.execute(f"DELETE FROM {table} WHERE at < ?", (before,))
        self.db.execute("UPDATE commands SET key = NULL WHERE key IS NOT NULL AND delivered_at < ?", (before,))

    def beat(self, worker: str, heartbeat: str, key: str | None) -> list[str]:
        """Note how a worker is; gives the commands that it has not got, or those that this very beat has got before."""
        self.hear(worker)
        self.db.execute("UPDATE workers SET heartbeat = ? WHERE name = ?", (heartbeat, worker))
        if key:
            again = self.db.all("SELECT command FROM commands WHERE worker = ? AND key = ? ORDER BY id", (worker, key))
            if again:
                return [command for (command,) in again]
        new = self.db.all(
            "SELECT id, command FROM commands WHERE worker = ? AND delivered_at IS NULL ORDER BY id", (worker,)
        )
        for number, _ in new:
            self.db.execute("UPDATE commands SET delivered_at = ?, key = ? WHERE id = ?", (self._clock(), key, number))
        return [command for _, command in new]

    def tell(self, worker: str, command: str) -> None:
        """Leave a command for a worker's next heartbeat; a worker that was never heard of is an error."""
        if not self.db.one("SELECT 1 FROM workers WHERE name = ?", (worker,)):
            known = [name for (name,) in self.db.all("SELECT name FROM workers ORDER BY heard_at DESC LIMIT 1000")]
            near = difflib.get_close_matches(worker, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; heard were: {', '.join(known[:10]) or 'none yet'}"
            raise UsageError(f"no worker {worker!r} was ever heard of{hint}")
        self.db.execute(
            "INSERT INTO commands (worker, command, told_at) VALUES (?, ?, ?)", (worker, command, self._clock())
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

    def add(self, tasks: Iterable[NewTask]) -> tuple[int, int]:
        """Take tasks in; gives how many are new, and how many were known by their task_id."""
        new = known = 0
        for task in tasks:
            self.db.execute(
                "INSERT INTO tasks (task_id, platform, priority, deadline, body, state) "
                "VALUES (?, ?, ?, ?, ?, "
                "iif(EXISTS (SELECT 1 FROM results WHERE task_id = ?1), 'completed', 'available')) "
                "ON CONFLICT DO NOTHING",
                (task.task_id, task.platform, task.priority, task.deadline, task.body),
            )
            added = self.db.changes()
            new, known = new + added, known + 1 - added
        return new, known

    def give(self, worker: str, capacity: int, platforms: Sequence[str], key: str | None) -> Given:
        """Hand out tasks, the most urgent first; to a key that was answered before, what is open of the same ones."""
        self.hear(worker)
        again = self._given_before(worker, key) if key else None
        self._free_silent()
        chosen = self._next(capacity, platforms) if again is None else again
        now = self._clock()
        tasks = []
        for number in chosen:
            row = self.db.one(
                "UPDATE tasks SET state = 'held', holder = ?, held_at = ? WHERE id = ? RETURNING body",
                (worker, now, number),
            )
            assert row is not None
            tasks.append(msgspec.Raw(row[0].encode()))
            if key and again is None:
                self.db.execute("INSERT OR REPLACE INTO handouts VALUES (?, ?, ?, ?)", (worker, key, number, now))
        more = bool(self._next(1, platforms))
        retry_after = 0 if more else SOON_S if chosen else self._idle_s
        return Given(tasks, retry_after)

    def _given_before(self, worker: str, key: str) -> list[int] | None:
        """What this key was answered with and is still this worker's, or nobody's; None for a new key."""
        rows = self.db.all(
            "SELECT tasks.id, state = 'available' OR (state = 'held' AND holder = ?1) FROM handouts "
            "JOIN tasks ON tasks.id = task WHERE worker = ?1 AND key = ?2 AND at >= ?3 ORDER BY priority, tasks.id",
            (worker, key, self._clock() - KEYS_KEPT_S),
        )
        return [number for number, its in rows if its] if rows else None

    def _next(self, count: int, platforms: Sequence[str]) -> list[int]:
        """The first tasks in the order of priority and import; each platform is asked through its own index."""
        query = "SELECT priority, id FROM tasks WHERE state = 'available' {} ORDER BY priority, id LIMIT ?"
        if not platforms:
            found = self.db.all(query.format(""), (count,))
        else:
            own = query.format("AND platform = ?")
            found = [row for name in dict.fromkeys(platforms) for row in self.db.all(own, (name, count))]
        return [number for _, number in sorted(found)[:count]]

    def _free_silent(self) -> None:
        """Take from workers that were not heard of for long what they have not answered."""
        for (worker,) in self.db.all("SELECT name FROM workers"):
            if self._ticks() - self._heard.get(worker, self._opened) > self._lease_s:
                self.db.execute(
                    "UPDATE tasks SET state = 'available', holder = NULL WHERE state = 'held' AND holder = ?", (worker,)
                )

    def complete(self, worker: str, task_id: str) -> None:
        """End a task of this worker's without a result; again, or where its result is there, nothing changes."""
        self.hear(worker)
        state, holder = self._task(task_id)
        if state == "completed" and (holder == worker or self._has_result(task_id)):
            return
        self._require_held(worker, task_id, state, holder)
        self.db.execute(
            "UPDATE tasks SET state = 'completed', ended_at = ? WHERE task_id = ?", (self._clock(), task_id)
        )

    def fail(self, worker: str, task_id: str, why: Failure) -> None:
        """Note why a task of this worker's has failed; the same words again change nothing."""
        self.hear(worker)
        state, holder = self._task(task_id)
        words = (why.reason, why.error_type, int(why.attempts))
        if (state, holder) == ("failed", worker):
            noted = self.db.one("SELECT reason, error_type, attempts FROM tasks WHERE task_id = ?", (task_id,))
            if noted == words:
                return
        self._require_held(worker, task_id, state, holder)
        self.db.execute(
            "UPDATE tasks SET state = 'failed', ended_at = ?, reason = ?, error_type = ?, attempts = ? "
            "WHERE task_id = ?",
            (self._clock(), *words, task_id),
        )

    def _task(self, task_id: str) -> tuple[str, str | None]:
        row = self.db.one("SELECT state, holder FROM tasks WHERE task_id = ?", (task_id,))
        if row is None:
            raise GatewayRefused(404, "there is no such task")
        return row[0], row[1]

    def _has_result(self, task_id: str) -> bool:
        return self.db.one("SELECT 1 FROM results WHERE task_id = ?", (task_id,)) is not None

    def _require_held(self, worker: str, task_id: str, state: str, holder: str | None) -> None:
        if (state, holder) != ("held", worker):
            about = {"held": "another worker has it", "available": "it was given back", "failed": "it has failed"}
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
                raise UsageError(f"{task_id}: " + (f"this task is {row[0]}, not failed" if row else "no such task"))
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
            raise GatewayRefused(422, "this Idempotency-Key was used for a request with another body")
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
    ) -> Answer:
        """Store results (a text stands for one that cannot be, with its reason); each only where it is something new.

        `left_out` are the places of those that a played fault keeps from being stored: such an answer is not the last
        word on them, and is not remembered.
        """
        self.hear(worker)
        before = self.answered(worker, key, sha256) if key else None
        if before is not None:
            return Answer(before, again=True)
        inserted = updated = 0
        errors = ["a result could not be stored; try again later"] * len(left_out)
        for place, item in enumerate(items):
            if place in left_out:
                continue
            if isinstance(item, str):
                errors.append(item)
            elif self._store(worker, item, late):
                inserted += 1
            else:
                updated += 1
        body = msgspec.json.encode(Stored(inserted, updated, len(errors), errors[:MAX_ERRORS]))
        if key and not left_out:
            self.db.execute(
                "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?)", (worker, key, sha256, body, self._clock())
            )
        return Answer(body, again=False)

    def _store(self, worker: str, item: NewResult, late: bool) -> bool:
        """Write a result down unless the same is there; true where its task had none."""
        there = self.db.one("SELECT sha256 FROM results WHERE task_id = ?", (item.task_id,))
        now = self._clock()
        if there is None or there[0] != item.sha256:
            row = self.db.one("SELECT deadline FROM tasks WHERE task_id = ?", (item.task_id,))
            late = late or bool(row and row[0] is not None and row[0] < now)
            self.db.execute(
                "INSERT INTO results (task_id, body, sha256, raw_html_hash, worker, applied, late, received_at, seq) "
                "VALUES (?, ?, ?, ?, ?, 1, ?, ?, ?) ON CONFLICT DO UPDATE SET body = excluded.body, "
                "sha256 = excluded.sha256, raw_html_hash = excluded.raw_html_hash, worker = excluded.worker, "
                "applied = applied + 1, late = excluded.late, received_at = excluded.received_at, seq = excluded.seq",
                (item.task_id, item.body, item.sha256, item.raw_html_hash, worker, late, now, self._number()),
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
        """Every result in the order of its arrival, with what the Gateway knows of it and of its raw file."""
        rows = self.db.execute(
            "SELECT r.body, r.sha256, r.worker, r.applied, r.late, r.received_at, r.seq, f.name, f.received_at, f.seq "
            "FROM results r LEFT JOIN raw_files f ON f.name = (SELECT name FROM raw_files "
            "WHERE sha256 = r.raw_html_hash ORDER BY task_id IS NOT r.task_id, seq LIMIT 1) ORDER BY r.seq"
        )
        for body, sha256, worker, applied, late, received, seq, raw_name, raw_received, raw_seq in rows:
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

    def keep(self, worker: str, name: str, sha256: str, size: int, metadata: dict[str, Any]) -> None:
        """Note a raw file whose content lies there; the same content under the same name changes nothing."""
        self.hear(worker)
        there = self.db.one("SELECT sha256 FROM raw_files WHERE name = ?", (name,))
        if there and there[0] == sha256:
            return
        task_id = metadata.get("task_id")
        self.db.execute(
            "INSERT OR REPLACE INTO raw_files VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
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

    def counts(self) -> Counts:
        """How many there are of everything."""
        states = dict(self.db.all("SELECT state, count(*) FROM tasks GROUP BY state"))
        [(results, late)] = self.db.all("SELECT count(*), ifnull(sum(late), 0) FROM results")
        [(raw_files, workers)] = self.db.all("SELECT (SELECT count(*) FROM raw_files), (SELECT count(*) FROM workers)")
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
    """A result's own fields and the Gateway's facts; a field of the same name as a fact gets a sign behind it."""
    for name in facts:
        if name in body:
            other = name
            while other in body or other in facts:
                other += "~"
            body[other] = body.pop(name)
    return body | facts


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _migrate(db: Database, path: Path) -> None:
    """Make the tables, or bring them to this program's version; a foreign or newer database is left alone."""
    if _version(db, path) == len(_MIGRATIONS):
        return
    with connection.writing(db):
        for number in range(_version(db, path), len(_MIGRATIONS)):  # again: another process may have been faster
            db.execute(_MIGRATIONS[number])
        db.execute(f"PRAGMA application_id={APPLICATION_ID}")
        db.execute(f"PRAGMA user_version={len(_MIGRATIONS)}")


def _version(db: Database, path: Path) -> int:
    version = int(db.pragma("user_version"))
    if (version or db.all("SELECT 1 FROM sqlite_schema")) and db.pragma("application_id") != APPLICATION_ID:
        raise StoreError(f"{path} is a database of another program; it was left as it is")
    if version > len(_MIGRATIONS):
        raise StoreError(
            f"{path} was written by a newer version (schema {version}, this program knows {len(_MIGRATIONS)}); "
            "it was left as it is; use the newer program"
        )
    return version
