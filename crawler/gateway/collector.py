"""The collector: asks the Gateway for tasks while there is room, and stores them at once."""

import asyncio
import logging
import math
import random
import re
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from crawler import urls
from crawler.bulk import Secrets
from crawler.config import Settings, failpoint
from crawler.db.gateway import Assignment
from crawler.errors import CrawlerError, UrlError, UsageError
from crawler.gateway.client import MAX_WAIT_S, Backoff, GatewayClient, Work
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager, low_on_disk
from crawler.models import NO_DEADLINE, Job
from crawler.sites import Sites, expand

log = logging.getLogger(__name__)

MAX_TASKS_PER_REQUEST = 100
MAX_PLATFORMS_LENGTH = 4000
"""Characters of the platforms in a request. Proxies refuse a request line of more than 8 KB."""
POLL_S = 0.2
"""How often a full queue is checked, and the shortest pause between two requests."""
IDLE_S = 5.0
"""Pause after an answer without tasks and without `Retry-After`."""
SECRETS_DELAY_S = 5.0
"""Workers check this often whether the secrets of a job have changed."""
STOP_LIMIT_S = 2.5
"""How long a stop waits for an answer. No other worker gets the tasks in it."""
MAX_ID_LENGTH, MAX_TASK_LENGTH = 500, 64_000
DEFAULT_PRIORITY, MIN_PRIORITY, MAX_PRIORITY = 3, 1, 4
_TEXT_FIELDS = ("parcel_id", "state", "county")
_DEADLINE_FIELDS = ("deadline", "expires_at", "lease_until")
"""Fields of a task with its deadline; `lease_s` gives it in seconds from now."""


class TaskWithoutId(msgspec.Struct, frozen=True):
    """A task whose end cannot be reported, because it has no usable id."""

    reason: str
    text: str


class _BadTask(Exception):
    """Why a task cannot be worked on."""


def parse_task(item: Any, sites: Sites, secrets: Secrets, now: float) -> Assignment | TaskWithoutId:
    """Return a task of the Gateway; one that cannot be worked on has the reason in `refusal`."""
    text = msgspec.json.encode(item).decode()
    if not isinstance(item, dict):
        return _without_id("it is not an object", text)
    task_id = item.get("task_id")
    if isinstance(task_id, int) and not isinstance(task_id, bool):
        task_id = str(task_id)
    if not isinstance(task_id, str) or not 0 < len(task_id) <= MAX_ID_LENGTH or "\0" in task_id:
        return _without_id(f"its task_id is not a text of 1 to {MAX_ID_LENGTH} characters", text)
    if len(text) > MAX_TASK_LENGTH:
        reason = f"the task has {len(text):,} characters, more than {MAX_TASK_LENGTH:,}"
        return _refused(task_id, {"task_id": task_id}, reason)
    try:
        return _assignment(task_id, item, sites, secrets, now)
    except (_BadTask, UrlError) as error:
        return _refused(task_id, item, str(error))


def _refused(task_id: str, item: dict[str, Any], reason: str) -> Assignment:
    refusal = printable(str(urls.without_secrets(reason)))[:500]
    return Assignment(external_id=task_id, input=_input(item, {}, ""), refusal=refusal)


def _without_id(reason: str, text: str) -> TaskWithoutId:
    return TaskWithoutId(reason, urls.without_credentials(str(urls.without_secrets(text)))[:1000])


def _assignment(
    task_id: str, item: dict[str, Any], sites: Sites, secrets: Secrets, now: float
) -> Assignment:
    platform, target = item.get("platform"), item.get("target")
    if platform is not None and not isinstance(platform, str):
        raise _BadTask("the platform is not text")
    if "target" not in item:
        raise _BadTask("there is no target")
    if not isinstance(target, dict):
        raise _BadTask("the target is not an object")
    texts = {name: _text(name, target.get(name)) for name in _TEXT_FIELDS}
    url = target.get("url")
    if url is not None and not isinstance(url, str):
        raise _BadTask("the url is not text")
    if not url or not url.strip():
        url = _url_from_template(platform, target, sites)
    address = urls.parse(url)
    if not secrets.take(urls.credentials(url)):
        raise _BadTask("another task names another user or password for the same server")
    return Assignment(
        external_id=task_id,
        address=address,
        priority=_priority(item.get("priority")),
        platform=urls.without_secrets((platform or "").strip()) or None,
        parcel_id=texts["parcel_id"],
        deadline=_deadline(item, now),
        input=_input(item, texts, address.url),
    )


def _input(item: dict[str, Any], texts: dict[str, str], url: str) -> dict[str, Any]:
    """Return what is stored of a task: fields for its result, and all of it without secrets."""
    target = item.get("target")
    if isinstance(target, dict) and isinstance(target.get("url"), str):
        item = item | {"target": target | {"url": url or urls.without_credentials(target["url"])}}
    fields = {name: texts.get(name) or None for name in ("state", "county")}
    stored: dict[str, Any] = urls.without_secrets(
        {"platform": item.get("platform"), **fields, "task": item}
    )
    return stored


def _text(name: str, value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            return str(urls.without_secrets(value.strip()))
        case bool() | list() | dict():
            raise _BadTask(f"the {name} is not text")
        case _:
            return str(value)


def _url_from_template(platform: str | None, target: dict[str, Any], sites: Sites) -> str:
    if not platform:
        raise _BadTask("the target has no url, and no platform is named")
    site = sites.named(platform)
    if site is None or site.url_template is None:
        which = f"the platform {platform[:60]!r} has no url_template here"
        raise _BadTask(f"the target has no url, and {which}")
    fields = {name.strip().lower(): value for name, value in target.items()}

    def value(name: str) -> str | None:
        if name not in fields:
            return None
        return _text(name, fields[name])

    try:
        return expand(site.url_template, value)
    except ValueError as error:
        raise _BadTask(str(error)) from None


def _is_number(value: Any) -> bool:
    """Whether it is a finite number; in Python a bool is an int, too."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _priority(value: Any) -> int:
    """Return the priority, moved into the range that there is."""
    if value is None:
        return DEFAULT_PRIORITY
    if not _is_number(value) or value != int(value):
        raise _BadTask("the priority is not a whole number")
    return min(MAX_PRIORITY, max(MIN_PRIORITY, int(value)))


def _deadline(item: dict[str, Any], now: float) -> float:
    """Return the earliest deadline of a task; fields that are no time are ignored."""
    found = [_timestamp(item.get(name)) for name in _DEADLINE_FIELDS]
    lease_s: Any = item.get("lease_s")
    if _is_number(lease_s) and 0 <= lease_s < NO_DEADLINE / 2:
        found.append(now + lease_s)
    return min((at for at in found if at is not None), default=NO_DEADLINE)


def _timestamp(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            at = datetime.fromisoformat(re.sub(r"[zZ]\Z", "+00:00", value.strip()))
            if at.tzinfo is None:
                at = at.replace(tzinfo=UTC)
            return at.timestamp()
        except (ValueError, OverflowError):
            return None
    if _is_number(value) and 0 <= value < NO_DEADLINE / 2:
        return float(value)
    return None


def repeat_platforms(platforms: Sequence[str], count: int) -> list[str]:
    """Return the platforms, repeated in turn up to `count` names and MAX_PLATFORMS_LENGTH.

    Gateways give one task of each priority per name.
    """
    if not platforms:
        return []
    size = sum(len(quote(name, safe="")) + len("&platforms=") for name in platforms)
    turns = max(1, min(-(-count // len(platforms)), MAX_PLATFORMS_LENGTH // size))
    return [*platforms, *(list(platforms) * (turns - 1))[: max(0, count - len(platforms))]]


def requested_platforms(
    settings: Settings, platforms: Sequence[str], sites: Sites
) -> Sequence[str]:
    """Return the platforms to ask for: the given ones, or for the dialect `typed` all sites."""
    if platforms or settings.gateway_dialect == "plain":
        return platforms
    if not sites.names:
        raise UsageError(
            "CRAWLER_GATEWAY_DIALECT=typed: such a Gateway hands out nothing unless platforms are "
            "named; name them with --platform, or describe them in config/sites/"
        )
    return list(sites.names)


class Collector:
    """Polls `/internal/work`; one at a time for a store."""

    def __init__(
        self,
        settings: Settings,
        job: Job,
        sites: Sites,
        client: GatewayClient,
        *,
        platforms: Sequence[str] = (),
        capacity: int = 200,
        asking: threading.Event | None = None,
    ) -> None:
        """`asking` is set during a request."""
        self._settings, self._job, self._sites, self._client = settings, job, sites, client
        self._platforms = requested_platforms(settings, platforms, sites)
        self._capacity = capacity
        self._due: dict[str | None, float] = dict.fromkeys(client.kinds, 0.0)
        """When to ask again for each task type."""
        self._lpm = LocalPersistenceManager(settings.data_dir)
        self._secrets = Secrets(self._lpm.folder / "sessions", job.name)
        self._backoff = Backoff("the collector", note=self._note_trouble)
        self._note_trouble(None)
        self.asking = asking or threading.Event()
        self._disk_is_low = False

    def _note_trouble(self, trouble: str | None) -> None:
        self._lpm.gateway.set_note("trouble_collector", trouble)

    async def run(self) -> None:
        """Collect tasks until cancelled; after an error wait and go on."""
        loop = asyncio.get_running_loop()
        while True:
            kind = min(self._due, key=lambda name: self._due[name])
            wait_s = POLL_S
            try:
                if room := self.room():
                    wait_s = await self._ask_and_store(room, kind)
                    self._backoff.succeeded()
                    self._due[kind] = loop.time() + _with_jitter(wait_s)
                    wait_s = max(0.0, min(self._due.values()) - loop.time())
            except CrawlerError as error:
                wait_s = _with_jitter(self._backoff.failed(error))
            await asyncio.sleep(wait_s)

    async def _ask_and_store(self, free: int, kind: str | None) -> float:
        """Ask for tasks. Even if this is cancelled meanwhile, the answer is stored."""
        self.asking.set()
        request = asyncio.ensure_future(self.ask(free, kind))
        try:
            return await asyncio.shield(request)
        except asyncio.CancelledError:
            await asyncio.wait([request], timeout=STOP_LIMIT_S)
            raise
        finally:
            if request.done() and not request.cancelled():
                request.exception()  # mark it as seen, or asyncio logs it
            self.asking.clear()

    def room(self) -> int:
        """Return how many tasks to ask for now; 0 if they are too few for a request."""
        if self._lpm.jobs.get(self._job.id).hold or self._lpm.gateway.note("order"):
            return 0
        trouble = low_on_disk(self._lpm.folder, self._settings.min_free)
        if trouble and not self._disk_is_low:
            log.warning("no work is asked for: %s", trouble)
        self._disk_is_low = trouble is not None
        free = self._capacity - self._lpm.gateway.open_count()
        if trouble or free < min(MAX_TASKS_PER_REQUEST, max(1, self._capacity // 4)):
            return 0
        return free

    async def ask(self, free: int, kind: str | None = None) -> float:
        """Ask once for tasks of a type and store them; return how long to wait."""
        key = self._lpm.gateway.poll_key(kind)
        now, count = self._lpm.now(), min(MAX_TASKS_PER_REQUEST, free)
        platforms = repeat_platforms(self._platforms, count)
        work = await self._client.work(count, platforms, key, kind)
        failpoint("handed-out")
        accepted = self._store(work, kind, now)
        if not accepted and not work.wait_s:
            return IDLE_S
        return max(POLL_S, work.wait_s)

    def _store(self, work: Work, kind: str | None, now: float) -> int:
        """Store the tasks of an answer; return how many were accepted."""
        assignments: list[Assignment] = []
        without_id: list[TaskWithoutId] = []
        for item in work.tasks:
            task = parse_task(_with_type(item, kind), self._sites, self._secrets, now)
            if isinstance(task, TaskWithoutId):
                without_id.append(task)
                log.error(
                    "the Gateway handed out what cannot be answered: %s: %s",
                    task.reason,
                    task.text[:200],
                )
            else:
                assignments.append(task)
        if self._secrets.unsaved:  # a worker without the secrets would be refused by the server
            later = now + SECRETS_DELAY_S
            assignments = [replace(task, not_before=later) for task in assignments]
        done = self._lpm.gateway.assign(
            self._job,
            assignments,
            [(task.reason, task.text) for task in without_id],
            self._lpm.now(),
            kind,
        )
        failpoint("assigned")
        self._secrets.save()
        if done.refused:
            log.warning(
                "%d of %d tasks cannot be worked on; the Gateway is told why",
                done.refused,
                len(work.tasks),
            )
        return done.accepted

    def close(self) -> None:
        """Close the store."""
        self._lpm.close()


def _with_type(item: Any, kind: str | None) -> Any:
    """Return a task with the type it was asked for: its result goes to the path of that type."""
    if not kind or not isinstance(item, dict):
        return item
    return item | {"type": kind}


def _with_jitter(wait_s: float) -> float:
    return min(wait_s, MAX_WAIT_S) * (1 + 0.1 * random.random())
