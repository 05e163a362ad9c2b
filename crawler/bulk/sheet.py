"""The first sheet of an Excel workbook (.xlsx) as a stream of rows of text, whatever its size.

An own reader over zipfile and expat, because the libraries hold all cells or all shared strings in memory.
"""

import posixpath
import re
import tempfile
import zipfile
import zlib
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple
from xml.parsers import expat

from crawler.bulk.textfile import MAX_LINE, opened
from crawler.errors import InputError

MAX_PART = 4 << 30
"""How much a part of a workbook may unpack to."""
MAX_RATIO = 200
"""Above 64 MB, what unpacks to more than so many times its size is a bomb; real sheets reach some 30."""
MAX_STRINGS, MAX_STYLES, MAX_ROWS, MAX_COLUMNS = 20_000_000, 100_000, 1 << 20, 1 << 14
_MAX_DIRECTORY = 4 << 20
_MAX_TOKEN, _MAX_NAMES = 8 << 20, 10_000
_PIECE = 1 << 16
_ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")
_NOT_SHOWN = re.compile(r'"[^"]*"?|\\.|_.|\[(?!h+\]|m+\]|s+\])[^\]]*\]', re.IGNORECASE)
_BUILT_IN_DATES = frozenset((*range(14, 23), *range(27, 37), 45, 47, *range(50, 59)))

Names = dict[str, str]


class Record(NamedTuple):
    """A row: its number, its cells, and their size; where that is more than `MAX_LINE`, later cells are left out."""

    number: int
    cells: list[str]
    size: int


class _Book(NamedTuple):
    """What is needed of a workbook to read its first sheet."""

    sheet: str
    strings: str | None
    styles: str | None
    dates_from_1904: bool


def records(path: Path) -> Iterator[Record]:
    """The rows of the first sheet that are not empty; raises `InputError` from where on the file cannot be used."""
    with opened(path) as file, _damage(path), tempfile.TemporaryFile() as spool:
        book = _Workbook(path, file)
        about = book.about()
        styles = _Styles(about.dates_from_1904)
        if about.styles:
            book.parse(about.styles, styles.start)
        strings = _Strings(spool)
        if about.strings:
            book.parse(about.strings, strings.start, strings.end, strings.text)
        sheet = _Sheet(path, strings, styles)
        for _ in book.parsing(about.sheet, sheet.start, sheet.end, sheet.text):
            yield from sheet.taken()


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        # The last two are zipfile's words for an unknown compression and for a password.
        raise InputError(str(path), f"the workbook is damaged or protected ({error})") from None
    except expat.ExpatError as error:
        raise InputError(str(path), f"the workbook is damaged: its XML is not well-formed ({error})") from None
    except OSError as error:
        raise InputError(str(path), f"reading failed: {error}") from None


class _Workbook:
    """The parts of the file, each parsed in one pass."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        _refuse_foreign(path, file)
        end = zipfile._EndRecData(file)  # type: ignore[attr-defined]  # the only way to its size before all is read
        if end and end[5] > _MAX_DIRECTORY:
            raise InputError(str(path), "the workbook has more parts than any real one")
        self._zip = zipfile.ZipFile(file)

    def about(self) -> _Book:
        """Where the first sheet, the shared strings and the styles are."""
        root = self._relations("", "_rels/.rels")
        main = next((target for kind, target in root.values() if kind == "officeDocument"), "xl/workbook.xml")
        folder, name = posixpath.split(main)
        sheets: list[str] = []
        dates: list[str] = []

        def start(name: str, attributes: Names) -> None:
            if name == "sheet":
                sheets.extend(value for key, value in attributes.items() if key.endswith(":id"))
            elif name == "workbookPr":
                dates.append(attributes.get("date1904", ""))

        self.parse(main, start)
        parts = self._relations(folder, f"{folder}/_rels/{name}.rels")
        found = [parts[key][1] for key in sheets if key in parts and parts[key][0] == "worksheet"]
        if not found:
            raise InputError(str(self._path), "there is no sheet in this workbook")
        one = {kind: target for kind, target in parts.values() if self._has(target)}
        return _Book(found[0], one.get("sharedStrings"), one.get("styles"), dates[:1] in (["1"], ["true"]))

    def _relations(self, folder: str, part: str) -> dict[str, tuple[str, str]]:
        """Kind and target by id."""
        found: dict[str, tuple[str, str]] = {}

        def start(name: str, attributes: Names) -> None:
            if name == "Relationship":
                target = posixpath.normpath(posixpath.join("/" + folder, attributes.get("Target", "")))
                kind = attributes.get("Type", "").rpartition("/")[2]
                found[attributes.get("Id", "")] = (kind, target.lstrip("/"))

        self.parse(part, start)
        return found

    def _has(self, part: str) -> bool:
        return part in self._zip.NameToInfo

    def parse(
        self,
        part: str,
        start: Callable[[str, Names], None],
        end: Callable[[str], None] | None = None,
        text: Callable[[str], None] | None = None,
    ) -> None:
        """Parse a part to its end."""
        for _ in self.parsing(part, start, end, text):
            pass

    def parsing(
        self,
        part: str,
        start: Callable[[str, Names], None],
        end: Callable[[str], None] | None,
        text: Callable[[str], None] | None,
    ) -> Iterator[None]:
        """Parse a part piece by piece; elements go by their names without a prefix."""
        if not self._has(part):
            raise InputError(str(self._path), f"this is not an Excel workbook: it has no part {part[:100]}")
        info = self._zip.getinfo(part)
        if info.file_size > MAX_PART or info.file_size > max(64 << 20, MAX_RATIO * info.compress_size):
            raise InputError(str(self._path), f"{part[:100]} unpacks to {info.file_size:,} bytes, as only bombs do")
        names: Names = {}
        parser = expat.ParserCreate(intern=names)
        parser.buffer_text = True

        def first(name: str, attributes: Names) -> None:
            if ":" in name:  # some programs write <x:row>; without a prefix each call is spared its cutting off
                parser.StartElementHandler = lambda name, attributes: start(name.rpartition(":")[2], attributes)
                parser.EndElementHandler = end and (lambda name: end(name.rpartition(":")[2]))
            else:
                parser.StartElementHandler, parser.EndElementHandler = start, end
            start(name.rpartition(":")[2], attributes)

        parser.StartElementHandler = first
        parser.CharacterDataHandler = text
        parser.StartDoctypeDeclHandler = self._refuse_doctype
        fed = 0
        with self._zip.open(info) as stream:
            while piece := stream.read(_PIECE):
                fed += len(piece)
                parser.Parse(piece, False)
                # Expat holds a tag until its end, and names for ever.
                if fed - parser.CurrentByteIndex > _MAX_TOKEN or len(names) > _MAX_NAMES:
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
            str(path), "this is an old Excel file (.xls) or has a password; save it as .xlsx without one, or as CSV"
        )
    if not start.startswith(b"PK\x03\x04"):
        raise InputError(str(path), "this is not an Excel workbook, though its name ends in .xlsx")


class _Strings:
    """The shared strings, in an unlinked file: only where each one ends is held in memory."""

    def __init__(self, spool: BinaryIO) -> None:
        self._spool = spool
        self._ends = array("Q", (0,))
        self._parts: list[str] = []
        self._size = 0
        self._wanted = self._phonetic = False

    def start(self, name: str, attributes: Names) -> None:
        if name == "t":
            self._wanted = not self._phonetic
        elif name == "rPh":
            self._phonetic = True

    def text(self, data: str) -> None:
        if self._wanted and self._size <= MAX_LINE:  # one character more than a row may have, so that it is rejected
            self._parts.append(data[: MAX_LINE + 1])
            self._size += len(data)

    def end(self, name: str) -> None:
        if name == "t":
            self._wanted = False
        elif name == "rPh":
            self._phonetic = False
        elif name == "si":
            if len(self._ends) > MAX_STRINGS:
                raise zipfile.BadZipFile(f"more than {MAX_STRINGS:,} shared strings")
            data = unescaped("".join(self._parts)).encode()
            self._parts.clear()
            self._size = 0
            self._spool.write(data)
            self._ends.append(self._ends[-1] + len(data))

    def __getitem__(self, index: int) -> str:
        if index < 0:
            raise IndexError(index)
        begin, end = self._ends[index], self._ends[index + 1]
        self._spool.seek(begin)
        return self._spool.read(end - begin).decode()


class _Styles:
    """How numbers are to be read, by the number of their cell's style: as dates, with leading zeros, as they are."""

    def __init__(self, dates_from_1904: bool) -> None:
        self._epoch = datetime(1904, 1, 1) if dates_from_1904 else datetime(1899, 12, 30)  # noqa: DTZ001
        self._codes: dict[str, str] = {}
        self._in_cells = False
        self._cells: list[int | bool] = []  # a date, or how many digits are shown at least

    def start(self, name: str, attributes: Names) -> None:
        if len(self._cells) + len(self._codes) > MAX_STYLES:
            raise zipfile.BadZipFile(f"more than {MAX_STYLES:,} styles")
        if name == "numFmt":
            self._codes[attributes.get("numFmtId", "")] = attributes.get("formatCode", "")
        elif name in ("cellXfs", "cellStyleXfs", "cellStyles", "dxfs"):
            self._in_cells = name == "cellXfs"
        elif name == "xf" and self._in_cells:
            self._cells.append(self._meaning(attributes.get("numFmtId", "0")))

    def _meaning(self, number: str) -> int | bool:
        code = self._codes.get(number)
        if code is None:
            return _is_number(number) and int(number) in _BUILT_IN_DATES
        if re.fullmatch("0+", code):
            return len(code)
        shown = _NOT_SHOWN.sub("", code.partition(";")[0]).lower()
        # A number of hours such as [h]:mm is no date.
        return any(sign in shown for sign in "dmyhs") and "[" not in shown and shown != "general"

    def number(self, text: str, style: str | None) -> str:
        """A number as its cell shows it, as far as that matters: 123 for 123.0, 2026-11-15 for a date."""
        meaning = self._cells[int(style)] if style and _is_number(style) and int(style) < len(self._cells) else 0
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
    """Without `.0` and exponents, and with the 15 digits that Excel shows: 0.1, not 0.10000000000000001."""
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
    return _ESCAPED.sub(lambda found: found[0] if found[1][0] in "dD" else chr(int(found[1], 16)), text)


class _Sheet:
    """Turns a sheet's elements into rows."""

    def __init__(self, path: Path, strings: _Strings, styles: _Styles) -> None:
        self._path, self._strings, self._styles = path, strings, styles
        self._rows: list[Record] = []
        self._number = self._column = self._size = 0
        self._cells: dict[int, str] = {}
        self._about: Names = {}
        self._parts: list[str] = []
        self._phonetic = False

    def taken(self) -> list[Record]:
        """The rows that have come to their end since the last time."""
        rows, self._rows = self._rows, []
        return rows

    def start(self, name: str, attributes: Names) -> None:
        if name == "c":
            self._about = attributes
            self._column = _number_of(attributes["r"].rstrip("0123456789")) if "r" in attributes else self._column + 1
        elif name in ("v", "t"):
            self._parts.clear()  # what stands between elements
        elif name == "row":
            number = attributes.get("r", "")
            self._number = max(self._number + 1, int(number) if _is_number(number) and len(number) < 9 else 0)
            self._cells, self._column, self._size = {}, 0, 0
            if self._number > MAX_ROWS:
                raise InputError(str(self._path), f"there are more than {MAX_ROWS:,} rows", self._number)
        elif name == "rPh":
            self._phonetic = True

    def text(self, data: str) -> None:
        self._size += len(data)
        if self._size <= MAX_LINE:
            self._parts.append(data)

    def end(self, name: str) -> None:
        if name in ("v", "t"):
            if not self._phonetic and self._parts:
                self._cells[self._column] = self._cells.get(self._column, "") + self._value("".join(self._parts))
        elif name == "row":
            width = max((column for column, text in self._cells.items() if text.strip()), default=0)
            if width > MAX_COLUMNS:
                raise InputError(str(self._path), f"there are more than {MAX_COLUMNS:,} columns", self._number)
            if width:
                cells = [self._cells.get(column, "") for column in range(1, width + 1)]
                self._rows.append(Record(self._number, cells, self._size))
        elif name == "rPh":
            self._phonetic = False

    def _value(self, text: str) -> str:
        match self._about.get("t", "n"):
            case "s":
                try:
                    text = self._strings[int(text)]
                except (ValueError, IndexError, OverflowError):
                    raise InputError(
                        str(self._path), f"there is no shared string {text[:20]!r}", self._number
                    ) from None
                full = self._size > MAX_LINE
                self._size += len(text)
                return "" if full else text
            case "n":
                return self._styles.number(text.strip(), self._about.get("s"))
            case "b":
                return "true" if text.strip() in ("1", "true") else "false"
            case _:
                return unescaped(text)


@lru_cache(maxsize=MAX_COLUMNS)
def _number_of(letters: str) -> int:
    """The number of a column, 1 for A; 0 for what is none."""
    number = 0
    for letter in letters[:4].upper():
        number = number * 26 + ord(letter) - 64
    return number if letters.isascii() and letters.isalpha() else 0


def _is_number(text: str) -> bool:
    """Whether it is made of the ten digits; Unicode has others, which `int` does not take."""
    return text.isascii() and text.isdecimal()
