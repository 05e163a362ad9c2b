"""A crawl that does not move says why, once, and says when that is over."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from crawler import times
from crawler.cli.commands.status import gather
from crawler.cli.progress import CrawlProgress
from crawler.config import Settings
from crawler.db import owners
from crawler.lpm import LocalPersistenceManager, low_on_disk
from crawler.models import Job, JobStatus, TaskCounts
from crawler.stack import read_stack
from crawler.waits import StallMonitor, WaitFinder
from tests.support.clock import Clock
from tests.support.disk import Disk, can_mount, filled
from tests.support.patient import change, crawl, empty_index
from tests.support.site import Site
from tests.support.stack import Folder, wait_for


def test_run_says_that_redis_does_not_answer(folder: Folder, site: Site) -> None:
    """With Redis stopped, `run` and `status` name it; when it answers again, `run` says so and
    finishes."""
    folder.crawler("up", "--workers", "1")
    server = read_stack(folder.data).redis
    assert server
    os.kill(server.pid, signal.SIGSTOP)
    try:
        file = folder.write("pages.txt", [site.page(n) for n in range(10)])
        run = folder.start("crawler", "run", str(file))
        wait_for(lambda: "warning: Redis does not answer" in folder.log(run), 60, "the reason")
        status = folder.crawler("status").stdout
    finally:
        os.kill(server.pid, signal.SIGCONT)

    assert run.wait(60) == 0
    assert folder.log(run).count("warning:") == 1
    assert "resolved" in folder.log(run)
    assert "STANDSTILL: Redis does not answer" in status
    assert "; the supervisor starts it again by itself" in status
    assert "crawler up" not in status + folder.log(run)
    assert f"STANDS STILL: redis, process {server.pid}" in status
    assert f"kill -9 {server.pid} ends it" in status


def test_run_says_what_a_domain_waits_for(folder: Folder, site: Site) -> None:
    """A Retry-After that keeps all tasks waiting is shown with its domain."""
    folder.env["CRAWLER_RATE"] = "20/s"
    pages = [f"{site.url}/retry-after/12?times=1", *(site.page(n) for n in range(30))]
    run = folder.start("crawler", "run", str(folder.write("pages.txt", pages)), "--workers", "1")

    wait_for(lambda: "said Retry-After" in folder.log(run), 60, "the reason")
    status = folder.crawler("status").stdout

    assert run.wait(60) == 0
    assert "STANDSTILL: 127.0.0.1: its server said Retry-After" in status
    assert "resolved" in folder.log(run)


def test_run_says_that_tasks_wait_to_be_tried_again(folder: Folder, site: Site) -> None:
    """Where all that is left waits for its next attempt, the time of the first is shown."""
    file = folder.write("pages.txt", [f"{site.url}/retry-after/8?times=1"])
    run = folder.start("crawler", "run", str(file), "--workers", "1")

    wait_for(lambda: "1 task waits for the next attempt" in folder.log(run), 60, "the reason")

    assert run.wait(60) == 0


@pytest.mark.parametrize("index", ["tasks_due", "tasks_waiting"])
def test_open_tasks_that_no_worker_finds_are_told(tmp_path: Path, index: str) -> None:
    """Where an index lacks its entries, `run`, `resume` and `status` say so, and how to mend it."""
    crawl(tmp_path, 10, 0)
    if index == "tasks_waiting":
        change(tmp_path, "UPDATE tasks SET not_before = 5")
    empty_index(tmp_path, index)
    lpm = LocalPersistenceManager(tmp_path)
    owner = owners.Owner(lpm.owners, "worker", slots=1)
    look = WaitFinder(Settings(data_dir=tmp_path, min_free=0), lpm)

    [wait, *_] = look.find(None, lpm.counts.progress(None), 20.0)
    [at_once, *_] = look.find(None, lpm.counts.progress(None))
    said = look.describe(wait)
    owner.close()
    lpm.close()

    assert said.startswith(f"the index {index} of lpm.db has 0 entries for 10 tasks")
    assert said.endswith("python -m crawler doctor --repair")
    assert at_once == wait


def test_a_receipt_counts_rows_and_not_only_an_index(folder: Folder) -> None:
    """An index that hides open tasks makes neither `resume` nor `job verify` say that all is
    done."""
    crawl(folder.data, 10, 0)
    empty_index(folder.data, "tasks_by_job")

    resumed, verified = folder.crawler("resume"), folder.crawler("job", "verify", "job")

    assert (resumed.returncode, verified.returncode) == (5, 5), (resumed, verified)
    assert "the index tasks_by_job of lpm.db has 0 entries for 10 tasks" in resumed.stdout
    assert "doctor --repair" in verified.stdout


@pytest.mark.parametrize(
    "command", [("status",), ("resume",), ("job", "verify", "job"), ("job", "list")]
)
def test_a_state_that_nobody_knows_is_damage(folder: Folder, command: tuple[str, ...]) -> None:
    """A task that is neither open nor done is not left out of a count without a word."""
    crawl(folder.data, 10, 10)
    change(folder.data, "UPDATE tasks SET status = 'completee' WHERE id = 3")

    said = folder.crawler(*command)

    assert said.returncode == 4
    assert "1 tasks are in a state that this program does not know" in said.stderr
    assert "python -m crawler doctor --repair" in said.stderr


def test_a_failing_restart_is_shown_while_it_lasts(folder: Folder, site: Site) -> None:
    """A supervisor that cannot start Redis again says so in `status`, and no longer when it can."""
    folder.crawler("up", "--workers", "1")
    server = read_stack(folder.data).redis
    assert server
    conf = folder.data / "redis" / "redis.conf"
    conf.unlink()
    conf.mkdir()
    os.kill(server.pid, signal.SIGKILL)
    folder.crawler("bulk", "import", str(folder.write("pages.txt", [site.page(1)])))

    wait_for(
        lambda: "a restart failed" in read_stack(folder.data).trouble, 60, "the trouble to be noted"
    )
    shown = folder.crawler("status").stdout
    conf.rmdir()

    assert "STANDSTILL: a restart failed and is tried again" in shown
    wait_for(lambda: not read_stack(folder.data).trouble, 60, "the restart")
    folder.wait_until_done(1, 60)


def test_a_redis_that_hangs_is_killed_and_started_again(folder: Folder, site: Site) -> None:
    """One that was stopped keeps nobody waiting for ever: after three times CRAWLER_STALL_S there
    is a new one."""
    folder.env["CRAWLER_STALL_S"] = "4"
    folder.crawler("up", "--workers", "1")
    server = read_stack(folder.data).redis
    assert server
    os.kill(server.pid, signal.SIGSTOP)

    wait_for(lambda: read_stack(folder.data).redis not in (None, server), 90, "another Redis")

    assert server.find() is None
    folder.crawler("bulk", "import", str(folder.write("pages.txt", [site.page(1)])))
    folder.wait_until_done(1, 60)


def test_what_processes_note_of_themselves_is_the_reason(tmp_path: Path) -> None:
    """The trouble of any living owner, else what can be seen from outside; nothing where all
    moves."""
    lpm = LocalPersistenceManager(tmp_path)
    look = WaitFinder(Settings(data_dir=tmp_path, min_free=0), lpm)
    standstill = StallMonitor(look, None)
    books = TaskCounts(accepted=10, pending=10)
    assert standstill.reason(books) == ""
    owner = owners.Owner(lpm.owners, "worker", slots=1)
    owner.trouble("no file can be opened")
    assert standstill.reason(books) == "no file can be opened"
    assert [wait.what for wait in look.find(None, books)][:1] == ["no file can be opened"]
    owner.close()
    assert standstill.reason(books) == ""
    assert "no worker runs" in look.find(None, books, 5.0)[0].what
    lpm.close()


def test_too_few_files_are_as_bad_as_too_few_bytes(tmp_path: Path) -> None:
    """Free inodes count where the file system has a limit on them."""
    limited = bool(os.statvfs(tmp_path).f_files)
    assert low_on_disk(tmp_path, 1) is None
    assert ("more files fit" in (low_on_disk(tmp_path, 1, min_files=10**15) or "")) == limited
    assert low_on_disk(tmp_path, 0, min_files=10**15) is None


def test_a_reason_is_said_when_it_begins_changes_and_ends(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Each once, however its figures change meanwhile."""
    reasons = [
        "",
        "only 90 MB are free",
        "only 85 MB are free",
        "Redis does not answer",
        "Redis does not answer",
        "",
        "",
    ]
    with CrawlProgress() as progress:
        job = progress.add("all jobs", None)
        for reason in reasons:
            job.update(TaskCounts(accepted=2, pending=2), reason)
            progress.show()
    said = [
        line
        for line in capfd.readouterr().err.splitlines()
        if "warning" in line or "resolved" in line
    ]
    assert said == [
        "all jobs: warning: only 90 MB are free",
        "all jobs: warning: Redis does not answer",
        "all jobs: resolved: Redis does not answer",
    ]


@contextlib.contextmanager
def stopped_worker(lpm: LocalPersistenceManager) -> Iterator[int]:
    """A process that is known as a worker and was stopped with SIGSTOP some seconds ago."""
    code = "import sys, pathlib; from crawler.db.owners import Owner; "
    code += (
        "owner = Owner(pathlib.Path(sys.argv[1]), 'worker', slots=1); print(flush=True); input()"
    )
    argv = [sys.executable, "-c", code, str(lpm.owners)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        try:
            wait_for(
                lambda: owners.living(lpm.owners)[0].still_s(time.monotonic()) > 3,
                10,
                "its beat to be late",
            )
            yield process.pid
        finally:
            process.kill()


def in_flight(tmp_path: Path, count: int, completed: int) -> LocalPersistenceManager:
    """A store with so many tasks in flight."""
    crawl(tmp_path, count + completed, completed)
    lpm = LocalPersistenceManager(tmp_path)
    lpm.get_next_pending("owner", count)
    return lpm


def first_line(settings: Settings, lpm: LocalPersistenceManager) -> str:
    """The weightiest reason after 20 s in which nothing ended."""
    look = WaitFinder(settings, lpm)
    return look.describe(look.find(None, lpm.counts.progress(None), 20.0)[0])


def test_stopped_workers_are_not_taken_for_a_silent_server(tmp_path: Path, redis_url: str) -> None:
    """Where the workers are stopped, they are the reason, long before CRAWLER_STALL_S is over."""
    lpm = in_flight(tmp_path, 1, 3)
    with stopped_worker(lpm) as pid:
        settings = Settings(data_dir=tmp_path, min_free=0, redis_url=redis_url, stall_s=3600)
        said = first_line(settings, lpm)
        status = gather(settings, sizes=False)
    lpm.close()

    assert said == f"process {pid} stands still; kill -CONT {pid} wakes it, kill -9 {pid} ends it"
    assert {"what": "a worker's child", "pid": pid} in status["pids"]["still"]


@pytest.mark.parametrize(
    ("count", "completed", "reason"),
    [
        (1, 398, "waiting for http://a.example/398 since {since}"),
        (2, 398, "waiting for http://a.example/398 since {since} (and 1 other page)"),
        (5, 398, "waiting for a.example: 5 pages in flight, the first since {since}"),
        (5, 0, "no page of a.example has come yet: 5 pages in flight, the first since {since}"),
    ],
)
def test_pages_that_do_not_come_are_named(
    tmp_path: Path, redis_url: str, count: int, completed: int, reason: str
) -> None:
    """Few pages in flight: the URL of the oldest, and since when; a server that has answered is not
    called silent."""
    lpm = in_flight(tmp_path, count, completed)
    owner = owners.Owner(lpm.owners, "worker", slots=1)
    settings = Settings(data_dir=tmp_path, min_free=0, redis_url=redis_url, timezone="Europe/Sofia")
    said = first_line(settings, lpm)
    [(since,)] = lpm.store.db.all("SELECT min(leased_at) FROM tasks WHERE status = 'processing'")
    owner.close()
    lpm.close()

    assert said.startswith(
        reason.format(since=times.clock(since, times.zone("Europe/Sofia"))) + " until "
    )
    assert said.endswith("it is given up then, at the latest")


def test_status_says_that_nothing_works_on_open_tasks(folder: Folder) -> None:
    """With open tasks and no worker `status` and `status --watch` say so in one line, with the
    command that helps."""
    crawl(folder.data, 10, 9)
    line = (
        "STANDSTILL: nothing works on 1 open task: no worker runs; python -m crawler resume goes on"
    )

    assert line in folder.crawler("status").stdout
    watch = folder.start("crawler", "status", "--watch")
    wait_for(lambda: line in folder.log(watch), 60, "the same line")

    folder.crawler("job", "pause", "job")
    paused = folder.crawler("status").stdout
    assert "STANDSTILL: all that is open is paused: 1 task (python -m crawler job list)" in paused


def test_where_nothing_can_be_fetched_there_is_no_forecast(folder: Folder, site: Site) -> None:
    """With less room than CRAWLER_MIN_FREE, `bulk import` and `run` name that setting, and promise
    no time."""
    folder.env["CRAWLER_MIN_FREE"] = str(min(2 * shutil.disk_usage(folder.path).free, 10**12 - 1))
    file = folder.write("pages.txt", [site.page(1)])

    told = folder.crawler("bulk", "import", str(file), "--deadline", "1h").stderr
    run = folder.start("crawler", "run", str(file), "--deadline", "1h", "--workers", "1")
    wait_for(lambda: "0/1 done, only " in folder.log(run), 60, "the reason in the line")
    status = folder.crawler("status").stdout
    run.terminate()
    assert run.wait(120) == 143

    for said in (told, folder.log(run)):
        assert "no forecast: only " in said
        assert "free some room, or lower CRAWLER_MIN_FREE" in said
        assert "to spare" not in said
    assert "lower CRAWLER_MIN_FREE" in status


def test_up_on_a_full_disk_says_so(tmp_path: Path) -> None:
    """Where the log of the supervisor cannot be written, the free space tells why nothing
    starts."""
    if not can_mount(tmp_path):
        print(
            "loop mounts are not allowed here: "
            "tests/unit/test_process.py has what can be tested without"
        )
        return
    disk = Disk(tmp_path / "small", size_mb=64)
    disk.mount()
    folder = Folder(disk.path)
    try:
        crawl(folder.data, 10, 9)
        with contextlib.closing(folder.lpm()) as lpm:  # so that the store itself needs no more room
            assert lpm.counts.totals().open == 1
            with filled(disk.path):
                done = folder.crawler("up")
                status = folder.crawler("status", CRAWLER_MIN_FREE="0").stdout
    finally:
        folder.stop()
        disk.discard()

    assert done.returncode == 3
    assert len(done.stderr.splitlines()) <= 2, done.stderr
    assert f"the disk of {folder.data}" in done.stderr
    assert "is full; free some room" in done.stderr
    assert "is full; free some room" in status


class Looks:
    """Looks at a job's progress, a second apart."""

    def __init__(self, deadline_in_s: float | None = None) -> None:
        self._clock = Clock(0.0)
        deadline = None if deadline_in_s is None else time.time() + deadline_in_s
        job = Job(id=1, name="job", status=JobStatus.OPEN, queue="default", source_file=None,
                  created_at=0, completed_at=None, deadline=deadline)  # fmt: skip
        self._progress = CrawlProgress(every_s=0.0, clock=self._clock)
        self._job = self._progress.add(job.name, job)

    def look(self, done: int, reason: str = "") -> None:
        """Show so many of 50,000 done."""
        books = TaskCounts(accepted=50_000, pending=50_000 - done, completed=done)
        self._job.update(books, reason)
        self._progress.show()
        self._clock.now += 1


def test_the_line_shows_the_reason_and_no_invented_progress(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """While nothing comes each line says why, with neither rate nor time left; with no reason known
    the rate is 0."""
    looks = Looks()
    for second in range(11):
        looks.look(100 * second)
    for _ in range(10):
        looks.look(1000, "only 31 MB are free in data; nothing more is fetched until 500 MB are")
    for second in range(11, 21):
        looks.look(100 * second)
    for _ in range(10):
        looks.look(2000)

    lines = [line for line in capfd.readouterr().err.splitlines() if "done" in line]
    assert lines[10] == "job: 1,000/50,000 done, 100/s, about 8 min left"
    assert set(lines[13:21]) == {"job: 1,000/50,000 done, only 31 MB are free in data"}
    assert lines[30] == "job: 2,000/50,000 done, 100/s, about 8 min left"
    assert set(lines[37:]) == {"job: 2,000/50,000 done, 0/s"}


def test_no_deadline_is_called_missed_before_anything_is_measured(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Neither right after the start nor after a standstill, when the first pages are slow to come;
    later it is."""
    looks = Looks(deadline_in_s=600)
    looks.look(0)
    for second in range(20):
        looks.look(1 + 1000 * (second // 2))
    for _ in range(60):
        looks.look(10_000, "Redis does not answer")
    looks.look(10_001)
    looks.look(10_002)
    too_soon = capfd.readouterr().err
    for second in range(30):
        looks.look(10_003 + second)

    assert "miss the deadline" not in too_soon
    assert "at 1.0/s" in capfd.readouterr().err
