"""Export formats, and the flat rows that tables are made of. Each format writes results one by one,
in memory that does not grow.

A table (csv, xlsx, parquet) has these columns: `data.<path>` for each field of the records, sorted;
`input.<name>` for each input column, in order of first appearance; then `BASE_COLUMNS`, with `line`
after `message` if input rows are exported; then those of `LAST_COLUMNS` that a result has. A list
of plain values becomes one text joined with ` | `. A list that contains objects or lists, and
anything deeper than `MAX_DEPTH`, becomes compact JSON. Columns beyond a format's limit, those with
the fewest rows, are folded into one JSON column, `data.more`.
"""

import codecs
import csv
import difflib
import gc
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import msgspec

from crawler.db import raw_pages
from crawler.db.results import page_url
from crawler.errors import UsageError
from crawler.models import RawLocation

BASE_COLUMNS: dict[str, type] = {
    "task_id": str,
    "parcel_id": str,
    "status": str,
    "reason": str,
    "message": str,
    "url": str,
    "final_url": str,
    "status_code": int,
    "verdict": str,
    "scraped_at": str,
    "job": str,
    "queue": str,
    "priority": int,
    "attempts": int,
    "raw_html_hash": str,
    "parse_duration_ms": float,
    "parser": str,
    "parser_version": str,
    "raw_segment": str,
    "raw_offset": int,
    "raw_length": int,
}
"""Columns of every table, with their types."""
LAST_COLUMNS: dict[str, type] = {
    "role": str,
    "depth": int,
    "parent": str,
    "invalid": str,
    "files": str,
    "path": str,
}
"""Columns of tables with results of a crawl, with invalid ones, or with files."""
MAX_DEPTH = 4
"""Levels of objects in a record that become columns; deeper ones are JSON."""
MAX_COLUMNS_BEYOND_LIMIT = 20_000
"""Columns beyond a format's limit whose rows are counted, to find those with the most rows."""
MAX_NAME_LENGTH = 250
"""Fields with a longer name get no column of their own."""
MAX_CSV_COLUMNS, MAX_SHEET_COLUMNS, MAX_SHEET_ROWS = 2_000, 16_384, 1_048_576
MAX_CELL_LENGTH = 32_767
"""Excel's limit for a cell, in UTF-16 units."""
CUT = " … [cut]"
_MAX_COLUMNS_SHOWN = 40
_MAX_GROUP_ROWS, _MAX_GROUP_VALUES = 5_000, 100_000
_MAX_EXACT_INT = 1 << 53
"""Above this a float, and so Excel, rounds integers."""
_MAX_MARKDOWN_LENGTH = 2_000
_MAX_TITLE_LENGTH = 200
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")
_FORMULA = re.compile(r"[\t\r\n]|[\s\u200b\u2060\ufeff]*[=+\-@＝＋－＠]")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:[.,]\d+)*|[.,]\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_MARKDOWN = str.maketrans({sign: f"\\{sign}" for sign in "\\`*_[]<>&|~#!$^{}"} | {"@": "`@`"})
"""An @ gets a code span of its own: even an escaped one turns an address into a link."""
_LINK = re.compile(r"(?<=www)\.|:(?=//)", re.IGNORECASE)

Row = dict[str, Any]
Results = Iterable[Mapping[str, Any]]
T = TypeVar("T")


class Shape(NamedTuple):
    """What is exported: how one of them becomes a row, and the columns that every table has."""

    title: str
    flatten: Callable[[Mapping[str, Any]], Row]
    base_columns: Mapping[str, type]
    last_columns: Mapping[str, type]
    """Columns that a table has if some row has them."""


# Flat rows


def _file_place(file: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Return where a file is, or came from. What a browser has made of the page has the page's own
    URL, which says nothing."""
    if file.get("path"):
        return str(file["path"])
    is_capture = file.get("raw") or file.get("task_id") == result["task_id"]
    return str(file["field"] if is_capture else file["url"])


def flatten(result: Mapping[str, Any]) -> Row:
    """Return a result as one row of text, numbers, booleans and None."""
    row: Row = {name: result.get(name) for name in BASE_COLUMNS}
    row["status"] = result.get("status", "completed")
    if "line" in result:
        row["line"] = result["line"]
    if "role" in result:
        row |= {name: result[name] for name in ("role", "depth", "parent")}
    if "invalid" in result:
        row["invalid"] = _cell(result["invalid"])
    if "files" in result:
        row["files"] = " | ".join(_file_place(file, result) for file in result["files"])
    if "path" in result:
        row["path"] = result["path"]
    parser, raw = result["parser"] or {}, result["raw"] or {}
    row["parser"], row["parser_version"] = parser.get("name"), parser.get("version")
    row |= {f"raw_{part}": raw.get(part) for part in ("segment", "offset", "length")}
    for name, value in result["input"].items():
        _add(row, f"input.{name}", _cell(value))
    spread(row, "data", result["data"] or {})
    return row


RESULTS = Shape("Results", flatten, BASE_COLUMNS, LAST_COLUMNS)


def spread(row: Row, path: str, fields: Mapping[str, Any], depth: int = 1) -> None:
    """Add the fields of a record to a row, each under its path."""
    for name, value in fields.items():
        if isinstance(value, dict) and depth < MAX_DEPTH:
            spread(row, f"{path}.{name}", value, depth + 1)
        else:
            _add(row, f"{path}.{name}", _cell(value))


def _add(row: Row, name: str, value: Any) -> None:
    while name in row:  # {"a.b": 1, "a": {"b": 2}}: neither may be lost
        name += "~"
    row[name] = value


def _cell(value: Any) -> Any:
    if isinstance(value, list) and not any(isinstance(item, dict | list) for item in value):
        return " | ".join(map(as_text, value))
    if isinstance(value, dict | list):
        return msgspec.json.encode(value).decode()
    return value


def as_text(value: Any) -> str:
    """Return a value as text: a string as it is, None as "", anything else as JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return msgspec.json.encode(value).decode()


class Table:
    """Rows in a temporary file, with all their columns known."""

    def __init__(
        self, spool: BinaryIO, columns: dict[str, type], folded: int, names: Sequence[str] = ()
    ) -> None:
        self._spool = spool
        self._names = list(names or columns)
        """Names of the columns in the rows."""
        self.columns = columns
        """Names in order, with the type that fits all values: text if they are mixed."""
        self.folded = folded
        """How many columns were folded into the last one."""

    def only(self, wanted: Sequence[str]) -> "Table":
        """Return the table with these columns only. A name without `data.` or `input.` means a
        field of the records, or else of the input; that of an object means all its columns."""
        known = dict(self.columns)
        if self.folded:
            known.popitem()
        names = {label: name for each in wanted for label, name in self._named(each, known)}
        columns = {label: known[name] for label, name in names.items()}
        return Table(self._spool, columns, 0, list(names.values()))

    @staticmethod
    def _named(wanted: str, known: Mapping[str, type]) -> list[tuple[str, str]]:
        """Return the columns that a name means, each with its label."""
        full_names = (wanted, f"data.{wanted}", f"input.{wanted}")
        for full in full_names:
            if full in known:
                return [(wanted, full)]
        for full in full_names:
            parts = [name for name in known if name.startswith(f"{full}.")]
            if parts:
                return [(wanted + name.removeprefix(full), name) for name in parts]
        message = f"there is no column {wanted!r}"
        candidates = [*known, *(name.partition(".")[2] for name in known)]
        if near := difflib.get_close_matches(wanted, candidates, n=1):
            message += f" (did you mean {near[0]}?)"
        message += f"; there are: {', '.join(list(known)[:_MAX_COLUMNS_SHOWN])}"
        if len(known) > _MAX_COLUMNS_SHOWN:
            message += f" and {len(known) - _MAX_COLUMNS_SHOWN:,} more"
        raise UsageError(message)

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield the rows, each with a value or None for every column."""
        self._spool.seek(0)
        names = self._names
        own = set(names)
        for line in self._spool:
            row: Row = msgspec.json.decode(line)
            values = [row.get(name) for name in names]
            if self.folded:
                values[-1] = None
                more = {
                    name: value
                    for name, value in row.items()
                    if name not in own and value is not None
                }
                if more:
                    values[-1] = msgspec.json.encode(more).decode()
            yield values


@contextmanager
def spooled_table(
    results: Iterable[Mapping[str, Any]], folder: Path | None, limit: int, shape: Shape = RESULTS
) -> Iterator[Table]:
    """Read the results once into a temporary file in a folder, to know all columns before the first
    row is written.

    If there are more columns than the limit, those with the most rows are kept. Otherwise a few
    pages with hundreds of unusual fields would push out the usual ones.
    """
    seen = dict.fromkeys(shape.base_columns, 0)
    left_out, unknown = set[str](), 0
    with tempfile.TemporaryFile(dir=folder) as spool:
        for result in results:
            row = shape.flatten(result)
            spool.write(msgspec.json.encode(row) + b"\n")
            for name, value in row.items():
                if name in seen:
                    seen[name] = (seen[name] | _KINDS[type(value)](value)) + _ROW
                elif len(name) <= MAX_NAME_LENGTH:
                    seen[name] = (_KINDS[type(value)](value) | unknown) + _ROW
                elif len(left_out) < limit:  # enough to say how many; their names are in the rows
                    left_out.add(name[:MAX_NAME_LENGTH])
            if len(seen) > limit + MAX_COLUMNS_BEYOND_LIMIT:
                _leave_out(seen, limit - 1, left_out)
                # A column that is new now may have been left out before, with another type.
                unknown = _TEXT
        if len(seen) > limit - 1:
            _leave_out(seen, limit - 1, left_out)
        yield Table(spool, _columns(seen, bool(left_out), shape), len(left_out))


def _leave_out(seen: dict[str, int], limit: int, left_out: set[str]) -> None:
    """Drop the columns with the fewest rows, those of the input last; those of every table stay."""
    names = [name for name in seen if name.startswith(("data.", "input."))]
    names.sort(key=lambda name: (not name.startswith("input."), -(seen[name] // _ROW)))
    room = max(0, limit - (len(seen) - len(names)))
    for name in names[room:]:
        del seen[name]
        if len(left_out) < limit:
            left_out.add(name)


def _columns(seen: Mapping[str, int], folded: bool, shape: Shape) -> dict[str, type]:
    given = [name for name in seen if name.startswith("input.")]
    found = sorted(name for name in seen if name.startswith("data."))
    # A field that is null in some records and an object in others needs the object's columns only.
    objects = {name[:at] for name in found for at, sign in enumerate(name) if sign == "."}
    found = [name for name in found if seen[name] % _ROW or name not in objects]
    columns = {name: _type(seen[name] % _ROW) for name in (*found, *given)}
    for name, kind in shape.base_columns.items():
        columns[name] = kind
        if name == "message" and "line" in seen:
            columns["line"] = int
    columns |= {name: kind for name, kind in shape.last_columns.items() if name in seen}
    if folded:
        more = "data.more"
        while more in columns:
            more += "~"
        columns[more] = str
    return columns


# The kinds of values in a column, as bits. At the end they tell the type that fits all.
_TEXT, _BOOL, _INT, _LONG, _HUGE, _FLOAT = 1, 2, 4, 8, 16, 32
_ROW = 64
"""The bits above count the rows that have the column."""


def _kind_of_int(value: int) -> int:
    if abs(value) <= _MAX_EXACT_INT:
        return _INT
    if -(1 << 63) <= value < 1 << 63:
        return _LONG
    return _HUGE


_KINDS: dict[type, Callable[[Any], int]] = {
    type(None): lambda value: 0,
    str: lambda value: _TEXT,
    bool: lambda value: _BOOL,
    int: _kind_of_int,
    float: lambda value: _FLOAT,
}


def _type(kinds: int) -> type:
    if kinds == _BOOL:
        return bool
    if kinds and not kinds & ~(_INT | _LONG):
        return int
    if kinds and not kinds & ~(_INT | _FLOAT):
        return float
    return str


# Formats


class Sink(NamedTuple):
    """The target of an export, and what the writers need."""

    out: BinaryIO
    name: str
    folder: Path | None
    """For temporary files: the folder of the target, where there is enough room."""
    raw: Path
    """The folder of the stored pages."""
    place: Callable[[Mapping[str, Any]], RawLocation | None]
    """Returns where the page of a result is, or None if it was not kept or was pruned."""
    say: Callable[[str], None]
    """Reports progress, and what a reader of the file should know."""
    columns: Sequence[str] = ()
    """The columns of a table; empty for all."""
    shape: Shape = RESULTS


def with_progress(
    items: Iterable[T], say: Callable[[str], None], what: str, every_s: float = 5.0
) -> Iterator[T]:
    """Yield the items, and report their number every few seconds."""
    due = time.monotonic() + every_s
    for number, item in enumerate(items):
        if time.monotonic() > due:
            say(f"{number:,} {what}")
            due = time.monotonic() + every_s
        yield item


def write_jsonl(results: Results, sink: Sink) -> None:
    """Write one JSON object per line."""
    for result in results:
        sink.out.write(msgspec.json.encode(result) + b"\n")


def write_json(results: Results, sink: Sink) -> None:
    """Write one JSON array."""
    separator = b"[\n"
    for result in results:
        sink.out.write(separator + msgspec.json.encode(result))
        separator = b",\n"
    if separator != b",\n":
        sink.out.write(b"[")
    sink.out.write(b"\n]\n")


def write_csv(results: Results, sink: Sink) -> None:
    """Write a CSV file for Excel: with a byte order mark, and no cell that a spreadsheet would take
    for a formula."""
    with _table(results, sink, MAX_CSV_COLUMNS) as table:
        writer = csv.writer(codecs.getwriter("utf-8-sig")(sink.out))
        writer.writerow(map(escape_formula, table.columns))
        for row in with_progress(table, sink.say, "rows written"):
            cells = [escape_formula(v) if isinstance(v, str) else as_text(v) for v in row]
            writer.writerow(cells)


def escape_formula(text: str) -> str:
    """Put an apostrophe before text that a spreadsheet would take for a formula; numbers stay."""
    text = _without_controls(text)
    if _FORMULA.match(text) and not _NUMBER.fullmatch(text):
        return f"'{text}"
    return text


def _without_controls(text: str) -> str:
    """Remove the control characters that XML cannot hold and that nobody expects in a table."""
    if text.isprintable():
        return text
    return _CONTROLS.sub("", text)


def write_xlsx(results: Results, sink: Sink, sheet_rows: int = MAX_SHEET_ROWS) -> None:
    """Write a workbook without formulas or links; rows beyond a sheet's limit go to further
    sheets."""
    import xlsxwriter
    from xlsxwriter.exceptions import FileCreateError

    options = {"constant_memory": True, "strings_to_urls": False, "strings_to_formulas": False}
    with (
        _table(results, sink, MAX_SHEET_COLUMNS) as table,
        tempfile.TemporaryDirectory(dir=sink.folder) as scratch,
    ):
        book = xlsxwriter.Workbook(sink.out, options | {"tmpdir": scratch})
        book.use_zip64()
        bold = book.add_format({"bold": True})
        rows = with_progress(table, sink.say, "rows written")
        more = True
        while more:
            sheet = book.add_worksheet()
            sheet.freeze_panes(1, 0)
            for column, name in enumerate(table.columns):
                sheet.write_string(0, column, cell_text(name), bold)
            last = 0
            for last, row in enumerate(islice(rows, sheet_rows - 1), 1):
                _write_row(sheet, last, row)
            sheet.autofilter(0, 0, last, len(table.columns) - 1)
            more = last == sheet_rows - 1
        try:
            book.close()
        except FileCreateError as error:
            raise error.args[0] from None  # the disk's error: the caller detects a full disk by it
        except KeyboardInterrupt:
            # Collect the unfinished zip file now: once its target is closed, it would complain.
            gc.collect()
            raise


def _write_row(sheet: Any, number: int, row: list[Any]) -> None:
    for column, value in enumerate(row):
        match value:
            case None:
                pass
            case bool():
                sheet.write_boolean(number, column, value)
            case str():
                sheet.write_string(number, column, cell_text(value))
            case int() if abs(value) > _MAX_EXACT_INT:
                sheet.write_string(number, column, str(value))
            case _:
                sheet.write_number(number, column, value)


def cell_text(text: str) -> str:
    """Shorten text to what a cell can hold."""
    text = _without_controls(text)
    if len(text) > MAX_CELL_LENGTH // 2:
        units = text.encode("utf-16-le")
        if len(units) > 2 * MAX_CELL_LENGTH:
            text = units[: 2 * (MAX_CELL_LENGTH - len(CUT))].decode("utf-16-le", "ignore") + CUT
    if text.startswith("<r>") and text.endswith("</r>"):
        text += " "  # otherwise xlsxwriter takes it for rich text, and writes it as XML
    return text


def write_parquet(results: Results, sink: Sink) -> None:
    """Write a Parquet file; each column has the type that fits all its values."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        advice = "pip install '.[parquet]' in the project's folder"
        raise UsageError(f"the format parquet needs pyarrow: {advice}") from None

    types = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    with _table(results, sink, MAX_CSV_COLUMNS) as table:
        kinds = list(table.columns.values())
        schema = pa.schema([(name, types[kind]) for name, kind in table.columns.items()])
        size = max(1, min(_MAX_GROUP_ROWS, _MAX_GROUP_VALUES // len(kinds)))
        rows = with_progress(table, sink.say, "rows written")
        with parquet.ParquetWriter(sink.out, schema) as writer:
            while group := list(islice(rows, size)):
                columns = zip(*group, strict=True)
                arrays = [
                    pa.array(_typed(values, kind), types[kind])
                    for values, kind in zip(columns, kinds, strict=True)
                ]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _typed(values: Iterable[Any], kind: type) -> list[Any]:
    if kind is str:
        return [value if value is None else as_text(value) for value in values]
    return [value if value is None else kind(value) for value in values]


@contextmanager
def _table(results: Results, sink: Sink, limit: int) -> Iterator[Table]:
    with spooled_table(results, sink.folder, limit, sink.shape) as table:
        if sink.columns:
            yield table.only(sink.columns)
            return
        if table.folded:
            more = list(table.columns)[-1]
            sink.say(
                f"{table.folded:,} columns or more do not fit; "
                f"they are together in the column {more}, as JSON"
            )
        yield table


def write_md(results: Results, sink: Sink) -> None:
    """Write a section per result; nothing of a page can act as markup."""
    sink.out.write(f"# {sink.shape.title}\n".encode())
    for result in results:
        row = sink.shape.flatten(result)
        title = (result.get("data") or result).get("title")
        if not isinstance(title, str) or not title.strip():
            title = row["url"] or f"line {row.get('line')}"
        heading = escape_markdown(title, _MAX_TITLE_LENGTH)
        lines = ["", f"## {heading}", "", escape_markdown(row["url"] or ""), ""]
        lines += ["| field | value |", "| --- | --- |"]
        lines += [
            f"| {escape_markdown(name)} | {escape_markdown(as_text(value))} |"
            for name, value in row.items()
            if value not in (None, "")
        ]
        sink.out.write("\n".join(lines).encode() + b"\n")


def escape_markdown(text: str, limit: int = _MAX_MARKDOWN_LENGTH) -> str:
    """Escape text for one line of Markdown, so that it is no markup, HTML or link."""
    text = " ".join(_without_controls(text).split())
    if len(text) > limit:
        text = text[:limit] + CUT
    return _LINK.sub(r"\\\g<0>", text.translate(_MARKDOWN))


def write_warc(results: Results, sink: Sink) -> None:
    """Write the stored pages to one .warc.gz, each as it is in raw/."""
    sink.out.write(raw_pages.warcinfo(sink.name))
    lacking = 0
    written: set[tuple[str, int]] = set()
    for result in results:
        place = sink.place(result)
        if place is None:
            lacking += 1
            continue
        if (place.segment, place.offset) in written:  # unchanged, or a file with several URLs
            continue
        written.add((place.segment, place.offset))
        raw_pages.read(sink.raw, place, page_url(result))  # raises if the page is damaged
        sink.out.write(raw_pages.member(sink.raw, place))
    if lacking:
        sink.say(f"{lacking:,} results have no stored page, and are not in the file")


WRITERS: dict[str, Callable[[Results, Sink], None]] = {
    "json": write_json,
    "jsonl": write_jsonl,
    "csv": write_csv,
    "xlsx": write_xlsx,
    "warc": write_warc,
    "md": write_md,
    "parquet": write_parquet,
}
BINARY = frozenset({"xlsx", "warc", "parquet"})
"""Formats that a terminal cannot show."""
