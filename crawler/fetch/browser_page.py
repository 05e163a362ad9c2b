"""One page in a browser: where it may go, what it may use, and what it looks like in the end."""

import asyncio
import base64
import re
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import ada_url
import msgspec
from playwright.async_api import Browser as PlaywrightBrowser
from playwright.async_api import BrowserContext, CDPSession, Dialog, Error
from playwright.async_api import Page as Tab
from playwright.async_api import Request as TabRequest

from crawler import urls
from crawler.errors import FetchError, UrlError
from crawler.fetch.browser_proxy import PinningProxy, Visitor
from crawler.fetch.browser_session import PageSession, Target, overridden
from crawler.fetch.browser_steps import Steps
from crawler.fetch.budget import Budget
from crawler.fetch.egress import names_loopback
from crawler.fetch.http import USER_AGENT, Request, RequestHook
from crawler.fetch.rendering import Rendered
from crawler.fetch.wire import Headers, media_type
from crawler.models import Page
from crawler.render_options import DEFAULT_BLOCK, RenderOptions

OPEN_S = 20.0
"""How long a browser may take to open an empty page; after that it hangs."""
QUIET_S, STALLED_S = 0.5, 2.0
"""Time without a request after which a page is ready, and after which it will not load on."""
LOAD_S, STEP_S = 15.0, 5.0
"""How long that is waited for, for the page and after a step: a request that hangs must not cost
the page."""
POLL_S = 0.05
LATE_S = 1.0
"""How much later than its effects the reason of a failure is told."""
WINDOW = (1280, 800)
MAX_PICTURE = 16_000
"""Pixels of a screenshot's height."""
PIECE = 1 << 20
MAX_TRIES = 5
"""How often the DOM of a page that goes elsewhere meanwhile is asked for."""
_COUNTED = ("requests", "blocked", "messages", "dialogs", "popups", "workers")
"""What a page has limits on, by the names of these."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_NO_DOCUMENT = frozenset({204, 205, 304})
_FIRST_ERROR = 400
_HTML = frozenset({"text/html", "application/xhtml+xml"})
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
_SIZE = """({
  size: performance.getEntriesByType("navigation")[0]?.decodedBodySize ?? 0,
  charset: document.characterSet,
})"""
_DOM = """(most => {
  const type = document.doctype ? new XMLSerializer().serializeToString(document.doctype) : "";
  const text = (type && type + "\\n") + (document.documentElement?.outerHTML ?? "");
  return text.length > most ? {size: text.length} : {text: text.toWellFormed()};
})(%d)"""


class PageLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one page may use. A page that uses more fails."""

    requests: int = 200
    """For all but the page itself; those of blocked types do not count."""
    blocked: int = 2_000
    """Requests of these: each costs this process, and so its other pages, a little time."""
    connections: int = 500
    """Also those of WebSockets and calls, which are no requests."""
    traffic: int = 30_000_000
    """Bytes over the wire."""
    capture: int = 100_000_000
    """Bytes of its picture, and as many of its PDF: a bundle takes no larger files."""
    navigations: int = 10
    """Redirects of the page, and places where its scripts lead."""
    messages: int = 2_000
    """Of its scripts on the console, with errors that they do not catch: the driver reads each."""
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
            max_connections=limits.connections,
            give_up=self._fail,
        )
        block = DEFAULT_BLOCK if options.block is None else options.block
        self._blocked = frozenset[str](block)
        if options.screenshot or options.pdf:
            self._blocked -= _NEEDED_FOR_PICTURES
        self._failure: asyncio.Future[Rendered] = asyncio.get_running_loop().create_future()
        self._deadline = _Deadline(request.timeout_s, request.budget, self._expire)
        self._permit: AbstractAsyncContextManager[None] | None = None
        self._turn = asyncio.Lock()  # one navigation after the other
        self._context: BrowserContext | None = None
        self._main_frame = ""
        self._answer: Page | None = None  # to the last navigation, without its body
        self._sent: TabRequest | None = None  # the request of the last navigation
        self._shown: TabRequest | None = None  # that of the document that is shown
        self._is_shown = False  # whether there is a document, or else a file only
        self._hosts = {self._first.host}
        self._navigations = 0
        self._ended = asyncio.Event()  # all of its answer has come, or it has broken off
        self._counts = dict.fromkeys(_COUNTED, 0)
        self._loading: set[TabRequest] = set()
        self._changed_at = 0.0  # when a request began or ended last
        self._has_loaded = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_over = False

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
            self._is_over = True
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
        return _net_error(error.message)

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
            if what == "blocked":
                what = "requests"
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
            if self._answer is None or self._is_shown:
                raise
        if self._answer and not self._is_shown:
            await self._take_cookies()
            return self._rendered(self._answer, self._answer)
        step_failed = await self._take_steps(tab)
        await self._ended.wait()
        response = await self._whole_answer(cdp)
        dom = await self._dom(cdp)
        page = msgspec.structs.replace(
            response,
            final_url=self._shown_url(tab),
            headers=(
                *_without_body(response.headers),
                ("content-type", "text/html; charset=utf-8"),
            ),
            body=dom,
            raw=dom,
        )
        picture = pdf = seen = b""
        if self._options.screenshot and not step_failed:
            picture = await self._picture(tab, cdp)
        if self._options.pdf and not step_failed:
            pdf = await tab.pdf(print_background=True)
        if picture or pdf:
            seen = await self._seen(cdp)
        self._hold(len(picture) + len(pdf))
        if max(len(picture), len(pdf)) > self._limits.capture:
            most = f"{self._limits.capture:,} bytes"
            raise FetchError("too_large", f"the picture or PDF of the page is larger than {most}")
        await self._take_cookies()
        rendered = self._rendered(page, response)
        return msgspec.structs.replace(
            rendered, step_failed=step_failed, screenshot=picture, pdf=pdf, seen=seen
        )

    async def _take_steps(self, tab: Tab) -> str:
        """Wait until the page is ready, and take all steps; return why one could not be taken.

        Nothing is done on an error page: it is judged as it is.
        """
        wait_for = self._options.wait_for
        if not wait_for or self._is_error_page:
            await self._settle()
        if self._is_error_page:
            return ""
        steps = Steps(tab, lambda: self._settle(STEP_S))
        return await steps.take(wait_for or "", self._options.steps or ())

    @property
    def _is_error_page(self) -> bool:
        return self._answer is not None and self._answer.status >= _FIRST_ERROR

    async def _take_cookies(self) -> None:
        assert self._context
        await self._session.take_cookies(self._context, self._hosts)

    def _rendered(self, page: Page, response: Page) -> Rendered:
        return Rendered(
            page=page,
            response=response,
            requests=self._counts["requests"],
            received=self._visitor.received,
            refused=tuple(self._visitor.refused),
        )

    def _hold(self, size: int) -> None:
        """Count bytes for the page; they are given back with its budget."""
        self._request.budget.hold(size)

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
        tab.on("load", lambda _: self._on_load())
        tab.on("close", lambda _: self._spawn(self._note_close()))
        tab.on("download", lambda download: self._visitor.refuse(download.url))
        tab.on("dialog", self._on_dialog)
        tab.on("worker", lambda _: self._count("workers"))
        tab.on("console", lambda _: self._count("messages"))
        tab.on("pageerror", lambda _: self._count("messages"))
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

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Handle an event; what goes wrong ends the page."""
        if self._is_over:
            work.close()
            return
        task = asyncio.ensure_future(self._handle(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # it may end before it has begun

    async def _handle(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Error:
            pass  # the request, the popup or the page is gone
        except Exception as error:
            self._fail(error)

    def _on_request(self, request: TabRequest) -> None:
        self._loading.add(request)
        self._changed_at = time.monotonic()
        kind = request.resource_type
        if kind == "document" and _is_main(request):
            self._sent = request
        is_part = kind not in self._blocked and not (kind == "document" and _is_main(request))
        if is_part and request.url.startswith(("http:", "https:")):
            self._count("requests")

    def _on_request_end(self, request: TabRequest) -> None:
        self._loading.discard(request)
        if request is self._sent:
            self._note_end(request.failure or "")
        self._changed_at = time.monotonic()

    def _note_end(self, failure: str) -> None:
        """Note the end of a document: it may have broken off within its body."""
        if self._answer and failure and not failure.endswith("ERR_ABORTED"):
            self._fail(_net_error(failure))
        self._ended.set()
        self._spawn(self._leave_gate(None))

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
            self._count("blocked")
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
            self._ended.clear()
            self._has_loaded = False
            if not self._is_shown:
                self._answer = None
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

    def _check_redirect(self, location: str) -> None:
        try:
            self._led_to(ada_url.join_url(self._here.url, location))
        except ValueError:
            shown = urls.without_credentials(location)[:200]
            raise FetchError("bad_redirect", f"redirected to what is no URL: {shown!r}") from None

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
            if is_redirect:
                self._check_redirect(fields["location"])
            await self._leave_gate(None)
            await cdp.send("Fetch.continueRequest", which)
            return
        is_document = not is_redirect and _is_document(status, fields)
        if self._is_shown and not is_document:  # a download of the page that is shown
            self._visitor.refuse(self._here.url)
            self._note_end("")
            await cdp.send("Fetch.failRequest", {**which, "errorReason": "Aborted"})
            return
        length = fields.get("content-length", "")
        if length.isdecimal() and int(length[:18]) > self._max_body:
            raise self._too_large()
        self._answer = Page(
            url=self._request.url,
            final_url=self._here.url,
            status=status,
            reason=event.get("responseStatusText", ""),
            headers=tuple(headers),
            body=b"",
            raw=b"",
            fetched_at=time.time(),
            fetch_s=0.0,
        )
        if is_document:
            self._is_shown, self._shown = True, self._sent
            if "content-type" not in fields:  # a browser would guess, and maybe save it
                which |= _with_type("text/html", status, headers)
            await cdp.send("Fetch.continueResponse", which)
            return
        if not is_redirect and status not in _NO_DOCUMENT:
            is_coded = "content-encoding" in fields
            body = await self._read(cdp, event["requestId"], "" if is_coded else length)
            self._answer = msgspec.structs.replace(self._answer, body=body, raw=body)
        self._note_end("")
        await cdp.send("Fetch.failRequest", {**which, "errorReason": "Aborted"})

    async def _read(self, cdp: CDPSession, request_id: str, length: str) -> bytes:
        """Read what is no document, before the browser would save it.

        The browser does not say here whether all has come: only a length can tell.
        """
        opened = await cdp.send("Fetch.takeResponseBodyAsStream", {"requestId": request_id})
        pieces, size, at_end = [], 0, False
        while not at_end:
            read = await cdp.send("IO.read", {"handle": opened["stream"], "size": PIECE})
            data = read["data"].encode()
            if read.get("base64Encoded"):
                data = base64.b64decode(data)
            pieces.append(data)
            size, at_end = size + len(data), read["eof"]
            if size > self._max_body:
                raise self._too_large()
            self._hold(len(data))
        if length.isdecimal() and size < int(length[:18]):
            missing = int(length[:18]) - size
            message = f"the connection ended {missing:,} bytes before the body's end"
            raise FetchError("truncated", message)
        return b"".join(pieces)

    def _too_large(self) -> FetchError:
        return FetchError("too_large", f"the page is larger than {self._max_body:,} bytes")

    # What is shown

    async def _settle(self, seconds: float = LOAD_S) -> None:
        """Wait until the page has loaded and makes no requests for a while, but not for ever.

        A script that leads elsewhere in vain ends the loading of its page without a sign.
        """
        self._changed_at = now = time.monotonic()  # what was done may have effects a little later
        until = now + seconds
        while (now := time.monotonic()) < until:
            idle_s = 0.0 if self._loading else now - self._changed_at
            quiet_s = QUIET_S if self._has_loaded else STALLED_S
            if idle_s >= quiet_s:
                return
            if self._turn.locked():  # it waits for a permit, or for its next document
                until = now + seconds
            await asyncio.sleep(min(POLL_S, quiet_s - idle_s))

    def _on_load(self) -> None:
        self._has_loaded, self._changed_at = True, time.monotonic()

    async def _whole_answer(self, cdp: CDPSession) -> Page:
        """Return the answer with the document that is shown, with its body.

        The browser has read it as text; the bytes are those of the text in its charset.
        """
        assert self._answer
        told = await self._ask(cdp, _SIZE)
        if told["size"] > self._max_body:
            raise self._too_large()
        response = await self._shown.response() if self._shown else None
        body = await response.body() if response else b""
        body, charset = _as_sent(body, told["charset"])
        self._hold(len(body))
        headers = self._answer.headers
        if charset != told["charset"]:
            headers = (*_without_body(headers), ("content-type", f"text/html; charset={charset}"))
        return msgspec.structs.replace(self._answer, headers=headers, body=body, raw=body)

    async def _dom(self, cdp: CDPSession) -> bytes:
        told = await self._ask(cdp, _DOM % self._max_body)
        dom: bytes = told.get("text", "").encode()
        if "text" not in told or len(dom) > self._max_body:
            message = f"the page has grown larger than {self._max_body:,} bytes"
            raise FetchError("too_large", message)
        self._hold(len(dom))
        return dom

    async def _ask(self, cdp: CDPSession, expression: str) -> Any:
        """Evaluate an expression in a world that the page's scripts cannot change."""
        for left in reversed(range(MAX_TRIES)):
            try:
                made = await cdp.send("Page.createIsolatedWorld", {"frameId": self._main_frame})
                asked = {"contextId": made["executionContextId"], "returnByValue": True}
                asked["expression"] = expression
                answer = await cdp.send("Runtime.evaluate", asked)
                value = answer["result"]["value"]
            except (Error, KeyError) as error:
                if not left:
                    raise FetchError(
                        "page_crashed", "the page goes elsewhere all the time"
                    ) from error
                await self._settle(STEP_S)
                continue
            return value
        raise AssertionError

    def _shown_url(self, tab: Tab) -> str:
        """Return where the page is in the end; scripts may have changed its path."""
        return self._led_to(tab.url).url

    async def _seen(self, cdp: CDPSession) -> bytes:
        """Return all texts of the page, with those that are not in its DOM as HTML: of frames,
        shadow trees, filled-in controls and styles."""
        found = await cdp.send("DOMSnapshot.captureSnapshot", {"computedStyles": []})
        seen = "\n".join(found["strings"]).encode(errors="replace")
        self._hold(len(seen))
        return seen

    async def _picture(self, tab: Tab, cdp: CDPSession) -> bytes:
        width, height = WINDOW
        grown = await self._ask(cdp, "document.documentElement?.scrollHeight ?? 0")
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


def _net_error(message: str) -> FetchError:
    """Return what a failure means that Chromium has a name for."""
    name = re.search(r"net::(ERR_\w+)", message)
    if name is None:
        shown = message.strip().partition("\n")[0][:200]
        return FetchError("page_crashed", f"the page broke off ({shown})")
    reasons = (word for pattern, word in _FAILURES if re.match(pattern, name[1]))
    return FetchError(next(reasons, "connection"), f"the browser got no whole page ({name[1]})")


def _without_body(headers: Headers) -> Headers:
    """Return headers without those that say what the body is."""
    dropped = {*_OF_THE_WIRE, "content-type"}
    return tuple((name, value) for name, value in headers if name.lower() not in dropped)


def _with_type(content_type: str, status: int, headers: list[tuple[str, str]]) -> dict[str, Any]:
    """Return what gives an answer a type, as the browser is told it."""
    given = [*headers, ("Content-Type", content_type)]
    told = [{"name": name, "value": value} for name, value in given]
    return {"responseCode": status, "responseHeaders": told}


def _is_main(request: TabRequest) -> bool:
    try:
        return request.is_navigation_request() and request.frame.parent_frame is None
    except Error:
        return False  # of a popup, which has no frame yet


def _as_sent(text: bytes, charset: str) -> tuple[bytes, str]:
    """Return a text in UTF-8 in its own charset; or as it is if that is not possible, in UTF-8."""
    try:
        return text.decode().encode(charset), charset
    except (LookupError, UnicodeError):
        return text, "UTF-8"


def _is_document(status: int, fields: dict[str, str]) -> bool:
    """Whether a browser shows an answer as a page with a DOM of its own."""
    if status in _NO_DOCUMENT or fields.get("content-disposition", "").startswith("attachment"):
        return False
    return media_type(fields.get("content-type", "")) in _HTML | {""}


def _split_headers(told: list[dict[str, str]]) -> list[tuple[str, str]]:
    """Return headers as pairs; those of one name may come joined by line breaks."""
    return [(one["name"], value) for one in told for value in one["value"].split("\n")]
