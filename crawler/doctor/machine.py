"""Checks of the machine: programs, folder, sites, processes and Redis."""

import os
import platform
import resource
import shutil
import socket
import stat
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import apsw
import msgspec
import psutil
import redis

from crawler import __version__
from crawler.config import program
from crawler.db import owners
from crawler.doctor import Context, Seen, awaken, down, repair
from crawler.errors import ServiceError
from crawler.files import strangers
from crawler.logs import printable
from crawler.models import QUEUES
from crawler.process import disk_full
from crawler.redis_client import check_redis, connect
from crawler.stack import SILENT, Stack, read_stack, redis_address
from crawler.urls import without_credentials

_NETWORK = ("nfs", "cifs", "smb", "9p", "fuse.sshfs", "afs", "ceph", "glusterfs")
_ROOM = 1_000_000_000
_FILES = 1024
_SHOWN = 8


def check_versions(context: Context) -> Iterator[Seen]:
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


def check_folder(context: Context) -> Iterator[Seen]:
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


def check_sites(context: Context) -> Iterator[Seen]:
    """The files of `config/`: a broken one keeps workers from starting."""
    from crawler.sites import config as files

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


def check_inbox(context: Context) -> Iterator[Seen]:
    """What lies in the inbox can be imported."""
    if found := strangers(context.folder / "inbox"):
        names = ", ".join(printable(path.name) for path in found[:_SHOWN])
        what = f"{len(found)} in the inbox are no regular files and are not imported: {names}"
        yield Seen("note", what, "put copies of the files there")


_OURS = ("_kombu.binding", "unacked", "scrape:", "celery-task-meta-", "_flower")
"""Beginnings of the names of keys that belong here."""
_KEYS = 10_000


def check_processes(context: Context) -> Iterator[Seen]:
    """The record of the stack, held against what really runs."""
    record = context.folder / "run" / "stack.json"
    stack = read_stack(context.folder)
    marks = {
        name: getattr(stack, name) for name in ("supervisor", "redis", "worker", "agent", "flower")
    }
    running = {name: mark.pid for name, mark in marks.items() if mark and mark.find()}
    workers = owners.workers(context.folder / "run" / "owners")
    shown = ", ".join(f"{name} {pid}" for name, pid in running.items())
    if stack.up:
        gone = [name for name, mark in marks.items() if mark and name not in running]
        if gone:
            yield Seen(
                "note",
                f"{' and '.join(gone)} of the stack ended; the supervisor starts them again",
                f"{program()} status",
            )
        yield Seen("ok", f"the stack is up ({shown}), {_workers(workers)}")
    elif stack.unreadable and not context.repair:  # who repairs holds the lock itself
        what = f"a stack is up, but another version of this program wrote {record}"
        yield Seen("wrong", what, f"stop it with the version that started it: {down()}")
    elif running:
        yield Seen(
            "wrong",
            f"the stack's supervisor is dead, but these of its processes live: {shown}",
            down(),
        )
    elif not record.exists():
        yield Seen("ok", f"no stack is up, {_workers(workers)}")
    elif not context.repair:
        yield Seen(
            "wrong", f"{record} is of a stack that is gone{_strangers(stack)}", repair(context)
        )
    else:
        record.unlink()
        yield Seen(
            "mended", f"{record} was of a stack that is gone{_strangers(stack)}; it was removed"
        )
    for name, mark in marks.items():
        if mark and mark.is_stopped():
            yield Seen(
                "wrong",
                f"{name} {mark.pid} of the stack is stopped: it does nothing",
                awaken(mark.pid),
            )
    for port, what in ((6379, "Redis"), (5555, "Flower")):
        if str(port) not in f"{stack.redis_url if port == 6379 else stack.flower_url}" and _taken(
            port
        ):
            yield Seen(
                "note",
                f"port {port} is in use by something else than this stack; its {what} takes another one",
            )


def _strangers(stack: Stack) -> str:
    """Whether pids of the record belong to others now."""
    import psutil

    marks = (stack.supervisor, stack.redis, stack.worker, stack.agent, stack.flower)
    pids = {mark.pid for mark in marks if mark and psutil.pid_exists(mark.pid)}
    return (
        f"; {', '.join(map(str, sorted(pids)))} is somebody else's process by now" if pids else ""
    )


def _workers(workers: dict[int, list[int]]) -> str:
    return "workers: " + (
        ", ".join(f"{pid} with {len(kids)} children" for pid, kids in workers.items()) or "none"
    )


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def check_redis_server(context: Context) -> Iterator[Seen]:
    """Whether Redis answers and is fit, and what is in it."""
    address = redis_address(context.settings)
    shown = without_credentials(address)
    client = connect(address)
    try:
        client.ping()
    except redis.RedisError as error:
        if context.settings.redis_url:
            yield Seen(
                "wrong",
                f"Redis does not answer at {shown} ({error})",
                "start it, or unset REDIS_URL",
            )
        elif read_stack(context.folder).up:
            what = f"the stack's Redis does not answer at {shown} ({error})"
            yield Seen("wrong", what, _remedy(context))
        else:
            yield Seen("ok", f"no Redis is used at {shown}; `up` and `run` start one")
        return
    try:
        yield from _examine(context, client, shown)
    except redis.RedisError as error:
        yield Seen("wrong", f"Redis at {shown} does not answer as it should ({error})")
    finally:
        client.close()


def _remedy(context: Context) -> str:
    """What helps a stack's Redis that does not answer."""
    supervisor = read_stack(context.folder).supervisor
    if full := disk_full(context.folder):
        return full
    if supervisor and supervisor.is_stopped():
        return f"the supervisor is stopped: {awaken(supervisor.pid)}"
    silent_s = SILENT * context.settings.stall_s
    return (
        f"wait: the supervisor starts it again after {silent_s:g} s of silence; "
        f"or {down()}, then {program()} up"
    )


def _examine(context: Context, client: redis.Redis, shown: str) -> Iterator[Seen]:
    info: Any = client.info()
    try:
        check_redis(client)
    except ServiceError as error:
        yield Seen("wrong", str(error), "redis-cli CONFIG SET maxmemory-policy noeviction")
    if not info.get("aof_enabled"):
        yield Seen(
            "note",
            "Redis keeps nothing on disk; the ledger fills it again",
            "redis-cli CONFIG SET appendonly yes",
        )
    used, most = info["used_memory"], info.get("maxmemory") or 0
    if most and used > 0.8 * most:
        yield Seen(
            "note",
            f"Redis uses {used / 1e6:.0f} of {most / 1e6:.0f} MB",
            "redis-cli CONFIG SET maxmemory 0",
        )
    messages = {name: client.llen(name) for name in QUEUES}
    if sum(messages.values()) > context.settings.window:
        yield Seen(
            "note",
            f"the queues hold {sum(messages.values())} messages, more than the window of {context.settings.window}",
        )
    strange = _strange_keys(client)
    if strange:
        yield Seen(
            "note", f"{len(strange)} keys are not ours and never expire: {', '.join(strange[:5])}"
        )
    if context.sound:
        yield from _lost_messages(context, client)
    server = info.get("valkey_version") or info.get("redis_version")
    counts = ", ".join(f"{count} in {name}" for name, count in messages.items())
    yield Seen("ok", f"Redis {server} at {shown}, {used / 1e6:.1f} MB, messages: {counts}")


def _strange_keys(client: redis.Redis) -> list[str]:
    """Names without a time to live that neither Celery nor this program makes; a large Redis is not
    read to its end."""
    found = []
    for number, key in enumerate(client.scan_iter(count=1000)):
        name = key.decode(errors="replace")
        if (
            name not in QUEUES
            and not name.startswith(_OURS)
            and not name.endswith(".pidbox")
            and client.ttl(key) == -1
        ):
            found.append(name)
        if number > _KEYS:
            break
    return found


def _lost_messages(context: Context, client: redis.Redis) -> Iterator[Seen]:
    """Published messages that are nowhere: the next worker publishes their tasks again."""
    published = {
        row[0]
        for row in context.db.all(
            """SELECT DISTINCT message_id FROM tasks WHERE status = 'pending' AND message_id IS NOT NULL
               AND published_at < unixepoch() - 30"""
        )
    }
    if published:
        bodies = [body for name in QUEUES for body in client.lrange(name, 0, -1)]
        in_hand = {note.message_id for note in owners.living(context.folder / "run" / "owners")}
        missing = len(published - in_hand - {_message_id(body) for body in bodies})
        if missing:
            yield Seen(
                "note",
                f"{missing} messages are in no queue; the next worker publishes their tasks again",
            )


def _message_id(body: bytes | str) -> str:
    try:
        return str(msgspec.json.decode(body)["headers"]["id"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return ""
