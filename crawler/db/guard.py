"""`run/store.lock`: all who use the store share it, and a repair has it alone."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crawler.config import program
from crawler.db.connection import BUSY_LIMIT_S, busy_handler
from crawler.errors import StoreError
from crawler.locks import try_lock, unlock, wait_lock

LOCK = "store.lock"
MIGRATION_WAIT_S = 5.0
"""Another command of the older program ends within this time; a stack does not."""


def share(folder: Path, limit_s: float = BUSY_LIMIT_S) -> int | None:
    """Keep repairs away while the descriptor is open; None where no lock can be made."""
    try:
        lock = os.open(folder / "run" / LOCK, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:  # whether that matters, SQLite says next
        return None
    try:
        _wait(lock, folder, limit_s)
    except BaseException:
        os.close(lock)
        raise
    return lock


@contextmanager
def alone(lock: int, folder: Path, limit_s: float = MIGRATION_WAIT_S) -> Iterator[None]:
    """Have the store alone while its schema changes, which an older program would not know."""
    unlock(lock)  # two that wait for each other's share would wait for ever
    again, tries = busy_handler(limit_s), 0
    while not try_lock(lock):
        if not again(tries):
            raise StoreError(
                f"{folder} was made by an older version and is in use by a process of that "
                "version; it was left as it is; stop that process with the program that started "
                "it, then try again"
            )
        tries += 1
    try:
        yield
    finally:
        wait_lock(lock, shared=True)


def check(folder: Path) -> None:
    """Refuse a ledger that is being replaced or is gone: a new one would not know the results."""
    if unfinished(folder):
        raise StoreError(
            f"a repair of {folder} was broken off; finish it: {program()} doctor --repair"
        )
    path = folder / "lpm.db"
    if not (path.exists() and (path.is_dir() or path.stat().st_size)):
        check_unused(folder)


def check_unused(folder: Path) -> None:
    """Refuse to begin a new ledger where results are."""
    left = [*(folder / "raw").glob("*.warc.gz"), *(folder / "pending").glob("[!.]*.json")]
    if left:
        gone = f"{folder / 'lpm.db'} is missing or empty"
        raise StoreError(
            f"{gone}, but {len(left):,} files of results are there; "
            f"{program()} doctor --repair makes it again from them"
        )


def unfinished(folder: Path) -> list[Path]:
    """Whole ledgers that a repair has made, but not yet put in the place of the damaged one."""
    return sorted(folder.glob("lpm.db.salvaged-*[!lm]"))  # without -wal and -shm


def _wait(lock: int, folder: Path, limit_s: float) -> None:
    again, tries = busy_handler(limit_s), 0
    while not try_lock(lock, shared=True):
        if not again(tries):
            raise StoreError(
                f"the doctor is repairing this store ({folder}); try again when it is done"
            )
        tries += 1
