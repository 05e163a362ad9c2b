"""`demo` shows what it promises."""

import json

from tests.support.stack import Folder, left_behind


def test_the_demo_collects_a_list_and_crawls_a_site(folder: Folder) -> None:
    """Both have the outcome that they were built to have, twice in a row, and no process stays."""
    for _ in range(2):
        done = folder.crawler("demo", "--workers", "1")

        assert done.returncode == 0, (done.stdout, done.stderr)
        assert "294 of 300 pages collected" in done.stdout
        assert "69 of 69 pages collected" in done.stdout
        assert "guard session_parameter" in done.stdout
        assert "the sites were built to have" in done.stdout
    assert left_behind(folder) == []

    folder.env["CRAWLER_DATA_DIR"] = str(folder.data / "demo")
    jobs = json.loads(folder.crawler("job", "list", "--json").stdout)
    assert [(job["name"], job["status"]) for job in jobs] == [
        ("parcels.csv", "done"),
        ("imoti.localhost", "done"),
    ]
