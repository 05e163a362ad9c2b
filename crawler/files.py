"""Files: read, replace as a whole, set aside, and have on the disk."""

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

_INBOX_FOLDERS = ("urgent", "done", "failed")
_INBOX_ITEM = re.compile("[0-9a-f]{16}")
"""The folder of an import in the inbox."""


def read_regular(path: Path) -> bytes:
    """The content of a file; an `OSError` for anything else, because reading a pipe would wait for
    its writer."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "this is no regular file", str(path))
    return path.read_bytes()


@contextmanager
def replacing(target: Path, mode: int = 0o666, part: Path | None = None) -> Iterator[BinaryIO]:
    """A file that takes the place of `target` when all of it is on the disk, or not at all.

    Until then its name is `part`.
    """
    part = part or target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with os.fdopen(create(part, mode), "wb") as file:
            yield file
            commit(file, part, target)
    finally:
        with suppress(OSError):
            part.unlink()


def commit(file: BinaryIO, part: Path, target: Path) -> None:
    """Have the content of a written file on the disk, then give it its name."""
    file.flush()
    sync_and_rename(file.fileno(), part, target)


def sync_and_rename(descriptor: int, part: Path, target: Path) -> None:
    """The same for a descriptor."""
    os.fsync(descriptor)
    part.replace(target)
    sync_folder(target.parent)


def replace_file(
    path: Path,
    content: bytes,
    mode: int = 0o600,
    part: Path | None = None,
    date: float | None = None,
) -> None:
    """Write a small file that readers see as a whole. It may be lost in a power cut."""
    part = part or path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(create(part, mode), "wb") as file:
            file.write(content)
        if date is not None:
            os.utime(part, (date, date))
        part.replace(path)
    except OSError:
        with suppress(OSError):
            part.unlink()
        raise


def create(part: Path, mode: int) -> int:
    """Create a file in the place of what a killed process has left there; no link is followed."""
    with suppress(FileNotFoundError):
        part.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(part, flags, mode)


def set_aside(path: Path, ending: str) -> Path:
    """Rename what is at a path, to a name in its folder that nothing has yet."""
    kept = path.with_name(f"{path.name}.{ending}")
    while os.path.lexists(kept):
        kept = kept.with_name(f"{kept.name}.again")
    return path.rename(kept)


def strangers(inbox: Path) -> list[Path]:
    """What lies in an inbox and is never imported: links, pipes, and folders that are no
    imports."""
    found: list[Path] = []
    for folder in (inbox, inbox / "urgent"):
        if folder.is_dir():
            found += [path for path in folder.iterdir() if _is_stranger(path, folder == inbox)]
    return sorted(found)


def _is_stranger(path: Path, at_top: bool) -> bool:
    if path.name.startswith("."):
        return False
    named_as_ours = path.name in _INBOX_FOLDERS or _INBOX_ITEM.fullmatch(path.name)
    if at_top and named_as_ours and path.is_dir():
        return False
    return path.is_symlink() or not path.is_file()


SESSION_COOKIES = ".cookies"
"""The ending of the files with which processes share the cookies of a list."""


def session_path(folder: Path, job: str) -> Path:
    """The file of a job's session: the harmless part of its name, and a hash."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", job)[:40].strip("-")
    digest = blake2b(job.encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()
    return folder / f"{plain or 'job'}.{digest}.json"


def webhook_name(job: str) -> str:
    """The name under which the webhook of a session is kept among the sessions; no job has it,
    because names of jobs are of one line."""
    return f"webhook\n{job}"


def session_cookies(folder: Path) -> list[Path]:
    """The cookies of lists, half-written ones included."""
    with suppress(OSError):
        return [path for path in folder.iterdir() if SESSION_COOKIES in path.name]
    return []


def remove_session_cookies(found: Iterable[Path], besides: Iterable[Path]) -> None:
    """Remove cookies of lists, except those of these sessions."""
    kept = {path.stem for path in besides}
    for path in found:
        job = ".".join(path.name.removeprefix(".").split(".")[:2])
        if job not in kept:
            with suppress(OSError):
                path.unlink()


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk; otherwise a power cut can undo a rename."""
    with _opened(folder) as descriptor:
        try:
            os.fsync(descriptor)
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
    with _opened(folder) as descriptor:
        if libc.syncfs(descriptor):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
