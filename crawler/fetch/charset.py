"""Bytes to text: by the site's file, byte order mark, header, meta (unless the bytes refute it),
then detection."""

import codecs
from collections.abc import Iterator
from contextlib import suppress

import cchardet
from w3lib.encoding import (
    html_body_declared_encoding,
    http_content_type_encoding,
    resolve_encoding,
    to_unicode,
)

from crawler.errors import FetchError
from crawler.fetch.budget import Budget

DETECTION_BYTES = 65_536
MIN_CONFIDENCE = 0.5
MIN_EVIDENCE = 16  # non-ASCII bytes below which a page that declares UTF-8 is not doubted
FALLBACK = "windows-1252"
MAX_UTF8 = 15_000_000  # bytes of a page after conversion to UTF-8
CHUNK = 1 << 18  # bytes decoded at a time

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16le"),
    (codecs.BOM_UTF16_BE, "utf-16be"),
)
_TWO_BYTES = {
    "gb18030": "gb18030",
    "big5": "big5hkscs",
    "euc-jp": "euc_jp",
    "iso-2022-jp": "iso2022_jp",
    "shift_jis": "cp932",
    "euc-kr": "cp949",
}
# The charsets of the WHATWG standard with Python's codec for each. Python knows more (`base64`,
# `punycode`, `unicode_escape`): a page that declares one of those would raise or be rewritten.
_CODECS = {
    "utf-8": "utf-8",
    "utf-16le": "utf-16-le",
    "utf-16be": "utf-16-be",
    **_TWO_BYTES,
    "ibm866": "cp866",
    "koi8-r": "koi8-r",
    "koi8-u": "koi8-u",
    "macintosh": "mac-roman",
    "x-mac-cyrillic": "mac-cyrillic",
    "windows-874": "cp874",
    **{f"windows-{number}": f"cp{number}" for number in range(1250, 1259)},
    **{f"iso-8859-{part}": f"iso8859-{part}" for part in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)},
}
_NAMES = {codec: name for name, codec in _CODECS.items()}
_NAMES |= {"utf-16": "utf-16le", "utf-8-sig": "utf-8"}
_ASCII = bytes(range(0x80))
_UP_TO_TWO = bytes(range(0xE0))  # all bytes of UTF-8 except the first of three or four
NAMES = tuple(_CODECS)


def resolve_label(label: str) -> str:
    """Return the charset that a label means to browsers, or an empty string."""
    return _NAMES.get(resolve_encoding(label) or "", "")


def codec(name: str) -> str:
    """Return Python's codec for a charset."""
    return _CODECS[name]


def of(body: bytes, content_type: str, budget: Budget, encoding: str | None = None) -> str:
    """Return the charset of a body."""
    return _charset(body, content_type, encoding, budget)[0]


def load() -> None:
    """Import all codecs before memory or descriptors run short.

    A codec whose import fails stays unknown to Python until the process ends.
    """
    for codec in _CODECS.values():
        codecs.lookup(codec)


def decode(body: bytes, content_type: str, encoding: str | None = None) -> tuple[str, str]:
    """Return the text of a body and its charset; invalid bytes become U+FFFD, nothing raises.

    `encoding` is the charset that a site's file names.
    """
    name, bom, _ = _charset(body, content_type, encoding, Budget())
    body = body[bom:]
    if name == "utf-8":
        with suppress(UnicodeDecodeError):
            return body.decode(), name
    return to_unicode(body, _CODECS[name]), name


def utf8(
    body: bytes, content_type: str, budget: Budget | None = None, encoding: str | None = None
) -> bytes:
    """Return the text of a body in UTF-8, without a copy if it is UTF-8 already.

    Raises `FetchError` if conversion makes it too large.
    """
    budget = budget or Budget()
    name, bom, is_valid = _charset(body, content_type, encoding, budget)
    if bom:
        body = body[bom:]
    if name == "utf-8" and (is_valid or _is_utf8(body, budget)):
        return body
    errors = "w3lib_gb18030_replace" if name == "gb18030" else "replace"
    converted, size = [], 0
    for text in _decoded(body, _CODECS[name], errors, budget):
        converted.append(text.encode("utf-8", "replace"))
        size += len(converted[-1])
        if size > MAX_UTF8:
            raise FetchError("too_large", f"the page is larger than {MAX_UTF8:,} bytes in UTF-8")
    return b"".join(converted)


def _charset(
    body: bytes, content_type: str, encoding: str | None, budget: Budget
) -> tuple[str, int, bool]:
    """Return the charset, the length of the byte order mark, and whether all is valid UTF-8."""
    for bom, name in _BOMS:
        if body.startswith(bom) and encoding in (None, name):
            return name, len(bom), False
    if name := encoding or _NAMES.get(http_content_type_encoding(content_type) or "", ""):
        return name, 0, False
    declared = _NAMES.get(html_body_declared_encoding(body) or "", "")
    if declared.startswith("utf-16"):
        declared = "utf-8"  # the declaration was read as ASCII, so the bytes are not UTF-16
    if declared not in ("", "utf-8"):
        name = "utf-8" if _refutes(body, declared, budget) else declared
        return name, 0, False
    if _is_utf8(body, budget):
        return "utf-8", 0, True
    if _is_cut_utf8(body, budget) or (declared and _is_mostly_utf8(body, budget)):
        return "utf-8", 0, False
    return _detected(body), 0, False


def _decoded(
    body: bytes, codec: str, errors: str, budget: Budget, *, cut: bool = False
) -> Iterator[str]:
    """Decode a body in chunks; if it is `cut`, without an incomplete character at its end."""
    decoder = codecs.getincrementaldecoder(codec)(errors)
    for begin in range(0, len(body), CHUNK):
        budget.look()
        is_last = begin + CHUNK >= len(body)
        yield decoder.decode(body[begin : begin + CHUNK], is_last and not cut)


def _is_utf8(body: bytes, budget: Budget) -> bool:
    try:
        if len(body) <= CHUNK:
            body.decode()
            return True
        for _ in _decoded(body, "utf-8", "strict", budget):
            pass
    except UnicodeDecodeError:
        return False
    return True


def _is_cut_utf8(body: bytes, budget: Budget) -> bool:
    """Whether a body has non-ASCII characters and is UTF-8, possibly cut within the last one."""
    is_ascii = True
    try:
        for text in _decoded(body, "utf-8", "strict", budget, cut=True):
            is_ascii &= text.isascii()
    except UnicodeDecodeError:
        return False
    return not is_ascii


def _is_mostly_utf8(body: bytes, budget: Budget) -> bool:
    """Whether a page that declares UTF-8 is UTF-8 with broken characters, not another charset."""
    total = len(body.translate(None, _ASCII))
    if total < MIN_EVIDENCE:
        return True
    valid = 0
    for text in _decoded(body, "utf-8", "ignore", budget):
        valid += len(text.encode().translate(None, _ASCII))
    return 2 * valid >= total


def _refutes(body: bytes, declared: str, budget: Budget) -> bool:
    """Whether the bytes are UTF-8 and not the charset that the page declares (a copied template).

    A few words in a two-byte charset may look like UTF-8 of two bytes, but hardly of three, which
    is what such characters have in UTF-8.
    """
    weak = _UP_TO_TWO if declared in _TWO_BYTES else _ASCII
    return bool(body.translate(None, weak)) and _is_cut_utf8(body, budget)


def _detected(body: bytes) -> str:
    guess = cchardet.detect(body[:DETECTION_BYTES])
    if not guess["encoding"] or (guess["confidence"] or 0) < MIN_CONFIDENCE:
        return FALLBACK
    return _NAMES.get(resolve_encoding(guess["encoding"]) or "", FALLBACK)
