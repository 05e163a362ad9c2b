"""Canonical URLs and domains, with one WHATWG parser: what is checked is what is dialled."""

import ipaddress
import re
from functools import cache, lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import ada_url

from crawler.errors import UrlError

if TYPE_CHECKING:
    from publicsuffixlist import PublicSuffixList

MAX_LENGTH = 8192
MAX_HOST = 255
"""Characters of a host. Parsing an international name takes time in their square."""
_AUTHORITY = re.compile(
    r"[\x00-\x20]*+(?:[a-z][a-z0-9+.\t\n\r-]*+:|[/\\][\t\n\r]*+[/\\])[/\\\t\n\r]*+([^/\\?#]*+)",
    re.I,
)
"""The most that a browser may take for user, host and port at the start of a reference."""
_BORDERS = re.compile(r"""([\s\\/?#"'<>])""")
"""Where a user name, a password or a host ends."""
_SCHEME = re.compile(r"\bhttps?:", re.IGNORECASE)
_AT = re.compile(r"[@＠﹫]|%(?:25)*40", re.IGNORECASE)
_PASSWORD = re.compile(
    r"""(https?(?::|%(?:25)*3a)(?:[\\/]|%(?:25)*(?:2f|5c))+)  # the beginning of a URL
        (?:(?!%(?:25)*(?:2f|3a|3f|23|40))[^\s\\/@＠﹫?#&:]){0,200}  # a user name
        (?::|%(?:25)*3a)(?!\s|\d{1,5}(?:[\s\\/?#&"'<>)\]},;.]|%|$))  # a colon that begins no port
        (?:(?!%(?:25)*(?:2f|40))[^@＠﹫\\/\n\t&]){0,200}  # a password, with blanks or quotes
        (?:[@＠﹫]|%(?:25)*40)""",
    re.IGNORECASE | re.VERBOSE,
)
"""A user name and a password that stand anywhere in a text, percent-encoded or not."""
_BROKEN = re.compile(r"\s*([a-z][a-z0-9+.-]{0,20}:[\\/]{2})\S*@(\S*)\s*", re.IGNORECASE)
_QUERY_PASSWORD = re.compile(r"([?&](?:password|ssl_password)=)[^&#]*", re.IGNORECASE)
_PLAIN_PATH = re.compile(
    r"/[A-Za-z0-9_-][A-Za-z0-9_/-]*(?:\.[A-Za-z0-9_-]+)?(?:\?[A-Za-z0-9_=&.-]*)?"
)
"""Paths that are in normal form as they are."""
_TRACKING = frozenset({
    "fbclid", "gclid", "dclid", "gbraid", "wbraid", "msclkid", "yclid", "igshid", "mc_cid",
    "mc_eid", "twclid", "utm_source", "utm_medium", "utm_campaign", "utm_term", "utm_content",
    "utm_id", "utm_source_platform", "utm_creative_format", "utm_marketing_tactic",
})  # fmt: skip
"""Parameters that do not change the page. A map's `utm_x` does, so each one is named."""


class Address(NamedTuple):
    """A URL that may be fetched, the key of its page, and the domain that limits apply to."""

    url: str
    key: bytes
    domain: str


def parse(text: str) -> Address:
    """Read a URL as a browser would, without user name and password (see `credentials`).

    Raises `UrlError` with a reason that fits in a rejects file.
    """
    return _address(normalize(text))


def parse_link(text: str, origin: str) -> Address:
    """The same, faster for plain paths at an origin that is in normal form."""
    if text.startswith(origin) and _PLAIN_PATH.fullmatch(text, len(origin)):
        return _address(text)
    return parse(text)


def _address(href: str) -> Address:
    scheme, authority, host, _, tail = split(href)
    return Address(href, _key(scheme, authority, tail), domain(host))


def split(href: str) -> tuple[str, str, str, str, str]:
    """Split a URL in normal form into scheme, authority, host, port and the rest without its slash.

    This is five times as fast as asking the parser.
    """
    scheme, _, rest = href.partition("://")
    authority, _, tail = rest.partition("/")
    host, port = authority, ""
    if authority[-1:].isdigit() and ":" in authority:
        host, _, port = authority.rpartition(":")
    return scheme, authority, host, port, tail


def normalize(text: str) -> str:
    """Return WHATWG's normal form without fragment and credentials; raises `UrlError`."""
    text = text.strip()
    if not text:
        raise UrlError("the URL is empty")
    if len(text) > MAX_LENGTH:
        raise UrlError(f"the URL has {len(text):,} characters, more than {MAX_LENGTH:,}")
    check_host(text)
    try:
        href = ada_url.normalize_url(text).partition("#")[0]
    except ValueError:
        hint = ""
        if "://" not in text:
            hint = "; does it lack http:// at the beginning?"
        raise UrlError(f"not a URL: {without_credentials(text)[:200]!r}{hint}") from None
    scheme, _, rest = href.partition("://")
    if scheme not in ("http", "https"):
        raise UrlError(f"only http and https are fetched, not {scheme.partition(':')[0][:30]}:")
    authority, _, tail = rest.partition("/")
    if "@" in authority:
        authority = authority.rpartition("@")[2]
        href = f"{scheme}://{authority}/{tail}"
    if len(authority) > MAX_HOST:  # an international name is longer in its ASCII form
        raise UrlError(f"the host has more than {MAX_HOST} characters")
    if ".." in authority or authority.startswith("."):
        # No name server knows it, but without the dots it is another host: `10.0.0.1..` is no
        # address here.
        raise UrlError("the host has an empty part between its dots")
    if authority.endswith(":0"):
        raise UrlError("port 0 cannot be connected to")
    return href


def check_host(reference: str) -> None:
    """Raise `UrlError` for a URL or reference whose host is too long for any parser."""
    if len(reference) <= MAX_HOST:
        return
    match = _AUTHORITY.match(reference)
    if match and len(match[1].rpartition("@")[2]) > MAX_HOST:
        raise UrlError(f"the host has more than {MAX_HOST} characters")


def credentials(text: str) -> tuple[str, str] | None:
    """Return the origin of a URL and the `user:password` in it, if there are any."""
    if "@" not in text:
        return None
    try:
        url = ada_url.URL(text.strip())
    except ValueError:
        return None
    if url.protocol not in ("http:", "https:") or not (url.username or url.password):
        return None
    return url.origin, f"{unquote(url.username)}:{unquote(url.password)}"


def without_secrets(value: Any) -> Any:
    """Return a JSON value without the user names and passwords of URLs in its texts."""
    match value:
        case str():
            if _AT.search(value):
                return _without_user_info(value)
        case list():
            return [without_secrets(item) for item in value]
        case dict():
            return _with_names_redacted(value)
    return value


def _with_names_redacted(value: dict[str, Any]) -> dict[str, Any]:
    """Redact names, too; two names that become equal get a number."""
    kept: dict[str, Any] = {}
    for name, item in value.items():
        shown = redacted = without_secrets(name)
        number = 1
        while shown in kept:
            number += 1
            shown = f"{redacted} {number}"
        kept[shown] = without_secrets(item)
    return kept


def _without_user_info(text: str) -> str:
    """Remove the credentials of each host, in one pass: a cell may have a megabyte."""
    parts = _BORDERS.split(text)  # texts and the borders between them, alternating
    before, slashes = "", 0
    for place in range(0, len(parts), 2):
        part = parts[place]
        if "@" in part:
            scheme = _SCHEME.search(part)
            if _begins_host(before, slashes):
                part = part.rpartition("@")[2]
            elif scheme:
                part = part[: scheme.end()] + part[scheme.end() :].rpartition("@")[2]
            parts[place] = part
        border = parts[place + 1 : place + 2]
        if border not in (["/"], ["\\"]):
            before, slashes = "", 0
        elif part or not slashes:
            before, slashes = part, 1
        else:
            slashes += 1
    return _without_strange_user_info(_PASSWORD.sub(r"\1", "".join(parts)))


def _begins_host(before: str, slashes: int) -> bool:
    """Whether a host follows: browsers need one slash after `http:`, or two without a scheme."""
    if before[-6:].lower().endswith(("http:", "https:")):
        return slashes > 0
    return slashes > 1 and (not before or before[-1] == ":")


def _without_strange_user_info(text: str) -> str:
    """The same for a text that is a single URL, with a blank or a slash in its password."""
    if "@" not in text or len(text) > MAX_LENGTH:
        return text
    try:
        check_host(text)
        url = ada_url.URL(text.strip())
    except (UrlError, ValueError):
        if _BROKEN.fullmatch(text):
            return _BROKEN.sub(r"\1\2", text)
        return text
    if not url.password:
        return text
    url.username = url.password = ""
    return str(url.href)


def _key(scheme: str, authority: str, tail: str) -> bytes:
    """Identify the page of a URL, without tracking parameters and the order of names."""
    path, _, query = tail.partition("?")
    if query:
        kept = [pair for pair in query.split("&") if pair and _name(pair) not in _TRACKING]
        kept.sort(key=_name)  # stable: ?sort=a&sort=b may be another page than ?sort=b&sort=a
        query = "&".join(kept)
    return blake2b(f"{scheme}://{authority}/{path}?{query}".encode(), digest_size=16).digest()


def _name(pair: str) -> str:
    return pair.partition("=")[0].lower()


@lru_cache(maxsize=10_000)
def domain(host: str) -> str:
    """Return what limits apply to: a name's registrable domain, or the address itself."""
    bare = host.strip("[]").rstrip(".")
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        return _suffixes().privatesuffix(bare) or bare


def is_public_suffix(name: str) -> bool:
    """Whether names below it belong to different owners, as below co.uk."""
    return bool(_suffixes().is_public(name))


@cache
def _suffixes() -> "PublicSuffixList":
    from publicsuffixlist import PublicSuffixList

    return PublicSuffixList()


def without_credentials(text: str) -> str:
    """Return a text without what is between `://` and `@`, for rejects and messages."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "", text
    authority, slash, path = rest.partition("/")
    if "@" in path and not ada_url.check_url(text.strip()):
        authority, slash, path = rest, "", ""  # what is no URL may have a slash in its password
    if "@" in authority:
        authority = "***@" + authority.rpartition("@")[2]
    if scheme.startswith(("redis", "unix", "sentinel")):  # with passwords in queries, too
        path = _QUERY_PASSWORD.sub(r"\1***", path)
    return scheme + separator + authority + slash + path
