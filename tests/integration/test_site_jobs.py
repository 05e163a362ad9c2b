"""Site jobs as the requirements type them: tasks and keys by name, and the orchestrator's methods.

Programs are typed as they stand there; only their imports name this package."""

import json
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crawler import sites
from crawler.errors import UsageError
from crawler.examples.imoti import Imoti
from crawler.examples.server import Running
from crawler.site_scraping import SiteScraping
from tests.support.pages import Pages
from tests.support.sites import configure, plain_site
from tests.support.stack import Folder, wait_for

SIZE = 60


@pytest.fixture(scope="module")
def examples() -> Iterator[Running]:
    """The example sites."""
    with Running("crawler.examples", "--port", 0, "--size", SIZE) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path, redis_url: str, examples: Running) -> Iterator[Folder]:
    """A folder with the files of example sites, and a Redis; workers are started by tests."""
    config = configure(tmp_path / "config", examples.port, "imoti", "county")
    folder = Folder(
        tmp_path, REDIS_URL=redis_url, CRAWLER_PAGES="16", CRAWLER_CONFIG_DIR=str(config)
    )
    yield folder
    folder.stop()


def typed(folder: Folder, program: str) -> list[Any]:
    """Run a program; what it prints as lines of JSON."""
    done = subprocess.run(
        [sys.executable, "-c", "import json\n" + textwrap.dedent(program)],
        cwd=folder.path,
        env=folder.env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def scraping(folder: Folder) -> SiteScraping:
    """The methods of an orchestrator, in this process."""
    return SiteScraping(folder.settings)


def load_start_urls_of(folder: Folder, site: str) -> tuple[str, ...]:
    """The starts of a site."""
    return sites.load(folder.path / "config").find(site).start_urls


def jobs(folder: Folder) -> list[dict[str, Any]]:
    """All jobs."""
    found: list[dict[str, Any]] = json.loads(folder.crawler("job", "list", "--json").stdout)
    return found


def test_a_site_task_returns_its_job_and_the_job_tells_its_progress(
    folder: Folder, examples: Running
) -> None:
    """Arguments and keys are those of the requirements, and each listing is collected once."""
    folder.worker(concurrency=2)

    began, metadata, first, last, keys = typed(
        folder,
        """
        import redis as redis_module
        from celery.result import AsyncResult
        from crawler.config import load
        from crawler.orchestrator import Orchestrator
        from crawler.sites import get_scraper, load_start_urls
        from crawler.stack import redis_address
        from crawler.scraping.tasks import scrape_site_task

        def start_site_scraping(site_name, start_urls):
            result = scrape_site_task.delay(site_name, start_urls)
            return {"task_id": result.id, "site": site_name}

        redis = redis_module.Redis.from_url(redis_address(load()), decode_responses=True)

        def get_site_progress(job_id):
            return {
                "total": int(redis.get(f"scrape:{job_id}:total_chunks") or 0),
                "completed": int(redis.get(f"scrape:{job_id}:completed") or 0),
                "status": redis.get(f"scrape:{job_id}:status") or "UNKNOWN",
            }

        urls = load_start_urls()["imoti"]
        began = start_site_scraping("imoti", urls)
        print(json.dumps(began))
        metadata = AsyncResult(began["task_id"]).get(timeout=120)
        print(json.dumps(metadata))
        print(json.dumps(get_site_progress("no such job")))
        saved = AsyncResult(metadata["chord_id"]).get(timeout=240)
        print(json.dumps([saved, get_site_progress(metadata["job_id"])]))
        names = [key.rpartition(":")[2] for key in redis.keys(f"scrape:{metadata['job_id']}:*")]
        print(json.dumps(sorted(names)))
        """,
    )

    assert set(began) == {"task_id", "site"}
    assert set(metadata) == {"job_id", "chord_id", "total_urls"}
    assert metadata["job_id"].startswith("scrape_imoti_")
    assert first == {"total": 0, "completed": 0, "status": "UNKNOWN"}
    saved, progress = last
    assert saved["job_id"] == metadata["job_id"]
    assert progress == {"total": 2, "completed": 2, "status": "COMPLETE"}
    assert keys == [
        "completed", "completed_at", "result_count", "started_at", "status", "total_chunks",
    ]  # fmt: skip
    found = Counter(each["data"]["id"] for each in folder.results() if each["role"] == "listing")
    base = examples.url(Imoti(SIZE).host)
    assert found == Counter(listing.record["id"] for listing in Imoti(SIZE).listings(base))


def test_a_chord_of_the_requirements_runs_but_nothing_waits_in_it(
    folder: Folder, examples: Running
) -> None:
    """`chord(group(scrape_chunk_task…), aggregate_results_task)` puts the listings into one job,
    which ends by the ledger."""
    folder.worker(concurrency=2)
    site = Imoti(SIZE)
    base = examples.url(site.host)
    folder.env["LISTINGS"] = json.dumps([listing.url for listing in site.listings(base)])

    chunks, called = typed(
        folder,
        """
        import os
        from celery import chain, chord, group
        from crawler.scraping.tasks import scrape_chunk_task, aggregate_results_task

        urls = json.loads(os.environ["LISTINGS"])
        chunks = [urls[n : n + 25] for n in range(0, len(urls), 25)]
        job_id, site_name = "scrape_imoti_by_hand", "imoti"
        workers = group([scrape_chunk_task.s(chunk, job_id, site_name) for chunk in chunks])
        workflow = chord(workers, aggregate_results_task.s(job_id, site_name))
        result = workflow.apply_async()
        print(json.dumps(result.parent.get(timeout=120)))
        print(json.dumps(result.get(timeout=120)))
        """,
    )

    assert [len(chunk) for chunk in chunks] == [25, 25, 10]
    assert all(set(each) == {"url", "task_id"} for chunk in chunks for each in chunk)
    assert set(called) == {"job_id", "saved"}
    done = scraping(folder).wait("scrape_imoti_by_hand")
    assert done["complete"]
    assert done["sites"]["imoti"]["result_count"] == SIZE
    assert all(each["data"]["id"] for each in folder.results())
    ended = typed(
        folder,
        """
        from celery import chain
        from crawler.scraping.tasks import scrape_chunk_task, aggregate_results_task

        nothing = scrape_chunk_task.s([], "scrape_imoti_by_hand", "imoti")
        end = aggregate_results_task.s("scrape_imoti_by_hand", "imoti")
        print(json.dumps(chain(nothing, end).apply_async().get(timeout=120)))
        """,
    )
    assert ended == [{"job_id": "scrape_imoti_by_hand", "saved": SIZE}]


def test_the_flow_of_the_requirements_main_program(folder: Folder) -> None:
    """The orchestrator starts what is needed, crawls all sites at once, and waits for their end."""
    plain_site(folder.path / "config", "broken", "http://127.0.0.1:9/")
    (folder.path / "config" / "sites" / "county.yaml").unlink()
    del folder.env["REDIS_URL"]
    folder.env["PARALLEL_SCRAPING"] = "true"

    group, done, again, status = typed(
        folder,
        """
        import os
        from crawler.orchestrator import Orchestrator
        from crawler.sites import load_start_urls

        with Orchestrator() as orch:
            orch.start_redis()
            orch.start_celery()

            # Load sites config
            sites = load_start_urls()

            # Option B: Parallel via Celery (Phase 4.3)
            assert os.getenv("PARALLEL_SCRAPING") == "true"
            result = orch.scrape_all_sites_parallel(sites)
            done = orch.wait_for_all_sites_completion(result["group_id"])
            print(json.dumps(result))
            print(json.dumps(done))
            print(json.dumps(orch.wait_for_all_sites_completion(result["group_id"])))
            job_id = done["sites"]["imoti"]["job_id"]
            print(json.dumps(orch.get_site_progress(job_id)))
        """,
    )

    assert set(group) == {"group_id"}
    assert done == again
    assert done["complete"]
    assert {site: each["status"] for site, each in done["sites"].items()} == {
        "broken": "FAILED",
        "imoti": "COMPLETE",
    }
    assert status == {"total": 2, "completed": 2, "status": "COMPLETE"}
    log = (folder.data / "logs" / "worker.log").read_text()
    for each in done["sites"].values():
        assert log.count(f"job {each['job_id']} has ended") == 1


def test_a_program_joins_the_stack_that_is_up(folder: Folder) -> None:
    """It uses its Redis and workers and leaves them running; without a stack, only a `with` block
    starts one."""
    del folder.env["REDIS_URL"]
    program = """
        from crawler.errors import UsageError
        from crawler.orchestrator import Orchestrator

        try:
            print(json.dumps([Orchestrator().start_redis(), Orchestrator().start_celery()]))
        except UsageError as error:
            print(json.dumps(str(error)))
        with Orchestrator(workers=1) as orch:
            orch.start_all()
            result = orch.scrape_all_sites_parallel({"imoti": []})
            done = orch.wait_for_all_sites_completion(result["group_id"])
            print(json.dumps([done["complete"], orch.get_site_progress(result["group_id"])]))
        """

    [refused, [alone, _]] = typed(folder, program)
    assert folder.crawler("up", "--workers", "1").returncode == 0
    before = folder.status()["pids"]
    [used, [joined, progress]] = typed(folder, program)

    assert refused.startswith("use it in a with block")
    assert (alone, used, joined) == (True, [True, True], True)
    assert progress == {"total": 2, "completed": 2, "status": "COMPLETE"}
    assert folder.status()["pids"] == before


def test_a_group_that_a_program_sends_by_itself_is_waited_for(folder: Folder, pages: Pages) -> None:
    """The group of the requirements, sent without the orchestrator: the wait knows its sites as
    workers take their messages."""
    for name in ("one", "two", "three"):
        plain_site(folder.path / "config", name, f"{pages.url}/page/0", hosts=f"[{name}.localhost]")
        file = folder.path / "config" / "sites" / f"{name}.yaml"
        file.write_text(file.read_text().replace("127.0.0.1", f"{name}.localhost"))
    pages.parcels(1)
    folder.worker(concurrency=1)

    group, done = typed(
        folder,
        """
        from celery import group
        from crawler.orchestrator import Orchestrator
        from crawler.scraping.tasks import scrape_site_task

        sites_config = {"one": [], "two": [], "three": []}
        tasks = group([
            scrape_site_task.s(site, urls)
            for site, urls in sites_config.items()
        ])
        result = tasks.apply_async()
        print(json.dumps({"group_id": result.id}))
        print(json.dumps(Orchestrator().wait_for_all_sites_completion(result.id)))
        """,
    )

    assert set(group) == {"group_id"}
    assert done["complete"]
    assert {site: each["status"] for site, each in done["sites"].items()} == dict.fromkeys(
        ("one", "two", "three"), "COMPLETE"
    )


def test_a_message_that_comes_again_begins_nothing_again(folder: Folder) -> None:
    """A redelivered call finds its job, also after that has ended."""
    folder.worker(concurrency=2)
    send = """
        from crawler.scraping.tasks import scrape_site_task

        call = scrape_site_task.s("imoti", []).set(task_id="call-1")
        print(json.dumps(call.apply_async().get(timeout=120)))
        """

    first = typed(folder, send)
    assert scraping(folder).wait("call-1")["complete"]
    folder.redis().flushall()
    again = typed(folder, send)

    assert [each["job_id"] for each in first] == [each["job_id"] for each in again]
    assert [job["name"] for job in jobs(folder)] == [first[0]["job_id"]]
    assert scraping(folder).progress("call-1")["status"] == "COMPLETE"


def test_what_was_begun_survives_an_emptied_redis(folder: Folder) -> None:
    """Sites that were begun while no worker ran, and then lost in Redis, are crawled all the same;
    a second call continues them."""
    begun = scraping(folder).start_all({"imoti": []})
    again = scraping(folder).start("imoti")
    folder.redis().flushall()

    folder.worker(concurrency=2)
    done = scraping(folder).wait(begun["group_id"])

    assert done["complete"]
    assert scraping(folder).progress(again["task_id"])["status"] == "COMPLETE"
    assert len(jobs(folder)) == 1
    assert folder.results()


def test_a_wait_ends_where_nothing_can_go_on(folder: Folder) -> None:
    """Without a worker, with a paused job, without Redis and for an unknown id, the wait returns,
    and says why."""
    client = scraping(folder)
    begun = client.start_all({"imoti": [], "county": []})

    alone = client.wait(begun["group_id"], give_up_s=0)
    late = client.wait(begun["group_id"], timeout_s=0)
    unknown = client.wait("nothing", timeout_s=600)
    together = client.progress(begun["group_id"])

    assert not alone["complete"]
    assert {each["status"] for each in alone["sites"].values()} == {"DISPATCHED"}
    assert "no worker runs" in alone["sites"]["imoti"]["waits_for"]
    assert set(late["sites"]) == {"imoti", "county"}
    assert unknown == {"complete": False, "sites": {}}
    assert together == {"total": 2, "completed": 0, "status": "DISPATCHED"}

    # And with a worker, while one of them is paused
    paused = alone["sites"]["county"]["job_id"]
    assert folder.crawler("job", "pause", paused).returncode == 0
    folder.worker(concurrency=1)
    done = client.wait(begun["group_id"], give_up_s=0)
    wait_for(lambda: client.wait(alone["sites"]["imoti"]["job_id"])["complete"], 60, "the end")
    assert not done["complete"]
    assert "paused" in done["sites"]["county"]["waits_for"]

    # And when it is cancelled
    assert folder.crawler("job", "cancel", paused).returncode == 0
    ended = client.wait(begun["group_id"])
    assert ended["complete"]
    assert ended["sites"]["county"]["status"] == "FAILED"


def test_sites_begin_all_or_none(folder: Folder) -> None:
    """A site whose secrets are missing keeps the others from beginning; two spellings of one site
    are both waited for."""
    file = folder.path / "config" / "sites" / "county.yaml"
    file.write_text(file.read_text().replace("login:\n", "login:\n  secrets: none.txt\n"))
    client = scraping(folder)

    with pytest.raises(UsageError, match=r"none\.txt"):
        client.start_all({"imoti": [], "county": []})
    assert not folder.data.exists() or not jobs(folder)

    other = f"{load_start_urls_of(folder, 'imoti')[0]}?page=9"
    begun = client.start_all({"imoti": [], "IMOTI": [other]})
    assert len(client.wait(begun["group_id"], timeout_s=0)["sites"]) == 2


def test_a_wait_ends_where_no_worker_serves_the_queue(folder: Folder) -> None:
    """A worker for urgent tasks only never fetches the others: the wait says so and returns."""
    folder.worker(concurrency=1, queues="urgent")
    client = scraping(folder)
    begun = client.start("imoti")
    # The worker answers the call, and fetches nothing
    done = client.wait(begun["task_id"], give_up_s=1)

    assert not done["complete"]
    said = done["sites"]["imoti"]["waits_for"]
    assert said.startswith("no worker takes tasks from the queue default")


def test_a_wait_needs_no_redis(folder: Folder, pages: Pages) -> None:
    """While Redis is away, the ledger answers."""
    folder.env["REDIS_URL"] = "redis://127.0.0.1:9/0"
    client = scraping(folder)

    begun = client.start("imoti")

    assert client.progress(begun["task_id"])["status"] == "DISPATCHED"
    assert not client.wait(begun["task_id"], give_up_s=0)["complete"]


BAD_CALLS = [
    ("scrape_site_task", ["imotti", []], "there is no site 'imotti'; did you mean imoti?"),
    ("scrape_site_task", ["imoti", "https://x"], "Expected `array`, got `str`"),
    ("scrape_site_task", ["imoti", ["http://other.example/"]], "is no page of the site imoti"),
    ("scrape_site_task", ["imoti", ["ftp://imoti.localhost/"]], "ftp"),
    ("scrape_site_task", ["imoti", [], {"depth": 3}], "unknown field `depth`"),
    ("scrape_site_task", ["imoti", [], {"limit": -5}], "config: Expected `int` >= 0"),
    ("scrape_site_task", [5], "site_name: Expected `str`"),
    ("scrape_chunk_task", [[], "\x00", "imoti"], "job_id: Expected `str` matching"),
    ("scrape_chunk_task", [[], "", "imoti"], "job_id: Expected `str` of length >= 1"),
    ("aggregate_results_task", [[], None, "imoti"], "job_id: Expected `str`"),
    ("scrape_chunk_task", [["x"], "job", "nowhere"], "there is no site 'nowhere'"),
    ("scrape_chunk_task", ["x", "job", "imoti"], "urls: Expected `array`, got `str`"),
    ("scrape_chunk_task", [[], "file.txt", "imoti"], "job file.txt is no crawl"),
    ("aggregate_results_task", [[], "job", "imoti"], "there is no job job"),
]


def test_bad_arguments_are_refused_with_a_reason(folder: Folder) -> None:
    """Each task fails for good, says why, and begins nothing."""
    folder.crawler("bulk", "import", str(folder.write("file.txt", ["https://example.com/"])))
    folder.crawler("job", "pause", "file.txt")
    folder.worker(concurrency=1)
    folder.env["CALLS"] = json.dumps([call[:2] for call in BAD_CALLS])

    errors = typed(
        folder,
        """
        import os
        from crawler.tasks import app

        for name, args in json.loads(os.environ["CALLS"]):
            result = app.tasks[name].apply_async(args)
            print(json.dumps(str(result.get(timeout=120, propagate=False))))
        """,
    )

    for error, (_, _, said) in zip(errors, BAD_CALLS, strict=True):
        assert said in error
    assert [job["name"] for job in jobs(folder)] == ["file.txt"]


def test_urls_of_a_chunk_that_cannot_be_fetched_are_named_one_by_one(folder: Folder) -> None:
    """Each URL has a task or a reason; a bad one costs no good one."""
    folder.worker(concurrency=1)

    [found] = typed(
        folder,
        """
        from crawler.scraping.tasks import scrape_chunk_task

        urls = ["http://imoti.localhost:1/a", "nonsense", "http://u:secret@other.example/", ""]
        result = scrape_chunk_task.delay(urls, "scrape_imoti_chunk", "imoti")
        print(json.dumps(result.get(timeout=120)))
        """,
    )

    assert [set(each) for each in found] == [{"url", "task_id"}] + [{"url", "error"}] * 3
    assert "is no page of the site imoti" in found[2]["error"]
    assert "secret" not in json.dumps(found)
    ended = scraping(folder).wait("scrape_imoti_chunk")
    assert ended["sites"]["imoti"]["status"] == "FAILED"


def test_a_chunk_takes_longer_than_a_slice_and_nothing_is_delivered_twice(
    folder: Folder, pages: Pages
) -> None:
    """The time limits of the requirements bound pages, not Celery's tasks: a chunk that takes many
    slices is fetched once."""
    folder.env |= {"CRAWLER_SLICE_S": "0.5", "SCRAPING_CHUNK_SIZE": "50", "CRAWLER_PAGES": "4"}
    plain_site(folder.path / "config", "slow", *pages.parcels(50))
    pages.hold(50, threading.Event(), delay_s=0.3)
    folder.worker(concurrency=1)

    begun = scraping(folder).start("slow")
    done = scraping(folder).wait(begun["task_id"])

    assert done["sites"]["slow"]["total_chunks"] == 1
    assert done["sites"]["slow"]["result_count"] == 50
    assert set(Counter(pages.paths()).values()) == {1}
    assert not folder.redis().hlen("unacked")


def test_a_page_that_takes_too_long_is_ended_and_tried_again(folder: Folder, pages: Pages) -> None:
    """The soft time limit ends an attempt, whatever the site's own timeout allows."""
    folder.env |= {"SCRAPING_SOFT_TIME_LIMIT": "1", "SCRAPING_HARD_TIME_LIMIT": "60"}
    ended = threading.Event()
    [url] = pages.parcels(1)
    pages.hold(0, ended)
    plain_site(folder.path / "config", "slow", url, retry="{attempts: 2, base_s: 0.1}")
    folder.worker(concurrency=1)

    begun = scraping(folder).start("slow")
    done = scraping(folder).wait(begun["task_id"])
    ended.set()

    assert done["sites"]["slow"]["status"] == "FAILED"
    assert "SCRAPING_SOFT_TIME_LIMIT" in folder.crawler("why", url).stdout
    assert pages.paths() == ["/page/0"] * 2


def test_ten_workers_share_one_site(folder: Folder, examples: Running) -> None:
    """Each page is fetched once, however many processes work on the site."""
    before = Counter(examples.requests(Imoti.host))
    folder.worker(concurrency=10)

    begun = scraping(folder).start("imoti")
    done = scraping(folder).wait(begun["task_id"])

    asked = Counter(examples.requests(Imoti.host)) - before
    assert done["sites"]["imoti"]["status"] == "COMPLETE"
    pages = {name: count for name, count in asked.items() if "/robots.txt" not in name}
    assert set(pages.values()) == {1}
    found = Counter(each["data"]["id"] for each in folder.results() if each["role"] == "listing")
    assert set(found.values()) == {1}
    assert len(found) == SIZE
