"""Closing a terminal ends what was typed there in order: no process, no lease is left."""

import signal

import psutil
import pytest

from crawler.stack import read_stack
from tests.support.site import Site
from tests.support.stack import Folder, left_behind, wait_for
from tests.support.terminal import Terminal


def owners_of(folder: Folder) -> list[str]:
    """The files of those who hold leases."""
    return [path.name for path in (folder.data / "run" / "owners").iterdir()]


@pytest.mark.parametrize("command", ["run", "resume"])
def test_a_closed_terminal_ends_the_stack(folder: Folder, site: Site, command: str) -> None:
    """`run` and `resume` stop Redis and workers, free all leases and exit with 129; typed again,
    they go on."""
    # Given a crawl in a terminal
    pages = [site.page(n, 0.1) for n in range(200)]
    file = folder.write("pages.txt", pages)
    assert folder.crawler("bulk", "import", str(file)).returncode == 0
    argv = ("run", str(file)) if command == "run" else ("resume",)
    terminal = Terminal(folder, "crawler", *argv, "--workers", "2")
    wait_for(lambda: folder.books().completed > 10, 60, "some pages")

    # When it is closed, and the shell that goes with it says so once more
    terminal.close()
    terminal.process.send_signal(signal.SIGHUP)

    # Then nothing is left
    assert terminal.process.wait(60) == 128 + signal.SIGHUP
    assert left_behind(folder) == []
    assert folder.books().processing == 0
    assert owners_of(folder) == []
    assert not (folder.data / "run" / "stack.json").exists()
    assert folder.crawler(*argv, "--workers", "2").returncode == 0
    assert sorted(result["url"] for result in folder.results()) == sorted(pages)


def test_nohup_goes_on_without_its_terminal(folder: Folder, site: Site) -> None:
    """A `run` that was told to ignore SIGHUP finishes, though nothing can be written to its
    terminal any more."""
    file = folder.write("pages.txt", [site.page(n, 0.1) for n in range(100)])
    terminal = Terminal(folder, "crawler", "run", str(file), "--workers", "2", nohup=True)
    wait_for(
        lambda: (folder.data / "lpm.db").exists() and folder.books().completed > 10,
        60,
        "some pages",
    )

    terminal.close()

    assert terminal.process.wait(60) == 0
    assert folder.books().completed == 100
    assert left_behind(folder) == []


def test_a_closed_terminal_ends_a_worker_in_order(
    folder: Folder, site: Site, redis_url: str
) -> None:
    """`worker` lets go of its pages without charging them; its children do not die of the same
    signal."""
    folder.env["REDIS_URL"] = redis_url
    folder.redis().flushall()
    file = folder.write("pages.txt", [f"{site.url}/hold/{n}" for n in range(8)])
    folder.crawler("bulk", "import", str(file))
    terminal = Terminal(folder, "crawler", "worker", "--workers", "2")
    wait_for(lambda: folder.books().processing == 8, 60, "the pages to begin")

    terminal.close()

    terminal.process.wait(60)
    assert left_behind(folder) == []
    assert owners_of(folder) == []
    lpm = folder.lpm()
    assert lpm.store.db.all("SELECT DISTINCT status, failures, strikes FROM tasks") == [
        ("pending", 0, 0)
    ]
    assert lpm.store.db.all("SELECT count(*) FROM events WHERE kind = 'worker died'") == [(0,)]
    lpm.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_single_call_in_order(
    folder: Folder, site: Site, number: signal.Signals
) -> None:
    """`scrape` gives back what it has in hand, and exits with the signal's code."""
    call = folder.start("crawler", "scrape", f"{site.url}/hold/1")
    wait_for(
        lambda: (folder.data / "lpm.db").exists() and folder.books().processing == 1,
        60,
        "the page to begin",
    )

    call.send_signal(number)

    assert call.wait(120) == 128 + number
    assert folder.books().pending == 1
    assert owners_of(folder) == []


def test_what_a_dead_stack_left_is_ended_even_with_nothing_to_do(
    folder: Folder, site: Site
) -> None:
    """kill -9 of `run`, its workers finish; `resume` has nothing to do, and ends Redis and workers
    all the same."""
    file = folder.write("pages.txt", [site.page(n, 0.05) for n in range(60)])
    run = folder.start("crawler", "run", str(file), "--workers", "1")
    wait_for(
        lambda: (folder.data / "lpm.db").exists() and folder.books().completed > 5,
        60,
        "some pages",
    )
    run.kill()
    run.wait(5)
    folder.wait_until_done(60, 60)
    stack = read_stack(folder.data)
    assert stack.redis
    assert stack.redis.find() is not None

    done = folder.crawler("resume")

    assert done.returncode == 0, done.stderr
    assert "whose supervisor is dead" in done.stderr
    assert not psutil.pid_exists(stack.redis.pid)
    assert left_behind(folder) == []
