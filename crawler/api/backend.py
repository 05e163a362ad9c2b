"""What the routes of the API stand on: `Backend`, and the one that serves it from the ledger."""

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from crawler.batches import BatchOptions, BatchReader, Note, Submitted, nothing_more, submit
from crawler.config import Settings
from crawler.db.batches import Asked, Batch
from crawler.direct import DirectProcess
from crawler.errors import CrawlerError, ServiceError
from crawler.lpm import LocalPersistenceManager
from crawler.models import JobStatus
from crawler.page_formats import PageFormats

log = logging.getLogger(__name__)

MAX_DIRECT = 4
"""Processes of batches without a stack that run at a time. Further batches wait."""
MAX_DIRECT_PER_CLIENT = 2
"""Those of one client: no client takes all of them."""
POLL_S = 0.05
"""How often the one thread looks whether the ledger has changed."""
BROKEN_S = 60.0
"""How long a batch rests whose process ends again and again without a result."""


class SessionState(msgspec.Struct, frozen=True):
    """How far a session is."""

    session_id: str
    job: str
    status: str
    """`running`, `paused`, `done` or `cancelled`."""
    total: int
    """Rows that were asked for, also those that are no URL."""
    done: int
    books: dict[str, int]
    """Tasks by state."""
    rejected: int
    """Rows that are no URL."""
    created_at: float
    completed_at: float | None


class ResultsPage(msgspec.Struct, frozen=True):
    """Some results of a session, in the order of their commits."""

    results: list[dict[str, Any]]
    """Each with its number, `seq`."""
    cursor: int
    """What comes next is behind it."""
    is_last: bool
    """Whether there was nothing more at that moment."""
    is_complete: bool
    """Whether nothing more will come."""


class Backend(Protocol):
    """What the routes need. `client` is the name of a token; a client sees only its own sessions,
    and for one of another client, or none, the answer is None."""

    def submit(
        self,
        client: str,
        session_id: str,
        urls: Sequence[str],
        options: BatchOptions,
        distributed: bool,
    ) -> SessionState:
        """Accept URLs. They are in the ledger when this returns; the same call again is the same
        session."""

    def progress(self, client: str, session_id: str) -> SessionState | None:
        """How far a session is."""

    def results(
        self, client: str, session_id: str, cursor: int = 0, limit: int = 100
    ) -> ResultsPage | None:
        """The results behind a cursor."""

    def cancel(self, client: str, session_id: str) -> SessionState | None:
        """Cancel a session: what has not begun is skipped."""

    def sessions(self, client: str) -> list[SessionState]:
        """The sessions of a client, the oldest first."""


class LedgerBackend:
    """Serves sessions from the ledger.

    Its methods may be called from any thread: each thread has its own connections.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._converter = PageFormats()
        self._local = threading.local()
        self._changed = threading.Condition()
        self._version = 0
        self._broken_until: dict[int, float] = {}
        self._publish_wanted = threading.Event()
        self._stopping = threading.Event()
        self.on_change: Callable[[], None] = lambda: None
        """Called by the one thread when the ledger has changed."""
        self._thread = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
        self._publisher = threading.Thread(target=self._publish, name="publisher", daemon=True)

    def start(self) -> None:
        """Watch the ledger, and run the processes of batches without a stack."""
        self._thread.start()
        self._publisher.start()

    def ask_to_stop(self) -> None:
        """Begin to end the processes, without waiting."""
        self._stopping.set()

    def stop(self) -> None:
        """End the processes; the ledger keeps what they have not done."""
        self._stopping.set()
        self._publish_wanted.set()
        self._thread.join()
        self._converter.close()

    @property
    def is_watching(self) -> bool:
        """Whether the one thread looks after the ledger."""
        return self._thread.is_alive() and not self._stopping.is_set()

    @property
    def is_stopping(self) -> bool:
        """Whether nobody should wait for results any more."""
        return self._stopping.is_set()

    @property
    def lpm(self) -> LocalPersistenceManager:
        """The store, for this thread."""
        if not hasattr(self._local, "lpm"):
            self._local.lpm = LocalPersistenceManager(self._settings.data_dir)
        lpm: LocalPersistenceManager = self._local.lpm
        return lpm

    # What the routes need

    def submit(
        self,
        client: str,
        session_id: str,
        urls: Sequence[str],
        options: BatchOptions,
        distributed: bool,
    ) -> SessionState:
        """Accept URLs; see `Backend`."""
        self.accept(client, session_id, urls, options, distributed)
        state = self.progress(client, session_id)
        assert state is not None
        return state

    def accept(
        self,
        client: str,
        session_id: str,
        urls: Sequence[str],
        options: BatchOptions,
        distributed: bool,
        note: Note = nothing_more,
        finish: Note = nothing_more,
    ) -> Submitted:
        """The same; returns the call, and stores what `note` and `finish` store in its commit."""
        submitted = submit(
            self._settings, session_id, urls, options,
            direct=not distributed, client=client, note=note, finish=finish,
        )  # fmt: skip
        if distributed:
            self._publish_wanted.set()
        if not self.lpm.batches.open_tasks(submitted.job):
            self.lpm.jobs.finalise(self.lpm.now())  # no URL of it can be fetched
        return submitted

    def asked(self, call: Submitted) -> list[Asked]:
        """The URLs of a call, in their order."""
        return self.lpm.batches.asked(call.job, call.number)

    def is_open(self, asked: Sequence[Asked]) -> bool:
        """Whether one of these URLs has not ended. A session ends with its last one."""
        if self.lpm.tasks.any_open([row.task for row in asked if row.task is not None]):
            return True
        self.lpm.jobs.finalise(self.lpm.now())
        return False

    def results_of(
        self, client: str, session_id: str, asked: Sequence[Asked]
    ) -> list[dict[str, Any]]:
        """The results of these URLs, in their order; none if the session has gone."""
        batch = self.lpm.batches.find(client, session_id)
        return self.reader(batch).results(asked) if batch else []

    def reader(self, batch: Batch) -> BatchReader:
        """What reads the results of a session."""
        return BatchReader(self.lpm, batch, self._converter)

    def results_of_tasks(self, batch: Batch, tasks: Sequence[int]) -> list[dict[str, Any]]:
        """The results of tasks, shown as a batch is."""
        return self.reader(batch).of_tasks(tasks)

    def progress(self, client: str, session_id: str) -> SessionState | None:
        """How far a session is."""
        batch = self.lpm.batches.find(client, session_id)
        return self._state(batch) if batch else None

    def results(
        self, client: str, session_id: str, cursor: int = 0, limit: int = 100
    ) -> ResultsPage | None:
        """The results behind a cursor. Rows that are no URL come first, with negative numbers, if
        an earlier version has stored them."""
        lpm = self.lpm
        batch = lpm.batches.find(client, session_id)
        if batch is None:
            return None
        unplaced = [] if cursor > 0 else lpm.batches.unplaced(batch.job, cursor)
        reader = self.reader(batch)
        if unplaced:
            chosen = unplaced[:limit]
            found = reader.results([row for _, row in chosen])
            numbered = [{"seq": n} | each for (n, _), each in zip(chosen, found, strict=True)]
            return ResultsPage(numbered, chosen[-1][0], is_last=False, is_complete=False)
        ends = lpm.batches.ends(batch.job, max(cursor, 0), limit)
        found = reader.results([row for _, row in ends.rows])
        numbered = [{"seq": seq} | each for (seq, _), each in zip(ends.rows, found, strict=True)]
        # 0 is the beginning: as long as nothing has ended, all rows without a place stay read.
        behind = ends.cursor or min(cursor, 0)
        return ResultsPage(numbered, behind, ends.is_last, ends.is_complete)

    def cancel(self, client: str, session_id: str) -> SessionState | None:
        """Cancel a session."""
        lpm = self.lpm
        batch = lpm.batches.find(client, session_id)
        if batch is None:
            return None
        if batch.job.status != JobStatus.DONE:
            lpm.jobs.hold(batch.job, "cancelled", lpm.now())
            lpm.jobs.finalise(lpm.now())
        return self.progress(client, session_id)

    def sessions(self, client: str) -> list[SessionState]:
        """The sessions of a client."""
        return [self._state(batch) for batch in self.lpm.batches.of_client(client)]

    def _state(self, batch: Batch) -> SessionState:
        lpm, job = self.lpm, batch.job
        counts = lpm.counts.progress(job)
        rejected = lpm.batches.rejected_count(job)
        status = "done" if job.status == "done" else "running"
        if job.hold in ("paused", "cancelled"):
            status = job.hold
        return SessionState(
            session_id=batch.session_id,
            job=job.name,
            status=status,
            total=counts.accepted + rejected,
            done=counts.accepted - counts.open + rejected,
            books=counts.by_state,
            rejected=rejected,
            created_at=job.created_at,
            completed_at=job.completed_at,
        )

    # Changes

    def wait_for_change(self, seen: int, limit_s: float) -> int:
        """Wait until the ledger has changed since the number that was `seen`; return the new one.

        One thread looks at the ledger, however many wait.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._version != seen, limit_s)
            return self._version

    def _supervise(self) -> None:
        lpm = LocalPersistenceManager(self._settings.data_dir)
        processes: dict[int, DirectProcess] = {}
        seen: object = None
        try:
            while not self._stopping.is_set():
                try:
                    with lpm.errors():
                        version = lpm.store.data_version()
                        if version != seen:
                            seen = version
                            with self._changed:
                                self._version += 1
                                self._changed.notify_all()
                            self.on_change()
                        self._run_processes(lpm, processes)
                except CrawlerError as error:
                    log.warning("%s; this is tried again", error)
                    self._stopping.wait(1)
                self._stopping.wait(POLL_S)
        finally:
            for process in processes.values():
                process.ask_to_end()
            for process in processes.values():
                with contextlib.suppress(CrawlerError):  # the next start does what is left
                    process.stop()
            lpm.close()

    def _publish(self) -> None:
        """Publish tasks for workers. On a thread of its own: Redis may take seconds to answer."""
        from crawler.coordinator import publish

        while self._publish_wanted.wait() and not self._stopping.is_set():
            self._publish_wanted.clear()
            try:
                publish(self._settings, self.lpm)
            except CrawlerError as error:
                log.warning("%s; the workers publish the tasks themselves", error)

    def _run_processes(
        self, lpm: LocalPersistenceManager, processes: dict[int, DirectProcess]
    ) -> None:
        """Start the processes of batches, also of those that an earlier server has left."""
        waiting = lpm.batches.unfinished_direct()
        for job_id in set(processes) - waiting.keys():
            processes.pop(job_id).stop()
        if len(waiting) > MAX_DIRECT_PER_CLIENT:
            # A page that waits for another attempt keeps no other batch from its first.
            due = set(lpm.batches.with_due_tasks(list(waiting), lpm.now()))
            if not due <= processes.keys():
                for job_id in processes.keys() - due:
                    processes.pop(job_id).stop()
            kept = due.union(processes)
            waiting = {job_id: client for job_id, client in waiting.items() if job_id in kept}
        now = time.monotonic()
        running = Counter(waiting[job_id] for job_id in processes)
        for job_id, client in waiting.items():
            is_broken = self._broken_until.get(job_id, now) > now
            has_room = len(processes) < MAX_DIRECT and running[client] < MAX_DIRECT_PER_CLIENT
            if job_id not in processes and not is_broken and has_room:
                processes[job_id] = DirectProcess(self._settings, lpm, lpm.jobs.get(job_id))
                running[client] += 1
        for job_id, process in list(processes.items()):
            try:
                process.look()
            except ServiceError as error:
                log.error("%s; this is tried again in %g s", error, BROKEN_S)  # noqa: TRY400
                self._broken_until[job_id] = now + BROKEN_S
                processes.pop(job_id).stop()
                continue
            if process.is_idle:
                processes.pop(job_id).stop()  # it ends the job, if the process was killed before
