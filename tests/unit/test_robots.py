"""robots.txt: who is asked, what is obeyed, and what trouble with it means."""

import asyncio
import fcntl
import math
import os
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from crawler import times
from crawler.errors import FetchError, NotNow
from crawler.fetch.budget import Budget
from crawler.fetch.http import USER_AGENT
from crawler.fetch.robots import (
    FRESH_S,
    HEARD_S,
    MAX_BYTES,
    MAX_TEXTS,
    UNREACHABLE_S,
    Robots,
    RobotsAnswer,
    Rules,
    product,
    sweep,
)
from crawler.models import Page

ORIGIN = "https://county.example"


class Server:
    """Answers for robots.txt as it is told to, and counts."""

    def __init__(self, text: str = "", status: int = 200, error: Exception | None = None) -> None:
        self.text, self.status, self.error = text, status, error
        self.asked: list[str] = []

    async def fetch(self, url: str) -> Page:
        """The page behind any URL."""
        self.asked.append(url)
        await asyncio.sleep(0)
        if self.error:
            raise self.error
        body = self.text.encode()
        return Page(
            url=url, final_url=url, status=self.status, reason="", headers=(), body=body, raw=body,
            fetched_at=0.0, fetch_s=0.0,
        )  # fmt: skip


def check(robots: Robots, server: Server, path: str, agent: str = USER_AGENT) -> str | float:
    """The Crawl-delay where the path may be fetched, else the reason why not."""
    try:
        return asyncio.run(robots.check(ORIGIN + path, agent, server.fetch))
    except FetchError as error:
        return error.reason


@pytest.mark.parametrize(
    ("text", "path", "outcome"),
    [
        ("", "/a", 0.0),
        ("User-agent: *\nDisallow: /private", "/private/1", "robots"),
        ("User-agent: *\nDisallow: /private", "/public", 0.0),
        ("User-agent: *\nDisallow: /a\nAllow: /a/b", "/a/b/c", 0.0),
        ("User-agent: *\nDisallow: /*.pdf$", "/deed.pdf", "robots"),
        ("User-agent: *\nDisallow: /*.pdf$", "/deed.pdf?x=1", 0.0),
        ("User-agent: crawler\nDisallow:\n\nUser-agent: *\nDisallow: /", "/a", 0.0),
        ("User-agent: crawler\nDisallow: /\n\nUser-agent: *\nDisallow:", "/a", "robots"),
        ("User-agent: crawler2\nDisallow: /", "/a", 0.0),
        ("User-agent: *\nCrawl-delay: 7\nDisallow: /x", "/a", 7.0),
        ("User-agent: *\nCrawl-delay: -1e400", "/a", 0.0),
        ("User-agent: *\nCrawl-delay: 1e400", "/a", 0.0),
        (
            "User-agent: *\nCrawl-delay: inf\nCrawl-delay: nan\nCrawl-delay: -1\nCrawl-delay: x",
            "/a",
            0.0,
        ),
        ("User-agent: *\nCrawl-delay: 3\nCrawl-delay: inf", "/a", 3.0),
        ("User-agent: a\nSitemap: /s\nUser-agent: crawler\nDisallow: /a", "/a", "robots"),
        ("User-agent: *\nDisallow: /%7Ea", "/~a", "robots"),
        ("User-agent: *\nDisallow: /ä", "/%C3%A4", "robots"),
        ("User-agent: *\nDisallow: /a%2Fb", "/a/b", 0.0),
        ("User-agent: *\nDisallow: /a%2fb", "/a%2Fb", "robots"),
        ("User-agent: *\nDisallow: /a$b", "/a$b", "robots"),
        ("User-agent: *\nDisallow: /*a*b*c$", "/xaxbxcxc", "robots"),
        ("User-agent: *\nDisallow: /*ab*b$", "/ab", 0.0),
        ("User-agent: *\nDisallow: /\nAllow: /x/index.html", "/x/", 0.0),
        ("User-agent: *\nDisallow: /", "/robots.txt?x", 0.0),
        ("\ufeffUser-agent: *\r\nDisallow: /a", "/a", "robots"),
        ("<html>not found</html>", "/a", 0.0),
        ("\0\0\0User-agent", "/a", 0.0),
    ],
)
def test_its_rules_are_obeyed(tmp_path: Path, text: str, path: str, outcome: str | float) -> None:
    """The most specific rule of the group that names us, else of the group for all."""
    assert check(Robots(tmp_path), Server(text), path) == outcome


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, "robots"), (204, "robots"), (301, 0.0), (400, 0.0), (401, 0.0), (403, 0.0),
        (404, 0.0), (410, 0.0), (429, "robots_unreachable"), (500, "robots_unreachable"),
        (503, "robots_unreachable"),
    ],
)  # fmt: skip
def test_a_missing_file_allows_all_and_a_server_in_trouble_nothing(
    tmp_path: Path, status: int, outcome: str | float
) -> None:
    """As RFC 9309 has it: 4xx is unavailable, 5xx is unreachable."""
    assert check(Robots(tmp_path), Server("User-agent: *\nDisallow: /", status), "/a") == outcome


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (FetchError("connection", "refused"), "connection"),
        (FetchError("dns", "no such host"), "dns"),
        (FetchError("timeout", "too slow"), "timeout"),
        (FetchError("too_many_redirects", "a loop"), 0.0),
        (FetchError("forbidden_address", "leads home"), "forbidden_address"),
    ],
)
def test_what_keeps_robots_txt_away_keeps_the_page_away(
    tmp_path: Path, error: FetchError, outcome: str | float
) -> None:
    """A server that cannot be reached fails the page by its own reason; a file that cannot be had
    is a missing one."""
    assert check(Robots(tmp_path), Server(error=error), "/a") == outcome


def test_a_host_that_must_wait_is_no_refusal(tmp_path: Path) -> None:
    """The permit's word passes through, nothing is remembered, and the next one asks again."""
    robots, server = Robots(tmp_path), Server(error=NotNow("county.example", "rate", 3.0))
    for _ in range(2):
        with pytest.raises(NotNow):
            asyncio.run(robots.check(f"{ORIGIN}/a", USER_AGENT, server.fetch))

    assert len(server.asked) == 2


def test_it_is_asked_for_once_and_again_when_it_is_old(tmp_path: Path) -> None:
    """Rules hold for an hour, also for another process that shares the folder; trouble holds for a
    minute."""
    now = [1000.0]
    server = Server("User-agent: *\nDisallow: /a")

    def fresh() -> Robots:
        return Robots(tmp_path, lambda: now[0])

    first = fresh()
    assert [
        check(first, server, "/a"),
        check(first, server, "/b"),
        check(fresh(), server, "/a"),
    ] == [
        "robots",
        0,
        "robots",
    ]
    assert server.asked == [f"{ORIGIN}/robots.txt"]

    now[0] += FRESH_S + 1
    server.status = 500
    assert check(first, server, "/b") == "robots_unreachable"
    now[0] += UNREACHABLE_S / 2
    assert check(fresh(), server, "/b") == "robots_unreachable"
    assert len(server.asked) == 2
    now[0] += UNREACHABLE_S
    server.status = 200
    assert check(first, server, "/b") == 0.0


def test_who_is_let_through_after_trouble_asks_again(tmp_path: Path) -> None:
    """The domain's permit keeps all others back: a page that it lets go a while after the answer is
    let through by a reset. One that began before, or came with it, believes the answer."""
    now = [1000.0]
    server = Server("", 503)

    def asked(since: float | None, robots: Robots) -> int:
        with pytest.raises(FetchError, match=r"robots\.txt answered 503"):
            asyncio.run(
                robots.check(f"{ORIGIN}/a", USER_AGENT, server.fetch, since=since),
            )
        return len(server.asked)

    robots, other = (Robots(tmp_path, lambda: now[0]) for _ in range(2))
    assert asked(now[0], robots) == 1
    now[0] += UNREACHABLE_S / 2
    for each in (robots, other):
        for since in (None, 900.0, 1000.0 + HEARD_S):
            assert asked(since, each) == 1
    assert asked(now[0], robots) == 2
    assert asked(now[0], other) == 2


def test_pages_that_come_together_ask_once(tmp_path: Path) -> None:
    """A hundred pages of one host wait for one robots.txt."""
    robots, server = Robots(tmp_path), Server("User-agent: *\nDisallow: /5")

    async def all_at_once() -> list[float | BaseException]:
        checks = [robots.check(f"{ORIGIN}/{n}", USER_AGENT, server.fetch) for n in range(100)]
        return await asyncio.gather(*checks, return_exceptions=True)

    answers = asyncio.run(all_at_once())
    assert len(server.asked) == 1
    assert sum(isinstance(answer, FetchError) for answer in answers) == 11


def test_one_process_asks_for_all_and_a_killed_one_is_replaced(tmp_path: Path) -> None:
    """While another process holds the lock one waits for its answer; where it dies, one asks
    oneself."""
    robots, server = Robots(tmp_path), Server("User-agent: *\nDisallow: /a")
    assert check(robots, server, "/b") == 0.0
    [answer] = [path for path in tmp_path.iterdir() if not path.suffix]
    answer.unlink()
    holder = subprocess.Popen(
        [sys.executable, "-c", f"import fcntl,sys\nf=open({str(answer.with_suffix('.lock'))!r})\n"
         "fcntl.flock(f,fcntl.LOCK_EX)\nprint('held',flush=True)\nsys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    again = Robots(tmp_path)

    async def wait_then_kill() -> float:
        checking = asyncio.ensure_future(again.check(f"{ORIGIN}/b", USER_AGENT, server.fetch))
        done, _ = await asyncio.wait([checking], timeout=0.3)
        assert not done
        holder.kill()
        return await asyncio.wait_for(checking, 120)

    assert asyncio.run(wait_then_kill()) == 0.0
    assert len(server.asked) == 2
    holder.communicate()


def test_a_hostile_file_costs_little(tmp_path: Path) -> None:
    """Half a megabyte counts, wildcards match in linear time, and what lies behind the limit is
    ignored."""
    many = "User-agent: *\n" + "Disallow: /" + "*a" * 1000 + "b\n"
    filler = "#" * 70 + "\n"
    text = many + filler * ((MAX_BYTES - len(many)) // len(filler) + 1) + "Disallow: /\n"
    began = time.process_time()

    assert check(Robots(tmp_path), Server(text), "/" + "a" * 8000) == 0.0
    assert time.process_time() - began < 20  # a limit on hanging, not a speed


AGENTS = ("User-agent: a{0}\n", "User-agent: {1}\n", "useragent a{0}*\n", "user agent a{0}\n")


@pytest.mark.parametrize("agents", AGENTS)
def test_rules_are_kept_for_our_agent_only(tmp_path: Path, agents: str) -> None:
    """Thousands of rules for thousands of agents are no millions of rules, and ours are obeyed."""
    named = "".join(agents.format(number, "*" * number) for number in range(2, 10_000))[:200_000]
    rules = "".join(f"Disallow: /{number}$\n" for number in range(10_000))
    server = Server(
        f"User-agent: *\nDisallow: /private\n{named}\nUser-agent: crawler\n{rules}"[:MAX_BYTES]
    )
    robots = Robots(tmp_path)

    assert check(robots, server, "/5", "else/1.0") == 0.0
    assert check(robots, server, "/private", "else/1.0") == "robots"
    assert check(robots, server, "/5") == "robots"


@pytest.mark.parametrize(
    ("text", "agent", "outcome"),
    [
        ("User-agent: a\nUser-agent: crawler\nUser-agent: b\nDisallow: /", "crawler", "robots"),
        ("User-agent: a\nDisallow: /\nUser-agent: b\nDisallow:", "crawler", 0.0),
        ("User-agent: crawler*\nDisallow: /", "crawler", "robots"),
        ("USER AGENT crawler\nDisallow: /", "crawler", "robots"),
        ("useragent: crawler # us\nDisallow: /", "crawler", "robots"),
        ("User-agent: *\nUser-agent: x\nDisallow: /", "crawler", "robots"),
        ("User-agent: x\nDisallow: /a\nUser-agent:\nDisallow: /\n", "x", 0.0),
        ("User-agent: my-bot\nDisallow: /\nUser-agent: *\nDisallow:", "My-Bot/2.0", "robots"),
        ("User-agent: bot\nDisallow: /\nUser-agent: *\nDisallow:", "mybot", 0.0),
    ],
)
def test_groups_are_told_apart_by_their_agents(
    tmp_path: Path, text: str, agent: str, outcome: str | float
) -> None:
    """A group may have many names, of which only ours, and the one for all, matter."""
    assert check(Robots(tmp_path), Server(text), "/b", agent) == outcome


def test_a_damaged_answer_is_asked_for_again(tmp_path: Path) -> None:
    """What lies in the folder is only a memory."""
    server = Server("User-agent: *\nDisallow: /a")
    check(Robots(tmp_path), server, "/b")
    for path in tmp_path.iterdir():
        if not path.suffix:
            path.write_bytes(os.urandom(100))

    assert check(Robots(tmp_path), server, "/a") == "robots"
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        (USER_AGENT, "crawler"),
        ("ParcelBot/2.1 (+https://us.example)", "ParcelBot"),
        ("", "crawler"),
        ("123", "crawler"),
    ],
)
def test_rules_are_looked_up_by_the_product(agent: str, name: str) -> None:
    """By our own name, or by that which was given on the command line."""
    assert product(agent) == name


@pytest.mark.parametrize(
    "name", ["User-agent: a{}", "user agent a{}", "User-Agent:\tcraw{}ler", "useragent: {stars}"]
)
def test_names_of_others_cost_next_to_nothing(name: str) -> None:
    """A group of ten thousand names and as many rules is read in time that grows with its size, not
    its square."""

    def cost(count: int) -> float:
        names = [name.format(n, stars="*" * (n + 2)) for n in range(count)]
        text = "\n".join(
            [
                *names,
                *(f"Disallow: /{n}" for n in range(count)),
                "User-agent: *",
                "Disallow: /private",
            ]
        )
        best = math.inf
        for _ in range(3):
            rules = Rules(RobotsAnswer(origin=ORIGIN, at=0.0, status=200, text=text))
            began = time.thread_time()
            assert rules.allow(f"{ORIGIN}/7", "crawler")
            assert not rules.allow(f"{ORIGIN}/private", "crawler")
            best = min(best, time.thread_time() - began)
        return best

    assert cost(1600) / cost(100) < 64


@pytest.mark.parametrize(
    "line",
    ["User-agent: crawler", "user agent craw*ler", "Useragent:CRAWLER # us", "User-agent: *"],
)
def test_groups_that_mean_us_are_kept_however_they_are_written(line: str) -> None:
    """Among the names of others, in the ways that the parser knows, ours is heard."""
    rules = Rules(
        RobotsAnswer(
            origin=ORIGIN,
            at=0.0,
            status=200,
            text=f"User-agent: a\n{line}\nUser-agent: b\nDisallow: /",
        )
    )
    assert not rules.allow(f"{ORIGIN}/", "crawler")
    after = Rules(
        RobotsAnswer(
            origin=ORIGIN, at=0.0, status=200, text=f"{line}\nAllow: /\nUser-agent: b\nDisallow: /"
        )
    )
    assert after.allow(f"{ORIGIN}/", "crawler")


def test_the_rules_of_few_hosts_are_kept_where_they_are_long(tmp_path: Path) -> None:
    """What a process remembers is bounded in characters, too; what it forgot it reads again from
    its file."""
    robots = Robots(tmp_path)
    text = "User-agent: *\nDisallow: /private\n" + "# " + "x" * 400_000

    async def ask(count: int) -> Server:
        server = Server(text)
        for n in range(count):
            assert await robots.check(f"https://{n}.example/a", USER_AGENT, server.fetch) == 0.0
        return server

    assert len(asyncio.run(ask(20)).asked) == 20
    assert (
        len([n for n in range(20) if robots.known(f"https://{n}.example")]) <= MAX_TEXTS // 400_000
    )
    assert robots.known("https://19.example")
    assert asyncio.run(ask(20)).asked == []


def test_expired_files_go_and_a_host_being_asked_stays(tmp_path: Path) -> None:
    """The folder does not grow for ever: what has expired goes, with its lock, but no lock that
    somebody holds."""
    now = time.time()
    robots = Robots(tmp_path, lambda: now)
    for n in range(30):
        old, lock = tmp_path / f"{n:032x}", tmp_path / f"{n:032x}.lock"
        for path in (old, lock):
            path.touch()
            os.utime(path, (now - FRESH_S - 1 - n,) * 2)
    with (tmp_path / f"{7:032x}.lock").open("w") as held:
        os.utime(held.fileno(), (now - 2 * FRESH_S,) * 2)
        fcntl.flock(held, fcntl.LOCK_EX)
        assert check(robots, Server("User-agent: *\nDisallow: /a"), "/a") == "robots"

    left = {path.name.partition(".")[0] for path in tmp_path.iterdir()}
    assert len(left) == 2
    assert f"{7:032x}" in left
    again = Robots(tmp_path, lambda: now)
    assert (
        check(again, Server(error=FetchError("connection", "it is asked again")), "/a") == "robots"
    )


def test_so_many_files_stay_at_most(tmp_path: Path) -> None:
    """Of hosts that are all fresh the oldest go; a lock that was swept away is taken anew."""
    now = time.time()
    for n in range(20):
        (tmp_path / f"{n:032x}").touch()
        os.utime(tmp_path / f"{n:032x}", (now - n,) * 2)

    assert sweep(tmp_path, now, most=5) == 15
    assert {int(path.name, 16) for path in tmp_path.iterdir()} == set(range(5))
    assert sweep(tmp_path / "missing", now) == 0


def test_a_lock_that_is_swept_away_while_one_waits_is_taken_anew(tmp_path: Path) -> None:
    """Two processes never hold different locks of one host."""
    robots, server = Robots(tmp_path), Server("User-agent: *\nDisallow: /a")
    name = sha256(ORIGIN.encode()).hexdigest()[:32]

    async def run() -> None:
        with (tmp_path / f"{name}.lock").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            asked = asyncio.ensure_future(robots.check(ORIGIN + "/b", USER_AGENT, server.fetch))
            await asyncio.sleep(0)
            (tmp_path / f"{name}.lock").unlink()
        await asked

    asyncio.run(run())

    assert (tmp_path / f"{name}.lock").exists()
    assert (tmp_path / name).exists()


def test_the_clock_of_the_machine_may_be_set(tmp_path: Path) -> None:
    """By default ages go by the machine's uptime, which nobody sets; another boot begins anew."""
    server = Server("User-agent: *\nDisallow: /a")
    assert check(Robots(tmp_path), server, "/a") == "robots"
    [path] = [path for path in tmp_path.iterdir() if not path.suffix]
    kept = msgspec.json.decode(path.read_bytes(), type=RobotsAnswer)
    assert 0 <= times.uptime() - kept.at < FRESH_S
    assert kept.is_fresh(times.uptime())

    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(kept, boot="another")))
    assert check(Robots(tmp_path), server, "/a") == "robots"
    assert len(server.asked) == 2


class Ticking:
    """A clock of CPU time that goes on by a hundredth of a second at every look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.01
        return self.now


MANY = {
    "rules": "Disallow: /*a*b$\n" * 29_000,
    "wildcards": "Disallow: /" + "*a" * 240_000,
    "prefixes": "".join(f"Disallow: /{n}\n" for n in range(29_000)),
    "comments": "#\n" * 240_000,
    "names": "User-agent: a\n" * 30_000,
}


@pytest.mark.parametrize("rules", MANY.values(), ids=MANY)
def test_rules_without_measure_are_read_within_the_budget_of_the_page(
    tmp_path: Path, rules: str
) -> None:
    """However many there are, others go first now and then, and a page for which it takes too long
    fails alone."""
    server = Server("User-agent: *\n" + rules)
    url = f"{ORIGIN}/{'a' * 8_000}"
    turns = 0

    async def neighbour() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def work() -> None:
        other = asyncio.create_task(neighbour())
        with pytest.raises(FetchError) as caught:
            await Robots(tmp_path).check(
                url, USER_AGENT, server.fetch, Budget(1.0, clock=Ticking())
            )
        assert caught.value.reason == "too_costly"
        before = turns
        assert (
            await Robots(tmp_path).check(url, USER_AGENT, server.fetch, Budget(clock=Ticking()))
            == 0.0
        )
        other.cancel()
        assert turns > before + 3

    asyncio.run(work())
