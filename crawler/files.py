"""Files and folders: what may be read, what is set aside, and what was written is on the disk."""

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_INBOX = ("urgent", "done", "failed")
_ITEM = re.compile("[0-9a-f]{16}")
"""The folder of an import in the inbox."""


def read_regular(path: Path) -> bytes:
    """The content of a file; an `OSError` for anything else: reading a pipe would wait for its
    other end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "this is no regular file", str(path))
    return path.read_bytes()


def set_aside(path: Path, ending: str) -> Path:
    """Give whatever stands at a path another name in its folder, one that nothing has yet."""
    kept = path.with_name(f"{path.name}.{ending}")
    while os.path.lexists(kept):
        kept = kept.with_name(f"{kept.name}.again")
    return path.rename(kept)


def strangers(inbox: Path) -> list[Path]:
    """What lies in an inbox and is never imported: links, pipes, and folders that are no
    imports."""
    found = []
    for folder in (inbox, inbox / "urgent"):
        for path in folder.iterdir() if folder.is_dir() else ():
            ours = (
                folder == inbox
                and (path.name in _INBOX or _ITEM.fullmatch(path.name))
                and path.is_dir()
            )
            if (
                not ours
                and not path.name.startswith(".")
                and (path.is_symlink() or not path.is_file())
            ):
                found.append(path)
    return sorted(found)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk; without that, a power cut can undo a
    rename."""
    with _opened(folder) as fd:
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno != errno.EINVAL:  # some file systems cannot sync folders
                raise


def sync_file_system(folder: Path) -> None:
    """Wait until all that was written to the file system of a folder is on its disk.

    One call for any number of files: synced one by one, a disk takes some eighty a second.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "syncfs"):
        os.sync()
        return
    with _opened(folder) as fd:
        if libc.syncfs(fd):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
