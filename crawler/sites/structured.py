"""What any page says about itself, read without configuration."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

import ada_url
import msgspec
from selectolax.lexbor import LexborHTMLParser, LexborNode

from crawler.errors import UrlError
from crawler.fetch.budget import Budget
from crawler.sites import pairs
from crawler.sites.pairs import MAX_KEY, Pair
from crawler.sites.text import MAX_STRING, MAX_TEXT, excerpt, find, joined, own_text, words
from crawler.urls import MAX_HOST, check_host
from crawler.urls import MAX_LENGTH as MAX_URL

NAME, VERSION = "default", "2"

MAX_LINKS, MAX_ANCHORS, MAX_LINKED = 1_000, 10_000, 1_000_000  # links, elements, characters
MAX_HEADINGS, MAX_METAS, MAX_PARAGRAPHS = 200, 500, 2_000
MAX_TABLED = 6_000_000  # bytes of all tables as JSON, where every row repeats the names
MAX_ESCAPE = 6  # bytes of one character as JSON
MAX_ITEMS, MAX_PROPERTIES, MAX_ITEM_DEPTH = 500, 2_000, 20
MAX_ITEM_NAMES, MAX_NAMED = 20, 20_000  # names of one value, and of all values
MAX_MICRODATA = 1_000_000  # characters of all items; a value counts for each of its names
MAX_OWNED, MAX_NAMES = 20_000, 10_000  # elements of items, and characters of a list of names
MAX_JSON_BLOCKS, MAX_JSON_LENGTH, MAX_JSON_DEPTH = 50, 500_000, 50
MAX_JSON_PARTS = 20_000  # objects and lists in all blocks of JSON, some 300 bytes each
MAX_ATTRIBUTE = 20_000  # characters of an attribute; a longer one is no name, URL or text

Record = dict[str, object]

_PLAIN_PATH = re.compile(
    r"/?[A-Za-z0-9_-][A-Za-z0-9_/-]*(?:\.[A-Za-z0-9_-]+)?(?:\?[A-Za-z0-9_=&.-]*)?"
)
"""References that make a URL when appended to its origin or folder."""
_TRAILING_COMMA = re.compile(r'("(?:[^"\\]|\\.?)*+(?:"|\Z))|,(?=\s*[}\]])', re.DOTALL)
_JSON_START = re.compile(r"[\s=:(]*(?=[{\[])")
URL_ATTRIBUTES = {
    **dict.fromkeys(("audio", "embed", "iframe", "img", "source", "track", "video"), "src"),
    **dict.fromkeys(("a", "area", "link"), "href"),
    "object": "data",
}
"""Attributes that hold the URL of an element."""
_VALUE_ATTRIBUTES = {"data": "value", "meter": "value", "time": "datetime"}
_CANONICAL = 'link[rel~="canonical" i][href]'
_INVISIBLE = "script, style, noscript, template, svg"
_SHOWN_INPUTS = frozenset(("", "text", "number", "date", "tel", "email", "url"))


def extract(tree: LexborHTMLParser, url: str, budget: Budget | None = None) -> Record:
    """Return all that is found in a page, as JSON values; removes parts of the tree."""
    budget = budget or Budget()
    base = base_of(tree, url)
    named, data, links = list(metas(tree)), json_ld(tree, budget), _links(tree, base, budget)
    _remove(tree, _INVISIBLE, budget)
    record: Record = {
        "title": _first_words(tree, "head > title, body > title", budget),
        "description": next((value for name, value in named if name == "description"), ""),
        "canonical": absolute(base, _first_attribute(tree, _CANONICAL, "href")),
        "language": _first_attribute(tree, "html[lang]", "lang")[:MAX_KEY],
        "headings": _headings(tree, budget),
        "json_ld": data,
        "opengraph": _grouped(pair for pair in named if ":" in pair[0]),
        "microdata": microdata(tree, base, budget),
    }
    beside = _remove_controls(tree, budget)
    found, tables = pairs.read(tree, budget)
    fields = [(label.rstrip(": ")[:MAX_KEY], value) for label, value in found]
    record |= {
        "fields": _grouped(pair for pair in fields if pair[0]),
        "tables": _tables(tables, len(tree.raw_html), budget),
        "links": links,
        "text": _main_text(tree, beside, budget),
    }
    return {name: value for name, value in record.items() if value}


def extract_plain(body: bytes, is_json: bool, budget: Budget) -> Record:
    """Return the data of a JSON text, or the beginning of any other text; both are UTF-8."""
    budget.check(len(body))
    parts = body.count(b"{") + body.count(b"[")
    if is_json and len(body) <= MAX_JSON_LENGTH and parts <= MAX_JSON_PARTS:
        value = _json(body.decode("utf-8", "replace"))
        budget.check(len(body))
        if value is not None:
            return {"json": value}
    text = body[: 4 * MAX_TEXT].decode("utf-8", "ignore").replace("\0", "").strip()[:MAX_TEXT]
    return {"text": text} if text else {}


def _remove(tree: LexborHTMLParser, query: str, budget: Budget) -> None:
    for node in find(tree, query, budget):
        budget.check()
        node.decompose(recursive=False)


def _remove_controls(tree: LexborHTMLParser, budget: Budget) -> list[LexborNode]:
    """Remove menus and controls; an input that only shows a value becomes text.

    Returns what may lie beside the main part but may hold fields: it is removed later.
    """
    beside: list[LexborNode] = []
    for node in find(tree, "nav, select, button, textarea, input, aside, form", budget):
        budget.check()
        tag = node.tag
        if tag in ("aside", "form"):
            beside.append(node)
        elif tag != "input":
            node.decompose(recursive=False)
        elif "readonly" in node.attributes or "disabled" in node.attributes:
            text = _value(_attribute(node, "value"))
            if text and _attribute(node, "type").lower() in _SHOWN_INPUTS:
                node.replace_with(text)
    return beside


def _remove_beside(beside: list[LexborNode], budget: Budget) -> None:
    """Remove asides, and forms unless they hold the page itself, as in ASP.NET.

    Forms can be nested. What is found in one is in all around it, so that no part of the page is
    searched once for each form.
    """
    kept: set[int] = set()
    inside = 0
    for form in beside:
        budget.check()
        if form.tag != "form":
            form.decompose(recursive=False)
        elif inside:
            inside -= 1
        elif form.mem_id not in kept:
            found = form.css_first("h1, h2, h3, p, table")
            if found is None:
                inside = len(form.css("form")) - 1
                form.decompose(recursive=False)
                continue
            pairs.add_ancestors(found, kept)


def _value(text: str) -> str:
    return joined(text[: 10 * MAX_STRING])[:MAX_STRING]


def _attribute(node: LexborNode, name: str) -> str:
    return (node.attrs.get(name) or "")[:MAX_ATTRIBUTE].strip()


def _first_attribute(tree: LexborHTMLParser, query: str, name: str) -> str:
    node = tree.css_first(query)
    return _attribute(node, name) if node else ""


def _first_words(tree: LexborHTMLParser, query: str, budget: Budget) -> str:
    node = tree.css_first(query)
    return words(node, budget) if node else ""


def base_of(tree: LexborHTMLParser, url: str) -> str:
    """Return the URL that the references of a page are relative to."""
    return absolute(url, _first_attribute(tree, "base[href]", "href")) or url


def absolute(base: str, reference: str) -> str:
    """Return the http(s) URL of a reference without its fragment, or an empty text."""
    if not reference or len(reference) > MAX_URL:
        return ""
    try:
        if len(reference) > MAX_HOST:
            check_host(reference)
        url = ada_url.join_url(base, reference).partition("#")[0]
    except (UrlError, ValueError):
        return ""
    if len(url) > MAX_URL or not url.startswith(("http://", "https://")):
        return ""
    return url


def _add(record: Record, name: str, value: object) -> None:
    if name not in record:
        record[name] = value
    elif isinstance(known := record[name], list):
        known.append(value)
    else:
        record[name] = [known, value]


def meta(tree: LexborHTMLParser) -> Record:
    """Return the contents of meta tags by name or property."""
    return _grouped(metas(tree))


def metas(tree: LexborHTMLParser) -> Iterator[Pair]:
    """Return name (or property) and content of a page's meta tags."""
    for node in tree.css("meta[content]")[:MAX_METAS]:
        attributes = node.attributes
        name = attributes.get("property") or attributes.get("name") or ""
        value = _value(attributes["content"] or "")
        if name and value:
            yield name.strip().lower()[:MAX_KEY], value


def _grouped(found: Iterable[Pair]) -> Record:
    """Return values by name; a name that comes again has a list."""
    record: Record = {}
    for name, value in found:
        _add(record, name, value)
    return record


def _headings(tree: LexborHTMLParser, budget: Budget) -> list[Record]:
    headings: list[Record] = []
    for node in find(tree, "h1, h2, h3, h4, h5, h6", budget)[:MAX_HEADINGS]:
        budget.check()
        if text := excerpt(node):
            headings.append({"level": int((node.tag or "h1")[1]), "text": text})
    return headings


def _links(tree: LexborHTMLParser, base: str, budget: Budget) -> list[str]:
    links: dict[str, None] = {}
    left = MAX_LINKED
    seen: set[int] = set()
    root, folder = absolute(base, "/"), absolute(base, "./")
    for node in find(tree, "a[href], area[href]", budget)[:MAX_ANCHORS]:
        reference = (node.attributes["href"] or "")[:MAX_ATTRIBUTE].strip()
        if (known := hash(reference)) in seen:
            continue
        seen.add(known)
        if reference.startswith("#"):
            continue
        if not folder or not _PLAIN_PATH.fullmatch(reference):
            budget.check()
            link = absolute(base, reference)
        elif reference[0] == "/":
            link = root[:-1] + reference
        else:
            link = folder + reference
        if link and len(link) <= MAX_URL and link not in links:
            left -= len(link)
            if left < 0:
                break
            links[link] = None
            if len(links) == MAX_LINKS:
                break
    return list(links)


class JsonBudget:
    """What may be read of a page's JSON: its characters, and its objects and lists."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._left, self._parts = MAX_JSON_LENGTH, MAX_JSON_PARTS

    @property
    def is_spent(self) -> bool:
        """Whether the last text was too much."""
        return self._left < 0 or self._parts < 0

    def read(self, text: str, is_first: bool = False) -> object:
        """Return the value of a JSON text, or None; with `is_first`, of the beginning of a text."""
        self._left -= len(text)
        self._parts -= text.count("{") + text.count("[")
        if self.is_spent:
            return None
        self._budget.check(len(text))
        return _first_json(text) if is_first else _json(text)


def json_ld(tree: LexborHTMLParser, budget: Budget) -> list[Record]:
    """Return the objects of a page's JSON-LD."""
    found: list[Record] = []
    reader = JsonBudget(budget)
    for node in tree.css('script[type*="ld+json" i]')[:MAX_JSON_BLOCKS]:
        value = reader.read(node.text())
        if reader.is_spent:
            break
        items = value if isinstance(value, list) else [value]
        found += [item for item in items if isinstance(item, dict)]
    return found


def _first_json(text: str) -> object:
    """Return the object or list that a text begins with, whatever follows."""
    start = _JSON_START.match(text)
    if not start:
        return None
    try:
        return _plain(json.JSONDecoder(strict=False).raw_decode(text, start.end())[0])
    except (ValueError, RecursionError):
        return None


def _json(text: str) -> object:
    """Return the value of a JSON text, or None; forgives the flaws that search engines do."""
    try:
        return _plain(msgspec.json.decode(text))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    if "<![CDATA[" in text:
        text = text.partition("<![CDATA[")[2].rpartition("]]>")[0]
    starts = [at for at in (text.find("{"), text.find("[")) if at >= 0]
    text = text[min(starts, default=0) : max(text.rfind("}"), text.rfind("]")) + 1]
    try:
        return _plain(json.loads(_TRAILING_COMMA.sub(r"\1", text), strict=False))
    except (ValueError, RecursionError):
        return None


def _plain(value: object, depth: int = 0) -> object:
    """Drop what UTF-8 or JSON cannot hold; raises `ValueError` for deep nesting."""
    if depth > MAX_JSON_DEPTH:
        raise ValueError("nested too deep")
    if isinstance(value, str):
        return value.replace("\0", "").encode("utf-8", "ignore").decode()
    if isinstance(value, dict):
        return {str(_plain(name)): _plain(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner, depth + 1) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _tables(grids: list[pairs.Grid], page: int, budget: Budget) -> list[list[Record]]:
    """Return each table as records; where they are too large as JSON, only the first rows."""
    tables = [_table(rows) for rows in grids]
    names = sum([len(rows) * len("".join(rows[0])) for rows in tables if rows])
    if MAX_ESCAPE * (names + page) <= MAX_TABLED:  # a value stands once in the page
        return tables
    left = MAX_TABLED
    for rows in tables:
        kept = 0
        for row in rows:
            left -= len(msgspec.json.encode(row))
            if left < 0:
                break
            budget.check(MAX_STRING)
            kept += 1
        del rows[kept:]
    return tables


def _table(rows: pairs.Grid) -> list[Record]:
    names: list[str] = []
    for number, (_, text, _) in enumerate(rows[0], 1):
        name = text[:MAX_KEY] or f"column {number}"
        if name in names:
            name = f"{name} ({number})"
        names.append(name)
    return [{name: cell[1] for name, cell in zip(names, row, strict=False)} for row in rows[1:]]


def microdata(tree: LexborHTMLParser, base: str, budget: Budget) -> list[Record]:
    """Return the items of a page's microdata, each with its type and properties."""
    scopes = {node.mem_id: node for node in find(tree, "[itemscope]", budget)[:MAX_ITEMS]}
    budget.check(len(tree.raw_html))
    if not scopes:
        return []
    items = _Items(scopes, base, budget)
    for scope, node in islice(_owned(tree, scopes, budget), MAX_PROPERTIES):
        budget.check()
        items.properties[scope].append(node)
    found, left = [], MAX_MICRODATA
    for scope, node in scopes.items():
        if items.items_left > 0 and "itemprop" not in node.attributes:
            item, size = items.read(scope, frozenset({scope}))
            left -= size
            if left < 0:
                break
            found.append(item)
    return found


class _Items:
    """Reads items; `itemref` may make one part of itself or of many, so all of it is limited."""

    def __init__(self, scopes: dict[int, LexborNode], base: str, budget: Budget) -> None:
        self.properties: dict[int, list[LexborNode]] = {scope: [] for scope in scopes}
        self.items_left, self._names_left = MAX_ITEMS, MAX_NAMED
        self._scopes, self._base, self._budget = scopes, base, budget
        self._names: dict[int, list[str]] = {}
        self._values: dict[int, str] = {}

    def read(self, scope: int, outer: frozenset[int]) -> tuple[Record, int]:
        """Return an item, and its characters as JSON."""
        self.items_left -= 1
        node = self._scopes[scope]
        record: Record = {"type": _attribute(node, "itemtype")[:MAX_STRING]}
        if identity := _attribute(node, "itemid")[:MAX_STRING]:
            record["id"] = identity
        values: Record = {}
        size = len(str(record["type"])) + len(identity) + 40
        for inner in self.properties[scope]:
            self._budget.check()
            key = inner.mem_id
            value: object
            if key not in self._scopes:
                if key not in self._values:
                    self._values[key] = _item_value(inner, self._base)
                value = self._values[key]
                length = len(self._values[key])
            elif self.items_left > 0 and key not in outer and len(outer) < MAX_ITEM_DEPTH:
                value, length = self.read(key, outer | {key})
            else:
                continue
            for name in self._names_of(inner):
                self._names_left -= 1
                if size + len(name) + length + 6 > MAX_MICRODATA or self._names_left < 0:
                    break
                size += len(name) + length + 6
                _add(values, name, value)
        record["properties"] = values
        return record, size

    def _names_of(self, node: LexborNode) -> list[str]:
        if node.mem_id not in self._names:
            names = dict.fromkeys(_attribute(node, "itemprop")[:MAX_NAMES].split())
            self._names[node.mem_id] = [name[:MAX_KEY] for name in islice(names, MAX_ITEM_NAMES)]
        return self._names[node.mem_id]


def _owned(
    tree: LexborHTMLParser, scopes: dict[int, LexborNode], budget: Budget
) -> Iterator[tuple[int, LexborNode]]:
    """Return every element with `itemprop`, once for each item that it describes."""
    adopters = _adopters(tree, scopes, budget)
    owners: dict[int, tuple[int, ...]] = {scope: (scope,) for scope in scopes}
    for node in tree.css("[itemprop]")[:MAX_OWNED]:
        if len(owners) > 2 * MAX_OWNED:
            return
        budget.check()
        path, parent = [], node.parent
        while parent is not None and parent.mem_id not in owners:
            path.append(parent.mem_id)
            parent = parent.parent
        known: tuple[int, ...] = ()
        if parent is not None:
            known = owners[parent.mem_id]
        for element in reversed(path):
            if element in adopters:
                known = (*adopters[element], *known)
            owners[element] = known
        for scope in dict.fromkeys((*adopters.get(node.mem_id, ()), *known)):
            yield scope, node


def _adopters(
    tree: LexborHTMLParser, scopes: dict[int, LexborNode], budget: Budget
) -> dict[int, list[int]]:
    """Return the items that take in an element from elsewhere, through `itemref`."""
    references: list[tuple[str, int]] = []
    for scope, node in scopes.items():
        references += [(name, scope) for name in _attribute(node, "itemref")[:MAX_NAMES].split()]
        if len(references) >= MAX_ITEMS:
            break
    del references[MAX_ITEMS:]
    if not references:
        return {}
    elements = {name: 0 for name, _ in references}
    for node in find(tree, "[id]", budget):
        budget.check()
        if elements.get(node.id or "") == 0:
            elements[node.id or ""] = node.mem_id
    adopters: dict[int, list[int]] = {}
    for name, scope in references:
        adopters.setdefault(elements[name], []).append(scope)
    return adopters


def _item_value(node: LexborNode, base: str) -> str:
    if content := node.attrs.get("content"):
        return _value(content)
    tag = node.tag or ""
    if url := _attribute(node, URL_ATTRIBUTES.get(tag, "")):
        return absolute(base, url) or url[:MAX_STRING]
    return _attribute(node, _VALUE_ATTRIBUTES.get(tag, ""))[:MAX_STRING] or excerpt(node)


def _main_text(tree: LexborHTMLParser, beside: list[LexborNode], budget: Budget) -> str:
    """Return the words of the page's main part; removes the rest, so it comes last."""
    _remove_beside(beside, budget)
    budget.check(len(tree.raw_html))
    main = tree.css_first('main, [role="main"]')
    if main is None and len(articles := tree.css("article")) == 1:
        main = articles[0]
    if main and (text := words(main, budget, MAX_TEXT)):
        return text
    _remove(tree, "header, footer", budget)
    budget.check(len(tree.raw_html))
    if not tree.body:
        return ""
    text = words(tree.body, budget, MAX_TEXT)
    dense = _densest(tree, budget)
    part = words(dense, budget, MAX_TEXT) if dense else ""
    return part if len(part) * 2 > len(text) else text


def _densest(tree: LexborHTMLParser, budget: Budget) -> LexborNode | None:
    """Return the element with most text in paragraphs directly below it."""
    weights: Counter[int] = Counter()
    parents: dict[int, LexborNode] = {}
    for node in find(tree, "p", budget)[:MAX_PARAGRAPHS]:
        if parent := node.parent:
            parents[parent.mem_id] = parent
            weights[parent.mem_id] += len(own_text(node))
    if not weights:
        return None
    return parents[weights.most_common(1)[0][0]]
