"""One thread for all writing: what is asked of it while it commits is done together in the next
transaction."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import apsw

from crawler.db import connection
from crawler.db.connection import store_errors
from crawler.errors import CrawlerError, StoreError
from crawler.gateway.reference.books import Books

T = TypeVar("T")
TOGETHER = 200
"""How much is committed at a time, at most."""


class _Act:
    """Something to do in the books, and who waits for it."""

    def __init__(self, do: Callable[[Books], Any]) -> None:
        self._do = do
        self._value: Any = None
        self._problem: Exception | None = None
        self.future: Future[Any] = Future()

    def run(self, books: Books) -> None:
        """Do it; what it has written is undone where it fails, and nothing else is."""
        try:
            with books.db:  # a savepoint
                self._value = self._do(books)
        except (apsw.Error, StoreError):
            raise  # the database's own: then nothing of this transaction can be trusted
        except Exception as problem:  # whoever waits gets it
            self._problem = problem

    def tell(self, failure: Exception | None = None) -> None:
        """Tell whoever waits what came of it."""
        if problem := failure or self._problem:
            self.future.set_exception(problem)
        else:
            self.future.set_result(self._value)


class Committer:
    """Does everything in the books, in the order in which it is asked; what it has told is on the
    disk."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._acts: queue.SimpleQueue[_Act | None] = queue.SimpleQueue()
        self._sound = True
        self.failing = False
        """Whether the last writing has failed, and none has succeeded since."""
        self._thread = threading.Thread(target=self._work, name="committer", daemon=True)
        self._thread.start()

    def submit(self, do: Callable[[Books], T]) -> "Future[T]":
        """Have something done; the future is fulfilled when it is committed."""
        act = _Act(do)
        self._acts.put(act)
        return act.future

    def close(self) -> None:
        """Finish what was asked, and end."""
        self._acts.put(None)
        self._thread.join()

    def _work(self) -> None:
        last = False
        while not last:
            acts, last = self._gathered()
            acts = [act for act in acts if act.future.set_running_or_notify_cancel()]
            if acts:
                failure = self._commit(acts)
                for act in acts:
                    act.tell(failure)

    def _gathered(self) -> tuple[list[_Act], bool]:
        acts: list[_Act] = []
        act = self._acts.get()
        while act is not None:
            acts.append(act)
            if len(acts) == TOGETHER:
                return acts, False
            try:
                act = self._acts.get_nowait()
            except queue.Empty:
                return acts, False
        return acts, True

    def _commit(self, acts: list[_Act]) -> Exception | None:
        """Do these in one transaction; gives what has kept it from being committed."""
        try:
            with store_errors(self._books.path):
                if not self._sound:
                    self._books.reopen()
                self._sound = False
                db, before = self._books.db, self._books.db.total_changes()
                with connection.writing(db):
                    for act in acts:
                        act.run(self._books)
                self._sound = True
        except CrawlerError as error:
            self.failing = True
            return error
        except Exception as error:  # the thread must go on, and nobody may wait for ever
            self.failing = True
            return StoreError(f"{self._books.path}: {error}")
        if db.total_changes() != before:  # one that wrote nothing proves nothing
            self.failing = False
        return None
