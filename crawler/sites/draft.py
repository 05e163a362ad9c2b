"""Drafts the file of a site from one of its pages: its items, its next page, its fields."""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise, takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import msgspec
from selectolax.lexbor import LexborHTMLParser, LexborNode

from crawler.fetch import charset
from crawler.fetch.budget import Budget
from crawler.models import Page, Role
from crawler.sites import Site, links, load, selectors, structured
from crawler.sites.parser import parse
from crawler.sites.sitefile import host_of

MIN_ITEMS = 3  # links of one shape that make a list
MIN_LABELS = 3  # labels with values that make a page an item
MAX_LINKS, MAX_FIELDS, MAX_NAME, MAX_REGEX = 2_000, 25, 60, 500
_CLASS = re.compile(r"[A-Za-z][A-Za-z_-]{0,40}")
_DIGITS = re.compile(r"[\d-]*\d[\d-]*", re.ASCII)
_SPECIAL = re.compile(r"([.^$*+?{}\[\]\\|()])")
_PLAIN = re.compile(r"[A-Za-z][\w ./-]{0,200}(?<! )")
_WORDS_OF_YAML = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n"))
_NEXT = re.compile(
    r"(next|next page|older|more|weiter|nächste|nächste seite|suivant|siguiente|следваща|"
    r"следваща страница|напред|>|»|›|→|next\s*[>»›→]+|следваща\s*[>»›→]+)",
    re.IGNORECASE,
)
_TURNS = re.compile(r"\d{1,5}|[<>«»‹›←→.…\s]+|prev|previous|предишна|назад|zurück", re.IGNORECASE)
"""Texts of links to other pages of a list, besides the next."""
_NUMBERED_PATH = re.compile(r"(/(?:p|page|pagina|seite|str|stranitsa)[-/_]?)(\d{1,5})/?")
_NUMBERED_PARAMETER = re.compile(r"p|pg|page|pagina|seite|str|pageno|page_?number|offset|start")
_BESIDE = frozenset(("nav", "header", "footer", "aside"))
_NO_ITEM = frozenset((
    "WebSite", "WebPage", "Organization", "BreadcrumbList", "SearchAction", "ImageObject",
    "SiteNavigationElement", "ItemList", "CollectionPage", "SearchResultsPage",
))  # fmt: skip
_CURRENCY = re.compile(r"[€$£¥]|\b(?:EUR|USD|GBP|BGN|CHF)\b|лв")
_AREA = re.compile(r"\d\s*(?:m²|m2|кв\.\s*м|sq\.?\s*ft|дка|acres?)", re.IGNORECASE)
_DATE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{2,4}|\w+ \d{1,2}, \d{4}|\d{1,2}\.? \w+ \d{4}")
_NUMBER = re.compile(r"[-+]?\d[\d\s.,']*")


_ANY_PAGE = {"title": {"css": "h1"}, "heading": {"css": "title"}}
"""Fields of a page with nothing else to read."""


class Draft(NamedTuple):
    """The file of a site as text, and what it finds on the page that it was drafted from."""

    name: str
    text: str
    items: int
    fields: dict[str, Any]
    lacks: list[str]
    """What was not found on the page, and what the reader can do about it."""


class _Link(NamedTuple):
    url: str
    css: str
    text: str


class _Group(NamedTuple):
    """Links of the same shape."""

    css: str
    regex: str
    urls: list[str]


_Fields = dict[str, dict[str, Any]]


def draft(page: Page) -> Draft:
    """Draft a file from a page; it is loaded, and keeps only fields that the page has."""
    budget = Budget()
    html = charset.utf8(page.body, page.header("content-type"), budget)
    tree = parse(html, budget)
    url = page.final_url or page.url
    group, pagination = _list(tree, url)
    data = structured.extract(parse(html, budget), url, budget)
    fields = _json_ld_fields(data) | _label_fields(data)
    is_item = len(fields) >= MIN_LABELS
    if is_item:
        group, pagination = None, {}
        fields = {"title": {"css": "h1"}} | fields
    elif group is None and not fields:
        fields = dict(_ANY_PAGE)
    name = re.sub(r"[^a-z0-9._-]", "-", host_of(url).removeprefix("www.")).strip(".-") or "site"

    def having(fields: _Fields) -> dict[str, Any]:
        """Return the values of those fields that the page has."""
        kind = _loaded(name, _text(url, group, pagination, fields)).kind_of(url)
        found = selectors.extract(tree, kind.fields, url, budget) if kind else {}
        return {key: found[key] for key in fields if found.get(key) not in (None, [])}

    first = having(fields)
    fields |= {key: _in_text(value) for key, value in fields.items() if key not in first}
    found = having(fields)
    kept = {key: value for key, value in fields.items() if key in found}
    text = _text(url, group, pagination, kept)
    site = _loaded(name, text)
    rules = links.LinkRules(site, Role.START)
    followed = links.in_html(tree, html, page, rules, budget).links
    items = sum(link.role is Role.LISTING for link in followed)
    lacks = _missing_list(is_item, group, pagination) + _missing_fields(group, kept)
    return Draft(name, text, items, found, lacks)


def _missing_list(is_item: bool, group: _Group | None, pagination: dict[str, Any]) -> list[str]:
    if is_item:
        return [
            "no list: draft from a list of items, too, and take its start, follow and pagination"
        ]
    if not group:
        return ["no list of links to items: add follow, or draft from a page with such a list"]
    if not pagination:
        return ["no link to the next page: if the list has more pages, add pagination"]
    return []


def _missing_fields(group: _Group | None, fields: _Fields) -> list[str]:
    if group and not fields:
        example = _comment(group.urls[0])
        return [f"no fields: draft from an item, such as {example}, and take its fields"]
    if set(fields) <= set(_ANY_PAGE):
        return ["no fields of labels or JSON-LD, which this page lacks: add fields"]
    return []


def _loaded(name: str, text: str) -> Site:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "sites" / f"{name}.yaml"
        path.parent.mkdir()
        path.write_text(text, encoding="utf-8")
        site = load(Path(folder)).named(name)
    assert site is not None
    return site


# Lists.


def _list(tree: LexborHTMLParser, url: str) -> tuple[_Group | None, dict[str, Any]]:
    """Return the largest group of links to items, and how the next page is found."""
    base, host = structured.base_of(tree, url), host_of(url)
    nodes = tree.css("a[href]")[:MAX_LINKS]
    hrefs = [(node, structured.absolute(base, node.attrs.get("href") or "")) for node in nodes]
    own = [(node, href) for node, href in hrefs if href and host_of(href) == host and href != url]
    pagination = _pagination(tree, url, own)
    found = [
        _Link(href, _selector(node), node.text(strip=True))
        for node, href in own
        if not _is_beside(node)
    ]
    groups: dict[tuple[Any, ...], dict[str, None]] = {}
    for link in found:
        if _NEXT.fullmatch(link.text) or _TURNS.fullmatch(link.text):
            continue
        parts = urlsplit(link.url)
        names = tuple(sorted(_parameters(parts.query)))
        groups.setdefault((link.css, parts.path.count("/"), names), {})[link.url] = None
    made = [_Group(key[0], _regex_of(list(urls)), list(urls)) for key, urls in groups.items()]
    large = [group for group in made if len(group.urls) >= MIN_ITEMS]
    best = max(large, key=_likelihood, default=None)
    return best, pagination


def _likelihood(group: _Group) -> int:
    """How likely links lead to items: many, and with numbers rather than words."""
    tails = (url.split("/", 3)[3] for url in group.urls)
    has_numbers = all(re.search(r"\d", tail) for tail in tails)
    return len(group.urls) * (3 if has_numbers else 1)


def _selector(node: LexborNode) -> str:
    if own := _class_of(node):
        return f"a.{own}"
    above = node.parent
    for _ in range(4):
        if above is None or above.tag in ("body", "html"):
            break
        if name := _class_of(above):
            return f"{above.tag}.{name} a"
        above = above.parent
    if node.parent and node.parent.tag:
        return f"{node.parent.tag} > a"
    return "a"


def _class_of(node: LexborNode) -> str:
    names = (node.attrs.get("class") or "").split()
    return next((name for name in names if _CLASS.fullmatch(name)), "")


def _is_beside(node: LexborNode) -> bool:
    above = node.parent
    while above is not None:
        if above.tag in _BESIDE:
            return True
        above = above.parent
    return False


def _regex_of(urls: list[str]) -> str:
    """Return what these URLs have in common, as a regular expression."""
    split = [urlsplit(url) for url in urls]
    columns = zip(*(parts.path.split("/") for parts in split), strict=True)
    path = "/".join(_segment(list(column)) for column in columns)
    queries = [_parameters(parts.query) for parts in split]
    varying = [
        name
        for name, value in queries[0].items()
        if any(query.get(name) != value for query in queries[1:])
    ]
    end = rf"\?(?:.*&)?{_escaped(varying[0])}=" if varying else "(?:$|\\?)"
    host = f"://{_escaped(split[0].netloc)}"
    if len(host + path + end) > MAX_REGEX:
        return f"{host}/"
    return host + path + end


def _parameters(query: str) -> dict[str, str]:
    """Return the parameters as they are written: regular expressions see them so."""
    pairs = (part.partition("=") for part in query.split("&") if part)
    return {name: value for name, _, value in pairs}


def _with_other_numbers(url: str) -> str:
    """Return the URL of another item: what has numbers in it differs as a whole."""
    parts = urlsplit(url)
    segments = [_with_other_number(segment) for segment in parts.path.split("/")]
    query = re.sub(r"\d+", r"\g<0>0", parts.query)
    return parts._replace(path="/".join(segments), query=query).geturl()


def _with_other_number(segment: str) -> str:
    if _DIGITS.fullmatch(segment):
        return f"9{segment}0"
    return "x0" if re.search(r"\d", segment) else segment


def _segment(texts: list[str]) -> str:
    if len(set(texts)) == 1:
        return _escaped(texts[0])
    if all(map(str.isdigit, texts)):
        return r"\d+"
    if all(map(_DIGITS.fullmatch, texts)):
        return r"[\d-]+"
    before = _common_start(texts).rstrip("0123456789")
    rest = [text[len(before) :] for text in texts]
    after = _common_start([text[::-1] for text in rest])[::-1].lstrip("0123456789")
    middles = [text[: len(text) - len(after)] for text in rest]
    middle = r"\d+" if all(map(str.isdigit, middles)) else "[^/?#]+"
    return _escaped(before) + middle + _escaped(after)


def _common_start(texts: list[str]) -> str:
    same = takewhile(lambda signs: len(set(signs)) == 1, zip(*texts, strict=False))
    return "".join(signs[0] for signs in same)


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


# The next page.


def _pagination(
    tree: LexborHTMLParser, url: str, own: Iterable[tuple[LexborNode, str]]
) -> dict[str, Any]:
    if tree.css_first("a[rel~=next]"):
        return {"next": "a[rel~=next]"}
    numbers: dict[str, set[int]] = {}
    for node, href in own:
        text = " ".join(node.text().split())
        if _NEXT.fullmatch(text):
            if name := _class_of(node):
                return {"next": f"a.{name}"}
            return {"next": f"a:contains({_quoted(text)})"}
        if text.isdigit():
            for key, number in _number_of(url, href):
                numbers.setdefault(key, set()).add(number)
    if not numbers:
        return {}
    key, found = max(numbers.items(), key=lambda each: len(each[1]))
    kind, _, name = key.partition(" ")
    return {kind: name} | _steps(sorted(found))


def _steps(numbers: list[int]) -> dict[str, int]:
    """Return the number of the second page and the step, where they are not the usual ones."""
    ahead = [number for number in numbers if number > 1] or [2]
    steps = [second - first for first, second in pairwise(ahead)]
    if not steps:
        steps = [ahead[0] if ahead[0] > 3 else 1]
    given, usual = {"first": ahead[0], "step": min(steps)}, {"first": 2, "step": 1}
    return {key: value for key, value in given.items() if value != usual[key]}


def _number_of(url: str, href: str) -> Iterator[tuple[str, int]]:
    """Yield how a URL differs from that of the page: by a parameter or by the end of its path."""
    here, there = urlsplit(url), urlsplit(href)
    if here.path == there.path:
        before = dict(parse_qsl(here.query))
        for name, value in parse_qsl(there.query):
            is_number = value.isdigit() and len(value) < 7 and before.get(name) != value
            if is_number and _NUMBERED_PARAMETER.fullmatch(name.lower()):
                yield f"parameter {name}", int(value)
        return
    rest = there.path.removeprefix(here.path.rstrip("/"))
    if match := _NUMBERED_PATH.fullmatch(rest):
        yield f"path {match[1]}{{n}}", int(match[2])


# Fields.


def _json_ld_fields(data: dict[str, Any]) -> _Fields:
    fields: _Fields = {}
    for item in _items(data.get("json_ld", [])):
        kind = item.get("@type")
        if not isinstance(kind, str) or kind in _NO_ITEM:
            continue
        for key, value in item.items():
            for path, inner in _flat(key, value):
                field: dict[str, Any] = {"json_ld": f"{kind}.{path}"}
                name = path
                if path == "offers":
                    name = field["type"] = "price"
                elif isinstance(inner, list):
                    field["all"] = True
                    if path == "image":
                        field["type"] = "url"
                _add(fields, name, field)
        break
    return fields


def _items(values: Iterable[Any]) -> Iterator[dict[str, Any]]:
    for value in values:
        if isinstance(value, dict):
            yield value
            if isinstance(value.get("@graph"), list):
                yield from (each for each in value["@graph"] if isinstance(each, dict))


def _flat(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the paths of a value that make a field, one level deep."""
    if key.startswith("@") or not re.fullmatch(r"\w+", key) or key in ("url", "mainEntityOfPage"):
        return
    if key == "offers":
        yield key, value
    elif isinstance(value, dict):
        for inner, part in value.items():
            if re.fullmatch(r"\w+", inner) and isinstance(part, str | int | float):
                yield f"{key}.{inner}", part
    elif isinstance(value, str | int | float) or _are_texts(value):
        yield key, value


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, str) for each in value)


def _label_fields(data: dict[str, Any]) -> _Fields:
    fields: _Fields = {}
    for label, value in data.get("fields", {}).items():
        text = value[0] if isinstance(value, list) else value
        if isinstance(text, str) and label.isprintable() and len(label) <= MAX_NAME:
            field = {"label": label}
            if kind := _type_of(text):
                field["type"] = kind
            _add(fields, label, field)
    return fields


def _in_text(field: dict[str, Any]) -> dict[str, Any]:
    """Return a field that finds a label in running text, such as `<li>Owner: Jane Roe</li>`."""
    label = field.get("label")
    if not label:
        return field
    rest = {key: value for key, value in field.items() if key != "label"}
    css = f":is(li, p, div, td, span):contains({_quoted(label)})"
    return {"css": css, "regex": rf"{_escaped(label)}\s*:\s*(.+)"} | rest


def _type_of(text: str) -> str:
    if _CURRENCY.search(text) and any(map(str.isdigit, text)):
        return "price"
    if _AREA.search(text):
        return "area"
    if _DATE.fullmatch(text):
        return "date"
    return "number" if _NUMBER.fullmatch(text) and not text.startswith("0") else ""


def _add(fields: _Fields, name: str, field: dict[str, Any]) -> None:
    name = re.sub(r"\W+", "_", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()).strip("_")
    name = name[:MAX_NAME]
    if name and name != "missing" and len(fields) < MAX_FIELDS:
        fields.setdefault(name, field)


# YAML.


def _text(url: str, group: _Group | None, pagination: dict[str, Any], fields: _Fields) -> str:
    lines = [f"hosts: [{_quoted(host_of(url))}]", f"start: [{_quoted(url)}]"]
    regex = group.regex if group else _regex_of([url, _with_other_numbers(url)])
    if group:
        lines += [
            "follow:",
            f"  - css: {_scalar(group.css)}",
            f"    regex: {_scalar(group.regex)}",
            "    role: listing",
        ]
    if pagination:
        lines += ["pagination:"] + [
            f"  {key}: {_scalar(value)}" for key, value in pagination.items()
        ]
    lines += ["pages:", f"  - regex: {_scalar(regex)}", "    role: listing"]
    if fields:
        lines.append("    fields:")
        for name, field in fields.items():
            inner = ", ".join(f"{key}: {_scalar(value)}" for key, value in field.items())
            lines.append(f"      {_scalar(name)}: {{{inner}}}")
    elif group:
        lines.append("    # Without fields a record has what is read from any page.")
        lines.append(f"    # For fields, draft from an item, such as {_comment(group.urls[0])}")
    return "\n".join(lines) + "\n"


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS_OF_YAML:
        return text
    return _quoted(text)


def _quoted(text: str) -> str:
    """Write a text in quotes; what JSON escapes, YAML reads alike."""
    text = msgspec.json.encode(text.encode("utf-8", "replace").decode()).decode()
    return "".join(sign if sign.isprintable() else f"\\U{ord(sign):08X}" for sign in text)


def _comment(text: str) -> str:
    return "".join(sign for sign in text if sign.isprintable())
