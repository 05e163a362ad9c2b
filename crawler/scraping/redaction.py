"""Hides secrets in pages, URLs, texts and records, however their characters are spelled.

A character may be written raw, percent-encoded, as a character reference of HTML, or as an escape
of JSON and JavaScript. A text may mix these, and escape the result again. So a text is searched as
it is and with its escapes decoded, and what spells a secret is replaced where it stands.
"""

import html
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache, reduce
from itertools import accumulate
from typing import Any

import msgspec
from msgspec.structs import replace

from crawler.fetch import charset
from crawler.fetch.budget import Budget
from crawler.models import LeftOut, Page, SeenListing
from crawler.scraping.examine import ParsedPage
from crawler.scraping.file_links import FoundFiles
from crawler.scraping.follow import Followed

HIDDEN = "***"
MIN_SECRET = 4
"""Shorter secrets are not searched for in pages: they are part of many words."""
MAX_LAYERS = 4
"""How often a text may be escaped: `%2527` is an apostrophe that was escaped twice."""
MAX_SPELLING = 64
"""Characters that spell one character of a secret; longer spellings are found by chance only."""
WINDOW = 1 << 18
"""Characters that are searched at a time, which bounds the memory for their escapes."""
_OF_CODING = frozenset({"content-encoding", "content-length"})
_BLANKS = str.maketrans("+\t\n\r\f\xa0", "      ")
"""A space is written in many ways; each is one character, so that positions stay."""
_HEX = "[0-9a-fA-F]"
_CODE = rf"u(?:[dD][89abAB]{_HEX}{{2}}[\\%]u[dD][c-fC-F]{_HEX}{{2}}|{_HEX}{{4}})"
_ESCAPE = re.compile(
    rf"(%(?:[0-7]{_HEX}|[89a-fA-F]{_HEX}(?:%[89a-fA-F]{_HEX}){{0,7}}|{_CODE})"
    rf"|&(?:[A-Za-z][A-Za-z0-9]{{1,31}};?|#(?:[0-9]{{1,20}}|[xX]{_HEX}{{1,20}});?)"
    rf"|\\(?:[^A-Za-z0-9]|{_CODE}|u\{{{_HEX}{{1,8}}\}}|x{_HEX}{{2}}|[bfnrtv]))"
)
_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}

Span = tuple[int, int]


class Redactor:
    """Hides some secrets, short ones only if asked to."""

    def __init__(self, secrets: Iterable[str], shortest: int = MIN_SECRET) -> None:
        self._secrets = frozenset(each for each in secrets if len(each) >= shortest)
        self._overlap = MAX_SPELLING * max(map(len, self._secrets), default=0)

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def __repr__(self) -> str:
        return f"Redactor({len(self._secrets)} secrets)"

    def page(self, page: Page, encoding: str | None = None, budget: Budget | None = None) -> Page:
        """Hide the secrets in a page that repeats them: in its body, its headers and its URL.

        `encoding` is the charset that a site's file names.
        """
        if not self:
            return page
        budget = budget or Budget()
        name = charset.of(page.body, page.header("content-type"), budget, encoding)
        codecs = {charset.codec(name)}
        if not all(map(str.isascii, self._secrets)):
            codecs.add("utf-8")  # whatever the page declares
        body = page.body
        for codec in sorted(codecs):
            body = self._body(body, codec, budget)
        page = replace(
            page,
            headers=tuple((name, self.text(value)) for name, value in page.headers),
            reason=self.text(page.reason),
            final_url=self.text(page.final_url),
        )
        if body == page.body:
            return page
        kept = tuple(each for each in page.headers if each[0].lower() not in _OF_CODING)
        return replace(page, body=body, raw=body, headers=kept)

    def text(self, text: str) -> str:
        """Hide the secrets in a text."""
        return self._without(text, "utf-8", Budget())

    def shows(self, url: str) -> bool:
        """Whether a URL holds a secret, or did before its page was redacted."""
        return bool(self) and (HIDDEN in url or self.text(url) != url)

    def record(self, encoded: bytes) -> bytes:
        """Hide the secrets in a record as JSON."""
        text = encoded.decode()
        if not self or self.text(text) == text:
            return encoded
        return msgspec.json.encode(self.value(msgspec.json.decode(encoded)))

    def value(self, value: Any) -> Any:
        """Hide the secrets in a value of a record; a number that is one becomes null."""
        match value:
            case str():
                return self.text(value)
            case dict():
                return {self.text(name): self.value(each) for name, each in value.items()}
            case list() | tuple():
                return [self.value(each) for each in value]
            case int() | float():
                return None if str(value) in self._secrets else value
        return value

    def _body(self, body: bytes, codec: str, budget: Budget) -> bytes:
        errors, end = "surrogateescape", len(body)
        if codec.startswith("utf-16"):
            errors, end = "surrogatepass", len(body) // 2 * 2
        text = body[:end].decode(codec, errors)
        hidden = self._without(text, codec, budget)
        if hidden == text:
            return body
        return hidden.encode(codec, errors) + body[end:]

    def _without(self, text: str, codec: str, budget: Budget) -> str:
        if not self:
            return text
        needles = {each for secret in self._secrets for each in _needles(secret, codec)}
        kept, end = [], 0
        for begin in range(0, len(text), WINDOW):
            if begin:
                budget.look()
            window = text[begin : begin + WINDOW + self._overlap]
            for first, last in sorted(_spans(window, needles)):
                if begin + first >= end:
                    kept += [text[end : begin + first], HIDDEN]
                end = max(end, begin + last)
        if not kept:
            return text
        return "".join([*kept, text[end:]])


def hide_in_parsed(parsed: ParsedPage, redactor: Redactor) -> ParsedPage:
    """Hide secrets in what was found on a page; links with one are left out."""
    encoded = redactor.record(parsed.encoded)
    record = parsed.record
    if encoded is not parsed.encoded:
        record = msgspec.json.decode(encoded)
    evidence = tuple(map(redactor.text, parsed.verdict.evidence))
    return replace(
        parsed,
        verdict=replace(parsed.verdict, evidence=evidence),
        record=record,
        encoded=encoded,
        followed=hide_in_links(parsed.followed, redactor),
        found=_hide_in_files(parsed.found, redactor),
        invalid=tuple(map(redactor.text, parsed.invalid)),
        listings=tuple(_hide_in_listing(each, redactor) for each in parsed.listings),
    )


def hide_in_links(followed: Followed, redactor: Redactor) -> Followed:
    """Leave out the links with a secret: a request must not show one to other servers."""
    if not redactor:
        return followed
    urls = [link.address.url for link in followed.links]
    kept = followed.links
    if redactor.shows("\n".join(urls)):
        kept = tuple(link for link in kept if not redactor.shows(link.address.url))
    left_out = _left_out(urls, len(kept), followed.left_out, redactor)
    return followed._replace(links=kept, left_out=left_out)


def _hide_in_files(found: FoundFiles, redactor: Redactor) -> FoundFiles:
    urls = [file.link.address.url for file in found.files]
    kept = tuple(file for file in found.files if not redactor.shows(file.link.address.url))
    return FoundFiles(kept, _left_out(urls, len(kept), found.left_out, redactor))


def _left_out(
    urls: list[str], kept: int, left_out: tuple[LeftOut, ...], redactor: Redactor
) -> tuple[LeftOut, ...]:
    """Return what guards leave out, and the links with a secret; no example shows one."""
    shown = [replace(each, example=redactor.text(each.example)) for each in left_out]
    if kept < len(urls):
        example = next(filter(redactor.shows, urls))
        shown.append(LeftOut("secret", len(urls) - kept, redactor.text(example)))
    return tuple(shown)


def _hide_in_listing(listing: SeenListing, redactor: Redactor) -> SeenListing:
    address = listing.address
    if address and redactor.shows(address.url):
        address = None
    record = redactor.record(listing.record)
    return replace(listing, key=redactor.text(listing.key), record=record, address=address)


@lru_cache(maxsize=1_000)
def _needles(secret: str, codec: str) -> frozenset[str]:
    """Return what to search for: the secret, with decoded escapes of its own, and as its bytes.

    The bytes stand for percent-encoded characters that are not UTF-8, and for those of headers.
    """
    found = {secret}
    for layer in _layers(secret):
        found.add(layer.text)
    for name in ("utf-8", "cp1252", codec):
        if not secret.isascii() and not name.startswith("utf-16"):
            found.add(secret.encode(name, "ignore").decode("latin-1"))
    return frozenset(each.translate(_BLANKS) for each in found if len(each) > len(secret) // 2)


# Escapes.


class _Layer:
    """A text with its escapes decoded."""

    def __init__(self, source: str) -> None:
        # Escapes have odd numbers among the pieces.
        self._sources = _ESCAPE.split(source)
        self._pieces = self._sources.copy()
        self._pieces[1::2] = map(_plain, self._sources[1::2])
        self.has_changed = self._pieces != self._sources
        self.text = "".join(self._pieces)

    @cached_property
    def _begins(self) -> tuple[list[int], list[int]]:
        """Where the pieces begin: in this text, and in its source."""
        pieces, sources = (accumulate(map(len, each)) for each in (self._pieces, self._sources))
        return [0, *pieces], [0, *sources]

    def source(self, span: Span) -> Span:
        """Return the part of the source that a part of this text comes from."""
        first, last = span
        begins, sources = self._begins
        number = bisect_right(begins, first) - 1
        inside = 0 if number % 2 else first - begins[number]
        begin = sources[number] + inside
        number = bisect_left(begins, last) - 1
        if number % 2:
            return begin, sources[number + 1]
        return begin, sources[number] + last - begins[number]


def _spans(text: str, needles: Iterable[str]) -> Iterator[Span]:
    """Yield where a text spells one of the needles."""
    yield from _found(text, needles)
    below: list[_Layer] = []
    for layer in _layers(text):
        below.insert(0, layer)
        for span in _found(layer.text, needles):
            yield reduce(lambda part, each: each.source(part), below, span)


def _found(text: str, needles: Iterable[str]) -> Iterator[Span]:
    text = text.translate(_BLANKS)
    for needle in needles:
        at = text.find(needle)
        while at >= 0:
            yield at, at + len(needle)
            at = text.find(needle, at + 1)


def _layers(text: str) -> Iterator[_Layer]:
    """Yield a text with its escapes decoded once, twice and so on, while that changes it."""
    for _ in range(MAX_LAYERS):
        layer = _Layer(text)
        if not layer.has_changed:
            return
        yield layer
        text = layer.text


@lru_cache(maxsize=10_000)
def _plain(escape: str) -> str:
    """Return what an escape stands for."""
    if escape[0] == "&":
        return html.unescape(escape)
    if escape[0] == "%" and escape[1] != "u":
        data = bytes.fromhex(escape.replace("%", ""))
        try:
            return data.decode()
        except UnicodeDecodeError:
            return data.decode("latin-1")
    kind, digits = escape[1], escape[2:]
    if kind in _SHORT:
        return _SHORT[kind]
    if kind not in "ux":
        return kind
    if digits[0] == "{":
        number = int(digits[1:-1], 16)
        return chr(number) if number < 0x110000 else escape
    units = [int(unit, 16) for unit in re.split(r"[\\%]u", digits)]
    data = b"".join(unit.to_bytes(2, "big") for unit in units)
    return data.decode("utf-16-be", "surrogatepass")
