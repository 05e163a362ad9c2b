"""The Python library beside what it stands on, in interleaved rounds.

`crawl_many` without a stack beside the corridor in one process; and `crawl_many` of 1,000 URLs
through a stack that is up beside a bulk import of as many into the same stack. `python -m
benchmarks.library` fills the figures into RESULTS.md.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import measure, report, site
from benchmarks.profile import WORK, apart

PAGES, BATCH, CHILDREN, ROUNDS, TURNS = 5_000, 1_000, 3, 3, 5
DIRECT_GOAL, STACK_GOAL = 0.8, 1.2


class Figures(NamedTuple):
    """One round."""

    corridor: float
    """Pages a second of the corridor in one process."""
    direct: float
    """Pages a second of `crawl_many` without a stack."""
    imported: float
    """Seconds from a bulk import to the end of its job."""
    distributed: float
    """Seconds of `crawl_many` through the same stack."""


def alone(module: str, pages: int, options: dict[str, bool]) -> float:
    """Pages a second of a contestant."""
    file = WORK / "urls.txt"
    file.write_text("\n".join(site.urls(site.FAST, pages)) + "\n")
    folder = WORK / "run" / f"library-{module}"
    found = measure.run(module, Path(sys.executable), file, folder, options, dict(os.environ))
    if found.pages != pages:
        raise SystemExit(f"library: {module} has stored {found.pages:,} of {pages:,} pages")
    return found.pages / found.seconds


def through_stack(folder: Path, batch: int, turns: int) -> tuple[float, float]:
    """Median seconds of a bulk import and of `crawl_many`, in turns, through one stack."""
    from benchmarks.contestants import Order
    from benchmarks.contestants.corridor import settings_of, wait_for_end, workers
    from crawler import CrawlCoordinator
    from crawler.bulk import import_file

    os.environ["CRAWLER_ALLOW_NETS"] = "127.0.0.0/8"
    settings = settings_of(Order([], folder, {}))
    urls = site.urls(site.FAST, batch)

    with workers(settings, CHILDREN):
        from crawler.tasks import fill_window  # it finds the stack that is up now

        def imports(turn: int) -> None:
            file = folder / f"pages-{turn}.txt"
            file.write_text("".join(f"{url}?import={turn}\n" for url in urls))
            job = import_file(settings, file, "default")[1]
            fill_window()  # as `bulk import` does
            wait_for_end(settings, job)

        def crawls(turn: int) -> None:
            coordinator = CrawlCoordinator(f"turn-{turn}", distributed=True)
            results = coordinator.crawl_many_sync([f"{url}?crawl={turn}" for url in urls])
            if any(each["status"] != "success" for each in results):
                raise SystemExit("library: not everything was collected")

        took: dict[str, list[float]] = {"imports": [], "crawls": []}
        for turn in range(turns + 1):
            for name, work in (("imports", imports), ("crawls", crawls)):
                began = time.perf_counter()
                work(turn)
                took[name].append(time.perf_counter() - began)
    # The first turn starts what lives on: connections, and the modules of this process.
    return statistics.median(took["imports"][1:]), statistics.median(took["crawls"][1:])


def measured(rounds: int, pages: int, turns: int) -> list[Figures]:
    """The rounds."""
    found = []
    site.write(WORK / "site")
    with site.served(WORK / "site", WORK / "nginx"):
        measure.settle(WORK / "run")
        for _ in range(rounds):
            corridor = alone("corridor", pages, {"distributed": False})
            direct = alone("coordinator", pages, {})
            found.append(Figures(corridor, direct, *apart(through_stack, BATCH, turns)))
            print(found[-1], file=sys.stderr)
    return found


def told(found: Sequence[Figures], pages: int) -> str:
    """The report."""
    middle = Figures(*(statistics.median(each) for each in zip(*found, strict=True)))
    rows = (
        ("corridor, one process", f"{middle.corridor:,.0f} pages/s", ""),
        (
            "`crawl_many`, without a stack",
            f"{middle.direct:,.0f} pages/s",
            f"{middle.direct / middle.corridor:.2f} (goal: at least {DIRECT_GOAL})",
        ),
        (f"bulk import of {BATCH:,} URLs into a stack", f"{middle.imported:.2f} s", ""),
        (
            f"`crawl_many` of {BATCH:,} URLs through it",
            f"{middle.distributed:.2f} s",
            f"{middle.distributed / middle.imported:.2f} (goal: at most {STACK_GOAL})",
        ),
    )
    return "\n\n".join(
        (
            "## The Python library",
            report.machine(),
            f"{pages:,} pages without a stack; {CHILDREN} children in the stack. `crawl_many` "
            "returns the records of all pages, which is inside its time, and so is the start of "
            f"its process. Medians of {len(found)} rounds.",
            report.table(("", "median", "ratio"), rows),
        )
    )


def main() -> None:
    """Measure and report."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--pages", type=int, default=PAGES)
    options.add_argument("--turns", type=int, default=TURNS)
    options.add_argument("--rounds", type=int, default=0, help="then nothing is written")
    given = options.parse_args()
    text = told(measured(given.rounds or ROUNDS, given.pages, given.turns), given.pages)
    print(text)
    if not given.rounds:
        report.section("library", text)


if __name__ == "__main__":
    main()
