"""The corridor beside its peers: pages a second, CPU and memory, in interleaved rounds.

Example: python -m benchmarks.speed --rounds 1 --only corridor,bare

A run with everything writes RESULTS.md and `.work/speed.json`; one with --only is printed and not
kept.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import measure, report, site

WORK = Path(__file__).with_name(".work")
PEERS = WORK / "peers" / "bin" / "python"
PER_DOMAIN = 10


class Contestant(NamedTuple):
    """Who runs, and how."""

    title: str
    module: str
    pages: int
    """As many as it does in 10 to 20 s."""
    options: Mapping[str, Any]
    slow: Mapping[str, Any] = {}
    """What differs on the slow server, where more must be in flight."""
    ours: bool = False


FEW: Mapping[str, Any] = {"requests": 16}
MANY: Mapping[str, Any] = {"requests": 128}
MEMORY: Mapping[str, Any] = {"requests": 64, "storage": "memory"}
DISK: Mapping[str, Any] = {"requests": 64, "storage": "disk"}
TWO: Mapping[str, Any] = {"processes": 2}
CONTESTANTS = {
    "corridor": Contestant("**corridor**", "corridor", 20_000, {"workers": 3}, ours=True),
    "in-process": Contestant(
        "corridor, one process", "corridor", 5_000, {"distributed": False}, ours=True
    ),
    "bare": Contestant(
        "bare loop, two processes", "bare", 20_000, {"pages": 32, **TWO}, {"pages": 256}
    ),
    "scrapy": Contestant("Scrapy as shipped", "scrapy_shipped", 4_000, FEW, MANY),
    "scrapy-2": Contestant(
        "Scrapy as shipped, two processes", "scrapy_shipped", 6_000, {**FEW, **TWO}, MANY
    ),
    "tuned": Contestant("Scrapy tuned", "scrapy_tuned", 6_000, FEW, MANY),
    "tuned-2": Contestant(
        "Scrapy tuned, two processes", "scrapy_tuned", 10_000, {**FEW, **TWO}, MANY
    ),
    "scrapy-redis": Contestant("scrapy-redis", "scrapy_redis", 4_000, FEW, MANY),
    "crawlee": Contestant("Crawlee, memory", "crawlee_crawl", 6_000, MEMORY, MANY),
    "crawlee-2": Contestant(
        "Crawlee, memory, two processes", "crawlee_crawl", 10_000, {**MEMORY, **TWO}, MANY
    ),
    "crawlee-disk": Contestant("Crawlee, disk", "crawlee_crawl", 2_000, DISK, MANY),
    "naive": Contestant("one Celery task per URL", "naive_celery", 500, {"children": 8}),
}
WITH_4 = Contestant("corridor, 4 children", "corridor", 10_000, {"workers": 4}, ours=True)
POLITE = Contestant(
    "corridor, default limits", "corridor", 0, {"workers": 3, "polite": True}, ours=True
)
TLS = ("corridor", "bare", "scrapy")
SERVERS = {"fast": site.FAST, "slow": site.SLOW, "tls": site.TLS}

Run = dict[str, Any]
"""A measured run: server, name, round, pages, seconds, cpu_s, peak_mb."""


def plan(only: Sequence[str]) -> list[tuple[str, str, Contestant]]:
    """What is run in one round, as server and name."""
    runs = [(server, name, who) for server in ("fast", "slow") for name, who in CONTESTANTS.items()]
    runs += [("tls", name, CONTESTANTS[name]) for name in TLS]
    runs += [("fast", "corridor-4", WITH_4), ("domains", "polite", POLITE)]
    return [run for run in runs if not only or run[1] in only]


def addresses(server: str, count: int, domains: int) -> list[str]:
    """What is to be collected; of many domains, in no order."""
    if server != "domains":
        return site.urls(SERVERS[server], count, "https" if server == "tls" else "http")
    pages = [url.partition("127.0.0.1")[2] for url in site.urls(site.FAST, PER_DOMAIN)]
    urls = [f"http://{domain}{page}" for domain in site.domains()[:domains] for page in pages]
    random.Random(site.SEED).shuffle(urls)
    return urls


def one(server: str, name: str, who: Contestant, pages: int, domains: int) -> Run:
    """One run of one contestant; all its pages must be there."""
    wanted = addresses(server, min(pages, who.pages), domains)
    file = WORK / "urls.txt"
    file.write_text("\n".join(wanted) + "\n")
    folder = WORK / "run" / f"{server}-{name}"
    options = {**who.options, **(who.slow if server == "slow" else {})}
    env = {**os.environ, "SSL_CERT_FILE": str(site.certificate(WORK / "nginx"))}
    python = Path(sys.executable) if who.ours else PEERS
    try:
        measured = measure.run(who.module, python, file, folder, options, env)
    except RuntimeError as error:
        raise SystemExit(f"speed: {error}") from None
    if measured.pages != len(wanted):
        raise SystemExit(
            f"speed: {name} has stored {measured.pages:,} of {len(wanted):,} pages; see "
            f"{folder.with_suffix('.log')}"
        )
    return {"server": server, "name": name, **measured._asdict()}


def run(rounds: int, pages: int, domains: int, only: Sequence[str]) -> list[Run]:
    """All rounds, one contestant after the other in each, so that what changes on the machine meets
    all."""
    site.write(WORK / "site")
    runs = list[Run]()
    with site.served(WORK / "site", WORK / "nginx"):
        measure.settle(WORK / "run")
        for number in range(rounds):
            for server, name, who in plan(only):
                runs.append({"round": number, **one(server, name, who, pages, domains)})
                print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
                (WORK / "speed.part.json").write_text(json.dumps(runs))
    shutil.rmtree(WORK / "run")
    return runs


class Figures:
    """What the runs came to."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs

    def all(self, server: str, name: str, what: str) -> list[float]:
        """A figure in each round."""
        found = [run for run in self._runs if (run["server"], run["name"]) == (server, name)]
        return [
            {
                "rate": run["pages"] / run["seconds"],
                "cpu": 1000 * run["cpu_s"] / run["pages"],
                "mb": run["peak_mb"],
                "pages": run["pages"],
                "seconds": run["seconds"],
            }[what]
            for run in found
        ]

    def median(self, server: str, name: str, what: str = "rate") -> float | None:
        """The middle one, where there is any."""
        found = self.all(server, name, what)
        return statistics.median(found) if found else None

    def spread(self, server: str, name: str, what: str) -> str:
        """The middle one, and from what to what."""
        found = self.all(server, name, what)
        middle = report.figure(statistics.median(found))
        return (
            middle
            if len(found) == 1
            else f"{middle} ({report.figure(min(found))}–{report.figure(max(found))})"
        )

    def ratio(self, server: str, name: str, other: str, what: str = "rate") -> float | None:
        """One's median to another's."""
        one, two = self.median(server, name, what), self.median(server, other, what)
        return one / two if one and two else None

    def polite(self) -> tuple[float, float] | None:
        """The seconds that many domains at the default limits need at least, and those that they
        took.

        A domain's ten pages and its robots.txt are eleven requests at two a second: the last goes
        after 5 s. All domains go at once; but where the corridor without limits needs longer for so
        many pages, that is the least.
        """
        rate, took = self.median("fast", "corridor"), self.median("domains", "polite", "seconds")
        if not rate or not took:
            return None
        pages = self.median("domains", "polite", "pages") or 0
        return max(PER_DOMAIN / 2, pages / rate), took


class Goal(NamedTuple):
    """What was to be reached."""

    text: str
    value: float | None
    wanted: float
    cause: str = ""
    """What the profile names, where it is not met."""
    at_least: bool = True

    @property
    def row(self) -> tuple[str, str, str, str]:
        """The goal, the figure, whether it is met, and if not, by how much it is missed."""
        sign = "≥" if self.at_least else "≤"
        if self.value is None:
            return self.text, f"{sign} {self.wanted:g}", "–", "not measured"
        met = self.value >= self.wanted if self.at_least else self.value <= self.wanted
        share = report.figure(self.value / self.wanted)
        miss = f"**not met**: {share} × the goal. {self.cause}".rstrip()
        return (
            self.text,
            f"{sign} {self.wanted:g}",
            report.figure(self.value),
            "met" if met else miss,
        )


CPU = (
    "Both cores are busy. Beside request, parse and fields, which are all that the bare loop does, "
    "a page has its verdict, its durable store, and its part in ledger, permit and events: "
    "PROFILE.md has the time of each."
)
ALONE = (
    "Both cores are busy. Where every page is another domain's, claim, permit, its report and the "
    "connection are made for each page and not for a handful."
)


def goals(figures: Figures) -> list[Goal]:
    """All that this part of the benchmark can say."""
    polite = figures.polite()
    return [
        Goal("corridor : Scrapy as shipped", figures.ratio("fast", "corridor", "scrapy"), 6, CPU),
        Goal("corridor : Scrapy tuned", figures.ratio("fast", "corridor", "tuned"), 4, CPU),
        Goal("corridor : Crawlee, memory", figures.ratio("fast", "corridor", "crawlee"), 3, CPU),
        Goal(
            "corridor : one Celery task per URL",
            figures.ratio("fast", "corridor", "naive"),
            40,
            CPU,
        ),
        Goal("corridor : bare loop", figures.ratio("fast", "corridor", "bare"), 0.7, CPU),
        Goal(
            "slow server, corridor : Scrapy as shipped",
            figures.ratio("slow", "corridor", "scrapy"),
            6,
            CPU,
        ),
        Goal(
            "slow server, corridor : bare loop",
            figures.ratio("slow", "corridor", "bare"),
            0.85,
            CPU,
        ),
        Goal("TLS, corridor : Scrapy as shipped", figures.ratio("tls", "corridor", "scrapy"), 4),
        Goal(
            "many domains, share of what the limits allow",
            polite and polite[0] / polite[1],
            0.9,
            ALONE,
        ),
        Goal(
            "CPU a page, corridor : bare loop",
            figures.ratio("fast", "corridor", "bare", "cpu"),
            1.5,
            CPU,
            at_least=False,
        ),
        Goal(
            "peak MB of the whole stack at 4 children",
            figures.median("fast", "corridor-4", "mb"),
            400,
            at_least=False,
        ),
    ]


def compared(figures: Figures, server: str, only: Sequence[str]) -> str:
    """The table of a server."""
    rows = []
    for where, name, who in plan(only):
        if where == server:
            ratio = figures.ratio(server, "corridor", name)
            rows.append(
                (who.title, report.figure(figures.median(server, name, "pages") or 0),
                 figures.spread(server, name, "rate"), report.figure(ratio) if ratio else "–",
                 figures.spread(server, name, "cpu"), figures.spread(server, name, "mb"))
            )  # fmt: skip
    return report.table(
        ("", "pages", "pages/s", "corridor is × as fast", "CPU s / 1,000", "peak MB"), rows
    )


def rendered(kept: Mapping[str, Any], only: Sequence[str] = ()) -> str:
    """The section of the report."""
    figures = Figures(kept["runs"])
    texts = [
        "## Beside the peers",
        kept["machine"],
        f"Interleaved rounds: {kept['rounds']}; medians, and from least to most. The machine's "
        "cores also ran nginx. Every contestant collects the same pages (20 to 60 KB) and eight "
        "fields of each, and stores the raw page, a JSON file and a row, the bare loop only a "
        "line of JSON. [README.md](README.md) says what each does and what was set. The corridor: "
        "`synchronous=FULL`, permit, robots.txt, verdict, egress rule and events on.",
        "### Goals",
        report.table(("goal", "", "measured", ""), [goal.row for goal in goals(figures)]),
    ]
    titles = {"fast": "At once", "slow": "After 100 to 300 ms", "tls": "At once, over TLS"}
    for server, title in titles.items():
        if any(where == server for where, _, _ in plan(only)):
            texts += [f"### {title}", compared(figures, server, only)]
    if polite := figures.polite():
        least, took = polite
        pages = figures.median("domains", "polite", "pages") or 0
        texts += [
            "### Many domains at the default limits",
            f"{pages / PER_DOMAIN:,.0f} domains × {PER_DOMAIN} pages, 2 requests a second and 2 "
            f"at a time for each: {figures.spread('domains', 'polite', 'seconds')} s. Of a "
            f"domain's {PER_DOMAIN} pages and its robots.txt the last request may go after "
            f"{PER_DOMAIN / 2:g} s, and all domains go at once. At the pages/s of the corridor "
            "without limits so many pages are "
            f"{pages / (figures.median('fast', 'corridor') or 1):.1f} s of this machine. The "
            f"longer of both is the least that is possible: {least:.1f} s, a share of "
            f"{least / took:.2f} of what it took.",
        ]
    return "\n\n".join(texts)


def main() -> None:
    """Measure, keep, render."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument(
        "--pages",
        type=int,
        default=site.PAGES,
        help="at most; slower contestants have fewer anyway",
    )
    options.add_argument("--domains", type=int, default=site.MANY_DOMAINS)
    options.add_argument(
        "--only", default="", help="names, as corridor,bare; also corridor-4 and polite"
    )
    options.add_argument(
        "--render", action="store_true", help="write the report again from what was measured last"
    )
    given = options.parse_args()
    only, kept = [name for name in given.only.split(",") if name], WORK / "speed.json"
    if unknown := set(only) - {name for _, name, _ in plan([])}:
        options.error(f"there is no {', '.join(sorted(unknown))}")
    if given.render:
        report.section("speed", rendered(json.loads(kept.read_text())))
        return
    if not PEERS.exists():
        raise SystemExit("speed: the peers are not installed; run: sh benchmarks/run speed")
    runs = run(given.rounds, given.pages, given.domains, only)
    result = {"machine": report.machine(PEERS), "rounds": given.rounds, "runs": runs}
    print(rendered(result, only))
    if not only:
        kept.write_text(json.dumps(result, indent=1))
        report.section("speed", rendered(result))


if __name__ == "__main__":
    main()
