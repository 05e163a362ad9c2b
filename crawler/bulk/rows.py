"""Rows of CSV, JSON, JSONL, TXT and XLSX files into new tasks, as a stream; a bad row never stops
the good ones."""

import csv
import difflib
import hashlib
import os
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, NoReturn, Self, TypeVar, cast

import msgspec

from crawler.bulk.jsontext import elements, loads
from crawler.bulk.textfile import KEPT, MAX_LINE, Line, lines, opened, pieces, too_long
from crawler.errors import InputError, UrlError, UsageError
from crawler.files import commit
from crawler.logs import printable
from crawler.models import NewTask
from crawler.sites.config import Sites, expand
from crawler.urls import credentials, parse, without_credentials, without_secrets

MAX_QUOTED_LINES = 1000
"""A quoted cell over more lines than this counts as a quote that was never closed."""

MAX_BATCH = 4 << 20
"""What rows that are committed together may take."""
MAX_NAME = 1_000
"""Characters of a column's name: each row is stored with all of them."""
MAX_CELLS = 100_000_000
"""The cells of a workbook's rows, with the empty ones between and behind those that it holds."""

_PLAIN_ROW = 1 << 14
_SHOWN = 8
_DELIMITERS = ",;\t|"
_NO_DELIMITER = "\x1f"
_PRIORITIES = {"": 5} | {str(number): number for number in range(1, 10)}
_SECOND_URL = re.compile(r"\S\s+https?://", re.IGNORECASE)
"""A parser for URLs takes a space for one in a path, and leaves line breaks out."""
_URLS = re.compile("#|https?:", re.IGNORECASE)
_WHOLE = re.compile(r"\+?0*([1-9])(?:\.0*)?")
_MARKUP = re.compile(r"<(?:!doctype|!--|\?xml|html|head|body|script)", re.IGNORECASE)
_ARRAY = re.compile(r"\[\s*(?:\{|\n|$)")
_CUTS = re.compile(r"""(["\r\n,])""")
_URL_START = re.compile(
    r"""\bhttps?:[\\/]*|\b[a-z][a-z0-9+.-]{0,20}:[\\/]{2,}|(?<![\w:])[\\/]{2,}""", re.IGNORECASE
)


class Row(msgspec.Struct, frozen=True):
    """A row that can become a task; `credentials` are what its URL held of them, by origin: the
    task has them not.

    `size` is about what it takes in memory.
    """

    task: NewTask
    credentials: tuple[str, str] | None = None
    size: int = 0

    def __repr__(self) -> str:
        return f"Row({self.task})"


class Reject(msgspec.Struct, frozen=True, omit_defaults=True):
    """A row that cannot, why, and its first kilobyte without secrets."""

    line: int
    reason: str
    text: str
    item: int = 1
    """The how-many-eth row of its line it is."""


class Fields(msgspec.Struct, frozen=True):
    """A row as it is, for whoever makes something other than a crawler's task of it."""

    line: int
    fields: dict[str, Any]
    text: str
    item: int = 1


class _Form(NamedTuple):
    """What rows are read for: tasks, whose URL the sites' templates may give, or fields with these
    known among them."""

    sites: Sites | None = None
    known: frozenset[str] = frozenset()
    url: str = "url"
    """The column with the URLs."""


T = TypeVar("T")
Rows = Iterator[Row | Reject]
_Items = Iterator[Row | Fields | Reject]


def read(path: Path, sites: Sites | None = None, url_column: str | None = None) -> Rows:
    """Every row of a file, good or bad, in its order; raises `InputError` where the file as a whole
    is unusable.

    The URLs are in the column `url`, or in that one. A row without a URL gets it from the
    `url_template` of the site that its `platform` names.
    """
    if sites is not None and not sites.templates:
        sites = None
    return cast(Rows, _items(path, _Form(sites, url=_plain(url_column or "url"))))


def read_fields(path: Path, known: frozenset[str]) -> Iterator[Fields | Reject]:
    """Every row of a file as its fields, good or bad; as `read`, but no row needs a URL.

    The known columns go by these names, however their case is in the file, and their numbers are
    text as it is written there; a table must have one of them.
    """
    return cast(Iterator[Fields | Reject], _items(path, _Form(known=known)))


def _items(path: Path, form: _Form) -> _Items:
    ending, packed = _ending(path)
    if ending == ".xlsx":
        rows = _sheet_rows(path, form)
    else:
        texts = pieces(path, packed=packed)
        first = next(texts)
        _refuse_foreign(path, _READERS[ending], first)
        rows = _READERS[ending](path, chain((first,), texts), form)
    row = next(rows, None)
    if row is None:
        raise InputError(
            str(path), "there are no rows in it" + (", only a header" if ending in _TABLES else "")
        )
    yield row
    yield from rows


def batches(items: Iterator[T], rows: int, size: Callable[[T], int]) -> Iterator[list[T]]:
    """The rows in lists, shorter where they are large: five thousand of a megabyte would take
    gigabytes of memory.

    Those that were read before an `InputError` come before it is raised.
    """
    found: list[T] = []
    total = 0
    broken: InputError | None = None
    while broken is None:
        try:
            item = next(items)
        except StopIteration:
            break
        except InputError as error:
            broken = error
            break
        found.append(item)
        total += size(item)
        if len(found) == rows or total > MAX_BATCH:
            yield found
            found, total = [], 0
    if found:
        yield found
    if broken:
        raise broken


def other_sheets(path: Path) -> tuple[str, ...]:
    """The sheets of a workbook that hold rows, but are not read: only the first one is."""
    if _ending(path)[0] != ".xlsx":
        return ()
    from crawler.bulk import sheet

    return tuple(sheet.other_sheets(path))


def not_read(sheets: Sequence[str]) -> str:
    """What to say of the sheets that are not read."""
    names = ", ".join(repr(printable(name)) for name in sheets[:_SHOWN])
    more = f" and {len(sheets) - _SHOWN:,} more" if len(sheets) > _SHOWN else ""
    return f"only the first sheet was read, not {names}{more}: save each as a file of its own to import it"


def checksum(path: Path) -> str:
    """The SHA-256 of a file as it lies there."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def rejected(row: Fields, reason: str) -> Reject:
    """A row that its reader could make nothing of."""
    return msgspec.structs.replace(_reject(row.line, reason, row.text), item=row.item)


class RejectsFile:
    """The rejected rows of one import; it appears whole on leaving, and only if there are any.

    It is beside the file that was read, or in the other folder where that one cannot be written.
    """

    def __init__(self, source: Path, instead: Path | None = None) -> None:
        self.path = source.with_name(f"{source.name}.rejects.jsonl")
        place = hashlib.sha256(os.fsencode(source.absolute())).hexdigest()[
            :8
        ]  # a file of that name may be elsewhere
        name = os.fsencode(source.name)[:100].decode("utf-8", "ignore")
        self._instead = instead / f"{name}.{place}.rejects.jsonl" if instead else None
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def add(self, reject: Reject) -> None:
        """Write a rejected row down."""
        try:
            if self._file is None:
                self._file = self._opened()
            self._file.write(msgspec.json.encode(reject) + b"\n")
        except OSError as error:
            self._fail(error)

    @property
    def _part(self) -> Path:
        # With the process in its name: two imports of one file at a time must not write into one
        # another's.
        return self.path.with_name(f".{self.path.name}.{os.getpid()}.part")

    def _opened(self) -> BinaryIO:
        try:
            return self._part.open("wb")
        except OSError:
            if self._instead is None:
                raise
        self.path = self._instead
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._part.open("wb")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if kind is not None and not issubclass(kind, InputError):
            self._discard()  # broken off in the middle: half a list would look like all of it
        elif self._file is not None:
            self._publish(self._file)
        elif kind is None:
            for path in filter(None, (self.path, self._instead)):
                with suppress(
                    OSError
                ):  # a folder that cannot be written is no concern of an import without rejects
                    path.unlink()

    def _publish(self, file: BinaryIO) -> None:
        try:
            commit(file, self._part, self.path)
            file.close()
        except OSError as error:
            self._fail(error)

    def _discard(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            with suppress(OSError):
                self._part.unlink()

    def _fail(self, error: OSError) -> NoReturn:
        self._discard()
        raise UsageError(
            f"rejected rows cannot be written to {self.path}: {error.strerror}; "
            "make room or give write permission there, or import a copy of the file from another folder"
        ) from None


# What kind of file it is.


def _ending(path: Path) -> tuple[str, bool]:
    """The ending that says what a file is, and whether it is packed."""
    name = path.name.lower()
    ending, packed = Path(name.removesuffix(".gz")).suffix, name.endswith(".gz")
    if ending not in _READERS and (ending != ".xlsx" or packed):
        opened(path).close()  # that it is missing, or a folder, would be the better reason
        known = f"known are {', '.join(_READERS)}, each also with .gz, and .xlsx"
        raise InputError(str(path), f"the ending {ending!r} is not known; {known}")
    return ending, packed


def ending_of(path: Path) -> str:
    """The ending that a file should have by its content, for one that came without a name."""
    with opened(path) as file:
        head = file.read(4)
    if head == b"PK\x03\x04":
        return ".xlsx"
    packed = head.startswith(b"\x1f\x8b")
    start = next(pieces(path, packed=packed)).lstrip()
    first = start.partition("\n")[0]
    if start.startswith("["):
        ending = ".json"
    elif start.startswith("{"):
        ending = ".jsonl" if _is_object(first) else ".json"
    else:
        ending = ".txt" if _URLS.match(start) and not _is_header(first) else ".csv"
    return f"{ending}.gz" if packed else ending


def _is_object(line: str) -> bool:
    with suppress(ValueError):
        return isinstance(loads(line.strip()), dict)
    return False


def _refuse_foreign(path: Path, reader: "Reader", text: str) -> None:
    """Tell by its beginning a file that is not what its name says, before each of its rows is
    rejected."""
    start, found = text[:KEPT].lstrip(), None
    if _MARKUP.match(start):
        found = "HTML or XML"
    elif reader in (_csv_rows, _txt_rows) and start.startswith(("{", "[")):
        found = "JSON (an array should end in .json, one object per line in .jsonl)"
    elif reader is _jsonl_rows and _ARRAY.match(start):
        found = "a JSON array (its name should end in .json)"
    elif reader in (_jsonl_rows, _txt_rows) and _is_header(start.partition("\n")[0]):
        found = "CSV (its name should end in .csv)"
    if found:
        raise InputError(str(path), f"this looks like {found}, not like what its name says")


def _is_header(line: str) -> bool:
    cuts = (line.split(delimiter) for delimiter in _DELIMITERS)
    return any(len(cells) > 1 and "url" in map(_plain, cells) for cells in cuts)


# From the fields of a row to a task.


class _BadRow(Exception):
    """Why a row is rejected."""


class _Columns(NamedTuple):
    """What the columns that mean something are called in this file."""

    url: str = "url"
    priority: str = "priority"
    parcel_id: str = "parcel_id"


def _plain(name: str) -> str:
    return name.replace("\ufeff", "").strip(' \t\r\n\xa0"').lower()


@lru_cache(maxsize=16)
def _columns(names: tuple[str, ...], url: str = "url") -> _Columns:
    found: dict[str, str] = {}
    for name in names:
        plain = _plain(name)
        if plain in found and (plain == url or plain in _Columns._fields):
            raise _BadRow(f"there are two fields {plain!r}")
        found[plain] = name
    given = {field: found[field] for field in _Columns._fields if field in found}
    return _Columns(**given | {"url": found.get(url, url)})


def _row(
    line: int, fields: dict[str, Any], columns: _Columns, text: str, form: _Form
) -> Row | Fields | Reject:
    if "\0" in text:
        return _reject(line, "there is a NUL byte in this row", text)
    try:
        if form.known:
            return Fields(line, _known(fields, text, form.known), text)
        return _good(line, fields, columns, text, form)
    except (UrlError, _BadRow) as error:
        return _reject(line, str(error), text)


def _known(fields: dict[str, Any], text: str, known: frozenset[str]) -> dict[str, Any]:
    """The fields, with the known ones under their own names and as text where they are numbers."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        plain = _plain(name) if _plain(name) in known else name
        if plain in found:
            raise _BadRow(f"there are two fields {plain[:60]!r}")
        number = plain in known and isinstance(value, int | float) and not isinstance(value, bool)
        found[plain] = _as_text(value, name, text) if number else value
    return found


def _good(line: int, fields: dict[str, Any], columns: _Columns, text: str, form: _Form) -> Row:
    url = fields.get(columns.url)
    if not url and form.sites is not None:
        url = _made_url(fields, form.sites, text)
    if url is None:
        raise _BadRow(_no_url(list(fields), form.url))
    if not isinstance(url, str):
        raise _BadRow(f"the url is not text but {_kind(url)}")
    if _SECOND_URL.search(url):
        raise _BadRow("there are two URLs, and a row has one")
    address, secret = parse(url), credentials(url)
    task = NewTask(
        address=address,
        priority=_priority(fields.get(columns.priority)),
        parcel_id=without_secrets(_as_text(fields.get(columns.parcel_id), columns.parcel_id, text)),
        line=line,
        input=fields | {columns.url: address.url} if secret else fields,
    )
    return Row(task, secret, len(text) + 64 * len(fields))


def _made_url(fields: dict[str, Any], sites: Sites, text: str) -> str:
    """The URL by the template of the row's platform."""
    columns = {_plain(name): name for name in fields}
    meanings = Counter(map(_plain, fields))

    def column(name: str) -> str | None:
        if meanings[name] > 1:
            raise ValueError(f"there are two fields {name[:60]!r}")
        return _as_text(fields[columns[name]], columns[name], text) if name in columns else None

    if meanings["platform"] > 1:
        raise _BadRow("there are two fields 'platform'")
    platform = fields.get(columns.get("platform", ""))
    if platform is None or not str(platform).strip():
        raise _BadRow("there is neither a url nor a platform whose url_template could give it")
    site = sites.named(str(platform))
    if site is None or site.url_template is None:
        known = ", ".join(sites.templates)
        raise _BadRow(
            f"there is no url, and no site {str(platform)[:60]!r} with a url_template; there are: {known}"
        )
    try:
        return expand(site.url_template, column)
    except ValueError as error:
        raise _BadRow(str(error)) from None


def _priority(value: Any) -> int:
    text = "" if value is None else str(value).strip()
    if text in _PRIORITIES:
        return _PRIORITIES[text]
    if whole := _WHOLE.fullmatch(text):
        return int(whole[1])
    raise _BadRow(f"the priority {text[:50]!r} is not a whole number from 1 to 9")


def _as_text(value: Any, name: str, text: str) -> str:
    match value:
        case None:
            return ""
        case str():
            return value.strip()
        case bool() | list() | dict():
            raise _BadRow(f"the {_plain(name)[:60]} is not text but {_kind(value)}")
        case float():  # as it is written: parcel 1.50 is not parcel 1.5
            return bytes(msgspec.json.decode(text, type=dict[str, msgspec.Raw])[name]).decode()
        case _:
            return str(value)


def _kind(value: Any) -> str:
    kinds = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "true or false",
        type(None): "null",
    }
    return kinds.get(type(value), "a number")


def _no_url(names: Sequence[str], url: str) -> str:
    plain = {_plain(name): name for name in names[:1_000]}
    near = difflib.get_close_matches(url, plain, n=1, cutoff=0.4)
    hint = f"; the nearest is {plain[near[0]][:60]!r}" if near else ""
    shown = ", ".join(repr(name[:60]) for name in names[:20]) or "nothing"
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return _redacted(f"there is no column {url[:60]!r}; found: {shown}{more}{hint}")


def _reject(line: int, reason: str, text: str) -> Reject:
    return Reject(line, _redacted(reason), _redacted(text[:KEPT]).rstrip("\r\n")[:1024])


def _redacted(text: str) -> str:
    """Without passwords; JSON may write `http:\\/\\/`, a browser takes `http:user@host`, a row may
    hold many URLs."""
    if "@" in text:
        text = "".join(_without_user_info(part) for part in _CUTS.split(text))
    return without_credentials(text)


def _without_user_info(part: str) -> str:
    """Without what stands between the start of a URL and the last `@`; a search for both at once
    would be cubic."""
    start, last = _URL_START.search(part), part.rfind("@")
    return f"{part[: start.end()]}***{part[last:]}" if start and start.end() <= last else part


# TXT and JSON.


def _txt_rows(path: Path, texts: Iterator[str], form: _Form) -> _Items:
    columns = _Columns()
    if form.url != columns.url:
        raise InputError(str(path), f"a list of URLs has no column {form.url[:60]!r}")
    for line in lines(texts):
        text = line.text.strip()
        if not text or text.startswith("#"):
            continue
        if line.size > MAX_LINE:
            yield _reject(line.number, too_long(line.size), text)
        else:
            yield _row(line.number, {"url": text}, columns, text, form)


def _jsonl_rows(_path: Path, texts: Iterator[str], form: _Form) -> _Items:
    for line in lines(texts):
        text = line.text.strip()
        if line.size > MAX_LINE:
            yield _reject(line.number, too_long(line.size), text)
        elif text:
            yield _object_row(line.number, text, form)


def _json_rows(path: Path, texts: Iterator[str], form: _Form) -> _Items:
    line = item = 0
    for element in elements(path, texts):
        item = item + 1 if element.line == line else 1
        line = element.line
        if element.fault:
            row: Row | Fields | Reject = _reject(line, element.fault, element.text)
        else:
            row = _object_row(line, element.text, form)
        yield row if item == 1 else _with_item(row, item)


def _with_item(row: Row | Fields | Reject, item: int) -> Row | Fields | Reject:
    if isinstance(row, Row):
        return msgspec.structs.replace(row, task=msgspec.structs.replace(row.task, item=item))
    return msgspec.structs.replace(row, item=item)


def _object_row(line: int, text: str, form: _Form) -> Row | Fields | Reject:
    try:
        fields = loads(text)
    except ValueError as error:
        return _reject(line, str(error), text)
    if not isinstance(fields, dict):
        return _reject(line, f"not an object but {_kind(fields)}", text)
    # Names of a megabyte in all, other ones in each row, are not to be held by a cache.
    find_columns = _columns if len(text) < _PLAIN_ROW else _columns.__wrapped__
    try:
        columns = find_columns(tuple(fields), form.url)
    except _BadRow as error:
        return _reject(line, str(error), text)
    return _row(line, fields, columns, text, form)


# CSV.


def _csv_rows(path: Path, texts: Iterator[str], form: _Form) -> _Items:
    # One limit for the whole process, 128 KB unless raised; what bounds our rows is `MAX_LINE`.
    csv.field_size_limit(max(csv.field_size_limit(), 2 * MAX_LINE))
    source = _Source(lines(texts))
    names, delimiter = _header(path, source, form)
    return _Table(source, names, delimiter, form).rows()


class _Source:
    """Lines that can be put back, so that an unclosed quote costs the line it is in and no
    other."""

    def __init__(self, source: Iterator[Line]) -> None:
        self._lines = source
        self._back: deque[Line] = deque()
        self._broken: InputError | None = None

    def __iter__(self) -> Iterator[Line]:
        return self

    def __next__(self) -> Line:
        if self._back:
            return self._back.popleft()
        if self._broken:
            raise self._broken
        return next(self._lines)

    def put_back(self, taken: Sequence[Line]) -> None:
        """Give these again, before all others."""
        self._back.extendleft(reversed(taken))

    def record(self, first: Line, delimiter: str) -> tuple[list[str], list[Line]]:
        """The cells that begin in this line, and all the lines they took; `csv.Error` if they have
        no proper end."""
        taken: list[Line] = []
        try:
            return next(
                csv.reader(self._quoted(first, taken), delimiter=delimiter, strict=True)
            ), taken
        except csv.Error:
            self.put_back(taken[1:])
            raise

    def _quoted(self, line: Line | None, taken: list[Line]) -> Iterator[str]:
        size = 0
        while line is not None:
            size += line.size
            if taken and (size > MAX_LINE or len(taken) >= MAX_QUOTED_LINES):
                self.put_back([line])
                return
            taken.append(line)
            yield line.text
            line = self._next_or_none()

    def _next_or_none(self) -> Line | None:
        try:
            return next(self, None)
        except (
            InputError
        ) as broken:  # raised later: the lines taken may be good rows behind an unclosed quote
            self._broken = broken
            return None


def _header(path: Path, source: _Source, form: _Form) -> tuple[list[str], str]:
    """The columns' names and the delimiter: one that yields a `url`, and of those the one that
    yields most columns."""
    first = next((line for line in source if line.text.strip()), None)
    if first is None:
        raise InputError(str(path), "there is neither a header nor a row in it")
    found = []
    for delimiter in _DELIMITERS:
        with suppress(csv.Error):
            names, taken = source.record(first, delimiter)
            source.put_back(taken[1:])
            found.append((_gives_urls(names, form), len(names), delimiter))
    if not found:
        raise InputError(str(path), "a quote in the header is not closed", first.number)
    _, width, delimiter = max(found, key=lambda entry: entry[:2])
    names = _names(path, source.record(first, delimiter)[0], first.number, form)
    # A single column has no delimiter: the commas in its URLs belong to them.
    return names, delimiter if width > 1 else _NO_DELIMITER


def _gives_urls(names: Sequence[str], form: _Form) -> bool:
    plain = {_plain(name) for name in names}
    return (
        form.url in plain
        or bool(plain & form.known)
        or (form.sites is not None and "platform" in plain)
    )


def _names(path: Path, cells: list[str], line: int, form: _Form) -> list[str]:
    """What the columns are called by the cells of a header."""
    if not _gives_urls(cells, form):
        instead = "; a 'platform' with any other column would do, too" if form.known else ""
        raise InputError(str(path), _no_url(cells, form.url) + instead, line)
    names = [
        name.replace("\ufeff", "") if name.strip() else f"column {n}"
        for n, name in enumerate(cells, 1)
    ]
    longest = max(names, key=len)
    if len(longest) > MAX_NAME:
        reason = f"the column {longest[:60]!r}… has a name of {len(longest):,} characters, more than {MAX_NAME:,}"
        raise InputError(str(path), reason, line)
    _refuse_twins(path, names, line, form.known.union(_Columns._fields, [form.url]))
    return names


def _refuse_twins(path: Path, names: list[str], line: int, known: frozenset[str]) -> None:
    meanings = Counter(_plain(name) if _plain(name) in known else name for name in names)
    name, count = meanings.most_common(1)[0]
    if count > 1:
        raise InputError(str(path), f"there are {count} columns {name[:60]!r}", line)


class _Table:
    """The rows under a header."""

    def __init__(self, source: _Source, names: list[str], delimiter: str, form: _Form) -> None:
        self._source, self._names, self._delimiter, self._form = source, names, delimiter, form
        self._columns = _columns(tuple(names), form.url)
        self._url_at = names.index(self._columns.url) if self._columns.url in names else -1

    def rows(self) -> _Items:
        """Every row, in its order; only those with quotes need the careful way."""
        for line in self._source:
            if line.size > MAX_LINE:
                yield _reject(line.number, too_long(line.size), line.text)
            elif '"' in line.text:
                yield self._quoted_row(line)
            elif not line.text.isspace():
                text = line.text.rstrip("\r\n")
                yield self.row(line.number, text.split(self._delimiter), text)

    def _quoted_row(self, line: Line) -> Row | Fields | Reject:
        try:
            cells, taken = self._source.record(line, self._delimiter)
        except csv.Error:
            return _reject(
                line.number,
                "a quote is not closed, or something stands behind a closed one",
                line.text,
            )
        if len(taken) > 1 and (len(cells) > len(self._names) or self._swallowed(cells, taken)):
            self._source.put_back(taken[1:])
            return _reject(line.number, "a quote is not closed", line.text)
        return self.row(line.number, cells, "".join(part.text for part in taken))

    def _swallowed(self, cells: Sequence[str], taken: Sequence[Line]) -> bool:
        """Whether most lines inside a record look like other rows: then two stray quotes have met
        across them."""
        own, inner = self._url(cells), [line.text.split(self._delimiter) for line in taken[1:-1]]
        found = (self._url(parts) for parts in inner if len(parts) == len(self._names))
        return sum(url.startswith("http") and url != own for url in found) * 2 > len(inner)

    def _url(self, cells: Sequence[str]) -> str:
        return cells[self._url_at].strip(' "\r\n') if 0 <= self._url_at < len(cells) else ""

    def row(self, line: int, cells: list[str], text: str) -> Row | Fields | Reject:
        """A row by its cells."""
        if len(cells) > len(self._names):
            return _reject(line, f"{len(cells)} cells, but the header has {len(self._names)}", text)
        if len(cells) <= self._url_at and not self._form.known:
            return _reject(line, f"the row ends after {len(cells)} cells, before its url", text)
        return _row(
            line, dict(zip(self._names, cells, strict=False)), self._columns, text, self._form
        )


# XLSX.


def _sheet_rows(path: Path, form: _Form) -> _Items:
    from crawler.bulk import sheet

    records = sheet.records(path)
    header = next(records, None)
    if header is None:
        raise InputError(str(path), "there is neither a header nor a row in its first sheet")
    if header.fault:
        raise InputError(str(path), header.fault, header.number)
    names = _names(path, _dense(header.cells), header.number, form)
    table = _Table(_Source(iter(())), names, "\t", form)
    count = 0
    for number, cells, size, fault in records:
        row = _dense(cells)
        text = "\t".join(row)
        count += max(len(row), len(names))
        if count > MAX_CELLS:  # a row of forty bytes may have a thousand of them
            reason = f"there are more than {MAX_CELLS:,} cells in its rows; split it into smaller workbooks"
            raise InputError(str(path), reason, number)
        if fault or size > MAX_LINE:
            yield _reject(number, fault or too_long(size), text)
        else:
            yield table.row(number, row + [""] * (len(names) - len(row)), text)


def _dense(cells: dict[int, str]) -> list[str]:
    """The cells by column from 1 on, with empty ones between them."""
    return [cells.get(column, "") for column in range(1, max(cells, default=0) + 1)]


Reader = Callable[[Path, Iterator[str], _Form], _Items]
_READERS: dict[str, Reader] = {
    ".csv": _csv_rows,
    ".tsv": _csv_rows,
    ".json": _json_rows,
    ".jsonl": _jsonl_rows,
    ".ndjson": _jsonl_rows,
    ".txt": _txt_rows,
}
_TABLES = frozenset({".csv", ".tsv", ".xlsx"})
