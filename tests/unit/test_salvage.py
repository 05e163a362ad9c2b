"""A damaged or lost ledger: what is saved, what comes back from pending/, and what a kill in
between costs."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import apsw
import pytest

from crawler.db import schema
from crawler.doctor import exit_code
from crawler.errors import StoreError
from crawler.lpm import LocalPersistenceManager
from tests.support.patient import change, crawl, ledger, look, of, pages_of, wipe, wrong
from tests.support.tasks import done, new, open_job


@pytest.mark.parametrize(
    ("table", "kind", "projected"),
    [
        ("tasks", "leaf", True),
        ("tasks", "internal", False),
        ("results", "leaf", True),
        ("results", "leaf", False),
        ("results", "internal", False),
    ],
)
def test_a_damaged_ledger_is_salvaged(
    tmp_path: Path, table: str, kind: str, projected: bool
) -> None:
    """Noise over a page: all that lies elsewhere is saved, lost results come from pending/ or are
    collected again."""
    # Given a ledger with a destroyed page
    crawl(tmp_path)
    path = tmp_path / "lpm.db"
    damaged = wipe(path, pages_of(path, table, kind)[0])
    if not projected:
        for file in (tmp_path / "pending").iterdir():
            file.unlink()

    # When the doctor looks, and then mends
    found = look(tmp_path)
    assert exit_code(found) == 4
    assert "damaged" in of(found, "ledger", "wrong")[0]
    assert path.read_bytes() == damaged
    mended = look(tmp_path, repair=True)

    # Then the damaged file is kept byte for byte, and nothing is wrong any more
    assert exit_code(mended) == 0, wrong(mended)
    [kept] = tmp_path.glob("lpm.db.damaged-*Z")
    assert kept.read_bytes() == damaged
    assert kept.name in of(mended, "ledger", "mended")[0]
    assert not list(tmp_path.glob("lpm.db.salvaged-*"))
    assert wrong(look(tmp_path)) == []

    # And what can be known is there; the ledger goes on
    lpm = LocalPersistenceManager(tmp_path)
    books = lpm.counts.totals()
    leaf = 30  # rows that one page may hold at most
    assert books.accepted >= 400 - leaf
    assert books.completed >= (300 if projected else 300 - leaf)
    if kind == "internal":
        assert (books.accepted, books.completed) == (400, 300)
    assert len({result["url"] for result in lpm.results.read()}) == books.completed
    left = lpm.get_next_pending("owner", 500)
    assert len(left) == books.pending
    lpm.save_result(*(done(task) for task in left))
    assert lpm.counts.totals().open == 0
    lpm.close()


def test_a_result_that_is_nowhere_is_collected_again(tmp_path: Path) -> None:
    """A completed task whose result is lost is pending again, its timeline says why, and its job is
    open again."""
    # Given a job that was done, a lost page of results, and nothing in pending/
    job = crawl(tmp_path, 50, 50)
    lpm = LocalPersistenceManager(tmp_path)
    assert lpm.jobs.finalise(time.time()) != []
    lpm.close()
    wipe(tmp_path / "lpm.db", pages_of(tmp_path / "lpm.db", "results", "leaf")[1])
    for file in (tmp_path / "pending").iterdir():
        file.unlink()

    # When it is mended
    look(tmp_path, repair=True)

    # Then the books balance, and the lost ones wait
    lpm = LocalPersistenceManager(tmp_path)
    books = lpm.counts.of_job(job)
    assert books.accepted == 50
    assert books.pending > 0
    assert books.results == books.completed
    assert [j.status for j in lpm.jobs.all()] == ["open"]
    [(events,)] = lpm.store.db.all("SELECT count(*) FROM events WHERE kind = 'result lost'")
    assert events == books.pending
    lpm.close()


@pytest.mark.parametrize("also", ["nothing", "index", "events"])
def test_numbers_of_lost_results_do_not_come_again(tmp_path: Path, also: str) -> None:
    """Whoever followed the results continues behind the last number that was given."""
    # Given a lost page with the highest numbers, nothing in pending/, and one more page lost
    crawl(tmp_path, 60, 50)
    path = tmp_path / "lpm.db"
    wipe(path, pages_of(path, "results", "leaf")[-1])
    if also == "index":
        wipe(path, pages_of(path, "results_by_seq", "leaf")[-1])
    if also == "events":
        wipe(path, pages_of(path, "events", "leaf")[-1])
    for file in (tmp_path / "pending").iterdir():
        file.unlink()

    # When it is mended, and goes on
    assert exit_code(look(tmp_path, repair=True)) == 0
    with LocalPersistenceManager(tmp_path) as lpm:
        assert lpm.store.db.value("SELECT max(seq) FROM results") < 50
        lpm.save_result(*map(done, lpm.get_next_pending("owner", 1)))

        # Then the next number is higher than any before
        assert lpm.store.db.value("SELECT max(seq) FROM results") > 50


OF_LISTINGS = ("listing_changes", "record_versions", "listing_pairs", "price_history", "viewings")


def test_rows_that_come_from_nowhere_else_outlive_the_root_of_their_table(tmp_path: Path) -> None:
    """Each row is back, and none of another table has taken its place."""
    # Given a store with much of each, among it what people said
    sound = tmp_path / "sound"
    crawl(sound, 100, 90)
    for table, values in {
        "listings": """n, 'portal', n, 'http://a.example/' || n, CAST(n AS BLOB), '{}',
            printf('%064d', n), printf('%064d', n), 1e5, 'EUR', 1e9, 1e9, 1e9, NULL, NULL, NULL, 0,
            0, 1, NULL, 1""",
        "listing_changes": """n, n, 1e9 + n, iif(n % 2, 'new', 'gone'),
            iif(n % 3, '{"price":[1,2]}', NULL), iif(n % 2, n, NULL), iif(n % 2, NULL, 1)""",
        "record_versions": """1 + n % 90, 1 + n / 90, '{"price":1}', iif(n % 2, NULL, '[]'),
            'parser', '1', 'portal', '1', 1e9 + n""",
        "listing_pairs": """n - 1, n, iif(n % 2, 1, 0.5), '{"area":1}', '[]', 1e9 + n,
            iif(n % 2, 'same', NULL), iif(n % 2, 1e9, NULL)""",
        "price_history": "n, n, 1e9 + n, n + 0.5, 'EUR', n, iif(n % 2, 'EUR', NULL), 1",
        "viewings": "n, n, 1e9 + n, 'A note of some words, number ' || n",
        "losses": "n, 1, 1e9, 'pages', 'page ' || n, 1e9, NULL",
    }.items():
        rows = f"SELECT {values} FROM generate WHERE {table!r} <> 'listing_pairs' OR n > 1"
        change(
            sound,
            f"""WITH RECURSIVE generate(n) AS
                (SELECT 1 UNION ALL SELECT n + 1 FROM generate WHERE n < 400)
                INSERT INTO {table} {rows}""",
        )
    assert exit_code(look(sound)) == 0, wrong(look(sound))

    for table in OF_LISTINGS:
        # When the root of a table is destroyed, and the store is mended
        hit = shutil.copytree(sound, tmp_path / table)
        path = hit / "lpm.db"
        wipe(path, pages_of(path, table, "internal")[0])
        assert exit_code(look(hit, repair=True)) == 0

        # Then all are as before
        for each in OF_LISTINGS:
            rows = f"SELECT * FROM {each} ORDER BY 1, 2"
            assert ledger(hit, rows) == ledger(sound, rows), f"{each} after damage to {table}"


def test_what_was_collected_in_time_does_not_expire(tmp_path: Path) -> None:
    """A result that is lost after its deadline, and its page with it, is collected again: it had
    been in time."""
    crawl(tmp_path, 50, 50)
    change(tmp_path, "UPDATE tasks SET deadline = 1000")
    wipe(tmp_path / "lpm.db", pages_of(tmp_path / "lpm.db", "results", "leaf")[1])
    for file in (tmp_path / "pending").iterdir():
        file.unlink()

    look(tmp_path, repair=True)

    lpm = LocalPersistenceManager(tmp_path)
    lost = lpm.counts.totals().pending
    lpm.tasks.expire(lpm.now())
    assert lost > 0
    assert len(lpm.get_next_pending("owner", 100)) == lost
    lpm.close()


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_hit_the_books_balance_afterwards(tmp_path: Path, seed: int) -> None:
    """Bytes flipped anywhere behind the header, half of pending/ gone: what is left adds up and
    goes on."""
    crawl(tmp_path, 100, 80)
    chance, path = random.Random(seed), tmp_path / "lpm.db"
    data = bytearray(path.read_bytes())
    for _ in range(100):
        data[chance.randrange(100, len(data))] = chance.randrange(256)
    path.write_bytes(data)
    for file in list((tmp_path / "pending").iterdir())[::2]:
        file.unlink()

    assert exit_code(look(tmp_path)) == 4
    mended = look(tmp_path, repair=True)

    assert exit_code(mended) in (0, 1), wrong(mended)
    [kept] = tmp_path.glob("lpm.db.damaged-*Z")
    assert kept.read_bytes() == data
    lpm = LocalPersistenceManager(tmp_path)
    books = lpm.counts.totals()
    # What is lost is told, by both looks, until it is accepted.
    told = [finding.detail for finding in wrong(mended)]
    assert told or books.accepted == 100
    assert [finding.detail for finding in wrong(look(tmp_path))] == told
    for job in lpm.jobs.all():
        lpm.accept(job)
    assert wrong(look(tmp_path)) == []
    assert len(list(lpm.results.read())) == books.completed >= 40
    assert len(lpm.get_next_pending("owner", 500)) == books.pending
    lpm.close()


@pytest.mark.parametrize(
    "content", [None, b"", b"not a database, but a text that somebody has put here\n" * 100]
)
def test_a_lost_ledger_is_made_again_from_pending(tmp_path: Path, content: bytes | None) -> None:
    """Without lpm.db, or with something else in its place, every result in pending/ finds its way
    into a new one."""
    crawl(tmp_path, 30, 20)
    before = {file.name: json.loads(file.read_text()) for file in (tmp_path / "pending").iterdir()}
    path = tmp_path / "lpm.db"
    path.unlink()
    if content is not None:
        path.write_bytes(content)

    found = look(tmp_path)
    mended = look(tmp_path, repair=True)

    assert exit_code(found) == 4
    assert ["its row was lost" in finding.detail for finding in wrong(mended)] == [
        True
    ]  # and its open tasks are
    assert [kept.read_bytes() for kept in tmp_path.glob("lpm.db.damaged-*")] == (
        [] if content is None else [content]
    )
    lpm = LocalPersistenceManager(tmp_path)
    after = {f"{result['task_id']}.json": result for result in lpm.results.read()}
    assert after == before
    assert lpm.counts.of_job(lpm.jobs.named("job")).completed == 20
    [(kind, size)] = lpm.store.db.all("SELECT DISTINCT content_type, bytes FROM results")
    assert (kind, size) == ("text/html", 400)
    assert (lpm.pages.read(1), len(list(lpm.raw.glob("*.warc.gz")))) == (None, 1)
    lpm.bury()
    assert len(list(lpm.raw.glob("*.warc.gz"))) == 1
    lpm.close()


def test_the_log_of_a_linked_ledger_is_read_too(tmp_path: Path) -> None:
    """Where lpm.db is a link to another disk, its log is there, and a repair saves what is in
    it."""
    crawl(tmp_path / "living", 20, 10)
    lpm = LocalPersistenceManager(tmp_path / "living")
    lpm.save_result(*(done(task) for task in lpm.get_next_pending("owner", 5)))
    data, far = tmp_path / "data", tmp_path / "far"
    shutil.copytree(tmp_path / "living", data)
    lpm.close()
    far.mkdir()
    for path in data.glob("lpm.db*"):
        path.rename(far / path.name)
    (data / "lpm.db").symlink_to(far / "lpm.db")
    shutil.rmtree(data / "pending")
    wipe(far / "lpm.db", pages_of(far / "lpm.db", "tasks_by_task_id", "leaf")[0])

    look(data, repair=True)

    assert ledger(data, "SELECT count(*) FROM results") == [(15,)]


def test_a_ledger_whose_log_was_lost_is_not_begun_anew(tmp_path: Path) -> None:
    """Where all was in the log still, and that is gone, no new ledger takes the place of the
    results that are there."""
    lpm = LocalPersistenceManager(tmp_path / "living")
    job = open_job(lpm)
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(10)], job=job)
    lpm.save_result(*(done(task) for task in lpm.get_next_pending("owner", 5)))
    data = tmp_path / "data"
    shutil.copytree(tmp_path / "living", data)
    lpm.close()
    for ending in ("-wal", "-shm"):
        (data / f"lpm.db{ending}").unlink()

    with pytest.raises(StoreError, match="missing or empty, but 6 files of results are there"):
        LocalPersistenceManager(data).close_after_check()
    assert (
        "it is empty, but pending/ and raw/ hold 5 and 1 files"
        in of(look(data), "ledger", "wrong")[0]
    )

    look(data, repair=True)
    assert ledger(data, "SELECT count(*) FROM results JOIN tasks ON id = task") == [(5,)]
    assert of(look(data), "jobs", "wrong")  # its open tasks are lost, and it says so


def test_results_that_an_older_ledger_does_not_know_are_put_back(tmp_path: Path) -> None:
    """A ledger that was rolled back gets back from pending/ and raw/ what was collected since."""
    # Given a ledger that is replaced by an older copy of itself
    crawl(tmp_path, 30, 10)
    older = (tmp_path / "lpm.db").read_bytes()
    lpm = LocalPersistenceManager(tmp_path)
    lpm.persist_tasks([new(f"http://b.example/{n}") for n in range(20)])
    lpm.save_result(*(done(task) for task in lpm.get_next_pending("owner", 40)))
    before = {result["task_id"]: result["url"] for result in lpm.results.read()}
    lpm.close()
    (tmp_path / "lpm.db").write_bytes(older)

    # When it is looked at, and mended
    found = look(tmp_path)
    look(tmp_path, repair=True)

    # Then all results are there again, each with its page
    assert "40 results in pending/ that this ledger does not know" in of(found, "books", "wrong")[0]
    lpm = LocalPersistenceManager(tmp_path)
    assert {result["task_id"]: result["url"] for result in lpm.results.read()} == before
    lpm.close()


@pytest.mark.parametrize("content", [b"", b"some text\n" * 100, os.urandom(9000)])
def test_nothing_to_save_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    """What holds no task is not replaced by an empty ledger."""
    path = tmp_path / "lpm.db"
    path.write_bytes(content)
    expected = 4 if content else 0

    assert exit_code(look(tmp_path)) == expected
    assert exit_code(look(tmp_path, repair=True)) == expected
    assert path.read_bytes() == content
    assert [file.name for file in tmp_path.glob("*lpm.db*")] == ["lpm.db"]


def test_a_folder_named_lpm_db(tmp_path: Path) -> None:
    """A folder in the ledger's place is said to be one."""
    (tmp_path / "lpm.db").mkdir()
    findings = look(tmp_path, repair=True)
    assert exit_code(findings) == 4
    assert "not a file" in of(findings, "ledger", "wrong")[0]


def test_foreign_newer_and_older_ledgers(tmp_path: Path) -> None:
    """Another program's and a newer program's are left alone; an older one is migrated by --repair
    only."""
    path = tmp_path / "lpm.db"
    theirs = apsw.Connection(str(path))
    theirs.execute("CREATE TABLE theirs (x)")
    theirs.close()
    assert "another program" in of(look(tmp_path, repair=True), "ledger", "wrong")[0]
    path.unlink()

    old = apsw.Connection(str(path))
    old.execute(schema.MIGRATIONS[0])
    old.execute(f"PRAGMA application_id={schema.APPLICATION_ID}; PRAGMA user_version=1")
    old.execute("INSERT INTO meta VALUES ('ledger_id', 'x')")
    old.close()
    before = path.read_bytes()
    assert "schema 1" in of(look(tmp_path), "ledger", "note")[0]
    assert path.read_bytes() == before
    assert exit_code(look(tmp_path, repair=True)) == 0
    assert "lpm.db.v1.bak" in of(look(tmp_path), "ledger", "note")[0]

    change(tmp_path, "PRAGMA user_version=99")
    findings = look(tmp_path, repair=True)
    assert "newer version" in of(findings, "ledger", "wrong")[0]
    assert exit_code(findings) == 4


def test_a_row_that_makes_no_sense_is_damage(tmp_path: Path) -> None:
    """A flipped byte inside a record is nothing to SQLite, but is found, and the result comes back
    from pending/."""
    crawl(tmp_path, 20, 20)
    before = {file: file.read_bytes() for file in (tmp_path / "pending").iterdir()}
    change(tmp_path, """UPDATE results SET record = '{"title"!"x"}' WHERE task = 3""")

    assert "1 rows of results make no sense" in of(look(tmp_path), "ledger", "wrong")[0]
    assert exit_code(look(tmp_path, repair=True)) == 0
    assert ledger(tmp_path, "SELECT count(*), count(DISTINCT record) FROM results") == [(20, 1)]
    assert {file: file.read_bytes() for file in (tmp_path / "pending").iterdir()} == before


_DIES_WITH_A_LOG = """if True:
    import os, sys
    from pathlib import Path
    from crawler.lpm import LocalPersistenceManager
    from tests.support.tasks import new
    lpm = LocalPersistenceManager(Path(sys.argv[1]))
    lpm.persist_tasks([new(f"http://b.example/{n}") for n in range(300)])
    os._exit(0)
"""


def test_what_was_still_in_the_log_is_saved(tmp_path: Path) -> None:
    """After a kill much of a ledger is in lpm.db-wal only."""
    # Given a writer that dies with everything in its log, and a damaged page of an index
    crawl(tmp_path, 100, 100)
    root = pages_of(tmp_path / "lpm.db", "outbox", "leaf")[0]
    subprocess.run([sys.executable, "-c", _DIES_WITH_A_LOG, str(tmp_path)], check=True)
    assert (tmp_path / "lpm.db-wal").stat().st_size > 100_000
    wipe(tmp_path / "lpm.db", root)

    mended = look(tmp_path, repair=True)

    assert exit_code(mended) == 0, wrong(mended)
    assert of(mended, "ledger", "mended")
    assert ledger(tmp_path, "SELECT count(*) FROM tasks") == [(400,)]
    assert ledger(tmp_path, "SELECT count(*) FROM outbox") == [(100,)]


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_repair_that_is_killed_at_its_end(tmp_path: Path, step: int) -> None:
    """Killed before or between its renames, a repair loses nothing: no command goes on, and the
    next repair ends it."""
    # Given a damaged ledger with a log, and a repair that is killed
    crawl(tmp_path, 100, 100)
    root = pages_of(tmp_path / "lpm.db", "outbox", "leaf")[0]
    subprocess.run([sys.executable, "-c", _DIES_WITH_A_LOG, str(tmp_path)], check=True)
    wipe(tmp_path / "lpm.db", root)
    env = os.environ | {"CRAWLER_DATA_DIR": str(tmp_path), "CRAWLER_FAILPOINT": f"replacing:{step}"}
    argv = [sys.executable, "-m", "crawler", "doctor", "--repair"]
    assert (
        subprocess.run(argv, env=env, capture_output=True, check=False).returncode
        == -signal.SIGKILL
    )
    assert [(tmp_path / f"lpm.db{ending}").exists() for ending in ("", "-wal")] == [
        step < 3,
        step < 2,
    ]

    # When somebody would use it, and then it is mended
    with pytest.raises(StoreError, match="doctor --repair"):
        ledger(tmp_path, "SELECT count(*) FROM tasks")
    found = look(tmp_path)
    mended = look(tmp_path, repair=True)

    # Then all is there, and the damaged one is kept with its log
    assert exit_code(found) == 4
    assert exit_code(mended) == 0, wrong(mended)
    assert ledger(tmp_path, "SELECT count(*) FROM tasks") == [(400,)]
    assert ledger(tmp_path, "SELECT count(*) FROM outbox") == [(100,)]
    [kept] = tmp_path.glob("lpm.db.damaged-*Z")
    assert Path(f"{kept}-wal").stat().st_size > 100_000
    assert not list(tmp_path.glob("lpm.db.salvag*"))
    assert wrong(look(tmp_path)) == []


def test_a_log_beside_a_ledger_that_is_not_in_its_place(tmp_path: Path) -> None:
    """An old log that lies where the salvaged ledger belongs is set aside, and not replayed into
    it."""
    # Given a salvaged ledger, and the log of an earlier state of it
    crawl(tmp_path, 20, 10)
    path = tmp_path / "lpm.db"
    older = path.read_bytes()
    subprocess.run([sys.executable, "-c", _DIES_WITH_A_LOG, str(tmp_path)], check=True)
    log = Path(f"{path}-wal").read_bytes()
    path.write_bytes(older)
    path.rename(tmp_path / "lpm.db.salvaged-20200101T000000Z")

    # When it is mended
    mended = look(tmp_path, repair=True)

    # Then only what was salvaged is there
    assert exit_code(mended) == 0, wrong(mended)
    assert ledger(tmp_path, "SELECT count(*) FROM tasks") == [(20,)]
    assert (tmp_path / "lpm.db.damaged-20200101T000000Z-wal").read_bytes() == log
