"""Accepts batches: checks what a client may do, and stores each call once."""

import contextlib
import hashlib
import re
import secrets
import threading
from collections.abc import Iterator, Sequence

import msgspec

from crawler import batches, urls
from crawler.api import webhooks
from crawler.api.backend import LedgerBackend
from crawler.api.errors import ApiError
from crawler.api.limits import MAX_URLS
from crawler.api.tokens import Client
from crawler.batches import BatchOptions, Submitted
from crawler.config import Settings
from crawler.db.batches import Asked
from crawler.errors import SessionCancelled, UrlError
from crawler.fetch.egress import Egress, ip_literal, names_loopback
from crawler.logs import counted
from crawler.lpm import LocalPersistenceManager
from crawler.models import Job, JobStatus

SESSION_ID = r"^[A-Za-z0-9][A-Za-z0-9._~:@-]{0,99}$"
KEY = re.compile(r"[!-~]{1,200}")
"""An Idempotency-Key."""


class NewWebhook(msgspec.Struct, frozen=True):
    """Who is to be told of a session."""

    url: str
    secret: str = ""
    events: tuple[str, ...] = webhooks.EVENTS


class NewCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call for URLs, as a client has sent it."""

    urls: Sequence[str]
    options: BatchOptions
    session_id: str | None = None
    distributed: bool = False
    key: str | None = None
    """Its Idempotency-Key."""
    webhook: NewWebhook | None = None
    digest: str = ""
    """Hash of what was asked for: a key that comes again must come with the same."""


class Accepted(msgspec.Struct, frozen=True):
    """A call that is in the ledger."""

    session_id: str
    call: Submitted
    asked: list[Asked]
    """Its URLs, in their order."""


class Intake:
    """Accepts calls of all clients; what it returns is in the ledger."""

    def __init__(self, settings: Settings, backend: LedgerBackend) -> None:
        self._backend = backend
        self._egress = Egress(settings.allow_nets)
        self._quota = threading.Lock()

    def close(self) -> None:
        """Let go of what was opened."""
        self._egress.close()

    def accept(self, client: Client, call: NewCall) -> Accepted:
        """Store a call; raises `ApiError` if its client may not have it."""
        self._check(client, call)
        session_id = call.session_id or _new_id(call.key)

        def note(lpm: LocalPersistenceManager, job: Job) -> None:
            if call.key and not lpm.batches.keep_key(
                client.name, _hash(call.key), job, call.digest
            ):
                raise ApiError(
                    409,
                    "key_reused",
                    "this Idempotency-Key came with another body before; send a new key",
                )

        def finish(lpm: LocalPersistenceManager, job: Job) -> None:
            if told := call.webhook:
                webhooks.keep(lpm, job, told.url, told.secret, told.events)

        with self._quota:  # two calls at once must not both find room for themselves
            self._check_state(client, session_id, call)
            submitted = self._backend.accept(
                client.name, session_id, call.urls, call.options, call.distributed, note, finish
            )
        return Accepted(session_id, submitted, self._backend.asked(submitted))

    def _check(self, client: Client, call: NewCall) -> None:
        if len(call.urls) > MAX_URLS:
            raise ApiError(413, "too_many_urls", f"more than {MAX_URLS:,} URLs in one call")
        if call.key is not None and not KEY.fullmatch(call.key):
            raise ApiError(
                400, "bad_key", "Idempotency-Key: 1 to 200 printable characters without spaces"
            )
        if not client.is_operator and (call.options.rate or call.options.ignore_robots):
            raise ApiError(
                403,
                "operator_only",
                "only the operator may use the options rate and ignore_robots: "
                "a token with the scope admin",
            )
        self._check_addresses(call.urls)
        if call.webhook:
            self._check_webhook(call.webhook)

    def _check_addresses(self, given: Sequence[str]) -> None:
        """Refuse a call that only asks for addresses that are never fetched.

        What a name leads to is known when it is fetched, and checked then.
        """
        problem = ""
        for text in given:
            problem = self.objection(text)
            if not problem:
                return
        if problem:
            raise ApiError(403, "forbidden_address", problem)

    def _check_webhook(self, webhook: NewWebhook) -> None:
        try:
            urls.normalize(webhook.url)
        except UrlError as error:
            raise ApiError(400, "bad_url", f"webhook.url: {error}") from None
        if urls.credentials(webhook.url):
            raise ApiError(400, "bad_url", "webhook.url: must hold no user name or password")
        if problem := self.objection(webhook.url):
            raise ApiError(403, "forbidden_address", f"webhook.url: {problem}")

    def objection(self, text: str) -> str:
        """Say why a URL is never fetched, if its host shows that by itself."""
        try:
            host = urls.split(urls.normalize(text))[2]
        except UrlError:
            return ""  # its result says so
        address = ip_literal("127.0.0.1") if names_loopback(host) else ip_literal(host)
        problem = self._egress.objection(address) if address else ""
        if not problem:
            return ""
        return (
            f"{host[:200]}: this address is not fetched ({problem}); "
            "the operator opens private networks with CRAWLER_ALLOW_NETS"
        )

    def _check_state(self, client: Client, session_id: str, call: NewCall) -> None:
        """See that a session may get more URLs, and a client too; a call that comes again may."""
        store = self._backend.lpm.batches
        if store.has_call(client.name, session_id, batches.checksum(call.urls)):
            return
        known = store.find(client.name, session_id)
        if known and known.job.cancelled:
            raise SessionCancelled(f"the session {session_id} was cancelled: begin another one")
        self._check_quota(client, session_id, len(call.urls))

    @contextlib.contextmanager
    def room(self, client: Client, session_id: str, count: int) -> Iterator[None]:
        """See that a client may have so many more URLs, and let no other call take their room."""
        with self._quota:
            self._check_quota(client, session_id, count)
            yield

    def _check_quota(self, client: Client, session_id: str, count: int) -> None:
        if client.max_urls is None and client.max_sessions is None:
            return
        store = self._backend.lpm.batches
        known = store.find(client.name, session_id)
        sessions, open_urls = store.open_of_client(client.name)
        if client.max_urls is not None and open_urls + count > client.max_urls:
            allowed = counted(client.max_urls, "open URL")
            state = f"has {open_urls:,}; this call has {count:,}"
            if count > client.max_urls:  # waiting does not help
                raise _over_quota(allowed, state, "send fewer at a time")
            raise _over_quota(allowed, state)
        is_more = known is None or known.job.status == JobStatus.DONE
        if client.max_sessions is not None and is_more and sessions >= client.max_sessions:
            allowed = counted(client.max_sessions, "running session")
            raise _over_quota(allowed, f"has {sessions:,}")


def _over_quota(limit: str, state: str, advice: str = "try again later") -> ApiError:
    message = f"this token may have {limit} at a time, and {state}; {advice}"
    return ApiError(429, "quota", message, {"Retry-After": "30"})


def _new_id(key: str | None) -> str:
    """A name for a session without one; the same for the same key, also after a restart."""
    return f"key-{_hash(key)[:32]}" if key else f"session-{secrets.token_hex(8)}"


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
