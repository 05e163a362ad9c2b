"""Removes finished jobs beside a running stack, and gives their room back to the disk."""

import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from crawler.config import failpoint
from crawler.db import owners
from crawler.db.retention import ABOVE_ALL, ENDED, FREE_PAGES_PER_STEP, Kept
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job
from crawler.results.archive import maintenance_lock

STEP_S = 0.02
"""How long a step may take: meanwhile nobody else can write."""
MIN_TASKS, FIRST_TASKS, MAX_TASKS = 20, 200, 2000
"""Tasks that a step removes; how many is found out by the time that steps take."""
PAUSE = 9.0
"""Beside a worker, each step is followed by a pause of so many times its length."""


class PrunedJobs(msgspec.Struct, frozen=True):
    """What was removed (or would be), and what was kept."""

    jobs: list[str]
    tasks: int
    results: int
    kept: list[Kept]
    bytes: int
    """By how much the database has become smaller."""
    dry_run: bool
    before: float
    """Jobs that ended before this time were to go."""


class _Plan(NamedTuple):
    """Which old jobs go, and which stay."""

    jobs: list[Job]
    kept: list[Kept]


def prune_jobs(
    lpm: LocalPersistenceManager,
    before: float,
    *,
    also_unexported: bool,
    dry_run: bool,
    progress: Callable[[str], None] = lambda line: None,
    sleep: Callable[[float], None] = time.sleep,
) -> PrunedJobs:
    """Remove the jobs that ended before a time, except those that somebody needs.

    If killed anywhere, it can be called again: it first removes what is left of jobs that have
    gone.
    """
    with maintenance_lock(lpm):
        if not dry_run:
            lpm.retention.forget_intentions()
        remover = _Remover(lpm, sleep, progress)
        plan = _plan(lpm, before, also_unexported, dry_run, remover.rest)
        if dry_run:
            sizes = [lpm.retention.sizes(job) for job in plan.jobs]
            names = [job.name for job in plan.jobs]
            tasks, results = (sum(counts) for counts in zip((0, 0), *sizes, strict=True))
            return PrunedJobs(names, tasks, results, plan.kept, 0, dry_run, before)
        needed = lpm.retention.begin(plan.jobs)
        kept = [*plan.kept, *(Kept(job.name, "it was used meanwhile") for job in needed)]
        failpoint("pruning")
        size = lpm.retention.file_bytes()
        names = remover.remove_all()
        remover.give_back()
        freed = max(0, size - lpm.retention.file_bytes())
    return PrunedJobs(names, remover.tasks, remover.results, kept, freed, dry_run, before)


def _plan(
    lpm: LocalPersistenceManager,
    before: float,
    also_unexported: bool,
    dry_run: bool,
    rest: Callable[[float], None],
) -> _Plan:
    going, kept = [], []
    for job in lpm.retention.old_jobs(before):
        if reason := lpm.retention.reason_to_keep(job, also_unexported, rest):
            kept.append(Kept(job.name, reason))
        else:
            going.append(job)
    if not dry_run:
        lpm.retention.intend(going)
        failpoint("intended")
    shared = lpm.retention.shared(going)
    kept += [
        Kept(job.name, f"{shared[job.id]} has some of its tasks, too")
        for job in going
        if job.id in shared
    ]
    return _Plan([job for job in going if job.id not in shared], kept)


class _Remover:
    """Removes rows in steps of a length that others do not notice."""

    def __init__(
        self,
        lpm: LocalPersistenceManager,
        sleep: Callable[[float], None],
        progress: Callable[[str], None],
    ) -> None:
        self._lpm, self._sleep, self._progress = lpm, sleep, progress
        self._limit = FIRST_TASKS
        self._told = time.monotonic()
        self.tasks = self.results = 0

    def remove_all(self) -> list[str]:
        """Remove all that jobs which have gone have left; returns the names of those that are gone
        completely."""
        names = []
        for job_id, name in self._lpm.retention.begun():
            self._remove_rows(job_id)
            for status in ENDED:
                self._remove_tasks(job_id, status)
            if self._lpm.retention.finish(job_id):
                names.append(name)
        return names

    def _remove_rows(self, job_id: int) -> None:
        is_left = True
        while is_left:
            held_s = self._lpm.retention.held_s
            is_left = self._lpm.retention.remove_rows(job_id)
            self.rest(self._lpm.retention.held_s - held_s)
            failpoint("rows-removed")

    def _remove_tasks(self, job_id: int, status: str) -> None:
        below, files, retention = ABOVE_ALL, self._lpm.files, self._lpm.retention
        while tasks := retention.next_tasks(job_id, status, below, self._limit):
            task_ids, held_s = [task.task_id for task in tasks], retention.held_s
            files.remove_all(task_ids)
            failpoint("files-removed")
            removed = retention.remove_tasks(tasks)
            failpoint("tasks-removed")
            files.remove_all(task_ids)  # somebody may have written one again meanwhile
            self.tasks, self.results = self.tasks + removed.tasks, self.results + removed.results
            below = tasks[-1].id
            self._find_limit(retention.held_s - held_s)
            self.rest(retention.held_s - held_s)
            self._tell(f"{self.tasks:,} tasks removed")

    def give_back(self) -> None:
        """Give the free pages of the database back to the disk, as far as it can."""
        retention = self._lpm.retention
        if not retention.gives_room_back():
            return
        steps = retention.free_pages() // FREE_PAGES_PER_STEP + 1
        for number in range(steps):
            began = time.perf_counter()
            retention.give_back()
            self.rest(time.perf_counter() - began)
            self._tell(f"{number:,} of {steps:,} parts of the room given back")
        if owners.living(self._lpm.owners):
            retention.write_log_back()
        else:
            self._lpm.store.cut_log()

    def _find_limit(self, took_s: float) -> None:
        """Find out how many tasks fit into a step."""
        factor = min(2.0, max(0.5, STEP_S / max(took_s, 1e-4)))
        self._limit = round(min(MAX_TASKS, max(MIN_TASKS, self._limit * factor)))

    def rest(self, took_s: float) -> None:
        """Leave the machine to the workers, if there are any."""
        if owners.living(self._lpm.owners):
            self._sleep(PAUSE * took_s)

    def _tell(self, line: str) -> None:
        if time.monotonic() - self._told > 2:
            self._told = time.monotonic()
            self._progress(line)
