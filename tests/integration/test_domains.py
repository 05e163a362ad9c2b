"""`crawler domains`: live state in words and as facts, and how to forget it."""

import json

import pytest
import redis

from crawler.models import RateRule
from crawler.redis_client import RedisAddress
from crawler.resilience.permit import PermitRequest, RequestReport
from crawler.resilience.redis_rate_limiter import RedisRateLimiter
from tests.support.stack import Folder, wait_for


@pytest.fixture
def permit(folder: Folder, redis_url: str) -> RedisRateLimiter:
    """A worker's permit on an empty Redis, which the commands of the folder see."""
    redis.Redis.from_url(RedisAddress.parse(redis_url).for_redis(2)).flushdb()
    folder.env["REDIS_URL"] = redis_url
    permit = RedisRateLimiter(redis_url, 2, "worker", 2)
    permit.nothing_booked()
    return permit


def test_domains_shows_limits_and_troubles(folder: Folder, permit: RedisRateLimiter) -> None:
    """Those in trouble come first, with the reason and the time; the same as facts with --json."""
    rule = RateRule(interval_s=0.05, at_a_time=8)
    empty = folder.crawler("domains")
    permit.ask(
        [
            PermitRequest(domain="a.example", rule=rule),
            PermitRequest(domain="b.example", rule=RateRule(interval_s=30)),
        ]
    )
    permit.report(
        [
            RequestReport(
                domain="b.example",
                rule=rule,
                slots=0,
                crawl_delay_s=45,
                retry_after_s=120,
                good=False,
            )
        ]
    )
    permit.report(
        [RequestReport(domain="z.example", rule=RateRule(), slots=0, block="captcha")] * 2
    )
    shown = folder.crawler("domains")
    facts = json.loads(folder.crawler("domains", "list", "--json").stdout)
    short = json.loads(folder.crawler("domains", "--json").stdout)

    assert empty.returncode == 0
    assert empty.stdout.startswith("No domain has a state")
    lines = shown.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["z.example", "b.example", "a.example"]
    assert "circuit open until" in lines[1]
    assert lines[1].endswith("because captcha")
    assert "2/m, Crawl-delay 45 s" in lines[2]
    assert "Retry-After: until" in lines[2]
    assert "slowed down to 1/1.5 of its rate" in lines[2]
    assert "20/s, 8 at a time" in lines[3]
    assert lines[3].split()[-2:] == ["1", "well"]
    assert [known["domain"] for known in facts] == ["a.example", "b.example", "z.example"]
    assert facts[2]["state"] == "OPEN"
    assert (facts[2]["last_block"], facts[2]["failures"]) == ("captcha", 2)
    assert {known["domain"] for known in short} == {known["domain"] for known in facts}


def test_a_reset_lets_a_domain_be_asked_again(folder: Folder, permit: RedisRateLimiter) -> None:
    """The circuit is closed at once; a name that is not known gets the nearest one that is."""
    permit.report(
        [RequestReport(domain="county.example", rule=RateRule(), slots=0, block="captcha")] * 2
    )
    wrong = folder.crawler("domains", "reset", "county.exmaple")
    before = permit.can_request("county.example")
    done = folder.crawler("domains", "reset", "county.example")

    assert wrong.returncode == 2
    assert "did you mean county.example?" in wrong.stderr
    assert (before, done.returncode) == (False, 0)
    # While Redis answers late, a limiter keeps to what it knew itself.
    wait_for(lambda: permit.can_request("county.example"), 10, "the domain to be asked again")
    assert "county.example" in done.stdout


def test_without_redis_one_line_says_so(folder: Folder) -> None:
    """Where Redis does not answer, the command ends with 3 and one clear line."""
    for words in (["domains"], ["domains", "list", "--json"], ["domains", "reset", "x.example"]):
        done = folder.crawler(*words, REDIS_URL="redis://127.0.0.1:1/0")

        assert done.returncode == 3
        assert done.stderr.startswith("Error: Redis does not answer")
        assert len(done.stderr.splitlines()) == 1
