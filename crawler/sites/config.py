"""Sites as config/ describes them: scraping_defaults.yaml for all, overlaid by sites/<site>.yaml
for some hosts.

Files are read once, when a command or a worker starts; what is changed later counts from the next
start on.
"""

import difflib
import math
import re
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args
from urllib.parse import quote

import msgspec

from crawler.config import DEFAULT_RATE, interval
from crawler.errors import InputError, UrlError
from crawler.models import Rule
from crawler.sites import yamltext
from crawler.sites.yamltext import List, Mapping, Text, Value

DEFAULTS = "scraping_defaults.yaml"
DEFAULT = "default"
"""The name of the site that every page belongs to which no file names."""
MAX_FIELDS, MAX_HOSTS, MAX_HEADERS, MAX_HEADER = 500, 10_000, 100, 8_000
_CACHED_HOSTS = 10_000
_NAME = re.compile(r"[a-z0-9_-]{1,100}")
_FIELD_NAME = re.compile(r"\w[\w -]{0,99}")
_ATTRIBUTE = re.compile(r"[^\s\"'<>/=\x00-\x1f]{1,100}")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_LIMITS = ("rate", "delay_s", "concurrency", "limit_per")
START_URLS = "start_urls.yaml"
_NOT_YET = {
    "use_llm": "reading of pages by a language model",
    "start_urls": "crawls of whole sites",
}
"""Keys of features that are still missing."""


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How often a page is tried, and how long one waits in between."""

    attempts: int = 3
    base_s: float = 1.0
    """At most so long after the first failure, twice as long after each further one …"""
    cap_s: float = 600.0
    """… but never longer than this."""


Type = Literal["text", "number", "integer", "date", "url", "boolean", "html"]
MISSING = "missing"
"""Under this name a record lists its required fields without a value."""


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One value, or all of them, that a selector finds in a page."""

    css: str
    """The selector."""
    attr: str = ""
    """The attribute that holds the value, instead of the element's words."""
    all: bool = False
    """Whether the field is the list of all values; else it is the first one."""
    regex: str = ""
    """What of the text counts: the first group, or all that matches."""
    type: Type = "text"
    """What the value is."""
    locale: str = ""
    """Who wrote the value, where it can be read in two ways; else what the file says for all
    fields."""
    required: bool = False
    """Whether a page without it is told in the record's list `missing`."""


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for the pages of some hosts."""

    name: str
    version: str
    """Twelve digits that change with anything in effect, and with nothing else."""
    hosts: tuple[str, ...] = ()
    rule: Rule = Rule(interval_s=0.5, at_a_time=2)
    limit_per: Literal["domain", "ip"] = "domain"
    timeout_s: float = 60.0
    connect_timeout_s: float = 10.0
    retry: Retry = Retry()
    respect_robots: bool = True
    headers: tuple[tuple[str, str], ...] = ()
    fetcher: Literal["http"] = "http"
    url_template: str | None = None
    encoding: str | None = None
    """The charset of every page, whatever the pages and their headers say."""
    locale: str | None = None
    """Who wrote the values of fields that do not say so themselves."""
    fields: dict[str, Field] = {}
    structured: bool = True
    """Whether a record also holds what is read from any page; where no file says so, only without
    fields."""

    def __repr__(self) -> str:
        """Without the values of headers, which may be secrets."""
        shown = msgspec.structs.asdict(self) | {
            "headers": tuple((name, "***") for name, _ in self.headers)
        }
        return f"Site({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


BUILT_IN: dict[str, Any] = {
    "hosts": (),
    "rate": DEFAULT_RATE,
    "concurrency": 2,
    "delay_s": 0.0,
    "limit_per": "domain",
    "timeout_s": 60.0,
    "connect_timeout_s": 10.0,
    "retry": msgspec.structs.asdict(Retry()),
    "respect_robots": True,
    "headers": {},
    "fetcher": "http",
    "url_template": None,
    "encoding": None,
    "locale": None,
    "fields": {},
    "structured": None,
}
"""Every key and what holds where no file says otherwise; `concurrency` 0 means no limit."""
_ONE_SITE = ("hosts", "url_template")
"""What only a site's own file may say."""


class _Described(msgspec.Struct, frozen=True):
    """A site, with what its own file says."""

    site: Site
    own: dict[str, Any]
    path: Path
    lines: dict[str, int]


class Sites:
    """The sites by host, by domain and by name."""

    def __init__(self, default: _Described, sites: Iterable[_Described]) -> None:
        self._default = default
        self._named = {each.site.name: each for each in sites}
        self._hosts: dict[str, _Described] = {}
        self._cache: dict[str, _Described] = {}
        for each in self._named.values():
            for host in each.site.hosts:
                if host in self._hosts:
                    other = self._hosts[host].path
                    _refuse(each, f"the host {host} belongs to {other} already", "hosts")
                self._hosts[host] = each
        self._refuse_two_limits()

    @property
    def default(self) -> Site:
        """The site of every host that no file names."""
        return self._default.site

    def of(self, url: str, platform: str | None = None) -> Site:
        """The site of a URL; where no file names its host, the one that its task names, but without
        its headers: these may be secrets, and are for its own hosts only."""
        found = self._of_host(_host(url))
        if platform and found is self._default and (named := self.named(platform)):
            return msgspec.structs.replace(named, headers=self.default.headers)
        return found.site

    def named(self, name: str) -> Site | None:
        """The site whose file has that name."""
        found = self._named.get(name.strip().lower())
        return found.site if found else None

    @property
    def names(self) -> list[str]:
        """The names of the sites that files describe."""
        return list(self._named)

    @property
    def templates(self) -> list[str]:
        """The names of the sites that can make a URL out of a row's columns."""
        return [name for name, each in self._named.items() if each.site.url_template]

    def rule(self, domain: str, rate: str | None = None) -> Rule:
        """The limits on a registrable domain; `rate` is what a job was given by hand, and goes
        before all files."""
        found = self._of_domain(domain)
        return found.site.rule if rate is None else _rule(found.own, {}, interval(rate))

    def limit_per(self, domain: str) -> str:
        """Whether the limits on a domain are for all of the fleet (`domain`), or for each of its
        addresses (`ip`)."""
        return self._of_domain(domain).site.limit_per

    def _of_domain(self, domain: str) -> _Described:
        return self._domains.get(domain) or self._of_host(domain)

    def _of_host(self, host: str) -> _Described:
        found = self._cache.get(host)
        if found is None:
            if len(self._cache) >= _CACHED_HOSTS:
                self._cache.clear()
            found = self._cache[host] = self._hosts.get(host) or self._by_suffix(host)
        return found

    def _by_suffix(self, host: str) -> _Described:
        rest = host
        while rest:
            rest = rest.partition(".")[2]
            if rest and (found := self._hosts.get(f"*.{rest}")):
                return found
        return self._default

    def _refuse_two_limits(self) -> None:
        """Limits are for a whole domain: two sites that share one cannot each have their own."""
        self._domains: dict[str, _Described] = {}
        if not self._hosts:
            return
        from crawler.urls import (
            domain,
        )  # its list of suffixes is large, and only needed where there are sites

        for host, each in self._hosts.items():
            shared = domain(host.removeprefix("*."))
            other = self._domains.setdefault(shared, each)
            if _own_limits(each) != _own_limits(other):
                _refuse(
                    each,
                    f"{', '.join(_LIMITS)} must be the same here and in {other.path}, "
                    f"because limits are for all of {shared}",
                    next((key for key in _LIMITS if key in each.lines), "hosts"),
                )


def _own_limits(each: _Described) -> tuple[Any, ...]:
    return tuple(each.own.get(key) for key in _LIMITS)


def _refuse(each: _Described, reason: str, key: str) -> NoReturn:
    raise InputError(str(each.path), reason, each.lines.get(key))


def _host(url: str) -> str:
    authority = url.partition("://")[2].partition("/")[0].rpartition("@")[2]
    host, _, port = authority.rpartition(":")
    host = host if host and port.isdigit() else authority
    return host.strip("[]").rstrip(".").lower()


def _rule(own: dict[str, Any], effective: dict[str, Any], by_hand: float | None) -> Rule:
    """The limits; where a rate was given by hand, a second's worth of it may be under way at a
    time."""
    if by_hand is None:
        interval_s = max(interval(effective["rate"]), effective["delay_s"])
        return Rule(interval_s=interval_s, at_a_time=effective["concurrency"])
    at_a_time = max(2, math.ceil(1 / by_hand)) if by_hand else 0
    return Rule(interval_s=by_hand, at_a_time=own.get("concurrency", at_a_time))


# Loading.


def load(folder: Path, rate: str | None = None) -> Sites:
    """Read and check every file; `rate` (CRAWLER_RATE) replaces the defaults' rate, not that of a
    site's own file."""
    if (folder / START_URLS).exists():
        reason = "is not in force yet: this version has no crawls of whole sites; import a list of URLs, and remove it"
        raise InputError(str(folder / START_URLS), reason)
    path = folder / DEFAULTS
    common, lines = _read(path, site=False)
    default = _described(DEFAULT, path, common, {}, lines, rate)
    files = sorted(_site_files(folder / "sites"))
    return Sites(default, [_site(file, common, rate) for file in files])


def faults(folder: Path, rate: str | None = None) -> list[InputError]:
    """What `load` refuses: the fault of each file by itself, or of all of them together."""
    try:
        load(folder, rate)
    except InputError as error:
        paths = [folder / DEFAULTS, *sorted(_site_files(folder / "sites"))]
        return [fault for path in paths if (fault := _fault(path, rate))] or [error]
    return []


def _fault(path: Path, rate: str | None) -> InputError | None:
    try:
        if path.name == DEFAULTS:
            common, lines = _read(path, site=False)
            _described(DEFAULT, path, common, {}, lines, rate)
        else:
            _site(path, {}, rate)
    except InputError as error:
        return error
    return None


def _site_files(folder: Path) -> list[Path]:
    try:
        return [
            path
            for path in folder.iterdir()
            if path.suffix in (".yaml", ".yml") and path.name[0] != "."
        ]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(str(folder), f"the folder cannot be read ({error.strerror})") from None


def _check_name(path: Path) -> None:
    if path.suffix == ".yml":
        raise InputError(str(path), "the name of a site's file must end in .yaml")
    if not _NAME.fullmatch(path.stem):
        raise InputError(
            str(path), "the name of a site consists of lower case letters, digits, - and _"
        )
    if path.stem == DEFAULT:
        raise InputError(str(path), f"what holds for all sites is in {DEFAULTS}")


def _site(path: Path, common: dict[str, Any], rate: str | None) -> _Described:
    _check_name(path)
    own, lines = _read(path, site=True)
    template = own.get("url_template")
    if template:
        host = _host(template)
        own.setdefault("hosts", (host,))
        if not _covers(own["hosts"], host):
            raise InputError(
                str(path),
                f"the host of the url_template, {host}, is not among hosts",
                lines["url_template"],
            )
    if not own.get("hosts"):
        raise InputError(
            str(path), "hosts is missing: a list of the host names that these settings are for"
        )
    return _described(path.stem, path, common, own, lines, rate)


def _covers(hosts: tuple[str, ...], host: str) -> bool:
    return any(
        each == host or (each.startswith("*.") and host.endswith(each[1:])) for each in hosts
    )


def _described(
    name: str,
    path: Path,
    common: dict[str, Any],
    own: dict[str, Any],
    lines: dict[str, int],
    rate: str | None,
) -> _Described:
    effective = _overlaid(_overlaid(BUILT_IN, common), own)
    if effective["structured"] is None:
        effective["structured"] = not effective["fields"]
    if effective["locale"]:
        effective["fields"] = {
            name: msgspec.structs.replace(field, locale=field.locale or effective["locale"])
            for name, field in effective["fields"].items()
        }
    by_hand = interval(rate) if rate is not None and "rate" not in own else None
    rule = _rule(own, effective, by_hand)
    if by_hand is not None and "delay_s" in own:
        rule = msgspec.structs.replace(rule, interval_s=max(by_hand, own["delay_s"]))
    fixed = {
        key: value
        for key, value in effective.items()
        if key not in ("rate", "delay_s", "concurrency")
    }
    fixed |= {"retry": Retry(**effective["retry"]), "headers": tuple(effective["headers"].items())}
    return _Described(
        Site(name=name, version=_version(effective), rule=rule, **fixed), own, path, lines
    )


def _overlaid(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """The values of both; of mappings, each key by itself."""
    merged = dict(below)
    for key, value in above.items():
        if key == "headers":
            names = {name.lower() for name in value}
            kept = {name: text for name, text in below[key].items() if name.lower() not in names}
            merged[key] = kept | {name: text for name, text in value.items() if text is not None}
        elif isinstance(value, dict):
            merged[key] = below[key] | value
        else:
            merged[key] = value
    return merged


def _version(effective: dict[str, Any]) -> str:
    canonical = msgspec.json.encode(effective, order="sorted")
    return sha256(canonical).hexdigest()[:12]


# Checking one file.


class _Wrong(Exception):
    """Why a value cannot be used, and where that is."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(reason, line)
        self.reason, self.line = reason, line


def _read(path: Path, site: bool) -> tuple[dict[str, Any], dict[str, int]]:
    """What a file says, by key, checked; and the lines of its keys."""
    found = yamltext.read(path)
    if found is None:
        return {}, {}
    known = _KEYS if site else {key: check for key, check in _KEYS.items() if key not in _ONE_SITE}
    if not site:
        for key in _ONE_SITE:
            if key in found.items and not _is_empty(found.items[key]):
                reason = f"{key} belongs into the file of a site (sites/<site>.yaml), not here"
                raise InputError(str(path), reason, found.lines[key])
    try:
        return _checked(found, known, _KEYS), found.lines
    except _Wrong as wrong:
        raise InputError(str(path), wrong.reason, wrong.line) from None


def _is_empty(value: Value) -> bool:
    return isinstance(value, Text) and value.empty


Check = Callable[[str, Value], Any]


def _checked(
    found: Mapping, known: dict[str, Check], names: Iterable[str], inside: str = ""
) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for key, value in found.items.items():
        if key in _NOT_YET and not inside:
            reason = f"{key} is not in force yet: this version has no {_NOT_YET[key]}; take it out"
            raise _Wrong(reason, found.lines[key])
        if key not in names:
            raise _Wrong(
                f"there is no key {key[:60]!r}{inside}; {_nearest(key, names)}", found.lines[key]
            )
        if key in known and not _is_empty(value):
            given[key] = known[key](key, value)
    return given


def _nearest(word: str, names: Iterable[str]) -> str:
    names = list(names)
    near = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"


def _text(key: str, value: Value) -> str:
    if not isinstance(value, Text):
        raise _Wrong(f"{key} must be a single value, not {_kind(value)}", value.line)
    if not value.text.strip():
        raise _Wrong(f"{key} is empty", value.line)
    return value.text.strip()


def _kind(value: Value) -> str:
    return {Text: "a single value", List: "a list", Mapping: "a mapping"}[type(value)]


def _mapping(key: str, value: Value) -> Mapping:
    if not isinstance(value, Mapping):
        raise _Wrong(
            f"{key} must be a mapping (lines such as `name: value`, further in), not {_kind(value)}",
            value.line,
        )
    return value


def _number(least: float, most: float, unit: str = "") -> Check:
    def check(key: str, value: Value) -> float:
        text = _text(key, value)
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if not least <= found <= most:
            raise _Wrong(
                f"{key} must be a number from {least:g} to {most:g}{unit}, not {text[:60]!r}",
                value.line,
            )
        return found

    return check


def _whole(least: int, most: int, none: bool = False) -> Check:
    def check(key: str, value: Value) -> int:
        text = _text(key, value)
        if none and text == "none":
            return 0
        if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or not least <= int(text) <= most:
            words = f"a whole number from {least} to {most}{', or none' if none else ''}"
            raise _Wrong(f"{key} must be {words}, not {text[:60]!r}", value.line)
        return int(text)

    return check


def _choice(*names: str) -> Check:
    def check(key: str, value: Value) -> str:
        text = _text(key, value)
        if text not in names:
            near = difflib.get_close_matches(text.lower(), names, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            words = f"one of {', '.join(names)}" if len(names) > 1 else names[0]
            raise _Wrong(f"{key} must be {words}, not {text[:60]!r}{hint}", value.line)
        return text

    return check


def _boolean(key: str, value: Value) -> bool:
    text = _text(key, value)
    words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    if text.lower() not in words:
        raise _Wrong(f"{key} must be true or false, not {text[:60]!r}", value.line)
    return words[text.lower()]


def _rate(key: str, value: Value) -> str:
    text = _text(key, value)
    try:
        interval(text)
    except ValueError as error:
        raise _Wrong(f"{key} {error}, not {text[:60]!r}", value.line) from None
    return text


def _hosts(key: str, value: Value) -> tuple[str, ...]:
    items = value.items if isinstance(value, List) else (value,)
    if len(items) > MAX_HOSTS:
        raise _Wrong(f"{key} has {len(items):,} names, more than {MAX_HOSTS:,}", value.line)
    hosts = [_host_name(key, item) for item in items]
    for at, host in enumerate(hosts):
        if host in hosts[:at]:
            raise _Wrong(f"{key} names {host} twice", items[at].line)
    return tuple(hosts)


def _host_name(key: str, value: Value) -> str:
    from crawler.urls import parse

    text = _text(key, value)
    star, name = ("*.", text[2:]) if text.startswith("*.") else ("", text)
    bare = name if name.startswith("[") or name.count(":") < 2 else f"[{name}]"
    with_port = not bare.endswith("]") and ":" in bare
    if not with_port and not re.search(r"[/?#@\s*\\{}%]", bare):
        try:
            host = _host(parse(f"http://{bare}/").url)
        except UrlError:
            host = ""
        if host and not (star and _is_address(host)):
            return star + host
    hint = (
        "without https:// and without a path"
        if "/" in text
        else "without a port; *.example.org for all below it"
    )
    raise _Wrong(
        f"{key}: {text[:100]!r} is not a host name; write it as county.example.org, {hint}",
        value.line,
    )


def _is_address(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()


def _retry(key: str, value: Value) -> dict[str, Any]:
    given = _checked(_mapping(key, value), _RETRY_KEYS, _RETRY_KEYS, f" in {key}")
    if given.get("base_s", 0.0) > given.get("cap_s", math.inf):
        raise _Wrong(f"{key}: base_s is more than cap_s", value.line)
    return given


def _headers(key: str, value: Value) -> dict[str, str | None]:
    """Headers by name; one without a value takes that of the defaults away. No message ever shows a
    value."""
    from crawler.fetch.session import (
        RESERVED,
    )  # with the client behind it, which no command needs that sets no header

    found = _mapping(key, value)
    headers: dict[str, str | None] = {}
    if len(found.items) > MAX_HEADERS:
        raise _Wrong(f"{key} has {len(found.items):,} entries, more than {MAX_HEADERS}", value.line)
    seen: dict[str, int] = {}
    for name, item in found.items.items():
        line = found.lines[name]
        if not _TOKEN.fullmatch(name):
            raise _Wrong(f"{key}: {name[:60]!r} is not a header's name", line)
        if name.lower() in seen:
            raise _Wrong(f"{key}: {name} is here again; it was in line {seen[name.lower()]}", line)
        seen[name.lower()] = line
        if name.lower() in RESERVED:
            raise _Wrong(f"{key}: {name} is set by the program itself, for each request", line)
        if not isinstance(item, Text):
            raise _Wrong(
                f"{key}: the value of {name} must be a single text, not {_kind(item)}", item.line
            )
        text = item.text.strip()
        if not all(sign == "\t" or " " <= sign <= "~" or "\xa0" <= sign <= "\xff" for sign in text):
            raise _Wrong(
                f"{key}: the value of {name} holds a line break or another sign that no header may",
                line,
            )
        if len(text) > MAX_HEADER:
            raise _Wrong(
                f"{key}: the value of {name} has {len(text):,} characters, more than {MAX_HEADER:,}",
                line,
            )
        headers[name] = None if item.empty else text
    return headers


def _template(key: str, value: Value) -> str:
    from crawler.urls import parse

    text = _text(key, value)
    names = _PLACEHOLDER.findall(text)
    bare = _PLACEHOLDER.sub("0", text)
    if "{" in bare or "}" in bare or not all(name.strip() for name in names):
        raise _Wrong(
            f"{key}: a brace is open or empty; placeholders are columns, as in {{parcel_id}}",
            value.line,
        )
    if not names:
        raise _Wrong(
            f"{key} has no placeholder, such as {{parcel_id}}: every row would get the same URL",
            value.line,
        )
    scheme, _, rest = text.partition("://")
    if rest and ("{" in scheme or "{" in re.split(r"[/?#\\]", rest, maxsplit=1)[0]):
        raise _Wrong(
            f"{key}: the host must be the same for all rows; placeholders stand behind it",
            value.line,
        )
    if "@" in re.split(r"[/?#\\]", rest, maxsplit=1)[0]:
        raise _Wrong(
            f"{key} holds a user name or a password; secrets have no place in it", value.line
        )
    try:
        address = parse(bare)
    except UrlError as error:
        raise _Wrong(f"{key}: {error}", value.line) from None
    # Written as a browser would: what is checked is what is dialled.
    origin = "/".join(address.url.split("/")[:3])
    tail = text.partition("://")[2]
    return origin + tail[len(re.split(r"[/?#\\]", tail, maxsplit=1)[0]) :]


def _encoding(key: str, value: Value) -> str:
    from crawler.fetch import (
        charset,
    )  # with its detection, which no command needs that decodes nothing

    text = _text(key, value)
    name = charset.named(text)
    if not name:
        raise _Wrong(
            f"{key}: {text[:60]!r} is not a charset; {_nearest(text, charset.NAMES)}", value.line
        )
    return name


def _locale(key: str, value: Value) -> str:
    from crawler.sites import locales

    text = _text(key, value)
    try:
        return locales.named(text)
    except KeyError:
        pass
    language = text.replace("_", "-").partition("-")[0].lower()
    near = [name for name in locales.KNOWN if name.partition("-")[0] == language]
    languages = [name for name in locales.KNOWN if "-" not in name]
    hint = f"did you mean one of {', '.join(near)}?" if near else _nearest(language, languages)
    raise _Wrong(f"{key}: {text[:60]!r} is not a known locale; {hint}", value.line)


def _fields(key: str, value: Value) -> dict[str, Field]:
    found = _mapping(key, value)
    if len(found.items) > MAX_FIELDS:
        raise _Wrong(f"{key} has {len(found.items):,} entries, more than {MAX_FIELDS}", value.line)
    return {name: _field(name, item, found.lines[name]) for name, item in found.items.items()}


def _field(name: str, value: Value, line: int) -> Field:
    if not _FIELD_NAME.fullmatch(name):
        raise _Wrong(
            f"fields: {name[:60]!r} is not a name; letters, digits, spaces, - and _ make one", line
        )
    if name == MISSING:
        raise _Wrong(
            f"fields: {MISSING!r} is the name of the list of required fields that a page lacks",
            line,
        )
    if isinstance(value, Text):
        return Field(css=_selector("css", value))
    inside = f" in the field {name}"
    found = _mapping(f"the field {name}", value)
    given = _checked(found, _FIELD_KEYS, _FIELD_KEYS, inside)
    if "css" not in given:
        raise _Wrong(f"the field {name} has no css, the selector that finds it", line)
    field = Field(**given)
    if field.type == "html" and field.attr:
        raise _Wrong(
            f"the field {name}: an attribute has no html; leave out attr or the type",
            found.lines["type"],
        )
    return field


def _selector(key: str, value: Value) -> str:
    from crawler.sites import css

    text = _text(key, value)
    try:
        css.compile(text)
    except ValueError as error:
        raise _Wrong(f"{key}: {error}", value.line) from None
    return text


def _regex(key: str, value: Value) -> str:
    from crawler.sites.selectors import pattern

    text = _text(key, value)
    try:
        pattern(text)
    except ValueError as error:
        raise _Wrong(f"{key}: {error}", value.line) from None
    return text


def _attr(key: str, value: Value) -> str:
    text = _text(key, value).lower()
    if not _ATTRIBUTE.fullmatch(text):
        raise _Wrong(f"{key}: {text[:60]!r} is not an attribute's name", value.line)
    return text


_RETRY_KEYS: dict[str, Check] = {
    "attempts": _whole(1, 20),
    "base_s": _number(0.1, 3600, " seconds"),
    "cap_s": _number(0.1, 86400, " seconds"),
}
_FIELD_KEYS: dict[str, Check] = {
    "css": _selector,
    "attr": _attr,
    "all": _boolean,
    "regex": _regex,
    "type": _choice(*get_args(Type)),
    "locale": _locale,
    "required": _boolean,
}
_KEYS: dict[str, Check] = {
    "hosts": _hosts,
    "rate": _rate,
    "concurrency": _whole(1, 1000, none=True),
    "delay_s": _number(0, 86400, " seconds"),
    "limit_per": _choice("domain", "ip"),
    "timeout_s": _number(0.1, 3600, " seconds"),
    "connect_timeout_s": _number(0.1, 3600, " seconds"),
    "retry": _retry,
    "respect_robots": _boolean,
    "headers": _headers,
    "fetcher": _choice("http"),
    "url_template": _template,
    "encoding": _encoding,
    "locale": _locale,
    "fields": _fields,
    "structured": _boolean,
}


# URLs out of columns.


def expand(template: str, column: Callable[[str], str | None]) -> str:
    """The URL for a row; raises `ValueError` where a column is missing, empty, or would lead out of
    its place."""

    def value(match: re.Match[str]) -> str:
        name = match[1].strip().lower()
        found = column(name)
        text = (found or "").strip()
        if not text:
            fault = "missing" if found is None else "empty"
            raise ValueError(
                f"the column {name[:60]!r} is {fault}, and the url_template of the platform needs it"
            )
        if text in (".", ".."):
            raise ValueError(f"the column {name[:60]!r} is {text!r}, which is a place and no value")
        return quote(text, safe="")

    return _PLACEHOLDER.sub(value, template)
