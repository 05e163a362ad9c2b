"""Forecasts and times as people read them."""

from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace

from crawler import times
from crawler.forecast import (
    CrawlLimits,
    Forecast,
    LateDomain,
    Load,
    Pace,
    Trend,
    forecast,
    of_job,
    sentence,
    slip,
)
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job, JobStatus, RateRule
from tests.support.tasks import done, new, open_job, page

SOFIA = ZoneInfo("Europe/Sofia")
NOW = 1_794_812_400.0  # 2026-11-16 09:00 in Sofia
LIMITS = CrawlLimits(lambda domain: RateRule(at_a_time=8), pages=32, processes=2)


def job(deadline: float | None) -> Job:
    """A job with that deadline."""
    return Job(
        id=1, name="a.csv", status=JobStatus.OPEN, queue="default", source_file=None,
        created_at=NOW, completed_at=None, deadline=deadline,
    )  # fmt: skip


def test_one_slow_domain_takes_as_long_as_its_limit_says() -> None:
    """1,600 pages of 1 s, 8 at a time: 200 s, however many processes there are."""
    seen = forecast([Load("slow", 1600), Load("fast", 10)], {"slow": Pace(1.0, 0.001)}, LIMITS)

    assert seen.seconds == pytest.approx(200)
    assert (seen.tasks, seen.misses, seen.bottleneck, seen.measured) == (1610, 0, "slow", True)


def test_a_rate_limits_however_fast_pages_are() -> None:
    """5,000 pages at 2/s: about 43 minutes, and the sentence says why."""
    limits = CrawlLimits(
        lambda domain: RateRule(interval_s=0.5, at_a_time=2), pages=32, processes=2
    )
    seen = forecast([Load("d", 5000)], {"d": Pace(0.01)}, limits)

    assert seen.seconds == pytest.approx(2500 / 0.97)
    words = "about 43 min for 5,000 tasks (5,000 of them at d: 2/s, 2 at a time), done by 09:42 EET"
    assert sentence(seen, job(None), limits, NOW, SOFIA) == words


def test_work_that_goes_first_counts_too() -> None:
    """What others have waiting at the same domain delays the job."""
    assert forecast([Load("d", 80, ahead=80)], {"d": Pace(1.0)}, LIMITS).seconds == pytest.approx(
        20
    )


def test_many_domains_are_limited_by_the_processes() -> None:
    """A thousand domains at 8 each would be 8,000 at a time: 64 may be in flight."""
    loads = [Load(f"d{n}", 64) for n in range(1000)]
    seen = forecast(loads, {f"d{n}": Pace(1.0, 0.001) for n in range(1000)}, LIMITS)

    assert seen.seconds == pytest.approx(1000)
    assert seen.bottleneck == ""


def test_misses_are_what_does_not_fit_before_the_deadline() -> None:
    """In 100 s a domain gives 800 pages of 1 s."""
    assert forecast([Load("d", 1000)], {"d": Pace(1.0)}, LIMITS, until_s=100).misses == 200
    assert (
        forecast([Load("d", 1000, ahead=790)], {"d": Pace(1.0)}, LIMITS, until_s=100).misses == 990
    )
    assert forecast([Load("d", 800)], {"d": Pace(1.0)}, LIMITS, until_s=100).misses == 0


def test_a_domain_that_is_closed_begins_later() -> None:
    """What waits at it waits so long, and less fits before the deadline; others go on meanwhile."""
    paces = {"d": Pace(1.0), "e": Pace(1.0)}
    closed = forecast([Load("d", 80, closed_s=600)], paces, LIMITS)
    both = forecast([Load("d", 8, closed_s=600), Load("e", 80)], paces, LIMITS, until_s=500)

    assert closed.seconds == pytest.approx(610)
    assert both.seconds == pytest.approx(601)
    assert (both.misses, both.bottleneck) == (8, "d")


def test_nothing_to_do_takes_no_time() -> None:
    """A job without open tasks is done."""
    assert forecast([], {}, LIMITS, until_s=0) == Forecast(0, 0.0, 0, "", 0, False)


def test_the_sentence_says_what_is_to_spare_or_what_helps() -> None:
    """In time: when and how much is left. Too late: how many, because of what, and what helps."""
    good = Forecast(5000, 2520, 0, "d", 5000, measured=True)
    slow = Forecast(5000, 9000, 412, "d", 5000, measured=False, late=(LateDomain("d", 412, 5000),))
    few = Forecast(5000, 9000, 412, "", 0, measured=True)

    assert (
        sentence(good, job(NOW + 3600), LIMITS, NOW, SOFIA) == "done by 09:42 EET, 18 min to spare"
    )
    assert "done by 09:42 EET" in sentence(good, job(None), LIMITS, NOW, SOFIA)
    late = sentence(slow, job(NOW + 3600), LIMITS, NOW, SOFIA)
    assert late.startswith(
        "412 of 5,000 will miss the deadline 10:00 EET: d takes 8 at a time; drop 412 of its 5,000"
    )
    assert "assuming 0.5 s a page" in late
    assert "raise --workers (now 2)" in sentence(few, job(NOW + 3600), LIMITS, NOW, SOFIA)


def test_who_drops_what_is_advised_keeps_the_deadline() -> None:
    """With several domains and a low rate: what fits is a whole number of pages of each domain, and
    every domain that is too slow is counted."""
    limits = CrawlLimits(lambda domain: RateRule(interval_s=60, at_a_time=1), pages=32, processes=2)
    loads = [Load("a", 224), Load("b", 32), Load("c", 20), Load("d", 12), Load("e", 6)]
    seen = forecast(loads, {}, limits, until_s=600)
    dropped = {late.domain: late.misses for late in seen.late}
    kept = [replace(load, tasks=load.tasks - dropped.get(load.domain, 0)) for load in loads]

    assert [(late.domain, late.misses, late.tasks) for late in seen.late] == [
        ("a", 215, 224),
        ("b", 23, 32),
        ("c", 11, 20),
        ("d", 3, 12),
    ]
    assert seen.misses == 252
    assert forecast(kept, {}, limits, until_s=600).misses == 0
    said = sentence(seen, job(NOW + 600), limits, NOW, SOFIA)
    assert said.startswith(
        "252 of 294 will miss the deadline 09:10 EET: too slow are a (1/m, 1 at a time; drop 215 "
        "of its 224 tasks), b (1/m, 1 at a time; drop 23 of its 32 tasks) and 2 other domains "
        "(drop 14 of their 32 tasks), or move the deadline to "
    )


def test_too_few_processes_beside_a_slow_domain_are_told_too() -> None:
    """Dropping what the slow domain makes miss would not be enough."""
    limits = CrawlLimits(
        lambda domain: RateRule(interval_s=60) if domain == "slow" else RateRule(),
        pages=1,
        processes=1,
    )
    seen = forecast(
        [Load("slow", 20), Load("free", 1000)],
        {"slow": Pace(1.0), "free": Pace(1.0)},
        limits,
        until_s=600,
    )

    said = sentence(seen, job(NOW + 600), limits, NOW, SOFIA)

    assert (seen.misses, seen.late) == (420, (LateDomain("slow", 11, 20),))
    assert "drop 11 of its 20 tasks" in said
    assert "raise --workers (now 1), drop 409 more tasks, or move" in said


def test_a_trend_looks_at_the_last_half_minute() -> None:
    """A crawl that has slowed down is not judged by its first hour."""
    trend = Trend(over_s=30)
    for second in range(100):
        trend.add(second, 10 * second if second < 50 else 500 + second - 50)

    assert trend.rate == pytest.approx(1.0, abs=0.1)


def test_a_standstill_has_no_rate() -> None:
    """When nothing comes any more the rate is 0 soon, and what came before does not count when work
    goes on."""
    trend = Trend()
    for second in range(20):
        trend.add(second, 700 * second)
    rate = trend.rate
    for second in range(20, 26):
        trend.add(second, 13_300)
    still = trend.rate, trend.measured
    for second in range(26, 60):
        trend.add(second, 13_300)
    trend.add(60, 13_400)

    assert rate == pytest.approx(700)
    assert still == (0.0, 0.0)
    assert trend.rate == pytest.approx(100)


def test_a_slow_crawl_does_not_stand_still() -> None:
    """A page every seven seconds is a rate, too."""
    trend = Trend()
    for second in range(60):
        trend.add(second, second // 7)

    assert trend.measured == pytest.approx(1 / 7, rel=0.3)


def test_a_deadline_is_judged_by_what_was_measured_for_a_while() -> None:
    """Two seconds after the first page nobody knows how fast it will be; waiting for that page is
    not measured."""
    trend = Trend()
    for second in range(40):
        trend.add(second, 0)
    trend.add(40, 1)
    trend.add(42, 2)
    soon = trend.measured
    for second in range(43, 60):
        trend.add(second, 50 * (second - 42))

    assert soon == 0.0
    assert trend.measured == pytest.approx(50, rel=0.25)


def test_a_slip_is_told_only_where_the_deadline_is_missed() -> None:
    """At 10 a second 600 tasks take a minute."""
    assert slip(job(NOW + 61), 600, 10, NOW, SOFIA) is None
    assert slip(job(None), 600, 10, NOW, SOFIA) is None
    assert slip(job(NOW + 30), 600, 0, NOW, SOFIA) is None
    said = slip(job(NOW + 30), 600, 10, NOW, SOFIA)
    assert said is not None
    assert said.startswith("at 10.0/s 300 of 600 open tasks will miss the deadline 09:00:30 EET")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("45m", 2700), ("1h30m", 5400), ("7d", 604_800), ("1.5h", 5400), (" 2H ", 7200),
     ("45", None), ("m", None), ("-5m", None), ("", None), ("5 m", None)],
)  # fmt: skip
def test_spans(text: str, seconds: float | None) -> None:
    """Numbers with units, and nothing else."""
    assert times.span(text) == seconds


@pytest.mark.parametrize(
    ("text", "shown"),
    [("17:00", "17:00 EET"), ("9:30", "09:30 EET"), ("08:59", "Tue 17 Nov 08:59 EET"),
     ("23:59:59", "23:59 EET"), ("2026-11-16T17:00", "17:00 EET"),
     ("2026-11-16T17:00+00:00", "19:00 EET"), ("2026-12-24", "Thu 24 Dec 00:00 EET"),
     ("2027-07-01 12:00", "Thu 01 Jul 12:00 EEST")],
)  # fmt: skip
def test_moments(text: str, shown: str) -> None:
    """A time of day is the next one; a date may have an offset of its own; both are shown in the
    operator's zone."""
    at = times.moment(text, NOW, SOFIA)
    assert at is not None
    assert times.show(at, NOW, SOFIA) == shown


@pytest.mark.parametrize(
    "text", ["25:00", "17", "tomorrow", "17:60", "2026-13-01", "", "99999-01-01"]
)
def test_what_is_no_moment(text: str) -> None:
    """It is refused, not guessed."""
    assert times.moment(text, NOW, SOFIA) is None


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2h", datetime(2026, 11, 15, 22, tzinfo=UTC)),
        ("1d12h", datetime(2026, 11, 14, 12, tzinfo=UTC)),
        ("17:00", datetime(2026, 11, 15, 15, tzinfo=UTC)),
        ("7d", datetime(2026, 11, 9, tzinfo=UTC)),
        ("2026-11-15", datetime(2026, 11, 14, 22, tzinfo=UTC)),
        ("2026-11-15T14:00", datetime(2026, 11, 15, 12, tzinfo=UTC)),
        ("2026-11-15T14:00+01:00", datetime(2026, 11, 15, 13, tzinfo=UTC)),
        ("2026-11-15T14:00Z", datetime(2026, 11, 15, 14, tzinfo=UTC)),
    ],
)
def test_beginnings(text: str, at: datetime) -> None:
    """A span counts back from now; a time without an offset is in the operator's zone."""
    now = datetime(2026, 11, 16, tzinfo=UTC).timestamp()
    assert times.past(text, now, SOFIA) == at.timestamp()


@pytest.mark.parametrize("text", ["", "yesterday", "nand", "2026-13-01", "-2h", "2"])
def test_what_is_no_beginning(text: str) -> None:
    """It is refused, not guessed."""
    assert times.past(text, NOW, SOFIA) is None


def test_the_systems_zone_is_used_where_none_is_named() -> None:
    """With no zone a time is the machine's own, and shown with its name."""
    at = times.moment("2026-11-16T17:00", NOW, None)
    assert at is not None
    assert times.show(at, at, None).startswith("17:00:00 ")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "0 s"),
        (89, "89 s"),
        (91, "2 min"),
        (5399, "90 min"),
        (53_000, "14 h 43 min"),
        (900_000, "10.4 days"),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    """Seconds as a person says them."""
    assert times.duration(seconds) == words


def crawled(
    lpm: LocalPersistenceManager, name: str, domain: str, size: int, done_: int, fetch_s: float
) -> Job:
    """A job with so many pages of a domain, of which some came after so long each."""
    job = open_job(lpm, name)
    lpm.persist_tasks([new(f"http://{domain}/{name}/{n}") for n in range(size)], job=job)
    claimed = [task for task in lpm.get_next_pending("owner", size) if task.job_id == job.id]
    for task in claimed[:done_]:
        lpm.save_result(done(task, page=replace(page(task.url), fetch_s=fetch_s)))
    lpm.dispatch.give_back("owner", [], NOW)
    return job


def test_a_large_job_beside_it_does_not_change_what_a_job_is_told(tmp_path: Path) -> None:
    """Its own pages tell its pace, however many of another job came since; of that, only what goes
    first counts."""
    lpm = LocalPersistenceManager(tmp_path)
    small = crawled(lpm, "small", "quick.example", 108, 8, 0.005)
    lpm.save_result(*(done(task) for task in lpm.get_next_pending("owner", 92)))  # 8 are left
    crawled(lpm, "large", "slow.example", 2100, 2050, 0.5)
    late = open_job(lpm, "late")
    lpm.persist_tasks([new(f"http://slow.example/late/{n}") for n in range(8)], job=late)

    seen = of_job(lpm.counts, small, LIMITS, NOW)
    loads = {job.name: lpm.counts.loads(job) for job in (small, late)}
    lpm.close()

    assert (seen.tasks, seen.measured) == (8, True)
    assert seen.seconds < 0.1, "by the pace of slow.example it would be 0.5 s"
    assert loads == {"small": [("quick.example", 8, 0)], "late": [("slow.example", 8, 50)]}
