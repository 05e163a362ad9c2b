"""Reads a YAML file into values with their lines, and checks them against the keys of a struct."""

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from pathlib import Path
from stat import S_ISREG
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta

from crawler.errors import InputError

MAX_SIZE, MAX_DEPTH, MAX_VALUES = 1_000_000, 10, 50_000
"""Bytes of a file, levels of nesting, and values; what an alias repeats counts each time, with its
levels."""
KINDS = {"scalar": "a single value", "sequence": "a list", "mapping": "a mapping"}
_ANSWERS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_STAR_HINT = "; a value that begins with * must be in quotes, as in '*/5 * * * *'"

T = TypeVar("T")

Boolean = Annotated[bool, Meta(description="true or false")]


class Node(msgspec.Struct):
    """A value of a file: a text, a list, or a mapping with keys and values in turn."""

    kind: str
    line: int
    anchor: str
    text: str = ""
    is_null: bool = False
    is_quoted: bool = False
    items: list["Node"] = []
    size: int = 1
    """Values in it, with those that aliases repeat; while it is read, values before it."""
    height: int = 1
    """Levels of nesting in it, itself included."""


Entries = dict[str, tuple[int, Node]]  # line and value by key
Checks = Mapping[str, Callable[[Node], Any]]


class Wrong(Exception):
    """Why a value cannot be used, and its line; and what else is wrong, by line."""

    def __init__(self, reason: str, line: int, others: Sequence["Wrong"] = ()) -> None:
        super().__init__(reason, line, others)
        self.reason, self.line, self.others = reason, line, others


class Faults(AbstractContextManager[None]):
    """Collects what is wrong with the parts of a file, so that one check names all of it."""

    def __init__(self) -> None:
        self._found: list[Wrong] = []

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, Wrong):
            return False
        self._found += [error, *error.others]
        return True

    def end(self) -> None:
        """Raise the first, with the others."""
        if self._found:
            first, *others = sorted(self._found, key=lambda wrong: wrong.line)
            raise Wrong(first.reason, first.line, others)


def read_entries(
    path: Path, check: Callable[[Entries], dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, int]]:
    """Return what a check makes of a file's entries and their lines; nothing without a file."""
    text = _read_text(path)
    if text is None:
        return {}, {}
    try:
        entries = _top_entries(text)
        return check(entries), {key: line for key, (line, _) in entries.items()}
    except Wrong as wrong:
        others = [InputError(str(path), other.reason, other.line) for other in wrong.others]
        raise InputError(str(path), wrong.reason, wrong.line, 1, tuple(others)) from None


def _top_entries(text: str) -> Entries:
    nodes = _compose(text)
    if not nodes or nodes[0].is_null:
        return {}
    if nodes[0].kind != "mapping":
        raise Wrong("the file must consist of lines such as `key: value`", nodes[0].line)
    return entries_of(nodes[0])


# YAML.


def _read_text(path: Path) -> str | None:
    try:
        status = path.stat()
        if not S_ISREG(status.st_mode):
            raise InputError(str(path), "this is not a file")
        if status.st_size > MAX_SIZE:
            reason = f"the file has {status.st_size:,} bytes, more than {MAX_SIZE:,}"
            raise InputError(str(path), reason)
        data = path.read_bytes()
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(str(path), f"the file cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(str(path), "the file is not UTF-8", line) from None


def _events(text: str) -> Iterator[Any]:
    import yaml

    try:
        yield from yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise Wrong(f"the character {error.character:#x} is not allowed", line) from None
    except yaml.MarkedYAMLError as error:
        mark, last = error.problem_mark or error.context_mark, text.count("\n")
        line = min(getattr(mark, "line", last), last) + 1
        hint = _STAR_HINT if "alias" in (error.context or "") else ""
        raise Wrong(f"not YAML: {error.problem or error.context}{hint}", line) from None


def _compose(text: str) -> list[Node]:
    """Return the file's node, if there is one.

    `yaml.compose` has no bounds: nesting would crash it, and aliases could fill the memory.
    """
    import yaml

    top = Node("sequence", 1, "")
    open_nodes = [top]
    anchors: dict[str, Node] = {}
    values = 0
    for event in _events(text):
        line = event.start_mark.line + 1
        match event:
            case yaml.DocumentStartEvent():
                if top.items:
                    raise Wrong("a second document begins here (---); only one is read", line)
            case yaml.CollectionEndEvent():
                node = open_nodes.pop()
                node.size = values - node.size
                node.height += max([item.height for item in node.items], default=0)
                anchors[node.anchor] = node
            case yaml.AliasEvent(anchor=name):
                if name not in anchors:
                    reason = f"*{name} stands for nothing: there is no &{name} before it"
                    raise Wrong(f"{reason}{_STAR_HINT}", line)
                _check_depth(len(open_nodes) + anchors[name].height - 1, line)
                open_nodes[-1].items.append(anchors[name])
                values += anchors[name].size
            case yaml.ScalarEvent() | yaml.CollectionStartEvent():
                if event.tag not in (None, "!"):
                    raise Wrong(f"tags such as {event.tag[:60]} are not allowed", line)
                _check_depth(len(open_nodes), line)
                node = _node(event, line)
                open_nodes[-1].items.append(node)
                if node.kind == "scalar":
                    anchors[node.anchor] = node
                else:
                    open_nodes.append(node)
                    node.size = values
                values += 1
        if values > MAX_VALUES:
            raise Wrong(f"more than {MAX_VALUES:,} values, with what aliases repeat", line)
    return top.items


def _check_depth(level: int, line: int) -> None:
    if level > MAX_DEPTH + 1:
        raise Wrong(f"nested more than {MAX_DEPTH} deep", line)


def _node(event: Any, line: int) -> Node:
    kind = type(event).__name__.removesuffix("Event").removesuffix("Start").lower()
    if kind != "scalar":
        return Node(kind, line, event.anchor)
    is_plain = event.implicit[0]
    is_null = is_plain and event.value.lower() in ("", "~", "null")
    return Node(kind, line, event.anchor, event.value, is_null, not is_plain)


def entries_of(node: Node) -> Entries:
    """Return the lines and values of a mapping by key."""
    entries: Entries = {}
    for name, value in zip(node.items[::2], node.items[1::2], strict=True):
        if name.kind != "scalar":
            raise Wrong("a key must be a single word", name.line)
        if name.text in entries:
            first = entries[name.text][0]
            reason = f"the key {name.text[:60]!r} is here again; it was in line {first}"
            raise Wrong(reason, name.line)
        entries[name.text] = name.line, value
    return entries


# Checks of any key.


def checked(
    entries: Entries, keys: type[msgspec.Struct], inside: str, checks: Checks
) -> dict[str, Any]:
    """Check the values of a mapping, by their types where `checks` has none; a null leaves its key
    unset. `inside` ends the message about a key that is not there."""
    types = _types(keys)
    given: dict[str, Any] = {}
    faults = Faults()
    for key, (line, node) in entries.items():
        with faults:
            if key not in types:
                reason = f"there is no key {key[:60]!r}{inside}; {nearest(key, types)}"
                raise Wrong(reason, line)
            if node.is_null:
                continue
            if key in checks:
                given[key] = checks[key](node)
            else:
                given[key] = checked_text(key, node, partial(converted, kind=types[key]))
    faults.end()
    return given


@cache
def _types(keys: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(keys, include_extras=True)


def each(key: str, node: Node, limit: int, check: Callable[[Node], T]) -> tuple[T, ...]:
    """Check the values of a list; a single value needs no list around it."""
    if node.kind != "sequence":
        return (check(node),)
    if len(node.items) > limit:
        raise Wrong(f"{key} has {len(node.items):,} entries, more than {limit:,}", node.line)
    faults, values = Faults(), []
    for item in node.items:
        with faults:
            values.append(check(item))
    faults.end()
    return tuple(values)


def text_check(key: str, check: Callable[[str], T]) -> Callable[[Node], T]:
    """Return the check of a value that must be a text; `check` raises `ValueError`."""
    return lambda node: checked_text(key, node, check)


def need(given: dict[str, Any], key: str, inside: str, node: Node) -> None:
    """Refuse a mapping without a key."""
    if key not in given:
        raise Wrong(f"{inside} has no {key}", node.line)


def checked_text(key: str, node: Node, check: Callable[[str], T]) -> T:
    """Check a value that must be a text; `check` raises `ValueError`."""
    text = text_of(key, node)
    try:
        return check(text)
    except ValueError as error:
        separator = ":"
        if str(error).startswith("must be "):
            separator = ""
        raise Wrong(f"{key}{separator} {error}", node.line) from None


def converted(text: str, kind: Any) -> Any:
    """Return a text as a value of a type; raises `ValueError` with what is expected."""
    if text in get_args(kind):
        return text  # msgspec takes ten times as long for a Literal
    try:
        return msgspec.convert(_typed(text), kind)
    except msgspec.ValidationError:
        raise ValueError(f"must be {_expected(kind, text)}") from None


def _typed(text: str) -> object:
    """Return what a plain word means: an answer, a number, or itself."""
    if text.lower() in _ANSWERS:
        return _ANSWERS[text.lower()]
    if re.fullmatch(r"\d{1,9}", text, re.ASCII):
        return int(text)
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


def _expected(kind: Any, text: str) -> str:
    found = f"not {text[:60]!r}"
    if type(None) in get_args(kind):
        kind = get_args(kind)[0]
    if metadata := getattr(kind, "__metadata__", ()):
        return f"{metadata[0].description}, {found}"
    names = get_args(kind)
    if len(names) == 1:
        return f"{names[0]}, {found}"
    near = difflib.get_close_matches(text.lower(), names, n=1)
    hint = "".join(f"; did you mean {name}?" for name in near)
    return f"one of {', '.join(names)}, {found}{hint}"


def nearest(word: str, names: Iterable[str]) -> str:
    """Return a hint at the name that was meant, or at all of them."""
    names = list(names)
    if near := difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.5):
        return f"did you mean {near[0]}?"
    return f"known are {', '.join(names)}"


def text_of(key: str, node: Node) -> str:
    """Return a value that must be a single text, and not an empty one."""
    if node.kind != "scalar":
        raise Wrong(f"{key} must be a single value, not {KINDS[node.kind]}", node.line)
    text: str = node.text.strip()
    if not text:
        raise Wrong(f"{key} is empty", node.line)
    return text


def mapping(key: str, node: Node, limit: int = MAX_VALUES) -> Entries:
    """Return the entries of a value that must be a mapping."""
    if node.kind != "mapping":
        expected = "a mapping (lines such as `name: value`, further in)"
        raise Wrong(f"{key} must be {expected}, not {KINDS[node.kind]}", node.line)
    entries = entries_of(node)
    if len(entries) > limit:
        raise Wrong(f"{key} has {len(entries):,} entries, more than {limit}", node.line)
    return entries
