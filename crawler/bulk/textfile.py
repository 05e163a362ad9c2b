"""Reads the text of a file of any size and encoding as a stream of pieces or lines."""

import codecs
import gzip
import io
import re
import stat
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import cchardet
import msgspec

from crawler.errors import InputError

MAX_LINE = 1 << 20
"""Characters of a line; only the beginning of a longer one is kept, to bound memory."""
EXCERPT = 1 << 12
"""Characters kept of a line that is too long."""

_PIECE = 1 << 18
_SAMPLE = 1 << 20

_SIGNATURES = {
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"%PDF-": "a PDF document",
    b"PK\x03\x04": "a zip archive or an Excel workbook (whose name should end in .xlsx)",
    b"\xd0\xcf\x11\xe0": "an old Excel or Word file (save it as .xlsx or CSV)",
    b"\x1f\x8b": "gzip data (its name should end in .gz, once)",
    b"BZh": "bzip2 data (unpack it first)",
    b"\xfd7zXZ": "xz data (unpack it first)",
    b"\x28\xb5\x2f\xfd": "zstd data (unpack it first)",
    b"SQLite format 3": "an SQLite database",
    b"PAR1": "a Parquet file",
    b"\x7fELF": "a program",
}
_CONTROLS = bytes(code for code in range(32) if code not in b"\t\n\v\f\r\x1b")

_BOMS = {  # the longer first: the BOM of UTF-16 is how that of UTF-32 begins
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_CODE_PAGES = {
    # What the detector says, and how we read it. In short samples, its other guesses (ISO-8859-10,
    # IBM852, …) are nearly always Western text, so they are read as cp1252.
    "WINDOWS-1250": "cp1250",
    "ISO-8859-2": "cp1250",
    "WINDOWS-1251": "cp1251",
    "KOI8-R": "koi8-r",
    "WINDOWS-1253": "cp1253",
    "ISO-8859-7": "cp1253",
    "ISO-8859-9": "cp1254",
    "WINDOWS-1255": "cp1255",
    "WINDOWS-1256": "cp1256",
    "TIS-620": "cp874",
    "SHIFT_JIS": "cp932",
    "EUC-JP": "euc-jp",
    "GB18030": "gb18030",
    "BIG5": "cp950",
    "EUC-KR": "cp949",
    "UHC": "cp949",
}
_WESTERN = "cp1252"
_ESCAPED = re.compile("[\udc80-\udcff]")
_SEAMS = re.compile('([\r\n"]+)')


class Line(msgspec.Struct, frozen=True, gc=False):
    """A line with its end; where `size` is more than `MAX_LINE`, `text` is only its beginning."""

    number: int
    text: str
    size: int


def too_long(size: int) -> str:
    """Why a row that is longer than `MAX_LINE` is rejected."""
    return f"the row has {size:,} characters, more than {MAX_LINE:,}"


def opened(path: Path) -> io.BufferedReader:
    """Open a file for reading; raise `InputError` with one line that says why it cannot be."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            return path.open("rb")
        # Opening a pipe would wait for its other end, perhaps for ever.
        reason = "this is a device, a pipe or a socket, not a file"
        if stat.S_ISDIR(mode):
            reason = "this is a folder, not a file"
    except (FileNotFoundError, NotADirectoryError):
        reason = "there is no such file"
    except PermissionError:
        reason = "there is no permission to read it"
    except (OSError, ValueError) as error:
        reason = f"it cannot be opened: {error}"
    raise InputError(str(path), reason)


def pieces(path: Path, *, packed: bool) -> Iterator[str]:
    """Yield the text of a file in pieces that are cut anywhere; `packed` means gzip data."""
    content = _content(path, packed)
    sample, broken = _sample(content)
    if not sample:
        raise broken or InputError(str(path), "the file is empty")
    encoding = _encoding(sample)
    _refuse_binary(path, sample, encoding)
    texts = _decoded(chain((sample,), content), encoding)
    yield next(texts).lstrip("\ufeff")
    yield from texts
    if broken:
        raise broken


def lines(texts: Iterable[str]) -> Iterator[Line]:
    """Yield lines that end in LF, CRLF or CR; `str.splitlines` would cut at form feeds, too."""
    number, rest, dropped = 0, "", 0
    try:
        for text in texts:
            *whole, rest = _cut(rest + text)
            for line in whole:
                number += 1
                yield Line(number, line, len(line) + dropped)
                dropped = 0
            if len(rest) > MAX_LINE and not rest.endswith("\r"):
                dropped += len(rest) - EXCERPT
                rest = rest[:EXCERPT]
    except InputError as broken:  # `rest` is torn, and no row
        raise InputError(broken.path, broken.reason, number + 1) from None
    if rest:
        yield Line(number + 1, rest, len(rest) + dropped)


def _cut(text: str) -> list[str]:
    """All lines, the last of them without an end (a CR at the very end may be half of a CRLF)."""
    found = io.StringIO(text, newline="").readlines()
    if not found or found[-1].endswith("\n"):
        found.append("")
    return found


def _content(path: Path, packed: bool) -> Iterator[bytes]:
    size = 0
    with opened(path) as file:
        stream = gzip.GzipFile(fileobj=file) if packed else file
        try:
            # Not `read`: it would lose what was unpacked before the damage.
            while piece := stream.read1(_PIECE):
                size += len(piece)
                yield piece
            return
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            problem = f"the gzip data breaks off after {size:,} bytes of content"
            reason = f"{problem}; only the rows before were read ({error})"
            if not size and isinstance(error, gzip.BadGzipFile):
                reason = "this is not gzip data, though its name ends in .gz"
        except OSError as error:
            reason = f"reading failed after {size:,} bytes: {error}"
    raise InputError(str(path), reason)


def _sample(content: Iterator[bytes]) -> tuple[bytes, InputError | None]:
    """Read the first megabyte, and the error that cut it short: its rows are still to be read."""
    sample = bytearray()
    broken = None
    try:
        while len(sample) < _SAMPLE and (piece := next(content, b"")):
            sample += piece
    except InputError as error:
        broken = error
    return bytes(sample), broken


def _refuse_binary(path: Path, sample: bytes, encoding: str) -> None:
    kind = next((kind for start, kind in _SIGNATURES.items() if sample.startswith(start)), None)
    controls = len(sample) - len(sample.translate(None, _CONTROLS))
    # A few may be noise in single rows, and UTF-16 and UTF-32 are full of NULs.
    many = controls > max(8, len(sample) // 20)
    if kind is None and many and not encoding.startswith(("utf-16", "utf-32")):
        kind = "binary data, not text"
    if kind:
        raise InputError(str(path), f"this is {kind}, not what its name says")


def _encoding(sample: bytes) -> str:
    for bom, encoding in _BOMS.items():
        if sample.startswith(bom):
            return encoding
    return _wide(sample) or _narrow(sample)


def _wide(sample: bytes) -> str | None:
    """UTF-16 without a BOM: in text that is mostly ASCII, every other byte is NUL."""
    even, odd = sample[:_PIECE:2].count(0), sample[1:_PIECE:2].count(0)
    enough = min(len(sample), _PIECE) // 4
    if max(even, odd) <= enough or min(even, odd) * 10 > max(even, odd):
        return None
    return "utf-16-le" if odd > even else "utf-16-be"


def _narrow(sample: bytes) -> str:
    """UTF-8 if most of what is not ASCII can be read so, else a code page."""
    text = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode(sample)
    escaped = len(_ESCAPED.findall(text))
    foreign = len(text) - len(text.encode("ascii", "ignore"))
    if escaped == 0 or foreign > 2 * escaped:
        return "utf-8"
    return _CODE_PAGES.get(str(cchardet.detect(sample)["encoding"]).upper(), _WESTERN)


def _decoded(content: Iterable[bytes], encoding: str) -> Iterator[str]:
    errors = "surrogateescape" if encoding.startswith("utf-8") else "replace"
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    for piece in content:
        yield _mended(decoder.decode(piece))
    yield _mended(decoder.decode(b"", final=True))


def _mended(text: str) -> str:
    """Read lines or quoted texts that are not UTF-8 as cp1252."""
    if text.isascii() or not _ESCAPED.search(text):
        return text
    return "".join(_western(part) if _ESCAPED.search(part) else part for part in _SEAMS.split(text))


def _western(part: str) -> str:
    return part.encode("utf-8", "surrogateescape").decode(_WESTERN, "replace")
