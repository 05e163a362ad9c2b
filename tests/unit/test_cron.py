"""Cron rules: which moments they name, also where a change of clocks leaves out or repeats some."""

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crawler import cron
from crawler.cron import Cron

SOFIA = ZoneInfo("Europe/Sofia")  # 03:00 becomes 04:00 on 29 March, 04:00 becomes 03:00 on 25 Oct


def at(text: str, zone: ZoneInfo = SOFIA) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


def shown(moment: float, zone: ZoneInfo = SOFIA) -> str:
    return datetime.fromtimestamp(moment, zone).isoformat(timespec="minutes")


def runs(rule: str, after: str, count: int, zone: ZoneInfo = SOFIA) -> list[str]:
    """The next moments of a rule."""
    cron, now, found = Cron.parse(rule), at(after, zone), []
    for _ in range(count):
        now = cron.next(now, zone)
        found.append(shown(now, zone))
    return found


@pytest.mark.parametrize(
    ("rule", "moments"),
    [
        ("0 2 * * *", ["2026-01-02T02:00", "2026-01-03T02:00"]),
        ("*/20 8-9 * * *", ["2026-01-01T08:00", "2026-01-01T08:20", "2026-01-01T08:40"]),
        ("5,35 23 * * *", ["2026-01-01T23:05", "2026-01-01T23:35"]),
        ("0 0 1 */6 *", ["2026-07-01T00:00", "2027-01-01T00:00"]),
        ("0 6 * mar,OCT *", ["2026-03-01T06:00", "2026-03-02T06:00"]),
        ("0 6 * * mon-fri", ["2026-01-01T06:00", "2026-01-02T06:00", "2026-01-05T06:00"]),
        ("0 6 * * sat-sun", ["2026-01-03T06:00", "2026-01-04T06:00"]),
        ("0 6 * * 7", ["2026-01-04T06:00", "2026-01-11T06:00"]),
        ("0 6 * * 0", ["2026-01-04T06:00", "2026-01-11T06:00"]),
        ("0 6 13 * fri", ["2026-01-02T06:00", "2026-01-09T06:00", "2026-01-13T06:00"]),
        ("0 6 */10 * fri", ["2026-05-01T06:00", "2026-07-31T06:00"]),
        ("0 0 29 2 *", ["2028-02-29T00:00", "2032-02-29T00:00"]),
        ("0 0 31 * *", ["2026-01-31T00:00", "2026-03-31T00:00"]),
        ("0 0 31 2 mon", ["2026-02-02T00:00", "2026-02-09T00:00"]),
    ],
)
def test_moments_of_a_rule(rule: str, moments: list[str]) -> None:
    """Lists, ranges, steps and names; of two restricted days, either counts."""
    found = runs(rule, "2026-01-01T03:00", len(moments))

    assert [each[:16] for each in found] == moments


def test_a_rule_that_rarely_falls_due() -> None:
    """A 29 February that is a Sunday is found over 40 years without one."""
    assert runs("0 0 29 2 */7", "2088-03-01T00:00", 1)[0][:10] == "2128-02-29"


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("* * * *", "must be five fields"),
        ("* * * * * *", "must be five fields"),
        ("@daily", "must be five fields"),
        ("60 * * * *", "the minute must be 0 to 59, not '60'"),
        ("* 24 * * *", "the hour must be 0 to 23"),
        ("* * 0 * *", "the day of the month must be 1 to 31"),
        ("* * * 13 *", "the month must be 1 to 12, or jan to dec"),
        ("* * * * 8", "the day of the week must be 0 to 7, or sun to sat"),
        ("* * * * mo", "the day of the week must be 0 to 7, or sun to sat, not 'mo'"),
        ("-1 * * * *", "is not \\*, a number"),
        ("1,,2 * * * *", "is not \\*, a number"),
        ("5-1 * * * *", "'5-1' ends before it begins"),
        ("*/0 * * * *", "has the step 0"),
        ("5/10 * * * *", "has a step, but no range"),
        ("٣ * * * *", "is not \\*, a number"),
        ("0 0 31 2,4 *", "no month has such a day"),
    ],
)
def test_a_bad_rule_is_refused(rule: str, reason: str) -> None:
    """The message names the field, and what it may be."""
    with pytest.raises(ValueError, match=reason):
        Cron.parse(rule)


def test_a_time_that_is_left_out_runs_once_at_the_next_moment() -> None:
    """03:30 does not exist on 29 March: the rule runs at 04:00, and the next day at 03:30."""
    found = runs("30 3 * * *", "2026-03-28T12:00", 2)

    assert found == ["2026-03-29T04:00+03:00", "2026-03-30T03:30+03:00"]
    assert Cron.parse("30 3 * * *").latest(at("2026-03-29T12:00"), SOFIA) == at("2026-03-29T04:00")


def test_several_times_that_are_left_out_are_one_run() -> None:
    """03:00 to 03:50 and 04:00 are the same moment on 29 March."""
    found = runs("*/10 3-4 * * *", "2026-03-29T00:00", 2)

    assert found == ["2026-03-29T04:00+03:00", "2026-03-29T04:10+03:00"]


def test_a_repeated_time_runs_once() -> None:
    """03:30 comes twice on 25 October: the rule runs at the first, and the next day."""
    found = runs("30 3 * * *", "2026-10-25T00:00", 2)

    assert found == ["2026-10-25T03:30+03:00", "2026-10-26T03:30+02:00"]
    second = at("2026-10-25T03:30") + 3600
    assert Cron.parse("30 3 * * *").latest(second + 60, SOFIA) == second - 3600


def test_a_rule_for_every_hour_runs_in_repeated_hours() -> None:
    """It is about the distance of runs, and not about the time of day."""
    found = runs("30 * * * *", "2026-10-25T02:45", 3)

    expected = ["2026-10-25T03:30+03:00", "2026-10-25T03:30+02:00", "2026-10-25T04:30+02:00"]
    assert found == expected


def test_a_day_that_is_left_out_runs_at_its_end() -> None:
    """Samoa had no 30 December 2011."""
    found = runs("0 6 30 12 *", "2011-12-29T12:00", 2, ZoneInfo("Pacific/Apia"))

    assert [each[:16] for each in found] == ["2011-12-31T00:00", "2012-12-30T06:00"]


def test_clocks_set_back_over_midnight() -> None:
    """In St. John's 00:01 became 23:01 of the day before: 00:00 counts once, 23:30 once, and in
    order."""
    zone = ZoneInfo("America/St_Johns")
    found = runs("0,30 0,23 * * *", "2010-11-06T23:00", 3, zone)

    assert found == [
        "2010-11-06T23:30-02:30",
        "2010-11-07T00:00-02:30",
        "2010-11-07T00:30-03:30",
    ]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["*/7 * * * *", "30 2 * * *", "0 3 * * sun", "15 1-4 25-31 3,10 *"]),
    st.sampled_from(["Europe/Sofia", "America/New_York", "Australia/Lord_Howe", "UTC"]),
    st.integers(1_600_000_000, 1_900_000_000),
)
def test_latest_and_next_agree(rule: str, name: str, now: int) -> None:
    """The next moment after the latest is the next after now, and no moment is between."""
    cron, zone = Cron.parse(rule), ZoneInfo(name)
    latest, following = cron.latest(now, zone), cron.next(now, zone)

    assert latest <= now < following
    assert cron.next(latest, zone) == following
    assert cron.latest(following, zone) == following
    assert cron.latest(following - 1, zone) == latest


def minutes(begin: datetime, end: datetime) -> Iterator[datetime]:
    while begin < end:
        yield begin
        begin += timedelta(minutes=1)


def test_without_changes_of_clocks_it_is_as_every_minute_is_asked() -> None:
    """Two months of a rule, against the plain meaning of its fields."""
    cron, utc = Cron.parse("*/25 4,16 1-10 * tue"), ZoneInfo("UTC")
    begin, end = datetime(2026, 1, 1, tzinfo=utc), datetime(2026, 3, 1, tzinfo=utc)
    expected = [
        each.timestamp()
        for each in minutes(begin, end)
        if each.minute in (0, 25, 50)
        and each.hour in (4, 16)
        and (each.day <= 10 or each.isoweekday() == 2)
    ]

    now, found = begin.timestamp() - 1, []
    while (now := cron.next(now, utc)) < end.timestamp():
        found.append(now)

    assert found == expected


def test_the_zone_of_the_system() -> None:
    """Without a zone, the system's is used, with its summer time."""
    program = (
        "from crawler.cron import Cron; cron = Cron.parse('30 3 * * *'); "
        f"print(cron.latest({at('2026-03-29T12:00')}, None), "
        f"cron.next({at('2026-10-25T00:00')}, None))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"TZ": "Europe/Sofia"},
        capture_output=True,
        text=True,
        check=True,
    )

    expected = [at("2026-03-29T04:00"), at("2026-10-25T03:30")]
    assert [float(word) for word in done.stdout.split()] == expected


def test_many_schedules_work_out_a_day_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules that are the same share the moments of a day, and later periods of that day need no
    further ones."""
    asked: list[datetime] = []

    def stamp(at: datetime, tz: tzinfo | None) -> float:
        asked.append(at)
        return at.replace(tzinfo=tz).timestamp()

    monkeypatch.setattr(cron, "_stamp", stamp)
    noon = datetime(2031, 5, 14, 12, tzinfo=SOFIA).timestamp()
    rules = [Cron.parse("* * * * *") for _ in range(1_000)]

    for minute in range(10):
        now = noon + 60 * minute + 1
        for rule in rules:
            assert (rule.latest(now, SOFIA), rule.next(now, SOFIA)) == (now - 1, now + 59)

    assert len(asked) == 2 * 3 * 24 * 60  # two readings of every minute of three days
