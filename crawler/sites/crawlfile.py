"""The keys of a site's file that say how the site is crawled: their types, defaults and checks."""

import re
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import PurePath
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from crawler.errors import UrlError
from crawler.render_options import PASSWORD, RenderOptions
from crawler.sites.browserfile import checked_browser
from crawler.sites.fieldfile import (
    Field,
    checked_css,
    checked_fields,
    checked_json_path,
    checked_regex,
    checked_schema,
)
from crawler.sites.listingfile import Listings, checked_listings
from crawler.sites.sitefile import PLACEHOLDER, Delay, Settings, Timeout, checked_hosts
from crawler.sites.yamlfile import (
    KINDS,
    Boolean,
    Checks,
    Entries,
    Faults,
    Node,
    Wrong,
    checked,
    checked_text,
    converted,
    each,
    mapping,
    nearest,
    need,
    text_check,
    text_of,
)

MAX_STARTS, MAX_RULES, MAX_FORM_VALUES, MAX_FORM_VALUE = 10_000, 100, 200, 10_000
_SECRET = re.compile(r"\$([a-z_][a-z0-9_]{0,99})", re.IGNORECASE | re.ASCII)
_LOOKS_SECRET = re.compile(r"\$[a-z_]", re.IGNORECASE | re.ASCII)
_PARAMETER = re.compile(r"[^\s&=#?]{1,100}")
_WAYS = ("next", "parameter", "path", "cursor", "postback")
_NUMBERED = ("parameter", "path")
_NUMBERS = ("first", "step", "max")


Role = Literal["index", "listing", "file"]
Linking = Literal["start", "index", "listing"]
"""Roles of pages whose links may be followed."""
Pages = Annotated[int, Meta(ge=1, le=999_999_999, description="a whole number of at least 1")]
Number = Annotated[int, Meta(ge=0, le=999_999_999, description="a whole number of at least 0")]
MAX_FILE_BYTES, MAX_FILE_COUNT = 100_000_000, 1_000
"""Highest limits that a site's file can set: a file is in memory while it is fetched."""
FileBytes = Annotated[
    int, Meta(ge=1, le=MAX_FILE_BYTES, description="a whole number from 1 to 100000000")
]
FileCount = Annotated[
    int, Meta(ge=1, le=MAX_FILE_COUNT, description="a whole number from 1 to 1000")
]


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """Which form of a page is submitted, and with which values by control."""

    css: str = ""  # not needed if the page has one form only
    values: dict[str, str] = {}
    submit: str = ""  # the name of the button to press; without one it is the first

    @property
    def columns(self) -> list[str]:
        """The columns that its values take from a row."""
        found = [name for text in self.values.values() for name in PLACEHOLDER.findall(text)]
        return list(dict.fromkeys(name.strip().lower() for name in found))

    @property
    def secrets(self) -> list[str]:
        """The names of the secrets that its values stand for."""
        found = (secret_name(text) for text in self.values.values())
        return list(dict.fromkeys(name for name in found if name))


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Where a crawl begins: a page, or what the form of a page leads to."""

    url: str
    form: Form | None = None


class Login(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The page and the form that sign a job in."""

    url: str
    form: Form
    secrets: str = ""  # the file with its secrets, in the config folder; --secrets goes before it


class Follow(msgspec.Struct, frozen=True, kw_only=True):
    """Which links of a page become tasks, and of which role; with `css` and `regex` both apply."""

    css: str = ""  # of the links, or of elements that contain them
    regex: str = ""  # searched in the absolute URL
    role: Role = "index"
    limit: Pages | None = None  # links per page
    on: tuple[Linking, ...] = ("start", "index")


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """Where a page names the next one, and the parameter that passes it on."""

    parameter: str
    json: str = ""
    css: str = ""
    attr: str = ""  # the attribute that holds it; without one it is the element's text


class Pagination(msgspec.Struct, frozen=True, kw_only=True):
    """How the next page of a list is found: in exactly one of five ways."""

    next: str = ""  # CSS of the link to it
    parameter: str = ""
    path: str = ""  # with {n}, which follows the path of the first page
    cursor: Cursor | None = None
    postback: str = ""  # CSS of the link or button that submits the page's form by script
    regex: str = ""  # which lists it is for: searched in the page's URL
    first: Number = 2  # the number of the second page
    step: Pages = 1
    max: Number = 1000  # the greatest number that is asked for
    stop: str = ""  # CSS that only pages behind the last one have
    on: tuple[Linking, ...] = ("start", "index")


class PageKind(msgspec.Struct, frozen=True, kw_only=True):
    """The role and the fields of pages whose URL the regular expression finds."""

    regex: str
    role: Role = "listing"
    fields: dict[str, Field] = {}
    required: tuple[str, ...] = ()
    validate: str | None = None
    structured: Boolean | None = None  # as in the site's file; if not set: where fields are not
    browser: RenderOptions = RenderOptions()  # goes before that of the site


class Files(msgspec.Struct, frozen=True, kw_only=True):
    """The fields whose URLs are fetched as files, and the limits on these."""

    fields: tuple[str, ...] = ()  # those within the items of a field: `cards.photo`
    max_bytes: FileBytes = 20_000_000  # of one file
    max_count: FileCount = 50  # files of one page
    max_pixels: Pages = 50_000_000  # of an image
    hosts: tuple[str, ...] = ()  # other hosts than the page's own and those below it


class CrawlSettings(Settings, frozen=True, kw_only=True, dict=True):
    """Every key of a site's file, with its value where no file sets it."""

    start: tuple[Start, ...] = ()
    sitemaps: tuple[str, ...] = ()
    login: Login | None = None
    follow: tuple[Follow, ...] | None = None
    """If not set, every link in scope is followed."""
    pagination: tuple[Pagination, ...] = ()
    pages: tuple[PageKind, ...] = ()
    listings: Listings | None = None
    limit: Pages | None = None  # pages of the site in one crawl
    files: Files | None = None  # images and documents that records name

    def kind_of(self, url: str) -> PageKind | None:
        """Return the first entry of `pages` that fits a URL."""
        if not self.pages:
            return None
        found = self._first_kind(url)
        return None if found is None else self.pages[found]

    @cached_property
    def _first_kind(self) -> Callable[[str], int | None]:
        from crawler.sites.selectors import first_of

        return first_of(tuple(kind.regex for kind in self.pages))


class _StartConfig(msgspec.Struct):
    limit: Pages
    delay: Delay
    timeout: Timeout


class _StartUrls(msgspec.Struct):
    urls: tuple[Start, ...]
    config: _StartConfig


_CONFIG_KEYS = {"limit": "limit", "delay": "delay_s", "timeout": "timeout_s"}
"""The key of a site's file that each key of `config` in start_urls.yaml overrides."""


def secret_name(text: str) -> str:
    """Return the name of the secret that a form's value stands for, if it is one."""
    found = _SECRET.fullmatch(text)
    return found[1] if found else ""


def addresses(given: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys and URLs of a file's checked values that must lie within its hosts."""
    if template := given.get("url_template"):
        yield "url_template", template
    for start in given.get("start", ()):
        yield "start", start.url
    for url in given.get("sitemaps", ()):
        yield "sitemaps", url
    if login := given.get("login"):
        yield "login", login.url


def start_urls(entries: Entries) -> dict[str, dict[str, tuple[int, Any]]]:
    """Check start_urls.yaml; return lines and values of each site, by the keys of a site's file."""
    found: dict[str, dict[str, tuple[int, Any]]] = {}
    faults = Faults()
    for name, (line, node) in entries.items():
        with faults:
            if node.kind != "mapping":
                if not node.is_null:
                    found[name] = {"start": (line, starts(node, name))}
                continue
            inner = mapping(name, node)
            given = checked(inner, _StartUrls, f" in {name}", _START_URLS_CHECKS)
            found[name] = given.pop("config", {})
            if "urls" in given:
                found[name]["start"] = inner["urls"][0], given["urls"]
    faults.end()
    return found


def _start_config(node: Node) -> dict[str, tuple[int, Any]]:
    entries = mapping("config", node)
    given = checked(entries, _StartConfig, " in config", {})
    return {_CONFIG_KEYS[key]: (entries[key][0], value) for key, value in given.items()}


# Checks of the keys. Those of a text raise `ValueError`.


def starts(node: Node, key: str = "start") -> tuple[Start, ...]:
    """Check the URLs and forms that a crawl begins with."""
    return each(key, node, MAX_STARTS, partial(_start, key))


def _start(key: str, node: Node) -> Start:
    if node.kind == "scalar":
        return Start(url=checked_text(key, node, _url))
    checks: Checks = {"url": text_check("url", _url), "form": partial(_form, False)}
    given = checked(mapping(key, node), Start, f" in {key}", checks)
    need(given, "url", key, node)
    return Start(**given)


def _url(text: str) -> str:
    from crawler.urls import parse

    if PLACEHOLDER.search(text):
        reason = "it holds a placeholder, which only the values of a form may"
        raise ValueError(f"{reason}; for URLs made of columns there is url_template")
    if "@" in re.split(r"[/?#\\]", text.partition("://")[2], maxsplit=1)[0]:
        raise ValueError("it holds a user name or a password; secrets have no place in it")
    try:
        return parse(text).url
    except UrlError as error:
        raise ValueError(str(error)) from None


def _sitemaps(node: Node) -> tuple[str, ...]:
    return each("sitemaps", node, MAX_RULES, text_check("sitemaps", _url))


def _login(node: Node) -> Login:
    checks: Checks = {
        "url": text_check("url", _url),
        "form": partial(_form, True),
        "secrets": text_check("secrets", _file_name),
    }
    given = checked(mapping("login", node), Login, " in login", checks)
    need(given, "url", "login", node)
    need(given, "form", "login", node)
    return Login(**given)


def _file_name(text: str) -> str:
    path = PurePath(text)
    if path.is_absolute() or ".." in path.parts or not path.name:
        raise ValueError(f"{text[:60]!r} is not a file in the config folder")
    return text


def _form(of_login: bool, node: Node) -> Form:
    checks: Checks = {
        "css": text_check("css", checked_css),
        "submit": text_check("submit", str),
        "values": partial(_form_values, of_login),
    }
    form = Form(**checked(mapping("form", node), Form, " in form", checks))
    if of_login and not form.values:
        raise Wrong("the form of login has no values", node.line)
    return form


def _form_values(of_login: bool, node: Node) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, (line, value) in mapping("values", node, MAX_FORM_VALUES).items():
        values[name] = _form_value(name, line, value)
        if of_login and PLACEHOLDER.search(value.text):
            reason = "a login is the same for all rows: it has no columns"
            raise Wrong(f"values: {name[:60]}: {reason}", line)
        if of_login and PASSWORD.search(name) and not _SECRET.fullmatch(value.text):
            reason = "a password has no place in this file; write $password, a secret of the job"
            raise Wrong(f"values: {name[:60]}: {reason}", line)
    return values


def _form_value(name: str, line: int, node: Node) -> str:
    """Check a value; no message shows it."""
    its = f"values: the value of {name[:60]!r}"
    if not name.strip():
        raise Wrong("values: a control without a name", line)
    if node.kind != "scalar":
        raise Wrong(f"{its} must be a single text, not {KINDS[node.kind]}", node.line)
    if node.is_null:
        raise Wrong(f'{its} is missing; an empty one is ""', line)
    text = node.text
    if len(text) > MAX_FORM_VALUE:
        found = f"{len(text):,} characters, more than {MAX_FORM_VALUE:,}"
        raise Wrong(f"{its} has {found}", node.line)
    if _LOOKS_SECRET.match(text) and not _SECRET.fullmatch(text):
        reason = "looks like a secret's name; letters, digits and _ make one, as in $password"
        raise Wrong(f"{its} {reason}", node.line)
    rest = PLACEHOLDER.sub("", text)
    if "{" in rest or "}" in rest or not all(map(str.strip, PLACEHOLDER.findall(text))):
        reason = "has a brace that is open or empty; columns are written as in {parcel_id}"
        raise Wrong(f"{its} {reason}", node.line)
    return text


def _follow(node: Node) -> tuple[Follow, ...]:
    return each("follow", node, MAX_RULES, _rule)


def _rule(node: Node) -> Follow:
    given = checked(mapping("follow", node), Follow, " in follow", _RULE_CHECKS)
    if "css" not in given and "regex" not in given:
        raise Wrong("an entry of follow needs css or regex", node.line)
    return Follow(**given)


def _pagination(node: Node) -> tuple[Pagination, ...]:
    return each("pagination", node, MAX_RULES, _one_pagination)


def _one_pagination(node: Node) -> Pagination:
    entries = mapping("pagination", node)
    given = checked(entries, Pagination, " in pagination", _PAGINATION_CHECKS)
    ways = [key for key in _WAYS if key in given]
    if len(ways) != 1:
        here = " and ".join(ways) or "none"
        raise Wrong(f"pagination needs one of {', '.join(_WAYS)}; here is {here}", node.line)
    numbers = [key for key in _NUMBERS if key in given]
    if numbers and ways[0] not in _NUMBERED:
        reason = f"{numbers[0]} goes with parameter or path, not with {ways[0]}"
        raise Wrong(f"pagination: {reason}", entries[numbers[0]][0])
    found = Pagination(**given)
    if found.first > found.max:
        raise Wrong("pagination: first is more than max", node.line)
    return found


def _cursor(node: Node) -> Cursor:
    given = checked(mapping("cursor", node), Cursor, " in cursor", _PAGINATION_CHECKS)
    need(given, "parameter", "cursor", node)
    if ("json" in given) == ("css" in given):
        raise Wrong("cursor needs either json or css", node.line)
    if "attr" in given and "css" not in given:
        raise Wrong("cursor: attr goes with css", node.line)
    return Cursor(**given)


def _parameter(text: str) -> str:
    if not _PARAMETER.fullmatch(text):
        raise ValueError(f"{text[:60]!r} is not the name of a parameter, such as page")
    return text


def _path(text: str) -> str:
    before, placeholder, after = text.partition("{n}")
    if not placeholder or not before.startswith("/") or re.search(r"[{}?#\s\\]", before + after):
        raise ValueError(f"{text[:60]!r} is not a path with one {{n}}, such as /p-{{n}}")
    return text


def _pages(node: Node) -> tuple[PageKind, ...]:
    return each("pages", node, MAX_RULES, _page_kind)


def _page_kind(node: Node) -> PageKind:
    entries = mapping("pages", node)
    given = checked(entries, PageKind, " in pages", _RULE_CHECKS)
    need(given, "regex", "an entry of pages", node)
    for name in given.get("required", ()):
        if name not in given.get("fields", {}):
            reason = f"there is no field {name[:60]!r} in this entry of pages"
            if fields := given.get("fields"):
                reason += f"; {nearest(name, fields)}"
            raise Wrong(f"required: {reason}", entries["required"][0])
    return PageKind(**given)


def _names(node: Node) -> tuple[str, ...]:
    return each("required", node, MAX_RULES, partial(text_of, "required"))


def _files(node: Node) -> Files:
    checks: Checks = {"fields": _file_fields, "hosts": checked_hosts}
    given = checked(mapping("files", node), Files, " in files", checks)
    need(given, "fields", "files", node)
    return Files(**given)


def _file_fields(node: Node) -> tuple[str, ...]:
    names = each("fields", node, MAX_RULES, text_check("fields", _field_path))
    if not names:
        raise Wrong("fields is empty; it names the fields with the URLs of files", node.line)
    return tuple(dict.fromkeys(names))


def _field_path(text: str) -> str:
    if not all(text.split(".")):
        raise ValueError(f"{text[:60]!r} is not a field, such as photos or cards.photo")
    return text


def _roles(node: Node) -> tuple[Linking, ...]:
    check = text_check("on", lambda text: converted(text, Linking))
    roles: tuple[Linking, ...] = each("on", node, MAX_RULES, check)
    if not roles:
        raise Wrong(f"on is empty; it names some of {', '.join(get_args(Linking))}", node.line)
    return tuple(dict.fromkeys(roles))


# Helpers.


_RULE_CHECKS: Checks = {
    "css": text_check("css", checked_css),
    "regex": text_check("regex", checked_regex),
    "on": _roles,
    "fields": checked_fields,
    "required": _names,
    "validate": checked_schema,
    "browser": lambda node: RenderOptions(**checked_browser(node)),
}
_PAGINATION_CHECKS: Checks = {
    "next": text_check("next", checked_css),
    "parameter": text_check("parameter", _parameter),
    "path": text_check("path", _path),
    "cursor": _cursor,
    "postback": text_check("postback", checked_css),
    "stop": text_check("stop", checked_css),
    "regex": text_check("regex", checked_regex),
    "css": text_check("css", checked_css),
    "json": text_check("json", checked_json_path),
    "on": _roles,
}
_START_URLS_CHECKS: Checks = {"urls": partial(starts, key="urls"), "config": _start_config}
CHECKS: Checks = {
    "start": starts,
    "sitemaps": _sitemaps,
    "login": _login,
    "follow": _follow,
    "pagination": _pagination,
    "pages": _pages,
    "listings": checked_listings,
    "files": _files,
}
"""Checks of the keys that a site's file has, and that for all sites has not."""
