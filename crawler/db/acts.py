"""What changes tasks beside their own work: an operator (pause, resume, cancel, retry), time
(expire), deaths."""

import logging
from collections.abc import Collection, Mapping, Sequence

import msgspec

from crawler.db import losses
from crawler.db.books import JOB, SUSPECT_DEATHS, Bookkeeping, as_job
from crawler.db.connection import writing
from crawler.db.owners import Note
from crawler.models import NO_DEADLINE, Job

log = logging.getLogger(__name__)

HELD = NO_DEADLINE
"""`not_before` of a task whose job is paused: it never falls due by itself."""
BATCH = 5000
"""Tasks a transaction: others want to write too."""

STEP_S = 1.0
"""A clock that moves by more than this against the uptime was set."""
POISON_STRIKES = 2
ALONE_DEATHS = 5
"""A page that was alone in flight at so many further deaths without a trace is set aside. These may
be kills from outside, so it takes more of them than of deaths that the watchdog or a fatal signal
has left a trace of."""

_IDS = "id IN (SELECT value FROM json_each(?))"
COUNTS_FOR = "(j.id = t.job_id OR j.id IN (SELECT job_id FROM job_links WHERE task = t.id))"


class Acts(Bookkeeping):
    """The part of the ledger that changes what is to be done."""

    _clock_offset: float | None = None
    """What the clock showed beyond the uptime when `follow_clock` last looked."""

    def hold(self, job: Job, how: str, now: float) -> int:
        """Pause or cancel a job; returns how many tasks that puts aside. What is in flight goes on.

        A task that counts for another job too goes on for that one.
        """
        with writing(self.db):  # a cancelled job is nobody's to continue
            self.db.execute(
                "UPDATE jobs SET hold = ?1, key = iif(?1 = 'cancelled', 'cancelled:' || id, key) WHERE id = ?2",
                (how, job.id),
            )
        aside = last = 0
        while ids := self._pending_ids(job, "not_before < 9e15" if how == "paused" else "1", last):
            with writing(self.db):
                aside += len(ids) - len(self.free_to_go(ids, now))
            last = ids[-1]
        return aside

    def release(self, job: Job) -> int:
        """Let a paused job go on; returns how many tasks are due again."""
        released = last = 0
        with writing(self.db):
            self.db.execute("UPDATE jobs SET hold = 'resuming' WHERE id = ?", (job.id,))
        while ids := self._pending_ids(job, "not_before = 9e15", last):
            with writing(self.db):
                self.db.execute(f"UPDATE tasks SET not_before = 0 WHERE {_IDS}", (_json(ids),))
            released, last = released + len(ids), ids[-1]
        with writing(self.db):
            self.db.execute(
                "UPDATE jobs SET hold = NULL WHERE id = ? AND hold = 'resuming'", (job.id,)
            )
        return released

    def go_on_with_holds(self, now: float) -> None:
        """Bring to an end what a command that was killed has begun."""
        for row in self.db.all(
            f"SELECT {JOB} FROM jobs WHERE hold IS NOT NULL AND status <> 'done'"
        ):
            job = as_job(row)
            if job.hold == "resuming":
                self.release(job)
            elif job.hold == "cancelled":
                self.hold(job, "cancelled", now)

    def release_calls(self) -> None:
        """Make due what single calls held for themselves; for when none of these is there any
        more."""
        held = "job_id IS NULL AND status = 'pending' AND not_before = 9e15"
        if self.db.one(f"SELECT 1 FROM tasks WHERE {held} LIMIT 1"):
            with writing(self.db):
                self.db.execute(f"UPDATE tasks SET not_before = 0 WHERE {held}")

    def accept(
        self, job: Job, missing: Sequence[tuple[str, str]], ends: Mapping[str, int], now: float
    ) -> None:
        """Let what a job has be what it is to have, although that (by kind) is missing; its receipt
        says so.

        It does without its pages in segments up to the bytes in `ends`. Other jobs that share its
        results do not.
        """
        with writing(self.db):
            losses.settle(self.db, job.id, losses.ACCEPTED, now)
            losses.give_up(self.db, job.id, ends)
            self._accept(job, missing, now)

    def accept_import(self, job: Job, what: str, now: float) -> None:
        """Let the rows that a job has be all of its input, although its import was broken off."""
        with writing(self.db):
            self._accept(job, [(losses.ROWS, what)], now)

    def _accept(self, job: Job, missing: Sequence[tuple[str, str]], now: float) -> None:
        for kind, what in missing:
            losses.note(self.db, job.id, what, now, kind, losses.ACCEPTED)
        self.db.execute(
            "UPDATE jobs SET status = 'open' WHERE id = ? AND status = 'importing'", (job.id,)
        )
        self.db.execute(
            "UPDATE imports SET ended_at = ? WHERE job_id = ? AND ended_at IS NULL", (now, job.id)
        )

    def _pending_ids(self, job: Job, condition: str, after: int) -> list[int]:
        rows = self.db.execute(
            f"""SELECT id FROM tasks WHERE {self._of(job)} AND status = 'pending' AND {condition} AND id > ?
                ORDER BY id LIMIT {BATCH}""",
            (job.id, after),
        )
        return [row[0] for row in rows]

    def free_to_go(self, ids: list[int], now: float) -> list[int]:
        """Of pending tasks those with a job that is not on hold; the others are put aside. Part of
        a transaction."""
        if not self.db.one(
            "SELECT 1 FROM jobs WHERE hold IS NOT NULL AND status <> 'done' LIMIT 1"
        ):
            return ids
        rows = self.db.all(
            f"""SELECT t.id, max(CASE WHEN j.hold = 'paused' THEN 1 WHEN j.hold = 'cancelled' THEN 0
                                 WHEN j.deadline <= ? THEN 0 ELSE 2 END)
                FROM tasks t JOIN jobs j ON {COUNTS_FOR} WHERE t.{_IDS} GROUP BY t.id""",
            (now, _json(ids)),
        )
        stands = dict(rows)
        paused = [id_ for id_ in ids if stands.get(id_) == 1]
        cancelled = [id_ for id_ in ids if stands.get(id_) == 0]
        self.db.execute(
            f"UPDATE tasks SET not_before = 9e15, message_id = NULL WHERE {_IDS}", (_json(paused),)
        )
        self.end_without_result(cancelled, "skipped", "cancelled", "its job was cancelled", now)
        return [id_ for id_ in ids if stands.get(id_, 2) == 2]

    def end_without_result(
        self, ids: Sequence[int], status: str, reason: str, message: str, now: float
    ) -> None:
        """Bring pending tasks into a final state, with a line in their timelines. Part of a
        transaction."""
        self.db.execute(
            f"""UPDATE tasks SET status = ?, error_type = ?, error_message = ?, completed_at = ?, message_id = NULL
                WHERE {_IDS} AND status = 'pending'""",
            (status, reason, message, now, _json(ids)),
        )
        self.db.execute(
            """INSERT INTO events (task, at, kind, detail) SELECT value, ?, ?, ? FROM json_each(?)""",
            (now, status, _json({"error": reason, "message": message}), _json(ids)),
        )

    def expire(self, now: float) -> None:
        """End what missed its deadline; a task that a job with a later one (or none) wants too goes
        on for that."""
        first = "SELECT min(deadline) FROM tasks WHERE status = 'pending' AND deadline < 9e15"
        [(at,)] = self.db.all(first)
        while at is not None and at <= now:
            with writing(self.db):
                ids = [
                    row[0]
                    for row in self.db.execute(
                        """SELECT id FROM tasks WHERE status = 'pending' AND deadline < 9e15 AND deadline <= ?
                           LIMIT ?""",
                        (now, BATCH),
                    )
                ]
                self.db.execute(
                    f"""UPDATE tasks AS t SET deadline = ifnull(
                            (SELECT min(ifnull(j.deadline, 9e15)) FROM jobs j
                             WHERE {COUNTS_FOR} AND ifnull(j.deadline, 9e15) > ?1
                             AND (t.source <> 'gateway' OR j.id <> t.job_id)
                             AND ifnull(j.hold, '') <> 'cancelled'), deadline)
                        WHERE t.id IN (SELECT value FROM json_each(?2))""",
                    (now, _json(ids)),
                )
                late = self.db.all(
                    f"SELECT id FROM tasks WHERE {_IDS} AND deadline <= ?", (_json(ids), now)
                )
                message = "its deadline passed before it was collected"
                self.end_without_result(
                    [row[0] for row in late], "expired", "deadline", message, now
                )
            [(at,)] = self.db.all(first)

    def retry(
        self, statuses: Collection[str], reason: str | None, job: Job | None, now: float
    ) -> tuple[int, int]:
        """Make ended tasks pending again and reopen their jobs; returns how many, and how many are
        open elsewhere."""
        self.expire(now)  # what is late by now stays so, whatever its job is given
        again = left = last = 0
        while ids := self._ended_ids(statuses, reason, job, last):
            with writing(self.db):
                # IGNORE: a URL that is open in another task must not be open twice.
                rows = self.db.all(
                    f"""UPDATE OR IGNORE tasks SET status = 'pending', not_before = 0, failures = 0, strikes = 0,
                            deaths = 0, error_type = NULL, error_message = NULL, completed_at = NULL, message_id = NULL,
                            deadline = iif(deadline <= ?, 9e15, deadline)
                        WHERE {_IDS} AND status IN ('failed', 'skipped', 'expired') RETURNING id""",
                    (now, _json(ids)),
                )
                back = _json([row[0] for row in rows])
                self.db.execute(
                    """INSERT INTO events (task, at, kind, detail)
                       SELECT value, ?, 'retry asked', '{}' FROM json_each(?)""",
                    (now, back),
                )
                self._reopen(back, now)
            again, left, last = again + len(rows), left + len(ids) - len(rows), ids[-1]
        return again, left

    def _reopen(self, ids: str, now: float) -> None:
        jobs = self.db.all(
            """SELECT id, key, status FROM jobs WHERE id IN (
                   SELECT job_id FROM tasks WHERE id IN (SELECT value FROM json_each(?1))
                   UNION SELECT job_id FROM job_links WHERE task IN (SELECT value FROM json_each(?1)))""",
            (ids,),
        )
        for id_, key, status in jobs:
            taken = status == "done" and self.db.one(
                "SELECT 1 FROM jobs WHERE key = ? AND status <> 'done'", (key,)
            )
            self.db.execute(
                """UPDATE jobs SET status = iif(status = 'done', 'open', status), completed_at = NULL, key = ?,
                       hold = iif(hold = 'paused' AND status <> 'done', hold, NULL),
                       deadline = iif(deadline <= ?, NULL, deadline) WHERE id = ?""",
                (f"retry:{id_}" if taken else key, now, id_),
            )

    def _ended_ids(
        self, statuses: Collection[str], reason: str | None, job: Job | None, after: int
    ) -> list[int]:
        """Those that can be tried again: not a Gateway's without a URL."""
        rows = self.db.all(
            """SELECT id FROM tasks t WHERE id > ?1 AND url <> '' AND status IN (SELECT value FROM json_each(?2))
               AND (?3 IS NULL OR error_type = ?3)
               AND (?4 IS NULL OR job_id = ?4 OR EXISTS (SELECT 1 FROM job_links WHERE task = t.id AND job_id = ?4))
               ORDER BY id LIMIT ?5""",
            (after, _json(list(statuses)), reason, job.id if job else None, BATCH),
        )
        return [row[0] for row in rows]

    def free(self, note: Note, now: float) -> list[str]:
        """Return what a dead owner held; gives the domain of each of these tasks.

        The page that was being worked on gets a strike, and two are poison. Where none was, every
        page in flight is a suspect: nobody is blamed, and after some deaths each suspect is tried
        alone.
        """
        with writing(self.db):
            rows = self.db.all(
                "SELECT id, strikes, deaths, domain FROM tasks WHERE status = 'processing' AND owner = ?",
                (note.id,),
            )
            for id_, strikes_before, deaths_before, _ in rows:
                began = id_ in note.in_flight
                alone = note.in_flight == {id_} and deaths_before >= SUSPECT_DEATHS
                blamed = id_ == note.parsing or (alone and bool(note.evidence))
                suspected = began and not note.parsing and not blamed
                strikes = strikes_before + blamed
                deaths = deaths_before + (suspected and (alone or deaths_before < SUSPECT_DEATHS))
                poison = strikes >= POISON_STRIKES or deaths >= SUSPECT_DEATHS + ALONE_DEATHS
                self.db.execute(
                    """UPDATE tasks SET status = ?, owner = NULL, message_id = NULL, not_before = 0,
                           attempts = attempts + ?, strikes = ?, deaths = ?,
                           error_type = iif(?, 'poison', error_type), error_message = iif(?, ?, error_message),
                           completed_at = iif(?, ?, NULL)
                       WHERE id = ?""",
                    ("failed" if poison else "pending", began, strikes, deaths, poison, poison,
                     _poison(strikes, deaths), poison, now, id_),
                )  # fmt: skip
                detail = {"worker": note.about.get("pid"), "began": began, "parsing": blamed}
                if suspected:
                    detail["suspected"] = deaths
                if blamed and note.evidence:
                    detail["evidence"] = note.evidence
                self.event(id_, "poison" if poison else "worker died", detail, now)
        return [domain for *_, domain in rows]

    def owners(self) -> set[str]:
        """Who holds leases, as far as the ledger knows."""
        return {
            row[0]
            for row in self.db.execute(
                "SELECT DISTINCT owner FROM tasks WHERE status = 'processing'"
            )
        }

    def take_back(self, note: Note, now: float) -> list[str]:
        """Return what an owner holds that lives but stands still; no page is to blame, and late
        results are dropped.

        Gives the domain of each of these tasks.
        """
        with writing(self.db):
            rows = self.db.all(
                "SELECT id, domain FROM tasks WHERE status = 'processing' AND owner = ?", (note.id,)
            )
            for id_, _ in rows:
                began = id_ in note.in_flight
                self.db.execute(
                    """UPDATE tasks SET status = 'pending', owner = NULL, message_id = NULL, not_before = 0,
                           attempts = attempts + ? WHERE id = ?""",
                    (began, id_),
                )
                self.event(id_, "taken back", {"worker": note.pid, "began": began}, now)
        return [domain for _, domain in rows]

    def give_back(self, owner: str, held: Collection[tuple[int, int]], now: float) -> int:
        """Return the leases of an owner (task, fence) that it does not know of: an error came
        between it and them."""
        rows = self.db.all(
            "SELECT id, fence FROM tasks WHERE status = 'processing' AND owner = ?", (owner,)
        )
        forgotten = [id_ for id_, fence in rows if (id_, fence) not in held]
        if forgotten:
            with writing(self.db):
                self.db.execute(
                    f"""UPDATE tasks SET status = 'pending', owner = NULL, message_id = NULL
                        WHERE {_IDS} AND status = 'processing' AND owner = ?""",
                    (_json(forgotten), owner),
                )
                for id_ in forgotten:
                    self.event(id_, "given back", {}, now)
        return len(forgotten)

    def follow_clock(self, now: float, uptime: float, boot: str) -> float:
        """Move all that waits by as much as the clock was set since it was last looked at; returns
        by how much.

        `uptime` is a clock that never steps, and `boot` says since which boot of the kernel it
        counts. Deadlines stay: people mean the time of day by them.
        """
        offset = now - uptime
        if self._clock_offset is not None and abs(offset - self._clock_offset) <= STEP_S:
            return 0.0
        moved = self._moved(now, offset, boot)
        if moved is None:
            self._clock_offset = offset
            return 0.0
        with writing(self.db):
            moved = self._moved(now, offset, boot) or 0.0  # another process may have been faster
            self.db.execute(
                "INSERT OR REPLACE INTO meta VALUES ('clock', ?)", (f"{offset!r} {boot}",)
            )
            if moved:
                self.db.execute(
                    """UPDATE tasks SET not_before = max(1, not_before + ?)
                       WHERE status = 'pending' AND not_before > 0 AND not_before < 9e15""",
                    (moved,),
                )
                waits = "state = 'ready' AND not_before > 0"
                for table in ("outbox", "reports"):
                    sql = f"UPDATE {table} SET not_before = max(1, not_before + ?) WHERE {waits}"
                    self.db.execute(sql, (moved,))
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

        What a reboot has done to the clock shows only where events of the ledger lie in the future
        by now.
        """
        row = self.db.one("SELECT value FROM meta WHERE key = 'clock'")
        before, _, its_boot = row[0].partition(" ") if row else ("", "", "")
        if row and its_boot == boot:
            moved = offset - float(before)
            return moved if abs(moved) > STEP_S else None
        last = self.db.one("SELECT at FROM events ORDER BY id DESC LIMIT 1")
        return now - last[0] if last and last[0] > now + STEP_S else 0.0


def _poison(strikes: int, deaths: int) -> str:
    if strikes >= POISON_STRIKES:
        return f"{strikes} workers died or stood still while they worked on this page"
    return f"{deaths - SUSPECT_DEATHS} workers died while this page was all that they worked on"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
