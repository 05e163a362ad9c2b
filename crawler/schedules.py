"""Runs the schedules of `config/schedules.yaml`: begins the crawls of their sites, each period
once."""

import logging
import math
import time
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from crawler import crawls, times
from crawler.config import Settings, failpoint
from crawler.db.site_jobs import ScheduleState, SiteCall, schedule_group
from crawler.errors import CrawlerError, InputError, StoreError, shortage_of
from crawler.logs import counted
from crawler.lpm import LocalPersistenceManager
from crawler.sites.live import LOOK_INTERVAL_S, LiveSites, file_state
from crawler.sites.schedulefile import SCHEDULES, Schedule, read_schedules

log = logging.getLogger(__name__)

MAX_REASON = 500
"""Maximum characters that the ledger keeps of the reason why a site could not begin."""
CLOCK_STEP_S = 60.0
"""A period that began so far in the future shows that the clock was set back."""


class _Period(NamedTuple):
    """When the present period of a schedule began, and when the next one will."""

    began: float
    next: float


class SiteSchedules:
    """The schedules as they are in the file, or as they last were without a fault.

    Several processes may have them on one store: the ledger knows which period has run, and each
    site begins by a call with an id of its period.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the files; raises `InputError` for a broken one."""
        self._settings, self._clock = settings, clock
        self._tz = times.zone(settings.timezone)
        self._path = settings.config_dir / SCHEDULES
        self._sites = LiveSites(settings.config_dir, settings.rate, clock=clock)
        self._read_sites = self._sites.now
        # Before it is read: it may change meanwhile.
        self._read = self._seen = file_state(self._path)
        self._looked_at = clock()
        self._schedules = read_schedules(settings.config_dir, self._sites.now)
        self._periods: dict[str, _Period] = {}
        self._last: dict[tuple[str, str], float] = {}
        """By name and rule, the last period that is not to run."""
        self._removed: set[str] = set()
        self._is_described = False

    def look(self) -> None:
        """Read the files again if they have changed; looks at them once a second at most.

        They must be the same at two looks: an editor may still be writing.
        """
        now = self._clock()
        self._sites.look()
        new_sites = self._sites.now is not self._read_sites
        if now - self._looked_at < LOOK_INTERVAL_S and not new_sites:
            return
        self._looked_at = now
        before, self._seen = self._seen, file_state(self._path)
        changed = self._seen == before != self._read
        if changed or new_sites:
            self._load()
            self._read, self._read_sites = self._seen, self._sites.now

    def _load(self) -> None:
        """Read the file again, because it or a site has changed; a shortage is raised, and then the
        next look tries it again."""
        if not self._path.parent.is_dir():
            return  # the sites say so
        try:
            read = read_schedules(self._path.parent, self._sites.now)
        except InputError as error:
            if shortage_of(error):
                raise
            log.warning("%s; the schedules run as they were before", error)
            return
        if read == self._schedules:
            return
        names = {schedule.name for schedule in read}
        self._removed |= {each.name for each in self._schedules}
        self._removed -= names
        # A rule that comes back later is a new one: its periods meanwhile do not run.
        rules = {(each.name, each.rule(self._settings.timezone)) for each in read}
        self._last = {key: last for key, last in self._last.items() if key in rules}
        self._schedules, self._periods = read, {}
        self._is_described = False

    def _describe(self, now: float) -> None:
        """Log which schedules there are, and when each runs next."""
        if not self._schedules:
            log.info("there are no schedules in %s: nothing runs until there are", self._path)
        for schedule in self._schedules:
            at = times.until(self._period(schedule, now).next, now, self._tz)
            sites = ", ".join(schedule.sites)
            log.info("schedule %s (%s): next run %s: %s", schedule.name, schedule.shown, at, sites)

    def run_due(self, now: float) -> float:
        """Begin the crawls that are due at a time; returns the seconds until the next.

        Of periods that were missed, the latest runs. Raises `StoreError`; the same call again goes
        on where it was.
        """
        if not self._is_described:
            self._describe(now)
            self._is_described = True
        if self._schedules or self._removed:
            self._run_due(now)
        starts = [self._period(schedule, now).next for schedule in self._schedules]
        return min(starts, default=math.inf) - now

    def _run_due(self, now: float) -> None:
        folder = self._settings.data_dir
        if not LocalPersistenceManager.exists(folder):
            raise StoreError(f"the store in {folder} is gone")
        with LocalPersistenceManager(folder) as lpm, lpm.errors():
            if self._removed:
                lpm.site_jobs.forget_schedules(self._removed)
                self._removed = set()
            states = lpm.site_jobs.schedules()
            for schedule in self._schedules:
                last = self._last_period(lpm, schedule, states.get(schedule.name), now)
                period = self._period(schedule, now).began
                if period > last:
                    self._run(lpm, schedule, period, now)

    def _period(self, schedule: Schedule, now: float) -> _Period:
        known = self._periods.get(schedule.name)
        if known is None or not known.began <= now < known.next:
            known = _Period(schedule.latest(now, self._tz), schedule.next(now, self._tz))
            self._periods[schedule.name] = known
        return known

    def _last_period(
        self,
        lpm: LocalPersistenceManager,
        schedule: Schedule,
        state: ScheduleState | None,
        now: float,
    ) -> float:
        """Return the last period that is not to run; a new schedule begins with the next one."""
        rule = schedule.rule(self._settings.timezone)
        key = schedule.name, rule
        if state and state.rule == rule and state.period <= now + CLOCK_STEP_S:
            last = state.period
        else:
            # Another process may still have the rule as it was, and have noted that one again.
            present = self._period(schedule, now).began
            last = min(present, self._last.get(key, present))
            last = lpm.site_jobs.begin_schedule(*key, last, now + CLOCK_STEP_S)
        self._last[key] = last
        return last

    def _run(
        self, lpm: LocalPersistenceManager, schedule: Schedule, period: float, now: float
    ) -> None:
        """Begin the crawls of a period; it has run when none of its sites is left."""
        group = schedule_group(schedule.name, period)
        begun = {site for site, _ in lpm.site_jobs.called(group)}
        problems: dict[str, str] = {}
        for site in schedule.sites_of(self._sites.now):
            if site not in begun:
                call = SiteCall(f"{group}:{site}", site, group)
                if problem := self._begin(lpm, schedule, period, call):
                    problems[site] = problem[:MAX_REASON]
                failpoint("site-begun")
        rule = schedule.rule(self._settings.timezone)
        if lpm.site_jobs.end_period(schedule.name, rule, period, now, problems):
            at = times.until(self._period(schedule, now).next, now, self._tz)
            log.info("schedule %s has run; next run %s", schedule.name, at)

    def _begin(
        self, lpm: LocalPersistenceManager, schedule: Schedule, period: float, call: SiteCall
    ) -> str:
        """Begin the crawl of a site; returns why it cannot begin, which keeps no other from it."""
        before = {job.id for job in lpm.jobs.all()}
        name = f"{call.site}-{datetime.fromtimestamp(period, self._tz):%Y-%m-%d}"
        fields = {"schedule": schedule.name, "site": call.site}
        try:
            plan = crawls.plan_site(self._sites.now, call.site, limit=schedule.limit, recrawl=True)
            begun = crawls.begin_site(self._settings, plan, call, name, schedule.queue)
        except StoreError:
            raise
        except Exception as error:  # whatever is wrong with one site
            if shortage_of(error):
                raise
            foreseen = isinstance(error, CrawlerError)
            reason = str(error) or type(error).__name__
            log.error(  # noqa: TRY400 – a foreseen error says it all
                "%s is not crawled before the next run: %s",
                call.site,
                reason,
                extra=fields,
                exc_info=None if foreseen else error,
            )
            return reason
        job = begun.job.name
        if begun.job.id in before:
            log.warning(
                "the last crawl of %s, job %s, is still open and goes on; no second one begins",
                call.site,
                job,
                extra=fields,
            )
        elif begun.added:
            log.info("job %s begins with %s", job, counted(begun.added, "start"), extra=fields)
        if begun.note:
            log.warning("%s", begun.note, extra=fields)
        return ""
