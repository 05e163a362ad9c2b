"""Whatever is killed in the middle, every page comes once."""

from tests.support.site import Site
from tests.support.stack import Folder
from tests.support.storm import storm


def test_2000_pages_survive_kills_of_children_workers_and_redis(folder: Folder, site: Site) -> None:
    """Five kill -9 of children and workers, an emptied and a killed Redis: none lost, none twice, back within 10 s."""
    # Given a crawl of 2,000 pages
    kills = ["child", "flushall", "worker", "child", "redis", "worker", "child"]

    # When these are struck one after the other
    score = storm(folder, site, pages=2000, kills=kills, workers=2, latency_s=0.06, seed=7)

    # Then every page is there once, and only what was in flight was fetched again
    assert (score.lost, score.twice) == (0, 0), score
    assert score.extra_fetches <= score.in_flight_at_kills, score
    assert score.slowest_recovery_s < 10, score
    assert score.samples > 5, score
