"""A crawl with the photos of its records, from the site to a folder and to a Gateway."""

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from crawler.examples.imoti import HOST, Imoti
from crawler.examples.server import Running
from tests.support.gateway import Gateway
from tests.support.sites import configure
from tests.support.stack import Folder, wait_for

SIZE = 40


@pytest.fixture
def portal() -> Iterator[Running]:
    with Running("crawler.examples", "--port", 0, "--size", SIZE) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path, portal: Running) -> Iterator[Folder]:
    """A folder with the file of the portal, whose photos are wanted."""
    configure(tmp_path / "config", portal.port, "imoti")
    with (tmp_path / "config" / "sites" / "imoti.yaml").open("a") as file:
        file.write("files: {fields: [photos]}\n")
    folder = Folder(tmp_path)
    yield folder
    folder.stop()


def _photos(folder: Folder) -> int:
    """How many photos are stored."""
    with suppress(Exception), folder.lpm() as lpm:
        sql = "SELECT count(*) FROM tasks WHERE method = 'FILE' AND status = 'completed'"
        return int(lpm.store.db.value(sql))
    return 0


def _listings(folder: Folder) -> dict[str, dict[str, Any]]:
    """The results with photos, by the id of their listing."""
    with folder.lpm() as lpm:
        return {each["data"]["id"]: each for each in lpm.results.read() if "files" in each}


def _fetched(portal: Running, url: str) -> bytes:
    """What the portal answers."""
    with closing(HTTPConnection("127.0.0.1", portal.port, timeout=60)) as connection:
        connection.request("GET", urlsplit(url).path, headers={"Host": HOST})
        return connection.getresponse().read()


def test_photos_come_with_their_listings(folder: Folder, portal: Running, tmp_path: Path) -> None:
    """Killed in the middle and continued, a crawl has each photo of each listing once; a folder and
    a Gateway get them byte for byte."""
    # Given a crawl that is killed with all that it started, when some photos are there
    command = ("crawl", "imoti", "--workers", "1", "--job", "homes")
    running = folder.start("crawler", *command)
    wait_for(lambda: _photos(folder) > 3, 60, "some photos")
    killed = [*folder.children(), running.pid]
    for pid in killed:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    running.wait()

    # When the same command continues it
    done = folder.crawler(*command)

    # Then every listing names its photos, and each of them has come
    base, imoti = portal.url(HOST), Imoti(SIZE)
    records = [each.record for each in imoti.listings(base)]
    wanted = {each["id"]: each["photos"] for each in records if each["photos"]}
    named = {id_: each["files"] for id_, each in _listings(folder).items()}
    assert {id_: [file["url"] for file in files] for id_, files in named.items()} == wanted
    files = [file for each in named.values() for file in each]
    assert Counter(file["status"] for file in files) == Counter(completed=len(files))
    assert done.returncode == 0, done.stderr
    assert f" pages and {len(files)} of {len(files)} files collected; " in done.stdout
    distinct = {file["sha256"] for file in files}
    assert 0 < len(distinct) < len(files)
    with folder.lpm() as lpm:
        sql = """SELECT DISTINCT raw_segment, raw_offset FROM results JOIN tasks ON id = task
                 WHERE method = 'FILE'"""
        assert len(lpm.store.db.all(sql)) == len(distinct)

    # And an export has their bytes
    exported = folder.crawler(
        "results", "export", "--output", "homes.jsonl", "--role", "listing", "--files", "photos",
        "--json",
    )  # fmt: skip
    assert json.loads(exported.stdout)["files"] == len(distinct)
    lines = [json.loads(line) for line in (tmp_path / "homes.jsonl").read_text().splitlines()]
    paths = {file["url"]: file["path"] for line in lines for file in line.get("files", ())}
    assert len(paths) == len(files)
    for url, path in list(paths.items())[:5]:
        assert (tmp_path / "photos" / path).read_bytes() == _fetched(portal, url)
    shown = folder.crawler("results", "show", lines[-1]["task_id"])
    assert shown.returncode == 0
    assert folder.crawler("doctor").returncode == 0

    # And a Gateway gets photos as it gets pages
    with Gateway(tmp_path / "g") as gateway:
        folder.env |= gateway.env
        sent = folder.crawler("sync", "push", "--job", "homes")
        assert sent.returncode == 0, sent.stderr
        got = {each["task_id"]: each for each in gateway.results()}
        for file in files:
            assert got[file["task_id"]]["data"]["width"] == file["width"]
            assert got[file["task_id"]]["raw_html_hash"] == file["sha256"]
