"""`judge`: what one page really is, by what one can tell, and what follows from that."""

import asyncio
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from crawler import config, urls
from crawler.cli.output import data_dir_option, json_option, print_json, say
from crawler.config import Settings
from crawler.errors import FetchError, InputError
from crawler.judge import Verdict
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager
from crawler.models import Page


@click.command()
@click.argument("target", metavar="FILE|URL")
@click.option(
    "--status",
    type=click.IntRange(100, 999),
    help="The status that the file's page came with (default 200).",
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="'NAME: VALUE'",
    help="A header that it came with.",
)
@json_option
@data_dir_option
def judge(target: str, status: int | None, headers: tuple[str, ...], as_json: bool) -> int:
    """Say what a page really is: good, thin, or which kind of wall, and what is done about it.

    FILE is an HTML file, or - for standard input. Of a URL the stored page is judged; where there
    is none it is fetched, and nothing is stored. The exit code is 0 for a page that counts as
    collected, and 1 for a wall.

    \b
    Example:
      python -m crawler judge page.html --status 403 --header 'Server: cloudflare'
      python -m crawler judge http://county.example/parcel/123
    """
    settings = config.load()
    if target != "-" and not Path(target).exists() and "://" in target:
        if status is not None or headers:
            raise click.UsageError("--status and --header are for files; a URL's page has its own")
        source, page = _of_url(settings, target)
    else:
        source, page = "file", _of_file(settings, target, status or 200, headers)
    verdict = _judged(settings, page, target if source == "file" else "")
    if as_json:
        print_json(_facts(source, page, verdict))
    else:
        _show(source, page, verdict)
    return 0 if verdict.completed else 1


def _of_file(settings: Settings, target: str, status: int, headers: tuple[str, ...]) -> Page:
    body = _read(target, settings.max_body)
    pairs = [_header(line) for line in headers]
    if target.lower().endswith((".html", ".htm")) and not any(
        name.lower() == "content-type" for name, _ in pairs
    ):
        pairs.append(("content-type", "text/html"))
    return Page(
        url="", final_url="", status=status, reason="", headers=tuple(pairs), body=body, raw=body,
        fetched_at=0.0, fetch_s=0.0,
    )  # fmt: skip


def _read(target: str, most: int) -> bytes:
    try:
        if target == "-":
            body = sys.stdin.buffer.read(most + 1)
        else:
            with Path(target).open("rb") as file:
                body = file.read(most + 1)
    except FileNotFoundError:
        raise InputError(target, "there is no such file, and it is no URL either") from None
    except IsADirectoryError:
        raise InputError(target, "this is a folder, not a page") from None
    except (OSError, ValueError) as error:
        raise InputError(
            target, f"it cannot be read ({getattr(error, 'strerror', None) or error})"
        ) from None
    if len(body) > most:
        raise InputError(target, f"it is larger than the {most:,} bytes that a page may have")
    return body


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name.strip():
        raise click.UsageError(f"{line!r} is not a header; write 'Name: value'")
    return name.strip(), value.strip()


def _of_url(settings: Settings, url: str) -> tuple[str, Page]:
    address = urls.parse(url)
    if LocalPersistenceManager.exists(settings.data_dir):
        with closing(LocalPersistenceManager(settings.data_dir)) as lpm:
            page = _stored(lpm, address)
        if page:
            return "store", page
    say(f"no page of {address.url} is stored; fetching it")
    return "server", asyncio.run(_fetched(settings, address.url))


def _stored(lpm: LocalPersistenceManager, address: urls.Address) -> Page | None:
    from crawler.scraping import rebuild_page

    for task in lpm.tasks.for_url(address.key):
        raw = lpm.pages.read(task)
        if raw:
            return rebuild_page(
                *raw, address.url, (lpm.results.of_task(task) or {}).get("final_url")
            )
    return None


async def _fetched(settings: Settings, url: str) -> Page:
    from crawler.fetch.http import Client, Request

    async with Client.of(settings) as client:
        return await client.fetch(Request(url=url, loopback=True))


def _judged(settings: Settings, page: Page, path: str) -> Verdict:
    from crawler.scraping import examine
    from crawler.sites import config as sites

    known = sites.load(settings.config_dir, settings.rate)
    try:
        return examine(page, known.of(page.url) if page.url else known.default).verdict
    except FetchError as error:
        if path:
            raise InputError(path, str(error)) from None
        raise


def _decides(verdict: Verdict) -> dict[str, Any]:
    """What follows from it."""
    state = "failed"
    if verdict.completed:
        state = "completed"
    elif verdict.retry and verdict.retry.tries_again:
        state = "pending"
    return {
        "state": state,
        "quarantine": verdict.quarantine,
        "retry": verdict.retry,
        "breaker": verdict.block,
        "proxy_score": verdict.proxy_score,
    }


def _facts(source: str, page: Page, verdict: Verdict) -> dict[str, Any]:
    return {
        "source": source,
        "url": page.url or None,
        "final_url": page.final_url or None,
        "status": page.status,
        "bytes": len(page.body),
        "verdict": verdict.name,
        "vendor": verdict.vendor or None,
        "evidence": verdict.evidence,
        "decides": _decides(verdict),
    }


def _show(source: str, page: Page, verdict: Verdict) -> None:
    whose = f" ({verdict.vendor})" if verdict.vendor else ""
    print(f"{verdict.name}{whose}")
    print(f"  page       status {page.status}, {len(page.body):,} bytes, from the {source}")
    for evidence in verdict.evidence:
        print(f"  evidence   {printable(evidence)}")
    facts = _decides(verdict)
    again = {
        "completed": "done with it",
        "pending": "tried again while attempts are left",
        "failed": "not tried again",
    }
    print(f"  state      {facts['state']}: {again[facts['state']]}")
    print(f"  quarantine {'yes: set apart from the good pages' if facts['quarantine'] else 'no'}")
    print(f"  retry      {facts['retry'] or 'none'}")
    print(
        f"  breaker    {'counts ' + facts['breaker'] + ' against the domain' if facts['breaker'] else 'not told'}"
    )
    print(f"  proxy      {facts['proxy_score']:+d}")
