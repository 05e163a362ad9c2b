"""The fields that a site's configuration asks for, read out of a page."""

import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import re2
from selectolax.lexbor import LexborHTMLParser, LexborNode

from crawler.errors import FetchError
from crawler.fetch.budget import SMALL, Budget
from crawler.sites import css, jsonpath, measures, structured, values, xpath
from crawler.sites.fieldfile import MISSING, Convert, Field
from crawler.sites.text import MAX_STRING, MAX_TEXT, joined

MAX_LOOKS = 2_000_000  # elements looked at for all fields of a page, some 1 µs each
MAX_VALUES = 1_000  # values of a field with `all`, and elements tried for one without
MAX_QUICK = 32  # fields found without counting: one search is cheaper than parsing the page
MAX_BYTES = 16_000_000  # memory of all values of a page
BYTES_PER_HOLD = 1_000_000  # growth after which the process counts that memory
MAX_MATCHED = 10_000  # characters that a regular expression sees
MAX_SET_PROGRAM = 2_000  # instructions of patterns that are searched at once
MAX_PATTERN, MAX_PROGRAM = 1_000, 10_000  # its characters and compiled instructions
MAX_SCRIPTS = 50  # scripts whose data are read
MAX_LABELS, MAX_LABEL, MAX_LABEL_NODES = 10_000, 100, 20  # of a page; characters, nodes of one
MAX_SIBLINGS = 10  # nodes behind a label among which its value is
_URL_ATTRIBUTES = {**structured.URL_ATTRIBUTES, "form": "action"}
_UNREAD = ("script", "style")
_GROUP_SPACE = re.compile(r"(?<=\d)[\u00a0\u2007\u2009\u202f](?=\d{3}(?!\d))")
# The cells 3 and 250 of a row are not 3 250, which would be one number.
_BETWEEN_DIGITS = re.compile(r"(?<=\d)\s*\0[\s\0]*(?=\d)")
_VOID_NAMES = (
    "area base basefont bgsound br col embed frame hr img input keygen link meta param source"
    " track wbr"
)
_VOID = frozenset(_VOID_NAMES.split())  # elements without an end tag
_READERS: dict[str, Callable[[str, values.Locale, str], Any]] = {
    "number": lambda text, locale, _: values.number(text, locale),
    "integer": lambda text, locale, _: values.integer(text, locale),
    "price": measures.price,
    "area": measures.area,
    "date": lambda text, locale, _: values.day(text, locale),
    "floor": lambda text, *_: measures.floor(text),
    "boolean": lambda text, *_: values.boolean(text),
}
"""What reads the value of a type from its text, with its locale and the unit if it names none."""
_NUMERIC = frozenset({"number", "integer", "price", "area"})
"""Types whose digits stay apart where they are in different elements."""
_PLAIN_NUMBER = re.compile(r"-?\d{1,30}(?:\.\d{1,30})?", re.ASCII)
_PRICE_KEYS = ("price", "lowPrice", "amount", "value")
_CURRENCY_KEYS = ("priceCurrency", "currency")
_LABELS = "th, dt, td"
_GROUPED = 40  # looks for an element that is kept for a card: 2,000,000 are 12 MB


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


@lru_cache(maxsize=1_000)
def first_of(texts: tuple[str, ...]) -> Callable[[str], int | None]:
    """Return what says which of these regular expressions is the first that finds something.

    All are searched at once, ten times as fast as one by one. Large ones could exceed the memory of
    that search, which would then find nothing.
    """
    compiled = [pattern(text) for text in texts]
    if sum(each.programsize for each in compiled) > MAX_SET_PROGRAM:
        return lambda text: next((n for n, each in enumerate(compiled) if each.search(text)), None)
    together = re2.Set.SearchSet()
    for text in texts:
        together.Add(text)
    together.Compile()
    return lambda text: min(together.Match(text) or (), default=None)


def extract(
    tree: LexborHTMLParser | None,
    fields: dict[str, Field],
    url: str,
    budget: Budget | None = None,
    *,
    required: tuple[str, ...] = (),
    body: bytes = b"",
    is_json: bool = False,
) -> dict[str, Any]:
    """Return every field of a page by name, null (or an empty list) where the page has none.

    An answer that is not HTML has no tree, but a `body` in UTF-8. Raises `FetchError` where the
    values take too much memory. Comes before `structured.extract`, which removes parts of the tree.
    """
    if not fields:
        return {}
    page = _Page(tree, url, budget or Budget(), body, is_json)
    record = page.record(fields, _WHOLE)
    missing = [
        name
        for name, field in fields.items()
        if (field.required or name in required) and _is_empty(record[name])
    ]
    if missing or page.missing:
        record[MISSING] = [*missing, *page.missing]
    return record


def _is_empty(value: Any) -> bool:
    return value is None or value == []


Raw = LexborNode | str | int | float | bool | dict[str, Any]
"""What a source finds: an element, or a value of JSON."""


class _Scope(NamedTuple):
    """The part of a page that a record is read from: all of it, an element, or an item of JSON."""

    cards: "_Cards | None" = None
    node: LexborNode | None = None
    item: Any = None
    path: str = ""


_WHOLE = _Scope()


class _Cards:
    """The elements that `each` has found, and what lies in each of them.

    A page is searched once for all of them. What lies in several belongs to the innermost.
    """

    def __init__(self, nodes: list[LexborNode], search: css.Search, looks: css.SearchBudget):
        self._search, self._looks = search, looks
        ids = [node.mem_id for node in nodes]
        self._card_of = dict(zip(ids, ids, strict=True))  # each id is one object
        self._found: dict[str, dict[int, list[LexborNode]]] = {}

    def find(self, selector: css.Selector, card: LexborNode) -> list[LexborNode]:
        """Return what a selector finds in a card, in the page's order."""
        by_card = self._found.get(selector.text)
        if by_card is None:
            by_card = self._found[selector.text] = {}
            nodes = self._search.find(selector)
            if len(nodes) <= css.MAX_KEPT:
                nodes = list(nodes)  # the search may have kept them
            nodes.reverse()
            while nodes:  # each is let go of while the groups grow
                node = nodes.pop()
                if around := self._around(node):
                    self._looks.spend(_GROUPED)
                    by_card.setdefault(around, []).append(node)
        return by_card.get(card.mem_id, [])

    def _around(self, node: LexborNode) -> int:
        path, outer, card = [], node.parent, 0
        while outer is not None:
            key = outer.mem_id
            if key in self._card_of:
                card = self._card_of[key]
                break
            path.append(key)
            outer = outer.parent
        self._looks.spend(len(path))
        self._card_of.update(dict.fromkeys(path, card))
        return card


class _Page:
    """A page and what was found in it, which is looked for only where a field needs it."""

    def __init__(
        self,
        tree: LexborHTMLParser | None,
        url: str,
        cost: Budget,
        body: bytes = b"",
        is_json: bool = False,
    ) -> None:
        self._tree, self._url, self._cost = tree, url, cost
        self._body, self._is_json = body, is_json
        self._is_large = tree is not None and len(tree.raw_html) > SMALL
        self._quick_left = MAX_QUICK
        self._size = self._held = 0
        self._cards: dict[tuple[int, str], _Cards] = {}
        self._labels_left = MAX_LABELS
        self._labels: dict[int, dict[str, list[LexborNode]]] = {}
        self._data: dict[tuple[str, tuple[str, ...], str], list[Any]] = {}
        self.missing: list[str] = []
        """Required fields that records inside of the page's record lack."""

    @cached_property
    def _budget(self) -> css.SearchBudget:
        return css.SearchBudget(MAX_LOOKS, self._cost)

    @cached_property
    def _search(self) -> css.Search:
        assert self._tree is not None
        return css.Search(self._tree, self._budget)

    @cached_property
    def _base(self) -> str:
        return structured.base_of(self._tree, self._url) if self._tree else self._url

    @cached_property
    def _json_budget(self) -> structured.JsonBudget:
        return structured.JsonBudget(self._cost)

    # Records.

    def record(self, fields: dict[str, Field], scope: _Scope) -> dict[str, Any]:
        """Return the fields of a page, or of a part of it."""
        record: dict[str, Any] = {}
        for name, field in fields.items():
            value = self._read(field, scope, name, record)
            record[name] = value
            self._count(value)
            if scope is _WHOLE:
                self._cards.clear()  # all that they keep was for this field
        return record

    def _count(self, value: Any) -> None:
        """Count the memory of a value; that of records is counted value by value."""
        self._size += sys.getsizeof(value)
        if isinstance(value, list):
            self._size += sum(map(sys.getsizeof, value))
        if self._size > MAX_BYTES:
            reason = f"the page's fields take more than {MAX_BYTES:,} bytes of memory"
            raise FetchError("too_large", reason)
        if self._size - self._held > BYTES_PER_HOLD:
            self._cost.hold(self._size - self._held)
            self._held = self._size

    def _read(self, field: Field, scope: _Scope, name: str, before: dict[str, Any]) -> Any:
        """Return the value of a field; on a page too large, what was found.

        It may be made of the fields `before` it.
        """
        for alternative in field.first_of:
            value = self._read(alternative, scope, name, before)
            if not _is_empty(value):
                return value
        if field.first_of:
            return [] if field.is_list else None
        wants_all = field.is_list or field.join is not None or bool(field.keywords)
        if field.css and not field.json:
            selector = css.compile(field.css)
            is_quick = selector.direct and not wants_all and scope is _WHOLE and self._tree
            if is_quick and self._quick_left > 0:
                self._quick_left -= 1
                return self._first(selector, field)
            return self._searched("css", field, scope, name, wants_all)
        if field.divide or field.convert:
            return _derived(field, before)
        return self._searched(field.source, field, scope, name, wants_all)

    def _searched(
        self, source: str, field: Field, scope: _Scope, name: str, wants_all: bool
    ) -> Any:
        """Return the first value that a source gives, or what is made of all of them."""
        found: dict[Any, Any] = {}
        left = MAX_TEXT
        try:
            for value in self._values(source, field, scope, name):
                found.setdefault(_key(value), value)
                if not wants_all:
                    return value
                if not field.is_list:  # one text is made of all
                    left -= len(str(value))
                    if left < 0:
                        break
            self._budget.spend(len(field.keywords) * (MAX_TEXT - left) // 500)
        except css.TooMuch:
            pass  # what was found counts
        return _gathered(field, list(found.values()))

    def _values(self, source: str, field: Field, scope: _Scope, name: str) -> Iterator[Any]:
        found = islice(_SOURCES[source](self, field, scope), MAX_VALUES)
        if field.fields:
            yield from self._records(found, field, scope, name)
            return
        for raw in found:
            value = self._value(raw, field)
            if value is not None:
                yield value

    def _records(
        self, found: Iterator[Raw], field: Field, scope: _Scope, name: str
    ) -> Iterator[dict[str, Any]]:
        """Return a record for each element or item; one without any value is none."""
        path = f"{scope.path}{name}."
        for raw in found:
            self._cost.check()
            if isinstance(raw, LexborNode):
                cards = self._cards[id(scope.cards), field.each]
                inside = _Scope(cards, raw, scope.item, path)
            elif isinstance(raw, dict):
                inside = scope._replace(item=raw, path=path)
            else:
                continue
            record = self.record(field.fields, inside)
            if all(_is_empty(value) or value is False for value in record.values()):
                continue
            for inner, each in field.fields.items():
                lacks = each.required and _is_empty(record[inner])
                if lacks and path + inner not in self.missing:
                    self.missing.append(path + inner)
            yield record

    # Sources: each returns what it finds, in the page's order.

    def _by_each(self, field: Field, scope: _Scope) -> Iterable[Raw]:
        nodes = self._nodes(field.each, scope)[:MAX_VALUES]
        key = id(scope.cards), field.each
        if nodes and key not in self._cards:
            cards = nodes
            if scope.cards:
                cards = self._search.find(css.compile(field.each))
            self._cards[key] = _Cards(cards, self._search, self._budget)
        return nodes

    def _by_css(self, field: Field, scope: _Scope) -> Iterable[Raw]:
        return self._nodes(field.css, scope)

    def _nodes(self, selector: str, scope: _Scope) -> list[LexborNode]:
        if not self._tree:
            return []
        if scope.cards and scope.node:
            return scope.cards.find(css.compile(selector), scope.node)
        return self._search.find(css.compile(selector))

    def _by_text(self, field: Field, scope: _Scope) -> Iterable[Raw]:
        if scope.node:
            return [scope.node]
        if scope.item is not None:
            return []
        return [self._whole_text]

    @cached_property
    def _whole_text(self) -> str:
        if self._tree is None:
            return self._body[: 4 * MAX_TEXT].decode("utf-8", "ignore")[:MAX_TEXT]
        return self._words(self._tree.body, MAX_TEXT, False) if self._tree.body else ""

    def _by_json(self, field: Field, scope: _Scope) -> Iterable[Raw]:
        roots = [scope.item]
        if field.css or field.regex:
            roots = self._scripts(field, scope)
        elif scope.item is None:
            roots = self._document
        for root in roots:
            yield from jsonpath.find(root, jsonpath.compile(field.json), self._budget.spend)

    @cached_property
    def _document(self) -> list[Any]:
        if not self._is_json:
            return []
        return [self._json_budget.read(self._body.decode("utf-8", "replace"))]

    def _scripts(self, field: Field, scope: _Scope) -> list[Any]:
        """Return the data of scripts: all of their text, or what begins behind an expression."""
        key = field.css, field.attr, field.regex
        known = None if scope.node else self._data.get(key)
        if known is not None:
            return known
        found: list[Any] = []
        for node in islice(self._nodes(field.css or "script", scope), MAX_SCRIPTS):
            self._budget.spend(1)
            if field.attr:
                text = next(
                    (node.attrs[name] or "" for name in field.attr if name in node.attrs), ""
                )
            else:
                text = node.text()
            if field.regex:
                compiled = pattern(field.regex)
                self._budget.spend(1 + len(text) * compiled.programsize // 100)
                match = compiled.search(text)
                text = text[match.end() :] if match else ""
            data = self._json_budget.read(text, is_first=bool(field.regex)) if text else None
            if data is not None:
                found.append(data)
        if not scope.node:
            self._data[key] = found
        return found

    def _by_json_ld(self, field: Field, scope: _Scope) -> Iterable[Raw]:
        yield from self._typed(self._json_ld, field.json_ld)

    @cached_property
    def _json_ld(self) -> list[Any]:
        if not self._tree:
            return []
        found: list[Any] = []
        for item in structured.json_ld(self._tree, self._cost):
            graph = item.get("@graph")
            found += [item, *(graph if isinstance(graph, list) else [])]
        return found

    def _by_microdata(self, field: Field, scope: _Scope) -> Iterable[Raw]:
        yield from self._typed(self._microdata, field.microdata)

    @cached_property
    def _microdata(self) -> list[Any]:
        if not self._tree:
            return []
        items = structured.microdata(self._tree, self._base, self._cost)
        return [_as_json(item) for item in items]

    def _typed(self, items: list[Any], path: str) -> Iterator[Any]:
        """Follow a path into items; one that begins with a type goes into items of that type."""
        steps = jsonpath.compile(path)
        for item in items:
            kinds = item.get("@type") if isinstance(item, dict) else None
            if not isinstance(kinds, list):
                kinds = [kinds]
            if steps[0] in kinds:
                yield from jsonpath.find(item, steps[1:], self._budget.spend)
            else:
                yield from jsonpath.find(item, steps, self._budget.spend)

    def _by_meta(self, field: Field, scope: _Scope) -> Iterable[Raw]:
        return self._metas.get(field.meta.lower(), [])

    @cached_property
    def _metas(self) -> dict[str, list[str]]:
        by_name: dict[str, list[str]] = {}
        if self._tree:
            for name, value in structured.metas(self._tree):
                by_name.setdefault(name, []).append(value)
        return by_name

    def _by_label(self, field: Field, scope: _Scope) -> Iterable[Raw]:
        key = scope.node.mem_id if scope.node else 0
        if key not in self._labels:
            by_label = self._labels[key] = {}
            for cell in self._nodes(_LABELS, scope):
                self._budget.spend(_GROUPED)
                if not self._labels_left or not (text := _cell_text(cell)):
                    continue
                cells = by_label.setdefault(_label(text), [])
                if len(cells) < MAX_VALUES and (value := _beside(cell)):
                    self._labels_left -= 1
                    cells.append(value)
        found = self._labels[key].get(_label(field.label), [])
        if field.type == "url" and not field.attr:
            return [cell.css_first("a[href]") or cell for cell in found]
        return found

    def _by_url(self, field: Field, scope: _Scope) -> Iterable[Raw]:
        return [self._matched(pattern(field.url), self._url)]

    def _by_xpath(self, field: Field, scope: _Scope) -> Iterable[Raw]:
        if self._xpath is None:
            return
        self._cost.look()
        yield from xpath.find(self._xpath, field.xpath)
        self._cost.look()

    @cached_property
    def _xpath(self) -> Any:
        return xpath.document(self._tree.raw_html) if self._tree else None

    # Values.

    def _first(self, selector: css.Selector, field: Field) -> Any:
        """Return the value of the first element, or else of the first that has one."""
        if self._is_large:
            self._cost.look()
        assert self._tree is not None
        node = self._tree.css_first(selector.text)
        if node is None:
            return None
        inner = node.child
        is_text = field.type == "text" and not (field.attr or field.regex or field.enum)
        if is_text and inner and inner.is_text_node and not inner.next:
            value: Any = " ".join((inner.text_content or "")[:MAX_TEXT].split()) or None
        else:
            try:
                value = self._value(node, field)
            except css.TooMuch:
                return None
        if value is None:
            return self._searched("css", field, _WHOLE, "", wants_all=False)
        return value

    def _value(self, raw: Raw, field: Field) -> Any:
        locale = values.LOCALES.get(field.locale, values.ANY_LOCALE)
        if isinstance(raw, LexborNode):
            text = self._text(raw, field)
        else:
            text = _written(raw, field)
            is_data = field.json or field.json_ld or field.meta
            if is_data and _PLAIN_NUMBER.fullmatch(text):
                locale = values.LOCALES["en"]  # data have points, whatever people write
        if field.regex and text and not field.json:
            text = self._matched(pattern(field.regex), text, MAX_MATCHED if field.css else MAX_TEXT)
        if not text:
            return None
        if field.enum:
            self._budget.spend(len(field.enum) * (1 + len(text[:MAX_STRING]) // 100))
            return measures.enum(text[:MAX_STRING], field.enum)
        if field.type == "url":
            return structured.absolute(self._base, text) or None
        read = _READERS.get(field.type)
        if not read:
            return text
        return read(text[:MAX_STRING], locale, field.unit)

    def _text(self, node: LexborNode, field: Field) -> str:
        limit = MAX_STRING if field.all else MAX_TEXT
        of_number = field.type in _NUMERIC and not field.regex
        attributes = field.attr
        if field.type == "url" and not attributes and (tag := node.tag) in _URL_ATTRIBUTES:
            attributes = (_URL_ATTRIBUTES[tag],)
        if attributes:
            self._budget.spend(1)
            return self._attribute(node, attributes, of_number)[:limit]
        if field.type == "html":
            html = self._first_html(node, limit) if self._is_large else node.inner_html or ""
            self._budget.spend(1 + len(html) // 50)
            return html[:limit].strip()
        return self._words(node, limit, of_number)

    def _attribute(self, node: LexborNode, names: tuple[str, ...], of_number: bool) -> str:
        """Return the first of some attributes that has a value."""
        attributes = node.attrs
        for name in names:
            value = (attributes.get(name) or "")[:MAX_TEXT]
            if of_number:
                value = _grouped(value)
            if value := joined(value):
                return value
        return ""

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

    def _matched(self, compiled: Any, text: str, limit: int = MAX_MATCHED) -> str:
        text = text[:limit]
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


_SOURCES: dict[str, Callable[[_Page, Field, _Scope], Iterable[Raw]]] = {
    "css": _Page._by_css,
    "each": _Page._by_each,
    "json": _Page._by_json,
    "json_ld": _Page._by_json_ld,
    "label": _Page._by_label,
    "meta": _Page._by_meta,
    "microdata": _Page._by_microdata,
    "text": _Page._by_text,
    "url": _Page._by_url,
    "xpath": _Page._by_xpath,
}
"""What finds the values of a field, by the key that says where they are."""


def _key(value: Any) -> Any:
    """Return what two equal values have in common; records cannot be compared by hash."""
    if isinstance(value, dict):
        return msgspec.json.encode(value)
    return value


def _gathered(field: Field, found: list[Any]) -> Any:
    """Make the value of a field of all that was found, in which nothing comes twice."""
    if field.keywords:
        return measures.has_keyword("\n".join(found), field.keywords) if found else None
    if field.join is not None:
        return field.join.join(map(str, found))[:MAX_TEXT] or None
    if field.is_list:
        return found
    return None


def _written(raw: Any, field: Field) -> str:
    """Return a value of JSON as a text; of objects, only a price has one."""
    if isinstance(raw, str):
        raw = raw[:MAX_TEXT]
        if field.type in _NUMERIC and not field.regex:
            raw = _grouped(raw)
        return joined(raw)[: MAX_STRING if field.all else MAX_TEXT]
    if isinstance(raw, dict):
        if field.type != "price":
            return ""
        amount, code = (
            next((raw[key] for key in keys if raw.get(key)), "")
            for keys in (_PRICE_KEYS, _CURRENCY_KEYS)
        )
        if amount == "" or not isinstance(amount, str | int | float) or not isinstance(code, str):
            return ""
        return f"{str(amount)[:MAX_STRING]} {code[:20]}"
    return "" if raw is None else msgspec.json.encode(raw).decode()


def _as_json(item: Any) -> Any:
    """Return an item of microdata as JSON-LD has it."""
    if isinstance(item, list):
        return [_as_json(each) for each in item]
    if not isinstance(item, dict):
        return item
    kind = str(item["type"]).rstrip("/").rpartition("/")[2]
    return {name: _as_json(each) for name, each in item["properties"].items()} | {"@type": kind}


def _cell_text(cell: LexborNode) -> str:
    """Return the text of a cell that is small enough for a label."""
    nodes = list(islice(cell.traverse(include_text=True), MAX_LABEL_NODES))
    if len(nodes) == MAX_LABEL_NODES:
        return ""
    parts = [(node.text_content or "")[:MAX_STRING] for node in nodes if node.is_text_node]
    text = joined("\0".join(parts))
    return text if len(text) <= MAX_LABEL else ""


def _label(text: str) -> str:
    return values.plain(text).rstrip(":： ").strip()


def _beside(cell: LexborNode) -> LexborNode | None:
    """Return the cell with the value of a label: the next one, past one with only a colon."""
    wanted = "dd" if cell.tag == "dt" else "td"
    other = cell.next
    for _ in range(MAX_SIBLINGS):
        if other is None:
            return None
        if other.is_element_node:
            if other.tag != wanted:
                return None
            if _cell_text(other) != ":":
                return other
        other = other.next
    return None


def _derived(field: Field, record: dict[str, Any]) -> Any:
    """Return a value made of other fields, null where one has none."""
    if field.convert:
        return _converted(field.convert, record.get(field.convert.field))
    above, below = (_number(record.get(name)) for name in field.divide)
    if above is None or not below:
        return None
    return _rounded(above / below, 6)


def _converted(convert: Convert, value: Any) -> Any:
    if not isinstance(value, dict):
        number = _number(value)
        return None if number is None else _rounded(number * convert.rate, 2)
    if value.get("currency") == convert.to:
        return value
    known = value.get("currency")
    if not known or known != (convert.currency or known):
        return None
    return {"amount": _rounded(value["amount"] * convert.rate, 2), "currency": convert.to}


def _number(value: Any) -> int | float | None:
    """Return a number, or that of a price."""
    if isinstance(value, dict):
        value = value.get("amount")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return None


def _rounded(value: float, digits: int) -> int | float | None:
    if not math.isfinite(value):
        return None
    value = round(value, digits)
    return int(value) if value == int(value) else value
