"""Decodes the content codings of a body while it arrives, with a limit on its decoded size."""

import re
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import brotli

from crawler.errors import FetchError, OwnShortage
from crawler.fetch import wire
from crawler.fetch.budget import Budget

if sys.version_info >= (3, 14):
    from compression.zstd import DecompressionParameter, ZstdDecompressor, ZstdError
else:
    from backports.zstd import DecompressionParameter, ZstdDecompressor, ZstdError

ACCEPTED = "gzip, deflate, br, zstd"
MAX_LAYERS = 4
MAX_PIECES = 1_000  # gzip members or zstd frames: empty ones cost 100 times their share of time
_STEP = 1 << 16  # output of a decoder per step: the most by which a bomb overshoots the limit
_ZSTD_WINDOW_LOG = 23  # as RFC 9659 allows


class _Decoder(ABC):
    """Undoes one content coding."""

    window = 1 << 15  # maximum bytes of its own output that it keeps

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._inner = self._new()
        self._pieces = 1

    @abstractmethod
    def _new(self) -> Any:
        """Return a decompressor for the next piece."""

    @abstractmethod
    def decode(self, data: bytes) -> Iterator[bytes]:
        """Yield what the next bytes stand for, in steps."""

    def is_complete(self) -> bool:
        return bool(self._inner.eof)

    def _next_piece(self) -> None:
        self._inner = self._new()
        self._pieces += 1
        if self._pieces > MAX_PIECES:
            message = f"the page is compressed in more than {MAX_PIECES:,} pieces"
            raise FetchError("too_large", message)


class _Gzip(_Decoder):
    def _new(self) -> Any:
        return zlib.decompressobj(31)

    def decode(self, data: bytes) -> Iterator[bytes]:
        while data:
            self._budget.check()
            if self._inner.eof:
                if not data.startswith(b"\x1f"):
                    return  # padding after the last member, which browsers ignore
                self._next_piece()
            yield self._inner.decompress(data, _STEP)
            data = self._inner.unconsumed_tail or self._inner.unused_data


class _Deflate(_Decoder):
    """deflate with or without zlib's header: servers send both."""

    _head = b""

    def _new(self) -> Any:
        return zlib.decompressobj(15)

    def decode(self, data: bytes) -> Iterator[bytes]:
        if len(self._head) < 2:
            data = self._head = self._head + data
            if len(data) < 2:
                return
            has_header = data[0] & 15 == 8 and int.from_bytes(data[:2]) % 31 == 0
            if not has_header:
                self._inner = zlib.decompressobj(-15)
        # zlib may have taken all input and still have output: raw deflate has no trailer behind it.
        has_output = False
        while (data or has_output) and not self._inner.eof:
            self._budget.check()
            out = self._inner.decompress(data, _STEP)
            yield out
            data = self._inner.unconsumed_tail
            has_output = len(out) == _STEP


class _Brotli(_Decoder):
    window = 1 << 24

    def _new(self) -> Any:
        return brotli.Decompressor()

    def decode(self, data: bytes) -> Iterator[bytes]:
        out = self._inner.process(data, output_buffer_limit=_STEP)
        # A decoder that can accept more data may still have output.
        while out or not (self.is_complete() or self._inner.can_accept_more_data()):
            self._budget.check()
            yield out
            if self.is_complete():
                return
            out = self._inner.process(b"", output_buffer_limit=_STEP)

    def is_complete(self) -> bool:
        return bool(self._inner.is_finished())


class _Zstd(_Decoder):
    """zstd frames, of which some may be empty or skippable."""

    window = 1 << _ZSTD_WINDOW_LOG

    def _new(self) -> Any:
        return ZstdDecompressor(options={DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG})

    def decode(self, data: bytes) -> Iterator[bytes]:
        while data or not (self._inner.needs_input or self._inner.eof):
            self._budget.check()
            if self._inner.eof:
                self._next_piece()
            out = self._inner.decompress(data, _STEP)
            data = self._inner.unused_data if self._inner.eof else b""
            yield out


_DECODERS: dict[str, type[_Decoder]] = {
    "gzip": _Gzip,
    "x-gzip": _Gzip,
    "deflate": _Deflate,
    "br": _Brotli,
    "zstd": _Zstd,
}
_NO_CODINGS = frozenset({"", "identity", "none", "binary", "7bit", "8bit"})
_BINARY = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
"""Bytes that no text has: without them, a body in an unknown coding is text with a wrong label."""


class _Full(Exception):
    """A body that may be cut has reached its limit."""


class Body:
    """A body as it arrives, raw and decoded, each at most `limit` bytes.

    A larger one is an error, or is cut there if `cut` is set.
    """

    def __init__(
        self, content_encoding: str, limit: int, *, cut: bool = False, budget: Budget | None = None
    ) -> None:
        self._budget = budget or Budget()
        self.limit = limit
        self.cut = cut
        self.full = False  # whether no more is wanted
        self.size = 0  # bytes received
        self._received: list[bytes] = []
        self._decoded = bytearray()
        self._unknown = ""
        self._layers: list[_Decoder] = []
        if content_encoding:
            self._add_layers(content_encoding)
        self._passed = [0] * (len(self._layers) + 1)  # input of each layer, and the output
        self._windows = 0

    def _add_layers(self, content_encoding: str) -> None:
        names = [name.strip(wire.BLANKS).lower() for name in content_encoding.split(",")]
        names = [name for name in names if name not in _NO_CODINGS]
        if not _DECODERS.keys() >= set(names):
            self._unknown = content_encoding  # as in browsers: then no layer is undone
            return
        if len(names) > MAX_LAYERS:
            message = f"{len(names)} layers of Content-Encoding are more than {MAX_LAYERS}"
            raise FetchError("unknown_encoding", message)
        self._layers = [_DECODERS[name](self._budget) for name in reversed(names)]

    @property
    def is_coded(self) -> bool:
        return bool(self._layers)

    def feed(self, data: bytes) -> None:
        try:
            self._received.append(data)
            self.size += len(data)
            self._check(self.size, "as sent")
            self._budget.hold(len(data))
            if self._layers and data:
                self._decode(data, 0)
        except _Full:
            self.full = True
            del self._decoded[self.limit :]
        except (zlib.error, brotli.error, ZstdError, EOFError) as error:
            if "not enough memory" in str(error):  # zstd's message
                raise OwnShortage(f"there is no memory left to decode a page ({error})") from None
            coding = type(self._layers[0]).__name__.strip("_").lower()
            message = f"the body is not what its {coding} coding says ({error})"
            raise FetchError("bad_encoding", message) from None

    def _decode(self, data: bytes, depth: int) -> None:
        if depth:
            self._hold_window(len(data), depth)
        self._passed[depth] += len(data)
        if depth == len(self._layers):
            self._decoded += data
            self._check(len(self._decoded), "decompressed")
            self._budget.hold(len(data))
            return
        # A layer may take input for ever and put out nothing.
        self._check(self._passed[depth], "decompressed")
        for out in self._layers[depth].decode(data):
            self._decode(out, depth + 1)

    def _hold_window(self, size: int, depth: int) -> None:
        """Count the output that the layer before keeps in its window."""
        more = min(size, self._layers[depth - 1].window - self._passed[depth])
        if more > 0:
            self._budget.hold(more)
            self._windows += more

    def _check(self, size: int, what: str) -> None:
        if size <= self.limit:
            return
        if self.cut:
            raise _Full
        raise FetchError("too_large", f"the page is larger than {self.limit:,} bytes {what}")

    def finish(self) -> tuple[bytes, bytes]:
        """Return the body as received and as decoded; raises `FetchError` if its coding is cut."""
        raw = b"".join(self._received)
        if self.full:
            raw = raw[: self.limit]
        if self._unknown and _BINARY.search(raw, 0, 1024):
            message = f"cannot read Content-Encoding: {self._unknown[:100]!r}"
            raise FetchError("unknown_encoding", message)
        if not self._layers or not raw:
            return raw, raw
        if not self.full and not all(layer.is_complete() for layer in self._layers):
            raise FetchError("truncated", "the compressed body ends before its end")
        self._layers.clear()
        self._budget.release(self._windows)
        return raw, bytes(self._decoded)


def decode_stored(head: str, raw: bytes, limit: int) -> bytes:
    """Decode a stored body by the Content-Encoding of its head; raises `FetchError`."""
    body = Body(",".join(wire.stored_values(head, "content-encoding")), limit)
    body.feed(raw)
    return body.finish()[1]
