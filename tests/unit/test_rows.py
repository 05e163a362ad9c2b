"""Input files, however awkward, give every good row, one clear reason for every bad one, and never
fill the memory."""

import gzip
import hashlib
import json
import os
import socket
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pytest

from crawler.bulk.rows import MAX_QUOTED_LINES, Reject, RejectsFile, Row, checksum, read
from crawler.errors import InputError, UsageError
from crawler.models import NewTask

A, B, C = "http://a.example/", "http://b.example/", "http://c.example/"
MEGABYTE = 1 << 20

Write = Callable[[str, str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Puts a file into an empty folder."""

    def file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return file


@contextmanager
def nobody() -> Iterator[None]:
    """Without root's right to read and write everything."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def tasks(path: Path) -> list[NewTask]:
    return [row.task for row in read(path) if isinstance(row, Row)]


def urls(path: Path) -> list[str]:
    return [task.address.url for task in tasks(path)]


def rejects(path: Path) -> list[Reject]:
    return [row for row in read(path) if isinstance(row, Reject)]


def bad_lines(path: Path) -> list[int]:
    return [reject.line for reject in rejects(path)]


def refusal(path: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        list(read(path))
    return caught.value


def up_to_the_break(path: Path) -> tuple[list[Row | Reject], InputError]:
    found: list[Row | Reject] = []
    with pytest.raises(InputError) as caught:
        found.extend(read(path))
    return found, caught.value


def as_json(*rows: object) -> str:
    return json.dumps(rows)


# Rows and what they become.


@pytest.mark.parametrize(
    ("name", "content", "lines"),
    [
        ("a.csv", f"url,priority\n{A},1\n{B},2\n", [2, 3]),
        ("a.tsv", f"url\tpriority\n{A}\t1\n{B}\t2\n", [2, 3]),
        ("a.CSV", f"url;priority\n{A};1\n{B};2", [2, 3]),
        (
            "a.json",
            f'[\n{{"url": "{A}", "priority": 1}},\n{{"url": "{B}", "priority": 2}}]',
            [2, 3],
        ),
        (
            "a.jsonl",
            f'{{"url": "{A}", "priority": 1}}\n\n{{"url": "{B}", "priority": 2}}\n',
            [1, 3],
        ),
        (
            "a.ndjson",
            f'{{"url": "{A}", "priority": "1"}}\r\n{{"url": "{B}", "priority": 2.0}}',
            [1, 2],
        ),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_every_format_gives_the_same_tasks(
    write: Write, name: str, content: str, lines: list[int], packed: bool
) -> None:
    """The ending decides how a file is read, packed or not, and each row knows the line it began
    in."""
    path = write(name + ".gz" * packed, gzip.compress(content.encode()) if packed else content)

    found = tasks(path)

    assert [(task.address.url, task.priority, task.line) for task in found] == [
        (A, 1, lines[0]),
        (B, 2, lines[1]),
    ]


def test_text_files_skip_comments_and_blank_lines(write: Write) -> None:
    """A list of URLs may have comments, blank lines and spaces around them."""
    path = write("a.txt", f"# mine\n\n  {A}  \n   # also\n{B}")

    found = tasks(path)

    assert [(task.address.url, task.line, task.input) for task in found] == [
        (A, 3, {"url": A}),
        (B, 5, {"url": B}),
    ]


def test_all_columns_are_kept_as_given(write: Write) -> None:
    """What came with a URL stays with it, under its own name and untouched."""
    path = write("a.csv", f"Parcel_ID, URL ,Owner Name\n 007 ,{A}, Jane \n")

    (task,) = tasks(path)

    assert task.input == {"Parcel_ID": " 007 ", " URL ": A, "Owner Name": " Jane "}
    assert (task.address.url, task.parcel_id, task.priority) == (A, "007", 5)


def test_json_values_are_kept_as_given(write: Write) -> None:
    """JSON values of every type stay what they are."""
    given = {"URL": A, "n": 1, "f": 1.5, "l": [1, {"x": None}], "t": True, "big": 10**30}
    path = write("a.jsonl", json.dumps(given))

    (task,) = tasks(path)

    assert task.input == given


@pytest.mark.parametrize(
    "header", ["url", "URL", " Url ", '"url"', "\ufeffurl", "\ufeff\ufeff url\xa0"]
)
def test_the_url_column_is_found_whatever_its_case(write: Write, header: str) -> None:
    """Case, spaces, quotes and BOMs around a column's name do not matter."""
    path = write("a.csv", f"{header},x\n{A},1\n")

    found = urls(path)

    assert found == [A]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", f"Link,URL ,Url\n{A},x,y\n"),
        ("a.jsonl", json.dumps({"Link": A, "URL ": "x", "Url": "y"})),
    ],
)
def test_with_another_column_of_urls_those_named_url_are_like_any_other(
    write: Write, name: str, text: str
) -> None:
    """Two of them make nothing ambiguous, and both are carried through."""
    [row] = read(write(name, text), url_column="link")

    assert isinstance(row, Row)
    assert row.task.address.url == A
    assert sorted(map(str, (row.task.input or {}).values())) == [A, "x", "y"]


@pytest.mark.parametrize(
    ("value", "priority"),
    [
        ("1", 1),
        ("9", 9),
        ("", 5),
        ("  ", 5),
        ("3.0", 3),
        ("+4", 4),
        ("05", 5),
        (7, 7),
        (7.0, 7),
        (None, 5),
    ],
)
def test_priorities_are_whole_numbers(write: Write, value: object, priority: int) -> None:
    """A priority may be written in every way that means a whole number; without one it is 5."""
    path = write("a.jsonl", json.dumps({"url": A, "priority": value}))

    (task,) = tasks(path)

    assert task.priority == priority


@pytest.mark.parametrize(
    "value", [0, 10, -1, "1.5", 1.5, "high", True, [1], {"a": 1}, "9" * 5000, "٣", "1e0"]
)
def test_absurd_priorities_reject_their_row(write: Write, value: object) -> None:
    """A priority that is not one of 1 to 9 costs its row, with one short line that names the
    value."""
    path = write("a.json", as_json({"url": A, "priority": value}, {"url": B}))

    found = list(read(path))

    assert isinstance(found[0], Reject)
    assert found[0].reason.endswith("is not a whole number from 1 to 9")
    assert str(value)[:40] in found[0].reason
    assert len(found[0].reason) < 120
    assert isinstance(found[1], Row)


@pytest.mark.parametrize(
    ("written", "parcel_id"),
    [
        ('"007"', "007"),
        ("12", "12"),
        ("1.50", "1.50"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("9" * 5000, "9" * 5000),
        ("null", ""),
        ('""', ""),
    ],
)
def test_parcel_ids_are_text(write: Write, written: str, parcel_id: str) -> None:
    """A parcel's number is a name: neither zeros nor digits get lost."""
    path = write("a.jsonl", f'{{"url": "{A}", "parcel_id": {written}}}')

    (task,) = tasks(path)

    assert task.parcel_id == parcel_id


@pytest.mark.parametrize("value", [True, [1], {"a": 1}])
def test_parcel_ids_that_are_no_text_reject_their_row(write: Write, value: object) -> None:
    """A list or an object cannot name a parcel."""
    path = write("a.jsonl", json.dumps({"url": A, "parcel_id": value}))

    (reject,) = rejects(path)

    assert reject.reason.startswith("the parcel_id is not text but")


def test_bad_urls_reject_their_row_only(write: Write) -> None:
    """Rows are good or bad each for itself, and all of them are counted."""
    path = write("a.csv", f"url\n{A}\nnonsense\nftp://a.example/\n{B}\n")

    found = list(read(path))

    assert [type(row) for row in found] == [Row, Reject, Reject, Row]
    assert bad_lines(path) == [3, 4]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", f"{A} {B}\n"),
        ("a.csv", f'url,name\n"{A}\n{B}",x\n'),
        ("a.csv", f'url,name\n"{A}\t{B.upper()}",x\n'),
        ("a.json", json.dumps([{"url": f"{A}\r\n\r\n{B}"}])),
    ],
)
def test_two_urls_are_not_one(write: Write, name: str, content: str) -> None:
    """A cell with two lines, or a line with two URLs: neither is fetched as the one that browsers
    would make of it."""
    (reject,) = rejects(write(name, content))

    assert reject.reason == "there are two URLs, and a row has one"


def test_spaces_and_urls_within_a_url_are_its_own(write: Write) -> None:
    """An archive's page names another one, and a file's name may have a space."""
    path = write(
        "a.txt",
        "http://a.example/web/http://b.example/\nhttp://a.example/my file?u=https://b.example/ x\n",
    )

    assert rejects(path) == []
    assert [row.task.address.url for row in read(path) if isinstance(row, Row)] == [
        "http://a.example/web/http://b.example/",
        "http://a.example/my%20file?u=https://b.example/%20x",
    ]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "http://ada:hunter2@a.example/1"),
        ("a.txt", "http:ada:hunter2@a.example/1"),
        ("a.csv", "note,url\nx,http://ada:hunter2@a.example/1\n"),
        ("a.jsonl", r'{"URL": "http:\/\/ada:hunter2@a.example\/1"}'),
    ],
)
def test_credentials_move_out_of_urls(write: Write, name: str, content: str) -> None:
    """A row with a user name and a password is good, and neither its URL nor its input holds them
    any more."""
    (row,) = read(write(name, content))

    assert isinstance(row, Row)
    assert row.task.address.url == "http://a.example/1"
    assert row.credentials == ("http://a.example", "ada:hunter2")
    assert "hunter2" not in f"{row} {row.task}"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "http://user:hunter2@a b.example/"),
        ("a.txt", "http:user:hunter2@a.example:0/"),
        ("a.txt", "ftp://user:hunter2@a.example/"),
        ("a.txt", "http://user:hun/hunter2@a.example/"),
        ("a.txt", "//user:hunter2@a.example/"),
        ("a.csv", "note,url\nx,//user:hun/hunter2@a.example/\n"),
        ("a.csv", "priority,url\nx,http://user:hunter2@a.example/\n"),
        ("a.jsonl", r'{"url": "http:\/\/user:hunter2@a.example\/", "priority": "x"}'),
        ("a.json", r'[{"url": "http:\/\/user:hunter2@a.example\/", }]'),
        ("a.txt", "http://user:" + "x" * 1010 + "hunter2@a.example:0/"),
    ],
)
def test_rejects_hold_no_passwords(write: Write, name: str, content: str) -> None:
    """A password in a URL shows neither in the reason nor in the text, however the URL is
    written."""
    path = write(name, content)

    (reject,) = rejects(path)

    assert "hunter2" not in reject.reason + reject.text
    assert "***@" in reject.text


def test_rejects_hold_the_first_kilobyte(write: Write) -> None:
    """Of a long bad row only its beginning is kept."""
    path = write("a.txt", "x" * 50_000)

    (reject,) = rejects(path)

    assert reject.text == "x" * 1024


# CSV.


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_delimiters_and_line_ends(write: Write, delimiter: str, end: str) -> None:
    """The delimiter is the one that gives a `url` column, and lines end as on any system."""
    rows = [["id, of; it", "url"], ["1", f"{A}?x=1,2;3"], ["2", B]]
    text = end.join(delimiter.join(f'"{cell}"' for cell in row) for row in rows) + end
    path = write("a.csv", text)

    found = tasks(path)

    assert [task.address.url for task in found] == [f"{A}?x=1,2;3", B]
    assert [task.line for task in found] == [2, 3]
    assert found[1].input == {"id, of; it": "2", "url": B}


def test_the_delimiter_is_not_guessed_by_frequency(write: Write) -> None:
    """Commas in the other columns' names do not win against the delimiter that yields a `url`."""
    path = write("a.csv", f"a,b,c,d;url\n1;{A}\n")

    found = urls(path)

    assert found == [A]


def test_one_column_has_no_delimiter(write: Write) -> None:
    """In a file of nothing but URLs their commas and semicolons belong to them."""
    path = write("a.csv", f"url\n{A}0,1518,x;y.html\n")

    found = urls(path)

    assert found == [f"{A}0,1518,x;y.html"]


def test_quoted_newlines(write: Write) -> None:
    """A quoted cell may run over lines, hold quotes and blank lines, and keeps its line ends."""
    path = write("a.csv", f'url,note\r\n{A},"one\r\n\r\n""two"", three"\r\n{B},x\r\n')

    found = tasks(path)

    assert [(task.line, task.input["note"]) for task in found] == [
        (2, 'one\r\n\r\n"two", three'),
        (5, "x"),
    ]


def test_a_header_may_run_over_lines(write: Write) -> None:
    """Spreadsheets write headers with line breaks."""
    path = write("a.csv", f'"note\nof mine";url\n1;{A}\n')

    (task,) = tasks(path)

    assert (task.address.url, task.line) == (A, 3)
    assert task.input == {"note\nof mine": "1", "url": A}


@pytest.mark.parametrize(
    "following",
    [
        "{},x\n",
        '{},"x"\n',
        '"{}","x"\n',
        '{},""\n',
        '{},"x, ""y"""\n',
        '"{}",\n',
    ],
)
@pytest.mark.parametrize("count", [0, 1, 2, 3, MAX_QUOTED_LINES - 1, MAX_QUOTED_LINES + 1])
def test_an_unclosed_quote_costs_one_row(write: Write, following: str, count: int) -> None:
    """Whatever follows a quote that is never closed, and however much of it, is read."""
    pages = [f"{B}{n}" for n in range(count)]
    path = write(
        "a.csv", f'url,note\n{A},"x\n{C},"unclosed\n{"".join(map(following.format, pages))}'
    )

    found = urls(path)

    assert found == pages
    assert bad_lines(path) == [2, 3]


def test_two_stray_quotes_do_not_swallow_the_rows_between(write: Write) -> None:
    """A quote opened in one row and a stray one at the end of a later cell are not taken for a very
    long cell."""
    between = [f"{B}{n}" for n in range(5)]
    rows = "".join(f"{url},1,x\n" for url in between)
    path = write("a.csv", f'url,priority,note\n{A},1,"unclosed\n{rows}{C},2,stray"\n{C}2,1,\n')

    found = urls(path)

    assert found == [*between, C, f"{C}2"]
    assert bad_lines(path) == [2]


def test_a_cell_before_and_one_behind_the_url_run_over_lines(write: Write) -> None:
    """The line that holds a record's own URL is not taken for another row."""
    path = write("a.csv", f'note,url,more\n"x\ny",{A},"z\nz"\n1,{B},\n')

    found = tasks(path)

    assert [task.input for task in found] == [
        {"note": "x\ny", "url": A, "more": "z\nz"},
        {"note": "1", "url": B, "more": ""},
    ]


def test_an_unclosed_quote_that_makes_too_many_cells(write: Write) -> None:
    """A quote closed by the next row's first one gives back that row."""
    path = write("a.csv", f'note,url\n"x,{A}\n",y",{B}\n')

    found = urls(path)

    assert bad_lines(path) == [2]
    assert found == [B]


def test_text_behind_a_closing_quote_rejects_the_row(write: Write) -> None:
    """A row whose quotes cannot be understood is not guessed at."""
    path = write("a.csv", f'url,note\n{A},"5" pipe"\n{B},5" pipe\n')

    found = urls(path)

    assert found == [B]
    assert bad_lines(path) == [2]


def test_too_many_and_too_few_cells(write: Write) -> None:
    """A row with more cells than columns is rejected; one with fewer is taken as long as the URL is
    there."""
    path = write("a.csv", f"id,url,note\n1,{A},x,y\n2,{B}\n3\n\n , \n")

    found = tasks(path)
    bad = rejects(path)

    assert [task.input for task in found] == [{"id": "2", "url": B}]
    assert [(reject.line, reject.reason) for reject in bad] == [
        (2, "4 cells, but the header has 3"),
        (4, "the row ends after 1 cells, before its url"),
        (6, "the URL is empty"),
    ]


def test_cells_of_nearly_a_megabyte(write: Write) -> None:
    """The csv module's limit of 128 KB is not ours."""
    path = write("a.csv", f'url,note\n{A},"{"x" * 900_000}"\n{B},{"y" * 900_000}\n')

    found = tasks(path)

    assert [len(task.input["note"]) for task in found] == [900_000, 900_000]


def test_unnamed_columns_are_numbered(write: Write) -> None:
    """The empty columns that spreadsheets leave behind do not make a file unusable."""
    path = write("a.csv", f"url,,\n{A},x,\n")

    (task,) = tasks(path)

    assert task.input == {"url": A, "column 2": "x", "column 3": ""}


@pytest.mark.parametrize("header", ["url,note,note", "url,URL,note", "url,priority, Priority"])
def test_twin_columns_are_refused(write: Write, header: str) -> None:
    """Two columns of one name would overwrite each other."""
    path = write("a.csv", f"{header}\n{A},1,2\n")

    error = refusal(path)

    assert error.reason.startswith("there are 2 columns")
    assert error.line == 1


@pytest.mark.parametrize(
    ("header", "nearest"),
    [
        ("id,urls,x", "'urls'"),
        ("id;Page_URL;x", "'Page_URL'"),
        ("id\turi", "'uri'"),
        ("id,colour", None),
    ],
)
def test_a_missing_url_column_names_what_was_found(
    write: Write, header: str, nearest: str | None
) -> None:
    """Without a `url` column the message lists the columns, the nearest name, and the option."""
    path = write("a.csv", f"{header}\n1,{A},x\n")

    error = refusal(path)

    assert "there is no column 'url'; found: 'id', " in error.reason
    assert (f"; the nearest is {nearest}; " in error.reason) is (nearest is not None)
    assert error.reason.endswith("; --url-column NAME takes another")


def test_a_header_that_is_a_row_shows_no_password(write: Write) -> None:
    """A file without a header is refused without a word of its secrets."""
    path = write("a.csv", "http://user:hunter2@a.example/,1\n")

    error = refusal(path)

    assert "hunter2" not in str(error)


def test_a_header_with_an_unclosed_quote(write: Write) -> None:
    """Without a header nothing can be read."""
    path = write("a.csv", f'"url,note\n{A},x\n')

    error = refusal(path)

    assert str(error) == f"{path}, line 1: a quote in the header is not closed"


# Encodings.


@pytest.mark.parametrize(
    ("encoding", "bom"),
    [
        ("utf-8", ""),
        ("utf-8", "\ufeff"),
        ("utf-16-le", "\ufeff"),
        ("utf-16-be", "\ufeff"),
        ("utf-16-le", ""),
        ("utf-16-be", ""),
        ("utf-32-le", "\ufeff"),
        ("utf-32-be", "\ufeff"),
    ],
)
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", f"url,city\r\n{A},Zürich 東京 😀\r\n"),
        ("a.json", f'[{{"url": "{A}", "city": "Zürich 東京 😀"}}]'),
        ("a.jsonl", f'{{"url": "{A}", "city": "Zürich 東京 😀"}}\n'),
    ],
)
def test_unicode_encodings(write: Write, name: str, content: str, encoding: str, bom: str) -> None:
    """UTF-8, UTF-16 and UTF-32 are told apart by their BOM, UTF-16 also without one."""
    path = write(name, (bom + content).encode(encoding))

    (task,) = tasks(path)

    assert (task.address.url, task.input) == (A, {"url": A, "city": "Zürich 東京 😀"})


@pytest.mark.parametrize(
    ("encoding", "city"),
    [
        ("cp1252", "Zürich"),
        ("cp1252", "señor niño – 5 €"),
        ("cp1250", "Łódź"),
        ("cp1251", "Москва"),
        ("cp1253", "Θεσσαλονίκη"),
        ("cp932", "日本語の文章です。東京都"),
        ("gb18030", "中文文章北京"),
    ],
)
def test_code_pages(write: Write, encoding: str, city: str) -> None:
    """What Windows programs save without a word about the encoding is read as it was meant."""
    rows = "".join(f"{A}{n};{city}\n" for n in range(5))
    path = write("a.csv", f"url;city\n{rows}".encode(encoding))

    found = tasks(path)

    assert {task.input["city"] for task in found} == {city}


@pytest.mark.parametrize("before", [5, 40_000])
def test_one_line_that_is_not_utf8(write: Write, before: int) -> None:
    """A line that slipped in from elsewhere is read as cp1252, at the beginning or far behind; the
    others stay."""
    good = f"{A},東京 Zürich\n".encode()
    path = write(
        "a.csv", b"url,city\n" + good * before + f"{B},café à Zürich\n".encode("cp1252") + good
    )

    found = tasks(path)

    assert [task.input["city"] for task in found] == ["東京 Zürich"] * before + [
        "café à Zürich",
        "東京 Zürich",
    ]


@pytest.mark.parametrize("count", [1, 3])
def test_nul_bytes_reject_their_row(write: Write, count: int) -> None:
    """A NUL in a row costs that row."""
    path = write("a.csv", f'url,note\n{A},x\n{B},{"y" + chr(0) * count}\n"{B}","{chr(0)}"\n{C},z\n')

    found = urls(path)

    assert found == [A, C]
    assert {reject.reason for reject in rejects(path)} == {"there is a NUL byte in this row"}


def test_only_line_ends_end_a_line(write: Write) -> None:
    """Form feeds, NEL and U+2028 are part of a cell."""
    path = write("a.csv", f"url,note\n{A},a\x0bb\x0cc\x85d\u2028e\n")

    (task,) = tasks(path)

    assert task.input["note"] == "a\x0bb\x0cc\x85d\u2028e"


# JSON.


@pytest.mark.parametrize(
    ("element", "reason"),
    [
        (f'"{A}"', "not an object but a text"),
        ("12", "not an object but a number"),
        ("null", "not an object but null"),
        ("true", "not an object but true or false"),
        (f'[{{"url": "{A}"}}]', "not an object but a list"),
        ("{}", "there is no column 'url'; found: nothing"),
        (
            '{"link": 1, "uri": 2}',
            "there is no column 'url'; found: 'link', 'uri'; the nearest is 'uri'",
        ),
        ('{"url": 5}', "the url is not text but a number"),
        (f'{{"url": "{A}", "x": NaN}}', "NaN is not a JSON value"),
        (f'{{"url": "{A}", "x": [-Infinity]}}', "-Infinity is not a JSON value"),
        (f'{{"url": "{A}", "x": "\\ud800"}}', "half of a surrogate pair cannot be stored"),
        (f'{{"url": "{A}", "x": {"[" * 100}{"]" * 100}}}', "nested more than 100 deep"),
        (f'{{"url": "{A}", "x": {"[" * 50_000}{"]" * 50_000}}}', "nested more than 100 deep"),
        (f'{{"url": "{A}", "x": {"{" + chr(34) + "x" + chr(34) + ":"}', "not JSON: "),
        (f'{{"url": "{A}", "url": "{A}1"}}', "there are two fields 'url'"),
        (f'{{"url":"{A}", "x": ", : ", "\\u0075rl" \t: "{A}1"}}', "there are two fields 'url'"),
        (f'{{"url": "{A}", "x": 1, "x": 2}}', "there are two fields 'x'"),
        (f'{{"url": "{A}", "x": 1e999, "x": 2}}', "there are two fields 'x'"),
        (f'{{"url": "{A}", "x": [1, {{"y": {{"a": 1, "a": 2}}}}]}}', "there are two fields 'a'"),
        (f'{{"url": "{A}", "x": {{"a": 1, "a": 1}}}}', "there are two fields 'a'"),
        (f'{{"url": "{A}", "URL": "{A}1"}}', "there are two fields 'url'"),
        (f'{{"url": "{A}", "parcel_id": 1, " Parcel_ID ": 2}}', "there are two fields 'parcel_id'"),
        (f'{{"url": "{A}" "x": 1}}', "not JSON: "),
        (f'{{"url": "{A}", "x": }}', "not JSON: "),
        (f"{{'url': '{A}'}}", "not JSON: "),
        (f'{{"url": "{A}", "x": "unclosed}}', "not JSON: "),
        (f'{{"url": "{A}", "x": "unclosed', "not JSON: "),
        (f'{{"url": "{A}", "x": 1', "not JSON: "),
        (f'{{"url": "{A}", "x": [1, 2}}', "not JSON: "),
        (
            f'{{"url": "{A}", "x": bad, "links": [{{"url": "{A}"}}, {{"url": "{A}"}}]}}',
            "not JSON: ",
        ),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_bad_object_costs_one_row(write: Write, name: str, element: str, reason: str) -> None:
    """Whatever is wrong with one object, those before and behind it are read."""
    rows = [f'{{"url": "{B}"}}', element, f'{{"url": "{B}2", "x": "}}"}}', f'{{"url": "{C}"}}']
    path = write(name, "\n".join(rows) if name == "a.jsonl" else "[\n" + ",\n".join(rows) + "\n]\n")

    found = urls(path)
    (reject,) = rejects(path)

    assert found == [B, f"{B}2", C]
    assert reject.line == (2 if name == "a.jsonl" else 3)
    assert reject.reason.startswith(reason)
    assert reject.text == element[:1024]


def test_texts_that_look_like_keys_are_kept(write: Write) -> None:
    """Only keys that are repeated reject their row: not those of other objects, nor what stands in
    a text."""
    fields = {
        "x": '": ", "url": ',
        "y": [{"url": 1}, {"url": 2}, ', ": '],
        "url": A,
        "z": {"url": ",,"},
        "": ":",
    }
    path = write(
        "a.jsonl", json.dumps(fields) + "\n" + json.dumps(fields, separators=(",", " : ")) + "\n"
    )

    found = [task.input for task in tasks(path)]

    assert found == [fields, fields]


def test_each_row_with_a_repeated_key_is_told_with_its_place(write: Write) -> None:
    """In an array of one line, the rows that name two URLs are told by their item, and no other is
    lost."""
    twice = f'{{"url":"{A}","url":"{B}"}}'
    path = write("a.json", f'[{{"url":"{C}"}},{twice},{{"url":"{C}2"}},{twice}]')

    found = [(reject.line, reject.item) for reject in rejects(path)]

    assert (urls(path), found) == ([C, f"{C}2"], [(1, 2), (1, 4)])


@pytest.mark.parametrize(
    "element",
    [
        f'{{"url":"{A}","x":"unclosed}}',
        f'{{"url":"{A}","x":}}',
        f'{{"url":"{A}" "x":1}}',
        f'{{"url":"{A}","x":1',
        f'{{"url":"{A}","x":bad,"links":[{{"url":"{A}"}},{{"url":"{A}"}}]}}',
        "12",
        "nonsense",
    ],
)
def test_a_bad_element_of_an_array_in_one_line(write: Write, element: str) -> None:
    """Also where no line ends help to find the next element, it is found."""
    path = write("a.json", f'[{{"url":"{B}"}},{element},{{"url":"{B}2"}},{{"url":"{C}"}}]')

    found = urls(path)
    (reject,) = rejects(path)

    assert found == [B, f"{B}2", C]
    assert reject.text == element


def test_the_first_element_is_bad(write: Write) -> None:
    """Also without a good element to compare with, the next one is found."""
    path = write("a.json", f'[{{"url":"{A}","x":}},{{"url":"{B}"}},{{"url":"{C}"}}]')

    found = urls(path)

    assert found == [B, C]


def test_braces_in_strings_do_not_mislead(write: Write) -> None:
    """Behind a mistake the next element is told by its keys, not by braces that may be in
    strings."""
    rows = [
        f'{{"url":"{A}{n}","x":"{{{{{{","y":[{{"url":"{B}"}},{{"url":"{B}"}}]}}' for n in range(5)
    ]
    path = write("a.json", f"[{','.join(rows)}]".replace(f'"{A}1"', f'"{A}1', 1))

    found = urls(path)

    assert found == [f"{A}0", f"{A}2", f"{A}3", f"{A}4"]


def test_an_array_full_of_mistakes(write: Write) -> None:
    """Where every element has the same mistake, each is told, and it does not take for ever."""
    good = f'{{"url": "{A}"}}'
    bad = good.replace('"', "'")
    path = write("a.json", f"[{good}, {f'{bad}, ' * 5000}{good}]")

    found = list(read(path))

    assert sum(isinstance(entry, Row) for entry in found) == 2
    assert sum(isinstance(entry, Reject) for entry in found) == 5000


def test_indented_arrays(write: Write) -> None:
    """In an array with one value per line a bad element ends where the next one begins."""
    rows = [{"url": f"{A}{n}", "links": [{"url": B}, {"url": C}]} for n in range(4)]
    text = json.dumps(rows, indent=2).replace(f'"{A}1"', f'"{A}1', 1)
    path = write("a.json", text)

    found = tasks(path)

    assert [(task.address.url, task.line) for task in found] == [
        (f"{A}0", 2),
        (f"{A}2", 24),
        (f"{A}3", 35),
    ]
    assert bad_lines(path) == [13]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_of_an_array(write: Write, end: str) -> None:
    """Each element knows the line it began in."""
    path = write(
        "a.json", end.join(["[", "", f'{{"url": "{A}",', '"x": 1},', f'{{"url": "{B}"}}', "]"])
    )

    found = [task.line for task in tasks(path)]

    assert found == [3, 5]


def test_sloppy_separators(write: Write) -> None:
    """Missing, doubled and trailing commas between elements do no harm."""
    path = write("a.json", f'[{{"url": "{A}"}} {{"url": "{B}"}},, {{"url": "{C}"}},]')

    found = urls(path)

    assert found == [A, B, C]


@pytest.mark.parametrize(
    ("content", "good", "reason"),
    [
        (f'[{{"url": "{A}"}}', [A], "the file ends before the array does; rows may be missing"),
        (f'[{{"url": "{A}"}},\n{{"url": "http', [A], "the file ends inside this element"),
        (f'[{{"url": "{A}"}},\n{{"url"', [A], "the file ends inside this element"),
        (f'[{{"url": "{A}"}}] {{"url": "{B}"}}]', [A, B], "something follows the end of the array"),
        (
            f'[{{"url": "{A}"}}, nonsense',
            [A],
            "not JSON: Expecting value; no element was found behind it",
        ),
    ],
)
def test_arrays_without_a_proper_end(
    write: Write, content: str, good: list[str], reason: str
) -> None:
    """What could not be read is said, so that a torn file does not look complete."""
    path = write("a.json", content)

    found = urls(path)
    (reject,) = rejects(path)

    assert found == good
    assert reject.reason.startswith(reason)


def test_numbers_of_any_length(write: Write) -> None:
    """Numbers that no computer holds are kept as their digits; nothing turns into infinity."""
    path = write("a.jsonl", f'{{"url": "{A}", "i": {"1" * 6000}, "f": 1e999, "n": -5, "x": 1.5}}')

    (task,) = tasks(path)

    assert task.input == {"url": A, "i": "1" * 6000, "f": "1e999", "n": -5, "x": 1.5}


def test_elements_across_pieces(write: Write) -> None:
    """An array much larger than the window is read without a gap, in its order, with right
    lines."""
    rows = [{"url": f"{A}{n}", "x": '\\"{}[]' * (n % 50), "n": n} for n in range(20_000)]
    path = write("a.json", "[" + ",\n".join(map(json.dumps, rows)) + "]")

    found = tasks(path)

    assert [task.input for task in found] == rows
    assert [task.line for task in found] == list(range(1, 20_001))


# Too much of everything.


def long_line(name: str, size: int) -> Iterator[bytes]:
    """A file with one row of that size between two others."""
    begin, middle, end = {
        "a.txt": (f"{A}\nhttp://", "x", f"\n{B}\n"),
        "a.csv": (f"note,url\n,{A}\n", "x", f",{C}\n,{B}\n"),
        "q.csv": (f'note,url\n,{A}\n"', "x", f'",{C}\n,{B}\n'),
        "a.jsonl": (f'{{"url": "{A}"}}\n{{"x": "', "x", f'"}}\n{{"url": "{B}"}}'),
        "a.json": (f'[{{"url": "{A}"}}, {{"x": "', "x", f'"}}, {{"url": "{B}"}}]'),
        "n.json": (f'[{{"url": "{A}"}}, ', "1", f', {{"url": "{B}"}}]'),
        "e.json": (f'[{{"url": "{A}"}}, {{"x": ["', r"\"", f'"]}}, {{"url": "{B}"}}]'),
        "o.json": (f'[{{"url": "{A}"}}, {{"x": [', '{"]": "}"},', f'1]}}, {{"url": "{B}"}}]'),
    }[name]
    yield begin.encode()
    for _ in range(size >> 16):
        yield (middle * ((1 << 16) // len(middle))).encode()
    yield end.encode()


@pytest.mark.parametrize(
    "name", ["a.txt", "a.csv", "q.csv", "a.jsonl", "a.json", "n.json", "e.json", "o.json"]
)
@pytest.mark.parametrize("size", [MEGABYTE + (1 << 16), 2 * MEGABYTE])
def test_a_row_of_many_megabytes(tmp_path: Path, name: str, size: int) -> None:
    """A huge row is rejected with its size, its neighbours are read, and it is never in memory."""
    path = tmp_path / name
    with path.open("wb") as file:
        file.writelines(long_line(name, size))
    tracemalloc.start()

    found = list(read(path))

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [row.task.address.url for row in found if isinstance(row, Row)] == [A, B]
    (reject,) = [row for row in found if isinstance(row, Reject)]
    told = int(reject.reason.split()[3].replace(",", ""))
    assert abs(told - size) < size // 100
    assert reject.reason.endswith("characters, more than 1,048,576")
    assert len(reject.text) <= 1024
    assert peak < 32 * MEGABYTE


def test_a_row_of_a_gigabyte_in_a_small_file(tmp_path: Path) -> None:
    """A packed file that unpacks to a gigabyte in one line costs no memory."""
    path = tmp_path / "a.txt.gz"
    member = gzip.compress(b"x" * (64 * MEGABYTE), 1)
    path.write_bytes(
        gzip.compress(A.encode() + b"\n") + member * 16 + gzip.compress(b"\n" + B.encode())
    )
    tracemalloc.start()

    found = list(read(path))

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [type(row) for row in found] == [Row, Reject, Row]
    assert isinstance(found[1], Reject)
    assert "the row has 1,073,741,825 characters" in found[1].reason
    assert peak < 32 * MEGABYTE


@pytest.mark.parametrize(
    ("name", "begin", "row", "end"),
    [
        ("a.csv", "note,url\n", "{note},{url}\n", ""),
        ("a.csv", "note,url\n", '"{note}","{url}"\n', ""),
        ("a.json", "[", '{{"url": "{url}", "note": "{note}"}},', "]"),
        ("a.jsonl", "", '{{"url": "{url}", "note": "{note}"}}\n', ""),
        ("a.txt", "", "{url}{note}\n", ""),
    ],
)
def test_memory_does_not_grow_with_the_file(
    write: Write, name: str, begin: str, row: str, end: str
) -> None:
    """Rows are streamed: a file of 40 MB never is in memory as a whole."""
    count = 5000
    path = write(name, begin + row.format(url=A, note="x" * 8000) * count + end)
    tracemalloc.start()

    total = sum(isinstance(entry, Row) for entry in read(path))

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total == count
    assert peak < 16 * MEGABYTE


# Files that cannot be used.


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.csv", "", "the file is empty"),
        ("a.json", "", "the file is empty"),
        ("a.txt.gz", b"", "the file is empty"),
        ("a.txt.gz", gzip.compress(b""), "the file is empty"),
        ("a.csv", " \n\n", "there is neither a header nor a row in it"),
        ("a.csv", "url,priority\n", "there are no rows in it, only a header"),
        ("a.csv", "\ufeffurl", "there are no rows in it, only a header"),
        ("a.txt", "# nothing\n\n", "there are no rows in it"),
        ("a.txt", "\ufeff", "there are no rows in it"),
        ("a.jsonl", "\n\n", "there are no rows in it"),
        ("a.json", " []\n", "there are no rows in it"),
        (
            "a.json",
            f'{{"url": "{A}"}}',
            "the top level is not an array of objects; a file with one object per line",
        ),
        ("a.json", '"x"', "the top level is not an array of objects"),
        ("a.json", f"url\n{A}\n", "the top level is not an array of objects"),
        (
            "a.xls",
            "url\n",
            "the ending '.xls' is not known; known are .csv, .tsv, .json, .jsonl, .ndjson, .txt",
        ),
        ("a", "url\n", "the ending '' is not known"),
        ("a.gz", "url\n", "the ending '' is not known"),
        ("a.csv.gz", f"url\n{A}\n", "this is not gzip data"),
        ("a.csv", b"\x89PNG\r\n\x1a\n" + bytes(100), "this is a PNG image"),
        ("a.txt", b"%PDF-1.7\nurl\n", "this is a PDF document"),
        ("a.csv", gzip.compress(b"url\n"), "this is gzip data"),
        ("a.csv.gz", gzip.compress(gzip.compress(b"url\n")), "this is gzip data"),
        ("a.csv", hashlib.sha512(b"x").digest() * 100, "this is binary data"),
        ("a.csv", bytes(5000), "this is binary data"),
        ("a.csv", "<!DOCTYPE html><html><body>url</body></html>", "this looks like HTML or XML"),
        ("a.json", "  <html></html>", "this looks like HTML or XML"),
        ("a.txt", "<?xml version='1.0'?>", "this looks like HTML or XML"),
        ("a.csv", f'[{{"url": "{A}"}}]', "this looks like JSON"),
        ("a.txt", f'{{"url": "{A}"}}\n', "this looks like JSON"),
        ("a.jsonl", f'[\n{{"url": "{A}"}}\n]', "this looks like a JSON array"),
        ("a.jsonl", f"url,x\n{A},1\n", "this looks like CSV"),
        ("a.txt", f"id;URL\n1;{A}\n", "this looks like CSV"),
    ],
)
def test_unusable_files(write: Write, name: str, content: str | bytes, reason: str) -> None:
    """A file that cannot be used is refused in one clear line that names it."""
    path = write(name, content)

    error = refusal(path)

    assert error.reason.startswith(reason)
    assert str(error).startswith(str(path))
    assert "\n" not in str(error)


def test_a_workbook_with_a_wrong_name(write: Write) -> None:
    """An Excel workbook is told from a CSV, with a hint what to do."""
    workbook = BytesIO()
    with zipfile.ZipFile(workbook, "w") as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
    path = write("a.csv", workbook.getvalue())

    error = refusal(path)

    assert "an Excel workbook (whose name should end in .xlsx)" in error.reason


def test_things_that_are_not_files(tmp_path: Path) -> None:
    """Folders, pipes, sockets and devices are refused, without waiting for a pipe's other end."""
    folder, pipe, door = tmp_path / "folder.csv", tmp_path / "pipe.csv", tmp_path / "door.csv"
    folder.mkdir()
    os.mkfifo(pipe)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(door))

    reasons = {
        path.name: refusal(path).reason
        for path in (folder, pipe, door, tmp_path / "no.csv", folder / "no" / "no.csv")
    }

    odd = "this is a device, a pipe or a socket, not a file"
    assert reasons["folder.csv"] == "this is a folder, not a file"
    assert reasons["pipe.csv"] == odd
    assert reasons["door.csv"] == odd
    assert reasons["no.csv"] == "there is no such file"
    assert refusal(Path("/dev/null")).reason == odd
    assert refusal(tmp_path / ("x" * 300 + ".csv")).reason.startswith("it cannot be opened: ")
    assert refusal(tmp_path).reason == "this is a folder, not a file"


def test_a_file_without_permission(write: Write) -> None:
    """A file that may not be read is refused with that reason."""
    path = write("a.csv", f"url\n{A}\n")
    path.chmod(0)

    with nobody():
        error = refusal(path)

    assert error.reason == "there is no permission to read it"


@pytest.mark.parametrize(
    ("name", "begin", "row"),
    [
        ("a.csv.gz", "url,x\n", "{},1\n"),
        ("a.csv.gz", 'url,x\nhttp://broken.example/,"unclosed\n', "{},1\n"),
        ("a.txt.gz", "", "{}\n"),
        ("a.jsonl.gz", "", '{{"url": "{}"}}\n'),
        ("a.json.gz", "[", '{{"url": "{}"}},\n'),
        ("a.json.gz", '[{"broken": },\n', '{{"url": "{}"}},\n'),
    ],
)
@pytest.mark.parametrize("count", [200, 60_000])
def test_a_truncated_archive(write: Write, name: str, begin: str, row: str, count: int) -> None:
    """All rows before the break are read, then the break is told; the torn row is not guessed
    at."""
    pages = [f"{A}{hashlib.md5(bytes([n % 256, n // 256])).hexdigest()}" for n in range(count)]
    packed = gzip.compress((begin + "".join(map(row.format, pages))).encode())
    path = write(name, packed[: len(packed) // 2])

    found, error = up_to_the_break(path)

    read_urls = [entry.task.address.url for entry in found if isinstance(entry, Row)]
    assert read_urls == pages[: len(read_urls)]
    assert count // 4 < len(read_urls) < count
    assert error.reason.startswith("the gzip data breaks off after ")
    assert error.line is not None
    assert abs(error.line - len(read_urls)) <= 3
    assert sum(isinstance(entry, Reject) for entry in found) == (
        "unclosed" in begin or "broken" in begin
    )


def test_a_damaged_archive(write: Write) -> None:
    """A wrong check sum is not passed over."""
    packed = bytearray(gzip.compress(f"{A}\n{B}\n".encode()))
    packed[-8] ^= 1
    path = write("a.txt.gz", bytes(packed))

    found, error = up_to_the_break(path)

    assert len(found) == 2
    assert "CRC check failed" in error.reason


# The checksum and the rejects.


def test_the_checksum_is_that_of_the_file(write: Write) -> None:
    """A file is known by its content, and a missing one has a clear reason."""
    path = write("a.csv", b"url\n" * 100_000)

    digest = checksum(path)

    assert digest == hashlib.sha256(b"url\n" * 100_000).hexdigest()
    with pytest.raises(InputError, match="there is no such file"):
        checksum(path.with_name("other.csv"))


def test_rejects_are_written_beside_the_file(write: Write, tmp_path: Path) -> None:
    """Each rejected row is one line of JSON, and no other file is left behind."""
    path = write("a.csv", "url\n")

    with RejectsFile(path) as file:
        file.add(Reject(2, "bad ü", 'x\n"y'))
        file.add(Reject(3, "worse", ""))
        assert not file.path.exists()

    assert file.path == tmp_path / "a.csv.rejects.jsonl"
    assert [json.loads(line) for line in file.path.read_text().splitlines()] == [
        {"line": 2, "reason": "bad ü", "text": 'x\n"y'},
        {"line": 3, "reason": "worse", "text": ""},
    ]
    assert sorted(tmp_path.iterdir()) == [path, file.path]


@pytest.mark.parametrize("again", [True, False])
def test_old_rejects_do_not_stay(write: Write, tmp_path: Path, again: bool) -> None:
    """The rejects of an earlier import are replaced, or removed when there are none any more."""
    path, old = write("a.csv", "url\n"), write("a.csv.rejects.jsonl", "old\n")

    with RejectsFile(path) as file:
        if again:
            file.add(Reject(1, "new", ""))

    assert old.exists() is again
    assert not again or "old" not in old.read_text()
    assert len(list(tmp_path.iterdir())) == 1 + again


def add_and_raise(path: Path, error: BaseException) -> None:
    with RejectsFile(path) as file:
        file.add(Reject(1, "new", ""))
        raise error


def test_half_a_list_of_rejects_is_not_left(write: Write, tmp_path: Path) -> None:
    """An import that is broken off leaves the old rejects as they were."""
    path, old = write("a.csv", "url\n"), write("a.csv.rejects.jsonl", "old\n")

    with pytest.raises(KeyboardInterrupt):
        add_and_raise(path, KeyboardInterrupt())

    assert old.read_text() == "old\n"
    assert sorted(tmp_path.iterdir()) == [path, old]


def test_rejects_before_a_break_are_kept(write: Write) -> None:
    """Where the input itself breaks off, the rejects before are all there are, and they are
    written."""
    path = write("a.csv", "url\n")

    with pytest.raises(InputError):
        add_and_raise(path, InputError(str(path), "broken"))

    assert len(path.with_name("a.csv.rejects.jsonl").read_text().splitlines()) == 1


def test_rejects_go_elsewhere_where_the_folder_cannot_be_written(tmp_path: Path) -> None:
    """Files of one name have other rejects, and an import without any removes those of an earlier
    one."""
    sources, instead, found = (
        [tmp_path / name / "x.csv" for name in ("gone", "lost")],
        tmp_path / "input",
        [],
    )
    for source in sources:
        with RejectsFile(source, instead) as file:
            file.add(Reject(1, source.parent.name, ""))
        found.append(file.path)

    assert [json.loads(path.read_text())["reason"] for path in found] == ["gone", "lost"]
    assert sorted(found) == sorted(instead.iterdir())
    with RejectsFile(sources[1], instead):
        pass
    assert list(instead.iterdir()) == found[:1]


def test_a_folder_that_cannot_be_written(write: Write, tmp_path: Path) -> None:
    """Such a folder matters only when there is a reject to write, and then it is said clearly."""
    path = write("a.csv", "url\n")
    tmp_path.chmod(0o500)

    with nobody(), RejectsFile(path):
        pass  # no reject, no complaint
    with nobody(), pytest.raises(UsageError) as caught, RejectsFile(path) as file:
        file.add(Reject(1, "bad", ""))

    tmp_path.chmod(0o700)
    assert str(caught.value).startswith(
        f"rejected rows cannot be written to {path}.rejects.jsonl: Permission denied; "
    )
    assert list(tmp_path.iterdir()) == [path]
