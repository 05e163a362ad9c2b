"""`bulk import` through its door: once, twice, at once, killed in the middle, with and without
Redis."""

import gzip
import json
import re
import shlex
import signal
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import psutil
import pytest
import xlsxwriter

from tests.support.stack import Folder, assert_balanced, wait_for
from tests.support.tasks import commits


def csv_file(folder: Folder, count: int, name: str = "parcels.csv") -> Path:
    """A file of parcels."""
    path = folder.path / name
    with path.open("w") as out:
        out.write("url,priority,parcel_id\n")
        out.writelines(f"http://county.example/parcel/{n},{n % 9 + 1},{n}\n" for n in range(count))
    return path


def task_set(folder: Folder) -> list[tuple[str, str]]:
    """What identifies the tasks in the ledger."""
    lpm = folder.lpm()
    rows = lpm.store.db.all("SELECT url, parcel_id FROM tasks ORDER BY url, parcel_id")
    lpm.close()
    return [(url, parcel_id) for url, parcel_id in rows]


def test_the_last_line_is_the_documented_one(folder: Folder) -> None:
    """150 rows are 150 tasks, with no Redis running, and the last line says so exactly."""
    done = folder.crawler("bulk", "import", str(csv_file(folder, 150)), "--queue=urgent")

    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "Imported 150 tasks to queue 'urgent'"
    assert "wait in the ledger" in done.stderr
    assert folder.status()["queues"] == {"urgent": 150, "default": 0, "browser": 0}


def test_input_columns_and_priority_are_kept(folder: Folder) -> None:
    """Priority and parcel are the task's, and every column stays with it."""
    file = folder.path / "p.csv"
    file.write_text("URL ; Priority;parcel_id;Owner\nhttp://a.example/1;3;007;Ada\n")
    assert folder.crawler("bulk", "import", str(file)).returncode == 0

    lpm = folder.lpm()
    [row] = lpm.store.db.all(
        "SELECT priority, parcel_id, input, source, source_file, source_line FROM tasks"
    )
    lpm.close()
    assert row[:2] == (3, "007")
    assert json.loads(row[2])["Owner"] == "Ada"
    assert row[3:] == ("file", str(file), 2)


def test_a_dry_run_imports_nothing(folder: Folder) -> None:
    """`--dry-run` shows what would be, and leaves no store behind."""
    done = folder.crawler("bulk", "import", str(csv_file(folder, 20)), "--dry-run")

    assert done.returncode == 0
    assert "Would import 20 tasks to queue 'default'" in done.stdout
    assert "http://county.example/parcel/0" in done.stdout
    assert not folder.data.exists()


def test_bad_rows_are_set_aside_and_the_sum_is_right(folder: Folder) -> None:
    """Good rows go in, bad ones into the rejects file, the summary adds up, and the exit code is
    1."""
    file = folder.path / "mixed.txt"
    file.write_text(
        "http://a.example/1\nnonsense\nhttp://a.example/1\nhttp://user:geheim@a.example:0/\n"
    )

    done = folder.crawler("bulk", "import", str(file), "--json")

    facts = json.loads(done.stdout)
    assert done.returncode == 1
    assert (facts["rows"], facts["accepted"], facts["known"], facts["rejected"]) == (4, 1, 1, 2)
    rejects = [json.loads(line) for line in Path(facts["rejects_file"]).read_text().splitlines()]
    assert [reject["line"] for reject in rejects] == [2, 4]
    assert "geheim" not in json.dumps(rejects) + done.stderr


def test_sheets_that_are_not_read_are_told(folder: Folder) -> None:
    """`bulk import` and a dry run say in one line which sheets of a workbook they did not read."""
    with xlsxwriter.Workbook(folder.path / "two.xlsx") as book:
        for name in ("Parcels", "Late ones"):
            book.add_worksheet(name).write_column(0, 0, ["url", f"http://a.example/{name[0]}"])

    dry, done = (
        folder.crawler("bulk", "import", "two.xlsx", *options) for options in (["--dry-run"], [])
    )

    assert done.returncode == 0
    for said in (dry, done):
        assert "only the first sheet was read, not 'Late ones'" in said.stderr


def test_strict_imports_all_or_nothing(folder: Folder) -> None:
    """With `--strict` one bad row names its line and nothing is imported."""
    file = folder.path / "mixed.txt"
    file.write_text("http://a.example/1\nnonsense\n")

    done = folder.crawler("bulk", "import", str(file), "--strict")

    assert done.returncode == 2
    assert f"{file}, line 2" in done.stderr
    assert not folder.data.exists()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("missing.csv", None, "missing.csv"),
        ("empty.csv", b"", "empty"),
        ("header.csv", b"url,priority\n", "no rows"),
        ("other.csv", b"link,priority\nhttp://a.example/,1\n", "there is no column 'url'"),
        ("object.json", b'{"url": "http://a.example/"}', "array"),
        ("image.csv", b"\x89PNG\r\n\x1a\n" + bytes(100), "image.csv"),
        ("list.pdf", b"http://a.example/\n", "known are"),
        ("fake.csv.gz", b"url\nhttp://a.example/\n", "gz"),
    ],
)
def test_an_unusable_file_is_one_line_and_code_2(
    folder: Folder, name: str, content: bytes | None, reason: str
) -> None:
    """The line names the file and the reason, there is no traceback, and no store is made."""
    file = folder.path / name
    if content is not None:
        file.write_bytes(content)

    done = folder.crawler("bulk", "import", str(file))

    assert done.returncode == 2, done.stderr
    assert reason in done.stderr
    assert name in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not folder.data.exists()


def test_the_same_file_twice_is_the_same_set(folder: Folder) -> None:
    """While its job is open a file imported again adds nothing."""
    file = csv_file(folder, 500)
    first = folder.crawler("bulk", "import", str(file), "--json")
    again = folder.crawler("bulk", "import", str(file), "--json")

    assert json.loads(first.stdout)["accepted"] == 500
    facts = json.loads(again.stdout)
    assert (facts["accepted"], facts["known"], facts["job"]) == (0, 500, "parcels.csv")
    assert again.returncode == 0
    assert len(task_set(folder)) == 500
    assert_balanced(folder.status())


def test_two_imports_of_one_file_at_once_are_the_same_set(folder: Folder) -> None:
    """Two processes that import the same file at the same time make one job and one set of
    tasks."""
    file = csv_file(folder, 20_000)
    both = [folder.start("crawler", "bulk", "import", str(file)) for _ in range(2)]
    codes = [process.wait(120) for process in both]

    assert codes == [0, 0]
    facts = folder.status()
    assert facts["books"]["accepted"] == 20_000
    assert list(facts["jobs"]) == ["parcels.csv"]
    assert_balanced(facts)


def test_killed_in_the_middle_and_typed_again(folder: Folder) -> None:
    """kill -9 in the middle of 200,000 rows, the same command again: exactly 200,000."""
    # Given an import that dies after its tenth commit
    file = csv_file(folder, 200_000)
    dead = folder.crawler("bulk", "import", str(file), CRAWLER_FAILPOINT="imported:10")
    assert dead.returncode == -signal.SIGKILL
    assert folder.books().accepted == 50_000

    # When the same command is typed again
    done = folder.crawler("bulk", "import", str(file), "--json", limit_s=240)

    # Then all rows are there, once
    facts = json.loads(done.stdout)
    assert (facts["accepted"], facts["known"], facts["rejected"]) == (150_000, 50_000, 0)
    tasks = task_set(folder)
    assert len(tasks) == len(set(tasks)) == 200_000
    assert_balanced(folder.status())


def test_a_store_that_cannot_be_written_is_code_4(folder: Folder) -> None:
    """A damaged store is named, left alone, and the import says so with its own exit code."""
    folder.data.mkdir()
    (folder.data / "lpm.db").write_bytes(b"this is not a database" * 100)

    done = folder.crawler("bulk", "import", str(csv_file(folder, 5)))

    assert done.returncode == 4
    assert "lpm.db" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_import_into_a_full_disk_is_code_4(folder: Folder, tmp_path: Path) -> None:
    """Without room for the rows the command ends with 4, and what it had acknowledged is whole."""
    from tests.support.disk import Disk, can_mount

    if not can_mount(tmp_path):
        print("loop mounts are not allowed here: a file size limit stands in for a full disk")
        limited = ["bash", "-c", 'ulimit -f 4096; exec "$@"', "-"]
    else:
        limited = []
    disk = None if limited else Disk(tmp_path / "disk", size_mb=8)
    data = folder.data
    try:
        if disk:
            disk.mount()
            data = disk.path / "data"
        argv = [
            *limited,
            sys.executable,
            "-m",
            "crawler",
            "--data-dir",
            str(data),
            "bulk",
            "import",
        ]
        argv += [str(csv_file(folder, 100_000))]
        done = subprocess.run(
            argv, env=folder.env, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 4, done.stderr
        assert "Traceback" not in done.stderr
    finally:
        if disk:
            disk.discard()


def test_a_folder_without_permission_is_code_4(folder: Folder) -> None:
    """Where the store may not be made there is one line and code 4."""
    target = Path("/proc/nowhere")
    done = folder.crawler("--data-dir", str(target), "bulk", "import", str(csv_file(folder, 5)))
    assert done.returncode == 4
    assert "Traceback" not in done.stderr
    assert not target.exists()


def test_commands_wait_for_each_other_and_write_in_batches(folder: Folder) -> None:
    """Four imports that find the database locked wait until it is free; 2,000 rows are in, in a few
    commits each."""
    # Given a store that somebody else is writing to
    with closing(folder.lpm()) as lpm:
        ledger = lpm.store.durable
        before = commits(lpm.path)
        ledger.execute("BEGIN IMMEDIATE")

        # When four imports of 500 rows come at the same time, and have met the lock again and again
        files = [
            folder.write(f"{n}.txt", [f"http://w{n}.example/{k}" for k in range(500)])
            for n in range(4)
        ]
        imports = [folder.start("crawler", "bulk", "import", str(file)) for file in files]
        for each in imports:
            process = psutil.Process(each.pid)
            wait_for(
                partial(has_open, process, lpm.path), 50, "an import that has opened the database"
            )
            slept = process.num_ctx_switches().voluntary
            wait_for(partial(sleeps, process, slept + 10), 50, "an import that waits")
        assert [each.poll() for each in imports] == [None] * 4
        ledger.execute("ROLLBACK")

        # Then all of them end well, and every row is there
        assert [each.wait(120) for each in imports] == [0] * 4, "".join(map(folder.log, imports))
        assert lpm.counts.totals().accepted == 2000
        assert commits(lpm.path) - before <= 4 * 5


def has_open(process: psutil.Process, path: Path) -> bool:
    """Whether a process has a file open."""
    return str(path) in {file.path for file in process.open_files()}


def sleeps(process: psutil.Process, count: int) -> bool:
    """Whether a process has given up its processor so often by itself."""
    return bool(process.num_ctx_switches().voluntary >= count)


def piped(
    folder: Folder, content: bytes, *options: str, **env: str
) -> subprocess.CompletedProcess[bytes]:
    """`bulk import -` with this on its stdin."""
    argv = [sys.executable, "-m", "crawler", "bulk", "import", "-", *options]
    return subprocess.run(
        argv, cwd=folder.path, env=folder.env | env, input=content, capture_output=True, check=False
    )


@pytest.mark.parametrize(
    ("ending", "content"),
    [
        (".csv", b"parcel_id,url\n1,http://a.example/1\n2,http://a.example/2\n"),
        (".json", b'[{"url": "http://a.example/1"},\n {"url": "http://a.example/2"}]'),
        (".jsonl", b'{"url": "http://a.example/1"}\n{"url": "http://a.example/2"}\n'),
        (".txt", b"# two pages\nhttp://a.example/1\nhttp://a.example/2\n"),
        (".csv.gz", gzip.compress(b"url\nhttp://a.example/1\nhttp://a.example/2\n")),
    ],
    ids=["csv", "json", "jsonl", "txt", "gz"],
)
def test_stdin_is_read_by_its_content(folder: Folder, ending: str, content: bytes) -> None:
    """Each kind is told by its beginning; the same text again is the same job, and a hint names the
    kept file."""
    first = piped(folder, content)
    again = piped(folder, content)

    assert first.stdout.splitlines()[-1] == b"Imported 2 tasks to queue 'default'", first.stderr
    assert again.stdout.splitlines()[0] == b"2 rows: 0 new, 2 known, 0 rejected"
    [kept] = (folder.data / "input").iterdir()
    assert kept.name.startswith("stdin-")
    assert kept.name.endswith(ending)
    assert kept.stat().st_mode & 0o777 == 0o600
    assert kept.read_bytes() == content
    assert list(folder.status()["jobs"]) == [kept.name]


def test_an_import_from_stdin_that_was_killed_is_completed(folder: Folder) -> None:
    """By the same pipe or by the command that is proposed: the text is in the store."""
    content = b"url\n" + b"".join(b"http://a.example/%d\n" % n for n in range(12_000))

    killed = piped(folder, content, CRAWLER_FAILPOINT="imported:1")
    [job] = json.loads(folder.crawler("job", "list", "--json").stdout)
    command = re.search(r"python -m crawler (.*), or ", job["unaccounted"][0])
    assert command, job
    done = folder.crawler(*shlex.split(command[1]))

    assert killed.returncode == -signal.SIGKILL
    assert "12,000 rows: 7,000 new, 5,000 known, 0 rejected" in done.stdout, done.stderr
    assert json.loads(folder.crawler("job", "list", "--json").stdout)[0]["unaccounted"] == []


def test_stdin_with_nothing_in_it_or_for_a_dry_run_leaves_nothing(folder: Folder) -> None:
    """No store is made for either."""
    empty = piped(folder, b"")
    dry = piped(folder, b"url\nhttp://a.example/1\n", "--dry-run")

    assert (empty.returncode, dry.returncode) == (2, 0)
    assert b"there is nothing in it" in empty.stderr
    assert not folder.data.exists()


@pytest.mark.parametrize(
    ("content", "options"), [(b"a,b\n1,2\n", ()), (b"http://a.example/1\nnone\n", ("--strict",))]
)
def test_stdin_that_is_refused_is_not_kept(
    folder: Folder, content: bytes, options: tuple[str, ...]
) -> None:
    """What no job was made of is in no file of the store."""
    done = piped(folder, content, *options)

    assert done.returncode == 2
    assert list((folder.data / "input").iterdir()) == []
    assert not (folder.data / "lpm.db").exists()


def test_urls_may_be_in_a_column_of_another_name(folder: Folder) -> None:
    """Whatever else is called url; a name that is not there is refused with the nearest; hints have
    it, too."""
    content = b"url,Link,priority\nnone,http://a.example/1,2\nnone,http://a.example/2,3\n"
    lines = b'{"url": 1, "link": "http://a.example/3"}\n'

    wrong = piped(folder, content, "--url-column", "lnk")
    piped(folder, content, "--url-column", "link", CRAWLER_FAILPOINT="imported:1")
    [killed] = json.loads(folder.crawler("job", "list", "--json").stdout)
    done = [piped(folder, text, "--url-column", "link") for text in (content, lines)]
    plain = piped(folder, b"http://a.example/1\n", "--url-column", "link")

    assert wrong.returncode == plain.returncode == 2
    assert (
        b"there is no column 'lnk'; found: 'url', 'Link', 'priority'; the nearest is 'Link'"
        in wrong.stderr
    )
    assert b"a list of URLs has no column 'link'" in plain.stderr
    assert [each.returncode for each in done] == [0, 0], done
    assert [url for url, _ in task_set(folder)] == [f"http://a.example/{n}" for n in (1, 2, 3)]
    assert ".csv --url-column link, or " in killed["unaccounted"][0]


def test_a_dry_run_counts_what_an_import_would(folder: Folder) -> None:
    """A page that comes twice is one task, and a file of bad rows is not shown row by row."""
    bad = "".join(f"nonsense {n}\n" for n in range(30))
    file = folder.path / "few.txt"
    file.write_text(f"http://a.example/1\nhttp://a.example/1#top\nhttp://a.example/2\n{bad}")

    dry = folder.crawler("bulk", "import", "few.txt", "--dry-run")
    done = folder.crawler("bulk", "import", "few.txt")

    assert "Would import 2 tasks to queue 'default' (1 known, 30 rejected)" in dry.stdout
    assert dry.stderr.count("rejected: ") == 5
    assert "… and 25 more rejected rows" in dry.stderr
    assert "33 rows: 2 new, 1 known, 30 rejected" in done.stdout


def test_rejects_are_kept_in_the_store_where_the_folder_cannot_be_written(folder: Folder) -> None:
    """Here a name that is too long for one more ending; the good rows come in as ever."""
    file = folder.path / f"{'x' * 240}.txt"
    file.write_text("http://a.example/1\nnonsense\n")

    done = folder.crawler("bulk", "import", file.name)

    assert done.returncode == 1
    assert "2 rows: 1 new, 0 known, 1 rejected" in done.stdout, done.stderr
    [rejects] = (folder.data / "input").iterdir()
    assert f"Rejected rows are in {rejects}" in done.stdout
    assert json.loads(rejects.read_text())["line"] == 2
