"""`up --autoscale`: the number of worker processes follows the load, and loses nothing."""

import json
import os
import signal
import threading

import pytest

from crawler.db import owners
from crawler.pool import LEAVE_SIGNAL
from crawler.stack import read_stack
from tests.support.pages import Pages
from tests.support.stack import Folder, wait_for

PAGES = 60


def test_follows_the_load_and_loses_nothing(folder: Folder, pages: Pages) -> None:
    """A server that does not answer fills all processes, so there are more; kills change nothing;
    with nothing to do there is one again. Every page comes once."""
    # Given a stack with one process, and a server that holds back its answers
    urls, answering = pages.parcels(PAGES), threading.Event()
    pages.hold(0, until=answering)
    assert folder.crawler("up", "--autoscale", "1,3").returncode == 0
    assert folder.crawler("bulk", "import", str(folder.write("1.txt", urls))).returncode == 0
    try:
        # Then there are more, up to the maximum
        wait_for(lambda: len(folder.children()) == 3, 120, "three processes", 0.2)
        scale = folder.status()["autoscale"]
        assert (scale["processes"], scale["min"], scale["max"]) == (3, 1, 3)
        assert "due tasks could go" in scale["why"]

        # And when one of them is killed, and then the worker with all of them
        killed = in_flight(folder)
        victim, worker = folder.children()[0], read_stack(folder.data).worker
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: victim not in folder.children(), 120, "its end", 0.2)
        wait_for(lambda: len(folder.children()) == 3, 120, "another process in its place", 0.2)
        killed |= in_flight(folder)
        assert worker is not None
        os.kill(worker.pid, signal.SIGKILL)
        wait_for(lambda: read_stack(folder.data).worker != worker, 120, "another worker", 0.2)
        wait_for(lambda: len(folder.children()) == 3, 120, "three processes once more", 0.2)
    finally:
        answering.set()

    # Then with nothing to do there is one again
    folder.wait_until_done(PAGES, 120)
    wait_for(lambda: len(folder.children()) == 1, 120, "one process", 0.2)
    assert "were in use" in folder.status()["autoscale"]["why"]
    assert f"{PAGES} results" in folder.crawler("results", "list").stdout

    # And every page is there once, and only what was in flight at a kill had another attempt
    results = folder.results()
    assert sorted(each["url"] for each in results) == sorted(urls)
    assert sum(each["attempts"] > 1 for each in results) <= len(killed)
    log = (folder.data / "logs" / "supervisor.log").read_text().splitlines()
    changes = [line for line in log if " worker processes instead of " in line]
    assert json.loads(changes[0])["level"] == "info"
    assert len(changes) >= 2


def in_flight(folder: Folder) -> set[int]:
    """The tasks of all pages in flight."""
    notes = owners.living(folder.data / "run" / "owners")
    return {task for note in notes for task in note.in_flight}


def test_a_process_that_leaves_finishes_its_pages(folder: Folder, pages: Pages) -> None:
    """It takes no more, ends once its pages are stored, and no attempt is charged."""
    # Given two processes with all their places taken
    urls, answering = pages.parcels(40), threading.Event()
    pages.hold(0, until=answering)
    assert folder.crawler("up", "--workers", "2").returncode == 0
    assert folder.crawler("bulk", "import", str(folder.write("1.txt", urls))).returncode == 0
    wait_for(lambda: len(pages.paths()) >= 8, 120, "eight requests", 0.2)

    # When one of them is to leave
    leaving = folder.children()[0]
    os.kill(leaving, LEAVE_SIGNAL)
    worker_log = folder.data / "logs" / "worker.log"
    wait_for(
        lambda: "fewer processes are enough" in worker_log.read_text(), 120, "its last line", 0.2
    )
    answering.set()

    # Then it has ended, and each page was asked for once and charged once
    wait_for(lambda: leaving not in folder.children(), 120, "its end", 0.2)
    assert folder.wait_until_done(40, 120).completed == 40
    assert sorted(pages.paths()) == sorted(f"/page/{n}" for n in range(40))
    assert {each["attempts"] for each in folder.results()} == {1}


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ("16,2", "in '16,2' the minimum is above the maximum"),
        ("0,4", "'0,4' is not within 1 and 256 processes"),
        ("2,400", "'2,400' is not within 1 and 256 processes"),
        ("x", "'x' is not a minimum and a maximum; write 2,16"),
        ("2", "'2' is not a minimum and a maximum; write 2,16"),
    ],
)
def test_bounds_that_make_no_sense(folder: Folder, bounds: str, message: str) -> None:
    """They are an error before anything starts."""
    done = folder.crawler("up", "--autoscale", bounds)

    assert done.returncode == 2
    assert message in done.stderr
    assert not (folder.data / "run" / "stack.json").exists()


def test_a_fixed_number_and_bounds_exclude_each_other(folder: Folder) -> None:
    """Both options at once are an error."""
    done = folder.crawler("up", "--autoscale", "2,4", "--workers", "3")

    assert done.returncode == 2
    assert "--workers and --autoscale exclude each other" in done.stderr
