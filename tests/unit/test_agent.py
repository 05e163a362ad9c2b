"""Heartbeat, collector and agent against a Gateway that a test can script."""

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from crawler import sites
from crawler.config import Settings, load
from crawler.errors import GatewayDenied, GatewayError, StackIsUp, StoreError
from crawler.gateway import agent
from crawler.gateway.agent import Heartbeat
from crawler.gateway.client import MAX_BACKOFF_S, Backoff, GatewayClient
from crawler.gateway.collector import SECRETS_DELAY_S, Collector
from crawler.lpm import LocalPersistenceManager
from tests.support.exchange import assign, claim, fail, given
from tests.support.scripted import ScriptedGateway
from tests.support.stack import wait_for
from tests.support.tasks import done


@pytest.fixture
def gateway() -> Iterator[ScriptedGateway]:
    """A Gateway that a test can script."""
    with ScriptedGateway() as scripted:
        yield scripted


@pytest.fixture
def lpm(tmp_path: Path) -> LocalPersistenceManager:
    """A store."""
    return LocalPersistenceManager(tmp_path / "data")


def settings(lpm: LocalPersistenceManager, gateway: ScriptedGateway, **env: str) -> Settings:
    """A worker's settings."""
    return load(gateway.env | {"CRAWLER_DATA_DIR": str(lpm.folder), "CRAWLER_MIN_FREE": "0"} | env)


def task(n: int) -> dict[str, Any]:
    """A task as it is handed out."""
    return {"task_id": f"t-{n}", "target": {"url": f"http://a.example/{n}"}}


def with_client(told: Settings, do: Callable[[GatewayClient], Awaitable[Any]]) -> Any:
    """Do something with a client."""

    async def run() -> Any:
        async with GatewayClient(told, "worker") as client:
            return await do(client)

    return asyncio.run(run())


def collector(
    lpm: LocalPersistenceManager, told: Settings, client: GatewayClient, **options: Any
) -> Collector:
    """A collector of this store."""
    return Collector(told, agent.open_job(lpm), sites.load(told.config_dir), client, **options)


def beat(lpm: LocalPersistenceManager, gateway: ScriptedGateway) -> None:
    """One heartbeat."""
    told = settings(lpm, gateway)

    async def once(client: GatewayClient) -> None:
        heart = Heartbeat(told, agent.open_job(lpm), client, ["beacon"])
        await heart.beat()
        heart.close()

    with_client(told, once)


def test_a_heartbeat_has_the_counts_of_the_contract(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """Of the Gateway's tasks, and of nobody else's."""
    assign(lpm, *(given(f"t-{n}", f"http://a.example/{n}") for n in range(5)))
    tasks = claim(lpm, 3)
    lpm.save_result(done(tasks[0]))
    fail(lpm, tasks[1])

    beat(lpm, gateway)

    [call] = gateway.asked("/internal/heartbeat")
    said = call.json
    assert 0 <= said.pop("cpu_percent") <= 100
    assert 0 < said.pop("memory_percent") <= 100
    assert said == {
        "active_tasks": 1,
        "completed_last_minute": 1,
        "failed_last_minute": 1,
        "platforms": ["beacon"],
        "queue": {"pending": 2, "processing": 1, "completed": 1, "failed": 1, "unsynced": 2},
    }


def test_pause_puts_the_gateways_tasks_aside_and_resume_goes_on(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """Nothing of it is claimed and nothing is asked for meanwhile; unknown commands change
    nothing."""
    assign(lpm, given("t-1"))
    told = settings(lpm, gateway)

    def free() -> int:
        async def ask(client: GatewayClient) -> int:
            return collector(lpm, told, client).room()

        found: int = with_client(told, ask)
        return found

    gateway.commands = ["dance", "pause", "pause"]
    beat(lpm, gateway)
    assert (claim(lpm), free()) == ([], 0)

    gateway.commands = ["resume"]
    beat(lpm, gateway)
    assert free() == 199
    assert len(claim(lpm)) == 1


def test_drain_takes_no_more_and_ends_when_all_is_delivered(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """What was paused before is done too."""
    assign(lpm, given("t-1"))
    gateway.commands = ["pause", "drain"]
    beat(lpm, gateway)
    ended: list[bool] = []
    told, stop = settings(lpm, gateway), threading.Event()
    running = threading.Thread(target=lambda: ended.append(agent.run(told, (), 10, stop)))
    running.start()

    [mine] = wait_for(lambda: claim(lpm), 10, "the task to go on")
    assert running.is_alive()
    lpm.save_result(done(mine))
    running.join(120)

    assert ended == [True]
    assert set(gateway.results) == {"t-1"}
    assert gateway.asked("/internal/work") == []


def test_only_one_agent_speaks_for_a_store(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """A second one is refused, in words."""
    assert lpm.store.durable
    with agent.only_one(lpm), pytest.raises(StackIsUp, match="already works with the Gateway"):
        agent.run(settings(lpm, gateway), (), 10, threading.Event())


def test_the_collector_asks_for_what_there_is_room_for(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """The capacity less what is open, a hundred at most, with a key, and its platforms as often as
    there is room."""
    told = settings(lpm, gateway)
    gateway.work = [task(n) for n in range(7)]

    async def ask(client: GatewayClient) -> list[int]:
        mine = collector(lpm, told, client, platforms=["a b", "c"], capacity=150)
        free = [mine.room()]
        await mine.ask(free[0])
        free.append(mine.room())
        return free

    assert with_client(told, ask) == [150, 143]
    [call] = gateway.asked("/internal/work")
    assert call.path == "/internal/work?capacity=100" + 50 * "&platforms=a%20b&platforms=c"
    assert call.headers["idempotency-key"]
    assert lpm.gateway.open_count() == 7


def test_a_question_is_repeated_until_its_answer_is_stored(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """Under the same key, whatever was between: a Gateway that remembers it gives the same tasks
    again."""
    told = settings(lpm, gateway)
    gateway.rules = [lambda call: (200, b"<html>") if len(gateway.calls) < 3 else None]
    gateway.work = [task(1)]

    async def ask(client: GatewayClient) -> None:
        await collector(lpm, told, client).ask(5)

    for _ in range(2):
        with pytest.raises(GatewayError):
            with_client(told, ask)
    with_client(told, ask)
    with_client(told, ask)

    *same, other = [call.headers["idempotency-key"] for call in gateway.asked("/internal/work")]
    assert len(set(same)) == 1
    assert other not in same


@pytest.mark.parametrize(
    ("answer", "wait_s"),
    [
        ({"tasks": [], "retry_after": 30}, 30),
        ({"tasks": [task(1)], "retry_after": 0}, 0.2),
        ({"tasks": [task(1)]}, 0.2),
        ({"tasks": []}, 5),
        ({"tasks": [], "retry_after": 1e99}, 600),
        ({"tasks": [], "retry_after": "7"}, 7),
        ({"tasks": [], "retry_after": -3}, 5),
        ({"tasks": [], "retry_after": None}, 5),
    ],
)
def test_the_gateway_says_when_to_ask_again(
    answer: dict[str, Any], wait_s: float, lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """Within reason; and a Gateway that says nothing is not asked without a pause."""
    told = settings(lpm, gateway)
    gateway.rules = [lambda call: (200, answer)]

    async def ask(client: GatewayClient) -> float:
        return await collector(lpm, told, client).ask(5)

    assert with_client(told, ask) == wait_s


def test_no_work_is_asked_for_while_the_disk_is_full(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """Full means: with less than CRAWLER_MIN_FREE."""
    told = settings(lpm, gateway, CRAWLER_MIN_FREE=str(10**11 * 9))

    async def ask(client: GatewayClient) -> int:
        return collector(lpm, told, client).room()

    assert with_client(told, ask) == 0


def test_trouble_is_said_once_and_waited_for_longer_and_longer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Up to half a minute, or as long as the Gateway asks; then its return is said once."""
    backoff = Backoff("sync", jitter=lambda: 1.0)

    waits = [backoff.failed(GatewayError("no answer")) for _ in range(9)]
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, MAX_BACKOFF_S]
    assert backoff.failed(GatewayError("busy", 120.0)) == 120
    assert backoff.failed(StoreError("disk full")) == MAX_BACKOFF_S
    backoff.succeeded()
    backoff.succeeded()
    assert backoff.failed(GatewayDenied("who are you?")) == 0.5

    assert [record.message for record in caplog.records] == [
        "sync waits: no answer",
        "sync goes on: the Gateway answers again",
        "sync waits: who are you?",
    ]


def test_two_that_failed_at_the_same_moment_do_not_come_back_together() -> None:
    """The waits are spread."""
    waits = {
        Backoff("sync", jitter=random.Random(n).random).failed(GatewayError("x")) for n in range(10)
    }
    assert len(waits) == 10
    assert all(0.25 <= wait <= 0.5 for wait in waits)


def test_a_service_that_fails_begins_anew(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """A defect in one of them ends neither it for good nor the others."""
    begun: list[float] = []

    class Broken:
        async def run(self) -> None:
            begun.append(time.monotonic())
            raise RuntimeError("a defect")

        def close(self) -> None:
            pass

    services = agent.Services(restart_s=0.01)
    services.start(
        "broken", lambda: GatewayClient(settings(lpm, gateway), "worker"), lambda client: Broken()
    )
    wait_for(lambda: len(begun) > 3, 10, "several attempts")
    services.stop()


def test_a_service_that_begins_anew_can_still_find_its_gateway(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """By its name too: what was shut with the old client is not used again."""
    named = settings(lpm, gateway, GATEWAY_URL=gateway.url.replace("127.0.0.1", "localhost"))
    beats: list[int] = []

    class Once:
        def __init__(self, client: GatewayClient) -> None:
            self._client = client

        async def run(self) -> None:
            await self._client.heartbeat(b"{}", "key")
            await self._client._http._egress._lookup("localhost")
            beats.append(len(beats))
            raise RuntimeError("a defect")

        def close(self) -> None:
            pass

    services = agent.Services(restart_s=0.01)
    services.start("once", lambda: GatewayClient(named, "worker"), Once)
    wait_for(lambda: len(beats) > 3, 10, "several lives")
    services.stop()


def test_a_pause_outlasts_a_restart(lpm: LocalPersistenceManager, gateway: ScriptedGateway) -> None:
    """Also where nothing was open when it was said: until the Gateway says otherwise, nothing is
    asked for."""
    gateway.commands = ["pause"]
    beat(lpm, gateway)
    lpm.imports.close(agent.open_job(lpm), time.time())
    lpm.jobs.finalise(time.time())

    stop = threading.Event()
    running = threading.Thread(target=agent.run, args=(settings(lpm, gateway), (), 10, stop))
    running.start()
    wait_for(lambda: len(gateway.asked("/internal/heartbeat")) > 1, 10, "a beat")
    stop.set()
    running.join(120)

    assert gateway.asked("/internal/work") == []
    assert [job.name for job in lpm.jobs.all()] == ["gateway"]


def test_a_command_whose_answer_was_lost_is_asked_for_again(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """Under the same key, by the next process too; once it was obeyed, under another."""
    gateway.rules = [lambda call: (502, {})]
    for _ in range(2):
        with pytest.raises(GatewayError):
            beat(lpm, gateway)
    gateway.rules = []
    beat(lpm, gateway)
    beat(lpm, gateway)

    *same, other = [
        call.headers["idempotency-key"] for call in gateway.asked("/internal/heartbeat")
    ]
    assert len(set(same)) == 1
    assert other not in same


def test_what_an_operator_has_held_is_not_the_gateways_to_release(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """Neither a pause nor a cancellation."""
    for how in ("paused", "cancelled"):
        lpm.jobs.hold(agent.open_job(lpm), how, time.time())
        gateway.commands = ["resume", "drain"]
        beat(lpm, gateway)
        assert lpm.jobs.all()[0].hold == how


@pytest.mark.parametrize("how", ["stop", "drain"])
def test_an_answer_on_its_way_is_stored_before_the_end(
    how: str, lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """A Gateway does not hand out tasks again: those of a question that was asked are ours,
    whatever comes between."""
    gateway.work = [task(1)]
    asked = threading.Event()

    def slowly(call: Any) -> None:
        if "/work" in call.path:
            asked.set()
            time.sleep(1)  # the answer takes its time

    gateway.waits = slowly
    stop = threading.Event()
    running = threading.Thread(target=agent.run, args=(settings(lpm, gateway), (), 10, stop))
    running.start()
    assert asked.wait(120)
    if how == "drain":
        lpm.gateway.set_note("order", "drain")
    else:
        stop.set()
    wait_for(lambda: lpm.gateway.open_count() == 1, 10, "the task")
    stop.set()
    running.join(120)

    assert not running.is_alive()


def test_new_secrets_are_there_before_the_task_is_due(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """The task is stored at once, and due when every worker has seen the user name and password of
    its URL."""
    told = settings(lpm, gateway)
    gateway.work = [{"task_id": "t-1", "target": {"url": "http://me:pass@a.example/1"}}]

    async def ask(client: GatewayClient) -> None:
        await collector(lpm, told, client).ask(5)

    began = time.time()
    with_client(told, ask)
    ended = time.time()

    assert claim(lpm) == []
    [(not_before, url)] = lpm.store.db.all("SELECT not_before, url FROM tasks")
    assert began <= not_before - SECRETS_DELAY_S <= ended
    assert url == "http://a.example/1"
