"""Bytes to text as a browser would read them: byte order mark, header, meta, then detection."""

import codecs
from collections.abc import Iterator
from contextlib import suppress

import cchardet
from w3lib.encoding import html_body_declared_encoding, http_content_type_encoding, resolve_encoding, to_unicode

from crawler.errors import FetchError
from crawler.fetch.budget import Budget

DETECTION_BYTES = 65_536
MIN_CONFIDENCE = 0.5
FALLBACK = "windows-1252"
MAX_UTF8 = 15_000_000
"""Bytes of a page in UTF-8, where it came in another charset."""
PIECE = 1 << 18

_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16le"), (codecs.BOM_UTF16_BE, "utf-16be"))

# The charsets of the WHATWG standard, by name, with Python's codec for each. Python knows more (`base64`, `punycode`,
# `unicode_escape`); a page that declares one of those would raise or be rewritten, so they count as unknown.
_CODECS = {
    "utf-8": "utf-8",
    "utf-16le": "utf-16-le",
    "utf-16be": "utf-16-be",
    "gb18030": "gb18030",
    "big5": "big5hkscs",
    "euc-jp": "euc_jp",
    "iso-2022-jp": "iso2022_jp",
    "shift_jis": "cp932",
    "euc-kr": "cp949",
    "ibm866": "cp866",
    "koi8-r": "koi8-r",
    "koi8-u": "koi8-u",
    "macintosh": "mac-roman",
    "x-mac-cyrillic": "mac-cyrillic",
    "windows-874": "cp874",
    **{f"windows-{number}": f"cp{number}" for number in range(1250, 1259)},
    **{f"iso-8859-{part}": f"iso8859-{part}" for part in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)},
}
_NAMES = {codec: name for name, codec in _CODECS.items()} | {"utf-16": "utf-16le", "utf-8-sig": "utf-8"}


def load() -> None:
    """Import the codec of every charset, before memory or descriptors run short.

    One that cannot be imported then is unknown to Python until the process ends.
    """
    for codec in _CODECS.values():
        codecs.lookup(codec)


def decode(body: bytes, content_type: str) -> tuple[str, str]:
    """The text of a body and the charset it was read in; bytes that do not fit become U+FFFD, nothing raises."""
    name, mark = _charset(body, content_type)
    return _read(body[mark:], name), name


def utf8(body: bytes, content_type: str, budget: Budget | None = None) -> bytes:
    """The text of a body in UTF-8: the body itself where it is that already; it needs little memory beside that.

    Raises `FetchError` where every byte becomes two or three, and they too many.
    """
    name, mark = _charset(body, content_type)
    body = body[mark:] if mark else body
    if name == "utf-8" and _is_utf8(body):
        return body
    pieces, size = [], 0
    for text in _pieces(body, _CODECS[name], "replace" if name != "gb18030" else "w3lib_gb18030_replace"):
        if budget:
            budget.look()
        pieces.append(text.encode("utf-8", "replace"))
        size += len(pieces[-1])
        if size > MAX_UTF8:
            raise FetchError("too_large", f"the page is larger than {MAX_UTF8:,} bytes in UTF-8")
    return b"".join(pieces)


def _charset(body: bytes, content_type: str) -> tuple[str, int]:
    """The charset of a body, and the bytes of its mark."""
    for mark, name in _BOMS:
        if body.startswith(mark):
            return name, len(mark)
    return _from_header(content_type) or _from_meta(body) or _detected(body), 0


def _pieces(body: bytes, codec: str, errors: str) -> Iterator[str]:
    """The text of a body piece by piece."""
    decoder = codecs.getincrementaldecoder(codec)(errors)
    for begin in range(0, len(body), PIECE):
        yield decoder.decode(body[begin : begin + PIECE], begin + PIECE >= len(body))


def _is_utf8(body: bytes) -> bool:
    try:
        if len(body) <= PIECE:
            body.decode()
        else:
            for _ in _pieces(body, "utf-8", "strict"):
                pass
    except UnicodeDecodeError:
        return False
    return True


def _from_header(content_type: str) -> str:
    return _NAMES.get(http_content_type_encoding(content_type) or "", "")


def _from_meta(body: bytes) -> str:
    name = _NAMES.get(html_body_declared_encoding(body) or "", "")
    # The declaration was read as ASCII, so whatever it says, the bytes are not UTF-16.
    return "utf-8" if name.startswith("utf-16") else name


def _detected(body: bytes) -> str:
    if _is_utf8(body):
        return "utf-8"
    guess = cchardet.detect(body[:DETECTION_BYTES])
    if not guess["encoding"] or (guess["confidence"] or 0) < MIN_CONFIDENCE:
        return FALLBACK
    return _NAMES.get(resolve_encoding(guess["encoding"]) or "", FALLBACK)


def _read(body: bytes, name: str) -> str:
    if name == "utf-8":
        with suppress(UnicodeDecodeError):
            return body.decode()
    return to_unicode(body, _CODECS[name])
