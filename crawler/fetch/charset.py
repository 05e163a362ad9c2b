"""Bytes to text: by the site's file, byte order mark, header, meta unless the bytes refute it, then
detection."""

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
MIN_EVIDENCE = 16
"""Bytes beyond ASCII from which on a page can belie that it is UTF-8; a guess from fewer is worse
than a U+FFFD."""
FALLBACK = "windows-1252"
MAX_UTF8 = 15_000_000
"""Bytes of a page in UTF-8, where it came in another charset."""
PIECE = 1 << 18

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16le"),
    (codecs.BOM_UTF16_BE, "utf-16be"),
)

# The charsets of the WHATWG standard, by name, with Python's codec for each. Python knows more
# (`base64`, `punycode`, `unicode_escape`); a page that declares one of those would raise or be
# rewritten, so they count as unknown.
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
_NAMES = {codec: name for name, codec in _CODECS.items()} | {
    "utf-16": "utf-16le",
    "utf-8-sig": "utf-8",
}
_TWO_BYTES = frozenset({"gb18030", "big5", "euc-jp", "iso-2022-jp", "shift_jis", "euc-kr"})
_ASCII = bytes(range(0x80))
_UP_TO_TWO = bytes(range(0xE0))
"""What is left of UTF-8 without these begins a sequence of three or four bytes."""
NAMES = tuple(_CODECS)
"""Every charset by its name."""


def named(label: str) -> str:
    """The charset that a label means to browsers, or nothing where it means none."""
    return _NAMES.get(resolve_encoding(label) or "", "")


def load() -> None:
    """Import the codec of every charset, before memory or descriptors run short.

    One that cannot be imported then is unknown to Python until the process ends.
    """
    for codec in _CODECS.values():
        codecs.lookup(codec)


def decode(body: bytes, content_type: str, encoding: str | None = None) -> tuple[str, str]:
    """The text of a body and the charset it was read in; bytes that do not fit become U+FFFD,
    nothing raises.

    `encoding` is the charset's name where a site's file says it.
    """
    name, mark, _ = _charset(body, content_type, encoding)
    return _read(body[mark:], name), name


def utf8(
    body: bytes, content_type: str, budget: Budget | None = None, encoding: str | None = None
) -> bytes:
    """The text of a body in UTF-8: the body itself where it is that already; it needs little memory
    beside that.

    Raises `FetchError` where every byte becomes two or three, and they too many.
    """
    name, mark, is_valid = _charset(body, content_type, encoding, budget)
    body = body[mark:] if mark else body
    if name == "utf-8" and (is_valid or _is_utf8(body, budget)):
        return body
    pieces, size = [], 0
    errors = "replace" if name != "gb18030" else "w3lib_gb18030_replace"
    for text in _pieces(body, _CODECS[name], errors, budget):
        pieces.append(text.encode("utf-8", "replace"))
        size += len(pieces[-1])
        if size > MAX_UTF8:
            raise FetchError("too_large", f"the page is larger than {MAX_UTF8:,} bytes in UTF-8")
    return b"".join(pieces)


def _charset(
    body: bytes, content_type: str, encoding: str | None, budget: Budget | None = None
) -> tuple[str, int, bool]:
    """The charset of a body, the bytes of its mark, and whether it is known to be UTF-8
    throughout."""
    for mark, name in _BOMS:
        if body.startswith(mark) and encoding in (None, name):
            return name, len(mark), False
    if name := encoding or _from_header(content_type):
        return name, 0, False
    declared = _from_meta(body)
    if declared not in ("", "utf-8"):
        return ("utf-8" if _refutes(body, declared, budget) else declared), 0, False
    if _is_utf8(body, budget):
        return "utf-8", 0, True
    if _is_cut_utf8(body, budget) or (declared and _is_mostly_utf8(body, budget)):
        return "utf-8", 0, False
    return _detected(body), 0, False


def _pieces(
    body: bytes, codec: str, errors: str, budget: Budget | None, cut: bool = False
) -> Iterator[str]:
    """The text of a body piece by piece; where it is `cut`, without what there is of its last
    character."""
    decoder = codecs.getincrementaldecoder(codec)(errors)
    for begin in range(0, len(body), PIECE):
        if budget:
            budget.look()
        yield decoder.decode(body[begin : begin + PIECE], not cut and begin + PIECE >= len(body))


def _is_utf8(body: bytes, budget: Budget | None) -> bool:
    try:
        if len(body) <= PIECE:
            body.decode()
        else:
            for _ in _pieces(body, "utf-8", "strict", budget):
                pass
    except UnicodeDecodeError:
        return False
    return True


def _is_cut_utf8(body: bytes, budget: Budget | None) -> bool:
    """Whether a body with more than ASCII is UTF-8, whose last character may have been cut
    through."""
    is_ascii = True
    try:
        for text in _pieces(body, "utf-8", "strict", budget, cut=True):
            is_ascii &= text.isascii()
    except UnicodeDecodeError:
        return False
    return not is_ascii


def _is_mostly_utf8(body: bytes, budget: Budget | None) -> bool:
    """Whether a page that declares UTF-8 has some broken characters, and is not in another charset
    altogether."""
    beyond = len(body.translate(None, _ASCII))
    if beyond < MIN_EVIDENCE:
        return True
    good = sum(
        len(text.encode().translate(None, _ASCII))
        for text in _pieces(body, "utf-8", "ignore", budget)
    )
    return 2 * good >= beyond


def _refutes(body: bytes, declared: str, budget: Budget | None) -> bool:
    """Whether the bytes of a page are UTF-8, and not the other charset that it declares: templates
    are often copied.

    A word or two in a charset of two bytes may look like UTF-8 of two, but hardly like UTF-8 of
    three, which all of its own characters have there.
    """
    too_short = _UP_TO_TWO if declared in _TWO_BYTES else _ASCII
    return bool(body.translate(None, too_short)) and _is_cut_utf8(body, budget)


def _from_header(content_type: str) -> str:
    return _NAMES.get(http_content_type_encoding(content_type) or "", "")


def _from_meta(body: bytes) -> str:
    name = _NAMES.get(html_body_declared_encoding(body) or "", "")
    # The declaration was read as ASCII, so whatever it says, the bytes are not UTF-16.
    return "utf-8" if name.startswith("utf-16") else name


def _detected(body: bytes) -> str:
    guess = cchardet.detect(body[:DETECTION_BYTES])
    if not guess["encoding"] or (guess["confidence"] or 0) < MIN_CONFIDENCE:
        return FALLBACK
    return _NAMES.get(resolve_encoding(guess["encoding"]) or "", FALLBACK)


def _read(body: bytes, name: str) -> str:
    if name == "utf-8":
        with suppress(UnicodeDecodeError):
            return body.decode()
    return to_unicode(body, _CODECS[name])
