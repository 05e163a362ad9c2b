"""The parts of the corridor by themselves, and how it grows: `python -m benchmarks.parts` fills
them into RESULTS.md.

Everything is measured in interleaved rounds; a figure is the median, with the least and the most
behind it. A ratio is taken within each round, and is the median of these.
"""

import argparse
import csv
import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, redirect_stderr
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks import measure, site
from benchmarks.permit import own_redis
from benchmarks.profile import RUNS, WORK, apart
from benchmarks.report import machine, section, table

ROOM = 32
"""Tasks a claim: the pages that a worker process has in flight."""
CHILDREN = 4
"""Celery's children in a stack."""
HOSTS = 100
"""The rows of a file to import are spread over so many hosts, none of which is there."""
NO_REDIS = "redis://127.0.0.1:1/0"
WINDOW = 2_000


class Ran(NamedTuple):
    """What a command took."""

    seconds: float
    peak_mb: float


def crawler(data: Path, *arguments: object) -> Ran:
    """A command of the program on a store, without any Redis."""
    return ran([sys.executable, "-m", "crawler", *map(str, arguments)], data)


def ran(argv: Sequence[str], data: Path) -> Ran:
    """A command from its start to its end, with the most memory that its process had."""
    env = {**os.environ, "CRAWLER_DATA_DIR": str(data), "REDIS_URL": NO_REDIS}
    log = WORK / "parts.log"
    with log.open("ab") as out:
        began = time.perf_counter()
        process = subprocess.Popen(argv, cwd=measure.ROOT, env=env, stdout=out, stderr=out)
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(argv)} ended with {process.returncode}; see {log}")
    return Ran(seconds, used.ru_maxrss * 1024 / 1e6)


def rounds(ways: Mapping[str, Callable[[], float]], count: int) -> dict[str, list[float]]:
    """What each way gives, one after the other, again and again."""
    figures: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(count):
        for name, way in ways.items():
            figures[name].append(way())
    return figures


def told(figures: Sequence[float], digits: int = 0) -> str:
    """The median, with the least and the most."""
    middle = f"{statistics.median(figures):,.{digits}f}"
    return (
        f"{middle} ({min(figures):,.{digits}f}–{max(figures):,.{digits}f})"
        if len(figures) > 1
        else middle
    )


def ratio(figures: Sequence[float], base: Sequence[float]) -> float:
    """The median of the ratios of all rounds that both were in."""
    return statistics.median(mine / its for mine, its in zip(figures, base, strict=False))


# What is worked on


def parcels(file: Path, count: int, kind: str = "parcels") -> Path:
    """A file with a row for each of so many parcels."""
    with file.open("w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(("url", "parcel_id", "state", "county"))
        for n in range(count):
            url = f"https://assessor-{n % HOSTS:02d}.example/{kind}/{n:07d}.html"
            rows.writerow((url, f"{n:07d}-{n % 89}", "CA", f"County {n % HOSTS}"))
    return file


@contextmanager
def folder(name: str) -> Iterator[Path]:
    """A folder for what is worked on, removed in the end."""
    path = WORK / f"parts-{name}"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def pages(work: Path, count: int) -> list[tuple[Any, Any]]:
    """Pages of the site as they come from the server, each with what the pipeline reads in it."""
    from benchmarks.contestants.corridor import SITE
    from crawler import sites
    from crawler.models import Page
    from crawler.scraping.examine import examine

    (work / "config" / "sites").mkdir(parents=True)
    (work / "config" / "sites" / "bench.yaml").write_text(json.dumps(SITE))
    known, headers, made = (
        sites.load(work / "config"),
        (("Content-Type", "text/html"), ("Server", "nginx")),
        [],
    )
    for number, url in enumerate(site.urls(site.FAST, count)):
        body = site.page(number).encode()
        page = Page(
            url=url, final_url=url, status=200, reason="OK", headers=headers, body=body, raw=body,
            fetched_at=time.time(), fetch_s=0.1,
        )  # fmt: skip
        made.append((page, examine(page, known.of(url))))
    return made


def claimed(ledger: Any, room: int, each: int = 2) -> list[Any]:
    """A claim as a worker makes it: what is due is looked up, and some of each domain are
    leased."""
    from crawler.db.dispatch import Place, lines_of
    from crawler.models import QUEUES

    now = time.time()
    ledger.wake(now)
    lines = lines_of(QUEUES)
    ledger.has_due(lines)
    due = islice(chain.from_iterable(map(ledger.due, lines)), room)
    tasks, _ = ledger.claim(
        "benchmark", [Place(place, each, lambda job: True) for place in due], room, now
    )
    return list(tasks)


def outcomes(tasks: Sequence[Any], stock: Sequence[tuple[Any, Any]]) -> list[Any]:
    """Good ends of these tasks, each with a page that no other has."""
    from msgspec.structs import replace

    from crawler.models import Outcome, TaskStatus

    ends = []
    for task in tasks:
        page, read = stock[task.id % len(stock)]
        mark = b"<!-- %d -->" % task.id
        ends.append(
            Outcome(
                task=task, status=TaskStatus.COMPLETED, worker="benchmark", verdict="ok",
                parse_ms=1.0, page=replace(page, body=page.body + mark, raw=page.raw + mark),
                record=read.encoded, parser=read.parser,
            )
        )  # fmt: skip
    return ends


def delay_loop(redis_url: str, calls: int) -> float:
    """Messages a second of Celery's `delay()` in a loop, as shipped."""
    from celery import Celery

    app = Celery("loop", broker=redis_url)

    @app.task(name="loop.collect", ignore_result=True)
    def collect(url: str, parcel_id: str, state: str, county: str) -> None: ...

    row = ("https://assessor-01.example/parcels/0000001.html", "0000001-1", "CA", "County 1")
    collect.delay(*row)
    began = time.perf_counter()
    for _ in range(calls):
        collect.delay(*row)
    rate = calls / (time.perf_counter() - began)
    app.control.purge()
    app.close()
    return rate


# The parts


def bulk_import(small: bool) -> str:
    """`bulk import` of files, beside `delay()` in a loop."""
    sizes = {1_000: 2, 10_000: 1} if small else {10_000: 3, 100_000: 3, 1_000_000: 1}
    took: dict[int, list[Ran]] = {size: [] for size in sizes}
    loop: list[float] = []
    with folder("import") as work, contextmanager(own_redis)(work) as redis_url:
        files = {size: parcels(work / f"{size}.csv", size) for size in sizes}
        for turn in range(max(sizes.values())):
            for size, file in files.items():
                if turn < sizes[size]:
                    took[size].append(crawler(work / "data", "bulk", "import", file))
                    shutil.rmtree(work / "data")
            loop.append(delay_loop(redis_url, 500 if small else 5_000))
    rows = []
    for size, runs in took.items():
        rates = [size / run.seconds for run in runs]
        seconds, peak = told([run.seconds for run in runs], 2), told([run.peak_mb for run in runs])
        rows.append([f"{size:,} rows", seconds, told(rates), peak, f"{ratio(rates, loop):.1f} ×"])
    rows.append(["`delay()`", "", told(loop), "", "1 ×"])
    once = [f"{size:,}" for size, times in sizes.items() if times == 1]
    return "\n\n".join(
        [
            "### Bulk import",
            "`python -m crawler bulk import` of a CSV file with url, parcel_id, state and county "
            "into an empty store, without Redis, from the start of the process to its end; beside "
            "it, Celery's `delay()` of an empty task, 5,000 times with such a row, into a Valkey. "
            f"{', '.join(once)} rows were imported once. Goal: a million in 60 s with 200 MB, at "
            "least 15 × as fast as `delay()`.",
            table(["", "seconds", "rows/s", "peak memory, MB", "to `delay()`"], rows),
        ]
    )


def publish(small: bool) -> str:
    """Chunks into Redis, beside `delay()` in a loop."""
    figures = apart(_publish, small)
    rows = [
        [name, told(rates), f"{ratio(rates, figures['`delay()`']):.1f} ×"]
        for name, rates in figures.items()
    ]
    return "\n\n".join(
        [
            "### Publishing",
            f"The maintainer fills the window of {WINDOW:,} tasks: chosen, noted in the ledger, "
            "and put into Valkey in chunks; beside it, Celery's `delay()` in a loop.",
            table(["", "tasks/s", "to `delay()`"], rows),
        ]
    )


def _publish(work: Path, small: bool) -> dict[str, list[float]]:
    with contextmanager(own_redis)(work) as redis_url:
        os.environ |= {"CRAWLER_DATA_DIR": str(work / "data"), "REDIS_URL": redis_url}
        from crawler import celery_app, config, tasks
        from crawler.maintainer import Maintainer

        with stored(work, 2 * WINDOW) as lpm:
            maintainer = Maintainer(lpm, celery_app.RedisBroker(redis_url), config.load())

            def fill() -> float:
                began = time.perf_counter()
                count = maintainer.fill(CHILDREN)
                seconds = time.perf_counter() - began
                lpm.dispatch.unpublish(lpm.dispatch.published())
                tasks.app.control.purge()
                return count / seconds

            fill()
            ways = {"chunks": fill, "`delay()`": lambda: delay_loop(redis_url, WINDOW)}
            return rounds(ways, 2 if small else 7)


def claims(small: bool) -> str:
    """Claims in ledgers of different sizes, beside tasks claimed one by one."""
    rows = []
    sizes = (1_000, 10_000) if small else (10_000, 100_000, 1_000_000)
    figures = apart(_claims, sizes, 2 if small else 5)
    for size in sizes:
        many, single = figures[f"{size} {ROOM}"], figures[f"{size} 1"]
        slowed = f"{ratio(many, figures[f'{sizes[0]} {ROOM}']):.2f}"
        rows.append(
            [f"{size:,} tasks", told(many), told(single), f"{ratio(many, single):.1f} ×", slowed]
        )
    return "\n\n".join(
        [
            "### Claims",
            f"What a worker does to have {ROOM} tasks of {HOSTS} domains, two of each: what has "
            "waited is woken, what is due is looked up, and leased in one transaction.",
            table(
                [
                    "ledger",
                    f"tasks/s, {ROOM} at a time",
                    "tasks/s, one by one",
                    "ratio",
                    f"to {sizes[0]:,}",
                ],
                rows,
            ),
        ]
    )


def _claims(work: Path, sizes: Sequence[int], turns: int) -> dict[str, list[float]]:
    from crawler.lpm import LocalPersistenceManager

    ways: dict[str, Callable[[], float]] = {}
    for size in sizes:
        data = work / str(size)
        crawler(data, "bulk", "import", parcels(work / "rows.csv", size))
        ledger = LocalPersistenceManager(data).tasks
        ways[f"{size} {ROOM}"] = functools.partial(_claim, ledger, ROOM, min(1_000, size // 10))
        ways[f"{size} 1"] = functools.partial(_claim, ledger, 1, min(200, size // 50))
    return rounds(ways, turns)


def _claim(ledger: Any, room: int, least: int) -> float:
    began, count = time.perf_counter(), 0
    while count < least:
        count += len(claimed(ledger, room))
    return count / (time.perf_counter() - began)


def commit(small: bool) -> str:
    """Results stored in groups, beside single ones."""
    groups = {1: 100, 10: 400, 100: 1_000}
    figures = apart(
        _commit,
        {size: count // 4 if small else count for size, count in groups.items()},
        2 if small else 5,
    )
    rows = [
        [f"{size}", told(figures[str(size)]), f"{ratio(figures[str(size)], figures['1']):.1f} ×"]
        for size in groups
    ]
    return "\n\n".join(
        [
            "### Group commit",
            "Results with their pages, durable: pages compressed and synced, one transaction with "
            "`synchronous=FULL`, and a file in pending/ each.",
            table(["results a group", "results/s", "to single ones"], rows),
        ]
    )


def _commit(work: Path, groups: Mapping[int, int], turns: int) -> dict[str, list[float]]:
    with stored(work, sum(groups.values()) * turns) as lpm:
        stock = pages(work, min(500, max(groups.values())))

        def save(size: int) -> float:
            ends: list[Any] = []
            while len(ends) < groups[size]:
                ends += outcomes(claimed(lpm.tasks, min(500, groups[size] - len(ends)), 500), stock)
            began = time.perf_counter()
            for place in range(0, len(ends), size):
                if not all(lpm.save_result(*ends[place : place + size])):
                    raise SystemExit("a result was not stored")
            return len(ends) / (time.perf_counter() - began)

        return rounds({str(size): functools.partial(save, size) for size in groups}, turns)


@contextmanager
def stored(work: Path, count: int) -> Iterator[Any]:
    """A store with so many tasks, in this process."""
    from crawler.lpm import LocalPersistenceManager

    crawler(work / "data", "bulk", "import", parcels(work / "rows.csv", count))
    with closing(LocalPersistenceManager(work / "data")) as lpm:
        yield lpm


PLAIN_EXPORT = """
import json, pathlib, sys
with open(sys.argv[2], "w") as out:
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
        out.write(json.dumps(json.loads(path.read_text())) + "\\n")
"""


def export(small: bool) -> str:
    """`results export`, beside a script over the files in pending/."""
    count, turns = (500, 2) if small else (10_000, 5)
    with folder("export") as work:
        with stored(work, count) as lpm:
            stock = pages(work, min(500, count))
            while tasks := claimed(lpm.tasks, 500, 500):
                lpm.save_result(*outcomes(tasks, stock))
        name = "`results export --format jsonl`"
        ours, plain = work / "ours.jsonl", work / "plain.jsonl"
        pending = work / "data" / "pending"
        script = [sys.executable, "-c", PLAIN_EXPORT, str(pending), str(plain)]

        def exported() -> float:
            seconds = crawler(
                work / "data", "results", "export", "--format", "jsonl", "--output", ours
            ).seconds
            assert len(ours.read_bytes().splitlines()) == count
            return count / seconds

        figures = rounds(
            {name: exported, "script": lambda: count / ran(script, work / "data").seconds}, turns
        )
        assert _by_id(ours) == _by_id(plain)
    base = figures["script"]
    rows = [
        [name, told(figures[name]), f"{ratio(figures[name], base):.1f} ×"],
        ["a script", told(base), "1 ×"],
    ]
    return "\n\n".join(
        [
            "### Export",
            f"{count:,} results to one file of JSON lines, from the start of the process to its "
            "end; beside it, a script of four lines that reads each file in pending/ and writes "
            "it as a line.",
            table(["", "results/s", "to the script"], rows),
        ]
    )


def _by_id(file: Path) -> dict[str, Any]:
    return {result["task_id"]: result for result in map(json.loads, file.read_text().splitlines())}


def start_up(small: bool) -> str:
    """How long commands take that have nearly nothing to do."""
    with folder("start-up") as work:
        data, numbers = work / "data", iter(range(1_000_000))
        crawler(data, "bulk", "import", parcels(work / "rows.csv", 10))

        def import_one() -> float:
            file = parcels(work / "one.csv", 1, f"only-{next(numbers)}")
            return crawler(data, "bulk", "import", file).seconds

        ways: dict[str, Callable[[], float]] = {
            "python -c pass": lambda: ran([sys.executable, "-c", "pass"], data).seconds
        }
        for line in ("--help", "--version", "results list", "status"):
            ways[line] = functools.partial(_seconds, data, line.split())
        ways["bulk import, one row"] = import_one
        figures = {
            name: [1000 * each for each in found]
            for name, found in rounds(ways, 3 if small else 10).items()
        }
    base = figures["python -c pass"]
    rows = [
        [f"`{name}`", told(found), f"{ratio(found, base):.1f} ×"] for name, found in figures.items()
    ]
    return "\n\n".join(
        [
            "### Start-up",
            "Commands of the program with a store of ten tasks and no Redis, from start to end.",
            table(["", "ms", "to Python itself"], rows),
        ]
    )


def _seconds(data: Path, arguments: Sequence[str]) -> float:
    return crawler(data, *arguments).seconds


# How it grows


def grown(data: Path, size: int) -> None:
    """A store with so many tasks of earlier jobs: half of them collected and synced, half waiting
    in a paused job."""
    import msgspec
    from msgspec.structs import replace

    from crawler.lpm import LocalPersistenceManager

    done, waiting = data.parent / "done.csv", data.parent / "waiting.csv"
    crawler(data, "bulk", "import", parcels(waiting, size // 2, "waiting"))
    crawler(data, "job", "pause", waiting.name)
    crawler(data, "bulk", "import", parcels(done, size - size // 2, "done"))
    [(page, read)] = pages(data.parent, 1)
    # A page that is not kept, and a record of the eight fields: a million should fit on the disk,
    # some times over.
    record = {name: read.record[name] for name in site.FIELDS}
    stock = [(replace(page, body=b"", raw=b""), replace(read, encoded=msgspec.json.encode(record)))]
    with closing(LocalPersistenceManager(data, raw="none")) as lpm:
        lpm.files.write = lambda tasks: None  # type: ignore[method-assign]  # they are synced at once
        while tasks := claimed(lpm.tasks, 2_000, 2_000):
            lpm.save_result(*outcomes(tasks, stock))
            lpm.mark_synced([task.task_id for task in tasks])


def growth(small: bool) -> str:
    """The whole stack beside ledgers of different sizes."""
    sizes, count, turns = (
        ((1_000, 10_000), 300, 1) if small else ((10_000, 100_000, 1_000_000), 5_000, 3)
    )
    rates: dict[str, list[float]] = {str(size): [] for size in sizes}
    peaks: dict[str, list[float]] = {str(size): [] for size in sizes}
    bytes_ = {}
    with folder("growth") as work, served():
        for size in sizes:
            (work / str(size)).mkdir()
            grown(work / str(size) / "data", size)
            bytes_[size] = sum(
                path.stat().st_size for path in (work / str(size) / "data").glob("lpm.db*")
            )
        for _ in range(turns):
            for size in sizes:
                rate, peak = apart(_crawl_beside, work / str(size) / "data", count)
                rates[str(size)].append(rate)
                peaks[str(size)].append(peak)
    first = rates[str(sizes[0])]
    rows = [
        [
            f"{size:,} tasks",
            f"{bytes_[size] / 1e6:,.0f}",
            told(rates[str(size)]),
            told(peaks[str(size)]),
            f"{ratio(rates[str(size)], first):.2f}",
        ]
        for size in sizes
    ]
    return "\n\n".join(
        [
            "### Growth",
            f"{count:,} pages through the whole stack with {CHILDREN} children, in a ledger that "
            "holds so many tasks of earlier jobs: half of them collected (eight fields each) and "
            "synced, half waiting in a paused job. From the import to the last commit; memory is "
            "the sum of what is each process's own (PSS). Goal: at a million tasks 0.9 of the "
            "pages/s at 10,000.",
            table(
                ["ledger", "lpm.db, MB", "pages/s", "peak memory, MB", f"pages/s to {sizes[0]:,}"],
                rows,
            ),
        ]
    )


def memory(small: bool) -> str:
    """The stack's memory over many pages."""
    variants, count, step = (1, 600, 100) if small else (5, site.PAGES, 10_000)
    urls = [f"{url}?variant={n}" for n in range(variants) for url in site.urls(site.FAST, count)]
    with served():
        rate, samples = apart(_crawl_long, urls, step)
    settled = [(pages_, mb) for pages_, mb in samples if pages_ >= 2 * step]
    slope = statistics.linear_regression(*zip(*settled, strict=True)).slope * 10_000
    rows = [[f"{pages_:,}", f"{mb:,.1f}"] for pages_, mb in samples]
    return "\n\n".join(
        [
            "### Memory over many pages",
            f"{len(urls):,} pages through the whole stack with {CHILDREN} children, at "
            f"{rate:,.0f} pages/s, once; the sum of what is each process's own (PSS), the mean of "
            "five looks. From the second row on the line through these points rises by "
            f"**{slope:+.2f} MB per 10,000 pages** (goal: at most 1).",
            table(["pages", "MB"], rows),
        ]
    )


@contextmanager
def served() -> Iterator[None]:
    """The site."""
    site.write(WORK / "site")
    with site.served(WORK / "site", WORK / "nginx"):
        yield


@contextmanager
def stack(work: Path) -> Iterator[Any]:
    """The whole stack in a store of its own; its settings."""
    from benchmarks.contestants import Order
    from benchmarks.contestants.corridor import settings_of, workers

    settings = settings_of(Order([], work, {}))
    with (WORK / "parts.log").open("a") as log, redirect_stderr(log), workers(settings, CHILDREN):
        yield settings


def own_mb() -> float:
    """What this process and all that it started have for themselves."""
    me = psutil.Process()
    return sum(map(measure.own_bytes, [me, *me.children(recursive=True)])) / 1e6


def _crawl_beside(work: Path, data: Path, count: int) -> tuple[float, float]:
    from benchmarks.contestants.corridor import wait_for_end
    from crawler.bulk import import_file

    shutil.copytree(data, work / "data")
    file = work / "urls.csv"
    file.write_text("url,priority\n" + "".join(f"{url},1\n" for url in site.urls(site.FAST, count)))
    with stack(work) as settings:
        watch = measure.Watch(os.getpid())
        try:
            began = time.perf_counter()
            _, job = import_file(settings, file)
            wait_for_end(settings, job)
            rate = count / (time.perf_counter() - began)
        finally:
            watch.stop()
    return rate, watch.peak / 1e6


def _crawl_long(
    work: Path, urls: Sequence[str], step: int
) -> tuple[float, list[tuple[int, float]]]:
    from crawler.bulk import import_file
    from crawler.lpm import LocalPersistenceManager

    file = work / "urls.txt"
    file.write_text("\n".join(urls) + "\n")
    samples: list[tuple[int, float]] = []
    with stack(work) as settings, closing(LocalPersistenceManager(settings.data_dir)) as lpm:
        _, job = import_file(settings, file)
        began = time.perf_counter()
        while len(samples) < len(urls) // step:
            time.sleep(0.2)
            books = lpm.counts.progress(job)
            if books.failed or books.skipped:
                raise SystemExit(f"not everything was collected: {books}")
            if books.completed >= (len(samples) + 1) * step:
                samples.append((books.completed, statistics.mean(own_mb() for _ in range(5))))
        rate = len(urls) / (time.perf_counter() - began)
    return rate, samples


PARTS: dict[str, Callable[[bool], str]] = {
    "import": bulk_import,
    "publish": publish,
    "claims": claims,
    "commit": commit,
    "export": export,
    "start-up": start_up,
    "growth": growth,
    "memory": memory,
}


def write(name: str, text: str) -> None:
    """Put a part among those that were measured before, into RESULTS.md."""
    kept = WORK / "parts.json"
    known = json.loads(kept.read_text()) if kept.exists() else {}
    known[name] = f"{text}\n\nMeasured on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC."
    kept.write_text(json.dumps(known, indent=1))
    section(
        "parts",
        "\n\n".join(["## The parts", machine(), *(known[each] for each in PARTS if each in known)]),
    )


def main() -> None:
    """Measure each part that is asked for, print it, and put it into RESULTS.md."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    options.add_argument(
        "--small",
        action="store_true",
        help="only to see that it works: RESULTS.md is left as it is",
    )
    given = options.parse_args()
    chosen = given.only.split(",")
    if unknown := set(chosen) - set(PARTS):
        options.error(f"there is no part {', '.join(sorted(unknown))}")
    WORK.mkdir(exist_ok=True)
    for name in chosen:
        text = PARTS[name](given.small)
        print(text, end="\n\n", flush=True)
        if not given.small:
            write(name, text)
    shutil.rmtree(RUNS, ignore_errors=True)


if __name__ == "__main__":
    main()
