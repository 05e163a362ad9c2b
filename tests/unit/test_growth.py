"""How fast a store grows, by its parts."""

import json
import time
from contextlib import closing
from pathlib import Path

from crawler.db.counts import Growth
from crawler.db.record_versions import Replacement
from crawler.lpm import LocalPersistenceManager
from tests.support.stack import Folder
from tests.support.tasks import collect, done, new, open_job

HOUR, DAY = 3600.0, 86400.0


def grow_old(lpm: LocalPersistenceManager) -> None:
    """Let all so far have happened two days ago."""
    lpm.store.durable.execute(
        f"""UPDATE tasks SET imported_at = imported_at - {2 * DAY};
            UPDATE events SET at = at - {2 * DAY}"""
    )


def growth(lpm: LocalPersistenceManager, now: float) -> Growth:
    """What was added up to then."""
    return lpm.counts.growth(now, lpm.sizes())


def test_a_store_that_has_just_begun_has_grown_by_what_it_takes(tmp_path: Path) -> None:
    """What came within the last hour or day counts, however much came before."""
    with LocalPersistenceManager(tmp_path / "data") as lpm:
        collect(lpm, "job", 10)
        now, sizes = time.time(), lpm.sizes()

        fresh, idle, gone = (growth(lpm, now + later) for later in (0, 2 * HOUR, 2 * DAY))

    parts = {name: sizes[name] for name in ("lpm.db", "raw", "pending")}
    assert all(size > 0 for size in parts.values())
    assert fresh.last_hour == fresh.last_day == idle.last_day == parts
    assert set(idle.last_hour.values()) == set(gone.last_day.values()) == {0}


def test_only_new_pages_let_raw_grow(tmp_path: Path) -> None:
    """Neither does a page that was not sent again, nor one that two results share, nor a replay;
    and no part grows by more than it takes."""
    # Given a store that is older, and a replay of all of it
    with LocalPersistenceManager(tmp_path / "data") as lpm:
        collect(lpm, "old", 10)
        grow_old(lpm)
        lpm.replace_records(
            [
                Replacement(
                    tasks=[each.task],
                    page=each.page,
                    record=b'{"title": "y"}',
                    invalid=[],
                    parser=("generic", "2"),
                    site=("default", "2"),
                    changed="title: …",
                )
                for each in lpm.versions.stored_results(None, None)
                if each.page
            ]
        )
        replayed = growth(lpm, time.time()).last_hour
        before = lpm.sizes()

        # When a new page comes, one that was not sent again, and one that shares the old place
        collect(lpm, "new", 3)
        db = lpm.store.durable
        db.execute(
            """UPDATE results SET verdict = 'unchanged' WHERE task = 12;
               UPDATE results SET same_as = 1,
                   (raw_segment, raw_offset, raw_length) =
                   (SELECT raw_segment, raw_offset, raw_length FROM results WHERE task = 1)
               WHERE task = 13"""
        )
        new_ = growth(lpm, time.time()).last_hour
        one = db.value("SELECT raw_length FROM results WHERE task = 11")
        most = lpm.counts.growth(time.time(), dict.fromkeys(before, 7)).last_hour
        sizes = lpm.sizes()

    # Then only the first counts
    assert (replayed["raw"], replayed["pending"]) == (0, 0)
    assert 0 < replayed["lpm.db"] < 10_000
    assert new_["raw"] == one
    added = sizes["pending"] - before["pending"]
    assert added / 2 < new_["pending"] < added * 2
    assert set(most.values()) == {7}


def test_a_long_span_is_estimated_from_parts_of_it(tmp_path: Path) -> None:
    """With many events, some from all of the span are looked at."""
    with LocalPersistenceManager(tmp_path / "data") as lpm:
        collect(lpm, "old", 1)
        grow_old(lpm)
        collect(lpm, "new", 400)
        exact = growth(lpm, time.time()).last_hour

        about = lpm.counts.growth(time.time(), lpm.sizes(), max_events=100).last_hour

    assert {name: round(about[name] / exact[name], 1) for name in exact} == dict.fromkeys(exact, 1)


def test_a_part_that_is_emptied_does_not_grow(tmp_path: Path) -> None:
    """Results that leave pending/ for an archive count there."""
    with LocalPersistenceManager(tmp_path / "data") as lpm:
        job = open_job(lpm)
        lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(4)], job=job)
        tasks = lpm.get_next_pending("owner", 4)
        lpm.save_result(*map(done, tasks))
        lpm.files.mark_archived([task.task_id for task in tasks], time.time())
        (lpm.folder / "archive").mkdir()
        (lpm.folder / "archive" / "a.jsonl").write_bytes(bytes(1000))

        grow_old(lpm)
        lpm.store.durable.execute("UPDATE events SET at = ?", (time.time(),))

        assert growth(lpm, time.time()).last_hour["pending"] == 0
        assert lpm.archived_since(time.time() - HOUR) == 1000
        assert lpm.archived_since(time.time() + HOUR) == 0


def test_status_says_what_grows_and_how_long_the_disk_lasts(folder: Folder) -> None:
    """With the same figures in --json; an idle store has none."""
    with closing(folder.lpm()) as lpm:
        collect(lpm, "job", 10)

    told = folder.crawler("status").stdout
    store = json.loads(folder.crawler("status", "--json").stdout)["store"]

    assert " in the last hour (most of it lpm.db); " in told
    assert store["bytes_per_hour"] == sum(store["last_hour"].values()) > 0
    assert store["bytes_per_day"] == sum(store["last_day"].values()) > 0
    assert store["full_in_s"] > 0
    with closing(folder.lpm()) as lpm:
        grow_old(lpm)
    store = json.loads(folder.crawler("status", "--json").stdout)["store"]
    assert (store["bytes_per_hour"], store["bytes_per_day"], store["full_in_s"]) == (0, 0, None)
    assert "in the last" not in folder.crawler("status").stdout
