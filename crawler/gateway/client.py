"""The Gateway's wire contract from the worker's side, and nothing else: what is asked, answered, or
wrong."""

import asyncio
import hashlib
import re
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from urllib.parse import quote, urlencode

import ada_url
import msgspec

from crawler import __version__, urls
from crawler.config import Settings
from crawler.errors import (
    ConfigError,
    FetchError,
    GatewayDenied,
    GatewayError,
    GatewayRefused,
    UrlError,
    UsageError,
)
from crawler.fetch.egress import names_loopback
from crawler.fetch.http import Client, Request
from crawler.gateway import answers, token
from crawler.gateway.answers import MAX_WAIT_S, NotTheContract, Stored, Work
from crawler.models import Page

__all__ = ["LIMITS", "MAX_WAIT_S", "GatewayClient", "Limits", "Stored", "Work"]

MAX_REDIRECTS = 3
KINDS = ("parcel", "party")
"""The types of tasks that have paths of their own in the dialect `typed`; a task of no other goes
by the first."""
_PASSING = frozenset({408, 425, 429})
_DENIALS = frozenset({401, 403, 407})
_ASKS_TO_WAIT = frozenset({429, 503})
_REDIRECTS = {"GET": frozenset({301, 302, 303, 307, 308}), "POST": frozenset({307, 308})}
_JSON = (("Content-Type", "application/json"),)
_Read = TypeVar("_Read")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How long a call may take, and how large an answer may be."""

    connect_s: float = 10.0
    call_s: float = 30.0
    raw_s: float = 120.0
    work_bytes: int = 64 * 2**20
    other_bytes: int = 2**20


LIMITS = Limits()


class _Call:
    """One call: what it is for the operator, what is sent, and the secret that no word about it may
    repeat."""

    def __init__(self, what: str, secret: str, request: Request) -> None:
        self.what, self.secret, self.request = what, secret, request

    def failed(self, why: str, retry_after_s: float | None = None) -> GatewayError:
        """The error for what may get better."""
        return GatewayError(f"{self.what}: {why}", retry_after_s)

    def not_taken(self, answer: dict[str, Any]) -> GatewayRefused:
        """The error for an answer 200 that says otherwise."""
        return GatewayRefused(
            200, f"{self.what}: the Gateway says: {self.shown(answer.get('message') or answer)}"
        )

    def shown(self, text: object) -> str:
        """Foreign words, fit for an error."""
        return answers.shown(text, answers.MAX_MESSAGE, self.secret)


class GatewayClient:
    """The Gateway as its workers see it; it belongs to the event loop it is entered on.

    What may get better raises `GatewayError`, a token that is not accepted `GatewayDenied`, and
    what the Gateway will never take `GatewayRefused`. Every call may be repeated.
    """

    def __init__(
        self,
        settings: Settings,
        worker_id: str,
        *,
        limits: Limits = LIMITS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._base = _base(settings)
        self._loopback = names_loopback(ada_url.URL(self._base).hostname)
        self._settings, self._limits, self._clock = settings, limits, clock
        self._worker_id = _plain(worker_id, "worker id")
        token(settings)  # to be told now rather than at the first call
        self._http = Client.of(settings)
        self.kinds = KINDS if settings.gateway_dialect == "typed" else (None,)
        """The types of tasks that have paths of their own; None stands for all of them."""

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.__aexit__(kind, error, trace)

    async def work(
        self, capacity: int, platforms: Sequence[str], key: str, kind: str | None = None
    ) -> Work:
        """Ask for as many tasks as there is room for; what comes is ours, and nobody else's."""
        if not 1 <= capacity <= 100:
            raise ValueError(f"a capacity of {capacity} is not between 1 and 100")
        query = urlencode(
            [("capacity", capacity), *(("platforms", name) for name in platforms)], quote_via=quote
        )
        target = f"{self._base_of(kind)}/work?{query}"
        call = self._call("GET", target, _key(key), max_body=self._limits.work_bytes)
        page = await self._send(call)
        answer = _answer(call, page)
        return _contract(call, lambda: answers.work(answer, self._asked_s(page, answer)))

    async def send_raw(self, name: str, body: bytes, metadata: dict[str, Any]) -> None:
        """Hand over a raw page under a name that is unique among all workers'."""
        kind, form = _form(name, body, msgspec.json.encode(metadata))
        headers = (("Content-Type", kind),)
        call = self._call(
            "POST", "/internal/raw-files", headers, form, timeout_s=self._limits.raw_s
        )
        answer = _answer(call, await self._send(call))
        if answer.get("status") == "error":
            raise call.not_taken(answer)
        if answer.get("status") != "ok":
            raise call.failed("the Gateway's answer does not say whether it was kept")

    async def send_results(
        self, body: bytes, *, late: bool = False, kind: str | None = None
    ) -> Stored:
        """Hand over a JSON array of results; the answer counts them, and rarely says which of them
        failed."""
        headers = (
            *_JSON,
            *_key(hashlib.sha256(body).hexdigest()),
            *((("X-Results-Late", "true"),) if late else ()),
        )
        call = self._call("POST", f"{self._base_of(kind)}/results", headers, body)
        answer = _answer(call, await self._send(call))
        return _contract(call, lambda: answers.stored(answer, call.secret))

    async def fail(
        self, task_id: str, *, reason: str, error_type: str, attempts: int, kind: str | None = None
    ) -> None:
        """Report a task that ended without a result."""
        body = msgspec.json.encode(
            {"reason": reason, "error_type": error_type, "attempts": attempts}
        )
        segment = quote(task_id, safe="", errors="surrogatepass").replace(".", "%2E")
        base = self._base_of(kind)
        call = self._call(
            "POST", f"{base}/tasks/{segment}/fail", _JSON, body, what=f"{base}/tasks/…/fail"
        )
        answer = _answer(call, await self._send(call))
        if answer.get("status") == "reported":
            return  # with success false it is no longer ours: the Gateway has heard us all the same
        if answer.get("status") == "error" or answer.get("success") is False:
            raise call.not_taken(answer)
        if answer.get("success") is not True and not isinstance(answer.get("status"), str):
            raise call.failed("the Gateway's answer does not say whether it was heard")

    async def heartbeat(self, body: bytes, key: str) -> list[str]:
        """Say that we live, and hear what we are told to do."""
        call = self._call("POST", "/internal/heartbeat", (*_JSON, *_key(key)), body)
        return answers.commands(_answer(call, await self._send(call)), call.secret)

    def kind_of(self, type_: object) -> str | None:
        """The type of tasks whose path a task of this type goes by."""
        return None if self.kinds == (None,) else str(type_) if type_ in KINDS else KINDS[0]

    def _base_of(self, kind: str | None) -> str:
        """Where work, results and tasks of a type are."""
        kind = self.kind_of(kind)
        return f"/internal/{kind}" if kind else "/internal"

    def _call(
        self,
        method: Literal["GET", "POST"],
        target: str,
        headers: tuple[tuple[str, str], ...],
        body: bytes | None = None,
        *,
        what: str = "",
        timeout_s: float | None = None,
        max_body: int | None = None,
    ) -> _Call:
        what = f"{method} {what or target.partition('?')[0]}"
        try:
            secret = token(self._settings)
        except ConfigError as error:  # a file that is just being replaced comes back
            raise GatewayDenied(f"{what}: the Gateway was not asked, because {error}") from None
        own = (
            ("X-Worker-Token", secret),
            ("X-Worker-ID", self._worker_id),
            ("Accept", "application/json"),
        )
        request = Request(
            url=self._base + target,
            loopback=self._loopback,
            timeout_s=timeout_s or self._limits.call_s,
            connect_timeout_s=self._limits.connect_s,
            headers=(*own, ("User-Agent", f"crawler/{__version__}"), *headers),
            max_body=max_body or self._limits.other_bytes,
            method=method,
            body=body,
            follow=False,
            exact=True,
        )
        return _Call(what, secret, request)

    async def _send(self, call: _Call) -> Page:
        """The answer to a call, wherever on the same origin it is; raises what any other answer
        means."""
        try:
            async with asyncio.timeout(call.request.timeout_s):
                page = await self._send_handling_redirects(call)
        except TimeoutError:
            raise call.failed(f"the answer took longer than {call.request.timeout_s:g} s") from None
        except FetchError as error:
            why = call.shown(error.message.replace("the page", "the answer"))
            if error.reason in ("bad_url", "bad_request"):
                raise GatewayRefused(414, f"{call.what}: it cannot be sent: {why}") from None
            raise call.failed(why) from None
        self._check(call, page)
        return page

    async def _send_handling_redirects(self, call: _Call) -> Page:
        request = call.request
        for _ in range(MAX_REDIRECTS + 1):
            page = await self._http.fetch(request)
            if not 300 <= page.status < 400:
                return page
            request = msgspec.structs.replace(request, url=_onward(call, request, page))
        raise call.failed(f"the Gateway redirected more than {MAX_REDIRECTS} times")

    def _check(self, call: _Call, page: Page) -> None:
        if 200 <= page.status < 300:
            return
        why = f"the Gateway answered {page.status} {call.shown(page.reason)[:60]}".rstrip()
        if said := answers.message(page.body, call.secret):
            why = f"{why}: {said}"
        if page.status in _DENIALS:
            raise GatewayDenied(
                f"{call.what}: {why}; is GATEWAY_TOKEN (or what GATEWAY_TOKEN_FILE holds) right?"
            )
        if 400 <= page.status < 500 and page.status not in _PASSING:
            raise GatewayRefused(page.status, f"{call.what}: {why}")
        raise call.failed(why, self._asked_s(page) or None)

    def _asked_s(self, page: Page, answer: dict[str, Any] | None = None) -> float:
        """How long an answer asks us to wait, if it is one of those that may."""
        if answer is None:
            if page.status not in _ASKS_TO_WAIT:
                return 0.0
            try:
                answer = answers.read(page.body)
            except NotTheContract:
                answer = {}
        headers = [value for name, value in page.headers if name.lower() == "retry-after"]
        return answers.longest(headers, answer.get("retry_after"), self._clock())


def _base(settings: Settings) -> str:
    """The Gateway's address without a slash at its end, if it may be spoken to."""
    if not settings.gateway_enabled:
        why = "STANDALONE=true" if settings.standalone else "GATEWAY_SYNC=disabled"
        raise UsageError(f"{why} is set: no word goes to any Gateway; unset it to work for one")
    if not settings.gateway_url:
        raise ConfigError(
            "there is no Gateway to work for; set GATEWAY_URL, such as https://gateway.example"
        )
    try:
        url = urls.parse(settings.gateway_url).url
    except UrlError as error:
        raise ConfigError(f"GATEWAY_URL: {error}") from None
    if "?" in url:
        raise ConfigError("GATEWAY_URL: must not have a query")
    if url.startswith("http:") and not names_loopback(ada_url.URL(url).hostname):
        raise ConfigError(
            "GATEWAY_URL: must begin with https://, or the token could be read on its way"
        )
    return url.rstrip("/")


def _plain(text: str, what: str) -> str:
    if not re.fullmatch(r"[!-~]{1,200}", text):
        raise ValueError(
            f"{text[:200]!r} is no {what}: 1 to 200 printable ASCII characters without spaces"
        )
    return text


def _key(key: str) -> tuple[tuple[str, str], ...]:
    return (("Idempotency-Key", _plain(key, "key")),)


def _form(name: str, body: bytes, metadata: bytes) -> tuple[str, bytes]:
    """The type and the bytes of a form with a file and its metadata, the same each time."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", name):
        raise ValueError(
            f"{name[:200]!r} is no name for a file: 1 to 200 of A-Z, a-z, 0-9, dot, _ and -"
        )
    seed, n = hashlib.sha256(name.encode() + metadata).hexdigest()[:32], 0
    while (boundary := f"{seed}{n}").encode() in body or boundary.encode() in metadata:
        n += 1
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="metadata"\r\n\r\n'.encode()
    file = (
        f'\r\n--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    ).encode()
    whole = b"".join((head, metadata, file, body, f"\r\n--{boundary}--\r\n".encode()))
    return f"multipart/form-data; boundary={boundary}", whole


def _onward(call: _Call, request: Request, page: Page) -> str:
    """Where a redirect leads; raises where it may not lead."""
    locations = {value for name, value in page.headers if name.lower() == "location" and value}
    if page.status not in _REDIRECTS[request.method] or len(locations) != 1:
        raise call.failed(
            f"the Gateway answered {page.status}, which leads nowhere; is GATEWAY_URL right?"
        )
    text = locations.pop().encode("latin-1").decode("utf-8", "replace")
    try:
        urls.check_host(text)
        there = urls.parse(ada_url.join_url(request.url, text)).url
    except (UrlError, ValueError):
        raise call.failed(
            f"the Gateway redirected to what is no address: {call.shown(text)}"
        ) from None
    origin = ada_url.URL(there).origin
    if origin != ada_url.URL(request.url).origin:
        raise call.failed(
            f"the Gateway redirected to {call.shown(origin)}; the token was not sent there; "
            "if that is the Gateway, set GATEWAY_URL to it"
        )
    return there


def _answer(call: _Call, page: Page) -> dict[str, Any]:
    return _contract(call, lambda: answers.read(page.body))


def _contract(call: _Call, read: Callable[[], _Read]) -> _Read:
    """What an answer says, or the error for one that says something else."""
    try:
        return read()
    except NotTheContract as error:
        raise call.failed(f"the Gateway's answer {call.shown(str(error))}") from None
