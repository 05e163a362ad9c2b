"""A worker killed at each step of the way, again and again: every page still comes once."""

from collections import Counter

import pytest

from tests.support.site import Site
from tests.support.stack import Folder, wait_for


@pytest.mark.parametrize(
    "failpoint",
    ["delivered:3", "claimed:6", "raw-synced:6", "committing:6", "committed:6", "acknowledging:3"],
)
def test_killed_at_a_step(folder: Folder, site: Site, redis_url: str, failpoint: str) -> None:
    """Killed between delivery and claim, before and after the commit, before the acknowledgement:
    nothing is lost."""
    # Given 120 tasks in small chunks and a worker whose children die at the n-th passage of a step
    folder.env["REDIS_URL"] = redis_url
    folder.redis().flushall()
    pages = [
        site.page(n, 0.2) for n in range(120)
    ]  # three seconds for the worker, so that each child has many slices
    file = folder.write("pages.txt", pages)
    assert folder.crawler("bulk", "import", str(file), "--batch-size", "5").returncode == 0
    dying = folder.worker(concurrency=2, CRAWLER_FAILPOINT=failpoint, CRAWLER_SLICE_S="0.1")
    wait_for(lambda: "SIGKILL" in folder.log(dying), 60, "a child to die at its failpoint")

    # When a sound worker takes over
    dying.kill()
    dying.wait(120)
    folder.worker(concurrency=2)
    folder.wait_until_done(120, 60)

    # Then every page is there once
    found = Counter(result["url"] for result in folder.results())
    assert found == Counter(pages)
    assert len(list((folder.data / "pending").glob("*.json"))) == 120


@pytest.mark.parametrize("failpoint", ["claimed:6", "raw-synced:6", "committing:6", "committed:6"])
def test_killed_around_the_commit_of_siblings(
    folder: Folder, site: Site, redis_url: str, failpoint: str
) -> None:
    """One page for three rows, its worker killed before, within and after the commit: each row has
    its result once."""
    # Given 60 URLs with three parcels each, and a worker whose children die at the n-th passage of
    # a step
    folder.env["REDIS_URL"] = redis_url
    folder.redis().flushall()
    pages = [site.page(n, 0.2) for n in range(60)]
    rows = [(url, f"{number}-{name}") for number, url in enumerate(pages) for name in "abc"]
    file = folder.path / "parcels.csv"
    file.write_text("url,parcel_id\n" + "".join(f"{url},{parcel}\n" for url, parcel in rows))
    assert folder.crawler("bulk", "import", str(file), "--batch-size", "5").returncode == 0
    dying = folder.worker(concurrency=2, CRAWLER_FAILPOINT=failpoint, CRAWLER_SLICE_S="0.1")
    wait_for(lambda: "SIGKILL" in folder.log(dying), 60, "a child to die at its failpoint")

    # When a sound worker takes over
    dying.kill()
    dying.wait(120)
    folder.worker(concurrency=2)
    folder.wait_until_done(180, 60)

    # Then every row is there once, with its own columns, and its file
    results = folder.results()
    assert Counter((result["url"], result["parcel_id"]) for result in results) == Counter(rows)
    assert all(result["input"]["parcel_id"] == result["parcel_id"] for result in results)
    assert {path.stem for path in (folder.data / "pending").glob("*.json")} == {
        each["task_id"] for each in results
    }
    assert folder.crawler("job", "verify", "parcels.csv").returncode == 0
    # And few pages were fetched again
    assert sum(site.hits().values()) < 120


def test_a_call_killed_between_commit_and_acknowledgement_is_not_fetched_again(
    folder: Folder, site: Site, redis_url: str
) -> None:
    """The redelivered call finds its result and returns it."""
    # Given a call whose worker dies right after its commit
    folder.env |= {"REDIS_URL": redis_url, "CRAWLER_ALLOW_NETS": "127.0.0.0/8"}
    folder.redis().flushall()
    url = site.page(1)
    dying = folder.worker(concurrency=1, CRAWLER_FAILPOINT="committed-call:1")
    import subprocess
    import sys

    program = f"from crawler.tasks import scrape_task; scrape_task.delay({url!r})"
    subprocess.run(
        [sys.executable, "-c", program], cwd=folder.path, env=folder.env, timeout=240, check=True
    )
    wait_for(lambda: "SIGKILL" in folder.log(dying), 60, "the child to die after its commit")
    dying.kill()
    dying.wait(120)

    # When the message is delivered to another worker (Celery's own net: after the visibility
    # timeout, here by hand)
    client = folder.redis()
    for body in client.hvals("unacked"):
        import json

        message, _, queue = json.loads(body)
        client.lpush(queue, json.dumps(message))
    client.delete("unacked", "unacked_index")
    worker = folder.worker(concurrency=1)
    wait_for(
        lambda: not client.llen("default") and not client.hlen("unacked"),
        30,
        "the message to be acknowledged",
    )

    # Then there is one result, and one fetch
    assert worker.poll() is None
    assert [result["url"] for result in folder.results()] == [url]
    assert sum(site.hits().values()) == 1
