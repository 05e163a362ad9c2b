"""The record of a running stack (`run/stack.json`), by which every command finds it."""

import contextlib
from pathlib import Path

import msgspec

from crawler import locks
from crawler.config import Settings
from crawler.files import replace_file
from crawler.process import ProcessMark

DEFAULT_REDIS_URL = "redis://127.0.0.1:6379/0"
SILENT_FACTOR = 3.0
"""A Redis of the stack that is silent for this many times CRAWLER_STALL_S is restarted."""


class Autoscale(msgspec.Struct, frozen=True):
    """How many worker processes there are to be, within which bounds, and why."""

    min: int
    max: int
    processes: int
    why: str
    changed_at: float


class Stack(msgspec.Struct, frozen=True):
    """The processes and addresses of a stack."""

    supervisor: ProcessMark | None = None
    redis: ProcessMark | None = None
    redis_url: str | None = None
    worker: ProcessMark | None = None
    browsers: ProcessMark | None = None
    """The worker whose processes render pages."""
    agent: ProcessMark | None = None
    """The process that works with a Gateway."""
    beat: ProcessMark | None = None
    """The process that runs the schedules."""
    api: ProcessMark | None = None
    """The process that serves the API."""
    api_url: str | None = None
    flower: ProcessMark | None = None
    flower_url: str | None = None
    ready: bool = False
    folder: str | None = None
    """Device and inode of the data folder: a copy of the folder has no stack."""
    autoscale: Autoscale | None = None
    """Set if the number of worker processes follows the load."""
    container: bool = False
    """It runs in containers: pids mean nothing here, but workers hold the supervisor's lock."""
    trouble: str = ""
    """Why the last restart failed; it is tried again."""
    unreadable: bool = False
    """It is up, but another version of this program wrote the record."""

    @property
    def up(self) -> bool:
        """Whether it is alive. `read_stack` returns the record of containers only while it is."""
        return self.container or (
            self.supervisor is not None and self.supervisor.find() is not None
        )

    @property
    def services(self) -> tuple[ProcessMark, ...]:
        """The processes that the supervisor has started, in the order to end them."""
        helpers = (self.agent, self.beat, self.api, self.flower)
        started = (*helpers, self.browsers, self.worker, self.redis)
        return tuple(mark for mark in started if mark)


def read_stack(data_dir: Path) -> Stack:
    """Return the record of the last stack; an empty one if there is none."""
    try:
        stack = msgspec.json.decode(record_path(data_dir).read_bytes(), type=Stack)
    except OSError:
        return Stack()
    except msgspec.DecodeError:
        return Stack(unreadable=is_locked(data_dir))
    if stack.folder not in (None, _identity(data_dir)):
        return Stack()
    if stack.container and not is_locked(data_dir):
        # Its workers are gone, or on another kernel; its Redis may answer.
        return Stack(redis_url=stack.redis_url)
    return stack


def write_stack(data_dir: Path, stack: Stack) -> None:
    """Write the record. Only its user may read it, because it holds the password of Redis."""
    stack = msgspec.structs.replace(stack, folder=_identity(data_dir))
    replace_file(record_path(data_dir), msgspec.json.encode(stack))


def record_path(data_dir: Path) -> Path:
    """The file of the record."""
    return data_dir / "run" / "stack.json"


def lock_path(data_dir: Path) -> Path:
    """The file that a supervisor keeps locked."""
    return data_dir / "run" / "supervisor.lock"


def is_locked(data_dir: Path) -> bool:
    """Whether a supervisor is alive, whatever the record says."""
    with contextlib.suppress(OSError):
        return locks.is_locked(lock_path(data_dir))
    return False


def beat_lock_path(data_dir: Path) -> Path:
    """The file that a beat keeps locked, whoever has started it."""
    return data_dir / "run" / "beat.lock"


def is_beat_running(data_dir: Path) -> bool:
    """Whether a beat is alive on this machine."""
    with contextlib.suppress(OSError):
        return locks.is_locked(beat_lock_path(data_dir))
    return False


def redis_address(settings: Settings) -> str:
    """Return the URL of Redis: from REDIS_URL, the stack's record, or the default."""
    return settings.redis_url or read_stack(settings.data_dir).redis_url or DEFAULT_REDIS_URL


def _identity(folder: Path) -> str:
    about = folder.stat()
    return f"{about.st_dev}:{about.st_ino}"
