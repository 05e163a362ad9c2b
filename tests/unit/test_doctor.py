"""The doctor: real damage, found, said plainly, and mended without a loss."""

import gzip
import json
import os
import subprocess
import sys
import threading
import time
from hashlib import sha256
from pathlib import Path

import pytest
from msgspec.structs import replace

from crawler.db import guard, raw_pages
from crawler.db.owners import Owner
from crawler.db.pending import missing_files
from crawler.doctor import examine, exit_code
from crawler.errors import StoreError
from crawler.lpm import LocalPersistenceManager
from crawler.models import Outcome, TaskStatus
from crawler.process import ProcessMark
from crawler.results import check_pending_files
from crawler.results.archive import prune
from crawler.stack import Stack, write_stack
from tests.support.patient import (
    change,
    crawl,
    ledger,
    look,
    of,
    pages_of,
    put_in_place,
    wipe,
    wrong,
)
from tests.support.tasks import done, give, new, open_job, page

# Nothing wrong


def test_a_sound_store_has_nothing_wrong(tmp_path: Path) -> None:
    """Every check of a sound store is well, and looking changes no byte of what is there."""
    crawl(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    findings = look(tmp_path)

    assert exit_code(findings) == 0
    assert wrong(findings) == []
    assert {path: path.read_bytes() for path in before} == before
    assert of(findings, "books", "ok") == [
        "400 tasks in 1 jobs, each in one state, each result in its place"
    ]
    assert of(findings, "segments", "ok") == ["300 stored pages in 1 segments can be read"]
    assert of(findings, "projections", "ok") == ["300 results in pending/ are whole"]


def test_repair_of_a_sound_store_changes_nothing(tmp_path: Path) -> None:
    """--repair mends only what is wrong."""
    crawl(tmp_path, 20, 10)
    before = ledger(tmp_path, "SELECT * FROM tasks"), ledger(tmp_path, "SELECT * FROM results")

    findings = look(tmp_path, repair=True)

    assert not [finding for finding in findings if finding.state in ("wrong", "mended")]
    assert (
        ledger(tmp_path, "SELECT * FROM tasks"),
        ledger(tmp_path, "SELECT * FROM results"),
    ) == before


def test_no_store_is_only_a_note(tmp_path: Path) -> None:
    """Where there is no store yet there is nothing to be ill."""
    findings = look(tmp_path / "none")
    assert exit_code(findings) == 0
    assert "no store" in of(findings, "store", "note")[0]
    assert not (tmp_path / "none").exists()
    assert exit_code(look(tmp_path)) == 0


def test_an_unknown_setting_is_a_finding(tmp_path: Path) -> None:
    """A variable that no command would accept does not keep the doctor from looking."""
    crawl(tmp_path, 5, 5)
    findings = look(tmp_path, CRAWLER_WINDWO="5")
    assert "did you mean CRAWLER_WINDOW" in of(findings, "settings", "wrong")[0]
    assert of(findings, "books", "ok")
    assert exit_code(findings) == 1
    assert "redis://" in of(look(tmp_path, REDIS_URL="http://x"), "settings", "wrong")[0]


def test_a_broken_site_file_is_a_finding(tmp_path: Path) -> None:
    """Each broken file is named with its line, whether there is a store or not; so is what only two
    of them break."""
    sites = tmp_path / "config" / "sites"
    sites.mkdir(parents=True)
    (sites / "good.yaml").write_text("hosts: [a.example]\n")
    (sites / "bad.yaml").write_text("hosts: [b.example]\nfields:\n  price: td >\n")
    (sites / "worse.yaml").write_text("hosts: [c.example]\nconcurency: 2\n")

    for data in (tmp_path / "none", tmp_path / "data"):
        findings = look(data, CRAWLER_CONFIG_DIR=str(sites.parent))
        found = of(findings, "sites", "wrong")
        assert [text.partition(": ")[0] for text in found] == [
            f"{sites}/bad.yaml, line 3",
            f"{sites}/worse.yaml, line 2",
        ]
        assert exit_code(findings) == 1
        crawl(tmp_path / "data", 1, 1)

    (sites / "bad.yaml").write_text("hosts: [a.example]\n")
    (sites / "worse.yaml").unlink()
    [both] = of(look(tmp_path / "data", CRAWLER_CONFIG_DIR=str(sites.parent)), "sites", "wrong")
    assert both.startswith(f"{sites}/good.yaml, line 1: the host a.example belongs to")
    (sites / "bad.yaml").unlink()
    assert of(look(tmp_path / "data", CRAWLER_CONFIG_DIR=str(sites.parent)), "sites") == [
        f"1 files in {sites} are good"
    ]


def test_what_sqlite_says_about_damage_is_cut(tmp_path: Path) -> None:
    """A finding is for a person: a page of SQLite's own text says nothing more than its
    beginning."""
    crawl(tmp_path)
    database = bytearray((tmp_path / "lpm.db").read_bytes())
    for start in range(4096, len(database), 4096):
        if database[start] == 0x0D:  # a leaf of a table; then the number of its lost bytes is wrong
            database[start + 7] = 200
    (tmp_path / "lpm.db").write_bytes(database)

    [damaged] = of(look(tmp_path), "ledger", "wrong")

    assert "is damaged" in damaged
    assert "***" not in damaged
    assert damaged.endswith(" …")
    assert len(damaged) < 200 + len(str(tmp_path))


def test_a_folder_that_others_can_read(tmp_path: Path) -> None:
    """The data folder is nobody else's: a note, and mended on request."""
    crawl(tmp_path, 1, 1)
    tmp_path.chmod(0o755)
    assert "mode 0755" in of(look(tmp_path), "folder", "note")[0]
    look(tmp_path, repair=True)
    assert tmp_path.stat().st_mode & 0o777 == 0o700


# Books and leases


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("DELETE FROM results WHERE task = 3", "1 completed tasks without a result"),
        ("DELETE FROM outbox WHERE task = 3", "1 results that are not in the outbox"),
        ("DELETE FROM tasks WHERE id = 3", "1 results whose task is not completed"),
        (
            "UPDATE tasks SET status = 'pending' WHERE id = 3",
            "1 results whose task is not completed",
        ),
        ("UPDATE tasks SET status = 'lost' WHERE id = 12", "1 tasks in an unknown state"),
        ("UPDATE jobs SET size = 7", "1 jobs with another number of rows"),
        ("UPDATE jobs SET status = 'done'", "1 jobs that are done although a task is open"),
    ],
)
def test_books_that_do_not_balance(tmp_path: Path, sql: str, said: str) -> None:
    """Whatever is out of balance is named, and settled without losing a result."""
    crawl(tmp_path, 20, 10)
    change(tmp_path, sql)

    found = look(tmp_path)
    assert said in of(found, "books", "wrong")[0]
    assert exit_code(found) == 1

    assert exit_code(look(tmp_path, repair=True)) == 0
    assert wrong(look(tmp_path)) == []
    assert ledger(tmp_path, "SELECT count(*) FROM results") == [(10,)]
    assert ledger(tmp_path, "SELECT count(*), count(DISTINCT job_id) FROM tasks") == [(20, 1)]


def test_an_import_that_was_broken_off_is_wrong_and_one_that_runs_is_not(tmp_path: Path) -> None:
    """A job whose file is not all in says so, and how to go on."""
    lpm = LocalPersistenceManager(tmp_path)
    job = open_job(lpm)
    with lpm.importing(job):
        running = look(tmp_path)
    lpm.close()
    broken = look(tmp_path)

    assert of(running, "jobs", "note") == ["job job: its import has not ended yet"]
    assert exit_code(running) == 0
    assert "job job: its import was broken off after 0 rows" in of(broken, "jobs", "wrong")[0]
    assert "python -m crawler job accept job" in of(broken, "jobs", "wrong")[0]
    assert exit_code(broken) == 1


def test_leases_of_the_dead_are_freed(tmp_path: Path) -> None:
    """Tasks in the hands of a dead process are found, and pending again after --repair."""
    crawl(tmp_path, 20, 10)
    child = os.fork()
    if child == 0:
        lpm = LocalPersistenceManager(tmp_path)
        lpm.get_next_pending(Owner(lpm.owners, "worker", slots=10).id, 4)
        os._exit(0)
    os.waitpid(child, 0)

    assert "4 tasks are held by processes that are dead" in of(look(tmp_path), "leases", "wrong")[0]
    assert "4 tasks were freed" in of(look(tmp_path, repair=True), "leases", "mended")[0]
    assert ledger(tmp_path, "SELECT count(*) FROM tasks WHERE status = 'processing'") == [(0,)]
    assert list((tmp_path / "run" / "owners").iterdir()) == []


def test_nothing_is_mended_under_the_hands_of_a_worker(tmp_path: Path) -> None:
    """While an owner lives, or a process has the ledger open, --repair only looks."""
    crawl(tmp_path, 5, 5)
    (file, *_) = (tmp_path / "pending").iterdir()
    file.unlink()
    owner = Owner(tmp_path / "run" / "owners", "worker", slots=10)
    findings = look(tmp_path, repair=True)
    owner.close()
    assert "python -m crawler down" in of(findings, "repair", "wrong")[0]
    assert not file.exists()

    script = (
        "import sys, apsw; db = apsw.Connection(sys.argv[1]); db.pragma('user_version'); "
        "print(1, flush=True); input()"
    )
    argv = [sys.executable, "-c", script, str(tmp_path / "lpm.db")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        findings = look(tmp_path, repair=True)
        reader.communicate(b"\n")
    assert f"process {reader.pid}" in of(findings, "repair", "wrong")[0]
    assert exit_code(look(tmp_path, repair=True)) == 0
    assert file.exists()


def test_what_is_proposed_while_somebody_works_can_be_done(tmp_path: Path) -> None:
    """A repair is refused until the stack is down: so that comes first in every proposal, asked to
    repair or not."""
    crawl(tmp_path, 5, 5)
    change(tmp_path, "DELETE FROM outbox WHERE task = 1")
    owner = Owner(tmp_path / "run" / "owners", "worker", slots=10)

    proposed = [
        [finding.fix for finding in wrong(look(tmp_path, repair))] for repair in (False, True)
    ]
    owner.close()

    mend = "python -m crawler down, then python -m crawler doctor --repair"
    assert mend in proposed[0]
    assert proposed[1][0] == "python -m crawler down"
    assert mend in proposed[1]
    assert "python -m crawler doctor --repair" in [finding.fix for finding in wrong(look(tmp_path))]


def test_nothing_is_mended_while_the_store_is_in_use(tmp_path: Path) -> None:
    """A store that is open anywhere, and be it here, is only looked at; closed or forgotten, it can
    be mended."""
    crawl(tmp_path, 5, 5)
    wipe(tmp_path / "lpm.db", pages_of(tmp_path / "lpm.db", "outbox", "leaf")[0])
    using = LocalPersistenceManager(tmp_path)
    using.persist_tasks([new("http://b.example/")])
    findings = look(tmp_path, repair=True)
    assert of(findings, "repair", "wrong")[0].startswith(
        "nothing is repaired: another process uses the store"
    )
    assert not of(findings, "ledger", "mended")

    using.close()
    using.store.db.all("SELECT 1")
    assert of(look(tmp_path, repair=True), "repair", "wrong")
    del using
    findings = look(tmp_path, repair=True)
    assert exit_code(findings) == 0, wrong(findings)
    assert ledger(tmp_path, "SELECT count(*) FROM tasks") == [(6,)]


def test_who_comes_during_a_repair_waits_for_its_end(tmp_path: Path) -> None:
    """Nothing is put into a ledger that is being replaced; who has waited too long is told why."""
    crawl(tmp_path, 5, 5)
    wipe(tmp_path / "lpm.db", pages_of(tmp_path / "lpm.db", "outbox", "leaf")[0])
    script = """if True:
        import sys
        from pathlib import Path
        from crawler.lpm import LocalPersistenceManager
        from tests.support.tasks import new
        LocalPersistenceManager(Path(sys.argv[1])).persist_tasks([new("http://b.example/")])
    """
    came: list[subprocess.Popen[bytes]] = []

    def tell(text: str) -> None:
        """Somebody comes at the moment at which the doctor begins to salvage."""
        if "saving what can be read" in text:
            came.append(subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]))
            with pytest.raises(subprocess.TimeoutExpired):
                came[0].wait(2)
            with pytest.raises(StoreError, match="the doctor is repairing this store"):
                guard.share(tmp_path, 0.1)

    findings = list(examine(True, tell, {"CRAWLER_DATA_DIR": str(tmp_path)}))

    assert exit_code(findings) == 0, wrong(findings)
    assert came[0].wait(120) == 0
    assert ledger(tmp_path, "SELECT count(*) FROM tasks") == [(6,)]


def test_a_run_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """Where no lock can be made the store is used as ever, because no repair can make one
    either."""
    crawl(tmp_path, 5, 5)
    lock = tmp_path / "run" / "store.lock"
    lock.unlink()
    lock.mkdir()
    assert ledger(tmp_path, "SELECT count(*) FROM tasks") == [(5,)]
    assert "cannot be written" in of(look(tmp_path, repair=True), "repair", "wrong")[0]


def test_times_from_the_future_are_a_note(tmp_path: Path) -> None:
    """A clock that went back is seen in the ledger."""
    lpm = LocalPersistenceManager(tmp_path, clock=lambda: time.time() + 7200)
    lpm.persist_tasks([new("http://a.example/1")])
    lpm.close()
    findings = look(tmp_path)
    assert "ahead of this clock" in of(findings, "clock", "note")[0]
    assert exit_code(findings) == 0


# Segments


def accept_all(data: Path) -> None:
    """Accept what is missing of every job."""
    lpm = LocalPersistenceManager(data)
    for job in lpm.jobs.all():
        lpm.accept(job)
    lpm.close()


def test_a_flipped_bit_costs_one_page(tmp_path: Path) -> None:
    """The damaged page is named by its URL, its neighbours are not; result and segment stay, the
    place goes."""
    # Given a segment with one flipped bit
    crawl(tmp_path, 20, 20)
    [segment] = (tmp_path / "raw").iterdir()
    [(task, url, offset, length)] = ledger(
        tmp_path,
        "SELECT t.id, url, raw_offset, raw_length FROM results JOIN tasks t ON t.id = task "
        "WHERE task = 7",
    )
    assert isinstance(offset, int)
    assert isinstance(length, int)
    data = bytearray(segment.read_bytes())
    data[offset + length // 2] ^= 4
    segment.write_bytes(data)

    # When the doctor looks, and mends
    found = look(tmp_path)
    [said] = of(found, "segments", "wrong")
    assert said.endswith(f"1 pages cannot be read, their results are whole: {url}")
    assert exit_code(found) == 1
    mended = look(tmp_path, repair=True)

    # Then nothing but that page is lost, which is told until it is accepted, and is on record
    assert [
        "the stored pages of 1 of its results were lost" in told
        for told in of(mended, "jobs", "wrong")
    ] == [True]
    assert segment.read_bytes() == data
    again = look(tmp_path)
    assert str(url) in of(again, "segments", "note")[0]
    assert of(again, "jobs", "wrong") == of(mended, "jobs", "wrong")
    accept_all(tmp_path)
    assert wrong(look(tmp_path)) == []
    assert ledger(tmp_path, "SELECT count(*), count(raw_segment) FROM results") == [(20, 19)]
    assert ledger(
        tmp_path, f"SELECT kind FROM events WHERE task = {task} ORDER BY id DESC LIMIT 1"
    ) == [("raw page damaged",)]
    files = [json.loads(file.read_text()) for file in (tmp_path / "pending").iterdir()]
    assert [result["url"] for result in files if result["raw"] is None] == [url]


def test_a_body_that_is_another_ones(tmp_path: Path) -> None:
    """A page that can be read, but is not the one that the result was made of, is damage too."""
    crawl(tmp_path, 3, 3)
    change(
        tmp_path,
        f"UPDATE results SET body_sha256 = '{sha256(b'other').hexdigest()}' WHERE task = 2",
    )
    assert "http://a.example/1" in of(look(tmp_path), "segments", "wrong")[0]


def test_a_truncated_segment(tmp_path: Path) -> None:
    """What lies behind the cut is listed, what lies before it can be read; nobody writes to that
    segment again."""
    crawl(tmp_path, 20, 10)
    [segment] = (tmp_path / "raw").iterdir()
    data = segment.read_bytes()[: -len(segment.read_bytes()) // 2]
    segment.write_bytes(data)

    [said] = of(look(tmp_path), "segments", "wrong")
    assert f"has {len(data)} of" in said
    assert len(wrong(look(tmp_path, repair=True))) == 1
    accept_all(tmp_path)
    assert wrong(look(tmp_path)) == []
    lpm = LocalPersistenceManager(tmp_path)
    assert [lpm.receipt(job).problems for job in lpm.jobs.all()] == [[]]
    lpm.save_result(*(done(task) for task in lpm.get_next_pending("owner", 10)))
    lpm.close()
    assert segment.read_bytes() == data
    assert len(list((tmp_path / "raw").iterdir())) == 2


@pytest.mark.parametrize("folder_too", [True, False])
def test_a_missing_segment(tmp_path: Path, folder_too: bool) -> None:
    """A segment that is gone as a whole, like an unmounted disk, is wrong; --repair keeps every
    place in it."""
    # Given a store, and its pages elsewhere
    crawl(tmp_path, 30, 30)
    raw, away = tmp_path / "raw", tmp_path / "away"
    [segment] = raw.iterdir()
    if folder_too:
        raw.rename(away)
    else:
        away.mkdir()
        segment.rename(away / segment.name)
    places = "SELECT task, raw_segment, raw_offset, raw_length FROM results"
    before = ledger(tmp_path, places)

    # When it is looked at, and mended
    for repair in (False, True):
        found = look(tmp_path, repair)

        # Then the pages are listed, at most some of them by name
        [said] = of(found, "segments", "wrong")
        assert "is missing: 30 pages" in said
        assert said.endswith("and 10 more")
        assert exit_code(found) == 1
        assert not [finding for finding in found if finding.state == "mended"]

    # And when they are back nothing is wrong
    (away / segment.name).rename(segment)
    assert ledger(tmp_path, places) == before
    assert wrong(look(tmp_path)) == []


def test_an_empty_segment(tmp_path: Path) -> None:
    """A segment that is there, but has lost all it held, is damaged like any other that was cut."""
    crawl(tmp_path, 3, 3)
    [segment] = (tmp_path / "raw").iterdir()
    segment.write_bytes(b"")
    assert "has 0 of" in of(look(tmp_path), "segments", "wrong")[0]
    assert len(wrong(look(tmp_path, repair=True))) == 1
    accept_all(tmp_path)
    assert ledger(tmp_path, "SELECT count(raw_segment) FROM results") == [(0,)]


def test_the_page_of_a_failed_attempt(tmp_path: Path) -> None:
    """A damaged page without a result is a note that names its URL."""
    lpm = LocalPersistenceManager(tmp_path)
    lpm.persist_tasks([new("http://a.example/gone"), new("http://a.example/2")])
    bad, good = lpm.get_next_pending("owner", 2)
    failed = Outcome(
        task=bad,
        status=TaskStatus.FAILED,
        worker="w",
        page=page(bad.url, b"gone", 404),
        error_type="http_404",
    )
    lpm.save_result(failed, done(good))
    lpm.close()
    [segment] = (tmp_path / "raw").iterdir()
    data = bytearray(segment.read_bytes())
    [(offset,)] = ledger(tmp_path, "SELECT raw_offset FROM results")
    assert isinstance(offset, int)
    data[offset - 20] ^= 255
    segment.write_bytes(data)

    findings = look(tmp_path)

    assert "http://a.example/gone" in of(findings, "segments", "note")[0]
    assert exit_code(findings) == 0


def test_a_segment_that_the_ledger_does_not_know(tmp_path: Path) -> None:
    """--repair sets it aside whole, although a worker would remove it."""
    crawl(tmp_path, 5, 5)
    strange = tmp_path / "raw" / "20200101T000000-00000000.warc.gz"
    stored, lost = (
        raw_pages.packed(page(f"http://a.example/{name}"), "") for name in ("1", "lost")
    )
    strange.write_bytes(gzip.compress(b"WARC/1.1\r\n\r\n") + stored + lost)
    content = strange.read_bytes()

    assert exit_code(look(tmp_path)) == 0
    assert "no task knows" in of(look(tmp_path), "segments", "note")[0]
    mended = look(tmp_path, repair=True)
    assert of(mended, "segments", "mended")[0].endswith("no task is for http://a.example/lost")
    [kept] = (tmp_path / "raw").glob("*.damaged-*")
    assert kept.read_bytes() == content
    assert not strange.exists()


def test_a_segment_of_failed_attempts_whose_row_was_lost(tmp_path: Path) -> None:
    """A repair puts segments into the list again that only timelines name; what is gone was pruned
    only where known."""
    # Given a good page and one in quarantine, and a ledger that lost its list of segments
    lpm = LocalPersistenceManager(tmp_path)
    lpm.persist_tasks([new("http://a.example/wall"), new("http://a.example/good")])
    wall, good = lpm.get_next_pending("owner", 2)
    failed = Outcome(
        task=wall, status=TaskStatus.FAILED, worker="w", page=page(wall.url, b"wall", 403),
        error_type="blocked", quarantine=True,
    )  # fmt: skip
    lpm.save_result(failed, done(good))
    lpm.close()
    before = {path.name: path.read_bytes() for path in (tmp_path / "raw").iterdir()}
    assert len(before) == 2
    change(tmp_path, "DELETE FROM raw_segments")
    lpm = LocalPersistenceManager(tmp_path)
    assert "the ledger does not know any more" in (lpm.pages.why_gone(wall.id) or "")
    lpm.close()

    # When it is mended, and the next worker begins
    assert len(of(look(tmp_path), "segments", "wrong")) == 2
    assert exit_code(look(tmp_path, repair=True)) == 0
    lpm = LocalPersistenceManager(tmp_path)
    lpm.bury()
    raw_pages.cut_uncommitted(
        lpm.raw,
        lambda name: dict(lpm.store.db.all("SELECT name, end FROM raw_segments")).get(name, 0),
        lambda: True,
    )

    # Then nothing has changed but the list
    assert {path.name: path.read_bytes() for path in (tmp_path / "raw").iterdir()} == before
    found = lpm.pages.read(wall.id)
    assert found is not None
    assert found[1] == b"wall"
    assert lpm.pages.why_gone(wall.id) is None

    # And what prune removes is known as that
    assert prune(lpm, lpm.now() + 60, dry_run=False).segments == 2
    assert lpm.pages.why_gone(wall.id) == "was removed by prune"
    lpm.close()


@pytest.mark.parametrize("also", ["nothing else", "its notes", "a note of it, long ago"])
def test_pages_that_were_pruned_are_not_missed_after_a_repair(tmp_path: Path, also: str) -> None:
    """Results put back from pending/ name pages that were removed on purpose: nobody is to bring
    these back."""
    # Given results whose pages were pruned, and a ledger that has lost some of them
    job = crawl(tmp_path, 300, 300)
    lpm = LocalPersistenceManager(tmp_path)
    assert prune(lpm, lpm.now() + 60, dry_run=False).results == 300
    lpm.close()
    if also == "a note of it, long ago":
        change(tmp_path, "DELETE FROM meta WHERE key LIKE 'pruned %'")
    wipe(tmp_path / "lpm.db", pages_of(tmp_path / "lpm.db", "results", "leaf")[3])
    if also == "its notes":
        wipe(tmp_path / "lpm.db", pages_of(tmp_path / "lpm.db", "meta", "leaf")[0])

    # When it is mended
    mended = look(tmp_path, repair=True)

    # Then the results are there, and nothing is wrong with them
    assert "results put back from pending/" in of(mended, "ledger", "mended")[0]
    assert not wrong(mended)
    assert not wrong(look(tmp_path))
    lpm = LocalPersistenceManager(tmp_path)
    assert lpm.counts.totals().results == 300
    assert not lpm.verify(job).problems
    assert {lpm.pages.why_gone(id_) for (id_,) in lpm.store.db.all("SELECT id FROM tasks")} == {
        "was removed by prune"
    }
    lpm.close()


def test_pages_that_no_ledger_knows_to_be_pruned_can_be_given_up(tmp_path: Path) -> None:
    """Where the whole ledger was lost after a prune, pages count as missing until that is
    accepted."""
    crawl(tmp_path, 10, 10)
    lpm = LocalPersistenceManager(tmp_path)
    prune(lpm, lpm.now() + 60, dry_run=False)
    lpm.close()
    (tmp_path / "lpm.db").unlink()
    look(tmp_path, repair=True)

    lpm = LocalPersistenceManager(tmp_path)
    [job] = lpm.jobs.all()
    assert any("job accept" in problem for problem in lpm.verify(job).problems)
    assert lpm.accept(job)
    assert not lpm.verify(job).problems
    lpm.close()
    assert not of(look(tmp_path), "segments", "wrong")


# pending/


def test_projections_are_made_again(tmp_path: Path) -> None:
    """Missing and half files are made again, what is left over goes, a foreign file is only
    noted."""
    crawl(tmp_path, 10, 10)
    pending = tmp_path / "pending"
    before = {path: path.read_bytes() for path in sorted(pending.iterdir())}
    missing, half, other, synced, *_ = before
    missing.unlink()
    half.write_bytes(before[half][:50])
    other.write_bytes(before[synced])
    lpm = LocalPersistenceManager(tmp_path)
    lpm.mark_synced([synced.stem])
    lpm.close()
    synced.write_bytes(before[synced])
    hidden = pending / f".{half.stem}.1.1"
    hidden.write_text("{")
    os.utime(hidden, (0, 0))
    (pending / "notes.txt").write_text("mine")

    found = look(tmp_path)
    assert of(found, "projections", "wrong") == [
        "1 files are missing in pending/, 2 cannot be read, 2 should be gone"
    ]
    assert "notes.txt" in of(found, "projections", "note")[0]
    assert exit_code(look(tmp_path, repair=True)) == 0

    del before[synced]
    assert {path: path.read_bytes() for path in sorted(pending.glob("*.json"))} == before
    assert (pending / "notes.txt").read_text() == "mine"
    assert sorted(path.name.partition(".")[0] for path in pending.glob("*.damaged-*")) == sorted(
        [half.stem, other.stem]
    )
    assert not hidden.exists()


@pytest.mark.parametrize(
    "kind", ["folder", "pipe", "socket", "link to nowhere", "link to itself", "renamed"]
)
def test_what_is_no_file_in_pending(tmp_path: Path, kind: str) -> None:
    """What has the name of a result and is no file is set aside and made again; so is a renamed
    file."""
    crawl(tmp_path, 3, 3)
    pending = tmp_path / "pending"
    before = {path: path.read_bytes() for path in sorted(pending.iterdir())}
    put_in_place(min(before), kind)

    found = look(tmp_path)
    mended = look(tmp_path, repair=True)

    assert len(of(found, "projections", "wrong")) == 1
    assert exit_code(mended) == 0, wrong(mended)
    assert {path: path.read_bytes() for path in sorted(pending.glob("*.json"))} == before
    assert len(list(pending.iterdir())) == 4


def test_results_that_come_while_the_doctor_looks_are_known(tmp_path: Path) -> None:
    """A fast crawl beside the doctor: no result that has just come in is taken for one that the
    ledger lost."""
    # Given many results, and a worker that stores more of them all the time
    crawl(tmp_path, 6000, 3000)
    began, over = threading.Event(), threading.Event()

    def work() -> None:
        lpm = LocalPersistenceManager(tmp_path)
        while not over.is_set() and (tasks := lpm.get_next_pending("worker", 5)):
            lpm.save_result(*(done(task) for task in tasks))
            began.set()
        lpm.close()

    worker = threading.Thread(target=work)
    worker.start()
    began.wait(60)

    # When the doctor looks again and again
    found = [finding for _ in range(3) for finding in wrong(look(tmp_path))]
    over.set()
    worker.join()

    # Then the books balance
    assert [finding.detail for finding in found if finding.check == "books"] == []


def test_all_say_the_same_of_missing_files(tmp_path: Path) -> None:
    """Doctor and `results list` count the same files, however new their results are and whoever is
    at work."""
    crawl(tmp_path, 10, 10)
    for path in list((tmp_path / "pending").iterdir())[:3]:
        path.unlink()
    owner = Owner(tmp_path / "run" / "owners", "worker", slots=10)
    lpm = LocalPersistenceManager(tmp_path)

    files, found = check_pending_files(lpm, None), look(tmp_path)
    lpm.close()
    owner.close()

    assert (files.results, files.missing) == (7, 3)
    assert of(found, "projections", "wrong") == [
        "3 files are missing in pending/, 0 cannot be read, 0 should be gone"
    ]


def test_files_that_are_being_written_are_not_missing(tmp_path: Path) -> None:
    """Those of a living worker are looked for until no more of them come; those that left meanwhile
    are not due."""
    crawl(tmp_path, 10, 10)
    paths = sorted((tmp_path / "pending").iterdir())
    for path in paths[:5]:
        path.unlink()
    lpm, waits = LocalPersistenceManager(tmp_path), list[float]()

    def write_one(wait_s: float) -> None:
        waits.append(wait_s)
        if len(waits) <= 3:
            paths[len(waits)].touch()
        lpm.mark_synced([paths[4].stem])

    left = missing_files(
        lpm.store.db, lpm.pending, [path.stem for path in paths], lambda: True, write_one
    )
    lpm.close()

    assert left == [paths[0].stem]
    assert len(waits) == 4


def test_what_others_hide_in_pending(tmp_path: Path) -> None:
    """Hidden files and folders of others stop nothing, are not counted, and stay."""
    crawl(tmp_path, 3, 3)
    pending = tmp_path / "pending"
    (gone, *_) = pending.iterdir()
    gone.unlink()
    (pending / ".ipynb_checkpoints").mkdir()
    (pending / ".gitkeep").touch()
    for hidden in pending.glob(".*"):
        os.utime(hidden, (0, 0))

    found = look(tmp_path)
    mended = look(tmp_path, repair=True)

    assert of(found, "projections") == [
        "1 files are missing in pending/, 0 cannot be read, 0 should be gone"
    ]
    assert exit_code(mended) == 0, wrong(mended)
    assert gone.exists()
    assert sorted(hidden.name for hidden in pending.glob(".*")) == [
        ".gitkeep",
        ".ipynb_checkpoints",
    ]


def test_a_missing_pending_folder(tmp_path: Path) -> None:
    """A folder that was removed is made again with all that belongs into it."""
    crawl(tmp_path, 5, 5)
    for path in (tmp_path / "pending").iterdir():
        path.unlink()
    (tmp_path / "pending").rmdir()
    assert "5 files are missing" in of(look(tmp_path), "projections", "wrong")[0]
    assert exit_code(look(tmp_path, repair=True)) == 0
    assert len(list((tmp_path / "pending").iterdir())) == 5


# The stack's record


def test_a_record_that_names_a_stranger(tmp_path: Path) -> None:
    """A stale record is removed by --repair; the process that has the pid now lives on."""
    crawl(tmp_path, 1, 1)
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        mark = ProcessMark(stranger.pid, "another begin")
        write_stack(
            tmp_path,
            Stack(supervisor=mark, redis=mark, worker=mark, redis_url="redis://127.0.0.1:1/0"),
        )

        found = look(tmp_path)
        assert f"{stranger.pid} is another program's" in of(found, "stack", "wrong")[0]
        assert exit_code(found) == 1
        assert exit_code(look(tmp_path, repair=True)) == 0

        assert stranger.poll() is None
        assert not (tmp_path / "run" / "stack.json").exists()
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize("name", ["redis", "agent"])
def test_a_process_that_a_dead_stack_left(tmp_path: Path, name: str) -> None:
    """Its record stays, because `down` needs it to end that process; the doctor ends nothing."""
    crawl(tmp_path, 1, 1)
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        stack = Stack(supervisor=ProcessMark(1, "another begin"), redis_url="redis://127.0.0.1:1/0")
        write_stack(tmp_path, replace(stack, **{name: ProcessMark.of(left.pid)}))
        [finding] = [
            finding
            for finding in look(tmp_path, repair=True)
            if finding.check == "stack" and wrong([finding])
        ]
        assert f"{name} {left.pid}" in finding.detail
        assert finding.fix == "python -m crawler down"
        assert left.poll() is None
        assert (tmp_path / "run" / "stack.json").exists()
    finally:
        left.kill()
        left.wait()


def test_the_agent_is_among_the_processes_of_a_stack(tmp_path: Path) -> None:
    """What speaks to a Gateway is named with the others; gone, it is said to be started again."""
    crawl(tmp_path, 1, 1)
    here, gone = ProcessMark.of(os.getpid()), ProcessMark(1, "another begin")

    write_stack(tmp_path, Stack(supervisor=here, agent=here, redis_url="redis://127.0.0.1:1/0"))
    assert f"agent {os.getpid()}" in of(look(tmp_path), "stack", "ok")[0]

    write_stack(tmp_path, Stack(supervisor=here, agent=gone, redis_url="redis://127.0.0.1:1/0"))
    assert "agent of the stack ended" in of(look(tmp_path), "stack", "note")[0]


# What is for a Gateway


def test_a_store_without_a_gateway_owes_nothing(tmp_path: Path) -> None:
    """Standalone results are held, which is nothing to note."""
    crawl(tmp_path, 2, 2)
    assert of(look(tmp_path), "gateway") == ["nothing here is for a Gateway"]


def test_what_a_gateway_is_to_get_is_a_note(tmp_path: Path) -> None:
    """How much there is, since when, and how it gets there; what was rejected likewise; delivered,
    all is well."""
    lpm = LocalPersistenceManager(tmp_path)
    lpm.gateway.set_note("url", "https://gateway.example")
    give(lpm, 5)
    first, *_ = lpm.outbox.pages(5, time.time())
    lpm.outbox.refused(first, 422, "no such parcel", None)

    found = look(tmp_path)
    waits, refused = [finding for finding in found if finding.check == "gateway"]
    assert exit_code(found) == 0
    assert waits.detail.startswith(
        "5 to be delivered to the Gateway at https://gateway.example, the oldest since "
    )
    assert waits.fix == "python -m crawler ondemand, or python -m crawler sync push"
    assert (refused.state, refused.fix) == ("note", "python -m crawler sync rejected")
    assert refused.detail == "1 rejected by the Gateway at https://gateway.example"

    lpm.outbox.retry([])
    lpm.mark_synced([parcel.own_id for parcel in lpm.outbox.pages(5, time.time())])
    lpm.close()
    said = (
        "5 results and 0 reports were delivered to the Gateway at https://gateway.example, "
        "none wait"
    )
    assert of(look(tmp_path), "gateway", "ok") == [said]


def test_a_delivery_in_an_unknown_state_is_made_again(tmp_path: Path) -> None:
    """A result or a report that damage has put into no state would never be sent: it is found, and
    ready again."""
    lpm = LocalPersistenceManager(tmp_path)
    give(lpm, 3)
    lpm.close()
    change(tmp_path, "UPDATE outbox SET state = 'reaZy' WHERE task = 2")

    assert (
        "1 results and reports in an unknown state of delivery"
        in of(look(tmp_path), "books", "wrong")[0]
    )
    assert exit_code(look(tmp_path, repair=True)) == 0
    assert of(look(tmp_path), "gateway", "note")[0].startswith("3 to be delivered to a Gateway")
