"""Numbers about tasks: how many, how fast, and why they ended."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from crawler.config import program
from crawler.db import siblings
from crawler.db.results import matching
from crawler.db.store import (
    DUE,
    IN_PENDING,
    LISTED,
    TURN,
    WITHOUT_RESULT,
    Part,
    as_json,
    members,
    of_job,
)
from crawler.db.tasks import SHOWN_COLUMNS, as_shown
from crawler.errors import StoreError
from crawler.models import (
    BROWSER,
    NO_DEADLINE,
    QUEUES,
    UNCHANGED,
    Job,
    TaskCounts,
    TaskStatus,
)

UNTRIED_SAMPLE = 100
"""Tasks that are looked at to see whether some wait for siblings."""
MAX_RECENT_EVENTS = 20_000
MAX_RECENT_RESULTS = 2000
MAX_SIZED_RESULTS = 500
"""Results whose sizes tell how much a page takes."""
SAMPLES = 20
"""Parts of a span that are looked at if it has more events than that."""
BYTES_PER_TASK = 1000
"""Estimate of what the rows of a task take beside its record and its page."""
BYTES_PER_FILE = 500
"""Estimate of what a file in pending/ has beside the record."""
GROWING = ("lpm.db", "raw", "pending")
_FIRST = "LEFT JOIN results f ON f.task = r.same_as"
_SIZES = f"""octet_length(r.record), r.raw_segment, r.raw_offset,
    iif(r.verdict = '{UNCHANGED}' OR (f.raw_segment, f.raw_offset) = (r.raw_segment, r.raw_offset),
        0, ifnull(r.raw_length, 0)),
    EXISTS (SELECT 1 FROM outbox o WHERE o.task = r.task AND {IN_PENDING})"""
"""Bytes of a result's record, the place of its page, the bytes of the page if it is no earlier
result's, and whether the record is in pending/, too."""
_PUT_OFF = "status = 'pending' AND not_before > 0 AND not_before < 9e15"


class Growth(msgspec.Struct, frozen=True):
    """About how many bytes a recent page takes, and what was added of late, by part of the store;
    never more than is there."""

    bytes_per_page: int = 0
    last_hour: dict[str, int] = {}
    last_day: dict[str, int] = {}


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

    def progress_of(self, jobs: Sequence[Job]) -> list[TaskCounts]:
        """The same for several jobs, counted at once."""
        ids = as_json([job.id for job in jobs])
        shared = set(
            self._db.column(f"SELECT DISTINCT job_id FROM job_links WHERE job_id {LISTED}", (ids,))
        )
        states: dict[int, list[tuple[Any, ...]]] = {}
        for id_, status, count in self._db.all(
            f"SELECT job_id, status, count(*) FROM tasks WHERE job_id {LISTED} GROUP BY 1, 2",
            (ids,),
        ):
            states.setdefault(id_, []).append((status, count))
        return [
            self.progress(job) if job.id in shared else _counts(states.get(job.id, []), [])
            for job in jobs
        ]

    def listings_of(self, jobs: Sequence[Job]) -> dict[int, int]:
        """How many listings of crawls were collected, by the job's id."""
        return dict(
            self._db.all(
                f"""SELECT job_id, count(*) FROM tasks WHERE job_id {LISTED}
                    AND status = 'completed' AND role = 'listing' GROUP BY 1""",
                (as_json([job.id for job in jobs]),),
            )
        )

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

    def pending_by_queue(self, job: Job | None = None) -> dict[str, int]:
        """How many tasks are pending, by the queue of their messages."""
        queue = f"iif(needs = '{BROWSER}' AND queue NOT LIKE 'direct:%', '{BROWSER}', queue)"
        return dict(self._grouped(job, queue, "status = 'pending'"))

    def in_browsers(self, job: Job) -> int:
        """How many tasks have needed a browser."""
        return self._count(job, f"needs = '{BROWSER}'")

    def due_for_browsers(self, job: Job | None = None) -> int:
        """How many tasks are due that need a browser."""
        condition, values = of_job(self._db, job)
        queues = {*QUEUES, job.queue} if job else QUEUES
        due = f"{DUE} AND queue {LISTED} AND needs = '{BROWSER}'"
        sql = f"SELECT count(*) FROM tasks WHERE {condition} AND {due}"
        return int(self._db.value(sql, (*values, as_json(sorted(queues)))))

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

    def growth(
        self, now: float, sizes: Mapping[str, int], max_events: int = MAX_RECENT_EVENTS
    ) -> Growth:
        """What was added to the store of late; `sizes` is what its parts take now.

        A store that began within a span has grown by all that it takes. Else the pages are added
        up that were stored in that span, and what their results take beside them is an estimate.
        """
        rows = self._db.all(
            f"SELECT {_SIZES} FROM results r {_FIRST} ORDER BY r.seq DESC LIMIT ?",
            (MAX_SIZED_RESULTS,),
        )
        added = _added([("completed", *row) for row in rows])
        hour, day = (self._grown(now - span, sizes, max_events) for span in (3600, 86400))
        return Growth(round(sum(added.values()) / len(rows)) if rows else 0, hour, day)

    def _grown(self, since: float, sizes: Mapping[str, int], max_events: int) -> dict[str, int]:
        if self._db.value("SELECT imported_at FROM tasks WHERE id = 1", default=0.0) >= since:
            return {name: sizes[name] for name in GROWING}
        first, last = self._first_event(since), self._last_event()
        count = last + 1 - first
        begins, length = [first], max(count, 0)
        if count > max_events:  # some of them, from all of the span
            length = max_events // SAMPLES
            begins = [first + count * n // SAMPLES for n in range(SAMPLES)]
        rows = [row for begin in begins for row in self._added_by(begin, begin + length)]
        scale = count / (length * len(begins)) if length else 0.0
        return {name: min(sizes[name], round(size * scale)) for name, size in _added(rows).items()}

    def _added_by(self, begin: int, end: int) -> list[tuple[Any, ...]]:
        return self._db.all(
            f"""SELECT e.kind, {_SIZES} FROM events e JOIN results r ON r.task = e.task {_FIRST}
                WHERE e.id >= ? AND e.id < ? AND e.kind IN ('completed', 'unbundled', 'replayed')
            """,
            (begin, end),
        )

    def _last_event(self) -> int:
        return int(self._db.value("SELECT ifnull(max(id), 0) FROM events"))

    def _first_event(self, since: float) -> int:
        """The first event since then: their numbers are in the order of time."""
        low = int(self._db.value("SELECT ifnull(min(id), 1) FROM events"))
        high = self._last_event() + 1
        while low < high:
            middle = (low + high) // 2
            row = self._db.one(
                "SELECT id, at FROM events WHERE id >= ? ORDER BY id LIMIT 1", (middle,)
            )
            if row and row[1] < since:
                low = int(row[0]) + 1
            else:
                high = middle
        return low

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


def _added(rows: Sequence[tuple[Any, ...]]) -> dict[str, int]:
    """What events with their results have added to each part; a page counts once."""
    added, pages = dict.fromkeys(GROWING, 0), Counter[tuple[str, int]]()
    for kind, record, segment, offset, page, is_pending in rows:
        added["lpm.db"] += record
        if kind != "replayed":  # which keeps the page, and puts another record in the file
            added["lpm.db"] += BYTES_PER_TASK
            added["pending"] += (record + BYTES_PER_FILE) * is_pending
            pages[segment, offset] = max(pages[segment, offset], page)
    return added | {"raw": sum(pages.values())}


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
