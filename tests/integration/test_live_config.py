"""Running workers pick up the files of config/ as they change; a broken one stops nothing."""

import os
import re
import signal
from pathlib import Path
from typing import Any

from tests.support.site import Site
from tests.support.stack import Folder, wait_for


def site_file(folder: Folder, text: str) -> Path:
    path = folder.path / "config" / "sites" / "here.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def bring(folder: Folder, *urls: str) -> None:
    """Import URLs with a command that does not read the files under test."""
    other = folder.path / "other"
    other.mkdir(exist_ok=True)
    pages = str(folder.write("pages.txt", urls))
    done = folder.crawler("bulk", "import", pages, CRAWLER_CONFIG_DIR=str(other))
    assert done.returncode == 0, done.stderr


def record(folder: Folder, url: str) -> dict[str, Any] | None:
    found = [each for each in folder.results() if each["url"] == url]
    return found[0] if found else None


def test_a_running_worker_takes_up_changed_files(
    folder: Folder, site: Site, redis_url: str
) -> None:
    """New fields; a raised rate counts for tasks that wait; a broken file is
    said in the log and by `status`, and neither it nor the death of a child changes what holds."""
    folder.env["REDIS_URL"] = redis_url
    rule = "hosts: [127.0.0.1]\nrate: {rate}\nfields: {{{name}: h1}}\n"
    path = site_file(folder, rule.format(rate="none", name="first"))
    worker = folder.worker(concurrency=1)
    pages = iter(range(1000))

    def fields() -> list[str]:
        """The names of the fields that the next page is read with."""
        url = site.page(next(pages))
        bring(folder, url)
        found = wait_for(lambda: record(folder, url), 60, "the page")
        return [*found["data"]]

    assert fields() == ["first"]

    path.write_text(rule.format(rate="none", name="second"))
    wait_for(lambda: fields() == ["second"], 60, "the changed file to be in force")

    path.write_text(rule.format(rate="none", name="third").replace("rate:", "rat:"))
    wait_for(lambda: "there is no key 'rat'" in folder.log(worker), 60, "the log to say it")
    assert fields() == ["second"]
    [fault] = folder.status()["config_faults"]
    assert re.search(r"here.yaml, line 2: there is no key 'rat'; did you mean rate\?", fault)
    assert "workers go on with the files as they were before" in folder.crawler("status").stdout

    [child] = folder.children()
    os.kill(child, signal.SIGKILL)
    wait_for(lambda: folder.children() not in ([], [child]), 60, "another child")
    assert fields() == ["first"], "a new child has what its worker read at its start"

    def reads() -> int:
        return folder.log(worker).count("were read again")

    before = reads()
    path.write_text(rule.format(rate="1/h", name="slow"))
    wait_for(lambda: reads() > before, 60, "the mended file to be read")
    urls = [site.page(next(pages)) for _ in range(3)]
    bring(folder, *urls)
    wait_for(lambda: folder.status()["waits"], 60, "most pages to wait for their hour")
    path.write_text(rule.format(rate="none", name="fast"))
    wait_for(lambda: all(record(folder, url) for url in urls), 60, "the other pages")
    names = [name for each in folder.results() if each["url"] in urls for name in each["data"]]
    assert names.count("fast") >= 2
    assert folder.status()["config_faults"] == []
