"""The links of a page that a crawl may follow: all of them, or those that its site's rules name."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import quote_plus
from zlib import crc32

import msgspec
from selectolax.lexbor import LexborHTMLParser, LexborNode

from crawler.fetch.budget import Budget
from crawler.models import LeftOut, Page, Role
from crawler.sites import Site, css, jsonpath, structured
from crawler.sites.crawlfile import Cursor, Follow, Pagination
from crawler.sites.parser import parse
from crawler.sites.selectors import MAX_LOOKS, pattern

MAX_LINKS = 10_000
"""Links of one page."""
MAX_JSON_TEXTS = 100_000
"""Texts of a JSON answer that may be links."""
MAX_LISTED = 250_000
"""Bytes of a page whose links are listed at once: at most 25,000 elements, in a few
milliseconds."""
_NODES_PER_LOOK = 500
_LINKS = "[href], frame[src], iframe[src]"
"""Elements that may be links. Selectors for each kind of them would take lexbor twice the time."""
_ANCHORS = frozenset({"a", "area"})
_FRAMES = frozenset({"frame", "iframe"})
_NO_LINKS = frozenset({"nofollow", "none"})
_NO_LINKS_WORD = re.compile(rb"no(?:follow|ne)")
_BOT = re.compile(r"\s*([a-z][\w*-]*)\s*:(.*)", re.IGNORECASE | re.DOTALL)
_WITH_VALUE = ("max-", "unavailable")
"""Beginnings of rules that have a value behind a colon, as the name of a bot has rules."""


class FoundLink(NamedTuple):
    """A link as a page has it, relative to the page's base."""

    href: str
    role: Role | None = None
    """As a rule says; if it does not, the URL decides."""
    list_crc32: int | None = None
    """For the next page of a list: checksum of the links on this one."""


class LinkRules(NamedTuple):
    """The rules of a site, as they apply to a page of a role."""

    site: Site
    role: Role
    previous_list: int | None = None
    """Checksum of the links on the list's page before this one."""

    def for_list(self, url: str) -> list[Pagination]:
        """Return the rules for the lists that a page may be part of."""
        return [
            rule
            for rule in self.site.pagination
            if self.role in rule.on and (not rule.regex or pattern(rule.regex).search(url))
        ]

    def is_behind_last(self, rule: Pagination, items: list[str]) -> bool:
        """Return whether a page without items is behind the last one of its list."""
        if rule.stop or items:
            return False
        follow = self.site.follow or ()
        return any(Role(each.role) is Role.LISTING and self.role in each.on for each in follow)


class FoundLinks(NamedTuple):
    """The links of a page, and the base that they are relative to."""

    base: str
    links: list[FoundLink]
    hrefs: Sequence[str] = ()
    """Those that no rule has named."""
    left_out: tuple[LeftOut, ...] = ()
    postbacks: tuple[tuple[Pagination, int], ...] = ()
    """Rules for a next page by script, with the checksum of the links on this one."""


def in_html(
    tree: LexborHTMLParser,
    html: bytes,
    page: Page,
    rules: LinkRules,
    budget: Budget,
    own: list[FoundLink] | None = None,
) -> FoundLinks:
    """Return the links of an HTML page; `own` are those that the site's class found instead of its
    rules."""
    site, role = rules.site, rules.role
    base = structured.base_of(tree, page.final_url)
    if role is Role.FILE:
        if site.follow is not None:
            return FoundLinks(base, [])
        role = Role.INDEX  # its URL has the ending of a file, but it is a page
    found = _Html(tree, html, base, budget)
    if found.says_nofollow(page):
        count = len(found.all)
        left_out = (LeftOut("nofollow", count, page.final_url),) * bool(count)
        return FoundLinks(base, [], left_out=left_out)
    links, hrefs = own or [], list[str]()
    if own is None and site.follow is not None:
        links = list(_by_rules(found, site.follow, role))
    elif own is None and role is not Role.LISTING:
        hrefs = found.all
    if not site.pagination:
        return _bounded(base, links, hrefs, (), found.more)
    every = links or list(map(FoundLink, hrefs))
    following, refused = _next_pages(found, rules, page.final_url, every)
    postbacks = tuple(_postbacks(found, rules, page.final_url, every))
    bounded = _bounded(base, links + following, hrefs, refused, found.more)
    return bounded._replace(postbacks=postbacks)


def in_json(
    body: bytes, page: Page, rules: LinkRules, budget: Budget, own: list[FoundLink] | None = None
) -> FoundLinks:
    """Return the links of a JSON answer: texts that the site's rules name, and its cursor."""
    base = page.final_url
    try:
        value: object = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return FoundLinks(base, [])
    found = _Json(value, base, budget)
    links = own or []
    if own is None and rules.site.follow:
        links = list(_by_rules(found, rules.site.follow, rules.role))
    following, refused = _next_pages(found, rules, base, links)
    return _bounded(base, links + following, [], refused)


def of_page(tree: LexborHTMLParser, html: bytes, url: str, budget: Budget) -> tuple[list[str], int]:
    """Return the absolute URLs that an HTML page links to, each once and in its order, whatever may
    be followed; and the number of links above the maximum."""
    base = structured.base_of(tree, url)
    found = _Html(tree, html, base, budget)
    urls = dict.fromkeys(structured.absolute(base, href.strip()) for href in found.all)
    urls.pop("", None)
    return list(urls), found.more


def _bounded(
    base: str,
    links: list[FoundLink],
    hrefs: list[str],
    left_out: tuple[LeftOut, ...],
    more: int = 0,
) -> FoundLinks:
    """Bound the links of a page; `more` were left out already."""
    if more or len(links) > MAX_LINKS:
        more += max(0, len(links) - MAX_LINKS)
        left_out += (LeftOut("links_per_page", more, base),)
    return FoundLinks(base, links[:MAX_LINKS], hrefs, left_out)


class _Html:
    """An HTML page, searched for links."""

    def __init__(self, tree: LexborHTMLParser, html: bytes, base: str, budget: Budget) -> None:
        self._tree, self._html, self.base, self._budget = tree, html, base, budget
        self._is_refused: frozenset[int] = frozenset()
        self.more = 0
        """Links above the maximum of a page."""

    @cached_property
    def _search(self) -> css.Search:
        return css.Search(self._tree, css.SearchBudget(MAX_LOOKS, self._budget))

    def says_nofollow(self, page: Page) -> bool:
        """Return whether the page asks that none of its links are followed."""
        headers = [value for name, value in page.headers if name.lower() == "x-robots-tag"]
        if any(map(_forbids_links, headers)):
            return True
        lower = self._html.lower()  # faster than a search that ignores case
        if not _NO_LINKS_WORD.search(lower):
            return False
        refused = self._tree.css("a[rel~=nofollow i], area[rel~=nofollow i]")
        self._is_refused = frozenset(node.mem_id for node in refused)
        metas = self._tree.css("meta[name=robots i][content]")
        return any(_forbids_links(node.attrs.get("content") or "") for node in metas)

    @cached_property
    def all(self) -> list[str]:
        """The links of the page in its order, up to the maximum; `more` counts the others."""
        if len(self._html) <= MAX_LISTED:
            nodes = self._tree.css(_LINKS)
            hrefs = self._hrefs([node for node in nodes if node.tag in _ANCHORS or _is_link(node)])
            self.more = max(0, len(hrefs) - MAX_LINKS)
            return hrefs[:MAX_LINKS]
        found: list[str] = []
        for href in self._walk():
            if len(found) < MAX_LINKS:
                found.append(href)
            else:
                self.more += 1
        return found

    def selected(self, selector: str) -> list[str]:
        """Return the links that a selector finds, as elements or inside of them."""
        try:
            nodes = self._search.find(css.compile(selector))
            own = [node for node in nodes if node.attrs.get("href") is not None]
            if len(own) < len(nodes):
                own += self._search.find(css.compile(f":is({selector}) a[href]"))
        except css.TooMuch:
            return []
        return list(dict.fromkeys(self._hrefs(own[: 2 * MAX_LINKS])))

    def has(self, selector: str) -> bool:
        """Return whether a selector finds anything."""
        try:
            return bool(self._search.find(css.compile(selector)))
        except css.TooMuch:
            return False

    def cursor(self, cursor: Cursor) -> str:
        """Return what the page names as the next one."""
        if not cursor.css:
            return ""
        try:
            nodes = self._search.find(css.compile(cursor.css))
        except css.TooMuch:
            return ""
        for node in nodes[:1]:
            if cursor.attr:
                return (node.attrs.get(cursor.attr) or "").strip()
            return node.text(strip=True).strip()
        return ""

    def _hrefs(self, nodes: list[LexborNode]) -> list[str]:
        refused = self._is_refused
        if refused:
            nodes = [node for node in nodes if node.mem_id not in refused]
        found = [node.attrs.get("href") or node.attrs.get("src") for node in nodes]
        return [href for href in found if href and href[0] != "#"]

    def _walk(self) -> Iterator[str]:
        """Yield the links of a large page: a list of all its elements could take all memory."""
        if self._tree.root is None:
            return
        for number, node in enumerate(self._tree.root.traverse()):
            if number % _NODES_PER_LOOK == 0:
                self._budget.look()
            if node.tag in _ANCHORS or _is_link(node):
                yield from self._hrefs([node])


def _is_link(node: LexborNode) -> bool:
    """Return whether an element other than an anchor leads to a page."""
    tag = node.tag
    if tag == "link":
        return "next" in (node.attrs.get("rel") or "").lower().split()
    return tag in _FRAMES and "src" in node.attrs


def _forbids_links(rules: str) -> bool:
    """Return whether rules for robots forbid to follow links; those for another bot do not."""
    named = _BOT.match(rules)
    if named and not named[1].lower().startswith(_WITH_VALUE):
        return False
    return not _NO_LINKS.isdisjoint(rule.strip().lower() for rule in rules.split(","))


class _Json:
    """A JSON answer, searched for links."""

    def __init__(self, value: object, base: str, budget: Budget) -> None:
        self._value, self.base, self._budget = value, base, budget

    @cached_property
    def _texts(self) -> list[str]:
        texts: list[str] = []
        waiting: list[Any] = [self._value]
        while waiting and len(texts) < MAX_JSON_TEXTS:
            value = waiting.pop()
            self._budget.check()
            if isinstance(value, str):
                texts.append(value)
            elif isinstance(value, dict):
                waiting += reversed(value.values())
            elif isinstance(value, list):
                waiting += reversed(value)
        return texts

    @cached_property
    def _fragments(self) -> list[_Html]:
        """The texts that are HTML, as answers to scripts have it."""
        html = [text.encode() for text in self._texts if "<a " in text]
        return [_Html(parse(each, self._budget), each, self.base, self._budget) for each in html]

    @cached_property
    def all(self) -> list[str]:
        """Every text that is a URL or a path, and every link of its HTML."""
        begins = ("http://", "https://", "/")
        own = [text for text in self._texts if text.startswith(begins) and " " not in text]
        return own + [href for fragment in self._fragments for href in fragment.all]

    def selected(self, selector: str) -> list[str]:
        """Return the links that a selector finds in its HTML."""
        found = [href for each in self._fragments for href in each.selected(selector)]
        return list(dict.fromkeys(found))

    def has(self, selector: str) -> bool:
        """Return whether a selector finds anything in its HTML."""
        return any(fragment.has(selector) for fragment in self._fragments)

    def cursor(self, cursor: Cursor) -> str:
        """Return what the answer names as the next page."""
        if not cursor.json:
            return ""
        steps = jsonpath.compile(cursor.json)
        value = next(jsonpath.find(self._value, steps, lambda count: self._budget.check()), None)
        if isinstance(value, bool) or not isinstance(value, str | int):
            return ""
        return str(value)


def _by_rules(found: _Html | _Json, rules: Iterable[Follow], role: Role) -> Iterator[FoundLink]:
    seen: set[str] = set()
    for rule in rules:
        if role not in rule.on:
            continue
        its = Role(rule.role)
        for href in islice(_fitting(found, rule), rule.limit):
            if href not in seen:
                seen.add(href)
                yield FoundLink(href, its)


def _fitting(found: _Html | _Json, rule: Follow) -> Iterable[str]:
    hrefs = found.selected(rule.css) if rule.css else dict.fromkeys(found.all)
    if not rule.regex:
        return hrefs
    search = pattern(rule.regex).search
    return [href for href in hrefs if search(structured.absolute(found.base, href))]


# The next page of a list


def _next_pages(
    found: _Html | _Json, rules: LinkRules, url: str, links: list[FoundLink]
) -> tuple[list[FoundLink], tuple[LeftOut, ...]]:
    """Return the next page of each list that a page is part of, and those that a guard leaves
    out."""
    for_list = rules.for_list(url)
    if not for_list:
        return [], ()
    items, checksum = _items(links)
    following: list[FoundLink] = []
    left_out: list[LeftOut] = []
    for rule in for_list:
        if rule.postback or (rule.stop and found.has(rule.stop)):
            continue
        if rule.next:
            hrefs = found.selected(rule.next)[:1]
            following += [FoundLink(href, Role.INDEX) for href in hrefs]
            continue
        if rules.is_behind_last(rule, items):
            continue
        after = _after(rule, found, url)
        if not after:
            continue
        if checksum == rules.previous_list or (not rule.cursor and _number(rule, url) >= rule.max):
            left_out.append(LeftOut("pagination", 1, after))
        else:
            following.append(FoundLink(after, Role.INDEX, checksum))
    return following, tuple(left_out)


def _postbacks(
    found: _Html, rules: LinkRules, url: str, links: list[FoundLink]
) -> Iterator[tuple[Pagination, int]]:
    """Yield the rules by which a script leads to a next page, unless this is the last one."""
    for rule in rules.for_list(url):
        if not rule.postback or (rule.stop and found.has(rule.stop)):
            continue
        items, checksum = _items(links)
        if not rules.is_behind_last(rule, items) and checksum != rules.previous_list:
            yield rule, checksum


def _items(links: list[FoundLink]) -> tuple[list[str], int]:
    """Return the items of a list, and the checksum of what it has."""
    items = [link.href for link in links if link.role is Role.LISTING]
    return items, crc32("\n".join(items or [link.href for link in links]).encode())


def _after(rule: Pagination, found: _Html | _Json, url: str) -> str:
    """Return the URL of the page after this one; empty if there is none."""
    if rule.cursor:
        cursor = found.cursor(rule.cursor)
        if cursor.startswith(("http://", "https://", "/")):
            return structured.absolute(url, cursor)
        if not cursor:
            return ""
        return _with_parameter(url, rule.cursor.parameter, cursor)
    number = _number(rule, url) + rule.step
    if rule.parameter:
        return _with_parameter(url, rule.parameter, str(number))
    if not rule.path:
        return ""
    page, mark, query = url.partition("?")
    first = _path_pattern(rule.path).sub("", page)
    return first.rstrip("/") + rule.path.replace("{n}", str(number)) + mark + query


def _number(rule: Pagination, url: str) -> int:
    """Return the number of a list's page; that of the first page precedes `first`."""
    found = None
    if rule.parameter:
        found = re.search(rf"[?&]{re.escape(rule.parameter)}=(\d{{1,9}})(?:&|$)", url)
    elif rule.path:
        found = _path_pattern(rule.path).search(url.partition("?")[0])
    return int(found[1]) if found else rule.first - rule.step


def _path_pattern(path: str) -> re.Pattern[str]:
    before, _, after = path.partition("{n}")
    return re.compile(rf"{re.escape(before)}(\d{{1,9}}){re.escape(after)}/?\Z")


def _with_parameter(url: str, name: str, value: str) -> str:
    page, _, query = url.partition("?")
    pairs = [pair for pair in query.split("&") if pair and pair.partition("=")[0] != name]
    return f"{page}?{'&'.join([*pairs, f'{name}={quote_plus(value)}'])}"
