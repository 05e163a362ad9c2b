"""Replaying stored pages beside collecting them: pages a second of `replay` and of the corridor.

In each round the corridor collects the pages with its whole stack, and then `replay` parses them
from its store, from the start of the process to its end. `python -m benchmarks.replay` fills the
figures into RESULTS.md.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks import measure, report, site

WORK = Path(__file__).with_name(".work")
PAGES, WORKERS = 10_000, 3
GOAL = 1.3


class Round(NamedTuple):
    """Pages a second of one round."""

    corridor: float
    replay: float
    parsing: float
    """Of the replay, without the start of the program."""
    corridor_cpu: float
    replay_cpu: float
    """Seconds of CPU a thousand pages, whatever else the machine does."""


def replayed(folder: Path, pages: int) -> tuple[float, float, float]:
    """Replay all pages of a store; returns the seconds of the process, of parsing, and of CPU."""
    env = {
        **os.environ,
        "CRAWLER_DATA_DIR": str(folder / "data"),
        "CRAWLER_CONFIG_DIR": str(folder / "config"),
    }
    began, before = time.monotonic(), _cpu_s()
    done = subprocess.run(
        [sys.executable, "-m", "crawler", "replay", "--site", "bench", "--fail-under", "1",
         "--workers", str(WORKERS), "--json"],
        env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    seconds = time.monotonic() - began
    found = json.loads(done.stdout or "{}")
    if done.returncode or found["same"] != pages:
        raise SystemExit(f"replay: not all pages were the same: {done.stdout}{done.stderr}")
    return seconds, found["seconds"], _cpu_s() - before


def _cpu_s() -> float:
    """What the processes have used that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def one(pages: int) -> Round:
    """One round in a store of its own."""
    file = WORK / "urls.txt"
    file.write_text("\n".join(site.urls(site.FAST, pages)) + "\n")
    folder = Path(tempfile.mkdtemp(prefix="replay-", dir=WORK / "run"))
    measured = measure.run(
        "corridor", Path(sys.executable), file, folder / "store", {"workers": WORKERS}
    )
    if measured.pages != pages:
        raise SystemExit(f"replay: the corridor has stored {measured.pages:,} of {pages:,} pages")
    [store] = (each for each in folder.iterdir() if each.is_dir())
    whole_s, parsing_s, cpu_s = replayed(store, pages)
    return Round(
        corridor=measured.rate,
        replay=pages / whole_s,
        parsing=pages / parsing_s,
        corridor_cpu=measured.cpu_per_1000,
        replay_cpu=1000 * cpu_s / pages,
    )


def run(rounds: int, pages: int) -> list[Round]:
    """All rounds."""
    site.write(WORK / "site")
    found = []
    with site.served(WORK / "site", WORK / "nginx"):
        measure.settle(WORK / "run")
        for _ in range(rounds):
            found.append(one(pages))
            print(json.dumps(found[-1]._asdict()), file=sys.stderr, flush=True)
    shutil.rmtree(WORK / "run")
    return found


def told(found: list[Round], pages: int) -> str:
    """The report."""
    ratio = statistics.median(each.replay / each.corridor for each in found)

    def median(name: str) -> float:
        return float(statistics.median(getattr(each, name) for each in found))

    names = {"corridor": "corridor", "replay": "`replay`", "parsing": "`replay`, once started"}
    lines = []
    for name, title in names.items():
        rates = [getattr(each, name) for each in found]
        spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
        lines.append((title, f"{median(name):,.0f}", spread))
    return "\n\n".join(
        (
            "## Replaying stored pages",
            report.machine(),
            f"{pages:,} pages of 20 to 60 KB with eight fields: collected by the whole stack with "
            f"{WORKERS} children, then parsed again from its store by as many processes and "
            f"compared, from the start of the program to its end; {len(found)} rounds.",
            report.table(("", "pages/s", "least to most"), lines),
            f"A replay is {ratio:.2f} times as fast as the corridor (goal: at least {GOAL}). A "
            f"thousand pages take {median('replay_cpu'):.2f} s of CPU, in the corridor "
            f"{median('corridor_cpu'):.2f} s.",
        )
    )


def main() -> None:
    """Measure and report."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=0, help="then nothing is written")
    options.add_argument("--pages", type=int, default=PAGES)
    given = options.parse_args()
    text = told(run(given.rounds or 3, given.pages), given.pages)
    print(text)
    if not given.rounds:
        report.section("replay", text)


if __name__ == "__main__":
    main()
