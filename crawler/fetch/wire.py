"""HTTP/1.1 as it comes over the wire, read as leniently as Chromium reads it and no further;
nothing here waits.

Slips that browsers forgive: bare line feeds, rubbish of up to four bytes before the status line, no
reason, folded lines, lines without a colon, blanks before a colon, bytes beyond ASCII, a length
beside chunks, the same length twice.
"""

import re
from collections.abc import Callable

import msgspec

from crawler.errors import FetchError

MAX_HEAD = 256 * 1024
"""The bytes of a status line and all its headers, and of all the answers before it (Chromium's
limit, too)."""
MAX_CHUNK_LINE = 16 * 1024
MAX_FRAMING = 64 * 1024
"""What chunk sizes, their extensions and trailers may add up to beyond the body itself: one in
chunks of one byte, each of which costs as much as one of a megabyte, ends here."""

SLOP = 8
"""A status line that begins within so many bytes is one; what begins otherwise is not HTTP and is
not waited for."""
_END = re.compile(rb"\n\r?\n")
_STATUS = re.compile(r"HTTP(?:/(\d+)(?:\.(\d+))?)? *(\d*)(.*)", re.IGNORECASE | re.DOTALL)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SIZE = re.compile(rb"0*[0-9A-Fa-f]{1,15}")
BLANKS = " \t"
"""What may stand around a value. `str.strip()` would take bytes that belong to it: a UTF-8 `à` ends
with a blank of Latin-1."""
MAX_DIGITS = 18
"""Of a length."""
_NO_BODY = frozenset({204, 205, 304})


def not_http(data: bytes | bytearray) -> FetchError:
    """The error for an answer in another language."""
    return FetchError(
        "bad_response", f"the answer is not HTTP: it begins with {bytes(data[:40])!r}"
    )


class Head(msgspec.Struct, frozen=True):
    """A status line and headers."""

    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    persistent: bool
    """Whether the server is going to keep the connection, as far as the head says."""
    fields: dict[str, list[str]]
    """The values of all headers of a name, which is in lower case."""
    size: int = 0
    """The bytes that came, with the lines that are no headers."""

    def list(self, name: str) -> "list[str]":
        """The values of a header that is a list, in lower case."""
        values = self.fields.get(name, ())
        return [
            text
            for value in values
            for part in value.split(",")
            if (text := part.strip(BLANKS).lower())
        ]


def end_of_head(data: bytes | bytearray, begin: int) -> int:
    """Where the body begins, or -1 while the head is not complete."""
    found = _END.search(data, begin)
    return found.end() if found else -1


def start_of_head(data: bytes | bytearray) -> int:
    """Where the status line begins, or -1 while nothing says so: a few stray bytes may stand before
    it."""
    return data[:SLOP].lower().find(b"http")


def parse_head(data: bytes | bytearray) -> Head:
    """Read a head as a browser does; raises `FetchError` where a browser would not either."""
    if b"\0" in data:
        raise FetchError("bad_response", "the answer's head holds a zero byte")
    first, *lines = [*filter(None, data.decode("latin-1").replace("\r", "\n").split("\n"))] or [""]
    match = _STATUS.fullmatch(first)
    if not match:
        raise not_http(data)
    status = int(match[3][:9] or 200)  # browsers take a missing number for 200, too
    if not 100 <= status <= 999:
        raise FetchError("bad_response", f"the answer's status is none: {first[:60]!r}")
    headers: list[tuple[str, str]] = []
    folded: list[str] = []
    for line in lines:
        if line[0] in BLANKS:
            folded.append(line.strip(BLANKS))
            continue
        if folded:
            _unfold(headers, folded)
        name, colon, value = line.partition(":")
        name = name.rstrip(BLANKS)
        if colon and _TOKEN.fullmatch(name):
            headers.append((name, value.strip(BLANKS)))
    if folded:
        _unfold(headers, folded)
    fields: dict[str, list[str]] = {}
    for name, value in headers:
        fields.setdefault(name.lower(), []).append(value)
    modern = match[1] == match[2] == "1" or (
        int((match[1] or "1")[:4]),
        int((match[2] or "0")[:4]),
    ) >= (1, 1)
    words = [
        word.strip(BLANKS).lower()
        for text in fields.get("connection", ())
        for word in text.split(",")
    ]
    persistent = "close" not in words and (modern or "keep-alive" in words)
    return Head(status, match[4].strip(BLANKS), tuple(headers), persistent, fields, len(data))


def stored_head(text: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The status line and the headers of a head that was stored: its lines end with CR LF, and with
    nothing else.

    `str.splitlines()` would cut within values, and make headers that the server never sent.
    """
    first, *lines = text.split("\r\n")
    parts = (line.partition(":") for line in lines)
    return first, tuple((name, value.strip(BLANKS)) for name, colon, value in parts if colon)


def stored_values(head: str, name: str) -> list[str]:
    """The values of one header, named in small letters, of a head that was stored."""
    return [value for known, value in stored_head(head)[1] if known.lower() == name]


def media_type(declared: str) -> str:
    """The type that a Content-Type names, without its parameters."""
    return declared.partition(";")[0].strip(BLANKS).lower()


def _unfold(headers: list[tuple[str, str]], folded: list[str]) -> None:
    """Put lines that go on with a header behind its value, all at once: one by one they would copy
    it each time."""
    if headers:
        name, value = headers[-1]
        headers[-1] = (name, " ".join(filter(None, (value, *folded))))
    folded.clear()


class Framing(msgspec.Struct, frozen=True):
    """How a body ends: after so many bytes, after its last chunk, or (neither) with the
    connection."""

    length: int | None = None
    chunked: bool = False


def framing(head: Head) -> Framing:
    """How the body behind a head ends; raises `FetchError` where its headers contradict each
    other."""
    if head.status in _NO_BODY or head.status < 200:
        return Framing(length=0)
    if "transfer-encoding" in head.fields:
        codings = head.list("transfer-encoding")
        if "chunked" in codings:
            if unknown := set(codings) - {"chunked", "identity"}:
                shown = ", ".join(sorted(unknown))[:100]
                raise FetchError("unknown_encoding", f"cannot read Transfer-Encoding: {shown!r}")
            return Framing(chunked=True)
    lengths = head.fields.get("content-length", [])
    if (
        len(lengths) == 1
        and lengths[0].isascii()
        and lengths[0].isdigit()
        and len(lengths[0]) <= MAX_DIGITS
    ):
        return Framing(length=int(lengths[0]))
    lengths = list({*head.list("content-length")})
    if len(lengths) > 1:
        raise FetchError("bad_response", f"the answer has {len(lengths)} different lengths")
    text = lengths.pop() if lengths else ""
    # A length that is no number, or below zero, is none: the body ends with the connection, as in
    # browsers.
    return (
        Framing(length=int(text))
        if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS
        else Framing()
    )


class Chunks:
    """A body in chunks, taken apart as it arrives."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._left = self._searched = 0
        self._framing = self._held = 0
        self._step: Callable[[], bytes | None] = self._size
        self.done = False

    def feed(self, data: bytes | bytearray) -> bytes:
        """What the chunks hold; what follows the last one stays in `rest`."""
        self._buffer += data
        out: list[bytes] = []
        while not self.done:
            piece = self._step()
            if piece is None:
                break
            if piece:
                self._held += len(piece)
                out.append(piece)
        return b"".join(out)

    @property
    def rest(self) -> bool:
        """Whether more came than the body."""
        return self.done and bool(self._buffer)

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\n", self._searched)
        self._searched = len(self._buffer) if end < 0 else 0
        if end > MAX_CHUNK_LINE or (end < 0 and len(self._buffer) > MAX_CHUNK_LINE):
            raise FetchError(
                "bad_response", f"a line between chunks is longer than {MAX_CHUNK_LINE:,} bytes"
            )
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._framing += end + 1
        if self._framing > MAX_FRAMING + self._held:
            raise FetchError(
                "bad_response", "more of the body are chunk sizes and trailers than what they hold"
            )
        return line.removesuffix(b"\r")

    def _size(self) -> bytes | None:
        line = self._line()
        if line is None:
            return None
        text = line.partition(b";")[0].strip(b" \t")
        if not _SIZE.fullmatch(text):
            raise FetchError("bad_response", f"the size of a chunk is no number: {text[:20]!r}")
        self._left = int(text, 16)
        self._step = self._data if self._left else self._trailer
        return b""

    def _data(self) -> bytes | None:
        if not self._buffer:
            return None
        piece = bytes(self._buffer[: self._left])
        del self._buffer[: self._left]
        self._left -= len(piece)
        if not self._left:
            self._step = self._gap
        return piece

    def _gap(self) -> bytes | None:
        line = self._line()
        if line:
            raise FetchError("bad_response", "a chunk is longer than its size")
        if line is not None:
            self._step = self._size
        return line

    def _trailer(self) -> bytes | None:
        line = self._line()
        if line == b"":
            self.done = True
        return None if line is None else b""
