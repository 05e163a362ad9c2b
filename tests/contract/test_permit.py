"""The permit's contract, kept by Redis and by its twin in memory."""

import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from crawler.models import RateRule
from crawler.resilience.permit import (
    AHEAD_S,
    BATCH_S,
    HEADROOM,
    LEASE_S,
    MAX_CRAWL_DELAY_S,
    MAX_OPEN_S,
    MAX_RETRY_AFTER_S,
    MAX_SLOWDOWN,
    OPEN_S,
    PermitAnswer,
    PermitRequest,
)
from tests.contract.fleet import BEGIN, Fleet

CALM = settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))


Fleets = Callable[[], Fleet]


@pytest.fixture(scope="session", params=["redis", "memory"])
def fleets(request: pytest.FixtureRequest, _redis_url: str) -> Fleets:
    """A maker of fleets whose books are empty."""
    url = _redis_url if request.param == "redis" else None
    return lambda: Fleet(url)


@pytest.fixture
def fleet(fleets: Fleets) -> Fleet:
    """A fleet in which nothing can be on its way."""
    return fleets().settle()


# The rate


def test_requests_are_spaced_by_the_rate_with_its_headroom(fleet: Fleet) -> None:
    """Bookings of several holders stand one behind the other, an interval apart, up to half a
    second ahead."""
    starts: list[float] = []
    for number in range(20):
        starts += fleet.ask(f"h{number % 3}").starts_s

    assert starts == pytest.approx([number * 0.05 / HEADROOM for number in range(10)], abs=1e-6)
    assert all(start <= AHEAD_S for start in starts)


def test_one_ask_gets_little_at_a_time(fleet: Fleet) -> None:
    """However much is wished, a killed worker takes no more with it than a tenth of a second
    gives."""
    slow = fleet.ask(domain="slow.example", rule=RateRule(interval_s=5), wish=100)
    fast = fleet.ask(domain="fast.example", rule=RateRule(interval_s=0.001), wish=1000)

    assert len(slow.starts_s) == 1
    assert len(fast.starts_s) == math.floor(BATCH_S / (0.001 / HEADROOM))
    assert fast.why == slow.why == "rate"


def test_no_interval_means_no_rate(fleet: Fleet) -> None:
    """Without an interval all that is wished may go at once."""
    answer = fleet.ask(rule=RateRule(), wish=50)

    assert answer == PermitAnswer(starts_s=(0.0,) * 50)


def test_who_is_refused_comes_back_when_a_booking_is_possible(fleet: Fleet) -> None:
    """Each refused asker has a turn of its own, at which it gets its request."""
    while fleet.ask("greedy").starts_s:
        pass
    waits = {f"h{number}": fleet.ask(f"h{number}").wait_s for number in range(8)}
    begin = fleet.now

    assert len(set(waits.values())) == 8
    for holder, wait_s in sorted(waits.items(), key=lambda item: item[1]):
        fleet.now = begin + wait_s + 1e-6
        assert len(fleet.ask(holder).starts_s) == 1


def test_many_who_wait_come_back_within_two_seconds_of_the_next_request(fleet: Fleet) -> None:
    """With more askers than turns, none is sent away for long, and with a slow rate none comes in
    vain too early."""
    rule_ = RateRule(interval_s=10 * HEADROOM)
    assert fleet.ask(rule=rule_).starts_s == (0.0,)
    waits = [fleet.ask(f"h{number}", rule=rule_).wait_s for number in range(5)]

    assert waits == pytest.approx([9.5, 11.5, 11.5, 11.5, 11.5])


def test_what_was_not_used_is_given_back_if_it_was_last(fleet: Fleet) -> None:
    """Bookings that nobody stands behind return to the rate; others are lost."""
    first = fleet.ask("a").starts_s + fleet.ask("a").starts_s + fleet.ask("a").starts_s
    fleet.report("a", slots=2, unused=2)
    again = fleet.ask("b").starts_s
    fleet.report("a", slots=1, unused=1)
    behind = fleet.ask("b").starts_s

    assert again == (first[1],)
    assert behind[0] == pytest.approx(first[2])


def test_what_is_past_or_never_was_cannot_be_given_back(fleet: Fleet) -> None:
    """Starts that have passed, and more than were granted, are not given back."""
    fleet.ask("a")
    fleet.now += 0.01
    fleet.report("a", slots=1, unused=1)
    after = fleet.ask("a").starts_s
    fleet.report("a", slots=1, unused=5)
    last = fleet.ask("a").starts_s

    assert after == pytest.approx((0.05 / HEADROOM - 0.01,), abs=1e-6)
    assert last == pytest.approx((0.1 / HEADROOM - 0.01,), abs=1e-6)


def test_a_redirect_may_be_booked_further_ahead(fleet: Fleet) -> None:
    """An ask with a longer reach gets what a page is refused."""
    rule_ = RateRule(interval_s=2.0)
    fleet.ask(rule=rule_)

    assert fleet.ask(rule=rule_).starts_s == ()
    assert fleet.ask(rule=rule_, ahead_s=5, slots=False).starts_s == pytest.approx((2 / HEADROOM,))


def test_a_clock_that_is_set_back_does_not_stop_a_domain(fleet: Fleet) -> None:
    """Two hours back, the next request still comes an interval later, and an open circuit lasts no
    longer."""
    fleet.ask(rule=RateRule(interval_s=0.4))
    fleet.open()
    fleet.now -= 7200
    refused = fleet.ask(rule=RateRule(interval_s=0.4))
    other = fleet.ask(domain="other.example")
    fleet.now += OPEN_S
    granted = fleet.ask(rule=RateRule(interval_s=0.4))

    assert refused.why == "open"
    assert refused.wait_s == pytest.approx(OPEN_S)
    assert granted.starts_s == (0.0,)
    assert other.starts_s or other.wait_s < 1


def test_a_clock_that_is_set_back_does_not_lengthen_leases(fleet: Fleet) -> None:
    """The places of a dead holder come back after the same time, and a Retry-After ends after its
    own."""
    rule_ = RateRule(at_a_time=1)
    fleet.ask("a", rule=rule_)
    fleet.report("b", rule=rule_, slots=0, retry_after_s=30)
    fleet.now -= 7200
    before = fleet.ask("b", rule=rule_)
    fleet.now += 30
    after = fleet.ask("b", rule=rule_)

    assert before.why == "retry after"
    assert before.wait_s == pytest.approx(30)
    assert after.starts_s == (0.0,)
    assert fleet.domain().in_flight == 1


# Requests at a time


def test_no_more_requests_at_a_time_than_the_rule_says(fleet: Fleet) -> None:
    """Places are shared by all holders, come back with reports, and a request in another's place
    takes none."""
    rule_ = RateRule(at_a_time=4)
    first = fleet.ask("a", rule=rule_, wish=3)
    second = fleet.ask("b", rule=rule_, wish=3)
    third = fleet.ask("c", rule=rule_)
    instead = fleet.ask("a", rule=rule_, slots=False)
    fleet.report("a", rule=rule_, slots=2)
    fourth = fleet.ask("c", rule=rule_, wish=3)

    assert [len(each.starts_s) for each in (first, second, third, instead, fourth)] == [
        3,
        1,
        0,
        1,
        2,
    ]
    assert (second.why, third.why) == ("at a time", "at a time")
    assert 0.05 <= third.wait_s <= 0.25
    assert fleet.domain().in_flight == 4


def test_the_places_of_a_dead_holder_come_back(fleet: Fleet) -> None:
    """At once where the death is known, else when the lease has run out; who renews keeps its
    places."""
    rule_ = RateRule(at_a_time=3)
    for holder in ("a", "b", "c"):
        assert fleet.ask(holder, rule=rule_).starts_s
    fleet["c"].forget("x.example", "a")
    known = fleet.ask("d", rule=rule_, wish=3)
    fleet.now += LEASE_S - 0.1
    fleet["c"].renew(["x.example"])
    fleet["d"].renew(["x.example", "never.heard.of"])
    fleet.now += 0.2
    ran_out = fleet.ask("e", rule=rule_, wish=3)

    assert len(known.starts_s) == 1
    assert len(ran_out.starts_s) == 1
    assert fleet.domain().in_flight == 3


def test_a_domain_that_is_asked_for_twice_in_one_call_is_limited_once(fleet: Fleet) -> None:
    """Several asks for the same domain in one call see each other."""
    asks = [PermitRequest(domain="x.example", rule=RateRule(at_a_time=3), wish=2) for _ in range(3)]
    asks.insert(1, PermitRequest(domain="y.example", rule=RateRule(at_a_time=3), wish=2))

    answers = fleet["a"].ask(asks)

    assert [len(each.starts_s) for each in answers] == [2, 2, 1, 0]
    assert fleet.domain().in_flight == 3


# The circuit


def test_blocks_in_a_row_open_the_circuit(fleet: Fleet) -> None:
    """A good answer between them starts the count again; the last one's kind is kept."""
    for block in ("http_429", "http_429", "", "captcha", "captcha", "login wall"):
        assert "OPEN" not in [known.state for known in fleet["a"].domains()]
        fleet.report(slots=0, good=not block, block=block)

    known = fleet.domain()
    assert (known.state, known.failures, known.last_block) == ("OPEN", 3, "login wall")
    assert known.opened_at == fleet.now
    assert known.open_until == fleet.now + OPEN_S
    assert fleet.ask("b") == PermitAnswer(why="open", wait_s=OPEN_S)


def test_failures_that_are_no_blocks_do_not_open_it(fleet: Fleet) -> None:
    """A server in trouble is slowed down for, not left alone."""
    for _ in range(20):
        fleet.report(slots=0, good=False)

    assert fleet.domain().state == "CLOSED"
    assert fleet.domain().slowed == MAX_SLOWDOWN


def test_what_ended_after_the_circuit_opened_changes_nothing(fleet: Fleet) -> None:
    """Late failures do not extend it and late successes do not close it."""
    fleet.open()
    before = fleet.domain()
    fleet.now += 5
    fleet.report("b", slots=0, good=False, block="late")
    fleet.report("b", slots=0, good=True)

    assert fleet.domain() == before


def test_exactly_one_probe_is_let_through(fleet: Fleet) -> None:
    """Whatever many holders wish at the same moment, one request goes; its success closes the
    circuit."""
    fleet.open()
    fleet.now += OPEN_S
    assert fleet.domain().state == "HALF_OPEN"
    answers = {holder: fleet.ask(holder, wish=10) for holder in "abcdef"}
    fleet.report("b", slots=0, good=True)
    fleet.report("b", slots=0, good=False, block="late")
    between = fleet.domain()
    fleet.report("a", good=True)

    assert [len(answer.starts_s) for answer in answers.values()] == [1, 0, 0, 0, 0, 0]
    assert [answer.why for answer in answers.values()] == [
        "probe",
        "open",
        "open",
        "open",
        "open",
        "open",
    ]
    assert between.state == "HALF_OPEN"
    known = fleet.domain()
    assert (known.state, known.failures, known.opened_at, known.open_until) == (
        "CLOSED",
        0,
        None,
        None,
    )
    assert fleet.ask("b").starts_s


def test_a_probe_that_fails_opens_the_circuit_for_twice_as_long(fleet: Fleet) -> None:
    """30, 60, 120 … seconds, up to a bound; after a success it begins anew."""
    fleet.open()
    lasts: list[float] = []
    for _ in range(7):
        until = fleet.domain().open_until or 0
        lasts.append(until - fleet.now)
        fleet.now = until
        assert len(fleet.ask("p", wish=2).starts_s) == 1
        fleet.report("p", good=False, block="captcha")
    fleet.now = fleet.domain().open_until or 0
    fleet.ask("p")
    fleet.report("p", good=True)
    fleet.open()

    assert lasts == [30, 60, 120, 240, 480, MAX_OPEN_S, MAX_OPEN_S]
    assert (fleet.domain().open_until or 0) - fleet.now == OPEN_S


def test_a_page_that_is_refused_again_says_nothing_new(fleet: Fleet) -> None:
    """It opens no circuit and slows nothing down; as a probe it keeps the pause as long as it
    was."""
    for _ in range(20):
        fleet.report(slots=0, good=False, block="captcha", again=True)
    unmoved = fleet.domain()
    fleet.open()
    lasts: list[float] = []
    for _ in range(4):
        until = fleet.domain().open_until or 0
        lasts.append(until - fleet.now)
        fleet.now = until
        assert fleet.ask("p").why == "probe"
        fleet.report("p", good=False, block="captcha", again=True)

    assert (unmoved.state, unmoved.failures, unmoved.slowed) == ("CLOSED", 0, 1.0)
    assert lasts == [OPEN_S, OPEN_S, OPEN_S, OPEN_S]


@pytest.mark.parametrize("how", ["known dead", "lease ran out", "said nothing"])
def test_a_probe_that_is_lost_goes_to_the_next(fleet: Fleet, how: str) -> None:
    """A probe whose holder dies, or learns nothing, is given to the next asker, and to no other."""
    fleet.open()
    fleet.now += OPEN_S
    assert fleet.ask("a").starts_s
    fleet.now += 1
    if how == "known dead":
        fleet["b"].forget("x.example", "a")
    elif how == "lease ran out":
        fleet.now += LEASE_S
    else:
        fleet.report("a", crawl_delay_s=-1, slots=0)  # this is not about the request
        assert fleet.ask("b").why == "open"
        fleet.report("a")

    assert fleet.ask("b").starts_s == (0.0,)
    assert fleet.ask("c").why == "open"
    fleet.report("a", good=True, slots=0)
    assert fleet.domain().state == "HALF_OPEN"


def test_a_probe_lives_as_long_as_it_is_renewed_and_may_be_redirected(fleet: Fleet) -> None:
    """A slow probe is not given twice; the request that takes its place belongs to it."""
    fleet.open()
    fleet.now += OPEN_S
    fleet.ask("a")
    for _ in range(5):
        fleet.now += LEASE_S - 1
        fleet["a"].renew(["x.example"])
        assert fleet.ask("b").why == "open"
    instead = fleet.ask("a", slots=False)
    fleet.report("a", good=True)

    assert len(instead.starts_s) == 1
    assert fleet.domain().state == "CLOSED"


# What servers ask for


def test_retry_after_holds_for_the_whole_domain_within_reason(fleet: Fleet) -> None:
    """Nobody asks before its end, a shorter one does not shorten it, and an absurd one is
    capped."""
    fleet.report("a", slots=0, retry_after_s=60)
    fleet.report("b", slots=0, retry_after_s=5)
    refused = fleet.ask("c")
    fleet.now += 60
    granted = fleet.ask("c")
    fleet.report("a", slots=0, retry_after_s=1e12)

    assert (refused.starts_s, refused.why, refused.wait_s) == ((), "retry after", 60)
    assert granted.starts_s == (0.0,)
    assert fleet.domain().not_before == fleet.now + MAX_RETRY_AFTER_S


def test_crawl_delay_holds_for_all_until_it_is_taken_back(fleet: Fleet) -> None:
    """It counts where it is longer than the rule's interval, within reason."""
    fleet.report("a", slots=0, crawl_delay_s=2)
    starts = [fleet.ask(holder, ahead_s=100).starts_s[0] for holder in "abc"]
    fleet.report("a", slots=0, crawl_delay_s=1e9)
    capped = fleet.domain().crawl_delay_s
    fleet.report("b", slots=0, crawl_delay_s=-1)

    assert starts[1] - starts[0] == starts[2] - starts[1] == pytest.approx(2 / HEADROOM, abs=1e-6)
    assert capped == MAX_CRAWL_DELAY_S
    assert fleet.domain().crawl_delay_s == 0


@pytest.mark.parametrize("number", [math.nan, -5.0, math.inf])
def test_absurd_numbers_do_no_harm(fleet: Fleet, number: float) -> None:
    """What a server or a rule says is kept within reason."""
    fleet.report(slots=-3, good=True, latency_s=number, retry_after_s=min(number, 1.0), unused=-1)
    answer = fleet.ask(rule=RateRule(interval_s=0.05, at_a_time=-1), wish=-2, ahead_s=number)

    assert answer.starts_s == ()
    assert answer.wait_s <= 1
    fleet.now += 1
    assert fleet.ask("b", ahead_s=0.5).starts_s == (0.0,)


# Adaptive slowing


def test_failures_slow_a_domain_down_and_good_answers_bring_it_back(fleet: Fleet) -> None:
    """The interval grows with each failure up to a bound, and shrinks step by step."""
    fleet.report(slots=0, good=False)
    fleet.report(slots=0, good=False, block="http_429")
    slowed = fleet.domain().slowed
    first, second = (fleet.ask(ahead_s=100).starts_s[0] for _ in range(2))
    for _ in range(50):
        fleet.report(slots=0, good=True, latency_s=0.1)

    assert slowed == pytest.approx(1.5 * 1.5)
    assert second - first == pytest.approx(0.05 * slowed / HEADROOM)
    assert fleet.domain().slowed == 1


def test_answers_slower_than_usual_slow_a_domain_down(fleet: Fleet) -> None:
    """Both a second and three times the usual must be exceeded; what stays slow becomes the
    usual."""
    for latency_s in (0.1, 0.2, 0.9):
        fleet.report(slots=0, good=True, latency_s=latency_s)
    usual = fleet.domain().slowed
    fleet.report(slots=0, good=True, latency_s=2.0)
    slowed = fleet.domain().slowed
    for _ in range(100):
        fleet.report(slots=0, good=True, latency_s=2.0)

    assert usual == 1
    assert slowed == pytest.approx(1.2)
    assert fleet.domain().slowed == 1


def test_without_a_rate_nothing_is_slowed(fleet: Fleet) -> None:
    """An operator's own server is not slowed down for."""
    for _ in range(5):
        fleet.report(rule=RateRule(at_a_time=8), slots=0, good=False)

    assert fleet.domain().slowed == 1


# What is known, and how to forget it


def test_nothing_is_sent_while_old_bookings_may_be_on_their_way(fleets: Fleets) -> None:
    """Just begun, the first request to a domain goes when all that was booked before has gone."""
    fleet = fleets()
    early = fleet.ask(domain="x.example", ahead_s=0.1)
    booked = fleet.ask(domain="y.example", ahead_s=1.0)
    fleet.now += early.wait_s + 1e-6
    later = fleet.ask(domain="x.example", ahead_s=0.1)

    assert (early.starts_s, early.why) == ((), "just begun")
    assert booked.starts_s == pytest.approx((AHEAD_S + 0.05 / HEADROOM,), abs=1e-6)
    assert fleet.now + later.starts_s[0] >= BEGIN + AHEAD_S + 0.05 / HEADROOM
    assert fleet.ask(domain="z.example", rule=RateRule(at_a_time=1)).starts_s == (0.0,)


def test_a_reset_forgets_troubles_but_keeps_limits(fleet: Fleet) -> None:
    """What is in flight and what is booked still counts; a domain that nothing is known of cannot
    be reset."""
    rule_ = RateRule(interval_s=0.05, at_a_time=2)
    first = fleet.ask(rule=rule_).starts_s + fleet.ask("b", rule=rule_).starts_s
    fleet.report(slots=0, crawl_delay_s=7, retry_after_s=9)
    fleet.open()
    done = fleet["c"].reset("x.example")
    known = fleet.domain()
    refused = fleet.ask("c", rule=rule_)
    fleet.report("a", rule=rule_)
    third = fleet.ask("c", rule=rule_)

    assert done
    assert (known.state, known.failures, known.last_block, known.slowed) == ("CLOSED", 0, "", 1)
    assert (known.crawl_delay_s, known.not_before, known.in_flight) == (0, None, 2)
    assert refused.why == "at a time"
    assert third.starts_s[0] - first[1] == pytest.approx(0.05 / HEADROOM, abs=1e-6)
    assert not fleet["c"].reset("never.example")


def test_a_reset_of_an_idle_domain_leaves_nothing(fleet: Fleet) -> None:
    """With nothing booked and nothing in flight the domain is no longer listed."""
    fleet.open()
    fleet.now += 1
    fleet["b"].reset("x.example")

    assert "x.example" not in [known.domain for known in fleet["b"].domains()]
    assert not fleet["b"].reset("x.example")


def test_the_rule_is_shown_with_the_domain(fleet: Fleet) -> None:
    """What was asked with last is known."""
    fleet.ask(domain="epoch", rule=RateRule(interval_s=0.25, at_a_time=3))

    known = fleet.domain("epoch")
    assert (known.interval_s, known.at_a_time, known.in_flight) == (0.25, 3, 1)


# Histories

HOLDERS = ("a", "b", "c")
seconds = st.sampled_from(
    [0.0, 0.001, 0.01, 0.03, 0.05, 0.1, 0.1, 0.3, 0.6, 1.0, 2.0, 9.9, 10.1, 31.0, 61.0, 700.0]
)


def mostly(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    """Rare values must stay rare: a history in which everything is refused shows nothing."""
    return st.sampled_from([usual] * 8 + list(others))


reports = st.fixed_dictionaries(
    {
        "slots": st.integers(0, 2),
        "good": mostly(True, False, False, None, None),
        "block": mostly("", "captcha", "http_429"),
        "again": mostly(False, True),
        "latency_s": mostly(0.2, 0.0, 0.7, 1.5, 4.0),
        "retry_after_s": mostly(0.0, 0.3, 4000.0),
        "because": mostly("", "its robots.txt answered 503"),
        "crawl_delay_s": mostly(0.0, -1.0, 0.2, 90.0),
        "unused": mostly(0, 1, 1, 2, 3),
    }
)
asks = st.fixed_dictionaries(
    {
        "wish": mostly(1, 2, 3, 40),
        "ahead_s": st.sampled_from([0.0, 0.1, AHEAD_S, 5.0]),
        "slots": st.booleans(),
        "job": mostly("", "mine", "mine", "mine", "other"),
    }
)
rules = st.builds(
    RateRule,
    interval_s=st.sampled_from([0.0, 0.001, 0.01, 0.05, 1.0, 30.0]),
    at_a_time=st.sampled_from([0, 0, 1, 2, 8]),
)


class Limits(RuleBasedStateMachine):
    """Any interleaving of holders, kept beside a simple model of what a server would see."""

    fleet: Fleet
    make: Fleets
    flushes = False

    @initialize(rule_=rules, settled=st.booleans())
    def begin(self, rule_: RateRule, settled: bool) -> None:
        self.fleet, self.rule = self.make(), rule_
        if settled:
            self.fleet.settle()
        self.sent: list[float] = []
        self.mine: dict[str, list[float]] = {holder: [] for holder in HOLDERS}
        self.held: Counter[str] = Counter()
        self.touched: dict[str, float] = {}
        self.probe, self.probe_until = "", 0.0

    @rule(passed=seconds)
    def wait(self, passed: float) -> None:
        self.fleet.now += passed

    @rule(holder=st.sampled_from(HOLDERS), ask=asks)
    def ask(self, holder: str, ask: dict[str, Any]) -> None:
        if self.flushes:
            ask = ask | {"ahead_s": min(ask["ahead_s"], AHEAD_S)}
        before = self.fleet_state()
        answer = self.fleet.ask(holder, rule=self.rule, **ask)
        now, count = self.fleet.now, len(answer.starts_s)
        self.touched[holder] = now
        starts = [now + start for start in answer.starts_s]
        self.sent += starts
        self.mine[holder] += starts
        if ask["slots"]:
            self.held[holder] += count
            living = sum(self.held[h] for h, at in self.touched.items() if at + LEASE_S > now)
            assert not count or not self.rule.at_a_time or living <= self.rule.at_a_time
        assert count <= ask["wish"]
        assert count == ask["wish"] or (answer.why and answer.wait_s >= 0)
        assert (
            all(0 <= start <= ask["ahead_s"] for start in answer.starts_s)
            or not self.rule.interval_s
        )
        if before == "OPEN":
            assert not count
        if before == "HALF_OPEN":
            redirected = holder == self.probe and not ask["slots"]
            assert count <= (redirected or self.probe_until <= now)
            if count:
                self.probe, self.probe_until = holder, now + LEASE_S

    def fleet_state(self) -> str:
        return next(
            (known.state for known in self.fleet["a"].domains() if known.domain == "x.example"),
            "CLOSED",
        )

    @rule(holder=st.sampled_from(HOLDERS), report=reports)
    def report(self, holder: str, report: dict[str, Any]) -> None:
        # Only the latest bookings can be unused, and no more than there are.
        unused = min(report["unused"], len(self.mine[holder]))
        if unused:
            gone = self.mine[holder][-unused:]
            del self.mine[holder][-unused:]
            for start in gone:
                self.sent.remove(start)
        self.fleet.report(holder, rule=self.rule, **(report | {"unused": unused}))
        self.held[holder] = max(0, self.held[holder] - report["slots"])
        self.touched[holder] = self.fleet.now
        if holder == self.probe:
            self.probe_until = 0.0

    @rule(holder=st.sampled_from(HOLDERS))
    def give_back(self, holder: str) -> None:
        self.report(holder, {"slots": 1, "unused": 1})

    @rule(holder=st.sampled_from(HOLDERS), later=st.booleans())
    def meet_a_wall(self, holder: str, later: bool) -> None:
        for _ in range(3):
            self.report(holder, {"slots": 0, "unused": 0, "block": "captcha"})
        if later:
            self.fleet.now += OPEN_S

    @rule(holder=st.sampled_from(HOLDERS))
    def renew(self, holder: str) -> None:
        self.fleet[holder].renew(["x.example"])
        if self.held[holder]:
            self.touched[holder] = self.fleet.now
            if holder == self.probe and self.probe_until:
                self.probe_until = self.fleet.now + LEASE_S

    @rule(holder=st.sampled_from(HOLDERS), known=st.booleans())
    def die(self, holder: str, known: bool) -> None:
        self.fleet.die(holder)
        if known:
            self.fleet["survivor"].forget("x.example", holder)
            if holder == self.probe:
                self.probe_until = 0.0
        self.held[holder], self.mine[holder] = 0, []

    @rule()
    def flush(self) -> None:
        if self.flushes and self.fleet.client:
            self.fleet.client.flushdb()
            self.probe_until = 0.0

    @invariant()
    def requests_keep_their_distance(self) -> None:
        if not hasattr(self, "sent"):
            return
        starts = sorted(self.sent)
        for before, after in itertools.pairwise(starts):
            assert after - before >= self.rule.interval_s - 1e-6


def test_no_history_breaks_the_limits(fleets: Fleets) -> None:
    """Whatever holders ask, report, give back and die of: starts keep their distance, so that no
    window holds more than the rate; places are never exceeded; an open circuit lets nothing through
    and a half-open one request."""
    run_state_machine_as_test(
        type("Machine", (Limits,), {"make": staticmethod(fleets)}), settings=CALM
    )


def test_no_history_with_an_emptied_redis_breaks_the_rate(redis_url: str) -> None:
    """The same where Redis is emptied at any moment: what was booked before and after keeps its
    distance."""
    spaced = st.builds(RateRule, interval_s=st.sampled_from([0.001, 0.05, 1.0, 30.0]))

    class Machine(Limits):
        flushes = True
        make = staticmethod(lambda: Fleet(redis_url))

        @initialize(rule_=spaced, settled=st.booleans())
        def begin(self, rule_: RateRule, settled: bool) -> None:
            super().begin(rule_, settled)

    run_state_machine_as_test(Machine, settings=CALM)


steps = st.one_of(
    st.tuples(st.just("wait"), seconds),
    st.tuples(st.just("wait"), mostly(0.0, -0.02, -1.0, -50.0)),
    st.tuples(st.just("ask"), st.sampled_from(HOLDERS), st.sampled_from("xy"), rules, asks),
    st.tuples(st.just("ask"), st.sampled_from(HOLDERS), st.sampled_from("xy"), rules, asks),
    st.tuples(st.just("report"), st.sampled_from(HOLDERS), st.sampled_from("xy"), rules, reports),
    st.tuples(st.just("renew"), st.sampled_from(HOLDERS)),
    st.tuples(st.just("forget"), st.sampled_from(HOLDERS), st.sampled_from("xy")),
    st.tuples(st.just("die"), st.sampled_from(HOLDERS)),
    st.tuples(st.just("reset"), st.sampled_from("xy")),
)


@settings(CALM, max_examples=400)
@given(history=st.lists(steps, max_size=60))
def test_redis_and_memory_give_the_same_answers(
    redis_url: str, history: list[tuple[Any, ...]]
) -> None:
    """Any history has the same answers, to the last bit, and leaves the same state."""
    both = (Fleet(redis_url), Fleet(None))
    for step in history:
        replies = [_replay(fleet, step) for fleet in both]
        assert replies[0] == replies[1], step
        known = [
            [each for each in fleet["a"].domains() if each.domain != "first.example"]
            for fleet in both
        ]
        assert known[0] == known[1], step


def _replay(fleet: Fleet, step: tuple[Any, ...]) -> object:
    match step:
        case "wait", passed:
            fleet.now += passed
        case "ask", holder, domain, rule_, more:
            return fleet.ask(holder, domain, rule_, **more)
        case "report", holder, domain, rule_, more:
            fleet.report(holder, domain, rule_, **more)
        case "renew", holder:
            fleet[holder].renew(["x", "y"])
        case "forget", holder, domain:
            fleet["a"].forget(domain, holder)
        case "die", holder:
            fleet.die(holder)
        case "reset", domain:
            return fleet["a"].reset(domain)
    return None


# A limit that is raised


SLOW, QUICK = RateRule(interval_s=60), RateRule(interval_s=0.1)


def booked_ahead(fleet: Fleet, job: str = "mine") -> None:
    """A page at one a minute that waits for its second request, and askers that were sent away."""
    assert fleet.ask(rule=SLOW, job=job).starts_s == (0.0,)
    assert fleet.ask(rule=SLOW, job=job, ahead_s=180, slots=False).starts_s
    for holder in "bcd":
        assert not fleet.ask(holder, rule=SLOW, job=job).starts_s


def granted(fleet: Fleet, rule_: RateRule, job: str, for_s: float) -> int:
    """How many requests two holders get in that time, if they come back when they are told to."""
    end, begun = fleet.now + for_s, 0
    turns = {"a": fleet.now, "b": fleet.now}
    while min(turns.values()) < end:
        holder = min(turns, key=turns.__getitem__)
        fleet.now = max(fleet.now, turns[holder])
        answer = fleet.ask(holder, rule=rule_, job=job, wish=5)
        begun += len(answer.starts_s)
        turns[holder] = fleet.now + min(max(answer.wait_s, 0.001), 2.0)
    return begun


def test_a_raised_limit_counts_at_once(fleet: Fleet) -> None:
    """What the job booked under its lower limit holds nobody, nor do the turns that it was told."""
    booked_ahead(fleet)

    assert granted(fleet, QUICK, "mine", 11.0) >= 90


def test_a_raised_limit_leaves_those_alone_who_go_before_they_can_hear_of_it(fleet: Fleet) -> None:
    """The first request comes behind all that may begin within the next second."""
    booked_ahead(fleet)
    fleet.now += 60 / HEADROOM - 0.9  # so that the page goes in 0.9 s, as it was told

    first = fleet.ask("b", rule=QUICK, job="mine", ahead_s=5)

    assert first.starts_s == pytest.approx((1 + 0.1 / HEADROOM,), abs=1e-5)


def test_another_job_does_not_drop_what_is_booked(fleet: Fleet) -> None:
    """Its higher limit is not that of the pages that wait; neither are those of none dropped."""
    for mine, other in (("mine", "other"), ("", "")):
        booked_ahead(fleet, mine)
        begin = fleet.now

        assert granted(fleet, QUICK, other, 60) == 0
        fleet.now = begin + 3600


def test_a_raised_limit_drops_only_what_was_booked_last(fleet: Fleet) -> None:
    """What another job has booked before is waited for."""
    fleet.ask(rule=RateRule(interval_s=10), job="other")
    fleet.ask(rule=RateRule(interval_s=10), job="other", ahead_s=180, slots=False)
    fleet.ask("b", rule=SLOW, job="mine", ahead_s=180)

    [first] = fleet.ask("b", rule=QUICK, job="mine", ahead_s=180).starts_s

    assert first == pytest.approx(20 / HEADROOM, abs=1e-5)


def test_a_pause_has_its_reason(fleet: Fleet) -> None:
    """The one that lasts longest is told, and a reset forgets it."""
    fleet.report(slots=0, retry_after_s=60, because="its robots.txt answered 503")
    fleet.report(slots=0, retry_after_s=30)
    paused = fleet.domain().because
    fleet.report(slots=0, retry_after_s=90)
    longer = fleet.domain().because
    fleet.report(slots=0, retry_after_s=120, because="its robots.txt answered 503")
    fleet.ask(rule=RateRule(at_a_time=1))
    fleet["a"].reset("x.example")

    assert (paused, longer) == ("its robots.txt answered 503", "")
    assert "x.example" not in [known.domain for known in fleet["a"].domains() if known.because]
