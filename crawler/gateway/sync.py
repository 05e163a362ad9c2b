"""Sync: what the outbox holds goes to the Gateway, pages first, and is synced only once the Gateway
has said so.

Pages, results and reports go their own ways, so that none waits for the slowest of another kind.
What fails is put off, longer each time, and what came behind it passes; only a Gateway that answers
nobody is waited for by all.
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
from crawler.db.gateway import KeyHolder, Parcel, Report
from crawler.errors import CrawlerError, FetchError, GatewayError, GatewayRefused, StoreError
from crawler.fetch.body import decoded
from crawler.fetch.wire import media_type
from crawler.gateway.client import KINDS, LONGEST_S, GatewayClient, Trouble
from crawler.lpm import LocalPersistenceManager

log = logging.getLogger(__name__)

BATCH, BATCH_BYTES = 100, 8_000_000
"""How much goes in one request."""
PAGES_AT_ONCE, REPORTS_AT_ONCE = 8, 4
MAX_RAW = 32 * 1024 * 1024
MAX_TRIES = 6
"""So often something is offered that the Gateway says it could not store."""
LOOK_S, SWEEP_S = 0.1, 5.0
"""How often one looks whether the store has changed, and how often even if it has not."""
FIRST_LATER_S, LONGEST_LATER_S = 0.5, 60.0
"""How long something that failed is put off, at first and at most."""
FORGET_S = 300.0
GIVE_UP = 10
"""So often a page is looked for that cannot be read, over some minutes."""
SOON_S, HEARD_S = 2.0, 90.0
"""How long all wait at most while heartbeats are answered, and until when the last one counts."""
ALONE = 3
"""So many failures with no good answer between them mean that the Gateway is away."""
ALIVE_S = 30.0
"""A Gateway that has given a good answer so lately was there when a request failed."""
SUSPECT = 6
"""A request that has failed so often in a row is taken apart, although it may be the Gateway's own
trouble."""
MAX_CHARACTERS = {"parcel_id": 255, "platform": 64, "state": 8, "county": 255}
"""What Gateways of this family store of each; one that gets more refuses the result, or all of its
request."""
NOT_SENT = 0
"""In the place of a Gateway's status: the result was refused here."""
SHOWN = 10
"""Tasks that one line of the log names; `sync rejected` names all of them."""
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
_ENDINGS = {
    "html": "html",
    "xml": "xml",
    "json": "json",
    "pdf": "pdf",
    "csv": "csv",
    "plain": "txt",
}

Item = TypeVar("Item")


class Lane(Generic[Item]):
    """One kind of thing to send, so many at a time, and what of it is put off."""

    def __init__(
        self,
        most: int,
        due: Callable[[int, Sequence[Any]], Sequence[Item]],
        key: Callable[[Item], int | str],
        send: Callable[[Item], Awaitable[None]],
    ) -> None:
        self.most = most
        self._due: Callable[[int, Sequence[Any]], Sequence[Item]] = due
        self._key: Callable[[Item], int | str] = key
        self.send: Callable[[Item], Awaitable[None]] = send
        self._later: dict[int | str, tuple[int, float]] = {}
        self._busy: set[int | str] = set()

    def begin(self, now: float) -> Sequence[Item]:
        """What may be sent now, as far as there is room; it is on its way from now on."""
        room = self.most - len(self._busy)
        if room <= 0:
            return ()
        self._later = {
            key: entry for key, entry in self._later.items() if entry[1] > now - FORGET_S
        }
        items = list(
            self._due(room, [*self._busy, *self._later])
        )  # what has not failed yet goes first
        self._busy |= {self._key(item) for item in items}
        if len(items) < room and any(until <= now for _, until in self._later.values()):
            waiting = [key for key, (_, until) in self._later.items() if until > now]
            again = self._due(room - len(items), [*self._busy, *waiting])
            self._busy |= {self._key(item) for item in again}
            items += again
        return items

    def end(self, item: Item, now: float, failed: bool) -> int:
        """Note what came of it; returns how often it has failed in a row."""
        key = self._key(item)
        self._busy.discard(key)
        failures = self._later.pop(key, (0, 0.0))[0] + 1 if failed else 0
        if failures:
            wait_s = min(LONGEST_LATER_S, FIRST_LATER_S * 2 ** min(failures - 1, 10)) * (
                0.5 + 0.5 * random.random()
            )
            self._later[key] = (failures, now + wait_s)
        return failures

    def opens_s(self, now: float) -> float:
        """In how many seconds the first of what was put off is due again."""
        return min((until - now for _, until in self._later.values()), default=SWEEP_S)


class Batch(msgspec.Struct, frozen=True):
    """The results of one request: the same for as long as it is not taken apart."""

    name: str
    parcels: tuple[Parcel, ...]
    body: bytes
    first: tuple[Parcel, ...] = ()
    """Those whose natural keys were never sent before: the Gateway can have no row of ours under
    them."""


class Sync:
    """Sends what is ready, in order; one at a time for a store."""

    def __init__(
        self, settings: Settings, client: GatewayClient, longest_s: float = LONGEST_S
    ) -> None:
        """`longest_s` is how long to wait at most before a Gateway that answers nobody is tried
        again."""
        self._client = client
        self._lpm = LocalPersistenceManager(settings.data_dir)
        self._trouble = Trouble("sync", longest_s, note=self._note)
        self._note(None)
        self._failures = 0
        self._most = BATCH
        self._good = 0
        self._good_at = 0.0
        self._blamed: dict[str, int] = {}
        """How many good answers there had been before a batch first failed, but for a late one."""
        self._open_at = 0.0
        self.lanes: tuple[Lane[Any], ...] = (
            Lane[Parcel](PAGES_AT_ONCE, self._pages, lambda parcel: parcel.task, self._send_page),
            Lane[Batch](1, self._batches, lambda batch: batch.name, self._send_batch),
            Lane[Report](
                REPORTS_AT_ONCE, self._reports, lambda report: report.task, self._send_report
            ),
        )

    def _note(self, trouble: str | None) -> None:
        self._lpm.gateway.set_note("trouble_sync", trouble)

    @property
    def trouble(self) -> str | None:
        """What is wrong with the Gateway, if it answers nobody."""
        return self._trouble.now

    @property
    def good(self) -> int:
        """How many good answers there were."""
        return self._good

    async def run(self) -> None:
        """Send for as long as this lasts: what is new at once, what had to wait in its time."""
        async with asyncio.TaskGroup() as group:
            for lane in self.lanes:
                group.create_task(self._drive(lane))

    async def _drive(self, lane: Lane[Any]) -> None:
        loop, sending = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        try:
            while True:
                await asyncio.sleep(max(0.0, self._open_at - loop.time()))
                try:
                    items = lane.begin(loop.time())
                except StoreError as error:
                    await asyncio.sleep(self._trouble.met(error))
                    continue
                sending |= {loop.create_task(self._attempt(lane, item)) for item in items}
                if not sending:
                    await self._change(lane.opens_s(loop.time()))
                    continue
                done, sending = await asyncio.wait(
                    sending, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()  # a defect ends the service, which begins anew
        finally:
            for task in sending:
                task.cancel()

    async def _change(self, within_s: float) -> None:
        """Wait until another process has written to the store, or until something is due again."""
        before, good = self._lpm.store.data_version(), self._good
        for _ in range(max(1, round(min(within_s, SWEEP_S) / LOOK_S))):
            await asyncio.sleep(LOOK_S)
            if self._lpm.store.data_version() != before or self._good != good:
                return

    async def _attempt(self, lane: Lane[Any], item: Any) -> None:
        """Send one thing; where that fails it is put off, or, where nothing else succeeds either,
        all are."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            await lane.send(item)
        except CrawlerError as error:
            failures = lane.end(item, loop.time(), failed=True)
            if isinstance(item, Batch):
                self._suspect(item, failures)
            elif isinstance(item, Parcel) and isinstance(error, StoreError) and failures >= GIVE_UP:
                with contextlib.suppress(StoreError):
                    self._let_go(item, f"its page cannot be sent: {error}")
            self._failures += 1
            asked_s = error.retry_after_s if isinstance(error, GatewayError) else None
            if asked_s or (self._failures >= ALONE and begun >= self._open_at):
                wait_s = self._trouble.met(error)
                wait_s = min(wait_s, SOON_S) if not asked_s and self._heart_beats() else wait_s
                self._open_at = max(self._open_at, loop.time() + wait_s)
        except BaseException:
            lane.end(item, loop.time(), failed=True)
            raise
        else:
            lane.end(item, loop.time(), failed=False)

    def _heart_beats(self) -> bool:
        """Whether the Gateway has answered a heartbeat of late: then it is these things that it
        cannot take."""
        with contextlib.suppress(StoreError):
            heard = self._lpm.gateway.note("heard")
            return heard is not None and abs(self._lpm.now() - float(heard)) < HEARD_S
        return False

    def _answered(self) -> None:
        """The Gateway has given a good answer: it is there."""
        self._good += 1
        self._good_at = asyncio.get_running_loop().time()
        self._failures = 0
        self._trouble.over()

    def _suspect(self, batch: Batch, failures: int) -> None:
        """Take a request apart that fails again while others do not: one of its results may be what
        is not borne."""
        known = batch.name in self._blamed
        alive = asyncio.get_running_loop().time() - self._good_at < ALIVE_S
        before = self._blamed.setdefault(batch.name, self._good - alive)
        if failures < SUSPECT and not (known and self._good > before):
            return
        del self._blamed[batch.name]
        if len(batch.parcels) > 1:
            with contextlib.suppress(StoreError):
                self._blamed |= dict.fromkeys(self._take_apart(batch), -1)  # it is in one of these

    # Pages

    def _pages(self, room: int, later: Sequence[int]) -> Sequence[Parcel]:
        return self._lpm.outbox.pages(room, self._lpm.now(), later)

    async def _send_page(self, parcel: Parcel) -> None:
        """See that the Gateway has a result's page; a page that cannot be had does not hold up its
        result."""
        key = self._key(parcel)
        problem = _unsendable(parcel, self._lpm.outbox.key_holders([key]).get(key))
        if problem:
            self._refuse(parcel, NOT_SENT, problem)
            return
        try:
            body = self._page(parcel)
            await self._client.send_raw(_file_name(parcel), body, _about(parcel))
            self._answered()
        except _NoPage as error:
            problem = str(error)
        except GatewayRefused as error:
            self._answered()
            if error.status != _TOO_LARGE:
                self._refuse(parcel, error.status, f"its page was refused: {error}")
                return
            problem = f"its page was not sent: {error}"
        self._let_go(parcel, problem)

    def _let_go(self, parcel: Parcel, problem: str | None) -> None:
        """The result may go: its page is there, or there is a reason why it is not."""
        self._lpm.outbox.raw_sent(parcel.task, self._lpm.now(), problem)

    def _page(self, parcel: Parcel) -> bytes:
        """A result's page, decoded; raises `_NoPage` where there is none and will be none."""
        if parcel.raw is None:
            raise _NoPage("its page was not kept, or was pruned")
        try:
            return decoded(*raw_pages.read(self._lpm.raw, parcel.raw), MAX_RAW)
        except FetchError as error:
            raise _NoPage(f"its page cannot be sent: {error}") from error
        except StoreError as error:
            if isinstance(error.__cause__, OSError):
                raise  # a disk that fails, or a folder that is away, may come back
            raise _NoPage(f"its page cannot be sent: {error}") from error

    # Results

    def _batches(self, room: int, later: Sequence[str]) -> Sequence[Batch]:
        first = tuple[Parcel, ...]()
        ready = self._sendable(later)
        if not ready:
            return ()
        name = ready[0].batch
        found = dict(self._lpm.results.of_tasks([parcel.task for parcel in ready]))
        texts = {p.task: msgspec.json.encode(self._as_sent(p, found[p.task])) for p in ready}
        if name is None:
            ready = self._together(ready, texts)
            keys = {parcel.task: self._key(parcel) for parcel in ready}
            known = self._lpm.outbox.key_holders(keys.values())
            new = {keys[parcel.task]: parcel for parcel in ready if keys[parcel.task] not in known}
            first = tuple(new.values())
            [name] = self._lpm.outbox.begin_batches([ready], keys)
        body = b"[" + b",".join(texts[parcel.task] for parcel in ready) + b"]"
        return (Batch(name, tuple(ready), body, first),)

    def _sendable(self, later: Sequence[str]) -> Sequence[Parcel]:
        """The results of a request that was begun, else new ones that the Gateway can store beside
        each other."""
        while ready := self._lpm.outbox.parcels(BATCH, self._lpm.now(), later):
            good = ready if ready[0].batch else self._not_refused(ready)
            if good:
                return good
        return ()

    def _not_refused(self, ready: Sequence[Parcel]) -> Sequence[Parcel]:
        """Those that can be sent; the others are refused here, with the reason."""
        keys = {parcel.task: self._key(parcel) for parcel in ready}
        holders = self._lpm.outbox.key_holders(keys.values())
        good = []
        for parcel in ready:
            if problem := _unsendable(parcel, holders.get(keys[parcel.task])):
                self._refuse(parcel, NOT_SENT, problem)
                continue
            good.append(parcel)
            holders[keys[parcel.task]] = KeyHolder(parcel.task_id, parcel.url_key, "ready", None)
        return good

    def _key(self, parcel: Parcel) -> str:
        """A result's natural key as the ledger notes it; a table of its own has keys of its own."""
        kind = self._client.kind_of(parcel.type)
        texts = [text or "" for text in msgspec.structs.astuple(parcel.key)]
        return msgspec.json.encode(texts if kind in (None, KINDS[0]) else [*texts, kind]).decode()

    def _together(self, ready: Sequence[Parcel], texts: dict[int, bytes]) -> Sequence[Parcel]:
        """As many as go in one request; what was refused before goes alone, so as not to take
        others down again."""
        first, size, kind_of = ready[0], 0, self._client.kind_of
        for count, parcel in enumerate(ready[: self._most]):
            size += len(texts[parcel.task])
            apart = parcel.late != first.late or kind_of(parcel.type) != kind_of(first.type)
            if count and (first.tries or parcel.tries or apart or size > BATCH_BYTES):
                return ready[:count]
        return ready[: self._most]

    def _as_sent(self, parcel: Parcel, result: dict[str, Any]) -> dict[str, Any]:
        """A result with nothing but the contract's fields."""
        fields = {name: result[name] for name in _FIELDS} | msgspec.structs.asdict(parcel.key)
        if self._client.kind_of(parcel.type):
            fields["scraped_at"] = fields["scraped_at"].removesuffix("Z")
        return {
            "task_id": parcel.task_id,
            **fields,
            "parse_duration_ms": round(result["parse_duration_ms"]),
        }

    async def _send_batch(self, batch: Batch) -> None:
        """Deliver results; those that the Gateway has confirmed, and only those, are synced."""
        failpoint("pages-sent")
        try:
            first = batch.parcels[0]
            stored = await self._client.send_results(batch.body, late=first.late, kind=first.type)
        except GatewayRefused as error:
            self._answered()
            self._not_stored(batch, error.status, error.message)
            return
        self._answered()
        self._blamed.pop(batch.name, None)
        failpoint("delivered-results")
        if stored.failed == 0 and stored.stored == len(batch.parcels):
            self._look_for_replaced(batch, stored.updated)
            self._lpm.mark_synced([parcel.own_id for parcel in batch.parcels])
            return
        said = "; ".join(stored.errors)
        counted = f"{stored.failed} failed, {stored.stored} stored, of {len(batch.parcels)}"
        self._not_stored(batch, 200, said or counted)

    def _look_for_replaced(self, batch: Batch, updated: int) -> None:
        """Raise the alarm where a first delivery was counted as an update: the row was another
        result's."""
        count = updated - (len(batch.parcels) - len(batch.first))
        if count <= 0 or not batch.first:
            self._most = min(BATCH, 2 * self._most)
            return
        if count < len(batch.first):
            self._most = 1  # the answer does not say which: from now on it shall
        which = (
            "it" if count == len(batch.first) == 1 else f"{count:,} of {len(batch.first):,} results"
        )
        problem = (
            f"the Gateway counted {which} as updated, although nothing was ever sent from here under that key: "
            "another result of the same parcel_id, platform, state and county may have been replaced"
        )
        tasks = ", ".join(parcel.task_id for parcel in batch.first[:SHOWN])
        more = f" and {len(batch.first) - SHOWN:,} more" if len(batch.first) > SHOWN else ""
        log.error("task %s%s: %s", tasks, more, problem)
        self._lpm.outbox.note_replaced(batch.first, problem)

    def _not_stored(self, batch: Batch, code: int, problem: str) -> None:
        """Take a request apart until it is known which result the Gateway does not take."""
        if len(batch.parcels) == 1:
            self._refuse(batch.parcels[0], code, problem)
        else:
            self._take_apart(batch)

    def _take_apart(self, batch: Batch) -> list[str]:
        middle = len(batch.parcels) // 2
        return self._lpm.outbox.begin_batches([batch.parcels[:middle], batch.parcels[middle:]])

    # Reports

    def _reports(self, room: int, later: Sequence[int]) -> Sequence[Report]:
        return self._lpm.outbox.reports(room, self._lpm.now(), later)

    async def _send_report(self, report: Report) -> None:
        """Tell of an end without a result."""
        try:
            await self._client.fail(
                report.task_id,
                reason=report.reason,
                error_type=report.error_type,
                attempts=report.attempts,
                kind=report.type,
            )
        except GatewayRefused as error:
            self._answered()
            self._refuse(report, error.status, error.message)
            return
        self._answered()
        self._lpm.outbox.reported(report, self._lpm.now())

    def _refuse(self, item: Parcel | Report, code: int, problem: str) -> None:
        """Keep what was refused for good; what the Gateway merely could not store is offered some
        times more."""
        again = code == 200 and item.tries + 1 < MAX_TRIES
        not_before = self._lpm.now() + 2**item.tries if again else None
        if not again:
            what = "is not sent" if code == NOT_SENT else "is not taken by the Gateway"
            log.error("task %s %s: %s", item.task_id, what, problem)
        self._lpm.outbox.refused(item, code, problem, not_before)

    def unsent(self) -> int:
        """How much is still to be sent."""
        return self._lpm.outbox.unsent()

    def close(self) -> None:
        """Let go of the store."""
        self._lpm.close()


class _NoPage(Exception):
    """Why a result goes without its page."""


def _unsendable(parcel: Parcel, holder: KeyHolder | None) -> str | None:
    """Why a result cannot be stored beside what was sent before; None where it can."""
    for name, text in msgspec.structs.asdict(parcel.key).items():
        if text and len(text) > MAX_CHARACTERS[name]:
            return f"its {name} has {len(text):,} characters, and a Gateway takes {MAX_CHARACTERS[name]}: {text[:100]!r}"
    if (
        holder is None
        or holder.url_key == parcel.url_key
        or holder.state not in ("ready", "synced")
    ):
        return None
    done = (
        parcel.asked_at is not None
        and holder.synced_at is not None
        and holder.synced_at <= parcel.asked_at
    )
    if done:
        return None  # the Gateway had that one, and has asked for this parcel again
    key = ", ".join(
        f"{name} {text!r}" for name, text in msgspec.structs.asdict(parcel.key).items() if text
    )
    return f"it would replace the result of task {holder.task_id}, another page with the same key: {key}"


def _file_name(parcel: Parcel) -> str:
    """A name that no other task and no other worker has: our own ids are random."""
    kind = media_type(parcel.content_type)
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
