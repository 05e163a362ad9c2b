"""The links of a page, as a crawl finds and filters them."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from crawler import sites, urls
from crawler.fetch.budget import Budget
from crawler.models import CrawlOptions, LeftOut, Link, Page, Role, Task
from crawler.scraping.follow import Followed, LinkFilter, LinkFinder
from crawler.sites import Site
from crawler.sites.live import LiveSites
from crawler.sites.parser import parse
from crawler.sites.sitemaps import Sitemap

BASE = "http://a.example"


def task(path: str = "/list", **about: Any) -> Task:
    """A claimed task of a crawl."""
    address = urls.parse(BASE + path)
    given: dict[str, Any] = {"role": Role.INDEX, "depth": 2, "loopback": False} | about
    return Task(
        id=1, task_id="t", url=address.url, domain=address.domain, queue="default", priority=5,
        fence=1, attempts=0, failures=0, job_id=1, job_size=1, **given,
    )  # fmt: skip


class Crawl:
    """A crawl of one host, with the files of a config folder."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.known = sites.load(folder)
        given: dict[str, Any] = {"hosts": ("a.example",), "origins": (BASE,)} | options
        live = LiveSites(folder, None, self.known)
        self.filter = LinkFilter(CrawlOptions(starts=(BASE,), **given), live)

    def follow(
        self, body: str, of: Task | None = None, kind: str = "text/html", **headers: str
    ) -> Followed:
        """The tasks that a page leads to."""
        of = of or task()
        html, site = body.encode(), self.known.of(of.url)
        told = (("Content-Type", kind), *((k.replace("_", "-"), v) for k, v in headers.items()))
        page = Page(
            url=of.url, final_url=of.url, status=200, reason="OK", headers=told, body=html,
            raw=html, fetched_at=0.0, fetch_s=0.0,
        )  # fmt: skip
        finder = LinkFinder(of, of.role or Role.INDEX, site, self.filter, Budget())
        if kind.endswith("json"):
            return finder.in_json(html, page)
        return finder.in_html(parse(html), html, page)

    def paths(self, body: str, of: Task | None = None, **about: str) -> list[str]:
        """Where these tasks are."""
        return [
            each.address.url.removeprefix(BASE) for each in self.follow(body, of, **about).links
        ]


def described(folder: Path, text: str) -> Crawl:
    """A crawl of a site with this file."""
    (folder / "sites").mkdir()
    (folder / "sites" / "a.yaml").write_text(f"hosts: [a.example]\n{text}")
    return Crawl(folder)


@pytest.mark.parametrize(
    ("html", "paths"),
    [
        ('<a href="/x">', ["/x"]),
        ('<a href="x">', ["/x"]),
        ('<base href="/sub/"><a href="x">', ["/sub/x"]),
        ('<a href="/x#part"><a href="/x"><a href="#top"><a href="">', ["/x"]),
        ('<a href="HTTP://A.EXAMPLE/Y">', ["/Y"]),
        ('<a href="//a.example/z"><a href="///a.example/w">', ["/z", "/w"]),
        ('<a href="\\\\b.example/z">', []),
        ('<a href="/\t/b.example/x"><a href="/\n\\b.example/x"><a href="/\r\t/b.example/x">', []),
        ('<a href="/\t/a.example/x"><a href="/\ty"><a href="/z\t1">', ["/x", "/y", "/z1"]),
        ('<a href="mailto:a@b"><a href="javascript:go()"><a href="data:,x"><a href="tel:1">', []),
        ('<a href="http://b.example/">', []),
        ('<a href=" /x ">', ["/x"]),
        ('<area href="/m"><iframe src="/f"></iframe><link rel="next" href="/n">',
         ["/m", "/f", "/n"]),
        ('<link rel="stylesheet" href="/s"><img src="/i"><form action="/go"></form>', []),
        ('<a rel="nofollow" href="/n"><a rel="external NOFOLLOW" href="/m"><a href="/x">', ["/x"]),
        ('<meta name="Robots" content="noindex, nofollow"><a href="/x">', []),
        ('<meta name="robots" content="none"><a href="/x">', []),
        ('<meta name="robots" content="noindex"><a href="/x">', ["/x"]),
        ('<meta name="robots" content="follow, max-image-preview:none"><a href="/x">', ["/x"]),
        ('<!-- <a href="/c"> --><script>"<a href=/s>"</script><a href="/x">', ["/x"]),
        ('<a href="/x?utm_source=a"><a href="/x">', ["/x?utm_source=a"]),
        ('<a href="/x?b=1&amp;a=2">', ["/x?b=1&a=2"]),
        ('<a href="http://user:pass@a.example/x">', ["/x"]),
        ('<a href="http://a.example:99999/"><a href="http://[::1">', []),
    ],
)  # fmt: skip
def test_links_as_a_browser_reads_them(tmp_path: Path, html: str, paths: list[str]) -> None:
    """Only what a reader could click on within the site, and the site lets crawlers follow."""
    assert Crawl(tmp_path).paths(html) == paths


def test_a_header_may_forbid_links(tmp_path: Path) -> None:
    """X-Robots-Tag is as good as a meta tag, and the guard is counted."""
    found = Crawl(tmp_path).follow('<a href="/x"><a href="/y">', X_Robots_Tag="noindex, nofollow")

    assert found == Followed((), (LeftOut("nofollow", 2, f"{BASE}/list"),))


@pytest.mark.parametrize(
    ("rules", "links"),
    [
        ("none", 0),
        ("noindex,NoFollow", 0),
        ("max-snippet: 5, nofollow", 0),
        ("max-image-preview: none", 1),
        ("googlebot: nofollow", 1),
    ],
)
def test_rules_of_other_bots_and_for_previews_forbid_nothing(
    tmp_path: Path, rules: str, links: int
) -> None:
    """Only what is said to every robot about links counts."""
    assert len(Crawl(tmp_path).follow('<a href="/x">', X_Robots_Tag=rules).links) == links


def test_a_page_with_the_ending_of_a_file_has_links(tmp_path: Path) -> None:
    """What answers with HTML is a page, whatever its URL ends with."""
    assert Crawl(tmp_path).paths('<a href="/x">', task("/File:a.jpg", role=Role.FILE)) == ["/x"]


def test_long_links_are_left_out_and_not_remembered(tmp_path: Path) -> None:
    """Megabytes of them cost no memory behind their page, and the guard is named."""
    crawl = Crawl(tmp_path)
    found = crawl.follow(f'<a href="/{"x" * 9_000}"><a href="/{"y" * 2_500}">')

    assert [(each.guard, each.links) for each in found.left_out] == [("url_length", 2)]
    assert crawl.filter._decided == {}


def test_a_sitemap_that_a_page_links_to_is_read_all_the_same(tmp_path: Path) -> None:
    """It is a page for the one and a sitemap for the other."""
    crawl = Crawl(tmp_path)
    page = crawl.follow('<a href="/s.xml"><a href="http://cdn.example/t.xml">')
    crawl.filter.remember(page.links)
    named: list[tuple[str, float | None]] = [
        (f"{BASE}/s.xml", None),
        ("http://cdn.example/t.xml", None),
    ]

    found = crawl.filter.follow_sitemap(
        task("/robots.txt", role=Role.SITEMAP, depth=0), Sitemap("index", named, False), Budget()
    )

    assert [(each.role, each.method) for each in page.links] == [(Role.FILE, "GET")]
    assert [(each.role, each.method) for each in found.links] == [(Role.SITEMAP, "SITEMAP")] * 2


def test_a_link_is_one_deeper_and_of_the_role_of_its_ending(tmp_path: Path) -> None:
    """Documents are files; everything else may have links of its own."""
    found = Crawl(tmp_path).follow('<a href="/x"><a href="/plan.pdf"><a href="/v.mp4">')

    assert [(each.role, each.depth) for each in found.links] == [(Role.INDEX, 3), (Role.FILE, 3)]
    assert [(each.guard, each.links) for each in found.left_out] == [("file_type", 1)]


@pytest.mark.parametrize(("loopback", "expected"), [(True, [True, False]), (False, [False, False])])
def test_loopback_is_for_the_origins_of_starts_only(
    tmp_path: Path, loopback: bool, expected: list[bool]
) -> None:
    """A page that may be on this machine passes that on to its own origin, and to no other."""
    crawl = Crawl(tmp_path, hosts=("a.example", "a.example:81"))

    found = crawl.follow('<a href="/x"><a href="http://a.example:81/y">', task(loopback=loopback))

    assert [each.loopback for each in found.links] == expected


def test_what_is_in_the_ledger_is_not_found_again(tmp_path: Path) -> None:
    """Links are remembered once they are committed, and not before."""
    crawl = Crawl(tmp_path)
    html = '<a href="/x"><a href="/y">'
    first, again = crawl.follow(html), crawl.follow(html)

    crawl.filter.remember(first.links)

    assert first == again
    assert crawl.paths(html + '<a href="/z">') == ["/z"]
    assert crawl.follow(html) == Followed(found=2)


def test_a_path_that_is_known_at_one_origin_is_new_at_another(tmp_path: Path) -> None:
    """However often the pages of the first have linked to it."""
    crawl = Crawl(tmp_path, hosts=("a.example", "b.example"))
    html = '<a href="/x">'
    crawl.filter.remember(crawl.follow(html).links)
    assert [crawl.paths(html) for _ in range(3)] == [[], [], []]

    elsewhere = crawl.paths(f'<base href="http://b.example/">{html}')

    assert elsewhere == ["http://b.example/x"]


def test_a_sitemap_may_date_a_page_that_is_in_the_ledger(tmp_path: Path) -> None:
    """What a link has found before is handed on once more, so that the date can be noted."""
    crawl = Crawl(tmp_path)
    crawl.filter.remember(crawl.follow('<a href="/x">').links)
    pages = Sitemap("urlset", [(f"{BASE}/x", 5.0), (f"{BASE}/y", None)], False)

    found = crawl.filter.follow_sitemap(task("/s.xml", role=Role.SITEMAP), pages, Budget())

    assert [each.modified_at for each in found.links] == [5.0, None]


def test_links_of_committed_pages_are_not_kept_for_good(tmp_path: Path) -> None:
    """Also where no link is remembered, because a shorter way may lead there."""
    for options in ({}, {"depth": 9}):
        crawl = Crawl(tmp_path, **options)
        crawl.filter.remember(crawl.follow('<a href="/x"><a href="/y">').links)
        assert crawl.filter._waiting == {}


def test_a_link_beyond_the_depth_may_be_nearer_from_elsewhere(tmp_path: Path) -> None:
    """What is too deep here is found again on a page nearer to a start."""
    crawl = Crawl(tmp_path, depth=2)
    crawl.filter.remember(crawl.follow('<a href="/x">', task(depth=2)).links)

    [found] = crawl.follow('<a href="/x">', task(depth=1)).links

    assert found.depth == 2


def test_sessions_in_links_are_followed_once(tmp_path: Path) -> None:
    """The same page under a new session is the same page, and the guard is counted each time."""
    crawl = Crawl(tmp_path)
    first = crawl.follow('<a href="/x?PHPSESSID=1">')
    crawl.filter.remember(first.links)
    second = crawl.follow('<a href="/x?PHPSESSID=2"><a href="/x">')

    assert [each.address.url for each in first.links] == [f"{BASE}/x"]
    assert [each.guard for each in first.left_out] == ["session_parameter"]
    assert second.links == ()


def test_a_page_of_countless_links_is_bounded(tmp_path: Path) -> None:
    """The first ten thousand are followed, and the others are counted."""
    html = "".join(f'<a href="/{n}">x</a>' for n in range(12_345))

    found = Crawl(tmp_path).follow(html)

    assert len(found.links) == 10_000
    assert [(each.guard, each.links) for each in found.left_out] == [("links_per_page", 2_345)]


RULES = """
follow:
  - {css: .card, role: listing, limit: 2}
  - {regex: "/cat/[a-z]+$"}
  - {css: .also a, role: listing, on: [listing]}
"""


def test_rules_choose_links_and_roles(tmp_path: Path) -> None:
    """By selector, of the links or of what contains them, and by URL; each for its pages only."""
    crawl = described(tmp_path, RULES)
    html = """<div class=card><a href=/1></a></div><div class=card><a href=/2></a></div>
        <a class=card href=/3></a> <a href=/cat/a></a> <a href=/cat/1></a> <a href=/about></a>
        <p class=also><a href=/4></a></p>"""

    of_list, of_item = crawl.follow(html), crawl.follow(html, task(role=Role.LISTING))

    assert [(each.address.url.removeprefix(BASE), each.role) for each in of_list.links] == [
        ("/3", Role.LISTING), ("/1", Role.LISTING), ("/cat/a", Role.INDEX),
    ]  # fmt: skip
    assert [each.address.url.removeprefix(BASE) for each in of_item.links] == ["/4"]


@pytest.mark.parametrize(
    ("rule", "url", "html", "expected"),
    [
        ("next: a.n", "/list", '<a class=n href="?page=2">', ["/list?page=2"]),
        ("next: a.n", "/list", "<a href=/x>", []),
        ("parameter: page", "/list", "<a class=i href=/1>", ["/1", "/list?page=2"]),
        ("parameter: page", "/list?page=7&q=a", "<a class=i href=/1>", ["/1", "/list?q=a&page=8"]),
        ("parameter: page", "/list?page=7", "<p>nothing", []),
        ("parameter: start, first: 20, step: 20", "/l", "<a class=i href=/1>",
         ["/1", "/l?start=20"]),
        ("parameter: start, first: 20, step: 20", "/l?start=20", "<a class=i href=/1>",
         ["/1", "/l?start=40"]),
        ("path: '/p-{n}'", "/list", "<a class=i href=/1>", ["/1", "/list/p-2"]),
        ("path: '/p-{n}'", "/list/?q=1", "<a class=i href=/1>", ["/1", "/list/p-2?q=1"]),
        ("path: '/p-{n}'", "/list/p-9", "<a class=i href=/1>", ["/1", "/list/p-10"]),
        ("path: '/p-{n}', stop: .end", "/list/p-9", "<a class=i href=/1><i class=end>", ["/1"]),
        ("path: '/p-{n}', stop: .end", "/list/p-9", "<p>nothing", ["/list/p-10"]),
        ("path: '/p-{n}', regex: /flats", "/list", "<a class=i href=/1>", ["/1"]),
        ("cursor: {css: '#m', attr: data-c, parameter: after}", "/l",
         "<a class=i href=/1><b id=m data-c='x y'>", ["/1", "/l?after=x+y"]),
        ("cursor: {css: '#m', attr: data-c, parameter: after}", "/l?after=1",
         "<a class=i href=/1>", ["/1"]),
    ],
)  # fmt: skip
def test_the_next_page_of_a_list(
    tmp_path: Path, rule: str, url: str, html: str, expected: list[str]
) -> None:
    """Found by a link, a number in the URL, or a cursor, until the list ends."""
    text = f"follow: [{{css: .i, role: listing}}]\npagination: {{{rule}}}\n"

    assert described(tmp_path, text).paths(html, task(url)) == expected


def test_a_list_that_repeats_itself_ends(tmp_path: Path) -> None:
    """A server that answers with its last page for ever is asked once more, not for ever."""
    crawl = described(
        tmp_path, "follow: [{css: .i, role: listing}]\npagination: {parameter: page, max: 9}\n"
    )
    html = "<a class=i href=/1>"
    [_, following] = crawl.follow(html, task("/list?page=3")).links

    repeated = crawl.follow(html, task("/list?page=4", list_crc32=following.list_crc32))
    other = crawl.follow("<a class=i href=/2>", task("/list?page=4", list_crc32=1))
    last = crawl.follow("<a class=i href=/3>", task("/list?page=9", list_crc32=1))

    assert [each.guard for each in repeated.left_out] == ["pagination"]
    assert [each.address.url for each in repeated.links] == [f"{BASE}/1"]
    assert [each.address.url for each in other.links] == [f"{BASE}/2", f"{BASE}/list?page=5"]
    assert [(each.guard, each.example) for each in last.left_out] == [
        ("pagination", f"{BASE}/list?page=10")
    ]


def test_links_and_cursor_of_a_json_answer(tmp_path: Path) -> None:
    """Rules name its texts by URL and its HTML by selector; the cursor leads on until it is
    null."""
    crawl = described(
        tmp_path,
        """follow: [{regex: "/item/", role: listing}, {css: .i, role: listing}]
pagination: {cursor: {json: meta.next, parameter: after}}
""",
    )
    answer = {"items": [{"url": "/item/1"}, {"url": f"{BASE}/item/2"}, {"url": "/about"}],
              "html": "<a class=i href='/3'>x</a>", "meta": {"next": 17}}  # fmt: skip
    api = task("/api")

    on = crawl.paths(msgspec.json.encode(answer).decode(), api, kind="application/json")
    answer["meta"] = {"next": None}
    end = crawl.paths(msgspec.json.encode(answer).decode(), api, kind="application/json")

    assert on == ["/item/1", "/item/2", "/3", "/api?after=17"]
    assert end == on[:-1]
    assert crawl.paths("no json", api, kind="application/json") == []


@pytest.mark.parametrize(
    ("path", "answer", "cursor"),
    [
        ("meta.next", {"meta": {"next": "b"}}, "b"),
        ("pages[1].next", {"pages": [{"next": "a"}, {"next": "b"}]}, "b"),
        ("pages.next", {"pages": [{"no": 1}, {"next": "b"}]}, "b"),
        ("[0].next", [{"next": 17}], "17"),
        ("next", {"next": True}, ""),
        ("next", {"next": {"a": "b"}}, ""),
        ("next", {"next": []}, ""),
    ],
)
def test_a_cursor_in_json_is_found_by_the_paths_of_fields(
    tmp_path: Path, path: str, answer: Any, cursor: str
) -> None:
    """One syntax for all paths into JSON; what is no text and no number leads nowhere."""
    rule = f"pagination: {{cursor: {{json: '{path}', parameter: after}}}}\n"
    body = msgspec.json.encode(answer).decode()

    found = described(tmp_path, rule).paths(body, task("/api"), kind="application/json")

    assert found == [f"/api?after={cursor}"] * bool(cursor)


def test_kinds_of_pages_give_roles_and_limits(tmp_path: Path) -> None:
    """Without a rule, the URL says what a page is; a site's limit goes with each link."""
    crawl = described(tmp_path, 'pages: [{regex: "/item/", role: listing}]\nlimit: 7\n')

    found = crawl.follow("<a href=/item/1><a href=/other>").links

    assert [(each.role, each.site) for each in found] == [
        (Role.LISTING, ("a", 7)), (Role.INDEX, ("a", 7)),
    ]  # fmt: skip
    assert crawl.follow("<a href=/x>", task(role=Role.LISTING)).links == ()


def test_sitemaps_may_be_elsewhere_and_their_pages_may_not(tmp_path: Path) -> None:
    """An index may name sitemaps of any host, a few levels deep; pages are held against the
    scope."""
    crawl = Crawl(tmp_path)
    robots = task("/robots.txt", role=Role.SITEMAP, depth=0)
    cdn = Sitemap("index", [("http://cdn.example/s.xml", None)], False)
    pages = Sitemap("urlset", [(f"{BASE}/1", 5.0), ("http://b.example/2", None)], True)

    index = crawl.filter.follow_sitemap(robots, cdn, Budget())
    found = crawl.filter.follow_sitemap(robots, pages, Budget())
    deep = crawl.filter.follow_sitemap(
        task("/s.xml", role=Role.SITEMAP, depth=0, hops=5), cdn, Budget()
    )

    [sitemap], [page] = index.links, found.links
    assert (sitemap.role, sitemap.depth, sitemap.hops) == (Role.SITEMAP, 0, 1)
    assert (page.role, page.depth, page.modified_at) == (Role.INDEX, 1, 5.0)
    assert [each.guard for each in found.left_out] == ["sitemap_size"]
    assert (deep.links, [each.guard for each in deep.left_out]) == ((), ["sitemap_levels"])


def test_a_redirect_is_judged_like_a_link(tmp_path: Path) -> None:
    """Its target is a task at the same depth, one redirect on, or is left out; patterns are not for
    starts."""
    crawl = Crawl(tmp_path, exclude=("/login",))
    moved = task("/old", role=Role.START, depth=0, hops=1)

    to = crawl.filter.follow_redirect(moved, f"{BASE}/new")

    assert isinstance(to, Link)
    assert (to.role, to.depth, to.hops) == (Role.START, 0, 2)
    assert crawl.filter.follow_redirect(moved, "http://b.example/") == "out of scope"
    found = task("/found", depth=1)
    assert crawl.filter.follow_redirect(found, f"{BASE}/login?next=/") == "out of scope"
    assert isinstance(crawl.filter.follow_redirect(moved, f"{BASE}/login?next=/"), Link)
    assert crawl.filter.follow_redirect(moved, f"{BASE}/big.zip") == "file_type"


def test_the_default_site_has_no_rules() -> None:
    """Any site can be crawled with no configuration."""
    site: Site = sites.built_in().default
    assert (site.follow, site.pagination, site.pages, site.limit) == (None, (), (), None)
