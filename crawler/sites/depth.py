"""Recognises a page that no parser should see: nested, attributed or formatted beyond reason."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice

from selectolax.lexbor import LexborDocumentOptions, LexborHTMLParser, LexborNode

from crawler.errors import FetchError

MAX_DEPTH, MAX_ATTRIBUTES, MAX_ROOTS, MAX_TAGS = 2_000, 1_000, 20, 500_000
MAX_STEPS = 200_000_000
"""Looks at open elements and attributes that the parser may need, some 3 to 10 ns each."""
MAX_REPEATED = 2_000_000
"""Elements that the parser may add on its own, some 300 bytes each."""
STRIDE, SAMPLE = 10_000, 100

_SPACE = r" \t\n\r\f"
_ATTRIBUTE = (
    rf"[{_SPACE}/]*+[^{_SPACE}/>][^{_SPACE}/>=]*+"
    rf"""(?:[{_SPACE}]*+=[{_SPACE}]*+(?:"[^"]*+"|'[^']*+'|[^{_SPACE}>"'][^{_SPACE}>]*+)?+)?+"""
)
_ATTRIBUTES = re.compile(_ATTRIBUTE.encode())
_TAG = rf"<(/?)([a-z][^{_SPACE}/>]*+)((?:{_ATTRIBUTE})*+)[{_SPACE}/]*+(?:>|\Z)"
_TOKENS = re.compile(rf"{_TAG}|<!--(?:-?>|.*?(?:--!?>|\Z))|<[!?/][^>]*+>?".encode(), re.DOTALL | re.I)
_MANY_ATTRIBUTES = re.compile(rf"<[a-z][^{_SPACE}/>]*+[{_SPACE}/](?:{_ATTRIBUTE}){{64}}".encode())
_REPEATABLE = rb"(?:b(?:ig|ody)?|code|em|font|html|[iu]|nobr|s(?:mall|trike|trong)?|tt)(?=[ \t\n\r\f/>])"
_REPEATABLE_STARTS = re.compile(b"<" + _REPEATABLE)
_REPEATABLE_TAGS = re.compile(b"<(/?)(" + _REPEATABLE + rf")((?:{_ATTRIBUTE})*+)".encode(), re.I)
_RAW_ENDS = {
    name: re.compile(rb"</" + name + rb"(?=[ \t\n\r\f/>])", re.I)
    for name in (b"iframe", b"noembed", b"noframes", b"script", b"style", b"textarea", b"title", b"xmp")
}


def check_depth(html: str | bytes) -> None:
    """Raise `FetchError` for a page that would keep the parser busy for minutes, or fill the memory.

    Lexbor looks through all open elements at nearly every tag, compares every attribute of a tag with all before it,
    and opens formatting that was left open (`<p><font>…</p>`) again in every block: time and memory grow with the
    square of the page's size.
    """
    page = html.encode("utf-8", "replace") if isinstance(html, str) else html
    folded = page.lower()
    tags = folded.count(b"<")
    if tags > MAX_TAGS:
        raise _too_deep(f"it has {tags:,} tags")
    starts = tags - folded.count(b"</")
    repeatable = _REPEATABLE_STARTS.findall(folded)
    roots = repeatable.count(b"<html") + repeatable.count(b"<body")
    if roots > MAX_ROOTS or _MANY_ATTRIBUTES.search(folded):
        _check_attributes(page)
    if starts * len(repeatable) > MAX_REPEATED and starts * _left_open(page) > MAX_REPEATED:
        raise _too_deep("its formatting would be repeated too often")
    if starts > MAX_DEPTH or starts * tags > MAX_STEPS:
        _check_nesting(page, tags)


def _too_deep(what: str) -> FetchError:
    return FetchError("too_deep", f"The page is not parsed, because {what}; another try would not help.")


def _check_attributes(page: bytes) -> None:
    roots = steps = 0
    for name, attributes in _start_tags(page):
        number = len(_ATTRIBUTES.findall(attributes))
        if name in (b"body", b"html"):
            # Those of a second <body> are added to the first.
            number = roots = roots + number
        steps += number * number
        if number > MAX_ATTRIBUTES or steps > MAX_STEPS:
            raise _too_deep(f"a <{name[:20].decode('latin-1')}> has {number:,} attributes")


def _start_tags(page: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The start tags outside comments, scripts and the like."""
    begin = foreign = 0
    while begin >= 0:
        tokens = _TOKENS.finditer(page, begin)
        begin = -1
        for token in tokens:
            slash, name, attributes = token.groups()
            name = (name or b"").lower()
            if name in (b"svg", b"math") and not token[0].endswith(b"/>"):
                foreign = max(0, foreign - 1) if slash else foreign + 1
            if name and not slash:
                yield name, attributes
                # Inside <svg>, <style> and <title> hold markup.
                if name in _RAW_ENDS and not foreign:
                    end = _RAW_ENDS[name].search(page, token.end())
                    begin = end.start() if end else -1
                    break


def _left_open(page: bytes) -> int:
    """How many formatting elements are open at once at most; of more than three alike, three count."""
    opened: defaultdict[bytes, list[bytes]] = defaultdict(list)
    alike: Counter[bytes] = Counter()
    number = most = 0
    for slash, tag, attributes in _REPEATABLE_TAGS.findall(page):
        name = tag.lower()
        if not slash:
            opened[name].append(attributes)
            alike[name + attributes] += 1
            number += alike[name + attributes] <= 3
            most = max(most, number)
        elif opened[name]:
            markup = name + opened[name].pop()
            number -= alike[markup] <= 3
            alike[markup] -= 1
    return most


def _check_nesting(page: bytes, tags: int) -> None:
    """Parse ever longer beginnings of the page: each adds too little to what is known to take long."""
    places = [match.start() for match in re.finditer(b"<", page)]
    for end in (*places[STRIDE::STRIDE], len(page)):
        depth = _depth(page[:end])
        if depth > MAX_DEPTH or depth * tags > MAX_STEPS:
            raise _too_deep(f"its {tags:,} tags are nested {depth:,} deep")


def _depth(page: bytes) -> int:
    """How deep the page's elements are nested, give or take a few; beyond the limit it does not look further."""
    tree = LexborHTMLParser(page, options=LexborDocumentOptions.WO_EVENTS)
    tops = [tree.root] if tree.root else []
    depth = 0
    for top in tops:
        # What is in a <template> is no part of the tree around it.
        tops.extend(top.template_fragments())
        for node in islice(top.traverse(), 0, None, SAMPLE):
            depth = max(depth, _height(node))
            if depth > MAX_DEPTH:
                return depth
    return depth


def _height(node: LexborNode) -> int:
    height = 0
    parent = node.parent
    while parent:
        height += 1
        parent = parent.parent
    return height
