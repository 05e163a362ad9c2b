"""The first sheet of an Excel workbook (.xlsx) as a stream of rows of text, whatever its size.

An own reader over zipfile and expat, because the libraries hold all cells or all shared strings in
memory.
"""

import os
import posixpath
import re
import zipfile
import zlib
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, NamedTuple
from xml.parsers import expat

from crawler.bulk.textfile import MAX_LINE, opened
from crawler.errors import InputError

MAX_PART = 4 << 30
"""How much a part of a workbook may unpack to."""
MAX_RATIO = 200
"""Above 64 MB, what unpacks to more than so many times its size is a bomb; real sheets reach some
30."""
MAX_COLUMNS = 1_000
"""A row with a cell behind these is rejected; a header with one makes the file unusable."""
MAX_TEXT = 1 << 30
"""Characters of all rows together: a shared string of a megabyte may stand in a million rows."""
MAX_STRINGS, MAX_STYLES, MAX_ROWS = 20_000_000, 100_000, 1 << 20
_MAX_DIRECTORY, _MAX_RELATIONS = 1 << 20, 10_000
_MAX_TOKEN, _MAX_NAMES, _MAX_DEPTH = 1 << 20, 10_000, 1_000
_MAX_FORMAT = 255  # as in Excel
_MAX_SHEET_NAME = 100
_MAX_PARTS = 1_000
_PIECE = 1 << 16
_LOOKED_AT = 16
"""Pieces of another sheet that are looked at for rows."""
_ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")
_NOT_SHOWN = re.compile(r'"[^"]*"?|\\.|_.|\[(?!h+\]|m+\]|s+\])[^\]]*\]', re.IGNORECASE)
_BUILT_IN_DATES = frozenset((*range(14, 23), *range(27, 37), 45, 47, *range(50, 59)))

Names = dict[str, str]


class Record(NamedTuple):
    """A row: its number, and by column, from 1, its cells that are not blank.

    Where `size` is more than `MAX_LINE`, later cells are left out; where there is a `fault`, the
    cells it is about.
    """

    number: int
    cells: dict[int, str]
    size: int
    fault: str = ""


class _Book(NamedTuple):
    """What is needed of a workbook to read its first sheet."""

    sheet: str
    others: dict[str, str]
    """The parts of the other sheets by their names."""
    strings: str | None
    styles: str | None
    dates_from_1904: bool


def records(path: Path) -> Iterator[Record]:
    """The rows of the first sheet that are not empty; raises `InputError` from where on the file
    cannot be used."""
    with opened(path) as file, _damage(path), TemporaryFile() as texts, TemporaryFile() as places:
        book = _Workbook(path, file)
        about = book.about()
        styles = _Styles(about.dates_from_1904)
        if about.styles:
            book.parse(about.styles, styles)
        strings = _Strings(texts, places)
        if about.strings:
            book.parse(about.strings, strings)
            strings.finish()
        sheet = _Sheet(path, strings, styles)
        try:
            with _damage(path):
                for _ in book.parsing(about.sheet, sheet):
                    yield from sheet.records()
        except InputError as error:
            yield from sheet.records()  # those that were whole before it
            if error.line is None and sheet.ended:
                reason = f"{error.reason}; only the rows before were read"
                raise InputError(error.path, reason, sheet.ended + 1) from None
            raise


def other_sheets(path: Path) -> list[str]:
    """The names of the sheets behind the first one that seem to hold rows."""
    with opened(path) as file, _damage(path):
        book = _Workbook(path, file)
        return [name for name, part in book.about().others.items() if _has_rows(path, book, part)]


def _has_rows(path: Path, book: "_Workbook", part: str) -> bool:
    with TemporaryFile() as texts, TemporaryFile() as places:
        sheet = _Sheet(path, _Strings(texts, places), _Styles(dates_from_1904=False))
        try:
            with _damage(path):
                for _ in islice(book.parsing(part, sheet), _LOOKED_AT):
                    if sheet.ended:
                        return True
        except InputError:
            return True
        return sheet.depth > 0  # there is more of it


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        RuntimeError,
    ) as error:  # the last: there is a password
        raise InputError(str(path), f"the workbook is damaged or protected ({error})") from None
    except expat.ExpatError as error:
        raise InputError(
            str(path), f"the workbook is damaged: its XML is not well-formed ({error})"
        ) from None
    except OSError as error:
        raise InputError(str(path), f"reading failed: {error}") from None


class _Workbook:
    """The parts of the file, each parsed in one pass."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        _refuse_foreign(path, file)
        self._size = os.fstat(file.fileno()).st_size
        end = zipfile._EndRecData(file)  # type: ignore[attr-defined]  # the only way to its size before all is read
        if end and end[5] > _MAX_DIRECTORY:
            raise InputError(str(path), "the workbook has more parts than any real one")
        self._zip = zipfile.ZipFile(file)

    def about(self) -> _Book:
        """Where the first sheet, the shared strings and the styles are."""
        root = self._relations("", "_rels/.rels")
        main = next(
            (target for kind, target in root.values() if kind == "officeDocument"),
            "xl/workbook.xml",
        )
        folder, name = posixpath.split(main)
        parts = self._relations(folder, f"{folder}/_rels/{name}.rels")
        found: dict[str, str] = {}  # only what stands first
        others: dict[str, str] = {}

        def start(name: str, attributes: Names) -> None:
            if name == "sheet":
                for key, value in attributes.items():
                    kind, target = parts.get(value, ("", "")) if key.endswith(":id") else ("", "")
                    if kind == "worksheet" and target != found.setdefault("sheet", target):
                        others[attributes.get("name", target)[:_MAX_SHEET_NAME]] = target
                if len(others) > _MAX_RELATIONS:
                    raise zipfile.BadZipFile(f"more than {_MAX_RELATIONS:,} sheets")
            elif name == "workbookPr":
                found.setdefault("date1904", attributes.get("date1904", ""))

        self.parse(main, _Starts(start))
        if "sheet" not in found:
            raise InputError(str(self._path), "there is no sheet in this workbook")
        one = {kind: target for kind, target in parts.values() if self._has(target)}
        since_1904 = found.get("date1904") in ("1", "true")
        return _Book(
            found["sheet"], others, one.get("sharedStrings"), one.get("styles"), since_1904
        )

    def _relations(self, folder: str, part: str) -> dict[str, tuple[str, str]]:
        """Kind and target by id."""
        found: dict[str, tuple[str, str]] = {}

        def start(name: str, attributes: Names) -> None:
            if name == "Relationship":
                target = posixpath.normpath(
                    posixpath.join("/" + folder, attributes.get("Target", ""))
                )
                kind = attributes.get("Type", "").rpartition("/")[2]
                found[attributes.get("Id", "")] = (kind, target.lstrip("/"))
                if len(found) > _MAX_RELATIONS:
                    raise zipfile.BadZipFile(f"more than {_MAX_RELATIONS:,} parts in {part[:100]}")

        self.parse(part, _Starts(start))
        return found

    def _has(self, part: str) -> bool:
        return part in self._zip.NameToInfo

    def parse(self, part: str, reading: "_Reading") -> None:
        """Parse a part to its end."""
        for _ in self.parsing(part, reading):
            pass

    def parsing(self, part: str, reading: "_Reading") -> Iterator[None]:
        """Parse a part piece by piece; elements go by their names without a prefix."""
        if not self._has(part):
            raise InputError(
                str(self._path), f"this is not an Excel workbook: it has no part {part[:100]}"
            )
        info = self._zip.getinfo(part)
        packed = min(info.compress_size, self._size)  # as it is claimed, and as it can be
        if info.file_size > MAX_PART or info.file_size > max(64 << 20, MAX_RATIO * packed):
            raise InputError(
                str(self._path),
                f"{part[:100]} unpacks to {info.file_size:,} bytes, as only bombs do",
            )
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            # The only two of a workbook, and zipfile unpacks the others without a limit.
            raise zipfile.BadZipFile(f"{part[:100]} is packed as no workbook is")
        names: Names = {}
        parser = expat.ParserCreate(intern=names)
        parser.buffer_text = True
        if hasattr(
            parser, "SetReparseDeferralEnabled"
        ):  # a newer expat would hold much more than the present tag
            parser.SetReparseDeferralEnabled(False)

        def first(name: str, attributes: Names) -> None:
            if (
                ":" in name
            ):  # some programs write <x:row>; without a prefix each call is spared its cutting off
                parser.StartElementHandler = lambda name, attributes: reading.start(
                    name.rpartition(":")[2], attributes
                )
                parser.EndElementHandler = lambda name: reading.end(name.rpartition(":")[2])
            else:
                parser.StartElementHandler, parser.EndElementHandler = reading.start, reading.end
            reading.start(name.rpartition(":")[2], attributes)

        parser.StartElementHandler = first
        parser.CharacterDataHandler = reading.text
        parser.StartDoctypeDeclHandler = self._refuse_doctype
        fed = 0
        with self._zip.open(info) as stream:
            while piece := stream.read(_PIECE):
                fed += len(piece)
                try:
                    parser.Parse(piece, False)
                except (
                    LookupError,
                    ValueError,
                ) as error:  # an encoding that Python does not know or expat cannot take
                    raise zipfile.BadZipFile(f"{part[:100]}: {error}") from None
                # Expat holds a tag until its end, one that is open until it is closed, and names
                # for ever.
                if (
                    fed - parser.CurrentByteIndex > _MAX_TOKEN
                    or len(names) > _MAX_NAMES
                    or reading.depth > _MAX_DEPTH
                ):
                    raise InputError(str(self._path), f"{part[:100]} is not the XML of a workbook")
                yield
        parser.Parse(b"", True)
        yield

    def _refuse_doctype(self, *_: object) -> None:
        raise InputError(str(self._path), "the workbook's XML has a DOCTYPE, which no real one has")


def _refuse_foreign(path: Path, file: BinaryIO) -> None:
    start = file.read(8)
    if not start:
        raise InputError(str(path), "the file is empty")
    if start == b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1":
        raise InputError(
            str(path),
            "this is an old Excel file (.xls) or has a password; save it as .xlsx without one, or as CSV",
        )
    if not start.startswith(b"PK\x03\x04"):
        raise InputError(str(path), "this is not an Excel workbook, though its name ends in .xlsx")


class _Reading:
    """What is done with the elements of a part; `depth` is how many of them are open."""

    depth = 0

    def start(self, name: str, attributes: Names) -> None:
        self.depth += 1

    def end(self, name: str) -> None:
        self.depth -= 1

    def text(self, data: str) -> None:
        pass


class _Starts(_Reading):
    """A part of which only the beginnings of elements matter."""

    def __init__(self, start: Callable[[str, Names], None]) -> None:
        self._start = start

    def start(self, name: str, attributes: Names) -> None:
        self.depth += 1
        self._start(name, attributes)


class _Strings(_Reading):
    """The shared strings, in unlinked files: one of the texts, one of the places where each of them
    ends."""

    def __init__(self, texts: BinaryIO, places: BinaryIO) -> None:
        self._texts, self._places = texts, places
        self._ends = array("Q", (0,))
        self._count = 0
        self._parts: list[str] = []
        self._size = 0
        self._wanted = self._phonetic = False

    def start(self, name: str, attributes: Names) -> None:
        self.depth += 1
        if name == "t":
            self._wanted = not self._phonetic
        elif name == "rPh":
            self._phonetic = True

    def text(self, data: str) -> None:
        if (
            self._wanted and self._size <= MAX_LINE
        ):  # one character more than a row may have, so that it is rejected
            self._parts.append(data[: MAX_LINE + 1])
            self._size += len(data)
            if (
                len(self._parts) > _MAX_PARTS
            ):  # of a character each, they would take a hundred times its memory
                self._parts = ["".join(self._parts)]

    def end(self, name: str) -> None:
        self.depth -= 1
        if name == "t":
            self._wanted = False
        elif name == "rPh":
            self._phonetic = False
        elif name == "si":
            self._count += 1
            if self._count > MAX_STRINGS:
                raise zipfile.BadZipFile(f"more than {MAX_STRINGS:,} shared strings")
            data = unescaped("".join(self._parts)).encode()
            self._parts.clear()
            self._size = 0
            self._texts.write(data)
            self._ends.append(self._ends[-1] + len(data))
            if len(self._ends) == _MAX_PARTS:
                self._places.write(self._ends[:-1])
                del self._ends[:-1]

    def finish(self) -> None:
        """Put everything where `place` and `at` look for it."""
        self._places.write(self._ends)
        self._places.flush()
        self._texts.flush()

    def place(self, index: int) -> tuple[int, int]:
        """Where a string begins, and its size in bytes; raises `IndexError` where there is none."""
        if not 0 <= index < self._count:
            raise IndexError(index)
        begin, end = array("Q", os.pread(self._places.fileno(), 16, 8 * index))
        return begin, end - begin

    def at(self, begin: int, size: int) -> str:
        """The string of a place."""
        return os.pread(self._texts.fileno(), size, begin).decode()


class _Styles(_Reading):
    """How numbers are to be read, by the number of their cell's style: as dates, with leading
    zeros, as they are."""

    def __init__(self, dates_from_1904: bool) -> None:
        self._epoch = datetime(1904, 1, 1) if dates_from_1904 else datetime(1899, 12, 30)  # noqa: DTZ001
        self._codes: dict[str, str] = {}
        self._in_cells = False
        self._cells: list[int | bool] = []  # a date, or how many digits are shown at least

    def start(self, name: str, attributes: Names) -> None:
        self.depth += 1
        if len(self._cells) + len(self._codes) > MAX_STYLES:
            raise zipfile.BadZipFile(f"more than {MAX_STYLES:,} styles")
        if name == "numFmt":
            self._codes[attributes.get("numFmtId", "")[:9]] = attributes.get("formatCode", "")[
                :_MAX_FORMAT
            ]
        elif name in ("cellXfs", "cellStyleXfs", "cellStyles", "dxfs"):
            self._in_cells = name == "cellXfs"
        elif name == "xf" and self._in_cells:
            self._cells.append(self._meaning(attributes.get("numFmtId", "0")))

    def _meaning(self, number: str) -> int | bool:
        code = self._codes.get(number)
        if code is None:
            return _is_number(number) and int(number[:9]) in _BUILT_IN_DATES
        if re.fullmatch("0+", code):
            return len(code)
        shown = _NOT_SHOWN.sub("", code.partition(";")[0]).lower()
        # A number of hours such as [h]:mm is no date.
        return any(sign in shown for sign in "dmyhs") and "[" not in shown and shown != "general"

    def number(self, text: str, style: str) -> str:
        """A number as its cell shows it, as far as that matters: 123 for 123.0, 2026-11-15 for a
        date."""
        known = style and _is_number(style) and int(style) < len(self._cells)
        meaning = self._cells[int(style)] if known else 0
        if meaning is True:
            return self._date(text)
        if not _is_number(text):
            text = _plain_number(text)
        return text.zfill(meaning) if meaning else text

    def _date(self, text: str) -> str:
        try:
            days = float(text)
            # Excel takes 1900 for a leap year, so before its 29 February it is a day ahead.
            days_on = days + (days < 60 and self._epoch.year < 1900)
            at = self._epoch + timedelta(seconds=round(days_on * 86400))
        except (ValueError, OverflowError):
            return text
        if 0 <= days < 1:
            return at.time().isoformat()
        return at.isoformat() if at.hour or at.minute or at.second else at.date().isoformat()


def _plain_number(text: str) -> str:
    """Without `.0` and exponents, and with the 15 digits that Excel shows: 0.1, not
    0.10000000000000001."""
    if re.fullmatch(r"-?\d+", text):
        return text
    try:
        value = float(text)
    except ValueError:
        return text
    if value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    return f"{value:.15g}"


def unescaped(text: str) -> str:
    """The text with Excel's `_x000D_` for characters that XML cannot hold undone."""
    if "_x" not in text:
        return text
    return _ESCAPED.sub(
        lambda found: found[0] if found[1][0] in "dD" else chr(int(found[1], 16)), text
    )


class _Row:
    """A row as it is written: what its cells hold is not looked up before somebody asks for the
    row."""

    __slots__ = ("cells", "fault", "number", "size")

    def __init__(self, number: int) -> None:
        self.number, self.size, self.fault = number, 0, ""
        self.cells: dict[int, tuple[str, str, str]] = {}  # type, style, text


class _Sheet(_Reading):
    """Turns a sheet's elements into rows."""

    def __init__(self, path: Path, strings: _Strings, styles: _Styles) -> None:
        self._path, self._strings, self._styles = path, strings, styles
        self._rows: list[_Row] = []
        self._row = _Row(0)
        self.ended = 0
        """The number of the last row with cells that has come to its end."""
        self._column = self._total = 0
        self._about: Names = {}
        self._parts: list[str] = []
        self._wanted = self._phonetic = self._formula = False

    def records(self) -> Iterator[Record]:
        """The rows that have come to their end since the last time, each made when it is asked
        for."""
        rows, self._rows = self._rows, []
        for row in rows:
            record = self._record(row)
            self._total += record.size
            if self._total > MAX_TEXT:
                raise InputError(
                    str(self._path), f"its cells have more than {MAX_TEXT:,} characters", row.number
                )
            if record.cells or record.fault:
                yield record

    def start(self, name: str, attributes: Names) -> None:
        self.depth += 1
        if name == "c":
            self._about = attributes
            self._column = _number_of(attributes["r"]) if "r" in attributes else self._column + 1
            self._parts.clear()
            self._formula = False
        elif name in ("v", "t"):
            self._wanted = not self._phonetic
        elif name == "f":
            self._formula = True
        elif name == "row":
            number = attributes.get("r", "")
            claimed = int(number) if _is_number(number) and len(number) < 9 else 0
            self._row = _Row(max(self._row.number + 1, claimed))
            self._column = 0
            if self._row.number > MAX_ROWS:
                reason = f"there are more than {MAX_ROWS:,} rows, or they are out of order"
                raise InputError(str(self._path), reason, self._row.number)
        elif name == "rPh":
            self._phonetic = True

    def text(self, data: str) -> None:
        if self._wanted:
            self._row.size += len(data)
            if self._row.size <= MAX_LINE:
                self._parts.append(data)
                if len(self._parts) > _MAX_PARTS:
                    self._parts = ["".join(self._parts)]

    def end(self, name: str) -> None:
        self.depth -= 1
        if name == "c":
            if self._parts:
                self._put("".join(self._parts))
            elif (
                self._formula and self._about.get("t") != "str"
            ):  # a program that computes nothing has written it
                place = self._about.get("r", "")[:20]
                self._row.fault = f"the formula of cell {place!r} has no value; save the workbook in a spreadsheet program"
        elif name in ("v", "t"):
            self._wanted = False
        elif name == "row":
            if self._row.cells or self._row.fault:
                self._rows.append(self._row)
                self.ended = self._row.number
        elif name == "rPh":
            self._phonetic = False

    def _put(self, text: str) -> None:
        row, column = self._row, self._column
        if column > MAX_COLUMNS:
            if text.strip():
                row.fault = f"there is a cell in column {column:,}, and a row may have {MAX_COLUMNS:,} columns"
        elif column < 1:
            row.fault = f"the place {self._about['r'][:20]!r} of a cell is none"
        elif column in row.cells:
            row.fault = f"there are two cells {self._about.get('r', '')[:20]!r}"
        else:
            row.cells[column] = (self._about.get("t", "n")[:9], self._about.get("s", "")[:9], text)

    def _record(self, row: _Row) -> Record:
        cells, width = {}, 0
        for column, (kind, style, text) in row.cells.items():
            value = cells[column] = self._value(row, kind, style, text)
            if column > width and value and not value.isspace():
                width = column
        if width != max(
            cells, default=0
        ):  # blank ones behind the last that is not are no part of the row
            cells = {column: value for column, value in cells.items() if column <= width and value}
        return Record(row.number, cells, row.size, row.fault)

    def _value(self, row: _Row, kind: str, style: str, text: str) -> str:
        match kind:
            case "s":
                return self._shared(row, text)
            case "n":
                return self._styles.number(text.strip(), style)
            case "b":
                return "true" if text.strip() in ("1", "true") else "false"
            case _:
                return unescaped(text)

    def _shared(self, row: _Row, text: str) -> str:
        try:
            begin, size = self._strings.place(int(text))
        except (ValueError, IndexError):
            row.fault = f"there is no shared string {text[:20]!r}"
            return ""
        if (
            row.size > MAX_LINE
        ):  # the row is rejected: a long string is not read for each of its cells
            row.size += size
            return ""
        found = self._strings.at(begin, size)
        row.size += len(found)
        return found


def _number_of(place: str) -> int:
    """The number of the column in a place such as XFD1, from 1 for A; 0 where there is none."""
    letters = place.rstrip("0123456789")
    return _column(letters[:4])  # more than three are behind all others


@lru_cache(maxsize=1 << 14)
def _column(letters: str) -> int:
    if not (letters.isascii() and letters.isalpha()):  # also where there are none
        return 0
    number = 0
    for letter in letters.upper():
        number = number * 26 + ord(letter) - 64
    return number


def _is_number(text: str) -> bool:
    """Whether it is made of the ten digits; Unicode has others, which `int` does not take."""
    return text.isascii() and text.isdecimal()
