"""Forms and logins through the real doors: every page once, and no secret in any file."""

import gzip
import json
import re
import stat
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from crawler import crawls
from crawler.config import Settings
from crawler.errors import UsageError
from crawler.models import JobOptions
from crawler.sites import load
from tests.support.portal import PASSWORD, USER, Portal, Reply, moved
from tests.support.stack import Folder

LOGIN = """
login:
  url: {url}/login
  form: {{css: form#login, values: {{user: $user, password: $password}}}}
"""
LISTS = """
start:
  - url: {url}/search
    form: {{css: form#search, values: {{owner: Елена, kind: сграда}}}}
  - {url}/list
follow:
  - css: a.item
    role: listing
pagination:
  postback: a.next
"""


@pytest.fixture
def portal() -> Iterator[Portal]:
    """The county's portal."""
    with Portal() as portal:
        yield portal


def describe(folder: Folder, portal: Portal, *parts: str) -> None:
    """Write the file of the site."""
    file = folder.path / "config" / "sites" / "county.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("hosts: [127.0.0.1]\n" + "".join(parts).format(url=portal.url))


def write_secrets(folder: Folder, password: str = PASSWORD) -> str:
    """Write the file of secrets."""
    file = folder.path / "my-secrets.txt"
    file.write_text(f"user={USER}\npassword={password}\n")
    return str(file)


def holding(folder: Path, secrets: list[str], *besides: Path) -> list[Path]:
    """The files that hold a secret, packed ones included."""

    def content(path: Path) -> bytes:
        data = path.read_bytes()
        return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data

    files = [path for path in folder.rglob("*") if path.is_file() and path not in besides]
    return [path for path in files if any(each.encode() in content(path) for each in secrets)]


def test_a_crawl_through_a_form_and_by_postbacks(folder: Folder, portal: Portal) -> None:
    """A search in windows-1251 and a list that goes on by script give every listing once."""
    describe(folder, portal, LISTS)

    done = folder.crawler("crawl", "county", "--workers", "2", "--json")

    assert done.returncode == 0, done.stderr
    found = Counter(result["url"] for result in folder.results())
    assert {url: n for url, n in found.items() if "/parcel/" in url} == {
        f"{portal.url}/parcel/{n}": 1 for n in range(portal.items)
    }
    # Four pages of each list, which all have the URL that they began with.
    assert (found[f"{portal.url}/search"], found[f"{portal.url}/list"]) == (4, 4)
    finals = {result["final_url"] for result in folder.results() if "/search" in result["url"]}
    assert finals == {f"{portal.url}/results"}
    # Each further page is one request, in whichever process.
    assert Counter(portal.paths("GET"))["/search"] == portal.paths().count("/find") == 1
    assert portal.paths("POST").count("/results") == 3


def test_patterns_are_for_links_and_not_for_forms(folder: Folder, portal: Portal) -> None:
    """A form leads to its results, and they go on by postbacks, whether they fit --include or
    not."""
    describe(folder, portal, LISTS)

    done = folder.crawler("crawl", "county", "--workers", "1", "--include", "/parcel/")

    assert done.returncode == 0, done.stdout
    found = {result["url"] for result in folder.results()}
    assert {f"{portal.url}/parcel/{n}" for n in range(portal.items)} <= found


def test_a_server_that_forgets_a_list_and_says_so_nowhere(folder: Folder, portal: Portal) -> None:
    """An empty page where there should be more items is fetched again from the list's beginning."""
    portal.forgetful = 1
    describe(folder, portal, "start: {url}/list\n", LISTS.partition("/list\n")[2])

    done = folder.crawler("crawl", "county", "--workers", "2")

    assert done.returncode == 0, done.stderr
    found = {result["url"] for result in folder.results()}
    assert {f"{portal.url}/parcel/{n}" for n in range(portal.items)} <= found
    assert portal.forgetful == 0


def test_a_list_goes_on_after_its_cookies_are_gone(folder: Folder, portal: Portal) -> None:
    """They go when the job ends; a task that is tried again later begins its list anew."""
    portal.broken = True
    describe(folder, portal, "retry: {{attempts: 1}}\n", LISTS)
    crawled = folder.crawler("crawl", "county", "--workers", "2")
    assert crawled.returncode == 1, crawled.stderr
    assert "1 failed: http_500" in crawled.stdout
    assert list((folder.data / "sessions").glob("*.cookies")) == []

    portal.broken = False
    assert folder.crawler("retry", "--failed").returncode == 0
    done = folder.crawler("resume")

    assert done.returncode == 0, done.stdout
    found = Counter(result["url"] for result in folder.results())
    assert found[f"{portal.url}/search"] == 4
    assert list((folder.data / "sessions").glob("*.cookies")) == []


ROWS = "start:\n  - url: {url}/search\n    form: {{values: {{owner: '{{Owner}} & co'}}}}\n"


def test_a_search_for_each_row_of_a_file(folder: Folder, portal: Portal) -> None:
    """Each row has a result of its own search, with the row's columns, even in one session."""
    describe(folder, portal, ROWS)
    owners = [f"Елена {n}" for n in range(12)]
    file = folder.path / "parcels.csv"
    file.write_text("parcel_id,OWNER\n" + "".join(f"p-{o},{o}\n" for o in owners), "utf-8")

    done = folder.crawler("crawl", "county", "--rows", str(file), "--depth", "0")

    assert done.returncode == 0, done.stderr
    results = folder.results()
    assert {each["parcel_id"] for each in results} == {f"p-{owner}" for owner in owners}
    for each in results:
        owner = each["parcel_id"].removeprefix("p-")
        [task] = folder.lpm().tasks.find(each["task_id"])
        raw = folder.lpm().pages.read(task)
        assert raw is not None
        assert f"<h1>{owner} &amp; co, 1, Търси: page 1" in raw[1].decode()

    without = folder.crawler("crawl", "county")
    assert without.returncode == 2
    assert "needs the columns owner: give them with crawl --rows FILE" in without.stderr
    file.write_text("parcel_id,OWNER\n1,\n,,,,\n")
    refused = folder.crawler("crawl", "county", "--rows", str(file))
    assert (refused.returncode, len(folder.status()["jobs"])) == (2, 1)
    assert "line 2: no row of it can be used: the columns that the form needs" in refused.stderr


def test_a_form_for_each_row(tmp_path: Path, portal: Portal) -> None:
    """Each row of a file is a task with its own values and line; bad rows cost no good one, and a
    row that means the same counts for it."""
    folder = Folder(tmp_path)
    describe(folder, portal, ROWS)
    plan = crawls.plan(
        load(tmp_path / "config"), ["county"], JobOptions(), subdomains=False, sitemap=None
    )
    file = tmp_path / "owners.csv"
    file.write_text("OWNER,priority\nAda,2\n Елена ,\n,\nBo,77\nAda,3\n")

    first = crawls.begin(Settings(data_dir=folder.data), plan, rows_file=file)
    again = crawls.begin(Settings(data_dir=folder.data), plan, rows_file=file)

    assert (first.added, first.rejected, again.added, again.rejected) == (2, 2, 0, 2)
    assert first.rejects_file is not None
    rejects = first.rejects_file.read_text().splitlines()
    assert [json.loads(line)["line"] for line in rejects] == [4, 5]
    rows = folder.lpm().store.db.all(
        "SELECT method, priority, source_line, body FROM tasks ORDER BY id"
    )
    assert [row[:3] for row in rows] == [("FORM", 2, 2), ("FORM", 5, 3)]
    assert [json.loads(row[3])["values"] for row in rows] == [
        {"owner": "Ada & co"},
        {"owner": "Елена & co"},
    ]
    receipt = folder.lpm().receipt(first.job)
    assert (receipt.rows, receipt.known, receipt.rejected) == (5, 1, 2)
    with pytest.raises(
        UsageError, match="needs the columns owner: give them with crawl --rows FILE"
    ):
        crawls.begin(Settings(data_dir=folder.data), plan)


@pytest.mark.parametrize("wall", [200, 302])
def test_a_login_that_ends_again_and_again(folder: Folder, portal: Portal, wall: int) -> None:
    """Every page comes once and is charged nothing, whichever way the server asks to sign in."""
    portal.lasts, portal.wall_status = 7, wall
    starts = "".join(f"  - {{url}}/members/{n}\n" for n in range(40))
    describe(folder, portal, LOGIN, "start:\n", starts)

    done = folder.crawler("crawl", "county", "--secrets", write_secrets(folder), "--workers", "2")

    assert done.returncode == 0, done.stderr
    found = Counter(result["url"] for result in folder.results())
    assert found == {f"{portal.url}/members/{n}": 1 for n in range(40)}
    assert portal.refused == 0
    assert portal.logins >= 6
    failures = folder.lpm().store.db.all("SELECT DISTINCT failures FROM tasks")
    assert failures == [(0,)]


def test_a_crawl_does_not_sign_itself_out(folder: Folder, portal: Portal) -> None:
    """Links to the login page and to what signs out are left out, which is no failure."""
    links = "".join(
        f"<li><a href={path}>{path}</a>" for path in ("/login", "/logout", "/members/1")
    )
    portal.answers["/home"] = Reply(f"<title>Home</title><p>{'All of the county. ' * 30}{links}")
    describe(folder, portal, LOGIN, "start: {url}/home\n")

    done = folder.crawler("crawl", "county", "--secrets", write_secrets(folder))

    assert done.returncode == 0, done.stderr
    assert "/logout" not in portal.paths()
    assert portal.paths().count("/login") == 2
    skipped = folder.lpm().store.db.all("SELECT error_type FROM tasks WHERE status = 'skipped'")
    assert skipped == [("login_page",)] * 2


def hall(portal: Portal) -> str:
    """The URL of a page that links to one behind a login."""
    text = "All of the county. " * 30
    portal.answers["/home"] = Reply(f"<title>Home</title><p>{text}<a href=/members/1>mine</a>")
    return f"{portal.url}/home"


def walled(folder: Folder) -> tuple[str, str]:
    """State and reason of the page behind a login."""
    rows = folder.lpm().store.db.all(
        "SELECT status, error_type FROM tasks WHERE url LIKE '%/members/1'"
    )
    return (rows[0][0], rows[0][1])


def test_a_link_to_a_login_wall_is_no_failure(folder: Folder, portal: Portal) -> None:
    """As robots.txt does, it skips a page that nobody asked for; the summary names it, and no
    result is made of it."""
    done = folder.crawler("crawl", hall(portal), "--sitemap", "skip")

    assert done.returncode == 0, done.stdout + done.stderr
    assert walled(folder) == ("skipped", "login_wall")
    assert "1 of 2 pages collected" in done.stdout
    assert "1 skipped: login_wall" in done.stdout
    assert [result["url"] for result in folder.results()] == [f"{portal.url}/home"]
    kept = list((folder.data / "raw").glob("*-quarantine-*"))
    assert len(kept) == 1


@pytest.mark.parametrize("given", ["start", "rule", "cookies"])
def test_a_login_wall_in_place_of_a_wanted_page_is_a_failure(
    folder: Folder, portal: Portal, given: str
) -> None:
    """Where the page is a start, a rule of the site's file chose it, or the job has cookies."""
    start, more = hall(portal), []
    if given == "start":
        more = [f"{portal.url}/members/1"]
    elif given == "rule":
        describe(folder, portal, "follow: [{{css: a}}]\n")
    else:
        file = folder.path / "cookies.txt"
        file.write_text("127.0.0.1\tFALSE\t/\tFALSE\t0\tauth\told\n")
        more = ["--cookie-file", str(file)]

    done = folder.crawler("crawl", start, *more, "--sitemap", "skip")

    assert done.returncode == 1, done.stdout
    assert walled(folder) == ("failed", "login_wall")


def test_no_page_of_a_crawl_gives_a_secret_away(folder: Folder, portal: Portal) -> None:
    """Whatever page repeats a password, in its text, its links or where it redirects to: it is kept
    in the session's file alone. So parsing the stored pages again does not bring it back."""
    text = f"<p>{'All of the county. ' * 30}"
    echo = f"{text}<p>Your password is {PASSWORD}.<a href='/found?p={PASSWORD}'>x</a><a href=/go>"
    spelled = PASSWORD.replace("&", "&#38;").replace("ä", "\\u00e4").replace("/", "%2f")
    pieces = "swordfish <b>&amp; &lt;chips&gt;/äö</b>"
    portal.answers["/profile"] = Reply(f"<title>{PASSWORD}</title>{echo}{spelled}<h1>{pieces}</h1>")
    portal.answers["/go"] = moved(f"/end?password={PASSWORD}")
    portal.answers["/results"] = Reply(f"<title>Found</title>{text}<h1>{pieces}</h1>{spelled}")
    form = "{{css: form#search, values: {{owner: $password, kind: сграда}}}}"
    starts = f"start: [{{url}}/profile, {{{{url: '{{url}}/search', form: {form}}}}}]\n"
    describe(folder, portal, LOGIN, starts, "fields: {{heading: h1}}\n")

    done = folder.crawler("crawl", "county", "--secrets", (file := write_secrets(folder)))

    assert PASSWORD not in done.stdout + done.stderr
    shown = [PASSWORD, spelled]
    assert holding(folder.path, shown, Path(file), *sessions(folder)) == []
    assert "/profile" in portal.paths()
    # The link and the redirect that hold the password.
    assert "guard secret" in done.stdout
    assert not [path for path in portal.paths() if "*" in path]
    headings = {result["url"]: result["data"].get("heading") for result in folder.results()}
    assert headings == {f"{portal.url}/profile": "***", f"{portal.url}/search": "***"}
    replayed = folder.crawler("replay", "--site", "county", "--fail-under", "1", "--apply")
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert holding(folder.path, shown, Path(file), *sessions(folder)) == []


def test_a_wrong_password_fails_the_job_and_does_not_hammer(folder: Folder, portal: Portal) -> None:
    """Two tries, one line in the log, and every page says why; the right one then gets them all."""
    file = folder.path / "pages.txt"
    urls = [f"{portal.url}/members/{n}" for n in range(20)]
    file.write_text("\n".join(urls))
    describe(folder, portal, LOGIN)

    wrong = write_secrets(folder, "not-the-password")
    done = folder.crawler("run", str(file), "--secrets", wrong, "--job", "members")

    assert done.returncode == 1, done.stderr
    assert "login_failed" in done.stdout + done.stderr
    assert (portal.refused, portal.logins) == (2, 0)
    logs = "".join(path.read_text() for path in folder.path.rglob("*.log"))
    assert logs.count("shows the login form again") <= 1
    assert holding(folder.path, ["not-the-password"], Path(wrong), *sessions(folder)) == []

    right = write_secrets(folder)
    again = folder.crawler("run", str(file), "--secrets", right, "--job", "members-again")
    assert again.returncode == 0, again.stderr
    assert portal.logins == 1


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (("shell", "{}/members/4", "-c", "print(css('h1')[0].text())"), "Parcel 4"),
        (("sites", "new", "{}/members/4"), "owner: {label: Owner}"),
    ],
)
def test_a_page_behind_a_login_can_be_looked_at(
    folder: Folder, portal: Portal, command: tuple[str, ...], shown: str
) -> None:
    """`shell` and `sites new` sign in by the login of the site's file, with the secrets of a file;
    without such a login, secrets are refused before anything is asked for."""
    command = tuple(each.format(portal.url) if "{}" in each else each for each in command)
    given = ("--secrets", write_secrets(folder))

    refused = folder.crawler(*command, *given)
    assert refused.returncode == 2
    assert "--secrets: no site's file has a login for 127.0.0.1; add" in refused.stderr
    assert portal.heard == []

    describe(folder, portal, LOGIN)
    done = folder.crawler(*command, *given)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout
    assert portal.logins == 1
    assert PASSWORD not in done.stdout + done.stderr
    copy = "the draft has no login: copy it from the file of the site county"
    assert (copy in done.stderr) == (command[0] == "sites")


def test_scrape_signs_in_with_the_secrets_of_the_sites_file(folder: Folder, portal: Portal) -> None:
    """As a crawl of the site does; a file that is not there is an error before any request."""
    describe(folder, portal, LOGIN, "  secrets: mine.txt\n")
    page = f"{portal.url}/members/4"
    missing = folder.crawler("scrape", page)
    assert (missing.returncode, portal.heard) == (2, [])
    assert "login.secrets of the site county" in missing.stderr

    Path(write_secrets(folder)).rename(folder.path / "config" / "mine.txt")
    done = folder.crawler("scrape", page)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Parcel 4" in done.stdout
    assert portal.logins == 1


def test_shell_with_secrets_does_not_show_the_stored_page(folder: Folder, portal: Portal) -> None:
    """It fetches the page again; without secrets, the stored page is shown."""
    describe(folder, portal, LOGIN)
    page, given = f"{portal.url}/members/4", ("--secrets", write_secrets(folder))
    folder.crawler("scrape", page, *given)
    asked = portal.paths().count("/members/4")

    stored = folder.crawler("shell", page, "-c", "1")
    assert (", stored;" in stored.stderr, portal.paths().count("/members/4")) == (True, asked)
    fetched = folder.crawler("shell", page, "-c", "1", *given)

    assert "fetched now, not stored" in fetched.stderr
    assert portal.paths().count("/members/4") > asked


def sessions(folder: Folder) -> list[Path]:
    """The files that hold the secrets of jobs; nobody else may read them."""
    files = list((folder.data / "sessions").glob("*"))
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    return files


def test_no_secret_comes_out(folder: Folder, portal: Portal) -> None:
    """Neither a password, a user name nor a login's cookie is in the ledger, a page, a log, an
    export, what commands say, or the command line of any process."""
    portal.lasts, portal.echoes = 5, True
    members = "".join(f"  - {{url}}/members/{n}\n" for n in range(30))
    describe(folder, portal, LOGIN, "start:\n", members)
    secrets = write_secrets(folder)
    seen: set[str] = set()
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
            for process in psutil.process_iter(["cmdline", "environ"]):
                seen.update(process.info["cmdline"] or ())
                seen.update((process.info["environ"] or {}).values())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        said = [folder.crawler("crawl", "county", "--secrets", secrets)]
    finally:
        ended.set()
        watcher.join()
    assert said[0].returncode == 0, said[0].stderr
    said += [
        folder.crawler("status"),
        folder.crawler("why", f"{portal.url}/members/1"),
        folder.crawler("tasks", "list", "--json"),
        folder.crawler("results", "list", "--json"),
        folder.crawler(
            "results", "export", "--format", "warc", "-o", str(folder.path / "o.warc.gz")
        ),
        folder.crawler("results", "bundle", "-o", str(folder.path / "o.bundle")),
        folder.crawler("sites", "show", "county"),
    ]

    cookies = re.findall(r"member-\w+", " ".join(h.headers.get("cookie", "") for h in portal.heard))
    assert len(set(cookies)) >= 6
    words = [USER, PASSWORD, "swordfish", *set(cookies)]
    spoken = "".join(done.stdout + done.stderr for done in said)
    assert [word for word in words if word in spoken] == []
    assert [word for word in words if any(word in text for text in seen)] == []
    assert holding(folder.path, words, Path(secrets), *sessions(folder)) == []
    # The pages are there, and what was hidden is marked.
    kept = b"".join(gzip.decompress(path.read_bytes()) for path in folder.data.rglob("*.warc.gz"))
    assert kept.count(b"Set-Cookie: auth=***; Path=/; HttpOnly") >= 30
    assert kept.count(b"<td class=owner>***</td>") == 30
