"""Canonical URLs and domains; one WHATWG parser for all of them, so that what is checked is what is
dialled."""

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
"""Characters of a host: names have no more, and the time to read an international one grows with
their square."""
_AUTHORITY = re.compile(
    r"[\x00-\x20]*+(?:[a-z][a-z0-9+.\t\n\r-]*+:|[/\\][\t\n\r]*+[/\\])[/\\\t\n\r]*+([^/\\?#]*+)",
    re.I,
)
"""The most that a browser may take for user, host and port at the beginning of a reference."""
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
    """Read a URL as a browser would, without its user name and password (`credentials` has them);
    raises `UrlError` with a reason that fits in a rejects file."""
    href = normal(text)
    scheme, _, rest = href.partition("://")
    authority, _, tail = rest.partition("/")
    host = (
        authority.rpartition(":")[0] if authority[-1:].isdigit() and ":" in authority else authority
    )
    return Address(href, _key(scheme, authority, tail), domain(host))


def normal(text: str) -> str:
    """What is dialled for a URL: WHATWG's normal form, without a fragment and credentials; raises
    likewise."""
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
    # In WHATWG's normal form the parts can be cut out, which is five times as fast as asking for
    # each.
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
        # No name server knows it, but whoever takes the dots away reads another host: `10.0.0.1..`
        # is no address here.
        raise UrlError("the host has an empty part between its dots")
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
    """The origin of a URL and the `user:password` in it, for whoever keeps secrets; None where
    there is none."""
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
    """A value as JSON has it, without the user names and passwords of the URLs in its texts."""
    match value:
        case str():
            return _without_user_info(value) if _AT.search(value) else value
        case list():
            return [without_secrets(item) for item in value]
        case dict():
            return _with_names_redacted(value)
    return value


def _with_names_redacted(value: dict[str, Any]) -> dict[str, Any]:
    """The names are texts too; two that become one are told apart by a number."""
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
    """Cut out what stands before the last `@` of each host; one pass, as a cell may have a
    megabyte."""
    parts = _BORDERS.split(text)  # texts and the borders between them, by turns
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
        border = parts[place + 1] if place + 1 < len(parts) else ""
        if border and border in "\\/":
            before, slashes = (part, 1) if part or not slashes else (before, slashes + 1)
        else:
            before, slashes = "", 0
    return _without_strange_user_info(_PASSWORD.sub(r"\1", "".join(parts)))


def _begins_host(before: str, slashes: int) -> bool:
    """Whether a host follows behind so many slashes: browsers need none after `http:`, and no
    scheme before two."""
    if before[-6:].lower().endswith(("http:", "https:")):
        return slashes > 0
    return slashes > 1 and (not before or before[-1] == ":")


def _without_strange_user_info(text: str) -> str:
    """The same for a text that is one URL by itself, with a blank or a slash in its password."""
    if "@" not in text or len(text) > MAX_LENGTH:
        return text
    try:
        check_host(text)
        url = ada_url.URL(text.strip())
    except (UrlError, ValueError):
        return _BROKEN.sub(r"\1\2", text) if _BROKEN.fullmatch(text) else text
    if not url.password:
        return text
    url.username = url.password = ""
    return str(url.href)


def _key(scheme: str, authority: str, tail: str) -> bytes:
    """Identify the page behind a URL: without tracking parameters, whatever the order of the
    others' names."""
    path, _, query = tail.partition("?")
    kept = (
        [pair for pair in query.split("&") if pair and _name(pair) not in _TRACKING]
        if query
        else []
    )
    kept.sort(
        key=_name
    )  # values of one name stay as they are: ?sort=a&sort=b may be another page than ?sort=b&sort=a
    return blake2b(
        f"{scheme}://{authority}/{path}?{'&'.join(kept)}".encode(), digest_size=16
    ).digest()


def _name(pair: str) -> str:
    return pair.partition("=")[0].lower()


@lru_cache(maxsize=10_000)
def domain(host: str) -> str:
    """What limits apply to: the registrable domain of a host name, or the address itself."""
    bare = host.strip("[]").rstrip(".")
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        return _suffixes().privatesuffix(bare) or bare


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
    if "@" in path and not ada_url.check_url(
        text.strip()
    ):  # what is no URL may have a slash in its password
        authority, slash, path = rest, "", ""
    if "@" in authority:
        authority = "***@" + authority.rpartition("@")[2]
    if scheme.startswith(
        ("redis", "unix", "sentinel")
    ):  # a password may stand in their queries, too
        path = _QUERY_PASSWORD.sub(r"\1***", path)
    return scheme + separator + authority + slash + path
