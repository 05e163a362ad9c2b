"""Which links a crawl follows: hosts, patterns, and guards against sites without end."""

import pytest

from crawler.models import CrawlOptions
from crawler.scraping.scope import OUT, Scope, without_session

NOW = 1_794_000_000.0
"""In November 2026."""


def scope(*hosts: str, include: tuple[str, ...] = (), exclude: tuple[str, ...] = ()) -> Scope:
    """The scope of a crawl of these hosts."""
    given = CrawlOptions(starts=(), hosts=hosts or ("a.example",), include=include, exclude=exclude)
    return Scope(given, clock=lambda: NOW)


@pytest.mark.parametrize(
    ("hosts", "url", "covered"),
    [
        (("a.example",), "http://a.example/", True),
        (("a.example",), "https://a.example/x?y", True),
        (("a.example",), "https://www.a.example/", True),
        (("www.a.example",), "https://a.example/", True),
        (("a.example",), "https://b.a.example/", False),
        (("a.example",), "https://a.example:8443/", False),
        (("a.example",), "https://xa.example/", False),
        (("a.example",), "https://a.example.evil.example/", False),
        (("a.example", "*.a.example"), "https://b.a.example/", True),
        (("*.a.example",), "https://a.example/", False),
        (("*.a.example",), "https://evila.example/", False),
        (("127.0.0.1:8000",), "http://127.0.0.1:8000/", True),
        (("127.0.0.1:8000",), "http://127.0.0.1:8001/", False),
        (("a.example:*",), "http://a.example:81/", True),
        (("a.example:*",), "http://b.example/", False),
    ],
)
def test_hosts(hosts: tuple[str, ...], url: str, covered: bool) -> None:
    """A host is in scope with its port, with and without www, and others only by a pattern."""
    assert scope(*hosts).covers(url) is covered


def test_patterns_choose_within_the_hosts() -> None:
    """A link must match one of the included patterns, and none of the excluded."""
    chosen = scope(include=("/listing/", "page="), exclude=("print",))

    assert chosen.covers("http://a.example/listing/1")
    assert chosen.covers("http://a.example/?page=2")
    assert not chosen.covers("http://a.example/about")
    assert not chosen.covers("http://a.example/listing/1?print=1")
    assert not chosen.covers("http://b.example/listing/1")


@pytest.mark.parametrize(
    ("path", "guard"),
    [
        ("/a/b/c", ""),
        ("/a/b/a/b/a/b", ""),
        ("/a/b/a/b/a/b/a/b", "repeated_path"),
        ("/x" * 4, "repeated_path"),
        ("/" + "x" * 2000, "url_length"),
        ("/film.MP4", "file_type"),
        ("/archive.tar.gz?download=1", "file_type"),
        ("/report.pdf", ""),
        ("/v1.2/page", ""),
        ("/?month=2027-05", ""),
        ("/?month=2031-05", "calendar"),
        ("/?month=05-2031", "calendar"),
        ("/?year=1870&month=1", "calendar"),
        ("/?year=1970&month=1", ""),
        ("/?start=1500", ""),
        ("/?price_from=150000", ""),
        ("/?yearbuilt=1820", ""),
        ("/?saledate=1812-03-04", ""),
        ("/?candidate=4711", ""),
        ("/events/4711", ""),
        ("/wiki/Node.js", ""),
        ("/?date=20310501", "calendar"),
        ("/?date=4000000000", "calendar"),
        ("/?date=1793000000", ""),
        ("/?q=2031", ""),
        ("/calendar/2026/11", ""),
        ("/calendar/2031/11", "calendar"),
        ("/events/2019-01", ""),
        ("/events/1819-01", "calendar"),
        ("/news/1998/05/wall", ""),
        ("/listing/20310501", ""),
    ],
)
def test_guards(path: str, guard: str) -> None:
    """Each guard leaves out what it is for, and nothing else."""
    assert scope().refuses(f"http://a.example{path}") == guard


def test_what_is_out_of_scope_is_no_guards_work() -> None:
    """A link to elsewhere is left out without a word."""
    assert scope().refuses("http://b.example/film.mp4") == OUT


@pytest.mark.parametrize(
    ("url", "bare"),
    [
        ("http://a.example/x?PHPSESSID=abc&p=2", "http://a.example/x?p=2"),
        ("http://a.example/x;jsessionid=A1B2?p=2", "http://a.example/x?p=2"),
        ("http://a.example/x;jsessionid=A1B2", "http://a.example/x"),
        ("http://a.example/(S(abc123))/x", "http://a.example/x"),
        ("http://a.example/x?sid=8fad34bbb0c1ed095fbf1b50cb", "http://a.example/x"),
        ("http://a.example/x?sid=42", "http://a.example/x?sid=42"),
        ("http://a.example/x?s=shoes", "http://a.example/x?s=shoes"),
        ("http://a.example/x?ASPSESSIONIDQQ=1&a=b&cfid=2", "http://a.example/x?a=b"),
        ("http://a.example/talks?session_id=17", "http://a.example/talks?session_id=17"),
        ("http://a.example/(draft)/x", "http://a.example/(draft)/x"),
        ("http://a.example/x;v=1", "http://a.example/x;v=1"),
    ],
)
def test_sessions_in_urls(url: str, bare: str) -> None:
    """What names a visitor is taken out of a URL; what names a page stays."""
    assert without_session(url) == bare
