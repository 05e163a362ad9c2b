"""What `sites schedules` and `status` tell of the schedules."""

import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from crawler import times
from crawler.cli.output import existing_store
from crawler.config import Settings
from crawler.db.site_jobs import ScheduleState, schedule_group
from crawler.errors import InputError
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager
from crawler.models import JobStatus
from crawler.sites import load
from crawler.sites.live import FileState, file_state
from crawler.sites.schedulefile import ALL, SCHEDULES, Schedule, read_schedules
from crawler.stack import is_beat_running


class RunJob(msgspec.Struct, frozen=True, kw_only=True):
    """The crawl of one site in a run, as far as it is now."""

    site: str
    job: str
    state: str
    found: int
    fetched: int
    failed: int
    open: int

    def __str__(self) -> str:
        counts = f"{self.found:,} found, {self.fetched:,} fetched, {self.failed:,} failed"
        if self.state != JobStatus.DONE:
            counts = f"{self.found - self.open:,} of {self.found:,} done, {self.failed:,} failed"
        return f"{printable(self.job)} {self.state}, {counts}"


class ScheduleFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule and its last run; the file gives None while it is broken."""

    name: str
    rule: str | None = None
    sites: list[str] | None = None
    limit: int | None = None
    queue: str | None = None
    last_run: float | None = None
    next_run: float | None = None
    jobs: list[RunJob] = []
    """What the last run has begun or continued."""
    problems: dict[str, str] = {}
    """Why sites could not begin at the last run, by site."""


def gather_schedules(settings: Settings) -> tuple[list[ScheduleFacts], list[InputError]]:
    """Return the schedules with their last runs, and the faults of files that cannot be read.

    While schedules.yaml is broken, the schedules are those that the ledger knows.
    """
    states, ran = _last_runs(settings)
    faults: list[InputError] = []
    known = None
    try:
        known = load(settings.config_dir, settings.rate)
    except InputError as error:
        faults += [error, *error.others]
    try:
        entries = read_schedules(settings.config_dir, known)
    except InputError as error:
        return [*ran.values()], [*faults, error, *error.others]
    now, tz = time.time(), times.zone(settings.timezone)
    found = [
        msgspec.structs.replace(
            ran.get(each.name) or ScheduleFacts(name=each.name),
            rule=each.shown,
            sites=each.sites_of(known) if known else list(each.sites),
            limit=each.limit,
            queue=each.queue,
            next_run=each.next(now, tz),
            problems=_problems(states.get(each.name), each),
        )
        for each in entries
    ]
    return found, faults


def _last_runs(
    settings: Settings,
) -> tuple[dict[str, ScheduleState], dict[str, ScheduleFacts]]:
    """Return what the ledger knows of each schedule, by name."""
    if not LocalPersistenceManager.exists(settings.data_dir):
        return {}, {}
    with existing_store() as lpm, lpm.store.reading():
        states = lpm.site_jobs.schedules()
        ran = {
            name: ScheduleFacts(
                name=name,
                last_run=state.ran_at,
                jobs=_last_jobs(lpm, name, state),
                problems=state.problems,
            )
            for name, state in states.items()
        }
    return states, ran


def _last_jobs(lpm: LocalPersistenceManager, name: str, state: ScheduleState) -> list[RunJob]:
    if state.ran_at is None:
        return []
    begun = lpm.site_jobs.called(schedule_group(name, state.period))
    books = lpm.counts.progress_of([job for _, job in begun])
    return [
        RunJob(
            site=site,
            job=job.name,
            state=job.state,
            found=counts.accepted,
            fetched=counts.completed,
            failed=counts.failed,
            open=counts.open,
        )
        for (site, job), counts in zip(begun, books, strict=True)
    ]


def brief_schedules(
    settings: Settings, states: dict[str, ScheduleState], is_broken: bool
) -> list[dict[str, Any]]:
    """Return what `status` tells of each schedule; of a broken file, what the ledger knows.

    A schedule has a next run if a beat is up to run it.
    """
    folder = settings.config_dir
    entries = None if is_broken else _entries(folder, file_state(folder / SCHEDULES))
    if entries is None:
        return [
            {"name": name, "next_run": None, "problems": state.problems}
            for name, state in states.items()
        ]
    now, tz = time.time(), times.zone(settings.timezone)
    beat = is_beat_running(settings.data_dir)
    return [
        {
            "name": each.name,
            "next_run": each.next(now, tz) if beat else None,
            "problems": _problems(states.get(each.name), each),
        }
        for each in entries
    ]


@lru_cache(maxsize=1)
def _entries(folder: Path, _state: FileState) -> tuple[Schedule, ...] | None:
    """Read the file only when it changes: a screen asks every second. None for a broken one."""
    try:
        return tuple(read_schedules(folder, None))
    except InputError:
        return None


def _problems(state: ScheduleState | None, schedule: Schedule) -> dict[str, str]:
    """Return why sites could not begin, without those that were taken out of the schedule."""
    if state is None:
        return {}
    wanted = schedule.sites
    return {site: why for site, why in state.problems.items() if wanted == (ALL,) or site in wanted}


def problem_lines(problems: dict[str, str]) -> list[str]:
    """Return a line for each site that could not begin."""
    return [f"{site} was not crawled: {printable(why)}" for site, why in problems.items()]
