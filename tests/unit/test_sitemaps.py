"""A sitemap gives its URLs and their dates, however sloppy it is; a hostile one costs little."""

import gzip
import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler.errors import FetchError
from crawler.fetch.budget import Budget
from crawler.fetch.robots import MAX_SITEMAPS, sitemap_lines
from crawler.sites import sitemaps
from crawler.sites.sitemaps import MAX_BYTES, MAX_URLS, Sitemap, posix_seconds
from tests.unit.test_turns import GAP_S, Gaps, slowness

URL = "https://a.example/maps/sitemap.xml"
NAMESPACE = 'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'
DAY = 1772323200.0  # 2026-03-01


def read(body: str | bytes) -> Sitemap:
    return sitemaps.read(body.encode() if isinstance(body, str) else body, URL, Budget())


def entry(path: str, modified: str = "") -> str:
    changed = f"<lastmod>{modified}</lastmod>" if modified else ""
    return f"<url><loc>https://a.example{path}</loc>{changed}</url>"


def urlset(*entries: str) -> str:
    return f'<?xml version="1.0"?>\n<urlset {NAMESPACE}>{"".join(entries)}</urlset>'


ONE = urlset(entry("/1", "2026-03-01"))
FOUND: list[tuple[str, float | None]] = [("https://a.example/1", DAY)]


def test_a_set_of_urls_gives_each_with_its_date() -> None:
    """In the order of the file, with null where there is no date."""
    found = read(urlset(entry("/1", "2026-03-01"), entry("/2"), entry("/3", "soon")))

    assert found == Sitemap(
        "urlset",
        [*FOUND, ("https://a.example/2", None), ("https://a.example/3", None)],
        truncated=False,
    )


def test_an_index_names_sitemaps() -> None:
    """They are told from pages by the file's first element."""
    found = read(
        f"<sitemapindex {NAMESPACE}><sitemap><loc>https://a.example/s1.xml.gz</loc>"
        "<lastmod>2026-03-01T00:00:00Z</lastmod></sitemap></sitemapindex>"
    )

    assert found == Sitemap("index", [("https://a.example/s1.xml.gz", DAY)], truncated=False)


def test_feeds_give_the_links_of_their_entries() -> None:
    """RSS with its links as text, Atom as attributes; neither the link of the feed itself nor
    others of an entry."""
    rss = (
        "<rss version='2.0'><channel><link>https://a.example/</link><item><title>x</title>"
        "<link>https://a.example/1</link><pubDate>Sun, 01 Mar 2026 00:00:00 GMT</pubDate></item>"
        "<item><link><![CDATA[https://a.example/2?a=1&b=2]]></link></item></channel></rss>"
    )
    atom = (
        "<feed xmlns='http://www.w3.org/2005/Atom'><link href='https://a.example/'/>"
        "<entry><link rel='self' href='/self'/><link href='/1'/><updated>2026-03-01</updated>"
        "</entry></feed>"
    )
    rdf = "<rdf:RDF><channel><link>/</link></channel><item><link>/1</link></item></rdf:RDF>"

    assert read(rss) == Sitemap(
        "feed", [*FOUND, ("https://a.example/2?a=1&b=2", None)], truncated=False
    )
    assert read(atom) == Sitemap("feed", FOUND, truncated=False)
    assert read(rdf).urls == [("https://a.example/1", None)]


def test_a_text_file_has_a_url_on_each_line() -> None:
    """Also with a byte order mark, empty lines, and lines as of a Mac."""
    lines = ["https://a.example/1", "", "  http://b.example/2  ", "no URL", "https://a.example/3"]
    urls = ["https://a.example/1", "http://b.example/2", "https://a.example/3"]
    for end in ("\n", "\r\n", "\r"):
        found = read("\ufeff" + end.join(lines))
        assert found == Sitemap("text", [(url, None) for url in urls], truncated=False), end


@pytest.mark.parametrize(
    "body",
    [
        gzip.compress(ONE.encode()),
        gzip.compress(gzip.compress(ONE.encode())),
        gzip.compress(ONE[:100].encode()) + gzip.compress(ONE[100:].encode()),
        gzip.compress(ONE.encode()) + b"\0\0\0",
        b"\xef\xbb\xbf" + ONE.encode(),
        ONE.encode("utf-16"),
        ONE.encode("utf-16-be"),
        ("\n\n <!-- <url> -->" + ONE).encode(),
        ONE.replace("?>", "?><?xml-stylesheet href='x'?><!-- a --><!-- b -->").encode(),
        ONE.replace("?>", "?><!DOCTYPE urlset>").encode(),
        ONE.replace("urlset", "ns0:urlset").replace("url>", "ns0:url>")
        .replace("loc>", "ns0:loc>").replace("lastmod>", "ns0:lastmod>").encode(),
        ONE.replace("<loc>", "<image:image><image:loc>https://i.example/</image:loc>"
                    "</image:image><loc>").encode(),
        ONE.replace("</loc>", "</loc><xhtml:link rel='alternate' href='/de'/>").encode(),
        ONE.replace("</url>", "<!-- <url><loc>https://c.example/</loc></url> --></url>").encode(),
        ONE.replace("<loc>", "<loc a='b'>\n  ").replace("</loc>", "\n</loc >").encode(),
        ONE.replace("https://a.example", "").encode(),
        ONE.replace("<loc>", "<loc><![CDATA[").replace("</loc>", "]]></loc>").encode(),
        ONE.replace("<url>", "").replace("</url>", "").encode(),
        ONE.replace("loc>", "LOC>").replace("urlset", "URLSET").encode(),
        re.sub(r"(<loc>.*</loc>)(<lastmod>.*</lastmod>)", r"\2\1", ONE).encode(),
        ONE.replace("<loc>", "<news:news><news:title>\xff</news:title></news:news><loc>")
        .encode("latin-1"),
    ],
    ids=[
        "gzip", "twice", "members", "padding", "bom", "utf-16", "utf-16-be", "comment first",
        "instructions", "doctype", "prefix", "images", "alternates", "comment", "blanks",
        "relative", "cdata", "no entries", "capitals", "date first", "broken encoding",
    ],
)  # fmt: skip
def test_sloppy_files_give_the_same(body: bytes) -> None:
    """Nothing of what is found in the wild loses a URL, or adds one."""
    assert read(body) == Sitemap("urlset", FOUND, truncated=False)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("?a=1&amp;b=2", "?a=1&b=2"),
        ("?a=1&b=2&copy=3&lt=4", "?a=1&b=2&copy=3&lt=4"),
        ("?a=&#38;&#x26;&apos;&quot;", "?a=&&%27%22"),
        ("/&#0;&#xFFFFFF;&nbsp;&amp;amp;", "/&nbsp;&amp;"),
        ("/имот", "/%D0%B8%D0%BC%D0%BE%D1%82"),
        ("/a b", "/a%20b"),
        ("/x#part", "/x"),
    ],
)
def test_urls_are_unescaped_once(written: str, meant: str) -> None:
    """A bare & is a character of the URL, whatever HTML would make of it."""
    [(url, _)] = read(urlset(entry(written))).urls

    assert url == f"https://a.example{'' if meant.startswith('/') else '/'}{meant}"


def test_a_declared_encoding_counts() -> None:
    """As in other files, browsers' labels are known."""
    body = urlset(entry("/имот")).replace('"1.0"?', '"1.0" encoding="CP1251"?')

    assert read(body.encode("cp1251")).urls == read(urlset(entry("/имот"))).urls


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026", None),
        ("2026-03", None),
        ("2026-03-01", 1772323200),
        ("2026-03-01T10:20Z", 1772360400),
        ("2026-03-01T10:20:30Z", 1772360430),
        ("2026-03-01T10:20:30.123456+02:00", 1772353230),
        ("2026-03-01t10:20:30-0530", 1772380230),
        ("2026-03-01 10:20:30", 1772360430),
        ("Sun, 01 Mar 2026 10:20:30 +0200", 1772353230),
        ("2026-13-01", None),
        ("2026-02-30", None),
        ("0000-01-01", None),
        ("yesterday", None),
        ("", None),
        ("9" * 1_000_000, None),
        ("Mon, 99 Foo 99999999999999999 99:99:99 +9999", None),
    ],
)
def test_dates_are_those_of_w3c_and_of_mail(text: str, seconds: float | None) -> None:
    """A date without a zone is UTC; what is no date is none."""
    assert posix_seconds(text) == seconds


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<!DOCTYPE html><html><body>Not found</body></html>",
        b"<html></html>",
        b'{"error": "not found"}',
        b"Not found\n" * 1_000_000,
        b"%PDF-1.7\n\x00\xff",
        b"\x1f\x8b\x08garbage",
        b"<!-- no end",
        b"<?xml version='1.0'?>",
        b"<" * 1_000_000,
        b'<!DOCTYPE urlset [<!ENTITY a "https://a.example/">]><urlset><url><loc>&a;</loc></url>',
        gzip.compress(gzip.compress(gzip.compress(gzip.compress(ONE.encode())))),
    ],
    ids=[
        "empty", "page", "html", "json", "words", "pdf", "gzip", "comment", "declaration", "open",
        "entities", "four times",
    ],
)  # fmt: skip
def test_what_is_no_sitemap_is_refused(body: bytes) -> None:
    """With the reason `bad_sitemap`."""
    with pytest.raises(FetchError) as caught:
        read(body)

    assert caught.value.reason == "bad_sitemap"


def test_an_empty_set_is_a_sitemap() -> None:
    """A site may have nothing to name."""
    assert read("<urlset/>") == Sitemap("urlset", [], truncated=False)


@pytest.mark.parametrize("form", ["xml", "text"])
def test_no_more_than_50000_urls_are_taken(form: str) -> None:
    """As the protocol says; what is left out is told."""
    for count in (MAX_URLS, MAX_URLS + 1):
        body = urlset(*(entry(f"/{n}") for n in range(count)))
        if form == "text":
            body = "\n".join(f"https://a.example/{n}" for n in range(count))
        found = read(body)
        assert (len(found.urls), found.truncated) == (MAX_URLS, count > MAX_URLS)
        assert found.urls[-1][0].endswith(f"/{MAX_URLS - 1}")


def test_a_file_that_is_cut_gives_what_it_has() -> None:
    """Plain or compressed: and says that there was more."""
    body = urlset(*(entry(f"/{n}") for n in range(1_000))).encode()

    for cut in (body[: len(body) // 2], gzip.compress(body)[:-2_00]):
        found = read(cut)
        assert found.truncated
        assert len(found.urls) > 100


@cache
def bomb() -> bytes:
    """A sitemap that is larger than any may be, and nearly nothing on its way."""
    return gzip.compress(b" " * (MAX_BYTES + 1_000_000))


# Made by the tests that need them: each process that runs tests would make and keep them all.
HOSTILE: dict[str, Callable[[], bytes]] = {
    "bomb": bomb,
    "bomb in a bomb": lambda: gzip.compress(bomb()),
    "bomb behind a set": lambda: gzip.compress(ONE.encode() + b" " * MAX_BYTES),
    "members": lambda: gzip.compress(b"<") * 100_000,
    "nesting": lambda: b"<urlset>" + b"<url>" * 1_000_000,
    "attributes": lambda: b"<urlset>" + b"<url><loc " + b"a='b' " * 1_000_000 + b">x</loc>",
    "open attributes": lambda: b"<feed><entry>" + b"<link a='" * 500_000,
    "long name": lambda: b"<urlset>" + b"<" + b"a" * 5_000_000,
    "long value": lambda: b"<urlset><url><loc>" + b"a" * 5_000_000 + b"</loc></url>",
    "open values": lambda: b"<urlset>" + b"<loc>" * 1_000_000,
    "open angles": lambda: b"<urlset>" + b"<" * 5_000_000,
    "comments": lambda: b"<urlset>" + b"<!-- " * 1_000_000,
    "closed comments": lambda: b"<urlset>" + b"<!----->" * 600_000,
    "comments first": lambda: b"<!-- -->" * 600_000 + b"<urlset/>",
    "open cdata": lambda: b"<urlset>" + b"<loc><![CDATA[" * 400_000,
    "references": lambda: b"<urlset>" + (b"<loc>" + b"&#38;" * 3_000 + b"</loc>") * 300,
    "hosts": lambda: b"<urlset>" + (b"<loc>http://" + b"x\xc3\xa9" * 5_000 + b"/</loc>") * 300,
    "dates": lambda: b"<urlset>" + b"<lastmod>" + b"Sun, 01 Mar 2026 " * 300_000,
    "blanks": lambda: b" " * 5_000_000,
    "lines": lambda: b"\n" * 5_000_000,
    "one line": lambda: b"a" * 5_000_000,
    "urls": lambda: b"http://a.example/" * 300_000,
    "instructions": lambda: b"<?xml ?>" * 600_000 + b"<urlset/>",
    "doctypes": lambda: b"<!DOCTYPE a>" * 400_000 + b"<urlset/>",
    "utf-16": lambda: "<urlset>".encode("utf-16") + b"a\0" * 2_500_000,
    "halves": lambda: "<urlset>".encode("utf-16") + b"\0\xd8" * 1_000_000,
    "declared": lambda: b'<?xml encoding="' + b"x" * 5_000_000,
}


@pytest.mark.parametrize("shape", HOSTILE)
def test_a_hostile_file_lets_others_have_their_turn(shape: str) -> None:
    """The clock is looked at all the time, and the work is in proportion to the bytes."""
    body = HOSTILE[shape]()
    for _ in range(5):
        before = slowness()
        gaps = Gaps()
        began = time.thread_time()
        with suppress(FetchError):
            sitemaps.read(body, URL, Budget(clock=gaps))
        gaps()
        spent = time.thread_time() - began
        slow = max(before, slowness())
        if gaps.longest <= GAP_S * slow and spent <= 10 * slow:
            return
    raise AssertionError(f"{gaps.longest:.2f} s before {gaps.where}, {spent:.1f} s in all")


def test_a_budget_ends_it() -> None:
    """No sitemap takes more CPU time than its page has."""
    with pytest.raises(FetchError) as caught:
        sitemaps.read(bomb(), URL, Budget(cpu_s=0.001))

    assert caught.value.reason == "too_costly"


def test_memory_is_given_back() -> None:
    """What was decompressed counts as long as it is there."""
    budget = Budget()
    budget.hold(1_000)

    sitemaps.read(gzip.compress(ONE.encode()), URL, budget)

    assert budget.held == 1_000


@given(
    st.lists(
        st.sampled_from(
            ["<urlset>", "<url>", "</url>", "<loc>", "</loc>", "<lastmod>", "2026-03-01", "<!--",
             "-->", "<![CDATA[", "]]>", "https://a.example/", "&amp;", "<", ">", "\0", "é",
             "<feed>", "<entry>", "<link href='", "'/>", "<rss>", "<item>", "<?xml", "?>"]
        )
    ),
    st.sampled_from(["utf-8", "utf-16", "latin-1"]),
)  # fmt: skip
def test_any_text_is_read_or_refused(parts: list[str], encoding: str) -> None:
    """Never with another error, and never with what is no URL."""
    with suppress(FetchError):
        for url, modified in read("".join(parts).encode(encoding)).urls:
            assert url.startswith(("http://", "https://"))
            assert modified is None or isinstance(modified, float)


# robots.txt


def test_robots_txt_names_sitemaps() -> None:
    """In any case and place, without doubles; relative ones count, other schemes do not."""
    text = (
        "\ufeffSitemap: https://a.example/1.xml\nUser-agent: *\nDisallow: /\n"
        "  sitemap :https://b.example/2.xml # the second\r\nSITEMAP: /3.xml\r"
        "Site-map: https://a.example/1.xml\nSitemap:\nSitemap: ftp://a.example/4\n"
        "#Sitemap: https://a.example/5\nHost: a.example\nSitemap: http://[bad/\n"
    )
    found = sitemap_lines(text.encode(), "https://a.example/robots.txt", Budget())

    assert found == [
        "https://a.example/1.xml",
        "https://b.example/2.xml",
        "https://a.example/3.xml",
    ]


def test_robots_txt_names_no_more_than_a_hundred() -> None:
    """A file of half a megabyte could name ten thousand."""
    body = b"".join(b"Sitemap: /%d\n" % n for n in range(10_000))

    assert len(sitemap_lines(body, "https://a.example/robots.txt", Budget())) == MAX_SITEMAPS
