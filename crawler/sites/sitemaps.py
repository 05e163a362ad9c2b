"""Sitemaps: the URLs that a site names, and when their pages last changed.

No XML parser reads them: many are not well-formed, and none may be a bomb. A scan for the few tags
that count takes no entities, no DTD and no depth, and one pass.
"""

import codecs
import re
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import mktime_tz, parsedate_tz
from typing import Literal, NamedTuple

from crawler.errors import FetchError
from crawler.fetch import charset
from crawler.fetch.budget import Budget
from crawler.sites.structured import absolute

MAX_BYTES = 50_000_000  # after decompression, as the protocol says
MAX_URLS = 50_000  # …
MAX_LAYERS, MAX_MEMBERS = 3, 1_000  # gzip within gzip, and members of one
_STEP = 1 << 18  # bytes gone through between two looks at the clock
_MAX_TAG, _MAX_VALUE = 10_000, 20_000  # bytes of a tag with its attributes, and of a text
_URLS_PER_HOLD, _BYTES_PER_URL = 1_000, 250
_MAX_OTHER_LINES = 100  # lines without a URL before the first one of a text file
_GZIP = b"\x1f\x8b"
_MARKUP = re.compile(rb"\s*+<")
_PROLOG = re.compile(rb"\s*+<(?:\?[^>]{0,1000}\?>|!doctype\s[^\[>]{0,1000}>|(!--))", re.IGNORECASE)
"""What may come before the first element, or the beginning of a comment there."""
_FIRST = re.compile(
    rb"\s*+<((?:([A-Za-z_][\w.-]{0,50}):)?([A-Za-z_][\w.-]{0,50}))(?=[\s/>])", re.IGNORECASE
)
_DECLARED = re.compile(rb"<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([\w.:-]{1,40})", re.IGNORECASE)
_TAG = rb"<(?:(!--)|(!\[CDATA\[)|(/?)%s(%s)(?=[\s/>]))"
_TAG_SIZE = 120  # more than any match of it takes
_ATTRIBUTE = re.compile(rb"""([\w:.-]{1,50})\s*=\s*(?:"([^"]*+)"|'([^']*+)')""")
_REFERENCE = re.compile(r"&(amp|lt|gt|quot|apos|#\d{1,7}|#x[0-9a-fA-F]{1,6});")
_NAMED = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_W3C = re.compile(
    r"""(\d{4})(?:-(\d\d)(?:-(\d\d)
        (?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.\d{1,9})?)?\s?(Z|[+-]\d\d:?\d\d)?)?)?)?""",
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
_MAX_DATE = 60

Modified = float | None
"""When a page last changed, in POSIX seconds."""


class Sitemap(NamedTuple):
    """What a sitemap names: pages, or other sitemaps. `truncated` says that it names more."""

    kind: Literal["urlset", "index", "feed", "text"]
    urls: list[tuple[str, Modified]]
    truncated: bool


class _Form(NamedTuple):
    """The names of tags in one kind of file."""

    kind: Literal["urlset", "index", "feed"]
    entry: bytes
    url: bytes
    dates: tuple[bytes, ...]
    href: bool = False  # whether the URL is an attribute


_ATOM = _Form("feed", b"entry", b"link", (b"updated", b"published"), href=True)
_RSS = _Form("feed", b"item", b"link", (b"pubdate",))
_FORMS = {
    b"urlset": _Form("urlset", b"url", b"loc", (b"lastmod",)),
    b"sitemapindex": _Form("index", b"sitemap", b"loc", (b"lastmod",)),
    b"rss": _RSS,
    b"rdf": _RSS,
    b"feed": _ATOM,
}


def read(body: bytes, url: str, budget: Budget) -> Sitemap:
    """Return what the sitemap at a URL names; raises `FetchError` for what is none."""
    before = budget.held
    try:
        body, is_cut = _decompressed(body, budget)
        body, decode = _in_utf8(body, budget)
        if _MARKUP.match(body):
            found, is_whole = _read_xml(body, url, decode, budget)
        else:
            found, is_whole = _read_text(body, url, budget), True
        return found._replace(truncated=found.truncated or is_cut or not is_whole)
    finally:
        budget.release(budget.held - before)


def _bad(reason: str) -> FetchError:
    return FetchError("bad_sitemap", f"this is no sitemap: {reason}")


# Bytes.


def _decompressed(body: bytes, budget: Budget) -> tuple[bytes, bool]:
    """Undo gzip, also several times; say whether something is missing at the end."""
    is_cut = False
    for _ in range(MAX_LAYERS):
        if not body.startswith(_GZIP):
            break
        body, was_cut = _gunzipped(body, budget)
        is_cut = is_cut or was_cut
    if body.startswith(_GZIP):
        raise _bad(f"it is compressed more than {MAX_LAYERS} times")
    if len(body) > MAX_BYTES:
        return body[:MAX_BYTES], True
    return body, is_cut


def _gunzipped(data: bytes, budget: Budget) -> tuple[bytes, bool]:
    out = bytearray()
    members = 0
    while data.startswith(_GZIP):  # else it is padding
        members += 1
        decoder = zlib.decompressobj(31)
        while data and not decoder.eof:
            try:
                piece = decoder.decompress(data, _STEP)
            except zlib.error as error:
                if not out:
                    raise _bad(f"its gzip is broken ({error})") from None
                return bytes(out), True
            budget.look()
            budget.hold(len(piece))
            out += piece
            data = decoder.unconsumed_tail
            if len(out) > MAX_BYTES or members > MAX_MEMBERS:
                return bytes(out[:MAX_BYTES]), True
        if not decoder.eof:
            return bytes(out), True
        data = decoder.unused_data
    return bytes(out), False


def _in_utf8(body: bytes, budget: Budget) -> tuple[bytes, Callable[[bytes], str]]:
    """Return bytes in which tags can be found, and how to read a piece of them."""
    if body.startswith(codecs.BOM_UTF8):
        return body[3:], _as_utf8
    wide = ""
    if body.startswith((codecs.BOM_UTF16_LE, b"<\x00")):
        wide = "utf-16-le"
    elif body.startswith((codecs.BOM_UTF16_BE, b"\x00<")):
        wide = "utf-16-be"
    if wide:
        converted = bytearray()
        decoder = codecs.getincrementaldecoder(wide)("replace")
        for place in range(0, len(body), _STEP):
            budget.look()
            converted += decoder.decode(body[place : place + _STEP]).encode("utf-8", "replace")
        budget.hold(len(converted))
        return bytes(converted).removeprefix(codecs.BOM_UTF8), _as_utf8
    declared = _DECLARED.search(body, 0, 500)
    name = charset.resolve_label(declared[1].decode()) if declared else ""
    if name in ("", "utf-8", "utf-16le", "utf-16be"):
        return body, _as_utf8
    return body, lambda piece: charset.decode(piece, "", name)[0]


def _as_utf8(piece: bytes) -> str:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return piece.decode("windows-1252", "replace")


# XML.


def _read_xml(
    body: bytes, base: str, decode: Callable[[bytes], str], budget: Budget
) -> tuple[Sitemap, bool]:
    """Return what the tags name, and whether the file goes to its end."""
    first = _FIRST.match(body, _behind_prolog(body, budget))
    if not first:
        raise _bad("its first element cannot be found")
    whole, prefix, name = first[1], first[2] or b"", first[3]
    form = _FORMS.get(name.lower())
    if form is None:
        raise _bad(f"its first element is {name.decode()[:50]}")
    if name.lower() == b"rdf":
        prefix = b""  # of RSS 1.0, whose items have none
    entries = _Entries(form, base, decode, budget)
    for is_end, tag, place in _tags(body, first.end(), prefix, form, budget):
        entries.take(body, is_end, tag, place)
        if len(entries.urls) > MAX_URLS:
            break
    entries.end()
    if len(entries.urls) > MAX_URLS:
        return Sitemap(form.kind, entries.urls[:MAX_URLS], True), True
    is_whole = body.rfind(b"</" + whole) >= 0 or not entries.urls
    return Sitemap(form.kind, entries.urls, False), is_whole


def _behind_prolog(body: bytes, budget: Budget) -> int:
    """Return the place behind declarations and comments."""
    place = 0
    while match := _PROLOG.match(body, place):
        budget.check()
        place = match.end()
        if match[1]:
            place = body.find(b"-->", place) + 3
            if place < 3:
                raise _bad("it is a comment without an end")
    return place


def _tags(
    body: bytes, place: int, prefix: bytes, form: _Form, budget: Budget
) -> Iterator[tuple[bool, bytes, int]]:
    """Yield tags: whether it is an end tag, its name in lower case, and the place behind that.

    Only those with the prefix of the first element: `image:loc` names no page.
    """
    names = b"|".join([form.entry, form.url, *form.dates])
    before = re.escape(prefix) + b":" if prefix else b""
    find = re.compile(_TAG % (before, names), re.IGNORECASE).search
    size = len(body)
    while place < size:
        match = find(body, place, place + _STEP + _TAG_SIZE)
        if not match:
            budget.look()
            place += _STEP
            continue
        budget.check(match.end() - place)
        place = match.end()
        if match[1] or match[2]:  # a comment, or text that may look like tags
            place = body.find(b"-->" if match[1] else b"]]>", place)
            if place < 0:
                return
            continue
        yield bool(match[3]), match[4].lower(), place


class _Entries:
    """Collects the URLs and dates of entries as their tags come."""

    def __init__(
        self, form: _Form, base: str, decode: Callable[[bytes], str], budget: Budget
    ) -> None:
        self._form, self._base, self._decode, self._budget = form, base, decode, budget
        self.urls: list[tuple[str, Modified]] = []
        self._url = ""
        self._modified: Modified = None
        self._is_open = form.kind != "feed"  # the link of a feed itself is no entry

    def take(self, body: bytes, is_end: bool, tag: bytes, place: int) -> None:
        """Use a tag, whose name ends at a place."""
        form = self._form
        if tag == form.entry:
            self.end()
            self._is_open = not is_end or form.kind != "feed"
        elif is_end or not self._is_open:
            pass
        elif tag == form.url:
            found = self._href(body, place) if form.href else self._text(body, place)
            url = absolute(self._base, found.strip())
            if url and not self._url:
                self._url = url
            elif url and form.kind != "feed":
                self.end()  # the tag of the next entry is missing
                self._url = url
        elif self._modified is None or tag == form.dates[0]:
            self._modified = posix_seconds(self._text(body, place).strip())

    def end(self) -> None:
        """Close an entry."""
        if self._url:
            self.urls.append((self._url, self._modified))
            if len(self.urls) % _URLS_PER_HOLD == 0:
                self._budget.hold(_URLS_PER_HOLD * _BYTES_PER_URL)
        self._url, self._modified = "", None

    def _text(self, body: bytes, place: int) -> str:
        """Return the text of the element whose name ends at a place."""
        place = body.find(b">", place, place + _MAX_TAG) + 1
        if not place or body[place - 2 : place - 1] == b"/":
            return ""
        end = body.find(b"<", place, place + _MAX_VALUE)
        if body.startswith(b"<![CDATA[", end) and not body[place:end].strip():
            place = end + 9
            end = body.find(b"]]>", place, place + _MAX_VALUE)
            return "" if end < 0 else self._decode(body[place:end])
        return "" if end < 0 else _unescaped(self._decode(body[place:end]))

    def _href(self, body: bytes, place: int) -> str:
        """Return where an Atom link leads, if it is that of the entry itself."""
        end = body.find(b">", place, place + _MAX_TAG)
        if end < 0:
            return ""
        values = {
            match[1].lower(): match[2] or match[3] or b""
            for match in _ATTRIBUTE.finditer(body, place, end)
        }
        if values.get(b"rel", b"alternate").lower() != b"alternate":
            return ""
        return _unescaped(self._decode(values.get(b"href", b"")))


def _unescaped(text: str) -> str:
    """Undo the references that XML has by itself; a bare `&` of a URL stays."""
    if "&" not in text:
        return text

    def character(match: re.Match[str]) -> str:
        name = match[1]
        if name[0] != "#":
            return _NAMED[name]
        number = int(name[2:], 16) if name[1] == "x" else int(name[1:])
        return chr(number) if 0 < number < 0x110000 else ""

    return _REFERENCE.sub(character, text)


# Text.


def _read_text(body: bytes, base: str, budget: Budget) -> Sitemap:
    urls: list[tuple[str, Modified]] = []
    separator = b"\n" if b"\n" in body else b"\r"
    others = place = 0
    while place < len(body):
        end = body.find(separator, place)
        end = len(body) if end < 0 else end
        budget.check(end - place)
        line = body[place : min(end, place + _MAX_VALUE)].strip()
        place = end + 1
        if not line:
            continue
        url = ""
        if line[:8].lower().startswith((b"http://", b"https://")):
            url = absolute(base, _as_utf8(line))
        if url:
            if len(urls) == MAX_URLS:
                return Sitemap("text", urls, True)
            urls.append((url, None))
        elif not urls:
            others += 1
            if others > _MAX_OTHER_LINES:
                break
    if not urls:
        raise _bad("it has neither elements nor lines with URLs")
    return Sitemap("text", urls, False)


# Dates.


def posix_seconds(text: str) -> Modified:
    """Return the time of a W3C date, or of a date as in e-mail; without a zone it is UTC.

    A month or a year is none: it cannot tell whether a page has changed since it was fetched.
    """
    if not text or len(text) > _MAX_DATE:
        return None
    match = _W3C.fullmatch(text)
    try:
        if not match:
            parts = parsedate_tz(text)
            return float(mktime_tz(parts)) if parts else None
        year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
        at = datetime(year, month, day, hour, minute, min(second, 59), tzinfo=UTC)
        return at.timestamp() - _offset_s(match[7] or "Z")
    except (ValueError, OverflowError):
        return None


def _offset_s(zone: str) -> int:
    if zone in "Zz":
        return 0
    minutes = int(zone[1:3]) * 60 + int(zone[-2:])
    return -60 * minutes if zone[0] == "-" else 60 * minutes
