"""The HTTP client: one page for one URL, within a total time and size, whatever the server does."""

import asyncio
import re
import ssl
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import lru_cache
from typing import Literal, NamedTuple, Self

import ada_url
import msgspec
from msgspec.structs import replace

from crawler import __version__, urls
from crawler.config import Settings
from crawler.errors import FetchError, OwnShortage, UrlError, shortage_of
from crawler.fetch import wire
from crawler.fetch.body import ACCEPTED, Body
from crawler.fetch.budget import SMALL, Budget, TimeLimit
from crawler.fetch.connection import HIGH_WATER, SETTLE_S, Closed, Connection, Pool, Route
from crawler.fetch.egress import Egress, Proxies, Reach, names_loopback, shortage_now
from crawler.fetch.session import LiveSession, harmless, header_problem
from crawler.fetch.wire import Headers, bad_response
from crawler.models import Page

MAX_REDIRECTS = 10
MAX_INTERIM = 100  # 1xx answers before the final one
USER_AGENT = f"Mozilla/5.0 (compatible; crawler/{__version__})"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_KEEP_METHOD = frozenset({307, 308})  # after the others, a POST becomes a GET, as in browsers
_PORTS = {"http": 80, "https": 443}
_MAYBE_SHORTAGE = frozenset({
    "connection", "dns", "tls", "tls_broken_off", "truncated", "bad_response", "bad_encoding",
    "unknown_encoding",
})  # fmt: skip
"""Reasons that libraries also give when memory or descriptors are lacking: a decoder says that the
data is bad, OpenSSL that a certificate is missing."""
_DEFAULT_HEADERS = (
    ("User-Agent", USER_AGENT),
    ("Accept", "text/html,application/xhtml+xml,*/*;q=0.8"),
    ("Accept-Language", "en,*;q=0.5"),
    ("Accept-Encoding", ACCEPTED),
)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for, and how."""

    url: str
    loopback: bool = False  # it may name loopback: it came from this machine's command line
    timeout_s: float = 60.0  # for all its requests together, without the time inside the hook
    connect_timeout_s: float = 10.0  # for lookup, connection, proxy and TLS of each request
    headers: Headers = ()  # the site's own
    session: LiveSession | None = None  # headers and cookies of the job
    max_body: int | None = None  # bytes, instead of the client's own limit
    cut: bool = False  # a larger body is cut instead of being an error
    home: str | None = None  # origin that gets all headers, instead of the URL's own
    method: Literal["GET", "POST"] = "GET"
    body: bytes | None = None  # sent twice if a kept connection turns out to be dead
    content_type: str = ""  # of the body
    referer: str = ""  # the page whose form this is; told to its own origin only
    follow: bool = True  # redirects are followed
    budget: Budget = msgspec.field(default_factory=Budget)
    unlimited: bool = False  # no rate limit applies: the client limits new connections itself
    exact: bool = False  # path and query go out literally, even where a browser resolves `..`

    def __repr__(self) -> str:
        return f"Request({urls.without_credentials(self.url)!r})"


RequestHook = Callable[[str], AbstractAsyncContextManager[None]]
"""Its context is entered around every request, redirects included, with the request's URL; raises
`NotNow` if the request may not be sent now."""


class _Target(NamedTuple):
    """A URL in the parts that a request needs."""

    url: str
    scheme: str
    authority: str
    host: str
    port: int
    path_and_query: str

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def path(self) -> str:
        return self.path_and_query.partition("?")[0]


class _Redirect(NamedTuple):
    """Where an answer leads to."""

    location: str
    status: int


class Client:
    """A client with a connection pool; it belongs to the event loop it is entered on."""

    def __init__(
        self,
        max_body: int,
        *,
        egress: Egress | None = None,
        through: Proxies | None = None,
        settle_s: float = SETTLE_S,
    ) -> None:
        self._max_body = max_body
        self._settle_s = settle_s
        self._egress = egress or Egress()
        self._proxies = through or Proxies()

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the client that the environment's settings describe."""
        proxies = (settings.http_proxy, settings.https_proxy, settings.no_proxy)
        egress, through = Egress(settings.allow_nets), Proxies.from_environment(*proxies)
        return cls(settings.max_body, egress=egress, through=through)

    async def __aenter__(self) -> Self:
        # Starts the loop's threads: without memory for them later, libuv would end the process.
        await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 0)
        self._pool = Pool(self._egress, self._settle_s)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._pool.close()
        self._egress.close()
        await asyncio.sleep(0)  # so that the transports end before the loop does

    async def fetch(self, request: Request, hook: RequestHook = lambda url: nullcontext()) -> Page:
        """Return the page, whatever its status; raises `FetchError` if there is none."""
        here = first = _target(request.url, exact=request.exact)
        reach = Reach.GLOBAL
        if request.loopback and names_loopback(first.host):
            reach = Reach.LOOPBACK
        left_s, redirects, fresh = request.timeout_s, 0, False
        while True:
            async with hook(here.url):
                since, waited_s = time.monotonic(), request.budget.waited_s
                try:
                    async with TimeLimit(left_s, request.budget):
                        outcome = await self._exchange(request, first, here, reach, fresh)
                except (TimeoutError, Closed, OSError, RuntimeError, FetchError) as error:
                    raise _explained(error, request) from None
                left_s -= time.monotonic() - since - (request.budget.waited_s - waited_s)
            if isinstance(outcome, Page):
                return outcome
            fresh = outcome is None
            if outcome is None:
                continue
            redirects += 1
            if redirects > MAX_REDIRECTS:
                raise FetchError("too_many_redirects", f"more than {MAX_REDIRECTS} redirects")
            if left_s <= 0:
                raise _too_slow(request)
            before, here = here, _redirected(here, outcome.location)
            if request.method == "POST" and outcome.status not in _KEEP_METHOD:
                request = replace(request, method="GET", body=None)
            if request.body is not None and not _may_have_body(before, here):
                message = "redirected to another server, which is not to get the form's values"
                raise FetchError("bad_redirect", message)
            if (here.host, here.port) != (first.host, first.port):
                reach = Reach.GLOBAL  # for good: no other server may lead back into this machine

    async def _exchange(
        self, request: Request, first: _Target, here: _Target, reach: Reach, fresh: bool
    ) -> Page | _Redirect | None:
        """Send one request; return the page, or where it redirects to.

        None means that a kept connection was dead already: the server never saw the request.
        """
        own_proxy = request.session.proxy if request.session else None
        proxy = self._proxies.choose(here.scheme, here.host, here.port, own_proxy)
        route = Route(here.scheme, here.host, here.port, reach, proxy)
        sent = self._request_head(request, first, here, route)
        try:
            connection = await self._connect(route, request, fresh)
        except Exception as error:
            if lack := shortage_of(error):
                raise OwnShortage(lack, unsent=True) from None
            raise
        keep = False
        try:
            connection.send(sent, request.body or b"", request.budget)
            head = await self._final_head(connection, request)
            if head is None:
                return None
            if request.session and "set-cookie" in head.fields:
                cookies = (here.scheme, here.host, here.path, head.fields["set-cookie"])
                await request.budget.at_once(request.session.take, *cookies)
            if location := _location(head, request):
                buffered = len(connection.take(HIGH_WATER))
                keep = head.persistent and wire.framing(head).length == buffered
                return _Redirect(location, head.status)
            limit = self._max_body if request.max_body is None else request.max_body
            codings = ",".join(head.fields.get("content-encoding", ()))
            body = Body(codings, limit, cut=request.cut, budget=request.budget)
            keep = await _read(connection, head, body, request.budget)
            if body.size > SMALL:  # joining a large one takes milliseconds
                raw, decoded = await request.budget.at_once(body.finish)
            else:
                raw, decoded = body.finish()
            return _page(request, here, head, raw, decoded)
        finally:
            if keep:
                self._pool.give(route, connection)
            else:
                connection.close()

    async def _final_head(self, connection: Connection, request: Request) -> wire.Head | None:
        """Return the final answer's head, or None if a kept connection turns out to be dead."""
        try:
            head = await _skip_interim(connection, request.budget)
        except (Closed, FetchError) as error:
            # The server closed it while it was idle and never saw the request; or stray bytes after
            # the last answer came too late to be noticed, and say nothing about this page.
            if connection.used and getattr(error, "reason", "bad_response") == "bad_response":
                return None
            raise
        if head.status < 300 and not (connection.sent_all or await connection.all_sent()):
            raise bad_response(
                f"the server answered {head.status} and did not take the whole request"
            )
        return head

    async def _connect(self, route: Route, request: Request, fresh: bool) -> Connection:
        if not (fresh or route.proxy) and (kept := self._pool.take(route)):
            return kept
        try:
            if request.unlimited and not (fresh or route.proxy):
                return await self._connect_queued(route, request)
            async with TimeLimit(request.connect_timeout_s, request.budget):
                if route.proxy:
                    await self._check_behind_proxy(route)
                    if not fresh and (kept := self._pool.take(route)):
                        return kept
                return await self._pool.open(route)
        except TimeoutError:
            message = f"there was no connection within {request.connect_timeout_s:g} s"
            raise FetchError("timeout", message) from None
        except (ConnectionError, ssl.SSLEOFError) as error:
            if route.scheme != "https" or isinstance(error, ConnectionRefusedError):
                raise
            message = f"the server ended the connection within TLS ({error})"
            raise FetchError("tls_broken_off", message) from None

    async def _connect_queued(self, route: Route, request: Request) -> Connection:
        """Return the next free connection, or a new one; waiting is not the page's time."""
        queue = self._pool.queue(route)
        if not queue.may_open():
            with request.budget.waiting():
                freed = await queue.wait(lambda connection: self._pool.give(route, connection))
            if freed:
                return freed
        limit = TimeLimit(request.connect_timeout_s, request.budget)
        return await self._pool.open_queued(route, queue, limit)

    async def _check_behind_proxy(self, route: Route) -> None:
        """Judge the host of a request through a proxy, which resolves the name itself each time.

        Every address must be good, as the proxy chooses; it may know names that are unknown here.
        A name with a final dot is also judged without it: resolvers look it up neither among this
        machine's hosts nor in its domain, but the proxy may remove the dot.
        """
        for host in dict.fromkeys((route.host, route.host.rstrip("."))):
            try:
                await self._egress.addresses(host, route.reach, every=True)
            except FetchError as error:
                if error.reason != "dns":
                    raise

    def _request_head(self, request: Request, first: _Target, here: _Target, route: Route) -> bytes:
        is_home = here is first
        if request.home or not is_home:
            is_home = here.origin == (request.home or first.origin)
        own: Headers = ()
        if request.session:
            address = (here.scheme, here.authority, here.host, here.path)
            own = tuple(request.session.headers(*address, is_home).values())
        target, extra = here.path_and_query, ""
        if route.proxy and here.scheme == "http":
            target = f"{here.origin}{target}"
            extra = route.proxy.authorization
        if request.body is not None or request.method != "GET":
            extra += f"Content-Length: {len(request.body or b'')}\r\n"
        if request.body is not None and request.content_type:
            extra += f"Content-Type: {request.content_type}\r\n"
        if request.referer:
            extra += _referer_lines(request, here)
        lines = _header_lines(request.headers, is_home, own)
        head = f"{request.method} {target} HTTP/1.1\r\nHost: {here.authority}\r\n{lines}{extra}\r\n"
        return head.encode("utf-8", "replace")


@lru_cache(maxsize=1_000)
def _header_lines(site: Headers, is_home: bool, own: Headers) -> str:
    """Return the lines of all headers that most pages of a site share; the last value counts."""
    if not is_home:
        site = harmless(site)
    headers = {name.lower(): (name, value) for name, value in (*_DEFAULT_HEADERS, *site, *own)}
    for name, value in headers.values():
        if problem := header_problem(name, value):
            raise FetchError("bad_request", problem)
    return "".join([f"{name}: {value}\r\n" for name, value in headers.values()])


def _referer_lines(request: Request, here: _Target) -> str:
    """Return the headers by which servers know that a form is their own."""
    page = _target(request.referer)
    if page.origin != here.origin:
        return ""
    origin = f"Origin: {page.origin}\r\n" * (request.method == "POST")
    return f"Referer: {page.url}\r\n{origin}"


def _may_have_body(here: _Target, to: _Target) -> bool:
    """Whether a redirect may take a form's values along: to the same server, never out of TLS."""
    if (here.scheme, to.scheme) == ("http", "https"):
        return here.host == to.host
    return here.origin == to.origin


async def _skip_interim(connection: Connection, budget: Budget) -> wire.Head:
    """Return the head of the final answer, after a bounded number of 1xx ones."""
    head = await connection.head(budget)
    spent = 0
    for _ in range(MAX_INTERIM):
        if head.status >= 200:
            return head
        if head.status == 101:
            raise bad_response("the server changes to a protocol that nobody asked for")
        spent += head.size
        if spent > wire.MAX_HEAD:
            raise wire.too_large_head()
        try:
            head = await connection.head(budget, spent)
        except Closed as closed:
            message = "the connection ended before the real answer"
            raise FetchError("truncated", message) from closed.error
    raise bad_response(f"more than {MAX_INTERIM} answers came before the real one")


def _location(head: wire.Head, request: Request) -> str:
    """Return where an answer redirects to, or an empty string."""
    if head.status not in _REDIRECTS or not request.follow:
        return ""
    locations = {*head.fields.get("location", ())}
    if len(locations) > 1:
        raise FetchError("bad_redirect", f"redirected to {len(locations)} places at once")
    return next(iter(locations), "")


async def _read(connection: Connection, head: wire.Head, body: Body, budget: Budget) -> bool:
    """Read a body to its end; return whether the connection can serve another request."""
    framing = wire.framing(head)
    if framing.length is not None:
        return await _read_length(connection, framing.length, body, budget) and head.persistent
    chunks = wire.Chunks() if framing.chunked else None
    data = connection.take(HIGH_WATER)
    while True:
        if chunks:
            data = await budget.at_once(chunks.feed, data)
        await _feed(body, data, budget)
        if body.full:
            return False
        if chunks and chunks.done:
            return head.persistent and not chunks.rest
        try:
            data = await connection.more()
        except Closed as closed:
            if chunks or closed.error:
                raise FetchError("truncated", "the connection ended before the body") from None
            return False


async def _read_length(connection: Connection, length: int, body: Body, budget: Budget) -> bool:
    if length > body.limit and not body.cut:
        message = f"the page is larger than {body.limit:,} bytes: it has {length:,}"
        raise FetchError("too_large", message)
    left = length
    while left:
        fits = left <= HIGH_WATER and not body.cut
        try:
            await connection.wait_for(left if fits else 1)
        except Closed:
            missing = left - connection.buffered
            message = f"the connection ended {missing:,} bytes before the body's end"
            raise FetchError("truncated", message) from None
        data = connection.take(left)
        await _feed(body, data, budget)
        left -= len(data)
        if body.full:
            return False
    return not connection.buffered  # else the rest would be taken for the next answer


async def _feed(body: Body, data: bytes, budget: Budget) -> None:
    if body.is_coded:
        await budget.work(body.feed, data)
    else:
        await budget.at_once(body.feed, data)


def _page(request: Request, here: _Target, head: wire.Head, raw: bytes, decoded: bytes) -> Page:
    return Page(
        url=request.url,
        final_url=here.url,
        status=head.status,
        reason=head.reason,
        headers=head.headers,
        body=decoded,
        raw=raw,
        fetched_at=time.time(),
        fetch_s=0.0,
    )


def _target(text: str, *, exact: bool = False) -> _Target:
    try:
        url = urls.normalize(text)
    except UrlError as error:
        raise FetchError("bad_url", f"the URL cannot be dialled: {error}") from None
    scheme, authority, host, port, tail = urls.split(url)
    path_and_query = f"/{tail}"
    if exact:
        match = re.fullmatch(r'\w+://[^/?]+(/[!-"$-~]*)', text)
        if not match:
            raise FetchError("bad_url", "the URL cannot be sent letter by letter")
        path_and_query = match[1]
    return _Target(url, scheme, authority, host, int(port or _PORTS[scheme]), path_and_query)


def redirect_of(page: Page) -> str:
    """Return the URL that a page redirects to, in normal form; empty if it does not."""
    location = page.header("location")
    if page.status not in _REDIRECTS or not location:
        return ""
    return _redirected(_target(page.final_url), location).url


def _redirected(here: _Target, location: str) -> _Target:
    # Browsers read the bytes of a header as UTF-8 if they are.
    text = location.encode("latin-1").decode("utf-8", "replace")
    try:
        urls.check_host(text)
        return _target(urls.normalize(ada_url.join_url(here.url, text)))
    except UrlError as error:
        message = f"redirected to where nothing is fetched: {error}"
        raise FetchError("bad_redirect", message) from None
    except ValueError:
        shown = urls.without_credentials(text)[:200]
        raise FetchError("bad_redirect", f"redirected to what is no URL: {shown!r}") from None


def _explained(error: Exception, request: Request) -> Exception:
    """Return the failure of a request, or the shortage of this process that libraries hide."""
    failure = error
    if not isinstance(error, FetchError | RuntimeError):
        failure = _failure(error, request)
    lack = shortage_of(error)
    if not lack and isinstance(failure, FetchError) and failure.reason in _MAYBE_SHORTAGE:
        lack = shortage_now()
    if lack:
        return OwnShortage(lack)
    return failure


def _failure(error: Exception, request: Request) -> FetchError:
    if isinstance(error, TimeoutError):
        return _too_slow(request)
    if isinstance(error, Closed):
        why = f" ({error.error})" if error.error else ""
        return FetchError("connection", f"the server ended the connection without an answer{why}")
    if isinstance(error, ssl.SSLError):
        why = getattr(error, "verify_message", "") or error.reason or str(error)
        return FetchError("tls", f"TLS failed ({why})")
    told = error.strerror if isinstance(error, OSError) else ""
    return FetchError("connection", f"the connection failed ({told or error})")


def _too_slow(request: Request) -> FetchError:
    return FetchError("timeout", f"the page took longer than {request.timeout_s:g} s")
