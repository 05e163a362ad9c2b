"""What the requirements show to be typed works as it stands there; only addresses are those of a
site of ours."""

import os
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.site import Site
from tests.support.stack import Folder, wait_for

COUNTY = "http://county.gov/parcel"
"""In every line below it stands for the pages of the site."""
BREAKER = """python -c "
from crawler.resilience.redis_circuit_breaker import RedisCircuitBreaker
breaker = RedisCircuitBreaker()
before = breaker.can_request('blocked.example')
for _ in range(5):
    breaker.record_failure('blocked.example', 'captcha')
print(before, breaker.can_request('blocked.example'), breaker.state('blocked.example'))
"
"""
LIMITER = """CRAWLER_RATE=1/m python -c "
import time
from crawler.resilience.redis_rate_limiter import RedisRateLimiter
limiter = RedisRateLimiter()
while not limiter.can_request('slow.example'):
    time.sleep(0.1)
print(limiter.can_request('slow.example'), limiter.can_request('other.example'))
"
"""
DELAY = f"""python -c "
from crawler.tasks import scrape_task
result = scrape_task.delay('{COUNTY}/123')
print(f'Task ID: {{result.id}}')
"
"""
CRAWL = f"""python -c "
from crawler.tasks import crawl_url
print(crawl_url.delay('{COUNTY}/125').get(timeout=120)['status'])
"
"""
ORCHESTRATOR = """CRAWLER_DATA_DIR=own REDIS_URL= python -c "
from crawler.orchestrator import Orchestrator
with Orchestrator() as orch:
    print(orch.start_redis(), orch.start_celery(), orch.start_redis(), orch.start_celery())
"
"""
BUSY = """python -c "
from crawler.db.connection import retry_on_busy
@retry_on_busy
def one(): return 1
@retry_on_busy(limit_s=5)
def two(): return 2
print(one(), two())
"
"""
TABLE = """python -c "
import sqlite3
names = 'task_id, url, status, celery_task_id, imported_at, completed_at'
print(sqlite3.connect('data/lpm.db').execute(f'SELECT {names} FROM standalone_tasks').fetchone()[2])
"
"""
HASH = """python -c "
from crawler.stack import redis_address
from crawler.config import load
import redis
client = redis.Redis.from_url(redis_address(load())[:-1] + '2', decode_responses=True)
client.hset('circuit:known.example', 'state', 'OPEN')
print(client.hget('circuit:known.example', 'state'))
" && python -m crawler domains list
"""

LINES = [
    # S0, scenarios
    (
        "python -m crawler bulk import auction_parcels.csv --queue=urgent",
        "Imported 3 tasks to queue 'urgent'",
    ),
    ("python -m crawler bulk import test_sample.csv", "Imported 2 tasks to queue 'default'"),
    ("python -m crawler analyze ./data/pending/", "results"),
    (f"""celery -A crawler call scrape_task --args='["{COUNTY}/123"]'""", "-"),
    (
        'python -c "from crawler.tasks import scrape_task; '
        f"""scrape_task.delay('{COUNTY}/123')\"""",
        "",
    ),
    # FR-2
    (
        "python -m crawler bulk import test_sample.csv --queue default --batch-size 100 --dry-run",
        "Would import",
    ),
    ("python -m crawler bulk import rows.json", "Imported 1 tasks to queue 'default'"),
    ("python -m crawler bulk import rows.jsonl", "Imported 1 tasks to queue 'default'"),
    ("python -m crawler bulk import rows.txt", "Imported 1 tasks to queue 'default'"),
    # FR-3, FR-4
    ("STANDALONE=true GATEWAY_SYNC=disabled python -m crawler status", "completed"),
    (TABLE, "completed"),
    # FR-5
    (f"python -m crawler scrape {COUNTY}/124", "Parcel 124"),
    (DELAY, "Task ID: "),
    # FR-6
    ("python -m crawler results list", "results in"),
    ("python -m crawler results export --output results.json && head -c1 results.json", "["),
    (
        "python -m crawler results export --format csv --output results.csv && head -1 results.csv",
        "parcel_id",
    ),
    # S2
    (f"""celery -A crawler call crawl_url --args='["{COUNTY}/125", "research-123", {{}}]'""", "-"),
    (CRAWL, "completed"),
    # S4
    (ORCHESTRATOR, "True True True True"),
    (BREAKER, "True False OPEN"),
    (LIMITER, "False True"),
    (HASH, "known.example"),
    (BUSY, "1 2"),
    # FR-6, at the end: it takes the results away
    ("python -m crawler results archive --compress", "Archived"),
]


@pytest.fixture(scope="module")
def stack(_site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    """A folder with the files of the requirements in it, a stack up, and one job done."""
    folder = Folder(tmp_path_factory.mktemp("requirements"), CRAWLER_ALLOW_NETS="127.0.0.0/8")
    folder.env["PATH"] = f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
    page = f"{_site.url}/page"
    rows = [f"{page}/{number},{1 + number % 2},{number}" for number in range(123, 126)]
    (folder.path / "auction_parcels.csv").write_text(
        "\n".join(["url,priority,parcel_id", *rows, ""])
    )
    (folder.path / "test_sample.csv").write_text(f"url\n{page}/1\n{page}/2\n")
    (folder.path / "rows.json").write_text(f'[{{"url": "{page}/3", "priority": 1}}]')
    (folder.path / "rows.jsonl").write_text(f'{{"url": "{page}/4"}}\n')
    folder.write("rows.txt", [f"{page}/5"])
    done = folder.crawler("up", "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert (
        folder.crawler("bulk", "import", str(folder.write("before.txt", [f"{page}/6"]))).returncode
        == 0
    )
    folder.wait_until_completed(1, 60)
    yield folder
    folder.stop()


@pytest.mark.parametrize(("line", "said"), LINES)
def test_lines_of_the_requirements_work_as_typed(
    stack: Folder, site: Site, line: str, said: str
) -> None:
    """Each line ends well, and says what the requirements say or what follows from them."""
    done = subprocess.run(
        ["sh", "-c", line.replace(COUNTY, f"{site.url}/page")],
        cwd=stack.path,
        env=stack.env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert said in done.stdout


def test_calls_by_either_name_end_with_a_result(folder: Folder, site: Site, redis_url: str) -> None:
    """`celery call` of `scrape_task` and of `crawl_url` is the same work, the session's name goes
    with the result, and a page that fails is tried again, three times if told so."""
    # Given a worker
    folder.env |= {"REDIS_URL": redis_url, "CRAWLER_ALLOW_NETS": "127.0.0.0/8"}
    (folder.path / "config").mkdir()
    defaults = folder.path / "config" / "scraping_defaults.yaml"
    defaults.write_text("retry: {attempts: 4, base_s: 0.1}\n")
    folder.redis().flushall()
    folder.worker(concurrency=1)

    # When both are called, and one that nobody knows
    calls = [
        call(folder, name, f'["{site.page(number)}", "research-123", {{"note": "x"}}]')
        for number, name in enumerate(("scrape_task", "crawl_url", "crawl_urls"))
    ]
    flaky = f"{site.url}/flaky/3/a"
    call(folder, "crawl_url", f'["{flaky}", "research-123", {{"note": "x"}}]')

    # Then two are done, and the third was never sent
    folder.wait_until_done(3, 60)
    results = folder.results()
    assert [done.returncode for done in calls] == [0, 0, 2]
    assert calls[2].stderr.splitlines()[-1] == (
        "Error: there is no task 'crawl_urls'; there are aggregate_results_task, crawl_url, "
        "scrape_chunk_task, scrape_site_task, scrape_task, slice_task"
    )
    attempts = {result["url"]: result["attempts"] for result in results}
    assert attempts == {site.page(0): 1, site.page(1): 1, flaky: 4}
    assert [result["input"] for result in results] == [
        {"session_id": "research-123", "note": "x"}
    ] * 3


def call(folder: Folder, name: str, args: str) -> subprocess.CompletedProcess[str]:
    """Type a call of a task."""
    celery = str(Path(sysconfig.get_path("scripts")) / "celery")
    argv = [celery, "-A", "crawler", "call", name, f"--args={args}"]
    return subprocess.run(
        argv,
        cwd=folder.path,
        env=folder.env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize(
    ("line", "sign"),
    [
        ("beat", "beat: Ticking"),
        ("worker --beat -c 1", "Connected to redis"),
        ("worker -Q urgent,default -c 1", "Connected to redis"),
    ],
)
def test_entry_points_of_celery_start_and_end(
    folder: Folder, redis_url: str, line: str, sign: str
) -> None:
    """The scheduler, a worker with one in it, and a worker alone begin as typed, and end when told
    to."""
    folder.env["REDIS_URL"] = redis_url
    folder.redis().flushall()
    process = folder.start("celery", "-A", "crawler", *line.split(), "-l", "debug")

    wait_for(lambda: sign in folder.log(process), 60, sign)
    process.terminate()

    assert process.wait(120) == 0, folder.log(process)
