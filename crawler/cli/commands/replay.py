"""`replay`: today's parser over stored pages."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from crawler import config, times
from crawler.cli.options import (
    Number,
    data_dir_option,
    job_option,
    json_option,
    role_option,
    since_option,
)
from crawler.cli.output import existing_store, find_job_if_named, print_json, say
from crawler.config import program
from crawler.errors import InputError, UsageError
from crawler.logs import counted, printable

if TYPE_CHECKING:
    from crawler.analyze.compare import Value
    from crawler.replay import Baseline, Progress
    from crawler.replay.report import Problems, ReplayedField, Report

PROGRESS_S = 2.0
_MAX_FIELDS = 20
"""Fields that are shown; --json has all of them."""
_STORED = "stored"


@click.command()
@click.option("--site", "site_name", help="Only pages of this site, by today's configuration.")
@job_option
@role_option
@since_option
@click.option(
    "--against",
    default=_STORED,
    show_default=True,
    metavar="stored|FILE|DIR",
    help="Compare with the stored records, an export or archive, or a golden set.",
)
@click.option(
    "--fail-under",
    type=Number(0, 1),
    metavar="SHARE",
    help="Exit with 1 if a field kept its value on less than this share of the pages that had one.",
)
@click.option(
    "--apply", "apply_", is_flag=True, help="Make the new records current; the earlier ones stay."
)
@click.option(
    "--freeze",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write the pages and their new records into this folder, as a golden set for pytest.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    help="At most this many pages; those in the newest segments come first.",
)
@click.option(
    "--workers", type=click.IntRange(1, 256), help="Processes that parse (default: one per core)."
)
@json_option
@data_dir_option
def replay(
    site_name: str | None,
    job_name: str | None,
    roles: tuple[str, ...],
    since: float | None,
    against: str,
    fail_under: float | None,
    apply_: bool,
    freeze: Path | None,
    limit: int | None,
    workers: int | None,
    as_json: bool,
) -> int:
    """Parse stored pages with today's site files and classes, and show field by field what is
    lost, changed and new. Nothing is fetched.

    Nothing is changed either, unless you say --apply: then the new records are those that results,
    exports and pending/ show, and `why` shows the earlier ones, too. With --fail-under, nothing is
    applied if a field is below it, or if no page was compared.

    Exits with 1 if a field is below --fail-under or it had no page to compare, or if a page
    cannot be read or parsed.

    \b
    Example:
      python -m crawler replay --site county
      python -m crawler replay --site county --fail-under 0.98 --apply
      python -m crawler replay --site county --limit 50 --freeze tests/golden
    """
    if apply_ and against != _STORED:
        raise click.UsageError("--apply compares with the stored records: leave --against away")
    from crawler import sites
    from crawler.replay import Replay, ReplayOptions

    settings = config.load()
    known = sites.load(settings.config_dir, settings.rate)
    if site_name is not None and site_name != sites.DEFAULT:
        site_name = known.find(site_name).name
    if freeze:
        _prepare_folder(freeze, settings.data_dir)
    with ExitStack() as opened:
        lpm = opened.enter_context(existing_store())
        baseline = _baseline(against)
        opened.callback(baseline.close)
        options = ReplayOptions(
            site=site_name,
            job=find_job_if_named(lpm, job_name),
            since=since,
            roles=roles,
            limit=limit,
            workers=workers or os.cpu_count() or 1,
            fail_under=fail_under,
            apply=apply_,
            freeze=freeze,
        )
        report = Replay(settings, lpm, known, options, baseline).run(_show_progress())
    if not (report.pages or report.unreadable.count or report.gone.count):
        raise UsageError("there is no stored page that was asked for")
    if as_json:
        print_json(report)
    else:
        for line in _lines(report, apply_):
            print(printable(line))
    return int(report.has_failed)


def _baseline(against: str) -> "Baseline":
    from crawler.analyze.sources import ENDINGS
    from crawler.replay import Baseline, RecordsOfFile

    if against == _STORED:
        return Baseline()
    path = Path(against)
    if not path.exists():
        raise InputError(against, "there is no such file or folder")
    if not path.is_dir() and not against.lower().endswith(ENDINGS):
        raise InputError(against, f"this is no file that ends in {', '.join(ENDINGS)}")
    return RecordsOfFile.read(against)


def _prepare_folder(folder: Path, data_dir: Path) -> None:
    """Make the folder of a golden set, outside of the store."""
    if folder.resolve().is_relative_to(data_dir.resolve()):
        raise UsageError(f"{folder} is in the data folder; choose another one")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be made ({error.strerror})") from None


def _show_progress() -> "Progress":
    began = said = 0.0

    def show(pages: int, read: int, total: int) -> None:
        nonlocal began, said
        now = time.monotonic()
        if not began:  # what came before says nothing about the rate
            began = said = now
        if now - said < PROGRESS_S:
            return
        said = now
        left = (now - began) * (total - read) / max(1, read)
        rate = pages / (now - began)
        say(f"{pages:,} pages, {rate:,.0f} pages/s, about {times.duration(left)} left")

    return show


# Text


def _lines(found: "Report", apply_: bool) -> Iterator[str]:
    """The report: first what fails, then all pages, then field by field."""
    yield from _below(found)
    names = ", ".join(f"{site.name} {site.version}" for site in found.sites[:3])
    if len(found.sites) > 3:
        names += f" and {len(found.sites) - 3:,} more"
    used = f" with {names}" if names else ""  # no site's parser ran if all pages are gone
    pace = f"{found.seconds:,.1f} s, {found.pages_per_s:,.0f} pages/s"
    yield f"{counted(found.pages, 'stored page')} parsed{used} ({pace})"
    if found.compared:
        same = f"{found.same:,} of {found.compared:,} ({_percent(found.share)})"
        kept = f"{found.kept:,} kept every value"
        yield f"  {same} are the same as before ({found.against}), {kept}"
    if found.unmatched:
        yield f"  {found.unmatched:,} have no record in {found.against}"
    for count, what in (
        (found.newly_invalid, "records are invalid now and were not"),
        (found.newly_valid, "records are valid now and were not"),
    ):
        if count:
            yield f"  {count:,} {what}"
    yield from _problems(found.failed, "cannot be parsed any more")
    yield from _problems(found.unreadable, "are damaged and cannot be read")
    yield from _problems(found.gone, "are not there any more")
    if found.verdicts:
        yield "Verdicts that changed"
        for verdict in found.verdicts[:_MAX_FIELDS]:
            yield f"  {verdict.count:,} {verdict.a} → {verdict.b}: {verdict.url}"
    yield from _fields(found)
    yield from _done(found, apply_)


def _below(found: "Report") -> Iterator[str]:
    if found.is_nothing_compared:
        yield "FAILED: no page was compared, so --fail-under cannot be judged"
    if not found.below or found.fail_under is None:
        return
    fields = {field.path: field for field in found.fields}
    for path in found.below[:_MAX_FIELDS]:
        field = fields[path]
        yield (
            f"FAILED: {path} kept its value on {_percent(field.share)} of {field.had:,} pages, "
            f"less than {_percent(found.fail_under)}"
        )
        if field.examples:
            yield f"    {_example(field.examples[0])}"
    if len(found.below) > _MAX_FIELDS:
        yield f"    … and {counted(len(found.below) - _MAX_FIELDS, 'more field')}"


def _problems(problems: "Problems", what: str) -> Iterator[str]:
    if not problems.count:
        return
    yield f"  {problems.count:,} {what}"
    for each in problems.examples:
        yield f"    {each.url}: {each.message}"


def _fields(found: "Report") -> Iterator[str]:
    from crawler.replay import open_page_command

    differing = [field for field in found.fields if field.changed or field.lost or field.new]
    kept = len(found.fields) - len(differing)
    if not found.fields:
        return
    if not differing:
        yield f"All {counted(kept, 'field')} kept their values on every page."
        return
    width = min(40, max(len("field"), *(len(field.path) for field in differing)))
    yield f"{'field':{width}} {'had':>8} {'kept':>8} {'lost':>8} {'changed':>8} {'new':>8}"
    for field in differing[:_MAX_FIELDS]:
        yield _row(field, width)
        for value in field.examples:
            yield f"    {_example(value)}"
        yield f"    {open_page_command(field.examples[0].url)}"
    if len(differing) > _MAX_FIELDS:
        more = counted(len(differing) - _MAX_FIELDS, "more field")
        yield f"… and {more}; --json has them all"
    if kept:
        yield f"{counted(kept, 'other field')} kept {_their(kept)} on every page."


def _their(count: int) -> str:
    return "its value" if count == 1 else "their values"


def _row(field: "ReplayedField", width: int) -> str:
    share = "new" if field.share is None else _percent(field.share)
    counts = (field.lost, field.changed, field.new)
    return f"{field.path:{width}} {field.had:8,} {share:>8}" + "".join(f" {n:8,}" for n in counts)


def _example(value: "Value") -> str:
    return f"{value.url}: {value.old or '(nothing)'} → {value.new or '(nothing)'}"


def _done(found: "Report", apply_: bool) -> Iterator[str]:
    if found.frozen is not None:
        yield f"{counted(found.frozen, 'page')} of the golden set written anew"
    done = found.applied
    if done is None:
        if apply_:
            yield "Nothing was applied: the records stay as they are."
        return
    if done.replaced:
        yield f"{counted(done.replaced, 'record')} replaced; `why` shows the earlier ones"
    else:
        yield "No record was replaced."
    if found.listings_made:
        yield f"{counted(found.listings_made, 'listing')} made of stored results"
    if done.held:
        yield (
            f"  {done.held:,} of them had been delivered or archived: they are held, "
            f"and {program()} sync push sends them"
        )
    if done.sending:
        yield f"  {done.sending:,} are on their way to the Gateway; type this again afterwards"
    if done.busy:
        yield f"  {done.busy:,} were fetched again meanwhile, and are left as they are"


def _percent(share: float | None) -> str:
    """A share as text. Only all is 100 %."""
    if share is None:
        return "–"
    text = f"{share:.1%}"
    if text == "100.0%" and share < 1:
        text = "99.9%"
    return text.replace("%", " %")
