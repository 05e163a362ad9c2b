"""The maintainer with clocks as arguments."""

import inspect
import time
from pathlib import Path

import pytest

from crawler.config import Settings
from crawler.lpm import LocalPersistenceManager
from crawler.maintainer import Maintainer
from crawler.models import TaskStatus
from crawler.resilience.memory import MemoryPermit
from tests.support.broker import MemoryBroker
from tests.support.clock import Clock
from tests.support.tasks import done, give, new, open_job

BEGAN = 1_800_000_000.0


def waiting(lpm: LocalPersistenceManager, *seconds: float) -> None:
    """Tasks that wait so long from now."""
    lpm.persist_tasks([new(f"http://a.example/{wait_s:g}") for wait_s in seconds])
    for task in lpm.get_next_pending("owner", len(seconds)):
        wait_s = float(task.url.rpartition("/")[2])
        again = done(
            task,
            status=TaskStatus.PENDING,
            page=None,
            error_type="http_503",
            not_before=lpm.now() + wait_s,
        )
        assert lpm.save_result(again) == [True]


def waits(lpm: LocalPersistenceManager) -> dict[str, float]:
    """How long each task waits by the clock of now; 0: it is due."""
    rows = lpm.store.db.all(
        "SELECT url, iif(not_before, not_before - ?, 0) FROM tasks", (lpm.now(),)
    )
    return {url.rpartition("/")[2]: round(wait_s, 3) for url, wait_s in rows}


@pytest.mark.parametrize("step_s", [-3600, 3600, -1.5, 30 * 86400])
def test_a_clock_step_changes_no_wait(tmp_path: Path, step_s: float) -> None:
    """A retry in a second comes in a second, and a Retry-After of ten minutes takes ten minutes,
    both ways."""
    # Given tasks and a report that wait, and one that is held
    clock, uptime = Clock(BEGAN), Clock(500.0)
    lpm = LocalPersistenceManager(tmp_path, clock=clock)
    waiting(lpm, 1, 600)
    job = open_job(lpm)
    lpm.persist_tasks([new("http://a.example/held")], job=job)
    assert lpm.jobs.hold(job, "paused", BEGAN) == 1
    give(lpm, 1)
    lpm.store.durable.execute("UPDATE outbox SET not_before = ?", (BEGAN + 60,))
    maintainer = Maintainer(lpm, MemoryBroker(), Settings(), clock=clock, uptime=uptime)
    maintainer.tick()

    # When the clock is set
    clock.now += step_s + 0.25
    uptime.now += 0.25
    maintainer.tick()

    # Then each waits for what was left, no more and no less
    assert waits(lpm) | {"held": 0, "0": 0} == {"1": 0.75, "600": 599.75, "held": 0, "0": 0}
    assert lpm.store.db.all("SELECT not_before FROM tasks WHERE url LIKE '%/held'") == [(9e15,)]
    [(parcel,)] = lpm.store.db.all("SELECT not_before FROM outbox")
    assert parcel == pytest.approx(clock.now + 59.75)

    # And falls due when it should
    for clock_ in (clock, uptime):
        clock_.now += 0.8
    maintainer.tick()
    assert waits(lpm)["1"] == 0
    assert waits(lpm)["600"] == pytest.approx(598.95)
    lpm.close()


def with_deadline(
    data: Path, deadline_s: float, clock: Clock, uptime: Clock
) -> tuple[LocalPersistenceManager, Maintainer]:
    """The maintainer of a job of 500 pages that is to be done in so many seconds."""
    lpm = LocalPersistenceManager(data, clock=clock)
    job = lpm.imports.open_job(
        key="job", name="job", queue="default", source="file", source_file=None, batch_size=100,
        now=BEGAN, deadline=BEGAN + deadline_s,
    )  # fmt: skip
    lpm.persist_tasks([new(f"http://a.example/{n}", parcel_id=str(n)) for n in range(500)], job=job)
    lpm.imports.close(job, lpm.now())
    return lpm, Maintainer(lpm, MemoryBroker(), Settings(), clock=clock, uptime=uptime)


def test_a_clock_step_raises_no_false_alarm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """How fast a job goes is measured by the time that passed, not by the clock that was set
    forward."""
    clock, uptime = Clock(BEGAN), Clock(500.0)
    lpm, maintainer = with_deadline(tmp_path, 36_000, clock, uptime)
    for step_s in (0, 0, 0, 0, 0, 3600, 0):
        clock.now += 4 + step_s
        uptime.now += 4
        lpm.save_result(*(done(task) for task in lpm.get_next_pending("owner", 10)))
        maintainer.tick()
    assert "miss the deadline" not in caplog.text
    lpm.close()


def test_a_slow_beginning_raises_no_false_alarm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says that a deadline slips when that was measured for a while, not two seconds after
    the start."""
    clock, uptime = Clock(BEGAN), Clock(500.0)
    lpm, maintainer = with_deadline(tmp_path, 100, clock, uptime)
    told = []
    for _ in range(8):
        clock.now += 4
        uptime.now += 4
        lpm.save_result(*(done(task) for task in lpm.get_next_pending("owner", 1)))
        maintainer.tick()
        told.append("miss the deadline" in caplog.text)
    assert told[:3] == [False] * 3
    assert told[-1]
    lpm.close()


def test_permits_of_one_process_know_no_clock_that_steps() -> None:
    """A step forward would end a Retry-After early; CLOCK_MONOTONIC is one for all processes of a
    machine."""
    assert inspect.signature(MemoryPermit).parameters["clock"].default is time.monotonic


def test_a_drifting_clock_is_not_a_step(tmp_path: Path) -> None:
    """What a clock that is put right slowly loses or gains in a tick moves nothing; together it
    does, once."""
    clock, uptime = Clock(BEGAN), Clock(500.0)
    lpm = LocalPersistenceManager(tmp_path, clock=clock)
    waiting(lpm, 600)
    tasks = lpm.tasks
    assert tasks.follow_clock(clock.now, uptime.now, "boot") == 0
    assert [tasks.follow_clock(clock.now + n * 0.4, uptime.now, "boot") for n in range(1, 5)] == [
        0,
        0,
        pytest.approx(1.2),
        0,
    ]
    lpm.close()


def test_every_process_sees_the_step_and_one_moves_the_waits(tmp_path: Path) -> None:
    """Whoever looks first; a process that starts only after the step sees it, too."""
    lpm, other = (LocalPersistenceManager(tmp_path, clock=Clock(BEGAN)) for _ in range(2))
    waiting(lpm, 600)
    for each in (lpm, other):
        assert each.tasks.follow_clock(BEGAN, 500.0, "boot") == 0

    assert other.tasks.follow_clock(BEGAN - 3600, 500.0, "boot") == -3600
    assert lpm.tasks.follow_clock(BEGAN - 3600, 500.0, "boot") == 0
    lpm.close()
    assert lpm.tasks.follow_clock(BEGAN, 500.0, "boot") == 3600
    assert waits(lpm) == {"600": 600}
    lpm.close()
    other.close()


def test_a_clock_that_a_reboot_set_back(tmp_path: Path) -> None:
    """Then the last event lies in the future: waits count from it. One that went on moves
    nothing."""
    lpm = LocalPersistenceManager(tmp_path, clock=Clock(BEGAN))
    waiting(lpm, 600)
    assert lpm.tasks.follow_clock(BEGAN, 500.0, "first") == 0

    lpm.close()
    assert lpm.tasks.follow_clock(BEGAN - 3600, 20.0, "second") == -3600
    [(not_before,)] = lpm.store.db.all("SELECT not_before FROM tasks")
    assert not_before == BEGAN - 3600 + 600
    lpm.close()
    assert lpm.tasks.follow_clock(BEGAN + 100, 30.0, "third") == 0
    lpm.close()
