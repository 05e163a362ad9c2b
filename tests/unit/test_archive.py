"""Archives, and segments that rotate and are pruned."""

import os
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest
from warcio.archiveiterator import ArchiveIterator

from crawler.db import raw_pages
from crawler.errors import StoreError, UsageError
from crawler.lpm import LocalPersistenceManager
from crawler.results import archive, bundle
from crawler.results.archive import Pruned
from tests.support.tasks import collect, page

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdFile
else:
    from backports.zstd import ZstdFile

DAY = 86400.0


@pytest.fixture
def lpm(tmp_path: Path) -> Iterator[LocalPersistenceManager]:
    """A store with three results of a job and their pages."""
    lpm = LocalPersistenceManager(tmp_path / "data")
    collect(lpm, "first", 3)
    yield lpm
    lpm.close()


def pending(lpm: LocalPersistenceManager) -> list[str]:
    return sorted(path.name for path in lpm.pending.iterdir())


@pytest.mark.parametrize("compress", [True, False])
def test_an_archive_holds_what_leaves_pending(lpm: LocalPersistenceManager, compress: bool) -> None:
    """The file has the lines of pending/, which is empty then and stays so; the results themselves
    are still there."""
    before = {path.read_bytes() for path in lpm.pending.iterdir()}

    archived = archive.archive(lpm, None, compress=compress)

    target = Path(archived.file or "")
    with ZstdFile(target) if compress else target.open("rb") as file:
        assert set(file) == before
    assert target.name.endswith(".jsonl.zst" if compress else ".jsonl")
    assert (archived.results, archived.bytes) == (3, target.stat().st_size)
    assert pending(lpm) == []
    assert lpm.files.restore() == 0
    assert len(list(lpm.results.read())) == 3
    assert lpm.counts.totals().unsynced == 3


def test_an_archive_takes_what_is_asked_for(lpm: LocalPersistenceManager) -> None:
    """By job and by age; with nothing left there is no file."""
    collect(lpm, "second", 2)
    first, second = lpm.jobs.named("first"), lpm.jobs.named("second")

    assert archive.archive(lpm, None, compress=True, before=time.time() - 60).results == 0
    assert archive.archive(lpm, None, compress=True, job=first).results == 3
    assert archive.archive(lpm, None, compress=True, job=first).file is None
    assert len(pending(lpm)) == 2
    assert (
        archive.archive(lpm, None, compress=True, job=second, before=time.time() + 60).results == 2
    )
    assert len(list((lpm.folder / "archive").iterdir())) == 2


def test_strangers_files_stay_and_leftovers_go(lpm: LocalPersistenceManager) -> None:
    """What the ledger does not know is left in pending/; what it knows to have left goes, archive
    or no archive."""
    # Given files of others, and a file of an archived result that a kill left
    stranger, odd = lpm.pending / f"{'0' * 32}.json", lpm.pending / os.fsdecode(b"\xff.json")
    stranger.write_text("{}\n")
    odd.write_text("{}\n")
    left = next(path for path in lpm.pending.iterdir() if path not in (stranger, odd))
    content = left.read_bytes()
    archive.archive(lpm, None, compress=True)
    left.write_bytes(content)

    # When there is nothing to archive
    assert archive.archive(lpm, None, compress=True).results == 0

    # Then only the strangers are there
    assert pending(lpm) == sorted([stranger.name, odd.name])


def test_a_late_projection_does_not_bring_an_archived_result_back(
    lpm: LocalPersistenceManager,
) -> None:
    """A worker that writes to pending/ after the archive has taken its result writes nothing."""
    archive.archive(lpm, None, compress=True)
    lpm.files.write_one(1)
    assert pending(lpm) == []


def test_an_archive_is_never_written_over(lpm: LocalPersistenceManager) -> None:
    """A file that is there is left alone, and so is pending/."""
    target = lpm.folder / "mine.jsonl"
    target.write_text("mine")

    with pytest.raises(UsageError, match="never overwritten"):
        archive.archive(lpm, target, compress=False)
    assert target.read_text() == "mine"
    assert len(pending(lpm)) == 3


@pytest.mark.parametrize("harm", ["flip", "cut", "swap"])
def test_an_archive_that_reads_back_wrong_is_set_aside(tmp_path: Path, harm: str) -> None:
    """A file that does not hold what was written is no archive."""
    lines = [b'{"task_id":"a"}\n', b'{"task_id":"b"}\n']
    target = tmp_path / "results.jsonl.zst"
    with ZstdFile(target, "w") as out:
        out.writelines(reversed(lines) if harm == "swap" else lines)
    data = bytearray(target.read_bytes())
    if harm == "flip":
        data[len(data) // 2] ^= 1
    target.write_bytes(data[:-3] if harm == "cut" else data)

    begun = archive._UnfinishedArchive(
        os.fsencode(target).hex(), True, 2, sha256(b"".join(lines)).hexdigest()
    )
    with pytest.raises(StoreError, match=r"damaged does not hold"):
        archive._verify(begun)
    assert [path.name for path in tmp_path.iterdir()] == ["results.jsonl.zst.damaged"]


def test_one_keeps_at_a_time(lpm: LocalPersistenceManager) -> None:
    """While one archives or prunes another is told so; bundles are written side by side, and keep
    prune away."""
    with archive.maintenance_lock(lpm), pytest.raises(UsageError, match="at work"):
        archive.archive(lpm, None, compress=True)
    with archive.maintenance_lock(lpm, shared=True):
        assert bundle.bundle(lpm, lpm.folder / "b", job=None, since=None, raw=True).pages == 3
        with pytest.raises(UsageError, match="at work"):
            archive.prune(lpm, time.time() + 60, dry_run=False)


# Segments


def test_a_segment_is_written_for_a_day(tmp_path: Path) -> None:
    """A writer begins a new segment when its own is a day old, and adopts only younger ones."""
    now = [datetime(2026, 11, 4, 12, tzinfo=UTC).timestamp()]
    ends: dict[str, int] = {}

    def append(writer: raw_pages.SegmentWriter) -> str:
        [place] = writer.append([raw_pages.packed(page(), "0" * 64)])
        ends[place.segment] = writer.end
        writer.committed = True
        return place.segment

    # Given a writer that goes on for more than a day
    writer = raw_pages.SegmentWriter(tmp_path, lambda name: ends.get(name, 0), lambda: now[0])
    first = append(writer)
    now[0] += DAY - 1
    assert append(writer) == first
    now[0] += 1
    second = append(writer)
    writer.close()

    # When others come, soon and late
    now[0] += DAY / 2
    soon = raw_pages.SegmentWriter(tmp_path, lambda name: ends.get(name, 0), lambda: now[0])
    assert append(soon) == second
    soon.close()
    now[0] += DAY / 2
    late = raw_pages.SegmentWriter(tmp_path, lambda name: ends.get(name, 0), lambda: now[0])
    third = append(late)
    late.close()

    # Then there is a segment a day, each named after its begin and whole
    names = [first, second, third]
    assert [name[:15] for name in names] == [
        "20261104T120000",
        "20261105T120000",
        "20261106T120000",
    ]
    counts = []
    for name in names:
        with (tmp_path / name).open("rb") as file:
            counts.append(sum(record.rec_type == "response" for record in ArchiveIterator(file)))
    assert counts == [2, 2, 1]


def test_a_strangers_file_in_raw_is_left_alone(lpm: LocalPersistenceManager) -> None:
    """What is not named like a segment is neither adopted nor cut nor removed."""
    theirs = lpm.raw / "theirs.warc.gz"
    theirs.write_bytes(b"theirs")
    lpm.close()

    raw_pages.cut_uncommitted(lpm.raw, lambda name: 0, lambda: True)
    archive.prune(lpm, time.time() + 60, dry_run=False)

    assert [path.name for path in lpm.raw.iterdir()] == [theirs.name]


# Prune


def test_prune_removes_pages_and_keeps_results(lpm: LocalPersistenceManager) -> None:
    """The results lose their pages and nothing else, and the store goes on."""
    lpm.close()  # the writer lets go of its segment
    size = sum(path.stat().st_size for path in lpm.raw.iterdir())

    would = archive.prune(lpm, time.time() + 60, dry_run=True)
    young = archive.prune(lpm, time.time() - 60, dry_run=False)
    removed = archive.prune(lpm, time.time() + 60, dry_run=False)

    assert would == Pruned(1, size, 3, 0, 0, True)
    assert young == Pruned(0, 0, 0, 0, 0, False)
    assert removed == Pruned(1, size, 3, 0, 0, False)
    assert list(lpm.raw.iterdir()) == []
    assert [result["raw"] for result in lpm.results.read()] == [None] * 3
    assert lpm.pages.read(1) is None
    assert lpm.store.db.all("SELECT * FROM raw_segments") == []
    collect(lpm, "next", 1)
    assert lpm.pages.read(4) is not None


def test_prune_leaves_a_writers_segment(lpm: LocalPersistenceManager) -> None:
    """A segment that somebody writes to is kept, with its pages."""
    assert archive.prune(lpm, time.time() + 60, dry_run=False) == Pruned(0, 0, 0, 1, 0, False)
    assert lpm.pages.read(1) is not None


def test_prune_leaves_what_a_gateway_is_to_get(lpm: LocalPersistenceManager) -> None:
    """Pages of results that wait for a Gateway stay until it has confirmed them."""
    collect(lpm, "gateway", 1, source="gateway")
    lpm.close()

    kept = archive.prune(lpm, time.time() + 60, dry_run=False)
    lpm.mark_synced([result["task_id"] for result in lpm.get_unsynced_results()])
    removed = archive.prune(lpm, time.time() + 60, dry_run=False)

    assert (kept.segments, kept.for_gateway) == (0, 1)
    assert (removed.segments, removed.results, removed.for_gateway) == (1, 4, 0)


def test_a_page_that_is_gone_without_prune_is_an_error(lpm: LocalPersistenceManager) -> None:
    """Only what was pruned is silently absent."""
    [path] = lpm.raw.iterdir()
    path.unlink()
    with pytest.raises(StoreError, match="cannot be read"):
        lpm.pages.read(1)
