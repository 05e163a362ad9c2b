"""The audit counts what was asked of a domain in every window, and at every moment."""

import pytest

from crawler.history import RecordedRequest, examine
from crawler.models import RateRule

TWO_A_SECOND = RateRule(interval_s=0.5, at_a_time=2)
NOW = 1_794_812_400.0


def asked(
    *began: float, seconds: float = 0.1, rule: RateRule = TWO_A_SECOND
) -> list[RecordedRequest]:
    """Requests that begin at these seconds."""
    return [RecordedRequest(NOW + at, NOW + at + seconds, rule) for at in began]


def test_a_domain_that_was_asked_as_agreed_has_no_breach() -> None:
    """Two a second, one after the other."""
    found = examine("d", asked(*(n * 0.51 for n in range(100))))

    assert (found.requests, found.most_in_window, found.most_at_a_time, found.breaches) == (
        100,
        2,
        1,
        [],
    )
    assert found.rate == pytest.approx(100 / (99 * 0.51))
    assert found.limits == ["2/s, 2 at a time"]


def test_a_burst_is_a_breach_wherever_the_second_begins() -> None:
    """Three within 0.9 s, although no second of the clock holds three."""
    found = examine("d", asked(0.0, 5.6, 5.9, 6.4, 20.0))

    [breach] = found.breaches
    assert breach.what == "3 requests within 1 s, where 2 were allowed"
    assert (breach.at, breach.times) == (NOW + 6.4, 1)


def test_requests_exactly_a_second_apart_are_not_within_one() -> None:
    """A window does not hold both of its ends."""
    assert examine("d", asked(0.0, 0.5, 1.0, 1.5, 2.0)).breaches == []


def test_too_many_at_a_time_is_a_breach() -> None:
    """Slow answers pile up."""
    found = examine("d", asked(0.0, 1.0, 2.0, 3.0, seconds=2.5))

    assert [breach.what for breach in found.breaches] == [
        "3 requests at a time, where 2 were allowed"
    ]
    assert found.most_at_a_time == 3


def test_slow_rates_are_counted_by_the_minute() -> None:
    """30/m allows thirty in any minute, however they lie in it."""
    rule = RateRule(interval_s=2.0)
    assert examine("d", asked(*(n * 2.0 for n in range(90)), rule=rule)).breaches == []

    [breach] = examine("d", asked(*(n * 1.9 for n in range(90)), rule=rule)).breaches
    assert breach.what == "32 requests within 60 s, where 30 were allowed"


def test_without_a_limit_nothing_is_broken() -> None:
    """Servers of one's own."""
    found = examine("d", asked(*[0.0] * 50, rule=RateRule()))

    assert (found.most_in_window, found.most_at_a_time, found.breaches, found.limits) == (
        50,
        50,
        [],
        ["no limit"],
    )


def test_minutes_show_how_it_went_over_time() -> None:
    """Each minute with what began in it."""
    found = examine("d", asked(0.0, 1.0, 61.0, 190.0))

    assert [(minute.at - NOW, minute.requests) for minute in found.minutes] == [
        (0, 2),
        (60, 1),
        (180, 1),
    ]
