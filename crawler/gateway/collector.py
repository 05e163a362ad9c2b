"""The collector: asks the Gateway for as much work as there is room for, and keeps it before
anything else happens."""

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
from crawler.gateway.client import MAX_WAIT_S, GatewayClient, Trouble
from crawler.logs import printable
from crawler.lpm import LocalPersistenceManager, low_on_disk
from crawler.models import NO_DEADLINE, Job
from crawler.sites import Sites, expand

log = logging.getLogger(__name__)

MOST_AT_ONCE = 100
"""What one question may ask for."""
MAX_QUERY = 4000
"""Characters of the platforms in a question: proxies refuse a request line of more than 8 KB."""
LOOK_S = 0.2
"""How often a full queue is looked at, and at least between two questions."""
IDLE_S = 5.0
"""When to ask again where there was no work, and no word about that."""
SESSIONS_S = 5.0
"""Workers look that often whether a job's secrets have changed."""
LAST_WORDS_S = 2.5
"""How long a stop waits for the answer to a question: the tasks in it are ours, and nobody
else's."""
MAX_ID, MAX_TASK = 500, 64_000
_TEXTS = ("parcel_id", "state", "county")
_MOMENTS = ("deadline", "expires_at", "lease_until")
"""Fields of a task with a time after which nobody wants it any more; `lease_s` says it in seconds
from now."""


class Unnamed(msgspec.Struct, frozen=True):
    """What was handed out without an id by which its end could be reported."""

    reason: str
    text: str


class _Malformed(Exception):
    """Why a task cannot be worked on."""


def read(item: Any, sites: Sites, secrets: Secrets, now: float) -> Assignment | Unnamed:
    """A task as the Gateway hands it out; what cannot be worked on has the reason in it."""
    text = msgspec.json.encode(item).decode()
    if not isinstance(item, dict):
        return _unnamed("it is no object", text)
    task_id = item.get("task_id")
    if isinstance(task_id, int) and not isinstance(task_id, bool):
        task_id = str(task_id)
    if not isinstance(task_id, str) or not 0 < len(task_id) <= MAX_ID or "\0" in task_id:
        return _unnamed(f"its task_id is not a text of 1 to {MAX_ID} characters", text)
    try:
        if len(text) > MAX_TASK:
            raise _Malformed(f"the task has {len(text):,} characters, more than {MAX_TASK:,}")  # noqa: TRY301
        return _assignment(task_id, item, sites, secrets, now)
    except (_Malformed, UrlError) as error:
        kept = item if len(text) <= MAX_TASK else {"task_id": task_id}
        return Assignment(external_id=task_id, input=_input(kept, {}, ""), refusal=_shown(error))


def _shown(error: Exception) -> str:
    return printable(str(urls.without_secrets(str(error))))[:500]


def _unnamed(reason: str, text: str) -> Unnamed:
    return Unnamed(reason, urls.without_credentials(str(urls.without_secrets(text)))[:1000])


def _assignment(
    task_id: str, item: dict[str, Any], sites: Sites, secrets: Secrets, now: float
) -> Assignment:
    platform, target = item.get("platform"), item.get("target")
    if platform is not None and not isinstance(platform, str):
        raise _Malformed("the platform is not text")
    if not isinstance(target, dict):
        raise _Malformed(
            "the target is not an object" if "target" in item else "there is no target"
        )
    texts = {name: _text(name, target.get(name)) for name in _TEXTS}
    url = target.get("url")
    if url is not None and not isinstance(url, str):
        raise _Malformed("the url is not text")
    url = url if url and url.strip() else _made_url(platform, target, sites)
    address = urls.parse(url)
    if not secrets.take(urls.credentials(url)):
        raise _Malformed("another task names another user or password for the same server")
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
    """What is kept of a task: the Gateway's fields of its result, and all of it as it came but for
    secrets."""
    target = item.get("target")
    if isinstance(target, dict) and isinstance(target.get("url"), str):
        item = item | {"target": target | {"url": url or urls.without_credentials(target["url"])}}
    fields = {name: texts.get(name) or None for name in ("state", "county")}
    kept: dict[str, Any] = urls.without_secrets(
        {"platform": item.get("platform"), **fields, "task": item}
    )
    return kept


def _text(name: str, value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            return str(urls.without_secrets(value.strip()))
        case bool() | list() | dict():
            raise _Malformed(f"the {name} is not text")
        case _:
            return str(value)


def _made_url(platform: str | None, target: dict[str, Any], sites: Sites) -> str:
    site = sites.named(platform) if platform else None
    if site is None or site.url_template is None:
        which = (
            f"the platform {platform[:60]!r} has no url_template here"
            if platform
            else "no platform is named"
        )
        raise _Malformed(f"the target has no url, and {which}")
    fields = {name.strip().lower(): value for name, value in target.items()}
    try:
        return expand(
            site.url_template, lambda name: _text(name, fields[name]) if name in fields else None
        )
    except ValueError as error:
        raise _Malformed(str(error)) from None


def _priority(value: Any) -> int:
    """1 to 4; what is beyond them is the nearest of them, and nothing said is 3."""
    if value is None:
        return 3
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or value != int(value)
    ):
        raise _Malformed("the priority is not a whole number")
    return min(4, max(1, int(value)))


def _deadline(item: dict[str, Any], now: float) -> float:
    """The first of the times after which the Gateway does not count on this task; one that is none
    is not obeyed."""
    found = [moment for name in _MOMENTS if (moment := _moment(item.get(name))) is not None]
    lease_s = item.get("lease_s")
    if (
        isinstance(lease_s, int | float)
        and not isinstance(lease_s, bool)
        and 0 <= lease_s < NO_DEADLINE / 2
    ):
        found.append(now + lease_s)
    return min(found, default=NO_DEADLINE)


def _moment(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            at = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", value.strip()))
            return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return None
    if (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 <= value < NO_DEADLINE / 2
    ):
        return float(value)
    return None


def named(platforms: Sequence[str], count: int) -> list[str]:
    """The platforms in turn, up to so many names: Gateways hand out one task of each priority per
    name."""
    if not platforms:
        return []
    size = sum(len(quote(name, safe="")) + len("&platforms=") for name in platforms)
    turns = max(1, min(-(-count // len(platforms)), MAX_QUERY // size))
    return [*platforms, *(list(platforms) * (turns - 1))[: max(0, count - len(platforms))]]


def asked(settings: Settings, platforms: Sequence[str], sites: Sites) -> Sequence[str]:
    """The platforms to ask for: those that were named, or where a Gateway insists on some those of
    the site files."""
    if platforms or settings.gateway_dialect == "plain":
        return platforms
    if not sites.names:
        raise UsageError(
            "CRAWLER_GATEWAY_DIALECT=typed: such a Gateway hands out nothing unless platforms are named; "
            "name them with --platform, or describe them in config/sites/"
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
        """`asking` is set while a question is on its way."""
        self._settings, self._job, self._sites, self._client = settings, job, sites, client
        self._platforms, self._capacity = asked(settings, platforms, sites), capacity
        self._due: dict[str | None, float] = dict.fromkeys(client.kinds, 0.0)
        """When each type of tasks may be asked for again."""
        self._lpm = LocalPersistenceManager(settings.data_dir)
        self._secrets = Secrets(self._lpm.folder / "sessions", job.name)
        self._trouble = Trouble("the collector", note=self._note)
        self._note(None)
        self.asking = asking or threading.Event()
        self._no_room = False

    def _note(self, trouble: str | None) -> None:
        self._lpm.gateway.set_note("trouble_collector", trouble)

    async def run(self) -> None:
        """Collect for as long as this lasts; whatever goes wrong is said, and waited for."""
        loop = asyncio.get_running_loop()
        while True:
            kind = min(self._due, key=lambda name: self._due[name])
            try:
                free = self.free()
                wait_s = await self._answered(free, kind) if free > 0 else LOOK_S
                if free > 0:
                    self._trouble.over()
                    wait_s = min(wait_s, MAX_WAIT_S) * (1 + 0.1 * random.random())
                    self._due[kind] = loop.time() + wait_s
                    wait_s = max(0.0, min(self._due.values()) - loop.time())
            except CrawlerError as error:
                wait_s = min(self._trouble.met(error), MAX_WAIT_S) * (1 + 0.1 * random.random())
            await asyncio.sleep(wait_s)

    async def _answered(self, free: int, kind: str | None) -> float:
        """Ask, and see the answer stored even if this is to end meanwhile."""
        self.asking.set()
        asking = asyncio.ensure_future(self.ask(free, kind))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            await asyncio.wait([asking], timeout=LAST_WORDS_S)
            raise
        finally:
            if asking.done() and not asking.cancelled():
                asking.exception()
            self.asking.clear()

    def free(self) -> int:
        """How many tasks there is room for now; a few are not worth a question, unless hardly any
        is here."""
        if self._lpm.jobs.get(self._job.id).hold or self._lpm.gateway.note("order"):
            return 0
        free = self._capacity - self._lpm.gateway.open_count()
        trouble = low_on_disk(self._lpm.folder, self._settings.min_free)
        if trouble and not self._no_room:
            log.warning("no work is asked for: %s", trouble)
        self._no_room = trouble is not None
        return free if not trouble and free >= min(MOST_AT_ONCE, max(1, self._capacity // 4)) else 0

    async def ask(self, free: int, kind: str | None = None) -> float:
        """Ask once, for tasks of a type, and keep what is handed out; returns when to ask again."""
        key = self._lpm.gateway.poll_key(kind)
        now, count = self._lpm.now(), min(MOST_AT_ONCE, free)
        work = await self._client.work(count, named(self._platforms, count), key, kind)
        failpoint("handed-out")
        # The answer goes by the path that the task came by, whatever the task says of its type.
        items = [
            item | {"type": kind} if kind and isinstance(item, dict) else item
            for item in work.tasks
        ]
        tasks = [read(item, self._sites, self._secrets, now) for item in items]
        if self._secrets.unsaved:  # a worker that has not seen them yet would be sent away
            later = now + SESSIONS_S
            tasks = [
                replace(task, not_before=later) if isinstance(task, Assignment) else task
                for task in tasks
            ]
        unnamed = [task for task in tasks if isinstance(task, Unnamed)]
        for task in unnamed:
            log.error(
                "the Gateway handed out what cannot be answered: %s: %s",
                task.reason,
                task.text[:200],
            )
        done = self._lpm.gateway.assign(
            self._job,
            [task for task in tasks if isinstance(task, Assignment)],
            [(task.reason, task.text) for task in unnamed],
            self._lpm.now(),
            kind,
        )
        failpoint("assigned")
        self._secrets.save()
        if done.refused:
            log.warning(
                "%d of %d tasks cannot be worked on; the Gateway is told why",
                done.refused,
                len(tasks),
            )
        return max(LOOK_S, work.wait_s) if work.wait_s or done.accepted else IDLE_S

    def close(self) -> None:
        """Let go of the store."""
        self._lpm.close()
