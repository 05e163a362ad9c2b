"""docs/SITES.md builds a site from nothing as it says."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from crawler.examples.library import Library
from crawler.examples.server import Running
from tests.support.stack import Folder

ROOT = Path(__file__).parents[2]
TUTORIAL = (
    (ROOT / "docs" / "SITES.md")
    .read_text()
    .partition("\n## A site from nothing in ten minutes\n")[2]
    .partition("\n## ")[0]
)


@pytest.fixture
def base() -> Iterator[str]:
    """The library on a port of its own."""
    with Running("crawler.examples", "--port", "0") as running:
        yield running.url(Library.host)


def alike(text: str, folder: Folder) -> str:
    """Text without what differs from run to run: ids, and where the folder is."""
    text = re.sub(r"\b[0-9a-f]{32}(?:[0-9a-f]{32})?\b", "ID", text)
    return text.replace(f"{folder.path}/", "")


def test_the_ten_minutes(folder: Folder, base: str) -> None:
    """Every command prints what is shown, and the crawl gives the record of every book once."""
    there = TUTORIAL.replace("http://library.localhost:8090", base)
    there = there.replace(":8090/book/", base.removeprefix("http://library.localhost") + "/book/")
    steps = re.findall(r"^```(console|yaml)\n(.*?)^```", there, re.DOTALL | re.MULTILINE)
    assert [kind for kind, _ in steps].count("yaml") == 1
    commands = 0

    for kind, block in steps:
        if kind == "yaml":
            path = folder.path / "config" / "sites" / "library.yaml"
            path.parent.mkdir(parents=True)
            path.write_text(block)
            continue
        for command, shown in re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", block, re.MULTILINE):
            ran = subprocess.run(
                re.sub("^python", sys.executable, command),
                shell=True, cwd=folder.path, env=folder.env, capture_output=True, text=True,
                check=False,
            )  # fmt: skip
            assert ran.returncode == 0, (command, ran.stdout, ran.stderr)
            assert alike(ran.stdout, folder) == alike(shown, folder), command
            commands += 1

    assert commands == 8
    crawled = [each for each in folder.results() if each["job"] == "library"]
    crawled = [each for each in crawled if "author" in each["data"]]
    truth = {book.url: book.record for book in Library().books(base)}
    assert {each["url"]: each["data"] for each in crawled} == truth
    assert len(crawled) == len(truth)
