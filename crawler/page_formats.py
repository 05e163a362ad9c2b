"""Formats of stored pages besides the record, made on demand by processes with limits.

A page that hangs or kills its converter costs that format of that page only. The processes are
started fresh, because a fork of a program with threads may hang, and they end with the program.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import msgspec

from crawler.errors import ServiceError, UsageError

KEYS = {"html": "html", "text": "content", "links": "links", "markdown": "markdown"}
"""What an answer calls each format, in the order in which they are made: the costliest comes last,
so that it takes no other with it."""
ERRORS = "format_errors"
NO_MEMORY = 3
"""Exit code of a process whose page needs more memory than it may have."""
MAX_STRIKES = 2
"""Processes that a format of a page may end. The first may have been killed from outside."""
MAX_PROCESSES = 4
START_S, STOP_S = 60.0, 5.0
_MARKDOWN_PACKAGES = ("html_to_markdown", "trafilatura")
_encode = msgspec.msgpack.encode


class PageToConvert(msgspec.Struct, frozen=True, array_like=True):
    """A stored page: its header block and its body as received, and the formats to make of it."""

    head: str
    raw: bytes
    url: str
    """Links are relative to it."""
    formats: tuple[str, ...]
    only_main_content: bool = True
    """Whether Markdown leaves out menus, footers and the like."""


class ConvertedFormat(msgspec.Struct, frozen=True, array_like=True):
    """One format of a page."""

    value: str | list[str] | None
    problem: str = ""
    """Why there is none, or why it is incomplete."""


class ConversionLimits(msgspec.Struct, frozen=True):
    """What the conversion of one page may take."""

    cpu_s: int = 10
    """CPU time of each format."""
    wall_s: float = 60.0
    """Time for all formats; longer than the CPU time, because the machine may be busy."""
    memory: int = 1 << 30
    """Bytes of address space of a process."""


_decode_answer = msgspec.msgpack.Decoder(ConvertedFormat).decode


def check_formats(formats: Iterable[str]) -> None:
    """Raise `UsageError` for a format that does not exist, or lacks its packages."""
    asked = set(formats)
    if unknown := asked - KEYS.keys():
        raise UsageError(f"formats: {min(unknown)} is none of {', '.join(KEYS)}")
    if "markdown" in asked and not all(map(find_spec, _MARKDOWN_PACKAGES)):
        packages = " and ".join(_MARKDOWN_PACKAGES).replace("_", "-")
        advice = "install both with: pip install '.[markdown]' in the project's folder"
        raise UsageError(f"the format markdown needs the packages {packages}; {advice}")


class PageFormats:
    """Converts pages, several at a time. Its methods may be called from any thread.

    Processes are started when they are first needed, and stay for the next call until `close`.
    """

    def __init__(
        self, processes: int | None = None, limits: ConversionLimits | None = None
    ) -> None:
        self._count = processes or min(MAX_PROCESSES, os.cpu_count() or 1)
        self._limits = limits or ConversionLimits()
        self._threads = ThreadPoolExecutor(self._count, "page-formats")
        self._lock = threading.Lock()
        self._processes: set[_Process] = set()
        self._idle: list[_Process] = []
        self._is_closed = False

    def convert(self, pages: Iterable[PageToConvert]) -> list[dict[str, Any]]:
        """Return for each page the formats that it asks for, under their `KEYS`.

        `format_errors` has the reason for each that is missing or incomplete. Pages are taken as
        processes become free: neither do many large ones fill the memory, nor does a long call
        hold up a short one.
        """
        waiting: deque[Future[dict[str, Any]]] = deque()
        answers: list[dict[str, Any]] = []
        for page in pages:
            check_formats(page.formats)
            if len(waiting) >= 2 * self._count:
                answers.append(waiting.popleft().result())
            waiting.append(self._submit(page))
        return answers + [future.result() for future in waiting]

    def close(self) -> None:
        """End the processes; calls that are not done raise `ServiceError`."""
        with self._lock:
            self._is_closed = True
            processes = list(self._processes)
        for process in processes:
            process.kill()
        while self._idle:
            self._remove(self._idle.pop())
        self._threads.shutdown(wait=False)  # the threads remove those that were busy

    def _submit(self, page: PageToConvert) -> Future[dict[str, Any]]:
        with self._lock:
            self._check_open()
            return self._threads.submit(self._convert, page)

    def _convert(self, page: PageToConvert) -> dict[str, Any]:
        left = deque(name for name in KEYS if name in page.formats)
        answer: dict[str, Any] = {}
        problems: dict[str, str] = {}
        strikes = 0
        while left:
            process = self._take(fresh=strikes > 0)
            asked = msgspec.structs.replace(page, formats=tuple(left))
            end = process.convert(asked, left, answer, problems)
            if end is None:
                self._give_back(process)
                break
            self._remove(process)
            strikes += 1
            if end.is_certain or strikes >= MAX_STRIKES:
                problems[left.popleft()] = end.reason
                strikes = 0
        if problems:
            answer[ERRORS] = problems
        return answer

    def _take(self, fresh: bool) -> "_Process":
        """Return a process: an idle one, or a `fresh` one, which nothing has damaged or killed."""
        with self._lock:
            self._check_open()
            if self._idle and not fresh:
                return self._idle.pop()
        process = _Process(self._limits)
        try:
            with self._lock:
                self._check_open()
                self._processes.add(process)
        except ServiceError:  # it was closed meanwhile
            process.stop()
            raise
        return process

    def _check_open(self) -> None:
        if self._is_closed:
            raise ServiceError("no page is converted any more: the program is ending")

    def _give_back(self, process: "_Process") -> None:
        with self._lock:
            if not self._is_closed:
                self._idle.append(process)
                return
        self._remove(process)

    def _remove(self, process: "_Process") -> None:
        process.stop()
        with self._lock:
            self._processes.discard(process)


class _End(NamedTuple):
    """How a process ended before it had made all formats of a page."""

    reason: str
    is_certain: bool
    """Whether the page is to blame, so that another try would not help."""


class _Process:
    """A process that converts one page at a time, as `crawler.page_converter` says."""

    def __init__(self, limits: ConversionLimits) -> None:
        self._limits = limits
        self._is_ready = self._is_late = False
        self._trace = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "crawler.page_converter"]
        with theirs:
            try:
                self._popen = subprocess.Popen(
                    [*command, str(limits.cpu_s), str(limits.memory)],
                    stdin=theirs.fileno(),
                    stdout=self._trace,
                    stderr=self._trace,
                    start_new_session=True,  # Ctrl-C is for the program
                )
            except OSError as error:
                ours.close()
                self._trace.close()
                what = f"the process that converts pages cannot be started ({error})"
                raise ServiceError(f"{what}; try again later") from error
        self._connection = Connection(ours.detach())

    def convert(
        self,
        page: PageToConvert,
        left: deque[str],
        answer: dict[str, Any],
        problems: dict[str, str],
    ) -> _End | None:
        """Move formats from what is `left` to the answer; returns how the process ended, if it
        did."""
        try:
            if not self._is_ready:
                with self._limited(START_S):
                    self._connection.recv_bytes()
                self._is_ready = True
            with self._limited(self._limits.wall_s):
                self._connection.send_bytes(_encode(page))
                while left:
                    made = _decode_answer(self._connection.recv_bytes())
                    name = left.popleft()
                    if made.value is not None:
                        answer[KEYS[name]] = made.value
                    if made.problem:
                        problems[name] = made.problem
        except (EOFError, OSError):
            return self._end()
        return None

    @contextlib.contextmanager
    def _limited(self, seconds: float) -> Iterator[None]:
        """Kill the process if what is inside takes longer; it may wait for it, also to send."""
        timer = threading.Timer(seconds, self._give_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _give_up(self) -> None:
        self._is_late = True
        self.kill()

    def _end(self) -> _End:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(STOP_S)
        code, limits = self._popen.returncode, self._limits
        self._trace.seek(0)
        said = self._trace.read().decode(errors="replace").strip()
        if self._is_late:
            return _End(f"its conversion took more than {limits.wall_s:g} s", is_certain=False)
        if code == -signal.SIGXCPU:
            return _End(f"its conversion took more than {limits.cpu_s} s of CPU time", True)
        if code == NO_MEMORY or (code == -signal.SIGABRT and "memory allocation" in said):
            most = f"{limits.memory // 1_000_000:,} MB of memory"
            return _End(f"its conversion needed more than {most}", is_certain=False)
        how = f"exit code {code}"
        if code is not None and code < 0:
            how = signal.Signals(-code).name
        reason = f"the process that converted it ended ({how})"
        if said:
            reason += f": {said.splitlines()[-1][:200]}"
        return _End(reason, is_certain=False)

    def kill(self) -> None:
        """End it, whatever it does."""
        self._popen.kill()

    def stop(self) -> None:
        """End it, and close what it had."""
        self.kill()
        self._popen.wait()
        self._connection.close()
        self._trace.close()
