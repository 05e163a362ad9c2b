"""Which kernel has the data folder: locks and a database's shared memory reach as far as one
kernel, and no further.

`run/kernel` names the kernel whose workers use the folder, in two lines: the boot id and the
machine id. They write it again every two seconds, and clear it when they go.
"""

import contextlib
import os
import platform
import time
from pathlib import Path
from typing import NamedTuple

from crawler import times
from crawler.errors import StoreError

ALIVE_S = 15.0
"""Workers that have not written for so long are gone: killed, or their machine was."""
LOOK_S = 3.0
"""How long to look whether somebody writes, where the date of the file does not tell; workers write
every two."""
BOOT_ID = times.BOOT_ID
MACHINE_ID = Path("/etc/machine-id")


class _Note(NamedTuple):
    boot: str
    machine: str
    written: float


def name() -> str:
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


def note(run: Path) -> int:
    """Open `run/kernel`, for the one process that writes it."""
    run.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(run / "kernel", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def write(descriptor: int, text: str) -> None:
    """Say whose the folder is; by content and not by touching, so that the file's own machine dates
    it."""
    data = text.encode()
    os.pwrite(descriptor, data, 0)
    os.ftruncate(descriptor, len(data))


def is_other(data_dir: Path) -> bool:
    """Whether workers of another kernel have this folder now."""
    run = data_dir / "run"
    noted = _read(run)
    if noted is None or noted.boot == _boot():
        return False
    age_s = _now(run) - noted.written
    if age_s >= ALIVE_S:
        return False
    same_machine = noted.machine == _machine() != ""
    if age_s > -ALIVE_S and not same_machine:
        return True
    # An earlier boot of this machine, a clone of it, or a clock that was set back: only who lives
    # writes again.
    end = time.monotonic() + LOOK_S
    while (again := _read(run)) == noted and time.monotonic() < end:
        time.sleep(0.05)
    if again != noted:
        return again is not None and again.boot != _boot()
    with contextlib.suppress(OSError):  # so that the next command need not look for so long
        os.truncate(run / "kernel", 0)
    return False


def check(data_dir: Path) -> None:
    """Refuse to go near the database while workers of another kernel have it."""
    if is_other(data_dir):
        raise StoreError(
            f"{data_dir} is in use by workers on another machine or in a virtual one (Docker "
            "Desktop), and two kernels cannot share a database; type the command there "
            "(docker compose -f docker-compose.standalone.yml exec worker python -m crawler …); "
            "only bulk import works from here"
        )


def _read(run: Path) -> _Note | None:
    """What is noted; None where it is nothing, or was torn."""
    try:
        with (run / "kernel").open("rb") as file:
            lines, written = file.read().split(b"\n"), os.fstat(file.fileno()).st_mtime
        boot, machine, rest = (line.decode() for line in lines)
    except (OSError, ValueError):
        return None
    return _Note(boot, machine, written) if boot and not rest else None


def _now(folder: Path) -> float:
    """The time by the clock that dates the files there: on a share it is another machine's."""
    from tempfile import TemporaryFile

    try:
        with TemporaryFile(dir=folder) as file:
            file.write(b".")
            file.flush()
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()
