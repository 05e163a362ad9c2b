"""What commands print: facts on stdout, progress and remarks on stderr."""

import contextlib
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from crawler import config, times
from crawler.config import program
from crawler.db.gateway import Delivery
from crawler.db.listing_views import Conflicts
from crawler.errors import UsageError
from crawler.logs import counted, leave_lost_terminal, printable, shortened
from crawler.lpm import LocalPersistenceManager
from crawler.models import CrawlReport, Job, Receipt

UNACCOUNTED = 5
"""Exit code if tasks are open, or if a job's counts do not add up."""
_MAX_MISSING_FIELDS = 10
_MAX_EXAMPLES, _MAX_URL_CHARS = 5, 200
_EXPECTED = {
    "sitemap": ("sitemap", "read"),
    "no_sitemap": ("sitemap", "missing"),
    "no_robots_txt": ("site", "without robots.txt"),
    "redirected": ("redirect", "followed"),
    "read_again": ("page", "read again for links"),
}
"""Why tasks of a crawl leave no result, although all is well."""
GUARDS = {
    "calendar": "left out, far away in a calendar",
    "depth": "left out, further from a start than --depth",
    "file_type": "left out, to files that are no pages",
    "files_count": "left out, above the max_count of files of a page",
    "files_host": "left out, on hosts that the site's files may not come from",
    "files_limit": "left out, because the crawl has its maximum of files",
    "limit": "left out, because the crawl has its --limit of pages",
    "links_per_page": "left out, above the maximum of a page",
    "nofollow": "left out, because their page asks for it",
    "pagination": "left out, because a list repeats itself or has its maximum of pages",
    "repeated_path": "left out, whose path goes in circles",
    "secret": "left out, whose URL shows a secret or a cookie of the login",
    "session_parameter": "followed without the session in their URL",
    "site_limit": "left out, because the site has its limit of pages",
    "sitemaps": "left out, because the crawl has its maximum of sitemaps",
    "sitemap_levels": "left out, in sitemaps nested too deep",
    "sitemap_size": "cut short: a sitemap with too many URLs",
    "url_length": "left out, with a very long URL",
}
"""What each guard of a crawl does with links."""


def print_json(facts: Any) -> None:
    """Print facts as indented JSON."""
    print(msgspec.json.format(msgspec.json.encode(facts), indent=2).decode())


def say(text: str) -> None:
    """Print a line on stderr. Work goes on if the terminal is gone."""
    try:
        print(printable(text), file=sys.stderr, flush=True)
    except OSError:
        leave_lost_terminal()


def size_text(count: float) -> str:
    """Return a number of bytes as text, such as `1.5 MB`."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB"):
        count /= 1000
        if count < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} GB"


def cut_middle(text: str, most: int) -> str:
    """Cut out the middle of a long text: the ends of URLs tell pages of one site apart."""
    if len(text) <= most:
        return text
    half = (most - 1) // 2
    return f"{text[: most - 1 - half]}…{text[len(text) - half :]}"


def print_line(text: str, indent: int = 4) -> None:
    """Print a line. On a terminal, one that is too long goes on in the next, between two words and
    indented."""
    if sys.stdout.isatty():
        text = textwrap.fill(
            text, shutil.get_terminal_size().columns, subsequent_indent=" " * indent,
            break_long_words=False, break_on_hyphens=False, replace_whitespace=False,
        )  # fmt: skip
    print(text)


def require_store(data_dir: Path) -> None:
    """Raise `UsageError` for a folder without a store.

    Opening it would create an empty one, whose zeros look like an answer.
    """
    if not LocalPersistenceManager.exists(data_dir):
        raise UsageError(
            f"there is no store in {data_dir.absolute()}; --data-dir names another folder"
        )


@contextlib.contextmanager
def existing_store() -> Iterator[LocalPersistenceManager]:
    """Open the store of the data folder; raises `UsageError` if there is none."""
    data_dir = config.load().data_dir
    require_store(data_dir)
    lpm = LocalPersistenceManager(data_dir)
    with contextlib.closing(lpm), lpm.errors():
        yield lpm


def find_job(lpm: LocalPersistenceManager, name: str) -> Job:
    """Find a job by its name or its file's name; say which one if several jobs fit."""
    job = lpm.find_job(name)
    if job.name != name:
        say(f"{name} was imported as {job_label(job)}")
    if later := lpm.jobs.later_namesakes(job):
        say(f"this is {job_label(job)}; later files of the same name made {newest_label(later)}")
    return job


def find_job_if_named(lpm: LocalPersistenceManager, name: str | None) -> Job | None:
    """Find the job of an optional `--job`."""
    if name:
        return find_job(lpm, name)
    return None


def job_label(job: Job) -> str:
    """Return a job's name and its time of import, which differs between jobs of one file name."""
    tz = times.zone(config.load().timezone)
    return f"{job.name} (imported {times.show(job.created_at, time.time(), tz)})"


def newest_label(jobs: list[Job]) -> str:
    """Return the label of the newest job, and the number of the others."""
    label = job_label(jobs[-1])
    if len(jobs) > 1:
        label += f" and {counted(len(jobs) - 1, 'more job')}"
    return label


def task_label(task: dict[str, Any]) -> str:
    """Return a task's URL, after its id at the Gateway if it has one."""
    return printable(" ".join(name for name in (task["their_id"], task["url"]) if name))


def delivery_summary(found: Delivery) -> str:
    """Say how many results were archived, delivered or rejected, or wait for the Gateway."""
    parts = (
        (found.archived, "were archived"),
        (found.synced, "were delivered"),
        (
            found.ready,
            f"wait for the Gateway ({program()} ondemand, or {program()} sync push)",
        ),
        (found.rejected, f"were rejected by it ({program()} sync rejected)"),
    )
    return ", ".join(f"{count:,} {what}" for count, what in parts if count)


def counts_text(counts: Mapping[str, int]) -> str:
    """Say how many there are of each kind, such as `12 new, 3 changed`; empty if there are none."""
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)


def conflicts_text(found: Conflicts) -> str:
    """Tell of keys that several pages of a crawl have, and what to do, on one line."""
    are = "is" if found.keys == 1 else "are"
    first, second = (shortened(url, _MAX_URL_CHARS) for url in found.urls)
    return printable(
        f"{found.site}: {counted(found.keys, 'key')} of listings {are} on several pages that "
        f"differ; the first of them counts, and `key` in the site's file should tell them apart: "
        f"{shortened(found.key)} is on {first} and {second}"
    )


def print_rendered(pages: int) -> None:
    """Print how many pages of a job needed a browser, if any did."""
    if pages:
        print(f"  {counted(pages, 'page')} needed a browser")


def print_reasons(
    reasons: dict[str, dict[str, int]],
    examples: list[dict[str, Any]],
    job: Job | None,
    name_command: bool = False,
) -> None:
    """Print why tasks ended without a result, with examples of those that should have one, and the
    command that lists more, or with `name_command` all."""
    more, expected = 0, []
    for status, counts in reasons.items():
        for reason, count in counts.items():
            if status == "skipped" and reason in _EXPECTED:
                what, end = _EXPECTED[reason]
                expected.append(f"{counted(count, what)} {end}")
            else:
                print(f"  {count:,} {status}: {reason}")
                more += count
    if expected:
        print(f"  {', '.join(expected)}")
    examples = [task for task in examples if task["reason"] not in _EXPECTED][:_MAX_EXAMPLES]
    for task in examples:
        print(f"    {task_label(task)}: {printable(task['message'] or task['reason'] or '')}")
    command = f"{program()} tasks list"
    command += "".join(f" --status {status}" for status in reasons)
    if job:
        command += f" --job {shlex.quote(job.name)}"
    more -= len(examples)
    if more > 0 and examples:
        print(f"    … and {more:,} more: {printable(command)}")
    elif name_command and reasons:
        print(f"    {printable(command)}")


def print_receipt(receipt: Receipt) -> None:
    """Print the sums that must come out, and the checksum of the tasks."""
    books = receipt.books
    states = ("completed", "failed", "skipped", "expired", "pending", "processing")
    counts = [f"{getattr(books, state):,} {state}" for state in states if getattr(books, state)]
    new = receipt.rows - receipt.known - receipt.rejected
    rows = f"{new:,} new + {receipt.known:,} known + {receipt.rejected:,} rejected"
    print(f"Receipt: {receipt.rows:,} rows = {rows}")
    print(f"  {books.accepted:,} tasks = {' + '.join(counts) or '0'}")
    print_invalid(receipt)
    print(f"  sha256 {receipt.checksum}")
    for missing in receipt.accepted:
        print(f"  accepted: {printable(missing)}")
    for problem in receipt.problems:
        print(f"  UNACCOUNTED: {printable(problem)}")


def print_left_out(crawled: CrawlReport, tell: Callable[[str], None] = print) -> None:
    """Print which guards of a crawl acted, on how many links."""
    for each in crawled.left_out:
        why = GUARDS.get(each.guard, each.guard.replace("_", " "))
        example = shortened(printable(each.example))
        tell(f"  guard {each.guard}: {counted(each.links, 'link')} {why}: {example}")


def print_invalid(receipt: Receipt) -> None:
    """Print how many records are invalid, and why."""
    if receipt.invalid:
        print(f"  {receipt.invalid:,} of {receipt.books.completed:,} records are invalid")
    print_missing_fields(receipt)
    lacking = {f"{field.name} is missing" for field in receipt.missing_fields}
    others = [each for each in receipt.invalid_reasons.items() if each[0] not in lacking]
    for reason, records in others[:_MAX_MISSING_FIELDS]:
        print(f"  {records:,} invalid: {printable(reason)}")
    more = len(others) - _MAX_MISSING_FIELDS
    if more > 0:
        print(f"  … and {counted(more, 'more reason')}")


def print_missing_fields(receipt: Receipt) -> None:
    """Print the required fields that collected pages lack."""
    for field in receipt.missing_fields[:_MAX_MISSING_FIELDS]:
        print(f"  {printable(field.name)} is missing on {field.pages:,} of {field.of:,} pages")
    more = len(receipt.missing_fields) - _MAX_MISSING_FIELDS
    if more > 0:
        print(f"  … and {counted(more, 'more field')}")


def warn_incomplete(lpm: LocalPersistenceManager, job: Job | None) -> list[str]:
    """Warn on stderr if a job, or any job, is not complete; returns the unaccounted tasks.

    Call it before results are read. A task that ends in between may be missing in the output, and
    is no longer open afterwards.
    """
    with lpm.errors():
        jobs = [job] if job else lpm.jobs.all()
        problems = [
            f"{each.name}: {problem}" for each in jobs for problem in lpm.receipt(each).problems
        ]
        open_tasks = lpm.counts.progress(job).open
    for problem in problems:
        say(f"UNACCOUNTED: {problem}")
    if open_tasks:
        say(f"{open_tasks:,} tasks are still open: their results may be missing")
    if not lpm.can_write:
        say("the store cannot be written: `why` will not show this output")
    return problems


def check_reason(lpm: LocalPersistenceManager, reason: str) -> None:
    """Raise `UsageError` for a reason that no task has, which is probably a typing error."""
    reasons = lpm.counts.all_reasons()
    if reason not in reasons:
        there = ", ".join(f"{name} ({count:,})" for name, count in reasons.items()) or "none"
        raise UsageError(f"no task has the reason {reason!r}; known reasons: {there}")
