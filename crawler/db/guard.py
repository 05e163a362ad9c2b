"""Guards of a data folder.

`run/store.lock`: all who use the store share it, and a repair has it alone.

`run/kernel` names the kernel whose workers use the folder, in two lines: the boot id and the
machine id. Locks and a database's shared memory reach no further than one kernel. Workers write the
file again every two seconds, and clear it when they go.

And no command may write over the store itself, or over the input of jobs.
"""

import contextlib
import os
import platform
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from crawler import times
from crawler.config import program
from crawler.db.connection import BUSY_LIMIT_S, busy_handler, open_to_read
from crawler.errors import StoreError, UsageError
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
        _wait_for_share(lock, folder, limit_s)
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


def check_ledger(folder: Path) -> None:
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


def _wait_for_share(lock: int, folder: Path, limit_s: float) -> None:
    again, tries = busy_handler(limit_s), 0
    while not try_lock(lock, shared=True):
        if not again(tries):
            raise StoreError(
                f"the doctor is repairing this store ({folder}); try again when it is done"
            )
        tries += 1


# The kernel

KERNEL_ALIVE_S = 15.0
"""Workers that have not written for so long are gone: killed, or their machine was."""
KERNEL_LOOK_S = 3.0
"""How long to look whether somebody writes, where the date of the file does not tell; workers write
every two."""
BOOT_ID = times.BOOT_ID
MACHINE_ID = Path("/etc/machine-id")


class _KernelNote(NamedTuple):
    boot: str
    machine: str
    written: float


def kernel_name() -> str:
    """This kernel's boot, which all containers on one kernel share, and its machine, as far as that
    is known."""
    return f"{_boot()}\n{_machine()}\n"


def _boot() -> str:
    return times.boot_id(BOOT_ID) or platform.node()


def _machine() -> str:
    try:
        return MACHINE_ID.read_text().strip()
    except OSError:
        return ""


def open_kernel_note(run: Path) -> int:
    """Open `run/kernel`, for the one process that writes it."""
    run.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(run / "kernel", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def write_kernel_note(descriptor: int, text: str) -> None:
    """Say whose the folder is; by content and not by touching, so that the file's own machine dates
    it."""
    data = text.encode()
    os.pwrite(descriptor, data, 0)
    os.ftruncate(descriptor, len(data))


def is_on_other_kernel(data_dir: Path) -> bool:
    """Whether workers of another kernel have this folder now."""
    run = data_dir / "run"
    noted = _read_kernel_note(run)
    if noted is None or noted.boot == _boot():
        return False
    age_s = _file_clock(run) - noted.written
    if age_s >= KERNEL_ALIVE_S:
        return False
    same_machine = noted.machine == _machine() != ""
    if age_s > -KERNEL_ALIVE_S and not same_machine:
        return True
    # An earlier boot of this machine, a clone of it, or a clock that was set back: only who lives
    # writes again.
    end = time.monotonic() + KERNEL_LOOK_S
    while (again := _read_kernel_note(run)) == noted and time.monotonic() < end:
        time.sleep(0.05)
    if again != noted:
        return again is not None and again.boot != _boot()
    with contextlib.suppress(OSError):  # so that the next command need not look for so long
        os.truncate(run / "kernel", 0)
    return False


def check_kernel(data_dir: Path) -> None:
    """Refuse to go near the database while workers of another kernel have it."""
    if is_on_other_kernel(data_dir):
        raise StoreError(
            f"{data_dir} is in use by workers on another machine or in a virtual one (Docker "
            "Desktop), and two kernels cannot share a database; type the command there "
            "(docker compose -f docker-compose.standalone.yml exec worker python -m crawler …); "
            "only bulk import works from here"
        )


def _read_kernel_note(run: Path) -> _KernelNote | None:
    """What is noted; None where it is nothing, or was torn."""
    try:
        with (run / "kernel").open("rb") as file:
            lines, written = file.read().split(b"\n"), os.fstat(file.fileno()).st_mtime
        boot, machine, rest = (line.decode() for line in lines)
    except (OSError, ValueError):
        return None
    return _KernelNote(boot, machine, written) if boot and not rest else None


def _file_clock(folder: Path) -> float:
    """The time by the clock that dates the files there: on a share it is another machine's."""
    from tempfile import TemporaryFile

    try:
        with TemporaryFile(dir=folder) as file:
            file.write(b".")
            file.flush()
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()


# Files that no command may write over

_OWN_FOLDERS = ("pending", "raw", "run", "sessions", "inbox", "input")
_DATABASES = ("lpm.db", "gateway.db")
_LOGS = ("-wal", "-shm", "-journal")
"""What SQLite keeps beside a database, and cannot do without."""


def check_output(target: Path, folder: Path) -> None:
    """Refuse to write to a file that the store in a folder needs; names that lead to one count as
    that."""
    if any((folder / name).exists() for name in (*_DATABASES, "pending")):
        if _is_of_store(Path(os.path.realpath(target)), folder):
            raise UsageError(
                f"{target} belongs to the store in {folder}; "
                "nothing was written: choose another name"
            )
        check_not_input(target, folder)


def check_not_input(target: Path, folder: Path) -> None:
    """Refuse to write to a file that was read into a job of the store in a folder."""
    if not os.path.exists(target):  # noqa: PTH110 # a name that is too long is none, too
        return
    for file, job in _inputs(folder):
        if is_same_file(target, Path(file)):
            raise UsageError(
                f"{target} is the input of the job {job}, and may be needed again; "
                "nothing was written: choose another name"
            )


def _is_of_store(real: Path, folder: Path) -> bool:
    databases = [Path(os.path.realpath(folder / name)) for name in _DATABASES]
    beside = {
        database.with_name(f"{database.name}{ending}") for database in databases for ending in _LOGS
    }
    if real in beside or (
        real.parent == Path(os.path.realpath(folder)) and real.name.startswith(_DATABASES)
    ):
        return True
    if any(Path(os.path.realpath(folder / name)) in real.parents for name in _OWN_FOLDERS):
        return True
    if not real.exists():
        return False
    # An archive is never written over, whoever writes. A hard link to a segment is that segment.
    archived = Path(os.path.realpath(folder / "archive")) == real.parent
    return archived or any(
        is_same_file(real, own) for own in (*databases, *(folder / "raw").glob("*"))
    )


def _inputs(folder: Path) -> Iterator[tuple[str, str]]:
    """Each file that was read into a job, and the job's name; read without changing anything of the
    store."""
    path = folder / "lpm.db"
    if not path.is_file() or path.stat().st_size == 0:
        return
    check_kernel(folder)
    with closing(open_to_read(path)) as db:
        tables = {name for (name,) in db.all("SELECT name FROM sqlite_schema")}
        if "jobs" in tables:
            yield from db.all("SELECT source_file, name FROM jobs WHERE source_file IS NOT NULL")
        if "imports" in tables:  # not in the ledgers of older programs
            yield from db.all(
                "SELECT file, ifnull(name, '') FROM imports LEFT JOIN jobs ON jobs.id = job_id"
            )


def is_same_file(one: Path, other: Path) -> bool:
    """Whether two names are those of one file, which is there."""
    try:
        return one.samefile(other)
    except OSError:
        return False
