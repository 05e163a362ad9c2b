"""Processes that parse stored pages. One that dies or hangs costs a page, not the replay."""

import contextlib
import faulthandler
import gc
import multiprocessing
import os
import re
import select
import signal
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import IO, Generic, NamedTuple, TypeVar

import msgspec

from crawler.replay.parser import ParseAnswer, ParseRequest, StoredPageParser, killed

T = TypeVar("T")

MAX_STRIKES = 2
"""Processes that a page may end. The first may have been killed from outside."""
MAX_WAITING = 64
"""Pages that a process has been given and has not answered: work for a while in which the parent
gets no CPU."""
MAX_WAITING_BYTES = 64_000
"""Their size. It fits into the socket's buffer, so that no send waits for a busy process."""
GARBAGE_THRESHOLDS = (50_000, 20, 100)
STOP_S = 5.0
_FRAME = re.compile(r'File "(.+)", line (\d+) in (\S+)')
_encode, _decode_answer = msgspec.msgpack.encode, msgspec.msgpack.Decoder(ParseAnswer).decode
_decode_request = msgspec.msgpack.Decoder(ParseRequest).decode


class _Job(NamedTuple, Generic[T]):
    item: T
    request: ParseRequest
    packed: bytes
    strikes: int = 0


class _Child(Generic[T]):
    """A process, its connection, and the pages that it has not answered, in order."""

    def __init__(self, process: BaseProcess, connection: Connection, trace: IO[bytes]) -> None:
        self.process, self.connection, self._trace = process, connection, trace
        self.waiting: deque[_Job[T]] = deque()
        self._bytes = 0

    def has_room(self, job: _Job[T]) -> bool:
        """Whether a page can be sent without waiting for the process."""
        if not self.waiting:
            return True
        fits = self._bytes + len(job.packed) <= MAX_WAITING_BYTES
        return fits and len(self.waiting) < MAX_WAITING

    def send(self, job: _Job[T]) -> None:
        """Give it one more page. If it is dead, that shows at the next `receive`."""
        self.waiting.append(job)
        self._bytes += len(job.packed)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send_bytes(job.packed)

    def receive(self) -> tuple[_Job[T], ParseAnswer] | None:
        """The next answer; None if the process has died."""
        try:
            answer = _decode_answer(self.connection.recv_bytes())
        except (EOFError, OSError):
            return None
        job = self.waiting.popleft()
        self._bytes -= len(job.packed)
        return job, answer

    def last_words(self) -> str:
        """How it ended, and where."""
        self.process.join()
        self._trace.seek(0)
        trace = self._trace.read().decode(errors="replace")
        code = self.process.exitcode or 0
        how = f"ended its process (exit code {code})"
        if code < 0:
            how = f"ended its process by {signal.Signals(-code).name}"
        if trace.startswith("Timeout"):
            how = "hung the parser"
        where = _FRAME.search(trace)
        if where is None:
            return f"the page {how}"
        return f"the page {how} ({where[1]}, line {where[2]}, in {where[3]})"

    def stop(self) -> None:
        """End it; an idle one ends by itself when its connection closes."""
        self.connection.close()
        self.process.join(STOP_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self._trace.close()


class ParserPool(Generic[T]):
    """Hands pages to processes and returns their answers, as they come.

    The processes are forks: all of them have the sites as they were read once.
    """

    def __init__(self, parser: StoredPageParser, count: int, stall_s: float) -> None:
        self._parser, self._count, self._stall_s = parser, count, stall_s
        self._children: list[_Child[T]] = []
        self._again: deque[_Job[T]] = deque()

    def __enter__(self) -> "ParserPool[T]":
        self._children = [self._start() for _ in range(self._count)]
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.connection.close()  # all of them at once, then one after the other
        for child in self._children:
            child.stop()

    def parse(self, pages: Iterable[tuple[T, ParseRequest]]) -> Iterator[tuple[T, ParseAnswer]]:
        """Parse pages in parallel; yields each with what became of it, in no order."""
        jobs = (_Job(item, request, _encode(request)) for item, request in pages)
        following = next(jobs, None)
        while True:
            for child in self._children:
                while self._again and child.has_room(self._again[0]):
                    child.send(self._again.popleft())
                while following and not self._again and child.has_room(following):
                    child.send(following)
                    following = next(jobs, None)
            busy = {child.connection: child for child in self._children if child.waiting}
            if not busy:
                return
            for connection in wait(list(busy)):
                assert isinstance(connection, Connection)
                answered = busy[connection].receive()
                if answered is None:
                    answered = self._bury(busy[connection])
                if answered is not None:
                    job, answer = answered
                    yield job.item, answer

    def _bury(self, child: "_Child[T]") -> tuple[_Job[T], ParseAnswer] | None:
        """Replace a dead process. Its first page gets a strike, and all of them are sent again."""
        words = child.last_words()
        blamed, *others = child.waiting
        child.stop()
        self._children[self._children.index(child)] = self._start()
        self._again += others
        blamed = blamed._replace(strikes=blamed.strikes + 1)
        if blamed.strikes >= MAX_STRIKES:
            return blamed, killed(blamed.request, words)
        self._again.append(blamed)
        return None

    def _start(self) -> "_Child[T]":
        ours, theirs = multiprocessing.Pipe()
        trace = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        # A fork has these, too, and would keep the others from seeing that this process is gone.
        inherited = [ours, *(child.connection for child in self._children)]
        process = multiprocessing.get_context("fork").Process(
            target=_serve, args=(self._parser, theirs, inherited, trace, self._stall_s), daemon=True
        )
        process.start()
        theirs.close()
        return _Child(process, ours, trace)


def _serve(
    parser: StoredPageParser,
    connection: Connection,
    inherited: Iterable[Connection],
    trace: IO[bytes],
    stall_s: float,
) -> None:
    """Answer until the connection closes; hang no longer than `stall_s` over a page."""
    for other in inherited:
        if not other.closed:
            other.close()
    os.dup2(2, 1)  # stdout is for the report, whatever a class writes
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent's: with it, the connection closes
        signal.signal(number, signal.SIG_IGN)
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    faulthandler.enable(trace)
    rearm_at = 0.0
    incoming = select.poll()  # `connection.poll` makes one for each call
    incoming.register(connection.fileno(), select.POLLIN)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            if rearm_at and not incoming.poll(0):
                faulthandler.cancel_dump_traceback_later()  # waiting is no standstill
                rearm_at = 0.0
            request = _decode_request(connection.recv_bytes())
            if time.monotonic() > rearm_at:
                # Ends the process even inside C code, which no signal handler does.
                faulthandler.dump_traceback_later(stall_s, exit=True, file=trace)
                rearm_at = time.monotonic() + stall_s / 4
            connection.send_bytes(_encode(parser.parse(request)))
