"""`scrape`, `raw` and `judge`: commands for a single page."""

import contextlib
import html
import re
import shlex
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from crawler import config, urls
from crawler.cli.options import (
    data_dir_option,
    fetcher_option,
    json_option,
    robots_option,
    session_options,
)
from crawler.cli.output import existing_store, print_json, require_store, say
from crawler.config import Settings, program
from crawler.db import guard, raw_pages
from crawler.errors import FetchError, InputError, ServiceError, UsageError
from crawler.logs import counted, printable
from crawler.lpm import LocalPersistenceManager
from crawler.models import BROWSER, Fetcher, JobOptions, NewTask, Page, RawLocation, TaskStatus
from crawler.render_options import RenderOptions
from crawler.results import whole_file

if TYPE_CHECKING:
    from crawler.fetch.session import Session
    from crawler.judge import Verdict
    from crawler.scraping.stored import Difference
    from crawler.sites import Sites

SCRAPE_LIMIT_S = 240.0
"""Time for three attempts at the slowest page, with the pauses between them."""
_AS_USUAL = JobOptions()
_FILE = click.Path(path_type=Path, dir_okay=False)
_MAX_VALUE_CHARS = 200
_LINK = re.compile("<link", re.IGNORECASE)
"""`<link rel=preconnect>` makes a browser connect, whatever the page's security policy says."""


@click.command()
@click.argument("url")
@click.option("--local", is_flag=True, help="Fetch in this process, even if a stack is up.")
@click.option(
    "--stored",
    "from_store",
    is_flag=True,
    help="Fetch nothing: parse the stored page again and compare.",
)
@fetcher_option
@click.option("--browser", is_flag=True, help="The same as --fetcher browser.")
@click.option(
    "--screenshot", type=_FILE, metavar="FILE", help="Write a picture of the page: a PNG."
)
@click.option("--pdf", type=_FILE, metavar="FILE", help="Write the page as a PDF.")
@robots_option
@session_options
@json_option
@data_dir_option
def scrape(
    url: str,
    local: bool,
    from_store: bool,
    fetcher: Fetcher | None,
    browser: bool,
    screenshot: Path | None,
    pdf: Path | None,
    ignore_robots: bool,
    session: "Session | None",
    as_json: bool,
) -> int:
    """Fetch URL now, even if it was collected before, and show its record.

    The task goes through the queue if a stack is up, and otherwise runs in this process. It also
    runs in this process if you send headers, cookies, a proxy or a password in the URL, or if the
    login of the site names a file with its secrets, because these are not stored, and if you say
    what fetches the page or what is made of it.

    With --stored, the stored page is parsed with the present site configuration, and the
    differences to its result are shown. Nothing is changed. Exits with 1 if the page cannot be
    read, and with 2 if there is none.

    \b
    Example:
      python -m crawler scrape http://county.example/parcel/123
      python -m crawler scrape http://county.example/parcel/123 --stored
      python -m crawler scrape http://county.example/map --browser --screenshot map.png
    """
    settings = config.load()
    targets = {"screenshot": screenshot, "pdf": pdf}
    wanted = {name: target for name, target in targets.items() if target}
    if from_store:
        if wanted or browser:
            raise click.UsageError("--stored fetches nothing, and so needs no browser")
        return _parse_stored(settings, urls.parse(url), as_json)
    if browser or wanted:
        if fetcher not in (None, "browser"):
            raise click.UsageError(f"--fetcher {fetcher}, but a browser is asked for")
        fetcher = "browser"
    if fetcher == "browser":
        from crawler.fetch.browser_process import lacking

        if lack := lacking(settings.browser_path):  # else a stack would fetch it by HTTP later
            raise ServiceError(lack)
    for target in wanted.values():
        guard.check_output(target, settings.data_dir)
        if not target.parent.is_dir():
            raise UsageError(f"{target} cannot be written (there is no folder {target.parent})")
    asked = None
    if wanted:
        asked = RenderOptions(screenshot=bool(screenshot), pdf=bool(pdf))
    how = JobOptions(ignore_robots=ignore_robots, fetcher=fetcher, browser=asked)
    report = fetch_now(settings, url, local, session, how)
    is_good = report["status"] == TaskStatus.COMPLETED
    if is_good:
        _write_captures(settings, report, wanted)
    if as_json:
        print_json(report)
    else:
        _print_report(report)
    return int(not is_good)


def _write_captures(settings: Settings, report: dict[str, Any], wanted: dict[str, Path]) -> None:
    """Write what a browser has made of a page to files."""
    files = {file["field"]: file for file in report.get("files") or ()}
    for name, target in wanted.items():
        place = msgspec.convert(files.get(name, {}).get("raw"), RawLocation | None)
        if place is None:
            raise UsageError(
                f"there is no {name}: what came is no page, or it shows a secret of the login"
            )
        body = raw_pages.read_capture(settings.data_dir / "raw", place)
        with whole_file(target, settings.data_dir) as file:
            file.write(body)
        say(f"{len(body):,} bytes written to {target}")


def fetch_now(
    settings: Settings,
    url: str,
    local: bool = False,
    session: "Session | None" = None,
    how: JobOptions = _AS_USUAL,
) -> dict[str, Any]:
    """Fetch a URL as a task of its own, and return its report."""
    address = urls.parse(url)
    if secret := urls.credentials(url):
        from crawler.fetch.session import Session

        session = msgspec.structs.replace(session or Session(), credentials=dict([secret]))
    session = _with_site_secrets(settings, address.url, session)
    local = local or session is not None or how != _AS_USUAL
    call_id = str(uuid.uuid4())
    new = NewTask(address=address, priority=1, external_id=call_id)
    with LocalPersistenceManager(settings.data_dir) as lpm:
        add = partial(lpm.tasks.add_call, new, loopback=True, held=local)
        task = None if local else add()
        if task is None or not _through_queue(lpm, address.url, call_id, task):
            task = _in_this_process(settings, lpm, add, how, session)
        return lpm.results.report(task)


def _with_site_secrets(settings: Settings, url: str, session: "Session | None") -> "Session | None":
    """Add the secrets that the login of the URL's site names, as a crawl of the site does."""
    from crawler import sites

    try:
        site = sites.load(settings.config_dir, settings.rate).of(url)
    except InputError:
        return session  # a running worker goes on with the files as they were
    if not site.login:
        return session
    from crawler.crawls import session_for

    return session_for(settings, site, session)


def require_login(known: "Sites", url: str, session: "Session | None") -> None:
    """Refuse secrets for a page whose site names no login that they could be for."""
    if session and session.secrets and not known.of(url).login:
        host = urls.split(url)[2]
        missing = f"no site's file has a login for {host}"
        raise UsageError(f"--secrets: {missing}; add `login` to a file in config/sites/")


def _in_this_process(
    settings: Settings,
    lpm: LocalPersistenceManager,
    add: Callable[[], int],
    how: JobOptions,
    session: "Session | None",
) -> int:
    """Fetch with a worker in this process.

    The worker starts before the task is added: a task that is held for a worker which does not
    exist is released.
    """
    from crawler import logs
    from crawler.direct import shared_permit
    from crawler.fetch.browser import find_browser
    from crawler.fetch.browser_process import lacking
    from crawler.fetch.session import LiveSession
    from crawler.orchestrator import terminated_by_signal
    from crawler.scraping.attempt import FetchOptions
    from crawler.worker import Worker, tune_garbage_collection

    logs.setup("warning")
    lpm.bury()
    tune_garbage_collection()
    given = FetchOptions(how, LiveSession(session))
    browser = find_browser(settings)
    worker = Worker(settings, "cli", permit=shared_permit(settings), given=given, browser=browser)
    with terminated_by_signal():
        try:
            task = add()
            worker.scrape(task, SCRAPE_LIMIT_S)
        finally:
            worker.stop()
    if not browser and lpm.tasks.state_of(task).needs == BROWSER:
        say(lacking(settings.browser_path))
    return task


def _through_queue(lpm: LocalPersistenceManager, url: str, call_id: str, task: int) -> bool:
    """Send the task to a running worker and wait until it ends; False if no worker runs."""
    from crawler.db import owners

    if not any(note.about.get("kind") == "worker" for note in owners.living(lpm.owners)):
        return False
    from kombu.exceptions import OperationalError

    from crawler.tasks import scrape_task

    # Without Redis the task stays in the ledger, and the maintainer publishes it later.
    with contextlib.suppress(OperationalError):
        scrape_task.apply_async((url,), task_id=call_id, queue="urgent", retry=False)
    end = time.monotonic() + SCRAPE_LIMIT_S
    while time.monotonic() < end:
        if lpm.tasks.state_of(task).status not in (TaskStatus.PENDING, TaskStatus.PROCESSING):
            return True
        time.sleep(0.05)
    say("the task is still open; the stack continues with it")
    return True


def _print_report(report: dict[str, Any]) -> None:
    if report["status"] != TaskStatus.COMPLETED:
        message = printable(report["error_message"] or "not done yet")
        reason = f" ({report['error_type']})" if report["error_type"] else ""
        print(f"{report['status']}: {message}{reason}")
        print(f"task {report['task_id']}, {counted(report['attempts'], 'attempt')}")
        return
    print(f"{report['status_code']} {printable(report['final_url'])}  (task {report['task_id']})")
    _print_fields(report["data"])
    _print_invalid(report.get("invalid", ()))
    print(f"The whole record: {program()} results show {shlex.quote(report['url'])}")
    print(f"The page itself:  {program()} raw {shlex.quote(report['url'])} --open")


def _parse_stored(settings: Settings, address: urls.Address, as_json: bool) -> int:
    """Parse the stored page with the present configuration, and show what differs."""
    from crawler import sites
    from crawler.scraping.examine import examine
    from crawler.scraping.stored import difference, find_stored_page

    known = sites.load(settings.config_dir, settings.rate)
    try:
        with existing_store() as lpm:
            found = find_stored_page(lpm, address.url, address.key)
        page = found.page
        site = known.of(page.url)
        read = examine(page, site)
    except FetchError as error:
        message = f"{printable(error.message)} ({error.reason})"
        print(f"the stored page cannot be read: {message}", file=sys.stderr)
        return 1
    before = found.result["data"] if found.result else None
    changed = difference(before or {}, read.record)
    if as_json:
        facts = {
            "url": page.url,
            "task_id": found.task_id,
            "status_code": page.status,
            "site": {"name": site.name, "version": site.version},
            "parser": {"name": read.parser[0], "version": read.parser[1]},
            "verdict": read.verdict.name,
            "invalid": read.invalid,
            "stored": before,
            "now": read.record,
            "difference": changed,
        }
        print_json(facts)
        return 0
    print(f"{page.status} {printable(page.final_url)}  (stored by task {found.task_id})")
    print(f"read with site {site.name}, version {site.version}")
    if not read.verdict.completed:
        print(f"it is {read.verdict.name}: {printable('; '.join(read.verdict.evidence))}")
    _print_fields(read.record)
    _print_invalid(read.invalid)
    if before is None:
        print("There is no record to compare with: the task of this page failed.")
    else:
        _print_difference(changed)
    return 0


def _print_difference(difference: "Difference") -> None:
    if not difference:
        print("Nothing differs from the stored result.")
        return
    print("Differences from the stored result:")
    for sign, fields in (("+", difference.added), ("-", difference.removed)):
        for name, value in fields.items():
            print(f"  {sign} {printable(name)}: {_brief(value)[:_MAX_VALUE_CHARS]}")
    for name, (old, new) in difference.changed.items():
        half = _MAX_VALUE_CHARS // 2
        print(f"  ~ {printable(name)}: {_brief(old)[:half]} → {_brief(new)[:half]}")


def _print_invalid(reasons: Sequence[str]) -> None:
    for reason in reasons:
        print(f"invalid: {printable(reason)}")


def _print_fields(record: dict[str, Any]) -> None:
    width = min(24, max([12, *map(len, record)]))
    for name, value in record.items():
        print(f"  {printable(name):{width}} {_brief(value)[:_MAX_VALUE_CHARS]}")


def _brief(value: Any) -> str:
    """Return a value of a record as short text."""
    if isinstance(value, str):
        text = value
    elif value is None or isinstance(value, bool):
        text = {None: "null", True: "true", False: "false"}[value]
    elif isinstance(value, list):
        text = f"{len(value)}: " + "; ".join(str(item) for item in value[:3])
    elif isinstance(value, dict):
        text = "; ".join(f"{key}: {item}" for key, item in list(value.items())[:6])
    else:
        text = str(value)
    return printable(text)


@click.command()
@click.argument("url")
@click.option(
    "--open",
    "in_browser",
    is_flag=True,
    help="Open it in the browser, without its scripts, pictures and links.",
)
@click.option(
    "--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="File to write."
)
@data_dir_option
def raw(url: str, in_browser: bool, output: Path | None) -> None:
    """Print the stored page of URL, as the server sent it.

    \b
    Example:
      python -m crawler raw http://county.example/parcel/123 -o page.html
    """
    if in_browser and output:
        raise click.UsageError("either --open or --output, not both")
    settings = config.load()
    content_type, body = _stored_body(settings, url)
    if in_browser:
        _open_in_browser(body, content_type)
    elif output:
        with whole_file(output, settings.data_dir) as file:
            file.write(body)
        say(f"{len(body):,} bytes written to {output}")
    else:
        sys.stdout.buffer.write(body)


def _open_in_browser(body: bytes, content_type: str) -> None:
    import tempfile
    import webbrowser

    from crawler.fetch.charset import decode

    with tempfile.NamedTemporaryFile("w", suffix=".html", delete=False, encoding="utf-8") as page:
        page.write(_sandboxed(decode(body, content_type)[0]))
    if not webbrowser.open(Path(page.name).as_uri()):
        raise UsageError(f"there is no browser to open it with; the page is in {page.name}")
    say(f"opened {page.name}")


def _sandboxed(text: str) -> str:
    """Wrap a page so that it can request nothing.

    Opened from a file, its scripts and pictures could reach servers on this machine and its
    network. A policy in the page itself is not enough: browsers still follow its `refresh`.
    """
    text = _LINK.sub("<no-link", text.encode("utf-8", "replace").decode())
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:"
    return (
        '<!doctype html><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta http-equiv="x-dns-prefetch-control" content="off">'
        '<meta name="referrer" content="no-referrer">'
        "<style>html, body, iframe { margin: 0; border: 0; width: 100%; height: 100% }</style>"
        f'<iframe sandbox="" srcdoc="{html.escape(text)}"></iframe>\n'
    )


def _stored_body(settings: Settings, url: str) -> tuple[str, bytes]:
    """Return the content type and the decoded body of a stored page."""
    require_store(settings.data_dir)
    from crawler.fetch.body import decode_stored
    from crawler.fetch.wire import stored_values

    gone: str | None = None
    with LocalPersistenceManager(settings.data_dir) as lpm:
        for task in lpm.tasks.for_url(urls.parse(url).key):
            if page := lpm.pages.read(task):
                content_type = next(iter(stored_values(page[0], "content-type")), "")
                return content_type, decode_stored(*page, limit=1 << 30)
            gone = gone or lpm.pages.why_gone(task)
    if gone:
        raise UsageError(f"{urls.without_credentials(url)}: the page {gone}")
    raise UsageError(f"no page is stored for {urls.without_credentials(url)}")


@click.command()
@click.argument("target", metavar="FILE|URL")
@click.option(
    "--status", type=click.IntRange(100, 999), help="HTTP status of the file's page (default: 200)."
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="'NAME: VALUE'",
    help="Response header of the file's page; repeatable.",
)
@json_option
@data_dir_option
def judge(target: str, status: int | None, headers: tuple[str, ...], as_json: bool) -> int:
    """Tell whether a page is good, thin or a wall, by what evidence, and what follows.

    FILE is an HTML file, or - for stdin. For a URL, the stored page is judged. If there is none,
    the page is fetched and not stored. Exits with 0 if the page counts as collected, and with 1
    if it is a wall.

    \b
    Example:
      python -m crawler judge page.html --status 403 --header 'Server: cloudflare'
      python -m crawler judge http://county.example/parcel/123
    """
    settings = config.load()
    if target != "-" and not Path(target).exists() and "://" in target:
        if status is not None or headers:
            raise click.UsageError("--status and --header are for files; a URL's page has its own")
        source, page = _page_from_url(settings, target)
        verdict = _verdict_on(settings, page)
    else:
        source, page = "file", _page_from_file(settings, target, status or 200, headers)
        try:
            verdict = _verdict_on(settings, page)
        except FetchError as error:
            raise InputError(target, str(error)) from None
    if as_json:
        print_json(_verdict_facts(source, page, verdict))
    else:
        _print_verdict(source, page, verdict)
    return int(not verdict.completed)


def _page_from_file(settings: Settings, target: str, status: int, headers: tuple[str, ...]) -> Page:
    body = _read_file(target, settings.max_body)
    pairs = [_response_header(line) for line in headers]
    has_type = any(name.lower() == "content-type" for name, _ in pairs)
    if target.lower().endswith((".html", ".htm")) and not has_type:
        pairs.append(("content-type", "text/html"))
    return Page(
        url="", final_url="", status=status, reason="", headers=tuple(pairs), body=body, raw=body,
        fetched_at=0.0, fetch_s=0.0,
    )  # fmt: skip


def _read_file(target: str, max_bytes: int) -> bytes:
    try:
        if target == "-":
            body = sys.stdin.buffer.read(max_bytes + 1)
        else:
            with Path(target).open("rb") as file:
                body = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise InputError(target, "there is no such file, and it is no URL either") from None
    except IsADirectoryError:
        raise InputError(target, "this is a folder, not a page") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(target, f"it cannot be read ({reason})") from None
    if len(body) > max_bytes:
        raise InputError(target, f"it is larger than the {max_bytes:,} bytes that a page may have")
    return body


def _response_header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name.strip():
        raise click.UsageError(f"{line!r} is not a header; write 'Name: value'")
    return name.strip(), value.strip()


def _page_from_url(settings: Settings, url: str) -> tuple[str, Page]:
    """Return `store` or `server`, and the page from there."""
    import asyncio

    address = urls.parse(url)
    if LocalPersistenceManager.exists(settings.data_dir):
        with LocalPersistenceManager(settings.data_dir) as lpm:
            page = _stored_page(lpm, address)
        if page:
            return "store", page
    say(f"no page of {address.url} is stored; fetching it")
    return "server", asyncio.run(_fetched_page(settings, address.url))


def _stored_page(lpm: LocalPersistenceManager, address: urls.Address) -> Page | None:
    from crawler.scraping.stored import rebuild_page

    for task in lpm.tasks.for_url(address.key):
        if page := lpm.pages.read(task):
            result = lpm.results.of_task(task) or {}
            return rebuild_page(*page, address.url, result.get("final_url"))
    return None


async def _fetched_page(settings: Settings, url: str) -> Page:
    from crawler.fetch.http import Client, Request

    async with Client.of(settings) as client:
        return await client.fetch(Request(url=url, loopback=True))


def _verdict_on(settings: Settings, page: Page) -> "Verdict":
    from crawler import sites
    from crawler.scraping.examine import examine

    known = sites.load(settings.config_dir, settings.rate)
    site = known.of(page.url) if page.url else known.default
    return examine(page, site).verdict


def _consequences(verdict: "Verdict") -> dict[str, Any]:
    """Return what the crawler does with a page of this verdict."""
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


def _verdict_facts(source: str, page: Page, verdict: "Verdict") -> dict[str, Any]:
    return {
        "source": source,
        "url": page.url or None,
        "final_url": page.final_url or None,
        "status": page.status,
        "bytes": len(page.body),
        "verdict": verdict.name,
        "vendor": verdict.vendor or None,
        "evidence": verdict.evidence,
        "decides": _consequences(verdict),
    }


_NEXT = {
    "completed": "done",
    "pending": "tried again while attempts are left",
    "failed": "not tried again",
}


def _print_verdict(source: str, page: Page, verdict: "Verdict") -> None:
    facts = _consequences(verdict)
    quarantine, breaker = "no", "not counted"
    if facts["quarantine"]:
        quarantine = "yes: set apart from the good pages"
    if facts["breaker"]:
        breaker = f"counts {facts['breaker']} against the domain"
    if verdict.vendor:
        print(f"{verdict.name} ({verdict.vendor})")
    else:
        print(verdict.name)
    print(f"  page       status {page.status}, {len(page.body):,} bytes, from the {source}")
    for evidence in verdict.evidence:
        print(f"  evidence   {printable(evidence)}")
    print(f"  state      {facts['state']}: {_NEXT[facts['state']]}")
    print(f"  quarantine {quarantine}")
    print(f"  retry      {facts['retry'] or 'none'}")
    print(f"  breaker    {breaker}")
    print(f"  proxy      {facts['proxy_score']:+d}")
