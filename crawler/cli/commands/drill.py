"""`drill`: the crash test, with a scoreboard."""

import os
import random
import textwrap
from collections import Counter
from typing import TYPE_CHECKING

import click
import msgspec

from crawler import config
from crawler.cli.commands.stack import workers_option
from crawler.cli.output import data_dir_option, json_option, print_json, say

if TYPE_CHECKING:
    from crawler.drill import Score

PEERS = "Scrapy 2.19.0, scrapy-redis 0.9.1, Crawlee 1.11.0, Celery 5.7.0"
OTHERS = (
    (70, 1, "Scrapy, JOBDIR, addresses through its filter of duplicates"),
    (0, 135, "Scrapy, JOBDIR, addresses as start_urls"),
    (17, 0, "scrapy-redis, SCHEDULER_PERSIST; Redis lives on"),
    (0, 16, "Crawlee, disk, not purged at start"),
    (
        32,
        0,
        "one Celery task per URL, acks_late; Redis lives on; 20 s waited, the rest comes back after an hour",
    ),
)
"""What other crawlers miss and fetch twice after a kill, as `benchmarks/RESULTS.md` has it: a test
compares them."""


@click.command()
@click.option(
    "--pages",
    type=click.IntRange(1, 1_000_000),
    default=1000,
    show_default=True,
    help="Pages to collect.",
)
@click.option(
    "--kills",
    type=click.IntRange(0, 10_000),
    default=5,
    show_default=True,
    help="Strikes to survive.",
)
@workers_option
@click.option(
    "--seed",
    type=click.IntRange(0),
    help="The same seed gives the same strikes (default: a random one).",
)
@click.option(
    "--latency",
    type=click.IntRange(0, 10_000),
    default=50,
    show_default=True,
    metavar="MS",
    help="Milliseconds that a page takes.",
)
@click.option(
    "--faults",
    type=click.FloatRange(0, 1),
    default=0.1,
    show_default=True,
    help="Share of the pages that fail once.",
)
@json_option
@data_dir_option
def drill(
    pages: int,
    kills: int,
    workers: int | None,
    seed: int | None,
    latency: int,
    faults: float,
    as_json: bool,
) -> int:
    """Crawl a site on this machine, kill parts of the stack meanwhile, and count what is lost.

    Strikes are kill -9 of a worker's child, of the whole worker and of Redis, and FLUSHALL of
    Redis. It has its own Redis, workers and store: the folder `drill` in the data folder, made anew
    each time.

    Exits with 0 when nothing is lost and only what was in flight at the kills was fetched again,
    with 5 when anything is lost or unaccounted for, with 1 when anything came twice.

    \b
    Example:
      python -m crawler drill
      python -m crawler drill --pages 10000 --kills 30 --workers 4 --seed 7
    """
    from crawler import drill as crash_test

    settings = config.load()
    seed = random.randrange(1_000_000) if seed is None else seed
    plan = crash_test.plan(seed=seed, pages=pages, kills=kills, latency_ms=latency, faults=faults)
    say(f"a drill with seed {seed}")
    score = crash_test.drill(settings, plan, workers or os.cpu_count() or 1, say)
    if as_json:
        more = {
            "slowest_recovery_s": score.slowest.back_after_s if score.slowest else None,
            "pages_per_s": round(score.pages_per_s, 1),
            "verdict": score.verdict,
            "exit_code": score.exit_code,
        }
        print_json(msgspec.structs.asdict(score) | more)
    else:
        _show(score)
    return score.exit_code


def _show(score: "Score") -> None:
    fell = [strike for strike in score.strikes if strike.done is not None]
    kinds = Counter(strike.kind for strike in fell)
    slowest = score.slowest
    rows = [
        (
            "pages",
            f"{score.pages:,}",
            f"seed {score.seed}, {score.workers} workers, {score.latency_ms} ms a page",
        ),
        (
            "lost",
            f"{score.lost:,}",
            ", ".join(f"{count:,} {reason}" for reason, count in score.failures.items()),
        ),
        ("twice", f"{score.twice:,}", ""),
        (
            "extra fetches",
            f"{score.extra_fetches:,}",
            f"of {score.in_flight:,} in flight at the kills",
        ),
        ("planned retries", f"{score.planned_retries:,}", "pages that failed once on purpose"),
        (
            "strikes",
            f"{len(fell):,}",
            ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())),
        ),
        (
            "slowest recovery",
            f"{slowest.back_after_s:.1f} s" if slowest else "–",
            f"strike {slowest.number}: {slowest}" if slowest else "",
        ),
        ("looks at the books", f"{score.samples:,}", f"{score.unbalanced:,} unbalanced"),
        ("pages/s", f"{score.pages_per_s:.0f}", f"{score.seconds:.0f} s for all"),
    ]
    for name, value, note in rows:
        print(f"{name:20}{value:>10}  {note}".rstrip())
    print(score.verdict)
    measured = "SIGKILL at page 120 of 300, then the same command again (benchmarks/RESULTS.md)."
    print(f"\n{textwrap.fill(f'For comparison, {PEERS}: {measured}', 80)}")
    print("missing  fetched twice")
    for missing, twice, who in OTHERS:
        print(
            textwrap.fill(
                who, 80, initial_indent=f"{missing:7,}{twice:15,}  ", subsequent_indent=" " * 24
            )
        )
