"""Small input files that claim much: none takes much memory, or time out of proportion to its
size."""

import gzip
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import xlsxwriter

from tests.support.reading import cost
from tests.support.workbooks import REL, crafted

MEMORY = 100 << 20
"""By how much a file may make the process grow."""
RATIO = 64
"""How much more CPU a file of sixteen times the size may take: in proportion would be 16."""
PER_BYTE = 100
"""How much more CPU a byte may take than one of an ordinary file of its kind."""

Make = Callable[[Path, int], Path]
SHAPES: dict[str, tuple[Make, int, str]] = {}
"""How each file is made, at which size, and what is said of it."""
URL = "<c t='str'><v>url</v></c>"
A = "<c t='str'><v>http://a.example/</v></c>"
BIG = 1 << 20
LETTERS = bytes(ord("a") + byte % 26 for byte in range(256))
"""Makes letters of random bytes; to choose them one by one takes ten times as long."""


def shape(size: int, said: str = "") -> Callable[[Make], Make]:
    """Note a shape of file."""

    def note(make: Make) -> Make:
        SHAPES[make.__name__] = (make, size, said)
        return make

    return note


def header(*cells: str) -> str:
    return f"<row>{URL}{''.join(cells)}</row>"


def noise(size: int, seed: int = 1) -> str:
    """Letters that cannot be packed to much less."""
    return Random(seed).randbytes(size).translate(LETTERS).decode()


# Workbooks: places.


@shape(1_000, "a row may have 1,000 columns")
def last_column_of_all(path: Path, n: int) -> Path:
    return crafted(
        path, header() + "".join(f"<row>{A}<c r='XFD{i}'><v>1</v></c></row>" for i in range(2, n))
    )


@shape(500, "1000 cells, but the header has 1")
def last_column_that_is_read(path: Path, n: int) -> Path:
    return crafted(
        path, header() + "".join(f"<row>{A}<c r='ALL{i}'><v>1</v></c></row>" for i in range(2, n))
    )


@shape(100)
def header_of_all_columns_and_short_rows(path: Path, n: int) -> Path:
    columns = "".join(f"<c t='str'><v>c{i}</v></c>" for i in range(999))
    return crafted(path, header(columns) + f"<row>{A}</row>" * n)


@shape(20_000, "a row may have 1,000 columns")
def row_of_many_cells(path: Path, n: int) -> Path:
    return crafted(path, header() + f"<row>{A}{'<c><v>1</v></c>' * n}</row>")


@shape(200, "a row may have 1,000 columns")
def columns_of_long_names(path: Path, n: int) -> Path:
    places = "".join(f"<c r='{noise(60_000, i)}1'><v>1</v></c>" for i in range(8))
    return crafted(path, header() + f"<row>{places}</row>" * (n // 100) + f"<row>{A}</row>")


@shape(2_000, "of a cell is none")
def places_that_are_none(path: Path, n: int) -> Path:
    return crafted(path, header() + f"<row>{A}<c r='17'><v>1</v></c></row>" * n)


@shape(10_000, "two cells")
def cells_in_one_place(path: Path, n: int) -> Path:
    return crafted(path, header() + "<row>" + "<c r='A2' t='str'><v>x</v></c>" * n + "</row>")


@shape(1)
def last_row_of_all(path: Path, n: int) -> Path:
    return crafted(path, header() + f"<row r='{BIG}'>{A}</row>")


@shape(1_500)
def rows_out_of_order(path: Path, n: int) -> Path:
    return crafted(path, header() + "".join(f"<row r='{i}'>{A}</row>" for i in range(n, 0, -1)))


@shape(1_500)
def rows_of_one_number(path: Path, n: int) -> Path:
    return crafted(path, header() + f"<row r='2'>{A}</row>" * n)


@shape(60_000, "rows")
def empty_rows(path: Path, n: int) -> Path:
    return crafted(path, header() + f"<row>{A}</row>" + "<row/>" * (n + BIG * (n > 100_000)))


@shape(1_500)
def claims_of_size(path: Path, n: int) -> Path:
    rows = header() + f"<row spans='1:16384'>{A}</row>" * n
    about = "<dimension ref='A1:XFD1048576'/><cols><col min='1' max='16384' width='9'/></cols>"
    text = f"<worksheet>{about}<sheetData>{rows}</sheetData></worksheet>"
    return crafted(path, "", **{"worksheets/s": text})


@shape(20_000)
def merged_cells(path: Path, n: int) -> Path:
    rows = header() + f"<row>{A}</row>"
    merged = "<mergeCell ref='A1:XFD1048576'/>" * n
    text = f"<worksheet><sheetData>{rows}</sheetData><mergeCells>{merged}</mergeCells></worksheet>"
    return crafted(path, "", **{"worksheets/s": text})


# Workbooks: texts.


@shape(20_000, "the URL has")
def runs_of_rich_text(path: Path, n: int) -> Path:
    return crafted(
        path, header() + f"<row><c t='inlineStr'><is>{'<r><t>x</t></r>' * n}</is></c></row>" * 2
    )


@shape(20_000, "the URL has")
def runs_of_shared_rich_text(path: Path, n: int) -> Path:
    rows = header() + "<row><c t='s'><v>0</v></c></row>" * 2
    return crafted(path, rows, strings=f"<sst><si>{'<r><t>x</t></r>' * n}</si></sst>")


@shape(50_000, "the URL has")
def single_characters(path: Path, n: int) -> Path:
    return crafted(path, header() + f"<row><c t='str'><v>{'中<x/>' * n}</v></c></row>")


@shape(50_000)
def text_between_elements(path: Path, n: int) -> Path:
    return crafted(path, header() + f"<row>{A}{'中<x/>' * n}</row>")


@shape(50_000, "the URL has")
def characters_by_number(path: Path, n: int) -> Path:
    return crafted(path, header() + f"<row><c t='str'><v>{'&#x4e2d;' * n}</v></c></row>")


@shape(50_000)
def phonetic_runs(path: Path, n: int) -> Path:
    runs = "<rPh><t>中</t></rPh>" * n
    return crafted(path, header() + f"<row>{A}<c t='inlineStr'><is>{runs}</is></c></row>")


@shape(300_000, "the row has")
def long_string(path: Path, n: int) -> Path:
    return crafted(path, header() + f"<row><c t='str'><v>{'x' * n}</v></c></row><row>{A}</row>")


@shape(150_000)
def empty_shared_strings(path: Path, n: int) -> Path:
    return crafted(path, header() + f"<row>{A}</row>", strings=f"<sst>{'<si/>' * n}</sst>")


@shape(250, "the URL has")
def long_string_in_every_row(path: Path, n: int) -> Path:
    rows = "<row><c t='s'><v>0</v></c></row>" * n
    return crafted(path, header() + rows, strings=f"<sst><si><t>{'x' * 30_000}</t></si></sst>")


@shape(250, "its cells have more than")
def longest_string_in_every_row(path: Path, n: int) -> Path:
    rows = "<row><c t='s'><v>0</v></c></row>" * n
    return crafted(path, header() + rows, strings=f"<sst><si><t>{'x' * (1 << 20)}</t></si></sst>")


@shape(5_000, "the row has")
def longest_string_in_every_cell(path: Path, n: int) -> Path:
    row = "<row>" + "<c t='s'><v>0</v></c>" * 900 + "</row>"
    rows = row * (n // 900) + f"<row>{A}</row>"
    return crafted(path, header() + rows, strings=f"<sst><si><t>{'x' * (1 << 20)}</t></si></sst>")


@shape(1_500, "no shared string")
def shared_strings_that_are_missing(path: Path, n: int) -> Path:
    return crafted(path, header() + f"<row>{A}<c t='s'><v>7</v></c></row>" * n + f"<row>{A}</row>")


@shape(60_000)
def numbers_of_many_digits(path: Path, n: int) -> Path:
    styles = "<s><cellXfs><xf numFmtId='14'/><xf numFmtId='0'/></cellXfs></s>"
    values = ("9" * n, f"{'9' * n}.5", f"0.{'1' * n}e5", f"1e{'9' * n}", f"-{'7' * n}")
    rows = "".join(f"<row>{A}<c s='{k}'><v>{v}</v></c></row>" for v in values for k in (0, 1))
    return crafted(path, header("<c t='str'><v>n</v></c>") + rows, styles=styles)


# Workbooks: what stands around the cells.


@shape(20_000)
def formats_of_many_zeros(path: Path, n: int) -> Path:
    codes = f"<numFmts><numFmt numFmtId='200' formatCode='{'0' * 500_000}'/></numFmts>"
    styles = f"<s>{codes}<cellXfs><xf numFmtId='200'/></cellXfs></s>"
    rows = f"<row>{A}<c s='0'><v>1</v></c></row>" * (n // 10)
    return crafted(path, header("<c t='str'><v>n</v></c>") + rows, styles=styles)


@shape(500)
def formats_of_many_brackets(path: Path, n: int) -> Path:
    codes = f"<numFmts><numFmt numFmtId='200' formatCode='{'[' * 100 * n}'/></numFmts>"
    styles = f"<s>{codes}<cellXfs>" + "<xf numFmtId='200'/>" * 50 + "</cellXfs></s>"
    return crafted(path, header() + f"<row>{A}</row>", styles=styles)


@shape(10_000, "styles")
def very_many_styles(path: Path, n: int) -> Path:
    styles = "<s><cellXfs>" + "<xf numFmtId='14'/>" * n + "</cellXfs></s>"
    return crafted(path, header() + f"<row>{A}</row>", styles=styles)


@shape(4)
def long_formats(path: Path, n: int) -> Path:
    codes = "".join(f"<numFmt numFmtId='{i}' formatCode='{noise(500_000, i)}'/>" for i in range(n))
    return crafted(path, header() + f"<row>{A}</row>", styles=f"<s><numFmts>{codes}</numFmts></s>")


@shape(1_000)
def style_numbers_of_many_digits(path: Path, n: int) -> Path:
    styles = f"<s><cellXfs><xf numFmtId='{'9' * 6 * n}'/></cellXfs></s>"
    rows = f"<row>{A}<c s='{'9' * 6 * n}'><v>5</v></c></row>"
    return crafted(path, header("<c t='str'><v>n</v></c>") + rows, styles=styles)


@shape(10_000, "damaged")
def very_many_relationships(path: Path, n: int) -> Path:
    found = "".join(f"<Relationship Id='{i}' Target='t'/>" for i in range(n))
    sheet = f"<Relationship Id='a' Type='{REL}/worksheet' Target='worksheets/s.xml'/>"
    return crafted(
        path, header() + f"<row>{A}</row>", **{"_rels/workbook.xml.rels": f"<R>{sheet}{found}</R>"}
    )


@shape(20_000)
def very_many_sheets(path: Path, n: int) -> Path:
    sheets = "<sheet r:id='a'/>" + "".join(f"<sheet r:id='b{i}'/>" for i in range(n))
    text = f"<workbook xmlns:r='{REL}'><sheets>{sheets}</sheets></workbook>"
    return crafted(path, header() + f"<row>{A}</row>", workbook=text)


@shape(20_000)
def very_many_defined_names(path: Path, n: int) -> Path:
    names = "<definedName name='x'>Sheet1!$A$1</definedName>" * n
    text = f"<workbook xmlns:r='{REL}'><sheets><sheet r:id='a'/></sheets>{names}</workbook>"
    return crafted(path, header() + f"<row>{A}</row>", workbook=text)


# Workbooks: XML.


@shape(200_000, "not the XML of a workbook")
def nested_elements(path: Path, n: int) -> Path:
    return crafted(path, header() + "<row>" + "<a>" * n)


@shape(200_000, "not the XML of a workbook")
def nested_cells_of_strings(path: Path, n: int) -> Path:
    return crafted(path, header() + f"<row>{A}</row>", strings=f"<sst>{'<si>' * n}")


@shape(200_000, "not the XML of a workbook")
def nested_styles(path: Path, n: int) -> Path:
    return crafted(path, header() + f"<row>{A}</row>", styles="<s>" * n)


@shape(5_000, "not the XML of a workbook")
def attributes(path: Path, n: int) -> Path:
    found = " ".join(f"a{i}=''" for i in range(n * 4))
    return crafted(path, header() + f"<row {found}>{A}</row>")


@shape(3)
def attributes_of_cells(path: Path, n: int) -> Path:
    cells = "".join(
        f"<c r='B2' t='{noise(300_000, i)}' s='{noise(300_000, i)}'><v>1</v></c>" for i in range(n)
    )
    return crafted(path, header("<c t='str'><v>n</v></c>") + f"<row>{A}</row><row>{cells}</row>")


@shape(500_000)
def comment(path: Path, n: int) -> Path:
    return crafted(
        path, header() + f"<row>{A}</row>" + f"<!-- {'x' * 500_000} -->" * (n // 500_000)
    )


@shape(500_000)
def blanks(path: Path, n: int) -> Path:
    return crafted(path, header() + f"<row>{A}</row>" + " \n" * n)


@shape(1, "DOCTYPE")
def billion_laughs(path: Path, n: int) -> Path:
    entities = "".join(f"<!ENTITY e{i} '" + f"&e{i - 1};" * 10 + "'>" for i in range(1, 12))
    text = f'<!DOCTYPE s [<!ENTITY e0 "ha">{entities}]><sst><si><t>&e11;</t></si></sst>'
    return crafted(path, header() + "<row><c t='s'><v>0</v></c></row>", strings=text)


@shape(1, "DOCTYPE")
def outside_entity(path: Path, n: int) -> Path:
    text = '<!DOCTYPE s [<!ENTITY e SYSTEM "file:///etc/passwd">]><sst><si><t>&e;</t></si></sst>'
    return crafted(path, header() + "<row><c t='s'><v>0</v></c></row>", strings=text)


ENCODINGS = (
    "zlib_codec",
    "hex",
    "rot13",
    "undefined",
    "idna",
    "punycode",
    "utf-7",
    "cp932",
    "no such",
    "x" * 5000,
)


# Workbooks: zip.


@shape(2_000, "more parts than any real one")
def very_many_parts(path: Path, n: int) -> Path:
    crafted(path, header() + f"<row>{A}</row>")
    with zipfile.ZipFile(path, "a") as archive:
        for i in range(n):
            archive.writestr(f"xl/media/image{i}.png", b"")
    return path


@shape(10, "as only bombs do")
def bomb(path: Path, n: int) -> Path:
    return crafted(path, " " * ((n << 20) // 2))


@shape(10, "bomb")
def bomb_with_a_false_size(path: Path, n: int) -> Path:
    crafted(path, " " * ((n << 20) // 2))
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02")
    while data[at : at + 4] == b"PK\x01\x02":
        name, extra, remark = struct.unpack_from("<HHH", data, at + 28)
        struct.pack_into("<I", data, at + 20, 0xFFFFFFF0)
        at += 46 + name + extra + remark
    path.write_bytes(data)
    return path


@shape(10, "damaged")
def bomb_that_says_it_is_small(path: Path, n: int) -> Path:
    crafted(path, header() + f"<row>{A}</row>" + " " * ((n << 20) // 2))
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02")
    while data[at : at + 4] == b"PK\x01\x02":
        name, extra, remark = struct.unpack_from("<HHH", data, at + 28)
        if data[at + 46 : at + 46 + name].endswith(b"s.xml"):
            struct.pack_into("<I", data, at + 24, 300)
        at += 46 + name + extra + remark
    path.write_bytes(data)
    return path


@shape(2, "is packed as no workbook is")
def packed_by_bzip2(path: Path, n: int) -> Path:
    return crafted(path, header() + f"<row>{A}</row>" + " " * (n << 20), zipfile.ZIP_BZIP2)


@shape(2, "is packed as no workbook is")
def packed_by_lzma(path: Path, n: int) -> Path:
    return crafted(path, header() + f"<row>{A}</row>" + " " * (n << 20), zipfile.ZIP_LZMA)


@shape(1, "not an Excel workbook")
def workbook_in_a_workbook(path: Path, n: int) -> Path:
    inner = crafted(path.with_name("inner.xlsx"), header() + f"<row>{A}</row>")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(inner, "xl/workbook.xlsx")
    return path


# Texts.


def text(
    ending: str, size: int, said: str = ""
) -> Callable[[Callable[[int], str]], Callable[[int], str]]:
    """Note a shape of text file."""

    def note(content: Callable[[int], str]) -> Callable[[int], str]:
        def make(path: Path, n: int) -> Path:
            path = path.with_suffix(ending)
            data = content(n).encode()
            path.write_bytes(gzip.compress(data) if ending.endswith(".gz") else data)
            return path

        SHAPES[content.__name__] = (make, size, said)
        return content

    return note


@text(".csv", 8_000)
def columns(n: int) -> str:
    return "url," + ",".join(f"c{i}" for i in range(n)) + "\nhttp://a.example/\n"


@text(".csv", 8_000, "no column 'url'")
def columns_without_url(n: int) -> str:
    return ",".join(f"u{i}" for i in range(n)) + "\nhttp://a.example/\n"


@text(".csv", 8_000, "2 columns")
def twin_columns(n: int) -> str:
    return "url,url," + ",".join(f"c{i}" for i in range(n)) + "\nhttp://a.example/\n"


@text(".csv", 60_000, "cells, but the header has 2")
def empty_cells(n: int) -> str:
    return "url,a\nhttp://a.example/,1\n" + "," * n + "\n"


@text(".csv", 500, "a name of 800,000 characters")
def long_name_of_a_column(n: int) -> str:
    return f"url,{'x' * 100 * n}\n" + "http://a.example/,1\n" * n


@text(".csv", 3)
def rows_of_many_columns(n: int) -> str:
    names = ",".join(f"c{i}" for i in range(20_000))
    return f"url,{names}\n" + f"http://a.example/{',' * 20_000}\n" * n


@text(".csv", 5_000)
def quotes(n: int) -> str:
    return "url\n" + '"\n' * n + "http://a.example/\n"


@text(".csv", 5_000)
def quotes_that_meet(n: int) -> str:
    return "url,b\n" + 'x,"\nhttp://a.example/,2\n' * n


@text(".csv", 5_000)
def quotes_far_apart(n: int) -> str:
    return "url,b\n" + ('http://a.example/,"\n' + "http://a.example/,2\n" * 999) * (n // 1_000)


@text(".csv", 100_000)
def line_ends(n: int) -> str:
    return "url\n" + "\r" * n + "\n" * n + "\r\n" * n + "http://a.example/\n"


@text(".txt", 60, "the URL has")
def slashes(n: int) -> str:
    return "http://a.example/\n" + "/" * 64 * n


@text(".txt", 60, "URL")
def schemes(n: int) -> str:
    return "http://a.example/\n" + "http:" * 16 * n


@text(".txt", 60, "URL")
def at_signs(n: int) -> str:
    return "http://a.example/\n" + "a://@" * 16 * n


@text(".jsonl", 10_000, "nested")
def nested_json(n: int) -> str:
    return '{"url":"http://a.example/"}\n' + '{"a":' * n + "1" + "}" * n + "\n"


@text(".json", 60_000, "nested")
def nested_array(n: int) -> str:
    return '[{"url":"http://a.example/"},' + "[" * n + "]" * n + "]"


@text(".jsonl", 50_000)
def digits(n: int) -> str:
    values = ("9" * n, "9" * n + ".5e9")
    return "".join(f'{{"url":"http://a.example/","n":{value}}}\n' for value in values)


@text(".jsonl", 1_000)
def numbers(n: int) -> str:
    values = ",".join(["9" * 3_900] * (n // 100))
    return f'{{"url":"http://a.example/","n":[{values}]}}\n'


@text(".jsonl", 5_000, "no column 'url'")
def keys(n: int) -> str:
    keys = ",".join(f'"u{i}":0' for i in range(n))
    return f'{{"url":"http://a.example/"}}\n{{{keys}}}\n'


@text(".jsonl", 2)
def other_keys_in_every_row(n: int) -> str:
    keys = (",".join(f'"{row}k{i}":0' for i in range(70_000)) for row in range(n))
    return "".join(f'{{"url":"http://a.example/",{each}}}\n' for each in keys)


@text(".json", 60_000)
def commas(n: int) -> str:
    return '[{"url":"http://a.example/"}' + "," * n + "]"


@text(".json", 1_000, "not JSON")
def mistakes(n: int) -> str:
    return '[{"url":"http://a.example/"},' + "{x]}," * n + "{}]"


@text(".json", 1_000, "not JSON")
def mistakes_in_lines(n: int) -> str:
    return '[{"url":"http://a.example/"},\n' + "{x]},\n" * n + "{}]"


@text(".json", 1_000, "not JSON")
def mistakes_with_keys(n: int) -> str:
    return '[{"url":"http://a.example/"},' + '{x],{"k":[' * n + "]"


@text(".json", 1_000, "not JSON")
def mistakes_before_a_long_one(n: int) -> str:
    return '[{"url":"http://a.example/"},' + "{x]}," * (n // 4) + ',{"k":[' + "1," * 10 * n


@text(".json", 1_000, "not JSON")
def mistakes_that_nest(n: int) -> str:
    return '[{"url":"http://a.example/"},' + '{x{},{"url":"http://a.example/"},' * n + "{}]"


@text(".json", 1_000, "not JSON")
def words(n: int) -> str:
    return '[{"url":"http://a.example/"},' + "nul," * n + "{}]"


@text(".json", 1_000, "not JSON")
def open_strings(n: int) -> str:
    return '[{"url":"http://a.example/"},' + '{"a":"b},\n' * n + "{}]"


@text(".json", 1_000, "not JSON")
def closing_brackets(n: int) -> str:
    return '[{"url":"http://a.example/"},{x' + "]" * n + "," + "}" * n


@text(".jsonl", 20_000)
def empty_lists(n: int) -> str:
    lists = ",".join(["[]"] * n)
    return f'{{"url":"http://a.example/","a":[{lists}]}}\n'


@text(".txt.gz", 2_000_000, "the row has")
def long_line_in_a_small_file(n: int) -> str:
    return "http://a.example/\n" + "x" * n


@text(".jsonl.gz", 2_000_000, "the row has")
def long_row_in_a_small_file(n: int) -> str:
    return '{"url":"http://a.example/"}\n{"a":"' + "x" * n + '"}'


@text(".json.gz", 2_000_000, "the row has")
def long_element_in_a_small_file(n: int) -> str:
    return '[{"url":"http://a.example/"},{"a":"' + "x" * n + '"}]'


@text(".csv.gz", 2_000_000, "the row has")
def long_cells_in_a_small_file(n: int) -> str:
    return "url,b\nhttp://a.example/,1\nx" + "," * n


# What is asked of them.


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """The CPU that a byte of an ordinary file takes, by its ending."""
    folder = tmp_path_factory.mktemp("ordinary")
    book = xlsxwriter.Workbook(folder / "a.xlsx", {"strings_to_urls": False})
    page = book.add_worksheet()
    urls = [f"http://a.example/{n}" for n in range(5_000)]
    for n, url in enumerate(["url", *urls]):
        page.write_row(n, 0, [url, n, "the same"])
    book.close()
    (folder / "a.csv").write_text("url,n\n" + "".join(f"{url},{n}\n" for n, url in enumerate(urls)))
    (folder / "a.txt").write_text("\n".join(urls))
    (folder / "a.json").write_text(json.dumps([{"url": url} for url in urls]))
    (folder / "a.jsonl").write_text("".join(f'{{"url":"{url}"}}\n' for url in urls))
    files = sorted(folder.iterdir())
    costs = cost(*files, times=3)
    assert all((each.good, each.rejected) == (5_000, 0) for each in costs)
    return {
        path.suffix: each.cpu_s / unpacked(path) for path, each in zip(files, costs, strict=True)
    }


def unpacked(path: Path) -> int:
    """How much a file says."""
    if path.suffix == ".gz":
        return len(gzip.decompress(path.read_bytes()))
    if path.suffix == ".xlsx":
        with zipfile.ZipFile(path) as archive:
            return sum(info.file_size for info in archive.infolist())
    return path.stat().st_size


@pytest.mark.parametrize("name", SHAPES)
def test_a_small_file_takes_little(tmp_path: Path, ordinary: dict[str, float], name: str) -> None:
    """Whatever a file claims: at most 100 MB of memory, CPU in proportion to its size, and its good
    rows."""
    make, n, said = SHAPES[name]
    small, large = make(tmp_path / "small.xlsx", n), make(tmp_path / "large.xlsx", 16 * n)
    few, many = cost(small, large)

    assert many.grown < MEMORY, many
    assert many.cpu_s < RATIO * max(few.cpu_s, 0.01), (few, many)
    usual_s = ordinary[large.suffixes[0]] * max(unpacked(large), 1 << 18)
    assert many.cpu_s < PER_BYTE * usual_s, (many, usual_s)
    assert said in many.reason + many.error, many
    assert said or (many.good and not many.error), many
    assert "\n" not in many.error


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_encodings_that_nobody_uses(tmp_path: Path, encoding: str) -> None:
    """A workbook whose XML claims one of them is read or refused in one line, never a traceback."""
    text = f"<?xml version='1.0' encoding='{encoding}'?><sst><si><t>x</t></si></sst>"
    [found] = cost(crafted(tmp_path / "a.xlsx", header() + f"<row>{A}</row>", strings=text))

    assert found.good == 1 or "damaged" in found.error, found


def test_wide_rows_are_committed_in_smaller_groups(tmp_path: Path) -> None:
    """Rows wait for their commit in little memory, however large they are."""
    rows = (f'{{"url":"http://a.example/{n}","a":[{"[],[]," * 30_000}1]}}\n' for n in range(100))
    path = tmp_path / "a.jsonl"
    path.write_text("".join(rows))

    [found] = cost(path, into=tmp_path / "data")

    assert (found.good, found.rejected) == (100, 0), found
    assert found.grown < 250 << 20, found
