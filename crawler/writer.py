"""The thread of a worker process that stores how pages ended, in groups."""

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

GROUP_SIZE, GROUP_BYTES, GROUP_S = 100, 16_000_000, 0.03
"""A group of outcomes is committed when it has so many, or so many bytes, or is so old."""
MUCH = 4_000_000
"""Bytes that are stored with a mark: what they take of time and memory must not be blamed on a page
that is read."""
AGAIN_S = 1.0
"""How long to wait before the store is tried again."""
SHORT_S = 5.0
"""How long a task waits that was broken off because this process lacked something."""


class Writer:
    """Stores what it is given, in order, however long the store takes; `stored` hears of each
    part."""

    def __init__(
        self,
        lpm: Callable[[], LocalPersistenceManager],
        stored: Callable[[Sequence[Outcome]], None],
        complain: Callable[[str], None],
        sleep: Callable[[float], None] = time.sleep,
        mark: Callable[[bool], None] = lambda much: None,
    ) -> None:
        self._open, self._stored, self._complain, self._sleep, self._mark = (
            lpm,
            stored,
            complain,
            sleep,
            mark,
        )
        self._outcomes: queue.SimpleQueue[Outcome | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._stopping = False
        self.trouble = ""
        """Why the store takes nothing; empty where it does."""
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
        lpm = self._open()
        ended = False
        while not ended and (first := self._outcomes.get()) is not None:
            if self._outcomes.qsize() < GROUP_SIZE and not self._stopping:
                time.sleep(GROUP_S)  # woken once for a whole group
            group, size = [first], _size(first)
            while len(group) < GROUP_SIZE and size < GROUP_BYTES and not self._outcomes.empty():
                item = self._outcomes.get()
                if item is None:
                    ended = True
                    break
                group.append(item)
                size += _size(item)
            self._commit(lpm, group)
            del first, group  # their pages must not stay until the next comes
            item = None
        lpm.close()

    def _commit(self, lpm: LocalPersistenceManager, group: list[Outcome]) -> None:
        waiting = [group]
        try:
            while waiting:
                waiting[:1] = self._save(lpm, waiting[0])
        finally:
            self.trouble = ""

    def _save(self, lpm: LocalPersistenceManager, part: list[Outcome]) -> list[list[Outcome]]:
        """Store some outcomes at once; where that fails, returns what is to be stored instead."""
        try:
            self._store(lpm, part)
        except StoreError as error:
            return self._wait(part, error)
        except Exception as error:
            lack = shortage_of(error)
            if lack:
                lpm.close()  # it is opened anew: nobody knows where it was broken off
            if len(part) > 1:
                return [
                    [outcome] for outcome in part
                ]  # what cannot be stored must not hold up the others
            [outcome] = part
            if lack:
                return (
                    self._wait(part, error) if outcome.shortage else [[given_back(outcome, lack)]]
                )
            if outcome.error_type == "internal":
                raise
            log.exception("a result cannot be stored", extra={"task_id": outcome.task.task_id})
            return [[internal_failure(outcome.task, outcome.worker, error)]]
        if self.trouble:
            self.trouble = ""
            log.warning("the store can be used again")
        self._stored(part)
        return []

    def _store(self, lpm: LocalPersistenceManager, part: list[Outcome]) -> None:
        much = sum(map(_size, part)) > MUCH
        if much:
            self._mark(True)
        try:
            lpm.save_result(*part)
        finally:
            if much:
                self._mark(False)

    def _wait(self, part: list[Outcome], error: Exception) -> list[list[Outcome]]:
        if self._stopping:
            self._stored(part)  # their leases fall with this process, and they are fetched again
            return []
        self.trouble = str(error)
        self._complain(self.trouble)
        self._sleep(AGAIN_S)
        return [part]


def _size(outcome: Outcome) -> int:
    return len(outcome.record) + (len(outcome.page.body) if outcome.page else 0)


def given_back(
    outcome: Outcome, lack: str, wait_s: float = SHORT_S, clock: Callable[[], float] = time.time
) -> Outcome:
    """The end of an attempt that this process broke off because it lacked something: as if there
    had been none."""
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
    """The end of an attempt in an error that nobody has foreseen."""
    return Outcome(
        task=task,
        status=TaskStatus.FAILED,
        worker=worker,
        error_type="internal",
        error_message=repr(error)[:500],
    )
