"""What Flower shows, and to whom: an event for each page, and no answer to other sites' pages.

Flower without a password answers to addresses and `localhost` only. A page of any site can have its
own name lead to 127.0.0.1 (DNS rebinding) and then read what Flower shows as if it were of its own
origin. The browser still sends that name as `Host`.
"""

import ipaddress
import queue
import sys
import threading
import time
from typing import Any

import redis
from celery import Celery
from kombu.exceptions import KombuError

from crawler.models import Outcome, Task, TaskStatus

MAX_JOB_WITH_EVENTS = 10_000
"""In larger jobs pages send no events: nobody looks through so many, and Flower keeps each in
memory."""
MAX_QUEUED_EVENTS = 10_000
GATHER_S = 0.5
"""How long events are gathered for one message, which costs as much as several pages."""
REFUSAL = (
    "This Flower has no password, so it answers to an address or localhost only, not to a name. "
    "Set FLOWER_BASIC_AUTH=user:password to reach it by name.\n"
)


class PageEvents:
    """Sends Celery's own task events for single pages, so that Flower lists pages and not
    chunks."""

    def __init__(self, app: Celery, hostname: str) -> None:
        self._app, self._hostname = app, hostname
        self._queue: queue.SimpleQueue[tuple[str, dict[str, Any]] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name="events", daemon=True)
        self._thread.start()

    def __call__(self, task: Task, outcome: Outcome | None) -> None:
        """Note a page's begin or end. A full queue drops the event, and never delays the page."""
        small = task.job_size is not None and task.job_size <= MAX_JOB_WITH_EVENTS
        if not small or self._queue.qsize() >= MAX_QUEUED_EVENTS:
            return
        about: dict[str, Any] = {"uuid": task.task_id, "timestamp": time.time()}
        if outcome is None:
            received = about | {
                "name": "scrape_task",
                "args": repr((task.url,)),
                "kwargs": "{}",
                "retries": task.failures,
            }
            self._queue.put(("task-received", received))
            self._queue.put(("task-started", about))
        elif outcome.status is TaskStatus.COMPLETED and outcome.page:
            about["result"] = f"{outcome.page.status}, {len(outcome.page.body):,} bytes"
            about["runtime"] = outcome.page.fetch_s
            self._queue.put(("task-succeeded", about))
        else:
            kind = "task-retried" if outcome.status is TaskStatus.PENDING else "task-failed"
            about["exception"] = f"{outcome.error_type}: {outcome.error_message}"
            about["traceback"] = ""
            self._queue.put((kind, about))

    def stop(self) -> None:
        """Send what is left."""
        self._stopping.set()
        self._queue.put(None)
        self._thread.join(2)

    def _send_all(self) -> None:
        while True:
            try:
                self._send_while_connected()
                return
            except (redis.RedisError, KombuError, OSError):
                time.sleep(1)  # the events that were being sent are dropped

    def _send_while_connected(self) -> None:
        with self._app.connection_for_write() as connection:
            dispatcher = self._app.events.Dispatcher(
                connection, hostname=self._hostname, buffer_group={"task"}
            )
            dispatcher.buffer_limit = 200
            ended = False
            while not ended:
                items = [self._queue.get()]
                self._stopping.wait(GATHER_S)
                while not self._queue.empty():
                    items.append(self._queue.get())
                ended = None in items
                for kind, fields in filter(None, items):
                    dispatcher.send(kind, **fields)
                dispatcher.flush(errors=False)


def install_guard(**_: Any) -> None:
    """Guard the Flower of this process, if it is one; for Celery's signal that an app's modules are
    loaded."""
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
