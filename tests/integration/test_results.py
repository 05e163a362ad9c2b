"""`results` and workbooks through the door: list, show, export in every format, and a kill in the
middle."""

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import xlsxwriter
from warcio.archiveiterator import ArchiveIterator

from crawler.bulk import sheet
from tests.support.site import Site
from tests.support.stack import Folder
from tests.support.tasks import done, new, open_job

ROWS = 6


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory, _site: Site) -> Iterator[Folder]:
    """A folder in which a file with good, bad, repeated and senseless rows was run."""
    folder = Folder(tmp_path_factory.mktemp("collected"))
    (folder.path / "in.csv").write_text(
        "url,parcel_id,Owner,note\n"
        f"{_site.page(1)},007,Ada,=1+1\n"
        f"{_site.url}/status/404,008,Bob,\n"
        "nonsense,009,Eve,\n"
        f"{_site.page(1)},007,Cy,again\n"
        f"{_site.url}/gzip,010,Dan,\n"
        f"{_site.url}/json,011,Fay,\n"
    )
    run = folder.crawler("run", "in.csv", "--workers", "1")
    assert run.returncode == 1, run.stderr
    yield folder
    folder.stop()


def export(folder: Folder, name: str, *args: str) -> Path:
    """Export to a file of that name."""
    done = folder.crawler("results", "export", "--output", name, *args)
    assert done.returncode == 0, done.stderr
    return folder.path / name


def test_chosen_columns_of_a_table(collected: Folder) -> None:
    """Own fields by their own names, in the order they are named; what is no column, or no table,
    is refused."""
    file = export(collected, "few.csv", "--columns", "Owner, data.title,status_code", "--all-rows")
    lines = file.read_text("utf-8-sig").splitlines()
    wrong = collected.crawler("results", "export", "--output", "x.csv", "--columns", "Ownr")
    other = collected.crawler("results", "export", "--output", "x.jsonl", "--columns", "Owner")
    twice = collected.crawler("results", "export", "--output", "x.csv", "--columns", "url,url")

    assert lines[0] == "Owner,data.title,status_code"
    assert [line.partition(",")[0] for line in lines[1:]] == ["Ada", "Bob", "", "Cy", "Dan", "Fay"]
    assert lines[1].endswith(",200")
    assert [each.returncode for each in (wrong, other, twice)] == [2, 2, 2]
    assert "there is no column 'Ownr' (did you mean Owner?); there are: data." in wrong.stderr
    assert "--columns is for tables: csv, xlsx, parquet" in other.stderr
    assert not list(collected.path.glob("*x.*"))


def test_list_says_how_many_and_shows_the_newest(collected: Folder) -> None:
    """The first line is the documented one; a pipe gets nothing more unless it asks."""
    first = f"3 results in {collected.data}/pending/"
    assert collected.crawler("results", "list").stdout == f"{first}\n"
    lines = collected.crawler("results", "list", "--limit", "2").stdout.splitlines()
    assert lines[0] == first
    assert lines[1].split() == ["task_id", "code", "verdict", "parcel_id", "url"]
    assert len(lines) == 4
    facts = json.loads(
        collected.crawler("results", "list", "--job", "in.csv", "--limit", "9", "--json").stdout
    )
    assert (facts["results"], facts["folder"]) == (3, f"{collected.data}/pending")
    assert {item["parcel_id"] for item in facts["items"]} == {"007", "010", "011"}
    assert "items" not in json.loads(collected.crawler("results", "list", "--json").stdout)


def test_list_on_a_terminal_fits_its_width(collected: Folder) -> None:
    """Eighty columns hold every line, and the newest results are shown unasked."""
    mine, its = os.openpty()
    env = collected.env | {"COLUMNS": "80"}
    argv = [sys.executable, "-m", "crawler", "results", "list"]
    subprocess.run(argv, cwd=collected.path, env=env, stdout=its, check=True)
    os.close(its)
    text = os.read(mine, 65536).decode()
    os.close(mine)
    rows = text.splitlines()[1:]
    assert len(rows) == 4
    assert all(len(line) <= 80 for line in rows)


def test_show_by_id_and_by_url(collected: Folder, site: Site) -> None:
    """A unique beginning of a task_id and a URL show the same record; without a result there are
    reason and code 1."""
    by_url = json.loads(collected.crawler("results", "show", site.page(1), "--json").stdout)
    by_id = collected.crawler("results", "show", by_url["task_id"][:12])
    failed = collected.crawler("results", "show", f"{site.url}/status/404")

    assert by_id.returncode == 0
    for part in ("Parcel 1", by_url["raw"]["segment"], "in.csv, line 2", "Ada", "007"):
        assert part in by_id.stdout
    assert failed.returncode == 1
    assert "http_404" in failed.stdout
    assert "line 3" in failed.stdout


@pytest.mark.parametrize(
    "args",
    [
        ("show", "abcdef012345"),
        ("show", "http://a.example/never"),
        ("show", "nonsense"),
        ("list", "--job", "other.csv"),
        ("export", "--output", "x.json", "--job", "in.cs"),
        ("export", "--output", "x.unknown"),
        ("export", "--output", "x.json", "--format", "docx"),
        ("export", "--output", ".", "--format", "csv"),
        ("export", "--output", "none/x.csv"),
        ("export", "--output", "x.csv", "--since", "yesterday"),
        ("export", "--output", "x.csv", "--all-rows", "--since", "2h"),
        ("export", "--output", "x.warc.gz", "--all-rows"),
        ("export", "--output", "x.csv", "--raw", "in.csv"),
    ],
)
def test_what_cannot_be_done_is_one_line(collected: Folder, args: tuple[str, ...]) -> None:
    """Unknown ids, jobs, formats and times, and targets that cannot be written, end with 2 and
    leave nothing."""
    before = sorted(collected.path.iterdir())
    done = collected.crawler("results", *args)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(collected.path.iterdir()) == before


def test_no_store_and_a_damaged_one(folder: Folder) -> None:
    """Without a store nothing is made; a damaged one is code 4."""
    assert folder.crawler("results", "show", "abcdef").returncode == 2
    assert folder.crawler("results", "list", "--job", "x").returncode == 2
    assert folder.crawler("results", "list", "--limit", "3").returncode == 2
    assert not folder.data.exists()
    folder.data.mkdir()
    (folder.data / "lpm.db").write_bytes(b"this is not a database" * 100)
    assert folder.crawler("results", "export", "-o", "x.csv").returncode == 4
    assert not (folder.path / "x.csv").exists()


def test_tables_tell_the_same(collected: Folder) -> None:
    """CSV, workbook and Parquet have the same columns and the same ids."""
    text = export(collected, "out.csv").read_text("utf-8-sig")
    rows = list(csv.DictReader(text.splitlines()))
    found = [record.cells for record in sheet.records(export(collected, "out.xlsx"))]
    book = [[cells.get(column, "") for column in range(1, max(cells) + 1)] for cells in found]
    table = pyarrow.parquet.read_table(export(collected, "out.parquet"))

    assert list(rows[0]) == book[0] == table.column_names
    assert [row["parcel_id"] for row in rows] == ["007", "010", "011"]
    at = book[0].index("parcel_id")
    assert (
        [row[at] for row in book[1:]]
        == table.column("parcel_id").to_pylist()
        == ["007", "010", "011"]
    )
    assert rows[0]["input.note"] == "'=1+1"
    assert table.column("status_code").to_pylist() == [200, 200, 200]
    names = list(rows[0])
    assert names[names.index("task_id") :][:5] == [
        "task_id",
        "parcel_id",
        "status",
        "reason",
        "message",
    ]
    assert names[0].startswith("data.")


@pytest.mark.parametrize("name", ["rows.csv", "rows.json"])
def test_all_rows_account_for_the_file(collected: Folder, name: str) -> None:
    """Every row of the input is there, in its order, with its status and reason."""
    done = collected.crawler("results", "export", "--all-rows", "--job", "in.csv", "--output", name)
    text = (collected.path / name).read_text("utf-8-sig")
    rows: list[dict[str, Any]] = (
        json.loads(text) if name.endswith("json") else list(csv.DictReader(text.splitlines()))
    )

    assert done.stdout == f"Exported {ROWS} rows to {name}\n"
    assert [int(row["line"]) for row in rows] == [2, 3, 4, 5, 6, 7]
    assert [row["status"] for row in rows] == [
        "completed",
        "failed",
        "rejected",
        *["completed"] * 3,
    ]
    assert rows[1]["reason"] == "http_404"
    assert "not a URL" in rows[2]["reason"]
    assert rows[0]["raw_html_hash"] == rows[3]["raw_html_hash"]
    owners = (
        [row["input"].get("Owner") for row in rows]
        if name == "rows.json"
        else [row["input.Owner"] for row in rows]
    )
    assert owners == ["Ada", "Bob", None if name == "rows.json" else "", "Cy", "Dan", "Fay"]


def test_warc_is_read_by_others(collected: Folder, site: Site) -> None:
    """The file begins with a warcinfo and holds the page of each result."""
    with export(collected, "out.warc.gz").open("rb") as file:
        found = [
            (r.rec_type, r.rec_headers.get_header("WARC-Target-URI")) for r in ArchiveIterator(file)
        ]
    assert found[0][0] == "warcinfo"
    assert sorted(url for _, url in found[1:]) == sorted(
        [site.page(1), f"{site.url}/gzip", f"{site.url}/json"]
    )


def test_pages_beside_the_export(collected: Folder) -> None:
    """`--raw` writes each page decoded, by its task and kind, and leaves other files alone."""
    pages = collected.path / "pages"
    pages.mkdir()
    (pages / "mine.txt").write_text("mine")
    results = json.loads(export(collected, "all.json", "--raw", "pages").read_text())

    names = {"007": "html", "010": "html", "011": "json"}
    expected = {f"{result['task_id']}.{names[result['parcel_id']]}" for result in results}
    assert {path.name for path in pages.iterdir()} == expected | {"mine.txt"}
    for path in pages.glob("*.html"):
        assert path.read_bytes().startswith(b"<!doctype html>")


def test_since_and_stdout(collected: Folder) -> None:
    """Nothing is a result since now; `-` gives what a file would hold, and only that."""
    nothing = collected.crawler("results", "export", "-o", "none.jsonl", "--since", "0s", "--json")
    assert json.loads(nothing.stdout) == {"results": 0, "file": "none.jsonl", "format": "jsonl"}
    argv = [sys.executable, "-m", "crawler", "results", "export", "-o", "-", "--format"]
    for form in ("csv", "jsonl", "md", "xlsx", "parquet"):
        piped = subprocess.run(
            [*argv, form], cwd=collected.path, env=collected.env, capture_output=True, check=True
        )
        if form in ("csv", "jsonl", "md"):
            assert piped.stdout == export(collected, f"same.{form}", "--since", "1d").read_bytes()
        else:
            assert piped.stdout[:2] in (b"PK", b"PA")


def test_a_reader_that_leaves_is_no_error(collected: Folder) -> None:
    """`results export -o - | head` ends in silence."""
    reader, writer = os.pipe()
    os.close(reader)
    argv = [sys.executable, "-m", "crawler", "results", "export", "-o", "-", "--format", "jsonl"]
    done = subprocess.run(
        argv,
        cwd=collected.path,
        env=collected.env,
        stdout=writer,
        stderr=-1,
        text=True,
        check=False,
    )
    os.close(writer)
    assert done.stderr == ""


def test_parquet_without_pyarrow_is_one_line(collected: Folder, tmp_path: Path) -> None:
    """Where the extra is not installed its name is in the message, and no file is made."""
    (tmp_path / "pyarrow.py").write_text("raise ImportError")
    done = collected.crawler("results", "export", "-o", "lacking.parquet", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr == "Error: the format parquet needs pyarrow: "
        "pip install '.[parquet]' in the project's folder\n"
    )
    assert not list(collected.path.glob("*lacking*"))


@pytest.mark.parametrize("name", ["out.json", "out.csv", "out.xlsx"])
def test_a_killed_export_leaves_the_old_file(folder: Folder, name: str) -> None:
    """kill -9 at the 50th of 100 results: the old file is as it was, and the same command again
    gives a whole one."""
    lpm = folder.lpm()
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(100)], job=open_job(lpm))
    lpm.save_result(*(done(task) for task in lpm.get_next_pending("owner", 100)))
    lpm.close()
    target = folder.path / name
    target.write_text("old")

    dead = folder.crawler("results", "export", "-o", name, CRAWLER_FAILPOINT="exporting:50")
    assert dead.returncode == -signal.SIGKILL
    assert target.read_text() == "old"

    assert (
        folder.crawler("results", "export", "-o", name).stdout
        == f"Exported 100 results to {name}\n"
    )
    assert target.stat().st_size > 1000


def test_a_workbook_is_imported(folder: Folder) -> None:
    """`bulk import` takes an .xlsx like a CSV: rejects beside it, the same file again is the same
    job."""
    book = xlsxwriter.Workbook(folder.path / "parcels.xlsx", {"strings_to_urls": False})
    page = book.add_worksheet()
    rows = [
        ["URL", "parcel_id", "Owner"],
        ["http://a.example/1", 123, "Ada"],
        ["nonsense"],
        ["http://a.example/2", "007"],
    ]
    for number, row in enumerate(rows):
        page.write_row(number, 0, row)
    book.close()

    facts = json.loads(folder.crawler("bulk", "import", "parcels.xlsx", "--json").stdout)
    again = json.loads(folder.crawler("bulk", "import", "parcels.xlsx", "--json").stdout)

    assert (facts["rows"], facts["accepted"], facts["rejected"]) == (3, 2, 1)
    assert (again["accepted"], again["known"], again["job"]) == (0, 2, "parcels.xlsx")
    assert json.loads((folder.path / "parcels.xlsx.rejects.jsonl").read_text())["line"] == 3
    lpm = folder.lpm()
    found = lpm.store.db.all("SELECT parcel_id, input, source_line FROM tasks ORDER BY id")
    lpm.close()
    assert [(parcel, json.loads(given)["Owner"], line) for parcel, given, line in found] == [
        ("123", "Ada", 2),
        ("007", "", 4),
    ]
