"""The stack: up, down, run, and what is left behind (nothing)."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from crawler.config import Settings
from crawler.db import owners
from crawler.orchestrator import Orchestrator
from crawler.process import Mark, Stack, read_stack, write_stack
from tests.support.site import Site
from tests.support.stack import Folder, assert_balanced, left_behind, wait_for


def test_up_status_down(folder: Folder, site: Site) -> None:
    """`up` starts everything once, work imported then is done, `down` leaves no process and no record."""
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


def test_run_from_file_to_summary(folder: Folder, site: Site) -> None:
    """`run` imports, crawls, retries, says what failed and why, exits with 1, and leaves nothing running."""
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


def test_run_interrupted_and_typed_again(folder: Folder, site: Site) -> None:
    """Ctrl-C in the middle ends within 10 s with 130; the same command goes on where it was."""
    # Given a run in the middle
    pages = [site.page(n, 0.2) for n in range(300)]
    file = folder.write("pages.txt", pages)
    run = folder.start("crawler", "run", str(file), "--workers", "2")
    wait_for(lambda: (folder.data / "lpm.db").exists() and folder.books().completed > 20, 60, "20 pages")

    # When it is interrupted
    began = time.monotonic()
    run.send_signal(signal.SIGINT)
    assert run.wait(15) == 130
    assert time.monotonic() - began < 10
    books = folder.books()
    assert books.processing == 0
    assert left_behind(folder) == []

    # Then it goes on where it was
    done = folder.crawler("run", str(file), "--workers", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["books"]["completed"] == 300
    assert sorted(result["url"] for result in folder.results()) == sorted(pages)
    assert sum(site.hits().values()) <= 300 + 16


def test_run_terminated_ends_with_143(folder: Folder, site: Site) -> None:
    """SIGTERM ends a run in order, with its own exit code."""
    file = folder.write("pages.txt", [site.page(n, 0.1) for n in range(400)])
    run = folder.start("crawler", "run", str(file))
    wait_for(lambda: (folder.data / "lpm.db").exists() and folder.books().completed > 5, 60, "some pages")
    run.terminate()
    assert run.wait(15) == 143
    assert folder.books().processing == 0
    assert left_behind(folder) == []


def test_run_joins_a_stack_that_is_up(folder: Folder, site: Site) -> None:
    """`run` uses the stack that is there, and leaves it up."""
    folder.crawler("up", "--workers", "1")
    supervisor = folder.status()["pids"]["supervisor"]
    file = folder.write("pages.txt", [site.page(n) for n in range(30)])

    done = folder.crawler("run", str(file))

    assert done.returncode == 0, done.stderr
    assert "joining" in done.stderr
    assert folder.status()["pids"]["supervisor"] == supervisor


def test_a_killed_run_is_cleaned_up_by_the_next(folder: Folder, site: Site) -> None:
    """kill -9 of `run` itself leaves Redis and workers behind; the next command ends them and goes on."""
    file = folder.write("pages.txt", [site.page(n, 0.05) for n in range(300)])
    run = folder.start("crawler", "run", str(file), "--workers", "2")
    wait_for(lambda: (folder.data / "lpm.db").exists() and folder.books().completed > 20, 60, "some pages")
    run.kill()
    run.wait(5)
    stale = read_stack(folder.data)
    assert stale.redis is not None
    assert stale.redis.find() is not None

    done = folder.crawler("run", str(file), "--workers", "2")

    assert done.returncode == 0, done.stderr
    assert stale.redis.find() is None
    assert left_behind(folder) == []


def test_a_strangers_process_is_never_ended(tmp_path: Path) -> None:
    """A recorded pid that went to somebody else is left alone."""
    # Given a record that names a stranger by its pid, with another begin
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        (tmp_path / "run").mkdir()
        mark = Mark(stranger.pid, "another begin")
        write_stack(tmp_path, Stack(supervisor=mark, redis=mark, worker=mark, redis_url="redis://127.0.0.1:1/0"))

        # When a new stack begins and ends there
        with Orchestrator(Settings(data_dir=tmp_path)):
            pass

        # Then it lives
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_the_orchestrator_starts_once_and_stops_in_order(tmp_path: Path) -> None:
    """start_redis and start_celery are idempotent; at the end nothing runs, Celery ended before Redis."""
    with Orchestrator(Settings(data_dir=tmp_path), workers=1) as stack:
        stack.start_redis()
        redis = read_stack(tmp_path).redis
        stack.start_redis()
        assert read_stack(tmp_path).redis == redis
        stack.start_celery()
        workers = owners.workers(tmp_path / "run" / "owners")
        stack.start_celery()
        assert owners.workers(tmp_path / "run" / "owners") == workers
        assert len(workers) == 1
        processes = [psutil.Process(pid) for pid in workers]
    assert redis is not None
    assert redis.find() is None
    assert not any(process.is_running() for process in processes)
    assert "ready to exit" in (tmp_path / "logs" / "redis.log").read_text()


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
    """A worker that is told to stop releases pages in flight and is gone within 10 s; no attempt is charged."""
    # Given a worker with pages that hang
    folder.env["REDIS_URL"] = redis_url
    folder.redis().flushall()
    worker = folder.worker(concurrency=1)
    file = folder.write("pages.txt", [f"{site.url}/hold/{n}" for n in range(20)])
    folder.crawler("bulk", "import", str(file))
    wait_for(lambda: folder.books().processing == 8, 30, "eight pages in flight")

    # When it is told to stop
    began = time.monotonic()
    worker.terminate()
    worker.wait(12)

    # Then it took less than 10 s, and everything is pending again
    assert time.monotonic() - began < 10
    assert folder.books().pending == 20
    lpm = folder.lpm()
    assert lpm.ledger.db.all("SELECT DISTINCT failures FROM tasks") == [(0,)]
    lpm.close()
    assert list((folder.data / "run" / "owners").iterdir()) == []


def test_resume_goes_on_with_what_is_open(folder: Folder, site: Site) -> None:
    """What was imported and never begun is collected by `resume`, whatever door it came through."""
    file = folder.write("pages.txt", [site.page(n) for n in range(20)])
    folder.crawler("bulk", "import", str(file))

    done = folder.crawler("resume", "--workers", "1", "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["books"]["completed"] == 20
    assert left_behind(folder) == []
    lpm = folder.lpm()
    assert [job.status for job in lpm.ledger.jobs()] == ["done"]
    lpm.close()


def test_the_worker_command_is_a_worker_like_any_other(folder: Folder, site: Site, redis_url: str) -> None:
    """`python -m crawler worker` works in the foreground and ends on SIGTERM; a second one ends it at once."""
    # Given a worker in the middle of pages that hang
    folder.env["REDIS_URL"] = redis_url
    folder.redis().flushall()
    worker = folder.start("crawler", "worker", "--workers", "1")
    file = folder.write("pages.txt", [f"{site.url}/hold/{n}" for n in range(5)])
    folder.crawler("bulk", "import", str(file))
    wait_for(lambda: folder.books().processing == 5, 30, "the pages to begin")

    # When it is told twice to stop
    worker.terminate()
    wait_for(lambda: "Warm shutdown" in folder.log(worker), 20, "the first stop to be heard")
    worker.terminate()

    # Then it ends at once, whatever hangs, and the leases fall with it
    assert worker.wait(20) == 143
    wait_for(lambda: not folder.children(), 20, "the children to be gone")
    lpm = folder.lpm()
    lpm.bury()
    lpm.close()
    assert folder.books().pending == 5


def test_a_run_goes_on_when_the_stack_it_joined_ends(folder: Folder, site: Site) -> None:
    """`down` under a `run` that had joined: it starts a stack of its own and finishes."""
    folder.crawler("up", "--workers", "1")
    file = folder.write("pages.txt", [site.page(n, 0.05) for n in range(300)])
    run = folder.start("crawler", "run", str(file), "--workers", "1")
    wait_for(lambda: folder.books().completed > 20, 60, "some pages")

    assert folder.crawler("down").returncode == 0

    assert run.wait(60) == 0
    assert "300 of 300 pages collected" in folder.log(run)
    assert left_behind(folder) == []


def test_a_job_that_ended_behind_a_killed_run_is_not_fetched_again(folder: Folder, site: Site) -> None:
    """kill -9 of `run`, its workers finish the job; the same command reports it and fetches nothing twice."""
    # Given a run that is killed, and workers that finish its job
    file = folder.write("pages.txt", [site.page(n, 0.05) for n in range(200)])
    run = folder.start("crawler", "run", str(file), "--workers", "2")
    wait_for(lambda: (folder.data / "lpm.db").exists() and folder.books().completed > 20, 60, "some pages")
    run.kill()
    run.wait(5)
    folder.wait_until_done(200, 60)

    # When the same command is typed again, and then once more
    again = folder.crawler("run", str(file))
    hits = sum(site.hits().values())
    anew = folder.crawler("run", str(file), "--fresh-for", "1h")

    # Then it only reports; the next one is a new job, which here finds everything fresh
    assert again.returncode == 0, again.stderr
    assert "200 of 200 pages collected" in again.stdout
    assert hits == 200
    assert "job pages.txt-2: 0 new, 200 known" in anew.stderr
    assert sum(site.hits().values()) == 200
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
