"""`listings duplicates`, `confirm` and `separate`: what is the same thing on several sites."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from crawler import config
from crawler.cli.options import Number, data_dir_option, json_option
from crawler.cli.output import existing_store, print_json, print_line, say
from crawler.config import program
from crawler.errors import InputError, UsageError
from crawler.logs import counted, printable
from crawler.lpm import LocalPersistenceManager

if TYPE_CHECKING:
    from crawler.db.listing_pairs import Decision, ListingPair, MatchedListing
    from crawler.listings.merged import Thing
    from crawler.sites import Sites

_PROGRESS_INTERVAL_S = 2.0
_MAX_SHOWN = 20
MIN_CONFIDENCE = 0.8


@click.command()
@click.option("--site", help="Only what this site has, too.")
@click.option(
    "--min-confidence",
    type=Number(0.5, 1.0),
    default=MIN_CONFIDENCE,
    show_default=True,
    help="Only pairs that are at least as sure, and those that were confirmed.",
)
@click.option("--merged", is_flag=True, help="One entry for each thing, with all its sources.")
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=_MAX_SHOWN,
    show_default=True,
    help="Show the first N; 0 shows all.",
)
@click.option("--again", is_flag=True, help="Compare all listings again, not only changed ones.")
@json_option
@data_dir_option
def duplicates(
    site: str | None,
    min_confidence: float,
    merged: bool,
    limit: int,
    again: bool,
    as_json: bool,
) -> None:
    """Show which listings of different sites are the same thing, how sure that is, and what their
    sites say differently.

    Listings that are new or have changed are compared first. --again is for a change of `match:`
    in a site's file.

    \b
    Example:
      python -m crawler listings duplicates --site imoti --min-confidence 0.9
      python -m crawler listings duplicates --merged --json
    """
    with existing_store() as lpm:
        known = known_sites()
        if site is not None:
            check_site(lpm, site)
        if again:
            lpm.listing_pairs.match_again()
        bring_up_to_date(lpm, known)
        _say_too_few(lpm)
        if merged:
            _show_merged(lpm, known, site, min_confidence, limit, as_json)
        else:
            _show_pairs(lpm, site, min_confidence, limit, as_json)


@click.command()
@click.argument("first", metavar="URL|ID|SITE:KEY")
@click.argument("second", metavar="URL|ID|SITE:KEY")
@json_option
@data_dir_option
def confirm(first: str, second: str, as_json: bool) -> None:
    """Note that two listings are the same thing. That stays, whatever changes on their sites.

    \b
    Example:
      python -m crawler listings confirm imoti:100005 domove:4000017
    """
    _decide(first, second, "same", as_json)


@click.command()
@click.argument("first", metavar="URL|ID|SITE:KEY")
@click.argument("second", metavar="URL|ID|SITE:KEY")
@json_option
@data_dir_option
def separate(first: str, second: str, as_json: bool) -> None:
    """Note that two listings are different things. They are not shown as duplicates any more.

    \b
    Example:
      python -m crawler listings separate imoti:100005 domove:4000017
    """
    _decide(first, second, "different", as_json)


def known_sites() -> "Sites":
    """Return the sites of today's configuration."""
    from crawler import sites

    settings = config.load()
    return sites.load(settings.config_dir, settings.rate)


def check_site(lpm: LocalPersistenceManager, site: str) -> None:
    """Raise `UsageError` for a site that has no listings, and whose file says of none."""
    try:
        lpm.listings.check_site(site)
    except UsageError:
        if not _sites_with_key(site):
            raise


def none_yet_text(site: str | None) -> str:
    """Say how to get listings of a site, or of any."""
    if names := _sites_with_key(site):
        of_site = f" of {site}" if site else ""
        return (
            f"There are no listings{of_site} yet. {program()} sites crawl {' '.join(names)} brings "
            f"some; {program()} replay --apply makes them of records that were collected before "
            "the file had the key `listings:`"
        )
    return (
        "There are no listings yet; the key `listings:` in a site's file says what they are "
        "(docs/LISTINGS.md)"
    )


def _sites_with_key(site: str | None) -> list[str]:
    """The sites, or this one, whose files have the key `listings:`."""
    try:
        known = known_sites()
    except InputError:
        return []
    found = (known.named(name) for name in known.names if site in (None, name))
    return [each.name for each in found if each and each.listings]


def _say_too_few(lpm: LocalPersistenceManager) -> None:
    sites = lpm.listings.sites()
    if not sites:
        say(none_yet_text(None))
    elif len(sites) == 1:
        say(f"only {sites[0]} has listings; duplicates are looked for on different sites")


def bring_up_to_date(lpm: LocalPersistenceManager, known: "Sites") -> None:
    """Compare the listings that are new or have changed."""
    if not lpm.can_write:
        say("the store cannot be written: changed listings are not compared")
        return
    from crawler.listings.matching import run_fingerprint_matching

    told = time.monotonic()

    def progress(done: int, total: int) -> bool:
        nonlocal told
        if time.monotonic() - told > _PROGRESS_INTERVAL_S:
            told = time.monotonic()
            say(f"compared {done:,} of {counted(total, 'listing')}")
        return True

    if run_fingerprint_matching(lpm, known, progress).is_busy:
        say("another process is comparing listings now: some pairs may be missing yet")


def _decide(first: str, second: str, decision: "Decision", as_json: bool) -> None:
    from crawler.listings.matching import compared_pair

    with existing_store() as lpm:
        ids = [lpm.listings.find(text) for text in (first, second)]
        [a, b] = [lpm.listing_pairs.listings([id_])[0] for id_ in ids]
        if a.id == b.id:
            raise UsageError(f"{first[:200]} and {second[:200]} are one listing, {_name(a)}")
        if a.site == b.site:
            raise UsageError(
                f"{_name(a)} and {_name(b)} are of one site; listings are compared across sites"
            )
        pair = compared_pair(lpm, known_sites(), a, b)
        lpm.listing_pairs.decide(pair, decision, lpm.now())
    if as_json:
        print_json({"a": pair.a, "b": pair.b, "decision": decision, "confidence": pair.confidence})
        return
    meaning = "the same thing" if decision == "same" else "different things"
    print(f"{printable(_name(a))} and {printable(_name(b))} are {meaning}")


def _show_pairs(
    lpm: LocalPersistenceManager,
    site: str | None,
    min_confidence: float,
    limit: int,
    as_json: bool,
) -> None:
    pairs = lpm.listing_pairs.pairs(min_confidence, site)
    shown = pairs[:limit] if limit else pairs
    ids = {id_ for pair in shown for id_ in (pair.a, pair.b)}
    rows = {row.id: row for row in lpm.listing_pairs.listings(ids)}
    if as_json:
        items = [_pair_facts(pair, rows[pair.a], rows[pair.b]) for pair in shown]
        print_json({"pairs": len(pairs), "items": items})
        return
    print(f"{counted(len(pairs), 'pair')} of listings: the same thing on two sites")
    for pair in shown:
        _print_pair(pair, rows[pair.a], rows[pair.b])
    _say_more(len(pairs) - len(shown), "pair")


def _pair_facts(pair: "ListingPair", a: "MatchedListing", b: "MatchedListing") -> dict[str, Any]:
    return {
        "a": _listing_facts(a),
        "b": _listing_facts(b),
        "confidence": pair.confidence,
        "reasons": pair.reasons,
        "discrepancies": pair.discrepancies,
        "decision": pair.decision,
    }


def _listing_facts(row: "MatchedListing") -> dict[str, Any]:
    return {
        "listing": row.id,
        "site": row.site,
        "key": row.key,
        "url": row.url,
        "price": row.price,
        "currency": row.currency,
        "gone": row.is_gone,
    }


def _print_pair(pair: "ListingPair", a: "MatchedListing", b: "MatchedListing") -> None:
    from crawler.analyze.listing_report import confidence_text

    sure = confidence_text(pair.confidence) + ", confirmed" * (pair.decision == "same")
    print_line(f"{sure}  {printable(_name(a))}  {printable(_name(b))}", indent=6)
    for row in (a, b):
        print(f"    {printable(row.url)}")
    print_line(f"    because: {_texts(_for(pair.reasons))}", indent=8)
    if against := [name for name, bits in pair.reasons.items() if bits < 0]:
        print_line(f"    against it: {_texts(against)}", indent=8)
    for each in pair.discrepancies:
        print_line(f"    differs: {_difference(each)}", indent=8)


def _for(reasons: dict[str, float]) -> list[str]:
    """Return what speaks for a pair, the strongest first."""
    return sorted((name for name in reasons if reasons[name] > 0), key=lambda it: -reasons[it])


def _texts(names: Sequence[str]) -> str:
    return printable(", ".join(names) or "-")


def _show_merged(
    lpm: LocalPersistenceManager,
    known: "Sites",
    site: str | None,
    min_confidence: float,
    limit: int,
    as_json: bool,
) -> None:
    from crawler.listings.merged import merged

    things = merged(lpm, known, min_confidence, site)
    shown = things[:limit] if limit else things
    if as_json:
        print_json({"things": len(things), "items": shown})
        return
    print(f"{counted(len(things), 'thing')} on several sites")
    for thing in shown:
        _print_thing(thing)
    _say_more(len(things) - len(shown), "thing")


def _print_thing(thing: "Thing") -> None:
    from crawler.analyze.listing_report import confidence_text

    names: list[str] = []
    for name in (thing.title, thing.locality, thing.address):
        if name and name not in ", ".join(names):  # titles often say it, too
            names.append(name)
    price = _price(thing.price, thing.currency)
    values = [
        f"{name} {_value(value)}" for name, value in thing.values.items() if value is not None
    ]
    text = ", ".join([*names, price, *values])
    print_line(f"{confidence_text(thing.confidence)}  {printable(text)}", indent=6)
    for it in thing.sources:
        own = _price(it.price, it.currency)
        gone = ", gone" if it.gone else ""
        name = printable(f"{it.site}:{it.key}")
        print_line(f"    {name}  {printable(own)}{gone}  {printable(it.url)}", indent=8)
    for each in thing.discrepancies:
        print_line(f"    differs: {_difference(each)}", indent=8)


def _difference(found: Mapping[str, Any]) -> str:
    return f"{printable(found['field'])} {_number(found['a'])} and {_number(found['b'])}"


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else _number(value)


def _number(value: float) -> str:
    return f"{value:,.10g}"


def _price(amount: float | None, currency: str | None) -> str:
    if amount is None:
        return "no price"
    return f"{_number(amount)} {currency or ''}".strip()


def _say_more(count: int, what: str) -> None:
    if count:
        say(f"{counted(count, f'more {what}')}; --limit 0 shows all")


def _name(row: "MatchedListing") -> str:
    return f"{row.site}:{row.key}"
