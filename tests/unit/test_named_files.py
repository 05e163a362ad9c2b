"""Images and documents that records name: fetched once, stored once, linked from the record."""

import os
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from crawler.db import timeline
from crawler.db.connection import writing
from crawler.fetch.session import Session
from crawler.models import CrawlReport, LeftOut
from tests.support.files import JPEG, PhotoStore, home, photo
from tests.support.pages import Answer, Pages
from tests.support.patient import look


@pytest.fixture
def site() -> Iterator[Pages]:
    with Pages() as site:
        yield site


def report(store: PhotoStore, job: str = "one") -> CrawlReport:
    with store.lpm() as lpm:
        receipt = lpm.receipt(lpm.jobs.named(job))
    assert receipt.problems == []
    assert receipt.crawl
    return receipt.crawl


def test_a_record_leads_to_its_files(tmp_path: Path, site: Pages) -> None:
    """Each photo is fetched once, whatever the number of pages that name it, is no page for the
    limit, and is linked from every record that names it."""
    # Given two listings that share a photo
    site.answers |= {
        "/": home(0, "/a.jpg", "/b.jpg", "/a.jpg"),
        "/a.jpg": Answer(photo(1), headers=JPEG),
        "/b.jpg": Answer(photo(2), headers=JPEG),
        "/c.jpg": Answer(photo(3), headers=JPEG),
        "/next": home(1, "b.jpg", "c.jpg"),
    }
    site.answers["/"].body += "<a href=/next>next</a> <a href=/a.jpg>large</a>"  # type: ignore[operator]
    store = PhotoStore(tmp_path, site)

    # When the site is crawled with a limit that its pages fill
    store.crawl(limit=2, depth=1)

    # Then each photo has come once, and its facts are in both records
    assert sorted(site.paths()) == ["/", "/a.jpg", "/b.jpg", "/c.jpg", "/next"]
    result = store.result("/")
    assert [file["url"] for file in result["files"]] == [f"{site.url}/a.jpg", f"{site.url}/b.jpg"]
    first = store.result("/a.jpg")
    assert result["files"][0] == {
        "field": "photos", "url": f"{site.url}/a.jpg", "task_id": first["task_id"],
        "status": "completed", "sha256": sha256(photo(1)).hexdigest(), "type": "image/jpeg",
        "bytes": len(photo(1)), "width": 24, "height": 8,
    }  # fmt: skip
    assert first["data"] == {
        "type": "image/jpeg", "bytes": len(photo(1)), "width": 24, "height": 8
    }  # fmt: skip
    assert (first["role"], first["depth"], first["method"]) == ("file", 1, "FILE")
    shared = store.result("/next")["files"]
    assert shared[0]["task_id"] == result["files"][1]["task_id"]
    assert "files" not in first
    crawled = report(store)
    assert (crawled.pages, crawled.files, crawled.files_collected, crawled.bad) == (2, 3, 3, 0)
    assert crawled.left_out == []
    assert {each.state for each in look(store.settings.data_dir)} <= {"ok", "note"}


def test_fields_within_items_name_files_too(tmp_path: Path, site: Pages) -> None:
    """A path leads into the items of a field; images within the page are no files."""
    cards = "".join(f"<div class=card><img src='{src}'></div>" for src in ("/a.jpg", "data:,x"))
    site.answers |= {"/": Answer(home(0).body + cards), "/a.jpg": Answer(photo(1), headers=JPEG)}  # type: ignore[operator]
    store = PhotoStore(tmp_path, site)
    store.rules("fields: [photos.image]", "{each: .card, fields: {image: {css: img, attr: src}}}")

    store.crawl()

    assert [file["field"] for file in store.result("/")["files"]] == ["photos.image"]
    assert store.ends() == {"/a.jpg": ("completed", None, None)}


def test_limits_have_reasons(tmp_path: Path, site: Pages) -> None:
    """Too many bytes, pixels or files, and hosts that are not named: each is refused with what was
    found and the limit."""
    site.answers |= {
        "/": home(0, "/large.jpg", "/wide.jpg", "/ok.jpg", "http://cdn.example/x.jpg", "/4.jpg"),
        "/large.jpg": Answer(photo(1) + bytes(1_000), headers=JPEG),
        "/wide.jpg": Answer(photo(2).replace(b"\0\x08\0\x18", b"\xff\xff\xff\xff"), headers=JPEG),
        "/ok.jpg": Answer(photo(3), headers=JPEG),
    }
    store = PhotoStore(
        tmp_path, site, "fields: [photos], max_bytes: 1000, max_pixels: 1000000, max_count: 3"
    )

    store.crawl()

    ends = store.ends()
    assert ends["/ok.jpg"] == ("completed", None, None)
    assert ends["/large.jpg"][:2] == ("failed", "too_large")
    assert "1,000" in str(ends["/large.jpg"][2])
    assert ends["/wide.jpg"] == (
        "failed", "too_many_pixels",
        "the image has 65,535 × 65,535 pixels, more than max_pixels (1,000,000)",
    )  # fmt: skip
    assert sorted(report(store).left_out, key=lambda each: each.guard) == [
        LeftOut("files_count", 1, f"{site.url}/4.jpg"),
        LeftOut("files_host", 1, "http://cdn.example/x.jpg"),
    ]
    assert report(store).bad == 2


def test_what_is_no_file_is_no_success(tmp_path: Path, site: Pages) -> None:
    """An HTML page, a wall, nothing at all, and bytes that are no image fail with their reason; an
    image without an end is stored, but invalid; and bytes go before what a server calls them."""
    site.answers |= {
        "/": home(0, *(f"/{name}.jpg" for name in
                       ("page", "lost", "empty", "text", "broken", "cut", "html", "pdf"))),
        "/page.jpg": home(1),
        "/lost.jpg": Answer("<html><title>Page not found</title><h1>Page not found</h1>"),
        "/empty.jpg": Answer(b"", headers=JPEG),
        "/text.jpg": Answer(b'{"error": "no such photo"}', headers=JPEG),
        "/broken.jpg": Answer(b"\xff\xd8\xff\xda" + bytes(500), headers=JPEG),
        "/cut.jpg": Answer(photo(4)[:-3], headers=JPEG),
        "/html.jpg": Answer(photo(5)),
        "/pdf.jpg": Answer(b"%PDF-1.7\n" + bytes(100), headers={"Content-Type": "a/b"}),
    }  # fmt: skip
    store = PhotoStore(tmp_path, site)

    store.crawl()

    ends = {path: (state, reason) for path, (state, reason, _) in store.ends().items()}
    assert ends == {
        "/page.jpg": ("failed", "not_a_file"), "/lost.jpg": ("failed", "soft_404"),
        "/empty.jpg": ("failed", "empty"), "/text.jpg": ("failed", "broken_image"),
        "/broken.jpg": ("failed", "broken_image"), "/cut.jpg": ("completed", None),
        "/html.jpg": ("completed", None), "/pdf.jpg": ("completed", None),
    }  # fmt: skip
    assert store.ends()["/page.jpg"][2] == "an HTML page came where a file was expected"
    assert store.result("/cut.jpg")["invalid"] == ["the end of the image is missing"]
    assert "invalid" not in store.result("/html.jpg")
    assert store.result("/pdf.jpg")["data"]["type"] == "application/pdf"
    kept = store.rows("SELECT raw_segment FROM results JOIN tasks ON id = task")
    assert all("quarantine" not in segment for (segment,) in kept)


def test_redirects_are_held_against_the_hosts(tmp_path: Path, site: Pages) -> None:
    """A file may move on its own host; another one on this machine, an address within a private
    network and a host that is not named are refused."""
    with Pages() as neighbour:
        neighbour.answers["/x.jpg"] = Answer(photo(9), headers=JPEG)
        targets = {
            "/moved.jpg": "/a.jpg",
            "/near.jpg": f"{neighbour.url}/x.jpg",
            "/inside.jpg": "http://10.1.2.3/x.jpg",
            "/far.jpg": "http://other.example/x.jpg",
        }
        site.answers |= {"/": home(0, *targets), "/a.jpg": Answer(photo(1), headers=JPEG)}
        site.answers |= {
            path: Answer("", 302, {"Location": target}) for path, target in targets.items()
        }
        store = PhotoStore(tmp_path, site, "fields: [photos], hosts: [10.1.2.3]")

        store.crawl()

        assert neighbour.asked == []
    ends = store.ends()
    assert ends["/moved.jpg"] == ("completed", None, None)
    assert store.result("/moved.jpg")["final_url"] == f"{site.url}/a.jpg"
    assert ends["/near.jpg"][:2] == ("failed", "forbidden_address")
    assert ends["/far.jpg"][:2] == ("skipped", "out_of_scope")
    assert ends["/inside.jpg"][0] == "failed"
    assert "10.1.2.3" in str(ends["/inside.jpg"][2])
    assert [(each.guard, each.links) for each in report(store).left_out] == [("files_host", 1)]


def test_the_same_bytes_are_stored_once(tmp_path: Path, site: Pages) -> None:
    """Under another URL, in another crawl or by a server that sends them compressed: each result
    points to the bytes that are stored, and every reader of them works."""
    # Given one photo under two URLs, and a second crawl in which a third has it
    site.answers |= {
        "/": home(0, "/a.jpg", "/b.jpg"),
        "/a.jpg": Answer(photo(1), headers=JPEG),
        "/b.jpg": Answer(photo(1), headers=JPEG),
        "/c.jpg": Answer(photo(1), headers=JPEG),
    }
    store = PhotoStore(tmp_path, site)
    store.crawl()
    site.answers["/"] = home(0, "/a.jpg", "/c.jpg")
    store.crawl("two")

    # Then all four results have one place
    files = "SELECT task FROM results JOIN tasks ON id = task WHERE method = 'FILE'"
    places = store.rows(f"SELECT raw_segment, raw_offset FROM results WHERE task IN ({files})")
    assert len(places) == 4
    assert len(set(places)) == 1
    with store.lpm() as lpm:
        for (task,) in lpm.store.db.all(files):
            stored = lpm.pages.read(task)
            assert stored
            assert stored[1] == photo(1)
    assert {each.state for each in look(store.settings.data_dir)} <= {"ok", "note"}


def test_an_unchanged_file_and_an_unchanged_page(tmp_path: Path, site: Pages) -> None:
    """A crawl that asks whether they have changed links the files again, and stores nothing."""
    tag = {"ETag": '"1"'}
    site.answers |= {
        "/": Answer(home(0, "/a.jpg").body, headers=tag),
        "/a.jpg": Answer(photo(1), headers=JPEG | {"ETag": '"2"'}),
    }
    store = PhotoStore(tmp_path, site)
    store.crawl()
    before = store.result("/")["files"]

    store.crawl("two")

    after = store.result("/", "two")
    assert (after["verdict"], store.result("/a.jpg", "two")["verdict"]) == ("unchanged",) * 2
    again = [file | {"task_id": ""} for file in after["files"]]
    assert again == [file | {"task_id": ""} for file in before]
    assert after["files"][0]["task_id"] != before[0]["task_id"]
    assert (report(store, "two").files, report(store, "two").files_collected) == (1, 1)


def test_files_are_stored_where_pages_are_not(tmp_path: Path, site: Pages) -> None:
    """CRAWLER_RAW=none keeps no pages, but a file is nothing without its bytes."""
    site.answers |= {"/": home(0, "/a.jpg"), "/a.jpg": Answer(photo(1), headers=JPEG)}
    store = PhotoStore(tmp_path, site)
    store.settings = msgspec.structs.replace(store.settings, raw="none")

    store.crawl()

    assert store.result("/")["raw"] is None
    assert store.result("/a.jpg")["raw"]


def test_an_older_ledger_gets_its_files_back(tmp_path: Path, site: Pages) -> None:
    """A copy from before the second crawl is put right from pending/: its files are those of its
    own records, although the first crawl has the same bytes at the same place."""
    site.answers |= {"/": home(0, "/a.jpg"), "/a.jpg": Answer(photo(1), headers=JPEG)}
    store = PhotoStore(tmp_path, site)
    store.crawl()
    ledger = store.settings.data_dir / "lpm.db"
    before = ledger.read_bytes()
    store.crawl("two")
    first, second = store.result("/")["files"], store.result("/", "two")["files"]
    ledger.write_bytes(before)

    found = look(store.settings.data_dir, repair=True)

    assert "mended" in {each.state for each in found}
    assert store.result("/")["files"] == first
    assert store.result("/", "two")["files"] == second
    assert first[0]["task_id"] != second[0]["task_id"]


def test_a_lost_result_of_a_file_is_rebuilt_from_its_bytes(tmp_path: Path, site: Pages) -> None:
    """The doctor makes the same record again, for the URL that the file was asked for by."""
    site.answers |= {
        "/": home(0, "/a.jpg", "/b.jpg"),
        "/a.jpg": Answer(photo(1), headers=JPEG),
        "/b.jpg": Answer(photo(1), headers=JPEG),
    }
    store = PhotoStore(tmp_path, site)
    store.crawl()
    before = store.result("/b.jpg")
    with store.lpm() as lpm, writing(lpm.store.durable):
        db, task = lpm.store.durable, lpm.tasks.find(before["task_id"])[0]
        for table in ("results", "outbox"):
            db.execute(f"DELETE FROM {table} WHERE task = ?", (task,))
        db.execute("UPDATE tasks SET status = 'pending', completed_at = NULL WHERE id = ?", (task,))
        timeline.note(db, task, "result lost", {}, lpm.now())
    (store.settings.data_dir / "pending" / f"{before['task_id']}.json").unlink()

    env = {
        "CRAWLER_DATA_DIR": str(store.settings.data_dir),
        "CRAWLER_CONFIG_DIR": str(store.config),
    }
    told = subprocess.run(
        [sys.executable, "-m", "crawler", "doctor", "--repair"],
        env=os.environ | env, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert "1 of 1 lost results were rebuilt from their stored pages" in told.stdout, told
    after = store.result("/b.jpg")
    same = ("task_id", "data", "url", "final_url", "raw_html_hash", "raw", "parser", "method")
    assert {name: after[name] for name in same} == {name: before[name] for name in same}


def test_other_hosts_get_no_secrets(tmp_path: Path, site: Pages) -> None:
    """Headers of the job go to the hosts of its crawl, not to a host that only has its files."""
    with Pages("127.0.0.2") as cdn:
        cdn.answers["/b.jpg"] = Answer(photo(2), headers=JPEG)
        site.answers |= {
            "/": home(0, "/a.jpg", f"{cdn.url}/b.jpg"),
            "/a.jpg": Answer(photo(1), headers=JPEG),
        }
        store = PhotoStore(tmp_path, site, "fields: [photos], hosts: [127.0.0.2]")
        store.settings = msgspec.structs.replace(store.settings, allow_nets=("127.0.0.2/32",))

        store.crawl_with(Session(headers=(("Authorization", "Bearer s3cret"), ("X-Note", "hi"))))

    assert {state for state, *_ in store.ends().values()} == {"completed"}
    own = [asked.headers for asked in site.asked if asked.path == "/a.jpg"]
    assert own[0]["authorization"] == "Bearer s3cret"
    assert all("authorization" not in asked.headers for asked in cdn.asked)
    assert "/b.jpg" in cdn.paths()
