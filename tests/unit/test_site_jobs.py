"""Site jobs in the ledger and in Redis: calls that come again, progress in chunks, time limits."""

import re
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler import crawls, sites
from crawler.config import Settings
from crawler.crawls import add_chunk, call_site, site_call
from crawler.errors import ServiceError, UsageError
from crawler.fetch import session as sessions
from crawler.lpm import LocalPersistenceManager
from crawler.maintainer import LeaseLimit, Maintainer
from crawler.models import Job, JobStatus, TaskCounts
from crawler.redis_client import connect
from crawler.scraping.jobs import ProgressMirror, chord_id, progress_of
from crawler.scraping.redis_keys import PROGRESS, checkpoint_key, progress_key
from crawler.site_scraping import SiteScraping
from tests.support.broker import MemoryBroker
from tests.support.clock import Clock
from tests.support.sites import plain_site
from tests.support.tasks import new

BASE = "http://shop.example"
DAY = 1_800_000_000.0  # 2027-01-15


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A store, and a site with two starts."""
    plain_site(tmp_path / "config", "shop", f"{BASE}/a", f"{BASE}/b")
    return Settings(data_dir=tmp_path / "data", config_dir=tmp_path / "config")


def urls_of(settings: Settings) -> list[tuple[str, str]]:
    """Role and URL of all tasks."""
    with LocalPersistenceManager(settings.data_dir) as lpm:
        return lpm.store.db.all("SELECT role, url FROM tasks ORDER BY id")


def job_of(status: JobStatus = JobStatus.OPEN, **values: Any) -> Job:
    """A job."""
    return Job(
        id=1, name="j", status=status, queue="default", source_file=None, created_at=DAY,
        **{"completed_at": None, **values},
    )  # fmt: skip


def counts_of(**states: int) -> TaskCounts:
    """The counts of a job with tasks in these states."""
    return msgspec.structs.replace(TaskCounts(), accepted=sum(states.values()), **states)


# Calls


def test_a_call_begins_a_job_once(settings: Settings) -> None:
    """The same call again finds the job, open or ended; another call continues it while it is
    open, and begins anew afterwards."""
    first, again, other = (
        call_site(settings, site_call(id_, "Shop")) for id_ in ("one", "one", "two")
    )
    with LocalPersistenceManager(settings.data_dir) as lpm:
        lpm.store.durable.execute("UPDATE tasks SET status = 'skipped', completed_at = 1")
        lpm.jobs.finalise(lpm.now())
    late = call_site(settings, site_call("one", "shop"))
    anew = call_site(settings, site_call("three", "shop"))

    assert first["total_urls"] == 2
    assert first == again == other == late
    assert anew["job_id"] != first["job_id"]
    assert anew["chord_id"] != first["chord_id"]
    with LocalPersistenceManager(settings.data_dir) as lpm:
        assert [job.name for job in lpm.jobs.all()] == [first["job_id"], anew["job_id"]]


def test_starts_of_a_program_are_pages_of_the_site(settings: Settings) -> None:
    """A program may name other starts of the site, and no page of another one; the site's own are
    the same crawl as none."""
    own = call_site(settings, site_call("one", "shop"), [f"{BASE}/b", f"{BASE}/a"])
    none = call_site(settings, site_call("two", "shop"))
    other = call_site(settings, site_call("three", "shop"), [f"{BASE}/c"])
    with pytest.raises(UsageError, match=r"http://else.example/ is no page of the site shop"):
        call_site(settings, site_call("four", "shop"), ["http://else.example/"])

    assert own["job_id"] == none["job_id"] != other["job_id"]
    assert urls_of(settings) == [
        ("start", f"{BASE}/a"), ("start", f"{BASE}/b"), ("start", f"{BASE}/c"),
    ]  # fmt: skip


def test_starts_count_against_the_limit_of_a_site(settings: Settings) -> None:
    """`limit: 7` means seven pages, the starts among them."""
    plain_site(settings.config_dir, "shop", f"{BASE}/a", f"{BASE}/b", limit="7")

    call_site(settings, site_call("one", "shop"))

    with LocalPersistenceManager(settings.data_dir) as lpm:
        counted = lpm.store.db.all("SELECT kind, name, count FROM crawl_counts")
    assert counted == [("site", "shop", 2)]


def test_only_the_sites_own_origins_may_be_on_this_machine(settings: Settings) -> None:
    """A message that names loopback gets there only where the operator's files lead anyway."""
    plain_site(settings.config_dir, "local", "http://127.0.0.1:8000/", hosts="[127.0.0.1]")
    known = sites.load(settings.config_dir)

    plan = crawls.plan_site(known, "local", ["http://127.0.0.1:8000/x", "http://127.0.0.1:9000/"])

    assert [start.link.loopback for start in plan.starts] == [True, False]


def test_a_chunk_adds_its_pages_once_and_opens_an_ended_job_again(settings: Settings) -> None:
    """The same chunk twice changes nothing; a new page makes an ended job go on."""
    urls = [f"{BASE}/1", f"{BASE}/2", "no url"]
    first = add_chunk(settings, urls, "by-hand", "shop")
    with LocalPersistenceManager(settings.data_dir) as lpm:
        lpm.store.durable.execute("UPDATE tasks SET status = 'skipped', completed_at = 1")
        [ended] = lpm.jobs.finalise(lpm.now())
    again = add_chunk(settings, urls, "by-hand", "shop")
    with LocalPersistenceManager(settings.data_dir) as lpm:
        assert lpm.jobs.get(ended.id) == ended
    more = add_chunk(settings, [f"{BASE}/3"], "by-hand", "shop")

    assert first == again
    assert [set(each) for each in first] == [{"url", "task_id"}] * 2 + [{"url", "error"}]
    assert len({each.get("task_id") for each in first + more}) == 4
    assert {role for role, _ in urls_of(settings)} == {"listing"}
    with LocalPersistenceManager(settings.data_dir) as lpm:
        assert lpm.jobs.get(ended.id).status is JobStatus.OPEN
        assert not lpm.receipt(lpm.jobs.get(ended.id)).problems


def test_a_login_takes_its_secrets_from_a_file(settings: Settings) -> None:
    """A site that signs in is crawled by name alone; no secret is in its file or in the ledger."""
    login = f"{{url: {BASE}/in, form: {{values: {{pass: $password}}}}, secrets: shop.txt}}"
    plain_site(settings.config_dir, "shop", f"{BASE}/a", login=login)
    (settings.config_dir / "shop.txt").write_text("password=hunter22\n")

    begun = call_site(settings, site_call("one", "shop"))

    kept = sessions.load(settings.data_dir / "sessions", begun["job_id"])
    assert kept is not None
    assert kept.secrets == {"password": "hunter22"}
    assert b"hunter22" not in (settings.data_dir / "lpm.db").read_bytes()
    plain_site(settings.config_dir, "shop", f"{BASE}/a", login=login.replace("shop.txt", "../x"))
    with pytest.raises(UsageError, match="is not a file in the config folder"):
        sites.load(settings.config_dir)


def test_a_call_leaves_the_session_of_an_open_crawl_alone(settings: Settings) -> None:
    """Headers, agent and secrets that a command gave to its crawl stay when a task joins it."""
    login = f"{{url: {BASE}/in, form: {{values: {{pass: $password}}}}, secrets: shop.txt}}"
    plain_site(settings.config_dir, "shop", f"{BASE}/a", login=login)
    (settings.config_dir / "shop.txt").write_text("password=from-the-file\n")
    plan = crawls.plan_site(sites.load(settings.config_dir), "shop")
    given = sessions.Session(
        headers=(("X-Key", "k"),), user_agent="Operator", secrets={"password": "typed"}
    )
    job = crawls.begin(settings, plan, session=given).job
    before = sessions.load(settings.data_dir / "sessions", job.name)

    joined = call_site(settings, site_call("one", "shop"))

    assert joined["job_id"] == job.name
    assert sessions.load(settings.data_dir / "sessions", job.name) == before


def test_one_crawl_of_a_site_is_open_whatever_the_queue_and_the_spelling(
    settings: Settings,
) -> None:
    """An urgent call makes the open crawl urgent; the same page written in other ways is the same
    start."""
    spellings = [f"{BASE}/c", f"{BASE}/c#top", f"{BASE}/c?utm_source=1", "HTTP://shop.example:80/c"]
    found = [call_site(settings, site_call(text, "shop"), [text]) for text in spellings]
    found.append(call_site(settings, site_call("urgent", "shop"), spellings, queue="urgent"))

    assert len({each["job_id"] for each in found}) == 1
    with LocalPersistenceManager(settings.data_dir) as lpm:
        [job] = lpm.jobs.all()
        assert job.queue == "urgent"
        assert lpm.counts.pending_by_queue() == {"urgent": 1}


def test_a_crawl_whose_command_was_killed_when_it_began_goes_on(settings: Settings) -> None:
    """After the commit of its starts, a maintainer opens it; before that, the next call does. Rows
    of a file that were not read stay missing."""
    plan = crawls.plan_site(sites.load(settings.config_dir), "shop")
    with LocalPersistenceManager(settings.data_dir) as lpm:
        killed = [
            lpm.imports.open_job(
                key=key, name="shop", queue="default", source="crawl", source_file=file,
                batch_size=50, now=lpm.now(), options=plan.options, checksum=checksum,
            )
            for key, file, checksum in (
                (plan.key(), None, ""), ("other", None, ""), ("rows", "rows.csv", "c"),
            )
        ]  # fmt: skip
        for job in killed[1:]:
            lpm.crawls.add_starts(job, plan.starts, lpm.now())
        Maintainer(lpm, MemoryBroker(), settings).tick()
        states = [lpm.jobs.get(job.id).status for job in killed]
        call_site(settings, site_call("one", "shop"))
        add_chunk(settings, [f"{BASE}/1"], killed[2].name, "shop")

        assert states == [JobStatus.IMPORTING, JobStatus.OPEN, JobStatus.IMPORTING]
        assert lpm.jobs.get(killed[0].id).status is JobStatus.OPEN
        assert lpm.jobs.get(killed[2].id).status is JobStatus.IMPORTING
        [missing] = lpm.unaccounted([killed[2]])
    assert "its import was broken off" in missing[0]


def test_a_job_takes_pages_of_its_own_site_only(settings: Settings) -> None:
    """A chunk for the job of another site is refused."""
    plain_site(settings.config_dir, "other", "http://other.example/")
    begun = call_site(settings, site_call("one", "shop"))

    with pytest.raises(UsageError, match="is no crawl of the site other"):
        add_chunk(settings, ["http://other.example/1"], begun["job_id"], "other")


# Progress


@given(
    pending=st.integers(0, 500),
    processing=st.integers(0, 20),
    completed=st.integers(0, 500),
    failed=st.integers(0, 20),
    size=st.integers(1, 100),
)
def test_progress_is_never_above_all_and_all_only_at_the_end(
    pending: int, processing: int, completed: int, failed: int, size: int
) -> None:
    """Chunks add up, however many pages there are."""
    counts = counts_of(pending=pending, processing=processing, completed=completed, failed=failed)
    found = progress_of(job_of(), counts, size)

    assert 0 <= found.completed <= found.total_chunks
    assert found.total_chunks * size >= counts.accepted
    if counts.open:
        assert found.completed * size <= counts.accepted - counts.open
    else:
        assert found.completed == found.total_chunks


@pytest.mark.parametrize(
    ("job", "counts", "status"),
    [
        (job_of(), counts_of(pending=3), "DISPATCHED"),
        (job_of(), counts_of(pending=3, processing=1), "PROCESSING"),
        (job_of(), counts_of(pending=3, failed=1), "PROCESSING"),
        (job_of(JobStatus.DONE), counts_of(completed=1, failed=9), "COMPLETE"),
        (job_of(JobStatus.DONE), counts_of(failed=9, skipped=1), "FAILED"),
        (job_of(JobStatus.DONE), counts_of(), "COMPLETE"),
        (job_of(JobStatus.DONE, hold="cancelled"), counts_of(completed=1, skipped=9), "FAILED"),
    ],
)
def test_each_status_has_one_meaning(job: Job, counts: TaskCounts, status: str) -> None:
    """As `Progress` and docs/SITE_JOBS.md say."""
    assert progress_of(job, counts, 50).status == status


def mirror_to(url: str, ends: list[str], clock: Clock) -> ProgressMirror:
    """A mirror that notes the announced ends."""
    return ProgressMirror(url, "ledger", 50, None, lambda id_, _: ends.append(id_), clock)


def test_redis_shows_what_the_ledger_says(settings: Settings, redis_url: str) -> None:
    """Progress and checkpoint follow the job, come back after Redis was emptied, and the
    checkpoint goes with the end of the site."""
    begun = call_site(settings, site_call("one", "shop"))
    ends: list[str] = []
    clock = Clock(1000.0)
    mirror = mirror_to(redis_url, ends, clock)
    client: Any = connect(redis_url)
    with LocalPersistenceManager(settings.data_dir) as lpm:
        maintainer = Maintainer(lpm, MemoryBroker(), settings, uptime=clock, mirror=mirror)
        [job] = lpm.jobs.all()
        day = time.strftime("%Y-%m-%d", time.localtime(job.created_at))
        keys = [progress_key(job.name, name) for name in PROGRESS]

        maintainer.tick()
        shown = client.mget(keys)
        client.flushall()
        clock.now += 100
        maintainer.tick()

        assert shown == client.mget(keys)
        assert [value.decode() for value in shown[:3]] == ["1", "0", "DISPATCHED"]
        assert client.hgetall(checkpoint_key("shop", day)) == {job.name.encode(): b"0/2"}

        lpm.store.durable.execute("UPDATE tasks SET status = 'failed', completed_at = 1")
        maintainer.tick()
        maintainer.tick()

    assert client.get(progress_key(job.name, "status")) == b"FAILED"
    assert not client.exists(checkpoint_key("shop", day))
    assert ends == [chord_id("ledger", begun["job_id"])]
    with pytest.raises(ServiceError, match="does not answer"):
        mirror_to("redis://127.0.0.1:9/0", ends, clock)([(job, counts_of(pending=1))])


def test_ten_thousand_jobs_take_little_of_redis(settings: Settings, redis_url: str) -> None:
    """Each job takes less than two kilobytes, and all of it has an end."""
    with LocalPersistenceManager(settings.data_dir) as lpm:
        lpm.open()
        db = lpm.store.durable
        db.execute("BEGIN")
        for number in range(10_000):
            db.execute(
                """INSERT INTO jobs (name, key, status, queue, source, batch_size, created_at, size)
                   VALUES (?1, ?1, 'open', 'default', 'crawl', 50, 1, 1)""",
                (f"scrape_shop_{number:08x}",),
            )
        db.execute("COMMIT")
        lpm.persist_tasks([new(f"{BASE}/page")], job=lpm.jobs.get(1))
        client: Any = connect(redis_url)
        before = client.info("memory")["used_memory"]
        clock = Clock(1000.0)
        mirror = mirror_to(redis_url, [], clock)
        mirror([(job, counts_of(pending=1)) for job in lpm.jobs.current(0)])
        used = client.info("memory")["used_memory"] - before

        keys = list(client.scan_iter("scrape:*", count=10_000))
        assert len(keys) == 6 * 10_000
        assert used < 2_000 * 10_000
        pipe = client.pipeline(transaction=False)
        for key in keys:
            pipe.ttl(key)
        assert min(pipe.execute()) > 0

        # What stays the same is not written again
        writes = client.info("commandstats")["cmdstat_set"]["calls"]
        mirror([(job, counts_of(pending=1)) for job in lpm.jobs.current(0)])
        assert client.info("commandstats")["cmdstat_set"]["calls"] == writes


def test_a_job_ends_once_with_ten_maintainers(settings: Settings) -> None:
    """Whoever sees the last page first ends the job; nobody does it again."""
    call_site(settings, site_call("one", "shop"))
    stores = [LocalPersistenceManager(settings.data_dir) for _ in range(10)]
    stores[0].store.durable.execute("UPDATE tasks SET status = 'skipped', completed_at = 1")

    ended = [lpm.jobs.finalise(float(number)) for number, lpm in enumerate(stores)]

    for lpm in stores:
        lpm.close()
    assert [len(jobs) for jobs in ended] == [1] + [0] * 9


# Time limits


def test_a_lease_that_is_held_too_long_is_taken_back(tmp_path: Path) -> None:
    """By the time that passed since the lease was first seen; a second time it is poison."""
    lpm = LocalPersistenceManager(tmp_path)
    lpm.persist_tasks([new(f"{BASE}/1"), new(f"{BASE}/2")])
    clock = Clock(5_000.0)
    limit = LeaseLimit(720, clock)
    told = []
    for _ in range(2):
        [held] = lpm.get_next_pending("owner")
        taken = []
        for _ in range(25):
            clock.now += 40
            for lease in limit.overdue(lpm.dispatch.leases):
                taken.append((lease, clock.now))
                assert lpm.dispatch.take_back_page(*lease, lpm.now())
                assert not lpm.dispatch.take_back_page(*lease, lpm.now())
        assert [lease for lease, _ in taken] == [(held.id, held.fence)]
        told.append(lpm.store.db.all("SELECT status, strikes FROM tasks WHERE id = ?", (held.id,)))

    assert told == [[("pending", 1)], [("failed", 2)]]
    assert lpm.counts.totals().pending == 1
    lpm.close()


def test_leases_are_looked_at_only_now_and_then() -> None:
    """A twentieth of the limit lies between two looks: they cost a read of all leases."""
    clock, looks = Clock(0.0), list[float]()
    limit = LeaseLimit(720, clock)

    def leases() -> set[tuple[int, int]]:
        looks.append(clock.now)
        return set()

    for _ in range(1000):
        clock.now += 1
        limit.overdue(leases)

    assert len(looks) > 20
    assert all(later - earlier >= 36 for earlier, later in pairwise(looks))


def test_arguments_of_the_wrong_type_are_named(settings: Settings) -> None:
    """A program gets the package's error, before anything begins."""
    scraping = SiteScraping(settings)
    calls: list[tuple[Callable[[Any], object], object, str]] = [
        (scraping.progress, None, "get_site_progress: job_id: Expected `str`, got `null`"),
        (scraping.progress, 5, "get_site_progress: job_id: Expected `str`, got `int`"),
        (scraping.wait, None, "wait_for_all_sites_completion: group_id: Expected `str`"),
        (
            scraping.start_all,
            {"shop": None},
            "start URLs of each site: Expected `array`, got `null",
        ),
        (scraping.start_all, {"shop": BASE}, "start URLs of each site: Expected `array`, got `str"),
        (scraping.start_all, None, "start URLs of each site: Expected `object`, got `null`"),
        (scraping.start, None, "start_site_scraping: the site: Expected `str`, got `null`"),
    ]
    for call, wrong, reason in calls:
        with pytest.raises(UsageError, match=re.escape(reason)):
            call(wrong)
    with pytest.raises(UsageError, match="start_site_scraping: the start URLs: Expected `array`"):
        scraping.start("shop", BASE)
    with LocalPersistenceManager(settings.data_dir) as lpm:
        assert lpm.jobs.all() == []
