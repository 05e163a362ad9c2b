"""Sessions of programs under kill -9: nothing is lost, and nothing but what was in flight comes
twice."""

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

from crawler.db import owners
from tests.support.site import SUSPECT_DEPTH, Site
from tests.support.stack import Folder, left_behind, wait_for

ROOT = Path(__file__).parents[2]
PAGES_IN_FLIGHT = 4


def ready(folder: Folder, **env: str) -> None:
    """Let programs in this folder use loopback."""
    folder.env |= {
        "CRAWLER_ALLOW_NETS": "127.0.0.0/8",
        "CRAWLER_DATA_DIR": str(folder.data),
        "CRAWLER_PAGES": str(PAGES_IN_FLIGHT),
        "PYTHONPATH": str(ROOT),
    } | env


def direct(folder: Folder) -> list[int]:
    """The living processes of sessions."""
    notes = owners.living(folder.data / "run" / "owners")
    return [note.pid for note in notes if note.about.get("kind") == "direct"]


def results(folder: Folder, log: str) -> list[dict[str, Any]]:
    """The results that a program has printed."""
    found: list[dict[str, Any]] = json.loads(log.splitlines()[-1])["results"]
    return found


def test_a_killed_program_goes_on_in_its_session(folder: Folder, site: Site) -> None:
    """Its process ends with it, however it ends; the same call fetches the rest, and nothing that
    was stored again."""
    # Given a program that is killed in the middle, twice
    ready(folder)
    asked = [site.page(n, 0.1) for n in range(60)]
    argv = ("tests.support.program", "killed", str(folder.write("urls.txt", asked)))
    for count in (10, 30):
        program = folder.start(*argv)
        folder.wait_until_completed(count, 120)
        program.kill()
        program.wait(60)
        wait_for(lambda: not direct(folder), 60, "the end of its process")

    # When it is started once more
    last = folder.start(*argv)
    assert last.wait(120) == 0, folder.log(last)

    # Then each URL has its result, in its place
    found = results(folder, folder.log(last))
    assert [(each["url"], each["status"]) for each in found] == [(url, "success") for url in asked]
    assert sum(site.hits().values()) <= folder.attempts(), "more than was in flight"
    assert left_behind(folder) == []
    assert folder.crawler("job", "verify", "killed").returncode == 0


def test_kills_of_its_process_cost_no_page(folder: Folder, site: Site) -> None:
    """The program starts another one each time, and every URL is there once."""
    ready(folder)
    asked = [site.page(n, 0.1) for n in range(80)]
    program = folder.start("tests.support.program", "struck", str(folder.write("urls.txt", asked)))

    for count in (5, 20, 35, 50):
        folder.wait_until_completed(count, 120)
        [child] = wait_for(lambda: direct(folder), 60, "its process")
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    assert program.wait(120) == 0, folder.log(program)

    found = results(folder, folder.log(program))
    assert [(each["url"], each["status"]) for each in found] == [(url, "success") for url in asked]
    assert sum(site.hits().values()) <= folder.attempts(), "more than was in flight"


def test_a_page_that_hangs_the_parser_costs_itself(folder: Folder, site: Site) -> None:
    """Its process is ended twice, the page is poison, and the program has all others."""
    ready(folder, CRAWLER_STALL_S="2", CRAWLER_FAILPOINT="parsing-in-steps:1:hang")
    asked = [site.page(1), f"{site.url}/nested/{SUSPECT_DEPTH}", site.page(2)]
    program = folder.start("tests.support.program", "hung", str(folder.write("urls.txt", asked)))

    assert program.wait(120) == 0, folder.log(program)

    found = results(folder, folder.log(program))
    assert [each["status"] for each in found] == ["success", "failed", "success"]
    assert found[1]["reason"] == "poison"


def test_a_stopped_process_holds_up_nobody(folder: Folder, site: Site) -> None:
    """A process that SIGSTOP has stopped answers no watchdog: the program ends it, and another one
    goes on."""
    ready(folder, CRAWLER_STALL_S="2")
    asked = [site.page(n, 0.1) for n in range(40)]
    argv = ("tests.support.program", "stopped", str(folder.write("urls.txt", asked)))
    program = folder.start(*argv)
    folder.wait_until_completed(5, 120)
    os.kill(wait_for(lambda: direct(folder), 60, "its process")[0], signal.SIGSTOP)

    assert program.wait(120) == 0, folder.log(program)

    assert {each["status"] for each in results(folder, folder.log(program))} == {"success"}
    assert left_behind(folder) == []
