"""Export formats, and the flat rows that tables are made of. Each format writes results one by one,
in memory that does not grow.

A table (csv, xlsx, parquet) has these columns: `data.<path>` for each field of the records, sorted;
`input.<name>` for each input column, in order of first appearance; then those of `BASE`, with
`line` after `message` if input rows are exported. A list of plain values becomes one text joined
with ` | `. A list that contains objects or lists, and anything deeper than `MAX_DEPTH`, becomes
compact JSON. Columns beyond a format's limit, those with the fewest rows, are folded into one JSON
column, `data.more`.
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
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import msgspec

from crawler.db import raw_pages
from crawler.db.results import page_url
from crawler.errors import UsageError
from crawler.models import Raw

BASE: dict[str, type] = {
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
MAX_DEPTH = 4
MAX_RARE = 20_000
"""Columns beyond a format's limit of which the rows are counted."""
"""Objects inside objects inside a record: deeper ones are JSON."""
MAX_NAME = 250
"""A longer name is no column of its own."""

_SHOWN = 40

Row = dict[str, Any]


def flatten(result: Mapping[str, Any]) -> Row:
    """A result as one row of text, numbers, true, false and None."""
    row: Row = {name: result.get(name) for name in BASE}
    row["status"] = result.get("status", "completed")
    if "line" in result:
        row["line"] = result["line"]
    parser, raw = result["parser"] or {}, result["raw"] or {}
    row["parser"], row["parser_version"] = parser.get("name"), parser.get("version")
    row |= {f"raw_{part}": raw.get(part) for part in ("segment", "offset", "length")}
    for name, value in result["input"].items():
        _add(row, f"input.{name}", _cell(value))
    _spread(row, "data", result["data"] or {}, 1)
    return row


def _spread(row: Row, path: str, fields: Mapping[str, Any], depth: int) -> None:
    for name, value in fields.items():
        if isinstance(value, dict) and depth < MAX_DEPTH:
            _spread(row, f"{path}.{name}", value, depth + 1)
        else:
            _add(row, f"{path}.{name}", _cell(value))


def _add(row: Row, name: str, value: Any) -> None:
    while name in row:  # {"a.b": 1, "a": {"b": 2}}: neither may be lost
        name += "~"
    row[name] = value


def _cell(value: Any) -> Any:
    if isinstance(value, list) and not any(isinstance(item, dict | list) for item in value):
        return " | ".join(map(as_text, value))
    return msgspec.json.encode(value).decode() if isinstance(value, dict | list) else value


def as_text(value: Any) -> str:
    """A plain value as text: as it is, as JSON writes it, or empty for None."""
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()


class Table:
    """Rows that were spooled once, with all their columns known."""

    def __init__(
        self, spool: BinaryIO, columns: dict[str, type], folded: int, names: Sequence[str] = ()
    ) -> None:
        self._spool = spool
        self._names = list(names or columns)
        """What the columns are called in the rows."""
        self.columns = columns
        """Names in their order, with the type that holds all values: text where they are mixed."""
        self.folded = folded
        """How many columns more there were; they are in the last one."""

    def only(self, wanted: Sequence[str]) -> "Table":
        """The table with these columns: their names, or those of fields, of the records first and
        then of the input."""
        known = dict(self.columns)
        if self.folded:
            known.popitem()
        names = [self._name(each, known) for each in wanted]
        return Table(
            self._spool,
            {each: known[name] for each, name in zip(wanted, names, strict=True)},
            0,
            names,
        )

    @staticmethod
    def _name(wanted: str, known: Mapping[str, type]) -> str:
        for name in (wanted, f"data.{wanted}", f"input.{wanted}"):
            if name in known:
                return name
        near = difflib.get_close_matches(
            wanted, [*known, *(name.partition(".")[2] for name in known)], n=1
        )
        hint = f" (did you mean {near[0]}?)" if near else ""
        more = f" and {len(known) - _SHOWN:,} more" if len(known) > _SHOWN else ""
        raise UsageError(
            f"there is no column {wanted!r}{hint}; there are: {', '.join(list(known)[:_SHOWN])}{more}"
        )

    def __iter__(self) -> Iterator[list[Any]]:
        """The rows, each with a value or None for every column."""
        self._spool.seek(0)
        names = self._names
        own = set(names)
        for line in self._spool:
            row: Row = msgspec.json.decode(line)
            values = [row.get(name) for name in names]
            if self.folded:
                more = {
                    name: value
                    for name, value in row.items()
                    if name not in own and value is not None
                }
                values[-1] = msgspec.json.encode(more).decode() if more else None
            yield values


@contextmanager
def tabulated(
    results: Iterable[Mapping[str, Any]], folder: Path | None, limit: int
) -> Iterator[Table]:
    """Read the results once, into an unlinked file in that folder, to know all columns before the
    first is written.

    Where there are more columns than the limit, those of most rows are kept: else some pages with
    hundreds of names of their own would push those of all others out.
    """
    seen = dict.fromkeys(BASE, 0)
    left_out, unknown = set[str](), 0
    with tempfile.TemporaryFile(dir=folder) as spool:
        for result in results:
            row = flatten(result)
            spool.write(msgspec.json.encode(row) + b"\n")
            for name, value in row.items():
                if name in seen:
                    seen[name] = (seen[name] | _KINDS[type(value)](value)) + _ROW
                elif len(name) <= MAX_NAME:
                    seen[name] = (_KINDS[type(value)](value) | unknown) + _ROW
                elif len(left_out) < limit:  # enough to say how many; their names are in the rows
                    left_out.add(name[:MAX_NAME])
            if len(seen) > limit + MAX_RARE:
                _leave_out(seen, limit - 1, left_out)
                unknown = _TEXT  # what comes now may have been left out before, with values of another type
        if len(seen) > limit - 1:
            _leave_out(seen, limit - 1, left_out)
        yield Table(spool, _columns(seen, bool(left_out)), len(left_out))


def _leave_out(seen: dict[str, int], limit: int, left_out: set[str]) -> None:
    """Forget the columns of fewest rows; those that every export has and those of the input
    stay."""
    names = [name for name in seen if name not in BASE and name != "line"]
    names.sort(key=lambda name: (not name.startswith("input."), -(seen[name] // _ROW)))
    room = max(0, limit - (len(seen) - len(names)))
    for name in names[room:]:
        del seen[name]
        if len(left_out) < limit:
            left_out.add(name)


def _columns(seen: Mapping[str, int], folded: bool) -> dict[str, type]:
    line = ["line"] if "line" in seen else []
    given = [name for name in seen if name.startswith("input.")]
    found = sorted(name for name in seen if name.startswith("data."))
    base = list(BASE)
    at = base.index("message") + 1
    columns = {name: _type(seen[name] % _ROW) for name in (*found, *given)}
    columns |= {name: BASE.get(name, int) for name in (*base[:at], *line, *base[at:])}
    if folded:
        more = "data.more"
        while more in columns:
            more += "~"
        columns[more] = str
    return columns


# What the values of a column are, as bits: what holds them all is known at the end.
_TEXT, _BOOL, _INT, _LONG, _HUGE, _FLOAT = 1, 2, 4, 8, 16, 32
_ROW = 64
"""Above these bits the rows that have a column are counted."""


def _kind_of_int(value: int) -> int:
    return _INT if abs(value) <= 1 << 53 else _LONG if -(1 << 63) <= value < 1 << 63 else _HUGE


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


Results = Iterable[Mapping[str, Any]]
T = TypeVar("T")

MAX_CSV_COLUMNS, MAX_SHEET_COLUMNS, MAX_SHEET_ROWS = 2_000, 16_384, 1_048_576
MAX_CELL = 32_767
"""What Excel holds in a cell, counted as UTF-16."""
CUT = " … [cut]"
_GROUP_ROWS, _GROUP_VALUES = 5_000, 100_000
_MAX_MD_VALUE = 2_000
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")
_FORMULA = re.compile(r"[\t\r\n]|[\s\u200b\u2060\ufeff]*[=+\-@＝＋－＠]")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:[.,]\d+)*|[.,]\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_MARKDOWN = str.maketrans({sign: f"\\{sign}" for sign in "\\`*_[]<>&|~#!$^{}"} | {"@": "`@`"})
"""An @ is in a code span of its own, because an escaped one still makes an address a link."""
_LINK = re.compile(r"(?<=www)\.|:(?=//)", re.IGNORECASE)


class Sink(NamedTuple):
    """Where an export goes, and what it needs."""

    out: BinaryIO
    name: str
    folder: Path | None
    """For temporary files: that of the target, which is chosen for its room."""
    raw: Path
    """Where the raw pages lie."""
    place: Callable[[Mapping[str, Any]], Raw | None]
    """Where the page of a result lies, unless none was kept or it was pruned."""
    say: Callable[[str], None]
    """For progress, and for what the reader of the file should know."""
    columns: Sequence[str] = ()
    """Those of a table; all where there are none."""


def told(
    items: Iterable[T], say: Callable[[str], None], what: str, every_s: float = 5.0
) -> Iterator[T]:
    """The items, with a word every few seconds on how many they are so far."""
    due = time.monotonic() + every_s
    for number, item in enumerate(items):
        if time.monotonic() > due:
            say(f"{number:,} {what}")
            due = time.monotonic() + every_s
        yield item


def write_jsonl(results: Results, sink: Sink) -> None:
    """One JSON object a line."""
    for result in results:
        sink.out.write(msgspec.json.encode(result) + b"\n")


def write_json(results: Results, sink: Sink) -> None:
    """One JSON array."""
    separator = b"[\n"
    for result in results:
        sink.out.write(separator + msgspec.json.encode(result))
        separator = b",\n"
    sink.out.write(b"\n]\n" if separator == b",\n" else b"[\n]\n")


def write_csv(results: Results, sink: Sink) -> None:
    """A table for Excel: with a byte order mark, and with no cell that a spreadsheet would take for
    a formula."""
    with _table(results, sink, MAX_CSV_COLUMNS) as table:
        writer = csv.writer(codecs.getwriter("utf-8-sig")(sink.out))
        writer.writerow(map(inert, table.columns))
        for row in told(table, sink.say, "rows written"):
            writer.writerow(
                [inert(value) if isinstance(value, str) else as_text(value) for value in row]
            )


def inert(text: str) -> str:
    """A text that no spreadsheet takes for a formula: an apostrophe before what begins like one;
    numbers stay."""
    text = _readable(text)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def _readable(text: str) -> str:
    """Without the control characters that XML cannot hold and that no reader of a table expects."""
    return text if text.isprintable() else _CONTROLS.sub("", text)


def write_xlsx(results: Results, sink: Sink, sheet_rows: int = MAX_SHEET_ROWS) -> None:
    """A workbook: text is text, numbers are numbers, nothing is a formula or a link; more rows,
    more sheets."""
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
        rows = told(table, sink.say, "rows written")
        more = True
        while more:
            sheet = book.add_worksheet()
            sheet.freeze_panes(1, 0)
            for column, name in enumerate(table.columns):
                sheet.write_string(0, column, sheet_text(name), bold)
            last = 0
            for last, row in enumerate(_first(rows, sheet_rows - 1), 1):
                _write_row(sheet, last, row)
            sheet.autofilter(0, 0, last, len(table.columns) - 1)
            more = last == sheet_rows - 1
        try:
            book.close()
        except FileCreateError as error:
            raise error.args[0] from None  # what the disk said: a full one is known by that
        except KeyboardInterrupt:
            gc.collect()  # the half zip file, while what it writes to is still open: else it complains at its end
            raise


def _first(rows: Iterator[list[Any]], count: int) -> Iterator[list[Any]]:
    for _, row in zip(range(count), rows, strict=False):
        yield row


def _write_row(sheet: Any, number: int, row: list[Any]) -> None:
    for column, value in enumerate(row):
        match value:
            case None:
                pass
            case bool():
                sheet.write_boolean(number, column, value)
            case str():
                sheet.write_string(number, column, sheet_text(value))
            case int() if abs(value) > 1 << 53:  # Excel would round it
                sheet.write_string(number, column, str(value))
            case _:
                sheet.write_number(number, column, value)


def sheet_text(text: str) -> str:
    """A text as a cell can hold it."""
    text = _readable(text)
    if len(text) > MAX_CELL // 2:
        units = text.encode("utf-16-le")
        if len(units) > 2 * MAX_CELL:
            text = units[: 2 * (MAX_CELL - len(CUT))].decode("utf-16-le", "ignore") + CUT
    if text.startswith("<r>") and text.endswith("</r>"):
        text += " "  # else xlsxwriter takes it for its own rich text, and writes it as XML
    return text


def write_parquet(results: Results, sink: Sink) -> None:
    """A Parquet file; the type of each column is the one that holds all its values."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise UsageError("the format parquet needs pyarrow: install crawler[parquet]") from None

    types = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    with _table(results, sink, MAX_CSV_COLUMNS) as table:
        kinds = list(table.columns.values())
        schema = pa.schema([(name, types[kind]) for name, kind in table.columns.items()])
        size = max(1, min(_GROUP_ROWS, _GROUP_VALUES // len(kinds)))
        rows = told(table, sink.say, "rows written")
        with parquet.ParquetWriter(sink.out, schema) as writer:
            while group := list(_first(rows, size)):
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
    with tabulated(results, sink.folder, limit) as table:
        if sink.columns:
            yield table.only(sink.columns)
            return
        if table.folded:
            more = list(table.columns)[-1]
            sink.say(
                f"{table.folded:,} columns or more have no room; they are together in the column {more}, as JSON"
            )
        yield table


def write_md(results: Results, sink: Sink) -> None:
    """Markdown to read: a section for each result, in which nothing of a page can act."""
    sink.out.write(b"# Results\n")
    for result in results:
        row = flatten(result)
        title = (result["data"] or {}).get("title")
        title = (
            title
            if isinstance(title, str) and title.strip()
            else row["url"] or f"line {row.get('line')}"
        )
        lines = [
            "",
            f"## {plain(title, 200)}",
            "",
            plain(row["url"] or ""),
            "",
            "| field | value |",
            "| --- | --- |",
        ]
        lines += [
            f"| {plain(name)} | {plain(as_text(v))} |"
            for name, v in row.items()
            if v not in (None, "")
        ]
        sink.out.write("\n".join(lines).encode() + b"\n")


def plain(text: str, limit: int = _MAX_MD_VALUE) -> str:
    """Text that Markdown shows as it is: no markup, no HTML, no link, no line of its own."""
    text = " ".join(_readable(text).split())
    if len(text) > limit:
        text = text[:limit] + CUT
    return _LINK.sub(r"\\\g<0>", text.translate(_MARKDOWN))


def write_warc(results: Results, sink: Sink) -> None:
    """One .warc.gz of the stored pages, each as it lies in raw/."""
    sink.out.write(raw_pages.warcinfo(sink.name))
    lacking = 0
    for result in results:
        place = sink.place(result)
        if place:
            raw_pages.read(
                sink.raw, place, page_url(result)
            )  # what is damaged ends the export; it is not handed on
            sink.out.write(raw_pages.member(sink.raw, place))
        lacking += place is None
    if lacking:
        sink.say(f"{lacking:,} of them have no stored page, and are not in the file")


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
