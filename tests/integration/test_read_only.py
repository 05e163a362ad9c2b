"""A store that cannot be written can still be read, by every command that changes nothing."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import click
import pytest

from crawler.cli.main import cli
from tests.support.disk import only_reading
from tests.support.listing_rows import Writer
from tests.support.stack import Folder
from tests.support.tasks import done

URL = "http://a.example/1"
READING = {
    "analyze": ["data"],
    "audit": [],
    "doctor": [],
    "job list": [],
    "job show": ["parcels.csv"],
    "job verify": ["parcels.csv"],
    "judge": [URL],
    "listings changes": ["--html", "a.html"],
    "listings duplicates": [],
    "listings export": ["--output", "listings.csv"],
    "listings history": ["imoti:1"],
    "listings list": [],
    "listings show": ["imoti:1"],
    "raw": [URL],
    "replay": [],
    "results bundle": ["--output", "a.crawlbundle.tar.zst"],
    "results export": ["--output", "a.csv", "--all-rows"],
    "results follow": ["--no-wait"],
    "results list": ["--limit", "5"],
    "results show": [URL],
    "shell": [URL, "--stored", "--code", "print(page.status)"],
    "sites schedules": [],
    "status": [],
    "sync rejected": [],
    "sync status": [],
    "tasks list": [],
    "why": [URL],
}
WRITING = {
    "bulk import", "crawl", "demo", "prune", "domains reset", "drill", "job accept", "job cancel",
    "job pause", "job resume", "listings confirm", "listings separate", "listings visit",
    "ondemand", "results archive", "results unbundle",
    "resume", "retry", "run", "scrape", "sites crawl", "sites new", "sync push", "sync retry", "up",
    "down", "worker", "serve token", "mcp",
}  # fmt: skip
ELSEWHERE = {"domains list", "completion", "map", "sites check", "sites list", "sites show"}
"""What asks Redis alone, or needs no store; and all of `gateway`, which has another one."""


@pytest.fixture
def store(folder: Folder) -> Iterator[Folder]:
    """A folder with a job of two pages, both collected, and nobody at work there."""
    file = folder.write("parcels.csv", ["url", URL, "http://a.example/2"])
    assert folder.crawler("bulk", "import", str(file)).returncode == 0
    with closing(folder.lpm()) as lpm:
        lpm.save_result(*(done(task) for task in lpm.get_next_pending("owner", 2)))
        lpm.jobs.finalise(lpm.now())
        Writer(lpm).add("imoti", "1")
    yield folder
    for path in (folder.data, *folder.data.rglob("*")):
        path.chmod(0o700)


def type_command(folder: Folder, before: list[str], *args: str) -> subprocess.CompletedProcess[str]:
    """Type a command behind what keeps it from writing."""
    return subprocess.run(
        [*before, sys.executable, "-m", "crawler", *args],
        cwd=folder.path,
        env=folder.env,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def content(data: Path) -> dict[str, tuple[int, int]]:
    """What is in a folder, and as of when."""
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in data.rglob("*")}


def test_every_command_is_known_to_read_or_to_write() -> None:
    """A new command is tried on a store that cannot be written, too, or is known to write."""
    found = set()
    with click.Context(cli) as context:
        for name in cli.list_commands(context):
            command = cli.get_command(context, name)
            parts = command.list_commands(context) if isinstance(command, click.Group) else [""]
            found |= {f"{name} {part}".strip() for part in parts}
    assert {name for name in found if not name.startswith("gateway")} == {
        *READING,
        *WRITING,
        *ELSEWHERE,
    }


def test_every_command_that_reads_works_on_a_store_that_cannot_be_written(store: Folder) -> None:
    """On a mount that is read-only, each gives what it gives elsewhere, and changes nothing."""
    before, prefix = content(store.data), only_reading(store.data, "mount")
    for name, args in READING.items():
        said = type_command(store, prefix, *name.split(), *args)
        # The doctor alone has to say that nothing can be collected here.
        assert said.returncode == (1 if name == "doctor" else 0), (name, said.stdout, said.stderr)
        if name == "doctor":
            wrong = [line for line in said.stdout.splitlines() if line.startswith("wrong")]
            assert len(wrong) == 1, said.stdout
            assert "cannot be written" in wrong[0]
        if name in ("results export", "results bundle"):
            assert "the store cannot be written: `why` will not show this output" in said.stderr
    assert content(store.data) == before


@pytest.mark.parametrize("state", ["closed", "killed", "copied", "in use"])
def test_what_was_committed_last_is_read(store: Folder, state: str) -> None:
    """Also what a killed or a living process has only written to the log, which nobody may write
    back here."""
    # Given a commit that is in the log, unless its process has ended in order
    writer = apsw.Connection(str(store.data / "lpm.db"))
    writer.execute("UPDATE jobs SET name = 'renamed'")
    if state == "closed":
        writer.close()
    data = store.data
    if state in ("killed", "copied"):  # the index of a log is not copied by everybody
        left_out = shutil.ignore_patterns("lpm.db-shm") if state == "copied" else None
        data = Path(shutil.copytree(store.data, store.path / "other", ignore=left_out))

    # When it is read where nothing can be written
    prefix = only_reading(data)
    said = {
        name: type_command(store, prefix, *name.split(), "--data-dir", str(data))
        for name in ("job verify renamed", "analyze renamed", "status")
    }

    # Then that commit is seen
    for name, each in said.items():
        assert each.returncode == 0, (name, each.stdout, each.stderr)
        assert name == "status" or "2" in each.stdout
    assert "renamed" in said["status"].stdout
    writer.close()


def test_a_command_that_writes_says_that_it_cannot(store: Folder) -> None:
    """What needs to write ends with 4 and the reason; so does reading a ledger that must be
    migrated first."""
    prefix = only_reading(store.data)
    for command in (
        ["run", "parcels.csv"],
        ["job", "pause", "parcels.csv"],
        ["retry", "--failed"],
        ["up"],
    ):
        said = type_command(store, prefix, *command)
        assert said.returncode in (2, 4), (command, said.stdout, said.stderr)
        assert "cannot be written" in said.stderr or "has ended already" in said.stderr, (
            command,
            said.stderr,
        )

    for path in (store.data, store.data / "lpm.db"):
        path.chmod(0o700)
    with closing(apsw.Connection(str(store.data / "lpm.db"))) as db:
        db.execute("PRAGMA user_version=5")
    said = type_command(store, only_reading(store.data), "status")
    assert said.returncode == 4
    assert "made by an older version and cannot be written" in said.stderr


def test_a_ledger_that_changes_under_a_reader_without_locks_is_told(store: Folder) -> None:
    """Where no lock can be had, a process that writes back its log meanwhile makes the reading
    fail, not lie."""
    read = """if 1:
        import pathlib, sys
        from crawler.lpm import LocalPersistenceManager
        lpm = LocalPersistenceManager(pathlib.Path("data"))
        print(lpm.counts.totals().completed, flush=True)
        sys.stdin.readline()
        lpm.close()"""
    reader = subprocess.Popen(
        [*only_reading(store.data), sys.executable, "-c", read],
        cwd=store.path,
        env=store.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert reader.stdout
    assert reader.stdout.readline() == "2\n"
    for path in (store.data, *store.data.rglob("*")):
        path.chmod(0o700)
    with closing(store.lpm()) as lpm:
        lpm.store.durable.execute("UPDATE jobs SET name = 'renamed'")
    _, said = reader.communicate("\n")
    assert reader.returncode == 1
    assert "was changed while it was read; type the command again" in said


def test_a_store_is_read_while_writers_come_and_go(store: Folder) -> None:
    """Each writer that opens a store nobody has open makes its log, and removes it again: a reader
    that may not write finds its way at any moment of that."""
    # Given a program that opens and closes the store until it is told to end
    write = """if 1:
        import pathlib, select, sys
        from crawler.db.connection import connect
        while not select.select([sys.stdin], [], [], 0)[0]:
            db = connect(pathlib.Path("data/lpm.db"))
            db.execute("UPDATE jobs SET name = name")
            db.close()
            print(1, flush=True)"""
    read = """if 1:
        import contextlib, pathlib, sys
        from crawler.db.connection import open_to_read
        from crawler.errors import StoreError
        for _ in range(int(sys.argv[1])):
            db = open_to_read(pathlib.Path("data/lpm.db"))
            assert db.value("SELECT count(*) FROM jobs") > 0
            with contextlib.suppress(StoreError):  # it was changed while it was read
                db.close()"""
    with subprocess.Popen(
        [sys.executable, "-c", write],
        cwd=store.path, env=store.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as writer:  # fmt: skip
        assert writer.stdin
        assert writer.stdout
        writer.stdout.readline()

        # When it is read all the while without the right to write
        said = subprocess.run(
            [*only_reading(store.data), sys.executable, "-c", read, "1500"],
            cwd=store.path, env=store.env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        writer.stdin.close()
        writes = len(writer.stdout.readlines())

    # Then every reading succeeds
    assert said.returncode == 0, said.stderr
    assert writes > 10
