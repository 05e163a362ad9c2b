"""Where a page's time goes, and how many calls it takes: `python -m benchmarks.profile` writes
PROFILE.md."""

import argparse
import functools
import gc
import json
import multiprocessing
import pkgutil
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "benchmarks" / ".work"
RUNS = WORK / "profile"
PEERS = WORK / "peers" / "bin" / "python"

STAGES: dict[str, tuple[str, ...]] = {
    "claim": ("crawler.worker.claims.Claims.claim",),
    "permit": (
        "crawler.resilience.permit.PermitClient.reserve",
        "crawler.resilience.permit.PermitClient.flush",
        "crawler.resilience.permit.PermitClient.report",
        "crawler.scraping.request_gate.RequestGate.request",
        "crawler.scraping.request_gate.RequestGate.close",
    ),
    "robots.txt": ("crawler.fetch.robots.Robots.check",),
    "worker: a page's begin and end": ("crawler.worker.pages.Pages._fetch",),
    "pipeline: attempt and outcome": ("crawler.scraping.attempt.Attempt.run",),
    "client: request and answer": ("crawler.fetch.http.Client.fetch",),
    "charset": ("crawler.fetch.charset.decode",),
    "HTML parse, and whether it may be": ("crawler.scraping.examine.parse",),
    "verdict": ("crawler.scraping.examine.judge", "crawler.scraping.attempt.judge"),
    "fields": ("crawler.sites.selectors.extract",),
    "structured data": ("crawler.sites.structured.extract",),
    "hashing": ("crawler.lpm.sha256",),
    "WARC record": ("crawler.db.raw_pages.packed",),
    "compression": ("crawler.db.raw_pages._member",),
    "segment: write and sync": ("crawler.db.raw_pages.SegmentWriter.append",),
    "SQLite: rows of a result": ("crawler.lpm._store_outcome",),
    "SQLite: the task's timeline": ("crawler.db.timeline.note",),
    "SQLite: begin, commit": ("crawler.lpm.LocalPersistenceManager.save_result",),
    "pending/": ("crawler.db.pending.PendingFiles.write",),
    "events for Flower: noted": ("crawler.celery_app.PageEvents.__call__",),
}
"""The functions of each stage, by the name under which their callers find them."""

ABOUT = """
One worker in one process collects pages from the fast server, once as a Celery child does (permit
and events through a Redis of its own) and once alone. Hooks around some functions take the time of
each stage, without that of the stages inside it: CPU of its thread, and time by the clock, which
includes waiting for the disk, for Redis and for other threads. What a coroutine waits for is not
its time.
""".strip()
"""How it is done, for the reader of PROFILE.md."""

RESTS = {
    "loop": "the loop itself: tasks, futures, callbacks",
    "writer": "writer: queue and futures",
    "claims": "claims: queue and futures",
    "events": "events for Flower: sent",
    "MainThread": "the main thread",
}
"""What is left of each thread beside its stages."""

WARM_UP = 200
"""Pages before the measured ones: connections, caches and robots.txt are there then."""
ON_THE_WAY = 0.01
"""A module with fewer calls a page than this, one in a hundred pages, is not on the way of a
page."""

Way = str
WAYS: dict[Way, str] = {"stack": "As a Celery child, with Redis", "alone": "Alone, without Redis"}


class Spent(NamedTuple):
    """What a stage took on one thread."""

    calls: int = 0
    cpu_ns: int = 0
    wall_ns: int = 0

    def plus(self, other: "Spent", sign: int = 1) -> "Spent":
        """The sum, or the difference."""
        return Spent(*(mine + sign * its for mine, its in zip(self, other, strict=True)))


Table = dict[tuple[str, str], Spent]
"""By thread and stage."""


class Stopwatch:
    """Takes the time of nested stages on any number of threads, each stage without those inside
    it."""

    def __init__(self) -> None:
        self._mine = threading.local()
        self._all: list[tuple[str, dict[str, list[int]]]] = []

    def _start(self) -> tuple[list[list[int]], dict[str, list[int]]]:
        try:
            return self._mine.stack, self._mine.spent
        except AttributeError:
            self._mine.stack, self._mine.spent = [], {}
            self._all.append((thread_kind(threading.current_thread()), self._mine.spent))
            return self._mine.stack, self._mine.spent

    def enter(self) -> None:
        """A stage begins on this thread."""
        stack, _ = self._start()
        stack.append([0, 0, time.perf_counter_ns(), time.thread_time_ns()])

    def leave(self, stage: str, calls: int) -> None:
        """It ends."""
        cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
        stack, spent = self._start()
        inner_cpu, inner_wall, began_wall, began_cpu = stack.pop()
        cpu, wall = cpu - began_cpu, wall - began_wall
        if stack:
            stack[-1][0] += cpu
            stack[-1][1] += wall
        sums = spent.setdefault(stage, [0, 0, 0])
        sums[0] += calls
        sums[1] += cpu - inner_cpu
        sums[2] += wall - inner_wall

    def table(self) -> Table:
        """What was spent so far."""
        table: Table = {}
        for thread, spent in list(self._all):
            for stage, sums in list(spent.items()):
                table[thread, stage] = table.get((thread, stage), Spent()).plus(Spent(*sums))
        return table

    def hook_all(self) -> None:
        """Take the time of all stages from now on."""
        for stage, paths in STAGES.items():
            for path in paths:
                self._hook(stage, path)
        gc.callbacks.append(
            lambda phase, _: (
                self.enter() if phase == "start" else self.leave("garbage collection", 1)
            )
        )

    def _hook(self, stage: str, path: str) -> None:
        """Put a function that takes its time in the place of the one at this path."""
        home, _, name = path.rpartition(".")
        try:
            place = pkgutil.resolve_name(home)
            plain = getattr(place, name)
        except (ImportError, AttributeError):
            raise SystemExit(
                f"STAGES in benchmarks/profile.py names {path}, and there is no such function"
            ) from None

        @functools.wraps(plain)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.enter()
            try:
                result = plain(*args, **kwargs)
            finally:
                self.leave(stage, 1)
            if isinstance(result, types.CoroutineType):
                return self._steps(stage, result)
            return _Context(self, stage, result) if hasattr(result, "__aenter__") else result

        setattr(place, name, timed)

    @types.coroutine
    def _steps(self, stage: str, coroutine: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Await, with the clock on only while the coroutine runs."""
        step, value = coroutine.send, None
        while True:
            self.enter()
            try:
                waits_for = step(value)
            except StopIteration as end:
                return end.value
            finally:
                self.leave(stage, 0)
            try:
                step, value = coroutine.send, (yield waits_for)
            except BaseException as error:
                step, value = coroutine.throw, error


class _Context:
    """An asynchronous context manager with its time taken, which is what a permit's gate is."""

    def __init__(self, watch: Stopwatch, stage: str, inner: Any) -> None:
        self._watch, self._stage, self._inner = watch, stage, inner

    def __aenter__(self) -> Any:
        return self._watch._steps(self._stage, self._inner.__aenter__())

    def __aexit__(self, *about: Any) -> Any:
        return self._watch._steps(self._stage, self._inner.__aexit__(*about))


def thread_kind(thread: threading.Thread) -> str:
    """What a thread is for: its name without a number."""
    return (
        thread.name.rpartition("_")[0]
        if thread.name[-1:].isdigit() and "_" in thread.name
        else thread.name
    )


def threads_cpu() -> Counter[str]:
    """The nanoseconds of CPU that each kind of living thread has used."""
    used: Counter[str] = Counter()
    for thread in threading.enumerate():
        if thread.ident is not None:
            used[thread_kind(thread)] += time.clock_gettime_ns(
                time.pthread_getcpuclockid(thread.ident)
            )
    return used


# One run, each in a process of its own


@contextmanager
def corridor(
    folder: Path, way: Way, prepare: Callable[[], None]
) -> Iterator[Callable[[Sequence[str]], None]]:
    """A worker in this process, made after `prepare`; what is yielded collects URLs until all are
    stored."""
    from benchmarks.contestants import Order
    from benchmarks.contestants.corridor import settings_of
    from benchmarks.permit import own_redis
    from crawler.bulk import import_file
    from crawler.lpm import LocalPersistenceManager
    from crawler.models import QUEUES
    from crawler.worker import Worker, tune_garbage_collection

    def collect(urls: Sequence[str]) -> None:
        file = folder / f"{len(urls)}.txt"
        file.write_text("\n".join(urls) + "\n")
        _, job = import_file(settings, file)
        while (books := lpm.counts.of_job(job)).open:
            worker.run_slice("", QUEUES)
            time.sleep(0.01)
        if books.completed != books.accepted:
            raise SystemExit(f"not everything was collected: {books}")

    with ExitStack() as ends:
        redis_url = ends.enter_context(contextmanager(own_redis)(folder)) if way == "stack" else ""
        settings = settings_of(Order([], folder, {"env": {"REDIS_URL": redis_url}}))
        prepare()
        tune_garbage_collection()
        lpm = ends.enter_context(closing(LocalPersistenceManager(settings.data_dir)))
        if way == "stack":
            from crawler import celery_app, child

            with closing(child.fleet_permit(lpm.owners, "profile")) as permit:
                permit.nothing_booked()
            events = celery_app.PageEvents(celery_app.app, "profile")
            ends.callback(events.stop)
            worker = Worker(
                settings, watch=events, permit=functools.partial(child.fleet_permit, lpm.owners)
            )
        else:
            worker = Worker(settings, kind="cli")
        ends.callback(worker.stop)
        yield collect


class Stages(NamedTuple):
    """One run with its time taken."""

    pages: int
    seconds: float
    cpu_ns: int
    threads: Counter[str]
    table: Table


def take_times(folder: Path, way: Way, urls: Sequence[str], hooks: bool) -> Stages:
    """Collect pages, after some that only warm up."""
    watch = Stopwatch()
    with corridor(folder, way, watch.hook_all if hooks else lambda: None) as collect:
        collect([f"{url}?warm-up" for url in urls[:WARM_UP]])
        before, threads, cpu, began = (
            watch.table(),
            threads_cpu(),
            time.process_time_ns(),
            time.perf_counter(),
        )
        collect(urls)
        seconds, cpu = time.perf_counter() - began, time.process_time_ns() - cpu
        after, used = watch.table(), threads_cpu()
    used.subtract(threads)
    table = {key: spent.plus(before.get(key, Spent()), -1) for key, spent in after.items()}
    return Stages(len(urls), seconds, cpu, used, table)


class Calls(NamedTuple):
    """How often functions began and how often coroutines and generators went on, by module and
    function.

    What is not of the package in question has neither name.
    """

    begun: Counter[tuple[str, str]]
    resumed: Counter[tuple[str, str]]


class Count:
    """Counts calls on threads."""

    def __init__(self) -> None:
        self._all: list[Counter[tuple[types.CodeType, bool]]] = []

    def begin(self, frame: types.FrameType, event: str, arg: object) -> None:
        """The profile function with which a thread begins to count."""
        # A counter for each thread: two that add to the same one would lose some.
        seen: Counter[tuple[types.CodeType, bool]] = Counter()
        codes: dict[types.CodeType, bytes] = {}
        self._all.append(seen)

        def note(frame: types.FrameType, event: str, arg: object) -> None:
            if event == "call":
                code = frame.f_code
                if (bytecode := codes.get(code)) is None:
                    bytecode = codes[code] = code.co_code
                # A frame begins or goes on at a RESUME; its argument says which.
                seen[code, frame.f_lasti < 0 or bytecode[frame.f_lasti + 1] & 3 == 0] += 1

        sys.setprofile(note)
        note(frame, event, arg)

    def calls(self, package: types.ModuleType) -> Calls:
        """What was counted so far."""
        home, calls = Path(str(package.__file__)).parent, Calls(Counter(), Counter())
        for seen in self._all:
            for (code, fresh), count in list(seen.items()):
                path = Path(code.co_filename)
                key = (
                    (str(path.relative_to(home)), code.co_qualname)
                    if path.is_relative_to(home)
                    else ("", "")
                )
                (calls.begun if fresh else calls.resumed)[key] += count
        return calls


def count_calls(folder: Path, way: Way, urls: Sequence[str]) -> Calls:
    """Collect pages and count on all threads but this one, which only imports and waits."""
    import crawler

    count = Count()
    with corridor(folder, way, lambda: threading.setprofile(count.begin)) as collect:
        collect(urls)
        return count.calls(crawler)


def count_scrapy(folder: Path, urls: Sequence[str]) -> Calls:
    """The same for Scrapy as shipped; in the environment of the peers."""
    from benchmarks.contestants import Order

    contestant, count = import_module("benchmarks.contestants.scrapy_shipped"), Count()
    given = Order(list(urls), folder, {"requests": 16})
    contestant.crawl(
        given, lambda: sys.setprofile(count.begin), lambda stored: sys.setprofile(None)
    )
    return count.calls(import_module("scrapy"))


def apart(function: Callable[..., T], *args: Any) -> T:
    """What a function returns for a new folder, which is left, and its other arguments, called in a
    fresh process."""
    RUNS.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{function.__name__}-", dir=RUNS))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, folder, *args).result()


def apart_scrapy(urls: Sequence[str]) -> Calls:
    """What Scrapy calls, counted by the Python that has it."""
    code = (
        "import json, pathlib, sys; from benchmarks.profile import count_scrapy\n"
        "folder = pathlib.Path(sys.argv[1]); calls = count_scrapy(folder, "
        "sys.stdin.read().split())\n"
        "(folder / 'calls').write_text(json.dumps([list(each.items()) for each in calls]))"
    )
    with tempfile.TemporaryDirectory(prefix="count_scrapy-", dir=WORK) as folder:
        argv = [str(PEERS), "-c", code, folder]
        subprocess.run(
            argv, cwd=ROOT, check=True, input="\n".join(urls), text=True, capture_output=True
        )
        found = json.loads(Path(folder, "calls").read_text())
    begun, resumed = (Counter({tuple(key): count for key, count in each}) for each in found)
    return Calls(begun, resumed)


# What is told


def stages_told(urls: Sequence[str]) -> str:
    """The stages of a page, both ways."""
    parts = ["## Microseconds a page\n"]
    for way, meaning in WAYS.items():
        plain, hooked = apart(take_times, way, urls, False), apart(take_times, way, urls, True)
        parts.append(_stages_told(meaning, plain, hooked))
    return "\n".join(parts)


def _stages_told(meaning: str, plain: Stages, hooked: Stages) -> str:
    pages, bare, whole = (
        hooked.pages,
        plain.cpu_ns / plain.pages / 1000,
        hooked.cpu_ns / hooked.pages / 1000,
    )
    order = [*STAGES, "garbage collection"]
    rows = [
        (stage, thread, spent) for (thread, stage), spent in hooked.table.items() if spent.calls
    ]
    rows.sort(key=lambda row: (order.index(row[0]), row[1]))
    silent = [stage for stage in STAGES if not any(row[0] == stage for row in rows)]
    for thread, used in hooked.threads.most_common():
        in_stages = sum(spent.cpu_ns for (its, _), spent in hooked.table.items() if its == thread)
        rows.append((RESTS.get(thread, "the rest"), thread, Spent(cpu_ns=used - in_stages)))
    rows.append(
        (
            "what has no thread, or one that has ended",
            "",
            Spent(cpu_ns=hooked.cpu_ns - hooked.threads.total()),
        )
    )
    lines = [
        f"{pages:,} pages. Without hooks {plain.pages / plain.seconds:,.0f} pages/s and "
        f"{bare:,.0f} µs of CPU a page; with them {pages / hooked.seconds:,.0f} pages/s and "
        f"{whole:,.0f} µs. What they cost is the difference, as far as the machine was quiet; it "
        "lies in the stages that are called most often.\n",
        "| stage | thread | calls a page | CPU, µs | clock, µs | of all CPU |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for stage, thread, (calls, cpu_ns, wall_ns) in rows:
        counted = (f"{calls / pages:.2f}", f"{wall_ns / pages / 1000:.0f}") if calls else ("", "")
        cpu = f"{cpu_ns / pages / 1000:.0f}"
        lines.append(
            f"| {stage} | {thread} | {counted[0]} | {cpu} | {counted[1]} | "
            f"{cpu_ns / hooked.cpu_ns:.1%} |"
        )
    lines.append(f"| **all** | | | **{whole:.0f}** | **{hooked.seconds / pages * 1e6:.0f}** | |")
    lines += [f"\nNever called: {', '.join(silent)}."] if silent else []
    return "\n".join([f"### {meaning}\n", *lines, ""])


def calls_told(urls: Sequence[str], few: int, top: int) -> str:
    """The calls of a page in this package's own modules, both ways."""
    parts = [
        "## Python calls a page\n",
        f"The difference between a run of {len(urls):,} pages and one of {few:,}, so that a start "
        "costs nothing. A function that begins is a call, and so is a comprehension where Python "
        "makes a function of it; a coroutine that goes on is not. All threads of the worker "
        "count; the import does not. Goal: at most 150 calls in 12 modules; Scrapy had 1,018 in "
        "61 when that was set. There are more modules because each is small.\n",
    ]
    for way, meaning in WAYS.items():
        short, long = apart(count_calls, way, urls[:few]), apart(count_calls, way, urls)
        parts.append(_calls_told(meaning, short, long, len(urls) - few, top))
    if PEERS.exists():
        short, long = apart_scrapy(urls[:few]), apart_scrapy(urls)
        parts.append(_calls_told("Scrapy as shipped, beside it", short, long, len(urls) - few, 0))
    return "\n".join(parts)


def _calls_told(meaning: str, short: Calls, long: Calls, pages: int, top: int) -> str:
    begun, resumed = Counter(long.begun), Counter(long.resumed)
    begun.subtract(short.begun)
    resumed.subtract(short.resumed)
    modules: Counter[str] = Counter()
    for (module, _), count in begun.items():
        modules[module] += count
    others = modules.pop("") / pages
    own = {
        module: count / pages
        for module, count in modules.most_common()
        if count / pages >= ON_THE_WAY
    }
    functions = Counter({key: count for key, count in begun.items() if key[0]}).most_common(top)
    again = sum(count for (module, _), count in resumed.items() if module) / pages
    lines = [
        f"**{modules.total() / pages:.0f} calls a page in {len(own)} modules** of its own. "
        f"Coroutines and generators of these go on {again:.0f} times; Python code of others is "
        f"called {others:.0f} times.\n",
    ]
    if top:
        lines += ["| module | calls a page |", "|---|---:|"]
        lines += [f"| {module} | {count:.2f} |" for module, count in own.items()]
        lines += ["\n| function | module | calls a page |", "|---|---|---:|"]
        lines += [
            f"| `{function}` | {module} | {count / pages:.2f} |"
            for (module, function), count in functions
        ]
    return "\n".join([f"### {meaning}\n", *lines, ""])


def heading() -> str:
    """What the figures were taken on."""
    from benchmarks.report import machine

    return (
        f"# Where a page's time goes\n\nWritten by `python -m benchmarks.profile`. {machine()}\n\n"
        f"{ABOUT}\n"
    )


def main() -> None:
    """Print what is asked for; both together are written to PROFILE.md."""
    from benchmarks import measure, site

    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--stages", action="store_true", help="only the time of each stage")
    options.add_argument("--calls", action="store_true", help="only the number of calls")
    options.add_argument(
        "--pages",
        type=int,
        default=2_000,
        help="pages of a run that is timed; a quarter is counted",
    )
    options.add_argument("--top", type=int, default=40, help="functions that are listed")
    given = options.parse_args()
    both = given.stages == given.calls
    site.write(WORK / "site")
    parts = [heading()]
    with site.served(WORK / "site", WORK / "nginx"):
        if both or given.stages:
            measure.settle(RUNS)
            parts.append(stages_told(site.urls(site.FAST, given.pages)))
        if both or given.calls:
            parts.append(
                calls_told(site.urls(site.FAST, given.pages // 4), given.pages // 20, given.top)
            )
    shutil.rmtree(RUNS, ignore_errors=True)
    text = "\n".join(parts)
    print(text)
    if both:
        (ROOT / "benchmarks" / "PROFILE.md").write_text(text)


if __name__ == "__main__":
    main()
