"""Processes: identify, start and end them, and say why one did not start."""

import contextlib
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

from crawler import times
from crawler.errors import ServiceError

MIN_DISK_BYTES = 1 << 20
"""A disk with less free space is full: none of our programs starts."""
DISK_FULL_SIGNS = ("No space left", "Disk quota exceeded", "MISCONF")
"""How programs say that the disk is full; MISCONF is Redis."""
MAX_OPEN_FILES = 65_536
"""A thousand domains or clients keep a thousand connections open; the usual soft limit is 1,024."""


class ProcessMark(msgspec.Struct, frozen=True):
    """A process, identified by pid and start time: the pid alone may be reused."""

    pid: int
    began: str

    @classmethod
    def of(cls, pid: int) -> "ProcessMark":
        """The mark of a process that runs now."""
        return cls(pid, _began(psutil.Process(pid)))

    def find(self) -> psutil.Process | None:
        """The process, if it is still the same one and alive."""
        try:
            process = psutil.Process(self.pid)
            same = _began(process) == self.began and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return None
        if not same:
            return None
        return process

    def is_stopped(self) -> bool:
        """Whether it is stopped, by SIGSTOP or a debugger."""
        process = self.find()
        if process is None:
            return False
        try:
            return process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
        except psutil.NoSuchProcess:
            return False


def _began(process: psutil.Process) -> str:
    """Return the start of a process in ticks since boot, which no clock step changes."""
    if not psutil.LINUX:
        return f"{process.create_time():.3f}"  # noted once by the kernel, so no step changes it
    try:
        stat = Path(f"/proc/{process.pid}/stat").read_bytes()
    except OSError as error:
        raise psutil.NoSuchProcess(process.pid) from error
    after_name = stat.rpartition(b")")[2]  # the name may contain anything
    ticks = after_name.split()[19].decode()
    return f"{times.boot_id()} {ticks}"


class Child:
    """A child process in its own session, so that Ctrl-C reaches it only through us."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        log: Path,
        env: Mapping[str, str] | None = None,
        tied: bool = False,
    ) -> None:
        """A child that is `tied` to this process sees its stdin end when this process ends."""
        self.name, self.argv, self.log = name, list(argv), log
        self._env = env
        self._stdin = subprocess.PIPE if tied else subprocess.DEVNULL
        self._process: subprocess.Popen[bytes] | None = None
        self._log_began = 0

    def start(self) -> ProcessMark:
        """Start it; its output goes to its log."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            self._log_began = out.tell()
            if self._process and self._process.stdin:
                self._process.stdin.close()
            self._process = subprocess.Popen(
                self.argv,
                stdin=self._stdin,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env=self._env,
            )
        return ProcessMark.of(self._process.pid)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Its number, once it was started."""
        return None if self._process is None else self._process.pid

    @property
    def succeeded(self) -> bool:
        """Whether it has ended by itself with exit code 0."""
        return self._process is not None and self._process.poll() == 0

    def wait_until(
        self,
        healthy: Callable[[], bool],
        limit_s: float,
        given_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """Wait until it is healthy; if it dies or takes too long, raise with the end of its log."""
        end = time.monotonic() + limit_s
        while not healthy():
            if given_up():
                raise ServiceError(f"{self.name} was started, but the stack is stopping")
            if not self.alive:
                raise ServiceError(f"{self.name} ended at once: {self.last_words()}")
            if time.monotonic() > end:
                waited = f"did not answer within {limit_s:g} s"
                raise ServiceError(f"{self.name} {waited}: {self.last_words()}")
            time.sleep(0.02)

    def last_words(self) -> str:
        """Return in one line why it does not run, from its log or the disk."""
        said = tail(self.log, self._log_began)
        reason = in_short(said, self.log.parent)
        if reason == said.strip():  # the log says no more than this
            return _message_of(reason) or f"{self.log} says nothing of it"
        return f"{_message_of(reason)} ({self.log} has more)"

    def ask_to_end(self) -> None:
        """Send SIGTERM, without waiting."""
        if self._process is not None and self.alive:
            self._process.terminate()

    def stop(self, grace_s: float) -> None:
        """Send SIGTERM; after the grace period kill it and all its children."""
        if self._process is None:
            return
        if self.alive:
            end_process(psutil.Process(self._process.pid), grace_s)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        if self._process.stdin:
            self._process.stdin.close()


class _LogLine(msgspec.Struct):
    message: str


def _message_of(line: str) -> str:
    """Return the message of a line of a log; any other line as it is."""
    with contextlib.suppress(msgspec.MsgspecError):
        return msgspec.json.decode(line, type=_LogLine).message
    return line


def end_process(process: psutil.Process | None, grace_s: float) -> None:
    """Send SIGTERM, and after the grace period SIGKILL, children included."""
    if process is None:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [process, *process.children(recursive=True)]
        if grace_s > 0:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)  # a stopped process would not hear of it
            psutil.wait_procs([process], timeout=grace_s)
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(family, timeout=5)


def tail(path: Path, began: int = 0, size: int = 2000) -> str:
    """Return the end of a log, without what is before an offset."""
    try:
        return path.read_bytes()[began:][-size:].decode(errors="replace")
    except OSError:
        return ""


def in_short(error: BaseException | str, folder: Path) -> str:
    """Return the last line of an error, or that the disk is full.

    A full disk has many names, and often leaves no text.
    """
    text = str(error).strip()
    if full := disk_full(folder):
        return full
    if any(sign in text for sign in DISK_FULL_SIGNS):
        return "no room was left on the disk"
    if not text:
        return ""
    return text.splitlines()[-1].strip()


def disk_full(folder: Path, least: int = MIN_DISK_BYTES) -> str:
    """Return a message if a disk has no free bytes or inodes, else nothing."""
    about = os.statvfs(folder)
    has_inodes = about.f_favail or not about.f_files
    if about.f_bavail * about.f_frsize >= least and has_inodes:
        return ""
    return f"the disk of {folder} is full; free some room"


def raise_file_limit() -> None:
    """Let this process open as many files as it may, or as many as are ever needed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = MAX_OPEN_FILES
    if hard != resource.RLIM_INFINITY:
        soft = min(hard, MAX_OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
