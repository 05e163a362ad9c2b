"""Parses a page, unless no parser should see it: nested, attributed or formatted beyond reason."""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice

from selectolax.lexbor import LexborDocumentOptions, LexborHTMLParser, LexborNode, SelectolaxError

from crawler.errors import FetchError
from crawler.fetch.budget import Budget

MAX_TAGS, MAX_DEPTH, MAX_ATTRIBUTES, MAX_ROOTS = 360_000, 4_000, 1_000, 20
MAX_STEPS = 200_000_000
"""Looks at open elements and attributes that the parser may need, some 3 to 10 ns each."""
FIRST_STEPS = 20_000_000
"""The same for the first part of a page that may be too much; each that follows may need as many more."""
MAX_NAMES = 20_000
"""Different names of tags, and of attributes: the parser finds one by looking at a part of all others."""
MAX_SEPARATORS = 60_000
"""Places where an attribute may begin, in pages whose names need no counting: that is a second at most."""
MAX_TREE = 56_000_000
"""Bytes of a tree, by what its parts were measured to take; those of an element include a place in one list."""
ELEMENT, TEXT, ATTRIBUTE, MISPLACED, ERROR, WIDE = 164, 136, 230, 140, 18, 5
MAX_COPIES, FIRST_BEGINNING = 20_000_000, 16_000
"""Bytes of texts that the parser may copy, and of the page of which it is tried first how many they are."""
MAX_ERRORS = 400_000
"""Signs that may be errors, of which the parser keeps a list, and that weigh nothing in ordinary pages."""
MAX_RUN = 520_000
"""Characters of one text that are kept: nothing that is read is longer, but it may be read by all around it."""
TINY = 1_500_000
"""Bytes times tags of a page that can be nothing of the kind: its attributes repeated by its tags are not many."""
SMALL = 64_000
"""Bytes in which there is no room for so many attributes that the parser would be busy for long: half a second."""
BLOCK, SAMPLE = 200, 100
"""Tags that are counted together, and elements of which one is looked at."""
PART = 500_000
MAX_PARSED, MAX_HEIGHT = 50, 20
"""Steps in which a page may be parsed, and elements inside elements that are counted as closed."""

_SPACE = r" \t\n\r\f"
_SEPARATORS = b" \t\n\r\f/\"'"
_ERRORS = b"=\"'`/&<"
_ATTRIBUTE = (
    rf"[{_SPACE}/]*+[^{_SPACE}/>][^{_SPACE}/>=]*+"
    rf"""(?:[{_SPACE}]*+=[{_SPACE}]*+(?:"[^"]*+"|'[^']*+'|[^{_SPACE}>"'][^{_SPACE}>]*+)?+)?+"""
)
_ATTRIBUTE_NAMES = re.compile(_ATTRIBUTE.replace("[^", "([^", 1).replace("=]*+", "=]*+)", 1).encode())
_TAG = re.compile(rf"</?+([^{_SPACE}/><]*+)(?=[{_SPACE}/])((?:{_ATTRIBUTE})++)".encode())
"""A tag with attributes; one with a bracket in its name is found from the last of them on."""
_TAG_NAMES = re.compile(rf"<([a-z][^{_SPACE}/>]*+)".encode(), re.I)
_MANY_ATTRIBUTES = re.compile(rf"<[^{_SPACE}/><]*+[{_SPACE}/](?:{_ATTRIBUTE}){{64}}".encode())
_ROOTS = re.compile(rb"<(?:html|body)", re.I)
_IN_TAGS = re.compile(rb"""(?:\A|[<"'])[^>]*+""")
"""All that may be inside a tag: behind a `>` in an attribute's value there must be a quote first, and a part of a page
may begin in one."""
_PLAIN_ATTRIBUTES = (
    rf"(?:[{_SPACE}/]++[^{_SPACE}/=\"'<>]++"
    rf"(?:[{_SPACE}]*+=[{_SPACE}]*+(?:\"[^\"<>]*+\"|'[^'<>]*+'|[^{_SPACE}=\"'<>]++))?+)*+[{_SPACE}/]*+"
)
_WHOLE = re.compile(f"[a-z]+{_PLAIN_ATTRIBUTES}".encode(), re.I)
"""A tag that ends at its first bracket."""
_CLOSED = re.compile(
    rf"<([a-z][a-z0-9]*+){_PLAIN_ATTRIBUTES}>[^<]*+(?:<>[^<]*+)*+</\1[{_SPACE}]*+>"
    rf"|<(p|li|tr|option){_PLAIN_ATTRIBUTES}>[^<]*+(?:<>[^<]*+)*+(?=<\2[{_SPACE}/>])"
    rf"|<t[dh]{_PLAIN_ATTRIBUTES}>[^<]*+(?:<>[^<]*+)*+(?=<t[dhr][{_SPACE}/>])"
    rf"|<d[dt]{_PLAIN_ATTRIBUTES}>[^<]*+(?:<>[^<]*+)*+(?=<d[dt][{_SPACE}/>])"
    rf"|<(?:[bh]r|embed|img|meta){_PLAIN_ATTRIBUTES}>|<!--[^<>-]*+-->".encode(),
    re.I,
)
"""An element that its end tag or the next of its kind closes, with nothing in it but text and what was closed before,
and those without contents."""
_FORMATTING = re.compile(
    rb"<((?:b(?:ig)?|code|em|font|[iu]|nobr|s(?:mall|trike|trong)?|tt)(?=[ \t\n\r\f/>])[^<>]*+)(>?)", re.I
)
_DROPPED = re.compile(
    rf"<(?:/[a-z][^{_SPACE}/>]*+|caption|col(?:group)?|form|frame(?:set)?|head|image|t(?:body|[dhr]|foot|head))"
    rf"[{_SPACE}/]++[^{_SPACE}/>]".encode(),
    re.I,
)
"""A tag with attributes that the parser drops where it has no place: the texts around it become one, by copying."""
_DROPPED_NAMES = frozenset(
    (
        *("caption", "col", "colgroup", "form", "frame", "frameset", "head", "image"),
        *("tbody", "td", "tfoot", "th", "thead", "tr"),
    )
)
_MOVED = re.compile(
    rf"<(?:table|/?(?:col(?:group)?|t(?:body|foot|head|r))|/(?:caption|t[dh]))(?=[{_SPACE}/>])[^<>]*+>"
    rf"[{_SPACE}]*+[^{_SPACE}<]".encode(),
    re.I,
)
"""Words between rows or cells: they become one text in front of the table."""
_ANY_TAG = re.compile(rb"<[a-z/!?][^<>]*+>", re.I)
_STRAY = re.compile(rb"<(?![a-z/!?])", re.I)
"""A bracket that is text."""
_VALUES = re.compile(rb"""=(?:"[^"]{%d,}+|'[^']{%d,}+)""" % (MAX_RUN, MAX_RUN))
_COMMENTS = re.compile(rb"<[!?/][^>]{%d,}+" % MAX_RUN)
_RAW = re.compile(
    rb"<(!--|!\[cdata\[|iframe|no(?:embed|frames|script)|plaintext|script|style|textarea|title|xmp)", re.I
)
_RAW_ENDS = {b"!--": b"-->", b"![cdata[": b"]]>"}
"""What holds text with brackets; for others than these it ends with the end tag."""
_WIDE = re.compile(rb"[\xf0-\xf4]")
_FORMATS = frozenset(b"b big code em font i nobr s small strike strong tt u".split())
_STYLED = re.compile(rb"<([bcefinstuBCEFINSTU][a-zA-Z]{0,5}+)[ \t\n\r\f/]")
BARE = 3 * len(_FORMATS) * ELEMENT
_BLOCK = re.compile(rb"(?:[^<]*+<){%d}" % (BLOCK + 1))


def parse(html: str | bytes, budget: Budget | None = None) -> LexborHTMLParser:
    """The tree of a page, given as text or in UTF-8; `FetchError` for one that takes the parser minutes, or the memory.

    Lexbor looks through all open elements at nearly every tag, compares every attribute of a tag with all before it
    and every new name with others, and opens formatting that was left open (`<p><font>…</p>`) again in every block:
    time and memory grow with the square of the page's size. An ordinary page is too small for any of that, which is
    seen by counting. No count relies on where tags begin for the parser: what it takes for a comment or a script,
    and when it closes an element, is known to nobody else.
    """
    page = html if isinstance(html, bytes) else html.encode("utf-8", "replace")
    if b"\0" in page:
        page = page.replace(b"\0", b"")
    tags = page.count(b"<")
    if tags > MAX_TAGS:
        raise _too_deep(f"it has {tags:,} tags")
    if tags * len(page) <= TINY and len(page) <= SMALL:
        return _tree(page)
    budget = budget or Budget()
    large = len(page) > MAX_RUN
    if large:
        page = _without_long_runs(page)
        budget.look()
    if not _has_little_to_copy(page):
        _check_copies(page, budget)
    tree = _parse(page, tags, _extra(page, budget), budget)
    if large:
        budget.look()
        _cut_texts(tree, budget)
    return tree


def _parse(page: bytes, tags: int, extra: int, budget: Budget) -> LexborHTMLParser:
    starts = _starts(page)
    _check_names(page, starts, budget)
    budget.look()
    attributes = _attributes(page, budget) if len(page) > SMALL else len(page) // 2
    budget.look()
    formats = _formats(page, budget) if starts > MAX_DEPTH or _has_styled(page) else BARE
    weight = extra + _weight(len(page), tags, starts, attributes, formats)
    if weight <= MAX_TREE and starts <= MAX_DEPTH and starts * tags <= MAX_STEPS:
        return _tree(page)
    budget.look()
    if weight <= MAX_TREE and tags * tags <= MAX_STEPS:  # however they are nested, that cannot take long
        tree = _tree(page)
        budget.look()
        _check_depth(tree, MAX_DEPTH, tags, budget)
        return tree
    left = _left_open(page, budget)
    formats = _formats(left, budget)
    weight = extra + _weight(len(page), tags, starts, attributes, formats) + _misplaced(left)
    if weight <= MAX_TREE and 2 * _starts(left) <= min(MAX_DEPTH, MAX_STEPS // max(1, tags)):
        return _tree(page)
    return _parse_in_steps(page, tags, formats, extra, budget)


def _has_little_to_copy(page: bytes) -> bool:
    """Whether no page with such tags and so much text takes much memory for texts that become one."""
    dropped = _joints(page)
    if dropped * len(page) <= 2 * MAX_COPIES:
        return True
    return dropped * len(_ANY_TAG.sub(b"", page)) <= 2 * MAX_COPIES


def _joints(page: bytes) -> int:
    """At how many places two texts may become one."""
    return len(_DROPPED.findall(page)) + len(_MOVED.findall(page))


def _check_copies(page: bytes, budget: Budget) -> None:
    """Refuse a page whose texts become one around tags that are dropped: each time all of it is copied, and kept.

    Ever longer beginnings are parsed, and what was copied is reckoned: twice as much of a page copies four times that.
    """
    size = FIRST_BEGINNING
    while size < len(page):
        beginning = page[:size]
        budget.look()
        tree = _tree(beginning)
        budget.look()
        dropped, longest = _joints(beginning), 0
        for top in _tops(tree):
            for node in top.traverse(include_text=True):
                budget.check()
                if node.is_text_node:
                    longest = max(longest, len(node.text_content or ""))
                elif node.tag in _DROPPED_NAMES:
                    dropped -= 1
        del tree
        copied = max(0, dropped) * longest // 2
        if copied > MAX_COPIES // 4:
            raise _too_deep(f"it has {dropped:,} tags in places where they have no meaning")
        size *= 2


def _tree(page: bytes) -> LexborHTMLParser:
    # With mutation events, lexbor is quadratic in the options of a <select>.
    try:
        return LexborHTMLParser(page, options=LexborDocumentOptions.WO_EVENTS)
    except SelectolaxError:  # it takes any bytes: nothing but memory can be wanting
        raise MemoryError from None


def _too_deep(what: str) -> FetchError:
    return FetchError("too_deep", f"The page is not parsed, because {what}; another try would not help.")


def _weight(size: int, tags: int, starts: int, attributes: int, formats: int) -> int:
    """The bytes that a tree of these may take; text that grows is copied."""
    return size * 3 // 2 + starts * (ELEMENT + formats) + tags * TEXT + attributes * ATTRIBUTE


def _extra(page: bytes, budget: Budget) -> int:
    """The bytes for errors, and for the longest text or value where it takes four for each character."""
    errors = len(page) - len(page.translate(None, _ERRORS)) - MAX_ERRORS if len(page) > MAX_ERRORS else 0
    longest = 0
    if len(page) > MAX_RUN and _WIDE.search(page):
        texts, names = _long_runs(_STRAY.sub(b" ", page), b"<"), _long_runs(page, b" \t\n\r\f>")
        others = (match.span() for pattern in (_VALUES, _COMMENTS) for match in pattern.finditer(page))
        for begin, end in chain(texts, names, others, _raw_texts(page)):  # all that is decoded as a whole
            budget.check()
            longest = max(longest, end - begin)
    return max(0, errors) * ERROR + WIDE * longest


def _without_long_runs(page: bytes) -> bytes:
    """The page without what nobody reads of a text, value or comment; no part of markup begins or ends in that."""
    parts, begun = [], 0
    for begin, end in _long_runs(page, b"<>\"'"):
        cut = begin + MAX_RUN
        while cut < end and page[cut] & 0xC0 == 0x80:  # not inside a character
            cut += 1
        parts.append(page[begun:cut])
        begun = end
    return b"".join([*parts, page[begun:]]) if parts else page


def _long_runs(page: bytes, signs: bytes) -> Iterator[tuple[int, int]]:
    """Where none of these signs comes for too long: such a run fills at least one of the blocks that are searched."""
    ends, block = re.compile(b"[%b]" % signs), MAX_RUN // 2
    at = 0
    while at + block <= len(page):
        if ends.search(page, at, at + block):
            at += block
            continue
        begin = max(page.rfind(sign, max(0, at - block), at) for sign in signs) + 1 if at else 0
        found = ends.search(page, at + block)
        end = found.start() if found else len(page)
        if end - begin > MAX_RUN:
            yield begin, end
        at = end - end % block + block


def _raw_texts(page: bytes) -> Iterator[tuple[int, int]]:
    """Comments, scripts and their like, wherever one may begin."""
    ends: dict[bytes, int] = {}
    for match in _RAW.finditer(page):
        name, begin = match[1].lower(), match.start()
        if ends.get(name, 0) <= begin:
            found = re.compile(re.escape(_RAW_ENDS.get(name, b"</" + name)), re.I).search(page, begin)
            ends[name] = found.start() if found else len(page)
            yield begin, ends[name]


def _cut_texts(tree: LexborHTMLParser, budget: Budget) -> None:
    """Cut every text that is too long, wherever its parts were: the parser joins what stands around tags it ignores."""
    long: list[LexborNode] = []
    for node in tree.root.traverse(include_text=True) if tree.root else ():
        budget.check()
        if node.is_text_node and len(node.text_content or "") > MAX_RUN:
            budget.look()
            long.append(node)
    for node in long:
        budget.look()
        node.replace_with((node.text_content or "")[:MAX_RUN])


def _parts(page: bytes, budget: Budget) -> Iterator[bytes]:
    """The page in parts, so that what is found in it need not be in memory all at once.

    They begin with a tag, unless none comes for too long: then what was cut counts as left open.
    """
    begin = 0
    while begin < len(page):
        budget.look()
        end = page.find(b"<", begin + PART, begin + 2 * PART)
        end = min(begin + 2 * PART, len(page)) if end < 0 else end
        yield page[begin:end] if begin or end < len(page) else page
        begin = end


def _separators(page: bytes) -> int:
    return len(page) - len(page.translate(None, _SEPARATORS))


def _attributes(page: bytes, budget: Budget) -> int:
    """How many attributes there are at most; `FetchError` where one tag has too many, or they too many names."""
    number = _separators(page)
    if number > MAX_SEPARATORS:
        number = sum(_separators(b"".join(_IN_TAGS.findall(part))) for part in _parts(page, budget))
    few = number <= MAX_SEPARATORS and not _MANY_ATTRIBUTES.search(page)
    if few and len(_ROOTS.findall(page)) <= MAX_ROOTS:
        return number
    names: set[bytes] = set()
    total = steps = collected = 0
    for tag, attributes in _tags(page):
        budget.check()
        matches = islice(_ATTRIBUTE_NAMES.finditer(attributes), MAX_ATTRIBUTES + 1)
        found = [match[1] for match in matches]
        names.update(found)
        number = len(found)
        total += number
        if tag.lower() in (b"body", b"html"):
            # Those of a second <body> are added to the first.
            number = collected = collected + number
        steps += number * number
        if number > MAX_ATTRIBUTES or steps > MAX_STEPS:
            raise _too_deep(f"a <{tag[:20].decode('latin-1')}> has more than {MAX_ATTRIBUTES:,} attributes")
        if len(names) > MAX_NAMES:
            raise _too_deep(f"its attributes have more than {MAX_NAMES:,} names")
    return total


def _tags(page: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Every tag with attributes wherever it may begin, also inside another: one of the two is none, but which?"""
    left = 4 * len(page)
    for match in _TAG.finditer(page):
        yield match[1], match[2]
        at = page.find(b"<", match.start() + 1, match.end())
        while at >= 0:
            inner = _TAG.match(page, at)
            if inner:
                left -= inner.end() - at
                if left < 0:
                    raise _too_deep("its tags lie inside each other")
                yield inner[1], inner[2]
            at = page.find(b"<", at + 1, match.end())


def _check_names(page: bytes, starts: int, budget: Budget) -> None:
    names: set[bytes] = set()
    for part in _parts(page, budget) if starts > MAX_NAMES else ():
        names.update(_TAG_NAMES.findall(part))
        if len(names) > MAX_NAMES:
            raise _too_deep(f"its tags have more than {MAX_NAMES:,} names")


def _starts(page: bytes) -> int:
    return page.count(b"<") - page.count(b"</") - page.count(b"<>")


def _left_open(page: bytes, budget: Budget) -> bytes:
    """The page with `<>` for every element that is surely closed, up to some height."""
    for _ in range(MAX_HEIGHT):
        page, number = _without_closed(page, budget)
        if not number:
            break
    return page


def _without_closed(page: bytes, budget: Budget) -> tuple[bytes, int]:
    """The same for those with nothing open inside; an element that two parts share stays as it is."""
    if len(page) <= PART:
        return _CLOSED.subn(b"<>", page)
    parts, total = [], 0
    for part in _parts(page, budget):
        left, number = _CLOSED.subn(b"<>", part)
        parts.append(left)
        total += number
    return b"".join(parts), total


def _misplaced(left: bytes) -> int:
    """The bytes of the errors that the parser notes for tags which may be out of place."""
    return MISPLACED * (left.count(b"<") - left.count(b"<>"))


def _has_styled(page: bytes) -> bool:
    """Whether there is formatting with attributes; of that without them, few elements are left open."""
    return any(name.lower() in _FORMATS for name in {*_STYLED.findall(page)})


def _formats(page: bytes, budget: Budget) -> int:
    """The bytes of all formatting that may be left open, and opened again by each start tag; three alike count."""
    weight = 0
    found: Counter[tuple[bytes, bytes]] = Counter()
    for part in _parts(page, budget):
        found.update(_FORMATTING.findall(part))
    for (tag, end), number in found.items():
        budget.check()
        alike = min(3, number) if end and _WHOLE.fullmatch(tag) else number
        weight += alike * (ELEMENT + ATTRIBUTE * _separators(tag) + len(tag))
    return weight


def _parse_in_steps(page: bytes, tags: int, formats: int, extra: int, budget: Budget) -> LexborHTMLParser:
    """The tree of a page that may be too much; `FetchError` where it is.

    Ever longer beginnings are parsed: each adds too little to what was measured to take long, or much memory.
    """
    limit = min(MAX_DEPTH, MAX_STEPS // max(1, tags))
    weight, end = extra, 0
    for number in range(1, MAX_PARSED):
        budget.look()
        begin = end
        steps = min(MAX_STEPS, number * FIRST_STEPS)
        end, misplaced = _step(page, end, formats, MAX_TREE - weight, steps, budget)
        if begin == end < len(page):
            break
        extra += misplaced
        budget.look()
        tree = _tree(page[:end] if end < len(page) else page)
        budget.look()
        _check_depth(tree, limit, tags, budget)
        weight = extra + _measured(tree, end, budget) + end  # the beginning is a copy
        if weight > MAX_TREE:
            break
        if end == len(page):
            return tree
        del tree
    raise _too_deep(f"its {tags:,} tags would take more than {MAX_TREE // 1_000_000} MB")


def _step(page: bytes, begin: int, formats: int, room: int, steps: int, budget: Budget) -> tuple[int, int]:
    """How far a page can be parsed when it was parsed so far, and so much room is left; what errors take of it."""
    end, nested, tags, misplaced = begin, 0, 0, 0
    while end < len(page):
        budget.look()
        match = _BLOCK.match(page, end)
        after = match.end() - 1 if match else len(page)
        block = page[end:after]
        starts = _starts(block)
        tags += BLOCK
        left = _left_open(block, budget)
        nested += _starts(left)
        attributes = sum(len(_ATTRIBUTE_NAMES.findall(found)) for _, found in _tags(block))
        room -= _weight(len(block), BLOCK, starts, attributes, formats) + _misplaced(left)
        if room < 0 or 2 * nested * tags > steps:
            break
        end = after
        misplaced += _misplaced(left)
    return end, misplaced


def _check_depth(tree: LexborHTMLParser, limit: int, tags: int, budget: Budget) -> None:
    """Refuse a tree that is nested deeper, give or take a few."""
    depth = 0
    for top in _tops(tree):
        # What is in a <template> is no part of the tree around it; one may lie in the other.
        before, depth = depth, depth + 1
        for node in islice(top.traverse(), 0, None, SAMPLE):
            budget.check()
            around, parent = 0, node.parent
            while parent:
                around, parent = around + 1, parent.parent
            depth = max(depth, before + around + 1)
            if depth > limit:
                raise _too_deep(f"its {tags:,} tags are nested {depth:,} deep")


def _measured(tree: LexborHTMLParser, size: int, budget: Budget) -> int:
    """What a tree weighs."""
    weight = size * 3 // 2
    for top in _tops(tree):
        for node in top.traverse(include_text=True):
            budget.check()
            weight += TEXT if node.is_text_node else ELEMENT + ATTRIBUTE * len(node.attributes)
    return weight


def _tops(tree: LexborHTMLParser) -> Iterator[LexborNode]:
    """The root, and what each <template> holds."""
    tops = [tree.root] if tree.root else []
    for top in tops:
        yield top
        tops.extend(top.template_fragments())
