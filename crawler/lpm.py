"""LocalPersistenceManager: the only door to lpm.db, pending/ and raw/."""

import contextlib
import errno
import itertools
import logging
import os
import re
import shlex
import shutil
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import file_digest, sha256
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from crawler.config import failpoint, program
from crawler.db import (
    connection,
    guard,
    kernel,
    losses,
    owners,
    results,
    schema,
    segments,
    siblings,
)
from crawler.db.acts import HELD
from crawler.db.books import NOTED_FILE
from crawler.db.ledger import Ledger, Place, RejectedRow
from crawler.errors import StoreError, UsageError
from crawler.files import read_regular, set_aside, sync_file_system
from crawler.locks import is_locked, open_lock, try_lock
from crawler.models import (
    NO_DEADLINE,
    UNCHANGED,
    Imported,
    Job,
    NewTask,
    Outcome,
    Raw,
    Receipt,
    Task,
    TaskStatus,
)

log = logging.getLogger(__name__)

MIN_FILES = 1000
"""So many inodes must be free; a file system without a limit on them says that it has none at
all."""
PRUNED = "pruned "
"""The beginning of the key in `meta` under which the name of a segment is noted that `prune` has
removed."""
_LOOK_AGAIN_S = 2.0
"""In so long, a living writer writes at least one of the files that are due."""
_WHOLE, _TORN, _OTHER = "whole", "missing or torn", "other"
_COARSE_S = 2.0
"""By so much the times of files may be behind the clock."""
UNFINISHED = re.compile(r"\.[0-9a-f]{32}\.\d+\.\d+")
"""The name of a file in pending/ while it is written."""


class _Missing(NamedTuple):
    """A segment that is not on the disk up to that byte, and what to say of it."""

    segment: str
    end: int
    what: str


class _Look(NamedTuple):
    """Which files of pending/ to look into: those of these tasks (None: of all), and what was
    changed since then."""

    suspects: set[str] | None
    before: float


class LocalPersistenceManager:
    """The store in one data folder. An object is for one thread; any number of processes may have
    one."""

    def __init__(
        self, folder: Path, raw: str = "all", clock: Callable[[], float] = time.time
    ) -> None:
        self.folder = folder.absolute()
        self.path = self.folder / "lpm.db"
        self.pending = self.folder / "pending"
        self.raw = self.folder / "raw"
        self.run = self.folder / "run"
        self.owners = self.run / "owners"
        self._keep_raw = raw
        self._clock = clock
        self._connections: dict[bool, Ledger] = {}
        self._segments: dict[bool, segments.SegmentWriter] = {}
        """Of good pages (False) and of those in quarantine (True)."""
        self._unprojected: list[int] = []
        self._is_newest: bool | None = None
        self._let_go: weakref.finalize[[int], LocalPersistenceManager] | None = None

    @classmethod
    def exists(cls, folder: Path) -> bool:
        """Whether there is a store in that folder."""
        return (folder / "lpm.db").is_file() or bool(guard.unfinished(folder))

    @property
    def can_write(self) -> bool:
        """Whether this process may write to the store; where not, its ledger is only read."""
        return connection.can_write(self.path)

    def now(self) -> float:
        """The time by this store's clock."""
        return self._clock()

    def close_after_check(self) -> None:
        """Make sure that the store can be used, and that its ledger is no older copy; then leave
        it."""
        _ = self.durable
        with self.errors():
            [(known,)] = self.ledger.db.all(
                "SELECT count(*) FROM outbox WHERE state <> 'synced' AND archived_at IS NULL"
            )
            files = sum(1 for _ in self.pending.glob("[!.]*.json"))
            later = (
                sum(1 for _ in later_results(self.ledger.db, self.pending)) if files > known else 0
            )
        self.close()
        if later:
            raise StoreError(
                f"{self.pending} holds {later:,} results that the ledger does not know: it is an older copy, or has "
                f"lost its log; {program()} doctor --repair puts them back"
            )

    def _may_cut(self) -> bool:
        """Whether what lies behind the committed end of a segment is a killed writer's: a ledger
        stays the newest."""
        if self._is_newest is None:
            self._is_newest = next(later_results(self.ledger.db, self.pending), None) is None
        return self._is_newest

    @property
    def durable(self) -> Ledger:
        """The ledger on a connection whose commits survive a power cut."""
        return self._ledger(True)

    @property
    def ledger(self) -> Ledger:
        """The ledger for claims, publishing and reading: a power cut may undo its last commits, and
        may."""
        return self._ledger(False)

    def _ledger(self, durable: bool) -> Ledger:
        if durable not in self._connections:
            kernel.check(self.folder)
            only_read = not durable and not self.can_write
            with connection.store_errors(self.path):
                for folder in (
                    () if only_read else (self.folder, self.pending, self.raw, self.owners)
                ):
                    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                lock = None
                if (
                    not (self._let_go and self._let_go.alive)
                    and (lock := guard.share(self.folder)) is not None
                ):
                    self.hold(lock)
                guard.check(self.folder)
            opened = self._open_to_read() if only_read else connection.connect(self.path, durable)
            try:
                with connection.store_errors(self.path):
                    if (
                        opened.one("SELECT 1 FROM sqlite_schema") is None
                    ):  # its log may be lost, and all was in that
                        guard.check_unused(self.folder)
                    older = schema.is_older(opened, self.path, self.can_write)
                    with (
                        guard.alone(lock, self.folder)
                        if older and lock is not None
                        else contextlib.nullcontext()
                    ):
                        schema.migrate(opened, self.path)
                    self._connections[durable] = Ledger(
                        opened, partial(_has_page, self.raw, self._keep_raw)
                    )
            except StoreError:
                opened.close(True)
                self.close()
                raise
        return self._connections[durable]

    def _open_to_read(self) -> connection.Database:
        with connection.store_errors(self.path):
            return connection.open_to_read(self.path)

    def hold(self, lock: int) -> None:
        """Keep that descriptor of the store's lock until the store is closed, or forgotten."""
        self._let_go = weakref.finalize(self, os.close, lock)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn a failing disk into a `StoreError`; the connections are opened anew, never trusted
        again."""
        try:
            with connection.store_errors(self.path):
                yield
        except StoreError:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the database and the segment."""
        ledgers, writers = list(self._connections.values()), list(self._segments.values())
        self._connections.clear()
        self._segments.clear()
        for ledger in ledgers:
            ledger.db.close(True)
        for writer in writers:
            writer.close()
        if self._let_go:
            self._let_go()

    # Tasks

    def persist_tasks(
        self,
        tasks: Iterable[NewTask],
        *,
        job: Job | None = None,
        queue: str = "default",
        source: str = "file",
        source_file: str | None = None,
        file_number: int = 0,
        loopback: bool = False,
        fresh_for_s: float | None = None,
    ) -> Imported:
        """Put tasks into the ledger, durably, before anything else hears of them."""
        now = self._clock()
        with self.errors():
            return self.durable.add(
                tasks,
                job=job,
                queue=queue,
                source=source,
                source_file=source_file,
                file_number=file_number,
                loopback=loopback,
                fresh_after=NO_DEADLINE if fresh_for_s is None else now - fresh_for_s,
                now=now,
            )

    def persist_rejects(
        self, job: Job, rejects: Iterable[RejectedRow], file_number: int = 0
    ) -> None:
        """Note the rows of a job's input that no task could be made of."""
        with self.errors():
            storable = (row._replace(text=_storable(row.text) or "") for row in rejects)
            self.durable.reject(job, storable, file_number)

    @contextmanager
    def importing(self, job: Job) -> Iterator[None]:
        """Be seen to import into a job, until the end or a death: then its import was broken
        off."""
        with self.errors():
            folder = self.run / "imports"
            folder.mkdir(mode=0o700, exist_ok=True)
            for left in folder.glob(f"{job.id}.*"):  # by an import that was killed
                if not is_locked(left):
                    left.unlink(missing_ok=True)
            path = folder / f"{job.id}.{os.getpid()}"
            lock = open_lock(path)
        try:
            try_lock(lock)
            yield
        finally:
            path.unlink(missing_ok=True)
            os.close(lock)

    def is_importing(self, job: Job | None) -> bool:
        """Whether some process reads a job's input now, or that of any job."""
        return is_importing(self.run, job)

    def unaccounted(self, jobs: Iterable[Job]) -> list[list[str]]:
        """What is known to be missing of each job, with the way out; cheap where all segments are
        on the disk."""
        gone = not self._has_all_segments()
        return [
            [*unaccounted(self.ledger, self.run, job), *(self._missing_of(job) if gone else ())]
            for job in jobs
        ]

    def _missing_of(self, job: Job) -> list[str]:
        accept = f"bring it back, or {_accept(job)}"
        return [f"{missing.what}; {accept}" for missing in self._missing_segments(job)]

    def receipt(self, job: Job) -> Receipt:
        """The receipt of a job, with all that is known to be missing of it, in the ledger or on the
        disk."""
        job = self.ledger.job_by_id(job.id)  # as it stands now
        receipt = self.ledger.receipt(job)
        lost = unaccounted(self.ledger, self.run, job)
        problems = [*lost, *receipt.problems, *self._missing_of(job), *self._unreadable_pages(job)]
        return msgspec.structs.replace(receipt, problems=problems)

    def verify(self, job: Job) -> Receipt:
        """The receipt of a job, once every row and result that it counts was read, and every file
        of these."""
        with self.errors():
            receipt = self.receipt(job)
            rows = sum(1 for _ in results.read_rows(self.ledger.db, job))
            lacking, other = self._faulty_files(job)
        problems, again = list(receipt.problems), f"{program()} doctor --repair makes them again"
        if rows < receipt.rows:  # else more may have come in meanwhile
            lost = f"only {rows:,} of its {receipt.rows:,} rows can be read"
            problems.append(f"{lost}; {program()} doctor tells more")
        if lacking:
            problems.append(
                f"{lacking:,} files of its results in pending/ are missing or torn; {again}"
            )
        if other:
            problems.append(
                f"{other:,} files of its results in pending/ say something else than lpm.db; {again}"
            )
        return msgspec.structs.replace(receipt, problems=problems)

    def accept(self, job: Job) -> list[str]:
        """Accept that something of a job is missing; returns all of it."""
        if self.is_importing(job):
            raise UsageError(
                f"the import of {job.name} has not ended yet; wait for its end, or stop it"
            )
        job = self.ledger.job_by_id(job.id)  # as it stands now
        lost, gone = self.ledger.losses(job), self._missing_segments(job)
        new = [(losses.ROWS, _broken_off(self.ledger, job))] if _is_broken_off(job, lost) else []
        new += [(losses.PAGES, missing.what) for missing in gone]
        if lost or new:
            with self.errors():
                self.durable.accept(
                    job, new, {missing.segment: missing.end for missing in gone}, self._clock()
                )
                self.durable.finalise(self._clock())
        return [loss.what for loss in lost] + [what for _, what in new]

    def accept_import(self, job: Job) -> list[str]:
        """Accept that the import of a job was broken off, and nothing else that is missing; returns
        what."""
        job = self.ledger.job_by_id(job.id)  # as it stands now
        if self.is_importing(job) or not _is_broken_off(job, self.ledger.losses(job)):
            return []
        what = _broken_off(self.ledger, job)
        with self.errors():
            self.durable.accept_import(job, what, self._clock())
        return [what]

    def find_job(self, name: str) -> Job:
        """The job of that name; where later ones came from files of its name, the one that this
        file was read into."""
        with self.errors():
            known = next((job for job in self.ledger.jobs() if job.name == name), None)
            if known is None or self.ledger.later_namesakes(known):
                checksum = _checksum(Path(name))
                return (
                    (checksum and self.ledger.newest_job_of(checksum))
                    or known
                    or self.ledger.job(name)
                )
        return known

    def persist_call(self, task: NewTask, *, loopback: bool, held: bool = False) -> int:
        """Put a single URL into the ledger under the id of its call, or find what that call made
        before."""
        with self.errors():
            return self.durable.add_call(task, loopback=loopback, now=self._clock(), held=held)

    def get_next_pending(
        self, owner: str, limit: int = 1, queues: Sequence[str] = ("urgent", "default")
    ) -> list[Task]:
        """Lease the most urgent due tasks for an owner, without asking for permits."""
        now = self._clock()
        with self.errors():
            self.ledger.wake(now)
            places = (
                Place(due, limit, lambda job: True)
                for queue in queues
                for due in self.ledger.due(queue)
            )
            return self.ledger.claim(owner, places, limit, now)[0]

    # Results

    def save_result(self, *outcomes: Outcome) -> list[bool]:
        """Store how attempts ended: pages on disk, then one commit, then pending/; False where the
        claim was not live.

        The commit is the truth: what was not committed never happened, and what was can be
        projected again.
        """
        with self.errors():
            digests = [sha256(o.page.body).hexdigest() if o.page else "" for o in outcomes]
            places = self._append_outcomes(outcomes, digests)
            failpoint("raw-synced")
            now, stored = self._clock(), []
            with self._committing(now) as ledger:
                outcomes = tuple(_unless_gone(ledger, outcome) for outcome in outcomes)
                for outcome, digest, place in zip(outcomes, digests, places, strict=True):
                    stored.append(self._apply(ledger, outcome, digest, place, now))
                live = {
                    o.task.id: (o, told)
                    for o, told in zip(outcomes, stored, strict=True)
                    if told is not None
                }
                done = [
                    id_
                    for id_, (outcome, _) in live.items()
                    if outcome.status is TaskStatus.COMPLETED
                ]
                done += _serve_siblings(ledger, live, now)
        self._unprojected += done
        self._project_all()
        return [told is not None for told in stored]

    def save_carried(
        self,
        members: Sequence[bytes | None],
        insert: Callable[[Ledger, Sequence[Raw | None]], list[int]],
    ) -> None:
        """Store what another ledger collected, in the same order: `insert` is given where the pages
        are now."""
        with self.errors():
            places = self._append(members)
            with self._committing(self._clock()) as ledger:
                tasks = insert(ledger, places)
        self._unprojected += tasks
        self._project_all()

    @contextmanager
    def _committing(self, now: float) -> Iterator[Ledger]:
        """One durable commit; what the segment has got by then counts from then on."""
        ledger = self.durable
        with connection.writing(ledger.db):
            yield ledger
            for writer in self._segments.values():
                ledger.db.execute(
                    "INSERT INTO raw_segments VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET end = excluded.end",
                    (writer.name, writer.end, now),
                )
            failpoint("committing")
        failpoint("committed")
        for writer in self._segments.values():
            writer.committed = True

    def _project_all(self) -> None:
        """Write what is due to pending/; where that fails it stays due: the commit has decided, not
        the file."""
        with self.errors():
            for task, task_id, document in results.documents(self.ledger.db, self._unprojected):
                try:
                    self._write_pending(task_id, document)
                except OSError as error:
                    self._unprojected = [other for other in self._unprojected if other >= task]
                    if len(self._unprojected) >= 1000:
                        log.warning(
                            "pending/ lacks files (%s); they are made again at the next start",
                            error,
                        )
                        self._unprojected.clear()
                    return
        self._unprojected.clear()

    def _keeps(self, outcome: Outcome) -> bool:
        if outcome.page is None or self._keep_raw == "none" or outcome.verdict == UNCHANGED:
            return False
        return self._keep_raw == "all" or outcome.status is not TaskStatus.COMPLETED

    def _append_outcomes(
        self, outcomes: Sequence[Outcome], digests: Sequence[str]
    ) -> list[Raw | None]:
        good: list[bytes | None] = [None] * len(outcomes)
        walls = list(good)
        for at, outcome in enumerate(outcomes):
            if outcome.page and self._keeps(outcome):
                page = outcome.page
                digest = digests[at] if page.raw is page.body else sha256(page.raw).hexdigest()
                (walls if outcome.quarantine else good)[at] = segments.packed(page, digest)
        places = zip(self._append(good), self._append(walls, quarantine=True), strict=True)
        return [place or wall for place, wall in places]

    def _append(
        self, members: Sequence[bytes | None], quarantine: bool = False
    ) -> list[Raw | None]:
        kept = [member for member in members if member is not None]
        if not kept:
            return [None] * len(members)
        if quarantine not in self._segments:
            self._segments[quarantine] = segments.SegmentWriter(
                self.raw,
                self._committed_end,
                self._clock,
                quarantine=quarantine,
                may_cut=self._may_cut,
            )
        places = iter(self._segments[quarantine].append(kept))
        return [None if member is None else next(places) for member in members]

    def _committed_end(self, name: str) -> int:
        row = self.ledger.db.one("SELECT end FROM raw_segments WHERE name = ?", (name,))
        return row[0] if row else 0

    def _apply(
        self, ledger: Ledger, outcome: Outcome, digest: str, place: Raw | None, now: float
    ) -> dict[str, Any] | None:
        """Store how one attempt ended; returns what its timeline says of that, or None where its
        claim was not live."""
        task, page, final = outcome.task, outcome.page, outcome.status is not TaskStatus.PENDING
        failed = outcome.error_type is not None and outcome.charge
        attempted = failed or (bool(outcome.sent) and not outcome.shortage)
        live = ledger.db.all(
            """UPDATE tasks SET status = ?, attempts = attempts + ?, failures = failures + ?, not_before = ?,
                   deaths = iif(?, 0, deaths), owner = NULL, message_id = iif(?, message_id, NULL),
                   error_type = ?, error_message = ?, completed_at = ?
               WHERE id = ? AND fence = ? AND status = 'processing' RETURNING leased_at""",
            (outcome.status, attempted, failed, outcome.not_before, final or failed, final, outcome.error_type,
             _storable(outcome.error_message), now if final else None, task.id, task.fence),
        )  # fmt: skip
        if not live:
            return None  # a late twin: this claim was given up, and another one decides
        detail: dict[str, Any] = {"worker": outcome.worker, "claimed_at": live[0][0]}
        if attempted:
            detail["attempt"] = task.attempts + 1
        if outcome.sent:
            detail["sent"] = outcome.sent
        if outcome.rule.limited:
            detail["limit"] = outcome.rule
        if page:
            detail |= {
                "status": page.status,
                "bytes": len(page.body),
                "fetch_ms": round(page.fetch_s * 1000, 1),
            }
        if outcome.verdict:
            detail |= {"verdict": outcome.verdict, "parse_ms": round(outcome.parse_ms, 1)}
        if outcome.evidence:
            detail["evidence"] = [_storable(text) for text in outcome.evidence]
        if outcome.retry:
            spent = final and outcome.retry.tries_again
            detail["decision"] = (
                f"{outcome.retry}, but no attempt is left" if spent else outcome.retry
            )
        if outcome.error_type:
            detail |= {"error": outcome.error_type, "message": _storable(outcome.error_message)}
        if not final:
            detail["not_before"] = outcome.not_before
        if place:
            detail["raw"] = place
        kind = (
            outcome.status
            if final
            else "retry"
            if failed
            else "postponed"
            if not outcome.sent
            else "broken off"
        )
        if page and outcome.status is TaskStatus.COMPLETED:
            results.insert(ledger.db, outcome, page, digest, place, now)
            detail["record_crc32"] = crc32(
                outcome.record
            )  # by this the doctor knows a record with a wrong byte
        ledger.event(task.id, kind, detail, now)
        return detail

    def results(
        self, job: Job | None = None, since: float | None = None, limit: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Results in the one shape they have everywhere, in the order of their tasks, read some at
        a time."""
        condition, values = results.matching(job, since)
        return self._results(condition, values, limit)

    def _results(
        self, condition: str, values: Sequence[Any], limit: int | None = None
    ) -> Iterator[dict[str, Any]]:
        with self.errors():
            for _, result in results.read(self.ledger.db, condition, values, limit):
                yield result

    def result(self, task: int) -> dict[str, Any] | None:
        """One task's result."""
        return next(self._results("r.task = ?", (task,), 1), None)

    def report(self, task: int) -> dict[str, Any]:
        """A task's result, or why there is none."""
        names = (
            "task_id",
            "url",
            "status",
            "attempts",
            "error_type",
            "error_message",
            "source_line",
            "source_item",
        )
        [row] = self.ledger.db.all(
            f"SELECT {', '.join(names)}, ifnull({NOTED_FILE.format('t')}, source_file) FROM tasks t WHERE id = ?",
            (task,),
        )
        return dict(zip((*names, "source_file"), row, strict=True)) | (self.result(task) or {})

    def get_unsynced_results(self, limit: int = 100) -> list[dict[str, Any]]:
        """Results that a Gateway is to get: those of its own tasks, and held ones that a command
        has released."""
        return list(self._results("o.state = 'ready'", (), limit))

    def note_export(
        self, file: str, form: str, job: Job | None, since: float | None, results: int, horizon: int
    ) -> None:
        """Note that results were handed over, for the timelines of their tasks; not in a store that
        is only read."""
        if self.can_write:
            with self.errors():
                self.durable.note_export(file, form, job, since, results, horizon, self._clock())

    def mark_synced(self, task_ids: Sequence[str]) -> None:
        """The Gateway has confirmed these: they leave pending/ and are not projected again."""
        with self.errors(), connection.writing(self.durable.db):
            self.durable.db.execute(
                """UPDATE outbox SET state = 'synced', synced_at = ?
                   WHERE task IN (SELECT id FROM tasks WHERE task_id IN (SELECT value FROM json_each(?)))""",
                (self._clock(), msgspec.json.encode(list(task_ids)).decode()),
            )
        for task_id in task_ids:
            self.remove_projection(task_id)

    # Projections

    def remove_projection(self, task_id: str) -> None:
        """Take the file of a result that has left it out of pending/; a folder in its place is only
        set aside."""
        path = self.pending / f"{task_id}.json"
        if path.is_dir() and not path.is_symlink():
            set_aside(path, "damaged")
        else:
            path.unlink(missing_ok=True)

    def project(self, task: int) -> None:
        """Write pending/<task_id>.json, whole or not at all, unless the result has left it."""
        result = next(
            self._results(
                "r.task = ? AND o.state <> 'synced' AND o.archived_at IS NULL", (task,), 1
            ),
            None,
        )
        if result is not None:
            self._write_pending(result["task_id"], msgspec.json.encode(result))

    def _write_pending(self, task_id: str, document: bytes) -> None:
        hidden = f"{self.pending}/.{task_id}.{os.getpid()}.{threading.get_native_id()}"
        descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            if os.write(descriptor, document + b"\n") <= len(document):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)
        os.replace(hidden, f"{self.pending}/{task_id}.json")  # noqa: PTH105 - for every page

    def project_missing(self, read_all: bool = False) -> int:
        """Make again what is missing or torn in pending/; returns how many.

        A power cut tears files that were not on the disk yet. So those are read that came since the
        last `secure_pending`, or all of them; and whatever else was changed since then is compared
        with the ledger.
        """
        with self.errors():
            look = self._look(read_all)
            there = set()
            with os.scandir(self.pending) as entries:
                for entry in entries:
                    stem = entry.name.removesuffix(".json")
                    if entry.name.startswith("."):
                        _remove_if_old(Path(entry.path))
                    elif stem == entry.name:
                        continue
                    elif (state := self._state_of(stem, look)) == _WHOLE:
                        there.add(stem)
                    elif state == _OTHER:
                        set_aside(Path(entry.path), "damaged")  # it may be the ledger that is wrong
            made = 0
            for task, task_id in self.ledger.db.execute(
                """SELECT t.id, t.task_id FROM outbox o JOIN tasks t ON t.id = o.task
                   WHERE o.state <> 'synced' AND o.archived_at IS NULL"""
            ):
                if task_id not in there:
                    _set_aside_unless_file(self.pending / f"{task_id}.json")
                    self.project(task)
                    made += 1
        return made

    def _look(self, read_all: bool = False) -> _Look:
        """Which files of pending/ to look into."""
        row = self.ledger.db.one("SELECT value FROM meta WHERE key = 'pending_secured'")
        horizon, _, at = (row[0] if row else "").partition(" ")
        # A clock that was set back since says nothing about what came later.
        before = float(at) if at and float(at) <= time.time() else 0.0
        return _Look(None if read_all else self._unsecured(int(horizon or 0)), before)

    def _state_of(self, task_id: str, look: _Look) -> str:
        """What a result's file in pending/ is; one that was not changed since it was secured is not
        opened."""
        name = f"{self.pending}/{task_id}.json"
        try:
            about = os.stat(name)  # noqa: PTH116 - for every page
        except OSError:  # nothing, or a link to nowhere
            return _TORN
        if not stat.S_ISREG(about.st_mode):  # a folder, a pipe: no result, whatever its name
            return _TORN
        if look.suspects is None or task_id in look.suspects:
            return _WHOLE if is_whole(Path(name)) else _TORN
        if about.st_size and max(about.st_ctime, about.st_mtime) < look.before:
            return _WHOLE
        file = _read_result(Path(name))
        if file is None:
            return _TORN
        return _WHOLE if results.agrees(self.ledger.db, task_id, file) else _OTHER

    def _faulty_files(self, job: Job) -> tuple[int, int]:
        """How many files of a job's results are missing or torn, and how many say something else
        than the ledger."""
        condition, values = results.matching(job, None)
        look, found = self._look(), dict[str, list[str]]()
        for (task_id,) in self.ledger.db.all(
            f"""SELECT t.task_id FROM outbox o JOIN tasks t ON t.id = o.task JOIN results r ON r.task = o.task
                WHERE o.state <> 'synced' AND o.archived_at IS NULL AND {condition}""",
            values,
        ):
            if (state := self._state_of(task_id, look)) != _WHOLE:
                found.setdefault(state, []).append(task_id)
        torn = missing_files(
            self.ledger.db,
            self.pending,
            found.get(_TORN, ()),
            lambda: bool(owners.living(self.owners)),
            is_there=is_whole,
        )
        return len(torn), len(found.get(_OTHER, ()))

    def _unsecured(self, horizon: int) -> set[str]:
        """The tasks whose files may not be on the disk yet."""
        rows = self.ledger.db.execute(
            """SELECT task_id FROM tasks WHERE id IN (
                   SELECT task FROM events WHERE kind IN ('completed', 'unbundled', 'page unbundled') AND id > ?)""",
            (horizon,),
        )
        return {row[0] for row in rows}

    def secure_pending(self) -> int:
        """See that every result's file is there, whole and on the disk; returns how many were made
        again."""
        with self.errors():
            horizon = self.ledger.horizon()
            at = time.time() - _COARSE_S
            made = self.project_missing()
            sync_file_system(self.pending)
            with connection.writing(self.durable.db):
                self.durable.db.execute(
                    "INSERT OR REPLACE INTO meta (key, value) VALUES ('pending_secured', ?)",
                    (f"{horizon} {at!r}",),
                )
        return made

    # Raw pages

    def raw_page(self, task: int) -> tuple[str, bytes] | None:
        """The header block and body, as received, of the last page of a task, good or not, unless
        it was pruned."""
        place = self.raw_place(task)
        if place is None or not self._committed_end(place.segment):
            return None
        row = self.ledger.db.one(
            "SELECT final_url FROM results WHERE task = ? AND raw_segment = ? AND raw_offset = ? AND verdict <> ?",
            (task, place.segment, place.offset, UNCHANGED),
        )
        return segments.read(self.raw, place, row[0] if row else "")

    def raw_place(self, task: int) -> Raw | None:
        """Where the last page of a task was stored; `prune` may have removed it."""
        for (detail,) in self.ledger.db.all(
            "SELECT detail FROM events WHERE task = ? ORDER BY id DESC", (task,)
        ):
            raw = msgspec.json.decode(detail).get("raw")
            if raw:
                return msgspec.convert(raw, Raw)
        return None

    def why_no_page(self, task: int) -> str | None:
        """What became of the page of a task that was stored and is not there any more; None where
        none was."""
        place = self.raw_place(task)
        if place is None or self._committed_end(place.segment):
            return None
        if self.ledger.db.one("SELECT 1 FROM meta WHERE key = ?", (f"{PRUNED}{place.segment}",)):
            return "was removed by prune"
        return f"was in {place.segment}, which the ledger does not know any more; {program()} doctor tells more"

    def missing_pages(self) -> list[str]:
        """What of the pages that results name is not on the disk; cheap where all of it is."""
        return (
            []
            if self._has_all_segments()
            else [missing.what for missing in self._missing_segments(None)]
        )

    def is_given_up(self, place: Raw, job: Job | None) -> bool:
        """Whether a page is not on the disk, and a job, or any, does without it."""
        end = place.offset + place.length
        return not self.has_segment(place.segment, end) and end <= losses.given_up(
            self.ledger.db, job, place.segment
        )

    def _has_all_segments(self) -> bool:
        known = self.ledger.db.all("SELECT name, end FROM raw_segments")
        return all(self.has_segment(name, end) for name, end in known)

    def has_segment(self, name: str, end: int) -> bool:
        """Whether a segment is on the disk, up to that byte."""
        return _has_segment(self.raw, name, end)

    def _missing_segments(self, job: Job | None) -> list[_Missing]:
        """The segments that are not on the disk as far as results have pages there that somebody
        wants."""
        condition, values = results.matching(job, None)
        wanted = losses.wanted(self.ledger.db, job) if job else losses.WANTED_BY_ANY
        pages = f"pages of {'its' if job else 'the'} results"
        rows = self.ledger.db.all(
            f"""SELECT raw_segment, max(raw_offset + raw_length), count(*) FROM results r JOIN tasks t ON t.id = r.task
                WHERE {condition} AND raw_segment IS NOT NULL AND {wanted} GROUP BY 1""",
            values,
        )
        return [
            _Missing(
                name,
                end,
                f"the segment {name}, with {count:,} {pages}, is missing or shorter than {end:,} bytes",
            )
            for name, end, count in rows
            if not self.has_segment(name, end)
        ]

    def _unreadable_pages(self, job: Job) -> Iterator[str]:
        """What to say where no page begins at the places of a job's results; only `doctor` reads
        them to their ends."""
        condition, values = results.matching(job, None)
        places = self.ledger.db.execute(
            f"""SELECT raw_segment, raw_offset FROM results r JOIN tasks t ON t.id = r.task
                WHERE {condition} AND raw_segment IN (SELECT name FROM raw_segments)
                AND {losses.wanted(self.ledger.db, job)} ORDER BY 1, 2""",
            values,
        )
        count = 0
        for name, found in itertools.groupby(places, key=itemgetter(0)):
            with contextlib.suppress(OSError), (self.raw / name).open("rb", buffering=0) as file:
                count += sum(
                    os.pread(file.fileno(), 4, offset) != segments.GZIP for _, offset in found
                )
        if count:
            yield f"{count:,} stored pages of its results cannot be read; {program()} doctor --repair tells more"

    # Size

    def bound_wal(self, limit: int) -> bool:
        """Write the write-ahead log back and cut it where it is larger than that; True where that
        was done.

        SQLite does so by itself, but begins anew only in a moment without any reader: among many
        there may be none.
        """
        with contextlib.suppress(FileNotFoundError):
            if self.path.with_name("lpm.db-wal").stat().st_size > limit:
                busy, *_ = self.ledger.db.all("PRAGMA wal_checkpoint(TRUNCATE)")[0]
                return not busy
        return False

    def sizes(self) -> dict[str, int]:
        """What the store takes on the disk, by part."""
        parts = {"lpm.db": self.folder.glob("lpm.db*"), "raw": self.raw.glob("*.warc.gz")}
        parts |= {name: (self.folder / name).glob("*") for name in ("pending", "archive")}
        return {name: sum(map(_size, paths)) for name, paths in parts.items()}

    # Deaths

    def bury(self, forget: Callable[[str, str], None] = lambda domain, owner: None) -> int:
        """Free what dead owners held and cut their segments; returns how many tasks came back.

        `forget` is told of every domain that a dead owner had tasks of.
        """
        freed = 0
        with self.errors(), owners.dead(self.owners) as notes:
            gone = {note.id for note in notes}
            for owner in self.ledger.owners() - gone:
                if not owners.exists(self.owners, owner):  # its file was lost with the run folder
                    notes.append(owners.Note(owner, {}, "", 0, frozenset(), ""))
            for note in notes:
                domains = self.durable.free(note, self._clock())
                freed += len(domains)
                for domain in set(domains):
                    forget(domain, note.id)
            if notes:
                segments.mend(self.raw, self._committed_end, self._may_cut)
        return freed


def _serve_siblings(
    ledger: Ledger, live: dict[int, tuple[Outcome, dict[str, Any]]], now: float
) -> list[int]:
    """Complete those that waited for these pages, or let them wait no longer; returns which have a
    result now."""
    completed: list[int] = []
    room = siblings.Room()
    for id_ in siblings.shared(ledger.db, list(live)):
        outcome, detail = live[id_]
        if outcome.status is TaskStatus.COMPLETED and outcome.page:
            ids, room = siblings.complete(ledger.db, outcome, detail, now, room)
            completed += ids
        elif outcome.status in (TaskStatus.FAILED, TaskStatus.SKIPPED):
            _share_failure(ledger, outcome, now)
        if outcome.status is TaskStatus.PENDING and outcome.not_before < HELD:
            siblings.put_off(ledger.db, id_, max(now, outcome.not_before))
        else:
            siblings.release(ledger.db, id_)
    return completed


def _share_failure(ledger: Ledger, outcome: Outcome, now: float) -> None:
    """End those that waited for a page which failed for good: each of their attempts would ask the
    same server for the same page again."""
    reason, message = outcome.error_type or outcome.status, outcome.error_message or ""
    told = f"{message} (fetched once for all rows of this URL, by task {outcome.task.task_id})"
    ids = siblings.waiting(ledger.db, outcome.task.id)
    ledger.end_without_result(ids, outcome.status, reason, _storable(told.strip()) or "", now)


def _unless_gone(ledger: Ledger, outcome: Outcome) -> Outcome:
    """How an attempt ended; an unchanged page whose earlier one was lost or pruned meanwhile is to
    be fetched again."""
    known = outcome.task.known
    if outcome.verdict != UNCHANGED or (known and ledger.has_page_of(known.task)):
        return outcome
    return msgspec.structs.replace(
        outcome,
        status=TaskStatus.PENDING,
        page=None,
        verdict=None,
        error_message="unchanged, but the page that it is the same as has gone meanwhile; it is fetched again",
    )


def _has_segment(folder: Path, name: str, end: int) -> bool:
    """Whether a segment is on the disk, up to that byte."""
    try:
        about = os.stat(f"{folder}/{name}")  # noqa: PTH116 - for every page
    except OSError:
        return False
    return stat.S_ISREG(about.st_mode) and about.st_size >= end


def _has_page(folder: Path, kept: str, segment: str | None, end: int) -> bool:
    """Whether the page of a result is there; where good pages are not kept, none need be."""
    return kept != "all" if segment is None else _has_segment(folder, segment, end)


def is_importing(run: Path, job: Job | None) -> bool:
    """Whether some process reads a job's input now, or that of any job."""
    return any(is_locked(path) for path in (run / "imports").glob(f"{job.id if job else '*'}.*"))


def unaccounted(ledger: Ledger, run: Path, job: Job) -> list[str]:
    """What is known to be missing of a job, each with the way out; cheap enough to ask for every
    job."""
    lost, found = ledger.losses(job), []
    if (lost or job.incomplete) and is_importing(run, job):
        lost, found = (
            [loss for loss in lost if loss.kind != losses.ROWS],
            ["its import has not ended yet"],
        )
    elif _is_broken_off(job, lost):
        complete = "" if job.cancelled else f"complete it: {_again(ledger, job, broken=True)}, or "
        found = [f"{_broken_off(ledger, job)}; {complete}{_accept(job)}"]
    for loss in lost:
        can_import = loss.kind == losses.ROWS and not job.of_gateway and not job.cancelled
        again = f"import its file again: {_again(ledger, job)}, or " if can_import else ""
        found.append(f"{loss.what}; {again}{_accept(job)}")
    return found


def _accept(job: Job) -> str:
    return f"accept that with: {program()} job accept {shlex.quote(job.name)}"


def _is_broken_off(job: Job, lost: Sequence[losses.Loss]) -> bool:
    """Whether a job that nobody imports into is incomplete, and not because of rows that it had and
    has lost."""
    return job.incomplete and not any(loss.kind == losses.ROWS for loss in lost)


def _broken_off(ledger: Ledger, job: Job) -> str:
    files = ledger.imports(job)
    names = [Path(each.file).name for each in files if not each.ended_at]
    whose = f" of {', '.join(names)}" if len(files) > 1 else ""
    return f"its import{whose} was broken off after {ledger.rows_of(job):,} rows"


def _again(ledger: Ledger, job: Job, broken: bool = False) -> str:
    """The commands that read the files of a job again, or those that were broken off."""
    files = [each for each in ledger.imports(job) if not (broken and each.ended_at)]
    if job.source == "bundle":
        commands = [f"results unbundle {shlex.quote(each.file)}" for each in files]
    else:
        queue = f" --queue {job.queue}" if job.queue != "default" else ""
        named = (
            f" --job {shlex.quote(job.name)}"
            if any(each.key.startswith("name:") for each in files)
            else ""
        )
        names = [each.file for each in files] or [job.source_file or "FILE"]
        column = (
            f" --url-column {shlex.quote(job.options.url_column)}" if job.options.url_column else ""
        )
        commands = [f"bulk import {shlex.quote(name)}{queue}{named}{column}" for name in names]
    return " and ".join(f"{program()} {command}" for command in commands)


def later_results(db: connection.Database, pending: Path) -> Iterator[str]:
    """The tasks whose results are whole in pending/, but not completed: the ledger is an older one,
    or lost its log."""
    known = "SELECT 1 FROM tasks WHERE task_id = ? AND status = 'completed'"
    for path in pending.glob("[!.]*.json"):
        if db.one(known, (path.stem,)) is None and is_whole(path):
            yield path.stem


def missing_files(
    db: connection.Database,
    pending: Path,
    due: Iterable[str],
    at_work: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
    is_there: Callable[[Path], bool] = Path.exists,
) -> list[str]:
    """The results among these, by their task_id, whose files in pending/ are missing.

    A living worker writes a file just after its commit, so they are looked for until no more of
    them come.
    """
    left = _lacking(db, pending, due, is_there)
    while left and at_work():
        sleep(_LOOK_AGAIN_S)
        before, left = left, _lacking(db, pending, left, is_there)
        if left == before:
            break
    return left


def _lacking(
    db: connection.Database, pending: Path, names: Iterable[str], is_there: Callable[[Path], bool]
) -> list[str]:
    gone = [name for name in names if not is_there(pending / f"{name}.json")]
    # Asked after the look: a file that was delivered or archived meanwhile has left by the ledger
    # first.
    rows = db.all(
        """SELECT task_id FROM outbox o JOIN tasks t ON t.id = o.task JOIN results r ON r.task = o.task
           WHERE task_id IN (SELECT value FROM json_each(?)) AND o.state <> 'synced' AND archived_at IS NULL
           ORDER BY t.id""",
        (msgspec.json.encode(gone).decode(),),
    )
    return [name for (name,) in rows]


def low_on_disk(folder: Path, least: int, min_files: int = MIN_FILES) -> str | None:
    """What to say where fewer bytes, or files, are free than there must be; 0 asks for none."""
    free, about = shutil.disk_usage(folder).free, os.statvfs(folder)
    if least and about.f_files and about.f_favail < min_files:
        room = f"only {about.f_favail:,} more files fit on the disk of {folder}"
        return f"{room}; nothing more is fetched until {min_files:,} do"
    if free >= least:
        return None
    return f"only {free / 1e6:,.0f} MB are free in {folder}; nothing more is fetched until {least / 1e6:,.0f} MB are"


def _storable(text: str | None) -> str | None:
    """Without the halves of characters that a server's garbage can leave in a message."""
    return text if text is None else text.encode("utf-8", "replace").decode()


def _checksum(path: Path) -> str:
    """The SHA-256 of a file; empty where it is none, or cannot be read."""
    with contextlib.suppress(OSError, ValueError):  # a name of a job need not be one of a file
        if path.is_file():
            with path.open("rb") as file:
                return file_digest(file, "sha256").hexdigest()
    return ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _remove_if_old(path: Path) -> None:
    """Remove what a killed writer of ours left; a living one's file is only milliseconds old."""
    with contextlib.suppress(OSError):  # where only reading is allowed, it stays
        if (
            UNFINISHED.fullmatch(path.name)
            and path.is_file()
            and time.time() - path.stat().st_mtime > 60
        ):
            path.unlink()


def _set_aside_unless_file(path: Path) -> None:
    """Make room for a result where a folder, a pipe, a device or a link has its name."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(path.lstat().st_mode):
            set_aside(path, "damaged")


def is_whole(path: Path) -> bool:
    """Whether a file in pending/ is a result that can be read, and that of its name."""
    return _read_result(path) is not None


def _read_result(path: Path) -> dict[str, Any] | None:
    """The result in a file of pending/; None where it cannot be read, or is not that of the file's
    name."""
    try:
        result = msgspec.json.decode(read_regular(path))
    except (OSError, msgspec.DecodeError):
        return None
    whole = (
        isinstance(result, dict)
        and result.get("task_id") == path.stem
        and isinstance(result.get("data"), dict)
    )
    return result if whole else None
