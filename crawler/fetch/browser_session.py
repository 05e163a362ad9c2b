"""What a page in a browser sends along, and the cookies that it brings back."""

import time
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
from playwright.async_api import BrowserContext, Error

from crawler import urls
from crawler.errors import FetchError
from crawler.fetch.http import Request
from crawler.fetch.session import MAX_AGE_S, Cookie, LiveSession, harmless, header_problem

MAX_COOKIES = 1000
_PORTS = {"http": 80, "https": 443}
_BROWSER_SETS = frozenset({"cookie", "user-agent", "accept-encoding"})
_EVERYWHERE = frozenset({"accept-language", "dnt"})
"""Headers that all requests of a page carry; others only its documents, or its own origin."""

Named = dict[str, tuple[str, str]]
"""Headers by their names in lower case."""


class Target(NamedTuple):
    """A URL in the parts that are needed here."""

    url: str
    scheme: str
    authority: str
    host: str
    port: int
    path: str

    @classmethod
    def of(cls, text: str) -> "Target":
        """Raises `UrlError` for what is not fetched."""
        url = urls.normalize(text)
        scheme, authority, host, port, tail = urls.split(url)
        path = f"/{tail.partition('?')[0]}"
        return cls(url, scheme, authority, host, int(port or _PORTS[scheme]), path)

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def dialled(self) -> tuple[str, int]:
        return self.host, self.port


class PageSession:
    """Headers and cookies of one page: those of its site and of its job's session."""

    def __init__(self, request: Request, first: Target) -> None:
        self._request, self._first = request, first
        self._session = request.session or LiveSession()
        self.home = request.home or first.origin
        self._cookies: dict[tuple[str, str, str], Cookie] = {}  # as the browser got them

    def _merged(self, place: Target) -> Named:
        is_home = place.origin == self.home
        site = self._request.headers if is_home else harmless(self._request.headers)
        given = {name.lower(): (name, value) for name, value in site}
        address = (place.scheme, place.authority, place.host, place.path)
        return given | self._session.headers(*address, is_home)

    def headers(self, place: Target) -> Named:
        """Return the headers for a document; raises `FetchError` if one cannot be sent."""
        headers = {"accept-language": ("Accept-Language", "en,*;q=0.5")} | self._merged(place)
        for name, value in headers.values():
            if problem := header_problem(name, value):
                raise FetchError("bad_request", problem)
        return headers

    def everywhere(self) -> dict[str, str]:
        """Return the headers for all requests."""
        headers = self.headers(self._first)
        return {pair[0]: pair[1] for name, pair in headers.items() if name in _EVERYWHERE}

    def secret(self, place: Target) -> Named:
        """Return the headers that only the page's own origin gets, besides cookies."""
        own = self.headers(place)
        return {
            name: pair
            for name, pair in own.items()
            if name not in _BROWSER_SETS and not harmless((pair,))
        }

    async def give_cookies(self, context: BrowserContext) -> None:
        """Put the cookies of the session into the browser."""
        given = self._session.live_cookies()[-MAX_COOKIES:]
        self._cookies = {cookie.key: cookie for cookie in given}
        home = self._first
        at_home = home.scheme, home.host, home.path
        known = {cookie.name for cookie in given if cookie.fits(*at_home)}
        own = self._merged(home).get("cookie", ("", ""))[1] if home.origin == self.home else ""
        for pair in filter(None, own.split("; ")):
            name, _, value = pair.partition("=")
            if name not in known:  # of a header `Cookie`, which goes to the page's origin only
                given.append(Cookie(name=name, value=value, domain=home.host))
        sent = [_for_browser(cookie) for cookie in given if cookie.name]
        try:
            await context.add_cookies(sent)
        except Error:
            for one in sent:
                with suppress(Error):  # a browser would not have taken this one
                    await context.add_cookies([one])

    async def take_cookies(self, context: BrowserContext, hosts: set[str]) -> None:
        """Give the cookies back to the session: those of the hosts where the page was."""
        if self._request.session is None:
            return
        found = {}
        for raw in await context.cookies():
            cookie = _from_browser(dict(raw))
            found[cookie.key] = cookie
        changed = [cookie for cookie in found.values() if not self._knows(cookie)]
        gone = [
            msgspec.structs.replace(cookie, expires=0.0)
            for key, cookie in self._cookies.items()
            if key not in found
        ]
        self._session.put([cookie for cookie in (*changed, *gone) if _is_of(hosts, cookie)])

    def _knows(self, cookie: Cookie) -> bool:
        known = self._cookies.get(cookie.key)
        return known is not None and (known.value, known.secure) == (cookie.value, cookie.secure)


def _is_of(hosts: set[str], cookie: Cookie) -> bool:
    return any(cookie.fits("https", host, cookie.path) for host in hosts)


def overridden(headers: dict[str, str], own: Named) -> dict[str, list[dict[str, str]]]:
    """Return the headers of a request with ours, as the browser is told them."""
    given = {name.lower(): (name, value) for name, value in headers.items()}
    given |= {name: pair for name, pair in own.items() if name not in _BROWSER_SETS}
    return {"headers": [{"name": name, "value": value} for name, value in given.values()]}


def _for_browser(cookie: Cookie) -> Any:
    domain = f".{cookie.domain}" if cookie.subdomains else cookie.domain
    told: dict[str, Any] = {"name": cookie.name, "value": cookie.value, "domain": domain}
    told |= {"path": cookie.path, "secure": cookie.secure}
    now = time.time()
    if cookie.expires < now + MAX_AGE_S:
        told["expires"] = cookie.expires
    return told


def _from_browser(told: dict[str, Any]) -> Cookie:
    domain = str(told["domain"])
    cookie = Cookie(
        name=told["name"],
        value=told["value"],
        domain=domain.removeprefix("."),
        path=told["path"],
        subdomains=domain.startswith("."),
        secure=told["secure"],
    )
    if told.get("expires", -1) > 0:
        return msgspec.structs.replace(cookie, expires=float(told["expires"]))
    return cookie
