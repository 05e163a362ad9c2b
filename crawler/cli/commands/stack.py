"""`up`, `down`, `worker`, `doctor`, `demo` and `drill`: run the stack, check it and try it out."""

import contextlib
import functools
import os
import random
import shutil
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from crawler import config
from crawler.cli.options import (
    Number,
    autoscale_option,
    browsers_option,
    data_dir_option,
    json_option,
    workers_option,
)
from crawler.cli.output import print_json, say
from crawler.config import Settings, program
from crawler.errors import InputError, StackIsUp
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager
from crawler.models import BROWSER, JobOptions

if TYPE_CHECKING:
    from crawler.doctor import ReparsedPage
    from crawler.drill import Score
    from crawler.orchestrator import Orchestrator
    from crawler.sites import Sites

STOP_LIMIT_S = 15.0
DEMO_LISTINGS = 60
"""Listings of the site that `demo` crawls."""

PEERS = "Scrapy 2.19.0, scrapy-redis 0.9.1, Crawlee 1.11.0, Celery 5.7.0"
PEER_LOSSES = (
    (66, 1, "Scrapy, JOBDIR, addresses through its filter of duplicates"),
    (0, 136, "Scrapy, JOBDIR, addresses as start_urls"),
    (18, 0, "scrapy-redis, SCHEDULER_PERSIST; Redis lives on"),
    (0, 15, "Crawlee, disk, not purged at start"),
    (
        31,
        0,
        "one Celery task per URL, acks_late; Redis lives on; 20 s waited, the rest comes back "
        "after an hour",
    ),
)
"""Pages that other crawlers miss and fetch twice after a kill. A test compares these numbers with
`benchmarks/RESULTS.md`."""


@contextlib.contextmanager
def started(stack: "Orchestrator") -> Iterator[None]:
    """Start the processes of a stack; if interrupted, say how to continue."""
    try:
        stack.start_all()
        yield
    except (KeyboardInterrupt, SystemExit):
        say("stopping; run the same command again to continue (Ctrl-C again stops at once)")
        raise


@click.command()
@workers_option
@autoscale_option
@click.option("--flower", is_flag=True, help="Start Flower too, on 127.0.0.1.")
@click.option("--beat", is_flag=True, help="Run the schedules of config/schedules.yaml too.")
@click.option("--api", is_flag=True, help="Serve the HTTP API too, on 127.0.0.1.")
@browsers_option
@data_dir_option
def up(
    workers: int | None,
    autoscale: tuple[int, int] | None,
    flower: bool,
    beat: bool,
    api: bool,
    browsers: int,
) -> None:
    """Start Redis and workers in the background. A process that dies is restarted.

    \b
    Example:
      python -m crawler up --workers 4 --flower
      python -m crawler up --autoscale 2,16
      python -m crawler up --beat
      python -m crawler up --api
      python -m crawler up --browsers 2
    """
    from crawler.orchestrator import check_flower, other_version, spawn_supervisor
    from crawler.stack import read_stack

    if workers and autoscale:
        raise click.UsageError("--workers and --autoscale exclude each other")
    settings = config.load()
    stack = read_stack(settings.data_dir)
    if stack.unreadable:
        raise StackIsUp(other_version(settings.data_dir))
    if stack.container:
        print(f"The stack is up already, in containers (Flower: {stack.flower_url})")
        return
    if stack.up and stack.ready and stack.supervisor:
        lacks = (flower and not stack.flower_url) or (beat and not stack.beat)
        lacks |= bool((browsers and not stack.browsers) or (api and not stack.api))
        if workers or autoscale or lacks:
            raise click.UsageError(
                f"the stack is up already, with other options; stop it first: {program()} down"
            )
        print(f"The stack is up already (supervisor {stack.supervisor.pid})")
        return
    if flower:
        check_flower()
    say("starting Redis and workers …")
    stack = spawn_supervisor(settings, workers, flower, beat, api, browsers, autoscale)
    print(f"The stack is up (supervisor {stack.supervisor.pid if stack.supervisor else '?'})")
    if stack.flower_url:
        print(f"Flower: {stack.flower_url}")
    if stack.api_url:
        print(f"API: {stack.api_url}")
    if not beat:
        _say_schedules_rest(settings)


def _say_schedules_rest(settings: Settings) -> None:
    """Say if there are schedules that nothing runs."""
    from crawler.orchestrator import has_schedules

    try:
        if has_schedules(settings):
            say(f"schedules do not run without --beat: {program()} down, then up --beat")
    except InputError as error:
        say(f"{error}; schedules do not run without --beat")


@click.command()
@data_dir_option
def down() -> None:
    """Stop the stack that `up` or `ondemand` started. Open tasks stay in the ledger.

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
            "the stack runs in containers; stop it with: "
            "docker compose -f docker-compose.standalone.yml down"
        )
    if stack.unreadable:
        raise StackIsUp(other_version(settings.data_dir))
    supervisor = stack.supervisor.find() if stack.supervisor else None
    end_process(supervisor, STOP_LIMIT_S)
    # Only processes of this stack: a `run` may have started another one by now.
    left = stop_stale(settings.data_dir, stack)
    if supervisor or left:
        print("The stack is down")
    else:
        print("No stack was up")


@click.command()
@workers_option
@click.option(
    "--browser", is_flag=True, help="Render the pages that need a browser: -Q browser instead."
)
@data_dir_option
def worker(workers: int | None, browser: bool) -> None:
    """Run a worker in this terminal: celery -A crawler worker -Q urgent,default.

    \b
    Example:
      python -m crawler worker --workers 4
      python -m crawler worker --browser --workers 1
    """
    config.load()
    count, queues = workers or os.cpu_count() or 1, "urgent,default"
    if browser:
        count, queues = workers or 1, BROWSER
    command = f"-m celery -A crawler worker -Q {queues} -c {count}"
    os.execv(sys.executable, [sys.executable, *command.split()])


@click.command(hidden=True)
@workers_option
@autoscale_option
@click.option("--flower", is_flag=True)
@click.option("--beat", is_flag=True)
@click.option("--api", is_flag=True)
@browsers_option
def supervise(
    workers: int | None,
    autoscale: tuple[int, int] | None,
    flower: bool,
    beat: bool,
    api: bool,
    browsers: int,
) -> None:
    """The background process of `up`."""
    from crawler import logs
    from crawler.orchestrator import Orchestrator, terminated_by_signal

    settings = config.load()
    logs.setup(settings.log_level)
    with (
        terminated_by_signal(),
        Orchestrator(
            settings,
            workers,
            flower,
            beat=beat,
            join=False,
            api=api,
            browsers=browsers,
            autoscale=autoscale,
        ) as stack,
    ):
        stack.start_all()
        while True:
            time.sleep(3600)


@click.command()
@click.option(
    "--repair",
    is_flag=True,
    help="Repair what can be repaired; replaced files are kept under another name.",
)
@click.option(
    "--compact",
    is_flag=True,
    help="Instead of all checks, rewrite lpm.db without unused room, while the stack is down.",
)
@json_option
@data_dir_option
def doctor(repair: bool, compact: bool, as_json: bool) -> None:
    """Check the store and the stack; with --repair, repair what can be repaired.

    Exits with 0 if all is well, 1 if a problem is left, and 4 if the store cannot be used.

    \b
    Example:
      python -m crawler doctor
      python -m crawler doctor --repair
      python -m crawler doctor --compact
    """
    from crawler.doctor import examine, exit_code

    if repair and compact:
        raise click.UsageError("--repair and --compact are two commands; type one after the other")
    if compact:
        from crawler.doctor.compact import compact as rewrite

        checks = rewrite(say)
    else:
        checks = examine(repair, say, reparse=_read_stored_page if repair else None)
    findings = []
    for finding in checks:
        findings.append(finding)
        if not as_json:
            print(f"{finding.state:7} {finding.check:12} {printable(finding.detail)}", flush=True)
            if finding.fix:
                print(f"{'':20} → {printable(finding.fix)}", flush=True)
    if as_json:
        print_json(findings)
    sys.exit(exit_code(findings))


def _read_stored_page(
    url: str, final_url: str, head: str, received: bytes, named_by: str
) -> "ReparsedPage | None":
    """Parse a stored page with the present site configuration; None if it is no good page."""
    from crawler.doctor import ReparsedPage
    from crawler.fetch.budget import Budget
    from crawler.scraping.examine import examine
    from crawler.scraping.file_fetch import examine_file
    from crawler.scraping.stored import rebuild_page
    from crawler.sites.crawlfile import Files

    page, site = rebuild_page(head, received, url, final_url), _configured_sites().of(url)
    if named_by:
        naming = _configured_sites().named(named_by)
        read = examine_file(page, (naming and naming.files) or Files(), site, Budget())
    else:
        read = examine(page, site)
    if not read.verdict.completed:
        return None
    content_type, version = page.header("content-type"), (site.name, site.version)
    return ReparsedPage(read.encoded, content_type, read.parser, version, page.body, read.invalid)


@functools.cache
def _configured_sites() -> "Sites":
    from crawler import sites

    settings = config.load()
    return sites.load(settings.config_dir, settings.rate)


@click.command()
@workers_option
@data_dir_option
def demo(workers: int | None) -> int:
    """Crawl two small sites on this machine through the whole stack: Redis, workers and store.

    The first is collected from a list of its pages: some are slow, some fail once, and a few are
    broken. The second is crawled from its first page, by links and sitemaps. The store is the
    folder `demo` in the data folder; each run replaces it.

    \b
    Example:
      python -m crawler demo
    """
    settings = config.load()
    folder = settings.data_dir.absolute() / "demo"
    settings = msgspec.structs.replace(settings, data_dir=folder, redis_url=None)
    os.environ["CRAWLER_DATA_DIR"] = os.path.relpath(folder)  # for the commands that are suggested
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    is_as_built = [demonstrate(settings, workers) for demonstrate in (_demo_list, _demo_crawl)]
    _print_more(settings.data_dir)
    if not all(is_as_built):
        return 1
    print("This is the outcome the sites were built to have.")
    return 0


def _demo_list(settings: Settings, workers: int | None) -> bool:
    """Collect a list of pages; whether the outcome is the expected one."""
    import csv

    from crawler import demo_site
    from crawler.bulk import import_file
    from crawler.cli.running import report, run_job

    with demo_site.running_site() as base:
        file = settings.data_dir / "parcels.csv"
        rows = demo_site.urls(base)
        with file.open("w", newline="") as out:
            writer = csv.DictWriter(out, rows[0])
            writer.writeheader()
            writer.writerows(rows)
        say(f"a site with {len(rows)} parcels runs at {base}; its list is {file}")
        _, job = import_file(settings, file, how=JobOptions(rate="none"))
        books = run_job(settings, workers, job)
    report(settings, job, as_json=False)
    _print_examples(settings.data_dir)
    if {"completed": books.completed, "failed": books.failed} == demo_site.EXPECTED:
        return True
    print(f"Expected: {demo_site.EXPECTED}.")
    return False


def _demo_crawl(settings: Settings, workers: int | None) -> bool:
    """Crawl a whole site; whether each of its listings was collected, and once."""
    from crawler import crawls, urls
    from crawler.cli.running import report, run_job
    from crawler.examples.imoti import Imoti
    from crawler.examples.server import Running

    site = Imoti(DEMO_LISTINGS)
    with Running("crawler.examples", "--port", 0, "--size", DEMO_LISTINGS) as running:
        base = running.url(site.host)
        say(f"a real-estate portal with {DEMO_LISTINGS} listings runs at {base}/")
        plan = crawls.plan(
            _configured_sites(),
            [f"{base}/"],
            JobOptions(rate="none"),
            subdomains=False,
            sitemap=None,
        )
        job = crawls.begin(settings, plan).job
        run_job(settings, workers, job)
    report(settings, job, as_json=False)
    with LocalPersistenceManager(settings.data_dir) as lpm:
        found = Counter(urls.parse(each["url"]).key for each in lpm.results.read(job))
    missing = [each for each in site.listings(base) if found[urls.parse(each.url).key] != 1]
    if missing:
        print(f"{len(missing)} of {DEMO_LISTINGS} listings were not collected once.")
    return not missing


def _print_examples(data_dir: Path) -> None:
    with LocalPersistenceManager(data_dir) as lpm:
        print("Three of the records:")
        for result in lpm.results.read(limit=3):
            fields = result["data"].get("fields", {})
            text = ", ".join(f"{name}: {value}" for name, value in list(fields.items())[:4])
            print(f"  {result['parcel_id']}  {result['data'].get('title', '')}  {text}")


def _print_more(data_dir: Path) -> None:
    print("See more:")
    folder = Path(os.path.relpath(sys.executable)).parent
    if shutil.which("python") != sys.executable and (folder / "activate").is_file():
        print(f"  . {folder}/activate")
    command = program(Path(os.path.relpath(data_dir)))
    print(f"  {command} status")
    print(f"  {command} results export --output results.jsonl")


@click.command()
@click.option(
    "--pages",
    type=click.IntRange(1, 1_000_000),
    default=1000,
    show_default=True,
    help="Number of pages to crawl.",
)
@click.option(
    "--kills",
    type=click.IntRange(0, 10_000),
    default=5,
    show_default=True,
    help="Number of strikes.",
)
@workers_option
@click.option(
    "--seed",
    type=click.IntRange(0),
    help="The same seed gives the same strikes (default: random).",
)
@click.option(
    "--latency",
    type=click.IntRange(0, 10_000),
    default=50,
    show_default=True,
    metavar="MS",
    help="Response time of a page in milliseconds.",
)
@click.option(
    "--faults",
    type=Number(0, 1),
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

    A strike is kill -9 of a worker's child, of the whole worker or of Redis, or FLUSHALL in Redis.
    The drill has its own Redis, workers and store: the folder `drill` in the data folder. Each run
    replaces it.

    Exits with 0 if nothing is lost and only pages in flight at a strike were fetched again, with 5
    if a task is lost or unaccounted for, and with 1 if a result came twice.

    \b
    Example:
      python -m crawler drill
      python -m crawler drill --pages 10000 --kills 30 --workers 4 --seed 7
    """
    from crawler import drill as crash_test

    settings = config.load()
    if seed is None:
        seed = random.randrange(1_000_000)
    plan = crash_test.plan(seed=seed, pages=pages, kills=kills, latency_ms=latency, faults=faults)
    say(f"drill with seed {seed}")
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
        _print_peers()
    return score.exit_code


def _print_score(score: "Score") -> None:
    fell = [strike for strike in score.strikes if strike.done is not None]
    kinds = Counter(strike.kind for strike in fell)
    strikes = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    setup = f"seed {score.seed}, {score.workers} workers, {score.latency_ms} ms a page"
    failures = ", ".join(f"{count:,} {reason}" for reason, count in score.failures.items())
    in_flight = f"of {score.in_flight:,} in flight at the kills"
    recovery, slowest = "–", ""
    if score.slowest:
        recovery = f"{score.slowest.back_after_s:.1f} s"
        slowest = f"strike {score.slowest.number}: {score.slowest}"
    rows = (
        ("pages", f"{score.pages:,}", setup),
        ("lost", f"{score.lost:,}", failures),
        ("twice", f"{score.twice:,}", ""),
        ("extra fetches", f"{score.extra_fetches:,}", in_flight),
        ("planned retries", f"{score.planned_retries:,}", "pages that failed once on purpose"),
        ("strikes", f"{len(fell):,}", strikes),
        ("slowest recovery", recovery, slowest),
        ("balance checks", f"{score.samples:,}", f"{score.unbalanced:,} unbalanced"),
        ("pages/s", f"{score.pages_per_s:.0f}", f"{score.seconds:.0f} s for all"),
    )
    for name, value, note in rows:
        print(f"{name:20}{value:>10}  {note}".rstrip())
    print(score.verdict)


def _print_peers() -> None:
    """Print how other crawlers do after a kill."""
    measured = "SIGKILL at page 120 of 300, then the same command again (benchmarks/RESULTS.md)."
    print(f"\n{textwrap.fill(f'For comparison, {PEERS}: {measured}', 80)}")
    print("missing  fetched twice")
    for missing, twice, who in PEER_LOSSES:
        counts = f"{missing:7,}{twice:15,}  "
        print(textwrap.fill(who, 80, initial_indent=counts, subsequent_indent=" " * 24))
