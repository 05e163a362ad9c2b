"""Kills at every step of the exchange with a Gateway, and a Gateway that fails a third of all
exchanges."""

import contextlib
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

from crawler.lpm import LocalPersistenceManager
from tests.support.gateway import Gateway
from tests.support.site import Site
from tests.support.stack import Folder, wait_for
from tests.support.tasks import done, page


def work_off(lpm: LocalPersistenceManager) -> None:
    """Do what is due, as a worker would."""
    tasks = lpm.get_next_pending("owner", 100)
    lpm.save_result(*(done(task, page=page(task.url, task.url.encode())) for task in tasks))


@pytest.mark.parametrize("step", ["handed-out", "assigned", "pages-sent", "delivered-results"])
def test_an_agent_killed_at_any_step_loses_nothing(tmp_path: Path, step: str) -> None:
    """Each life of it ends at the second passage of a step; all tasks are taken, each result is
    applied once."""
    # Given a Gateway with 40 tasks, of which an agent may hold 10
    with Gateway(tmp_path / "central", idle=1) as gateway:
        gateway.import_tasks(
            [{"task_id": f"t-{n}", "url": f"http://a.example/{n}"} for n in range(40)]
        )
        folder = Folder(tmp_path, **gateway.env)
        lpm = folder.lpm()
        # When it is killed again and again, and what it has taken is worked off
        lives = 0
        try:
            while gateway.counts()["results"] < 40:
                lives += 1
                assert lives <= 40
                agent = folder.start(
                    "crawler", "agent", "--capacity", "10", CRAWLER_FAILPOINT=f"{step}:2"
                )
                wait_for(_ended_or_done(agent.poll, gateway, lpm), 30, f"the end of life {lives}")
                if agent.poll() is None:
                    agent.send_signal(signal.SIGTERM)
                agent.wait(120)
            # Then every result is there, applied once, behind its page, and the worker's books say
            # the same
            agent = folder.start("crawler", "agent", "--capacity", "10")
            wait_for(lambda: lpm.counts.totals().synced == 40, 30, "the last marks")
            results = gateway.results()
            assert Counter(r["task_id"] for r in results) == Counter(f"t-{n}" for n in range(40))
            assert {r["applied"] for r in results} == {1}
            assert all(r["raw_seq"] < r["seq"] for r in results)
            assert lpm.counts.totals().accepted == 40
            assert lives > 1
        finally:
            folder.stop()
            lpm.close()


def _ended_or_done(
    poll: Callable[[], int | None], gateway: Gateway, lpm: LocalPersistenceManager
) -> Callable[[], bool]:
    def condition() -> bool:
        work_off(lpm)
        return poll() is not None or gateway.counts()["results"] == 40

    return condition


def test_a_gateway_that_fails_a_third_of_all_exchanges(tmp_path: Path, site: Site) -> None:
    """200 results, with the agent, a child and the whole stack killed in between: each is applied
    exactly once."""
    # Given a Gateway whose exchanges fail in every way
    with Gateway(tmp_path / "central", faults=0.33, seed=7, idle=1) as gateway:
        gateway.import_tasks(
            [{"task_id": f"t-{n}", "platform": "p", "url": site.page(n)} for n in range(200)]
        )
        folder = Folder(tmp_path, CRAWLER_ALLOW_NETS="127.0.0.0/8", **gateway.env)
        try:
            # When the worker's side is killed in each of its parts
            run = folder.start("crawler", "ondemand", "--workers", "2", "--capacity", "60")
            for share, part in ((40, "agent"), (80, "child"), (120, "all")):
                enough = partial(lambda share: gateway.counts()["results"] >= share, share)
                wait_for(enough, 120, f"{share} results")
                _kill(folder, run.pid, part)
            run.wait(120)
            folder.start("crawler", "ondemand", "--workers", "2", "--capacity", "60")
            wait_for(lambda: folder.books().completed == 200, 120, "all pages")
            gateway.set_faults(0)
            # Then all is settled soon after the faults have ended
            wait_for(lambda: folder.books().synced == 200, 120, "convergence")
            results = gateway.results()
            assert Counter(r["task_id"] for r in results) == Counter(f"t-{n}" for n in range(200))
            assert {r["applied"] for r in results} == {1}
            assert all(r["raw_seq"] < r["seq"] for r in results)
            assert sum(gateway.faults().values()) > 20
        finally:
            folder.stop()


def _kill(folder: Folder, supervisor: int, part: str) -> None:
    if part == "agent":
        victims = [wait_for(lambda: folder.status()["pids"]["agent"], 30, "an agent")]
    elif part == "child":
        victims = [wait_for(folder.children, 30, "a child")[0]]
    else:
        victims = [
            supervisor,
            *(process.pid for process in psutil.Process(supervisor).children(recursive=True)),
        ]
    for pid in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()
