"""The merged view: one entry for each thing, with all its sources."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from crawler.db.listing_pairs import ListingPair, MatchedListing
from crawler.db.listing_views import ListingFilter
from crawler.listings.fingerprint import BGN_PER_EUR, Fingerprint, joined
from crawler.listings.matching import Fingerprints, decoded, match_of
from crawler.lpm import LocalPersistenceManager
from crawler.sites import Sites

_MAX_TEXT_CHARS, _GROUPS_PER_READ = 200, 200
VALUES = ("kind", "area", "rooms", "floor", "floors")


class Source(msgspec.Struct, frozen=True):
    """One of the listings of a thing."""

    listing: int
    site: str
    key: str
    url: str
    price: float | None
    currency: str | None
    gone: bool


class Thing(msgspec.Struct, frozen=True):
    """What several listings are the same of."""

    title: str | None
    """What the first source that says it calls it; so are `locality` and `address`."""
    locality: str | None
    address: str | None
    sources: tuple[Source, ...]
    confidence: float
    """That of its weakest pair."""
    price: float | None
    """The lowest of the sources that are still there."""
    currency: str | None
    values: dict[str, Any]
    """What most sources say; of several values, that of the first source."""
    discrepancies: tuple[dict[str, Any], ...]
    """What two sources say differently, with their numbers as `a` and `b` and the values."""


def components(
    pairs: Iterable[ListingPair], separated: Iterable[tuple[int, int]]
) -> list[list[int]]:
    """Return the listings that are the same thing by these pairs, directly or through others.

    What a person has confirmed comes first, then the surest. Two listings that a person has
    separated never come together, not even through others.
    """
    apart: dict[int, set[int]] = {}
    for a, b in separated:
        apart.setdefault(a, set()).add(b)
        apart.setdefault(b, set()).add(a)
    groups: dict[int, set[int]] = {}
    ordered = sorted(pairs, key=lambda it: (it.decision is None, -it.confidence, it.a, it.b))
    for pair in ordered:
        first = groups.setdefault(pair.a, {pair.a})
        second = groups.setdefault(pair.b, {pair.b})
        if first is second or any(apart.get(id_, set()) & second for id_ in first):
            continue
        first |= second
        for id_ in second:
            groups[id_] = first
    found = {id(group): sorted(group) for group in groups.values() if len(group) > 1}
    return sorted(found.values())


class _Merging:
    """The groups of a store's listings, and what is known of their members."""

    def __init__(self, lpm: LocalPersistenceManager, sites: Sites, min_confidence: float) -> None:
        self._lpm, self._sites = lpm, sites
        pairs = lpm.listing_pairs.pairs(min_confidence)
        self.groups = components(pairs, lpm.listing_pairs.separated())
        self._pairs: dict[int, list[ListingPair]] = {}
        for pair in pairs:
            self._pairs.setdefault(pair.a, []).append(pair)

    def things(self, groups: Iterable[Sequence[int]], site: str | None = None) -> Iterator[Thing]:
        """The things that these groups of listings are; of one site, or of all."""
        waiting = iter(groups)
        while some := list(islice(waiting, _GROUPS_PER_READ)):
            ids = (id_ for group in some for id_ in group)
            rows = {row.id: row for row in self._lpm.listing_pairs.listings(ids)}
            known = Fingerprints(self._lpm, self._sites)
            for group in some:
                members = [rows[id_] for id_ in group if id_ in rows]
                if members and (site is None or any(row.site == site for row in members)):
                    prints = [each.fingerprint for each in known.of(members)]
                    yield _thing(members, prints, self._inside(group), self._sites)

    def _inside(self, group: Sequence[int]) -> list[ListingPair]:
        """The pairs of a group."""
        own = set(group)
        return [pair for id_ in group for pair in self._pairs.get(id_, []) if pair.b in own]


def merged(
    lpm: LocalPersistenceManager, sites: Sites, min_confidence: float, site: str | None = None
) -> list[Thing]:
    """Return the things that several listings are of, the surest first."""
    merging = _Merging(lpm, sites, min_confidence)
    found = merging.things(merging.groups, site)
    return sorted(found, key=lambda thing: (-thing.confidence, -len(thing.sources)))


def each_thing(
    lpm: LocalPersistenceManager, sites: Sites, min_confidence: float, wanted: ListingFilter
) -> Iterator[Thing]:
    """Return the things that the wanted listings are of, each once with all its sources, also those
    that only one site has; those with the newest of these listings first."""
    merging = _Merging(lpm, sites, min_confidence)
    group_of = {id_: group for group in merging.groups for id_ in group}
    done: set[int] = set()

    def groups() -> Iterator[Sequence[int]]:
        for id_ in lpm.listings.ids(wanted):
            group = group_of.get(id_, [id_])
            if len(group) == 1 or group[0] not in done:
                yield group
            if len(group) > 1:
                done.add(group[0])

    return merging.things(groups())


def _thing(
    rows: Sequence[MatchedListing],
    prints: Sequence[Fingerprint],
    pairs: Sequence[ListingPair],
    sites: Sites,
) -> Thing:
    best = min((row for row in rows if row.price is not None), key=_cost, default=None)
    undecided = [pair.confidence for pair in pairs if pair.decision is None]
    named = [(decoded(row.record), match_of(sites, row.site)) for row in rows]
    return Thing(
        title=_first(joined(record, match.text[:1], _MAX_TEXT_CHARS) for record, match in named),
        locality=_first(joined(record, match.locality, _MAX_TEXT_CHARS) for record, match in named),
        address=_first(joined(record, match.address, _MAX_TEXT_CHARS) for record, match in named),
        sources=tuple(
            Source(row.id, row.site, row.key, row.url, row.price, row.currency, row.is_gone)
            for row in rows
        ),
        confidence=min(undecided, default=1.0),
        price=best.price if best else None,
        currency=best.currency if best else None,
        values={name: _most_common(prints, name) for name in VALUES},
        discrepancies=tuple(
            {"listings": (pair.a, pair.b), **each} for pair in pairs for each in pair.discrepancies
        ),
    )


def _most_common(prints: Sequence[Fingerprint], name: str) -> Any:
    known = [value for each in prints if (value := getattr(each, name)) not in (None, "")]
    return Counter(known).most_common(1)[0][0] if known else None


def _first(texts: Iterable[str]) -> str | None:
    """Return the first text that says something, on one line."""
    return next((" ".join(text.split()) for text in texts if text.strip()), None)


def _cost(row: MatchedListing) -> tuple[bool, float]:
    """Order by price, those that are still there first."""
    price = row.price or 0.0
    return row.is_gone, price / BGN_PER_EUR if row.currency == "BGN" else price
