"""`sites crawl`: crawl many sites by name."""

import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from crawler import config, crawls, sites, times
from crawler.cli.commands.bulk import queue_option
from crawler.cli.options import (
    Rate,
    data_dir_option,
    fetcher_option,
    json_option,
    robots_option,
    session_options,
    workers_option,
)
from crawler.cli.output import (
    UNACCOUNTED,
    conflicts_text,
    counts_text,
    cut_middle,
    print_invalid,
    print_json,
    print_left_out,
    print_line,
    print_reasons,
    say,
)
from crawler.cli.running import Followed, Series, exit_code, results_place, run_series
from crawler.config import Settings
from crawler.db.jobs import mend
from crawler.db.listing_views import Conflicts
from crawler.errors import InputError, UsageError
from crawler.logs import counted, printable
from crawler.lpm import LocalPersistenceManager
from crawler.models import Fetcher, Job, JobOptions, Receipt, Role, TaskStatus

if TYPE_CHECKING:
    from crawler.fetch.session import Session

_FIGURES = ("found", "fetched", "listings", "failed", "invalid", "unchanged")
_MATCH_LIMIT_S = 30.0
"""How long listings of different sites are compared at the end; `listings duplicates` goes on."""
_IF_ANY = ("invalid", "unchanged")
"""Figures whose column is left out if they are 0 for every site."""
_MIN_NAME_WIDTH = 8


@click.command()
@click.argument("names", nargs=-1, metavar="[SITE]...")
@click.option(
    "--limit",
    type=click.IntRange(0),
    help="Maximum pages of each site; 0 is no limit (default: 100000).",
)
@click.option(
    "--parallel",
    is_flag=True,
    help="Crawl all sites at the same time (default: PARALLEL_SCRAPING).",
)
@click.option("--sequential", is_flag=True, help="Crawl one site after the other.")
@click.option("--watch", is_flag=True, help="Show progress as a table.")
@click.option(
    "--rate",
    type=Rate(),
    help="Requests to each domain: 50/s, 30/m, or none for servers of your own.",
)
@queue_option
@workers_option
@fetcher_option
@robots_option
@session_options
@json_option
@data_dir_option
def crawl(
    names: tuple[str, ...],
    limit: int | None,
    parallel: bool,
    sequential: bool,
    watch: bool,
    rate: str | None,
    queue: str,
    workers: int | None,
    fetcher: Fetcher | None,
    ignore_robots: bool,
    session: "Session | None",
    as_json: bool,
) -> int:
    """Crawl each SITE of config/, or all that have starts.

    Each site is a job of its own, and a crawl of it that is open is continued. Safe to interrupt:
    run the same command again to continue.

    \b
    Example:
      python -m crawler sites crawl
      python -m crawler sites crawl county imoti --parallel --watch
    """
    if parallel and sequential:
        raise click.UsageError("--parallel and --sequential exclude each other")
    settings = config.load()
    known = sites.load(settings.config_dir, settings.rate)
    options = JobOptions(rate=rate, ignore_robots=ignore_robots, fetcher=fetcher)
    planned, skipped = _plan(settings, known, names, limit, options, session)
    jobs: dict[str, Job] = {}
    begun = _begin(settings, planned, queue, session, jobs)
    if parallel or (settings.parallel_scraping and not sequential):
        series = Series(begun, table=watch)
    else:
        series = Series((), begun, len(planned), table=watch)
    run_series(settings, workers, series)
    code = _report(settings, jobs, skipped, as_json)
    from crawler.listings.matching import match_for

    with LocalPersistenceManager(settings.data_dir) as lpm:
        match_for(lpm, lambda: known, _MATCH_LIMIT_S)
    return code


def _plan(
    settings: Settings,
    known: sites.Sites,
    names: Sequence[str],
    limit: int | None,
    options: JobOptions,
    session: "Session | None",
) -> tuple[dict[str, crawls.Plan], dict[str, str]]:
    """Plan the crawls of these sites, or of all, and say why some are left out.

    Raises `UsageError` or `InputError` before anything is stored.
    """
    chosen = {site.name: None for site in known.find_all(names)} or _with_starts(known)
    planned: dict[str, crawls.Plan] = {}
    skipped: dict[str, str] = {}
    for site in chosen:
        plan = crawls.plan_site(known, site, limit=limit, options=options)
        try:
            note = crawls.check(settings, plan, session)
        except InputError:
            raise
        except UsageError as error:
            if names:
                raise UsageError(f"{site}: {error}") from None
            skipped[site] = str(error)
            say(f"{site} is skipped: {error}")
            continue
        planned[site] = plan
        if note:
            say(f"{site}: {note}")
    if not planned:
        raise UsageError("no site can be crawled: each of them needs rows")
    return planned, skipped


def _with_starts(known: sites.Sites) -> dict[str, None]:
    found = dict.fromkeys(name for name in known.names if known.find(name).start_urls)
    if not found:
        raise UsageError("no site names start or sitemaps in its file")
    return found


def _begin(
    settings: Settings,
    planned: Mapping[str, crawls.Plan],
    queue: str,
    session: "Session | None",
    jobs: dict[str, Job],
) -> Iterator[Followed]:
    """Begin or continue the crawls one by one; `jobs` gets the job of each site."""
    tz = times.zone(settings.timezone)
    for site, plan in planned.items():
        name = f"{site}-{datetime.now(tz):%Y-%m-%d}"
        begun = crawls.begin(settings, plan, new_name=name, queue=queue, session=session)
        jobs[site] = begun.job
        say(f"{site}: {_beginning(settings, begun)}")
        yield Followed(site, begun.job)


def _beginning(settings: Settings, begun: crawls.Begun) -> str:
    """Say whether a crawl begins or continues."""
    job = begun.job
    if not begun.continued:
        return f"begins the crawl {job.name}, with {counted(begun.added, 'start')}"
    day = datetime.fromtimestamp(job.created_at, times.zone(settings.timezone)).date()
    with LocalPersistenceManager(settings.data_dir) as lpm:
        books = lpm.counts.progress(job)
    if not books.open:
        return f"the crawl {job.name} is done and was not reported: nothing is fetched"
    done = books.accepted - books.open
    begun_on = f"begun on {day}: {done:,} of {books.accepted:,} done"
    return f"continues the crawl {job.name}, {begun_on}"


class _Outcome(NamedTuple):
    """What came of the crawl of a site."""

    site: str
    job: Job
    receipt: Receipt
    ended_at: float
    changes: dict[str, int]
    """What changed in its listings, by kind."""
    conflicts: list[Conflicts]

    @property
    def figures(self) -> tuple[int, ...]:
        """The numbers of _FIGURES."""
        books, crawled = self.receipt.books, self.receipt.crawl
        assert crawled is not None, self.job.name
        listings = crawled.roles.get(Role.LISTING, {}).get(TaskStatus.COMPLETED, 0)
        counts = (books.accepted, books.completed, listings, books.failed)
        return *counts, self.receipt.invalid, self.receipt.unchanged

    @property
    def seconds(self) -> float:
        """From the beginning of the crawl to its end, with all pauses."""
        return round(max(0.0, self.ended_at - self.job.created_at), 1)

    def facts(self) -> dict[str, Any]:
        """Its receipt and its figures."""
        facts: dict[str, Any] = msgspec.to_builtins(self.receipt)
        facts |= dict(zip(_FIGURES, self.figures, strict=True))
        facts |= {"listing_changes": self.changes, "listing_conflicts": self.conflicts}
        return facts | {"seconds": self.seconds}


def _report(
    settings: Settings, jobs: Mapping[str, Job], skipped: Mapping[str, str], as_json: bool
) -> int:
    """Print what came of all sites; returns the exit code.

    Result files are safe on disk before they are reported.
    """
    with LocalPersistenceManager(settings.data_dir) as lpm:
        lpm.files.secure()
        found = [_outcome(lpm, site, job) for site, job in jobs.items()]
        faults = [f"{fault}; {mend()}" for fault in lpm.jobs.index_faults()]
        try:
            if as_json:
                _print_facts(found, skipped, faults)
            else:
                _print_summary(lpm, found, faults)
            sys.stdout.flush()
        finally:
            # Also if the reader is gone: else the next command would report the same crawls.
            lpm.jobs.mark_reported(*(each.job for each in found if not each.receipt.books.open))
    codes = [exit_code(each.receipt) for each in found]
    return UNACCOUNTED if faults else max(codes)


def _outcome(lpm: LocalPersistenceManager, site: str, job: Job) -> _Outcome:
    receipt = lpm.receipt(job, check_indexes=False)
    ended_at = lpm.jobs.ended_at(job) or time.time()
    changes, conflicts = lpm.listings.changes_of_job(job), lpm.listings.conflicts(job)
    return _Outcome(site, job, receipt, ended_at, changes, conflicts)


def _totals(found: Iterable[_Outcome]) -> dict[str, Any]:
    """Add up the figures; the seconds are those from the first beginning to the last end."""
    all_ = list(found)
    sums = [sum(column) for column in zip(*(each.figures for each in all_), strict=True)]
    began, ended = min(e.job.created_at for e in all_), max(e.ended_at for e in all_)
    return dict(zip(_FIGURES, sums, strict=True)) | {"seconds": round(max(0.0, ended - began), 1)}


def _print_facts(
    found: Sequence[_Outcome], skipped: Mapping[str, str], faults: Sequence[str]
) -> None:
    totals = _totals(found) | {
        "sites": len(found),
        "open": sum(each.receipt.books.open for each in found),
        "skipped": skipped,
        "problems": faults,
    }
    print_json({"sites": {each.site: each.facts() for each in found}, "totals": totals})


def _print_summary(
    lpm: LocalPersistenceManager, found: Sequence[_Outcome], faults: Sequence[str]
) -> None:
    """Print a line for each site, and why pages of some are missing."""
    totals = _totals(found)
    shown = [name for name in _FIGURES if totals[name] or name not in _IF_ANY]
    rows = [("site", *shown, "seconds", "job")]
    for each in found:
        figures = dict(zip(_FIGURES, each.figures, strict=True))
        cells = (*(f"{figures[name]:,}" for name in shown), f"{each.seconds:,.1f}")
        rows.append((printable(each.site), *cells, printable(each.job.name)))
    if len(found) > 1:
        sums = (f"{totals[name]:,}" for name in shown)
        rows.append(("total", *sums, f"{totals['seconds']:,.1f}", ""))
    _print_table(rows, shutil.get_terminal_size().columns)
    for each in found:
        if any(each.changes.values()):
            print(f"{printable(each.site)}, listings: {counts_text(each.changes)}")
        for conflict in each.conflicts:
            print_line(conflicts_text(conflict))
    for each in found:
        crawled = each.receipt.crawl
        if exit_code(each.receipt):
            _print_failures(lpm, each)
        if crawled and crawled.left_out:
            print(f"{printable(each.site)}, job {printable(each.job.name)}:")
            print_left_out(crawled)
    for fault in faults:
        print(f"UNACCOUNTED: {printable(fault)}")
    print(results_place(lpm, None))


def _print_table(rows: Sequence[Sequence[str]], most: int) -> None:
    """Print a table of at most so many columns: jobs that do not fit beside the figures come below
    them, and names of sites are cut."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    has_room = sum(widths) + 2 * (len(widths) - 1) <= most
    room = most - sum(widths[1:-1]) - 2 * (len(widths) - 2)
    name_width = min(widths[0], max(_MIN_NAME_WIDTH, room))
    for name, *numbered, job in rows:
        columns = zip(numbered, widths[1:-1], strict=True)
        numbers = "  ".join(f"{cell:>{width}}" for cell, width in columns)
        line = f"{cut_middle(name, name_width):{name_width}}  {numbers}"
        print(f"{line}  {job}".rstrip() if has_room else line)
    if not has_room:
        for name, *_, job in rows[1:]:
            if job:
                print(f"{name}, job {job}")


def _print_failures(lpm: LocalPersistenceManager, outcome: _Outcome) -> None:
    """Print why pages of a site are missing, and the command that lists them."""
    receipt, job = outcome.receipt, outcome.job
    print(f"{printable(outcome.site)}, job {printable(job.name)}:")
    if not receipt.books.completed:
        print("  no page was collected")
    print_reasons(receipt.reasons, lpm.counts.examples(job), job, name_command=True)
    print_invalid(receipt)
    for problem in receipt.problems:
        print(f"  UNACCOUNTED: {printable(problem)}")
    if receipt.books.open:
        print(f"  {receipt.books.open:,} tasks were added meanwhile and are still open")
