"""Work for a Gateway through the real doors: `ondemand`, `sync`, the reference Gateway, real
workers."""

import json
import os
import signal
import sqlite3
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from email.utils import formatdate
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from crawler.orchestrator import AGENT_GRACE_S, REDIS_GRACE_S, WORKER_GRACE_S
from tests.support.exchange import assign, claim, fail, given
from tests.support.gateway import TOKEN, Gateway
from tests.support.scripted import Answer, Call, ScriptedGateway
from tests.support.site import Site
from tests.support.stack import Folder, wait_for
from tests.support.tasks import done as completed
from tests.support.tasks import give


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    """A reference Gateway."""
    with Gateway(tmp_path / "central", idle=1) as gateway:
        yield gateway


def working_for(folder: Folder, gateway: Gateway | ScriptedGateway) -> Folder:
    """The folder, its commands told of the Gateway; the tests' site is on loopback."""
    folder.env |= gateway.env | {"CRAWLER_ALLOW_NETS": "127.0.0.0/8"}
    return folder


def tasks(site: Site, count: int, **fields: Any) -> list[dict[str, Any]]:
    """Tasks for pages of the site."""
    return [
        {
            "task_id": f"t-{n}",
            "parcel_id": f"p{n}",
            "platform": "beacon",
            "county": "Bay",
            "url": site.page(n),
        }
        | fields
        for n in range(count)
    ]


def exchange(folder: Folder) -> dict[str, Any]:
    """What `sync status --json` prints."""
    done = folder.crawler("sync", "status", "--json")
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def test_from_handing_out_to_delivery(folder: Folder, site: Site, gateway: Gateway) -> None:
    """Every task is answered: results with their pages before them, failures with their reasons;
    then it drains."""
    # Given tasks of which one cannot be found, one has no URL, and one is not to be fetched at all
    working_for(folder, gateway)
    odd = [
        {"task_id": "gone/1?", "platform": "beacon", "url": f"{site.url}/status/404"},
        {"task_id": "no-url", "platform": "beacon", "parcel_id": "7"},
        {"task_id": "inside", "platform": "beacon", "url": "http://169.254.169.254/"},
    ]
    gateway.import_tasks([*tasks(site, 40), *odd])

    # When a stack works for the Gateway
    run = folder.start("crawler", "ondemand", "--workers", "2", "--capacity", "20")
    wait_for(
        lambda: gateway.counts()["results"] == 40 and gateway.counts()["failed"] == 3,
        60,
        "all answers",
    )

    # Then each result is there once, behind its page
    results = gateway.results()
    assert Counter(r["task_id"] for r in results) == Counter(f"t-{n}" for n in range(40))
    assert all(
        r["applied"] == 1 and r["raw_seq"] < r["seq"] and r["county"] == "Bay" for r in results
    )
    assert {r["data"]["title"] for r in results} == {
        f"Parcel {n} - Millbrook County" for n in range(40)
    }
    reasons = {
        task["task_id"]: task["error_type"] for task in gateway.tasks() if task["state"] == "failed"
    }
    assert reasons == {"gone/1?": "http_404", "no-url": "bad_task", "inside": "forbidden_address"}
    # And told to drain, it ends with everything delivered
    worker = exchange(folder)["worker_id"]
    gateway.tell(worker, "drain")
    assert run.wait(120) == 0, folder.log(run)
    facts = exchange(folder)
    assert (facts["results"]["synced"], facts["reports"]["synced"], facts["results"]["ready"]) == (
        40,
        3,
        0,
    )
    assert list((folder.data / "pending").iterdir()) == []
    assert folder.crawler("job", "verify", "gateway").returncode == 0
    assert "t-7" in folder.crawler("why", "t-7").stdout
    assert TOKEN not in folder.log(run) + "".join(
        p.read_text() for p in (folder.data / "logs").iterdir()
    )


def test_the_gateway_is_away_for_the_whole_crawl(
    folder: Folder, site: Site, gateway: Gateway
) -> None:
    """What was taken is collected without it, and delivered when it is back; nothing is marked
    before."""
    working_for(folder, gateway)
    gateway.import_tasks(tasks(site, 60))
    agent = folder.start("crawler", "agent", "--capacity", "60")
    wait_for(lambda: folder.books().accepted == 60, 30, "the tasks")
    agent.send_signal(signal.SIGTERM)
    agent.wait(120)
    gateway.stop()

    run = folder.start("crawler", "ondemand", "--workers", "2")
    folder.wait_until_done(60, 60)
    assert folder.books().synced == 0
    gateway.start()
    wait_for(lambda: folder.books().synced == 60, 60, "delivery")

    assert Counter(r["applied"] for r in gateway.results()) == {1: 60}
    run.send_signal(signal.SIGINT)
    assert run.wait(120) == 130
    assert "to continue" in folder.log(run)


def test_a_fleet_shares_the_work(tmp_path: Path, site: Site, gateway: Gateway) -> None:
    """Three stacks on one Gateway: each page is asked for once, by one of them, and all have
    some."""
    gateway.import_tasks(tasks(site, 300))
    folders = []
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        folders.append(working_for(Folder(tmp_path / name), gateway))
    try:
        for each in folders:
            each.start("crawler", "ondemand", "--workers", "1", "--capacity", "20")
        wait_for(lambda: gateway.counts()["results"] == 300, 120, "all results")

        assert set(site.hits().values()) == {1}
        assert Counter(r["applied"] for r in gateway.results()) == {1: 300}
        assert len(Counter(r["worker"] for r in gateway.results())) == 3
    finally:
        for each in folders:
            each.stop()


def test_an_expired_task_is_reported_and_not_fetched(
    folder: Folder, site: Site, gateway: Gateway
) -> None:
    """Its deadline passed before anybody had time for it."""
    working_for(folder, gateway)
    gateway.import_tasks(tasks(site, 2, deadline="2020-01-01T00:00:00Z"))

    folder.start("crawler", "ondemand", "--workers", "1")
    wait_for(lambda: gateway.counts()["failed"] == 2, 60, "the reports")

    assert {task["error_type"] for task in gateway.tasks()} == {"deadline"}
    assert folder.books().expired == 2
    assert site.hits() == {}


def test_what_dies_is_started_again(folder: Folder, site: Site, gateway: Gateway) -> None:
    """The agent killed with -9 in the middle comes back, and all is delivered once."""
    working_for(folder, gateway)
    gateway.import_tasks(tasks(site, 200))
    folder.start("crawler", "ondemand", "--workers", "1", "--capacity", "50")
    killed: set[int] = set()
    for share in (20, 80, 140):
        wait_for(partial(_has_results, gateway, share), 60, f"{share} results")
        pid = wait_for(partial(_agent, folder, killed), 30, "an agent")
        killed.add(pid)
        os.kill(pid, signal.SIGKILL)

    wait_for(
        lambda: gateway.counts()["results"] == 200 and folder.books().synced == 200,
        60,
        "all of them",
    )

    assert Counter(r["applied"] for r in gateway.results()) == {1: 200}
    assert set(site.hits().values()) == {1}


def _has_results(gateway: Gateway, count: int) -> bool:
    return gateway.counts()["results"] >= count


def _agent(folder: Folder, killed: set[int]) -> int | None:
    pid: int | None = folder.status()["pids"]["agent"]
    return None if pid in killed else pid


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"STANDALONE": "true"}, "STANDALONE=true"),
        ({"GATEWAY_SYNC": "disabled"}, "GATEWAY_SYNC=disabled"),
        ({"GATEWAY_URL": ""}, "GATEWAY_URL"),
        ({"GATEWAY_URL": "http://gateway.example"}, "https"),
        ({"GATEWAY_URL": "gateway.example"}, "is not an address"),
        ({"GATEWAY_URL": "https://me:hush@gateway.example"}, "must hold no user name"),
        ({"GATEWAY_TOKEN": ""}, "GATEWAY_TOKEN"),
        ({"GATEWAY_TOKEN": "", "GATEWAY_TOKEN_FILE": "missing"}, "missing"),
        ({"GATEWAY_TOKEN": "hush hush"}, "must be printable ASCII"),
    ],
)
def test_nothing_starts_that_could_not_work(folder: Folder, env: dict[str, str], said: str) -> None:
    """One line that says what is wrong, exit code 2, no process, no store and no secret shown."""
    with ScriptedGateway() as gateway:
        folder.env |= gateway.env | env
        for command in (["ondemand"], ["sync", "push"]):
            done = folder.crawler(*command)
            assert done.returncode == 2, done.stderr
            assert said in done.stderr
            assert "Traceback" not in done.stderr
            assert "hush" not in done.stderr
        assert gateway.calls == []
    assert not folder.data.exists()


def test_held_results_are_pushed_by_hand(folder: Folder, site: Site, gateway: Gateway) -> None:
    """A standalone crawl reaches the Gateway only by `sync push`, a job at a time, under our own
    ids."""
    working_for(folder, gateway)
    for name in ("first.txt", "second.txt"):
        folder.write(name, [f"{site.page(n)}?{name}" for n in range(5)])
        assert folder.crawler("run", name, "--workers", "1").returncode == 0
    assert exchange(folder)["results"]["held"] == 10

    done = folder.crawler("sync", "push", "--job", "first.txt", "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "released": 5,
        "results": 5,
        "replaced": 0,
        "reports": 0,
        "rejected": 0,
        "unsent": 0,
    }
    assert exchange(folder)["results"]["held"] == 5
    assert len(gateway.results()) == 5
    assert folder.crawler("sync", "push").returncode == 0
    assert len(gateway.results()) == 10


def test_a_bundle_is_pushed_from_another_machine(
    tmp_path: Path, folder: Folder, site: Site, gateway: Gateway
) -> None:
    """Collected here, carried on a stick, delivered there; typed again, it changes nothing."""
    folder.write("pages.txt", [site.page(n) for n in range(5)])
    assert folder.crawler("run", "pages.txt", "--workers", "1").returncode == 0
    bundle = tmp_path / "pages.crawlbundle.tar.zst"
    assert folder.crawler("results", "bundle", "--output", str(bundle)).returncode == 0
    (tmp_path / "there").mkdir()
    there = working_for(Folder(tmp_path / "there"), gateway)

    for _ in range(2):
        done = there.crawler("sync", "push", "--bundle", str(bundle))
        assert done.returncode == 0, done.stderr

    results = gateway.results()
    assert [r["applied"] for r in results] == [1] * 5
    assert all(r["raw_seq"] < r["seq"] for r in results)
    bad = there.crawler("sync", "push", "--bundle", "missing.tar.zst")
    assert (bad.returncode, "there is no such file" in bad.stderr) == (2, True)


def test_a_gateway_that_is_away_is_told_in_one_line(
    folder: Folder, site: Site, gateway: Gateway
) -> None:
    """`sync push` gives up with 3, and keeps what it could not deliver; typed again, it is
    delivered."""
    working_for(folder, gateway)
    folder.write("pages.txt", [site.page(0)])
    folder.crawler("run", "pages.txt", "--workers", "1")
    gateway.stop()

    done = folder.crawler("sync", "push", CRAWLER_LOG_LEVEL="error")

    assert done.returncode == 3, done.stderr
    assert "1 are still to be delivered" in done.stderr
    gateway.start()
    assert folder.crawler("sync", "push").returncode == 0
    assert len(gateway.results()) == 1


def test_rejected_results_are_shown_and_sent_again(folder: Folder, site: Site) -> None:
    """With the Gateway's reason; `sync retry` sends them once more."""
    with ScriptedGateway() as gateway:
        working_for(folder, gateway)
        gateway.rules = [
            lambda call: (
                (422, {"error": {"message": "parcel_id is unknown"}})
                if "/results" in call.path
                else None
            )
        ]
        folder.write("pages.txt", [site.page(0)])
        folder.crawler("run", "pages.txt", "--workers", "1")
        assert folder.crawler("sync", "push").returncode == 1

        shown = folder.crawler("sync", "rejected").stdout
        assert "422" in shown
        assert "parcel_id is unknown" in shown
        gateway.rules = []
        assert "1 will be delivered again" in folder.crawler("sync", "retry").stdout
        assert folder.crawler("sync", "push").returncode == 0
        assert len(gateway.results) == 1
        assert folder.crawler("sync", "retry", "unknown").returncode == 1


def test_a_stop_is_quick_whatever_the_gateway_does(folder: Folder, site: Site) -> None:
    """SIGTERM in the middle of an exchange that hangs: all is down before that has ended, and goes
    on the next time."""
    with ScriptedGateway() as gateway:
        working_for(folder, gateway)
        gateway.work = [{"task_id": "t-1", "target": {"url": site.page(1)}}]

        hanging, answering = threading.Event(), threading.Event()

        def hang(call: Call) -> None:
            if "/raw-files" in call.path:
                hanging.set()
                answering.wait(300)

        gateway.waits = hang
        run = folder.start("crawler", "ondemand", "--workers", "1")
        wait_for(hanging.is_set, 60, "the exchange")
        family = psutil.Process(run.pid).children(recursive=True)
        run.send_signal(signal.SIGTERM)

        assert run.wait(120) == 143
        assert WORKER_GRACE_S + AGENT_GRACE_S + REDIS_GRACE_S < 10  # a stop waits for nothing else
        assert not [
            process for process in family if process.is_running() and process.status() != "zombie"
        ]
        answering.set()
        folder.start("crawler", "ondemand", "--workers", "1")
        wait_for(lambda: "t-1" in gateway.results, 60, "the result")


def test_a_gateway_is_left_alone_for_as_long_as_it_says(folder: Folder) -> None:
    """`Retry-After`, as seconds and as a date, holds for every kind of call; without it waits grow
    by themselves."""
    # Given a Gateway that wants to be left alone: for seconds, until a moment, by two words at
    # once, and without a word
    asked: dict[str, list[float]] = defaultdict(list)
    until: list[float] = []

    def rule(call: Call) -> Answer | None:
        now, path = time.time(), call.path.partition("?")[0]
        asked[path].append(now)
        match path, len(asked[path]):
            case _, 1:
                return 429, {}, {"Retry-After": "2"}
            case "/internal/work", 2:
                until.append(now + 2)
                return 503, {}, {"Retry-After": formatdate(until[0], usegmt=True)}
            case "/internal/work", 3:
                return 200, {"tasks": [], "retry_after": 1}, {"Retry-After": "2"}
            case _:
                return 503, {}

    with ScriptedGateway() as gateway:
        working_for(folder, gateway)
        gateway.rules = [rule]
        with closing(folder.lpm()) as lpm:
            give(lpm, 1)

        # When an agent asks it for work, has a page for it, and sends its heartbeat
        folder.start("crawler", "agent")
        paths = [f"/internal/{name}" for name in ("work", "raw-files", "heartbeat")]
        wait_for(
            lambda: all(len(asked[path]) >= 5 for path in paths), 120, "five calls of each kind"
        )

    # Then no call came too early
    work, *others = ([later - sooner for sooner, later in pairwise(asked[path])] for path in paths)
    assert work[0] >= 2
    assert asked["/internal/work"][2] >= int(until[0])
    assert (work[2] >= 2, work[3] >= 0.25) == (True, True)
    for waits in others:
        assert waits[0] >= 2
        assert (waits[1] >= 0.5, waits[2] >= 1, waits[3] >= 2) == (True, True, True)


def test_the_heart_beats_while_the_queue_is_full_and_while_it_is_paused(folder: Folder) -> None:
    """In neither state is work asked for, and every beat has the counts of its moment."""
    with ScriptedGateway() as gateway, closing(folder.lpm()) as lpm:
        # Given as many open tasks as there is room for, and a Gateway that hears every third beat,
        # and says `pause`
        working_for(folder, gateway)
        assign(lpm, *(given(f"t-{n}", f"http://a.example/{n}") for n in range(6)))
        done, failed = claim(lpm, 2)
        lpm.save_result(completed(done))
        fail(lpm, failed)

        def beats() -> list[dict[str, int]]:
            return [call.json["queue"] for call in gateway.asked("/internal/heartbeat")]

        def rule(call: Call) -> Answer | None:
            if "/heartbeat" not in call.path:
                return None
            return (
                (503, {})
                if len(beats()) % 3
                else (200, {"acknowledged": True, "commands": ["pause"]})
            )

        gateway.rules = [rule]

        # When an agent runs until it is told to pause, and another one once there is room again
        agent = folder.start("crawler", "agent", "--capacity", "4")
        wait_for(lambda: lpm.jobs.all()[-1].hold == "paused", 120, "the pause")
        agent.terminate()
        agent.wait(120)
        full = beats()
        lpm.jobs.release(lpm.jobs.all()[-1])
        lpm.save_result(*(completed(task) for task in claim(lpm, 3)))
        folder.start("crawler", "agent", "--capacity", "4")
        wait_for(lambda: len(beats()) >= len(full) + 3, 120, "the beats of a paused one")

    # Then the heart has beaten all the time, and nothing was asked for
    paused = beats()[len(full) :]
    states = ("pending", "processing", "completed", "failed")
    assert len(full) >= 3
    assert {tuple(beat[state] for state in states) for beat in full} == {(4, 0, 1, 1)}
    assert {tuple(beat[state] for state in states) for beat in paused} == {(1, 0, 4, 1)}
    assert gateway.asked("/internal/work") == []


def test_a_result_is_in_the_results_table_before_it_is_sent(folder: Folder, site: Site) -> None:
    """Its row in `results` and COMPLETED are there while the Gateway takes nothing; SYNCED comes
    with the delivery."""
    # Given a Gateway with a task, which takes no results yet
    with ScriptedGateway() as gateway:
        working_for(folder, gateway)
        gateway.work = [
            {
                "task_id": "t-1",
                "platform": "beacon",
                "target": {"url": site.page(1), "parcel_id": "7"},
            }
        ]
        gateway.rules = [lambda call: (503, {}) if "/results" in call.path else None]

        # When the task is done, and later its result is taken
        folder.start("crawler", "ondemand", "--workers", "1")
        wait_for(lambda: gateway.asked("/internal/results"), 120, "the first attempt to deliver it")
        [before] = stored(folder)
        gateway.rules = []
        wait_for(lambda: folder.books().synced == 1, 120, "delivery")

    # Then the row was there all the time, with what was delivered
    assert stored(folder) == [before | {"state": "synced"}]
    assert (before["external_id"], before["status"], before["state"]) == (
        "t-1",
        "completed",
        "ready",
    )
    assert json.loads(before["record"]) == gateway.results["t-1"]["data"]
    assert before["body_sha256"] == gateway.results["t-1"]["raw_html_hash"]
    assert (before["final_url"], before["status_code"], before["verdict"]) == (
        site.page(1),
        200,
        "ok",
    )


def stored(folder: Folder) -> list[dict[str, Any]]:
    """The results, as any SQLite program reads them."""
    with closing(sqlite3.connect(f"file:{folder.data}/lpm.db?mode=ro", uri=True)) as db:
        db.row_factory = sqlite3.Row
        rows = db.execute(
            """SELECT results.*, tasks.external_id, tasks.status, outbox.state FROM results
               JOIN tasks ON tasks.id = results.task JOIN outbox ON outbox.task = results.task"""
        )
        return [dict(row) for row in rows]
