"""Queues, chunks and what may be typed at Celery."""

import base64
import contextlib
import http.client
import json
import socket
import subprocess
import sys
import sysconfig
import threading
import time
import urllib.request
import venv
from pathlib import Path
from typing import Any

import pytest
import redis

from crawler.config import Settings
from crawler.models import TaskStatus
from crawler.orchestrator import Orchestrator
from crawler.stack import read_stack
from tests.support.pages import Pages
from tests.support.site import Site
from tests.support.stack import Folder, wait_for


def leases(folder: Folder, queue: str) -> list[float]:
    """When the tasks of a queue were claimed."""
    lpm = folder.lpm()
    rows = lpm.store.db.all(
        "SELECT leased_at FROM tasks WHERE queue = ? AND leased_at IS NOT NULL", (queue,)
    )
    lpm.close()
    return [row[0] for row in rows]


def test_urgent_tasks_run_first(folder: Folder, site: Site, redis_url: str) -> None:
    """100 default and then 100 urgent tasks, then a worker with one slot: all urgent ones run
    first."""
    # Given both in the ledger and in the queues, the default ones before the others
    folder.env["REDIS_URL"] = redis_url
    folder.redis().flushall()
    default = folder.write("default.txt", [site.page(n) for n in range(100)])
    urgent = folder.write("urgent.txt", [site.page(n) for n in range(100, 200)])
    assert folder.crawler("bulk", "import", str(default)).returncode == 0
    assert folder.crawler("bulk", "import", str(urgent), "--queue", "urgent").returncode == 0

    # When one worker with one slot begins
    folder.worker(concurrency=1)
    folder.wait_until_done(200, 60)

    # Then the last urgent one was claimed before the first default one
    assert len(leases(folder, "urgent")) == 100
    assert max(leases(folder, "urgent")) <= min(leases(folder, "default"))


def test_urgent_work_overtakes_in_a_running_worker(
    folder: Folder, site: Site, redis_url: str
) -> None:
    """With the worker already running only pages already begun come before urgent ones."""
    # Given a worker in the middle of 100 slow default pages
    folder.env["REDIS_URL"] = redis_url
    folder.redis().flushall()
    default = folder.write("default.txt", [site.page(n, 0.5) for n in range(100)])
    urgent = folder.write("urgent.txt", [site.page(n) for n in range(100, 200)])
    folder.worker(concurrency=1)
    folder.crawler("bulk", "import", str(default))
    wait_for(lambda: leases(folder, "default"), 20, "the first default page to begin")

    # When urgent ones come in
    assert folder.crawler("bulk", "import", str(urgent), "--queue", "urgent").returncode == 0
    imported = time.time()
    folder.wait_until_done(200, 60)

    # Then no default page began between their import and the last of them
    last = max(leases(folder, "urgent"))
    assert not [at for at in leases(folder, "default") if imported < at < last]


def test_chunks_hold_every_task_once_and_suit_the_slots(folder: Folder) -> None:
    """Chunks cover all tasks, none twice, at most a batch each, and several for every slot."""
    # Given 250 tasks
    file = folder.write("urls.txt", [f"http://a{n % 7}.example/{n}" for n in range(250)])
    assert folder.crawler("bulk", "import", str(file), "--batch-size", "20").returncode == 0

    # When the window is filled for four slots
    lpm = folder.lpm()
    chunks = lpm.dispatch.fill(2000, 4, time.time())
    again = lpm.dispatch.fill(2000, 4, time.time())
    lpm.close()

    # Then each task is in one message, and no message has more than a batch
    ids = [task_id for chunk in chunks for task_id in chunk.task_ids]
    assert len(ids) == len(set(ids)) == 250
    assert max(len(chunk.task_ids) for chunk in chunks) <= 20
    assert len(chunks) >= 12
    assert again == []


def test_the_window_is_bounded_and_fair(folder: Folder) -> None:
    """No more tasks than the window go to Redis, and a large domain leaves room for small ones."""
    # Given 500 tasks of one domain before 10 of another
    urls = [f"http://large.example/{n}" for n in range(500)] + [
        f"http://small.example/{n}" for n in range(10)
    ]
    folder.crawler("bulk", "import", str(folder.write("urls.txt", urls)))

    # When a window of 100 is filled
    lpm = folder.lpm()
    chunks = lpm.dispatch.fill(100, 2, time.time())
    ids = [task_id for chunk in chunks for task_id in chunk.task_ids]
    rows = lpm.store.db.all("SELECT domain FROM tasks WHERE message_id IS NOT NULL")
    lpm.close()

    # Then it holds 100, and all of the small domain
    assert len(ids) == len(rows) == 100
    assert sum(domain == "small.example" for (domain,) in rows) == 10


def test_celery_call_scrapes_one_url(folder: Folder, site: Site, redis_url: str) -> None:
    """`celery -A crawler call scrape_task` fetches, and page and record are in the store."""
    # Given a worker as typed
    folder.env |= {"REDIS_URL": redis_url, "CRAWLER_ALLOW_NETS": "127.0.0.0/8"}
    folder.redis().flushall()
    folder.worker()

    # When the call is typed
    url = site.page(123)
    call_id = celery_call(folder, url)

    # Then it prints an id, and the result is there
    assert len(call_id) == 36
    folder.wait_until_done(1, 30)
    [result] = folder.results()
    assert result["url"] == url
    assert result["data"]["title"].startswith("Parcel 123")


def test_the_task_is_a_function_too(folder: Folder, site: Site, redis_url: str) -> None:
    """`scrape_task(url)` in a Python program fetches there, without a message or a worker."""
    folder.env |= {"REDIS_URL": redis_url, "CRAWLER_ALLOW_NETS": "127.0.0.0/8"}
    program = (
        "import json, sys\nfrom crawler.tasks import scrape_task\n"
        "print(json.dumps(scrape_task(sys.argv[1])))"
    )

    found = json.loads(typed(folder, "-W", "error", "-c", program, site.page(5)))

    assert found["status"] == TaskStatus.COMPLETED
    assert found["url"] == site.page(5)
    assert folder.books().completed == 1


def test_delay_from_python_returns_the_result(folder: Folder, site: Site, redis_url: str) -> None:
    """`scrape_task.delay(url)` prints an id, and `.get()` gives the record; failing pages say
    why."""
    # Given a worker
    folder.env |= {"REDIS_URL": redis_url, "CRAWLER_ALLOW_NETS": "127.0.0.0/8"}
    folder.redis().flushall()
    folder.worker()
    program = (
        "import json\nfrom crawler.tasks import scrape_task\n"
        f"good = scrape_task.delay({site.page(5)!r})\n"
        f"bad = scrape_task.delay({site.url + '/status/404'!r})\n"
        "print(good.id)\nprint(json.dumps([good.get(timeout=30), bad.get(timeout=30)]))"
    )

    # When two URLs are sent from Python
    argv = [sys.executable, "-c", program]
    done = subprocess.run(
        argv,
        cwd=folder.path,
        env=folder.env,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )

    # Then there is an id, a record, and a reason
    id_, results = done.stdout.splitlines()
    good, bad = json.loads(results)
    assert len(id_) == 36
    assert good["status"] == TaskStatus.COMPLETED
    assert good["data"]["title"].startswith("Parcel 5")
    assert (bad["status"], bad["error_type"]) == ("failed", "http_404")


def test_settings_of_celery_hold_in_a_running_worker(folder: Folder, redis_url: str) -> None:
    """Broker in database 0, results in 1 for an hour, JSON, UTC, limits of 120 and 180 s, a message
    for each slot."""
    # Given a worker with two slots, and four calls for pages that do not answer yet
    folder.env |= {"REDIS_URL": redis_url, "CRAWLER_ALLOW_NETS": "127.0.0.0/8"}
    assert redis_url.endswith("/0")
    broker, backend = (redis.Redis.from_url(f"{redis_url[:-1]}{number}") for number in (0, 1))
    broker.flushall()
    folder.worker(concurrency=2)
    answering = threading.Event()
    with Pages() as pages, contextlib.closing(broker), contextlib.closing(backend):
        urls = pages.parcels(4)
        pages.hold(0, until=answering)
        program = (
            "import sys\nfrom crawler.tasks import scrape_task\n"
            "for url in sys.argv[1:]: print(scrape_task.delay(url))"
        )
        try:
            ids = typed(folder, "-c", program, *urls).split()

            # When it is asked how it is set, and its Redis what is there
            conf, stats = (inspect(folder, what) for what in ("conf", "stats"))
            wait_for(lambda: broker.hlen("unacked") == 2, 120, "a message in each slot")
            queued = [json.loads(message) for message in broker.lrange("urgent", 0, -1)]
        finally:
            answering.set()
        keys = wait_for(
            lambda: backend.dbsize() == 4 and sorted(backend.keys()), 120, "the results"
        )
        results = [json.loads(backend.get(key) or "") for key in keys]
        expire_s = [backend.ttl(key) for key in keys]

    # Then each setting is in force; the maintainer may have published slices besides
    waiting = [each for each in queued if each["headers"]["task"] == "scrape_task"]
    assert (stats["broker"]["virtual_host"], conf["result_backend"][-2:]) == ("0", "/1")
    assert (stats["pool"]["max-concurrency"], len(stats["pool"]["processes"])) == (2, 2)
    assert stats["pool"]["timeouts"] == [120, 180]
    assert (stats["prefetch_count"], len(waiting)) == (2, 2)
    assert (conf["timezone"], conf["enable_utc"], conf["accept_content"]) == ("UTC", True, ["json"])
    for message in waiting:
        assert message["content-type"] == "application/json"
        [args, *_] = json.loads(base64.b64decode(message["body"]))
        assert args[0].startswith(pages.url)
    assert keys == sorted(f"celery-task-meta-{id_}".encode() for id_ in ids)
    assert {(result["status"], result["date_done"][-6:]) for result in results} == {
        ("SUCCESS", "+00:00")
    }
    assert all(0 < left_s <= 3600 for left_s in expire_s)


def inspect(folder: Folder, what: str) -> dict[str, Any]:
    """What the worker here answers to `celery -A crawler inspect`.

    It is asked again: a worker has children before it listens to such questions.
    """
    name = f"celery@{socket.gethostname()}"
    command = f"-m celery -A crawler inspect {what} --json --timeout 10 --destination {name}"
    answers: dict[str, Any] = {}

    def answered() -> bool:
        with contextlib.suppress(subprocess.CalledProcessError):
            answers.update(json.loads(typed(folder, *command.split())))
        return name in answers

    wait_for(answered, 120, "the worker's answer")
    facts: dict[str, Any] = answers[name]
    return facts


def typed(folder: Folder, *argv: str) -> str:
    """What a Python program prints that is typed in the folder."""
    done = subprocess.run(
        [sys.executable, *argv],
        cwd=folder.path,
        env=folder.env,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("broken", [{"id": ["l"]}, {"timelimit": "soon"}, {"task": None}])
def test_a_malformed_message_costs_nothing_but_itself(
    folder: Folder, site: Site, redis_url: str, broken: dict[str, Any]
) -> None:
    """Whoever may write to Redis cannot end the worker with it: the message is dropped, and work
    goes on."""
    folder.env["REDIS_URL"] = redis_url
    worker = folder.worker(concurrency=1, queues="default")
    program = (
        "from crawler.tasks import slice_task as t; t.apply_async(('feed', []), queue='urgent')"
    )
    argv = [sys.executable, "-c", program]
    subprocess.run(argv, cwd=folder.path, env=folder.env, timeout=240, check=True)
    client: Any = folder.redis()
    message = json.loads(client.lpop("urgent"))
    message["headers"] |= broken
    client.lpush("default", json.dumps(message))

    wait_for(lambda: "a malformed message is dropped" in folder.log(worker), 60, "the log's line")
    folder.crawler("bulk", "import", str(folder.write("pages.txt", [site.page(1)])))

    folder.wait_until_done(1, 60)
    assert worker.poll() is None
    assert not client.hlen("unacked")


def test_a_worker_of_another_ledger_puts_messages_back(
    folder: Folder, site: Site, redis_url: str
) -> None:
    """A message of another ledger is not lost by a worker that cannot use it, and that worker says
    so."""
    # Given a message of a ledger that is not here
    folder.env["REDIS_URL"] = redis_url
    folder.redis().flushall()
    worker = folder.worker(concurrency=1)
    program = (
        "from crawler.tasks import slice_task as t; "
        "t.apply_async(('feed', ['x']), task_id='foreign')"
    )
    argv = [sys.executable, "-c", program]
    subprocess.run(argv, cwd=folder.path, env=folder.env, timeout=240, check=True)

    # When the worker has seen it
    wait_for(
        lambda: "two stacks share this Redis" in folder.log(worker), 20, "the worker's complaint"
    )

    # Then, with the worker gone, the message is still there
    worker.terminate()
    worker.wait(120)
    client = folder.redis()
    bodies = [*client.lrange("default", 0, -1), *client.hvals("unacked")]
    assert any(b"foreign" in body for body in bodies)


def test_a_pool_other_than_prefork_is_refused(folder: Folder, redis_url: str) -> None:
    """Threads cannot survive a page that hangs its parser, so such a worker does not start."""
    argv = [sys.executable, "-m", "celery", "-A", "crawler", "worker", "-P", "threads"]
    env = folder.env | {"REDIS_URL": redis_url}
    done = subprocess.run(
        argv, cwd=folder.path, env=env, capture_output=True, text=True, timeout=240, check=False
    )

    assert done.returncode == 3
    assert "prefork" in done.stdout + done.stderr


def test_an_evicting_redis_is_refused(folder: Folder, redis_url: str) -> None:
    """A Redis that would throw work away is refused, and the message has the remedy."""
    # Given such a Redis
    folder.env["REDIS_URL"] = redis_url
    client = folder.redis()
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        # When a stack is started on it
        done = folder.crawler("up")
    finally:
        client.config_set("maxmemory-policy", "noeviction")

    # Then it is refused
    assert done.returncode == 3
    assert "CONFIG SET maxmemory-policy noeviction" in done.stderr


def test_flower_lists_pages_with_their_urls(folder: Folder, site: Site, redis_url: str) -> None:
    """`celery -A crawler flower`, as typed, lists every page of a job as a task, good or not, on
    loopback."""
    # Given Flower and a worker
    folder.env |= {
        "REDIS_URL": redis_url,
        "FLOWER_UNAUTHENTICATED_API": "true",
        "FLOWER_PORT": str(free_port()),
    }
    folder.env["CRAWLER_ALLOW_NETS"] = (
        "127.0.0.0/8"  # for the single URL, which comes from elsewhere
    )
    folder.redis().flushall()
    folder.start("celery", "-A", "crawler", "flower")
    address = f"http://127.0.0.1:{folder.env['FLOWER_PORT']}/api/tasks?limit=100"
    wait_for(lambda: fetch_json(address) is not None, 30, "Flower to answer")
    folder.worker(concurrency=1)

    # When a job is crawled
    pages = [site.page(n) for n in range(20)]
    file = folder.write("pages.txt", [*pages, f"{site.url}/status/404"])
    folder.crawler("bulk", "import", str(file))
    folder.wait_until_done(21, 30)

    # Then each page is a task there
    def seen() -> dict[str, str] | None:
        tasks = (fetch_json(address) or {}).values()
        found = {
            str(task["args"]): str(task["state"]) for task in tasks if task["name"] == "scrape_task"
        }
        return found if len(found) == 21 and set(found.values()) == {"SUCCESS", "FAILURE"} else None

    states = wait_for(seen, 20, "all pages in Flower")
    assert states[f"('{site.url}/status/404',)"] == "FAILURE"
    assert all(states[f"('{url}',)"] == "SUCCESS" for url in pages)

    # And a single URL is there with its result, and its page and record in the store
    task = celery_call(folder, site.page(99))
    info = f"http://127.0.0.1:{folder.env['FLOWER_PORT']}/api/task/info/{task}"
    result = wait_for(
        lambda: (fetch_json(info) or {}).get("result"), 30, "the single one's result in Flower"
    )
    assert site.page(99) in str(result)
    assert folder.crawler("raw", site.page(99)).stdout.startswith("<!doctype html>")
    assert any(
        site.page(99) in path.read_text() for path in (folder.data / "pending").glob("*.json")
    )


def test_flower_shows_progress_on_port_5555(folder: Folder) -> None:
    """`up --flower` has Flower on 5555, with the worker, and with each page as it begins and as it
    ends."""
    # Given a stack with Flower, and pages of which one does not answer yet
    answering = threading.Event()
    taken = is_taken(5555)
    up = folder.crawler("up", "--workers", "1", "--flower", FLOWER_UNAUTHENTICATED_API="true")
    stack = read_stack(folder.data)
    address = stack.flower_url
    assert stack.worker
    assert up.stdout.splitlines()[1:] == [f"Flower: {address}"], up.stderr
    assert address == "http://127.0.0.1:5555" or taken or is_taken(5555), (
        "another port, although 5555 was free"
    )

    def workers() -> list[Any]:
        return list((fetch_json(f"{address}/workers?json=1") or {}).get("data", []))

    def states() -> dict[str, str]:
        found = (fetch_json(f"{address}/api/tasks?limit=100") or {}).values()
        return {
            str(task["args"]): str(task["state"]) for task in found if task["name"] == "scrape_task"
        }

    wait_for(workers, 120, "the worker in Flower")
    with Pages() as pages:
        urls = pages.parcels(4)
        pages.hold(3, until=answering)
        try:
            # When they are collected
            file = folder.write("pages.txt", [*urls, f"{pages.url}/gone"])
            assert folder.crawler("bulk", "import", str(file)).returncode == 0
            begun = {f"('{url}',)": "SUCCESS" for url in urls[:3]}
            begun |= {f"('{urls[3]}',)": "STARTED", f"('{pages.url}/gone',)": "FAILURE"}

            # Then Flower shows what is done, what failed and what is under way, and then its end
            wait_for(lambda: states() == begun, 120, "one page under way in Flower")
        finally:
            answering.set()
        wait_for(
            lambda: states() == begun | {f"('{urls[3]}',)": "SUCCESS"}, 120, "its end in Flower"
        )

    # And the worker is there, alive, with what it has done
    [worker] = workers()
    assert (worker["pid"], worker["status"]) == (stack.worker.pid, True)
    assert (worker["task-succeeded"], worker["task-failed"]) >= (4, 1)


PATHS = (
    "/",
    "/tasks",
    "/tasks/datatable",
    "/workers",
    "/broker",
    "/metrics",
    "/api/tasks",
    "/api/workers",
    "/none",
)
HOSTS = {
    "127.0.0.1": True, "localhost:5555": True, "LocalHost.": True, "[::1]:5555": True,
    "a.localhost": True, "evil.example": False, "evil.example:5555": False,
    "127.0.0.1.evil.example": False, "localhost.evil.example": False, "xn--localhost": False,
    "": True,
}  # fmt: skip


def test_flower_without_a_password_answers_to_no_name(folder: Folder, redis_url: str) -> None:
    """A site whose name leads to 127.0.0.1 (DNS rebinding) reads nothing; with a password Flower
    has any name."""
    folder.env |= {"REDIS_URL": redis_url, "FLOWER_UNAUTHENTICATED_API": "true"}

    def answered(port: int, path: str, host: str, **headers: str) -> int:
        there = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        with contextlib.closing(there):
            there.putrequest("GET", path, skip_host=True)
            for name, value in (({"Host": host} if host else {}) | headers).items():
                there.putheader(name, value)
            there.endheaders()
            return there.getresponse().status

    # Given Flower as it is typed
    port = free_port()
    folder.start("celery", "-A", "crawler", "flower", FLOWER_PORT=str(port))
    wait_for(lambda: is_taken(port), 60, "Flower to listen")

    # Then names get nothing, whatever they ask for
    for path in PATHS:
        codes = {host: answered(port, path, host) for host in HOSTS}
        assert {host: code != 403 for host, code in codes.items()} == HOSTS, path

    # And with a password it answers to who has it
    port = free_port()
    folder.start(
        "celery", "-A", "crawler", "flower", FLOWER_PORT=str(port), FLOWER_BASIC_AUTH="ada:word"
    )
    wait_for(lambda: is_taken(port), 60, "Flower to listen")
    key = "Basic " + base64.b64encode(b"ada:word").decode()
    assert answered(port, "/tasks", "evil.example") == 401
    assert answered(port, "/tasks", "flower.example", Authorization=key) == 200


def test_flower_that_is_not_installed_is_asked_for(folder: Folder) -> None:
    """`up --flower` after a plain `pip install .` says what to install, and starts nothing."""
    # Given an environment with all packages but Flower
    venv.create(folder.path / "venv", with_pip=False)
    [packages] = (folder.path / "venv").glob("lib/python*/site-packages")
    for installed in Path(sysconfig.get_path("purelib")).iterdir():
        if not installed.name.startswith("flower"):
            (packages / installed.name).symlink_to(installed)

    # When a stack with Flower is started in it
    program = folder.path / "venv" / "bin" / "python"
    argv = [str(program), "-m", "crawler", "up", "--flower"]
    done = subprocess.run(
        argv, cwd=folder.path, env=folder.env, capture_output=True, text=True, check=False
    )

    # Then it says so
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr == "Error: Flower is not installed; install it with: "
        "pip install '.[flower]' in the project's folder\n"
    )
    assert not (folder.data / "run" / "stack.json").exists()


def test_flower_leaves_a_port_to_who_has_it(tmp_path: Path) -> None:
    """Where 5555 is taken, Flower answers on another port, and the stack records which."""
    settings = Settings(data_dir=tmp_path)
    with contextlib.ExitStack() as exits:
        with contextlib.suppress(OSError):  # somebody else has it
            exits.enter_context(socket.create_server(("127.0.0.1", 5555)))
        stack = exits.enter_context(Orchestrator(settings))
        stack.start_redis()

        address = stack.start_flower()

        assert address != "http://127.0.0.1:5555"
        assert stack.start_flower() == read_stack(tmp_path).flower_url == address
        with urllib.request.urlopen(f"{address}/healthcheck", timeout=60) as answer:
            assert answer.read() == b"OK"


def is_taken(port: int) -> bool:
    """Whether somebody listens there on this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def celery_call(folder: Folder, url: str) -> str:
    """Type a call of scrape_task; returns the id that it prints."""
    argv = ("-m", "celery", "-A", "crawler", "call", "scrape_task", f"--args={json.dumps([url])}")
    return typed(folder, *argv).strip()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fetch_json(url: str) -> dict[str, dict[str, object]] | None:
    """What an address answers, or nothing."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            facts: dict[str, dict[str, object]] = json.load(answer)
            return facts
    except OSError:
        return None
