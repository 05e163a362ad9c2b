"""Keeps the pairs of a store up to date: compares what is new or has changed with the rest."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from crawler.db.listing_pairs import FoundPair, MatchedListing, StoredImage
from crawler.listings.duplicates import (
    MAX_BLOCK,
    MAX_COMPARED,
    MAX_SHARING,
    Candidate,
    Pair,
    blocks_of,
    compare,
    compare_all,
    shared_blocks,
    without_common,
)
from crawler.listings.fingerprint import Fingerprint, fingerprint
from crawler.listings.images import can_look, dhash
from crawler.locks import open_lock, try_lock
from crawler.lpm import LocalPersistenceManager
from crawler.sites import Sites
from crawler.sites.listingfile import Match

BATCH = 200
"""Listings that are compared between two commits."""
MAX_REMEMBERED = 200_000
"""Fingerprints that are kept in memory: some 100 MB."""


class Matched(msgspec.Struct, frozen=True):
    """What `run_fingerprint_matching` did."""

    compared: int = 0
    """Listings that were compared with the rest."""
    is_busy: bool = False
    """Whether another process is doing it, so that nothing was done here."""


def run_fingerprint_matching(
    lpm: LocalPersistenceManager,
    sites: Sites,
    progress: Callable[[int, int], bool] = lambda done, total: True,
    batch: int = BATCH,
) -> Matched:
    """Compare all listings that are new or have changed with those of other sites.

    May be killed at any moment: each batch is stored at once, and what was not is compared next
    time. `progress` is told how many are done, and of how many; it says whether to go on.
    """
    total = lpm.listing_pairs.to_match()
    if not total:
        return Matched()
    with _only_one(lpm) as is_ours:
        if not is_ours:
            return Matched(is_busy=True)
        return Matched(compared=_Matching(lpm, sites).run(progress, total, batch))


def match_for(
    lpm: LocalPersistenceManager,
    sites: Callable[[], Sites],
    limit_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Compare what there is to compare, for a limited time; the rest is for the next call.

    The sites are read only if there is something to compare.
    """
    if lpm.listing_pairs.to_match():
        end = clock() + limit_s
        run_fingerprint_matching(lpm, sites(), lambda done, total: clock() < end)


@contextmanager
def _only_one(lpm: LocalPersistenceManager) -> Iterator[bool]:
    """Two processes at once would compare the same listings, and store what one read too early."""
    lock = open_lock(lpm.run / "matching.lock")
    try:
        yield try_lock(lock)
    finally:
        os.close(lock)


class _Matching:
    """One run over what is to be compared."""

    def __init__(self, lpm: LocalPersistenceManager, sites: Sites) -> None:
        self._lpm, self._pairs = lpm, lpm.listing_pairs
        self._fingerprints = Fingerprints(lpm, sites)

    def run(self, progress: Callable[[int, int], bool], total: int, batch: int) -> int:
        """Compare batch by batch; returns how many listings were compared."""
        done = last = 0
        while rows := self._pairs.next_to_match(last, batch):
            self._match(rows)
            last, done = rows[-1].id, done + len(rows)
            if not progress(done, max(done, total)):
                break
        return done

    def _match(self, rows: Sequence[MatchedListing]) -> None:
        """Compare some listings. All of them get their blocks first, to find each other."""
        for row in rows:
            self._fingerprints.forget(row.id)
        own = {each.id: each for each in self._fingerprints.of(rows)}
        blocks = {id_: blocks_of(each.fingerprint) for id_, each in own.items()}
        self._pairs.keep_blocks(blocks, self._fingerprints.new_looks())
        compared = []
        for row in rows:
            ids = self._pairs.candidates(row, blocks[row.id], MAX_BLOCK, MAX_COMPARED)
            listing = self._telling(own[row.id])
            decided = self._pairs.decided(row.id)
            others = [id_ for id_ in ids if id_ not in decided]
            found = [*compare_all(listing, self._fingerprints.with_ids(others))]
            # These stay whatever comes of it, and must show what their listings say now.
            found += [_compared(listing, it) for it in self._fingerprints.with_ids(decided)]
            compared.append((row, [_as_found(pair) for pair in found]))
        self._pairs.keep(compared, self._lpm.now())

    def _telling(self, listing: Candidate) -> Candidate:
        """A listing without the images and the text that many others have, too."""
        blocks = shared_blocks(listing.fingerprint)
        if not blocks:
            return listing
        crowded = self._pairs.crowded(blocks, MAX_SHARING)
        return listing._replace(fingerprint=without_common(listing.fingerprint, crowded))


class Fingerprints:
    """The fingerprints of a store's listings, made as they are needed."""

    def __init__(self, lpm: LocalPersistenceManager, sites: Sites) -> None:
        self._lpm, self._sites = lpm, sites
        self._known: dict[int, Candidate] = {}
        self._looks: dict[str, str | None] = {}

    def forget(self, id_: int) -> None:
        """Make a fingerprint anew the next time."""
        self._known.pop(id_, None)

    def with_ids(self, ids: Sequence[int]) -> list[Candidate]:
        """The listings with these numbers, as far as they are there."""
        missing = [id_ for id_ in ids if id_ not in self._known]
        if missing:
            self._make_room(len(missing))
            self.of(self._lpm.listing_pairs.listings(missing))
        return [self._known[id_] for id_ in ids if id_ in self._known]

    def of(self, rows: Sequence[MatchedListing]) -> list[Candidate]:
        """These listings with their fingerprints."""
        for row in rows:
            if row.id not in self._known:
                made = self._fingerprint(row)
                self._known[row.id] = Candidate(row.id, row.site, made)
        return [self._known[row.id] for row in rows]

    def new_looks(self) -> dict[str, str | None]:
        """What was found out about images since the last call, by their content's hash."""
        found, self._looks = self._looks, {}
        return found

    def _make_room(self, count: int) -> None:
        excess = len(self._known) + count - MAX_REMEMBERED
        for id_ in list(self._known)[: max(0, excess)]:
            del self._known[id_]

    def _fingerprint(self, row: MatchedListing) -> Fingerprint:
        match = match_of(self._sites, row.site)
        images = self._lpm.listing_pairs.images(row.task)
        looks = [self._look(image) for image in images]
        return fingerprint(
            decoded(row.record),
            match,
            row.price,
            row.currency,
            (image.sha256 for image in images),
            (int(look, 16) for look in looks if look),
        )

    def _look(self, image: StoredImage) -> str | None:
        """What a stored image looks like; found out once for each content."""
        if image.is_known:
            return image.dhash
        if image.sha256 not in self._looks and can_look():
            page = self._lpm.pages.of_result(image.task)
            encoded = page is None or "\ncontent-encoding:" in page[0].lower()
            self._looks[image.sha256] = None if encoded or page is None else dhash(page[1])
        return self._looks.get(image.sha256)


def match_of(sites: Sites, name: str) -> Match:
    """Return the fields that listings of a site are compared by."""
    site = sites.named(name)
    return site.listings.match if site and site.listings else Match()


def decoded(record: str) -> dict[str, Any]:
    """Return a stored record; an empty one if it is damaged."""
    try:
        found = msgspec.json.decode(record)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _as_found(pair: Pair) -> FoundPair:
    it = pair.comparison
    return FoundPair(pair.a, pair.b, it.confidence, it.reasons, it.discrepancies)


def _compared(one: Candidate, other: Candidate) -> Pair:
    """Compare two listings, whatever comes of it."""
    a, b = sorted((one, other), key=lambda it: it.id)
    return Pair(a.id, b.id, compare(a.fingerprint, b.fingerprint))


def compared_pair(
    lpm: LocalPersistenceManager, sites: Sites, first: MatchedListing, second: MatchedListing
) -> FoundPair:
    """Compare two listings, whatever comes of it."""
    return _as_found(_compared(*Fingerprints(lpm, sites).of([first, second])))
