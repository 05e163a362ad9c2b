"""The HTTP client: one page for one URL, within a total time and a total size, whatever the server
does."""

import asyncio
import re
import ssl
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import lru_cache
from types import TracebackType
from typing import Literal, NamedTuple, Self

import ada_url
import msgspec

from crawler import __version__, urls
from crawler.config import Settings
from crawler.errors import FetchError, OwnShortage, UrlError, shortage_of
from crawler.fetch import proxy as proxies
from crawler.fetch import wire
from crawler.fetch.body import ACCEPTED, Body
from crawler.fetch.budget import SMALL, Budget, TimeLimit
from crawler.fetch.connection import (
    HIGH_WATER,
    SETTLE_S,
    Closed,
    Connection,
    Pool,
    Route,
    proxy_headers,
    too_much_head,
)
from crawler.fetch.egress import Egress, Reach, lack_now, names_loopback
from crawler.fetch.session import Headers, LiveSession, harmless, header_problem
from crawler.models import Page

MAX_REDIRECTS = 10
MAX_INTERIM = 100
"""So many answers of the 100s may come before the real one."""
USER_AGENT = f"Mozilla/5.0 (compatible; crawler/{__version__})"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}
_MAYBE_OURS = frozenset(
    {
        "connection",
        "dns",
        "tls",
        "tls_broken_off",
        "truncated",
        "bad_response",
        "bad_encoding",
        "unknown_encoding",
    }
)
"""What libraries also say where memory or descriptors are lacking: a decoder that the data are bad,
OpenSSL that a certificate is missing, a transport nothing at all."""
_ALWAYS = {
    "user-agent": ("User-Agent", USER_AGENT),
    "accept": ("Accept", "text/html,application/xhtml+xml,*/*;q=0.8"),
    "accept-language": ("Accept-Language", "en,*;q=0.5"),
    "accept-encoding": ("Accept-Encoding", ACCEPTED),
}


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for, and how."""

    url: str
    loopback: bool = False
    """Whether the URL came from this machine's own command line: then it may name loopback."""
    timeout_s: float = 60.0
    """The whole time of all its requests, without what the gate takes."""
    connect_timeout_s: float = 10.0
    """The time for a name, a connection, a proxy's consent and TLS, of each request."""
    headers: tuple[tuple[str, str], ...] = ()
    """The site's own."""
    session: LiveSession | None = None
    """What the job sends along, and its cookies."""
    max_body: int | None = None
    """How many bytes are read, where that is not what the client's own limit says."""
    cut: bool = False
    """Whether a larger body is cut there, instead of being an error."""
    home: str | None = None
    """The origin that may get the site's and the session's headers, where that is not the URL's
    own."""
    method: Literal["GET", "POST"] = "GET"
    body: bytes | None = None
    """What is sent; what it is, `headers` say. It may be sent twice, where a kept connection turns
    out to be dead."""
    follow: bool = True
    """Whether a redirect is followed, instead of being the page; that of anything but a GET never
    is."""
    budget: Budget = msgspec.field(default_factory=Budget)
    """What the work on the answer may cost."""
    unlimited: bool = False
    """Whether no limit spaces its requests: then few connections to a server are opened at a
    time."""
    exact: bool = False
    """Whether path and query go out letter by letter, also where a browser would read `..` or `%2e`
    as a step up."""

    def __repr__(self) -> str:
        return f"Request({urls.without_credentials(self.url)!r})"


Gate = Callable[[str], AbstractAsyncContextManager[None]]
"""Entered around every single request, redirects included, with its URL; raises `NotNow` where it
may not go now."""


class _Place(NamedTuple):
    """A URL, cut into what a request needs."""

    url: str
    scheme: str
    authority: str
    host: str
    port: int
    target: str

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


class _Answer(NamedTuple):
    """What one request came to: a page, a redirect, or a connection that was stale before the
    server saw it."""

    page: Page | None = None
    location: str = ""
    stale: bool = False


class Client:
    """A pooled client; it belongs to the event loop it is entered on."""

    def __init__(
        self,
        max_body: int,
        *,
        egress: Egress | None = None,
        through: proxies.Proxies | None = None,
        settle_s: float = SETTLE_S,
    ) -> None:
        self._max_body = max_body
        self._settle_s = settle_s
        self._egress = egress or Egress()
        self._proxies = through or proxies.Proxies()
        self._may_proxy = bool(self._proxies.http or self._proxies.https)

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The client that the environment's settings describe."""
        through = proxies.from_environment(
            settings.http_proxy, settings.https_proxy, settings.no_proxy
        )
        return cls(settings.max_body, egress=Egress(settings.allow_nets), through=through)

    async def __aenter__(self) -> Self:
        # The loop starts its threads at the first name or address; where there is no memory for
        # them later, libuv ends the process.
        await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 0)
        self._pool = Pool(self._egress, self._settle_s)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.close()
        self._egress.close()
        await asyncio.sleep(0)  # so that the transports see their end before the loop does

    async def fetch(self, request: Request, gate: Gate = lambda url: nullcontext()) -> Page:
        """Get the page, whatever its status; raises `FetchError` where there is none."""
        here = first = _place(request.url) if not request.exact else _exact_place(request.url)
        reach = Reach.LOOPBACK if request.loopback and names_loopback(first.host) else Reach.GLOBAL
        left_s, redirects, fresh = request.timeout_s, 0, False
        while True:
            async with gate(here.url):
                since, waited_s = time.monotonic(), request.budget.waited_s
                try:
                    async with TimeLimit(left_s, request.budget):
                        answer = await self._exchange(request, first, here, reach, fresh)
                except (TimeoutError, Closed, OSError, RuntimeError, FetchError) as error:
                    raise _explained(error, request) from None
                left_s -= time.monotonic() - since - (request.budget.waited_s - waited_s)
            if answer.page:
                return answer.page
            fresh = answer.stale
            if answer.stale:
                continue
            redirects += 1
            if redirects > MAX_REDIRECTS:
                raise FetchError("too_many_redirects", f"more than {MAX_REDIRECTS} redirects")
            if left_s <= 0:
                raise _too_slow(request)
            there = _next(here, answer.location)
            if reach is Reach.LOOPBACK and (there.host, there.port) != (first.host, first.port):
                reach = (
                    Reach.GLOBAL
                )  # for good: what lies beyond this server may not lead back into this machine
            here = there

    async def _exchange(
        self, request: Request, first: _Place, here: _Place, reach: Reach, fresh: bool
    ) -> _Answer:
        own = request.session.proxy if request.session else None
        proxy = (
            self._proxies.choose(here.scheme, here.host, here.port, own)
            if own or self._may_proxy
            else None
        )
        route = Route(here.scheme, here.host, here.port, reach, proxy)
        sent = self._request(request, first, here, route)
        try:
            connection = await self._connect(route, request, fresh)
        except Exception as error:
            if lack := shortage_of(error):
                raise OwnShortage(lack, unsent=True) from None
            raise
        keep = False
        try:
            connection.send(sent, request.body or b"", request.budget)
            try:
                head = await _final_head(connection, request.budget)
            except (Closed, FetchError) as error:
                # The server closed it while it was idle, and never saw the request; or rubbish
                # behind the last answer came too late to be noticed, and says nothing about this
                # page.
                if connection.used and getattr(error, "reason", "bad_response") == "bad_response":
                    return _Answer(stale=True)
                raise
            if head.status < 300 and not (connection.sent_all or await connection.all_sent()):
                raise FetchError(
                    "bad_response",
                    f"the server answered {head.status} and did not take the whole request",
                )
            headers = head.fields
            if request.session and "set-cookie" in headers:
                cookies = (here.scheme, here.host, here.path, headers["set-cookie"])
                await request.budget.at_once(request.session.take, *cookies)
            if head.status in _REDIRECTS and request.follow and request.method == "GET":
                locations = {*headers.get("location", ())}
                if locations - {""}:
                    if len(locations) > 1:
                        raise FetchError(
                            "bad_redirect", f"redirected to {len(locations)} places at once"
                        )
                    keep = head.persistent and wire.framing(head).length == len(
                        connection.take(HIGH_WATER)
                    )
                    return _Answer(location=locations.pop())
            limit = self._max_body if request.max_body is None else request.max_body
            codings = ",".join(headers.get("content-encoding", ()))
            body = Body(codings, limit, cut=request.cut, budget=request.budget)
            keep = await _read(connection, head, body, limit, request.budget)
            # To join the pieces of a large one takes milliseconds.
            raw, decoded = (
                await request.budget.at_once(body.finish) if body.size > SMALL else body.finish()
            )
            return _Answer(page=_page(request, here, head, raw, decoded))
        finally:
            if keep:
                self._pool.give(route, connection)
            else:
                connection.close()

    async def _connect(self, route: Route, request: Request, fresh: bool) -> Connection:
        if not (fresh or route.proxy) and (kept := self._pool.take(route)):
            return kept
        try:
            if request.unlimited and not (fresh or route.proxy):
                return await self._in_line(route, request)
            async with TimeLimit(request.connect_timeout_s, request.budget):
                if route.proxy:
                    await self._check_behind_proxy(route)
                    if not fresh and (kept := self._pool.take(route)):
                        return kept
                return await self._pool.open(route)
        except TimeoutError:
            raise FetchError(
                "timeout", f"there was no connection within {request.connect_timeout_s:g} s"
            ) from None
        except (ConnectionError, ssl.SSLEOFError) as error:
            if route.scheme == "https" and not isinstance(error, ConnectionRefusedError):
                raise FetchError(
                    "tls_broken_off", f"the server ended the connection within TLS ({error})"
                ) from None
            raise

    async def _in_line(self, route: Route, request: Request) -> Connection:
        """The next connection that becomes free, or a new one once its turn has come; the page's
        time stands still until then, because it waits for others of ours."""
        line = self._pool.line(route)
        if not line.may_open():
            with request.budget.waiting():
                freed = await line.wait(lambda connection: self._pool.give(route, connection))
            if freed:
                return freed
        return await self._pool.open_in_line(
            route, line, TimeLimit(request.connect_timeout_s, request.budget)
        )

    async def _check_behind_proxy(self, route: Route) -> None:
        """Judge what is handed to a proxy, at each request, because it resolves the name each time:
        every address must be good, as the proxy chooses; a name that is unknown here is its own
        affair.

        A name with a dot at its end is judged without it, too: resolvers look such a one up neither
        among the hosts of this machine nor in its own domain, and the proxy may take the dot away.
        """
        for host in dict.fromkeys((route.host, route.host.rstrip("."))):
            try:
                await self._egress.addresses(host, route.reach, every=True)
            except FetchError as error:
                if error.reason != "dns":
                    raise

    def _request(self, request: Request, first: _Place, here: _Place, route: Route) -> bytes:
        """The bytes of a request; a later header of the same name takes an earlier one's place."""
        home = (here is first and not request.home) or here.origin == (request.home or first.origin)
        own = (
            request.session.headers(here.scheme, here.authority, here.host, here.path, home)
            if request.session
            else {}
        )
        target, extra = here.target, ""
        if route.proxy and here.scheme == "http":
            target, extra = (
                f"http://{here.authority}{here.target}",
                "".join(f"{h}\r\n" for h in proxy_headers(route.proxy)),
            )
        if request.body is not None or request.method != "GET":
            extra += f"Content-Length: {len(request.body or b'')}\r\n"
        lines = _lines(request.headers, home, tuple(own.values()))
        head = f"{request.method} {target} HTTP/1.1\r\nHost: {here.authority}\r\n{lines}{extra}\r\n"
        return head.encode("utf-8", "replace")


@lru_cache(maxsize=1_000)
def _lines(site: Headers, home: bool, own: Headers) -> str:
    """The lines of all headers but those of a single request; the same for all pages of a site, or
    nearly."""
    given = {name.lower(): (name, value) for name, value in site}
    headers = (
        _ALWAYS
        | (given if home else harmless(given))
        | {name.lower(): (name, value) for name, value in own}
    )
    for name, value in headers.values():
        if problem := header_problem(name, value):
            raise FetchError("bad_request", problem)
    return "".join([f"{name}: {value}\r\n" for name, value in headers.values()])


async def _final_head(connection: Connection, budget: Budget) -> wire.Head:
    """The head of the real answer: those that only announce it are passed over, but not without
    end."""
    head = await connection.head(budget)
    spent = 0
    for _ in range(MAX_INTERIM):
        if head.status >= 200:
            return head
        if head.status == 101:
            raise FetchError(
                "bad_response", "the server changes to a protocol that nobody asked for"
            )
        spent += head.size
        if spent > wire.MAX_HEAD:
            raise too_much_head()
        try:
            head = await connection.head(budget, spent)
        except Closed as closed:
            raise FetchError(
                "truncated", "the connection ended before the real answer"
            ) from closed.error
    raise FetchError("bad_response", f"more than {MAX_INTERIM} answers came before the real one")


async def _read(
    connection: Connection, head: wire.Head, body: Body, limit: int, budget: Budget
) -> bool:
    """Read a body to its end; whether the connection is fit for another request."""
    framing = wire.framing(head)
    if framing.length is not None:
        return (
            await _read_length(connection, framing.length, body, limit, budget) and head.persistent
        )
    chunks = wire.Chunks() if framing.chunked else None
    data = connection.take(HIGH_WATER)
    while True:
        await _feed(body, await budget.at_once(chunks.feed, data) if chunks else data, budget)
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


async def _feed(body: Body, data: bytes, budget: Budget) -> None:
    if body.is_coded:
        await budget.work(body.feed, data)
    else:
        await budget.at_once(body.feed, data)


async def _read_length(
    connection: Connection, length: int, body: Body, limit: int, budget: Budget
) -> bool:
    if length > limit and not body.cut:
        raise FetchError("too_large", f"the page is larger than {limit:,} bytes: it has {length:,}")
    left = length
    while left:
        try:
            await connection.have(left if left <= HIGH_WATER and not body.cut else 1)
        except Closed:
            missing = left - connection.waiting
            raise FetchError(
                "truncated", f"the connection ended {missing:,} bytes before the body's end"
            ) from None
        data = connection.take(left)
        await _feed(body, data, budget)
        left -= len(data)
        if body.full:
            return False
    # What comes behind the body would be taken for the next answer.
    return not connection.waiting


def _page(request: Request, here: _Place, head: wire.Head, raw: bytes, decoded: bytes) -> Page:
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


def _place(url: str) -> _Place:
    try:
        url = urls.normal(url)
    except UrlError as error:
        raise FetchError("bad_url", f"the URL cannot be dialled: {error}") from None
    scheme, _, rest = url.partition("://")
    authority, _, tail = rest.partition("/")
    host, _, port = (
        authority.rpartition(":")
        if authority[-1:].isdigit() and ":" in authority
        else (authority, "", "")
    )
    return _Place(url, scheme, authority, host, int(port or _PORTS[scheme]), f"/{tail}")


def _exact_place(url: str) -> _Place:
    tail = re.fullmatch(r'\w+://[^/?]+(/[!-"$-~]*)', url)
    if not tail:
        raise FetchError("bad_url", "the URL cannot be sent letter by letter")
    return _place(url)._replace(target=tail[1])


def _next(here: _Place, target: str) -> _Place:
    # Browsers read the bytes of a header as UTF-8 where they are.
    text = target.encode("latin-1").decode("utf-8", "replace")
    try:
        urls.check_host(text)
        return _place(urls.normal(ada_url.join_url(here.url, text)))
    except UrlError as error:
        raise FetchError(
            "bad_redirect", f"redirected to where nothing is fetched: {error}"
        ) from None
    except ValueError:
        shown = urls.without_credentials(text)[:200]
        raise FetchError("bad_redirect", f"redirected to what is no URL: {shown!r}") from None


def _explained(error: Exception, request: Request) -> Exception:
    """What a request that failed is to be charged with: a shortage, however libraries put it, is no
    page's failure."""
    failure = error if isinstance(error, FetchError | RuntimeError) else _failure(error, request)
    suspicious = isinstance(failure, FetchError) and failure.reason in _MAYBE_OURS
    lack = shortage_of(error) or (lack_now() if suspicious else "")
    return OwnShortage(lack) if lack else failure


def _failure(error: Exception, request: Request) -> FetchError:
    """What went wrong with a connection, as one of the reasons that the package knows."""
    if isinstance(error, TimeoutError):
        return _too_slow(request)
    if isinstance(error, Closed):
        why = f" ({error.error})" if error.error else ""
        return FetchError("connection", f"the server ended the connection without an answer{why}")
    if isinstance(error, ssl.SSLError):
        return _tls_failed(error)
    told = error.strerror if isinstance(error, OSError) else ""
    return FetchError("connection", f"the connection failed ({told or error})")


def _too_slow(request: Request) -> FetchError:
    return FetchError("timeout", f"the page took longer than {request.timeout_s:g} s")


def _tls_failed(error: ssl.SSLError) -> FetchError:
    why = getattr(error, "verify_message", "") or error.reason or str(error)
    return FetchError("tls", f"TLS failed ({why})")
