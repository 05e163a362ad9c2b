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
from tests.support.graph import Graph
from tests.support.stack import Folder

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("everything", "child", "everything", "redis")
"""What a kill -9 hits, in turn: the command with all its processes, one worker child, Redis."""
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
    """Crawl all three, one after the other, and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=3_000, help="pages of each site")
    parser.add_argument("--kills", type=int, default=10, help="kill -9 in all (default 10)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--latency-ms", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="names, such as county,graph")
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
    struck = [strikes(chance, size, count, place == 1) for place, count in enumerate(shares)]
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
    chance: random.Random, size: int, count: int, empties_redis: bool
) -> list[tuple[int, str]]:
    """When to kill what: spread over the first nine tenths of a site's pages."""
    kinds = [KINDS[place % len(KINDS)] for place in range(count)]
    if empties_redis:
        kinds.insert(len(kinds) // 2, "flushall")
    step = 0.9 * size / max(len(kinds), 1)
    return [
        (int(step * (place + chance.uniform(0.2, 0.9))), kind) for place, kind in enumerate(kinds)
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
    write_config(path / "config", site.port)
    argv = ["crawler", "crawl", *plan.command, "--job", plan.name, "--workers", str(workers)]
    codes, struck = list[int](), list[str]()
    began = time.monotonic()
    try:
        process = folder.start(*argv)
        for count, kind in plan.strikes:
            if wait(process, site, plan.host, count):
                strike(folder, process, kind)
                struck.append(f"{kind} at {count}")
                if kind == "everything":
                    process = folder.start(*argv)
        wait(process, site, plan.host, None)
        codes.append(process.wait())
        seconds = time.monotonic() - began
        if codes[-1] not in (0, 1):
            print(folder.log(process)[-3000:], file=sys.stderr)
        asked = pages_of(site.requests(plan.host))
        records = results(folder, plan)
    finally:
        folder.stop()
    repeated = sum(asked.values()) - len(asked)
    return Score(*compared(plan, records), codes, struck, sum(asked.values()), repeated, seconds)


def write_config(folder: Path, port: int) -> None:
    """The example files, with the port that the sites have here."""
    (folder / "sites").mkdir(parents=True)
    for file in (ROOT / "examples" / "sites").glob("*.yaml"):
        text = file.read_text().replace(":8090/", f":{port}/")
        (folder / "sites" / file.name).write_text(text)


def wait(process: "subprocess.Popen[str]", site: Running, host: str, count: int | None) -> bool:
    """Wait for so many different requests, or for the end; whether the command still runs."""
    last, moved = -1, time.monotonic()
    while process.poll() is None:
        now = len(site.requests(host))
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
    elif kind == "redis":
        info = folder.redis().info("server")
        assert isinstance(info, dict)
        os.kill(info["process_id"], signal.SIGKILL)
    else:
        folder.redis().flushall()


def pages_of(requests: Mapping[str, int]) -> dict[str, int]:
    """The requests for pages: without robots.txt, sitemaps, and the pages of forms."""
    skipped = re.compile(r"/(robots\.txt|sitemap|login|search|advanced|results|registry|members/$)")
    return {name: count for name, count in requests.items() if not skipped.search(name)}


def results(folder: Folder, plan: Plan) -> list[tuple[str, dict[str, Any]]]:
    """URL and record of every result of the crawl."""
    out = folder.path / "results.jsonl"
    done = folder.crawler("results", "export", "--job", plan.name, "--output", str(out))
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
