"""A crawl in which things are killed: what `tests/crash` runs small and `scripts/storm` runs large."""

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from crawler.db import owners
from crawler.process import read_stack
from tests.support.site import Site
from tests.support.stack import Folder, assert_balanced, wait_for


@dataclass
class Score:
    """What a storm cost."""

    pages: int
    lost: int = 0
    twice: int = 0
    extra_fetches: int = 0
    in_flight_at_kills: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    slowest_recovery_s: float = 0.0
    samples: int = 0
    unbalanced: list[str] = field(default_factory=list)
    seconds: float = 0.0


def storm(
    folder: Folder, site: Site, *, pages: int, kills: list[str], workers: int, latency_s: float, seed: int
) -> Score:
    """Crawl `pages` pages while the listed things happen one after the other, spread over the run."""
    chance, score = random.Random(seed), Score(pages)
    file = folder.write("storm.txt", [site.page(n, latency_s) for n in range(pages)])
    assert folder.crawler("bulk", "import", str(file)).returncode == 0
    began = time.monotonic()
    up = folder.crawler("up", "--workers", str(workers))
    assert up.returncode == 0, up.stderr
    stop = threading.Event()
    sampler = threading.Thread(target=_sample, args=(folder, stop, score))
    sampler.start()
    try:
        for number, what in enumerate(kills, 1):
            due = pages * number // (len(kills) + 2)
            folder.wait_until_completed(due, 120)
            _strike(folder, what, chance, score)
            done = folder.books().completed
            if done < pages:
                struck = time.monotonic()
                folder.wait_until_completed(min(done + 9, pages), 30)
                score.slowest_recovery_s = max(score.slowest_recovery_s, time.monotonic() - struck)
        folder.wait_until_done(pages, 240)
        score.seconds = time.monotonic() - began
    finally:
        stop.set()
        sampler.join()
    assert folder.crawler("down").returncode == 0
    _count(folder, site, score, latency_s)
    return score


def _sample(folder: Folder, stop: threading.Event, score: Score) -> None:
    """The books balance at every moment, whatever has just been killed."""
    while not stop.is_set():
        try:
            assert_balanced(folder.status())
        except AssertionError as error:  # in a thread: noted here, judged at the end
            score.unbalanced.append(str(error))
        score.samples += 1


def _strike(folder: Folder, what: str, chance: random.Random, score: Score) -> None:
    score.kills[what] += 1
    if what == "flushall":
        folder.redis().flushall()
    elif what == "redis":
        redis = read_stack(folder.data).redis
        assert redis is not None
        os.kill(redis.pid, signal.SIGKILL)
    else:
        # Asked in this process: a command takes half a second, in which the crawl goes on.
        workers = wait_for(lambda: owners.workers(folder.data / "run" / "owners"), 20, "a worker to kill")
        worker = chance.choice(sorted(workers))
        victims = [worker, *workers[worker]] if what == "worker" else [chance.choice(workers[worker])]
        for pid in victims:  # first the parent, who would start new children
            _signal(pid, signal.SIGSTOP)
        score.in_flight_at_kills += _in_flight(folder, victims)
        for pid in victims:
            _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _in_flight(folder: Folder, pids: list[int]) -> int:
    """What the stopped processes have begun and not committed, as their owners' files tell."""
    notes = owners.living(folder.data / "run" / "owners")
    return sum(len(note.in_flight) for note in notes if note.about["pid"] in pids)


def _count(folder: Folder, site: Site, score: Score, latency_s: float) -> None:
    wanted = {site.page(n, latency_s) for n in range(score.pages)}
    found = Counter(result["url"] for result in folder.results())
    score.lost = len(wanted - set(found))
    score.twice = sum(count - 1 for count in found.values())
    score.extra_fetches = sum(site.hits().values()) - score.pages


def main() -> int:
    """10,000 pages and 30 kills, in a folder of its own below the project's."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--pages", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    args = parser.parse_args()
    chance = random.Random(args.seed)
    kills = [chance.choice(["child", "child", "child", "worker", "redis", "flushall"]) for _ in range(args.kills)]
    with tempfile.TemporaryDirectory(prefix="storm-", dir=".") as place, Site() as site:
        folder = Folder(Path(place).absolute())
        try:
            score = storm(
                folder, site, pages=args.pages, kills=kills, workers=args.workers, latency_s=0.05, seed=args.seed
            )
        finally:
            folder.stop()
    for name, value in vars(score).items():
        print(f"{name:20} {dict(value) if isinstance(value, Counter) else value}")
    good = score.lost == score.twice == len(score.unbalanced) == 0 and score.extra_fetches <= score.in_flight_at_kills
    print(f"seed {args.seed}: {'nothing lost, nothing twice' if good else 'FAILED'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
