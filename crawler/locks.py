"""File locks (flock). A lock ends with its descriptor or its process, however the process ends."""

import fcntl
import os
from pathlib import Path


def open_lock(path: Path) -> int:
    """Open the file of a lock, and create it if need be; nobody else may read it."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def try_lock(descriptor: int, shared: bool = False) -> bool:
    """Take the lock if that needs no waiting."""
    mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_lock(descriptor: int, shared: bool = False) -> None:
    """Take the lock, and wait for it however long that takes."""
    fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


def unlock(descriptor: int) -> None:
    """Give up the lock, and keep the file open."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def is_locked(path: Path) -> bool:
    """Whether a living process has the lock of this file."""
    try:
        with path.open("rb") as file:
            return not try_lock(file.fileno())
    except FileNotFoundError:
        return False
