"""Sync: sends pages, results and reports to the Gateway, and marks what it has confirmed.

Pages, results and reports each have a lane, so that none waits for a slow one of another kind. A
page goes before its result. An item that fails is retried after a growing pause, while others go
on. All lanes pause only if the Gateway does not answer at all.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from crawler.config import Settings, failpoint
from crawler.db import raw_pages
from crawler.db import results as rows
from crawler.db.gateway import KeyHolder, OutgoingResult, Report
from crawler.errors import CrawlerError, FetchError, GatewayError, GatewayRefused, StoreError
from crawler.fetch.body import decode_stored
from crawler.fetch.wire import media_type
from crawler.gateway.client import KINDS, MAX_BACKOFF_S, Backoff, DeliveryCounts, GatewayClient
from crawler.lpm import LocalPersistenceManager

log = logging.getLogger(__name__)

MAX_RESULTS_PER_REQUEST, MAX_REQUEST_BYTES = 100, 8_000_000
PAGES_AT_ONCE, REPORTS_AT_ONCE = 8, 4
MAX_PAGE_BYTES = 32 * 1024 * 1024
MAX_TRIES = 6
"""How often to send a result that the Gateway says it could not store."""
MAX_READS = 10
"""How often to try to read a page from a disk that fails, over some minutes."""
POLL_S, SWEEP_S = 0.1, 5.0
"""How often to check whether the store has changed, and how often to look even if it has not."""
FIRST_RETRY_S, MAX_RETRY_S = 0.5, 60.0
FORGET_S = 300.0
"""A failed item that is no longer offered is forgotten after this time."""
MAX_PAUSE_S, HEARD_S = 2.0, 90.0
"""The longest pause of all lanes while heartbeats are answered, and how long an answer counts."""
AWAY_FAILURES = 3
"""After this many failures without a good answer in between, the Gateway counts as away."""
ALIVE_S = 30.0
"""After a good answer, the Gateway counts as alive for this time."""
SPLIT_FAILURES = 6
"""A request that failed this often in a row is split, even if the Gateway may be the cause."""
MAX_CHARACTERS = {"parcel_id": 255, "platform": 64, "state": 8, "county": 255}
"""Column sizes of such Gateways. A longer value makes them refuse the result or the request."""
NOT_SENT = 0
"""Stands for a status of the Gateway: the result was refused here."""
MAX_LOGGED_TASKS = 10
"""Tasks that one line of the log names; `sync rejected` names all."""
_TOO_LARGE = 413
_FIELDS = (
    "parcel_id",
    "platform",
    "state",
    "county",
    "data",
    "scraped_at",
    "parse_duration_ms",
    "raw_html_hash",
)
_SUFFIXES = {
    "html": "html",
    "xml": "xml",
    "json": "json",
    "pdf": "pdf",
    "png": "png",
    "csv": "csv",
    "plain": "txt",
}

Item = TypeVar("Item")
_Key = int | str


class Lane(Generic[Item]):
    """The items of one kind: which are being sent, and which wait for a retry."""

    def __init__(
        self,
        at_once: int,
        due: Callable[[int, Sequence[Any]], Sequence[Item]],
        key: Callable[[Item], _Key],
        send: Callable[[Item], Awaitable[None]],
    ) -> None:
        """`due` returns up to a number of items, without those of the given keys."""
        self._at_once = at_once
        self._due: Callable[[int, Sequence[Any]], Sequence[Item]] = due
        self._key: Callable[[Item], _Key] = key
        self.send: Callable[[Item], Awaitable[None]] = send
        self._retries: dict[_Key, tuple[int, float]] = {}
        """The failures in a row of an item, and when to retry it."""
        self._sending: set[_Key] = set()

    def begin(self, now: float) -> Sequence[Item]:
        """Return the items to send now; items that have not failed yet come first."""
        room = self._at_once - len(self._sending)
        if room <= 0:
            return ()
        self._retries = {
            key: retry for key, retry in self._retries.items() if retry[1] > now - FORGET_S
        }
        items = list(self._due(room, [*self._sending, *self._retries]))
        self._sending |= {self._key(item) for item in items}
        if len(items) < room and any(at <= now for _, at in self._retries.values()):
            waiting = [key for key, (_, at) in self._retries.items() if at > now]
            again = self._due(room - len(items), [*self._sending, *waiting])
            self._sending |= {self._key(item) for item in again}
            items += again
        return items

    def end(self, item: Item, now: float, failed: bool) -> int:
        """Note the end of a try; return how often the item has failed in a row."""
        key = self._key(item)
        self._sending.discard(key)
        before, _ = self._retries.pop(key, (0, 0.0))
        if not failed:
            return 0
        wait_s = min(MAX_RETRY_S, FIRST_RETRY_S * 2.0 ** min(before, 10))
        wait_s *= 0.5 + 0.5 * random.random()
        self._retries[key] = (before + 1, now + wait_s)
        return before + 1

    def next_retry_s(self, now: float) -> float:
        """Return the time until the next retry."""
        return min((at - now for _, at in self._retries.values()), default=SWEEP_S)


class Batch(msgspec.Struct, frozen=True):
    """The results of one request. A retry sends the same ones, unless the batch is split."""

    name: str
    results: tuple[OutgoingResult, ...]
    body: bytes
    new: tuple[OutgoingResult, ...] = ()
    """Results whose natural keys were never sent before: the Gateway has no row of ours there."""


class Sync:
    """Sends what is ready, in order; one at a time for a store."""

    def __init__(
        self, settings: Settings, client: GatewayClient, max_backoff_s: float = MAX_BACKOFF_S
    ) -> None:
        """`max_backoff_s` is the longest pause before a Gateway that is away is tried again."""
        self._client = client
        self._lpm = LocalPersistenceManager(settings.data_dir)
        self._backoff = Backoff("sync", max_backoff_s, note=self._note_trouble)
        self._note_trouble(None)
        self._failures = 0
        self._batch_size = MAX_RESULTS_PER_REQUEST
        self._good = 0
        self._good_at = 0.0
        self._suspects: dict[str, int] = {}
        """For each batch that failed, the number of good answers before that."""
        self._paused_until = 0.0
        self.lanes: tuple[Lane[Any], ...] = (
            Lane[OutgoingResult](
                PAGES_AT_ONCE, self._pages, lambda result: result.task, self._send_page
            ),
            Lane[Batch](1, self._batches, lambda batch: batch.name, self._send_batch),
            Lane[Report](
                REPORTS_AT_ONCE, self._reports, lambda report: report.task, self._send_report
            ),
        )

    def _note_trouble(self, trouble: str | None) -> None:
        self._lpm.gateway.set_note("trouble_sync", trouble)

    @property
    def trouble(self) -> str | None:
        """The last error, if the Gateway does not answer at all."""
        return self._backoff.trouble

    @property
    def good(self) -> int:
        """The number of good answers."""
        return self._good

    async def run(self) -> None:
        """Send until cancelled: new items at once, failed ones after a pause."""
        async with asyncio.TaskGroup() as group:
            for lane in self.lanes:
                group.create_task(self._run_lane(lane))

    async def _run_lane(self, lane: Lane[Any]) -> None:
        loop, sending = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        try:
            while True:
                await asyncio.sleep(max(0.0, self._paused_until - loop.time()))
                try:
                    items = lane.begin(loop.time())
                except StoreError as error:
                    await asyncio.sleep(self._backoff.failed(error))
                    continue
                sending |= {loop.create_task(self._try(lane, item)) for item in items}
                if not sending:
                    await self._wait_for_change(lane.next_retry_s(loop.time()))
                    continue
                done, sending = await asyncio.wait(
                    sending, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()  # raises after a defect; then the agent starts sync again
        finally:
            for task in sending:
                task.cancel()

    async def _wait_for_change(self, limit_s: float) -> None:
        """Wait until another process writes to the store, an answer comes, or the limit ends."""
        before, good = self._lpm.store.data_version(), self._good
        for _ in range(max(1, round(min(limit_s, SWEEP_S) / POLL_S))):
            await asyncio.sleep(POLL_S)
            if self._lpm.store.data_version() != before or self._good != good:
                return

    async def _try(self, lane: Lane[Any], item: Any) -> None:
        """Send an item. After a failure it is retried later; if nothing succeeds, all lanes
        pause."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            await lane.send(item)
        except CrawlerError as error:
            failures = lane.end(item, loop.time(), failed=True)
            if isinstance(item, Batch):
                self._split_if_suspect(item, failures)
            elif isinstance(error, StoreError) and failures >= MAX_READS:
                self._give_up_page(item, error)
            self._pause_if_away(error, begun)
        except BaseException:
            lane.end(item, loop.time(), failed=True)
            raise
        else:
            lane.end(item, loop.time(), failed=False)

    def _give_up_page(self, item: OutgoingResult | Report, error: StoreError) -> None:
        if isinstance(item, OutgoingResult):
            with contextlib.suppress(StoreError):
                self._release_result(item, f"its page cannot be sent: {error}")

    def _pause_if_away(self, error: CrawlerError, begun: float) -> None:
        """Pause all lanes if the Gateway asks for it, or has not answered at all for a while."""
        now = asyncio.get_running_loop().time()
        self._failures += 1
        asked = isinstance(error, GatewayError) and bool(error.retry_after_s)
        away = self._failures >= AWAY_FAILURES and begun >= self._paused_until
        if not asked and not away:
            return
        wait_s = self._backoff.failed(error)
        if not asked and self._answers_heartbeats():
            wait_s = min(wait_s, MAX_PAUSE_S)
        self._paused_until = max(self._paused_until, now + wait_s)

    def _answers_heartbeats(self) -> bool:
        """Whether the Gateway has answered a heartbeat lately: then it refuses these items only."""
        with contextlib.suppress(StoreError):
            heard = self._lpm.gateway.note("heard")
            return heard is not None and abs(self._lpm.now() - float(heard)) < HEARD_S
        return False

    def _note_answer(self) -> None:
        """Note a good answer."""
        self._good += 1
        self._good_at = asyncio.get_running_loop().time()
        self._failures = 0
        self._backoff.succeeded()

    def _split_if_suspect(self, batch: Batch, failures: int) -> None:
        """Split a batch that fails again while others succeed: one of its results may be why."""
        failed_before = batch.name in self._suspects
        alive = asyncio.get_running_loop().time() - self._good_at < ALIVE_S
        good_before = self._suspects.setdefault(batch.name, self._good - alive)
        others_succeed = failed_before and self._good > good_before
        if failures < SPLIT_FAILURES and not others_succeed:
            return
        del self._suspects[batch.name]
        if len(batch.results) > 1:
            with contextlib.suppress(StoreError):
                self._suspects |= dict.fromkeys(self._split(batch), -1)  # one of them is bad

    # Pages

    def _pages(self, room: int, without: Sequence[int]) -> Sequence[OutgoingResult]:
        return self._lpm.outbox.pages(room, self._lpm.now(), without)

    async def _send_page(self, result: OutgoingResult) -> None:
        """Send the page of a result. A page that cannot be sent does not hold up its result."""
        key = self._key(result)
        problem = _problem(result, self._lpm.outbox.key_holders([key]).get(key))
        if problem:
            self._refuse(result, NOT_SENT, problem)
            return
        try:
            await self._send_captures(result)
            body = self._page(result)
            name = _file_name(result, result.sha256, result.content_type)
            await self._client.send_raw(name, body, _metadata(result))
            self._note_answer()
        except _NoPage as error:
            problem = str(error)
        except GatewayRefused as error:
            self._note_answer()
            if error.status != _TOO_LARGE:
                self._refuse(result, error.status, f"its page was refused: {error}")
                return
            problem = f"its page was not sent: {error}"
        self._release_result(result, problem)

    async def _send_captures(self, result: OutgoingResult) -> None:
        """Send what a browser has made of the page, each as a file of its own."""
        for file in self._lpm.results.captures(result.task):
            if file.raw is None or file.raw.length > MAX_PAGE_BYTES:
                continue
            digest, kind = file.sha256 or "", file.type or ""
            body = raw_pages.read_capture(self._lpm.raw, file.raw)
            about = _metadata(result) | {"sha256": digest, "content_type": kind}
            await self._client.send_raw(_file_name(result, digest, kind), body, about)

    def _release_result(self, result: OutgoingResult, problem: str | None) -> None:
        """Let a result be sent: the Gateway has its page, or `problem` says why not."""
        self._lpm.outbox.raw_sent(result.task, self._lpm.now(), problem)

    def _page(self, result: OutgoingResult) -> bytes:
        """Return a result's page, decoded; raise `_NoPage` if there will never be one."""
        if result.raw is None:
            raise _NoPage("its page was not kept, or was pruned")
        try:
            return decode_stored(*raw_pages.read(self._lpm.raw, result.raw), MAX_PAGE_BYTES)
        except FetchError as error:
            raise _NoPage(f"its page cannot be sent: {error}") from error
        except StoreError as error:
            if isinstance(error.__cause__, OSError):
                raise  # a disk or a folder that is away may come back
            raise _NoPage(f"its page cannot be sent: {error}") from error

    # Results

    def _batches(self, room: int, without: Sequence[str]) -> Sequence[Batch]:
        ready = self._ready_results(without)
        if not ready:
            return ()
        name, new = ready[0].batch, tuple[OutgoingResult, ...]()
        texts = self._texts(ready)
        if name is None:
            ready = self._first_batch(ready, texts)
            keys = {result.task: self._key(result) for result in ready}
            known = self._lpm.outbox.key_holders(keys.values())
            unknown = {keys[each.task]: each for each in ready if keys[each.task] not in known}
            new = tuple(unknown.values())
            [name] = self._lpm.outbox.begin_batches([ready], keys)
            # Read again: until the request was begun, a replay may have replaced a record.
            texts = self._texts(ready)
        body = b"[" + b",".join(texts[result.task] for result in ready) + b"]"
        return (Batch(name, tuple(ready), body, new),)

    def _texts(self, ready: Sequence[OutgoingResult]) -> dict[int, bytes]:
        """Return each result as it is sent, by its task."""
        records = dict(self._lpm.results.of_tasks([result.task for result in ready]))
        return {
            result.task: msgspec.json.encode(self._as_sent(result, records[result.task]))
            for result in ready
        }

    def _ready_results(self, without: Sequence[str]) -> Sequence[OutgoingResult]:
        """Return the results of a batch that was begun, or new ones that may be sent."""
        outbox = self._lpm.outbox
        while ready := outbox.results(MAX_RESULTS_PER_REQUEST, self._lpm.now(), without):
            if ready[0].batch:
                return ready
            if sendable := self._sendable(ready):
                return sendable
        return ()

    def _sendable(self, ready: Sequence[OutgoingResult]) -> Sequence[OutgoingResult]:
        """Return the results that can be sent; the others are refused here, with the reason."""
        keys = {result.task: self._key(result) for result in ready}
        holders = self._lpm.outbox.key_holders(keys.values())
        sendable = []
        for result in ready:
            key = keys[result.task]
            if problem := _problem(result, holders.get(key)):
                self._refuse(result, NOT_SENT, problem)
                continue
            sendable.append(result)
            holders[key] = KeyHolder(result.task_id, result.url_key, "ready", None)
        return sendable

    def _key(self, result: OutgoingResult) -> str:
        """Return a result's natural key; each type with a table of its own has its own keys."""
        kind = self._client.kind_of(result.type)
        texts = [text or "" for text in msgspec.structs.astuple(result.key)]
        if kind not in (None, KINDS[0]):
            texts.append(kind)
        return msgspec.json.encode(texts).decode()

    def _first_batch(
        self, ready: Sequence[OutgoingResult], texts: dict[int, bytes]
    ) -> Sequence[OutgoingResult]:
        """Return as many results as fit in one request.

        A result that was refused before goes alone, so that it cannot fail others again.
        """
        first, size, kind_of = ready[0], 0, self._client.kind_of
        for count, result in enumerate(ready[: self._batch_size]):
            size += len(texts[result.task])
            apart = result.late != first.late or kind_of(result.type) != kind_of(first.type)
            if count and (first.tries or result.tries or apart or size > MAX_REQUEST_BYTES):
                return ready[:count]
        return ready[: self._batch_size]

    def _as_sent(self, result: OutgoingResult, record: dict[str, Any]) -> dict[str, Any]:
        """Return a result with the contract's fields only."""
        fields = {name: record[name] for name in _FIELDS} | msgspec.structs.asdict(result.key)
        if self._client.kind_of(result.type):
            fields["scraped_at"] = fields["scraped_at"].removesuffix("Z")
        fields["parse_duration_ms"] = round(record["parse_duration_ms"])
        return {"task_id": result.task_id, **fields}

    async def _send_batch(self, batch: Batch) -> None:
        """Send results; mark as synced only those that the Gateway has confirmed."""
        failpoint("pages-sent")
        first = batch.results[0]
        try:
            counts = await self._client.send_results(batch.body, late=first.late, kind=first.type)
        except GatewayRefused as error:
            self._note_answer()
            self._not_stored(batch, error.status, error.message)
            return
        self._note_answer()
        self._suspects.pop(batch.name, None)
        failpoint("delivered-results")
        if counts.failed == 0 and counts.stored == len(batch.results):
            self._check_updates(batch, counts.updated)
            self._lpm.mark_synced([result.own_id for result in batch.results])
            return
        self._not_stored(batch, 200, _failure(counts, len(batch.results)))

    def _check_updates(self, batch: Batch, updated: int) -> None:
        """Log an error if a first delivery counts as an update: it replaced another result."""
        count = updated - (len(batch.results) - len(batch.new))
        if count <= 0 or not batch.new:
            self._batch_size = min(MAX_RESULTS_PER_REQUEST, 2 * self._batch_size)
            return
        if count < len(batch.new):
            self._batch_size = 1  # the answer does not say which; the next answers shall
        which = f"{count:,} of {len(batch.new):,} results"
        if count == len(batch.new) == 1:
            which = "it"
        problem = (
            f"the Gateway counted {which} as updated, although nothing was ever sent from here "
            "under that key: another result of the same parcel_id, platform, state and county "
            "may have been replaced"
        )
        tasks = ", ".join(result.task_id for result in batch.new[:MAX_LOGGED_TASKS])
        if (others := len(batch.new) - MAX_LOGGED_TASKS) > 0:
            tasks += f" and {others:,} more"
        log.error("task %s: %s", tasks, problem)
        self._lpm.outbox.note_replaced(batch.new, problem)

    def _not_stored(self, batch: Batch, code: int, problem: str) -> None:
        """Split a batch until it is known which result the Gateway refuses."""
        if len(batch.results) == 1:
            self._refuse(batch.results[0], code, problem)
        else:
            self._split(batch)

    def _split(self, batch: Batch) -> list[str]:
        middle = len(batch.results) // 2
        return self._lpm.outbox.begin_batches([batch.results[:middle], batch.results[middle:]])

    # Reports

    def _reports(self, room: int, without: Sequence[int]) -> Sequence[Report]:
        return self._lpm.outbox.reports(room, self._lpm.now(), without)

    async def _send_report(self, report: Report) -> None:
        """Report a task that ended without a result."""
        try:
            await self._client.fail(
                report.task_id,
                reason=report.reason,
                error_type=report.error_type,
                attempts=report.attempts,
                kind=report.type,
            )
        except GatewayRefused as error:
            self._note_answer()
            self._refuse(report, error.status, error.message)
            return
        self._note_answer()
        self._lpm.outbox.reported(report, self._lpm.now())

    def _refuse(self, item: OutgoingResult | Report, code: int, problem: str) -> None:
        """Note a refusal. What the Gateway only could not store is sent again a few times."""
        if code == 200 and item.tries + 1 < MAX_TRIES:
            retry_at = self._lpm.now() + 2**item.tries
            self._lpm.outbox.refused(item, code, problem, retry_at)
            return
        what = "is not taken by the Gateway"
        if code == NOT_SENT:
            what = "is not sent"
        log.error("task %s %s: %s", item.task_id, what, problem)
        self._lpm.outbox.refused(item, code, problem, None)

    def unsent(self) -> int:
        """Return how many items are not sent yet."""
        return self._lpm.outbox.unsent()

    def close(self) -> None:
        """Close the store."""
        self._lpm.close()


class _NoPage(Exception):
    """Why a result goes without its page."""


def _failure(counts: DeliveryCounts, sent: int) -> str:
    if counts.errors:
        return "; ".join(counts.errors)
    return f"{counts.failed} failed, {counts.stored} stored, of {sent}"


def _problem(result: OutgoingResult, holder: KeyHolder | None) -> str | None:
    """Return why the Gateway cannot store a result beside what was sent before; None if it can."""
    fields = {name: text for name, text in msgspec.structs.asdict(result.key).items() if text}
    for name, text in fields.items():
        most = MAX_CHARACTERS[name]
        if len(text) > most:
            size = f"{len(text):,} characters, and a Gateway takes {most}"
            return f"its {name} has {size}: {text[:100]!r}"
    if holder is None or holder.url_key == result.url_key:
        return None
    if holder.state not in ("ready", "synced") or _was_asked_again(result, holder):
        return None
    key = ", ".join(f"{name} {text!r}" for name, text in fields.items())
    other = f"the result of task {holder.task_id}, another page with the same key: {key}"
    return f"it would replace {other}"


def _was_asked_again(result: OutgoingResult, holder: KeyHolder) -> bool:
    """Whether the Gateway had the other result when it asked for this one."""
    if result.asked_at is None or holder.synced_at is None:
        return False
    return holder.synced_at <= result.asked_at


def _file_name(result: OutgoingResult, digest: str, content_type: str) -> str:
    """Return a name that no other task and no other worker uses: our own ids are random."""
    kind = media_type(content_type)
    suffix = next((suffix for word, suffix in _SUFFIXES.items() if word in kind), "bin")
    return f"{result.own_id}-{digest[:16]}.{suffix}"


def _metadata(result: OutgoingResult) -> dict[str, Any]:
    return {
        "task_id": result.task_id,
        "url": result.url,
        "sha256": result.sha256,
        "content_type": result.content_type,
        "fetched_at": rows.iso(result.scraped_at),
    }
