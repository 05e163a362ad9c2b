"""The text of a page's elements, with white space folded and its length limited."""

import re
from itertools import islice

from selectolax.lexbor import LexborHTMLParser, LexborNode

from crawler.fetch.budget import Budget

MAX_TEXT, MAX_STRING = 100_000, 2_000  # characters of a page's text, and of any other value
LARGE = 1_000_000  # bytes of a page above which its text is not read as a whole
MAX_EXCERPT_NODES = 1_000

_WORDS = re.compile(r"\S+")
_BEFORE_SIGN = re.compile(r"\0(?=[,.;:)])")


def find(tree: LexborHTMLParser, query: str, budget: Budget) -> list[LexborNode]:
    """Search a page; the budget counts the bytes searched."""
    budget.check(len(tree.raw_html))
    return tree.css(query)


def joined(text: str) -> str:
    """Fold white space; a NUL between text nodes becomes a space, but not before a comma."""
    if "\0" in text:
        text = _BEFORE_SIGN.sub("", text).replace("(\0", "(").replace("\0", " ")
    return " ".join(text.split())


def words(node: LexborNode, budget: Budget, limit: int = MAX_STRING) -> str:
    """Return the first words of an element."""
    if len(node.parser.raw_html) <= LARGE:
        return joined(node.text(separator="\0"))[:limit]
    parts, size = [], 0
    for inner in node.traverse(include_text=True):
        budget.check()
        if inner.is_text_node:
            text = inner.text_content or ""
            folded = _folded(text, limit)
            parts.append(f"{' ' * text[:1].isspace()}{folded}{' ' * text[-1:].isspace()}")
            size += len(folded)
            if size > limit:
                break
    return joined("\0".join(parts))[:limit]


def _folded(text: str, limit: int) -> str:
    """Fold the beginning of a text without making a list of all its words."""
    found, size = [], 0
    for match in _WORDS.finditer(text):
        found.append(match[0])
        size += len(match[0]) + 1
        if size > limit:
            break
    return " ".join(found)


def excerpt(node: LexborNode, enough: int = MAX_STRING) -> str:
    """Return the first words of an element; unlike `words`, cheap however deep they are nested.

    It may stop where it has more than `enough` characters.
    """
    first = node.child
    if first and first.is_element_node and not first.next:
        first = first.child  # mostly the text of a link or of bold words
    if first and first.is_text_node and not first.next:
        return " ".join((first.text_content or "")[:MAX_STRING].split())
    parts, size = [], 0
    for inner in islice(node.traverse(include_text=True), MAX_EXCERPT_NODES):
        if inner.is_text_node:
            text = (inner.text_content or "")[:MAX_STRING]
            parts.append(text)
            size += len(text)
            if size > MAX_STRING or (size > enough and len("".join(text.split())) > enough):
                break
    return joined("\0".join(parts))[:MAX_STRING]


def own_text(node: LexborNode) -> str:
    """Return the text of an element without that of the elements in it."""
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
