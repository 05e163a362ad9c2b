"""Content codings undone while a body streams in, with a limit on what comes out, whatever the
layers."""

import re
import sys
import zlib
from collections.abc import Callable
from typing import Protocol

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
MAX_PIECES = 1_000
"""Members of a gzip body, frames of a zstd body: empty ones cost a hundred times their share of
time."""
_STEP = 1 << 16
"""What a decoder may put out at a time: the most by which a bomb can overshoot the limit."""


class Decoder(Protocol):
    """Undoes one content coding."""

    window: int
    """How much of what it has put out it keeps at most."""

    def feed(self, data: bytes, emit: Callable[[bytes], None]) -> None:
        """Decode some bytes, in steps of bounded size."""

    def finish(self) -> bool:
        """Whether the coded body has come to its proper end."""


class _Zlib:
    """gzip (with several members) and deflate (with or without zlib's header: servers send
    both)."""

    window = 1 << 15

    def __init__(self, gzip: bool, budget: Budget) -> None:
        self._gzip, self._budget = gzip, budget
        self._inner = zlib.decompressobj(31) if gzip else None
        self._head = b""
        self._members = 1

    def feed(self, data: bytes, emit: Callable[[bytes], None]) -> None:
        if self._inner is None:
            self._head += data
            if len(self._head) < 2:
                return
            data, framed = (
                self._head,
                self._head[0] & 15 == 8 and int.from_bytes(self._head[:2]) % 31 == 0,
            )
            self._inner = zlib.decompressobj(15 if framed else -15)
        # zlib may have taken all input and hold more output than a step: raw deflate has no trailer
        # behind it that would ask for that.
        pending = False
        while data or pending:
            self._budget.check()
            if self._inner.eof:
                if not self._gzip or not data.startswith(b"\x1f"):
                    return  # padding behind the last member, which browsers ignore
                self._inner = zlib.decompressobj(31)
                self._members += 1
                _check_pieces(self._members)
            out = self._inner.decompress(data, _STEP)
            emit(out)
            data = self._inner.unconsumed_tail or self._inner.unused_data
            pending = len(out) == _STEP and not self._inner.eof

    def finish(self) -> bool:
        return self._inner is not None and self._inner.eof


class _Brotli:
    window = 1 << 24

    def __init__(self, budget: Budget) -> None:
        self._inner = brotli.Decompressor()
        self._budget = budget

    def feed(self, data: bytes, emit: Callable[[bytes], None]) -> None:
        out = self._inner.process(data, output_buffer_limit=_STEP)
        # A decoder that can accept more may still have something to put out.
        while out or not (self._inner.is_finished() or self._inner.can_accept_more_data()):
            self._budget.check()
            emit(out)
            out = (
                b""
                if self._inner.is_finished()
                else self._inner.process(b"", output_buffer_limit=_STEP)
            )

    def finish(self) -> bool:
        return bool(self._inner.is_finished())


class _Zstd:
    """Frames may follow each other, and may hold nothing, or what is to be skipped; their window
    has the size that RFC 9659 allows."""

    window = 1 << 23

    def __init__(self, budget: Budget) -> None:
        self._inner = _zstd()
        self._budget = budget
        self._frames = 1

    def feed(self, data: bytes, emit: Callable[[bytes], None]) -> None:
        while data or not (self._inner.needs_input or self._inner.eof):
            self._budget.check()
            if self._inner.eof:
                self._inner = _zstd()
                self._frames += 1
                _check_pieces(self._frames)
            out = self._inner.decompress(data, _STEP)
            data = self._inner.unused_data if self._inner.eof else b""
            emit(out)

    def finish(self) -> bool:
        return self._inner.eof


def _zstd() -> ZstdDecompressor:
    return ZstdDecompressor(
        options={DecompressionParameter.window_log_max: _Zstd.window.bit_length() - 1}
    )


_DECODERS: dict[str, Callable[[Budget], Decoder]] = {
    "gzip": lambda budget: _Zlib(True, budget),
    "x-gzip": lambda budget: _Zlib(True, budget),
    "deflate": lambda budget: _Zlib(False, budget),
    "br": _Brotli,
    "zstd": _Zstd,
}


def _check_pieces(count: int) -> None:
    if count > MAX_PIECES:
        raise FetchError("too_large", f"the page is compressed in more than {MAX_PIECES:,} pieces")


_NO_CODINGS = frozenset({"", "identity", "none", "binary", "7bit", "8bit"})
"""What servers name although it is no coding."""
_BINARY = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
"""Bytes that no text has: a body in an unknown coding that begins without any is just text with a
wrong label."""


class _Full(Exception):
    """A body that may be cut has come to its limit."""


class Body:
    """A body as it arrives: `raw` as received, `decoded` without its content codings, both at most
    `limit` bytes; what is larger is an error, or is `cut` there."""

    def __init__(
        self, content_encoding: str, limit: int, *, cut: bool = False, budget: Budget | None = None
    ) -> None:
        self._budget = budget or Budget()
        names = (
            [name.strip(wire.BLANKS).lower() for name in content_encoding.split(",")]
            if content_encoding
            else []
        )
        names = [name for name in names if name not in _NO_CODINGS] if names else names
        self._unknown = content_encoding if not _DECODERS.keys() >= set(names) else ""
        if self._unknown:
            names = []  # as in browsers: where one layer is unknown, none is undone
        if len(names) > MAX_LAYERS:
            raise FetchError(
                "unknown_encoding",
                f"{len(names)} layers of Content-Encoding are more than {MAX_LAYERS}",
            )
        self._layers = [_DECODERS[name](self._budget) for name in reversed(names)] if names else []
        self._passed = [0] * (len(names) + 1)
        """The bytes that each layer got, and those that came out."""
        self._windows = 0
        self._limit = limit
        self.cut = cut
        self.full = False
        """Whether no more is wanted."""
        self._pieces: list[bytes] = []
        self.size = 0
        """The bytes that came."""
        self._decoded = bytearray()

    @property
    def is_coded(self) -> bool:
        """Whether there is a content coding to be undone."""
        return bool(self._layers)

    def feed(self, data: bytes) -> None:
        """Take what the server sent."""
        try:
            self._pieces.append(data)
            self.size += len(data)
            self._check(self.size, "as sent")
            self._budget.hold(len(data))
            if self._layers and data:
                self._pass(data, 0)
        except _Full:
            self.full = True
            del self._decoded[self._limit :]
        except (zlib.error, brotli.error, ZstdError, EOFError) as error:
            if "not enough memory" in str(error):  # zstd says so in words
                raise OwnShortage(f"there is no memory left to decode a page ({error})") from None
            coding = type(self._layers[0]).__name__.strip("_").lower()
            raise FetchError(
                "bad_encoding", f"the body is not what its {coding} coding says ({error})"
            ) from None

    def _pass(self, data: bytes, depth: int) -> None:
        if depth:
            self._hold_window(len(data), depth)
        self._passed[depth] += len(data)  # a layer may swallow for ever and put out nothing
        if depth == len(self._layers):
            self._decoded += data
            self._check(len(self._decoded), "decompressed")
            self._budget.hold(len(data))
            return
        self._check(self._passed[depth], "decompressed")
        self._layers[depth].feed(data, lambda out: self._pass(out, depth + 1))

    def _hold_window(self, count: int, depth: int) -> None:
        """Count what the layer before keeps of what it has put out."""
        more = min(count, self._layers[depth - 1].window - self._passed[depth])
        if more > 0:
            self._budget.hold(more)
            self._windows += more

    def _check(self, size: int, what: str) -> None:
        if size > self._limit and self.cut:
            raise _Full
        if size > self._limit:
            raise FetchError("too_large", f"the page is larger than {self._limit:,} bytes {what}")

    def finish(self) -> tuple[bytes, bytes]:
        """The body as received and as decoded; one whose coding breaks off is truncated."""
        raw = b"".join(self._pieces)
        raw = raw[: self._limit] if self.full else raw
        if self._unknown and _BINARY.search(raw, 0, 1024):
            raise FetchError(
                "unknown_encoding", f"cannot read Content-Encoding: {self._unknown[:100]!r}"
            )
        if not self._layers or not raw:
            return raw, raw
        if not self.full and not all(layer.finish() for layer in self._layers):
            raise FetchError("truncated", "the compressed body ends before its end")
        self._layers.clear()
        self._budget.release(self._windows)
        return raw, bytes(self._decoded)


def decoded(head: str, raw: bytes, limit: int) -> bytes:
    """A stored body without the content codings that its header block names; raises `FetchError`
    where it cannot be."""
    body = Body(",".join(wire.stored_values(head, "content-encoding")), limit)
    body.feed(raw)
    return body.finish()[1]
