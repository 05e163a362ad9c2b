"""A ledger that was put back from a backup, or lost its log: what it does not know of is neither
cut nor given up."""

import itertools
import re
import shutil
from pathlib import Path

import apsw
import pytest

from crawler.db import raw_pages
from crawler.errors import StoreError
from crawler.lpm import LocalPersistenceManager
from crawler.models import RawLocation
from crawler.results import export
from tests.support.patient import crawl, ledger, look, wrong
from tests.support.tasks import done, new, open_job, page

PLACES = (
    "SELECT task_id, final_url, raw_segment, raw_offset, raw_length FROM tasks JOIN results ON "
    "task = id ORDER BY 1"
)


def fetch(lpm: LocalPersistenceManager, count: int) -> None:
    """Collect so many of the tasks that are due, each with a page of its own."""
    claimed = lpm.get_next_pending("owner", count)
    assert len(claimed) == count
    lpm.save_result(*(done(task, page=page(task.url, task.url.encode() * 20)) for task in claimed))


def more(data: Path, name: str, count: int) -> None:
    """A further job, collected as a whole."""
    lpm = LocalPersistenceManager(data)
    job = open_job(lpm, name)
    lpm.persist_tasks([new(f"http://{name}.example/{n}", line=n) for n in range(count)], job=job)
    lpm.imports.close(job, lpm.now())
    fetch(lpm, count)
    lpm.close()


@pytest.fixture
def restored(tmp_path: Path) -> tuple[Path, list[tuple[object, ...]]]:
    """A store whose ledger was backed up in the middle and put back, and the results that it had
    until then."""
    crawl(tmp_path, 20, 20)
    copy, source = (
        apsw.Connection(str(tmp_path / "copy.db")),
        apsw.Connection(str(tmp_path / "lpm.db")),
    )
    with copy.backup("main", source, "main") as backup:
        backup.step()
    copy.close()
    source.close()
    more(tmp_path, "later", 30)
    results = ledger(tmp_path, PLACES)
    assert len(results) == 50
    for path in tmp_path.glob("lpm.db*"):
        path.unlink()
    shutil.move(tmp_path / "copy.db", tmp_path / "lpm.db")
    return tmp_path, results


def all_read(data: Path, results: list[tuple[object, ...]]) -> bool:
    """Whether the page of each result is where it was."""
    for _, url, name, offset, length in results:
        place = RawLocation(segment=str(name), offset=int(str(offset)), length=int(str(length)))
        raw_pages.read(data / "raw", place, str(url))
    return True


def test_no_stack_starts_on_an_older_ledger(
    restored: tuple[Path, list[tuple[object, ...]]],
) -> None:
    """It says that results are there which the ledger does not know, and what puts them back."""
    data, _ = restored

    with pytest.raises(
        StoreError, match=r"holds 30 results that the ledger does not know.*doctor --repair"
    ):
        LocalPersistenceManager(data).close_after_check()


def test_nothing_is_cut_that_an_older_ledger_does_not_know(
    restored: tuple[Path, list[tuple[object, ...]]],
) -> None:
    """Whoever collects all the same writes elsewhere, and a dead owner's clean-up removes
    nothing."""
    data, results = restored

    more(data, "other", 5)
    lpm = LocalPersistenceManager(data)
    raw_pages.cut_uncommitted(lpm.raw, lambda name: 0, lpm.pages._may_cut)
    lpm.close()

    assert all_read(data, results)


@pytest.mark.parametrize("meanwhile", [0, 5])
def test_a_repair_brings_an_older_ledger_up_to_date(
    restored: tuple[Path, list[tuple[object, ...]]], meanwhile: int
) -> None:
    """Every result is back with its page, under its own name, and a second repair finds nothing to
    do."""
    data, results = restored
    if meanwhile:
        more(data, "other", meanwhile)
    others = ledger(data, PLACES)

    look(data, repair=True)

    found = ledger(data, PLACES)
    assert sorted(found) == sorted({*results, *others})
    assert all_read(data, found)
    [unaccounted] = wrong(look(data, repair=True))  # nobody knows how many rows it had
    assert unaccounted.detail.startswith("job later: its row was lost")
    LocalPersistenceManager(data).close_after_check()


def test_a_killed_writers_rest_is_cut_as_ever(tmp_path: Path) -> None:
    """Where the ledger is the newest, what it never committed goes."""
    crawl(tmp_path, 20, 20)
    [segment] = (tmp_path / "raw").glob("*.warc.gz")
    size = segment.stat().st_size
    segment.write_bytes(segment.read_bytes() * 2)
    lpm = LocalPersistenceManager(tmp_path)

    lpm.pages.cut()

    assert segment.stat().st_size == size
    lpm.close()


def test_the_page_of_another_url_is_not_handed_over(tmp_path: Path) -> None:
    """A member that is whole, but in another's place, ends an export, and `raw`."""
    lpm = LocalPersistenceManager(tmp_path)
    job = open_job(lpm)
    lpm.persist_tasks([new(f"http://a.example/{n}", line=n) for n in range(20)], job=job)
    fetch(lpm, 20)
    rows = [
        (
            int(str(id_)),
            str(url),
            RawLocation(segment=str(name), offset=int(str(offset)), length=int(str(length))),
        )
        for id_, url, name, offset, length in ledger(tmp_path, PLACES.replace("task_id", "id"))
    ]
    (id_, url, one), (_, _, another) = next(
        two for two in itertools.combinations(rows, 2) if two[0][2].length == two[1][2].length
    )
    path = lpm.raw / one.segment
    content = bytearray(path.read_bytes())
    content[one.offset : one.offset + one.length] = content[
        another.offset : another.offset + one.length
    ]
    path.write_bytes(content)

    other = f"it is not that of {url}"
    with pytest.raises(StoreError, match=re.escape(other)):
        lpm.pages.read(id_)
    for form, pages in (("warc", None), ("jsonl", tmp_path / "pages")):
        with pytest.raises(StoreError, match=re.escape(other)):
            export(lpm, tmp_path / f"out.{form}", form, pages=pages)
    lpm.close()


def test_a_receipt_looks_whether_pages_begin_where_they_should(tmp_path: Path) -> None:
    """A segment of the right length with nothing in it is not certified."""
    crawl(tmp_path, 20, 20)
    [segment] = (tmp_path / "raw").glob("*.warc.gz")
    segment.write_bytes(bytes(segment.stat().st_size))
    lpm = LocalPersistenceManager(tmp_path)

    assert (
        "20 stored pages of its results cannot be read"
        in lpm.receipt(lpm.jobs.named("job")).problems[0]
    )
    lpm.close()
