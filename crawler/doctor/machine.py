"""What the data folder stands on: programs, file system, permissions, room."""

import os
import platform
import resource
import shutil
import stat
from collections.abc import Iterator
from importlib import metadata

import apsw
import psutil

from crawler import __version__
from crawler.config import program
from crawler.doctor import Context, Seen
from crawler.files import strangers
from crawler.logs import printable

_NETWORK = ("nfs", "cifs", "smb", "9p", "fuse.sshfs", "afs", "ceph", "glusterfs")
_ROOM = 1_000_000_000
_FILES = 1024
_SHOWN = 8


def versions(context: Context) -> Iterator[Seen]:
    """The programs that must be of a certain age."""
    python = platform.python_version()
    if apsw.SQLITE_VERSION_NUMBER < 3_051_003:
        yield Seen(
            "wrong",
            f"SQLite {apsw.sqlite_lib_version()} can damage a database that several processes write to",
            "python -m pip install --upgrade apsw",
        )
    parts = [f"{name} {metadata.version(name)}" for name in ("celery", "redis", "apsw")]
    yield Seen(
        "ok",
        f"crawler {__version__}, Python {python}, SQLite {apsw.sqlite_lib_version()}, {', '.join(parts)}",
    )


def folder(context: Context) -> Iterator[Seen]:
    """File system, permissions, room."""
    path = context.folder
    if not path.is_dir():
        yield Seen("wrong", f"{path} is not a folder", "name another one: --data-dir DIR")
        return
    kind = _file_system(str(path.resolve()))
    if kind.startswith(_NETWORK):
        yield Seen(
            "wrong",
            f"{path} is on {kind}: locks and SQLite do not work across a network",
            "move it to a local disk",
        )
    about = path.stat()
    mode = stat.S_IMODE(about.st_mode)
    if about.st_uid != os.geteuid():
        yield Seen(
            "note", f"{path} belongs to user {about.st_uid}, and this is user {os.geteuid()}"
        )
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        yield Seen("wrong", f"{path} cannot be written", f"chmod u+rwx {path}")
    elif mode & 0o077:
        if context.repair:
            path.chmod(0o700)
            yield Seen(
                "mended", f"{path} could be read by others (mode {mode:04o}), and is 0700 again"
            )
        else:
            yield Seen(
                "note", f"{path} can be read by others (mode {mode:04o})", f"chmod 700 {path}"
            )
    for name in ("pending", "raw"):
        if context.path.is_file() and not (path / name).is_dir():
            yield Seen(
                "note", f"{path / name} is missing; it is made again when the store is opened"
            )
    yield from _room(context, kind)


def _room(context: Context, kind: str) -> Iterator[Seen]:
    free = shutil.disk_usage(context.folder).free
    inodes = os.statvfs(context.folder)
    if free < _ROOM:
        yield Seen(
            "note",
            f"only {free / 1e6:.0f} MB are free in {context.folder}",
            f"{program()} prune --raw --older-than 30d",
        )
    if inodes.f_files and inodes.f_favail < 10_000:
        yield Seen(
            "note",
            f"only {inodes.f_favail} more files fit into {context.folder}",
            f"{program()} prune --raw --older-than 30d",
        )
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and limit < _FILES:
        yield Seen("note", f"a process may have only {limit} files open", f"ulimit -n {_FILES * 4}")
    yield Seen(
        "ok", f"{context.folder} is on {kind or 'an unknown file system'}, {free / 1e9:.1f} GB free"
    )


def sites(context: Context) -> Iterator[Seen]:
    """The files of `config/`: a broken one keeps workers from starting."""
    from crawler import sites as files

    folder, rate = context.settings.config_dir, context.settings.rate
    if found := files.faults(folder, rate):
        for fault in found:
            yield Seen("wrong", str(fault), "mend that line: no worker starts before")
        return
    names = files.load(folder, rate).names
    what = (
        f"{len(names)} files in {folder / 'sites'} are good"
        if names
        else "no site has a file of its own"
    )
    yield Seen("ok", what)


def _file_system(path: str) -> str:
    """The kind of the file system that the path is on: that of the longest mount point above it."""
    mounts = [
        m
        for m in psutil.disk_partitions(all=True)
        if f"{path}/".startswith(f"{m.mountpoint.rstrip('/')}/")
    ]
    return max(mounts, key=lambda m: len(m.mountpoint)).fstype if mounts else ""


def inbox(context: Context) -> Iterator[Seen]:
    """What lies in the inbox can be imported."""
    if found := strangers(context.folder / "inbox"):
        names = ", ".join(printable(path.name) for path in found[:_SHOWN])
        what = f"{len(found)} in the inbox are no regular files and are not imported: {names}"
        yield Seen("note", what, "put copies of the files there")
