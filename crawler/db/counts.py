"""Numbers about tasks: how many, how fast, and why they ended."""

from collections.abc import Iterator
from typing import Any

from crawler.config import program
from crawler.db import siblings
from crawler.db.results import matching
from crawler.db.store import DUE, TURN, WITHOUT_RESULT, Part, members, of_job
from crawler.db.tasks import SHOWN_COLUMNS, as_shown
from crawler.errors import StoreError
from crawler.models import NO_DEADLINE, Job, TaskCounts, TaskStatus

UNTRIED_SAMPLE = 100
"""Tasks that are looked at to see whether some wait for siblings."""
MAX_RECENT_EVENTS = 20_000
MAX_RECENT_RESULTS = 2000
BYTES_PER_TASK = 1000
"""Estimate of what the rows of a task take beside its record and its page."""
_PUT_OFF = "status = 'pending' AND not_before > 0 AND not_before < 9e15"


class Counts(Part):
    """Counts tasks, all of them or those of a job."""

    def totals(self) -> TaskCounts:
        """The counts of the whole ledger."""
        states = self._db.all("SELECT status, count(*) FROM tasks GROUP BY status")
        outbox = self._db.all("SELECT state, count(*) FROM outbox GROUP BY state")
        return _counts(states, outbox)

    def of_job(self, job: Job) -> TaskCounts:
        """The counts of one job; a task that it shares with another counts for both."""
        ids = members(self._db, job)
        outbox = self._db.all(
            f"SELECT state, count(*) FROM outbox WHERE task IN ({ids}) GROUP BY state", (job.id,)
        )
        return _counts(self._by_status(job), outbox)

    def progress(self, job: Job | None) -> TaskCounts:
        """The states of the tasks, without results: cheap enough to ask again and again."""
        return _counts(self._by_status(job), [])

    def _by_status(self, job: Job | None) -> list[tuple[Any, ...]]:
        return self._grouped(job, "status", "1")

    def _grouped(self, job: Job | None, column: str, which: str) -> list[tuple[Any, ...]]:
        """How many tasks for which a condition holds have each value of a column."""
        condition, values = of_job(self._db, job)
        return self._db.all(
            f"SELECT {column}, count(*) FROM tasks WHERE {condition} AND {which} GROUP BY 1", values
        )

    def _count(self, job: Job | None, which: str) -> int:
        condition, values = of_job(self._db, job)
        sql = f"SELECT count(*) FROM tasks WHERE {condition} AND {which}"
        return int(self._db.value(sql, values))

    # What is pending or in flight

    def pending_by_queue(self) -> dict[str, int]:
        """How many tasks are pending, by queue."""
        return dict(self._grouped(None, "queue", "status = 'pending'"))

    def due_by_domain(self, job: Job | None = None) -> dict[str, int]:
        """How many tasks are due, by domain."""
        return dict(self._grouped(job, "domain", DUE))

    def waiting(self, job: Job | None = None) -> list[tuple[int, float, str, bool]]:
        """How many pending tasks wait for a time, and the first of these times; by the last error
        and whether they were tried, the most first."""
        condition, values = of_job(self._db, job)
        return self._db.all(
            f"""SELECT count(*), min(not_before), ifnull(error_type, ''), attempts > 0 FROM tasks
                WHERE {condition} AND {_PUT_OFF} GROUP BY 3, 4 ORDER BY 1 DESC""",
            values,
        )

    def postponed_because(self, job: Job | None = None) -> str:
        """Why some task was put off that has not failed; empty where nothing was said."""
        condition, values = of_job(self._db, job)
        because = self._db.value(
            f"""SELECT error_message FROM tasks WHERE {condition} AND {_PUT_OFF}
                AND error_type IS NULL AND error_message NOT NULL LIMIT 1""",
            values,
            "",
        )
        return str(because)

    def waits_for_siblings(self, job: Job | None = None) -> bool:
        """Whether tasks that were put off untried wait for a page that is fetched for another."""
        condition, values = of_job(self._db, job)
        untried = self._db.column(
            f"""SELECT id FROM tasks WHERE {condition} AND {_PUT_OFF} AND attempts = 0
                AND error_type IS NULL LIMIT {UNTRIED_SAMPLE}""",
            values,
        )
        return bool(siblings.shared(self._db, untried))

    def held(self, job: Job | None = None) -> int:
        """How many pending tasks wait for an operator."""
        return self._count(job, "status = 'pending' AND not_before >= 9e15")

    def in_flight(self, job: Job | None = None) -> dict[str, int]:
        """How many tasks are being worked on, by domain, the most first."""
        rows = self._grouped(job, "domain", "status = 'processing'")
        return dict(sorted(rows, key=lambda row: (-row[1], row[0])))

    def pages_in_flight(self, job: Job | None = None) -> list[tuple[int, str, str, float]]:
        """Task, URL and domain of all that is being worked on, and since when; the oldest first."""
        condition, values = of_job(self._db, job)
        return self._db.all(
            f"""SELECT id, url, domain, leased_at FROM tasks
                WHERE {condition} AND status = 'processing' ORDER BY leased_at""",
            values,
        )

    def loads(self, job: Job) -> list[tuple[str, int, int]]:
        """For each domain with open tasks of a job: how many, and how many of others go first."""
        ids = members(self._db, job)
        own = self._db.all(
            f"SELECT domain, count(*) FROM tasks WHERE id IN ({ids}) AND is_open GROUP BY 1",
            (job.id,),
        )
        last = self._db.one(
            f"""SELECT priority, deadline, {TURN} FROM tasks WHERE job_id = ? AND is_open
                ORDER BY 1 DESC, 2 DESC, 3 DESC LIMIT 1""",
            (job.id,),
        ) or (9, job.deadline or NO_DEADLINE, 0)
        ahead = self._db.all(
            f"""SELECT domain, count(*) FROM tasks WHERE status = 'pending' AND not_before = 0
                AND id NOT IN ({ids}) AND (queue = 'urgent' OR ?2 = 'default')
                AND (queue <> ?2 OR (priority, deadline, {TURN}) < (?3, ?4, ?5)) GROUP BY 1""",
            (job.id, job.queue, *last),
        )
        first = dict(ahead)
        return [(domain, count, first.get(domain, 0)) for domain, count in own]

    # Speed

    def rate(self, now: float, over_s: float = 30.0) -> float:
        """Tasks that ended a second, of late."""
        count = self._db.value(
            """SELECT count(*) FROM (SELECT at, kind FROM events ORDER BY id DESC LIMIT ?)
               WHERE at > ? AND at <= ? AND kind IN ('completed', 'failed', 'skipped')""",
            (MAX_RECENT_EVENTS, now - over_s, now),
        )
        return float(count) / over_s

    def growth(self, now: float) -> dict[str, float]:
        """Bytes that a recent page has added to the store, and that an hour adds at that pace."""
        # The record is in lpm.db and in pending/.
        rows = self._db.all(
            """SELECT ifnull(raw_length, 0) + 2 * length(record) + ?, scraped_at FROM results
               ORDER BY task DESC LIMIT 500""",
            (BYTES_PER_TASK,),
        )
        if not rows:
            return {"bytes_per_page": 0.0, "bytes_per_hour": 0.0}
        total = sum(size for size, _ in rows)
        age_s = now - min(at for _, at in rows)
        per_hour = round(3600 * total / age_s) if 0 < age_s < 3600 else 0.0
        return {"bytes_per_page": round(total / len(rows)), "bytes_per_hour": per_hour}

    def paces(self, job: Job | None = None) -> dict[str, tuple[float, float]]:
        """Seconds to fetch and to parse a recent page, by domain; a job's own pages count first.

        Else the pages of a large job beside it would leave none of its own among the last.
        """
        last = "SELECT task FROM results ORDER BY task DESC LIMIT ?"
        paces = self._paces(last, (MAX_RECENT_RESULTS,))
        if job:
            own = """SELECT id FROM tasks WHERE job_id = ? AND status = 'completed'
                     ORDER BY id DESC LIMIT ?"""
            paces |= self._paces(own, (job.id, MAX_RECENT_RESULTS))
        return paces

    def _paces(self, tasks: str, values: tuple[int, ...]) -> dict[str, tuple[float, float]]:
        rows = self._db.all(
            f"""SELECT domain, avg(fetch_ms) / 1000, avg(parse_ms) / 1000 FROM results
                JOIN tasks ON tasks.id = task WHERE task IN ({tasks}) GROUP BY 1""",
            values,
        )
        return {domain: (max(fetch_s, 0.001), parse_s) for domain, fetch_s, parse_s in rows}

    # Reasons

    def reasons(self, job: Job | None) -> dict[str, dict[str, int]]:
        """Why tasks ended without a result: by state, the most frequent reason first."""
        condition, values = of_job(self._db, job)
        rows = self._db.all(
            f"""SELECT status, ifnull(error_type, 'unknown'), count(*) FROM tasks
                WHERE status IN {WITHOUT_RESULT} AND {condition}
                GROUP BY 1, 2 ORDER BY 1, 3 DESC, 2""",
            values,
        )
        reasons: dict[str, dict[str, int]] = {}
        for status, reason, count in rows:
            reasons.setdefault(status, {})[reason] = count
        return reasons

    def all_reasons(self) -> dict[str, int]:
        """Every reason that a task has, also one that will be tried again, by frequency."""
        return dict(
            self._db.all(
                """SELECT error_type, count(*) FROM tasks WHERE error_type NOT NULL
                   GROUP BY 1 ORDER BY 2 DESC, 1"""
            )
        )

    def forbidden_by_robots(self, job: Job | None) -> int:
        """How many tasks robots.txt has kept from being fetched."""
        return self._count(job, "status = 'skipped' AND error_type = 'robots'")

    def examples(self, job: Job | None, most: int = 8) -> list[dict[str, Any]]:
        """One task for each reason to end without a result, the most frequent reasons first."""
        condition, values = of_job(self._db, job)
        rows = self._db.all(
            f"""SELECT {SHOWN_COLUMNS} FROM (
                    SELECT min(id) AS first, count(*) AS count FROM tasks
                    WHERE {condition} AND status IN {WITHOUT_RESULT}
                    GROUP BY status, error_type) JOIN tasks ON tasks.id = first
                ORDER BY count DESC, first LIMIT ?""",
            (*values, most),
        )
        return [as_shown(row) for row in rows]

    def errors(self, job: Job | None) -> list[tuple[str, str, int, str, str]]:
        """Status, reason, number of tasks, and URL and message of the first of them."""
        condition, values = matching(job, None)
        # SQLite takes the columns beside min() from the row that has the minimum.
        rows = self._db.all(
            f"""SELECT t.status, coalesce(t.error_type, 'unknown'), count(*), t.url,
                    coalesce(t.error_message, ''), min(t.id)
                FROM tasks t WHERE t.status IN {WITHOUT_RESULT} AND {condition}
                GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2""",
            values,
        )
        return [(row[0], row[1], row[2], row[3], row[4]) for row in rows]

    def ends_by_domain(self, job: Job | None) -> list[tuple[str, int, int]]:
        """Each domain with its completed tasks, and those that ended without a result."""
        condition, values = matching(job, None)
        return self._db.all(
            f"""SELECT t.domain, sum(t.status = 'completed'), sum(t.status IN {WITHOUT_RESULT})
                FROM tasks t WHERE {condition} GROUP BY 1""",
            values,
        )

    def ended_without_result(self, job: Job | None) -> Iterator[tuple[Any, ...]]:
        """URL key, parcel, time, URL and reason of every task that ended without a result."""
        condition, values = matching(job, None)
        last = 0
        while rows := self._db.all(
            f"""SELECT t.id, t.url_key, t.parcel_id, ifnull(t.completed_at, 0.0), t.url,
                    ifnull(t.error_type, t.status) FROM tasks t
                WHERE t.status IN {WITHOUT_RESULT} AND {condition} AND t.id > ?
                ORDER BY t.id LIMIT 1000""",
            (*values, last),
        ):
            for _, *row in rows:
                yield tuple(row)
            last = rows[-1][0]


def _counts(states: list[tuple[Any, ...]], outbox: list[tuple[Any, ...]]) -> TaskCounts:
    counts, sent = dict(states), dict(outbox)
    if unknown := sum(counts[state] for state in counts.keys() - set(TaskStatus)):
        what = f"{unknown:,} tasks are in a state that this program does not know"
        raise StoreError(f"{what}; mend it: {program()} doctor --repair")
    results, synced = sum(sent.values()), sent.get("synced", 0)
    return TaskCounts(
        **counts,
        accepted=sum(counts.values()),
        results=results,
        synced=synced,
        unsynced=results - synced,
    )
