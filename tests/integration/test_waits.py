"""What a crawl waits for: every command says it with until when and what changes it; bad pages hold
no good ones."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import redis
from msgspec.structs import replace

from crawler import times
from crawler.cli.commands.status import gather, wait_lines
from crawler.config import Settings
from crawler.db import owners
from crawler.lpm import LocalPersistenceManager
from crawler.models import RateRule
from crawler.redis_client import RedisAddress
from crawler.resilience.permit import PermitRequest, RequestReport
from crawler.resilience.redis_rate_limiter import RedisRateLimiter
from crawler.stack import read_stack
from crawler.waits import WaitFinder
from tests.support.pages import Answer, Pages
from tests.support.patient import change, crawl
from tests.support.site import Site
from tests.support.stack import Folder, wait_for
from tests.support.tasks import new, open_job

CLOCK = r"(?:\w{3} \d\d \w{3} )?[\d:]+ \w+"
"""A time of day, with its date where that is not today's."""
TIME = rf"{CLOCK}, in \d+ \w+"


def test_captchas_at_the_head_of_a_list_do_not_hold_its_other_pages(
    folder: Folder, site: Site
) -> None:
    """The domain is probed with a page that was not refused; what was refused is tried again behind
    all others."""
    folder.env["CRAWLER_RATE"] = "20/s"
    walls = [f"{site.url}/captcha/{n}" for n in range(8)]
    pages = [site.page(n) for n in range(30)]
    run = folder.start(
        "crawler", "run", str(folder.write("pages.txt", [*walls, *pages])), "--workers", "1"
    )

    assert run.wait(600) == 1
    with contextlib.closing(folder.lpm()) as lpm:
        rows = lpm.store.db.all(
            "SELECT url, detail FROM events JOIN tasks ON tasks.id = task "
            "WHERE detail LIKE '%\"attempt\"%'"
        )
        books = lpm.counts.totals()

    attempts = [(url, json.loads(detail)) for url, detail in rows]
    good = [detail["claimed_at"] for url, detail in attempts if url in pages]
    again = [
        detail["claimed_at"] for url, detail in attempts if url in walls and detail["attempt"] > 1
    ]
    assert (books.completed, books.failed) == (30, 8)
    assert len(again) == 16
    assert max(good) <= min(again)
    assert folder.log(run).count("/captcha/") == 1, "one example of a reason is enough"


def test_a_long_row_of_captchas_does_not_close_a_domain_that_answers(
    folder: Folder, site: Site
) -> None:
    """Once a page is refused, the next ones are taken from elsewhere: most come, and no pause is
    needed."""
    sites = folder.path / "config" / "sites"
    sites.mkdir(parents=True)
    (sites / "here.yaml").write_text("hosts: [127.0.0.1]\nrate: 20/s\nconcurrency: 1\n")
    urls = [*(f"{site.url}/captcha/{n}" for n in range(10)), *(site.page(n) for n in range(200))]
    run = folder.start("crawler", "run", str(folder.write("pages.txt", urls)), "--workers", "1")

    folder.wait_until_completed(100, 300)
    said = folder.log(run)
    run.terminate()
    run.wait(120)

    assert "circuit open" not in said


def permits(folder: Folder) -> redis.Redis:
    """The database with what all workers share of each domain."""
    address = RedisAddress.parse(read_stack(folder.data).redis_url or "")
    return redis.Redis.from_url(address.for_redis(folder.settings.redis_rate_limiter_db))


class Desk:
    """Somebody who has typed `run`, and looks at what it and `status` say."""

    def __init__(self, folder: Folder, site: Site) -> None:
        self.folder = folder
        walls = [f"{site.url}/captcha/{n}" for n in range(8)]
        self.page = site.page(29)
        rows = [
            *(f"{url},1" for url in walls),
            *(f"{site.page(n)},5" for n in range(30)),
        ]  # so that the circuit opens
        free = shutil.disk_usage(folder.path).free
        self.ballast = min(8_000_000_000, free // 4)  # other tests take room, too
        folder.env |= {
            "CRAWLER_RATE": "20/s",
            "CRAWLER_STALL_S": "60",
            "CRAWLER_MIN_FREE": str(free - self.ballast // 2),
        }
        self.file = folder.write("pages.csv", ["url,priority", *rows])
        self.run = folder.start("crawler", "run", str(self.file), "--workers", "1", "--job", "mine")

    def said(self, text: str) -> None:
        """Wait until `run` has said something, as a warning and in its line."""
        wait_for(
            lambda: re.search(f"warning: .*{text}", self.folder.log(self.run)), 60, f"run: {text}"
        )
        wait_for(
            lambda: re.search(f"done.*, {text}", self.folder.log(self.run)),
            60,
            f"the line of run: {text}",
        )

    def status(self, text: str) -> str:
        """What `status` says of the reason, once it does."""

        def found() -> str:
            return next(
                (
                    line
                    for line in self.lines("status")
                    if re.match(f"(STANDSTILL|WAITS): {text}", line)
                ),
                "",
            )

        return str(wait_for(found, 60, f"status: {text}"))

    def lines(self, *command: str) -> list[str]:
        """The lines of a command."""
        return self.folder.crawler(*command).stdout.splitlines()

    def waits(self, kind: str) -> dict[str, Any]:
        """The wait of a kind, of `status --json`."""
        return next(wait for wait in self.folder.status()["waits"] if wait["kind"] == kind)

    def type(self, command: str) -> None:
        """Type a command as it was shown."""
        assert command.startswith("python -m crawler ")
        done = self.folder.crawler(*shlex.split(command)[3:])
        assert done.returncode == 0, done.stderr


def test_run_and_status_say_at_every_moment_what_the_crawl_waits_for(
    folder: Folder, site: Site
) -> None:
    """A circuit, a full disk, a stopped Redis, a pause, a slow page, no worker: what, until when,
    and what helps."""
    desk = Desk(folder, site)

    # A circuit that is open for ten minutes, which all commands say
    wait_for(lambda: "circuit open because captcha" in folder.log(desk.run), 60, "the circuit")
    until = time.time() + 600
    permits(folder).hset(
        "circuit:127.0.0.1", mapping={"state": "OPEN", "open_until": repr(until), "open_for": "600"}
    )
    hint = "python -m crawler domains reset 127.0.0.1"
    desk.said("127.0.0.1: circuit open because captcha")
    assert re.search(
        rf"circuit open because captcha, \d+ tasks wait until {TIME}; {hint}", desk.status("127")
    )
    wait = desk.waits("circuit")
    assert abs(wait["until"] - until) < 2
    assert (wait["command"], wait["domain"]) == (hint, "127.0.0.1")
    told = "\n".join(desk.lines("why", desk.page))
    assert re.search(rf"waits for +127\.0\.0\.1: circuit open because captcha.* until {TIME}", told)
    shown = json.loads(folder.crawler("job", "show", "mine", "--json").stdout)
    assert shown["forecast"]["seconds"] >= until - time.time() - 1
    assert "circuit" in [each["kind"] for each in shown["waits"]]
    assert any(
        line.startswith("waits: 127.0.0.1: circuit open")
        for line in desk.lines("job", "show", "mine")
    )
    log = folder.data / "logs" / "worker.log"
    wait_for(
        lambda: "does not move: 127.0.0.1: circuit open because captcha" in log.read_text(),
        60,
        "the log",
    )
    watch = folder.start("crawler", "status", "--watch")
    wait_for(
        lambda: "127.0.0.1: circuit open because captcha" in folder.log(watch),
        60,
        "the same in the live view",
    )
    watch.terminate()

    # A full disk
    weight = folder.path / "ballast"
    with weight.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, desk.ballast)
    desk.said(r"only [\d,]+ MB are free")
    assert re.search("nothing more is fetched until .* MB are; free some room", desk.status("only"))
    assert desk.waits("disk")["stops"]
    weight.unlink()

    # A stopped Redis
    server = read_stack(folder.data).redis
    assert server
    os.kill(server.pid, signal.SIGSTOP)
    try:
        desk.said("Redis does not answer")
        assert "the supervisor starts it again by itself, after 180 s of silence" in desk.status(
            "Redis does not answer"
        )
        assert desk.waits("redis")["stops"]
    finally:
        os.kill(server.pid, signal.SIGCONT)

    # A pause, ended by the command that is shown
    folder.crawler("job", "pause", "mine")
    desk.said("it is paused")
    assert "python -m crawler job resume mine goes on" in desk.status("all that is open is paused")
    desk.type(desk.waits("paused")["command"])

    # The circuit is closed by its command; a slow page is waited for
    held = folder.write("held.txt", [f"{site.url}/hold/page"])
    assert folder.crawler("bulk", "import", str(held), "--job", "mine").returncode == 0
    desk.type(hint)
    slow = f"waiting for {site.url}/hold/page since"
    desk.said(slow)
    assert re.search(
        rf"{slow} [\d:]+ until {TIME}; it is given up then", desk.status("waiting for")
    )

    # Ctrl-C, then nobody works
    desk.run.send_signal(signal.SIGINT)
    assert desk.run.wait(120) == 130
    assert re.search(r"\d+ of 39 are done, [1-9]\d* (is|are) left", folder.log(desk.run))
    assert re.search(
        "nothing works on .*; python -m crawler resume goes on", desk.status("nothing works on")
    )

    # And the rest comes in
    site.release()
    assert (
        folder.crawler(
            "run", str(desk.file), "--workers", "1", "--job", "mine", limit_s=600
        ).returncode
        == 1
    )
    again = folder.crawler("resume")
    assert "no task is open: nothing was fetched" in again.stderr
    books = folder.books()
    assert (books.completed, books.failed) == (31, 8)


def test_a_run_with_nothing_to_do_says_since_when(folder: Folder, site: Site) -> None:
    """Where its job was finished before it could tell, and where all pages are fresh enough."""
    file = folder.write("pages.txt", [site.page(n) for n in range(3)])
    first = folder.crawler("run", str(file), "--workers", "1")
    change(
        folder.data, "UPDATE jobs SET watched = 1"
    )  # as if that had been killed before its last words

    again = folder.crawler("run", str(file), "--workers", "1")
    fresh = folder.crawler("run", str(file), "--workers", "1", "--fresh-for", "1h")

    assert (first.returncode, again.returncode, fresh.returncode) == (0, 0, 0)
    assert "nothing was fetched" not in first.stderr
    assert re.search(
        rf"job pages\.txt was already done \({CLOCK}\): nothing was fetched", again.stderr
    )
    assert re.search(
        rf"job pages\.txt-2 was already done \({CLOCK}\): nothing was fetched", fresh.stderr
    )
    assert sum(site.hits().values()) == 3


def test_a_cancelled_job_is_called_so(folder: Folder) -> None:
    """In `job show`, `job list`, its receipt and `status --json`, also when it has ended; it is not
    among the open."""
    crawl(folder.data, 10, 4)
    folder.crawler("job", "cancel", "job")

    shown = folder.crawler("job", "show", "job")
    listed = json.loads(folder.crawler("job", "list", "--json").stdout)
    receipt = json.loads(folder.crawler("job", "verify", "job", "--json").stdout)

    assert shown.stdout.startswith("job: cancelled, ")
    assert [(job["status"], job["state"]) for job in listed] == [("done", "cancelled")]
    assert receipt["status"] == "cancelled"
    assert folder.status()["job_facts"]["job"]["state"] == "cancelled"
    assert "is cancelled" not in folder.crawler("status").stdout


def test_what_one_job_waits_for_is_told_beside_another_that_goes_on(
    tmp_path: Path, redis_url: str
) -> None:
    """A closed domain holds the job that has no other, and is told although other work goes on."""
    shut, free = crawl(tmp_path, 10, 4), LocalPersistenceManager(tmp_path)
    job = open_job(free, "other")
    free.persist_tasks([new(f"http://b.example/{n}") for n in range(3)], job=job)
    owner = owners.Owner(free.owners, "worker", slots=1)
    settings = Settings(data_dir=tmp_path, min_free=0, redis_url=redis_url)
    redis.Redis.from_url(redis_url).flushall()
    limiter = RedisRateLimiter(redis_url, settings.redis_rate_limiter_db, "holder", 2)
    limiter.report(
        [RequestReport(domain="a.example", rule=RateRule(), slots=0, block="captcha")] * 2
    )
    look = WaitFinder(settings, free)

    found = {each.name: look.find(each, free.counts.progress(each)) for each in (shut, job)}
    [of_all] = look.find(None, free.counts.progress(None))
    facts = gather(settings, sizes=False)
    limiter.close()
    owner.close()
    free.close()

    [wait] = found["job"]
    assert (wait.kind, wait.domain, wait.tasks, wait.stops) == ("circuit", "a.example", 6, True)
    assert found["other"] == []
    assert of_all == replace(wait, stops=False)
    assert [(each["kind"], each["jobs"]) for each in facts["waits"]] == [("circuit", ["job"])]
    assert [
        line
        for line in wait_lines(facts)
        if line.startswith("WAITS: a.example: circuit open because captcha")
    ]


@pytest.mark.parametrize(
    ("report", "kind", "what", "left_s"),
    [
        (
            {"retry_after_s": 60.0},
            "retry_after",
            "a.example: its server said Retry-After, 6 tasks wait",
            60,
        ),
        (
            {"crawl_delay_s": 40.0},
            "robots",
            "a.example: its robots.txt asks for 40 s between pages, 6 tasks wait",
            41,
        ),
        ({}, "rate", "a.example: its limit is 2/m, 6 tasks wait", 31),
    ],
)
def test_what_a_domain_asks_for_is_told_until_its_end(
    tmp_path: Path, redis_url: str, report: dict[str, Any], kind: str, what: str, left_s: float
) -> None:
    """A Retry-After, a Crawl-delay and a low rate, each with when the next page goes and what
    changes it."""
    job, lpm = crawl(tmp_path, 10, 4), LocalPersistenceManager(tmp_path)
    owner = owners.Owner(lpm.owners, "worker", slots=1)
    settings = Settings(data_dir=tmp_path, min_free=0, redis_url=redis_url)
    limiter, rule = (
        RedisRateLimiter(redis_url, settings.redis_rate_limiter_db, "holder", 2),
        RateRule(interval_s=30.0),
    )
    redis.Redis.from_url(redis_url).flushall()
    limiter.nothing_booked()
    if report:
        rule = RateRule(interval_s=0.1)
        limiter.report([RequestReport(domain="a.example", rule=rule, slots=0, **report)])
    limiter.ask([PermitRequest(domain="a.example", rule=rule)])

    [wait] = WaitFinder(settings, lpm).find(job, lpm.counts.progress(job))
    limiter.close()
    owner.close()
    lpm.close()

    assert (wait.kind, wait.what, wait.stops) == (kind, what, True)
    assert wait.until is not None
    assert left_s - 20 < wait.until - time.time() < left_s + 1
    assert wait.command.startswith("python -m crawler ")


def test_a_clock_that_was_set_is_told_until_it_is_followed(tmp_path: Path) -> None:
    """Waits are moved by as much as the clock: until that is done, times on the screen are
    wrong."""
    job, lpm = crawl(tmp_path, 10, 4), LocalPersistenceManager(tmp_path)
    owner = owners.Owner(lpm.owners, "worker", slots=1)
    lpm.tasks.follow_clock(time.time() - 3600, times.uptime(), times.boot_id())
    look = WaitFinder(Settings(data_dir=tmp_path, min_free=0), lpm)

    before = look.find(job, lpm.counts.progress(job))
    lpm.tasks.follow_clock(time.time(), times.uptime(), times.boot_id())
    after = look.find(job, lpm.counts.progress(job))
    owner.close()
    lpm.close()

    assert "the clock was set by +3600 s" in next(
        wait.what for wait in before if wait.kind == "clock"
    )
    assert "clock" not in [wait.kind for wait in after]


def test_a_low_limit_is_told_as_such_and_its_hint_counts_at_once(
    folder: Folder, pages: Pages
) -> None:
    """A page that waits for its permit is not called in flight; the command that is shown raises
    the limit for it and for all that are due, whatever was booked before."""
    file = folder.write("pages.txt", pages.parcels(30))
    run = folder.start("crawler", "run", str(file), "--rate", "1/h", "--workers", "1")

    wait_for(lambda: pages.asked, 120, "the request for robots.txt")

    def booked() -> dict[str, Any] | None:
        shown = json.loads(folder.crawler("job", "show", "pages.txt", "--json").stdout)
        is_claimed = shown["receipt"]["books"]["processing"]
        waits = shown["waits"] if is_claimed else []
        return next((each for each in waits if each["kind"] == "rate"), None)

    wait = wait_for(booked, 120, "the page that waits for its permit")
    kinds = [each["kind"] for each in folder.status()["waits"]]
    told = folder.crawler("why", f"{pages.url}/page/0").stdout
    shown = folder.crawler("job", "show", "pages.txt").stdout
    typed = folder.crawler(*shlex.split(wait["command"])[3:])

    assert typed.returncode == 0, typed.stderr
    assert wait["what"] == "127.0.0.1: its limit is 1/h, 2 at a time, 30 tasks wait"
    assert 1800 < wait["until"] - time.time() < 3800
    assert kinds == ["rate"]
    assert re.search(rf"waits for +127\.0\.0\.1: its limit is 1/h.* until {TIME}", told)
    assert "in flight" not in shown
    assert run.wait(600) == 0, folder.log(run)
    assert folder.books().completed == 30


def desk_reset(folder: Folder, pages: Pages, command: str, requests: int) -> None:
    """Type the command until the server has been asked so often; before all have heard of the
    pause it says nothing new."""

    def typed() -> bool:
        folder.crawler(*shlex.split(command)[3:])
        return len(pages.asked) >= requests

    wait_for(typed, 60, f"request {requests}")


def test_a_robots_txt_in_trouble_is_named_and_a_reset_asks_for_it_again(
    folder: Folder, pages: Pages
) -> None:
    """Nobody calls that a Retry-After; the command that is shown asks again, and no page pays with
    an attempt for a request that another has made."""
    pages.parcels(8)
    pages.answers["/robots.txt"] = Answer("no", 503)
    file = folder.write("pages.txt", [f"{pages.url}/page/{n}" for n in range(8)])
    run = folder.start("crawler", "run", str(file), "--rate", "10/s", "--workers", "2")

    wait_for(lambda: pages.asked, 120, "the request for robots.txt")

    def paused() -> dict[str, Any] | None:
        waits = folder.status()["waits"]
        return next((each for each in waits if each["kind"] == "robots"), None)

    for times_ in (1, 2, 3):
        wait = wait_for(paused, 60, "the pause")
        line = folder.crawler("domains").stdout
        desk_reset(folder, pages, wait["command"], times_ + 1)
        assert wait["what"].startswith(f"127.0.0.1: {pages.url}/robots.txt answered 503, ")
        assert wait["command"] == "python -m crawler domains reset 127.0.0.1"
        assert "/robots.txt answered 503: until" in line

    wait_for(paused, 60, "the pause")
    with contextlib.closing(folder.lpm()) as lpm:
        [(failures,)] = lpm.store.db.all("SELECT sum(failures) FROM tasks")
    asked = [each.path for each in pages.asked]
    pages.answers["/robots.txt"] = Answer("", 404)
    desk_reset(folder, pages, "python -m crawler domains reset 127.0.0.1", len(asked) + 1)

    assert set(asked) == {"/robots.txt"}
    assert failures <= len(asked), "one attempt for each request"
    assert run.wait(600) == 0, folder.log(run)
    assert folder.books().completed == 8


def test_the_page_that_is_waited_for_and_its_domain_are_of_one_page(tmp_path: Path) -> None:
    """The domain with the oldest request is named, with its own pages and times; pages that wait
    for a permit are not counted."""
    lpm = LocalPersistenceManager(tmp_path)
    job = open_job(lpm, "job")
    urls = [f"http://slow.example/{n}" for n in range(2)]
    urls += [f"http://quick.example/{n}" for n in range(4)]
    lpm.persist_tasks([new(url) for url in urls], job=job)
    claimed = {task.url: task for task in lpm.get_next_pending("owner", 10)}
    owner = owners.Owner(lpm.owners, "worker", slots=10)
    for url in urls:
        slot = owner.begin(claimed[url].id)
        if url == "http://quick.example/3":
            owner.note_request(slot, time.monotonic() + 500)
    look = WaitFinder(Settings(data_dir=tmp_path, min_free=0), lpm)

    found = look.find(job, lpm.counts.progress(job), 20.0)
    [at_server] = look.find_for_page(job, claimed["http://slow.example/1"].id)
    owner.close()
    lpm.close()

    [wait] = [each for each in found if each.kind == "page"]
    assert wait.what.startswith(
        "no page of slow.example has come yet: 2 pages in flight, the first"
    )
    assert (wait.domain, wait.tasks) == ("slow.example", 2)
    assert at_server.what.startswith("waiting for http://slow.example/1 since ")
