"""Crawls: starts become tasks, and so do the links of a page, in the transaction that ends it."""

import os
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from crawler.db import browser_pages, timeline
from crawler.db.connection import Database, writing
from crawler.db.store import Part, as_json, row_crc32
from crawler.models import (
    BROWSER,
    FILE,
    GET,
    HTTP,
    LINKS,
    NO_DEADLINE,
    CrawlOptions,
    CrawlProgress,
    CrawlReport,
    Job,
    JobOptions,
    LeftOut,
    Link,
    Outcome,
    Role,
    TaskCounts,
    encoded_input,
)

_INSERT = """INSERT OR IGNORE INTO tasks (task_id, job_id, url, url_key, domain, parcel_id, queue,
        priority, deadline, input, source, loopback, imported_at, role, depth, hops, parent,
        method, body, modified_at, list_crc32, needs)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'crawl', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
REDIRECTED = "redirected"
"""Why a task ends that redirects to another page of its crawl."""
MAX_SITEMAPS = 10_000
"""Sitemaps of a crawl; they do not count against its limit of pages."""
MAX_FILES = 1_000_000
"""Files of a crawl that records name; they do not count against its limit of pages."""
READ_AGAIN = "read_again"
"""Why a task ends that has read the links of a stored page again."""
MAX_PAGES_PER_COMMIT = 1_000
"""Pages that one transaction marks to be read again."""
_SITEMAPS, _REDIRECTS, _READS = (
    ("role", Role.SITEMAP.value), ("role", REDIRECTED), ("role", READ_AGAIN),
)  # fmt: skip
_FILES = ("role", "named_file")
"""Counts of tasks that are no pages, and do not count against the limit."""
PAGES_LEFT = f"""max(0, j.options ->> '$.crawl.limit' - j.size + ifnull((
    SELECT sum(iif(name = '{REDIRECTED}', min(count, j.options ->> '$.crawl.limit'), count))
    FROM crawl_counts WHERE job_id = j.id AND kind = 'role' AND name IN (
        '{_SITEMAPS[1]}', '{REDIRECTED}', '{READ_AGAIN}', '{_FILES[1]}')), 0))"""
"""How many pages crawl j may still find within its limit; NULL without one."""
_REACHED = "reached"
"""Kind of counts: the limits that have left out links, by guard and site."""
FIND = """SELECT {} FROM tasks WHERE job_id = ? AND url_key = ? AND method = ? AND body = ?
    AND role NOT NULL AND source <> 'bundle'"""
"""Columns of the task of a crawl for a request; the last two conditions are those of its index."""
_IS_KNOWN = FIND.format("1")
_READ_AGAIN = f"""INSERT INTO tasks (task_id, job_id, url, url_key, domain, parcel_id, queue,
        priority, deadline, input, source, loopback, imported_at, role, depth, parent, method,
        body, list_crc32)
    SELECT lower(hex(randomblob(16))), job_id, url, url_key, domain, parcel_id,
        (SELECT j.queue FROM jobs j WHERE j.id = job_id), priority, deadline, input, 'crawl',
        loopback, ?2, role, depth, id, '{LINKS}', CAST(id AS TEXT), list_crc32
    FROM tasks WHERE id IN (SELECT value FROM json_each(?1))
    ON CONFLICT (job_id, url_key, method, body) WHERE role NOT NULL AND source <> 'bundle'
    DO UPDATE SET status = iif(status = 'processing', status, 'pending'), depth = excluded.depth,
        message_id = iif(status = 'processing', message_id, NULL), not_before = 0,
        error_type = NULL, error_message = NULL, completed_at = NULL
    RETURNING id"""
_IS_IT = """job_id = ?1 AND url_key = ?2 AND method = ?3 AND body = ?4
    AND role NOT NULL AND source <> 'bundle'"""
"""The task of a crawl for a request."""

_IS_BAD = """status IN ('failed', 'expired') OR (status = 'skipped' AND error_type NOT IN
    ('redirected', 'sitemap', 'no_sitemap', 'no_robots_txt', 'read_again') AND (role = 'start'
        OR error_type NOT IN ('out_of_scope', 'robots', 'login_page', 'login_wall')))"""
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
        with writing(self._durable):
            return add_starts(self._durable, job, starts, now, source_file, file_number)

    def bring_back(self, job: Job, site_limits: Mapping[str, int | None], now: float) -> int:
        """Have the links found again that limits left out which are higher now; returns how many
        pages are read again for that.

        If it is broken off, the next call does the rest.
        """
        db, crawl = self._durable, job.options.crawl
        reached = db.all(
            "SELECT name, count FROM crawl_counts WHERE job_id = ? AND kind = ?", (job.id, _REACHED)
        )
        limits = {"depth": crawl and crawl.depth, "limit": (crawl and crawl.limit) or None}
        limits |= {f"site_limit {name}": limit for name, limit in site_limits.items()}
        now_at = [(limits.get(name), count) for name, count in reached]
        if not any(limit is None or limit > count for limit, count in now_at):
            return 0
        pages = last = 0
        while ids := db.column(
            f"""SELECT id FROM tasks WHERE job_id = ? AND status = 'completed' AND id > ?
                AND role IN ('start', 'index', 'listing') ORDER BY id
                LIMIT {MAX_PAGES_PER_COMMIT}""",
            (job.id, last),
        ):
            with writing(db):
                added = _read_again(db, ids, now)
                _grow(db, job.id, added)
                _count(db, job.id, *_READS, added)
            pages, last = pages + len(ids), ids[-1]
        with writing(db):
            # They are not stored, and are fetched again.
            db.execute(
                """UPDATE tasks SET status = 'pending', not_before = 0, message_id = NULL,
                       error_type = NULL, error_message = NULL, completed_at = NULL
                   WHERE job_id = ? AND status = 'skipped'
                       AND error_type IN ('sitemap', 'no_robots_txt')""",
                (job.id,),
            )
            # What is still left out is counted when the pages are read.
            db.execute(
                """DELETE FROM crawl_counts WHERE job_id = ?1 AND (kind = ?2 OR (kind = 'guard'
                   AND name IN ('depth', 'limit', 'site_limit')))""",
                (job.id, _REACHED),
            )
        return pages

    def progress(self, job: Job, books: TaskCounts) -> CrawlProgress | None:
        """How far a crawl is, by the counts of its tasks; None for a job that follows no links."""
        if not job.options.crawl:
            return None
        guards = {each.guard: each.links for each in _left_out(self._db, job)}
        return CrawlProgress(
            found=books.accepted, fetched=books.completed, failed=books.failed, guards=guards
        )

    def has_starts(self, job: Job, starts: Iterable[Start]) -> bool:
        """Whether a crawl has all these starts."""
        return all(_is_known(self._db, job.id, start.link) for start in starts)

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


def needs_of(link: Link, needs: str) -> str:
    """What a link needs, of what its page would: only pages need a browser."""
    if link.method != GET or link.role is Role.SITEMAP:
        return HTTP
    return needs


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


def add_starts(
    db: Database,
    job: Job,
    starts: Iterable[Start],
    now: float,
    source_file: str | None = None,
    file_number: int = 0,
) -> int:
    """Insert the starts that are not there yet; returns how many. Part of a transaction."""
    added = linked = 0
    deadline = job.deadline or NO_DEADLINE
    for start in starts:
        row_input = encoded_input(start.row)
        parcel_id = str(start.row.get("parcel_id") or "")
        given = (parcel_id, job.queue, start.priority, deadline, row_input)
        needs = needs_of(start.link, job.options.needs)
        is_new = _insert(db, secrets.token_hex(16), job.id, start.link, None, given, needs, now)
        added += is_new
        if is_new and start.link.role is Role.SITEMAP:
            _count(db, job.id, *_SITEMAPS, 1)
        elif is_new and start.link.site:
            _count(db, job.id, "site", start.link.site[0], 1)
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


# Reports


def report(db: Database, job: Job) -> CrawlReport | None:
    """What a crawl found; None for a job that follows no links. Part of a transaction."""
    if not job.options.crawl:
        return None
    roles: dict[str, dict[str, int]] = {}
    for role, status, count in db.all(
        """SELECT role, status, count(*) FROM tasks WHERE job_id = ? AND role NOT NULL
           AND method <> ? GROUP BY 1, 2""",
        (job.id, LINKS),
    ):
        roles.setdefault(role, {})[status] = count
    [(pages, bad, files, files_collected)] = db.all(
        f"""SELECT count(*) FILTER (WHERE role <> 'sitemap' AND method NOT IN ('{LINKS}', '{FILE}')
                       AND NOT (status = 'skipped' AND error_type = 'redirected')),
                   count(*) FILTER (WHERE {_IS_BAD}),
                   count(*) FILTER (WHERE method = '{FILE}'),
                   count(*) FILTER (WHERE method = '{FILE}' AND status = 'completed')
            FROM tasks WHERE job_id = ? AND role NOT NULL""",
        (job.id,),
    )
    return CrawlReport(
        roles=roles,
        pages=pages,
        bad=bad,
        left_out=_left_out(db, job),
        files=files,
        files_collected=files_collected,
    )


def _left_out(db: Database, job: Job) -> list[LeftOut]:
    """The links that guards left out, by guard."""
    rows = db.all(
        """SELECT name, count, example FROM crawl_counts WHERE job_id = ? AND kind = 'guard'
           ORDER BY count DESC, name""",
        (job.id,),
    )
    return [LeftOut(*row) for row in rows]


# Functions that are part of a transaction


class LinkInserts:
    """Inserts the links of the pages of one transaction.

    It reads the size and the limits of a job once, because nobody else can write meanwhile, and
    `finish` writes what has become of them.
    """

    def __init__(self, db: Database, now: float) -> None:
        self._db, self._now = db, now
        self._seen: set[tuple[int, bytes, str, str]] = set()
        """Job, key, method and body of the links that are surely in the ledger."""
        self._jobs: dict[int, _Limits] = {}
        self._learned: browser_pages.Learned | None = None

    def insert(self, outcome: Outcome) -> None:
        """Insert the links of a page that are not there yet, and count what guards left out."""
        db, task, seen = self._db, outcome.task, self._seen
        if task.job_id is None or outcome.crawl is None:
            return
        left_out = {each.guard: each for each in outcome.left_out}
        limits = self._limits(task.job_id, outcome.crawl)
        [(*given, depth)] = db.all(
            "SELECT parcel_id, queue, priority, deadline, input, depth FROM tasks WHERE id = ?",
            (task.id,),
        )
        parent = task.id
        if task.method == LINKS:
            parent = int(task.body)
        elif outcome.error_type == REDIRECTED:
            limits.added[_REDIRECTS] += 1
        says_more = outcome.error_type == REDIRECTED or outcome.crawl.depth is not None
        # A shorter way may have been found since the task was claimed.
        found = [*outcome.links, *(file.link for file in outcome.files)]
        ids = _task_ids(len(found))
        for task_id, link in zip(ids, _nearer(found, task.depth - depth), strict=True):
            key = (task.job_id, link.address.key, link.method, link.body)
            if key in seen:
                if says_more or link.modified_at is not None:
                    self._find_again(outcome, link, key)
                continue
            guard = limits.reached(link)
            if not guard:
                seen.add(key)
                # A Gateway stores one result for a parcel: a file is known by its URL.
                its = ["", *given[1:]] if link.method == FILE else given
                needs = self._needs(outcome, link)
                if _insert(db, task_id, task.job_id, link, parent, its, needs, self._now):
                    limits.count(link)
                else:
                    self._find_again(outcome, link, key)
            elif not db.one(_IS_KNOWN, key):
                before = left_out.get(guard) or LeftOut(guard, 0, link.address.url)
                left_out[guard] = before.and_more()
                limits.note_reached(guard, link)
        for each in left_out.values():
            _count(db, task.job_id, "guard", each.guard, each.links, each.example)

    def _needs(self, outcome: Outcome, link: Link) -> str:
        """What a link surely needs, by the page that it was on."""
        needs = HTTP
        if outcome.fetcher == BROWSER and link.address.domain == outcome.task.domain:
            needs = BROWSER
        elif outcome.fetcher == "auto":
            if self._learned is None:
                self._learned = browser_pages.learned(self._db)
            domain, url, version = link.address.domain, link.address.url, outcome.site[1]
            if browser_pages.needs_browser(self._learned, domain, url, version):
                needs = BROWSER
        return needs_of(link, needs)

    def finish(self) -> None:
        """Write the sizes and counts of the jobs."""
        for limits in self._jobs.values():
            limits.write()

    def _limits(self, job_id: int, crawl: CrawlOptions) -> "_Limits":
        limits = self._jobs.get(job_id)
        if limits is None:
            query = "SELECT size, options FROM jobs WHERE id = ?"
            [(size, options)] = self._db.all(query, (job_id,))
            # As they are now: if a limit was raised meanwhile, nobody would bring the links back.
            crawl = _crawl_options(options) or crawl
            limits = self._jobs[job_id] = _Limits(self._db, job_id, crawl, size)
        return limits

    def _find_again(self, outcome: Outcome, link: Link, key: tuple[Any, ...]) -> None:
        """Note what a link says of a page that is in the ledger already."""
        if link.method == FILE:  # it leads nowhere
            return
        db, task = self._db, outcome.task.id
        if outcome.error_type == REDIRECTED and _leads_back(db, task, key):
            _end_loop(db, task, self._now)
            return
        if link.modified_at is not None:
            _note_modified(db, key, link.modified_at)
        if outcome.crawl and outcome.crawl.depth is not None:
            to_read = _note_depth(db, key, link.depth)
            if to_read:
                added = _read_again(db, to_read, self._now)
                self._jobs[key[0]].count_reads(added)


def _task_ids(count: int) -> list[str]:
    """Return random ids, by one call of the system for all."""
    digits = os.urandom(16 * count).hex()
    return [digits[begin : begin + 32] for begin in range(0, len(digits), 32)]


def _nearer(links: Sequence[Link], by: int) -> Sequence[Link]:
    if not by:
        return links
    return [msgspec.structs.replace(link, depth=link.depth - by) for link in links]


@lru_cache(maxsize=64)
def _crawl_options(text: str | None) -> CrawlOptions | None:
    """The crawl in the options of a job; None where they cannot be read."""
    try:
        return msgspec.json.decode(text or "{}", type=JobOptions).crawl
    except msgspec.DecodeError:
        return None


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


def _note_depth(db: Database, key: tuple[Any, ...], depth: int) -> list[int]:
    """Note a shorter way to a page; returns the page if its links were found already. They are to
    be read again: the way to them is shorter, too."""
    shorter = db.all(
        f"""UPDATE tasks SET depth = ?5 WHERE {_IS_IT} AND depth > ?5
            RETURNING id, status, error_type""",
        (*key, depth),
    )
    return [id_ for id_, status, reason in shorter if status == "completed" or reason == REDIRECTED]


def _read_again(db: Database, ids: Sequence[int], now: float) -> int:
    """Have the links of pages read again, each by a task of its own; returns how many tasks were
    added."""
    newest = db.value("SELECT max(id) FROM tasks")
    tasks = db.column(_READ_AGAIN, (as_json(ids), now))
    return sum(id_ > newest for id_ in tasks)


def _grow(db: Database, job_id: int, by: int) -> None:
    db.execute("UPDATE jobs SET size = size + ? WHERE id = ?", (by, job_id))


def _note_modified(db: Database, key: tuple[Any, ...], modified_at: float) -> None:
    """Note what a sitemap says of a page that a link has found before, if it still waits."""
    db.execute(
        f"UPDATE tasks SET modified_at = ?5 WHERE {_IS_IT} AND status = 'pending'",
        (*key, modified_at),
    )


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
        self._size, self._new = size, 0
        """Tasks of the job before this transaction, and those that it adds."""
        self.added: Counter[tuple[str, str]] = Counter()
        """Of these: tasks that are no pages, and pages of sites with a limit."""
        self._before: dict[tuple[str, str], int] = {}
        self._noted: set[str] = set()

    def reached(self, link: Link) -> str:
        """The guard that stands against one more link."""
        crawl = self._crawl
        if link.role is Role.SITEMAP:
            return "sitemaps" if self._counted(_SITEMAPS) >= MAX_SITEMAPS else ""
        if link.method == FILE:
            return "files_limit" if self._counted(_FILES) >= MAX_FILES else ""
        if crawl.depth is not None and link.depth > crawl.depth:
            return "depth"
        if crawl.limit and self._pages(crawl.limit) >= crawl.limit:
            return "limit"
        if link.site and self._counted(("site", link.site[0])) >= link.site[1]:
            return "site_limit"
        return ""

    def note_reached(self, guard: str, link: Link) -> None:
        """Note at which limit a guard has left out a link, to know later whether it is higher."""
        crawl, name, limit = self._crawl, guard, 0
        if guard == "site_limit" and link.site:
            name, limit = f"{guard} {link.site[0]}", link.site[1]
        elif guard in ("depth", "limit"):
            limit = getattr(crawl, guard)
        else:
            return
        if name not in self._noted:
            self._noted.add(name)
            self._db.execute(
                """INSERT OR REPLACE INTO crawl_counts (job_id, kind, name, count)
                   VALUES (?, ?, ?, ?)""",
                (self._job_id, _REACHED, name, limit),
            )

    def count(self, link: Link) -> None:
        """Count a task that was added."""
        self._new += 1
        if link.role is Role.SITEMAP:
            self.added[_SITEMAPS] += 1
        elif link.method == FILE:
            self.added[_FILES] += 1
        elif link.site:
            self.added["site", link.site[0]] += 1

    def count_reads(self, added: int) -> None:
        """Count tasks that read the links of a page again."""
        self._new += added
        self.added[_READS] += added

    def write(self) -> None:
        """Add what this transaction has added."""
        if self._new:
            _grow(self._db, self._job_id, self._new)
        for (kind, name), count in self.added.items():
            _count(self._db, self._job_id, kind, name, count)

    def _pages(self, limit: int) -> int:
        """The tasks that count against the limit."""
        # As many redirects again, and no more: a site may answer every link with one.
        no_pages = self._counted(_SITEMAPS) + min(self._counted(_REDIRECTS), limit)
        return self._size + self._new - no_pages - self._counted(_READS) - self._counted(_FILES)

    def _counted(self, what: tuple[str, str]) -> int:
        if what not in self._before:
            self._before[what] = self._db.value(
                "SELECT count FROM crawl_counts WHERE job_id = ? AND kind = ? AND name = ?",
                (self._job_id, *what),
                0,
            )
        return self._before[what] + self.added[what]


def _insert(
    db: Database,
    task_id: str,
    job_id: int,
    link: Link,
    parent: int | None,
    given: Sequence[Any],
    needs: str,
    now: float,
) -> bool:
    """Insert a task with parcel, queue, priority, deadline and input as given; whether it is
    new."""
    db.execute(
        _INSERT,
        (task_id, job_id, *link.address, *given, link.loopback, now,
         link.role, link.depth, link.hops, parent, link.method, link.body, link.modified_at,
         link.list_crc32, needs),
    )  # fmt: skip
    return bool(db.changes())
