"""Exports: flat rows with stable columns, types that survive, text that nothing takes for code,
whole files only."""

import csv
import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pyarrow.parquet
import pytest

from crawler.db.imports import RejectedRow
from crawler.errors import UsageError
from crawler.results import export, format_of, whole_file
from crawler.results.formats import (
    BASE_COLUMNS,
    CUT,
    MAX_CELL_LENGTH,
    WRITERS,
    Sink,
    cell_text,
    escape_formula,
    escape_markdown,
    flatten,
    spooled_table,
    write_xlsx,
)
from tests.support.stack import Folder
from tests.support.tasks import done, new, open_job


def result(data: dict[str, Any] | None, **fields: Any) -> dict[str, Any]:
    """A result in the shape they have everywhere."""
    base: dict[str, Any] = {
        "task_id": "ab" * 16,
        "parcel_id": "007",
        "data": data,
        "scraped_at": "2026-11-15T14:00:00.000Z",
        "raw_html_hash": "cd",
        "url": "http://a.example/",
        "status_code": 200,
        "job": "p.csv",
        "input": {},
        "parser": {"name": "default", "version": "1"},
        "raw": None,
    }
    return base | fields


def written(form: str, *results: dict[str, Any], notes: list[str] | None = None) -> bytes:
    """What a format makes of results."""
    out = io.BytesIO()
    WRITERS[form](
        results,
        Sink(
            out, "x", None, Path(), lambda result: None, (notes if notes is not None else []).append
        ),
    )
    return out.getvalue()


def csv_rows(*results: dict[str, Any], notes: list[str] | None = None) -> list[dict[str, str]]:
    """The rows of a CSV export."""
    text = written("csv", *results, notes=notes).decode("utf-8-sig")
    return list(csv.DictReader(io.StringIO(text, newline="")))


def sheets(data: bytes) -> list[list[list[tuple[str, str]]]]:
    """Type and text of each cell of each sheet."""
    ns = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = sorted(
            name for name in archive.namelist() if name.startswith("xl/worksheets/sheet")
        )
        found = []
        for name in names:
            root = ElementTree.fromstring(archive.read(name))
            assert not list(root.iter(f"{ns}f")), "a formula"
            assert not list(root.iter(f"{ns}hyperlink")), "a link"
            rows = [list(row) for row in root.iter(f"{ns}row")]
            found.append(
                [[(cell.get("t", "n"), "".join(cell.itertext())) for cell in row] for row in rows]
            )
        return found


def test_flat_rows() -> None:
    """Objects become paths, lists of plain values one text, other lists and what is too deep JSON;
    nothing is lost."""
    row = flatten(
        result(
            {
                "title": "Parcel",
                "meta": {"og": {"type": "x"}, "deep": {"a": {"b": {"c": {"d": 1}}}}},
                "tags": ["a", 1, None, True],
                "links": [{"href": "/"}],
                "none": None,
                "empty": [],
                "a.b": 1,
                "a": {"b": 2},
            },
            input={"Owner": "Ada", "sizes": [1, 2], "about": {"x": 1}},
        )
    )
    assert {name: row[name] for name in row if name not in BASE_COLUMNS} == {
        "input.Owner": "Ada",
        "input.sizes": "1 | 2",
        "input.about": '{"x":1}',
        "data.title": "Parcel",
        "data.meta.og.type": "x",
        "data.meta.deep.a.b": '{"c":{"d":1}}',
        "data.tags": "a | 1 |  | true",
        "data.links": '[{"href":"/"}]',
        "data.none": None,
        "data.empty": "",
        "data.a.b": 1,
        "data.a.b~": 2,
    }
    assert (row["status"], row["parser"], row["parser_version"], row["parcel_id"]) == (
        "completed",
        "default",
        "1",
        "007",
    )


def test_columns_are_stable() -> None:
    """Record fields first, sorted, input as it first appears, base columns; the same results give
    the same columns."""
    results = [result({"z": 1}, input={"b": "1"}), result({"a": 1}, input={"b": "2", "a": "3"})]
    with spooled_table(results, None, 100) as table:
        assert list(table.columns) == ["data.a", "data.z", "input.b", "input.a", *BASE_COLUMNS]
        assert [row[:4] for row in table] == [[None, 1, "1", None], [1, None, "2", "3"]]
    with spooled_table(results, None, 100) as again:
        assert list(again.columns) == list(table.columns)
    with spooled_table([result(None, line=3)], None, 100) as rows:
        assert set(rows.columns) - set(BASE_COLUMNS) == {"line"}


@pytest.mark.parametrize("pages", [2, 40])
def test_a_few_pages_with_many_names_push_no_column_out(pages: int) -> None:
    """The columns of most rows are kept, whatever comes first; what few rows have is in
    `data.more`."""
    limit = len(BASE_COLUMNS) + 100
    own = [result({f"name {page} {n}": n for n in range(1_999)}) for page in range(pages)]
    usual = {f"field {n}": n for n in range(50)}
    rows = [*own, *[result(usual) for _ in range(100)]]

    with spooled_table(rows, None, limit) as table:
        kept, found = table.columns, list(table)

    assert {f"data.field {n}" for n in range(50)} <= kept.keys()
    assert len(kept) == limit
    place = list(kept).index("data.field 7")
    assert [str(row[place]) for row in found] == ["None"] * pages + ["7"] * 100
    assert kept["data.field 7"] is (int if pages == 2 else str)
    assert len(msgspec.json.decode(found[0][-1])) >= 1_999 - 100


def test_chosen_columns_come_in_the_order_they_are_named() -> None:
    """By their names, or as fields: of the record before those of the input; an unknown one names
    those there are."""
    results = [
        result({"price": 5, "url": "x", "k": 1}, input={"price": "7", "lot": "9"}),
        result({"price": 2.5}),
    ]
    with spooled_table(results, None, 100) as table:
        chosen = table.only(["lot", "price", "input.price", "url", "data.url"])
        assert chosen.columns == {
            "lot": str,
            "price": float,
            "input.price": str,
            "url": str,
            "data.url": str,
        }
        first, second = list(chosen)
        assert first == ["9", 5, "7", results[0]["url"], "x"]
        assert second == [None, 2.5, None, results[1]["url"], None]
        with pytest.raises(
            UsageError,
            match=r"there is no column 'prise' \(did you mean price\?\); there are: data.k",
        ):
            table.only(["prise"])


def test_the_name_of_an_object_means_all_its_columns() -> None:
    """Also where some records have none; a column that is always empty beside them is not made."""
    price = {"amount": 5, "currency": "EUR"}
    with spooled_table([result({"price": price}), result({"price": None})], None, 100) as table:
        assert [name for name in table.columns if name.startswith("data.")] == [
            "data.price.amount",
            "data.price.currency",
        ]
        chosen = table.only(["price", "url"])
        assert list(chosen.columns) == ["price.amount", "price.currency", "url"]
        assert [row[:2] for row in chosen] == [[5, "EUR"], [None, None]]


def test_columns_beyond_the_limit_are_folded() -> None:
    """Twenty columns where five have room: fifteen are JSON in `data.more`, and stderr says so."""
    data = {f"k{n:02}": n for n in range(20)} | {"x" * 1000: 1}
    with spooled_table([result(data), result({"k00": 5})], None, len(BASE_COLUMNS) + 6) as table:
        own = [f"data.k{n:02}" for n in range(5)]
        assert list(table.columns) == [*own, *BASE_COLUMNS, "data.more"]
        first, second = list(table)
        with pytest.raises(UsageError, match=r"there is no column 'data.more'"):
            table.only(["data.more"])
    assert first[:5] == [0, 1, 2, 3, 4]
    assert '"data.k19":19' in first[-1]
    assert "x" * 1000 in first[-1]
    assert (second[:5], second[-1]) == ([5, None, None, None, None], None)

    notes: list[str] = []
    csv_rows(result({str(n): n for n in range(3000)}), notes=notes)
    assert "data.more" in notes[0]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a", None], str),
        ([1, None], int),
        ([1, 2.5], float),
        ([True, False], bool),
        ([True, 1], str),
        ([1, "1"], str),
        ([None], str),
        ([1 << 60], int),
        ([1 << 70], str),
        ([1 << 60, 0.5], str),
    ],
)
def test_types_hold_all_values(values: list[Any], kind: type) -> None:
    """A column has the one type that holds all its values, or is text."""
    with spooled_table([result({"v": value}) for value in values], None, 100) as table:
        assert table.columns["data.v"] is kind


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+49 30 1234", "'+49 30 1234"),
        ("-cmd|' /C calc'!A0", "'-cmd|' /C calc'!A0"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\r=1"),
        ("\n=1", "'\n=1"),
        ("\tx", "'\tx"),
        ("  =1", "'  =1"),
        ("\xa0=1", "'\xa0=1"),
        ("\x00=1", "'=1"),
        ("\ufeff=1", "'\ufeff=1"),
        ("＝1+1", "'＝1+1"),
        ("＠x", "'＠x"),
        ("-", "'-"),
        ("-5", "-5"),
        ("+12.5", "+12.5"),
        ("-1,234.50", "-1,234.50"),
        ("-1e5", "-1e5"),
        ("-5\n", "'-5\n"),
        ("-５", "'-５"),
        ("a=1", "a=1"),
        ("007", "007"),
        ("", ""),
    ],
)
def test_text_that_begins_like_a_formula_is_quoted(text: str, cell: str) -> None:
    """An apostrophe stands before it, unless it is a plain number."""
    assert escape_formula(text) == cell


def test_csv_is_for_excel() -> None:
    """A byte order mark, CRLF, ids and numbers as they are, and names of columns as inert as their
    values."""
    data = written(
        "csv",
        result({"=cmd": "=1", "n": -5, "x": 1.5, "ok": True, "none": None}, input={"id": "007"}),
    )
    [row] = csv_rows(
        result({"=cmd": "=1", "n": -5, "x": 1.5, "ok": True, "none": None}, input={"@id": "007"})
    )

    assert data.startswith(b"\xef\xbb\xbfdata.")
    assert b",task_id,parcel_id," in data
    assert data.count(b"\r\n") == 2
    assert (row["parcel_id"], row["input.@id"], row["data.=cmd"], row["data.n"]) == (
        "007",
        "007",
        "'=1",
        "-5",
    )
    assert (row["data.x"], row["data.ok"], row["data.none"], row["status_code"]) == (
        "1.5",
        "true",
        "",
        "200",
    )
    assert csv_rows() == []


def test_a_workbook_keeps_types_and_runs_nothing() -> None:
    """Text is text, numbers are numbers, formulas and links are text; what a cell cannot hold is
    cut or left out."""
    texts = [
        "007",
        "=1+1",
        "http://a.example/",
        "<r><t>x</t></r>",
        "a\x00\x1bb",
        "🙂" * 20_000,
        "_x0041_",
    ]
    values: dict[str, Any] = {f"t{n}": text for n, text in enumerate(texts)}
    values |= {"u1": 5, "u2": -2.5, "u3": True, "u4": 1 << 60}
    [[header, row]] = sheets(written("xlsx", result(values)))

    found = row[: len(values)]
    assert [kind for kind, _ in found] == ["inlineStr"] * 7 + ["n", "n", "b", "inlineStr"]
    assert [text for _, text in found][:5] == [
        "007",
        "=1+1",
        "http://a.example/",
        "<r><t>x</t></r> ",
        "ab",
    ]
    assert len(found[5][1].encode("utf-16-le")) // 2 <= MAX_CELL_LENGTH
    assert found[5][1].endswith(CUT)
    assert found[6][1] == "_x005F_x0041_"
    assert [text for _, text in found][7:] == ["5", "-2.5", "1", str(1 << 60)]
    at = len(values) + list(BASE_COLUMNS).index("parcel_id")
    assert (header[at], row[at]) == (("inlineStr", "parcel_id"), ("inlineStr", "007"))
    assert {kind for kind, _ in header} == {"inlineStr"}


def test_more_rows_than_a_sheet_holds_are_more_sheets() -> None:
    """Each sheet has the header and its share; here a sheet holds four rows, because a million take
    a minute."""
    out = io.BytesIO()
    write_xlsx(
        (result({"n": n}) for n in range(7)),
        Sink(out, "x", None, Path(), lambda result: None, print),
        sheet_rows=4,
    )
    found = sheets(out.getvalue())
    assert [[row[0][1] for row in sheet] for sheet in found] == [
        ["data.n", "0", "1", "2"],
        ["data.n", "3", "4", "5"],
        ["data.n", "6"],
    ]


def test_parquet_has_types() -> None:
    """Ids are text, numbers numbers, mixed columns text, and the base columns always have the same
    types."""
    results = [
        result({"n": 1, "m": 1, "f": 1, "b": True}),
        result({"n": 2, "m": "x", "f": 0.5}),
        result(None),
    ]
    table = pyarrow.parquet.read_table(io.BytesIO(written("parquet", *results)))
    kinds = {field.name: str(field.type) for field in table.schema}

    assert table.column("parcel_id").to_pylist() == ["007"] * 3
    assert {name: kinds[f"data.{name}"] for name in "nmfb"} == {
        "n": "int64",
        "m": "string",
        "f": "double",
        "b": "bool",
    }
    assert table.column("data.m").to_pylist() == ["1", "x", None]
    assert table.column("data.f").to_pylist() == [1.0, 0.5, None]
    empty = pyarrow.parquet.read_table(io.BytesIO(written("parquet")))
    assert {field.name: str(field.type) for field in empty.schema} == {
        name: kinds[name] for name in BASE_COLUMNS
    }


def test_markdown_is_inert() -> None:
    """No HTML, no link, no markup and no line of a page's own reaches the document."""
    text = (
        "<script>alert(1)</script> [x](javascript:1) ![i](http://e.example/i) `a` a|b\n\n# h "
        "www.e.example o@e.example"
    )
    document = written("md", result({"title": text, text: text})).decode()

    assert [line for line in document.splitlines() if line.startswith("#")] == [
        "# Results",
        f"## {escape_markdown(text)}",
    ]
    assert not re.search(r"(?<!\\)[<\[\]|`!](?<!\|)", escape_markdown(text).replace("`@`", ""))
    assert "http://" not in document
    assert "www." not in document
    assert "`@`e.example" in document
    assert all(line.count(" | ") == 1 for line in document.splitlines() if line.startswith("| "))


def test_json_has_the_bytes_it_always_had() -> None:
    """An array with a result a line; a line per result; both empty where there is none."""
    one = {"a": 1}
    assert written("json", one, one) == b'[\n{"a":1},\n{"a":1}\n]\n'
    assert written("jsonl", one, one) == b'{"a":1}\n{"a":1}\n'
    assert (written("json"), written("jsonl")) == (b"[\n]\n", b"")


@pytest.mark.parametrize("form", sorted(set(WRITERS) - {"warc"}))
def test_an_interrupted_export_leaves_nothing(tmp_path: Path, form: str) -> None:
    """Ctrl-C in the middle: the old file is as it was, and no temporary one stays."""
    target = tmp_path / "x"
    target.write_text("old")

    def interrupted() -> Iterator[dict[str, Any]]:
        for _ in range(50):
            yield result({"title": "x"})
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), whole_file(target) as out:
        WRITERS[form](interrupted(), Sink(out, "x", tmp_path, Path(), lambda result: None, print))

    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert target.read_text() == "old"


def test_targets_that_cannot_be_written(tmp_path: Path) -> None:
    """A folder, a place below a file, a missing folder: one clear error each."""
    (tmp_path / "file").write_text("")
    for target in (tmp_path, tmp_path / "file" / "x", tmp_path / "none" / "x"):
        with pytest.raises(UsageError), whole_file(target) as out:
            out.write(b"x")


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("a.JSON", "json"),
        ("a.warc.gz", "warc"),
        ("a.b.xlsx", "xlsx"),
        ("a.txt", None),
        ("-", None),
        ("json", None),
    ],
)
def test_the_ending_names_the_format(name: str, form: str | None) -> None:
    """Whatever its case."""
    assert format_of(Path(name)) == form


def test_every_row_of_the_input_in_its_order(folder: Folder) -> None:
    """With `all_rows` own tasks, shared ones and rejected rows come in the order of the file, for
    each job."""
    # Given a job with a done, a shared, a rejected and an open row, and a second one that shares
    # all
    lpm = folder.lpm()
    first = open_job(lpm, "first.csv")
    lpm.persist_tasks([new("http://a.example/1", line=4, input={"n": "4"})], job=first)
    lpm.persist_tasks([new("http://a.example/2", line=2, input={"n": "2"})], job=first)
    lpm.persist_tasks([new("http://a.example/1", line=5, input={"n": "5"})], job=first)
    lpm.imports.reject(first, [RejectedRow(3, "not a URL", "nonsense")])
    second = open_job(lpm, "second.csv")
    lpm.persist_tasks([new("http://a.example/2", line=2, input={"n": "x"})], job=second)
    lpm.persist_tasks([new("http://a.example/single")])
    [task] = [task for task in lpm.get_next_pending("owner", 10) if task.url.endswith("1")]
    lpm.save_result(done(task))

    # When every row is exported
    rows = [row for job in (first, second) for row in lpm.results.input_rows(job)]
    exported = export(lpm, folder.path / "rows.csv", "csv", all_rows=True)
    notes = lpm.store.db.all("SELECT job_id, results, format FROM exports ORDER BY id")
    lpm.close()

    # Then each is there once, with what is known of it
    assert [(row["job"], row["line"], row["status"], row["input"].get("n")) for row in rows] == [
        ("first.csv", 2, "processing", "2"),
        ("first.csv", 3, "rejected", None),
        ("first.csv", 4, "completed", "4"),
        ("first.csv", 5, "completed", "5"),
        ("second.csv", 2, "processing", "x"),
    ]
    assert rows[1] | {"reason": "not a URL", "message": "nonsense"} == rows[1]
    assert (rows[0]["data"], rows[2]["data"], rows[0]["url"]) == (
        None,
        {"title": "x"},
        "http://a.example/2",
    )
    assert (exported.rows, exported.results) == (5, 2)
    assert notes == [(first.id, 2, "csv"), (second.id, 0, "csv")]


def test_a_text_of_a_cell_is_counted_as_excel_counts() -> None:
    """32,767 characters fit, one more does not, and the halves of a character stay together."""
    assert cell_text("a" * MAX_CELL_LENGTH) == "a" * MAX_CELL_LENGTH
    assert len(cell_text("a" * (MAX_CELL_LENGTH + 1))) == MAX_CELL_LENGTH
    assert cell_text("a" + "🙂" * MAX_CELL_LENGTH).encode("utf-16-le")


def test_what_a_browser_has_made_goes_by_its_name_in_tables() -> None:
    """The URL of a screenshot is that of its page; a written file goes by its path."""
    shot = {"field": "screenshot", "url": "http://a.example/1", "task_id": "t"}
    photo = {"field": "photos", "url": "http://a.example/1.jpg", "task_id": "u"}
    result: dict[str, object] = {
        "task_id": "t",
        "parser": None,
        "raw": None,
        "input": {},
        "data": {},
    }

    row = flatten({**result, "files": [shot, photo, {**shot, "path": "ab/cd.png"}]})

    assert row["files"] == "screenshot | http://a.example/1.jpg | ab/cd.png"
