"""The eight fields and the links by selectolax, for the contestants that are free to choose."""

from urllib.parse import urljoin

from selectolax.lexbor import LexborHTMLParser

from benchmarks.site import FIELDS


def fields(body: bytes) -> dict[str, str | None]:
    """What is found in a page."""
    tree = LexborHTMLParser(body)
    return {
        name: node.text() if (node := tree.css_first(css)) else None for name, css in FIELDS.items()
    }


def links(url: str, body: bytes) -> list[str]:
    """Where a page links to."""
    found = LexborHTMLParser(body).css("a[href]")
    return [urljoin(url, node.attributes["href"] or "") for node in found]
