"""Which kernel has the data folder: locks and a database's shared memory reach as far as one kernel, and no further.

`run/kernel` holds the name of the kernel whose workers use the folder. They write it again every two seconds, and clear
it when they go.
"""

import os
import platform
import time
from pathlib import Path

from crawler.errors import StoreError

ALIVE_S = 15.0
"""Workers that have not written for so long are gone: killed, or their machine was."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def name() -> str:
    """This kernel's: all containers on one machine share it, a virtual machine has its own."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return platform.node()


def note(run: Path) -> int:
    """Open `run/kernel`, to be locked by whoever writes it."""
    run.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(run / "kernel", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def write(descriptor: int, text: str) -> None:
    """Say whose the folder is; by content and not by touching, so that the file's own machine dates it."""
    data = text.encode()
    os.pwrite(descriptor, data, 0)
    os.ftruncate(descriptor, len(data))


def is_other(data_dir: Path) -> bool:
    """Whether workers of another kernel have this folder now."""
    run = data_dir / "run"
    try:
        with (run / "kernel").open() as file:
            owner, written = file.read(), os.fstat(file.fileno()).st_mtime
    except OSError:
        return False
    return owner not in ("", name()) and _now(run) - written < ALIVE_S


def check(data_dir: Path) -> None:
    """Refuse to go near the database while workers of another kernel have it."""
    if is_other(data_dir):
        raise StoreError(
            f"{data_dir} is in use by workers on another machine or in a virtual one (Docker Desktop), and two kernels "
            "cannot share a database; type the command there (docker compose -f docker-compose.standalone.yml exec "
            "worker python -m crawler …); only bulk import works from here"
        )


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
