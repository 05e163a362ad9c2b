"""The inbox: commands on another kernel, files dropped by hand, and kills in between."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from crawler.db import guard
from crawler.models import JobStatus
from tests.support.site import Site
from tests.support.stack import Folder, wait_for
from tests.support.tasks import done

PROJECT = str(Path(__file__).parents[2])


def other_kernel(folder: Folder, **env: str) -> subprocess.Popen[str]:
    """A stack of another kernel in the folder, alive."""
    process = folder.start(
        "tests.support.other_kernel", str(folder.data), PYTHONPATH=PROJECT, **env
    )
    wait_for(
        lambda: guard.is_on_other_kernel(folder.data) or process.poll() is not None,
        20,
        "the other kernel",
    )
    return process


def end(process: subprocess.Popen[str]) -> None:
    """Stop it in order."""
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0


def test_import_goes_through_the_inbox_of_another_kernel(folder: Folder) -> None:
    """It looks the same as a direct one, the database is opened by the other side only, and nothing
    is left lying."""
    # Given the same files here and in the folder of another kernel
    direct = Folder(folder.path / "direct")
    direct.path.mkdir()
    for place in (direct, folder):
        (place.path / "good.csv").write_text(
            "url,priority\n" + "".join(f"http://a.example/{n},1\n" for n in range(30))
        )
        (place.path / "mixed.txt").write_text("http://a.example/x\nnot a url\n")
        (place.path / "bad.csv").write_text("name\nx\n")
    commands = [
        ("bulk", "import", "good.csv", "--queue", "urgent"),
        ("bulk", "import", "mixed.txt", "--job", "mine"),
        ("bulk", "import", "mixed.txt", "--strict"),
        ("bulk", "import", "bad.csv"),
        ("bulk", "import", "missing.csv"),
    ]
    other = other_kernel(folder)

    # When they are imported, then the outcomes are the same
    for command in commands:
        expected, seen = direct.crawler(*command), folder.crawler(*command)
        assert (seen.returncode, seen.stdout) == (
            expected.returncode,
            expected.stdout.replace(str(direct.path), str(folder.path)),
        ), seen.stderr
        if expected.returncode == 2:
            assert seen.stderr.splitlines()[-1] == expected.stderr.splitlines()[-1]
    assert (folder.path / "mixed.txt.rejects.jsonl").read_text() == (
        direct.path / "mixed.txt.rejects.jsonl"
    ).read_text()

    # And every other command keeps its hands off the database
    for command in (
        ("status",),
        ("run", "good.csv"),
        ("up",),
        ("doctor",),
        ("results", "export", "-o", "x.json"),
    ):
        refused = folder.crawler(*command)
        assert (refused.returncode, "another machine" in refused.stderr) == (4, True), (
            command,
            refused.stderr,
        )

    # And afterwards the books are the same
    end(other)
    assert folder.books() == direct.books()
    left = [path for path in (folder.data / "inbox").rglob("*") if path.is_file()]
    assert left == []


def fall_silent(folder: Folder, killed: subprocess.Popen[str]) -> None:
    """The other kernel is dead, and its last sign of life is old by now."""
    assert killed.wait(120) == -signal.SIGKILL
    long_ago = time.time() - 2 * guard.KERNEL_ALIVE_S
    os.utime(folder.data / "run" / "kernel", (long_ago, long_ago))


@pytest.mark.parametrize("step", ["imported", "taken", "receipted"])
def test_killed_taker_imports_once(folder: Folder, step: str) -> None:
    """A kill at any step, with the job's end in between, and another taker: one job, every task
    once.

    The command that waited says that the file waits, and exits with 3.
    """
    folder.write("pages.txt", ["http://a.example/1", "http://a.example/2"])
    killed = other_kernel(folder, CRAWLER_FAILPOINT=f"{step}:1")
    command = folder.start("crawler", "bulk", "import", "pages.txt")
    fall_silent(folder, killed)
    assert command.wait(120) == 3
    assert "the stack has gone; the file waits in" in folder.log(command)

    # When the tasks are done before another one takes over
    lpm = folder.lpm()
    for task in lpm.get_next_pending("me", 10):
        lpm.save_result(done(task))
    lpm.jobs.finalise(lpm.now())
    lpm.close()
    again = other_kernel(folder)
    wait_for(
        lambda: list((folder.data / "inbox" / "done").glob("*/pages.txt.receipt.json")),
        20,
        "the receipt",
    )
    end(again)

    # Then it was the same job
    lpm = folder.lpm()
    lpm.jobs.finalise(lpm.now())
    jobs, books = lpm.jobs.all(), lpm.counts.totals()
    lpm.close()
    assert [(job.name, job.status) for job in jobs] == [("pages.txt", JobStatus.DONE)]
    assert (books.accepted, books.completed) == (2, 2)


def test_stack_takes_dropped_files(folder: Folder, site: Site) -> None:
    """What is put into the inbox of a running stack is collected; when it goes down, no kernel has
    the folder."""
    assert folder.crawler("up", "--workers", "1").returncode == 0

    folder.write("pages.txt", [site.page(n) for n in range(5)]).rename(
        folder.data / "inbox" / "pages.txt"
    )

    assert folder.wait_until_done(5, 30).completed == 5
    assert folder.crawler("down").returncode == 0
    assert (folder.data / "run" / "kernel").read_text() == ""
