"""Reads JSON that may be broken: arrays of any size as a stream, and objects with clear faults."""

import json
import math
import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from crawler.errors import InputError

MAX_DEPTH = 100
_TOO_DEEP = f"nested more than {MAX_DEPTH} deep"
_TORN = "the file ends inside this element"
_MAX_DIGITS = 4000
"""Python refuses to convert more than 4,300 digits to a number."""

_EXCERPT = 1 << 12
"""Characters kept of an element that cannot be used."""
_MAX_PASSED = 1 << 16
"""Characters kept in the window behind the current position. The parser counts lines from the
start of the window at every mistake."""
_SEARCH_CREDIT = 300_000
"""Brackets that may be inspected in vain for the ends of broken elements. Half a bracket is added
for each character that was read."""
_MAX_STARTS = 20
_CLOSING = {"[": "]", "{": "}"}
_MARK = re.compile(r'\\.|["\[\]{},]', re.DOTALL)
_SOLID = re.compile(r"[^\s,]")
_START = re.compile(r',\s*(?=\{\s*")')
_BRACE = re.compile(r"[{}]")
_BEFORE_COLON = ('" ', '"\t', '"\r', '"\n')
_BOUNDARY = re.compile(r"\s*(?:,\s*[{\]]|[\]{]|$)")


class Element(msgspec.Struct, frozen=True):
    """An array's element as it is written.

    `text` holds only the beginning if there is a fault or `size` exceeds the limit.
    """

    line: int
    text: str
    size: int
    fault: str = ""


def loads(text: str) -> Any:
    """Return the value of a JSON text; raise `ValueError` with a reason for a rejects file."""
    if text.count("[") + text.count("{") > MAX_DEPTH and _depths(text)[0] > MAX_DEPTH:
        raise ValueError(_TOO_DEEP)
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return _loads_leniently(text)
    # A parser keeps the last of two equal keys, and the value of the first would be lost.
    if not (type(value) is dict and text.count(",") < len(value)) and _may_repeat_keys(text, value):
        json.loads(text, strict=False, parse_int=str, parse_float=str, object_pairs_hook=_unique)
    return value


def _may_repeat_keys(text: str, value: Any) -> bool:
    """Whether the text may have more keys than its value; texts that look like keys count too."""
    return text.count('":') + sum(map(text.count, _BEFORE_COLON)) > _count_keys(value)


def _count_keys(value: Any) -> int:
    keys = 0
    if type(value) is dict:
        keys, value = len(value), value.values()
    elif type(value) is not list:
        return 0
    for inner in value:
        if type(inner) is dict or type(inner) is list:
            keys += _count_keys(inner)
    return keys


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"there are two fields {name[:60]!r}")
        found[name] = value
    return found


def _loads_leniently(text: str) -> Any:
    """Python's own parser is slower, but takes numbers of any length and names the mistake."""
    try:
        value = json.loads(
            text,
            parse_int=_number,
            parse_float=_number,
            parse_constant=_refuse_constant,
            object_pairs_hook=_unique,
        )
        msgspec.json.encode(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} (character {error.pos + 1})") from None
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair cannot be stored") from None
    return value


def _number(digits: str) -> int | float | str:
    """Return a number, or its digits if no number can hold them."""
    if digits.lstrip("-").isdigit():
        if len(digits) < _MAX_DIGITS:
            return int(digits)
    elif math.isfinite(number := float(digits)):
        return number
    return digits


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


class _Nesting:
    """The depth at a position of a JSON text; brackets in strings do not count."""

    def __init__(self) -> None:
        self.depth = 0
        self._quoted = False

    def marks(self, text: str, at: int) -> Iterator[re.Match[str]]:
        """Yield brackets, commas and closing quotes from `at` on; `depth` counts them."""
        for mark in _MARK.finditer(text, at):
            sign = mark[0]
            if sign == '"':
                self._quoted = not self._quoted
            if self._quoted or sign[0] == "\\":
                continue
            self.depth += (sign in "[{") - (sign in "]}")
            yield mark


def _depths(text: str) -> tuple[int, int]:
    """The greatest depth of a text, and the depth at its end."""
    nesting, deepest = _Nesting(), 0
    for _ in nesting.marks(text, 0):
        deepest = max(deepest, nesting.depth)
    return deepest, nesting.depth


def elements(path: Path, texts: Iterator[str], max_size: int) -> Iterator[Element]:
    """Yield every element of the array in a file, the broken ones with their faults."""
    return _Array(path, texts, max_size).elements()


class _Array:
    """A window on the text of an array that moves from element to element."""

    # It only finds the end of an element: numbers stay as they are, however long.
    _decoder = json.JSONDecoder(parse_int=str, parse_float=str)

    def __init__(self, path: Path, texts: Iterator[str], max_size: int) -> None:
        self._path, self._texts, self._max_size = path, texts, max_size
        self._window, self._at, self._line = "", 0, 1
        self._ended = self._closed = False
        self._broken: InputError | None = None
        self._keys: frozenset[str] = frozenset()
        # The window's offset in the text, and what earlier mistakes have shown. Without it, each
        # mistake in a file full of them would search to the end of the window.
        self._base = self._credit_used = self._searched = 0
        self._starts: deque[int] = deque()
        self._unrelated: tuple[int, set[int]] = (0, set())

    def elements(self) -> Iterator[Element]:
        if not self._find_next():
            return
        self._enter()
        while self._find_next():
            self._closed = self._window[self._at] == "]"
            if not self._closed:
                yield self._element()
                continue
            self._take(self._at + 1)
            if self._find_next():
                yield self._faulty("something follows the end of the array")
        if self._broken:
            raise InputError(self._broken.path, self._broken.reason, self._line)
        if not self._closed:
            yield self._faulty("the file ends before the array does; rows may be missing")

    def _enter(self) -> None:
        sign = self._window[self._at]
        reason = "the top level is not an array of objects"
        if sign == "{":
            reason += "; a file with one object per line should end in .jsonl"
        if sign != "[":
            raise InputError(str(self._path), reason, self._line)
        self._take(self._at + 1)

    def _find_next(self) -> bool:
        """Move to the next element or bracket; False at the end of the file."""
        while True:
            solid = _SOLID.search(self._window, self._at)
            if solid:
                self._take(solid.start())
                return True
            self._take(len(self._window))
            if not self._read_more():
                return False

    def _take(self, end: int) -> str:
        text = self._window[self._at : end]
        self._line += text.count("\n") or text.count("\r")
        self._at = end
        return text

    def _excerpt(self) -> str:
        return self._window[self._at : self._at + _EXCERPT]

    def _faulty(self, fault: str) -> Element:
        return Element(self._line, self._excerpt(), 0, fault)

    def _read_more(self) -> bool:
        try:
            text = next(self._texts, None)
        except InputError as broken:  # raised later: the window may hold good elements
            self._broken, text = broken, None
        if text is None:
            self._ended = True
            return False
        self._trim()
        self._window += text
        return True

    def _trim(self) -> None:
        before = max(0, self._at - 200)  # enough to see how far the element is indented
        self._window, self._at = self._window[before:], self._at - before
        self._base += before

    def _element(self) -> Element:
        line, excerpt = self._line, self._excerpt()
        try:
            text = self._take(self._end())
        except RecursionError:
            return self._skip(_TOO_DEEP)
        except json.JSONDecodeError as error:
            return self._bad_element(error)
        if len(text) > self._max_size:
            return Element(line, excerpt, len(text))
        return Element(line, text, len(text))

    def _end(self) -> int:
        try:
            value, end = self._decoder.raw_decode(self._window, self._at)
        except json.JSONDecodeError:
            end = len(self._window)
        if end < len(self._window):
            if isinstance(value, dict):
                self._keys = frozenset(value)
            return end
        while len(self._window) - self._at <= self._max_size and self._read_more():
            pass  # perhaps only the window ended here, not the element
        end = self._decoder.raw_decode(self._window, self._at)[1]
        if end == len(self._window) and not self._ended:  # the digits of a number may go on
            raise json.JSONDecodeError("Unterminated number", self._window, end)
        return end

    def _bad_element(self, error: json.JSONDecodeError) -> Element:
        line, excerpt = self._line, self._excerpt()
        window_end = len(self._window)
        if not self._ended:
            window_end -= 8  # a cut escape or word is reported at its beginning
        cut = error.msg.startswith("Unterminated") or error.pos >= window_end
        if cut and not self._ended:
            following = self._next_alike()
        else:
            following = self._following(error.pos)
        if following is not None:
            excerpt = self._take(following)[:_EXCERPT].rstrip(", \t\r\n")
            if self._at > _MAX_PASSED:
                self._trim()
            return Element(line, excerpt, 0, f"not JSON: {error.msg}")
        if cut and not self._ended:
            return self._skip()
        if cut and self._broken:
            raise InputError(self._broken.path, self._broken.reason, line)
        self._leave()
        fault = _TORN
        if not cut:
            rest = "no element was found behind it, so the rest of the file was not read"
            fault = f"not JSON: {error.msg}; {rest}"
        return Element(line, excerpt, 0, fault)

    def _leave(self) -> None:
        self._closed = True
        self._take(len(self._window))
        while self._read_more():
            self._take(len(self._window))

    # Where to go on behind an element with a mistake. Each function returns a position, or None.

    def _following(self, wrong: int) -> int | None:
        text, at = self._window, self._at
        before = text[at:wrong]
        starts_object = text[wrong : wrong + 1] == "{"
        separated = before.rstrip(" \t").endswith((",", "\n"))
        if starts_object and separated and _depths(before)[1] == 1:
            return wrong  # the brace that should close this element is missing
        if text[at] != "{":
            return self._next_alike() or self._next_related() or self._next_object()
        by_indent_or_brackets = self._next_alike() or self._matching_brace()
        return by_indent_or_brackets or self._next_related() or self._last_brace()

    def _next_alike(self) -> int | None:
        """The next line that is indented like this element, if it has a line of its own."""
        newline = self._window.rfind("\n", 0, self._at)
        indent = self._window[newline + 1 : self._at]
        if newline < 0 or indent.strip():
            return None
        found = self._window.find(f"\n{indent}{{", self._at)
        if found < 0:
            return None
        return found + 1 + len(indent)

    def _matching_brace(self) -> int | None:
        """The brace that closes this element, if brackets and strings match up to it."""
        opened: list[str] = []
        left = _SEARCH_CREDIT + (self._base + self._at) // 2 - self._credit_used
        count = 0
        for count, mark in enumerate(_Nesting().marks(self._window, self._at)):
            sign, end = mark[0], mark.end()
            if sign in _CLOSING:
                opened.append(_CLOSING[sign])
            elif sign in "]}" and opened.pop() != sign:
                break
            if not opened:
                if _BOUNDARY.match(self._window, end):
                    return end
                return None
            if count > left and count > 50:
                break
        self._credit_used += count
        return None

    def _next_related(self) -> int | None:
        """The next object with most keys of the last good element; nested ones rarely match."""
        end = self._base + len(self._window)
        if self._unrelated[0] != end:  # a longer window may show related ones
            self._unrelated = (end, set())
        for start in self._next_starts():
            if start in self._unrelated[1]:
                continue
            with suppress(json.JSONDecodeError, RecursionError):
                keys = frozenset(self._decoder.raw_decode(self._window, start - self._base)[0])
                if 2 * len(keys & self._keys) > len(keys | self._keys):
                    return start - self._base
            self._unrelated[1].add(start)
        return None

    def _next_starts(self) -> list[int]:
        """Where the next few objects begin; only a few, because this runs for every mistake."""
        while self._starts and self._starts[0] < self._base + self._at:
            self._starts.popleft()
        begin = max(self._at, self._searched - self._base)
        while len(self._starts) < _MAX_STARTS:
            found = _START.search(self._window, begin)
            if found is None:
                self._searched = self._base + max(begin, self._window.rfind(","))
                break
            begin = found.end()
            self._searched = self._base + begin
            self._starts.append(self._searched)
        return list(self._starts)

    def _next_object(self) -> int | None:
        found = self._window.find("{", self._at)
        if found < 0:
            return None
        return found

    def _last_brace(self) -> int | None:
        """The closing brace if those in strings count too: perhaps a string is not closed."""
        depth = 0
        for brace in _BRACE.finditer(self._window, self._at):
            depth += (brace[0] == "{") - (brace[0] == "}")
            if depth <= 0 and _BOUNDARY.match(self._window, brace.end()):
                return brace.end()
        return None

    def _skip(self, fault: str = "") -> Element:
        """Move behind an element that is too long or too deep to be parsed."""
        line, excerpt = self._line, self._excerpt()
        nesting, size = _Nesting(), 0
        while True:
            behind = self._at
            for mark in nesting.marks(self._window, self._at):
                behind = mark.end()
                if nesting.depth <= 0:
                    is_part = nesting.depth == 0 and mark[0] != ","
                    size += len(self._take(mark.start() + is_part))
                    return Element(line, excerpt, size, fault)
            # A backslash at the end of the window belongs to the character that comes next.
            halved = self._window.endswith("\\") and behind < len(self._window)
            size += len(self._take(len(self._window) - halved))
            if not self._read_more():
                self._closed = True
                return Element(line, excerpt, size, fault or _TORN)
