"""Hides secrets in pages, URLs, texts and records, however their characters are spelled.

A character may be written raw, percent-encoded, as a character reference of HTML, or as an escape
of JSON and JavaScript. A text may mix these, and escape the result again. So a text is searched as
it is and with its escapes decoded, and what spells a secret is replaced where it stands. Between
its words there may be tags: to a parser, they are blanks.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache, reduce
from typing import Any

import msgspec
from msgspec.structs import replace

from crawler.fetch import charset
from crawler.fetch.budget import Budget
from crawler.fetch.escapes import BYTES, Layer, Span, layers, spellings
from crawler.models import LeftOut, Page, SeenListing
from crawler.scraping.examine import ParsedPage
from crawler.scraping.file_links import FoundFiles
from crawler.scraping.follow import Followed

HIDDEN = "***"
MIN_SECRET = 4
"""Shorter secrets are not searched for in pages: they are part of many words."""
MAX_SPELLING = 64
"""Characters that spell one character of a secret; longer spellings are found by chance only."""
WINDOW = 1 << 18
"""Characters that are searched at a time, which bounds the memory for their escapes."""
_OF_CODING = frozenset({"content-encoding", "content-length"})
_INEXACT = frozenset({"iso2022_jp", "cp932", "big5hkscs", "euc_jp"})
"""Codecs that do not give back the bytes that they have read."""
_BLANKS = str.maketrans("+\t\n\r\f\xa0", "      ")
"""A space is written in many ways; each is one character, so that positions stay."""
_BLANK = "(?:\\s|&nbsp;?|&#(?:160|[xX][aA]0);?)"
_GAP = re.compile(f"({_BLANK}*+(?:<[^<>]*+>{_BLANK}*+)+|{_BLANK}{{2,}})")
"""Tags and blanks, which a parser makes one space of."""


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

    def is_in(self, body: bytes, budget: Budget) -> bool:
        """Whether a text in UTF-8 holds a secret."""
        return self._body(body, "utf-8", budget) != body

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
        for name, errors in _readings(codec):
            end = len(body)
            if name.startswith("utf-16"):
                end = len(body) // 2 * 2
            text = body[:end].decode(name, errors)
            hidden = self._without(text, codec, budget)
            if hidden != text:
                body = hidden.encode(name, errors) + body[end:]
        return body

    def _without(self, text: str, codec: str, budget: Budget) -> str:
        if not self:
            return text
        needles = frozenset().union(*(_needles(secret, codec) for secret in self._secrets))
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


# Spellings.


def _readings(codec: str) -> list[tuple[str, str]]:
    """Return how to read a page and to write it again, as codecs and what these do with errors.

    As Latin-1, all other bytes of a page stay as they are. What only an inexact codec can read must
    be hidden nevertheless, such as a secret between other characters of ISO-2022-JP.
    """
    if codec in _INEXACT:
        return [("latin-1", "strict"), (codec, "replace")]
    if codec.startswith("utf-16"):
        return [(codec, "surrogatepass")]
    return [(codec, "surrogateescape")]


@lru_cache(maxsize=1_000)
def _needles(secret: str, codec: str) -> frozenset[str]:
    """Return what to search for: the secret, with decoded escapes of its own, and as its bytes.

    The bytes stand for percent-encoded characters that are not UTF-8, for those of headers, and for
    pages that are read as Latin-1.
    """
    written = {secret}
    for name in ("utf-8", "cp1252", codec):
        if not secret.isascii() and not name.startswith("utf-16"):
            written.add(secret.encode(name, "xmlcharrefreplace").decode("latin-1"))
    found = {each.translate(_BLANKS) for text in written for each in spellings(text)}
    found |= {re.sub(" {2,}", " ", each) for each in found}
    return frozenset(each for each in found if len(each) > len(secret) // 2)


def _spans(text: str, needles: frozenset[str]) -> Iterator[Span]:
    """Yield where a text spells one of the needles."""
    yield from _spelled(text, needles)
    if any(" " in each for each in needles):
        folded = Layer(text, _GAP, lambda _: " ")
        for span in _spelled(folded.text, needles):
            yield folded.source(span)


def _spelled(text: str, needles: frozenset[str]) -> Iterator[Span]:
    """Yield where a text has a needle as it is, or with its escapes decoded."""
    yield from _found(text, needles)
    are_ascii = all(map(str.isascii, needles))
    below: list[Layer] = []
    for layer in layers(text):
        readings = [layer]
        if not are_ascii:
            readings.append(Layer(text, BYTES))
        for reading in readings:
            for span in _found(reading.text, needles):
                yield reduce(lambda part, each: each.source(part), [reading, *below], span)
        below.insert(0, layer)
        text = layer.text


def _found(text: str, needles: frozenset[str]) -> Iterator[Span]:
    text = text.translate(_BLANKS)
    for needle in needles:
        at = text.find(needle)
        while at >= 0:
            end = at + len(needle)
            yield at, end
            at = text.find(needle, end)
