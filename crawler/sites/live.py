"""The sites of a running process: read again when a file of `config/` changes."""

import logging
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from crawler.errors import InputError, shortage_of
from crawler.models import RateRule
from crawler.sites import DEFAULTS, START_URLS, Site, Sites, load, scrapers

log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 1.0

FileState = tuple[str, int, int, int, int]
"""The name of a file, and its time, size, inode and mode: a file that changes has others. Without a
file, why there is none."""


class LiveSites:
    """The sites as they are in the folder, or as they last were without a fault.

    `look` may be called on one thread only; all else on any.
    """

    def __init__(
        self,
        folder: Path,
        rate: str | None = None,
        fallback: Sites | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the files; if one is broken, `fallback` is used, and without it that is raised."""
        self._folder, self._rate, self._clock = folder, rate, clock
        self.problem = ""
        """Why the files cannot be read as they are now."""
        # Before they are read: they may change meanwhile.
        self._read = self._seen = state_of(folder)
        self.must_restart = False
        """Whether this process has run a class that has changed since."""
        self._looked_at = clock()
        try:
            self.now = load(folder, rate)
        except InputError as error:
            if fallback is None:
                raise
            self.now = fallback
            self._note(str(error))
            if shortage_of(error):
                self._read = ()  # the next look tries it again

    def of(self, url: str, platform: str | None = None) -> Site:
        """Return the site of a URL's host, else that of the task's platform."""
        return self.now.of(url, platform)

    def rule(self, domain: str, rate: str | None = None) -> RateRule:
        """Return the limits of a registrable domain."""
        return self.now.rule(domain, rate)

    def limit_per(self, domain: str) -> str:
        """Say whether the limits hold per `domain` or per `ip`."""
        return self.now.limit_per(domain)

    def look(self) -> None:
        """Read the files again if they have changed; looks at the folder once a second at most.

        They must be the same at two looks: an editor may still be writing.
        """
        now = self._clock()
        if now - self._looked_at < LOOK_INTERVAL_S:
            return
        self._looked_at = now
        before, self._seen = self._seen, state_of(self._folder, self.now.classes)
        if self._seen == before != self._read:
            self._load()
            self._read = self._seen

    def _load(self) -> None:
        """Read the files again; a shortage is raised, and then the next look tries it again."""
        if not self._folder.is_dir():
            self._note(f"{self._folder}: the folder is gone")
            return
        try:
            self.now = load(self._folder, self._rate)
        except Exception as error:  # whatever the files hold, this process goes on
            if shortage_of(error):
                raise
            if isinstance(error, InputError):
                self._note(str(error))
                return
            log.exception("the files in %s could not be read again", self._folder)
            self._note(f"{self._folder}: {type(error).__name__}: {error}")
            return
        self.problem = ""
        self.must_restart = self.must_restart or scrapers.were_replaced(self.now.classes)
        log.info("the files in %s have changed and were read again", self._folder)

    def _note(self, problem: str) -> None:
        self.problem = problem
        log.warning("%s; pages are still fetched with the files as they were before", problem)


def state_of(folder: Path, classes: Iterable[scrapers.Source] = ()) -> tuple[FileState, ...]:
    """Return the state of all files of a folder, and of installed classes: it is another one when
    one of them changes."""
    paths = [folder / name for name in (DEFAULTS, START_URLS)]
    for part, endings in (("sites", (".yaml", ".yml")), (scrapers.FOLDER, (".py",))):
        try:
            with os.scandir(folder / part) as entries:
                names = [entry.name for entry in entries if entry.name.endswith(endings)]
        except OSError:
            names = []
        paths += [folder / part / name for name in sorted(names)]
    paths += [Path(source.path) for source in classes if source.module]
    return tuple(map(file_state, paths))


def file_state(path: Path) -> FileState:
    """Return the state of one file."""
    try:
        status = path.stat()
    except OSError as error:
        return path.name, 0, 0, 0, -(error.errno or 0)
    return path.name, status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode
