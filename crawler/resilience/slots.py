"""So many requests at a time per domain, over all processes of this machine, and none lost to a killed one.

Each domain has a few bytes of one shared file; a request holds a lock on one of them. The kernel lets go of the locks
of a process that dies, so that a slot needs no lease and no clock.
"""

import fcntl
import os
import threading
from collections import defaultdict
from pathlib import Path
from zlib import crc32

PER_DOMAIN = 8


class Slots:
    """The permits of `Ledger.claim`; one object per process, because record locks belong to processes."""

    def __init__(self, path: Path, per_domain: int = PER_DOMAIN) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._per_domain = per_domain
        self._held: defaultdict[str, set[int]] = defaultdict(set)
        self._guard = threading.Lock()

    def take(self, domain: str, wish: int) -> int:
        """How many of the wished requests may begin now; they count as begun."""
        with self._guard:
            held, taken = self._held[domain], 0
            for place in self._places(domain):
                if taken == wish:
                    break
                if place not in held and self._lock(place):
                    held.add(place)
                    taken += 1
            return taken

    def give(self, domain: str, count: int = 1) -> None:
        """So many requests have ended."""
        with self._guard:
            held = self._held[domain]
            for _ in range(count):
                fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, held.pop())
            if not held:
                del self._held[domain]

    def close(self) -> None:
        """Give everything back."""
        os.close(self._fd)

    def _places(self, domain: str) -> range:
        # Two domains may share their bytes: that errs on the polite side.
        begin = crc32(domain.encode()) % (1 << 20) * self._per_domain
        return range(begin, begin + self._per_domain)

    def _lock(self, place: int) -> bool:
        if any(place in held for held in self._held.values()):
            return False  # a second lock by the same process would succeed
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except OSError:
            return False
        return True
