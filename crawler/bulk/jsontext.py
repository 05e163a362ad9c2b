"""JSON that may be broken: an array read element by element, whatever its size, and objects with
clear faults."""

import json
import math
import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from crawler.bulk.textfile import KEPT, MAX_LINE, too_long
from crawler.errors import InputError

MAX_DEPTH = 100
_TOO_DEEP = f"nested more than {MAX_DEPTH} deep"
_MAX_DIGITS = 4000
"""Python refuses to turn more than 4,300 digits into a number."""

_PASSED = 1 << 16
"""How much may stay in the window behind us: at every mistake, the parser counts the lines from
there on."""
_CREDIT = 300_000
"""How many brackets may be looked at in vain for the ends of broken elements, besides some for each
that was read."""
_STARTS = 20
_PAIRS = {"[": "]", "{": "}"}
_MARK = re.compile(r'\\.|["\[\]{},]', re.DOTALL)
_SOLID = re.compile(r"[^\s,]")
_START = re.compile(r',\s*(?=\{\s*")')
_BRACE = re.compile(r"[{}]")
_BEFORE_COLON = ('" ', '"\t', '"\r', '"\n')
_BOUNDARY = re.compile(r"\s*(?:,\s*[{\]]|[\]{]|$)")


class Element(msgspec.Struct, frozen=True):
    """An element of an array as it is written; where there is a fault, `text` is only its
    beginning."""

    line: int
    text: str
    fault: str = ""


def loads(text: str) -> Any:
    """The value of a JSON text; raises `ValueError` with a reason that fits in a rejects file."""
    if text.count("[") + text.count("{") > MAX_DEPTH and _depths(text)[0] > MAX_DEPTH:
        raise ValueError(_TOO_DEEP)
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return _second_opinion(text)
    # A parser keeps the last of two equal keys, and what the first one named would be lost.
    if not (type(value) is dict and text.count(",") < len(value)) and _may_repeat_keys(text, value):
        json.loads(text, strict=False, parse_int=str, parse_float=str, object_pairs_hook=_unique)
    return value


def _may_repeat_keys(text: str, value: Any) -> bool:
    """Whether the text may have more keys than its value; what only looks like a key is counted
    too."""
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
    """An object, unless two of its keys are the same."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"there are two fields {name[:60]!r}")
        found[name] = value
    return found


def _second_opinion(text: str) -> Any:
    """Python's own parser is slower, but takes numbers of any length, and its messages name the
    mistake."""
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
    """A number, or its digits where no number can hold them."""
    if digits.lstrip("-").isdigit():
        return int(digits) if len(digits) < _MAX_DIGITS else digits
    number = float(digits)
    return number if math.isfinite(number) else digits


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


class _Nesting:
    """How deep a JSON text is at a place; what is in strings does not count."""

    def __init__(self) -> None:
        self.depth = 0
        self._quoted = False

    def marks(self, text: str, at: int) -> Iterator[re.Match[str]]:
        """The brackets, commas and closing quotes from a place on; `depth` is that behind them."""
        for mark in _MARK.finditer(text, at):
            sign = mark[0]
            if sign == '"':
                self._quoted = not self._quoted
            if self._quoted or sign[0] == "\\":
                continue
            self.depth += (sign in "[{") - (sign in "]}")
            yield mark


def _depths(text: str) -> tuple[int, int]:
    """The greatest depth of a text, and that at its end."""
    nesting, deepest = _Nesting(), 0
    for _ in nesting.marks(text, 0):
        deepest = max(deepest, nesting.depth)
    return deepest, nesting.depth


def elements(path: Path, texts: Iterator[str]) -> Iterator[Element]:
    """Every element of the array in a file, the broken ones with their faults."""
    return _Array(path, texts).elements()


class _Array:
    """A window on the text of an array; it moves from element to element, and past the broken
    ones."""

    # It only finds where an element ends: numbers are left as they are, however long.
    _decoder = json.JSONDecoder(parse_int=str, parse_float=str)

    def __init__(self, path: Path, texts: Iterator[str]) -> None:
        self._path, self._texts = path, texts
        self._window, self._at, self._line = "", 0, 1
        self._ended = self._closed = False
        self._broken: InputError | None = None
        self._keys: frozenset[str] = frozenset()
        # Where the window begins in the text, and what is known from earlier mistakes: else a file
        # full of them would be searched to the end of the window for each.
        self._base = self._credit_used = self._searched = 0
        self._starts: deque[int] = deque()
        self._unrelated: tuple[int, set[int]] = (0, set())

    def elements(self) -> Iterator[Element]:
        """Every element, in its order."""
        if not self._gap():
            return
        self._enter()
        while self._gap():
            self._closed = self._window[self._at] == "]"
            if not self._closed:
                yield self._element()
                continue
            self._take(self._at + 1)
            if self._gap():
                yield Element(
                    self._line, self._beginning(), "something follows the end of the array"
                )
        if self._broken:
            raise InputError(self._broken.path, self._broken.reason, self._line)
        if not self._closed:
            yield Element(
                self._line, "", "the file ends before the array does; rows may be missing"
            )

    def _enter(self) -> None:
        sign = self._window[self._at]
        if sign != "[":
            hint = "; a file with one object per line should end in .jsonl" if sign == "{" else ""
            raise InputError(
                str(self._path), f"the top level is not an array of objects{hint}", self._line
            )
        self._take(self._at + 1)

    def _gap(self) -> bool:
        """Go to the next element or bracket; false at the end of the file."""
        while True:
            solid = _SOLID.search(self._window, self._at)
            self._take(solid.start() if solid else len(self._window))
            if solid or not self._more():
                return solid is not None

    def _take(self, end: int) -> str:
        text = self._window[self._at : end]
        self._line += text.count("\n") or text.count("\r")
        self._at = end
        return text

    def _beginning(self) -> str:
        return self._window[self._at : self._at + KEPT]

    def _more(self) -> bool:
        try:
            text = next(self._texts, None)
        except InputError as broken:  # raised later: there may be good elements in the window
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
        line, beginning = self._line, self._beginning()
        try:
            text = self._take(self._end())
        except RecursionError:
            self._skip()
            return Element(line, beginning, _TOO_DEEP)
        except json.JSONDecodeError as error:
            return self._bad_element(error)
        return (
            Element(line, text)
            if len(text) <= MAX_LINE
            else Element(line, beginning, too_long(len(text)))
        )

    def _end(self) -> int:
        try:
            value, end = self._decoder.raw_decode(self._window, self._at)
        except json.JSONDecodeError:
            end = len(self._window)
        if end < len(self._window):
            self._keys = frozenset(value) if isinstance(value, dict) else self._keys
            return end
        while len(self._window) - self._at <= MAX_LINE and self._more():
            pass  # perhaps it was only the window that ended here
        end = self._decoder.raw_decode(self._window, self._at)[1]
        if end == len(self._window) and not self._ended:  # the digits of a number may go on
            raise json.JSONDecodeError("Unterminated number", self._window, end)
        return end

    def _bad_element(self, error: json.JSONDecodeError) -> Element:
        line, beginning = self._line, self._beginning()
        margin = (
            0 if self._ended else 8
        )  # of an escape or a word that is cut, the place of its beginning is told
        cut = error.msg.startswith("Unterminated") or error.pos >= len(self._window) - margin
        following = self._alike() if cut and not self._ended else self._following(error.pos)
        if following is not None:
            beginning = self._take(following)[:KEPT].rstrip(", \t\r\n")
            if self._at > _PASSED:
                self._trim()
            return Element(line, beginning, f"not JSON: {error.msg}")
        if cut and not self._ended:
            return Element(line, beginning, too_long(self._skip()))
        if cut and self._broken:
            raise InputError(self._broken.path, self._broken.reason, line)
        self._leave()
        reason = f"not JSON: {error.msg}; no element was found behind it, so the rest of the file was not read"
        return Element(line, beginning, "the file ends inside this element" if cut else reason)

    def _leave(self) -> None:
        self._closed = True
        self._take(len(self._window))
        while self._more():
            self._take(len(self._window))

    def _following(self, wrong: int) -> int | None:
        """Where to go on behind an element with a mistake, if that can be told."""
        text, at = self._window, self._at
        before = text[at:wrong]
        if (
            text[wrong : wrong + 1] == "{"
            and before.rstrip(" \t").endswith((",", "\n"))
            and _depths(before)[1] == 1
        ):
            return wrong  # the brace that should close this element is missing
        if text[at] != "{":
            return self._alike() or self._related() or self._opening()
        return self._alike() or self._matching() or self._related() or self._closing()

    def _alike(self) -> int | None:
        """The next line that begins like the one of this element, if it has a line of its own."""
        newline = self._window.rfind("\n", 0, self._at)
        indent = self._window[newline + 1 : self._at]
        if newline < 0 or indent.strip():
            return None
        found = self._window.find(f"\n{indent}{{", self._at)
        return found + 1 + len(indent) if found >= 0 else None

    def _matching(self) -> int | None:
        """The brace that closes this element, if brackets and strings are in order up to it."""
        opened: list[str] = []
        left = _CREDIT + (self._base + self._at) // 2 - self._credit_used
        count = 0
        for count, mark in enumerate(_Nesting().marks(self._window, self._at)):
            sign, end = mark[0], mark.end()
            if sign in _PAIRS:
                opened.append(_PAIRS[sign])
            elif sign in "]}" and opened.pop() != sign:
                break
            if not opened:
                return end if _BOUNDARY.match(self._window, end) else None
            if count > left and count > 50:
                break
        self._credit_used += count
        return None

    def _related(self) -> int | None:
        """The next object that has most keys in common with the last good element, as those inside
        it rarely have."""
        end = self._base + len(self._window)
        if self._unrelated[0] != end:  # what a longer window shows may be related
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
        """Where in the text the next few objects begin; only those, for it is done for every
        mistake."""
        while self._starts and self._starts[0] < self._base + self._at:
            self._starts.popleft()
        begin = max(self._at, self._searched - self._base)
        while len(self._starts) < _STARTS:
            found = _START.search(self._window, begin)
            if found is None:
                self._searched = self._base + max(begin, self._window.rfind(","))
                break
            begin = found.end()
            self._searched = self._base + begin
            self._starts.append(self._searched)
        return list(self._starts)

    def _opening(self) -> int | None:
        """Any object at all, behind what is none."""
        found = self._window.find("{", self._at)
        return found if found >= 0 else None

    def _closing(self) -> int | None:
        """The brace that closes this element if those in strings count too: a string may be what is
        not closed."""
        depth = 0
        for brace in _BRACE.finditer(self._window, self._at):
            depth += 1 if brace[0] == "{" else -1
            if depth <= 0 and _BOUNDARY.match(self._window, brace.end()):
                return brace.end()
        return None

    def _skip(self) -> int:
        """Go behind an element that is too long or too deep to be parsed, and say how long it
        is."""
        nesting, size = _Nesting(), 0
        while True:
            behind = self._at
            for mark in nesting.marks(self._window, self._at):
                behind = mark.end()
                if nesting.depth <= 0:
                    ends_here = nesting.depth == 0 and mark[0] != ","
                    return size + len(self._take(mark.end() if ends_here else mark.start()))
            # A backslash at the end of the window belongs to the sign that comes next.
            halved = self._window.endswith("\\") and behind < len(self._window)
            size += len(self._take(len(self._window) - halved))
            if not self._more():
                return size
