"""Archives, segments that rotate and are pruned, and bundles that were damaged or made to do damage."""

import io
import json
import os
import sys
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from warcio.archiveiterator import ArchiveIterator

from crawler.db import segments
from crawler.errors import InputError, StoreError, UsageError
from crawler.lpm import LocalPersistenceManager
from crawler.models import Raw
from crawler.results import archive, bundle
from crawler.results.archive import CHECKED, Pruned
from crawler.results.unbundle import unbundle
from tests.support.tasks import done, new, open_job, page

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdFile
else:
    from backports.zstd import ZstdFile

DAY = 86400.0
MAX_BODY = 1_000_000


@pytest.fixture
def lpm(tmp_path: Path) -> Iterator[LocalPersistenceManager]:
    """A store with three results of a job and their pages."""
    lpm = LocalPersistenceManager(tmp_path / "data")
    collect(lpm, "first", 3)
    yield lpm
    lpm.close()


def collect(lpm: LocalPersistenceManager, name: str, count: int, source: str = "file") -> None:
    """A job with so many results."""
    job = open_job(lpm, name)
    lpm.persist_tasks(
        [new(f"http://{name}.example/{n}", parcel_id=str(n)) for n in range(count)], job=job, source=source
    )
    tasks = lpm.get_next_pending("owner", count)
    pages = [page(task.url, f"<p>{task.url}</p>".encode()) for task in tasks]
    lpm.save_result(*(done(task, page=page) for task, page in zip(tasks, pages, strict=True)))
    lpm.durable.close_import(job)
    lpm.durable.finalise(time.time())


def pending(lpm: LocalPersistenceManager) -> list[str]:
    return sorted(path.name for path in lpm.pending.iterdir())


# Archive


@pytest.mark.parametrize("compress", [True, False])
def test_an_archive_holds_what_leaves_pending(lpm: LocalPersistenceManager, compress: bool) -> None:
    """The file has the lines of pending/, which is empty then and stays so; the results themselves are still there."""
    before = {path.read_bytes() for path in lpm.pending.iterdir()}

    archived = archive.archive(lpm, None, compress=compress)

    target = Path(archived.file or "")
    with ZstdFile(target) if compress else target.open("rb") as file:
        assert set(file) == before
    assert target.name.endswith(".jsonl.zst" if compress else ".jsonl")
    assert (archived.results, archived.bytes) == (3, target.stat().st_size)
    assert pending(lpm) == []
    assert lpm.project_missing() == 0
    assert len(list(lpm.results())) == 3
    assert lpm.ledger.books().unsynced == 3


def test_an_archive_takes_what_is_asked_for(lpm: LocalPersistenceManager) -> None:
    """By job and by age; with nothing left there is no file."""
    collect(lpm, "second", 2)
    first, second = lpm.ledger.job("first"), lpm.ledger.job("second")

    assert archive.archive(lpm, None, compress=True, before=time.time() - 60).results == 0
    assert archive.archive(lpm, None, compress=True, job=first).results == 3
    assert archive.archive(lpm, None, compress=True, job=first).file is None
    assert len(pending(lpm)) == 2
    assert archive.archive(lpm, None, compress=True, job=second, before=time.time() + 60).results == 2
    assert len(list((lpm.folder / "archive").iterdir())) == 2


def test_strangers_files_stay_and_leftovers_go(lpm: LocalPersistenceManager) -> None:
    """What the ledger does not know is left in pending/; what it knows to have left goes, archive or no archive."""
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


def test_a_late_projection_does_not_bring_an_archived_result_back(lpm: LocalPersistenceManager) -> None:
    """A worker that writes to pending/ after the archive has taken its result writes nothing."""
    archive.archive(lpm, None, compress=True)
    lpm.project(1)
    assert pending(lpm) == []


def test_an_archive_is_never_written_over(lpm: LocalPersistenceManager) -> None:
    """A file that is there is left alone, and so is pending/."""
    target = lpm.folder / "mine.jsonl"
    target.write_text("mine")

    with pytest.raises(UsageError, match="never written over"):
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

    with pytest.raises(StoreError, match=r"damaged does not hold"):
        archive._verify(target, True, 2, sha256(b"".join(lines)).digest())
    assert [path.name for path in tmp_path.iterdir()] == ["results.jsonl.zst.damaged"]


def test_one_keeps_at_a_time(lpm: LocalPersistenceManager) -> None:
    """While one archives or prunes another is told so; bundles are written side by side, and keep prune away."""
    with archive.keeping(lpm), pytest.raises(UsageError, match="at work"):
        archive.archive(lpm, None, compress=True)
    with archive.keeping(lpm, shared=True):
        assert bundle.bundle(lpm, lpm.folder / "b", job=None, since=None, raw=True).pages == 3
        with pytest.raises(UsageError, match="at work"):
            archive.prune(lpm, time.time() + 60, dry_run=False)


# Segments


def test_a_segment_is_written_for_a_day(tmp_path: Path) -> None:
    """A writer begins a new segment when its own is a day old, and adopts only younger ones."""
    now = [datetime(2026, 11, 4, 12, tzinfo=UTC).timestamp()]
    ends: dict[str, int] = {}

    def append(writer: segments.SegmentWriter) -> str:
        [place] = writer.append([page()])
        ends[place.segment] = writer.end
        writer.committed = True
        return place.segment

    # Given a writer that goes on for more than a day
    writer = segments.SegmentWriter(tmp_path, lambda name: ends.get(name, 0), lambda: now[0])
    first = append(writer)
    now[0] += DAY - 1
    assert append(writer) == first
    now[0] += 1
    second = append(writer)
    writer.close()

    # When others come, soon and late
    now[0] += DAY / 2
    soon = segments.SegmentWriter(tmp_path, lambda name: ends.get(name, 0), lambda: now[0])
    assert append(soon) == second
    soon.close()
    now[0] += DAY / 2
    late = segments.SegmentWriter(tmp_path, lambda name: ends.get(name, 0), lambda: now[0])
    third = append(late)
    late.close()

    # Then there is a segment a day, each named after its begin and whole
    names = [first, second, third]
    assert [name[:15] for name in names] == ["20261104T120000", "20261105T120000", "20261106T120000"]
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

    segments.mend(lpm.raw, lambda name: 0)
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
    assert [result["raw"] for result in lpm.results()] == [None] * 3
    assert lpm.raw_page(1) is None
    assert lpm.ledger.db.all("SELECT * FROM raw_segments") == []
    collect(lpm, "next", 1)
    assert lpm.raw_page(4) is not None


def test_prune_leaves_a_writers_segment(lpm: LocalPersistenceManager) -> None:
    """A segment that somebody writes to is kept, with its pages."""
    assert archive.prune(lpm, time.time() + 60, dry_run=False) == Pruned(0, 0, 0, 1, 0, False)
    assert lpm.raw_page(1) is not None


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
        lpm.raw_page(1)


# Bundles

Entry = tuple[bytes, bytes]
"""A member's header and its data."""


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> list[Entry]:
    """The members of a good bundle."""
    folder = tmp_path_factory.mktemp("good")
    lpm = LocalPersistenceManager(folder / "data")
    collect(lpm, "first", 3)
    bundle.bundle(lpm, folder / "b", job=None, since=None, raw=True)
    lpm.close()
    return unpack(folder / "b")


def unpack(path: Path) -> list[Entry]:
    with ZstdFile(path) as file, tarfile.open(fileobj=io.BytesIO(file.read())) as tar:
        files = [(info.name, tar.extractfile(info)) for info in tar]
        return [entry(name, file.read()) for name, file in files if file]


def entry(name: str, data: bytes) -> Entry:
    return bundle.tar_header(name, len(data)), data


def other(data: bytes = b"", **fields: Any) -> Entry:
    """A member as another program could write it."""
    info = tarfile.TarInfo(fields.pop("name", "records/000002.jsonl"))
    for key, value in fields.items():
        setattr(info, key, value)
    info.size = fields.get("size", len(data))
    return info.tobuf(tarfile.GNU_FORMAT), data


def pack(path: Path, entries: Sequence[Entry], end: bytes = bytes(1024)) -> Path:
    with ZstdFile(path, "w", options=CHECKED) as out:
        for header, data in entries:
            out.write(header + data + bytes(-len(data) % 512))
        out.write(end)
    return path


def signed(records: Sequence[dict[str, Any]], raw: bytes, **fields: Any) -> list[Entry]:
    """A bundle with a manifest that fits these members, whatever they hold."""
    lines = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    members = [(b"records/000001.jsonl", lines), (b"raw/000001.warc.gz", raw)]
    listed = [
        {"name": name.decode(), "size": len(data), "sha256": sha256(data).hexdigest()} for name, data in members if data
    ]
    manifest = {
        "format": "crawler bundle", "version": 1, "crawler": "1", "ledger": "x", "created_at": "x", "job": None,
        "since": None, "results": len(records), "pages": sum(record["raw"] is not None for record in records),
        "members": listed,
    }  # fmt: skip
    files = [
        *((name.decode(), data) for name, data in members if data),
        ("manifest.json", json.dumps(manifest | fields).encode()),
    ]
    return [entry(name, data) for name, data in files]


def refused(path: Path, reason: str = ".") -> None:
    """Nothing of the file is stored, not even a store is made."""
    lpm = LocalPersistenceManager(path.parent / "other")
    with pytest.raises(InputError, match=reason) as info:
        unbundle(lpm, path, MAX_BODY)
    assert info.value.path == str(path)
    assert not lpm.folder.exists()


def parts(entries: Sequence[Entry]) -> tuple[list[dict[str, Any]], bytes]:
    return [json.loads(line) for line in entries[0][1].splitlines()], entries[1][1]


def test_a_bundle_comes_back_as_it_was(lpm: LocalPersistenceManager, tmp_path: Path) -> None:
    """Packed again from its parts, a bundle is taken in: the same results and pages, held, in a job that is done."""
    written = bundle.bundle(lpm, tmp_path / "b", job=None, since=None, raw=True)
    entries = unpack(tmp_path / "b")
    there = LocalPersistenceManager(tmp_path / "there")
    stored = unbundle(there, pack(tmp_path / "again", entries), MAX_BODY)

    assert (stored.results, stored.new, stored.known, stored.pages, stored.job) == (3, 3, 0, 3, "again")
    assert stored.checksum == written.checksum == sha256(entries[-1][1]).hexdigest()
    here = [result | {"raw": None, "job": "again"} for result in lpm.results()]
    assert [result | {"raw": None} for result in there.results()] == here
    assert [there.raw_page(n) for n in (1, 2, 3)] == [lpm.raw_page(n) for n in (1, 2, 3)]
    assert there.ledger.db.all("SELECT state FROM outbox") == [("held",)] * 3
    assert there.ledger.db.all("SELECT status, size FROM jobs") == [("done", 3)]
    for column in ("imported_at", "completed_at", "content_type", "bytes", "fetch_ms"):
        sql = f"SELECT {column} FROM results JOIN tasks ON tasks.id = task ORDER BY task"
        assert there.ledger.db.all(sql) == lpm.ledger.db.all(sql)
    there.close()


def test_a_gateways_id_travels(tmp_path: Path) -> None:
    """A Gateway's own id comes along, so that another machine can deliver the result."""
    here, there = LocalPersistenceManager(tmp_path / "here"), LocalPersistenceManager(tmp_path / "there")
    here.persist_tasks([new("http://a.example/1", external_id="t-1")], source="gateway")
    here.save_result(done(here.get_next_pending("owner")[0]))
    bundle.bundle(here, tmp_path / "b", job=None, since=None, raw=False)
    unbundle(there, tmp_path / "b", MAX_BODY)

    assert there.ledger.db.all("SELECT external_id, source FROM tasks") == [("t-1", "bundle")]
    here.close()
    there.close()


def test_a_damaged_page_does_not_hold_up_its_record(lpm: LocalPersistenceManager, tmp_path: Path) -> None:
    """A page that cannot be read is left out of the bundle and counted; the bundle is good."""
    [path] = lpm.raw.iterdir()
    place = place_of(lpm, 2)
    with path.open("r+b") as file:
        file.seek(place.offset + place.length // 2)
        file.write(b"\0\0\0\0")

    written = bundle.bundle(lpm, tmp_path / "b", job=None, since=None, raw=True)
    there = LocalPersistenceManager(tmp_path / "there")
    stored = unbundle(there, tmp_path / "b", MAX_BODY)

    assert (written.results, written.pages, written.unreadable) == (3, 2, 1)
    assert (stored.new, stored.pages) == (3, 2)
    assert [there.raw_page(n) is not None for n in (1, 2, 3)] == [True, False, True]
    there.close()


def place_of(lpm: LocalPersistenceManager, task: int) -> Raw:
    place = lpm.raw_place(task)
    assert place is not None
    return place


def test_a_task_that_is_open_here_is_left_as_it_is(lpm: LocalPersistenceManager, tmp_path: Path) -> None:
    """Where a ledger has the task but not the result, as after a restored backup, that is said, and no more."""
    bundle.bundle(lpm, tmp_path / "b", job=None, since=None, raw=True)
    there = LocalPersistenceManager(tmp_path / "there")
    there.persist_tasks([new("http://first.example/0", parcel_id="0")])
    [(task_id,)] = lpm.ledger.db.all("SELECT task_id FROM tasks WHERE id = 1")
    there.durable.db.execute("UPDATE tasks SET task_id = ?", (task_id,))

    stored = unbundle(there, tmp_path / "b", MAX_BODY)

    assert (stored.new, stored.known, stored.open) == (2, 1, 1)
    books = there.ledger.books()
    assert (books.accepted, books.pending, books.completed, books.results) == (3, 1, 2, 2)
    there.close()


@pytest.mark.parametrize("cut", [0, 1, 4, 100, -200, -5, -1])
def test_a_truncated_bundle(entries: list[Entry], tmp_path: Path, cut: int) -> None:
    """A file that ends too early, wherever."""
    path = pack(tmp_path / "b", entries)
    path.write_bytes(path.read_bytes()[:cut])
    refused(path, "cut off|no bundle")


def test_flipped_bits_in_a_bundle(entries: list[Entry], tmp_path: Path) -> None:
    """One wrong bit anywhere, in the file or in what it packs, is noticed."""
    path = pack(tmp_path / "b", entries)
    good = path.read_bytes()
    with ZstdFile(path) as file:
        plain = file.read()
    for place in range(0, len(good), len(good) // 40):
        path.write_bytes(good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :])
        with suppress(Exception), ZstdFile(path) as file:
            if file.read() == plain:
                continue  # a bit that zstd has no use for
        refused(path)
    for number, (header, data) in enumerate(entries[:2]):
        for place in range(0, len(data), len(data) // 10):
            flipped = (header, data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
            refused(pack(path, [*entries[:number], flipped, *entries[number + 1 :]]))


HOSTILE: dict[str, tuple[Callable[[list[Entry]], list[Entry]], str]] = {
    "path": (lambda e: [other(b"x", name="../../etc/passwd"), *e], "does not write"),
    "own path": (lambda e: [entry("../../etc/passwd", b"x"), *e], "passwd where records/000001"),
    "absolute": (lambda e: [entry("/etc/passwd", b"x"), *e], "passwd where records/000001"),
    "escape": (lambda e: [entry("\x1b[2J", b"x"), *e], r"\\x1b\[2J where records/000001"),
    "symlink": (lambda e: [*e[:2], other(type=tarfile.SYMTYPE, linkname="/etc"), e[2]], "does not write"),
    "hard link": (lambda e: [*e[:2], other(type=tarfile.LNKTYPE, linkname="x"), e[2]], "does not write"),
    "device": (lambda e: [*e[:2], other(type=tarfile.CHRTYPE, devmajor=1, devminor=5), e[2]], "does not write"),
    "fifo": (lambda e: [other(type=tarfile.FIFOTYPE), *e], "does not write"),
    "pax": (lambda e: [other(b"30 mtime=1\n", type=tarfile.XHDTYPE), *e], "does not write"),
    "other mode": (lambda e: [other(e[0][1], name="records/000001.jsonl", mode=0o4755), *e[1:]], "does not write"),
    "twice": (lambda e: [e[0], e[0], *e[1:]], "not where its record says"),
    "pages twice": (lambda e: [e[0], e[1], e[1], e[2]], "where records/000002"),
    "order": (lambda e: [e[1], e[0], e[2]], "raw/000001.warc.gz where"),
    "no pages": (lambda e: [e[0], e[2]], "not where its record says"),
    "no records": (lambda e: [e[2]], "has 0 members"),
    "no manifest": (lambda e: e[:2], "no manifest"),
    "behind the manifest": (lambda e: [*e, e[0]], "behind its manifest"),
    "empty": (lambda e: [], "no manifest"),
    "empty records": (lambda e: [entry("records/000001.jsonl", b""), *e[1:]], "whole lines"),
    "huge": (lambda e: [(bundle.tar_header("records/000001.jsonl", 8**11 - 1), b"")], "more than a bundle's members"),
    "lying size": (lambda e: [(bundle.tar_header("records/000001.jsonl", 9_999_999), b"")], "cut off"),
    "negative size": (lambda e: [(b"records/000001.jsonl".ljust(124, b"\0") + b"\xff" * 388, b"")], "does not write"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_tar(entries: list[Entry], tmp_path: Path, kind: str) -> None:
    """Members that a bundle does not have, or not there, are refused by name, and no file appears anywhere."""
    change, reason = HOSTILE[kind]
    refused(pack(tmp_path / "b", change(entries)), reason)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b"]


@pytest.mark.parametrize(
    ("end", "reason"), [(b"", "cut off"), (bytes(512), "cut off"), (bytes(9999), "behind its end")]
)
def test_what_is_behind_the_end(entries: list[Entry], tmp_path: Path, end: bytes, reason: str) -> None:
    """A tar ends with two empty blocks, and then there is nothing."""
    refused(pack(tmp_path / "b", entries, end), reason)


def test_what_is_no_bundle(tmp_path: Path) -> None:
    """Text, nothing, a folder, a missing file and plain zstd are one clear error each."""
    path = tmp_path / "b"
    refused(path, "no such file")
    path.write_bytes(b"")
    refused(path, "cut off")
    path.write_bytes(b"task_id,url\n" * 100)
    refused(path, "no bundle")
    with ZstdFile(path, "w") as out:
        out.write(b"task_id,url\n" * 100)
    refused(path, "no bundle")
    path.unlink()
    path.mkdir()
    refused(path, "not a file")


def test_bombs(entries: list[Entry], tmp_path: Path) -> None:
    """What unpacks to far more than it may is refused as soon as that is seen."""
    path = tmp_path / "b"
    with ZstdFile(path, "w") as out:
        for _ in range(16):
            out.write(bytes(1 << 24))
    refused(path, "behind its end")
    records, _ = parts(entries)
    fields = b"WARC/1.1\r\nWARC-Type: response\r\n"
    packer = zlib.compressobj(wbits=31)
    bomb = packer.compress(fields) + b"".join(packer.compress(bytes(1 << 20)) for _ in range(64)) + packer.flush()
    record = records[0] | {"raw": {"segment": "raw/000001.warc.gz", "offset": 0, "length": len(bomb)}}
    refused(pack(path, signed([record], bomb)), "cannot be used: more than")


BAD_FIELDS: list[dict[str, Any]] = [
    {"task_id": "../../../etc/passwd"}, {"task_id": "0" * 32 + "\n"}, {"task_id": 5}, {"url": "ftp://a.example/"},
    {"url": "http://user:geheim@a.example/"}, {"url": ""}, {"priority": 0}, {"priority": 1 << 70}, {"queue": "fast"},
    {"scraped_at": "yesterday"}, {"scraped_at": "2026-11-04T10:00:00"}, {"attempts": -1}, {"data": []},
    {"input": "x"}, {"carried": None}, {"raw_html_hash": "0" * 64}, {"status_code": 1000}, {"parser": {}},
    {"raw": {"segment": "raw/000001.warc.gz", "offset": 1, "length": 5}},
    {"raw": {"segment": "raw/000001.warc.gz", "offset": 0, "length": -5}},
    {"raw": {"segment": "../raw", "offset": 0, "length": 5}},
]  # fmt: skip


@pytest.mark.parametrize("fields", BAD_FIELDS, ids=str)
def test_records_that_cannot_be(entries: list[Entry], tmp_path: Path, fields: dict[str, Any]) -> None:
    """A manifest that fits does not make a record good: each field is checked, and no secret is repeated."""
    records, raw = parts(entries)
    path = pack(tmp_path / "b", signed([records[0] | fields, *records[1:]], raw))
    refused(path, r"records/000001.jsonl, line 1")
    with pytest.raises(InputError) as info:
        unbundle(LocalPersistenceManager(tmp_path / "other"), path, MAX_BODY)
    assert "geheim" not in str(info.value)


@pytest.mark.parametrize("line", [b"[]", b"{", b"\xff", b'{"data":' + b"[" * 5000 + b"]" * 5000 + b"}", b""])
def test_lines_that_are_no_records(entries: list[Entry], tmp_path: Path, line: bytes) -> None:
    """No traceback, whatever stands there."""
    bad = entry("records/000001.jsonl", line + b"\n" + entries[0][1])
    refused(pack(tmp_path / "b", [bad, *entries[1:]]), "line 1")


def test_manifests_that_lie(entries: list[Entry], tmp_path: Path) -> None:
    """Counts, members, format and version must be right, and a newer version is said to be one."""
    records, raw = parts(entries)
    path = tmp_path / "b"
    refused(pack(path, signed(records, raw, results=4)), "3 results and 3 pages, but its manifest says 4")
    refused(pack(path, signed(records, raw, pages=2)), "but its manifest says 3 and 2")
    refused(pack(path, signed(records, raw, members=[])), "has 2 members")
    refused(pack(path, signed(records, raw, format="other")), "manifest cannot be read")
    refused(pack(path, signed(records, raw, version=2)), "newer version")
    refused(pack(path, signed(records, raw, version="x")), "manifest cannot be read")
    refused(pack(path, [*entries[:2], entry("manifest.json", b"[" * 9999)]), "manifest cannot be read")
    refused(pack(path, signed(records, raw + entries[1][1])), "holds more than the pages")


def test_a_page_beyond_this_machines_limit(entries: list[Entry], tmp_path: Path) -> None:
    """CRAWLER_MAX_BODY holds for pages that come in a bundle too."""
    path = pack(tmp_path / "b", entries)
    with pytest.raises(InputError, match="larger than 10 bytes"):
        unbundle(LocalPersistenceManager(tmp_path / "other"), path, 10)
