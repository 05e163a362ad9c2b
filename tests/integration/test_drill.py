"""`drill`: the crash test as a command, its scoreboard, and what it leaves behind (nothing)."""

import http.client
import json
import signal
from urllib.parse import urlsplit

import msgspec
import pytest

from crawler.demo_site import running_site
from crawler.drill import Score, Strike, plan
from tests.support.stack import Folder, left_behind, wait_for


def get(base: str, path: str) -> tuple[int, bytes]:
    """Fetch a path on a connection of its own."""
    connection = http.client.HTTPConnection(urlsplit(base).netloc, timeout=120)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_drill_pages_fail_once_and_are_counted() -> None:
    """A drill's page fails as planned at its first request only; the site tells at its end how
    often it was asked."""
    site = running_site()
    with site as base:
        assert get(base, "/drill/0/ok/1")[0] == 200
        assert [get(base, "/drill/0/500/2")[0] for _ in range(3)] == [500, 200, 200]
        with pytest.raises(http.client.IncompleteRead):
            get(base, "/drill/10/cut/3")
        assert b"</html>" in get(base, "/drill/10/cut/3")[1]
    assert site.requests == {"/drill/0/ok/1": 1, "/drill/0/500/2": 3, "/drill/10/cut/3": 2}


def test_the_same_seed_gives_the_same_strikes() -> None:
    """A seed stands for strikes and faults; five strikes are of every kind, and lie in order inside
    the run."""
    first, again, other = (
        plan(seed=seed, pages=1000, kills=5, latency_ms=0, faults=0.1) for seed in (1, 1, 2)
    )
    assert first == again != other
    assert {strike.kind for strike in first.strikes} == {"child", "worker", "redis", "flushall"}
    dues = [strike.due for strike in first.strikes]
    assert dues == sorted(dues)
    assert 0 <= dues[0] <= dues[-1] < 1000
    assert len(first.faults) == 100


def test_the_verdict_names_what_is_wrong() -> None:
    """5 for what is lost or unaccounted for, 1 for what came twice or was fetched too often; a line
    says which."""

    def score(*strikes: Strike, **counts: int) -> tuple[int, str]:
        facts = {
            "seed": 1,
            "pages": 9,
            "latency_ms": 0,
            "workers": 1,
            "folder": "",
            "samples": 3,
            "strikes": strikes,
        }
        found = msgspec.convert(facts | counts, Score)
        return found.exit_code, found.verdict

    assert score(extra_fetches=2, in_flight=2) == (0, "Nothing lost, nothing twice.")
    assert score(lost=1, twice=1) == (5, "FAILED: 1 of 9 pages lost; 1 results twice")
    assert score(unbalanced=1) == (5, "FAILED: books unbalanced in 1 of 3 samples")
    assert score(twice=1)[0] == 1
    assert score(extra_fetches=3, in_flight=2) == (1, "FAILED: 3 extra fetches, with 2 in flight")
    never_back = Strike(number=1, kind="redis", due=3, done=3)
    assert score(never_back) == (1, "FAILED: no recovery from 1 of the strikes")


def test_drill_gives_consistent_facts_and_leaves_nothing(folder: Folder) -> None:
    """A drill strikes as its seed says, loses nothing, adds up, and leaves no process and no file
    but its folder."""
    # Given a seed that kills a worker and a child, and a Redis address that is not to be used
    (folder.path / "tmp").mkdir()
    folder.env |= {"CRAWLER_DATA_DIR": str(folder.data), "TMPDIR": str(folder.path / "tmp")}
    options = [
        "--pages",
        "200",
        "--kills",
        "2",
        "--workers",
        "2",
        "--seed",
        "23",
        "--latency",
        "20",
        "--json",
    ]

    # When
    done = folder.crawler("drill", *options, REDIS_URL="redis://127.0.0.1:1/0")

    # Then
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["verdict"] == "Nothing lost, nothing twice."
    planned = plan(seed=23, pages=200, kills=2, latency_ms=20, faults=0.1)
    assert [(strike["kind"], strike["due"]) for strike in facts["strikes"]] == [
        (strike.kind, strike.due) for strike in planned.strikes
    ]
    assert [strike["kind"] for strike in facts["strikes"]] == ["worker", "child"]
    assert [len(strike["pids"]) for strike in facts["strikes"]] == [3, 1]
    assert all(strike["due"] <= strike["done"] < 200 for strike in facts["strikes"])
    assert facts["slowest_recovery_s"] == max(strike["back_after_s"] for strike in facts["strikes"])
    assert facts["in_flight"] == sum(strike["in_flight"] for strike in facts["strikes"])
    assert facts["requests"] == 200 + 20 + facts["extra_fetches"]
    assert 0 <= facts["extra_fetches"] <= facts["in_flight"]
    assert (facts["lost"], facts["twice"], facts["unbalanced"], facts["planned_retries"]) == (
        0,
        0,
        0,
        20,
    )
    assert facts["samples"] > 5

    # And nothing is left
    assert left_behind(folder) == []
    assert {path.name for path in folder.path.iterdir()} == {"data", "tmp"}
    assert [path.name for path in folder.data.iterdir()] == ["drill"]
    assert list((folder.path / "tmp").iterdir()) == []


def test_drill_terminated_then_typed_again(folder: Folder) -> None:
    """While one drill runs a second is refused; SIGTERM leaves no process; the next one shows 80
    columns at most."""
    # Given a drill in the middle
    folder.env["CRAWLER_DATA_DIR"] = str(folder.data)
    first = folder.start("crawler", "drill", "--pages", "3000", "--kills", "20", "--workers", "2")
    wait_for(lambda: "strike 1 of 20" in folder.log(first), 60, "the first strike")

    # When another one is typed, and the first is terminated
    second = folder.crawler("drill", "--pages", "20")
    first.send_signal(signal.SIGTERM)

    # Then
    assert second.returncode == 2
    assert "a drill is running already" in second.stderr
    assert first.wait(120) == 143
    assert left_behind(folder) == []
    third = folder.crawler(
        "drill", "--pages", "40", "--kills", "1", "--workers", "2", "--faults", "0"
    )
    assert third.returncode == 0, third.stderr
    assert "\nNothing lost, nothing twice.\n" in third.stdout
    assert "Scrapy 2.19.0" in third.stdout
    assert max(map(len, third.stdout.splitlines())) <= 80
    assert left_behind(folder) == []
