"""`judge`: one page explained, from a file, from the store or from the server."""

import json
import subprocess
import sys

import pytest

from tests.support.corpus import FOLDER
from tests.support.site import Site
from tests.support.stack import Folder

CHALLENGE = (
    "<html><title>Just a moment...</title><body><script>window._cf_chl_opt={}</script></body>"
    "</html>"
)
RECORD = (
    "<html><body><h1>Parcel 7</h1><table>"
    + "<tr><td>Owner</td><td>Nora</td></tr>" * 6
    + "</table></body></html>"
)


def test_a_file_is_explained(folder: Folder) -> None:
    """Verdict, vendor, evidence and what follows are shown, and a wall ends with 1."""
    (folder.path / "page.html").write_text(CHALLENGE)

    done = folder.crawler("judge", "page.html", "--status", "403", "--header", "Server: cloudflare")

    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("captcha (cloudflare)\n")
    assert "_cf_chl_opt in the markup" in done.stdout
    assert "retry later" in done.stdout
    assert "counts captcha against the domain" in done.stdout


def test_standard_input_and_json(folder: Folder) -> None:
    """A page can be piped in, and a program can read the verdict."""
    done = subprocess.run(
        [sys.executable, "-m", "crawler", "judge", "-", "--json"],
        cwd=folder.path,
        env=folder.env,
        input=RECORD,
        capture_output=True,
        text=True,
        check=False,
    )

    facts = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert (facts["verdict"], facts["vendor"], facts["source"]) == ("ok", None, "file")
    assert facts["decides"] == {
        "state": "completed",
        "quarantine": False,
        "retry": None,
        "breaker": "",
        "proxy_score": 1,
    }


def test_a_stored_page_is_not_fetched_again(folder: Folder, site: Site) -> None:
    """Of a URL in the store the stored page is judged, with its status and headers."""
    good, gone = site.page(3), f"{site.url}/status/404"
    folder.crawler("scrape", good)
    folder.crawler("scrape", gone)
    before = site.hits()

    facts = json.loads(folder.crawler("judge", good, "--json").stdout)
    missing = folder.crawler("judge", gone, "--json")

    assert (facts["verdict"], facts["source"], facts["status"]) == ("ok", "store", 200)
    assert missing.returncode == 1
    assert json.loads(missing.stdout)["decides"]["retry"] == "give up"
    assert site.hits() == before


def test_another_page_is_fetched_and_nothing_is_stored(folder: Folder, site: Site) -> None:
    """Of a URL that is not in the store the page is fetched; no store is made for it."""
    done = folder.crawler("judge", site.page(4))

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ok\n")
    assert "from the server" in done.stdout
    assert not folder.data.exists()


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("nowhere.html",), "nowhere.html: there is no such file, and it is no URL either"),
        ((".",), ".: this is a folder, not a page"),
        (("ftp://county.example/x",), "only http and https are fetched"),
        (("deep.html",), "deep.html: The page is not parsed"),
        (("deep.html", "--header", "nonsense"), "'nonsense' is not a header; write 'Name: value'"),
        (("http://county.example/", "--status", "200"), "--status and --header are for files"),
    ],
)
def test_what_cannot_be_judged_says_why(folder: Folder, args: tuple[str, ...], reason: str) -> None:
    """What is no page gives one line and exit code 2, never a traceback."""
    (folder.path / "deep.html").write_text("<div>" * 100_000)

    done = folder.crawler("judge", *args)

    assert done.returncode == 2
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_too_large_is_not_read(folder: Folder) -> None:
    """A file beyond the limit of a page is refused by its size."""
    (folder.path / "big.html").write_text("x" * 2_000)

    done = folder.crawler("judge", "big.html", CRAWLER_MAX_BODY="1000")

    assert done.returncode == 2
    assert "larger than the 1,000 bytes" in done.stderr


def test_what_is_no_html_is_kept(folder: Folder) -> None:
    """The corpus itself is a text file: it is judged by its bytes, as an answer that is no page."""
    done = folder.crawler(
        "judge", str(FOLDER / "README.md"), "--header", "Content-Type: text/markdown"
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ok\n")
