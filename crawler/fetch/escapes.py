"""Escapes of URLs, HTML, JSON and JavaScript: texts with these decoded, and where each part of them
comes from."""

import html
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from itertools import accumulate

MAX_LAYERS = 4
"""How often a text may be escaped: `%2527` is an apostrophe that was escaped twice."""
_HEX = "[0-9a-fA-F]"
_MORE = f"%[89abAB]{_HEX}"
_UTF8 = rf"[cdCD]{_HEX}{_MORE}|[eE]{_HEX}(?:{_MORE}){{2}}|[fF]{_HEX}(?:{_MORE}){{3}}"
_CODE = rf"u(?:[dD][89abAB]{_HEX}{{2}}[\\%]u[dD][c-fC-F]{_HEX}{{2}}|{_HEX}{{4}})"
_OTHERS = (
    rf"|&(?:[A-Za-z][A-Za-z0-9]{{1,31}};?|#(?:[0-9]{{1,20}}|[xX]{_HEX}{{1,20}});?)"
    rf"|\\(?:[^A-Za-z0-9]|{_CODE}|u\{{{_HEX}{{1,8}}\}}|x{_HEX}{{2}}|[bfnrtv])"
)
CHARACTERS = re.compile(rf"(%(?:{_UTF8}|{_HEX}{{2}}|{_CODE}){_OTHERS})")
"""Escapes of one character each: a cache keeps them, and no neighbour changes their meaning."""
BYTES = re.compile(rf"(%(?:{_HEX}{{2}}|{_CODE}){_OTHERS})")
"""The same, but percent-encoded bytes stand for themselves: those of other charsets may look like
UTF-8."""
_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}

Span = tuple[int, int]


@lru_cache(maxsize=10_000)
def plain(escape: str) -> str:
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


class Layer:
    """A text with all that a pattern finds replaced; by default with its escapes decoded."""

    def __init__(
        self,
        source: str,
        pattern: re.Pattern[str] = CHARACTERS,
        decode: Callable[[str], str] = plain,
    ) -> None:
        """`pattern` is one group."""
        # What the pattern finds has odd numbers among the pieces.
        self._sources = pattern.split(source)
        self._pieces = self._sources.copy()
        self._pieces[1::2] = map(decode, self._sources[1::2])
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


def layers(text: str) -> Iterator[Layer]:
    """Yield a text with its escapes decoded once, twice and so on, while that changes it."""
    for _ in range(MAX_LAYERS):
        layer = Layer(text)
        if not layer.has_changed:
            return
        yield layer
        text = layer.text


def spellings(text: str) -> list[str]:
    """Return a text as it is, and with its escapes decoded once, twice and so on."""
    return [text, *(layer.text for layer in layers(text))]
