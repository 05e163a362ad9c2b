"""Excel workbooks: the first sheet gives the rows that a CSV of it would, and a hostile file one
clear line."""

import tracemalloc
import zipfile
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
import xlsxwriter

from crawler.bulk import sheet
from crawler.bulk.rows import Reject, Row, checksum, other_sheets, read
from crawler.errors import InputError
from tests.support.workbooks import MAIN, crafted

A = "http://a.example/"
at = datetime.fromisoformat  # Excel knows no time zones


def workbook(path: Path, *rows: list[Any], **options: Any) -> Path:
    """A workbook as xlsxwriter makes it, with shared strings."""
    book = xlsxwriter.Workbook(path, {"strings_to_urls": False} | options)
    page = book.add_worksheet()
    for number, row in enumerate(rows):
        page.write_row(number, 0, row)
    book.add_worksheet().write_row(0, 0, ["another sheet"])
    book.close()
    return path


def cells(path: Path) -> list[tuple[int, list[str]]]:
    found = [(record.number, record.cells) for record in sheet.records(path)]
    return [
        (number, [row.get(column, "") for column in range(1, max(row) + 1)])
        for number, row in found
    ]


def inputs(path: Path) -> list[dict[str, Any]]:
    return [row.task.input for row in read(path) if isinstance(row, Row)]


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        list(read(path))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_workbook_is_read_like_a_csv(tmp_path: Path) -> None:
    """Columns by name whatever their case, extra ones kept, bad rows rejected by their number,
    empty ones left out."""
    path = workbook(
        tmp_path / "p.xlsx",
        [" URL", "Priority ", "parcel_id", "Owner"],
        [A + "1", 3, "007", "Ada"],
        [],
        ["nonsense", 1, "8"],
        [A + "2", None, 123, None],
        [A + "3", 99],
    )
    rows = list(read(path))

    good = [row.task for row in rows if isinstance(row, Row)]
    bad = [row for row in rows if isinstance(row, Reject)]
    assert [(task.address.url, task.priority, task.parcel_id, task.line) for task in good] == [
        (A + "1", 3, "007", 2),
        (A + "2", 5, "123", 5),
    ]
    assert good[0].input == {" URL": A + "1", "Priority ": "3", "parcel_id": "007", "Owner": "Ada"}
    assert [(row.line, row.text) for row in bad] == [(4, "nonsense\t1\t8"), (6, A + "3\t99")]
    assert len(checksum(path)) == 64


@pytest.mark.parametrize("memory", [False, True])
def test_cells_are_what_they_show(tmp_path: Path, memory: bool) -> None:
    """Numbers have no .0, dates are ISO, booleans true or false, formulas their stored value, links
    their text."""
    path = tmp_path / "p.xlsx"
    book = xlsxwriter.Workbook(path, {"constant_memory": memory})
    page = book.add_worksheet()
    formats = {
        code: book.add_format({"num_format": code})
        for code in (
            "yyyy-mm-dd",
            "dd.mm.yyyy hh:mm",
            "hh:mm",
            "00000",
            "0.00",
            "#,##0 [$days]",
            '[Red]0 "days"',
        )
    }
    values: list[tuple[str, str]] = []

    def put(value: Any, shown: str, code: str | None = None) -> None:
        row = len(values) + 1
        page.write_string(row, 0, A)
        if isinstance(value, date):
            page.write_datetime(row, 1, value, formats[code or ""])
        else:
            page.write(row, 1, value, formats[code] if code else None)
        values.append((value, shown))

    page.write_row(0, 0, ["url", "cell"])
    put(123.0, "123")
    put(0.1, "0.1")
    put(-5, "-5")
    put(1e15, "1000000000000000")
    put(2.5e-7, "2.5e-07")
    put(True, "true")
    put("007", "007")
    put(at("2026-11-15"), "2026-11-15", "yyyy-mm-dd")
    put(at("2026-11-15T14:30"), "2026-11-15T14:30:00", "dd.mm.yyyy hh:mm")
    put(at("1900-02-01"), "1900-02-01", "yyyy-mm-dd")
    put(0.5, "12:00:00", "hh:mm")
    put(123, "00123", "00000")
    put(7, "7", "0.00")
    put(7, "7", "#,##0 [$days]")
    put(7, "7", '[Red]0 "days"')
    put("a _x000D_ b", "a _x000D_ b")
    put("Ä ß 中 🙂 <&>", "Ä ß 中 🙂 <&>")
    put("http://b.example/", "http://b.example/")
    page.write_string(len(values) + 1, 0, A)
    page.write_formula(len(values) + 1, 1, "=1+1", None, 2)
    page.write_string(len(values) + 2, 0, A)
    page.write_rich_string(len(values) + 2, 1, "rich ", book.add_format({"bold": True}), "text")
    book.close()

    assert [record[1][1] for record in cells(path)[1:]] == [shown for _, shown in values] + [
        "2",
        "rich text",
    ]


def test_dates_since_1904(tmp_path: Path) -> None:
    """A workbook of an old Mac counts its days from another one."""
    book = xlsxwriter.Workbook(tmp_path / "p.xlsx", {"date_1904": True})
    page = book.add_worksheet()
    page.write_datetime(0, 0, at("2026-11-15"), book.add_format({"num_format": "d.m.yy"}))
    book.close()

    assert cells(tmp_path / "p.xlsx") == [(1, ["2026-11-15"])]


def test_what_other_programs_write(tmp_path: Path) -> None:
    """Prefixes, cells and rows without places, phonetic hints, spaces between elements: all of it
    is the same sheet."""
    hint = "<x:is><x:t>東</x:t><x:rPh><x:t>ひがし</x:t></x:rPh></x:is>"
    text = f"""<x:worksheet xmlns:x="{MAIN}"><x:sheetData>
      <x:row><x:c t="inlineStr"><x:is><x:t>url</x:t></x:is></x:c>
        <x:c t="inlineStr">{hint}</x:c></x:row>
      <x:row r="7"> <x:c r="B7" t="b"><x:v>1</x:v></x:c> <x:c r="D7" t="e"><x:v>#N/A</x:v></x:c>
        <x:c r="E7" s="3"/></x:row>
      <x:row><x:c t="str"><x:f>A1</x:f><x:v>http://a.example/?a=1&amp;b=2</x:v></x:c></x:row>
      </x:sheetData></x:worksheet>"""
    path = crafted(tmp_path / "p.xlsx", "", **{"worksheets/s": text})

    assert cells(path) == [
        (1, ["url", "東"]),
        (7, ["", "true", "", "#N/A"]),
        (8, ["http://a.example/?a=1&b=2"]),
    ]


@pytest.mark.parametrize(
    "formula", ["<f>B1</f>", "<f>B1</f><v/>", "<f>B1</f><v></v>", '<f t="shared" si="0"/>']
)
@pytest.mark.parametrize("beside", ["", '<c r="B3" t="inlineStr"><is><t>x</t></is></c>'])
def test_a_formula_that_nobody_has_computed_rejects_its_row(
    tmp_path: Path, formula: str, beside: str
) -> None:
    """Its row is counted, also where it has no other cell; one that gives an empty text is an empty
    cell."""
    text = '<c t="inlineStr"><is><t>{}</t></is></c>'.format
    lines = [
        f'<row r="1">{text("url")}{text("more")}</row>',
        f'<row r="2">{text("http://a.example/1")}<c r="B2" t="str"><f>B1</f><v></v></c></row>',
        f'<row r="3"><c r="A3">{formula}</c>{beside}</row>',
    ]
    path = crafted(tmp_path / "p.xlsx", "".join(lines))

    good, bad = read(path)

    assert isinstance(good, Row)
    assert good.task.input == {"url": "http://a.example/1", "more": ""}
    assert isinstance(bad, Reject)
    assert (bad.line, bad.reason[:37]) == (3, "the formula of cell 'A3' has no value")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"url\nhttp://a.example/\n", "not an Excel workbook, though its name ends in .xlsx"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "has a password"),
        (b"PK\x03\x04" + bytes(600), "damaged"),
    ],
)
def test_files_that_are_no_workbooks(tmp_path: Path, content: bytes, reason: str) -> None:
    """Each is one line with the reason."""
    path = tmp_path / "p.xlsx"
    path.write_bytes(content)
    assert reason in refusal(path)


def test_workbooks_without_what_is_needed(tmp_path: Path) -> None:
    """No header, no rows, no url (with the nearest name), twins, no sheet: each is one line with
    the reason."""
    empty = workbook(tmp_path / "empty.xlsx")
    header = workbook(tmp_path / "header.xlsx", ["url", "priority"])
    other = workbook(tmp_path / "other.xlsx", ["urls", "priority"], [A, 1])
    twins = workbook(tmp_path / "twins.xlsx", ["url", "URL "], [A, A])
    wide = workbook(tmp_path / "wide.xlsx", ["url"], [A, "more"])
    archive = tmp_path / "archive.xlsx"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("readme.txt", "hello")

    assert "neither a header nor a row" in refusal(empty)
    assert "only a header" in refusal(header)
    assert "the nearest is 'urls'" in refusal(other)
    assert "there are 2 columns 'url'" in refusal(twins)
    assert [row.reason for row in read(wide) if isinstance(row, Reject)] == [
        "2 cells, but the header has 1"
    ]
    assert "not an Excel workbook" in refusal(archive)
    assert ".xlsx" in refusal(workbook(tmp_path / "old.xls", ["url"], [A]))


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ('<row><c r="AAAAAA1"><v>1</v></c></row>', "columns"),
        ('<row r="99999999"><c><v>1</v></c></row>', "rows"),
        ('<row><c t="s"><v>-1</v></c></row>', "no shared string '-1'"),
        ('<row><c t="s"><v>5</v></c></row>', "no shared string '5'"),
        ("<row><c><v>1</v></c>", "not well-formed"),
        ("".join(f"<e{n}/>" for n in range(20_000)), "not the XML of a workbook"),
        (f"<row><c s='{'x' * (9 << 20)}'", "not the XML of a workbook"),
        (" " * (65 << 20), "as only bombs do"),
    ],
    ids=["column", "row", "negative", "string", "torn", "names", "tag", "bomb"],
)
def test_hostile_sheets(tmp_path: Path, rows: str, reason: str) -> None:
    """What no program writes is refused in one line, in little memory."""
    path = crafted(tmp_path / "p.xlsx", rows)
    tracemalloc.start()
    try:
        assert reason in refusal(path)
        assert tracemalloc.get_traced_memory()[1] < 30 << 20
    finally:
        tracemalloc.stop()


def test_entities_are_refused(tmp_path: Path) -> None:
    """A document type, and with it every entity, ends the reading before any of it is expanded."""
    text = '<!DOCTYPE sst [<!ENTITY a "aaaaaaaaaa">]><sst><si><t>&a;</t></si></sst>'
    path = crafted(tmp_path / "p.xlsx", "<row><c t='s'><v>0</v></c></row>", strings=text)
    assert "DOCTYPE" in refusal(path)


def test_a_row_that_is_too_long_costs_itself(tmp_path: Path) -> None:
    """A cell of two megabytes, shared or not, is a rejected row, and its neighbours are good
    ones."""
    long = "x" * (2 << 20)
    text = "<row><c t='inlineStr'><is><t>{}</t></is></c></row>"
    rows = (
        text.format("url")
        + text.format(A + "1")
        + text.format(long)
        + "<row><c t='s'><v>0</v></c></row>"
    )
    path = crafted(
        tmp_path / "p.xlsx",
        rows + text.format(A + "2"),
        strings=f"<sst><si><t>{long}</t></si></sst>",
    )

    found = list(read(path))

    assert [
        row.task.line if isinstance(row, Row) else (row.line, row.reason[:12]) for row in found
    ] == [
        2,
        (3, "the row has "),
        (4, "the row has "),
        5,
    ]


def test_rows_before_a_break_are_read(tmp_path: Path) -> None:
    """A sheet that breaks off gives the rows before, then the error."""
    good = "".join(
        f"<row><c t='str'><v>{'url' if n == 0 else A + str(n)}</v></c></row>" for n in range(5000)
    )
    path = crafted(tmp_path / "p.xlsx", good + "<row></wrong>")
    found: list[Row | Reject] = []
    with pytest.raises(
        InputError, match=r"line 5001: .*not well-formed.*; only the rows before were read"
    ):
        found.extend(read(path))
    assert len(found) == 4999


def test_sheets_that_are_not_read_are_named(tmp_path: Path) -> None:
    """Only the first sheet is read; the others that hold rows are named, empty ones are not."""
    with xlsxwriter.Workbook(tmp_path / "three.xlsx") as book:
        for name in ("Parcels", "Empty", "Late ones"):
            sheet = book.add_worksheet(name)
            if name != "Empty":
                sheet.write_column(0, 0, ["url", f"http://a.example/{name[0]}"])

    found = list(read(tmp_path / "three.xlsx"))

    assert [row.task.address.url for row in found if isinstance(row, Row)] == ["http://a.example/P"]
    assert other_sheets(tmp_path / "three.xlsx") == ("Late ones",)
    assert (
        other_sheets(crafted(tmp_path / "one.xlsx", "<row><c t='str'><v>url</v></c></row>")) == ()
    )
    assert other_sheets(tmp_path / "parcels.csv") == ()


def test_a_large_sheet_needs_little_memory(tmp_path: Path) -> None:
    """Shared strings lie on the disk: reading 10,000 rows needs a few megabytes."""
    path = tmp_path / "p.xlsx"
    book = xlsxwriter.Workbook(path, {"strings_to_urls": False})
    page = book.add_worksheet()
    page.write_row(0, 0, ["url", "note"])
    for n in range(1, 10_001):
        page.write_row(n, 0, [f"{A}{n}", f"note {n} " * 5])
    book.close()
    tracemalloc.start()
    try:
        assert sum(1 for row in read(path) if isinstance(row, Row)) == 10_000
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()
