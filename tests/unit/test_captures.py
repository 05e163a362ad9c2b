"""Screenshots and PDFs in the store: beside their page, in exports, bundles and repairs."""

import asyncio
import os
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from crawler.errors import InputError
from crawler.fetch.budget import Budget
from crawler.fetch.http import Request, RequestHook
from crawler.fetch.rendering import Rendered
from crawler.fetch.robots import Robots
from crawler.fetch.session import LiveSession, Session
from crawler.lpm import LocalPersistenceManager
from crawler.models import Capture, Outcome, Rendering, Task, TaskStatus
from crawler.render_options import RenderOptions
from crawler.results import bundle, export
from crawler.results.archive import prune
from crawler.scraping.attempt import Attempt, FetchOptions
from crawler.sites import Site
from tests.support.patient import look
from tests.support.tasks import done, new, open_job, page
from tests.unit.test_bundle import pack, signed, unpack
from tests.unit.test_request_gate import gate, permit_client

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8_000
PDF = b"%PDF-1.4 of the page"
CAPTURES = (
    Capture(name="screenshot", type="image/png", body=PNG, width=1280, height=900),
    Capture(name="pdf", type="application/pdf", body=PDF),
)


@pytest.fixture
def lpm(tmp_path: Path) -> Iterator[LocalPersistenceManager]:
    with LocalPersistenceManager(tmp_path / "data") as lpm:
        yield lpm


def rendered(task: Task, **fields: Any) -> Outcome:
    """A page of a browser, with both captures."""
    rendering = Rendering(response=page(task.url), requests=1, received=100, captures=CAPTURES)
    return done(task, rendering=rendering, **fields)


def collect(lpm: LocalPersistenceManager, *urls: str, **fields: Any) -> None:
    """Have these pages rendered."""
    job = open_job(lpm)
    rows = [new(url, parcel_id=str(n)) for n, url in enumerate(urls)]
    lpm.persist_tasks(rows, job=job)
    lpm.save_result(*(rendered(task, **fields) for task in lpm.get_next_pending("owner", 9)))
    lpm.imports.close(job, lpm.now())
    lpm.jobs.finalise(lpm.now())


def files(lpm: LocalPersistenceManager) -> list[dict[str, Any]]:
    """The files of all results."""
    return [file for result in lpm.results.read() for file in result.get("files", ())]


def exported(lpm: LocalPersistenceManager, folder: Path) -> set[bytes]:
    """The files that an export writes."""
    export(lpm, folder / "all.jsonl", "jsonl", files=folder / "files")
    return {path.read_bytes() for path in (folder / "files").glob("*/*")}


def test_a_result_lists_them_and_an_export_writes_them(
    lpm: LocalPersistenceManager, tmp_path: Path
) -> None:
    """Also a result that shares the page of another row. They are kept whatever pages are."""
    with LocalPersistenceManager(tmp_path / "data", "none") as frugal:
        collect(frugal, "http://a.example/1", "http://a.example/1")

    found = files(lpm)

    about = {
        "field": "screenshot", "url": "http://a.example/1", "status": "completed",
        "sha256": sha256(PNG).hexdigest(), "type": "image/png", "bytes": len(PNG),
        "width": 1280, "height": 900,
    }  # fmt: skip
    assert [file["field"] for file in found] == ["screenshot", "pdf"] * 2
    assert about.items() <= found[0].items()
    assert len({file["task_id"] for file in found}) == 2
    assert found[0]["raw"] == found[2]["raw"]
    assert exported(lpm, tmp_path) == {PNG, PDF}
    assert lpm.pages.read(1) is None  # CRAWLER_RAW=none: no page is kept


def test_a_page_that_failed_has_none(lpm: LocalPersistenceManager) -> None:
    """What is judged to be no page is kept, if at all, as it came."""
    collect(lpm, "http://a.example/1", status=TaskStatus.FAILED, error_type="blocked")

    assert lpm.store.db.value("SELECT count(*) FROM result_files") == 0


def test_a_bundle_carries_them(lpm: LocalPersistenceManager, tmp_path: Path) -> None:
    """Into another ledger, once; one without pages tells of them, and the next brings them."""
    collect(lpm, "http://a.example/1", "http://a.example/2")
    for name, raw in (("whole", True), ("short", False)):
        bundle.bundle(lpm, tmp_path / name, job=None, since=None, raw=raw)

    with LocalPersistenceManager(tmp_path / "other") as other:
        bundle.unbundle(other, tmp_path / "short", 10_000_000)
        told = [(file["sha256"], file.get("raw")) for file in files(other)]
        none = exported(other, tmp_path / "none")
        for _ in range(2):
            bundle.unbundle(other, tmp_path / "whole", 10_000_000)
        there = exported(other, tmp_path / "some")
        count = len(files(other))

    assert told == [(sha256(body).hexdigest(), None) for body in (PNG, PDF)] * 2
    assert none == set()
    assert there == {PNG, PDF}
    assert count == 4


def test_a_bundle_carries_one_that_is_larger_than_pages_may_be(
    lpm: LocalPersistenceManager, tmp_path: Path
) -> None:
    """CRAWLER_MAX_BODY is for what servers send."""
    collect(lpm, "http://a.example/1")
    bundle.bundle(lpm, tmp_path / "bundle", job=None, since=None, raw=True)

    with LocalPersistenceManager(tmp_path / "other") as other:
        bundle.unbundle(other, tmp_path / "bundle", 1_000)
        assert exported(other, tmp_path) == {PNG, PDF}


def test_one_that_was_pruned_is_told_without_its_place(
    lpm: LocalPersistenceManager, tmp_path: Path
) -> None:
    """The result stays, and an export goes on."""
    collect(lpm, "http://a.example/1")
    lpm.close()
    for path in lpm.raw.glob("*.warc.gz"):
        os.utime(path, (0, 0))
    prune(lpm, lpm.now() - 10, dry_run=False)

    assert ["raw" in file for file in files(lpm)] == [False, False]
    assert exported(lpm, tmp_path) == set()


def test_doctor_finds_damaged_ones(lpm: LocalPersistenceManager) -> None:
    """Their result is whole; after the repair it tells no place any more."""
    collect(lpm, "http://a.example/1")
    [segment] = lpm.raw.glob("*.warc.gz")
    [place] = [file["raw"] for file in files(lpm) if file["field"] == "screenshot"]
    lpm.close()
    data = bytearray(segment.read_bytes())
    data[place["offset"] + place["length"] // 2] ^= 0xFF
    segment.write_bytes(data)

    found = {each.check: each.state for each in look(lpm.folder)}
    repaired = [each for each in look(lpm.folder, repair=True) if each.check == "captures"]
    after = [each for each in look(lpm.folder) if each.check == "captures"]

    assert found["captures"] == "wrong"
    assert [each.state for each in repaired] == ["mended"]
    assert "1 screenshots and PDFs cannot be read" in repaired[0].detail
    assert after == []
    assert ["raw" in file for file in files(lpm)] == [False, True]


def test_a_repair_finds_them_by_the_files_of_results(
    lpm: LocalPersistenceManager, tmp_path: Path
) -> None:
    """A ledger that has lost its results and what they link gets both back."""
    collect(lpm, "http://a.example/1")
    before = files(lpm)
    for table in ("results", "result_files"):
        lpm.store.durable.execute(f"DELETE FROM {table}")
    lpm.close()

    look(lpm.folder, repair=True)

    assert files(lpm) == before
    assert exported(lpm, tmp_path) == {PNG, PDF}


def test_a_member_that_is_none_is_refused(lpm: LocalPersistenceManager, tmp_path: Path) -> None:
    """A bundle whose record says another digest of a picture brings nothing in."""
    collect(lpm, "http://a.example/1")
    bundle.bundle(lpm, tmp_path / "bundle", job=None, since=None, raw=True)
    (_, lines), (_, pages), _ = unpack(tmp_path / "bundle")
    record = msgspec.json.decode(lines)
    record["files"][0]["sha256"] = sha256(b"other").hexdigest()
    pack(tmp_path / "forged", signed([record], pages))

    with (
        LocalPersistenceManager(tmp_path / "other") as other,
        pytest.raises(InputError, match=r"the screenshot of .* cannot be used"),
    ):
        bundle.unbundle(other, tmp_path / "forged", 10_000_000)


@pytest.mark.parametrize(("seen", "kept"), [(b"Parcel 7", 1), (b"the key is a-secret", 0)])
def test_a_page_that_shows_a_secret_has_none(
    lpm: LocalPersistenceManager, tmp_path: Path, seen: bytes, kept: int
) -> None:
    """Also where its DOM does not hold it: in a frame, or in a control."""
    lpm.persist_tasks([new("https://a.example/7")], job=open_job(lpm))
    [task] = lpm.get_next_pending("owner", 1)

    async def nothing(*_: object) -> Any:
        raise AssertionError

    async def render(request: Request, hook: RequestHook, options: RenderOptions) -> Rendered:
        shown = page(task.url)
        return Rendered(page=shown, response=shown, pdf=PDF, seen=seen)

    client, _ = permit_client(time.monotonic)
    session = LiveSession(Session(secrets={"password": "a-secret"}))
    ended = asyncio.run(
        Attempt(
            task,
            Site(name="a", version="1", fetcher="browser", respect_robots=False),
            FetchOptions(session=session),
            fetch=nothing,
            render=render,
            gate=gate(client, None, []),
            robots=Robots(tmp_path / "robots"),
            worker="me",
            budget=Budget(),
            stored_page=nothing,
        ).run()
    )

    assert ended.rendering
    assert len(ended.rendering.captures) == kept
