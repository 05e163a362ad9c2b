"""A list with one URL under several parcel ids, through the commands that people type."""

import csv
import json
from collections import Counter

from crawler.db.connection import connect
from tests.support.pages import Answer, Pages, parcel
from tests.support.site import Site
from tests.support.stack import Folder


def test_a_list_with_several_parcels_for_each_url(folder: Folder, site: Site) -> None:
    """Each page is fetched once, each row has its result, and a lost one is made again like any
    other."""
    # Given 20 URLs with four parcels each, one of them a page that does not exist
    urls = [*(site.page(n, 0.05) for n in range(19)), f"{site.url}/status/404"]
    rows = [
        (url, f"{number}-{name}", name * 3) for number, url in enumerate(urls) for name in "abcd"
    ]
    file = folder.path / "parcels.csv"
    with file.open("w", newline="") as opened:
        csv.writer(opened).writerows([("url", "parcel_id", "note"), *rows])
    folder.env["CRAWLER_PAGES"] = "64"

    # When it is run
    done = folder.crawler("run", "parcels.csv", "--workers", "2")

    # Then each page was asked for once, the bad one too
    assert done.returncode == 1, done.stderr
    assert Counter(site.hits().values()) == {1: 20}
    assert "76 of 80 pages collected" in done.stdout
    results = folder.results()
    found = {(result["url"], result["parcel_id"], result["input"]["note"]) for result in results}
    assert found == set(rows[:76])
    assert len(results) == len({result["task_id"] for result in results}) == 76

    # And all that looks at the store agrees: receipt, doctor, audit, timelines
    assert folder.crawler("job", "verify", "parcels.csv").returncode in (0, 1)
    assert folder.crawler("doctor").returncode == 0
    assert json.loads(folder.crawler("audit", "--json").stdout)
    assert folder.crawler("why", urls[0]).stdout.count("same_fetch_as") == 3

    # When results of siblings are lost, with their files
    lost = [result["task_id"] for result in results if result["parcel_id"].endswith("b")]
    with connect(folder.data / "lpm.db") as db:
        for task_id in lost:
            db.execute(
                "DELETE FROM results WHERE task = (SELECT id FROM tasks WHERE task_id = ?)",
                (task_id,),
            )
            (folder.data / "pending" / f"{task_id}.json").unlink()
    db.close()

    # Then the doctor makes them again from the page that they share
    assert folder.crawler("doctor", "--repair").returncode == 0
    again = {result["task_id"]: result["data"] for result in folder.results()}
    assert again == {result["task_id"]: result["data"] for result in results}


def test_an_unchanged_page_is_unchanged_for_every_row(folder: Folder, pages: Pages) -> None:
    """One conditional request serves all rows of a second run, and each result is the earlier
    one's."""
    # Given a list that was run before
    pages.answers["/page/1"] = Answer(parcel(1), headers={"ETag": '"one"'})
    url = f"{pages.url}/page/1"
    file = folder.path / "parcels.csv"
    file.write_text(f"url,parcel_id\n{url},a\n{url},b\n{url},c\n")
    assert folder.crawler("run", str(file)).returncode == 0
    first = folder.results()

    # When it is run again
    assert folder.crawler("run", str(file)).returncode == 0

    # Then there are three more results of one request more, and the store is sound
    again = folder.results()[3:]
    assert len([request for request in pages.asked if request.path == "/page/1"]) == 2
    assert [(result["parcel_id"], result["verdict"]) for result in again] == [
        (name, "unchanged") for name in "abc"
    ]
    assert [result["data"] for result in again] == [result["data"] for result in first]
    assert {result["same_as"] for result in again} == {first[0]["task_id"]}
    assert folder.crawler("doctor").returncode == 0
