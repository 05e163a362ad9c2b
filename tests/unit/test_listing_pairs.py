"""The pairs of a store: brought up to date, decided by people, merged."""

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow.parquet
import pytest
from PIL import Image

from crawler import urls
from crawler.db.connection import writing
from crawler.db.listing_pairs import MAX_PAIRS, FoundPair, ListingPair
from crawler.errors import UsageError
from crawler.listings.duplicates import find_pairs
from crawler.listings.matching import (
    Fingerprints,
    compared_pair,
    match_for,
    run_fingerprint_matching,
)
from crawler.listings.merged import components, merged
from crawler.locks import open_lock, try_lock
from crawler.lpm import LocalPersistenceManager
from crawler.models import FILE, Link, NamedFile, Role
from tests.support.duplicates import (
    EXAMPLES,
    add_listings,
    add_records,
    candidates,
    example_sites,
    portals,
)
from tests.support.listings import Market, record
from tests.support.stack import Folder
from tests.support.tasks import done, new, open_job, page

SIZE, SHARED = 120, 20
MADE = portals(SIZE, SHARED)
LISTINGS = {
    name: list(portal.listings(f"http://{portal.host}:8090")) for name, portal in MADE.items()
}
SITES = example_sites()
NOW = 1_000_000.0


@pytest.fixture
def lpm(tmp_path: Path) -> Iterator[LocalPersistenceManager]:
    """An empty store."""
    with LocalPersistenceManager(tmp_path / "data", clock=lambda: NOW) as lpm:
        yield lpm


def _fill(lpm: LocalPersistenceManager) -> None:
    for name, listings in LISTINGS.items():
        add_listings(lpm, name, listings)


def _stored(lpm: LocalPersistenceManager) -> dict[tuple[int, int], float]:
    return {(it.a, it.b): it.confidence for it in lpm.listing_pairs.pairs(0.0)}


def _expected() -> dict[tuple[int, int], float]:
    listings, _ = candidates(MADE)
    return {(it.a, it.b): it.comparison.confidence for it in find_pairs(listings)}


def _best(lpm: LocalPersistenceManager) -> ListingPair:
    return lpm.listing_pairs.pairs(0.0)[0]


def _change(lpm: LocalPersistenceManager, id_: int, **fields: Any) -> None:
    """Change the record of a listing, as another crawl does."""
    [row] = lpm.listing_pairs.listings([id_])
    add_records(lpm, [(row.site, row.key, row.url, json.loads(row.record) | fields)])


class TestMatching:
    def test_all_pairs_are_found_whatever_the_batch(self, lpm: LocalPersistenceManager) -> None:
        """As many as by comparing everything at once, and nothing is left to do."""
        _fill(lpm)

        did = run_fingerprint_matching(lpm, SITES, batch=17)

        assert did.compared == 2 * SIZE
        assert _stored(lpm) == _expected()
        assert len(_stored(lpm)) >= SHARED
        assert lpm.listing_pairs.to_match() == 0
        assert run_fingerprint_matching(lpm, SITES).compared == 0

    def test_what_comes_bit_by_bit_ends_as_from_scratch(self, lpm: LocalPersistenceManager) -> None:
        """New and changed listings are compared with the rest, and with each other."""
        chance = Random(7)
        steps = [(name, it) for name, listings in LISTINGS.items() for it in listings]
        chance.shuffle(steps)
        for at in range(0, len(steps), 60):
            for name, listing in steps[at : at + 60]:
                # As something else first: what it was like then must leave no trace.
                other = chance.choice(LISTINGS[name]).record
                key = {"imoti": "id", "domove": "ref"}[name]
                record = other | {key: listing.record[key]}
                add_records(lpm, [(name, listing.record[key], listing.url, record)])
            run_fingerprint_matching(lpm, SITES, batch=25)
            for name, listing in steps[at : at + 60]:
                add_listings(lpm, name, [listing])
            run_fingerprint_matching(lpm, SITES, batch=25)
        before = _stored(lpm)

        lpm.listing_pairs.match_again()
        run_fingerprint_matching(lpm, SITES)

        assert before == _stored(lpm)
        assert len(before) == len(_expected())

    def test_a_change_removes_pairs_that_match_no_more(self, lpm: LocalPersistenceManager) -> None:
        """And brings them back when it is taken back."""
        _fill(lpm)
        run_fingerprint_matching(lpm, SITES)
        before, pair = _stored(lpm), _best(lpm)
        [row] = lpm.listing_pairs.listings([pair.a])
        record = json.loads(row.record)

        _change(lpm, pair.a, city="Видин", area=1)
        run_fingerprint_matching(lpm, SITES)
        assert not any(pair.a in ids for ids in _stored(lpm))

        _change(lpm, pair.a, **record)
        run_fingerprint_matching(lpm, SITES)
        assert _stored(lpm) == before

    def test_listings_that_are_gone_still_match(self, lpm: LocalPersistenceManager) -> None:
        """A thing may be gone on one site only."""
        _fill(lpm)
        with writing(lpm.store.durable):
            lpm.store.durable.execute("UPDATE listings SET gone_at = 1 WHERE site = 'imoti'")
        run_fingerprint_matching(lpm, SITES)
        assert _stored(lpm) == _expected()

    def test_a_listing_that_changes_meanwhile_is_compared_again(
        self, lpm: LocalPersistenceManager
    ) -> None:
        """What was read before the change is not stored."""
        _fill(lpm)
        rows = lpm.listing_pairs.next_to_match(0, 5)
        _change(lpm, rows[0].id, area=5)
        lpm.listing_pairs.keep([(row, []) for row in rows], NOW)
        assert lpm.listing_pairs.next_to_match(0, 1)[0].id == rows[0].id
        assert lpm.listing_pairs.to_match() == 2 * SIZE - 4

    def test_many_alike_keep_a_few_pairs_each(self, lpm: LocalPersistenceManager) -> None:
        """Hundreds of listings that look the same have the 20 surest pairs each, and what a person
        has decided; comparing them again changes none of that."""
        flat = {"address": "ul. Vitosha 5", "locality": "Sofia", "area": 60, "rooms": 2, "floor": 3}
        for n in range(300):
            site = "ab"[n % 2]
            add_records(lpm, [(site, str(n), f"http://{site}.example/{n}", flat | {"id": n})])
        first, *_, last = (row.id for row in lpm.listing_pairs.next_to_match(0, 300))
        ends = lpm.listing_pairs.listings([first, last])
        lpm.listing_pairs.decide(compared_pair(lpm, SITES, *ends), "same", NOW)

        run_fingerprint_matching(lpm, SITES)

        found = _stored(lpm)
        counts = Counter(id_ for pair in found for id_ in pair if pair != (first, last))
        assert (len(counts), max(counts.values())) == (300, MAX_PAIRS)
        assert (first, last) in found
        lpm.listing_pairs.match_again()
        run_fingerprint_matching(lpm, SITES)
        assert _stored(lpm) == found

    def test_only_one_process_compares(self, lpm: LocalPersistenceManager) -> None:
        """Another one leaves it to the first."""
        _fill(lpm)
        lock = open_lock(lpm.run / "matching.lock")
        assert try_lock(lock)
        assert run_fingerprint_matching(lpm, SITES).is_busy
        os.close(lock)
        assert run_fingerprint_matching(lpm, SITES).compared == 2 * SIZE

    def test_it_stops_in_time_and_goes_on_later(self, lpm: LocalPersistenceManager) -> None:
        """At the end of a crawl, it takes a limited time; sites are read only if need be."""
        _fill(lpm)
        times = iter([0.0, 99.0])
        match_for(lpm, lambda: SITES, 10.0, clock=lambda: next(times))
        assert 0 < lpm.listing_pairs.to_match() < 2 * SIZE
        match_for(lpm, lambda: SITES, 1000.0)
        assert _stored(lpm) == _expected()
        match_for(lpm, lambda: pytest.fail("nothing is to be compared"), 10.0)

    def test_listings_of_one_page_are_no_pair(self, lpm: LocalPersistenceManager) -> None:
        """A site that was renamed has them under both names; listings without a page of their own
        do not look like one page. Pairs that were stored before are shown no more, unless a person
        has confirmed them."""

        def shown(pair: ListingPair) -> tuple[set[int], set[int]]:
            """What a merged thing and the view of a listing show beside it."""
            things = [{each.listing for each in it.sources} for it in merged(lpm, SITES, 0.8)]
            [thing] = [ids for ids in things if pair.a in ids] or [{pair.a}]
            return thing, {each.listing for each in lpm.listings.show(pair.a).pairs}

        _fill(lpm)
        run_fingerprint_matching(lpm, SITES)
        first, second = lpm.listing_pairs.pairs(0.8)[:2]
        with writing(lpm.store.durable):
            for pair, key in ((first, b"the same page"), (second, b"")):
                lpm.store.durable.execute(
                    "UPDATE listings SET url_key = ? WHERE id IN (?, ?)", (key, pair.a, pair.b)
                )

        assert set(_expected()) - set(_stored(lpm)) == {(first.a, first.b)}
        assert [first.b in ids for ids in shown(first)] == [False, False]
        assert [second.b in ids for ids in shown(second)] == [True, True]
        lpm.listing_pairs.match_again()
        run_fingerprint_matching(lpm, SITES)
        assert set(_expected()) - set(_stored(lpm)) == {(first.a, first.b)}

        one_page = compared_pair(lpm, SITES, *lpm.listing_pairs.listings([first.a, first.b]))
        lpm.listing_pairs.decide(one_page, "same", NOW)
        assert [first.b in ids for ids in shown(first)] == [True, True]

    def test_a_record_that_is_no_object_is_no_error(self, lpm: LocalPersistenceManager) -> None:
        """A damaged one neither."""
        _fill(lpm)
        with writing(lpm.store.durable):
            for id_, record in ((1, "[1]"), (2, "{"), (3, "null")):
                lpm.store.durable.execute(
                    "UPDATE listings SET record = ? WHERE id = ?", (record, id_)
                )
        assert run_fingerprint_matching(lpm, SITES).compared == 2 * SIZE


class TestDecisions:
    def test_they_stay_whatever_is_compared_again(self, lpm: LocalPersistenceManager) -> None:
        """A separated pair never comes back, a confirmed one never goes."""
        _fill(lpm)
        run_fingerprint_matching(lpm, SITES)
        apart, same = lpm.listing_pairs.pairs(0.0)[:2]
        for pair, decision in ((apart, "different"), (same, "same")):
            rows = lpm.listing_pairs.listings([pair.a, pair.b])
            found = compared_pair(lpm, SITES, *rows)
            assert found.confidence == pair.confidence
            lpm.listing_pairs.decide(found, decision, NOW)  # type: ignore[arg-type]

        _change(lpm, same.a, city="Видин", area=1)
        lpm.listing_pairs.match_again()
        run_fingerprint_matching(lpm, SITES)

        stored = {(it.a, it.b): it.decision for it in lpm.listing_pairs.pairs(0.8)}
        assert (apart.a, apart.b) not in stored
        assert stored[same.a, same.b] == "same"
        [kept] = [it for it in lpm.listing_pairs.pairs(0.0) if (it.a, it.b) == (same.a, same.b)]
        now = compared_pair(lpm, SITES, *lpm.listing_pairs.listings([same.a, same.b]))
        assert (kept.confidence, kept.reasons) == (now.confidence, now.reasons)
        assert kept.confidence < same.confidence
        assert "area" in {each["field"] for each in kept.discrepancies}
        assert (apart.a, apart.b) in set(lpm.listing_pairs.separated())

    def test_a_pair_that_nothing_speaks_for_can_be_confirmed(
        self, lpm: LocalPersistenceManager
    ) -> None:
        """People know more."""
        _fill(lpm)
        run_fingerprint_matching(lpm, SITES)
        a, b = 1, SIZE + next(
            n for n in range(1, SIZE) if (1, SIZE + n) not in _stored(lpm)
        )  # fmt: skip
        pair = compared_pair(lpm, SITES, *lpm.listing_pairs.listings([b, a]))
        lpm.listing_pairs.decide(pair, "same", NOW)
        assert (a, b) in {(it.a, it.b) for it in lpm.listing_pairs.pairs(1.0)}

    def test_contradictory_ones_are_refused(self, lpm: LocalPersistenceManager) -> None:
        """Directly or through others; a decision on a pair itself may be changed."""
        _fill(lpm)

        def decide(a: int, b: int, decision: Any) -> None:
            pair = FoundPair(a, b, 0.9, {}, [])
            lpm.listing_pairs.decide(pair, decision, NOW)

        for a, b in ((1, 121), (2, 121), (2, 122)):
            decide(a, b, "same")
        with pytest.raises(UsageError, match="both were confirmed as the same thing as imoti:"):
            decide(1, 122, "different")
        decide(2, 121, "different")
        decide(1, 122, "different")
        with pytest.raises(UsageError, match=r"domove:.* and imoti:.* were separated"):
            decide(2, 121, "same")
        decide(1, 123, "same")
        decide(2, 122, "different")
        decide(2, 121, "same")

        decided = {(it.a, it.b) for it in lpm.listing_pairs.pairs(1.0)}
        assert decided == {(1, 121), (1, 123), (2, 121)}
        assert sorted(lpm.listing_pairs.separated()) == [(1, 122), (2, 122)]

    def test_a_refusal_names_what_stands_between(self, lpm: LocalPersistenceManager) -> None:
        """Not what is the same thing beside that; the next command can do what it says."""
        _fill(lpm)

        def decide(a: int, b: int, decision: Any) -> None:
            lpm.listing_pairs.decide(FoundPair(a, b, 0.9, {}, []), decision, NOW)

        for a, b in ((1, 121), (2, 121), (2, 122), (3, 122)):
            decide(a, b, "same")
        names = {it.id: f"{it.site}:{it.key}" for it in lpm.listing_pairs.listings(range(123))}
        for a, b, between in ((121, 122, 2), (2, 3, 122), (1, 3, 122)):
            with pytest.raises(UsageError) as refusal:
                decide(a, b, "different")
            thing = f"both were confirmed as the same thing as {names[between]};"
            assert str(refusal.value) == f"{thing} separate that from {names[b]} first"

        decide(2, 122, "different")
        decide(121, 122, "different")


def _pair(a: int, b: int, confidence: float = 0.9, decision: Any = None) -> ListingPair:
    return ListingPair(a, b, confidence, {}, [], NOW, decision, None)


class TestMerged:
    def test_pairs_join_into_things(self) -> None:
        """Directly or through others."""
        pairs = [_pair(1, 2), _pair(2, 3), _pair(5, 9)]
        assert components(pairs, []) == [[1, 2, 3], [5, 9]]

    def test_separated_listings_never_come_together(self) -> None:
        """Not even through a third; the surest pairs and confirmed ones go first."""
        pairs = [_pair(1, 2, 0.85), _pair(2, 3, 0.95)]
        assert components(pairs, [(1, 3)]) == [[2, 3]]
        pairs = [_pair(1, 2, 0.85, "same"), _pair(2, 3, 0.95)]
        assert components(pairs, [(1, 3)]) == [[1, 2]]

    def test_a_thing_has_its_sources_and_the_best_price(self, lpm: LocalPersistenceManager) -> None:
        """Euro and lev are comparable; a listing that is gone has no best price."""
        _fill(lpm)
        run_fingerprint_matching(lpm, SITES)
        pair = _best(lpm)
        _change(lpm, pair.a, price={"amount": 100_000, "currency": "EUR"})
        _change(lpm, pair.b, price={"amount": 190_000, "currency": "BGN"})
        lpm.listing_pairs.decide(
            compared_pair(lpm, SITES, *lpm.listing_pairs.listings([pair.a, pair.b])), "same", NOW
        )

        def thing() -> Any:
            things = merged(lpm, SITES, 0.8)
            [found] = [it for it in things if pair.a in {each.listing for each in it.sources}]
            return found

        assert (thing().price, thing().currency) == (190_000, "BGN")
        assert {it.site for it in thing().sources} == {"imoti", "domove"}
        assert thing().values["area"] > 0
        [row] = lpm.listing_pairs.listings([pair.a])
        record = json.loads(row.record)
        assert (thing().title, thing().locality) == (record["title"], record["city"])
        assert thing().address
        assert [it.gone for it in thing().sources] == [False, False]
        sure = [it.confidence for it in merged(lpm, SITES, 0.5)]
        assert sure == sorted(sure, reverse=True)
        with writing(lpm.store.durable):
            lpm.store.durable.execute("UPDATE listings SET gone_at = 1 WHERE id = ?", (pair.b,))
        assert (thing().price, thing().currency) == (100_000, "EUR")


def _photo(size: int, form: str) -> bytes:
    image = Image.new("L", (64, 64))
    image.putdata([(x * 7 + y * 13) % 256 for y in range(64) for x in range(64)])
    target = io.BytesIO()
    image.resize((size, size)).save(target, form)
    return target.getvalue()


def test_images_that_were_fetched_are_compared(lpm: LocalPersistenceManager) -> None:
    """By content, and by look, which is found out once for each content."""
    job = open_job(lpm)
    photos = {
        "http://a.example/1.png": _photo(200, "PNG"),
        "http://b.example/2.jpg": _photo(120, "JPEG"),
    }
    places = ("http://a.example/x", "http://b.example/y")
    lpm.persist_tasks([new(url) for url in (*places, *photos)], job=job)
    tasks = {task.url: task for task in lpm.get_next_pending("owner", 4)}
    for url, task in tasks.items():
        made = page(url, photos.get(url, b"<p>page</p>"))
        kind = (("Content-Type", "image/png" if url in photos else "text/html"),)
        made = msgspec.structs.replace(made, headers=kind)
        lpm.save_result(done(task, page=made))
    db = lpm.store.durable
    add_records(lpm, [("a", "1", places[0], {}), ("b", "2", places[1], {})])
    with writing(db):
        for place, photo in zip(places, photos, strict=True):
            db.execute("UPDATE listings SET task = ? WHERE url = ?", (tasks[place].id, place))
            db.execute(
                "INSERT INTO result_files VALUES (?, 0, 'photos', ?, ?, NULL)",
                (tasks[place].id, photo, urls.parse(photo).key),
            )

    run_fingerprint_matching(lpm, SITES)

    prints = Fingerprints(lpm, SITES)
    a, b = prints.with_ids([1, 2])
    assert a.fingerprint.images != b.fingerprint.images
    assert len(a.fingerprint.looks) == len(b.fingerprint.looks) == 1
    assert prints.new_looks() == {}
    assert compared_pair(lpm, SITES, *lpm.listing_pairs.listings([1, 2])).reasons["images"] > 0


class _Photographed(Market):
    """Two listings of two sites that name one photo, and crawls of them."""

    PHOTO = "http://a.example/1.png"

    def crawl_pages(self) -> None:
        """Fetch both pages; the photo is a task of its own, and due now."""
        job = self.begin(["x", "y"], lists=())
        link = Link(address=urls.parse(self.PHOTO), role=Role.FILE, method=FILE)
        for site, task in zip("ab", self.claim().values(), strict=True):
            given = record(task.url[-1], area=60, title="flat")
            named: dict[str, Any] = {"files": (NamedFile("photos", link),)}
            named |= {"crawl": job.options.crawl, "site": (site, "1")}
            self.store(self.show(task, given, **named))

    def fetch_photo(self, body: bytes, kind: str = "image/png") -> None:
        """Store what the photo's URL answers."""
        [task] = self.claim().values()
        made = msgspec.structs.replace(page(task.url, body), headers=(("Content-Type", kind),))
        self.store(done(task, {"type": kind}, page=made))

    def match(self) -> set[str]:
        """Compare what there is to compare; returns what was compared of the pair, if any."""
        run_fingerprint_matching(self.lpm, SITES)
        return {name for pair in self.lpm.listing_pairs.pairs(0.0) for name in pair.reasons}


class TestPhotosThatComeLater:
    def test_have_their_listings_compared_again(self, tmp_path: Path) -> None:
        """Once for each content: the same photo, fetched again, says nothing new."""
        flats = _Photographed(tmp_path)
        flats.crawl_pages()
        assert "images" not in flats.match()

        flats.fetch_photo(_photo(200, "PNG"))

        pairs = flats.lpm.listing_pairs
        assert pairs.to_match() == 2
        assert "images" in flats.match()
        flats.crawl_pages()
        flats.fetch_photo(_photo(200, "PNG"))
        assert pairs.to_match() == 0
        flats.crawl_pages()
        pairs.match_again()
        assert "images" in flats.match()  # before the crawl has fetched it again
        flats.fetch_photo(_photo(100, "PNG"))
        assert pairs.to_match() == 2

    def test_count_if_they_come_while_listings_are_compared(self, tmp_path: Path) -> None:
        """What was read before is not stored."""
        flats = _Photographed(tmp_path)
        flats.crawl_pages()
        pairs = flats.lpm.listing_pairs
        rows = pairs.next_to_match(0, 5)
        flats.fetch_photo(_photo(200, "PNG"))
        pairs.keep([(row, []) for row in rows], NOW)
        assert pairs.to_match() == 2

    def test_are_images(self, tmp_path: Path) -> None:
        """No comparison reads another document."""
        flats = _Photographed(tmp_path)
        flats.crawl_pages()
        flats.match()
        flats.fetch_photo(b"%PDF-1.7", "application/pdf")
        assert flats.lpm.listing_pairs.to_match() == 0


class TestCommands:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Folder:
        """A store with the listings of both portals."""
        folder = Folder(tmp_path, CRAWLER_CONFIG_DIR=str(EXAMPLES))
        with folder.lpm() as lpm:
            _fill(lpm)
        return folder

    @pytest.mark.parametrize("step", ["blocks-kept:2", "pairs-keeping:1", "pairs-kept:1"])
    def test_a_kill_loses_nothing(self, folder: Folder, step: str) -> None:
        """The next command has all pairs, as if nothing had happened."""
        with folder.lpm() as lpm:
            rows = lpm.listing_pairs.pairs(0.0)
            assert rows == []
        killed = folder.crawler("listings", "duplicates", CRAWLER_FAILPOINT=step)
        assert killed.returncode == -9

        again = folder.crawler("listings", "duplicates", "--json", "--limit", "0")

        assert again.returncode == 0, again.stderr
        with folder.lpm() as lpm:
            assert _stored(lpm) == _expected()
        assert len(json.loads(again.stdout)["items"]) == json.loads(again.stdout)["pairs"]

    def test_what_a_person_sees_and_says(self, folder: Folder) -> None:
        """Pairs with reasons, a merged view, and decisions by number, URL or SITE:KEY."""
        told = json.loads(folder.crawler("listings", "duplicates", "--json").stdout)
        assert SHARED - 2 <= told["pairs"] <= SHARED + 1
        first = told["items"][0]
        assert first["confidence"] >= 0.8
        assert first["reasons"]["area"] > 0
        names = [f"{first[side]['site']}:{first[side]['key']}" for side in "ab"]

        text = folder.crawler("listings", "duplicates", "--limit", "1")
        assert "  ".join(names) in text.stdout
        assert "because: " in text.stdout
        assert "--limit 0 shows all" in text.stderr

        done = folder.crawler("listings", "separate", first["a"]["url"], str(first["b"]["listing"]))
        assert done.stdout == f"{names[0]} and {names[1]} are different things\n"
        fewer = json.loads(folder.crawler("listings", "duplicates", "--again", "--json").stdout)
        assert fewer["pairs"] == told["pairs"] - 1

        done = folder.crawler("listings", "confirm", *names, "--json")
        assert json.loads(done.stdout)["decision"] == "same"
        assert first["a"]["gone"] is False
        merged_ = json.loads(folder.crawler("listings", "duplicates", "--merged", "--json").stdout)
        assert merged_["things"] >= told["pairs"] - 1
        assert merged_["items"][0]["sources"][0]["gone"] is False
        text = folder.crawler("listings", "duplicates", "--merged")
        assert "things on several sites" in text.stdout
        assert merged_["items"][0]["title"] in text.stdout

    def test_things_are_exported_once(self, folder: Folder) -> None:
        """Each with all its sources, in every format; things that one site has are there, too, and
        filters choose by any of the sources."""
        told = json.loads(folder.crawler("listings", "duplicates", "--merged", "--json").stdout)
        merged_away = sum(len(thing["sources"]) - 1 for thing in told["items"])
        things = 2 * SIZE - merged_away

        for form in ("json", "jsonl", "csv", "xlsx", "md", "parquet"):
            done = folder.crawler("listings", "export", "--merged", "--output", f"all.{form}")
            assert done.stdout == f"Exported {things} things to all.{form}\n", done.stderr
        one_site = folder.crawler("listings", "export", "--merged", "--site", "domove", "--format",
                                  "jsonl", "--output", "-")  # fmt: skip
        strict = folder.crawler("listings", "export", "--merged", "--min-confidence", "1",
                                "--output", "sure.json", "--json")  # fmt: skip
        refused = folder.crawler("listings", "export", "--min-confidence", "1", "-o", "x.json")

        entries = json.loads((folder.path / "all.json").read_text())
        seen = Counter(source["listing"] for each in entries for source in each["sources"])
        assert (len(seen), set(seen.values())) == (2 * SIZE, {1})
        several = [each for each in entries if len(each["sources"]) > 1]
        assert len(several) == told["things"]
        best = told["items"][0]
        assert best in several
        assert {each["confidence"] for each in entries if each not in several} == {None}
        with (folder.path / "all.csv").open(encoding="utf-8-sig", newline="") as file:
            rows = {row["listings"]: row for row in csv.DictReader(file)}
        names = " | ".join(f"{each['site']}:{each['key']}" for each in best["sources"])
        assert (rows[names]["title"], rows[names]["sources"]) == (best["title"], "2")
        assert rows[names]["urls"].split(" | ") == [each["url"] for each in best["sources"]]
        assert float(rows[names]["price"]) == best["price"]
        assert len(one_site.stdout.splitlines()) == SIZE
        assert json.loads(strict.stdout)["things"] == 2 * SIZE
        assert refused.returncode == 2
        table = pyarrow.parquet.read_table(folder.path / "all.parquet")
        assert sum(table.column("sources").to_pylist()) == 2 * SIZE

    def test_mistakes_are_one_line(self, folder: Folder, tmp_path: Path) -> None:
        """With exit code 2."""
        cases = (
            (("confirm", "imoti:100000", "imoti:100001"), "are of one site"),
            (("confirm", "imoti:100000", "1"), "are one listing"),
            (("separate", "imoti:1", "domove:2"), "imoti has no listing with the key '1'"),
            (("separate", "http://[", "2"), "is no URL"),
            (("duplicates", "--site", "imot"), "there are no listings of the site 'imot'"),
            (("duplicates", "--min-confidence", "2"), "--min-confidence"),
        )
        for arguments, reason in cases:
            done = folder.crawler("listings", *arguments)
            assert (done.returncode, done.stdout) == (2, ""), arguments
            assert reason in done.stderr.splitlines()[-1]
