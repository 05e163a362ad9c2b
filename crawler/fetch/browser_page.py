"""One page in a browser: where it may go, what it may use, and what it looks like in the end."""

import asyncio
import base64
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import msgspec
from playwright.async_api import Browser as PlaywrightBrowser
from playwright.async_api import BrowserContext, CDPSession, Dialog, Error
from playwright.async_api import Page as Tab
from playwright.async_api import Request as TabRequest

from crawler.errors import FetchError, UrlError
from crawler.fetch.browser_proxy import PinningProxy, Visitor
from crawler.fetch.browser_session import PageSession, Target, overridden
from crawler.fetch.browser_steps import Steps
from crawler.fetch.budget import Budget
from crawler.fetch.egress import names_loopback
from crawler.fetch.http import USER_AGENT, Request, RequestHook
from crawler.fetch.rendering import Rendered, RenderOptions
from crawler.fetch.wire import media_type
from crawler.models import Page

OPEN_S = 20.0
"""How long a browser may take to open an empty page; after that it hangs."""
QUIET_S, MAX_QUIET_S = 0.5, 5.0
"""Time without a request after which a page is ready, and how long that is waited for."""
LOAD_S = 15.0
"""How long the end of loading is waited for: one server that hangs must not cost the page."""
POLL_S = 0.05
LATE_S = 1.0
"""How much later than its effects the reason of a failure is told."""
WINDOW = (1280, 800)
MAX_PICTURE = 16_000
"""Pixels of a screenshot's height."""
PIECE = 1 << 20
MAX_TRIES = 5
"""How often the DOM of a page that goes elsewhere meanwhile is asked for."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_NO_DOCUMENT = frozenset({204, 205, 304})
_HTML = frozenset({"text/html", "application/xhtml+xml"})
_LOOKS_LIKE_HTML = re.compile(rb"\s*<(?:!doctype html|!--|html|head|body|title)\b", re.IGNORECASE)
_OF_THE_WIRE = frozenset({
    "content-encoding", "content-length", "transfer-encoding", "connection", "keep-alive",
})  # fmt: skip
"""Headers that say nothing about a body as a browser gives it."""
_NEEDED_FOR_PICTURES = frozenset({"image", "font", "stylesheet"})
_FAILURES = (
    ("ERR_(CERT|SSL|BAD_SSL|ECH)_", "tls"),
    ("ERR_(INVALID_|UNEXPECTED|INCOMPLETE_HTTP2|HTTP2|HTTP_)", "bad_response"),
    ("ERR_RESPONSE_HEADERS_TOO_BIG", "headers_too_large"),
    ("ERR_RESPONSE_HEADERS_", "bad_response"),
    ("ERR_(INCOMPLETE_CHUNKED|CONTENT_LENGTH)", "truncated"),
    ("ERR_CONTENT_DECODING", "bad_encoding"),
    ("ERR_TOO_MANY_REDIRECTS", "too_many_redirects"),
    ("ERR_(UNSAFE_PORT|DISALLOWED_URL|UNKNOWN_URL|UNSAFE_REDIRECT)", "bad_redirect"),
)
"""Chromium's names of failures, and ours. Any other is one of the connection."""
_NO_SERVICE_WORKERS = """
  delete Navigator.prototype.serviceWorker;
  delete globalThis.ServiceWorkerContainer;
"""
"""A page that finds none does without; Playwright's `block` leaves one promise open for ever, and a
way around it."""
_DOM = """(most => {
  const type = document.doctype ? new XMLSerializer().serializeToString(document.doctype) : "";
  const text = (type && type + "\\n") + (document.documentElement?.outerHTML ?? "");
  return text.length > most ? {size: text.length} : {text: text.toWellFormed()};
})(%d)"""


class PageLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one page may use. A page that uses more fails."""

    requests: int = 200
    """For other things than documents; those of blocked types do not count."""
    traffic: int = 30_000_000
    """Bytes over the wire."""
    navigations: int = 10
    """Redirects of the page, and places where its scripts lead."""
    dialogs: int = 20
    popups: int = 20
    workers: int = 20


class _Deadline:
    """A time limit that leaves out waits for permits, and time in which this process was busy."""

    def __init__(self, seconds: float, budget: Budget, expire: Callable[[], None]) -> None:
        self._left_s, self._budget, self._expire = seconds, budget, expire
        self._timer: asyncio.TimerHandle | None = None

    def go_on(self) -> None:
        self._since, self._waited_s = time.monotonic(), self._budget.waited_s
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(self._left_s, 0.0), self._look)

    def pause(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
            waited_s = self._budget.waited_s - self._waited_s
            self._left_s -= time.monotonic() - self._since - waited_s

    def _look(self) -> None:
        self.pause()
        if self._left_s <= 0:
            self._expire()
        else:
            self.go_on()


class PageVisit:
    """Renders one page in a context of its own. The caller closes it, whatever happens."""

    def __init__(
        self,
        request: Request,
        hook: RequestHook,
        options: RenderOptions,
        *,
        proxy: PinningProxy,
        limits: PageLimits,
        max_body: int,
    ) -> None:
        self._request, self._hook, self._options = request, hook, options
        self._proxy, self._limits = proxy, limits
        self._max_body = max_body if request.max_body is None else request.max_body
        if request.method != "GET":
            raise FetchError("bad_request", "a browser is not given forms to send")
        try:
            self._first = self._here = Target.of(request.url)
        except UrlError as error:
            raise FetchError("bad_url", f"the URL cannot be dialled: {error}") from None
        self._session = PageSession(request, self._first)
        is_local = request.loopback and names_loopback(self._first.host)
        self._visitor = Visitor(
            proxy=request.session.proxy if request.session else None,
            loopback=self._first.dialled if is_local else None,
            connect_timeout_s=request.connect_timeout_s,
            max_bytes=limits.traffic,
            give_up=self._fail,
        )
        self._blocked = frozenset[str](options.block)
        if options.screenshot or options.pdf:
            self._blocked -= _NEEDED_FOR_PICTURES
        self._failure: asyncio.Future[Rendered] = asyncio.get_running_loop().create_future()
        self._deadline = _Deadline(request.timeout_s, request.budget, self._expire)
        self._permit: AbstractAsyncContextManager[None] | None = None
        self._turn = asyncio.Lock()  # one navigation after the other
        self._context: BrowserContext | None = None
        self._main_frame = ""
        self._response: Page | None = None  # of the document that is shown
        self._file: Page | None = None  # of what is no document
        self._hosts = {self._first.host}
        self._navigations = 0
        self._counts = dict.fromkeys(("requests", "dialogs", "popups", "workers"), 0)
        self._loading: set[TabRequest] = set()
        self._loaded_at = 0.0  # when a request began or ended last
        self._tasks: set[asyncio.Task[None]] = set()

    async def render(self, browser: PlaywrightBrowser, died: asyncio.Event) -> Rendered:
        """Return the page; raises `FetchError`, or what the hook raises."""
        self._proxy.admit(self._visitor)
        work = asyncio.ensure_future(self._render(browser, died))
        death = asyncio.ensure_future(died.wait())
        self._deadline.go_on()
        error: BaseException | None = None
        try:
            ended = (work, death, self._failure)
            await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                return self._failure.result()
            if not death.done():
                return work.result()
        except Error as raised:
            error = await self._explained(raised, died)
            raise error from None
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._deadline.pause()
            for task in (work, death, *self._tasks):
                task.cancel()
            await asyncio.gather(work, death, *self._tasks, return_exceptions=True)
            self._failure.cancel()
            await self._leave_gate(error)
            self._proxy.dismiss(self._visitor)
        raise _crashed()

    async def close(self) -> None:
        """Close the context of the page."""
        if self._context:
            with suppress(Error):
                await self._context.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _explained(self, error: Error, died: asyncio.Event) -> Exception:
        """Return what has failed, where the driver has raised an error."""
        if "has been closed" in error.message:
            # The reason is told after the failure.
            death: asyncio.Future[Any] = asyncio.ensure_future(died.wait())
            ended: tuple[asyncio.Future[Any], ...] = (self._failure, death)
            await asyncio.wait(ended, timeout=LATE_S, return_when=asyncio.FIRST_COMPLETED)
            death.cancel()
        if died.is_set():
            return _crashed()
        if self._failure.done():
            return _error_of(self._failure) or error
        if problem := self._visitor.problems.get(self._here.dialled):
            return problem
        name = re.search(r"net::(ERR_\w+)", error.message)
        if name is None:
            return FetchError("page_crashed", f"the page broke off ({_first_line(error)})")
        reasons = (word for pattern, word in _FAILURES if re.match(pattern, name[1]))
        return FetchError(next(reasons, "connection"), f"the browser got no page ({name[1]})")

    # Limits

    def _fail(self, error: Exception) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)
            self._failure.exception()  # whoever waits will see it; nobody has to

    def _expire(self) -> None:
        self._fail(
            FetchError("timeout", f"the page took longer than {self._request.timeout_s:g} s")
        )

    def _count(self, what: str) -> None:
        self._counts[what] += 1
        most = getattr(self._limits, what)
        if self._counts[what] > most:
            made = {"dialogs": "opens", "popups": "opens", "workers": "starts"}.get(what, "makes")
            self._fail(FetchError(f"too_many_{what}", f"the page {made} more than {most} {what}"))

    # The page

    async def _render(self, browser: PlaywrightBrowser, died: asyncio.Event) -> Rendered:
        try:
            async with asyncio.timeout(OPEN_S):
                tab, cdp = await self._open(browser)
        except TimeoutError:
            died.set()
            raise FetchError("browser_crashed", "the browser does not answer") from None
        try:
            await tab.goto(self._first.url, wait_until="commit", timeout=0)
        except Error:
            if self._file is None:
                raise
        if self._file:
            await self._take_cookies()
            return self._rendered(self._file, self._file)
        steps = Steps(tab, self._settle)
        if self._options.wait_for:
            await steps.wait_for_page(self._options.wait_for)
        else:
            await self._settle(tab)
        await steps.take(self._options.steps)
        dom = (await self._dom(cdp)).encode()
        self._hold(dom)
        assert self._response
        headers = [(name, value) for name, value in self._response.headers if not _is_of_body(name)]
        page = msgspec.structs.replace(
            self._response,
            final_url=self._shown_url(tab),
            headers=(*headers, ("content-type", "text/html; charset=utf-8")),
            body=dom,
            raw=dom,
        )
        picture = pdf = b""
        if self._options.screenshot:
            picture = await self._picture(tab)
        if self._options.pdf:
            pdf = await tab.pdf(print_background=True)
        self._hold(picture + pdf)
        await self._take_cookies()
        return self._rendered(page, self._response, picture, pdf)

    async def _take_cookies(self) -> None:
        assert self._context
        await self._session.take_cookies(self._context, self._hosts)

    def _rendered(
        self, page: Page, response: Page, picture: bytes = b"", pdf: bytes = b""
    ) -> Rendered:
        return Rendered(
            page=page,
            response=response,
            requests=self._counts["requests"],
            received=self._visitor.received,
            refused=tuple(self._visitor.refused),
            screenshot=picture,
            pdf=pdf,
        )

    def _hold(self, data: bytes) -> None:
        """Count bytes for the page; they are given back with its budget."""
        self._request.budget.hold(len(data))

    async def _open(self, browser: PlaywrightBrowser) -> tuple[Tab, CDPSession]:
        """Open an empty page, with all its limits."""
        headers = self._session.headers(self._first)
        agent = headers.get("user-agent", ("", USER_AGENT))[1]
        self._context = context = await browser.new_context(
            proxy={"server": self._proxy.url, "bypass": "<-loopback>"},
            user_agent=agent,
            extra_http_headers=self._session.everywhere(),
            viewport={"width": WINDOW[0], "height": WINDOW[1]},
            accept_downloads=False,
        )
        context.on("request", self._on_request)
        context.on("requestfinished", self._on_request_end)
        context.on("requestfailed", self._on_request_end)
        tab, *_ = await asyncio.gather(
            context.new_page(),
            context.grant_permissions([]),
            context.add_init_script(_NO_SERVICE_WORKERS),
            self._session.give_cookies(context),
        )
        context.on("page", lambda popup: self._spawn(popup.close()))
        tab.on("crash", lambda _: self._fail(FetchError("page_crashed", "the page has crashed")))
        tab.on("close", lambda _: self._spawn(self._note_close()))
        tab.on("download", lambda download: self._visitor.refuse(download.url))
        tab.on("dialog", self._on_dialog)
        tab.on("worker", lambda _: self._count("workers"))
        cdp = await context.new_cdp_session(tab)
        cdp.on("Fetch.requestPaused", lambda event: self._spawn(self._decide(cdp, event)))
        cdp.on("Fetch.authRequired", lambda event: self._spawn(self._sign_in(cdp, event)))
        cdp.on("Page.windowOpen", lambda _: self._count("popups"))
        await asyncio.gather(
            cdp.send("Page.enable"),
            cdp.send("Fetch.enable", {"handleAuthRequests": True, "patterns": self._patterns()}),
        )
        tree = await cdp.send("Page.getFrameTree")
        self._main_frame = tree["frameTree"]["frame"]["id"]
        return tab, cdp

    def _patterns(self) -> list[dict[str, str]]:
        """Return which requests stop until we let them go on.

        Those of the driver (`page.route`) would also switch the cache off.
        """
        patterns = [
            {"resourceType": "Document", "requestStage": "Request"},
            {"resourceType": "Document", "requestStage": "Response"},
            {"resourceType": "Fetch"},  # prefetches are among these
            *({"resourceType": kind.capitalize()} for kind in sorted(self._blocked)),
        ]
        if self._session.secret(self._first):
            # Not only those to its own origin: the browser would take a header along to wherever
            # such a request is redirected.
            patterns.append({"urlPattern": "*", "requestStage": "Request"})
        return patterns

    def _spawn(self, work: Awaitable[None]) -> None:
        """Handle an event; what goes wrong ends the page."""
        task = asyncio.ensure_future(self._handle(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Error:
            pass  # the request, the popup or the page is gone
        except Exception as error:
            self._fail(error)

    def _on_request(self, request: TabRequest) -> None:
        self._loading.add(request)
        self._loaded_at = time.monotonic()
        kind = request.resource_type
        is_part = kind != "document" and kind not in self._blocked
        if is_part and request.url.startswith(("http:", "https:")):
            self._count("requests")

    def _on_request_end(self, request: TabRequest) -> None:
        self._loading.discard(request)
        self._loaded_at = time.monotonic()

    def _on_dialog(self, dialog: Dialog) -> None:
        self._count("dialogs")
        self._spawn(dialog.dismiss())

    async def _note_close(self) -> None:
        await asyncio.sleep(LATE_S)  # where the browser dies, its pages close first
        raise FetchError("page_crashed", "the page closed itself")

    # Requests

    async def _sign_in(self, cdp: CDPSession, event: dict[str, Any]) -> None:
        """Tell our proxy, and nobody else, who asks. The browser remembers it for the context."""
        answer: dict[str, str] = {"response": "CancelAuth"}
        if event["authChallenge"].get("source") == "Proxy":
            answer = {"response": "ProvideCredentials", "username": self._visitor.name}
        told = {"requestId": event["requestId"], "authChallengeResponse": answer}
        await cdp.send("Fetch.continueWithAuth", told)

    async def _decide(self, cdp: CDPSession, event: dict[str, Any]) -> None:
        """Let a request or an answer go on, or not."""
        kind, which = event["resourceType"], {"requestId": event["requestId"]}
        is_answer = "responseStatusCode" in event or "responseErrorReason" in event
        if kind == "Document" and event["frameId"] == self._main_frame:
            async with self._turn:
                if is_answer:
                    await self._examine(cdp, event)
                else:
                    await self._navigate(cdp, event)
            return
        if is_answer:
            await cdp.send("Fetch.continueRequest", which)
            return
        if kind.lower() in self._blocked:
            await cdp.send("Fetch.failRequest", {**which, "errorReason": "BlockedByClient"})
            return
        place = self._subresource(kind, event["request"])
        if place is None:
            self._visitor.refuse(event["request"]["url"])
            await cdp.send("Fetch.failRequest", {**which, "errorReason": "BlockedByClient"})
            return
        given = {}
        if place.origin == self._session.home and kind != "Document":
            given = overridden(event["request"]["headers"], self._session.secret(place))
        await cdp.send("Fetch.continueRequest", {**which, **given})

    def _subresource(self, kind: str, request: dict[str, Any]) -> Target | None:
        """Return where a part of the page comes from, or None if it is not loaded."""
        if "Sec-Purpose" in request["headers"]:
            return None  # it is for a page that may be opened next
        try:
            place = Target.of(request["url"])
        except UrlError:
            return None
        if kind == "Document" and self._visitor.loopback and place.origin != self._first.origin:
            return None  # inside a page of this machine it could ask this machine
        return place

    async def _navigate(self, cdp: CDPSession, event: dict[str, Any]) -> None:
        """Let the page go to a URL, as often and to where that is allowed."""
        which = {"requestId": event["requestId"]}
        try:
            await self._leave_gate(None)
            self._navigations += 1
            self._here = here = self._led_to(event["request"]["url"])
            if here.dialled != self._first.dialled:
                self._visitor.loopback = None  # for good, as in `Client.fetch`
            await self._enter_gate(here.url)
            await self._proxy.check(self._visitor, here.scheme, here.dialled)
        except BaseException as error:
            if isinstance(error, Exception):
                self._fail(error)
            with suppress(Error):
                await cdp.send("Fetch.failRequest", {**which, "errorReason": "Aborted"})
            raise
        self._hosts.add(here.host)
        given = overridden(event["request"]["headers"], self._session.headers(here))
        await cdp.send("Fetch.continueRequest", {**which, **given})

    def _led_to(self, url: str) -> Target:
        most = self._limits.navigations
        if self._navigations > most + 1:
            raise FetchError("too_many_redirects", f"more than {most} redirects")
        try:
            return Target.of(url)
        except UrlError as error:
            message = f"redirected to where nothing is fetched: {error}"
            raise FetchError("bad_redirect", message) from None

    async def _enter_gate(self, url: str) -> None:
        self._deadline.pause()
        try:
            permit = self._hook(url)
            await permit.__aenter__()
            self._permit = permit
        finally:
            self._deadline.go_on()

    async def _leave_gate(self, error: BaseException | None) -> None:
        permit, self._permit = self._permit, None
        if permit:
            traceback = error.__traceback__ if error else None
            await permit.__aexit__(type(error) if error else None, error, traceback)

    async def _examine(self, cdp: CDPSession, event: dict[str, Any]) -> None:
        """Read the answer to a navigation, and show it if it is a document."""
        which = {"requestId": event["requestId"]}
        status = event.get("responseStatusCode", 0)
        problem = self._visitor.problems.get(self._here.dialled)
        if problem:
            self._fail(problem)
            return
        headers = _split_headers(event.get("responseHeaders", []))
        fields = {name.lower(): value for name, value in reversed(headers)}
        is_redirect = status in _REDIRECTS and "location" in fields
        if not status or (is_redirect and self._request.follow):
            await self._leave_gate(None)
            await cdp.send("Fetch.continueRequest", which)
            return
        body = b"" if is_redirect else await self._body(cdp, event["requestId"])
        await self._leave_gate(None)
        answer = Page(
            url=self._request.url,
            final_url=self._here.url,
            status=status,
            reason=event.get("responseStatusText", ""),
            headers=tuple(headers),
            body=body,
            raw=body,
            fetched_at=time.time(),
            fetch_s=0.0,
        )
        if is_redirect or not _is_document(status, fields, body):
            if self._response is None:
                self._file = answer
            else:
                self._visitor.refuse(self._here.url)  # a download of the page that is shown
            await cdp.send("Fetch.failRequest", {**which, "errorReason": "Aborted"})
            return
        self._response = answer
        # Its cookies are known already, and its coding is undone.
        dropped = {*_OF_THE_WIRE, "set-cookie"}
        kept = [{"name": n, "value": v} for n, v in headers if n.lower() not in dropped]
        shown = {"responseCode": status, "responseHeaders": kept, "body": _base64(body)}
        await cdp.send("Fetch.fulfillRequest", {**which, **shown})

    async def _body(self, cdp: CDPSession, request_id: str) -> bytes:
        """Read the body of an answer up to the limit, before the page gets it."""
        opened = await cdp.send("Fetch.takeResponseBodyAsStream", {"requestId": request_id})
        handle, pieces, size = opened["stream"], [], 0
        while True:
            read = await cdp.send("IO.read", {"handle": handle, "size": PIECE})
            data = read["data"].encode()
            if read.get("base64Encoded"):
                data = base64.b64decode(data)
            size += len(data)
            if size > self._max_body:
                message = f"the page is larger than {self._max_body:,} bytes"
                raise FetchError("too_large", message)
            self._hold(data)
            pieces.append(data)
            if read["eof"]:
                break
        await cdp.send("IO.close", {"handle": handle})
        return b"".join(pieces)

    # What is shown

    async def _settle(self, tab: Tab) -> None:
        """Wait until the page has loaded and makes no requests for a while, but not for ever."""
        while True:
            seen = self._navigations
            with suppress(Error):  # a timeout, or the page goes elsewhere
                await tab.wait_for_load_state("load", timeout=LOAD_S * 1000)
            await self._quiet()
            if seen == self._navigations:
                return

    async def _quiet(self) -> None:
        self._loaded_at = time.monotonic()  # what was done may have effects a little later
        until = self._loaded_at + MAX_QUIET_S
        while (now := time.monotonic()) < until:
            if not self._loading and now - self._loaded_at >= QUIET_S:
                return
            if self._turn.locked():  # it waits for a permit, or for its next document
                until = now + MAX_QUIET_S
            await asyncio.sleep(POLL_S)

    async def _dom(self, cdp: CDPSession) -> str:
        """Return the DOM, asked for in a world that the page's scripts cannot change."""
        for left in reversed(range(MAX_TRIES)):
            try:
                made = await cdp.send("Page.createIsolatedWorld", {"frameId": self._main_frame})
                asked = {"contextId": made["executionContextId"], "returnByValue": True}
                asked["expression"] = _DOM % self._max_body
                answer = await cdp.send("Runtime.evaluate", asked)
                value = answer["result"]["value"]
            except (Error, KeyError) as error:
                if not left:
                    raise FetchError(
                        "page_crashed", "the page goes elsewhere all the time"
                    ) from error
                await self._quiet()
                continue
            text = value.get("text")
            if text is None or len(text.encode()) > self._max_body:
                message = f"the page has grown larger than {self._max_body:,} bytes"
                raise FetchError("too_large", message)
            return str(text)
        raise AssertionError

    def _shown_url(self, tab: Tab) -> str:
        """Return where the page is in the end; scripts may have changed its path."""
        return self._led_to(tab.url).url

    async def _picture(self, tab: Tab) -> bytes:
        width, height = WINDOW
        grown = await tab.evaluate("document.documentElement.scrollHeight")
        height = min(max(int(grown), height), MAX_PICTURE)
        clip: Any = {"x": 0, "y": 0, "width": width, "height": height}
        return await tab.screenshot(full_page=True, clip=clip, animations="disabled", timeout=0)


def _error_of(failure: "asyncio.Future[Rendered]") -> Exception | None:
    """Return how a page has failed; only errors are put there."""
    error = failure.exception()
    assert error is None or isinstance(error, Exception)
    return error


def _crashed() -> FetchError:
    return FetchError("browser_crashed", "the browser has crashed")


def _first_line(error: Error) -> str:
    return error.message.strip().partition("\n")[0][:200]


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _is_of_body(name: str) -> bool:
    return name.lower() == "content-type" or name.lower() in _OF_THE_WIRE


def _is_document(status: int, fields: dict[str, str], body: bytes) -> bool:
    """Whether a browser shows an answer as a page with a DOM of its own."""
    if status in _NO_DOCUMENT or fields.get("content-disposition", "").startswith("attachment"):
        return False
    kind = media_type(fields.get("content-type", ""))
    if not kind:
        return bool(_LOOKS_LIKE_HTML.match(body))
    return kind in _HTML


def _split_headers(told: list[dict[str, str]]) -> list[tuple[str, str]]:
    """Return headers as pairs; those of one name may come joined by line breaks."""
    return [(one["name"], value) for one in told for value in one["value"].split("\n")]
