"""From the links of a page to the tasks of its crawl."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace
from selectolax.lexbor import LexborHTMLParser

from crawler.errors import UrlError
from crawler.fetch import charset
from crawler.fetch.budget import Budget
from crawler.models import FORM, GET, SITEMAP, CrawlOptions, LeftOut, Link, Page, Role, Task
from crawler.scraping import scope
from crawler.scraping.scope import OUT, Scope
from crawler.sites import Site, links, scrapers, structured
from crawler.sites.forms import Forms, next_task
from crawler.sites.links import FoundLink, FoundLinks
from crawler.sites.live import LiveSites
from crawler.sites.page_view import PageView
from crawler.sites.sitemaps import Sitemap
from crawler.urls import Address, parse, parse_link

MAX_REMEMBERED = 100_000
"""Links whose fate a process remembers for each crawl."""
MAX_SITEMAP_LEVELS = 5
"""Indexes of sitemaps within each other; their number is in `hops`."""
_LINKS_PER_LOOK = 500
_NO_PATH = ("/", "\\", "\t", "\n", "\r")
"""What after a slash may begin a host: browsers strip tabs, so `/<TAB>/host/x` is `//host/x`."""


class Followed(NamedTuple):
    """The tasks that a page leads to, and what guards left out."""

    links: tuple[Link, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    found: int = 0
    """How many links the page has, known ones included."""


class LinkFilter:
    """Decides for one crawl which links become tasks; remembers what it has decided."""

    def __init__(self, options: CrawlOptions, sites: LiveSites) -> None:
        self.options = options
        self.scope = Scope(options)
        self._sites = sites
        self._origins = frozenset(options.origins)
        self._decided: dict[str, str] = {}
        """By URL: the guard that left it out, or nothing where it is known or out of scope."""
        self._waiting: dict[str, Link] = {}
        """By URL: links of pages that are not committed yet, without a rule."""
        self._known_paths: dict[str, set[str]] = {}
        """By origin: paths that pages there have linked to again, of URLs that `_decided` has with
        nothing."""

    def without_memory(self) -> "LinkFilter":
        """Return a filter for the same crawl that also gives links which a limit has left out."""
        return LinkFilter(self.options, self._sites)

    def follow(self, task: Task, found: FoundLinks, budget: Budget) -> Followed:
        """Return the tasks for the links of a task's page."""
        chosen = _Chosen(task, found)
        for begin in range(0, len(found.hrefs), _LINKS_PER_LOOK):
            self._follow_all(chosen, found.hrefs[begin : begin + _LINKS_PER_LOOK])
            if begin:
                budget.look()
        for number, link in enumerate(found.links):
            if number % _LINKS_PER_LOOK == _LINKS_PER_LOOK - 1:
                budget.look()
            url = chosen.absolute(link.href)
            guard = self._decided.get(url)
            if guard is None:
                guard = self._decide(chosen, url, link.role, link.list_crc32)
            if guard:
                chosen.count(guard, url)
        return chosen.followed()

    def _follow_all(self, chosen: "_Chosen", hrefs: Sequence[str]) -> None:
        """Follow links without a rule. Most of them are on every page: no parser sees these
        again."""
        decided, waiting, depth = self._decided, self._waiting, chosen.task.depth + 1
        known_paths = self._known_paths.get(chosen.origin, frozenset[str]())
        hrefs = [href for href in hrefs if href not in known_paths]
        for href in hrefs:
            url = chosen.absolute(href)
            guard = decided.get(url)
            if guard is None:
                known = waiting.get(url)
                if known and known.depth == depth and known.loopback == chosen.passes_loopback(url):
                    chosen.tasks[known.address.key] = known
                    continue
                guard = self._decide(chosen, url)
            elif not guard and _is_path(href):
                self._known_paths.setdefault(chosen.origin, set()).add(href)
            if guard:
                chosen.count(guard, url)

    def _decide(
        self,
        chosen: "_Chosen",
        url: str,
        role: Role | None = None,
        list_crc32: int | None = None,
        modified_at: float | None = None,
    ) -> str:
        """Add the task for a URL, or return the guard that leaves it out."""
        if len(url) > scope.MAX_URL_LENGTH:
            return "url_length"  # and is not remembered: some pages have megabytes of them
        bare = scope.without_session(url)
        try:
            address = parse_link(bare, chosen.task_origin)
        except UrlError:
            return self._remember(url, "")
        if address.key in chosen.tasks:
            return ""
        guard = ""
        if role is not Role.SITEMAP:  # those may be on other hosts, and pages may link to them, too
            # Of a known page, a sitemap's date is still to be noted.
            if modified_at is None and address.url in self._decided:
                return ""
            guard = self.scope.refuses(address.url)
        if guard:
            return self._remember(url, "" if guard == OUT else guard)
        origin = origin_of(address.url)
        target = chosen.targets.get(origin)
        if target is None:
            target = chosen.targets[origin] = self._target(chosen.task, address.url)
        link = _link(chosen.task, address, role, target)
        if list_crc32 is not None or modified_at is not None:
            link = replace(link, list_crc32=list_crc32, modified_at=modified_at)
        elif role is None and bare == url:
            self._make_room()
            self._waiting[url] = link
        chosen.tasks[address.key] = link
        return "session_parameter" if bare != url else ""

    def _target(self, task: Task, url: str) -> "_Target":
        return _Target(self._sites.of(url), self.may_reach_loopback(task, url))

    def may_reach_loopback(self, task: Task, url: str) -> bool:
        """Whether a task's page may lead to a URL on this machine: at its own origin, if a start is
        there."""
        origin = origin_of(url)
        return task.loopback and origin == origin_of(task.url) and origin in self._origins

    def follow_sitemap(self, task: Task, sitemap: Sitemap, budget: Budget) -> Followed:
        """Return the tasks for the pages of a sitemap, or for the sitemaps of an index."""
        role = Role.SITEMAP if sitemap.kind == "index" else None
        if role and task.hops >= MAX_SITEMAP_LEVELS:
            deep = LeftOut("sitemap_levels", len(sitemap.urls), task.url)
            return Followed(left_out=(deep,) * bool(sitemap.urls))
        chosen = _Chosen(task, FoundLinks(task.url, []))
        for number, (url, modified_at) in enumerate(sitemap.urls):
            if number % _LINKS_PER_LOOK == _LINKS_PER_LOOK - 1:
                budget.look()
            guard = self._decide(chosen, url, role, None, modified_at)
            if guard:
                chosen.count(guard, url)
        if sitemap.truncated:
            chosen.count("sitemap_size", task.url)
        followed = chosen.followed()
        if not role:
            return followed
        # An index is no page that links lead on from.
        deeper = [replace(each, depth=0, hops=task.hops + 1) for each in followed.links]
        return followed._replace(links=tuple(deeper))

    def site_named(self, name: str) -> Site | None:
        """Return the site of that name, as its file is now."""
        return self._sites.now.named(name)

    def follow_redirect(self, task: Task, url: str) -> Link | str:
        """Return the task for the target of a redirect, or why it is not followed."""
        address = parse(scope.without_session(url))
        guard = ""
        if task.role is not Role.SITEMAP:
            guard = self.scope.refuses(address.url, is_start=task.role is Role.START)
        if guard:
            return guard
        link = _link(task, address, task.role, self._target(task, address.url))
        return replace(link, depth=task.depth, hops=task.hops + 1)

    def remember(self, links: Iterable[Link]) -> None:
        """Note that these links are in the ledger."""
        for link in links:
            # A form's task says nothing about the page with the form.
            if link.method != GET:
                continue
            self._waiting.pop(link.address.url, None)
            if self.options.depth is None:  # else a shorter way may lead there
                self._remember(link.address.url, "")

    def _remember(self, url: str, guard: str) -> str:
        self._make_room()
        if guard and self._decided.get(url) == "":
            self._known_paths.clear()
        self._decided[url] = guard
        return guard

    def _make_room(self) -> None:
        if len(self._decided) + len(self._waiting) >= MAX_REMEMBERED:
            self._decided.clear()
            self._waiting.clear()
            self._known_paths.clear()


class _Target(NamedTuple):
    """What the links of a page to one origin have in common."""

    site: Site
    loopback: bool


class _Chosen:
    """What becomes of the links of one page."""

    def __init__(self, task: Task, found: FoundLinks) -> None:
        self.task, self._base = task, found.base
        self.origin, self.task_origin = origin_of(found.base), origin_of(task.url)
        self.tasks: dict[bytes, Link] = {}
        self.targets: dict[str, _Target] = {}
        """By origin."""
        self._guards = {each.guard: each for each in found.left_out}
        self._found = len(found.links) + len(found.hrefs)

    def absolute(self, href: str) -> str:
        """Return the URL of a link; for most of them without the URL parser."""
        if _is_path(href):
            return self.origin + href
        if href.startswith(("http://", "https://")):
            return href
        return structured.absolute(self._base, href)

    def passes_loopback(self, url: str) -> bool:
        """Whether a link that may be on this machine is at the page's own origin."""
        return self.task.loopback and url.startswith(f"{self.task_origin}/")

    def count(self, guard: str, url: str) -> None:
        """Count a link that a guard leaves out."""
        before = self._guards.get(guard) or LeftOut(guard, 0, url)
        self._guards[guard] = before.and_more()

    def followed(self) -> Followed:
        """Return all of it."""
        links = tuple(self.tasks.values())
        return Followed(links, tuple(self._guards.values()), self._found)


class LinkFinder(NamedTuple):
    """Finds and filters the links of one task's page."""

    task: Task
    role: Role
    site: Site
    filter: LinkFilter
    budget: Budget
    form_session: str = ""
    """The session of a page that was fetched through a form."""

    def in_html(self, tree: LexborHTMLParser, html: bytes, page: Page) -> Followed:
        """Return the tasks for the links of an HTML page."""
        if self.filter.options.sitemap == "only":
            return Followed()
        own = self._of_class(page, html, tree)
        found = links.in_html(tree, html, page, self._rules, self.budget, own)
        followed = self.filter.follow(self.task, found, self.budget)
        if found.postbacks:
            return self._with_postbacks(followed, found, tree, page)
        return followed

    def _with_postbacks(
        self, followed: Followed, found: FoundLinks, tree: LexborHTMLParser, page: Page
    ) -> Followed:
        """Add the next pages of lists that go on by script: tasks of method FORM."""
        task, declared = self.task, page.header("content-type")
        name = charset.of(page.body, declared, self.budget, self.site.encoding_of(page))
        for rule, checksum in found.postbacks:
            forms = Forms(tree, page.final_url, name, self.budget)
            after = next_task(task.body, forms, rule.postback, self.form_session)
            if after is None:
                continue
            if after.page > rule.max:
                more = LeftOut("pagination", 1, task.url)
                followed = followed._replace(left_out=(*followed.left_out, more))
                continue
            link = Link(
                address=parse(task.url),
                role=Role.INDEX,
                depth=task.depth + 1,
                loopback=task.loopback,
                method=FORM,
                body=after.packed(),
                list_crc32=checksum,
                site=(self.site.name, self.site.limit) if self.site.limit else None,
            )
            followed = followed._replace(links=(*followed.links, link))
        return followed

    def in_json(self, body: bytes, page: Page) -> Followed:
        """Return the tasks for the links of a JSON answer."""
        if self.filter.options.sitemap == "only":
            return Followed()
        own = self._of_class(page, body)
        found = links.in_json(body, page, self._rules, self.budget, own)
        return self.filter.follow(self.task, found, self.budget)

    @property
    def _rules(self) -> links.LinkRules:
        return links.LinkRules(self.site, self.role, self.task.list_crc32)

    def _of_class(
        self, page: Page, html: bytes, tree: LexborHTMLParser | None = None
    ) -> list[FoundLink] | None:
        """Return the links that the site's class finds, if it is to find them."""
        if not scrapers.finds_links(self.site, self.role):
            return None
        view = PageView(self.site, page, self.budget, html, tree)
        return [FoundLink(url, Role(role)) for url, role in scrapers.links(view)]


class NoLinks(NamedTuple):
    """Stands for a finder where a stored page is parsed again: its links were followed before."""

    role: Role

    def in_html(self, tree: LexborHTMLParser, html: bytes, page: Page) -> Followed:
        """Return nothing."""
        return Followed()

    def in_json(self, body: bytes, page: Page) -> Followed:
        """Return nothing."""
        return Followed()


Finder = LinkFinder | NoLinks


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL in normal form."""
    return url[: url.index("/", 8)]


def _is_path(href: str) -> bool:
    """Return whether a link begins at the root of its page's origin."""
    return href[0] == "/" and href[1:2] not in _NO_PATH


def _link(task: Task, address: Address, role: Role | None, target: _Target) -> Link:
    site = target.site
    if role is None:
        kind = site.kind_of(address.url)
        role = Role(kind.role) if kind else _role_of(address.url)
    return Link(
        address=address,
        role=role,
        depth=task.depth + 1,
        loopback=target.loopback,
        method=SITEMAP if role is Role.SITEMAP else GET,
        site=(site.name, site.limit) if site.limit else None,
    )


def _role_of(url: str) -> Role:
    if scope.is_document(url.partition("?")[0]):
        return Role.FILE
    return Role.INDEX
