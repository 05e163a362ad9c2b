"""A disk whose power can be cut: ext4 on a loop device, shut down in the middle of a write."""

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.stack import wait_for

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
        subprocess.run(
            ["mount", "-o", "loop", str(self._image), str(self.path)],
            check=True,
            capture_output=True,
        )

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
        # A mount namespace made meanwhile, as by `unshare -m` in another test, has a copy of the
        # mount: as long as it lives, the next `mount` would find the file system that was cut.
        wait_for(self._is_free, 60, f"{self._image} to be free")

    def _is_free(self) -> bool:
        argv = ["losetup", "--associated", str(self._image)]
        return not subprocess.run(argv, check=True, capture_output=True).stdout

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


def only_reading(folder: Path, by: str = "permissions") -> list[str]:
    """What to type before a command that is not to write into a folder, whose permissions are taken
    away for good.

    `by` a mount that is the command's own the folder stays as it is; where we may not mount, it is
    by permissions.
    """
    mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    mounted = ["unshare", "-m", "sh", "-c", mount, str(folder)]
    if (
        by == "mount"
        and subprocess.run([*mounted, "true"], capture_output=True, check=False).returncode == 0
    ):
        return mounted
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o500 if path.is_dir() else 0o400)
    if os.geteuid() != 0:
        return []
    return ["setpriv", "--bounding-set=-dac_override"]  # without it, permissions hold for root too
