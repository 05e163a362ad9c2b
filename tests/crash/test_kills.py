"""Whatever is killed in the middle, every page comes once."""

import contextlib
import os
import resource
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from crawler import drill
from crawler.stack import read_stack
from tests.support.disk import Disk, can_mount, filled
from tests.support.pages import Pages
from tests.support.site import SUSPECT_DEPTH, Site
from tests.support.stack import Folder, wait_for


def test_2000_pages_survive_kills_of_children_workers_and_redis(folder: Folder) -> None:
    """Five kill -9 of children and workers, an emptied and a killed Redis: none lost, none twice,
    and work goes on."""
    # Given a crawl of 2,000 pages, a twentieth of which fail once
    plan = drill.plan(seed=30, pages=2000, kills=7, latency_ms=60, faults=0.05)
    assert Counter(strike.kind for strike in plan.strikes) == {
        "child": 3,
        "worker": 2,
        "redis": 1,
        "flushall": 1,
    }

    # When these are struck one after the other
    score = drill.drill(folder.settings, plan, workers=2)

    # Then every page is there once, and only what was in flight was fetched again
    assert (score.lost, score.twice) == (0, 0), score
    assert 0 <= score.extra_fetches <= score.in_flight, score
    assert all(strike.back_after_s is not None for strike in score.strikes), score
    assert score.samples > 5, score
    assert score.unbalanced == 0, score
    assert score.exit_code == 0, score


def test_a_page_that_hangs_the_parser_is_set_aside(
    folder: Folder, site: Site, redis_url: str
) -> None:
    """A child that stands still in a parser is ended; twice, and its page is poison, with evidence;
    others finish."""
    # Given pages, one of which hangs every child that parses it
    hang = {"CRAWLER_STALL_S": "2", "CRAWLER_FAILPOINT": "parsing-in-steps:1:hang"}
    folder.env |= {"REDIS_URL": redis_url, **hang}
    bad = f"{site.url}/nested/{SUSPECT_DEPTH}"
    folder.redis().flushall()
    pages = [site.page(n) for n in range(30)]
    worker = folder.worker(concurrency=2)

    # When they are crawled
    folder.crawler(
        "bulk", "import", str(folder.write("pages.txt", [*pages[:15], bad, *pages[15:]]))
    )
    folder.wait_until_done(31, 90)

    # Then the one is set aside after two deaths, with the place where it hung, and the others are
    # there
    lpm = folder.lpm()
    [(url, reason, strikes, id_)] = lpm.store.db.all(
        "SELECT url, error_type, strikes, id FROM tasks WHERE status <> 'completed'"
    )
    [evidence] = lpm.store.db.all(
        "SELECT detail FROM events WHERE task = ? AND kind = 'poison'", (id_,)
    )
    assert lpm.store.db.all("SELECT DISTINCT strikes FROM tasks WHERE status = 'completed'") == [
        (0,)
    ]
    lpm.close()
    assert (url, reason, strikes) == (bad, "poison", 2)
    assert "parser.py" in str(evidence)
    assert sorted(result["url"] for result in folder.results()) == sorted(pages)
    assert worker.poll() is None


def test_redis_away_for_a_while(folder: Folder, site: Site) -> None:
    """With Redis dead, workers say so once and go on with what they have; when it is back, work
    goes on."""
    # Given a stack on a Redis of its own, which is stopped (not killed: its supervisor would start
    # it again)
    folder.crawler("up", "--workers", "2")
    stack = read_stack(folder.data)
    assert stack.redis is not None
    os.kill(stack.redis.pid, signal.SIGSTOP)

    # When work comes in, and Redis comes back only after a while
    pages = [site.page(n) for n in range(50)]
    done = folder.crawler("bulk", "import", str(folder.write("pages.txt", pages)))
    assert done.returncode == 0
    assert "wait in the ledger" in done.stderr
    log = folder.data / "logs" / "worker.log"
    wait_for(lambda: "does not answer as it should" in log.read_text(), 30, "the line that says so")
    os.kill(stack.redis.pid, signal.SIGCONT)

    # Then all of it is done
    folder.wait_until_done(50, 60)
    assert log.read_text().count("the ledger keeps everything") == 1


def test_a_full_redis_loses_nothing(folder: Folder, site: Site, redis_url: str) -> None:
    """With no memory left Redis takes no messages; workers and maintainer live on, and go on when
    there is room."""
    # Given a worker on a Redis that is full
    folder.env["REDIS_URL"] = redis_url
    client = folder.redis()
    client.flushall()
    worker = folder.worker(concurrency=1)
    client.config_set("maxmemory", 1)
    try:
        pages = [site.page(n) for n in range(50)]
        done = folder.crawler("bulk", "import", str(folder.write("pages.txt", pages)))
        assert done.returncode == 0, done.stderr
        wait_for(
            lambda: "the ledger keeps everything" in folder.log(worker), 30, "the line that says so"
        )
    finally:
        client.config_set("maxmemory", 0)

    # When there is room again, then all of it is done
    folder.wait_until_done(50, 15)
    assert worker.poll() is None


def test_a_full_disk_stops_claims_and_loses_nothing(pages: Pages, tmp_path: Path) -> None:
    """With no room for results workers stop claiming, say so, and go on when there is room
    again."""
    # Given a stack on a small disk of its own
    disk = Disk(tmp_path / "small", size_mb=64) if can_mount(tmp_path) else None
    if disk:
        disk.mount()
    else:
        print(
            "loop mounts are not allowed here: "
            "a limit on the size of files stands in for a full disk"
        )
    folder = Folder(disk.path if disk else tmp_path, CRAWLER_MIN_FREE="0")
    try:
        urls, answering = pages.parcels(1500), threading.Event()
        pages.hold(100, until=answering)
        folder.crawler("bulk", "import", str(folder.write("pages.txt", urls)))
        folder.crawler("up", "--workers", "2")
        folder.wait_until_completed(50, 60)

        # When it is full
        with filled(disk.path) if disk else without_room(folder.children()):
            answering.set()
            stood_still = [-1]
            wait_for(lambda: stands_still(folder, stood_still), 60, "the crawl to stand still")
            assert stood_still[-1] < len(urls)

        # Then, with room again, everything is done, each page once, and the log says what was
        folder.wait_until_done(len(urls), 60)
        assert sorted(result["url"] for result in folder.results()) == sorted(urls)
        log = (folder.data / "logs" / "worker.log").read_text()
        assert "can be used again" in log, log
    finally:
        folder.stop()
        if disk:
            disk.discard()


@contextlib.contextmanager
def without_room(pids: list[int]) -> Iterator[None]:
    """Processes that cannot write behind the first kilobyte of any file, until the end of the
    block."""
    limits = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in pids}
    for pid, (_, hard) in limits.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1024, hard))
    yield
    for pid, limit in limits.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)


def stands_still(folder: Folder, seen: list[int]) -> bool:
    """Whether no page was completed for a while: 100 looks in a row that show the same."""
    seen.append(folder.books().completed)
    return len(seen) > 100 and len(set(seen[-100:])) == 1
