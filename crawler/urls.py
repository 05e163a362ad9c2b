"""Canonical URLs and domains; one WHATWG parser for all of them, so that what is checked is what is dialled."""

import ipaddress
import re
from functools import cache, lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

import ada_url

from crawler.errors import UrlError

if TYPE_CHECKING:
    from publicsuffixlist import PublicSuffixList

MAX_LENGTH = 8192
MAX_HOST = 255
"""Characters of a host: names have no more, and the time to read an international one grows with their square."""
_AUTHORITY = re.compile(
    r"[\x00-\x20]*+(?:[a-z][a-z0-9+.\t\n\r-]*+:|[/\\][\t\n\r]*+[/\\])[/\\\t\n\r]*+([^/\\?#]*+)", re.I
)
"""The most that a browser may take for user, host and port at the beginning of a reference."""
_QUERY_PASSWORD = re.compile(r"([?&](?:password|ssl_password)=)[^&#]*", re.IGNORECASE)
_TRACKING = frozenset(
    {"fbclid", "gclid", "dclid", "gbraid", "wbraid", "msclkid", "yclid", "igshid", "mc_cid", "mc_eid", "twclid",
     "utm_source", "utm_medium", "utm_campaign", "utm_term", "utm_content", "utm_id", "utm_source_platform",
     "utm_creative_format", "utm_marketing_tactic"}
)  # fmt: skip
"""Parameters that make no other page. A map's `utm_x` and `utm_zone` do: each of these is named."""


class Address(NamedTuple):
    """A URL that may be fetched, with what identifies it and what limits apply to."""

    url: str
    key: bytes
    domain: str


def parse(text: str) -> Address:
    """Read a URL as a browser would, without its user name and password (`credentials` has them); raises `UrlError`
    with a reason that fits in a rejects file."""
    href = normal(text)
    scheme, _, rest = href.partition("://")
    authority, _, tail = rest.partition("/")
    host = authority.rpartition(":")[0] if authority[-1:].isdigit() and ":" in authority else authority
    return Address(href, _key(scheme, authority, tail), domain(host))


def normal(text: str) -> str:
    """What is dialled for a URL: WHATWG's normal form, without a fragment and credentials; raises likewise."""
    text = text.strip()
    if not text:
        raise UrlError("the URL is empty")
    if len(text) > MAX_LENGTH:
        raise UrlError(f"the URL has {len(text):,} characters, more than {MAX_LENGTH:,}")
    check_host(text)
    try:
        href = ada_url.normalize_url(text).partition("#")[0]
    except ValueError:
        hint = "; does it lack http:// at the beginning?" if "://" not in text else ""
        raise UrlError(f"not a URL: {without_credentials(text)[:200]!r}{hint}") from None
    # In WHATWG's normal form the parts can be cut out, which is five times as fast as asking for each.
    scheme, _, rest = href.partition("://")
    if scheme not in ("http", "https"):
        raise UrlError(f"only http and https are fetched, not {scheme.partition(':')[0][:30]}:")
    authority, _, tail = rest.partition("/")
    if "@" in authority:
        authority = authority.rpartition("@")[2]
        href = f"{scheme}://{authority}/{tail}"
    if len(authority) > MAX_HOST:  # an international name is longer in its ASCII form
        raise UrlError(f"the host has more than {MAX_HOST} characters")
    if authority.endswith(":0"):
        raise UrlError("port 0 cannot be connected to")
    return href


def check_host(reference: str) -> None:
    """Raise `UrlError` for a URL or reference with a host that no parser should see."""
    if len(reference) <= MAX_HOST:
        return
    match = _AUTHORITY.match(reference)
    if match and len(match[1].rpartition("@")[2]) > MAX_HOST:
        raise UrlError(f"the host has more than {MAX_HOST} characters")


def credentials(text: str) -> tuple[str, str] | None:
    """The origin of a URL and the `user:password` in it, for whoever keeps secrets; None where there is none."""
    if "@" not in text:
        return None
    try:
        url = ada_url.URL(text.strip())
    except ValueError:
        return None
    if url.protocol not in ("http:", "https:") or not (url.username or url.password):
        return None
    return url.origin, f"{unquote(url.username)}:{unquote(url.password)}"


def _key(scheme: str, authority: str, tail: str) -> bytes:
    """Identify the page behind a URL: without tracking parameters, whatever the order of the others' names."""
    path, _, query = tail.partition("?")
    kept = [pair for pair in query.split("&") if pair and _name(pair) not in _TRACKING] if query else []
    kept.sort(key=_name)  # values of one name stay as they are: ?sort=a&sort=b may be another page than ?sort=b&sort=a
    return blake2b(f"{scheme}://{authority}/{path}?{'&'.join(kept)}".encode(), digest_size=16).digest()


def _name(pair: str) -> str:
    return pair.partition("=")[0].lower()


@lru_cache(maxsize=10_000)
def domain(host: str) -> str:
    """What limits apply to: the registrable domain of a host name, or the address itself."""
    bare = host.strip("[]")
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        return _suffixes().privatesuffix(bare.rstrip(".")) or bare


def is_public_suffix(name: str) -> bool:
    """Whether a name is one under which strangers register theirs, such as co.uk."""
    return bool(_suffixes().is_public(name))


@cache
def _suffixes() -> "PublicSuffixList":
    from publicsuffixlist import PublicSuffixList

    return PublicSuffixList()


def without_credentials(text: str) -> str:
    """The text with whatever stands between `://` and `@` taken out, for rejects and messages."""
    scheme, separator, rest = text.partition("://") if "://" in text else ("", "", text)
    authority, slash, path = rest.partition("/")
    if "@" in path and not ada_url.check_url(text.strip()):  # what is no URL may have a slash in its password
        authority, slash, path = rest, "", ""
    if "@" in authority:
        authority = "***@" + authority.rpartition("@")[2]
    if scheme.startswith(("redis", "unix", "sentinel")):  # a password may stand in their queries, too
        path = _QUERY_PASSWORD.sub(r"\1***", path)
    return scheme + separator + authority + slash + path
