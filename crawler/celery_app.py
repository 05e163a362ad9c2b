"""The Celery application: queues, limits, acknowledgement.

Every setting that differs from Celery's own default prevents a loss or a stall that was seen
without it.
"""

import ipaddress
import os
import sys
from typing import Any

import click
from celery import Celery, signals
from kombu import Exchange, Queue

from crawler import config
from crawler.models import QUEUES
from crawler.redis_client import RedisAddress
from crawler.stack import redis_address

settings = config.load()


def backend_address(broker: str) -> str:
    """The database for results: the next after the broker's, so that emptying one keeps the
    other."""
    address = RedisAddress.parse(broker)
    return address.for_celery(address.db + 1)


# Flower as shipped listens on every interface without a password, and answers to every name.
os.environ.setdefault("FLOWER_ADDRESS", "127.0.0.1")
REFUSAL = (
    "This Flower has no password, so it answers to an address or localhost only, not to a name. "
    "Set FLOWER_BASIC_AUTH=user:password to reach it by name.\n"
)


@signals.import_modules.connect
def protect_flower(**_: Any) -> None:
    """Protect Flower, if this process runs it, from DNS rebinding.

    A page of any site can make its own name resolve to 127.0.0.1, and then read what Flower shows
    as if it came from its own origin. The browser still sends that name as `Host`. So Flower
    without a password answers only to addresses and `localhost`.
    """
    module = sys.modules.get("flower.app")
    if module is None:
        return
    from tornado.web import RequestHandler

    class Refusal(RequestHandler):
        """The answer to any other name."""

        def prepare(self) -> None:
            self.set_status(403)
            self.set_header("Content-Type", "text/plain; charset=utf-8")
            self.finish(REFUSAL)

    flower: Any = module.Flower
    find_handler = flower.find_handler

    def guarded(self: Any, request: Any, **details: Any) -> Any:
        options = self.options
        open_to_names = options.basic_auth or options.auth or options.unix_socket
        if open_to_names or _is_safe_host(request.host_name):
            return find_handler(self, request, **details)
        return self.get_handler_delegate(request, Refusal)

    flower.find_handler = guarded


def _is_safe_host(host: str) -> bool:
    """Whether nobody else's DNS can have this host lead here: it is an address, or `localhost`."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


broker_url = RedisAddress.parse(redis_address(settings)).for_celery()


class App(Celery):
    """Refuses to send a task that no worker knows: `celery call` would print an id, and the worker
    would drop the message."""

    def send_task(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Celery's own, for the tasks there are."""
        if name not in self.tasks:
            known = ", ".join(sorted(each for each in self.tasks if not each.startswith("celery.")))
            raise click.UsageError(f"there is no task {name!r}; there are {known}")
        return super().send_task(name, *args, **kwargs)


app = App("crawler", broker=broker_url, backend=backend_address(broker_url))
app.conf.update(
    # Each queue has its own exchange and routing key: with the default ones a message lands in
    # both.
    task_queues=[Queue(name, Exchange(name), routing_key=name) for name in QUEUES],
    # Somebody waits for these.
    task_routes={name: {"queue": "urgent"} for name in ("scrape_task", "crawl_url")},
    task_default_queue="default",
    task_default_exchange="default",
    task_default_routing_key="default",
    task_create_missing_queues=False,
    task_serializer="json",
    result_serializer="json",
    accept_content=["json"],
    enable_utc=True,
    timezone="UTC",
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    result_expires=3600,
    task_soft_time_limit=120,
    task_time_limit=180,
    worker_prefetch_multiplier=1,
    worker_concurrency=None,
    worker_pool="prefork",
    worker_pool_start_method="fork",
    worker_cancel_long_running_tasks_on_connection_loss=False,
    worker_send_task_events=True,
    task_send_sent_event=True,
    worker_hijack_root_logger=False,
    worker_proc_alive_timeout=30,
    include=["crawler.child"],
    worker_consumer="crawler.child:Consumer",
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_transport_options={
        "visibility_timeout": 300,
        "unacked_restore_interval": 5,
        "unacked_restore_throttle": 1,
        "queue_order_strategy": "priority",
        "socket_timeout": 30,
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
        "health_check_interval": 10,
    },
    result_backend_transport_options={"socket_timeout": 30, "socket_connect_timeout": 5},
    redis_socket_timeout=30,
    redis_socket_connect_timeout=5,
)
