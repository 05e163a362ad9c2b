"""Pages that need a browser: the crawler beside a new browser per page and beside Crawlee.

All render the same pages with the same Chromium, as many at a time. In each round they run one
after the other, and each round begins with another. `python -m benchmarks.browser` fills the
figures into RESULTS.md.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import measure, report
from benchmarks.script_site import BLOCKED, ScriptSite, serving
from benchmarks.site import FIELDS
from crawler import config
from crawler.fetch.browser_process import find_program, lacking

WORK = Path(__file__).with_name(".work")
PEERS = WORK / "peers" / "bin" / "python"
PAGES, ROUNDS, TABS = 200, 3, 4
GOALS = {"per-page": 3.0, "per-page-driver": 3.0, "crawlee": 0.9}
"""The corridor's pages/s to another's."""


class Contestant(NamedTuple):
    """Who runs, and how."""

    title: str
    module: str
    pages: int
    """At most."""
    options: Mapping[str, Any] = {}
    ours: bool = False


CONTESTANTS = {
    "ours": Contestant(
        "**corridor**, one process that renders",
        "corridor",
        PAGES,
        {
            "workers": 1,
            "browsers": 1,
            "site": {"fetcher": "browser"},
            "env": {"CRAWLER_TABS": TABS},
        },
        ours=True,
    ),
    "crawlee": Contestant("Crawlee, PlaywrightCrawler", "crawlee_browser", PAGES),
    "per-page": Contestant("a new browser per page", "browser_per_page", PAGES // 2),
    "per-page-driver": Contestant(
        "a new browser and a new driver per page",
        "browser_per_page",
        PAGES // 4,
        {"own_driver": True},
    ),
}


class Run(NamedTuple):
    """One run of a contestant."""

    measured: measure.Measured
    requests: float
    """That the server got for a page."""
    load: float
    """Of the machine, when it began."""
    empty: int
    """Pages that were stored before their script had built the record."""


Runs = dict[str, list[Run]]


def one(name: str, site: ScriptSite, pages: int, program: str) -> Run:
    """One run; all its pages must be there, and nothing that is blocked."""
    who, load = CONTESTANTS[name], os.getloadavg()[0]
    wanted = site.urls(min(pages, who.pages))
    (WORK / "run").mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="browser-", dir=WORK / "run"))
    file = folder / "urls.txt"
    file.write_text("\n".join(wanted) + "\n")
    site.asked.clear()
    python = Path(sys.executable) if who.ours else PEERS
    options = {"tabs": TABS, "program": program, **who.options}
    env = {**os.environ, "CRAWLER_BROWSER_PATH": program}
    found = measure.run(who.module, python, file, folder / name, options, env)
    log = folder / f"{name}.log"
    if found.pages != len(wanted):
        raise SystemExit(f"browser: {name} stored {found.pages} of {len(wanted)} pages; see {log}")
    if site.asked["json"] < len(wanted) or any(site.asked[kind] for kind in BLOCKED):
        raise SystemExit(f"browser: {name} asked for {dict(site.asked)}; see {log}")
    return Run(found, site.asked.total() / len(wanted), load, empty_in(folder, len(wanted)))


def empty_in(folder: Path, pages: int) -> int:
    """How many of the stored records lack a field."""
    stored = [*folder.glob("*/data/pending/*.json"), *folder.glob("*/pages/*.json")]
    records = [json.loads(path.read_text())["data"] for path in stored]
    return pages - sum(all(record.get(name) for name in FIELDS) for record in records)


def in_turn(number: int) -> list[str]:
    """The contestants in the order of a round: none always meets what another has left."""
    names = list(CONTESTANTS)
    first = number % len(names)
    return names[first:] + names[:first]


def measured(rounds: int, pages: int, program: str) -> Runs:
    """All rounds."""
    runs: Runs = {name: [] for name in CONTESTANTS}
    with serving(pages) as site:
        for number in range(rounds):
            for name in in_turn(number):
                run = one(name, site, pages, program)
                runs[name].append(run)
                about = {"round": number, "name": name, **run.measured._asdict()}
                about |= {"requests": run.requests, "load": run.load, "empty": run.empty}
                print(json.dumps(about), file=sys.stderr, flush=True)
    shutil.rmtree(WORK / "run")
    return runs


def spread(found: Sequence[float]) -> str:
    """The middle one, and from what to what."""
    low, middle, high = map(report.figure, (min(found), statistics.median(found), max(found)))
    return f"{middle} ({low}–{high})"


def told(runs: Runs, program: str) -> str:
    """The section of the report."""
    rates, cpu_s = dict[str, float](), dict[str, float]()
    for name, found in runs.items():
        rates[name] = statistics.median(run.measured.rate for run in found)
        cpu_s[name] = statistics.median(run.measured.cpu_per_1000 / 1000 for run in found)
    rows = []
    for name, found in runs.items():
        rows.append(
            (
                CONTESTANTS[name].title,
                found[0].measured.pages,
                spread([run.measured.rate for run in found]),
                f"{rates['ours'] / rates[name]:.2f}",
                spread([run.measured.cpu_per_1000 / 1000 for run in found]),
                spread([run.measured.peak_mb for run in found]),
                f"{statistics.median(run.requests for run in found):.1f}",
                sum(run.empty for run in found),
            )
        )
    causes = {
        "per-page": f"A new browser adds {cpu_s['per-page'] - cpu_s['ours']:.2f} s of CPU to a "
        "page. Half a second of quiet, and the work of the renderer and of Chromium's main "
        "process, are in every page, whoever renders it."
    }
    goals = []
    for name, goal in GOALS.items():
        who, ratio = f"corridor : {CONTESTANTS[name].title}", rates["ours"] / rates[name]
        share = f"**not met**: {ratio / goal:.2f} × the goal. {causes.get(name, '')}".rstrip()
        goals.append((who, f"≥ {goal:g}", f"{ratio:.2f}", "met" if ratio >= goal else share))
    loads = [run.load for found in runs.values() for run in found]
    version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
    rounds = len(runs["ours"])
    return "\n\n".join(
        (
            "## Pages that need a browser",
            f"{report.machine(PEERS)} · {version.stdout.strip()}",
            "Pages whose script fetches a record as JSON and builds 17 to 42 KB from it, with a "
            f"stylesheet; image and font are blocked. {TABS} pages at a time for all, until half a "
            f"second has passed without a request. Interleaved rounds: {rounds}; medians, and from "
            "least to most. CPU and memory are those of all processes, with browsers and drivers; "
            "the corridor's also with Redis and a worker that renders nothing. Without record: "
            "pages of all rounds that were stored before their script had built them. The load of "
            f"the machine before each run was {min(loads):.1f} to {max(loads):.1f}.",
            report.table(("goal", "", "measured", ""), goals),
            report.table(
                (
                    "",
                    "pages",
                    "pages/s",
                    "corridor is × as fast",
                    "CPU s / page",
                    "peak MB",
                    "requests / page",
                    "without record",
                ),
                rows,
            ),
        )
    )


def main() -> None:
    """Measure and report."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=0, help="then nothing is written")
    options.add_argument("--pages", type=int, default=PAGES, help="at most")
    given = options.parse_args()
    path = config.load().browser_path
    if problem := lacking(path):
        raise SystemExit(f"browser: {problem}")
    if not PEERS.exists():
        raise SystemExit("browser: the peers are not installed; run: sh benchmarks/run browser")
    program = find_program(path)
    text = told(measured(given.rounds or ROUNDS, given.pages, program), program)
    print(text)
    if not given.rounds:
        report.section("browser", text)


if __name__ == "__main__":
    main()
