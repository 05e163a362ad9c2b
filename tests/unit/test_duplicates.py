"""How likely two listings are the same thing, and whether those that are get found."""

import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz import fuzz

from crawler.listings import duplicates
from crawler.listings.duplicates import (
    DEFAULT_CONFIDENCE,
    MAX_BLOCK,
    Candidate,
    Discrepancy,
    blocks_of,
    compare,
    find_pairs,
    names_similarity,
    own_ratio,
)
from crawler.listings.fingerprint import Fingerprint, simhash
from tests.support.duplicates import candidates, portals

FLAT = Fingerprint(
    locality="sofia", names=("lozenec",), kind="apartment", area=87.0, rooms=2, floor=3,
    floors=8, price=120_000.0, currency="EUR",
)  # fmt: skip


def _but(**changes: Any) -> Fingerprint:
    return msgspec.structs.replace(FLAT, **changes)


@pytest.fixture(params=["rapidfuzz", "difflib"])
def word_ratio(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """With the extra and without."""
    caches = (duplicates._ratio, duplicates.word_ratio, duplicates._names_similarity)
    if request.param == "difflib":
        monkeypatch.setitem(sys.modules, "rapidfuzz", None)
    for cache in caches:
        cache.cache_clear()
    yield request.param
    for cache in caches:
        cache.cache_clear()


class TestConfidence:
    @pytest.mark.parametrize(
        "other",
        [
            FLAT,
            _but(area=87.4, price=122_000.0),
            _but(area=85.0, floors=None),
            _but(names=("lozenets",)),
            _but(names=("lozenec", "krum", "popov"), numbers=frozenset({"5"})),
            _but(price=None, currency=""),
            _but(price=111_000.0),
            _but(rooms=None, kind=""),
            _but(locality=""),
            _but(price=234_700.0, currency="USD"),
        ],
    )
    def test_the_same_flat_told_otherwise(self, other: Fingerprint, word_ratio: str) -> None:
        """Rounded, abbreviated, incomplete or with another price, it is still the same."""
        assert compare(FLAT, other).confidence >= DEFAULT_CONFIDENCE

    @pytest.mark.parametrize(
        "other",
        [
            _but(floor=5),
            _but(area=96.0, price=132_000.0),
            _but(locality="varna"),
            _but(names=("iztok",)),
            _but(kind="office", rooms=None),
            _but(price=650.0),
            _but(floor=None, floors=None, area=89.0, price=126_000.0),
            _but(rooms=4, price=126_000.0),
            Fingerprint(locality="sofia", names=("lozenec",)),
            Fingerprint(),
        ],
    )
    def test_another_flat(self, other: Fingerprint, word_ratio: str) -> None:
        """Another floor, size, place, kind or rent; or too little is known."""
        assert compare(FLAT, other).confidence < DEFAULT_CONFIDENCE

    def test_parts_of_a_quarter_are_told_apart_by_their_numbers(self) -> None:
        """Mladost 1 is not Mladost 2; Mladost alone may be either."""
        first, second, any_ = (
            _but(names=("mladost",), numbers=frozenset(numbers)) for numbers in ("1", "2", "")
        )
        assert compare(first, second).reasons["address"] < 0
        assert (
            0 < compare(first, any_).reasons["address"] < compare(first, first).reasons["address"]
        )

    def test_what_sources_say_differently_is_told(self) -> None:
        """A price from 5 % on, an area from 10 % on, and any other rooms and floors."""
        assert compare(FLAT, _but(price=125_000.0, area=80.0)).discrepancies == ()
        other = _but(price=127_000.0, area=78.0, rooms=3, floor=4, floors=9)
        assert compare(FLAT, other).discrepancies == (
            Discrepancy("price", 120_000.0, 127_000.0),
            Discrepancy("area", 87.0, 78.0),
            Discrepancy("rooms", 2, 3),
            Discrepancy("floor", 3, 4),
            Discrepancy("floors", 8, 9),
        )

    def test_images_and_text_make_up_for_other_words(self) -> None:
        """The same photos or the same long text, where the address is missing on one site."""
        unknown = _but(names=(), floor=None, floors=None, rooms=None, kind="", price=125_000.0)
        assert compare(FLAT, unknown).confidence < DEFAULT_CONFIDENCE
        for shared in (
            {"images": frozenset({"a", "b"})},
            {"looks": (0xF0F0F0F0F0F0F0F0, 0x1234567812345678)},
        ):
            both = [msgspec.structs.replace(it, **shared) for it in (FLAT, unknown)]
            assert compare(*both).confidence >= DEFAULT_CONFIDENCE
        text = simhash("дума " * 5 + " ".join(f"слово{n}" for n in range(40)))
        assert compare(_but(simhash=text), _but(simhash=text)).reasons["text"] == 5.0


NUMBERS = st.none() | st.integers(0, 12)
WORDS = st.sampled_from(["lozenec", "lozenets", "mladost", "centar", "center", "iztok", "geo"])
PRINTS = st.builds(
    Fingerprint,
    locality=st.sampled_from(["", "sofia", "varna", "sofia sever"]),
    names=st.lists(WORDS, max_size=3, unique=True).map(tuple),
    numbers=st.frozensets(st.sampled_from("123"), max_size=2),
    kind=st.sampled_from(["", "apartment", "house"]),
    area=st.none() | st.floats(0.01, 1e9),
    rooms=NUMBERS,
    floor=NUMBERS,
    floors=NUMBERS,
    price=st.none() | st.floats(0.01, 1e12),
    currency=st.sampled_from(["", "EUR", "USD"]),
    simhash=st.none() | st.integers(0, 2**64 - 1),
    images=st.frozensets(st.sampled_from("abc"), max_size=3),
    looks=st.lists(st.integers(0, 2**64 - 1), max_size=3).map(tuple),
)


class TestProperties:
    @settings(max_examples=200, deadline=None)
    @given(PRINTS, PRINTS)
    def test_the_order_makes_no_difference(self, a: Fingerprint, b: Fingerprint) -> None:
        """Only what is a and what is b in the discrepancies."""
        one, other = compare(a, b), compare(b, a)
        assert (one.confidence, one.reasons) == (other.confidence, other.reasons)
        swapped = tuple(Discrepancy(it.field, it.b, it.a) for it in other.discrepancies)
        assert one.discrepancies == swapped
        assert 0.0 <= one.confidence <= 1.0

    @settings(max_examples=200, deadline=None)
    @given(PRINTS, PRINTS)
    def test_nothing_is_more_like_a_listing_than_itself(
        self, a: Fingerprint, b: Fingerprint
    ) -> None:
        """Nothing speaks against itself, and no other has more in common."""
        own = compare(a, a)
        assert own.discrepancies == ()
        assert min(own.reasons.values(), default=0.0) >= 0
        assert compare(a, b).confidence <= own.confidence

    def test_a_whole_fingerprint_is_surely_itself(self) -> None:
        """One that says little is not: too many others say the same."""
        whole = _but(simhash=5, images=frozenset({"a", "b"}))
        assert compare(whole, whole).confidence == 1.0
        assert compare(Fingerprint(), Fingerprint()).confidence == 0.0

    @settings(max_examples=200, deadline=None)
    @given(
        st.text("abcdefgh", min_size=1, max_size=10), st.text("abcdefgh", min_size=1, max_size=10)
    )
    def test_both_ways_to_compare_words_are_close(self, a: str, b: str) -> None:
        """Without rapidfuzz, words are as similar or less: parts in another order count once."""
        own, extra = own_ratio(*sorted((a, b))), fuzz.ratio(*sorted((a, b))) / 100
        assert own <= extra + 1e-9


@pytest.mark.parametrize(
    ("a", "b", "least", "most"),
    [
        (("lozenec",), ("lozenec",), 1.0, 1.0),
        (("geo", "milev"), ("milev",), 1.0, 1.0),
        (("lozenec",), ("lozenets",), 0.8, 0.95),
        (("centar",), ("center",), 0.8, 0.9),
        (("lozenec",), ("iztok",), 0.0, 0.5),
    ],
)
def test_addresses(
    a: tuple[str, ...], b: tuple[str, ...], least: float, most: float, word_ratio: str
) -> None:
    """The words of the shorter one count, in any order and in similar spellings."""
    assert least <= names_similarity(a, b) <= most
    assert names_similarity(a, b) == names_similarity(b, a)


class TestBlocks:
    def test_what_may_be_the_same_is_compared(self) -> None:
        """Near in area and price, in area and floor, or in price and floor."""
        own = set(blocks_of(FLAT))
        for other in (
            _but(area=92.0, price=128_000.0, floor=None, names=()),
            _but(area=82.0, price=None),
            _but(area=None, price=113_000.0),
            _but(area=None, price=None, floor=None, simhash=7),
        ):
            shared = own & set(blocks_of(other))
            assert bool(shared) == (other.simhash is None)

    def test_similar_texts_and_looks_share_a_block(self) -> None:
        """Up to three bits may differ."""
        one, near = 0x0123456789ABCDEF, 0x0123456789ABCDEF ^ 0x8000_0001_0000_0001
        for a, b in (
            (Fingerprint(simhash=one), Fingerprint(simhash=near)),
            (Fingerprint(looks=(one,)), Fingerprint(looks=(5, near))),
        ):
            assert set(blocks_of(a)) & set(blocks_of(b))

    def test_a_block_that_all_are_in_costs_nothing(self) -> None:
        """Thousands of listings with the same image are not compared by it."""
        logo = Fingerprint(images=frozenset({"logo"}))
        listings = [Candidate(n, f"site{n % 2}", logo) for n in range(MAX_BLOCK + 1)]
        assert list(find_pairs(listings)) == []


def test_listings_of_one_site_are_no_pairs() -> None:
    """A site's own key says which of its listings are the same."""
    listings = [Candidate(1, "a", FLAT), Candidate(2, "a", FLAT), Candidate(3, "b", FLAT)]
    assert [(pair.a, pair.b) for pair in find_pairs(listings)] == [(1, 3), (2, 3)]


def test_boilerplate_makes_no_pairs() -> None:
    """Agencies use one text for many things; their other values tell them apart."""
    text = simhash("Обадете се за оглед и съдействие при кредит. " * 3)
    listings = [
        Candidate(n, f"site{n % 2}", _but(simhash=text, floor=n % 8, area=50.0 + 7 * n,
                                         price=60_000.0 + 9_000 * n))
        for n in range(60)
    ]  # fmt: skip
    assert [it for it in find_pairs(listings) if it.comparison.confidence >= 0.8] == []


def test_what_many_listings_have_is_no_evidence() -> None:
    """The same logo and text on all listings of both sites make no more pairs."""
    listings, _ = candidates(portals(200, 20))
    logo = {"images": frozenset({"logo"}), "looks": (0xF0F0F0F0F0F0F0F0,), "simhash": 12345}
    marked = [
        it._replace(fingerprint=msgspec.structs.replace(it.fingerprint, **logo)) for it in listings
    ]
    plain = [
        it._replace(fingerprint=msgspec.structs.replace(it.fingerprint, simhash=None))
        for it in listings
    ]
    assert [(it.a, it.b, it.comparison.confidence) for it in find_pairs(marked)] == [
        (it.a, it.b, it.comparison.confidence) for it in find_pairs(plain)
    ]


@pytest.mark.parametrize("seed", [1, 2])
def test_the_shared_listings_of_two_portals_are_found(seed: int, word_ratio: str) -> None:
    """Precision of at least 0.95 and recall of at least 0.9 among near misses."""
    listings, truth = candidates(portals(300, 40, seed))

    pairs = list(find_pairs(listings))

    found = {(it.a, it.b) for it in pairs if it.comparison.confidence >= DEFAULT_CONFIDENCE}
    assert len(truth) == 40
    assert len(found & truth) >= 0.95 * len(found)
    assert len(found & truth) >= 0.9 * len(truth)
