"""Reads the first sheet of an Excel workbook (.xlsx) as a stream of rows of text.

It uses zipfile and expat, because the libraries hold all cells or all shared strings in memory.
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
"""Unpacked bytes of a part of a workbook."""
MAX_RATIO = 200
"""Above 64 MB, a part that unpacks to more times its size is a bomb; real sheets reach some 30."""
MAX_COLUMNS = 1_000
"""A row with a cell behind these is rejected; a header with one makes the file unusable."""
MAX_TEXT = 1 << 30
"""Characters of all rows: a shared string of a megabyte may be in a million rows."""
MAX_STRINGS, MAX_STYLES, MAX_ROWS = 20_000_000, 100_000, 1 << 20
_MAX_DIRECTORY, _MAX_RELATIONS = 1 << 20, 10_000
_MAX_TOKEN, _MAX_NAMES, _MAX_DEPTH = 1 << 20, 10_000, 1_000
_MAX_FORMAT = 255  # as in Excel
_MAX_SHEET_NAME = 100
_MAX_PARTS = 1_000
"""Pieces of a text before they are joined: each takes some 50 bytes besides its characters."""
_PIECE = 1 << 16
_PROBED_PIECES = 16
"""Pieces of another sheet that are searched for rows."""
_ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")
_NOT_SHOWN = re.compile(r'"[^"]*"?|\\.|_.|\[(?!h+\]|m+\]|s+\])[^\]]*\]', re.IGNORECASE)
_BUILT_IN_DATES = frozenset((*range(14, 23), *range(27, 37), 45, 47, *range(50, 59)))
_EPOCHS = {False: datetime(1899, 12, 30), True: datetime(1904, 1, 1)}  # noqa: DTZ001
_OLD_EXCEL = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"

Names = dict[str, str]


class Record(NamedTuple):
    """A row: its number, and its cells that are not blank by column, from 1.

    Later cells are left out where `size` exceeds `MAX_LINE`, and faulty ones where there is a
    `fault`.
    """

    number: int
    cells: dict[int, str]
    size: int
    fault: str = ""


class _Parts(NamedTuple):
    """The parts of a workbook that are needed to read its first sheet."""

    sheet: str
    others: dict[str, str]
    """The other sheets by their names."""
    strings: str | None
    styles: str | None
    dates_from_1904: bool


def records(path: Path) -> Iterator[Record]:
    """Yield the rows of the first sheet that are not empty; raise `InputError` at damage."""
    with opened(path) as file, _damage(path), TemporaryFile() as texts, TemporaryFile() as places:
        book = _Workbook(path, file)
        parts = book.parts()
        styles = _Styles(parts.dates_from_1904)
        if parts.styles:
            book.parse(parts.styles, styles)
        strings = _Strings(texts, places)
        if parts.strings:
            book.parse(parts.strings, strings)
            strings.finish()
        sheet = _Sheet(path, strings, styles)
        try:
            with _damage(path):
                for _ in book.parsing(parts.sheet, sheet):
                    yield from sheet.records()
        except InputError as error:
            yield from sheet.records()  # the whole rows before the damage
            if error.line is None and sheet.ended:
                reason = f"{error.reason}; only the rows before were read"
                raise InputError(error.path, reason, sheet.ended + 1) from None
            raise


def other_sheets(path: Path) -> list[str]:
    """The names of the sheets behind the first one that seem to hold rows."""
    with opened(path) as file, _damage(path):
        book = _Workbook(path, file)
        return [name for name, part in book.parts().others.items() if _has_rows(path, book, part)]


def _has_rows(path: Path, book: "_Workbook", part: str) -> bool:
    with TemporaryFile() as texts, TemporaryFile() as places:
        sheet = _Sheet(path, _Strings(texts, places), _Styles(dates_from_1904=False))
        try:
            with _damage(path):
                for _ in islice(book.parsing(part, sheet), _PROBED_PIECES):
                    if sheet.ended:
                        return True
        except InputError:
            return True
        return sheet.depth > 0  # there is more of it


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
        return
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        reason = f"the workbook is damaged or protected ({error})"
    except expat.ExpatError as error:
        reason = f"the workbook is damaged: its XML is not well-formed ({error})"
    except OSError as error:
        reason = f"reading failed: {error}"
    raise InputError(str(path), reason)


class _Workbook:
    """The parts of the file, each parsed in one pass."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        _refuse_foreign(path, file)
        self._size = os.fstat(file.fileno()).st_size
        # The only way to know the directory's size before all of it is read.
        end = zipfile._EndRecData(file)  # type: ignore[attr-defined]
        if end and end[5] > _MAX_DIRECTORY:
            raise InputError(str(path), "the workbook has more parts than any real one")
        self._zip = zipfile.ZipFile(file)

    def parts(self) -> _Parts:
        """Find the sheets, the shared strings and the styles."""
        kinds = dict(self._relations("", "_rels/.rels").values())
        main = kinds.get("officeDocument", "xl/workbook.xml")
        folder, name = posixpath.split(main)
        relations = self._relations(folder, f"{folder}/_rels/{name}.rels")
        sheets: dict[str, str] = {}  # names by part
        epochs: list[str] = []

        def start(name: str, attributes: Names) -> None:
            if name == "workbookPr" and not epochs:
                epochs.append(attributes.get("date1904", ""))
            elif name == "sheet":
                ids = [value for key, value in attributes.items() if key.endswith(":id")]
                for kind, part in (relations.get(value, ("", "")) for value in ids):
                    if kind == "worksheet":
                        sheets.setdefault(part, attributes.get("name", part)[:_MAX_SHEET_NAME])
                if len(sheets) > _MAX_RELATIONS:
                    raise zipfile.BadZipFile(f"more than {_MAX_RELATIONS:,} sheets")

        self.parse(main, _Starts(start))
        if not sheets:
            raise InputError(str(self._path), "there is no sheet in this workbook")
        first, *others = sheets
        present = {kind: part for kind, part in relations.values() if self._has(part)}
        return _Parts(
            sheet=first,
            others={sheets[part]: part for part in others},
            strings=present.get("sharedStrings"),
            styles=present.get("styles"),
            dates_from_1904=epochs[:1] in (["1"], ["true"]),
        )

    def _relations(self, folder: str, part: str) -> dict[str, tuple[str, str]]:
        """Kind and target by id."""
        found: dict[str, tuple[str, str]] = {}

        def start(name: str, attributes: Names) -> None:
            if name != "Relationship":
                return
            target = posixpath.join("/" + folder, attributes.get("Target", ""))
            kind = attributes.get("Type", "").rpartition("/")[2]
            found[attributes.get("Id", "")] = (kind, posixpath.normpath(target).lstrip("/"))
            if len(found) > _MAX_RELATIONS:
                raise zipfile.BadZipFile(f"more than {_MAX_RELATIONS:,} parts in {part[:100]}")

        self.parse(part, _Starts(start))
        return found

    def _has(self, part: str) -> bool:
        return part in self._zip.NameToInfo

    def parse(self, part: str, handler: "_Handler") -> None:
        """Parse a part to its end."""
        for _ in self.parsing(part, handler):
            pass

    def parsing(self, part: str, handler: "_Handler") -> Iterator[None]:
        """Parse a part piece by piece; elements go by their names without a prefix."""
        info = self._checked(part)
        names: Names = {}
        parser = _parser(handler, names)
        parser.StartDoctypeDeclHandler = self._refuse_doctype
        fed = 0
        with self._zip.open(info) as stream:
            while piece := stream.read(_PIECE):
                fed += len(piece)
                try:
                    parser.Parse(piece, False)
                except (LookupError, ValueError) as error:  # an unknown or unfit encoding
                    raise zipfile.BadZipFile(f"{part[:100]}: {error}") from None
                # Expat holds a tag until its end, an element until it is closed, names for ever.
                too_long = fed - parser.CurrentByteIndex > _MAX_TOKEN
                if too_long or len(names) > _MAX_NAMES or handler.depth > _MAX_DEPTH:
                    raise InputError(str(self._path), f"{part[:100]} is not the XML of a workbook")
                yield
        parser.Parse(b"", True)
        yield

    def _checked(self, part: str) -> zipfile.ZipInfo:
        """Find a part, and refuse one that could unpack to more than a real workbook."""
        if not self._has(part):
            problem = f"this is not an Excel workbook: it has no part {part[:100]}"
            raise InputError(str(self._path), problem)
        info = self._zip.getinfo(part)
        packed = min(info.compress_size, self._size)  # the claimed size may be a lie
        if info.file_size > min(MAX_PART, max(64 << 20, MAX_RATIO * packed)):
            problem = f"{part[:100]} unpacks to {info.file_size:,} bytes, as only bombs do"
            raise InputError(str(self._path), problem)
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            # Workbooks use only these two, and zipfile unpacks the others without a limit.
            raise zipfile.BadZipFile(f"{part[:100]} is packed as no workbook is")
        return info

    def _refuse_doctype(self, *_: object) -> None:
        raise InputError(str(self._path), "the workbook's XML has a DOCTYPE, which no real one has")


def _parser(handler: "_Handler", names: Names) -> expat.XMLParserType:
    parser = expat.ParserCreate(intern=names)
    parser.buffer_text = True
    if hasattr(parser, "SetReparseDeferralEnabled"):
        parser.SetReparseDeferralEnabled(False)  # it would hold much more than the current tag

    def start(name: str, attributes: Names) -> None:
        handler.start(name.rpartition(":")[2], attributes)

    def end(name: str) -> None:
        handler.end(name.rpartition(":")[2])

    def first(name: str, attributes: Names) -> None:
        if ":" in name:  # some programs write <x:row>
            parser.StartElementHandler, parser.EndElementHandler = start, end
        else:
            parser.StartElementHandler, parser.EndElementHandler = handler.start, handler.end
        start(name, attributes)

    parser.StartElementHandler = first
    parser.CharacterDataHandler = handler.text
    return parser


def _refuse_foreign(path: Path, file: BinaryIO) -> None:
    start = file.read(8)
    if start.startswith(b"PK\x03\x04"):
        return
    reason = "this is not an Excel workbook, though its name ends in .xlsx"
    if not start:
        reason = "the file is empty"
    elif start == _OLD_EXCEL:
        way_out = "save it as .xlsx without one, or as CSV"
        reason = f"this is an old Excel file (.xls) or has a password; {way_out}"
    raise InputError(str(path), reason)


class _Handler:
    """Takes the elements of a part; `depth` is the number of open ones."""

    depth = 0

    def start(self, name: str, attributes: Names) -> None:
        self.depth += 1

    def end(self, name: str) -> None:
        self.depth -= 1

    def text(self, data: str) -> None:
        pass


class _Starts(_Handler):
    """A part of which only the start tags matter."""

    def __init__(self, start: Callable[[str, Names], None]) -> None:
        self._start = start

    def start(self, name: str, attributes: Names) -> None:
        self.depth += 1
        self._start(name, attributes)


class _Strings(_Handler):
    """The shared strings in two unlinked files: the texts, and the offsets of their ends."""

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
        # One character more than a row may have is kept, so that the row is rejected.
        if self._wanted and self._size <= MAX_LINE:
            self._parts.append(data[: MAX_LINE + 1])
            self._size += len(data)
            if len(self._parts) > _MAX_PARTS:
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
            data = _unescaped("".join(self._parts)).encode()
            self._parts.clear()
            self._size = 0
            self._texts.write(data)
            self._ends.append(self._ends[-1] + len(data))
            if len(self._ends) == _MAX_PARTS:
                self._places.write(self._ends[:-1])
                del self._ends[:-1]

    def finish(self) -> None:
        """Write the rest to the files."""
        self._places.write(self._ends)
        self._places.flush()
        self._texts.flush()

    def place(self, index: int) -> tuple[int, int]:
        """The offset and the size of a string; `IndexError` where there is none."""
        if not 0 <= index < self._count:
            raise IndexError(index)
        begin, end = array("Q", os.pread(self._places.fileno(), 16, 8 * index))
        return begin, end - begin

    def at(self, begin: int, size: int) -> str:
        """Read a string."""
        return os.pread(self._texts.fileno(), size, begin).decode()


class _Styles(_Handler):
    """How the number of a cell is shown: as a date, with leading zeros, or as it is."""

    def __init__(self, dates_from_1904: bool) -> None:
        self._epoch = _EPOCHS[dates_from_1904]
        self._codes: dict[str, str] = {}
        self._in_cells = False
        self._cells: list[int | bool] = []  # True for dates, else the minimum of digits

    def start(self, name: str, attributes: Names) -> None:
        self.depth += 1
        if len(self._cells) + len(self._codes) > MAX_STYLES:
            raise zipfile.BadZipFile(f"more than {MAX_STYLES:,} styles")
        if name == "numFmt":
            code = attributes.get("formatCode", "")
            self._codes[attributes.get("numFmtId", "")[:9]] = code[:_MAX_FORMAT]
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
        # A duration such as [h]:mm is no date.
        return any(sign in shown for sign in "dmyhs") and "[" not in shown and shown != "general"

    def number(self, text: str, style: str) -> str:
        """A number as its cell shows it: 123 for 123.0, 2026-11-15 for a date."""
        meaning: int | bool = 0
        if style and _is_number(style) and int(style) < len(self._cells):
            meaning = self._cells[int(style)]
        if meaning is True:
            return self._date(text)
        if not _is_number(text):
            text = _plain_number(text)
        return text.zfill(meaning)

    def _date(self, text: str) -> str:
        try:
            days = float(text)
            # Excel takes 1900 for a leap year, so it is a day ahead before its 29 February.
            days_on = days + (days < 60 and self._epoch.year < 1900)
            at = self._epoch + timedelta(seconds=round(days_on * 86400))
        except (ValueError, OverflowError):
            return text
        if 0 <= days < 1:
            return at.time().isoformat()
        return at.isoformat() if at.hour or at.minute or at.second else at.date().isoformat()


def _plain_number(text: str) -> str:
    """Without `.0` and exponents, with the 15 digits that Excel shows."""
    if re.fullmatch(r"-?\d+", text):
        return text
    try:
        value = float(text)
    except ValueError:
        return text
    if value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    return f"{value:.15g}"


def _unescaped(text: str) -> str:
    """Replace Excel's `_x000D_` by the character that XML cannot hold."""
    if "_x" not in text:
        return text
    return _ESCAPED.sub(_unescape, text)


def _unescape(found: re.Match[str]) -> str:
    is_surrogate = found[1][0] in "dD"
    return found[0] if is_surrogate else chr(int(found[1], 16))


class _Row:
    """A row as it is written; shared strings are looked up when its record is made."""

    __slots__ = ("cells", "fault", "number", "size")

    def __init__(self, number: int) -> None:
        self.number, self.size, self.fault = number, 0, ""
        self.cells: dict[int, tuple[str, str, str]] = {}  # type, style, text


class _Sheet(_Handler):
    """Turns a sheet's elements into rows."""

    def __init__(self, path: Path, strings: _Strings, styles: _Styles) -> None:
        self._path, self._strings, self._styles = path, strings, styles
        self._rows: list[_Row] = []
        self._row = _Row(0)
        self.ended = 0
        """The number of the last whole row with cells."""
        self._column = self._total = 0
        self._about: Names = {}
        self._parts: list[str] = []
        self._wanted = self._phonetic = self._formula = False

    def records(self) -> Iterator[Record]:
        """Yield the rows that have ended since the last call."""
        rows, self._rows = self._rows, []
        for row in rows:
            record = self._record(row)
            self._total += record.size
            if self._total > MAX_TEXT:
                reason = f"its cells have more than {MAX_TEXT:,} characters"
                raise InputError(str(self._path), reason, row.number)
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
            elif self._formula and self._about.get("t") != "str":
                # Written by a program that does not compute formulas.
                problem = f"the formula of cell {self._about.get('r', '')[:20]!r} has no value"
                self._row.fault = f"{problem}; save the workbook in a spreadsheet program"
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
                limit = f"a row may have {MAX_COLUMNS:,} columns"
                row.fault = f"there is a cell in column {column:,}, and {limit}"
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
        if width != max(cells, default=0):  # blank cells at the end are no part of the row
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
                return _unescaped(text)

    def _shared(self, row: _Row, text: str) -> str:
        try:
            begin, size = self._strings.place(int(text))
        except (ValueError, IndexError):
            row.fault = f"there is no shared string {text[:20]!r}"
            return ""
        if row.size > MAX_LINE:  # the row is rejected: do not read a long string for each cell
            row.size += size
            return ""
        found = self._strings.at(begin, size)
        row.size += len(found)
        return found


def _number_of(place: str) -> int:
    """The number of the column in a place such as XFD1, from 1 for A; 0 if it has none."""
    return _column(place.rstrip("0123456789")[:4])  # no column has more than three letters


@lru_cache(maxsize=1 << 14)
def _column(letters: str) -> int:
    if not (letters.isascii() and letters.isalpha()):
        return 0
    number = 0
    for letter in letters.upper():
        number = number * 26 + ord(letter) - 64
    return number


def _is_number(text: str) -> bool:
    """Whether it has only ASCII digits; `int` does not take all others of Unicode."""
    return text.isascii() and text.isdecimal()
