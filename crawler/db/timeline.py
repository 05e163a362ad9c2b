"""The timeline of a task: the events that were noted about it, and the ways its result left."""

from collections.abc import Iterator, Sequence
from typing import Any

from crawler.db.connection import Database, writing
from crawler.db.store import NOTED_FILE, Part, as_json
from crawler.models import Job

MAX_EVENTS_PER_READ = 2000

_TASK_COLUMNS = (
    "task_id", "url", "status", "error_type", "error_message", "imported_at", "source",
    "source_file", "source_line", "source_item", "queue", "priority", "deadline", "not_before",
    "leased_at", "owner", "message_id", "published_at", "external_id", "parcel_id", "domain",
    "role", "depth", "parent", "method", "needs",
)  # fmt: skip
_RESULT_COLUMNS = {
    "scraped_at": "r.scraped_at",
    "status": "r.status_code",
    "verdict": "r.verdict",
    "bytes": "r.bytes",
    "parser": "r.parser || ' ' || r.parser_version",
    "site": "r.site || ' ' || r.site_version",
    "sha256": "r.body_sha256",
    "segment": "r.raw_segment",
    "state": "o.state",
    "synced_at": "o.synced_at",
    "archived_at": "o.archived_at",
    "late": "o.late",
    "code": "o.code",
    "problem": "o.problem",
    "job_id": "t.job_id",
    "event": "(SELECT max(id) FROM events WHERE task = t.id AND kind = 'completed')",
    "invalid": "r.invalid",
    "same_as": "(SELECT task_id FROM tasks s WHERE s.id = r.same_as)",
}


def note(db: Database, task: int, kind: str, detail: dict[str, Any], now: float) -> None:
    """Note one event of a task. Part of a transaction."""
    db.execute(
        "INSERT INTO events (task, at, kind, detail) VALUES (?, ?, ?, ?)",
        (task, now, kind, as_json(detail)),
    )


def note_all(db: Database, tasks: str, kind: str, detail: dict[str, Any], now: float) -> None:
    """Note the same event of several tasks, whose ids are a JSON list. Part of a transaction."""
    db.execute(
        """INSERT INTO events (task, at, kind, detail)
           SELECT value, ?, ?, ? FROM json_each(?)""",
        (now, kind, as_json(detail), tasks),
    )


class Timeline(Part):
    """Reads the events of tasks, and records exports."""

    def last_event(self) -> int:
        """The id of the last event; every event so far has this id or a lower one."""
        return int(self._db.value("SELECT coalesce(max(id), 0) FROM events"))

    def task(self, task: int) -> dict[str, Any]:
        """What the ledger knows of a task itself, with the name of its job."""
        [row] = self._db.all(
            f"""SELECT {", ".join(_TASK_COLUMNS)}, (SELECT name FROM jobs WHERE id = job_id),
                    {NOTED_FILE.format("t")}
                FROM tasks t WHERE id = ?""",
            (task,),
        )
        return dict(zip((*_TASK_COLUMNS, "job", "noted_file"), row, strict=True))

    def path(self, task: int, limit: int) -> list[tuple[float, str, str, str]]:
        """The tasks whose pages led to a task of a crawl, from its start on: when each was found,
        its role, URL and id. Of a long way the end."""
        rows = self._db.all(
            """WITH RECURSIVE way(id, number) AS (
                   SELECT parent, 1 FROM tasks WHERE id = ?1
                   UNION ALL
                   SELECT t.parent, number + 1 FROM way JOIN tasks t ON t.id = way.id
                   WHERE t.parent NOT NULL AND number < ?2)
               SELECT imported_at, role, url, task_id FROM way JOIN tasks USING (id)
               ORDER BY number DESC""",
            (task, limit),
        )
        return [(at, role, url, task_id) for at, role, url, task_id in rows]

    def links(self, task: int) -> list[tuple[str, str | None, int, int]]:
        """The other rows of input that mean a task: job, file, line, and item on that line."""
        return self._db.all(
            f"""SELECT name, ifnull({NOTED_FILE.format("l")}, source_file), source_line, source_item
                FROM job_links l JOIN jobs ON jobs.id = l.job_id
                WHERE task = ? ORDER BY 1, file_number, source_line, source_item""",
            (task,),
        )

    def events(self, task: int) -> list[tuple[float, str, str]]:
        """The events of a task in their order: time, kind and detail as JSON."""
        return self._db.all(
            "SELECT at, kind, detail FROM events WHERE task = ? ORDER BY id", (task,)
        )

    def tasks_ahead(self, task: int) -> int:
        """How many due tasks go before a due task."""
        return int(
            self._db.value(
                """SELECT count(*) FROM tasks o JOIN tasks t ON t.id = ?
                   WHERE o.status = 'pending' AND o.not_before = 0
                   AND (o.queue = 'urgent' OR t.queue = 'default')
                   AND (o.queue <> t.queue
                        OR (o.priority, o.deadline, o.id + o.failures * 1000)
                           < (t.priority, t.deadline, t.id + t.failures * 1000))""",
                (task,),
            )
        )

    def result(self, task: int) -> dict[str, Any] | None:
        """The facts about a task's result and its delivery; None where there is no result."""
        row = self._db.one(
            f"""SELECT {", ".join(_RESULT_COLUMNS.values())} FROM results r
                JOIN outbox o ON o.task = r.task JOIN tasks t ON t.id = r.task WHERE r.task = ?""",
            (task,),
        )
        return dict(zip(_RESULT_COLUMNS, row, strict=True)) if row else None

    def exports(self, task: int, result: dict[str, Any]) -> list[tuple[float, str, str, int, bool]]:
        """The exports that a task's result was in: time, file, format, number of results, and
        whether its record was replaced since."""
        return self._db.all(
            """SELECT at, file, format, results, EXISTS (SELECT 1 FROM events
                   WHERE task = ?4 AND kind = 'replayed' AND id > horizon) FROM exports
               WHERE horizon >= ?1 AND (since IS NULL OR since <= ?2)
               AND (job_id IS NULL OR job_id = ?3 OR EXISTS (
                   SELECT 1 FROM job_links l WHERE l.task = ?4 AND l.job_id = exports.job_id))
               AND (roles IS NULL OR (SELECT role FROM tasks WHERE id = ?4) IN (
                   SELECT value FROM json_each(roles)))
               AND (site IS NULL OR site = (SELECT site FROM results WHERE task = ?4))
               ORDER BY at""",
            (result["event"] or 0, result["scraped_at"], result["job_id"], task),
        )

    def report(self, task: int) -> tuple[str, float | None, int | None, str | None] | None:
        """The report of a task's end to a Gateway: state, time, refusal's code and words."""
        row = self._db.one(
            "SELECT state, synced_at, code, problem FROM reports WHERE task = ?", (task,)
        )
        return (row[0], row[1], row[2], row[3]) if row else None

    def by_domain(self, job: Job | None, since: float | None) -> Iterator[tuple[str, str, str]]:
        """Domain, kind and detail of every event of a job, or of all tasks, some at a time."""
        last = 0
        rows: list[tuple[Any, ...]] = [()] * MAX_EVENTS_PER_READ
        while len(rows) == MAX_EVENTS_PER_READ:
            rows = self._db.all(
                """SELECT e.id, t.domain, e.kind, e.detail FROM events e
                   JOIN tasks t ON t.id = e.task
                   WHERE e.id > ?1 AND (?2 IS NULL OR e.at >= ?2) AND (?3 IS NULL OR t.job_id = ?3)
                   ORDER BY e.id LIMIT ?4""",
                (last, since, job and job.id, MAX_EVENTS_PER_READ),
            )
            for _, domain, kind, detail in rows:
                yield domain, kind, detail
            if rows:
                last = rows[-1][0]

    def note_export(
        self,
        file: str,
        form: str,
        job: Job | None,
        since: float | None,
        results: int,
        horizon: int,
        roles: Sequence[str] = (),
        site: str | None = None,
    ) -> None:
        """Note that results were handed over, except in a store that can only be read.

        `horizon` is the last event before the export.
        """
        if not self._store.can_write:
            return
        storable = file.encode("utf-8", "replace").decode()
        with writing(self._durable):
            self._durable.execute(
                """INSERT INTO exports (at, file, format, job_id, since, results, horizon, roles,
                       site) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)""",
                (
                    self._store.now(),
                    storable,
                    form,
                    job and job.id,
                    since,
                    results,
                    horizon,
                    as_json(list(roles)) if roles else None,
                    site,
                ),
            )
