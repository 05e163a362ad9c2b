"""Crawls two sites whose listings change, while everything is killed, and compares what the store
says of them with the truth: see scripts/listings."""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sites import KINDS, run_and_strike, write_config

from crawler.examples.domove import Domove
from crawler.examples.imoti import Imoti
from crawler.examples.server import Running
from crawler.lpm import LocalPersistenceManager
from tests.support.stack import Folder
from tests.support.stored_listings import StoredListings

ROOT = Path(__file__).resolve().parents[1]
MIN_PRECISION, MIN_RECALL = 0.95, 0.9
"""Of the listings that are found to be on both sites."""


class Portal(NamedTuple):
    """A site whose listings change, as this process knows it, and the key of its listings."""

    name: str
    site: Imoti | Domove
    key: str

    def record(self, n: int, base: str) -> dict[str, Any]:
        """Listing n as its page shows it."""
        if isinstance(self.site, Imoti):
            return self.site.record(n, base)
        return self.site.record(n)


class Round(NamedTuple):
    """What happens to a site before a crawl."""

    edit: Sequence[int] = ()
    gone: Sequence[int] = ()
    back: Sequence[int] = ()


class Fact(NamedTuple):
    """What happened to a listing: `what` is its kind, or the prices before and after."""

    key: str
    what: Any


class Truth:
    """What a store must say of the listings of a site, made without any crawl."""

    def __init__(self, portal: Portal, base: str) -> None:
        self.portal, self._base = portal, base
        self.records: dict[int, dict[str, Any]] = {}
        """The listings as they were seen last."""
        self.gone: set[int] = set()
        self.changes: list[Fact] = []
        self.prices: list[Fact] = []
        self._hidden: set[int] = set()

    def id_of(self, n: int) -> str:
        """The key of listing n."""
        return str(self.portal.record(n, self._base)[self.portal.key])

    def change(self, plan: Round) -> None:
        """Let the site change, as this process knows it."""
        for how, numbers in plan._asdict().items():
            for n in numbers:
                self.portal.site.change(how, n)
        self._hidden = self._hidden.union(plan.gone).difference(plan.back)

    def crawl(self) -> None:
        """Note what a crawl of the site must find."""
        for n in range(self.portal.site.size):
            self._see(n)

    def _see(self, n: int) -> None:
        record = self.portal.record(n, self._base)
        key, before = record[self.portal.key], self.records.get(n)
        if n in self._hidden:
            if before and n not in self.gone:
                self.changes.append(Fact(key, "gone"))
                self.gone.add(n)
            return
        if before is None:
            self.changes.append(Fact(key, "new"))
        if n in self.gone:
            self.changes.append(Fact(key, "back"))
            self.gone.remove(n)
        if before and before != record:
            self.changes.append(Fact(key, "changed"))
            prices = (before["price"]["amount"], record["price"]["amount"])
            self.prices.append(Fact(key, prices))
        self.records[n] = record


def main() -> int:
    """Crawl both sites in rounds, and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=3_000, help="listings of each site")
    parser.add_argument("--edits", type=int, default=300, help="prices of each that change")
    parser.add_argument("--gone", type=int, default=50, help="listings of each that go")
    parser.add_argument("--back", type=int, default=20, help="those of them that come back")
    parser.add_argument("--shared", type=int, default=200, help="listings that both sites have")
    parser.add_argument("--kills", type=int, default=5, help="kill -9 in all")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--latency-ms", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    os.chdir(ROOT)  # the sites are started as modules
    pages = ("--port", 0, "--size", given.size, "--latency-ms", given.latency_ms,
             "--shared", given.shared)  # fmt: skip
    with (
        Running("crawler.examples", *pages) as examples,
        tempfile.TemporaryDirectory() as path,
    ):
        folder = Folder(
            Path(path), CRAWLER_PAGES="8", CRAWLER_CONFIG_DIR=str(Path(path) / "config")
        )
        write_config(Path(path) / "config", examples.port, "imoti", "domove")
        try:
            wrong = crawl_sites(folder, examples, given)
        finally:
            folder.stop()
    for fault in wrong[:20]:
        print(f"  wrong: {fault}")
    return int(bool(wrong))


def rounds(given: argparse.Namespace, name: str) -> list[Round]:
    """Three rounds of a site: all listings are new, then most changes, then some are back."""
    chance = random.Random(f"{given.seed} {name}")
    chosen = chance.sample(range(given.size), given.edits + given.gone)
    edited, gone = chosen[: given.edits], chosen[given.edits :]
    half = given.edits // 2
    back = gone[: given.back]
    # Of those that are back, some have another price.
    return [Round(), Round(edited[:half], gone), Round([*edited[half:], *back[::4]], back=back)]


def crawl_sites(folder: Folder, examples: Running, given: argparse.Namespace) -> list[str]:
    """Crawl both sites at once, in rounds, with kills; returns what differs from the truth."""
    second = Domove(given.size, shared=given.shared)
    portals = (Portal("imoti", Imoti(given.size), "id"), Portal("domove", second, "ref"))
    truths = [Truth(each, examples.url(each.site.host)) for each in portals]
    plans = [rounds(given, each.name) for each in portals]
    argv = ["crawler", "sites", "crawl", *(each.name for each in portals), "--parallel",
            "--workers", str(given.workers)]  # fmt: skip
    kills, strikes, seconds = spread(given.kills, 3), list[str](), list[float]()
    began = time.monotonic()
    for number in range(3):
        for truth, plan in zip(truths, plans, strict=True):
            truth.change(plan[number])
            tell(examples, truth, plan[number])
        step = 0.8 * 2 * given.size / max(kills[number], 1)
        planned = [
            (int(step * (place + 0.5)), KINDS[(number + place) % len(KINDS)])
            for place in range(kills[number])
        ]
        run = run_and_strike(folder, argv, planned, ended_pages(folder))
        strikes += run.struck
        seconds.append(run.seconds)
        for truth in truths:
            truth.crawl()
    print(
        f"{len(strikes)} kill -9 ({', '.join(strikes)}); crawls of "
        f"{', '.join(f'{each:.0f} s' for each in seconds)}; {time.monotonic() - began:.0f} s"
    )
    wrong = [fault for truth in truths for fault in compare_listings(folder, truth)]
    return wrong + compare_duplicates(folder, second)


def compare_listings(folder: Folder, truth: Truth) -> list[str]:
    """What the store says of a site's listings, and should not; and what it does not say."""
    with folder.lpm() as lpm:
        wrong = list(differences(truth, lpm))
    print(
        f"{truth.portal.name}: {len(truth.records):,} listings, {len(truth.changes):,} changes, "
        f"{len(truth.prices):,} prices, {len(truth.gone)} gone; {len(wrong)} differ from the truth"
    )
    return wrong


def compare_duplicates(folder: Folder, second: Domove) -> list[str]:
    """Whether too many of the listings that both sites have are not found, or too many others
    are."""
    began = time.monotonic()
    done = folder.crawler("listings", "duplicates", "--limit", "0", "--json", limit_s=1_800)
    seconds = time.monotonic() - began
    pairs = json.loads(done.stdout)["items"]
    found = {tuple(sorted(pair[side]["key"] for side in "ab")) for pair in pairs}
    truth = set(second.truth())
    precision, recall = len(found & truth) / max(len(found), 1), len(found & truth) / len(truth)
    print(
        f"duplicates: {len(truth)} shared, {len(found)} found; precision {precision:.3f}, recall "
        f"{recall:.3f}; {seconds:.0f} s"
    )
    wrong = []
    if precision < MIN_PRECISION:
        wrong.append(f"precision {precision:.3f} is below {MIN_PRECISION}")
    if recall < MIN_RECALL:
        wrong.append(f"recall {recall:.3f} is below {MIN_RECALL}")
    return wrong


def spread(count: int, places: int) -> list[int]:
    """So many things, over so many places."""
    return [count // places + (place < count % places) for place in range(places)]


def tell(examples: Running, truth: Truth, plan: Round) -> None:
    """Let the served site change."""
    connection = HTTPConnection("127.0.0.1", examples.port, timeout=60)
    for how, numbers in plan._asdict().items():
        for n in numbers:
            path = f"/_{how}?id={truth.id_of(n)}"
            connection.request("GET", path, headers={"Host": truth.portal.site.host})
            connection.getresponse().read()
    connection.close()


def ended_pages(folder: Folder) -> Callable[[], int]:
    """What counts the tasks that have ended since now."""

    def count() -> int:
        if not LocalPersistenceManager.exists(folder.data):
            return 0
        with folder.lpm() as lpm:
            books = lpm.counts.progress(None)
            return books.accepted - books.open

    before = count()
    return lambda: count() - before


def differences(truth: Truth, lpm: LocalPersistenceManager) -> Iterator[str]:
    """Where the store and the truth differ."""
    name, key = truth.portal.name, truth.portal.key
    stored = {each["key"]: each for each in StoredListings(lpm).of_site(name)}
    gone = {each["key"] for each in stored.values() if each["gone_at"]}
    for record in truth.records.values():
        its = stored.pop(record[key], None)
        if its is None:
            yield f"{record[key]} is missing"
        elif its["record"] != record:
            yield f"{record[key]}: its record is {its['record']}"
    yield from (f"{each} should not be there" for each in stored)
    yield from unequal(
        "gone", {truth.records[n][key]: 1 for n in truth.gone}, dict.fromkeys(gone, 1)
    )
    found = [Fact(each["key"], each["kind"]) for each in StoredListings(lpm).changes(name)]
    yield from unequal("changes", by_key(truth.changes), by_key(found))
    prices = [
        Fact(each["key"], (each["previous_price"], each["price"]))
        for each in StoredListings(lpm).prices(name)
    ]
    yield from unequal("prices", by_key(truth.prices), by_key(prices))


def by_key(facts: Iterable[Fact]) -> dict[str, list[Any]]:
    """What happened to each listing, in its order."""
    found: dict[str, list[Any]] = {}
    for key, what in facts:
        found.setdefault(key, []).append(what)
    return found


def unequal(what: str, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """Where two mappings differ."""
    for key in wanted.keys() | found.keys():
        if wanted.get(key) != found.get(key):
            yield f"{what} of {key}: {found.get(key)}, not {wanted.get(key)}"


if __name__ == "__main__":
    sys.exit(main())
