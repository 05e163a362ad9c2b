"""The inbox and the name of the kernel, with clocks as arguments."""

import gzip
import json
import logging
import os
import threading
import time
from pathlib import Path

import pytest

from crawler.bulk import import_file
from crawler.config import Settings
from crawler.db import guard, owners
from crawler.errors import StoreError
from crawler.history import timeline
from crawler.inbox import Inbox, safe_name
from crawler.locks import try_lock
from crawler.lpm import LocalPersistenceManager
from crawler.models import TaskCounts
from tests.support.patient import change, look, of, wrong
from tests.support.stack import wait_for
from tests.support.tasks import done


def books(data: Path) -> TaskCounts:
    """The ledger's books."""
    lpm = LocalPersistenceManager(data)
    try:
        return lpm.counts.totals()
    finally:
        lpm.close()


def receipts_of(data: Path, outcome: str) -> list[Path]:
    """The receipts of an outcome."""
    return list((data / "inbox" / outcome).glob("*/*.receipt.json"))


def receipts(data: Path, outcome: str) -> dict[str, dict[str, object]]:
    """What they say, by the name of their file."""
    paths = receipts_of(data, outcome)
    return {path.name.removesuffix(".receipt.json"): json.loads(path.read_text()) for path in paths}


def test_dropped_file_is_taken_when_it_rests(tmp_path: Path) -> None:
    """A file that still changes is left alone; one that rests for two seconds is imported,
    `urgent/` as urgent."""
    now = [100.0]
    inbox = Inbox(Settings(data_dir=tmp_path), clock=lambda: now[0])
    inbox.take()
    growing, urgent = tmp_path / "inbox" / "a.txt", tmp_path / "inbox" / "urgent" / "b.txt"

    # When one grows and the other rests
    growing.write_text("http://a.example/1\n")
    urgent.write_text("http://b.example/1\nnot a url\n")
    inbox.take()
    now[0] += 1.9
    inbox.take()
    assert [growing.exists(), urgent.exists()] == [True, True]
    growing.write_text("http://a.example/1\nhttp://a.example/2\n")
    now[0] += 0.1
    inbox.take()

    # Then only the second is taken, with its rejected row beside its receipt
    assert [growing.exists(), urgent.exists()] == [True, False]
    assert receipts(tmp_path, "done")["b.txt"]["summary"] == {
        "rows": 2,
        "accepted": 1,
        "known": 0,
        "rejected": 1,
        "rejects_file": "b.txt.rejects.jsonl",
        "job": "b.txt",
        "queue": "urgent",
    }
    assert len(list((tmp_path / "inbox" / "done").glob("*/b.txt.rejects.jsonl"))) == 1

    # And the first when it has come to rest, whole
    now[0] += 2.0
    inbox.take()
    assert books(tmp_path).accepted == 3


def test_same_file_again_is_a_new_job_when_the_first_has_ended(tmp_path: Path) -> None:
    """As with `bulk import`: what is open is continued, what has ended is done again."""
    now = [100.0]
    inbox = Inbox(Settings(data_dir=tmp_path), clock=lambda: now[0])

    for accepted in (1, 1, 2):
        (tmp_path / "inbox" / "a.txt").write_text("http://a.example/\n")
        for _ in range(2):
            inbox.take()
            now[0] += 2
        assert books(tmp_path).accepted == accepted
        if len(receipts_of(tmp_path, "done")) == 2:
            lpm = LocalPersistenceManager(tmp_path)
            lpm.save_result(*map(done, lpm.get_next_pending("me")))
            lpm.jobs.finalise(lpm.now())
            lpm.close()


def test_what_is_no_whole_file_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Hidden names, unfinished copies, links, pipes and folders are nobody's import; the last three
    are told."""
    now = [100.0]
    inbox = Inbox(Settings(data_dir=tmp_path), clock=lambda: now[0])
    inbox.take()
    for name in (".hidden.txt", "x.txt.part", "x.txt.tmp", "x.txt~"):
        (tmp_path / "inbox" / name).write_text("http://a.example/\n")
    (tmp_path / "inbox" / "link.txt").symlink_to("/etc/hostname")
    (tmp_path / "inbox" / "folder").mkdir()
    (tmp_path / "inbox" / ("0" * 16)).mkdir()  # an import that is just begun
    os.mkfifo(tmp_path / "inbox" / "urgent" / "pipe.txt")
    before = sorted((tmp_path / "inbox").iterdir())

    for _ in range(3):
        inbox.take()
        now[0] += 5

    assert sorted((tmp_path / "inbox").iterdir()) == before
    assert not LocalPersistenceManager.exists(tmp_path)
    told = [record.getMessage().partition(" is not a regular")[0] for record in caplog.records]
    assert sorted(told) == sorted(
        str(tmp_path / "inbox" / name) for name in ("link.txt", "folder", "urgent/pipe.txt")
    )
    assert of(look(tmp_path), "inbox", "note") == [
        "3 in the inbox are not regular files and are not imported: folder, link.txt, pipe.txt"
    ]


def test_a_file_that_somebody_still_writes_is_left_alone(tmp_path: Path) -> None:
    """A writer may pause for longer than a file is watched: what it has open is not whole."""
    now = [100.0]
    inbox = Inbox(Settings(data_dir=tmp_path), clock=lambda: now[0])
    dropped = tmp_path / "inbox" / "a.txt"

    with dropped.open("w") as writer:
        writer.write("http://a.example/1\nhttp://a.exa")
        writer.flush()
        for _ in range(3):
            inbox.take()
            now[0] += 60
        assert dropped.exists()
        writer.write("mple/2\n")
    for _ in range(2):
        inbox.take()
        now[0] += 2

    assert not dropped.exists()
    assert books(tmp_path).accepted == 2


class Appending(logging.Handler):
    """Appends to the file of the inbox's item when its import has ended, as a writer that had only
    paused."""

    def __init__(self, data: Path, text: str) -> None:
        super().__init__()
        self.data, self.text = data, text

    def emit(self, record: logging.LogRecord) -> None:
        """Append once."""
        if "from the inbox" in record.msg and self.text:
            [file] = (self.data / "inbox").glob("*/a.txt")
            with file.open("a") as out:
                out.write(self.text)
            self.text = ""


@pytest.mark.parametrize("collected", [False, True])
def test_a_file_that_changed_after_its_import_is_imported_as_a_whole(
    tmp_path: Path, collected: bool
) -> None:
    """Into the same job, when it rests again; what was there is recognised, even if it is collected
    by then."""
    # Given a dropped file that grows just behind its import
    now = [100.0]
    inbox = Inbox(Settings(data_dir=tmp_path), clock=lambda: now[0])
    (tmp_path / "inbox" / "a.txt").write_text("http://a.example/1\nhttp://a.example/2\n")
    handler, log = Appending(tmp_path, "http://a.example/3\n"), logging.getLogger("crawler.inbox")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        for _ in range(3):
            inbox.take()
            now[0] += 1.5
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)
    assert receipts(tmp_path, "done") == {}
    lpm = LocalPersistenceManager(tmp_path)
    if collected:
        lpm.save_result(*map(done, lpm.get_next_pending("me", 5)))
        lpm.jobs.finalise(lpm.now())

    # When it rests
    now[0] += 2
    inbox.take()

    # Then its receipt is that of the whole file, in one job
    summary = receipts(tmp_path, "done")["a.txt"]["summary"]
    assert isinstance(summary, dict)
    assert (summary["rows"], summary["accepted"], summary["known"]) == (3, 1, 2)
    [job] = lpm.jobs.all()
    receipt = lpm.receipt(job)
    lpm.close()
    assert (receipt.rows, receipt.known, receipt.problems) == (3, 0, [])


STATES = {
    "a torn row that another row means too": ("1 2 12", "1 2 123 4"),
    "a torn row of its own": ("1 2 3", "1 2 33 4"),
    "a torn row that is rejected": ("1 2 http", "1 2 3 4"),
    "a row that is rejected now": ("1 2 3", "1 2 http 4"),
    "a row in front of the others": ("1 2 3", "0 1 2 3"),
    "the same row on other lines": ("1 1 2", "2 1 2 1"),
    "fewer rows": ("1 2 3 4", "1"),
}


@pytest.mark.parametrize("collected", [False, True])
@pytest.mark.parametrize("how", STATES)
def test_the_receipt_of_a_replaced_file_has_the_rows_of_its_last_state(
    tmp_path: Path, how: str, collected: bool
) -> None:
    """What only an earlier state had counts for the job no more; it is fetched for nobody, and no
    result is lost.

    The doctor finds nothing wrong with the rows.
    """
    settings, file = Settings(data_dir=tmp_path / "data"), tmp_path / "a.txt"
    lpm = LocalPersistenceManager(settings.data_dir)
    for state in STATES[how]:
        rows = [row if row == "http" else f"http://a.example/{row}" for row in state.split()]
        file.write_text("\n".join(rows) + "\n")
        _, job = import_file(settings, file, replaces=True)
        if collected and state == STATES[how][0]:
            lpm.save_result(*map(done, lpm.get_next_pending("me", 9)))
            before = len(list(lpm.results.read()))
    receipt, listed = (
        lpm.receipt(job),
        [row["url"] or "http" for row in lpm.results.input_rows(job)],
    )
    damage = wrong(look(settings.data_dir))
    claimed = {task.url for task in lpm.get_next_pending("me", 9)}
    results = len(list(lpm.results.read()))
    lpm.close()

    assert (receipt.rows, receipt.problems) == (len(rows), [])
    assert damage == []
    assert listed == rows
    assert claimed <= set(rows)
    assert not collected or results == before


@pytest.mark.parametrize("outcome", ["done", "failed"])
def test_the_way_out_names_where_the_file_is(tmp_path: Path, outcome: str) -> None:
    """What is to be read again is read from where the inbox has moved it to."""
    now = [100.0]
    inbox = Inbox(Settings(data_dir=tmp_path), clock=lambda: now[0])
    packed = gzip.compress("".join(f"http://a.example/{n * n}\n" for n in range(2000)).encode())
    (tmp_path / "inbox" / "a.txt.gz").write_bytes(packed if outcome == "done" else packed[:-500])

    for _ in range(2):
        inbox.take()
        now[0] += 2
    if outcome == "done":
        change(tmp_path, "DELETE FROM tasks WHERE id = 7")
        look(tmp_path, repair=True)

    [file] = (tmp_path / "inbox" / outcome).glob("*/a.txt.gz")
    lpm = LocalPersistenceManager(tmp_path)
    [job] = lpm.jobs.all()
    problem, *_ = lpm.receipt(job).problems
    origin = timeline(lpm, 1).steps[0].detail["file"]
    lpm.close()
    assert f"bulk import {file}" in problem
    assert job.source_file == origin == str(file)


def test_unusable_file_is_set_aside_with_its_reason(tmp_path: Path) -> None:
    """It goes to failed/ with one clear line, and the files behind it are imported."""
    now = [100.0]
    inbox = Inbox(Settings(data_dir=tmp_path), clock=lambda: now[0])
    inbox.take()
    (tmp_path / "inbox" / "a.csv").write_text("adress\nhttp://a.example/\n")
    (tmp_path / "inbox" / "b.txt").write_text("http://a.example/\n")

    for _ in range(2):
        inbox.take()
        now[0] += 2

    error = str(receipts(tmp_path, "failed")["a.csv"]["error"])
    assert error.startswith("a.csv, line 1: ")
    assert "\n" not in error
    assert books(tmp_path).accepted == 1


@pytest.mark.parametrize("name", ["a" * 250 + ".txt", "é" * 120 + ".txt", "bad\udcff.txt"])
def test_any_name_can_be_stored(name: str) -> None:
    """A long or undecodable name keeps its ending and leaves room for that of a receipt."""
    safe = safe_name(Path(name))

    assert safe.endswith(".txt")
    assert len(safe.encode()) <= 200


def test_a_copy_is_abandoned_by_the_time_that_passed(tmp_path: Path) -> None:
    """One that grows, or whose date is old because the clock was set, stays; one that rests for an
    hour goes."""
    now = [100.0]
    inbox = Inbox(Settings(data_dir=tmp_path), clock=lambda: now[0])
    item = tmp_path / "inbox" / "item"
    item.mkdir()
    (item / ".options").write_text('{"name": "a.txt"}')
    copy = item / ".a.txt.part"
    for size in (1, 2, 3):
        copy.write_bytes(bytes(size))
        os.utime(copy, (0, 0))
        os.utime(item / ".options", (0, 0))
        inbox.take()
        assert item.exists()
        now[0] += 3000

    inbox.take()
    assert item.exists()
    now[0] += 3700
    inbox.take()
    assert not item.exists()


def test_another_kernel_is_known_by_its_name_while_it_writes(tmp_path: Path) -> None:
    """Its living workers keep the database shut; our own, or those long silent or gone, do not."""
    lock = guard.open_kernel_note(tmp_path / "run")
    assert try_lock(lock)
    opened = LocalPersistenceManager(tmp_path)

    # Given nobody, this kernel, and another that was silent for long
    for name, age_s in (
        ("", 0),
        (guard.kernel_name(), 0),
        ("another\n\n", guard.KERNEL_ALIVE_S + 1),
    ):
        guard.write_kernel_note(lock, name)
        os.utime(tmp_path / "run" / "kernel", (time.time() - age_s,) * 2)
        assert not guard.is_on_other_kernel(tmp_path)
        opened.close_after_check()

    # When another one writes, then it is closed
    guard.write_kernel_note(lock, "another\nmachine\n")
    assert guard.is_on_other_kernel(tmp_path)
    with pytest.raises(StoreError, match="another machine"):
        opened.close_after_check()
    os.close(lock)


def test_the_inbox_goes_from_a_stopped_process_to_the_next(tmp_path: Path) -> None:
    """A holder that stands still is replaced: files are taken, and the kernel's name is written."""
    stopped = owners.LeaderLock(tmp_path / "run" / "inbox.lock", 10.0)
    assert stopped.take()
    inbox = Inbox(Settings(data_dir=tmp_path, stall_s=0.5))
    thread = threading.Thread(target=inbox.run)
    thread.start()
    try:
        (tmp_path / "inbox" / "a.txt").write_text("http://a.example/1\n")
        wait_for(lambda: receipts(tmp_path, "done"), 30, "the file to be taken")
        assert (tmp_path / "run" / "kernel").read_text() == guard.kernel_name()
        assert not stopped.keep()
    finally:
        inbox.stop()
        thread.join(10)
        stopped.close()


def test_two_kernels_at_one_moment_give_way(tmp_path: Path) -> None:
    """Who finds another kernel's name in the place of its own ends, and leaves that name alone."""
    given_way = threading.Event()
    inbox = Inbox(Settings(data_dir=tmp_path), given_way.set)
    thread = threading.Thread(target=inbox.run)
    thread.start()
    note = tmp_path / "run" / "kernel"
    wait_for(
        lambda: note.exists() and note.read_text() == guard.kernel_name(), 5, "this kernel's name"
    )

    note.write_text("another\nmachine\n")

    thread.join(120)
    assert given_way.is_set()
    assert note.read_text() == "another\nmachine\n"


@pytest.mark.parametrize(
    "content", ["", "\0" * 70, "b6e5b67a-15e3", "boot\n", "boot\nmachine\nmore\n", "\n\n"]
)
def test_a_torn_note_of_a_kernel_is_nobodys(tmp_path: Path, content: str) -> None:
    """What a power cut has left of `run/kernel` keeps nobody out."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "kernel").write_text(content)
    assert not guard.is_on_other_kernel(tmp_path)


@pytest.mark.parametrize("ahead_s", [0, 3600])
def test_an_earlier_boot_of_this_machine_keeps_nobody_out(tmp_path: Path, ahead_s: float) -> None:
    """Its note is gone after one look, however young it is, or dated in the future."""
    (tmp_path / "run").mkdir()
    note = tmp_path / "run" / "kernel"
    boot, machine, _ = guard.kernel_name().split("\n")
    note.write_text(f"another {boot}\n{machine if ahead_s == 0 else 'another'}\n")
    os.utime(note, (time.time() + ahead_s,) * 2)

    LocalPersistenceManager(tmp_path).close_after_check()

    assert note.read_text() == ""


def test_a_clone_with_this_machines_id_is_known_by_its_writing(tmp_path: Path) -> None:
    """Two virtual machines with one machine id do not share a database: who writes again is
    alive."""
    lock = guard.open_kernel_note(tmp_path / "run")
    name = f"another {guard.kernel_name()}"
    stopped = threading.Event()

    def live() -> None:
        while not stopped.wait(0.1):
            guard.write_kernel_note(lock, name)

    clone = threading.Thread(target=live)
    guard.write_kernel_note(lock, name)
    clone.start()
    try:
        assert guard.is_on_other_kernel(tmp_path)
    finally:
        stopped.set()
        clone.join()
        os.close(lock)
