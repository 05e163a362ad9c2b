"""Parses a page, unless no parser should see it: nested, attributed or formatted beyond reason."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice

from selectolax.lexbor import LexborDocumentOptions, LexborHTMLParser

from crawler.errors import FetchError

MAX_DEPTH, MAX_ATTRIBUTES, MAX_ROOTS, MAX_TAGS = 4_000, 1_000, 20, 500_000
MAX_STEPS = 200_000_000
"""Looks at open elements and attributes that the parser may need, some 3 to 10 ns each."""
MAX_REPEATED = 2_000_000
"""Elements that the parser may add on its own, some 300 bytes each."""
FEW = math.isqrt(4 * MAX_REPEATED)
"""Start tags that cannot do so: whatever number of them is formatting, the others are the blocks that can repeat it."""
SMALL = 64_000
"""Bytes in which there is no room for so many attributes that the parser would be busy for long: half a second."""
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
_FORMATTING = rb"(?:b(?:ig)?|code|em|font|[iu]|nobr|s(?:mall|trike|trong)?|tt)(?=[ \t\n\r\f/>])"
_FORMATTING_STARTS = re.compile(b"<" + _FORMATTING)
_FORMATTING_TAGS = re.compile(b"<(/?)(" + _FORMATTING + rf")((?:{_ATTRIBUTE})*+)".encode(), re.I)
_RAW_ENDS = {
    name: re.compile(rb"</" + name + rb"(?=[ \t\n\r\f/>])", re.I)
    for name in (b"iframe", b"noembed", b"noframes", b"script", b"style", b"textarea", b"title", b"xmp")
}


def parse(html: str) -> LexborHTMLParser:
    """The tree of a page; `FetchError` for one that would keep the parser busy for minutes, or fill the memory.

    Lexbor looks through all open elements at nearly every tag, compares every attribute of a tag with all before it,
    and opens formatting that was left open (`<p><font>…</p>`) again in every block: time and memory grow with the
    square of the page's size. An ordinary page is too small for any of that, which is seen by counting.
    """
    page = (html.replace("\0", "") if "\0" in html else html).encode("utf-8", "replace")
    tags = page.count(b"<")
    if tags > MAX_TAGS:
        raise _too_deep(f"it has {tags:,} tags")
    if len(page) > SMALL:
        _check_attributes(page)
    if tags <= FEW:
        return _tree(page)
    starts = tags - page.count(b"</")
    if starts > FEW:
        _check_formatting(page, starts)
    if starts > MAX_DEPTH or starts * tags > MAX_STEPS:
        return _parse_deep(page, tags, starts)
    return _tree(page)


def _tree(page: bytes) -> LexborHTMLParser:
    # With mutation events, lexbor is quadratic in the options of a <select>.
    return LexborHTMLParser(page, options=LexborDocumentOptions.WO_EVENTS)


def _too_deep(what: str) -> FetchError:
    return FetchError("too_deep", f"The page is not parsed, because {what}; another try would not help.")


def _check_attributes(page: bytes) -> None:
    folded = page.lower()
    roots = folded.count(b"<html") + folded.count(b"<body")
    if roots <= MAX_ROOTS and not _MANY_ATTRIBUTES.search(folded):
        return
    collected = steps = 0
    for name, attributes in _start_tags(page):
        number = len(_ATTRIBUTES.findall(attributes))
        if name in (b"body", b"html"):
            # Those of a second <body> are added to the first.
            number = collected = collected + number
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


def _check_formatting(page: bytes, starts: int) -> None:
    number = len(_FORMATTING_STARTS.findall(page.lower()))
    if starts * number > MAX_REPEATED and starts * _left_open(page) > MAX_REPEATED:
        raise _too_deep("its formatting would be repeated too often")


def _left_open(page: bytes) -> int:
    """How many formatting elements are open at once at most; of more than three alike, three count."""
    opened: defaultdict[bytes, list[bytes]] = defaultdict(list)
    alike: Counter[bytes] = Counter()
    number = most = 0
    for slash, tag, attributes in _FORMATTING_TAGS.findall(page):
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


def _parse_deep(page: bytes, tags: int, starts: int) -> LexborHTMLParser:
    """The tree of a page that may be nested beyond reason; `FetchError` where it is.

    Few tags are parsed at once: however they are nested, that cannot take long. Of many, ever longer beginnings are
    parsed: each adds too little to what is known to take long.
    """
    limit = min(MAX_DEPTH, MAX_STEPS // tags)
    few = tags * tags <= MAX_STEPS
    places = [] if few else [match.start() for match in re.finditer(b"<", page)]
    for end in (*places[STRIDE::STRIDE], len(page)):
        tree = _tree(page[:end])
        depth = _depth(tree, limit, starts if few else None)
        if depth > limit:
            raise _too_deep(f"its {tags:,} tags are nested {depth:,} deep")
    return tree


def _depth(tree: LexborHTMLParser, limit: int, elements: int | None) -> int:
    """How deep the page's elements are nested, give or take a few.

    It looks no further where that is beyond the limit, or where of so many elements too few are left to get there.
    """
    tops = [tree.root] if tree.root else []
    deepest = 0
    for top in tops:
        for seen, node in enumerate(islice(top.traverse(), 0, None, SAMPLE)):
            depth, parent = 0, node.parent
            while parent:
                depth, parent = depth + 1, parent.parent
            deepest = max(deepest, depth)
            if deepest > limit or (elements and deepest + elements - seen * SAMPLE <= limit):
                return deepest
        # What is in a <template> is no part of the tree around it.
        tops.extend(top.template_fragments())
    return deepest
