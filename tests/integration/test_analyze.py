"""`analyze` as it is typed, on a real crawl."""

import hashlib
import json
import os
import pty
import shlex
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.site import Site
from tests.support.stack import Folder, wait_for


def crawl(folder: Folder, site: Site, job: str) -> None:
    """Collect five pages and an image, and fail at one page."""
    urls = [*(site.page(n) for n in range(5)), f"{site.url}/image", f"{site.url}/status/404"]
    done = folder.crawler(
        "run", str(folder.write("urls.txt", urls)), "--job", job, "--workers", "1"
    )
    assert done.returncode == 1, done.stderr


def test_a_crawl_is_analyzed_and_compared(folder: Folder, site: Site) -> None:
    """Scenario B: the folder of results says what was collected and what was not; two runs say what
    changed."""
    # Given two runs over the same pages
    crawl(folder, site, "one")
    crawl(folder, site, "two")
    folder.crawler("results", "export", "--output", "all.json")

    # When they are looked at in every way
    plain = folder.crawler("analyze", "./data/pending/")
    both = json.loads(folder.crawler("analyze", "data", "--json").stdout)
    one = json.loads(folder.crawler("analyze", "data", "--job", "one", "--json").stdout)
    changes = folder.crawler("analyze", "one", "two", "--html", "changes.html", "--json")
    export = json.loads(folder.crawler("analyze", "all.json", "--json").stdout)

    # Then all of them agree with the crawl
    assert plain.returncode == 0, plain.stderr
    assert "12 results; 85.7 % success (of all accepted tasks)" in plain.stdout
    assert "14 tasks accepted: 12 completed, 2 failed" in plain.stdout
    assert f"{site.url}/status/404" in plain.stdout
    assert f"{site.url}/image" in plain.stdout.partition("Records that lack what most have")[2]
    assert "\x1b" not in plain.stdout
    assert max(len(line) for line in plain.stdout.splitlines()) <= 80
    assert (both["results"], both["tasks"]["failed"], both["errors"][0]["reason"]) == (
        12,
        2,
        "http_404",
    )
    assert both["fetch_ms"]["count"] == both["page_bytes"]["count"] == 12
    assert (one["results"], one["job"], one["success_rate"]) == (6, "one", 6 / 7)
    title = next(field for field in one["fields"] if field["path"] == "title")
    assert (title["records"], title["lacking"][0]["url"]) == (5, f"{site.url}/image")
    assert (export["results"], export["tasks"], export["fetch_ms"]) == (12, None, None)
    facts = json.loads(changes.stdout)
    assert changes.returncode == 0
    assert (facts["both"], facts["same"], facts["only_a"], facts["only_b"]) == (6, 6, 0, 0)
    assert (facts["fields"], facts["verdicts"]) == ([], [])
    assert "the same in both <b>6</b>" in (folder.path / "changes.html").read_text()


STANDALONE = Path(__file__).parents[2] / "docs" / "STANDALONE.md"


def scenario_b() -> list[list[str]]:
    """The commands of Scenario B, block by block, with the docs' own ones for a machine without
    containers."""
    text = STANDALONE.read_text().partition("## Scenario B")[2].partition("## Scenario C")[0]
    blocks = [block.partition("```")[0].splitlines() for block in text.split("```bash\n")[1:]]
    compose = "docker-compose -f docker-compose.standalone.yml"
    found = []
    for block in blocks:
        lines = [line.partition("#")[0].strip() for line in block]
        lines = [line.replace(f"{compose} up -d", "python -m crawler up") for line in lines]
        found.append(
            [line.replace(f"{compose} down -v", "python -m crawler down") for line in lines if line]
        )
    return found


def contents(data: Path) -> dict[str, object]:
    """Everything in a store: each row of each table, and each file of pending/ and raw/ by its
    checksum."""
    with closing(sqlite3.connect(f"file:{data}/lpm.db?mode=ro", uri=True)) as db:
        found: dict[str, object] = {"lpm.db": list(db.iterdump())}
    for path in (*(data / "pending").iterdir(), *(data / "raw").iterdir()):
        found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def type_in(folder: Folder, lines: list[str]) -> str:
    """Type these lines one after the other, as the docs have them; returns what they print."""
    env = folder.env | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    said = ""
    for line in lines:
        with subprocess.Popen(
            shlex.split(line), cwd=folder.path, env=env, stdout=subprocess.PIPE, text=True
        ) as command:
            assert command.stdout
            for shown in command.stdout:
                said += shown
                if "--watch" in line and " 3/3 done" in shown:
                    command.send_signal(signal.SIGINT)
        assert command.returncode == 0, f"{line}: {said}"
    return said


def test_a_benchmark_touches_nothing_of_production(folder: Folder, site: Site) -> None:
    """Scenario B as docs/STANDALONE.md has it, beside a running stack: its store and its Redis stay
    as they are."""
    # Given production: a stack that is up, and its results
    with_a_stack, in_folders = scenario_b()
    pages = [site.page(n) for n in range(3)]
    folder.crawler("up", "--workers", "1")
    folder.crawler("bulk", "import", str(folder.write("production.txt", pages)))
    with closing(folder.lpm()) as lpm:
        wait_for(
            lambda: [job.status for job in lpm.jobs.all()] == ["done"], 120, "the end of its job"
        )
    before = contents(folder.data)

    # When benchmarks are made: in data folders beside it, and with a stack elsewhere on the machine
    elsewhere = Folder(folder.path / "elsewhere")
    elsewhere.path.mkdir()
    try:
        for each in (folder, elsewhere):
            each.write("test_sample.csv", ["url", *pages])
        compared = type_in(folder, in_folders)
        analyzed = type_in(elsewhere, with_a_stack)
    finally:
        elsewhere.stop()

    # Then they have their results, and production has what it had
    assert "3 pages in both, 3 of them the same" in compared
    assert [
        len(list((folder.path / "bench" / name / "pending").iterdir())) for name in ("old", "new")
    ] == [3, 3]
    assert "3 results; 100.0 % success" in analyzed
    assert contents(folder.data) == before
    assert folder.redis().get("scrape:production.txt:result_count") == b"3"
    assert folder.redis().keys("*test_sample*") == []
    assert not elsewhere.data.exists()


def test_on_a_terminal_nothing_is_wider_than_it(folder: Folder) -> None:
    """On a terminal of 80 columns long names are folded, and a page's own escapes do not reach
    it."""
    row = {
        "task_id": "1",
        "url": "http://a.example/" + "x" * 200,
        "data": {"name" * 30: "\x1b[2Jgone", "n": 1},
    }
    (folder.path / "x.jsonl").write_text(json.dumps(row) + "\n")
    ours, theirs = pty.openpty()
    done = subprocess.Popen(
        [sys.executable, "-m", "crawler", "analyze", "x.jsonl"],
        cwd=folder.path,
        env=folder.env | {"COLUMNS": "80", "LINES": "24", "TERM": "xterm-256color"},
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    screen = b""
    try:
        while piece := os.read(ours, 65536):
            screen += piece
    except OSError:
        pass  # how a terminal says that the other end is closed
    os.close(ours)

    assert done.wait(120) == 0
    text = screen.decode()
    assert "\\x1b[2Jgone" in text
    assert "\x1b[2J" not in text
    plain = text.replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert max(len(line) for line in plain.splitlines()) <= 80


def test_a_reader_that_leaves_is_no_failure(folder: Folder) -> None:
    """`analyze … | head -1` ends with 0 and says nothing about it."""
    row = {
        "task_id": "1",
        "url": "http://a.example/",
        "data": {f"field{n}": "x" * 80 for n in range(40)},
    }
    (folder.path / "x.jsonl").write_text(json.dumps(row) + "\n")
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "crawler", "analyze", "x.jsonl"]
    done = subprocess.run(
        command, cwd=folder.path, env=folder.env, stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)

    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("nothing",), "nothing: there is no such file or folder, and no store in"),
        (("empty",), "empty: there are no results in it"),
        (("x.jsonl", "--job", "j"), "--job picks a job of a data folder; x.jsonl is none"),
        (("x.jsonl", "nothing"), "nothing: there is no such file or folder"),
        (("x.jsonl", "--html", "missing/x.html"), "cannot be written"),
        (("x" * 300,), "it cannot be opened"),
        ((), "Missing argument 'PATH'"),
    ],
)
def test_unusable_input_is_code_2(folder: Folder, args: tuple[str, ...], reason: str) -> None:
    """One clear line and no report."""
    (folder.path / "empty").mkdir()
    (folder.path / "x.jsonl").write_text(
        '{"task_id": "1", "url": "http://a.example/", "data": {"a": 1}}\n'
    )

    done = folder.crawler("analyze", *args)

    assert done.returncode == 2
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not list(Path(folder.path).glob("**/*.html"))
