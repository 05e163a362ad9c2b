"""Crawls of sites by name: the calls that begin them, and the schedules that make such calls."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from crawler.db.connection import Database, writing
from crawler.db.imports import free_name
from crawler.db.jobs import BROKEN_OFF_CRAWL, as_job, raise_queue
from crawler.db.jobs import COLUMNS as JOB_COLUMNS
from crawler.db.links import FIND, Start, add_starts
from crawler.db.store import Part, as_json
from crawler.models import Job, JobOptions


class SiteCall(NamedTuple):
    """A call that begins the crawl of a site, or continues the one that is open."""

    id: str
    site: str
    group_id: str | None = None
    """Of calls that were made together."""


class ScheduleState(NamedTuple):
    """How far a schedule is."""

    rule: str
    period: float
    """The last one that is not to run any more."""
    ran_at: float | None
    problems: dict[str, str]
    """Why sites could not begin at the last run, by site."""


def schedule_group(name: str, period: float) -> str:
    """Return the group of the calls of a schedule's period."""
    return f"schedule:{name}:{int(period)}"


class SiteJobs(Part):
    """Begins crawls of sites, each call once, whatever is killed in between."""

    def begin(
        self,
        call: SiteCall,
        starts: Iterable[Start],
        now: float,
        *,
        key: str,
        name: str,
        queue: str,
        batch_size: int,
        options: JobOptions,
        prepare: Callable[[Job], None] = lambda job: None,
    ) -> tuple[Job, int]:
        """Begin the crawl of a site, or continue the open one with this key; returns its job, and
        how many starts are new.

        All in one commit: a call that comes again only finds its job. `prepare` is called before
        the commit, with which workers may begin.
        """
        db = self._durable
        with writing(db):
            known = db.one("SELECT job_id FROM site_calls WHERE call_id = ?", (call.id,))
            if known:
                return _job(db, known[0]), 0
            id_ = db.value("SELECT max(id) FROM jobs WHERE key = ? AND status <> 'done'", (key,))
            if id_ is not None:
                raise_queue(db, id_, queue)
                # This call brings all starts, also those of a command that was killed before.
                db.execute(
                    f"UPDATE jobs SET status = 'open' WHERE id = ? AND {BROKEN_OFF_CRAWL}", (id_,)
                )
            else:
                id_ = db.value(
                    """INSERT INTO jobs (name, key, status, queue, source, batch_size, created_at,
                           options)
                       VALUES (?, ?, 'open', ?, 'crawl', ?, ?, ?) RETURNING id""",
                    (free_name(db, name), key, queue, batch_size, now, as_json(options)),
                )
            job = _job(db, id_)
            prepare(job)
            added = add_starts(db, job, starts, now)
            db.execute(
                """INSERT INTO site_calls (call_id, job_id, site, group_id, at)
                   VALUES (?, ?, ?, ?, ?)""",
                (call.id, job.id, call.site, call.group_id, now),
            )
        return job, added

    def called(self, id_: str) -> list[tuple[str, Job]]:
        """The sites and jobs that a call, or the calls of a group, have begun or continued."""
        rows = self._db.all(
            f"""SELECT site, {JOB_COLUMNS} FROM site_calls JOIN jobs ON id = job_id
                WHERE call_id = ?1 OR group_id = ?1 ORDER BY at, site""",
            (id_,),
        )
        return [(site, as_job(tuple(row))) for site, *row in rows]

    def add_pages(self, job: Job, pages: Iterable[Start], now: float) -> list[str]:
        """Add pages to a crawl, also to one that has ended; returns the ids of their tasks.

        A crawl that has them all stays as it is: a call that comes again changes nothing.
        """
        db, given = self._durable, list(pages)
        with writing(db):
            if add_starts(db, job, given, now):
                db.execute(
                    """UPDATE jobs SET status = 'open', completed_at = NULL
                       WHERE id = ? AND status = 'done'""",
                    (job.id,),
                )
            links = [page.link for page in given]
            keys = [(job.id, link.address.key, link.method, link.body) for link in links]
            return [str(db.value(FIND.format("task_id"), key)) for key in keys]

    # Schedules

    def schedules(self) -> dict[str, ScheduleState]:
        """How far each schedule is, by name."""
        found = {}
        for name, rule, period, ran_at, noted in self._db.all(
            "SELECT name, rule, period, ran_at, problems FROM schedules"
        ):
            problems: dict[str, str] = {}
            if noted:
                # Another beat may have begun a site after the first one noted its problem.
                begun = {site for site, _ in self.called(schedule_group(name, period))}
                noted_by_site = msgspec.json.decode(noted, type=dict[str, str])
                problems = {site: why for site, why in noted_by_site.items() if site not in begun}
            found[name] = ScheduleState(rule, period, ran_at, problems)
        return found

    def begin_schedule(self, name: str, rule: str, period: float, limit: float) -> float:
        """Note the last period of a schedule that is not to run, and return it.

        A schedule that is known with this rule keeps its own, unless that is after `limit`: then
        the clock was set back, and it would not run until then.
        """
        db = self._durable
        with writing(db):
            db.execute(
                """INSERT INTO schedules (name, rule, period) VALUES (?1, ?2, ?3)
                   ON CONFLICT DO UPDATE SET rule = ?2, period = ?3, ran_at = NULL,
                       problems = NULL
                   WHERE rule <> ?2 OR period > ?4""",
                (name, rule, period, limit),
            )
            return float(db.value("SELECT period FROM schedules WHERE name = ?", (name,)))

    def end_period(
        self, name: str, rule: str, period: float, now: float, problems: Mapping[str, str]
    ) -> bool:
        """Note that a period has run, and which sites could not begin; False if it was noted
        already."""
        db = self._durable
        noted = as_json(problems) if problems else None
        with writing(db):
            db.execute(
                """UPDATE schedules SET period = ?3, ran_at = ?4, problems = ?5
                   WHERE name = ?1 AND rule = ?2 AND period < ?3""",
                (name, rule, period, now, noted),
            )
            return bool(db.changes())

    def forget_schedules(self, names: Iterable[str]) -> None:
        """Forget schedules that are no longer in the file: if they come back, they are new."""
        db = self._durable
        with writing(db):
            db.executemany("DELETE FROM schedules WHERE name = ?", [(name,) for name in names])


def _job(db: Database, id_: int) -> Job:
    [row] = db.all(f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?", (id_,))
    return as_job(row)
