"""The links of a page that a crawl may follow, by the rules of its site's file or all of them."""

import re
from typing import NamedTuple

from crawler.models import Role

MAX_LINKS = 10_000
"""Links of one page."""
_ALL = "a[href], area[href], frame[src], iframe[src], link[rel~=next i][href]"
_NO_FOLLOW = "a[rel~=nofollow i], area[rel~=nofollow i]"
_NODES_PER_LOOK = 500
_PAGE_RULES = re.compile(r"(?:^|[,:\s])(?:nofollow|none)(?:[,;\s]|$)", re.IGNORECASE)


class FoundLink(NamedTuple):
    """A link as a page has it: relative to the page's base."""

    href: str
    role: Role | None = None
    """As a rule says; else the link's URL decides."""
    list_crc32: int | None = None
    """For the next page of a list: checksum of the links on this one."""


class FoundLinks(NamedTuple):
    """The links of a page."""

    base: str
    links: list[FoundLink]
    left_out: int = 0
    """Links above the maximum of a page."""
