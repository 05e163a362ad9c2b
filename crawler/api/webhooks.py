"""Delivers results to webhooks: at least once, signed, again after failures and after a kill."""

import asyncio
import hashlib
import hmac
import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from crawler.api.backend import LedgerBackend
from crawler.config import Settings
from crawler.db.webhooks import Webhook
from crawler.errors import CrawlerError, FetchError, OwnShortage, StoreError
from crawler.fetch import session as sessions
from crawler.fetch.http import Client, Request
from crawler.fetch.session import Session
from crawler.files import webhook_name
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job

log = logging.getLogger(__name__)

EVENTS = ("results", "done")
SIGNATURE = "X-Crawler-Signature"
RESULTS_PER_CALL = 10
TIMEOUT_S = 10.0
LEASE_S = 60.0
"""After this time another server may deliver what a killed one had begun."""
POLL_S, IDLE_S = 0.25, 1.0
"""How often to look for webhooks that are due, and how long one rests that had nothing to tell."""
MAX_AT_A_TIME = 8
MAX_PER_CLIENT = 4
"""Deliveries at a time of one client: no client takes all of them."""
MAX_PAUSE_S = 600.0
MAX_FAILURES = 150
"""Failures in a row after which a webhook is given up: about a day."""
MAX_ANSWER = 65_536


def signature(secret: str, body: bytes) -> str:
    """The value of the signature's header."""
    return f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}"


def keep(
    lpm: LocalPersistenceManager, job: Job, url: str, secret: str, events: tuple[str, ...]
) -> None:
    """Store the webhook of a session at the end of its commit: what is refused before leaves no
    file. The first one of a session counts."""
    if lpm.webhooks.add(job, events):
        stored = Session(secrets={"url": url, "secret": secret})
        sessions.save(lpm.folder / "sessions", webhook_name(job.name), stored)


def pause_s(failures: int) -> float:
    """How long to wait after so many failures in a row."""
    return min(2.0 ** min(failures, 20), MAX_PAUSE_S)


class Deliverer:
    """A thread that delivers; several receivers at a time, so that a slow one delays no other."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="webhooks", daemon=True)

    def start(self) -> None:
        """Begin to deliver."""
        self._thread.start()

    def stop(self) -> None:
        """End; what is under way is delivered again by the next server."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                asyncio.run(self._deliver())
            except Exception:  # the thread must not die
                log.exception("webhooks met an unforeseen error, and are tried again")
                self._stopping.wait(5)

    async def _deliver(self) -> None:
        backend = LedgerBackend(self._settings)
        running: list[tuple[str, asyncio.Task[None]]] = []
        async with Client.of(self._settings) as client:
            try:
                seen, look_at = -1, 0.0
                while not self._stopping.is_set():
                    await asyncio.sleep(POLL_S)
                    now, version = time.monotonic(), backend.lpm.store.data_version()
                    if version == seen and now < look_at:
                        continue
                    seen, look_at = version, now + IDLE_S
                    running = [each for each in running if not each[1].done()]
                    for webhook in self._claim(backend.lpm, [owner for owner, _ in running]):
                        delivery = asyncio.create_task(_Delivery(backend, client, webhook).run())
                        running.append((webhook.client, delivery))
            finally:
                for _, delivery in running:
                    delivery.cancel()
                await asyncio.gather(*(each for _, each in running), return_exceptions=True)
                backend.lpm.close()

    def _claim(self, lpm: LocalPersistenceManager, running: Sequence[str]) -> list[Webhook]:
        """Take what is due; `running` has the client of each delivery that goes on."""
        limit, taken = MAX_AT_A_TIME - len(running), Counter(running)
        try:
            return lpm.webhooks.claim(lpm.now(), LEASE_S, limit, MAX_PER_CLIENT, taken)
        except StoreError as error:
            log.warning("%s; webhooks wait", error)
            return []


class _Delivery:
    """What is due to one receiver now."""

    def __init__(self, backend: LedgerBackend, client: Client, webhook: Webhook) -> None:
        self._backend, self._client, self._webhook = backend, client, webhook
        self._lpm = backend.lpm

    async def run(self) -> None:
        """Deliver it, or note why that failed."""
        webhook, lpm = self._webhook, self._lpm
        try:
            await self._deliver()
            lpm.webhooks.release(webhook.job_id, lpm.now() + IDLE_S)
        except (FetchError, OwnShortage, StoreError) as error:
            failures = webhook.failures + 1
            is_over = failures >= MAX_FAILURES
            what = "is given up" if is_over else f"is tried again in {pause_s(failures):g} s"
            log.warning("the webhook of job %d %s: %s", webhook.job_id, what, error)
            now = lpm.now()
            lpm.webhooks.failed(
                webhook.job_id, str(error)[:300], now + pause_s(failures), now if is_over else None
            )
        except CrawlerError as error:
            log.warning("the webhook of job %d waits: %s", webhook.job_id, error)

    async def _deliver(self) -> None:
        lpm, cursor = self._lpm, self._webhook.cursor
        job = lpm.jobs.get(self._webhook.job_id)
        batch = lpm.batches.of_job(job.id)
        stored = sessions.load(lpm.folder / "sessions", webhook_name(job.name))
        if batch is None or stored is None:
            raise StoreError(f"the address of the webhook of {job.name} is lost")
        while True:
            page = self._backend.results(batch.client, batch.session_id, cursor, RESULTS_PER_CALL)
            if page is None:
                return
            about = {"session_id": batch.session_id, "cursor": page.cursor}
            if page.results and "results" in self._webhook.events:
                body = {"event": "results", **about, "results": page.results}
                await self._post(stored, body)
            if page.cursor != cursor:
                # The lease begins anew: a receiver that takes long for many results gets them once.
                lpm.webhooks.delivered(job.id, page.cursor, lpm.now() + LEASE_S)
                cursor = page.cursor
            if page.is_complete:
                state = self._backend.progress(batch.client, batch.session_id)
                if "done" in self._webhook.events:
                    await self._post(stored, {"event": "done", **about, "session": state})
                lpm.webhooks.told_end(job.id, state.completed_at if state else None)
            if page.is_last:
                return

    async def _post(self, stored: Session, content: dict[str, Any]) -> None:
        """Send a body; raises `FetchError` unless the receiver says that it has it."""
        body, secret = msgspec.json.encode(content), stored.secrets["secret"]
        headers = [("X-Crawler-Event", str(content["event"]))]
        if secret:
            headers.append((SIGNATURE, signature(secret, body)))
        answer = await self._client.fetch(
            Request(
                url=stored.secrets["url"],
                method="POST",
                body=body,
                content_type="application/json",
                headers=tuple(headers),
                timeout_s=TIMEOUT_S,
                follow=False,
                max_body=MAX_ANSWER,
                cut=True,
            )
        )
        if not 200 <= answer.status < 300:
            raise FetchError("refused", f"the receiver answered {answer.status}")
