"""`sites` lists, checks, shows and drafts the files of sites."""

import json
import re
from pathlib import Path

import pytest

from tests.support.pages import HTML, Answer, Pages
from tests.support.stack import Folder

SECRET = "s3cret-t0ken"


@pytest.fixture
def sites(folder: Folder) -> Path:
    """The folder of site files, with one of a county."""
    path = folder.path / "config" / "sites"
    path.mkdir(parents=True)
    (path / "county.yaml").write_text(
        "hosts: [a.example, b.example]\nstart: http://a.example/\nrate: 5/s\n"
        f"headers: {{Authorization: {SECRET}}}\npages: [{{regex: /p/, fields: {{owner: td}}}}]\n"
    )
    return path


def test_list_names_every_site(folder: Folder, sites: Path) -> None:
    """With hosts, kinds of pages, starts and version, also as JSON."""
    (folder.path / "config" / "start_urls.yaml").write_text("imot.bg: [http://c.example/]\n")

    [county, imot] = json.loads(folder.crawler("sites", "list", "--json").stdout)
    text = folder.crawler("sites", "list").stdout

    assert (county["name"], county["hosts"], county["starts"]) == (
        "county",
        ["a.example", "b.example"],
        1,
    )
    assert (county["kinds"], county["fields"]) == (["listing"], 1)
    assert (imot["name"], imot["hosts"], imot["starts"]) == ("imot.bg", ["c.example"], 1)
    for part in ("county", county["version"], "a.example, b.example", "imot.bg", "1 start"):
        assert part in text


def test_check_names_the_secrets_files_of_logins(folder: Folder, sites: Path) -> None:
    """One that is missing is a fault; one that others may use is a warning on stderr."""
    with (sites / "county.yaml").open("a") as file:
        file.write("login: {url: 'http://a.example/in', secrets: s.txt, form: {values: {p: $p}}}\n")
    missing = folder.crawler("sites", "check")
    assert (missing.returncode, "county.yaml, line 6: login.secrets: " in missing.stdout) == (
        2,
        True,
    )

    (sites.parent / "s.txt").write_text("p=1\n")
    (sites.parent / "s.txt").chmod(0o644)
    open_to_all = folder.crawler("sites", "check", "--json")

    assert (open_to_all.returncode, json.loads(open_to_all.stdout)) == (0, [])
    assert "warning: others than its owner may use" in open_to_all.stderr
    assert "chmod 600" in open_to_all.stderr


def test_list_without_files_says_so(folder: Folder) -> None:
    """An empty list is no error."""
    done = folder.crawler("sites", "list")

    assert (done.returncode, "no site has a file" in done.stdout) == (0, True)
    assert json.loads(folder.crawler("sites", "list", "--json").stdout) == []


def test_check_prints_every_fault_with_its_line(folder: Folder, sites: Path) -> None:
    """Of all files and all at once, exit code 2; a file elsewhere can be checked alone."""
    good = folder.crawler("sites", "check")
    assert (good.returncode, good.stdout) == (0, "no faults (1 site)\n")

    (sites / "county.yaml").write_text("hosts: a.example\nrat: 1/s\nfollow: {}\n")
    (sites / "city.yaml").write_text("hosts: c.example\nlimit: 0\n")
    bad = folder.crawler("sites", "check")
    assert bad.returncode == 2
    assert re.findall(r"(\w+\.yaml), line (\d+)", bad.stdout) == [
        ("city.yaml", "2"),
        ("county.yaml", "2"),
        ("county.yaml", "3"),
    ]
    found = json.loads(folder.crawler("sites", "check", "--json").stdout)
    assert [each["line"] for each in found] == [2, 2, 3]

    alone = folder.path / "draft.yaml"
    alone.write_text("hosts: d.example\n")
    assert folder.crawler("sites", "check", str(alone)).stdout == "no faults (1 file)\n"
    written = folder.path / "draft.py"
    written.write_text(
        "class Draft:\n    hosts = 5 + 5\n    def extract_listing(self, page): ...\n"
    )
    for path in (sites / "city.yaml", folder.path / "none.yaml", written):
        done = folder.crawler("sites", "check", str(path))
        assert (done.returncode, len(done.stdout.splitlines())) == (2, 1)


def test_check_takes_names_of_sites(folder: Folder, sites: Path) -> None:
    """Also of one that is broken or has no file of its own; a folder and an unknown name are told
    as what they are."""
    config = folder.path / "config"
    (config / "start_urls.yaml").write_text("imot.bg: [http://c.example/]\n")
    good = folder.crawler("sites", "check", "County", "imot.bg")
    (sites / "city.yaml").write_text("hosts: c.example\nlimit: 0\n")

    bad = folder.crawler("sites", "check", "city", "county")
    neither = folder.crawler("sites", "check", str(sites), "config", "conty")

    assert (good.returncode, good.stdout) == (0, "no faults (2 files)\n")
    assert bad.returncode == 2
    assert re.findall(r"(\w+\.yaml), line (\d+)", bad.stdout) == [("city.yaml", "2")]
    assert neither.returncode == 2
    reasons = [line.partition(": ")[2] for line in neither.stdout.splitlines()]
    assert reasons == [
        *["this is a folder; name files or sites, or nothing to check all of config/"] * 2,
        "there is no such file, and no site of this name",
    ]


def test_show_tells_where_each_setting_comes_from(folder: Folder, sites: Path) -> None:
    """The file and the line, the defaults, a variable, or what is built in; and no secret."""
    (folder.path / "config" / "scraping_defaults.yaml").write_text("\ntimeout_s: 7\n")
    (folder.path / "config" / "start_urls.yaml").write_text("county: {config: {limit: 9}}\n")

    done = folder.crawler("sites", "show", "county", "--json")
    facts = json.loads(done.stdout)["settings"]
    text = folder.crawler("sites", "show", "http://b.example/x").stdout

    def shown(key: str) -> tuple[object, str]:
        return facts[key]["value"], facts[key]["from"].rpartition("/")[2]

    assert shown("rate") == ("5/s", "county.yaml, line 3")
    assert shown("timeout_s") == (7, "scraping_defaults.yaml, line 2")
    assert shown("limit") == (9, "start_urls.yaml, line 1")
    assert shown("connect_timeout_s") == (10, "built in")
    assert shown("headers") == ({"Authorization": "***"}, "county.yaml, line 4")
    assert SECRET not in done.stdout + text
    assert "county.yaml, line 3" in text
    default = json.loads(folder.crawler("sites", "show", "default", "--json").stdout)["settings"]
    assert default["rate"] == {"value": "none", "from": "CRAWLER_RATE"}


def test_show_of_an_unknown_site_names_the_nearest(folder: Folder, sites: Path) -> None:
    """A typing error costs one line."""
    done = folder.crawler("sites", "show", "conty")

    assert (done.returncode, "did you mean county?" in done.stderr) == (2, True)


ROWS = "".join(f"<li class=hit><a href=/page/{n}>Parcel {n} here</a>" for n in range(10, 16))
WORDS = "All parcels of the county, with owners, values and sales, as of this year. " * 10
LIST = f"<html><body><h1>Parcels</h1><p>{WORDS}</p><ul>{ROWS}</ul></body></html>"


def test_new_drafts_a_file(folder: Folder, pages: Pages) -> None:
    """From a list, printed or written to a file that `check` accepts; what exists is not
    replaced."""
    pages.answers["/list"] = Answer(LIST, headers=HTML)
    target = folder.path / "config" / "sites" / "here.yaml"

    shown = folder.crawler("sites", "new", f"{pages.url}/list")
    assert shown.returncode == 0, shown.stderr
    assert "6 links to items" in shown.stderr
    assert "the draft has no link to the next page: if the list has more pages, add" in shown.stderr
    assert (
        f"the draft has no fields: draft from an item, such as {pages.url}/page/10" in shown.stderr
    )

    as_json = json.loads(folder.crawler("sites", "new", f"{pages.url}/list", "--json").stdout)
    assert (as_json["items"], as_json["text"]) == (6, shown.stdout)
    assert len(as_json["lacks"]) == 2

    made = folder.crawler("sites", "new", f"{pages.url}/list", "--output", str(target))
    assert made.returncode == 0, made.stderr
    assert target.read_text() == shown.stdout
    assert folder.crawler("sites", "check").returncode == 0
    again = folder.crawler("sites", "new", f"{pages.url}/list", "--output", str(target))
    assert (again.returncode, "--force replaces it" in again.stderr) == (2, True)
    forced = folder.crawler("sites", "new", f"{pages.url}/list", "--output", str(target), "--force")
    assert forced.returncode == 0
    [facts] = json.loads(folder.crawler("sites", "list", "--json").stdout)
    assert (facts["name"], facts["starts"]) == ("here", 1)


def test_new_writes_no_file_that_would_be_no_site(folder: Folder) -> None:
    """A bad name, ending or folder is refused before the page is fetched."""
    for name in ("My Site.yaml", "here.yml", "default.yaml", "no/such/here.yaml"):
        target = folder.path / name
        made = folder.crawler("sites", "new", "http://127.0.0.1:9/", "--output", str(target))
        assert (made.returncode, target.exists()) == (2, False), made.stderr
        assert str(target) in made.stderr


def test_new_of_a_page_that_cannot_be_had_says_why(folder: Folder, pages: Pages) -> None:
    """Nothing is drafted from an error page, nor against robots.txt."""
    pages.answers["/robots.txt"] = Answer("User-agent: *\nDisallow: /secret\n")
    for path, reason in (("/none", "http_404"), ("/secret", "robots")):
        done = folder.crawler("sites", "new", pages.url + path)
        assert (done.returncode, reason in done.stderr, done.stdout) == (1, True, ""), done


def test_a_crawl_with_a_draft_collects_the_items(folder: Folder, pages: Pages) -> None:
    """By the site's name, and nothing else is needed."""
    pages.answers["/list"] = Answer(LIST, headers=HTML)
    items = pages.parcels(20)[10:16]
    target = folder.path / "config" / "sites" / "here.yaml"
    made = folder.crawler("sites", "new", f"{pages.url}/list", "--output", str(target))
    assert made.returncode == 0, made.stderr

    crawled = folder.crawler("crawl", "here", "--workers", "1")

    assert crawled.returncode == 0, crawled.stderr
    found = {each["url"]: each["data"] for each in folder.results()}
    assert set(items) <= set(found)
    assert found[items[0]]["fields"]["Owner"] == "Nora Whitfield"
