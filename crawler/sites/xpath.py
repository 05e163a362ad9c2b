"""Fields by XPath, for which the package `parsel` must be installed.

XPath is read by libxml2, which cannot be interrupted: only small pages are searched, and no
expression may use the regular expressions of `re`, which can hang.
"""

import re
from collections.abc import Iterator
from typing import Any

MAX_LENGTH = 1_000  # characters of an expression
MAX_BYTES, MAX_TAGS = 1_000_000, 10_000  # of a page; two nested searches look at the product
_PARTS = re.compile(
    r""""[^"]*"|'[^']*'|[\[\]]|//|(?:ancestor|descendant|preceding|following)(?=[\w-]*\s*::)"""
)
_EXTENSION = re.compile(r"\b(?:re|set|str|math|date):[a-z]")


def check(text: str) -> None:
    """Compile an expression; raises `ValueError` with a reason for its author."""
    try:
        import parsel  # noqa: F401
        from lxml import etree
    except ImportError:
        install = "pip install '.[parsel]' in the project's folder"
        raise ValueError(f"XPath needs the package parsel ({install}); or write css") from None
    if len(text) > MAX_LENGTH:
        raise ValueError(f"it has {len(text):,} characters, more than {MAX_LENGTH:,}")
    if _EXTENSION.search(text):
        raise ValueError("functions such as re:test() are not allowed; write regex beside it")
    if _has_nested_searches(text):
        reason = "a search inside of two brackets looks at the cube of a page's elements"
        raise ValueError(f"{reason}; write css, or a simpler XPath")
    try:
        etree.XPath(text)
    except (etree.XPathError, ValueError) as error:
        raise ValueError(f"{text[:60]!r} is not XPath ({error})") from None


def _has_nested_searches(text: str) -> bool:
    depth = 0
    for part in _PARTS.findall(text):
        depth += (part == "[") - (part == "]")
        if depth > 1 and part not in "[]" and part[0] not in "\"'":
            return True
    return False


def document(html: bytes) -> Any:
    """Parse a page for XPath; None for one that is too large."""
    if len(html) > MAX_BYTES or html.count(b"<") > MAX_TAGS:
        return None
    import parsel

    return parsel.Selector(text=html.decode("utf-8", "replace"), type="html")


def find(document: Any, text: str) -> Iterator[str]:
    """Return the texts of what an expression finds: elements, attributes, texts or a number."""
    for found in _search(document, text):
        root = found.root
        if hasattr(root, "itertext"):
            yield "\0".join(root.itertext("*"))
        else:
            yield str(root)


def _search(document: Any, text: str) -> Any:
    try:
        return document.xpath(text)
    except ValueError:  # valid, but not for this page: an unknown prefix or function
        return ()
