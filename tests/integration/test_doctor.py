"""`doctor` as it is typed: on a running stack, on an unfit Redis, on a store after an accident."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.pages import Pages
from tests.support.patient import change, ledger, pages_of, wipe
from tests.support.stack import Folder
from tests.support.tasks import done, new


def findings(folder: Folder, *args: str, code: int = 0) -> list[dict[str, Any]]:
    """What `doctor --json` prints."""
    typed = folder.crawler("doctor", "--json", *args)
    assert typed.returncode == code, typed.stdout + typed.stderr
    found: list[dict[str, Any]] = json.loads(typed.stdout)
    assert all(list(finding) == ["check", "state", "detail", "fix"] for finding in found)
    return found


def test_a_running_stack_is_well_and_stays_so(folder: Folder, pages: Pages) -> None:
    """In the middle of a crawl nothing is wrong, --repair touches nothing, and the crawl ends as it
    would have."""
    # Given a crawl in the middle, with pages that do not answer yet
    urls, answering = pages.parcels(300), threading.Event()
    pages.hold(60, until=answering)
    folder.crawler("up", "--workers", "2")
    folder.crawler("bulk", "import", str(folder.write("p.txt", urls)))
    folder.wait_until_completed(20, 60)

    # When the doctor looks, and is asked to mend
    found = findings(folder)
    mending = findings(folder, "--repair", code=1)

    # Then all is well, and mending is refused for as long as the stack is up
    assert folder.books().open > 0
    assert {finding["check"] for finding in found} >= {
        "versions",
        "ledger",
        "books",
        "segments",
        "projections",
        "redis",
    }
    assert not [finding for finding in found if finding["state"] in ("wrong", "mended")]
    assert any(
        "the stack is up" in finding["detail"] and "2 children" in finding["detail"]
        for finding in found
    )
    [refused] = [finding for finding in mending if finding["state"] == "wrong"]
    assert (refused["check"], refused["fix"]) == ("repair", "python -m crawler down")

    # And the crawl goes on to its end
    answering.set()
    books = folder.wait_until_done(300, 60)
    assert (books.completed, len(pages.paths())) == (300, 300)
    assert folder.crawler("down").returncode == 0
    assert findings(folder, "--repair")


def test_a_redis_that_throws_work_away(folder: Folder, redis_url: str) -> None:
    """An eviction policy is wrong, and the command that sets it right is printed; keys of others
    are a note."""
    folder.env["REDIS_URL"] = redis_url
    client: redis.Redis = folder.redis()
    client.flushall()
    client.set("theirs", 1)
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        typed = folder.crawler("doctor")
    finally:
        client.config_set("maxmemory-policy", "noeviction")
        client.flushall()

    assert typed.returncode == 1
    assert "allkeys-lru" in typed.stdout
    assert "→ redis-cli CONFIG SET maxmemory-policy noeviction" in typed.stdout
    assert "never expire: theirs" in typed.stdout
    assert not [finding for finding in findings(folder) if finding["state"] == "wrong"]


def test_a_redis_that_is_away(folder: Folder) -> None:
    """An address that nobody answers at is wrong, and its password is not shown."""
    typed = folder.crawler("doctor", REDIS_URL="redis://:secret@127.0.0.1:1/0")
    assert typed.returncode == 1
    assert "Redis does not answer at" in typed.stdout
    assert "secret" not in typed.stdout + typed.stderr


def test_a_store_after_an_accident(folder: Folder) -> None:
    """Noise in the middle of lpm.db and of a segment: a command later every result is there; one
    page is missed."""
    # Given results, and an accident
    lpm = folder.lpm()
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(300)])
    lpm.save_result(
        *(done(task, record={"title": task.url}) for task in lpm.get_next_pending("owner", 300))
    )
    before = list(lpm.results.read())
    lpm.close()
    [segment] = (folder.data / "raw").glob("*.warc.gz")
    hit = before[7]
    damage(segment, hit["raw"]["offset"] + 100, 50)
    path = folder.data / "lpm.db"
    damage(path, path.stat().st_size // 2, 9000)

    # When it is examined and mended
    examined = folder.crawler("doctor")
    mended = folder.crawler("doctor", "--repair")

    # Then first it cannot be used, and then it can; what is missed is said plainly
    assert (examined.returncode, mended.returncode) == (4, 0), mended.stdout + mended.stderr
    assert "→ python -m crawler doctor --repair" in examined.stdout
    assert "Traceback" not in examined.stderr + mended.stderr
    after = folder.results()
    assert {result["url"]: result["data"] for result in after} == {
        result["url"]: result["data"] for result in before
    }
    assert [result["url"] for result in after if result["raw"] is None] == [hit["url"]]
    assert hit["url"] in mended.stdout
    page = folder.crawler("raw", hit["url"])
    assert page.returncode != 0
    assert "cannot be read" in page.stderr
    assert folder.crawler("doctor").returncode == 0


@pytest.mark.parametrize(
    "damaged", ["record = '{'", "record = '[]'", "record = cast(x'7bff' AS TEXT)"]
)
def test_a_result_that_cannot_be_read(folder: Folder, damaged: str) -> None:
    """A command that meets a damaged record says so in a line, and the doctor sees it too."""
    lpm = folder.lpm()
    lpm.persist_tasks([new("http://a.example/")])
    lpm.save_result(*(done(task) for task in lpm.get_next_pending("owner", 1)))
    lpm.store.durable.execute(f"UPDATE results SET {damaged}")
    lpm.close()

    typed = folder.crawler("results", "export", "-o", "x.jsonl")

    assert typed.returncode == 4, typed.stderr
    assert "Traceback" not in typed.stderr
    assert "damaged" in typed.stderr
    assert not (folder.path / "x.jsonl").exists()
    assert folder.crawler("doctor").returncode == 4


def damage(path: Path, offset: int, length: int) -> None:
    """Noise over a stretch of a file."""
    data = bytearray(path.read_bytes())
    data[offset : offset + length] = bytes(n * 37 % 251 for n in range(length))
    path.write_bytes(data)


def test_lost_results_are_made_again_from_their_pages(folder: Folder, pages: Pages) -> None:
    """Results that went with a damaged page of lpm.db come back from raw/, also after their job's
    deadline."""
    # Given a job that ended in time, its deadline since passed, and a ledger that lost results;
    # pending/ is empty
    file = folder.write("parcels.txt", pages.parcels(60))
    assert folder.crawler("run", str(file), "--deadline", "1h").returncode == 0
    change(folder.data, "UPDATE tasks SET deadline = 1000")
    change(folder.data, "UPDATE jobs SET deadline = 1000")
    change(folder.data, "PRAGMA wal_checkpoint(TRUNCATE)")
    before = {result["task_id"]: result for result in folder.results()}
    assert folder.crawler("results", "archive").returncode == 0
    path = folder.data / "lpm.db"
    wipe(path, pages_of(path, "results", "leaf")[1])
    asked = len(pages.paths())

    # When it is mended
    mended = folder.crawler("doctor", "--repair")

    # Then every result is there as it was, nothing is open, and no page was asked for again
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert "lost results were rebuilt from their stored pages" in mended.stdout
    after = {result["task_id"]: result for result in folder.results()}
    assert after.keys() == before.keys()
    for name in ("data", "url", "final_url", "raw", "raw_html_hash", "site", "parser", "verdict"):
        assert {key: result[name] for key, result in after.items()} == {
            key: r[name] for key, r in before.items()
        }
    assert folder.books().completed == 60
    assert folder.crawler("resume").returncode == 0
    assert folder.crawler("job", "verify", "parcels.txt").returncode == 0
    assert len(pages.paths()) == asked
    [(lost,), *_] = ledger(
        folder.data,
        "SELECT task_id FROM tasks JOIN events ON task = tasks.id WHERE kind = 'result lost'",
    )
    assert "again from the stored page" in folder.crawler("why", str(lost)).stdout
    assert folder.crawler("doctor").returncode == 0
