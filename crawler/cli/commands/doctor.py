"""`doctor`: what is wrong here, and what helps."""

import functools
import sys
from typing import TYPE_CHECKING

import click

from crawler import config
from crawler.cli.output import data_dir_option, json_option, print_json, say
from crawler.logs import printable

if TYPE_CHECKING:
    from crawler.doctor import ReparsedPage
    from crawler.sites.config import Sites


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
    for finding in examine(repair, say, reparse=_read if repair else None):
        findings.append(finding)
        if not as_json:
            print(f"{finding.state:7} {finding.check:12} {printable(finding.detail)}", flush=True)
            if finding.fix:
                print(f"{'':20} → {printable(finding.fix)}", flush=True)
    if as_json:
        print_json(findings)
    sys.exit(exit_code(findings))


def _read(url: str, final_url: str, head: str, received: bytes) -> "ReparsedPage | None":
    """Read a stored page with the present configuration."""
    from crawler.doctor import ReparsedPage
    from crawler.scraping import examine, rebuild_page

    page, site = rebuild_page(head, received, url, final_url), _sites().of(url)
    read = examine(page, site)
    if not read.verdict.completed:
        return None
    return ReparsedPage(
        read.encoded, page.header("content-type"), read.parser, (site.name, site.version), page.body
    )


@functools.cache
def _sites() -> "Sites":
    from crawler.sites import config as sites

    settings = config.load()
    return sites.load(settings.config_dir, settings.rate)
