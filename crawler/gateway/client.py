"""The Gateway's HTTP API, as a worker uses it."""

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
from crawler.resilience import retry

MAX_WAIT_S = 600.0
"""No Gateway keeps us waiting longer."""
MAX_ERRORS, MAX_ERROR = 100, 500
MAX_COMMANDS, MAX_COMMAND = 100, 100
MAX_MESSAGE = 300

_SIGNS = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],]', re.DOTALL)
"""What separates the elements of an array; whole texts, so that nothing in them does."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class Work(msgspec.Struct, frozen=True):
    """What the Gateway handed out; the tasks are decoded, and nothing about them is checked."""

    tasks: list[Any]
    wait_s: float
    """How long it asked to be left alone."""


class DeliveryCounts(msgspec.Struct, frozen=True):
    """What the Gateway says became of results; whether that fits what was sent is for the sender to
    see."""

    stored: int
    failed: int
    errors: tuple[str, ...]
    updated: int = 0
    """Of the stored ones, those that the Gateway wrote over a row that it had."""


class BadAnswer(Exception):
    """An answer says something else than it should."""


class _Results(msgspec.Struct):
    inserted: _Count | None
    updated: _Count | None
    failed: _Count | None
    errors: list[Any] | None = None


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object of an answer; raises `BadAnswer`."""
    try:
        value = _decoded(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadAnswer(f"is not JSON ({str(error)[:100]})" if body else "is empty") from None
    if not isinstance(value, dict):
        raise BadAnswer("is not a JSON object")
    return value


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        # One odd value in one task must not cost its neighbours: all of them are ours, and nobody
        # else's.
        return _forgiving(body)


def _forgiving(body: bytes) -> Any:
    """An answer whose tasks are read one by one; of one that cannot be read, its id is kept."""
    text = body.decode("utf-8-sig", "replace")
    begin = re.search(r'"tasks"\s*:\s*\[', text)
    if begin is None:
        return _loads(text)
    pieces, end = _elements(text, begin.end())
    answer = _loads(text[: begin.end()] + text[end:])
    if not isinstance(answer, dict) or answer.get("tasks") != []:
        return _loads(text)  # they are somebody else's tasks, deeper within
    return answer | {"tasks": [_task(piece) for piece in pieces]}


def _loads(text: str) -> Any:
    """JSON as leniently as it can be read: what is no number is nothing, half a character is a
    question mark."""
    value = json.loads(
        text, strict=False, parse_constant=lambda _: None, parse_float=_float, parse_int=_int
    )
    return msgspec.json.decode(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _float(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _int(text: str) -> int | None:
    return int(text) if len(text) < 300 else None


def _task(piece: str) -> Any:
    try:
        return _loads(piece)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        name = re.search(r'"task_id"\s*:\s*("(?:[^"\\]|\\.){0,2000}"|\d{1,100})', piece)
        return (
            {"task_id": _loads(name[1]), "target": "cannot be read"} if name else "cannot be read"
        )


def _elements(text: str, begin: int) -> tuple[list[str], int]:
    """The elements of the array that begins there, as text, and where it ends; `ValueError` where
    it does not."""
    depth, start, found = 0, begin, []
    for sign in _SIGNS.finditer(text, begin):
        match sign[0][0]:
            case "{" | "[":
                depth += 1
            case "}" | "]" if depth:
                depth -= 1
            case "]" | ",":
                if depth == 0:
                    found.append(text[start : sign.start()])
                    start = sign.end()
                    if sign[0] == "]":
                        return [piece for piece in found if piece.strip()], sign.start()
    raise ValueError("the list of tasks has no end")


def parse_work(answer: dict[str, Any], asked_s: float) -> Work:
    """The tasks of an answer, of which null is none; raises `BadAnswer`."""
    tasks = answer.get("tasks", "")
    if tasks is not None and not isinstance(tasks, list):
        raise BadAnswer("has no list of tasks")
    return Work(tasks or [], asked_s)


def parse_counts(answer: dict[str, Any], secret: str) -> DeliveryCounts:
    """The counts of an answer, and its words on what failed; raises `BadAnswer`."""
    try:
        counts = msgspec.convert(answer, _Results)
    except msgspec.ValidationError as error:
        raise BadAnswer(f"does not count what was stored ({error})") from None
    inserted, updated, failed = counts.inserted or 0, counts.updated or 0, counts.failed or 0
    if None in (counts.inserted, counts.updated, counts.failed) and not inserted + updated + failed:
        raise BadAnswer("does not count what was stored")
    errors = tuple(one_line(text, MAX_ERROR, secret) for text in (counts.errors or ())[:MAX_ERRORS])
    return DeliveryCounts(inserted + updated, failed, errors, updated)


def parse_commands(answer: dict[str, Any], secret: str) -> list[str]:
    """The commands of an answer, as far as they are texts."""
    given = answer.get("commands")
    texts = [text for text in given if isinstance(text, str)] if isinstance(given, list) else []
    return [one_line(text, MAX_COMMAND, secret) for text in texts[:MAX_COMMANDS]]


def error_message(body: bytes, secret: str) -> str:
    """The Gateway's own words on what went wrong, if it has any; FastAPI's and others' way to say
    it count as well."""
    try:
        answer = parse_object(body)
    except BadAnswer:
        return _plain_text(body, secret)
    error = answer.get("error")
    found = error.get("message") if isinstance(error, dict) else error
    found = next(
        (text for text in (found, answer.get("message"), answer.get("detail")) if text), ""
    )
    return one_line(found, MAX_MESSAGE, secret)


def _plain_text(body: bytes, secret: str) -> str:
    """The words of an answer that is plain text, such as Go's `invalid JSON`; markup and broken
    JSON have none."""
    text = body[: 100 * MAX_MESSAGE].decode("utf-8", "replace").strip()
    return one_line(text, MAX_MESSAGE, secret) if text[:1].isalnum() else ""


def one_line(value: object, most: int, secret: str) -> str:
    """A foreign text as one printable line of so many characters; never the secret, nor its
    beginning."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    line = " ".join(
        "".join(sign if sign.isprintable() else " " for sign in text[: 100 * most]).split()
    )
    return "(not shown: it repeats the token)" if secret[:8] in line else line[:most]


def longest_wait(headers: Iterable[str], value: object, now: float) -> float:
    """The longest wait that `Retry-After` headers and a body's `retry_after` ask for, within
    reason; 0 for none."""
    asked = [_seconds(text) or retry.retry_after(text, now) or 0.0 for text in headers]
    return min(MAX_WAIT_S, max([0.0, _seconds(value), *asked]))


def _seconds(value: object) -> float:
    if isinstance(value, str):
        try:
            value = float(value) if value.isascii() and "_" not in value else 0.0
        except ValueError:
            return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return 0.0
    return float(min(value, MAX_WAIT_S))


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
        return one_line(text, MAX_MESSAGE, self.secret)


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
        return _contract(call, lambda: parse_work(answer, self._asked_s(page, answer)))

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
    ) -> DeliveryCounts:
        """Hand over a JSON array of results; the answer counts them, and rarely says which of them
        failed."""
        headers = (
            *_JSON,
            *_key(hashlib.sha256(body).hexdigest()),
            *((("X-Results-Late", "true"),) if late else ()),
        )
        call = self._call("POST", f"{self._base_of(kind)}/results", headers, body)
        answer = _answer(call, await self._send(call))
        return _contract(call, lambda: parse_counts(answer, call.secret))

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
        return parse_commands(_answer(call, await self._send(call)), call.secret)

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
        if said := error_message(page.body, call.secret):
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
                answer = parse_object(page.body)
            except BadAnswer:
                answer = {}
        headers = [value for name, value in page.headers if name.lower() == "retry-after"]
        return longest_wait(headers, answer.get("retry_after"), self._clock())


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
    return _contract(call, lambda: parse_object(page.body))


def _contract(call: _Call, read: Callable[[], _Read]) -> _Read:
    """What an answer says, or the error for one that says something else."""
    try:
        return read()
    except BadAnswer as error:
        raise call.failed(f"the Gateway's answer {call.shown(str(error))}") from None


log = logging.getLogger(__name__)

FIRST_S, LONGEST_S = 0.5, 30.0


class Trouble:
    """What one service knows of the Gateway's failures in a row."""

    def __init__(
        self,
        service: str,
        longest_s: float = LONGEST_S,
        jitter: Callable[[], float] = random.random,
        note: Callable[[str | None], None] = lambda text: None,
    ) -> None:
        """`note` is told what is wrong when that begins, and None when it is over."""
        self._service, self._longest_s, self._jitter, self._note = service, longest_s, jitter, note
        self._failures = 0
        self.now: str | None = None
        """What is wrong at the moment."""

    def met(self, error: CrawlerError) -> float:
        """Note a failure; returns how long to wait: as long as the Gateway asks for, or twice as
        long each time."""
        if self.now is None:
            log.warning("%s waits: %s", self._service, error)
            self._tell(str(error))
        self.now = str(error)
        wait_s: float = min(self._longest_s, FIRST_S * 2 ** min(self._failures, 10)) * (
            0.5 + 0.5 * self._jitter()
        )
        self._failures += 1
        asked_s = error.retry_after_s if isinstance(error, GatewayError) else None
        return max(wait_s, asked_s or 0.0)

    def over(self) -> None:
        """Note a good answer."""
        if self.now is not None:
            log.warning("%s goes on: the Gateway answers again", self._service)
            self._tell(None)
        self.now, self._failures = None, 0

    def _tell(self, text: str | None) -> None:
        with contextlib.suppress(StoreError):  # that may be the trouble
            self._note(text)
