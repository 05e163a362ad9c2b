"""The eight fields by selectolax, for the contestants that are free to choose."""

from selectolax.lexbor import LexborHTMLParser

from benchmarks.site import FIELDS


def fields(body: bytes) -> dict[str, str | None]:
    """What is found in a page."""
    tree = LexborHTMLParser(body)
    return {
        name: node.text() if (node := tree.css_first(css)) else None for name, css in FIELDS.items()
    }
