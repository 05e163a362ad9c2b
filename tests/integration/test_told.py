"""What operators are told names the true cause and a command that helps."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from crawler.cli.commands.status import gather
from crawler.config import Settings
from crawler.db import owners
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job, TaskCounts, Wait
from crawler.process import ProcessMark
from crawler.stack import Stack, write_stack
from crawler.waits import StallMonitor, WaitFinder, disk_problem
from tests.support.patient import crawl, look, of
from tests.support.stack import Folder, wait_for
from tests.support.tasks import new, open_job

NOBODY = "redis://127.0.0.1:1/0"
"""Where no Redis answers."""
PARENT = """import subprocess, sys
code = "import sys, pathlib, time; from crawler.db.owners import Owner; "
code += "owner = Owner(pathlib.Path(sys.argv[1]), 'worker', slots=1); print(flush=True)\\n"
code += "while True: owner.beat(); time.sleep(0.05)"
child = subprocess.Popen([sys.executable, "-c", code, sys.argv[1]], stdin=subprocess.DEVNULL)
child.wait()
"""


@contextlib.contextmanager
def stopped(*argv: str, ready: bool = False) -> Iterator[int]:
    """A process that was stopped with SIGSTOP, where it says that it is ready after that."""
    with subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True) as process:
        if ready:
            assert process.stdout
            process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        try:
            wait_for(ProcessMark.of(process.pid).is_stopped, 10, "the stop")
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def waits(lpm: LocalPersistenceManager, settings: Settings) -> list[Wait]:
    """What keeps all from going on."""
    return WaitFinder(settings, lpm).find(None, lpm.counts.totals(), 20.0)


def test_a_worker_whose_parent_was_stopped_is_woken_by_the_command(tmp_path: Path) -> None:
    """Its children live and get nothing to do: both are named, where both were stopped."""
    crawl(tmp_path, 5, 2)
    with contextlib.closing(LocalPersistenceManager(tmp_path)) as lpm:
        settings = Settings(data_dir=tmp_path, min_free=0, redis_url=NOBODY)
        with stopped(sys.executable, "-c", PARENT, str(lpm.owners), ready=True) as pid:
            found = {wait.kind: wait for wait in waits(lpm, settings)}

    assert (found["stopped"].command, found["stopped"].stops) == (f"kill -CONT {pid}", True)


@pytest.mark.parametrize("own_redis", [True, False])
def test_a_stopped_supervisor_is_not_promised_to_start_anything(
    tmp_path: Path, own_redis: bool
) -> None:
    """Neither workers nor Redis: what wakes it is told, and that REDIS_URL's is nobody's here."""
    crawl(tmp_path, 5, 2)
    with (
        stopped("sleep", "600") as pid,
        contextlib.closing(LocalPersistenceManager(tmp_path)) as lpm,
    ):
        mark = ProcessMark.of(pid)
        redis = mark if own_redis else None
        write_stack(tmp_path, Stack(supervisor=mark, redis=redis, redis_url=NOBODY))
        settings = Settings(data_dir=tmp_path, min_free=0)
        away, nobody = waits(lpm, settings)
        seen = of(look(tmp_path), "redis", "wrong") if own_redis else []

    assert (away.kind, nobody.kind) == ("redis", "stopped")
    assert nobody.command == f"kill -CONT {pid}"
    if own_redis:
        assert away.command == f"kill -CONT {pid}"
        assert len(seen) == 1
    else:
        assert "the one of REDIS_URL" in away.effect


def test_without_workers_an_unreachable_redis_and_paused_jobs_are_told_too(folder: Folder) -> None:
    """The command that is shown would fail, or stand still, because of them."""
    for name in ("one.txt", "two.txt"):
        folder.crawler("bulk", "import", str(folder.write(name, [f"http://a.example/{name}"])))
    folder.crawler("job", "pause", "two.txt")

    with contextlib.closing(folder.lpm()) as lpm:
        found = waits(lpm, Settings(data_dir=folder.data, min_free=0, redis_url=NOBODY))

    assert [wait.kind for wait in found] == ["redis", "worker", "paused"]
    assert found[-1].what == "two.txt is paused"


def test_the_disk_is_judged_by_the_limit_of_the_workers(tmp_path: Path) -> None:
    """A command in another shell may have another CRAWLER_MIN_FREE; that stops nobody."""
    settings = Settings(data_dir=tmp_path, min_free=10**18)
    assert disk_problem(tmp_path, settings)
    owner = owners.Owner(tmp_path / "run" / "owners", "worker", slots=1, min_free=0)
    assert disk_problem(tmp_path, settings) is None
    owner.close()


class Looked(WaitFinder):
    """Finds what a test wants to be found, and counts how often it was asked."""

    def __init__(self, found: Sequence[Wait]) -> None:
        self.found = list(found)
        self.asked = 0

    def find(self, job: Job | None, books: TaskCounts, still_s: float | None = None) -> list[Wait]:
        self.asked += 1
        return self.found

    def find_quickly(self, job: Job | None) -> list[Wait]:
        return []

    def describe(self, wait: Wait) -> str:
        return wait.what


def test_what_is_still_so_is_not_called_over_because_pages_come(tmp_path: Path) -> None:
    """Pages in flight end while Redis is away: only a look that finds it back ends the reason."""
    away = Wait(kind="redis", what="Redis does not answer")
    retry = Wait(kind="retry", what="waiting to try again", stops=False)
    waiting = Looked([away, retry])
    standstill = StallMonitor(waiting, None)
    done = 0

    def moving() -> str:
        nonlocal done
        done += 1
        return standstill.reason(TaskCounts(accepted=10**6, pending=10**6 - done, completed=done))

    assert wait_for(moving, 20, "the reason while pages come") == "Redis does not answer"
    before = waiting.asked
    wait_for(lambda: moving() and waiting.asked > before, 20, "another look")
    assert moving() == "Redis does not answer"
    ended = TaskCounts(accepted=10**6, completed=10**6)
    assert standstill.reason(ended) == ""
    waiting.found = []
    wait_for(lambda: not moving(), 20, "its end")


def test_status_says_which_job_will_miss_its_deadline(folder: Folder) -> None:
    """In text and as JSON, without a look at the job itself."""
    file = folder.write("pages.txt", [f"http://a.example/{n}" for n in range(300)])
    folder.crawler("bulk", "import", str(file), "--deadline", "60s", "--rate", "1/s")

    status = folder.crawler("status").stdout
    settings = Settings(data_dir=folder.data)
    about = gather(settings)["job_facts"]["pages.txt"]

    assert "LATE: pages.txt: " in status
    assert "will miss the deadline" in about["late"]


def test_long_names_of_jobs_stay_apart_in_status(folder: Folder) -> None:
    """They differ at the end: a day, a number. 80 columns are kept to."""
    folder.env["COLUMNS"] = "80"
    with folder.lpm() as lpm:
        for end in ("17", "18", "18-2"):
            open_job(lpm, f"municipality-of-springfield-2026-11-{end}")

    _, _, *rows = folder.crawler("status").stdout.splitlines()[:5]

    names = [row.split()[0] for row in rows]
    assert [name[-5:] for name in names] == ["11-17", "11-18", "-18-2"]
    assert all(name.startswith("municip") for name in names)
    assert all(len(row) < 80 for row in rows)


def test_hints_of_status_name_a_file_that_is_there(folder: Folder, redis_url: str) -> None:
    """No placeholder: the file of the job that has tasks at the domain, or a look at the limits."""
    file = folder.write("my pages.txt", [f"http://a.example/{n}" for n in range(3)])
    folder.crawler("bulk", "import", str(file))
    with contextlib.closing(folder.lpm()) as lpm:
        waits_ = WaitFinder(Settings(data_dir=folder.data, redis_url=redis_url), lpm)
        command, effect = waits_._continue_command(None, "a.example", "--rate 10/s", "goes faster")
        other, _ = waits_._continue_command(None, "b.example", "--rate 10/s", "goes faster")

    words = shlex.split(command)
    assert words[-3:] == [str(file.absolute()), "--rate", "10/s"]
    assert effect == "goes faster"
    assert other == "python -m crawler domains"


def test_rows_that_wait_for_the_page_of_another_are_told_as_that(
    tmp_path: Path, redis_url: str
) -> None:
    """They were never tried, and no time is theirs; the page in flight is named before them."""
    with contextlib.closing(LocalPersistenceManager(tmp_path)) as lpm:
        rows = [new("http://a.example/slow", parcel_id=name) for name in "abcd"]
        lpm.persist_tasks(rows, job=open_job(lpm))
        assert len(lpm.get_next_pending("owner", 9)) == 1
        owner = owners.Owner(lpm.owners, "worker", slots=1)
        first, second = waits(lpm, Settings(data_dir=tmp_path, min_free=0, redis_url=redis_url))
        owner.close()

    assert first.what.startswith("waiting for http://a.example/slow since ")
    assert second.what == "3 tasks wait for a page that is fetched for another row of the same URL"
    assert second.until is None
