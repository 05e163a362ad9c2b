"""Tells how likely two listings are the same thing, and finds those that may be.

Each part of two fingerprints that both have gives evidence in bits: n bits make the odds 2ⁿ times
as high, or as low where they contradict each other. What one of them lacks says nothing.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from crawler.listings.fingerprint import Fingerprint
from crawler.listings.images import NEAR

DEFAULT_CONFIDENCE = 0.8
"""From here on a pair counts as the same thing."""
MIN_CONFIDENCE = 0.5
"""Pairs below are not kept."""
PRIOR = -11.5
"""Bits before anything is compared: few of all pairs are the same thing."""
PRICE_DIFFERS, AREA_DIFFERS = 0.05, 0.10
"""From here on a difference between two sources is a discrepancy."""
MAX_BLOCK = 2_000
"""A block with more listings tells nothing: it is not looked into."""
MAX_COMPARED = 300
"""Listings that one is compared with: those that share the most blocks with it."""

MAX_SHARING = 10
"""An image or a text that more listings have, such as a logo or boilerplate, is no evidence."""

_SAME_LOCALITY, _OTHER_LOCALITY = 2.0, -8.0
_SAME_KIND, _OTHER_KIND = 1.0, -8.0
_SAME_ADDRESS, _LIKE_ADDRESS, _OTHER_ADDRESS = 3.0, 1.5, -6.0
_OTHER_NUMBER = -5.0
_AREA = ((0.003, 4.5), (0.031, 1.5), (0.07, -1.0), (AREA_DIFFERS, -2.5), (0.2, -5.0))
_PRICE = ((0.003, 5.0), (0.031, 3.0), (PRICE_DIFFERS, 0.5), (0.1, -2.0), (0.25, -3.0))
"""Evidence of two numbers that differ by less than this part of the greater one."""
_OTHER_AREA, _OTHER_PRICE = -9.0, -6.0
_ROUNDED_AREAS = ((1.0, 0.6, 4.5), (5.0, 2.6, 3.0))
"""Evidence of two areas of which one is rounded to the first number, and that differ by up to the
second."""
_SAME_ROOMS, _NEAR_ROOMS, _OTHER_ROOMS = 1.5, -4.0, -7.0
_SAME_FLOOR, _OTHER_FLOOR = 2.5, -6.0
_SAME_FLOORS, _NEAR_FLOORS, _OTHER_FLOORS = 2.0, -2.0, -5.0
_TEXT = ((3, 5.0), (8, 3.0), (14, 1.0))
"""Evidence of two texts whose hashes differ in up to so many bits."""
_IMAGES = (0.0, 5.0, 8.0)
"""Evidence of no image, one, and more that both have."""
_ALIKE = 0.85
"""Words at least as similar are one word in two spellings."""
_AREA_STEP, _PRICE_STEP = 0.15, 0.2
"""Widths of the steps of blocks, in natural logarithms."""
_MAX_BLOCK_NAMES = 3
_BANDS, _BAND_BITS = 4, 16

WordRatio = Callable[[str, str], float]


class Discrepancy(msgspec.Struct, frozen=True):
    """What two sources of one thing say differently."""

    field: str
    a: float
    b: float


class Comparison(msgspec.Struct, frozen=True):
    """How likely two listings are the same thing, and why."""

    confidence: float
    reasons: dict[str, float]
    """Bits of evidence by part; negative ones speak against it."""
    discrepancies: tuple[Discrepancy, ...]


class Candidate(NamedTuple):
    """A listing as it is compared; listings of one site are never compared."""

    id: int
    site: str
    fingerprint: Fingerprint


class Pair(NamedTuple):
    """Two listings that may be the same thing; `a` is the lower number."""

    a: int
    b: int
    comparison: Comparison


def find_pairs(listings: Iterable[Candidate]) -> Iterator[Pair]:
    """Yield all pairs of these listings that may be the same thing."""
    known: dict[int, Candidate] = {}
    blocks: dict[int, list[int]] = {}
    for listing in listings:
        known[listing.id] = listing
        for block in blocks_of(listing.fingerprint):
            blocks.setdefault(block, []).append(listing.id)
    crowded = {block for block, ids in blocks.items() if len(ids) > MAX_SHARING}
    for listing in known.values():
        others = {
            id_
            for block in blocks_of(listing.fingerprint)
            if len(blocks[block]) <= MAX_BLOCK
            for id_ in blocks[block]
            if id_ > listing.id and known[id_].site != listing.site
        }
        own = listing._replace(fingerprint=without_common(listing.fingerprint, crowded))
        yield from compare_all(own, (known[id_] for id_ in sorted(others)))


def compare_all(listing: Candidate, others: Iterable[Candidate]) -> Iterator[Pair]:
    """Yield the pairs of a listing with those of the others that it may be the same as."""
    for other in others:
        found = compare_if_likely(listing.fingerprint, other.fingerprint)
        if found is None:
            continue
        if listing.id < other.id:
            yield Pair(listing.id, other.id, found)
        else:
            reversed_ = tuple(Discrepancy(it.field, it.b, it.a) for it in found.discrepancies)
            yield Pair(
                other.id, listing.id, msgspec.structs.replace(found, discrepancies=reversed_)
            )


# Confidence.


def compare(a: Fingerprint, b: Fingerprint) -> Comparison:
    """Compare two listings."""
    reasons = _evidence(a, b)
    return Comparison(
        confidence=_confidence(sum(reasons.values())),
        reasons=reasons,
        discrepancies=tuple(_discrepancies(a, b)),
    )


def compare_if_likely(a: Fingerprint, b: Fingerprint) -> Comparison | None:
    """Compare two listings; None if they are less likely the same than MIN_CONFIDENCE."""
    reasons = _evidence(a, b)
    confidence = _confidence(sum(reasons.values()))
    if confidence < MIN_CONFIDENCE:
        return None
    return Comparison(confidence, reasons, tuple(_discrepancies(a, b)))


def _confidence(bits: float) -> float:
    bits = max(-50.0, min(50.0, bits + PRIOR))
    return round(1 / (1 + 2**-bits), 3)


def _evidence(a: Fingerprint, b: Fingerprint) -> dict[str, float]:
    """Return the bits of each part that both have."""
    found: dict[str, float] = {}
    if a.locality and b.locality:
        same = a.locality == b.locality or word_ratio(a.locality, b.locality) >= _ALIKE
        found["locality"] = _SAME_LOCALITY if same else _OTHER_LOCALITY
    if a.names and b.names:
        found["address"] = _address(a, b)
    if a.kind and b.kind:
        found["kind"] = _SAME_KIND if a.kind == b.kind else _OTHER_KIND
    if a.area is not None and b.area is not None:
        found["area"] = _area(a.area, b.area)
    if a.rooms is not None and b.rooms is not None:
        found["rooms"] = _by_distance(a.rooms, b.rooms, _SAME_ROOMS, _NEAR_ROOMS, _OTHER_ROOMS)
    if a.floor is not None and b.floor is not None:
        found["floor"] = _SAME_FLOOR if a.floor == b.floor else _OTHER_FLOOR
    if a.floors is not None and b.floors is not None:
        found["floors"] = _by_distance(
            a.floors, b.floors, _SAME_FLOORS, _NEAR_FLOORS, _OTHER_FLOORS
        )
    if a.price is not None and b.price is not None and a.currency == b.currency:
        found["price"] = _by_difference(a.price, b.price, _PRICE, _OTHER_PRICE)
    if a.simhash is not None and b.simhash is not None:
        found["text"] = _text(a.simhash, b.simhash)
    if (a.images and b.images) or (a.looks and b.looks):
        found["images"] = _IMAGES[min(_shared_images(a, b), len(_IMAGES) - 1)]
    return found


def _discrepancies(a: Fingerprint, b: Fingerprint) -> Iterator[Discrepancy]:
    if a.price and b.price and a.currency == b.currency:
        yield from _discrepancy("price", a.price, b.price, PRICE_DIFFERS)
    if a.area and b.area:
        yield from _discrepancy("area", a.area, b.area, AREA_DIFFERS)
    for field in ("rooms", "floor", "floors"):
        of_a, of_b = getattr(a, field), getattr(b, field)
        if of_a is not None and of_b is not None and of_a != of_b:
            yield Discrepancy(field, of_a, of_b)


def _discrepancy(field: str, a: float, b: float, most: float) -> Iterator[Discrepancy]:
    if _difference(a, b) > most:
        yield Discrepancy(field, a, b)


def _difference(a: float, b: float) -> float:
    """Return the difference of two positive numbers as a part of the greater one."""
    return abs(a - b) / max(a, b)


def _area(a: float, b: float) -> float:
    bits = _by_difference(a, b, _AREA, _OTHER_AREA)
    for unit, most, rounded in _ROUNDED_AREAS:
        if rounded > bits and abs(a - b) <= most and (a % unit == 0 or b % unit == 0):
            return rounded
    return bits


def _by_difference(
    a: float, b: float, levels: Sequence[tuple[float, float]], otherwise: float
) -> float:
    difference = _difference(a, b)
    return next((bits for most, bits in levels if difference <= most), otherwise)


def _by_distance(a: int, b: int, same: float, near: float, otherwise: float) -> float:
    distance = abs(a - b)
    if distance == 0:
        return same
    return near if distance == 1 else otherwise


def _shared_images(a: Fingerprint, b: Fingerprint) -> int:
    alike = min(_count_near(a.looks, b.looks), _count_near(b.looks, a.looks))
    return max(len(a.images & b.images), alike)


def _count_near(looks: Sequence[int], others: Sequence[int]) -> int:
    """Return how many of the looks are also among the others."""
    return sum(any((look ^ other).bit_count() <= NEAR for other in others) for look in looks)


def _text(a: int, b: int) -> float:
    distance = (a ^ b).bit_count()
    return next((bits for most, bits in _TEXT if distance <= most), 0.0)


# Addresses.


def _address(a: Fingerprint, b: Fingerprint) -> float:
    if a.numbers and b.numbers and not a.numbers & b.numbers:
        return _OTHER_NUMBER
    similarity = names_similarity(a.names, b.names)
    if similarity >= _ALIKE:
        return _SAME_ADDRESS if bool(a.numbers) == bool(b.numbers) else _LIKE_ADDRESS
    return _LIKE_ADDRESS if similarity >= 0.6 else _OTHER_ADDRESS


def names_similarity(a: Sequence[str], b: Sequence[str]) -> float:
    """Return how far the words of the shorter address are in the longer one, from 0 to 1."""
    if a == b:
        return 1.0
    return _names_similarity(
        *sorted((tuple(sorted(a)), tuple(sorted(b))), key=lambda it: (len(it), it))
    )


@lru_cache(maxsize=100_000)
def _names_similarity(fewer: tuple[str, ...], more: tuple[str, ...]) -> float:
    best = [(max(word_ratio(word, other) for other in more), len(word)) for word in fewer]
    return sum(ratio * length for ratio, length in best) / sum(length for _, length in best)


@lru_cache(maxsize=100_000)
def word_ratio(a: str, b: str) -> float:
    """Return how similar two words are, from 0 to 1."""
    if a == b:
        return 1.0
    first, second = sorted((a, b))
    return _ratio()(first, second)


@lru_cache(maxsize=1)
def _ratio() -> "WordRatio":
    try:
        from rapidfuzz import fuzz
    except ImportError:
        return own_ratio
    return lambda a, b: float(fuzz.ratio(a, b)) / 100


def own_ratio(a: str, b: str) -> float:
    """Return what `rapidfuzz` would, or a little less, where that is not installed."""
    from difflib import SequenceMatcher

    return SequenceMatcher(None, a, b, autojunk=False).ratio()


# Blocks.


def blocks_of(it: Fingerprint) -> list[int]:
    """Return the numbers of the blocks that a listing is in.

    Only listings that share a block are compared. Two of the same thing share one if they are in
    the same place and near each other in area and price, in area and floor, or in price and floor;
    or if they have an image or most of a long text in common.
    """
    areas, prices = _steps(it.area, _AREA_STEP), _steps(it.price, _PRICE_STEP)
    names = it.names[:_MAX_BLOCK_NAMES] or ("",)
    found: list[tuple[object, ...]] = []
    for place in [it.locality] if it.locality else names:
        found += [("area", place, area, it.currency, price) for area in areas for price in prices]
        if it.floor is not None:
            storeys = [(place, it.floor, name) for name in names]
            found += [("area", *storey, area) for storey in storeys for area in areas]
            found += [
                ("price", *storey, it.currency, price) for storey in storeys for price in prices
            ]
    found += _text_blocks(it)
    found += [("image", image) for image in it.images]
    for look in it.looks:
        found += [("look", look), *_bands("look", look)]
    return sorted({_number_of(block) for block in found})


def _text_blocks(it: Fingerprint) -> list[tuple[object, ...]]:
    return [] if it.simhash is None else _bands("text", it.simhash)


def shared_blocks(it: Fingerprint) -> list[int]:
    """Return the blocks of the text and the images of a listing."""
    images = [("image", image) for image in it.images]
    looks = [("look", look) for look in it.looks]
    return [_number_of(block) for block in (*_text_blocks(it), *images, *looks)]


def without_common(it: Fingerprint, crowded: Collection[int]) -> Fingerprint:
    """Return a fingerprint without the images and the text that many listings have.

    `crowded` are the blocks with more listings than MAX_SHARING. A text is common if most parts of
    its hash are.
    """
    if not (it.images or it.looks or it.simhash is not None):
        return it
    parts = sum(_number_of(block) in crowded for block in _text_blocks(it))
    return msgspec.structs.replace(
        it,
        simhash=None if parts > _BANDS // 2 else it.simhash,
        images=frozenset(
            image for image in it.images if _number_of(("image", image)) not in crowded
        ),
        looks=tuple(look for look in it.looks if _number_of(("look", look)) not in crowded),
    )


def _bands(what: str, bits: int) -> list[tuple[object, ...]]:
    """Return the parts of a hash: two that differ in fewer bits than there are parts share one."""
    mask = (1 << _BAND_BITS) - 1
    return [(what, band, bits >> (_BAND_BITS * band) & mask) for band in range(_BANDS)]


def _steps(value: float | None, width: float) -> tuple[int, ...]:
    """Return two steps of a scale, half a step apart: near values share at least one."""
    if not value:
        return ()
    place = math.log(value) / width
    return 2 * math.floor(place), 2 * math.floor(place + 0.5) + 1


def _number_of(block: tuple[object, ...]) -> int:
    digest = blake2b(repr(block).encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)
