"""LocalPersistenceManager: the way to lpm.db, pending/ and raw/; only `doctor/` goes around it.

What it stores is reached by part: `lpm.tasks` finds and ends tasks, `lpm.dispatch` claims and frees
them, `lpm.imports` stores rows, `lpm.crawls` has what crawls found, `lpm.site_jobs` begins crawls
of sites by name, `lpm.batches` has the URLs of programs, `lpm.webhooks` has who is told of them,
`lpm.jobs` has jobs and receipts, `lpm.counts` has numbers, `lpm.results` and `lpm.pages` have what
was collected, `lpm.versions` has earlier records, `lpm.listings` has what became of each thing that
a site's key identifies, `lpm.listing_pairs` has those of different sites that may be the same
thing, `lpm.browser_pages` has which pages need a browser, `lpm.files` is pending/, `lpm.outbox` and
`lpm.gateway` are for a Gateway, `lpm.timeline` has the events of each task, and `lpm.retention`
removes old jobs.
"""

import contextlib
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any, Self
from zlib import crc32

import msgspec

from crawler.config import argument, failpoint, program
from crawler.db import (
    batches,
    browser_pages,
    guard,
    links,
    listings,
    owners,
    result_files,
    results,
    siblings,
    tasks,
    timeline,
)
from crawler.db.connection import Database, writing
from crawler.db.counts import Counts
from crawler.db.dispatch import Dispatch, Place, lines_of
from crawler.db.gateway import GatewayTasks, Outbox
from crawler.db.imports import Imports
from crawler.db.jobs import LOST_PAGES, LOST_ROWS, Jobs, Loss
from crawler.db.listing_pairs import ListingPairs
from crawler.db.listing_views import ListingViews
from crawler.db.pending import PendingFiles
from crawler.db.raw_pages import RawPages, StoredPage, is_good_file
from crawler.db.record_versions import RecordVersions, Replaced, Replacement, replace_all
from crawler.db.retention import Retention
from crawler.db.site_jobs import SiteJobs
from crawler.db.store import HELD, Layout, Store
from crawler.db.webhooks import Webhooks
from crawler.errors import StoreError, UsageError
from crawler.locks import is_locked, open_lock, try_lock
from crawler.models import (
    MAX_CRAWL_PAGES,
    NO_DEADLINE,
    QUEUES,
    UNCHANGED,
    CrawlOptions,
    Imported,
    Job,
    NewTask,
    Outcome,
    RawLocation,
    Receipt,
    SeenListing,
    Task,
    TaskStatus,
)

MIN_FREE_FILES = 1000
"""Inodes that must be free; a file system without a limit on them says that it has none at all."""


class LocalPersistenceManager(Layout):
    """The store in one data folder, with all that can be done with it.

    Use it as a context manager, or close it. `raw` says which pages are stored. Nothing that it
    holds refers back to it, so that a forgotten one lets go of its lock at once.
    """

    def __init__(
        self, folder: Path, raw: str = "all", clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(folder)
        self.store = Store(folder, clock)
        self.pages = RawPages(self.store, raw)
        self.files = PendingFiles(self.store)
        self.tasks = tasks.Tasks(self.store)
        self.dispatch = Dispatch(self.store, self.pages.has_page)
        self.imports = Imports(self.store)
        self.crawls = links.Crawls(self.store)
        self.jobs = Jobs(self.store, self.folder / "sessions")
        self.site_jobs = SiteJobs(self.store)
        self.batches = batches.Batches(self.store)
        self.webhooks = Webhooks(self.store)
        self.counts = Counts(self.store)
        self.results = results.Results(self.store)
        self.versions = RecordVersions(self.store)
        self.listing_pairs = ListingPairs(self.store)
        self.outbox = Outbox(self.store)
        self.gateway = GatewayTasks(self.store)
        self.timeline = timeline.Timeline(self.store)
        self.retention = Retention(self.store, self.folder / "sessions")
        self.listings = ListingViews(self.store)
        self.browser_pages = browser_pages.BrowserPages(self.store)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def exists(cls, folder: Path) -> bool:
        """Whether there is a store in that folder."""
        return (folder / "lpm.db").is_file() or bool(guard.unfinished(folder))

    @property
    def can_write(self) -> bool:
        """Whether this process may write to the store; where not, it is only read."""
        return self.store.can_write

    def now(self) -> float:
        """The time by the store's clock."""
        return self.store.now()

    def errors(self) -> AbstractContextManager[None]:
        """Turn a failing disk into a `StoreError`, and close the store where one is raised."""
        return self.store.errors()

    def open(self, to_read: bool = False) -> None:
        """Open the store now, to see whether it can be used."""
        _ = self.store.db if to_read else self.store.durable

    def close(self) -> None:
        """Close the store; it is opened again when it is used again."""
        self.store.close()

    def close_after_check(self) -> None:
        """See that the store can be used and its ledger is no older copy; then close it."""
        self.open()
        with self.errors():
            files = sum(1 for _ in self.pending.glob("[!.]*.json"))
            later = 0
            if files > self.files.due_count():
                later = sum(1 for _ in self.files.later_results())
        self.close()
        if later:
            raise StoreError(
                f"{self.pending} holds {later:,} results that the ledger does not know: "
                f"it is an older copy, or has lost its log; {program()} doctor --repair puts them "
                "back"
            )

    # Tasks

    def persist_tasks(
        self,
        tasks: Iterable[NewTask],
        *,
        job: Job | None = None,
        queue: str = "default",
        source: str = "file",
        source_file: str | None = None,
        file_number: int = 0,
        loopback: bool = False,
        fresh_for_s: float | None = None,
    ) -> Imported:
        """Put tasks into the ledger, durably, before anything else hears of them."""
        now = self.now()
        return self.imports.add(
            tasks,
            job=job,
            queue=queue,
            source=source,
            source_file=source_file,
            file_number=file_number,
            loopback=loopback,
            fresh_after=NO_DEADLINE if fresh_for_s is None else now - fresh_for_s,
            now=now,
        )

    def get_next_pending(
        self, owner: str, limit: int = 1, queues: Sequence[str] = QUEUES
    ) -> list[Task]:
        """Lease the most urgent due tasks for an owner, without asking for permits."""
        now = self.now()
        self.tasks.wake(now)
        places = (
            Place(due, limit, lambda job: True)
            for line in lines_of(queues)
            for due in self.dispatch.due(line)
        )
        return self.dispatch.claim(owner, places, limit, now)[0]

    def bury(self, forget: Callable[[str, str], None] = lambda domain, owner: None) -> int:
        """Free what dead owners held and cut their segments; returns how many tasks came back.

        `forget` is told of every domain that a dead owner had tasks of.
        """
        freed = 0
        with self.errors(), owners.dead(self.owners) as notes:
            gone = {note.id for note in notes}
            for owner in self.dispatch.owners() - gone:
                if not owners.exists(self.owners, owner):  # its file was lost with the run folder
                    notes.append(owners.OwnerState(owner, {}, "", 0, frozenset(), ""))
            for note in notes:
                domains = self.dispatch.free(note, self.now())
                freed += len(domains)
                for domain in set(domains):
                    forget(domain, note.id)
            if notes:
                self.pages.cut()
            left = [
                job_id
                for job_id in self.batches.direct_jobs()
                if not is_locked(self.direct_lock(job_id))
            ]
            # Without a worker, they wait for a program that runs a process for each.
            if left and owners.workers(self.owners):
                for job_id in left:
                    self.batches.move(job_id, QUEUES[-1])
        return freed

    def direct_lock(self, job_id: int) -> Path:
        """The file that the program locks whose own process fetches the pages of a batch."""
        return self.run / f"direct-{job_id}.lock"

    # Results

    def save_result(self, *outcomes: Outcome) -> list[bool]:
        """Store how attempts ended; False where the claim was not live.

        Pages go to the disk first, then one commit, then the files in pending/. The commit is the
        truth: what was not committed never happened, and files can be made again.
        """
        with self.errors():
            digests = [sha256(o.page.body).hexdigest() if o.page else "" for o in outcomes]
            pages = self.pages.append_outcomes(outcomes, digests)
            failpoint("raw-synced")
            now, told = self.now(), []
            live: dict[int, tuple[Outcome, dict[str, Any]]] = {}
            with self._committing(now) as db:
                inserts = links.LinkInserts(db, now)
                for given, digest, appended in zip(outcomes, digests, pages, strict=True):
                    place = self._place(db, given, digest, appended.place)
                    outcome = self._unless_gone(db, given, place)
                    page = appended._replace(place=place)
                    detail = _store_outcome(db, outcome, digest, page, inserts, now)
                    told.append(detail is not None)
                    if detail is not None:
                        live[outcome.task.id] = outcome, detail
                inserts.finish()
                done = [
                    id_
                    for id_, (outcome, _) in live.items()
                    if outcome.status is TaskStatus.COMPLETED
                ]
                done += _serve_siblings(db, live, now)
            self.files.write(done)
        return told

    def save_carried(
        self,
        groups: Sequence[Sequence[bytes]],
        insert: Callable[[Database, Sequence[Sequence[RawLocation]]], list[int]],
    ) -> None:
        """Store what another ledger collected: `insert` is given where the members are now."""
        with self.errors():
            places = self.pages.append(groups)
            with self._committing(self.now()) as db:
                stored = insert(db, places)
            self.files.write(stored)

    def replace_records(self, replacements: Sequence[Replacement]) -> Replaced:
        """Make records that were made again of stored pages the current ones, in one commit.

        A killed process leaves the earlier or the new records, and files that `restore` corrects.
        """
        with self.errors():
            db = self.store.durable
            with writing(db):
                replaced, counts = replace_all(db, replacements, self.now())
                failpoint("replacing-records")
            failpoint("replaced-records")
            self.files.write(replaced)
            failpoint("replaced-files")
        return counts

    def see_stored(self, found: Sequence[tuple[int, str, Sequence[SeenListing]]]) -> int:
        """Note the listings of stored results, in one commit; returns how many are new.

        Each result is a task, the name of its site, and its listings; the oldest come first.
        """
        with self.errors():
            db, now = self.store.durable, self.now()
            with writing(db):
                new = sum(listings.see_stored(db, *each, now) for each in found)
                failpoint("seeing-stored")
            failpoint("seen-stored")
        return new

    @contextmanager
    def _committing(self, now: float) -> Iterator[Database]:
        """One durable commit; what the segments have got by then counts from then on."""
        db = self.store.durable
        with writing(db):
            yield db
            self.pages.commit(now)
            failpoint("committing")
        failpoint("committed")
        self.pages.committed()

    def _place(
        self, db: Database, outcome: Outcome, digest: str, place: RawLocation | None
    ) -> RawLocation | None:
        """Where a page is; a file is where another process has stored the same bytes meanwhile, or
        nowhere if they were removed meanwhile."""
        if place is None or not is_good_file(outcome):
            return place
        stored = self.pages.stored_file(db, digest)
        return stored or (place if self.pages.is_writing(place.segment) else None)

    def _unless_gone(self, db: Database, outcome: Outcome, place: RawLocation | None) -> Outcome:
        """An outcome, to be tried again if its page is the same as an earlier one that has gone."""
        known = outcome.task.known
        if is_good_file(outcome):
            if place:
                return outcome
        elif outcome.verdict != UNCHANGED:
            return outcome
        else:
            earlier = results.stored_place(db, known.task) if known else None
            if earlier and self.pages.has_page(*earlier):
                return outcome
        return msgspec.structs.replace(
            outcome,
            status=TaskStatus.PENDING,
            page=None,
            verdict=None,
            links=(),
            files=(),
            left_out=(),
            listings=(),
            error_message="unchanged, but the page that it is the same as has gone meanwhile; "
            "it is fetched again",
        )

    def get_unsynced_results(self, limit: int = 100) -> list[dict[str, Any]]:
        """Results that a Gateway is to get: those of its own tasks, and released ones."""
        return self.results.unsynced(limit)

    def mark_synced(self, task_ids: Sequence[str]) -> None:
        """Note that the Gateway has confirmed these results: they leave pending/."""
        self.outbox.mark_synced(task_ids, self.now())
        for task_id in task_ids:
            self.files.remove(task_id)

    # Jobs

    def find_job(self, name: str) -> Job:
        """The job of that name; where several files had it, the one that this file made."""
        known = next((job for job in self.jobs.all() if job.name == name), None)
        if known and not self.jobs.later_namesakes(known):
            return known
        checksum = _checksum(Path(name))
        newest = checksum and self.jobs.newest_of(checksum)
        return newest or known or self.jobs.named(name)

    @contextmanager
    def importing(self, job: Job) -> Iterator[None]:
        """Be seen to import into a job until the end; a death shows that it was broken off."""
        with self.errors():
            folder = self.run / "imports"
            folder.mkdir(mode=0o700, exist_ok=True)
            for left in folder.glob(f"{job.id}.*"):  # by an import that was killed
                if not is_locked(left):
                    left.unlink(missing_ok=True)
            path = folder / f"{job.id}.{os.getpid()}"
            lock = open_lock(path)
        try:
            try_lock(lock)
            yield
        finally:
            path.unlink(missing_ok=True)
            os.close(lock)

    def is_importing(self, job: Job | None) -> bool:
        """Whether some process reads a job's input now, or that of any job."""
        with self.errors():
            return is_importing(self.run, job)

    def unaccounted(self, jobs: Sequence[Job]) -> list[list[str]]:
        """What is known to be missing of each job, with the way out."""
        with self.errors():
            found = {job.id: unaccounted(self.jobs, self.run, job) for job in jobs}
        if not self.pages.has_all():
            for job in jobs:
                found[job.id] += self._missing_of(job)
        return list(found.values())

    def _missing_of(self, job: Job) -> list[str]:
        accept = f"bring it back, or {_accept(job)}"
        return [f"{missing.what}; {accept}" for missing in self.pages.missing_segments(job)]

    def receipt(self, job: Job, check_indexes: bool = True) -> Receipt:
        """The receipt of a job, with all that is known to be missing in the ledger or the disk."""
        job = self.jobs.get(job.id)  # as it stands now
        receipt = self.jobs.receipt(job, check_indexes)
        with self.errors():
            lost = unaccounted(self.jobs, self.run, job)
        problems = [*lost, *receipt.problems, *self._missing_of(job), *self.pages.unreadable(job)]
        return msgspec.structs.replace(receipt, problems=problems)

    def verify(self, job: Job) -> Receipt:
        """The receipt of a job, after all its rows, results and files were read."""
        with self.errors():
            receipt = self.receipt(job)
            rows = sum(1 for _ in self.results.input_rows(job))
            lacking, other = self.files.faults(job)
        problems, again = list(receipt.problems), f"{program()} doctor --repair makes them again"
        if rows < receipt.rows:  # else more may have come in meanwhile
            lost = f"only {rows:,} of its {receipt.rows:,} rows can be read"
            problems.append(f"{lost}; {program()} doctor tells more")
        files = "files of its results in pending/"
        if lacking:
            problems.append(f"{lacking:,} {files} are missing or torn; {again}")
        if other:
            problems.append(f"{other:,} {files} say something else than lpm.db; {again}")
        return msgspec.structs.replace(receipt, problems=problems)

    def accept(self, job: Job) -> list[str]:
        """Accept that something of a job is missing; returns all of it."""
        if self.is_importing(job):
            raise UsageError(
                f"the import of {job.name} has not ended yet; wait for its end, or stop it"
            )
        job = self.jobs.get(job.id)  # as it stands now
        lost, gone = self.jobs.losses(job), self.pages.missing_segments(job)
        new = [(LOST_PAGES, missing.what) for missing in gone]
        if _is_broken_off(job, lost):
            new.insert(0, (LOST_ROWS, _broken_off(self.jobs, job)))
        if lost or new:
            ends = {missing.name: missing.end for missing in gone}
            self.jobs.accept(job, new, ends, self.now())
            self.jobs.finalise(self.now())
        return [loss.what for loss in lost] + [what for _, what in new]

    def accept_import(self, job: Job) -> list[str]:
        """Accept that the import of a job was broken off, and nothing else; returns what."""
        job = self.jobs.get(job.id)  # as it stands now
        if self.is_importing(job) or not _is_broken_off(job, self.jobs.losses(job)):
            return []
        what = _broken_off(self.jobs, job)
        self.jobs.accept_import(job, what, self.now())
        return [what]

    # Size

    def bound_wal(self, limit: int) -> bool:
        """Write the write-ahead log back and cut it if it is larger; True where that was done.

        SQLite begins a new log only in a moment without any reader: among many there may be none.
        """
        with contextlib.suppress(FileNotFoundError):
            if self.path.with_name("lpm.db-wal").stat().st_size > limit:
                return self.store.cut_log()
        return False

    def sizes(self) -> dict[str, int]:
        """What the store takes on the disk, by part."""
        parts = {"lpm.db": self.folder.glob("lpm.db*"), "raw": self.raw.glob("*.warc.gz")}
        parts |= {name: (self.folder / name).glob("*") for name in ("pending", "archive")}
        return {name: sum(map(_size, paths)) for name, paths in parts.items()}

    def archived_since(self, since: float) -> int:
        """Bytes of the archives that were written since then."""
        total = 0
        for path in (self.folder / "archive").glob("*"):
            with contextlib.suppress(FileNotFoundError):
                about = path.stat()
                total += about.st_size * (about.st_mtime >= since)
        return total


def _store_outcome(
    db: Database,
    outcome: Outcome,
    digest: str,
    stored: StoredPage,
    inserts: links.LinkInserts,
    now: float,
) -> dict[str, Any] | None:
    """Store how one attempt ended; returns its event's detail, or None for a dead claim."""
    detail = tasks.finish_attempt(db, outcome, stored.place, now)
    if detail is None:
        return None
    if outcome.page and outcome.status is TaskStatus.COMPLETED:
        results.insert(db, outcome, outcome.page, digest, stored.place, now)
        if stored.captures:
            result_files.link_captures(db, outcome.task.id, stored.captures)
        if outcome.files:
            result_files.insert(db, outcome.task.id, outcome.files)
        detail["record_crc32"] = crc32(outcome.record)  # shows the doctor a wrong byte
    if outcome.error_type == links.REDIRECTED:
        # The page may be in the ledger already, with another parent.
        for link in outcome.links:
            detail["target"] = link.address.key.hex()
    timeline.note(db, outcome.task.id, tasks.kind_of(outcome), detail, now)
    # After that: a redirect in a circle ends its task in another way, which is noted, too.
    if outcome.links or outcome.files or outcome.left_out:
        inserts.insert(outcome)
    listings.note(db, outcome, now)
    browser_pages.note(db, outcome, now)
    return detail


def _serve_siblings(
    db: Database, live: dict[int, tuple[Outcome, dict[str, Any]]], now: float
) -> list[int]:
    """Complete the siblings of these pages, or let them wait no longer.

    Returns those that have a result now.
    """
    completed: list[int] = []
    room = siblings.Room()
    for id_ in siblings.shared(db, list(live)):
        outcome, detail = live[id_]
        if outcome.status is TaskStatus.COMPLETED and outcome.page:
            ids, room = siblings.complete(db, outcome, detail, now, room)
            completed += ids
        elif outcome.status in (TaskStatus.FAILED, TaskStatus.SKIPPED):
            _share_failure(db, outcome, now)
        if outcome.status is TaskStatus.PENDING and outcome.not_before < HELD:
            siblings.put_off(db, id_, max(now, outcome.not_before))
        else:
            siblings.release(db, id_)
    return completed


def _share_failure(db: Database, outcome: Outcome, now: float) -> None:
    """End those that waited for a page which failed for good: each of their attempts would ask the
    same server for the same page again."""
    reason, message = outcome.error_type or outcome.status, outcome.error_message or ""
    told = f"{message} (fetched once for all rows of this URL, by task {outcome.task.task_id})"
    told = tasks.storable(told.strip()) or ""
    ids = siblings.waiting(db, outcome.task.id)
    tasks.end_without_result(db, ids, outcome.status, reason, told, now)


# What is missing of a job


def is_importing(run: Path, job: Job | None) -> bool:
    """Whether some process reads a job's input now, or that of any job."""
    pattern = f"{job.id}.*" if job else "*"
    return any(is_locked(path) for path in (run / "imports").glob(pattern))


def unaccounted(jobs: Jobs, run: Path, job: Job) -> list[str]:
    """What is known to be missing of a job, each with the way out; cheap."""
    lost, found = jobs.losses(job), []
    if (lost or job.incomplete) and is_importing(run, job):
        lost = [loss for loss in lost if loss.kind != LOST_ROWS]
        found = ["its import has not ended yet"]
    elif _is_broken_off(job, lost):
        complete = ""
        if not job.cancelled:
            complete = f"complete it: {_again(jobs, job, broken=True)}, or "
        found = [f"{_broken_off(jobs, job)}; {complete}{_accept(job)}"]
    if job.options_lost:
        what = "which links it follows was lost, so it is paused"
        found.append(f"{what}; type its crawl again: {_again(jobs, job)}")
    for loss in lost:
        again = after = ""
        if loss.kind == LOST_ROWS and not job.of_gateway and not job.cancelled:
            if job.source == "crawl":
                again = f"its starts come back with: {_again(jobs, job)}; "
                after = "; then a new crawl finds the other pages"
            elif job.source == batches.SOURCE:
                again = f"{_again(jobs, job)}, or "
            else:
                again = f"import its file again: {_again(jobs, job)}, or "
        found.append(f"{loss.what}; {again}{_accept(job)}{after}")
    return found


def _accept(job: Job) -> str:
    return f"accept that with: {program()} job accept {argument(job.name)}"


def _is_broken_off(job: Job, lost: Sequence[Loss]) -> bool:
    """Whether a job is incomplete, and not because of rows that it had and has lost."""
    return job.incomplete and not any(loss.kind == LOST_ROWS for loss in lost)


def _broken_off(jobs: Jobs, job: Job) -> str:
    files = jobs.imports(job)
    names = [Path(each.file).name for each in files if not each.ended_at]
    whose = ""
    if len(files) > 1:
        whose = f" of {', '.join(names)}"
    return f"its import{whose} was broken off after {jobs.row_count(job):,} rows"


def _again(jobs: Jobs, job: Job, broken: bool = False) -> str:
    """The commands that read the files of a job again, or those that were broken off."""
    files = [each for each in jobs.imports(job) if not (broken and each.ended_at)]
    if job.source == "bundle":
        commands = [f"results unbundle {shlex.quote(each.file)}" for each in files]
        return " and ".join(f"{program()} {command}" for command in commands)
    if job.source == "crawl":
        return _crawl_again(jobs, job)
    if job.source == batches.SOURCE:
        return "make the calls of its session again, each with the same URLs"
    options = ""
    if job.queue != "default":
        options += f" --queue {job.queue}"
    if any(each.key.startswith("name:") for each in files):
        options += f" --job {shlex.quote(job.name)}"
    if job.options.url_column:
        options += f" --url-column {shlex.quote(job.options.url_column)}"
    names = [each.file for each in files] or [job.source_file or "FILE"]
    commands = [f"{program()} bulk import {shlex.quote(name)}{options}" for name in names]
    return " and ".join(commands)


def _crawl_again(jobs: Jobs, job: Job) -> str:
    """The command that begins a crawl again, with all that decides where it goes."""
    crawl = job.options.crawl or CrawlOptions(starts=("URL",), hosts=())
    words: list[object] = ["crawl", *crawl.starts]
    for file in jobs.imports(job):
        words += ["--rows", file.file]
    if not jobs.key(job).startswith("crawl:"):
        words += ["--job", job.name]
    if job.queue != "default":
        words += ["--queue", job.queue]
    if crawl.depth is not None:
        words += ["--depth", crawl.depth]
    for name, patterns in (("--include", crawl.include), ("--exclude", crawl.exclude)):
        for each in patterns:
            words += [name, each]
    if crawl.limit != MAX_CRAWL_PAGES:
        words += ["--limit", crawl.limit]
    if crawl.sitemap != "include":
        words += ["--sitemap", crawl.sitemap]
    if crawl.subdomains:
        words.append("--subdomains")
    if job.options.rate:
        words += ["--rate", job.options.rate]
    if job.options.fetcher:
        words += ["--fetcher", job.options.fetcher]
    if job.options.ignore_robots:
        words.append("--ignore-robots")
    return f"{program()} {shlex.join(map(str, words))}"


def _checksum(path: Path) -> str:
    """The SHA-256 of a file; empty where it is none, or cannot be read."""
    with contextlib.suppress(OSError, ValueError):  # a name of a job need not be one of a file
        if path.is_file():
            with path.open("rb") as file:
                return file_digest(file, "sha256").hexdigest()
    return ""


# The disk


def low_on_disk(folder: Path, least: int, min_files: int = MIN_FREE_FILES) -> str | None:
    """What to say where fewer bytes, or files, are free than there must be; 0 asks for none."""
    free, about = shutil.disk_usage(folder).free, os.statvfs(folder)
    if least and about.f_files and about.f_favail < min_files:
        room = f"only {about.f_favail:,} more files fit on the disk of {folder}"
        return f"{room}; nothing more is fetched until {min_files:,} do"
    if free >= least:
        return None
    room = f"only {free / 1e6:,.0f} MB are free in {folder}"
    return f"{room}; nothing more is fetched until {least / 1e6:,.0f} MB are"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
