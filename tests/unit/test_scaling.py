"""How many worker processes there are to be."""

from collections.abc import Callable

import msgspec
import pytest

from crawler.models import RateRule
from crawler.resilience.permit import DomainStatus
from crawler.scaling import (
    DOWN_AFTER_S,
    MAX_DEPTH,
    UP_AFTER_S,
    Bounds,
    Decision,
    Signals,
    desired,
    may_go,
)

BOUNDS = Bounds(min=2, max=16, pages=100)
STEP_S = 0.5


def busy(at: float, processes: int) -> Signals:
    """Processes that are full of pages, and far more that could go."""
    load = float(processes)
    return Signals(
        at=at, processes=processes, load=load, ready=5_000, oldest_s=10.0, cores=8, cpu=load / 20
    )


def follow(
    load: Callable[[float, int], Signals], seconds: float, current: int = 2
) -> list[tuple[float, int]]:
    """Apply each decision at once, and return when there was which number."""
    seen: list[Signals] = []
    changes = [(0.0, current)]
    for step in range(int(seconds / STEP_S) + 1):
        now = step * STEP_S
        seen.append(load(now, current))
        found = desired(now, seen, current, BOUNDS)
        if found.processes != current:
            assert found.why
            current = found.processes
            changes.append((now, current))
            seen.clear()
    return changes


def test_grows_to_the_maximum_within_seconds() -> None:
    """While all are full and more could go, their number doubles every few seconds."""
    changes = follow(busy, seconds=20)

    assert [count for _, count in changes] == [2, 4, 8, 16]
    assert changes[-1][0] <= 4 * (UP_AFTER_S + 2 * STEP_S)


def test_follows_a_load_that_doubles_and_halves() -> None:
    """Demand for so many processes, in steps of a minute: enough are there, and soon few more."""
    demand = [1, 2, 4, 8, 4, 2, 1]

    def load(now: float, processes: int) -> Signals:
        wanted = demand[min(int(now / 60), len(demand) - 1)]
        used = min(float(wanted), float(processes))
        waiting = 1_000 if wanted >= processes else 0
        return msgspec.structs.replace(
            busy(now, processes), load=used, cpu=used / 20, ready=waiting
        )

    changes = follow(load, seconds=60 * len(demand))
    at_the_end = [
        [count for at, count in changes if at < 60 * (minute + 1)][-1]
        for minute in range(len(demand))
    ]

    assert at_the_end == [2, 4, 7, 14, 7, 4, 2]


def test_does_not_swing_at_a_steady_load() -> None:
    """After it has found a number for a steady load, that stays."""

    def load(now: float, processes: int) -> Signals:
        used = min(5.0, float(processes))
        return msgspec.structs.replace(busy(now, processes), load=used, ready=50 * (used < 5))

    changes = follow(load, seconds=600)

    assert changes[-1][0] < 60, changes


@pytest.mark.parametrize(
    "why_not",
    [
        {"ready": 0},  # all that is due waits for the rates of its domains
        {"load": 0.5},  # the processes have places for it
        {"oldest_s": 0.1},  # nothing waits: all goes at once
        {"room": 0},
        {"cpu": 2.0, "cores": 2, "idle_cores": 0.0},
        {"cpu": 1.9, "cores": 2, "idle_cores": 0.1},
    ],
    ids=" and ".join,
)
def test_stays_where_more_would_not_help(why_not: dict[str, float]) -> None:
    """A long queue alone starts no process."""

    def load(now: float, processes: int) -> Signals:
        return msgspec.structs.replace(busy(now, processes), spare_s=30.0, **why_not)

    assert follow(load, seconds=60) == [(0.0, 2)]


def test_starts_as_many_as_have_a_core() -> None:
    """Processes that compute all the time get a core each, and no more than are idle."""
    computing = [
        Signals(at=at, processes=2, load=2, cpu=2, ready=5_000, oldest_s=9, cores=8, idle_cores=3)
        for at in (0.0, 1.0, 2.0)
    ]

    assert desired(2.0, computing, 2, Bounds(2, 16, 10)).processes == 4
    assert desired(2.0, computing, 2, Bounds(2, 3, 10)).processes == 3


def test_starts_as_many_as_the_tasks_fill() -> None:
    """A few tasks get one further process, however many are allowed."""
    few = [msgspec.structs.replace(busy(at, 4), ready=30) for at in (0.0, 1.0, 2.0)]

    assert desired(2.0, few, 4, BOUNDS).processes == 5


def test_a_deadline_in_danger_is_answered_at_once() -> None:
    """As many as there is work for, instead of twice as many; and none ends shortly before."""
    late = [msgspec.structs.replace(busy(at, 2), spare_s=-5.0) for at in (0.0, 1.0, 2.0)]
    idle = [Signals(at=at, processes=8, load=0.1) for at in (0.0, DOWN_AFTER_S)]
    close = [msgspec.structs.replace(each, spare_s=20.0) for each in idle]

    assert desired(2.0, late, 2, BOUNDS).processes == 16
    assert "deadline" in desired(2.0, late, 2, BOUNDS).why
    assert desired(DOWN_AFTER_S, idle, 8, BOUNDS).processes == 4
    assert desired(DOWN_AFTER_S, close, 8, BOUNDS) == Decision(8, "")


def test_waits_for_the_processes_that_are_being_started() -> None:
    """Before they are there, nobody knows whether they are enough."""
    started = [msgspec.structs.replace(busy(at, 4), processes=3) for at in (0.0, 1.0, 2.0)]

    assert desired(2.0, started, 4, BOUNDS).processes == 4


def test_one_busy_moment_keeps_the_processes() -> None:
    """Fewer only if they would have been enough all the time."""

    def load(now: float, processes: int) -> Signals:
        is_peak = now % 10 == 0
        return Signals(at=now, processes=processes, load=processes * (1.0 if is_peak else 0.1))

    assert follow(load, seconds=120, current=8) == [(0.0, 8)]


def test_comes_back_within_changed_bounds() -> None:
    """Whatever the signals say."""
    assert desired(0.0, [], 1, BOUNDS).processes == 2
    assert desired(0.0, [], 20, BOUNDS).processes == 16


def status(**about: object) -> DomainStatus:
    """A domain that lets requests go, but for what is given."""
    usual = DomainStatus(
        domain="county.example",
        state="CLOSED",
        failures=0,
        opened_at=None,
        open_until=None,
        last_block="",
        in_flight=0,
        slowed=1.0,
        crawl_delay_s=0.0,
        not_before=None,
        because="",
        next_at=None,
        interval_s=0.1,
        at_a_time=4,
    )
    return msgspec.structs.replace(usual, **about)


def test_only_what_a_domain_lets_go_counts() -> None:
    """All tasks of a domain without limits; of others what a second allows, if it is not used."""
    limited = RateRule(interval_s=0.1, at_a_time=4)

    assert may_go(RateRule(), None, 100.0) == MAX_DEPTH
    assert may_go(RateRule(interval_s=0.1), None, 100.0) == 10
    assert may_go(limited, None, 100.0) == 4
    assert may_go(limited, status(in_flight=3), 100.0) == 1
    assert may_go(limited, status(in_flight=4), 100.0) == 0
    assert may_go(limited, status(next_at=100.5), 100.0) == 0
    assert may_go(limited, status(next_at=100.1), 100.0) == 4
    assert may_go(limited, status(state="OPEN"), 100.0) == 0
    assert may_go(limited, status(not_before=5.0), 100.0) == 0
