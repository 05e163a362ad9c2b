"""Work for a Gateway at full size, judged by the Gateway's own books: see scripts/exchange."""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from crawler.gateway.reference.books import Books
from tests.support.gateway import Gateway
from tests.support.site import Site
from tests.support.stack import Folder, wait_for

LIMIT_S = 1800.0


def main() -> int:
    """Run one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=("faults", "fleet", "away"))
    parser.add_argument("--tasks", type=int, help="how many (default 10,000, 3,000 and 10,000)")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--faults", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as path, Site() as site:
        run = {"faults": faults, "fleet": fleet, "away": away}[given.which]
        return run(Path(path), site, given)


def stack(path: Path, gateway: Gateway) -> Folder:
    """A folder whose commands know the Gateway."""
    path.mkdir()
    return Folder(path, CRAWLER_ALLOW_NETS="127.0.0.0/8", CRAWLER_PAGES="16", **gateway.env)


def tasks(site: Site, count: int) -> list[dict[str, Any]]:
    """Tasks on pages of the site, each with a URL of its own."""
    return [
        {"task_id": f"t-{n}", "parcel_id": str(n), "platform": "beacon", "url": site.page(n)}
        for n in range(count)
    ]


def faults(path: Path, site: Site, given: argparse.Namespace) -> int:
    """Every exchange may fail, and the worker's side is killed again and again."""
    count, chance = given.tasks or 10_000, random.Random(given.seed)
    gateway = Gateway(path / "gateway", faults=given.faults, seed=given.seed)
    gateway.import_tasks(tasks(site, count))
    folder = stack(path / "worker", gateway)
    run = folder.start("crawler", "ondemand", "--workers", "2", "--capacity", "400")
    began, kills = time.monotonic(), 0
    try:
        while kills < given.kills:
            share = (kills + 1) / (given.kills + 1)
            wait_for(
                lambda share=share: len(gateway.results()) >= share * count,
                LIMIT_S,
                f"{share:.0%} of the results",
            )
            kind = ("agent", "child", "agent", "all")[kills % 4]
            strike(folder, run, kind, chance)
            kills += 1
            print(f"{time.monotonic() - began:6.1f} s: kill -9 of {kind}", file=sys.stderr)
            if kind == "all":
                run = folder.start("crawler", "ondemand", "--workers", "2", "--capacity", "400")
        wait_for(lambda: folder.books().completed >= count, LIMIT_S, "all pages")
        gateway.set_faults(0)
        calm = time.monotonic()
        wait_for(lambda: folder.books().synced >= count, 120, "convergence")
        settled = time.monotonic() - calm
        run.send_signal(signal.SIGTERM)
        run.wait(30)
        return judge(gateway, [folder], count, settled, time.monotonic() - began)
    finally:
        folder.stop()
        gateway.stop()


def there(gateway: Gateway) -> int:
    """How many results the Gateway has."""
    with closing(Books(gateway.store)) as books:
        [(count,)] = books.db.all("SELECT count(*) FROM results")
    return int(count)


def strike(folder: Folder, run: "subprocess.Popen[str]", kind: str, chance: random.Random) -> None:
    """Kill the agent, a child of a worker, or all there is."""
    if kind == "agent":
        pid = wait_for(lambda: folder.status()["pids"]["agent"], 60, "an agent")
        os.kill(pid, signal.SIGKILL)
    elif kind == "child":
        os.kill(chance.choice(wait_for(folder.children, 60, "children")), signal.SIGKILL)
    else:
        import psutil

        family = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
        for process in family:
            process.kill()
        psutil.wait_procs(family, timeout=10)
        run.wait()


def judge(
    gateway: Gateway, folders: Sequence[Folder], count: int, settled: float, took: float
) -> int:
    """Compare the Gateway's books with the workers'."""
    results = gateway.results()
    there = Counter(result["task_id"] for result in results)
    applied = Counter(result["applied"] for result in results)
    raw_after = sum(not r["raw_seq"] or r["raw_seq"] > r["seq"] for r in results)
    missing, twice = count - len(there), sum(n - 1 for n in there.values())
    false, mine = 0, Counter[str]()
    for folder in folders:
        lpm = folder.lpm()
        for (task_id,) in lpm.store.db.all(
            "SELECT external_id FROM tasks JOIN outbox ON task = id WHERE state = 'synced'"
        ):
            false += task_id not in there
            mine[task_id] += 1
        stand = lpm.outbox.delivery(None)
        print(f"{folder.path.name}: {lpm.counts.totals()} {stand}")
        lpm.close()
    fetched_twice = sum(n - 1 for n in mine.values())
    print(
        f"{count:,} tasks, {took:.0f} s"
        + (f"; faults: {json.dumps(gateway.faults())}" if settled else "")
    )
    print(
        f"{missing} lost, {twice} twice, applied: {dict(applied)}, {raw_after} without their page "
        f"before them, {false} marked synced that are not there, {fetched_twice} done by two; "
        f"settled {settled:.1f} s after the faults"
    )
    return int(bool(missing or twice or set(applied) != {1} or raw_after or false or fetched_twice))


def fleet(path: Path, site: Site, given: argparse.Namespace) -> int:
    """Three stacks on one Gateway."""
    count = given.tasks or 3000
    gateway = Gateway(path / "gateway")
    gateway.import_tasks(tasks(site, count))
    folders = [stack(path / name, gateway) for name in ("one", "two", "three")]
    began = time.monotonic()
    try:
        runs = [
            f.start("crawler", "ondemand", "--workers", "1", "--capacity", "200") for f in folders
        ]
        wait_for(lambda: there(gateway) >= count, LIMIT_S, "all results")
        took = time.monotonic() - began
        wait_for(lambda: sum(f.books().synced for f in folders) >= count, 60, "their books")
        for run in runs:
            run.send_signal(signal.SIGTERM)
        for run in runs:
            run.wait(30)
        asked = Counter(site.hits())
        print(f"pages asked for more than once: {sum(n - 1 for n in asked.values())}")
        return judge(gateway, folders, count, 0.0, took)
    finally:
        for folder in folders:
            folder.stop()
        gateway.stop()


def away(path: Path, site: Site, given: argparse.Namespace) -> int:
    """The same pages, standalone and for a Gateway that has gone, in turn."""
    count = given.tasks or 10_000
    rates: dict[str, list[float]] = {"standalone": [], "away": []}
    for number in range(given.rounds):
        for kind in sorted(rates, reverse=bool(number % 2)):
            gateway = Gateway(path / f"gateway-{kind}-{number}")
            gateway.import_tasks(tasks(site, count))
            folder = stack(path / f"{kind}-{number}", gateway)
            try:
                rates[kind].append(round_of(kind, folder, gateway, site, count))
            finally:
                folder.stop()
                gateway.stop()
            print(f"round {number + 1}, {kind}: {rates[kind][-1]:.0f} pages/s", file=sys.stderr)
    ratio = statistics.median(rates["away"]) / statistics.median(rates["standalone"])
    for kind, found in rates.items():
        print(f"{kind}: {', '.join(f'{rate:.0f}' for rate in found)} pages/s")
    print(f"with the Gateway away: {ratio:.3f} of standalone")
    return int(ratio < 0.95)


def round_of(kind: str, folder: Folder, gateway: Gateway, site: Site, count: int) -> float:
    """How many pages a second were collected, from the first to the last; then what was held up is
    delivered."""
    if kind == "standalone":
        file = folder.write("pages.txt", [site.page(n) for n in range(count)])
        run = folder.start("crawler", "run", str(file), "--workers", "2")
        assert run.wait(LIMIT_S) == 0, folder.log(run)
        return pace(folder)
    # The tasks are taken over first, with no worker to do them; then the Gateway goes.
    collect(folder, gateway, count)
    gateway.stop()
    run = folder.start("crawler", "ondemand", "--workers", "2", "--capacity", str(count))
    folder.wait_until_done(count, LIMIT_S)
    rate = pace(folder)
    gateway.start()
    wait_for(lambda: folder.books().synced >= count, 120, "delivery after the Gateway's return")
    run.send_signal(signal.SIGTERM)
    run.wait(30)
    return rate


def collect(folder: Folder, gateway: Gateway, count: int) -> None:
    """Take all tasks over, by an agent without workers."""
    agent = folder.start("crawler", "agent", "--capacity", str(count))
    wait_for(
        lambda: (folder.data / "lpm.db").exists() and folder.books().accepted >= count,
        120,
        "all tasks",
    )
    agent.send_signal(signal.SIGTERM)
    agent.wait(20)


def pace(folder: Folder) -> float:
    """Pages a second between the first and the last one."""
    lpm = folder.lpm()
    [(count, first, last)] = lpm.store.db.all(
        "SELECT count(*), min(completed_at), max(completed_at) FROM tasks "
        "WHERE status = 'completed'"
    )
    lpm.close()
    return float(count / (last - first))


if __name__ == "__main__":
    sys.exit(main())
