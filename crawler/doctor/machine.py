"""Checks outside the store: versions, data folder, sites' files, processes and Redis."""

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
from crawler.config import argument, program
from crawler.db import owners
from crawler.doctor import (
    Context,
    Observation,
    down_command,
    listed,
    repair_command,
    resume_command,
)
from crawler.errors import InputError, ServiceError
from crawler.files import strangers
from crawler.logs import printable
from crawler.models import MESSAGE_QUEUES
from crawler.process import ProcessMark, disk_full
from crawler.redis_client import check_redis, connect
from crawler.stack import SILENT_FACTOR, Stack, read_stack, redis_address
from crawler.urls import without_credentials

_NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "9p", "fuse.sshfs", "afs", "ceph", "glusterfs")
_MIN_SQLITE = 3_051_003
_MIN_FREE_BYTES = 1_000_000_000
_MIN_FREE_INODES = 10_000
_MIN_OPEN_FILES = 1024
_MAX_SHOWN = 8
_MAX_STRANGE_KEYS_SHOWN = 5
_MAX_KEYS_SCANNED = 10_000
_OWN_KEYS = ("_kombu.binding", "unacked", "scrape:", "celery-task-meta-", "_flower")
"""Prefixes of the Redis keys that Celery, Flower and this program use."""


def check_versions(context: Context) -> Iterator[Observation]:
    """Check the versions of Python, SQLite and the main packages."""
    python, sqlite = platform.python_version(), apsw.sqlite_lib_version()
    if apsw.SQLITE_VERSION_NUMBER < _MIN_SQLITE:
        yield Observation(
            "wrong",
            f"SQLite {sqlite} can damage a database that several processes write to",
            "python -m pip install --upgrade apsw",
        )
    packages = [f"{name} {metadata.version(name)}" for name in ("celery", "redis", "apsw")]
    what = f"crawler {__version__}, Python {python}, SQLite {sqlite}, {', '.join(packages)}"
    yield Observation("ok", what)


def check_folder(context: Context) -> Iterator[Observation]:
    """Check the data folder's file system, permissions and free space."""
    path = context.folder
    if not path.is_dir():
        yield Observation("wrong", f"{path} is not a folder", "name another one: --data-dir DIR")
        return
    file_system = _file_system(str(path.resolve()))
    if file_system.startswith(_NETWORK_FILE_SYSTEMS):
        yield Observation(
            "wrong",
            f"{path} is on {file_system}: locks and SQLite do not work across a network",
            "move it to a local disk",
        )
    yield from _check_permissions(context)
    for name in ("pending", "raw"):
        if context.path.is_file() and not (path / name).is_dir():
            what = f"{path / name} is missing; it is created when the store is next opened"
            yield Observation("note", what)
    yield from _check_limits(context, file_system)


def _check_permissions(context: Context) -> Iterator[Observation]:
    path = context.folder
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid():
        what = f"{path} belongs to user {status.st_uid}, and this is user {os.geteuid()}"
        yield Observation("note", what)
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        yield Observation("wrong", f"{path} cannot be written", f"chmod u+rwx {path}")
    elif mode & 0o077 and context.repair:
        path.chmod(0o700)
        what = f"{path} could be read by others (mode {mode:04o}), and is 0700 again"
        yield Observation("mended", what)
    elif mode & 0o077:
        what = f"{path} can be read by others (mode {mode:04o})"
        yield Observation("note", what, f"chmod 700 {path}")


def _check_limits(context: Context, file_system: str) -> Iterator[Observation]:
    folder, prune = context.folder, f"{program()} prune --raw --older-than 30d"
    free = shutil.disk_usage(folder).free
    inodes = os.statvfs(folder)
    if free < _MIN_FREE_BYTES:
        yield Observation("note", f"only {free / 1e6:.0f} MB are free in {folder}", prune)
    if inodes.f_files and inodes.f_favail < _MIN_FREE_INODES:
        yield Observation("note", f"only {inodes.f_favail} more files fit into {folder}", prune)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and limit < _MIN_OPEN_FILES:
        what = f"a process may have only {limit} files open"
        yield Observation("note", what, f"ulimit -n {_MIN_OPEN_FILES * 4}")
    where = file_system or "an unknown file system"
    yield Observation("ok", f"{folder} is on {where}, {free / 1e9:.1f} GB free")


def _file_system(path: str) -> str:
    """Return the type of the file system that holds a path: that of its longest mount point."""
    mounts = [
        mount
        for mount in psutil.disk_partitions(all=True)
        if f"{path}/".startswith(f"{mount.mountpoint.rstrip('/')}/")
    ]
    if not mounts:
        return ""
    return max(mounts, key=lambda mount: len(mount.mountpoint)).fstype


def check_sites(context: Context) -> Iterator[Observation]:
    """Check the files in `config/`: workers do not start with a broken one."""
    from crawler import sites as files
    from crawler.sites.schedulefile import SCHEDULES

    folder, rate = context.settings.config_dir, context.settings.rate
    found = files.faults(folder, rate)
    for fault in found:
        what = "no worker"
        if fault.path == str(folder / SCHEDULES):
            what = "no beat"
        yield Observation("wrong", str(fault), f"correct that line: {what} starts before")
    secrets = files.check_secrets(folder, rate)
    for fault in secrets.faults:
        fix = "mend the file, or the key `secrets`: no crawl of the site by its name begins before"
        yield Observation("wrong", str(fault), fix)
    for file in secrets.exposed:
        what = f"others than its owner may use the secrets in {file}"
        yield Observation("note", what, f"chmod 600 {argument(str(file))}")
    if found or secrets.faults:
        return
    if names := files.load(folder, rate).names:
        yield Observation("ok", f"{len(names)} files in {folder / 'sites'} are good")
    else:
        yield Observation("ok", "no site has a file of its own")


def check_browser(context: Context) -> Iterator[Observation]:
    """Check that pages can be rendered, where a setting or a site asks for it."""
    from crawler import sites as files
    from crawler.fetch.browser_process import lacking

    settings = context.settings
    try:
        fetchers = files.load(settings.config_dir, settings.rate).fetchers
    except InputError:
        return  # `check_sites` tells it
    if fetchers <= {"http"} and settings.browser_path is None:
        return
    if lack := lacking(settings.browser_path):
        yield Observation("wrong", lack, "pages that need a browser wait until then")
    else:
        yield Observation("ok", "there is a Chromium for pages that need a browser")


def check_inbox(context: Context) -> Iterator[Observation]:
    """Report what is in the inbox but cannot be imported."""
    if found := strangers(context.folder / "inbox"):
        names = listed([printable(path.name) for path in found[:_MAX_SHOWN]], len(found))
        what = f"{len(found)} in the inbox are not regular files and are not imported: {names}"
        yield Observation("note", what, "put copies of the files there")


def check_processes(context: Context) -> Iterator[Observation]:
    """Compare the stack's record with the processes that really run."""
    record = context.folder / "run" / "stack.json"
    stack = read_stack(context.folder)
    processes = _processes(stack)
    running = {name: mark.pid for name, mark in processes.items() if mark.find()}
    workers = _workers(context)
    shown = ", ".join(f"{name} {pid}" for name, pid in running.items())
    if stack.up:
        ended = [name for name in processes if name not in running]
        if ended:
            yield Observation(
                "note",
                f"{' and '.join(ended)} of the stack ended; the supervisor restarts them",
                f"{program()} status",
            )
        yield Observation("ok", f"the stack is up ({shown}), {workers}")
    elif stack.unreadable and not context.repair:  # a repair holds the supervisor's lock itself
        what = f"a stack is up, but another version of this program wrote {record}"
        fix = f"stop it with the version that started it: {down_command()}"
        yield Observation("wrong", what, fix)
    elif running:
        what = f"the stack's supervisor is dead, but these of its processes live: {shown}"
        yield Observation("wrong", what, down_command())
    elif not record.exists():
        yield Observation("ok", f"no stack is up, {workers}")
    elif context.repair:
        record.unlink()
        what = f"{record} was left by a stack that has ended{_reused_pids(processes)}"
        yield Observation("mended", f"{what}; it was removed")
    else:
        what = f"{record} was left by a stack that has ended{_reused_pids(processes)}"
        yield Observation("wrong", what, repair_command(context))
    for name, mark in processes.items():
        if mark.is_stopped():
            what = f"{name} {mark.pid} of the stack is stopped: it does nothing"
            yield Observation("wrong", what, resume_command(mark.pid))
    yield from _check_ports(stack)


def _processes(stack: Stack) -> dict[str, ProcessMark]:
    names = ("supervisor", "redis", "worker", "browsers", "agent", "beat", "flower")
    marks = {name: getattr(stack, name) for name in names}
    return {name: mark for name, mark in marks.items() if mark}


def _reused_pids(processes: dict[str, ProcessMark]) -> str:
    """Name the pids in the record that belong to other processes by now."""
    pids = {mark.pid for mark in processes.values() if psutil.pid_exists(mark.pid)}
    if not pids:
        return ""
    return f"; {', '.join(map(str, sorted(pids)))} is another program's process by now"


def _workers(context: Context) -> str:
    workers = owners.workers(context.folder / "run" / "owners")
    shown = [f"{pid} with {len(children)} children" for pid, children in workers.items()]
    return f"workers: {', '.join(shown) or 'none'}"


def _check_ports(stack: Stack) -> Iterator[Observation]:
    for port, name, own in ((6379, "Redis", stack.redis_url), (5555, "Flower", stack.flower_url)):
        if str(port) not in str(own) and _is_taken(port):
            what = f"port {port} is in use by another program; the stack's {name} takes another one"
            yield Observation("note", what)


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def check_redis_server(context: Context) -> Iterator[Observation]:
    """Check that Redis answers and is configured as needed, and what it holds."""
    address = redis_address(context.settings)
    shown = without_credentials(address)
    client = connect(address)
    try:
        client.ping()
    except redis.RedisError as error:
        yield _unreachable(context, shown, error)
        return
    try:
        yield from _check_server(context, client, shown)
    except redis.RedisError as error:
        yield Observation("wrong", f"Redis at {shown} does not answer as it should ({error})")
    finally:
        client.close()


def _unreachable(context: Context, shown: str, error: redis.RedisError) -> Observation:
    if context.settings.redis_url:
        what = f"Redis does not answer at {shown} ({error})"
        return Observation("wrong", what, "start it, or unset REDIS_URL")
    if read_stack(context.folder).up:
        what = f"the stack's Redis does not answer at {shown} ({error})"
        return Observation("wrong", what, _redis_remedy(context))
    return Observation("ok", f"no Redis is used at {shown}; `up` and `run` start one")


def _redis_remedy(context: Context) -> str:
    """Return what helps if the stack's Redis does not answer."""
    supervisor = read_stack(context.folder).supervisor
    if full := disk_full(context.folder):
        return full
    if supervisor and supervisor.is_stopped():
        return f"the supervisor is stopped: {resume_command(supervisor.pid)}"
    silent_s = SILENT_FACTOR * context.settings.stall_s
    return (
        f"wait: the supervisor restarts it after {silent_s:g} s of silence; "
        f"or {down_command()}, then {program()} up"
    )


def _check_server(context: Context, client: redis.Redis, shown: str) -> Iterator[Observation]:
    info: Any = client.info()
    try:
        check_redis(client)
    except ServiceError as error:
        fix = "redis-cli CONFIG SET maxmemory-policy noeviction"
        yield Observation("wrong", str(error), fix)
    if not info.get("aof_enabled"):
        what = "Redis keeps nothing on disk; after a restart the ledger fills it again"
        yield Observation("note", what, "redis-cli CONFIG SET appendonly yes")
    used, limit = info["used_memory"], info.get("maxmemory") or 0
    if limit and used > 0.8 * limit:
        what = f"Redis uses {used / 1e6:.0f} of {limit / 1e6:.0f} MB"
        yield Observation("note", what, "redis-cli CONFIG SET maxmemory 0")
    messages = {name: client.llen(name) for name in MESSAGE_QUEUES}
    total, window = sum(messages.values()), context.settings.window
    if total > window:
        what = f"the queues hold {total} messages, more than the window of {window}"
        yield Observation("note", what)
    if strange := _strange_keys(client):
        names = ", ".join(strange[:_MAX_STRANGE_KEYS_SHOWN])
        yield Observation("note", f"{len(strange)} keys are not ours and never expire: {names}")
    if context.ledger_is_sound:
        yield from _check_messages(context, client)
    server = info.get("valkey_version") or info.get("redis_version")
    counts = ", ".join(f"{count} in {name}" for name, count in messages.items())
    what = f"Redis {server} at {shown}, {used / 1e6:.1f} MB, messages: {counts}"
    yield Observation("ok", what)


def _strange_keys(client: redis.Redis) -> list[str]:
    """Return keys without an expiry that neither Celery nor this program writes; of a large Redis
    only some are read."""
    found = []
    for number, key in enumerate(client.scan_iter(count=1000)):
        name = key.decode(errors="replace")
        own = name in MESSAGE_QUEUES or name.startswith(_OWN_KEYS) or name.endswith(".pidbox")
        if not own and client.ttl(key) == -1:
            found.append(name)
        if number > _MAX_KEYS_SCANNED:
            break
    return found


def _check_messages(context: Context, client: redis.Redis) -> Iterator[Observation]:
    """Report published messages that are lost: the next worker publishes their tasks again."""
    published = context.db.column(
        """SELECT DISTINCT message_id FROM tasks
           WHERE status = 'pending' AND message_id IS NOT NULL
             AND published_at < unixepoch() - 30"""
    )
    if not published:
        return
    queued = {_message_id(body) for name in MESSAGE_QUEUES for body in client.lrange(name, 0, -1)}
    in_hand = {note.message_id for note in owners.living(context.folder / "run" / "owners")}
    missing = len(set(published) - in_hand - queued)
    if missing:
        what = f"{missing} messages are in no queue; the next worker publishes their tasks again"
        yield Observation("note", what)


def _message_id(body: bytes | str) -> str:
    try:
        return str(msgspec.json.decode(body)["headers"]["id"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return ""
