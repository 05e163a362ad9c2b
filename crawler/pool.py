"""The prefork pool of a worker, made larger and smaller while it works."""

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from crawler.stack import read_stack

LEAVE_SIGNAL = signal.SIGUSR2
"""Asks a child to finish its pages and to end. One that is just starting dies of it, and has
nothing to lose."""


def follow_stack(consumer: Any, data_dir: Path) -> None:
    """Bring the pool to the size that the stack's record asks for, if this is its worker."""
    stack = read_stack(data_dir)
    if stack.autoscale and stack.worker and stack.worker.pid == os.getpid():
        resize(consumer, stack.autoscale.processes)


def resize(consumer: Any, processes: int) -> None:
    """Start more children, or ask some to leave.

    Celery's own `pool_shrink` ends idle children only: while there is work there are none.
    """
    pool = consumer.pool
    before = pool.num_processes
    if processes > before:
        pool.grow(processes - before)
        pool.maintain_pool()  # else Celery starts them within five seconds
    elif processes < before:
        for child in _staying(pool)[processes:]:
            _ask_to_leave(pool, child)
    if change := pool.num_processes - before:
        consumer._update_prefetch_count(change)


def _staying(pool: Any) -> list[Any]:
    """The children that were not asked to leave, those with a message first."""
    children = [each for each in pool._pool._pool if not getattr(each, "is_leaving", False)]
    return sorted(children, key=lambda each: not pool._pool._worker_active(each))


def _ask_to_leave(pool: Any, child: Any) -> None:
    """Expect one child less, give this one no more messages, and ask it to end."""
    pool._pool._processes -= 1
    pool._pool._putlock.shrink()
    pool._pool._busy_workers.add(child.inqW_fd)
    child.is_leaving = child._controlled_termination = True  # its end is no error
    with contextlib.suppress(ProcessLookupError):  # it has just died: then it is not replaced
        os.kill(child.pid, LEAVE_SIGNAL)
