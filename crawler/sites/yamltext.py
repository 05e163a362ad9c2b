"""A YAML file as plain values that know their lines; what they mean is up to whoever reads them.

Values stay the text that was written: what is expected of a key decides whether `no` is an answer
or a word, and `1.10` a number or a name.
"""

from collections.abc import Iterator
from pathlib import Path
from stat import S_ISREG
from typing import Any

import msgspec

from crawler.errors import InputError

MAX_SIZE = 1_000_000
MAX_DEPTH = 10
MAX_VALUES = 50_000
"""Values in a file, those counted again that an alias repeats."""


class Text(msgspec.Struct, frozen=True):
    """A single value as it was written; `empty` where nothing was, or `null`."""

    line: int
    text: str
    empty: bool = False


class List(msgspec.Struct, frozen=True):
    """Values in their order."""

    line: int
    items: tuple["Value", ...]
    size: int


class Mapping(msgspec.Struct, frozen=True):
    """Values by name, and the line of each name."""

    line: int
    items: dict[str, "Value"]
    lines: dict[str, int]
    size: int


Value = Text | List | Mapping


def read(path: Path) -> Mapping | None:
    """What a file says, None where there is no such file; raises `InputError` where it cannot be
    used."""
    try:
        kind = path.stat()
        if not S_ISREG(kind.st_mode):
            raise InputError(str(path), "this is not a file")
        if kind.st_size > MAX_SIZE:
            raise InputError(
                str(path), f"the file has {kind.st_size:,} bytes, more than {MAX_SIZE:,}"
            )
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(str(path), f"the file cannot be read ({error.strerror})") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            str(path), "the file is not UTF-8", data.count(b"\n", 0, error.start) + 1
        ) from None
    return _Reader(path).read(text)


class _Reader:
    """Builds values out of the parser's events, so that nothing is too deep or too many before that
    is known."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._anchors: dict[str, Value] = {}
        self._events: Iterator[Any] = iter(())

    def read(self, text: str) -> Mapping:
        import yaml

        self._events = self._parsed(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        top: Value = Text(1, "", empty=True)
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._error(
                        "a second document begins here (---); only one is read", _line(event)
                    )
                top = self._value(next(self._events), 0)
        if isinstance(top, Text) and top.empty:
            return Mapping(1, {}, {}, 1)
        if not isinstance(top, Mapping):
            raise self._error("the file must consist of lines such as `key: value`", top.line)
        return top

    def _parsed(self, text: str, loader: Any) -> Iterator[Any]:
        import yaml

        try:
            yield from yaml.parse(text, Loader=loader)
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            raise self._error(f"the character {error.character:#x} is not allowed", line) from None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            problem = f"not YAML: {error.problem or error.context}"
            raise self._error(
                problem, min(mark.line + 1, text.count("\n") + 1) if mark else None
            ) from None

    def _value(self, event: Any, depth: int) -> Value:
        import yaml

        line = _line(event)
        if depth > MAX_DEPTH:
            raise self._error(f"nested more than {MAX_DEPTH} deep", line)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise self._error(
                    f"*{event.anchor} stands for nothing: there is no &{event.anchor} before it",
                    line,
                )
            return self._anchors[event.anchor]
        if event.tag not in (None, "!"):
            raise self._error(f"tags such as {event.tag[:60]} are not allowed", line)
        if isinstance(event, yaml.ScalarEvent):
            empty = event.implicit[0] and event.value.lower() in ("", "~", "null")
            value: Value = Text(line, event.value, empty)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._list(line, depth)
        else:
            value = self._mapping(line, depth)
        if event.anchor:
            self._anchors[event.anchor] = value
        return value

    def _list(self, line: int, depth: int) -> List:
        import yaml

        items: list[Value] = []
        size = 1
        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            items.append(self._value(event, depth + 1))
            size = self._checked(size + _size(items[-1]), event)
        return List(line, tuple(items), size)

    def _mapping(self, line: int, depth: int) -> Mapping:
        import yaml

        items: dict[str, Value] = {}
        lines: dict[str, int] = {}
        size = 1
        for event in self._events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            if not isinstance(event, yaml.ScalarEvent):
                raise self._error("a key must be a single word", _line(event))
            key = self._value(event, depth + 1)
            assert isinstance(key, Text)
            if key.text in items:
                raise self._error(
                    f"the key {key.text[:60]!r} is here again; it was in line {lines[key.text]}",
                    key.line,
                )
            items[key.text], lines[key.text] = self._value(next(self._events), depth + 1), key.line
            size = self._checked(size + _size(items[key.text]), event)
        return Mapping(line, items, lines, size)

    def _checked(self, size: int, event: Any) -> int:
        if size > MAX_VALUES:
            raise self._error(
                f"more than {MAX_VALUES:,} values, with what aliases repeat", _line(event)
            )
        return size

    def _error(self, reason: str, line: int | None) -> InputError:
        return InputError(str(self._path), reason, line)


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _size(value: Value) -> int:
    return 1 if isinstance(value, Text) else value.size
