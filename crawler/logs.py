"""Readable lines on a terminal, JSON lines elsewhere; task_id, job and domain stand on each where
they are known."""

import logging
import os
import re
import sys
from typing import TextIO

import msgspec

_NUMBERS = re.compile(r"\d[\d.,:]*")
_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "data"}


class JsonLines(logging.Formatter):
    """One JSON object a line; what a caller passes as `extra` becomes fields of it."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": printable(record.getMessage()),
        }
        line |= {name: value for name, value in record.__dict__.items() if name not in _PLAIN}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class ReadableLines(logging.Formatter):
    """What a person wants to see: time, level, message, and the extra fields behind it."""

    def format(self, record: logging.LogRecord) -> str:
        extra = " ".join(
            f"{name}={value}" for name, value in record.__dict__.items() if name not in _PLAIN
        )
        line = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname.lower():7} {printable(record.getMessage())}"
        line += f"  {printable(extra)}" if extra else ""
        return line + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


def handler(stream: TextIO | None = None) -> logging.Handler:
    """A handler for the stream (stderr by default) in the form that suits it."""
    import time

    stream = stream or sys.stderr
    out = logging.StreamHandler(stream)
    formatter = ReadableLines() if stream.isatty() else JsonLines()
    if isinstance(formatter, JsonLines):
        formatter.converter = time.gmtime
    out.setFormatter(formatter)
    return out


def setup(level: str) -> None:
    """Send the package's log lines to stderr."""
    logger = logging.getLogger("crawler")
    logger.handlers[:] = [handler()]
    logger.setLevel(level.upper())
    logger.propagate = False


def printable(text: str) -> str:
    """The text with control characters escaped, so that a page cannot drive a terminal or forge a
    log line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shortened(text: str, most: int = 100) -> str:
    """A text that fits into a line."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def counted(count: int, what: str) -> str:
    """A number of things, of which one has no s."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def without_figures(text: str) -> str:
    """A text that is the same while only its figures change."""
    return _NUMBERS.sub("", text)


def leave_lost_terminal() -> bool:
    """Send to /dev/null what was to go to a terminal or a reader that is gone; True where one is.

    What is said later must not fail: it would break off a stop.
    """
    import select

    poll = select.poll()
    for descriptor in (1, 2):
        poll.register(descriptor, 0)
    lost = [
        descriptor
        for descriptor, events in poll.poll(0)
        if events & (select.POLLHUP | select.POLLERR)
    ]
    if lost:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in lost:
            os.dup2(nowhere, descriptor)
        os.close(nowhere)
    return bool(lost)
