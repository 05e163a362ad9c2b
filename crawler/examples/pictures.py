"""Small real images, made by hand: a mosaic of grey squares as JPEG or PNG."""

import struct
import zlib
from collections.abc import Sequence

BLOCK = 8
"""Width and height of a square."""
_CATEGORY_CODES = ("00", "010", "011", "100", "101", "110", "1110", "11110", "111110", "1111110")
"""Codes of the standard's table for the bits of a difference."""
_DC_TABLE = bytes((0x00, 0, 1, 5, 1, 1, 1, 1, *[0] * 9, *range(10)))
_AC_TABLE = bytes((0x10, 1, *[0] * 15, 0))
"""One code only, 0: nothing follows in this block."""


def jpeg(rows: Sequence[Sequence[int]]) -> bytes:
    """Return a baseline JPEG with one square for each tone (0 to 255)."""
    size = struct.pack(">BHHB", 8, BLOCK * len(rows), BLOCK * len(rows[0]), 1)
    parts = (
        b"\xff\xd8",
        _segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0"),
        _segment(0xDB, bytes([0] + 64 * [8])),
        _segment(0xC0, size + b"\1\x11\0"),
        _segment(0xC4, _DC_TABLE + _AC_TABLE),
        _segment(0xDA, b"\1\1\0\0\x3f\0"),
        _scan([tone - 128 for row in rows for tone in row]),
        b"\xff\xd9",
    )
    return b"".join(parts)


def png(rows: Sequence[Sequence[int]]) -> bytes:
    """Return a grey PNG with one square for each tone."""
    size = struct.pack(">IIBBBBB", BLOCK * len(rows[0]), BLOCK * len(rows), 8, 0, 0, 0, 0)
    lines = [b"\0" + b"".join(bytes([tone]) * BLOCK for tone in row) for row in rows]
    pixels = zlib.compress(b"".join(line * BLOCK for line in lines))
    chunks = _chunk(b"IHDR", size), _chunk(b"IDAT", pixels), _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def _scan(levels: Sequence[int]) -> bytes:
    """Code the mean of each square as its difference from the one before."""
    bits, before = "", 0
    for level in levels:
        difference, before = level - before, level
        length = abs(difference).bit_length()
        value = difference if difference > 0 else difference + (1 << length) - 1
        bits += _CATEGORY_CODES[length] + (f"{value:0{length}b}" if length else "") + "0"
    bits += "1" * (-len(bits) % 8)
    data = int(bits, 2).to_bytes(len(bits) // 8)
    return data.replace(b"\xff", b"\xff\0")


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)
