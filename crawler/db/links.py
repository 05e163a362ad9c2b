"""Crawls: starts become tasks, and so do the links of a page, in the transaction that ends it."""

import secrets
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from crawler.db import timeline
from crawler.db.connection import Database, writing
from crawler.db.store import Part, row_crc32
from crawler.models import (
    NO_DEADLINE,
    CrawlOptions,
    CrawlProgress,
    CrawlReport,
    Job,
    LeftOut,
    Link,
    Outcome,
    Role,
    TaskCounts,
    encoded_input,
)

_INSERT = """INSERT OR IGNORE INTO tasks (task_id, job_id, url, url_key, domain, parcel_id, queue,
        priority, deadline, input, source, loopback, imported_at, role, depth, hops, parent,
        method, body, modified_at, list_crc32)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'crawl', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
REDIRECTED = "redirected"
"""Why a task ends that redirects to another page of its crawl."""
MAX_SITEMAPS = 10_000
"""Sitemaps of a crawl; they do not count against its limit of pages."""
_SITEMAPS, _REDIRECTS = ("role", Role.SITEMAP.value), ("role", REDIRECTED)
"""Counts of tasks that are no pages, and do not count against the limit."""
FIND = """SELECT {} FROM tasks WHERE job_id = ? AND url_key = ? AND method = ? AND body = ?
    AND role NOT NULL AND source <> 'bundle'"""
"""Columns of the task of a crawl for a request; the last two conditions are those of its index."""
_IS_KNOWN = FIND.format("1")
_WAITS = """job_id = ?1 AND url_key = ?2 AND method = ?3 AND body = ?4
    AND role NOT NULL AND source <> 'bundle' AND status = 'pending'"""
"""The task of a crawl for a request, as long as nobody has claimed it."""

_IS_BAD = """status IN ('failed', 'expired') OR (status = 'skipped' AND error_type NOT IN
    ('redirected', 'sitemap', 'no_sitemap') AND (role = 'start'
        OR error_type NOT IN ('out_of_scope', 'robots', 'login_page')))"""
"""Whether a task should have brought a page and did not. Any link may lead to where the crawl may
not go; a start may not."""


class Start(msgspec.Struct, frozen=True):
    """What a crawl begins with, and the row of a file that it was made of."""

    link: Link
    row: dict[str, Any] = {}
    line: int | None = None
    item: int = 1
    priority: int = 5


class Crawls(Part):
    """Begins crawls."""

    def add_starts(
        self,
        job: Job,
        starts: Iterable[Start],
        now: float,
        source_file: str | None = None,
        file_number: int = 0,
    ) -> int:
        """Insert the starts that are not there yet; returns how many."""
        db, added, linked = self._durable, 0, 0
        deadline = job.deadline or NO_DEADLINE
        with writing(db):
            for start in starts:
                row_input = encoded_input(start.row)
                parcel_id = str(start.row.get("parcel_id") or "")
                given = (parcel_id, job.queue, start.priority, deadline, row_input)
                is_new = _insert(db, job.id, start.link, None, given, now)
                added += is_new
                if is_new and start.link.role is Role.SITEMAP:
                    _count(db, job.id, *_SITEMAPS, 1)
                if start.line is None:
                    continue
                row = (file_number, start.line, start.item)
                checked = (row_input, row_crc32(*row, row_input))
                if is_new:
                    db.execute(
                        """UPDATE tasks SET file_number = ?, source_line = ?, source_item = ?,
                               row_crc32 = ?, source_file = ? WHERE id = ?""",
                        (*row, checked[1], source_file, db.last_insert_rowid()),
                    )
                else:
                    linked += _link_row(db, job.id, start.link, row, checked)
            db.execute(
                "UPDATE jobs SET size = size + ?, linked = linked + ? WHERE id = ?",
                (added, linked, job.id),
            )
        return added

    def progress(self, job: Job, books: TaskCounts) -> CrawlProgress | None:
        """How far a crawl is, by the counts of its tasks; None for a job that follows no links."""
        if not job.options.crawl:
            return None
        guards = {each.guard: each.links for each in _left_out(self._db, job)}
        return CrawlProgress(
            found=books.accepted, fetched=books.completed, failed=books.failed, guards=guards
        )

    def find_paused(self, key: str, name: str | None, starts: Iterable[Start]) -> int | None:
        """The crawl that a repair has paused because its options were lost, if it is the one with
        this key; it gets the key back if that was lost too."""
        db = self._durable
        with writing(db):
            for id_, its_key, its_name in db.all(
                """SELECT id, key, name FROM jobs WHERE source = 'crawl' AND hold = 'paused'
                   AND status <> 'done' AND options ->> '$.crawl' IS NULL"""
            ):
                if its_key == key:
                    return int(id_)
                links = (start.link for start in starts)
                if its_key.startswith("salvaged ") and (
                    its_name == name or any(_is_known(db, id_, link) for link in links)
                ):
                    db.execute("UPDATE OR IGNORE jobs SET key = ? WHERE id = ?", (key, id_))
                    return int(id_) if db.changes() else None
        return None


def _is_known(db: Database, job_id: int, link: Link) -> bool:
    return db.one(_IS_KNOWN, (job_id, link.address.key, link.method, link.body)) is not None


def _link_row(
    db: Database, job_id: int, link: Link, row: tuple[int, int, int], checked: tuple[Any, ...]
) -> bool:
    """Let a start count for one more row that means it; whether it did not yet."""
    [(id_, *its_row)] = db.all(
        FIND.format("id, file_number, source_line, source_item"),
        (job_id, link.address.key, link.method, link.body),
    )
    if tuple(its_row) == row:
        return False
    db.execute(
        """INSERT OR IGNORE INTO job_links (job_id, task, file_number, source_line, source_item,
               input, row_crc32) VALUES (?, ?, ?, ?, ?, ?, ?)""",
        (job_id, id_, *row, *checked),
    )
    return bool(db.changes())


# Reports


def report(db: Database, job: Job) -> CrawlReport | None:
    """What a crawl found; None for a job that follows no links. Part of a transaction."""
    if not job.options.crawl:
        return None
    roles: dict[str, dict[str, int]] = {}
    for role, status, count in db.all(
        """SELECT role, status, count(*) FROM tasks WHERE job_id = ? AND role NOT NULL
           GROUP BY 1, 2""",
        (job.id,),
    ):
        roles.setdefault(role, {})[status] = count
    [(pages, bad)] = db.all(
        f"""SELECT count(*) FILTER (WHERE role <> 'sitemap'
                       AND NOT (status = 'skipped' AND error_type = 'redirected')),
                   count(*) FILTER (WHERE {_IS_BAD})
            FROM tasks WHERE job_id = ? AND role NOT NULL""",
        (job.id,),
    )
    return CrawlReport(roles=roles, pages=pages, bad=bad, left_out=_left_out(db, job))


def _left_out(db: Database, job: Job) -> list[LeftOut]:
    """The links that guards left out, by guard."""
    rows = db.all(
        """SELECT name, count, example FROM crawl_counts WHERE job_id = ? AND kind = 'guard'
           ORDER BY count DESC, name""",
        (job.id,),
    )
    return [LeftOut(*row) for row in rows]


# Functions that are part of a transaction


Inserted = set[tuple[int, bytes, str, str]]
"""Job, key, method and body of the links that one transaction has seen in the ledger."""


def insert(db: Database, outcome: Outcome, seen: Inserted, now: float) -> None:
    """Insert the links of a page that are not there yet, and count what guards left out."""
    task, crawl = outcome.task, outcome.crawl
    if task.job_id is None or crawl is None:
        return
    left_out = {each.guard: each for each in outcome.left_out}
    job_size = db.value("SELECT size FROM jobs WHERE id = ?", (task.job_id,))
    limits = _Limits(db, task.job_id, crawl, job_size)
    given = db.one(
        "SELECT parcel_id, queue, priority, deadline, input FROM tasks WHERE id = ?", (task.id,)
    )
    assert given is not None, task.task_id
    if outcome.error_type == REDIRECTED:
        limits.added[_REDIRECTS] += 1
    for link in outcome.links:
        key = (task.job_id, link.address.key, link.method, link.body)
        if key in seen:
            _find_again(db, outcome, link, key, now)
            continue
        guard = limits.reached(link)
        if not guard:
            seen.add(key)
            if _insert(db, task.job_id, link, task.id, given, now):
                limits.count(link)
            else:
                _find_again(db, outcome, link, key, now)
        elif not db.one(_IS_KNOWN, key):
            before = left_out.get(guard) or LeftOut(guard, 0, link.address.url)
            left_out[guard] = before.and_more()
    if limits.size > job_size:
        added = limits.size - job_size
        db.execute("UPDATE jobs SET size = size + ? WHERE id = ?", (added, task.job_id))
    for each in left_out.values():
        _count(db, task.job_id, "guard", each.guard, each.links, each.example)
    for (kind, name), count in limits.added.items():
        _count(db, task.job_id, kind, name, count)


def _find_again(
    db: Database, outcome: Outcome, link: Link, key: tuple[Any, ...], now: float
) -> None:
    """Note what a link says of a page that is in the ledger already."""
    task = outcome.task.id
    if outcome.error_type == REDIRECTED and _leads_back(db, task, key):
        _end_loop(db, task, now)
    elif link.modified_at is not None:
        _note_modified(db, key, link.modified_at)
    elif outcome.crawl and outcome.crawl.depth is not None:
        _note_depth(db, key, link.depth)


def _leads_back(db: Database, task: int, key: tuple[Any, ...]) -> bool:
    """Whether a redirect leads to a page that has led here by redirects only."""
    [target] = db.column(FIND.format("id"), key)
    before = db.column(
        """WITH RECURSIVE way(id) AS (
               SELECT ?1
               UNION
               SELECT parent FROM tasks JOIN way USING (id) WHERE hops > 0 AND parent NOT NULL)
           SELECT id FROM way""",
        (task,),
    )
    return target in before


def _end_loop(db: Database, task: int, now: float) -> None:
    """Fail a task whose redirects go in a circle: no page would ever come of them."""
    told = {"error": "too_many_redirects", "message": "its redirects lead back to where they began"}
    db.execute(
        """UPDATE tasks SET status = 'failed', error_type = ?, error_message = ? WHERE id = ?""",
        (*told.values(), task),
    )
    timeline.note(db, task, "failed", told, now)


def _note_depth(db: Database, key: tuple[Any, ...], depth: int) -> None:
    """Note a shorter way to a page that still waits."""
    db.execute(f"UPDATE tasks SET depth = ?5 WHERE {_WAITS} AND depth > ?5", (*key, depth))


def _note_modified(db: Database, key: tuple[Any, ...], modified_at: float) -> None:
    """Note what a sitemap says of a page that a link has found before, if it still waits."""
    db.execute(f"UPDATE tasks SET modified_at = ?5 WHERE {_WAITS}", (*key, modified_at))


def _count(
    db: Database, job_id: int, kind: str, name: str, count: int, example: str | None = None
) -> None:
    db.execute(
        """INSERT INTO crawl_counts (job_id, kind, name, count, example) VALUES (?, ?, ?, ?, ?)
           ON CONFLICT DO UPDATE SET count = count + excluded.count""",
        (job_id, kind, name, count, example),
    )


class _Limits:
    """The limits of a crawl, while links are inserted."""

    def __init__(self, db: Database, job_id: int, crawl: CrawlOptions, size: int) -> None:
        self._db, self._job_id, self._crawl = db, job_id, crawl
        self.size = size
        """Tasks of the job."""
        self.added: Counter[tuple[str, str]] = Counter()
        """Sitemaps, redirects, and pages of sites with a limit, that this page adds."""
        self._before: dict[tuple[str, str], int] = {}

    def reached(self, link: Link) -> str:
        """The guard that stands against one more link."""
        crawl = self._crawl
        if link.role is Role.SITEMAP:
            return "sitemaps" if self._counted(_SITEMAPS) >= MAX_SITEMAPS else ""
        if crawl.depth is not None and link.depth > crawl.depth:
            return "depth"
        # As many redirects again, and no more: a site may answer every link with one.
        no_pages = self._counted(_SITEMAPS) + min(self._counted(_REDIRECTS), crawl.limit)
        if crawl.limit and self.size - no_pages >= crawl.limit:
            return "limit"
        if link.site and self._counted(("site", link.site[0])) >= link.site[1]:
            return "site_limit"
        return ""

    def count(self, link: Link) -> None:
        self.size += 1
        if link.role is Role.SITEMAP:
            self.added[_SITEMAPS] += 1
        elif link.site:
            self.added["site", link.site[0]] += 1

    def _counted(self, what: tuple[str, str]) -> int:
        if what not in self._before:
            self._before[what] = self._db.value(
                "SELECT count FROM crawl_counts WHERE job_id = ? AND kind = ? AND name = ?",
                (self._job_id, *what),
                0,
            )
        return self._before[what] + self.added[what]


def _insert(
    db: Database, job_id: int, link: Link, parent: int | None, given: tuple[Any, ...], now: float
) -> bool:
    """Insert a task with parcel, queue, priority, deadline and input as given; whether it is
    new."""
    db.execute(
        _INSERT,
        (secrets.token_hex(16), job_id, *link.address, *given, link.loopback, now, link.role,
         link.depth, link.hops, parent, link.method, link.body, link.modified_at,
         link.list_crc32),
    )  # fmt: skip
    return bool(db.changes())
