"""Schedules begin the crawls of their sites, each period once, whatever happens in between."""

import logging
import os
import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from crawler.config import Settings
from crawler.db.connection import writing
from crawler.errors import InputError, StoreError
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job
from crawler.schedules import SiteSchedules
from crawler.sites.live import LOOK_INTERVAL_S
from tests.support.clock import Clock

DAY = 1_794_960_000.0  # 2026-11-18T00:00Z
SITES = ("imoti", "library", "county")


class Desk:
    """A store and a config folder, and the schedules on them."""

    def __init__(self, path: Path) -> None:
        self.config = path / "config"
        self.settings = Settings(data_dir=path / "data", config_dir=self.config, timezone="UTC")
        (self.config / "sites").mkdir(parents=True)
        for name in SITES:
            self.write_site(name)
        with self.lpm() as lpm:
            lpm.open()
        self.clock = Clock(0)

    def write_site(self, name: str) -> None:
        (self.config / "sites" / f"{name}.yaml").write_text(f"start: http://{name}.example/\n")

    def write(self, text: str) -> None:
        (self.config / "schedules.yaml").write_text(text)

    def open(self, text: str | None = None) -> SiteSchedules:
        if text is not None:
            self.write(text)
        return SiteSchedules(self.settings, self.clock)

    def lpm(self) -> LocalPersistenceManager:
        return LocalPersistenceManager(self.settings.data_dir)

    def look(self, schedules: SiteSchedules) -> None:
        """Let a changed file be seen: it must be the same at two looks."""
        for _ in range(3):
            self.clock.now += LOOK_INTERVAL_S
            schedules.look()

    def jobs(self) -> list[Job]:
        with self.lpm() as lpm:
            return sorted(lpm.jobs.all(), key=lambda job: job.id)

    def names(self) -> list[str]:
        return [job.name for job in self.jobs()]

    def calls(self) -> Counter[str]:
        """The calls that were made, by group."""
        with self.lpm() as lpm:
            return Counter(lpm.store.db.column("SELECT group_id FROM site_calls"))

    def problems(self, schedule: str) -> dict[str, str]:
        """Why sites could not begin at the last run."""
        with self.lpm() as lpm:
            return lpm.site_jobs.schedules()[schedule].problems

    def end_jobs(self) -> None:
        """Let all crawls be done."""
        with self.lpm() as lpm, writing(lpm.store.durable):
            lpm.store.durable.execute("UPDATE jobs SET status = 'done', completed_at = 1")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A store without jobs, and three sites."""
    return Desk(tmp_path)


HOURLY = "hourly: {sites: [imoti, library], every: 1h}\n"


def test_a_period_begins_the_crawl_of_each_site(desk: Desk) -> None:
    """With the day in the name, in the given queue and with the limit; one tick more changes
    nothing."""
    schedules = desk.open(
        "nightly: {sites: [imoti, library], cron: '0 2 * * *', limit: 7, queue: urgent}\n"
    )
    assert schedules.run_due(DAY) == 2 * 3600
    assert desk.names() == []

    assert schedules.run_due(DAY + 2 * 3600) == 24 * 3600
    assert schedules.run_due(DAY + 2 * 3600 + 1) == 24 * 3600 - 1

    jobs = desk.jobs()
    assert [job.name for job in jobs] == ["imoti-2026-11-18", "library-2026-11-18"]
    assert {job.queue for job in jobs} == {"urgent"}
    assert {job.options.crawl and job.options.crawl.limit for job in jobs} == {7}
    with desk.lpm() as lpm:
        state = lpm.site_jobs.schedules()["nightly"]
    assert (state.period, state.ran_at) == (DAY + 2 * 3600, DAY + 2 * 3600)


def test_the_day_is_that_of_the_users_zone(tmp_path: Path) -> None:
    """At 23:30Z it is the next day in Sofia."""
    desk = Desk(tmp_path)
    desk.settings = Settings(
        data_dir=tmp_path / "data", config_dir=desk.config, timezone="Europe/Sofia"
    )
    schedules = desk.open("nightly: {sites: imoti, cron: '30 1 * * *'}\n")
    schedules.run_due(DAY - 3600)

    schedules.run_due(DAY - 1800)

    assert desk.names() == ["imoti-2026-11-18"]


def test_a_new_schedule_waits_for_its_next_period(desk: Desk) -> None:
    """Periods that were past when it was first seen do not run."""
    schedules = desk.open(HOURLY)

    schedules.run_due(DAY + 1800)
    assert desk.names() == []
    schedules.run_due(DAY + 3600)
    assert desk.names() == ["imoti-2026-11-18", "library-2026-11-18"]


def test_of_missed_periods_the_latest_runs(desk: Desk) -> None:
    """A beat that was down over several runs once when it is back, and then as before."""
    desk.open(HOURLY).run_due(DAY)

    back = desk.open()
    back.run_due(DAY + 5 * 3600 + 60)
    back.run_due(DAY + 5 * 3600 + 120)

    assert desk.calls() == {f"schedule:hourly:{int(DAY) + 5 * 3600}": 2}
    back.run_due(DAY + 6 * 3600)
    assert len(desk.calls()) == 2


def test_a_changed_rule_begins_anew(desk: Desk) -> None:
    """Its past periods do not run; other changes of the entry do not matter."""
    schedules = desk.open(HOURLY)
    schedules.run_due(DAY)

    desk.write(HOURLY.replace("1h", "1h10m"))
    desk.look(schedules)
    schedules.run_due(DAY + 3660)
    assert desk.names() == []

    desk.write(HOURLY.replace("1h", "1h10m").replace("imoti", "county"))
    desk.look(schedules)
    schedules.run_due(DAY + 2 * 4200)
    assert desk.names() == ["county-2026-11-18", "library-2026-11-18"]


def test_a_rule_that_comes_back_begins_anew(desk: Desk) -> None:
    """What it would have run meanwhile does not run, nor does the present period."""
    schedules = desk.open(HOURLY)
    schedules.run_due(DAY)

    desk.write(HOURLY.replace("1h", "5h"))
    desk.look(schedules)
    schedules.run_due(DAY + 60)
    desk.write(HOURLY)
    desk.look(schedules)
    schedules.run_due(DAY + 2 * 3600 + 60)

    assert desk.names() == []
    schedules.run_due(DAY + 3 * 3600)
    assert len(desk.names()) == 2


def test_a_schedule_that_was_taken_out_is_new_when_it_comes_back(desk: Desk) -> None:
    """What it would have missed meanwhile does not run."""
    schedules = desk.open(HOURLY)
    schedules.run_due(DAY)

    desk.write("")
    desk.look(schedules)
    schedules.run_due(DAY + 1800)
    desk.write(HOURLY)
    desk.look(schedules)
    schedules.run_due(DAY + 3 * 3600 + 60)

    assert desk.names() == []
    schedules.run_due(DAY + 4 * 3600)
    assert len(desk.names()) == 2


def test_a_broken_file_leaves_the_schedules_as_they_were(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says it once, with file and line; the mended file is taken up."""
    schedules = desk.open(HOURLY)
    schedules.run_due(DAY)

    desk.write(HOURLY.replace("imoti", "imotti"))
    desk.look(schedules)
    desk.look(schedules)
    schedules.run_due(DAY + 3600)
    assert len(desk.names()) == 2
    [warning] = [line for line in caplog.messages if "imotti" in line]
    assert "schedules.yaml, line 1" in warning
    assert "run as they were before" in warning

    desk.write(HOURLY.replace("imoti", "county"))
    desk.look(schedules)
    schedules.run_due(DAY + 2 * 3600)
    assert "county-2026-11-18" in desk.names()


@pytest.mark.parametrize("changed", ["file", "site"])
def test_a_file_that_a_shortage_hid_is_read_later(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    """It need not change once more, and nor need the site that it waited for."""
    schedules = desk.open(HOURLY)
    schedules.run_due(DAY)
    desk.write(HOURLY.replace("imoti", "castle" if changed == "site" else "county"))
    if changed == "site":
        desk.look(schedules)
        desk.write_site("castle")

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr("crawler.schedules.read_schedules", fail)
        for _ in range(3):
            with pytest.raises(MemoryError):
                desk.look(schedules)
    desk.look(schedules)

    schedules.run_due(DAY + 3600)
    begun = "castle" if changed == "site" else "county"
    assert desk.names() == [f"{begun}-2026-11-18", "library-2026-11-18"]


def test_a_site_that_a_schedule_waited_for_mends_it(desk: Desk) -> None:
    """The file is read again when a site changes."""
    schedules = desk.open(HOURLY)
    schedules.run_due(DAY)
    desk.write(HOURLY.replace("imoti", "castle"))
    desk.look(schedules)

    desk.write_site("castle")
    desk.look(schedules)
    schedules.run_due(DAY + 3600)

    assert desk.names() == ["castle-2026-11-18", "library-2026-11-18"]


def test_a_broken_file_is_refused_at_the_start(desk: Desk) -> None:
    """There are no earlier schedules to go on with."""
    with pytest.raises(InputError, match=r"schedules\.yaml, line 1"):
        desk.open("hourly: {sites: imoti, every: 1s}\n")


def test_a_site_whose_file_is_gone_keeps_no_other_from_running(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """It is an error in the log, and the next period runs."""
    schedules = desk.open(HOURLY)
    schedules.run_due(DAY)
    (desk.config / "sites" / "imoti.yaml").unlink()
    desk.look(schedules)

    schedules.run_due(DAY + 3600)
    schedules.run_due(DAY + 3601)

    assert desk.names() == ["library-2026-11-18"]
    errors = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert [("imoti" in each, "there is no site" in each) for each in errors] == [(True, True)]
    [(site, why)] = desk.problems("hourly").items()
    assert (site, "there is no site 'imoti'" in why) == ("imoti", True)
    desk.write_site("imoti")
    desk.look(schedules)
    schedules.run_due(DAY + 2 * 3600)
    assert "imoti-2026-11-18" in desk.names()
    assert desk.problems("hourly") == {}


def test_a_problem_ends_with_the_rule_and_with_another_beat(desk: Desk) -> None:
    """A changed rule begins anew; a site that another beat has begun for the period has none."""
    schedules = desk.open(HOURLY)
    schedules.run_due(DAY)
    other = desk.open()
    (desk.config / "sites" / "imoti.yaml").unlink()
    desk.look(schedules)
    schedules.run_due(DAY + 3600)
    assert [*desk.problems("hourly")] == ["imoti"]

    with desk.lpm() as lpm:  # as if the other had looked before the first had noted the period
        lpm.store.durable.execute("UPDATE schedules SET period = period - 3600")
        noted = lpm.store.db.value("SELECT problems FROM schedules")
    other.run_due(DAY + 3600)
    with desk.lpm() as lpm:
        lpm.store.durable.execute("UPDATE schedules SET problems = ?", (noted,))
    assert desk.problems("hourly") == {}

    schedules.run_due(DAY + 7200)
    assert [*desk.problems("hourly")] == ["imoti"]
    desk.open(HOURLY.replace("imoti", "county").replace("1h", "2h")).run_due(DAY + 7300)
    assert desk.problems("hourly") == {}


def test_a_crawl_that_is_open_goes_on(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """No second one begins, and the log says so; once it is done, the next period begins another,
    with a number."""
    schedules = desk.open("hourly: {sites: imoti, every: 1h}\n")
    schedules.run_due(DAY)
    schedules.run_due(DAY + 3600)

    schedules.run_due(DAY + 2 * 3600)
    assert desk.names() == ["imoti-2026-11-18"]
    assert "job imoti-2026-11-18, is still open and goes on" in caplog.text

    desk.end_jobs()
    schedules.run_due(DAY + 3 * 3600)
    assert desk.names() == ["imoti-2026-11-18", "imoti-2026-11-18-2"]


def test_all_sites_are_those_that_can_begin_then(desk: Desk) -> None:
    """A site that has come since takes part, one without a start does not."""
    schedules = desk.open("hourly: {sites: all, every: 1h}\n")
    schedules.run_due(DAY)
    desk.write_site("castle")
    (desk.config / "sites" / "bare.yaml").write_text("hosts: bare.example\n")
    desk.look(schedules)

    schedules.run_due(DAY + 3600)

    begun = {name.partition("-")[0] for name in desk.names()}
    assert begun == {*SITES, "castle"}


def test_a_clock_that_was_far_ahead_stops_no_schedule(desk: Desk) -> None:
    """A period of the future does not hold up those of the present, and none runs twice."""
    schedules = desk.open(HOURLY)
    schedules.run_due(DAY)
    schedules.run_due(DAY + 3600)
    schedules.run_due(DAY + 1000 * 3600)

    for minute in range(0, 181, 5):
        schedules.run_due(DAY + 60 * minute)

    hours = sorted(int(group.rpartition(":")[2]) - int(DAY) for group in desk.calls())
    assert [hour // 3600 for hour in hours] == [1, 2, 3, 1000]
    assert set(desk.calls().values()) == {2}


def test_without_a_store_nothing_is_made(desk: Desk) -> None:
    """A folder that was removed does not come back by itself."""
    schedules = desk.open(HOURLY)
    for path in desk.settings.data_dir.glob("lpm.db*"):
        path.unlink()

    with pytest.raises(StoreError, match="is gone"):
        schedules.run_due(DAY)
    assert not (desk.settings.data_dir / "lpm.db").exists()


def test_no_schedules_need_no_store(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """The log says that there are none, once."""
    caplog.set_level(logging.INFO)
    schedules = desk.open("")

    assert [schedules.run_due(DAY), schedules.run_due(DAY)] == [float("inf")] * 2
    assert caplog.text.count("there are no schedules") == 1


# Several beats, and kills.

RACE = (
    "often: {sites: [imoti, library], every: 10m}\n"
    "quarters: {sites: county, cron: '*/15 * * * *'}\n"
)
EXPECTED = {f"schedule:often:{int(DAY) + 600 * n}": 2 for n in range(1, 7)} | {
    f"schedule:quarters:{int(DAY) + 900 * n}": 1 for n in range(1, 5)
}


def test_two_beats_in_threads_run_each_period_once(desk: Desk) -> None:
    """An hour by minutes, both at once at each; each period has one job for each site."""
    desk.write(RACE)
    beats = [desk.open(), desk.open()]
    errors: list[BaseException] = []

    def run(beat: SiteSchedules, now: float) -> None:
        try:
            beat.run_due(now)
        except BaseException as error:
            errors.append(error)

    for minute in range(61):
        threads = [threading.Thread(target=run, args=(beat, DAY + 60 * minute)) for beat in beats]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        desk.end_jobs()

    assert errors == []
    assert desk.calls() == EXPECTED
    begun = Counter(name.partition("-")[0] for name in desk.names())
    assert begun == {"imoti": 6, "library": 6, "county": 4}


PROGRAM = """
import sys
from crawler import config
from crawler.schedules import SiteSchedules
schedules = SiteSchedules(config.load())
for line in sys.stdin:
    schedules.run_due(float(line))
    print("done", flush=True)
"""


class Beat:
    """A process that runs what is due at the times that it is told."""

    def __init__(self, desk: Desk, **env: str) -> None:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("CRAWLER_", "REDIS_"))}
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=clean
            | {
                "CRAWLER_DATA_DIR": str(desk.settings.data_dir),
                "CRAWLER_CONFIG_DIR": str(desk.config),
                "CRAWLER_TIMEZONE": "UTC",
            }
            | env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin
        assert self._process.stdout
        self._in, self._out = self._process.stdin, self._process.stdout

    def tell(self, now: float) -> None:
        """Send a time, without waiting."""
        self._in.write(f"{now}\n")
        self._in.flush()

    def answered(self) -> bool:
        """Wait until it is done; False if it has died."""
        return self._out.readline() == "done\n"

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        self._in.close()
        self._out.close()


def test_two_beats_in_processes_run_each_period_once(desk: Desk) -> None:
    """As in threads; after the hour both were away for three hours, and one period runs."""
    desk.write(RACE)
    with closing(Beat(desk)) as one, closing(Beat(desk)) as other:
        for minute in [*range(61), 60 + 185]:
            for beat in (one, other):
                beat.tell(DAY + 60 * minute)
            assert [one.answered(), other.answered()] == [True, True]
            desk.end_jobs()

    late = {
        f"schedule:often:{int(DAY) + 60 * 240}": 2,
        f"schedule:quarters:{int(DAY) + 60 * 240}": 1,
    }
    assert desk.calls() == EXPECTED | late
    begun = Counter(name.partition("-")[0] for name in desk.names())
    assert begun == {"imoti": 7, "library": 7, "county": 5}


@pytest.mark.parametrize("killed_after", [1, 2, 3])
def test_a_kill_between_sites_costs_and_doubles_none(desk: Desk, killed_after: int) -> None:
    """kill -9 after a site has begun: the next beat begins the others, and none twice."""
    desk.write("hourly: {sites: [imoti, library, county], every: 1h}\n")
    desk.open().run_due(DAY)
    with closing(Beat(desk, CRAWLER_FAILPOINT=f"site-begun:{killed_after}")) as beat:
        beat.tell(DAY + 3600)
        assert not beat.answered()
    assert len(desk.names()) == killed_after
    with desk.lpm() as lpm:
        assert lpm.site_jobs.schedules()["hourly"].period == DAY

    desk.open().run_due(DAY + 3700)

    assert desk.calls() == {f"schedule:hourly:{int(DAY) + 3600}": 3}
    assert sorted(desk.names()) == sorted(f"{name}-2026-11-18" for name in SITES)


def test_an_unforeseen_error_of_one_site_keeps_no_other_from_running(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """It is in the log with its traceback, and the next period tries the site again."""
    schedules = desk.open(HOURLY)
    schedules.run_due(DAY)
    with desk.lpm() as lpm, writing(lpm.store.durable):
        lpm.store.durable.execute(
            """CREATE TRIGGER fail BEFORE INSERT ON site_calls WHEN NEW.site = 'imoti'
               BEGIN SELECT RAISE(ABORT, 'for the test'); END"""
        )
    schedules.run_due(DAY + 3600)
    assert desk.names() == ["library-2026-11-18"]
    [error] = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert "imoti is not crawled before the next run: for the test" in error.getMessage()
    assert error.exc_info

    with desk.lpm() as lpm, writing(lpm.store.durable):
        lpm.store.durable.execute("DROP TRIGGER fail")
    schedules.run_due(DAY + 7200)
    assert desk.names() == ["library-2026-11-18", "imoti-2026-11-18"]


def test_two_beats_with_different_files_skip_no_period(desk: Desk) -> None:
    """While one has read a changed rule and the other has not, each runs its own."""
    old = desk.open(HOURLY)
    desk.write(HOURLY.replace("1h", "10m"))
    new = desk.open()

    for minute in range(61):
        old.run_due(DAY + 60 * minute)
        new.run_due(DAY + 60 * minute)

    periods = {int(group.rpartition(":")[2]) - int(DAY) for group in desk.calls()}
    assert periods == {600 * n for n in range(1, 7)}
