"""The thread of a worker process that stores outcomes in groups."""

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence

from crawler.errors import StoreError, shortage_of
from crawler.lpm import LocalPersistenceManager
from crawler.models import Outcome, Task, TaskStatus

log = logging.getLogger(__name__)

MAX_GROUP, MAX_GROUP_BYTES, GROUP_DELAY_S = 100, 16_000_000, 0.03
"""A group is committed when it has this many outcomes or bytes, or is this old."""
LARGE_GROUP_BYTES = 4_000_000
"""Above this the owner's file says that a large group is being stored: if the process dies over
it, no page is blamed."""
STORE_RETRY_S = 1.0
SHORTAGE_WAIT_S = 5.0
"""How long a task waits that this process gave back because it lacked something."""


class Writer:
    """Stores outcomes in the order they come, and tries again until the store takes them.

    `stored` is called with each part that is committed, `complain` with each error of the store,
    and `mark_large` around the commit of a large group.
    """

    def __init__(
        self,
        open_store: Callable[[], LocalPersistenceManager],
        stored: Callable[[Sequence[Outcome], Sequence[bool]], None],
        complain: Callable[[str], None],
        sleep: Callable[[float], None] = time.sleep,
        mark_large: Callable[[bool], None] = lambda is_large: None,
    ) -> None:
        self._open_store, self._stored, self._complain = open_store, stored, complain
        self._sleep, self._mark_large = sleep, mark_large
        self._outcomes: queue.SimpleQueue[Outcome | None] = queue.SimpleQueue()
        self._stopping = False
        self.trouble = ""
        """Why the store takes nothing; empty where it does."""
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def put(self, outcome: Outcome) -> None:
        """Have an outcome stored."""
        self._outcomes.put(outcome)

    def stop(self, within_s: float) -> None:
        """Store what is there already, and end."""
        self._stopping = True
        self._outcomes.put(None)
        self._thread.join(within_s)

    def _run(self) -> None:
        try:
            self._write_groups()
        except BaseException:
            log.exception("the writer has failed; this process ends, so that its leases fall")
            os._exit(70)

    def _write_groups(self) -> None:
        lpm = self._open_store()
        ended = False
        while not ended and (first := self._outcomes.get()) is not None:
            if self._outcomes.qsize() < MAX_GROUP and not self._stopping:
                time.sleep(GROUP_DELAY_S)  # wake up once per group, not once per outcome
            group, ended = self._gather(first)
            self._commit(lpm, group)
            del first, group  # their pages must not stay in memory until the next one comes
        lpm.close()

    def _gather(self, first: Outcome) -> tuple[list[Outcome], bool]:
        """The next group, and whether it is the last."""
        group, size = [first], _size(first)
        while len(group) < MAX_GROUP and size < MAX_GROUP_BYTES and not self._outcomes.empty():
            outcome = self._outcomes.get()
            if outcome is None:
                return group, True
            group.append(outcome)
            size += _size(outcome)
        return group, False

    def _commit(self, lpm: LocalPersistenceManager, group: list[Outcome]) -> None:
        parts = [group]
        try:
            while parts:
                parts[:1] = self._save(lpm, parts[0])
        finally:
            self.trouble = ""

    def _save(self, lpm: LocalPersistenceManager, part: list[Outcome]) -> list[list[Outcome]]:
        """Store some outcomes in one commit; if that fails, return what to store instead."""
        try:
            live = self._store(lpm, part)
        except StoreError as error:
            return self._wait(part, error)
        except Exception as error:
            lack = shortage_of(error)
            if lack:
                lpm.close()  # it may have been interrupted anywhere: the next use opens it anew
            if len(part) > 1:  # one that cannot be stored must not hold up the others
                return [[outcome] for outcome in part]
            [outcome] = part
            if lack and outcome.shortage:
                return self._wait(part, error)
            if lack:
                return [[given_back(outcome, lack)]]
            if outcome.error_type == "internal":
                raise
            log.exception("a result cannot be stored", extra={"task_id": outcome.task.task_id})
            return [[internal_failure(outcome.task, outcome.worker, error)]]
        if self.trouble:
            self.trouble = ""
            log.warning("the store can be used again")
        self._stored(part, live)
        return []

    def _store(self, lpm: LocalPersistenceManager, part: list[Outcome]) -> list[bool]:
        if sum(map(_size, part)) <= LARGE_GROUP_BYTES:
            return lpm.save_result(*part)
        self._mark_large(True)
        try:
            return lpm.save_result(*part)
        finally:
            self._mark_large(False)

    def _wait(self, part: list[Outcome], error: Exception) -> list[list[Outcome]]:
        if self._stopping:
            # The leases fall with this process, and the pages are fetched again.
            self._stored(part, [False] * len(part))
            return []
        self.trouble = str(error)
        self._complain(self.trouble)
        self._sleep(STORE_RETRY_S)
        return [part]


def _size(outcome: Outcome) -> int:
    size = len(outcome.record)
    if outcome.page:
        size += len(outcome.page.body)
    if outcome.rendering:
        size += len(outcome.rendering.response.body)
        size += sum(len(capture.body) for capture in outcome.rendering.captures)
    return size


def given_back(
    outcome: Outcome,
    lack: str,
    wait_s: float = SHORTAGE_WAIT_S,
    clock: Callable[[], float] = time.time,
) -> Outcome:
    """The end of an attempt that this process could not finish; it does not count as one."""
    return Outcome(
        task=outcome.task,
        status=TaskStatus.PENDING,
        worker=outcome.worker,
        error_message=f"broken off, because {lack}",
        not_before=clock() + wait_s,
        charge=False,
        shortage=True,
        sent=outcome.sent,
        rule=outcome.rule,
    )


def internal_failure(task: Task, worker: str, error: Exception) -> Outcome:
    """The end of an attempt in an unforeseen error."""
    return Outcome(
        task=task,
        status=TaskStatus.FAILED,
        worker=worker,
        error_type="internal",
        error_message=repr(error)[:500],
    )
