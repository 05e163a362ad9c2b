"""Listings of different sites that may be the same thing, and what a person said about them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from typing import Any, Literal, NamedTuple

import msgspec

from crawler.config import failpoint
from crawler.db.connection import Database, writing
from crawler.db.store import LISTED, Part, as_json
from crawler.errors import UsageError

Decision = Literal["same", "different"]
MAX_PAIRS = 20
"""Pairs that a listing keeps beside those that a person decided: the surest. Many listings that
look the same would have a pair for each two of them."""


class MatchedListing(NamedTuple):
    """What a listing is compared by, and how people know it."""

    id: int
    site: str
    key: str
    url: str
    record: str
    price: float | None
    currency: str | None
    task: int
    gone_at: float | None
    sold_at: float | None
    matched: int
    """Below 1: to be compared; every reason to do so lowers it."""

    @property
    def is_gone(self) -> bool:
        """Whether it is not offered any more."""
        return self.gone_at is not None or self.sold_at is not None


class StoredImage(NamedTuple):
    """An image of a listing that was fetched, and what it looks like, if that is known."""

    task: int
    """Whose page it is."""
    sha256: str
    is_known: bool
    dhash: str | None


class FoundPair(NamedTuple):
    """A pair as the comparison found it; `a` is the lower number."""

    a: int
    b: int
    confidence: float
    reasons: Mapping[str, float]
    discrepancies: Sequence[Any]


class ListingPair(NamedTuple):
    """A pair as it is stored."""

    a: int
    b: int
    confidence: float
    reasons: dict[str, float]
    discrepancies: list[dict[str, Any]]
    matched_at: float
    decision: Decision | None
    decided_at: float | None


_LISTING = """l.id, l.site, l.key, l.url, l.record, l.price, l.currency, l.task, l.gone_at,
    l.sold_at, l.matched"""
_PAIR = "a, b, confidence, reasons, discrepancies, matched_at, decision, decided_at"
_PAIRS_OF = """
    SELECT a, b, confidence, decision, b AS other FROM listing_pairs WHERE a = ?1 UNION ALL
    SELECT a, b, confidence, decision, a FROM listing_pairs WHERE b = ?1"""
_NEWEST_IMAGE = """SELECT max(+i.id) FROM tasks i JOIN results ir ON ir.task = i.id
    WHERE i.url_key = {} AND ir.content_type LIKE 'image/%'"""
"""The last task that has fetched an image; + keeps SQLite from reading all tasks in order."""
MAX_NAMING = 1_000
"""Records whose listings an image marks; what more of them name, such as a logo, tells nothing."""
ONE_PAGE = "({0}.url_key = {1}.url_key AND length({0}.url_key) > 0)"
"""Whether two listings are of one page: a site that was renamed has left one of them."""


class ListingPairs(Part):
    """Reads and writes pairs of listings."""

    # What is to be compared.

    def to_match(self) -> int:
        """How many listings are new or changed since they were compared."""
        return int(self._db.value("SELECT count(*) FROM listings WHERE matched < 1"))

    def next_to_match(self, after: int, limit: int) -> list[MatchedListing]:
        """The next listings that are to be compared, in the order of their numbers."""
        rows = self._db.all(
            f"""SELECT {_LISTING} FROM listings l WHERE matched < 1 AND id > ?
                ORDER BY id LIMIT ?""",
            (after, limit),
        )
        return [MatchedListing(*row) for row in rows]

    def listings(self, ids: Iterable[int]) -> list[MatchedListing]:
        """These listings, as far as they are there."""
        sql = f"SELECT {_LISTING} FROM listings l WHERE id {LISTED}"
        return [MatchedListing(*row) for row in self._db.all(sql, (as_json(sorted(ids)),))]

    def candidates(
        self, listing: MatchedListing, blocks: Sequence[int], max_block: int, most: int
    ) -> list[int]:
        """The listings of other sites that share a block with this one, unless it is too large.
        Without those of the same page.

        At most so many: those that share the most blocks, and then those with the nearest numbers.
        Without those whose own turn is still to come: they will be compared with this one then.
        """
        one_page = ONE_PAGE.format("own", "l")
        return self._db.column(
            f"""SELECT o.listing
               FROM json_each(?1) k
               CROSS JOIN listing_blocks o ON o.block = k.value
               CROSS JOIN listings l ON l.id = o.listing
               WHERE l.site <> ?2 AND NOT (l.matched < 1 AND l.id > ?3)
                   AND NOT EXISTS (SELECT 1 FROM listings own WHERE own.id = ?3 AND {one_page})
                   AND ?4 >= (SELECT count(*) FROM
                       (SELECT 1 FROM listing_blocks c WHERE c.block = k.value LIMIT ?4 + 1))
               GROUP BY 1 ORDER BY count(*) DESC, abs(o.listing - ?3), 1 LIMIT ?5""",
            (as_json(blocks), listing.site, listing.id, max_block, most),
        )

    def decided(self, listing: int) -> list[int]:
        """The listings whose pairs with this one a person has decided."""
        sql = f"SELECT other FROM ({_PAIRS_OF}) WHERE decision IS NOT NULL ORDER BY other"
        return self._db.column(sql, (listing,))

    def crowded(self, blocks: Sequence[int], most: int) -> set[int]:
        """Those of the blocks that have more listings."""
        return set(
            self._db.column(
                """SELECT k.value FROM json_each(?1) k WHERE ?2 < (SELECT count(*) FROM
                       (SELECT 1 FROM listing_blocks WHERE block = k.value LIMIT ?2 + 1))""",
                (as_json(blocks), most),
            )
        )

    def images(self, task: int) -> list[StoredImage]:
        """The images that the record of a task names, as they were fetched last, by whatever
        crawl: the one that has seen the listing last may not have fetched them yet."""
        rows = self._db.all(
            f"""SELECT DISTINCT r.task, r.body_sha256, k.sha256 IS NOT NULL, k.dhash
                FROM result_files f
                JOIN results r ON r.task = ({_NEWEST_IMAGE.format("f.url_key")})
                LEFT JOIN image_looks k ON k.sha256 = r.body_sha256
                WHERE f.task = ? ORDER BY f.position LIMIT 50""",
            (task,),
        )
        return [
            StoredImage(task, digest, bool(known), dhash) for task, digest, known, dhash in rows
        ]

    # What was found.

    def keep_blocks(
        self, blocks: Mapping[int, Sequence[int]], looks: Mapping[str, str | None]
    ) -> None:
        """Store the blocks of listings, and what images look like.

        A power cut may undo it, but not after `keep` has stored that these were compared.
        """
        db = self._db
        with writing(db):
            db.executemany(
                "INSERT OR IGNORE INTO image_looks (sha256, dhash) VALUES (?, ?)", looks.items()
            )
            for listing, numbers in blocks.items():
                before = set(
                    db.column("SELECT block FROM listing_blocks WHERE listing = ?", (listing,))
                )
                db.executemany(
                    "DELETE FROM listing_blocks WHERE block = ? AND listing = ?",
                    [(block, listing) for block in before.difference(numbers)],
                )
                db.executemany(
                    "INSERT INTO listing_blocks (block, listing) VALUES (?, ?)",
                    [(block, listing) for block in numbers if block not in before],
                )
        failpoint("blocks-kept")

    def keep(
        self, compared: Sequence[tuple[MatchedListing, Sequence[FoundPair]]], now: float
    ) -> None:
        """Store the surest pairs of these listings, and that they were compared.

        A listing that has changed since it was read, or whose image was fetched since, stays as it
        is, and is compared again.
        """
        db = self._durable
        with writing(db):
            for listing, pairs in compared:
                is_same = db.value(
                    """UPDATE listings SET matched = 1
                       WHERE id = ? AND record IS ? AND price IS ? AND currency IS ?
                           AND matched = ? RETURNING 1""",
                    (listing.id, listing.record, listing.price, listing.currency,
                     listing.matched),
                )  # fmt: skip
                if is_same:
                    _replace_pairs(db, listing.id, pairs, now)
            failpoint("pairs-keeping")
        failpoint("pairs-kept")

    def match_again(self) -> None:
        """Have all listings compared again, after a change of what is compared."""
        with writing(self._durable):
            self._durable.execute("UPDATE listings SET matched = 0 WHERE matched = 1")

    def decide(self, pair: FoundPair, decision: Decision, now: float) -> None:
        """Store what a person said about a pair; it stays, whatever is compared later.

        Raises `UsageError` for what contradicts other decisions: nothing can be the same thing as
        two that are different.
        """
        with writing(self._durable):
            if other := _contradicted(self._durable, pair.a, pair.b, decision):
                raise UsageError(_contradiction_text(self._durable, *other, decision))
            _store_pair(self._durable, pair, now)
            self._durable.execute(
                "UPDATE listing_pairs SET decision = ?, decided_at = ? WHERE a = ? AND b = ?",
                (decision, now, pair.a, pair.b),
            )

    # What there is.

    def pairs(
        self, min_confidence: float, site: str | None = None, limit: int = -1
    ) -> list[ListingPair]:
        """The pairs that count as the same thing, the surest first; of one site, or of all.

        Two listings may have come to be of one page since they were compared.
        """
        is_found = f"confidence >= ?1 AND NOT {ONE_PAGE.format('la', 'lb')}"
        rows = self._db.all(
            f"""SELECT {_PAIR} FROM listing_pairs
                JOIN listings la ON la.id = a JOIN listings lb ON lb.id = b
                WHERE (decision = 'same' OR (decision IS NULL AND {is_found}))
                    AND (?2 IS NULL OR la.site = ?2 OR lb.site = ?2)
                ORDER BY confidence DESC, a, b LIMIT ?3""",
            (min_confidence, site, limit),
        )
        return [_as_pair(row) for row in rows]

    def separated(self) -> Iterator[tuple[int, int]]:
        """The pairs that a person has separated."""
        sql = "SELECT a, b FROM listing_pairs WHERE decision = 'different'"
        return ((a, b) for a, b in self._db.each(sql))


# Functions that are part of a transaction


def note_image(db: Database, task: int) -> None:
    """Have the listings compared again whose records name a file that was fetched, if it is an
    image, and another one than before."""
    row = db.one(
        """SELECT t.url_key, r.body_sha256 FROM tasks t JOIN results r ON r.task = t.id
           WHERE t.id = ? AND r.content_type LIKE 'image/%'""",
        (task,),
    )
    if row is None:
        return
    url_key, digest = row
    other = db.value(f"{_NEWEST_IMAGE.format('?')} AND i.id <> ?", (url_key, task)) or 0
    before = db.value("SELECT body_sha256 FROM results WHERE task = ?", (other,))
    if task > other and digest != before:
        db.execute(
            """UPDATE listings SET matched = min(matched, 1) - 1 WHERE task IN (
                   SELECT task FROM result_files WHERE url_key = ? ORDER BY task DESC LIMIT ?)""",
            (url_key, MAX_NAMING),
        )


def _contradicted(db: Database, a: int, b: int, decision: Decision) -> tuple[int, int] | None:
    """Return a pair that a person decided otherwise than this decision would have it."""
    if decision == "different":
        # What is confirmed with b, and leads to a without it: separating it from b helps.
        leading = _confirmed(db, a, (a, b), end=b) & set(_confirmed_directly(db, b))
        return next(((b, one) for one in sorted(leading - {a})), None)
    first, second = _confirmed(db, a, (a, b)), _confirmed(db, b, (a, b))
    for one in sorted(first):
        for other in db.column(
            f"SELECT other FROM ({_PAIRS_OF}) WHERE decision = 'different' ORDER BY other", (one,)
        ):
            if other in second and {one, other} != {a, b}:
                return one, other
    return None


def _confirmed(db: Database, listing: int, but: tuple[int, int], end: int = 0) -> set[int]:
    """Return a listing and those that people confirmed as the same thing, also through others, but
    not through `end`; one pair is left out."""
    found, waiting = {listing}, [listing]
    while waiting:
        here = waiting.pop()
        others = {
            other for other in _confirmed_directly(db, here) if {here, other} != set(but)
        } - found
        found |= others
        waiting += others - {end}
    return found


def _confirmed_directly(db: Database, listing: int) -> list[int]:
    sql = f"SELECT other FROM ({_PAIRS_OF}) WHERE decision = 'same'"
    return db.column(sql, (listing,))


def _contradiction_text(db: Database, one: int, other: int, decision: Decision) -> str:
    names = [
        db.value("SELECT site || ':' || key FROM listings WHERE id = ?", (id_,))
        for id_ in (one, other)
    ]
    if decision == "different":
        return (
            f"both were confirmed as the same thing as {names[1]}; separate that from {names[0]} "
            "first"
        )
    return (
        f"{' and '.join(names)} were separated, and would be the same thing through these; confirm "
        "them first, or separate a pair that leads there"
    )


def _replace_pairs(db: Database, listing: int, pairs: Sequence[FoundPair], now: float) -> None:
    """Store the pairs of a listing, and drop those that it has no more, if nobody decided them.

    A listing whose turn is still to come, with a higher number, drops its own.
    """
    before = db.all(
        f"""SELECT a, b, decision IS NOT NULL, o.matched < 1 AND o.id > ?1
            FROM ({_PAIRS_OF}) JOIN listings o ON o.id = other""",
        (listing,),
    )
    decided = {(a, b) for a, b, is_decided, _ in before if is_decided}
    free = [pair for pair in pairs if (pair.a, pair.b) not in decided]
    best = nsmallest(MAX_PAIRS, free, key=lambda it: (-it.confidence, it.b - it.a, it.a))
    kept = decided | {(pair.a, pair.b) for pair in best}
    db.executemany(
        "DELETE FROM listing_pairs WHERE a = ? AND b = ?",
        [(a, b) for a, b, _, is_to_come in before if (a, b) not in kept and not is_to_come],
    )
    for pair in pairs:
        if (pair.a, pair.b) in kept:
            _store_pair(db, pair, now)
    for each in {listing}.union(*((pair.a, pair.b) for pair in best)):
        _drop_excess(db, each)


def _drop_excess(db: Database, listing: int) -> None:
    """Keep the surest pairs of a listing; of equally sure ones, those with the nearest numbers, so
    that many that look the same share them evenly."""
    db.execute(
        f"""DELETE FROM listing_pairs WHERE (a, b) IN (
                SELECT a, b FROM ({_PAIRS_OF}) WHERE decision IS NULL
                ORDER BY confidence DESC, b - a, a LIMIT -1 OFFSET ?2)""",
        (listing, MAX_PAIRS),
    )


def _store_pair(db: Database, pair: FoundPair, now: float) -> None:
    db.execute(
        """INSERT INTO listing_pairs (a, b, confidence, reasons, discrepancies, matched_at)
           VALUES (?, ?, ?, ?, ?, ?)
           ON CONFLICT (a, b) DO UPDATE SET confidence = excluded.confidence,
               reasons = excluded.reasons, discrepancies = excluded.discrepancies,
               matched_at = excluded.matched_at""",
        (pair.a, pair.b, pair.confidence, as_json(pair.reasons), as_json(pair.discrepancies), now),
    )


def _as_pair(row: tuple[Any, ...]) -> ListingPair:
    a, b, confidence, reasons, discrepancies, *rest = row
    decoded = msgspec.json.decode(reasons), msgspec.json.decode(discrepancies)
    return ListingPair(a, b, confidence, *decoded, *rest)
