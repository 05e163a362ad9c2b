"""The drill: crawls an embedded site, kills parts of the stack meanwhile, and counts the losses."""

import contextlib
import os
import random
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import redis

from crawler.bulk import import_file
from crawler.config import Settings, program
from crawler.db import owners
from crawler.demo_site import FAULTS, running_site
from crawler.errors import StackIsUp
from crawler.locks import try_lock
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job, JobOptions, TaskCounts
from crawler.orchestrator import Orchestrator, stop_stale, terminated_by_signal
from crawler.redis_client import connect
from crawler.stack import read_stack

KINDS = ("child", "child", "worker", "redis", "flushall")
"""The targets of five strikes, in random order; children are hit twice."""
MAX_PAGES_IN_FLIGHT = 4
"""Pages in flight in each worker. With more, the crawl would end before the strikes do, and the
recovery from each strike could not be measured."""
MAX_STALL_S = 120.0
"""A crawl without progress for this long has ended; the missing pages are lost."""


class Strike(msgspec.Struct, kw_only=True):
    """One kill or FLUSHALL: its plan, and then what happened."""

    number: int
    kind: str
    due: int
    """It falls when this many pages are done."""
    done: int | None = None
    """How many were done; None until it falls."""
    pids: list[int] = []
    in_flight: int = 0
    back_after_s: float | None = None

    def __str__(self) -> str:
        if self.kind == "flushall":
            return "FLUSHALL of Redis"
        first = next(iter(self.pids), None)
        return {
            "child": f"kill -9 of child {first}",
            "worker": f"kill -9 of worker {first} and {len(self.pids) - 1} children",
            "redis": f"kill -9 of Redis {first}",
        }[self.kind]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The pages and strikes of a drill."""

    seed: int
    pages: int
    latency_ms: int
    faults: dict[int, str]
    """The pages that fail once, and how."""
    strikes: tuple[Strike, ...]

    def urls(self, base: str) -> list[str]:
        """Return the URLs of the pages."""
        return [
            f"{base}/drill/{self.latency_ms}/{self.faults.get(n, 'ok')}/{n}"
            for n in range(self.pages)
        ]


def plan(*, seed: int, pages: int, kills: int, latency_ms: int, faults: float) -> Plan:
    """Plan strikes over the whole run, and pages that fail once. A seed gives the same plan."""
    chance = random.Random(seed)
    kinds = [kind for _ in range(0, kills, len(KINDS)) for kind in chance.sample(KINDS, len(KINDS))]
    dues = [int(pages * (number + chance.random()) / (kills + 1)) for number in range(kills)]
    faulty = chance.sample(range(pages), round(pages * faults))
    return Plan(
        seed=seed,
        pages=pages,
        latency_ms=latency_ms,
        faults={n: FAULTS[place % len(FAULTS)] for place, n in enumerate(faulty)},
        strikes=tuple(
            Strike(number=n, kind=kinds[n - 1], due=due) for n, due in enumerate(dues, 1)
        ),
    )


class Score(msgspec.Struct, kw_only=True):
    """The outcome of a drill."""

    seed: int
    pages: int
    latency_ms: int
    workers: int
    folder: str
    strikes: list[Strike]
    lost: int = 0
    """Pages without a result."""
    twice: int = 0
    """Results beyond the first of their page."""
    requests: int = 0
    """Requests to the site: each page once, the planned retries, and the extra fetches."""
    planned_retries: int = 0
    extra_fetches: int = 0
    in_flight: int = 0
    """Pages that killed processes had begun and not committed. They may be fetched again."""
    samples: int = 0
    """How often the counts were checked."""
    unbalanced: int = 0
    failures: dict[str, int] = {}
    """Reasons of tasks that ended without a result, with their numbers."""
    seconds: float = 0.0

    @property
    def slowest(self) -> Strike | None:
        """The strike that took longest to recover from."""
        recovered = [strike for strike in self.strikes if strike.back_after_s]
        return max(recovered, key=lambda strike: strike.back_after_s or 0, default=None)

    @property
    def pages_per_s(self) -> float:
        """Pages a second, recoveries included."""
        return (self.pages - self.lost) / max(self.seconds, 0.001)

    @property
    def exit_code(self) -> int:
        """5 if anything is lost or unaccounted for, 1 for duplicates or a missing recovery, else
        0."""
        if self.lost or self.unbalanced:
            return 5
        return int(bool(self.twice or self._too_many_fetches or self._not_back))

    @property
    def verdict(self) -> str:
        """The outcome in one line."""
        if not self.exit_code:
            return "Nothing lost, nothing twice."
        problems = []
        if self.lost:
            problems.append(f"{self.lost:,} of {self.pages:,} pages lost")
        if self.unbalanced:
            samples = f"{self.unbalanced:,} of {self.samples:,} samples"
            problems.append(f"books unbalanced in {samples}")
        if self.twice:
            problems.append(f"{self.twice:,} results twice")
        if self._too_many_fetches:
            fetches = f"{self.extra_fetches:,} extra fetches"
            problems.append(f"{fetches}, with {self.in_flight:,} in flight")
        if self._not_back:
            problems.append(f"no recovery from {self._not_back:,} of the strikes")
        return f"FAILED: {'; '.join(problems)}"

    @property
    def _too_many_fetches(self) -> bool:
        return self.extra_fetches > self.in_flight

    @property
    def _not_back(self) -> int:
        return sum(
            strike.done is not None and strike.back_after_s is None for strike in self.strikes
        )


def drill(
    settings: Settings, plan: Plan, workers: int, tell: Callable[[str], None] = lambda line: None
) -> Score:
    """Crawl the planned pages in the folder `drill`, with the planned strikes meanwhile."""
    folder = settings.data_dir.absolute() / "drill"
    settings = msgspec.structs.replace(
        settings, data_dir=folder, redis_url=None, pages=min(settings.pages, MAX_PAGES_IN_FLIGHT)
    )
    score = Score(
        seed=plan.seed,
        pages=plan.pages,
        latency_ms=plan.latency_ms,
        workers=workers,
        folder=str(folder),
        strikes=[msgspec.structs.replace(strike) for strike in plan.strikes],
        planned_retries=len(plan.faults),
    )
    site, lpm = running_site(), LocalPersistenceManager(folder)
    with terminated_by_signal(), _emptied(folder), lpm:
        with site as base:
            file = folder / "pages.txt"
            file.write_text("".join(f"{url}\n" for url in plan.urls(base)))
            _, job = import_file(settings, file, how=JobOptions(rate="none"))
            tell(f"{plan.pages:,} pages are at {base}; starting Redis and {workers} workers …")
            with _running_stack(settings, workers):
                _Course(score, lpm, job, workers * settings.pages, tell).run()
                tell("stopping Redis and workers …")
        _count(score, lpm, job, plan.urls(base), site.requests)
    return score


@contextlib.contextmanager
def _emptied(folder: Path) -> Iterator[None]:
    """Lock and empty the folder; at the end kill the processes that still work there."""
    for path in (folder.parent, folder):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)  # a lock file inside would be deleted
    try:
        if not try_lock(lock):
            raise StackIsUp(
                f"a drill is running already in {folder}; let it end, or stop it there with Ctrl-C"
            )
        if read_stack(folder).up:
            raise StackIsUp(f"a stack is up in {folder}; stop it with: {program(folder)} down")
        stop_stale(folder, read_stack(folder))
        try:
            for path in folder.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            yield
        finally:
            # An interrupted strike may have left orphans.
            for note in owners.living(folder / "run" / "owners"):
                with contextlib.suppress(psutil.NoSuchProcess):
                    psutil.Process(note.about["pid"]).kill()
    finally:
        os.close(lock)


@contextlib.contextmanager
def _running_stack(settings: Settings, workers: int) -> Iterator[None]:
    """Run Redis and workers, and stop them in order; after a second signal, at once."""
    stack = Orchestrator(settings, workers, beat=False, join=False)
    try:
        with stack:
            stack.start_all()
            yield
    except BaseException:
        stack.kill_all()
        raise


class _Course:
    """Watches the crawl: checks the counts, strikes when it is time, and measures recoveries."""

    def __init__(
        self,
        score: Score,
        lpm: LocalPersistenceManager,
        job: Job,
        at_a_time: int,
        tell: Callable[[str], None],
    ) -> None:
        self._score, self._lpm, self._job = score, lpm, job
        self._at_a_time, self._tell = at_a_time, tell
        self._owners = lpm.owners
        self._struck: list[tuple[Strike, float, frozenset[int]]] = []
        """Strikes without a recovery yet, their times, and the tasks that were in flight."""

    def run(self) -> None:
        """Run until every task has ended and every strike is recovered from."""
        waiting, done = deque(self._score.strikes), 0
        began = moved = time.monotonic()
        while True:
            looked = time.monotonic()
            books = self._look()
            pause_s = max(
                0.02, 10 * (time.monotonic() - looked)
            )  # checks must not take most of the time
            if books.accepted - books.open > done:
                done, moved = books.accepted - books.open, looked
            self._struck = [item for item in self._struck if not self._is_back(*item, done, books)]
            if not (books.open or self._struck) or looked - moved > MAX_STALL_S:
                break
            if waiting and books.open and done >= waiting[0].due and self._strike(waiting[0], done):
                waiting.popleft()
            time.sleep(pause_s)
        self._score.seconds = moved - began

    def _look(self) -> TaskCounts:
        """Return the counts of one moment. They must balance, whatever has just been killed."""
        counts = self._lpm.counts
        with self._lpm.store.reading():
            books = (counts.totals(), counts.of_job(self._job))
        self._score.samples += 1
        if not all(_balanced(counts, self._score.pages) for counts in books):
            self._score.unbalanced += 1
            if self._score.unbalanced == 1:
                self._tell(f"the books do not balance: {books}")
        return books[0]

    def _strike(self, strike: Strike, done: int) -> bool:
        """Strike; return False if the target is not up yet, to try again soon."""
        tasks: frozenset[int] = frozenset()
        try:
            if strike.kind == "flushall":
                if not self._redis_answers(flush=True):
                    return False
            elif strike.kind == "redis":
                server = read_stack(self._lpm.folder).redis
                if server is None or not self._redis_answers():
                    return False
                strike.pids = [server.pid]
                psutil.Process(server.pid).kill()
            else:
                workers = owners.workers(self._owners)
                if not workers:
                    return False
                [(pid, children), *_] = workers.items()
                if strike.kind == "child":
                    pid = sorted(children)[strike.due % len(children)]
                victim = psutil.Process(pid)
                victim.suspend()  # otherwise it could start new children meanwhile
                victims = [victim, *victim.children(recursive=True)]
                strike.pids = [process.pid for process in victims]
                tasks = self._kill(victims)
        except psutil.NoSuchProcess:
            return False
        strike.done, strike.in_flight = done, len(tasks)
        self._score.in_flight += len(tasks)
        self._struck.append((strike, time.monotonic(), tasks))
        return True

    def _kill(self, victims: list[psutil.Process]) -> frozenset[int]:
        """Kill processes; return the tasks that they had begun and not committed."""
        try:
            for process in victims:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.suspend()
            end = time.monotonic() + 5
            while not all(map(_has_stopped, victims)) and time.monotonic() < end:
                time.sleep(0.001)
            pids = {process.pid for process in victims}
            notes = [note for note in owners.living(self._owners) if note.about["pid"] in pids]
            return frozenset[int]().union(*(note.in_flight for note in notes))
        finally:
            for process in victims:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

    def _is_back(
        self, strike: Strike, struck: float, tasks: frozenset[int], done: int, books: TaskCounts
    ) -> bool:
        """Whether Redis answers, all tasks in flight have ended, and a newer page has come."""
        if books.open and done <= (strike.done or 0) + self._at_a_time:
            return False
        if strike.kind in ("redis", "flushall") and not self._redis_answers():
            return False
        if self._lpm.tasks.any_open(tasks):
            return False
        strike.back_after_s = round(time.monotonic() - struck, 2)
        self._tell(
            f"strike {strike.number} of {len(self._score.strikes)} at page {strike.done:,}: "
            f"{strike}; back after {strike.back_after_s:.1f} s"
        )
        return True

    def _redis_answers(self, flush: bool = False) -> bool:
        with connect(read_stack(self._lpm.folder).redis_url or "") as client:
            try:
                if flush:
                    return bool(client.flushall())
                return bool(client.ping())
            except redis.RedisError:
                return False


def _balanced(books: TaskCounts, pages: int) -> bool:
    states = (books.open, books.completed, books.failed, books.skipped, books.expired)
    return books.accepted == sum(states) == pages and books.results == books.completed


def _has_stopped(process: psutil.Process) -> bool:
    try:
        return process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _count(
    score: Score,
    lpm: LocalPersistenceManager,
    job: Job,
    wanted: list[str],
    requests: dict[str, int],
) -> None:
    found = Counter(result["url"] for result in lpm.results.read())
    score.lost = len(set(wanted) - set(found))
    score.twice = sum(found.values()) - len(found)
    score.requests = sum(count for path, count in requests.items() if path != "/robots.txt")
    score.extra_fetches = score.requests - score.pages - score.planned_retries
    score.failures = {
        reason: count
        for counts in lpm.counts.reasons(job).values()
        for reason, count in counts.items()
    }
