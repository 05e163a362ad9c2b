"""Parses a page, unless it would take the parser too much time or memory."""

import os
import re
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_DATA, getrlimit, setrlimit

from selectolax.lexbor import LexborDocumentOptions, LexborHTMLParser, LexborNode, SelectolaxError

from crawler.config import failpoint
from crawler.errors import FetchError
from crawler.fetch.budget import Budget, check_free

MAX_TAGS, MAX_DEPTH, MAX_ATTRIBUTES, MAX_ROOTS = 360_000, 4_000, 1_000, 20
MAX_STEPS = 200_000_000  # comparisons of open elements and attributes, some 3 to 10 ns each
FIRST_STEPS = (
    20_000_000  # those for the first part of a suspect page; each further part adds as many
)
MAX_NAMES = 20_000  # different names of tags, and of attributes, which the parser compares
MAX_SEPARATORS = 60_000  # places where attributes may begin: above it, their names are counted
MAX_TREE = 54_000_000  # bytes by which the process may grow for a tree
FEW, FEW_PARAGRAPHS = 120_000, 100_000  # elements of which lists are made beside the largest tree
LISTED = 1_000  # bytes by which each further one makes the tree smaller
WIDE = 5  # bytes for each of a text whose characters take four
MAX_RUN = 520_000  # characters kept of one text; nothing that is read is longer
TINY = 1_500_000  # bytes times tags of a page that is always harmless
SMALL = 64_000  # bytes with too few attributes to keep the parser busy for half a second
BLOCK, SAMPLE = 200, 100  # tags counted together; elements of which one is looked at
PART = 500_000  # bytes searched at a time
MAX_PARSED, MAX_HEIGHT = 50, 20  # parts of a suspect page; levels of elements counted as closed

_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")
_SIZES = "/proc/self/statm"
_KNOWS_SIZE = Path(_SIZES).exists()  # not on macOS, where no limit holds
_SPACE = r" \t\n\r\f"
_SEPARATORS = b" \t\n\r\f/\"'"
_ATTRIBUTE = (
    rf"[{_SPACE}/]*+[^{_SPACE}/>][^{_SPACE}/>=]*+"
    rf"""(?:[{_SPACE}]*+=[{_SPACE}]*+(?:"[^"]*+"|'[^']*+'|[^{_SPACE}>"'][^{_SPACE}>]*+)?+)?+"""
)
_ATTRIBUTE_NAMES = re.compile(
    _ATTRIBUTE.replace("[^", "([^", 1).replace("=]*+", "=]*+)", 1).encode()
)
_TAG = re.compile(rf"</?+([^{_SPACE}/><]*+)(?=[{_SPACE}/])((?:{_ATTRIBUTE})++)".encode())
"""A tag with attributes; a name with brackets counts from the last of them on."""
_TAG_NAMES = re.compile(rf"<([a-z][^{_SPACE}/>]*+)".encode(), re.I)
_MANY_ATTRIBUTES = re.compile(rf"<[^{_SPACE}/><]*+[{_SPACE}/](?:{_ATTRIBUTE}){{64}}".encode())
_CUT = _ATTRIBUTE.replace('*+"|', '*+(?:"|\\Z)|').replace("*+'|", "*+(?:'|\\Z)|")
_MANY_OR_CUT = re.compile(
    rf"<[^{_SPACE}/><]*+(?:[{_SPACE}/]|\Z)(?:{_CUT}|[{_SPACE}/]*+\Z){{64}}".encode()
)
"""The same, and each tag that goes on behind the end of the part of a page."""
_ROOTS = re.compile(rb"<(?:html|body)", re.I)
_IN_TAGS = re.compile(rb"""(?:\A|[<"'])[^>]*+""")
"""All that may be inside a tag: after a `>` in a value there is a quote before the next one."""
_PLAIN_ATTRIBUTES = (
    rf"(?:[{_SPACE}/]++[^{_SPACE}/=\"'<>]++"
    rf"(?:[{_SPACE}]*+=[{_SPACE}]*+(?:\"[^\"<>]*+\"|'[^'<>]*+'|[^{_SPACE}=\"'<>]++))?+)*+"
    rf"[{_SPACE}/]*+"
)
_CLOSED = re.compile(
    rf"<([a-z][a-z0-9]*+){_PLAIN_ATTRIBUTES}>[^<]*+(?:<>[^<]*+)*+</\1[{_SPACE}]*+>"
    rf"|<(p|li|tr|option){_PLAIN_ATTRIBUTES}>[^<]*+(?:<>[^<]*+)*+(?=<\2[{_SPACE}/>])"
    rf"|<t[dh]{_PLAIN_ATTRIBUTES}>[^<]*+(?:<>[^<]*+)*+(?=<t[dhr][{_SPACE}/>])"
    rf"|<d[dt]{_PLAIN_ATTRIBUTES}>[^<]*+(?:<>[^<]*+)*+(?=<d[dt][{_SPACE}/>])"
    rf"|<(?:[bh]r|embed|img|meta){_PLAIN_ATTRIBUTES}>|<!--[^<>-]*+-->".encode(),
    re.I,
)
"""An element that holds only text and closed elements, and is closed itself."""
_STRAY = re.compile(rb"<(?![a-z/!?])", re.I)  # a bracket that is text
_VALUES = re.compile(rb"""=(?:"[^"]{%d,}+|'[^']{%d,}+)""" % (MAX_RUN, MAX_RUN))
_RAW = re.compile(
    rb"<(!--|!\[cdata\[|iframe|no(?:embed|frames|script)|plaintext"
    rb"|script|style|textarea|title|xmp)",
    re.I,
)
_RAW_ENDS = {b"!--": b"-->", b"![cdata[": b"]]>"}  # the others end with their end tag
_REPLACED = ((b"\0", b""), (b"&nGt;", "≫⃒".encode()), (b"&nLt;", "≪⃒".encode()))
"""The references are shorter than their text: lexbor writes past the end of its buffer."""
_WIDE = re.compile(rb"[\xf0-\xf4]")
_BLOCK = re.compile(rb"(?:[^<]*+<){%d}" % (BLOCK + 1))


def parse(html: str | bytes, budget: Budget | None = None, beside: int = 0) -> LexborHTMLParser:
    """Parse a page, given as text or in UTF-8; `FetchError` where that takes too much.

    Lexbor looks through all open elements at nearly every tag, compares every attribute of a tag
    with all before it, and every new name with others: time grows with the square of the page's
    size. Counting shows that an ordinary page is too small for that. No count relies on where the
    parser sees tags: only lexbor knows what it takes for a comment, and when it closes an element.

    Memory is not counted: the parser may take so much, less what is `beside` the page already.
    """
    page = html.encode("utf-8", "replace") if isinstance(html, str) else html
    for written, meant in _REPLACED:
        if written in page:
            page = page.replace(written, meant)
    tags = page.count(b"<")
    if tags > MAX_TAGS:  # of hardly any such page would the tree fit
        raise _too_deep(f"it has {tags:,} tags")
    if tags * len(page) <= TINY and len(page) <= SMALL:
        return _tree(page)
    budget = budget or Budget()
    paragraphs = page.count(b"<p") + page.count(b"<P")
    room = MAX_TREE - beside - LISTED * max(0, _starts(page) - FEW, paragraphs - FEW_PARAGRAPHS)
    if len(page) <= MAX_RUN:
        return _parse(page, tags, room, budget)
    page = _without_long_runs(page)
    budget.look()
    room -= WIDE * _longest_wide(page, budget)
    if room < len(page):  # the heap may have room that the kernel has counted already
        raise _too_deep("its texts would take too much memory")
    tree = _parse(page, tags, room, budget)
    budget.look()
    _cut_texts(tree, budget)
    return tree


def _parse(page: bytes, tags: int, room: int, budget: Budget) -> LexborHTMLParser:
    starts = _starts(page)
    _check_names(page, starts, budget)
    if len(page) > SMALL:
        budget.look()
        _check_attributes(page, budget)
    budget.look()
    if starts <= MAX_DEPTH and starts * tags <= MAX_STEPS:
        return _tree(page, room)
    if tags * tags <= MAX_STEPS:  # however they are nested, that cannot take long
        tree = _tree(page, room)
        budget.look()
        _check_depth(tree, MAX_DEPTH, tags, budget)
        return tree
    if 2 * _starts(_left_open(page, budget)) <= min(MAX_DEPTH, MAX_STEPS // tags):
        return _tree(page, room)
    return _parse_in_steps(page, tags, room, budget)


def _tree(page: bytes, room: int | None = None) -> LexborHTMLParser:
    """Parse a page, if the process need not grow by more than `room`.

    Lexbor joins texts around tags that it drops, repeats formatting in every block and notes every
    error: a page of 5 MB took 6 GB. At a limit of the kernel it gives up at once. All threads
    share that limit: where another one took the room meanwhile, a second try has its own.
    """
    tree = _within(page, room) or _within(page, room)
    if tree is None:
        check_free(MAX_TREE)  # else the lack is ours
        raise _too_deep(f"its tree would take more than {MAX_TREE // 1_000_000} MB")
    return tree


def _within(page: bytes, room: int | None) -> LexborHTMLParser | None:
    before = getrlimit(RLIMIT_DATA)
    limited = False
    if room is not None and _KNOWS_SIZE:
        most = _data_bytes() + max(0, room)
        limited = before[0] == RLIM_INFINITY or most < before[0]
    try:
        if limited:
            setrlimit(RLIMIT_DATA, (most, before[1]))
        # With mutation events, lexbor is quadratic in the options of a <select>.
        return LexborHTMLParser(page, options=LexborDocumentOptions.WO_EVENTS)
    except SelectolaxError:  # it parses any bytes: only memory can be lacking
        if not limited:
            raise MemoryError from None
        return None
    finally:
        if limited:
            setrlimit(RLIMIT_DATA, before)


def _data_bytes() -> int:
    """Return the bytes that the kernel counts for the limit."""
    descriptor = os.open(_SIZES, os.O_RDONLY)
    try:
        return int(os.read(descriptor, 200).split()[5]) * _PAGE_SIZE
    finally:
        os.close(descriptor)


def _too_deep(what: str) -> FetchError:
    reason = f"The page is not parsed, because {what}; another try would not help."
    return FetchError("too_deep", reason)


def _longest_wide(page: bytes, budget: Budget) -> int:
    """Return the bytes of the longest text, value or name, if the page has wide characters."""
    if not _WIDE.search(page):
        return 0
    texts, names = _long_runs(_STRAY.sub(b" ", page), b"<"), _long_runs(page, b" \t\n\r\f>")
    comments, values = _long_runs(page, b">"), (match.span() for match in _VALUES.finditer(page))
    longest = 0
    for begin, end in chain(texts, names, comments, values, _raw_texts(page)):
        budget.check()
        longest = max(longest, end - begin)
    return longest


def _without_long_runs(page: bytes) -> bytes:
    """Drop the ends of long texts, values and comments, which nobody reads."""
    parts, begun = [], 0
    for begin, end in _long_runs(page, b"<>\"'"):
        cut = begin + MAX_RUN
        while cut < end and page[cut] & 0xC0 == 0x80:  # not inside a character
            cut += 1
        parts.append(page[begun:cut])
        begun = end
    if not parts:
        return page
    return b"".join([*parts, page[begun:]])


def _long_runs(page: bytes, signs: bytes) -> Iterator[tuple[int, int]]:
    """Return the spans with none of these signs; a long one fills a block that is searched."""
    ends, block = re.compile(b"[%b]" % signs), MAX_RUN // 2
    at = 0
    while at + block <= len(page):
        if ends.search(page, at, at + block):
            at += block
            continue
        begin = max(page.rfind(sign, max(0, at - block), at) for sign in signs) + 1
        found = ends.search(page, at + block)
        end = found.start() if found else len(page)
        if end - begin > MAX_RUN:
            yield begin, end
        at = end - end % block + block


def _raw_texts(page: bytes) -> Iterator[tuple[int, int]]:
    """Return the spans of comments, scripts and the like, wherever one may begin."""
    ends: dict[bytes, int] = {}
    for match in _RAW.finditer(page):
        name, begin = match[1].lower(), match.start()
        if ends.get(name, 0) <= begin:
            end = re.escape(_RAW_ENDS.get(name, b"</" + name))
            found = re.compile(end, re.I).search(page, begin)
            ends[name] = found.start() if found else len(page)
            yield begin, ends[name]


def _cut_texts(tree: LexborHTMLParser, budget: Budget) -> None:
    """Cut every long text again: the parser joins texts around tags that it ignores."""
    long: list[LexborNode] = []
    if not tree.root:
        return
    for node in tree.root.traverse(include_text=True):
        budget.check()
        if node.is_text_node and len(node.text_content or "") > MAX_RUN:
            budget.look()
            long.append(node)
    for node in long:
        budget.look()
        node.replace_with((node.text_content or "")[:MAX_RUN])


def _parts(page: bytes, budget: Budget) -> Iterator[bytes]:
    """Cut a page into parts, to save memory.

    They begin with a tag, unless none comes for too long: what was cut counts as left open.
    """
    begin = 0
    while begin < len(page):
        budget.look()
        end = page.find(b"<", begin + PART, begin + 2 * PART)
        if end < 0:
            end = min(begin + 2 * PART, len(page))
        yield page[begin:end]
        begin = end


def _separators(page: bytes) -> int:
    return len(page) - len(page.translate(None, _SEPARATORS))


def _check_attributes(page: bytes, budget: Budget) -> None:
    """Refuse a page where a tag has too many attributes, or attributes have too many names."""
    number = _separators(page)
    if number > MAX_SEPARATORS:
        number = sum(_separators(b"".join(_IN_TAGS.findall(part))) for part in _parts(page, budget))
    few = number <= MAX_SEPARATORS and not _has_many_attributes(page, budget)
    if few and len(_ROOTS.findall(page)) <= MAX_ROOTS:
        return
    names: set[bytes] = set()
    steps = collected = 0
    for tag, attributes in _tags(page):
        budget.check(len(attributes))
        matches = islice(_ATTRIBUTE_NAMES.finditer(attributes), MAX_ATTRIBUTES + 1)
        found = [match[1] for match in matches]
        names.update(found)
        number = len(found)
        if tag.lower() in (b"body", b"html"):  # a second <body> adds its attributes to the first
            number = collected = collected + number
        steps += number * number
        if number > MAX_ATTRIBUTES or steps > MAX_STEPS:
            name = tag[:20].decode("latin-1")
            raise _too_deep(f"a <{name}> has more than {MAX_ATTRIBUTES:,} attributes")
        if len(names) > MAX_NAMES:
            raise _too_deep(f"its attributes have more than {MAX_NAMES:,} names")


def _has_many_attributes(page: bytes, budget: Budget) -> bool:
    """Say whether a tag has so many attributes that they must be counted.

    The search goes part by part: otherwise each of some sixty tags may be read to the page's end.
    """
    begin = 0
    while begin < len(page):
        budget.look()
        end = min(begin + PART, len(page))
        found = _MANY_OR_CUT.search(page, begin, end)
        if found and _MANY_ATTRIBUTES.match(page, found.start()):
            return True
        begin = found.start() + 1 if found else end
    return False


def _tags(page: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Return every tag with attributes, also those inside others: either may be the real one."""
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
    if starts <= MAX_NAMES:
        return
    names: set[bytes] = set()
    for part in _parts(page, budget):
        names.update(_TAG_NAMES.findall(part))
        if len(names) > MAX_NAMES:
            raise _too_deep(f"its tags have more than {MAX_NAMES:,} names")


def _starts(page: bytes) -> int:
    return page.count(b"<") - page.count(b"</") - page.count(b"<>")


def _left_open(page: bytes, budget: Budget) -> bytes:
    """Write `<>` for every element that is surely closed; one in two parts of the page stays."""
    for _ in range(MAX_HEIGHT):
        replaced = [_CLOSED.subn(b"<>", part) for part in _parts(page, budget)]
        page = b"".join([part for part, _ in replaced])
        if not any(number for _, number in replaced):
            break
    return page


def _parse_in_steps(page: bytes, tags: int, room: int, budget: Budget) -> LexborHTMLParser:
    """Parse ever longer beginnings of a suspect page: each adds too little to take long."""
    failpoint("parsing-in-steps")
    limit = min(MAX_DEPTH, MAX_STEPS // tags)
    end = 0
    for number in range(1, MAX_PARSED):
        budget.look()
        begin, end = end, _step(page, end, min(MAX_STEPS, number * FIRST_STEPS), budget)
        if begin == end < len(page):
            break
        budget.look()
        tree = _tree(page[:end], room - end)
        budget.look()
        _check_depth(tree, limit, tags, budget)
        if end == len(page):
            return tree
        del tree
    raise _too_deep(f"its {tags:,} tags would take the parser too long")


def _step(page: bytes, begin: int, steps: int, budget: Budget) -> int:
    """Return how far a page can be parsed next."""
    end, nested, tags = begin, 0, 0
    while end < len(page):
        budget.look()
        match = _BLOCK.match(page, end)
        after = match.end() - 1 if match else len(page)
        tags += BLOCK
        nested += _starts(_left_open(page[end:after], budget))
        if 2 * nested * tags > steps:
            break
        end = after
    return end


def _check_depth(tree: LexborHTMLParser, limit: int, tags: int, budget: Budget) -> None:
    """Refuse a tree that is nested much deeper."""
    depth = 0
    for top in _tops(tree):
        # The contents of a <template> are a tree of their own; templates can be nested.
        before, depth = depth, depth + 1
        for node in islice(top.traverse(), 0, None, SAMPLE):
            budget.check()
            around, parent = 0, node.parent
            while parent:
                around, parent = around + 1, parent.parent
            depth = max(depth, before + around + 1)
            if depth > limit:
                raise _too_deep(f"its {tags:,} tags are nested {depth:,} deep")


def _tops(tree: LexborHTMLParser) -> Iterator[LexborNode]:
    """Return the root, and the contents of each <template>."""
    if not tree.root:
        return
    tops = [tree.root]
    for top in tops:
        yield top
        tops.extend(top.template_fragments())
