"""`listings`: what is offered on sites, how it changed, and what a person noted about it."""

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
from msgspec.structs import replace

from crawler import config, results, times
from crawler.cli.commands.listing_duplicates import (
    MIN_CONFIDENCE,
    bring_up_to_date,
    check_site,
    confirm,
    duplicates,
    known_sites,
    none_yet_text,
    separate,
)
from crawler.cli.options import (
    Number,
    PastTime,
    data_dir_option,
    json_option,
    output_option,
    since_option,
)
from crawler.cli.output import (
    conflicts_text,
    counts_text,
    cut_middle,
    existing_store,
    print_json,
    print_line,
    say,
)
from crawler.config import argument, program
from crawler.db import guard
from crawler.db.listing_views import (
    CHANGES,
    KINDS,
    STATES,
    Change,
    ChangeFilter,
    Listing,
    ListingFilter,
    ListingHistory,
    Pair,
    as_facts,
)
from crawler.logs import counted, printable, shortened
from crawler.lpm import LocalPersistenceManager

if TYPE_CHECKING:
    from crawler.results.formats import Row

T = TypeVar("T")

_FORMATS = tuple(form for form in results.FORMATS if form != "warc")
_MAX_LISTED = 20
_MAX_NAME_CHARS, _MAX_VALUE_CHARS, _MAX_PAIRS = 40, 500, 20
_MIN_LAST_COLUMN, _MIN_WHAT, _MIN_NAME = 20, 34, 12
"""Characters that a narrow terminal leaves for a URL, for what changed, and for a name."""
_LESS_IMPORTANT = ("changed", "first seen")
"""Columns that a narrow terminal does not show, the first of them first."""
_DECISIONS = {
    "same": "the same as, by a person",
    None: "may be the same as",
    "different": "not the same as, by a person",
}
"""What is said of a pair, by what a person has decided."""
_NONE_CHOSEN = "No listing is like that"


class PriceRange(click.ParamType[tuple[float | None, float | None]]):
    """A range of prices such as 100000..150000, 100000.. or ..150000."""

    name = "min..max"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float | None, float | None]:
        """Return both limits."""
        if isinstance(value, tuple):
            return value
        text = str(value)
        low, dots, high = text.partition("..")
        try:
            limits = tuple(float(each) if each.strip() else None for each in (low, high))
        except ValueError:
            self._fail(text, param, ctx)
        least, most = limits
        if not dots or (least is None and most is None) or not _in_order(least, most):
            self._fail(text, param, ctx)
        return least, most

    def _fail(
        self, text: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> NoReturn:
        self.fail(f"{text!r} is no range; write 100000..150000, 100000.. or ..150000", param, ctx)


def _in_order(least: float | None, most: float | None) -> bool:
    """Whether a range has something in it; NaN is in no order."""
    return (least or 0.0) <= (float("inf") if most is None else most)


site_option = click.option("--site", metavar="NAME", help="Only listings of this site.")
limit_option = click.option(
    "--limit",
    type=click.IntRange(1),
    default=_MAX_LISTED,
    show_default=True,
    help="Show the newest N.",
)


def _filter_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that choose listings."""
    options = (
        site_option,
        click.option("--state", type=click.Choice(STATES), help="Only listings in this state."),
        click.option(
            "--since",
            type=PastTime(),
            help="Only first seen since this time, such as 2h (before now), 7d, 14:00, "
            "2026-11-15, or 2026-11-15T14:00.",
        ),
        click.option("--changed-since", type=PastTime(), help="Only changed since this time."),
        click.option(
            "--price", type=PriceRange(), help="Only with a price in this range; both ends count."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _filter(
    site: str | None,
    state: str | None,
    since: float | None,
    changed_since: float | None,
    price: tuple[float | None, float | None] | None,
) -> ListingFilter:
    least, most = price or (None, None)
    return ListingFilter(
        site=site,
        state=state,
        since=since,
        changed_since=changed_since,
        min_price=least,
        max_price=most,
    )


@contextmanager
def _listings(site: str | None = None) -> Iterator[LocalPersistenceManager]:
    """Open the store; raises `UsageError` if a site is named that has no listings."""
    with existing_store() as lpm:
        if site is not None:
            check_site(lpm, site)
        yield lpm


def _has_listings(lpm: LocalPersistenceManager, site: str | None) -> bool:
    sites = lpm.listings.sites()
    return bool(sites) if site is None else site in sites


@click.group()
def listings() -> None:
    """List listings, their changes, price history, visits and duplicates; export them.

    A listing is a thing that a site offers, such as a flat. The key `listings:` in a site's file
    says what identifies it.

    \b
    Example:
      python -m crawler listings list --state active
      python -m crawler listings changes --since 7d
    """


for _command in (duplicates, confirm, separate):
    listings.add_command(_command)


# list


@listings.command("list")
@_filter_options
@limit_option
@json_option
@data_dir_option
def list_(limit: int, as_json: bool, **chosen: Any) -> None:
    """Count the listings of each site, and show the newest.

    \b
    Example:
      python -m crawler listings list --site imoti --state active --price 80000..120000
      python -m crawler listings list --changed-since 7d --json
    """
    wanted = _filter(**chosen)
    with _listings(wanted.site) as lpm:
        views = lpm.listings
        counts, missed = (_only(wanted.site, each) for each in (views.counts(), views.missed()))
        conflicts = [each for each in views.conflicts() if wanted.site in (None, each.site)]
        total, found = views.count(wanted), list(views.read(wanted, limit))
    if as_json:
        print_json(
            {
                "sites": {
                    site: states | {"missed": missed.get(site, 0)}
                    for site, states in counts.items()
                },
                "conflicts": conflicts,
                "total": total,
                "listings": [as_facts(each) for each in found],
            }
        )
        return
    if not counts:
        print(none_yet_text(wanted.site))
        return
    is_chosen = wanted != ListingFilter(site=wanted.site)
    for site, states in counts.items():
        print(f"{'all of ' * is_chosen}{printable(site)}: {counts_text(states)}")
    _print_missed(missed, counts)
    for conflict in conflicts:
        print_line(conflicts_text(conflict))
    if found:
        print()
        if is_chosen:
            print(f"{counted(total, 'listing')} of these:")
        _print_listings(found, wanted)
    if total > len(found):
        say(f"… and {total - len(found):,} more; --limit N shows more, listings export writes all")
    elif not found:
        print(_NONE_CHOSEN)


def _only(site: str | None, of_sites: dict[str, T]) -> dict[str, T]:
    """What is known of one site, or of all."""
    return {name: value for name, value in of_sites.items() if site in (None, name)}


def _print_missed(missed: Mapping[str, int], counts: Mapping[str, Mapping[str, int]]) -> None:
    """Tell of listings that are not believed to be gone yet."""
    for site, count in missed.items():
        of_all = f"{count:,} of {counts[site]['active']:,} active listings"
        print_line(
            f"{printable(site)}: the last whole crawl missed {of_all}; they count as gone if the "
            "next one misses them, too"
        )


def _print_listings(found: Sequence[Listing], wanted: ListingFilter) -> None:
    from crawler.analyze.listing_report import price_text

    tz = _zone()
    rows = [("id", "listing", "state", ">price", "first seen", "changed", "url")]
    for each in found:
        changed = "-" if each.changed_at is None else _minute(each.changed_at, tz)
        price = price_text(each.price, each.currency)
        first = _minute(each.first_seen, tz)
        name = cut_middle(each.name, _MAX_NAME_CHARS)
        rows.append((str(each.id), name, each.state, price, first, changed, each.url))
    print_table(rows, _LESS_IMPORTANT if wanted.changed_since is None else ("first seen", "id"))


# changes


@listings.command()
@site_option
@click.option(
    "--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="Only this; repeatable."
)
@since_option
@limit_option
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    help="Write an HTML report with plots of prices to this file; it needs no network.",
)
@json_option
@data_dir_option
def changes(
    site: str | None,
    kinds: tuple[str, ...],
    since: float | None,
    limit: int,
    html: Path | None,
    as_json: bool,
) -> None:
    """Show what changed, the newest first: new, changed, gone, back and sold listings.

    Records that a later parser has corrected are only counted, unless --kind corrected is given.

    \b
    Example:
      python -m crawler listings changes --since 7d
      python -m crawler listings changes --site imoti --kind gone --kind sold
      python -m crawler listings changes --since 2026-11-01 --html changes.html
    """
    wanted = ChangeFilter(site=site, kinds=kinds, since=since)
    shown = kinds or CHANGES
    with _listings(site) as lpm:
        if html:
            _write_report(lpm, wanted, html)
            if not as_json:
                if str(html) != "-":
                    print(f"Report written to {html}")
                return
        views = lpm.listings
        counts = views.change_counts(wanted)
        found = list(views.changes(replace(wanted, kinds=shown), limit))
        none_yet = not found and not _has_listings(lpm, site)
    total = sum(each[kind] for each in counts.values() for kind in shown)
    corrected = sum(each["corrected"] for each in counts.values()) if not kinds else 0
    if as_json:
        facts = [as_facts(each) for each in found]
        print_json({"sites": counts, "total": total, "changes": facts})
    elif none_yet:
        print(none_yet_text(site))
    elif not found:
        print("Nothing changed" if since is None else f"Nothing changed since {_shown(since)}")
    else:
        _print_changes(counts, shown, found)
        if total > len(found):
            say(f"… and {total - len(found):,} more; --limit N or --html shows more")
    if corrected and not as_json:
        from crawler.analyze.listing_report import corrections_text

        print(f"{corrections_text(corrected)}: --kind corrected shows what")


def _write_report(lpm: LocalPersistenceManager, wanted: ChangeFilter, html: Path) -> None:
    from crawler.analyze import listing_report
    from crawler.results import whole_file

    if str(html) != "-":
        guard.check_output(html, lpm.folder)
    title = "Changes of listings"
    if wanted.site is not None:
        title += f" of {wanted.site}"
    if wanted.since is not None:
        title += f" since {_shown(wanted.since)}"
    report = listing_report.collect(lpm, wanted, title, _zone())
    with whole_file(html, lpm.folder) as out:
        out.write(listing_report.html_page(report).encode("utf-8", "replace"))


def _print_changes(
    counts: Mapping[str, Mapping[str, int]], shown: Sequence[str], found: Sequence[Change]
) -> None:
    from crawler.analyze.listing_report import change_text, price_text

    for site, kinds in counts.items():
        if text := counts_text({kind: kinds[kind] for kind in shown}):
            print(f"{printable(site)}: {text}")
    print()
    tz = _zone()
    rows = [("time", "kind", "listing", "what")]
    for each in found:
        name = cut_middle(each.name, _MAX_NAME_CHARS)
        what = change_text(each)
        if not what:
            price = price_text(each.last_price, each.currency)
            what = f"{price}  {each.title or each.url}"
        rows.append((_minute(each.at, tz), each.kind, name, what))
    print_table(rows, min_last=_MIN_WHAT)


# One listing


@listings.command()
@click.argument("listing", metavar="URL|ID|SITE:KEY")
@json_option
@data_dir_option
def show(listing: str, as_json: bool) -> None:
    """Show a listing: its record, state, prices, visits, and listings that may be the same.

    \b
    Example:
      python -m crawler listings show imoti:1c2b3
      python -m crawler listings show https://imoti.example/flat/1c2b3 --json
    """
    with _listings() as lpm:
        found = lpm.listings.show(lpm.listings.find(listing))
    if as_json:
        print_json(_facts(found))
    else:
        _print_listing(found)


def _facts(found: ListingHistory) -> dict[str, Any]:
    return as_facts(found.listing) | {
        "changes": _without_names(found.changes),
        "prices": [as_facts(each) for each in found.prices],
        "viewings": [as_facts(each) for each in found.viewings],
        "urls": found.urls,
        "duplicates": [as_facts(each) for each in found.pairs],
    }


def _without_names(found: Sequence[Change]) -> list[dict[str, Any]]:
    """Changes of one listing, whose name and URL are known."""
    names = ("at", "kind", "fields", "price", "task_id")
    return [{name: as_facts(each)[name] for name in names} for each in found]


def _print_listing(found: ListingHistory) -> None:
    from crawler.analyze.listing_report import price_change_text, price_text

    listing, tz = found.listing, _zone()
    print(f"{printable(listing.name)}  {_state_text(listing, tz)}")
    _print_facts(
        [
            ("id", str(listing.id)),
            ("url", listing.url),
            *(("also seen at", url) for url in found.urls if url != listing.url),
            ("price", price_text(listing.price, listing.currency)),
            ("first seen", _minute(listing.first_seen, tz)),
            ("last seen", _minute(listing.last_seen, tz)),
            ("fetched", f"{_minute(listing.fetched_at, tz)}{_unchanged_text(listing)}"),
            ("changed", "never" if listing.changed_at is None else _minute(listing.changed_at, tz)),
            *_origin(found),
        ]
    )
    _print_record(listing)
    if found.prices:
        print("prices")
        for price in found.prices:
            print(f"  {_minute(price.at, tz)}  {printable(price_change_text(price))}")
    if found.viewings:
        print("visits")
        for viewing in found.viewings:
            print(f"  {_minute(viewing.at, tz)}  {viewing.id}: {printable(viewing.note)}")
    for decision, heading in _DECISIONS.items():
        if pairs := [pair for pair in found.pairs if pair.decision == decision]:
            print(heading)
            for pair in pairs[:_MAX_PAIRS]:
                _print_pair(pair)


def _state_text(listing: Listing, tz: tzinfo | None) -> str:
    since = {"sold": listing.sold_at, "gone": listing.gone_at}
    parts = [f"{what} since {_minute(at, tz)}" for what, at in since.items() if at is not None]
    parts = parts or [listing.state]
    if listing.gone_at is None and listing.missed:
        parts.append(f"missing from {counted(listing.missed, 'crawl')}")
    return ", ".join(parts)


def _unchanged_text(listing: Listing) -> str:
    if not listing.unchanged:
        return ""
    return f", unchanged {counted(listing.unchanged, 'time')} in a row"


def _origin(found: ListingHistory) -> list[tuple[str, str]]:
    """The job and the task that it was seen in last, and the commands that open them."""
    listing, lines = found.listing, []
    if listing.job:
        lines.append(("job", listing.job))
    if listing.task_id:
        lines.append(("result", f"{program()} results show {listing.task_id}"))
    if found.page_url:
        lines.append(("page", f"{program()} raw {argument(found.page_url)}"))
    return lines


def _print_facts(pairs: Sequence[tuple[str, str]]) -> None:
    for name, value in pairs:
        print(f"  {name:12}  {printable(value)}")


def _print_record(listing: Listing) -> None:
    from crawler.results.formats import as_text, spread

    row: Row = {}
    spread(row, "data", listing.data)
    print("record")
    for name, value in row.items():
        if value not in (None, ""):
            text = printable(as_text(value))
            if len(text) > _MAX_VALUE_CHARS:
                text = f"{text[:_MAX_VALUE_CHARS]} … (all of it: --json)"
            print(f"  {printable(name.removeprefix('data.')):24} {text}")


def _print_pair(pair: Pair) -> None:
    from crawler.analyze.listing_report import confidence_text, value_text

    name = printable(f"{pair.site}:{pair.key}")
    print(f"  {confidence_text(pair.confidence)}  {name}  {printable(pair.url)}")
    names = sorted(pair.reasons, key=lambda name: -pair.reasons[name])
    for what, chosen in (
        ("for", [name for name in names if pair.reasons[name] > 0]),
        ("against", [name for name in names if pair.reasons[name] < 0]),
    ):
        if chosen:
            print(f"    {what}: {printable(', '.join(chosen))}")
    for each in pair.discrepancies:
        values = f"{value_text(each.here)} here, {value_text(each.there)} there"
        print(f"    {printable(each.field)}: {printable(values)}")


@listings.command()
@click.argument("listing", metavar="URL|ID|SITE:KEY")
@json_option
@data_dir_option
def history(listing: str, as_json: bool) -> None:
    """Show everything that happened to a listing, the oldest first.

    \b
    Example:
      python -m crawler listings history https://imoti.example/flat/1c2b3
    """
    with _listings() as lpm:
        found = lpm.listings.show(lpm.listings.find(listing))
    if as_json:
        facts = as_facts(found.listing)
        names = ("id", "site", "key", "url", "state", "price", "currency", "first_seen")
        print_json(
            {name: facts[name] for name in names}
            | {
                "changes": _without_names(found.changes),
                "prices": [as_facts(each) for each in found.prices],
                "viewings": [as_facts(each) for each in found.viewings],
            }
        )
        return
    _print_history(found)


def _print_history(found: ListingHistory) -> None:
    listing, tz = found.listing, _zone()
    print(f"{printable(listing.name)}  {_state_text(listing, tz)}  {printable(listing.url)}")
    for at, kind, texts in _steps(found):
        print(f"  {_minute(at, tz)}  {kind:9}  {printable(''.join(texts[:1]))}".rstrip())
        for text in texts[1:]:
            print(f"  {'':16}  {'':9}  {printable(text)}")


def _steps(found: ListingHistory) -> list[tuple[float, str, list[str]]]:
    """Time, kind and texts of all that happened, the oldest first."""
    from crawler.analyze.listing_report import field_texts, price_change_text, price_text

    listing, steps, shown = found.listing, [], set()
    first = (listing.price, listing.currency)
    if found.prices:
        first = (found.prices[0].previous_price, found.prices[0].previous_currency)
    for each in found.changes:
        texts = field_texts(each)
        if each.kind == "new" and first[0] is not None:
            texts = [f"price {price_text(*first)}"]
        if each.price:
            shown.add(each.price)
        steps.append((each.at, each.kind, texts))
    # A price that does not count as a change in the site's file is no change.
    steps += [
        (price.at, "price", [price_change_text(price)])
        for price in found.prices
        if price not in shown
    ]
    steps += [(each.at, f"visit {each.id}", [each.note]) for each in found.viewings]
    return sorted(steps, key=lambda step: step[0])


@listings.command()
@click.argument("listing", metavar="URL|ID|SITE:KEY")
@click.option("--note", metavar="TEXT", help="What to remember of the visit.")
@click.option(
    "--at",
    type=PastTime(),
    help="When it was (default: now), such as 2h (before now), 14:00, or 2026-11-15T14:00.",
)
@click.option(
    "--remove",
    type=click.IntRange(1),
    metavar="N",
    help="Remove the note with this number instead.",
)
@json_option
@data_dir_option
def visit(
    listing: str, note: str | None, at: float | None, remove: int | None, as_json: bool
) -> None:
    """Note a visit of the place that a listing offers. `listings show` and `listings history`
    show all notes, with their numbers; --remove takes one away.

    \b
    Example:
      python -m crawler listings visit imoti:1c2b3 --note "quiet, needs a new kitchen" --at 14:00
      python -m crawler listings visit imoti:1c2b3 --remove 3
    """
    if remove is not None:
        if note is not None or at is not None:
            raise click.UsageError("--remove does not go with --note or --at")
        _remove_visit(listing, remove, as_json)
        return
    if note is None:
        raise click.UsageError("--note says what to remember; --remove N removes a note")
    if not note.strip():
        raise click.BadParameter("it is empty", param_hint="--note")
    with _listings() as lpm:
        views, now = lpm.listings, lpm.now()
        id_, at = views.find(listing), now if at is None else at
        views.visit(id_, at, note.strip())
        found = views.show(id_)
    if as_json:
        facts = [as_facts(each) for each in found.viewings]
        print_json({"listing": as_facts(found.listing), "viewings": facts})
        return
    number = counted(len(found.viewings), "visit")
    print(f"Noted for {_shown(at)}; {printable(found.listing.name)} has {number}")


def _remove_visit(listing: str, number: int, as_json: bool) -> None:
    with _listings() as lpm:
        views = lpm.listings
        id_ = views.find(listing)
        removed = views.remove_visit(id_, number)
        found = views.show(id_)
    if as_json:
        left = [as_facts(each) for each in found.viewings]
        listed = as_facts(found.listing)
        print_json({"listing": listed, "viewings": left, "removed": as_facts(removed)})
        return
    left_text = counted(len(found.viewings), "visit")
    print(f"Removed the note of {_shown(removed.at)}: {printable(removed.note)}")
    print(f"{printable(found.listing.name)} has {left_text}")


# export


@listings.command()
@output_option
@click.option(
    "--format",
    "form",
    type=click.Choice(_FORMATS),
    help="Format (default: by the file's ending).",
)
@_filter_options
@click.option(
    "--merged", is_flag=True, help="Each thing once, with all its sources, instead of listings."
)
@click.option(
    "--min-confidence",
    type=Number(0.5, 1.0),
    help=f"With --merged: how sure pairs must be (default: {MIN_CONFIDENCE}).",
)
@json_option
@data_dir_option
def export(
    output: Path,
    form: str | None,
    merged: bool,
    min_confidence: float | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Write listings to one file: JSON, JSONL, CSV, XLSX, Markdown or Parquet.

    The file appears only when it is complete. A table has columns for the fields of the records,
    and for what is known of each listing.

    With --merged, listings that are the same thing are one entry, as in `listings duplicates
    --merged`, and the others are entries of their own. A thing is written if one of its listings is
    chosen.

    \b
    Example:
      python -m crawler listings export --output flats.xlsx --state active
      python -m crawler listings export --output flats.csv --merged --price 80000..120000
      python -m crawler listings export --format jsonl --output - --changed-since 1d
    """
    from crawler.orchestrator import terminated_by_signal
    from crawler.results.listings import export as write
    from crawler.results.listings import export_merged

    if min_confidence is not None and not merged:
        raise click.UsageError("--min-confidence goes with --merged")
    form = form or results.format_of(output)
    if form not in _FORMATS:
        raise click.UsageError(
            f"the ending of {output} names no format; add --format {', '.join(_FORMATS)}"
        )
    wanted = _filter(**chosen)
    with _listings(wanted.site) as lpm:
        if merged:
            known = known_sites()
            bring_up_to_date(lpm, known)
    # Not in `existing_store`: it would report a closed stdout as an error of the store.
    with closing(lpm), terminated_by_signal():
        if merged:
            sure = min_confidence or MIN_CONFIDENCE
            count = export_merged(lpm, known, output, form, wanted, sure, say)
        else:
            count = write(lpm, output, form, wanted, say)
        if not count:
            has_some = _has_listings(lpm, wanted.site)
            say(_NONE_CHOSEN if has_some else none_yet_text(wanted.site))
    if str(output) == "-":
        return
    what = "thing" if merged else "listing"
    if as_json:
        print_json({f"{what}s": count, "file": str(output), "format": form})
    else:
        print(f"Exported {counted(count, what)} to {output}")


# What is printed


def _zone() -> tzinfo | None:
    return times.zone(config.load().timezone)


def _minute(at: float, tz: tzinfo | None) -> str:
    return f"{datetime.fromtimestamp(at, tz):%Y-%m-%d %H:%M}"


def _shown(at: float) -> str:
    return _minute(at, _zone())


def print_table(
    rows: Sequence[Sequence[str]],
    less_important: Sequence[str] = _LESS_IMPORTANT,
    min_last: int = _MIN_LAST_COLUMN,
) -> None:
    """Print rows under their heads. On a terminal, the last column is cut to fit, columns that are
    less important are left out if there is no room, the first of them first, and then long names
    are cut.

    A head that begins with `>` is a column of numbers.
    """
    columns = [[printable(cell) for cell in column] for column in zip(*rows, strict=True)]
    room = None
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        for name in less_important:
            if _room(columns, width) < min_last:
                columns = [column for column in columns if column[0] != name]
        lacking = max(0, min_last - _room(columns, width))
        columns = [
            _narrowed(column, lacking) if column[0] == "listing" else column for column in columns
        ]
        room = max(_MIN_LAST_COLUMN, _room(columns, width))
    *aligned, last = columns
    cut = cut_middle if last[0] == "url" else shortened
    padded = [_padded(column) for column in aligned]
    for *cells, text in zip(*padded, last, strict=True):
        print("  ".join([*cells, cut(text, room or len(text))]).rstrip())


def _room(columns: Sequence[Sequence[str]], width: int) -> int:
    """The room that is left for the last column."""
    return width - sum(max(map(len, column)) + 2 for column in columns[:-1])


def _narrowed(column: Sequence[str], by: int) -> list[str]:
    """A column of names with fewer characters, but not too few."""
    width = max(_MIN_NAME, max(map(len, column)) - by)
    return [cut_middle(cell, width) for cell in column]


def _padded(column: Sequence[str]) -> list[str]:
    head, *cells = column
    width = max(len(head.lstrip(">")), *map(len, cells))
    if head.startswith(">"):
        return [cell.rjust(width) for cell in (head[1:], *cells)]
    return [cell.ljust(width) for cell in column]
