"""What following links costs: the CPU of a page with 200 links, with and without following them.

One worker in one process collects pages with 0, 10 or 100 links that nobody has seen before; the
others are known. `python -m benchmarks.links` fills the figures into RESULTS.md.
"""

import argparse
import statistics
import sys
import time
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import NamedTuple

from benchmarks import report, site
from benchmarks.profile import apart
from crawler.examples.server import Request, Response, Running, not_found, serve

LINKS = 200
PAGES, WARM_UP, TAIL = 1_200, 150, 50
"""Pages of a run; the first and the last ones are not measured."""
HOST = "127.0.0.1"
GOAL, GOAL_US = 1.5, 60


class Variant(NamedTuple):
    """New links of each page, and whether they are followed."""

    new: int
    follows: bool


VARIANTS = {
    "not followed": Variant(10, False),
    "all known": Variant(0, True),
    "10 new": Variant(10, True),
    "100 new": Variant(100, True),
}


class Pages:
    """The site: `/pages/<new>/<n>` links to the next pages and to so many that are new."""

    host = HOST

    def answer(self, request: Request) -> Response:
        """Answer one request."""
        if request.path == "/robots.txt":
            return Response(b"", kind="text/plain")
        _, kind, *rest = request.path.split("/")
        return Response(_page(*map(int, rest))) if kind == "pages" else not_found()


@cache
def _page(new: int, n: int) -> bytes:
    """A page of the benchmark's site, its own links replaced by 200 others."""
    text = site.page(n, PAGES).replace("<a href=", "<i title=").replace("</a>", "</i>")
    known = [f"/pages/{new}/{(n + k) % PAGES}" for k in range(1, LINKS - new + 1)]
    unseen = [f"/new/{n}/{k}" for k in range(new)]
    items = "".join(f"<li><a href='{path}'>Next</a></li>" for path in known + unseen)
    return text.replace("</main>", f"<ul>{items}</ul></main>").encode()


class Watch:
    """Takes the CPU time of the process between the first and the last measured page."""

    def __init__(self) -> None:
        self.done = self.others = 0
        self._began = self._ended = 0.0

    def __call__(self, task: object, outcome: object) -> None:
        """A task has begun, or was committed with that outcome."""
        if outcome is None:
            return
        url = getattr(task, "url", "")
        if "/pages/" not in url:
            self.others += self.done > WARM_UP and not self._ended and "/new/" in url
            return
        self.done += 1
        if self.done == WARM_UP:
            self._began = time.process_time()
        elif self.done == PAGES - TAIL:
            self._ended = time.process_time()

    @property
    def us_per_page(self) -> float:
        """Microseconds of CPU for a page."""
        return (self._ended - self._began) / (PAGES - TAIL - WARM_UP) * 1e6


def run(folder: Path, base: str, new: int, follows: bool) -> float:
    """Collect the pages; returns the microseconds of CPU for each."""
    from benchmarks.contestants import Order
    from benchmarks.contestants.corridor import settings_of
    from crawler import crawls, sites
    from crawler.bulk import import_file
    from crawler.models import QUEUES, JobOptions
    from crawler.worker import Worker, tune_garbage_collection

    settings = settings_of(Order([], folder, {"env": {"CRAWLER_SLICE_S": 1}}))
    urls = [f"{base}/pages/{new}/{n}" for n in range(PAGES)]
    tune_garbage_collection()
    watch = Watch()
    worker = Worker(settings, kind="cli", watch=watch)
    with ExitStack() as ends:
        ends.callback(worker.stop)
        if follows:
            begun = crawls.plan(
                sites.load(settings.config_dir), urls, JobOptions(), subdomains=False, depth=None,
                include=(), exclude=(), limit=0, sitemap="skip",
            )  # fmt: skip
            crawls.begin(settings, begun)
        else:
            file = folder / "urls.txt"
            file.write_text("\n".join(urls) + "\n")
            import_file(settings, file)
        while watch.done < PAGES:
            worker.run_slice("", QUEUES)
    if watch.others > 0.01 * PAGES:
        raise SystemExit(f"links: {watch.others} new links were fetched among the measured pages")
    return watch.us_per_page


def measured(rounds: int) -> dict[str, list[float]]:
    """Microseconds of CPU for a page of each variant, one after the other in every round."""
    found: dict[str, list[float]] = {name: [] for name in VARIANTS}
    with Running("benchmarks.links", "--serve") as server:
        for _ in range(rounds):
            for name, variant in VARIANTS.items():
                found[name].append(apart(run, server.url(HOST), *variant))
                print(f"{name}: {found[name][-1]:,.0f} µs", file=sys.stderr)
    return found


def told(found: dict[str, list[float]]) -> str:
    """The report."""
    plain, known = found["not followed"], found["all known"]
    ratio = statistics.median(a / b for a, b in zip(found["10 new"], plain, strict=True))
    new = statistics.median((a - b) / 100 for a, b in zip(found["100 new"], known, strict=True))
    lines = [
        (name, f"{statistics.median(each):,.0f}", f"{min(each):,.0f} to {max(each):,.0f}")
        for name, each in found.items()
    ]
    return "\n\n".join(
        (
            "## Following links",
            report.machine(),
            f"Pages of 25 to 70 KB with {LINKS} links, through the corridor in one process; "
            f"{PAGES:,} pages each, in {len(plain)} interleaved rounds.",
            report.table(("links of the page", "CPU a page, µs", "least to most"), lines),
            f"With 10 new links a page costs {ratio:.2f} times as much as without following "
            f"(goal: at most {GOAL}). A new link costs {new:.0f} µs (goal: at most {GOAL_US}).",
        )
    )


def main() -> None:
    """Measure and report."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--rounds", type=int, default=0, help="then nothing is written")
    given = options.parse_args()
    if given.serve:
        serve([Pages()])
        return
    text = told(measured(given.rounds or 5))
    print(text)
    if not given.rounds:
        report.section("links", text)


if __name__ == "__main__":
    main()
