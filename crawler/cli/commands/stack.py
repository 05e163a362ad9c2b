"""`up`, `down`, `worker`, `doctor`, `demo` and `drill`: the stack, and trying it out."""

import functools
import os
import random
import shutil
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from crawler import config
from crawler.cli.options import data_dir_option, json_option, workers_option
from crawler.cli.output import print_json, say
from crawler.config import program
from crawler.errors import StackIsUp
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager
from crawler.models import JobOptions


@click.command()
@workers_option
@click.option("--flower", is_flag=True, help="Flower too, on 127.0.0.1.")
@data_dir_option
def up(workers: int | None, flower: bool) -> None:
    """Start Redis and workers in the background; what dies is started again.

    \b
    Example:
      python -m crawler up --workers 4 --flower
    """
    from crawler.orchestrator import check_flower, other_version, spawn_supervisor
    from crawler.stack import read_stack

    settings = config.load()
    stack = read_stack(settings.data_dir)
    if stack.unreadable:
        raise StackIsUp(other_version(settings.data_dir))
    if stack.container:
        print(f"The stack is up already, in containers (Flower: {stack.flower_url})")
        return
    if stack.up and stack.ready and stack.supervisor:
        if workers or (flower and not stack.flower_url):
            raise click.UsageError(
                f"the stack is up already, with other options; stop it first: {program()} down"
            )
        print(f"The stack is up already (supervisor {stack.supervisor.pid})")
        return
    if flower:
        check_flower()
    say("starting Redis and workers …")
    stack = spawn_supervisor(settings, workers, flower)
    print(f"The stack is up (supervisor {stack.supervisor.pid if stack.supervisor else '?'})")
    if stack.flower_url:
        print(f"Flower: {stack.flower_url}")


@click.command()
@data_dir_option
def down() -> None:
    """Stop the stack, whether `up` or `ondemand` has started it; what was not done stays in the
    ledger.

    \b
    Example:
      python -m crawler down
    """
    from crawler.orchestrator import other_version, stop_stale
    from crawler.process import end_process
    from crawler.stack import read_stack

    settings = config.load()
    stack = read_stack(settings.data_dir)
    if stack.container:
        raise click.UsageError(
            "the stack runs in containers; stop it with: docker compose -f docker-compose.standalone.yml down"
        )
    if stack.unreadable:
        raise StackIsUp(other_version(settings.data_dir))
    supervisor = stack.supervisor.find() if stack.supervisor else None
    end_process(supervisor, 15)
    left = stop_stale(
        settings.data_dir, stack
    )  # of this one only: a `run` may be starting its own by now
    print("The stack is down" if supervisor or left else "No stack was up")


@click.command()
@workers_option
@data_dir_option
def worker(workers: int | None) -> None:
    """Run a worker in this terminal: celery -A crawler worker -Q urgent,default.

    \b
    Example:
      python -m crawler worker --workers 4
    """
    config.load()
    count = str(workers or os.cpu_count() or 1)
    argv = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "crawler",
        "worker",
        "-Q",
        "urgent,default",
        "-c",
        count,
    ]
    os.execv(sys.executable, argv)


@click.command(hidden=True)
@workers_option
@click.option("--flower", is_flag=True)
def supervise(workers: int | None, flower: bool) -> None:
    """What `up` leaves in the background."""
    from crawler.orchestrator import Orchestrator, terminated_by_signal

    with terminated_by_signal(), Orchestrator(config.load(), workers, flower) as stack:
        stack.start_all()
        while True:
            time.sleep(3600)


if TYPE_CHECKING:
    from crawler.doctor import ReparsedPage
    from crawler.sites import Sites


@click.command()
@click.option(
    "--repair",
    is_flag=True,
    help="Mend what can be mended; what is replaced is kept under another name.",
)
@json_option
@data_dir_option
def doctor(repair: bool, as_json: bool) -> None:
    """Examine the store and the stack, and mend what can be mended.

    Ends with 0 if nothing is wrong any more, with 1 if something is, with 4 if the store cannot be
    used.

    \b
    Example:
      python -m crawler doctor
      python -m crawler doctor --repair
    """
    from crawler.doctor import examine, exit_code

    findings = []
    for finding in examine(repair, say, reparse=_read_stored if repair else None):
        findings.append(finding)
        if not as_json:
            print(f"{finding.state:7} {finding.check:12} {printable(finding.detail)}", flush=True)
            if finding.fix:
                print(f"{'':20} → {printable(finding.fix)}", flush=True)
    if as_json:
        print_json(findings)
    sys.exit(exit_code(findings))


def _read_stored(url: str, final_url: str, head: str, received: bytes) -> "ReparsedPage | None":
    """Read a stored page with the present configuration."""
    from crawler.doctor import ReparsedPage
    from crawler.scraping import examine, stored_page

    page, site = stored_page(head, received, url, final_url), _configured_sites().of(url)
    read = examine(page, site)
    if not read.verdict.completed:
        return None
    return ReparsedPage(
        read.encoded, page.header("content-type"), read.parser, (site.name, site.version), page.body
    )


@functools.cache
def _configured_sites() -> "Sites":
    from crawler import sites

    settings = config.load()
    return sites.load(settings.config_dir, settings.rate)


@click.command()
@workers_option
@data_dir_option
def demo(workers: int | None) -> int:
    """Crawl a small site on this machine through the whole stack: Redis, workers, store.

    Some of its pages are slow, some fail once, a few are broken for good. The store is the folder
    `demo` in the data folder, made anew each time.

    \b
    Example:
      python -m crawler demo
    """
    import csv

    from crawler import demo_site
    from crawler.bulk import import_file
    from crawler.cli.commands.bulk import crawl, report

    settings = config.load()
    folder = settings.data_dir.absolute() / "demo"
    settings = msgspec.structs.replace(settings, data_dir=folder, redis_url=None)
    os.environ["CRAWLER_DATA_DIR"] = os.path.relpath(folder)  # commands that are proposed name it
    with demo_site.running_site() as base:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)
        file = folder / "parcels.csv"
        rows = demo_site.urls(base)
        with file.open("w", newline="") as out:
            writer = csv.DictWriter(out, rows[0])
            writer.writeheader()
            writer.writerows(rows)
        say(f"a site with {len(rows)} parcels runs at {base}; its list is {file}")
        _, job = import_file(settings, file, how=JobOptions(rate="none"))
        books = crawl(settings, workers, job)
    report(settings, job, as_json=False)
    _show_examples(settings.data_dir)
    good = {"completed": books.completed, "failed": books.failed} == demo_site.EXPECTED
    print(
        "This is the outcome the site was built to have."
        if good
        else f"Expected were {demo_site.EXPECTED}."
    )
    return 0 if good else 1


def _show_examples(data_dir: Path) -> None:
    lpm = LocalPersistenceManager(data_dir)
    print("Three of the records:")
    for result in lpm.results.read(limit=3):
        fields = result["data"].get("fields", {})
        text = ", ".join(f"{name}: {value}" for name, value in list(fields.items())[:4])
        print(f"  {result['parcel_id']}  {result['data'].get('title', '')}  {text}")
    lpm.close()
    python, data = os.path.relpath(sys.executable), os.path.relpath(data_dir)
    print("See more:")
    print(f"  {python} -m crawler --data-dir {data} status")
    print(f"  {python} -m crawler --data-dir {data} results export --output results.jsonl")


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
        _print_score(score)
    return score.exit_code


def _print_score(score: "Score") -> None:
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
