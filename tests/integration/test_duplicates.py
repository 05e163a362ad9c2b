"""Listings that two sites have, from two crawls at once to what a person says of them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from crawler.examples.domove import Domove
from crawler.examples.server import Running
from tests.support.sites import configure
from tests.support.stack import Folder

SIZE, SHARED = 60, 12


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """A folder in which both example portals were crawled at once."""
    with Running("crawler.examples", "--port", 0, "--size", SIZE, "--shared", SHARED) as examples:
        config = configure(tmp_path / "config", examples.port, "imoti", "domove")
        folder = Folder(tmp_path, CRAWLER_PAGES="8", CRAWLER_CONFIG_DIR=str(config))
        done = folder.crawler("sites", "crawl", "--parallel")
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"listings: {SIZE} new" in done.stdout
        yield folder
        folder.stop()


def test_what_two_sites_share_is_found_after_a_parallel_crawl(folder: Folder) -> None:
    """The pairs are there without another command, with reasons; what a person says stays."""
    # Given the pairs that the end of the crawl has left
    with folder.lpm() as lpm:
        assert lpm.listing_pairs.to_match() == 0

    # When they are listed, and one of them is separated
    facts = json.loads(folder.crawler("listings", "duplicates", "--limit", "0", "--json").stdout)
    [first, *_] = facts["items"]
    names = [f"{first[side]['site']}:{first[side]['key']}" for side in ("a", "b")]
    separated = folder.crawler("listings", "separate", *names)
    again = folder.crawler("listings", "duplicates", "--again", "--limit", "0", "--json")

    # Then they are what both sites have, and the separated pair does not come back
    found = {tuple(sorted(pair[side]["key"] for side in "ab")) for pair in facts["items"]}
    truth = set(Domove(SIZE, shared=SHARED).truth())
    assert len(found & truth) >= 0.9 * len(truth)
    assert len(found & truth) >= 0.95 * len(found)
    assert all(pair["reasons"] for pair in facts["items"])
    assert separated.returncode == 0, separated.stderr
    assert json.loads(again.stdout)["pairs"] == facts["pairs"] - 1
    shown = json.loads(folder.crawler("listings", "show", names[0], "--json").stdout)
    assert shown["id"] == first["a"]["listing"]
