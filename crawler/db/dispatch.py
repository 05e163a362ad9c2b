"""Dispatch: which tasks come next, in which message they are, and who holds them."""

import random
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import msgspec

from crawler.db import siblings, timeline
from crawler.db.connection import Database, writing
from crawler.db.owners import OwnerState
from crawler.db.results import IS_STORED
from crawler.db.store import (
    DUE,
    IN_SESSION,
    LISTED,
    SUSPECT_DEATHS,
    TURN,
    Connections,
    Part,
    as_json,
)
from crawler.db.tasks import put_aside_held
from crawler.models import (
    BROWSER,
    HTTP,
    LINKS,
    NEEDS,
    QUEUES,
    Line,
    ListingState,
    PreviousPage,
    Role,
    Task,
)

MAX_TASKS_PER_MESSAGE = 100
BROWSER_WINDOW = 200
"""Tasks in messages that need a browser."""
MAX_DOMAINS_PER_READ = 64
MAX_PROBE_GROUPS = 64
"""Groups of priority and deadline that are searched for a page to probe a domain with."""
POISON_STRIKES = 2
ALONE_DEATHS = 5
"""Further deaths, with the page alone in flight and no trace left, after which it is set aside.
They may be kills from outside, so it takes more of them than deaths with a trace."""
_IDS = f"id {LISTED}"
_SUSPECTED = f"status = 'pending' AND not_before = 0 AND deaths >= {SUSPECT_DEATHS}"
_AFTER_EVERY_DOMAIN = "\U0010ffff"
_CLAIMED = """id, task_id, url, domain, queue, priority, fence, attempts, failures, loopback,
    job_id, (SELECT size FROM jobs WHERE jobs.id = tasks.job_id), platform, error_type, needs, role,
    depth, hops, method, body, modified_at, list_crc32"""
_AT = f"FROM tasks WHERE {DUE} AND queue = ?1 AND needs = ?2 AND priority = ?3 AND deadline = ?4"
_DUE_DOMAINS = f"""
    WITH RECURSIVE found(domain) AS (
        SELECT min(domain) {_AT} AND domain > ?5
        UNION ALL
        SELECT (SELECT min(domain) {_AT} AND domain > found.domain)
        FROM found WHERE domain IS NOT NULL
        LIMIT {MAX_DOMAINS_PER_READ}
    )
    SELECT domain, (SELECT job_id {_AT} AND domain = found.domain ORDER BY {TURN} LIMIT 1)
    FROM found WHERE domain <= ?6"""


class Due(NamedTuple):
    """A place in the order of due tasks: one domain within one line, priority and deadline."""

    line: Line
    group: tuple[int, float]
    domain: str
    job_id: int | None
    """The job of its first task."""


class Place(NamedTuple):
    """How many of the tasks that are due at a place may be claimed, while their jobs fit."""

    due: Due
    most: int
    fits: Callable[[int | None], bool]
    probe_in: Sequence[Line] = ()
    """The lines to look in for a page that shows whether the domain answers at all."""


def lines_of(queues: Sequence[str], renders: bool = False) -> list[Line]:
    """The lines behind queues of messages, the most urgent first; that of browsers has tasks of all
    queues. `renders`: a process with a queue of its own takes all of it."""
    lines = []
    for name in queues:
        if name == BROWSER:
            lines += [Line(queue, BROWSER) for queue in QUEUES]
        else:
            lines.append(Line(name))
            lines += [Line(name, BROWSER)] * (renders and name not in QUEUES)
    return sorted(lines, key=lambda line: line.queue != QUEUES[0])


def message_queue(line: Line) -> str:
    """The queue of messages for the tasks of a line."""
    return BROWSER if line.needs == BROWSER else line.queue


class Suspect(NamedTuple):
    """A task that was in flight at several deaths of workers with nobody to blame."""

    id: int
    domain: str
    job_id: int | None
    leased_at: float


class Chunk(msgspec.Struct, frozen=True):
    """The slice of work that one message carries."""

    message_id: str
    queue: str
    task_ids: tuple[str, ...]


class Dispatch(Part):
    """Publishes tasks in messages, leases them to workers, and takes them back.

    `has_page` says whether the page of a result is stored, by its segment and its end there.
    """

    def __init__(self, store: Connections, has_page: Callable[[str | None, int], bool]) -> None:
        super().__init__(store)
        self._has_page = has_page

    # Claims

    def claim(
        self,
        owner: str,
        places: Iterable[Place],
        limit: int,
        now: float,
        chance: Callable[[], float] = random.random,
    ) -> tuple[list[Task], bool]:
        """Lease up to `limit` tasks from these places, in order; says too if more are due there.

        `chance` chooses the page that a closed domain is probed with.
        """
        ids: list[int] = []
        more = False
        db = self._db
        with writing(db):
            for due, most, fits, probe_in in places:
                if len(ids) >= limit:
                    more = True
                    break
                count = min(most, limit - len(ids))
                probe = self._probe_rows(due.domain, probe_in, chance())
                rows = probe + [row for row in self._due_rows(due, count + 1) if row not in probe]
                fitting = _fitting(rows, fits)
                more |= len(rows) > count or len(fitting) < len(rows)
                ids += put_aside_held(db, fitting, now)[:count]
            return self._lease(owner, siblings.hold(db, ids, now), now), more

    def claim_one(self, owner: str, id_: int, now: float) -> Task | None:
        """Lease one task if it is pending, due or not."""
        with writing(self._db):
            self._db.execute(
                "UPDATE tasks SET not_before = 0 WHERE id = ? AND status = 'pending'", (id_,)
            )
            leased = self._lease(owner, [id_], now)
        return leased[0] if leased else None

    def _lease(self, owner: str, ids: Sequence[int], now: float) -> list[Task]:
        if not ids:
            return []
        rows = self._db.all(
            f"""UPDATE tasks
                SET status = 'processing', owner = ?, leased_at = ?, fence = fence + 1
                WHERE {_IDS} AND status = 'pending' RETURNING {_CLAIMED}""",
            (owner, now, as_json(ids)),
        )
        known = self._known_pages([row[0] for row in rows])
        leased = {row[0]: _task(row, known.get(row[0])) for row in rows}
        return [leased[id_] for id_ in ids if id_ in leased]

    def _known_pages(self, ids: Sequence[int]) -> dict[int, PreviousPage]:
        """What the last pages of these tasks' URLs said about themselves, if these are stored.

        The answer 304 brings no page: of one that was lost or pruned it would leave a result
        without any. A session of a program gets no page that another job was given.
        """
        rows = self._db.all(
            f"""SELECT t.id, r.raw_segment, r.raw_offset + r.raw_length,
                   v.etag, v.last_modified, r.site_version, r.parser_version, r.task, r.final_url,
                   r.scraped_at, r.raw_segment NOT NULL
               FROM json_each(?1) JOIN tasks t ON t.id = value
               JOIN validators v ON v.url_key = t.url_key
               JOIN results r ON r.task = v.task WHERE t.job_id IS NOT NULL AND {IS_STORED}
               AND t.method IN ('GET', 'FILE') AND NOT {IN_SESSION.format("t")}""",
            (as_json(ids),),
        )
        listings = self._pages_of_listings(ids)
        before = [*self._pages_before(ids), *self._pages_to_read_again(ids)]
        before += [row[:-2] for row in listings]
        known = {row[0]: row[1:] for row in [*before, *rows]}
        states = {row[0]: ListingState(*row[-2:]) for row in listings}
        return {
            id_: PreviousPage(*(*about, states.get(id_)))
            for id_, (segment, end, *about) in known.items()
            if self._has_page(segment, end or 0)
        }

    def _pages_before(self, ids: Sequence[int]) -> list[tuple[Any, ...]]:
        """Return the last pages of tasks with a date of change in a sitemap. The date decides
        whether they are fetched, so their pages need no ETag and no Last-Modified."""
        return self._db.all(
            f"""SELECT t.id, r.raw_segment, r.raw_offset + r.raw_length, NULL, NULL,
                    r.site_version, r.parser_version, r.task, r.final_url, r.scraped_at,
                    r.raw_segment NOT NULL
                FROM json_each(?1) JOIN tasks t ON t.id = value
                JOIN results r ON r.task = (
                    SELECT max(o.id) FROM tasks o WHERE o.url_key = t.url_key
                    AND o.status = 'completed' AND o.method = 'GET'
                    AND NOT {IN_SESSION.format("o")} AND NOT {IN_SESSION.format("t")})
                WHERE t.modified_at NOT NULL AND {IS_STORED} AND NOT EXISTS (
                    SELECT 1 FROM listings l WHERE l.url_key = t.url_key AND l.gone_at NOT NULL)""",
            (as_json(ids),),
        )

    def _pages_of_listings(self, ids: Sequence[int]) -> list[tuple[Any, ...]]:
        """Return the last pages of listings, in crawls that fetch these again only after a while,
        with when they were fetched and how often they had not changed."""
        return self._db.all(
            f"""SELECT t.id, r.raw_segment, r.raw_offset + r.raw_length, NULL, NULL,
                    r.site_version, r.parser_version, r.task, r.final_url, r.scraped_at,
                    r.raw_segment NOT NULL, l.fetched_at, min(l.unchanged)
                FROM json_each(?1) CROSS JOIN tasks t ON t.id = value
                CROSS JOIN listings l ON l.url_key = t.url_key
                JOIN jobs j ON j.id = t.job_id JOIN results r ON r.task = l.task
                WHERE t.role = 'listing' AND t.method = 'GET' AND l.gone_at IS NULL
                AND j.options LIKE '%"recrawl":true%' AND {IS_STORED} GROUP BY t.id""",
            (as_json(ids),),
        )

    def _pages_to_read_again(self, ids: Sequence[int]) -> list[tuple[Any, ...]]:
        """Return the pages of tasks that only read their links."""
        return self._db.all(
            f"""SELECT t.id, r.raw_segment, r.raw_offset + r.raw_length, NULL, NULL,
                    r.site_version, r.parser_version, r.task, r.final_url, r.scraped_at,
                    r.raw_segment NOT NULL
                FROM json_each(?1) JOIN tasks t ON t.id = value
                JOIN results r ON r.task = CAST(t.body AS INTEGER)
                WHERE t.method = ?2 AND {IS_STORED}""",
            (as_json(ids), LINKS),
        )

    def has_due(self, lines: Sequence[Line]) -> bool:
        """Whether any task of these lines is due; asked before `claim`, which locks."""
        due = f"SELECT 1 FROM tasks WHERE {DUE} AND queue = ? AND needs = ? LIMIT 1"
        return any(self._db.one(due, line) for line in lines)

    def suspect(self, lines: Sequence[Line]) -> Suspect | None:
        """The first due task of these lines that must be tried alone."""
        for line in lines:
            row = self._db.one(
                f"""SELECT id, domain, job_id, leased_at FROM tasks
                    WHERE {_SUSPECTED} AND queue = ? AND needs = ?
                    ORDER BY priority, deadline, id LIMIT 1""",
                line,
            )
            if row:
                return Suspect(*row)
        return None

    def due(self, line: Line, after: str = "") -> Iterator[Due]:
        """Where tasks are due: by priority and deadline, then the domains in turn from `after`."""
        group = self._next_group(line, "priority > ?", 0)
        while group:
            yield from self._domains(line, group, after, _AFTER_EVERY_DOMAIN)
            if after:
                yield from self._domains(line, group, "", after)
            group = self._group_behind(line, group)

    def due_count(self, due: Due, limit: int) -> int:
        """How many tasks are due at a place, up to a limit."""
        return len(self._due_rows(due, limit))

    def depth(self, due: Due, limit: int) -> tuple[int, float]:
        """How many tasks are due at a place, up to a limit, and when the first was imported."""
        rows = self._due_rows(due, limit)
        if not rows:
            return 0, 0.0
        at = self._db.value("SELECT imported_at FROM tasks WHERE id = ?", (rows[0][0],), 0.0)
        return len(rows), float(at)

    def _next_group(self, line: Line, behind: str, *values: float) -> tuple[int, float] | None:
        row = self._db.one(
            f"""SELECT priority, deadline FROM tasks
                WHERE {DUE} AND queue = ? AND needs = ? AND {behind}
                ORDER BY priority, deadline LIMIT 1""",
            (*line, *values),
        )
        return (row[0], row[1]) if row else None

    def _group_behind(self, line: Line, group: tuple[int, float]) -> tuple[int, float] | None:
        # Two seeks: a comparison of both columns at once would scan the whole priority.
        later = self._next_group(line, "priority = ? AND deadline > ?", *group)
        return later or self._next_group(line, "priority > ?", group[0])

    def _domains(
        self, line: Line, group: tuple[int, float], after: str, last: str
    ) -> Iterator[Due]:
        """The domains with due tasks between two others, each found by a seek."""
        rows: list[tuple[Any, ...]] = [(after, None)]
        while rows:
            rows = self._db.all(_DUE_DOMAINS, (*line, *group, rows[-1][0], last))
            for domain, job_id in rows:
                yield Due(line, group, domain, job_id)
            if len(rows) < MAX_DOMAINS_PER_READ:
                return

    def _due_rows(self, due: Due, limit: int) -> list[tuple[Any, ...]]:
        return self._db.all(
            f"SELECT id, job_id {_AT} AND domain = ?5 ORDER BY {TURN} LIMIT ?6",
            (*due.line, *due.group, due.domain, limit),
        )

    def _probe_rows(
        self, domain: str, lines: Sequence[Line], chance: float
    ) -> list[tuple[Any, ...]]:
        """A due task of a domain that has not failed yet, from the most urgent group with one.

        Bad pages stand together in most lists: the next one after a bad one would hold the domain
        for another pause. So any of them may be chosen.
        """
        for line in lines:
            group = self._next_group(line, "priority > ?", 0)
            for _ in range(MAX_PROBE_GROUPS):
                if group is None:
                    break
                if row := self._any_untried(line, group, domain, chance):
                    return [row]
                group = self._group_behind(line, group)
        return []

    def _any_untried(
        self, line: Line, group: tuple[int, float], domain: str, chance: float
    ) -> tuple[Any, ...] | None:
        untried = f"""SELECT id, job_id {_AT} AND domain = ?5 AND failures = 0 AND {TURN} >= ?6
            ORDER BY {TURN}"""
        values = (*line, *group, domain)
        first = self._db.one(f"{untried} LIMIT 1", (*values, 0))
        last = self._db.one(f"{untried} DESC LIMIT 1", (*values, 0))
        if first is None or last is None:
            return None
        at = first[0] + int(chance * (last[0] - first[0]))
        return self._db.one(f"{untried} LIMIT 1", (*values, at))

    # Messages

    def fill(self, window: int, slots: int, now: float) -> list[Chunk]:
        """Choose the next tasks for the queues, and note under which message each goes.

        Tasks that need a browser have a window of their own: few at a time, because each takes
        long, and more would keep no other out.
        """
        published = {
            Line(*line): count
            for *line, count in self._db.all(
                """SELECT queue, needs, count(*) FROM tasks
                   WHERE status = 'pending' AND message_id IS NOT NULL GROUP BY queue, needs"""
            )
        }
        chunks: list[Chunk] = []
        with writing(self._db):
            rooms = {HTTP: window, BROWSER: min(window, BROWSER_WINDOW)}
            for line in [Line(queue, needs) for needs in NEEDS for queue in QUEUES]:
                room = rooms[line.needs] - published.get(line, 0)
                rows = self._unpublished(line, room)
                rooms[line.needs] = room - len(rows)
                chunks += _chunks(message_queue(line), rows, slots)
                chunks += self._suspects_alone(line, slots)
            for chunk in chunks:
                self._db.execute(
                    f"UPDATE tasks SET message_id = ?, published_at = ? WHERE task_id {LISTED}",
                    (chunk.message_id, now, as_json(chunk.task_ids)),
                )
        return chunks

    def published(self) -> set[str]:
        """The messages that pending tasks are in."""
        return set(
            self._db.column(
                """SELECT DISTINCT message_id FROM tasks
                   WHERE status = 'pending' AND message_id IS NOT NULL"""
            )
        )

    def unpublish(self, message_ids: Collection[str]) -> None:
        """Forget messages that are gone or done: their pending tasks go into new ones."""
        if message_ids:
            with writing(self._db):
                self._db.execute(
                    f"""UPDATE tasks SET message_id = NULL
                        WHERE status = 'pending' AND message_id {LISTED}""",
                    (as_json(list(message_ids)),),
                )

    def _suspects_alone(self, line: Line, slots: int) -> list[Chunk]:
        task_ids = self._db.column(
            f"""SELECT task_id FROM tasks
                WHERE {_SUSPECTED} AND queue = ? AND needs = ? AND message_id IS NULL LIMIT ?""",
            (*line, slots),
        )
        return [Chunk(_message_id(), message_queue(line), (task_id,)) for task_id in task_ids]

    def _unpublished(self, line: Line, room: int) -> list[tuple[str, int]]:
        """Up to `room` due tasks that are in no message, fairly between the domains."""
        picked: list[tuple[str, int]] = []
        groups: dict[tuple[int, float], list[str]] = {}
        if room > 0:
            for due in self.due(line):
                groups.setdefault(due.group, []).append(due.domain)
                if sum(map(len, groups.values())) >= room:
                    break
        for group, domains in groups.items():
            left = room - len(picked)
            share = -(-left // len(domains))
            lines = {
                domain: self._unpublished_rows(line, group, domain, share) for domain in domains
            }
            if sum(map(len, lines.values())) < left:
                # What small domains leave goes to the large ones.
                for domain in [name for name, rows in lines.items() if len(rows) == share]:
                    lines[domain] = self._unpublished_rows(line, group, domain, left)
            in_turn = zip_longest(*lines.values())
            picked += [row for rows in in_turn for row in rows if row is not None][:left]
            if len(picked) >= room:
                break
        return picked

    def _unpublished_rows(
        self, line: Line, group: tuple[int, float], domain: str, limit: int
    ) -> list[Any]:
        return self._db.all(
            f"""SELECT task_id, (SELECT batch_size FROM jobs WHERE jobs.id = tasks.job_id)
                {_AT} AND domain = ?5 AND message_id IS NULL ORDER BY {TURN} LIMIT ?6""",
            (*line, *group, domain, limit),
        )

    # Leases of dead and stopped workers

    def owners(self) -> set[str]:
        """Who holds leases, as far as the ledger knows."""
        return set(self._db.column("SELECT DISTINCT owner FROM tasks WHERE status = 'processing'"))

    def free(self, note: OwnerState, now: float) -> list[str]:
        """Make the tasks of a dead owner pending again; returns the domain of each.

        The page that was being worked on gets a strike, and two are poison. Where none was, every
        page in flight is a suspect: nobody is blamed, and after some deaths each suspect is tried
        alone.
        """
        db = self._durable
        with writing(db):
            rows = db.all(
                """SELECT id, strikes, deaths, domain FROM tasks
                   WHERE status = 'processing' AND owner = ?""",
                (note.id,),
            )
            for id_, strikes, deaths, _ in rows:
                _free_task(db, note, id_, strikes, deaths, now)
        return [domain for *_, domain in rows]

    def leases(self) -> set[tuple[int, int]]:
        """Task and fence of each lease."""
        rows = self._db.all("SELECT id, fence FROM tasks WHERE status = 'processing'")
        return {(id_, fence) for id_, fence in rows}

    def take_back_page(self, id_: int, fence: int, now: float) -> bool:
        """Take a page from a process that holds it too long; False if the claim has ended.

        The page gets a strike, and two are poison: its process has not ended it by itself.
        """
        db = self._durable
        with writing(db):
            row = db.one(
                "SELECT strikes FROM tasks WHERE id = ? AND fence = ? AND status = 'processing'",
                (id_, fence),
            )
            if row is None:
                return False
            strikes = row[0] + 1
            is_poison = strikes >= POISON_STRIKES
            db.execute(
                """UPDATE tasks SET status = iif(?1, 'failed', 'pending'), owner = NULL,
                       message_id = NULL, not_before = 0, attempts = attempts + 1, strikes = ?2,
                       error_type = iif(?1, 'poison', error_type),
                       error_message = iif(?1, ?3, error_message),
                       completed_at = iif(?1, ?4, NULL) WHERE id = ?5""",
                (is_poison, strikes, f"{strikes} times it did not end in time", now, id_),
            )
            kind = "poison" if is_poison else "taken back"
            timeline.note(db, id_, kind, {"reason": "hard time limit"}, now)
        return True

    def take_back(self, note: OwnerState, now: float) -> list[str]:
        """Make the tasks of a stopped owner pending again, without blame; returns their domains.

        Fences drop the results that the owner brings later.
        """
        db = self._durable
        with writing(db):
            rows = db.all(
                "SELECT id, domain FROM tasks WHERE status = 'processing' AND owner = ?", (note.id,)
            )
            for id_, _ in rows:
                began = id_ in note.in_flight
                db.execute(
                    """UPDATE tasks SET status = 'pending', owner = NULL, message_id = NULL,
                           not_before = 0, attempts = attempts + ? WHERE id = ?""",
                    (began, id_),
                )
                timeline.note(db, id_, "taken back", {"worker": note.pid, "began": began}, now)
        return [domain for _, domain in rows]

    def give_back(self, owner: str, held: Collection[tuple[int, int]], now: float) -> int:
        """Make tasks pending again that an owner has forgotten after an error; returns how many.

        `held` are the task and fence of each lease that it knows of.
        """
        db = self._db
        rows = db.all(
            "SELECT id, fence FROM tasks WHERE status = 'processing' AND owner = ?", (owner,)
        )
        forgotten = [id_ for id_, fence in rows if (id_, fence) not in held]
        if forgotten:
            ids = as_json(forgotten)
            with writing(db):
                db.execute(
                    f"""UPDATE tasks SET status = 'pending', owner = NULL, message_id = NULL
                        WHERE {_IDS} AND status = 'processing' AND owner = ?""",
                    (ids, owner),
                )
                timeline.note_all(db, ids, "given back", {}, now)
        return len(forgotten)


def _free_task(
    db: Database, note: OwnerState, id_: int, strikes_before: int, deaths_before: int, now: float
) -> None:
    """Make a task of a dead owner pending again, or set it aside as poison."""
    began = id_ in note.in_flight
    alone = note.in_flight == {id_} and deaths_before >= SUSPECT_DEATHS
    blamed = id_ == note.parsing or (alone and bool(note.evidence))
    suspected = began and not note.parsing and not blamed
    strikes = strikes_before + blamed
    deaths = deaths_before + (suspected and (alone or deaths_before < SUSPECT_DEATHS))
    poison = strikes >= POISON_STRIKES or deaths >= SUSPECT_DEATHS + ALONE_DEATHS
    db.execute(
        """UPDATE tasks SET status = iif(?1, 'failed', 'pending'), owner = NULL, message_id = NULL,
               not_before = 0, attempts = attempts + ?2, strikes = ?3, deaths = ?4,
               error_type = iif(?1, 'poison', error_type),
               error_message = iif(?1, ?5, error_message), completed_at = iif(?1, ?6, NULL)
           WHERE id = ?7""",
        (poison, began, strikes, deaths, _poison(strikes, deaths, note.in_scraper), now, id_),
    )
    detail = {"worker": note.about.get("pid"), "began": began, "parsing": blamed}
    if suspected:
        detail["suspected"] = deaths
    if blamed and note.in_scraper:
        detail["scraper"] = note.in_scraper
    if blamed and note.evidence:
        detail["evidence"] = note.evidence
    timeline.note(db, id_, "poison" if poison else "worker died", detail, now)


def _poison(strikes: int, deaths: int, in_scraper: str) -> str:
    if strikes >= POISON_STRIKES:
        place = f", in {in_scraper}" if in_scraper else ""
        return f"{strikes} workers died or stood still while they worked on this page{place}"
    return f"{deaths - SUSPECT_DEATHS} workers died while this page was all that they worked on"


def _fitting(rows: Sequence[tuple[Any, ...]], fits: Callable[[int | None], bool]) -> list[int]:
    """The rows up to the first whose job does not fit."""
    ids: list[int] = []
    known: dict[int | None, bool] = {}
    for id_, job in rows:
        if job not in known:
            known[job] = fits(job)
        if not known[job]:
            break
        ids.append(id_)
    return ids


def _chunks(queue: str, rows: Sequence[tuple[str, int]], slots: int) -> Iterator[Chunk]:
    """Cut rows into messages: a job's batch size at most, and several for every worker slot."""
    fair = max(1, -(-len(rows) // (slots * 3)))
    begin = 0
    while begin < len(rows):
        size = min(fair, rows[begin][1] or fair, MAX_TASKS_PER_MESSAGE)
        ids = tuple(task_id for task_id, _ in rows[begin : begin + size])
        yield Chunk(_message_id(), queue, ids)
        begin += size


def _message_id() -> str:
    text = secrets.token_hex(16)
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _task(row: tuple[Any, ...], known: PreviousPage | None) -> Task:
    fields = dict(zip(Task.__struct_fields__, row, strict=False))
    role = fields["role"] and Role(fields["role"])
    made = {"loopback": bool(fields["loopback"]), "role": role, "known": known}
    return Task(**{**fields, **made})
