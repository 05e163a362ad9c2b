"""Files of records in the store: one place for each content, whatever is killed, pruned or lost."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from crawler.db import links
from crawler.db.connection import writing
from crawler.lpm import LocalPersistenceManager
from crawler.models import FILE, NamedFile, Outcome, Role, Task
from crawler.results import FORMATS, bundle, export
from crawler.results.archive import prune
from tests.support.files import photo
from tests.support.links import Crawl, link
from tests.support.patient import look
from tests.support.tasks import done, page

RECORD = {"type": "image/jpeg", "bytes": len(photo(1)), "width": 24, "height": 8}


def named(*paths: str) -> tuple[NamedFile, ...]:
    """Files that the field `photos` names."""
    about: dict[str, Any] = {"role": Role.FILE, "method": FILE, "body": "default"}
    return tuple(NamedFile("photos", link(path, **about)) for path in paths)


def fetched(task: Task, body: bytes) -> Outcome:
    """A file that has come."""
    return done(task, RECORD, page=page(task.url, body), parser=("file", "file-1"))


@pytest.fixture
def crawl(tmp_path: Path) -> Iterator[Crawl]:
    crawl = Crawl(tmp_path / "data")
    yield crawl
    crawl.lpm.close()


def collect(crawl: Crawl, **bodies: bytes) -> dict[str, Task]:
    """Have the start name files with these bytes; returns their tasks by name."""
    [start] = crawl.claim()
    crawl.end(start, files=named(*(f"/{name}" for name in bodies)))
    tasks = {task.url.rpartition("/")[2]: task for task in crawl.claim(len(bodies))}
    assert crawl.lpm.save_result(*(fetched(tasks[name], bodies[name]) for name in bodies))
    return tasks


def places(lpm: LocalPersistenceManager) -> list[tuple[Any, ...]]:
    """Where the files are."""
    return lpm.store.db.all(
        """SELECT raw_segment, raw_offset FROM results JOIN tasks ON id = task
           WHERE method = 'FILE' ORDER BY task"""
    )


def test_twins_of_one_commit_share_their_place(crawl: Crawl) -> None:
    """Also where the first of them is a dead claim, whose result is dropped."""
    [start] = crawl.claim()
    crawl.end(start, files=named("/a", "/b", "/c"))
    dead, second, third = crawl.claim(3)
    crawl.lpm.dispatch.give_back("owner", [], crawl.lpm.now())
    live = {task.id: task for task in crawl.claim(3)}

    outcomes = [fetched(dead, photo(1))]
    outcomes += [fetched(live[task.id], photo(1)) for task in (second, third)]
    assert crawl.lpm.save_result(*outcomes) == [False, True, True]

    assert len(places(crawl.lpm)) == 2
    assert len(set(places(crawl.lpm))) == 1
    stored = crawl.lpm.pages.read(third.id)
    assert stored
    assert stored[1] == photo(1)


def test_two_processes_agree_on_one_place(crawl: Crawl, tmp_path: Path) -> None:
    """Both have stored the same bytes before either has committed: the second one's result points
    to the first one's."""
    [start] = crawl.claim()
    crawl.end(start, files=named("/a", "/b"))
    first, second = crawl.claim(2)
    with LocalPersistenceManager(tmp_path / "data") as other:
        outcome = fetched(second, photo(1))
        append = other.pages.append_outcomes

        def slow(outcomes: Any, digests: Any) -> Any:
            stored = append(outcomes, digests)
            assert crawl.lpm.save_result(fetched(first, photo(1))) == [True]
            return stored

        other.pages.append_outcomes = slow  # type: ignore[method-assign]
        assert other.save_result(outcome) == [True]

    assert len(places(crawl.lpm)) == 2
    assert len(set(places(crawl.lpm))) == 1


def test_a_file_whose_bytes_were_pruned_meanwhile_is_fetched_again(
    crawl: Crawl, tmp_path: Path
) -> None:
    """No result points to a segment that is gone, and no bytes are lost by that."""
    collect(crawl, a=photo(1))
    other = Crawl(tmp_path / "data", "other")
    [start] = other.claim()
    other.end(start, files=named("/b"))
    [task] = other.claim()
    crawl.lpm.close()  # its segment is nobody's
    append = other.lpm.pages.append_outcomes

    def slow(outcomes: Any, digests: Any) -> Any:
        stored = append(outcomes, digests)
        names = [name for name, _ in other.lpm.results.segment_ends()]
        other.lpm.results.forget_segments(names, dry_run=False)
        return stored

    other.lpm.pages.append_outcomes = slow  # type: ignore[method-assign]
    assert other.lpm.save_result(fetched(task, photo(1))) == [True]
    assert other.rows("status, error_type")[1] == ("pending", None)
    other.lpm.pages.append_outcomes = append  # type: ignore[method-assign]
    [again] = other.claim()
    assert other.lpm.save_result(fetched(again, photo(1))) == [True]
    stored = other.lpm.pages.read(again.id)
    assert stored
    assert stored[1] == photo(1)


def test_prune_removes_a_shared_file_from_all_its_results(crawl: Crawl, tmp_path: Path) -> None:
    """And the next one to come is stored again."""
    tasks = collect(crawl, a=photo(1), b=photo(1))
    crawl.lpm.close()
    later = time.time() + 1e6
    for path in crawl.lpm.raw.glob("*.warc.gz"):
        os.utime(path, (0, 0))
    with LocalPersistenceManager(tmp_path / "data", clock=lambda: later) as lpm:
        prune(lpm, later - 10, dry_run=False)
        assert places(lpm) == [(None, None)] * 2
        assert lpm.pages.why_gone(tasks["b"].id) == "was removed by prune"
    assert {each.state for each in look(tmp_path / "data")} <= {"ok", "note"}


def test_a_limit_on_files_is_a_guard(crawl: Crawl) -> None:
    """A crawl has its maximum of files, which is no limit on its pages."""
    before = "INSERT INTO crawl_counts (job_id, kind, name, count) VALUES (?, 'role', ?, ?)"
    with writing(crawl.lpm.store.durable):  # all that a crawl may have but two
        crawl.lpm.store.durable.execute(before, (crawl.job.id, "named_file", links.MAX_FILES - 2))
    [start] = crawl.claim()
    crawl.end(start, link("/page"), files=named("/a", "/b", "/c", "/a"))

    assert [row[0] for row in crawl.rows("method")] == ["GET", "GET", "FILE", "FILE"]
    receipt = crawl.lpm.receipt(crawl.job)
    assert receipt.crawl
    assert [(each.guard, each.links) for each in receipt.crawl.left_out] == [("files_limit", 1)]
    assert receipt.crawl.pages == 2
    result = crawl.lpm.results.of_task(start.id)
    assert result
    assert [file["status"] for file in result["files"]] == ["pending", "pending", None, "pending"]


def test_a_bundle_carries_files_and_their_links(crawl: Crawl, tmp_path: Path) -> None:
    """In another ledger records name the same files, whose bytes are there once."""
    collect(crawl, a=photo(1), b=photo(1), c=photo(2))
    bundle.bundle(crawl.lpm, tmp_path / "b", job=None, since=None, raw=True)

    with LocalPersistenceManager(tmp_path / "other") as other:
        done = bundle.unbundle(other, tmp_path / "b", 100)
        assert (done.new, done.pages) == (4, 4)
        here = [each for each in other.results.read() if "files" in each]
        there = [each for each in crawl.lpm.results.read() if "files" in each]
        assert [each["files"] for each in here] == [each["files"] for each in there]
        assert len(set(places(other))) == 2
        done = bundle.unbundle(other, tmp_path / "b", 100)
        assert (done.new, done.added_pages) == (0, 0)
    assert {each.state for each in look(tmp_path / "other")} <= {"ok", "note"}


def test_an_export_has_each_file_once(crawl: Crawl, tmp_path: Path) -> None:
    """Names are hashes; the records say where; a second export writes nothing, and replaces what
    is not whole."""
    collect(crawl, a=photo(1), b=photo(1), c=photo(2))
    folder = tmp_path / "files"

    exported = export(crawl.lpm, tmp_path / "x.jsonl", "jsonl", files=folder)

    digest = sha256(photo(1)).hexdigest()
    path = f"{digest[:2]}/{digest}.jpg"
    assert exported.files == 2
    assert (folder / path).read_bytes() == photo(1)
    rows = [msgspec.json.decode(line) for line in (tmp_path / "x.jsonl").read_bytes().splitlines()]
    assert [file["path"] for file in rows[0]["files"]][:2] == [path, path]
    assert rows[1]["path"] == path
    (folder / path).write_bytes(b"torn")
    for form in FORMATS:
        exported = export(crawl.lpm, tmp_path / f"x.{form}", form, files=folder, pages=tmp_path)
        assert exported.files == (form == FORMATS[0])
    assert (folder / path).read_bytes() == photo(1)


def test_a_lost_file_is_noted_and_stored_again(crawl: Crawl, tmp_path: Path) -> None:
    """The doctor finds the results whose file is damaged, and the next crawl stores it anew."""
    collect(crawl, a=photo(1), b=photo(1))
    [(segment, offset), _] = places(crawl.lpm)
    crawl.lpm.close()
    file = tmp_path / "data" / "raw" / segment
    data = bytearray(file.read_bytes())
    data[offset + 30 : offset + 40] = bytes(10)
    file.write_bytes(data)

    wrong = [each for each in look(tmp_path / "data") if each.state == "wrong"]
    assert len(wrong) == 1
    assert "2 pages cannot be read" in wrong[0].detail
    look(tmp_path / "data", repair=True)

    [lost] = crawl.lpm.accept(crawl.job)
    assert "2 of its results were lost" in lost
    crawl.lpm.close()
    assert {each.state for each in look(tmp_path / "data")} <= {"ok", "note"}
    other = Crawl(tmp_path / "data", "other")
    collect(other, a=photo(1))
    assert places(other.lpm)[:2] == [(None, None)] * 2
    stored = other.lpm.pages.read(other.rows("id")[1][0])
    assert stored
    assert stored[1] == photo(1)


KILLED = """
import sys
from pathlib import Path
from tests.unit.test_stored_files import fetched, named, photo
from tests.support.tasks import done
from crawler.lpm import LocalPersistenceManager
from crawler.models import CrawlOptions
lpm = LocalPersistenceManager(Path(sys.argv[1]))
options = CrawlOptions(starts=("http://a.example/",), hosts=("a.example",))
while tasks := lpm.get_next_pending("owner", 1):
    [task] = tasks
    if task.method == "FILE":
        lpm.save_result(fetched(task, photo(1)))
    else:
        lpm.save_result(done(task, crawl=options, files=named("/a", "/b", "/c")))
"""


@pytest.mark.parametrize("step", ["raw-synced", "committing", "committed"])
@pytest.mark.parametrize("passage", [1, 2])
def test_a_kill_neither_loses_nor_doubles_a_file(
    crawl: Crawl, tmp_path: Path, step: str, passage: int
) -> None:
    """Killed around the commit of the page, or of its first file, and done again."""
    crawl.lpm.close()
    command = [sys.executable, "-c", KILLED, str(tmp_path / "data")]
    killed = subprocess.run(
        command, env=os.environ | {"CRAWLER_FAILPOINT": f"{step}:{passage}"}, check=False
    )
    assert killed.returncode == -9
    crawl.lpm.dispatch.give_back("owner", [], crawl.lpm.now())
    crawl.lpm.close()

    subprocess.run(command, check=True)

    assert [row[0] for row in crawl.rows("status")] == ["completed"] * 4
    assert len(set(places(crawl.lpm))) == 1
    [result] = [each for each in crawl.lpm.results.read() if "files" in each]
    assert [file["status"] for file in result["files"]] == ["completed"] * 3
    assert crawl.lpm.receipt(crawl.job).problems == []
    crawl.lpm.files.restore()  # as every start does
    crawl.lpm.close()
    assert {each.state for each in look(tmp_path / "data")} <= {"ok", "note"}
