"""Reads rows of CSV, JSON, JSONL, TXT and XLSX files as a stream; a bad row costs no good one."""

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
from typing import Any, BinaryIO, NamedTuple, NoReturn, Self, TypeVar, cast

import msgspec

from crawler.bulk.textfile import EXCERPT, MAX_LINE, Line, lines, opened, pieces, too_long
from crawler.errors import InputError, UrlError, UsageError
from crawler.files import commit, create
from crawler.json_reader import elements, loads
from crawler.logs import printable
from crawler.models import NewTask
from crawler.sites import Sites, expand
from crawler.urls import credentials, parse, without_credentials, without_secrets

MAX_QUOTED_LINES = 1000
"""A quoted cell over more lines than this counts as an unclosed quote."""
MAX_BATCH = 4 << 20
"""Approximate bytes of the rows that are committed together."""
MAX_NAME = 1_000
"""Characters of a column's name: each row is stored with all of them."""
MAX_CELLS = 100_000_000
"""Cells of a workbook's rows, with the empty ones between and behind them."""

_MAX_CACHED_ROW = 1 << 14
_MAX_SHOWN_SHEETS = 8
_MAX_SHOWN_NAMES = 20
_DELIMITERS = ",;\t|"
_NO_DELIMITER = "\x1f"
_DEFAULT_PRIORITY = 5
_PRIORITIES = {"": _DEFAULT_PRIORITY} | {str(number): number for number in range(1, 10)}
_SECOND_URL = re.compile(r"\S\s+https?://", re.IGNORECASE)
"""A URL parser takes a space as part of the path, and drops line breaks."""
_URLS = re.compile("#|https?:", re.IGNORECASE)
_WHOLE_NUMBER = re.compile(r"\+?0*([1-9])(?:\.0*)?")
_MARKUP = re.compile(r"<(?:!doctype|!--|\?xml|html|head|body|script)", re.IGNORECASE)
_ARRAY = re.compile(r"\[\s*(?:\{|\n|$)")
_CUTS = re.compile(r"""(["\r\n,])""")
_URL_START = re.compile(
    r"""\bhttps?:[\\/]*|\b[a-z][a-z0-9+.-]{0,20}:[\\/]{2,}|(?<![\w:])[\\/]{2,}""", re.IGNORECASE
)


class Row(msgspec.Struct, frozen=True):
    """A row that can become a task."""

    task: NewTask
    credentials: tuple[str, str] | None = None
    """The user name and password of its URL, by origin; the task does not have them."""
    size: int = 0
    """Approximate bytes in memory."""

    def __repr__(self) -> str:
        return f"Row({self.task})"


class Reject(msgspec.Struct, frozen=True, omit_defaults=True):
    """A row that cannot become a task, why, and its first kilobyte without secrets."""

    line: int
    reason: str
    text: str
    item: int = 1
    """The number of the row within its line."""


class Fields(msgspec.Struct, frozen=True):
    """A row as it is, for callers that make something other than a crawler's task of it."""

    line: int
    fields: dict[str, Any]
    text: str
    item: int = 1


class _Form(NamedTuple):
    """What rows are read for: tasks, or fields if `known` names some."""

    sites: Sites | None = None
    """Their templates make URLs for rows without one."""
    known: frozenset[str] = frozenset()
    url: str = "url"
    """The column with the URLs."""


T = TypeVar("T")
_Item = Row | Fields | Reject
_Items = Iterator[_Item]


def read(
    path: Path, sites: Sites | None = None, url_column: str | None = None
) -> Iterator[Row | Reject]:
    """Yield every row of a file, good or bad; raise `InputError` where the file is unusable.

    A row without a URL gets it from the `url_template` of the site that its `platform` names.
    """
    if sites is not None and not sites.templates:
        sites = None
    form = _Form(sites, url=_plain(url_column or "url"))
    return cast(Iterator[Row | Reject], _items(path, form))


def read_fields(path: Path, known: frozenset[str]) -> Iterator[Fields | Reject]:
    """Yield every row of a file as its fields, good or bad; no row needs a URL.

    Known columns go by these names, whatever their case in the file, and their numbers are text
    as written there. A table must have one of them.
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
        reason = "there are no rows in it"
        if ending in _TABLES:
            reason += ", only a header"
        raise InputError(str(path), reason)
    yield row
    yield from rows


def batches(items: Iterator[T], rows: int, size: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield rows in lists, shorter where rows are large, so that memory stays bounded.

    Rows before an `InputError` are yielded before it is raised.
    """
    found: list[T] = []
    total = 0
    try:
        for item in items:
            found.append(item)
            total += size(item)
            if len(found) == rows or total > MAX_BATCH:
                yield found
                found, total = [], 0
    except InputError:
        if found:
            yield found
        raise
    if found:
        yield found


def other_sheets(path: Path) -> tuple[str, ...]:
    """The sheets of a workbook that hold rows but are not read: only the first one is."""
    if _ending(path)[0] != ".xlsx":
        return ()
    from crawler.bulk import sheet

    return tuple(sheet.other_sheets(path))


def unread_sheets_note(sheets: Sequence[str]) -> str:
    """A sentence about the sheets that are not read."""
    names = ", ".join(repr(printable(name)) for name in sheets[:_MAX_SHOWN_SHEETS])
    if len(sheets) > _MAX_SHOWN_SHEETS:
        names += f" and {len(sheets) - _MAX_SHOWN_SHEETS:,} more"
    hint = "save each as a file of its own to import it"
    return f"only the first sheet was read, not {names}: {hint}"


def checksum(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class RejectsFile:
    """The rejected rows of one import; the file appears whole at the end, if there are any.

    It is beside the source, or in the fallback folder where that place cannot be written.
    """

    def __init__(self, source: Path, fallback: Path | None = None) -> None:
        self.path = source.with_name(f"{source.name}.rejects.jsonl")
        self._fallback: Path | None = None
        if fallback:
            # The hash tells it from files of the same name in other folders.
            folder_hash = hashlib.sha256(os.fsencode(source.absolute())).hexdigest()[:8]
            name = os.fsencode(source.name)[:100].decode("utf-8", "ignore")
            self._fallback = fallback / f"{name}.{folder_hash}.rejects.jsonl"
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def add(self, reject: Reject) -> None:
        """Write a rejected row."""
        try:
            if self._file is None:
                self._file = self._open()
            self._file.write(msgspec.json.encode(reject) + b"\n")
        except OSError as error:
            self._fail(error)

    @property
    def _part(self) -> Path:
        # The process id keeps two imports of one file from writing into the same part.
        return self.path.with_name(f".{self.path.name}.{os.getpid()}.part")

    def _open(self) -> BinaryIO:
        try:
            return os.fdopen(create(self._part, 0o666), "wb")
        except OSError:
            if self._fallback is None:
                raise
        self.path = self._fallback
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.fdopen(create(self._part, 0o666), "wb")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not issubclass(kind, InputError):
            self._discard()  # interrupted: half a list would look like all of it
        elif self._file is not None:
            self._publish(self._file)
        elif kind is None:
            self._remove_old()

    def _remove_old(self) -> None:
        for path in filter(None, (self.path, self._fallback)):
            with suppress(OSError):  # an import without rejects needs no writable folder
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
        hint = (
            "make room or give write permission there, "
            "or import a copy of the file from another folder"
        )
        raise UsageError(
            f"rejected rows cannot be written to {self.path}: {error.strerror}; {hint}"
        ) from None


# Kinds of files.


def _ending(path: Path) -> tuple[str, bool]:
    """The ending that tells the kind of a file, and whether it is packed."""
    name = path.name.lower()
    ending, packed = Path(name.removesuffix(".gz")).suffix, name.endswith(".gz")
    if ending not in _READERS and (ending != ".xlsx" or packed):
        opened(path).close()  # a missing file or a folder is the better reason
        known = f"known are {', '.join(_READERS)}, each also with .gz, and .xlsx"
        raise InputError(str(path), f"the ending {ending!r} is not known; {known}")
    return ending, packed


def guess_ending(path: Path) -> str:
    """Guess the ending of a file from its content, for one that came without a name."""
    with opened(path) as file:
        head = file.read(4)
    if head == b"PK\x03\x04":
        return ".xlsx"
    packed = head.startswith(b"\x1f\x8b")
    start = next(pieces(path, packed=packed)).lstrip()
    first = start.partition("\n")[0]
    if start.startswith("{") and _is_object(first):
        ending = ".jsonl"
    elif start.startswith(("{", "[")):
        ending = ".json"
    elif _URLS.match(start) and not _is_header(first):
        ending = ".txt"
    else:
        ending = ".csv"
    if packed:
        ending += ".gz"
    return ending


def _is_object(line: str) -> bool:
    with suppress(ValueError):
        return isinstance(loads(line.strip()), dict)
    return False


def _refuse_foreign(path: Path, reader: "_Reader", text: str) -> None:
    """Refuse a file that is not what its name says, before each of its rows is rejected."""
    start, found = text[:EXCERPT].lstrip(), None
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


class _BadRow(ValueError):
    """Why a row is rejected."""


class _Columns(NamedTuple):
    """The names of the known columns in this file."""

    url: str = "url"
    priority: str = "priority"
    parcel_id: str = "parcel_id"


def _plain(name: str) -> str:
    return name.replace("\ufeff", "").strip(' \t\r\n\xa0"').lower()


def _meant(url: str) -> set[str]:
    """The names of which a file may have one column each; with another column of URLs, `url` is
    like any other."""
    return {*_Columns._fields} - {"url"} | {url}


@lru_cache(maxsize=16)
def _columns(names: tuple[str, ...], url: str = "url") -> _Columns:
    found: dict[str, str] = {}
    for name in names:
        plain = _plain(name)
        if plain in found and plain in _meant(url):
            raise _BadRow(f"there are two fields {plain!r}")
        found[plain] = name
    given = {field: found[field] for field in _Columns._fields if field in found}
    return _Columns(**given | {"url": found.get(url, url)})


def _row(
    line: int, fields: dict[str, Any], columns: _Columns, text: str, form: _Form, item: int = 1
) -> _Item:
    if "\0" in text:
        return _reject(line, "there is a NUL byte in this row", text, item)
    try:
        if form.known:
            return Fields(line, _known(fields, text, form.known), text, item)
        return _task_row(line, fields, columns, text, form, item)
    except (UrlError, _BadRow) as error:
        return _reject(line, str(error), text, item)


def _known(fields: dict[str, Any], text: str, known: frozenset[str]) -> dict[str, Any]:
    """Give the known fields their own names, and turn their numbers into text."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        plain = _plain(name) if _plain(name) in known else name
        if plain in found:
            raise _BadRow(f"there are two fields {plain[:60]!r}")
        number = plain in known and isinstance(value, int | float) and not isinstance(value, bool)
        found[plain] = value
        if number:
            found[plain] = _as_text(value, name, text)
    return found


def _task_row(
    line: int, fields: dict[str, Any], columns: _Columns, text: str, form: _Form, item: int
) -> Row:
    url = fields.get(columns.url)
    if not url and form.sites is not None:
        url = _templated_url(fields, form.sites, text)
    if url is None:
        raise _BadRow(_no_url(list(fields), form.url))
    if not isinstance(url, str):
        raise _BadRow(f"the url is not text but {_kind(url)}")
    if _SECOND_URL.search(url):
        raise _BadRow("there are two URLs, and a row has one")
    address, secret = parse(url), credentials(url)
    if secret:
        fields = fields | {columns.url: address.url}
    task = NewTask(
        address=address,
        priority=priority(fields.get(columns.priority)),
        parcel_id=without_secrets(_as_text(fields.get(columns.parcel_id), columns.parcel_id, text)),
        line=line,
        item=item,
        input=fields,
    )
    return Row(task, secret, len(text) + 64 * len(fields))


def _templated_url(fields: dict[str, Any], sites: Sites, text: str) -> str:
    """The URL by the template of the row's platform."""
    columns = {_plain(name): name for name in fields}
    meanings = Counter(map(_plain, fields))

    def column(name: str) -> str | None:
        if meanings[name] > 1:
            raise ValueError(f"there are two fields {name[:60]!r}")
        if name not in columns:
            return None
        return _as_text(fields[columns[name]], columns[name], text)

    if meanings["platform"] > 1:
        raise _BadRow("there are two fields 'platform'")
    platform = fields.get(columns.get("platform", ""))
    if platform is None or not str(platform).strip():
        raise _BadRow("there is neither a url nor a platform whose url_template could give it")
    site = sites.named(str(platform))
    if site is None or site.url_template is None:
        problem = f"there is no url, and no site {str(platform)[:60]!r} with a url_template"
        raise _BadRow(f"{problem}; there are: {', '.join(sites.templates)}")
    try:
        return expand(site.url_template, column)
    except ValueError as error:
        raise _BadRow(str(error)) from None


def priority(value: Any) -> int:
    """Return the priority that a cell gives; raises `ValueError` for a bad one."""
    if value is None:
        return _DEFAULT_PRIORITY
    text = str(value).strip()
    if text in _PRIORITIES:
        return _PRIORITIES[text]
    if whole := _WHOLE_NUMBER.fullmatch(text):
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
    if value is None:
        return "null"
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    return kinds.get(type(value), "a number")


def _no_url(names: Sequence[str], url: str) -> str:
    shown = ", ".join(repr(name[:60]) for name in names[:_MAX_SHOWN_NAMES]) or "nothing"
    if len(names) > _MAX_SHOWN_NAMES:
        shown += f" and {len(names) - _MAX_SHOWN_NAMES} more"
    plain = {_plain(name): name for name in names[:1_000]}
    for near in difflib.get_close_matches(url, plain, n=1, cutoff=0.4):
        shown += f"; the nearest is {plain[near][:60]!r}"
    other = "; --url-column NAME takes another" if url == "url" and plain else ""
    return _redacted(f"there is no column {url[:60]!r}; found: {shown}{other}")


def rejected(row: Fields, reason: str) -> Reject:
    """Reject a row that its reader could not use."""
    return _reject(row.line, reason, row.text, row.item)


def _reject(line: int, reason: str, text: str, item: int = 1) -> Reject:
    return Reject(line, _redacted(reason), _redacted(text[:EXCERPT]).rstrip("\r\n")[:1024], item)


def _redacted(text: str) -> str:
    """Remove passwords from all URLs, also as JSON (`http:\\/\\/`) or browsers (`http:a@b`) write
    them."""
    if "@" in text:
        text = "".join(_without_user_info(part) for part in _CUTS.split(text))
    return without_credentials(text)


def _without_user_info(part: str) -> str:
    """Remove what is between the start of a URL and the last `@`; one regex would be cubic."""
    start, last = _URL_START.search(part), part.rfind("@")
    if start and start.end() <= last:
        return f"{part[: start.end()]}***{part[last:]}"
    return part


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
    for element in elements(path, texts, MAX_LINE):
        if element.line != line:
            line, item = element.line, 0
        item += 1
        if element.fault or element.size > MAX_LINE:
            yield _reject(line, element.fault or too_long(element.size), element.text, item)
        else:
            yield _object_row(line, element.text, form, item)


def _object_row(line: int, text: str, form: _Form, item: int = 1) -> _Item:
    try:
        fields = loads(text)
    except ValueError as error:
        return _reject(line, str(error), text, item)
    if not isinstance(fields, dict):
        return _reject(line, f"not an object but {_kind(fields)}", text, item)
    # A cache must not hold a megabyte of names, different ones in each row.
    find_columns = _columns if len(text) < _MAX_CACHED_ROW else _columns.__wrapped__
    try:
        columns = find_columns(tuple(fields), form.url)
    except _BadRow as error:
        return _reject(line, str(error), text, item)
    return _row(line, fields, columns, text, form, item)


# CSV.


def _csv_rows(path: Path, texts: Iterator[str], form: _Form) -> _Items:
    # Process-wide, 128 KB unless raised; `MAX_LINE` is what bounds our rows.
    csv.field_size_limit(max(csv.field_size_limit(), 2 * MAX_LINE))
    source = _Source(lines(texts))
    names, delimiter = _header(path, source, form)
    return _Table(source, names, delimiter, form).rows()


class _Source:
    """Lines that can be put back, so that an unclosed quote costs only its own line."""

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
        """Yield these lines again, before all others."""
        self._back.extendleft(reversed(taken))

    def record(self, first: Line, delimiter: str) -> tuple[list[str], list[Line]]:
        """The cells that begin in this line, and their lines; `csv.Error` if they never end."""
        taken: list[Line] = []
        reader = csv.reader(self._quoted(first, taken), delimiter=delimiter, strict=True)
        try:
            return next(reader), taken
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
            try:
                line = next(self, None)
            except InputError as broken:
                # Raised later: the lines taken may be good rows behind an unclosed quote.
                self._broken = broken
                return


def _header(path: Path, source: _Source, form: _Form) -> tuple[list[str], str]:
    """The names of the columns and the delimiter: one that gives a `url`, then most columns."""
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
    wanted = form.known | {form.url}
    if form.sites is not None:
        wanted |= {"platform"}
    return not wanted.isdisjoint(map(_plain, names))


def _names(path: Path, cells: list[str], line: int, form: _Form) -> list[str]:
    """The names of the columns by the cells of a header."""
    if not _gives_urls(cells, form):
        reason = _no_url(cells, form.url)
        if form.known:
            reason += "; a 'platform' with any other column would do, too"
        raise InputError(str(path), reason, line)
    names = [
        name.replace("\ufeff", "") if name.strip() else f"column {number}"
        for number, name in enumerate(cells, 1)
    ]
    longest = max(names, key=len)
    if len(longest) > MAX_NAME:
        problem = f"the column {longest[:60]!r}… has a name of {len(longest):,} characters"
        raise InputError(str(path), f"{problem}, more than {MAX_NAME:,}", line)
    known = form.known | _meant(form.url)
    meanings = Counter(_plain(name) if _plain(name) in known else name for name in names)
    name, count = meanings.most_common(1)[0]
    if count > 1:
        raise InputError(str(path), f"there are {count} columns {name[:60]!r}", line)
    return names


class _Table:
    """The rows under a header."""

    def __init__(self, source: _Source, names: list[str], delimiter: str, form: _Form) -> None:
        self._source, self._names, self._delimiter, self._form = source, names, delimiter, form
        self._columns = _columns(tuple(names), form.url)
        self._url_at = names.index(self._columns.url) if self._columns.url in names else -1

    def rows(self) -> _Items:
        """Yield every row; only those with quotes need the csv module."""
        for line in self._source:
            if line.size > MAX_LINE:
                yield _reject(line.number, too_long(line.size), line.text)
            elif '"' in line.text:
                yield self._quoted_row(line)
            elif not line.text.isspace():
                text = line.text.rstrip("\r\n")
                yield self.row(line.number, text.split(self._delimiter), text)

    def _quoted_row(self, line: Line) -> _Item:
        try:
            cells, taken = self._source.record(line, self._delimiter)
        except csv.Error:
            reason = "a quote is not closed, or something stands behind a closed one"
            return _reject(line.number, reason, line.text)
        if len(taken) > 1 and (len(cells) > len(self._names) or self._swallowed(cells, taken)):
            self._source.put_back(taken[1:])
            return _reject(line.number, "a quote is not closed", line.text)
        return self.row(line.number, cells, "".join(part.text for part in taken))

    def _swallowed(self, cells: Sequence[str], taken: Sequence[Line]) -> bool:
        """Whether most lines of a record look like rows: then two stray quotes enclose them."""
        own, inner = self._url(cells), [line.text.split(self._delimiter) for line in taken[1:-1]]
        found = (self._url(parts) for parts in inner if len(parts) == len(self._names))
        return sum(url.startswith("http") and url != own for url in found) * 2 > len(inner)

    def _url(self, cells: Sequence[str]) -> str:
        if 0 <= self._url_at < len(cells):
            return cells[self._url_at].strip(' "\r\n')
        return ""

    def row(self, line: int, cells: list[str], text: str) -> _Item:
        """Make a row of its cells."""
        if len(cells) > len(self._names):
            return _reject(line, f"{len(cells)} cells, but the header has {len(self._names)}", text)
        if len(cells) <= self._url_at and not self._form.known:
            return _reject(line, f"the row ends after {len(cells)} cells, before its url", text)
        fields = dict(zip(self._names, cells, strict=False))
        return _row(line, fields, self._columns, text, self._form)


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
        if count > MAX_CELLS:  # a row of forty bytes may have a thousand cells
            problem = f"there are more than {MAX_CELLS:,} cells in its rows"
            raise InputError(str(path), f"{problem}; split it into smaller workbooks", number)
        if fault or size > MAX_LINE:
            yield _reject(number, fault or too_long(size), text)
        else:
            yield table.row(number, row + [""] * (len(names) - len(row)), text)


def _dense(cells: dict[int, str]) -> list[str]:
    """The cells by column from 1 on, with empty ones between them."""
    return [cells.get(column, "") for column in range(1, max(cells, default=0) + 1)]


_Reader = Callable[[Path, Iterator[str], _Form], _Items]
_READERS: dict[str, _Reader] = {
    ".csv": _csv_rows,
    ".tsv": _csv_rows,
    ".json": _json_rows,
    ".jsonl": _jsonl_rows,
    ".ndjson": _jsonl_rows,
    ".txt": _txt_rows,
}
_TABLES = frozenset({".csv", ".tsv", ".xlsx"})
