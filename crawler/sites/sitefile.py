"""The keys of a file in `config/`: their types, defaults and checks, and how a file is read."""

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from pathlib import Path
from stat import S_ISREG
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta

from crawler.config import DEFAULT_RATE, interval
from crawler.errors import InputError, UrlError

MAX_SIZE, MAX_DEPTH, MAX_VALUES = 1_000_000, 10, 50_000
"""Bytes of a file, levels of nesting, and values; what an alias repeats counts each time."""
MAX_FIELDS, MAX_HOSTS, MAX_HEADERS, MAX_HEADER = 500, 10_000, 100, 8_000
MAX_ALTERNATIVES, MAX_WORDS, MAX_JOIN = 20, 500, 100
"""Alternatives of a field, its keywords or known texts, and characters between joined texts."""
MISSING = "missing"  # the record's list of required fields without a value
PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_FIELD_NAME = re.compile(r"\w[\w -]{0,99}")
_ATTRIBUTE = re.compile(r"[^\s\"'<>/=\x00-\x1f]{1,100}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_HEADER_VALUE = re.compile(r"[\t -~\xa0-\xff]*")
_NOT_IN_HOSTS = re.compile(r"[/?#@\s*\\{}%]")
_KINDS = {"scalar": "a single value", "sequence": "a list", "mapping": "a mapping"}
_ANSWERS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
SITE_ONLY = ("hosts", "url_template")
_PLANNED = {"use_llm": "reading of pages by a language model"}
"""Keys of features that this version does not have."""

T = TypeVar("T")

Type = Literal[
    "text", "number", "integer", "price", "area", "date", "floor", "url", "boolean", "html"
]
Boolean = Annotated[bool, Meta(description="true or false")]
Attempts = Annotated[int, Meta(ge=1, le=20, description="a whole number from 1 to 20")]
Requests = Annotated[int, Meta(ge=1, le=1000, description="a whole number from 1 to 1000, or none")]
Delay = Annotated[float, Meta(ge=0, le=86400, description="a number from 0 to 86400 seconds")]
Rate = Annotated[float, Meta(gt=0, le=1e9, description="a number above 0")]
Wait = Annotated[float, Meta(ge=0.1, le=86400, description="a number from 0.1 to 86400 seconds")]
Timeout = Annotated[float, Meta(ge=0.1, le=3600, description="a number from 0.1 to 3600 seconds")]


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How often a page is tried, and the longest waits: after the first failure, and at all."""

    attempts: Attempts = 3
    base_s: Timeout = 1.0
    cap_s: Wait = 600.0


class Convert(msgspec.Struct, frozen=True, kw_only=True):
    """A field in another currency, at a fixed rate."""

    field: str
    to: str
    rate: Rate
    currency: str = ""  # the currency that is converted; without it, every other one


class Field(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One value, a list of values, or records: where they are in a page, and what they are."""

    css: str = ""
    attr: tuple[str, ...] = ()  # the attributes that may hold the value, instead of the text
    json: str = ""
    json_ld: str = ""
    meta: str = ""
    microdata: str = ""
    label: str = ""
    url: str = ""
    xpath: str = ""
    regex: str = ""  # what of the text counts: the first group, or the whole match
    first_of: tuple["Field", ...] = ()
    each: str = ""
    fields: dict[str, "Field"] = {}
    divide: tuple[str, ...] = ()
    convert: Convert | None = None
    all: Boolean = False
    type: Type = "text"
    unit: str = ""
    enum: dict[str, str] = {}
    keywords: tuple[str, ...] = ()
    join: str | None = None
    locale: str = ""
    required: Boolean = False  # whether a record without the field names it in `missing`

    @property
    def source(self) -> str:
        """The key that says where the value is; `text` where it is the whole text around."""
        return next((key for key in SOURCES if getattr(self, key)), "text")

    @property
    def is_list(self) -> bool:
        """Whether the value is a list, which is empty where the page has nothing."""
        if self.first_of:
            return any(each.is_list for each in self.first_of)
        return bool(self.each) or (self.all and self.join is None and not self.keywords)

    @property
    def operands(self) -> tuple[str, ...]:
        """The fields that the value is made of."""
        of_alternatives = tuple(name for each in self.first_of for name in each.operands)
        if self.convert:
            return (self.convert.field,)
        return self.divide or of_alternatives


SOURCES = (
    "first_of",
    "each",
    "json",
    "json_ld",
    "meta",
    "microdata",
    "label",
    "url",
    "xpath",
    "divide",
    "convert",
    "css",
)
"""The keys of a field that say where its value is; `json` may have a `css` beside it."""
_SHARED = ("type", "unit", "enum", "keywords", "join", "all", "locale")
"""The keys that alternatives have in common, unless one has its own."""
_OF_RECORDS = ("each", "json", "json_ld", "microdata")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Every key of a file, with its value where no file sets it."""

    hosts: tuple[str, ...] = ()
    rate: str = DEFAULT_RATE
    concurrency: int = 2  # requests at a time; 0 is no limit
    delay_s: Delay = 0.0
    limit_per: Literal["domain", "ip"] = "domain"
    timeout_s: Timeout = 60.0
    connect_timeout_s: Timeout = 10.0
    retry: Retry = Retry()
    respect_robots: Boolean = True
    headers: tuple[tuple[str, str], ...] = ()
    fetcher: Literal["http"] = "http"
    url_template: str | None = None
    encoding: str | None = None  # the charset of every page, whatever pages and their headers say
    locale: str | None = None
    fields: dict[str, Field] = {}
    required: tuple[str, ...] = ()  # fields without which a record is invalid
    validate: str | None = None  # the JSON Schema of a record, as JSON
    structured: Boolean | None = None
    """Whether records hold what any page says about itself; if not set: where fields are not."""


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


Entries = dict[str, tuple[int, Node]]  # line and value by key
Checks = Mapping[str, Callable[[Node], Any]]


class _Wrong(Exception):
    """Why a value cannot be used, and its line; and what else is wrong, by line."""

    def __init__(self, reason: str, line: int, others: Sequence["_Wrong"] = ()) -> None:
        super().__init__(reason, line, others)
        self.reason, self.line, self.others = reason, line, others


class _Faults(AbstractContextManager[None]):
    """Collects what is wrong with the parts of a file, so that one check names all of it."""

    def __init__(self) -> None:
        self._found: list[_Wrong] = []

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, _Wrong):
            return False
        self._found += [error, *error.others]
        return True

    def end(self) -> None:
        """Raise the first, with the others."""
        if self._found:
            first, *others = sorted(self._found, key=lambda wrong: wrong.line)
            raise _Wrong(first.reason, first.line, others)


def read(
    path: Path, keys: type[Settings], checks: Checks, not_here: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the checked values of a file and the lines of its keys; nothing without a file."""

    def checked(entries: Entries) -> dict[str, Any]:
        faults, known = _Faults(), dict(entries)
        for key, (line, node) in entries.items():
            with faults:
                if key in not_here and not node.is_null:
                    del known[key]
                    reason = f"{key} belongs into the file of a site (sites/<site>.yaml), not here"
                    raise _Wrong(reason, line)
                if key in _PLANNED:
                    del known[key]
                    reason = f"this version has no {_PLANNED[key]}; take it out"
                    raise _Wrong(f"{key} is not in force yet: {reason}", line)
        given: dict[str, Any] = {}
        with faults:
            given = _checked(known, keys, "", checks)
        faults.end()
        return given

    return read_entries(path, checked)


def read_entries(
    path: Path, check: Callable[[Entries], dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, int]]:
    """Return what a check makes of a file's entries and their lines; nothing without a file."""
    text = _text_of(path)
    if text is None:
        return {}, {}
    try:
        entries = _top_entries(text)
        return check(entries), {key: line for key, (line, _) in entries.items()}
    except _Wrong as wrong:
        others = [InputError(str(path), other.reason, other.line) for other in wrong.others]
        raise InputError(str(path), wrong.reason, wrong.line, 1, tuple(others)) from None


def checked_entries(
    path: str, entries: Entries, keys: type[Settings], checks: Checks
) -> dict[str, Any]:
    """Check values that were read from a file of another kind."""
    try:
        return _checked(entries, keys, "", checks)
    except _Wrong as wrong:
        raise InputError(path, wrong.reason, wrong.line) from None


def _top_entries(text: str) -> Entries:
    nodes = _compose(text)
    if not nodes or nodes[0].is_null:
        return {}
    if nodes[0].kind != "mapping":
        raise _Wrong("the file must consist of lines such as `key: value`", nodes[0].line)
    return _entries(nodes[0])


# YAML.


def _text_of(path: Path) -> str | None:
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
        raise InputError(str(path), f"the file cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(str(path), "the file is not UTF-8", line) from None


def _events(text: str) -> Iterator[Any]:
    import yaml

    try:
        yield from yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _Wrong(f"the character {error.character:#x} is not allowed", line) from None
    except yaml.MarkedYAMLError as error:
        mark, last = error.problem_mark or error.context_mark, text.count("\n")
        line = min(getattr(mark, "line", last), last) + 1
        raise _Wrong(f"not YAML: {error.problem or error.context}", line) from None


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
                    raise _Wrong("a second document begins here (---); only one is read", line)
            case yaml.CollectionEndEvent():
                node = open_nodes.pop()
                node.size = values - node.size
                anchors[node.anchor] = node
            case yaml.AliasEvent(anchor=name):
                if name not in anchors:
                    reason = f"*{name} stands for nothing: there is no &{name} before it"
                    raise _Wrong(reason, line)
                open_nodes[-1].items.append(anchors[name])
                values += anchors[name].size
            case yaml.ScalarEvent() | yaml.CollectionStartEvent():
                if event.tag not in (None, "!"):
                    raise _Wrong(f"tags such as {event.tag[:60]} are not allowed", line)
                if len(open_nodes) > MAX_DEPTH + 1:
                    raise _Wrong(f"nested more than {MAX_DEPTH} deep", line)
                node = _node(event, line)
                open_nodes[-1].items.append(node)
                if node.kind == "scalar":
                    anchors[node.anchor] = node
                else:
                    open_nodes.append(node)
                    node.size = values
                values += 1
        if values > MAX_VALUES:
            raise _Wrong(f"more than {MAX_VALUES:,} values, with what aliases repeat", line)
    return top.items


def _node(event: Any, line: int) -> Node:
    kind = type(event).__name__.removesuffix("Event").removesuffix("Start").lower()
    if kind != "scalar":
        return Node(kind, line, event.anchor)
    is_plain = event.implicit[0]
    is_null = is_plain and event.value.lower() in ("", "~", "null")
    return Node(kind, line, event.anchor, event.value, is_null, not is_plain)


def _entries(mapping: Node) -> Entries:
    entries: Entries = {}
    for name, value in zip(mapping.items[::2], mapping.items[1::2], strict=True):
        if name.kind != "scalar":
            raise _Wrong("a key must be a single word", name.line)
        if name.text in entries:
            first = entries[name.text][0]
            reason = f"the key {name.text[:60]!r} is here again; it was in line {first}"
            raise _Wrong(reason, name.line)
        entries[name.text] = name.line, value
    return entries


# Checks of any key.


def _checked(
    entries: Entries, keys: type[msgspec.Struct], inside: str = "", checks: Checks | None = None
) -> dict[str, Any]:
    """Check the values of a mapping; a null leaves its key unset.

    `checks` go before the common ones: a key may mean something else in another mapping.
    """
    checks = checks or {}
    types = _types(keys)
    given: dict[str, Any] = {}
    faults = _Faults()
    for key, (line, node) in entries.items():
        with faults:
            if key not in types:
                reason = f"there is no key {key[:60]!r}{inside}; {_nearest(key, types)}"
                raise _Wrong(reason, line)
            if node.is_null:
                continue
            if key in checks:
                given[key] = checks[key](node)
            else:
                given[key] = _value(key, node, types[key])
    faults.end()
    return given


@cache
def _types(keys: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(keys, include_extras=True)


def _value(key: str, node: Node, kind: Any) -> Any:
    if key in _NODE_CHECKS:
        return _NODE_CHECKS[key](node)
    return _checked_text(key, node, _TEXT_CHECKS.get(key, lambda text: _converted(text, kind)))


def _checked_text(key: str, node: Node, check: Callable[[str], T]) -> T:
    text = _text(key, node)
    try:
        return check(text)
    except ValueError as error:
        separator = ":"
        if str(error).startswith("must be "):
            separator = ""
        raise _Wrong(f"{key}{separator} {error}", node.line) from None


def _converted(text: str, kind: Any) -> Any:
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
        return float(text)
    except ValueError:
        return text


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


def _nearest(word: str, names: Iterable[str]) -> str:
    names = list(names)
    if near := difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.5):
        return f"did you mean {near[0]}?"
    return f"known are {', '.join(names)}"


def _text(key: str, node: Node) -> str:
    if node.kind != "scalar":
        raise _Wrong(f"{key} must be a single value, not {_KINDS[node.kind]}", node.line)
    text: str = node.text.strip()
    if not text:
        raise _Wrong(f"{key} is empty", node.line)
    return text


def _mapping(key: str, node: Node, limit: int = MAX_VALUES) -> Entries:
    if node.kind != "mapping":
        expected = "a mapping (lines such as `name: value`, further in)"
        raise _Wrong(f"{key} must be {expected}, not {_KINDS[node.kind]}", node.line)
    entries = _entries(node)
    if len(entries) > limit:
        raise _Wrong(f"{key} has {len(entries):,} entries, more than {limit}", node.line)
    return entries


# Checks of single keys. Those of a text raise `ValueError`.


def _rate(text: str) -> str:
    try:
        interval(text)
    except ValueError as error:
        raise ValueError(f"{error}, not {text[:60]!r}") from None
    return text


def _concurrency(text: str) -> int:
    if text == "none":
        return 0
    return int(_converted(text, Requests))


def _hosts(node: Node) -> tuple[str, ...]:
    nodes = [node]
    if node.kind == "sequence":
        nodes = node.items
    if len(nodes) > MAX_HOSTS:
        raise _Wrong(f"hosts has {len(nodes):,} names, more than {MAX_HOSTS:,}", node.line)
    hosts: dict[str, None] = {}
    for item in nodes:
        try:
            host = _host_name(_text("hosts", item))
        except ValueError as error:
            raise _Wrong(f"hosts: {error}", item.line) from None
        if host in hosts:
            raise _Wrong(f"hosts names {host} twice", item.line)
        hosts[host] = None
    return tuple(hosts)


def _host_name(text: str) -> str:
    from crawler.urls import parse

    name = text.removeprefix("*.")
    star = text.removesuffix(name)
    if name.count(":") > 1 and not name.startswith("["):
        name = f"[{name}]"
    has_port = ":" in name and not name.endswith("]")
    if not has_port and not _NOT_IN_HOSTS.search(name):
        try:
            host = host_of(parse(f"http://{name}/").url)
        except UrlError:
            host = ""
        is_address = ":" in host or host.replace(".", "").isdigit()
        if host and not (star and is_address):
            return star + host
    hint = "without a port; *.example.org for all below it"
    if "/" in text:
        hint = "without https:// and without a path"
    wanted = f"write it as county.example.org, {hint}"
    raise ValueError(f"{text[:100]!r} is not a host name; {wanted}")


def host_of(url: str) -> str:
    """Return the host of a URL in lower case, without port, brackets and final dot."""
    authority = url.partition("://")[2].partition("/")[0].rpartition("@")[2]
    host, _, port = authority.rpartition(":")
    if not host or not port.isdigit():
        host = authority
    return host.strip("[]").rstrip(".").lower()


def _retry(node: Node) -> dict[str, Any]:
    given = _checked(_mapping("retry", node), Retry, " in retry")
    if given.get("base_s", 0.0) > given.get("cap_s", math.inf):
        raise _Wrong("retry: base_s is more than cap_s", node.line)
    return given


def _headers(node: Node) -> dict[str, str | None]:
    """Check headers; a null removes that of the defaults. No message may show a value."""
    from crawler.fetch.session import RESERVED  # imports the client, which few commands need

    headers: dict[str, str | None] = {}
    lines: dict[str, int] = {}
    for name, (line, value) in _mapping("headers", node, MAX_HEADERS).items():
        folded = name.lower()
        if not _HEADER_NAME.fullmatch(name):
            raise _Wrong(f"headers: {name[:60]!r} is not a header's name", line)
        if folded in lines:
            reason = f"{name} is here again; it was in line {lines[folded]}"
            raise _Wrong(f"headers: {reason}", line)
        lines[folded] = line
        if folded in RESERVED:
            reason = f"{name} is set by the program itself, for each request"
            raise _Wrong(f"headers: {reason}", line)
        its = f"headers: the value of {name}"
        if value.kind != "scalar":
            raise _Wrong(f"{its} must be a single text, not {_KINDS[value.kind]}", value.line)
        text = value.text.strip()
        if not _HEADER_VALUE.fullmatch(text):
            raise _Wrong(f"{its} holds a line break or another sign that no header may", line)
        if len(text) > MAX_HEADER:
            raise _Wrong(f"{its} has {len(text):,} characters, more than {MAX_HEADER:,}", line)
        headers[name] = None if value.is_null else text
    return headers


def _template(text: str) -> str:
    from crawler.urls import parse

    names = PLACEHOLDER.findall(text)
    sample = PLACEHOLDER.sub("0", text)
    if "{" in sample or "}" in sample or not all(name.strip() for name in names):
        raise ValueError("a brace is open or empty; placeholders are columns, as in {parcel_id}")
    if not names:
        reason = "it has no placeholder, such as {parcel_id}"
        raise ValueError(f"{reason}: every row would get the same URL")
    scheme, _, rest = text.partition("://")
    authority = re.split(r"[/?#\\]", rest, maxsplit=1)[0]
    if rest and "{" in scheme + authority:
        raise ValueError("the host must be the same for all rows; placeholders stand behind it")
    if "@" in authority:
        raise ValueError("it holds a user name or a password; secrets have no place in it")
    try:
        url = parse(sample).url
    except UrlError as error:
        raise ValueError(str(error)) from None
    # The host is written as a browser would: the one checked is the one dialled.
    origin = "/".join(url.split("/")[:3])
    return origin + rest.removeprefix(authority)


def _encoding(text: str) -> str:
    from crawler.fetch import charset  # imports detection, which few commands need

    name = charset.resolve_label(text)
    if not name:
        raise ValueError(f"{text[:60]!r} is not a charset; {_nearest(text, charset.NAMES)}")
    return name


def _locale(text: str) -> str:
    from crawler.sites import values

    try:
        return values.locale_name(text)
    except KeyError:
        language = text.replace("_", "-").partition("-")[0].lower()
    near = [name for name in values.LOCALES if name.partition("-")[0] == language]
    hint = f"did you mean one of {', '.join(near)}?"
    if not near:
        hint = _nearest(language, [name for name in values.LOCALES if "-" not in name])
    raise ValueError(f"{text[:60]!r} is not a known locale; {hint}")


def _fields(node: Node, in_record: bool = False) -> dict[str, Field]:
    fields: dict[str, Field] = {}
    faults = _Faults()
    for name, (line, value) in _mapping("fields", node, MAX_FIELDS).items():
        with faults:
            if not _FIELD_NAME.fullmatch(name):
                allowed = "letters, digits, spaces, - and _ make one"
                raise _Wrong(f"fields: {name[:60]!r} is not a name; {allowed}", line)
            if name == MISSING:
                meaning = "the name of the list of required fields that a page lacks"
                raise _Wrong(f"fields: {MISSING!r} is {meaning}", line)
            field = _field(name, line, value, in_record)
            for used in field.operands:
                if used not in fields:
                    reason = f"there is no field {used[:60]!r} before it"
                    raise _Wrong(f"the field {name}: {reason}", line)
            fields[name] = field
    faults.end()
    return fields


def _field(
    name: str, line: int, node: Node, in_record: bool, shared: dict[str, Any] | None = None
) -> Field:
    """Read a field, or one of its alternatives with the keys that they `share`."""
    if node.kind == "scalar":
        return Field(css=_checked_text("css", node, _selector), **(shared or {}))
    if node.kind == "sequence" and shared is None:
        return _chain(name, node, in_record, {})
    entries = _mapping(f"the field {name}", node)
    checks = _FIELD_CHECKS
    if in_record:
        checks = {**checks, "xpath": partial(_no_xpath, name)}
    given = _checked(entries, Field, f" in the field {name}", checks)
    if chain := given.pop("first_of", None):
        own = {key: value for key, value in given.items() if key not in (*_SHARED, "required")}
        if own or shared is not None:
            reason = f"first_of has its keys in its alternatives, but not {' and '.join(own)}"
            if not own:
                reason = "first_of cannot be inside another one"
            raise _Wrong(f"the field {name}: {reason}", line)
        required = given.pop("required", False)
        field = _chain(name, chain, in_record, given)
        return msgspec.structs.replace(field, required=required or field.required)
    if "fields" in given:
        given["fields"] = _fields(given["fields"], in_record=True)
    field = Field(**((shared or {}) | given))
    if reason := _contradiction(field, given, in_record):
        raise _Wrong(f"the field {name}{reason}", entries.get("type", (line,))[0])
    return field


def _chain(name: str, node: Node, in_record: bool, shared: dict[str, Any]) -> Field:
    if node.kind != "sequence" or not node.items:
        raise _Wrong(f"the field {name}: first_of must be a list of alternatives", node.line)
    if len(node.items) > MAX_ALTERNATIVES:
        reason = f"more than {MAX_ALTERNATIVES} alternatives"
        raise _Wrong(f"the field {name} has {reason}", node.line)
    found = tuple(_field(name, each.line, each, in_record, shared) for each in node.items)
    return Field(first_of=found, required=any(each.required for each in found))


def _contradiction(field: Field, given: dict[str, Any], in_record: bool) -> str:
    """Return what is missing or too much in a field, as the end of a sentence."""
    named = [key for key in SOURCES if key in given and (key, "json" in given) != ("css", True)]
    if len(named) > 1:
        return f" has {' and '.join(named)}; write a list of alternatives, one for each"
    is_text = field.regex or field.keywords or in_record
    if not named and not is_text:
        return f" has no css, the selector that finds it, and none of {', '.join(SOURCES[:-1])}"
    if field.type == "html" and field.attr:
        return ": an attribute has no html; leave out attr or the type"
    if bool(field.fields) != bool(field.each) and not (field.fields and named):
        return ": each needs fields, and fields need each, json, json_ld or microdata"
    if field.fields and named[0] not in _OF_RECORDS:
        return f": {named[0]} gives no records; fields need {', '.join(_OF_RECORDS)}"
    if field.attr and (set(named) - {"css", "json"} or (field.json and not field.css)):
        return f": attr belongs to css, not to {named[0]}"
    if field.fields and (field.keywords or field.enum or field.join is not None):
        return ": records have no enum, keywords or join; their fields may have"
    if named and named[0] in ("divide", "convert") and len(given) > 1 + ("required" in given):
        return f": beside {named[0]} only required has a meaning"
    read_as = [key for key in ("type", "enum", "keywords") if key in given]
    if len(read_as) > 1:
        return f" has {' and '.join(read_as)}; only one of them says what the value is"
    if field.unit:
        return _wrong_unit(field)
    return ""


def _wrong_unit(field: Field) -> str:
    from crawler.sites import measures

    if field.type == "price":
        if field.unit not in measures.currencies().values():
            return f": the unit {field.unit!r} is no currency's code, such as EUR"
    elif field.type == "area":
        try:
            measures.unit_of_area(field.unit)
        except ValueError as error:
            return f": {error}"
    else:
        return ": only a price and an area have a unit"
    return ""


def with_locale(fields: dict[str, Field], locale: str) -> dict[str, Field]:
    """Give a file's locale to the fields that have none of their own."""
    return {name: _with_locale(field, locale) for name, field in fields.items()}


def _with_locale(field: Field, locale: str) -> Field:
    return msgspec.structs.replace(
        field,
        locale=field.locale or locale,
        first_of=tuple(_with_locale(each, locale) for each in field.first_of),
        fields=with_locale(field.fields, locale),
    )


def _listed(key: str, node: Node, check: Callable[[str], str]) -> tuple[str, ...]:
    """Check a text, or a list of texts."""
    nodes = [node]
    if node.kind == "sequence":
        nodes = node.items
    if not nodes or len(nodes) > MAX_WORDS:
        raise _Wrong(f"{key} must have 1 to {MAX_WORDS} entries", node.line)
    return tuple(dict.fromkeys(_checked_text(key, item, check) for item in nodes))


def _divide(node: Node) -> tuple[str, ...]:
    if node.kind != "sequence" or len(node.items) != 2:
        raise _Wrong("divide must be a list of two fields, as in [price, area]", node.line)
    return tuple(_text("divide", item) for item in node.items)


def _convert(node: Node) -> Convert:
    from crawler.sites.measures import currencies

    entries = _mapping("convert", node)
    a_number: Checks = {
        "rate": lambda node: _checked_text("rate", node, partial(_converted, kind=Rate))
    }
    given = _checked(entries, Convert, " in convert", a_number)
    for key in ("field", "to", "rate"):
        if key not in given:
            raise _Wrong(f"convert has no {key}", node.line)
    for key in ("to", "currency"):
        if key in given and given[key] not in currencies().values():
            reason = f"{given[key][:60]!r} is no currency's code, such as EUR"
            raise _Wrong(f"convert: {reason}", entries[key][0])
    return Convert(**given)


def _enum(node: Node) -> dict[str, str]:
    entries = _mapping("enum", node, MAX_WORDS)
    return {text: _text("enum", value) for text, (_, value) in entries.items()}


def _join(node: Node) -> str:
    if node.kind != "scalar" or len(node.text) > MAX_JOIN:
        raise _Wrong(f"join must be a text of up to {MAX_JOIN} characters", node.line)
    return str(node.text)


def _no_xpath(name: str, node: Node) -> str:
    reason = "xpath cannot be used inside of each; write css"
    raise _Wrong(f"the field {name}: {reason}", node.line)


def _xpath(text: str) -> str:
    from crawler.sites.xpath import check

    check(text)
    return text


def _path(text: str) -> str:
    from crawler.sites import jsonpath

    jsonpath.compile(text)
    return text


def _required(node: Node) -> tuple[str, ...]:
    return _listed("required", node, str)


def _schema(node: Node) -> str:
    from crawler.sites import validation

    try:
        return validation.checked(_json_value(node))
    except ValueError as error:
        raise _Wrong(f"validate: {error}", node.line) from None


def _json_value(node: Node) -> Any:
    """Return what a value of YAML is in JSON; a text in quotes is a text."""
    if node.kind == "sequence":
        return [_json_value(item) for item in node.items]
    if node.kind == "mapping":
        return {key: _json_value(value) for key, (_, value) in _entries(node).items()}
    if node.is_null or node.is_quoted:
        return None if node.is_null else node.text
    try:
        return msgspec.json.decode(node.text)
    except msgspec.DecodeError:
        return node.text


def _selector(text: str) -> str:
    from crawler.sites import css

    css.compile(text)
    return text


def _regex(text: str) -> str:
    from crawler.sites.selectors import pattern

    pattern(text)
    return text


def _attribute(text: str) -> str:
    text = text.lower()
    if not _ATTRIBUTE.fullmatch(text):
        raise ValueError(f"{text[:60]!r} is not an attribute's name")
    return text


_NODE_CHECKS: dict[str, Callable[[Node], Any]] = {
    "hosts": _hosts,
    "retry": _retry,
    "headers": _headers,
    "fields": _fields,
    "required": _required,
    "validate": _schema,
}
_TEXT_CHECKS: dict[str, Callable[[str], Any]] = {
    "rate": _rate,
    "concurrency": _concurrency,
    "url_template": _template,
    "encoding": _encoding,
    "locale": _locale,
    "css": _selector,
    "regex": _regex,
}
_FIELD_CHECKS: Checks = {
    "attr": lambda node: _listed("attr", node, _attribute),
    "each": lambda node: _checked_text("each", node, _selector),
    "json": lambda node: _checked_text("json", node, _path),
    "json_ld": lambda node: _checked_text("json_ld", node, _path),
    "microdata": lambda node: _checked_text("microdata", node, _path),
    "url": lambda node: _checked_text("url", node, _regex),
    "xpath": lambda node: _checked_text("xpath", node, _xpath),
    "first_of": lambda node: node,  # read later, with the keys that are shared
    "fields": lambda node: node,
    "divide": _divide,
    "convert": _convert,
    "enum": _enum,
    "keywords": lambda node: _listed("keywords", node, str),
    "join": _join,
    "required": lambda node: _checked_text("required", node, partial(_converted, kind=Boolean)),
}
