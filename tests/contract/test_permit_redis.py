"""What the permit promises beyond its contract because it is in Redis, and what holds while Redis
is away."""

import contextlib
import itertools
import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import redis

from crawler.errors import ServiceError
from crawler.models import RateRule
from crawler.process import Child
from crawler.redis_client import RedisAddress
from crawler.redis_server import redis_program
from crawler.resilience.permit import (
    AHEAD_S,
    HEADROOM,
    OPEN_S,
    PermitAnswer,
    PermitRequest,
    RequestReport,
)
from crawler.resilience.redis_circuit_breaker import RedisCircuitBreaker
from crawler.resilience.redis_rate_limiter import (
    QUIET_S,
    RETRY_S,
    RETURN_S,
    ClockOffset,
    RedisRateLimiter,
)
from tests.contract.fleet import BEGIN, FAST, Fleet
from tests.support.clock import Clock
from tests.support.stack import wait_for


def test_a_call_is_one_round_trip_and_survives_a_forgotten_script(redis_url: str) -> None:
    """Many domains are one pipeline of one EVALSHA each; a Redis that forgot the script gets it in
    the same call."""
    fleet = Fleet(redis_url).settle()
    assert fleet.client
    many = [PermitRequest(domain=f"d{number}.example", rule=FAST) for number in range(50)]
    fleet["a"].ask(many[:1])
    before = fleet.client.info("commandstats")["cmdstat_evalsha"]["calls"]
    fleet["a"].ask(many)
    once = fleet.client.info("commandstats")["cmdstat_evalsha"]["calls"]
    fleet.client.script_flush()
    fleet.client.flushdb()
    answers = fleet["a"].ask(many)
    fleet.client.script_flush()
    fleet["a"].report([RequestReport(domain="d1.example", rule=FAST, block="captcha")])

    assert once - before == 50
    assert all(answer.why == "just begun" or answer.starts_s for answer in answers)
    assert fleet.domain("d1.example").last_block == "captcha"


def test_the_clock_is_that_of_redis(redis_url: str) -> None:
    """Without a clock of the test's own, times are Redis's, and idle hashes end one day."""
    Fleet(redis_url)
    permit = RedisRateLimiter(redis_url, 2, "a", 1)
    permit.nothing_booked()
    client = redis.Redis.from_url(RedisAddress.parse(redis_url).for_redis(2))
    client.delete("permit-epoch")
    permit.nothing_booked()
    seconds_, _ = client.time()
    answer = permit.ask([PermitRequest(domain="x.example", rule=FAST)])[0]
    permit.report([RequestReport(domain="x.example", rule=FAST, good=False, block="captcha")])
    [known] = [known for known in permit.domains() if known.domain == "x.example"]

    assert answer.starts_s == (0.0,)
    assert abs((known.opened_at or 0) - seconds_) < 60
    assert 3600 < client.ttl("circuit:x.example") < 86400
    assert client.ttl("permit-epoch") == -1


def test_places_are_known_again_soon_after_redis_was_emptied(redis_url: str) -> None:
    """Each call says what its holder has in flight, so that nothing is counted wrongly for long."""
    fleet, rule_ = Fleet(redis_url).settle(), RateRule(at_a_time=5)
    assert fleet.client
    fleet.ask("a", rule=rule_, wish=2)
    fleet.ask("b", rule=rule_, wish=2)
    fleet.client.flushdb()
    fleet["a"].renew(["x.example"])
    fleet["b"].renew(["x.example"])
    answer = fleet.ask("c", rule=rule_, wish=5)

    assert len(answer.starts_s) == 1
    assert fleet.domain().in_flight == 5


def test_the_breaker_alone(redis_url: str) -> None:
    """`RedisCircuitBreaker` has the names of the requirements, on the same hash."""
    fleet = Fleet(redis_url).settle()
    one, other = (
        RedisCircuitBreaker(redis_url, 2, name, 2, clock=lambda: fleet.now)
        for name in ("one", "other")
    )
    assert one.state("x.example") == "CLOSED"
    assert one.can_request("x.example")
    one.record_failure("x.example", "http_403")
    one.record_success("x.example")
    one.record_failure("x.example", "captcha")
    other.record_failure("x.example", "login wall")

    assert (one.state("x.example"), fleet.domain().last_block) == ("OPEN", "login wall")
    assert not one.can_request("x.example")
    fleet.now += OPEN_S
    assert [other.can_request("x.example"), one.can_request("x.example")] == [True, False]
    assert other.state("x.example") == "HALF_OPEN"
    other.record_success("x.example")
    assert one.can_request("x.example")
    one.close()
    other.close()


def test_times_are_told_by_the_clock_of_who_asks(redis_url: str) -> None:
    """A Redis whose clock is an hour ahead does not make a wait look an hour longer."""
    fleet = Fleet(redis_url)
    fleet.report(slots=0, block="http_429", retry_after_s=60.0)
    limiter = RedisRateLimiter(redis_url, 2, "x", 3, clock=lambda: fleet.now)

    theirs = next(each for each in limiter.domains() if each.domain == "x.example")
    ours = next(each for each in limiter.domains(fleet.now - 3600) if each.domain == "x.example")
    limiter.close()

    assert theirs.not_before == fleet.now + 60
    assert ours == msgspec.structs.replace(theirs, not_before=fleet.now + 60 - 3600)


def test_the_keys_of_the_breaker_are_the_documented_ones(redis_url: str) -> None:
    """`circuit:DOMAIN` in database 2 has `state`, `failures`, `opened_at` and `last_block`, for any
    client to read."""
    clock = Clock(BEGIN)
    breaker = RedisCircuitBreaker(redis_url, 2, "one", 2, clock=clock)
    with (
        contextlib.closing(breaker),
        redis.Redis.from_url(RedisAddress.parse(redis_url).for_redis(2)) as client,
    ):
        client.flushdb()

        def keys() -> dict[str, str]:
            names = ("state", "failures", "opened_at", "last_block")
            found = client.hmget("circuit:county.example", names)
            return {
                name: value.decode()
                for name, value in zip(names, found, strict=True)
                if value is not None
            }

        breaker.record_failure("county.example", "http_403")
        assert keys() == {"failures": "1", "last_block": "http_403"}
        breaker.record_success("county.example")
        assert keys()["failures"] == "0"
        breaker.record_failure("county.example", "http_403")
        breaker.record_failure("county.example", "captcha")
        opened = {
            "state": "OPEN",
            "failures": "2",
            "opened_at": f"{BEGIN:.0f}",
            "last_block": "captcha",
        }
        assert keys() == opened
        assert not breaker.can_request("county.example")

        clock.now += OPEN_S
        assert breaker.can_request("county.example")
        assert keys() == opened | {"state": "HALF_OPEN"}
        breaker.record_failure("county.example", "login wall")
        again = {"failures": "3", "opened_at": f"{clock.now:.0f}", "last_block": "login wall"}
        assert keys() == opened | again

        clock.now += 2 * OPEN_S
        assert breaker.can_request("county.example")
        breaker.record_success("county.example")
        assert keys() == {}


# While Redis is away


class Server:
    """A Redis that can go and come back."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        argv = [
            redis_program(),
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--dir",
            str(folder),
        ]
        self._child = Child(
            "Redis", [*argv, "--save", "", "--appendonly", "no"], folder / "redis.log"
        )

    def start(self) -> None:
        self._child.start()
        self._child.wait_until(self._answers, 30)

    def _answers(self) -> bool:
        with contextlib.suppress(redis.RedisError), redis.Redis(port=self.port) as client:
            return bool(client.ping())
        return False

    def stop(self) -> None:
        self._child.stop(0)

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A Redis of the test's own."""
    server = Server(tmp_path)
    server.start()
    yield server
    server.stop()


class Process:
    """A process as the limiter sees it: both clocks are the test's."""

    def __init__(
        self, url: str, share: int, place: int | None = None, name: str = "p", begin: float = 5e8
    ) -> None:
        self.passed = begin
        self.permit = RedisRateLimiter(
            url, 2, f"{name}{place}", 3,
            share=lambda: share,
            place=None if place is None else lambda: place,
            clock=lambda: self.passed,
            monotonic=lambda: self.passed,
        )  # fmt: skip

    def ask(self, rule: RateRule = FAST, domain: str = "x.example", wish: int = 1) -> PermitAnswer:
        return self.permit.ask([PermitRequest(domain=domain, rule=rule, wish=wish)])[0]


def test_while_redis_is_away_each_process_keeps_to_its_share(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Quiet at first, then its part of rate and places; one line when it begins and one when Redis
    is back, and nothing is booked there before all others can have noticed."""
    process, rule = Process(server.url, share=4), RateRule(interval_s=0.05, at_a_time=8)
    process.ask(rule)
    process.passed += 10
    assert process.ask(rule).starts_s == (0.0,)

    server.stop()
    with caplog.at_level(logging.WARNING, "crawler"):
        quiet = [process.ask(rule) for _ in range(3)]
        process.passed += QUIET_S
        starts = []
        for _ in range(40):
            granted = process.ask(rule).starts_s
            starts += [process.passed + start for start in granted]
            process.permit.report(
                [RequestReport(domain="x.example", rule=rule, slots=len(granted), good=True)]
            )
            process.passed += 0.1
        places = process.ask(RateRule(at_a_time=8), "y.example", wish=8)
        process.permit.renew(["x.example"])
        process.permit.forget("x.example", "somebody")
        process.permit.report([RequestReport(domain="x.example", rule=rule, slots=0, good=True)])
    gone = [record.getMessage() for record in caplog.records]

    assert {(answer.starts_s, answer.why) for answer in quiet} == {((), "just begun")}
    assert quiet[0].wait_s == QUIET_S
    assert min(starts) >= 5e8 + 10 + QUIET_S
    assert len(starts) > 15
    assert all(later - sooner >= 4 * 0.05 for sooner, later in itertools.pairwise(starts))
    assert len(places.starts_s) == 8 // 4
    assert len(gone) == 1
    assert "1/4" in gone[0]

    server.start()
    caplog.clear()
    with caplog.at_level(logging.WARNING, "crawler"):
        process.passed += RETRY_S
        back = process.ask(rule)
        process.passed += RETURN_S - 0.01
        still = process.ask(rule)
        process.passed += 0.02
        first = process.ask(rule)
        process.passed += 10
        then = process.ask(rule)

    assert (back.starts_s, still.starts_s) == ((), ())
    assert first.why == "just begun" or first.starts_s
    assert len(then.starts_s) == 1
    assert [record.getMessage()[:13] for record in caplog.records] == ["Redis is back"]


def test_all_shares_together_keep_to_the_rate(server: Server) -> None:
    """With their places known, the processes of a machine never send more than the rate in any
    second."""
    processes = [
        Process(server.url, share=15, place=place, begin=5e8 + place / 7) for place in range(15)
    ]
    server.stop()
    sent: list[float] = []
    for _ in range(1200):
        for process in processes:
            sent += [process.passed + start for start in process.ask().starts_s]
            process.passed += 0.013
    sent.sort()

    assert len(sent) > 0.8 * 20 * (1200 * 0.013 - QUIET_S - 1)
    assert all(later - sooner >= 0.05 for sooner, later in itertools.pairwise(sent))


def test_what_was_refused_before_redis_went_is_still_refused(server: Server) -> None:
    """An open circuit and a Crawl-delay are kept to on one's own as well."""
    process = Process(server.url, share=1)
    process.ask()
    process.permit.report(
        [RequestReport(domain="slow.example", rule=FAST, slots=0, crawl_delay_s=5)]
    )
    for _ in range(3):
        process.permit.report(
            [RequestReport(domain="x.example", rule=FAST, slots=0, block="captcha")]
        )
    process.passed += 20
    assert process.ask().why == "open"
    assert process.ask(domain="slow.example").starts_s
    server.stop()
    process.ask()
    process.passed += QUIET_S + 1
    refused = process.ask()
    process.passed += 6
    slow = [process.ask(domain="slow.example") for _ in range(2)]

    assert refused.why == "open"
    assert 0 < refused.wait_s < OPEN_S
    assert len(slow[0].starts_s) == 1
    assert slow[1].starts_s == ()
    assert slow[1].wait_s >= 5 / HEADROOM - AHEAD_S - 0.001


def test_a_redis_that_hangs_does_not_hang_a_worker(server: Server) -> None:
    """Every call has a deadline; the answer that comes too late confuses nobody."""
    process = Process(server.url, share=1)
    process.ask()
    process.passed += 10
    server.client().client_pause(4000)
    hung = process.ask()
    wait_for(lambda: server.client().ping(), 30, "Redis to go on")
    process.passed += RETRY_S
    back = process.ask()
    process.passed += RETURN_S
    first, second = process.ask(), process.ask()

    assert hung.why == back.why == "just begun"
    assert (len(first.starts_s), len(second.starts_s)) == (1, 1)
    assert second.starts_s[0] - first.starts_s[0] == pytest.approx(0.05 / HEADROOM, abs=1e-6)


def test_a_redis_that_takes_no_writes_is_away(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says so, and it is not taken to be back because it answers."""
    process = Process(server.url, share=1)
    process.ask()
    server.client().config_set("maxmemory", 1)
    with caplog.at_level(logging.WARNING, "crawler"):
        for _ in range(20):
            process.ask()
            process.passed += 1
    granted = process.ask()

    assert len(caplog.records) == 1
    assert len(granted.starts_s) == 1


def test_facts_need_redis(server: Server) -> None:
    """What is known is not guessed: where Redis is away, the error says so."""
    server.stop()
    permit = RedisRateLimiter(server.url, 2, "a", 3)

    with pytest.raises(ServiceError, match="Redis does not answer"):
        permit.domains()
    with pytest.raises(ServiceError, match="Redis does not answer"):
        permit.reset("x.example")


# Answers that are long on their way


def test_an_answer_that_was_long_on_its_way_does_not_make_requests_late() -> None:
    """Once the distance of the clocks is known from a quick answer, a slow one is seen to be
    old."""
    offset = ClockOffset()
    quick = offset.behind(1000.001, 0.0, 0.002)
    slow_back = offset.behind(1000.011, 0.010, 0.310)
    slow_there = offset.behind(1000.700, 0.400, 0.701)
    set_back = offset.behind(500.0, 1.0, 1.002)

    assert quick == pytest.approx(0.001)
    assert slow_back == pytest.approx(0.299)
    assert slow_there == pytest.approx(0.001)
    assert set_back == pytest.approx(0.001)


def test_a_step_forward_of_redis_clock_opens_no_domain_early(server: Server) -> None:
    """A Retry-After lasts as long as it was said to, by the clock of each process that has heard of
    it."""
    # Given two processes, one of which has heard of a Retry-After
    back, ask = [0.0], PermitRequest(domain="x.example", rule=FAST)
    told = RedisRateLimiter(server.url, 2, "told", 3, monotonic=lambda: time.monotonic() - back[0])
    other = RedisRateLimiter(server.url, 2, "other", 3)
    told.nothing_booked()
    wait_for(lambda: told.ask([ask])[0].starts_s, 20, "a permit")
    told.report([RequestReport(domain="x.example", rule=FAST, block="http_429", retry_after_s=2.0)])
    assert told.ask([ask])[0].why == "retry after"

    # When Redis's clock is half a minute further, all at once, and lets the other one go
    back[0] = 30.0
    wait_for(
        lambda: other.ask([ask])[0].starts_s, 20, "the end of the Retry-After by Redis's clock"
    )

    # Then who was told keeps to it until its own clock says so
    kept = told.ask([ask])[0]
    assert (kept.starts_s, kept.why) == ((), "retry after")
    assert kept.wait_s > 20
    back[0] = 0.0
    wait_for(lambda: told.ask([ask])[0].starts_s, 20, "its own end")
    told.close()
    other.close()
