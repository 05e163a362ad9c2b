"""`crawl`: follow the links of sites."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from crawler import config, sites
from crawler.cli.commands.bulk import check_job_name, queue_option
from crawler.cli.options import (
    Deadline,
    Rate,
    data_dir_option,
    fetcher_option,
    json_option,
    robots_option,
    session_options,
    workers_option,
)
from crawler.cli.output import say
from crawler.cli.running import report, run_job
from crawler.logs import counted
from crawler.models import MAX_CRAWL_PAGES, Fetcher, JobOptions

if TYPE_CHECKING:
    from crawler.fetch.session import Session


@click.command()
@click.argument("starts", nargs=-1, required=True, metavar="URL|SITE...")
@click.option("--depth", type=click.IntRange(0), help="Maximum links from a start to a page.")
@click.option(
    "--include",
    multiple=True,
    metavar="RE",
    help="Follow only links whose URL matches this regular expression (RE2); repeatable.",
)
@click.option(
    "--exclude", multiple=True, metavar="RE", help="Do not follow links that match; repeatable."
)
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=MAX_CRAWL_PAGES,
    show_default=True,
    help="Maximum pages; 0 is no limit.",
)
@click.option(
    "--sitemap",
    type=click.Choice(["include", "skip", "only"]),
    help="Read sitemaps beside following links, not at all, or instead of it (default: include; "
    "for a site by name: those in its file).",
)
@click.option("--subdomains", is_flag=True, help="Follow links to hosts below a start's, too.")
@click.option(
    "--rows",
    "rows_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Submit a site's form once for each row of this CSV, JSON or Excel file.",
)
@click.option("--job", "job_name", callback=check_job_name, help="Name of the job.")
@click.option(
    "--deadline",
    type=Deadline(),
    help="Pages not fetched by then expire: 17:00 (the next one), 45m or 2026-11-15T17:00.",
)
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
    starts: tuple[str, ...],
    depth: int | None,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    limit: int,
    sitemap: str | None,
    subdomains: bool,
    rows_file: Path | None,
    job_name: str | None,
    deadline: float | None,
    rate: str | None,
    queue: str,
    workers: int | None,
    fetcher: Fetcher | None,
    ignore_robots: bool,
    session: "Session | None",
    as_json: bool,
) -> int:
    """Crawl whole sites: fetch each start, and follow links and sitemaps within its host.

    A start is a URL, or the name of a site in config/. Safe to interrupt: run the same command
    again to continue.

    \b
    Example:
      python -m crawler crawl https://example.com/ --depth 3 --exclude '/login'
      python -m crawler crawl https://example.com/ --sitemap only --include '/listing/'
      python -m crawler crawl county --rows parcels.csv --secrets county-secrets.txt
    """
    from crawler import crawls

    settings = config.load()
    known = sites.load(settings.config_dir, settings.rate)
    begun = crawls.plan(
        known,
        starts,
        JobOptions(rate=rate, ignore_robots=ignore_robots, fetcher=fetcher),
        subdomains=subdomains,
        depth=depth,
        include=include,
        exclude=exclude,
        limit=limit,
        sitemap=sitemap,
    )
    started = crawls.begin(
        settings,
        begun,
        rows_file=rows_file,
        job_name=job_name,
        queue=queue,
        deadline=deadline,
        session=session,
    )
    job = started.job
    if started.note:
        say(started.note)
    say(f"job {job.name}: {counted(started.added, 'new start')}, with sitemaps")
    if started.rejected:
        say(f"{started.rejected:,} rows were rejected; they are in {started.rejects_file}")
    run_job(settings, workers, job)
    return report(settings, job, as_json)
