"""The keys of the files in `config/`: their types, defaults and checks."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from crawler.config import DEFAULT_RATE, interval
from crawler.errors import InputError, UrlError
from crawler.models import Fetcher
from crawler.render_options import DEFAULT_BLOCK, RenderOptions
from crawler.sites.browserfile import checked_browser
from crawler.sites.fieldfile import (
    Field,
    checked_fields,
    checked_locale,
    checked_names,
    checked_schema,
)
from crawler.sites.yamlfile import (
    KINDS,
    Boolean,
    Checks,
    Entries,
    Faults,
    Node,
    Wrong,
    checked,
    converted,
    mapping,
    nearest,
    read_entries,
    text_check,
    text_of,
)

MAX_HOSTS, MAX_HEADERS, MAX_HEADER = 10_000, 100, 8_000
PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_HEADER_VALUE = re.compile(r"[\t -~\xa0-\xff]*")
_NOT_IN_HOSTS = re.compile(r"[/?#@\s*\\{}%]")
SITE_ONLY = ("hosts", "url_template")
_PLANNED = {"use_llm": "reading of pages by a language model"}
"""Keys of features that this version does not have."""

Attempts = Annotated[int, Meta(ge=1, le=20, description="a whole number from 1 to 20")]
Requests = Annotated[int, Meta(ge=1, le=1000, description="a whole number from 1 to 1000, or none")]
Delay = Annotated[float, Meta(ge=0, le=86400, description="a number from 0 to 86400 seconds")]
Wait = Annotated[float, Meta(ge=0.1, le=86400, description="a number from 0.1 to 86400 seconds")]
Timeout = Annotated[float, Meta(ge=0.1, le=3600, description="a number from 0.1 to 3600 seconds")]


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How often a page is tried, and the longest waits: after the first failure, and at all."""

    attempts: Attempts = 3
    base_s: Timeout = 1.0
    cap_s: Wait = 600.0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Every key of a file, with its value where no file sets it."""

    hosts: tuple[str, ...] = ()
    rate: str = DEFAULT_RATE
    concurrency: int = 2  # requests at a time; 0 is no limit
    delay_s: Delay = 0.0
    limit_per: Literal["domain", "ip"] = "domain"
    timeout_s: Timeout = 60.0
    connect_timeout_s: Timeout = 10.0
    retry: Retry = Retry()
    respect_robots: Boolean = True
    headers: tuple[tuple[str, str], ...] = ()
    fetcher: Fetcher = "http"
    browser: RenderOptions = RenderOptions(block=DEFAULT_BLOCK)
    url_template: str | None = None
    encoding: str | None = None  # the charset of every page, whatever pages and their headers say
    locale: str | None = None
    fields: dict[str, Field] = {}
    required: tuple[str, ...] = ()  # fields without which a record is invalid
    validate: str | None = None  # the JSON Schema of a record, as JSON
    structured: Boolean | None = None
    """Whether records hold what any page says about itself; if not set: where fields are not."""


def read(
    path: Path, keys: type[Settings], checks: Checks, not_here: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the checked values of a file and the lines of its keys; nothing without a file."""

    def check(entries: Entries) -> dict[str, Any]:
        faults, known = Faults(), dict(entries)
        for key, (line, node) in entries.items():
            with faults:
                if key in not_here and not node.is_null:
                    del known[key]
                    reason = f"{key} belongs into the file of a site (sites/<site>.yaml), not here"
                    raise Wrong(reason, line)
                if key in _PLANNED:
                    del known[key]
                    reason = f"this version has no {_PLANNED[key]}; take it out"
                    raise Wrong(f"{key} is not in force yet: {reason}", line)
        given: dict[str, Any] = {}
        with faults:
            given = checked(known, keys, "", {**_CHECKS, **checks})
        faults.end()
        return given

    return read_entries(path, check)


def checked_entries(
    path: str, entries: Entries, keys: type[Settings], checks: Checks
) -> dict[str, Any]:
    """Check values that were read from a file of another kind."""
    try:
        return checked(entries, keys, "", {**_CHECKS, **checks})
    except Wrong as wrong:
        raise InputError(path, wrong.reason, wrong.line) from None


# Checks of single keys. Those of a text raise `ValueError`.


def _rate(text: str) -> str:
    try:
        interval(text)
    except ValueError as error:
        raise ValueError(f"{error}, not {text[:60]!r}") from None
    return text


def _concurrency(text: str) -> int:
    if text == "none":
        return 0
    return int(converted(text, Requests))


def checked_hosts(node: Node) -> tuple[str, ...]:
    """Check the names of hosts."""
    nodes = [node]
    if node.kind == "sequence":
        nodes = node.items
    if len(nodes) > MAX_HOSTS:
        raise Wrong(f"hosts has {len(nodes):,} names, more than {MAX_HOSTS:,}", node.line)
    hosts: dict[str, None] = {}
    for item in nodes:
        try:
            host = _host_name(text_of("hosts", item))
        except ValueError as error:
            raise Wrong(f"hosts: {error}", item.line) from None
        if host in hosts:
            raise Wrong(f"hosts names {host} twice", item.line)
        hosts[host] = None
    return tuple(hosts)


def _host_name(text: str) -> str:
    from crawler.urls import parse

    name = text.removeprefix("*.")
    star = text.removesuffix(name)
    if name.count(":") > 1 and not name.startswith("["):
        name = f"[{name}]"
    has_port = ":" in name and not name.endswith("]")
    if not has_port and not _NOT_IN_HOSTS.search(name):
        try:
            host = host_of(parse(f"http://{name}/").url)
        except UrlError:
            host = ""
        is_address = ":" in host or host.replace(".", "").isdigit()
        if host and not (star and is_address):
            return star + host
    hint = "without a port; *.example.org for all below it"
    if "/" in text:
        hint = "without https:// and without a path"
    wanted = f"write it as county.example.org, {hint}"
    raise ValueError(f"{text[:100]!r} is not a host name; {wanted}")


def host_of(url: str) -> str:
    """Return the host of a URL in lower case, without port, brackets and final dot."""
    authority = url.partition("://")[2].partition("/")[0].rpartition("@")[2]
    host, _, port = authority.rpartition(":")
    if not host or not port.isdigit():
        host = authority
    return host.strip("[]").rstrip(".").lower()


def _retry(node: Node) -> dict[str, Any]:
    given = checked(mapping("retry", node), Retry, " in retry", {})
    if given.get("base_s", 0.0) > given.get("cap_s", math.inf):
        raise Wrong("retry: base_s is more than cap_s", node.line)
    return given


def _headers(node: Node) -> dict[str, str | None]:
    """Check headers; a null removes that of the defaults. No message may show a value."""
    from crawler.fetch.session import RESERVED  # imports the client, which few commands need

    headers: dict[str, str | None] = {}
    lines: dict[str, int] = {}
    for name, (line, value) in mapping("headers", node, MAX_HEADERS).items():
        folded = name.lower()
        if not _HEADER_NAME.fullmatch(name):
            raise Wrong(f"headers: {name[:60]!r} is not a header's name", line)
        if folded in lines:
            reason = f"{name} is here again; it was in line {lines[folded]}"
            raise Wrong(f"headers: {reason}", line)
        lines[folded] = line
        if folded in RESERVED:
            reason = f"{name} is set by the program itself, for each request"
            raise Wrong(f"headers: {reason}", line)
        its = f"headers: the value of {name}"
        if value.kind != "scalar":
            raise Wrong(f"{its} must be a single text, not {KINDS[value.kind]}", value.line)
        text = value.text.strip()
        if not _HEADER_VALUE.fullmatch(text):
            raise Wrong(f"{its} holds a line break or another sign that no header may", line)
        if len(text) > MAX_HEADER:
            raise Wrong(f"{its} has {len(text):,} characters, more than {MAX_HEADER:,}", line)
        headers[name] = None if value.is_null else text
    return headers


def _template(text: str) -> str:
    from crawler.urls import parse

    names = PLACEHOLDER.findall(text)
    sample = PLACEHOLDER.sub("0", text)
    if "{" in sample or "}" in sample or not all(name.strip() for name in names):
        raise ValueError("a brace is open or empty; placeholders are columns, as in {parcel_id}")
    if not names:
        reason = "it has no placeholder, such as {parcel_id}"
        raise ValueError(f"{reason}: every row would get the same URL")
    scheme, _, rest = text.partition("://")
    authority = re.split(r"[/?#\\]", rest, maxsplit=1)[0]
    if rest and "{" in scheme + authority:
        raise ValueError("the host must be the same for all rows; placeholders stand behind it")
    if "@" in authority:
        raise ValueError("it holds a user name or a password; secrets have no place in it")
    try:
        url = parse(sample).url
    except UrlError as error:
        raise ValueError(str(error)) from None
    # The host is written as a browser would: the one checked is the one dialled.
    origin = "/".join(url.split("/")[:3])
    return origin + rest.removeprefix(authority)


def _encoding(text: str) -> str:
    from crawler.fetch import charset  # imports detection, which few commands need

    name = charset.resolve_label(text)
    if not name:
        raise ValueError(f"{text[:60]!r} is not a charset; {nearest(text, charset.NAMES)}")
    return name


_CHECKS: Checks = {
    "hosts": checked_hosts,
    "rate": text_check("rate", _rate),
    "concurrency": text_check("concurrency", _concurrency),
    "retry": _retry,
    "browser": checked_browser,
    "headers": _headers,
    "url_template": text_check("url_template", _template),
    "encoding": text_check("encoding", _encoding),
    "locale": text_check("locale", checked_locale),
    "fields": checked_fields,
    "required": checked_names,
    "validate": checked_schema,
}
