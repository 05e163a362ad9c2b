"""A process that is stopped (SIGSTOP) holds up nobody: its leases and its office go to others."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import apsw
import psutil

from crawler.config import Settings
from crawler.db import owners
from crawler.lpm import LocalPersistenceManager
from crawler.maintainer import Maintainer
from crawler.worker import Worker
from tests.support.broker import MemoryBroker
from tests.support.clock import Clock
from tests.support.patient import look
from tests.support.site import Site
from tests.support.stack import Folder, assert_balanced, wait_for
from tests.support.tasks import done, new


def stop(pid: int, store: Path) -> None:
    """Stop a process in a moment in which it does not write to the ledger: that lock nobody can
    take from it."""

    def stopped() -> bool:
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, 10, "it to stop")
        db = apsw.Connection(str(store))
        db.set_busy_timeout(500)
        try:
            db.execute("BEGIN IMMEDIATE; ROLLBACK")
        except apsw.BusyError:
            os.kill(pid, signal.SIGCONT)
            return False
        finally:
            db.close()
        return True

    wait_for(stopped, 60, "a moment without a write")


def test_a_stopped_child_that_is_the_maintainer_is_replaced(
    folder: Folder, site: Site, redis_url: str
) -> None:
    """Its pages come from the other child, the doctor names it, and when it goes on nothing is
    stored twice."""
    # Given two children with pages that hang, more than one of them can have
    told = {"REDIS_URL": redis_url, "CRAWLER_STALL_S": "5"}
    folder.env |= told
    folder.redis().flushall()
    worker = folder.worker(concurrency=2)
    pages = [f"{site.url}/hold/{n}" for n in range(24)] + [site.page(n) for n in range(40)]
    folder.crawler("bulk", "import", str(folder.write("pages.txt", pages)))
    maintainer = int((folder.data / "run" / "maintainer.lock").read_text().split()[0])
    assert maintainer in folder.children(worker.pid)

    def holds() -> bool:
        notes = owners.living(folder.data / "run" / "owners")
        return (
            any(note.pid == maintainer and note.in_flight for note in notes)
            and folder.books().completed == 40
        )

    wait_for(holds, 60, "the maintainer's child to have hanging pages only")

    # When the one that is the maintainer is stopped, and the pages come
    stop(maintainer, folder.data / "lpm.db")
    wait_for(
        lambda: "stands still" in folder.log(worker), 60, "the other child to take back its tasks"
    )
    [found] = [
        finding
        for finding in look(folder.data, repair=False, **told)
        if "stands still" in finding.detail
    ]
    shown = folder.crawler("status").stdout
    site.release()

    # Then everything is collected by the other, and both commands name the one
    assert folder.wait_until_done(64, 60).completed == 64
    assert f"process {maintainer}" in found.detail
    assert f"kill -CONT {maintainer}" in (found.fix or "")
    assert f"process {maintainer}; kill -CONT {maintainer}" in shown

    # And when it goes on, nothing is stored twice, nobody is blamed, and both children work
    os.kill(maintainer, signal.SIGCONT)
    more = [site.page(n) for n in range(100, 120)]
    folder.crawler("bulk", "import", str(folder.write("more.txt", more)))
    assert folder.wait_until_done(84, 60).completed == 84
    wait_for(lambda: len(folder.children(worker.pid)) == 2, 60, "two children")
    assert sorted(result["url"] for result in folder.results()) == sorted([*pages, *more])
    assert_balanced(folder.status())
    lpm = folder.lpm()
    assert lpm.store.db.all("SELECT DISTINCT strikes FROM tasks") == [(0,)]
    [(back,)] = lpm.store.db.all("SELECT count(*) FROM events WHERE kind = 'taken back'")
    lpm.close()
    assert back > 0


def test_late_results_of_a_taken_back_task_are_forgotten(tmp_path: Path, site: Site) -> None:
    """A worker that went on after all stores nothing of what was taken from it, and has its slots
    free again."""
    # Given a worker with a page in flight
    lpm = LocalPersistenceManager(tmp_path)
    lpm.persist_tasks([new(f"{site.url}/hold/1")], loopback=True)
    worker = Worker(Settings(data_dir=tmp_path, slice_s=5, min_free=0, rate="none"))
    slice_ = threading.Thread(target=worker.run_slice, args=("message", ["default"]))
    slice_.start()

    def mine() -> owners.OwnerState:
        [note] = owners.living(tmp_path / "run" / "owners")
        return note

    try:
        wait_for(lambda: mine().in_flight, 30, "the page to begin")

        # When it is taken back and collected by another, and its own answer comes late
        assert lpm.dispatch.take_back(mine(), 1000.0) == ["127.0.0.1"]
        [task] = lpm.get_next_pending("another")
        assert task.attempts == 1
        assert lpm.save_result(done(task)) == [True]
        before = lpm.store.db.all("SELECT * FROM results")
        site.release()
        wait_for(lambda: not mine().in_flight, 30, "the worker to let go of it")

        # Then the other's result stands, and the permit is given back
        assert lpm.store.db.all("SELECT * FROM results") == before
        assert lpm.counts.totals().completed == 1
    finally:
        slice_.join()
        worker.stop()
        lpm.close()


def test_only_who_stands_still_while_the_maintainer_runs_loses_its_leases(tmp_path: Path) -> None:
    """A maintainer that was stopped together with the others waits until they had time to go on."""
    lpm = LocalPersistenceManager(tmp_path)
    lpm.persist_tasks([new("http://a.example/1")])
    owner = owners.Owner(lpm.owners, "worker", slots=4)
    [task] = lpm.get_next_pending(owner.id)
    owner.begin(task.id)
    forgotten: list[tuple[str, str]] = []
    maintainer = Maintainer(
        lpm,
        MemoryBroker(),
        Settings(stall_s=0.05),
        lambda domain, who: forgotten.append((domain, who)),
        Clock(1000.0),
    )
    # Its first look is like that after a stop
    wait_for(lambda: stands_still(owner.path, 0.2), 10, "the owner's beat to be old")
    maintainer.tick()
    assert lpm.counts.totals().processing == 1

    # Then, while it looks on, the owner loses what it holds
    wait_for(ticked(maintainer, lambda: bool(forgotten)), 10, "its leases to be taken back")
    assert lpm.counts.totals().pending == 1
    assert forgotten == [("a.example", owner.id)]
    owner.close()
    lpm.close()


def stands_still(path: Path, seconds: float) -> bool:
    """Whether an owner's beat is older than that."""
    [note] = [note for note in owners.living(path.parent) if note.id == path.name]
    return note.still_s(time.monotonic()) > seconds


def ticked(maintainer: Maintainer, condition: Callable[[], bool]) -> Callable[[], bool]:
    """The condition, looked at after another tick."""

    def look_again() -> bool:
        maintainer.tick()
        return condition()

    return look_again


def test_an_office_goes_from_a_stopped_holder_to_the_next(tmp_path: Path) -> None:
    """Who sees no beat for the limit takes over; the old holder notices before it acts again."""
    clock = Clock(100.0)
    path = tmp_path / "run" / "office.lock"
    first, second, third = (owners.LeaderLock(path, 10.0, clock) for _ in range(3))
    assert first.take()
    assert not second.take()

    # As long as it beats, it keeps it
    for _ in range(5):
        clock.now += 6
        assert first.keep()
        assert not second.take()

    # Who did not look on for the whole time takes nothing
    clock.now += 60
    assert not second.take()

    # But who did, does
    clock.now += 6
    assert not second.take()
    clock.now += 6
    assert second.take()
    assert not first.keep()
    assert not first.take()
    assert second.keep()

    # And one that is given up is free for whoever asks
    second.close()
    assert third.take()
    for office in (first, second, third):
        office.close()


def test_a_lease_that_its_owner_does_not_know_of_is_given_back(
    folder: Folder, site: Site, redis_url: str
) -> None:
    """An error between a lease and who asked for it leaves a task to a living process that never
    heard of it."""
    # Given a worker, and a task that is leased to it behind its back
    folder.env["REDIS_URL"] = redis_url
    folder.redis().flushall()
    folder.worker(concurrency=1)
    lpm = folder.lpm()
    [note] = owners.living(lpm.owners)
    page = site.page(1)
    lpm.persist_tasks([new(page)], loopback=True)
    assert lpm.dispatch.claim_one(note.id, 1, lpm.now()) is not None

    # When it compares its leases with what it knows, then the task is collected
    folder.wait_until_done(1, 120)
    kinds = [row[0] for row in lpm.store.db.all("SELECT kind FROM events ORDER BY id")]
    lpm.close()
    assert kinds == ["given back", "completed"]
