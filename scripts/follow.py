"""Follows the results of a crawl while everything is killed: see scripts/follow."""

import argparse
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from crawler import config, drill
from crawler.lpm import LocalPersistenceManager

Line = tuple[int, str]
"""A result's number and its task's id."""
RETRY_S = 0.2


class Follower(NamedTuple):
    """One way to follow: its command, and what it has got so far."""

    name: str
    command: list[str]
    lines: Callable[[], list[Line]]
    size: Callable[[], int]
    """How many results it has got; cheap to ask."""


def main() -> int:
    """Crawl, follow, kill, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=10_000)
    parser.add_argument("--strikes", type=int, default=30, help="strikes on the crawl")
    parser.add_argument("--kills", type=int, default=10, help="kill -9 of each follower")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--consume", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--no-wait", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.consume:
        return consume(given.consume, given.no_wait)
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder), given)


def measure(folder: Path, given: argparse.Namespace) -> int:
    """Print what came of it; returns 1 if a follower has not got each result once, in order."""
    settings = config.load({"CRAWLER_DATA_DIR": str(folder / "data"), "CRAWLER_PAGES": "4"})
    data = folder / "data" / "drill"
    os.environ["CRAWLER_DATA_DIR"] = str(data)
    plan = drill.plan(
        seed=given.seed, pages=given.pages, kills=given.strikes, latency_ms=20, faults=0.02
    )
    followers = [of_file(folder / "results.jsonl"), of_program(folder / "results.db")]
    kills = [0] * len(followers)
    has_ended = threading.Event()

    def follow(place: int) -> None:
        chance = random.Random(given.seed + place)
        due = [given.pages * (n + 1) // (given.kills + 2) for n in range(given.kills)]
        kills[place] = kill_again_and_again(followers[place], due, chance, has_ended)

    threads = [threading.Thread(target=follow, args=(n,)) for n in range(len(followers))]
    for thread in threads:
        thread.start()
    try:
        score = drill.drill(settings, plan, given.workers)
    finally:
        has_ended.set()
        for thread in threads:
            thread.join()
    with LocalPersistenceManager(data) as lpm:
        wanted = lpm.store.db.all(
            "SELECT seq, task_id FROM results JOIN tasks ON id = task ORDER BY seq"
        )
    print(f"crawl: {len(wanted):,} results, {len(score.strikes)} strikes, {score.verdict}")
    is_good = score.exit_code == 0
    for follower, count in zip(followers, kills, strict=True):
        subprocess.run([*follower.command, "--no-wait"], check=True, stderr=subprocess.DEVNULL)
        found = follower.lines()
        missing, extra = len(set(wanted) - set(found)), len(found) - len(set(found))
        order = "in order" if found == sorted(found) else "OUT OF ORDER"
        print(f"{follower.name}: {count} kills, {missing} missing, {extra} twice, {order}")
        is_good = is_good and found == wanted
    return int(not is_good)


def of_file(path: Path) -> Follower:
    """`results follow --output`."""
    command = [sys.executable, "-m", "crawler", "results", "follow", "--output", str(path)]

    def lines() -> list[Line]:
        found = [json.loads(line) for line in path.read_text().splitlines()]
        return [(line["seq"], line["task_id"]) for line in found]

    def size() -> int:
        return path.read_bytes().count(b"\n") if path.exists() else 0

    return Follower("results follow --output", command, lines, size)


def of_program(path: Path) -> Follower:
    """A program that reads a pipe, and stores each result with the cursor."""
    command = [sys.executable, __file__, "--consume", str(path)]

    def lines() -> list[Line]:
        with contextlib.closing(sqlite3.connect(path)) as db:
            return db.execute("SELECT seq, task_id FROM stored ORDER BY rowid").fetchall()

    def size() -> int:
        no_table_yet = contextlib.suppress(sqlite3.OperationalError)
        with contextlib.closing(sqlite3.connect(path)) as db, no_table_yet:
            return int(db.execute("SELECT count(*) FROM stored").fetchone()[0])
        return 0

    return Follower("a program behind a pipe", command, lines, size)


def consume(path: Path, no_wait: bool) -> int:
    """Store what `results follow` writes, and the cursor in the same transaction."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("CREATE TABLE IF NOT EXISTS stored (seq INTEGER, task_id TEXT)")
    last = db.execute("SELECT ifnull(max(seq), 0) FROM stored").fetchone()[0]
    options = ["--from", str(last), *["--no-wait"] * no_wait]
    with subprocess.Popen(
        [sys.executable, "-m", "crawler", "results", "follow", *options], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith(b"\n"):  # what a killed process has left of a line is none
                result = json.loads(line)
                values = (result["seq"], result["task_id"])
                db.execute("INSERT INTO stored VALUES (?, ?)", values)
    return process.returncode


def kill_again_and_again(
    follower: Follower, due: list[int], chance: random.Random, has_ended: threading.Event
) -> int:
    """Keep a follower alive until the crawl has ended, and kill it when it has got so many results;
    returns how often it was killed."""
    kills = 0
    while kills < len(due) or not has_ended.is_set():
        process = subprocess.Popen(
            follower.command, start_new_session=True, stderr=subprocess.DEVNULL
        )
        while process.poll() is None:
            if kills == len(due) and has_ended.is_set():
                os.killpg(process.pid, signal.SIGTERM)
            elif kills < len(due) and follower.size() >= due[kills]:
                time.sleep(chance.random() * RETRY_S)
                kills += strike(process, chance)
            else:
                time.sleep(RETRY_S / 10)
        with contextlib.suppress(ProcessLookupError):  # what a killed program has started ends, too
            os.killpg(process.pid, signal.SIGKILL)
        if process.returncode > 0:
            time.sleep(RETRY_S)  # there is no store yet
    return kills


def strike(process: subprocess.Popen[bytes], chance: random.Random) -> bool:
    """Kill the process, or what it has started; returns whether something was killed."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(process.pid)
        chance.choice([parent, *parent.children()]).kill()
        process.wait()
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
