"""A disk whose power can be cut: ext4 on a loop device, shut down in the middle of a write."""

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

_EXT4_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = 2


def can_mount(folder: Path) -> bool:
    """Whether this machine lets us mount a loop device."""
    if os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
        return False
    disk = Disk(folder / "probe", size_mb=8)
    try:
        disk.mount()
    except subprocess.CalledProcessError:
        return False
    disk.unmount()
    return True


class Disk:
    """An ext4 file system of its own."""

    def __init__(self, folder: Path, size_mb: int = 256) -> None:
        self.path = folder / "mount"
        self._image = folder / "image"
        self.path.mkdir(parents=True)
        with self._image.open("wb") as image:
            image.truncate(size_mb << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(self._image)], check=True, capture_output=True)

    def mount(self) -> None:
        """Power on; the journal is replayed."""
        subprocess.run(["mount", "-o", "loop", str(self._image), str(self.path)], check=True, capture_output=True)

    def cut(self) -> None:
        """Power off: what was not flushed is gone, and every further write fails."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _EXT4_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def unmount(self) -> None:
        """Take it away; whoever uses it must have ended."""
        subprocess.run(["umount", str(self.path)], check=True, capture_output=True)

    def discard(self) -> None:
        """Leave nothing mounted, whatever happened."""
        with contextlib.suppress(subprocess.CalledProcessError):
            subprocess.run(["umount", "-l", str(self.path)], check=True, capture_output=True)


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[None]:
    """A disk with no byte left, until the end of the block."""
    with (folder / "ballast").open("wb", buffering=0) as ballast:
        for size in (1 << 20, 4096):
            with contextlib.suppress(OSError):
                while True:
                    ballast.write(bytes(size))
        yield
        ballast.truncate(0)
