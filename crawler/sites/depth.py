"""Parses a page, unless no parser should see it: nested, attributed or formatted beyond reason."""

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
MAX_STEPS = 200_000_000
"""Looks at open elements and attributes that the parser may need, some 3 to 10 ns each."""
FIRST_STEPS = 20_000_000
"""The same for the first part of a page that may be too much; each that follows may need as many
more."""
MAX_NAMES = 20_000
"""Different names of tags, and of attributes: the parser finds one by looking at a part of all
others."""
MAX_SEPARATORS = 60_000
"""Places where an attribute may begin, in pages whose names need no counting: that is a second at
most."""
MAX_TREE = 54_000_000
"""Bytes by which the process may grow while a tree is made."""
FEW, FEW_PARAGRAPHS, LISTED = 120_000, 100_000, 1_000
"""Elements, and paragraphs, of which lists may be made beside the largest tree; each more makes
that smaller."""
WIDE = 5
"""Bytes for each of a text whose characters take four, when it is read."""
MAX_RUN = 520_000
"""Characters of one text that are kept: nothing that is read is longer, but it may be read by all
around it."""
TINY = 1_500_000
"""Bytes times tags of a page that can be nothing of the kind: its attributes repeated by its tags
are not many."""
SMALL = 64_000
"""Bytes in which there is no room for so many attributes that the parser would be busy for long:
half a second."""
BLOCK, SAMPLE = 200, 100
"""Tags that are counted together, and elements of which one is looked at."""
PART = 500_000
MAX_PARSED, MAX_HEIGHT = 50, 20
"""Steps in which a page may be parsed, and elements inside elements that are counted as closed."""

_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")
_SIZES = "/proc/self/statm"
_KNOWS_SIZE = Path(_SIZES).exists()
"""False on macOS, where no limit holds."""
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
"""A tag with attributes; one with a bracket in its name is found from the last of them on."""
_TAG_NAMES = re.compile(rf"<([a-z][^{_SPACE}/>]*+)".encode(), re.I)
_MANY_ATTRIBUTES = re.compile(rf"<[^{_SPACE}/><]*+[{_SPACE}/](?:{_ATTRIBUTE}){{64}}".encode())
_CUT = _ATTRIBUTE.replace('*+"|', '*+(?:"|\\Z)|').replace("*+'|", "*+(?:'|\\Z)|")
_MANY_OR_CUT = re.compile(
    rf"<[^{_SPACE}/><]*+(?:[{_SPACE}/]|\Z)(?:{_CUT}|[{_SPACE}/]*+\Z){{64}}".encode()
)
"""The same in a part of a page, and each tag that goes on behind the end of the part."""
_ROOTS = re.compile(rb"<(?:html|body)", re.I)
_IN_TAGS = re.compile(rb"""(?:\A|[<"'])[^>]*+""")
"""All that may be inside a tag: behind a `>` in an attribute's value there must be a quote first,
and a part of a page may begin in one."""
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
"""An element that its end tag or the next of its kind closes, with nothing in it but text and what
was closed before, and those without contents."""
_STRAY = re.compile(rb"<(?![a-z/!?])", re.I)
"""A bracket that is text."""
_VALUES = re.compile(rb"""=(?:"[^"]{%d,}+|'[^']{%d,}+)""" % (MAX_RUN, MAX_RUN))
_RAW = re.compile(
    rb"<(!--|!\[cdata\[|iframe|no(?:embed|frames|script)|plaintext|script|style|textarea|title|xmp)",
    re.I,
)
_RAW_ENDS = {b"!--": b"-->", b"![cdata[": b"]]>"}
"""What holds text with brackets; for others than these it ends with the end tag."""
_LONGER = ((b"&nGt;", "≫⃒".encode()), (b"&nLt;", "≪⃒".encode()))
"""The references whose text is longer than they are: lexbor writes 4,098 of them behind the end of
its buffer."""
_WIDE = re.compile(rb"[\xf0-\xf4]")
_BLOCK = re.compile(rb"(?:[^<]*+<){%d}" % (BLOCK + 1))


def parse(html: str | bytes, budget: Budget | None = None, beside: int = 0) -> LexborHTMLParser:
    """The tree of a page, given as text or in UTF-8; `FetchError` for one that takes the parser
    minutes, or the memory.

    Lexbor looks through all open elements at nearly every tag, and compares every attribute of a
    tag with all before it and every new name with others: time grows with the square of the page's
    size. An ordinary page is too small for any of that, which is seen by counting. No count relies
    on where tags begin for the parser: what it takes for a comment or a script, and when it closes
    an element, is known to nobody else.

    Memory needs no counting: the parser gets only so much, less what is there `beside` the page
    already.
    """
    page = html if isinstance(html, bytes) else html.encode("utf-8", "replace")
    if b"\0" in page:
        page = page.replace(b"\0", b"")
    for written, meant in _LONGER:
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
    """The tree of a page, if the process need not grow by more than `room` for it.

    Lexbor joins texts around tags that it drops, opens formatting again in every block and notes
    every error: a page of 5 MB took 6 GB. Within a limit of the kernel's it gives up at once, and
    says so. The limit is that of all threads: where another one has taken the room meanwhile, a
    second try has its own.
    """
    tree = _within(page, room) or _within(page, room)
    if tree is None:
        check_free(MAX_TREE)  # else the lack is ours
        raise _too_deep(f"its tree would take more than {MAX_TREE // 1_000_000} MB")
    return tree


def _within(page: bytes, room: int | None) -> LexborHTMLParser | None:
    before = getrlimit(RLIMIT_DATA)
    most = _data_bytes() + max(0, room) if room is not None and _KNOWS_SIZE else RLIM_INFINITY
    limited = most != RLIM_INFINITY and (before[0] == RLIM_INFINITY or most < before[0])
    try:
        if limited:
            setrlimit(RLIMIT_DATA, (most, before[1]))
        # With mutation events, lexbor is quadratic in the options of a <select>.
        return LexborHTMLParser(page, options=LexborDocumentOptions.WO_EVENTS)
    except SelectolaxError:  # it takes any bytes: nothing but memory can be wanting
        if not limited:
            raise MemoryError from None
        return None
    finally:
        if limited:
            setrlimit(RLIMIT_DATA, before)


def _data_bytes() -> int:
    """What the kernel counts for the limit."""
    descriptor = os.open(_SIZES, os.O_RDONLY)
    try:
        return int(os.read(descriptor, 200).split()[5]) * _PAGE_SIZE
    finally:
        os.close(descriptor)


def _too_deep(what: str) -> FetchError:
    return FetchError(
        "too_deep", f"The page is not parsed, because {what}; another try would not help."
    )


def _longest_wide(page: bytes, budget: Budget) -> int:
    """The bytes of the longest text, value or name read as a whole, where a character of the page
    takes four."""
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
    """The page without what nobody reads of a text, value or comment; no part of markup begins or
    ends in that."""
    parts, begun = [], 0
    for begin, end in _long_runs(page, b"<>\"'"):
        cut = begin + MAX_RUN
        while cut < end and page[cut] & 0xC0 == 0x80:  # not inside a character
            cut += 1
        parts.append(page[begun:cut])
        begun = end
    return b"".join([*parts, page[begun:]]) if parts else page


def _long_runs(page: bytes, signs: bytes) -> Iterator[tuple[int, int]]:
    """Where none of these signs comes for too long: such a run fills at least one of the blocks
    that are searched."""
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
            found = re.compile(re.escape(_RAW_ENDS.get(name, b"</" + name)), re.I).search(
                page, begin
            )
            ends[name] = found.start() if found else len(page)
            yield begin, ends[name]


def _cut_texts(tree: LexborHTMLParser, budget: Budget) -> None:
    """Cut every text that is too long, wherever its parts were: the parser joins what stands around
    tags it ignores."""
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


def _check_attributes(page: bytes, budget: Budget) -> None:
    """Refuse a page on which one tag has too many attributes, or they too many names."""
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
        if tag.lower() in (b"body", b"html"):
            # Those of a second <body> are added to the first.
            number = collected = collected + number
        steps += number * number
        if number > MAX_ATTRIBUTES or steps > MAX_STEPS:
            raise _too_deep(
                f"a <{tag[:20].decode('latin-1')}> has more than {MAX_ATTRIBUTES:,} attributes"
            )
        if len(names) > MAX_NAMES:
            raise _too_deep(f"its attributes have more than {MAX_NAMES:,} names")


def _has_many_attributes(page: bytes, budget: Budget) -> bool:
    """Whether a tag has so many attributes that they are to be counted.

    Each of some sixty tags may be sought to the page's end: a single search would go through the
    page as often.
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
    """Every tag with attributes wherever it may begin, also inside another: one of the two is none,
    but which?"""
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
    """The same for those with nothing open inside; an element that two parts share stays as it
    is."""
    if len(page) <= PART:
        return _CLOSED.subn(b"<>", page)
    parts, total = [], 0
    for part in _parts(page, budget):
        left, number = _CLOSED.subn(b"<>", part)
        parts.append(left)
        total += number
    return b"".join(parts), total


def _parse_in_steps(page: bytes, tags: int, room: int, budget: Budget) -> LexborHTMLParser:
    """The tree of a page that may be too much; `FetchError` where it is.

    Ever longer beginnings are parsed: each adds too little to what was measured to take long.
    """
    failpoint("parsing-in-steps")
    limit = min(MAX_DEPTH, MAX_STEPS // tags)
    end = 0
    for number in range(1, MAX_PARSED):
        budget.look()
        begin, end = end, _step(page, end, min(MAX_STEPS, number * FIRST_STEPS), budget)
        if begin == end < len(page):
            break
        budget.look()
        beginning = page[:end] if end < len(page) else page
        tree = _tree(beginning, room - len(beginning))
        budget.look()
        _check_depth(tree, limit, tags, budget)
        if end == len(page):
            return tree
        del tree
    raise _too_deep(f"its {tags:,} tags would take the parser too long")


def _step(page: bytes, begin: int, steps: int, budget: Budget) -> int:
    """How far a page can be parsed when it was parsed so far."""
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


def _tops(tree: LexborHTMLParser) -> Iterator[LexborNode]:
    """The root, and what each <template> holds."""
    tops = [tree.root] if tree.root else []
    for top in tops:
        yield top
        tops.extend(top.template_fragments())
