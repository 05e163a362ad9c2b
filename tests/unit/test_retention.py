"""`prune --jobs`: finished jobs go as a whole, nothing else does, and nothing looks like a loss."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from crawler.db.record_versions import Replacement
from crawler.db.retention import UNEXPORTED, Kept
from crawler.doctor import Finding, examine
from crawler.files import session_path
from crawler.history import timeline
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job
from crawler.results.retention import PrunedJobs, prune_jobs
from tests.support.stack import Folder
from tests.support.tasks import collect, done, give, new, open_job

NOW = 4_000_000_000.0
"""Later than all that tests do."""
OF_TASKS = ("results", "outbox", "events", "reports", "validators", "job_links",
            "record_versions", "result_files")  # fmt: skip
OF_JOBS = ("tasks", "job_links", "imports", "rejected_rows", "crawl_counts", "site_calls", "losses",
           "exports", "listing_conflicts", "batches")  # fmt: skip


@pytest.fixture
def lpm(tmp_path: Path) -> Iterator[LocalPersistenceManager]:
    """A store."""
    with LocalPersistenceManager(tmp_path / "data") as lpm:
        yield lpm


def prune(lpm: LocalPersistenceManager, **options: bool) -> PrunedJobs:
    """Remove every finished job, exported or not."""
    given = {"also_unexported": True, "dry_run": False} | options
    return prune_jobs(lpm, NOW, **given)  # type: ignore[arg-type]


def named(lpm: LocalPersistenceManager, name: str) -> Job:
    """A job."""
    return lpm.jobs.named(name)


def doctor(lpm: LocalPersistenceManager, repair: bool = False) -> list[Finding]:
    """What the doctor finds wrong or mends."""
    lpm.close()
    found = examine(repair, lambda line: None, {"CRAWLER_DATA_DIR": str(lpm.folder)})
    return [each for each in found if each.state in ("wrong", "mended") and each.check != "redis"]


def fill(lpm: LocalPersistenceManager, job: Job) -> None:
    """Rows of every table that belong to a job."""
    db, first = lpm.store.durable, "(SELECT min(id) FROM tasks WHERE job_id = ?1)"
    for sql in (
        f"INSERT INTO record_versions SELECT {first}, 1, '{{}}', NULL, 'p', '1', 's', '1', 0",
        f"INSERT INTO result_files SELECT {first}, 1, 'photo', 'http://a.example/', x'00', NULL",
        f"INSERT INTO validators SELECT url_key, 'e', NULL, id FROM tasks WHERE id = {first}",
        "INSERT INTO rejected_rows (job_id, source_line, reason, text) VALUES (?1, 9, 'url', 'x')",
        "UPDATE jobs SET rejected = 1 WHERE id = ?1",
        "INSERT INTO crawl_counts VALUES (?1, 'guard', 'depth', 1, NULL)",
        "INSERT INTO listing_conflicts VALUES (1, CAST(?1 AS BLOB), '', 'u', 'h', ?1)",
        "INSERT INTO site_calls VALUES ('call-' || ?1, ?1, 'portal', NULL, 0)",
        "INSERT INTO batches VALUES (?1, '', 'session-' || ?1, '{}', 0, 0)",
        "INSERT INTO losses VALUES (NULL, ?1, 0, 'rows', 'x', 1, 'accepted')",
        "INSERT INTO imports (job_id, key, checksum, file, ended_at) VALUES (?1, 'k', 'c', 'f', 1)",
        "INSERT INTO meta VALUES ('given up ' || ?1 || ' segment', '1')",
    ):
        db.execute(sql, (job.id,) if "?1" in sql else ())
    lpm.timeline.note_export("f", "csv", job, None, 1, 1)


def test_all_that_belongs_to_a_job_goes_and_nothing_else(lpm: LocalPersistenceManager) -> None:
    """No table mentions it any more, its files are gone, and the doctor finds nothing wrong."""
    # Given two jobs with rows in every table
    for name in ("old", "new"):
        collect(lpm, name, 3)
        fill(lpm, named(lpm, name))
        session = session_path(lpm.folder / "sessions", name)
        session.parent.mkdir(exist_ok=True)
        session.write_text("{}")
    old, new_ = named(lpm, "old"), named(lpm, "new")
    assert len(list(lpm.pending.iterdir())) == 6
    last = lpm.results.last_seq()

    # When finished jobs are removed
    pruned = prune(lpm)

    # Then the older one has gone; the newest stays
    assert (pruned.jobs, pruned.tasks, pruned.results) == (["old"], 3, 3)
    assert pruned.kept == [Kept("new", "it is the newest job")]
    assert [job.name for job in lpm.jobs.all()] == ["new"]
    db = lpm.store.db
    for table in OF_TASKS:
        tasks = set(db.column(f"SELECT task FROM {table}"))
        assert tasks <= {4, 5, 6}, table
    for table in OF_JOBS:
        assert old.id not in db.column(f"SELECT job_id FROM {table}"), table
    assert db.column("SELECT key FROM meta WHERE key GLOB 'given up *'") == [
        f"given up {new_.id} segment"
    ]
    assert len(list(lpm.pending.iterdir())) == 3
    assert [*session.parent.iterdir()] == [session]
    assert lpm.results.last_seq() == last
    assert lpm.counts.totals().accepted == 3
    assert doctor(lpm) == []


def test_names_of_removed_jobs_never_come_again(lpm: LocalPersistenceManager) -> None:
    """Exports, archives and logs still have them, and would tell of two jobs."""
    for name in ("portal-2026-11-18", "portal-2026-11-18", "other"):
        collect(lpm, name, 1)
    assert prune(lpm).jobs == ["portal-2026-11-18", "portal-2026-11-18-2"]

    again = [open_job(lpm, name).name for name in ("portal-2026-11-18", "portal-2026-11")]

    assert again == ["portal-2026-11-18-3", "portal-2026-11"]


def test_gaps_in_numbers_are_no_losses(lpm: LocalPersistenceManager) -> None:
    """A repair after a removal finds no task, event or job to be missing; one that was really lost
    is still found."""
    # Given three jobs, of which the middle one goes
    collect(lpm, "first", 3)
    job = open_job(lpm, "second")
    lpm.persist_tasks([new(f"http://second.example/{n}") for n in range(4)], job=job)
    lpm.save_result(*(done(task) for task in lpm.get_next_pending("owner", 4)))
    lpm.persist_tasks([new("http://first.example/later")], job=named(lpm, "first"))
    [later] = lpm.get_next_pending("owner", 1)
    lpm.save_result(done(later))
    lpm.imports.close(job, time.time())
    lpm.jobs.finalise(time.time())
    collect(lpm, "third", 2)
    lpm.store.durable.execute("UPDATE jobs SET completed_at = 5e9 WHERE name = 'first'")
    lpm.store.durable.execute("UPDATE jobs SET size = 4 WHERE name = 'first'")
    assert prune(lpm).jobs == ["second"]
    assert doctor(lpm, repair=True) == []

    # When the ledger disagrees with itself, and is repaired
    lpm.store.durable.execute("DELETE FROM tasks WHERE id = 2")
    lpm.store.durable.execute("DELETE FROM events WHERE task = 2")
    lpm.store.durable.execute("DELETE FROM results WHERE task = 2")
    lpm.store.durable.execute("DELETE FROM outbox WHERE task = 2")
    for path in lpm.pending.iterdir():
        path.unlink()
    mended = [each.detail for each in doctor(lpm, repair=True) if each.check == "books"]

    # Then only what was lost is missing
    assert len(mended) == 1
    assert "1 tasks lost" in mended[0]
    assert "jobs rebuilt" not in mended[0]


def test_numbers_of_results_never_come_again(lpm: LocalPersistenceManager) -> None:
    """Also if the newest result is removed: who follows would miss the next one."""
    # Given an old job whose result is the newest, and a newer job
    job = open_job(lpm, "old")
    lpm.persist_tasks([new("http://old.example/")], job=job)
    [late] = lpm.get_next_pending("owner", 1)
    collect(lpm, "new", 2)
    lpm.save_result(done(late))
    lpm.imports.close(job, time.time())
    lpm.jobs.finalise(time.time())
    task = lpm.store.db.value("SELECT max(task) FROM results")
    lpm.store.durable.execute(  # the newest event is another job's
        "INSERT INTO events (task, at, kind, detail) VALUES (?, 0, 'note', '{}')", (task,)
    )
    assert lpm.results.last_seq() == 3

    assert prune(lpm).jobs == ["old"]

    assert lpm.results.last_seq() == 3
    collect(lpm, "next", 1)
    assert [seq for seq, _ in lpm.results.behind(3).results] == [4]


def test_a_job_that_is_needed_stays_and_is_named(lpm: LocalPersistenceManager) -> None:
    """Open, lossy, undelivered, shared or unexported jobs are kept."""
    # Given jobs that something keeps, and one that was exported
    for name in ("lossy", "shared", "unexported", "exported", "archived"):
        collect(lpm, name, 2)
    db = lpm.store.durable
    lossy, shared = named(lpm, "lossy"), named(lpm, "shared")
    db.execute("INSERT INTO losses VALUES (NULL, ?, 0, 'rows', 'x', NULL, NULL)", (lossy.id,))
    lpm.timeline.note_export("f", "csv", named(lpm, "exported"), None, 2, 99_999)
    ids = db.column("SELECT task_id FROM tasks WHERE parcel_id <> '' AND url LIKE '%archived%'")
    lpm.files.mark_archived(ids, time.time())
    linking = open_job(lpm, "linking")
    lpm.persist_tasks(
        [new(f"http://shared.example/{n}", parcel_id=str(n)) for n in range(2)],
        job=linking,
        fresh_for_s=3600,
    )
    gateway = give(lpm, 2)
    db.execute("UPDATE jobs SET status = 'done', completed_at = 1 WHERE id = ?", (gateway.id,))
    collect(lpm, "newest", 1)

    # When it is asked what would go, and then removed
    would = prune_jobs(lpm, NOW, also_unexported=False, dry_run=True)
    pruned = prune_jobs(lpm, NOW, also_unexported=False, dry_run=False)

    # Then both say the same
    assert (would.jobs, would.kept) == (pruned.jobs, pruned.kept)
    assert (would.tasks, would.results) == (4, 4)
    assert pruned.jobs == ["exported", "archived"]
    unexported = "it has results that were never exported, archived, bundled or delivered"
    assert pruned.kept == [
        Kept("lossy", "it has losses that are neither imported again nor accepted"),
        Kept("shared", unexported),
        Kept("unexported", unexported),
        Kept(gateway.name, "a Gateway has not got all of it yet"),
        Kept("newest", "it is the newest job"),
    ]
    pruned = prune(lpm)
    assert pruned.jobs == ["unexported"]
    assert Kept("shared", "linking has some of its tasks, too") in pruned.kept
    assert shared.name in [job.name for job in lpm.jobs.all()]


def test_a_result_that_was_replayed_since_its_export_counts_as_not_exported(
    lpm: LocalPersistenceManager,
) -> None:
    """Nobody has got the record that it has now; `why` says which one was handed over."""
    # Given a job that was exported, and whose record was replaced since
    for name in ("old", "newest"):
        collect(lpm, name, 1)
    job, before = named(lpm, "old"), lpm.timeline.last_event()
    lpm.timeline.note_export("first.csv", "csv", job, None, 1, before)
    [stored] = [each for each in lpm.versions.stored_results(job, None) if each.chosen]
    assert stored.page
    replacement = Replacement(
        tasks=[stored.task],
        page=stored.page,
        record=b'{"title": "y"}',
        invalid=[],
        parser=("generic", "2"),
        site=("default", "2"),
        changed="title: …",
    )
    lpm.replace_records([replacement])
    collect(lpm, "newer", 1)

    # When old jobs are removed, before and after it is exported again
    kept = prune(lpm, also_unexported=False).kept
    lpm.timeline.note_export("second.csv", "csv", job, None, 1, lpm.timeline.last_event())
    steps = timeline(lpm, stored.task).steps
    again = prune(lpm, also_unexported=False)

    # Then it goes only with its present record
    assert Kept("old", UNEXPORTED) in kept
    assert again.jobs == ["old"]
    order = [step.detail.get("file", step.what) for step in steps]
    assert order.index("first.csv") < order.index("replayed") < order.index("second.csv")
    [first, second] = [step.detail for step in steps if step.what == "exported"]
    assert (first.get("record"), second.get("record")) == ("an earlier one", None)


def test_an_export_of_another_site_hands_nothing_on(lpm: LocalPersistenceManager) -> None:
    """A job goes after an export of the site that its results are of."""
    collect(lpm, "old", 1)
    collect(lpm, "newer", 1)
    for site, gone in (("imoti", []), ("default", ["old"])):
        last = lpm.timeline.last_event()
        lpm.timeline.note_export("a.csv", "csv", None, None, 1, last, (), site)
        assert prune(lpm, also_unexported=False).jobs == gone


def test_it_is_said_what_a_kept_job_has_the_newest_of(lpm: LocalPersistenceManager) -> None:
    """A job, a task or an entry in a timeline; each may be another job's."""
    for name in ("events", "tasks", "jobs"):
        collect(lpm, name, 1)
    db, last = lpm.store.durable, named(lpm, "tasks")
    db.execute("UPDATE tasks SET job_id = ? WHERE id = 3", (last.id,))
    db.execute("INSERT INTO events (task, at, kind, detail) VALUES (1, 0, 'note', '{}')")

    assert prune(lpm, dry_run=True).kept == [
        Kept("events", "it has the newest entry in a timeline"),
        Kept("tasks", "it has the newest task"),
        Kept("jobs", "it is the newest job"),
    ]


def test_jobs_that_share_tasks_go_together(lpm: LocalPersistenceManager) -> None:
    """Once the job that has a share is old, too."""
    collect(lpm, "owner", 2)
    linking = open_job(lpm, "linking")
    lpm.persist_tasks(
        [new(f"http://owner.example/{n}", parcel_id=str(n)) for n in range(2)],
        job=linking,
        fresh_for_s=3600,
    )
    lpm.imports.close(linking, time.time())
    lpm.jobs.finalise(time.time())
    collect(lpm, "newest", 1)

    assert prune(lpm).jobs == ["owner", "linking"]

    assert lpm.store.db.all("SELECT * FROM job_links") == []
    assert doctor(lpm) == []


def test_nobody_gets_a_share_in_a_job_that_goes(lpm: LocalPersistenceManager) -> None:
    """An import fetches its pages anew, and a retry leaves its tasks alone."""
    # Given a job that is to go
    job = open_job(lpm, "old")
    lpm.persist_tasks([new("http://old.example/1"), new("http://old.example/2")], job=job)
    first, second = lpm.get_next_pending("owner", 2)
    lpm.save_result(done(first))
    lpm.tasks.retry(["failed"], None, None, time.time())
    lpm.store.durable.execute(
        "UPDATE tasks SET status = 'failed', completed_at = 1, error_type = 'x' WHERE id = ?",
        (second.id,),
    )
    lpm.retention.intend([job])

    # When its page is imported again, and failed tasks are to be tried again
    found = lpm.persist_tasks(
        [new("http://old.example/1")], job=open_job(lpm, "new"), fresh_for_s=3600
    )
    again = lpm.tasks.retry(["failed"], None, None, time.time())

    # Then neither touches it
    assert (found.accepted, found.known) == (1, 0)
    assert again == (0, 0)


@pytest.mark.parametrize(
    "failpoint",
    ["intended:1", "pruning:1", "rows-removed:1", "files-removed:1", "tasks-removed:1",
     "files-removed:2", "tasks-removed:2"],
)  # fmt: skip
def test_a_killed_removal_is_continued(folder: Folder, failpoint: str) -> None:
    """Wherever it is killed, the books balance, the doctor and receipts find nothing wrong, and the
    next call finishes it."""
    # Given a removal that is killed
    with closing(folder.lpm()) as lpm:
        for name in ("old", "older", "new"):
            collect(lpm, name, 260)
    command = ("prune", "--jobs", "--older-than", "0s", "--also-unexported")
    assert folder.crawler(*command, CRAWLER_FAILPOINT=failpoint).returncode == -signal.SIGKILL

    # When one looks at what is left
    with closing(folder.lpm()) as lpm:
        books = lpm.counts.totals()
        problems = [lpm.receipt(job).problems for job in lpm.jobs.all()]
        names = [job.name for job in lpm.jobs.all()]
        wrong = doctor(lpm)
    with closing(folder.lpm()) as lpm:
        lpm.close_after_check()  # as every stack does at its start
        lpm.files.restore()

    # Then nothing is wrong, and each job is there or not
    assert wrong == []
    assert books.accepted == books.completed == books.results
    assert not any(problems)
    assert names == (["old", "older", "new"] if failpoint == "intended:1" else ["new"])

    # And the next call, or the doctor, finishes it
    if failpoint == "tasks-removed:2":
        with closing(folder.lpm()) as lpm:
            [mended] = doctor(lpm, repair=True)
            assert "was broken off; it is complete now" in mended.detail
    finished = folder.crawler(*command)
    assert finished.returncode == 0, finished.stderr
    with closing(folder.lpm()) as lpm:
        assert [job.name for job in lpm.jobs.all()] == ["new"]
        assert lpm.counts.totals().accepted == 260
        assert len(list(lpm.pending.iterdir())) == 260
        assert doctor(lpm) == []


WRITER = """
import sys
from pathlib import Path
from crawler.lpm import LocalPersistenceManager
from tests.support.tasks import collect

with LocalPersistenceManager(Path(sys.argv[1])) as lpm:
    for n in range(40):
        collect(lpm, f"writer-{n}", 5)
"""


def test_others_write_while_jobs_are_removed(lpm: LocalPersistenceManager) -> None:
    """Another process stores jobs and results; at the end all of them are there, and in order."""
    # Given old jobs, and a process that stores new ones
    for n in range(5):
        collect(lpm, f"old-{n}", 400)
    before = lpm.now()
    lpm.store.durable.execute("UPDATE jobs SET completed_at = 1")
    collect(lpm, "newest", 1)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(lpm.folder)],
        cwd=Path(__file__).parents[2],
        env=os.environ,
    )

    # When the old ones are removed meanwhile
    pruned = prune_jobs(lpm, before - 1000, also_unexported=True, dry_run=False)

    # Then only they are gone
    assert writer.wait() == 0
    assert pruned.tasks == 2000
    assert lpm.counts.totals().completed == 201
    assert not any(lpm.receipt(job).problems for job in lpm.jobs.all())
    assert doctor(lpm) == []


def test_the_database_becomes_smaller(lpm: LocalPersistenceManager) -> None:
    """New stores give room back to the disk."""
    collect(lpm, "old", 2000)
    collect(lpm, "new", 10)
    lpm.store.cut_log()
    before = lpm.path.stat().st_size

    pruned = prune(lpm)

    assert lpm.path.stat().st_size < before / 3
    assert pruned.bytes > before / 2
    assert lpm.retention.free_pages() < 50


def test_the_command_says_what_goes_and_what_stays(folder: Folder) -> None:
    """As lines and as JSON; what is removed is one thing at a time."""
    with closing(folder.lpm()) as lpm:
        for name in ("unexported", "archived", "newest"):
            collect(lpm, name, 2)
        ids = lpm.store.db.column("SELECT task_id FROM tasks WHERE url LIKE '%archived%'")
        lpm.files.mark_archived(ids, time.time())
    command = ("prune", "--jobs", "--older-than", "0s")

    would = folder.crawler(*command, "--dry-run")
    done = folder.crawler(*command, "--json")
    again = folder.crawler(*command)
    both = folder.crawler(*command, "--raw")

    kept = (
        "  kept unexported: it has results that were never exported, archived, bundled or delivered"
        "\n  kept newest: it is the newest job\n"
    )
    ended = r"\(jobs that ended before \d{4}-\d\d-\d\d \d\d:\d\d UTC\)"
    line, rest = would.stdout.split("\n", 1)
    assert re.fullmatch(f"Would remove 1 job, 2 tasks, 2 results {ended}", line)
    assert rest == f"  would remove archived\n{kept}"
    assert abs(json.loads(done.stdout)["before"] - time.time()) < 3600
    facts = json.loads(done.stdout)
    assert (facts["jobs"], facts["tasks"], facts["results"]) == (["archived"], 2, 2)
    assert [each["job"] for each in facts["kept"]] == ["unexported", "newest"]
    line, rest = again.stdout.split("\n", 1)
    assert re.fullmatch(f"Nothing to remove {ended}", line)
    assert rest == kept
    assert (both.returncode, both.stdout) == (2, "")
    assert "--raw and --jobs: only one of them" in both.stderr
