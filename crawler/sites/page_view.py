"""The `page` that scrapers and the shell get: an answer, and what can be asked of it."""

from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from crawler.errors import FetchError, UsageError
from crawler.fetch import charset
from crawler.fetch.budget import Budget
from crawler.fetch.wire import media_type
from crawler.models import Page, Role
from crawler.sites import selectors, structured, xpath
from crawler.sites.css import Search, SearchBudget, TooMuch
from crawler.sites.css import compile as compiled
from crawler.sites.parser import parse
from crawler.sites.text import MAX_TEXT, joined

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode

    from crawler.sites import Site
    from crawler.sites.crawlfile import PageKind

_UNREAD = ("script", "style", "noscript", "template")


class PageView:
    """A page for scrapers: its answer, its elements, and what its site's file finds in it.

    All is read when it is first asked for, within the page's budget of CPU time.
    """

    def __init__(
        self,
        site: "Site",
        answer: Page,
        budget: Budget | None = None,
        html: bytes | None = None,
        tree: "LexborHTMLParser | None" = None,
    ) -> None:
        """`html` and `tree` are the body in UTF-8 and its elements, where these are known."""
        self.site, self.budget, self._answer = site, budget or Budget(), answer
        self.url, self.status, self.body = answer.final_url, answer.status, answer.body
        if html is not None:
            self.utf8 = html
        if tree is not None:
            self.tree = tree

    def __repr__(self) -> str:
        return f"<page {self.status} {self.url}, {len(self.body):,} bytes>"

    @cached_property
    def headers(self) -> dict[str, str]:
        """By name in lower case; one that comes again is joined by commas."""
        headers: dict[str, str] = {}
        for name, value in self._answer.headers:
            key = name.lower()
            headers[key] = f"{headers[key]}, {value}" if key in headers else value
        return headers

    @cached_property
    def utf8(self) -> bytes:
        """The body in UTF-8."""
        declared = self._answer.header("content-type")
        return charset.utf8(self.body, declared, self.budget, self.site.encoding_of(self._answer))

    @cached_property
    def html(self) -> str:
        """The source of the page as text, whatever its charset."""
        return self.utf8.decode("utf-8", "replace")

    @cached_property
    def tree(self) -> "LexborHTMLParser":
        """The parsed page, of selectolax."""
        return parse(self.utf8, self.budget, len(self.utf8) * (self.utf8 is not self.body))

    @cached_property
    def text(self) -> str:
        """The words that a visitor may read, without scripts and styles."""
        parts: list[str] = []
        size = 0
        root = self.tree.body or self.tree.root
        for node in root.traverse(include_text=True) if root else ():
            self.budget.check()
            if node.is_text_node and (node.parent is None or node.parent.tag not in _UNREAD):
                parts.append(node.text_content or "")
                size += len(parts[-1])
                if size > 2 * MAX_TEXT:
                    break
        return joined("\0".join(parts))[:MAX_TEXT]

    def css(self, selector: str) -> "list[LexborNode]":
        """Return the elements that a CSS selector finds; `ValueError` where it is none."""
        self.budget.look()
        try:
            return self._search.find(compiled(selector))
        except TooMuch:
            reason = f"the page has too many elements to search for {selector[:60]!r}"
            raise FetchError("too_costly", reason) from None

    def css_first(self, selector: str) -> "LexborNode | None":
        """Return the first of these elements, if there is one."""
        asked = compiled(selector)
        if asked.direct:
            self.budget.look()
            return self.tree.css_first(asked.text)
        return next(iter(self.css(selector)), None)

    def xpath(self, query: str) -> Any:
        """Return parsel's selection for an XPath query."""
        self.budget.look()
        return self._parsel.xpath(query)

    def json(self) -> Any:
        """Return the value of a JSON body; `msgspec.DecodeError` where it is none."""
        self.budget.look()
        return msgspec.json.decode(self.utf8)

    @cached_property
    def json_ld(self) -> list[Any]:
        """The JSON-LD objects of the page."""
        return structured.json_ld(self.tree, self.budget)

    @cached_property
    def meta(self) -> dict[str, Any]:
        """The page's meta tags by name or property, OpenGraph among them."""
        return structured.meta(self.tree)

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The fields of the site's file."""
        rules = self._rules
        tree, body = None, b""
        if self._kind in ("json", "plain"):
            body = self.utf8
        else:
            tree = self.tree
        return selectors.extract(
            tree,
            rules.fields,
            self.url,
            self.budget,
            required=rules.required,
            body=body,
            is_json=self._kind == "json",
        )

    @cached_property
    def record(self) -> dict[str, Any]:
        """The record that the site's file gives: its fields, or what any page says of itself."""
        fields = self.fields
        if not self._rules.structured:
            return fields
        if self._kind in ("json", "plain"):
            is_json = self._kind == "json"
            return structured.extract_plain(self.utf8, is_json, self.budget) | fields
        whole = parse(self.utf8, self.budget)  # of its own: the extraction removes parts of it
        return structured.extract(whole, self.url, self.budget) | fields

    @property
    def _rules(self) -> "Site | PageKind":
        return self.site.kind_of(self.url) or self.site

    @property
    def _kind(self) -> str:
        """What the answer says it is: json, plain, html …"""
        return media_type(self._answer.header("content-type")).rpartition("/")[2].rpartition("+")[2]

    @cached_property
    def links(self) -> list[tuple[str, str]]:
        """The URLs to which the site's file leads from here, with their roles."""
        from crawler.sites.links import LinkRules, in_html

        rules = LinkRules(self.site, Role.START)
        found = in_html(self.tree, self.utf8, self._answer, rules, self.budget)
        links: dict[str, str] = {}
        roles = [(link.href, link.role) for link in found.links]
        for href, role in (*roles, *((href, None) for href in found.hrefs)):
            url = structured.absolute(found.base, href)
            if url and self.site.covers(url):
                kind = self.site.kind_of(url)
                by_url = kind.role if kind else Role.INDEX
                links.setdefault(url, str(role or by_url))
        return list(links.items())

    def urljoin(self, reference: str) -> str:
        """Return the absolute http(s) URL of a reference, or an empty text where it has none."""
        return structured.absolute(self._base, reference.strip())

    @cached_property
    def _base(self) -> str:
        return structured.base_of(self.tree, self.url)

    @cached_property
    def _search(self) -> Search:
        return Search(self.tree, SearchBudget(selectors.MAX_LOOKS, self.budget))

    @cached_property
    def _parsel(self) -> Any:
        try:
            document = xpath.document(self.utf8)
        except ImportError:
            advice = "install it with: pip install '.[parsel]' in the project's folder"
            raise UsageError(f"xpath() needs the package parsel; {advice}") from None
        if document is None:
            raise FetchError("too_costly", "the page is too large for XPath")
        return document
