"""The HTTP client: one page for one URL, within a total time and a total size."""

import asyncio
import ssl
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from types import TracebackType
from typing import Self

import ada_url
import aiohttp
import msgspec
from yarl import URL

from crawler import __version__, urls
from crawler.errors import FetchError, UrlError
from crawler.fetch.body import ACCEPTED, Body
from crawler.models import Page

MAX_REDIRECTS = 10
USER_AGENT = f"Mozilla/5.0 (compatible; crawler/{__version__})"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_READ = 1 << 16


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for, and how."""

    url: str
    loopback: bool = False
    """Whether the URL came from this machine's own command line: then it may name loopback."""
    timeout_s: float = 60.0
    headers: tuple[tuple[str, str], ...] = ()


Gate = Callable[[str], AbstractAsyncContextManager[None]]
"""Entered around every single request, redirects included, with its URL; raises `NotNow` where it may not go now."""


class Client:
    """A pooled client; it belongs to the event loop it is entered on."""

    def __init__(self, max_body: int) -> None:
        self._max_body = max_body

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=60, keepalive_timeout=5),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            headers={
                "User-Agent": USER_AGENT,
                "Accept": "text/html,application/xhtml+xml,*/*;q=0.8",
                "Accept-Language": "en,*;q=0.5",
                "Accept-Encoding": ACCEPTED,
            },
            auto_decompress=False,
            max_line_size=32_768,
            max_field_size=32_768,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def fetch(self, request: Request, gate: Gate = lambda url: nullcontext()) -> Page:
        """Get the page, whatever its status; raises `FetchError` where there is none."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(request.timeout_s):
                return await self._follow(request, gate, began)
        except TimeoutError:
            raise FetchError("timeout", f"the page took longer than {request.timeout_s:g} s") from None
        except aiohttp.ClientError as error:
            raise _explained(error) from None
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            raise FetchError("connection", f"the connection failed ({error or type(error).__name__})") from None

    async def _follow(self, request: Request, gate: Gate, began: float) -> Page:
        here = request.url
        for _ in range(MAX_REDIRECTS + 1):
            async with (
                gate(here),
                self._session.get(URL(here, encoded=True), headers=request.headers, allow_redirects=False) as response,
            ):
                target = response.headers.get("Location", "")
                if response.status not in _REDIRECTS or not target:
                    return await self._read(request.url, here, response, began)
            here = _next(here, target)
        raise FetchError("too_many_redirects", f"more than {MAX_REDIRECTS} redirects")

    async def _read(self, url: str, final_url: str, response: aiohttp.ClientResponse, began: float) -> Page:
        body = Body(",".join(response.headers.getall("Content-Encoding", [])), self._max_body)
        async for data in response.content.iter_chunked(_READ):
            body.feed(data)
        raw, decoded = body.finish()
        return Page(
            url=url,
            final_url=final_url,
            status=response.status,
            reason=(response.reason or "").encode("utf-8", "surrogateescape").decode("latin-1"),
            headers=tuple((k.decode("latin-1"), v.decode("latin-1")) for k, v in response.raw_headers),
            body=decoded,
            raw=raw,
            fetched_at=time.time(),
            fetch_s=time.monotonic() - began,
        )


def _next(here: str, target: str) -> str:
    try:
        return urls.parse(ada_url.join_url(here, target)).url
    except UrlError as error:
        raise FetchError("bad_redirect", f"redirected to where nothing is fetched: {error}") from None
    except ValueError:
        raise FetchError("bad_redirect", f"redirected to what is no URL: {target[:200]!r}") from None


def _explained(error: aiohttp.ClientError) -> FetchError:
    text = " ".join(str(error).split())[:200]
    match error:
        case aiohttp.ClientConnectorDNSError():
            return FetchError("dns", f"the host name could not be resolved ({error.os_error})")
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError():
            broken_off = isinstance(error.__cause__, ssl.SSLEOFError)
            return FetchError("tls_broken_off" if broken_off else "tls", f"TLS failed ({text})")
        case aiohttp.ClientConnectorError():
            return FetchError("connection", f"no connection ({error.os_error})")
        case aiohttp.ClientPayloadError():
            return FetchError("truncated", f"the body ended before its end ({text})")
        case aiohttp.ClientResponseError():
            return FetchError("bad_response", f"the answer is not HTTP ({text})")
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            return FetchError("bad_url", f"the URL cannot be dialled ({text})")
        case _:
            return FetchError("connection", f"the connection failed ({text or type(error).__name__})")
