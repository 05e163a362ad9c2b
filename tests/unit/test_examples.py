"""The example sites: what they promise to be found on them, and how they answer."""

import gzip
import json
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from html import unescape
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus, urlencode, urljoin

import pytest
from selectolax.lexbor import LexborHTMLParser

from crawler.examples import county, domove, imoti
from crawler.examples.server import Request, Response, Running
from crawler.models import Page
from crawler.scraping.examine import examine
from crawler.sites import Site, get_scraper, load

SIZE = 120
BASE = "http://site.test"


def test_a_port_that_is_taken_is_one_line() -> None:
    """With the option that helps, and exit code 2; no traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "crawler.examples", "--port", str(port)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert f"port {port} cannot be used (address already in use); --port N" in line


@pytest.mark.parametrize("port", ["65536", "-1", "x"])
def test_a_number_that_is_no_port_is_refused(port: str) -> None:
    """As wrong usage, before anything is served."""
    done = subprocess.run(
        [sys.executable, "-m", "crawler.examples", f"--port={port}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.returncode, f"{port!r} is no port" in done.stderr) == (2, True)


class Visitor:
    """Asks a site without a network, keeps cookies, and can fill in forms."""

    def __init__(self, site: county.County | imoti.Imoti | domove.Domove) -> None:
        self.site = site
        self.cookies: dict[str, str] = {}

    def ask(self, target: str, form: dict[str, str] | None = None, **headers: str) -> Response:
        """Ask for a page and follow its redirects."""
        for _ in range(5):
            path, _, query = target.partition("?")
            fields = dict(pair.split("=", 1) for pair in query.split("&") if pair)
            fields = {key: unquote_plus(value) for key, value in fields.items()}
            method = "GET" if form is None else "POST"
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            request = Request(
                method,
                "site.test",
                path,
                fields,
                form or {},
                self.cookies,
                {"host": "site.test"} | names,
            )
            response = self.site.answer(request)
            told = dict(response.headers)
            for name, value in response.headers:
                if name == "Set-Cookie":
                    key, _, rest = value.partition("=")
                    self.cookies[key] = rest.partition(";")[0]
            if response.status not in (301, 302, 303):
                return response
            target, form = told["Location"], None
        raise AssertionError("too many redirects")

    def submit(self, page: str, css: str, **values: str) -> Response:
        """Fill in a form as a browser does: hidden fields, and the first button."""
        form = LexborHTMLParser(self.ask(page).body).css_first(css)
        assert form is not None
        given: dict[str, str] = {}
        for node in form.css("input"):
            if node.attributes.get("type") != "submit":
                given[node.attributes["name"] or ""] = node.attributes.get("value") or ""
        for node in form.css("input[type=submit][name], button[name]")[:1]:
            given[node.attributes["name"] or ""] = node.attributes["value"] or ""
        given |= values
        action = form.attributes["action"] or page
        if form.attributes.get("method") == "post":
            return self.ask(action, given)
        return self.ask(f"{action}?{urlencode(given)}")

    def links(self, response: Response, css: str) -> list[str]:
        """The targets of a page's links."""
        return [
            urljoin(BASE, node.attributes["href"] or "")
            for node in LexborHTMLParser(response.body).css(css)
        ]


def _found(visitor: Visitor, first: Response) -> list[str]:
    """The parcels of a list with all its pages."""
    found: list[str] = []
    page = first
    while True:
        found += visitor.links(page, "a.parcel")
        following = visitor.links(page, "a.next")
        if not following:
            return found
        page = visitor.ask(following[0].removeprefix(BASE))


def _sign_in(visitor: Visitor) -> Response:
    return visitor.submit("/login", "form#login", user=county.USER, password=county.PASSWORD)


@pytest.fixture
def portal() -> Visitor:
    return Visitor(county.County(SIZE, session_pages=5))


@pytest.fixture
def market() -> Visitor:
    return Visitor(imoti.Imoti(SIZE))


def _urls(visitor: Visitor, way: str) -> list[str]:
    return [it.url for it in visitor.site.listings(BASE) if it.way == way]


class TestCounty:
    def test_a_seed_gives_the_same_parcels(self) -> None:
        """Two portals of one seed are the same, those of two seeds are not."""
        first, same, other = (list(county.County(50, seed).listings(BASE)) for seed in (1, 1, 2))
        assert first == same
        assert first != other
        assert len({it.url for it in first}) == 50

    def test_every_way_finds_its_own_parcels(self, portal: Visitor) -> None:
        """Browsing, both forms, the postback list and the members' area give all, each once."""
        assert isinstance(portal.site, county.County)
        found: list[str] = []
        for link in portal.links(portal.ask("/browse"), ".townships a"):
            found += _found(portal, portal.ask(link.removeprefix(BASE)))
        assert sorted(found) == sorted(_urls(portal, "browse"))
        searched: list[str] = []
        for row in portal.site.rows():
            searched += _found(portal, portal.submit("/search", "#search", parcel=row["parcel_id"]))
        assert searched == _urls(portal, "search")
        advanced = _found(portal, portal.submit("/advanced", "#advanced", zoning="all"))
        assert advanced == _urls(portal, "advanced")
        found += searched + advanced + _postback(portal)
        members = _found(portal, _sign_in(portal))
        found += members
        assert members == _urls(portal, "members")
        assert Counter(found) == Counter(it.url for it in portal.site.listings(BASE))

    def test_a_form_without_its_hidden_fields_is_refused(self, portal: Visitor) -> None:
        """Token, state and the visitor's cookie must come back as they were."""
        assert portal.ask("/results?parcel=01-000000-0&csrf=").status == 403
        assert portal.submit("/search", "#search", csrf="other").status == 403
        assert portal.submit("/advanced", "#advanced", csrf="other").status == 403
        assert portal.submit("/advanced", "#advanced", __VIEWSTATE="x").status == 500
        assert portal.submit("/login", "#login", user=county.USER, csrf="").status == 403
        stranger = Visitor(portal.site)
        token = LexborHTMLParser(portal.ask("/search").body).css_first("[name=csrf]")
        assert token is not None
        assert stranger.ask(f"/results?parcel=1&csrf={token.attributes['value']}").status == 403
        assert portal.ask("/registry", {"__EVENTTARGET": "ctl00$grid"}).status == 500

    def test_a_login_ends_after_some_pages(self, portal: Visitor) -> None:
        """The members' area then answers with the sign-in page, status 200, until a new login."""
        assert isinstance(portal.site, county.County)
        path = _urls(portal, "members")[0].removeprefix(BASE)
        assert b"Sign in" in portal.ask(path).body
        _sign_in(portal)  # takes the first page
        for _ in range(4):
            assert b"Sale history" in portal.ask(path).body
        expired = portal.ask(path)
        assert expired.status == 200
        assert b'form id="login"' in expired.body
        _sign_in(portal)
        assert b"Sale history" in portal.ask(path).body
        assert portal.site.logins == 2
        assert b"plat" not in expired.body
        assert b"Sign in" in portal.submit("/login", "#login", user="x", password="y").body

    def test_a_detail_page_says_what_its_record_says(self, portal: Visitor) -> None:
        """Every value of the truth can be read from the page, odd names included."""
        assert isinstance(portal.site, county.County)
        owners = set()
        for it in portal.site.listings(BASE):
            if it.way == "members":
                continue
            tree = LexborHTMLParser(portal.ask(it.url.removeprefix(BASE)).body)
            text = {
                label.text(strip=True): " ".join(value.text().split())
                for label, value in zip(
                    tree.css("td.label"), tree.css("td.label + td.value"), strict=True
                )
            }
            assert text["Owner:"] == it.record["owner"]
            assert text["Situs address:"] == it.record["address"]
            assert float(text["Acreage:"].removesuffix(" ac")) == it.record["acres"]
            sold = [row.css("td")[-1].text() for row in tree.css(".sales tbody tr")]
            names = [sale["seller"] for sale in it.record["sales"]]
            assert sold == (names or ["No sales are recorded."])
            owners.add(it.record["owner"])
        assert {"O'Brien & Sons <Trust>", "Nguyễn Thị Ánh"} <= owners


def _postback(portal: Visitor) -> list[str]:
    """The registry, its pages turned as the script of such a page does."""
    page, found = portal.ask("/registry"), list[str]()
    while True:
        found += portal.links(page, "a.parcel")
        tree = LexborHTMLParser(page.body)
        following = tree.css_first("a.next-page")
        if following is None:
            return found
        call = re.search(r"__doPostBack\('([^']*)','([^']*)'\)", following.attributes["href"] or "")
        assert call is not None
        state = {
            node.attributes["name"] or "": node.attributes["value"] or ""
            for node in tree.css("form input")
        }
        state |= {"__EVENTTARGET": call[1], "__EVENTARGUMENT": call[2]}
        page = portal.ask("/registry", state)


class TestImoti:
    def test_every_way_finds_its_own_listings(self, market: Visitor) -> None:
        """Path, parameter and cursor give their listings; the sitemaps give all."""
        sale = _pages(market, "/prodazhbi{}", "/p-")
        assert sale == _urls(market, "sale")
        rent = [_final(market, url) for url in _pages(market, "/naemi{}", "?page=")]
        assert rent == _urls(market, "rent")
        assert [url for page in _cursor(market) for url in page] == _urls(market, "new")
        api, after = list[str](), "c0"
        while after:
            answer = json.loads(market.ask(f"/api/novi?after={after}").body)
            api += [item["url"] for item in answer["items"]]
            after = answer["meta"]["next"]
        assert api == _urls(market, "api")
        robots = market.ask("/robots.txt").body.decode()
        assert robots.splitlines()[-1] == f"Sitemap: {BASE}/sitemap.xml"
        mapped = list[str]()
        for place in re.findall("<loc>(.*?)</loc>", market.ask("/sitemap.xml").body.decode()):
            body = market.ask(place.removeprefix(BASE)).body
            if place.endswith(".gz"):
                body = gzip.decompress(body)
                assert body.count(b"<lastmod>") == body.count(b"<loc>")
                mapped += re.findall("<loc>(.*?)</loc>", body.decode())
        assert mapped == [it.url for it in market.site.listings(BASE)]

    def test_links_of_other_lists_lead_to_the_same_listings(self, market: Visitor) -> None:
        """Tracking and session parameters, the old path and a wrong slug change no page."""
        links = _pages(market, "/luks{}", "?page=") + _pages(market, "/naemi{}", "?page=")
        for mark in ("utm_source", "fbclid", "PHPSESSID", "/oferta.php"):
            assert any(mark in link for link in links)
        known = {it.url for it in market.site.listings(BASE)}
        assert {_final(market, link) for link in links} <= known
        assert (
            market.ask("/obiava/100000-other").body == market.ask("/obiava/100000-apartament").body
        )

    def test_a_detail_page_says_what_its_record_says(self, market: Visitor) -> None:
        """The pages are windows-1251 and hold prices, areas and floors as people write them."""
        seen = set[str]()
        for it in market.site.listings(BASE):
            response = market.ask(it.url.removeprefix(BASE))
            text = response.body.decode("cp1251")
            assert unescape(it.record["title"]) in text
            tree = LexborHTMLParser(text)
            price = tree.css_first(".price")
            assert price is not None
            digits = re.sub(r"\D", "", price.text())
            amount = it.record["price"]["amount"] if it.record["price"] else ""
            assert digits == str(amount)
            photos = [urljoin(BASE, node.attributes["data-src"] or "") for node in tree.css("img")]
            assert photos == it.record["photos"]
            seen |= {re.sub(r"\d[\d ]*", "9", price.text())}
            seen |= {re.sub(r"[\d,]+", "9", node.text()) for node in tree.css(".params b")}
        assert {"€ 9", "9лв.", "9лв./месец", "9EUR/месец", "Цена при запитване"} <= seen
        assert {"9 кв.м", "9 дка", "9-ри от 9", "9-ти от 9", "партер от 9"} <= seen

    def test_an_unchanged_page_is_not_sent_again(self, market: Visitor) -> None:
        """ETag and 304; an edit changes the tag, the price and the date in the sitemap."""
        path = "/obiava/100000-apartament"
        tag = dict(market.ask(path).headers)["ETag"]
        assert market.ask(path, if_none_match=tag) == Response(
            b"", 304, headers=market.ask(path).headers
        )
        before = market.ask(path).body, market.ask("/sitemaps/obiavi-0.xml.gz").body
        market.ask("/_edit?id=100000")
        assert market.ask(path, if_none_match=tag).status == 200
        after = market.ask(path).body, market.ask("/sitemaps/obiavi-0.xml.gz").body
        assert before[0] != after[0]
        assert before[1] != after[1]


def _pages(market: Visitor, path: str, page: str) -> list[str]:
    found, number = list[str](), 1
    while True:
        suffix = "" if number == 1 else f"{page}{number}"
        response = market.ask(path.format(suffix))
        if b"no-results" in response.body:
            return found
        found += market.links(response, ".card a.title")
        number += 1


def _cursor(market: Visitor) -> Iterator[list[str]]:
    target = "/novi"
    while target:
        response = market.ask(target)
        yield market.links(response, ".card a.title")
        more = LexborHTMLParser(response.body).css_first("#more")
        target = f"/novi?after={more.attributes['data-cursor']}" if more else ""


def _final(market: Visitor, url: str) -> str:
    """Where a link leads: the page's canonical URL."""
    response = market.ask(url.removeprefix(BASE).partition("#")[0])
    found = LexborHTMLParser(response.body).css_first("link[rel=canonical]")
    assert found is not None
    return found.attributes["href"] or ""


class TestDomove:
    def test_its_list_leads_to_every_listing(self) -> None:
        """By links to the next page."""
        home = Visitor(domove.Domove(SIZE))
        found, target = list[str](), "/obyavi"
        while target:
            page = home.ask(target)
            found += home.links(page, "article h3 a")
            following = LexborHTMLParser(page.body).css_first("a[rel=next]")
            target = (following.attributes["href"] or "") if following else ""
        assert found == [it.url for it in home.site.listings(BASE)]

    def test_a_listing_changes_goes_and_comes_back(self) -> None:
        """By the paths that the first portal has, too."""
        site = domove.Domove(SIZE)
        home, path = Visitor(site), site.path(0)
        id_, before = path.removeprefix("/imot/"), site.record(0)["price"]["amount"]
        home.ask(f"/_edit?id={id_}")
        assert site.record(0)["price"]["amount"] == before + 1
        home.ask(f"/_gone?id={id_}")
        assert home.ask(path).status == 404
        assert path not in home.links(home.ask("/obyavi"), "article h3 a")
        home.ask(f"/_back?id={id_}")
        assert home.ask(path).status == 200
        assert home.links(home.ask("/obyavi"), "article h3 a")[0].endswith(path)

    def test_what_both_portals_have_is_told(self) -> None:
        """Each true pair names listings that are there, and as many as were asked for."""
        site, other = domove.Domove(SIZE, shared=30), imoti.Imoti(SIZE)
        here = {it.record["ref"] for it in site.listings(BASE)}
        there = {it.record["id"]: it.record for it in other.listings(BASE)}
        truth = site.truth()
        assert len(truth) == len({a for a, _ in truth}) == len({b for _, b in truth}) == 30
        assert {a for a, _ in truth} <= there.keys()
        assert {b for _, b in truth} <= here
        assert domove.Domove(SIZE, shared=30).truth() == truth
        assert domove.Domove(SIZE, seed=2, shared=30).truth() != truth


def test_both_sites_are_served_on_one_port_and_count_requests() -> None:
    """A host name chooses the site; every request is counted under its URL and its form."""
    with Running("crawler.examples", "--port", 0, "--size", 20) as sites:
        connection = HTTPConnection("127.0.0.1", sites.port, timeout=60)

        def ask(host: str, method: str, path: str, body: str = "") -> tuple[int, bytes]:
            connection.request(method, path, body, {"Host": f"{host}:{sites.port}"})
            response = connection.getresponse()
            return response.status, response.read()

        assert ask("county.localhost", "GET", "/browse")[0] == 200
        assert ask("imoti.localhost", "GET", "/browse")[0] == 404
        assert ask("imoti.localhost", "GET", "/novi?after=c0") == ask(
            "imoti.localhost", "GET", "/novi?after=c0"
        )
        assert ask("county.localhost", "POST", "/login", "user=a&password=b&csrf=c")[0] == 403
        assert ask("county.localhost", "HEAD", "/browse") == (200, b"")
        assert ask("other.localhost", "GET", "/")[0] == 404
        connection.close()
        assert sites.url("imoti.localhost") == f"http://imoti.localhost:{sites.port}"
        assert sites.requests("county") == {
            "GET county.localhost/browse": 1,
            "HEAD county.localhost/browse": 1,
            "POST county.localhost/login user=a": 1,
        }
        assert sites.requests("imoti")["GET imoti.localhost/novi?after=c0"] == 2


# Their site files.

FILES = Path(__file__).parents[2] / "examples"


def _site(name: str) -> Site:
    """A site as its example file describes it."""
    found = load(FILES).named(name)
    assert found is not None
    return found


def _page_of(response: Response, url: str) -> Page:
    return Page(
        url=url, final_url=url, status=response.status, reason="OK",
        headers=(("Content-Type", response.kind), *response.headers), body=response.body,
        raw=response.body, fetched_at=0.0, fetch_s=0.0,
    )  # fmt: skip


def _record(site: Site, response: Response, url: str) -> dict[str, Any]:
    """What the fields of the site's file find in a page that is one of its listings."""
    kind = site.kind_of(url)
    assert kind is not None
    assert kind.role == "listing"
    read = examine(_page_of(response, url), site)
    assert read.verdict.completed, read.verdict
    return read.record


class TestFiles:
    @pytest.mark.parametrize(
        ("name", "visitor"),
        [("county", Visitor(county.County(SIZE, session_pages=SIZE))),
         ("imoti", Visitor(imoti.Imoti(SIZE))),
         ("domove", Visitor(domove.Domove(SIZE)))],
    )  # fmt: skip
    def test_every_field_of_every_listing_is_as_the_site_means_it(
        self, name: str, visitor: Visitor
    ) -> None:
        """The example files read each page of their sites without a mistake."""
        site = _site(name)
        if name == "county":
            _sign_in(visitor)
        for listing in visitor.site.listings(BASE):
            record = _record(site, visitor.ask(listing.url.removeprefix(BASE)), listing.url)
            assert record == listing.record

    def test_a_login_that_has_ended_is_known_as_one(self, portal: Visitor) -> None:
        """The sign-in page in place of a parcel is no parcel."""
        url = _urls(portal, "members")[0]
        response = portal.ask(url.removeprefix(BASE))
        read = examine(_page_of(response, url), _site("county"))
        assert read.verdict.name == "login_wall"

    def test_starts_sitemaps_and_forms_are_pages_of_the_sites(
        self, portal: Visitor, market: Visitor
    ) -> None:
        """Nothing that a file names is missing, and forms have the controls that it fills in."""
        for name, visitor in (("county", portal), ("imoti", market)):
            site = _site(name)
            assert site.start
            places = [(start.url, start.form) for start in site.start]
            if site.login:
                places.append((site.login.url, site.login.form))
            for url, form in places:
                path = url.split(":8090")[1]
                response = visitor.ask(path)
                assert response.status == 200
                if form:
                    tree = LexborHTMLParser(response.body)
                    for control in form.values:
                        assert tree.css_first(f"{form.css or 'form'} [name={control}]")
            for url in site.sitemaps:
                assert visitor.ask(url.split(":8090")[1]).status == 200

    def test_the_page_about_them_shows_the_files_as_they_are(self) -> None:
        """docs/EXAMPLES.md holds the files, word for word."""
        page = (FILES.parent / "docs" / "EXAMPLES.md").read_text()
        shown = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        assert shown == [
            (FILES / "sites" / f"{name}.yaml").read_text() for name in ("county", "imoti", "domove")
        ]

    def test_the_numbers_that_the_page_names_are_right(self, portal: Visitor) -> None:
        """The parcels of the search form are those that docs/EXAMPLES.md names."""
        page = (FILES.parent / "docs" / "EXAMPLES.md").read_text()
        assert isinstance(portal.site, county.County)
        for row in portal.site.rows()[:2]:
            assert row["parcel_id"] in page
        assert f"`{county.USER}`" in page
        assert f"`{county.PASSWORD}`" in page


def test_the_class_finds_what_the_file_finds(
    market: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """examples/scrapers/imoti.py gives every record of the site, and the links of its lists."""
    monkeypatch.setenv("CRAWLER_CONFIG_DIR", str(FILES))
    scraper = get_scraper("imoti")
    for listing in market.site.listings(BASE):
        body = market.ask(listing.url.removeprefix(BASE)).body
        assert scraper.extract_listing(body, listing.url) == listing.record
    first = scraper.extract_listing_urls(market.ask("/prodazhbi").body, f"{BASE}/prodazhbi")
    assert list(first) == _urls(market, "sale")[: imoti.PER_PAGE]
