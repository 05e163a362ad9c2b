"""Batches: each call once, ends in the order of commits, nothing shared, and repairs."""

import contextlib
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from crawler import batches
from crawler.api import site_crawls, webhooks
from crawler.api.errors import as_http
from crawler.batches import BatchOptions, BatchReader, Submitted, submit
from crawler.config import Settings
from crawler.db.batches import Batch, key_of, session_of
from crawler.db.owners import Owner
from crawler.errors import SessionCancelled, UsageError
from crawler.fetch import session as sessions
from crawler.lpm import LocalPersistenceManager
from crawler.models import MESSAGE_QUEUES, Capture, Job, JobOptions, Rendering, TaskStatus
from crawler.page_formats import PageFormats
from crawler.waits import WaitFinder
from tests.support.patient import ledger, look, of, pages_of, wipe, wrong
from tests.support.tasks import done, new, open_job, page

URLS = [f"http://a.example/{n}" for n in range(5)]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The settings of a program."""
    return Settings(data_dir=tmp_path / "data")


@pytest.fixture
def lpm(settings: Settings) -> Iterator[LocalPersistenceManager]:
    """Its store."""
    with LocalPersistenceManager(settings.data_dir) as lpm:
        yield lpm


def give(
    settings: Settings, urls: list[str] = URLS, session: str = "s", client: str = "", **options: str
) -> Submitted:
    """Submit URLs to be fetched by workers."""
    return submit(
        settings, session, urls, BatchOptions(**options), direct=False, client=client  # type: ignore[arg-type]
    )  # fmt: skip


def collect(lpm: LocalPersistenceManager, count: int = 100) -> list[str]:
    """Complete what is due, in its order; returns the URLs."""
    tasks = lpm.get_next_pending("owner", count)
    lpm.save_result(*(done(task, page=page(task.url, task.url.encode() * 9)) for task in tasks))
    return [task.url for task in tasks]


def reader(lpm: LocalPersistenceManager, batch: Batch) -> BatchReader:
    """Reads the results of a session that asks for records only."""
    return BatchReader(lpm, batch, PageFormats())


def results(lpm: LocalPersistenceManager, given: Submitted) -> list[tuple[str | None, str]]:
    """URL and status of each result of a call."""
    batch = lpm.batches.find("", "s")
    assert batch
    asked = lpm.batches.asked(given.job, given.number)
    return [(each["url"], each["status"]) for each in reader(lpm, batch).results(asked)]


def test_a_call_that_comes_again_changes_nothing(
    settings: Settings, lpm: LocalPersistenceManager
) -> None:
    """The same URLs in the same session are the same call, and further ones are added to it."""
    first = give(settings)
    again = give(settings)
    more = give(settings, [*URLS[3:], "http://a.example/more"])

    assert first == again
    assert (more.job.id, more.number) == (first.job.id, 1)
    assert lpm.counts.progress(first.job).accepted == 6
    assert len(collect(lpm)) == 6
    assert [url for url, _ in results(lpm, more)] == [*URLS[3:], "http://a.example/more"]


def test_a_session_that_had_ended_goes_on_with_new_urls(
    settings: Settings, lpm: LocalPersistenceManager
) -> None:
    """It is open again until they have ended."""
    job = give(settings).job
    collect(lpm)
    lpm.jobs.finalise(lpm.now())
    assert lpm.jobs.get(job.id).status == "done"

    give(settings, ["http://a.example/more"])
    assert lpm.jobs.get(job.id).status == "open"
    assert collect(lpm) == ["http://a.example/more"]
    lpm.jobs.finalise(lpm.now())

    assert lpm.receipt(lpm.jobs.get(job.id)).problems == []


def test_nobody_shares_the_tasks_of_a_session(
    settings: Settings, lpm: LocalPersistenceManager
) -> None:
    """Not another session, another client, an import or a single call, whoever was first."""
    job = open_job(lpm, "file")
    url = URLS[0]
    jobs = [give(settings, [url]).job, give(settings, [url], session="t").job]
    jobs.append(give(settings, [url], client="anna").job)
    lpm.persist_tasks([new(url)], job=job)
    give(settings, [url], session="later")

    assert len({each.id for each in jobs}) == 3
    assert collect(lpm) == [url] * 5
    assert ledger(settings.data_dir, "SELECT count(*) FROM job_links") == [(0,)]
    lpm.persist_tasks([new(url)], job=open_job(lpm, "fresh"), fresh_for_s=3600)
    [(linked,)] = ledger(
        settings.data_dir, "SELECT source FROM tasks JOIN job_links ON task = tasks.id"
    )
    assert linked == "file"


def test_no_session_is_given_a_page_of_another_job(
    settings: Settings, lpm: LocalPersistenceManager
) -> None:
    """It asks without the ETag that others were given, and nobody asks with one of its own: the
    answer 304 would hand over a page that another signed in for."""
    # Given a page with an ETag that a file's job has, and one that a session has
    with_etag = msgspec.structs.replace(page(URLS[0]), headers=(("ETag", '"1"'),))
    lpm.persist_tasks([new(URLS[0])], job=open_job(lpm, "file"))
    [task] = lpm.get_next_pending("owner")
    lpm.save_result(done(task, page=with_etag))
    give(settings, [URLS[0], URLS[1]])
    claimed = {task.url: task for task in lpm.get_next_pending("owner", 9)}
    assert claimed[URLS[0]].known is None
    lpm.save_result(*(done(task, page=with_etag) for task in claimed.values()))

    # When both are wanted again by a file
    lpm.persist_tasks([new(url) for url in URLS[:2]], job=open_job(lpm, "again"))
    known = {task.url: task.known for task in lpm.get_next_pending("owner", 9)}

    # Then only the file's own page is asked for with its ETag
    assert known[URLS[0]]
    assert known[URLS[1]] is None


def test_no_crawl_of_a_client_is_given_a_page_of_another_job(
    settings: Settings, lpm: LocalPersistenceManager
) -> None:
    """Its pages are asked for without the ETags of others, and not skipped by a sitemap's date."""
    with_etag = msgspec.structs.replace(page(URLS[0]), headers=(("ETag", '"1"'),))
    lpm.persist_tasks([new(URLS[0])], job=open_job(lpm, "file"))
    [task] = lpm.get_next_pending("owner")
    lpm.save_result(done(task, page=with_etag))

    scope = {"subdomains": False, "sitemap": "skip"}
    site_crawls.begin(
        settings, "ann", "crawl", URLS[0], JobOptions(), scope,
        delay_s=0, headers={}, notes={}, direct=False,
    )  # fmt: skip
    lpm.store.durable.execute("UPDATE tasks SET modified_at = 1 WHERE status = 'pending'")
    claimed = [task for task in lpm.get_next_pending("owner", 9) if task.url == URLS[0]]

    assert [task.known for task in claimed] == [None]


def test_ends_come_in_the_order_of_commits(
    settings: Settings, lpm: LocalPersistenceManager
) -> None:
    """Each once, whatever the page size; a cursor goes on behind what was read, and other jobs are
    not in it."""
    give(settings, ["http://b.example/x"], session="other")
    job = give(settings).job
    tasks = lpm.get_next_pending("owner", 9)
    random.Random(3).shuffle(tasks)
    for task in tasks:
        lpm.save_result(done(task))

    found, cursor = [], 0
    for _ in range(50):
        ends = lpm.batches.ends(job, cursor, limit=2)
        found += [row.task for _, row in ends.rows]
        cursor = ends.cursor
        if ends.is_last:
            break

    assert found == [task.id for task in tasks if task.job_id == job.id]
    assert not ends.is_complete
    lpm.jobs.finalise(lpm.now())
    assert lpm.batches.ends(job, cursor).is_complete


def test_rows_that_are_no_url_have_a_place_and_a_reason(
    settings: Settings, lpm: LocalPersistenceManager
) -> None:
    """Order and duplicates stay as they were asked for; passwords do not appear in what is
    stored."""
    asked = ["nonsense", URLS[1], "http://u:secret@a.example/0", URLS[1], "ftp://u:hidden@x/"]

    given = give(settings, asked)
    collect(lpm)

    assert results(lpm, given) == [
        ("nonsense", "failed"), (URLS[1], "success"), (URLS[0], "success"), (URLS[1], "success"),
        ("ftp://***@x/", "failed"),
    ]  # fmt: skip
    lpm.close()
    stored = (settings.data_dir / "lpm.db").read_bytes()
    assert b"secret" not in stored
    assert b"hidden" not in stored
    [(job,)] = ledger(settings.data_dir, "SELECT name FROM jobs")
    receipt = lpm.receipt(lpm.jobs.named(str(job)))
    assert (receipt.rows, receipt.known, receipt.rejected, receipt.problems) == (5, 1, 2, [])


def test_a_cancelled_session_takes_no_more_urls(
    settings: Settings, lpm: LocalPersistenceManager
) -> None:
    """The ledger itself says so to a call that comes while another one cancels; to clients of the
    API it is 409, as documented."""
    lpm.jobs.hold(give(settings).job, "cancelled", lpm.now())

    with pytest.raises(SessionCancelled) as caught:
        give(settings, ["http://a.example/more"])

    assert (as_http(caught.value).status_code, as_http(caught.value).code) == (409, "cancelled")


def test_rows_that_are_no_url_keep_their_places(
    settings: Settings, lpm: LocalPersistenceManager
) -> None:
    """As the session grows, and after a repair that loses them; those that an earlier version has
    stored come first."""
    calls = [["old one", URLS[0], "old two"], ["bad", URLS[1]], ["worse", URLS[2], "worst"]]
    job = give(settings, calls[0]).job
    lpm.store.durable.execute("DELETE FROM events WHERE task = ?", (-job.id,))
    early = lpm.batches.unplaced(job, 0)
    give(settings, calls[1])
    placed = lpm.batches.ends(job, 0)
    give(settings, calls[2])
    lpm.store.durable.execute("DELETE FROM rejected_rows WHERE file_number = 2")
    lpm.store.durable.execute("UPDATE imports SET ended_at = NULL WHERE number = 2")
    give(settings, calls[2])

    assert [(n, row.url) for n, row in early] == [(-2, "old one"), (-1, "old two")]
    assert [row.url for _, row in placed.rows] == ["bad"]
    rest = lpm.batches.ends(job, placed.cursor)
    assert [row.url for _, row in rest.rows] == ["worse", "worst"]
    assert lpm.batches.unplaced(job, -2) == early[1:]
    urls = [row.url for row in lpm.batches.rejected(job)]
    assert urls == ["old one", "old two", "bad", "worse", "worst"]


def test_what_is_pruned_leaves_no_places_behind(
    settings: Settings, lpm: LocalPersistenceManager
) -> None:
    """Neither rows that are no URL nor their places stay, and the doctor misses neither."""
    job = give(settings, ["bad", "worse", URLS[0]]).job
    give(settings, ["bad", URLS[0]], session="newest")
    collect(lpm)
    give(settings, ["worst"])
    lpm.jobs.finalise(lpm.now())
    reason = lpm.retention.reason_to_keep(job, True, lambda s: None)
    give(settings, ["worst"], session="newest")
    lpm.jobs.finalise(lpm.now())
    lpm.retention.intend([job])
    assert lpm.retention.begin([job]) == []
    while lpm.retention.remove_rows(job.id):
        pass
    tasks = lpm.retention.next_tasks(job.id, "completed", 1 << 62, 9)
    lpm.retention.remove_tasks(tasks)
    (settings.data_dir / "pending" / f"{tasks[0].task_id}.json").unlink()
    assert lpm.retention.finish(job.id)
    lpm.close()

    assert reason == "it has the newest entry in a timeline"
    places = ledger(settings.data_dir, "SELECT DISTINCT task FROM events WHERE task < 0")
    assert len(places) == 1
    assert wrong(look(settings.data_dir)) == []
    assert [each for each in look(settings.data_dir, repair=True) if each.state != "ok"] == []


def test_a_webhook_is_delivered_by_one_at_a_time(
    settings: Settings, lpm: LocalPersistenceManager
) -> None:
    """Each delivery begins the lease anew: however long all of them take, nobody else begins."""

    def keep(lpm: LocalPersistenceManager, job: Job) -> None:
        webhooks.keep(lpm, job, "http://a.example/", "", webhooks.EVENTS)

    job, _ = submit(settings, "told", URLS, BatchOptions(), direct=True, finish=keep)
    [claimed] = lpm.webhooks.claim(100.0, 60.0, 8, 4, {})
    lpm.webhooks.delivered(job.id, 10, 150.0 + 60.0)

    assert (claimed.job_id, claimed.cursor) == (job.id, 0)
    assert lpm.webhooks.claim(170.0, 60.0, 8, 4, {}) == []
    [again] = lpm.webhooks.claim(211.0, 60.0, 8, 4, {})
    assert again.cursor == 10


def test_no_client_takes_all_deliveries(settings: Settings, lpm: LocalPersistenceManager) -> None:
    """Each gets its share, less what is delivered to it already, and the others go on."""

    def keep(lpm: LocalPersistenceManager, job: Job) -> None:
        webhooks.keep(lpm, job, "http://a.example/", "", webhooks.EVENTS)

    for client, session in [*(("ann", f"s{n}") for n in range(9)), ("bob", "s"), ("", "s")]:
        submit(
            settings, session, URLS, BatchOptions(), direct=True, client=client, finish=keep
        )  # fmt: skip
    first = lpm.webhooks.claim(100.0, 60.0, 8, 4, {"ann": 1, "eve": 4})
    second = lpm.webhooks.claim(100.0, 60.0, 2, 4, {"ann": 4, "bob": 1, "": 1})
    third = lpm.webhooks.claim(100.0, 60.0, 2, 4, {})

    assert sorted(each.client for each in first) == ["", "ann", "ann", "ann", "bob"]
    assert second == []
    assert [each.client for each in third] == ["ann", "ann"]


def test_a_webhook_shares_its_file_with_no_session(
    settings: Settings, lpm: LocalPersistenceManager
) -> None:
    """Whatever the session of a program is called."""

    def keep(lpm: LocalPersistenceManager, job: Job) -> None:
        webhooks.keep(lpm, job, "http://a.example/", "secret", webhooks.EVENTS)

    submit(settings, "foo", URLS, BatchOptions(), direct=True, finish=keep)
    headers = BatchOptions(headers={"X-Key": "key"})
    job = submit(settings, "webhook foo", URLS, headers, direct=True).job

    folder = settings.data_dir / "sessions"
    assert sorted("http://a.example/" in path.read_text() for path in folder.iterdir()) == [
        False,
        True,
    ]
    stored = sessions.load(folder, job.name)
    assert stored
    assert stored.headers == (("X-Key", "key"),)


@pytest.mark.parametrize("client", ["", "a", "a:b", "12:", "ünder"])
@pytest.mark.parametrize("session", ["s", "b:c", ":", "1:x", "köln"])
def test_a_key_names_one_session(client: str, session: str) -> None:
    """No two clients and sessions have the same key, and the key gives them back."""
    assert session_of(key_of(client, session)) == (client, session)
    assert session_of(f"name:{session}") is None
    assert session_of("batch:x") is None


def test_different_passwords_for_a_server_are_refused_and_store_nothing(
    settings: Settings, lpm: LocalPersistenceManager
) -> None:
    """The message names the server and no password."""
    with pytest.raises(UsageError, match=r"http://a\.example") as caught:
        give(settings, ["http://u:first@a.example/1", "http://u:second@a.example/2"])

    assert "first" not in str(caught.value)
    assert lpm.jobs.all() == []


# Queues of processes of their own


def direct(settings: Settings, urls: list[str] = URLS) -> Submitted:
    """Submit URLs for a process of their own."""
    return submit(settings, "s", urls, BatchOptions(), direct=True)


def test_only_its_own_process_takes_what_is_direct(
    settings: Settings, lpm: LocalPersistenceManager
) -> None:
    """No worker gets it while the program lives; when it is gone, `bury` gives it to workers, if
    there are some."""
    job = direct(settings).job
    lpm.run.mkdir(exist_ok=True)

    assert lpm.get_next_pending("owner", 9) == []
    assert len(lpm.get_next_pending("owner", 1, (f"direct:{job.id}",))) == 1
    lpm.bury()
    assert lpm.jobs.get(job.id).queue == f"direct:{job.id}"
    with contextlib.closing(Owner(lpm.owners, "worker", 1)):
        lpm.bury()

    assert len(lpm.get_next_pending("other", 9)) >= 4
    assert lpm.jobs.get(job.id).queue == "default"


def test_the_last_call_decides_who_fetches(
    settings: Settings, lpm: LocalPersistenceManager
) -> None:
    """What waits for a process of its own goes to workers with a call for these, and back."""
    direct(settings)
    give(settings)
    assert len(lpm.get_next_pending("owner", 2)) == 2

    job = direct(settings).job
    assert lpm.get_next_pending("owner", 9) == []
    assert len(lpm.get_next_pending("owner", 9, (f"direct:{job.id}",))) == 3


def test_a_program_that_is_gone_is_told_as_a_standstill(
    settings: Settings, lpm: LocalPersistenceManager
) -> None:
    """`status` says that nothing works on the tasks, and names the command that goes on."""
    job = direct(settings).job

    [wait] = WaitFinder(settings, lpm).find(job, lpm.counts.progress(job))

    assert "nothing works on 5 open tasks" in wait.what
    assert wait.command.endswith("resume")


# Repairs


def asked_again(settings: Settings, lpm: LocalPersistenceManager) -> None:
    """The calls come again: each URL has a result or an open task, and is there once."""
    for urls in (URLS, [URLS[4], "http://a.example/more", "nonsense"]):
        given = give(settings, urls)
        found = results(lpm, given)
        assert [url for url, _ in found] == urls
    collect(lpm)
    for urls in (URLS, [URLS[4], "http://a.example/more", "nonsense"]):
        states = [status for _, status in results(lpm, give(settings, urls))]
        assert states == ["failed" if url == "nonsense" else "success" for url in urls]


@pytest.fixture
def collected(settings: Settings, lpm: LocalPersistenceManager) -> Path:
    """A store with two calls of a session, half collected, and a file with the same URLs."""
    lpm.persist_tasks(
        [new(url, line=n) for n, url in enumerate(URLS)], job=(job := open_job(lpm, "file"))
    )
    lpm.imports.close(job, lpm.now())
    give(settings)
    give(settings, [URLS[4], "http://a.example/more", "nonsense"])
    collect(lpm, 6)
    lpm.close()
    return settings.data_dir


def test_the_doctor_finds_nothing_wrong_with_sessions(
    settings: Settings, lpm: LocalPersistenceManager
) -> None:
    """Neither with one that workers fetch, nor with the queue of a process of its own."""
    give(settings)
    submit(settings, "d", URLS, BatchOptions(), direct=True)
    lpm.close()

    assert wrong(look(settings.data_dir)) == []
    assert [each for each in look(settings.data_dir, repair=True) if each.state != "ok"] == []


@pytest.mark.parametrize("table", ["tasks", "jobs", "batches", "imports", "job_links", "events",
                                   "rejected_rows", "results"])  # fmt: skip
def test_a_call_brings_back_what_a_repair_has_lost(
    settings: Settings, lpm: LocalPersistenceManager, collected: Path, table: str
) -> None:
    """Whichever table is damaged: the same calls find their session, and give a result for each
    URL."""
    wipe(collected / "lpm.db", pages_of(collected / "lpm.db", table, "leaf")[0])

    mended = look(collected, repair=True)
    asked_again(settings, lpm)

    assert "was damaged" in of(mended, "ledger", "mended")[0]
    assert len(lpm.batches.of_client("")) == 1
    lpm.close()
    assert [each for each in wrong(look(collected)) if each.check == "ledger"] == []


@pytest.mark.parametrize("seed", range(6))
def test_any_damage_leaves_a_session_that_goes_on(
    settings: Settings, lpm: LocalPersistenceManager, collected: Path, seed: int
) -> None:
    """Some pages of the ledger overwritten: the repair ends, and the calls give what they are
    to."""
    chance = random.Random(seed)
    path = collected / "lpm.db"
    tables = ("tasks", "jobs", "imports", "tasks_by_url", "batches", "events", "job_links")
    for table in chance.sample(tables, 3):
        leaves = pages_of(path, table, "leaf")
        wipe(path, chance.choice(leaves))

    look(collected, repair=True)

    asked_again(settings, lpm)


def test_the_loss_of_a_session_says_what_brings_it_back(
    settings: Settings, lpm: LocalPersistenceManager, collected: Path
) -> None:
    """`job verify` names the call, not a file to import, and is content afterwards."""
    wipe(collected / "lpm.db", pages_of(collected / "lpm.db", "rejected_rows", "leaf")[0])
    look(collected, repair=True)
    job = lpm.jobs.named("s")

    [problem] = [text for text in lpm.receipt(job).problems if "accept" in text]
    assert "make the calls of its session again, each with the same URLs" in problem
    assert "import" not in problem
    asked_again(settings, lpm)

    assert lpm.receipt(lpm.jobs.named("s")).problems == []


def test_a_result_of_a_removed_job_says_so(
    settings: Settings, lpm: LocalPersistenceManager
) -> None:
    """A program that reads results while `prune` removes their job gets a reason, no error."""
    give(settings, URLS[:1])
    batch = lpm.batches.find("", "s")
    assert batch

    [result] = reader(lpm, batch).of_tasks([999])

    assert (result["status"], result["reason"]) == ("failed", "removed")


def test_a_store_that_is_copied_knows_its_sessions(
    settings: Settings, lpm: LocalPersistenceManager, collected: Path, tmp_path: Path
) -> None:
    """The session goes on in the copy, as everything else does."""
    copy = msgspec.structs.replace(settings, data_dir=tmp_path / "copy")
    shutil.copytree(collected, copy.data_dir)

    with LocalPersistenceManager(copy.data_dir) as there:
        asked_again(copy, there)
        assert {row[0] for row in ledger(copy.data_dir, "SELECT status FROM tasks")} == {
            str(TaskStatus.COMPLETED)
        }


def test_an_answer_holds_screenshots_up_to_a_size(
    settings: Settings, lpm: LocalPersistenceManager
) -> None:
    """The others are asked for one by one: a thousand would take gigabytes of a server's memory."""
    size = 3_900_000
    fitting = batches.MAX_PICTURES_BYTES // size
    urls = [f"http://a.example/{n}" for n in range(fitting + 2)]
    given = submit(
        settings, "s", urls, BatchOptions(formats=("record", "screenshot")), direct=False, client=""
    )
    picture = Capture(name="screenshot", type="image/png", body=random.randbytes(size))
    for task in lpm.get_next_pending("owner", 100, MESSAGE_QUEUES):
        made = Rendering(response=page(task.url, b"a"), requests=1, received=1, captures=(picture,))
        lpm.save_result(done(task, page=page(task.url, b"a"), rendering=made))

    batch = lpm.batches.find("", "s")
    assert batch
    found = reader(lpm, batch).results(lpm.batches.asked(given.job, given.number))

    assert sum(each["screenshot"] is not None for each in found) == fitting
    problems = [each["format_errors"]["screenshot"] for each in found if "format_errors" in each]
    assert len(problems) == 2
    assert "too many for one answer; it is at /api/results/" in problems[0]
