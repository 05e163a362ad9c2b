"""Every row of input is counted once: in whatever file, however often it is read, broken off and
repaired."""

import gzip
import hashlib
import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xlsxwriter

from crawler.bulk import import_file
from crawler.config import Settings, load
from crawler.errors import InputError
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job
from tests.support.patient import change, look, pages_of, wipe, wrong
from tests.support.stack import Folder
from tests.support.tasks import done
from tests.support.workbooks import crafted

Row = dict[str, Any]


class Broken(Exception):
    """An import is broken off, as by a kill."""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The settings of a store in the test's folder."""
    return msgspec.structs.replace(load({}), data_dir=tmp_path / "data")


# Files of random rows.


def made_rows(chance: random.Random, count: int, name: str) -> list[Row]:
    """Rows of few pages, so that many mean the same one, with bad rows among them; `n` is each
    one's own."""
    rows = []
    for number in range(count):
        bad = number > 0 and chance.random() < 0.15
        page = f"http://a.example/{chance.randrange(1 + count // 2)}"
        rows.append(
            {
                "url": "no address" if bad else page,
                "parcel_id": chance.choice("pq"),
                "n": f"{name}-{number}",
            }
        )
    return rows


def delimited(path: Path, rows: list[Row], delimiter: str) -> None:
    """A table; some of its rows have a cell over two lines."""
    lines = [delimiter.join(rows[0])]
    for row in rows:
        cells = [row["url"], row["parcel_id"], f'"{row["n"]}"']
        lines.append(delimiter.join(cells))
    path.write_text("\n".join(lines) + "\n")


def workbook(path: Path, rows: list[Row]) -> None:
    """A workbook, as a program writes it."""
    with xlsxwriter.Workbook(path) as book:
        sheet = book.add_worksheet()
        sheet.write_row(0, 0, list(rows[0]))
        for number, row in enumerate(rows, 1):
            for column, value in enumerate(row.values()):
                sheet.write_string(number, column, value)


def array(chance: random.Random, path: Path, rows: list[Row]) -> None:
    """An array with several rows on some of its lines, and some lines between others."""
    texts = [json.dumps(row) for row in rows]
    path.write_text(
        "["
        + "".join(f"{text},{chance.choice(['', ' ', chr(10), chr(10) * 3])}" for text in texts)[:-1]
    )
    path.write_text(path.read_text().rstrip(", \n") + "]")


WRITERS: dict[str, Callable[[random.Random, Path, list[Row]], object]] = {
    "csv": lambda _, path, rows: delimited(path, rows, ","),
    "tsv": lambda _, path, rows: delimited(path, rows, "\t"),
    "jsonl": lambda _, path, rows: path.write_text("".join(json.dumps(row) + "\n" for row in rows)),
    "json": lambda _, path, rows: path.write_text(json.dumps(rows)),
    "lines.json": array,
    "txt": lambda _, path, rows: path.write_text("".join(f"{row['url']}\n" for row in rows)),
    "xlsx": lambda _, path, rows: workbook(path, rows),
}


def made_files(chance: random.Random, folder: Path, count: int, size: int) -> dict[Path, list[Row]]:
    """Files of any kind, with their rows."""
    files = {}
    for number in range(count):
        ending = chance.choice(list(WRITERS))
        path = folder / f"{number}.{ending}"
        rows = made_rows(chance, chance.randint(1, size), f"f{number}")
        WRITERS[ending](chance, path, rows)
        files[path] = rows
    return files


# Reading them.


def read(
    settings: Settings, file: Path, job_name: str | None, commits: int | None = None
) -> Job | None:
    """Import a file; with `commits` it is broken off after so many, if there are so many."""
    left = [commits or 0]

    def count(line: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Broken

    try:
        return import_file(settings, file, job_name=job_name, commit_rows=3, progress=count)[1]
    except Broken:
        return None


def collect(settings: Settings, count: int) -> None:
    """Collect some of the pages."""
    lpm = LocalPersistenceManager(settings.data_dir)
    lpm.save_result(*(done(task) for task in lpm.get_next_pending("owner", count)))
    lpm.close()


# What is to be true.


def assert_every_row_once(
    settings: Settings, job_name: str, files: Iterable[tuple[Path, list[Row]]]
) -> None:
    """Each row is one task, link or rejected row, the counts are these, and an export has each with
    its own columns."""
    files = list(files)
    lpm = LocalPersistenceManager(settings.data_dir)
    job = lpm.jobs.named(job_name)
    receipt = lpm.receipt(job)
    assert receipt.problems == []
    assert receipt.rows == sum(len(rows) for _, rows in files)
    assert receipt.rejected == sum(row["url"] == "no address" for _, rows in files for row in rows)
    keys: list[tuple[Any, ...]] = []
    counts = []
    for table in ("tasks", "job_links", "rejected_rows"):
        found = lpm.store.db.all(
            f"SELECT file_number, source_line, source_item FROM {table} WHERE job_id = ?", (job.id,)
        )
        counts.append(len(found))
        keys += found
    assert len(set(keys)) == len(keys) == receipt.rows
    assert lpm.store.db.all("SELECT size, linked, rejected FROM jobs WHERE id = ?", (job.id,)) == [
        tuple(counts)
    ]
    exported = list(lpm.results.input_rows(job))
    lpm.close()
    expected = [(path, row) for path, rows in files for row in rows]
    assert [told(row, path) for row, (path, _) in zip(exported, expected, strict=True)] == [
        meant(row, path) for path, row in expected
    ]


def told(row: dict[str, Any], path: Path) -> tuple[Any, ...]:
    """What an export says of a row."""
    rejected = row["status"] == "rejected"
    if path.suffix == ".txt":
        return (rejected, row["message"] if rejected else row["input"]["url"])
    return (rejected, rejected or row["input"]["n"], not rejected or row["message"])


def meant(row: Row, path: Path) -> tuple[Any, ...]:
    """What it should say."""
    rejected = row["url"] == "no address"
    if path.suffix == ".txt":
        return (rejected, row["url"])
    text = Part(row["n"])
    return (rejected, rejected or row["n"], not rejected or text)


class Part(str):
    """Equal to every text that holds it as a whole word."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, str)
            and str(self) in other.replace('"', " ").replace(",", " ").split()
        )


# The tests.


@pytest.mark.parametrize("seed", range(40))
def test_every_row_is_counted_once(settings: Settings, tmp_path: Path, seed: int) -> None:
    """Files of all kinds into one job, broken off anywhere, read again in any order, beside another
    job."""
    # Given some of the pages in another job, and files of one job that are broken off anywhere
    chance = random.Random(seed)
    other = made_files(chance, tmp_path, 1, 20)
    for path, rows in other.items():
        WRITERS["jsonl"](chance, path.with_name("other.jsonl"), rows)
    read(settings, tmp_path / "other.jsonl", None)
    files = made_files(chance, tmp_path, chance.randint(1, 3), 40)
    named = "auction" if len(files) > 1 or chance.random() < 0.5 else None
    for path in files:
        read(settings, path, named, chance.randint(1, 8))
        collect(settings, chance.randint(0, 5))

    # When they are read again
    again = list(files) * 2
    chance.shuffle(again)
    for path in again:
        read(settings, path, named, chance.choice([None, 1, 4]))
    jobs = {job.name for path in files if (job := read(settings, path, named))}

    # Then each row is there once
    [job_name] = jobs
    assert_every_row_once(settings, job_name, files.items())


@pytest.mark.parametrize("seed", range(25))
def test_a_repair_brings_every_row_back_once(settings: Settings, tmp_path: Path, seed: int) -> None:
    """Pages of the ledger destroyed at random: the files again, in any order, are exactly what was
    there."""
    chance = random.Random(seed)
    files = made_files(chance, tmp_path, chance.randint(1, 3), 300)
    named = "auction" if len(files) > 1 else None
    for path in files:
        read(settings, path, named)
        collect(settings, 50)
    database = settings.data_dir / "lpm.db"
    for number in chance.sample(range(5, database.stat().st_size // 4096), 3):
        wipe(database, number)
    look(settings.data_dir, repair=True)

    again = list(files)
    chance.shuffle(again)
    jobs = {job.name for path in again if (job := read(settings, path, named))}

    [job_name] = jobs
    assert_every_row_once(settings, job_name, files.items())
    assert not [
        finding
        for finding in wrong(look(settings.data_dir))
        if f"job {job_name}:" in finding.detail
    ]


@pytest.mark.parametrize("seed", range(8))
def test_a_task_made_of_its_result_takes_no_place_of_another(
    settings: Settings, tmp_path: Path, seed: int
) -> None:
    """What is left of a collected task does not tell its row: it goes to none of the same URL that
    has its own task."""
    # Given files with the same URLs, with and without a parcel, all collected
    chance = random.Random(seed)
    files = {}
    for name in ("a.txt", "b.jsonl", "c.jsonl"):
        files[tmp_path / name] = rows = made_rows(chance, 120, name)
        WRITERS[name[2:]](chance, tmp_path / name, rows)
        read(settings, tmp_path / name, "auction")
    collect(settings, 150)

    # When the rows of tasks are lost, which are made again from their results, and rejected rows
    # for good
    database = settings.data_dir / "lpm.db"
    for number in chance.sample(pages_of(database, "tasks", "leaf"), 4) + pages_of(
        database, "rejected_rows", "leaf"
    ):
        wipe(database, number)
    look(settings.data_dir, repair=True)
    for path in reversed(files):
        read(settings, path, "auction")

    # Then each row is there once
    assert_every_row_once(settings, "auction", files.items())


@pytest.mark.parametrize("table", ["tasks", "job_links", "rejected_rows", "imports", "jobs"])
def test_lost_rows_of_one_line_are_told_and_come_back(
    settings: Settings, tmp_path: Path, table: str
) -> None:
    """A one-line array has all its rows on line 1: a lost page of any table costs none of them for
    ever."""
    rows = made_rows(random.Random(1), 600, "f")
    for row in rows:
        row["more"] = "x" * 40
    (tmp_path / "one.json").write_text(json.dumps(rows))
    read(settings, tmp_path / "one.json", None)
    wipe(settings.data_dir / "lpm.db", pages_of(settings.data_dir / "lpm.db", table, "leaf")[0])

    mended = look(settings.data_dir, repair=True)

    told = [finding.detail for finding in wrong(mended)]
    assert bool(told) == (table != "imports"), mended
    assert table != "tasks" or any(
        "no row is left of the lines 1 (items " in text for text in told
    ), told
    job = read(settings, tmp_path / "one.json", None)
    assert job
    assert_every_row_once(settings, job.name, [(tmp_path / "one.json", rows)])


def test_files_are_told_apart_although_a_repair_forgot_them(
    settings: Settings, tmp_path: Path
) -> None:
    """Where the list of a job's files was lost, reading them again in another order doubles
    nothing."""
    chance = random.Random(3)
    files = {}
    for name in ("first", "second", "third"):
        rows = made_rows(chance, 30, name)
        WRITERS["json"](chance, tmp_path / f"{name}.json", rows)
        files[tmp_path / f"{name}.json"] = rows
        read(settings, tmp_path / f"{name}.json", "auction")
    change(settings.data_dir, "DELETE FROM imports")
    change(settings.data_dir, "DELETE FROM tasks WHERE id % 5 = 0")
    look(settings.data_dir, repair=True)

    for path in reversed(files):
        read(settings, path, "auction")

    assert_every_row_once(settings, "auction", files.items())


def test_an_import_that_broke_off_is_not_forgotten_with_the_list_of_files(
    settings: Settings, tmp_path: Path
) -> None:
    """The end of one file does not close a job of which another one was not all in when the list
    was lost."""
    rows = {name: made_rows(random.Random(4), 30, name) for name in ("first", "second")}
    for name, each in rows.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(each))
    read(settings, tmp_path / "first.json", "auction")
    assert read(settings, tmp_path / "second.json", "auction", 2) is None
    change(settings.data_dir, "DELETE FROM imports")
    change(settings.data_dir, "DELETE FROM tasks WHERE id = 1")
    look(settings.data_dir, repair=True)

    read(settings, tmp_path / "first.json", "auction")
    lpm = LocalPersistenceManager(settings.data_dir)
    assert lpm.receipt(lpm.jobs.named("auction")).problems != []
    lpm.close()

    read(settings, tmp_path / "second.json", "auction")
    assert_every_row_once(
        settings, "auction", [(tmp_path / f"{name}.json", rows[name]) for name in rows]
    )


def test_a_clock_that_was_set_back_settles_a_loss_all_the_same(
    settings: Settings, tmp_path: Path
) -> None:
    """Whether a file was read again since a loss is no matter of the clock."""
    rows = made_rows(random.Random(5), 30, "f")
    (tmp_path / "one.json").write_text(json.dumps(rows))
    read(settings, tmp_path / "one.json", None)
    change(settings.data_dir, "DELETE FROM tasks WHERE id = 3")
    look(settings.data_dir, repair=True)
    change(settings.data_dir, "UPDATE losses SET at = at + 3600")

    read(settings, tmp_path / "one.json", None)

    assert_every_row_once(settings, "one.json", [(tmp_path / "one.json", rows)])


BROKEN = {
    "csv.gz": ("url,n\n", "{url},{n}\n"),
    "txt.gz": ("", "{url}\n"),
    "jsonl.gz": ("", '{{"url": "{url}", "n": {n}}}\n'),
    "json.gz": ("[", '{{"url": "{url}", "n": {n}}}, '),
    "xlsx": ("", "<row><c t='str'><v>{url}</v></c></row>"),
}


@pytest.mark.parametrize("ending", BROKEN)
def test_what_was_read_before_a_break_is_committed(
    settings: Settings, tmp_path: Path, ending: str
) -> None:
    """The rows before the damage are in, in whatever format, the place is named, and the job says
    that it broke off."""
    # Given 4,000 rows, fewer than a commit has, of which the end is damaged
    file = tmp_path / f"broken.{ending}"
    begin, row = BROKEN[ending]
    urls = [f"http://a.example/{hashlib.md5(str(n).encode()).hexdigest()}" for n in range(4000)]
    text = begin + "".join(row.format(url=url, n=n) for n, url in enumerate(urls))
    if ending == "xlsx":
        crafted(file, row.format(url="url") + text + "<row></wrong>")
    else:
        file.write_bytes(gzip.compress(text.encode())[:-3000])

    # When it is imported
    with pytest.raises(InputError, match=r"line \d+.*(breaks off|only the rows before)") as broken:
        import_file(settings, file)

    # Then all rows up to the named place are there, and the job is not whole
    lpm = LocalPersistenceManager(settings.data_dir)
    [job] = lpm.jobs.all()
    there = [row["url"] for row in lpm.results.input_rows(job)]
    problems = lpm.receipt(job).problems
    lpm.close()
    assert there == urls[: len(there)]
    assert len(there) > 3000
    header = {"csv.gz": 1, "xlsx": 1}.get(ending, 0)
    assert broken.value.line == (1 if ending == "json.gz" else len(there) + header + 1)
    assert len(problems) == 1
    assert problems[0].startswith(f"its import was broken off after {len(there):,} rows")


def test_a_killed_import_of_one_line_is_completed(folder: Folder) -> None:
    """kill -9 after the first commit of a one-line array, the same command again: every row
    once."""
    rows = made_rows(random.Random(6), 12_000, "f")
    file = folder.path / "one.json"
    file.write_text(json.dumps(rows))

    assert (
        folder.crawler("bulk", "import", str(file), CRAWLER_FAILPOINT="imported:2").returncode == -9
    )
    broken = folder.crawler("job", "verify", "one.json")
    again = folder.crawler("bulk", "import", str(file))

    assert broken.returncode == 5
    assert "broken off after 10,000 rows" in broken.stdout
    assert again.returncode == 1  # there are rejected rows
    assert_every_row_once(folder.settings, "one.json", [(file, rows)])


def test_a_rejected_row_of_a_shared_line_is_named_with_its_item(folder: Folder) -> None:
    """Line and item, in the rejects file, in a dry run and in what `--strict` refuses."""
    file = folder.path / "one.json"
    file.write_text('[{"url": "http://a.example/1"}, {"url": "none"}, 5]')

    dry = folder.crawler("bulk", "import", str(file), "--dry-run")
    strict = folder.crawler("bulk", "import", str(file), "--strict")
    folder.crawler("bulk", "import", str(file))

    assert "line 1, item 2: rejected" in dry.stderr
    assert "line 1, item 3: rejected" in dry.stderr
    assert f"{file}, line 1, item 2: " in strict.stderr
    rejects = [
        json.loads(line)
        for line in (folder.path / "one.json.rejects.jsonl").read_text().splitlines()
    ]
    assert [(reject["line"], reject["item"]) for reject in rejects] == [(1, 2), (1, 3)]


def test_a_row_that_another_reading_lets_in_is_not_rejected_any_more(
    settings: Settings, tmp_path: Path
) -> None:
    """A row without a URL that a site's template gives one later is a task then, and counted
    once."""
    sites = tmp_path / "config" / "sites"
    sites.mkdir(parents=True)
    told = msgspec.structs.replace(settings, config_dir=sites.parent)
    file = tmp_path / "one.json"
    file.write_text('[{"url": "http://a.example/1"}, {"platform": "beacon", "parcel_id": "7"}]')
    assert import_file(told, file)[0].rejected == 1
    site = "hosts: [b.example]\nurl_template: http://b.example/{parcel_id}\n"
    (sites / "beacon.yaml").write_text(site)

    summary, job = import_file(told, file)

    assert (summary.accepted, summary.known, summary.rejected) == (1, 1, 0)
    lpm = LocalPersistenceManager(settings.data_dir)
    receipt = lpm.receipt(job)
    lpm.close()
    assert (receipt.rows, receipt.rejected, receipt.problems) == (2, 0, [])


@pytest.mark.parametrize("twins", ['"APN": "7", "apn": "8"', '"apn": "7", "Platform": "other"'])
def test_a_template_takes_no_column_that_is_there_twice(
    settings: Settings, tmp_path: Path, twins: str
) -> None:
    """Where two columns could give a row its URL, the row is rejected: the other's page would be
    lost."""
    sites = tmp_path / "config" / "sites"
    sites.mkdir(parents=True)
    (sites / "beacon.yaml").write_text("hosts: [b.example]\nurl_template: http://b.example/{apn}\n")
    told = msgspec.structs.replace(settings, config_dir=sites.parent)
    file = tmp_path / "one.jsonl"
    file.write_text(f'{{"platform": "beacon", "apn": "6"}}\n{{"platform": "beacon", {twins}}}\n')

    summary, _ = import_file(told, file)

    assert (summary.accepted, summary.rejected) == (1, 1)
