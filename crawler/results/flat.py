"""Results as flat rows with stable columns, for tables: csv, xlsx, parquet.

The columns are `data.<path>` for each field of the records, sorted, then `input.<name>` for each
input column in the order of their first appearance, then those of `BASE` (with `line` behind
`message` where rows of input are exported). A list of plain values is one text with ` | ` between
them; a list with objects or lists in it, and whatever lies deeper than `MAX_DEPTH`, is compact
JSON. Columns beyond a format's limit, those of fewest rows, are folded into one of JSON,
`data.more`.
"""

import difflib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from crawler.errors import UsageError

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
