"""The types of files by their first bytes, and the size of images by their headers.

Nothing is decoded: a header that lies costs no memory, and the work on any header is bounded.
"""

import re
from collections.abc import Callable, Iterator

MAX_SEGMENTS = 1_000
"""Segments of a JPEG before its size, and boxes of an AVIF or HEIC image."""
MAX_BOX_LEVELS = 4
_SVG = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]{0,200}>\s*)?(?:<!--.{0,500}?-->\s*)?"
    rb"(?:<!doctype svg[^>]{0,500}>\s*)?<svg[\s>]",
    re.IGNORECASE | re.DOTALL,
)
_FILL = re.compile(rb"\xff+")
_NO_SIZE = frozenset({0xC4, 0xC8, 0xCC})
"""Markers between 0xC0 and 0xCF that begin no frame: tables, and one that is reserved."""
_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})
"""Markers of a JPEG that have no length."""
_END_OF_IMAGE, _START_OF_SCAN = 0xD9, 0xDA
_HEIF_BRANDS = {
    b"avif": "image/avif", b"avis": "image/avif", b"heic": "image/heic", b"heix": "image/heic",
    b"hevc": "image/heic", b"mif1": "image/heif", b"msf1": "image/heif",
}  # fmt: skip
_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
    (b"\x00\x00\x01\x00", "image/vnd.microsoft.icon"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "application/x-ole-storage"),
    (b"\x1f\x8b\x08", "application/gzip"),
    (b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
)

Size = tuple[int, int]
"""Width and height."""


def type_of(body: bytes) -> str:
    """Return the media type of a file by its first bytes; empty if they do not tell."""
    for beginning, kind in _BEGINNINGS:
        if body.startswith(beginning):
            return kind
    if body[:4] == b"RIFF" and body[8:12] == b"WEBP":
        return "image/webp"
    if body[:2] == b"BM" and body[6:10] == b"\0\0\0\0":
        return "image/bmp"
    if body[4:8] == b"ftyp":
        return _HEIF_BRANDS.get(body[8:12], "")
    if _SVG.match(body[:2_000]):
        return "image/svg+xml"
    return ""


def size_of(body: bytes, kind: str) -> Size | None:
    """Return width and height of an image; None for types whose size is not read.

    Raises `ValueError` if the header is broken, or says that there is nothing to see.
    """
    read = _READERS.get(kind)
    if read is None:
        return None
    try:
        width, height = read(body)
    except IndexError:
        raise ValueError("its header is cut off") from None
    if not width or not height:
        raise ValueError(f"its header says {width} × {height} pixels")
    return width, height


def is_cut_off(body: bytes, kind: str) -> bool:
    """Return whether the end of an image is missing; False for types that do not show it."""
    match kind:
        case "image/png":
            return b"IEND" not in body[-1_000:]
        case "image/gif":
            return b";" not in body[-1_000:]
        case "image/jpeg":
            # Some programs leave rubbish behind the end.
            end = body.rfind(b"\xff\xd9")
            return end < 0 or end < body.rfind(b"\xff\xda")
        case "image/webp":
            return int.from_bytes(body[4:8], "little") + 8 > len(body)
        case "image/bmp":
            return int.from_bytes(body[2:6], "little") > len(body)
    return False


# Readers of headers. Their indexing raises `IndexError` where a header is cut off.


def _number(body: bytes, at: int, length: int, little: bool = False) -> int:
    if at + length > len(body):
        raise IndexError
    return int.from_bytes(body[at : at + length], "little" if little else "big")


def _png(body: bytes) -> Size:
    if body[12:16] != b"IHDR":
        raise ValueError("it does not begin with its header")
    return _number(body, 16, 4), _number(body, 20, 4)


def _gif(body: bytes) -> Size:
    return _number(body, 6, 2, little=True), _number(body, 8, 2, little=True)


def _bmp(body: bytes) -> Size:
    if _number(body, 14, 4, little=True) == 12:
        return _number(body, 18, 2, little=True), _number(body, 20, 2, little=True)
    height = _number(body, 22, 4, little=True)
    if height >= 1 << 31:  # negative: the rows begin at the top
        height = (1 << 32) - height
    return _number(body, 18, 4, little=True), height


def _webp(body: bytes) -> Size:
    chunk = body[12:16]
    if chunk == b"VP8X":
        return 1 + _number(body, 24, 3, little=True), 1 + _number(body, 27, 3, little=True)
    if chunk == b"VP8L" and body[20:21] == b"\x2f":
        bits = _number(body, 21, 4, little=True)
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if chunk == b"VP8 " and body[23:26] == b"\x9d\x01\x2a":
        mask = 0x3FFF
        return _number(body, 26, 2, little=True) & mask, _number(body, 28, 2, little=True) & mask
    raise ValueError("its first chunk is no image")


def _jpeg(body: bytes) -> Size:
    at = 2
    for _ in range(MAX_SEGMENTS):
        fill = _FILL.match(body, at)
        if fill is None:
            raise ValueError("its header has no marker where one must be")
        at = fill.end()
        marker = body[at]
        at += 1
        if marker in _ALONE:
            continue
        if marker in (_START_OF_SCAN, _END_OF_IMAGE):
            raise ValueError("its header says nothing of its size")
        if 0xC0 <= marker <= 0xCF and marker not in _NO_SIZE:
            return _number(body, at + 5, 2), _number(body, at + 3, 2)
        length = _number(body, at, 2)
        if length < 2:
            raise ValueError("its header has a segment without a length")
        at += length
    raise ValueError(f"its header has more than {MAX_SEGMENTS:,} segments")


def _heif(body: bytes) -> Size:
    """The largest size that an image, its tiles or its thumbnail has."""
    sizes = [
        (_number(body, begin + 4, 4), _number(body, begin + 8, 4)) for begin in _boxes_of_size(body)
    ]
    if not sizes:
        raise ValueError("its header says nothing of its size")
    return max(sizes, key=lambda size: size[0] * size[1])


def _boxes_of_size(body: bytes) -> Iterator[int]:
    """Yield where the contents of each `ispe` box begin."""
    parts = [(0, len(body), 0)]
    left = MAX_SEGMENTS
    while parts:
        at, end, level = parts.pop()
        while at + 8 <= end:
            left -= 1
            if not left:
                raise ValueError(f"its header has more than {MAX_SEGMENTS:,} boxes")
            length, name, begin = _number(body, at, 4), body[at + 4 : at + 8], at + 8
            if length == 1:
                length, begin = _number(body, at + 8, 8), at + 16
            elif length == 0:  # up to the end
                length = end - at
            if length < begin - at:
                raise ValueError("its header has a box without a length")
            if name == b"ispe":
                yield begin
            elif name in (b"meta", b"iprp", b"ipco") and level < MAX_BOX_LEVELS:
                inner = begin + 4 * (name == b"meta")
                parts.append((inner, min(at + length, end), level + 1))
            at += length


_READERS: dict[str, Callable[[bytes], Size]] = {
    "image/png": _png,
    "image/jpeg": _jpeg,
    "image/gif": _gif,
    "image/webp": _webp,
    "image/bmp": _bmp,
    "image/avif": _heif,
    "image/heic": _heif,
    "image/heif": _heif,
}
MEASURED = frozenset(_READERS)
"""Types of images whose size is read."""
