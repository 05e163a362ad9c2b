"""Sync: what the outbox holds goes to the Gateway, pages first, and is synced only once the Gateway has said so."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from crawler.config import Settings, failpoint
from crawler.db import exchange, segments
from crawler.db import results as rows
from crawler.db.exchange import Parcel, Report
from crawler.errors import CrawlerError, FetchError, GatewayRefused, StoreError
from crawler.fetch.body import decoded
from crawler.gateway.client import GatewayClient
from crawler.gateway.trouble import LONGEST_S, Trouble
from crawler.lpm import LocalPersistenceManager

log = logging.getLogger(__name__)

BATCH, BATCH_BYTES = 100, 8_000_000
"""How much goes in one request."""
AT_ONCE = 8
"""Pages and reports on their way at a time."""
MAX_RAW = 32 * 1024 * 1024
MAX_TRIES = 6
"""So often a single result is offered that the Gateway says it could not store."""
LOOK_S, SWEEP_S = 0.1, 5.0
"""How often one looks whether the store has changed, and how often even if it has not."""
_TOO_LARGE = 413
_FIELDS = ("parcel_id", "platform", "state", "county", "data", "scraped_at", "parse_duration_ms", "raw_html_hash")
_ENDINGS = {"html": "html", "xml": "xml", "json": "json", "pdf": "pdf", "csv": "csv", "plain": "txt"}

Item = TypeVar("Item", Parcel, Report)


class Sync:
    """Sends what is ready, in order; one at a time for a store."""

    def __init__(self, settings: Settings, client: GatewayClient, longest_s: float = LONGEST_S) -> None:
        """`longest_s` is how long to wait at most before a Gateway that does not answer is tried again."""
        self._client = client
        self._lpm = LocalPersistenceManager(settings.data_dir)
        self.trouble = Trouble("sync", longest_s)

    async def run(self) -> None:
        """Send for as long as this lasts: what is new at once, what had to wait in its time."""
        while True:
            if not await self.sent_some():
                await self._change()

    async def sent_some(self) -> bool:
        """Send what is due; False where nothing is. Trouble is waited for in here."""
        try:
            busy = await self.round()
        except CrawlerError as error:
            await asyncio.sleep(self.trouble.met(error))
            return True
        if busy:
            self.trouble.over()
        return busy

    async def _change(self) -> None:
        """Wait until another process has written to the store, or for the next sweep."""
        db = self._lpm.ledger.db
        before = db.pragma("data_version")
        for _ in range(round(SWEEP_S / LOOK_S)):
            await asyncio.sleep(LOOK_S)
            if db.pragma("data_version") != before:
                return

    async def round(self) -> bool:
        """Send the next results and reports; says whether there were any."""
        with self._lpm.errors():
            now, db = self._lpm.now(), self._lpm.ledger.db
            parcels, reports = exchange.parcels(db, BATCH, now), exchange.reports(db, BATCH, now)
        sent = await _all(self._send_page, parcels)
        if ready := [parcel for parcel, good in zip(parcels, sent, strict=True) if good is True]:
            await self._send(ready)
        sent += await _all(self._report, reports)
        for outcome in sent:
            if isinstance(outcome, BaseException):
                raise outcome  # only now: what could be sent was
        return bool(parcels or reports)

    async def _send(self, ready: Sequence[Parcel]) -> None:
        with self._lpm.errors():
            batch, body = self._request(ready)
        failpoint("pages-sent")
        try:
            stored = await self._client.send_results(body, late=batch[0].late)
        except GatewayRefused as error:
            self._refused(batch, error.status, error.message)
            return
        self.trouble.heard()
        failpoint("delivered-results")
        if stored.failed == 0 and stored.stored == len(batch):
            self._lpm.mark_synced([parcel.own_id for parcel in batch])
            return
        said = "; ".join(stored.errors) or f"{stored.failed} failed, {stored.stored} stored, of {len(batch)}"
        self._refused(batch, 200, said)

    def _request(self, ready: Sequence[Parcel]) -> tuple[Sequence[Parcel], bytes]:
        """The results of one request and its body: the same for those that were fixed before."""
        found = dict(self._read(ready))
        texts = {p.task: msgspec.json.encode(_as_sent(p, found[p.task])) for p in ready}
        if ready[0].batch is None:
            ready = _together(ready, texts)
            exchange.begin_batches(self._lpm.ledger.db, [ready])
        return ready, b"[" + b",".join(texts[parcel.task] for parcel in ready) + b"]"

    def _read(self, parcels: Sequence[Parcel]) -> list[tuple[int, dict[str, Any]]]:
        tasks = msgspec.json.encode([parcel.task for parcel in parcels]).decode()
        return list(rows.read(self._lpm.ledger.db, "r.task IN (SELECT value FROM json_each(?))", (tasks,), None))

    def _refused(self, batch: Sequence[Parcel], code: int, problem: str) -> None:
        """Take a request apart until it is known which result the Gateway does not take."""
        with self._lpm.errors():
            db = self._lpm.ledger.db
            if len(batch) == 1:
                self._refuse(batch[0], code, problem)
            else:
                exchange.begin_batches(db, [batch[: len(batch) // 2], batch[len(batch) // 2 :]])

    def _refuse(self, item: Parcel | Report, code: int, problem: str) -> None:
        """Keep what was refused for good; what the Gateway merely could not store is offered some times more."""
        again = code == 200 and item.tries + 1 < MAX_TRIES
        not_before = self._lpm.now() + 2**item.tries if again else None
        if not again:
            log.error("the Gateway does not take task %s: %s", item.task_id, problem)
        with self._lpm.errors():
            exchange.refused(self._lpm.durable.db, item, code, problem, not_before)

    async def _send_page(self, parcel: Parcel) -> bool:
        """See that the Gateway has a result's page; False where the result must wait, or was refused with it."""
        if parcel.raw is None:
            return True
        problem = None
        try:
            body = decoded(*segments.read(self._lpm.raw, parcel.raw), MAX_RAW)
            await self._client.send_raw(_file_name(parcel), body, _about(parcel))
            self.trouble.heard()
        except GatewayRefused as error:
            if error.status != _TOO_LARGE:
                self._refuse(parcel, error.status, f"its page was refused: {error}")
                return False
            problem = f"its page was not sent: {error}"
        except (FetchError, StoreError) as error:
            problem = f"its page could not be sent: {error}"
        if problem:
            log.warning("a result goes without its page: task %s: %s", parcel.task_id, problem)
        with self._lpm.errors():
            exchange.raw_sent(self._lpm.ledger.db, parcel.task, self._lpm.now(), problem)
        return True

    async def _report(self, report: Report) -> bool:
        try:
            await self._client.fail(
                report.task_id, reason=report.reason, error_type=report.error_type, attempts=report.attempts
            )
        except GatewayRefused as error:
            self._refuse(report, error.status, error.message)
            return False
        self.trouble.heard()
        with self._lpm.errors():
            exchange.reported(self._lpm.durable.db, report.task, self._lpm.now())
        return True

    def unsent(self) -> int:
        """How much is still to be sent."""
        with self._lpm.errors():
            return exchange.unsent(self._lpm.ledger.db)

    def close(self) -> None:
        """Let go of the store."""
        self._lpm.close()


async def _all(send: Callable[[Item], Awaitable[bool]], items: Sequence[Item]) -> list[bool | BaseException]:
    """Send some at a time; each has its own outcome."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(item: Item) -> bool:
        async with room:
            return await send(item)

    return await asyncio.gather(*(one(item) for item in items), return_exceptions=True)


def _together(ready: Sequence[Parcel], texts: dict[int, bytes]) -> Sequence[Parcel]:
    """As many as go in one request; what was refused before goes alone, so as not to take others down again."""
    first, size = ready[0], 0
    for count, parcel in enumerate(ready):
        size += len(texts[parcel.task])
        if count and (first.tries or parcel.tries or parcel.late != first.late or size > BATCH_BYTES):
            return ready[:count]
    return ready


def _as_sent(parcel: Parcel, result: dict[str, Any]) -> dict[str, Any]:
    """A result with nothing but the contract's fields."""
    fields = {name: result[name] for name in _FIELDS}
    return {"task_id": parcel.task_id, **fields, "parse_duration_ms": round(result["parse_duration_ms"])}


def _file_name(parcel: Parcel) -> str:
    """A name that no other task and no other worker has: our own ids are random."""
    kind = parcel.content_type.partition(";")[0].lower()
    ending = next((ending for word, ending in _ENDINGS.items() if word in kind), "bin")
    return f"{parcel.own_id}-{parcel.sha256[:16]}.{ending}"


def _about(parcel: Parcel) -> dict[str, Any]:
    return {
        "task_id": parcel.task_id,
        "url": parcel.url,
        "sha256": parcel.sha256,
        "content_type": parcel.content_type,
        "fetched_at": rows.iso(parcel.scraped_at),
    }
