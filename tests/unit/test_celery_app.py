"""The Celery application: settings without which messages were lost or stalled, and what travels
through it."""

import json
import pickle
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection
from kombu.exceptions import ContentDisallowed

import crawler
from crawler import errors
from crawler.celery_app import CALLS, RedisBroker, app, backend_address
from crawler.config import Settings
from crawler.db.dispatch import Chunk
from crawler.lpm import LocalPersistenceManager
from crawler.maintainer import Maintainer
from crawler.redis_client import connect
from crawler.tasks import scrape_site_task, scrape_task, slice_task
from tests.support.tasks import done, new, open_job


def test_settings_that_prevent_losses() -> None:
    """Late acknowledgement, one message at a time, JSON only, urgent first, limits below the
    visibility timeout."""
    conf = app.conf
    assert conf.task_acks_late
    assert conf.task_reject_on_worker_lost
    assert conf.worker_prefetch_multiplier == 1
    assert not conf.worker_cancel_long_running_tasks_on_connection_loss
    assert (conf.task_serializer, conf.result_serializer, conf.accept_content) == (
        "json",
        "json",
        ["json"],
    )
    assert conf.broker_transport_options["queue_order_strategy"] == "priority"
    assert (
        conf.task_soft_time_limit
        < conf.task_time_limit
        < conf.broker_transport_options["visibility_timeout"]
    )
    assert conf.result_expires == 3600
    assert conf.worker_send_task_events
    assert conf.enable_utc
    queues = {queue.name: (queue.exchange.name, queue.routing_key) for queue in conf.task_queues}
    assert queues == {name: (name, name) for name in ("urgent", "default", "browser")}


@pytest.mark.parametrize(
    ("broker", "backend"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/1"),
        ("redis://:pw@h:1/4", "redis://:pw@h:1/5"),
        ("redis://h:1", "redis://h:1/1"),
        ("redis://h:1/", "redis://h:1/1"),
    ],
)
def test_results_have_a_database_of_their_own(broker: str, backend: str) -> None:
    """The broker is in one database, results in the next."""
    assert backend_address(broker) == backend


def test_tasks_have_explicit_names() -> None:
    """A message names its task as documented, wherever the module lies."""
    own = {name for name in app.tasks if not name.startswith("celery.")}
    assert own == {*CALLS, slice_task.name}
    assert crawler.app is app
    assert not any(app.tasks[name].ignore_result for name in CALLS)


@pytest.mark.parametrize("task_id", ["schedule:nightly:1794960000:shop", "chunk:a-job"])
def test_a_message_cannot_take_a_call_that_the_program_makes_itself(task_id: str) -> None:
    """Otherwise it would take the place of a schedule's next period."""
    called = scrape_site_task.apply(("shop",), task_id=task_id)

    assert str(called.result) == (
        "scrape_site_task: ids that begin with schedule: or chunk: are reserved"
    )


def test_no_task_may_run_longer_than_a_message_stays_hidden() -> None:
    """Otherwise Redis would deliver it again while it runs: the requirements' 600 and 720 s are
    for pages in the ledger."""
    hidden_s = app.conf.broker_transport_options["visibility_timeout"]
    for name in (*CALLS, slice_task.name):
        task = app.tasks[name]
        limit_s = app.conf.task_time_limit if task.time_limit is None else task.time_limit
        assert limit_s < hidden_s
    assert Settings().hard_time_limit > hidden_s


def test_chunks_travel_as_json(redis_url: str) -> None:
    """A published chunk is plain JSON in the list of its queue, under the id that the ledger
    noted."""
    client = connect(redis_url)
    client.flushall()
    app.conf.update(broker_url=redis_url)
    broker = RedisBroker(redis_url)
    broker.publish(
        "ledger", [Chunk("id-1", "urgent", ("a", "b")), Chunk("id-2", "default", ("ü",))]
    )

    [urgent] = client.lrange("urgent", 0, -1)
    message = json.loads(urgent)
    assert message["content-type"] == "application/json"
    assert message["headers"]["id"] == "id-1"
    assert [each[:3] for each in broker.queued()] == [
        ("id-1", "ledger", "urgent"),
        ("id-2", "ledger", "default"),
    ]
    broker.close()
    client.close()


def test_messages_leave_their_queue_when_their_tasks_are_done(
    redis_url: str, tmp_path: Path
) -> None:
    """Whoever did them; what is of another ledger, or no chunk, stays where it is."""
    # Given 60 tasks in messages, beside those of others
    client = connect(redis_url)
    client.flushall()
    app.conf.update(broker_url=redis_url)
    broker = RedisBroker(redis_url)
    broker.publish("another", [Chunk("foreign", "default", ("a",))])
    with app.connection_for_write() as connection:
        about: dict[str, Any] = {
            "task_id": "single",
            "queue": "default",
            "producer": app.amqp.Producer(connection),
        }
        scrape_task.apply_async(("http://a.example/",), ignore_result=True, **about)
    client.rpush("default", "no message at all")
    lpm = LocalPersistenceManager(tmp_path)
    lpm.persist_tasks([new(f"http://a.example/{n}") for n in range(60)], job=open_job(lpm))
    maintainer = Maintainer(lpm, broker, Settings())
    assert maintainer.fill(2) == 60
    count = client.llen("default")

    # When a worker has done half of them without taking a message
    for task in lpm.get_next_pending("owner", 30):
        lpm.save_result(done(task))
    maintainer.tick()

    # Then the messages of the other half are left, and what is not ours
    left = {each.id for each in broker.queued()}
    assert left == lpm.dispatch.published() | {"foreign", "single", ""}
    assert 3 < len(left) < count

    # And at the end, too, nothing is taken for lost
    for task in lpm.get_next_pending("owner", 30):
        lpm.save_result(done(task))
    maintainer.tick()
    assert lpm.dispatch.published() == set()
    lpm.close()
    broker.close()
    client.close()


TOLD_TWICE = """
import os, signal
from types import SimpleNamespace
from celery import signals
from celery.apps.worker import install_worker_term_handler
import crawler.child

install_worker_term_handler(SimpleNamespace(hostname="worker"))
with signals.worker_shutting_down.lock:
    os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_second_stop_is_heard_whatever_the_first_one_is_doing() -> None:
    """A SIGTERM that comes while Celery's handler of another one holds its lock does not hang the
    worker."""
    done = subprocess.run(
        [sys.executable, "-c", TOLD_TWICE], capture_output=True, timeout=120, check=False
    )

    assert done.returncode == 143, done.stderr


def test_other_content_than_json_is_refused(redis_url: str) -> None:
    """A pickled message is never unpacked."""
    with closing(connect(redis_url)) as client:
        client.flushall()
    with Connection(redis_url) as connection:
        queue = connection.SimpleQueue("probe", serializer="pickle")
        queue.put({"x": 1})
        queue.consumer.accept = {f"application/{kind}" for kind in app.conf.accept_content}
        with pytest.raises(ContentDisallowed):
            _ = queue.get(timeout=5).payload
        queue.close()


ERRORS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.CrawlerError)
]


@pytest.mark.parametrize("kind", ERRORS)
def test_errors_can_be_rebuilt_on_the_other_side(kind: type[errors.CrawlerError]) -> None:
    """Every error survives the way through a queue with all it says."""
    arguments = {
        errors.InputError: ("f.csv", "reason", 3),
        errors.FetchError: ("timeout", "too slow", 2.5),
        errors.NotNow: ("a.example", "rate", 2.5),
        errors.SigningIn: ("a.example", "sign in", 2.5),
        errors.GatewayError: ("busy", 2.5),
        errors.GatewayRefused: (422, "not this one"),
    }
    error = kind(*arguments.get(kind, ("message",)))
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (kind, str(error), vars(error))


def test_the_error_tree_is_what_is_documented() -> None:
    """The docstring of `errors` lists every error."""
    assert all(kind.__name__ in (errors.__doc__ or "") for kind in ERRORS)
