"""The sites of tests for following links: each is what the tests that use it take it for."""

import re
import zlib
from urllib.parse import urljoin

import pytest
from selectolax.lexbor import LexborHTMLParser

from crawler.examples.server import Request, Response, Site
from tests.support.graph import LINKS, Graph
from tests.support.traps import BOMB_BYTES, MILLION_BYTES, Links, SitemapFarm, Trap

BASE = "http://site.test"


def ask(site: Site, target: str) -> Response:
    """One request without a network."""
    path, _, query = target.removeprefix(BASE).partition("?")
    fields = dict(pair.partition("=")[::2] for pair in query.split("&") if pair)
    return site.answer(Request("GET", site.host, path, fields, {}, {}, {"host": "site.test"}))


def links(response: Response, url: str) -> list[str]:
    """The targets of a page's links."""
    found = LexborHTMLParser(response.body).css("a[href]")
    return [urljoin(url, node.attributes["href"] or "") for node in found]


@pytest.mark.parametrize("size", [1, 2, 500])
def test_every_page_of_a_graph_can_be_reached_within_few_steps(size: int) -> None:
    """Following links from page 0 gives all pages, none deeper than the logarithm of the size."""
    graph = Graph(size)
    known, level, depth = {f"{BASE}/node/0"}, [f"{BASE}/node/0"], 0
    while level:
        found = [link for url in level for link in links(ask(graph, url), url)]
        assert len(found) == LINKS * len(level)
        level = list(dict.fromkeys(link for link in found if link not in known))
        known |= set(level)
        depth += bool(level)
    assert known == set(graph.urls(BASE))
    assert depth <= size.bit_length()


@pytest.mark.parametrize(
    "area",
    ["calendar", "session", "path-session", "repeat", "deeper", "redirect", "filter", "growing"],
)
def test_a_trap_never_ends(area: str) -> None:
    """A hundred steps into it, a page still links to URLs that were not there before."""
    url, known = f"{BASE}/{area}/", {f"{BASE}/{area}/"}
    for _ in range(100):
        response = ask(Trap(), url)
        found = links(response, url)
        if response.status == 302:
            found = [urljoin(url, dict(response.headers)["Location"])]
        new = [link for link in found if link not in known]
        assert new
        known |= set(new)
        url = new[0]
    assert f"/{area}/" in url


def test_a_page_holds_as_many_links_as_ten_megabytes_can() -> None:
    """Hundreds of thousands, all different."""
    body = ask(Trap(), "/million/").body
    found = re.findall(rb"href=(\w+)", body)
    assert MILLION_BYTES - 200 < len(body) <= MILLION_BYTES
    assert len(set(found)) == len(found) > 600_000


def test_every_page_of_links_is_there() -> None:
    """What may be followed and what may not are pages; the rest is not found."""
    site = Links()
    for path in site.FOUND | site.HIDDEN:
        assert ask(site, path).status == 200
    assert ask(site, "/hidden/comment").status == 404
    assert dict(ask(site, "/header-nofollow").headers) == {"X-Robots-Tag": "nofollow"}


def test_the_sitemaps_of_the_farm_name_its_pages() -> None:
    """Read by hand, they name the good pages and no others of this host."""
    farm = SitemapFarm(urls=30)
    names = re.findall(rf"{BASE}/(\S+)", ask(farm, "/robots.txt").body.decode())
    assert names == list(farm.MAPS)
    open_maps, known, pages = list(names), set(names), set[str]()
    while open_maps:
        name = open_maps.pop()
        if name.startswith(("endless", "bomb", "entities")):
            continue
        body = ask(farm, f"/{name}").body
        while body.startswith(b"\x1f\x8b"):
            body = zlib.decompress(body, wbits=31)
        for place in re.findall(rf"{BASE}/([\w./-]+)(?=[<\r])", body.decode()):
            if place.startswith("page/"):
                pages.add(f"{BASE}/{place}")
            elif place not in known:
                known.add(place)
                open_maps.append(place)
    assert pages == farm.good(BASE)


def test_the_bomb_of_the_farm_is_one() -> None:
    """It unpacks to hundreds of times its size."""
    body = ask(SitemapFarm(), "/bomb.xml.gz").body
    assert len(body) < BOMB_BYTES / 300
    unpacker = zlib.decompressobj(wbits=31)
    assert len(unpacker.decompress(body, BOMB_BYTES // 10)) == BOMB_BYTES // 10
