"""`map`: list the URLs of a site without crawling it."""

from typing import TYPE_CHECKING

import click

from crawler import config, sites
from crawler.cli.options import data_dir_option, json_option, robots_option, session_options
from crawler.cli.output import print_json, print_left_out, say
from crawler.logs import counted
from crawler.models import MAX_CRAWL_PAGES, JobOptions

if TYPE_CHECKING:
    from crawler.fetch.session import Session
    from crawler.site_map import Found


@click.command()
@click.argument("start", metavar="URL|SITE")
@click.option(
    "--include",
    multiple=True,
    metavar="RE",
    help="List only URLs that match this regular expression (RE2); repeatable.",
)
@click.option("--exclude", multiple=True, metavar="RE", help="Leave out what matches; repeatable.")
@click.option("--subdomains", is_flag=True, help="List URLs on hosts below the start's, too.")
@click.option(
    "--sitemap",
    type=click.Choice(["include", "skip", "only"]),
    help="Read sitemaps beside the start page, not at all, or instead of it (default: include).",
)
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=MAX_CRAWL_PAGES,
    show_default=True,
    help="Maximum URLs; 0 is no limit.",
)
@robots_option
@session_options
@json_option
@data_dir_option
def map(
    start: str,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    subdomains: bool,
    sitemap: str | None,
    limit: int,
    ignore_robots: bool,
    session: "Session | None",
    as_json: bool,
) -> int:
    """List the URLs of a site: those in its sitemaps, then the links of its start page.

    Only sitemaps and the start page are fetched, in this process, and nothing is stored. What is
    listed is what `crawl` would follow from there. With --json, each URL has lastmod, source
    (sitemap, start or link), and found_on.

    Exits with 1 if the start page or a sitemap cannot be read, or if nothing is found.

    \b
    Example:
      python -m crawler map https://example.com/
      python -m crawler map https://example.com/ --sitemap only --include '/listing/' --json
    """
    from crawler import crawls
    from crawler.orchestrator import terminated_by_signal
    from crawler.site_map import Found, look

    settings = config.load()
    plan = crawls.plan(
        sites.load(settings.config_dir, settings.rate),
        [start],
        JobOptions(ignore_robots=ignore_robots),
        subdomains=subdomains,
        depth=None,
        include=include,
        exclude=exclude,
        limit=0,  # `Found` has the limit, which is of URLs
        sitemap=sitemap,
    )
    found = Found(limit, _ignore if as_json else _print_url)
    with terminated_by_signal():
        is_whole, report = look(settings, plan, session, found, say)
    print_left_out(report, say)
    if as_json:
        print_json(found.entries)
    _say_sum(found)
    return int(not is_whole or not found.entries)


def _say_sum(found: "Found") -> None:
    listed = [entry["source"] == "sitemap" for entry in found.entries]
    if not listed:
        say("no URL was found")
        return
    more = "; there are more, which --limit leaves out" if found.is_cut else ""
    say(f"{counted(len(listed), 'URL')}, {sum(listed):,} of them in sitemaps{more}")


def _print_url(url: str) -> None:
    print(url)


def _ignore(url: str) -> None:
    return
