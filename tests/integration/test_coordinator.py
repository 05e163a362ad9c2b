"""CrawlCoordinator through the real door: programs, their processes, workers and a real site."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from crawler import CrawlCoordinator, CrawlerError, Store, scrape
from crawler.coordinator import Progress
from crawler.db import owners
from crawler.errors import UsageError
from tests.support.pages import Answer, Pages, parcel
from tests.support.site import Site
from tests.support.stack import Folder, wait_for

ROOT = Path(__file__).parents[2]
NOWHERE = "redis://127.0.0.1:1/0"
"""No Redis answers there."""


@pytest.fixture
def here(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """A folder whose settings are also those of this process, which must leave no process."""
    folder.env |= {
        "CRAWLER_ALLOW_NETS": "127.0.0.0/8",
        "CRAWLER_DATA_DIR": str(folder.data),
    }
    for name in [each for each in os.environ if each.startswith(("CRAWLER_", "REDIS_"))]:
        monkeypatch.delenv(name)
    for name, value in folder.env.items():
        if name.startswith("CRAWLER_"):
            monkeypatch.setenv(name, value)
    yield folder
    assert direct(folder) == []


def direct(folder: Folder) -> list[int]:
    """The living processes of sessions."""
    notes = owners.living(folder.data / "run" / "owners")
    return [note.pid for note in notes if note.about.get("kind") == "direct"]


def shown(results: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """URL and status of each result."""
    return [(each["url"], each["status"]) for each in results]


def program(folder: Folder, session: str, urls: list[str], *how: str) -> "subprocess.Popen[str]":
    """Start a program that crawls URLs in a session."""
    file = folder.write(f"{session}.txt", urls)
    argv = ("tests.support.program", session, str(file), *how)
    return folder.start(*argv, PYTHONPATH=str(ROOT))


def printed(folder: Folder, process: "subprocess.Popen[str]") -> dict[str, Any]:
    """What a program has printed in the end."""
    assert process.wait(120) == 0, folder.log(process)
    found: dict[str, Any] = json.loads(folder.log(process).splitlines()[-1])
    return found


def test_results_come_in_the_order_asked(here: Folder, site: Site) -> None:
    """Duplicates, URLs that are none and failures have their places; each page is fetched once, and
    the statistics add up."""
    asked = [site.page(2, 0.2), site.page(1), "no url", f"{site.url}/status/404", site.page(1)]
    told: list[tuple[int, int]] = []
    coordinator = CrawlCoordinator("order")

    results = coordinator.crawl_many_sync(
        asked, on_progress=lambda done, total: told.append((done, total))
    )

    assert shown(results) == list(
        zip(asked, ["success", "success", "failed", "failed", "success"], strict=True)
    )
    assert [each.get("reason") for each in results[2:4]] == ["invalid_url", "http_404"]
    assert results[0]["data"]["title"] == results[0]["title"] == "Parcel 2 - Millbrook County"
    assert told[-1] == (5, 5)
    assert told == sorted(told)
    assert site.hits()["/page/1"] == 1
    stats = coordinator.statistics
    assert stats
    assert (stats.total, stats.success, stats.failed, stats.workers_used) == (5, 3, 2, 1)
    assert stats.reasons == {"invalid_url": 1, "http_404": 1}
    assert stats.bytes == sum(each["metadata"]["bytes"] for each in results if "data" in each)
    assert 0 < stats.seconds < 120


def test_a_session_is_replayed_and_goes_on(here: Folder, site: Site) -> None:
    """The same call fetches nothing; further URLs are fetched alone; another session is another
    crawl."""
    first = CrawlCoordinator("again").crawl_many_sync([site.page(1), site.page(2)])
    again = CrawlCoordinator("again").crawl_many_sync([site.page(1), site.page(2)])
    more = CrawlCoordinator("again").crawl_many_sync([site.page(2), site.page(3)])
    hits = dict(site.hits())
    new = scrape(site.page(1))

    assert first == again
    assert more[0]["task_id"] == first[1]["task_id"]
    assert [hits[f"/page/{n}"] for n in (1, 2, 3)] == [1, 1, 1]
    assert new["task_id"] != first[0]["task_id"]
    assert site.hits()["/page/1"] == 2
    with Store() as store:
        assert next(job["name"] for job in store.jobs()) == "again"
        assert len(list(store.results("again"))) == 3
        assert b"Parcel 3" in store.page(site.page(3))
        assert [step["what"] for step in store.timeline(site.page(3))][:2] == [
            "imported", "claimed",
        ]  # fmt: skip
        with pytest.raises(UsageError, match="no task"):
            store.page("http://nowhere.example/")


def test_results_stream_as_they_are_stored(here: Folder, site: Site) -> None:
    """A page that is slow holds up no other; progress may be awaited; nothing asked is nothing
    done."""
    held = f"{site.url}/hold/1"

    async def crawl() -> list[tuple[str, str]]:
        found = []
        coordinator = CrawlCoordinator("stream")
        async for result in coordinator.stream([held, site.page(1), "no url"]):
            found.append((result["url"], result["status"]))
            if len(found) == 2:
                await asyncio.to_thread(site.release)
        assert coordinator.statistics
        assert coordinator.statistics.success == 2
        return found

    found = asyncio.run(crawl())
    told: list[int] = []

    async def tell(done: int, total: int) -> None:
        await asyncio.sleep(0)
        told.append(done)

    async def again() -> list[dict[str, Any]]:
        return await CrawlCoordinator("stream").crawl_many([held, site.page(1), "no url"], {}, tell)

    assert found == [("no url", "failed"), (site.page(1), "success"), (held, "success")]
    assert len(asyncio.run(again())) == 3
    assert told == [3]
    assert CrawlCoordinator().crawl_many_sync([]) == []


def test_headers_are_sent_and_stored_nowhere_else(here: Folder, pages: Pages) -> None:
    """Only a file that its owner alone can read has them: no ledger, log, argument or result."""
    pages.answers["/a"] = Answer(parcel(1))

    [result] = CrawlCoordinator("secret").crawl_many_sync(
        [f"{pages.url}/a"], {"headers": {"X-Key": "open-sesame"}}
    )

    assert result["status"] == "success"
    sent = [each.headers for each in pages.asked if each.path == "/a"]
    assert [headers["x-key"] for headers in sent] == ["open-sesame"]
    files = [path for path in here.data.rglob("*") if path.is_file()]
    [holding] = [path for path in files if b"open-sesame" in path.read_bytes()]
    assert holding.parent.name == "sessions"
    assert holding.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("urls", "options", "says"),
    [
        ("http://a.example/", {}, "urls: Expected `array`"),
        ([1], {}, "urls: Expected `str`"),
        (None, {}, "urls: Expected `array`"),
        (3, {}, "urls: Expected `array`"),
        (["http://a.example/"], [], "options: Expected `object`"),
        (["http://a.example/"], {"speed": 1}, "unknown field `speed`"),
        (["http://a.example/"], {"rate": "fast"}, "options: rate"),
        (["http://a.example/"], {"formats": ["pdf"]}, "Invalid enum value 'pdf'"),
        (["http://a.example/"], {"headers": {"a b": "c"}}, "header"),
        (["http://a.example/"], {"priority": 10}, "priority"),
        (["http://a.example/"] * 100_001, {}, "100,001 URLs are more than"),
    ],
)
def test_bad_arguments_are_refused_and_touch_no_session(
    here: Folder, urls: Any, options: dict[str, Any], says: str
) -> None:
    """The message names the argument; a session of that name stays as it was."""
    CrawlCoordinator("kept").crawl_many_sync(["nonsense"])

    with pytest.raises(UsageError) as caught:
        CrawlCoordinator("kept").crawl_many_sync(urls, options)

    assert says in str(caught.value)
    with Store() as store:
        assert [job["hold"] for job in store.jobs()] == [None]


@pytest.mark.parametrize("session", ["", " x", "x\n", "y" * 101, 5])
def test_a_session_needs_a_name_that_can_be_shown(here: Folder, session: Any) -> None:
    """No empty, endless or many-lined one."""
    with pytest.raises(CrawlerError, match="session_id"):
        CrawlCoordinator(session)


def test_an_event_loop_is_not_blocked(here: Folder, site: Site) -> None:
    """`crawl_many_sync` is refused inside a loop, and `crawl_many` lets others run."""

    async def crawl() -> int:
        with pytest.raises(UsageError, match="await crawl_many"):
            CrawlCoordinator("loop").crawl_many_sync([])
        call = asyncio.create_task(CrawlCoordinator("loop").crawl_many([site.page(1)]))
        turns = 0
        while not call.done():
            turns += 1
            await asyncio.sleep(0.001)
        return turns

    assert asyncio.run(crawl()) > 20


# Ends before the end


def test_after_a_timeout_the_ledger_keeps_what_is_open(here: Folder, site: Site) -> None:
    """What is done is returned, the rest is `pending`; the same call goes on and fetches the rest
    once."""
    asked = [site.page(1), f"{site.url}/hold/1"]
    told: list[int] = []

    def tell(done: int, total: int) -> None:
        told.append(done)

    results = CrawlCoordinator("late").crawl_many_sync(asked, None, tell, timeout_s=1.5)
    site.release()
    again = CrawlCoordinator("late").crawl_many_sync(asked)

    assert results[1]["status"] == "pending"
    assert results[1]["error"].startswith("it is not done yet")
    assert [each["status"] for each in again] == ["success", "success"]
    assert site.hits()["/page/1"] == 1


def test_a_session_can_be_cancelled(here: Folder, site: Site) -> None:
    """What has not begun is skipped, the call returns, and the session takes no further URL."""
    asked = [f"{site.url}/hold/{n}" for n in range(30)] + [site.page(1)]
    coordinator = CrawlCoordinator("gone")

    async def cancel() -> None:
        call = asyncio.create_task(coordinator.crawl_many(asked))
        await asyncio.to_thread(wait_for, site.hits, 60, "the first request")
        await coordinator.cancel()
        await asyncio.to_thread(site.release)
        results = await call
        assert {"skipped", "completed"} >= {each["state"] for each in results}
        assert "cancelled" in {each["reason"] for each in results if "reason" in each}

    asyncio.run(cancel())

    assert here.books().pending == 0
    with pytest.raises(UsageError, match="was cancelled"):
        coordinator.crawl_many_sync([site.page(5)])


@pytest.mark.parametrize("how", ["task", "break"])
def test_a_call_that_is_left_keeps_the_session(here: Folder, site: Site, how: str) -> None:
    """A cancelled call, as by Ctrl-C, and a stream that is left: no process stays, nothing is lost,
    and the same call goes on."""
    asked = [f"{site.url}/hold/{n}" for n in range(10)] + [site.page(1)]
    coordinator = CrawlCoordinator("left")

    async def cancel() -> None:
        call = asyncio.create_task(coordinator.crawl_many(asked))
        await asyncio.to_thread(wait_for, site.hits, 60, "the first request")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    async def leave() -> None:
        async for _ in coordinator.stream(["nonsense", *asked]):
            break

    asyncio.run(leave() if how == "break" else cancel())
    site.release()
    results = coordinator.crawl_many_sync(asked)

    assert {each["status"] for each in results} == {"success"}
    assert here.books().accepted == len(asked)


def test_an_error_of_the_program_keeps_the_session(here: Folder, site: Site) -> None:
    """An exception of `on_progress` reaches the caller; the same call goes on."""
    asked = [site.page(n) for n in range(40)]

    def broken(done: int, total: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        CrawlCoordinator("careless").crawl_many_sync(asked, on_progress=broken)
    results = CrawlCoordinator("careless").crawl_many_sync(asked)

    assert {each["status"] for each in results} == {"success"}
    assert here.books().results == 40
    assert max(site.hits().values()) <= 2  # what was in flight is fetched again


def test_ctrl_c_keeps_the_session(here: Folder, site: Site) -> None:
    """A program without a loop that is interrupted goes on when it is started again."""
    asked = [site.page(1), f"{site.url}/hold/1", *(site.page(n, 0.1) for n in range(2, 30))]
    first = program(here, "stopped", asked)
    wait_for(lambda: here.log(first), 60, "a page")
    first.send_signal(signal.SIGINT)
    assert first.wait(60) != 0
    assert "KeyboardInterrupt" in here.log(first)
    site.release()

    found = printed(here, program(here, "stopped", asked))

    assert {each["status"] for each in found["results"]} == {"success"}
    assert site.hits()["/page/1"] == 1


def test_a_paused_session_is_not_waited_for_forever(here: Folder, site: Site) -> None:
    """The results say that it is paused, and which command lets it go on."""
    asked = ["no url", *(site.page(n) for n in range(5))]
    coordinator = CrawlCoordinator("paused", give_up_s=0.1)

    def pause(done: int, total: int) -> None:
        here.crawler("job", "pause", "paused")  # what is no URL ends before a page is fetched

    results = coordinator.crawl_many_sync(asked, on_progress=pause)
    here.crawler("job", "resume", "paused")
    again = CrawlCoordinator("paused").crawl_many_sync(asked)

    assert [each["status"] for each in results] == ["failed", *["pending"] * 5]
    assert all("job resume paused" in each["error"] for each in results[1:])
    assert [each["status"] for each in again] == ["failed", *["success"] * 5]


# Commands beside it


def test_commands_know_sessions(here: Folder, site: Site) -> None:
    """While a program's process works, `status` names it and nothing stands still; when the program
    is killed, `resume` does the rest, and every command has words for it."""
    asked = [site.page(1), "no url", site.page(1), f"{site.url}/hold/1"]
    killed = program(here, "words", asked)
    wait_for(lambda: "/hold/1" in site.hits(), 60, "the page that is held")

    busy = here.crawler("status")
    [process] = direct(here)
    killed.kill()
    wait_for(lambda: not direct(here), 60, "the end of its process")
    still = here.crawler("status")
    site.release()
    done = here.crawler("resume")

    assert f"processes of programs {process}" in busy.stdout
    assert "STANDSTILL" not in busy.stdout + busy.stderr
    assert "Redis" not in busy.stdout
    assert "nothing works on 1 open task" in still.stdout
    assert done.returncode == 0, done.stderr
    assert "4 rows = 2 new + 1 known + 1 rejected" in here.crawler("job", "verify", "words").stdout
    why = here.crawler("why", site.page(1)).stdout
    assert "door batch" in why
    assert "also wanted  job words, line 3" in why
    for command in (
        ("job", "list"), ("results", "list"), ("doctor",), ("tasks", "list"), ("audit",),
        ("results", "export", "--all-rows", "--job", "words", "--output", "all.csv"),
        ("results", "bundle", "--output", "b.tar.zst"),
    ):  # fmt: skip
        ran = here.crawler(*command)
        assert ran.returncode == 0, (command, ran.stdout, ran.stderr)
    assert (here.path / "all.csv").read_text().count("\n") == 5
    other = Folder(here.path / "other")
    other.path.mkdir()
    assert other.crawler("results", "unbundle", str(here.path / "b.tar.zst")).returncode == 0
    assert other.crawler("doctor").returncode == 0
    assert here.crawler("prune", "--jobs", "--older-than", "0s").returncode == 0
    assert here.crawler("doctor").returncode == 0


def test_two_programs_share_a_session(here: Folder, site: Site) -> None:
    """Both get every result, each page is fetched once; if the one that runs the process is killed,
    the other one goes on."""
    asked = [site.page(n, 0.05) for n in range(60)]
    programs = [program(here, "both", asked) for _ in range(2)]
    wait_for(lambda: len(site.hits()) > 5, 60, "some pages")
    [process] = direct(here)
    [runs] = [each for each in programs if each.pid == psutil.Process(process).ppid()]
    runs.kill()
    [other] = [each for each in programs if each is not runs]

    found = printed(here, other)

    assert shown(found["results"]) == [(url, "success") for url in asked]
    runs.wait(60)
    assert sum(site.hits().values()) <= here.attempts(), "more than was in flight"


def test_nothing_is_imported_that_is_not_needed(here: Folder, site: Site) -> None:
    """`import crawler` loads none of Celery, redis and FastAPI; a crawl without a stack loads none
    of them in the program."""
    code = "import crawler, sys; print({'celery', 'redis', 'fastapi'} & set(sys.modules))"
    bare = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=here.env
    )

    assert bare.stdout == "set()\n"
    assert printed(here, program(here, "light", [site.page(1)]))["loaded"] == []


# Through workers


def test_without_redis_and_workers_a_call_returns_with_reasons(
    here: Folder, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in the ledger stays there, and a call without workers does it."""
    monkeypatch.setenv("REDIS_URL", NOWHERE)

    results = CrawlCoordinator("nobody", distributed=True, give_up_s=0.1).crawl_many_sync(
        [site.page(1), "no url"]
    )
    monkeypatch.delenv("REDIS_URL")
    again = CrawlCoordinator("nobody").crawl_many_sync([site.page(1), "no url"])

    assert [each["status"] for each in results] == ["pending", "failed"]
    assert results[0]["error"].startswith("it is not done yet: Redis does not answer")
    assert [each["status"] for each in again] == ["success", "failed"]


def test_workers_fetch_what_is_distributed(
    here: Folder, site: Site, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two workers of which one is killed, and Redis emptied on the way, every URL has a result
    once and in its place."""
    here.env |= {"REDIS_URL": redis_url}
    monkeypatch.setenv("REDIS_URL", redis_url)
    workers = [here.worker(concurrency=1) for _ in range(2)]
    asked = [site.page(n, 0.05) for n in range(150)]
    struck = threading.Event()

    def strike(done: int, total: int) -> None:
        if done > 20 and not struck.is_set():
            struck.set()
            for child in here.children(workers[0].pid):
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            os.killpg(workers[0].pid, signal.SIGKILL)
            here.redis().flushall()

    on_progress: Progress = strike
    coordinator = CrawlCoordinator("many", distributed=True)
    results = coordinator.crawl_many_sync(asked, on_progress=on_progress)

    assert struck.is_set()
    assert shown(results) == [(url, "success") for url in asked]
    assert len({each["task_id"] for each in results}) == len(asked)
    assert coordinator.statistics
    assert coordinator.statistics.workers_used == 2
    assert sum(site.hits().values()) <= here.attempts(), "more than was in flight"


def test_four_workers_take_less_than_half_the_time_of_one(
    here: Folder, site: Site, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 pages of a server that takes its time, with one page at a time in each worker."""
    here.env |= {"REDIS_URL": redis_url, "CRAWLER_PAGES": "1"}
    monkeypatch.setenv("REDIS_URL", redis_url)

    def seconds(session: str, workers: int) -> float:
        coordinator = CrawlCoordinator(session, distributed=True)
        results = coordinator.crawl_many_sync([site.page(n, 0.06) for n in range(100)])
        assert {each["status"] for each in results} == {"success"}
        assert coordinator.statistics
        assert coordinator.statistics.workers_used == workers
        return coordinator.statistics.seconds

    here.worker(concurrency=1)
    seconds("warm", 1)
    alone = seconds("one", 1)
    here.worker(concurrency=3)

    assert seconds("four", 4) < alone / 2


def test_a_session_keeps_its_rate(here: Folder, site: Site) -> None:
    """The option limits each domain, and the audit proves it."""
    coordinator = CrawlCoordinator("polite")
    coordinator.crawl_many_sync([site.page(n) for n in range(8)], {"rate": "10/s"})

    [facts] = json.loads(here.crawler("audit", "--json").stdout)
    assert facts["limits"] == ["10/s, 10 at a time"]
    assert (facts["requests"], facts["breaches"]) == (9, [])  # with robots.txt
    assert coordinator.statistics
    assert coordinator.statistics.seconds >= 0.8
