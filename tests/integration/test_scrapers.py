"""Sites as Python classes, in workers that run: edits, errors and hangs; and the shell."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

from tests.support.pages import Answer, Pages
from tests.support.site import Site
from tests.support.stack import Folder, wait_for
from tests.support.terminal import Terminal

CLASS = """
import time

class Here:
    hosts = ["127.0.0.1"]
    rate = "none"

    def extract_listing(self, page):
        if page.url.endswith("/2"):
            ACTION
        return {"NAME": page.css_first("h1").text(), "url": page.url}
"""


def write_class(
    folder: Folder, text: str = CLASS, name: str = "title", action: str = "pass"
) -> Path:
    path = folder.path / "config" / "scrapers" / "here.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text).replace("NAME", name).replace("ACTION", action))
    return path


def bring(folder: Folder, *urls: str) -> None:
    pages = str(folder.write("pages.txt", urls))
    other = folder.path / "other"
    other.mkdir(exist_ok=True)
    done = folder.crawler("bulk", "import", pages, CRAWLER_CONFIG_DIR=str(other))
    assert done.returncode == 0, done.stderr


def result(folder: Folder, url: str) -> dict[str, Any] | None:
    return next((each for each in folder.results() if each["url"] == url), None)


def why(folder: Folder, url: str) -> str:
    return folder.crawler("why", url).stdout


def test_a_running_worker_takes_up_an_edited_class(
    folder: Folder, site: Site, redis_url: str
) -> None:
    """The edited class makes the records, in a new child with a version of its own; a broken edit
    is told, and the class goes on as it was."""
    folder.env["REDIS_URL"] = redis_url
    path = write_class(folder)
    worker = folder.worker(concurrency=1)
    pages = iter(range(10, 1000))
    versions = []

    def name() -> str:
        url = site.page(next(pages))
        bring(folder, url)
        found = wait_for(lambda: result(folder, url), 60, "the page")
        versions.append(found["parser"]["version"])
        return str(next(iter(found["data"])))

    assert name() == "title"
    [child] = folder.children()

    write_class(folder, name="named")
    wait_for(lambda: name() == "named", 60, "the edited class to be in force")
    wait_for(lambda: folder.children() not in ([], [child]), 60, "a new child")
    assert name() == "named"
    assert versions[0] != versions[-1]
    assert versions[-1].count("+") == 1

    path.write_text("class Here:\n    def extract_listing(self, page)\n")
    wait_for(lambda: "here.py, line 2: not Python" in folder.log(worker), 60, "the log to say it")
    assert name() == "named"
    [fault] = folder.status()["config_faults"]
    assert "here.py, line 2: not Python" in fault

    log = folder.log(worker)
    assert "a scraper has changed: this process ends" in log
    assert "WorkerLostError" not in log
    assert '"level":"error"' not in log.replace(" ", "")
    assert folder.books().failed == 0


def test_a_class_that_raises_costs_its_page(folder: Folder, site: Site) -> None:
    """`run` goes on; summary, `tasks` and `why` show the error with its line."""
    write_class(folder, action="raise SystemExit('no')")
    urls = [site.page(n) for n in range(1, 5)]

    ran = folder.crawler("run", str(folder.write("pages.txt", urls)))

    assert ran.returncode == 1
    assert "scraper_error" in ran.stdout
    place = "config/scrapers/here.py, line 10)"
    assert f"SystemExit: no ({place}" in why(folder, urls[1]).replace(f"{folder.path}/", "")
    listed = folder.crawler("tasks", "list", "--reason", "scraper_error", "--json").stdout
    assert "scraper_error" in listed
    assert "here.py, line 10" in listed
    assert {each["url"] for each in folder.results()} == {urls[0], *urls[2:]}
    shown = folder.crawler("shell", urls[1], "--stored", "-c", "print(page.status)")
    assert shown.stdout == "200\n", shown.stderr


def test_a_class_that_hangs_costs_its_page(folder: Folder, site: Site, redis_url: str) -> None:
    """The watchdog ends the child; the page is poison after two, and names the line where the
    class stood. All other pages are collected."""
    folder.env |= {"REDIS_URL": redis_url, "CRAWLER_STALL_S": "2"}
    write_class(folder, action="while True: time.sleep(0)")
    urls = [site.page(n) for n in range(1, 8)]
    folder.worker(concurrency=1)

    bring(folder, *urls)
    folder.wait_until_done(len(urls), 240)

    assert {each["url"] for each in folder.results()} == {urls[0], *urls[2:]}
    told = why(folder, urls[1])
    assert "poison" in told
    assert "while they worked on this page, in " in told
    assert "scrapers/here.py, line 10" in told
    assert "in extract_listing" in told


def test_pages_wait_for_a_class_that_cannot_be_run(
    folder: Folder, site: Site, redis_url: str
) -> None:
    """No page is fetched or fails for a file that cannot be imported; when it is mended, they go
    on."""
    folder.env["REDIS_URL"] = redis_url
    # A limited domain: its pause is shared, and `domains` and `status` tell it.
    limited = CLASS.replace('"none"', '"20/s"')
    write_class(folder, f"import no_such_package\n{limited}")
    site.reset()
    worker = folder.worker(concurrency=1)
    urls = [site.page(n) for n in range(10, 13)]

    bring(folder, *urls)
    wait_for(lambda: "no_such_package" in why(folder, urls[0]), 60, "a page to say what it lacks")
    wait_for(lambda: "no_such_package" in folder.crawler("domains").stdout, 60, "domains to tell")

    assert not {path for path in site.hits() if path.startswith("/page")}
    assert "the pages of here wait" in folder.log(worker)
    assert folder.books().failed == 0
    write_class(folder, limited)
    wait_for(lambda: "were read again" in folder.log(worker), 60, "the mended file to be read")
    folder.crawler("domains", "reset", "127.0.0.1")
    folder.wait_until_done(len(urls), 240)
    assert len(folder.results()) == len(urls)
    assert {each["attempts"] for each in folder.results()} == {1}


# The shell.


def test_the_shell_runs_code_on_a_page(folder: Folder, site: Site) -> None:
    """Of a page that is not stored, it is fetched, and not stored; code comes from an option or
    from stdin."""
    write_class(folder)
    url = site.page(7)
    scratch = folder.path / "tmp"
    scratch.mkdir()
    folder.env["TMPDIR"] = str(scratch)

    ran = folder.crawler("shell", url, "-c", "print(record); print(len(css('h1')), page.status)")

    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0].startswith("{'title': ")
    assert lines[1] == "1 200"
    assert "fetched now, not stored; site here" in ran.stderr
    assert not folder.data.exists()
    assert folder.crawler("shell", url, "--stored", "-c", "1").returncode == 2
    assert folder.crawler("shell", url, "--stored", "--fetch").returncode == 2
    failed = folder.crawler("shell", url, "-c", "[css(name) for name in ['h1']]; 1 / 0")
    assert failed.returncode == 1
    assert "ZeroDivisionError" in failed.stderr
    piped = subprocess.run(
        [sys.executable, "-m", "crawler", "shell", url],
        input="fetch(page.url)\nprint(fields, len(json_ld))\n",
        env=folder.env, cwd=folder.path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (piped.returncode, piped.stdout) == (0, "{} 1\n"), piped.stderr
    assert list(scratch.iterdir()) == []


def test_the_shell_shows_the_stored_page(folder: Folder, site: Site) -> None:
    """As long as there is one, no request is made."""
    url = site.page(8)
    assert folder.crawler("scrape", url).returncode == 0
    before = site.hits()

    ran = folder.crawler("shell", url, "-c", "print(record['title'])")

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()
    assert "stored; site default" in ran.stderr
    assert site.hits() == before


def test_the_shell_obeys_robots_txt(folder: Folder, pages: Pages) -> None:
    """It fetches nothing that a crawl would not."""
    forbidden = "User-agent: *\nDisallow: /\n"
    pages.answers["/robots.txt"] = Answer(forbidden, headers={"Content-Type": "text/plain"})

    ran = folder.crawler("shell", f"{pages.url}/page/1", "-c", "print(page)")

    assert ran.returncode == 1
    assert "(robots)" in ran.stderr
    assert [asked.path for asked in pages.asked] == ["/robots.txt"]


def test_the_shell_has_a_prompt(folder: Folder, site: Site) -> None:
    """On a terminal it says what there is, and completes names."""
    write_class(folder)
    terminal = Terminal(folder, "crawler", "shell", site.page(9))

    wait_for(lambda: "Ctrl-D ends it." in terminal.text, 60, "the prompt")
    terminal.type("rec\t\r")
    wait_for(lambda: "{'title': " in terminal.text, 60, "the record")
    # Only a prompt reads Ctrl-D as the end: between two lines, the terminal would take it.
    wait_for(lambda: ">>> " in terminal.text.rpartition("{'title': ")[2], 60, "the next prompt")
    terminal.type("\x04")

    assert terminal.process.wait(60) == 0
    terminal.close()
