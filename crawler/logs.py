"""Log lines: readable on a terminal, JSON elsewhere. Text that is safe to print."""

import logging
import os
import re
import sys
import time
from typing import Any, TextIO

import msgspec

_NUMBERS = re.compile(r"\d[\d.,:]*")
_STANDARD_FIELDS = frozenset(logging.makeLogRecord({}).__dict__) | {
    "message",
    "asctime",
    "taskName",
    "data",
}


def _extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return what the caller passed as `extra`, such as task_id, job and domain."""
    fields = record.__dict__.items()
    return {name: value for name, value in fields if name not in _STANDARD_FIELDS}


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": printable(record.getMessage()),
        }
        line |= _extra_fields(record)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class ReadableLines(logging.Formatter):
    """Time, level and message, with the extra fields behind it."""

    def format(self, record: logging.LogRecord) -> str:
        at, level = self.formatTime(record, "%H:%M:%S"), record.levelname.lower()
        line = f"{at} {level:7} {printable(record.getMessage())}"
        extra = " ".join(f"{name}={value}" for name, value in _extra_fields(record).items())
        if extra:
            line += f"  {printable(extra)}"
        if record.exc_info:
            line += f"\n{self.formatException(record.exc_info)}"
        return line


def handler(stream: TextIO | None = None) -> logging.Handler:
    """Return a handler for a stream: readable lines for a terminal, JSON for anything else."""
    stream = stream or sys.stderr
    out = logging.StreamHandler(stream)
    out.setFormatter(JsonLines())
    if stream.isatty():
        out.setFormatter(ReadableLines())
    return out


def setup(level: str) -> None:
    """Send the package's log lines to stderr."""
    logger = logging.getLogger("crawler")
    logger.handlers[:] = [handler()]
    logger.setLevel(level.upper())
    logger.propagate = False


def printable(text: str) -> str:
    """Return a text with control characters escaped.

    Otherwise a page could control the terminal or forge a log line.
    """
    if text.isprintable():
        return text
    escapes = {ord(sign): repr(sign)[1:-1] for sign in set(text) if not sign.isprintable()}
    return text.translate(escapes)


def shortened(text: str, most: int = 100) -> str:
    """Return a text, cut to a length."""
    if len(text) <= most:
        return text
    return f"{text[: most - 1]}…"


def counted(count: int, what: str) -> str:
    """Return a number of things, such as "1 page" or "2 pages"."""
    if count == 1:
        return f"1 {what}"
    return f"{count:,} {what}s"


def without_figures(text: str) -> str:
    """Return a text without numbers, to compare messages that differ only in numbers."""
    return _NUMBERS.sub("", text)


def leave_lost_terminal() -> bool:
    """Send stdout and stderr to /dev/null if their reader is gone; return whether one was.

    Otherwise the next line of output would fail and interrupt an orderly stop.
    """
    import select

    poll = select.poll()
    for descriptor in (1, 2):
        poll.register(descriptor, 0)
    gone = select.POLLHUP | select.POLLERR
    lost = [descriptor for descriptor, events in poll.poll(0) if events & gone]
    if lost:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in lost:
            os.dup2(nowhere, descriptor)
        os.close(nowhere)
    return bool(lost)
