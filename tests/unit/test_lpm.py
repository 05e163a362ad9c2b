"""The store: tasks in, claims, results out, and what it does when things go wrong."""

import contextlib
import json
import multiprocessing
import os
import shutil
import sqlite3
import stat
import tarfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import apsw
import msgspec
import psutil
import pytest
from warcio.archiveiterator import ArchiveIterator

from crawler import urls
from crawler.db import raw_pages, schema
from crawler.db.connection import busy_handler, retry_on_busy, writing
from crawler.errors import StoreError, StoreFull
from crawler.lpm import LocalPersistenceManager
from crawler.models import Imported, Outcome, SentRequest, TaskStatus
from crawler.results import check_pending_files
from crawler.results.archive import archive, prune
from tests.support.patient import put_in_place
from tests.support.tasks import commits, done, new, open_job, page


@pytest.fixture
def lpm(tmp_path: Path) -> Iterator[LocalPersistenceManager]:
    """A store in an empty folder."""
    lpm = LocalPersistenceManager(tmp_path / "data")
    yield lpm
    lpm.close()


def test_the_verbs_of_the_requirements(lpm: LocalPersistenceManager) -> None:
    """persist_tasks, get_next_pending, save_result, get_unsynced_results and mark_synced carry a
    Gateway's task."""
    # Given a task of a Gateway
    lpm.persist_tasks(
        [new("http://a.example/1", parcel_id="007", external_id="t-1")], source="gateway"
    )

    # When it is claimed and done
    [task] = lpm.get_next_pending("owner")
    assert lpm.save_result(done(task)) == [True]
    [result] = lpm.get_unsynced_results()
    lpm.mark_synced([result["task_id"]])

    # Then it was one result, and is none any more
    assert (result["parcel_id"], result["data"], result["attempts"]) == ("007", {"title": "x"}, 1)
    assert lpm.get_unsynced_results() == []
    assert not list(lpm.pending.glob("*.json"))
    assert lpm.counts.totals().synced == 1


def test_standalone_results_are_held(lpm: LocalPersistenceManager) -> None:
    """A result of standalone work is never offered to a Gateway."""
    lpm.persist_tasks([new("http://a.example/1")])
    lpm.save_result(done(lpm.get_next_pending("owner")[0]))

    assert lpm.get_unsynced_results() == []
    assert lpm.store.db.all("SELECT state FROM outbox") == [("held",)]
    assert lpm.counts.totals().unsynced == 1


def test_a_result_has_the_documented_shape(lpm: LocalPersistenceManager) -> None:
    """pending/<task_id>.json begins with the Gateway's fields, in their order, and carries the
    input columns."""
    row = {"url": "http://a.example/1", "county": "Bay", "state": "FL", "note": "x"}
    lpm.persist_tasks([new("http://a.example/1", parcel_id="1", input=row)], job=open_job(lpm))
    lpm.save_result(done(lpm.get_next_pending("owner")[0]))

    [path] = lpm.pending.glob("*.json")
    result = json.loads(path.read_text())

    assert list(result) == [
        "task_id", "parcel_id", "platform", "state", "county", "data", "scraped_at",
        "parse_duration_ms", "raw_html_hash", "url", "final_url", "status_code", "verdict", "job",
        "queue", "priority", "attempts", "input", "parser", "raw", "site", "same_as",
    ]  # fmt: skip
    assert path.stem == result["task_id"]
    assert (result["county"], result["state"], result["input"], result["job"]) == (
        "Bay",
        "FL",
        row,
        "job",
    )
    assert len(result["raw_html_hash"]) == 64
    assert set(result["raw"]) == {"segment", "offset", "length"}


def test_the_folder_is_nobody_elses(lpm: LocalPersistenceManager) -> None:
    """The data folder has mode 0700."""
    lpm.close_after_check()
    assert stat.S_IMODE(lpm.folder.stat().st_mode) == 0o700


def test_an_open_task_is_not_imported_again(lpm: LocalPersistenceManager) -> None:
    """The same URL and parcel is one task while it is open, counts for both jobs, and takes the
    more urgent place."""
    # Given a task in one job
    first, second = open_job(lpm, "first"), open_job(lpm, "second", "urgent")
    lpm.persist_tasks(
        [new("http://a.example/1", line=1), new("http://a.example/2", line=2)], job=first
    )

    # When another job brings it again, more urgent
    again = lpm.persist_tasks(
        [new("http://a.example/1#x", line=1, priority=2)], job=second, queue="urgent"
    )

    # Then it is known, urgent, and in the books of both
    assert again == Imported(accepted=0, known=1)
    [(queue, priority)] = lpm.store.db.all("SELECT queue, priority FROM tasks WHERE url LIKE '%/1'")
    assert (queue, priority) == ("urgent", 2)
    assert lpm.counts.of_job(first).accepted == 2
    assert lpm.counts.of_job(second).accepted == 1


def test_other_parcels_of_the_same_url_are_other_tasks(lpm: LocalPersistenceManager) -> None:
    """What identifies a task is URL and parcel together."""
    rows = [new("http://a.example/1", parcel_id="1"), new("http://a.example/1", parcel_id="2")]
    assert lpm.persist_tasks(rows) == Imported(accepted=2, known=0)


def test_a_finished_task_is_fetched_again_unless_it_is_fresh(lpm: LocalPersistenceManager) -> None:
    """A second job fetches a finished page again, except within `fresh_for`."""
    job = open_job(lpm, "first")
    lpm.persist_tasks([new("http://a.example/1")], job=job)
    lpm.save_result(done(lpm.get_next_pending("owner")[0]))

    same = lpm.persist_tasks([new("http://a.example/1")], job=job)
    fresh = lpm.persist_tasks(
        [new("http://a.example/1", line=1)], job=open_job(lpm, "second"), fresh_for_s=60
    )
    other = lpm.persist_tasks([new("http://a.example/1")], job=open_job(lpm, "third"))

    assert (same.known, fresh.known, other.accepted) == (1, 1, 1)


def test_a_late_twin_is_dropped(lpm: LocalPersistenceManager) -> None:
    """A result is stored only for the live fence: who lost its lease cannot store any more."""
    # Given a task whose first owner was taken for dead
    lpm.persist_tasks([new("http://a.example/1")])
    [late] = lpm.get_next_pending("first")
    lpm.bury()
    [live] = lpm.get_next_pending("second")

    # When both store
    stored = (
        lpm.save_result(done(late, record={"by": "late"})),
        lpm.save_result(done(live, record={"by": "live"})),
    )

    # Then one result is there, the live one's
    assert stored == ([False], [True])
    assert live.fence > late.fence
    assert [result["data"] for result in lpm.results.read()] == [{"by": "live"}]


def test_retries_wait_in_the_ledger(lpm: LocalPersistenceManager) -> None:
    """A task that is to be tried later is not given out before its time, and counts attempts and
    failures."""
    lpm.persist_tasks([new("http://a.example/1")])
    [task] = lpm.get_next_pending("owner")
    later = Outcome(
        task=task,
        status=TaskStatus.PENDING,
        worker="w",
        error_type="timeout",
        not_before=time.time() + 3600,
        sent=(SentRequest("a.example", time.time(), 60.0),),
    )
    lpm.save_result(later)

    assert lpm.get_next_pending("owner") == []
    [(attempts, failures, error)] = lpm.store.db.all(
        "SELECT attempts, failures, error_type FROM tasks"
    )
    assert (attempts, failures, error) == (1, 1, "timeout")
    assert lpm.tasks.wake(time.time() + 3601) is None
    assert len(lpm.get_next_pending("owner")) == 1


def test_a_broken_off_fetch_is_an_attempt_but_no_failure(lpm: LocalPersistenceManager) -> None:
    """A stop costs a page nothing of its budget."""
    lpm.persist_tasks([new("http://a.example/1")])
    [task] = lpm.get_next_pending("owner")
    sent = (SentRequest("a.example", time.time(), 0.1),)
    lpm.save_result(
        Outcome(task=task, status=TaskStatus.PENDING, worker="w", charge=False, sent=sent)
    )

    assert lpm.store.db.all("SELECT attempts, failures, status FROM tasks") == [(1, 0, "pending")]


def test_a_wait_for_a_permit_is_neither_an_attempt_nor_a_failure(
    lpm: LocalPersistenceManager,
) -> None:
    """What never began waits in the ledger, and its timeline says so."""
    lpm.persist_tasks([new("http://a.example/1")])
    [task] = lpm.get_next_pending("owner")
    waits = Outcome(
        task=task,
        status=TaskStatus.PENDING,
        worker="w",
        charge=False,
        not_before=time.time() + 3600,
    )
    lpm.save_result(waits)

    assert lpm.store.db.all("SELECT attempts, failures, status FROM tasks") == [(0, 0, "pending")]
    assert lpm.store.db.all("SELECT kind FROM events") == [("postponed",)]
    assert lpm.get_next_pending("owner") == []


def test_a_waiting_writer_gives_up_only_after_its_limit() -> None:
    """The busy handler waits longer and longer, never alike for two writers, and no longer than its
    limit."""
    now = [0.0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    wait = busy_handler(1.0, clock=lambda: now[0], sleep=sleep, jitter=lambda: 0.5)
    tries = 0
    while wait(tries):
        tries += 1

    assert slept[0] < 0.001
    assert max(slept) <= 0.025
    assert slept == sorted(slept)
    assert 1.0 < sum(slept) < 1.1
    assert wait(0)  # the next lock is a new wait


@pytest.mark.parametrize(
    ("connect", "busy", "other"),
    [
        (
            lambda path: sqlite3.connect(path, timeout=0, isolation_level=None),
            sqlite3.OperationalError,
            sqlite3.Error,
        ),
        (apsw.Connection, apsw.BusyError, apsw.SQLError),
    ],
)
def test_retry_on_busy_decorates_with_and_without_arguments(
    tmp_path: Path, connect: Callable[[str], Any], busy: type[Exception], other: type[Exception]
) -> None:
    """A function that finds its database locked is called again, up to a limit; other errors pass
    at once."""
    # Given a table that another connection has locked for a while
    path, now = str(tmp_path / "some.db"), [0.0]
    locking = connect(path)
    locking.execute("CREATE TABLE t (n INTEGER)")
    locking.execute("BEGIN EXCLUSIVE")

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if 0.5 < now[0] < 1.0:
            locking.execute("ROLLBACK")

    @retry_on_busy
    def plain(text: str) -> int:
        return len(text)

    @retry_on_busy(limit_s=1.0, clock=lambda: now[0], sleep=sleep, jitter=lambda: 0.5)
    def insert(table: str = "t") -> None:
        with contextlib.closing(connect(path)) as own:
            own.execute(f"INSERT INTO {table} VALUES (1)")

    # When functions are called that want it
    insert()
    after = now[0]

    # Then they wait for it, and no longer than their limit
    assert 0.5 < after < 0.6
    assert locking.execute("SELECT count(*) FROM t").fetchall() == [(1,)]
    assert (plain("abc"), plain.__name__) == (3, "plain")
    locking.execute("BEGIN EXCLUSIVE")
    now[0] = 10.0
    with pytest.raises(busy, match="locked"):
        insert()
    assert 11.0 <= now[0] < 11.1
    locking.execute("ROLLBACK")
    now[0] = 20.0
    with pytest.raises(other, match="no such table"):
        insert("nowhere")
    assert now[0] == 20.0
    locking.close()


def test_pending_is_made_again(lpm: LocalPersistenceManager) -> None:
    """Missing, empty and half written projections are made again from the ledger, and no others."""
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(4)])
    lpm.save_result(*(done(task) for task in lpm.get_next_pending("owner", 4)))
    before = {path: path.read_bytes() for path in sorted(lpm.pending.glob("*.json"))}
    missing, empty, half, _ = before
    missing.unlink()
    empty.write_bytes(b"")
    half.write_bytes(before[half][:50])

    assert lpm.files.restore() == 3
    assert {path: path.read_bytes() for path in sorted(lpm.pending.glob("*.json"))} == before


@pytest.mark.parametrize(
    "kind", ["folder", "pipe", "socket", "link to nowhere", "link to itself", "renamed"]
)
@pytest.mark.parametrize("secured", [False, True])
def test_what_is_no_file_is_no_result(
    lpm: LocalPersistenceManager, kind: str, secured: bool
) -> None:
    """Whatever has the name of a result and is no file is set aside, never opened, and the file is
    made again."""
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(2)])
    lpm.save_result(*(done(task) for task in lpm.get_next_pending("owner", 2)))
    before = {path: path.read_bytes() for path in sorted(lpm.pending.glob("*.json"))}
    wrong = min(before)
    if secured:
        lpm.files.secure()
    put_in_place(wrong, kind)

    listed = check_pending_files(lpm, None)
    made = lpm.files.restore()

    assert (listed.results, listed.torn + (listed.missing or 0)) == (1, 1)
    assert made == 1
    assert {path: path.read_bytes() for path in sorted(lpm.pending.glob("*.json"))} == before
    (aside,) = [path for path in lpm.pending.iterdir() if path not in before]
    assert aside.name.startswith(wrong.stem)


@pytest.mark.parametrize("gone", ["pruned", "lost"])
def test_an_unchanged_page_whose_earlier_one_has_gone_meanwhile_is_fetched_again(
    lpm: LocalPersistenceManager, gone: str
) -> None:
    """A 304 for a page that vanished while it was asked for makes no result: the task is fetched
    again, as a whole."""
    with_etag = msgspec.structs.replace(page(body=b"<p>1</p>"), headers=(("ETag", '"1"'),))
    for name in ("first", "second"):
        lpm.persist_tasks([new("http://a.example/1")], job=open_job(lpm, name))
        (task,) = lpm.get_next_pending("owner", 1)
        if name == "first":
            lpm.save_result(done(task, page=with_etag))
    assert task.known
    lpm.close()  # it lets go of its segment
    if gone == "pruned":
        prune(lpm, time.time() + 1, dry_run=False)
    else:
        for path in lpm.raw.iterdir():
            path.unlink()

    unchanged = msgspec.structs.replace(with_etag, status=304, body=b"", raw=b"")
    assert lpm.save_result(done(task, page=unchanged, verdict="unchanged")) == [True]

    (again,) = lpm.get_next_pending("owner", 1)
    assert (again.id, again.known, again.failures) == (task.id, None, 0)
    lpm.save_result(done(again, page=with_etag))
    assert lpm.pages.read(again.id)


def test_pages_that_need_not_be_kept_are_asked_for_changes(tmp_path: Path) -> None:
    """Where good pages are not kept, a result without one is no reason to fetch it again."""
    lpm = LocalPersistenceManager(tmp_path, raw="failed")
    for name in ("first", "second"):
        lpm.persist_tasks([new("http://a.example/1")], job=open_job(lpm, name))
        (task,) = lpm.get_next_pending("owner", 1)
        if name == "first":
            lpm.save_result(
                done(task, page=msgspec.structs.replace(page(), headers=(("ETag", '"1"'),)))
            )
    lpm.close()

    assert task.known


TEARS: dict[str, Callable[[Path], object]] = {
    "gone": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: os.truncate(path, path.stat().st_size - 20),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "another record": lambda path: path.write_bytes(path.read_bytes().replace(b'"x"', b'"y"')),
}


@pytest.mark.parametrize("tear", TEARS)
def test_files_that_were_torn_after_they_were_secured_are_told_and_made_again(
    lpm: LocalPersistenceManager, tear: str
) -> None:
    """Whatever becomes of a file in pending/, its job's receipt says so until it is there again as
    it was."""
    job = open_job(lpm)
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(3)], job=job)
    lpm.save_result(*(done(task) for task in lpm.get_next_pending("owner", 3)))
    lpm.imports.close(job, time.time())
    lpm.files.secure()
    before = {path: path.read_bytes() for path in sorted(lpm.pending.glob("*.json"))}
    whole = lpm.verify(job)

    TEARS[tear](min(before))
    torn = lpm.verify(job)
    made = lpm.files.secure()

    assert whole.problems == []
    [problem] = torn.problems
    assert problem.startswith("1 files of its results in pending/")
    assert made == 1
    assert {path: path.read_bytes() for path in sorted(lpm.pending.glob("*.json"))} == before
    assert lpm.verify(job).problems == []


def test_files_that_have_left_pending_are_not_missed(lpm: LocalPersistenceManager) -> None:
    """A receipt asks for no file of a result that was archived or delivered."""
    job = open_job(lpm)
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(2)], job=job)
    lpm.save_result(*(done(task) for task in lpm.get_next_pending("owner", 2)))
    lpm.imports.close(job, time.time())
    lpm.mark_synced([next(lpm.results.read())["task_id"]])
    archive(lpm, None, compress=False)

    assert list(lpm.pending.iterdir()) == []
    assert lpm.verify(job).problems == []


def test_a_folder_in_the_place_of_a_result_does_not_hold_up_its_leaving(
    lpm: LocalPersistenceManager,
) -> None:
    """A result that was sent leaves pending/, also where a folder has taken its name."""
    lpm.persist_tasks([new("http://a.example/1")])
    (task,) = lpm.get_next_pending("owner", 1)
    lpm.save_result(done(task))
    put_in_place(lpm.pending / f"{task.task_id}.json", "folder")

    lpm.mark_synced([task.task_id])

    assert [path.name for path in lpm.pending.iterdir()] == [f"{task.task_id}.json.damaged"]


def test_raw_pages_are_warc_for_any_reader(lpm: LocalPersistenceManager) -> None:
    """A WARC reader finds every page with its headers and body, and so does the ledger."""
    lpm.persist_tasks([new("http://a.example/1"), new("http://a.example/2")])
    first, second = lpm.get_next_pending("owner", 2)
    lpm.save_result(done(first, page=page(first.url, b"\0\xff\r\n\r\nbody")))
    failed = Outcome(
        task=second,
        status=TaskStatus.FAILED,
        worker="w",
        page=page(second.url, b"gone", 404),
        error_type="http_404",
    )
    lpm.save_result(failed)

    [path] = lpm.raw.glob("*.warc.gz")
    with path.open("rb") as file:
        records = [
            (r.rec_type, r.rec_headers["WARC-Target-URI"], r.content_stream().read())
            for r in ArchiveIterator(file)
        ]
    assert [kind for kind, _, _ in records] == ["warcinfo", "response", "response"]
    assert [url for _, url, _ in records[1:]] == [first.url, second.url]
    assert [body for _, _, body in records[1:]] == [b"\0\xff\r\n\r\nbody", b"gone"]
    head, body = lpm.pages.read(first.id) or ("", b"")
    assert (head.splitlines()[0], body) == ("HTTP/1.1 200 OK", b"\0\xff\r\n\r\nbody")
    assert "Transfer-Encoding" not in head
    assert (lpm.pages.read(second.id) or ("", b""))[1] == b"gone"


@pytest.mark.parametrize(("keep", "kept"), [("all", 2), ("failed", 1), ("none", 0)])
def test_which_raw_pages_are_kept(tmp_path: Path, keep: str, kept: int) -> None:
    """CRAWLER_RAW decides."""
    lpm = LocalPersistenceManager(tmp_path, raw=keep)
    lpm.persist_tasks([new("http://a.example/1"), new("http://a.example/2")])
    good, bad = lpm.get_next_pending("owner", 2)
    failed = Outcome(
        task=bad, status=TaskStatus.FAILED, worker="w", page=page(status=404), error_type="http_404"
    )
    lpm.save_result(done(good), failed)

    assert sum(lpm.pages.read(task.id) is not None for task in (good, bad)) == kept
    lpm.close()


def test_a_segment_is_adopted_and_cut_after_a_kill(lpm: LocalPersistenceManager) -> None:
    """What a killed writer left behind its last commit is cut, and the next writer goes on in the
    same segment."""
    # Given a segment with half a record behind its committed end
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(2)])
    first, second = lpm.get_next_pending("owner", 2)
    lpm.save_result(done(first))
    lpm.close()
    [path] = lpm.raw.glob("*.warc.gz")
    whole = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"\x1f\x8b\x08 half a record")

    # When the next writer stores a page
    lpm.save_result(done(second))

    # Then it is behind the first one, and a reader sees both and nothing else
    assert [result["raw"]["offset"] for result in lpm.results.read()][1] == whole
    with path.open("rb") as file:
        assert [record.rec_type for record in ArchiveIterator(file)] == [
            "warcinfo",
            "response",
            "response",
        ]


def test_a_segment_that_was_never_committed_leaves_nothing(lpm: LocalPersistenceManager) -> None:
    """Commits that fail again and again, as on a full disk, do not leave a segment each."""
    lpm.close_after_check()
    for _ in range(3):
        writer = raw_pages.SegmentWriter(lpm.raw, lambda name: 0)
        writer.append([raw_pages.packed(page(), "0" * 64)])
        writer.close()

    assert list(lpm.raw.iterdir()) == []


def test_two_writers_have_two_segments(lpm: LocalPersistenceManager) -> None:
    """A segment that is being written is nobody else's."""
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(2)])
    first, second = lpm.get_next_pending("owner", 2)
    other = LocalPersistenceManager(lpm.folder)

    lpm.save_result(done(first))
    other.save_result(done(second))
    other.close()

    assert len(list(lpm.raw.glob("*.warc.gz"))) == 2


def _write(folder: Path, number: int, count: int, failures: "multiprocessing.Queue[str]") -> None:
    lpm = LocalPersistenceManager(folder)
    try:
        for n in range(count):
            lpm.persist_tasks([new(f"http://w{number}.example/{n}/{k}") for k in range(3)])
            tasks = lpm.get_next_pending(f"owner-{number}", 3)
            lpm.save_result(*(done(task) for task in tasks))
        lpm.close()
    except Exception as error:
        failures.put(repr(error))


def test_a_store_opens_while_another_process_writes(tmp_path: Path) -> None:
    """Whoever only opens it, or reads, waits for no writer."""
    with LocalPersistenceManager(tmp_path) as lpm:
        open_job(lpm)
        with writing(lpm.store.durable), LocalPersistenceManager(tmp_path) as other:
            other.open()
            names = [job.name for job in other.jobs.all()]

    assert names == ["job"]


def test_ten_writers_at_once_never_find_the_database_locked(tmp_path: Path) -> None:
    """SQLite contention: ten processes import, claim and store at the same time; nothing fails,
    nothing is lost."""
    # Given a store
    LocalPersistenceManager(tmp_path).close_after_check()
    failures: multiprocessing.Queue[str] = multiprocessing.Queue()

    # When ten processes write
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(tmp_path, n, 20, failures)) for n in range(10)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)

    # Then all tasks are there, each done once
    assert failures.empty(), failures.get()
    lpm = LocalPersistenceManager(tmp_path)
    books = lpm.counts.totals()
    assert (books.accepted, books.completed, books.results) == (600, 600, 600)
    lpm.close()


def test_connections_are_kept_and_a_group_of_results_is_one_commit(
    lpm: LocalPersistenceManager,
) -> None:
    """A store has one connection for each of its two uses, and stores a hundred results like
    one."""
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(300)])
    held, stored = set(), []
    for size in (1, 100, 100):
        tasks = lpm.get_next_pending("owner", size)
        before = commits(lpm.path)
        assert all(lpm.save_result(*(done(task) for task in tasks)))
        stored.append(commits(lpm.path) - before)
        held.add(sum(Path(file.path) == lpm.path for file in psutil.Process().open_files()))

    assert held == {2}
    assert stored == [1, 1, 1]


def test_the_view_of_the_requirements(lpm: LocalPersistenceManager) -> None:
    """standalone_tasks has the six columns, with times as ISO-8601 text."""
    lpm.persist_tasks([new("http://a.example/1")])
    lpm.save_result(done(lpm.get_next_pending("owner")[0]))

    columns = [row[1] for row in lpm.store.db.all("PRAGMA table_info(standalone_tasks)")]
    assert columns == ["task_id", "url", "status", "celery_task_id", "imported_at", "completed_at"]
    [(status, imported)] = lpm.store.db.all("SELECT status, imported_at FROM standalone_tasks")
    assert status == "completed"
    assert imported[4] == "-"
    assert imported.endswith("Z")


def test_a_newer_database_is_refused(lpm: LocalPersistenceManager) -> None:
    """A store of a newer program is a clear error, never a guess."""
    lpm.store.durable.execute(f"PRAGMA user_version={len(schema.MIGRATIONS) + 1}")
    lpm.close()

    with pytest.raises(StoreError, match="newer version"):
        lpm.close_after_check()


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE meta",
        "DROP TABLE outbox",
        "ALTER TABLE tasks RENAME TO other",
        "ALTER TABLE results RENAME COLUMN record TO other",
        "PRAGMA user_version = 0",
    ],
)
def test_a_ledger_without_its_tables_is_damaged(tmp_path: Path, sql: str) -> None:
    """Tables that are not those of its version are the store's error, which names the doctor."""
    before = LocalPersistenceManager(tmp_path)
    before.persist_tasks([new("http://a.example/")])
    before.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "lpm.db")) as db:
        db.execute("PRAGMA legacy_alter_table = ON")
        db.execute(sql)
        db.commit()

    def read(lpm: LocalPersistenceManager) -> None:
        lpm.open()
        lpm.counts.totals()
        lpm.outbox.delivery(None)
        lpm.results.newest(None, 1)
        lpm.gateway.troubles()

    with (
        contextlib.closing(LocalPersistenceManager(tmp_path)) as lpm,
        pytest.raises(StoreError, match=r"is damaged .* doctor"),
    ):
        read(lpm)


@pytest.mark.parametrize(
    "content", [b"not a database at all, but long enough to be looked at" * 20, b"\0" * 5000]
)
def test_a_damaged_database_is_left_alone(tmp_path: Path, content: bytes) -> None:
    """What is not a database is refused in one line and not overwritten."""
    (tmp_path / "lpm.db").write_bytes(content)

    with pytest.raises(StoreError, match="left as it is"):
        LocalPersistenceManager(tmp_path).close_after_check()
    assert (tmp_path / "lpm.db").read_bytes() == content


def test_a_foreign_database_is_left_alone(tmp_path: Path) -> None:
    """Another program's database is refused and not migrated."""
    foreign = apsw.Connection(str(tmp_path / "lpm.db"))
    foreign.execute("CREATE TABLE theirs (x)")
    foreign.close()

    with pytest.raises(StoreError, match="another program"):
        LocalPersistenceManager(tmp_path).close_after_check()


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    """Where a file stands in the way of the data folder there is an error, not a traceback."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFull):
        LocalPersistenceManager(tmp_path / "file" / "data").close_after_check()


def test_a_job_ends_when_nothing_is_open(lpm: LocalPersistenceManager) -> None:
    """A job ends once, by whoever sees it first, not while it is being imported and not while a
    shared task is open."""
    first, second = open_job(lpm, "first"), open_job(lpm, "second")
    lpm.persist_tasks([new("http://a.example/1", line=1)], job=first)
    lpm.persist_tasks([new("http://a.example/1", line=1)], job=second)
    lpm.imports.close(second, time.time())
    assert lpm.jobs.finalise(time.time()) == []

    lpm.save_result(done(lpm.get_next_pending("owner")[0]))
    assert [job.name for job in lpm.jobs.finalise(time.time())] == ["second"]
    lpm.imports.close(first, time.time())
    assert [job.name for job in lpm.jobs.finalise(time.time())] == ["first"]
    assert lpm.jobs.finalise(time.time()) == []


def test_large_results_are_projected_a_few_at_a_time(tmp_path: Path) -> None:
    """What could not be written to pending/ for long is never in memory all at once."""
    lpm = LocalPersistenceManager(tmp_path)
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(12)])
    record = b'{"title":"' + b"x" * 6_000_000 + b'"}'
    first, *others = lpm.get_next_pending("owner", 12)
    lpm.save_result(done(first))
    shutil.rmtree(lpm.pending)
    for task in others:
        lpm.save_result(done(task, record=record))
    lpm.pending.mkdir()

    tracemalloc.start()
    lpm.save_result()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 8 * len(record)
    assert len(list(lpm.pending.glob("*.json"))) == len(others)


def test_pages_that_an_earlier_schema_took_for_one_get_keys_of_their_own(tmp_path: Path) -> None:
    """A `utm_x` made no other page before schema 7; a key that was not its URL's stays, as it tells
    of a damage."""
    # Given a ledger of schema 6 with two pages of a map, and one whose URL was damaged
    with tarfile.open(Path(__file__).parents[1] / "fixtures" / "schema-6.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    page, of_another = (
        "http://a.example/map?utm_x=1&s=2&utm_source=mail&s=1",
        "http://a.example/map?a=1",
    )
    before = blake2b(b"http://a.example/map?s=1&s=2", digest_size=16).digest()
    with apsw.Connection(str(tmp_path / "data" / "lpm.db")) as old:
        [(first,), (second,)] = old.execute("SELECT id FROM tasks ORDER BY id LIMIT 2").fetchall()
        old.execute("UPDATE tasks SET (url, url_key) = (?, ?) WHERE id = ?", (page, before, first))
        old.execute(
            "UPDATE tasks SET (url, url_key) = (?, ?) WHERE id = ?", (of_another, b"k" * 16, second)
        )
        others = old.execute(
            "SELECT id, url, url_key FROM tasks WHERE id NOT IN (?, ?)", (first, second)
        ).fetchall()
    old.close()

    # When it is opened
    lpm = LocalPersistenceManager(tmp_path / "data")
    keys = dict(lpm.store.db.all("SELECT id, url_key FROM tasks"))
    lpm.close()

    # Then the first has the key of its URL, and all others have what they had
    assert keys == {id_: key for id_, _, key in others} | {
        first: urls.parse(page).key,
        second: b"k" * 16,
    }
