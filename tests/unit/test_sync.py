"""Sync: pages first, each result once, nothing marked that the Gateway has not confirmed."""

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from crawler.config import Settings, load
from crawler.db.gateway import Delivery
from crawler.errors import GatewayError, StoreError
from crawler.gateway import agent
from crawler.gateway.client import GatewayClient
from crawler.gateway.sync import MAX_TRIES, PAGES_AT_ONCE, Sync
from crawler.lpm import LocalPersistenceManager
from tests.support.exchange import assign, claim, fail, given
from tests.support.older import as_of_schema
from tests.support.scripted import TOKEN, Answer, Call, ScriptedGateway
from tests.support.stack import PATIENCE_S
from tests.support.tasks import collect, done, page


@pytest.fixture
def gateway() -> Iterator[ScriptedGateway]:
    """A Gateway that a test can script."""
    with ScriptedGateway() as scripted:
        yield scripted


@pytest.fixture
def lpm(tmp_path: Path) -> LocalPersistenceManager:
    """A store."""
    return LocalPersistenceManager(tmp_path)


def settings(lpm: LocalPersistenceManager, gateway: ScriptedGateway) -> Settings:
    """A worker's settings."""
    return load(gateway.env | {"CRAWLER_DATA_DIR": str(lpm.folder)})


def ready(lpm: LocalPersistenceManager, count: int, **fields: Any) -> list[str]:
    """So many results for the Gateway; their ids."""
    ids = [f"t-{n}" for n in range(count)]
    assign(lpm, *(given(id_, f"http://a.example/{id_}", **fields) for id_ in ids))
    tasks = sorted(claim(lpm, count), key=lambda task: task.id)
    lpm.save_result(
        *(done(task, page=page(task.url, f"<p>{task.url}</p>".encode())) for task in tasks)
    )
    return ids


def rounds(lpm: LocalPersistenceManager, gateway: ScriptedGateway) -> int:
    """Send one thing after the other until nothing is due; raises the first error. Says how many
    there were."""

    async def send() -> int:
        async with GatewayClient(settings(lpm, gateway), "worker") as client:
            sync, count = Sync(settings(lpm, gateway), client), -1
            with closing(sync):
                sent = 0
                while sent != count:
                    count = sent
                    for lane in sync.lanes:
                        while items := lane.begin(time.monotonic()):
                            for item in items:
                                await lane.send(item)
                                lane.end(item, time.monotonic(), failed=False)
                            sent += len(items)
                return sent

    return asyncio.run(send())


def running(
    lpm: LocalPersistenceManager,
    gateway: ScriptedGateway,
    until: Callable[[], bool],
    limit_s: float,
) -> None:
    """Let it run as an agent does until something is so."""

    async def send() -> None:
        async with GatewayClient(settings(lpm, gateway), "worker") as client:
            sync = Sync(settings(lpm, gateway), client)
            with closing(sync):
                going = asyncio.create_task(sync.run())
                end = time.monotonic() + max(limit_s, PATIENCE_S)
                while not until() and not going.done():
                    assert time.monotonic() < end, "it took too long"
                    await asyncio.sleep(0.02)
                going.cancel()
                await asyncio.wait([going])

    asyncio.run(send())


def stand(lpm: LocalPersistenceManager) -> Delivery:
    """How far the exchange has come."""
    return lpm.outbox.delivery(None)


def refusing(gateway: ScriptedGateway, *ids: str, answer: Answer | None = None) -> Any:
    """A rule by which results with these ids are not stored; the others of the same request are."""

    def rule(call: Call) -> Answer | None:
        if "/results" not in call.path:
            return None
        items = call.json
        bad = [item for item in items if item["task_id"] in ids]
        if not bad:
            return None
        if answer:
            return answer
        good = [item for item in items if item["task_id"] not in ids]
        _, counts = gateway.store(call._replace(body=json.dumps(good).encode()))[:2]
        return 200, counts | {"failed": len(bad), "errors": ["a value is too long"]}

    return rule


def test_pages_go_first_and_results_in_batches(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """In the order in which they were made, with nothing but the contract's fields, each under the
    Gateway's id."""
    ids = ready(lpm, 250)

    rounds(lpm, gateway)

    sent = [item["task_id"] for call in gateway.asked("/internal/results") for item in call.json]
    assert sent == ids
    assert [len(call.json) for call in gateway.asked("/internal/results")] == [100, 100, 50]
    assert all(
        gateway.order.index(f"raw {id_}") < gateway.order.index(f"result {id_}") for id_ in ids
    )
    first = gateway.results["t-0"]
    assert list(first) == ["task_id", "parcel_id", "platform", "state", "county", "data",
                           "scraped_at", "parse_duration_ms", "raw_html_hash"]  # fmt: skip
    assert (stand(lpm).synced, stand(lpm).unsent) == (250, 0)
    assert list(lpm.pending.iterdir()) == []


def test_a_page_has_a_name_that_no_other_worker_gives(
    tmp_path: Path, lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """Two workers with the same task deliver two files; what is in them has the hash that the
    results say."""
    other = LocalPersistenceManager(tmp_path / "other")
    for store in (lpm, other):
        ready(store, 3)
        rounds(store, gateway)

    assert len(gateway.raw) == 6
    assert {sha256(content).hexdigest() for content in gateway.raw.values()} == {
        result["raw_html_hash"] for result in gateway.results.values()
    }
    assert all(len(name) <= 200 and name.isascii() and "/" not in name for name in gateway.raw)


@pytest.mark.parametrize(
    "trouble",
    [
        (500, {}), (503, b"", {"Retry-After": "1"}), (429, {}), (408, {}),
        (200, b"<html>busy</html>"), (200, b""), (200, {"inserted": "many"}), (200, [1]),
        (401, {"error": {"message": "who?"}}), (301, b"", {"Location": "/x"}),
    ],
)  # fmt: skip
def test_nothing_is_synced_or_rejected_by_an_answer_that_says_neither(
    trouble: Answer, lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """It is sent again, byte for byte and under the same key, until it is confirmed."""
    ready(lpm, 3)
    gateway.rules = [lambda call: trouble if "/results" in call.path else None]
    for _ in range(2):
        with pytest.raises(GatewayError, match="/internal/results"):
            rounds(lpm, gateway)
    assert (stand(lpm).ready, stand(lpm).synced, stand(lpm).rejected) == (3, 0, 0)
    ready_again = {"t-9"}
    assign(lpm, given("t-9", "http://a.example/9"))
    lpm.save_result(*(done(task) for task in claim(lpm)))

    gateway.rules = []
    rounds(lpm, gateway)

    first, second, third, fourth = gateway.asked("/internal/results")
    assert first.body == second.body == third.body
    assert len({call.headers["idempotency-key"] for call in (first, second, third)}) == 1
    assert {item["task_id"] for item in fourth.json} == ready_again
    assert stand(lpm).synced == 4


def test_a_partial_failure_is_taken_apart(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """Those that were stored are synced, whatever the errors say; the others are offered some times
    more, then kept."""
    ready(lpm, 100)
    gateway.rules = [refusing(gateway, "t-17", "t-18", "t-99")]

    _until_settled(lpm, gateway)

    assert (stand(lpm).synced, stand(lpm).rejected, stand(lpm).ready) == (97, 3, 0)
    found = lpm.outbox.rejected()
    assert [(item["task_id"], item["problem"], item["tries"]) for item in found] == [
        (id_, "a value is too long", MAX_TRIES) for id_ in ("t-17", "t-18", "t-99")
    ]
    assert set(gateway.results) == {f"t-{n}" for n in range(100)} - {"t-17", "t-18", "t-99"}
    assert (lpm.pending / f"{found[0]['own_id']}.json").exists()


def test_a_passing_failure_of_one_result_is_no_rejection(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """The same results again, a moment later, and all are stored."""
    ready(lpm, 10)
    gateway.rules = [refusing(gateway, "t-3")]
    rounds(lpm, gateway)
    assert (stand(lpm).synced, stand(lpm).ready) == (9, 1)

    gateway.rules = []
    _until_settled(lpm, gateway)

    assert (stand(lpm).synced, stand(lpm).rejected) == (10, 0)


def _until_settled(lpm: LocalPersistenceManager, gateway: ScriptedGateway) -> None:
    """As if all the waits were over."""
    while stand(lpm).unsent:
        lpm.store.durable.execute("UPDATE outbox SET not_before = 0")
        lpm.store.durable.execute("UPDATE reports SET not_before = 0")
        rounds(lpm, gateway)


@pytest.mark.parametrize(
    "counts",
    [
        {"inserted": 0, "updated": 0, "failed": 0},
        {"inserted": 1, "updated": 0, "failed": 0},
        {"inserted": 3, "updated": 3, "failed": 0},
        {"inserted": 3, "updated": 0, "failed": 1},
    ],
)
def test_counts_that_do_not_add_up_confirm_nothing(
    counts: dict[str, int], lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """Three were sent: only an answer that speaks of three stored ones is one."""
    ready(lpm, 3)
    gateway.rules = [
        lambda call: (200, counts) if "/results" in call.path and len(call.json) == 3 else None
    ]

    rounds(lpm, gateway)

    assert stand(lpm).synced == 3
    assert [len(call.json) for call in gateway.asked("/internal/results")] == [3, 1, 2]


@pytest.mark.parametrize("status", [400, 404, 409, 410, 413, 422])
def test_what_will_never_be_taken_is_rejected_with_its_reason(
    status: int, lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """At once, alone, and visibly; its neighbours in the request are delivered."""
    ready(lpm, 8)
    gateway.rules = [
        refusing(
            gateway, "t-5", answer=(status, {"error": {"code": "NO", "message": "not this one"}})
        )
    ]

    rounds(lpm, gateway)

    assert (stand(lpm).synced, stand(lpm).rejected) == (7, 1)
    [item] = lpm.outbox.rejected()
    assert (item["task_id"], item["code"]) == ("t-5", status)
    assert "not this one" in item["problem"]


def test_a_result_waits_for_its_page(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """A page that the Gateway could not keep is offered again, and the result only behind it."""
    ready(lpm, 3)
    turns = iter([True, True, False])
    gateway.rules = [
        lambda call: (
            (200, {"status": "error", "message": "disk full"})
            if "/raw-files" in call.path and b'"t-1"' in call.body and next(turns)
            else None
        )
    ]

    rounds(lpm, gateway)
    assert (stand(lpm).synced, stand(lpm).ready) == (2, 1)
    _until_settled(lpm, gateway)

    assert stand(lpm).synced == 3
    assert gateway.order.index("raw t-1") < gateway.order.index("result t-1")


def test_a_page_that_is_too_large_or_gone_does_not_hold_up_its_result(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """The result goes without it, and that is told."""
    ready(lpm, 3)
    gateway.rules = [
        lambda call: (413, {}) if "/raw-files" in call.path and b'"t-1"' in call.body else None,
    ]
    for segment in lpm.raw.glob("*.warc.gz"):
        data = bytearray(segment.read_bytes())
        place = lpm.store.db.all("SELECT raw_offset FROM results WHERE task = 3")[0][0]
        data[place : place + 20] = bytes(20)
        segment.write_bytes(data)

    rounds(lpm, gateway)

    assert (stand(lpm).synced, stand(lpm).without_page) == (3, 2)
    assert len(gateway.raw) == 1


def test_ends_without_a_result_are_reported_once(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """With reason, type and attempts; ids of any kind arrive as they are."""
    odd = "a/b?c=#%2e/..;ü"
    assign(lpm, given(odd), given("t-2", "http://a.example/2"))
    for task in claim(lpm):
        fail(lpm, task)
    gateway.rules = [lambda call: (500, {}) if "t-2" in call.path else None]

    with pytest.raises(GatewayError, match="500"):
        rounds(lpm, gateway)
    gateway.rules = []
    rounds(lpm, gateway)

    said = {"reason": "not there", "error_type": "http_404", "attempts": 1}
    assert gateway.failed == {odd: said, "t-2": said}
    assert stand(lpm).reports_synced == 2


def test_a_report_that_is_refused_is_kept(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """The Gateway knows better: the task is another's, or done."""
    assign(lpm, given("t-1"))
    fail(lpm, claim(lpm)[0])
    gateway.rules = [
        lambda call: (409, {"error": {"message": "it is done"}}) if "/fail" in call.path else None
    ]

    rounds(lpm, gateway)

    [item] = lpm.outbox.rejected()
    assert (item["kind"], item["task_id"], item["code"]) == ("report", "t-1", 409)
    assert "it is done" in item["problem"]


def test_late_results_are_delivered_and_marked(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """On the wire by a header, because the contract's fields are fixed; here in the outbox."""
    ready(lpm, 2, deadline=time.time() + 3600)
    assign(lpm, given("on-time", "http://a.example/x"))
    lpm.save_result(*(done(task) for task in claim(lpm)))
    lpm.store.durable.execute(
        "UPDATE tasks SET deadline = deadline - 7200 WHERE external_id <> 'on-time'"
    )

    rounds(lpm, gateway)

    late, rest = gateway.asked("/internal/results")
    assert [item["task_id"] for item in late.json] == ["t-0", "t-1"]
    assert late.headers["x-results-late"] == "true"
    assert "x-results-late" not in rest.headers
    assert stand(lpm).late == 2


def test_held_results_stay_and_go_only_when_let_go(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """No round of a running agent ever touches them."""
    collect(lpm, "job", 5)
    assert rounds(lpm, gateway) == 0
    assert gateway.calls == []

    lpm.outbox.release()
    rounds(lpm, gateway)

    assert len(gateway.results) == 5


def test_the_token_is_in_no_row_and_on_every_call(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """Neither in the store nor in a body."""
    ready(lpm, 2)
    rounds(lpm, gateway)

    assert all(call.headers["x-worker-token"] == TOKEN for call in gateway.calls)
    assert all(TOKEN.encode() not in call.body for call in gateway.calls)
    lpm.bound_wal(0)
    assert all(TOKEN.encode() not in path.read_bytes() for path in lpm.folder.glob("lpm.db*"))
    assert json.dumps(gateway.results).count(TOKEN) == 0


def holds(lpm: LocalPersistenceManager, gateway: ScriptedGateway, count: int) -> Callable[[], bool]:
    """Whether the Gateway has so many results, and the store says so."""
    return lambda: len(gateway.results) >= count and stand(lpm).synced >= count


@pytest.mark.parametrize("status", [500, 403])
def test_a_result_that_the_gateway_cannot_bear_holds_up_no_other(
    status: int, lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """Every request with it fails, as if the Gateway were in trouble: it is found out, and the
    others are delivered."""
    ready(lpm, 130)
    gateway.rules = [
        lambda call: (status, {}) if "/results" in call.path and b'"t-7"' in call.body else None
    ]

    running(lpm, gateway, holds(lpm, gateway, 129), 60)

    assert (stand(lpm).ready, stand(lpm).rejected) == (1, 0)
    gateway.rules = []
    rounds(lpm, gateway)
    assert stand(lpm).synced == 130


def test_pages_that_the_gateway_cannot_keep_hold_up_no_others(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """The first thirty fail again and again; what came behind them is delivered."""
    ready(lpm, 50)
    lpm.gateway.set_note("heard", str(time.time()))  # by its heart one knows that it is there
    bad = [f'"t-{n}"'.encode() for n in range(30)]
    gateway.rules = [
        lambda call: (
            (500, {})
            if "/raw-files" in call.path and any(name in call.body for name in bad)
            else None
        )
    ]

    running(lpm, gateway, holds(lpm, gateway, 20), 60)

    assert stand(lpm).ready == 30


def test_a_page_that_hangs_delays_only_its_own_result(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """Its connection is open for as long as it likes; results, other pages and reports pass it."""
    ready(lpm, 20)
    assign(lpm, given("bad", "http://a.example/bad"))
    fail(lpm, claim(lpm)[0])
    gate = threading.Event()
    gateway.waits = lambda call: (
        gate.wait(120) if b'"t-0"' in call.body and "/raw-files" in call.path else None
    )
    try:
        running(lpm, gateway, lambda: len(gateway.results) == 19 and "bad" in gateway.failed, 20)
    finally:
        gate.set()


def test_a_gateway_that_asks_to_be_left_alone_is(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """429 to one call keeps back all the others that are not on their way already."""
    ready(lpm, 100)
    gateway.rules = [lambda call: (429, {}, {"Retry-After": "600"})]

    began = time.monotonic()
    running(lpm, gateway, lambda: bool(gateway.calls) and time.monotonic() - began > 2, 10)

    assert 1 <= len(gateway.calls) <= PAGES_AT_ONCE + 1


def test_a_disk_that_fails_for_a_moment_costs_no_page(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """The folder of pages is away, and comes back: the result has waited for its page."""
    ready(lpm, 1)
    lpm.raw.rename(lpm.folder / "away")
    with pytest.raises(StoreError):
        rounds(lpm, gateway)
    (lpm.folder / "away").rename(lpm.raw)

    rounds(lpm, gateway)

    assert (len(gateway.raw), stand(lpm).synced, stand(lpm).without_page) == (1, 1, 0)


def test_a_pruned_page_is_counted_as_missing(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """A result of long ago goes without it, and that is told."""
    collect(lpm, "job", 1)
    lpm.store.durable.execute(
        "UPDATE results SET raw_segment = NULL, raw_offset = NULL, raw_length = NULL"
    )
    lpm.outbox.release()

    rounds(lpm, gateway)

    assert (stand(lpm).synced, stand(lpm).without_page) == (1, 1)


@pytest.mark.parametrize("way", ["/results", "/raw-files"])
def test_the_gateway_hears_of_a_result_that_it_has_rejected(
    way: str, lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """Else its list of what we hold would have the task for ever; standalone results have no such
    task."""
    ready(lpm, 2)
    collect(lpm, "job", 1)
    lpm.outbox.release()
    good = [b'"task_id":"t-0"']

    def rule(call: Call) -> Answer | None:
        found = re.findall(rb'"task_id":"[^"]*"', call.body)
        return (422, b"not this one") if way in call.path and found != good else None

    gateway.rules = [rule]

    rounds(lpm, gateway)

    assert (stand(lpm).synced, stand(lpm).rejected, stand(lpm).unsent) == (1, 2, 0)
    assert list(gateway.failed) == ["t-1"]
    assert gateway.failed["t-1"]["error_type"] == "result_rejected"
    assert "its result was rejected: " in gateway.failed["t-1"]["reason"]
    assert "not this one" in gateway.failed["t-1"]["reason"]


def test_a_rejected_result_that_is_sent_again_is_not_reported(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """Whether an operator or the Gateway wants it once more."""
    ready(lpm, 2)
    for parcel in lpm.outbox.pages(2, time.time()):
        lpm.outbox.refused(parcel, 422, "no", None)
    assert stand(lpm).reports_ready == 2

    lpm.outbox.retry(["t-0"])
    assign(lpm, given("t-1", "http://a.example/t-1"))
    rounds(lpm, gateway)

    assert (set(gateway.results), gateway.failed) == ({"t-0", "t-1"}, {})
    assert (stand(lpm).reports_synced, stand(lpm).rejected) == (0, 0)


def counting(gateway: ScriptedGateway, there: set[str]) -> Callable[[Call], Answer | None]:
    """A rule by which results are stored under their parcel, some of which are there."""

    def rule(call: Call) -> Answer | None:
        if "/results" not in call.path:
            return None
        gateway.store(call)
        parcels = [item["parcel_id"] for item in call.json]
        updated = sum(parcel in there or parcel in parcels[:n] for n, parcel in enumerate(parcels))
        there.update(parcels)
        return 200, {
            "inserted": len(parcels) - updated,
            "updated": updated,
            "failed": 0,
            "errors": None,
        }

    return rule


def of_parcels(lpm: LocalPersistenceManager, *numbers: int) -> None:
    """Results of these parcels for the Gateway."""
    assign(lpm, *(given(f"t-{n}", f"http://a.example/{n}", parcel_id=f"p-{n}") for n in numbers))
    lpm.save_result(*(done(task) for task in claim(lpm, len(numbers))))


def test_an_update_that_cannot_be_ours_is_an_alarm_with_the_task(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway, caplog: pytest.LogCaptureFixture
) -> None:
    """An answer that leaves it open which it was names all that it may be; those that follow go one
    by one at first."""
    gateway.rules = [counting(gateway, {"p-3", "p-100"})]
    of_parcels(lpm, *range(104))

    rounds(lpm, gateway)

    assert [len(call.json) for call in gateway.asked("/internal/results")] == [100, 1, 1, 2]
    found = {item["task_id"]: item["problem"] for item in lpm.outbox.replaced()}
    assert list(found) == [f"t-{n}" for n in range(101)]
    assert "counted 1 of 100 results as updated" in found["t-3"]
    assert "counted it as updated" in found["t-100"]
    assert "task t-100: " in caplog.text
    assert (stand(lpm).synced, stand(lpm).replaced) == (104, 101)


def test_updates_that_are_ours_are_no_alarm(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """A request whose answer was lost, one that is taken apart, a result that is wanted again, a
    parcel once more."""
    store, lost = (
        counting(gateway, set()),
        iter([(500, {}), (200, {"inserted": 0, "updated": 0, "failed": 4})]),
    )

    def rule(call: Call) -> Answer | None:
        return (store(call) and next(lost, None)) or store(call)

    gateway.rules = [lambda call: rule(call) if "/results" in call.path else None]
    of_parcels(lpm, *range(4))
    with pytest.raises(GatewayError, match="500"):
        rounds(lpm, gateway)
    rounds(lpm, gateway)
    of_parcels(lpm, *range(4))
    assign(lpm, given("once more", "http://a.example/0", parcel_id="p-0"))
    lpm.save_result(*(done(task) for task in claim(lpm)))
    rounds(lpm, gateway)

    assert [len(call.json) for call in gateway.asked("/internal/results")] == [4, 4, 2, 2, 5]
    assert (stand(lpm).synced, stand(lpm).rejected, stand(lpm).replaced) == (5, 0, 0)


def test_what_an_older_program_has_delivered_is_known(
    lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """Its parcels are no alarm when they come again; what the Gateway had refused is reported."""
    gateway.rules = [counting(gateway, set())]
    of_parcels(lpm, *range(3))
    rounds(lpm, gateway)
    lpm.store.durable.execute("UPDATE outbox SET state = 'rejected' WHERE task = 1")
    as_of_schema(lpm, 7)

    again = LocalPersistenceManager(lpm.folder)
    assign(
        again, *(given(f"again-{n}", f"http://a.example/{n}", parcel_id=f"p-{n}") for n in range(3))
    )
    again.save_result(*(done(task) for task in claim(again)))
    rounds(again, gateway)

    assert (stand(again).synced, stand(again).rejected, stand(again).replaced) == (5, 1, 0)
    assert list(gateway.failed) == ["t-0"]


@pytest.mark.parametrize(("moved", "expected"), [(False, 1), (True, 0)])
def test_another_gateway_has_none_of_our_keys(
    moved: bool, expected: int, lpm: LocalPersistenceManager, gateway: ScriptedGateway
) -> None:
    """What was delivered to one makes no update of another's ours; the same one at a new address
    has them all."""
    collect(lpm, "job", 1)
    lpm.outbox.release()
    agent.bind(lpm, load(gateway.env))
    rounds(lpm, gateway)
    lpm.store.durable.execute("UPDATE outbox SET state = 'held', batch = NULL")

    with ScriptedGateway() as other:
        other.rules = [counting(other, {"0"})]
        agent.bind(lpm, load(other.env), moved)
        lpm.outbox.release()
        rounds(lpm, other)

    assert stand(lpm).replaced == expected
