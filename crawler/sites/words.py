"""The words of a page's elements, with white space folded, and never more of them than is kept."""

import re
from itertools import islice

from selectolax.lexbor import LexborNode

from crawler.fetch.budget import Budget

MAX_TEXT, MAX_STRING = 100_000, 2_000
"""Characters of a page's text, and of any other value."""
LARGE = 1_000_000
"""Bytes of a page of which not all text is read at once."""
MAX_EXCERPT_NODES = 1_000

_WORDS = re.compile(r"\S+")
_BEFORE_SIGN = re.compile(r"\0(?=[,.;:)])")


def joined(text: str) -> str:
    """Fold white space, and the marks between text nodes into a space, or nothing: "see
    <a>this</a>, then"."""
    if "\0" in text:
        text = _BEFORE_SIGN.sub("", text).replace("(\0", "(").replace("\0", " ")
    return " ".join(text.split())


def words(node: LexborNode, budget: Budget, limit: int = MAX_STRING) -> str:
    """The beginning of all words in a node."""
    if len(node.parser.raw_html) > LARGE:
        return _first_of(node, budget, limit)
    text = node.text(separator="\0")
    return (joined(text) if "\0" in text else " ".join(text.split()))[:limit]


def _first_of(node: LexborNode, budget: Budget, limit: int) -> str:
    """The beginning of a node's words on a page that is too large to have all of them in memory
    twice."""
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
    """The beginning of a text with single spaces, without a list of all its words."""
    found, size = [], 0
    for match in _WORDS.finditer(text):
        found.append(match[0])
        size += len(match[0]) + 1
        if size > limit:
            break
    return " ".join(found)


def excerpt(node: LexborNode) -> str:
    """The beginning of a node's words; unlike `words` it is cheap however much lies in nodes inside
    nodes."""
    first = node.child
    if first and first.is_element_node and not first.next:
        first = first.child  # mostly the text of a link or of bold words
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


def own_text(node: LexborNode) -> str:
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
