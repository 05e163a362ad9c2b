"""What any HTML page says about itself, read without configuration."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice

import ada_url
import msgspec
from selectolax.lexbor import LexborHTMLParser, LexborNode

from crawler.errors import UrlError
from crawler.fetch.budget import Budget
from crawler.urls import MAX_HOST, check_host
from crawler.urls import MAX_LENGTH as MAX_URL

NAME, VERSION = "default", "1"

MAX_TEXT, MAX_STRING, MAX_KEY = 100_000, 2_000, 200
MAX_LINKS, MAX_ANCHORS, MAX_LINKED = 1_000, 10_000, 1_000_000
"""Links, elements that are looked at for them, and characters of all links."""
MAX_HEADINGS, MAX_METAS, MAX_FIELDS, MAX_PARAGRAPHS = 200, 500, 2_000, 2_000
MAX_TABLES, MAX_COLUMNS, MAX_ROWS, MAX_CELLS = 100, 50, 1_000, 20_000
MAX_TABLED, MAX_ESCAPE = 6_000_000, 6
"""Bytes of all tables as they are written, where a name stands again in every row; and those of one character."""
MAX_ITEMS, MAX_PROPERTIES, MAX_ITEM_DEPTH = 500, 2_000, 20
MAX_ITEM_NAMES, MAX_NAMED, MAX_MICRODATA = 20, 20_000, 1_000_000
"""Names of one value, names of all values, and characters of all items as they are written: a value is written once
for each of its names, and again wherever the item around it is."""
MAX_JSON_BLOCKS, MAX_JSON_LENGTH, MAX_JSON_DEPTH = 50, 500_000, 50
MAX_EXCERPT_NODES, MAX_SIBLINGS = 1_000, 20
MAX_OWNED, MAX_NAMES = 20_000, 10_000
"""Elements of items that are looked at, and characters of an attribute that is a list of names."""
MAX_JSON_PARTS = 20_000
"""Objects and lists in all blocks of JSON, some 300 bytes each."""
LARGE = 1_000_000
"""Bytes of a page of which not all text is read at once."""
MAX_ATTRIBUTE = 20_000
"""Characters of an attribute that are looked at: a longer one is no name, URL or text that is kept."""

Record = dict[str, object]
Cell = tuple[str, str]
Grid = list[list[Cell]]

_WORDS = re.compile(r"\S+")
_BEFORE_SIGN = re.compile(r"\0(?=[,.;:)])")
_PLAIN_PATH = re.compile(r"/?[A-Za-z0-9_-][A-Za-z0-9_/-]*(?:\.[A-Za-z0-9_-]+)?(?:\?[A-Za-z0-9_=&.-]*)?")
"""References of which a URL is made by putting them behind its origin or its folder."""
_LABELLED = re.compile(r"([^:]{1,60}):\s+(\S.{0,499})")
_TRAILING_COMMA = re.compile(r'("(?:[^"\\]|\\.?)*+(?:"|\Z))|,(?=\s*[}\]])', re.DOTALL)
_VALUE_ATTRIBUTES = {
    **dict.fromkeys(("audio", "embed", "iframe", "img", "source", "track", "video"), "src"),
    **dict.fromkeys(("a", "area", "link"), "href"),
    **dict.fromkeys(("data", "meter"), "value"),
    "object": "data",
    "time": "datetime",
}
_INVISIBLE = "script, style, noscript, template, svg"
_BOILERPLATE = "nav, aside, select, button, textarea, form"


def extract(tree: LexborHTMLParser, url: str, budget: Budget | None = None) -> Record:
    """All that is found in a page, as values that JSON can hold; takes the invisible parts out of the tree."""
    budget = budget or Budget()
    base = base_of(tree, url)
    metas, json_ld, links = list(_metas(tree)), _json_ld(tree, budget), _links(tree, base, budget)
    _remove(tree, _INVISIBLE, budget)
    headed, plain = _grids(tree, budget)
    record: Record = {
        "title": _first_words(tree, "head > title, body > title", budget),
        "description": next((value for name, value in metas if name == "description"), ""),
        "canonical": absolute(base, _first_attribute(tree, 'link[rel~="canonical" i][href]', "href")),
        "language": _first_attribute(tree, "html[lang]", "lang")[:MAX_KEY],
        "headings": _headings(tree, budget),
        "json_ld": json_ld,
        "opengraph": _opengraph(metas),
        "microdata": _microdata(tree, base, budget),
        "fields": _fields(tree, plain, budget),
        "tables": _tables(headed, len(tree.raw_html), budget),
        "links": links,
        "text": _main_text(tree, budget),
    }
    return {name: value for name, value in record.items() if value}


def _remove(tree: LexborHTMLParser, query: str, budget: Budget) -> None:
    budget.check(len(tree.raw_html))
    for node in tree.css(query):
        budget.check()
        node.decompose(recursive=False)


def _remove_boilerplate(tree: LexborHTMLParser, budget: Budget) -> None:
    """Take menus and controls out of the tree, and forms unless they are the page itself, as in ASP.NET.

    Forms can lie in each other. Whatever is found in one is in all around it, so that no part of the page is
    searched for each of them.
    """
    kept: set[int] = set()
    inside = 0
    budget.check(len(tree.raw_html))
    for form in tree.css(_BOILERPLATE):
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


def _words(node: LexborNode, budget: Budget, limit: int = MAX_STRING) -> str:
    if len(node.parser.raw_html) > LARGE:
        return _first_of(node, budget, limit)
    text = node.text(separator="\0")
    return (joined(text) if "\0" in text else " ".join(text.split()))[:limit]


def _first_of(node: LexborNode, budget: Budget, limit: int) -> str:
    """The beginning of a node's words on a page that is too large to have all of them in memory twice."""
    parts, size = [], 0
    for inner in node.traverse(include_text=True):
        budget.check()
        if inner.is_text_node:
            text = inner.text_content or ""
            words = _folded(text, limit)
            parts.append(f"{' ' * text[:1].isspace()}{words}{' ' * text[-1:].isspace()}")
            size += len(words)
            if size > limit:
                break
    return joined("\0".join(parts))[:limit]


def _folded(text: str, limit: int) -> str:
    """The beginning of a text with single spaces, without a list of all its words."""
    words, size = [], 0
    for match in _WORDS.finditer(text):
        words.append(match[0])
        size += len(match[0]) + 1
        if size > limit:
            break
    return " ".join(words)


def joined(text: str) -> str:
    """Fold white space, and the marks between text nodes into a space, or nothing: "see <a>this</a>, then"."""
    if "\0" in text:
        text = _BEFORE_SIGN.sub("", text).replace("(\0", "(").replace("\0", " ")
    return " ".join(text.split())


def _excerpt(node: LexborNode) -> str:
    """The beginning of a node's words; unlike `_words` it is cheap however much lies in nodes inside nodes."""
    first = node.child
    if first and first.is_text_node and not first.next:
        return " ".join((first.text_content or "")[:MAX_STRING].split())
    parts, size = [], 0
    for inner in islice(node.traverse(include_text=True), MAX_EXCERPT_NODES):
        if inner.is_text_node:
            parts.append((inner.text_content or "")[:MAX_STRING])
            size += len(parts[-1])
            if size > MAX_STRING:
                break
    return joined("\0".join(parts))[:MAX_STRING]


def _own_text(node: LexborNode) -> str:
    """The text of a node that is in no other inside it; of a large page the beginning."""
    if len(node.parser.raw_html) <= LARGE:
        return node.text(deep=False)
    parts, left = [], MAX_TEXT
    for inner in node.iter(include_text=True):
        if inner.is_text_node:
            parts.append((inner.text_content or "")[:left])
            left -= len(parts[-1])
            if not left:
                break
    return "".join(parts)


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
    return _words(node, budget) if node else ""


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


def _metas(tree: LexborHTMLParser) -> Iterator[Cell]:
    for node in tree.css("meta[content]")[:MAX_METAS]:
        attributes = node.attributes
        name = attributes.get("property") or attributes.get("name") or ""
        value = _value(attributes["content"] or "")
        if name and value:
            yield name.strip().lower()[:MAX_KEY], value


def _opengraph(metas: list[Cell]) -> Record:
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
        if text := _excerpt(node):
            headings.append({"level": int((node.tag or "h1")[1]), "text": text})
    return headings


def _links(tree: LexborHTMLParser, base: str, budget: Budget) -> list[str]:
    links: dict[str, None] = {}
    left = MAX_LINKED
    seen: set[int] = set()
    root, folder = absolute(base, "/"), absolute(base, "./")
    budget.check(len(tree.raw_html))
    for node in tree.css("a[href], area[href]")[:MAX_ANCHORS]:
        reference = _attribute(node, "href")
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
        found.extend(item for item in (value if isinstance(value, list) else [value]) if isinstance(item, dict))
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
    """The value without what UTF-8 or JSON cannot hold; raises `ValueError` where it is nested beyond reason."""
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


def _fields(tree: LexborHTMLParser, grids: list[Grid], budget: Budget) -> Record:
    """The pairs of label and value in tables, definition lists and behind bold labels."""
    fields: Record = {}
    pairs = chain(_table_pairs(grids), _list_pairs(tree, budget), _label_pairs(tree, budget))
    for label, value in islice(pairs, MAX_FIELDS):
        budget.check()
        if value and (name := label.rstrip(": ")[:MAX_KEY]):
            _add(fields, name, value)
    return fields


def _grids(tree: LexborHTMLParser, budget: Budget) -> tuple[list[Grid], list[Grid]]:
    """The rows of every table that holds no other table: those around them only make the layout.

    Tables with a head come first, then the others.
    """
    headed: list[Grid] = []
    plain: list[Grid] = []
    left = MAX_CELLS
    budget.check(len(tree.raw_html))
    for table in tree.css("table:not(:has(table))")[:MAX_TABLES]:
        budget.check(len(tree.raw_html))
        rows: Grid = []
        for row in islice(_rows(table, budget), MAX_ROWS):
            if row:
                rows.append(row)
                left -= len(row)
                if left <= 0:
                    break
        if rows:
            (headed if _is_headed(rows) else plain).append(rows)
        if left <= 0:
            break
    return headed, plain


def _rows(table: LexborNode, budget: Budget) -> Iterator[list[Cell]]:
    for part in table.iter():
        budget.check()
        tag = part.tag
        if tag == "tr":
            yield _cells(part, budget)
        elif tag == "thead":
            for row in part.iter():
                budget.check()
                yield [("th", text) for _, text in _cells(row, budget)]
        elif tag in ("tbody", "tfoot"):
            for row in part.iter():
                budget.check()
                yield _cells(row, budget)


def _cells(row: LexborNode, budget: Budget) -> list[Cell]:
    cells = islice(row.iter(), MAX_COLUMNS)
    return [(tag, _words(cell, budget)) for cell in cells if (tag := cell.tag) == "td" or tag == "th"]


def _is_headed(rows: Grid) -> bool:
    head = rows[0]
    return len(head) > 1 and all(tag == "th" for tag, _ in head) and any(tag == "td" for row in rows for tag, _ in row)


def _tables(grids: list[Grid], page: int, budget: Budget) -> list[list[Record]]:
    """Each table as the records of its rows; of tables that would take too much to write, the first rows."""
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


def _table(rows: Grid) -> list[Record]:
    names: list[str] = []
    for number, (_, text) in enumerate(rows[0], 1):
        name = text[:MAX_KEY] or f"column {number}"
        names.append(name if name not in names else f"{name} ({number})")
    return [{name: text for name, (_, text) in zip(names, row, strict=False)} for row in rows[1:]]


def _table_pairs(grids: list[Grid]) -> Iterator[Cell]:
    for rows in grids:
        narrow = max(map(len, rows)) <= 2
        for row in rows:
            yield from _row_pairs([cell for cell in row if cell[1]], narrow)


def _row_pairs(row: list[Cell], narrow: bool) -> list[Cell]:
    if not row:
        return []
    if ": " in row[0][1]:
        matches = [match for _, text in row if (match := _LABELLED.fullmatch(text))]
        if len(matches) == len(row):
            return [(match[1], match[2]) for match in matches]
    if narrow and len(row) == 2:
        return [(row[0][1], row[1][1])]
    if len(row) % 2 or not all(tag == "th" or text.endswith(":") for tag, text in row[::2]):
        return []
    return [(name, value) for (_, name), (_, value) in zip(row[::2], row[1::2], strict=True)]


def _list_pairs(tree: LexborHTMLParser, budget: Budget) -> Iterator[Cell]:
    budget.check(len(tree.raw_html))
    for terms in tree.css("dl:not(:has(dl))")[:MAX_TABLES]:
        budget.check(len(tree.raw_html))
        name = ""
        for node in terms.css("dt, dd")[:MAX_FIELDS]:
            budget.check()
            if node.tag == "dt":
                name = _excerpt(node)
            else:
                yield name, _excerpt(node)


def _label_pairs(tree: LexborHTMLParser, budget: Budget) -> Iterator[Cell]:
    """Rows such as `<b>Owner:</b> Jane Roe<br>`; in table cells they are read with their table."""
    budget.check(len(tree.raw_html))
    for label in tree.css("b, strong")[:MAX_FIELDS]:
        budget.check()
        name, after = _own_text(label).strip(), label.next
        if not name.endswith(":") and not (after and (after.text_content or "").lstrip().startswith(":")):
            continue
        if len(name) <= MAX_KEY and label.parent and label.parent.tag not in ("td", "th"):
            yield name, joined("\0".join(_after(label))).lstrip(": ")[:MAX_STRING]


def _after(label: LexborNode) -> Iterator[str]:
    node = label.next
    for _ in range(MAX_SIBLINGS):
        if node is None or node.tag in ("b", "strong", "br", "hr"):
            return
        yield _excerpt(node)
        node = node.next


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
        kind, identity = (_attribute(scopes[scope], name)[:MAX_STRING] for name in ("itemtype", "itemid"))
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
            # `itemref` can make an item its own part, or part of many: neither may grow without end.
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


def _owned(tree: LexborHTMLParser, scopes: dict[int, LexborNode], budget: Budget) -> Iterator[tuple[int, LexborNode]]:
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


def _adopters(tree: LexborHTMLParser, scopes: dict[int, LexborNode], budget: Budget) -> dict[int, list[int]]:
    """Which items take in an element that lies elsewhere, through `itemref`."""
    lists = ((_attribute(node, "itemref")[:MAX_NAMES].split(), scope) for scope, node in scopes.items())
    references = list(islice(((name, scope) for names, scope in lists for name in names), MAX_ITEMS))
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
        return (absolute(base, value) if source in ("src", "href", "data") else "") or value[:MAX_STRING]
    return _excerpt(node)


def _main_text(tree: LexborHTMLParser, budget: Budget) -> str:
    """The words of the page's main part; takes the rest out of the tree, so it comes last."""
    _remove_boilerplate(tree, budget)
    budget.check(len(tree.raw_html))
    main = tree.css_first('main, [role="main"]')
    if main is None and len(articles := tree.css("article")) == 1:
        main = articles[0]
    if main and (text := _words(main, budget, MAX_TEXT)):
        return text
    _remove(tree, "header, footer", budget)
    budget.check(len(tree.raw_html))
    text = _words(tree.body, budget, MAX_TEXT) if tree.body else ""
    budget.check(len(tree.raw_html))
    dense = _densest(tree)
    part = _words(dense, budget, MAX_TEXT) if dense else ""
    return part if len(part) * 2 > len(text) else text


def _densest(tree: LexborHTMLParser) -> LexborNode | None:
    """The element with most words in paragraphs directly below it."""
    weights: Counter[int] = Counter()
    parents: dict[int, LexborNode] = {}
    for node in tree.css("p")[:MAX_PARAGRAPHS]:
        if parent := node.parent:
            parents[parent.mem_id] = parent
            weights[parent.mem_id] += len(_own_text(node))
    return parents[weights.most_common(1)[0][0]] if weights else None
