"""The Gateway's HTTP API, as a worker uses it: requests, answers, and waits between retries."""

import asyncio
import contextlib
import hashlib
import json
import logging
import math
import random
import re
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Annotated, Any, Literal, Self, TypeVar
from urllib.parse import quote, urlencode

import ada_url
import msgspec

from crawler import __version__, urls
from crawler.config import Settings
from crawler.errors import (
    ConfigError,
    CrawlerError,
    FetchError,
    GatewayDenied,
    GatewayError,
    GatewayRefused,
    StoreError,
    UrlError,
    UsageError,
)
from crawler.fetch.egress import names_loopback
from crawler.fetch.http import Client, Request
from crawler.gateway import token
from crawler.models import Page
from crawler.resilience import retry_after

log = logging.getLogger(__name__)

MAX_REDIRECTS = 3
MAX_WAIT_S = 600.0
"""The longest `Retry-After` that is obeyed."""
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.5, 30.0
MAX_ERRORS, MAX_ERROR_LENGTH = 100, 500
MAX_COMMANDS, MAX_COMMAND_LENGTH = 100, 100
MAX_MESSAGE_LENGTH = 300
MAX_INTEGER_DIGITS = 300
KINDS = ("parcel", "party")
"""The task types that have their own paths in the dialect `typed`. Other types use the first."""
_RETRIABLE_STATUSES = frozenset({408, 425, 429})
_DENIED_STATUSES = frozenset({401, 403, 407})
_RETRY_AFTER_STATUSES = frozenset({429, 503})
_REDIRECTS = {"GET": frozenset({301, 302, 303, 307, 308}), "POST": frozenset({307, 308})}
_JSON = (("Content-Type", "application/json"),)
_ARRAY_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],]', re.DOTALL)
"""Brackets and commas, and whole strings, so that no bracket inside a string counts."""
_TASK_ID = re.compile(r'"task_id"\s*:\s*("(?:[^"\\]|\\.){0,2000}"|\d{1,100})')
_UNREADABLE = "cannot be read"
_NOT_JSON = (msgspec.MsgspecError, ValueError, RecursionError)
_Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
_Headers = tuple[tuple[str, str], ...]
_T = TypeVar("_T")


class CallLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts of calls, and the largest answers."""

    connect_s: float = 10.0
    call_s: float = 30.0
    raw_s: float = 120.0
    work_bytes: int = 64 * 2**20
    other_bytes: int = 2**20


CALL_LIMITS = CallLimits()


class Work(msgspec.Struct, frozen=True):
    """An answer with tasks. They are decoded, but not checked."""

    tasks: list[Any]
    wait_s: float
    """How long the Gateway asked us to wait before the next request."""


class DeliveryCounts(msgspec.Struct, frozen=True):
    """How many results the Gateway stored. The sender compares it with what it sent."""

    stored: int
    failed: int
    errors: tuple[str, ...]
    updated: int = 0
    """Stored results that replaced a row of the Gateway."""


class BadAnswer(Exception):
    """An answer that breaks the contract."""


class _Counts(msgspec.Struct):
    inserted: _Count | None
    updated: _Count | None
    failed: _Count | None
    errors: list[Any] | None = None


class _Call:
    """One call: its name for messages, its request, and the token that messages must not show."""

    def __init__(self, what: str, secret: str, request: Request) -> None:
        self.what, self.secret, self.request = what, secret, request

    def failed(self, why: str, retry_after_s: float | None = None) -> GatewayError:
        """Return the error for a failure that may pass."""
        return GatewayError(f"{self.what}: {why}", retry_after_s)

    def not_taken(self, answer: dict[str, Any]) -> GatewayRefused:
        """Return the error for an answer 200 that reports a failure."""
        said = self.one_line(answer.get("message") or answer)
        return GatewayRefused(200, f"{self.what}: the Gateway says: {said}")

    def one_line(self, text: object) -> str:
        """Return a text of the Gateway, safe to show in an error."""
        return one_line(text, MAX_MESSAGE_LENGTH, self.secret)

    def checked(self, parse: Callable[[], _T]) -> _T:
        """Return what `parse` reads; raise `GatewayError` if the answer breaks the contract."""
        try:
            return parse()
        except BadAnswer as error:
            raise self.failed(f"the Gateway's answer {self.one_line(str(error))}") from None


class GatewayClient:
    """A client of the Gateway, for one event loop. Every call may be repeated.

    A failure that may pass raises `GatewayError`, a token that is not accepted `GatewayDenied`, and
    a request that the Gateway will never accept `GatewayRefused`.
    """

    def __init__(
        self,
        settings: Settings,
        worker_id: str,
        *,
        limits: CallLimits = CALL_LIMITS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._base = _base_url(settings)
        self._loopback = names_loopback(ada_url.URL(self._base).hostname)
        self._settings, self._limits, self._clock = settings, limits, clock
        self._worker_id = _checked_header(worker_id, "worker id")
        token(settings)  # fail now, not at the first call
        self._http = Client.of(settings)
        self.kinds: tuple[str | None, ...] = (None,)
        """The task types that have their own paths; None stands for all types."""
        if settings.gateway_dialect == "typed":
            self.kinds = KINDS

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
        """Ask for up to `capacity` tasks. The Gateway gives these tasks to no other worker."""
        if not 1 <= capacity <= 100:
            raise ValueError(f"a capacity of {capacity} is not between 1 and 100")
        query = urlencode(
            [("capacity", capacity), *(("platforms", name) for name in platforms)], quote_via=quote
        )
        target = f"{self._path(kind)}/work?{query}"
        call = self._call("GET", target, _key(key), max_body=self._limits.work_bytes)
        page = await self._send(call)
        answer = _parsed(call, page)
        return call.checked(lambda: parse_work(answer, self._retry_after_s(page, answer)))

    async def send_raw(self, name: str, body: bytes, metadata: dict[str, Any]) -> None:
        """Send a raw page under a name that no other worker uses."""
        content_type, form = _form(name, body, msgspec.json.encode(metadata))
        headers = (("Content-Type", content_type),)
        call = self._call(
            "POST", "/internal/raw-files", headers, form, timeout_s=self._limits.raw_s
        )
        answer = _parsed(call, await self._send(call))
        if answer.get("status") == "error":
            raise call.not_taken(answer)
        if answer.get("status") != "ok":
            raise call.failed("the Gateway's answer does not say whether it was kept")

    async def send_results(
        self, body: bytes, *, late: bool = False, kind: str | None = None
    ) -> DeliveryCounts:
        """Send a JSON array of results. The answer counts them, but rarely says which failed."""
        headers: _Headers = (*_JSON, *_key(hashlib.sha256(body).hexdigest()))
        if late:
            headers += (("X-Results-Late", "true"),)
        call = self._call("POST", f"{self._path(kind)}/results", headers, body)
        answer = _parsed(call, await self._send(call))
        return call.checked(lambda: parse_counts(answer, call.secret))

    async def fail(
        self, task_id: str, *, reason: str, error_type: str, attempts: int, kind: str | None = None
    ) -> None:
        """Report a task that ended without a result."""
        body = msgspec.json.encode(
            {"reason": reason, "error_type": error_type, "attempts": attempts}
        )
        segment = quote(task_id, safe="", errors="surrogatepass").replace(".", "%2E")
        path = f"{self._path(kind)}/tasks"
        call = self._call("POST", f"{path}/{segment}/fail", _JSON, body, what=f"{path}/…/fail")
        answer = _parsed(call, await self._send(call))
        if answer.get("status") == "reported":
            return  # with `success` false, the task is no longer ours
        if answer.get("status") == "error" or answer.get("success") is False:
            raise call.not_taken(answer)
        if answer.get("success") is not True and not isinstance(answer.get("status"), str):
            raise call.failed("the Gateway's answer does not say whether it was heard")

    async def heartbeat(self, body: bytes, key: str) -> list[str]:
        """Send a heartbeat; return the Gateway's commands."""
        call = self._call("POST", "/internal/heartbeat", (*_JSON, *_key(key)), body)
        return parse_commands(_parsed(call, await self._send(call)), call.secret)

    def kind_of(self, type_: object) -> str | None:
        """Return the task type whose path a task of this type uses."""
        if self.kinds == (None,):
            return None
        if type_ in KINDS:
            return str(type_)
        return KINDS[0]

    def _path(self, kind: str | None) -> str:
        """Return the path under which work, results and tasks of a type are."""
        kind = self.kind_of(kind)
        if kind is None:
            return "/internal"
        return f"/internal/{kind}"

    def _call(
        self,
        method: Literal["GET", "POST"],
        target: str,
        headers: _Headers,
        body: bytes | None = None,
        *,
        what: str = "",
        timeout_s: float | None = None,
        max_body: int | None = None,
    ) -> _Call:
        what = f"{method} {what or target.partition('?')[0]}"
        try:
            secret = token(self._settings)
        except ConfigError as error:  # the file may be in the middle of a replacement
            raise GatewayDenied(f"{what}: the Gateway was not asked, because {error}") from None
        request = Request(
            url=self._base + target,
            loopback=self._loopback,
            timeout_s=timeout_s or self._limits.call_s,
            connect_timeout_s=self._limits.connect_s,
            headers=(
                ("X-Worker-Token", secret),
                ("X-Worker-ID", self._worker_id),
                ("Accept", "application/json"),
                ("User-Agent", f"crawler/{__version__}"),
                *headers,
            ),
            max_body=max_body or self._limits.other_bytes,
            method=method,
            body=body,
            follow=False,
            exact=True,
        )
        return _Call(what, secret, request)

    async def _send(self, call: _Call) -> Page:
        """Return the answer to a call; raise for any status but 2xx."""
        try:
            async with asyncio.timeout(call.request.timeout_s):
                page = await self._send_handling_redirects(call)
        except TimeoutError:
            raise call.failed(f"the answer took longer than {call.request.timeout_s:g} s") from None
        except FetchError as error:
            why = call.one_line(error.message.replace("the page", "the answer"))
            if error.reason in ("bad_url", "bad_request"):
                raise GatewayRefused(414, f"{call.what}: it cannot be sent: {why}") from None
            raise call.failed(why) from None
        self._check_status(call, page)
        return page

    async def _send_handling_redirects(self, call: _Call) -> Page:
        request = call.request
        for _ in range(MAX_REDIRECTS + 1):
            page = await self._http.fetch(request)
            if not 300 <= page.status < 400:
                return page
            request = msgspec.structs.replace(request, url=_redirect_target(call, request, page))
        raise call.failed(f"the Gateway redirected more than {MAX_REDIRECTS} times")

    def _check_status(self, call: _Call, page: Page) -> None:
        if 200 <= page.status < 300:
            return
        why = f"the Gateway answered {page.status} {call.one_line(page.reason)[:60]}".rstrip()
        if said := error_message(page.body, call.secret):
            why = f"{why}: {said}"
        if page.status in _DENIED_STATUSES:
            raise GatewayDenied(
                f"{call.what}: {why}; is GATEWAY_TOKEN (or what GATEWAY_TOKEN_FILE holds) right?"
            )
        if 400 <= page.status < 500 and page.status not in _RETRIABLE_STATUSES:
            raise GatewayRefused(page.status, f"{call.what}: {why}")
        retry_after_s = 0.0
        if page.status in _RETRY_AFTER_STATUSES:
            answer: dict[str, Any] = {}
            with contextlib.suppress(BadAnswer):
                answer = parse_object(page.body)
            retry_after_s = self._retry_after_s(page, answer)
        raise call.failed(why, retry_after_s or None)

    def _retry_after_s(self, page: Page, answer: dict[str, Any]) -> float:
        """Return how long an answer asks us to wait."""
        headers = [value for name, value in page.headers if name.lower() == "retry-after"]
        return longest_wait(headers, answer.get("retry_after"), self._clock())


def _base_url(settings: Settings) -> str:
    """Return the Gateway's URL without a slash at its end; raise if it must not be used."""
    if not settings.gateway_enabled:
        why = "GATEWAY_SYNC=disabled"
        if settings.standalone:
            why = "STANDALONE=true"
        raise UsageError(f"{why} is set: nothing is sent to a Gateway; unset it to work for one")
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


def _checked_header(text: str, what: str) -> str:
    if not re.fullmatch(r"[!-~]{1,200}", text):
        raise ValueError(
            f"{text[:200]!r} is not a {what}: "
            "it needs 1 to 200 printable ASCII characters without spaces"
        )
    return text


def _key(key: str) -> _Headers:
    return (("Idempotency-Key", _checked_header(key, "key")),)


def _form(name: str, body: bytes, metadata: bytes) -> tuple[str, bytes]:
    """Return the content type and the bytes of a form with a file and its metadata.

    The same input gives the same bytes.
    """
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", name):
        raise ValueError(
            f"{name[:200]!r} is not a file name: it needs 1 to 200 of A-Z, a-z, 0-9, dot, _ and -"
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


def _redirect_target(call: _Call, request: Request, page: Page) -> str:
    """Return the URL of a redirect; raise if it must not be followed."""
    locations = {value for name, value in page.headers if name.lower() == "location" and value}
    if page.status not in _REDIRECTS[request.method] or len(locations) != 1:
        raise call.failed(
            f"the Gateway answered {page.status}, which leads nowhere; is GATEWAY_URL right?"
        )
    text = locations.pop().encode("latin-1").decode("utf-8", "replace")
    try:
        urls.check_host(text)
        target = urls.parse(ada_url.join_url(request.url, text)).url
    except (UrlError, ValueError):
        raise call.failed(
            f"the Gateway redirected to an invalid address: {call.one_line(text)}"
        ) from None
    origin = ada_url.URL(target).origin
    if origin != ada_url.URL(request.url).origin:
        raise call.failed(
            f"the Gateway redirected to {call.one_line(origin)}; the token was not sent there; "
            "if that is the Gateway, set GATEWAY_URL to it"
        )
    return target


def _parsed(call: _Call, page: Page) -> dict[str, Any]:
    return call.checked(lambda: parse_object(page.body))


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object of an answer; raises `BadAnswer`."""
    if not body:
        raise BadAnswer("is empty")
    try:
        value = _decode(body)
    except _NOT_JSON as error:
        raise BadAnswer(f"is not JSON ({str(error)[:100]})") from None
    if not isinstance(value, dict):
        raise BadAnswer("is not a JSON object")
    return value


def _decode(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except _NOT_JSON:
        # One bad value in one task must not cost the other tasks: no other worker gets them.
        return _decode_tasks_singly(body)


def _decode_tasks_singly(body: bytes) -> Any:
    """Decode an answer task by task. Of a task that cannot be decoded, the id is kept."""
    text = body.decode("utf-8-sig", "replace")
    begin = re.search(r'"tasks"\s*:\s*\[', text)
    if begin is None:
        return _decode_leniently(text)
    pieces, end = _split_array(text, begin.end())
    answer = _decode_leniently(text[: begin.end()] + text[end:])
    if not isinstance(answer, dict) or answer.get("tasks") != []:
        return _decode_leniently(text)  # this list of tasks is nested in another value
    return answer | {"tasks": [_decode_task(piece) for piece in pieces]}


def _decode_leniently(text: str) -> Any:
    """Decode JSON; `NaN` and numbers that are too large become null, half a surrogate pair `?`."""
    value = json.loads(
        text, strict=False, parse_constant=lambda _: None, parse_float=_float, parse_int=_int
    )
    return msgspec.json.decode(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _float(text: str) -> float | None:
    value = float(text)
    if math.isfinite(value):
        return value
    return None


def _int(text: str) -> int | None:
    if len(text) < MAX_INTEGER_DIGITS:
        return int(text)
    return None


def _decode_task(piece: str) -> Any:
    try:
        return _decode_leniently(piece)
    except _NOT_JSON:
        if found := _TASK_ID.search(piece):
            return {"task_id": _decode_leniently(found[1]), "target": _UNREADABLE}
        return _UNREADABLE


def _split_array(text: str, begin: int) -> tuple[list[str], int]:
    """Return the elements of the array that begins there, and where it ends.

    Raises `ValueError` if it has no end.
    """
    depth, start, found = 0, begin, []
    for match in _ARRAY_TOKENS.finditer(text, begin):
        sign = match[0]
        if sign in ("{", "["):
            depth += 1
        elif sign in ("}", "]") and depth:
            depth -= 1
        elif sign in ("]", ",") and not depth:
            found.append(text[start : match.start()])
            start = match.end()
            if sign == "]":
                return [piece for piece in found if piece.strip()], match.start()
    raise ValueError("the list of tasks has no end")


def parse_work(answer: dict[str, Any], wait_s: float) -> Work:
    """Return the tasks of an answer; null means none. Raises `BadAnswer`."""
    tasks = answer.get("tasks", "")
    if tasks is not None and not isinstance(tasks, list):
        raise BadAnswer("has no list of tasks")
    return Work(tasks or [], wait_s)


def parse_counts(answer: dict[str, Any], secret: str) -> DeliveryCounts:
    """Return the counts and errors of an answer to results; raises `BadAnswer`."""
    try:
        counts = msgspec.convert(answer, _Counts)
    except msgspec.ValidationError as error:
        raise BadAnswer(f"does not count what was stored ({error})") from None
    inserted, updated, failed = counts.inserted or 0, counts.updated or 0, counts.failed or 0
    if None in (counts.inserted, counts.updated, counts.failed) and not inserted + updated + failed:
        raise BadAnswer("does not count what was stored")
    texts = (counts.errors or [])[:MAX_ERRORS]
    errors = tuple(one_line(text, MAX_ERROR_LENGTH, secret) for text in texts)
    return DeliveryCounts(inserted + updated, failed, errors, updated)


def parse_commands(answer: dict[str, Any], secret: str) -> list[str]:
    """Return the commands of an answer; anything but text is left out."""
    given = answer.get("commands")
    if not isinstance(given, list):
        return []
    texts = [text for text in given if isinstance(text, str)]
    return [one_line(text, MAX_COMMAND_LENGTH, secret) for text in texts[:MAX_COMMANDS]]


def error_message(body: bytes, secret: str) -> str:
    """Return the error message in an answer, in the contract's form, FastAPI's or as plain text."""
    try:
        answer = parse_object(body)
    except BadAnswer:
        return _plain_text_message(body, secret)
    message = answer.get("error")
    if isinstance(message, dict):
        message = message.get("message")
    message = message or answer.get("message") or answer.get("detail") or ""
    return one_line(message, MAX_MESSAGE_LENGTH, secret)


def _plain_text_message(body: bytes, secret: str) -> str:
    """Return a body such as Go's `invalid JSON`; nothing for markup and broken JSON."""
    text = body[: 100 * MAX_MESSAGE_LENGTH].decode("utf-8", "replace").strip()
    if not text[:1].isalnum():
        return ""
    return one_line(text, MAX_MESSAGE_LENGTH, secret)


def one_line(value: object, max_length: int, secret: str) -> str:
    """Return a text of the Gateway as one printable line that does not show the token."""
    text = value
    if not isinstance(text, str):
        text = msgspec.json.encode(value).decode()
    line = " ".join(_printable(text[: 100 * max_length]).split())
    if secret[:8] in line:
        return "(not shown: it repeats the token)"
    return line[:max_length]


def _printable(text: str) -> str:
    """Return the text with a space for each character that cannot be printed."""
    blank = {ord(sign): " " for sign in set(text) if not sign.isprintable()}
    return text.translate(blank)


def longest_wait(headers: Iterable[str], value: object, now: float) -> float:
    """Return the longest wait in `Retry-After` headers and a body's `retry_after`, up to
    MAX_WAIT_S."""
    waits = [_seconds(text) or retry_after(text, now) or 0.0 for text in headers]
    return min(MAX_WAIT_S, max([0.0, _seconds(value), *waits]))


def _seconds(value: object) -> float:
    if isinstance(value, str):
        if not value.isascii() or "_" in value:
            return 0.0
        try:
            value = float(value)
        except ValueError:
            return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return 0.0
    return float(min(value, MAX_WAIT_S))


class Backoff:
    """The waits of one service after failures in a row. Logs when trouble begins and ends."""

    def __init__(
        self,
        service: str,
        max_s: float = MAX_BACKOFF_S,
        jitter: Callable[[], float] = random.random,
        note: Callable[[str | None], None] = lambda text: None,
    ) -> None:
        """`note` is called with the error when trouble begins, and with None when it ends."""
        self._service, self._max_s, self._jitter, self._note = service, max_s, jitter, note
        self._failures = 0
        self.trouble: str | None = None
        """The last error; None after a success."""

    def failed(self, error: CrawlerError) -> float:
        """Note a failure; return how long to wait.

        The wait doubles each time, but is never shorter than the Gateway asks for.
        """
        if self.trouble is None:
            log.warning("%s waits: %s", self._service, error)
            self._tell(str(error))
        self.trouble = str(error)
        wait_s = min(self._max_s, FIRST_BACKOFF_S * 2.0 ** min(self._failures, 10))
        wait_s *= 0.5 + 0.5 * self._jitter()
        self._failures += 1
        if isinstance(error, GatewayError):
            wait_s = max(wait_s, error.retry_after_s or 0.0)
        return wait_s

    def succeeded(self) -> None:
        """Note a good answer."""
        if self.trouble is not None:
            log.warning("%s goes on: the Gateway answers again", self._service)
            self._tell(None)
        self.trouble, self._failures = None, 0

    def _tell(self, text: str | None) -> None:
        with contextlib.suppress(StoreError):  # the store itself may be the trouble
            self._note(text)
