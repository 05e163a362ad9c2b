"""What an operator and the clock do to tasks: pause, resume, cancel, retry, expire; and the receipt
over all of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from crawler.errors import StoreError, UsageError
from crawler.files import session_path
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job, JobStatus, NewTask, TaskStatus
from tests.support.clock import Clock
from tests.support.tasks import done, new

NOON = 1_800_000_000.0


@pytest.fixture
def clock() -> Clock:
    """Noon, until a test says otherwise."""
    return Clock(NOON)


@pytest.fixture
def lpm(tmp_path: Path, clock: Clock) -> Iterator[LocalPersistenceManager]:
    """A store in an empty folder, on that clock."""
    lpm = LocalPersistenceManager(tmp_path / "data", clock=clock)
    yield lpm
    lpm.close()


def job_with(
    lpm: LocalPersistenceManager, name: str, *pages: str, deadline: float | None = None
) -> Job:
    """A job with a task for each page of one domain."""
    job = lpm.imports.open_job(
        key=name, name=name, queue="default", source="file", source_file=f"/in/{name}",
        batch_size=100, now=lpm.now(), deadline=deadline,
    )  # fmt: skip
    tasks: list[NewTask] = [
        new(f"http://a.example/{page}", line=line) for line, page in enumerate(pages, 1)
    ]
    lpm.persist_tasks(tasks, job=job)
    lpm.imports.close(job, lpm.now())
    return job


def claimed(lpm: LocalPersistenceManager, limit: int = 10) -> list[str]:
    """The pages that workers would get now."""
    return [task.url.rpartition("/")[2] for task in lpm.get_next_pending("owner", limit)]


def fail(lpm: LocalPersistenceManager, reason: str = "timeout") -> None:
    """The next task fails for good."""
    [task] = lpm.get_next_pending("owner")
    lpm.save_result(
        done(task, status=TaskStatus.FAILED, page=None, error_type=reason, error_message="no")
    )


def test_nothing_of_a_paused_job_is_claimed_until_it_is_resumed(
    lpm: LocalPersistenceManager,
) -> None:
    """Pause stops claims at once, also of rows that come later or come back; resume makes all of
    them due."""
    # Given a job with one task in flight, and a second job
    job = job_with(lpm, "one", "a", "b", "c")
    [flying] = lpm.get_next_pending("owner")

    # When the first is paused, gets another row, and the flying task wants another attempt
    assert lpm.jobs.hold(job, "paused", lpm.now()) == 2
    job_with(lpm, "two", "d")
    lpm.persist_tasks([new("http://a.example/late")], job=job)
    lpm.save_result(done(flying, status=TaskStatus.PENDING, page=None, error_type="timeout"))

    # Then only the second's is claimed, and nothing is lost
    assert claimed(lpm) == ["d"]
    assert lpm.counts.of_job(job).pending == 4
    assert lpm.jobs.release(lpm.jobs.named("one")) == 4
    assert claimed(lpm) == ["b", "c", "late", "a"]  # what has failed goes behind the others


def test_a_shared_task_goes_on_for_the_job_that_is_not_paused(lpm: LocalPersistenceManager) -> None:
    """A task that two jobs want is held only when both are."""
    first = job_with(lpm, "one", "a")
    second = job_with(lpm, "two", "a")

    lpm.jobs.hold(first, "paused", lpm.now())
    [task] = lpm.get_next_pending("owner")
    lpm.save_result(done(task, status=TaskStatus.PENDING, page=None))
    lpm.jobs.hold(second, "paused", lpm.now())

    assert task.url.endswith("/a")
    assert claimed(lpm) == []


def test_the_cookies_of_a_list_go_with_its_job(lpm: LocalPersistenceManager) -> None:
    """Whether it is finished or cancelled, and also where a killed process has left them; those of
    open jobs and the jobs' own secrets stay."""
    one, two = job_with(lpm, "one", "a"), job_with(lpm, "two", "b")
    job_with(lpm, "three", "c")
    folder = lpm.folder / "sessions"
    folder.mkdir()
    files = {name: session_path(folder, name) for name in ("one", "two", "three", "gone")}
    for path in files.values():
        path.write_text("{}")
        path.with_suffix(".task.cookies").write_text("[]")
    half_written = folder / f".{files['one'].stem}.task.cookies.17"
    half_written.write_text("[")

    def left() -> set[str]:
        return {path.name.partition(".")[0] for path in folder.glob("*.cookies")}

    lpm.jobs.finalise(lpm.now())
    assert left() == {"one", "two", "three"}
    [task, *_] = lpm.get_next_pending("owner")
    lpm.save_result(done(task))
    assert [job.id for job in lpm.jobs.finalise(lpm.now())] == [one.id]
    assert (left(), half_written.exists()) == ({"two", "three"}, False)
    lpm.jobs.hold(two, "cancelled", lpm.now())
    lpm.jobs.finalise(lpm.now())
    assert left() == {"three"}
    files["one"].with_suffix(".task.cookies").write_text("[]")  # killed before it was removed
    with LocalPersistenceManager(lpm.folder) as other:
        other.jobs.finalise(other.now())
    assert left() == {"three"}
    assert all(path.exists() for path in files.values())


def test_cancelling_skips_what_has_not_begun(lpm: LocalPersistenceManager) -> None:
    """Cancel ends the job when what is in flight has ended; every task is in a final state with its
    reason."""
    job = job_with(lpm, "one", "a", "b", "c")
    [flying] = lpm.get_next_pending("owner")

    assert lpm.jobs.hold(job, "cancelled", lpm.now()) == 2
    assert lpm.jobs.finalise(lpm.now()) == []
    lpm.save_result(done(flying))

    [ended] = lpm.jobs.finalise(lpm.now())
    receipt = lpm.jobs.receipt(ended)
    assert (receipt.books.completed, receipt.reasons) == (1, {"skipped": {"cancelled": 2}})
    assert receipt.problems == []


def test_what_missed_its_deadline_expires(lpm: LocalPersistenceManager, clock: Clock) -> None:
    """At the deadline what is still pending expires with a reason; what was done or is in flight
    counts."""
    job = job_with(lpm, "one", "a", "b", "c", deadline=NOON + 60)
    lpm.save_result(done(lpm.get_next_pending("owner")[0]))
    [flying] = lpm.get_next_pending("owner")

    clock.now = NOON + 61
    assert claimed(lpm) == []
    lpm.save_result(done(flying))

    receipt = lpm.jobs.receipt(job)
    assert (receipt.books.completed, receipt.books.expired) == (2, 1)
    assert receipt.reasons == {"expired": {"deadline": 1}}


def test_a_shared_task_expires_only_with_its_last_job(
    lpm: LocalPersistenceManager, clock: Clock
) -> None:
    """A task that a later job wants without a deadline is worked on early, and goes on after the
    first's deadline."""
    job_with(lpm, "patient", "a", "b")
    job_with(lpm, "hasty", "b", deadline=NOON + 60)

    [first] = lpm.get_next_pending("nobody")
    lpm.save_result(done(first, status=TaskStatus.PENDING, page=None))
    clock.now = NOON + 61

    assert first.url.endswith("/b")
    assert claimed(lpm) == ["a", "b"]


def test_the_earliest_deadline_comes_first_within_a_priority(lpm: LocalPersistenceManager) -> None:
    """Within a queue and priority the nearer deadline is claimed first, whatever was imported
    first."""
    job_with(lpm, "none", "n")
    job_with(lpm, "later", "l", deadline=NOON + 600)
    job_with(lpm, "soon", "s", deadline=NOON + 60)

    assert claimed(lpm) == ["s", "l", "n"]


def test_a_new_deadline_holds_for_what_a_job_has_already(
    lpm: LocalPersistenceManager, clock: Clock
) -> None:
    """The same import with another deadline moves that of the open tasks."""
    job_with(lpm, "one", "a", deadline=NOON + 60)
    job_with(lpm, "one", "a", deadline=NOON + 600)

    clock.now = NOON + 61
    assert lpm.jobs.named("one").deadline == NOON + 600
    assert claimed(lpm) == ["a"]


def test_retry_takes_only_what_was_meant_and_reopens_the_job(lpm: LocalPersistenceManager) -> None:
    """Failed tasks of a reason become pending with fresh attempts; the others stay; the job is open
    again."""
    job = job_with(lpm, "one", "a", "b", "c")
    fail(lpm, "timeout")
    fail(lpm, "http_404")
    lpm.save_result(done(lpm.get_next_pending("owner")[0]))
    lpm.jobs.finalise(lpm.now())

    assert lpm.tasks.retry(("failed",), "timeout", job, lpm.now()) == (1, 0)

    assert lpm.jobs.named("one").status is JobStatus.OPEN
    assert claimed(lpm) == ["a"]
    assert lpm.jobs.receipt(job).reasons == {"failed": {"http_404": 1}}


def test_retry_leaves_a_url_that_is_open_elsewhere(lpm: LocalPersistenceManager) -> None:
    """One URL is never open in two tasks, and two jobs of one file can both be reopened."""
    job_with(lpm, "one", "a", "b")
    fail(lpm)
    fail(lpm)
    lpm.jobs.finalise(lpm.now())
    again = lpm.imports.open_job(
        key="one",
        name="one",
        queue="default",
        source="file",
        source_file=None,
        batch_size=100,
        now=lpm.now(),
    )
    lpm.persist_tasks([new("http://a.example/a")], job=again)

    assert lpm.tasks.retry(("failed",), None, None, lpm.now()) == (1, 1)

    assert sorted(claimed(lpm)) == ["a", "b"]
    assert [(job.name, job.status) for job in lpm.jobs.all()] == [
        ("one", "open"),
        ("one-2", "importing"),
    ]


def test_an_expired_task_that_is_retried_has_no_deadline(
    lpm: LocalPersistenceManager, clock: Clock
) -> None:
    """It would expire again at once otherwise."""
    job_with(lpm, "one", "a", deadline=NOON + 60)
    clock.now = NOON + 61
    assert claimed(lpm) == []

    lpm.tasks.retry(("expired",), None, None, clock.now)

    assert claimed(lpm) == ["a"]
    assert lpm.jobs.named("one").deadline is None


def test_a_receipt_tells_what_does_not_add_up(lpm: LocalPersistenceManager) -> None:
    """Rows taken out of the ledger behind its back are named, and the checksum changes with every
    state."""
    job = job_with(lpm, "one", "a", "b")
    before = lpm.jobs.receipt(job)
    lpm.save_result(done(lpm.get_next_pending("owner")[0]))
    good = lpm.jobs.receipt(job)
    lpm.store.durable.execute("DELETE FROM results")
    lpm.store.durable.execute("DELETE FROM tasks WHERE url LIKE '%/b'")

    bad = lpm.jobs.receipt(job)

    assert good.problems == []
    assert (good.rows, good.books.accepted) == (2, 2)
    assert [problem.partition(";")[0] for problem in bad.problems] == [
        "1 tasks more or fewer than were accepted",
        "1 completed tasks without a result",
    ]
    assert len({before.checksum, good.checksum, bad.checksum}) == 3


def test_a_missing_segment_is_a_problem(lpm: LocalPersistenceManager) -> None:
    """A receipt is not good when the pages it counts are not there."""
    job = job_with(lpm, "one", "a")
    lpm.save_result(done(lpm.get_next_pending("owner")[0]))
    assert lpm.receipt(job).problems == []

    for segment in lpm.raw.iterdir():
        segment.unlink()

    assert len(lpm.receipt(job).problems) == 1
    assert len(lpm.accept(job)) == 1
    assert lpm.receipt(job).problems == []


def test_an_unknown_job_names_the_nearest(lpm: LocalPersistenceManager) -> None:
    """A slip of the finger is told from a job that is not there."""
    job_with(lpm, "parcels.csv", "a")
    with pytest.raises(UsageError, match=r"did you mean parcels\.csv\?"):
        lpm.jobs.named("parcel.csv")


def test_tasks_are_listed_by_state_reason_and_job(lpm: LocalPersistenceManager) -> None:
    """Any mixture of filters, in the order of import, and no more than asked for."""
    job = job_with(lpm, "one", *(f"p{n}" for n in range(5)))
    job_with(lpm, "two", "p0", "q")
    for _ in range(3):
        fail(lpm)

    failed = list(lpm.tasks.select(job, ("failed",), "timeout"))

    assert [task["source_line"] for task in failed] == [1, 2, 3]
    assert [task["url"][-1] for task in lpm.tasks.select(lpm.jobs.named("two"))] == ["0", "q"]
    assert len(list(lpm.tasks.select(limit=4))) == 4
    assert list(lpm.tasks.select(domain="b.example")) == []


def test_the_wal_is_cut_when_it_is_large(lpm: LocalPersistenceManager) -> None:
    """Above the limit the log is written back and emptied; below nothing is done."""
    job_with(lpm, "one", *(f"p{n}" for n in range(2000)))
    wal = lpm.path.with_name("lpm.db-wal")

    assert not lpm.bound_wal(1 << 30)
    assert lpm.bound_wal(1000)
    assert wal.stat().st_size == 0


def test_an_import_under_the_name_of_a_cancelled_job_is_a_new_one(
    lpm: LocalPersistenceManager,
) -> None:
    """While what is in flight of a cancelled job still ends, the same import again is not skipped
    with it."""
    job = job_with(lpm, "daily", "a")
    lpm.get_next_pending("owner")
    lpm.jobs.hold(job, "cancelled", lpm.now())

    again = job_with(lpm, "daily", "b")

    assert (again.name, claimed(lpm)) == ("daily-2", ["b"])


@pytest.mark.parametrize("hold", ["resuming", "cancelled"])
def test_a_killed_command_is_brought_to_its_end(lpm: LocalPersistenceManager, hold: str) -> None:
    """Where `job resume` or `job cancel` died in the middle, the maintainer does the rest."""
    job = job_with(lpm, "one", "a", "b", "c")
    lpm.jobs.hold(job, "paused", lpm.now())
    lpm.store.durable.execute("UPDATE jobs SET hold = ?", (hold,))
    lpm.store.durable.execute("UPDATE tasks SET not_before = 0 WHERE url LIKE '%/a'")

    lpm.jobs.complete_holds(lpm.now())

    assert claimed(lpm) == (["a", "b", "c"] if hold == "resuming" else [])
    assert lpm.counts.of_job(job).skipped == (0 if hold == "resuming" else 3)


def test_a_new_job_gets_what_a_paused_one_holds(lpm: LocalPersistenceManager) -> None:
    """A URL that waits for a paused job is due for the job, or the call, that asks for it now."""
    first = job_with(lpm, "one", "a", "b")
    lpm.jobs.hold(first, "paused", lpm.now())

    job_with(lpm, "two", "a")
    call = lpm.tasks.add_call(new("http://a.example/b", external_id="call"), loopback=False)

    assert claimed(lpm) == ["a"]
    assert lpm.dispatch.claim_one("owner", call, lpm.now()) is not None


def test_retry_does_not_save_what_is_late(lpm: LocalPersistenceManager, clock: Clock) -> None:
    """Trying failed ones again takes their job's deadline off; what never failed has missed it all
    the same."""
    job = job_with(lpm, "one", "a", "b", deadline=NOON + 60)
    fail(lpm)
    clock.now = NOON + 61

    assert lpm.tasks.retry(("failed",), None, None, clock.now) == (1, 0)

    assert claimed(lpm) == ["a"]
    assert lpm.counts.of_job(job).expired == 1


def test_a_paused_job_neither_fetches_nor_loses_what_another_missed(
    lpm: LocalPersistenceManager, clock: Clock
) -> None:
    """After the deadline of one job the task waits for the other, which is paused."""
    patient = job_with(lpm, "patient", "a")
    hasty = job_with(lpm, "hasty", "a", deadline=NOON + 60)
    lpm.jobs.hold(patient, "paused", lpm.now())
    clock.now = NOON + 61

    assert claimed(lpm) == []
    assert lpm.counts.of_job(hasty).pending == 1
    lpm.jobs.release(lpm.jobs.named("patient"))
    assert claimed(lpm) == ["a"]


def test_a_files_deadline_is_not_a_calls(lpm: LocalPersistenceManager, clock: Clock) -> None:
    """Somebody waits for a single URL, whatever a file says about it."""
    lpm.tasks.add_call(new("http://a.example/a", external_id="call"), loopback=False)
    job_with(lpm, "hasty", "a", deadline=NOON + 60)
    clock.now = NOON + 61

    assert claimed(lpm) == ["a"]


def test_a_ledger_that_is_gone_is_not_begun_anew(lpm: LocalPersistenceManager) -> None:
    """Where results are left without their ledger nothing is started over them; the error says what
    helps."""
    job_with(lpm, "one", "a")
    lpm.save_result(done(lpm.get_next_pending("owner")[0]))
    lpm.close()
    for path in lpm.folder.glob("lpm.db*"):
        path.unlink()

    with pytest.raises(StoreError, match="doctor --repair"):
        lpm.counts.totals()
    assert not lpm.path.exists()


def test_the_checksum_covers_what_was_collected(tmp_path: Path) -> None:
    """Two runs over the same pages have the same checksum, and another one where one record
    differs."""
    sums = []
    for number, title in enumerate(("x", "x", "y")):
        lpm = LocalPersistenceManager(tmp_path / str(number))
        job = job_with(lpm, "one", "a", "b")
        for task in lpm.get_next_pending("owner", 2):
            lpm.save_result(done(task, {"title": title if task.url.endswith("/b") else "x"}))
        sums.append(lpm.jobs.receipt(job).checksum)
        lpm.close()

    assert sums[0] == sums[1] != sums[2]


def test_a_receipt_names_the_required_fields_that_pages_lack(lpm: LocalPersistenceManager) -> None:
    """How many of how many that were read for them; pages of other sites and damaged records do not
    count."""
    job = job_with(lpm, "one", *"abcdef")
    records: list[dict[str, object]] = [
        {"price": None, "owner": "x", "missing": ["price"]},
        {"price": None, "owner": None, "missing": ["price", "owner"]},
        {"price": 3, "owner": "y"},
        {"title": 'another site says "missing": it', "fields": {"missing": ["price"]}},
        {"title": "y", "missing": "a page of a bundle"},
        {"price": None, "owner": "x", "missing": ["price"]},
    ]
    for task, record in zip(lpm.get_next_pending("owner", 6), records, strict=True):
        lpm.save_result(done(task, record))
    lpm.store.durable.execute(
        "UPDATE results SET record = x'22ff' || substr(record, 2) WHERE task = 6"
    )

    receipt = lpm.jobs.receipt(job)

    found = [(field.name, field.pages, field.of) for field in receipt.missing_fields]
    assert found == [("price", 2, 3), ("owner", 1, 3)]
