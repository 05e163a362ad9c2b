"""Crawls three sites while everything is killed, and compares every listing: see scripts/sites."""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from crawler.examples.county import PASSWORD, USER, County
from crawler.examples.imoti import Imoti
from crawler.examples.server import Running
from crawler.lpm import LocalPersistenceManager
from crawler.redis_server import answers
from crawler.stack import read_stack
from tests.support.graph import Graph
from tests.support.stack import Folder, wait_for

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("everything", "child", "everything", "redis")
"""What a kill -9 hits, in turn: the command with all its processes, one worker child, Redis."""
KINDS_OF_PROGRAM = ("child", "worker", "redis")
"""The same for a program, which would begin anew if it were killed: also Celery's main process."""
GRAPH_HOST = "graph.localhost"
MAX_STALL_S = 180.0
"""A crawl in which the site is asked for nothing so long counts as hanging."""


class Plan(NamedTuple):
    """One site: how it is crawled, when what is struck, and what must come of it."""

    name: str
    host: str
    command: list[str]
    strikes: list[tuple[int, str]]
    """After so many different requests, and what is struck."""
    expected: dict[str, dict[str, Any]]
    """Records by key."""
    key: Callable[[str], str]
    """The key of a result's URL; empty for a page that is no listing."""


class Score(NamedTuple):
    """What came of a crawl."""

    missing: list[str]
    twice: list[str]
    wrong: list[str]
    unexpected: list[str]
    codes: list[int]
    """Exit codes of the command where it ended by itself."""
    struck: list[str]
    requests: int
    repeated: int
    """Requests beyond the first for the same page; pages in flight at a kill are among them."""
    seconds: float

    @property
    def is_good(self) -> bool:
        """Whether every listing is there once and right."""
        return not (self.missing or self.twice or self.wrong or self.unexpected)


def main() -> int:
    """Crawl all three, one after the other or at once, and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=3_000, help="pages of each site")
    parser.add_argument("--kills", type=int, default=10, help="kill -9 in all (default 10)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--latency-ms", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="names, such as county,graph")
    parser.add_argument("--parallel", action="store_true", help="all by one `sites crawl`")
    parser.add_argument(
        "--program", action="store_true", help="all by a program with an orchestrator"
    )
    given = parser.parse_args()
    os.chdir(ROOT)  # the sites are started as modules
    is_good = True
    latency = ("--latency-ms", given.latency_ms)
    pages = ("--port", 0, "--size", given.size, *latency)
    session_pages = max(10, given.size // 20)
    with (
        Running("crawler.examples", *pages, "--session-pages", session_pages) as examples,
        Running("tests.support.traps", *pages) as graph,
        tempfile.TemporaryDirectory() as folder,
    ):
        if given.parallel or given.program:
            return crawl_together(Path(folder), examples, graph, given)
        for plan in plans(Path(folder), examples, graph, given):
            if given.only and plan.name not in given.only.split(","):
                continue
            site = graph if plan.name == "graph" else examples
            score = crawl(Path(folder) / plan.name, plan, site, given.workers)
            report(plan, score)
            is_good = is_good and score.is_good
    return int(not is_good)


def plans(
    folder: Path, examples: Running, graph: Running, given: argparse.Namespace
) -> Iterator[Plan]:
    """The three sites, with the kills spread over them and the emptied Redis in the middle."""
    chance = random.Random(given.seed)
    size = given.size
    shares = [given.kills // 3 + (place < given.kills % 3) for place in range(3)]
    struck = [strikes(chance, 0.9 * size, count, place == 1) for place, count in enumerate(shares)]
    county, imoti, nodes = County(size), Imoti(size), Graph(size)
    rows = folder / "rows.csv"
    rows.write_text("".join(f"{line}\n" for line in ["parcel_id", *numbers(county)]))
    secrets = folder / "secrets.txt"
    secrets.write_text(f"user={USER}\npassword={PASSWORD}\n")
    yield Plan(
        "county", county.host,
        ["county", "--rows", str(rows), "--secrets", str(secrets)], struck[0],
        {it.record["parcel"]: it.record for it in county.listings(examples.url(county.host))},
        _found(r"/parcel/([\d-]+)$"),
    )  # fmt: skip
    yield Plan(
        "imoti", imoti.host, ["imoti"], struck[1],
        {it.record["id"]: it.record for it in imoti.listings(examples.url(imoti.host))},
        _found(r"/obiava/(\d+)"),
    )  # fmt: skip
    start = graph.url(nodes.host) + nodes.path(0)
    yield Plan(
        "graph", nodes.host, [start], struck[2],
        {str(n): {"title": f"Node {n}"} for n in range(size)}, _found(r"/node/(\d+)$"),
    )  # fmt: skip


def numbers(county: County) -> list[str]:
    """The parcels to search for."""
    return [row["parcel_id"] for row in county.rows()]


def strikes(
    chance: random.Random,
    pages: float,
    count: int,
    empties_redis: bool,
    kinds: Sequence[str] = KINDS,
) -> list[tuple[int, str]]:
    """When to kill what, spread over so many pages."""
    struck = [kinds[place % len(kinds)] for place in range(count)]
    if empties_redis:
        struck.insert(len(struck) // 2, "flushall")
    step = pages / max(len(struck), 1)
    return [
        (int(step * (place + chance.uniform(0.2, 0.9))), kind) for place, kind in enumerate(struck)
    ]


def _found(pattern: str) -> Callable[[str], str]:
    def key(url: str) -> str:
        found = re.search(pattern, url)
        return found[1] if found else ""

    return key


def crawl(path: Path, plan: Plan, site: Running, workers: int) -> Score:
    """Crawl one site in a folder of its own: strike as planned, then let the command end."""
    path.mkdir()
    folder = Folder(path, CRAWLER_PAGES="8", CRAWLER_CONFIG_DIR=str(path / "config"))
    write_config(path / "config", site.port, "county", "imoti")
    argv = ["crawler", "crawl", *plan.command, "--job", plan.name, "--workers", str(workers)]
    try:
        run = run_and_strike(folder, argv, plan.strikes, lambda: len(site.requests(plan.host)))
        return scored(folder, plan, site, plan.name, run)
    finally:
        folder.stop()


class Run(NamedTuple):
    """How a command went that was killed and typed again until it ended by itself."""

    codes: list[int]
    struck: list[str]
    seconds: float
    process: "subprocess.Popen[str]"


def run_and_strike(
    folder: Folder, argv: list[str], planned: list[tuple[int, str]], asked: Callable[[], int]
) -> Run:
    """Run a command, strike as planned, type it again after each kill of all its processes, and let
    it end."""
    struck, began = list[str](), time.monotonic()
    process = folder.start(*argv)
    for count, kind in planned:
        if wait(process, asked, count):
            strike(folder, process, kind)
            struck.append(f"{kind} at {count}")
            if kind == "everything":
                process = folder.start(*argv)
    wait(process, asked, None)
    code = process.wait()
    if code:
        print(folder.log(process)[-3000:], file=sys.stderr)
    return Run([code], struck, time.monotonic() - began, process)


def scored(folder: Folder, plan: Plan, site: Running, job: str, run: Run) -> Score:
    """Compare what the crawl of a site has brought with the truth."""
    asked = pages_of(site.requests(plan.host))
    records = results(folder, job)
    repeated = sum(asked.values()) - len(asked)
    return Score(*compared(plan, records), *run[:2], sum(asked.values()), repeated, run.seconds)


# All sites at once


def crawl_together(path: Path, examples: Running, graph: Running, given: argparse.Namespace) -> int:
    """Crawl all three by one command, or by the requirements' program; returns the exit code."""
    folder = Folder(path, CRAWLER_PAGES="8", CRAWLER_CONFIG_DIR=str(path / "config"))
    write_config(path / "config", examples.port, "county", "imoti")
    add_graph(path / "config", graph.url(GRAPH_HOST))
    add_secrets(path / "config")
    found = [without_rows(plan) for plan in plans(path, examples, graph, given)]
    servers = {plan.name: examples for plan in found} | {"graph": graph}
    argv = ["crawler", "sites", "crawl", "--parallel", "--workers", str(given.workers)]
    kinds, named = KINDS, "{}-"
    if given.program:
        argv = ["tests.support.all_sites", str(given.workers)]
        kinds, named = KINDS_OF_PROGRAM, "scrape_{}_"
        folder.env["PYTHONPATH"] = str(ROOT)
    chance, pages = random.Random(given.seed), sum(0.9 * len(plan.expected) for plan in found)
    planned = strikes(chance, pages, given.kills, empties_redis=True, kinds=kinds)

    def asked() -> int:
        return sum(len(servers[plan.name].requests(plan.host)) for plan in found)

    is_good = True
    try:
        with Watcher(folder) as watcher:
            run = run_and_strike(folder, argv, planned, asked)
        for plan in found:
            [job] = [name for name in watcher.ends if name.startswith(named.format(plan.name))]
            score = scored(folder, plan, servers[plan.name], job, run._replace(struck=[]))
            report(plan, score)
            is_good = is_good and score.is_good
    finally:
        folder.stop()
    if given.program:
        print(folder.log(run.process).splitlines()[-1])
    again = [name for name, ends in watcher.ends.items() if len(ends) != 1]
    print(
        f"together: {len(run.struck)} strikes ({', '.join(run.struck)}); exit code "
        f"{run.codes[-1]}; {run.seconds:.0f} s; progress read {watcher.looks:,} times, "
        f"{len(watcher.wrong)} times above 100 % or less than before; "
        f"{len(watcher.ends)} jobs, {len(again)} not finalised once"
    )
    for what in (*watcher.wrong[:5], *again):
        print(f"  wrong: {what}")
    is_good = is_good and not watcher.wrong and not again and len(watcher.ends) == 3
    if given.program:
        is_good = is_good and run.codes == [0]
    return int(not is_good)


def add_graph(folder: Path, base: str) -> None:
    """Add the file of the graph."""
    text = f"hosts: [{GRAPH_HOST}]\nrate: none\nconcurrency: none\nstart: [{base}/node/0]\n"
    (folder / "sites" / "graph.yaml").write_text(text)


def add_secrets(folder: Path) -> None:
    """Name the secrets of the county's login in its file."""
    (folder / "county-secrets.txt").write_text(f"user={USER}\npassword={PASSWORD}\n")
    file = folder / "sites" / "county.yaml"
    file.write_text(file.read_text().replace("login:\n", "login:\n  secrets: county-secrets.txt\n"))


def without_rows(plan: Plan) -> Plan:
    """The same site, without the parcels that only a search with rows finds."""
    if plan.name != "county":
        return plan
    kept = {key: record for key, record in plan.expected.items() if _way(key) != "search"}
    return plan._replace(expected=kept)


class Watcher:
    """Reads the progress of all jobs again and again, and when each was ended."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.ends: dict[str, set[float]] = {}
        """The times at which each job was ended."""
        self.wrong: list[str] = []
        self.looks = 0
        self._before: dict[str, int] = {}

    def __enter__(self) -> "Watcher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not (self._folder.data / "lpm.db").exists() and not self._is_over.is_set():
            time.sleep(0.05)
        with self._folder.lpm() as lpm:
            while True:
                is_last = self._is_over.wait(0.1)  # one more look after the end
                self._look(lpm)
                if is_last:
                    return

    def _look(self, lpm: LocalPersistenceManager) -> None:
        with lpm.store.reading():
            jobs = lpm.jobs.all()
            found = lpm.counts.progress_of(jobs)
        self.looks += 1
        for job, books in zip(jobs, found, strict=True):
            done = books.accepted - books.open
            ends = self.ends.setdefault(job.name, set())
            if job.completed_at is not None:
                ends.add(job.completed_at)
            elif ends:
                self.wrong.append(f"{job.name} was ended, and is open again")
            if done > books.accepted or done < self._before.get(job.name, 0):
                before = self._before[job.name]
                self.wrong.append(f"{job.name}: {done} of {books.accepted}, before {before}")
            self._before[job.name] = done


# Parts of both


def write_config(folder: Path, port: int, *names: str) -> None:
    """The files of example sites, with the port that the sites have here."""
    (folder / "sites").mkdir(parents=True)
    for name in names:
        text = (ROOT / "examples" / "sites" / f"{name}.yaml").read_text()
        (folder / "sites" / f"{name}.yaml").write_text(text.replace(":8090/", f":{port}/"))


def wait(process: "subprocess.Popen[str]", asked: Callable[[], int], count: int | None) -> bool:
    """Wait for so many different requests, or for the end; whether the command still runs."""
    last, moved = -1, time.monotonic()
    while process.poll() is None:
        now = asked()
        if count is not None and now >= count:
            return True
        if now != last:
            last, moved = now, time.monotonic()
        elif time.monotonic() > moved + MAX_STALL_S:
            raise SystemExit(f"sites: no request came for {MAX_STALL_S:.0f} s at {now}")
        time.sleep(0.05)
    return False


def strike(folder: Folder, process: "subprocess.Popen[str]", kind: str) -> None:
    """Kill, or empty Redis."""
    if kind == "everything":
        parent = psutil.Process(process.pid)
        for each in [parent, *parent.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()
    elif kind == "child":
        if children := folder.children():
            os.kill(children[0], signal.SIGKILL)
    elif kind == "worker":
        if found := read_stack(folder.data).worker:
            os.kill(found.pid, signal.SIGKILL)
    else:
        # The last strike may have hit it.
        wait_for(lambda: redis_answers(folder), 60, "Redis")
        if kind == "redis":
            info = folder.redis().info("server")
            assert isinstance(info, dict)
            os.kill(info["process_id"], signal.SIGKILL)
        else:
            folder.redis().flushall()


def redis_answers(folder: Folder) -> bool:
    """Whether the stack has a Redis now; one that begins has not written its address yet."""
    url = read_stack(folder.data).redis_url
    return url is not None and answers(url)


def pages_of(requests: Mapping[str, int]) -> dict[str, int]:
    """The requests for pages: without robots.txt, sitemaps, and the pages of forms."""
    skipped = re.compile(r"/(robots\.txt|sitemap|login|search|advanced|results|registry|members/$)")
    return {name: count for name, count in requests.items() if not skipped.search(name)}


def results(folder: Folder, job: str) -> list[tuple[str, dict[str, Any]]]:
    """URL and record of every result of the crawl."""
    out = folder.path / "results.jsonl"
    done = folder.crawler("results", "export", "--job", job, "--output", str(out))
    if done.returncode:
        raise SystemExit(f"sites: {done.stderr}")
    rows = (json.loads(line) for line in out.read_text().splitlines())
    return [(row["url"], row["data"]) for row in rows]


def compared(
    plan: Plan, records: Sequence[tuple[str, dict[str, Any]]]
) -> tuple[list[str], list[str], list[str], list[str]]:
    """Keys that are missing, came twice, have another record, or should not be there."""
    found: dict[str, list[dict[str, Any]]] = {}
    for url, record in records:
        if key := plan.key(url):
            found.setdefault(key, []).append(record)
    missing = sorted(plan.expected.keys() - found.keys())
    twice = sorted(key for key, all_of_it in found.items() if len(all_of_it) > 1)
    wrong = []
    for key in plan.expected.keys() & found.keys():
        for name, value in plan.expected[key].items():
            is_value = found[key][0].get(name)
            if is_value != value:
                wrong.append(f"{key}: {name} is {is_value!r}, not {value!r}")
    return missing, twice, sorted(wrong), sorted(found.keys() - plan.expected.keys())


def report(plan: Plan, score: Score) -> None:
    """Print the figures of one site."""
    print(
        f"{plan.name}: {len(plan.expected):,} listings, {len(score.missing)} missing, "
        f"{len(score.twice)} twice, {len(score.wrong)} values differ, "
        f"{len(score.unexpected)} not expected; {score.requests:,} requests for pages, "
        f"{score.repeated} repeated; {len(score.struck)} strikes ({', '.join(score.struck)}); "
        f"exit code {score.codes[-1]}; {score.seconds:.0f} s"
    )
    for what in ("missing", "twice", "wrong", "unexpected"):
        for each in getattr(score, what)[:5]:
            print(f"  {what}: {each}")
    if plan.name == "county" and score.missing:
        ways = Counter(_way(key) for key in score.missing)
        print(f"  missing by way: {dict(ways)}")
    sys.stdout.flush()


def _way(parcel_id: str) -> str:
    from crawler.examples.county import WAYS

    return WAYS[int(parcel_id[3:9]) % 10]


if __name__ == "__main__":
    sys.exit(main())
