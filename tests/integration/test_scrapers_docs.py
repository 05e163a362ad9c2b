"""docs/SCRAPERS.md does what it says."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from crawler.examples.county import County
from tests.support.stack import Folder

ROOT = Path(__file__).parents[2]
CLASS = re.compile(r"`config/scrapers/parcels.py`:\n\n```python\n(.*?)```", re.DOTALL)
TEXT = (ROOT / "docs" / "SCRAPERS.md").read_text()


@pytest.fixture
def port() -> Iterator[str]:
    """The example sites on a port of their own."""
    server = subprocess.Popen(
        [sys.executable, "-m", "crawler.examples", "--port", "0", "--size", "60"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdout
    yield server.stdout.readline().strip()
    server.kill()
    server.wait()
    server.stdout.close()


def test_the_five_minutes(folder: Folder, port: str) -> None:
    """Every command prints what is shown, and the crawl collects every parcel of the lists."""
    there = TEXT.replace("8090", port)
    [scraper] = re.findall(
        r"`config/scrapers/parcels.py`:\n\n```python\n(.*?)```", there, re.DOTALL
    )
    path = folder.path / "config" / "scrapers" / "parcels.py"
    path.parent.mkdir(parents=True)
    path.write_text(scraper)

    for block in re.findall(r"```console\n(.*?)```", there, re.DOTALL):
        for command, shown in re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", block, re.MULTILINE):
            ran = subprocess.run(
                command.replace("python", sys.executable, 1),
                shell=True, cwd=folder.path, env=folder.env, capture_output=True, text=True,
                check=False,
            )  # fmt: skip
            assert ran.returncode == 0, (command, ran.stdout, ran.stderr)
            assert not shown or ran.stdout == shown, command

    read = [each["data"] for each in folder.results() if "acres" in each["data"]]
    truth = [each.record for each in County(60, 1).listings("") if each.way == "browse"]
    assert sorted(read, key=lambda each: each["parcel"]) == sorted(
        ({name: each[name] for name in ("parcel", "acres", "zoning")} for each in truth),
        key=lambda each: each["parcel"],
    )


def test_the_use_from_python(folder: Folder) -> None:
    """The program prints what the page shows."""
    [scraper] = re.findall(r"`config/scrapers/parcels.py`:\n\n```python\n(.*?)```", TEXT, re.DOTALL)
    [program, shown] = re.findall(
        r"```python\n(from crawler.*?)```\n\n```\n(.*?)```", TEXT, re.DOTALL
    )[0]
    path = folder.path / "config" / "scrapers" / "parcels.py"
    path.parent.mkdir(parents=True)
    path.write_text(scraper)

    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder.path, env=folder.env | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert ran.stdout == shown, ran.stderr
