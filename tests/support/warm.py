"""Runs `python -m crawler …` in forks of an interpreter that has loaded the libraries already, and
starts Celery workers so.

Most of a short command's CPU time goes into importing libraries. Each command is still a process
of its own, with its own arguments, environment, folder, pipes and exit code, and it imports every
module of this package itself: only the libraries are there before. What others find by its command
line or by its environment cannot be a fork, which shows those of the interpreter.
"""

import atexit
import gc
import importlib
import json
import math
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
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

LIBRARIES = (
    "ada_url", "aiohappyeyeballs", "apsw", "asyncio", "billiard.heap", "billiard.popen_fork",
    "billiard.sharedctypes", "brotli", "cchardet", "celery.app.base", "celery.app.routes",
    "celery.backends.asynchronous", "celery.bin.celery", "celery.concurrency.asynpool",
    "celery.loaders.base", "celery.worker.components", "celery.worker.consumer", "click.core",
    "click.shell_completion", "concurrent.futures.thread", "csv", "ctypes", "dateutil.parser",
    "difflib", "encodings.idna", "encodings.punycode", "greenlet", "html", "ipaddress",
    "isal.igzip", "json", "kombu.pidbox", "kombu.pools", "kombu.transport.redis",
    "logging.handlers", "msgspec.json", "msgspec.structs", "msgspec.yaml", "psutil",
    "publicsuffixlist", "re2", "redis.asyncio", "redis.retry", "rich.console", "rich.progress",
    "rich.table", "secrets", "selectolax.lexbor", "shlex", "ssl", "subprocess", "tarfile",
    "tempfile", "urllib.request", "uuid", "uvloop", "w3lib.encoding", "w3lib.html", "yaml",
    "zoneinfo",
)  # fmt: skip
SERVER_LIBRARIES = (
    "fastapi.openapi.utils", "fastapi.security", "mcp.server.streamable_http_manager",
    "pydantic.v1", "python_multipart", "uvicorn.protocols.http.h11_impl",
    "uvicorn.protocols.websockets.websockets_sansio_impl",
)  # fmt: skip
"""What servers load besides. Other commands would take longer with them: each fork takes apart all
that is loaded when it ends."""
START_UP = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_")
"""Variables that Python and libc read only when a process starts begin with these."""
MAX_REQUEST_BYTES = 1 << 20
MAX_WAIT_S = 3600.0


class Fork(subprocess.Popen[str]):
    """A process that was started so; its output goes where it was told to."""

    def __init__(self, args: Sequence[str], status: int) -> None:
        """`status` is the pipe through which its number comes at once, and its exit code at its
        end."""
        self._child_created = False  # not by this process
        self.args, self.returncode = list(args), None
        self.stdin = self.stdout = self.stderr = None
        self._pipe, self._told = status, bytearray()
        self._reading = threading.Lock()  # a thread may wait for what another one kills
        weakref.finalize(self, os.close, status)
        while b"\n" not in self._told:
            self._read()
        self.pid = int(self._told.split()[0])

    def _read(self) -> None:
        with self._reading:
            data = os.read(self._pipe, 64)
            self._told += data
            if not data:
                self.returncode = int(self._told.split()[1])

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""
        self._ends_within(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        if not self._ends_within(math.inf if timeout is None else timeout):
            late = subprocess.TimeoutExpired(self.args, timeout or 0.0)
            late.add_note(_state_of(self.pid))
            raise late
        assert self.returncode is not None
        return self.returncode

    def _ends_within(self, limit_s: float) -> bool:
        end = time.monotonic() + limit_s
        while self.returncode is None:
            left_s = max(0.0, end - time.monotonic())
            if select.select([self._pipe], [], [], min(left_s, MAX_WAIT_S))[0]:
                self._read()
            elif not left_s:
                return False
        return True


def _state_of(pid: int) -> str:
    """What the kernel says of a process that should have ended, and of its children: which signals
    it blocks, and where it waits."""
    told = []
    with suppress(psutil.NoSuchProcess):
        first = psutil.Process(pid)
        for process in (first, *first.children(recursive=True)):
            proc = Path(f"/proc/{process.pid}")
            with suppress(OSError):
                lines = (proc / "status").read_text().splitlines()
                kept = [line for line in lines if line.startswith(("State", "Sig", "Shd", "PPid"))]
                waits = (proc / "wchan").read_text()
                told.append(f"{process.pid}: {'; '.join(kept)}; waits in {waits}")
    return "\n".join(told) or f"there is no process {pid}"


class Warm:
    """The client of one such interpreter, which ends with the process that has started it."""

    def __init__(self, serves: bool = False) -> None:
        """`serves` loads what servers need."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_REQUEST_BYTES)
        self._env = dict(os.environ)
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.warm", str(theirs.fileno()), str(int(serves))],
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
        try:
            self._send("crawler", args, cwd, env, False, [write for _, write in ends])
        finally:
            for _, write in ends:
                os.close(write)
        try:
            told, out, err = _read_all([read for read, _ in ends], limit_s)
        except TimeoutError:
            raise subprocess.TimeoutExpired(list(args), limit_s) from None
        return subprocess.CompletedProcess(list(args), int(told.split()[1]), out, err)

    def start(
        self, module: str, args: Sequence[str], cwd: Path, env: Mapping[str, str], out: int
    ) -> Fork:
        """The same as `subprocess.Popen` of `python -m` in a session of its own, with its output in
        an open file."""
        read, write = os.pipe()
        try:
            self._send(module, args, cwd, env, True, [write, out, out])
        finally:
            os.close(write)
        return Fork([sys.executable, "-m", module, *args], read)

    def _send(
        self,
        module: str,
        args: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        new_session: bool,
        fds: list[int],
    ) -> None:
        request = json.dumps([[module, *args], str(cwd), dict(env), new_session]).encode()
        with self._lock:
            socket.send_fds(self._socket, [request], fds)


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


def _received(
    connection: socket.socket,
) -> tuple[list[str], str, dict[str, str], bool, list[int]] | None:
    request, fds, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, 3)
    return (*json.loads(request), fds) if request else None


def _serve(connection: socket.socket) -> list[str]:
    """Fork for each request until there is no client; returns the module and its arguments, in the
    fork only."""
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
        args, cwd, env, new_session, fds = request
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if new_session:
                os.setsid()
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
    serves = int(sys.argv[2])
    for library in LIBRARIES + SERVER_LIBRARIES * serves:
        importlib.import_module(library)
    gc.collect()
    gc.freeze()
    module, *sys.argv[1:] = _serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
