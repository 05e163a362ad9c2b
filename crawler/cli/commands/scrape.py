"""`scrape`, `raw` and `judge`: commands on a single page."""

import contextlib
import html
import re
import shlex
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from crawler import config, urls
from crawler.cli.options import data_dir_option, json_option, robots_option, session_options
from crawler.cli.output import print_json, require_store, say, stored
from crawler.config import Settings, program
from crawler.errors import FetchError, InputError, UsageError
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager
from crawler.models import JobOptions, NewTask, Page, TaskStatus
from crawler.results import whole_file

if TYPE_CHECKING:
    from crawler.fetch.session import Session
    from crawler.judge import Verdict
    from crawler.scraping import Difference

_LINK = re.compile("<link", re.IGNORECASE)
"""No policy keeps a browser from connecting to where `<link rel=preconnect>` says."""
LIMIT_S = 240.0
"""Three attempts at the longest page, and the pauses between them."""


@click.command()
@click.argument("url")
@click.option("--local", is_flag=True, help="In this process, even where a stack runs.")
@click.option(
    "--stored",
    "again",
    is_flag=True,
    help="Fetch nothing: read the stored page again, and compare.",
)
@robots_option
@session_options
@json_option
@data_dir_option
def scrape(
    url: str,
    local: bool,
    again: bool,
    ignore_robots: bool,
    session: "Session | None",
    as_json: bool,
) -> int:
    """Fetch URL now, always, and show its record: through the queue where a stack runs, else in
    this process.

    What is sent along (headers, cookies, a proxy, a password in the URL) is not kept, so that such
    a page is fetched in this process.

    With --stored the page that is in the store is read with the present configuration, and what
    would be other than in its result is shown; nothing is changed. It exits with 1 where the page
    cannot be read, 2 where there is none.

    \b
    Example:
      python -m crawler scrape http://county.example/parcel/123
      python -m crawler scrape http://county.example/parcel/123 --stored
    """
    settings = config.load()
    address = urls.parse(url)
    if again:
        return _read_again(settings, address, as_json)
    lpm = LocalPersistenceManager(settings.data_dir)
    call_id = str(uuid.uuid4())
    if secret := urls.credentials(url):
        from crawler.fetch.session import Session

        session = msgspec.structs.replace(session or Session(), credentials=dict([secret]))
    local = local or ignore_robots or session is not None
    new = NewTask(address=address, priority=1, external_id=call_id)
    call = partial(lpm.tasks.add_call, new, loopback=True, held=local)
    task = None if local else call()
    if task is None or not _through_queue(settings, lpm, address.url, call_id, task):
        task = _in_this_process(
            settings, lpm, call, JobOptions(ignore_robots=ignore_robots), session
        )
    report = lpm.results.report(task)
    lpm.close()
    if as_json:
        print_json(report)
    else:
        _show(report)
    return 0 if report["status"] == TaskStatus.COMPLETED else 1


def _in_this_process(
    settings: Settings,
    lpm: LocalPersistenceManager,
    call: Callable[[], int],
    how: JobOptions,
    session: "Session | None",
) -> int:
    """Have a worker of our own before the call is made: what it holds for itself is released where
    there is none."""
    from crawler import logs
    from crawler.fetch.session import LiveSession
    from crawler.orchestrator import terminated_by_signal
    from crawler.resilience.permit import Permit
    from crawler.scraping import FetchOptions
    from crawler.stack import read_stack, redis_address
    from crawler.worker import Worker, tune_garbage_collection

    def fleet(holder: str) -> Permit:
        from crawler.resilience.redis_rate_limiter import RedisRateLimiter

        number, fail_max = settings.redis_rate_limiter_db, settings.circuit_breaker_fail_max
        return RedisRateLimiter(redis_address(settings), number, holder, fail_max)

    logs.setup("warning")
    lpm.bury()
    tune_garbage_collection()
    shared = settings.redis_url or read_stack(settings.data_dir).up
    worker = Worker(
        settings,
        "cli",
        permit=fleet if shared else None,
        given=FetchOptions(how, LiveSession(session)),
    )
    with terminated_by_signal():
        try:
            task = call()
            worker.scrape(task, LIMIT_S)
        finally:
            worker.stop()
    return task


def _through_queue(
    settings: Settings, lpm: LocalPersistenceManager, url: str, call_id: str, task: int
) -> bool:
    """Send the call to a running worker and wait for the ledger to show its end; False where none
    runs."""
    from crawler.db import owners

    if not any(note.about.get("kind") == "worker" for note in owners.living(lpm.owners)):
        return False
    from kombu.exceptions import OperationalError

    from crawler.tasks import scrape_task

    with contextlib.suppress(
        OperationalError
    ):  # the ledger has it: the maintainer publishes it when Redis is back
        scrape_task.apply_async((url,), task_id=call_id, queue="urgent", retry=False)
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        if lpm.tasks.state_of(task)[0] not in (TaskStatus.PENDING, TaskStatus.PROCESSING):
            return True
        time.sleep(0.05)
    say("the task is still open; it goes on in the stack")
    return True


def _show(report: dict[str, Any]) -> None:
    if report["status"] != TaskStatus.COMPLETED:
        print(
            f"{report['status']}: {printable(report['error_message'] or 'not done yet')} ({report['error_type']})"
        )
        print(f"task {report['task_id']}, {report['attempts']} attempts")
        return
    print(f"{report['status_code']} {printable(report['final_url'])}  (task {report['task_id']})")
    _show_fields(report["data"])
    print(f"The whole record: {program()} results show {shlex.quote(report['url'])}")
    print(f"The page itself:  {program()} raw {shlex.quote(report['url'])} --open")


def _read_again(settings: Settings, address: urls.Address, as_json: bool) -> int:
    """Read the stored page with the present configuration, and show the difference to its
    result."""
    from crawler import sites
    from crawler.errors import FetchError
    from crawler.scraping import difference, examine, find_stored_page

    known = sites.load(settings.config_dir, settings.rate)
    try:
        with stored() as lpm:
            found = find_stored_page(lpm, address.url, address.key)
        site = known.of(found.page.url)
        read = examine(found.page, site)
    except FetchError as error:
        print(
            f"the stored page cannot be read: {printable(error.message)} ({error.reason})",
            file=sys.stderr,
        )
        return 1
    before = found.result["data"] if found.result else None
    other = difference(before or {}, read.record)
    facts = {
        "url": found.page.url,
        "task_id": found.task_id,
        "status_code": found.page.status,
        "site": {"name": site.name, "version": site.version},
        "parser": {"name": read.parser[0], "version": read.parser[1]},
        "verdict": read.verdict.name,
        "stored": before,
        "now": read.record,
        "difference": other,
    }
    if as_json:
        print_json(facts)
        return 0
    print(
        f"{found.page.status} {printable(found.page.final_url)}  (stored by task {found.task_id})"
    )
    print(f"read with site {site.name}, version {site.version}")
    if not read.verdict.completed:
        print(f"it is {read.verdict.name}: {printable('; '.join(read.verdict.evidence))}")
    _show_fields(read.record)
    if before is None:
        print("There is no record to compare with: the task of this page failed.")
    else:
        _show_difference(other)
    return 0


def _show_difference(other: "Difference") -> None:
    if not other:
        print("Nothing differs from what was stored.")
        return
    print("The difference to what was stored:")
    for sign, fields in (("+", other.added), ("-", other.removed)):
        for name, value in fields.items():
            print(f"  {sign} {printable(name)}: {printable(_brief(value))[:200]}")
    for name, (old, new) in other.changed.items():
        print(
            f"  ~ {printable(name)}: {printable(_brief(old))[:100]} → {printable(_brief(new))[:100]}"
        )


def _show_fields(record: dict[str, Any]) -> None:
    width = min(24, max([12, *map(len, record)]))
    for name, value in record.items():
        print(f"  {printable(name):{width}} {printable(_brief(value))[:200]}")


def _brief(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"{len(value)}: " + "; ".join(str(item) for item in value[:3])
    if isinstance(value, dict):
        return "; ".join(f"{key}: {item}" for key, item in list(value.items())[:6])
    return str(value)


@click.command()
@click.argument("url")
@click.option(
    "--open",
    "open_",
    is_flag=True,
    help="Open it in the browser, without its scripts, pictures and links.",
)
@click.option(
    "--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="Write it to a file."
)
@data_dir_option
def raw(url: str, open_: bool, output: Path | None) -> None:
    """Give the stored page of URL, as the server sent it.

    \b
    Example:
      python -m crawler raw http://county.example/parcel/123 -o page.html
    """
    if open_ and output:
        raise click.UsageError("either --open or --output, not both")
    content_type, body = _stored(config.load(), url)
    if open_:
        import tempfile
        import webbrowser

        from crawler.fetch.charset import decode

        with tempfile.NamedTemporaryFile(
            "w", suffix=".html", delete=False, encoding="utf-8"
        ) as page:
            page.write(_sealed(decode(body, content_type)[0]))
        if not webbrowser.open(Path(page.name).as_uri()):
            raise UsageError(f"there is no browser to open it with; the page is in {page.name}")
        say(f"opened {page.name}")
    elif output:
        with whole_file(output, config.load().data_dir) as file:
            file.write(body)
        say(f"{len(body):,} bytes written to {output}")
    else:
        sys.stdout.buffer.write(body)


def _sealed(text: str) -> str:
    """A page that shows another and lets it ask for nothing.

    From a file its scripts and pictures could reach servers on this machine and its network. A
    policy in the page itself would not do: browsers still follow its `refresh`.
    """
    text = _LINK.sub("<no-link", text.encode("utf-8", "replace").decode())
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:"
    return (
        '<!doctype html><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta http-equiv="x-dns-prefetch-control" content="off"><meta name="referrer" content="no-referrer">'
        "<style>html, body, iframe { margin: 0; border: 0; width: 100%; height: 100% }</style>"
        f'<iframe sandbox="" srcdoc="{html.escape(text)}"></iframe>\n'
    )


def _stored(settings: Settings, url: str) -> tuple[str, bytes]:
    """The content type and the body of a stored page."""
    require_store(settings.data_dir)
    from crawler.fetch.body import decoded
    from crawler.fetch.wire import stored_values

    lpm = LocalPersistenceManager(settings.data_dir)
    gone: str | None = None
    try:
        for task in lpm.tasks.for_url(urls.parse(url).key):
            page = lpm.pages.read(task)
            if page:
                return next(iter(stored_values(page[0], "content-type")), ""), decoded(
                    *page, limit=1 << 30
                )
            gone = gone or lpm.pages.why_gone(task)
    finally:
        lpm.close()
    if gone:
        raise UsageError(f"{urls.without_credentials(url)}: the page {gone}")
    raise UsageError(f"no page is stored for {urls.without_credentials(url)}")


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
        source, page = _page_from_url(settings, target)
    else:
        source, page = "file", _page_from_file(settings, target, status or 200, headers)
    verdict = _verdict_on(settings, page, target if source == "file" else "")
    if as_json:
        print_json(_verdict_facts(source, page, verdict))
    else:
        _print_verdict(source, page, verdict)
    return 0 if verdict.completed else 1


def _page_from_file(settings: Settings, target: str, status: int, headers: tuple[str, ...]) -> Page:
    body = _read_file(target, settings.max_body)
    pairs = [_header(line) for line in headers]
    if target.lower().endswith((".html", ".htm")) and not any(
        name.lower() == "content-type" for name, _ in pairs
    ):
        pairs.append(("content-type", "text/html"))
    return Page(
        url="", final_url="", status=status, reason="", headers=tuple(pairs), body=body, raw=body,
        fetched_at=0.0, fetch_s=0.0,
    )  # fmt: skip


def _read_file(target: str, most: int) -> bytes:
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


def _page_from_url(settings: Settings, url: str) -> tuple[str, Page]:
    import asyncio

    address = urls.parse(url)
    if LocalPersistenceManager.exists(settings.data_dir):
        with closing(LocalPersistenceManager(settings.data_dir)) as lpm:
            page = _stored_page(lpm, address)
        if page:
            return "store", page
    say(f"no page of {address.url} is stored; fetching it")
    return "server", asyncio.run(_fetched_page(settings, address.url))


def _stored_page(lpm: LocalPersistenceManager, address: urls.Address) -> Page | None:
    from crawler.scraping import stored_page

    for task in lpm.tasks.for_url(address.key):
        raw = lpm.pages.read(task)
        if raw:
            return stored_page(
                *raw, address.url, (lpm.results.of_task(task) or {}).get("final_url")
            )
    return None


async def _fetched_page(settings: Settings, url: str) -> Page:
    from crawler.fetch.http import Client, Request

    async with Client.of(settings) as client:
        return await client.fetch(Request(url=url, loopback=True))


def _verdict_on(settings: Settings, page: Page, path: str) -> "Verdict":
    from crawler import sites
    from crawler.scraping import examine

    known = sites.load(settings.config_dir, settings.rate)
    try:
        return examine(page, known.of(page.url) if page.url else known.default).verdict
    except FetchError as error:
        if path:
            raise InputError(path, str(error)) from None
        raise


def _decides(verdict: "Verdict") -> dict[str, Any]:
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
        "decides": _decides(verdict),
    }


def _print_verdict(source: str, page: Page, verdict: "Verdict") -> None:
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
