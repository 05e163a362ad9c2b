"""HTTP/1.1 syntax, read as leniently as Chromium reads it and no further; no I/O here.

Tolerated: bare line feeds, up to four stray bytes before the status line, no reason, folded lines,
lines without a colon, blanks before a colon, bytes beyond ASCII, a length beside chunks, the same
length twice.
"""

import re
from collections.abc import Generator, Iterator

import msgspec

from crawler.errors import FetchError

MAX_HEAD = 256 * 1024  # bytes of all heads of an answer, interim ones included; also Chromium's
MAX_CHUNK_LINE = 16 * 1024
MAX_FRAMING = 64 * 1024
"""Bytes of chunk sizes, extensions and trailers beyond the size of the body: stops chunks of one
byte, each of which costs as much as one of a megabyte."""
MAX_BEFORE_STATUS = 8  # bytes within which the status line has to begin
MAX_DIGITS = 18  # of a length
BLANKS = " \t"
"""Blanks around a value. `str.strip()` would also take U+00A0, which ends a UTF-8 `à`."""
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_END = re.compile(rb"\n\r?\n")
_STATUS = re.compile(r"HTTP(?:/(\d+)(?:\.(\d+))?)? *(\d*)(.*)", re.IGNORECASE | re.DOTALL)
_CHUNK_SIZE = re.compile(rb"0*[0-9A-Fa-f]{1,15}")
_NO_BODY = frozenset({204, 205, 304})

Headers = tuple[tuple[str, str], ...]


def not_http(data: bytes | bytearray) -> FetchError:
    return bad_response(f"the answer is not HTTP: it begins with {bytes(data[:40])!r}")


def bad_response(message: str) -> FetchError:
    return FetchError("bad_response", message)


def too_large_head() -> FetchError:
    message = f"the answer's headers are larger than {MAX_HEAD:,} bytes"
    return FetchError("headers_too_large", message)


class Head(msgspec.Struct, frozen=True):
    """A status line and headers."""

    status: int
    reason: str
    headers: Headers
    persistent: bool  # whether the server keeps the connection, as far as the head says
    fields: dict[str, list[str]]  # all values of a header, by its name in lower case
    size: int = 0  # bytes received, with lines that are no headers

    def list(self, name: str) -> "list[str]":
        """Return the items of a comma-separated header in lower case."""
        return _items(self.fields.get(name, []))


def _items(values: list[str]) -> list[str]:
    items = [item.strip(BLANKS).lower() for value in values for item in value.split(",")]
    return [item for item in items if item]


def end_of_head(data: bytes | bytearray, begin: int) -> int:
    """Return where the body begins, or -1 while the head is incomplete."""
    found = _END.search(data, begin)
    return found.end() if found else -1


def start_of_head(data: bytes | bytearray) -> int:
    """Return where the status line begins, or -1: a few stray bytes may come before it."""
    return data[:MAX_BEFORE_STATUS].lower().find(b"http")


def parse_head(data: bytes | bytearray) -> Head:
    """Parse a head as a browser does; raises `FetchError` if a browser would refuse it."""
    if b"\0" in data:
        raise bad_response("the answer's head holds a zero byte")
    text = data.decode("latin-1").replace("\r", "\n")
    first, *lines = [*filter(None, text.split("\n"))] or [""]
    match = _STATUS.fullmatch(first)
    if not match:
        raise not_http(data)
    status = int(match[3][:9] or 200)  # browsers take a missing number for 200, too
    if not 100 <= status <= 999:
        raise bad_response(f"the answer's status is none: {first[:60]!r}")
    headers = _parse_lines(lines)
    fields: dict[str, list[str]] = {}
    for name, value in headers:
        fields.setdefault(name.lower(), []).append(value)
    major, minor = match[1] or "1", match[2] or "0"
    is_modern = major == minor == "1" or (int(major[:4]), int(minor[:4])) >= (1, 1)
    persistent = is_modern
    if "connection" in fields:
        options = _items(fields["connection"])
        persistent = "close" not in options and (is_modern or "keep-alive" in options)
    return Head(status, match[4].strip(BLANKS), tuple(headers), persistent, fields, len(data))


def _parse_lines(lines: list[str]) -> list[tuple[str, str]]:
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
        if colon and TOKEN.fullmatch(name):
            headers.append((name, value.strip(BLANKS)))
    if folded:
        _unfold(headers, folded)
    return headers


def _unfold(headers: list[tuple[str, str]], folded: list[str]) -> None:
    """Append folded lines to the last header, all at once: one by one would be quadratic."""
    if headers:
        name, value = headers[-1]
        headers[-1] = (name, " ".join(filter(None, (value, *folded))))
    folded.clear()


def stored_head(text: str) -> tuple[str, Headers]:
    """Return the status line and the headers of a stored head, whose lines end with CR LF only.

    `str.splitlines()` would also cut within values, and make headers that the server never sent.
    """
    first, *lines = text.split("\r\n")
    parts = (line.partition(":") for line in lines)
    return first, tuple((name, value.strip(BLANKS)) for name, colon, value in parts if colon)


def stored_values(head: str, name: str) -> list[str]:
    """Return the values of a header of a stored head; `name` is in lower case."""
    return [value for known, value in stored_head(head)[1] if known.lower() == name]


def media_type(content_type: str) -> str:
    """Return the media type of a Content-Type without its parameters."""
    return content_type.partition(";")[0].strip(BLANKS).lower()


class Framing(msgspec.Struct, frozen=True):
    """How a body ends: by its length, with its last chunk, or (neither) with the connection."""

    length: int | None = None
    chunked: bool = False


def framing(head: Head) -> Framing:
    """Return how the body ends; raises `FetchError` if the headers contradict each other."""
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
    if len(lengths) > 1 or "," in "".join(lengths):
        lengths = list({*head.list("content-length")})
    if len(lengths) > 1:
        raise bad_response(f"the answer has {len(lengths)} different lengths")
    for text in lengths:
        if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS:
            return Framing(length=int(text))
    # As in browsers, a length that is no number or negative is none.
    return Framing()


class Chunks:
    """Decodes a chunked body as it arrives."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._decoded: list[bytes] = []
        self._decoded_bytes = self._framing_bytes = 0
        self._parser = self._parse()
        self.done = False

    def feed(self, data: bytes | bytearray) -> bytes:
        """Return the content of the chunks in `data`."""
        self._buffer += data
        next(self._parser, None)
        decoded = b"".join(self._decoded)
        self._decoded.clear()
        return decoded

    @property
    def rest(self) -> bool:
        """Whether bytes came after the body."""
        return self.done and bool(self._buffer)

    def _parse(self) -> Iterator[None]:
        """Parse the body; yields whenever it needs more bytes."""
        while left := _chunk_size((yield from self._line())):
            while left:
                if not self._buffer:
                    yield
                piece = bytes(self._buffer[:left])
                del self._buffer[:left]
                left -= len(piece)
                self._decoded_bytes += len(piece)
                self._decoded.append(piece)
            if (yield from self._line()):
                raise bad_response("a chunk is longer than its size")
        while (yield from self._line()):
            pass  # a trailer
        self.done = True

    def _line(self) -> Generator[None, None, bytes]:
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            _check_line(searched)
            yield
        _check_line(end)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._framing_bytes += end + 1
        if self._framing_bytes > MAX_FRAMING + self._decoded_bytes:
            raise bad_response("more of the body are chunk sizes and trailers than what they hold")
        return line.removesuffix(b"\r")


def _check_line(length: int) -> None:
    if length > MAX_CHUNK_LINE:
        raise bad_response(f"a line between chunks is longer than {MAX_CHUNK_LINE:,} bytes")


def _chunk_size(line: bytes) -> int:
    text = line.partition(b";")[0].strip(b" \t")
    if not _CHUNK_SIZE.fullmatch(text):
        raise bad_response(f"the size of a chunk is no number: {text[:20]!r}")
    return int(text, 16)
