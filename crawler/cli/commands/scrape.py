"""`scrape` and `raw`: one URL now, and the page it gave."""

import contextlib
import html
import re
import shlex
import sys
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from crawler import config, urls
from crawler.cli.output import data_dir_option, json_option, print_json, require_store, say, stored
from crawler.cli.session import robots_option, session_options
from crawler.config import Settings, program
from crawler.errors import UsageError
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager
from crawler.models import JobOptions, NewTask, TaskStatus
from crawler.results import whole_file

if TYPE_CHECKING:
    from crawler.fetch.session import Session
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
    from crawler.errors import FetchError
    from crawler.scraping import difference, examine, find_stored_page
    from crawler.sites import config as sites

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
