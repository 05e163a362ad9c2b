"""What any page says about itself, read without configuration."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import ada_url
import msgspec
from selectolax.lexbor import LexborHTMLParser, LexborNode

from crawler.errors import UrlError
from crawler.fetch.budget import Budget
from crawler.sites import pairs
from crawler.sites.pairs import MAX_KEY, Pair
from crawler.sites.words import MAX_STRING, MAX_TEXT, excerpt, joined, own_text, words
from crawler.urls import MAX_HOST, check_host
from crawler.urls import MAX_LENGTH as MAX_URL

NAME, VERSION = "default", "2"

MAX_LINKS, MAX_ANCHORS, MAX_LINKED = 1_000, 10_000, 1_000_000
"""Links, elements that are looked at for them, and characters of all links."""
MAX_HEADINGS, MAX_METAS, MAX_PARAGRAPHS = 200, 500, 2_000
MAX_TABLED, MAX_ESCAPE = 6_000_000, 6
"""Bytes of all tables as they are written, where a name stands again in every row; and those of one
character."""
MAX_ITEMS, MAX_PROPERTIES, MAX_ITEM_DEPTH = 500, 2_000, 20
MAX_ITEM_NAMES, MAX_NAMED, MAX_MICRODATA = 20, 20_000, 1_000_000
"""Names of one value, names of all values, and characters of all items as they are written: a value
is written once for each of its names, and again wherever the item around it is."""
MAX_JSON_BLOCKS, MAX_JSON_LENGTH, MAX_JSON_DEPTH = 50, 500_000, 50
MAX_OWNED, MAX_NAMES = 20_000, 10_000
"""Elements of items that are looked at, and characters of an attribute that is a list of names."""
MAX_JSON_PARTS = 20_000
"""Objects and lists in all blocks of JSON, some 300 bytes each."""
MAX_ATTRIBUTE = 20_000
"""Characters of an attribute that are looked at: a longer one is no name, URL or text that is
kept."""

Record = dict[str, object]

_PLAIN_PATH = re.compile(
    r"/?[A-Za-z0-9_-][A-Za-z0-9_/-]*(?:\.[A-Za-z0-9_-]+)?(?:\?[A-Za-z0-9_=&.-]*)?"
)
"""References of which a URL is made by putting them behind its origin or its folder."""
_TRAILING_COMMA = re.compile(r'("(?:[^"\\]|\\.?)*+(?:"|\Z))|,(?=\s*[}\]])', re.DOTALL)
_VALUE_ATTRIBUTES = {
    **dict.fromkeys(("audio", "embed", "iframe", "img", "source", "track", "video"), "src"),
    **dict.fromkeys(("a", "area", "link"), "href"),
    **dict.fromkeys(("data", "meter"), "value"),
    "object": "data",
    "time": "datetime",
}
_INVISIBLE = "script, style, noscript, template, svg"
_TEXTUAL = frozenset({"", "text", "number", "date", "tel", "email", "url"})
"""Types of inputs that show their value."""


def extract(tree: LexborHTMLParser, url: str, budget: Budget | None = None) -> Record:
    """All that is found in a page, as values that JSON can hold; takes the invisible parts out of
    the tree."""
    budget = budget or Budget()
    base = base_of(tree, url)
    metas, json_ld, links = list(_metas(tree)), _json_ld(tree, budget), _links(tree, base, budget)
    _remove(tree, _INVISIBLE, budget)
    record: Record = {
        "title": _first_words(tree, "head > title, body > title", budget),
        "description": next((value for name, value in metas if name == "description"), ""),
        "canonical": absolute(
            base, _first_attribute(tree, 'link[rel~="canonical" i][href]', "href")
        ),
        "language": _first_attribute(tree, "html[lang]", "lang")[:MAX_KEY],
        "headings": _headings(tree, budget),
        "json_ld": json_ld,
        "opengraph": _opengraph(metas),
        "microdata": _microdata(tree, base, budget),
    }
    beside = _remove_controls(tree, budget)
    found, tables = pairs.read(tree, budget)
    record |= {
        "fields": _fields(found),
        "tables": _tables(tables, len(tree.raw_html), budget),
        "links": links,
        "text": _main_text(tree, beside, budget),
    }
    return {name: value for name, value in record.items() if value}


def extract_plain(body: bytes, is_json: bool, budget: Budget) -> Record:
    """The data of a JSON text in UTF-8, or of another text, and of JSON that is too much or broken,
    the beginning."""
    budget.check(len(body))
    if (
        is_json
        and len(body) <= MAX_JSON_LENGTH
        and body.count(b"{") + body.count(b"[") <= MAX_JSON_PARTS
    ):
        value = _json(body.decode("utf-8", "replace"))
        budget.check(len(body))
        if value is not None:
            return {"json": value}
    text = body[: 4 * MAX_TEXT].decode("utf-8", "ignore").replace("\0", "").strip()[:MAX_TEXT]
    return {"text": text} if text else {}


def _remove(tree: LexborHTMLParser, query: str, budget: Budget) -> None:
    budget.check(len(tree.raw_html))
    for node in tree.css(query):
        budget.check()
        node.decompose(recursive=False)


def _remove_controls(tree: LexborHTMLParser, budget: Budget) -> list[LexborNode]:
    """Take menus and controls out of the tree; of inputs that only show a value, the value stays as
    text.

    Returns what may be beside the main part, but may have fields: it goes when they are read.
    """
    beside: list[LexborNode] = []
    budget.check(len(tree.raw_html))
    for node in tree.css("nav, select, button, textarea, input, aside, form"):
        budget.check()
        tag = node.tag
        if tag in ("aside", "form"):
            beside.append(node)
            continue
        if tag != "input":
            node.decompose(recursive=False)
            continue
        attributes = node.attributes
        shows = "readonly" in attributes or "disabled" in attributes
        if (
            shows
            and _attribute(node, "type").lower() in _TEXTUAL
            and (text := _value(_attribute(node, "value")))
        ):
            node.replace_with(text)
    return beside


def _remove_beside(beside: list[LexborNode], budget: Budget) -> None:
    """Take what is beside the page out of the tree, and forms unless they are the page itself, as
    in ASP.NET.

    Forms can lie in each other. Whatever is found in one is in all around it, so that no part of
    the page is searched for each of them.
    """
    kept: set[int] = set()
    inside = 0
    for form in beside:
        budget.check()
        if form.tag != "form":
            form.decompose(recursive=False)
            continue
        if inside:
            inside -= 1
            continue
        if form.mem_id in kept:
            continue
        found = form.css_first("h1, h2, h3, p, table")
        if found is None:
            inside = len(form.css("form")) - 1
            form.decompose(recursive=False)
            continue
        outer = found.parent
        while outer is not None and outer.mem_id not in kept:
            kept.add(outer.mem_id)
            outer = outer.parent


def _value(text: str) -> str:
    """The beginning of an attribute's words."""
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
    """What the references of a page are relative to."""
    return absolute(url, _first_attribute(tree, "base[href]", "href")) or url


def absolute(base: str, reference: str) -> str:
    """The http(s) URL that a reference means on a page, without its fragment, or nothing."""
    if not reference or len(reference) > MAX_URL:
        return ""
    try:
        if len(reference) > MAX_HOST:
            check_host(reference)
        url = ada_url.join_url(base, reference).partition("#")[0]
    except (UrlError, ValueError):
        return ""
    return url if url.startswith(("http://", "https://")) and len(url) <= MAX_URL else ""


def _add(record: Record, name: str, value: object) -> None:
    if name not in record:
        record[name] = value
    elif isinstance(known := record[name], list):
        known.append(value)
    else:
        record[name] = [known, value]


def _metas(tree: LexborHTMLParser) -> Iterator[Pair]:
    for node in tree.css("meta[content]")[:MAX_METAS]:
        attributes = node.attributes
        name = attributes.get("property") or attributes.get("name") or ""
        value = _value(attributes["content"] or "")
        if name and value:
            yield name.strip().lower()[:MAX_KEY], value


def _opengraph(metas: list[Pair]) -> Record:
    record: Record = {}
    for name, value in metas:
        if ":" in name:
            _add(record, name, value)
    return record


def _headings(tree: LexborHTMLParser, budget: Budget) -> list[Record]:
    headings: list[Record] = []
    budget.check(len(tree.raw_html))
    for node in tree.css("h1, h2, h3, h4, h5, h6")[:MAX_HEADINGS]:
        budget.check()
        if text := excerpt(node):
            headings.append({"level": int((node.tag or "h1")[1]), "text": text})
    return headings


def _links(tree: LexborHTMLParser, base: str, budget: Budget) -> list[str]:
    links: dict[str, None] = {}
    left = MAX_LINKED
    seen: set[int] = set()
    root, folder = absolute(base, "/"), absolute(base, "./")
    budget.check(len(tree.raw_html))
    for node in tree.css("a[href], area[href]")[:MAX_ANCHORS]:
        reference = (node.attributes["href"] or "")[:MAX_ATTRIBUTE].strip()
        if (known := hash(reference)) in seen:
            continue
        seen.add(known)
        if folder and _PLAIN_PATH.fullmatch(reference):
            link = (root[:-1] if reference[0] == "/" else folder) + reference
        else:
            budget.check()
            link = "" if reference.startswith("#") else absolute(base, reference)
        if link and len(link) <= MAX_URL and link not in links:
            left -= len(link)
            if left < 0:
                break
            links[link] = None
            if len(links) == MAX_LINKS:
                break
    return list(links)


def _json_ld(tree: LexborHTMLParser, budget: Budget) -> list[object]:
    found: list[object] = []
    left, parts = MAX_JSON_LENGTH, MAX_JSON_PARTS
    for node in tree.css('script[type*="ld+json" i]')[:MAX_JSON_BLOCKS]:
        text = node.text()
        left -= len(text)
        parts -= text.count("{") + text.count("[")
        if left < 0 or parts < 0:
            break
        budget.check(len(text))
        value = _json(text)
        found.extend(
            item
            for item in (value if isinstance(value, list) else [value])
            if isinstance(item, dict)
        )
    return found


def _json(text: str) -> object:
    """The value of a JSON text with the flaws that search engines forgive, or None."""
    try:
        return _plain(msgspec.json.decode(text))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    if "<![CDATA[" in text:
        text = text.partition("<![CDATA[")[2].rpartition("]]>")[0]
    begin = min((at for at in (text.find("{"), text.find("[")) if at >= 0), default=0)
    text = text[begin : max(text.rfind("}"), text.rfind("]")) + 1]
    try:
        return _plain(json.loads(_TRAILING_COMMA.sub(r"\1", text), strict=False))
    except (ValueError, RecursionError):
        return None


def _plain(value: object, depth: int = 0) -> object:
    """The value without what UTF-8 or JSON cannot hold; raises `ValueError` where it is nested
    beyond reason."""
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


def _fields(found: list[Pair]) -> Record:
    """Values by label; a label that comes again has a list of them."""
    fields: Record = {}
    for label, value in found:
        if name := label.rstrip(": ")[:MAX_KEY]:
            _add(fields, name, value)
    return fields


def _tables(grids: list[pairs.Grid], page: int, budget: Budget) -> list[list[Record]]:
    """Each table as the records of its rows; of tables that would take too much to write, the first
    rows."""
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
        names.append(name if name not in names else f"{name} ({number})")
    return [{name: cell[1] for name, cell in zip(names, row, strict=False)} for row in rows[1:]]


def _microdata(tree: LexborHTMLParser, base: str, budget: Budget) -> list[Record]:
    budget.check(len(tree.raw_html))
    scopes = {node.mem_id: node for node in tree.css("[itemscope]")[:MAX_ITEMS]}
    budget.check(len(tree.raw_html))
    if not scopes:
        return []
    properties: dict[int, list[LexborNode]] = {scope: [] for scope in scopes}
    for scope, node in islice(_owned(tree, scopes, budget), MAX_PROPERTIES):
        budget.check()
        properties[scope].append(node)
    items_left, names_left = MAX_ITEMS, MAX_NAMED
    names_of: dict[int, list[str]] = {}
    value_of: dict[int, str] = {}

    def item(scope: int, outer: frozenset[int]) -> tuple[Record, int]:
        """An item, and how many characters it has when it is written."""
        nonlocal items_left, names_left
        items_left -= 1
        kind, identity = (
            _attribute(scopes[scope], name)[:MAX_STRING] for name in ("itemtype", "itemid")
        )
        values: Record = {}
        size = len(kind) + len(identity) + 40
        for node in properties[scope]:
            budget.check()
            inner = node.mem_id
            if inner not in names_of:
                names = dict.fromkeys(_attribute(node, "itemprop")[:MAX_NAMES].split())
                names_of[inner] = [name[:MAX_KEY] for name in islice(names, MAX_ITEM_NAMES)]
            if inner not in scopes:
                if inner not in value_of:
                    value_of[inner] = _item_value(node, base)
                value: object = value_of[inner]
                length = len(value_of[inner])
            # `itemref` can make an item its own part, or part of many: neither may grow without
            # end.
            elif items_left > 0 and inner not in outer and len(outer) < MAX_ITEM_DEPTH:
                value, length = item(inner, outer | {inner})
            else:
                continue
            for name in names_of[inner]:
                size += len(name) + length + 6
                names_left -= 1
                if size > MAX_MICRODATA or names_left < 0:
                    size -= len(name) + length + 6
                    break
                _add(values, name, value)
        return {"type": kind, **({"id": identity} if identity else {}), "properties": values}, size

    items, left = [], MAX_MICRODATA
    for scope, node in scopes.items():
        if items_left > 0 and "itemprop" not in node.attributes:
            found, size = item(scope, frozenset({scope}))
            left -= size
            if left < 0:
                break
            items.append(found)
    return items


def _owned(
    tree: LexborHTMLParser, scopes: dict[int, LexborNode], budget: Budget
) -> Iterator[tuple[int, LexborNode]]:
    """Every element with `itemprop`, with each item that it describes."""
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
        known = owners[parent.mem_id] if parent is not None else ()
        for element in reversed(path):
            if element in adopters:
                known = (*adopters[element], *known)
            owners[element] = known
        for scope in dict.fromkeys((*adopters.get(node.mem_id, ()), *known)):
            yield scope, node


def _adopters(
    tree: LexborHTMLParser, scopes: dict[int, LexborNode], budget: Budget
) -> dict[int, list[int]]:
    """Which items take in an element that lies elsewhere, through `itemref`."""
    lists = (
        (_attribute(node, "itemref")[:MAX_NAMES].split(), scope) for scope, node in scopes.items()
    )
    references = list(
        islice(((name, scope) for names, scope in lists for name in names), MAX_ITEMS)
    )
    adopters: dict[int, list[int]] = {}
    if references:
        wanted = {name for name, _ in references}
        elements: dict[str, int] = {}
        budget.check(len(tree.raw_html))
        for node in tree.css("[id]"):
            budget.check()
            if (name := node.id or "") in wanted:
                elements.setdefault(name, node.mem_id)
        for name, scope in references:
            if name in elements:
                adopters.setdefault(elements[name], []).append(scope)
    return adopters


def _item_value(node: LexborNode, base: str) -> str:
    if content := node.attrs.get("content"):
        return _value(content)
    source = _VALUE_ATTRIBUTES.get(node.tag or "")
    if source and (value := _attribute(node, source)):
        return (absolute(base, value) if source in ("src", "href", "data") else "") or value[
            :MAX_STRING
        ]
    return excerpt(node)


def _main_text(tree: LexborHTMLParser, beside: list[LexborNode], budget: Budget) -> str:
    """The words of the page's main part; takes the rest out of the tree, so it comes last."""
    _remove_beside(beside, budget)
    budget.check(len(tree.raw_html))
    main = tree.css_first('main, [role="main"]')
    if main is None and len(articles := tree.css("article")) == 1:
        main = articles[0]
    if main and (text := words(main, budget, MAX_TEXT)):
        return text
    _remove(tree, "header, footer", budget)
    budget.check(len(tree.raw_html))
    text = words(tree.body, budget, MAX_TEXT) if tree.body else ""
    budget.check(len(tree.raw_html))
    dense = _densest(tree)
    part = words(dense, budget, MAX_TEXT) if dense else ""
    return part if len(part) * 2 > len(text) else text


def _densest(tree: LexborHTMLParser) -> LexborNode | None:
    """The element with most words in paragraphs directly below it."""
    weights: Counter[int] = Counter()
    parents: dict[int, LexborNode] = {}
    for node in tree.css("p")[:MAX_PARAGRAPHS]:
        if parent := node.parent:
            parents[parent.mem_id] = parent
            weights[parent.mem_id] += len(own_text(node))
    return parents[weights.most_common(1)[0][0]] if weights else None
