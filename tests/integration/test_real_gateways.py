"""The habits of real Gateways, played by the reference Gateway: the worker is at home with each of
them."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from crawler import sites
from crawler.config import Settings, load
from crawler.errors import ConfigError, UsageError
from crawler.gateway import agent
from crawler.gateway.client import GatewayClient
from crawler.gateway.collector import IDLE_S, Collector
from crawler.gateway.sync import Sync
from crawler.lpm import LocalPersistenceManager
from tests.integration.test_gateway import Caller
from tests.support.exchange import assign, fail, given
from tests.support.gateway import Gateway
from tests.support.site import Site
from tests.support.stack import PATIENCE_S, Folder, wait_for
from tests.support.tasks import done, new, open_job, page

IDLE = 7
DIALECTS = {"go": "plain", "python": "typed"}


@pytest.fixture(params=["go", "python"])
def gateway(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Gateway]:
    """A Gateway with the habits of one of the two."""
    with Gateway(tmp_path / "central", like=request.param, idle=IDLE) as gateway:
        yield gateway


@pytest.fixture
def lpm(tmp_path: Path) -> LocalPersistenceManager:
    """A worker's store."""
    return LocalPersistenceManager(tmp_path / "data")


def env(gateway: Gateway) -> dict[str, str]:
    """What a worker's environment says of this Gateway."""
    return gateway.env | {
        "CRAWLER_GATEWAY_DIALECT": DIALECTS[gateway.like],
        "CRAWLER_MIN_FREE": "0",
    }


def settings(lpm: LocalPersistenceManager, gateway: Gateway) -> Settings:
    """A worker's settings."""
    return load(env(gateway) | {"CRAWLER_DATA_DIR": str(lpm.folder)})


def with_client(told: Settings, do: Callable[[GatewayClient], Awaitable[Any]]) -> Any:
    """Do something with a client."""

    async def run() -> Any:
        async with GatewayClient(told, "worker-1") as client:
            return await do(client)

    return asyncio.run(run())


def collect(
    lpm: LocalPersistenceManager, gateway: Gateway, free: int, platforms: list[str]
) -> list[float]:
    """Ask once for tasks of each type that there are; returns the waits."""
    told = settings(lpm, gateway)

    async def ask(client: GatewayClient) -> list[float]:
        mine = Collector(
            told, agent.open_job(lpm), sites.load(told.config_dir), client, platforms=platforms
        )
        with closing(mine):
            return [await mine.ask(free, kind) for kind in client.kinds]

    waits: list[float] = with_client(told, ask)
    return waits


def deliver(lpm: LocalPersistenceManager, gateway: Gateway) -> None:
    """Send all that is ready, as an agent does."""
    told = settings(lpm, gateway)

    async def send(client: GatewayClient) -> None:
        sync = Sync(told, client)
        with closing(sync):
            running = asyncio.create_task(sync.run())
            async with asyncio.timeout(PATIENCE_S):
                while sync.unsent() and not running.done():
                    await asyncio.wait([running], timeout=0.05)
            running.cancel()
            await asyncio.wait([running])

    with_client(told, send)


def work(lpm: LocalPersistenceManager, count: int = 100) -> None:
    """Let all tasks end with a result."""
    for task in lpm.get_next_pending("owner", count):
        lpm.save_result(done(task, page=page(task.url, task.url.encode())))


def crawled(lpm: LocalPersistenceManager, *rows: dict[str, Any]) -> None:
    """Results of standalone work, let go."""
    tasks = [new(row["url"], parcel_id=row.get("parcel_id", ""), input=row) for row in rows]
    lpm.persist_tasks(tasks, job=open_job(lpm), source="file")
    work(lpm)
    lpm.outbox.release()


def rows(count: int, **fields: Any) -> list[dict[str, Any]]:
    """Rows of a Gateway's input."""
    return [
        {
            "task_id": f"t-{n}",
            "platform": "beacon",
            "parcel_id": f"p{n}",
            "url": f"http://a.example/{n}",
        }
        | fields
        for n in range(count)
    ]


def test_work_for_a_real_gateway_from_end_to_end(
    folder: Folder, site: Site, gateway: Gateway
) -> None:
    """`ondemand` takes all tasks with its first question, and delivers them; what has no page is
    reported."""
    folder.env |= env(gateway) | {"CRAWLER_ALLOW_NETS": "127.0.0.0/8", "CRAWLER_RATE": "none"}
    tasks = [row | {"url": site.page(n), "parcel_id": ""} for n, row in enumerate(rows(8))]
    gateway.import_tasks([*tasks, rows(1)[0] | {"task_id": "bad", "url": "", "type": "parcel"}])

    folder.start("crawler", "ondemand", "--platform", "beacon", "--workers", "1")
    wait_for(
        lambda: gateway.counts()["completed"] + gateway.counts()["failed"] == 9,
        120,
        "the ends of all tasks",
    )

    assert {result["task_id"] for result in gateway.results()} == {row["task_id"] for row in tasks}
    assert (
        next(task["error_type"] for task in gateway.tasks() if task["task_id"] == "bad")
        == "bad_task"
    )
    with closing(folder.lpm()) as lpm:
        wait_for(lambda: not lpm.outbox.unsent(), 60, "the last answer")
        assert lpm.gateway.troubles() == []


def test_an_empty_queue_is_no_trouble(lpm: LocalPersistenceManager, gateway: Gateway) -> None:
    """`null` or `[]`, it is left alone for as long as it says."""
    assert IDLE != IDLE_S
    assert set(collect(lpm, gateway, 5, ["beacon"])) == {float(IDLE)}


def test_one_question_fills_the_room_there_is(
    lpm: LocalPersistenceManager, gateway: Gateway
) -> None:
    """One task for each name and priority is what it hands out: the platforms are named as often as
    needed."""
    gateway.import_tasks(
        rows(30) + [row | {"task_id": f"q-{n}", "platform": "q"} for n, row in enumerate(rows(30))]
    )

    collect(lpm, gateway, 50, ["beacon", "q"])

    assert lpm.gateway.open_count() == 50
    assert gateway.counts()["held"] == 50


def test_a_report_about_a_task_that_is_not_ours_is_heard(
    lpm: LocalPersistenceManager, gateway: Gateway
) -> None:
    """`success: false` with `status: reported`: asking again would change nothing."""
    assign(lpm, given("unknown"))
    fail(lpm, lpm.get_next_pending("owner", 1)[0])

    deliver(lpm, gateway)

    stand = lpm.outbox.delivery(None)
    assert (stand.reports_synced, stand.reports_rejected) == (1, 0)


def test_pages_without_a_parcel_do_not_share_a_row(folder: Folder, gateway: Gateway) -> None:
    """Each is stored under its page's key and its site: five are delivered, and five are there."""
    folder.env |= env(gateway)
    lpm, urls = folder.lpm(), [f"http://a.example/{n}" for n in range(5)]
    crawled(lpm, *({"url": url} for url in urls))
    keys = {key.hex() for (key,) in lpm.store.db.all("SELECT url_key FROM tasks")}
    lpm.close()

    pushed = folder.crawler("sync", "push")

    assert pushed.returncode == 0, pushed.stderr
    assert "Delivered 5 results" in pushed.stdout
    found = gateway.results()
    assert {(result["parcel_id"], result["platform"]) for result in found} == {
        (key, "a.example") for key in keys
    }


def test_tasks_without_a_parcel_do_not_share_a_row(
    lpm: LocalPersistenceManager, gateway: Gateway
) -> None:
    """The Gateway's own tasks, too; what it named the platform stays."""
    gateway.import_tasks(rows(5, parcel_id=""))
    collect(lpm, gateway, 5, ["beacon"])
    work(lpm)

    deliver(lpm, gateway)

    assert len({result["parcel_id"] for result in gateway.results()}) == 5
    assert {result["platform"] for result in gateway.results()} == {"beacon"}
    assert lpm.outbox.delivery(None).replaced == 0


def test_what_would_still_collide_is_refused(folder: Folder, gateway: Gateway) -> None:
    """Three pages of one parcel: the first is delivered, the others are kept, and say which task is
    in their way."""
    folder.env |= env(gateway)
    lpm = folder.lpm()
    crawled(
        lpm,
        *({"url": f"http://a.example/{n}", "parcel_id": "7", "county": "Bay"} for n in range(3)),
    )
    lpm.close()

    pushed = folder.crawler("sync", "push", "--json")
    shown = json.loads(folder.crawler("sync", "rejected", "--json").stdout)

    assert pushed.returncode == 1
    assert {"results": 1, "rejected": 2}.items() <= json.loads(pushed.stdout).items()
    [first] = gateway.results()
    assert [item["problem"] for item in shown] == [
        f"it would replace the result of task {first['task_id']}, another page with the same key: "
        "parcel_id '7', county 'Bay'"
    ] * 2


def test_a_parcel_that_is_asked_for_again_may_have_moved(
    lpm: LocalPersistenceManager, gateway: Gateway
) -> None:
    """The Gateway has its first result and wants another one, from a new address: that replaces the
    first."""
    for n in range(2):
        gateway.import_tasks(
            [rows(1)[0] | {"task_id": f"again-{n}", "url": f"http://a.example/new/{n}"}]
        )
        collect(lpm, gateway, 5, ["beacon"])
        work(lpm)
        deliver(lpm, gateway)

    stand = lpm.outbox.delivery(None)
    assert (stand.synced, stand.rejected, stand.replaced) == (2, 0, 0)
    assert [result["task_id"] for result in gateway.results()] == ["again-1"]


def test_two_open_tasks_of_one_parcel_do_not_replace_each_other(
    lpm: LocalPersistenceManager, gateway: Gateway
) -> None:
    """The second is refused here, and the Gateway hears why: else one of two pages would be gone
    without a word."""
    gateway.import_tasks(
        [rows(1)[0] | {"task_id": f"t-{n}", "url": f"http://a.example/{n}"} for n in range(2)]
    )
    collect(lpm, gateway, 5, ["beacon"])
    work(lpm)

    deliver(lpm, gateway)

    assert [result["task_id"] for result in gateway.results()] == ["t-0"]
    refused = next(task for task in gateway.tasks() if task["task_id"] == "t-1")
    assert (refused["state"], refused["error_type"]) == ("failed", "result_rejected")
    assert "it would replace the result of task t-0" in refused["reason"]


def test_a_first_delivery_that_is_counted_as_updated_is_an_alarm(
    folder: Folder, gateway: Gateway
) -> None:
    """It is no success: somebody else's result was under that key. The task is named, and sent
    again it is no alarm."""
    prefix = "/internal/parcel" if gateway.like == "python" else "/internal"
    theirs = {
        "task_id": "theirs",
        "data": {},
        "parcel_id": "7",
        "platform": "beacon",
        "scraped_at": "2026-01-30",
    }
    Caller(gateway, "other").call("POST", f"{prefix}/results", json.dumps([theirs]).encode())
    folder.env |= env(gateway)
    lpm = folder.lpm()
    crawled(
        lpm,
        {"url": "http://a.example/7", "parcel_id": "7", "platform": "beacon"},
        {"url": "http://a.example/8"},
    )
    ours = {task_id for (task_id,) in lpm.store.db.all("SELECT task_id FROM tasks")}
    # Their pages are there already: else one result may go before the other's page has come.
    lpm.store.durable.execute("UPDATE outbox SET raw_sent_at = created_at")

    pushed = folder.crawler("sync", "push", "--json")
    shown = json.loads(folder.crawler("sync", "rejected", "--json").stdout)
    status = folder.crawler("status").stdout
    lpm.store.durable.execute("UPDATE outbox SET state = 'ready', batch = NULL, replaced = 0")
    again = folder.crawler("sync", "push", "--json")
    lpm.close()

    # The answer counts one of two, and does not say which: both are named.
    assert pushed.returncode == 1
    assert {"results": 0, "replaced": 2, "rejected": 0}.items() <= json.loads(pushed.stdout).items()
    assert {item["task_id"] for item in shown} == ours
    assert (
        f"Gateway {gateway.url}: 2 may have replaced other results (python -m crawler sync status)"
        in status
    )
    assert all("counted 1 of 2 results as updated" in item["problem"] for item in shown)
    assert again.returncode == 0
    assert {"results": 2, "replaced": 0}.items() <= json.loads(again.stdout).items()


@pytest.mark.parametrize(
    ("field", "most"), [("parcel_id", 255), ("platform", 64), ("state", 8), ("county", 255)]
)
def test_values_that_do_not_fit_are_told_before_they_are_sent(
    field: str, most: int, lpm: LocalPersistenceManager, gateway: Gateway
) -> None:
    """Neither the result nor its page goes out; its neighbours are delivered; a task of the
    Gateway's is reported."""
    exact, long = ({"state": "FL"} | {field: "x" * size} for size in (most, most + 1))
    gateway.import_tasks([rows(3)[0], rows(3)[1] | exact, rows(3)[2] | long])
    collect(
        lpm,
        gateway,
        30,
        ["beacon", *({exact["platform"], long["platform"]} if field == "platform" else ())],
    )
    work(lpm)

    deliver(lpm, gateway)

    assert {result["task_id"] for result in gateway.results()} == {"t-0", "t-1"}
    assert gateway.counts()["raw_files"] == 2
    [item] = lpm.outbox.rejected()
    assert item["problem"].startswith(
        f"its {field} has {most + 1} characters, and a Gateway takes {most}: 'xxx"
    )
    refused = next(task for task in gateway.tasks() if task["task_id"] == "t-2")
    assert (refused["state"], refused["error_type"]) == ("failed", "result_rejected")


def test_tasks_of_both_types_go_by_their_own_paths(
    lpm: LocalPersistenceManager, tmp_path: Path
) -> None:
    """In the dialect `typed` a parcel and a party of one name are two rows, and times name no
    zone."""
    with Gateway(tmp_path / "typed", like="python") as gateway:
        types = ["parcel", "party", "party"]
        gateway.import_tasks(
            [row | {"type": type_} for row, type_ in zip(rows(3), types, strict=True)]
        )
        gateway.import_tasks([rows(1)[0] | {"task_id": "same", "type": "party"}])
        collect(lpm, gateway, 10, ["beacon"])
        for task in lpm.get_next_pending("owner", 10):
            if task.url.endswith("/2"):
                fail(lpm, task)
            else:
                lpm.save_result(done(task))

        deliver(lpm, gateway)

        assert {result["task_id"] for result in gateway.results()} == {"t-0", "t-1", "same"}
        assert all(not result["scraped_at"].endswith("Z") for result in gateway.results())
        assert {task["task_id"]: task["state"] for task in gateway.tasks()}["t-2"] == "failed"
        assert lpm.outbox.delivery(None).rejected == 0


def test_the_dialect_wants_platforms(lpm: LocalPersistenceManager, tmp_path: Path) -> None:
    """Without any the Gateway would refuse every question: that is said at the start."""
    told = load({"CRAWLER_GATEWAY_DIALECT": "typed", "CRAWLER_DATA_DIR": str(lpm.folder),
                 "GATEWAY_URL": "http://[::1]", "GATEWAY_TOKEN": "x",
                 "CRAWLER_CONFIG_DIR": str(tmp_path)})  # fmt: skip

    with pytest.raises(UsageError, match="name them with --platform"):
        with_client(told, lambda client: _collector(lpm, told, client))
    with pytest.raises(ConfigError, match="must be one of plain, typed"):
        load({"CRAWLER_GATEWAY_DIALECT": "python"})


async def _collector(
    lpm: LocalPersistenceManager, told: Settings, client: GatewayClient
) -> Collector:
    return Collector(told, agent.open_job(lpm), sites.load(told.config_dir), client)


@pytest.mark.parametrize(
    ("like", "path", "said"),
    [
        ("go", "/internal/work?capacity=0", b"query.capacity: "),
        (
            "python",
            "/internal/parcel/work?capacity=1",
            b'{"detail":"query.platforms: Field required"}',
        ),
    ],
)
def test_refusals_come_in_their_own_words(
    like: str, path: str, said: bytes, tmp_path: Path
) -> None:
    """As plain text or as `detail`, and a 401 without a request_id."""
    with Gateway(tmp_path, like=like) as gateway:
        worker = Caller(gateway)
        refused, denied = worker.call("GET", path), worker.call("GET", path, X_Worker_Token=None)

    assert (refused.status, refused.body.startswith(said)) == (422, True)
    assert (denied.status, b"request_id" in denied.body) == (401, False)


@pytest.mark.parametrize(
    ("like", "counts", "stored"), [("go", (2, 1), ["1", "3"]), ("python", (1, 2), [])]
)
def test_a_result_that_does_not_fit_costs_its_row_or_its_request(
    like: str, counts: tuple[int, int], stored: list[str], tmp_path: Path
) -> None:
    """The one in Python counts as inserted what it then undoes: such counts confirm nothing."""
    sent = [
        {"task_id": f"t-{n}", "parcel_id": f"{n}", "data": {}, "scraped_at": "2026-01-30"}
        for n in range(1, 4)
    ]
    sent[1]["state"] = "California"
    with Gateway(tmp_path, like=like) as gateway:
        path = "/internal/parcel/results" if like == "python" else "/internal/results"
        answer = Caller(gateway).call("POST", path, json.dumps(sent).encode()).json
        found = [result["parcel_id"] for result in gateway.results()]

    assert (answer["inserted"], answer["failed"]) == counts
    assert found == stored
