"""Runs `python -m crawler …` in forks of an interpreter that has loaded the libraries already.

Most of a short command's CPU time goes into importing libraries. Each command is still a process
of its own, with its own arguments, environment, folder, pipes and exit code, and it imports every
module of this package itself: only the libraries are there before.
"""

import atexit
import gc
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

LIBRARIES = (
    "ada_url", "aiohappyeyeballs", "apsw", "asyncio", "brotli", "cchardet", "celery.app.base",
    "click.core", "click.shell_completion", "concurrent.futures.thread", "csv", "difflib",
    "dateutil.parser", "greenlet", "html", "ipaddress", "isal.igzip", "json", "kombu.pools",
    "kombu.transport.redis", "logging.handlers", "msgspec.json", "msgspec.structs", "msgspec.yaml",
    "psutil", "re2", "redis.asyncio", "redis.retry", "rich.console", "rich.progress", "rich.table",
    "secrets", "selectolax.lexbor", "ssl", "subprocess", "tarfile", "tempfile", "urllib.request",
    "uuid", "uvloop", "w3lib.encoding", "w3lib.html", "yaml", "zoneinfo",
)  # fmt: skip
START_UP = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_")
"""Variables that Python and libc read only when a process starts begin with these."""
MAX_REQUEST_BYTES = 1 << 20


class Warm:
    """The client of one such interpreter, which ends with the process that has started it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_REQUEST_BYTES)
        self._env = dict(os.environ)
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.warm", str(theirs.fileno())],
            cwd=Path(__file__).parents[2],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,  # as the forks have it: Python asks once what a stream can do
            stderr=subprocess.PIPE,
        )
        theirs.close()
        atexit.register(self.close)

    def close(self) -> None:
        """End the interpreter."""
        self._socket.close()
        self._process.communicate()

    def suits(self, env: Mapping[str, str]) -> bool:
        """Whether a fork with this environment is like a process that started with it."""
        names = {name for name in {*env, *self._env} if name.startswith(START_UP)}
        return all(env.get(name) == self._env.get(name) for name in names)

    def run(
        self, args: Sequence[str], cwd: Path, env: Mapping[str, str], limit_s: float
    ) -> subprocess.CompletedProcess[str]:
        """The same as `subprocess.run` of `python -m crawler` with its output captured."""
        ends = [os.pipe() for _ in range(3)]
        request = json.dumps([list(args), str(cwd), dict(env)]).encode()
        try:
            with self._lock:
                socket.send_fds(self._socket, [request], [write for _, write in ends])
        finally:
            for _, write in ends:
                os.close(write)
        try:
            told, out, err = _read_all([read for read, _ in ends], limit_s)
        except TimeoutError:
            raise subprocess.TimeoutExpired(list(args), limit_s) from None
        return subprocess.CompletedProcess(list(args), int(told.split()[1]), out, err)


def _read_all(pipes: list[int], limit_s: float) -> list[str]:
    """What comes through each pipe until its end; at the limit the command, whose number the first
    one tells, is killed."""
    end = time.monotonic() + limit_s
    got = {pipe: bytearray() for pipe in pipes}
    living = set(pipes)
    try:
        while living:
            left_s = max(0.0, end - time.monotonic())
            ready = select.select(living, [], [], left_s)[0]
            for pipe in ready:
                data = os.read(pipe, 1 << 16)
                got[pipe] += data
                if not data:
                    living.remove(pipe)
            if not ready:
                with suppress(ProcessLookupError, IndexError):
                    os.kill(int(got[pipes[0]].split()[0]), signal.SIGKILL)
                raise TimeoutError
    finally:
        for pipe in pipes:
            os.close(pipe)
    return [bytes(data).decode().replace("\r\n", "\n") for data in got.values()]


def _received(connection: socket.socket) -> tuple[list[str], str, dict[str, str], list[int]] | None:
    request, fds, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, 3)
    return (*json.loads(request), fds) if request else None


def _serve(connection: socket.socket) -> list[str]:
    """Fork for each request until there is no client; returns the arguments, in the fork only."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake)
    status: dict[int, int] = {}
    while True:
        ready = select.select([connection.fileno(), woken], [], [])[0]
        if woken in ready:
            os.read(woken, 512)
            _reap(status)
        if connection.fileno() not in ready:
            continue
        request = _received(connection)
        if request is None:
            sys.exit()
        args, cwd, env, fds = request
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _become(cwd, env, fds)
            return args
        status[pid] = fds[0]
        os.write(fds[0], b"%d\n" % pid)
        for fd in fds[1:]:
            os.close(fd)


def _reap(status: dict[int, int]) -> None:
    """Tell the exit codes of those that have ended."""
    while status:
        pid, ended = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        fd = status.pop(pid)
        os.write(fd, b"%d\n" % os.waitstatus_to_exitcode(ended))
        os.close(fd)


def _become(cwd: str, env: dict[str, str], fds: list[int]) -> None:
    """Make this fork what a new process would be."""
    os.dup2(fds[1], 1)
    os.dup2(fds[2], 2)
    os.closerange(3, 1024)
    os.chdir(cwd)
    sys.path[0] = cwd
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    random.seed()


def _main() -> None:
    for library in LIBRARIES:
        importlib.import_module(library)
    gc.collect()
    gc.freeze()
    sys.argv[1:] = _serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module("crawler", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
