"""Secrets in input: a password in any column's URL is kept nowhere, and costs no row."""

import csv
import gzip
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import xlsxwriter
from pyarrow import parquet

from crawler.bulk import import_file
from crawler.config import Settings
from crawler.results import FORMATS as EXPORTS
from tests.support.pages import Pages
from tests.support.stack import Folder

SECRET = "swordfish"
HIDDEN = f"https://ada:{SECRET}@files.example/deed.pdf"
PLAIN = "https://files.example/deed.pdf"
COLUMNS = ("url", "parcel_id", "Source", "remark")


def cells(url: str) -> tuple[str, ...]:
    """A row with a password in every column but its own address's."""
    return (
        url,
        HIDDEN,
        HIDDEN,
        f"see {HIDDEN} or ftp://ada:{SECRET}@files.example/x, and ada@files.example",
    )


def as_csv(url: str, delimiter: str = ",") -> bytes:
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter).writerows(
        [COLUMNS, cells(url), ("no url", HIDDEN, HIDDEN, HIDDEN)]
    )
    return out.getvalue().encode()


def as_jsonl(url: str) -> bytes:
    row = dict(zip(COLUMNS, cells(url), strict=True)) | {"nested": [{"at": HIDDEN}]}
    escaped = json.dumps(row | {"url": f"{url}/2"}).replace("@", "\\u0040").replace("/", "\\/")
    return "\n".join(
        [json.dumps(row), escaped, json.dumps({"url": "no url", "source": HIDDEN})]
    ).encode()


def as_json(url: str) -> bytes:
    return b"[" + as_jsonl(url).replace(b"\n", b",\n") + b"]"


def as_xlsx(url: str) -> bytes:
    out = io.BytesIO()
    with xlsxwriter.Workbook(out, {"strings_to_urls": False}) as book:
        sheet = book.add_worksheet()
        for place, row in enumerate((COLUMNS, cells(url), ("no url", HIDDEN, HIDDEN, HIDDEN))):
            sheet.write_row(place, 0, row)
    return out.getvalue()


FORMATS: dict[str, Callable[[str], bytes]] = {
    "a.csv": as_csv,
    "a.tsv": lambda url: as_csv(url, "\t"),
    "a.json": as_json,
    "a.jsonl": as_jsonl,
    "a.ndjson": as_jsonl,
    "a.xlsx": as_xlsx,
    "a.csv.gz": lambda url: gzip.compress(as_csv(url)),
}


def holding(folder: Path, *besides: Path) -> list[Path]:
    """The files that hold the secret, packed ones included."""

    def content(path: Path) -> bytes:
        data = path.read_bytes()
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as packed:
                return b"".join(packed.read(name) for name in packed.namelist())
        return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data

    files = [path for path in folder.rglob("*") if path.is_file() and path not in besides]
    return [path for path in files if SECRET.encode() in content(path)]


@pytest.mark.parametrize("name", FORMATS)
def test_a_password_in_any_column_is_left_out_at_import(tmp_path: Path, name: str) -> None:
    """Whatever the format: each row is kept as it is but for user names and passwords, in no file
    is any."""
    file = tmp_path / name
    file.write_bytes(FORMATS[name]("http://a.example/1"))

    summary, _ = import_file(Settings(data_dir=tmp_path / "data"), file)

    assert (summary.accepted, summary.rejected) == (2 if "json" in name else 1, 1)
    assert holding(tmp_path, file) == []
    folder = Folder(tmp_path)
    tasks = folder.lpm().store.db.all("SELECT parcel_id, input FROM tasks")
    for parcel_id, text in tasks:
        given = json.loads(text)
        assert (parcel_id, given["parcel_id"], given["Source"]) == (PLAIN, PLAIN, PLAIN)
        assert given["remark"] == f"see {PLAIN} or ftp://files.example/x, and ada@files.example"
        assert given.get("nested", [{"at": PLAIN}]) == [{"at": PLAIN}]


def test_a_password_in_a_column_comes_out_nowhere(folder: Folder, pages: Pages) -> None:
    """Neither in the store, its logs and files, nor in an export, a bundle, another store, or what
    commands say."""
    [url] = pages.parcels(1)
    file = folder.path / "a.jsonl"
    file.write_bytes(as_jsonl(url))

    said = [folder.crawler("run", str(file), "--rate", "none")]
    said += [
        folder.crawler("status"),
        folder.crawler("why", url),
        folder.crawler("job", "show", "a.jsonl"),
    ]
    said += [folder.crawler("tasks", "list", "--json"), folder.crawler("results", "list", "--json")]
    for format_ in EXPORTS:
        arguments = ("--format", format_, "-o", str(folder.path / f"out.{format_}"))
        said.append(folder.crawler("results", "export", *arguments))
        assert said[-1].returncode == 0, said[-1].stderr
    packed, other = folder.path / "out.bundle", folder.path / "other"
    said.append(folder.crawler("results", "bundle", "-o", str(packed)))
    said.append(folder.crawler("results", "unbundle", str(packed), "--data-dir", str(other)))

    assert said[-1].returncode == 0, said[-1].stderr
    assert [done.args for done in said if SECRET in done.stdout + done.stderr] == []
    assert PLAIN in (folder.path / "out.csv").read_text()
    assert holding(folder.path, file) == []
    assert SECRET not in str(parquet.read_table(folder.path / "out.parquet").to_pylist())
