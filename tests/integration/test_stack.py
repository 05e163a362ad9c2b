"""The stack: up, down, run, and what is left behind (nothing)."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from crawler.config import Settings
from crawler.orchestrator import Orchestrator
from crawler.process import ProcessMark
from crawler.stack import Stack, read_stack, write_stack
from tests.support.pages import Pages
from tests.support.site import Site
from tests.support.stack import Folder, assert_balanced, left_behind, wait_for


def test_up_status_down(folder: Folder, site: Site) -> None:
    """`up` starts everything once, work imported then is done, `down` leaves no process and no
    record."""
    # Given a stack
    first = folder.crawler("up", "--workers", "2")
    again = folder.crawler("up")
    assert (first.returncode, again.returncode) == (0, 0), first.stderr
    assert "already" in again.stdout

    # When work comes in
    file = folder.write("pages.txt", [site.page(n) for n in range(50)])
    assert folder.crawler("bulk", "import", str(file)).returncode == 0
    folder.wait_until_done(50, 60)
    facts = folder.status()

    # Then it is done, and the processes are known
    assert facts["books"]["completed"] == 50
    assert_balanced(facts)
    assert facts["redis"]["up"]
    assert len(facts["pids"]["workers"][0]["children"]) == 2
    assert all(psutil.pid_exists(facts["pids"][name]) for name in ("supervisor", "redis"))
    done = folder.crawler("results", "list")
    assert done.stdout.strip() == f"50 results in {folder.data}/pending/"

    # And afterwards nothing runs
    assert "down" in folder.crawler("down").stdout
    assert left_behind(folder) == []
    assert not (folder.data / "run" / "stack.json").exists()
    assert "No stack was up" in folder.crawler("down").stdout


def test_results_are_in_pending_while_others_are_collected(folder: Folder, pages: Pages) -> None:
    """Each result is a whole file as soon as its page is done: the other pages answer only once
    that was seen."""
    # Given a server that holds back half of its pages
    urls, seen = pages.parcels(6), threading.Event()
    pages.hold(3, until=seen)

    # When they are collected
    run = folder.start("crawler", "run", str(folder.write("pages.txt", urls)), "--workers", "1")
    try:
        wait_for(lambda: len(in_pending(folder)) == 3, 120, "the files of the first half")
        first, running, books = in_pending(folder), run.poll() is None, folder.books()
    finally:
        seen.set()

    # Then the files of the first half were there when none of the others could be
    assert sorted(first) == urls[:3]
    assert (running, books.completed, books.open) == (True, 3, 3)
    assert run.wait(120) == 0
    assert sorted(in_pending(folder)) == urls


def in_pending(folder: Folder) -> list[str]:
    """The URLs of the results in pending/."""
    return [
        json.loads(path.read_bytes())["url"] for path in (folder.data / "pending").glob("*.json")
    ]


def test_workers_work_at_the_same_time(folder: Folder, pages: Pages) -> None:
    """Three worker processes with one page each: the server answers none of the pages before it was
    asked for all."""
    # Given a server that does not answer yet
    urls, answering = pages.parcels(3), threading.Event()
    pages.hold(0, until=answering)

    # When three workers with room for one page each have three pages to collect
    folder.crawler("up", "--workers", "3", CRAWLER_PAGES="1")
    assert folder.crawler("bulk", "import", str(folder.write("pages.txt", urls))).returncode == 0
    try:
        wait_for(lambda: len(pages.paths()) == 3, 120, "three requests at the same time")
        ports = {asked.port for asked in pages.asked if asked.path != "/robots.txt"}
        askers = {pid for pid in folder.children() if ports & ports_of(pid)}
    finally:
        answering.set()

    # Then each asked for one of them
    assert len(askers) == 3
    assert folder.wait_until_done(3, 120).completed == 3


def ports_of(pid: int) -> set[int]:
    """The local ports of a process's connections."""
    return {each.laddr.port for each in psutil.Process(pid).net_connections("tcp") if each.laddr}


def test_run_from_file_to_summary(folder: Folder, site: Site) -> None:
    """`run` imports, crawls, retries, says what failed and why, exits with 1, and leaves nothing
    running."""
    good = [site.page(n) for n in range(40)] + [f"{site.url}/flaky/1/once"]
    file = folder.write("pages.txt", [*good, f"{site.url}/status/404", f"{site.url}/status/500"])

    done = folder.crawler("run", str(file), "--workers", "2")

    assert done.returncode == 1, done.stderr
    assert "41 of 43 pages collected" in done.stdout
    assert "1 failed: http_404" in done.stdout
    assert "1 failed: http_500" in done.stdout
    assert "43/43 done" in done.stderr
    assert left_behind(folder) == []
    hits = site.hits()
    assert (hits["/status/404"], hits["/status/500"], hits["/flaky/1/once"]) == (1, 3, 2)
    assert site.peak() <= 8


def test_run_interrupted_and_typed_again(folder: Folder, pages: Pages) -> None:
    """Ctrl-C in the middle ends it with 130, whatever hangs; the same command goes on where it
    was."""
    # Given a run in the middle, with pages that do not answer
    urls, answering = pages.parcels(300), threading.Event()
    pages.hold(60, until=answering)
    file = folder.write("pages.txt", urls)
    run = folder.start("crawler", "run", str(file), "--workers", "2")
    wait_for(
        lambda: (folder.data / "lpm.db").exists() and folder.books().completed > 20,
        60,
        "20 pages",
    )

    # When it is interrupted
    run.send_signal(signal.SIGINT)
    assert run.wait(120) == 130
    books = folder.books()
    assert (books.processing, books.failed) == (0, 0)
    assert left_behind(folder) == []

    # Then it goes on where it was
    answering.set()
    done = folder.crawler("run", str(file), "--workers", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["books"]["completed"] == 300
    assert sorted(result["url"] for result in folder.results()) == sorted(urls)
    assert len(pages.paths()) <= 300 + 16


def test_a_stack_that_was_joined_goes_on_after_ctrl_c(folder: Folder, pages: Pages) -> None:
    """The command ends with 130, and says who works on what is left."""
    urls, answering = pages.parcels(20), threading.Event()
    pages.hold(5, until=answering)
    assert folder.crawler("up", "--workers", "1").returncode == 0
    run = folder.start("crawler", "run", str(folder.write("pages.txt", urls)))
    wait_for(lambda: folder.books().completed >= 5, 60, "some pages")

    run.send_signal(signal.SIGINT)
    ended = run.wait(120)
    answering.set()

    assert ended == 130
    assert "are left; the stack that is up goes on" in folder.log(run)
    assert folder.wait_until_done(20, 60).completed == 20


def test_run_terminated_ends_with_143(folder: Folder, pages: Pages) -> None:
    """SIGTERM ends a run in order, with its own exit code."""
    file = folder.write("pages.txt", pages.parcels(400))
    pages.hold(20, until=threading.Event())
    run = folder.start("crawler", "run", str(file))
    wait_for(
        lambda: (folder.data / "lpm.db").exists() and folder.books().completed > 5,
        60,
        "some pages",
    )
    run.terminate()
    assert run.wait(120) == 143
    assert folder.books().processing == 0
    assert left_behind(folder) == []


def test_run_joins_a_stack_that_is_up(folder: Folder, pages: Pages) -> None:
    """`run` uses the stack that is there, and leaves it up."""
    folder.crawler("up", "--workers", "1")
    supervisor = folder.status()["pids"]["supervisor"]
    file, answering = folder.write("pages.txt", pages.parcels(30)), threading.Event()
    pages.hold(0, until=answering)
    run = folder.start("crawler", "run", str(file))
    wait_for(lambda: "joining" in folder.log(run), 60, "`run` to find the stack")

    answering.set()

    assert run.wait(120) == 0, folder.log(run)
    assert folder.status()["pids"]["supervisor"] == supervisor


def test_a_killed_run_is_cleaned_up_by_the_next(folder: Folder, pages: Pages) -> None:
    """kill -9 of `run` itself leaves Redis and workers behind; the next command ends them and goes
    on."""
    file, answering = folder.write("pages.txt", pages.parcels(300)), threading.Event()
    pages.hold(60, until=answering)
    run = folder.start("crawler", "run", str(file), "--workers", "2")
    wait_for(
        lambda: (folder.data / "lpm.db").exists() and folder.books().completed > 20,
        60,
        "some pages",
    )
    run.kill()
    run.wait(120)
    stale = read_stack(folder.data)
    assert stale.redis is not None
    assert stale.redis.find() is not None

    again = folder.start("crawler", "run", str(file), "--workers", "2")
    wait_for(lambda: stale.redis and stale.redis.find() is None, 120, "the end of the orphans")
    answering.set()

    assert again.wait(120) == 0, folder.log(again)
    assert left_behind(folder) == []


def test_a_strangers_process_is_never_ended(tmp_path: Path) -> None:
    """A recorded pid that went to somebody else is left alone."""
    # Given a record that names a stranger by its pid, with another begin
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        (tmp_path / "run").mkdir()
        mark = ProcessMark(stranger.pid, "another begin")
        write_stack(
            tmp_path,
            Stack(supervisor=mark, redis=mark, worker=mark, redis_url="redis://127.0.0.1:1/0"),
        )

        # When a new stack begins and ends there
        with Orchestrator(Settings(data_dir=tmp_path)):
            pass

        # Then it lives
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


PROGRAM = """
import os, sys
from crawler import config
from crawler.orchestrator import Orchestrator

with Orchestrator(config.load(), workers=1) as stack:
    def start():
        stack.start_redis()
        stack.start_celery()
        os.write(1, b"started\\n")
        sys.stdin.readline()
    start()
    start()
    start()
    raise ValueError("a defect in what somebody wrote")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_program_that_is_told_to_end_leaves_no_stack_behind(folder: Folder, number: int) -> None:
    """What an orchestrator has started ends with its program, also where that knows nothing of
    signals."""
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=folder.path,
        env=folder.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdin
    assert program.stdout
    assert program.stdout.readline() == "started\n"
    stack = read_stack(folder.data)
    assert stack.redis
    assert stack.worker

    program.send_signal(number)

    assert program.wait(120) == 128 + number
    assert (stack.worker.find(), stack.redis.find()) == (None, None)
    assert not (folder.data / "run" / "stack.json").exists()
    program.stdin.close()
    program.stdout.close()


def test_the_orchestrator_as_a_program_uses_it(folder: Folder) -> None:
    """Starts are idempotent and look first; at the end, also after an error, all is down, Celery
    before Redis."""
    # Given a program that starts the same things three times, and then fails
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=folder.path,
        env=folder.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdin
    assert program.stdout

    def started() -> Stack:
        assert program.stdout
        assert program.stdout.readline() == "started\n", program.stderr and program.stderr.read()
        return read_stack(folder.data)

    def go_on() -> None:
        assert program.stdin
        program.stdin.write("\n")
        program.stdin.flush()

    # When everything is well at the second time, and dead at the third
    first = started()
    workers = folder.children()
    go_on()
    second = started()
    unchanged = folder.children()
    for mark in (second.worker, second.redis):
        assert mark
        os.kill(mark.pid, signal.SIGKILL)
    wait_for(lambda: not folder.children(), 60, "the children's end")
    go_on()
    third = started()

    # Then the second start changes nothing, and the third starts both anew, at the same address
    assert (second.redis, second.worker, unchanged) == (first.redis, first.worker, workers)
    assert third.redis
    assert third.worker
    assert third.redis_url == first.redis_url
    assert third.redis.find()
    assert third.redis != first.redis
    assert len(folder.children(third.worker.pid)) == 1
    # And at its end Redis is there for as long as the worker is
    go_on()
    wait_for(lambda: third.redis and third.redis.find() is None, 60, "the end of Redis")
    assert third.worker.find() is None
    _, said = program.communicate(timeout=120)
    assert program.returncode == 1
    assert "ValueError: a defect in what somebody wrote" in said
    assert left_behind(folder) == []
    assert "ready to exit" in (folder.data / "logs" / "redis.log").read_text()


def test_a_broken_append_only_file_is_set_aside(tmp_path: Path) -> None:
    """Redis is disposable: what it cannot load any more does not keep the stack from starting."""
    settings = Settings(data_dir=tmp_path)
    with Orchestrator(settings) as stack:
        stack.start_redis()
    for path in (tmp_path / "redis" / "appendonlydir").iterdir():
        path.write_bytes(b"garbage" * 100)

    with Orchestrator(settings) as stack:
        stack.start_redis()

    assert list((tmp_path / "redis").glob("appendonlydir.broken-*"))


def test_sigterm_frees_a_workers_leases(folder: Folder, site: Site, redis_url: str) -> None:
    """A worker that is told to stop releases pages in flight and waits for none of them; no attempt
    is charged."""
    # Given a worker with pages that hang
    folder.env["REDIS_URL"] = redis_url
    folder.redis().flushall()
    worker = folder.worker(concurrency=1)
    file = folder.write("pages.txt", [f"{site.url}/hold/{n}" for n in range(20)])
    folder.crawler("bulk", "import", str(file))
    wait_for(
        lambda: folder.books().processing, 30, "pages in flight"
    )  # how many depends on the load

    # When it is told to stop
    worker.terminate()
    worker.wait(120)

    # Then everything is pending again, and no page has come to the end of its time
    assert folder.books().pending == 20
    lpm = folder.lpm()
    assert lpm.store.db.all("SELECT DISTINCT failures FROM tasks") == [(0,)]
    lpm.close()
    assert list((folder.data / "run" / "owners").iterdir()) == []


def test_a_worker_stops_although_a_child_does_not(folder: Folder, redis_url: str) -> None:
    """Celery waits for a child that cannot end; a worker does not, and leaves no process."""
    folder.env["REDIS_URL"] = redis_url
    folder.redis().flushall()
    worker = folder.worker(concurrency=2)
    stopped, other = psutil.Process(worker.pid).children()
    stopped.suspend()

    worker.terminate()

    assert worker.wait(120) == 143
    assert "did not stop within" in folder.log(worker)
    psutil.wait_procs([stopped, other], timeout=120)
    assert not stopped.is_running()
    assert not other.is_running()


def test_resume_goes_on_with_what_is_open(folder: Folder, site: Site) -> None:
    """What was imported and never begun is collected by `resume`, whatever door it came through."""
    file = folder.write("pages.txt", [site.page(n) for n in range(20)])
    folder.crawler("bulk", "import", str(file))

    done = folder.crawler("resume", "--workers", "1", "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["books"]["completed"] == 20
    assert left_behind(folder) == []
    lpm = folder.lpm()
    assert [job.status for job in lpm.jobs.all()] == ["done"]
    lpm.close()


def test_the_worker_command_is_a_worker_like_any_other(
    folder: Folder, site: Site, redis_url: str
) -> None:
    """`python -m crawler worker` works in the foreground and ends on SIGTERM; a second one ends it
    at once."""
    # Given a worker in the middle of pages that hang
    folder.env["REDIS_URL"] = redis_url
    folder.redis().flushall()
    worker = folder.start("crawler", "worker", "--workers", "1")
    file = folder.write("pages.txt", [f"{site.url}/hold/{n}" for n in range(5)])
    folder.crawler("bulk", "import", str(file))
    wait_for(
        lambda: folder.books().processing, 30, "pages in flight"
    )  # how many depends on the load

    # When it is told twice to stop
    worker.terminate()
    wait_for(lambda: "Warm shutdown" in folder.log(worker), 20, "the first stop to be heard")
    worker.terminate()

    # Then it ends at once, whatever hangs, and the leases fall with it
    assert worker.wait(120) == 143
    wait_for(lambda: not folder.children(), 20, "the children to be gone")
    lpm = folder.lpm()
    lpm.bury()
    lpm.close()
    assert folder.books().pending == 5


def test_a_run_goes_on_when_the_stack_it_joined_ends(folder: Folder, pages: Pages) -> None:
    """`down` under a `run` that had joined: it starts a stack of its own and finishes."""
    folder.crawler("up", "--workers", "1")
    file, answering = folder.write("pages.txt", pages.parcels(300)), threading.Event()
    pages.hold(60, until=answering)
    run = folder.start("crawler", "run", str(file), "--workers", "1")
    wait_for(lambda: folder.books().completed > 20, 60, "some pages")

    assert folder.crawler("down").returncode == 0
    answering.set()

    assert run.wait(120) == 0
    assert "300 of 300 pages collected" in folder.log(run)
    assert left_behind(folder) == []


def test_a_job_that_ended_behind_a_killed_run_is_not_fetched_again(
    folder: Folder, pages: Pages
) -> None:
    """kill -9 of `run`, its workers finish the job; the same command reports it and fetches nothing
    twice."""
    # Given a run that is killed, and workers that finish its job
    file, answering = folder.write("pages.txt", pages.parcels(200)), threading.Event()
    pages.hold(60, until=answering)
    run = folder.start("crawler", "run", str(file), "--workers", "2")
    wait_for(
        lambda: (folder.data / "lpm.db").exists() and folder.books().completed > 20,
        60,
        "some pages",
    )
    run.kill()
    run.wait(120)
    answering.set()
    folder.wait_until_done(200, 60)

    # When the same command is typed again, and then once more
    again = folder.crawler("run", str(file))
    hits = len(pages.paths())
    anew = folder.crawler("run", str(file), "--fresh-for", "1h")

    # Then it only reports; the next one is a new job, which here finds everything fresh
    assert again.returncode == 0, again.stderr
    assert "200 of 200 pages collected" in again.stdout
    assert hits == 200
    assert "job pages.txt-2: 0 new, 200 known" in anew.stderr
    assert len(pages.paths()) == 200
    folder.crawler("down")


def test_a_copy_of_a_data_folder_is_not_the_stack(folder: Folder, tmp_path: Path) -> None:
    """`down` in a copy ends nothing; a stack whose folder is removed ends by itself."""
    # Given a running stack and a copy of its folder
    folder.crawler("up", "--workers", "1")
    supervisor = read_stack(folder.data).supervisor
    assert supervisor is not None
    copy = tmp_path / "copy"
    shutil.copytree(folder.data, copy, ignore=shutil.ignore_patterns("tmp"))

    # When `down` is typed for the copy, and the folder removed
    done = folder.crawler("--data-dir", str(copy), "down")
    alive = supervisor.find()
    shutil.rmtree(folder.data, ignore_errors=True)

    # Then the first changed nothing, and the second ended it
    assert done.stdout == "No stack was up\n"
    assert alive is not None
    wait_for(lambda: supervisor.find() is None, 30, "the stack's end")
