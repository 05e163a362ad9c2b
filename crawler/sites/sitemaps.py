"""Sitemaps: the URLs that a site names, and when their pages last changed."""

import re
from typing import NamedTuple

from crawler.fetch.budget import Budget

MAX_BYTES = 50_000_000


class Sitemap(NamedTuple):
    """What a sitemap names: pages, or other sitemaps."""

    kind: str
    urls: list[tuple[str, float | None]]
    truncated: bool


def read(body: bytes, url: str, budget: Budget) -> Sitemap:
    """Return what a sitemap names."""
    found = [each.decode() for each in re.findall(rb"<loc>\s*([^<\s]+)\s*</loc>", body)]
    kind = "index" if b"<sitemapindex" in body else "urlset"
    return Sitemap(kind, [(each, None) for each in found[:50_000]], len(found) > 50_000)
