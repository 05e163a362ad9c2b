"""The fields that a site's configuration asks for, read out of a page."""

import re
import sys
from collections.abc import Callable
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any

import re2
from selectolax.lexbor import LexborHTMLParser, LexborNode

from crawler.errors import FetchError
from crawler.fetch.budget import SMALL, Budget
from crawler.sites import css, structured, values
from crawler.sites.sitefile import MISSING, Field
from crawler.sites.text import MAX_STRING, MAX_TEXT, joined

MAX_LOOKS = 2_000_000  # elements looked at for all fields of a page, some 1 µs each
MAX_VALUES = 1_000  # values of a field with `all`, and elements tried for one without
MAX_QUICK = 32  # fields found without counting: one search is cheaper than parsing the page
MAX_BYTES = 16_000_000  # memory of all values of a page
BYTES_PER_HOLD = 1_000_000  # growth after which the process counts that memory
MAX_MATCHED = 10_000  # characters that a regular expression sees
MAX_PATTERN, MAX_PROGRAM = 1_000, 10_000  # its characters and compiled instructions
_SOURCES = {**structured.URL_ATTRIBUTES, "form": "action"}
_UNREAD = ("script", "style")
_GROUP_SPACE = re.compile(r"(?<=\d)[\u00a0\u2007\u2009\u202f](?=\d{3}(?!\d))")
# The cells 3 and 250 of a row are not 3 250, which would be one number.
_BETWEEN_DIGITS = re.compile(r"(?<=\d)\s*\0[\s\0]*(?=\d)")
_VOID_NAMES = (
    "area base basefont bgsound br col embed frame hr img input keygen link meta param source"
    " track wbr"
)
_VOID = frozenset(_VOID_NAMES.split())  # elements without an end tag
_READERS: dict[str, Callable[[str, values.Locale], Any]] = {
    "number": values.number,
    "integer": values.integer,
    "date": values.day,
    "boolean": lambda text, _: values.boolean(text),
}
_NUMERIC = frozenset({"number", "integer"})
"""Types whose digits stay apart where they are in different elements."""


@lru_cache(maxsize=10_000)
def pattern(text: str) -> Any:
    """Compile a regular expression with RE2, which is linear in the text; or `ValueError`."""
    if len(text) > MAX_PATTERN:
        found = f"{len(text):,} characters, more than {MAX_PATTERN:,}"
        raise ValueError(f"the regular expression has {found}")
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(text, options)
    except UnicodeEncodeError:
        raise ValueError("the regular expression holds half of a character") from None
    except re2.error as error:
        reason = error.args[0]
        if isinstance(reason, bytes):
            reason = reason.decode("utf-8", "replace")
        if "invalid perl op" in reason:
            reason += "; look-around and back-references are not known to RE2"
        raise ValueError(f"not a regular expression: {reason}") from None
    if compiled.programsize > MAX_PROGRAM:
        raise ValueError("the regular expression repeats too much")
    return compiled


def extract(
    tree: LexborHTMLParser, fields: dict[str, Field], url: str, budget: Budget | None = None
) -> dict[str, Any]:
    """Return every field of a page by name, null (or an empty list) where the page has none.

    Raises `FetchError` where they take too much memory. Comes before `structured.extract`, which
    removes parts of the tree.
    """
    budget = budget or Budget()
    page = _Page(tree, url, budget)
    size = held = 0
    record: dict[str, Any] = {}
    missing: list[str] = []
    for number, (name, field) in enumerate(fields.items()):
        selector = css.compile(field.css)
        is_quick = selector.direct and not field.all and number < MAX_QUICK
        find = page.first if is_quick else page.found
        value = find(selector, field)
        record[name] = value
        size += sum(map(sys.getsizeof, value)) if field.all else sys.getsizeof(value)
        if size > MAX_BYTES:
            reason = f"the page's fields take more than {MAX_BYTES:,} bytes of memory"
            raise FetchError("too_large", reason)
        if size - held > BYTES_PER_HOLD:
            budget.hold(size - held)
            held = size
        if field.required and value in (None, []):
            missing.append(name)
    if missing:
        record[MISSING] = missing
    return record


def lacking(fields: dict[str, Field]) -> dict[str, Any]:
    """Return the fields of a page that has no elements, and so none of them."""
    record: dict[str, Any] = {name: [] if field.all else None for name, field in fields.items()}
    missing = [name for name, field in fields.items() if field.required]
    if missing:
        record[MISSING] = missing
    return record


class _Page:
    """A page and its search, which is made only for pages that need it."""

    def __init__(self, tree: LexborHTMLParser, url: str, cost: Budget) -> None:
        self._tree, self._url, self._cost = tree, url, cost
        self._is_large = len(tree.raw_html) > SMALL

    @cached_property
    def _budget(self) -> css.SearchBudget:
        return css.SearchBudget(MAX_LOOKS, self._cost)

    @cached_property
    def _search(self) -> css.Search:
        return css.Search(self._tree, self._budget)

    @cached_property
    def _base(self) -> str:
        return structured.base_of(self._tree, self._url)

    def first(self, selector: css.Selector, field: Field) -> Any:
        """Return the value of the first element, or else of the first that has one."""
        if self._is_large:
            self._cost.look()
        node = self._tree.css_first(selector.text)
        if node is None:
            return None
        inner = node.child
        is_text = field.type == "text" and not field.attr and not field.regex
        if is_text and inner and inner.is_text_node and not inner.next:
            value: Any = " ".join((inner.text_content or "")[:MAX_TEXT].split()) or None
        else:
            try:
                value = self._value(node, field)
            except css.TooMuch:
                return None
        if value is None:
            return self.found(selector, field)
        return value

    def found(self, selector: css.Selector, field: Field) -> Any:
        """Return the first value of a field, or all of them; on a page too large, those found."""
        found: list[Any] = []
        try:
            for node in islice(self._search.find(selector), MAX_VALUES):
                value = self._value(node, field)
                if value is not None:
                    found.append(value)
                    if not field.all:
                        return value
        except css.TooMuch:
            pass  # what was found counts
        if field.all:
            return found
        return None

    def _value(self, node: LexborNode, field: Field) -> Any:
        text = self._text(node, field)
        if field.regex and text:
            text = self._matched(pattern(field.regex), text)
        if not text:
            return None
        if field.type == "url":
            return structured.absolute(self._base, text) or None
        read = _READERS.get(field.type)
        if not read:
            return text
        return read(text[:MAX_STRING], values.LOCALES.get(field.locale, values.ANY_LOCALE))

    def _text(self, node: LexborNode, field: Field) -> str:
        limit = MAX_STRING if field.all else MAX_TEXT
        of_number = field.type in _NUMERIC and not field.regex
        attribute = field.attr
        if field.type == "url" and not attribute:
            attribute = _SOURCES.get(node.tag or "", "")
        if attribute:
            self._budget.spend(1)
            value = (node.attrs.get(attribute) or "")[:MAX_TEXT]
            if of_number:
                value = _grouped(value)
            return joined(value)[:limit]
        if field.type == "html":
            html = self._first_html(node, limit) if self._is_large else node.inner_html or ""
            self._budget.spend(1 + len(html) // 50)
            return html[:limit].strip()
        return self._words(node, limit, of_number)

    def _first_html(self, node: LexborNode, limit: int) -> str:
        """Write the beginning of an element's contents as lexbor would, which writes all of it."""
        pieces: list[str] = []
        left = limit
        opened: list[tuple[str, LexborNode | None]] = [("", node.child)]
        while opened and left > 0:
            end, inner = opened.pop()
            if inner is None:
                piece = end
            else:
                self._budget.spend(1)
                opened.append((end, inner.next))
                if inner.is_element_node:
                    piece = self._start_tag(inner, left)
                    fragments = inner.template_fragments() if inner.tag == "template" else []
                    first = fragments[0].child if fragments else inner.child
                    if first or inner.tag not in _VOID:
                        opened.append((f"</{inner.tag}>", first))
                else:
                    piece = (inner.html or "")[:left]
            pieces.append(piece)
            left -= len(piece)
        return "".join(pieces)

    def _start_tag(self, node: LexborNode, left: int) -> str:
        """Write the beginning of a start tag; escaped as a whole it may have 100 MB."""
        tag = f"<{node.tag}"
        for name, value in node.attrs.items():
            self._budget.spend(1 + len(value or "") // 50)
            tag += f' {name[:left]}="{_escaped((value or "")[:left])}"'
            if len(tag) > left:
                break
        return f"{tag}>"

    def _words(self, node: LexborNode, limit: int, of_number: bool) -> str:
        """Return the words of an element; those of scripts only where it is one itself."""
        parts, size = [], 0
        own = node.tag in _UNREAD
        for looks, inner in enumerate(node.traverse(include_text=True)):
            if looks % 100 == 0:
                self._budget.spend(100)
            if not inner.is_text_node:
                continue
            if own or (parent := inner.parent) is None or parent.tag not in _UNREAD:
                parts.append((inner.text_content or "")[:limit])
                size += len(parts[-1])
                if size > 2 * limit:
                    break
        text = "\0".join(parts)
        if of_number:
            text = _grouped(_BETWEEN_DIGITS.sub(" | ", text))
        return joined(text)[:limit]

    def _matched(self, compiled: Any, text: str) -> str:
        text = text[:MAX_MATCHED]
        self._budget.spend(1 + len(text) * compiled.programsize // 100)
        found = compiled.search(text)
        if not found:
            return ""
        return (found.group(1 if compiled.groups else 0) or "").strip()


def _grouped(text: str) -> str:
    """Join the groups of numbers by apostrophes; folded spaces separate numbers in some locales."""
    return _GROUP_SPACE.sub("'", text)


def _escaped(value: str) -> str:
    value = value.replace("&", "&amp;").replace("\xa0", "&nbsp;")
    return value.replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
