"""`map` lists the URLs of a site and leaves nothing behind."""

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pages import Answer, Pages, parcel
from tests.support.stack import Folder, wait_for

XML = {"Content-Type": "application/xml"}


def home(*links: str) -> Answer:
    """A page with these links."""
    return Answer(parcel(0) + "".join(f'<a href="{link}">x</a>' for link in links))


def urlset(*urls: str) -> Answer:
    """A sitemap."""
    return Answer(f"<urlset>{''.join(f'<url>{url}</url>' for url in urls)}</urlset>", headers=XML)


@pytest.fixture
def site(folder: Folder) -> Iterator[Pages]:
    """A site whose robots.txt names an index of two sitemaps."""
    folder.env |= {"TMPDIR": str(folder.path / "tmp"), "CRAWLER_RATE": "none"}
    (folder.path / "tmp").mkdir()
    with Pages() as pages:
        base = pages.url
        index = f"<sitemapindex><sitemap><loc>{base}/b.xml</loc></sitemap>"
        index += f"<sitemap><loc>{base}/a.xml</loc></sitemap></sitemapindex>"
        pages.answers |= {
            "/robots.txt": Answer(
                f"Sitemap: {base}/index.xml", headers={"Content-Type": "text/plain"}
            ),
            "/index.xml": Answer(index, headers=XML),
            "/b.xml": urlset(
                f"<loc>{base}/2</loc><lastmod>2026-11-01</lastmod>", f"<loc>{base}/1</loc>"
            ),
            "/a.xml": urlset(f"<loc>{base}/3</loc>", "<loc>http://other.example/</loc>"),
            "/": home("/4", "/2", "/#top", "http://other.example/", "mailto:a@b.example"),
        }
        yield pages


def left(folder: Folder) -> list[Path]:
    """Files that the command left in its folder or in the folder for temporary files."""
    return [path for path in folder.path.rglob("*") if path.name != "tmp"]


def test_sitemaps_come_first_then_links(folder: Folder, site: Pages) -> None:
    """One URL per line, each once, in scope; progress is on stderr, and nothing stays."""
    done = folder.crawler("map", site.url)

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [f"{site.url}/{path}" for path in ("2", "1", "3", "", "4")]
    assert "5 URLs, 3 of them in sitemaps" in done.stderr
    assert set(site.paths()) == {"/index.xml", "/b.xml", "/a.xml", "/"}
    assert left(folder) == []


def test_a_missing_robots_txt_is_no_sitemap_that_was_read(folder: Folder, site: Pages) -> None:
    """`map` and the summary of a crawl say so; /sitemap.xml is read all the same."""
    del site.answers["/robots.txt"]
    site.answers["/sitemap.xml"] = urlset(f"<loc>{site.url}/3</loc>")
    for path in ("/2", "/3", "/4"):
        site.answers[path] = home()

    mapped = folder.crawler("map", site.url)
    crawled = folder.crawler("crawl", f"{site.url}/", "--workers", "1")

    assert (
        "/robots.txt: there is no robots.txt (status 404); /sitemap.xml is tried" in mapped.stderr
    )
    assert mapped.stdout.split() == [f"{site.url}/{path}" for path in ("3", "", "4", "2")]
    assert crawled.returncode == 0, crawled.stdout
    told = next(line for line in crawled.stdout.splitlines() if "robots.txt" in line)
    assert sorted(told.strip().split(", ")) == ["1 site without robots.txt", "1 sitemap read"]


def test_json_says_where_each_url_was_found(folder: Folder, site: Pages) -> None:
    """With lastmod, source and the page or sitemap; a start in a sitemap counts as its."""
    site.answers["/a.xml"] = urlset(f"<loc>{site.url}/</loc><lastmod>2026-11-02T10:00Z</lastmod>")

    done = folder.crawler("map", site.url, "--json")

    assert done.returncode == 0, done.stderr
    found = {each.pop("url").removeprefix(site.url): each for each in json.loads(done.stdout)}
    assert list(found) == ["/2", "/1", "/", "/4"]
    told = [(each["lastmod"], each["source"], each["found_on"]) for each in found.values()]
    assert told == [
        ("2026-11-01T00:00:00.000Z", "sitemap", f"{site.url}/b.xml"),
        (None, "sitemap", f"{site.url}/b.xml"),
        ("2026-11-02T10:00:00.000Z", "sitemap", f"{site.url}/a.xml"),
        (None, "link", f"{site.url}/"),
    ]


def test_options_narrow_the_list(folder: Folder, site: Pages) -> None:
    """Patterns, sitemaps alone or not at all, and a limit that is said."""

    def listed(*options: str) -> tuple[list[str], str]:
        done = folder.crawler("map", site.url, *options)
        assert done.returncode == 0, done.stderr
        return [url.removeprefix(site.url) for url in done.stdout.split()], done.stderr

    assert listed("--include", "/[34]$")[0] == ["/3", "/", "/4"]
    assert listed("--exclude", "/[34]$")[0] == ["/2", "/1", "/"]
    assert listed("--sitemap", "skip")[0] == ["/", "/4", "/2"]
    site.asked.clear()
    assert listed("--sitemap", "only")[0] == ["/2", "/1", "/3"]
    assert "/" not in site.paths()
    site.asked.clear()
    urls, said = listed("--limit", "1")
    assert (urls, "--limit" in said) == (["/2"], True)
    assert "/a.xml" not in site.paths()


def test_redirects_of_the_start_are_followed(folder: Folder, site: Pages) -> None:
    """The page where they end is the start, so it need not fit --include; one that leaves the site
    is an error."""
    site.answers["/"] = Answer("", 302, {"Location": "/home"})
    site.answers["/home"] = home("/4")
    site.answers["/away"] = Answer("", 302, {"Location": "http://other.example/"})

    done = folder.crawler("map", site.url, "--sitemap", "skip", "--include", "/4")
    away = folder.crawler("map", f"{site.url}/away", "--sitemap", "skip")

    assert (done.returncode, done.stdout.split()) == (0, [f"{site.url}/home", f"{site.url}/4"])
    assert (away.returncode, away.stdout) == (1, "")
    assert "redirects to http://other.example/" in away.stderr


def test_a_site_without_sitemaps(folder: Folder, site: Pages) -> None:
    """Its links are listed; with --sitemap only there is nothing, which is an error."""
    for path in ("/robots.txt", "/index.xml"):
        del site.answers[path]

    both = folder.crawler("map", site.url)
    only = folder.crawler("map", site.url, "--sitemap", "only")

    assert (both.returncode, len(both.stdout.split())) == (0, 3)
    assert f"there is no sitemap at {site.url}/sitemap.xml" in both.stderr
    assert (only.returncode, only.stdout) == (1, "")
    assert "no URL was found" in only.stderr


def test_what_cannot_be_read_is_said(folder: Folder, site: Pages) -> None:
    """A forbidden start, a broken sitemap, a dead server and bad input: a line and an exit code,
    and what could be read is listed."""
    (folder.path / "config").mkdir()
    (folder.path / "config" / "scraping_defaults.yaml").write_text("retry: {attempts: 1}\n")
    site.answers["/b.xml"] = Answer("", 500)
    rules = f"Sitemap: {site.url}/index.xml\nUser-agent: *\nDisallow: /private"
    site.answers["/robots.txt"] = Answer(rules, headers={"Content-Type": "text/plain"})

    broken = folder.crawler("map", site.url)
    assert (broken.returncode, f"{site.url}/3" in broken.stdout) == (1, True)
    assert f"{site.url}/b.xml: the server answered 500" in broken.stderr
    private = folder.crawler("map", f"{site.url}/private", "--sitemap", "skip")
    assert (private.returncode, private.stdout, "robots" in private.stderr) == (1, "", True)
    dead = folder.crawler("map", "http://127.0.0.1:9/")
    assert (dead.returncode, dead.stdout) == (1, "")
    assert "the connection failed" in dead.stderr
    for wrong in (["nonsense"], [site.url, "--include", "("], [site.url, "--limit", "-1"]):
        done = folder.crawler("map", *wrong)
        assert (done.returncode, done.stdout) == (2, ""), wrong
    assert [path for path in left(folder) if "config" not in str(path)] == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_map_leaves_nothing(
    folder: Folder, site: Pages, number: signal.Signals, code: int
) -> None:
    """Neither files nor a process, in the middle of a request."""
    end = threading.Event()

    def hang(path: str) -> None:
        if path == "/a.xml":
            end.wait(600)

    site.rule = hang
    process = folder.start("crawler", "map", site.url)
    try:
        wait_for(lambda: "/a.xml" in site.paths(), 60, "the second sitemap")
        assert list((folder.path / "tmp").iterdir())
        process.send_signal(number)
        assert process.wait(60) == code
    finally:
        end.set()
        process.kill()
        process.wait()
    assert list((folder.path / "tmp").iterdir()) == []
    assert not (folder.data / "lpm.db").exists()
