"""Screenshots and PDFs by a command, a site's file and both dialects of the API."""

import json
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

import pytest
from firecrawl import Firecrawl

from tests.support.api_server import ApiServer
from tests.support.gateway import Gateway
from tests.support.script_site import ScriptSite
from tests.support.stack import Folder

PNG, PDF = b"\x89PNG\r\n\x1a\n", b"%PDF-"


@pytest.fixture
def site() -> Iterator[ScriptSite]:
    with ScriptSite() as site:
        yield site


def test_a_command_writes_them(tmp_path: Path, site: ScriptSite) -> None:
    """Also the store has them: an export and a Gateway get the same bytes. What cannot be written
    or asked for is refused before anything is fetched."""
    folder = Folder(tmp_path)
    url = f"{site.url}/app"
    bad = [
        folder.crawler("scrape", url, "--screenshot", "none/a.png"),
        folder.crawler("scrape", url, "--screenshot", "a.png", "--fetcher", "http"),
        folder.crawler("scrape", url, "--pdf", "a.pdf", "--stored"),
    ]
    assert [done.returncode for done in bad] == [2, 2, 2]
    lacking = folder.crawler("scrape", url, "--browser", CRAWLER_BROWSER_PATH="/nowhere")
    assert (lacking.returncode, "/nowhere: there is no such program" in lacking.stderr) == (3, True)
    assert not site.asked
    assert not folder.data.exists()

    done = folder.crawler(
        "scrape", url, "--browser", "--screenshot", "page.png", "--pdf", "page.pdf"
    )
    report = folder.crawler("scrape", f"{site.url}/report.pdf", "--screenshot", "other.png")

    assert done.returncode == 0, done.stderr
    picture, paper = (tmp_path / name for name in ("page.png", "page.pdf"))
    assert picture.read_bytes().startswith(PNG)
    assert paper.read_bytes().startswith(PDF)
    assert (report.returncode, "what came is no page" in report.stderr) == (2, True)
    assert not (tmp_path / "other.png").exists()
    folder.crawler("results", "export", "-o", "all.jsonl", "--files", "files")
    [line] = [
        json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()
        if "/app" in line
    ]  # fmt: skip
    exported = {each["field"]: tmp_path / "files" / each["path"] for each in line["files"]}
    assert exported["screenshot"].read_bytes() == picture.read_bytes()
    assert exported["pdf"].read_bytes() == paper.read_bytes()
    with Gateway(tmp_path / "g") as gateway:
        folder.env |= gateway.env
        assert folder.crawler("sync", "push").returncode == 0
        got = {path.read_bytes() for path in gateway.store.rglob("*") if path.is_file()}
    assert {picture.read_bytes(), paper.read_bytes()} <= got


def test_both_dialects_of_the_api_give_them(tmp_path: Path, site: ScriptSite) -> None:
    """As part of the result, and as files of their own; pages that are none say why there is no
    picture."""
    with ApiServer(tmp_path) as api:
        ours = api.ask(
            "POST", "/api/scrape",
            {"url": f"{site.url}/app", "options": {"formats": ["screenshot"],
             "browser": {"pdf": True}}},
        ).body  # fmt: skip
        files = [
            api.ask("GET", f"/api/results/{ours['task_id']}/files/{name}")
            for name in ("screenshot", "pdf", "video")
        ]
        paper = api.ask(
            "POST", "/api/scrape",
            {"url": f"{site.url}/report.pdf", "options": {"formats": ["screenshot"]}},
        ).body  # fmt: skip
        by_http = api.ask(
            "POST", "/api/scrape",
            {"url": f"{site.url}/app", "options": {"formats": ["screenshot"], "fetcher": "http"}},
        )  # fmt: skip
        client = Firecrawl(api_key="any", api_url=api.url)
        theirs = client.scrape(
            f"{site.url}/app", formats=["markdown", {"type": "screenshot", "fullPage": True}]
        )
        small = client.scrape(f"{site.url}/app", formats=["screenshot"])

    kind, _, data = ours["screenshot"].partition(";base64,")
    assert (kind, ours["status"]) == ("data:image/png", "success")
    assert [answer.status for answer in files] == [200, 200, 422]
    assert files[0].body == b64decode(data)
    assert files[0].body.startswith(PNG)
    assert files[1].body.startswith(PDF)
    assert files[1].headers["content-disposition"].startswith("attachment;")
    assert (paper["status"], paper["screenshot"]) == ("success", None)
    assert "what came is no page" in paper["format_errors"]["screenshot"]
    assert (by_http.status, "fetcher is http" in by_http.body["error"]) == (400, True)
    assert "one" in (theirs.markdown or "")
    assert (theirs.screenshot or "").startswith("data:image/png;base64,")
    assert "screenshot" not in (theirs.warning or "")
    assert "screenshot shows the whole page" in (small.warning or "")


def test_without_a_browser_they_are_refused(tmp_path: Path, site: ScriptSite) -> None:
    """A format beside others is left out with a warning, in the dialect that has them."""
    with ApiServer(tmp_path, CRAWLER_BROWSER_PATH="/nowhere") as api:
        url = {"url": f"{site.url}/app"}
        alone = api.ask("POST", "/v2/scrape", url | {"formats": ["screenshot"]})
        beside = api.ask("POST", "/v2/scrape", url | {"formats": ["html", "screenshot"]})
        ours = api.ask("POST", "/api/scrape", url | {"options": {"formats": ["screenshot"]}})

    assert (alone.status, "needs a browser" in alone.body["error"]) == (400, True)
    assert "the format screenshot cannot be made" in beside.body["data"]["warning"]
    assert (ours.status, ours.body["code"]) == (503, "no_browser")
